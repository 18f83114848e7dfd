//! One evictor (MAGE §4.1, figure 8).
//!
//! ```text
//!  batch n    select ─ protect ─ copy to stages ─ unmap ─▶ frames are free
//!  batch n−1                                    write ⋯⋯⋯⋯⋯⋯▶ acknowledged: the slot has the bytes too
//!  batch n−2                                                        linger ⋯▶ retire: stages are free
//! ```
//!
//! Two TLB flushes a batch and granule (protect, unmap), few large writes a batch, and up to three batches between
//! "unmapped" and "acknowledged". The frames of a batch are free as soon as it is unmapped: the stages hold its bytes.
//!
//! An [`Evictor`] is a state machine that [`Evictor::step`]s; [`Evictor::run`] is the loop of its thread.
//! Everything that it needs is allocated when it is made: evicting allocates nothing (but a descriptor when the swap space grows).

use super::stage::Vacancy;
use crate::Engine;
use crate::traits::{Backend, Clock, IoError, Kernel, PageBuf, Policy, WriteQueue};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use farshore_core::limits::{BATCH_PAGES_MAX, BATCHES_IN_FLIGHT};
use farshore_core::page::{Access, Page};
use farshore_core::slots::Run;
use farshore_core::sync::Futex;
use farshore_core::word::{BeginFault, Release, Slot, Stage, StageStep, Word};

/// Granules that one batch looks at, at most.
const GRANULES_A_BATCH: usize = 64;
/// Writes that one evictor has given to the device at any moment. Few, and none of them long: reads that faults wait for
/// queue behind them in the device (three writes of 1 MiB in flight took a read from 43 µs to up to 2.5 ms).
pub const WRITES_IN_FLIGHT: u32 = 2;
/// Pages of one write, for the same reason.
const PAGES_A_WRITE: usize = 64;
/// Dirty pages of a batch that tries whether a full space has room again …
const TRIAL_PAGES: usize = 8;
/// … and how often that, and a failed write, is tried.
const TRIAL_EVERY_NS: u64 = 100_000_000;
/// How long an evictor that finds nothing to do about a shortage sleeps before it looks again.
const BLOCKED_SLEEP_NS: u64 = 1_000_000;
/// Empty batches in a row after which a waiting fault may give up.
const EMPTY_BATCHES_STARVED: u32 = 64;

/// A page that an evictor has taken.
#[derive(Clone, Copy, Debug)]
pub struct Victim {
    /// The page.
    pub page: Page,
    /// Its word before.
    pub was: Word,
    /// Its bytes are nowhere else.
    pub dirty: bool,
    slot: Option<Slot>,
}

impl Victim {
    pub(super) fn new(page: Page, was: Word) -> Victim {
        Victim { page, was, dirty: was.slot().is_none(), slot: was.slot() }
    }
}

/// What a stage of the ring is waiting for, as its evictor sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StageState {
    Free,
    Writing,
    /// No write in flight, and its slot has the bytes.
    Quiet,
    /// Its write failed.
    Failed,
}

/// What a step came to.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Something was done: step again.
    Worked,
    /// There are enough free frames.
    Idle,
    /// Frames are short and nothing can be done at the moment.
    Blocked,
}

/// One evictor: its ring of stages, its write queue, its batches.
#[derive(Debug)]
pub struct Evictor<Q> {
    id: usize,
    thread: u64,
    queue: Q,
    base: u32,
    tail: u32,
    used: u32,
    states: Box<[StageState]>,
    failed: u32,
    retry_at_ns: u64,
    writes_left: [u32; BATCHES_IN_FLIGHT],
    /// Writes that wait for their turn at the device.
    waiting: VecDeque<Write>,
    started: bool,
    empty_batches: u32,
    next_partition: usize,
    victims: Vec<Victim>,
    pages: Vec<Page>,
    completions: Vec<(u64, Result<(), IoError>)>,
}

/// A write that was not started yet.
#[derive(Clone, Copy, Debug)]
struct Write {
    slot: Slot,
    stage: Stage,
    count: u32,
    batch: usize,
}

/// A write's tag: which batch, first stage, how many.
fn tag(batch: usize, first: Stage, count: u32) -> u64 {
    (batch as u64) << 56 | u64::from(count) << 32 | u64::from(first.0)
}

