//! Wishes beside the evictor's own work, step by step.

use farshore_core::page::{Access, Page, PageRange};
use farshore_core::seams::PageBuf;
use farshore_engine::Shape;
use farshore_engine::evict::pipeline::Evictor;
use farshore_engine::stats::Count;
use farshore_engine::wishes::Wish;
use farshore_sim::device::SimBackend;
use farshore_sim::host::{SimClock, SimFutex, SimKernel, SimPolicy};
use farshore_sim::kernel::ARENA;
use farshore_sim::world::{World, add_actor, begin, end, world};
use farshore_sim::{Engine, setup};

/// A policy may ask faster than an evictor looks, and for pages that cannot leave: threads that wait for frames get them all the same.
#[test]
fn wishes_of_which_nothing_comes_keep_no_frames_from_faults() {
    let memory = 4 << 20;
    let pages = memory / 4096 * 2;
    let mut setup = setup::Wish { seed: 1, steps: 1, pages: Some(pages), memory: Some(memory), ..setup::Wish::default() }.setup();
    (setup.switch_rate, setup.inject) = (0, false);
    begin(World::new(setup));
    world(|w| w.strict = false);
    add_actor("policy".into());
    let shape = Shape { memory, evictors: 1, cores: 1, nodes: setup.nodes(), wanted: setup.wanted };
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
    let untouched = PageRange { start: Page(range.end.0 - 1), end: range.end };
    engine.resolve(Page(range.end.0 - 2), Access::Write, false, 0, &mut buffer).expect("there is a frame");
    let mut evictor = Evictor::new(0, &engine).expect("a queue");
    for _ in 0..20 {
        engine.wish(untouched, Wish::Leave);
        let _ = evictor.step();
    }
    assert!(engine.stats.total(Count::Evicted) > 0, "nothing left, as there was always a wish");
    drop(evictor);
    drop(engine);
    end();
}
