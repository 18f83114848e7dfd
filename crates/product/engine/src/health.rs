//! Which swap spaces work, and what the engine does about one that fails, is full, or does not answer.
//!
//! ```text
//!            a write finds no room                  WRITE_TRIES writes in a row fail
//!   works ────────────────────────▶ full ──────────────────────────────────────────▶ fails
//!     ▲          (no new extents)     │                    (no slots at all)            │
//!     └───────────────────────────────┴─────────────────────────────────────────────────┘
//!            a write that was a *trial* succeeds; while there are others that work, less and less often
//!
//!   a transfer takes longer than the patience: *hangs* (no slots), until none does any more
//! ```
//!
//! The picture is about spaces that are *in use*. A space that is to go away is *draining* ([`crate::drain`]): it gives out no
//! slots, whatever its state. It is *left* if pages in it could not be read.
//!
//! Evictors report how writes end ([`Health::wrote`], [`Health::failed`]), and provide pages for which a trial is no risk
//! ([`Health::take_trial`]): their stages keep the bytes until the write is acknowledged. This module moves no page. Pages in a
//! space that fails stay there, and are read from there.
//!
//! Transfers are noted while they are under way ([`Engine::transfer`]). A [`Watcher`], on a thread of its own that does no I/O
//! with a swap space, sees which of them take too long; it also reports what has changed. A thread that waits for such a transfer
//! goes on waiting: the kernel cannot be made to give its buffer back.

use crate::Engine;
use crate::prefetch::Reader;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use farshore_core::limits::FRAME_CACHES;
use farshore_core::seams::{Clock, IoError, World};
use farshore_core::slots::arrangement::{SPACES_MAX, SpaceSet};
use farshore_core::slots::{Allowed, SlotMap};
use farshore_core::spin::SpinLock;
use farshore_core::sync::Padded;
use farshore_core::sync::plain::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use farshore_core::wait::Event;
use farshore_core::word::Slot;

/// Failed writes in a row after which a space is left alone.
pub const WRITE_TRIES: u32 = 3;
/// How long a transfer may take before its space counts as hanging, unless [`Health::set_patience`] says otherwise.
pub const PATIENCE_NS: u64 = 10_000_000_000;
/// Between two trials of a space that fails, at first, and while no other space takes its place.
const TRIAL_EVERY_NS: u64 = 100_000_000;
/// Between two trials at most.
const TRIAL_EVERY_MAX_NS: u64 = 10_000_000_000;
/// A space must work for this long before it is reported as working again: a full disk with a little room comes and goes.
const PROBATION_NS: u64 = 3_000_000_000;
/// Transfers that are watched at a time. Beyond this number, some are not watched.
const WATCHED: usize = FRAME_CACHES * PROBES;
/// Places of a core, in which its transfers look for a free one first; then they look at twice as many places of other
/// cores.
const PROBES: usize = 4;

/// What is wrong with writes to a space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Writing {
    /// Nothing.
    Works,
    /// There is no room for more.
    Full,
    /// Writes fail.
    Fails,
}

/// What a space is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Usage {
    /// Nothing: its number is free.
    Absent,
    /// Pages go there and come from there.
    InUse,
    /// The space is to become empty, and goes away then.
    Draining,
    /// The space was drained, except for pages that could not be read.
    Left,
    /// The space is empty, and is being taken away.
    Going,
}

const USAGES: [Usage; 5] = [Usage::Absent, Usage::InUse, Usage::Draining, Usage::Left, Usage::Going];

#[derive(Debug)]
struct Space {
    /// A [`Usage`], by its place in [`USAGES`].
    usage: AtomicU32,
    /// Spaces that have had this number.
    life: AtomicU32,
    /// Slots in use when its drain began.
    drained_from: AtomicU64,
    /// Its drain was called off, since no other space has room.
    no_room: AtomicBool,
    /// A [`Writing`], by number.
    writing: AtomicU32,
    hangs: AtomicBool,
    /// Failed writes since the last that succeeded.
    streak: AtomicU32,
    errors: AtomicU64,
    /// Of the last failure.
    why: AtomicU64,
    try_at_ns: AtomicU64,
    pause_ns: AtomicU64,
}

