//! Moves pages between the program's memory and swap space.
//!
//! ```text
//!  fault/resolve ── a thread touched a page: what does it need?       (never evicts, rule 1)
//!  fault/pins    ── a system call is about to touch pages
//!  fault/ahead   ── threads that bring what a prefetcher has asked for
//!  prefetch      ── what a prefetcher is, and its requests
//!  wishes        ── pages that policies beside the program, and `madvise`, would like to leave, to come or to stay
//!  expected      ── when policies expect pages to be used again: evictors ask it which leave first, and which to pass over
//!  scan          ── which pages are used, by taking a few away
//!  evict/pipeline── evictor threads: select, protect, copy out, unmap, write, retire
//!  evict/choose  ── which pages a batch takes
//!  evict/control ── how hard they work: batch, writes in flight, evictors awake
//!  evict/pace    ── which of them are awake, and what they sleep on
//!  evict/partition─ which granules an evictor looks at next
//!  evict/stage   ── the RAM in which pages wait for their write, and for a second chance
//!  budget        ── the memory limit: its division, frames, watermarks
//!  space         ── munmap, madvise, mremap, mlock: pages change owner or name
//!  moving        ── the addresses that a page move fills at the moment
//!  health        ── which swap spaces work, what is done about one that does not, transfers under way
//!  drain         ── swap spaces that come and go while the program runs
//!  giving        ── room on the disk that is not needed any more
//!  fork          ── a quiet moment for the parent, an engine for the child
//!  takeover      ── what a manager that was killed has left, for the next one
//! ```
//!
//! Generic over a [`World`] (kernel, backend, policy, clock, futex and tracer): the library that ships and the simulator run this same
//! code. The engine depends on `farshore-core`, and on `farshore-attach` for the events that it tells, and makes no system call of its own.
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

mod budget;
pub mod drain;
pub mod evict;
mod expected;
pub mod fault;
mod files;
pub mod fork;
pub mod giving;
pub mod health;
mod moving;
pub mod pilot;
pub mod prefetch;
pub mod scan;
mod shape;
pub mod space;
pub mod stats;
pub mod takeover;
#[cfg(test)]
mod testing;
pub mod wishes;

pub use farshore_attach::{PageState, Reuse};
pub use shape::{EVICTORS_AUTO, Nodes, Shape, Sizes};

use alloc::vec::Vec;
use budget::Budget;
use drain::Drainer;
use evict::Evictors;
use evict::pace::Control;
use evict::refaults::Refaults;
use evict::stage::Stages;
use expected::Expected;
use farshore_attach::audience::Audience;
use farshore_attach::{Event, Kind};
use farshore_core::ablated::Ablated;
use farshore_core::canary::{Canary, is_planted};
use farshore_core::page::Page;
use farshore_core::room::Room;
use farshore_core::seams::{Backend, Clock as _, Kernel, PageBuf, Spaces, Told, Traced, Tracer as _, World};
use farshore_core::slots::SlotMap;
use farshore_core::slots::owners::OWNERS_MAX;
use farshore_core::table::{PageRef, PageTable};
use farshore_core::wait::WaitTable;
use farshore_core::word::{AtomicWord, Release, Released, Slot, Word};
use fork::Quiet;
use health::Health;
use moving::Moving;
use prefetch::Requests;
use scan::Scans;
use stats::Stats;
use wishes::Wishes;

/// What tracers call such an event; `None`: they do not hear of it.
#[inline]
const fn traced(kind: Kind) -> Option<Traced> {
    match kind {
        Kind::Fault => Some(Traced::Fault),
        Kind::Fetched => Some(Traced::Fetched),
        Kind::Evicted => Some(Traced::Evicted),
        Kind::Rescued => Some(Traced::Rescued),
        _ => None,
    }
}

/// The engine of one process: the sum of its parts, each of which states at its head what it keeps. The methods of the engine are
/// what takes several of them.
///
/// Words that one core reads at each fault and another one writes lie in different cache lines: a part pads the words that it
/// writes. What lies beside each other here is written never, or together.
pub struct Engine<W: World> {
    // What it stands on.
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

