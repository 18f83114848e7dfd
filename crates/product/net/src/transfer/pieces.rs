//! Transfers in pieces, and on scratch memory, for descriptors that are read and written.

use super::super::buffers::careful::careful_copy;
use super::super::buffers::scratch::Scratch;
use super::super::buffers::{Access, IoVec, Memory, PAGE, PinSet, Pins, address, clip, errno, pin_local, read_user};
use super::kind::{self, Kind};
use super::{FAULT, Flow, IOV_MAX, SCRATCH_READ_MAX, SMALL, TRANSFER_MAX, access, messages};

/// Buffers of one piece.
const PIECE_IOVS: usize = 64;

/// The buffers of a piece.
#[repr(C)]
pub(super) struct Piece {
    pub(super) iovs: [IoVec; PIECE_IOVS],
    pub(super) count: u64,
    pub(super) bytes: u64,
}

impl Piece {
    pub(super) const EMPTY: Piece = Piece { iovs: [IoVec { addr: 0, len: 0 }; PIECE_IOVS], count: 0, bytes: 0 };

    fn push(&mut self, iov: IoVec) {
        self.iovs[self.count as usize] = iov;
        self.count += 1;
        self.bytes += iov.len;
    }
    /// Cuts bytes off the end until `bytes` are left.
    fn cut_to(&mut self, bytes: u64) {
        while self.bytes > bytes {
            let last = &mut self.iovs[self.count as usize - 1];
            let cut = last.len.min(self.bytes - bytes);
            last.len -= cut;
            self.bytes -= cut;
            if last.len == 0 {
                self.count -= 1;
            }
        }
    }
}

/// Where a transfer stands in the program's buffers.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Cursor {
    /// The buffers: the array's address, or `None` for `single`.
    array: Option<u64>,
    single: IoVec,
    count: u64,
    /// The next byte: buffer and offset in it.
    index: u64,
    offset: u64,
    /// Bytes that may still be transferred.
    left: u64,
}

impl Cursor {
    /// One buffer.
    pub(super) fn one(single: IoVec) -> Cursor {
        Cursor { array: None, single, count: 1, index: 0, offset: 0, left: TRANSFER_MAX }
    }
    /// An array of buffers.
    pub(in super::super) fn array(addr: u64, count: u64) -> Cursor {
        let single = IoVec { addr: 0, len: 0 };
        Cursor { array: Some(addr), single, count, index: 0, offset: 0, left: TRANSFER_MAX }
    }
    /// What is left of the buffer at the cursor, which may be nothing; `None` if the array cannot be read.
    fn buffer(&self, mem: &impl Memory, pins: &mut PinSet) -> Option<IoVec> {
        let whole = match self.array {
            None => self.single,
            Some(addr) => read_user::<IoVec>(mem, pins, addr.wrapping_add(self.index * 16))?,
        };
        let len = whole.len.saturating_sub(self.offset).min(self.left);
        Some(IoVec { addr: whole.addr.wrapping_add(self.offset), len })
    }
    /// The next buffer that is not empty, and moves past those that are; `Err` if the array cannot be read.
    pub(in super::super) fn next(&mut self, mem: &impl Memory, pins: &mut PinSet) -> Result<Option<IoVec>, ()> {
        while self.index < self.count && self.left > 0 {
            let here = self.buffer(mem, pins).ok_or(())?;
            if here.len > 0 {
                return Ok(Some(here));
            }
            self.index += 1;
            self.offset = 0;
        }
        Ok(None)
    }
    /// Moves on by `bytes`, which lie in the buffer at the cursor.
    pub(in super::super) fn pass(&mut self, bytes: u64) {
        self.offset += bytes;
        self.left -= bytes;
    }
    /// Bytes in all the buffers from here on, as far as one call transfers; the errno (negative) with which the kernel refuses the array.
    pub(in super::super) fn total(&self, mem: &impl Memory) -> Result<u64, i64> {
        if self.array.is_some() && self.count > IOV_MAX {
            return Err(errno(libc::EINVAL));
        }
        let (mut at, mut total) = (*self, 0u64);
        at.left = u64::MAX;
        while at.index < at.count {
            let here = at.buffer(mem, &mut Pins::new(mem, &mut PinSet::new()));
            let len = here.ok_or(FAULT)?.len;
            if len > i64::MAX as u64 {
                return Err(errno(libc::EINVAL));
            }
            total = total.saturating_add(len);
            at.index += 1;
            at.offset = 0;
        }
        Ok(total.min(self.left))
    }
    /// Pins as many of the next bytes as there is room for and lists them in `piece`; the cursor after them.
    pub(super) fn fill(&self, mem: &impl Memory, pins: &mut PinSet, access: Access, piece: &mut Piece) -> Cursor {
        let mut at = *self;
        (piece.count, piece.bytes) = (0, 0);
        while (piece.count as usize) < PIECE_IOVS {
            let Ok(Some(here)) = at.next(mem, pins) else { break };
            let want = clip(here.addr, here.len);
            let safe = if want == 0 { 0 } else { mem.pin(pins, here.addr, want, access).min(want) };
            if safe > 0 {
                piece.push(IoVec { addr: here.addr, len: safe });
                at.pass(safe);
            }
            if safe < here.len {
                break;
            }
        }
        at
    }
    /// Whether the program itself may access the next bytes: all, but for those beyond [`SMALL`]. Asked before a
    /// call on scratch memory, which would otherwise take bytes out of a pipe that it cannot deliver. (Memory that is not
    /// managed can only be read to find out.)
    pub(super) fn accessible(&self, mem: &impl Memory, access: Access) -> bool {
        let (mut at, mut left) = (*self, SMALL);
        while left > 0 {
            let next = at.next(mem, &mut Pins::new(mem, &mut PinSet::new()));
            let Ok(Some(here)) = next else { return next.is_ok() };
            let want = clip(here.addr, here.len.min(left));
            let mut set = PinSet::new();
            let mut pins = Pins::new(mem, &mut set);
            // With an empty set there is room: nothing is safe only if the page cannot be had.
            let safe = if want == 0 { 0 } else { mem.pin(&mut pins, here.addr, want, access).min(want) };
            let readable = is_readable(here.addr, safe);
            if safe == 0 || !readable {
                return false;
            }
            at.pass(safe);
            left -= safe;
        }
        true
    }
    /// Copies the next bytes to or from `scratch`, as many as it holds or `bytes`; whether all could be accessed.
    pub(in super::super) fn copy<M: Memory>(self, mem: &M, scratch: &Scratch<'_, M>, bytes: u64, flow: Flow) -> bool {
        self.copy_some(mem, scratch, bytes, flow) == bytes
    }
    /// The same; how many bytes could be accessed.
    fn copy_some<M: Memory>(mut self, mem: &M, scratch: &Scratch<'_, M>, bytes: u64, flow: Flow) -> u64 {
        let mut done = 0;
        while done < bytes {
            let next = self.next(mem, &mut Pins::new(mem, &mut PinSet::new()));
            let Ok(Some(here)) = next else { break };
            let len = here.len.min(bytes - done);
            let copied = match flow {
                Flow::Write => scratch.copy_in_some(done, here.addr, len),
                Flow::Read => scratch.copy_out_some(done, here.addr, len),
            };
            self.pass(copied);
            done += copied;
            if copied < len {
                break;
            }
        }
        done
    }
}

