//! The memory limit: what it is divided into, and when frames are short.
//!
//! ```text
//!  limit = stages (at most as many as for the first limit) + pages that a swap space keeps in RAM + frames
//!          └───────────────────────────── divided anew as they change ──────────────────────────────────┘
//! ```
//!
//! # Protocol
//!
//! * A thread that changes what the division rests on (the limit, the pages that a space keeps, the evictors' margin) changes it
//!   first, and **then** divides, under a lock. So the thread that divides last has seen the last change.
//! * A swap space that keeps pages in RAM takes them out of the frames. The frames of pages that are on their way there are
//!   *withheld*: an evictor gives them back when the space has the pages, and after it has divided the limit. So frames, stages
//!   and space together are never more than the limit.
//! * Stages that evictors give up (`evict::headroom`) are gone before they are divided; stages that evictors want more of are *set aside* first, and *taken* when there is no
//!   debt of frames. So frames and stages are never more than the limit.
//! * A thread that gives frames back signals the event [`Budget::came`] afterwards. A fault reads the number of the event, then
//!   looks for a frame, then sleeps. So no wake-up is lost.
//!
//! # Cache lines
//!
//! Each fault reads the watermarks. They lie with words that are written only when the limit is divided; what evictors write with
//! each batch has lines of its own.

use crate::Engine;
use crate::evict::headroom::LEAN_MARKS;
use crate::shape::Sizes;
use crate::stats::{Count, FaultKind};
use core::sync::atomic::{Ordering, fence};
use farshore_attach::Kind;
use farshore_core::frames::Frames;
use farshore_core::limits::{MEMORY_LIMIT_MIN, PAGE_SIZE};
use farshore_core::page::Page;
use farshore_core::seams::{FaultsSeen, Kernel, MemoryBudget, World};
use farshore_core::spin::SpinLock;
use farshore_core::sync::plain::AtomicU64;
use farshore_core::sync::{Futex, Padded};
use farshore_core::wait::Event;

/// What evictors want of the watermarks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Margin {
    /// Pages of a batch.
    pub(crate) batch: u64,
    /// Percent of the frames that are to be free, if that was said.
    pub(crate) percent: Option<u64>,
    /// As few are to be free as can be (`evict::headroom`).
    pub(crate) lean: bool,
}

/// When evictors start and stop, in free frames.
#[derive(Debug, Default)]
struct Watermarks {
    low: AtomicU64,
    high: AtomicU64,
}

impl Watermarks {
    fn set(&self, frames: u64, margin: Margin) {
        // High: two batches, but never more than a sixteenth of all frames: frames that are free are frames that the
        // program misses. Low: half of that, so that an evictor wakes before frames run out.
        let high = farshore_core::limits::high_watermark(margin.batch, frames);
        // This many percent, if the user has set it: an evictor wakes when fewer are free, and frees a batch more (Adios,
        // section 3.3).
        let (low, high) = match margin.percent.map(|percent| frames * percent / 100) {
            Some(low) if low > high / 2 => (low, low + high / 2),
            _ if margin.lean => LEAN_MARKS,
            _ => (high / 2, high),
        };
        self.high.store(high, Ordering::Relaxed);
        self.low.store(low, Ordering::Relaxed);
    }
}

/// What evictors count when a swap space keeps pages in RAM.
#[derive(Debug, Default)]
struct Kept {
    /// Frames of pages that were evicted, and that the space has not received yet.
    withheld: AtomicU64,
    /// How often such frames were given back.
    given: AtomicU64,
    /// The most pages that were ever resident together with those in the space; 0: there was never such a space.
    resident_peak: AtomicU64,
    /// By how much the space is squeezed, which is seldom.
    squeeze: Squeeze,
}

/// Pages that a space keeps in RAM have slots of the spaces below, so they make no room: where slots are wanted, each is a frame less for a page that cannot leave.
/// So the space gives memory back, an eighth at a time, for as long as nearly all slots are in use.
#[derive(Debug)]
struct Squeeze {
    /// It may keep so many pages; `u64::MAX`: it is not squeezed.
    most: AtomicU64,
    /// The fewest that it has kept since.
    least: AtomicU64,
    /// Slots that were in use when one was wanted last.
    wanted_at: AtomicU64,
}

