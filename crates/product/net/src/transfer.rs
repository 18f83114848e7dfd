//! Calls that move bytes between a descriptor and the program's buffers.
//!
//! # Protocol
//!
//! **Straight line.** All buffers are pinned, the call is made as the program wrote it, all are unpinned. This is
//! nearly every call.
//!
//! **In pieces**, if the buffers are larger than what can be pinned at once. The result must be one that the kernel
//! could have given to the whole call, so it depends on what the descriptor is ([`kind`]):
//!
//! | descriptor | pieces |
//! |---|---|
//! | regular file, block device, `/dev/zero` and the like | until all is done, a piece is short, or an error; pieces are whole multiples of 4096, for direct I/O |
//! | pipe, stream socket, terminal: write | likewise; a non-blocking one stops by itself at the first short piece |
//! | pipe, stream socket: read | the first piece may block; the next ones are made only if it was filled, and never block (`MSG_WAITALL`: they do) |
//! | terminal: read | one piece: it never has more than that |
//! | everything else | never cut: one call on scratch memory |
//!
//! An error after the first piece ends the call with what was done; the kernel does the same. A piece that is
//! interrupted by a signal returns what it did, or `EINTR`: the same again.
//!
//! **On scratch memory**, if a transfer must not be cut (datagrams, packets, unknown devices, messages with control
//! data, `MSG_PEEK`, `MSG_TRUNC`, out-of-band data) or is so small that cutting it would not pay.
//!
//! What is not exact:
//!
//! * A write to a regular file larger than the budget holds the file's lock for each piece, not for the whole, so it
//!   can interleave with another process's write to the same place. Programs that care take a lock.
//! * A non-blocking write larger than the budget to a pipe that gets full can end up to a page earlier than natively:
//!   the kernel would have put the odd bytes into the pipe's last page.
//! * `SO_RCVTIMEO` counts anew for each piece of a `MSG_WAITALL`.
//!
//! The straight line costs 13 ns for a `read` of a resident page, 40 to 55 ns for a `writev` or `recvmsg` of two buffers
//! (with a pin of one compare-and-swap a page; without the system call).

pub(super) mod kind;
mod many;
mod messages;
pub(super) mod pieces;

use super::buffers::scratch::FAULT;
use super::buffers::{Access, Args, IoVec, Memory, PAGE, PinSet, Pins, clip, errno, pin_all, read_user};
use super::calls::descriptors::gives_own;
use super::table::{Flow, Transfer};
use pieces::{Cursor, FileCall};

/// What one call transfers at most; the kernel cuts the rest off.
pub(super) const TRANSFER_MAX: u64 = 0x7fff_f000;
/// Entries that an iovec array may have.
pub(super) const IOV_MAX: u64 = 1024;
/// A transfer of so few bytes is never cut: copying it is cheaper, and pipes promise that 4096 are not torn.
const SMALL: u64 = 64 << 10;
/// What is offered at most, on scratch memory, to a read of a device that we do not know, or of a datagram.
const SCRATCH_READ_MAX: u64 = 64 << 20;

/// What the kernel does with the buffers.
fn access(flow: Flow) -> Access {
    match flow {
        Flow::Read => Access::Write,
        Flow::Write => Access::Read,
    }
}

/// Makes a call that `transfer` describes.
#[inline]
pub fn transfer(mem: &impl Memory, transfer: Transfer, nr: u64, args: &Args) -> i64 {
    match transfer {
        Transfer::Flat(flow) => flat(mem, flow, nr, args),
        Transfer::Vector(flow) => vector(mem, flow, nr, args),
        Transfer::SendTo => messages::send_to(mem, args),
        Transfer::RecvFrom => messages::receive_from(mem, args),
        Transfer::SendMsg if gives_own(mem, args[1]) => errno(libc::EBADF),
        Transfer::SendMsg => messages::send(mem, args),
        Transfer::RecvMsg => messages::receive(mem, args),
        Transfer::SendMany => many::send(mem, args),
        Transfer::RecvMany => many::receive(mem, args),
        Transfer::Random => random(mem, args),
        Transfer::Entries => entries(mem, nr, args),
    }
}

#[inline]
fn flat(mem: &impl Memory, flow: Flow, nr: u64, args: &Args) -> i64 {
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let len = clip(args[1], args[2].min(TRANSFER_MAX));
    if len != 0 && mem.pin(&mut pins, args[1], len, access(flow)) < len {
        pins.release();
        return flat_slow(mem, flow, nr, args);
    }
    mem.raw(nr, args)
}

