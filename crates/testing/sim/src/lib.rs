//! The engine that ships, on one thread, from a seed, against a simulated kernel and swap device.
//!
//! Program threads, threads that make memory calls and evictors are coroutines. Each call that the engine makes to the
//! world (kernel, device, clock, futex, policy, and [`Kernel::interleave`]) is a place where another actor may run; a
//! seed chooses which. A model knows the last stamp written to each page. The invariants are in [`check`].
//!
//! # Which faults are injected, and why each can be survived
//!
//! | where | fault | why it can be survived |
//! |---|---|---|
//! | map, zeros, unprotect | *again* | the page goes back as it was; the access is tried again |
//! | map, zeros, unprotect | no memory | the page goes back as it was; the thread gets SIGBUS, others go on |
//! | zeros | only a part | the rest stays untouched, its frames go back |
//! | protect, copy out, unmap (also of a part) | *again*, refused | the victims stay resident and dirty |
//! | munmap, mremap, madvise, mlock | refused | claimed pages go back as they were |
//! | memory gone during a fault | *gone* | the program unmapped it: the access finds out |
//! | read | error, short, garbage in the buffer | tried three times, then SIGBUS; the page stays in its slot |
//! | read | flipped bit, another slot's bytes | the checksum (with the slot in it) tells; as an error |
//! | slot | rots for good | SIGBUS at each access, never a wrong byte |
//! | write | error, short, no room | the stage keeps the bytes; it is written elsewhere or mapped again |
//! | one space of several | any of these, or all its writes | others take its place; it is tried again |
//! | one space of several | all its reads | a thread that needs a page that was only there gets SIGBUS; no other thread does |
//! | spaces | come, are drained and go, at any time | their pages have moved, or stay and are reported ([`spaces`]) |
//! | read that no thread blocks on | cut off, at any byte or before the first | missing bytes are asked for again; three empty answers are an error |
//! | read, write | takes longer than the patience | a thread that needs it waits; no other thread does |
//! | giving room back, closing a space | not yet: the space writes there by itself | asked again later |
//! | device | any order, slow | a stage is reused after its acknowledgement only |
//! | swap space | smaller than the program | clean pages leave; without any, SIGBUS after five seconds |
//! | sleep | ends early | every sleeper looks at its condition again |
//! | schedule | any actor is starved for a while | no actor spins on another without sleeping |
//! | limit | up and down at any time | debt is worked off by evictors |
//!
//! Some of the program's threads are workers of unithreads ([`unithreads`]): they look themselves after what their faults wait
//! for, and do other things meanwhile.
//!
//! The process forks at any time: the child's engine is built from a copy of words and slots, while the parent goes on; when the
//! child ends, every page is read through its engine ([`forks`]).
//!
//! Not simulated: memory orders that a CPU may show (loom models those), and children that evict.
//!
//! [`Kernel::interleave`]: farshore_core::seams::Kernel::interleave

pub mod calls;
pub mod check;
pub mod device;
pub mod forks;
pub mod host;
pub mod kernel;
pub mod model;
pub mod program;
pub mod reads;
pub mod rng;
pub mod sched;
pub mod setup;
pub mod spaces;
pub mod unithreads;
pub mod world;

use device::SimBackend;
use farshore_core::page::Access;
use farshore_core::seams::PageBuf;
use farshore_core::sync::Futex as _;
use farshore_engine::Shape;
use farshore_engine::evict::pipeline::Evictor;
use farshore_engine::health::{News, Watcher};
use farshore_engine::prefetch::Reader;
use farshore_engine::stats::{Count, FaultKind};
use host::{SimClock, SimFutex, SimKernel, SimPolicy};
use sched::{Scheduler, Stepped};
use setup::{Setup, Wish};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use world::{Counts, Rates, Status, World, broken, note, world};

/// The parts that the engine works with here.
#[derive(Debug)]
pub struct Simulated;

impl farshore_core::seams::World for Simulated {
    type Kernel = SimKernel;
    type Backend = SimBackend;
    type Policy = SimPolicy;
    type Clock = SimClock;
    type Futex = SimFutex;
    type Tracer = ();
}

/// The engine in the simulated world.
pub type Engine = farshore_engine::Engine<Simulated>;

