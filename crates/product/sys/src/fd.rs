//! File descriptors without libc, and small files read whole.

use crate::raw::{self, Errno, nr};
use alloc_crate::vec::Vec;
use core::ffi::CStr;
use rustix::fd::{AsFd as _, AsRawFd, BorrowedFd, IntoRawFd as _};

const AT_FDCWD: u64 = -100i64 as u64;
const O_CLOEXEC: u64 = 0o2000000;
const F_DUPFD_CLOEXEC: u64 = 1030;

/// Open for reading only.
pub const O_RDONLY: u64 = 0;
/// Open for reading and writing.
pub const O_RDWR: u64 = 2;
/// What another process could hold up the opening of does not wait for it.
pub(crate) const O_NONBLOCK: u64 = 0o4_000;

/// A descriptor that is closed when dropped. Always close-on-exec.
#[derive(Debug)]
pub struct Fd(i32);

impl Fd {
    /// Takes over a descriptor.
    ///
    /// # Safety
    /// `raw` is open, and nobody else closes it.
    pub const unsafe fn from_raw(raw: i32) -> Fd {
        Fd(raw)
    }

    /// Its number.
    pub const fn raw(&self) -> i32 {
        self.0
    }

    /// As an argument of a system call.
    pub(crate) const fn arg(&self) -> u64 {
        self.0 as u64
    }

    /// Gives the number away; it is no longer closed.
    pub const fn into_raw(self) -> i32 {
        let raw = self.0;
        core::mem::forget(self);
        raw
    }

    /// The same open file under a number of at least `lowest`, so that the program does not
    /// find it among the low numbers it counts on. The old number is closed.
    ///
    /// # Errors
    /// The old descriptor and `EMFILE` or `EINVAL` when there is no such number below `RLIMIT_NOFILE`.
    pub fn raise(self, lowest: i32) -> Result<Fd, (Fd, Errno)> {
        // SAFETY: duplicates our own descriptor; no memory is involved.
        match unsafe { raw::syscall_result(nr::FCNTL, [self.arg(), F_DUPFD_CLOEXEC, lowest as u64, 0, 0, 0]) } {
            Ok(new) => Ok(Fd(new as i32)),
            Err(errno) => Err((self, errno)),
        }
    }
}

impl From<rustix::fd::OwnedFd> for Fd {
    fn from(fd: rustix::fd::OwnedFd) -> Fd {
        Fd(fd.into_raw_fd())
    }
}

impl rustix::fd::AsFd for Fd {
    fn as_fd(&self) -> rustix::fd::BorrowedFd<'_> {
        // SAFETY: we own the descriptor, so it is open as long as `self` is borrowed.
        unsafe { rustix::fd::BorrowedFd::borrow_raw(self.0) }
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: we own the descriptor (`from_raw`'s promise), nobody uses it after this.
        // An error leaves it closed all the same on Linux, so there is nothing to do about one.
        let _ = unsafe { raw::syscall(nr::CLOSE, [self.arg(), 0, 0, 0, 0, 0]) };
    }
}

/// Opens `path` (close-on-exec) with [`O_RDONLY`] or [`O_RDWR`].
///
/// # Errors
/// What openat(2) answers.
pub fn open(path: &CStr, flags: u64) -> Result<Fd, Errno> {
    open_at(AT_FDCWD as i32, path, flags)
}

/// Opens `path` (close-on-exec), which begins at the directory `at` if it is relative. No file is made.
///
/// # Errors
/// What openat(2) answers.
pub fn open_at(at: i32, path: &CStr, flags: u64) -> Result<Fd, Errno> {
    const O_CREAT_AND_TMPFILE: u64 = 0o20_000_100;
    let args = [at as u64, path.as_ptr() as u64, flags & !O_CREAT_AND_TMPFILE | O_CLOEXEC, 0, 0, 0];
    // SAFETY: the path is a C string that lives through the call; nothing else is touched.
    let raw = unsafe { raw::syscall_retry(nr::OPENAT, args) }?;
    Ok(Fd(raw as i32))
}

