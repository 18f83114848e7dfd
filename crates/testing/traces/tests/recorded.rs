//! What a recording tells of policies, against what the same policies do over the whole trace that was recorded. The recording is
//! that of the engine that ships: it has faults, and pages that came and left, and knows nothing else of the program.

use farshore_policy::{BuiltIn, prefetch};
use farshore_random::Rng;
use farshore_replay::{Access, Trace, optimum, policies, reads};
use farshore_traces::told::order;
use farshore_traces::{recorder, work};

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
/// So does FIFO, where memory holds three quarters of the loop: a page that is used out of turn is not moved, and from then on leaves in another order than it is used in. It keeps a half then,
/// or nothing (38,432 or 72,844 reads of 78,300 accesses, with stages of a fortieth or an eighth of the limit), by a hundred accesses.
const ON_EDGE_OF_MEMORY: [&str; 6] = ["2Q-LRU", "MGLRU", "ARC", "S3-FIFO", "SIEVE", "FIFO"];

/// A hot set that is used at random, and between its accesses a scan over memory that is far larger: one in `each` accesses is the scan's.
fn hot_and_scan(hot: u32, scanned: u32, each: u32, count: u32) -> Trace {
    let mut rng = Rng::new(9);
    trace(
        hot + scanned,
        (0..count)
            .map(move |n| if n % each == 0 { (hot + n / each % scanned, 1) } else { (rng.below(u64::from(hot)) as u32, 0) }),
    )
}

#[test]
fn of_a_loop_policies_come_in_their_order() {
    let limit = 2048;
    for pages in [2700, 4096] {
        let whole = around(pages, 30);
        let (recording, read) = recorder::recorded(&whole, limit, BuiltIn::Fifo, prefetch::BuiltIn::None);
        let told = recording.traces();
        for capacity in [limit / 2, limit * 3 / 4, limit] {
            let on_edge = if 4 * capacity > 3 * pages as usize { &ON_EDGE_OF_MEMORY[..] } else { &ON_EDGE };
            let (rows, wrong) = order(&whole, &told, capacity, on_edge);
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
        let (recording, _) = recorder::recorded(&whole, limit, BuiltIn::Fifo, prefetch::BuiltIn::None);
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
            let (recording, _) = recorder::recorded(&whole, limit, BuiltIn::SecondChance, prefetcher);
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
