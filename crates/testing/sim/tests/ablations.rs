//! What an experiment leaves out is out, and no byte is wrong because of it: the same seeds with each mechanism and without it.

use farshore_config::Ablate;
use farshore_core::ablated::Ablated;
use farshore_sim::setup::Wish;
use farshore_sim::{Summary, run};

/// What the seeds did, all together.
#[derive(Default, Debug)]
struct All {
    evicted: u64,
    batches: u64,
    written: u64,
    writes: u64,
    rescued: u64,
    write_waits: u64,
    asked: u64,
    stages_given: u64,
    /// The most of any seed.
    under_way: u32,
    cached: u64,
    lists: usize,
}

impl All {
    fn add(&mut self, one: &Summary) {
        self.evicted += one.evicted;
        self.batches += one.batches;
        self.written += one.pages_out;
        self.writes += one.writes;
        self.rescued += one.rescued;
        self.write_waits += one.write_waits;
        self.asked += one.asked;
        self.stages_given += one.counts.stages_given;
        self.under_way = self.under_way.max(one.under_way);
        self.cached = self.cached.max(one.cached);
        self.lists = self.lists.max(one.lists);
    }
}

fn without(list: &str) -> All {
    let ablated = if list.is_empty() { Ablated::default() } else { list.parse::<Ablate>().expect("a list").0 };
    let mut all = All::default();
    for seed in 1..=14 {
        for rough in [false, true] {
            let wish = Wish { seed, steps: 60_000, rough, ablated, ..Wish::default() };
            match run(&wish) {
                Ok(one) => all.add(&one),
                Err(report) => panic!("this breaks: {}\n{report}", wish.command()),
            }
        }
    }
    println!("{list:?}: {all:?}");
    all
}

#[test]
fn with_all_of_it_each_mechanism_is_at_work() {
    let all = without("");
    assert!(all.rescued > 1000 && all.write_waits == 0, "{all:?}");
    assert!(all.batches < all.evicted / 4 && all.writes < all.written / 2, "{all:?}");
    assert!(all.under_way > 1 && all.cached > 0 && all.lists > 1 && all.asked > 0 && all.stages_given > 10, "{all:?}");
}

#[test]
fn without_pipelining_an_evictor_has_one_batch_at_a_time() {
    let all = without("pipeline");
    assert!(all.under_way == 1 && all.evicted > 10_000, "{all:?}");
}

#[test]
fn without_caches_no_core_keeps_frames() {
    let all = without("caches");
    assert!(all.cached == 0 && all.evicted > 10_000, "{all:?}");
}

#[test]
fn without_rescues_no_page_comes_from_its_stage() {
    let all = without("rescue");
    assert!(all.rescued == 0 && all.write_waits > 100 && all.evicted > 10_000, "{all:?}");
}

#[test]
fn without_delegation_no_core_asks() {
    let all = without("delegation");
    assert!(all.asked == 0 && all.evicted > 10_000, "{all:?}");
}

#[test]
fn without_runs_each_page_is_a_write() {
    let all = without("write-runs");
    // Writes that failed are writes, too.
    assert!(all.writes >= all.written && all.written > 10_000, "{all:?}");
}

#[test]
fn without_partitions_there_is_one_list() {
    let all = without("partitions");
    assert!(all.lists == 1 && all.asked == 0 && all.evicted > 10_000, "{all:?}");
}

#[test]
fn a_batch_has_the_pages_that_were_asked_for() {
    let all = without("batch=1");
    assert!(all.batches == all.evicted && all.evicted > 10_000, "{all:?}");
}

#[test]
fn all_of_it_can_be_left_out_at_once() {
    let all = without("pipeline,caches,rescue,delegation,write-runs,partitions,batch=3");
    assert!(all.rescued == 0 && all.under_way == 1 && all.evicted > 10_000 && all.evicted <= 3 * all.batches, "{all:?}");
}