fn untag(tag: u64) -> (usize, Stage, u32) {
    ((tag >> 56) as usize, Stage(tag as u32), (tag >> 32) as u32 & 0xff_ffff)
}

impl<Q: WriteQueue> Evictor<Q> {
    /// Evictor number `id` of `engine`, to be run on the calling thread or one that says so by [`Evictor::adopt`].
    ///
    /// # Errors
    /// When the backend has no queue for it.
    pub fn new<K, B, P, C, F>(id: usize, engine: &Engine<K, B, P, C, F>) -> Result<Evictor<Q>, IoError>
    where
        K: Kernel,
        B: Backend<Queue = Q>,
        P: Policy,
        C: Clock,
        F: Futex,
    {
        let each = engine.sizes.stages_each;
        let batch = engine.sizes.batch;
        Ok(Evictor {
            id,
            thread: engine.kernel.current_thread(),
            queue: engine.backend.queue(WRITES_IN_FLIGHT)?,
            base: (id * each) as u32,
            tail: 0,
            used: 0,
            states: alloc::vec![StageState::Free; each].into_boxed_slice(),
            failed: 0,
            retry_at_ns: 0,
            writes_left: [0; BATCHES_IN_FLIGHT],
            // At worst every page of every batch is a write of its own.
            waiting: VecDeque::with_capacity(BATCHES_IN_FLIGHT * BATCH_PAGES_MAX),
            started: false,
            empty_batches: 0,
            next_partition: id,
            victims: Vec::with_capacity(batch),
            pages: Vec::with_capacity(batch),
            completions: Vec::with_capacity(WRITES_IN_FLIGHT as usize),
        })
    }

    /// The calling thread is the evictor's from now on.
    pub fn adopt<K: Kernel>(&mut self, kernel: &K) {
        self.thread = kernel.current_thread();
    }

    /// The evictor thread: steps, and sleeps while there is nothing to do, until `stop`.
    pub fn run<K, B, P, C, F>(&mut self, engine: &Engine<K, B, P, C, F>, stop: &AtomicBool)
    where
        K: Kernel,
        B: Backend<Queue = Q>,
        P: Policy,
        C: Clock,
        F: Futex,
    {
        self.adopt(&engine.kernel);
        while !stop.load(Ordering::Acquire) {
            let prepared = engine.work.prepare();
            match self.step(engine) {
                Progress::Worked => {}
                Progress::Idle if self.queue.in_flight() > 0 => self.reap(engine, true),
                Progress::Idle if self.failed > 0 => engine.work.sleep(&engine.futex, prepared, Some(TRIAL_EVERY_NS)),
                Progress::Idle => engine.work.sleep(&engine.futex, prepared, None),
                Progress::Blocked => engine.work.sleep(&engine.futex, prepared, Some(BLOCKED_SLEEP_NS)),
            }
        }
    }

    /// One step: completions, then a batch if frames are short.
    pub fn step<K, B, P, C, F>(&mut self, engine: &Engine<K, B, P, C, F>) -> Progress
    where
        K: Kernel,
        B: Backend<Queue = Q>,
        P: Policy,
        C: Clock,
        F: Futex,
    {
        self.reap(engine, false);
        if self.failed > 0 {
            self.mend_failed(engine);
        }
        self.started = engine.wants_eviction(self.started);
        if !self.started {
            return Progress::Idle;
        }
        let batch = engine.sizes.batch;
        let room = self.make_room(engine, batch);
        let slot_of_batch = self.writes_left.iter().position(|&left| left == 0);
        // A small batch pays the same TLB flushes as a full one: rather wait for a write.
        let too_small = room < batch.div_ceil(2);
        match slot_of_batch {
            Some(slot) if !too_small || (room > 0 && self.queue.in_flight() == 0) => {
                if self.evict_batch(engine, slot, room) > 0 {
                    self.empty_batches = 0;
                    engine.starved.store(false, Ordering::Relaxed);
                    return Progress::Worked;
                }
                self.empty_batches = self.empty_batches.saturating_add(1);
            }
            _ if self.queue.in_flight() > 0 => {
                self.reap(engine, true);
                return Progress::Worked;
            }
            _ => self.empty_batches = self.empty_batches.saturating_add(1),
        }
        if self.empty_batches >= EMPTY_BATCHES_STARVED {
            engine.starved.store(true, Ordering::Relaxed);
        }
        Progress::Blocked
    }

