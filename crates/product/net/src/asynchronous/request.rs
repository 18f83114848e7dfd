//! What a request of io_uring touches: an entry of the queue of submissions (`struct io_uring_sqe`).

use super::super::buffers::{Access, IoVec, Memory, PinSet, Pins, clip, read_once, text_len};
use super::super::calls::descriptors::gives_own;
use super::holds::Span;

/// An entry, as words.
pub(super) type Words = [u64; 8];

/// What is to be done with an entry.
#[derive(Debug, Default)]
pub(super) struct Request {
    /// Its name.
    pub(super) user_data: u64,
    /// What the kernel will touch until it completes.
    pub(super) spans: Vec<Span>,
    /// What the kernel will touch at any time from then on.
    pub(super) kept: Vec<Span>,
    /// It is refused: its code is replaced by one that no kernel knows.
    pub(super) refused: bool,
    /// It names a descriptor of Farshore's own, and sees one that is not open.
    pub(super) own_descriptor: bool,
    /// It may have any number of completions.
    pub(super) unbounded: bool,
    /// It makes a completion in another ring, whose number is where the descriptor is.
    pub(super) to_ring: bool,
    /// It may have two completions.
    pub(super) twice: bool,
    /// The next entry belongs to the same chain.
    pub(super) linked: bool,
}

// Flags of an entry.
const FIXED_FILE: u8 = 1;
const LINK: u8 = 1 << 2;
const HARD_LINK: u8 = 1 << 3;
const BUFFER_SELECT: u8 = 1 << 5;
const SKIP_SUCCESS: u8 = 1 << 6;

const POLL_MULTI: u32 = 1;
const TIMEOUT_MULTI: u32 = 1 << 6;
const TIMEOUT_UPDATE: u32 = 1 << 1;
const ACCEPT_MULTI: u16 = 1;
const RECEIVE_MULTI: u16 = 1 << 1;
const BUNDLE: u16 = 1 << 4;

/// Bytes of `struct timespec`.
const TIME: u64 = 16;
/// Longest address of a socket that the kernel touches.
const ADDRESS: u64 = 128;
const PATH: u64 = 4096;
const NAME: u64 = 256;
const XATTR: u64 = 64 << 10;
const IOVECS: u64 = 1024;
const HEADER: u64 = 56;
const CONTROL: u64 = 256 << 10;

/// Operations whose word for a descriptor is none, or another number: NOP, POLL_REMOVE, TIMEOUT, TIMEOUT_REMOVE, ASYNC_CANCEL, LINK_TIMEOUT, FILES_UPDATE, PROVIDE_BUFFERS, REMOVE_BUFFERS, SOCKET, WAITID,
/// FUTEX_WAIT, FUTEX_WAKE, PIPE.
const NUMBERS: [u8; 14] = [0, 7, 11, 12, 14, 15, 20, 31, 32, 45, 50, 51, 52, 62];

/// The highest operation that is known, and those below that are refused.
pub(super) const LAST: u8 = 62;

/// Whether the operation is refused, whatever its arguments are.
///
/// MADVISE (25) changes memory; URING_CMD (46) may be about anything; FUTEX_WAITV (53) names words; RECV_ZC (58) keeps memory.
pub(super) const fn is_refused(code: u8) -> bool {
    code > LAST || matches!(code, 25 | 46 | 53 | 58)
}

/// Whether the operation may do less than it is asked for: READ, WRITE, SEND, RECV.
pub(super) const fn may_be_cut(code: u8) -> bool {
    matches!(code, 22 | 23 | 26 | 27)
}

/// Fields of an entry.
struct Entry {
    code: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    off: u64,
    addr: u64,
    len: u32,
    op_flags: u32,
    user_data: u64,
    file: i32,
    addr3: u64,
    pad: u64,
}

impl Entry {
    fn of(words: &Words) -> Entry {
        Entry {
            code: words[0] as u8,
            flags: (words[0] >> 8) as u8,
            ioprio: (words[0] >> 16) as u16,
            fd: (words[0] >> 32) as i32,
            off: words[1],
            addr: words[2],
            len: words[3] as u32,
            op_flags: (words[3] >> 32) as u32,
            user_data: words[4],
            file: (words[5] >> 32) as i32,
            addr3: words[6],
            pad: words[7],
        }
    }

