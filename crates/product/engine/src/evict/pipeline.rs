//! One evictor (MAGE §4.1, figure 8).
//!
//! ```text
//!  batch n    select ─ protect ─ copy to stages ─ unmap ─▶ frames are free
//!  batch n−1                                    write ⋯⋯⋯⋯⋯⋯▶ acknowledged: the slot has the bytes too
//!  batch n−2                                                        linger ⋯▶ retire: stages are free
//! ```
//!
//! An evictor needs two TLB flushes a batch and granule (protect, unmap), a few large writes a batch, and up to three
//! batches between "unmapped" and "acknowledged". The frames of a batch are free as soon as the batch is unmapped: the
//! stages hold its bytes.
//!
//! An [`Evictor`] is a state machine that [`Evictor::step`]s; [`Evictor::run`] is the loop of its thread. All its memory is
//! allocated when it is made: evicting allocates nothing (except a descriptor when the swap space grows).

use super::control::Floors;
use super::headroom::Following;
use super::partition::Turns;
use super::ring::{Ring, StageState};
use super::stage::Vacancy;
use super::writes::{Flight, RETRIES, Write};
use crate::Engine;
use crate::fault::guess::learn_write;
use crate::stats::Count;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use farshore_attach::Kind;
use farshore_core::canary::{Canary, is_planted};
use farshore_core::limits::{BATCHES_IN_FLIGHT, EXTENT_SLOTS, WRITES_MAX};
use farshore_core::page::{Access, Page};
use farshore_core::seams::{Backend, Clock, IoError, Kernel, MemoryBudget, World, WriteQueue};
use farshore_core::slots::Run;
use farshore_core::slots::arrangement::SPACES_MAX;
use farshore_core::sync::plain::AtomicBool;
use farshore_core::word::{BeginFault, Release, Slot, Stage, StageStep, Word};

/// Pages of one write, where an experiment leaves none out. Few writes are with the device at any moment, and none is long, because reads that faults wait for
/// queue behind them (three writes of 1 MiB in flight took a read from 43 µs to up to 2.5 ms).
const PAGES_A_WRITE: usize = 64;
/// Spaces that may come while the program runs, without a queue becoming too short when some of them hang.
const SPACES_EXPECTED: usize = 8;
/// Dirty pages of a batch that tries whether there is room again, or whether a space that failed works …
pub(super) const TRIAL_PAGES: usize = 8;
/// … and how often that is tried, and a write that no space takes.
pub(super) const TRIAL_EVERY_NS: u64 = 100_000_000;
/// How long an evictor waits for a write before it checks whether its space hangs.
const WRITE_WAIT_NS: u64 = 20_000_000;
/// The same while there is nothing else to do.
const IDLE_WAIT_NS: u64 = 1_000_000;
/// How long an evictor that finds nothing to do about a shortage sleeps before it looks again.
const BLOCKED_SLEEP_NS: u64 = 1_000_000;
/// How often an evictor without work looks after a space that keeps pages in RAM.
const TEND_EVERY_NS: u64 = 250_000_000;
/// Empty batches in a row after which a waiting fault may give up.
const EMPTY_BATCHES_STARVED: u32 = 64;

/// Stages that dirty pages leave free, of a ring whose batches are so large. A write that fails keeps its stages until the page has
/// a frame again or a space takes it. If such pages could have the whole ring, no clean page could leave either, though it needs
/// no room in swap space, and its stage for a moment only: a full disk would end a program whose pages have copies.
fn clean_stages(batch: usize) -> usize {
    (batch / 4).clamp(1, TRIAL_PAGES)
}

/// A page that an evictor has taken.
#[derive(Clone, Copy, Debug)]
pub struct Victim {
    /// The page.
    pub page: Page,
    /// Its word before it was taken.
    pub was: Word,
    /// The page's bytes are nowhere else.
    pub dirty: bool,
    slot: Option<Slot>,
}

impl Victim {
    pub(super) fn new(page: Page, was: Word) -> Victim {
        Victim { page, was, dirty: was.slot().is_none(), slot: was.slot() }
    }

    /// The slot of a clean page, unless that is a page of a mapped file.
    fn own_slot(&self) -> Option<Slot> {
        self.slot.filter(|slot| !self.dirty && !slot.is_of_file())
    }
}

