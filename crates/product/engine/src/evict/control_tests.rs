//! Tests of the controller: against loads that are made up, and against loads that react to the pace.

use super::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

/// A window in which `demand` frames were taken, and nothing else happened.
fn calm(demand: u64) -> Window {
    Window { ns: WINDOW_NS, demand, ..Window::default() }
}

fn auto(batch: u32, evictors: u32) -> Controller {
    Controller::new(batch, evictors, Wanted::default())
}

/// Lets the controller decide `times` times, with `load` answering each pace. Returns how often the pace changed.
fn changes(controller: &mut Controller, times: u32, mut load: impl FnMut(Pace) -> Window) -> u32 {
    let mut count = 0;
    for _ in 0..times {
        let before = controller.pace();
        count += u32::from(controller.decide(&load(before)) != before);
    }
    count
}

#[test]
fn it_begins_with_large_batches_and_one_evictor() {
    assert_eq!(auto(256, 4).pace(), Pace { evictors: 1, batch: 256, writes: 2 });
    assert_eq!(auto(42, 1).pace(), Pace { evictors: 1, batch: 42, writes: 2 });
}

#[test]
fn batches_are_small_while_requests_are_served_unless_the_user_says_else() {
    let mut it = auto(256, 1);
    it.serve(true);
    assert_eq!(it.pace().batch, 64);
    changes(&mut it, 100, |_| calm(10_000));
    assert_eq!(it.pace().batch, 64);
    it.fix(Wanted { batch: Some(100), ..Wanted::default() });
    assert_eq!(it.pace().batch, 100);
    it.fix(Wanted::default());
    it.serve(false);
    assert_eq!(it.pace().batch, 256);
}

#[test]
fn batches_follow_the_demand() {
    let mut it = auto(256, 1);
    changes(&mut it, 10 * HOLD_LEAST, |_| calm(10));
    assert_eq!(it.pace().batch, 64, "little is asked for");
    changes(&mut it, 1, |_| calm(100));
    assert_eq!(it.pace().batch, 128);
    changes(&mut it, 100, |_| calm(120));
    assert_eq!(it.pace().batch, 128, "between the thresholds");
    changes(&mut it, 1, |_| Window { missed: 1, ..calm(10) });
    assert_eq!(it.pace().batch, 256, "a stream found no frames");
    changes(&mut it, 10 * HOLD_LEAST, |_| calm(10));
    changes(&mut it, 1, |_| Window { ns: 100 * MS, demand: 600, ..Window::default() });
    assert_eq!(it.pace().batch, 64, "of ten windows");
    let mut it = auto(256, 1);
    changes(&mut it, HOLD_LEAST / 8, |_| Window { ns: 1000 * MS, demand: 900, ..Window::default() });
    assert_eq!(it.pace().batch, 128, "it slept most of the time");
}

#[test]
fn a_small_largest_batch_has_no_levels() {
    let mut it = auto(100, 1);
    changes(&mut it, 1000, |_| calm(0));
    assert_eq!(it.pace().batch, 100);
}

#[test]
fn evictors_wake_when_those_awake_are_not_enough() {
    let busy = |n: u32, share: u64| Window { occupied_ns: u64::from(n) * WINDOW_NS * share / 100, ..calm(300) };
    let mut it = auto(256, 4);
    changes(&mut it, 50, |pace| busy(pace.evictors, 100));
    assert_eq!(it.pace().evictors, 1, "nobody waits");
    changes(&mut it, 50, |pace| Window { waits: 1, ..busy(pace.evictors, 30) });
    assert_eq!(it.pace().evictors, 1, "it has time left: the waits are for something else");
    changes(&mut it, 3, |pace| Window { waits: 1, ..busy(pace.evictors, 90) });
    assert_eq!(it.pace().evictors, 4);
    changes(&mut it, HOLD_LEAST - 1, |_| busy(1, 100));
    assert_eq!(it.pace().evictors, 4, "not at once");
    changes(&mut it, 20 * HOLD_LEAST, |_| busy(1, 60));
    assert_eq!(it.pace().evictors, 2, "one alone would be at work for more than half of the time");
    changes(&mut it, 20 * HOLD_LEAST, |_| busy(1, 40));
    assert_eq!(it.pace().evictors, 1);
    it.alarm();
    assert_eq!(it.pace().evictors, 4);
}

/// How long writes take on a device that works on `lanes` of them side by side, with `others` ahead of each.
fn device(pace: Pace, lanes: u64, others: u64) -> Window {
    let times = (u64::from(pace.writes) + others).div_ceil(lanes).max(1);
    Window { stalls: 1, writes: WRITES_A_VOTE, ratios: WRITES_A_VOTE * ONE * times, ..calm(300) }
}

