//! The watcher: a thread that does no I/O with a swap space. It sees which spaces hang, and reports what has changed about them.
//!
//! It also does what other threads may not: it makes threads that read ahead, and memory for the map of slots.

use super::{Usage, Writing};
use crate::Engine;
use crate::prefetch::Reader;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::Ordering;
use farshore_core::seams::{Clock, IoError, World};
use farshore_core::slots::arrangement::SPACES_MAX;
use farshore_core::sync::plain::AtomicBool;
use farshore_core::word::Slot;

/// A space must work for this long before it is reported as working again: a full disk with a little room comes and goes.
const PROBATION_NS: u64 = 3_000_000_000;
/// How long to wait before a thread that could not be made is tried again.
const READER_PAUSE_NS: u64 = 10_000_000;

/// The change in a space's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// There is no room for more.
    Full,
    /// Writes fail.
    Fails(IoError),
    /// It works again.
    Works,
    /// A transfer has not ended for this many ns.
    Hangs(u64),
    /// All transfers have ended, the longest after this many ns.
    Answers(u64),
}

/// Something that the user should know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct News {
    /// Some slot of the space: `Backend::name_of` tells its name.
    pub slot: Slot,
    /// How its state has changed.
    pub change: Change,
    /// Another space takes its place.
    pub others: bool,
}

impl News {
    /// The line for the user about the space of this name.
    pub fn line<N: fmt::Display>(self, name: N) -> Line<N> {
        Line { news: self, name }
    }
}

/// A line for the user ([`News::line`]).
#[derive(Debug)]
pub struct Line<N> {
    news: News,
    name: N,
}

impl<N: fmt::Display> fmt::Display for Line<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Line { news: News { change, others, .. }, name } = self;
        let where_to = match others {
            true => "new pages go to the other swap spaces; it is tried again now and then",
            false => "no other swap space takes its place, so pages stay in memory; it is tried again all the time",
        };
        match *change {
            Change::Full => write!(f, "swap space {name} is full: {where_to}"),
            Change::Fails(why) => write!(f, "swap space {name} fails ({why}): {where_to}"),
            Change::Works => write!(f, "swap space {name} works again"),
            Change::Hangs(ns) => {
                let rest = match others {
                    true => "new pages go to the other swap spaces",
                    false => "no other swap space takes its place",
                };
                let span = Span(ns);
                write!(f, "swap space {name} has not answered for {span}: threads that need a page from it wait, and {rest}")
            }
            Change::Answers(ns) => write!(f, "swap space {name} answers again, after {}", Span(ns)),
        }
    }
}

/// A time, in ns, as a person reads it.
struct Span(u64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 / 1_000_000 {
            ms @ ..2000 => write!(f, "{ms} ms"),
            ms => write!(f, "{} s", ms / 1000),
        }
    }
}

/// Watches the spaces of one engine, and makes extents beforehand so that evictors need not allocate.
#[derive(Debug)]
pub struct Watcher {
    /// For as many spaces as there can be; the last is for what a forked child reads from its parent.
    told: Vec<Told>,
    longest: Vec<Option<(u64, Slot)>>,
}

#[derive(Clone, Copy, Debug)]
struct Told {
    /// Of which space of this number.
    life: u32,
    writing: Writing,
    /// It works, and has since then.
    works_since_ns: Option<u64>,
    /// It hangs: since when, and a slot of it.
    hangs: Option<(u64, Slot)>,
}

impl Told {
    /// The record of a space about which nothing was told yet.
    fn nothing(life: u32) -> Told {
        Told { life, writing: Writing::Works, works_since_ns: None, hangs: None }
    }
}

impl Default for Watcher {
    fn default() -> Watcher {
        Watcher::new()
    }
}

impl Watcher {
    /// A watcher.
    pub fn new() -> Watcher {
        Watcher { told: alloc::vec![Told::nothing(0); SPACES_MAX + 1], longest: alloc::vec![None; SPACES_MAX + 1] }
    }