/// The outcome of a step.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Something was done: step again.
    Worked,
    /// There are enough free frames.
    Idle,
    /// Frames are short, and the evictor can do nothing at the moment.
    Blocked,
}

/// One evictor: its ring of stages, its write queue, its batches.
pub struct Evictor<'e, W: World> {
    pub(crate) engine: &'e Engine<W>,
    pub(crate) id: usize,
    thread: u64,
    pub(super) queue: <W::Backend as Backend>::Queue,
    pub(super) ring: Ring,
    pub(super) following: Following,
    /// Stages in state Failed.
    pub(super) failed: u32,
    pub(super) retry_at_ns: u64,
    /// Writes that have not ended, by batch; the last number is for pages that are written once more.
    pub(super) writes_left: [u32; BATCHES_IN_FLIGHT + 1],
    /// Writes that wait for their turn at the device.
    pub(super) waiting: VecDeque<Write>,
    /// Writes that the device has.
    pub(super) flights: Vec<Flight>,
    /// The shortest times that writes took of late.
    pub(super) floors: Floors,
    /// Batches that it may have under way, and pages that a write may have.
    batches_most: usize,
    pub(super) pages_a_write: usize,
    /// The most batches that it ever had under way.
    batches_peak: u32,
    started: bool,
    /// Only the stages are left that are for clean pages ([`clean_stages`]).
    pub(super) clean_only: bool,
    /// Whether the evictor is awake, as it was when this step began.
    awake: bool,
    /// The evictor has no thread.
    parked: bool,
    /// Pages evicted since the evictor had its turn.
    pub(super) turn: usize,
    /// The last question of the drainer that the evictor has answered.
    pub(crate) answered: u32,
    pub(super) empty_batches: u32,
    /// The core whose pages the last batch has taken, if this evictor looks after that core: the pages' slots come from there.
    pub(super) core: usize,
    pub(super) turns: Turns,
    /// What the share of the backward hand has come to ([`super::hands`]).
    pub(super) credit: u32,
    /// Of the victims, how many each hand has found.
    pub(super) found: [usize; 2],
    pub(super) victims: Vec<Victim>,
    /// The stages that the victims go to.
    places: Vec<Stage>,
    /// Slots in which this batch tries whether a space works.
    trial: Option<Run>,
    pages: Vec<Page>,
    pub(super) completions: Vec<(u64, Result<(), IoError>)>,
}

impl<W: World> core::fmt::Debug for Evictor<'_, W> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Evictor").field("id", &self.id).field("failed", &self.failed).finish_non_exhaustive()
    }
}

impl<'e, W: World> Evictor<'e, W> {
    /// Evictor number `id` of `engine`, to be run on the calling thread or on one that calls [`Evictor::adopt`].
    ///
    /// # Errors
    /// When the backend has no queue for the evictor.
    pub fn new(id: usize, engine: &'e Engine<W>) -> Result<Self, IoError> {
        let each = engine.sizes().stages_each;
        let batch = engine.sizes().batch;
        // Writes to a space that hangs must not keep other spaces from theirs.
        let depth = WRITES_MAX * engine.health.spaces().max(SPACES_EXPECTED) as u32;
        let queue = engine.backend.queue(depth)?;
        engine.quiet.rest.add_evictor();
        // A space that keeps pages in RAM may have come with the queue.
        engine.divide_limit();
        Ok(Evictor {
            engine,
            id,
            thread: engine.kernel.current_thread(),
            queue,
            ring: Ring::new((id * each) as u32, each),
            following: Following::new(each as u32),
            failed: 0,
            retry_at_ns: 0,
            writes_left: [0; BATCHES_IN_FLIGHT + 1],
            // In the worst case every page of every batch is a write of its own, and so are pages that are written once
            // more.
            waiting: VecDeque::with_capacity(BATCHES_IN_FLIGHT * batch + RETRIES),
            flights: Vec::with_capacity(depth as usize),
            floors: Floors::new(SPACES_MAX),
            batches_most: if engine.ablated.pipeline { 1 } else { BATCHES_IN_FLIGHT },
            pages_a_write: if engine.ablated.write_runs { 1 } else { PAGES_A_WRITE },
            batches_peak: 0,
            started: false,
            clean_only: false,
            awake: true,
            parked: false,
            turn: 0,
            turns: Turns::new(engine.evictors.lists.all().len()),
            credit: 0,
            found: [0; 2],
            answered: 0,
            empty_batches: 0,
            core: id,
            victims: Vec::with_capacity(batch),
            places: Vec::with_capacity(batch),
            trial: None,
            pages: Vec::with_capacity(batch),
            completions: Vec::with_capacity(depth as usize),
        })
    }