    /// The length of an address, in the low half of the word for a file.
    fn addr_len(&self) -> u64 {
        u64::from(self.file as u16)
    }
}

/// Collects what a request touches.
struct Spans<'m, M: Memory> {
    mem: &'m M,
    all: Vec<Span>,
}

impl<M: Memory> Spans<'_, M> {
    fn add(&mut self, addr: u64, len: u64, access: Access) {
        let len = clip(addr, len);
        if len > 0 {
            self.all.push(Span { addr, len, access });
        }
    }
    fn reads(&mut self, addr: u64, len: u64) {
        self.add(addr, len, Access::Read);
    }
    fn writes(&mut self, addr: u64, len: u64) {
        self.add(addr, len, Access::Write);
    }
    fn text(&mut self, addr: u64, most: u64) {
        let (mem, mut set) = (self.mem, PinSet::new());
        let mut pins = Pins::new(mem, &mut set);
        let len = if addr == 0 { None } else { text_len(mem, &mut pins, addr, most) };
        pins.release();
        self.reads(addr, len.unwrap_or(0));
    }
    fn vectors(&mut self, array: u64, count: u64, access: Access) {
        let count = if count > IOVECS { 0 } else { count };
        self.reads(array, count * 16);
        for index in 0..count {
            let Some(iov) = read_once::<IoVec>(self.mem, array.wrapping_add(index * 16)) else { break };
            self.add(iov.addr, iov.len, access);
        }
    }
    /// `struct msghdr`: name and its length, iovecs and their number, control data and their length.
    fn message(&mut self, header: u64, access: Access) {
        self.add(header, HEADER, access);
        let Some([name, name_len, iovs, count, control, control_len]) = read_once::<[u64; 6]>(self.mem, header) else { return };
        self.add(name, u64::from(name_len as u32).min(ADDRESS), access);
        self.add(control, control_len.min(CONTROL), access);
        self.vectors(iovs, count, access);
    }
    /// An address of a socket that the kernel tells, as long as the integer at `len_at` says.
    fn told(&mut self, addr: u64, len_at: u64) {
        if addr != 0 {
            self.writes(addr, ADDRESS);
            self.writes(len_at, 4);
        }
    }
}

/// The spans of an array of `count` iovecs.
pub(super) fn vectors(mem: &impl Memory, array: u64, count: u64, access: Access) -> Vec<Span> {
    let mut spans = Spans { mem, all: Vec::new() };
    spans.vectors(array, count, access);
    spans.all
}

