//! Farshore's own descriptors are not there for the program.
//!
//! A program that closes all descriptors it did not open, or puts one of its own at a number that it believes
//! to be free, must not close the userfaultfd; one that looks which numbers are open, finds what it opened itself. Where the table
//! says that an argument is a descriptor, one of ours answers `EBADF`. So does `dup2` onto one of ours, as for a number beyond the limit:
//! natively the number was free, but what we give up otherwise is the program's memory. (`poll` and `select` still see them,
//! and `/proc/self/fd` lists them.)

use super::super::buffers::{Args, Memory, run};
use super::super::table::{Dir, Entry, Extent, Ptr};

/// Whether a descriptor among the arguments is one of Farshore's own.
#[inline]
pub(super) fn names_own(mem: &impl Memory, entry: &Entry, args: &Args) -> bool {
    if entry.descriptors | entry.empty_path == 0 {
        return false;
    }
    let own = mem.own_fds();
    let Some(&lowest) = own.first() else { return false };
    // The kernel looks at the low 32 bits. Most programs' descriptors are far below ours.
    let is_own = |fd: u64| fd as i32 >= lowest && own.binary_search(&(fd as i32)).is_ok();
    let empty_path = || entry.empty_path != 0 && args[usize::from(entry.empty_path)] & libc::AT_EMPTY_PATH as u64 != 0;
    (0..3).any(|arg| entry.descriptors & 1 << arg != 0 && is_own(args[arg])) || (is_own(args[0]) && empty_path())
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
