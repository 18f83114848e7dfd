//! The engine on swap spaces that fail, with real threads: evictors, a watcher, and threads that write and check pages. Only
//! the page tables are pretended, so that a page is touched under a pin.
//!
//! The allocator of this program counts what evictors and faulting threads allocate: nothing, for the memory that an
//! allocation waits for may be what they are about to make free.

mod common;

use common::Dir;
use farshore_backend::AnyBackend;
use farshore_backend::faulty::{FaultConfig, Faulty, Kind};
use farshore_backend::file::{FileArray, FileOptions};
use farshore_backend::mirror::Mirror;
use farshore_backend::ram::RamSpace;
use farshore_config::{Size, SwapSpec};
use farshore_core::page::{Access, Page, PageRange};
use farshore_core::seams::{Backend, Kernel, KernelError, PageBuf, Protect, Spaces, World};
use farshore_core::word::State;
use farshore_engine::evict::pipeline::Evictor;
use farshore_engine::fault::pins::Pinned;
use farshore_engine::fault::resolve::Failure;
use farshore_engine::health::{Change, News, Watcher};
use farshore_engine::prefetch::Reader;
use farshore_engine::stats::Count;
use farshore_engine::{Engine, Nodes, Shape};
use farshore_policy::{BuiltIn, Chosen, prefetch};
use farshore_random::Rng;
use farshore_sys::clock::MonotonicClock;
use farshore_sys::futex::KernelFutex;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, mpsc};
use std::time::Duration;

struct Counting;

thread_local! {
    static FORBIDDEN: Cell<bool> = const { Cell::new(false) };
}
static FORBIDDEN_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