/// Steps between two looks at all pages.
const CHECK_STEPS: u64 = 500;
/// Steps after which the injected faults change.
const RATES_STEPS: u64 = 4_000;
/// How many steps writes fail for, for lack of room, once that begins. While all actors wait, a step is a millisecond.
const FULL_STEPS: u64 = 600;
/// Parts of a run; after each one everything is brought to rest and checked exactly.
const ROUNDS: u64 = 5;
/// Steps in which nothing comes to an end, after which the run counts as hung.
const HUNG_STEPS: u64 = 3_000_000;
/// Between two looks for room that can be given back.
const GIVE_PAUSE_NS: u64 = 500_000;
/// A limit that nothing reaches, while the run is brought to rest.
const NO_LIMIT: u64 = 1 << 30;

/// What all actors share.
#[derive(Debug)]
pub struct Rig {
    /// The engine.
    pub engine: Engine,
    /// Forked children that are alive.
    children: RefCell<Vec<forks::Child>>,
    stop_evictors: AtomicBool,
    ending: Cell<bool>,
    /// Threads that read ahead that were made, of those that there may be.
    readers: AtomicU32,
    /// Spaces that the drainer is still to add.
    spaces_to_come: Cell<u32>,
    _staging: Staging,
}

/// Memory of the stages; freed after the engine.
#[derive(Debug)]
struct Staging(*mut [PageBuf]);

impl Drop for Staging {
    fn drop(&mut self) {
        // SAFETY: from Box::into_raw in `Rig::new`, dropped once, after the engine (fields drop in order).
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// The summary of a run in which all invariants held.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// How the run was set up.
    pub setup: Setup,
    /// Counts of what was done.
    pub counts: Counts,
    /// Steps of the scheduler.
    pub steps: u64,
    /// Simulated nanoseconds.
    pub virtual_ns: u64,
    /// Pages evicted, read and written.
    pub evicted: u64,
    /// See `evicted`.
    pub pages_in: u64,
    /// See `evicted`.
    pub pages_out: u64,
    /// How often the evictors' pace has changed.
    pub paces: u64,
    /// Batches of evictors, and the writes in which their pages left.
    pub batches: u64,
    /// See `batches`.
    pub writes: u64,
    /// Faults on pages that were leaving: served from their stages, and (in an experiment without that) waiting for their writes.
    pub rescued: u64,
    /// See `rescued`.
    pub write_waits: u64,
    /// How often a core has asked another for slots.
    pub asked: u64,
    /// The most batches that an evictor had under way.
    pub under_way: u32,
    /// Frames that cores keep, at the end.
    pub cached: u64,
    /// Lists of granules.
    pub lists: usize,
}

thread_local! {
    static RUNNING: RefCell<Option<(Setup, Rc<Rig>)>> = const { RefCell::new(None) };
    static REPORT: RefCell<String> = const { RefCell::new(String::new()) };
}

impl Rig {
    fn new(setup: &Setup) -> Rig {
        let Setup { memory, evictors, cores, wanted, .. } = *setup;
        let shape = Shape { memory, evictors, cores, nodes: setup.nodes(), wanted, ablated: setup.ablated };
        let staging = Box::into_raw(vec![PageBuf::ZERO; shape.sizes().stages as usize].into_boxed_slice());
        let backend = SimBackend { spaces: setup.spaces, is_childs: false };
        // SAFETY: `staging` is that many aligned writable pages, given to no other engine, freed after the engine.
        let engine = unsafe { Engine::new(shape, SimKernel, backend, SimPolicy, SimClock, SimFutex, staging.cast()) };
        engine.health.set_patience(device::PATIENCE_NS);
        engine.allow_readers(setup.evictors as u32);
        Rig {
            engine,
            children: RefCell::default(),
            stop_evictors: AtomicBool::new(false),
            ending: Cell::new(false),
            readers: AtomicU32::new(0),
            spaces_to_come: Cell::new(0),
            _staging: Staging(staging),
        }
    }