/// A transfer that is under way.
#[derive(Debug)]
struct Watched {
    /// When it began; 0: the place is free.
    since_ns: AtomicU64,
    slot: AtomicU64,
}

/// The state of writes to the space when a write was begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Begun {
    /// The write's pages are there to see whether the space works.
    pub(crate) trial: bool,
    state: Writing,
}

/// The health of all spaces.
#[derive(Debug)]
pub struct Health {
    /// Room for as many spaces as there can be; the first `count` exist or existed.
    spaces: Box<[Space]>,
    count: AtomicUsize,
    watched: Box<[Padded<Watched>]>,
    patience_ns: AtomicU64,
    /// A thread is in [`Health::set_allowed`]: evictors and the watcher only, for a moment.
    applying: SpinLock<()>,
    /// The watcher has something to look at.
    news: Event,
    /// The watcher sleeps until there is news: the thread that begins a transfer says so.
    idle: AtomicBool,
}

fn pack(why: IoError) -> u64 {
    match why {
        IoError::Full => 1,
        IoError::Short => 2,
        IoError::Device(errno) => 1 << 32 | u64::from(errno as u32),
    }
}

fn unpack(why: u64) -> IoError {
    match why {
        1 => IoError::Full,
        2 => IoError::Short,
        errno => IoError::Device(errno as u32 as i32),
    }
}

impl Health {
    /// Of this many spaces, all of which work.
    pub fn new(spaces: usize) -> Health {
        let space = |number: usize| Space {
            usage: AtomicU32::new(u32::from(number < spaces.max(1))),
            life: AtomicU32::new(0),
            drained_from: AtomicU64::new(0),
            no_room: AtomicBool::new(false),
            writing: AtomicU32::new(Writing::Works as u32),
            hangs: AtomicBool::new(false),
            streak: AtomicU32::new(0),
            errors: AtomicU64::new(0),
            why: AtomicU64::new(0),
            try_at_ns: AtomicU64::new(0),
            pause_ns: AtomicU64::new(TRIAL_EVERY_NS),
        };
        let watched = || Padded(Watched { since_ns: AtomicU64::new(0), slot: AtomicU64::new(0) });
        Health {
            spaces: (0..SPACES_MAX).map(space).collect(),
            count: AtomicUsize::new(spaces.clamp(1, SPACES_MAX)),
            watched: (0..WATCHED).map(|_| watched()).collect(),
            patience_ns: AtomicU64::new(PATIENCE_NS),
            applying: SpinLock::new(()),
            news: Event::new(),
            idle: AtomicBool::new(false),
        }
    }

    /// How long a transfer may take before its space counts as hanging.
    pub fn set_patience(&self, ns: u64) {
        self.patience_ns.store(ns.max(1), Ordering::Relaxed);
    }

    /// How many spaces exist or existed; their numbers are below it.
    pub fn spaces(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// What a space is there for.
    pub fn usage(&self, space: usize) -> Usage {
        USAGES[self.spaces[space].usage.load(Ordering::Acquire) as usize]
    }

    /// The spaces that are used for this.
    pub fn all_that_are(&self, usage: Usage) -> SpaceSet {
        (0..self.spaces()).filter(|&space| self.usage(space) == usage).fold(SpaceSet::default(), SpaceSet::with)
    }

    fn is_in_use(&self, space: usize) -> bool {
        self.usage(space) == Usage::InUse
    }

    /// Changes what a space is used for, and adapts what its slots may do; false: it was used for something else.
    pub(crate) fn change_usage(&self, slots: &SlotMap, space: usize, from: Usage, to: Usage) -> bool {
        let changed = self.spaces[space].usage.compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Relaxed);
        if changed.is_ok() {
            self.set_allowed(slots, space);
        }
        changed.is_ok()
    }

    /// A space comes, which no other thread knows yet: nothing is wrong with it.
    pub(crate) fn begin(&self, space: usize) {
        let it = &self.spaces[space];
        it.life.fetch_add(1, Ordering::Relaxed);
        it.writing.store(Writing::Works as u32, Ordering::Relaxed);
        it.hangs.store(false, Ordering::Relaxed);
        it.no_room.store(false, Ordering::Relaxed);
        for number in [&it.errors, &it.why, &it.try_at_ns] {
            number.store(0, Ordering::Relaxed);
        }
        it.streak.store(0, Ordering::Relaxed);
        it.pause_ns.store(TRIAL_EVERY_NS, Ordering::Relaxed);
        self.count.fetch_max(space + 1, Ordering::AcqRel);
    }