/// Looks at an entry. `room`: an empty list, for the spans.
pub(super) fn look(mem: &impl Memory, words: &Words, room: Vec<Span>) -> Request {
    let entry = Entry::of(words);
    let linked = entry.flags & (LINK | HARD_LINK) != 0;
    let mut request = Request { user_data: entry.user_data, linked, ..Request::default() };
    if is_refused(entry.code) {
        request.refused = true;
        request.spans = room;
        return request;
    }
    let own = |fd: i32| mem.own_fds().binary_search(&fd).is_ok();
    request.own_descriptor = own(entry.fd) && entry.flags & FIXED_FILE == 0 && !NUMBERS.contains(&entry.code);
    let mut spans = Spans { mem, all: room };
    let (addr, len, off) = (entry.addr, u64::from(entry.len), entry.off);
    // It takes one of the buffers that were provided, which were handed over then.
    let takes = entry.flags & BUFFER_SELECT != 0;
    match entry.code {
        // READV, WRITEV; with attributes behind a pointer they are refused.
        1 | 2 | 4 | 5 | 22 | 23 if entry.pad != 0 => request.refused = true,
        1 => spans.vectors(addr, len, Access::Write),
        2 => spans.vectors(addr, len, Access::Read),
        // POLL_ADD, POLL_REMOVE
        6 | 7 => request.unbounded = entry.len & POLL_MULTI != 0,
        // SENDMSG
        9 => {
            spans.message(addr, Access::Read);
            request.refused = gives_own(mem, addr);
        }
        // RECVMSG
        10 => {
            spans.message(addr, Access::Write);
            request.unbounded = entry.ioprio & RECEIVE_MULTI != 0;
            request.refused = entry.ioprio & BUNDLE != 0;
        }
        // TIMEOUT, LINK_TIMEOUT
        11 | 15 => {
            spans.reads(addr, TIME);
            request.unbounded = entry.op_flags & TIMEOUT_MULTI != 0;
        }
        // TIMEOUT_REMOVE
        12 if entry.op_flags & TIMEOUT_UPDATE != 0 => spans.reads(off, TIME),
        // ACCEPT
        13 => {
            spans.told(addr, off);
            request.unbounded = entry.ioprio & ACCEPT_MULTI != 0;
        }
        // CONNECT, BIND
        16 | 56 => spans.reads(addr, off.min(ADDRESS)),
        // OPENAT, UNLINKAT, MKDIRAT
        18 | 36 | 37 => spans.text(addr, PATH),
        // FILES_UPDATE
        20 => {
            let bytes = len.min(1 << 20) * 4;
            spans.writes(addr, bytes);
            request.refused = names_own(mem, addr, len);
        }
        // STATX: path and result
        21 => {
            spans.text(addr, PATH);
            spans.writes(off, 256);
        }
        // READ, READ_MULTISHOT, RECV
        22 | 27 | 49 => {
            if !takes {
                spans.writes(addr, len);
            }
            request.unbounded = entry.code == 49 || (entry.code == 27 && entry.ioprio & RECEIVE_MULTI != 0);
            request.refused = entry.code == 27 && entry.ioprio & BUNDLE != 0;
        }
        // WRITE
        23 => spans.reads(addr, len),
        // SEND, SEND_ZC
        26 | 47 => {
            spans.reads(addr, len);
            spans.reads(off, entry.addr_len().min(ADDRESS));
            request.twice = entry.code == 47;
            request.refused = entry.ioprio & BUNDLE != 0;
        }
        // OPENAT2
        28 => {
            spans.text(addr, PATH);
            spans.reads(off, len.min(PATH));
        }
        // EPOLL_CTL: the other descriptor is in the offset.
        29 => {
            spans.reads(addr, 12);
            request.refused = own(off as i32);
        }
        // SPLICE, TEE: the other descriptor is in the word for a file; a flag says that it is an index.
        30 | 33 => request.refused = own(entry.file) && entry.op_flags >> 31 == 0,
        // PROVIDE_BUFFERS: as many as the word for a descriptor says.
        31 => {
            spans.writes(addr, len * u64::from(entry.fd.unsigned_abs()));
            request.kept = core::mem::take(&mut spans.all);
        }
        // RENAMEAT, LINKAT, and SYMLINKAT, whose directory is the other one
        35 | 39 => {
            spans.text(addr, PATH);
            spans.text(off, PATH);
            request.refused = own(entry.len as i32);
        }
        38 => {
            spans.text(addr, PATH);
            spans.text(off, PATH);
        }
        // MSG_RING
        40 if entry.flags & FIXED_FILE != 0 => request.refused = true,
        40 => request.to_ring = true,
        // FSETXATTR, SETXATTR, FGETXATTR, GETXATTR
        41..=44 => {
            spans.text(addr, NAME);
            spans.add(off, len.min(XATTR), if entry.code < 43 { Access::Read } else { Access::Write });
            if matches!(entry.code, 42 | 44) {
                spans.text(entry.addr3, PATH);
            }
        }
        // SENDMSG_ZC
        48 => {
            spans.message(addr, Access::Read);
            request.twice = true;
            request.refused = gives_own(mem, addr);
        }
        // WAITID
        50 => spans.writes(off, 128),
        // FUTEX_WAIT, FUTEX_WAKE
        51 | 52 => spans.writes(addr, 4),
        // EPOLL_WAIT
        59 => spans.writes(addr, len * 12),
        // READV_FIXED, WRITEV_FIXED: the buffers are registered.
        60 | 61 => spans.reads(addr, len.min(IOVECS) * 16),
        // PIPE
        62 => spans.writes(addr, 8),
        _ => {}
    }
    // It may have none at all.
    request.unbounded |= entry.flags & SKIP_SUCCESS != 0;
    request.spans = spans.all;
    request
}

/// Whether one of `count` descriptors at `addr` is Farshore's own.
pub(super) fn names_own(mem: &impl Memory, addr: u64, count: u64) -> bool {
    let own = mem.own_fds();
    !own.is_empty()
        && addr != 0
        && (0..count.min(1 << 20))
            .map_while(|n| read_once::<u32>(mem, addr.wrapping_add(n * 4)))
            .any(|fd| own.binary_search(&(fd as i32)).is_ok())
}
