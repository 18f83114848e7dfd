//! The engine that ships (`farshore_engine`), with its own policies (`farshore_policy`), on one thread and over memory and swap space that are
//! pretended.
//!
//! It is driven as the library drives it: a touch of an absent page is a fault; the evictor works when frames are short; threads that read ahead are asked
//! after each fault. The limit is what the library's would be, so stages and spare frames are part of it. All pages hold zeros: who gets which bytes
//! is for the simulator to prove. Time stands still, so the pace stays what it is at the start.

use crate::{Step, Trace};
use farshore_core::limits::{GRANULE_PAGES, PAGE_SIZE};
use farshore_core::page::{Access as How, Page, PageRange};
use farshore_core::seams::{
    Backend, Clock, IoError, Kernel, KernelError, MemoryBudget, PIECE_MAX, PageBuf, Protect, Reads, Spaces, Tracer, World,
    WriteQueue,
};
use farshore_core::sync::{AtomicU32, Futex};
use farshore_core::word::{Slot, State};
use farshore_engine::evict::pipeline::{Evictor, Progress};
use farshore_engine::fault::resolve::Resolved;
use farshore_engine::stats::{Count, FaultKind};
use farshore_engine::{Engine, Nodes, PageState, Reuse, Shape};
use farshore_policy::{BuiltIn, Chosen, prefetch};
use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::marker::PhantomData;
use std::sync::atomic::AtomicBool;

const FIRST: u64 = 1 << 20;

/// Page tables, swap space, clock: all that the engine stands on.
struct Pretended;

impl Kernel for Pretended {
    fn map(&self, _: Page, _: &PageBuf, _: Protect) -> Result<(), KernelError> {
        Ok(())
    }
    fn map_zeros(&self, _: Page, count: u64) -> Result<u64, KernelError> {
        Ok(count)
    }
    fn protect(&self, _: PageRange) -> Result<(), KernelError> {
        Ok(())
    }
    fn unprotect(&self, _: Page) -> Result<(), KernelError> {
        Ok(())
    }
    fn copy_out(&self, _: Page, into: &mut PageBuf, _: bool) -> Result<(), KernelError> {
        *into = PageBuf::ZERO;
        Ok(())
    }
    fn unmap(&self, _: &[Page]) -> Result<(), (usize, KernelError)> {
        Ok(())
    }
    fn current_thread(&self) -> u64 {
        1
    }
}

impl Backend for Pretended {
    type Queue = Queue;
    fn queue(&self, _depth: u32) -> Result<Queue, IoError> {
        Ok(Queue(Vec::new()))
    }
}

impl Reads for Pretended {
    fn read(&self, _: Slot, into: &mut PageBuf) -> Result<(), IoError> {
        *into = PageBuf::ZERO;
        Ok(())
    }
}

impl Spaces for Pretended {
    fn capacity(&self) -> Option<u64> {
        None
    }
    fn name(&self) -> &str {
        "pretended"
    }
    fn spaces(&self) -> usize {
        1
    }
    fn capacity_of(&self, _: usize) -> Option<u64> {
        None
    }
    fn name_of(&self, _: Slot) -> &str {
        "pretended"
    }
}

impl MemoryBudget for Pretended {}

/// Writes are done at once.
struct Queue(Vec<u64>);

impl WriteQueue for Queue {
    unsafe fn start_write(&mut self, _: Slot, _: *const PageBuf, _: u32, tag: u64) -> Result<(), ()> {
        self.0.push(tag);
        Ok(())
    }
    fn reap(&mut self, _: bool, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        self.0.drain(..).for_each(|tag| done(tag, Ok(())));
    }
    fn reap_within(&mut self, _: u64, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        self.reap(true, done);
    }
    fn in_flight(&self) -> u32 {
        self.0.len() as u32
    }
}

impl Clock for Pretended {
    fn now_ns(&self) -> u64 {
        1
    }
}

impl Futex for Pretended {
    fn wait(&self, _: &AtomicU32, _: u32) {
        panic!("there is one thread, and it waits");
    }
    fn wait_for(&self, word: &AtomicU32, expected: u32, _: u64) {
        self.wait(word, expected);
    }
    fn wake_all(&self, _: &AtomicU32) {}
}

/// All of it, and who listens.
struct Heard<T>(PhantomData<T>);

impl<T: Tracer> World for Heard<T> {
    type Kernel = Pretended;
    type Backend = Pretended;
    type Policy = Chosen;
    type Clock = Pretended;
    type Futex = Pretended;
    type Tracer = T;
}

/// What the engine has read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// Pages, whether a fault asked for them or not.
    pub pages: u64,
    /// Faults that had to read.
    pub faults: u64,
}

/// What the engine reads in this trace with a limit of so many pages.
pub fn reads(trace: &Trace, limit: usize, policy: BuiltIn, prefetcher: prefetch::BuiltIn) -> Read {
    heard::<()>(trace, limit, policy, prefetcher, &mut |_, _| {})
}

/// The same while a tracer listens. Before each access that faults `fault` is told which it is, and its address: the library tells of faults before
/// the engine has them.
///
/// # Panics
/// The engine does what it must not: it waits, or cannot bring a page.
pub fn heard<T: Tracer>(
    trace: &Trace,
    limit: usize,
    policy: BuiltIn,
    prefetcher: prefetch::BuiltIn,
    fault: &mut dyn FnMut(usize, u64),
) -> Read {
    run::<T>(trace, limit, policy, prefetcher, None, fault)
}