    // Pages, and what they are in.
    /// Page words.
    pub table: PageTable,
    /// Where threads wait for a page that another thread owns.
    waits: WaitTable,
    /// The addresses that a page move fills at the moment.
    moving: Moving,
    /// The memory limit: frames, and when they are short.
    budget: Budget,
    /// Slots of the swap space.
    pub slots: SlotMap,
    /// Which swap spaces work.
    pub health: Health,

    // Threads of its own, and how all stop.
    /// What evictors share: their pace, lists and stages.
    evictors: Evictors,
    /// What threads that read ahead are asked for.
    requests: Requests,
    /// What policies beside the program, and the program itself, would like.
    wishes: Wishes,
    /// When policies beside the program expect pages to be used again.
    expected: Expected,
    /// What scans cost.
    scans: Scans,
    /// Policies that listen.
    pub audience: Audience,
    /// The thread that empties swap spaces, and gives room back.
    drainer: Drainer,
    /// How faults and evictors stop while the process forks.
    quiet: Quiet,

    /// What an experiment leaves out.
    ablated: Ablated,

    /// Counters.
    pub stats: Stats,
}

/// The core that memory calls count on: they are rare beside faults, and do not know where they run.
pub(crate) const MEMORY_CALLS: usize = 0;

/// What each space of `backend` can hold, in slots.
pub(crate) fn capacities(backend: &impl Backend) -> Vec<Option<u64>> {
    (0..backend.spaces()).map(|space| backend.capacity_of(space)).collect()
}

