//! One fault, in steps.
//!
//! The delivery of a [`Fault`] takes it through [`Engine::step`] until it is done. A step never waits: it says what the
//! fault waits for, and the delivery decides how (sleep in the signal handler, switch to another unithread, look at the
//! next message). [`Engine::resolve`] is the delivery that sleeps.
//!
//! ```text
//!  start ─▶ frame? ─no─▶ WaitFrame         nothing is owned while a fault waits for a frame
//!             │yes
//!             ▼
//!           page?  ─busy─▶ WaitPage        (the frame goes back)
//!             │owned
//!   ┌─────────┼───────────┬───────────────┐
//! untouched  leaving      out             resident, write-protected
//!   │zeros    │rescue      │Read(slot)     │
//!   ▼         ▼            ▼               ▼
//!  map       map ◀── check sum           unprotect
//!   └─────────┴─────▶ release ◀───────────┘
//! ```
//!
//! A step never evicts, never writes to a backend, never allocates, never takes a lock (rule 1).

use crate::Engine;
use crate::fault::epoch::Epoch;
use crate::fault::guess::{guess_write, learn_write};
use crate::fault::run::Along;
use crate::health::Trouble;
use crate::stats::{Count, FaultKind};
use farshore_attach::{Event, Kind};
use farshore_core::canary::{Canary, is_planted};
use farshore_core::limits::GRANULE_PAGES;
use farshore_core::page::{Access, Page};
use farshore_core::seams::{Came, Clock, IoError, Kernel, KernelError, PageBuf, Policy, Protect, Reads, Return, World};
use farshore_core::table::PageRef;
use farshore_core::wait::Ticket;
use farshore_core::word::{AtomicWord, BeginFault, Release, Slot, State, Word};

/// How often a page is read, alone, until a read that failed or a wrong checksum counts: the page cannot be read.
pub(crate) const READ_TRIES: u32 = 3;
/// Most pages that a first touch brings along when memory is plenty and touches are in order.
const ZERO_RUN_MAX: u64 = 16;
/// How long a fault sleeps for a frame before it calls all evictors, and checks whether there will ever be one.
pub(super) const FRAME_PATIENCE_NS: u64 = 100_000_000;
/// How often it does so before it gives up, when evictors cannot make frames free.
const FRAME_PATIENCE_TIMES: u32 = 50;

/// One fetch of this many is measured part by part: a clock costs too much to be read five times in each.
const SAMPLED: u64 = 16;
/// The parts of a fetch, in order.
const PARTS: [Count; 5] = [Count::ClaimNs, Count::ReadNs, Count::CheckNs, Count::MapNs, Count::RestNs];

/// The parts of a fault that is one of those.
#[derive(Clone, Copy, Debug)]
struct Parts {
    /// When the last part has ended.
    since_ns: u64,
    ended: usize,
    ns: [u64; PARTS.len()],
}

impl Parts {
    /// Of a fault that has come now, if it is one of those. The lowest bits of a clock are as good as chance, and no core writes for it what
    /// another one reads.
    fn of(now_ns: u64) -> Option<Parts> {
        (now_ns >> 4).is_multiple_of(SAMPLED).then_some(Parts { since_ns: now_ns, ended: 0, ns: [0; PARTS.len()] })
    }

    /// The next part has ended.
    fn ended(&mut self, now_ns: u64) {
        if let Some(ns) = self.ns.get_mut(self.ended) {
            *ns = now_ns.saturating_sub(self.since_ns);
        }
        (self.since_ns, self.ended) = (now_ns, self.ended + 1);
    }
}

/// One fault on its way.
#[derive(Debug)]
pub struct Fault {
    /// The page.
    pub page: Page,
    /// What the thread wanted.
    pub access: Access,
    /// The kernel found the page present: its protection caused the fault.
    pub protected: bool,
    pub(super) core: usize,
    started_ns: u64,
    waited: bool,
    patience: u32,
    /// When the fault's patience was last counted.
    patient_since_ns: u64,
    parts: Option<Parts>,
    /// What the page got when it came.
    chances: u8,
    phase: Phase,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Start,
    /// The fault owns the page and a frame; the caller is reading `slot` into its buffer. `along`: pages beside it that
    /// come with it.
    Reading {
        slot: Slot,
        was: Word,
        tries: u32,
        along: Along,
    },
}

