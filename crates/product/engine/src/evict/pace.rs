//! Carries out what [`super::control`] decides: which evictors are awake. Measures what the decision rests on.
//!
//! ```text
//!  evictors, faults ─▶ gauges ─▶ Control::look (an evictor, after a step, every 10 ms at most) ─▶ Controller ─▶ pace
//! ```
//!
//! **Awake and on standby.** The evictors from number `first` on, round about, are awake, as many as the pace says. They sleep on
//! the event `work`, which faults signal ([`Control::wake`]). The others are on standby: they end their writes, then sleep on an event of their own.
//! That event is signalled only if one of them is to wake, or if all evictors are asked for something (a fork, a drain). So
//! evictors on standby cost nothing.
//!
//! **Turns.** Stages belong to an evictor, and pages that linger in them are rescued without a read. So that the stages of
//! evictors on standby are used too, the first evictor offers its turn when it has gone round its ring, or when it finds nothing
//! that it can do. The next evictor on standby takes the turn when it has woken. Until then the first goes on, so some evictor is
//! always at work.
//!
//! **A stuck evictor holds up no fault.** The evictor that is awake may be inside a call that does not return (a file system that
//! hangs). A fault that has waited for a frame in vain for 100 ms raises the *alarm*: until the next decision all evictors are
//! awake, and then another one is the first.
//!
//! An evictor looks whether it is awake after it has read the numbers of both events, and sleeps on the event that goes with what
//! it saw. A thread that changes which evictors are awake signals `standby` afterwards. So no wake-up is lost.

use super::control::{Controller, Pace, WINDOW_NS, Wanted, Window};
use super::headroom::{Headroom, LEAN_BATCH};
use super::pipeline::{Evictor, Progress};
use crate::budget::{Budget, Margin};
use crate::stats::{Count, Stats};
use crate::{Engine, Shape};
use core::sync::atomic::Ordering;
use farshore_core::frames::Frames;
use farshore_core::seams::{Clock, World};
use farshore_core::spin::SpinLock;
use farshore_core::sync::plain::{AtomicBool, AtomicU32, AtomicU64};
use farshore_core::sync::{Futex, Padded};
use farshore_core::wait::Event;

/// Percent of the frames that are kept free while requests are served and the user has set nothing else.
const FREE_PERCENT: u64 = 15;

/// What evictors and faults have counted since the start.
#[derive(Debug, Default)]
struct Gauges {
    occupied_ns: AtomicU64,
    stalls: AtomicU64,
    writes: AtomicU64,
    ratios: AtomicU64,
    /// Writes that devices have now, and the most that they ever had.
    flying: AtomicU32,
    flying_peak: AtomicU32,
    /// The most batches that one evictor ever had under way.
    batches_peak: AtomicU32,
    /// Evictors that stay on one core, a bit each.
    bound: AtomicU64,
    changes: AtomicU64,
}

/// The controller, and the sums that it had seen at its last decision.
#[derive(Debug)]
struct Decider {
    controller: Controller,
    seen: Seen,
}

/// Sums at one moment; a window is the difference of two.
#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    now_ns: u64,
    /// Frames that were freed for others, plus frames that are taken: goes up by one with each frame that is taken.
    taken: u64,
    waits: u64,
    missed: u64,
    occupied_ns: u64,
    stalls: u64,
    writes: u64,
    ratios: u64,
}

impl Seen {
    fn since(self, before: Seen) -> Window {
        Window {
            ns: self.now_ns.saturating_sub(before.now_ns),
            // No thread asks for the frames that the program gave up meanwhile.
            demand: self.taken.saturating_sub(before.taken),
            waits: self.waits - before.waits,
            missed: self.missed - before.missed,
            occupied_ns: self.occupied_ns - before.occupied_ns,
            stalls: self.stalls - before.stalls,
            writes: self.writes - before.writes,
            ratios: self.ratios - before.ratios,
        }
    }
}

/// The pace of the evictors.
#[derive(Debug)]
pub(crate) struct Control {
    /// Number of evictors.
    evictors: u32,
    awake: AtomicU32,
    batch: AtomicU32,
    writes: AtomicU32,
    /// The first evictor that is awake.
    first: AtomicU32,
    /// The first evictor offers its turn to the next on standby.
    offer: AtomicBool,
    alarm: AtomicBool,
    /// The number of evictors awake is fixed: there is no alarm.
    fixed: AtomicBool,
    /// Percent of the frames that are kept free, as the user has said; 0: nothing was said.
    free: AtomicU32,
    /// The program serves requests.
    serving: AtomicBool,
    /// The user has said how many pages a batch has.
    fixed_batch: AtomicBool,
    pub(crate) headroom: Headroom,
    /// What evictors sleep on that are awake: there is work.
    work: Event,
    /// What evictors on standby sleep on.
    standby: Event,
    /// When the next decision is due, ns.
    due_ns: AtomicU64,
    gauges: Padded<Gauges>,
    decider: SpinLock<Decider>,
}

