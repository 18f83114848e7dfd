//! Transfers of sockets: `sendto`, `recvfrom`, `sendmsg`, `recvmsg`, and `read` and `write` on a socket that must be cut.

use super::super::buffers::scratch::Scratch;
use super::super::buffers::{
    Access, Args, IoVec, Memory, PinSet, Pins, Plain, address, pin_all, pin_dir, pin_local, read_once, read_user, write_once,
};
use super::super::table::{Dir, Flow};
use super::kind::{self, Kind};
use super::pieces::{Cursor, FileCall, Piece};
use super::{FAULT, IOV_MAX, Pinned, SCRATCH_READ_MAX, SMALL, TRANSFER_MAX, pin_vectors};

/// The kernel's `struct msghdr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    name: u64,
    name_len: u32,
    pad: u32,
    iovs: u64,
    iov_count: u64,
    control: u64,
    control_len: u64,
    flags: u32,
    pad2: u32,
}
// SAFETY: integers, with the padding written out.
unsafe impl Plain for Header {
    const ZERO: Header =
        Header { name: 0, name_len: 0, pad: 0, iovs: 0, iov_count: 0, control: 0, control_len: 0, flags: 0, pad2: 0 };
}

/// Longest address that is pinned; the kernel's limit is 128.
const NAME_MAX: u64 = 256;
/// Most control data that is pinned. Sent: the kernel's limit is a sysctl of 128 KiB; received: a few KiB.
const CONTROL_MAX: u64 = 256 << 10;
/// Flags with which a stream can be cut.
const CUT_SEND: u64 = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE | libc::MSG_DONTROUTE | libc::MSG_CONFIRM) as u64;
const CUT_RECEIVE: u64 = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_WAITALL | libc::MSG_CMSG_CLOEXEC) as u64;
/// The kernel takes flags as 32 bits.
const FLAGS: u64 = 0xffff_ffff;

/// The header and buffers of one piece, side by side so that they are pinned at once.
#[repr(C)]
struct Local {
    header: Header,
    piece: Piece,
}

impl Local {
    /// Lets the header refer to the piece; the header's address, for the kernel.
    fn refer(&mut self) -> u64 {
        self.header.iovs = address(self) + core::mem::offset_of!(Local, piece) as u64;
        self.header.iov_count = self.piece.count;
        address(self)
    }
}

/// A message that could not be pinned at once.
struct Message {
    fd: u64,
    header: Header,
    flags: u64,
    kind: Kind,
    cursor: Cursor,
    total: u64,
}

/// Pins the message whose header is at `addr`, with everything in it. `flow`: `Read` receives.
pub(super) fn pin_message(mem: &impl Memory, pins: &mut PinSet, addr: u64, header_len: u64, flow: Flow) -> Pinned {
    let dir = if flow == Flow::Read { Dir::Out } else { Dir::In };
    // The kernel writes into a received header, and the length into each of many.
    let mut all = pin_dir(mem, pins, addr, header_len, Dir::Both);
    let Some(header) = read_user::<Header>(mem, pins, addr) else { return Pinned::Refused };
    if header.iov_count > IOV_MAX {
        return Pinned::Refused;
    }
    all &= pin_name_and_control(mem, pins, &header, dir);
    match pin_vectors(mem, pins, header.iovs, header.iov_count, super::access(flow)) {
        Pinned::All if !all => Pinned::Part,
        other => other,
    }
}

fn pin_name_and_control(mem: &impl Memory, pins: &mut PinSet, header: &Header, dir: Dir) -> bool {
    let name = pin_dir(mem, pins, header.name, u64::from(header.name_len).min(NAME_MAX), dir);
    pin_dir(mem, pins, header.control, header.control_len.min(CONTROL_MAX), dir) && name
}

/// `sendto`.
pub(super) fn send_to(mem: &impl Memory, args: &Args) -> i64 {
    let nr = libc::SYS_sendto as u64;
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let name_len = i64::from(args[5] as i32).max(0) as u64;
    let all = pin_all(mem, &mut pins, args[4], name_len.min(NAME_MAX), Access::Read)
        & pin_all(mem, &mut pins, args[1], args[2].min(TRANSFER_MAX), Access::Read);
    if !all {
        pins.release();
        let header = Header { name: args[4], name_len: args[5] as u32, ..Header::ZERO };
        let cursor = Cursor::one(IoVec { addr: args[1], len: args[2].min(TRANSFER_MAX) });
        return match Message::new(mem, args[0], header, args[3], cursor) {
            Some(message) if args[4] == 0 || name_len <= NAME_MAX => message.send(mem),
            _ => mem.raw(nr, args),
        };
    }
    mem.raw(nr, args)
}

