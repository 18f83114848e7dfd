//! Read leases on regular files: while one is held nobody writes to the file, or makes it shorter.
//!
//! Whoever opens the file for writing, or truncates it, waits until the lease is released, for at most
//! `/proc/sys/fs/lease-break-time` seconds (45). The holder is told by a signal. The kernel gives a lease to the file's owner and to
//! `CAP_LEASE`, on a description that is open for reading alone, as long as nobody has the file open for writing.
//!
//! A lease belongs to an open file description. Descriptors that are copies of one another have it together, a forked child's too.

use crate::fd::{self, Fd};
use crate::raw::{self, Errno, nr};

const F_SETOWN: u64 = 8;
const F_SETSIG: u64 = 10;
const F_SETLEASE: u64 = 1024;
const F_GETLEASE: u64 = 1025;
const F_RDLCK: u64 = 0;
const F_UNLCK: u64 = 2;
const O_DIRECT: u64 = 0o40_000;
const O_CLOEXEC: u64 = 0o2_000_000;
const DUP3: u64 = 292;
const FSTATFS: u64 = 138;
const STATX: u64 = 332;

/// What the kernel tells of an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct About {
    /// Device and number: no other file has the same.
    pub id: (u64, u64),
    /// Bytes.
    pub size: u64,
    /// Whose it is.
    pub owner: u32,
    /// It is a regular file.
    pub is_regular: bool,
    /// It lies in memory that is mapped itself (`STATX_ATTR_DAX`).
    pub is_dax: bool,
}

/// Asks for it.
///
/// # Errors
/// What statx(2) answers.
pub fn about(fd: i32) -> Result<About, Errno> {
    const AT_EMPTY_PATH: u64 = 0x1000;
    const BASIC: u64 = 0x7ff;
    const DAX: u64 = 0x20_0000;
    // struct statx.
    let mut told = [0u64; 32];
    let args = [fd as u64, c"".as_ptr() as u64, AT_EMPTY_PATH, BASIC, told.as_mut_ptr() as u64, 0];
    // SAFETY: 256 bytes of ours, which is the structure's size, and an empty string.
    unsafe { raw::syscall_result(STATX, args) }?;
    // Mask and block size; attributes; links and owner; group and mode; number; size; … device.
    let [_, attributes, links_and_owner, group_and_mode, number, size, ..] = told;
    Ok(About {
        id: (told[17], number),
        size,
        owner: (links_and_owner >> 32) as u32,
        is_regular: (group_and_mode >> 32) & 0o170_000 == 0o100_000,
        is_dax: attributes & DAX != 0,
    })
}

/// The kind of file system that an open file lies in: its magic number.
///
/// # Errors
/// What fstatfs(2) answers.
pub fn file_system(fd: i32) -> Result<u64, Errno> {
    // struct statfs: the kind comes first.
    let mut told = [0u64; 15];
    // SAFETY: 120 bytes of ours, which is the structure's size.
    unsafe { raw::syscall_result(FSTATFS, [fd as u64, told.as_mut_ptr() as u64, 0, 0, 0, 0]) }?;
    Ok(told[0] & 0xffff_ffff)
}

/// A description of its own of the file that `fd` has open, for reading; `direct`: past the page cache.
///
/// # Errors
/// What openat(2) answers; without `/proc` `ENOENT`.
pub fn open_again(fd: i32, direct: bool) -> Result<Fd, Errno> {
    fd::open_formatted(format_args!("/proc/self/fd/{fd}"), fd::O_RDONLY | if direct { O_DIRECT } else { 0 })
}

fn control(fd: i32, command: u64, argument: u64) -> Result<u64, Errno> {
    // SAFETY: the commands of this module take numbers.
    unsafe { raw::syscall_result(nr::FCNTL, [fd as u64, command, argument, 0, 0, 0]) }
}

/// Takes a lease on the file that `fd`, a description of ours for reading, has open. Process `pid` gets `signal` when somebody
/// wants it.
///
/// # Errors
/// `EAGAIN`: somebody has the file open for writing, or wants to. `EACCES`: the file is another user's. `EINVAL`: such files
/// have no leases.
pub fn take(fd: &Fd, signal: u32, pid: u32) -> Result<(), Errno> {
    control(fd.raw(), F_SETSIG, signal.into())?;
    control(fd.raw(), F_SETOWN, pid.into())?;
    control(fd.raw(), F_SETLEASE, F_RDLCK).map(drop)
}

/// Whether the lease is there, and nobody waits for its end.
pub fn is_held(fd: i32) -> bool {
    control(fd, F_GETLEASE, 0) == Ok(F_RDLCK)
}

/// Releases it, whatever other descriptors have the description.
pub fn release(fd: i32) {
    // An error says that it is gone already.
    let _ = control(fd, F_SETLEASE, F_UNLCK);
}

/// The open file takes the number `number`, whose file is closed.
///
/// # Errors
/// What dup3(2) answers, and the descriptor.
pub fn take_number(fd: Fd, number: i32) -> Result<Fd, (Fd, Errno)> {
    // SAFETY: duplicates our own descriptor over a number that is the caller's to give away.
    match unsafe { raw::syscall_result(DUP3, [fd.arg(), number as u64, O_CLOEXEC, 0, 0, 0]) } {
        // SAFETY: open since a moment ago, and nobody else's.
        Ok(_) => Ok(unsafe { Fd::from_raw(number) }),
        Err(errno) => Err((fd, errno)),
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn what_is_told_of_a_file() {
        let path = std::env::temp_dir().join(format!("farshore-lease-{}", std::process::id()));
        std::fs::write(&path, [7; 5000]).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let told = about(file.as_raw_fd()).unwrap();
        let again = open_again(file.as_raw_fd(), false).unwrap();
        assert_eq!(about(again.raw()).unwrap(), told);
        assert!(told.size == 5000 && told.is_regular && !told.is_dax);
        let writer = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        assert_eq!(take(&again, 23, crate::raw::getpid()), Err(Errno::EAGAIN), "somebody has it open for writing");
        drop(writer);
        std::fs::remove_file(&path).unwrap();
        let folder = std::fs::File::open("/").unwrap();
        assert!(!about(folder.as_raw_fd()).unwrap().is_regular);
        assert!(file_system(folder.as_raw_fd()).unwrap() > 0);
        assert!(!is_held(again.raw()));
        if take(&again, 23, crate::raw::getpid()).is_ok() {
            assert!(is_held(again.raw()));
            release(again.raw());
            assert!(!is_held(again.raw()));
        }
    }
}
