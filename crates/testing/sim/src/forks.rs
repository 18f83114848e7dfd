//! Forks: a child must find its pages, whatever its parent does after the fork.
//!
//! A fork is one step: the words, the slots and the page tables are copied while the engine is quiet, and the child's engine is
//! built from the copies as the shipped library does it. From then on the device refuses the parent every write to a slot that
//! the child may read. When the child ends, some time later, each of its pages is read, and some are written, through its own
//! engine: the stamps must be those of the moment of the fork. The child does so between two steps of the other actors, without a
//! limit: children that evict are left to real programs.

use crate::calls::{lock, unlock};
use crate::device::SimBackend;
use crate::host::{SimClock, SimFutex, SimKernel, SimPolicy};
use crate::kernel::{Memory, Touch, stamp_of};
use crate::model::Kind;
use crate::program::{between_things, fetch_buffer};
use crate::sched::sleep_ns;
use crate::world::{Rates, broken, note, world};
use crate::{Engine, NO_LIMIT, Rig, Staging};
use farshore_core::limits::MEMORY_LIMIT_MIN;
use farshore_core::page::{Access, Page};
use farshore_core::seams::PageBuf;
use farshore_core::word::State;
use farshore_engine::Shape;
use farshore_engine::fork::Inheritance;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Children alive at a time.
const CHILDREN_MAX: usize = 3;

/// A forked child.
#[derive(Debug)]
pub struct Child {
    number: u64,
    share: u64,
    engine: Engine,
    memory: Memory,
    /// What the kernel notes of its copies.
    noted: BTreeMap<u64, usize>,
    /// Pages that the program may read in the child, and the stamps that they hold.
    pages: Vec<(Page, u64)>,
    _staging: Staging,
}

/// A thread that forks until the run ends.
pub fn forker(rig: &Rc<Rig>) {
    while !between_things() {
        let pause = world(|w| w.rng.between(100_000, 20_000_000));
        sleep_ns(pause);
        perhaps_fork(rig);
    }
}

/// The process forks, unless there are enough children.
pub fn perhaps_fork(rig: &Rc<Rig>) {
    lock();
    if rig.children.borrow().len() < CHILDREN_MAX {
        fork(rig);
    }
    unlock();
}

fn fork(rig: &Rc<Rig>) {
    let quiet = rig.engine.quiesce();
    if quiet.is_ok() {
        make_child(rig);
    } else {
        world(|w| w.counts.forks_refused += 1);
    }
    rig.engine.resume();
}

/// Makes the copies in one step: no code here switches before they are made.
fn make_child(rig: &Rc<Rig>) {
    let parent = &rig.engine;
    let share = parent.slots.share();
    let table = parent.table.duplicate();
    let mut slots = parent.slots.duplicate();
    let number = world(|w| {
        w.counts.forks += 1;
        w.counts.forks
    });
    note("fork", 0, number);
    let (memory, pages, in_use) = world(|w| {
        let alive: Vec<Page> = w.model.alive.iter().flat_map(|r| r.iter()).collect();
        let expected = |page: Page| Some((page, w.model.get(page))).filter(|(_, e)| e.kind == Kind::Managed && !e.no_access);
        let pages = alive.iter().filter_map(|&page| expected(page)).map(|(page, e)| (page, e.stamp)).collect::<Vec<_>>();
        let slot_of = |page: Page| {
            let word = table.page(page)?.word.load();
            match word.state() {
                State::Leaving => word.stage().and_then(|stage| parent.stages().slot(stage)),
                _ => word.slot(),
            }
        };
        let slots = alive.iter().filter_map(|&page| slot_of(page)).filter(|slot| !slot.is_of_file());
        let in_use: BTreeSet<u64> = slots.map(|slot| slot.number()).collect();
        (w.memory.fork(), pages, in_use)
    });
    world(|w| w.children.push((number, in_use)));
    let shape = Shape {
        memory: MEMORY_LIMIT_MIN,
        evictors: 1,
        cores: 1,
        nodes: farshore_engine::Nodes::ONE,
        wanted: Default::default(),
        ablated: world(|w| w.setup.ablated),
    };
    let staging = Box::into_raw(vec![PageBuf::ZERO; shape.sizes().stages as usize].into_boxed_slice());
    let _ = slots.begin_own(None);
    let from = Inheritance { table, slots, stages: parent.stages(), managed: parent.stats.managed(), keep_pins: false };
    let backend = SimBackend { spaces: parent.backend.spaces, is_childs: true };
    // SAFETY: `staging` is that many aligned writable pages, given to no other engine, freed after the engine; the parent is
    // quiet.
    let engine = unsafe { Engine::for_child(shape, SimKernel, backend, SimPolicy, SimClock, SimFutex, staging.cast(), from) };
    let engine = engine.unwrap_or_else(|(page, word)| broken(page.0, &format!("{word:?} when the process forked")));
    engine.slots.assert_valid();
    let _ = engine.set_memory_limit(NO_LIMIT);
    rig.children.borrow_mut().push(Child {
        number,
        share,
        engine,
        memory,
        noted: BTreeMap::new(),
        pages,
        _staging: Staging(staging),
    });
}