    /// A drain begins: this many slots are in use.
    pub(crate) fn note_drain(&self, space: usize, live: u64) {
        self.spaces[space].drained_from.store(live.max(1), Ordering::Relaxed);
        self.spaces[space].no_room.store(false, Ordering::Relaxed);
    }

    /// How much of a drain is done if `live` slots are in use now, in per cent.
    pub fn drained_percent(&self, space: usize, live: u64) -> u64 {
        let from = self.spaces[space].drained_from.load(Ordering::Relaxed).max(1);
        from.saturating_sub(live) * 100 / from
    }

    /// No space has room for the pages that are drained: all drains are called off. Returns whether there was one.
    pub(crate) fn call_off_drains(&self, slots: &SlotMap) -> bool {
        let mut any = false;
        for space in self.all_that_are(Usage::Draining).iter() {
            self.spaces[space].no_room.store(true, Ordering::Relaxed);
            any |= self.change_usage(slots, space, Usage::Draining, Usage::InUse);
        }
        any
    }

    /// Whether the last drain of the space was called off by [`Health::call_off_drains`].
    pub(crate) fn wanted_room(&self, space: usize) -> bool {
        self.spaces[space].no_room.load(Ordering::Relaxed)
    }

    /// Whether writes to a space work.
    pub fn writing(&self, space: usize) -> Writing {
        match self.spaces[space].writing.load(Ordering::Relaxed) {
            0 => Writing::Works,
            1 => Writing::Full,
            _ => Writing::Fails,
        }
    }

    /// Whether a space does not answer.
    pub fn hangs(&self, space: usize) -> bool {
        self.spaces[space].hangs.load(Ordering::Relaxed)
    }

    /// Writes to a space that failed.
    pub fn errors(&self, space: usize) -> u64 {
        self.spaces[space].errors.load(Ordering::Relaxed)
    }

    /// Why the last of them failed.
    pub fn why(&self, space: usize) -> IoError {
        unpack(self.spaces[space].why.load(Ordering::Relaxed))
    }

    /// Whether slots of a space are given out.
    pub fn is_open(&self, space: usize) -> bool {
        self.is_in_use(space) && self.writing(space) != Writing::Fails && !self.hangs(space)
    }

    /// Whether some space but `space` takes pages.
    pub fn has_other(&self, space: usize) -> bool {
        (0..self.spaces()).any(|s| s != space && self.is_open(s) && self.writing(s) == Writing::Works)
    }

    /// Whether nothing is wrong with any space.
    pub fn all_work(&self) -> bool {
        (0..self.spaces()).all(|space| self.writing(space) == Writing::Works || !self.is_in_use(space))
    }

    /// Whether some space holds pages and gives out no slots.
    pub(crate) fn some_are_closed(&self) -> bool {
        (0..self.spaces()).any(|space| !self.is_open(space) && self.usage(space) != Usage::Absent)
    }

    /// Whether some space does not answer.
    pub fn any_hangs(&self) -> bool {
        (0..self.spaces()).any(|space| self.hangs(space))
    }

    /// Whether some space takes pages.
    pub fn any_open(&self) -> bool {
        (0..self.spaces()).any(|space| self.is_open(space))
    }

    /// Adapts what slots may be given out to the space's state, which was changed before: the last thread that does this
    /// has seen the last change.
    fn set_allowed(&self, slots: &SlotMap, space: usize) {
        self.applying.with(|()| {
            let allowed = match self.writing(space) {
                _ if self.hangs(space) => Allowed::Nothing,
                Writing::Works => Allowed::All,
                Writing::Full => Allowed::NoGrowth,
                Writing::Fails => Allowed::Nothing,
            };
            slots.allow(space, allowed);
            match self.is_in_use(space) {
                true => slots.reopen(space),
                false => slots.close(space),
            }
        });
    }

