//! A SIGBUS handler that serves faults, in several threads, while another thread takes pages away: signal, tls, uffd and kernel together.

mod common;

use common::{managed, open};
use farshore_core::page::{Page, PageRange};
use farshore_core::seams::{Kernel, KernelError, PageBuf, Protect};
use farshore_sys::kernel::LinuxKernel;
use farshore_sys::own::Stack;
use farshore_sys::signal::{self, Action, How, SigInfo, SigSet, UContext};
use farshore_sys::uffd::UffdOptions;
use farshore_sys::{raw, tls};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const THREADS: u64 = 4;
const PAGES: u64 = 256;
/// How often the evictor goes over all pages.
const SWEEPS: u64 = 150;

static KERNEL: OnceLock<(LinuxKernel, PageRange)> = OnceLock::new();
/// Faults that came to a thread without its pointer.
static STRAYS: AtomicU64 = AtomicU64::new(0);

/// What the thread-local pointer points to.
#[derive(Default)]
struct Mine {
    absent: AtomicU64,
    protected: AtomicU64,
    tid: u32,
}

/// The bytes a page has until it is written: its number.
fn original(page: Page) -> PageBuf {
    let mut bytes = PageBuf::ZERO;
    for word in bytes.0.chunks_exact_mut(8) {
        word.copy_from_slice(&page.0.to_le_bytes());
    }
    bytes
}

unsafe extern "C" fn serve(_: i32, info: *mut SigInfo, context: *mut UContext) {
    // SAFETY: the kernel passes valid structures.
    let info = unsafe { &*info };
    // SAFETY: as above.
    let context = unsafe { &*context };
    let mine = tls::get().cast::<Mine>();
    // SAFETY: threads of this test point it to a value on their stack; others leave it null.
    let (Some(mine), Some((kernel, range))) = (unsafe { mine.as_ref() }, KERNEL.get()) else {
        STRAYS.fetch_add(1, Ordering::Relaxed);
        std::process::abort();
    };
    let page = Page::containing(info.fault_address());
    assert!(info.code() == signal::BUS_ADRERR && range.contains(page) && context.is_page_fault());
    assert_eq!(mine.tid, raw::gettid(), "the fault is served in the thread that made it");
    let kind = context.fault_kind();
    if kind.present() {
        assert!(kind.write());
        mine.protected.fetch_add(1, Ordering::Relaxed);
        assert_eq!(kernel.unprotect(page), Ok(()));
    } else {
        mine.absent.fetch_add(1, Ordering::Relaxed);
        let protect = if kind.write() { Protect::Writable } else { Protect::WriteProtected };
        match kernel.map(page, &original(page), protect) {
            Ok(()) | Err(KernelError::Exists) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Reads all pages, in an order of the thread's own, and writes the thread's own quarter, until told to stop.
fn work(number: u64, range: PageRange, stop: &AtomicBool) -> (u64, u64) {
    let stack = Stack::new(64 << 10).unwrap();
    // SAFETY: the stack lives until it is reset below.
    let before = unsafe { signal::sigaltstack(Some(&stack.as_alt_stack())) }.unwrap();
    let mine = Mine { tid: raw::gettid(), ..Mine::default() };
    // SAFETY: `mine` lives until it is reset below.
    unsafe { tls::set((&raw const mine).cast_mut().cast()) };
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        for i in 0..PAGES {
            let page = range.start.plus((i * 37 + number * 11 + round) % PAGES);
            let word = common::pointer(page.addr() + 8 * (i % 512)).cast::<u64>();
            // SAFETY: aligned, inside managed memory; faults are served.
            let seen = unsafe { word.read_volatile() };
            assert_eq!(seen, page.0, "a wrong word on page {page:?}");
            if page.0 % THREADS == number {
                // SAFETY: as above; the same value, so that readers cannot tell.
                unsafe { word.write_volatile(seen) };
            }
        }
    }
    // SAFETY: null is always allowed.
    unsafe { tls::set(std::ptr::null_mut()) };
    // SAFETY: puts back what was there.
    unsafe { signal::sigaltstack(Some(&before)) }.unwrap();
    (mine.absent.into_inner(), mine.protected.into_inner())
}

/// Takes pages away in batches, as an evictor does: protect, copy out, check, unmap.
fn evict(kernel: &LinuxKernel, range: PageRange) -> u64 {
    signal::sigprocmask(How::Set, SigSet::ALL.without(signal::SIGBUS));
    let mut evicted = 0;
    for sweep in 0..SWEEPS {
        for start in (0..PAGES).step_by(32) {
            let batch = PageRange { start: range.start.plus(start), end: range.start.plus(start + 32) };
            kernel.protect(batch).unwrap();
            let pages: Vec<Page> = batch.iter().filter(|page| (page.0 + sweep) % 3 != 0).collect();
            kernel.unmap(&pages).unwrap();
            evicted += pages.len() as u64;
        }
        std::thread::yield_now();
    }
    evicted
}

#[test]
fn round_trip_in_threads() {
    let Some(uffd) = open(UffdOptions::UPCALL) else { return };
    let range = managed(&uffd, PAGES);
    assert!(KERNEL.set((LinuxKernel::new(uffd, false).unwrap(), range)).is_ok());
    let action = Action::new(serve, signal::flags::ONSTACK, SigSet::ALL);
    // SAFETY: the handler makes system calls of this crate only (and panics if the test has failed).
    unsafe { signal::sigaction(signal::SIGBUS, Some(&action)) }.unwrap();
    let (kernel, stop) = (&KERNEL.get().unwrap().0, &AtomicBool::new(false));
    let (counts, evicted) = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || work(n, range, stop))).collect();
        let evicted = scope.spawn(move || evict(kernel, range)).join();
        stop.store(true, Ordering::Relaxed);
        let counts: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        (counts, evicted.unwrap())
    });
    let absent: u64 = counts.iter().map(|count| count.0).sum();
    let protected: u64 = counts.iter().map(|count| count.1).sum();
    println!("{absent} absent, {protected} protected, {evicted} pages unmapped");
    assert!(absent >= PAGES && protected > 0 && STRAYS.load(Ordering::Relaxed) == 0);
    // All still right, and readable in one copy.
    for page in range.iter() {
        let mut bytes = PageBuf::ZERO;
        match kernel.copy_out(page, &mut bytes, false) {
            Ok(()) => assert!(bytes.0 == original(page).0),
            Err(KernelError::Refused) => {} // absent just now
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn again_as_nobody() {
    common::again_as_nobody();
}
