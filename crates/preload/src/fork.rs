//! A forked child: the memory of its parent as far as that was local, no evictors, no swap space.
//!
//! Full support of fork is a later step; what is here makes sure that a child that goes on to exec or exit
//! works, and that any other never sees a wrong byte. The kernel drops a child's registration with our
//! userfaultfd, after which absent pages would read as zeros. So the child registers the managed memory with a userfaultfd of its
//! own, where an absent page faults to [`serve`]: an untouched page gets its zeros, any other stops the child with a message.
//!
//! While the call is made, the parent's thread holds the address-space lock and Farshore's heap, so that the
//! child finds both whole.

use crate::report;
use crate::runtime::{Runtime, runtime};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use farshore_core::limits::{GRANULE_PAGES, LEAF_GRANULES, LEAVES, PAGE_SIZE};
use farshore_core::page::{GranuleId, Page, PageRange};
use farshore_core::word::State;
use farshore_engine::traits::PageBuf;
use farshore_sys::raw::{gettid, nr, syscall};
use farshore_sys::signal::{self, How, SIGBUS, SigSet};
use farshore_sys::uffd::{Uffd, UffdError, UffdOptions};
use farshore_sys::vm::advice;

type Args = [u64; 6];

/// Thread id of the thread that is forking and holds the locks; 0: none.
static FORKING: AtomicU64 = AtomicU64::new(0);
/// Its signal mask before. Only used by that thread, and by its copy in the child.
static MASK: AtomicU64 = AtomicU64::new(0);
/// The child's own userfaultfd.
static CHILD_UFFD: AtomicPtr<Uffd> = AtomicPtr::new(core::ptr::null_mut());

/// Before a fork.
pub fn before() {
    let mask = signal::sigprocmask(How::Set, SigSet::ALL);
    if let Some(runtime) = runtime() {
        runtime.space.acquire();
    }
    crate::HEAP.acquire();
    MASK.store(mask.0, Ordering::Relaxed);
    FORKING.store(gettid().into(), Ordering::Release);
}

/// Whether the calling thread is between [`before`] and [`parent_after`].
pub fn is_pending() -> bool {
    FORKING.load(Ordering::Acquire) == u64::from(gettid())
}

/// In the parent: everything goes on.
pub fn parent_after() {
    release();
}

fn release() {
    let mask = SigSet(MASK.load(Ordering::Relaxed));
    FORKING.store(0, Ordering::Release);
    crate::HEAP.release();
    if let Some(runtime) = runtime() {
        runtime.space.release();
    }
    signal::sigprocmask(How::Set, mask);
}

/// In the child: its own userfaultfd over what is managed.
pub fn child_started() {
    if let Some(runtime) = runtime() {
        runtime.forked.store(true, Ordering::Release);
        match Uffd::open(UffdOptions::UPCALL) {
            Ok((uffd, _)) => {
                register_all(runtime, &uffd);
                crate::HEAP.release();
                CHILD_UFFD.store(Box::into_raw(Box::new(uffd)), Ordering::Release);
                crate::HEAP.acquire();
            }
            Err(why) => report::abort(format_args!("a forked child cannot have a userfaultfd: {why}")),
        }
    }
    release();
}

fn register_all(runtime: &Runtime, uffd: &Uffd) {
    let mut run: Option<PageRange> = None;
    let flush = |run: &mut Option<PageRange>| {
        if let Some(range) = run.take() {
            // SAFETY: absent pages fault to `serve`.
            if let Err(why) = unsafe { uffd.register(range.start.addr(), range.bytes()) } {
                report::abort(format_args!("memory of a forked child at {:?} cannot be registered ({why:?})", range.start));
            }
        }
    };
    let mut extend = |part: PageRange| match &mut run {
        Some(range) if range.end == part.start => range.end = part.end,
        _ => {
            flush(&mut run);
            run = Some(part);
        }
    };
    for leaf in 0..LEAVES as u64 {
        if runtime.engine.table.granule_even_absent(GranuleId(leaf * LEAF_GRANULES as u64)).is_none() {
            continue;
        }
        for id in (leaf * LEAF_GRANULES as u64..(leaf + 1) * LEAF_GRANULES as u64).map(GranuleId) {
            let Some(g) = runtime.engine.table.granule(id) else { continue };
            if !g.granule.touched() {
                extend(id.range());
                continue;
            }
            for i in (0..GRANULE_PAGES).filter(|&i| g.words[i].load().state() != State::Foreign) {
                let page = id.first().plus(i as u64);
                extend(PageRange { start: page, end: page.plus(1) });
            }
        }
    }
    flush(&mut run);
}