    /// A write to `space` has succeeded; `trial`: its page was given to see whether the space works. True when the watcher
    /// should hear of it.
    fn wrote(&self, slots: &SlotMap, space: usize, trial: bool) -> bool {
        let it = &self.spaces[space];
        if it.streak.load(Ordering::Relaxed) != 0 {
            it.streak.store(0, Ordering::Relaxed);
        }
        let changed = trial && self.writing(space) != Writing::Works;
        if changed {
            it.pause_ns.store(TRIAL_EVERY_NS, Ordering::Relaxed);
            it.writing.store(Writing::Works as u32, Ordering::Release);
            self.set_allowed(slots, space);
        }
        changed
    }

    /// A write to `space` has failed. True when the watcher should hear of it.
    fn failed(&self, slots: &SlotMap, space: usize, begun: Begun, why: IoError, now_ns: u64) -> bool {
        let it = &self.spaces[space];
        it.errors.fetch_add(1, Ordering::Relaxed);
        it.why.store(pack(why), Ordering::Relaxed);
        let before = self.writing(space);
        // An error that says that there is no room tells nothing about slots that were used before.
        let counts = !begun.trial && (why != IoError::Full || begun.state != Writing::Works);
        let streak = if counts { it.streak.fetch_add(1, Ordering::Relaxed) + 1 } else { 0 };
        let now = match why {
            _ if streak >= WRITE_TRIES => Writing::Fails,
            IoError::Full => before.max(Writing::Full),
            IoError::Device(_) | IoError::Short => before,
        };
        if now <= before {
            return false;
        }
        it.writing.store(now as u32, Ordering::Release);
        it.try_at_ns.store(now_ns + it.pause_ns.load(Ordering::Relaxed), Ordering::Relaxed);
        self.set_allowed(slots, space);
        true
    }

    /// A space that should be tried now, if any: the caller writes a few pages there that it can write again elsewhere.
    pub(crate) fn take_trial(&self, now_ns: u64) -> Option<usize> {
        (0..self.spaces()).find(|&space| {
            if self.writing(space) == Writing::Works || self.hangs(space) || !self.is_in_use(space) {
                return false;
            }
            let it = &self.spaces[space];
            let due = it.try_at_ns.load(Ordering::Relaxed);
            // Another space takes its place meanwhile: there is no hurry.
            let pause = match self.has_other(space) {
                true => (2 * it.pause_ns.load(Ordering::Relaxed)).min(TRIAL_EVERY_MAX_NS),
                false => TRIAL_EVERY_NS,
            };
            let mine =
                now_ns >= due && it.try_at_ns.compare_exchange(due, now_ns + pause, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if mine {
                it.pause_ns.store(pause, Ordering::Relaxed);
            }
            mine
        })
    }

    fn set_hangs(&self, slots: &SlotMap, space: usize, hangs: bool) {
        self.spaces[space].hangs.store(hangs, Ordering::Relaxed);
        self.set_allowed(slots, space);
    }

    /// A transfer of `slot` begins on `core`. Returns where it is noted, if there is a place.
    fn enter(&self, slot: Slot, now_ns: u64, core: usize) -> Option<usize> {
        let own = core % FRAME_CACHES * PROBES;
        // If there are more threads than places, each waits for its own read.
        let shared = slot.number().wrapping_mul(0x9E37_79B9_7F4A_7C15) as usize >> 32;
        let places = (own..own + PROBES).chain((shared..shared + 2 * PROBES).map(|at| at % WATCHED));
        let place = { places }.find(|&at| {
            let since = &self.watched[at].since_ns;
            // SeqCst: before the look at `idle`, as the watcher's store of it is before its look at the places.
            since.load(Ordering::Relaxed) == 0
                && since.compare_exchange(0, now_ns.max(1), Ordering::SeqCst, Ordering::Relaxed).is_ok()
        })?;
        self.watched[place].slot.store(slot.number(), Ordering::Relaxed);
        Some(place)
    }

    fn leave(&self, place: Option<usize>) {
        if let Some(at) = place {
            self.watched[at].since_ns.store(0, Ordering::Release);
        }
    }

    /// The transfer of each space that takes longest: since when, and its slot.
    fn longest(&self, slots: &SlotMap, each: &mut [Option<(u64, Slot)>]) {
        each.fill(None);
        for watched in &self.watched {
            let since = watched.since_ns.load(Ordering::SeqCst);
            let Some(slot) = Slot::new(watched.slot.load(Ordering::Relaxed)).filter(|_| since != 0) else { continue };
            // Transfers of a forked child from its parent's space come last.
            let space = slots.space_of(slot).unwrap_or(each.len() - 1);
            if each[space].is_none_or(|(longest, _)| since < longest) {
                each[space] = Some((since, slot));
            }
        }
    }
}

/// A transfer that is noted.
#[must_use]
#[derive(Debug)]
pub(crate) struct Transfer(Option<usize>);

impl<W: World> Engine<W> {
    /// A transfer of the slots from `slot` on begins on `core`. Ends with [`Engine::transferred`].
    pub(crate) fn transfer(&self, slot: Slot, core: usize) -> Transfer {
        let place = self.health.enter(slot, self.clock.now_ns(), core);
        if self.health.idle.load(Ordering::SeqCst) && self.health.idle.swap(false, Ordering::SeqCst) {
            self.health.news.signal(&self.futex);
        }
        Transfer(place)
    }

