//! Carries out what [`super::control`] decides: which evictors are awake. Measures what the decision rests on.
//!
//! ```text
//!  evictors, faults ─▶ gauges ─▶ Engine::look (an evictor, after a step, every 10 ms at most) ─▶ Controller ─▶ pace
//! ```
//!
//! **Awake and on standby.** The evictors from number `first` on, round about, are awake, as many as the pace says. They sleep on
//! the event `work`, which faults signal. The others are on standby: they end their writes, then sleep on an event of their own.
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
//! it saw. A thread that changes who is awake signals `standby` afterwards. So no wake-up is lost.

use super::control::{Controller, Pace, WINDOW_NS, Wanted, Window};
use super::pipeline::{Evictor, Progress};
use crate::budget::Margin;
use crate::stats::Count;
use crate::{Engine, Shape};
use core::sync::atomic::Ordering;
use farshore_core::seams::{Clock, World};
use farshore_core::spin::SpinLock;
use farshore_core::sync::Padded;
use farshore_core::sync::plain::{AtomicBool, AtomicU32, AtomicU64};
use farshore_core::wait::Event;

/// Percent of the frames that are kept free while requests are served and the user has set nothing else.
const FREE_PERCENT: u64 = 15;

/// What evictors and faults have counted since the start.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    occupied_ns: AtomicU64,
    pub(super) stalls: AtomicU64,
    writes: AtomicU64,
    ratios: AtomicU64,
    /// Writes that devices have now, and the most that they ever had.
    flying: AtomicU32,
    flying_peak: AtomicU32,
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
    /// What evictors on standby sleep on.
    pub(super) standby: Event,
    /// When the next decision is due, ns.
    due_ns: AtomicU64,
    pub(crate) gauges: Padded<Gauges>,
    decider: SpinLock<Decider>,
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
    /// How often the pace has changed.
    pub changes: u64,
}

impl Control {
    pub(crate) fn new(shape: &Shape, batch_most: usize) -> Control {
        let controller = Controller::new(batch_most as u32, shape.evictors as u32, shape.wanted);
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
            standby: Event::new(),
            due_ns: AtomicU64::new(0),
            gauges: Padded(Gauges::default()),
            decider: SpinLock::new(Decider { controller, seen: Seen::default() }),
        }
    }

    /// Pages of a batch now.
    pub(crate) fn batch(&self) -> usize {
        self.batch.load(Ordering::Relaxed) as usize
    }

    /// What evictors want of the watermarks.
    pub(crate) fn margin(&self) -> Margin {
        let percent = match self.free.load(Ordering::Relaxed) {
            0 => self.serving.load(Ordering::Relaxed).then_some(FREE_PERCENT),
            said => Some(said.into()),
        };
        Margin { batch: self.batch() as u64, percent }
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

    /// A write has ended.
    pub(super) fn write_ends(&self) {
        self.gauges.0.flying.fetch_sub(1, Ordering::Relaxed);
    }

    /// A write that was waited for took this many times the floor, in 1/256.
    pub(super) fn note_ratio(&self, ratio: u64) {
        self.gauges.0.ratios.fetch_add(ratio, Ordering::Relaxed);
        self.gauges.0.writes.fetch_add(1, Ordering::Relaxed);
    }
}

impl<W: World> Engine<W> {
    /// How hard evictors work.
    pub fn paced(&self) -> Paced {
        let (pace, wanted) = self.control.decider.with(|decider| (decider.controller.pace(), decider.controller.wanted()));
        let gauges = &self.control.gauges.0;
        Paced {
            pace,
            wanted,
            evictors: self.control.evictors,
            watermarks: self.budget.watermarks(),
            writes_in_flight: gauges.flying.load(Ordering::Relaxed),
            writes_in_flight_peak: gauges.flying_peak.load(Ordering::Relaxed),
            changes: gauges.changes.load(Ordering::Relaxed),
        }
    }

    /// Fixes some of the pace, from now on; the rest adapts. Values out of bounds ([`Sizes::batch`](crate::Sizes), the number of
    /// evictors, [`WRITES_MAX`](farshore_core::limits::WRITES_MAX)) are cut to them: callers check before.
    pub fn fix_pace(&self, wanted: Wanted) {
        self.control.fixed.store(wanted.evictors.is_some(), Ordering::Relaxed);
        self.control.free.store(wanted.free.unwrap_or(0), Ordering::Relaxed);
        self.change_pace(|controller| controller.fix(wanted));
    }

    /// The program serves requests from now on, or does not any more. While it does, a request's waiting time counts more than
    /// the cost of a page. What the user has set holds all the same.
    ///
    /// * [`FREE_PERCENT`] of the frames are kept free, so that no request waits for one (Adios, section 3.3).
    /// * Batches are small, and evictors let other threads have the processor after each batch. An evictor that had a worker's
    ///   processor for a whole batch, or for a tick (4 ms), was the tail of all requests of that worker.
    pub fn serve_requests(&self, on: bool) {
        self.control.serving.store(on, Ordering::Relaxed);
        self.change_pace(|controller| controller.serve(on));
    }

