//! No cache line is written by two cores on the way of faults and evictions that stay on their cores: each of two threads touches pages of its own,
//! which its own evictor takes away, and what both have written is compared (`farshore_core::recorder`). The two go at one pace, because an
//! evictor whose hand goes twice as fast as the other's looks for victims there (`evict::partition`), which is meant.
//!
//! What may be shared is in [`EXCEPTIONS`], each with its reason. A planted counter shows that the test sees one.

use farshore_core::limits::GRANULE_PAGES;
use farshore_core::page::{Access, Page, PageRange};
use farshore_core::recorder::{Lines, record};
use farshore_core::seams::{
    Ahead, Backend, Came, Clock, Fetch, IoError, Kernel, KernelError, MemoryBudget, PageBuf, Policy, Prefetcher, Protect, Reads,
    Spaces, Verdict, World, WriteQueue,
};
use farshore_core::sync::{AtomicU32, AtomicU64, Futex, Ordering};
use farshore_core::word::{Slot, Word};
use farshore_engine::evict::control::Wanted;
use farshore_engine::evict::pipeline::Evictor;
use farshore_engine::fault::resolve::Resolved;
use farshore_engine::stats::Count;
use farshore_engine::{Engine, Nodes, Shape};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Barrier, Mutex};

/// Where two cores may write one line: a file, a piece of the line of code, and why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "frames.rs",
        "match counter.compare_exchange_weak(now, now - got",
        "a core's cache is filled from the shared level, once for up to 32 faults",
    ),
    (
        "frames.rs",
        "self.shared.fetch_add(n",
        "an evictor gives a batch to the shared level, from which frames go where they are wanted (MAGE §4.2.2)",
    ),
    ("budget.rs", "self.came.signal(", "once a batch: any core may wait for a frame, and must not miss it"),
    ("wait.rs", "self.number.fetch_add(1", "the same"),
    ("loops.rs", "self.", "the room for loops is thought about, once for an eighth of memory that has left"),
    ("hands.rs", "self.", "the hands are judged, once for a 64th of memory that has left"),
    ("hands.rs", "seen.swap(now", "the hands are judged, once for a 64th of memory that has left"),
    ("hands.rs", "sum.store(now", "the hands are judged, once for a 64th of memory that has left"),
    ("pace.rs", "gauges.0.flying", "evictors count the writes that devices have, once for up to 64 pages"),
    ("slots.rs", "self.shares.with(f)", "an extent is added, once for 512 slots"),
    ("slots.rs", "self.extents.store(index + 1", "the same"),
    ("stock.rs", "place.swap(core::ptr::null_mut()", "the same: it was made beforehand"),
    (
        "slots.rs",
        "chunk[index as usize % CHUNK].store(fresh",
        "the same: it is entered in the list of all, which faults only read",
    ),
];

const FIRST: u64 = 1 << 20;
const CORES: usize = 2;
/// Of each core; granules of the two lie in turn, so that neighbours are seen.
const GRANULES: u64 = 12;
const TOUCHES: u64 = 80_000;
/// Neither core is further ahead of the other than this.
const TOUCHES_TOGETHER: u64 = 16;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Right {
    Absent,
    Protected,
    Writable,
}

/// Page tables that are pretended, how many pages of each core have left, and how often it has touched one. Locks and counters are the standard
/// library's, which nobody records.
struct Tables {
    pages: Vec<Mutex<(PageBuf, Right)>>,
    left: [std::sync::atomic::AtomicU64; CORES],
    touches: [std::sync::atomic::AtomicU64; CORES],
}

impl Tables {
    fn at(&self, page: Page) -> std::sync::MutexGuard<'_, (PageBuf, Right)> {
        self.pages[(page.0 - FIRST) as usize].lock().unwrap()
    }

    /// Whether `core` has touched more than the other by so much that it had better wait.
    fn is_ahead(&self, core: usize) -> bool {
        let [one, other] = [core, 1 - core].map(|core| self.touches[core].load(Ordering::Relaxed));
        one > other + TOUCHES_TOGETHER
    }

    /// Whether no more pages of `core` than of the other have left.
    fn is_turn_of(&self, core: usize) -> bool {
        let [one, other] = [core, 1 - core].map(|core| self.left[core].load(Ordering::Relaxed));
        one <= other
    }
}