/// A call of the `read` or `write` family.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileCall {
    pub(super) flow: Flow,
    pub(super) fd: u64,
    /// `None`: the file's own position.
    pub(super) position: Option<u64>,
    /// `RWF_…`.
    pub(super) flags: u32,
}

impl FileCall {
    /// Transfers `count` buffers at `iovs`, `done` bytes after the start.
    fn make(&self, mem: &impl Memory, iovs: u64, count: u64, done: u64, flags: u32) -> i64 {
        let (nr, args) = self.request(iovs, count, done, flags);
        mem.raw(nr, &args)
    }

    /// The same, whatever signal waits for the program.
    fn go_on(&self, mem: &impl Memory, iovs: u64, count: u64, done: u64) -> i64 {
        let (nr, args) = self.request(iovs, count, done, self.flags);
        mem.own(nr, &args)
    }

    fn request(&self, iovs: u64, count: u64, done: u64, flags: u32) -> (u64, [u64; 6]) {
        let nr = match self.flow {
            Flow::Read => libc::SYS_preadv2,
            Flow::Write => libc::SYS_pwritev2,
        };
        let position = self.position.map_or(u64::MAX, |start| start + done);
        (nr as u64, [self.fd, iovs, count, position, 0, u64::from(flags)])
    }
}

/// Makes a call whose buffers cannot be pinned at once; `None`: make it as it is, the kernel will refuse it.
pub(super) fn file(mem: &impl Memory, call: FileCall, cursor: Cursor) -> Option<i64> {
    let total = cursor.total(mem).ok()?;
    let kind = kind::of(mem, call.fd);
    let next = match (kind, call.flow) {
        (Kind::Refused, _) => return None,
        (Kind::Stream { .. } | Kind::Packets, _) if call.position.is_none() && call.flags == 0 => {
            return Some(messages::as_socket(mem, call, kind, cursor, total));
        }
        (Kind::Pipe, Flow::Read) => Next::WithoutBlocking,
        (Kind::Steady, _) => Next::Uninterrupted,
        (Kind::Pipe, _) | (Kind::Terminal, Flow::Write) => Next::Same,
        (Kind::Terminal | Kind::Stream { .. } | Kind::Packets | Kind::Whole, _) => Next::Never,
    };
    // Natively such a call ends at the byte that cannot be accessed.
    if !cursor.accessible(mem, access(call.flow)) {
        return in_pieces(mem, call, cursor, total, next);
    }
    let whole = matches!(kind, Kind::Stream { .. } | Kind::Packets | Kind::Whole);
    if whole || total <= SMALL || call.flags & libc::RWF_ATOMIC as u32 != 0 {
        return Some(on_scratch(mem, call, cursor, total));
    }
    in_pieces(mem, call, cursor, total, next)
}

