//! How hard evictors work: pages of a batch, writes with the device, evictors awake. Pure arithmetic; [`super::pace`] measures
//! and carries out.
//!
//! | | goes up when | goes down when |
//! |---|---|---|
//! | batch, and the watermarks with it | faults waited for frames, or pages that should come along found none to spare; or more frames were taken in a window than a batch has | less than a quarter of a batch was |
//! | evictors awake | faults waited, and those awake were at work (or waited for the device) for three quarters of the time | one less would have been at work for half of it |
//! | writes | faults waited or stages were short, and writes do not queue in the device | they queue there; or no evictor needs more than usual |
//!
//! **Batch.** Frames must be free before they are needed, and no earlier: a page that left too early is fetched again if the
//! program needs it after all. A large batch costs the fewest TLB flushes a page (MAGE §4.2.1), which only matters when there are
//! many batches.
//!
//! **Writes.** Reads that faults wait for queue behind writes. So the number of writes is controlled like a congestion window
//! (TCP Vegas). The floor is the shortest time that a write of this size took at this space of late. Of `n` writes in flight,
//! `n × (1 − floor ⁄ latency)` wait behind others. A device that works on writes side by side keeps that below a half, and gets
//! one more. A device that works on them in turn has one waiting at two writes, where it stays. A device that is busy with reads
//! has more than one and a half waiting, and gets one less.
//!
//! # Why it does not oscillate
//!
//! * The thresholds lie apart: after a step up, the same load gives no reason for a step down (three quarters of the time of `n`
//!   is more than half of that of `n`; a batch that was too small by demand is more than a quarter of the next).
//! * A level goes up at once, since faults wait. It goes down only after `hold` windows in a row that asked for it (a longer time
//!   without a decision, in which evictors slept, counts as up to eight). So a [`Level`] goes down at most once in `hold`
//!   windows, and up no more often than that and its size, *whatever* the load does.
//! * Where a load lies between two levels after all, a step down is taken back. Each one that is taken back within `hold` windows
//!   doubles `hold`, up to [`HOLD_MOST`] (20 s): under a load that stays the same, changes become rare.

use alloc::vec::Vec;
use farshore_core::limits::{FREE_PERCENT_MAX, WRITES_MAX};

/// How often a decision is made while evictors work, ns. (Never while they do not.)
pub const WINDOW_NS: u64 = 10_000_000;
/// Windows in a row that must ask for less before a level goes down, at first …
pub const HOLD_LEAST: u32 = 32;
/// … and at most.
pub const HOLD_MOST: u32 = 2048;
/// As how many windows a long window counts, at most.
const WEIGHT_MOST: u64 = 8;
/// Pages of the smallest batch that the controller chooses: one write.
const BATCH_LEAST: u32 = 64;
/// Writes that one evictor usually has with the device (at most: [`WRITES_MAX`]).
const WRITES_USUAL: u32 = 2;
/// Writes that a decision about their number rests on.
const WRITES_A_VOTE: u64 = 8;
/// Ratios of latencies are in parts of this.
const ONE: u64 = 256;

/// What the user has fixed; `None`: the controller adapts it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Wanted {
    /// Evictors awake.
    pub evictors: Option<u32>,
    /// Pages of a batch.
    pub batch: Option<u32>,
    /// Writes that each evictor may have with the device.
    pub writes: Option<u32>,
    /// Percent of the frames that are kept free.
    pub free: Option<u32>,
}

/// The pace that is in force now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// Evictors awake.
    pub evictors: u32,
    /// Pages of a batch.
    pub batch: u32,
    /// Writes that each evictor may have with the device.
    pub writes: u32,
}

/// What was measured since the last decision.
#[derive(Clone, Copy, Default, Debug)]
pub struct Window {
    /// How long the window was, ns.
    pub ns: u64,
    /// Frames that were taken.
    pub demand: u64,
    /// Times a fault found no frame and slept.
    pub waits: u64,
    /// Pages that did not come along because no frame was spare.
    pub missed: u64,
    /// For how long evictors were at work, or waited for the device because of work, all together, ns.
    pub occupied_ns: u64,
    /// Times an evictor waited for a write because its stages were used up.
    pub stalls: u64,
    /// Writes that an evictor waited for …
    pub writes: u64,
    /// … and the sum of how many times the floor each of them took, in 1/256.
    pub ratios: u64,
}