    /// Whether the slots are (nearly) used up, so that a lack of frames is no surprise.
    pub fn swap_is_nearly_full(&self) -> bool {
        let shared = self.engine.slots.shares() > 0;
        spaces::capacity(&self.engine).is_some_and(|c| shared || self.engine.slots.live() + 600 >= c)
    }
}

/// Runs a simulation.
///
/// # Errors
/// The invariant that broke, with the history of the page, the last events and the engine's state.
pub fn run(wish: &Wish) -> Result<Summary, String> {
    install_hook();
    let setup = wish.setup();
    let outcome = catch_unwind(AssertUnwindSafe(|| run_inner(setup)));
    let rig = RUNNING.take();
    let world = world::end();
    match outcome {
        Ok(summary) => Ok(summary),
        Err(_) => {
            // Suspended coroutines still borrow these.
            std::mem::forget((rig, world));
            Err(REPORT.take())
        }
    }
}

/// Makes a panic (of the engine or of a check) write the report; a binary that aborts on panic prints it here.
fn install_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let Ok(Some((setup, engine))) = RUNNING.try_with(|r| {
                r.try_borrow().ok().and_then(|r| r.as_ref().map(|(s, rig)| (*s, check::dump(&rig.engine, arena(s)))))
            }) else {
                return usual(info);
            };
            let seed = setup.seed;
            let again = setup.wish.command();
            let (actors, trace) = (world::actors(), world::trace());
            let report = format!("{info}\nseed {seed}\n{setup:?}\n{engine}\n{actors}\n{trace}\nto see it again: {again}");
            if cfg!(panic = "abort") {
                println!("{report}\nseed {seed} breaks");
                std::process::exit(1);
            }
            let _ = REPORT.try_with(|r| r.replace(report));
        }));
    });
}

fn arena(setup: &Setup) -> farshore_core::page::PageRange {
    let start = farshore_core::page::Page(kernel::ARENA);
    farshore_core::page::PageRange { start, end: start.plus(setup.arena) }
}

fn run_inner(setup: Setup) -> Summary {
    let mut scheduler = Scheduler::default();
    world::begin(World::new(setup));
    let rig = Rc::new(Rig::new(&setup));
    RUNNING.set(Some((setup, Rc::clone(&rig))));
    spawn_all(&mut scheduler, &rig, &setup);
    for _ in 0..200 {
        if world(|w| w.model.alive_pages()) >= setup.pages {
            break;
        }
        calls::map(&rig, true);
    }
    for _ in 0..ROUNDS {
        play(&mut scheduler, &rig, setup.steps / ROUNDS);
        bring_to_rest(&mut scheduler, &rig);
        check::quiet(&rig);
        resume(&rig);
    }
    finish(&mut scheduler, &rig);
    let stats = &rig.engine.stats;
    world(|w| Summary {
        setup,
        counts: w.counts,
        steps: w.step,
        virtual_ns: w.now,
        evicted: stats.total(Count::Evicted),
        pages_in: stats.total(Count::PagesIn),
        pages_out: stats.total(Count::PagesOut),
        paces: rig.engine.paced().changes,
        batches: stats.total(Count::Batches),
        writes: stats.total(Count::Writes),
        rescued: stats.faults(FaultKind::Rescue),
        write_waits: stats.total(Count::WriteWaits),
        asked: rig.engine.slots.all_asked(),
        under_way: rig.engine.paced().batches_in_flight_peak,
        cached: rig.engine.frames().counts().cached,
        lists: rig.engine.lists(),
    })
}

fn spawn(scheduler: &mut Scheduler, name: String, body: impl FnOnce() + 'static) {
    world::add_actor(name);
    scheduler.spawn(body);
}

fn spawn_all(scheduler: &mut Scheduler, rig: &Rc<Rig>, setup: &Setup) {
    for i in 0..setup.threads {
        let rig = Rc::clone(rig);
        if i < setup.workers {
            spawn(scheduler, format!("worker {i}"), move || unithreads::worker(&rig, i));
        } else {
            spawn(scheduler, format!("thread {i}"), move || program::thread(&rig, i));
        }
    }
    for i in 0..setup.callers {
        let rig = Rc::clone(rig);
        spawn(scheduler, format!("caller {i}"), move || calls::caller(&rig, i));
    }
    for i in 0..setup.evictors {
        let rig = Rc::clone(rig);
        spawn(scheduler, format!("evictor {i}"), move || evictor(&rig, i));
    }
    if setup.forks {
        let rig = Rc::clone(rig);
        spawn(scheduler, "forker".into(), move || forks::forker(&rig));
    }
    for i in 0..setup.evictors {
        let rig = Rc::clone(rig);
        spawn(scheduler, format!("evictors' reader {i}"), move || reader(&rig, i));
    }
    if setup.trims {
        rig.engine.give_room_back_from(0, GIVE_PAUSE_NS);
    }
    if setup.changes || setup.trims {
        let each = Rc::clone(rig);
        spawn(scheduler, "evictors' drainer".into(), move || spaces::drainer(&each));
    }
    if setup.changes {
        let each = Rc::clone(rig);
        spawn(scheduler, "changer".into(), move || spaces::changer(&each));
    }
    let rig = Rc::clone(rig);
    spawn(scheduler, "evictors' watcher".into(), move || watcher(&rig));
}

