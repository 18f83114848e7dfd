//! Slots under all interleavings: no slot has two owners, none is lost.
#![cfg(loom)]

use farshore_core::limits::EXTENT_SLOTS;
use farshore_core::slots::{Run, SlotMap};
use farshore_core::word::Slot;
use farshore_models::explore;
use loom::sync::Arc;
use loom::thread;

/// A space that has this many free slots left, and the runs that fill the rest.
fn nearly_full(free: u32) -> (Arc<SlotMap>, Run) {
    let map = SlotMap::new(Some(EXTENT_SLOTS as u64));
    // Slot 0 is nobody's.
    let run = map.reserve_run(0, EXTENT_SLOTS as u32 - 1 - free).expect("an empty space has room");
    (Arc::new(map), run)
}

fn overlap(a: Run, b: Run) -> bool {
    let (a0, b0) = (a.first.number(), b.first.number());
    a0 < b0 + u64::from(b.len) && b0 < a0 + u64::from(a.len)
}

#[test]
fn two_evictors_get_different_runs() {
    explore(3, || {
        let (map, held) = nearly_full(3);
        let other = {
            let map = map.clone();
            thread::spawn(move || map.reserve_run(0, 2))
        };
        let mine = map.reserve_run(0, 2).expect("three are free");
        let theirs = other.join().unwrap().expect("three are free");
        assert!(!overlap(mine, theirs) && !overlap(mine, held) && !overlap(theirs, held));
        assert_eq!(mine.len + theirs.len, 3);
        map.assert_valid();
    });
}

/// A fault forfeits a slot while an evictor looks for one: it may miss it, but the counts must agree.
#[test]
fn a_slot_that_is_freed_is_there_for_the_next_search() {
    explore(3, || {
        let (map, held) = nearly_full(0);
        let fault = {
            let map = map.clone();
            thread::spawn(move || map.free(held.first.plus(1)))
        };
        let found = map.reserve_run(0, 1);
        fault.join().unwrap();
        map.assert_valid();
        let found = found.or_else(|| map.reserve_run(0, 1)).expect("one slot is free");
        assert_eq!(found, Run { first: held.first.plus(1), len: 1 });
        assert_eq!(map.reserve_run(0, 1), None);
        map.assert_valid();
    });
}

#[test]
fn two_faults_forfeit_slots_of_one_word() {
    explore(3, || {
        let (map, held) = nearly_full(0);
        let forfeit = |slot: Slot| {
            let map = map.clone();
            thread::spawn(move || map.free(slot))
        };
        let faults = [forfeit(held.first), forfeit(held.first.plus(1))];
        let early = map.reserve_run(0, 2).map_or(0, |run| run.len);
        faults.into_iter().for_each(|t| t.join().unwrap());
        map.assert_valid();
        let mut found = early;
        while let Some(run) = map.reserve_run(0, 2) {
            found += run.len;
        }
        assert_eq!(found, 2);
        map.assert_valid();
    });
}

/// The evictor writes a sum, the slot's number travels through the page word, the fault reads the sum.
#[test]
fn growing_is_seen_by_whoever_gets_a_slot_of_it() {
    explore(3, || {
        let map = Arc::new(SlotMap::new(Some(EXTENT_SLOTS as u64)));
        let other = {
            let map = map.clone();
            thread::spawn(move || {
                let run = map.reserve_run(0, 1).expect("an empty space has room");
                map.set_sum(run.first, 42);
                let sum = map.sum(run.first);
                map.free(run.first);
                sum
            })
        };
        let mine = map.reserve_run(0, 1).expect("an empty space has room");
        map.set_sum(mine.first, 43);
        assert_eq!(other.join().unwrap(), 42);
        assert_eq!(map.sum(mine.first), 43);
        map.assert_valid();
        assert_eq!(map.live(), 1);
    });
}