/// `recvfrom`.
pub(super) fn receive_from(mem: &impl Memory, args: &Args) -> i64 {
    let nr = libc::SYS_recvfrom as u64;
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let mut name_len = 0;
    let mut all = true;
    if args[4] != 0 && args[5] != 0 {
        all = pin_dir(mem, &mut pins, args[5], 4, Dir::Both);
        name_len = read_user::<u32>(mem, &mut pins, args[5]).unwrap_or(0);
        all &= pin_all(mem, &mut pins, args[4], u64::from(name_len).min(NAME_MAX), Access::Write);
    }
    all &= pin_all(mem, &mut pins, args[1], args[2].min(TRANSFER_MAX), Access::Write);
    if !all {
        pins.release();
        let header = Header { name: args[4], name_len, ..Header::ZERO };
        let cursor = Cursor::one(IoVec { addr: args[1], len: args[2].min(TRANSFER_MAX) });
        let Some(mut message) = Message::new(mem, args[0], header, args[3], cursor) else { return mem.raw(nr, args) };
        let result = message.receive(mem);
        if result >= 0 && args[4] != 0 {
            return store(mem, args[5], &message.header.name_len, result);
        }
        return result;
    }
    mem.raw(nr, args)
}

/// `sendmsg`.
pub(super) fn send(mem: &impl Memory, args: &Args) -> i64 {
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let pinned = pin_message(mem, &mut pins, args[1], size_of::<Header>() as u64, Flow::Write);
    if pinned == Pinned::Part {
        pins.release();
        return send_slow(mem, args);
    }
    mem.raw(libc::SYS_sendmsg as u64, args)
}

/// `sendmsg` of a message that cannot be pinned at once.
#[cold]
pub(super) fn send_slow(mem: &impl Memory, args: &Args) -> i64 {
    match Message::at(mem, args) {
        Some(message) => message.send(mem),
        None => mem.raw(libc::SYS_sendmsg as u64, args),
    }
}

/// `recvmsg`.
pub(super) fn receive(mem: &impl Memory, args: &Args) -> i64 {
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let pinned = pin_message(mem, &mut pins, args[1], size_of::<Header>() as u64, Flow::Read);
    if pinned == Pinned::Part {
        pins.release();
        return receive_slow(mem, args);
    }
    mem.raw(libc::SYS_recvmsg as u64, args)
}

/// `recvmsg` of a message that cannot be pinned at once.
#[cold]
pub(super) fn receive_slow(mem: &impl Memory, args: &Args) -> i64 {
    let Some(mut message) = Message::at(mem, args) else { return mem.raw(libc::SYS_recvmsg as u64, args) };
    let result = message.receive(mem);
    if result < 0 {
        return result;
    }
    let header = &message.header;
    let result = if header.name == 0 { result } else { store(mem, args[1] + 8, &header.name_len, result) };
    let result = store(mem, args[1] + 40, &header.control_len, result);
    store(mem, args[1] + 48, &header.flags, result)
}

/// Stores a part of the kernel's answer; `result`, or the fault.
fn store<T: Plain>(mem: &impl Memory, addr: u64, value: &T, result: i64) -> i64 {
    let stored = write_once(mem, addr, value);
    if stored { result } else { FAULT }
}

/// A `read` or `write` of a socket that cannot be pinned at once; `None`: the kernel will refuse it.
pub(super) fn as_socket(mem: &impl Memory, call: FileCall, kind: Kind, cursor: Cursor, total: u64) -> i64 {
    let mut message = Message { fd: call.fd, header: Header::ZERO, flags: 0, kind, cursor, total };
    match call.flow {
        Flow::Read => message.receive(mem),
        Flow::Write => message.send(mem),
    }
}

impl Message {
    /// `None`: the kernel will refuse it as it is.
    fn new(mem: &impl Memory, fd: u64, header: Header, flags: u64, cursor: Cursor) -> Option<Message> {
        let total = cursor.total(mem).ok()?;
        match kind::of(mem, fd) {
            kind @ (Kind::Stream { .. } | Kind::Packets) => {
                Some(Message { fd, header, flags: flags & FLAGS, kind, cursor, total })
            }
            _ => None,
        }
    }
    /// The arguments of a `sendmsg` or `recvmsg`.
    fn at(mem: &impl Memory, args: &Args) -> Option<Message> {
        let header = read_once::<Header>(mem, args[1]);
        let header = header?;
        Message::new(mem, args[0], header, args[2], Cursor::array(header.iovs, header.iov_count))
    }

    fn is_stream(&self) -> bool {
        matches!(self.kind, Kind::Stream { .. })
    }

    fn send(&self, mem: &impl Memory) -> i64 {
        if self.is_stream() && self.total > SMALL && self.flags & !CUT_SEND == 0 {
            self.send_pieces(mem)
        } else {
            self.send_on_scratch(mem)
        }
    }

    fn receive(&mut self, mem: &impl Memory) -> i64 {
        let control = self.header.control != 0 && self.header.control_len > 0;
        let can_be_cut = self.is_stream() && self.flags & !CUT_RECEIVE == 0 && !control;
        let accessible = self.cursor.accessible(mem, Access::Write);
        if !accessible && !can_be_cut {
            return FAULT;
        }
        // A stream ends at the byte that cannot be accessed, as natively.
        if can_be_cut && (self.total > SMALL || !accessible) { self.receive_pieces(mem) } else { self.receive_on_scratch(mem) }
    }

