//! The map of slots, one thread.

use super::*;
use alloc::collections::BTreeSet;

#[test]
fn what_a_child_may_read_is_not_given_out_again() {
    let map = SlotMap::new(Some(if cfg!(miri) { 4 } else { 12 } * EXTENT_SLOTS as u64));
    let first = map.reserve_run(0, 300).unwrap();
    let share = map.share();
    (0..300).for_each(|i| map.free(first.first.plus(i)));
    assert_eq!(map.live(), 0);
    let mut later = BTreeSet::new();
    for _ in 0..if cfg!(miri) { 4 } else { 20 } {
        let run = map.reserve_run(0, 256).unwrap();
        (0..u64::from(run.len)).for_each(|i| assert!(later.insert(run.first.plus(i).number())));
    }
    assert!((0..300).all(|i| !later.contains(&first.first.plus(i).number())));
    // A second child sees what is in use now, not what the first one sees.
    let second = map.share();
    map.unshare(share);
    later.iter().for_each(|&n| map.free(Slot::new(n).unwrap()));
    let mut again = BTreeSet::new();
    while let Some(run) = map.reserve_run(0, 64) {
        (0..u64::from(run.len)).for_each(|i| assert!(again.insert(run.first.plus(i).number())));
    }
    assert!(again.is_disjoint(&later));
    assert!((0..300).all(|i| again.contains(&first.first.plus(i).number())), "the first child is gone");
    map.unshare(second);
    map.assert_valid();
    assert_eq!(map.shares(), 0);
}

#[test]
fn more_children_than_shares_hold_together() {
    let map = SlotMap::new(None);
    let mut ids = Vec::new();
    let mut used = Vec::new();
    for _ in 0..SHARES_MAX + 5 {
        used.push(map.reserve_run(0, 8).unwrap());
        ids.push(map.share());
    }
    assert_eq!(map.shares(), SHARES_MAX);
    used.iter().for_each(|run| (0..u64::from(run.len)).for_each(|i| map.free(run.first.plus(i))));
    ids.into_iter().for_each(|id| map.unshare(id));
    assert_eq!(map.shares(), 0);
    map.assert_valid();
}

#[test]
fn a_child_takes_slots_behind_its_parents() {
    let mut map = SlotMap::new(Some(4 * EXTENT_SLOTS as u64));
    let parents = map.reserve_run(0, 400).unwrap();
    let own = map.begin_own(Some(2 * EXTENT_SLOTS as u64));
    assert_eq!(own, EXTENT_SLOTS as u64);
    map.assert_valid();
    map.free(parents.first);
    assert_eq!((map.live(), map.inherited()), (0, u64::from(parents.len) - 1));
    let mut count = 0;
    while let Some(run) = map.reserve_run(0, 100) {
        assert!(run.first.number() > own);
        count += run.len;
    }
    assert_eq!(count, 2 * EXTENT_SLOTS as u32 - 1);
    map.assert_valid();
    // And its child.
    assert_eq!(map.begin_own(None), 3 * EXTENT_SLOTS as u64);
    assert!(map.reserve_run(0, 1).unwrap().first.number() > 3 * EXTENT_SLOTS as u64);
    map.assert_valid();
}

/// Reserves all that there is; how many slots lie in each space.
fn drain(map: &SlotMap) -> Vec<u32> {
    let mut count = alloc::vec![0; map.spaces()];
    while let Some(run) = map.reserve_run(0, 256) {
        count[map.space_of(run.first).unwrap()] += run.len;
    }
    count
}

#[test]
fn spaces_of_different_sizes_are_all_used() {
    let slots = |extents: usize| Some((extents * EXTENT_SLOTS) as u64);
    let mut map = SlotMap::new(None);
    map.set_spaces(&[slots(1), slots(4), slots(2)]);
    assert_eq!(drain(&map), [512 - 1, 4 * 512, 2 * 512]);
    map.assert_valid();
    assert_eq!((map.reserve_run_in(0, 0, 1), map.reserve_run_in(0, 1, 1)), (None, None));
}

