//! The memory that buffers lie in, and the memory that pushes it out.

// Groups of raw accesses that belong together, with one reason for all.
#![allow(clippy::multiple_unsafe_ops_per_block)]

use crate::kernel::{at_mut, sys};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Bytes a page.
pub const PAGE: usize = 4096;

/// A mapping of anonymous private memory, large enough to be managed under Farshore.
#[derive(Debug)]
pub struct Mapping {
    start: u64,
    len: usize,
}

/// What a part of a mapping is replaced by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Ordinary memory that Farshore never manages: shared with children.
    Ordinary,
    /// Nothing that can be accessed.
    Hole,
}

fn map(addr: u64, len: usize, protection: i32, flags: i32) -> Result<u64, String> {
    sys("mmap", &[addr, len as u64, protection as u64, (flags | libc::MAP_ANONYMOUS) as u64, u64::MAX, 0])
}

impl Mapping {
    /// At least `pages` pages.
    pub fn new(pages: usize) -> Result<Mapping, String> {
        // Above the size from which on Farshore manages mappings.
        let len = pages.max(64) * PAGE;
        let start = map(0, len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_NORESERVE)?;
        Ok(Mapping { start, len })
    }
    /// Its first byte.
    pub fn start(&self) -> u64 {
        self.start
    }
    /// Puts something else into some of its pages.
    pub fn replace(&self, page: usize, count: usize, part: Part) -> Result<(), String> {
        assert!((page + count) * PAGE <= self.len);
        let protection = if part == Part::Hole { libc::PROT_NONE } else { libc::PROT_READ | libc::PROT_WRITE };
        map(self.start + (page * PAGE) as u64, count * PAGE, protection, libc::MAP_SHARED | libc::MAP_FIXED).map(|_| ())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // The mapping is this program's own, and nobody has its address any more.
        let _ = sys("munmap", &[self.start, self.len as u64]);
    }
}

/// Writes bytes as a program does.
pub fn write(addr: u64, bytes: &[u8]) {
    // SAFETY: the placement gave room for the bytes at the address, and no reference to it exists.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) }
}

/// Reads bytes as a program does.
pub fn read(addr: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // SAFETY: as in `write`.
    unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, bytes.as_mut_ptr(), len) }
    bytes
}

/// Reads one byte, so that its page is there and clean.
pub fn touch(addr: u64) {
    // SAFETY: the caller names a byte of a placement.
    let _ = unsafe { (addr as *const u8).read_volatile() };
}

/// Writes one byte as it is, so that its page is there and dirty.
pub fn dirty(addr: u64) {
    // SAFETY: as in `touch`.
    unsafe { (addr as *mut u8).write_volatile((addr as *const u8).read_volatile()) };
}

/// What the kernel says about a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Not there: under Farshore, a fault.
    Absent,
    /// There, and write-protected by a userfaultfd.
    Protected,
    /// There.
    Present,
}

/// `/proc/self/pagemap`.
#[derive(Debug)]
pub struct PageMap(u64);

impl PageMap {
    /// Opens it.
    pub fn open() -> Result<PageMap, String> {
        let path = c"/proc/self/pagemap";
        sys("openat", &[libc::AT_FDCWD as u64, path.as_ptr() as u64, libc::O_CLOEXEC as u64]).map(PageMap)
    }
    /// The state of the page at `addr`.
    pub fn state(&self, addr: u64) -> Result<State, String> {
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        const PROTECTED: u64 = 1 << 57;
        let mut entry = 0u64;
        sys("pread64", &[self.0, at_mut(&mut entry), 8, addr / PAGE as u64 * 8])?;
        Ok(match entry {
            _ if entry & (PRESENT | SWAPPED) == 0 => State::Absent,
            _ if entry & PROTECTED != 0 => State::Protected,
            _ => State::Present,
        })
    }
}

/// Memory that is touched until everything else has left.
#[derive(Debug)]
pub struct Ballast {
    mapping: Arc<Mapping>,
    pages: usize,
}

/// A thread that does nothing but touch the ballast.
#[derive(Debug)]
pub struct Churn {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

fn touch_page(start: u64, page: usize) {
    let at = (start + (page * PAGE) as u64) as *mut u8;
    // SAFETY: a byte of the ballast, which only this thread accesses (the churning thread and its owner take turns).
    unsafe { at.write_volatile(at.read_volatile().wrapping_add(1)) };
}

impl Ballast {
    /// So many MiB.
    pub fn new(mib: usize) -> Result<Ballast, String> {
        let pages = mib * 256;
        Ok(Ballast { mapping: Arc::new(Mapping::new(pages)?), pages })
    }
    /// Touches all of it.
    pub fn push(&self) {
        (0..self.pages).for_each(|page| touch_page(self.mapping.start(), page));
    }
    /// Starts the thread that touches it over and over.
    pub fn churn(&self) -> Churn {
        let (mapping, pages, stop) = (self.mapping.clone(), self.pages, Arc::new(AtomicBool::new(false)));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            // Signals that cases send to the process are for the thread that makes the calls.
            let all = u64::MAX;
            let _ = sys("rt_sigprocmask", &[libc::SIG_BLOCK as u64, crate::kernel::at(&all), 0, 8]);
            while !stopped.load(Ordering::Relaxed) {
                (0..pages).take_while(|_| !stopped.load(Ordering::Relaxed)).for_each(|page| touch_page(mapping.start(), page));
            }
        });
        Churn { stop, thread }
    }
}

impl Churn {
    /// Ends the thread.
    pub fn stop(self) -> Result<(), String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "the churning thread has panicked".into())
    }
}