/// What an evictor has read of both events before it looks at anything else.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prepared {
    work: u32,
    standby: u32,
}

/// Numbers about the evictors, to look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Paced {
    /// The pace that is in force now.
    pub pace: Pace,
    /// Which parts of it the user has fixed.
    pub wanted: Wanted,
    /// Number of evictors.
    pub evictors: u32,
    /// Free frames at which evictors start and stop.
    pub watermarks: (u64, u64),
    /// Writes that devices have now, all evictors together.
    pub writes_in_flight: u32,
    /// The most they ever had.
    pub writes_in_flight_peak: u32,
    /// The most batches that one evictor ever had under way: selected, and not all of it written.
    pub batches_in_flight_peak: u32,
    /// Evictors that stay on one core each ([`Engine::note_bound`]).
    pub bound: u32,
    /// How often the pace has changed.
    pub changes: u64,
}

impl Control {
    pub(crate) fn new(shape: &Shape, batch_most: usize) -> Control {
        let wanted = Wanted { batch: shape.ablated.batch.or(shape.wanted.batch), ..shape.wanted };
        let controller = Controller::new(batch_most as u32, shape.evictors as u32, wanted);
        let pace = controller.pace();
        Control {
            evictors: shape.evictors as u32,
            awake: AtomicU32::new(pace.evictors),
            batch: AtomicU32::new(pace.batch),
            writes: AtomicU32::new(pace.writes),
            first: AtomicU32::new(0),
            offer: AtomicBool::new(false),
            alarm: AtomicBool::new(false),
            fixed: AtomicBool::new(shape.wanted.evictors.is_some()),
            free: AtomicU32::new(shape.wanted.free.unwrap_or(0)),
            serving: AtomicBool::new(false),
            fixed_batch: AtomicBool::new(wanted.batch.is_some()),
            headroom: Headroom::new(),
            work: Event::new(),
            standby: Event::new(),
            due_ns: AtomicU64::new(0),
            gauges: Padded(Gauges::default()),
            decider: SpinLock::new(Decider { controller, seen: Seen::default() }),
        }
    }

    /// Pages of a batch now.
    pub(crate) fn batch(&self) -> usize {
        let batch = self.full_batch();
        if self.headroom.is_lean() { batch.min(LEAN_BATCH) } else { batch }
    }

    /// The same where headroom is not lean.
    pub(super) fn full_batch(&self) -> usize {
        self.batch.load(Ordering::Relaxed) as usize
    }

    /// Whether the user, or what the program does, says how large batches are and how much is free.
    pub(super) fn has_margin(&self) -> bool {
        self.fixed_batch.load(Ordering::Relaxed) || self.margin().percent.is_some()
    }

    /// What evictors want of the watermarks.
    pub(crate) fn margin(&self) -> Margin {
        let percent = match self.free.load(Ordering::Relaxed) {
            0 => self.serving.load(Ordering::Relaxed).then_some(FREE_PERCENT),
            said => Some(said.into()),
        };
        Margin { batch: self.batch() as u64, percent, lean: self.headroom.is_lean() }
    }

    /// Writes that an evictor may have with devices that answer.
    pub(super) fn writes(&self) -> u32 {
        self.writes.load(Ordering::Relaxed)
    }

