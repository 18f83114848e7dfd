//! What must hold of every policy, and of the optimum that they are compared with.

use farshore_policy::{BuiltIn, prefetch};
use farshore_replay::{Access, Model, Step, Trace, engine, optimum, reads};
use farshore_traces::{models, work};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn trace(pages: &[u32]) -> Trace {
    let accesses = pages.iter().map(|&page| Access { page, site: (page % 3) as u16 }).collect();
    Trace { name: "small", accesses, pages: pages.iter().max().map_or(1, |page| page + 1), ..Trace::default() }
}

fn model(name: &str, trace: &Trace, capacity: usize) -> Box<dyn Model> {
    let (_, make) = models().into_iter().find(|(of, _)| *of == name).expect("it is there");
    make(trace, capacity)
}

/// The fewest reads, by trying every victim.
fn by_trying(pages: &[u32], here: u32, seen: u32, capacity: u32, known: &mut BTreeMap<(usize, u32), u64>) -> u64 {
    let Some((&page, rest)) = pages.split_first() else { return 0 };
    let bit = 1 << page;
    if here & bit != 0 {
        return by_trying(rest, here, seen, capacity, known);
    }
    // What was seen follows from how much is left.
    if let Some(&fewest) = known.get(&(pages.len(), here)) {
        return fewest;
    }
    let mut go_on = |here: u32| by_trying(rest, here | bit, seen | bit, capacity, known);
    let fewest = if here.count_ones() < capacity {
        go_on(here)
    } else {
        (0..32).filter(|n| here >> n & 1 != 0).map(|n| go_on(here & !(1 << n))).min().unwrap_or(0)
    };
    let all = fewest + u64::from(seen & bit != 0);
    known.insert((pages.len(), here), all);
    all
}

/// How often a page comes back of which more than `capacity` others were touched since (Mattson et al., 1970).
fn by_stack(pages: &[u32], capacity: usize) -> u64 {
    let mut stack: Vec<u32> = Vec::new();
    let mut reads = 0;
    for &page in pages {
        if let Some(depth) = stack.iter().rev().position(|&other| other == page) {
            reads += u64::from(depth >= capacity);
            stack.remove(stack.len() - 1 - depth);
        }
        stack.push(page);
    }
    reads
}

proptest! {
    #[test]
    fn the_optimum_is_what_trying_everything_finds(pages in prop::collection::vec(0_u32..7, 1..40), capacity in 1_usize..6) {
        prop_assert_eq!(optimum::reads(&trace(&pages), capacity), by_trying(&pages, 0, 0, capacity as u32, &mut BTreeMap::new()));
    }

    #[test]
    fn nobody_beats_the_optimum(pages in prop::collection::vec(0_u32..40, 1..600), capacity in 1_usize..30, streamed in 0_u32..40) {
        let trace = Trace { streamed: streamed..40, ..trace(&pages) };
        let best = optimum::reads(&trace, capacity);
        for (name, make) in models() {
            let read = reads(&mut *make(&trace, capacity), &trace);
            prop_assert!(read >= best, "{name} reads {read}, the optimum {best}");
        }
    }

    #[test]
    fn what_is_thrown_away_is_not_read_again(
        pages in prop::collection::vec(0_u32..20, 1..300), mut gone in prop::collection::vec((0_usize..300, 0_u32..20), 0..60), capacity in 1_usize..15,
    ) {
        gone.sort_by_key(|(before, _)| *before);
        let length = pages.len();
        let trace = Trace { gone: gone.into_iter().filter(|(before, _)| *before <= length).collect(), pages: 20, ..trace(&pages) };
        // The optimum has no use for a page whose bytes are gone: it is as if each were another one from then on.
        let (mut names, mut next, mut renamed) = ((0..20).collect::<Vec<u32>>(), 20, Vec::new());
        for step in trace.steps() {
            match step {
                Step::Touch { access, .. } => renamed.push(names[access.page as usize]),
                Step::Gone(page) => (names[page as usize], next) = (next, next + 1),
            }
        }
        let best = optimum::reads(&trace, capacity);
        prop_assert_eq!(best, optimum::reads(&self::trace(&renamed), capacity));
        for (name, make) in models() {
            // A model that has a page without bytes panics.
            let read = reads(&mut *make(&trace, capacity), &trace);
            prop_assert!(read >= best, "{name} reads {read}, the optimum {best}");
        }
    }

    #[test]
    fn what_fits_is_never_read(pages in prop::collection::vec(0_u32..20, 1..400)) {
        let trace = trace(&pages);
        prop_assert_eq!(optimum::reads(&trace, 20), 0);
        // One that takes cold pages away in advance reads some of them.
        for (name, make) in models().into_iter().filter(|(name, _)| *name != "dt-reclaimer") {
            prop_assert_eq!(reads(&mut *make(&trace, 20), &trace), 0, "{}", name);
        }
    }

    #[test]
    fn lru_is_a_stack(pages in prop::collection::vec(0_u32..30, 1..400), capacity in 1_usize..30) {
        let trace = trace(&pages);
        prop_assert_eq!(reads(&mut *model("LRU", &trace, capacity), &trace), by_stack(&pages, capacity));
    }

    #[test]
    fn more_memory_is_never_worse_for_stacks(pages in prop::collection::vec(0_u32..30, 1..400)) {
        let trace = trace(&pages);
        let lru: Vec<u64> = (1..30).map(|capacity| reads(&mut *model("LRU", &trace, capacity), &trace)).collect();
        let best: Vec<u64> = (1..30).map(|capacity| optimum::reads(&trace, capacity)).collect();
        prop_assert!(lru.is_sorted_by(|less, more| less >= more) && best.is_sorted_by(|less, more| less >= more));
    }
}