    fn stage_at(&self, position: u32) -> Stage {
        Stage(self.base + position % self.states.len() as u32)
    }

    fn state_mut(&mut self, stage: Stage) -> &mut StageState {
        &mut self.states[(stage.0 - self.base) as usize]
    }

    /// Selects, copies and unmaps one batch of at most `room` pages, and starts its writes. How many pages left.
    fn evict_batch<K, B, P, C, F>(&mut self, engine: &Engine<K, B, P, C, F>, batch: usize, room: usize) -> usize
    where
        K: Kernel,
        B: Backend<Queue = Q>,
        P: Policy,
        C: Clock,
        F: Futex,
    {
        self.select_batch(engine, room);
        self.copy_to_stages(engine);
        self.give_slots(engine);
        self.unmap(engine);
        let count = self.victims.len();
        if count == 0 {
            return 0;
        }
        if engine.kernel.current_thread() != self.thread {
            engine.stats.synchronous.fetch_add(count as u64, Ordering::Relaxed);
        }
        for (i, victim) in self.victims.iter().enumerate() {
            let stage = Stage(self.base + (self.tail + self.used + i as u32) % self.states.len() as u32);
            engine.stages.hold(stage, victim.page, victim.slot);
            if let (true, Some(slot)) = (victim.dirty, victim.slot) {
                engine.slots.set_sum(slot, Engine::<K, B, P, C, F>::checksum(slot, engine.stages.bytes(stage)));
            }
            self.states[(stage.0 - self.base) as usize] = if victim.dirty { StageState::Writing } else { StageState::Quiet };
            let Some(at) = engine.page(victim.page) else { unreachable!("{:?} vanished while it was owned", victim.page) };
            if !victim.dirty {
                engine.learn_write(at.granule, false);
            }
            engine.release(victim.page, at.word, Release::Leaving { stage, written: !victim.dirty });
        }
        let first = self.tail + self.used;
        self.used += count as u32;
        engine.give_frames(count as u64);
        let clean = self.victims.iter().filter(|v| !v.dirty).count();
        engine.stats.evicted.fetch_add(count as u64, Ordering::Relaxed);
        engine.stats.evicted_clean.fetch_add(clean as u64, Ordering::Relaxed);
        engine.stats.batches.fetch_add(1, Ordering::Relaxed);
        self.start_writes(engine, batch, first, count - clean);
        count
    }

    /// Fills `self.victims` from the partitions, starting at the next in turn (MAGE §4.2.2). Dirty ones come first.
    fn select_batch<K, B, P, C, F>(&mut self, engine: &Engine<K, B, P, C, F>, room: usize)
    where
        K: Kernel,
        B: Backend<Queue = Q>,
        P: Policy,
        C: Clock,
        F: Futex,
    {
        self.victims.clear();
        let dirty_max = self.dirty_allowed(engine);
        let partitions = engine.partitions.len();
        for turn in 0..partitions {
            let Some(walk) = engine.partitions[(self.next_partition + turn) % partitions].walk(&engine.table) else { continue };
            for _ in 0..GRANULES_A_BATCH {
                let Some((g, from)) = walk.hand() else { break };
                let look = engine.select(&g, from, room, dirty_max, &mut self.victims);
                if look.next < farshore_core::limits::GRANULE_PAGES {
                    walk.stay_at(look.next);
                    break;
                }
                if !look.populated && from == 0 {
                    walk.unlist();
                } else if !walk.advance() && self.victims.is_empty() {
                    // The only granule of the list: a second pass finds the pages that just lost their youth.
                    continue;
                }
                if self.victims.len() >= room {
                    break;
                }
            }
            drop(walk);
            if !self.victims.is_empty() {
                break;
            }
        }
        self.next_partition = (self.next_partition + 1) % partitions;
        self.victims.sort_unstable_by_key(|v| (!v.dirty, v.page));
    }

    /// Dirty pages that this batch may take: all, unless the space is full.
    fn dirty_allowed<K, B, P, C, F>(&mut self, engine: &Engine<K, B, P, C, F>) -> usize
    where
        K: Kernel,
        B: Backend<Queue = Q>,
        P: Policy,
        C: Clock,
        F: Futex,
    {
        if !engine.space_full.load(Ordering::Relaxed) {
            return usize::MAX;
        }
        let now = engine.clock.now_ns();
        if now < self.retry_at_ns {
            return 0;
        }
        self.retry_at_ns = now + TRIAL_EVERY_NS;
        TRIAL_PAGES
    }

