//! Shows that the simulator would notice: each feature `canary-…` breaks one rule of the engine, and a run must fail.
//! The last five bring back faults that the simulator found. In a shell, from the workspace's root:
//!
//! ```text
//! for c in epoch written held frame slot checksum wake unreadable moved stays moving rebirth; do
//!     cargo test --release -p farshore-sim --features canary-$c --test canaries || echo "canary-$c lives"
//! done
//! ```
#![cfg(feature = "canary")]

use farshore_sim::run;
use farshore_sim::setup::Wish;

/// Enough for the rarest (`rebirth`: a granule unmapped and mapped anew during one fault), at a tenth of a second each.
const SEEDS: u64 = 1000;
const STEPS: u64 = 200_000;

#[test]
fn the_canary_is_noticed() {
    for seed in 1..=SEEDS {
        // Some rules matter in rough company only.
        if let Err(report) = run(&Wish { seed, steps: STEPS, rough: seed % 3 != 0, ..Wish::default() }) {
            let why = report.lines().nth(1).unwrap_or_default();
            println!("seed {seed} notices the canary: {why}");
            return;
        }
    }
    panic!("{SEEDS} seeds of {STEPS} steps did not notice the canary");
}
