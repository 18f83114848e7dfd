//! A clean page's write protection, and an absent page's absence, survive what the kernel does to pages by itself or for others.
//!
//! All of Farshore rests on this: a write to a clean page must fault, or the page would leave with its old bytes. Each test makes the kernel
//! act, shows that it did where it can, and then writes to every clean page. What does break the protection (KSM) is shown as well, for
//! the library keeps managed memory away from it.

mod common;

use common::{PAGE, copy, install_fixup, managed, open, read, write};
use farshore_core::page::PageRange;
use farshore_sys::raw::{Errno, nr, syscall, syscall_result};
use farshore_sys::uffd::{Uffd, UffdOptions};
use farshore_sys::vm::{self, Range, SelfPidfd, advice, map, prot};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const COLLAPSE: u64 = 25;

/// Tests change the machine's settings, and would see each other's pages move.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_root() -> bool {
    // SAFETY: reads a number.
    unsafe { syscall(nr::GETUID, [0; 6]) == 0 }
}

/// Memory of three kinds of pages, in turn: clean (protected), writable, absent.
struct Pages {
    uffd: Uffd,
    range: PageRange,
}

impl Pages {
    fn new(pages: u64) -> Option<Pages> {
        install_fixup();
        let uffd = open(UffdOptions::UPCALL)?;
        let range = managed(&uffd, pages);
        let pages = Pages { uffd, range };
        pages.fill();
        Some(pages)
    }

    fn fill(&self) {
        for (n, page) in self.range.iter().enumerate().filter(|(n, _)| n % 3 != 2) {
            copy(&self.uffd, page, 5, n % 3 == 0).unwrap();
        }
    }

    /// Reads and writes every page. Afterwards it is as it was.
    fn check(&self, after: &str) {
        for (n, page) in self.range.iter().enumerate() {
            let addr = page.addr();
            match n % 3 {
                0 => {
                    assert_eq!(read(addr), Ok(5), "{after}: clean page {n}");
                    let fault = write(addr, 6).expect_err(&format!("{after}: clean page {n} was written without a fault"));
                    assert!(fault.present() && fault.write(), "{after}: clean page {n}: {fault:?}");
                }
                1 => assert_eq!((read(addr), write(addr, 5)), (Ok(5), Ok(())), "{after}: writable page {n}"),
                _ => assert!(read(addr).is_err_and(|fault| !fault.present()), "{after}: absent page {n}"),
            }
        }
    }

    fn advise(&self, what: u64) -> Result<(), Errno> {
        // SAFETY: advice that throws no byte away, on scratch memory.
        unsafe { vm::madvise(self.range.start.addr(), self.range.bytes(), what) }
    }

    /// What `/proc/self/pagemap` says of each page.
    fn entries(&self) -> Vec<u64> {
        let mut bytes = vec![0; self.range.len() as usize * 8];
        let file = std::fs::File::open("/proc/self/pagemap").unwrap();
        file.read_exact_at(&mut bytes, self.range.start.0 * 8).unwrap();
        bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
    }
}

/// A setting of the kernel, put back when dropped.
struct Setting(PathBuf, String);

impl Setting {
    fn set(path: &str, value: &str) -> Option<Setting> {
        let before = std::fs::read_to_string(path).ok()?.trim().to_owned();
        std::fs::write(path, value).ok()?;
        Some(Setting(path.into(), before))
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = std::fs::write(&self.0, &self.1);
    }
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("survives-{name}-{}", std::process::id()))
}

#[test]
fn protections_that_come_and_go() {
    let _alone = alone();
    let Some(pages) = Pages::new(96) else { return };
    // NUMA balancing takes rights away and gives them back in the same way.
    for access in [prot::NONE, prot::READ, prot::NONE] {
        // SAFETY: scratch memory, touched by guarded accesses only.
        unsafe { vm::mprotect(pages.range.start.addr(), pages.range.bytes(), access) }.unwrap();
        // SAFETY: as above.
        unsafe { vm::mprotect(pages.range.start.addr(), pages.range.bytes(), prot::READ | prot::WRITE) }.unwrap();
        pages.check("mprotect");
    }
}

#[test]
fn advice_from_oneself_and_by_process_madvise() {
    let _alone = alone();
    let Some(pages) = Pages::new(96) else { return };
    let other = [SelfPidfd::open().unwrap(), SelfPidfd::Constant];
    for what in [advice::COLD, advice::PAGEOUT, advice::WILLNEED] {
        pages.advise(what).unwrap();
        pages.check("madvise");
        for pidfd in &other {
            let range = Range { addr: pages.range.start.addr(), len: pages.range.bytes() };
            let args = [pidfd.number() as i64 as u64, (&raw const range) as u64, 1, what, 0, 0];
            // SAFETY: the range is borrowed; advice that throws no byte away, on scratch memory. Kernels without the constant refuse it.
            let _ = unsafe { syscall_result(nr::PROCESS_MADVISE, args) };
            pages.check("process_madvise");
        }
    }
}

