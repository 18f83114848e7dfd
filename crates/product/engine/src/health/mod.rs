//! Which swap spaces work, and what the engine does about one that fails, is full, or does not answer.
//!
//! ```text
//!            a write finds no room                 WRITE_TRIES writes in a row fail,
//!   works ────────────────────────▶ full ───or FULL_TRIES find no room──────────────▶ fails
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
//! Transfers are noted while they are under way ([`transfers`]). A [`Watcher`], on a thread of its own that does no I/O with a swap
//! space, sees which of them take too long; it also reports what has changed. A thread that waits for such a transfer goes on
//! waiting: the kernel cannot be made to give its buffer back.
//!
//! # Protocol
//!
//! A thread that changes anything about a space changes it first, and **then** adapts what the space's slots may do, under a lock
//! ([`SlotMap::allow`]). So the thread that does so last has seen the last change.

mod transfers;
mod trouble;
mod watcher;

use crate::Engine;
use crate::stats::Count;
use alloc::boxed::Box;
use core::sync::atomic::Ordering;
use farshore_core::seams::{Clock, IoError, Reads as _, World};
use farshore_core::slots::arrangement::{SPACES_MAX, SpaceSet};
use farshore_core::slots::{Allowed, SlotMap};
use farshore_core::spin::SpinLock;
use farshore_core::sync::plain::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use farshore_core::word::Slot;
pub(crate) use transfers::Transfer;
use transfers::Transfers;
pub use trouble::Trouble;
use trouble::{LastTrouble, pack, unpack};
pub use watcher::{Change, Line, News, Watcher};

