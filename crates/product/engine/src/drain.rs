//! Swap spaces that come and go while the program runs.
//!
//! ```text
//!             ┌────────────── called off, or no room elsewhere ─────────────┐
//!             ▼                                                             │
//!  absent ─▶ in use ─begin_drain─▶ draining ─ no slot of it is in use ─▶ going ─ shut, closed ─▶ absent
//!             ▲                       └─ all but what cannot be read ─▶ left ─┐
//!             └───────────────── take_back ───────────────────────────────────┘
//! ```
//!
//! # A space comes
//!
//! The file of the space is open and known to the backend before any other thread learns of the space. Then the backend is told
//! which extents will lie there, and then the map of slots
//! ([`SlotMap::begin_space`](farshore_core::slots::SlotMap::begin_space)). So a thread that has a slot there can read it.
//!
//! # A space goes
//!
//! 1. The space is closed: none of its slots is given out any more, not even as a trial. Writes that wait for their turn go
//!    elsewhere.
//! 2. The **drainer**, a thread of its own, goes through all managed pages ([`Engine::run_drainer`]), again and again:
//!
//! | the page | what is done |
//! |---|---|
//! | out, with a slot there | the drainer brings it in as for a write, with its neighbours: the slot is free. It is old, and leaves to another space |
//! | clean, with a slot there | the drainer frees the slot: the page is dirty, and protected (no call of the kernel is needed for that) |
//! | in a stage | evictors are asked to give up the stages that they can: then the page is out |
//! | owned by another thread | the drainer comes back to it next time |
//!
//! 3. When no slot there is in use (new ones cannot come: head of the map's `spaces`), evictors are asked once more, so that all
//!    that they had begun has reached the device. The drainer waits for what a pool still copies there. Then the file is closed.
//!
//! Pages that cannot be read stay where they are. If only such pages still lie in the space, the drain ends: the space is *left*,
//! gives out no slots, and the host is told of each of these pages. If an evictor finds no slot in the other spaces, it calls all
//! drains off (`Engine::reserve`): a space too many is better than a program without room.
//!
//! The program goes first: the drainer takes spare frames only, a few pages at a time, and pauses while faults wait for
//! frames.
//!
//! While no space is drained, the thread gives room back ([`crate::giving`]), and looks now and then after spaces that want it
//! ([`Spaces::keep`]).

use crate::Engine;
use crate::evict::pipeline::Evictor;
use crate::fault::resolve::READ_TRIES;
use crate::fault::run::Alike;
use crate::giving::{Giving, Looks};
use crate::health::{Trouble, Usage};
use crate::stats::Count;
use core::sync::atomic::Ordering;
use farshore_core::canary::{Canary, is_planted};
use farshore_core::limits::{EVICTORS_MAX, EXTENT_SLOTS, GRANULE_PAGES};
use farshore_core::page::{Access, Page, PageRange};
use farshore_core::seams::{CopyChange, IoError, PageBuf, Reads, Spaces, World};
use farshore_core::slots::arrangement::{SPACES_MAX, SpaceSet};
use farshore_core::sync::Futex;
use farshore_core::sync::plain::{AtomicBool, AtomicU32};
use farshore_core::table::{GranuleRef, PageRef};
use farshore_core::wait::Event;
use farshore_core::word::{BeginFault, Release, Slot, State, Word};

/// Pages of one read: 64 KiB, behind which a fault's own read does not wait long.
const RUN_MAX: usize = 16;
/// How long to wait for frames, for evictors, and before all pages are looked at once more.
const FRAME_PAUSE_NS: u64 = 5_000_000;
const ANSWER_PAUSE_NS: u64 = 1_000_000;
const PASS_PAUSE_NS: u64 = 20_000_000;

/// What the drainer asks evictors to do: to give up their stages, and to finish the step that they were in.
#[derive(Debug, Default)]
struct Asks {
    asked: AtomicU32,
    answered: [AtomicU32; EVICTORS_MAX],
}