    fn send_pieces(&self, mem: &impl Memory) -> i64 {
        let (mut cursor, mut done) = (self.cursor, 0u64);
        let mut local = Local { header: self.header, piece: Piece::EMPTY };
        let mut set = PinSet::new();
        let mut pins = Pins::new(mem, &mut set);
        loop {
            let mut flags = self.flags;
            if done > 0 {
                // The kernel raises no SIGPIPE for a call that has sent something; and it has the control data.
                flags |= libc::MSG_NOSIGNAL as u64;
                local.header = Header::ZERO;
            }
            pin_local(mem, &mut pins, &mut local);
            pin_name_and_control(mem, &mut pins, &local.header, Dir::In);
            let after = cursor.fill(mem, &mut pins, Access::Read, &mut local.piece);
            if local.piece.bytes == 0 {
                return if done > 0 { done as i64 } else { FAULT };
            }
            let addr = local.refer();
            let result = mem.raw(libc::SYS_sendmsg as u64, &[self.fd, addr, flags, 0, 0, 0]);
            pins.release();
            if result < 0 {
                return if done > 0 { done as i64 } else { result };
            }
            done += result as u64;
            if (result as u64) < local.piece.bytes || done >= self.total {
                return done as i64;
            }
            cursor = after;
        }
    }

    fn receive_pieces(&mut self, mem: &impl Memory) -> i64 {
        let (mut cursor, mut done) = (self.cursor, 0u64);
        let mut local = Local { header: self.header, piece: Piece::EMPTY };
        let mut set = PinSet::new();
        let mut pins = Pins::new(mem, &mut set);
        loop {
            let mut flags = self.flags;
            if done > 0 {
                local.header = Header::ZERO;
                if flags & libc::MSG_WAITALL as u64 == 0 {
                    flags |= libc::MSG_DONTWAIT as u64;
                }
            }
            pin_local(mem, &mut pins, &mut local);
            pin_name_and_control(mem, &mut pins, &local.header, Dir::Out);
            let after = cursor.fill(mem, &mut pins, Access::Write, &mut local.piece);
            if local.piece.bytes == 0 {
                return if done > 0 { done as i64 } else { FAULT };
            }
            let addr = local.refer();
            let result = mem.raw(libc::SYS_recvmsg as u64, &[self.fd, addr, flags, 0, 0, 0]);
            pins.release();
            if result < 0 {
                return if done > 0 { done as i64 } else { result };
            }
            self.take_answer(&local.header, done == 0);
            done += result as u64;
            if (result as u64) < local.piece.bytes || done >= self.total {
                return done as i64;
            }
            cursor = after;
        }
    }

    /// Keeps what the kernel wrote into the header of a piece.
    fn take_answer(&mut self, answer: &Header, first: bool) {
        if first {
            self.header.name_len = answer.name_len;
            self.header.control_len = answer.control_len;
        }
        self.header.flags = answer.flags;
    }

    fn send_on_scratch(&self, mem: &impl Memory) -> i64 {
        // Scratch memory of no bytes cannot be had.
        let scratch = match Scratch::new(mem, self.total.max(1)) {
            Ok(scratch) => scratch,
            Err(error) => return error,
        };
        if !self.cursor.copy(mem, &scratch, self.total, Flow::Write) {
            return FAULT;
        }
        let mut header = self.header;
        self.call_on_scratch(mem, &mut header, &scratch, self.total, Flow::Write)
    }

    fn receive_on_scratch(&mut self, mem: &impl Memory) -> i64 {
        let len = self.total.min(SCRATCH_READ_MAX);
        let scratch = match Scratch::new(mem, len.max(1)) {
            Ok(scratch) => scratch,
            Err(error) => return error,
        };
        let mut header = self.header;
        let result = self.call_on_scratch(mem, &mut header, &scratch, len, Flow::Read);
        if result < 0 {
            return result;
        }
        self.take_answer(&header, true);
        // TCP throws bytes away and stores nothing; with other sockets the length can be more than what was stored.
        let thrown_away = self.kind == Kind::Stream { tcp: true } && self.flags & libc::MSG_TRUNC as u64 != 0;
        let stored = if thrown_away { 0 } else { (result as u64).min(len) };
        if self.cursor.copy(mem, &scratch, stored, Flow::Read) { result } else { FAULT }
    }

    /// One call with scratch memory as the only buffer.
    fn call_on_scratch<M: Memory>(&self, mem: &M, header: &mut Header, scratch: &Scratch<'_, M>, len: u64, flow: Flow) -> i64 {
        let (nr, dir) = match flow {
            Flow::Read => (libc::SYS_recvmsg, Dir::Out),
            Flow::Write => (libc::SYS_sendmsg, Dir::In),
        };
        let mut set = PinSet::new();
        let mut pins = Pins::new(mem, &mut set);
        let mut iov = IoVec { addr: scratch.addr(), len };
        header.iovs = pin_local(mem, &mut pins, &mut iov);
        header.iov_count = 1;
        pin_local(mem, &mut pins, header);
        pin_name_and_control(mem, &mut pins, header, dir);
        let addr = address(header);
        mem.raw(nr as u64, &[self.fd, addr, self.flags, 0, 0, 0])
    }
}