/// What a fault needs next.
#[must_use]
#[derive(Debug)]
pub enum Step {
    /// The fault is over; the access can be tried again.
    Done,
    /// The page is not managed.
    Foreign,
    /// Read the slots from this one on into the buffer, then step again with the result of the read.
    Read {
        /// The first slot.
        slot: Slot,
        /// How many slots: more than one if pages beside it come along.
        pages: usize,
    },
    /// Another thread owns the page: sleep on the ticket, then step again.
    WaitPage(Ticket),
    /// There is no frame: sleep on the frames event (prepared number), then step again.
    WaitFrame(u32),
    /// The page is being written, and there is no rescue in this experiment: sleep on the event `written` (prepared number), then step again.
    WaitWrite(u32),
    /// The fault cannot be served.
    Failed(Failure),
}

/// How a fault ended that did not fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolved {
    /// The access can be tried again.
    Done,
    /// The page is not managed: the engine has nothing to do with the fault.
    Foreign,
}

/// Why a fault could not be served. The thread that needs the page gets SIGBUS; no thread gets wrong bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The page could not be read, or its bytes are not those that were written.
    Transfer(Trouble),
    /// No frame can be made free: the swap space is full or fails.
    NoFrames,
    /// The kernel refused to map the page.
    Kernel(KernelError),
}

impl core::fmt::Display for Failure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Failure::Transfer(trouble) => trouble.fmt(f),
            Failure::NoFrames => f.write_str(
                "the memory limit is reached and no page can be written out (swap space full or failing); \
                 make room there, give another --swap, or raise --memory",
            ),
            Failure::Kernel(why) => write!(f, "the kernel did not map the page ({why:?})"),
        }
    }
}

impl Fault {
    /// A fault that has just arrived on `core`.
    pub fn new(page: Page, access: Access, protected: bool, core: usize, now_ns: u64) -> Fault {
        Fault {
            page,
            access,
            protected,
            core,
            started_ns: now_ns,
            waited: false,
            patience: 0,
            patient_since_ns: 0,
            parts: Parts::of(now_ns),
            chances: 0,
            phase: Phase::Start,
        }
    }

    /// No page comes along any more.
    fn alone(&mut self) {
        if let Phase::Reading { along, .. } = &mut self.phase {
            *along = Along::default();
        }
    }

    /// The read that [`Step::Read`] asked for has ended with an error; a success needs no call.
    fn read_again(&mut self) -> Option<u32> {
        match &mut self.phase {
            Phase::Reading { tries, .. } => {
                *tries += 1;
                Some(*tries)
            }
            Phase::Start => None,
        }
    }
}

impl<W: World> Engine<W> {
    /// Serves a fault and sleeps where it has to. `buffer` is the caller's, one page for the fetch.
    ///
    /// # Errors
    /// When the fault cannot be served; the page is as it was.
    pub fn resolve(
        &self,
        page: Page,
        access: Access,
        protected: bool,
        core: usize,
        buffer: &mut [PageBuf],
    ) -> Result<Resolved, Failure> {
        self.resolve_since(self.clock.now_ns(), page, access, protected, core, buffer)
    }

    /// The same for a fault that has come at `now_ns`.
    ///
    /// # Errors
    /// As [`Engine::resolve`].
    pub fn resolve_since(
        &self,
        now_ns: u64,
        page: Page,
        access: Access,
        protected: bool,
        core: usize,
        buffer: &mut [PageBuf],
    ) -> Result<Resolved, Failure> {
        let mut fault = Fault::new(page, access, protected, core, now_ns);
        self.quiet.gate.enter(&self.futex, core);
        let served = self.serve(&mut fault, buffer);
        self.quiet.gate.leave(&self.futex, core);
        served
    }