impl Asks {
    /// Asks once more. Returns the number of the question.
    fn ask(&self) -> u32 {
        self.asked.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The number of the last question.
    fn asked(&self) -> u32 {
        self.asked.load(Ordering::Acquire)
    }

    /// Evictor `id` has done what was asked for.
    fn answer(&self, id: usize, asked: u32) {
        // Release: the drainer, which acquires this, sees what was done before.
        self.answered[id].store(asked, Ordering::Release);
    }

    /// Whether evictor `id` has done it.
    fn is_answered(&self, id: usize, asked: u32) -> bool {
        self.answered[id].load(Ordering::Acquire) == asked
    }
}

/// The drainer's thread, as other threads see it.
#[derive(Debug, Default)]
pub(crate) struct Drainer {
    /// There is something to look at.
    news: Event,
    asks: Asks,
    pub(crate) giving: Giving,
}

impl Drainer {
    /// The thread looks at the spaces, and whether it is to stop.
    pub(crate) fn wake(&self, futex: &impl Futex) {
        self.news.signal(futex);
    }
}

impl<W: World> Evictor<'_, W> {
    /// Answers what the drainer has asked since the last answer.
    pub(crate) fn answer_drainer(&mut self) {
        let asks = &self.engine.drainer.asks;
        let asked = asks.asked();
        if asked != self.answered {
            self.make_room(usize::MAX);
            self.answered = asked;
            asks.answer(self.id, asked);
        }
    }
}

/// How a drain ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drained {
    /// The space is empty, and gone.
    Gone,
    /// This many pages cannot be read, the last one for this reason. They stay, and so does the space.
    Unreadable(u64, Trouble),
    /// No other space has room: the space is used again.
    NoRoom,
    /// The drain was called off: the space is used again.
    CalledOff,
}

/// Why a drain cannot begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoDrain {
    /// A drain of the space is under way.
    UnderWay,
    /// No other space is in use.
    Last,
}

/// What the drainer needs of the process that it runs in.
pub trait Host {
    /// Handles requests that have arrived meanwhile. Called between any two steps.
    fn serve(&mut self);
    /// These pages lie in `space`, whose drain ends, and cannot be read.
    fn unreadable(&mut self, space: usize, pages: PageRange);
    /// A drain has ended.
    fn ended(&mut self, space: usize, how: Drained);
    /// Something has happened with a copy of a space that is kept several times.
    fn copy_changed(&mut self, copy: &str, change: CopyChange);
    /// Freed room of `space` cannot be given back, for this reason: it is not tried again.
    fn cannot_give(&mut self, space: usize, why: IoError);
    /// Whether the files of a space may be closed now.
    fn may_close(&mut self) -> bool;
    /// Runs `f` while the process does not fork.
    fn alone(&mut self, f: &mut dyn FnMut());
}

/// One look at all pages.
struct Pass<'p> {
    draining: SpaceSet,
    /// Pages that cannot be read, by space.
    unreadable: [u64; SPACES_MAX],
    /// Why the last of them could not be read.
    why: [Option<Trouble>; SPACES_MAX],
    buffer: &'p mut [PageBuf],
    core: usize,
}

impl<W: World> Engine<W> {
    /// A number for a space that comes; `None`: there are as many as there can be. One thread at a time.
    pub fn free_space(&self) -> Option<usize> {
        (0..SPACES_MAX).find(|&space| space >= self.health.spaces() || self.health.usage(space) == Usage::Absent)
    }

    /// A space of `capacity` slots comes, under a number from [`Engine::free_space`]. The backend knows the space by that number
    /// already. Called by the same thread.
    pub fn add_space(&self, space: usize, capacity: Option<u64>) {
        self.health.begin(space);
        self.slots.begin_space(space, capacity, |first, spaces| self.backend.arrange(first, spaces));
        self.health.change_usage(&self.slots, space, Usage::Absent, Usage::InUse);
        // Evictors that found no room find some now.
        self.evictors.obstacles.note_room();
        self.end_squeeze();
        self.evictors.pace.wake(&self.futex);
        self.budget.came().signal(&self.futex);
    }

    /// `space` is to go away. [`Host::ended`] reports the outcome. One thread at a time.
    ///
    /// # Errors
    /// Why the drain does not begin.
    pub fn begin_drain(&self, space: usize) -> Result<(), NoDrain> {
        if self.health.all_that_are(Usage::InUse).without(space).is_empty() {
            return Err(NoDrain::Last);
        }
        self.health.note_drain(space, self.slots.live_in(space));
        let begun =
            [Usage::InUse, Usage::Left].iter().any(|&from| self.health.change_usage(&self.slots, space, from, Usage::Draining));
        self.drainer.wake(&self.futex);
        if begun { Ok(()) } else { Err(NoDrain::UnderWay) }
    }

    /// A space that is draining, or was, is used again. False: it is too late, or the space is in use anyway.
    pub fn take_back(&self, space: usize) -> bool {
        let back =
            [Usage::Draining, Usage::Left].iter().any(|&from| self.health.change_usage(&self.slots, space, from, Usage::InUse));
        self.drainer.wake(&self.futex);
        self.evictors.pace.wake(&self.futex);
        back
    }

