//! Small fleets from seeds. Each event is audited in full; what is lost, copied and waited for is what can be reckoned by hand.

use farshore_fleet::place::Choice;
use farshore_fleet::scenario::{Outcome, SCENARIOS, Scenario, run, warm};
use farshore_fleet::setup::{GIB, SECOND, Setup};
use proptest::prelude::*;

fn small() -> Setup {
    Setup { clients: 16, nodes: 12, racks: 6, memory: 2 * GIB, need: GIB / 8, warm: 60 * SECOND, audit: 1, ..Setup::default() }
}

fn outcome(setup: &Setup, scenario: Scenario) -> Outcome {
    run(&warm(setup), scenario)
}

/// Clients whose needs do not change, and which write next to nothing.
fn still(setup: Setup) -> Setup {
    Setup { change: 1e9, life: 1e9, rewrite: 1e9, ..setup }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    /// No law is broken, whatever happens to whichever fleet, full ones among them. With room for all, copies in different racks outlive as many racks as they are
    /// copies less one.
    #[test]
    fn no_law_is_broken(
        seed in 0_u64..1 << 40,
        scenario in prop::sample::select(SCENARIOS.to_vec()),
        choice in prop::sample::select(vec![Choice::Random, Choice::TwoChoices, Choice::RoundRobin]),
        copies in 1_usize..=3,
        (apart, in_parts) in (any::<bool>(), any::<bool>()),
        (memory, skew) in (1_u64..16, 0.0..1.5),
        link in 20_u64..1000,
    ) {
        let setup = Setup {
            seed, choice, copies, apart, skew,
            memory: memory * GIB / 4,
            part: in_parts.then_some(GIB / 32),
            node_link: link << 20,
            rack_link: (2 * link) << 20,
            clients: 12,
            need: GIB / 8,
            ..small()
        };
        let came = outcome(&setup, scenario);
        let is_roomy = came.fullest < 0.2;
        let survives = match scenario {
            Scenario::Lost => copies > 1,
            Scenario::Rack => copies > 1 && apart,
            Scenario::TwoRacks => copies > 2 && apart,
            // One copy cannot be exchanged, so nothing is done.
            Scenario::Leaves | Scenario::Joins | Scenario::Filled | Scenario::Away => true,
            Scenario::Rolling => copies > 1,
            Scenario::Hasty => false,
        };
        if survives && is_roomy {
            prop_assert_eq!(came.lost_pages, 0, "{:?}", came);
        }
        if copies == 1 {
            prop_assert_eq!(came.copied_gib, 0.0);
        }
        if scenario == Scenario::Lost && copies == 1 {
            prop_assert!((came.lost_gib - came.taken_gib).abs() < 1e-9);
        }
    }
}

#[test]
fn one_seed_is_one_run() {
    let json = |seed| {
        let setup = Setup { part: Some(GIB / 16), seed, ..small() };
        serde_json::to_string(&outcome(&setup, Scenario::TwoRacks)).expect("it is plain data")
    };
    assert_eq!(json(5), json(5));
    assert_ne!(json(5), json(6));
}

/// On paper: a client whose node is lost waits for the exchange, and copies what was there at 60 MiB/s. One that writes nothing copies each byte once.
#[test]
fn a_single_client_is_whole_when_paper_says() {
    for copies in [2, 3] {
        let setup = still(Setup { clients: 1, copies, need: GIB, memory: 40 * GIB, nodes: 5, racks: 5, ..small() });
        let came =
            (1..40).map(|seed| outcome(&Setup { seed, ..setup.clone() }, Scenario::Lost)).find(|came| came.hit_clients == 1);
        let came = came.expect("one of them had a copy on the node");
        let copying = came.taken_gib * 1024.0 / 60.0;
        let whole = came.whole_s.expect("it became whole");
        assert!((whole - 120.0 - copying).abs() < 0.3, "{whole} s, and {copying} s of copying");
        assert!(came.extra.is_some_and(|extra| (extra - 1.0).abs() < 1e-4), "{came:?}");
        assert_eq!(came.lost_pages, 0);
        let alone = if copies == 2 { whole } else { 0.0 };
        assert!((came.single_mean_s - alone).abs() < 0.3, "{came:?}");
    }
}