    /// Copies the victims' bytes into the next stages; those that cannot be read are put back.
    fn copy_to_stages<K, B, P, C, F>(&mut self, engine: &Engine<K, B, P, C, F>)
    where
        K: Kernel,
        B: Backend<Queue = Q>,
        P: Policy,
        C: Clock,
        F: Futex,
    {
        let (base, len) = (self.base, self.states.len() as u32);
        let mut position = self.tail + self.used;
        self.victims.retain(|victim| {
            let stage = Stage(base + position % len);
            let readable = engine.page(victim.page).is_some_and(|at| at.granule.unreadable.load(Ordering::SeqCst) == 0);
            // SAFETY: `make_room` left at least as many free stages from this position on as there are victims,
            // and the ring is this evictor's.
            let bytes = unsafe { engine.stages.bytes_mut(stage) };
            let copied = engine.kernel.copy_out(victim.page, bytes, readable).is_ok();
            if copied {
                position += 1;
            } else {
                engine.put_back(victim);
            }
            copied
        });
    }

    /// Gives each dirty victim a slot, side by side; those for which there is none are put back.
    fn give_slots<K, B, P, C, F>(&mut self, engine: &Engine<K, B, P, C, F>)
    where
        K: Kernel,
        B: Backend<Queue = Q>,
        P: Policy,
        C: Clock,
        F: Futex,
    {
        let dirty = self.victims.iter().filter(|v| v.dirty).count();
        let mut given = 0;
        while given < dirty {
            let Some(Run { first, len }) = engine.slots.reserve_run((dirty - given) as u32) else { break };
            for i in 0..u64::from(len) {
                self.victims[given].slot = Some(first.plus(i));
                given += 1;
            }
        }
        if given < dirty {
            engine.space_full.store(true, Ordering::Relaxed);
            // Their stages lie between those of the victims that stay, so the clean ones go back too.
            for victim in self.victims.drain(given..) {
                engine.put_back(&victim);
            }
        }
    }

    /// Unmaps the victims with one TLB flush. What the kernel refuses is put back.
    fn unmap<K, B, P, C, F>(&mut self, engine: &Engine<K, B, P, C, F>)
    where
        K: Kernel,
        B: Backend<Queue = Q>,
        P: Policy,
        C: Clock,
        F: Futex,
    {
        self.pages.clear();
        self.pages.extend(self.victims.iter().map(|v| v.page));
        if let Err((done, _)) = engine.kernel.unmap(&self.pages) {
            for victim in self.victims.drain(done..) {
                if let (true, Some(slot)) = (victim.dirty, victim.slot) {
                    engine.slots.free(slot);
                }
                engine.put_back(&victim);
            }
        }
    }

    /// Starts the writes of the first `dirty` victims, whose stages begin at ring position `first`.
    fn start_writes<K, B, P, C, F>(&mut self, engine: &Engine<K, B, P, C, F>, batch: usize, first: u32, dirty: usize)
    where
        K: Kernel,
        B: Backend<Queue = Q>,
        P: Policy,
        C: Clock,
        F: Futex,
    {
        let mut i = 0;
        while i < dirty {
            let Some(slot) = self.victims[i].slot else { unreachable!("a dirty victim was given no slot") };
            let stage = self.stage_at(first + i as u32);
            let to_wrap = (self.states.len() as u32 - (stage.0 - self.base)) as usize;
            let same_extent = farshore_core::limits::EXTENT_SLOTS - slot.number() as usize % farshore_core::limits::EXTENT_SLOTS;
            let count = (1..(dirty - i).min(to_wrap).min(same_extent).min(PAGES_A_WRITE))
                .take_while(|&n| self.victims[i + n].slot == Some(slot.plus(n as u64)))
                .count()
                + 1;
            self.start_write(engine, batch, slot, stage, count as u32);
            i += count;
        }
        self.reap(engine, false);
    }

    /// Puts a write in line. Its stages are in state Writing from before this until its completion.
    fn start_write<K, B, P, C, F>(&mut self, engine: &Engine<K, B, P, C, F>, batch: usize, slot: Slot, stage: Stage, count: u32)
    where
        K: Kernel,
        B: Backend<Queue = Q>,
        P: Policy,
        C: Clock,
        F: Futex,
    {
        self.writes_left[batch] += 1;
        self.waiting.push_back(Write { slot, stage, count, batch });
        self.pump(engine);
    }