    /// The drainer's thread has something to look at, or must stop.
    pub fn wake_drainer(&self) {
        self.drainer.wake(&self.futex);
    }

    /// The drainer's thread: drains the spaces that are to be drained, and sleeps while there are none, until `stop` (and a
    /// wake). A drain that was begun goes on when this is called again. `buffer`: pages to read into, `core`: where its fetches
    /// count.
    pub fn run_drainer(&self, buffer: &mut [PageBuf], core: usize, stop: &AtomicBool, host: &mut dyn Host) {
        let mut told = SpaceSet::default();
        let mut looks = Looks::default();
        while !stop.load(Ordering::Acquire) {
            let prepared = self.drainer.news.prepare();
            host.serve();
            let draining = self.health.all_that_are(Usage::Draining);
            for space in told.iter().filter(|&space| !draining.contains(space)) {
                self.tell_of_end(space, host);
            }
            told = draining;
            let going = self.health.all_that_are(Usage::Going);
            if draining.is_empty() && going.is_empty() {
                let pause = self.give_room_back(&mut looks, core, stop, host);
                let again = self.keep_pages(core);
                self.backend.news(&mut |copy, change| host.copy_changed(copy, change));
                self.drainer.news.sleep(&self.futex, prepared, pause.into_iter().chain(again).min());
                continue;
            }
            draining.iter().chain(going.iter()).for_each(|space| looks.forget(space));
            let pages = buffer.len().min(RUN_MAX);
            let (unreadable, why) = ([0; SPACES_MAX], [None; SPACES_MAX]);
            let mut pass = Pass { draining, unreadable, why, buffer: &mut buffer[..pages], core };
            self.look_at_all(&mut pass, stop, host);
            self.ask_evictors(stop, host);
            let ended = draining.iter().filter(|&space| self.try_to_end(space, &pass, stop, host)).count();
            going.iter().for_each(|space| self.take_away(space, stop, host));
            if ended == 0 && !stop.load(Ordering::Acquire) {
                self.drainer.news.sleep(&self.futex, prepared, Some(PASS_PAUSE_NS));
            }
        }
    }

    /// Has the backend keep its pages ([`Spaces::keep`]).
    fn keep_pages(&self, core: usize) -> Option<u64> {
        self.without_forks(core, || self.backend.keep(&self.slots))
    }

    /// Runs `f` inside the gate, so that no fork comes between. For the drainer's thread, on its core.
    pub fn without_forks<R>(&self, core: usize, f: impl FnOnce() -> R) -> R {
        self.quiet.gate.enter(&self.futex, core);
        let result = f();
        self.quiet.gate.leave(&self.futex, core);
        result
    }

    /// Waits until all faults have ended that are under way, those that no thread waits for too; others that begin meanwhile wait as for a fork. Under the
    /// address-space lock, as [`Engine::quiesce`].
    pub fn let_faults_end(&self) {
        self.quiet.gate.close(&self.futex);
        self.quiet.gate.open(&self.futex);
    }

    /// Another thread has ended a drain.
    fn tell_of_end(&self, space: usize, host: &mut dyn Host) {
        if self.health.usage(space) == Usage::InUse {
            host.ended(space, if self.health.wanted_room(space) { Drained::NoRoom } else { Drained::CalledOff });
        }
    }

    /// Makes the evictors give up the stages that they can, and end the step that they are in.
    fn ask_evictors(&self, stop: &AtomicBool, host: &mut dyn Host) {
        let (asks, news) = (&self.drainer.asks, &self.drainer.news);
        let asked = asks.ask();
        let answered = |evictor: usize| asks.is_answered(evictor, asked);
        let mut prepared = news.prepare();
        self.evictors.pace.wake_all(&self.futex);
        while !(0..self.quiet.rest.evictors()).all(answered) && !stop.load(Ordering::Acquire) {
            host.serve();
            news.sleep(&self.futex, prepared, Some(ANSWER_PAUSE_NS));
            prepared = news.prepare();
            self.evictors.pace.wake_all(&self.futex);
        }
    }