    /// Its number.
    pub fn id(&self) -> usize {
        self.id
    }

    /// The calling thread is the evictor's from now on.
    pub fn adopt(&mut self) {
        self.thread = self.engine.kernel.current_thread();
    }

    /// The evictor has no thread until [`Evictor::run`], so a fork does not wait for it. It may have nothing under way.
    pub fn park(&mut self) {
        if !core::mem::replace(&mut self.parked, true) {
            self.engine.quiet.rest.park(&self.engine.futex);
        }
    }

    /// The evictor thread: steps, and sleeps while there is nothing to do, until `stop` (and a wake). Then it ends what it has
    /// begun and is parked: another thread may run the evictor later, and pages in its stages can be rescued meanwhile.
    pub fn run(&mut self, stop: &AtomicBool) {
        let engine = self.engine;
        self.adopt();
        if core::mem::replace(&mut self.parked, false) {
            engine.quiet.rest.unpark();
        }
        self.run_until(stop);
        self.end_writes();
        self.park();
    }

    fn run_until(&mut self, stop: &AtomicBool) {
        let engine = self.engine;
        while !stop.load(Ordering::Acquire) {
            let prepared = engine.evictors.pace.prepare();
            if engine.quiet.rest.is_wanted() {
                self.rest();
                continue;
            }
            self.awake = engine.evictors.pace.is_awake(self.id);
            let began = engine.clock.now_ns();
            let progress = self.step();
            self.note_step(began, progress);
            let sleep = |limit: Option<u64>| engine.evictors.pace.sleep(&engine.futex, prepared, self.awake, limit);
            match progress {
                Progress::Worked if engine.evictors.pace.steps_aside() => engine.kernel.step_aside(),
                Progress::Worked => {}
                Progress::Idle if self.has_live() => self.reap_within(IDLE_WAIT_NS),
                Progress::Idle if self.failed > 0 || self.queue.in_flight() > 0 => sleep(Some(TRIAL_EVERY_NS)),
                // A thread had a page in its hands that was to leave its stage.
                Progress::Idle if engine.ablated.rescue && !self.ring.is_empty() => sleep(Some(IDLE_WAIT_NS)),
                // Nothing tells a space that keeps pages in RAM when the program gives pages up, so the evictor looks
                // after it now and then.
                Progress::Idle if self.awake && engine.backend.own_memory().is_some_and(|bytes| bytes > 0) => {
                    sleep(Some(TEND_EVERY_NS))
                }
                Progress::Idle => sleep(None),
                Progress::Blocked => sleep(Some(BLOCKED_SLEEP_NS)),
            }
        }
    }

