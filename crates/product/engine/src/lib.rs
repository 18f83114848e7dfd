//! Moves pages between the program's memory and swap space.
//!
//! ```text
//!  fault/resolve ── a thread touched a page: what does it need?       (never evicts, rule 1)
//!  fault/pins    ── a system call is about to touch pages
//!  fault/ahead   ── threads that bring what a prefetcher has asked for
//!  prefetch      ── what a prefetcher is, and its requests
//!  evict/pipeline── evictor threads: select, protect, copy out, unmap, write, retire
//!  evict/control ── how hard they work: batch, writes in flight, evictors awake
//!  evict/partition─ which granules an evictor looks at next
//!  evict/stage   ── the RAM in which pages wait for their write, and for a second chance
//!  space         ── munmap, madvise, mremap, mlock: pages change owner or name
//!  health        ── which swap spaces work, and what is done about one that does not
//!  drain         ── swap spaces that come and go while the program runs
//!  giving        ── room on the disk that is not needed any more
//!  fork          ── a quiet moment for the parent, an engine for the child
//! ```
//!
//! Generic over [`Kernel`], [`Backend`], [`Policy`], [`Clock`] and
//! [`Futex`]: the library that ships and the simulator run this same code. The
//! engine depends on `farshore-core` alone and makes no system call of its own.
//!
//! # Who waits for what (no cycle, so no deadlock)
//!
//! * A fault takes its **frame first**, then the page. So no thread that owns a page (`Busy`) waits for a frame.
//! * The owner of a page waits for the kernel or for one backend read only.
//! * An evictor owns pages only between selecting and unmapping a batch; it waits for completions of its own writes and for
//!   stages that a rescuer is copying from (no wait inside).
//! * A memory call waits for pages that other threads own, one at a time. While it waits it holds claimed pages, and the
//!   address-space lock, which neither faults nor evictors take.
//! * The drainer owns pages as a fault does, each with its frame: it waits for one read while it does. It owns no page while it
//!   waits for spare frames, or for evictors to look at their stages.
//! * The thread that gives room back is inside the gate while it waits for the disk, as a fault is, and owns no page.
//! * A fork holds the address-space lock, waits for faults (which may wait for evictors), then for evictors. A fault that waits
//!   for the fork to end owns nothing.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod drain;
pub mod evict;
pub mod fault;
pub mod fork;
pub mod giving;
pub mod health;
pub mod prefetch;
pub mod space;
pub mod stats;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use evict::control::Wanted;
use evict::pace::Control;
use evict::partition::Partition;
use evict::stage::Stages;
use farshore_core::canary::{Canary, is_planted};
use farshore_core::frames::Frames;
use farshore_core::gate::Gate;
use farshore_core::limits::{
    BATCH_PAGES_MAX, BATCH_PAGES_MIN, BATCHES_IN_FLIGHT, EVICTORS_MAX, MEMORY_LIMIT_MIN, PAGE_SIZE, batch_pages_most,
};
use farshore_core::page::{Page, PageRange};
use farshore_core::seams::{Backend, Kernel, MemoryBudget, PageBuf, Spaces, World};
use farshore_core::slots::SlotMap;
use farshore_core::slots::owners::OWNERS_MAX;
use farshore_core::spin::SpinLock;
use farshore_core::sync::plain::{AtomicBool, AtomicU64};
use farshore_core::table::{PageRef, PageTable};
use farshore_core::wait::{Event, WaitTable};
use farshore_core::word::{AtomicWord, Release, Released, Slot, Word};
use health::Health;
use prefetch::Requests;
use stats::Stats;

/// How an engine is built.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Local memory for managed pages, bytes.
    pub memory: u64,
    /// Evictor threads, 1 to 16.
    pub evictors: usize,
    /// Cores of the machine.
    pub cores: usize,
    /// The NUMA nodes that the cores are on.
    pub nodes: Nodes,
    /// Which parts of the evictors' pace are fixed.
    pub wanted: Wanted,
}

/// On which NUMA node each core is. Nothing is said about cores beyond [`OWNERS_MAX`].
#[derive(Clone, Copy, Debug)]
pub struct Nodes([u8; OWNERS_MAX]);

impl Nodes {
    /// All cores on one node.
    pub const ONE: Nodes = Nodes([0; OWNERS_MAX]);