    /// The watcher's thread: looks, and sleeps while there is nothing to look at, until `stop` (and a change). It also makes
    /// threads that read ahead, with `make_reader`, and calls `each` at each look, which says when it is to be called again, in ns. That function must not wait for what the watcher has to find out: a space
    /// that hangs.
    pub fn run<W: World>(
        &mut self,
        engine: &Engine<W>,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(News),
        make_reader: &mut dyn FnMut() -> Reader,
        each: &mut dyn FnMut() -> Option<u64>,
    ) {
        let health = &engine.health;
        while !stop.load(Ordering::Acquire) {
            let prepared = health.transfers.prepare();
            let busy = self.look(engine, tell);
            health.transfers.note_look(busy);
            let soon = engine.requests.serve(make_reader).then_some(READER_PAUSE_NS);
            let pause = (health.patience_ns.load(Ordering::Relaxed) / 8).clamp(READER_PAUSE_NS, 1_000_000_000);
            let own = soon.or(busy.then_some(pause));
            health.transfers.sleep(&engine.futex, prepared, own.into_iter().chain(each()).min());
        }
    }

    /// Looks once. Returns whether something may change without a message: look again soon.
    pub fn look<W: World>(&mut self, engine: &Engine<W>, tell: &mut dyn FnMut(News)) -> bool {
        // If there is no memory, the map does not grow for now.
        let _ = engine.slots.stock();
        engine.wake_giver();
        let now = engine.clock.now_ns();
        engine.health.transfers.longest(&engine.slots, &mut self.longest);
        let mut busy = self.longest.iter().any(Option::is_some);
        for space in 0..engine.health.spaces() {
            let life = engine.health.spaces[space].life.load(Ordering::Relaxed);
            if self.told[space].life != life {
                self.told[space] = Told::nothing(life);
            }
            if engine.health.usage(space) != Usage::Absent {
                busy |= self.look_for_hang(engine, space, now, tell);
                busy |= self.look_at_writes(engine, space, now, tell);
            }
        }
        busy | self.look_for_hang(engine, SPACES_MAX, now, tell)
    }

    fn look_for_hang<W: World>(&mut self, engine: &Engine<W>, space: usize, now: u64, tell: &mut dyn FnMut(News)) -> bool {
        let health = &engine.health;
        let patience = health.patience_ns.load(Ordering::Relaxed);
        let late = self.longest[space].filter(|(since, _)| now.saturating_sub(*since) >= patience);
        let own = space < health.spaces();
        let others = own && health.has_other(space);
        let told = &mut self.told[space];
        let change = match (late, told.hangs) {
            (Some((since, slot)), None) => {
                told.hangs = Some((since, slot));
                News { slot, change: Change::Hangs(now - since), others }
            }
            (None, Some((since, slot))) => {
                told.hangs = None;
                News { slot, change: Change::Answers(now - since), others }
            }
            _ => return told.hangs.is_some(),
        };
        if own {
            health.set_hangs(&engine.slots, space, told.hangs.is_some());
            // Evictors need not wait for the space, or may use it again.
            engine.evictors.pace.wake(&engine.futex);
        }
        tell(change);
        told.hangs.is_some()
    }

    fn look_at_writes<W: World>(&mut self, engine: &Engine<W>, space: usize, now: u64, tell: &mut dyn FnMut(News)) -> bool {
        let health = &engine.health;
        let is = health.writing(space);
        let told = &mut self.told[space];
        let change = match is {
            Writing::Works if told.writing == Writing::Works => return false,
            Writing::Works => {
                let since = *told.works_since_ns.get_or_insert(now);
                if now.saturating_sub(since) < PROBATION_NS {
                    return true;
                }
                told.works_since_ns = None;
                told.writing = is;
                Change::Works
            }
            worse => {
                told.works_since_ns = None;
                let worst = worse.max(told.writing);
                let before = core::mem::replace(&mut told.writing, worst);
                match health.why(space) {
                    _ if worse <= before => return false,
                    // Reported already.
                    IoError::Full if before == Writing::Full => return false,
                    IoError::Full => Change::Full,
                    why => Change::Fails(why),
                }
            }
        };
        if let Some(slot) = engine.slots.some_slot_of(space) {
            tell(News { slot, change, others: health.has_other(space) });
        }
        // The thread that changes the state again reports it.
        false
    }
}