    /// One step: completions, then a batch if frames are short.
    pub fn step(&mut self) -> Progress {
        let engine = self.engine;
        self.reap(false);
        if self.failed > 0 {
            self.mend_failed();
        }
        self.free_strays();
        self.end_lingering();
        self.answer_drainer();
        self.tend();
        if let Some(progress) = self.follow_headroom() {
            return progress;
        }
        let before = self.started;
        self.started = self.awake && engine.is_short_for_evictors(before);
        if self.started && !before {
            engine.note_begin();
        }
        let wished = self.awake && engine.wishes.any_leave();
        if self.started {
            // Frames are short, so nearly all hold a page. (A clean page counts twice, by its slot too.)
            engine.stats.note_used(self.core, engine.slots.live() + engine.frames().limit());
        } else if !wished {
            return Progress::Idle;
        }
        // A ring that is still to grow has no room for a whole one.
        let batch = engine.evictors.pace.batch().min(self.ring.len() as usize / 2);
        let reserve = clean_stages(batch);
        let room = self.make_room(batch + reserve).saturating_sub(reserve);
        // Pages that no space takes keep their stages until there is a frame for them, and clean pages give frames.
        self.clean_only = self.started && room == 0 && (self.failed > 0 || self.ring.has_strays());
        let room = if self.clean_only { self.ring.room().min(reserve) } else { room };
        let wished = wished && !self.clean_only;
        let slot_of_batch = (0..self.batches_most).find(|&batch| self.is_over(batch));
        // A small batch pays the same TLB flushes as a full one: waiting for a write is better.
        let too_small = room < batch.div_ceil(2);
        match slot_of_batch {
            Some(slot) if !too_small || (room > 0 && (self.clean_only || !self.has_live())) => {
                // A policy may wish faster than an evictor looks. Wishes of which nothing comes do not keep frames from faults, so
                // where frames are short the evictor chooses for itself in the same step.
                let left = if wished { self.evict_wished(slot, room) } else { 0 };
                if left > 0 || (self.started && self.evict_batch(slot, room, false) > 0) {
                    self.empty_batches = 0;
                    engine.evictors.obstacles.note_something();
                    return Progress::Worked;
                }
                if wished {
                    // Wishes about pages that do not leave are over now, too.
                    return Progress::Worked;
                }
                // Nothing can leave now, but a write that is under way may change that. Such a batch does not count.
                if self.has_live() {
                    self.reap_within(BLOCKED_SLEEP_NS);
                    return Progress::Worked;
                }
                self.empty_batches = self.empty_batches.saturating_add(1);
            }
            _ if self.has_live() => {
                engine.evictors.pace.note_stall();
                self.reap_within(WRITE_WAIT_NS);
                return Progress::Worked;
            }
            _ => self.empty_batches = self.empty_batches.saturating_add(1),
        }
        if engine.space_gives_way() {
            self.empty_batches = 0;
        }
        if self.empty_batches >= EMPTY_BATCHES_STARVED {
            // A device that hangs may come back, so the fault waits for it.
            engine.evictors.obstacles.note_nothing(!engine.health.any_hangs());
        }
        Progress::Blocked
    }

    /// Lets the swap space do the work that it does on the side; the space may keep less in RAM after that.
    fn tend(&mut self) {
        let engine = self.engine;
        if engine.backend.own_memory().is_some() {
            self.queue.tend(&engine.slots, &engine.faults_seen());
            engine.loosen_space();
            engine.divide_limit();
        }
    }

    /// The process forks: ends what is under way, and sleeps until the fork is over.
    fn rest(&mut self) {
        let engine = self.engine;
        let unsaved = self.end_writes();
        engine.quiet.rest.rest(&engine.futex, unsaved);
    }

    /// Waits for the writes that were begun, tries failed ones once more, and makes the words of all pages in stages say
    /// whether they are written. Returns how many are not.
    pub fn end_writes(&mut self) -> u64 {
        let engine = self.engine;
        let drain = |evictor: &mut Self| {
            while evictor.queue.in_flight() > 0 || !evictor.waiting.is_empty() {
                evictor.reap(true);
            }
        };
        drain(self);
        if self.failed > 0 {
            self.retry_at_ns = 0;
            self.mend_failed();
            drain(self);
        }
        for stage in self.ring.stages() {
            if self.ring.state(stage) == StageState::Quiet {
                // Once more: a thread that owned the page when the write ended may have put it back since.
                let _ = engine.stage_is_written(stage);
            }
        }
        self.end_lingering();
        u64::from(self.failed)
    }

