//! `fork`: the parent's quiet moment, and the child's own engine.
//!
//! ```text
//!  before:         signals blocked ▶ address-space lock ▶ engine quiet ▶ a line in the ledger, slots shared
//!                  ▶ our heap and records held ▶ the call
//!  in the parent:  held things let go ▶ engine goes on (after an error: slots shared no more)
//!  in the child:   userfaultfd of its own, over what its parent manages ▶ swap space on top of the parent's
//!                  ▶ an engine around the parent's page words ▶ the calling thread's pins again
//! ```
//!
//! Farshore's threads are not made here but when the child first needs them ([`crate::ground::own_threads`]): most children exec. In poll
//! mode it needs them at once.
//!
//! What the child has: a copy of the parent's memory, in which resident pages are shared until one of the two writes. All other
//! pages are in the parent's slots, which are read-only for both and held as long as the child, or a fork of it, lives
//! ([`crate::family`]).

use crate::control::{chosen, policies};
use crate::family::{self, Child};
use crate::ground::own_threads::{knock, rights};
use crate::ground::report;
use crate::ground::runtime::{FORKING, Parts, Runtime, Space, locked, replace, runtime};
use crate::ground::withheld::{self, Kept};
use crate::ground::{count, files, own_threads, parts, thread, unithreads};
use crate::signals;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use farshore_backend::AnyBackend;
use farshore_backend::faulty::FaultConfig;
use farshore_backend::layered::Layered;
use farshore_config::{FaultMode, Options};
use farshore_core::page::PageRange;
use farshore_core::seams::{Clock as _, Spaces as _};
use farshore_core::word::State;
use farshore_engine::Engine;
use farshore_engine::fork::Inheritance;
use farshore_net::asynchronous;
use farshore_sys::clock::MonotonicClock;
use farshore_sys::futex::KernelFutex;
use farshore_sys::kernel::LinuxKernel;
use farshore_sys::raw::{Errno, gettid, nr, syscall};
use farshore_sys::signal::{self, How, SigSet};
use farshore_sys::uffd::Uffd;
use farshore_sys::vm::SelfMem;

const CLONE_FILES: u64 = 0x400;

/// What is remembered from before the call until after it. The forking thread and its copy use it, under the address-space lock.
struct Pending {
    mask: SigSet,
    flags: u64,
    child: Option<Child>,
    /// What the child does not have as its parent has it.
    kept: Vec<Kept>,
}

struct Place(UnsafeCell<Option<Pending>>);
// SAFETY: see `Pending`.
unsafe impl Sync for Place {}

static PENDING: Place = Place(UnsafeCell::new(None));
/// Forks so far, in this process.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Takes what [`before`] has left.
fn pending() -> Option<Pending> {
    // SAFETY: called by the thread that holds the address-space lock since `before`, or by its copy in the child.
    unsafe { (*PENDING.0.get()).take() }
}

/// Prepares a fork. Returns 0, or the errno with which the fork fails.
pub fn before(flags: u64) -> i64 {
    let Some(runtime) = runtime() else { return 0 };
    let mask = signal::sigprocmask(How::Set, SigSet::ALL);
    // Before the address-space lock, which requests take while they hold it.
    asynchronous::hold();
    runtime.space.acquire();
    knock::put_off();
    signal::sigprocmask(How::Set, SigSet::ALL.without(signal::SIGBUS).without(signal::SIGSEGV));
    FORKING.store(gettid(), Ordering::Relaxed);
    let kept = withheld::ranges();
    let prepared = match runtime.engine.quiesce().map(|()| kept) {
        Ok(Ok(kept)) => family::before_fork(runtime).map(|child| (child, kept)).inspect_err(|&why| family::refused(why)),
        Ok(Err(why)) => {
            report::line(format_args!(
                "fork: /proc/self/smaps does not tell which memory the program keeps from children ({why:?})"
            ));
            Err(Errno::ENOMEM)
        }
        Err(unsaved) => {
            report::line(format_args!(
                "fork: {unsaved} pages cannot be written to the swap space now, and a child could not read them; make room there"
            ));
            Err(Errno::ENOMEM)
        }
    };
    match prepared {
        Ok((child, kept)) => {
            // SAFETY: under the address-space lock.
            unsafe { *PENDING.0.get() = Some(Pending { mask, flags, child: Some(child), kept }) };
            FORKS.fetch_add(1, Ordering::Relaxed);
            // From here on handlers would wait for what this thread holds.
            signal::sigprocmask(How::Set, SigSet::ALL);
            signals::hold();
            thread::hold_records();
            chosen::hold();
            crate::ground::HEAP.acquire();
            0
        }
        Err(why) => {
            let_go(runtime, mask);
            -i64::from(why.0)
        }
    }
}