#[test]
fn a_space_that_fails_is_left_alone_and_tried() {
    let slots = Some((4 * EXTENT_SLOTS) as u64);
    let mut map = SlotMap::new(None);
    map.set_spaces(&[slots, slots]);
    let old = map.reserve_run(0, 100).unwrap();
    assert_eq!(map.space_of(old.first), Some(0));
    map.allow(0, Allowed::Nothing);
    let trial = map.reserve_run_in(0, 0, 8).unwrap();
    assert_eq!((map.space_of(trial.first), trial.len), (Some(0), 8));
    assert!(trial.first.number() >= 2 * 512, "what was never used");
    (0..8).for_each(|i| map.free(trial.first.plus(i)));
    assert_eq!(map.reserve_run_in(0, 0, 8).unwrap().first, trial.first, "a trial that failed is no reason to grow");
    assert_eq!(drain(&map), [0, 4 * 512]);
    map.allow(0, Allowed::All);
    assert_eq!(drain(&map), [4 * 512 - 1 - 100 - 8, 0]);
    map.assert_valid();
}

#[test]
fn a_full_disk_keeps_what_it_has() {
    let mut map = SlotMap::new(None);
    map.set_spaces(&[None, Some((3 * EXTENT_SLOTS) as u64)]);
    let first = map.reserve_run(0, 512).unwrap();
    assert_eq!(map.reserve_run(0, 512).map(|run| map.space_of(run.first)), Some(Some(1)));
    let _ = map.reserve_run(0, 512).unwrap();
    map.allow(0, Allowed::NoGrowth);
    assert_eq!(drain(&map), [0, 2 * 512]);
    map.allow(0, Allowed::Nothing);
    map.free(first.first);
    assert_eq!(map.reserve_run(0, 8), None);
    map.allow(0, Allowed::NoGrowth);
    assert_eq!(map.reserve_run(0, 8), Some(Run { first: first.first, len: 1 }));
    assert_eq!(map.reserve_run(0, 8), None, "it has not grown meanwhile");
    map.assert_valid();
}

#[test]
fn extents_are_made_beforehand() {
    let map = SlotMap::new(None);
    assert!(map.is_short_of_spares());
    assert!(map.stock() && !map.is_short_of_spares());
    for _ in 0..SPARES / 2 {
        assert_eq!(map.reserve_run(0, 512).map(|run| run.len >= 511), Some(true));
    }
    assert!(map.is_short_of_spares());
    while let Some(run) = map.reserve_run(0, 512) {
        assert!(run.first.number() < (SPARES * EXTENT_SLOTS) as u64);
    }
    assert!(map.wants_stock(), "the map does not allocate");
    assert!(map.stock() && !map.wants_stock());
    assert!(map.reserve_run(0, 512).is_some());
    map.assert_valid();
}

#[test]
fn runs_lie_side_by_side_and_never_overlap() {
    let map = SlotMap::new(None);
    let mut used = BTreeSet::new();
    for _ in 0..if cfg!(miri) { 4 } else { 20 } {
        let run = map.reserve_run(0, 100).unwrap();
        for i in 0..u64::from(run.len) {
            assert!(used.insert(run.first.plus(i).number()));
        }
    }
    assert!(!used.contains(&0));
    map.assert_valid();
    assert_eq!(map.live(), used.len() as u64);
    for n in used {
        map.free(Slot::new(n).unwrap());
    }
    map.assert_valid();
    assert_eq!(map.live(), 0);
}

#[test]
fn a_full_space_says_so_and_recovers() {
    let map = SlotMap::new(Some(2 * EXTENT_SLOTS as u64));
    let mut runs = Vec::new();
    while let Some(run) = map.reserve_run(0, 256) {
        runs.push(run);
    }
    assert_eq!(map.live(), 2 * EXTENT_SLOTS as u64 - 1);
    map.free(runs[0].first);
    assert_eq!(map.reserve_run(0, 8), Some(Run { first: runs[0].first, len: 1 }));
    assert_eq!(map.reserve_run(0, 8), None);
}

#[test]
fn freed_room_is_used_before_the_space_grows() {
    let map = SlotMap::new(None);
    for _ in 0..if cfg!(miri) { 2 } else { 50 } {
        let runs: Vec<Run> = (0..8).map(|_| map.reserve_run(0, 256).unwrap()).collect();
        for run in runs {
            for i in 0..u64::from(run.len) {
                map.free(run.first.plus(i));
            }
        }
    }
    // At most 2048 slots, 4 extents, were in use at a time.
    let room = u64::from(SLACK) * 4 * (EXTENT_SLOTS * 4096) as u64;
    assert!(map.extent_bytes() <= room, "{}", map.extent_bytes());
}