/// Whether the bytes can be read. What is managed among them is pinned.
fn is_readable(addr: u64, len: u64) -> bool {
    let pages = (addr..addr + len).step_by(PAGE as usize).chain(len.checked_sub(1).map(|last| addr + last));
    pages.into_iter().all(|at| {
        let mut byte = 0u8;
        // SAFETY: `byte` has room for one.
        unsafe { careful_copy(&raw mut byte, at, 1) }
    })
}

/// How the pieces after the first are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Same,
    /// Natively no signal ends a transfer of a file in the middle.
    Uninterrupted,
    WithoutBlocking,
    Never,
}

fn in_pieces(mem: &impl Memory, call: FileCall, start: Cursor, total: u64, next: Next) -> Option<i64> {
    let (mut cursor, mut done) = (start, 0u64);
    let mut piece = Piece::EMPTY;
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    loop {
        pin_local(mem, &mut pins, &mut piece);
        let mut after = cursor.fill(mem, &mut pins, access(call.flow), &mut piece);
        if piece.bytes < total - done && piece.bytes > PAGE {
            // Direct I/O wants whole sectors, and a pipe is filled by whole pages.
            piece.cut_to(piece.bytes - piece.bytes % PAGE);
            after = advanced(mem, &mut pins, cursor, piece.bytes).unwrap_or(after);
        }
        if piece.bytes == 0 {
            // The program may not access the next byte: natively the call ends before it.
            return (done > 0).then_some(done as i64);
        }
        let iovs = address(&mut piece);
        let result = match next {
            Next::WithoutBlocking if done > 0 => without_blocking(mem, &call, iovs, piece.count),
            Next::Uninterrupted if done > 0 => call.go_on(mem, iovs, piece.count, done),
            _ => call.make(mem, iovs, piece.count, done, call.flags),
        };
        pins.release();
        if result < 0 {
            return Some(if done > 0 { done as i64 } else { result });
        }
        done += result as u64;
        if (result as u64) < piece.bytes || done >= total || next == Next::Never {
            return Some(done as i64);
        }
        cursor = after;
    }
}

/// `cursor`, `bytes` further on.
fn advanced(mem: &impl Memory, pins: &mut PinSet, cursor: Cursor, bytes: u64) -> Option<Cursor> {
    let (mut at, mut left) = (cursor, bytes);
    while left > 0 {
        let here = at.next(mem, pins).ok()??;
        let step = here.len.min(left);
        at.pass(step);
        left -= step;
    }
    Some(at)
}

/// Reads what is there from a pipe.
fn without_blocking(mem: &impl Memory, call: &FileCall, iovs: u64, count: u64) -> i64 {
    let result = call.make(mem, iovs, count, 0, call.flags | libc::RWF_NOWAIT as u32);
    if result != errno(libc::EOPNOTSUPP) {
        return result;
    }
    // A FIFO does not know `RWF_NOWAIT`. If another reader is faster between the two calls, the second one waits
    // for more, as the first piece did.
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    // struct pollfd: descriptor, then the events asked for and the answer.
    let mut poll = [call.fd as u32, libc::POLLIN as u32];
    let addr = pin_local(mem, &mut pins, &mut poll);
    let ready = mem.own(libc::SYS_poll as u64, &[addr, 1, 0, 0, 0, 0]);
    pins.release();
    let readable = poll[1] >> 16 & libc::POLLIN as u32 != 0;
    if ready > 0 && readable { call.make(mem, iovs, count, 0, call.flags) } else { errno(libc::EAGAIN) }
}

/// Makes the whole call on scratch memory.
fn on_scratch(mem: &impl Memory, call: FileCall, cursor: Cursor, total: u64) -> i64 {
    let len = if call.flow == Flow::Read { total.min(SCRATCH_READ_MAX) } else { total };
    let scratch = match Scratch::new(mem, len) {
        Ok(scratch) => scratch,
        Err(error) => return error,
    };
    if call.flow == Flow::Write && !cursor.copy(mem, &scratch, len, Flow::Write) {
        return FAULT;
    }
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let mut iov = IoVec { addr: scratch.addr(), len };
    let iovs = pin_local(mem, &mut pins, &mut iov);
    let result = call.make(mem, iovs, 1, 0, call.flags);
    pins.release();
    if call.flow == Flow::Read && result > 0 {
        // Memory that can be read and not written: natively the call ends before it.
        return match cursor.copy_some(mem, &scratch, (result as u64).min(len), Flow::Read) {
            0 => FAULT,
            copied => copied as i64,
        };
    }
    result
}
