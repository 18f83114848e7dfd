//! Fixed seeds, and one by chance.

use farshore_sim::run;
use farshore_sim::setup::Wish;

/// Runs them all, and says how many steps that was.
fn hold(wishes: impl Iterator<Item = Wish>) {
    let (mut seeds, mut steps) = (0, 0);
    for wish in wishes {
        match run(&wish) {
            Ok(summary) => (seeds, steps) = (seeds + 1, steps + summary.steps),
            Err(report) => panic!("this breaks: {}\n{report}", wish.command()),
        }
    }
    println!("{seeds} seeds: {steps} steps");
}

#[test]
fn fixed_seeds_hold() {
    hold((1..=100).map(|seed| Wish { seed, steps: 100_000, ..Wish::default() }));
}

#[test]
fn rough_seeds_hold() {
    hold((1..=150).map(|seed| Wish { seed, steps: 100_000, rough: true, ..Wish::default() }));
}

/// Random seeds that have broken once.
#[test]
fn seeds_that_broke_hold() {
    // Memory became managed, with its bytes, while an evictor protected a range around it: its words did not say that it was protected.
    hold([914_514_189].into_iter().map(|seed| Wish { seed, steps: 300_000, rough: true, ..Wish::default() }));
}

/// All threads are workers, whatever the seed says.
#[test]
fn seeds_of_unithreads_hold() {
    let wish = |seed: u64| Wish {
        seed,
        steps: 100_000,
        unithreads: Some(1 + seed as usize % 8),
        rough: seed.is_multiple_of(3),
        ..Wish::default()
    };
    hold((301..=400).map(wish));
}

#[test]
fn a_random_seed_holds() {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64 >> 4);
    println!("random seed {seed}");
    hold([false, true].map(|rough| Wish { seed, steps: 1_000_000, rough, ..Wish::default() }).into_iter());
}

#[test]
fn a_run_is_its_seed() {
    let wish = Wish { seed: 77, steps: 40_000, ..Wish::default() };
    let key =
        || run(&wish).map(|s| (s.steps, s.virtual_ns, s.evicted, s.pages_in, s.pages_out, s.counts.accesses, s.counts.injected));
    assert_eq!(key(), key());
}

/// Otherwise the runs above would prove nothing about what changes while pages are on their way.
#[test]
fn the_pace_of_evictors_varies() {
    let paces = |fixed: bool| -> u64 {
        let wishes = (1..=60).map(|seed| Wish { seed, steps: 60_000, ..Wish::default() });
        wishes.filter(|wish| wish.setup().paces == fixed).map(|wish| run(&wish).map_or(0, |summary| summary.paces)).sum()
    };
    let (decided, asked) = (paces(false), paces(true));
    assert!(decided > 20 && asked > 100, "{decided} changes were decided, {asked} asked for");
}

/// As above: some seeds have workers and some have none, and faults are put aside for every reason.
#[test]
fn faults_of_unithreads_are_put_aside() {
    let wishes = (1..=60).map(|seed| Wish { seed, steps: 60_000, ..Wish::default() });
    let (with, without): (Vec<Wish>, Vec<Wish>) = wishes.partition(|wish| wish.setup().workers > 0);
    assert!(with.len() > 20 && without.len() > 15, "{} of 60 seeds have workers", with.len());
    let counts: Vec<_> = with.iter().filter_map(|wish| run(wish).ok()).map(|summary| summary.counts).collect();
    let sums = [
        counts.iter().map(|counts| counts.aside_for_read).sum::<u64>(),
        counts.iter().map(|counts| counts.aside_for_time).sum(),
        counts.iter().map(|counts| counts.aside_to_look).sum(),
        counts.iter().map(|counts| counts.settled).sum(),
    ];
    assert!(sums.iter().all(|&sum| sum > 200), "for a read, a time, a look, settled: {sums:?}");
    println!("put aside for a read, a time, a look; settled: {sums:?}");
}
