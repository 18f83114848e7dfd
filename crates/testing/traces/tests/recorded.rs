//! What a recording tells of policies, against what the same policies do over the whole trace that was recorded. The recording is
//! that of the engine that ships: it has faults, and pages that came and left, and knows nothing else of the program.

use farshore_policy::{BuiltIn, prefetch};
use farshore_random::Rng;
use farshore_replay::recorded::Traces;
use farshore_replay::{Access, Trace, engine, optimum, policies, reads};
use farshore_traces::{recorder, work};

/// By this factor two policies differ enough that a recording must order them.
const APART: f64 = 1.3;

fn trace(pages: u32, accesses: impl IntoIterator<Item = (u32, u16)>) -> Trace {
    let accesses = accesses.into_iter().map(|(page, site)| Access { page, site }).collect();
    Trace { name: "known", accesses, pages, ..Trace::default() }
}

/// Round and round over so many pages.
fn around(pages: u32, rounds: u32) -> Trace {
    trace(pages, (0..rounds * pages).map(|n| (n % pages, 0)))
}

/// In a loop without any disorder these do as badly as LRU; if a few accesses come earlier or later, as the estimated ones do, they keep a part of it.
const ON_EDGE: [&str; 5] = ["2Q-LRU", "MGLRU", "ARC", "S3-FIFO", "SIEVE"];

/// A hot set that is used at random, and between its accesses a scan over memory that is far larger: one in `each` accesses is the scan's.
fn hot_and_scan(hot: u32, scanned: u32, each: u32, count: u32) -> Trace {
    let mut rng = Rng::new(9);
    trace(
        hot + scanned,
        (0..count)
            .map(move |n| if n % each == 0 { (hot + n / each % scanned, 1) } else { (rng.below(u64::from(hot)) as u32, 0) }),
    )
}

/// What each policy reads: the engine, the models that a report has, and the optimum last.
fn table(trace: &Trace, capacity: usize) -> Vec<(&'static str, u64)> {
    let engine = engine::reads(trace, capacity, BuiltIn::SecondChance, prefetch::BuiltIn::None).pages;
    let mut rows = vec![("Farshore", engine)];
    rows.extend(policies::general().map(|(name, make)| (name, reads(&mut *make(trace, capacity), trace))));
    rows.push(("Bélády", optimum::reads(trace, capacity)));
    rows
}

/// Both tables with so many pages, and all that is wrong with the order of those that a recording tells, but for policies that are left out.
fn order(whole: &Trace, told: &Traces, capacity: usize, without: &[&str]) -> (String, Vec<String>) {
    let of = |trace| table(trace, capacity).into_iter().filter(|(name, _)| !without.contains(name)).collect::<Vec<_>>();
    let (truth, told) = (of(whole), of(&told.likely));
    let mut wrong = Vec::new();
    for (n, (name, reads)) in truth.iter().enumerate() {
        for (m, (other, more)) in truth.iter().enumerate() {
            let is_apart = *more as f64 > *reads as f64 * APART && more - reads > 100;
            if is_apart && told[n].1 >= told[m].1 {
                wrong.push(format!(
                    "{name} reads less than {other}: {reads} for {more}, and told are {} and {}",
                    told[n].1, told[m].1
                ));
            }
        }
    }
    let rows = truth.iter().zip(&told).map(|((name, truth), (_, told))| format!("{name} {truth} {told}"));
    (rows.collect::<Vec<_>>().join(", "), wrong)
}

#[test]
fn of_a_loop_policies_come_in_their_order() {
    let limit = 2048;
    for pages in [2700, 4096] {
        let whole = around(pages, 30);
        let (recording, read) = recorder::recorded(&whole, limit, prefetch::BuiltIn::None);
        let told = recording.traces();
        for capacity in [limit / 2, limit * 3 / 4, limit] {
            let (rows, wrong) = order(&whole, &told, capacity, &ON_EDGE);
            assert!(wrong.is_empty(), "{pages} pages, {capacity}: {wrong:#?}\n{rows}");
        }
        // All of them come back in each round, but for policies that keep a part; what was kept is not forgotten.
        let lru = reads(&mut *policies::make("LRU", &told.likely, limit), &told.likely) as f64;
        let all = f64::from(29 * pages);
        assert!((0.85 * all..=1.02 * all).contains(&lru), "{pages} pages: {lru} of {all}, and {read:?}");
    }
}

#[test]
fn a_hot_set_beside_a_scan_is_seen() {
    let limit = 2048;
    for hot in [600, 1200] {
        let whole = hot_and_scan(hot, 20_000, 4, 200_000);
        let (recording, _) = recorder::recorded(&whole, limit, prefetch::BuiltIn::None);
        let told = recording.traces();
        for capacity in [limit / 2, limit * 3 / 4, limit] {
            let (rows, wrong) = order(&whole, &told, capacity, &[]);
            assert!(wrong.is_empty(), "{hot} hot pages, {capacity}: {wrong:#?}\n{rows}");
        }
    }
}

/// The optimum over accesses that are known is a lower bound, with any memory, for all workloads and with a prefetcher too.
#[test]
fn nobody_reads_less_than_the_bound() {
    // The smallest limit that the engine can have.
    let limit = 1024;
    let mut bounds = 0;
    for whole in work::all(8).into_iter().filter(|whole| whole.touched() > limit * 5 / 4) {
        let sizes = [limit / 4, limit / 2, limit, limit * 3 / 2];
        let best = sizes.map(|capacity| optimum::reads(&whole, capacity));
        for prefetcher in [prefetch::BuiltIn::None, prefetch::BuiltIn::Sequential] {
            let (recording, _) = recorder::recorded(&whole, limit, prefetcher);
            let known = recording.traces().known;
            for (capacity, best) in sizes.into_iter().zip(best) {
                let bound = optimum::reads(&known, capacity);
                assert!(bound <= best, "{} {prefetcher:?} {capacity}: {bound}, and {best} is possible", whole.name);
                bounds += u64::from(bound > 0);
            }
        }
    }
    assert!(bounds > 40, "most of them say something: {bounds}");
}

/// How far the table of each workload is from the truth: `cargo test --release -p farshore-traces --test recorded -- --ignored --nocapture`;
/// `TRACES=hot,sort` for some of them.
#[test]
#[ignore = "it prints a table for the guide"]
fn how_near_it_comes() {
    println!(
        "| workload | recorded with | memory | policies told, in terms of the truth | in the wrong order |\n|---|---|---:|---|---:|"
    );
    let only = std::env::var("TRACES").unwrap_or_default();
    for whole in work::all(1).into_iter().filter(|whole| only.is_empty() || only.split(',').any(|name| name == whole.name)) {
        for prefetcher in [prefetch::BuiltIn::None, prefetch::BuiltIn::Sequential] {
            let limit = whole.touched() / 2;
            let (recording, _) = recorder::recorded(&whole, limit, prefetcher);
            let told = recording.traces();
            for (part, capacity) in [(50, limit / 2), (75, limit * 3 / 4), (100, limit), (150, limit * 3 / 2)] {
                let (truth, told_rows) = (table(&whole, capacity), table(&told.likely, capacity));
                let ratios: Vec<String> = truth
                    .iter()
                    .zip(&told_rows)
                    .map(|((name, truth), (_, told))| format!("{name} {:.2}", *told as f64 / (*truth).max(1) as f64))
                    .collect();
                let (_, wrong) = order(&whole, &told, capacity, &[]);
                println!("| {} | {} | {part} % | {} | {} |", whole.name, prefetcher.name(), ratios.join(", "), wrong.len());
            }
        }
    }
}