    /// Ends the drain of a space that is empty, or holds only pages that cannot be read. Whether it has ended.
    fn try_to_end(&self, space: usize, pass: &Pass<'_>, stop: &AtomicBool, host: &mut dyn Host) -> bool {
        if self.slots.is_empty(space) || (is_planted(Canary::Drain) && pass.unreadable[space] == 0) {
            if self.health.change_usage(&self.slots, space, Usage::Draining, Usage::Going) {
                self.take_away(space, stop, host);
            }
            return true;
        }
        let Some(why) = pass.why[space].filter(|_| self.slots.live_in(space) == pass.unreadable[space]) else { return false };
        if self.health.change_usage(&self.slots, space, Usage::Draining, Usage::Left) {
            let told = self.tell_unreadable(space, host);
            host.ended(space, Drained::Unreadable(told, why));
        }
        true
    }

    /// Takes an empty space away, unless the drainer is told to stop first.
    fn take_away(&self, space: usize, stop: &AtomicBool, host: &mut dyn Host) {
        // All transfers that evictors had begun with slots that are free now have then reached the device. Copies that the
        // backend makes by itself are the exception: evictors reap those when they go on.
        self.ask_evictors(stop, host);
        let is_busy = || !self.backend.is_quiet(&|slot| self.slots.space_of(slot) == Some(space));
        while !stop.load(Ordering::Acquire) && (is_busy() || !host.may_close()) {
            let prepared = self.drainer.news.prepare();
            host.serve();
            self.evictors.pace.wake_all(&self.futex);
            self.drainer.news.sleep(&self.futex, prepared, Some(PASS_PAUSE_NS));
        }
        if stop.load(Ordering::Acquire) {
            return;
        }
        self.backend.shut_space(space);
        host.alone(&mut || self.backend.close_space(space));
        let _ = self.slots.end_space(space, |first, spaces| self.backend.arrange(first, spaces));
        self.health.change_usage(&self.slots, space, Usage::Going, Usage::Absent);
        host.ended(space, Drained::Gone);
    }

    /// Reports each page that is in `space` only. Returns how many there are.
    fn tell_unreadable(&self, space: usize, host: &mut dyn Host) -> u64 {
        let (mut told, mut run) = (0, None::<PageRange>);
        for g in self.table.granules().filter(|g| g.granule.touched()) {
            for (page, word) in g.id.range().iter().zip(g.words) {
                if self.slot_in(word.load(), SpaceSet::default().with(space)).is_none() {
                    continue;
                }
                told += 1;
                match &mut run {
                    Some(run) if run.end == page => run.end = page.plus(1),
                    _ => {
                        let next = PageRange { start: page, end: page.plus(1) };
                        run.replace(next).into_iter().for_each(|run| host.unreadable(space, run));
                    }
                }
            }
        }
        run.into_iter().for_each(|run| host.unreadable(space, run));
        told
    }

    /// The slot of a page that has one in one of these spaces.
    fn slot_in(&self, word: Word, spaces: SpaceSet) -> Option<Slot> {
        let slot = word.slot().filter(|_| matches!(word.state(), State::Out | State::Resident))?;
        self.slots.space_of(slot).filter(|&space| spaces.contains(space)).map(|_| slot)
    }

    fn look_at_all(&self, pass: &mut Pass<'_>, stop: &AtomicBool, host: &mut dyn Host) {
        if pass.draining.is_empty() {
            return;
        }
        for g in self.table.granules() {
            if !g.granule.touched() {
                continue;
            }
            let mut next = 0;
            while next < GRANULE_PAGES {
                let word = g.words[next].load();
                let Some(slot) = self.slot_in(word, pass.draining) else {
                    next += 1;
                    continue;
                };
                if stop.load(Ordering::Acquire) {
                    return;
                }
                if word.state() == State::Resident {
                    self.make_dirty(g.id.first().plus(next as u64), pass);
                    next += 1;
                } else {
                    match self.drain_run(&g, next, slot, pass) {
                        Some(count) => next += count,
                        None => self.wait_for_frames(),
                    }
                }
                host.serve();
                // A drain that was called off is left alone at once, and a space that is to go now is not forgotten.
                pass.draining = self.health.all_that_are(Usage::Draining);
                if pass.draining.is_empty() {
                    return;
                }
            }
        }
    }

    fn wait_for_frames(&self) {
        let prepared = self.budget.came().prepare();
        self.evictors.pace.wake(&self.futex);
        self.budget.came().sleep(&self.futex, prepared, Some(FRAME_PAUSE_NS));
    }