    /// The nodes that `node` gives for each core.
    pub fn new(node: impl FnMut(usize) -> u8) -> Nodes {
        Nodes(core::array::from_fn(node))
    }
}

/// Sizes that follow from a [`Shape`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Pages of the largest batch.
    pub batch: usize,
    /// Stages of one evictor: what it may have in flight, and what lingers for a rescue.
    pub stages_each: usize,
    /// Stages of all evictors. They are part of the limit.
    pub stages: u64,
    /// Frames for resident pages: the limit less the stages.
    pub frames: u64,
}

impl Shape {
    /// The sizes for this shape.
    ///
    /// # Panics
    /// When the memory is below [`MEMORY_LIMIT_MIN`] or the number of evictors is out of range; callers check the user's
    /// values before.
    pub fn sizes(&self) -> Sizes {
        assert!(self.memory >= MEMORY_LIMIT_MIN, "memory limit {} is below {MEMORY_LIMIT_MIN}", self.memory);
        assert!((1..=EVICTORS_MAX).contains(&self.evictors), "{} evictors", self.evictors);
        let limit = self.memory / PAGE_SIZE as u64;
        let evictors = self.evictors as u64;
        // A batch is small enough that all pipelines together hold at most an eighth of the limit …
        let chosen = (limit / (8 * evictors * BATCHES_IN_FLIGHT as u64)).clamp(BATCH_PAGES_MIN as u64, BATCH_PAGES_MAX as u64);
        // … unless it was fixed; then as large as there is room for. (Callers have refused sizes that have no room; a forked
        // child may have less memory.)
        let batch =
            self.wanted.batch.map_or(chosen, |fixed| u64::from(fixed).min(batch_pages_most(self.memory, self.evictors) as u64));
        // … and pages that linger for a rescue take a 64th of it, if that is more.
        let each = (batch * BATCHES_IN_FLIGHT as u64).max(limit / 64 / evictors);
        Sizes { batch: batch as usize, stages_each: each as usize, stages: each * evictors, frames: limit - each * evictors }
    }
}

/// When evictors start and stop, in free frames.
#[derive(Debug)]
struct Watermarks {
    low: AtomicU64,
    high: AtomicU64,
}

impl Watermarks {
    fn set(&self, frames: u64, batch: u64, free: Option<u64>) {
        // High: two batches, but never more than a sixteenth of all frames: frames that are free are frames that the
        // program misses. Low: half of that, so that an evictor wakes before frames run out.
        let high = (2 * batch).min(frames / 16).max(16);
        // This many percent, if the user has set it: an evictor wakes when fewer are free, and frees a batch more (Adios,
        // section 3.3).
        let (low, high) = match free.map(|percent| frames * percent / 100) {
            Some(low) if low > high / 2 => (low, low + high / 2),
            _ => (high / 2, high),
        };
        self.high.store(high, Ordering::Relaxed);
        self.low.store(low, Ordering::Relaxed);
    }
}

/// The engine of one process.
pub struct Engine<W: World> {
    /// Page tables of the program.
    pub kernel: W::Kernel,
    /// Swap space.
    pub backend: W::Backend,
    /// Chooses victims.
    pub policy: W::Policy,
    /// Time.
    pub clock: W::Clock,
    /// Sleeping.
    pub futex: W::Futex,
    /// Page words.
    pub table: PageTable,
    /// Frames of the limit.
    pub frames: Frames,
    /// Slots of the swap space.
    pub slots: SlotMap,
    /// Which swap spaces work.
    pub health: Health,
    /// Counters.
    pub stats: Stats,
    waits: WaitTable,
    /// Frames came free.
    frames_came: Event,
    /// Evictors have work.
    work: Event,
    /// Threads that read ahead have work.
    requests: Requests,
    loops: evict::loops::Loops,
    /// One for each core; the pages on a core's list get that core's slots.
    partitions: Box<[Partition]>,
    stages: Stages,
    sizes: Sizes,
    /// The limit that was asked for, in pages.
    limit: AtomicU64,
    /// Held by the thread that divides the limit.
    dividing: SpinLock<()>,
    /// Frames of pages that were evicted, and that the swap space, which keeps pages in RAM, has not received yet.
    withheld: AtomicU64,
    /// The most pages that were ever resident together with those in such a space.
    resident_peak: AtomicU64,
    watermarks: Watermarks,
    /// Writes fail because there is no room: evictors take clean pages only, except for a trial now and then.
    space_full: AtomicBool,
    /// Set when an evictor has found nothing to evict in a whole round, cleared when one did.
    starved: AtomicBool,
    /// Pages whose words `relocate` is setting at the moment.
    moving: Moving,
    /// Faults pass this gate: it is closed while the process forks.
    gate: Gate,
    rest: fork::Rest,
    /// What the drainer asks evictors to do.
    asks: drain::Asks,
    /// How hard evictors work.
    control: Control,
    giving: giving::Giving,
}