fn let_go(runtime: &Runtime, mask: SigSet) {
    FORKING.store(0, Ordering::Relaxed);
    runtime.engine.resume();
    signal::sigprocmask(How::Set, SigSet::ALL);
    runtime.space.release();
    asynchronous::let_go();
    knock::end_put_off();
    signal::sigprocmask(How::Set, mask);
}

/// Ends a fork in the parent, with the call's result.
pub fn parent_after(result: i64) {
    let Some(runtime) = runtime() else { return };
    let Some(Pending { mask, flags, child, kept }) = pending() else {
        report::abort(format_args!("bug: a fork ends that was not begun"))
    };
    crate::ground::HEAP.release();
    chosen::let_go();
    drop(kept);
    thread::let_records_go();
    signals::let_go();
    if let Some(child) = child {
        family::in_parent(runtime, child, u32::try_from(result).unwrap_or(0), flags & CLONE_FILES == 0);
    }
    let_go(runtime, mask);
}

/// Ends a fork in the child, before it runs any code of the program.
pub fn child_started() {
    let Some(parents) = runtime() else { return };
    let Some(Pending { mask, flags, child, kept }) = pending() else {
        report::abort(format_args!("bug: a fork begins that was not prepared"))
    };
    FORKING.store(gettid(), Ordering::Relaxed);
    crate::ground::HEAP.release();
    chosen::let_go();
    asynchronous::begin_child();
    thread::others_are_gone();
    unithreads::forget();
    farshore_net::buffers::share::forget(thread::current().is_some_and(|thread| thread.held.is_keeper()));
    signals::begin_child();
    let listener = knock::descriptor();
    own_threads::forget();
    policies::forget();
    let own_files = flags & CLONE_FILES == 0;
    if let Some(child) = child {
        family::in_child(child, own_files);
    }
    let mine = match adopt(parents, own_files, listener, &kept) {
        // SAFETY: this is the child's only thread; a handler that forks has interrupted code that does not hold the lock, since
        // that has signals blocked. `adopt` has moved on what stays in use.
        Ok(runtime) => unsafe { replace(runtime) },
        Err(why) => report::abort(format_args!("a forked child cannot go on: {why}")),
    };
    files::begin_child(mine, own_files);
    mine.note_own_fds();
    count::is_alone();
    mine.running.store(true, Ordering::Release);
    FORKING.store(0, Ordering::Relaxed);
    if mine.options.fault == FaultMode::Poll && !own_threads::ensure_now(mine) {
        report::abort(format_args!("a forked child cannot go on: in poll mode its faults need threads"));
    }
    // The kernel tells nobody of the pages that it copies for this process, which may never fault: somebody has to count them. Where there can be no
    // thread now, the first fault makes it.
    if family::wants_kin() {
        let _ = locked(mine, |_| own_threads::start_kin());
    }
    // The parent may end, and this process sleep: then nobody else tells the server that its pages are wanted. Where there can be no thread now, the first fault makes it.
    if own_threads::must_keep(mine) {
        own_threads::ensure_now(mine);
    }
    signal::sigprocmask(How::Set, mask);
}

/// Builds the child's runtime around the page words in its copy of the parent's.
fn adopt(parents: &'static Runtime, own_files: bool, listener: Option<i32>, kept: &[Kept]) -> Result<Runtime, String> {
    let old = &parents.engine;
    if own_files {
        close_parents(parents, listener);
    }
    let uffd = parts::raise_uffd(parts::open_uffd(&parents.options)?);
    register_all(parents, &uffd, kept)?;
    let memory = SelfMem::for_child().raise(parts::lowest_own_descriptor());
    let kernel = LinuxKernel::with_parts(uffd, old.kernel.advice().for_child(), memory, parents.options.fault == FaultMode::Poll)
        .on_shortage(own_threads::short_of_frames)
        .with_own_threads(rights::is_ours)
        .with_huge_pages(old.kernel.huge_way().and_then(|way| parts::huge_way(way.source)));
    let shape = family::child_shape(parents);
    // SAFETY: the parent's engine is not used in this process from here on; its words have one user.
    let table = unsafe { core::ptr::read(&raw const old.table) };
    // SAFETY: as above, for its slots.
    let mut slots = unsafe { core::ptr::read(&raw const old.slots) };
    let first_own = slots.begin_own(old.backend.capacity());
    let thread = thread::current().ok_or("the thread that forked has no record")?;
    let from =
        Inheritance { table, slots, stages: old.stages(), managed: old.stats.managed(), keep_pins: !thread.held.is_complete() };
    let keep_pins = from.keep_pins;
    // Locks are not inherited.
    old.backend.lock_keys().map_err(|why| why.to_string())?;
    // SAFETY: the parent's copy is not used in this process from here on, and not dropped.
    let base: &'static AnyBackend = Box::leak(Box::new(unsafe { core::ptr::read(&raw const old.backend) }));
    base.forked(!own_files);
    let options = parents.options_now();
    let capacities = parents.swap_now().1;
    let open = own_space(&options, parents.faults.clone());
    let backend = AnyBackend::Layered(Box::new(Layered::new(base, first_own, capacities, open)));
    if own_files {
        backend.close_shut();
    }
    // SAFETY: fresh memory of that size; the parent was quiet.
    let engine = unsafe {
        Engine::for_child(
            shape,
            kernel,
            backend,
            parts::policy(&options)?,
            MonotonicClock::new(),
            KernelFutex,
            parts::staging(shape)?,
            from,
        )
    };
    let engine = engine.map_err(|(page, word)| format!("bug: page {page:?} was {word:?} when its parent forked"))?;
    family::set_first_budget(&engine);
    withheld::leave_out(&engine, kept).map_err(|why| format!("its wiped memory cannot be registered ({why:?})"))?;
    if !keep_pins {
        pin_again(&engine, thread);
    }
    // SAFETY: the lock is held, by this thread's copy in the parent; the child has only this thread.
    let space = unsafe { parents.space.peek() };
    let space = Space { heap_floor: space.heap_floor, brk: space.brk, locked: space.locked, small: space.small.clone() };
    Ok(Parts {
        engine,
        options,
        space,
        shape,
        faults: parents.faults.clone(),
        first: false,
        started_ns: MonotonicClock::new().now_ns(),
        program: parents.program.clone(),
    }
    .assemble())
}