/// Memory that a policy has is what it was given: a page that it says is there was among the last that it can have had.
#[test]
fn no_policy_has_more_memory_than_it_was_given() {
    let pages: Vec<u32> = (0..3000_u32).map(|n| n.wrapping_mul(2_654_435_761) >> 8).map(|n| n % 50).collect();
    let trace = Trace { streamed: 30..50, ..trace(&pages) };
    for (name, make) in models() {
        let mut model = make(&trace, 10);
        trace.accesses.iter().for_each(|&access| {
            model.touch(access);
        });
        // The pages that are there answer so; asking changes what is there, so each is asked of a model of its own.
        let there = (0..50).filter(|&page| {
            let mut model = make(&trace, 10);
            trace.accesses.iter().for_each(|&access| {
                model.touch(access);
            });
            model.touch(Access { page, site: 0 })
        });
        let there = there.count();
        assert!(there <= 10 && (there == 10 || name == "dt-reclaimer"), "{name}: {there} pages of 10");
    }
}

/// More memory may be worse for FIFO (Bélády, Nelson and Shedler, 1969).
#[test]
fn fifo_has_its_anomaly() {
    let trace = trace(&[1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5]);
    let reads = |capacity| reads(&mut *model("FIFO", &trace, capacity), &trace);
    // First touches are not counted: 9 and 10 faults with them.
    assert_eq!((reads(3), reads(4)), (4, 5));
}

/// The engine that ships, in small: what it reads is at least what the optimum with its whole limit reads, what fits is never read, and of a loop a part
/// stays if a prefetcher says that it is one.
#[test]
fn the_engine_is_one_of_them() {
    let limit = 1024;
    let round = |pages: u32| Trace {
        accesses: (0..20 * pages).map(|n| Access { page: n % pages, site: 0 }).collect(),
        ..trace(&[pages])
    };
    let large = round(4096);
    let of = |policy, prefetcher| engine::reads(&large, limit, policy, prefetcher);
    let best = optimum::reads(&large, limit);
    let [kept, plain, fifo] = [
        of(BuiltIn::SecondChance, prefetch::BuiltIn::Sequential),
        of(BuiltIn::SecondChance, prefetch::BuiltIn::None),
        of(BuiltIn::Fifo, prefetch::BuiltIn::None),
    ];
    assert!(best <= kept.pages && kept.pages < plain.pages, "{best} {kept:?} {plain:?}");
    assert_eq!(fifo.pages, 19 * 4096, "first in, first out");
    assert!(plain.faults == plain.pages && kept.faults < kept.pages / 10, "{plain:?} {kept:?}");
    assert_eq!(of(BuiltIn::SecondChance, prefetch::BuiltIn::Sequential), kept, "the same each time");
    let fits = round(512);
    assert_eq!(engine::reads(&fits, limit, BuiltIn::Fifo, prefetch::BuiltIn::None).pages, 0);
    // Bytes that are thrown away are not read again; and what is before the trace begins is not counted.
    let anew = Trace { gone: (0..4096).map(|page| (10 * 4096, page)).collect(), ..large.clone() };
    assert_eq!(engine::reads(&anew, limit, BuiltIn::Fifo, prefetch::BuiltIn::None).pages, 18 * 4096);
    let later = Trace { from: 10 * 4096, ..large };
    assert_eq!(engine::reads(&later, limit, BuiltIn::Fifo, prefetch::BuiltIn::None).pages, 10 * 4096);
    assert_eq!(reads(&mut *model("LRU", &later, limit), &later), 10 * 4096);
}

