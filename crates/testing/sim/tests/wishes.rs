//! Wishes and estimates of policies beside the evictor's own work, step by step.

use farshore_core::page::{Access, Page, PageRange};
use farshore_core::seams::PageBuf;
use farshore_engine::evict::pipeline::Evictor;
use farshore_engine::stats::Count;
use farshore_engine::wishes::Wish;
use farshore_engine::{PageState, Reuse, Shape};
use farshore_sim::device::SimBackend;
use farshore_sim::host::{SimClock, SimFutex, SimKernel, SimPolicy};
use farshore_sim::kernel::ARENA;
use farshore_sim::world::{World, add_actor, begin, end, world};
use farshore_sim::{Engine, setup};

/// An engine whose frames are short, of which all pages were touched but one, the last.
fn full(test: impl FnOnce(&Engine, PageRange)) {
    let memory = 4 << 20;
    let pages = memory / 4096 * 2;
    let mut setup = setup::Wish { seed: 1, steps: 1, pages: Some(pages), memory: Some(memory), ..setup::Wish::default() }.setup();
    (setup.switch_rate, setup.inject) = (0, false);
    begin(World::new(setup));
    world(|w| w.strict = false);
    add_actor("policy".into());
    let shape = Shape { memory, evictors: 1, cores: 1, nodes: setup.nodes(), wanted: setup.wanted, ablated: setup.ablated };
    let mut staging = vec![PageBuf::ZERO; shape.sizes().stages as usize].into_boxed_slice();
    let backend = SimBackend { spaces: setup.spaces, is_childs: false };
    // SAFETY: that many aligned pages, given to no other engine, and freed after the engine, which was made later.
    let engine = unsafe { Engine::new(shape, SimKernel, backend, SimPolicy, SimClock, SimFutex, staging.as_mut_ptr()) };
    let range = PageRange { start: Page(ARENA), end: Page(ARENA + pages) };
    world(|w| w.memory.map(range, true));
    engine.manage(range);
    let mut buffer = vec![PageBuf::ZERO; 1];
    for page in range.iter().take_while(|_| !engine.wants_threads()) {
        engine.resolve(page, Access::Write, false, 0, &mut buffer).expect("there are frames");
    }
    assert!(engine.wants_threads(), "frames are short");
    // The first page's neighbour is untouched.
    engine.resolve(Page(range.end.0 - 2), Access::Write, false, 0, &mut buffer).expect("there is a frame");
    test(&engine, range);
    drop(engine);
    end();
}

fn here(engine: &Engine, range: PageRange) -> usize {
    range.iter().filter(|&page| matches!(engine.page_state(page), PageState::Dirty | PageState::Clean)).count()
}

/// A policy may ask faster than an evictor looks, and for pages that cannot leave: threads that wait for frames get them all the same.
#[test]
fn wishes_of_which_nothing_comes_keep_no_frames_from_faults() {
    full(|engine, range| {
        let untouched = PageRange { start: Page(range.end.0 - 1), end: range.end };
        let mut evictor = Evictor::new(0, engine).expect("a queue");
        for _ in 0..20 {
            engine.wish(untouched, Wish::Leave);
            let _ = evictor.step();
        }
        assert!(engine.stats.total(Count::Evicted) > 0, "nothing left, as there was always a wish");
    });
}

/// Pages that are expected late leave with the first batch, though the hand would come by them last. Those that must stay do.
#[test]
fn late_pages_leave_first() {
    full(|engine, range| {
        let filled = here(engine, range) as u64;
        let late = PageRange { start: range.start.plus(filled - 20), end: range.start.plus(filled - 12) };
        let pinned = PageRange { start: range.start, end: range.start.plus(8) };
        engine.wish(pinned, Wish::Stay);
        engine.expect(pinned, Reuse::Late);
        engine.expect(late, Reuse::Late);
        assert_eq!(here(engine, range) as u64, filled, "nothing moves for an estimate");
        let mut evictor = Evictor::new(0, engine).expect("a queue");
        while engine.stats.total(Count::Evicted) == 0 {
            let _ = evictor.step();
        }
        let left = engine.stats.total(Count::Evicted);
        assert!(left < filled - 40, "{left} of {filled} pages have left, which proves nothing");
        assert_eq!((here(engine, late), here(engine, pinned)), (0, 8));
    });
}

/// A policy that says of everything, again and again, that it is used next, stops no evictor.
#[test]
fn a_table_full_of_one_answer_stops_nothing() {
    for reuse in [Reuse::Next, Reuse::Soon, Reuse::Late] {
        full(|engine, range| {
            let mut evictor = Evictor::new(0, engine).expect("a queue");
            let mut steps = 0;
            while engine.is_short() && steps < 100 {
                engine.expect(range, reuse);
                let _ = evictor.step();
                steps += 1;
            }
            assert!(!engine.is_short(), "frames are short still after {steps} steps, all that {reuse:?}");
        });
    }
}

/// What is expected soon is passed over while there is anything else.
#[test]
fn soon_pages_stay_while_others_can_leave() {
    full(|engine, range| {
        // The hand comes by these with the first batch: without an estimate it takes some of them.
        let soon = PageRange { start: range.start, end: range.start.plus(128) };
        engine.expect(soon, Reuse::Next);
        let mut evictor = Evictor::new(0, engine).expect("a queue");
        while engine.stats.total(Count::Evicted) == 0 {
            let _ = evictor.step();
        }
        assert_eq!(here(engine, soon), 128);
    });
}