/// Pins again the pages that a call of this thread had pinned, when a signal handler that forks has interrupted that call.
fn pin_again(engine: &crate::ground::runtime::TheEngine, thread: &thread::Thread) {
    let again = |page| {
        if let Some(word) = engine.table.word_for_unpin(page) {
            word.pin_again();
        }
    };
    thread.held.each(again);
}

/// How the child's own swap space is opened, when it is first needed.
fn own_space(options: &Options, faults: Option<FaultConfig>) -> farshore_backend::layered::Open {
    let (swap, encrypt, said) = (options.swap.clone(), options.encrypt, AtomicBool::new(false));
    Box::new(move || {
        AnyBackend::open_with(&swap, encrypt, true, faults.as_ref(), &mut |_| {})
            // The evictor that asks for the space only learns that there is none, and asks again and again.
            .inspect_err(|why| {
                if !said.swap(true, Ordering::Relaxed) {
                    report::line(format_args!("a forked child has no swap space of its own: {why}"));
                }
            })
    })
}

/// Closes the parent's descriptors that are of no use here: its userfaultfd, its views of its memory, its rings. The swap files
/// stay.
fn close_parents(parents: &Runtime, listener: Option<i32>) {
    let kernel = &parents.engine.kernel;
    let close = |fd: i32| {
        // SAFETY: a copy of a descriptor of the parent's, which only the parent's engine would use.
        let _ = unsafe { syscall(nr::CLOSE, [fd as u64, 0, 0, 0, 0, 0]) };
    };
    close(kernel.uffd().fd().raw());
    kernel.memory().fd().into_iter().for_each(|fd| close(fd.raw()));
    kernel.huge_way().into_iter().for_each(|way| close(way.pagemap.fd().raw()));
    listener.into_iter().for_each(close);
    parents.engine.backend.take_rings().into_iter().for_each(close);
}

/// Registers what the parent manages and the child has, run by run.
fn register_all(parents: &Runtime, uffd: &Uffd, kept: &[Kept]) -> Result<(), String> {
    let mut run: Option<PageRange> = None;
    let flush = |range: PageRange| {
        // SAFETY: this process' engine serves faults on it before any code of the program runs.
        unsafe { uffd.register(range.start.addr(), range.bytes()) }
            .map_err(|why| format!("its memory at {:?} cannot be registered ({why:?})", range.start))
    };
    let mut granules: Vec<_> = parents.engine.table.granules().collect();
    granules.sort_unstable_by_key(|g| g.id.0);
    for g in granules {
        let parts: &mut dyn Iterator<Item = PageRange> =
            if g.granule.touched() { &mut managed_parts(&g) } else { &mut core::iter::once(g.id.range()) };
        for part in parts.flat_map(|part| withheld::without_gone(part, kept)) {
            match &mut run {
                Some(range) if range.end == part.start => range.end = part.end,
                _ => run.replace(part).map_or(Ok(()), flush)?,
            }
        }
    }
    run.map_or(Ok(()), flush)
}

/// The runs of managed pages of a granule.
fn managed_parts<'g>(g: &farshore_core::table::GranuleRef<'g>) -> impl Iterator<Item = PageRange> + use<'g> {
    let (first, words) = (g.id.first(), g.words);
    let managed = move |&i: &usize| words[i].load().state() != State::Foreign;
    let mut next = 0;
    core::iter::from_fn(move || {
        let start = (next..words.len()).find(managed)?;
        let end = (start..words.len()).find(|i| !managed(i)).unwrap_or(words.len());
        next = end;
        Some(PageRange { start: first.plus(start as u64), end: first.plus(end as u64) })
    })
}