/// Ends a child now and then. Called between two steps.
pub fn perhaps_end_one(rig: &Rc<Rig>) {
    let count = rig.children.borrow().len() as u64;
    let Some(which) = world(|w| (count > 0 && w.rng.below(4) == 0).then(|| w.rng.below(count))) else { return };
    // Not while a child is being made: the step may be in the middle of that.
    if world(|w| w.call_lock.is_none()) {
        let child = rig.children.borrow_mut().swap_remove(which as usize);
        end(rig, child);
    }
}

/// All children end.
pub fn end_all(rig: &Rc<Rig>) {
    let all = std::mem::take(&mut *rig.children.borrow_mut());
    all.into_iter().for_each(|child| end(rig, child));
}

/// Reads all pages of the child, in its own page tables and through its own engine; then the child is gone.
fn end(rig: &Rc<Rig>, mut child: Child) {
    note("child ends", 0, child.number);
    let kept = world(|w| {
        std::mem::swap(&mut w.memory, &mut child.memory);
        std::mem::swap(&mut w.noted, &mut child.noted);
        (std::mem::take(&mut w.rates), w.actors[w.current].clone())
    });
    let mut buffer = fetch_buffer();
    for &(page, stamp) in &child.pages {
        read_page(&child.engine, page, stamp, &mut buffer);
        if page.0.is_multiple_of(3) {
            write_page(&child.engine, page, &mut buffer);
        }
    }
    child.engine.assert_valid_when_quiet();
    world(|w| {
        std::mem::swap(&mut w.memory, &mut child.memory);
        std::mem::swap(&mut w.noted, &mut child.noted);
        let (rates, actor): (Rates, _) = kept;
        w.rates = rates;
        let current = w.current;
        w.actors[current] = actor;
        w.children.retain(|(number, _)| *number != child.number);
    });
    rig.engine.slots.unshare(child.share);
}

/// Whether the page's slot delivers wrong bytes for good.
fn is_rotten(engine: &Engine, page: Page) -> bool {
    let slot = engine.table.page(page).and_then(|at| at.word.load().slot());
    slot.is_some_and(|slot| !slot.is_of_file() && world(|w| w.device.content(slot).rotten))
}

/// Makes an access go through, by faults if need be. False: the page is lost to a rotten slot.
fn access(engine: &Engine, page: Page, access: Access, buffer: &mut [PageBuf]) -> bool {
    for _ in 0..4 {
        let protected = match world(|w| w.memory.touch(page, access)) {
            Touch::Fine => return true,
            Touch::Fault { protected } => protected,
            Touch::Segv => broken(page.0, "a child has no memory where its parent has"),
        };
        if is_rotten(engine, page) {
            return false;
        }
        if let Err(why) = engine.resolve(page, access, protected, 0, buffer) {
            broken(page.0, &format!("a child cannot have its page: {why}"));
        }
    }
    broken(page.0, "a fault of a child does not end")
}

fn read_page(engine: &Engine, page: Page, stamp: u64, buffer: &mut [PageBuf]) {
    if !access(engine, page, Access::Read, buffer) {
        return;
    }
    let found = world(|w| w.memory.get(page).and_then(|place| place.bytes.as_deref().map(stamp_of)));
    if found != Some(Some(stamp)) {
        broken(page.0, &format!("a child reads {found:?}, its parent had written {stamp} when it forked"));
    }
}

fn write_page(engine: &Engine, page: Page, buffer: &mut [PageBuf]) {
    if access(engine, page, Access::Write, buffer) {
        let word = engine.table.page(page).map(|at| at.word.load());
        if word.is_none_or(|word| word.state() != State::Resident || word.slot().is_some()) {
            broken(page.0, &format!("a child has written, and the word is {word:?}"));
        }
    }
}