    /// Frees the slot of a clean page, which is in memory alone from now on. Its mapping stays protected.
    fn make_dirty(&self, page: Page, pass: &Pass<'_>) {
        self.quiet.gate.enter(&self.futex, pass.core);
        if let Some(at) = self.page(page)
            && let BeginFault::Owned { was } = at.word.begin_fault(Access::Write, true)
        {
            match self.slot_in(was, pass.draining).filter(|_| was.state() == State::Resident) {
                Some(slot) => {
                    self.slots.free(slot);
                    let to = Release::Dirty { chances: was.chances(), guessed: was.guessed(), protected: true };
                    self.release(page, at.word, to);
                }
                None => self.restore(page, at.word, was),
            }
        }
        self.quiet.gate.leave(&self.futex, pass.core);
    }

    /// Brings in page `index` of a granule, which is out, and those behind it whose slots lie behind its own. Returns how many
    /// were looked at; `None`: there is no spare frame.
    fn drain_run(&self, g: &GranuleRef<'_>, index: usize, slot: Slot, pass: &mut Pass<'_>) -> Option<usize> {
        // No fault waits for a frame, and there are frames to spare.
        if self.budget.came().sleepers() > 0 {
            return None;
        }
        let room = (GRANULE_PAGES - index).min(EXTENT_SLOTS - slot.number() as usize % EXTENT_SLOTS).min(pass.buffer.len());
        let is_next = |&n: &usize| {
            let word = g.words[index + n].load();
            word.state() == State::Out && word.slot() == Some(slot.plus(n as u64))
        };
        let wanted = (0..room).take_while(is_next).count().max(1) as u64;
        self.quiet.gate.enter(&self.futex, pass.core);
        let spare = self.frames().take_spare(pass.core, wanted, self.budget.spare_mark());
        if spare > 0 {
            self.nudge_evictors();
        }
        let first = g.id.first().plus(index as u64);
        let taken = (0..spare).take_while(|&n| self.take_beside(first.plus(n), slot.plus(n))).count();
        self.give_frames(pass.core, spare - taken as u64);
        if taken > 0 {
            self.bring(first, slot, taken, pass);
        }
        self.quiet.gate.leave(&self.futex, pass.core);
        // A page that could not be taken belongs to another thread: it is drained next time.
        (spare > 0).then_some(taken.max(1))
    }

    /// Reads and maps pages that the drainer owns, each with its frame.
    fn bring(&self, first: Page, slot: Slot, count: usize, pass: &mut Pass<'_>) {
        let Some(at) = self.page(first) else { unreachable!("{first:?} vanished while it was owned") };
        let mut done = 0;
        let is_right = |slot: Slot, bytes: &PageBuf| is_planted(Canary::Checksum) || self.is_right(slot, bytes);
        if count > 1 && self.read_for_drain(slot, &mut pass.buffer[..count], pass.core).is_ok() {
            let right = (0..count).take_while(|&n| is_right(slot.plus(n as u64), &pass.buffer[n])).count();
            while done < right {
                let (page, from) = (first.plus(done as u64), slot.plus(done as u64));
                match self.map_alike(page, at.granule, from, &pass.buffer[done..right], Alike::Dirty) {
                    0 => break,
                    mapped => done += mapped,
                }
            }
        }
        let alone: usize = (done..count).map(|n| self.bring_one(first.plus(n as u64), at, slot.plus(n as u64), pass)).sum();
        self.stats.add(pass.core, Count::PagesIn, (done + alone) as u64);
        self.list_granule(at.granule, first, pass.core);
    }

    /// Brings in one page, with several tries; returns how many were mapped.
    fn bring_one(&self, page: Page, at: PageRef<'_>, slot: Slot, pass: &mut Pass<'_>) -> usize {
        let mut why = None;
        for _ in 0..READ_TRIES {
            why = match self.read_for_drain(slot, &mut pass.buffer[..1], pass.core) {
                Ok(()) if self.is_right(slot, &pass.buffer[0]) => None,
                Ok(()) => Some(Trouble::Checksum(slot)),
                Err(error) => Some(Trouble::Read(slot, error)),
            };
            let Some(trouble) = why else { break };
            self.note_trouble(pass.core, trouble);
        }
        if let (Some(_), Some(space)) = (why, self.slots.space_of(slot)) {
            pass.unreadable[space] += 1;
            pass.why[space] = why;
        } else if self.map_alike(page, at.granule, slot, &pass.buffer[..1], Alike::Dirty) == 1 {
            return 1;
        }
        self.drop_run(page, pass.core, slot, 1);
        0
    }

    fn read_for_drain(&self, first: Slot, into: &mut [PageBuf], core: usize) -> Result<(), IoError> {
        let transfer = self.transfer(first, core);
        let read = self.backend.read_run(first, into);
        self.transferred(transfer);
        read
    }
}