    /// Steps until the fault is over. The thread is inside the gate, except while it sleeps and owns no page.
    fn serve(&self, fault: &mut Fault, buffer: &mut [PageBuf]) -> Result<Resolved, Failure> {
        let mut read = Ok(());
        let core = fault.core;
        let outside = |sleep: &dyn Fn()| {
            self.quiet.gate.leave(&self.futex, core);
            sleep();
            self.quiet.gate.enter(&self.futex, core);
        };
        loop {
            match self.step(fault, buffer, read) {
                Step::Done => return Ok(Resolved::Done),
                Step::Foreign => return Ok(Resolved::Foreign),
                Step::Failed(why) => return Err(why),
                Step::Read { slot, pages } => {
                    let transfer = self.transfer(slot, core);
                    read = self.backend.read_run(slot, &mut buffer[..pages]);
                    self.transferred(transfer);
                }
                Step::WaitPage(ticket) => outside(&|| {
                    let began = self.clock.now_ns();
                    self.waits.sleep(&self.futex, ticket);
                    self.note_page_wait(core, self.clock.now_ns().saturating_sub(began));
                }),
                Step::WaitFrame(prepared) => outside(&|| {
                    self.kernel.short_of_frames();
                    let began = self.clock.now_ns();
                    self.budget.came().sleep(&self.futex, prepared, Some(FRAME_PATIENCE_NS));
                    let waited = self.clock.now_ns().saturating_sub(began);
                    self.stats.add(core, Count::FrameWaitNs, waited);
                    if waited >= FRAME_PATIENCE_NS {
                        self.evictors.pace.raise_alarm(&self.futex);
                    }
                }),
                Step::WaitWrite(prepared) => outside(&|| {
                    // The page's evictor may have no thread just now.
                    self.kernel.short_of_frames();
                    let began = self.clock.now_ns();
                    self.evictors.written.sleep(&self.futex, prepared, Some(FRAME_PATIENCE_NS));
                    self.stats.add(core, Count::WriteWaitNs, self.clock.now_ns().saturating_sub(began));
                }),
            }
        }
    }

    /// Takes a fault one step on. `read` is the result of the read that the last step asked for; it is looked at after
    /// [`Step::Read`] only.
    pub fn step(&self, fault: &mut Fault, buffer: &mut [PageBuf], read: Result<(), IoError>) -> Step {
        // A loop, since the stack of a signal handler is small; a few turns at most in practice.
        loop {
            let Some(at) = self.page(fault.page) else {
                return Step::Foreign;
            };
            match fault.phase {
                Phase::Start => {
                    if let Some(step) = self.begin(fault, at, buffer) {
                        return step;
                    }
                }
                Phase::Reading { slot, was, along, .. } => return self.fetched(fault, at, slot, was, along, buffer, read),
            }
            farshore_core::sync::spin_hint();
        }
    }

    /// `None`: the page moved on between two looks, so look again.
    fn begin(&self, fault: &mut Fault, at: PageRef<'_>, buffer: &mut [PageBuf]) -> Option<Step> {
        // A page that is only write-protected has its frame already.
        let framed = !fault.protected;
        if framed {
            let prepared = self.budget.came().prepare();
            if !self.frames().take(fault.core) {
                return Some(self.wait_for_frame(fault, prepared));
            }
            self.nudge_evictors();
        }
        self.kernel.interleave();
        at.granule.touch();
        self.kernel.interleave();
        match at.word.begin_fault(fault.access, fault.protected) {
            BeginFault::Owned { was } => self.owned(fault, at, was, framed, buffer),
            outcome => {
                if framed {
                    self.give_frames(fault.core, 1);
                }
                match outcome {
                    BeginFault::Foreign => Some(Step::Foreign),
                    BeginFault::Satisfied => Some(self.done(fault, FaultKind::Wait)),
                    _ => {
                        fault.waited = true;
                        self.waits.announce(fault.page, at.word).map(Step::WaitPage)
                    }
                }
            }
        }
    }