fn count() {
    if FORBIDDEN.get() {
        FORBIDDEN_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: the system's allocator, and a count.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(place, layout) }
    }
    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

/// First page of the memory that is pretended.
const FIRST: u64 = 1 << 20;
const ABSENT: u8 = 0;
const WRITABLE: u8 = 1;
const PROTECTED: u8 = 2;

/// Page tables that are pretended: a page is touched by the thread that has pinned it.
struct Tables {
    bytes: Box<[UnsafeCell<PageBuf>]>,
    rights: Box<[AtomicU8]>,
    /// Called when pages have been mapped with zeros, and are in the fault's hands still.
    on_zeros: OnceLock<Box<dyn Fn(Page) + Send + Sync>>,
}

// SAFETY: a page's bytes are used by its owner (`Busy`) or by the thread that has pinned it, never both: the engine's protocol.
unsafe impl Sync for Tables {}

impl Tables {
    fn new(pages: usize) -> Tables {
        Tables {
            bytes: (0..pages).map(|_| UnsafeCell::new(PageBuf::ZERO)).collect(),
            rights: (0..pages).map(|_| AtomicU8::new(ABSENT)).collect(),
            on_zeros: OnceLock::new(),
        }
    }
    fn right(&self, page: Page) -> &AtomicU8 {
        &self.rights[(page.0 - FIRST) as usize]
    }
    fn place(&self, page: Page) -> *mut PageBuf {
        self.bytes[(page.0 - FIRST) as usize].get()
    }
}

impl Kernel for Tables {
    fn map(&self, page: Page, bytes: &PageBuf, protect: Protect) -> Result<(), KernelError> {
        if self.right(page).load(Ordering::Acquire) != ABSENT {
            return Err(KernelError::Exists);
        }
        // SAFETY: the caller owns the page.
        unsafe { core::ptr::copy_nonoverlapping(bytes, self.place(page), 1) };
        self.right(page).store(if protect == Protect::Writable { WRITABLE } else { PROTECTED }, Ordering::Release);
        Ok(())
    }
    fn map_zeros(&self, first: Page, count: u64) -> Result<u64, KernelError> {
        (0..count).try_for_each(|n| self.map(first.plus(n), &PageBuf::ZERO, Protect::Writable))?;
        if let Some(look) = self.on_zeros.get() {
            look(first);
        }
        Ok(count)
    }
    fn protect(&self, range: PageRange) -> Result<(), KernelError> {
        for page in range.iter() {
            let _ = self.right(page).compare_exchange(WRITABLE, PROTECTED, Ordering::AcqRel, Ordering::Relaxed);
        }
        Ok(())
    }
    fn unprotect(&self, page: Page) -> Result<(), KernelError> {
        self.right(page).store(WRITABLE, Ordering::Release);
        Ok(())
    }
    fn copy_out(&self, page: Page, into: &mut PageBuf, _readable: bool) -> Result<(), KernelError> {
        // SAFETY: the caller owns the page.
        unsafe { core::ptr::copy_nonoverlapping(self.place(page), into, 1) };
        Ok(())
    }
    fn unmap(&self, pages: &[Page]) -> Result<(), (usize, KernelError)> {
        for &page in pages {
            // SAFETY: the caller owns the page. Its bytes are nobody's from now on.
            unsafe { (*self.place(page)).0.fill(0xEE) };
            self.right(page).store(ABSENT, Ordering::Release);
        }
        Ok(())
    }
    fn current_thread(&self) -> u64 {
        farshore_sys::tls::thread_pointer()
    }
}

struct Over<B>(core::marker::PhantomData<B>);

impl<B: Backend> World for Over<B> {
    type Kernel = Tables;
    type Backend = B;
    type Policy = Chosen;
    type Clock = MonotonicClock;
    type Futex = KernelFutex;
    type Tracer = ();
}

type TheEngine<B> = Engine<Over<B>>;

struct Rig<B: Backend> {
    engine: TheEngine<B>,
    pages: u64,
    stop: AtomicBool,
    /// What was said of which space.
    news: Mutex<Vec<(Option<usize>, Change)>>,
}

impl<B: Backend> Rig<B> {
    fn new(backend: B, pages: u64, evictors: usize) -> Rig<B> {
        let shape = Shape {
            memory: 4 << 20,
            evictors,
            cores: 2,
            nodes: Nodes::ONE,
            wanted: Default::default(),
            ablated: Default::default(),
        };
        let staging = vec![PageBuf::ZERO; shape.sizes().stages as usize].leak();
        let tables = Tables::new(pages as usize);
        let (clock, futex) = (MonotonicClock::new(), KernelFutex);
        let policy = Chosen::new(BuiltIn::SecondChance, prefetch::BuiltIn::None);
        // SAFETY: `staging` is that many pages, leaked, and nobody else's.
        let engine = unsafe { Engine::new(shape, tables, backend, policy, clock, futex, staging.as_mut_ptr()) };
        engine.manage(PageRange { start: Page(FIRST), end: Page(FIRST + pages) });
        Rig { engine, pages, stop: AtomicBool::new(false), news: Mutex::new(Vec::with_capacity(1000)) }
    }

    /// Runs `work` beside evictors and a watcher. A run that hangs ends the test program.
    fn run<R>(&self, evictors: usize, work: impl FnOnce() -> R) -> R {
        let (over, watched) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            if watched.recv_timeout(Duration::from_secs(240)) == Err(mpsc::RecvTimeoutError::Timeout) {
                for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
                    let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
                    eprintln!("{:?}: {} {} {}", task.path(), read("wchan"), read("syscall").trim(), read("stack"));
                }
                eprintln!("the run hangs");
                std::process::abort();
            }
        });
        let ready = std::sync::Barrier::new(evictors + 2);
        let result = std::thread::scope(|scope| {
            for id in 0..evictors {
                let (engine, stop, ready) = (&self.engine, &self.stop, &ready);
                scope.spawn(move || {
                    let mut evictor = Evictor::new(id, engine).unwrap();
                    ready.wait();
                    FORBIDDEN.set(true);
                    evictor.run(stop);
                    FORBIDDEN.set(false);
                });
            }
            let ready = &ready;
            scope.spawn(move || {
                let mut watcher = Watcher::new();
                // Its first look stocks what evictors need.
                watcher.look(&self.engine, &mut |_| {});
                ready.wait();
                let mut no_reader = || Reader::Never;
                let mut tell = |news: News| {
                    self.news.lock().unwrap().push((self.engine.slots.space_of(news.slot), news.change));
                };
                watcher.run(&self.engine, &self.stop, &mut tell, &mut no_reader, &mut || None);
            });
            ready.wait();
            let result = work();
            self.stop.store(true, Ordering::Release);
            self.engine.set_memory_limit(1 << 30).unwrap();
            self.engine.wake_watcher();
            result
        });
        drop(over);
        result
    }

    /// Touches page `n` for writing: it must hold `expected`, and holds `then` afterwards.
    fn touch(&self, core: usize, n: u64, expected: u64, then: u64, buffer: &mut [PageBuf]) -> Result<(), Failure> {
        let page = Page(FIRST + n);
        assert_eq!(self.engine.pin(page, Access::Write, core, buffer)?, Pinned::Held);
        // SAFETY: it is pinned, and only this thread uses page `n` (`Worker`).
        let bytes = unsafe { &mut (*self.engine.kernel.place(page)).0 };
        let (at_start, at_end) = (stamp_at(bytes, 0), stamp_at(bytes, 4088));
        assert!(at_start == expected && at_end == expected, "page {n}: {at_start:#x} {at_end:#x}, not {expected:#x}");
        bytes[..8].copy_from_slice(&then.to_le_bytes());
        bytes[4088..].copy_from_slice(&then.to_le_bytes());
        self.engine.unpin(page);
        Ok(())
    }

    /// One thread that fills its own pages, goes over them at random until `go_on` says no, and reads them all in the end. How many
    /// touches failed.
    fn work(&self, worker: u64, workers: u64, go_on: &(dyn Fn() -> bool + Sync)) -> u64 {
        let mine = self.pages / workers;
        let mut stamps = vec![0u64; mine as usize];
        let mut buffer = vec![PageBuf::ZERO; 16];
        let mut random = Rng::new(worker);
        let (mut failed, mut round) = (0, 0);
        FORBIDDEN.set(true);
        while go_on() {
            for _ in 0..1000 {
                // In order at first, then at random, with runs.
                let n = if round < mine { round } else { random.below(mine) };
                round += 1;
                let then = round << 16 | worker;
                match self.touch(worker as usize, worker * mine + n, stamps[n as usize], then, &mut buffer) {
                    Ok(()) => stamps[n as usize] = then,
                    Err(_) => failed += 1,
                }
            }
        }
        FORBIDDEN.set(false);
        for n in 0..mine {
            let expected = stamps[n as usize];
            // What cannot be had now can be had later: the fault was in the transfer.
            while let Err(why) = self.touch(worker as usize, worker * mine + n, expected, expected, &mut buffer) {
                assert!(matches!(why, Failure::Transfer(_) | Failure::NoFrames), "{why}");
                failed += 1;
            }
        }
        failed
    }

    fn work_all(&self, workers: u64, go_on: impl Fn() -> bool + Sync) -> u64 {
        let go_on: &(dyn Fn() -> bool + Sync) = &go_on;
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..workers).map(|worker| scope.spawn(move || self.work(worker, workers, go_on))).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        })
    }

    fn evicted(&self) -> u64 {
        self.engine.stats.total(Count::Evicted)
    }

    fn said(&self, is: impl Fn(&Change) -> bool) -> bool {
        self.news.lock().unwrap().iter().any(|(_, change)| is(change))
    }

    fn said_of(&self, space: usize) -> Vec<Change> {
        self.news.lock().unwrap().iter().filter(|(of, _)| *of == Some(space)).map(|(_, change)| *change).collect()
    }

    /// Waits until the watcher has said so.
    fn wait_for(&self, is: impl Fn(&Change) -> bool + Copy) {
        while !self.said(is) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn stamp_at(bytes: &[u8; 4096], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn files(place: &Dir, count: usize, options: FileOptions) -> FileArray {
    FileArray::open(&vec![SwapSpec::Dir(place.0.clone()); count], options, &mut |_| {}).unwrap()
}

fn assert_none_allocated() {
    assert_eq!(FORBIDDEN_ALLOCATIONS.load(Ordering::Relaxed), 0, "evictors or faults have allocated");
}

/// Until so many pages were evicted, by two threads and two evictors.
fn evict<B: Backend>(backend: B, pages: u64, count: u64) -> Rig<B> {
    let rig = Rig::new(backend, pages, 2);
    let failed = rig.run(2, || rig.work_all(2, || rig.evicted() < count));
    assert_eq!((failed, rig.engine.stats.total(Count::Synchronous)), (0, 0));
    assert_none_allocated();
    rig
}

#[test]
fn a_million_evictions_allocate_nothing() {
    evict(RamSpace::open(Some(Size::mib(128)), None).unwrap(), 3000, 1_000_000);
}

#[test]
fn evictions_to_files_allocate_nothing() {
    let place = Dir::new();
    for (count, uring, direct) in [(1, true, true), (2, true, false), (2, false, false)] {
        let options = FileOptions { uring, direct, ..FileOptions::default() };
        evict(files(&place, count, options), 3000, 60_000);
    }
}

#[test]
fn a_space_that_grows_all_the_time_allocates_on_the_watcher_alone() {
    // Each page is written once, and never again: 80 MiB of swap space.
    let rig = Rig::new(RamSpace::open(Some(Size::mib(256)), None).unwrap(), 30_000, 2);
    assert_eq!(rig.run(2, || rig.work_all(2, || rig.evicted() < 30_000)), 0);
    assert!(rig.engine.slots.extent_bytes() > 64 << 20);
    assert_none_allocated();
}

/// What strikes at once, all of it recoverable.
fn storm(seed: u64, rate: f64) -> FaultConfig {
    let kinds = [Kind::ReadError, Kind::ShortRead, Kind::Corrupt, Kind::WriteError, Kind::ShortWrite, Kind::Full, Kind::Delay];
    FaultConfig { seed, rates: kinds.map(|kind| (kind, rate)).into(), ..FaultConfig::default() }
}

#[test]
fn errors_at_any_rate_never_become_wrong_bytes() {
    let place = Dir::new();
    for (seed, one_in) in [(1, 10), (2, 30), (3, 100), (4, 1000)] {
        for spaces in [1, 3] {
            let backend = Faulty::new(files(&place, spaces, FileOptions::default()), &storm(seed, 1.0 / f64::from(one_in)));
            let rig = Rig::new(backend, 2500, 2);
            let failed = rig.run(2, || rig.work_all(2, || rig.evicted() < 12_000));
            let errors = rig.engine.stats.total(Count::IoErrors);
            println!(
                "1 in {one_in}, {spaces} spaces: {errors} errors, {failed} touches failed, said {:?}",
                rig.news.lock().unwrap()
            );
            assert!(errors > 0);
            // A read fails in one of three ways, and a page is lost for its reader after three failures in a row: (3 / 1000)³ of some
            // 15,000 reads is one run in 2,500. At 1 in 100 it would be one run in three.
            assert!(one_in < 1000 || failed == 0, "{failed} touches failed at 1 in {one_in}");
            rig.engine.slots.assert_valid();
        }
    }
    assert_none_allocated();
}

/// Of two copies one does whatever comes to its mind, up to lying in each answer: nobody notices.
#[test]
fn one_of_two_copies_may_do_what_it_wants() {
    let specs = vec![SwapSpec::Ram { compress: None, size: None }; 2];
    let harmless = FaultConfig { rates: vec![(Kind::Corrupt, 1.0)], ..FaultConfig::default() };
    let configs =
        [storm(1, 0.1), storm(2, 0.01), harmless, FaultConfig { rates: vec![(Kind::WriteError, 1.0)], ..FaultConfig::default() }];
    for (config, bad) in configs.iter().zip([0, 1, 0, 1]) {
        let faults = config.clone();
        let open = move |n, _: &SwapSpec, _: &mut dyn FnMut(&str)| {
            let ram = AnyBackend::Ram(RamSpace::open(Some(Size::mib(64)), None)?);
            Ok(if n == bad { ram.with_faults(&faults) } else { ram })
        };
        let backend = Mirror::open(&specs, false, Box::new(open), &mut |_| {}).unwrap();
        let rig = Rig::new(backend, 2500, 2);
        let over = AtomicBool::new(false);
        let failed = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let again = rig.engine.backend.keep(&rig.engine.slots).unwrap_or(0);
                    std::thread::sleep(Duration::from_nanos(again.min(1_000_000)));
                }
            });
            let failed = rig.run(2, || rig.work_all(2, || rig.evicted() < 20_000));
            over.store(true, Ordering::Relaxed);
            failed
        });
        let seen: Vec<_> = rig.engine.backend.seen().collect();
        println!("{config:?}: {seen:?}");
        assert_eq!(failed, 0, "{config:?}: {seen:?}");
        rig.engine.slots.assert_valid();
    }
    assert_none_allocated();
}