impl Default for Squeeze {
    fn default() -> Squeeze {
        Squeeze { most: AtomicU64::new(u64::MAX), least: AtomicU64::new(u64::MAX), wanted_at: AtomicU64::new(0) }
    }
}

impl Squeeze {
    fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    /// A slot was wanted in vain, with so many in use, while the space keeps so many pages.
    fn tighten(&self, kept: u64, batch: u64, live: u64) {
        self.wanted_at.store(live, Ordering::Relaxed);
        let most = self.most();
        if kept > 0 && kept <= most {
            let _ =
                self.most.compare_exchange(most, kept - kept.min((kept / 8).max(batch)), Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Whether the space is squeezed no more, with so many slots in use. They are counted if it is.
    fn loosen(&self, live: impl FnOnce() -> u64) -> bool {
        let wanted_at = self.wanted_at.load(Ordering::Relaxed);
        let over = self.most() != u64::MAX && live() < wanted_at - wanted_at / 16;
        if over {
            self.end();
        }
        over
    }

    fn end(&self) {
        self.most.store(u64::MAX, Ordering::Relaxed);
        self.least.store(u64::MAX, Ordering::Relaxed);
    }

    /// Whether a space that is squeezed keeps fewer pages than ever since.
    fn gives_way(&self, kept: u64) -> bool {
        self.most() != u64::MAX && kept < self.least.fetch_min(kept, Ordering::Relaxed)
    }
}

/// The memory limit of one engine.
#[derive(Debug)]
pub(crate) struct Budget {
    frames: Frames,
    /// Frames came free.
    came: Event,
    /// Held by the thread that divides the limit.
    dividing: Padded<SpinLock<()>>,
    kept: Padded<Kept>,
    sizes: Sizes,
    /// Stages that evictors' rings have, …
    stages: AtomicU64,
    /// … and these with those that are set aside for them.
    aside: AtomicU64,
    /// The most pages that were resident before stages became more or fewer.
    earlier_peak: AtomicU64,
    /// The limit that was asked for, in pages.
    limit: AtomicU64,
    watermarks: Watermarks,
}

/// Pages that the swap space keeps in RAM.
fn kept_by(backend: &impl MemoryBudget) -> u64 {
    backend.own_memory().map_or(0, |bytes| bytes.div_ceil(PAGE_SIZE as u64))
}

impl Budget {
    pub(crate) fn new(sizes: Sizes, cores: usize, margin: Margin) -> Budget {
        let watermarks = Watermarks::default();
        watermarks.set(sizes.frames, margin);
        Budget {
            frames: Frames::new(sizes.frames, cores),
            came: Event::new(),
            dividing: Padded(SpinLock::new(())),
            kept: Padded::default(),
            sizes,
            stages: AtomicU64::new(sizes.stages),
            aside: AtomicU64::new(sizes.stages),
            earlier_peak: AtomicU64::new(0),
            limit: AtomicU64::new(sizes.frames + sizes.stages),
            watermarks,
        }
    }

    /// See [`Frames::without_caches`].
    pub(crate) fn without_caches(self) -> Budget {
        Budget { frames: self.frames.without_caches(), ..self }
    }

    /// The frames of the limit.
    #[inline]
    pub(crate) fn frames(&self) -> &Frames {
        &self.frames
    }

    /// What threads sleep on until frames come free.
    #[inline]
    pub(crate) fn came(&self) -> &Event {
        &self.came
    }

    #[inline]
    pub(crate) fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// The limit that was asked for, in pages.
    fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// See [`Engine::floor`].
    fn floor(&self) -> u64 {
        self.sizes.stages + 4 * self.sizes.batch as u64
    }

    /// Sets the limit, in pages, or the floor if that is more. The caller divides the limit afterwards.
    fn set_limit(&self, pages: u64) {
        self.limit.store(pages.max(self.floor()), Ordering::Relaxed);
    }

    /// Divides the limit. Returns whether there are more frames than before.
    fn divide(&self, backend: &impl MemoryBudget, margin: impl FnOnce() -> Margin) -> bool {
        self.dividing.0.with(|()| {
            let pages = self.limit();
            let least = self.floor() - self.sizes.stages;
            backend.allow_memory((pages - self.floor()).min(self.kept.0.squeeze.most()) * PAGE_SIZE as u64);
            // A thread that raises the space's share after this look divides again.
            let frames = pages.saturating_sub(self.aside.load(Ordering::Relaxed) + kept_by(backend)).max(least);
            let before = self.frames.limit();
            if frames != before {
                self.frames.set_limit(frames);
                self.watermarks.set(frames, margin());
            }
            frames > before
        })
    }

    /// Stages whose memory is there, of so many that were ever used.
    fn staged(&self, ever_used: u64) -> u64 {
        ever_used.min(self.stages.load(Ordering::Acquire))
    }

    /// The memory of so many stages is gone, which is no ring's any more, and `aside` are not set aside any longer. The caller divides the limit afterwards.
    pub(crate) fn give_stages(&self, stages: u64, aside: u64, ever_used: u64) {
        self.keep_peak(ever_used);
        self.stages.fetch_sub(stages, Ordering::AcqRel);
        self.aside.fetch_sub(aside, Ordering::AcqRel);
    }

    /// So many stages more are set aside. The caller divides the limit afterwards.
    pub(crate) fn set_aside(&self, stages: u64) {
        self.aside.fetch_add(stages, Ordering::AcqRel);
    }

    /// A ring takes so many of the stages that were set aside. There was no debt of frames meanwhile.
    pub(crate) fn take_stages(&self, stages: u64, ever_used: u64) {
        self.keep_peak(ever_used);
        self.stages.fetch_add(stages, Ordering::AcqRel);
    }

    /// Stages are about to become more or fewer: from now on the most frames go with another number of them.
    fn keep_peak(&self, ever_used: u64) {
        self.earlier_peak.fetch_max(self.resident_peak(ever_used), Ordering::Relaxed);
        self.frames.restart_peak();
    }

    /// The margin has changed: sets the watermarks anew.
    pub(crate) fn set_margin(&self, margin: impl FnOnce() -> Margin) {
        self.dividing.0.with(|()| self.watermarks.set(self.frames.limit(), margin()));
    }

    /// Free frames at which evictors start and stop.
    pub(crate) fn watermarks(&self) -> (u64, u64) {
        (self.watermarks.low.load(Ordering::Relaxed), self.watermarks.high.load(Ordering::Relaxed))
    }

    /// Whether evictors should be at work: `started` says that they are already.
    #[inline]
    pub(crate) fn is_short(&self, started: bool) -> bool {
        let mark = if started { &self.watermarks.high } else { &self.watermarks.low };
        self.frames.debt() > 0 || self.frames.free_uncached() < mark.load(Ordering::Relaxed)
    }

    /// Free frames that pages which come along must leave for faults.
    #[inline]
    pub(crate) fn spare_mark(&self) -> u64 {
        self.watermarks.low.load(Ordering::Relaxed) / 2
    }

    /// Gives frames back on `core`, and wakes faults that wait for one.
    pub(crate) fn give(&self, kernel: &impl Kernel, futex: &impl Futex, core: usize, n: u64) {
        if n > 0 {
            self.frames.give(core, n);
            kernel.interleave();
            self.came.signal(futex);
        }
    }

    /// Of the frames of `written` pages that are about to be written: how many are withheld until the space has the pages.
    fn withhold(&self, backend: &impl MemoryBudget, written: u64) -> u64 {
        let withheld = if backend.takes_memory() { written } else { 0 };
        if withheld > 0 {
            // AcqRel: who sees the pages in the space sees that their frames are withheld (`resident_exactly`).
            self.kept.withheld.fetch_add(withheld, Ordering::AcqRel);
        }
        withheld
    }

    /// So many frames were given back that had been withheld. `staged`: stages that were ever used.
    fn end_withholding(&self, backend: &impl MemoryBudget, count: u64, staged: u64) {
        self.kept.withheld.fetch_sub(count, Ordering::Relaxed);
        let given = self.kept.given.fetch_add(1, Ordering::AcqRel) + 1;
        if let Some(resident) = self.resident_exactly(backend, staged, given) {
            self.kept.resident_peak.fetch_max(resident, Ordering::Relaxed);
        }
    }

    /// What `look` finds, and how many frames were withheld meanwhile: of pages that come into the space during the look they are.
    fn while_withheld<R>(&self, look: impl FnOnce() -> R) -> (R, u64) {
        let before = self.kept.withheld.load(Ordering::Acquire);
        let found = look();
        fence(Ordering::Acquire);
        (found, before.max(self.kept.withheld.load(Ordering::Acquire)))
    }

    /// As [`Budget::resident`], never too many: `None` if other threads have moved frames meanwhile. `given` is the number of `kept`.
    fn resident_exactly(&self, backend: &impl MemoryBudget, staged: u64, given: u64) -> Option<u64> {
        // Pages that came into the space meanwhile are among `taken`.
        let ((frames, kept), withheld) = self.while_withheld(|| (self.frames.look(), kept_by(backend)));
        let quiet = frames.missing() == 0 && self.kept.given.load(Ordering::Acquire) == given;
        quiet.then(|| frames.taken.saturating_sub(withheld) + self.staged(staged) + kept)
    }

    /// Pages of the limit that are in RAM.
    fn resident(&self, backend: &impl MemoryBudget, staged: u64) -> u64 {
        // Read first: frames that are given back meanwhile are in neither number rather than in both.
        let withheld = self.kept.withheld.load(Ordering::Acquire);
        self.frames.taken().saturating_sub(withheld) + self.staged(staged) + kept_by(backend)
    }

    /// See [`Engine::budget`].
    fn held(&self, backend: &impl MemoryBudget) -> u64 {
        // Frames that are withheld are as good as free: their pages are in stages, and what the space has got of them was not divided
        // yet. They must not look like a budget above the limit, which others would want back.
        // The space last: where it gives memory back, that is in one number at most.
        let all = || self.frames.limit() + self.frames.debt() + self.stages.load(Ordering::Relaxed) + kept_by(backend);
        let (all, withheld) = self.while_withheld(all);
        // A limit that was just lowered holds when it is divided.
        self.limit().max(all.saturating_sub(withheld))
    }

    /// The most pages of the limit that ever were in RAM.
    fn resident_peak(&self, staged: u64) -> u64 {
        match self.kept.resident_peak.load(Ordering::Relaxed) {
            0 => self.earlier_peak.load(Ordering::Relaxed).max(self.frames.taken_peak() + self.staged(staged)),
            peak => peak,
        }
    }
}

impl<W: World> Engine<W> {
    /// Frames of the limit.
    #[inline]
    pub fn frames(&self) -> &Frames {
        self.budget.frames()
    }

    /// The memory limit, bytes.
    pub fn memory_limit(&self) -> u64 {
        self.budget.limit() * PAGE_SIZE as u64
    }

    /// Managed pages in RAM, bytes: pages that are resident or about to be, every stage that was ever used, and pages that a
    /// swap space keeps in RAM.
    pub fn resident_bytes(&self) -> u64 {
        self.budget.resident(&self.backend, self.evictors.stages.ever_used()) * PAGE_SIZE as u64
    }

    /// The most that [`Engine::resident_bytes`] ever was, or a little more; never above the limit.
    pub fn resident_bytes_peak(&self) -> u64 {
        self.budget.resident_peak(self.evictors.stages.ever_used()) * PAGE_SIZE as u64
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
        self.budget.floor()
    }

    /// Pages that this engine may have or still has: its limit, the debt of a lowered limit, and what a swap space has yet to give back.
    pub fn budget(&self) -> u64 {
        self.budget.held(&self.backend)
    }

    /// Pages of the budget that are in use.
    pub fn in_use(&self) -> u64 {
        self.budget.resident(&self.backend, self.sizes().stages)
    }

    /// Changes the limit to `pages`, or [`Engine::floor`] if that is more. A higher limit holds at once, a lower one as
    /// evictors free frames.
    pub fn set_budget(&self, pages: u64) {
        self.budget.set_limit(pages);
        self.divide_limit();
        self.budget.came().signal(&self.futex);
        self.evictors.pace.wake_all(&self.futex);
        self.tell(Kind::Limit, 0, Page(0), pages);
    }

    /// Divides the limit: RAM in which a swap space keeps pages is not available for frames. Called by any thread.
    pub(crate) fn divide_limit(&self) {
        if self.budget.divide(&self.backend, || self.evictors.pace.margin()) {
            self.budget.came().signal(&self.futex);
        }
    }

    /// No space has a slot for a page that has to leave, though all of them work: a space that keeps pages in RAM is to keep fewer.
    pub(crate) fn squeeze_space(&self) {
        let kept = kept_by(&self.backend);
        if kept > 0 && self.health.all_work() {
            self.budget.kept.0.squeeze.tighten(kept, self.budget.sizes.batch as u64, self.slots.live());
        }
    }

    /// Ends that, if slots have come free since.
    pub(crate) fn loosen_space(&self) {
        self.budget.kept.0.squeeze.loosen(|| self.slots.live());
    }

    /// Another space has come: see [`Engine::squeeze_space`].
    pub(crate) fn end_squeeze(&self) {
        self.budget.kept.0.squeeze.end();
    }

    /// What a space that decides how much memory it is worth is told of faults.
    pub(crate) fn faults_seen(&self) -> FaultsSeen {
        FaultsSeen {
            rescued: self.stats.faults(FaultKind::Rescue),
            stages: self.budget.staged(self.evictors.stages.ever_used()),
            waited_ns: self.stats.total(Count::PageWaitNs),
        }
    }

    /// Whether such a space has just given memory back, so that faults which wait for a frame may expect one.
    pub(crate) fn space_gives_way(&self) -> bool {
        self.budget.kept.0.squeeze.gives_way(kept_by(&self.backend))
    }

    /// Of a batch that leaves, `written` pages are to be written; the others are in their slots. Frames of the others are free
    /// now. Frames of the written pages are free now too, unless the swap space keeps pages in RAM itself. In that case they are
    /// free when the space has the pages and they were counted ([`Engine::give_withheld`]). Returns whether that is so.
    pub(crate) fn give_evicted(&self, core: usize, count: u64, written: u64) -> bool {
        let withheld = self.budget.withhold(&self.backend, written);
        self.give_frames(core, count - withheld);
        withheld > 0
    }

    /// The swap space is offered `count` pages that leave. If it may keep copies in RAM, their frames are free when that was counted ([`Engine::give_withheld`]).
    /// Returns how many those are: all or none.
    pub(crate) fn withhold(&self, count: u64) -> u64 {
        self.budget.withhold(&self.backend, count)
    }

    /// Withholds up to `count` free frames, for pages that leave whose frames went back already, if the space keeps pages in RAM. Returns how many: fewer where
    /// frames are short, since pages that have to leave must not wait for frames.
    pub(crate) fn withhold_free(&self, core: usize, count: u64) -> u64 {
        if self.backend.own_memory().is_none() {
            return 0;
        }
        let taken = self.frames().take_spare(core, count, 0);
        let withheld = self.withhold(taken);
        self.give_frames(core, taken - withheld);
        withheld
    }

    /// The swap space was given `count` pages of a batch, or will not be given them.
    pub(crate) fn give_withheld(&self, core: usize, count: u64) {
        if self.backend.own_memory().is_some() {
            self.divide_limit();
            self.give_frames(core, count);
            self.budget.end_withholding(&self.backend, count, self.evictors.stages.ever_used());
        }
    }

    /// Frames went back, on `core`: wakes faults that wait for one.
    pub(crate) fn give_frames(&self, core: usize, n: u64) {
        self.budget.give(&self.kernel, &self.futex, core, n);
    }

    /// Whether free frames are short, so that more would be of use.
    pub fn is_short(&self) -> bool {
        self.budget.is_short(false)
    }

    /// Whether free frames are short once `pages` more are taken.
    pub fn is_short_after(&self, pages: u64) -> bool {
        self.is_short() || self.frames().free_uncached() < self.budget.watermarks().0 + pages
    }

    /// Whether there are enough frames for all managed pages and this many more, should all of them be touched.
    pub fn would_fit(&self, more: u64) -> bool {
        self.frames().debt() == 0 && self.stats.managed().saturating_add(more) <= self.frames().limit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;

    const SIZES: Sizes = Sizes { batch: 64, stages_each: 192, stages: 192, frames: 3904 };
    const MARGIN: Margin = Margin { batch: 64, percent: None, lean: false };

    /// A space that keeps this many pages in RAM, and what it may keep.
    struct Keeps {
        pages: AtomicU64,
        allowed: AtomicU64,
    }

    impl MemoryBudget for Keeps {
        fn own_memory(&self) -> Option<u64> {
            Some(self.pages.load(Ordering::Relaxed) * PAGE_SIZE as u64)
        }
        fn allow_memory(&self, bytes: u64) {
            self.allowed.store(bytes / PAGE_SIZE as u64, Ordering::Relaxed);
        }
    }

    /// A space that keeps its pages on a disk.
    struct Disk;
    impl MemoryBudget for Disk {}

    fn budget() -> Budget {
        Budget::new(SIZES, 1, MARGIN)
    }

    #[test]
    fn a_lower_limit_leaves_debt_and_a_higher_one_frames() {
        let budget = budget();
        assert!((0..3904).all(|_| budget.frames().take(0)));
        budget.set_limit(2096);
        assert!(!budget.divide(&Disk, || MARGIN));
        assert_eq!((budget.frames().limit(), budget.frames().debt(), budget.limit()), (1904, 2000, 2096));
        assert!(budget.is_short(false), "a debt is a shortage, whatever is free");
        budget.set_limit(8192);
        assert!(budget.divide(&Disk, || MARGIN), "there are more frames than before");
        assert_eq!((budget.frames().limit(), budget.frames().debt()), (8000, 0));
        budget.set_limit(1);
        assert!(!budget.divide(&Disk, || MARGIN));
        assert_eq!((budget.limit(), budget.frames().limit()), (192 + 4 * 64, 4 * 64), "no limit is below the floor");
    }

    #[test]
    fn pages_of_a_space_are_taken_from_the_frames_and_no_page_is_counted_twice() {
        let (budget, space) = (budget(), Keeps { pages: AtomicU64::new(0), allowed: AtomicU64::new(0) });
        assert!((0..3000).all(|_| budget.frames().take(0)));
        assert!(!budget.divide(&space, || MARGIN));
        assert_eq!(space.allowed.load(Ordering::Relaxed), 4096 - (192 + 4 * 64), "the space may have all but the floor");
        // A batch leaves for the space: its stages have the bytes, and its frames are withheld.
        assert_eq!(budget.withhold(&space, 64), 64);
        assert_eq!(budget.resident(&space, 64), 3000);
        // The space has the pages, at half their size.
        space.pages.store(32, Ordering::Relaxed);
        assert_eq!(budget.held(&space), 4096, "which came from frames of the limit");
        assert!(!budget.divide(&space, || MARGIN));
        assert_eq!(budget.frames().limit(), 3904 - 32);
        budget.frames().give(0, 64);
        budget.end_withholding(&space, 64, 64);
        assert_eq!(budget.held(&space), 4096);
        assert_eq!((budget.resident(&space, 64), budget.resident_peak(64)), (2936 + 64 + 32, 2936 + 64 + 32));
        assert_eq!(budget.resident_exactly(&space, 64, 1), Some(2936 + 64 + 32));
        assert_eq!(budget.resident_exactly(&space, 64, 0), None, "another evictor has given frames back meanwhile");
        assert_eq!(budget.withhold(&Disk, 64), 0, "a disk has the pages somewhere else");
    }

    #[test]
    fn what_is_held_is_the_limit_at_each_moment_of_a_batch_and_more_only_where_it_was_lowered() {
        let (budget, space) = (budget(), Keeps { pages: AtomicU64::new(0), allowed: AtomicU64::new(0) });
        assert!((0..3904).all(|_| budget.frames().take(0)));
        assert_eq!(budget.withhold(&space, 64), 64);
        space.pages.store(40, Ordering::Relaxed);
        assert_eq!(budget.held(&space), 4096, "pages came");
        assert!(!budget.divide(&space, || MARGIN));
        assert_eq!((budget.frames().debt(), budget.held(&space)), (40, 4096), "whose frames are about to pay for them");
        budget.frames().give(0, 64);
        assert_eq!((budget.frames().debt(), budget.held(&space)), (0, 4096));
        budget.end_withholding(&space, 64, 64);
        budget.set_limit(2096);
        assert_eq!(budget.held(&space), 4096, "it is not divided yet");
        assert!(!budget.divide(&space, || MARGIN));
        // What was free is gone, and the rest is to come.
        assert_eq!((budget.frames().debt(), budget.held(&space)), (2000 - 24, 2096 + 2000 - 24));
        // A space that has more than it may.
        space.pages.store(3000, Ordering::Relaxed);
        assert!(!budget.divide(&space, || MARGIN));
        assert_eq!(budget.held(&space), 192 + 4 * 64 + 3000 + budget.frames().debt());
    }

    #[test]
    fn stages_and_frames_are_the_limit_at_each_moment_in_which_a_ring_changes() {
        let budget = budget();
        let most = |budget: &Budget| budget.frames().limit() + budget.frames().debt() + budget.staged(192);
        assert!((0..3904).all(|_| budget.frames().take(0)));
        budget.give_stages(188, 188, 192);
        assert_eq!((most(&budget), budget.held(&Disk)), (3908, 4096), "they are gone before they are frames");
        assert!(budget.divide(&Disk, || MARGIN));
        assert_eq!((most(&budget), budget.frames().limit()), (4096, 4092));
        assert!((0..188).all(|_| budget.frames().take(0)));
        assert_eq!((budget.resident(&Disk, 192), budget.resident_peak(192)), (4096, 4096));
        // Four more: frames pay for them.
        budget.set_aside(4);
        assert!(!budget.divide(&Disk, || MARGIN));
        assert_eq!((most(&budget), budget.frames().debt(), budget.held(&Disk)), (4096, 4, 4096));
        budget.frames().give(0, 4);
        assert_eq!((budget.frames().debt(), most(&budget)), (0, 4092));
        budget.take_stages(4, 192);
        assert_eq!((most(&budget), budget.resident(&Disk, 192), budget.resident_peak(192)), (4096, 4096, 4096));
        // All of them, and the limit falls meanwhile.
        budget.set_aside(184);
        budget.set_limit(2096);
        assert!(!budget.divide(&Disk, || MARGIN));
        assert_eq!((budget.frames().limit(), budget.frames().debt()), (1904, 4088 - 1904));
        budget.frames().give(0, 4088 - 1904);
        budget.take_stages(184, 192);
        assert_eq!((most(&budget), budget.resident_peak(192)), (2096, 4096));
    }

    #[test]
    fn a_space_gives_memory_back_while_slots_are_wanted() {
        let (budget, space) = (budget(), Keeps { pages: AtomicU64::new(1600), allowed: AtomicU64::new(0) });
        let squeeze = &budget.kept.0.squeeze;
        let allowed = || {
            let _ = budget.divide(&space, || MARGIN);
            space.allowed.load(Ordering::Relaxed)
        };
        let all = allowed();
        assert!(!squeeze.gives_way(1600), "nobody has asked for that");
        squeeze.tighten(1600, 64, 10_000);
        assert_eq!(allowed(), 1400);
        squeeze.tighten(1600, 64, 10_000);
        assert_eq!(allowed(), 1400, "it has not done so yet");
        assert!(squeeze.gives_way(1600) && squeeze.gives_way(1500) && !squeeze.gives_way(1500), "each time that it is less");
        for kept in [1400, 100, 30] {
            squeeze.tighten(kept, 64, 10_000);
        }
        assert_eq!(allowed(), 0, "a batch at least");
        assert!(!squeeze.loosen(|| 9_500) && squeeze.loosen(|| 9_000) && !squeeze.loosen(|| 0));
        assert_eq!((allowed(), squeeze.gives_way(0)), (all, false));
    }

    #[test]
    fn watermarks_follow_batch_frames_and_percent() {
        let budget = budget();
        assert_eq!(budget.watermarks(), (64, 128));
        budget.set_margin(|| Margin { batch: 512, percent: None, lean: false });
        assert_eq!(budget.watermarks(), (122, 244), "a sixteenth of the frames at most");
        budget.set_margin(|| Margin { batch: 64, percent: Some(10), lean: false });
        assert_eq!((budget.watermarks(), budget.spare_mark()), ((390, 454), 195));
        budget.set_margin(|| Margin { batch: 64, percent: Some(1), lean: false });
        assert_eq!(budget.watermarks(), (64, 128), "fewer than evictors want are not enough");
        budget.set_margin(|| Margin { batch: 1, percent: None, lean: false });
        assert_eq!(budget.watermarks(), (8, 16), "never none");
        budget.set_margin(|| Margin { batch: 2, percent: None, lean: true });
        assert_eq!((budget.watermarks(), budget.spare_mark()), (LEAN_MARKS, 0));
    }

    #[test]
    fn evictors_begin_at_the_low_mark_and_end_at_the_high_one() {
        let budget = budget();
        assert_eq!(budget.frames().take_spare(0, 3904 - 64, 0), 3904 - 64);
        assert!(!budget.is_short(false) && budget.is_short(true));
        assert_eq!(budget.frames().take_spare(0, 1, 0), 1);
        assert!(budget.is_short(false));
        budget.frames().give(0, 65);
        assert!(!budget.is_short(true));
    }
}
