//! Everything that is not the engine: simulated time, kernel, device and program, in one place of the one thread.
//!
//! The engine reaches the world through the zero-sized types of [`crate::host`] and [`crate::device`]. The world is
//! borrowed for one short step at a time, never across a switch of actors.

use crate::device::Device;
use crate::kernel::Memory;
use crate::model::Model;
use crate::rng::{self, Rng};
use crate::setup::Setup;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;

/// What the scheduler knows of an actor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// The actor can be stepped.
    Runnable,
    /// The actor sleeps on `on` (0: only for time) until `until`, if given.
    Blocked {
        /// Address of a futex word; 0 for none.
        on: usize,
        /// When the actor wakes by itself.
        until: Option<u64>,
    },
    /// The actor sleeps until the main thread of the simulation calls it.
    Parked,
    /// The actor has returned.
    Done,
}

/// One actor.
#[derive(Clone, Debug)]
pub struct Actor {
    /// The actor's name in the trace.
    pub name: String,
    /// What it does now.
    pub status: Status,
    /// How often it is stepped, relative to the others.
    pub weight: u64,
    /// Faults that were injected into what it does now.
    pub luck: Luck,
}

/// What explains the failure of a fault.
#[derive(Clone, Copy, Default, Debug)]
pub struct Luck {
    /// Reads in a row that went wrong by injection.
    pub bad_reads: u32,
    /// Reads in a row that were cut off before the first page: a few of them count as one that went wrong.
    pub cut_reads: u32,
    /// Its last map or unprotect was refused by injection, because the kernel had no memory.
    pub no_memory: bool,
}

/// How likely each fault is at a time, of 10,000.
#[derive(Clone, Copy, Default, Debug)]
pub struct Rates {
    /// The kernel says "again".
    pub again: u32,
    /// The kernel has no memory.
    pub no_memory: u32,
    /// The kernel unmaps or zeroes a part only.
    pub partial: u32,
    /// The kernel refuses an evictor's call.
    pub refused: u32,
    /// The kernel refuses a memory call.
    pub call_refused: u32,
    /// A read fails.
    pub read_error: u32,
    /// A read that no thread blocks on is cut off.
    pub cut: u32,
    /// A read delivers other bytes than were written.
    pub corrupt: u32,
    /// A write fails.
    pub write_error: u32,
    /// All writes fail because there is no room.
    pub full: bool,
    /// All writes fail.
    pub dead: bool,
    /// All reads fail.
    pub mute: bool,
    /// Now and then a transfer takes longer than any patience.
    pub hang: u32,
    /// Spaces that these failures of writes (and, with `hang`, reads) concern: a bit each.
    pub sick: u64,
    /// A slot that is written delivers wrong bytes for good.
    pub rot: u32,
    /// A sleep ends without a reason.
    pub spurious: u32,
}

/// The world of one run.
#[derive(Debug)]
pub struct World {
    /// How the run was set up.
    pub setup: Setup,
    /// The source of all chance.
    pub rng: Rng,
    /// Simulated time, nanoseconds.
    pub now: u64,
    /// Steps so far.
    pub step: u64,
    /// The actor that runs.
    pub current: usize,
    /// All actors.
    pub actors: Vec<Actor>,
    /// The program's page tables.
    pub memory: Memory,
    /// The swap device.
    pub device: Device,
    /// What the program's memory must hold.
    pub model: Model,
    /// Faults that are injected now.
    pub rates: Rates,
    /// When the swap space was last full or failing.
    pub trouble_at: u64,
    /// Accesses and calls that came to an end.
    pub progress: u64,
    /// `now` at the last progress.
    pub progress_at: u64,
    /// The actor that has the address-space lock.
    pub call_lock: Option<usize>,
    /// Pages that are being taken over, and have no frames yet.
    pub taking_over: u64,
    /// Which pages the kernel has mapped last for which actor, as it notes them for whoever takes over.
    pub noted: BTreeMap<u64, usize>,
    /// The kernel checks that the engine keeps its promises (off for the conformance suite, which makes none).
    pub strict: bool,
    /// Slots that forked children may read: each child's number, and its slots.
    pub children: Vec<(u64, BTreeSet<u64>)>,
    /// Actors park when they are between two things.
    pub pausing: bool,
    /// Actors return when they are between two things.
    pub stopping: bool,
    /// What was done, for the summary.
    pub counts: Counts,
}

impl World {
    /// Whether the engine leaves notes for one that takes over: in every other run.
    pub fn is_outlived(&self) -> bool {
        self.setup.seed % 2 == 1
    }

    /// The world before the first step: no memory is mapped, and there are no actors.
    pub fn new(setup: Setup) -> World {
        World {
            setup,
            rng: rng::seeded(setup.seed),
            now: 1,
            step: 0,
            current: 0,
            actors: Vec::new(),
            memory: Memory::new(setup.arena),
            device: Device::new(setup.spaces, setup.capacity),
            model: Model::new(setup.arena),
            rates: Rates::default(),
            trouble_at: 0,
            progress: 0,
            progress_at: 0,
            call_lock: None,
            taking_over: 0,
            noted: BTreeMap::new(),
            strict: true,
            children: Vec::new(),
            pausing: false,
            stopping: false,
            counts: Counts::default(),
        }
    }
}

