//! A limit that is chosen: by what the client loses to faults (`--slowdown`), or as a share of a budget that it has together with other clients and programs of
//! its user (`--budget`). The laws are those of programs ([`farshore_engine::pilot`], [`farshore_budgets`]). What is measured differs:
//!
//! * **Lost** is the time of the faults that were served, and for each the time in which the kernel brings the message and wakes the one who waits.
//! * **Ran** is the processor time of the client's process: of a virtual machine monitor, what its guest computes and what its devices do.
//!
//! The watcher looks, five times a second ([`Choice::look`]); the control thread changes what is asked for. Both have the state in one hand. Whoever sets a
//! limit has the host in one hand as well. The watcher does not wait for that: while the memory is given back no limit is set, and the watcher is to end.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::sleep;
use std::time::Duration;

use farshore_budgets::law::{self, Loss, Own, Share};
use farshore_budgets::seat::{self, Family, Seat, Told};
use farshore_config::{MEMORY_MIN_CHOSEN, Options, Size, Slowdown, stats};
use farshore_core::limits::PAGE_SIZE;
use farshore_core::seams::{Clock as _, World};
use farshore_engine::Engine;
use farshore_engine::pilot::{Aim, Growth, LOOK_NS, Look, Pilot, Turn, grows, is_full, slack};
use farshore_engine::stats::{Count, FaultKind};

use crate::process;

/// What a fault by message takes beside its service, ns: [the costs](../../../../docs/src/decisions/0067-memory-of-other-processes.md) are 12 to 15 µs as the one who
/// waits sees them, of which the service is half.
const MESSAGE_NS: u64 = 7_000;
/// Between two looks whether a size that a user has asked for was taken.
const PAUSE: Duration = Duration::from_millis(10);

/// What is asked for, and what was seen.
#[derive(Debug)]
pub struct Choice {
    /// The client's process.
    client: i32,
    /// The budget's name.
    budget: Option<String>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    target: Option<Slowdown>,
    /// Bounds, pages.
    least: u64,
    most: u64,
    seat: Option<Seat<OwnedFd>>,
    told: Told,
    /// The size of the budget that a user has asked for, pages; 0: none.
    asked: u64,
    seen: Option<Seen>,
    /// Since the start, ns.
    lost_ns: u64,
    ran_ns: u64,
    changes: u64,
}

/// What the last look has seen.
#[derive(Debug)]
struct Seen {
    turn: Turn,
    sums: Sums,
    pilot: Pilot,
    loss: Loss,
    growth: Growth,
}

impl Seen {
    /// How long the next look may wait, ns; `None`: it is time, or the client grows.
    fn wait<W: World>(&mut self, engine: &Engine<W>, now_ns: u64) -> Option<u64> {
        let growth = self.growth;
        let grows = || grows(growth.beyond(engine.stats.has()), engine.in_use(), engine.memory_limit() / PAGE_SIZE as u64);
        self.turn.wait(now_ns, grows, || engine.tell_when_short())
    }
}

/// What has happened so far.
#[derive(Clone, Copy, Debug)]
struct Sums {
    /// Time lost to faults, ns.
    lost: u64,
    /// Processor time of the client, ns.
    ran: u64,
    /// Pages that came back from swap space, and pages that have left.
    came: u64,
    evicted: u64,
    /// Pages that it has touched first and not given up.
    has: i64,
}

impl Sums {
    fn of<W: World>(engine: &Engine<W>, client: i32) -> Sums {
        let stats = &engine.stats;
        let messages = stats.all_faults().saturating_sub(stats.faults(FaultKind::Zero)) * MESSAGE_NS;
        // No limit changes what a first touch costs, unless it waits for memory.
        let touches = stats.total(Count::TouchNs);
        Sums {
            lost: (stats.latency().total + messages).saturating_sub(touches),
            ran: process::processor_ns(client),
            came: stats.total(Count::PagesIn),
            evicted: stats.total(Count::Evicted),
            has: stats.has(),
        }
    }
}

impl State {
    fn is_on(&self) -> bool {
        self.target.is_some() || self.seat.is_some()
    }

    /// The most that is chosen.
    fn most(&self) -> u64 {
        if self.told.size > 0 { self.most.min(self.told.size) } else { self.most }
    }

    fn aim(&self) -> Option<Aim> {
        self.target.map(|target| Aim { target: f64::from(target.ppm()) / 1e6, least: self.least, most: self.most() })
    }
}