    /// Whether this evictor, which asks, is awake. If a turn is offered and this evictor is next, it takes the turn.
    pub(super) fn is_awake(&self, id: usize) -> bool {
        let (first, awake) = (self.first.load(Ordering::SeqCst), self.awake.load(Ordering::SeqCst));
        let place = (id as u32 + self.evictors - first) % self.evictors;
        if place == awake && self.offer.swap(false, Ordering::SeqCst) {
            let next = (first + 1) % self.evictors;
            return self.first.compare_exchange(first, next, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        }
        place < awake || self.alarm.load(Ordering::SeqCst)
    }

    /// The evictor's rank among those that share the work, and how many share it. The rank is its own number while all are awake,
    /// so that cores keep their evictors.
    pub(super) fn place_of(&self, id: usize) -> (usize, usize) {
        let (first, awake) = (self.first.load(Ordering::Relaxed), self.awake.load(Ordering::Relaxed));
        let place = (id as u32 + self.evictors - first) % self.evictors;
        // Woken by an alarm: works as if all were awake.
        if awake >= self.evictors || place >= awake { (id, self.evictors as usize) } else { (place as usize, awake as usize) }
    }

    /// A device has got a write.
    pub(super) fn write_begins(&self) {
        let now = self.gauges.0.flying.fetch_add(1, Ordering::Relaxed) + 1;
        self.gauges.0.flying_peak.fetch_max(now, Ordering::Relaxed);
    }

    /// An evictor has more batches under way than ever before.
    pub(super) fn note_batches(&self, count: u32) {
        self.gauges.0.batches_peak.fetch_max(count, Ordering::Relaxed);
    }

    /// A write has ended.
    pub(super) fn write_ends(&self) {
        self.gauges.0.flying.fetch_sub(1, Ordering::Relaxed);
    }

    /// A write that was waited for took this many times the floor, in 1/256.
    pub(super) fn note_ratio(&self, ratio: u64) {
        self.gauges.0.ratios.fetch_add(ratio, Ordering::Relaxed);
        self.gauges.0.writes.fetch_add(1, Ordering::Relaxed);
    }

    /// An evictor waits for a write, since it can do nothing else.
    #[inline]
    pub(super) fn note_stall(&self) {
        self.gauges.0.stalls.fetch_add(1, Ordering::Relaxed);
    }

    /// An evictor was at work for so long.
    #[inline]
    fn note_occupied(&self, ns: u64) {
        self.gauges.0.occupied_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Whether evictors let others have the processor after each batch.
    #[inline]
    pub(super) fn steps_aside(&self) -> bool {
        self.serving.load(Ordering::Relaxed)
    }

    /// To be called before an evictor looks whether it is awake, and whether there is work.
    #[inline]
    pub(super) fn prepare(&self) -> Prepared {
        Prepared { work: self.work.prepare(), standby: self.standby.prepare() }
    }

    /// The calling evictor sleeps; `awake` says what it saw after `prepared`.
    pub(super) fn sleep<F: Futex>(&self, futex: &F, prepared: Prepared, awake: bool, limit: Option<u64>) {
        let (event, prepared) = if awake { (&self.work, prepared.work) } else { (&self.standby, prepared.standby) };
        event.sleep(futex, prepared, limit);
    }

    /// There is work: wakes the evictors that are awake, if they sleep.
    pub(crate) fn wake(&self, futex: &impl Futex) {
        self.work.signal(futex);
    }

    /// Wakes every evictor, whether it is awake or on standby.
    pub(crate) fn wake_all(&self, futex: &impl Futex) {
        self.work.signal(futex);
        self.standby.signal(futex);
    }

    /// Whether an evictor sleeps until there is work.
    #[inline]
    fn any_sleeps(&self) -> bool {
        self.work.sleepers() > 0
    }

    /// A fault has waited for a frame for a long time: the evictors that are awake may be stuck.
    #[cold]
    pub(crate) fn raise_alarm(&self, futex: &impl Futex) {
        let may_wake = self.awake.load(Ordering::SeqCst) < self.evictors && !self.fixed.load(Ordering::Relaxed);
        if may_wake && !self.alarm.swap(true, Ordering::SeqCst) {
            self.standby.signal(futex);
        }
    }

    /// Offers the turn of evictor `id`, if it is the first of those awake and others are on standby.
    fn offer_turn(&self, futex: &impl Futex, id: usize) {
        let is_first = self.first.load(Ordering::SeqCst) == id as u32;
        if is_first && self.awake.load(Ordering::SeqCst) < self.evictors && !self.offer.swap(true, Ordering::SeqCst) {
            self.standby.signal(futex);
        }
    }

    /// Changes what the controller goes by. Returns the pace before and now.
    fn change(&self, change: impl FnOnce(&mut Controller)) -> (Pace, Pace) {
        self.decider.with(|decider| {
            let before = decider.controller.pace();
            change(&mut decider.controller);
            (before, decider.controller.pace())
        })
    }

    /// Puts a pace in force. `set_margin` is called when batches have another size now.
    fn put_in_force(&self, futex: &impl Futex, before: Pace, pace: Pace, set_margin: impl FnOnce()) {
        if pace != before {
            self.gauges.0.changes.fetch_add(1, Ordering::Relaxed);
        }
        self.writes.store(pace.writes, Ordering::Relaxed);
        self.awake.store(pace.evictors, Ordering::SeqCst);
        if self.batch.swap(pace.batch, Ordering::Relaxed) != pace.batch {
            set_margin();
        }
        if pace.evictors > before.evictors {
            self.standby.signal(futex);
        }
    }

    /// What was counted until now.
    fn seen(&self, now_ns: u64, stats: &Stats, frames: &Frames) -> Seen {
        let sum = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let gauges = &self.gauges.0;
        Seen {
            now_ns,
            taken: stats.total(Count::Evicted) + frames.taken(),
            waits: stats.total(Count::FrameWaits),
            missed: stats.total(Count::Missed),
            occupied_ns: sum(&gauges.occupied_ns),
            stalls: sum(&gauges.stalls),
            writes: sum(&gauges.writes),
            ratios: sum(&gauges.ratios),
        }
    }

    /// Makes a decision, if one is due: whether it was. Called by an evictor, so never while no evictor has anything to do.
    fn look<F: Futex>(&self, futex: &F, now_ns: u64, stats: &Stats, budget: &Budget) -> bool {
        let due = self.due_ns.load(Ordering::Relaxed);
        let next = now_ns + WINDOW_NS;
        let first = now_ns >= due && self.due_ns.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !first {
            return false;
        }
        let alarm = self.alarm.load(Ordering::SeqCst);
        let seen = self.seen(now_ns, stats, budget.frames());
        let (before, pace) = self.decider.with(|decider| {
            let window = seen.since(core::mem::replace(&mut decider.seen, seen));
            let before = decider.controller.pace();
            if alarm {
                decider.controller.alarm();
            }
            (before, decider.controller.decide(&window))
        });
        self.put_in_force(futex, before, pace, || budget.set_margin(|| self.margin()));
        if alarm {
            // An evictor that is stuck is not the first any more, and takes no turn that is offered.
            let first = self.first.load(Ordering::SeqCst);
            self.first.store((first + 1) % self.evictors, Ordering::SeqCst);
            self.alarm.store(false, Ordering::SeqCst);
        }
        true
    }

    /// Numbers to look at.
    fn paced(&self, watermarks: (u64, u64)) -> Paced {
        let (pace, wanted) = self.decider.with(|decider| (decider.controller.pace(), decider.controller.wanted()));
        let gauges = &self.gauges.0;
        Paced {
            pace: Pace { batch: self.batch() as u32, ..pace },
            wanted,
            evictors: self.evictors,
            watermarks,
            writes_in_flight: gauges.flying.load(Ordering::Relaxed),
            writes_in_flight_peak: gauges.flying_peak.load(Ordering::Relaxed),
            batches_in_flight_peak: gauges.batches_peak.load(Ordering::Relaxed),
            bound: gauges.bound.load(Ordering::Relaxed).count_ones(),
            changes: gauges.changes.load(Ordering::Relaxed),
        }
    }
}

impl<W: World> Engine<W> {
    /// The evictor with this number stays on one core from now on.
    pub fn note_bound(&self, evictor: usize) {
        let bit = 1_u64.checked_shl(evictor as u32).unwrap_or(0);
        self.evictors.pace.gauges.0.bound.fetch_or(bit, Ordering::Relaxed);
    }

    /// How hard evictors work.
    pub fn paced(&self) -> Paced {
        self.evictors.pace.paced(self.budget.watermarks())
    }

    /// Fixes some of the pace, from now on; the rest adapts. Values out of bounds ([`Sizes::batch`](crate::Sizes), the number of
    /// evictors, [`WRITES_MAX`](farshore_core::limits::WRITES_MAX)) are cut to them: callers check before.
    pub fn fix_pace(&self, wanted: Wanted) {
        let pace = &self.evictors.pace;
        pace.fixed.store(wanted.evictors.is_some(), Ordering::Relaxed);
        pace.free.store(wanted.free.unwrap_or(0), Ordering::Relaxed);
        pace.fixed_batch.store(wanted.batch.is_some(), Ordering::Relaxed);
        self.change_pace(|controller| controller.fix(wanted));
    }

    /// The program serves requests from now on, or does not any more. While it does, a request's waiting time counts more than
    /// the cost of a page. What the user has set holds all the same.
    ///
    /// * [`FREE_PERCENT`] of the frames are kept free, so that no request waits for one (Adios, section 3.3).
    /// * Batches are small, and evictors let other threads have the processor after each batch. An evictor that had a worker's
    ///   processor for a whole batch, or for a tick (4 ms), was the tail of all requests of that worker.
    pub fn serve_requests(&self, on: bool) {
        self.evictors.pace.serving.store(on, Ordering::Relaxed);
        self.change_pace(|controller| controller.serve(on));
    }

    /// Changes what the controller goes by, and carries out what follows. Other settings are stored before this call.
    fn change_pace(&self, change: impl FnOnce(&mut Controller)) {
        let control = &self.evictors.pace;
        let (before, pace) = control.change(change);
        let set_margin = || self.budget.set_margin(|| control.margin());
        set_margin();
        control.put_in_force(&self.futex, before, pace, set_margin);
    }

    /// After a frame was taken: wakes evictors in time.
    #[inline]
    pub(crate) fn nudge_evictors(&self) {
        if self.budget.is_short(false) && self.evictors.pace.any_sleeps() {
            self.evictors.pace.wake(&self.futex);
        }
    }
}

impl<W: World> Evictor<'_, W> {
    /// To be called after a step that began at `began_ns`.
    pub(super) fn note_step(&mut self, began_ns: u64, progress: Progress) {
        let engine = self.engine;
        let pace = &engine.evictors.pace;
        if progress == Progress::Idle {
            return;
        }
        let now = engine.clock.now_ns();
        if progress == Progress::Worked {
            pace.note_occupied(now.saturating_sub(began_ns));
        }
        if pace.look(&engine.futex, now, &engine.stats, &engine.budget) {
            engine.judge_headroom(now);
        }
        if self.turn >= self.ring.len() as usize || progress == Progress::Blocked {
            self.turn = 0;
            pace.offer_turn(&engine.futex, self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Nodes;
    use crate::testing::NoFutex;

    fn shape(evictors: usize, wanted: Wanted) -> Shape {
        Shape { memory: 64 << 20, evictors, cores: evictors, nodes: Nodes::ONE, wanted, ablated: Default::default() }
    }

    fn pace(evictors: usize, wanted: Wanted) -> Control {
        let shape = shape(evictors, wanted);
        Control::new(&shape, shape.sizes().batch)
    }

    /// Which of three are awake, without any of them taking a turn.
    fn awake(pace: &Control) -> [bool; 3] {
        assert!(!pace.offer.load(Ordering::SeqCst), "a look would take the turn");
        core::array::from_fn(|id| pace.is_awake(id))
    }

    #[test]
    fn the_next_on_standby_takes_the_turn_that_the_first_offers() {
        let pace = pace(3, Wanted::default());
        assert_eq!(awake(&pace), [true, false, false]);
        pace.offer_turn(&NoFutex, 1);
        assert_eq!(awake(&pace), [true, false, false], "it is not the first: it has no turn to offer");
        pace.offer_turn(&NoFutex, 0);
        assert!(!pace.is_awake(2) && pace.is_awake(0), "until the next takes it, the first goes on");
        assert!(pace.is_awake(1));
        assert_eq!(awake(&pace), [false, true, false]);
        assert_eq!(pace.place_of(1), (0, 1), "it looks after all partitions");
    }

    #[test]
    fn an_alarm_wakes_all_and_then_another_one_is_the_first() {
        let (shape, pace) = (shape(3, Wanted::default()), pace(3, Wanted::default()));
        let (stats, budget) = (Stats::new(1), Budget::new(shape.sizes(), 1, pace.margin()));
        let _ = pace.look(&NoFutex, WINDOW_NS, &stats, &budget);
        assert_eq!(awake(&pace), [true, false, false]);
        pace.raise_alarm(&NoFutex);
        assert_eq!(awake(&pace), [true; 3]);
        let _ = pace.look(&NoFutex, WINDOW_NS + 1, &stats, &budget);
        assert!(pace.alarm.load(Ordering::SeqCst), "no decision is due yet");
        let _ = pace.look(&NoFutex, 2 * WINDOW_NS, &stats, &budget);
        assert!(!pace.alarm.load(Ordering::SeqCst));
        assert_eq!(pace.first.load(Ordering::SeqCst), 1);
        assert_eq!(awake(&pace), [true; 3], "they stay awake until there is too little for them to do");
        assert_eq!(pace.place_of(2), (2, 3), "while all are awake, cores keep their evictors");
    }

    #[test]
    fn a_number_that_the_user_has_fixed_stays_in_spite_of_faults_that_wait() {
        let pace = pace(3, Wanted { evictors: Some(2), ..Wanted::default() });
        assert_eq!(awake(&pace), [true, true, false]);
        pace.raise_alarm(&NoFutex);
        assert_eq!(awake(&pace), [true, true, false]);
    }

    #[test]
    fn a_margin_that_was_set_goes_before_that_of_requests() {
        let pace = pace(1, Wanted::default());
        assert_eq!(pace.margin().percent, None);
        pace.serving.store(true, Ordering::Relaxed);
        assert_eq!(pace.margin().percent, Some(FREE_PERCENT));
        pace.free.store(3, Ordering::Relaxed);
        assert_eq!(pace.margin(), Margin { batch: pace.batch() as u64, percent: Some(3), lean: false });
    }
}