#[test]
fn another_space_takes_over_and_the_one_that_comes_back_is_used_again() {
    let place = Dir::new();
    for (kind, change) in
        [(Kind::WriteError, Change::Fails(farshore_core::seams::IoError::Device(5))), (Kind::Full, Change::Full)]
    {
        let config = FaultConfig { space: Some(1), ..FaultConfig::default() };
        let rig = Rig::new(Faulty::new(files(&place, 2, FileOptions::default()), &config), 4000, 1);
        let failed = rig.run(1, || {
            let stage = AtomicU64::new(0);
            rig.work_all(2, || match stage.load(Ordering::Relaxed) {
                0 => {
                    if rig.evicted() > 5_000 && stage.swap(1, Ordering::Relaxed) == 0 {
                        rig.engine.backend.set_rate(kind, 1.0);
                    }
                    true
                }
                1 => {
                    if rig.said(|c| *c == change) && stage.swap(2, Ordering::Relaxed) == 1 {
                        rig.engine.backend.set_rate(kind, 0.0);
                    }
                    true
                }
                _ => !rig.said(|c| *c == Change::Works),
            })
        });
        assert_eq!(failed, 0, "another space works all the time");
        assert_eq!(rig.said_of(1), [change, Change::Works], "each change is said once");
        assert_eq!((rig.engine.health.errors(0), rig.engine.health.errors(1) > 0), (0, true));
    }
    assert_none_allocated();
}

