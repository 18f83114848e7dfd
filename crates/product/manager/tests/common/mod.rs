//! What the tests share: shared memory of this process, handed over to itself.
#![allow(dead_code)]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use farshore_core::page::{Page, PageRange};
use farshore_manager::memory::{Backing, Region, own_path};
use farshore_sys::uffd::{OpenError, Uffd, UffdOptions};
use farshore_sys::vm::{self, map, prot};
use rustix::fs::MemfdFlags;

pub const PAGE: u64 = 4096;
pub const GRANULE: u64 = 2 << 20;

/// A memfd of so many pages.
pub fn memfd(pages: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("memory", MemfdFlags::CLOEXEC).expect("every user may have one");
    rustix::fs::ftruncate(&fd, pages * PAGE).expect("it takes no memory");
    fd
}

/// The file of a memfd, as a manager has it.
pub fn backing(fd: &OwnedFd) -> Arc<Backing> {
    Arc::new(Backing::open(&own_path(fd)).expect("nobody else manages it"))
}

/// A mapping of `pages` pages of a memfd from `offset` on, that starts at a granule.
pub fn mapping(fd: &OwnedFd, pages: u64, offset: u64) -> PageRange {
    use std::os::fd::AsRawFd as _;
    // SAFETY: new addresses.
    let base = unsafe { vm::mmap(0, pages * PAGE + GRANULE, prot::NONE, map::PRIVATE | map::ANONYMOUS | map::NORESERVE, -1, 0) };
    let start = base.expect("there are addresses").next_multiple_of(GRANULE);
    // SAFETY: over the addresses that nobody else knows.
    let placed =
        unsafe { vm::mmap(start, pages * PAGE, prot::READ | prot::WRITE, map::SHARED | map::FIXED, fd.as_raw_fd(), offset) };
    assert_eq!(placed, Ok(start));
    PageRange { start: Page::containing(start), end: Page::containing(start).plus(pages) }
}

/// The region of such a mapping.
pub fn region(backing: &Arc<Backing>, pages: PageRange, offset: u64) -> Region {
    Region { pages, backing: backing.clone(), offset }
}

/// Opens a userfaultfd, or says that the test is skipped.
pub fn open(options: UffdOptions) -> Option<Uffd> {
    match Uffd::open(options) {
        Ok((uffd, _)) => Some(uffd),
        Err(why @ (OpenError::KernelFaultsNotPermitted | OpenError::NotPermitted | OpenError::NotAvailable)) => {
            println!("skipped: {why}");
            None
        }
        Err(why) => panic!("{why}"),
    }
}

/// This process' memory, as the kernel reads and writes it for debuggers: an access that faults is an error, and waits for nobody.
pub struct SelfMemory(File);

impl SelfMemory {
    pub fn open() -> SelfMemory {
        SelfMemory(File::options().read(true).write(true).open("/proc/self/mem").expect("/proc is mounted"))
    }

    pub fn read(&self, addr: u64) -> Option<u8> {
        let mut byte = [0];
        self.0.read_at(&mut byte, addr).is_ok_and(|count| count == 1).then_some(byte[0])
    }

    pub fn write(&self, addr: u64, byte: u8) -> bool {
        self.0.write_at(&[byte], addr).is_ok_and(|count| count == 1)
    }
}