fn uffd() -> Option<&'static Uffd> {
    // SAFETY: null, or the leaked box of `child_started`.
    unsafe { CHILD_UFFD.load(Ordering::Acquire).as_ref() }
}

/// The child, or the kernel for it, needs an absent page.
pub fn serve(runtime: &Runtime, page: Page) {
    let state = runtime.engine.table.page(page).map(|at| at.word.load().state());
    if state != Some(State::Untouched) {
        stop(page);
    }
    static ZERO: PageBuf = PageBuf::ZERO;
    let Some(uffd) = uffd() else { stop(page) };
    // SAFETY: the source is a constant.
    match unsafe { uffd.copy(page.addr(), &raw const ZERO as u64, PAGE_SIZE as u64, false, false) } {
        Ok(()) | Err(UffdError::Exists | UffdError::Again { .. }) => {}
        Err(why) => report::abort(format_args!("page {page:?} of a forked child: {why}")),
    }
}

/// Stops the child: the page is in the parent's swap space.
fn stop(page: Page) -> ! {
    report::line(format_args!(
        "this forked process needs page {page:?}, which is not local; a fork may only exec or exit until fork is supported: \
         run the program with more --memory, or let it use posix_spawn"
    ));
    report::die_by(SIGBUS)
}

/// A system call of the child is about to touch managed pages: makes the untouched ones of `range` present.
pub fn prepare(runtime: &Runtime, range: PageRange) {
    for page in range.iter().filter(|&page| runtime.engine.is_managed(page)) {
        let state = runtime.engine.table.page(page).map(|at| at.word.load().state());
        if !crate::start::is_present(page) {
            if state == Some(State::Resident) {
                // Resident when the parent forked, and not here: it was in somebody's hands at that moment.
                stop(page);
            }
            serve(runtime, page);
        }
    }
}

/// Memory calls of the child: the kernel's, with the page words kept true. New memory is not managed.
pub fn memory_call(runtime: &Runtime, number: u64, args: &Args) -> i64 {
    if number == nr::BRK {
        return brk(runtime, args);
    }
    let bytes = args[1].checked_next_multiple_of(PAGE_SIZE as u64);
    let range =
        bytes.filter(|&b| args[0].checked_add(b).is_some_and(|end| end < 1 << 47)).map(|b| PageRange::covering(args[0], b));
    let managed = range.filter(|r| crate::memory::any_managed(runtime, *r));
    if number == nr::MREMAP
        && let Some(range) = managed
    {
        // The kernel drops the registration of what it moves: every page must be there.
        prepare(runtime, range);
    }
    // Freed at once, so that the words can say so.
    let frees = number == nr::MADVISE && args[2] == advice::FREE && managed.is_some();
    let what = if frees { advice::DONTNEED } else { args[2] };
    // SAFETY: the program's own call.
    let answer = unsafe { syscall(number, [args[0], args[1], what, args[3], args[4], args[5]]) };
    let Some(range) = managed.filter(|_| answer >= 0 || number == nr::MMAP && answer < -4095) else { return answer };
    match number {
        nr::MUNMAP | nr::MREMAP | nr::MMAP => runtime.engine.forget(range, false),
        nr::MADVISE if what == advice::DONTNEED => runtime.engine.forget(range, true),
        _ => {}
    }
    answer
}

fn brk(runtime: &Runtime, args: &Args) -> i64 {
    // SAFETY: asks only.
    let before = unsafe { farshore_sys::vm::brk(0) };
    // SAFETY: the program's own call.
    let after = unsafe { farshore_sys::vm::brk(args[0]) };
    if after < before {
        runtime.engine.forget(PageRange::within(after, before - after), false);
    }
    after as i64
}