    /// It has ended.
    pub(crate) fn transferred(&self, transfer: Transfer) {
        self.health.leave(transfer.0);
    }

    /// A write to `slot` begins.
    pub(crate) fn begin_write(&self, slot: Slot, trial: bool) -> Begun {
        Begun { trial, state: self.slots.space_of(slot).map_or(Writing::Works, |space| self.health.writing(space)) }
    }

    /// It has ended.
    pub(crate) fn note_write(&self, slot: Slot, begun: Begun, result: Result<(), IoError>) {
        let Some(space) = self.slots.space_of(slot) else { return };
        let changed = match result {
            Ok(()) => self.health.wrote(&self.slots, space, begun.trial),
            Err(why) => self.health.failed(&self.slots, space, begun, why, self.clock.now_ns()),
        };
        if changed {
            self.wake_watcher();
        }
    }

    /// Evictors run out of what was allocated for them. Wakes the watcher, if one sleeps, which allocates more.
    pub(crate) fn wake_watcher_for_stock(&self) {
        if self.health.news.sleepers() > 0 {
            self.wake_watcher();
        }
    }

    /// Wakes the watcher, which looks at the spaces, and whether it is to stop.
    pub fn wake_watcher(&self) {
        self.health.news.signal(&self.futex);
    }

    /// Whether a write to `slot`, which is an own one, should not be begun.
    pub(crate) fn is_closed(&self, slot: Slot) -> bool {
        self.slots.space_of(slot).is_some_and(|space| !self.health.is_open(space))
    }

    /// Whether a transfer in flight to `slot` is not worth waiting for.
    pub(crate) fn hangs(&self, slot: Slot) -> bool {
        self.slots.space_of(slot).is_some_and(|space| self.health.hangs(space))
    }
}

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
    /// threads that read ahead, with `make_reader`. That function must not wait for what the watcher has to find out: a space
    /// that hangs.
    pub fn run<W: World>(
        &mut self,
        engine: &Engine<W>,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(News),
        make_reader: &mut dyn FnMut() -> Reader,
    ) {
        let health = &engine.health;
        while !stop.load(Ordering::Acquire) {
            let prepared = health.news.prepare();
            // Stored first, so that a transfer that begins after the look wakes us.
            health.idle.store(true, Ordering::SeqCst);
            let busy = self.look(engine, tell);
            health.idle.store(!busy, Ordering::SeqCst);
            let soon = engine.requests.serve(make_reader).then_some(READER_PAUSE_NS);
            let pause = (health.patience_ns.load(Ordering::Relaxed) / 8).clamp(READER_PAUSE_NS, 1_000_000_000);
            health.news.sleep(&engine.futex, prepared, soon.or(busy.then_some(pause)));
        }
    }

    /// Looks once. Returns whether something may change without a message: look again soon.
    pub fn look<W: World>(&mut self, engine: &Engine<W>, tell: &mut dyn FnMut(News)) -> bool {
        // If there is no memory, the map does not grow for now.
        let _ = engine.slots.stock();
        engine.wake_giver();
        let now = engine.clock.now_ns();
        engine.health.longest(&engine.slots, &mut self.longest);
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