    fn wait_for_frame(&self, fault: &mut Fault, prepared: u32) -> Step {
        if !fault.waited {
            self.stats.add(fault.core, Count::FrameWaits, 1);
        }
        fault.waited = true;
        self.evictors.pace.wake(&self.futex);
        // By time: a fault that looks again whenever frames come, and finds none left, has not waited for long each time.
        let now = self.clock.now_ns();
        if fault.patience == 0 || now.saturating_sub(fault.patient_since_ns) >= FRAME_PATIENCE_NS {
            fault.patience += 1;
            fault.patient_since_ns = now;
        }
        if fault.patience > FRAME_PATIENCE_TIMES && self.evictors.obstacles.is_starved() {
            return Step::Failed(Failure::NoFrames);
        }
        Step::WaitFrame(prepared)
    }

    /// We own the page: do what its last state asks for. `None`: it was given back, so look again.
    fn owned(&self, fault: &mut Fault, at: PageRef<'_>, was: Word, framed: bool, buffer: &mut [PageBuf]) -> Option<Step> {
        if !framed && was.state() != State::Resident {
            // The page was protected when it faulted and has been evicted since: come back with a frame.
            self.restore(fault.page, at.word, was);
            fault.protected = false;
            return None;
        }
        Some(match was.state() {
            State::Untouched => self.first_touch(fault, at, was),
            State::Leaving if self.ablated.rescue => self.wait_for_write(fault, at, was),
            State::Leaving => self.rescue(fault, at, was),
            State::Out => match was.slot() {
                Some(slot) => {
                    let along = self.claim_run(fault.page, fault.core, slot, buffer.len() - 1);
                    self.part_ended(fault);
                    fault.phase = Phase::Reading { slot, was, tries: 0, along };
                    Step::Read { slot: along.first(slot), pages: along.pages() }
                }
                None => unreachable!("{was:?} is out without a slot"),
            },
            State::Resident => self.make_writable(fault, at, was),
            State::Busy | State::Foreign => unreachable!("begin_fault does not hand out {was:?}"),
        })
    }

    fn first_touch(&self, fault: &mut Fault, at: PageRef<'_>, was: Word) -> Step {
        if !at.flags.is_present() {
            // munmap hid the granule between our look-up and our taking the page.
            self.restore(fault.page, at.word, was);
            self.give_frames(fault.core, 1);
            return Step::Foreign;
        }
        // Checked once more: the granule may have been unmapped and mapped anew since the first time.
        if !is_planted(Canary::Rebirth) {
            at.granule.touch();
        }
        if self.moving.contains(fault.page) {
            // `mremap` has not said yet which bytes are here: the access is tried again and finds out.
            self.restore(fault.page, at.word, was);
            self.give_frames(fault.core, 1);
            return self.done(fault, FaultKind::Wait);
        }
        if let Some(protected) = self.map_granule(fault.page, at, fault.core) {
            self.release(fault.page, at.word, Release::Dirty { chances: 0, guessed: false, protected });
            self.list_granule(at.granule, fault.page, fault.core);
            return self.done(fault, FaultKind::Zero);
        }
        let more = self.claim_zero_run(fault.page, fault.core);
        let epoch = Epoch::of(at.granule);
        let mapped = self.kernel.map_zeros(fault.page, 1 + more);
        let protected = epoch.has_moved(at.granule);
        let count = match mapped {
            Ok(n) => n.clamp(1, 1 + more),
            Err(KernelError::Exists) => 1,
            Err(why) => {
                self.release_zero_run(fault, 1, 1 + more, protected);
                return self.not_mapped(fault, at, was, why);
            }
        };
        self.release_zero_run(fault, count, 1 + more, protected);
        self.release(fault.page, at.word, Release::Dirty { chances: 0, guessed: false, protected });
        self.list_granule(at.granule, fault.page, fault.core);
        self.stats.add(fault.core, Count::Touched, count);
        self.done(fault, FaultKind::Zero)
    }

