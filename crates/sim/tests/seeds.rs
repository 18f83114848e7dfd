//! Fixed seeds, and one by chance.
#![cfg(not(feature = "canary"))]

use farshore_sim::run;
use farshore_sim::setup::Wish;

fn holds(wish: &Wish) {
    if let Err(report) = run(wish) {
        panic!("seed {} breaks (farshore-sim --seed {} --steps {}):\n{report}", wish.seed, wish.seed, wish.steps);
    }
}

/// Seeds that broke once; what each found is beside it.
const FOUND: &[(u64, u64, &str)] = &[
    (12, 200_000, "mremap forgot that its memory was unreadable"),
    (1134, 500_000, "mremap that keeps the old range put back a page that a fault had taken meanwhile"),
    (1144, 500_000, "mremap called a page writable that an evictor had protected under its new name"),
];

#[test]
fn seeds_that_broke_once_hold() {
    for &(seed, steps, _) in FOUND {
        holds(&Wish { seed, steps, ..Wish::default() });
    }
}

#[test]
fn fixed_seeds_hold() {
    for seed in 1..=24 {
        holds(&Wish { seed, steps: 60_000, ..Wish::default() });
    }
}

#[test]
fn a_random_seed_holds() {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64 >> 4);
    println!("random seed {seed}");
    holds(&Wish { seed, steps: 300_000, ..Wish::default() });
}

#[test]
fn a_run_is_its_seed() {
    let wish = Wish { seed: 77, steps: 40_000, ..Wish::default() };
    let key = || run(&wish).map(|s| (s.steps, s.virtual_ns, s.evicted, s.pages_in, s.pages_out, s.counts.accesses, s.counts.injected));
    assert_eq!(key(), key());
}
