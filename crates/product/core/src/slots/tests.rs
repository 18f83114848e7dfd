//! Tests of the map of slots, on one thread.

use super::*;
use alloc::collections::{BTreeSet, VecDeque};

std::thread_local! {
    /// How many extents the map has looked at to see whether they may be given out.
    pub(super) static LOOKS: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

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
    // A second child sees the slots in use now, not those that the first one sees.
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
    // And the child's own child.
    assert_eq!(map.begin_own(None), 3 * EXTENT_SLOTS as u64);
    assert!(map.reserve_run(0, 1).unwrap().first.number() > 3 * EXTENT_SLOTS as u64);
    map.assert_valid();
}

/// Reserves all slots; returns how many lie in each space.
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
fn on_a_full_disk_what_was_being_filled_comes_last() {
    let map = SlotMap::new(None);
    let full = [map.reserve_run(0, 512).unwrap(), map.reserve_run(0, 512).unwrap()];
    let filling = map.reserve_run(0, 100).unwrap();
    full.iter().for_each(|run| map.free(run.first));
    // The disk had no room for the next slots in the extent that is being filled.
    map.allow(0, Allowed::NoGrowth);
    let next = || map.reserve_run(0, 8).map(|run| (run.first, run.len));
    assert_eq!([next(), next()], full.map(|run| Some((run.first, 1))), "room that the disk is known to have");
    assert_eq!(next(), Some((filling.first.plus(100), 8)));
    map.assert_valid();
}