    /// Selects, copies and unmaps one batch of at most `room` pages, and starts its writes. Returns how many pages left.
    /// With `wished` they are pages that are wished to leave.
    fn evict_batch(&mut self, batch: usize, room: usize, wished: bool) -> usize {
        let engine = self.engine;
        self.ring.next(room, &mut self.places);
        if wished {
            self.select_wished(room);
        } else {
            self.select_batch(room);
        }
        self.copy_to_stages();
        self.give_slots();
        if engine.kernel.is_outlived() {
            self.leave_word();
        }
        self.unmap();
        let count = self.victims.len();
        if count == 0 {
            return 0;
        }
        let offers = self.queue.takes_clean();
        let offered = if offers { self.expect_offers() } else { 0 };
        if engine.kernel.current_thread() != self.thread {
            engine.stats.add(self.core, Count::Synchronous, count as u64);
        }
        if engine.wishes.any_scan() {
            // Before anybody can bring them back: a page that leaves once more was accessed meanwhile.
            engine.wishes.note_left(self.victims.iter().map(|victim| victim.page));
        }
        self.ring.take(self.places.iter().zip(&self.victims).map(|(&stage, victim)| {
            // A clean page: its slot has the bytes already.
            (stage, if victim.dirty { StageState::Writing } else { StageState::Quiet })
        }));
        for (&stage, victim) in self.places.iter().zip(&self.victims) {
            if let Some(slot) = victim.own_slot().filter(|_| offers) {
                let bytes = engine.evictors.stages.bytes(stage);
                // While the page is ours, so that its slot can become nobody else's; dirty ones, which come first, are let go by now.
                self.queue.offer(slot, bytes, &mut || engine.slots.sum(slot) == Engine::<W>::checksum(slot, bytes));
            }
            engine.evictors.stages.hold(stage, victim.page, victim.slot);
            if let (true, Some(slot), false) = (victim.dirty, victim.slot, engine.kernel.is_outlived()) {
                engine.slots.set_sum(slot, Engine::<W>::checksum(slot, engine.evictors.stages.bytes(stage)));
            }
            let Some(at) = engine.page(victim.page) else { unreachable!("{:?} vanished while it was owned", victim.page) };
            if !victim.dirty {
                learn_write(at.granule, false);
            }
            engine.release(victim.page, at.word, Release::Leaving { stage, written: !victim.dirty });
        }
        if engine.is_wanted(Kind::Evicted) {
            self.tell_evicted();
        }
        let clean = self.victims.iter().filter(|v| !v.dirty).count();
        let kept = engine.give_evicted(self.core, count as u64 - offered, (count - clean) as u64);
        if offered > 0 {
            engine.give_withheld(self.core, offered);
        }
        engine.stats.add(self.core, Count::Evicted, count as u64);
        engine.stats.add(self.core, Count::EvictedClean, clean as u64);
        engine.stats.add(self.core, Count::FoundForward, self.found[0] as u64);
        engine.stats.add(self.core, Count::FoundBackward, self.found[1] as u64);
        engine.stats.add(self.core, Count::Batches, 1);
        engine.evictors.loops.judge(&engine.stats, engine.frames());
        engine.evictors.hands.judge(engine.evictors.loops.now(), &engine.stats, engine.frames());
        self.start_writes(batch, count - clean, kept);
        self.turn += count;
        count
    }

    /// The same for pages that are wished to leave. What a scan has cost is measured.
    fn evict_wished(&mut self, batch: usize, room: usize) -> usize {
        let engine = self.engine;
        if !engine.wishes.any_scan() {
            return self.evict_batch(batch, room, true);
        }
        let began = engine.clock.now_ns();
        let count = self.evict_batch(batch, room, true);
        engine.scans.note_cost(engine.clock.now_ns().saturating_sub(began), count as u64);
        count
    }

    /// Tells policies which pages left, run by run.
    #[cold]
    fn tell_evicted(&self) {
        let follows = |a: &Victim, b: &Victim| a.dirty == b.dirty && a.page.plus(1) == b.page;
        for run in self.victims.chunk_by(follows) {
            self.engine.tell(Kind::Evicted, u8::from(!run[0].dirty), run[0].page, run.len() as u64);
        }
    }

    /// Copies the victims' bytes into the next stages; victims that cannot be read are put back. The engine does not know all
    /// memory that is mapped unreadable, and pages may have come there along with neighbours (glibc's arenas grow into such
    /// memory). A copy that fails shows it.
    fn copy_to_stages(&mut self) {
        let engine = self.engine;
        let (places, mut taken) = (&self.places, 0);
        self.victims.retain(|victim| {
            let stage = places[taken];
            let readable = engine.page(victim.page).is_some_and(|at| !at.flags.is_unreadable());
            if engine.kernel.is_outlived() {
                // Its bytes may be those of a page that was rescued from it.
                engine.evictors.stages.disown(stage);
            }
            // SAFETY: the stage is free (`Ring::next`), and the ring is this evictor's.
            let bytes = unsafe { engine.evictors.stages.bytes_mut(stage) };
            let copy = |readable, bytes: &mut _| engine.kernel.copy_out(victim.page, bytes, readable).is_ok();
            let copied = copy(readable, &mut *bytes) || (readable && !is_planted(Canary::Untold) && copy(false, bytes));
            if copied {
                taken += 1;
            } else {
                engine.put_back(victim);
            }
            copied
        });
        engine.stats.add(self.core, Count::CopiedOut, taken as u64);
    }

