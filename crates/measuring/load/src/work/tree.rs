//! `tree`: look-ups of random keys in an ordered map, as a program in Rust has it: the standard library's `BTreeMap`, on the heap.
//!
//! Each thread has a map of its own, whose keys come in ascending order: in a random one most of the time would go into filling it, where memory is
//! short. Each look-up draws a key at random, goes down the tree to its leaf, and reads the value or counts it up.
//!
//! Verified: each key is there with the value that it began with, plus what was counted up in all.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use farshore_load::outcome::Outcome;
use farshore_load::workload::{self, Mode};
use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::memory::{generator, mix, nth, shard};
use crate::report::Report;
use crate::team::{self, Stage};
use crate::verify::{Wrongs, checksum};

/// What an entry takes, in bytes: two words in a leaf of eleven places that is little more than half full, since keys came in order, its part of the
/// nodes above, and malloc's heads.
const ENTRY_BYTES: u64 = 44;
/// Keys are so far from each other on average.
const STRIDE: u64 = 1 << 24;

/// Runs it.
///
/// # Errors
/// If threads are not to be had.
pub fn run(args: &workload::Tree, report: &mut Report) -> Result<Outcome, String> {
    let common = &args.common;
    let count = usize::try_from(common.size.0 / ENTRY_BYTES).map_err(|_| format!("--size {} is too much", common.size))?;
    let start = mix(common.seed);
    let parts = |thread| shard(count, common.threads as usize, thread);
    let fill = |thread| Map::new(start, parts(thread).start, parts(thread).len());
    let maps = team::phase(report, "fill", common.threads, fill)?;
    let maps: Vec<Mutex<Option<Map>>> = maps.into_iter().map(|map| Mutex::new(Some(map))).collect();
    let take = |thread: usize| maps[thread].lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
    let worker = |thread| Worker {
        map: take(thread),
        mode: args.mode,
        random: generator(common.seed, thread),
        updates: 0,
        wrongs: Wrongs::default(),
    };
    let (total, workers) = team::timed(common, report, None, worker)?;
    let updates: u64 = workers.iter().map(|worker| worker.updates).sum();
    let found = team::phase(report, "verify", common.threads, |thread| workers[thread].check())?;
    let sum = found.iter().fold(0_u64, |sum, (_, part)| sum.wrapping_add(*part));
    let mut wrongs = Wrongs::of(found.into_iter().map(|(wrongs, _)| wrongs));
    wrongs.append(Wrongs::of(workers.into_iter().map(|worker| worker.wrongs)));
    let (unit, checksum) = match args.mode {
        Mode::Read => ("read", format!("{sum:016x}")),
        // How many there are depends on the time.
        Mode::Update => ("update", String::new()),
    };
    let verified = format!("all {count} keys, and the sum of their values after {updates} updates");
    let outcome = Outcome { unit: unit.into(), verified, checksum, wrong: wrongs.lines(), ..Default::default() };
    Ok(super::measured(outcome, total))
}

/// The map of one thread, and which keys it has.
#[derive(Debug, Default)]
struct Map {
    entries: BTreeMap<u64, u64>,
    start: u64,
    first: usize,
    count: usize,
}

impl Map {
    /// The keys with the numbers from `first` on.
    fn new(start: u64, first: usize, count: usize) -> Self {
        let mut map = Map { entries: BTreeMap::new(), start, first, count };
        for number in 0..count {
            let key = map.key(number);
            map.entries.insert(key, value(key));
        }
        map
    }

    /// The key with a number, at a random place among the [`STRIDE`] that are the number's own: keys ascend with their numbers.
    fn key(&self, number: usize) -> u64 {
        let number = (self.first + number) as u64;
        number * STRIDE + nth(self.start, number) % STRIDE
    }
}

/// The value that a key begins with.
fn value(key: u64) -> u64 {
    mix(key)
}

struct Worker {
    map: Map,
    mode: Mode,
    random: Xoshiro256PlusPlus,
    updates: u64,
    wrongs: Wrongs,
}

impl team::Worker for Worker {
    fn operate(&mut self, _: Stage) {
        let key = self.map.key(self.random.random_range(0..self.map.count));
        match (self.map.entries.get_mut(&key), self.mode) {
            (Some(value), Mode::Update) => {
                *value = value.wrapping_add(1);
                self.updates += 1;
            }
            (Some(found), Mode::Read) if *found == value(key) => {}
            (Some(found), Mode::Read) => {
                let found = *found;
                self.wrongs.add(|| format!("the value of key {key:#x} is {found:#x}, not {:#x}", value(key)));
            }
            (None, _) => self.wrongs.add(|| format!("key {key:#x} is not there")),
        }
    }
}

impl Worker {
    /// What is wrong with the map, and a checksum of it.
    fn check(&self) -> (Wrongs, u64) {
        let (mut wrongs, mut added, mut sum) = (Wrongs::default(), 0_u64, 0_u64);
        for number in 0..self.map.count {
            let key = self.map.key(number);
            let Some(found) = self.map.entries.get(&key) else {
                wrongs.add(|| format!("key {key:#x} is not there"));
                continue;
            };
            let more = found.wrapping_sub(value(key));
            if more > self.updates {
                wrongs.add(|| format!("the value of key {key:#x} is {found:#x}, which updates cannot make of {:#x}", value(key)));
            }
            added = added.wrapping_add(more);
            sum = sum.wrapping_add(checksum(self.map.first + number, *found));
        }
        if added != self.updates {
            let off = added.wrapping_sub(self.updates).cast_signed();
            wrongs.add(|| format!("the sum of the values is off by {off} after {} updates", self.updates));
        }
        if self.map.entries.len() != self.map.count {
            wrongs.add(|| format!("there are {} keys, not {}", self.map.entries.len(), self.map.count));
        }
        (wrongs, sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::team::Worker as _;

    fn worker(mode: Mode) -> Worker {
        let map = Map::new(7, 100, 5000);
        Worker { map, mode, random: generator(1, 0), updates: 0, wrongs: Wrongs::default() }
    }

    #[test]
    fn what_was_counted_up_is_there() {
        for mode in [Mode::Read, Mode::Update] {
            let mut worker = worker(mode);
            (0..20_000).for_each(|_| worker.operate(Stage::Measure));
            assert_eq!(worker.updates, if mode == Mode::Update { 20_000 } else { 0 });
            assert_eq!(worker.check().0.lines(), Vec::<String>::new());
            assert_eq!(std::mem::take(&mut worker.wrongs).lines(), Vec::<String>::new());
        }
    }

    #[test]
    fn a_lost_update_and_a_lost_key_are_found() {
        let mut worker = worker(Mode::Update);
        (0..100).for_each(|_| worker.operate(Stage::Measure));
        let touched = (0..5000).map(|number| worker.map.key(number)).find(|key| worker.map.entries[key] != value(*key)).unwrap();
        *worker.map.entries.get_mut(&touched).unwrap() -= 1;
        assert_eq!(worker.check().0.lines(), ["the sum of the values is off by -1 after 100 updates"]);
        worker.map.entries.remove(&touched);
        let lines = worker.check().0.lines();
        assert!(lines[0].contains("is not there") && lines.last().unwrap().contains("there are 4999 keys"), "{lines:?}");
    }

    #[test]
    fn a_wrong_value_is_found_where_it_is_read() {
        let mut worker = worker(Mode::Read);
        worker.map.entries.values_mut().for_each(|value| *value ^= 1 << 60);
        worker.operate(Stage::Measure);
        assert_eq!(std::mem::take(&mut worker.wrongs).lines().len(), 1);
    }
}