/// Which way a window wants a level to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Vote {
    Up,
    Stay,
    Down,
}

/// A number that goes up at once and down slowly (head of this module).
#[derive(Clone, Copy, Debug)]
struct Level {
    now: u32,
    most: u32,
    /// Windows in a row that asked for less.
    quiet: u32,
    /// How many windows in a row must ask for less.
    hold: u32,
    /// Windows since the last step down.
    since_down: u32,
}

impl Level {
    fn new(now: u32, most: u32) -> Level {
        Level { now, most, quiet: 0, hold: HOLD_LEAST, since_down: u32::MAX }
    }

    /// Takes a step if the votes ask for one, never below `least`. The window counts as `weight`.
    fn vote(&mut self, vote: Vote, least: u32, weight: u32) {
        self.since_down = self.since_down.saturating_add(weight);
        match vote {
            Vote::Up if self.now < self.most => {
                self.now += 1;
                self.quiet = 0;
                if self.since_down <= self.hold {
                    self.hold = (self.hold * 2).min(HOLD_MOST);
                }
                self.since_down = u32::MAX;
            }
            Vote::Down if self.now > least => {
                self.quiet += weight;
                if self.quiet >= self.hold {
                    // The step before this one was right.
                    if self.since_down != u32::MAX && self.since_down > 4 * self.hold {
                        self.hold = HOLD_LEAST;
                    }
                    self.now -= 1;
                    self.quiet = 0;
                    self.since_down = 0;
                }
            }
            _ => self.quiet = 0,
        }
    }
}

/// Decides how hard evictors work.
#[derive(Debug)]
pub struct Controller {
    wanted: Wanted,
    /// Latency counts more than cost: batches are the smallest.
    serving: bool,
    /// Pages of the largest batch.
    batch_most: u32,
    batch: Level,
    evictors: Level,
    writes: Level,
    /// Ratios of windows that had too few writes to decide.
    ratios: (u64, u64),
}

impl Controller {
    /// A controller for batches of at most this many pages, and this many evictors. It begins with large batches and one
    /// evictor.
    pub fn new(batch_most: u32, evictors: u32, wanted: Wanted) -> Controller {
        // Halvings down to the smallest.
        let steps = (batch_most / BATCH_LEAST).max(1).ilog2();
        let mut controller = Controller {
            wanted: Wanted::default(),
            serving: false,
            batch_most,
            batch: Level::new(steps, steps),
            evictors: Level::new(1, evictors),
            writes: Level::new(WRITES_USUAL, WRITES_MAX),
            ratios: (0, 0),
        };
        controller.fix(wanted);
        controller
    }

    /// What the user fixes from now on. Values out of bounds are cut to the bounds, so callers check before.
    pub fn fix(&mut self, wanted: Wanted) {
        self.wanted = Wanted {
            evictors: wanted.evictors.map(|n| n.clamp(1, self.evictors.most)),
            batch: wanted.batch.map(|n| n.clamp(1, self.batch_most)),
            writes: wanted.writes.map(|n| n.clamp(1, WRITES_MAX)),
            free: wanted.free.map(|n| n.clamp(1, FREE_PERCENT_MAX)),
        };
    }

    /// Whether latency counts more than cost, from now on.
    pub fn serve(&mut self, on: bool) {
        self.serving = on;
    }

    /// What the user has fixed.
    pub fn wanted(&self) -> Wanted {
        self.wanted
    }

    /// What holds now.
    pub fn pace(&self) -> Pace {
        let adapted = if self.serving { 0 } else { self.batch.now };
        Pace {
            evictors: self.wanted.evictors.unwrap_or(self.evictors.now),
            batch: self.wanted.batch.unwrap_or(self.batch_most >> (self.batch.most - adapted)),
            writes: self.wanted.writes.unwrap_or(self.writes.now),
        }
    }