    /// Gives each dirty victim a slot, side by side; victims for which there is none are put back.
    fn give_slots(&mut self) {
        let engine = self.engine;
        let dirty = self.victims.iter().filter(|v| v.dirty).count();
        let mut given = 0;
        self.trial = if dirty > 0 { engine.reserve_trial(self.core, dirty.min(TRIAL_PAGES) as u32) } else { None };
        while given < dirty {
            let trial = self.trial.filter(|_| given == 0);
            let Some(Run { first, len }) = trial.or_else(|| engine.reserve(self.core, (dirty - given) as u32)) else { break };
            for i in 0..u64::from(len) {
                self.victims[given].slot = Some(first.plus(i));
                given += 1;
            }
        }
        if engine.slots.is_short_of_spares() {
            engine.wake_watcher_for_stock();
        }
        if given < dirty {
            // A want of slots that will end in a moment does not count as want of room.
            if !engine.may_have_slots(self.core) || self.empty_batches >= EMPTY_BATCHES_STARVED / 2 {
                engine.evictors.obstacles.note_full();
                engine.squeeze_space();
            }
            // The stages of the victims that go back lie between those of the victims that stay, so the clean ones go
            // back too.
            for victim in self.victims.drain(given..) {
                engine.put_back(&victim);
            }
        }
    }

    /// Before the victims leave: all that whoever takes over must know to find their bytes in the stages. The word comes last.
    fn leave_word(&self) {
        let engine = self.engine;
        for (&stage, victim) in self.places.iter().zip(&self.victims) {
            engine.evictors.stages.hold(stage, victim.page, victim.slot);
            engine.evictors.stages.note_write(stage, victim.dirty);
            if let (true, Some(slot)) = (victim.dirty, victim.slot) {
                engine.slots.set_sum(slot, Engine::<W>::checksum(slot, engine.evictors.stages.bytes(stage)));
            }
            if let Some(at) = engine.page(victim.page).filter(|_| !is_planted(Canary::Left)) {
                at.word.take_to(stage);
            }
        }
    }

    /// Unmaps the victims with one TLB flush. Pages that the kernel refuses are put back.
    fn unmap(&mut self) {
        let engine = self.engine;
        self.pages.clear();
        self.pages.extend(self.victims.iter().map(|v| v.page));
        if let Err((done, _)) = engine.kernel.unmap(&self.pages) {
            for victim in self.victims.drain(done..) {
                engine.put_back(&victim);
                // Behind the word, which says until then that the page leaves: whoever takes over may have to look at its checksum.
                if let (true, Some(slot)) = (victim.dirty, victim.slot) {
                    engine.slots.free(slot);
                }
            }
        }
    }

    /// The swap space will be offered victims although their slots have them. Returns how many of their frames are withheld until the space was counted
    /// ([`Engine::give_withheld`]): none where it may keep none of them.
    fn expect_offers(&mut self) -> u64 {
        let clean = self.victims.iter().filter_map(Victim::own_slot).count() as u64;
        let withheld = self.engine.withhold(clean);
        self.queue.may_keep(withheld > 0);
        withheld
    }

    /// Starts the writes of the first `dirty` victims. `may_keep`: their frames are withheld until a space that may keep them in RAM was counted.
    fn start_writes(&mut self, batch: usize, dirty: usize, may_keep: bool) {
        let mut i = 0;
        while i < dirty {
            let Some(slot) = self.victims[i].slot else { unreachable!("a dirty victim was given no slot") };
            let stage = self.places[i];
            let same_extent = EXTENT_SLOTS - slot.number() as usize % EXTENT_SLOTS;
            let follows = |n: &usize| {
                // Pages side by side in swap space and in the ring.
                let n = *n;
                self.victims[i + n].slot == Some(slot.plus(n as u64)) && self.places[i + n].0 == stage.0 + n as u32
            };
            let count = (1..(dirty - i).min(same_extent).min(self.pages_a_write)).take_while(follows).count() + 1;
            let trial = self.trial.is_some_and(|run| {
                let first = run.first.number();
                (first..first + u64::from(run.len)).contains(&slot.number())
            });
            let withheld = if may_keep { count as u64 } else { 0 };
            self.start_write(Write { slot, stage, count: count as u32, withheld, may_keep, batch, trial });
            i += count;
        }
        self.note_batches();
        self.reap(false);
        self.end_lingering();
    }