#[test]
fn an_extent_for_which_a_full_disk_has_no_room_is_left_alone_until_it_has() {
    let map = SlotMap::new(None);
    let full = map.reserve_run(0, 512).unwrap();
    let unwritten = map.reserve_run(0, 100).unwrap();
    (0..20).for_each(|i| map.free(full.first.plus(i)));
    map.allow(0, Allowed::NoGrowth);
    map.bar(unwritten.first);
    (0..100).for_each(|i| map.free(unwritten.first.plus(i)));
    assert_eq!(map.reserve_run(0, 512), Some(Run { first: full.first, len: 20 }));
    assert_eq!(map.reserve_run(0, 512), None, "the disk has no room for the other");
    assert!(map.reserve_run_in(0, 0, 8).is_some_and(|run| run.first.number() >= 512), "but whether it has is tried there");
    map.allow(0, Allowed::All);
    assert_eq!(map.reserve_run(0, 100).map(|run| run.first.number() >= 512), Some(true));
    // Full once more: what was barred then has room now.
    map.allow(0, Allowed::NoGrowth);
    assert!(map.reserve_run(0, 100).is_some_and(|run| run.first.number() >= 512));
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

/// Frees the oldest runs, so that `live` slots are in use.
fn free_down_to(map: &SlotMap, runs: &mut VecDeque<Run>, live: u64) {
    while map.live() > live {
        let run = runs.pop_front().expect("what is in use was reserved");
        (0..u64::from(run.len)).for_each(|i| map.free(run.first.plus(i)));
    }
}

#[test]
fn each_core_fills_extents_of_its_own() {
    let map = SlotMap::for_cores(None, &[0; 3]);
    let mut owner = alloc::collections::BTreeMap::new();
    for round in 0..if cfg!(miri) { 6 } else { 60 } {
        let core = round % 3;
        let run = map.reserve_run(core, 200).unwrap();
        assert_eq!(*owner.entry(locate(run.first).0).or_insert(core), core, "an extent has one owner");
    }
    assert!(owner.len() >= 3);
    map.assert_valid();
}

#[test]
fn a_core_whose_extents_are_full_asks_its_neighbours_first() {
    // Cores 0 and 3 on one node, 1 and 2 on another.
    let map = SlotMap::for_cores(Some(3 * EXTENT_SLOTS as u64), &[0, 1, 1, 0]);
    for core in [0, 1, 3] {
        assert!(map.reserve_run(core, 100).is_some());
    }
    let of = |run: Run| map.extent(locate(run.first).0).owner();
    let asked: Vec<usize> = (0..6).map(|_| of(map.reserve_run(2, 256).unwrap())).collect();
    assert_eq!(asked, [1, 1, 3, 3, 0, 0], "its own node, then the others");
    assert_eq!(map.reserve_run(2, 1), None);
    assert!(!map.was_unanswered(2));
    map.assert_valid();
}

#[test]
fn an_owner_that_stands_still_hangs_nobody() {
    let map = SlotMap::for_cores(Some(2 * EXTENT_SLOTS as u64), &[0, 0]);
    let mine = map.reserve_run(0, 1).unwrap();
    let mut theirs = 0;
    while theirs < EXTENT_SLOTS as u32 {
        theirs += map.reserve_run(1, EXTENT_SLOTS as u32 - theirs).unwrap().len;
    }
    map.owners.all[0].fill.with(|_| {
        for _ in 0..2 * crate::delegation::TASKS_A_CORE {
            assert_eq!(map.reserve_run(1, 8), None);
            assert!(map.was_unanswered(1), "no want of room");
        }
        assert_eq!(map.reserve_run(0, 8), None, "the owner itself does not wait for ever either");
        assert!(map.was_unanswered(0));
    });
    // The core goes on: cancelled work is not done any more, and there are free tasks again.
    let run = map.reserve_run(1, 8).unwrap();
    assert_eq!((map.extent(locate(run.first).0).owner(), run.len), (0, 8));
    assert_eq!(map.live(), u64::from(theirs + mine.len + run.len));
    map.assert_valid();
}

/// The same slots, whether cores ask each other or not.
#[test]
fn a_core_whose_extents_are_full_takes_others_by_itself_where_none_is_asked() {
    for delegates in [true, false] {
        let mut map = SlotMap::for_cores(Some(2 * EXTENT_SLOTS as u64), &[0, 0]);
        if !delegates {
            map.end_delegation();
        }
        assert!(map.reserve_run(0, 1).is_some());
        let mut taken = 0;
        while let Some(run) = map.reserve_run(1, 64) {
            taken += run.len;
        }
        // All but the very first, and the one that was reserved.
        assert_eq!((taken, map.was_unanswered(1)), (2 * EXTENT_SLOTS as u32 - 2, false));
        assert_eq!((map.asked(0), map.asked(1) > 0, map.all_asked() > 0), (0, delegates, delegates));
        assert_eq!(map.duplicate().delegates, delegates, "children do as their parents");
        map.assert_valid();
    }
}

/// Seven of eight spaces are full: how much a reservation looks at does not grow with the number of full spaces.
#[test]
fn nothing_full_is_searched() {
    const EXTENTS: u64 = if cfg!(miri) { 2 } else { 24 };
    for cores in [1, 4] {
        let mut map = SlotMap::for_cores(None, &alloc::vec![0; cores]);
        let extents = |n: u64| Some(n * EXTENT_SLOTS as u64);
        map.set_spaces(&[
            extents(EXTENTS),
            extents(EXTENTS),
            extents(EXTENTS),
            extents(EXTENTS),
            extents(EXTENTS),
            extents(EXTENTS),
            extents(EXTENTS),
            None,
        ]);
        let full = 7 * EXTENTS * EXTENT_SLOTS as u64;
        let mut first = 0;
        while first < full {
            let run = map.reserve_run(0, 512).unwrap();
            first += if map.space_of(run.first) == Some(7) {
                (0..u64::from(run.len)).for_each(|i| map.free(run.first.plus(i)));
                0
            } else {
                u64::from(run.len) + u64::from(run.first.number() == 1)
            };
        }
        let (mut runs, mut most, rounds) = (VecDeque::new(), 0, if cfg!(miri) { 8 } else { 2000 });
        let before = LOOKS.get();
        for round in 0..rounds {
            let looks = LOOKS.get();
            runs.push_back(map.reserve_run(round % cores, 64).unwrap());
            most = most.max(LOOKS.get() - looks);
            free_down_to(&map, &mut runs, map.live().min(first + 4096));
        }
        assert!((LOOKS.get() - before) / (rounds as u64) < 8, "{} looks for {rounds} runs", LOOKS.get() - before);
        // One turn of the spaces, when one grows, and its list.
        assert!(most < 100, "{most} looks for one run");
        map.assert_valid();
    }
}

/// All extents are full: a core knows that without a look at any extent, and any core finds one slot that comes back.
#[test]
fn a_full_map_says_so_at_once() {
    let map = SlotMap::for_cores(Some(16 * EXTENT_SLOTS as u64), &[0; 4]);
    let mut runs = Vec::new();
    while let Some(run) = map.reserve_run(runs.len() % 4, 512) {
        runs.push(run);
    }
    assert_eq!(map.live(), 16 * EXTENT_SLOTS as u64 - 1);
    (0..4).for_each(|core| assert_eq!(map.reserve_run(core, 1), None));
    for (n, run) in runs.into_iter().enumerate() {
        let looks = LOOKS.get();
        assert_eq!(map.reserve_run(n % 4, 1), None);
        assert!(LOOKS.get() - looks < 4, "{} looks", LOOKS.get() - looks);
        map.free(run.first);
        assert_eq!(map.reserve_run(n % 4, 8), Some(Run { first: run.first, len: 1 }));
    }
    map.assert_valid();
}

/// The first extent of all has a slot that is in use from the beginning and that no page has. The map once put that extent away
/// and took it up again for ever.
#[test]
fn the_first_extent_is_used_though_its_space_was_closed_when_it_came() {
    let mut map = SlotMap::new(None);
    map.set_spaces(&[None, None]);
    map.close(0);
    let other = map.reserve_run(0, 1).expect("the other space has room");
    assert_eq!(map.space_of(other.first), Some(1));
    map.reopen(0);
    map.close(1);
    let run = map.reserve_run(0, 4).expect("there is room again");
    assert_eq!((run.first.number(), run.len), (1, 4));
    map.assert_valid();
}
