//! Swap spaces that come, are drained and go, by chance, while the program runs: the engine's own drainer, and an actor that asks
//! it to work.
//!
//! A space that has gone has lost all its pages, except for those that forked children may read: the children have its file open.
//! An actor that names, reads or writes a slot there breaks the run ([`crate::device`], [`crate::check`]).

use crate::calls::{lock, unlock};
use crate::program::{between_things, fetch_buffer};
use crate::sched::{park, sleep_ns};
use crate::world::{broken, note, world};
use crate::{Engine, Rig};
use farshore_core::page::PageRange;
use farshore_core::seams::{CopyChange, IoError};
use farshore_core::slots::arrangement::SpaceSet;
use farshore_engine::drain::{Drained, Host};
use farshore_engine::health::Usage;
use std::rc::Rc;

/// Spaces at a time.
const MOST: usize = 6;

/// Slots of all spaces that take pages; `None`: as many as there can be.
pub fn capacity(engine: &Engine) -> Option<u64> {
    engine.health.all_that_are(Usage::InUse).iter().map(|space| world(|w| w.device.capacity_of(space))).sum()
}

/// The drainer's thread: the engine's own loop.
pub fn drainer(rig: &Rc<Rig>) {
    let mut buffer = fetch_buffer();
    while !rig.ending.get() {
        rig.engine.run_drainer(&mut buffer, 0, &rig.stop_evictors, &mut Here(rig));
        park();
    }
}

struct Here<'r>(&'r Rc<Rig>);

impl Host for Here<'_> {
    fn serve(&mut self) {
        if self.0.spaces_to_come.take() == 0 {
            return;
        }
        let engine = &self.0.engine;
        let Some(space) = engine.free_space() else { broken(0, "there is no number for a space") };
        let capacity = world(|w| {
            let few = Some(512 * w.rng.between(1, 4));
            let capacity = if w.setup.capacity.is_some() { few } else { w.rng.pick(&[None, None, few]) };
            w.device.open(space, capacity);
            w.counts.spaces_added += 1;
            capacity
        });
        note("space comes", 0, space as u64);
        engine.add_space(space, capacity);
    }

    fn unreadable(&mut self, space: usize, pages: PageRange) {
        note("unreadable", pages.start.0, space as u64);
    }

    fn copy_changed(&mut self, _copy: &str, _change: CopyChange) {}

    fn cannot_give(&mut self, space: usize, _why: IoError) {
        note("cannot give back", 0, space as u64);
    }

    fn ended(&mut self, space: usize, how: Drained) {
        note("drain ends", 0, space as u64);
        world(|w| match how {
            Drained::Gone => w.counts.spaces_gone += 1,
            Drained::Unreadable(..) => w.counts.spaces_left += 1,
            Drained::NoRoom | Drained::CalledOff => w.counts.drains_undone += 1,
        });
    }

    fn may_close(&mut self) -> bool {
        world(|w| w.rng.below(3) > 0)
    }

    fn alone(&mut self, f: &mut dyn FnMut()) {
        lock();
        f();
        unlock();
    }
}

/// An actor that lets spaces come and go until the run ends.
pub fn changer(rig: &Rc<Rig>) {
    let engine = &rig.engine;
    while !between_things() {
        let pause = world(|w| w.rng.between(100_000, 30_000_000));
        sleep_ns(pause);
        let there = |usage| engine.health.all_that_are(usage);
        let pick = |set: SpaceSet| set.iter().nth(world(|w| w.rng.below(set.len().max(1) as u64) as usize));
        match world(|w| w.rng.below(8)) {
            0..=2 if there(Usage::InUse).len() + there(Usage::Draining).len() < MOST => {
                rig.spaces_to_come.set(1);
                engine.wake_drainer();
            }
            3..=5 => {
                if let Some(space) = pick(there(Usage::InUse)) {
                    note("drain", 0, space as u64);
                    // The last space is not drained.
                    let _ = engine.begin_drain(space);
                }
            }
            6 => {
                if let Some(space) = pick(there(Usage::Left)) {
                    let _ = engine.begin_drain(space);
                }
            }
            7 => {
                if let Some(space) = pick(there(Usage::Draining)).or_else(|| pick(there(Usage::Left))) {
                    note("take back", 0, space as u64);
                    let _ = engine.take_back(space);
                }
            }
            _ => {}
        }
    }
}