    /// Changes what the controller goes by, and carries out what follows. Other settings are stored before this call.
    fn change_pace(&self, change: impl FnOnce(&mut Controller)) {
        let (before, pace) = self.control.decider.with(|decider| {
            let before = decider.controller.pace();
            change(&mut decider.controller);
            (before, decider.controller.pace())
        });
        self.budget.set_margin(|| self.control.margin());
        self.set_pace(before, pace);
    }

    /// Whether evictors let others have the processor after each batch.
    pub(super) fn steps_aside(&self) -> bool {
        self.control.serving.load(Ordering::Relaxed)
    }

    /// After a frame was taken: wakes evictors in time.
    #[inline]
    pub(crate) fn nudge_evictors(&self) {
        if self.budget.is_short(false) && self.work.sleepers() > 0 {
            self.work.signal(&self.futex);
        }
    }

    /// Wakes every evictor, whether it is awake or on standby.
    pub(crate) fn wake_all_evictors(&self) {
        self.work.signal(&self.futex);
        self.control.standby.signal(&self.futex);
    }

    /// A fault has waited for a frame for a long time: the evictors that are awake may be stuck.
    #[cold]
    pub(crate) fn raise_alarm(&self) {
        let control = &self.control;
        let may_wake = control.awake.load(Ordering::SeqCst) < control.evictors && !control.fixed.load(Ordering::Relaxed);
        if may_wake && !control.alarm.swap(true, Ordering::SeqCst) {
            control.standby.signal(&self.futex);
        }
    }

    fn set_pace(&self, before: Pace, pace: Pace) {
        let control = &self.control;
        if pace != before {
            control.gauges.0.changes.fetch_add(1, Ordering::Relaxed);
        }
        control.writes.store(pace.writes, Ordering::Relaxed);
        control.awake.store(pace.evictors, Ordering::SeqCst);
        if control.batch.swap(pace.batch, Ordering::Relaxed) != pace.batch {
            self.budget.set_margin(|| self.control.margin());
        }
        if pace.evictors > before.evictors {
            control.standby.signal(&self.futex);
        }
    }

    fn seen(&self, now_ns: u64) -> Seen {
        let gauges = &self.control.gauges.0;
        let sum = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Seen {
            now_ns,
            taken: self.stats.total(Count::Evicted) + self.frames().taken(),
            waits: self.stats.total(Count::FrameWaits),
            missed: self.stats.total(Count::Missed),
            occupied_ns: sum(&gauges.occupied_ns),
            stalls: sum(&gauges.stalls),
            writes: sum(&gauges.writes),
            ratios: sum(&gauges.ratios),
        }
    }

    /// Makes a decision, if one is due. Called by an evictor, so never while no evictor has anything to do.
    fn look(&self, now_ns: u64) {
        let control = &self.control;
        let due = control.due_ns.load(Ordering::Relaxed);
        let next = now_ns + WINDOW_NS;
        let first = now_ns >= due && control.due_ns.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !first {
            return;
        }
        let alarm = control.alarm.load(Ordering::SeqCst);
        let seen = self.seen(now_ns);
        let (before, pace) = control.decider.with(|decider| {
            let window = seen.since(core::mem::replace(&mut decider.seen, seen));
            let before = decider.controller.pace();
            if alarm {
                decider.controller.alarm();
            }
            (before, decider.controller.decide(&window))
        });
        self.set_pace(before, pace);
        if alarm {
            // An evictor that is stuck is not the first any more, and takes no turn that is offered.
            let first = control.first.load(Ordering::SeqCst);
            control.first.store((first + 1) % control.evictors, Ordering::SeqCst);
            control.alarm.store(false, Ordering::SeqCst);
        }
    }

    /// Offers the evictor's turn, if this evictor is the first of those awake and others are on standby.
    fn offer_turn(&self, id: usize) {
        let control = &self.control;
        let is_first = control.first.load(Ordering::SeqCst) == id as u32;
        if is_first && control.awake.load(Ordering::SeqCst) < control.evictors && !control.offer.swap(true, Ordering::SeqCst) {
            control.standby.signal(&self.futex);
        }
    }
}

impl<W: World> Evictor<'_, W> {
    /// To be called after a step that began at `began_ns`.
    pub(super) fn note_step(&mut self, began_ns: u64, progress: Progress) {
        let engine = self.engine;
        if progress == Progress::Idle {
            return;
        }
        let now = engine.clock.now_ns();
        if progress == Progress::Worked {
            engine.control.gauges.0.occupied_ns.fetch_add(now.saturating_sub(began_ns), Ordering::Relaxed);
        }
        engine.look(now);
        if self.turn >= engine.sizes().stages_each || progress == Progress::Blocked {
            self.turn = 0;
            engine.offer_turn(self.id);
        }
    }
}