/// Failed writes in a row after which a space is left alone.
pub const WRITE_TRIES: u32 = 3;
/// The same while the space is full and the writes find no room: the extents that no page was ever written to are tried in vain, each once
/// ([`SlotMap::bar`]), before those come for which there is room.
pub const FULL_TRIES: u32 = 64;
/// How long a transfer may take before its space counts as hanging, unless [`Health::set_patience`] says otherwise.
pub const PATIENCE_NS: u64 = 10_000_000_000;
/// Between two trials of a space that fails, at first, and while no other space takes its place.
const TRIAL_EVERY_NS: u64 = 100_000_000;
/// Between two trials at most.
const TRIAL_EVERY_MAX_NS: u64 = 10_000_000_000;

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
    patience_ns: AtomicU64,
    /// A thread is in [`Health::set_allowed`]: evictors and the watcher only, for a moment.
    applying: SpinLock<()>,
    /// Transfers that are under way, and the watcher's sleep.
    transfers: Transfers,
    last_trouble: LastTrouble,
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
        Health {
            spaces: (0..SPACES_MAX).map(space).collect(),
            count: AtomicUsize::new(spaces.clamp(1, SPACES_MAX)),
            patience_ns: AtomicU64::new(PATIENCE_NS),
            applying: SpinLock::new(()),
            transfers: Transfers::new(),
            last_trouble: LastTrouble::default(),
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

    /// The last transfer that went wrong, in any space.
    pub fn last_trouble(&self) -> Option<Trouble> {
        self.last_trouble.get()
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
            IoError::Full if streak >= FULL_TRIES => Writing::Fails,
            IoError::Device(_) | IoError::Short if streak >= WRITE_TRIES => Writing::Fails,
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
}

impl<W: World> Engine<W> {
    /// A transfer of the slots from `slot` on begins on `core`. Ends with [`Engine::transferred`].
    pub(crate) fn transfer(&self, slot: Slot, core: usize) -> Transfer {
        self.health.transfers.begin(&self.futex, slot, self.clock.now_ns(), core)
    }

    /// It has ended.
    pub(crate) fn transferred(&self, transfer: Transfer) {
        self.health.transfers.end(transfer);
    }

    /// A transfer on `core` went wrong: it is counted, and kept as the last. Bytes that were wrong may be had from elsewhere.
    pub(crate) fn note_trouble(&self, core: usize, trouble: Trouble) {
        self.stats.add(core, Count::IoErrors, 1);
        self.health.last_trouble.set(trouble);
        if let Trouble::Checksum(slot) = trouble {
            self.backend.doubt(slot);
        }
    }

    /// A write to `slot` begins.
    pub(crate) fn begin_write(&self, slot: Slot, trial: bool) -> Begun {
        Begun { trial, state: self.slots.space_of(slot).map_or(Writing::Works, |space| self.health.writing(space)) }
    }

    /// It has ended.
    pub(crate) fn note_write(&self, core: usize, slot: Slot, begun: Begun, result: Result<(), IoError>) {
        if let Err(why) = result {
            self.note_trouble(core, Trouble::Write(slot, why));
        }
        let Some(space) = self.slots.space_of(slot) else { return };
        let changed = match result {
            Ok(()) => self.health.wrote(&self.slots, space, begun.trial),
            Err(why) => self.health.failed(&self.slots, space, begun, why, self.clock.now_ns()),
        };
        if result == Err(IoError::Full) {
            self.slots.bar(slot);
        }
        if changed {
            self.wake_watcher();
        }
    }

    /// Evictors run out of what was allocated for them. Wakes the watcher, if one sleeps, which allocates more.
    pub(crate) fn wake_watcher_for_stock(&self) {
        if self.health.transfers.watcher_sleeps() {
            self.wake_watcher();
        }
    }

    /// Wakes the watcher, which looks at the spaces, and whether it is to stop.
    pub fn wake_watcher(&self) {
        self.health.transfers.wake_watcher(&self.futex);
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

#[cfg(test)]
mod tests {
    use super::*;

    const BROKEN: IoError = IoError::Device(5);

    /// Two spaces without an end.
    fn two() -> (Health, SlotMap) {
        let mut slots = SlotMap::new(None);
        slots.set_spaces(&[None, None]);
        (Health::new(2), slots)
    }

    fn fail(health: &Health, slots: &SlotMap, why: IoError, trial: bool) -> bool {
        let begun = Begun { trial, state: health.writing(0) };
        health.failed(slots, 0, begun, why, 0)
    }

    #[test]
    fn writes_that_fail_in_a_row_close_a_space_and_a_trial_opens_it() {
        let (health, slots) = two();
        assert!(!fail(&health, &slots, BROKEN, false) && !fail(&health, &slots, IoError::Short, false));
        assert!(!health.wrote(&slots, 0, false), "one that succeeds between them: they begin anew");
        assert!(!fail(&health, &slots, BROKEN, false) && !fail(&health, &slots, BROKEN, false));
        assert!(health.is_open(0) && fail(&health, &slots, BROKEN, false), "the watcher hears of the third");
        assert!(!health.is_open(0) && health.any_open() && !health.all_work() && health.some_are_closed());
        assert_eq!((health.writing(0), health.errors(0), health.why(0)), (Writing::Fails, 5, BROKEN));
        assert!(slots.reserve_run_in(0, 0, 1).is_some(), "a trial gets a slot all the same");
        assert!(!health.wrote(&slots, 0, false), "a write that was begun before says nothing about now");
        assert!(health.wrote(&slots, 0, true) && health.is_open(0) && health.all_work());
    }

    #[test]
    fn a_space_without_room_stays_open_until_slots_that_it_has_fail_too() {
        let (health, slots) = two();
        for _ in 0..2 * WRITE_TRIES {
            fail(&health, &slots, IoError::Full, true);
        }
        assert_eq!((health.writing(0), health.is_open(0)), (Writing::Full, true), "trials do not count");
        assert!(health.has_other(0) && !health.has_other(1), "it is none that takes the place of another");
        for _ in 1..FULL_TRIES {
            assert!(!fail(&health, &slots, IoError::Full, false), "there may be slots that have room");
        }
        assert!(fail(&health, &slots, IoError::Full, false) && !health.is_open(0));
    }

    #[test]
    fn trials_become_rarer_while_another_space_works() {
        let (health, slots) = two();
        assert_eq!(health.take_trial(u64::MAX / 2), None, "all work");
        (0..WRITE_TRIES).for_each(|_| _ = fail(&health, &slots, BROKEN, false));
        let mut due = TRIAL_EVERY_NS;
        for pause in [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000] {
            assert_eq!((health.take_trial(due - 1), health.take_trial(due), health.take_trial(due)), (None, Some(0), None));
            due += pause * 1_000_000;
        }
        health.set_hangs(&slots, 1, true);
        assert_eq!(health.take_trial(due), Some(0));
        assert_eq!(health.take_trial(due + TRIAL_EVERY_NS), Some(0), "there is no other any more");
    }

    #[test]
    fn a_space_that_hangs_or_drains_gives_out_no_slots() {
        let (health, slots) = two();
        let is_given = || slots.reserve_run(0, 1).and_then(|run| slots.space_of(run.first));
        health.set_hangs(&slots, 0, true);
        assert_eq!((is_given(), health.any_hangs()), (Some(1), true));
        assert!(health.change_usage(&slots, 1, Usage::InUse, Usage::Draining));
        assert!(!health.change_usage(&slots, 1, Usage::InUse, Usage::Draining), "another thread was first");
        assert_eq!((is_given(), health.any_open()), (None, false));
        assert!(health.call_off_drains(&slots) && health.wanted_room(1) && !health.call_off_drains(&slots));
        assert_eq!(is_given(), Some(1));
        health.set_hangs(&slots, 0, false);
        assert!(health.is_open(0) && health.all_that_are(Usage::InUse).iter().eq([0, 1]));
    }

    #[test]
    fn a_number_that_is_used_again_knows_nothing_of_the_space_before() {
        let (health, slots) = two();
        (0..WRITE_TRIES).for_each(|_| _ = fail(&health, &slots, BROKEN, false));
        health.note_drain(0, 10);
        assert_eq!((health.drained_percent(0, 10), health.drained_percent(0, 4), health.drained_percent(0, 11)), (0, 60, 0));
        assert!(health.change_usage(&slots, 0, Usage::InUse, Usage::Absent));
        health.begin(0);
        assert!(health.change_usage(&slots, 0, Usage::Absent, Usage::InUse));
        assert_eq!((health.is_open(0), health.errors(0), health.writing(0)), (true, 0, Writing::Works));
    }
}
