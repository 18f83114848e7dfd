//! The writes of one evictor: waiting in line, with the device, done, or failed.
//!
//! ```text
//!  start_write ─▶ waiting ─pump─▶ in flight ─reap─┬─▶ acknowledged: the stage is quiet
//!                    │                            └─▶ failed: the stage keeps the bytes ─┐
//!                    └── its space is left alone now ──▶ failed ─────────────────────────┤
//!       ▲                                                                                │ mend_failed
//!       └── other slots, in a space that takes pages; else back into the program's ◀─────┘
//!           memory, if there is a frame; else, now and then, the same once more
//! ```
//!
//! At most as many writes as the pace allows ([`super::pace`]) are with devices that answer, and they take no more than two
//! thirds of the stages. Writes to a space that hangs are not counted and not waited for: the next batches pass them by, in the
//! stages that are left.

use super::pipeline::{Evictor, TRIAL_EVERY_NS, TRIAL_PAGES};
use super::ring::StageState;
use super::stage::Vacancy;
use crate::Engine;
use crate::health::{Begun, Transfer};
use crate::stats::Count;
use farshore_core::limits::BATCHES_IN_FLIGHT;
use farshore_core::seams::{Clock, Kernel, PageBuf, World, WriteQueue};
use farshore_core::slots::Run;
use farshore_core::slots::arrangement::SPACES_MAX;
use farshore_core::word::{Slot, Stage};

/// Most writes in line of pages whose first write failed.
pub(super) const RETRIES: usize = 64;
/// The number that such writes have in place of a batch's.
const RETRY: usize = BATCHES_IN_FLIGHT;

/// A write that was not started yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub(super) slot: Slot,
    pub(super) stage: Stage,
    pub(super) count: u32,
    /// Frames that are withheld until a space that keeps pages in RAM has these ([`Engine::give_withheld`]).
    pub(super) withheld: u64,
    /// Such a space may keep them.
    pub(super) may_keep: bool,
    pub(super) batch: usize,
    /// The write is made to see whether its space works.
    pub(super) trial: bool,
}

/// A write that the device has.
#[derive(Debug)]
pub(super) struct Flight {
    tag: u64,
    slot: Slot,
    began_ns: u64,
    begun: Begun,
    transfer: Transfer,
}

/// A write's tag: which batch, first stage, how many.
fn tag(write: &Write) -> u64 {
    (write.batch as u64) << 56 | u64::from(write.count) << 32 | u64::from(write.stage.0)
}

fn untag(tag: u64) -> (usize, Stage, u32) {
    ((tag >> 56) as usize, Stage(tag as u32), (tag >> 32) as u32 & 0xff_ffff)
}

/// How long to wait for a completion.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    No,
    Within(u64),
    ForOne,
}

