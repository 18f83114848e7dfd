//! Files that the program has mapped, as the swap space of those mappings: read only, and never written.
//!
//! A slot that stands for a page of such a file ([`FilePage`]) is read here, whatever the swap space is. The files are those of the
//! process: a forked child finds its parent's under the same numbers, until it enters its own.
//!
//! ```text
//!  enter ─▶ read_run … read_run ─▶ leave        the caller sees to it that no page of a file is read when it leaves
//! ```
//!
//! Files are read past the page cache (`O_DIRECT`) where the file system can; otherwise what was read is dropped from it at once,
//! so that no page is in memory twice. What lies behind the end of a file in its last page is zeros, as in the kernel's own mapping.
//!
//! A read gives all the bytes that the file had when it was entered, or an error.

use crate::file::io_error;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use farshore_core::limits::{MAPPED_FILES, PAGE_SIZE};
use farshore_core::seams::{IoError, PageBuf};
use farshore_core::word::{FilePage, Slot};
use rustix::fd::{BorrowedFd, RawFd};
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, pread};

/// One file. `fd` is written last and read first.
struct File {
    fd: AtomicI32,
    size: AtomicU64,
    direct: AtomicBool,
}

const NONE: RawFd = -1;

static FILES: [File; MAPPED_FILES] =
    [const { File { fd: AtomicI32::new(NONE), size: AtomicU64::new(0), direct: AtomicBool::new(false) } }; MAPPED_FILES];

/// The message's name for what is read here.
pub(crate) const NAME: &str = "a mapped file";

/// File number `file` is this open one, of `size` bytes; `direct`: it was opened with `O_DIRECT`. The descriptor stays open until
/// after [`leave`].
///
/// # Panics
/// If there is no such number.
pub fn enter(file: usize, fd: RawFd, size: u64, direct: bool) {
    let place = &FILES[file];
    place.size.store(size, Ordering::Relaxed);
    place.direct.store(direct, Ordering::Relaxed);
    // Release: with the Acquire in `read_run`, which then finds the file's size.
    place.fd.store(fd, Ordering::Release);
}

/// No page of file number `file` is read any more.
///
/// # Panics
/// If there is no such number.
pub fn leave(file: usize) {
    FILES[file].fd.store(NONE, Ordering::Release);
}

/// The descriptors of all files.
pub fn fds() -> impl Iterator<Item = RawFd> {
    FILES.iter().map(|file| file.fd.load(Ordering::Acquire)).filter(|&fd| fd != NONE)
}

/// Reads neighbouring pages of a file, if `first` stands for one; `None`: it is a place in swap space.
#[inline]
pub(crate) fn read_run(first: Slot, into: &mut [PageBuf]) -> Option<Result<(), IoError>> {
    first.of_file().map(|page| read_pages(page, into))
}

#[cold]
fn read_pages(first: FilePage, into: &mut [PageBuf]) -> Result<(), IoError> {
    let place = &FILES[first.file];
    let fd = place.fd.load(Ordering::Acquire);
    if fd == NONE {
        return Err(IoError::Device(Errno::BADF.raw_os_error()));
    }
    // SAFETY: `enter`: open as long as pages are read.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let offset = first.page * PAGE_SIZE as u64;
    let bytes = as_bytes(into);
    let wanted = place.size.load(Ordering::Relaxed).saturating_sub(offset).min(bytes.len() as u64) as usize;
    if wanted == 0 {
        // Behind the end there is no page to be read.
        return Err(IoError::Short);
    }
    read_bytes(fd, bytes, offset, wanted)?;
    bytes[wanted..].fill(0);
    if !place.direct.load(Ordering::Relaxed) {
        let _ = fadvise(fd, offset, core::num::NonZeroU64::new(wanted as u64), Advice::DontNeed);
    }
    Ok(())
}

/// Reads at least `wanted` bytes at `offset`, in whole pages: direct I/O takes nothing else.
fn read_bytes(fd: BorrowedFd<'_>, bytes: &mut [u8], offset: u64, wanted: usize) -> Result<(), IoError> {
    let mut done = 0;
    loop {
        let came = match pread(fd, &mut bytes[done..], offset + done as u64) {
            Ok(came) => came,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(io_error(errno)),
        };
        if done + came >= wanted {
            return Ok(());
        }
        // A piece that ends within a page is read again from the page's beginning, unless nothing new came.
        let whole = (done + came) / PAGE_SIZE * PAGE_SIZE;
        if whole == done {
            return Err(IoError::Short);
        }
        done = whole;
    }
}

fn as_bytes(pages: &mut [PageBuf]) -> &mut [u8] {
    let len = size_of_val(pages);
    // SAFETY: pages are arrays of bytes, side by side and without gaps; the borrow goes on in the result.
    unsafe { core::slice::from_raw_parts_mut(pages.as_mut_ptr().cast(), len) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsRawFd;
    use std::io::Write;

    #[test]
    fn a_file_is_read_to_its_last_byte_and_not_beyond() {
        let path = std::env::temp_dir().join(format!("farshore-mapped-{}", std::process::id()));
        let bytes: Vec<u8> = (0..3 * PAGE_SIZE + 100).map(|n| (n / 7) as u8).collect();
        std::fs::File::create(&path).unwrap().write_all(&bytes).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let number = MAPPED_FILES - 1;
        enter(number, file.as_raw_fd(), bytes.len() as u64, false);
        assert!(fds().any(|fd| fd == file.as_raw_fd()));
        let slot = |page| FilePage { file: number, page }.slot().unwrap();
        let mut pages = vec![PageBuf([0xaa; PAGE_SIZE]); 4];
        assert_eq!(read_run(slot(0), &mut pages), Some(Ok(())));
        assert!(as_bytes(&mut pages)[..bytes.len()] == bytes && as_bytes(&mut pages)[bytes.len()..].iter().all(|&b| b == 0));
        assert_eq!(read_run(slot(2), &mut pages[..1]), Some(Ok(())));
        assert!(pages[0].0 == bytes[2 * PAGE_SIZE..3 * PAGE_SIZE]);
        assert_eq!(read_run(slot(4), &mut pages), Some(Err(IoError::Short)));
        assert_eq!(read_run(Slot::new(4).unwrap(), &mut pages), None);
        // A file that has become shorter all the same is an error, not zeros.
        enter(number, file.as_raw_fd(), 5 * PAGE_SIZE as u64, false);
        assert_eq!(read_run(slot(3), &mut pages[..2]), Some(Err(IoError::Short)));
        leave(number);
        assert!(matches!(read_run(slot(0), &mut pages), Some(Err(IoError::Device(_)))));
    }
}
