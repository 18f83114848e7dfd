//! Shows that the simulator would notice: each feature `canary-…` breaks one rule of the engine, and a run must fail.
//!
//! ```text
//! for c in epoch written held frame slot checksum wake; do
//!     cargo test -p farshore-sim --features canary-$c --test canaries
//! done
//! ```
#![cfg(feature = "canary")]

use farshore_sim::run;
use farshore_sim::setup::Wish;

const SEEDS: u64 = 40;
const STEPS: u64 = 200_000;

#[test]
fn the_canary_is_noticed() {
    for seed in 1..=SEEDS {
        if let Err(report) = run(&Wish { seed, steps: STEPS, ..Wish::default() }) {
            let why = report.lines().nth(1).unwrap_or_default();
            println!("seed {seed} notices the canary: {why}");
            return;
        }
    }
    panic!("{SEEDS} seeds of {STEPS} steps did not notice the canary");
}