/// A page that is fetched soon after it has left is used more often than others: of two sets of pages, of which each page of one is used ten times as often, more of that
/// one stays, though most of its pages are wanted too late to be rescued. (With no chances for what was fetched a twentieth more is read.)
#[test]
fn pages_that_come_back_soon_stay() {
    let (limit, hot, cold) = (4096_u32, 2000_u32, 20_000_u32);
    let mut rng = farshore_random::Rng::new(1);
    let mut next = || if rng.chance(5_000) { rng.below(hot.into()) } else { u64::from(hot) + rng.below(cold.into()) };
    let pages: Vec<u32> = (0..400_000).map(|_| next() as u32).collect();
    let trace = trace(&pages);
    let read = |policy| engine::reads(&trace, limit as usize, policy, prefetch::BuiltIn::None).pages;
    let (chances, fifo) = (read(BuiltIn::SecondChance), read(BuiltIn::Fifo));
    println!("{chances} pages read, {fifo} first in, first out");
    assert!(chances * 100 < fifo * 93, "{chances} pages read, {fifo} first in, first out");
}

/// New memory takes the place of what came first, and pages that come back the place of newer ones. So of a map-reduce whose input may leave nothing is read back, where first in, first out over a
/// loop reads each page in each round, and the engine the least of both.
#[test]
fn what_is_done_with_leaves_and_a_loop_does_not_push_itself_out() {
    let traces = work::all(2);
    let map_reduce = traces.iter().find(|trace| trace.name == "map-reduce").unwrap();
    let limit = map_reduce.touched() * 3 / 4;
    let read = |trace: &Trace, limit, policy| engine::reads(trace, limit, policy, prefetch::BuiltIn::None).pages;
    assert_eq!(optimum::reads(map_reduce, limit), 0);
    assert_eq!(read(map_reduce, limit, BuiltIn::SecondChance), 0);
    assert!(reads(&mut *model("LRU", map_reduce, limit), map_reduce) > limit as u64 / 4, "it is no matter of course");
    // A loop a little larger than memory, whose pages were touched first in the same order.
    let pages = 4096_u32;
    let round = trace(&(0..20 * pages).map(|n| n % pages).collect::<Vec<u32>>());
    let limit = pages as usize * 7 / 8;
    let (ours, fifo) = (read(&round, limit, BuiltIn::SecondChance), read(&round, limit, BuiltIn::Fifo));
    let best = optimum::reads(&round, limit);
    assert_eq!(fifo, 19 * u64::from(pages));
    assert!(ours < best * 3, "{ours} pages read, {best} at best, {fifo} first in, first out");
}

/// What a policy knows of the future is of use: evictors that it tells come nearer to the optimum in each workload.
#[test]
fn a_policy_that_knows_the_future_helps_the_engine() {
    let mut compared = 0;
    for trace in work::all(4) {
        let limit = trace.touched() / 2;
        if limit < 1024 {
            continue;
        }
        compared += 1;
        let alone = engine::reads(&trace, limit, BuiltIn::SecondChance, prefetch::BuiltIn::None).pages;
        let told = engine::reads_told(&trace, limit).pages;
        let best = optimum::reads(&trace, limit);
        println!("{}: {alone} pages read, {told} with a policy that knows the future, {best} at best", trace.name);
        assert!(best <= told, "{}: {told} pages read, and {best} is the least", trace.name);
        // Of what it reads more than the optimum, a half.
        assert!((told - best) * 2 <= alone - best, "{}: {alone} pages read, {told} with a policy", trace.name);
    }
    assert!(compared >= 9, "{compared} workloads are large enough for a limit");
}

/// The workloads, in small: they are the same each time, and nobody beats the optimum.
#[test]
fn workloads_are_the_same_each_time() {
    for (trace, again) in work::all(64).into_iter().zip(work::all(64)) {
        assert_eq!(trace.accesses, again.accesses, "{}", trace.name);
        let capacity = trace.touched() / 4;
        let best = optimum::reads(&trace, capacity);
        assert!(best > 0, "{}", trace.name);
        for (name, make) in models() {
            assert!(reads(&mut *make(&trace, capacity), &trace) >= best, "{}: {name}", trace.name);
        }
    }
}