#[cold]
#[inline(never)]
fn flat_slow(mem: &impl Memory, flow: Flow, nr: u64, args: &Args) -> i64 {
    let positioned = nr == libc::SYS_pread64 as u64 || nr == libc::SYS_pwrite64 as u64;
    // The kernel refuses these before it looks at the buffer.
    if i64::try_from(args[2]).is_err() || (positioned && i64::try_from(args[3]).is_err()) {
        return mem.raw(nr, args);
    }
    let cursor = Cursor::one(IoVec { addr: args[1], len: args[2] });
    let call = FileCall { flow, fd: args[0], position: positioned.then_some(args[3]), flags: 0 };
    pieces::file(mem, call, cursor).unwrap_or_else(|| mem.raw(nr, args))
}

/// How pinning an array of buffers went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pinned {
    /// All of it is safe.
    All,
    /// Some of it found no room.
    Part,
    /// The kernel will refuse it: the array cannot be read, or a length in it is negative.
    Refused,
}

/// Pins `count` iovecs at `array` and what they name, up to what one call transfers.
#[inline]
fn pin_vectors(mem: &impl Memory, pins: &mut PinSet, array: u64, count: u64, access: Access) -> Pinned {
    let mut left = TRANSFER_MAX;
    // The kernel reads the whole array, whatever its buffers hold.
    let mut all = pin_all(mem, pins, array, count * 16, Access::Read);
    for index in 0..count {
        let Some(iov) = read_user::<IoVec>(mem, pins, array.wrapping_add(index * 16)) else { return Pinned::Refused };
        if iov.len > i64::MAX as u64 {
            return Pinned::Refused;
        }
        let len = iov.len.min(left);
        all = all && pin_all(mem, pins, iov.addr, len, access);
        left -= len;
    }
    if all { Pinned::All } else { Pinned::Part }
}

fn vector(mem: &impl Memory, flow: Flow, nr: u64, args: &Args) -> i64 {
    let count = args[2];
    if count == 0 || count > IOV_MAX {
        return mem.raw(nr, args);
    }
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    if pin_vectors(mem, &mut pins, args[1], count, access(flow)) == Pinned::Part {
        pins.release();
        return vector_slow(mem, flow, nr, args);
    }
    mem.raw(nr, args)
}

#[cold]
#[inline(never)]
fn vector_slow(mem: &impl Memory, flow: Flow, nr: u64, args: &Args) -> i64 {
    let with_flags = nr == libc::SYS_preadv2 as u64 || nr == libc::SYS_pwritev2 as u64;
    let positioned = with_flags || nr == libc::SYS_preadv as u64 || nr == libc::SYS_pwritev as u64;
    let position = args[3];
    // A position of -1 means the file's own, but only to the calls with flags; other negative ones are refused.
    let own_position = !positioned || (with_flags && position == u64::MAX);
    if !own_position && i64::try_from(position).is_err() {
        return mem.raw(nr, args);
    }
    let call = FileCall {
        flow,
        fd: args[0],
        position: (!own_position).then_some(position),
        flags: if with_flags { args[5] as u32 } else { 0 },
    };
    pieces::file(mem, call, Cursor::array(args[1], args[2])).unwrap_or_else(|| mem.raw(nr, args))
}

fn random(mem: &impl Memory, args: &Args) -> i64 {
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let total = clip(args[0], args[1].min(TRANSFER_MAX));
    let mut done = 0;
    loop {
        let (addr, left) = (args[0].wrapping_add(done), total - done);
        let safe = if left == 0 { 0 } else { mem.pin(&mut pins, addr, left, Access::Write).min(left) };
        // Nothing is safe: the kernel says why.
        let piece = if safe == 0 || safe == total { args[1] - done } else { safe };
        let result = mem.raw(libc::SYS_getrandom as u64, &[addr, piece, args[2], 0, 0, 0]);
        pins.release();
        match result {
            error if error < 0 => return if done == 0 { error } else { done as i64 },
            got => done += got as u64,
        }
        if result as u64 != piece || done >= total {
            return done as i64;
        }
    }
}

fn entries(mem: &impl Memory, nr: u64, args: &Args) -> i64 {
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let len = clip(args[1], u64::from(args[2] as u32));
    let safe = if len == 0 { 0 } else { mem.pin(&mut pins, args[1], len, Access::Write).min(len) };
    // A directory entry needs at most a few hundred bytes, so a page is enough to go on.
    let offered = if safe < len && safe >= PAGE { safe } else { args[2] };
    mem.raw(nr, &[args[0], args[1], offered, 0, 0, 0])
}

#[cfg(test)]
mod tests;