/// The range that a page move fills: there, *untouched* does not mean zeros yet.
///
/// One thread writes this, under the address-space lock, and sets it before the words can be seen. So a fault that has
/// taken such a word (an acquire) sees it too, and lets go.
#[derive(Debug, Default)]
struct Moving {
    start: AtomicU64,
    end: AtomicU64,
}

impl Moving {
    fn begin(&self, range: PageRange) {
        self.start.store(range.start.0, Ordering::Release);
        self.end.store(range.end.0, Ordering::Release);
    }
    fn end(&self) {
        self.end.store(0, Ordering::Release);
    }
    fn contains(&self, page: Page) -> bool {
        !is_planted(Canary::Moving) && page.0 < self.end.load(Ordering::Acquire) && self.start.load(Ordering::Acquire) <= page.0
    }
}

/// The core that memory calls count on: they are rare beside faults, and do not know where they run.
pub(crate) const MEMORY_CALLS: usize = 0;

/// What each space of `backend` can hold, in slots.
pub(crate) fn capacities(backend: &impl Backend) -> Vec<Option<u64>> {
    (0..backend.spaces()).map(|space| backend.capacity_of(space)).collect()
}

impl<W: World> core::fmt::Debug for Engine<W> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Engine").field("frames", &self.frames).field("slots", &self.slots).finish_non_exhaustive()
    }
}

impl<W: World> Engine<W> {
    /// Builds an engine. `staging` is memory for [`Sizes::stages`] pages that is never managed and outlives the engine.
    ///
    /// # Safety
    /// `staging` must point to that many writable pages, aligned to 4096 bytes, that no other code uses.
    pub unsafe fn new(
        shape: Shape,
        kernel: W::Kernel,
        backend: W::Backend,
        policy: W::Policy,
        clock: W::Clock,
        futex: W::Futex,
        staging: *mut PageBuf,
    ) -> Self {
        let sizes = shape.sizes();
        // A core's pages are on its list, and get the core's slots: one evictor looks after both (MAGE §4.2.2, ScaleSwap §4.4 and
        // §4.6).
        let partitions = shape.evictors.max(shape.cores.min(OWNERS_MAX));
        let nodes: Vec<usize> =
            (0..partitions).map(|core| shape.nodes.0[core % OWNERS_MAX.min(shape.cores.max(1))].into()).collect();
        let mut slots = SlotMap::for_cores(None, &nodes);
        slots.set_spaces(&capacities(&backend));
        let health = Health::new(backend.spaces());
        let watermarks = Watermarks { low: AtomicU64::new(0), high: AtomicU64::new(0) };
        let control = Control::new(&shape, sizes.batch);
        watermarks.set(sizes.frames, control.batch() as u64, shape.wanted.free.map(u64::from));
        Engine {
            kernel,
            backend,
            policy,
            clock,
            futex,
            table: PageTable::new(),
            frames: Frames::new(sizes.frames, shape.cores),
            slots,
            stats: Stats::new(shape.cores),
            waits: WaitTable::new(),
            frames_came: Event::new(),
            work: Event::new(),
            requests: Requests::default(),
            loops: evict::loops::Loops::default(),
            partitions: (0..partitions).map(|_| Partition::new()).collect::<Vec<_>>().into_boxed_slice(),
            // SAFETY: this function's own condition, for exactly this many pages.
            stages: unsafe { Stages::new(staging, sizes.stages as usize) },
            sizes,
            limit: AtomicU64::new(sizes.frames + sizes.stages),
            dividing: SpinLock::new(()),
            withheld: AtomicU64::new(0),
            resident_peak: AtomicU64::new(0),
            watermarks,
            space_full: AtomicBool::new(false),
            starved: AtomicBool::new(false),
            moving: Moving::default(),
            gate: Gate::new(shape.cores),
            rest: fork::Rest::default(),
            asks: drain::Asks::default(),
            control,
            giving: giving::Giving::new(),
            health,
        }
    }

