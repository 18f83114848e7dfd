//! Each operation of the swap device fails once, in each way: a short run is made anew for every one of them.

use farshore_sim::run;
use farshore_sim::setup::{Fault, Single, Wish};

/// No fault.
const NEVER: Single = Single { nth: u64::MAX, fault: Fault::Error };

/// A seed chooses how many threads, evictors, memory calls there are, and whether swap space is tight: the first one from `from` on whose `steps` have some
/// hundred operations.
fn sweep(from: u64, steps: u64, spaces: usize) {
    let wish = |seed| Wish { seed, steps, pages: Some(1500), spaces: Some(spaces), single: Some(NEVER), ..Wish::default() };
    let operations = |seed| run(&wish(seed)).unwrap_or_else(|report| panic!("without any fault: {report}")).counts.operations;
    let fits = |&(_, operations): &(u64, u64)| (100..1000).contains(&operations);
    let seeds = (from..from + 20).map(|seed| (seed, operations(seed)));
    let Some((seed, operations)) = seeds.into_iter().find(fits) else {
        panic!("no seed from {from} on has some hundred operations")
    };
    let wish = wish(seed);
    for fault in Fault::ALL {
        for nth in 0..operations {
            match run(&Wish { single: Some(Single { nth, fault }), ..wish }) {
                // A fault changes what comes after it, not what came before: the run comes to its operation.
                Ok(summary) => assert!(summary.counts.operations > nth && summary.counts.injected > 0, "{fault:?} {nth}"),
                Err(report) => panic!("seed {seed}, {spaces} spaces, operation {nth} of {operations}, {fault:?}: {report}"),
            }
        }
    }
}

#[test]
fn every_operation_fails_in_every_way() {
    sweep(13, 2000, 1);
    sweep(25, 5000, 1);
}

#[test]
fn every_operation_fails_in_every_way_beside_another_space() {
    sweep(13, 2000, 2);
    sweep(25, 5000, 2);
}

#[test]
fn every_operation_fails_in_every_way_where_room_is_short() {
    sweep(17, 5000, 2);
}