/// As [`open`], a path of at most 47 bytes. Allocates nothing.
///
/// # Errors
/// What openat(2) answers; `EINVAL` if the path is longer.
pub fn open_formatted(path: core::fmt::Arguments<'_>, flags: u64) -> Result<Fd, Errno> {
    let mut room = Path([0; 48], 0);
    core::fmt::Write::write_fmt(&mut room, path).map_err(|_| Errno::EINVAL)?;
    open(CStr::from_bytes_until_nul(&room.0).map_err(|_| Errno::EINVAL)?, flags)
}

/// Room for a short path, and how long it is.
struct Path([u8; 48], usize);

impl core::fmt::Write for Path {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        // A byte stays 0, behind the path.
        let room = self.0.get_mut(self.1..47).and_then(|room| room.get_mut(..text.len())).ok_or(core::fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.1 += text.len();
        Ok(())
    }
}

/// Calls `found` for each name in a folder that is a number: of `/proc/PID/fd` the descriptors, of `/proc/PID/task` the threads.
///
/// # Errors
/// What getdents64(2) answers.
pub fn each_number_in(folder: &Fd, mut found: impl FnMut(u32)) -> Result<(), Errno> {
    // As getdents64(2) wants them to lie.
    let mut entries = [0u64; 256];
    loop {
        let args = [folder.arg(), entries.as_mut_ptr() as u64, size_of_val(&entries) as u64, 0, 0, 0];
        // SAFETY: the kernel writes at most so many bytes into a buffer of ours.
        let got = unsafe { raw::syscall_retry(nr::GETDENTS64, args) }? as usize;
        if got == 0 {
            return Ok(());
        }
        // SAFETY: as many bytes of the buffer as the kernel has written; any are valid.
        each_number(unsafe { core::slice::from_raw_parts(entries.as_ptr().cast::<u8>(), got) }, &mut found);
    }
}

/// Calls `found` for each name among what getdents64(2) has given that is a number: of `/proc/PID/fd` the descriptors.
pub fn each_number(mut entries: &[u8], mut found: impl FnMut(u32)) {
    // struct linux_dirent64: the length at byte 16, the name from byte 19 on.
    while let Some((len, name)) = entries.get(16..18).zip(entries.get(19..)) {
        let name = CStr::from_bytes_until_nul(name).unwrap_or_default();
        name.to_str().ok().and_then(|name| name.parse().ok()).into_iter().for_each(&mut found);
        entries = entries.get(usize::from(u16::from_ne_bytes([len[0], len[1]]))..).filter(|_| len != [0, 0]).unwrap_or_default();
    }
}

/// An exec closes the descriptor with this number, which was inherited. Without an error if it is not open.
pub fn leave_at_exec(number: i32) {
    const F_SETFD: u64 = 2;
    const FD_CLOEXEC: u64 = 1;
    // SAFETY: sets a flag; nothing is read through the descriptor or written.
    let _ = unsafe { raw::syscall_result(nr::FCNTL, [number as u64, F_SETFD, FD_CLOEXEC, 0, 0, 0]) };
}

/// Another descriptor of the same description.
///
/// # Errors
/// What fcntl(2) answers.
pub fn duplicate(fd: &Fd) -> Result<Fd, Errno> {
    // SAFETY: duplicates our own descriptor; no memory is involved.
    unsafe { raw::syscall_result(nr::FCNTL, [fd.arg(), F_DUPFD_CLOEXEC, 0, 0, 0, 0]) }.map(|raw| Fd(raw as i32))
}

/// Reads at the file's position; the number of bytes, 0 at the end.
///
/// # Errors
/// What read(2) answers; `EINTR` is retried.
pub fn read(fd: &Fd, into: &mut [u8]) -> Result<usize, Errno> {
    let args = [fd.arg(), into.as_mut_ptr() as u64, into.len() as u64, 0, 0, 0];
    // SAFETY: the kernel writes at most `len` bytes into a buffer that we hold exclusively.
    Ok(unsafe { raw::syscall_retry(nr::READ, args) }? as usize)
}

