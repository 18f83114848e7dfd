//! Fixed seeds, and one by chance.
#![cfg(not(feature = "canary"))]

use farshore_sim::run;
use farshore_sim::setup::Wish;

fn holds(wish: &Wish) {
    if let Err(report) = run(wish) {
        let rough = if wish.rough { " --rough" } else { "" };
        panic!("this breaks: farshore-sim --seed {} --steps {}{rough}\n{report}", wish.seed, wish.steps);
    }
}

#[test]
fn fixed_seeds_hold() {
    for seed in 1..=100 {
        holds(&Wish { seed, steps: 100_000, ..Wish::default() });
    }
}

#[test]
fn rough_seeds_hold() {
    for seed in 1..=150 {
        holds(&Wish { seed, steps: 100_000, rough: true, ..Wish::default() });
    }
}

#[test]
fn a_random_seed_holds() {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64 >> 4);
    println!("random seed {seed}");
    holds(&Wish { seed, steps: 1_000_000, ..Wish::default() });
    holds(&Wish { seed, steps: 1_000_000, rough: true, ..Wish::default() });
}

#[test]
fn a_run_is_its_seed() {
    let wish = Wish { seed: 77, steps: 40_000, ..Wish::default() };
    let key =
        || run(&wish).map(|s| (s.steps, s.virtual_ns, s.evicted, s.pages_in, s.pages_out, s.counts.accesses, s.counts.injected));
    assert_eq!(key(), key());
}