    /// Reaps completions and frees every stage that can be freed. Returns whether all stages are free: then nothing of
    /// this evictor is in flight, and each slot in use is named by a page word.
    pub fn settle(&mut self) -> bool {
        self.reap(false);
        if self.failed > 0 {
            self.mend_failed();
        }
        self.free_strays();
        self.make_room(usize::MAX);
        self.ring.is_empty()
    }

    /// Frees the oldest stages until `want` are free. Returns how many are.
    pub(crate) fn make_room(&mut self, want: usize) -> usize {
        let engine = self.engine;
        while self.ring.room() < want
            && let Some(stage) = self.ring.oldest()
        {
            match self.ring.state(stage) {
                StageState::Free => self.ring.pass_oldest(),
                // It is mended where it lies.
                StageState::Failed if !is_planted(Canary::Written) => self.ring.pass_oldest(),
                // Stages that come after this one need not wait for a device that hangs.
                StageState::Writing if engine.evictors.stages.slot(stage).is_some_and(|slot| engine.hangs(slot)) => {
                    self.ring.pass_oldest()
                }
                StageState::Quiet if engine.retire(self.id, stage) => {
                    self.ring.free(stage);
                    self.ring.pass_oldest();
                }
                StageState::Writing | StageState::Failed if is_planted(Canary::Written) && engine.retire(self.id, stage) => {
                    self.ring.free(stage);
                    self.ring.pass_oldest();
                }
                _ => break,
            }
        }
        self.ring.room().min(want)
    }

    /// How many batches are under way, if that is more than ever.
    fn note_batches(&mut self) {
        let under_way = self.writes_left[..BATCHES_IN_FLIGHT].iter().filter(|&&writes| writes > 0).count() as u32;
        if under_way > self.batches_peak {
            self.batches_peak = under_way;
            self.engine.evictors.pace.note_batches(under_way);
        }
    }

    /// In an experiment without rescues no page lingers: those whose slots have their bytes leave their stages, and faults that wait for
    /// that go on. A page that a thread has in its hands leaves later.
    fn end_lingering(&mut self) {
        let engine = self.engine;
        if !engine.ablated.rescue || self.ring.is_empty() {
            return;
        }
        let mut any = false;
        for stage in self.ring.stages() {
            if self.ring.state(stage) == StageState::Quiet && engine.retire(self.id, stage) {
                self.ring.free(stage);
                any = true;
            }
        }
        self.make_room(usize::MAX);
        if any {
            engine.evictors.written.signal(&engine.futex);
        }
    }

    /// Gives the memory of all stages but the first `stages` of the ring, which is empty, back to the system, if that can be done.
    pub(super) fn give_stages_back(&self, stages: u32) -> bool {
        let mut gone = self.ring.stages().skip(stages as usize);
        debug_assert!(self.ring.is_empty());
        let Some(first) = gone.next() else { return true };
        // SAFETY: stages of this evictor's own ring, none of which is in use.
        unsafe { self.engine.evictors.stages.give_back(&self.engine.kernel, first, gone.count() + 1) }
    }

    /// Frees stages that were left behind in the ring and whose writes have ended since.
    fn free_strays(&mut self) {
        let engine = self.engine;
        if !self.ring.has_strays() {
            return;
        }
        for stage in self.ring.stages() {
            if self.ring.is_stray(stage) && self.ring.state(stage) == StageState::Quiet && engine.retire(self.id, stage) {
                self.ring.free(stage);
            }
        }
    }
}

impl<W: World> Engine<W> {
    /// Reserves up to `want` neighbouring slots for `core`. When there are none, drains are called off, so that their spaces
    /// give out slots again.
    pub(super) fn reserve(&self, core: usize, want: u32) -> Option<Run> {
        let (asked, began) = (self.slots.asked(core), self.clock.now_ns());
        let run = self.reserve_some(core, want);
        if self.slots.asked(core) != asked {
            self.stats.add(core, Count::DelegateNs, self.clock.now_ns().saturating_sub(began));
        }
        run
    }