    /// Takes the untouched pages after `page`, with frames, when memory is plenty and the page before was touched
    /// too: a program that fills its memory in order then faults once for 16 pages.
    fn claim_zero_run(&self, page: Page, core: usize) -> u64 {
        let index = page.index_in_granule() as u64;
        let plenty = self.frames().limit() / 8;
        if index == 0 || self.frames().free_uncached() <= plenty {
            return 0;
        }
        let before = self.page(Page(page.0 - 1)).is_some_and(|p| p.word.load().state() == State::Resident);
        if !before {
            return 0;
        }
        let want = (ZERO_RUN_MAX - 1).min(GRANULE_PAGES as u64 - 1 - index);
        let frames = self.frames().take_spare(core, want, plenty);
        let mut taken = 0;
        while taken < frames {
            let next = page.plus(1 + taken);
            let Some(at) = self.page(next) else { break };
            if at.word.load() != Word::UNTOUCHED {
                break;
            }
            match at.word.begin_fault(Access::Write, false) {
                BeginFault::Owned { was } if was.state() == State::Untouched && !self.moving.contains(next) => taken += 1,
                BeginFault::Owned { was } => {
                    self.restore(next, at.word, was);
                    break;
                }
                _ => break,
            }
        }
        self.give_frames(core, frames - taken);
        taken
    }

    /// Pages 1.. of a run: the first `mapped - 1` are resident, the others go back.
    fn release_zero_run(&self, fault: &Fault, mapped: u64, claimed: u64, protected: bool) {
        for i in 1..claimed {
            let resident = Release::Dirty { chances: 0, guessed: false, protected };
            self.release_taken(fault.page.plus(i), if i < mapped { resident } else { Release::Untouched });
        }
        self.give_frames(fault.core, claimed.saturating_sub(mapped.max(1)));
    }

    /// Releases a page that this fault has taken beside its own. A memory call may have hidden the granule for a moment, and then
    /// no page of it is found in the ordinary way.
    pub(super) fn release_taken(&self, page: Page, to: Release) {
        let hidden = is_planted(Canary::Hidden) && self.page(page).is_none();
        if let Some(word) = self.table.word_for_unpin(page).filter(|_| !hidden) {
            self.release(page, word, to);
        }
    }

    /// In an experiment without rescues: page and frame go back until the page is in its slot alone.
    fn wait_for_write(&self, fault: &mut Fault, at: PageRef<'_>, was: Word) -> Step {
        // Before the page goes back: until then its evictor cannot be done with it.
        let prepared = self.evictors.written.prepare();
        self.restore(fault.page, at.word, was);
        self.give_frames(fault.core, 1);
        if !fault.waited {
            self.stats.add(fault.core, Count::WriteWaits, 1);
        }
        fault.waited = true;
        Step::WaitWrite(prepared)
    }

    fn rescue(&self, fault: &mut Fault, at: PageRef<'_>, was: Word) -> Step {
        let chances = self.policy.chances(if was.rescued() { Came::RescuedAgain } else { Came::Rescued });
        fault.chances = chances;
        match self.unstage(fault.page, at, was, fault.access, chances, fault.core) {
            Ok(()) => {
                self.note_back(at.granule, fault.core, 1);
                self.done(fault, FaultKind::Rescue)
            }
            Err(why) => self.not_mapped(fault, at, was, why),
        }
    }