impl<W: World> core::fmt::Debug for Engine<W> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Engine").field("frames", self.frames()).field("slots", &self.slots).finish_non_exhaustive()
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
        // SAFETY: this function's own condition, for exactly this many pages.
        let stages = unsafe { Stages::new(staging, shape.sizes().stages as usize) };
        Self::with_tables(shape, kernel, backend, policy, clock, futex, stages, None)
    }

    /// The same with its tables in a room, so that they outlive it. `None`: there is no memory.
    ///
    /// # Safety
    /// As for [`Engine::new`]; and no other engine has its tables there.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn in_room(
        shape: Shape,
        kernel: W::Kernel,
        backend: W::Backend,
        policy: W::Policy,
        clock: W::Clock,
        futex: W::Futex,
        staging: *mut PageBuf,
        room: &'static dyn Room,
    ) -> Option<Self> {
        // SAFETY: this function's own condition, for exactly this many pages.
        let stages = unsafe { Stages::in_room(staging, shape.sizes().stages as usize, room) }?;
        Some(Self::with_tables(shape, kernel, backend, policy, clock, futex, stages, Some(room)))
    }

    #[allow(clippy::too_many_arguments)]
    fn with_tables(
        shape: Shape,
        kernel: W::Kernel,
        backend: W::Backend,
        policy: W::Policy,
        clock: W::Clock,
        futex: W::Futex,
        stages: Stages,
        room: Option<&'static dyn Room>,
    ) -> Self {
        let sizes = shape.sizes();
        // A core's pages are on its list, and get the core's slots: one evictor looks after both (MAGE §4.2.2, ScaleSwap §4.4 and
        // §4.6).
        let partitions = if shape.ablated.partitions { 1 } else { shape.evictors.max(shape.cores.min(OWNERS_MAX)) };
        let nodes: Vec<usize> =
            (0..partitions).map(|core| shape.nodes.0[core % OWNERS_MAX.min(shape.cores.max(1))].into()).collect();
        let mut slots = SlotMap::for_cores(None, &nodes);
        slots.set_room(room);
        slots.set_spaces(&capacities(&backend));
        if shape.ablated.delegation {
            slots.end_delegation();
        }
        let health = Health::new(backend.spaces());
        let control = Control::new(&shape, sizes.batch);
        let budget = Budget::new(sizes, shape.cores, control.margin());
        Engine {
            kernel,
            backend,
            policy,
            clock,
            futex,
            table: PageTable::in_room(room),
            waits: WaitTable::new(),
            moving: Moving::default(),
            budget: if shape.ablated.caches { budget.without_caches() } else { budget },
            slots,
            health,
            evictors: Evictors::new(control, partitions, stages, Refaults::new(sizes.frames, shape.evictors)),
            requests: Requests::default(),
            wishes: Wishes::default(),
            expected: Expected::default(),
            scans: Scans::default(),
            audience: Audience::default(),
            drainer: Drainer::default(),
            quiet: Quiet::new(shape.cores),
            ablated: shape.ablated,
            stats: Stats::new(shape.cores),
        }
    }

    /// Another policy has the say from now on.
    pub fn policy_changed(&self) {
        self.evictors.loops.forget();
    }

    /// Sizes that the engine was built with.
    pub fn sizes(&self) -> Sizes {
        self.budget.sizes()
    }

    /// What an experiment leaves out.
    pub fn ablated(&self) -> Ablated {
        self.ablated
    }

    /// Lists of granules that evictors take pages from: one a core, or one an evictor if that is more.
    pub fn lists(&self) -> usize {
        self.evictors.lists.all().len()
    }

    /// The stages, to look at (tests, the simulator).
    pub fn stages(&self) -> &Stages {
        &self.evictors.stages
    }

    /// Wakes every thread of this engine that sleeps: each checks whether it is to stop.
    pub fn wake_all_threads(&self) {
        self.evictors.pace.wake_all(&self.futex);
        self.wake_readers();
        self.wake_drainer();
        self.wake_watcher();
    }

    /// Whether threads of this engine would have something to do, if there were any: frames are short, or pages could be read
    /// ahead.
    #[inline]
    pub fn wants_threads(&self) -> bool {
        self.is_short() || self.requests.want_reader() || self.wishes.any_leave() || self.wishes.any_come()
    }

    /// All threads of this engine have ended.
    pub fn threads_have_ended(&self) {
        self.requests.forget_readers();
    }

    /// Whether somebody wants events of this kind: a policy, or a tracer outside.
    #[inline]
    pub fn is_wanted(&self, kind: Kind) -> bool {
        self.audience.wants(kind) || traced(kind).is_some_and(W::Tracer::hears)
    }

    /// Tells an event to the policies that want it and to tracers: the one place for both, so that they hear the same.
    pub fn tell_event(&self, event: &Event) {
        if self.audience.wants(event.kind) {
            self.audience.tell(event);
        }
        if let Some(what) = traced(event.kind).filter(|&what| W::Tracer::hears(what)) {
            let instruction = if what == Traced::Fault { event.more[0] } else { 0 };
            let detail = event.detail.into();
            W::Tracer::tell(what, &Told { address: event.address, pages: event.pages, detail, instruction });
        }
    }

    /// Tells an event about `pages` pages to those who want it.
    #[inline]
    pub(crate) fn tell(&self, kind: Kind, detail: u8, first: Page, pages: u64) {
        if self.is_wanted(kind) {
            self.tell_event(&Event { detail, ns: self.clock.now_ns(), ..Event::new(kind, first.addr(), pages) });
        }
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

    /// The checksum of a page in `slot`. The slot is part of it, so that a device that delivers another slot's bytes is
    /// detected.
    #[inline]
    pub(crate) fn checksum(slot: Slot, bytes: &PageBuf) -> u64 {
        xxhash_rust::xxh3::xxh3_64_with_seed(&bytes.0, slot.number())
    }

    /// Whether these bytes are those that were written to `slot`. Of a page of a mapped file nothing says what they must be: what the file
    /// gives is the page.
    #[inline]
    fn is_right(&self, slot: Slot, bytes: &PageBuf) -> bool {
        slot.is_of_file() || Self::checksum(slot, bytes) == self.slots.sum(slot)
    }

    /// Checks the invariants while no thread is moving anything (tests, the simulator, once a second in a soak).
    ///
    /// # Panics
    /// When an invariant does not hold.
    pub fn assert_valid_when_quiet(&self) {
        self.frames().assert_valid();
        self.slots.assert_valid();
    }
}
