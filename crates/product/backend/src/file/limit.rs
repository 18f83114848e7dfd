//! Swap files and the process' limit of file sizes (`RLIMIT_FSIZE`, `ulimit -f`).
//!
//! The limit is the program's, and the program may lower it while it runs. The kernel refuses each write past it (`EFBIG`) in all
//! threads of the process, Farshore's too. The limit does not apply to a shared mapping of a file that is long enough. So:
//!
//! * before the limit is lowered, and when a file is made under one, the file is made long ([`lengthen`], [`Raised`]); it is
//!   sparse;
//! * a write that was refused is made through a mapping ([`write`]). That is slow: two copies and a wait for the disk.
//!
//! From then on the mapping takes the place of one that exists already, so that it needs no more address space. (Linux refuses it
//! all the same once `RLIMIT_AS` is below what the process has mapped already: under both limits nothing can be written.)
//!
//! Only a hard limit that was there before the file, and that the user may not raise, limits the file ([`super::open`]).

use crate::sleep;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use farshore_core::limits::{EXTENT_SLOTS, PAGE_SIZE};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{Advice as FileAdvice, FileType, fadvise, fstat, ftruncate};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags, madvise, mmap, mmap_anonymous, msync, munmap};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::num::NonZeroU64;

/// How long a file is made: larger than any disk of today has room for one program.
const REACH: u64 = 1 << 40;

/// Bytes of the longest write: it stays within an extent.
const WINDOW: usize = EXTENT_SLOTS * PAGE_SIZE;
/// Addresses that mappings of files take, one at a time; null: none yet.
static WINDOW_AT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// A write has the window.
static TAKEN: AtomicBool = AtomicBool::new(false);
/// How long a write waits for another one to give the window back.
const PAUSE_NS: u64 = 100_000;

/// Keeps addresses for mappings.
fn reserve_window() {
    if !WINDOW_AT.load(Ordering::Acquire).is_null() {
        return;
    }
    // SAFETY: a new mapping, at an address that the kernel picks.
    let Ok(at) = (unsafe { mmap_anonymous(core::ptr::null_mut(), WINDOW, ProtFlags::empty(), EMPTY) }) else { return };
    if WINDOW_AT.compare_exchange(core::ptr::null_mut(), at, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: the mapping that was just made, which no other code knows.
        let _ = unsafe { munmap(at, WINDOW) };
    }
}

/// The mapping in the window while no thread writes.
const EMPTY: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

/// The window, for one write.
struct Window(*mut c_void);

impl Window {
    /// Waits for the window; `None` if there is none.
    fn take() -> Option<Window> {
        let at = WINDOW_AT.load(Ordering::Acquire);
        if at.is_null() {
            return None;
        }
        while TAKEN.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            sleep::nap(PAUSE_NS);
        }
        Some(Window(at))
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: our own addresses, in which the mapping of a file is not used any more.
        let _ = unsafe { mmap_anonymous(self.0, WINDOW, ProtFlags::empty(), EMPTY | MapFlags::FIXED) };
        TAKEN.store(false, Ordering::Release);
    }
}

/// Makes a swap file as long as the file system and the limit allow, without writing to it. Does nothing if `fd` is not a
/// regular file.
pub fn lengthen(fd: impl AsFd) {
    let fd = fd.as_fd();
    reserve_window();
    let Ok(file) = fstat(fd) else { return };
    if FileType::from_raw_mode(file.st_mode) != FileType::RegularFile {
        return;
    }
    let mut reach = getrlimit(Resource::Fsize).current.unwrap_or(REACH).min(REACH) & !(PAGE_SIZE as u64 - 1);
    while reach > file.st_size as u64 && ftruncate(fd, reach).is_err() {
        reach /= 2;
    }
}

/// The soft limit raised to the hard one, until this is dropped.
#[derive(Debug)]
pub(super) struct Raised(Option<Rlimit>);

impl Raised {
    /// Raises the limit, if there is one.
    pub(super) fn new() -> Raised {
        let limit = getrlimit(Resource::Fsize);
        let raised = Rlimit { current: limit.maximum, ..limit };
        Raised((limit.current.is_some() && setrlimit(Resource::Fsize, raised).is_ok()).then_some(limit))
    }

    /// Whether there was a limit to raise.
    pub(super) fn is_raised(&self) -> bool {
        self.0.is_some()
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        if let Some(limit) = self.0.take() {
            // The limit had this value a moment ago, so it may have it again.
            let _ = setrlimit(Resource::Fsize, limit);
        }
    }
}

/// Writes `len` bytes to a swap file, past the limit.
///
/// # Errors
/// `EFBIG` when the file is not long enough, `ENOSPC` when the disk has no room, and what the disk answers.
///
/// # Safety
/// `from` are `len` bytes that can be read.
pub(super) unsafe fn write(fd: BorrowedFd<'_>, from: *const u8, len: usize, offset: u64) -> Result<(), Errno> {
    let end = offset.checked_add(len as u64).and_then(NonZeroU64::new).ok_or(Errno::FBIG)?;
    if (fstat(fd)?.st_size as u64) < end.get() {
        return Err(Errno::FBIG);
    }
    let window = Window::take().filter(|_| len <= WINDOW).ok_or(Errno::FBIG)?;
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: our own addresses, which this write has exclusively.
    let map = unsafe { mmap(window.0, len, ProtFlags::READ | ProtFlags::WRITE, flags, fd, offset) }?;
    // Without it a full disk would be a signal. The kernel says EFAULT for that.
    // SAFETY: the mapping that was just made.
    let populated = unsafe { madvise(map, len, Advice::LinuxPopulateWrite) };
    let written = match populated {
        Ok(()) => {
            // SAFETY: the caller's bytes; the mapping is as long, lies apart, and its pages have room on the disk.
            unsafe { core::ptr::copy_nonoverlapping(from, map.cast::<u8>(), len) };
            // SAFETY: as above.
            unsafe { msync(map, len, MsyncFlags::SYNC) }
        }
        Err(Errno::FAULT) => Err(Errno::NOSPC),
        Err(errno) => Err(errno),
    };
    drop(window);
    // The page cache would hold a second copy.
    let _ = fadvise(fd, offset, NonZeroU64::new(len as u64), FileAdvice::DontNeed);
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn pages_reach_a_file_that_is_long_enough() {
        let file = tempfile();
        let page = [7u8; PAGE_SIZE];
        // SAFETY: a page that can be read.
        let short = unsafe { write(file.as_fd(), page.as_ptr(), PAGE_SIZE, 8 * PAGE_SIZE as u64) };
        assert_eq!(short, Err(Errno::FBIG));
        lengthen(&file);
        assert!(fstat(&file).unwrap().st_size as u64 >= 1 << 30);
        // SAFETY: as above.
        unsafe { write(file.as_fd(), page.as_ptr(), PAGE_SIZE, 8 * PAGE_SIZE as u64) }.unwrap();
        let mut all = vec![1u8; 10 * PAGE_SIZE];
        (&file).read_exact(&mut all).unwrap();
        assert!(all[..8 * PAGE_SIZE].iter().all(|&b| b == 0));
        assert!(all[8 * PAGE_SIZE..9 * PAGE_SIZE].iter().all(|&b| b == 7));
        assert!(all[9 * PAGE_SIZE..].iter().all(|&b| b == 0));
    }

    /// A file without a name.
    fn tempfile() -> std::fs::File {
        use rustix::fs::{Mode, OFlags, open};
        open(std::env::temp_dir(), OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR | Mode::WUSR).expect("a file without a name").into()
    }
}
