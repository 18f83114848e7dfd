//! Farshore's own descriptors are not there for the program.
//!
//! A program that closes all descriptors it did not open, or puts one of its own at a number that it believes
//! to be free, must not close the userfaultfd. `dup2` onto one of ours answers `EBADF`, as for a number beyond the limit:
//! natively the number was free, but what we give up otherwise is the program's memory.

use super::super::buffers::{Args, Memory, errno, run};
use super::super::table::{Dir, Extent, Ptr};

const BAD: i64 = errno(libc::EBADF);

fn is_own(mem: &impl Memory, fd: u64) -> bool {
    // The kernel looks at the low 32 bits.
    mem.is_own_fd(u64::from(fd as u32))
}

/// `close`, `dup`.
pub(super) fn one(mem: &impl Memory, nr: u64, args: &Args) -> i64 {
    if is_own(mem, args[0]) { BAD } else { mem.raw(nr, args) }
}

/// `dup2`, `dup3`.
pub(super) fn dup_to(mem: &impl Memory, nr: u64, args: &Args) -> i64 {
    if is_own(mem, args[0]) || is_own(mem, args[1]) { BAD } else { mem.raw(nr, args) }
}

/// `close_range`: the ranges between our own descriptors.
pub(super) fn close_range(mem: &impl Memory, nr: u64, args: &Args) -> i64 {
    let (first, last, mut flags) = (args[0] as u32, args[1] as u32, args[2]);
    let inside = |fd: &&i32| (first..=last).contains(&(**fd as u32));
    if !mem.own_fds().iter().any(|fd| inside(&fd)) {
        return mem.raw(nr, args);
    }
    let known = u64::from(libc::CLOSE_RANGE_UNSHARE | libc::CLOSE_RANGE_CLOEXEC);
    if u64::from(flags as u32) & !known != 0 {
        return mem.raw(nr, args);
    }
    if flags & u64::from(libc::CLOSE_RANGE_UNSHARE) != 0 {
        // Once, before the parts. (The kernel would also spare itself to copy what is closed.)
        let result = mem.raw(libc::SYS_unshare as u64, &[libc::CLONE_FILES as u64, 0, 0, 0, 0, 0]);
        if result < 0 {
            return result;
        }
        flags &= !u64::from(libc::CLOSE_RANGE_UNSHARE);
    }
    let mut next = Some(first);
    for &own in mem.own_fds().iter().filter(inside) {
        let own = own as u32;
        if let Some(from) = next.filter(|from| *from < own) {
            let result = mem.raw(nr, &[u64::from(from), u64::from(own - 1), flags, 0, 0, 0]);
            if result < 0 {
                return result;
            }
        }
        next = own.checked_add(1);
    }
    match next {
        Some(from) if from <= last => mem.raw(nr, &[u64::from(from), u64::from(last), flags, 0, 0, 0]),
        _ => 0,
    }
}

/// `fcntl`: by command.
pub(super) fn fcntl(mem: &impl Memory, nr: u64, args: &Args) -> i64 {
    if is_own(mem, args[0]) {
        return BAD;
    }
    let bytes = match args[1] as i32 {
        // struct flock
        libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => 32,
        // struct f_owner_ex; F_GETOWNER_UIDS
        15..=17 => 8,
        // File write hints; struct delegation.
        1035..=1038 => 8,
        1039 | 1040 => 16,
        _ => return mem.raw(nr, args),
    };
    run(mem, nr, args, &[Ptr { arg: 2, dir: Dir::Both, extent: Extent::Bytes(bytes) }])
}