/// Reads at `offset`; the number of bytes, 0 at the end.
///
/// # Errors
/// What pread(2) answers; `EINTR` is retried.
pub fn pread(fd: &Fd, into: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let args = [fd.arg(), into.as_mut_ptr() as u64, into.len() as u64, offset, 0, 0];
    // SAFETY: the kernel writes at most `len` bytes into a buffer that we hold exclusively.
    Ok(unsafe { raw::syscall_retry(nr::PREAD64, args) }? as usize)
}

const F_GETLK: u64 = 5;
const F_SETLK: u64 = 6;
const F_OFD_SETLK: u64 = 37;
const F_RDLCK: i16 = 0;
const F_WRLCK: i16 = 1;
const F_UNLCK: i16 = 2;

/// `struct flock` for one byte.
#[repr(C)]
struct Lock {
    kind: i16,
    whence: i16,
    start: i64,
    len: i64,
    pid: i32,
}

impl Lock {
    fn of(kind: i16, byte: u32) -> Lock {
        Lock { kind, whence: 0, start: i64::from(byte), len: 1, pid: 0 }
    }

    fn set(&self, fd: BorrowedFd<'_>, command: u64) -> Result<(), Errno> {
        // SAFETY: the kernel reads the structure.
        unsafe { raw::syscall_result(nr::FCNTL, [fd.as_raw_fd() as u64, command, (&raw const *self) as u64, 0, 0, 0]) }.map(drop)
    }
}

/// Locks a byte of a file for this description of it (not for the process), which must be open for writing: until it is unlocked, or the last descriptor of the
/// description is closed.
///
/// # Errors
/// `EAGAIN`: another description has it.
pub fn lock_byte(fd: BorrowedFd<'_>, byte: u32) -> Result<(), Errno> {
    Lock::of(F_WRLCK, byte).set(fd, F_OFD_SETLK)
}

/// The same with a lock that others may have too, by a description that is open for reading alone.
///
/// # Errors
/// `EAGAIN`: another description has locked it for itself.
pub fn share_byte(fd: BorrowedFd<'_>, byte: u32) -> Result<(), Errno> {
    Lock::of(F_RDLCK, byte).set(fd, F_OFD_SETLK)
}

/// Undoes [`lock_byte`] and [`share_byte`].
///
/// # Errors
/// What fcntl(2) answers.
pub fn unlock_byte(fd: BorrowedFd<'_>, byte: u32) -> Result<(), Errno> {
    Lock::of(F_UNLCK, byte).set(fd, F_OFD_SETLK)
}

/// Locks a byte of a file for this process, whoever else has its description: until [`release_byte`], or the process ends, or closes a descriptor of the file. A child that is
/// forked does not have it.
///
/// # Errors
/// `EAGAIN`: another process has it, or a description.
pub fn claim_byte(fd: BorrowedFd<'_>, byte: u32) -> Result<(), Errno> {
    match Lock::of(F_WRLCK, byte).set(fd, F_SETLK) {
        // Either is allowed to the kernel.
        Err(Errno::EACCES) => Err(Errno::EAGAIN),
        answer => answer,
    }
}

/// Undoes [`claim_byte`].
pub fn release_byte(fd: BorrowedFd<'_>, byte: u32) {
    let _ = Lock::of(F_UNLCK, byte).set(fd, F_SETLK);
}

/// Whether any description of the file has the byte locked, this one included. What cannot be found out counts as locked.
pub fn is_byte_locked(fd: BorrowedFd<'_>, byte: u32) -> bool {
    let mut lock = Lock::of(F_WRLCK, byte);
    // The question of who would lock for the process (`F_GETLK`), which a description's lock is in the way of, whoever's it is.
    // SAFETY: the kernel reads and writes the structure.
    let asked = unsafe { raw::syscall_result(nr::FCNTL, [fd.as_raw_fd() as u64, F_GETLK, (&raw mut lock) as u64, 0, 0, 0]) };
    asked.is_err() || lock.kind != F_UNLCK
}