#[test]
fn writes_follow_the_device() {
    let settled = |lanes, others| {
        let mut it = auto(256, 1);
        changes(&mut it, 40 * HOLD_LEAST, |pace| device(pace, lanes, others));
        it.pace().writes
    };
    assert_eq!(settled(1, 0), 2, "in turn: one behind the other");
    assert_eq!(settled(8, 0), WRITES_MAX, "side by side");
    let mut it = auto(256, 1);
    changes(&mut it, 2 * HOLD_LEAST, |pace| device(pace, 1, 6));
    assert_eq!(it.pace().writes, 1, "busy with reads");
    changes(&mut it, 10, |pace| device(pace, 1, 0));
    assert_eq!(it.pace().writes, 2);
    changes(&mut it, 10, |pace| device(pace, 8, 0));
    assert_eq!(it.pace().writes, 4);
    changes(&mut it, 3 * HOLD_LEAST, |pace| Window { stalls: 0, ..device(pace, 8, 0) });
    assert_eq!(it.pace().writes, 2, "nobody needs more");
}

#[test]
fn few_writes_say_nothing() {
    let mut it = auto(256, 1);
    changes(&mut it, 7, |_| Window { stalls: 1, writes: 1, ratios: ONE, ..calm(300) });
    assert_eq!(it.pace().writes, 2);
    changes(&mut it, 1, |_| Window { stalls: 1, writes: 1, ratios: ONE, ..calm(300) });
    assert_eq!(it.pace().writes, 3);
}

#[test]
fn what_is_fixed_stays() {
    let wanted = Wanted { evictors: Some(3), batch: Some(100), writes: Some(1), free: None };
    let mut it = Controller::new(256, 4, wanted);
    let pressed = Window { waits: 9, missed: 9, stalls: 9, writes: 9, ratios: 9 * ONE, occupied_ns: 9 * WINDOW_NS, ..calm(9999) };
    assert_eq!(changes(&mut it, 100, |_| pressed), 0);
    it.alarm();
    assert_eq!(it.pace(), Pace { evictors: 3, batch: 100, writes: 1 });
    it.fix(Wanted { evictors: Some(99), batch: Some(9999), writes: Some(0), free: Some(99) });
    assert_eq!(it.pace(), Pace { evictors: 4, batch: 256, writes: 1 });
    it.fix(Wanted::default());
    assert_eq!(it.wanted(), Wanted::default());
}

/// A load that lies between two levels: each level is too low, and the next one too high.
#[test]
fn a_load_between_two_levels_makes_few_changes() {
    let mut it = auto(256, 2);
    let load = |pace: Pace| match pace.evictors {
        1 => Window { waits: 1, occupied_ns: WINDOW_NS, ..calm(200) },
        _ => Window { occupied_ns: WINDOW_NS / 3, ..calm(20) },
    };
    changes(&mut it, 100_000, load);
    let later = changes(&mut it, 100_000, load);
    assert!(later <= 4 * (100_000 / HOLD_MOST + 1), "{later} changes in 100,000 windows");
}

#[test]
fn floors_are_by_size_and_space_and_forgotten() {
    let mut floors = Floors::new(2);
    assert_eq!(floors.ratio(0, 64, 1000), ONE);
    assert_eq!(floors.ratio(0, 64, 3000), 3 * ONE);
    assert_eq!(floors.ratio(0, 1, 3000), ONE, "another size");
    assert_eq!(floors.ratio(2, 64, 3000), ONE, "another space");
    assert_eq!(floors.ratio(0, 50, 500), ONE, "shorter than ever");
    assert_eq!(floors.ratio(0, 64, 1000), 2 * ONE);
    for _ in 0..2 * FLOOR_WRITES {
        floors.ratio(0, 64, 4000);
    }
    assert_eq!(floors.ratio(0, 64, 4000), ONE, "the device has become slower");
}

fn windows() -> impl Strategy<Value = Vec<Window>> {
    let one = (1..40 * MS, 0..2000_u64, 0..3_u64, 0..3_u64, 0..160 * MS, 0..3_u64, 0..20_u64, 0..9_u64).prop_map(
        |(ns, demand, waits, missed, occupied_ns, stalls, writes, times)| Window {
            ns,
            demand,
            waits: waits / 2,
            missed: missed / 2,
            occupied_ns,
            stalls,
            writes,
            ratios: writes * ONE * (1 + times),
        },
    );
    prop::collection::vec(one, 1..600)
}

proptest! {
    /// Whatever the load: within bounds, a step at a time, and a step down at most once in the time of `HOLD_LEAST` windows.
    #[test]
    fn any_load(windows in windows(), batch in 8..=256_u32, evictors in 1..=16_u32) {
        let mut it = auto(batch, evictors);
        let mut down = [None; 3];
        let mut passed = 0;
        for window in &windows {
            passed += (window.ns / WINDOW_NS).max(1);
            let before = it.pace();
            let now = it.decide(window);
            prop_assert!((batch.min(BATCH_LEAST)..=batch).contains(&now.batch), "{now:?}");
            prop_assert!((1..=evictors).contains(&now.evictors) && (1..=WRITES_MAX).contains(&now.writes), "{now:?}");
            prop_assert!(now.evictors.abs_diff(before.evictors) <= 1 && now.writes.abs_diff(before.writes) <= 1);
            let steps = [(before.batch, now.batch), (before.evictors, now.evictors), (before.writes, now.writes)];
            for ((before, now), last) in steps.into_iter().zip(&mut down) {
                if now < before {
                    prop_assert!(last.is_none_or(|last| passed - last >= u64::from(HOLD_LEAST)), "two steps down after {last:?}");
                    *last = Some(passed);
                }
            }
        }
    }
}
