//! Swap space that runs full while the program still has pages that may leave.

use farshore_core::page::{Access, Page, PageRange};
use farshore_core::seams::PageBuf;
use farshore_core::sync::plain::AtomicBool;
use farshore_engine::evict::pipeline::Evictor;
use farshore_engine::stats::Count;
use farshore_engine::{Shape, evict::control::Wanted};
use farshore_sim::device::SimBackend;
use farshore_sim::host::{SimClock, SimFutex, SimKernel, SimPolicy};
use farshore_sim::kernel::ARENA;
use farshore_sim::sched::{Scheduler, Stepped};
use farshore_sim::world::{World, add_actor, begin, world};
use farshore_sim::{Engine, setup};
use std::cell::Cell;
use std::rc::Rc;

const MEMORY: u64 = 4 << 20;
const PAGES: u64 = MEMORY / 4096 * 2;

/// Writes that were under way when the disk ran full fail, and their pages keep the stages. Clean pages, which need no room, leave all
/// the same, for as long as it takes.
#[test]
fn clean_pages_leave_while_stages_are_full_of_pages_that_cannot() {
    for seed in 1..=60 {
        run(seed);
    }
}

fn run(seed: u64) {
    // The same spaces, which have room enough, for every order of events.
    let mut setup = setup::Wish { seed: 1, steps: 1, pages: Some(PAGES), memory: Some(MEMORY), ..setup::Wish::default() }.setup();
    (setup.seed, setup.inject) = (seed, false);
    begin(World::new(setup));
    world(|w| w.strict = false);
    let shape = Shape {
        memory: MEMORY,
        evictors: 1,
        cores: 1,
        nodes: setup.nodes(),
        wanted: Wanted { batch: Some(64), ..setup.wanted },
        ablated: setup.ablated,
    };
    // The actors' bodies need them for as long as the process lives.
    let staging = Box::leak(vec![PageBuf::ZERO; shape.sizes().stages as usize].into_boxed_slice());
    let backend = SimBackend { spaces: setup.spaces, is_childs: false };
    // SAFETY: that many aligned pages, given to no other engine, and never freed.
    let engine: Engine = unsafe { Engine::new(shape, SimKernel, backend, SimPolicy, SimClock, SimFutex, staging.as_mut_ptr()) };
    let engine: &'static Engine = Box::leak(Box::new(engine));
    let range = PageRange { start: Page(ARENA), end: Page(ARENA + PAGES) };
    world(|w| w.memory.map(range, true));
    engine.manage(range);

    let (mut scheduler, ended) = (Scheduler::default(), Rc::new(Cell::new(false)));
    add_actor("evictor".into());
    scheduler.spawn(move || Evictor::new(0, engine).expect("a queue").run(Box::leak(Box::new(AtomicBool::new(false)))));
    add_actor("program".into());
    let over = Rc::clone(&ended);
    scheduler.spawn(move || {
        let mut buffer = vec![PageBuf::ZERO; 64];
        let mut touch = |page, access, protected| {
            engine.resolve(page, access, protected, 0, &mut buffer).unwrap_or_else(|why| panic!("seed {seed}, {page:?}: {why}"));
        };
        for access in [Access::Write, Access::Read] {
            range.iter().for_each(|page| touch(page, access, false));
        }
        // More than half of what is resident gets dirty, not all.
        range.iter().rev().take(engine.sizes().frames as usize * 3 / 5).for_each(|page| touch(page, Access::Write, true));
        // From now on nothing leaves but what has a copy.
        world(|w| (w.rates.sick, w.rates.full) = (u64::MAX, true));
        for _ in 0..2 {
            range.iter().for_each(|page| touch(page, Access::Read, false));
        }
        over.set(true);
    });
    while !ended.get() {
        assert_eq!(scheduler.step(), Stepped::Ran, "every thread sleeps and nothing will wake one");
    }
    assert!(engine.stats.total(Count::IoErrors) > 0, "no write has failed");
}