/// A thread that reads ahead: the engine's own loop.
fn reader(rig: &Rc<Rig>, core: usize) {
    let mut buffer = program::fetch_buffer();
    while !rig.ending.get() {
        let made = rig.readers.load(Ordering::Acquire);
        if made as usize > core {
            rig.engine.read_ahead(core, &mut buffer, &rig.stop_evictors);
        } else if !rig.stop_evictors.load(Ordering::Acquire) {
            // Not made yet.
            SimFutex.wait(&rig.readers, made);
            continue;
        }
        sched::park();
    }
}

/// The watcher wants a thread that reads ahead.
fn make_reader(rig: &Rig) -> Reader {
    if world(|w| w.rng.chance(3000)) {
        return Reader::Later;
    }
    rig.readers.fetch_add(1, Ordering::AcqRel);
    SimFutex.wake_all(&rig.readers);
    Reader::Made
}

/// The thread that looks after the swap spaces: the engine's own loop.
fn watcher(rig: &Rc<Rig>) {
    let mut watcher = Watcher::new();
    while !rig.ending.get() {
        let mut tell = |news: News| {
            world(|w| w.counts.news += 1);
            note("news", 0, news.slot.number());
        };
        watcher.run(&rig.engine, &rig.stop_evictors, &mut tell, &mut || make_reader(rig), &mut || None);
        sched::park();
    }
}

/// An evictor thread: the engine's own loop. Between rounds it gives back every stage, so that slots can be counted.
fn evictor(rig: &Rc<Rig>, id: usize) {
    let Ok(mut evictor) = Evictor::new(id, &rig.engine) else { broken(0, "no queue") };
    while !rig.ending.get() {
        evictor.run(&rig.stop_evictors);
        while !evictor.settle() {
            sched::sleep_ns(20_000);
        }
        sched::park();
    }
}

/// Runs for `steps` steps, with checks and changing faults.
fn play(scheduler: &mut Scheduler, rig: &Rc<Rig>, steps: u64) {
    let mut last = (world(|w| w.progress), world(|w| w.step));
    for i in 0..steps {
        if i % RATES_STEPS == 0 {
            world(new_rates);
        }
        if i % RATES_STEPS == FULL_STEPS {
            world(|w| (w.rates.full, w.rates.dead) = (false, false));
        }
        if scheduler.step() == Stepped::Stuck {
            broken(0, "every thread sleeps and nothing will wake one");
        }
        if i % CHECK_STEPS == 0 {
            forks::perhaps_end_one(rig);
            check::between_steps(rig);
            let (progress, step) = world(|w| (w.progress, w.step));
            if progress != last.0 {
                last = (progress, step);
            } else if step - last.1 > HUNG_STEPS {
                broken(0, "nothing comes to an end any more");
            }
        }
    }
}

/// Other faults, or none, for a while.
fn new_rates(w: &mut World) {
    if !w.setup.inject {
        w.rates = Rates { spurious: 100, ..Rates::default() };
        return;
    }
    let rot = if w.setup.rot { 20 } else { 0 };
    let r = &mut w.rng;
    w.rates = Rates {
        again: r.pick(&[0, 0, 50, 1000]),
        no_memory: r.pick(&[0, 0, 20]),
        partial: r.pick(&[0, 3000]),
        refused: r.pick(&[0, 0, 100, 1500]),
        call_refused: r.pick(&[0, 1000]),
        read_error: r.pick(&[0, 0, 100, 2000]),
        corrupt: r.pick(&[0, 0, 100, 1000]),
        write_error: r.pick(&[0, 0, 100, 2000]),
        full: r.below(12) == 0,
        dead: r.below(12) == 0,
        mute: r.below(12) == 0,
        hang: r.pick(&[0, 0, 0, 200]),
        sick: r.pick(&[1, 2, 4, 5, 7, u64::MAX, u64::MAX]),
        rot,
        spurious: r.pick(&[0, 300]),
        cut: 0,
    };
    if w.setup.workers > 0 {
        w.rates.cut = w.rng.pick(&[0, 300, 3000]);
    }
}