/// Another description of an open file, opened with [`O_RDONLY`] or [`O_RDWR`].
///
/// The way is `/proc`, as the calling thread sees it: no descriptor of `/proc` is kept for this, since a program that has shut itself in (`chroot`)
/// could leave by it. What is found there is compared with the file that is meant.
///
/// # Errors
/// What openat(2) answers, `ENOENT` where no `/proc` is mounted; `ENOENT` too if another file was found.
pub fn describe(fd: BorrowedFd<'_>, access: u64) -> Result<Fd, Errno> {
    let path = alloc_crate::format!("/proc/thread-self/fd/{}\0", fd.as_raw_fd());
    let path = CStr::from_bytes_with_nul(path.as_bytes()).map_err(|_| Errno::EINVAL)?;
    // Not what anybody has put there: the file that we have open, which no name leads to, or nothing.
    let wanted = identity(fd)?;
    let found = open(path, access | O_NONBLOCK)?;
    if identity(found.as_fd())? == wanted { Ok(found) } else { Err(Errno::ENOENT) }
}

/// Which file it is: device and inode.
fn identity(fd: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    let stat = rustix::fs::fstat(fd).map_err(|errno| Errno(errno.raw_os_error()))?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Tells a block device that so many bytes from `offset` on are needed no more (`BLKDISCARD`). What they hold afterwards is anything.
///
/// # Errors
/// `EOPNOTSUPP` when the device cannot.
pub fn discard(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    const BLKDISCARD: u64 = 0x1277;
    let range = [offset, len];
    // SAFETY: the kernel reads the two numbers.
    unsafe { raw::syscall_retry(nr::IOCTL, [fd.as_raw_fd() as u64, BLKDISCARD, range.as_ptr() as u64, 0, 0, 0]) }.map(drop)
}

/// Pages of a file that are in memory, of `len` bytes from `offset` on, without a look at each.
///
/// # Errors
/// What cachestat(2) answers: `EOPNOTSUPP` for huge pages, `ENOSYS` before Linux 6.5.
pub fn cached_pages(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<u64, Errno> {
    let range = [offset, len];
    // struct cachestat: pages in memory, dirty ones, under writeback, evicted, recently evicted.
    let mut answer = [0u64; 5];
    let args = [fd.as_raw_fd() as u64, range.as_ptr() as u64, answer.as_mut_ptr() as u64, 0, 0, 0];
    // SAFETY: the kernel reads the two numbers, and writes the five, which we hold exclusively.
    unsafe { raw::syscall_result(nr::CACHESTAT, args) }?;
    Ok(answer[0])
}

/// Whether descriptor `theirs` of process `pid` and one of ours are the same open description.
///
/// # Errors
/// What kcmp(2) answers: `EPERM` where this process may not look at that one, `ENOSYS` from a kernel without it, `EBADF` for a number that is closed.
pub fn is_description_of(pid: u32, theirs: u32, ours: BorrowedFd<'_>) -> Result<bool, Errno> {
    const KCMP_FILE: u64 = 0;
    let args = [raw::getpid().into(), pid.into(), KCMP_FILE, ours.as_raw_fd() as u64, theirs.into(), 0];
    // SAFETY: compares, and changes nothing.
    unsafe { raw::syscall_result(nr::KCMP, args) }.map(|order| order == 0)
}

/// Reads a whole file of at most `most` bytes (what is beyond is left out). Allocates.
///
/// # Errors
/// What open or read answers.
pub fn read_file(path: &CStr, most: usize) -> Result<Vec<u8>, Errno> {
    read_to_end(&open(path, O_RDONLY)?, most)
}

/// The same of an open file, from its position on.
///
/// # Errors
/// What read answers.
pub fn read_to_end(fd: &Fd, most: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::new();
    let mut piece = [0u8; 1024];
    while bytes.len() < most {
        let got = read(fd, &mut piece)?;
        if got == 0 {
            break;
        }
        bytes.extend_from_slice(&piece[..got.min(most - bytes.len())]);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_files_and_raises_numbers() {
        let status = read_file(c"/proc/self/status", 1 << 16).unwrap();
        assert!(status.starts_with(b"Name:"));
        assert_eq!(read_file(c"/proc/self/status", 5).unwrap(), b"Name:");
        assert_eq!(read_file(c"/does/not/exist", 5), Err(Errno::ENOENT));
        let folder = open(c"/proc/self", 0o200_000).unwrap();
        assert_eq!(open_at(folder.raw(), c"status", O_RDONLY).map(|fd| fd.raw() > 2), Ok(true));
        assert_eq!(open_at(folder.raw(), c"made", 0o100 | O_RDWR).map(drop), Err(Errno::ENOENT));
        let raised = open(c"/dev/zero", O_RDONLY).unwrap().raise(500).unwrap();
        assert!(raised.raw() >= 500);
        let mut byte = [1u8; 4];
        assert_eq!((pread(&raised, &mut byte, 0), byte), (Ok(4), [0; 4]));
        let (same, errno) = raised.raise(i32::MAX).unwrap_err();
        assert_eq!((same.raw() >= 500, errno), (true, Errno::EINVAL));
    }

    #[test]
    fn descriptions_are_told_from_files() {
        use rustix::fd::AsFd;
        let one = open(c"/dev/zero", O_RDONLY).unwrap();
        let copy = one.as_fd().try_clone_to_owned().unwrap();
        let other = open(c"/dev/zero", O_RDONLY).unwrap();
        let is = |fd: i32| is_description_of(raw::getpid(), fd as u32, one.as_fd());
        if is(copy.as_raw_fd()) == Err(Errno::ENOSYS) {
            std::println!("skipped: the kernel has no kcmp(2)");
            return;
        }
        assert_eq!((is(copy.as_raw_fd()), is(other.raw()), is(1 << 30)), (Ok(true), Ok(false), Err(Errno::EBADF)));
    }

    #[test]
    fn a_byte_belongs_to_a_description() {
        use rustix::fd::AsFd;
        let path = std::ffi::CString::new(
            std::env::temp_dir().join(std::format!("locks-{}", std::process::id())).into_os_string().into_encoded_bytes(),
        );
        let path = path.unwrap();
        std::fs::write(path.to_str().unwrap(), b"x").unwrap();
        let one = open(&path, O_RDWR).unwrap();
        let other = describe(one.as_fd(), O_RDWR).unwrap();
        std::fs::remove_file(path.to_str().unwrap()).unwrap();
        assert_eq!(lock_byte(one.as_fd(), 7), Ok(()));
        assert_eq!(lock_byte(other.as_fd(), 7), Err(Errno::EAGAIN));
        assert_eq!(
            (is_byte_locked(other.as_fd(), 7), is_byte_locked(one.as_fd(), 7), is_byte_locked(one.as_fd(), 6)),
            (true, true, false)
        );
        let reader = describe(one.as_fd(), O_RDONLY).unwrap();
        assert_eq!((share_byte(reader.as_fd(), 7), share_byte(reader.as_fd(), 9)), (Err(Errno::EAGAIN), Ok(())));
        assert_eq!((is_byte_locked(other.as_fd(), 9), lock_byte(other.as_fd(), 9)), (true, Err(Errno::EAGAIN)));
        drop(reader);
        assert!(!is_byte_locked(other.as_fd(), 9));
        assert_eq!(
            (lock_byte(other.as_fd(), 8), unlock_byte(one.as_fd(), 7), lock_byte(other.as_fd(), 7)),
            (Ok(()), Ok(()), Ok(()))
        );
        drop(other);
        assert_eq!((lock_byte(one.as_fd(), 7), lock_byte(one.as_fd(), 8)), (Ok(()), Ok(())));
        assert_eq!(discard(one.as_fd(), 0, 4096), Err(Errno::ENOTTY));
        // A process' own lock is one that descriptions mind, and not the process itself.
        assert_eq!((claim_byte(one.as_fd(), 5), claim_byte(one.as_fd(), 5)), (Ok(()), Ok(())));
        assert_eq!(lock_byte(one.as_fd(), 5), Err(Errno::EAGAIN));
        release_byte(one.as_fd(), 5);
        assert_eq!((lock_byte(one.as_fd(), 5), claim_byte(one.as_fd(), 5)), (Ok(()), Err(Errno::EAGAIN)));
    }
}
