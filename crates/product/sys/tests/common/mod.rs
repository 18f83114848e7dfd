//! What the tests of this crate share: a SIGBUS handler, managed scratch memory, and running a test program again as an ordinary user.
#![allow(dead_code)]

use farshore_core::page::{Page, PageRange};
use farshore_core::seams::PageBuf;
use farshore_sys::conformance::{Fault, Scratch};
use farshore_sys::guarded;
use farshore_sys::signal::{self, Action, FaultKind, SigInfo, SigSet, UContext};
use farshore_sys::uffd::{OpenError, Uffd, UffdOptions};
use farshore_sys::vm::{self, map, prot};
use std::os::unix::process::CommandExt;
use std::sync::Once;

pub const PAGE: u64 = 4096;

unsafe extern "C" fn on_fault(_: i32, _: *mut SigInfo, context: *mut UContext) {
    // SAFETY: the kernel passes a valid context.
    if !guarded::fixup(unsafe { &mut *context }) {
        // SAFETY: the default action needs no handler. The access faults again and ends the test program.
        let _ = unsafe { signal::sigaction(signal::SIGBUS, Some(&Action::DEFAULT)) };
        // SAFETY: as above.
        let _ = unsafe { signal::sigaction(signal::SIGSEGV, Some(&Action::DEFAULT)) };
    }
}

/// Makes guarded accesses return their faults.
pub fn install_fixup() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for number in [signal::SIGBUS, signal::SIGSEGV] {
            let action = Action::new(on_fault, signal::flags::ONSTACK, SigSet::EMPTY);
            // SAFETY: the handler is async-signal-safe.
            unsafe { signal::sigaction(number, Some(&action)) }.unwrap();
        }
    });
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

/// Anonymous memory of `pages` pages that starts at a granule. Never unmapped as a whole: tests may have cut holes.
pub fn map_pages(pages: u64) -> PageRange {
    const GRANULE: u64 = 2 << 20;
    let len = pages * PAGE + GRANULE;
    // SAFETY: new memory.
    let base = unsafe { vm::mmap(0, len, prot::READ | prot::WRITE, map::PRIVATE | map::ANONYMOUS, -1, 0) }.unwrap();
    // As Farshore does: a huge page would map neighbours that must stay absent.
    // SAFETY: no byte changes.
    unsafe { vm::madvise(base, len, vm::advice::NOHUGEPAGE) }.unwrap();
    let start = Page::containing(base.next_multiple_of(GRANULE));
    PageRange { start, end: start.plus(pages) }
}

/// The same, registered.
pub fn managed(uffd: &Uffd, pages: u64) -> PageRange {
    let range = map_pages(pages);
    // SAFETY: tests touch it by guarded accesses, or serve the faults.
    unsafe { uffd.register(range.start.addr(), range.bytes()) }.unwrap();
    range
}

pub fn pointer(addr: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(addr as usize)
}

pub fn read(addr: u64) -> Result<u8, FaultKind> {
    // SAFETY: the address is scratch memory of a test.
    unsafe { guarded::read_byte(pointer(addr)) }
}

pub fn write(addr: u64, byte: u8) -> Result<(), FaultKind> {
    // SAFETY: the address is scratch memory of a test that nobody else uses.
    unsafe { guarded::write_byte(pointer(addr), byte) }
}

pub fn filled(byte: u8) -> Box<PageBuf> {
    Box::new(PageBuf([byte; 4096]))
}

pub fn copy(uffd: &Uffd, page: Page, byte: u8, protect: bool) -> Result<(), farshore_sys::uffd::UffdError> {
    let bytes = filled(byte);
    // SAFETY: the source is a box of ours.
    unsafe { uffd.copy(page.addr(), bytes.0.as_ptr() as u64, PAGE, protect, true) }
}

/// The conformance suite's memory on the real kernel.
pub struct Memory(pub PageRange);

fn fault(kind: FaultKind) -> Fault {
    if kind.present() { Fault::Protected } else { Fault::Absent }
}

impl Scratch for Memory {
    fn range(&self) -> PageRange {
        self.0
    }
    fn read(&self, addr: u64) -> Result<u8, Fault> {
        read(addr).map_err(fault)
    }
    fn write(&self, addr: u64, byte: u8) -> Result<(), Fault> {
        write(addr, byte).map_err(fault)
    }
    fn set_readable(&self, range: PageRange, readable: bool) {
        let access = if readable { prot::READ | prot::WRITE } else { prot::NONE };
        // SAFETY: scratch memory, touched by guarded accesses only.
        unsafe { vm::mprotect(range.start.addr(), range.bytes(), access) }.unwrap();
    }
    fn unmap(&self, range: PageRange) {
        // SAFETY: scratch memory, touched by guarded accesses only.
        unsafe { vm::munmap(range.start.addr(), range.bytes()) }.unwrap();
    }
    fn shows_unreadable(&self) -> bool {
        shows_unreadable()
    }
}

/// Whether `/proc/self/mem` shows memory without any protection: asked by the standard library, on a page that is no test's.
pub fn shows_unreadable() -> bool {
    use std::os::unix::fs::FileExt as _;
    let range = map_pages(1);
    write(range.start.addr(), 1).unwrap();
    // SAFETY: scratch memory, which nobody else knows.
    unsafe { vm::mprotect(range.start.addr(), PAGE, prot::NONE) }.unwrap();
    let answer = std::fs::File::open("/proc/self/mem").unwrap().read_at(&mut [0], range.start.addr());
    // SAFETY: as above.
    unsafe { vm::munmap(range.start.addr(), PAGE) }.unwrap();
    // EIO; any other error would be ours.
    answer.map_err(|error| assert_eq!(error.raw_os_error(), Some(5))).is_ok()
}

/// Runs all tests of this program again as user 65534, if this is root.
pub fn again_as_nobody() {
    const MARK: &str = "FARSHORE_TEST_AS_NOBODY";
    if std::env::var_os(MARK).is_some() {
        return;
    }
    // SAFETY: reads a number.
    let uid = unsafe { farshore_sys::raw::syscall(farshore_sys::raw::nr::GETUID, [0; 6]) };
    if uid != 0 {
        println!("skipped: already an ordinary user");
        return;
    }
    // Through /proc/self/exe, since the build directory may be closed to others.
    let output = std::process::Command::new("/proc/self/exe")
        .args(["--nocapture", "--skip", "again_as_nobody"])
        .env(MARK, "1")
        .uid(65534)
        .gid(65534)
        .output()
        .expect("starting this program as user 65534");
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "as user 65534: {}", String::from_utf8_lossy(&output.stderr));
}