    fn reserve_some(&self, core: usize, want: u32) -> Option<Run> {
        self.slots.reserve_run(core, want).or_else(|| {
            let full = !self.may_have_slots(core) && self.health.call_off_drains(&self.slots);
            full.then(|| {
                self.drainer.wake(&self.futex);
                self.slots.reserve_run(core, want)
            })?
        })
    }

    /// There were no slots for `core`, but not because there is no room: the watcher will have made memory for them in a moment,
    /// or another core did not answer.
    fn may_have_slots(&self, core: usize) -> bool {
        self.slots.wants_stock() || self.slots.was_unanswered(core)
    }

    /// Up to `want` slots in a space that should be tried now, if there is one.
    pub(super) fn reserve_trial(&self, core: usize, want: u32) -> Option<Run> {
        if self.health.all_work() {
            return None;
        }
        let space = self.health.take_trial(self.clock.now_ns())?;
        self.slots.reserve_run_in(core, space, want)
    }

    pub(super) fn stage_is_written(&self, stage: Stage) -> StageStep {
        match self.table.word_for_unpin(self.evictors.stages.page(stage)) {
            Some(word) => word.stage_written(stage),
            None => StageStep::Gone,
        }
    }

    /// The stage's evictor needs the stage: its page is in its slot only from now on, unless another thread took the page
    /// before. False while that thread is not done with the bytes.
    fn retire(&self, evictor: usize, stage: Stage) -> bool {
        let Some(slot) = self.evictors.stages.slot(stage) else { unreachable!("{stage:?} is quiet without a slot") };
        let Some(word) = self.table.word_for_unpin(self.evictors.stages.page(stage)) else {
            unreachable!("{stage:?} has no page")
        };
        // Checked once more: the page may have been put back into the stage (a fault that was not mapped) since the
        // completion.
        match word.stage_written(stage) {
            StageStep::Held => return is_planted(Canary::Held),
            // `relocate` has renamed the stage. It is about to make the new word name the stage, in the state that the page was
            // claimed in: unwritten, perhaps.
            StageStep::Gone if self.evictors.stages.vacancy(stage) == Vacancy::Held => return false,
            StageStep::Gone | StageStep::Done => {}
        }
        self.kernel.interleave();
        match word.retire_stage(stage, slot) {
            StageStep::Done => {
                self.evictors.refaults.note_out(evictor, self.evictors.stages.page(stage), self.evictors.loops.left());
                true
            }
            StageStep::Held => false,
            StageStep::Gone => match self.evictors.stages.vacancy(stage) {
                Vacancy::Held => false,
                Vacancy::SlotKept => true,
                Vacancy::SlotFree => {
                    self.slots.free(slot);
                    true
                }
            },
        }
    }

    /// Maps the page of a stage whose write failed again. True when the stage's bytes are no longer needed.
    pub(super) fn bring_back(&self, stage: Stage, core: usize) -> bool {
        let page = self.evictors.stages.page(stage);
        if self.evictors.stages.vacancy(stage) != Vacancy::Held {
            return true;
        }
        let Some(at) = self.page(page) else { return false };
        if at.word.load().stage() != Some(stage) || !self.frames().take(core) {
            return false;
        }
        match at.word.begin_fault(Access::Write, false) {
            BeginFault::Owned { was } if was.stage() == Some(stage) => {
                if self.kernel.map(page, self.evictors.stages.bytes(stage), farshore_core::seams::Protect::Writable).is_ok() {
                    self.note_mapped(at.word);
                    self.evictors.stages.vacate(stage, false);
                    // Finding out whether an evictor protected the page meanwhile is not worth the cost.
                    self.release(page, at.word, Release::Dirty { chances: 1, guessed: false, protected: true });
                    self.list_granule(at.granule, page, core);
                    return true;
                }
                self.restore(page, at.word, was);
            }
            BeginFault::Owned { was } => self.restore(page, at.word, was),
            _ => {}
        }
        self.give_frames(core, 1);
        false
    }
}