/// Sums for the summary.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Reads and writes of the program.
    pub accesses: u64,
    /// System calls with pinned pages.
    pub pinned_calls: u64,
    /// Memory calls.
    pub memory_calls: u64,
    /// Faults that ended in SIGBUS, as they had to.
    pub sigbus: u64,
    /// Faults injected into the kernel or the device.
    pub injected: u64,
    /// Reads and writes that the device was asked for.
    pub operations: u64,
    /// What the watcher of the swap spaces has said.
    pub news: u64,
    /// Forks, and those that were refused because pages could not be written.
    pub forks: u64,
    /// See `forks`.
    pub forks_refused: u64,
    /// Full checks while everything was quiet.
    pub quiet_checks: u64,
    /// Swap spaces that came, and that went.
    pub spaces_added: u64,
    /// See `spaces_added`.
    pub spaces_gone: u64,
    /// How often an evictor has given memory of stages back.
    pub stages_given: u64,
    /// Extents whose room was given back.
    pub given_back: u64,
    /// Drains that ended with pages that could not be read.
    pub spaces_left: u64,
    /// Drains that were called off, by an actor or because no space had room.
    pub drains_undone: u64,
    /// Faults of unithreads that were put aside until a read has ended, …
    pub aside_for_read: u64,
    /// … until a time is over, …
    pub aside_for_time: u64,
    /// … and until something may have happened.
    pub aside_to_look: u64,
    /// Workers that had to end their fetches before they waited.
    pub settled: u64,
    /// First touches that brought a huge page.
    pub huge: u64,
    /// Pages that the kernel was asked to watch.
    pub watched: u64,
}

/// One line of the trace.
#[derive(Clone, Copy, Debug)]
struct Event {
    step: u64,
    actor: usize,
    what: &'static str,
    page: u64,
    more: u64,
}

const TRACE_MAX: usize = 40_000;
const TRACE_SHOWN: usize = 60;
const TRACE_OF_PAGE: usize = 60;

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
    static TRACE: RefCell<VecDeque<Event>> = const { RefCell::new(VecDeque::new()) };
    static NAMES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static CLOCK: std::cell::Cell<(u64, usize)> = const { std::cell::Cell::new((0, 0)) };
}

/// Sets up the world of this thread.
pub fn begin(world: World) {
    TRACE.with_borrow_mut(VecDeque::clear);
    NAMES.with_borrow_mut(Vec::clear);
    WORLD.with_borrow_mut(|w| *w = Some(world));
}

/// Adds an actor.
pub fn add_actor(name: String) {
    NAMES.with_borrow_mut(|n| n.push(name.clone()));
    let actor = Actor { name, status: Status::Runnable, weight: 1, luck: Luck::default() };
    world(|w| w.actors.push(actor));
}

/// Takes the world away and returns it.
pub fn end() -> Option<World> {
    WORLD.with_borrow_mut(Option::take)
}

/// Does something with the world. Never switches actors inside.
///
/// # Panics
/// Outside a run.
pub fn world<R>(f: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with_borrow_mut(|w| f(w.as_mut().expect("no simulation runs on this thread")))
}

/// Notes step and actor for the trace.
pub fn stamp(step: u64, actor: usize) {
    CLOCK.set((step, actor));
}

/// Adds a line to the trace.
pub fn note(what: &'static str, page: u64, more: u64) {
    let (step, actor) = CLOCK.get();
    TRACE.with_borrow_mut(|t| {
        if t.len() == TRACE_MAX {
            t.pop_front();
        }
        t.push_back(Event { step, actor, what, page, more });
    });
}

/// Ends the run: an invariant does not hold. `page`: the page whose history to show (0: none).
///
/// # Panics
/// Always: that is its purpose.
pub fn broken(page: u64, why: &str) -> ! {
    note("BROKEN", page, 0);
    panic!("{why}{}", if page == 0 { String::new() } else { format!(" (page {page:#x})") });
}

/// What each actor does.
pub fn actors() -> String {
    WORLD.with(|w| {
        let Ok(w) = w.try_borrow() else { return "(the world was being changed)".into() };
        let Some(w) = w.as_ref() else { return String::new() };
        let each = w.actors.iter().map(|a| format!("{}: {:?}", a.name, a.status));
        format!("now {}; {}", w.now, each.collect::<Vec<_>>().join(", "))
    })
}

/// The end of the trace, and the history of the page that the last line names.
pub fn trace() -> String {
    TRACE.with_borrow(|t| {
        let mut text = String::new();
        let name = |actor: usize| NAMES.with_borrow(|n| n.get(actor).cloned().unwrap_or_default());
        let line = |text: &mut String, e: &Event| {
            let _ = writeln!(text, "{:>10} {:<10} {:<24} {:#x} {:#x}", e.step, name(e.actor), e.what, e.page, e.more);
        };
        if let Some(last) = t.back().filter(|e| e.page != 0) {
            let of_page: Vec<&Event> = t.iter().rev().filter(|e| e.page == last.page).take(TRACE_OF_PAGE).collect();
            let _ = writeln!(text, "history of page {:#x}:", last.page);
            of_page.iter().rev().for_each(|e| line(&mut text, e));
        }
        let _ = writeln!(text, "last events:");
        let skip = t.len().saturating_sub(TRACE_SHOWN);
        t.iter().skip(skip).for_each(|e| line(&mut text, e));
        text
    })
}
