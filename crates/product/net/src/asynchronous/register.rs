//! `io_uring_register`: what each operation touches.

use super::super::buffers::{Access, Args, IoVec, Memory, errno, read_once, write_once};
use super::holds::{self, Span};
use super::{request, ring};

// Operations.
const BUFFERS: u32 = 0;
const FILES: u32 = 2;
const EVENT: u32 = 4;
const FILES_UPDATE: u32 = 6;
const EVENT_ASYNC: u32 = 7;
const PROBE: u32 = 8;
const RESTRICTIONS: u32 = 11;
const FILES2: u32 = 13;
const FILES_UPDATE2: u32 = 14;
const BUFFERS2: u32 = 15;
const BUFFERS_UPDATE: u32 = 16;
const PROCESSORS: u32 = 17;
const WORKERS: u32 = 19;
const CANCEL: u32 = 24;
const FILE_RANGE: u32 = 25;

/// Most descriptors, or buffers, that the kernel takes.
const MOST: u64 = 1 << 20;
/// `io_uring_probe`: a head of 16 bytes, and 8 for each operation.
const PROBE_HEAD: u64 = 16;
const SUPPORTED: u16 = 1;

/// Makes the call; `known`: for a ring of this process.
pub(super) fn call(mem: &impl Memory, args: &Args, known: bool) -> i64 {
    let [fd, operation, arg, count, ..] = *args;
    let (operation, count) = (operation as u32, u64::from(count as u32));
    if !known {
        // A ring by its own index (the highest bit), and one that another process has made: as of a descriptor that is no ring.
        return match mem.raw(427, &[fd, u64::from(PROBE), 0, 0, 0, 0]) {
            error if error == errno(libc::EBADF) => error,
            _ => errno(libc::EOPNOTSUPP),
        };
    }
    match operation {
        BUFFERS => buffers(mem, args, arg, count, 0),
        FILES => files(mem, args, arg, count, 0),
        // A descriptor.
        EVENT | EVENT_ASYNC => files(mem, args, arg, count, 0),
        // struct io_uring_files_update: an offset, and a pointer to descriptors.
        FILES_UPDATE => match read_once::<[u64; 2]>(mem, arg) {
            Some([_, descriptors]) => files(mem, args, descriptors, count, 16),
            None => ring::registered(mem, args, 16),
        },
        PROBE => probe(mem, args, arg, count),
        RESTRICTIONS => ring::registered(mem, args, count.min(MOST) * 16),
        // struct io_uring_rsrc_register: number and flags, a reserved word, data, tags. Tags make completions of their own.
        FILES2 | BUFFERS2 => {
            let Some([head, _, data, tags]) = read_once::<[u64; 4]>(mem, arg) else { return ring::registered(mem, args, 32) };
            resources(mem, args, operation == FILES2, data, u64::from(head as u32), tags, 32)
        }
        // struct io_uring_rsrc_update2: an offset, data, tags, number.
        FILES_UPDATE2 | BUFFERS_UPDATE => {
            let Some([_, data, tags, head]) = read_once::<[u64; 4]>(mem, arg) else { return ring::registered(mem, args, 32) };
            resources(mem, args, operation == FILES_UPDATE2, data, u64::from(head as u32), tags, 32)
        }
        // As many bytes of a mask as the count says.
        PROCESSORS => ring::registered(mem, args, count.min(8192)),
        WORKERS => ring::registered(mem, args, 8),
        CANCEL => ring::registered(mem, args, 64),
        FILE_RANGE => ring::registered(mem, args, 16),
        // What has no pointer: the end of each registration, personalities, a ring that begins.
        1 | 3 | 5 | 9 | 10 | 12 | 18 => mem.raw(427, args),
        // The registration of rings (20, 21), queues of buffers (22, 23, 26), and what came after Linux 6.8.
        _ => errno(libc::EINVAL),
    }
}

/// An operation with `count` descriptors at `descriptors`, and a structure of `bytes`.
fn files(mem: &impl Memory, args: &Args, descriptors: u64, count: u64, bytes: u64) -> i64 {
    if request::names_own(mem, descriptors, count) {
        return errno(libc::EBADF);
    }
    with_pages(mem, args, bytes, &[Span { addr: descriptors, len: count.min(MOST) * 4, access: Access::Write }])
}

/// Makes the call with all of these spans pinned, as requests pin theirs.
fn with_pages(mem: &impl Memory, args: &Args, bytes: u64, spans: &[Span]) -> i64 {
    super::quietly(|| {
        let spans: Vec<Span> = spans.iter().copied().filter(|span| span.addr != 0 && span.len > 0).collect();
        match holds::admit(mem, &spans) {
            Ok(pages) => {
                let answer = if bytes == 0 { mem.own(427, args) } else { ring::registered(mem, args, bytes) };
                super::TABLE.with(|table| table.holds.release(mem, &pages));
                answer
            }
            Err(_) => errno(libc::ENOMEM),
        }
    })
}

/// Buffers stay registered: their memory is handed over.
fn buffers(mem: &impl Memory, args: &Args, array: u64, count: u64, bytes: u64) -> i64 {
    let count = count.min(MOST);
    let at = |n: u64| read_once::<IoVec>(mem, array.wrapping_add(n * 16));
    let spans: Vec<Span> = if array == 0 {
        Vec::new()
    } else {
        (0..count)
            .map_while(at)
            .filter(|iov| iov.addr != 0)
            .map(|iov| Span { addr: iov.addr, len: iov.len, access: Access::Write })
            .collect()
    };
    let spans: Vec<Span> = spans.into_iter().filter(|span| span.len <= 1 << 30).collect();
    if !super::quietly(|| holds::keep(mem, &spans)) {
        // As beyond what the program may lock.
        return errno(libc::ENOMEM);
    }
    with_pages(mem, args, bytes, &[Span { addr: array, len: count * 16, access: Access::Read }])
}

fn resources(mem: &impl Memory, args: &Args, are_files: bool, data: u64, count: u64, tags: u64, bytes: u64) -> i64 {
    if tags != 0 {
        let _ = ring::stop_counting(mem, args[0]);
        // Words that the kernel reads in the call, beside the data.
        if !super::quietly(|| holds::keep(mem, &[Span { addr: tags, len: count.min(MOST) * 8, access: Access::Read }])) {
            return errno(libc::ENOMEM);
        }
    }
    if are_files { files(mem, args, data, count, bytes) } else { buffers(mem, args, data, count, bytes) }
}

/// Says of the operations that are refused that the kernel does not know them.
fn probe(mem: &impl Memory, args: &Args, at: u64, count: u64) -> i64 {
    let count = count.min(256);
    let answer = ring::registered(mem, args, PROBE_HEAD + count * 8);
    if answer < 0 {
        return answer;
    }
    let Some([head, reserved]) = read_once::<[u64; 2]>(mem, at) else { return answer };
    let last = (head as u8).min(request::LAST);
    let told = ((head >> 8) as u8).min(request::LAST + 1);
    write_once(mem, at, &[head & !0xffff | u64::from(last) | u64::from(told) << 8, reserved]);
    for n in 0..count {
        let place = at + PROBE_HEAD + n * 8;
        if request::is_refused(n as u8)
            && let Some(word) = read_once::<u64>(mem, place)
        {
            // struct io_uring_probe_op: the operation, a reserved byte, flags.
            let known = if n as u8 > request::LAST { 0 } else { word & !(u64::from(SUPPORTED) << 16) };
            write_once(mem, place, &known);
        }
    }
    answer
}