impl Choice {
    /// What the options ask for a client, and the file of the seat that was taken for it ([`farshore_budgets::join::take_seat`]).
    ///
    /// # Errors
    /// One line: the list of budgets cannot be used.
    pub fn new(options: &Options, client: i32, list: Option<OwnedFd>) -> Result<Choice, String> {
        let seat = match (list, options.seat, &options.budget) {
            (Some(list), Some(handed), Some(budget)) => {
                let size = budget.size.map_or(0, |size| size.bytes() / PAGE_SIZE as u64);
                let seat = Seat::new(list, handed, &budget.name, size);
                Some(seat.ok_or_else(|| format!("--budget {budget}: the list of budgets cannot be looked at"))?)
            }
            (_, _, Some(budget)) => return Err(format!("--budget {budget}: no seat was handed on")),
            _ => None,
        };
        let pages = |size: Size| size.bytes() / PAGE_SIZE as u64;
        Ok(Choice {
            client,
            budget: options.budget.as_ref().map(|budget| budget.name.clone()),
            state: Mutex::new(State {
                target: options.slowdown,
                least: pages(options.least_memory()),
                most: pages(options.memory),
                seat,
                told: Told::default(),
                asked: 0,
                seen: None,
                lost_ns: 0,
                ran_ns: 0,
                changes: 0,
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client's memory begins to be managed: the limit that is chosen first. Where none is, it stays.
    pub fn begin<W: World>(&self, engine: &Engine<W>) {
        let mut state = self.state();
        state.least = state.least.max(engine.floor());
        let (least, most) = (state.least, state.most.max(state.least));
        let first = match &state.seat {
            Some(seat) => {
                let (pages, told) = seat.begin(least, most);
                state.told = told.unwrap_or_default();
                Some(pages)
            }
            None => state.target.map(|_| most),
        };
        first.into_iter().for_each(|pages| engine.set_budget(pages));
    }

    /// Looks, if it is time, and sets another limit, unless somebody has the host (`space`) in one hand. Returns when it is to look again, in ns; `None`: limits stay.
    pub fn look<W: World>(&self, engine: &Engine<W>, space: &Mutex<()>) -> Option<u64> {
        let mut state = self.state();
        let state = &mut *state;
        if !state.is_on() {
            state.seen = None;
            return None;
        }
        let now = engine.clock.now_ns();
        if let Some(soon) = state.seen.as_mut().and_then(|seen| seen.wait(engine, now)) {
            return Some(soon);
        }
        let _alone = match space.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => return Some(LOOK_NS),
        };
        let sums = Sums::of(engine, self.client);
        let (aim, most) = (state.aim(), state.most().max(state.least));
        let Some(seen) = &mut state.seen else {
            let (pilot, growth) = (Pilot::new(), Growth::of(sums.has));
            state.seen = Some(Seen { turn: Turn::at(now), sums, pilot, loss: Loss::NONE, growth });
            return Some(LOOK_NS);
        };
        let (before, limit) = (seen.sums, engine.memory_limit() / PAGE_SIZE as u64);
        let look = Look {
            wall_ns: seen.turn.begin(now),
            lost_ns: sums.lost.saturating_sub(before.lost),
            came: sums.came.saturating_sub(before.came),
            ran_ns: sums.ran.saturating_sub(before.ran),
            grown: seen.growth.beyond(sums.has),
            in_use: engine.in_use(),
            limit,
            settled: engine.frames().debt() == 0,
        };
        seen.sums = sums;
        seen.growth.note(sums.has, look.wall_ns);
        state.lost_ns += look.lost_ns;
        state.ran_ns += look.ran_ns;
        let next = aim.and_then(|aim| seen.pilot.look(aim, look));
        let Some(seat) = &state.seat else {
            if let Some(pages) = next {
                engine.set_budget(pages.max(engine.floor()));
                state.changes += 1;
            }
            return Some(LOOK_NS);
        };
        seen.loss.add(look.lost_ns, look.ran_ns, look.wall_ns);
        let is_short = engine.is_short() || sums.evicted != before.evicted;
        let wants = match aim {
            Some(_) => next.unwrap_or(limit),
            None => law::wants(limit, look.in_use, slack(look.in_use), is_full(look), is_short),
        };
        let share = Share {
            limit,
            held: engine.budget().max(limit),
            least: state.least,
            wants: wants.clamp(state.least, most),
            need: seen.loss.need(state.target.map(Slowdown::ppm)),
        };
        let own = Own { share, most, keeps: state.target.is_none() };
        let family = Asking { engine, own, asked: state.asked, told: Cell::new(None), changes: Cell::new(0) };
        let answered = seat.look(state.least, &family);
        if answered == Some(state.asked) {
            state.asked = 0;
        }
        state.changes += family.changes.get();
        state.told = family.told.get().unwrap_or(state.told);
        Some(LOOK_NS)
    }

    /// The user sets this limit, and has the host in one hand: it stays, and in a budget it is the most that is taken from there. No other one is chosen later that
    /// is larger.
    ///
    /// # Errors
    /// The least that can be set, in bytes; nothing has changed.
    pub fn end_at<W: World>(&self, engine: &Engine<W>, bytes: u64) -> Result<(), u64> {
        let mut state = self.state();
        let pages = bytes / PAGE_SIZE as u64;
        match &state.seat {
            Some(_) if pages < state.least => return Err(state.least * PAGE_SIZE as u64),
            // Set at the next look: a limit that is set without the hold may be above what the line says by then.
            Some(_) => engine.wake_watcher(),
            None => engine.set_memory_limit(bytes)?,
        }
        (state.most, state.target) = (pages, None);
        Ok(())
    }

    /// The limit is chosen from now on (`Some`), or stays as it is.
    pub fn set<W: World>(&self, engine: &Engine<W>, slowdown: Option<Slowdown>) {
        let mut state = self.state();
        if slowdown.is_some() && state.target.is_none() && state.seat.is_none() {
            let chosen = (MEMORY_MIN_CHOSEN.bytes() / PAGE_SIZE as u64).min(state.most);
            state.least = chosen.max(engine.floor());
        }
        state.target = slowdown;
        engine.wake_watcher();
    }

    /// A user sets another size of the budget, for all that are in it. Waits until it is written.
    ///
    /// # Errors
    /// One line: why it stays as it is.
    pub fn set_size<W: World>(&self, engine: &Engine<W>, size: Size) -> Result<(), String> {
        let pages = size.bytes() / PAGE_SIZE as u64;
        {
            let mut state = self.state();
            if state.seat.is_none() {
                return Err(seat::in_none(size));
            }
            state.told.check(size)?;
            state.asked = pages;
        }
        engine.wake_watcher();
        let tries = seat::ANSWERED_WITHIN_NS / PAUSE.as_nanos() as u64;
        let waited = (0..tries).any(|_| {
            sleep(PAUSE);
            self.state().asked != pages
        });
        let mut state = self.state();
        if waited && state.told.size == pages {
            return Ok(());
        }
        state.asked = 0;
        state.told.check(size).and(Err(seat::unanswered(size)))
    }

    /// What the counters tell of it.
    pub fn stats<W: World>(&self, engine: &Engine<W>) -> (Option<stats::Autopilot>, Option<stats::Budget>) {
        let state = self.state();
        let page = PAGE_SIZE as u64;
        let autopilot = state.target.map(|target| stats::Autopilot {
            target_ppm: target.ppm().into(),
            measured_ppm: state.seen.as_ref().map_or(0, |seen| (seen.pilot.slowdown() * 1e6) as u64),
            limit_bytes: engine.memory_limit(),
            least_bytes: state.least * page,
            most_bytes: state.most() * page,
            lost_ns: state.lost_ns,
            ran_ns: state.ran_ns,
            changes: state.changes,
            decides: true,
        });
        (autopilot, self.budget.as_ref().map(|name| state.told.stats(name)))
    }
}

/// The client, as its budget asks for it.
struct Asking<'e, W: World> {
    engine: &'e Engine<W>,
    own: Own,
    asked: u64,
    told: Cell<Option<Told>>,
    changes: Cell<u64>,
}

impl<W: World> Family for Asking<'_, W> {
    /// Nobody else decides, and the host is in one hand.
    fn own(&self) -> Option<Own> {
        Some(self.own)
    }

    fn has(&self) -> u64 {
        self.engine.budget()
    }

    fn set(&self, pages: u64) {
        self.engine.set_budget(pages.max(self.engine.floor()));
        self.changes.set(self.changes.get() + 1);
    }

    fn asked(&self) -> u64 {
        self.asked
    }

    fn tell(&self, told: &Told) {
        self.told.set(Some(*told));
    }
}