#[test]
fn a_space_that_hangs_stops_nobody_who_does_not_need_it() {
    let place = Dir::new();
    let config = FaultConfig { space: Some(1), rates: vec![(Kind::Hang, 1.0)], ..FaultConfig::default() };
    let rig = Rig::new(Faulty::new(files(&place, 2, FileOptions::default()), &config), 6000, 2);
    rig.engine.health.set_patience(400_000_000);
    rig.run(2, || {
        let mut buffer = vec![PageBuf::ZERO; 1];
        // Each page once: nobody reads what hangs, and all but 1000 pages must leave.
        (0..6000).for_each(|n| rig.touch(0, n, 0, n + 1, &mut buffer).unwrap());
        rig.wait_for(|c| matches!(c, Change::Hangs(_)));
        assert!(!rig.engine.health.is_open(1));
        rig.engine.backend.set_rate(Kind::Hang, 0.0);
        (0..6000).for_each(|n| rig.touch(0, n, n + 1, n, &mut buffer).unwrap());
        rig.wait_for(|c| matches!(c, Change::Answers(_)));
        assert!(rig.engine.health.is_open(1));
    });
    // (Of the other too, should this machine's disk be that slow.)
    assert!(matches!(rig.said_of(1)[..], [Change::Hangs(_), Change::Answers(_)]), "{:?}", rig.said_of(1));
}