    /// Faults have waited for so long that the evictors awake must be stuck: all others are called.
    pub fn alarm(&mut self) {
        self.evictors.now = self.evictors.most;
        self.evictors.quiet = 0;
    }

    /// A window is over: returns the pace from now on.
    pub fn decide(&mut self, window: &Window) -> Pace {
        let pace = self.pace();
        let weight = (window.ns / WINDOW_NS).clamp(1, WEIGHT_MOST) as u32;
        self.batch.vote(vote_batch(window, pace.batch), 0, weight);
        self.evictors.vote(vote_evictors(window, pace.evictors), 1, weight);
        self.ratios = (self.ratios.0 + window.ratios, self.ratios.1 + window.writes);
        if self.ratios.1 >= WRITES_A_VOTE {
            let ratio = (self.ratios.0 / self.ratios.1).max(ONE);
            self.writes.vote(vote_writes(window, pace.writes, ratio), 1, weight);
            self.ratios = (0, 0);
        }
        self.pace()
    }
}

fn vote_batch(window: &Window, batch: u32) -> Vote {
    let demand = u128::from(window.demand) * u128::from(WINDOW_NS) / u128::from(window.ns.max(1));
    if window.waits > 0 || window.missed > 0 || demand > u128::from(batch) {
        Vote::Up
    } else if demand < u128::from(batch / 4) {
        Vote::Down
    } else {
        Vote::Stay
    }
}

fn vote_evictors(window: &Window, awake: u32) -> Vote {
    let (occupied, ns, awake) = (u128::from(window.occupied_ns), u128::from(window.ns), u128::from(awake));
    if window.waits > 0 && occupied * 4 >= ns * awake * 3 {
        Vote::Up
    } else if occupied * 2 <= ns * (awake - 1) {
        Vote::Down
    } else {
        Vote::Stay
    }
}

/// `ratio`: how many times the floor a write took, in 1/256.
fn vote_writes(window: &Window, writes: u32, ratio: u64) -> Vote {
    let pressed = window.waits > 0 || window.stalls > 0;
    // Writes that wait behind others in the device, in 1/256.
    let queued = u64::from(writes) * (ratio - ONE) * ONE / ratio;
    if queued > ONE * 3 / 2 || (!pressed && writes > WRITES_USUAL) {
        Vote::Down
    } else if queued < ONE / 2 && (pressed || writes < WRITES_USUAL) {
        Vote::Up
    } else {
        Vote::Stay
    }
}

/// Sizes of writes whose floors are apart: up to 1, 2, 4, … 64 pages.
const SIZES: usize = 7;
/// Writes to a space after which the shortest time so far is forgotten, in two steps: a device may change.
const FLOOR_WRITES: u32 = 4096;

/// The shortest times that writes to one space took of late, ns, by their size.
#[derive(Clone, Copy, Debug)]
struct Floor {
    newer: [u64; SIZES],
    older: [u64; SIZES],
    left: u32,
}

/// The floors of all spaces.
#[derive(Debug)]
pub(super) struct Floors(Vec<Floor>);

impl Floors {
    /// For spaces with numbers up to this one.
    pub(super) fn new(last: usize) -> Floors {
        let unknown = [u64::MAX; SIZES];
        Floors(alloc::vec![Floor { newer: unknown, older: unknown, left: FLOOR_WRITES }; last + 1])
    }

    /// A write of this many pages to a space took `ns`: returns how many times the floor that is, in 1/256.
    pub(super) fn ratio(&mut self, space: usize, pages: u32, ns: u64) -> u64 {
        let size = (pages.max(1).next_power_of_two().ilog2() as usize).min(SIZES - 1);
        let floor = &mut self.0[space];
        floor.left -= 1;
        if floor.left == 0 {
            (floor.older, floor.newer, floor.left) = (floor.newer, [u64::MAX; SIZES], FLOOR_WRITES);
        }
        let ns = ns.max(1);
        floor.newer[size] = floor.newer[size].min(ns);
        ns.saturating_mul(ONE) / floor.newer[size].min(floor.older[size])
    }
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