/// The same with a policy beside the program that knows the future, and says when pages are used again. Nothing comes unasked.
pub fn reads_told(trace: &Trace, limit: usize) -> Read {
    let told = Some(Oracle::new(trace, limit));
    run::<()>(trace, limit, BuiltIn::SecondChance, prefetch::BuiltIn::None, told, &mut |_, _| {})
}

/// A policy that knows the future. When frames become short, it says of the pages that are touched last that they are late.
struct Oracle {
    /// When the page of each access is touched next.
    next: Vec<usize>,
    /// Pages by when they are touched next, and when that is. Some are out.
    order: BTreeSet<(usize, Page)>,
    due: HashMap<Page, usize>,
    /// Pages of which it has said that they are late, and how many may be.
    late: Vec<Page>,
    most: usize,
}

impl Oracle {
    fn new(trace: &Trace, limit: usize) -> Oracle {
        let mut last = HashMap::new();
        let of = |(n, access): (usize, &crate::Access)| last.insert(access.page, n).unwrap_or(usize::MAX);
        let mut next: Vec<usize> = trace.accesses.iter().enumerate().rev().map(of).collect();
        next.reverse();
        // As many as evictors take until frames are not short any more, and some.
        Oracle { next, order: BTreeSet::new(), due: HashMap::new(), late: Vec::new(), most: limit / 8 }
    }

    fn touched(&mut self, access: usize, page: Page) {
        let due = self.next[access];
        if let Some(before) = self.due.insert(page, due) {
            self.order.remove(&(before, page));
        }
        self.order.insert((due, page));
    }

    fn say<T: Tracer>(&mut self, engine: &Engine<Heard<T>>) {
        let one = |page: Page| PageRange { start: page, end: page.plus(1) };
        self.late.drain(..).for_each(|page| engine.expect(one(page), Reuse::Unknown));
        let mut out = Vec::new();
        for &(due, page) in self.order.iter().rev() {
            if self.late.len() == self.most {
                break;
            }
            match engine.page_state(page) {
                PageState::Dirty | PageState::Clean => {
                    engine.expect(one(page), Reuse::Late);
                    self.late.push(page);
                }
                _ => out.push((due, page)),
            }
        }
        for (due, page) in out {
            self.order.remove(&(due, page));
            self.due.remove(&page);
        }
    }
}

fn run<T: Tracer>(
    trace: &Trace,
    limit: usize,
    policy: BuiltIn,
    prefetcher: prefetch::BuiltIn,
    mut told: Option<Oracle>,
    fault: &mut dyn FnMut(usize, u64),
) -> Read {
    let memory = (limit * PAGE_SIZE) as u64;
    let shape =
        Shape { memory, evictors: 1, cores: 1, nodes: Nodes::ONE, wanted: Default::default(), ablated: Default::default() };
    let mut staging = vec![PageBuf::ZERO; shape.sizes().stages as usize];
    let chosen = Chosen::new(policy, prefetcher);
    // SAFETY: `staging` is that many pages, nobody else's, and dropped after the engine.
    let engine: Engine<Heard<T>> =
        unsafe { Engine::new(shape, Pretended, Pretended, chosen, Pretended, Pretended, staging.as_mut_ptr()) };
    let pages = u64::from(trace.pages).next_multiple_of(GRANULE_PAGES as u64);
    engine.manage(PageRange { start: Page(FIRST), end: Page(FIRST + pages) });
    engine.allow_readers(1);
    let mut evictor = Evictor::new(0, &engine).expect("the queue is pretended");
    let mut buffer = vec![PageBuf::ZERO; PIECE_MAX as usize + 1];
    let over = AtomicBool::new(true);
    let read = |engine: &Engine<Heard<T>>| Read {
        pages: engine.stats.total(Count::PagesIn),
        faults: engine.stats.faults(FaultKind::Fetch),
    };
    let mut before = Read { pages: 0, faults: 0 };
    for step in trace.steps() {
        let (at, access) = match step {
            Step::Touch { at, access, .. } => (at, access),
            Step::Gone(page) => {
                let page = Page(FIRST + u64::from(page));
                let Ok(()) = engine.discard(PageRange { start: page, end: page.plus(1) }, |_| Ok::<(), Infallible>(()));
                continue;
            }
        };
        if at == trace.from {
            before = read(&engine);
        }
        let page = Page(FIRST + u64::from(access.page));
        if let Some(oracle) = &mut told {
            oracle.touched(at, page);
        }
        let granule = engine.table.granule(page.granule()).expect("it is managed");
        let state = granule.words[page.index_in_granule()].load().state();
        if state == State::Resident {
            continue;
        }
        fault(at, page.addr());
        let how = if state == State::Untouched { How::Write } else { How::Read };
        if engine.is_short() {
            if let Some(oracle) = &mut told {
                oracle.say(&engine);
            }
            while evictor.step() == Progress::Worked {}
        }
        assert_eq!(engine.resolve(page, how, false, 0, &mut buffer), Ok(Resolved::Done));
        engine.read_ahead(0, &mut buffer, &over);
    }
    while !evictor.settle() {}
    assert_eq!(engine.stats.total(Count::IoErrors), 0);
    let all = read(&engine);
    drop(evictor);
    drop(engine);
    drop(staging);
    Read { pages: all.pages - before.pages, faults: all.faults - before.faults }
}