#[test]
fn swap_of_the_kernels_and_its_end() {
    const SWAPON: u64 = 167;
    const SWAPOFF: u64 = 168;
    let _alone = alone();
    let Some(pages) = Pages::new(384) else { return };
    if !is_root() {
        println!("skipped: a swap file is switched on by root");
        return;
    }
    // The header of a swap file of 8 MiB, and no holes in it.
    let path = scratch("swap");
    let mut bytes = vec![0u8; 8 << 20];
    bytes[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    bytes[1028..1032].copy_from_slice(&2047u32.to_ne_bytes());
    bytes[4086..4096].copy_from_slice(b"SWAPSPACE2");
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path).unwrap();
    file.write_all(&bytes).unwrap();
    file.sync_all().unwrap();
    let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: the kernel reads the name.
    let on = unsafe { syscall_result(SWAPON, [name.as_ptr() as u64, 0, 0, 0, 0, 0]) };
    if let Err(why) = on {
        std::fs::remove_file(&path).unwrap();
        println!("skipped: no swap file here ({why:?})");
        return;
    }
    let away = |pages: &Pages| pages.entries().iter().filter(|entry| **entry & SWAPPED != 0).count();
    let mut most = 0;
    for _ in 0..20 {
        pages.advise(advice::PAGEOUT).unwrap();
        most = most.max(away(&pages));
    }
    pages.check("swapped in by touching");
    pages.advise(advice::PAGEOUT).unwrap();
    let again = away(&pages);
    // SAFETY: the kernel reads the name.
    let off = unsafe { syscall_result(SWAPOFF, [name.as_ptr() as u64, 0, 0, 0, 0, 0]) };
    std::fs::remove_file(&path).unwrap();
    assert_eq!(off, Ok(0));
    pages.check("swapped in by swapoff");
    if most == 0 {
        println!("skipped: the kernel has swapped nothing out");
    } else {
        println!("{most} and {again} of {} pages were swapped out", pages.range.len());
    }
}

#[test]
fn compaction_and_migration() {
    let _alone = alone();
    let Some(pages) = Pages::new(3 * 512) else { return };
    let before = pages.entries();
    if std::fs::write("/proc/sys/vm/compact_memory", "1").is_err() {
        println!("skipped: compaction is started by root");
        return;
    }
    let after = pages.entries();
    let moved = before.iter().zip(&after).filter(|(a, b)| **a & PRESENT != 0 && a != b).count();
    pages.check("compaction");
    println!("{moved} of {} pages have moved", pages.range.len());
    if moved == 0 {
        println!("skipped: compaction has moved none of these pages");
    }
}

#[test]
fn huge_pages() {
    let _alone = alone();
    let Some(pages) = Pages::new(1024) else { return };
    // As managed memory is (`MADV_NOHUGEPAGE`), and as it would be if somebody changed that.
    let refused = pages.advise(COLLAPSE);
    pages.check("a collapse that is refused");
    println!("with MADV_NOHUGEPAGE: {refused:?}");
    pages.advise(advice::HUGEPAGE).unwrap();
    let asked = pages.advise(COLLAPSE);
    pages.check("a collapse that was asked for");
    println!("with MADV_HUGEPAGE: {asked:?}");
    // Memory without absent or clean pages may become a huge page. One page of it is protected, another leaves.
    let whole = managed(&pages.uffd, 512);
    whole.iter().for_each(|page| copy(&pages.uffd, page, 5, false).unwrap());
    // SAFETY: changes no byte of scratch memory.
    let advise = |what| unsafe { vm::madvise(whole.start.addr(), whole.bytes(), what) };
    let collapsed = advise(advice::HUGEPAGE).and_then(|()| advise(COLLAPSE));
    println!("of writable pages alone: {collapsed:?}");
    let at = |n: u64| whole.start.plus(n).addr();
    pages.uffd.protect(at(7), PAGE).unwrap();
    // SAFETY: scratch memory.
    unsafe { vm::madvise(at(9), PAGE, advice::DONTNEED) }.unwrap();
    for n in 0..512 {
        match n {
            7 => assert!(write(at(n), 6).is_err_and(|fault| fault.present()), "page {n}"),
            9 => assert!(read(at(n)).is_err_and(|fault| !fault.present()), "page {n}"),
            _ => assert_eq!((read(at(n)), write(at(n), 5)), (Ok(5), Ok(())), "page {n}"),
        }
    }
}