/// Writes do a part of the repair: with a part w of all pages written each second and r of them copied, pages are behind for ln(1 + w/r)/w.
#[test]
fn writes_repair_too() {
    let setup = Setup {
        rewrite: 20.0,
        ..still(Setup { clients: 1, need: GIB, memory: 40 * GIB, nodes: 5, racks: 5, exchange: SECOND, ..small() })
    };
    let came = (1..40).map(|seed| outcome(&Setup { seed, ..setup.clone() }, Scenario::Lost)).find(|came| came.hit_clients == 1);
    let came = came.expect("one of them had a copy on the node");
    let (writes, copies) = (1.0 / 20.0, 60.0 / 1024.0 / came.taken_gib);
    let copying = (writes / copies).ln_1p() / writes;
    let whole = came.whole_s.expect("it became whole");
    assert!((whole - 1.0 - copying).abs() < 0.02 * copying + 0.3, "{whole} s, and {copying} s on paper");
    let extra = copying * copies;
    assert!(came.extra.is_some_and(|found| (found - extra).abs() < 0.03), "{:?} copied, and {extra} on paper", came.extra);
}

/// A node's link is the limit where many clients copy from it and to it at once.
#[test]
fn a_link_bounds_repairs() {
    let setup = still(Setup {
        clients: 8,
        nodes: 4,
        racks: 4,
        copies: 2,
        need: GIB,
        skew: 0.0,
        memory: 40 * GIB,
        node_link: 30 << 20,
        ..small()
    });
    let came = outcome(&setup, Scenario::Lost);
    // Three nodes are left, each of which takes 30 MiB/s.
    let least = came.taken_gib * 1024.0 / 90.0;
    assert!(came.whole_s.is_some_and(|whole| whole - 120.0 > least - 0.1), "{came:?}");
}

#[test]
fn copies_in_one_rack_are_lost_with_it() {
    // Of two racks, one has both copies of half of the parts.
    let setup = Setup { apart: false, racks: 2, nodes: 12, choice: Choice::Random, part: Some(GIB / 32), ..small() };
    assert!(outcome(&setup, Scenario::Rack).lost_pages > 0);
    let setup = Setup { racks: 6, apart: true, ..setup };
    assert_eq!(outcome(&setup, Scenario::Rack).lost_pages, 0);
}

#[test]
fn a_copy_that_is_away_misses_what_is_written_and_no_more() {
    let setup = Setup { rewrite: 100.0, ..still(small()) };
    let came = outcome(&setup, Scenario::Away);
    // A minute of a hundred seconds: of its pages, 1 - e^-0.6; less what is written while they are copied.
    let missed = 1.0 - (-0.6_f64).exp();
    let there = outcome(&setup, Scenario::Lost).taken_gib;
    assert_eq!((came.lost_pages, came.taken_gib), (0, 0.0));
    assert!(came.copied_gib < missed * there && came.copied_gib > 0.9 * missed * there, "{came:?}");
}

#[test]
fn a_node_is_switched_off_without_a_page_on_one_copy() {
    for (copies, part) in [(2, None), (2, Some(GIB / 32)), (3, None)] {
        let came = outcome(&Setup { copies, part, ..small() }, Scenario::Leaves);
        assert_eq!((came.lost_pages, came.single_most_s), (0, 0.0), "{came:?}");
        assert!(came.copied_gib > 0.0 && came.whole_s.is_some(), "{came:?}");
    }
}

#[test]
fn two_choices_keep_the_fullest_node_low() {
    let fullest = |choice| {
        let setup = Setup { choice, part: Some(GIB / 32), clients: 60, nodes: 20, racks: 5, audit: 1000, ..small() };
        outcome(&setup, Scenario::Joins).fullest_of_mean
    };
    let (random, two) = (fullest(Choice::Random), fullest(Choice::TwoChoices));
    assert!(two - 1.0 < (random - 1.0) / 2.0, "{two} and {random}");
}

#[test]
fn a_node_that_joins_is_filled_to_the_mean() {
    let setup = still(Setup { part: Some(GIB / 64), ..small() });
    let came = outcome(&setup, Scenario::Filled);
    assert!(came.joined_of_mean.is_some_and(|joined| (0.8..1.05).contains(&joined)), "{came:?}");
    assert_eq!(came.lost_pages, 0);
}
