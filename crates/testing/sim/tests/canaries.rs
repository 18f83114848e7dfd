//! Shows that the simulator would notice: each canary breaks one rule of the engine, and a run must fail. The five from `Unreadable` on, and `Hidden`, bring
//! back faults that the simulator found.
//!
//! ```text
//! cargo test --release -p farshore-sim --features canaries --test canaries
//! ```
#![cfg(feature = "canaries")]

use farshore_core::canary::{Canary, plant};
use farshore_sim::run;
use farshore_sim::setup::Wish;

/// Enough for the rarest (`Rebirth`: a granule unmapped and mapped anew during one fault), at a tenth of a second each.
const SEEDS: u64 = 1000;
const STEPS: u64 = 200_000;

/// One test for each canary of the engine's.
macro_rules! noticed {
    ($($test:ident: $canary:ident,)*) => {
        $(#[test]
        fn $test() {
            is_noticed(Canary::$canary);
        })*

        #[test]
        fn every_canary_of_the_engine_has_a_test() {
            let tested = [$(Canary::$canary),*];
            let loom = Canary::ALL.iter().position(|(_, canary)| *canary == Canary::Closed).expect("the first of loom's");
            let engines: Vec<Canary> = Canary::ALL[..loom].iter().map(|(_, canary)| *canary).collect();
            assert_eq!(tested[..], engines[..]);
        }
    };
}

noticed! {
    epoch: Epoch,
    written: Written,
    held: Held,
    frame: Frame,
    slot: Slot,
    checksum: Checksum,
    wake: Wake,
    unreadable: Unreadable,
    moved: Moved,
    stays: Stays,
    refused: Refused,
    moving: Moving,
    rebirth: Rebirth,
    share: Share,
    rest: Rest,
    drain: Drain,
    trim: Trim,
    aside: Aside,
    part: Part,
    untold: Untold,
    stock: Stock,
    whole: Whole,
    hidden: Hidden,
    left: Left,
    noted: Noted,
}

fn is_noticed(canary: Canary) {
    plant(Some(canary));
    for seed in 1..=SEEDS {
        // Some rules matter in rough company only.
        if let Err(report) = run(&Wish { seed, steps: STEPS, rough: seed % 3 != 0, ..Wish::default() }) {
            let why = report.lines().nth(1).unwrap_or_default();
            println!("seed {seed} notices {canary:?}: {why}");
            return;
        }
    }
    panic!("{SEEDS} seeds of {STEPS} steps did not notice {canary:?}");
}
