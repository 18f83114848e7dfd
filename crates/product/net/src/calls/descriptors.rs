//! Farshore's own descriptors are not there for the program.
//!
//! A program that closes all descriptors it did not open, or puts one of its own at a number that it believes
//! to be free, must not close the userfaultfd; one that looks which numbers are open, finds what it opened itself. So the table
//! says of each argument whether it is a descriptor ([`hide`]):
//!
//! - always: one of ours answers `EBADF`. So does `dup2` onto one of ours, as for a number beyond the limit:
//!   natively the number was free, but what we give up otherwise is the program's memory;
//! - perhaps (the directory of a path that may be absolute, the file of a mapping that may have none): the kernel is shown a descriptor
//!   that is never open in its place, and answers `EBADF` if it looks there.
//!
//! What leads a descriptor away without being such an argument is looked at as well: messages on sockets ([`gives_own`]), and
//! `pidfd_getfd` of the process itself ([`fetch`]).
//!
//! `poll` and `select` still see ours as open, and `/proc/self/fd` lists them. That hides them from mistakes, not from an attacker: code that runs in the
//! process can use whatever the process has open. So what is kept open must be nothing that the process could not have anyway: no directory, above all
//! (`docs/src/internals/kernel.md`).

use super::super::buffers::{Args, Memory, PinSet, Pins, errno, pin_local, read_user, run};
use super::super::table::{Dir, Entry, Extent, Ptr};

/// What the kernel is shown in the place of one of ours: never open, and no `AT_FDCWD`.
const NOT_OPEN: u64 = -1i64 as u64;

/// The arguments that the kernel may see, if they are not the program's.
///
/// # Errors
/// `EBADF`: one of Farshore's own descriptors is among those that are always descriptors.
#[inline]
pub fn hide(mem: &impl Memory, entry: &Entry, args: &Args) -> Result<Option<Args>, i64> {
    if entry.descriptors | entry.perhaps == 0 {
        return Ok(None);
    }
    let own = mem.own_fds();
    let Some(&lowest) = own.first() else { return Ok(None) };
    // The kernel looks at the low 32 bits. Most programs' descriptors are far below ours.
    let is_own = |arg: usize| args[arg] as i32 >= lowest && own.binary_search(&(args[arg] as i32)).is_ok();
    let named = (0..5).filter(|&arg| (entry.descriptors | entry.perhaps) & 1 << arg != 0 && is_own(arg));
    let mut shown = None;
    for arg in named {
        if entry.descriptors & 1 << arg != 0 {
            return Err(errno(libc::EBADF));
        }
        shown.get_or_insert(*args)[arg] = NOT_OPEN;
    }
    Ok(shown)
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
    let mut call = || run(mem, nr, args, &[Ptr { arg: 2, dir: Dir::Both, extent: Extent::Bytes(bytes) }]);
    if matches!(args[1] as i32, libc::F_SETLK | libc::F_SETLKW) { mem.lock_record(&mut call) } else { call() }
}

/// `SCM_RIGHTS` messages of a control buffer that are looked through; the kernel takes one with at most 253 descriptors.
const MESSAGES_MAX: usize = 64;
const RIGHTS_MAX: u64 = 253;

/// Whether the message whose `struct msghdr` is at `header` gives one of Farshore's descriptors to somebody.
pub fn gives_own(mem: &impl Memory, header: u64) -> bool {
    const CONTROL: u64 = 32;
    const HEAD: u64 = 16;
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let mut gives = || {
        let own = mem.own_fds();
        let [control, len] = read_user::<[u64; 2]>(mem, &mut pins, header.wrapping_add(CONTROL))?;
        let mut at = 0u64;
        for _ in 0..MESSAGES_MAX {
            if control == 0 || len < at.checked_add(HEAD)? {
                return None;
            }
            // struct cmsghdr: its length with this head, level, type.
            let [bytes, kind] = read_user::<[u64; 2]>(mem, &mut pins, control.wrapping_add(at))?;
            if bytes < HEAD || bytes > len - at {
                return None;
            }
            if kind == libc::SOL_SOCKET as u64 | (libc::SCM_RIGHTS as u64) << 32 {
                let numbers = ((bytes - HEAD) / 4).min(RIGHTS_MAX);
                for n in 0..numbers {
                    let number = read_user::<u32>(mem, &mut pins, control.wrapping_add(at + HEAD + n * 4))?;
                    if own.binary_search(&(number as i32)).is_ok() {
                        return Some(());
                    }
                }
            }
            at += bytes.next_multiple_of(8);
        }
        None
    };
    gives().is_some()
}

/// `pidfd_getfd`: another process has its own descriptor at that number; the process itself has ours.
pub(super) fn fetch(mem: &impl Memory, nr: u64, args: &Args) -> i64 {
    let fetched = mem.raw(nr, args);
    if fetched < 0 || mem.own_fds().binary_search(&(args[1] as i32)).is_err() {
        return fetched;
    }
    let same = identity(mem, fetched as u64).is_some_and(|file| Some(file) == identity(mem, args[1]));
    if same {
        mem.own(libc::SYS_close as u64, &[fetched as u64, 0, 0, 0, 0, 0]);
        return errno(libc::EBADF);
    }
    fetched
}

/// Which file it is: device and inode.
pub fn identity(mem: &impl Memory, fd: u64) -> Option<[u64; 2]> {
    // struct stat: st_dev, st_ino, and what is not looked at.
    let mut stat = [0u64; 18];
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let to = pin_local(mem, &mut pins, &mut stat);
    let result = mem.own(libc::SYS_fstat as u64, &[fd, to, 0, 0, 0, 0]);
    (result == 0).then_some([stat[0], stat[1]])
}