impl<W: World> Evictor<'_, W> {
    /// Puts a write in line. Its stages are in state Writing from before this call until its completion.
    pub(super) fn start_write(&mut self, write: Write) {
        self.writes_left[write.batch] += 1;
        self.waiting.push_back(write);
        self.pump();
    }

    /// Whether a write is under way that is worth waiting for.
    pub(super) fn has_live(&self) -> bool {
        self.live() > 0
    }

    /// Writes under way whose spaces hang (or do not).
    fn flights(&self, hanging: bool) -> impl Iterator<Item = (usize, Stage, u32)> {
        self.flights.iter().filter(move |flight| self.engine.hangs(flight.slot) == hanging).map(|flight| untag(flight.tag))
    }

    fn live(&self) -> u32 {
        self.flights(false).count() as u32
    }

    /// Whether a batch may begin with this number: none of the writes of the batch that had it before is worth waiting
    /// for.
    pub(super) fn is_over(&self, batch: usize) -> bool {
        let stuck = || self.flights(true).filter(|&(of, ..)| of == batch).count() as u32;
        self.writes_left[batch] == 0 || self.writes_left[batch] == stuck()
    }

    /// Whether the devices would have more than two thirds of the stages that others do not keep. A device may hang at any
    /// moment, and the stages that are left must suffice for the other spaces.
    fn would_have_all(&self, count: u32) -> bool {
        let pages = |hanging| self.flights(hanging).map(|(.., pages)| pages).sum::<u32>();
        let live = pages(false);
        live > 0 && (live + count) * 3 > (self.ring.len() - pages(true)) * 2
    }

    /// Gives the device as many of the waiting writes as it may have. Returns how many.
    fn pump(&mut self) -> u32 {
        let engine = self.engine;
        let mut given = 0;
        while let Some(&write) = self.waiting.front() {
            if engine.hangs(write.slot) || (!write.trial && engine.is_closed(write.slot)) {
                self.leave_line();
                self.ended(write.batch, write.stage, write.count, StageState::Failed);
                continue;
            }
            if self.live() >= engine.evictors.pace.writes() || self.would_have_all(write.count) {
                break;
            }
            let memory: *const PageBuf = engine.evictors.stages.memory(write.stage);
            let began_ns = engine.clock.now_ns();
            let begun = engine.begin_write(write.slot, write.trial);
            let transfer = engine.transfer(write.slot, self.core);
            self.queue.may_keep(write.may_keep);
            // SAFETY: the stages from `stage` on are in state Writing, so this evictor, the only thread that reuses them,
            // leaves their bytes alone until the completion.
            if unsafe { self.queue.start_write(write.slot, memory, write.count, tag(&write)) }.is_err() {
                engine.transferred(transfer);
                break;
            }
            self.leave_line();
            engine.evictors.pace.write_begins();
            engine.stats.add(self.core, Count::Writes, 1);
            self.flights.push(Flight { tag: tag(&write), slot: write.slot, began_ns, begun, transfer });
            given += 1;
        }
        given
    }

    /// The first in line has been given to the device, or will not be.
    fn leave_line(&mut self) {
        if let Some(write) = self.waiting.pop_front().filter(|write| write.withheld > 0) {
            self.engine.give_withheld(self.core, write.withheld);
        }
    }

    /// A write has ended: its stages are in this state now.
    fn ended(&mut self, batch: usize, first: Stage, count: u32, state: StageState) {
        self.writes_left[batch] -= 1;
        for stage in (first.0..first.0 + count).map(Stage) {
            self.ring.set(stage, state);
        }
        if state == StageState::Failed {
            self.failed += count;
        }
    }

    /// Takes completions: the stages' slots hold their bytes now. With `wait`, blocks until at least one has arrived.
    pub(super) fn reap(&mut self, wait: bool) {
        self.take_completions(if wait { Wait::ForOne } else { Wait::No });
    }

    /// As [`Evictor::reap`] with `wait`, for at most about `ns`.
    pub(super) fn reap_within(&mut self, ns: u64) {
        self.take_completions(Wait::Within(ns));
    }

    fn take_completions(&mut self, mut wait: Wait) {
        self.pump();
        while self.queue.in_flight() > 0 {
            let completions = &mut self.completions;
            let mut done = |tag, result| completions.push((tag, result));
            match wait {
                Wait::No => self.queue.reap(false, &mut done),
                Wait::Within(ns) => self.queue.reap_within(ns, &mut done),
                Wait::ForOne => self.queue.reap(true, &mut done),
            }
            // The next ones go to the device before we look at what these were. (Their places in line are free: the
            // completions were taken out of the queue, but their flights are still noted.)
            self.forget_flights(wait != Wait::No);
            let given = self.pump();
            self.look_at_completions();
            if given == 0 {
                break;
            }
            wait = Wait::No;
        }
    }

    /// The transfers of what has completed are over. What was waited for was seen when it ended: its time tells of the device.
    fn forget_flights(&mut self, waited: bool) {
        let engine = self.engine;
        let now = if waited { engine.clock.now_ns() } else { 0 };
        for &(tag, result) in &self.completions {
            let Some(at) = self.flights.iter().position(|flight| flight.tag == tag) else {
                unreachable!("a write has completed that was not started")
            };
            let flight = self.flights.swap_remove(at);
            engine.transferred(flight.transfer);
            engine.evictors.pace.write_ends();
            if waited && result.is_ok() {
                let space = engine.slots.space_of(flight.slot).unwrap_or(SPACES_MAX);
                engine.evictors.pace.note_ratio(self.floors.ratio(space, untag(tag).2, now.saturating_sub(flight.began_ns)));
            }
            engine.note_write(self.core, flight.slot, flight.begun, result);
        }
    }

    fn look_at_completions(&mut self) {
        let engine = self.engine;
        while let Some((tag, result)) = self.completions.pop() {
            let (batch, first, count) = untag(tag);
            let state = if result.is_ok() { StageState::Quiet } else { StageState::Failed };
            self.ended(batch, first, count, state);
            if result.is_ok() {
                for stage in (first.0..first.0 + count).map(Stage) {
                    if engine.kernel.is_outlived() {
                        engine.evictors.stages.note_write(stage, false);
                    }
                    let _ = engine.stage_is_written(stage);
                }
                engine.stats.add(self.core, Count::PagesOut, u64::from(count));
                engine.evictors.obstacles.note_room();
            }
        }
    }

    /// Pages whose write failed: to other slots if some space takes them, else back into the program's memory if there is a
    /// frame, else another try now and then.
    pub(super) fn mend_failed(&mut self) {
        let engine = self.engine;
        let now = engine.clock.now_ns();
        let mut retry = now >= self.retry_at_ns;
        if retry {
            self.retry_at_ns = now + TRIAL_EVERY_NS;
        }
        for stage in self.ring.stages() {
            if self.failed == 0 {
                return;
            }
            // Or written once more just now, with the one before.
            if self.ring.state(stage) != StageState::Failed {
                continue;
            }
            if engine.evictors.stages.vacancy(stage) != Vacancy::Held {
                self.mended(stage);
                continue;
            }
            let room = (self.writes_left[RETRY] as usize) < RETRIES;
            if room && engine.health.any_open() && self.write_elsewhere(stage) {
                continue;
            }
            if engine.bring_back(stage, self.core) {
                self.mended(stage);
            } else if retry && room {
                retry = false;
                self.try_again(stage);
            }
        }
    }

    fn mended(&mut self, stage: Stage) {
        self.ring.set(stage, StageState::Quiet);
        self.failed -= 1;
    }

    /// Writes `stage`, and failed ones that follow it, to new slots. False: there are none.
    fn write_elsewhere(&mut self, stage: Stage) -> bool {
        let engine = self.engine;
        let trial = engine.reserve_trial(self.core, self.failed_from(stage, TRIAL_PAGES.min(self.pages_a_write)));
        let is_trial = trial.is_some();
        let run = trial.or_else(|| engine.reserve(self.core, self.failed_from(stage, self.pages_a_write)));
        run.is_some_and(|run| {
            self.write_again(stage, run, is_trial);
            true
        })
    }

    /// No space takes pages: one of those that do not is tried, with these.
    fn try_again(&mut self, stage: Stage) {
        let engine = self.engine;
        let trial = engine.reserve_trial(self.core, self.failed_from(stage, TRIAL_PAGES.min(self.pages_a_write)));
        // Without a slot to be had, the old one once more.
        let old = engine.evictors.stages.slot(stage).map(|first| Run { first, len: 1 });
        if let Some(run) = trial.or(old) {
            self.write_again(stage, run, true);
        }
    }

    /// Failed stages from `stage` on whose bytes are still needed, side by side, at most `most`.
    fn failed_from(&self, stage: Stage, most: usize) -> u32 {
        let engine = self.engine;
        let from = self.ring.stages().skip_while(|&other| other != stage).take(most);
        let failed = |&stage: &Stage| {
            self.ring.state(stage) == StageState::Failed && engine.evictors.stages.vacancy(stage) == Vacancy::Held
        };
        from.take_while(failed).count() as u32
    }

    /// Writes the stages from `first` on to the slots of `run`.
    fn write_again(&mut self, first: Stage, run: Run, trial: bool) {
        let engine = self.engine;
        for n in 0..run.len {
            let (stage, slot) = (Stage(first.0 + n), run.first.plus(u64::from(n)));
            engine.slots.set_sum(slot, Engine::<W>::checksum(slot, engine.evictors.stages.bytes(stage)));
            let old = engine.evictors.stages.slot(stage);
            engine.evictors.stages.set_slot(stage, Some(slot));
            if let Some(old) = old.filter(|&old| old != slot) {
                engine.slots.free(old);
            }
            self.ring.set(stage, StageState::Writing);
            self.failed -= 1;
        }
        // The frames of these pages went back with their first write. Should the space keep the pages in RAM now, others are to pay for it.
        let withheld = engine.withhold_free(self.core, u64::from(run.len));
        self.start_write(Write {
            slot: run.first,
            stage: first,
            count: run.len,
            withheld,
            may_keep: withheld == u64::from(run.len),
            batch: RETRY,
            trial,
        });
    }
}