#[test]
fn a_read_that_hangs_is_told_and_waits() {
    let place = Dir::new();
    let rig = Rig::new(Faulty::new(files(&place, 1, FileOptions::default()), &FaultConfig::default()), 3000, 1);
    rig.engine.health.set_patience(400_000_000);
    rig.run(1, || {
        let mut buffer = vec![PageBuf::ZERO; 1];
        (0..3000).for_each(|n| rig.touch(0, n, 0, n + 1, &mut buffer).unwrap());
        rig.engine.backend.set_rate(Kind::Hang, 1.0);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut buffer = vec![PageBuf::ZERO; 1];
                (0..3000).for_each(|n| rig.touch(1, n, n + 1, n, &mut buffer).unwrap());
            });
            rig.wait_for(|c| matches!(c, Change::Hangs(_)));
            assert!(!reader.is_finished());
            rig.engine.backend.set_rate(Kind::Hang, 0.0);
        });
        rig.wait_for(|c| matches!(c, Change::Answers(_)));
    });
}

/// A memory call hides the granule between the mapping of a run of zero pages and its release: no page of the run stays in the fault's hands.
#[test]
fn a_run_of_zero_pages_is_released_in_a_hidden_granule() {
    let rig: &Rig<RamSpace> = Box::leak(Box::new(Rig::new(RamSpace::open(Some(Size::mib(16)), None).unwrap(), 1024, 1)));
    let engine = &rig.engine;
    let granule = engine.table.granule_even_absent(Page(FIRST).granule()).expect("managed");
    let mut buffer = vec![PageBuf::ZERO; 16];
    assert_eq!(engine.pin(Page(FIRST), Access::Write, 0, &mut buffer), Ok(Pinned::Held), "there is room");
    let hide = |first: Page| engine.table.granule_even_absent(first.granule()).expect("managed").flags.hide();
    assert!(engine.kernel.on_zeros.set(Box::new(hide)).is_ok());
    let _ = engine.pin(Page(FIRST + 1), Access::Write, 0, &mut buffer);
    assert!(granule.flags.is_hidden());
    granule.flags.show();
    let states: Vec<State> = (0..20).map(|n| engine.table.page(Page(FIRST + n)).expect("managed").word.load().state()).collect();
    assert!(states.iter().filter(|&&state| state == State::Resident).count() > 2, "no run: {states:?}");
    assert!(!states.contains(&State::Busy), "{states:?}");
}