    /// Maps a page from its stage, which was leaving and is the caller's, with a frame. On an error it is the caller's still.
    pub(super) fn unstage(
        &self,
        page: Page,
        at: PageRef<'_>,
        was: Word,
        access: Access,
        chances: u8,
        core: usize,
    ) -> Result<(), KernelError> {
        let Some(stage) = was.stage() else { unreachable!("{was:?} is leaving without a stage") };
        // If the page is written already, a fault that reads keeps it clean; any other fault gets the only copy.
        let clean = access == Access::Read && was.written();
        let protect = if clean { Protect::WriteProtected } else { Protect::Writable };
        let epoch = Epoch::of(at.granule);
        self.kernel.map(page, self.evictors.stages.bytes(stage), protect)?;
        self.note_mapped(at.word);
        let protected = epoch.has_moved(at.granule);
        let slot = self.evictors.stages.slot(stage);
        self.stats.add(core, Count::Unstaged, 1);
        self.evictors.stages.vacate(stage, clean);
        let to = match slot {
            Some(slot) if clean => Release::Clean { slot, chances },
            _ => Release::Dirty { chances, guessed: false, protected },
        };
        self.release(page, at.word, to);
        self.list_granule(at.granule, page, core);
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn fetched(
        &self,
        fault: &mut Fault,
        at: PageRef<'_>,
        slot: Slot,
        was: Word,
        along: Along,
        buffer: &mut [PageBuf],
        read: Result<(), IoError>,
    ) -> Step {
        self.part_ended(fault);
        let bytes = &buffer[along.before];
        let right = match read {
            Ok(()) if is_planted(Canary::Checksum) || self.is_right(slot, bytes) => Ok(()),
            Ok(()) => Err(Trouble::Checksum(slot)),
            Err(why) => Err(Trouble::Read(slot, why)),
        };
        if let Err(why) = right {
            self.drop_along(fault.page, fault.core, slot, along);
            return self.read_failed(fault, at, slot, was, along, why);
        }
        self.part_ended(fault);
        self.stats.add(fault.core, Count::PagesIn, 1);
        self.note_back(at.granule, fault.core, 1);
        let guessed = fault.access == Access::Read && guess_write(at.granule, fault.page, slot);
        let dirty = guessed || fault.access == Access::Write;
        let protect = if dirty { Protect::Writable } else { Protect::WriteProtected };
        let epoch = Epoch::of(at.granule);
        if let Err(why) = self.kernel.map(fault.page, bytes, protect) {
            self.drop_along(fault.page, fault.core, slot, along);
            return self.not_mapped(fault, at, was, why);
        }
        self.note_mapped(at.word);
        self.part_ended(fault);
        let protected = epoch.has_moved(at.granule);
        self.map_along(fault.page, fault.core, at.granule, slot, along, buffer);
        let chances = self.policy.chances(self.how_it_came(fault.page, along));
        fault.chances = chances;
        if dirty {
            self.release(fault.page, at.word, Release::Dirty { chances, guessed, protected });
            // Behind the release: as long as a word names a slot, no other page's bytes come there.
            if !is_planted(Canary::Slot) {
                self.slots.free(slot);
            }
        } else {
            self.release(fault.page, at.word, Release::Clean { slot, chances });
        }
        self.list_granule(at.granule, fault.page, fault.core);
        self.done(fault, FaultKind::Fetch)
    }

    /// Pages that come with others are a stream's, whose returns say how long it is and not how often it is used (`evict::loops`).
    fn how_it_came(&self, page: Page, along: Along) -> Came {
        let evictors = &self.evictors;
        let distance = if along.pages() == 1 { evictors.refaults.since_out(page, evictors.loops.left()) } else { None };
        distance.map_or(Came::Fetched, |distance| Came::Returned(Return { distance, frames: self.frames().limit() }))
    }

    /// A page that was out is mapped: whoever takes over must not take it out of its slot or stage again, however it has changed since.
    #[inline]
    pub(crate) fn note_mapped(&self, word: &AtomicWord) {
        if self.kernel.is_outlived() {
            if !is_planted(Canary::Noted) {
                word.note_mapped();
            }
            self.kernel.interleave();
            self.kernel.forget_mapped();
            self.kernel.interleave();
        }
    }

    /// The read failed, or its bytes are wrong: it is tried again, without other pages, a few times.
    fn read_failed(&self, fault: &mut Fault, at: PageRef<'_>, slot: Slot, was: Word, along: Along, why: Trouble) -> Step {
        fault.parts = None;
        self.note_trouble(fault.core, why);
        // The error may have been about a page that came along: that try does not count.
        if along.pages() > 1 || fault.read_again().is_some_and(|tries| tries < READ_TRIES) {
            fault.alone();
            return Step::Read { slot, pages: 1 };
        }
        self.restore(fault.page, at.word, was);
        self.give_frames(fault.core, 1);
        Step::Failed(Failure::Transfer(why))
    }

    fn make_writable(&self, fault: &mut Fault, at: PageRef<'_>, was: Word) -> Step {
        let epoch = Epoch::of(at.granule);
        if let Err(why) = self.kernel.unprotect(fault.page) {
            self.restore(fault.page, at.word, was);
            return match why {
                KernelError::Again | KernelError::Gone => self.done(fault, FaultKind::WriteProtect),
                why => Step::Failed(Failure::Kernel(why)),
            };
        }
        let protected = epoch.has_moved(at.granule);
        if let Some(slot) = was.slot() {
            self.slots.free(slot);
            learn_write(at.granule, true);
        }
        self.release(fault.page, at.word, Release::Dirty { chances: was.chances(), guessed: was.guessed(), protected });
        self.done(fault, FaultKind::WriteProtect)
    }

    /// The kernel did not map the page that we own: page and frame go back.
    fn not_mapped(&self, fault: &mut Fault, at: PageRef<'_>, was: Word, why: KernelError) -> Step {
        self.restore(fault.page, at.word, was);
        if !is_planted(Canary::Frame) {
            self.give_frames(fault.core, 1);
        }
        match why {
            // The program is unmapping or moving this memory, or the kernel is busy with the address
            // space: the access is tried again and finds out.
            KernelError::Gone | KernelError::Again => self.done(fault, FaultKind::Wait),
            why => Step::Failed(Failure::Kernel(why)),
        }
    }

    /// Tells which page has come. No clock is read for it: that takes longer than all else.
    #[cold]
    fn tell_done(&self, fault: &Fault, what: Kind, now_ns: u64) {
        let more = [fault.chances.into(), 0, 0];
        self.tell_event(&Event { ns: now_ns, more, ..Event::new(what, fault.page.addr(), 1) });
    }

    /// A fault has waited for a page that another thread had.
    pub(super) fn note_page_wait(&self, core: usize, ns: u64) {
        self.stats.add(core, Count::PageWaits, 1);
        self.stats.add(core, Count::PageWaitNs, ns);
    }

    /// A part of a fault has ended. No clock is read unless the fault is one of the few that are measured.
    #[inline]
    fn part_ended(&self, fault: &mut Fault) {
        if let Some(parts) = &mut fault.parts {
            parts.ended(self.clock.now_ns());
        }
    }

    /// A fetch that was measured has ended. What waited for a frame or for another thread is none that tells of its parts.
    #[cold]
    fn note_parts(&self, fault: &Fault, mut parts: Parts, now_ns: u64) {
        parts.ended(now_ns);
        if fault.waited || parts.ended != PARTS.len() {
            return;
        }
        self.stats.add(fault.core, Count::Sampled, 1);
        for (part, ns) in PARTS.into_iter().zip(parts.ns) {
            self.stats.add(fault.core, part, ns);
        }
    }

    fn done(&self, fault: &Fault, kind: FaultKind) -> Step {
        let now = self.clock.now_ns();
        let took = now.saturating_sub(fault.started_ns);
        self.stats.fault(fault.core, kind, took);
        if let Some(parts) = fault.parts.filter(|_| kind == FaultKind::Fetch) {
            self.note_parts(fault, parts, now);
        }
        if kind == FaultKind::Zero {
            self.stats.touch(fault.core, took, fault.waited);
        }
        let what = match kind {
            FaultKind::Fetch => Some(Kind::Fetched),
            FaultKind::Rescue => Some(Kind::Rescued),
            _ => None,
        };
        if let Some(what) = what.filter(|&what| self.is_wanted(what)) {
            self.tell_done(fault, what, now);
        }
        Step::Done
    }
}