    /// Sizes that the engine was built with.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// The stages, to look at (tests, the simulator).
    pub fn stages(&self) -> &Stages {
        &self.stages
    }

    /// The memory limit, bytes.
    pub fn memory_limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed) * PAGE_SIZE as u64
    }

    /// Managed pages in RAM, bytes: pages that are resident or about to be, every stage that was ever used, and pages that a
    /// swap space keeps in RAM.
    pub fn resident_bytes(&self) -> u64 {
        self.resident() * PAGE_SIZE as u64
    }

    /// The most that [`Engine::resident_bytes`] ever was, or a little more; never above the limit.
    pub fn resident_bytes_peak(&self) -> u64 {
        let without = self.frames.taken_peak() + self.stages.ever_used();
        match self.resident_peak.load(Ordering::Relaxed) {
            0 => without * PAGE_SIZE as u64,
            peak => peak * PAGE_SIZE as u64,
        }
    }

    /// Changes the memory limit: a higher one holds at once, a lower one as evictors free frames.
    ///
    /// # Errors
    /// The smallest limit that can be set, when `bytes` is below it.
    pub fn set_memory_limit(&self, bytes: u64) -> Result<(), u64> {
        let least = MEMORY_LIMIT_MIN.max(self.floor() * PAGE_SIZE as u64);
        if bytes < least {
            return Err(least);
        }
        self.set_budget(bytes / PAGE_SIZE as u64);
        Ok(())
    }

    /// The fewest pages that this engine works with: its stages, which were sized for the first limit and stay, and as many
    /// frames as the smallest engine has.
    pub fn floor(&self) -> u64 {
        self.sizes.stages + 4 * self.sizes.batch as u64
    }

    /// Pages that this engine may have or still has: its limit, and the debt of a lowered limit.
    pub fn budget(&self) -> u64 {
        self.frames.limit() + self.frames.debt() + self.sizes.stages + self.kept_by_backend()
    }

    /// Pages of the budget that are in use.
    pub fn in_use(&self) -> u64 {
        self.frames.taken() + self.sizes.stages + self.kept_by_backend()
    }

    /// Changes the limit to `pages`, or [`Engine::floor`] if that is more. A higher limit holds at once, a lower one as
    /// evictors free frames.
    pub fn set_budget(&self, pages: u64) {
        self.limit.store(pages.max(self.floor()), Ordering::Relaxed);
        self.divide_limit();
        self.frames_came.signal(&self.futex);
        self.wake_all_evictors();
    }

    /// Divides the limit: RAM in which a swap space keeps pages is not available for frames. Called by any thread.
    pub(crate) fn divide_limit(&self) {
        let more = self.dividing.with(|()| {
            let pages = self.limit.load(Ordering::Relaxed);
            let least = self.floor() - self.sizes.stages;
            self.backend.allow_memory((pages - self.floor()) * PAGE_SIZE as u64);
            // A thread that raises the space's share after this look divides again.
            let frames = pages.saturating_sub(self.sizes.stages + self.kept_by_backend()).max(least);
            let before = self.frames.limit();
            if frames != before {
                self.frames.set_limit(frames);
                self.set_watermarks(frames);
            }
            frames > before
        });
        if more {
            self.frames_came.signal(&self.futex);
        }
    }

    /// Pages that the swap space keeps in RAM.
    fn kept_by_backend(&self) -> u64 {
        self.backend.own_memory().map_or(0, |bytes| bytes.div_ceil(PAGE_SIZE as u64))
    }

    /// Of a batch that leaves, `written` pages are to be written; the others are in their slots. Frames of the others are free
    /// now. Frames of the written pages are free now too, unless the swap space keeps pages in RAM itself. In that case they are
    /// free when the space has the pages and they were counted ([`Engine::give_withheld`]), so that pages, stages and space are
    /// never more than the limit.
    pub(crate) fn give_evicted(&self, core: usize, count: u64, written: u64) {
        let withheld = if self.backend.own_memory().is_some() { written } else { 0 };
        if withheld > 0 {
            self.withheld.fetch_add(withheld, Ordering::Relaxed);
        }
        self.give_frames(core, count - withheld);
    }

    /// The swap space was given `count` pages of a batch, or will not be given them.
    pub(crate) fn give_withheld(&self, core: usize, count: u64) {
        if self.backend.own_memory().is_some() {
            self.divide_limit();
            self.give_frames(core, count);
            self.withheld.fetch_sub(count, Ordering::Relaxed);
            self.resident_peak.fetch_max(self.resident(), Ordering::Relaxed);
        }
    }

    /// Pages of the limit that are in RAM.
    fn resident(&self) -> u64 {
        // Read first: frames that are given back meanwhile are in neither number rather than in both.
        let withheld = self.withheld.load(Ordering::Acquire);
        self.frames.taken().saturating_sub(withheld) + self.stages.ever_used() + self.kept_by_backend()
    }

    /// Wakes every thread of this engine that sleeps: each checks whether it is to stop.
    pub fn wake_all_threads(&self) {
        self.wake_all_evictors();
        self.wake_readers();
        self.wake_drainer();
        self.wake_watcher();
    }

    /// Whether threads of this engine would have something to do, if there were any: frames are short, or pages could be read
    /// ahead.
    #[inline]
    pub fn wants_threads(&self) -> bool {
        self.is_short() || self.requests.want_reader()
    }

    /// All threads of this engine have ended.
    pub fn threads_have_ended(&self) {
        self.requests.forget_readers();
    }

    /// Whether free frames are short, so that more would be of use.
    pub fn is_short(&self) -> bool {
        self.wants_eviction(false)
    }

    /// Whether free frames are short once `pages` more are taken.
    pub fn is_short_after(&self, pages: u64) -> bool {
        self.is_short() || self.frames.free_uncached() < self.watermarks.low.load(Ordering::Relaxed) + pages
    }

    /// The page's word, if it is managed.
    #[inline]
    fn page(&self, page: Page) -> Option<PageRef<'_>> {
        self.table.page(page)
    }

    /// Moves an owned page on and wakes the threads that wait for it.
    #[inline]
    fn release(&self, page: Page, word: &AtomicWord, to: Release) {
        self.kernel.interleave();
        self.woken(page, word.release(to));
    }

    /// Puts an owned page back as it was and wakes the threads that wait for it.
    fn restore(&self, page: Page, word: &AtomicWord, was: Word) {
        self.kernel.interleave();
        self.woken(page, word.restore(was));
    }

    #[inline]
    fn woken(&self, page: Page, outcome: Released) {
        self.kernel.interleave();
        if is_planted(Canary::Wake) && page.0.is_multiple_of(64) {
            return;
        }
        self.waits.released(&self.futex, page, outcome);
    }

    /// Frames went back, on `core`: wakes faults that wait for one.
    fn give_frames(&self, core: usize, n: u64) {
        if n > 0 {
            self.frames.give(core, n);
            self.kernel.interleave();
            self.frames_came.signal(&self.futex);
        }
    }

    /// Whether evictors should be at work: `started` says that they are already.
    fn wants_eviction(&self, started: bool) -> bool {
        let mark = if started { &self.watermarks.high } else { &self.watermarks.low };
        self.frames.debt() > 0 || self.frames.free_uncached() < mark.load(Ordering::Relaxed)
    }

    /// Free frames that pages which come along must leave for faults.
    fn spare_mark(&self) -> u64 {
        self.watermarks.low.load(Ordering::Relaxed) / 2
    }

    /// After a frame was taken: wakes evictors in time.
    #[inline]
    fn nudge_evictors(&self) {
        if self.wants_eviction(false) && self.work.sleepers() > 0 {
            self.work.signal(&self.futex);
        }
    }

    /// The checksum of a page in `slot`. The slot is part of it, so that a device that delivers another slot's bytes is
    /// detected.
    #[inline]
    fn checksum(slot: Slot, bytes: &PageBuf) -> u64 {
        xxhash_rust::xxh3::xxh3_64_with_seed(&bytes.0, slot.number())
    }

    /// Checks the invariants while no thread is moving anything (tests, the simulator, once a second in a soak).
    ///
    /// # Panics
    /// When an invariant does not hold.
    pub fn assert_valid_when_quiet(&self) {
        self.frames.assert_valid();
        self.slots.assert_valid();
    }
}