/// Steps until every actor sleeps for good.
fn until_stuck(scheduler: &mut Scheduler) {
    for _ in 0..HUNG_STEPS {
        if scheduler.step() == Stepped::Stuck {
            return;
        }
    }
    broken(0, "the run does not come to rest");
}

/// All actors park, and evictors finish what they have begun.
fn bring_to_rest(scheduler: &mut Scheduler, rig: &Rc<Rig>) {
    world(|w| {
        w.rates = Rates::default();
        w.pausing = true;
    });
    let _ = rig.engine.set_memory_limit(NO_LIMIT);
    until_stuck(scheduler);
    let asleep = world(|w| {
        w.actors
            .iter()
            .find(|a| !a.name.starts_with("evictor") && matches!(a.status, Status::Blocked { .. }))
            .map(|a| a.name.clone())
    });
    if let Some(name) = asleep {
        broken(0, &format!("{name} sleeps and nothing will wake it"));
    }
    rig.stop_evictors.store(true, Ordering::Release);
    rig.engine.wake_watcher();
    rig.engine.wake_readers();
    SimFutex.wake_all(&rig.readers);
    rig.engine.wake_drainer();
    let _ = rig.engine.set_memory_limit(NO_LIMIT);
    until_stuck(scheduler);
    if world(|w| w.actors.iter().any(|a| matches!(a.status, Status::Blocked { .. }))) {
        broken(0, "an evictor does not stop");
    }
}

fn unpark() {
    world(|w| {
        w.pausing = false;
        for actor in w.actors.iter_mut().filter(|a| a.status == Status::Parked) {
            actor.status = Status::Runnable;
        }
    });
}

fn resume(rig: &Rc<Rig>) {
    rig.stop_evictors.store(false, Ordering::Release);
    unpark();
    calls::limit(rig);
}

/// Reads all memory back, unmaps it, and checks that nothing is left.
fn finish(scheduler: &mut Scheduler, rig: &Rc<Rig>) {
    forks::end_all(rig);
    world(|w| {
        w.stopping = true;
        w.rates = Rates::default();
        w.device.heal();
    });
    // Where the swap space is too small for the program, everything can only be read with enough memory.
    let tight = spaces::capacity(&rig.engine).is_some();
    let _ = rig.engine.set_memory_limit(if tight { NO_LIMIT } else { world(|w| w.setup.memory) });
    let reader = Rc::clone(rig);
    spawn(scheduler, "reader".into(), move || {
        let mut buffer = program::fetch_buffer();
        let pages: Vec<_> =
            world(|w| w.model.alive.iter().flat_map(|r| r.iter()).filter(|&p| !w.model.get(p).no_access).collect());
        for page in pages {
            if program::access_page(&reader, page, Access::Read, 0, &mut buffer) != program::Ended::Fine {
                broken(page.0, "a page cannot be read at the end");
            }
        }
        calls::unmap(&reader, world(|w| w.memory.arena()));
    });
    let reader = world(|w| w.actors.len() - 1);
    for _ in 0..HUNG_STEPS * 4 {
        if world(|w| w.actors[reader].status) == Status::Done {
            break;
        }
        if scheduler.step() == Stepped::Stuck {
            broken(0, "the reader sleeps and nothing will wake it");
        }
    }
    bring_to_rest(scheduler, rig);
    check::quiet(rig);
    if rig.engine.frames().taken() != 0 || rig.engine.slots.live() != 0 {
        broken(0, &format!("{} frames and {} slots are left", rig.engine.frames().taken(), rig.engine.slots.live()));
    }
    rig.ending.set(true);
    unpark();
    for _ in 0..HUNG_STEPS {
        if world(|w| w.actors.iter().all(|a| a.status == Status::Done)) {
            return;
        }
        let _ = scheduler.step();
    }
    broken(0, "an actor does not return");
}