#[test]
fn debuggers_and_whoever_looks_which_pages_are_written() {
    let _alone = alone();
    let Some(pages) = Pages::new(96) else { return };
    let memory = std::fs::OpenOptions::new().read(true).write(true).open("/proc/self/mem").unwrap();
    for page in pages.range.iter() {
        // As a debugger writes, over the program's protection. It fails where the program would have to fault.
        let _ = memory.write_at(&[5], page.addr());
    }
    pages.check("/proc/self/mem");
    for what in ["1", "4"] {
        std::fs::write("/proc/self/clear_refs", what).unwrap();
        pages.check("clear_refs");
    }
}

#[test]
fn forks_and_direct_io_from_pages_that_are_shared() {
    const FORK: u64 = 57;
    const WAIT4: u64 = 61;
    const KILL: u64 = 62;
    const PAUSE: u64 = 34;
    const O_DIRECT: i32 = 0o40000;
    let _alone = alone();
    let Some(pages) = Pages::new(96) else { return };
    // SAFETY: the child makes one call, which never returns, until it is killed.
    let child = unsafe { syscall(FORK, [0; 6]) };
    if child == 0 {
        loop {
            // SAFETY: touches no memory.
            unsafe { syscall(PAUSE, [0; 6]) };
        }
    }
    pages.check("a fork");
    let path = scratch("direct");
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).custom_flags(O_DIRECT).open(&path);
    if let Ok(file) = &file {
        for (n, page) in pages.range.iter().enumerate().filter(|(n, _)| n % 3 != 2) {
            // SAFETY: a page that is there; the kernel reads it while the slice is borrowed.
            let bytes = unsafe { std::slice::from_raw_parts(common::pointer(page.addr()), PAGE as usize) };
            let _ = file.write_at(bytes, n as u64 * PAGE);
        }
        pages.check("direct I/O from pages that a child shares");
        std::fs::remove_file(&path).unwrap();
    } else {
        println!("skipped: no direct I/O here");
    }
    // SAFETY: our own child.
    unsafe { syscall(KILL, [child as u64, 9, 0, 0, 0, 0]) };
    // SAFETY: no status is asked for.
    unsafe { syscall(WAIT4, [child as u64, 0, 0, 0, 0, 0]) };
    pages.check("the end of a child");
}

/// ksmd may merge what is mergeable, and nothing else. What it does to a clean page is why managed memory never is.
#[test]
fn merging() {
    const UNMERGEABLE: u64 = 13;
    const KSM: &str = "/sys/kernel/mm/ksm";
    let _alone = alone();
    let Some(pages) = Pages::new(384) else { return };
    let setting = |name: &str, value: &str| Setting::set(&format!("{KSM}/{name}"), value);
    let Some(_scan) = setting("pages_to_scan", "20000") else {
        println!("skipped: KSM is switched on by root, where the kernel has it");
        return;
    };
    let (_sleep, _smart, _run) = (setting("sleep_millisecs", "2"), setting("smart_scan", "0"), setting("run", "1"));
    // Something that is merged, so that ksmd does not rest.
    let bait = pages.range.bytes();
    // SAFETY: new memory.
    let base = unsafe { vm::mmap(0, bait, prot::READ | prot::WRITE, map::PRIVATE | map::ANONYMOUS, -1, 0) }.unwrap();
    (0..bait).step_by(8).for_each(|at| {
        // SAFETY: inside of the mapping, which nobody else knows.
        unsafe { common::pointer(base + at).cast::<u64>().write(u64::from_ne_bytes([5; 8])) }
    });
    // SAFETY: changes no byte.
    unsafe { vm::madvise(base, bait, advice::MERGEABLE) }.unwrap();
    let scans = || std::fs::read_to_string(format!("{KSM}/full_scans")).ok()?.trim().parse::<u64>().ok();
    let wait = || {
        let until = scans().unwrap_or(0) + 5;
        (0..1000).take_while(|_| scans().is_some_and(|now| now < until)).for_each(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
        });
    };
    wait();
    pages.check("ksmd, which must let memory alone that is not mergeable");
    pages.advise(advice::MERGEABLE).unwrap();
    wait();
    let clean = || pages.range.iter().step_by(3);
    let lost = clean().filter(|page| write(page.addr(), 6).is_ok()).count();
    println!("of mergeable memory {lost} of {} clean pages have lost their protection", clean().count());
    pages.advise(UNMERGEABLE).unwrap();
    // SAFETY: nobody uses it.
    unsafe { vm::munmap(base, bait) }.unwrap();
}

#[test]
fn again_as_nobody() {
    common::again_as_nobody();
}