impl Kernel for Tables {
    fn map(&self, page: Page, bytes: &PageBuf, protect: Protect) -> Result<(), KernelError> {
        let mut at = self.at(page);
        assert!(at.1 == Right::Absent);
        *at = (bytes.clone(), if protect == Protect::Writable { Right::Writable } else { Right::Protected });
        Ok(())
    }
    fn map_zeros(&self, first: Page, count: u64) -> Result<u64, KernelError> {
        (0..count).try_for_each(|n| self.map(first.plus(n), &PageBuf::ZERO, Protect::Writable))?;
        Ok(count)
    }
    fn protect(&self, range: PageRange) -> Result<(), KernelError> {
        for page in range.iter() {
            let mut at = self.at(page);
            if at.1 == Right::Writable {
                at.1 = Right::Protected;
            }
        }
        Ok(())
    }
    fn unprotect(&self, page: Page) -> Result<(), KernelError> {
        self.at(page).1 = Right::Writable;
        Ok(())
    }
    fn copy_out(&self, page: Page, into: &mut PageBuf, _readable: bool) -> Result<(), KernelError> {
        *into = self.at(page).0.clone();
        Ok(())
    }
    fn unmap(&self, pages: &[Page]) -> Result<(), (usize, KernelError)> {
        for &page in pages {
            self.at(page).1 = Right::Absent;
            self.left[(page.0 - FIRST) as usize / GRANULE_PAGES % CORES].fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
    fn current_thread(&self) -> u64 {
        std::thread::current().name().map_or(0, |name| u64::from(name.as_bytes()[0]))
    }
}

/// Swap space that is pretended: writes are done at once.
#[derive(Clone, Default)]
struct Space(Arc<Mutex<BTreeMap<u64, PageBuf>>>);

struct Queue(Space, Vec<u64>);

impl Backend for Space {
    type Queue = Queue;

    fn queue(&self, _depth: u32) -> Result<Queue, IoError> {
        Ok(Queue(self.clone(), Vec::new()))
    }
}

impl Reads for Space {
    fn read(&self, slot: Slot, into: &mut PageBuf) -> Result<(), IoError> {
        *into = self.0.lock().unwrap()[&slot.number()].clone();
        Ok(())
    }
}

impl Spaces for Space {
    fn capacity(&self) -> Option<u64> {
        None
    }

    fn name(&self) -> &str {
        "pretended"
    }

    fn spaces(&self) -> usize {
        1
    }

    fn capacity_of(&self, _space: usize) -> Option<u64> {
        None
    }

    fn name_of(&self, _slot: Slot) -> &str {
        "pretended"
    }
}

impl MemoryBudget for Space {}

impl WriteQueue for Queue {
    unsafe fn start_write(&mut self, first: Slot, pages: *const PageBuf, count: u32, tag: u64) -> Result<(), ()> {
        // SAFETY: the caller's promise: `count` pages that stay as they are until the completion.
        let pages = unsafe { std::slice::from_raw_parts(pages, count as usize) };
        for (n, page) in (0..).zip(pages) {
            self.0.0.lock().unwrap().insert(first.plus(n).number(), page.clone());
        }
        self.1.push(tag);
        Ok(())
    }
    fn reap(&mut self, _wait: bool, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        self.1.drain(..).for_each(|tag| done(tag, Ok(())));
    }
    fn reap_within(&mut self, _ns: u64, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        self.reap(true, done);
    }
    fn in_flight(&self) -> u32 {
        self.1.len() as u32
    }
}

struct Plain;

impl Prefetcher for Plain {
    fn fetch(&self, _fetch: &dyn Fetch) -> Option<Ahead> {
        None
    }
}

impl Policy for Plain {
    type Prefetch = Plain;
    fn prefetcher(&self) -> &Plain {
        self
    }
    fn verdict(&self, _page: Page, _word: Word) -> Verdict {
        Verdict::EvictUnlessChances
    }
    fn chances(&self, came: Came) -> u8 {
        u8::from(came == Came::Rescued)
    }
}

impl Clock for Plain {
    fn now_ns(&self) -> u64 {
        // Lists go by age.
        static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        START.get_or_init(std::time::Instant::now).elapsed().as_nanos() as u64
    }
}

impl Futex for Plain {
    fn wait(&self, _word: &AtomicU32, _expected: u32) {
        std::thread::yield_now();
    }
    fn wait_for(&self, word: &AtomicU32, expected: u32, _timeout_ns: u64) {
        self.wait(word, expected);
    }
    fn wake_all(&self, _word: &AtomicU32) {}
}

impl World for Plain {
    type Kernel = Tables;
    type Backend = Space;
    type Policy = Plain;
    type Clock = Plain;
    type Futex = Plain;
    type Tracer = ();
}

type TheEngine = Engine<Plain>;
type TheEvictor<'e> = Evictor<'e, Plain>;

fn engine() -> TheEngine {
    // With fewer evictors awake than there are cores, one looks after the pages of several.
    let wanted = Wanted { evictors: Some(CORES as u32), ..Wanted::default() };
    let shape = Shape { memory: 16 << 20, evictors: CORES, cores: CORES, nodes: Nodes::ONE, wanted, ablated: Default::default() };
    let staging = vec![PageBuf::ZERO; shape.sizes().stages as usize].leak();
    let pages = CORES as u64 * GRANULES * GRANULE_PAGES as u64;
    let absent = (0..pages).map(|_| Mutex::new((PageBuf::ZERO, Right::Absent))).collect();
    let tables = Tables { pages: absent, left: Default::default(), touches: Default::default() };
    // SAFETY: `staging` is that many pages, leaked, and nobody else's.
    let engine = unsafe { Engine::new(shape, tables, Space::default(), Plain, Plain, Plain, staging.as_mut_ptr()) };
    engine.manage(PageRange { start: Page(FIRST), end: Page(FIRST + pages) });
    engine
}

/// Lets the evictor of `core` work if frames are short and it is its turn.
fn evict(engine: &TheEngine, evictor: &mut TheEvictor<'_>, core: usize) {
    while engine.is_short() && engine.kernel.is_turn_of(core) {
        let _ = evictor.step();
    }
}

/// One core: touches its pages at random, and lets its evictor work when frames are short.
fn work(engine: &TheEngine, evictor: &mut TheEvictor<'_>, core: usize, planted: Option<&AtomicU64>) {
    let mut buffer = vec![PageBuf::ZERO; 1];
    let mut random = 0x9e37_79b9 + core as u64;
    for touch in 0..TOUCHES {
        while engine.kernel.is_ahead(core) {
            evict(engine, evictor, core);
            std::thread::yield_now();
        }
        evict(engine, evictor, core);
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let (granule, index) = ((random >> 8) % GRANULES, (random >> 24) % GRANULE_PAGES as u64);
        let page = Page(FIRST + (granule * CORES as u64 + core as u64) * GRANULE_PAGES as u64 + index);
        let access = if touch % 3 == 0 { Access::Write } else { Access::Read };
        let right = engine.kernel.at(page).1;
        if right == Right::Absent || (right == Right::Protected && access == Access::Write) {
            assert_eq!(engine.resolve(page, access, right != Right::Absent, core, &mut buffer), Ok(Resolved::Done));
        }
        engine.kernel.touches[core].fetch_add(1, Ordering::Relaxed);
        if touch % 1000 == 0
            && let Some(counter) = planted
        {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What each core has written while both went about their own pages, when all was warm.
fn written(planted: Option<&AtomicU64>) -> Vec<Lines> {
    let engine = engine();
    let warm = Barrier::new(CORES);
    let lines = std::thread::scope(|scope| {
        let core = |core: usize| {
            let (engine, warm) = (&engine, &warm);
            let body = move || {
                let mut evictor = Evictor::new(core, engine).unwrap();
                work(engine, &mut evictor, core, None);
                warm.wait();
                let lines = record(|| work(engine, &mut evictor, core, planted)).1;
                warm.wait();
                while !evictor.settle() {}
                lines
            };
            std::thread::Builder::new().name(core.to_string()).spawn_scoped(scope, body).unwrap()
        };
        let threads: Vec<_> = (0..CORES).map(core).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(
        engine.stats.total(Count::Evicted) > TOUCHES && engine.stats.total(Count::PagesIn) > TOUCHES / 2,
        "pages came and went"
    );
    assert_eq!(engine.stats.total(Count::Synchronous), 0);
    engine.assert_valid_when_quiet();
    lines
}

fn is_exception(place: &str) -> bool {
    let (file, line) = place.rsplit_once(':').unwrap();
    let source = std::fs::read_to_string(format!("{}/../../../{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let code = source.lines().nth(line.parse::<usize>().unwrap() - 1).unwrap();
    EXCEPTIONS.iter().any(|(of, part, _)| file.ends_with(of) && code.contains(part))
}

/// Lines that both have written, and where, but for the exceptions.
fn shared(lines: &[Lines]) -> BTreeSet<String> {
    let both = lines[0].iter().filter_map(|(line, places)| Some(places.union(lines[1].get(line)?).cloned().collect::<Vec<_>>()));
    both.filter(|places| !places.iter().all(|place| is_exception(place))).map(|places| places.join(" and ")).collect()
}

#[test]
fn two_cores_write_no_line_together() {
    let shared = shared(&written(None));
    assert!(shared.is_empty(), "two cores write one cache line at\n{}", Vec::from_iter(shared).join("\n"));
}

#[test]
fn a_planted_counter_is_seen() {
    let planted = AtomicU64::new(0);
    let shared = shared(&written(Some(&planted)));
    assert_eq!(shared.len(), 1, "{shared:?}");
    assert!(shared.iter().all(|place| place.contains("lines.rs")), "{shared:?}");
}