    /// Gives the device as many of the waiting writes as it may have. How many it gave.
    fn pump<K, B, P, C, F>(&mut self, engine: &Engine<K, B, P, C, F>) -> u32
    where
        K: Kernel,
        B: Backend<Queue = Q>,
        P: Policy,
        C: Clock,
        F: Futex,
    {
        let mut given = 0;
        while let Some(&Write { slot, stage, count, batch }) = self.waiting.front() {
            let memory: *const PageBuf = engine.stages.memory(stage);
            // SAFETY: the stages from `stage` on are in state Writing, so this evictor, the only one who reuses
            // them, leaves their bytes alone until the completion.
            if unsafe { self.queue.start_write(slot, memory, count, tag(batch, stage, count)) }.is_err() {
                break;
            }
            self.waiting.pop_front();
            given += 1;
        }
        given
    }

    /// Takes completions: the stages' slots hold their bytes now.
    fn reap<K, B, P, C, F>(&mut self, engine: &Engine<K, B, P, C, F>, wait: bool)
    where
        K: Kernel,
        B: Backend<Queue = Q>,
        P: Policy,
        C: Clock,
        F: Futex,
    {
        self.pump(engine);
        if self.queue.in_flight() == 0 {
            return;
        }
        let completions = &mut self.completions;
        self.queue.reap(wait, &mut |tag, result| completions.push((tag, result)));
        // The next ones go to the device before we look at what these were.
        while self.pump(engine) > 0 {
            let completions = &mut self.completions;
            self.queue.reap(false, &mut |tag, result| completions.push((tag, result)));
        }
        while let Some((tag, result)) = self.completions.pop() {
            let (batch, first, count) = untag(tag);
            self.writes_left[batch] -= 1;
            for i in 0..count {
                let stage = Stage(first.0 + i);
                match result {
                    Ok(()) => {
                        *self.state_mut(stage) = StageState::Quiet;
                        let _ = engine.stage_is_written(stage);
                    }
                    Err(_) => {
                        *self.state_mut(stage) = StageState::Failed;
                        self.failed += 1;
                    }
                }
            }
            match result {
                Ok(()) => {
                    engine.stats.pages_out.fetch_add(u64::from(count), Ordering::Relaxed);
                    engine.space_full.store(false, Ordering::Relaxed);
                }
                Err(why) => {
                    engine.stats.io_errors.fetch_add(1, Ordering::Relaxed);
                    if why == IoError::Full {
                        engine.space_full.store(true, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    /// Reaps what is done and frees every stage that can be. Whether all are: then nothing of this evictor is in
    /// flight, and each slot in use is named by a page word.
    pub fn settle<K, B, P, C, F>(&mut self, engine: &Engine<K, B, P, C, F>) -> bool
    where
        K: Kernel,
        B: Backend<Queue = Q>,
        P: Policy,
        C: Clock,
        F: Futex,
    {
        self.reap(engine, false);
        if self.failed > 0 {
            self.mend_failed(engine);
        }
        self.make_room(engine, self.states.len());
        self.used == 0
    }

    /// Frees the oldest stages until `want` are free. How many are.
    fn make_room<K, B, P, C, F>(&mut self, engine: &Engine<K, B, P, C, F>, want: usize) -> usize
    where
        K: Kernel,
        B: Backend<Queue = Q>,
        P: Policy,
        C: Clock,
        F: Futex,
    {
        let len = self.states.len() as u32;
        while ((len - self.used) as usize) < want {
            let stage = self.stage_at(self.tail);
            let quiet = *self.state_mut(stage) == StageState::Quiet || cfg!(feature = "canary-written");
            if !quiet || !engine.retire(stage) {
                break;
            }
            *self.state_mut(stage) = StageState::Free;
            self.tail = (self.tail + 1) % len;
            self.used -= 1;
        }
        ((len - self.used) as usize).min(want)
    }

    /// Pages whose write failed: back into the program's memory if there is a frame, else another try elsewhere.
    fn mend_failed<K, B, P, C, F>(&mut self, engine: &Engine<K, B, P, C, F>)
    where
        K: Kernel,
        B: Backend<Queue = Q>,
        P: Policy,
        C: Clock,
        F: Futex,
    {
        let now = engine.clock.now_ns();
        let retry = now >= self.retry_at_ns;
        for i in 0..self.states.len() as u32 {
            if self.failed == 0 {
                return;
            }
            let stage = Stage(self.base + i);
            if *self.state_mut(stage) != StageState::Failed {
                continue;
            }
            if engine.bring_back(stage, self.id) {
                *self.state_mut(stage) = StageState::Quiet;
                self.failed -= 1;
            } else if retry && let Some(batch) = self.writes_left.iter().position(|&left| left == 0) {
                self.write_elsewhere(engine, batch, stage);
            }
        }
        if retry {
            self.retry_at_ns = now + TRIAL_EVERY_NS;
        }
    }

    fn write_elsewhere<K, B, P, C, F>(&mut self, engine: &Engine<K, B, P, C, F>, batch: usize, stage: Stage)
    where
        K: Kernel,
        B: Backend<Queue = Q>,
        P: Policy,
        C: Clock,
        F: Futex,
    {
        let old = engine.stages.slot(stage);
        // A new slot first, so that it is another one; without room the old one is tried again.
        let slot = match (engine.slots.reserve_run(1), old) {
            (Some(run), _) => run.first,
            (None, Some(old)) => old,
            (None, None) => return,
        };
        engine.slots.set_sum(slot, Engine::<K, B, P, C, F>::checksum(slot, engine.stages.bytes(stage)));
        engine.stages.set_slot(stage, Some(slot));
        if let Some(old) = old.filter(|&old| old != slot) {
            engine.slots.free(old);
        }
        *self.state_mut(stage) = StageState::Writing;
        self.failed -= 1;
        self.start_write(engine, batch, slot, stage, 1);
    }
}

impl<K: Kernel, B: Backend, P: Policy, C: Clock, F: Futex> Engine<K, B, P, C, F> {
    fn stage_is_written(&self, stage: Stage) -> StageStep {
        match self.table.word_for_unpin(self.stages.page(stage)) {
            Some(word) => word.stage_written(stage),
            None => StageStep::Gone,
        }
    }

    /// The stage's evictor needs it: its page is in its slot only from now on, unless somebody took it out
    /// before. False while that somebody is not done with the bytes.
    fn retire(&self, stage: Stage) -> bool {
        let Some(slot) = self.stages.slot(stage) else { unreachable!("{stage:?} is quiet without a slot") };
        let Some(word) = self.table.word_for_unpin(self.stages.page(stage)) else { unreachable!("{stage:?} has no page") };
        // Once more: the page may have been put back into the stage (a fault that was not mapped) since the completion.
        if word.stage_written(stage) == StageStep::Held {
            return cfg!(feature = "canary-held");
        }
        self.kernel.interleave();
        match word.retire_stage(stage, slot) {
            StageStep::Done => true,
            StageStep::Held => false,
            StageStep::Gone => match self.stages.vacancy(stage) {
                Vacancy::Held => false,
                Vacancy::SlotKept => true,
                Vacancy::SlotFree => {
                    self.slots.free(slot);
                    true
                }
            },
        }
    }

    /// Maps the page of a stage whose write failed again. True when the stage's bytes are needed no more.
    fn bring_back(&self, stage: Stage, core: usize) -> bool {
        let page = self.stages.page(stage);
        if self.stages.vacancy(stage) != Vacancy::Held {
            return true;
        }
        let Some(at) = self.page(page) else { return false };
        if at.word.load().stage() != Some(stage) || !self.frames.take(core) {
            return false;
        }
        match at.word.begin_fault(Access::Write, false) {
            BeginFault::Owned { was } if was.stage() == Some(stage) => {
                if self.kernel.map(page, self.stages.bytes(stage), crate::traits::Protect::Writable).is_ok() {
                    self.stages.vacate(stage, false);
                    // Whether an evictor protected it meanwhile is not worth finding out.
                    self.release(page, at.word, Release::Dirty { young: true, guessed: false, protected: true });
                    self.list_granule(at.granule, page, core);
                    return true;
                }
                self.restore(page, at.word, was);
            }
            BeginFault::Owned { was } => self.restore(page, at.word, was),
            _ => {}
        }
        self.give_frames(1);
        false
    }
}
