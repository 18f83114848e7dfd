//! A space that is kept two or three times: `mirror:(A,B[,C])`. What one of the copies loses, the others have.
//!
//! ```text
//!            ┌─ write ──▶ every copy that is up; acknowledged when all of them have it, or one has and the others failed
//!   a slot ──┼─ read ───▶ the copy that answers soonest; where it fails, the next
//!            └─ doubt ──▶ the bytes were wrong: that copy is asked no more, and the page is written to it again
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | this one | the copies, and reads |
//! | [`hedge`] | reads that are late are sent to a second copy |
//! | [`table`] | which copies have which slot |
//! | [`queue`] | writes |
//! | [`repair`] | copies that are away are asked whether they are back; what they have missed is copied |
//!
//! # Invariants
//!
//! - A write is acknowledged only when a copy has it. A copy that does not have it is *stale* in these slots before that
//!   ([`SlotCopies`]), and no reader is sent to it.
//! - A copy that has lost what it had (a memory node that was started again) is found by its *stamp*: a page behind the slots of the engine, with bytes that no
//!   other run has. It is read before the copy is used again, and every [`LOOK_NS`]. While its bytes are others, all slots of the copy are stale. What a reader gets
//!   before that has a wrong checksum, and the next copy is asked.
//! - Copies are used in the order of their answers, not of their names: each is *up* or *down*. Where the last one is down too, a reader waits for any, as long as it
//!   would for a space without copies.
//!
//! # Time
//!
//! A server is waited for two minutes where its pages are nowhere else. Here a second must do ([`Waits::short`](super::nbd::Waits)): the others have the page, and what
//! the server misses is repaired. A disk that hangs cannot be left: the kernel gives neither the thread nor its buffer back.

mod hedge;
pub mod queue;
mod repair;
mod table;

use crate::any::AnyBackend;
use crate::error::OpenError;
use crate::nbd;
use crate::sleep;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use farshore_config::SwapSpec;
use farshore_core::copies::{COPIES_MAX, CopySet, SlotCopies, Turned};
use farshore_core::limits::{EXTENT_SLOTS, PAGE_SIZE};
use farshore_core::seams::{Backend, CANNOT, CopyChange, IoError, LATER, MemoryBudget, PageBuf, ReadBegun, Reads, Spaces};
use farshore_core::word::Slot;
use hedge::{Hedges, Late};
use queue::{Lacking, MirrorQueue};
use repair::Repair;
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::sync::{Arc, Mutex, OnceLock};
use table::Table;

/// How often a remote copy is asked for its stamp, in ns.
pub const LOOK_NS: u64 = 1_000_000_000;
/// How long a copy that is down is left alone at first, and at most, in ns.
const PAUSE_NS: u64 = 100_000_000;
const PAUSE_MAX_NS: u64 = 16_000_000_000;
/// Errors in a row that are no lost connection, after which a copy is down.
const STREAK: u32 = 3;
/// One read in so many goes to the copy that was not the fastest, so that its time is known.
const EXPLORE: u64 = 64;
/// The part by which one read changes what a copy's reads take: an eighth.
const SMOOTH: u64 = 8;
/// While no copy answers, in ns.
const NAP_NS: u64 = 20_000_000;

/// Opens the copy of this number. Notices are for the user.
pub type Open = Box<dyn Fn(usize, &SwapSpec, &mut dyn FnMut(&str)) -> Result<AnyBackend, OpenError> + Send + Sync>;

/// One of the copies.
#[derive(Debug)]
struct Copy {
    /// Set once: a copy that could not be opened at the start is down until it can be.
    space: OnceLock<AnyBackend>,
    spec: SwapSpec,
    name: String,
    /// It may be started again without what it had, so it has a stamp.
    remote: bool,
    down: AtomicBool,
    streak: AtomicU32,
    /// What a read takes of late, ns; 0: not known.
    read_ns: AtomicU64,
    late: Late,
    /// Reads of it that were late and sent to another copy too, and those of them that the other one answered first.
    hedged: AtomicU64,
    hedged_won: AtomicU64,
    /// Slots that have a page which it does not have.
    stale: AtomicU64,
    /// How many times it has lost what it had. A write that began before counts for nothing.
    life: AtomicU32,
    /// A write for its repair does not end. Nothing else is written to it until it does: it could come later.
    stuck: AtomicBool,
    /// When it is asked next, how long the pause before that was, and since when it is up, ns.
    due_ns: AtomicU64,
    pause_ns: AtomicU64,
    rose_ns: AtomicU64,
    /// It was whole when somebody was told last; and it was down.
    told_whole: AtomicBool,
    told_down: AtomicBool,
    /// It has lost what it had, and nobody was told.
    replaced: AtomicBool,
}

impl Copy {
    fn new(spec: &SwapSpec) -> Copy {
        Copy {
            space: OnceLock::new(),
            spec: spec.clone(),
            name: spec.to_string(),
            remote: spec.is_remote(),
            down: AtomicBool::new(true),
            streak: AtomicU32::new(0),
            read_ns: AtomicU64::new(0),
            late: Late::default(),
            hedged: AtomicU64::new(0),
            hedged_won: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            life: AtomicU32::new(0),
            stuck: AtomicBool::new(false),
            due_ns: AtomicU64::new(0),
            pause_ns: AtomicU64::new(0),
            rose_ns: AtomicU64::new(0),
            told_whole: AtomicBool::new(true),
            told_down: AtomicBool::new(false),
            replaced: AtomicBool::new(false),
        }
    }

    /// The slots that it has for pages: those of a remote one but for the extent of its stamp.
    fn room(&self, space: &AnyBackend) -> Option<u64> {
        let stamp = if self.remote { EXTENT_SLOTS as u64 } else { 0 };
        space.capacity().map(|slots| slots.saturating_sub(stamp))
    }

    fn is_up(&self) -> bool {
        !self.down.load(Ordering::Acquire)
    }

    /// It has answered.
    fn works(&self) {
        if self.streak.load(Ordering::Relaxed) != 0 {
            self.streak.store(0, Ordering::Relaxed);
        }
    }

    /// It has not done what it was asked to.
    fn failed(&self, why: IoError) {
        if why == IoError::Full {
            return;
        }
        if is_lost(why) || self.streak.fetch_add(1, Ordering::Relaxed) + 1 >= STREAK {
            self.fall();
        }
    }

    /// It is down from now on: for longer each time, until it has been up for a while.
    fn fall(&self) {
        let now = sleep::now_ns();
        if !self.down.swap(true, Ordering::AcqRel) {
            let lasted = now.saturating_sub(self.rose_ns.load(Ordering::Relaxed)) > PAUSE_MAX_NS;
            self.wait(now, if lasted { PAUSE_NS } else { 2 * self.pause_ns.load(Ordering::Relaxed) });
        }
    }

    /// It is asked again after this pause.
    fn wait(&self, now: u64, pause: u64) {
        let pause = pause.clamp(PAUSE_NS, PAUSE_MAX_NS);
        self.pause_ns.store(pause, Ordering::Relaxed);
        self.due_ns.store(now + pause, Ordering::Relaxed);
    }

    /// It is up.
    fn rise(&self, now: u64) {
        self.works();
        if !self.is_up() {
            self.rose_ns.store(now, Ordering::Relaxed);
            self.down.store(false, Ordering::Release);
        }
    }

    /// A read of so many pages has taken so long, or would have taken longer.
    fn took(&self, pages: usize, ns: u64) {
        self.late.took(pages, ns);
        let before = self.read_ns.load(Ordering::Relaxed);
        let now = if before == 0 { ns } else { before - before / SMOOTH + ns / SMOOTH };
        self.read_ns.store(now.max(1), Ordering::Relaxed);
    }

    /// Slots whose pages it does not have. (Two threads may count one in either order.)
    fn behind(&self) -> u64 {
        self.stale.load(Ordering::Relaxed).cast_signed().max(0).cast_unsigned()
    }

    fn turned(&self, stale: bool, right: bool) {
        if stale {
            self.stale.fetch_add(1, Ordering::Relaxed);
        }
        if right {
            self.stale.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Whether an error says that a server is away, rather than that it could not do something.
fn is_lost(why: IoError) -> bool {
    [Errno::TIMEDOUT, Errno::CONNRESET, Errno::MFILE].iter().any(|errno| why == IoError::Device(errno.raw_os_error()))
}

/// What a mirror and its queues share.
#[derive(Debug)]
struct Shared {
    copies: Box<[Copy]>,
    table: Table,
    /// The copy that is repaired.
    repairing: AtomicUsize,
    reads: AtomicU64,
    hedges: Hedges,
    /// Queues that lack a copy which was not open when they were made. Locked when a queue is made, and when a copy is opened.
    lacking: Mutex<Vec<Arc<Lacking>>>,
    /// A forked child's view of its parent's space: it reads, and repairs nothing. What its parent repairs it does not learn.
    is_parents: AtomicBool,
}

impl Shared {
    /// All copies.
    fn all(&self) -> CopySet {
        (1 << self.copies.len()) - 1
    }

    /// The copies that are up, and their spaces.
    fn up_spaces(&self) -> impl Iterator<Item = (&Copy, &AnyBackend)> {
        self.copies.iter().filter(|copy| copy.is_up()).filter_map(|copy| Some((copy, copy.space.get()?)))
    }

    fn up(&self) -> CopySet {
        self.set(Copy::is_up)
    }

    fn set(&self, is_in: impl Fn(&Copy) -> bool) -> CopySet {
        self.copies.iter().enumerate().filter(|(_, copy)| is_in(copy)).fold(0, |set, (n, _)| set | 1 << n)
    }

    /// Counts what has become of a slot.
    fn count(&self, slot: u64, turned: Turned) {
        if turned.stale | turned.right == 0 {
            return;
        }
        let is = |set: CopySet, n: usize| set >> n & 1 != 0;
        self.copies.iter().enumerate().for_each(|(n, copy)| copy.turned(is(turned.stale, n), is(turned.right, n)));
        self.table.note_stale(slot, turned.stale & self.all());
    }

    fn slot(&self, slot: Slot) -> Option<&SlotCopies> {
        self.table.slot(slot.number())
    }

    /// The copy to read `slot` from, of those that were not tried.
    fn choose(&self, slot: &SlotCopies, tried: CopySet) -> Option<usize> {
        let able = self.set(|copy| copy.space.get().is_some()) & !slot.stale() & !tried;
        let up = able & self.up();
        let from = if up != 0 { up } else { able };
        let within = |n: &usize| from >> n & 1 != 0;
        let fastest = (0..self.copies.len()).filter(within).min_by_key(|&n| self.copies[n].read_ns.load(Ordering::Relaxed))?;
        let turn = self.reads.fetch_add(1, Ordering::Relaxed);
        if !turn.is_multiple_of(EXPLORE) {
            return Some(fastest);
        }
        (0..self.copies.len()).cycle().skip((turn / EXPLORE) as usize % self.copies.len()).find(within)
    }

    /// How many of the slots from `first` on, at most `most`, this copy has.
    fn run_on(&self, copy: usize, first: Slot, most: usize) -> usize {
        let has = |n: &usize| self.slot(first.plus(*n as u64)).is_some_and(|slot| slot.stale() >> copy & 1 == 0);
        (0..most).take_while(has).count()
    }

    fn served(&self, copy: usize, first: Slot, count: usize) {
        (0..count as u64).filter_map(|n| self.slot(first.plus(n))).for_each(|slot| slot.served(copy));
    }

    /// Copy `copy` could not read this slot, and has said so: it is to be written there again.
    fn cannot_read(&self, copy: usize, first: Slot) {
        if let Some(slot) = self.slot(first) {
            slot.served(copy);
            self.doubt(first, slot);
        }
    }

    fn doubt(&self, at: Slot, slot: &SlotCopies) {
        self.count(at.number(), slot.doubt(self.all()));
    }

    fn read_run(&self, first: Slot, into: &mut [PageBuf], mut tried: CopySet) -> Result<(), IoError> {
        let (mut at, mut since, mut single, mut why) = (0, 0, false, IoError::Short);
        let mut last_try = false;
        while at < into.len() {
            let here = first.plus(at as u64);
            let Some(slot) = self.slot(here) else { return Err(IoError::Short) };
            let Some(copy) = self.choose(slot, tried) else {
                // All that have it are away: some may come back.
                let now = sleep::now_ns();
                since = if since == 0 { now } else { since };
                tried = 0;
                if is_lost(why) && now.saturating_sub(since) <= nbd::give_up_ns() {
                    sleep::nap(NAP_NS);
                    continue;
                }
                // None does. What may have it all the same is asked, and the page's sum tells.
                let trusted = slot.trust(self.is_parents.load(Ordering::Relaxed));
                if last_try || trusted.right & self.all() == 0 {
                    return Err(why);
                }
                last_try = true;
                self.count(here.number(), trusted);
                continue;
            };
            let count = self.run_on(copy, here, if single { 1 } else { into.len() - at }).max(1);
            let it = &self.copies[copy];
            match self.fetch(copy, here, &mut into[at..at + count]) {
                Ok(from) => {
                    self.copies[from].works();
                    self.served(from, here, count);
                    (at, tried, single, since, last_try) = (at + count, 0, false, 0, false);
                }
                Err(error) => {
                    why = error;
                    it.failed(why);
                    if is_lost(why) {
                        tried |= 1 << copy;
                    } else if count > 1 {
                        // Which of them it is shows when each is read by itself.
                        single = true;
                    } else {
                        tried |= 1 << copy;
                        self.cannot_read(copy, here);
                    }
                }
            }
        }
        Ok(())
    }
}

/// A space that is kept several times.
pub struct Mirror {
    shared: Arc<Shared>,
    name: String,
    slots: Option<u64>,
    /// Taken by the thread that keeps the space, and never waited for.
    repair: Mutex<Repair>,
    open: Open,
}

impl core::fmt::Debug for Mirror {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Mirror").field("shared", &self.shared).finish_non_exhaustive()
    }
}

/// What a copy is like now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen<'m> {
    /// Its name.
    pub name: &'m str,
    /// Whether it answers.
    pub up: bool,
    /// Pages that it does not have yet.
    pub stale: u64,
    /// Reads of it that were late and sent to another copy too …
    pub hedged: u64,
    /// … and those of them that the other one answered first.
    pub hedged_won: u64,
}

impl Mirror {
    /// Opens what `specs` name, each with `open`. `partly`: some of them may be away now, as long as one is there; they are opened later.
    ///
    /// # Errors
    /// The first that cannot be used.
    pub fn open(specs: &[SwapSpec], partly: bool, open: Open, notice: &mut dyn FnMut(&str)) -> Result<Mirror, OpenError> {
        let name = SwapSpec::Mirror(specs.to_vec()).to_string();
        debug_assert!((2..=COPIES_MAX).contains(&specs.len()));
        let copies: Box<[Copy]> = specs.iter().map(Copy::new).collect();
        let mut why = None;
        for (n, copy) in copies.iter().enumerate() {
            match open(n, &copy.spec, notice) {
                Ok(space) => {
                    let _ = copy.space.set(space);
                    copy.down.store(false, Ordering::Relaxed);
                }
                Err(error) if partly => why = why.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        let spaces = || copies.iter().filter_map(|copy| Some((copy, copy.space.get()?)));
        if let Some(why) = why.filter(|_| spaces().next().is_none()) {
            return Err(why);
        }
        let slots = spaces().filter_map(|(copy, space)| copy.room(space)).min();
        if slots.is_some_and(|slots| slots < EXTENT_SLOTS as u64) {
            let bytes = spaces().filter_map(|(_, space)| space.capacity()).min().unwrap_or(0) * PAGE_SIZE as u64;
            return Err(OpenError::TooSmall { what: name, bytes });
        }
        let table = Table::new(slots).map_err(|(bytes, errno)| OpenError::NoMemory { bytes, errno })?;
        let hedges = Hedges::new().map_err(|(bytes, errno)| OpenError::NoMemory { bytes, errno })?;
        let lacking = Mutex::new(Vec::new());
        let is_parents = AtomicBool::new(false);
        let shared =
            Shared { copies, table, repairing: AtomicUsize::new(0), reads: AtomicU64::new(1), hedges, lacking, is_parents };
        let shared = Arc::new(shared);
        let repair = Repair::new(&shared, partly)
            .map_err(|(copy, why)| OpenError::Copies { what: shared.copies[copy].name.clone(), why })?;
        Ok(Mirror { shared, name, slots, repair: Mutex::new(repair), open })
    }

    /// The copies that are open.
    pub fn copies(&self) -> impl Iterator<Item = &AnyBackend> {
        self.shared.copies.iter().filter_map(|copy| copy.space.get())
    }

    /// What the copies are like now.
    pub fn seen(&self) -> impl Iterator<Item = Seen<'_>> {
        self.shared.copies.iter().map(|copy| Seen {
            name: &copy.name,
            up: copy.is_up(),
            stale: copy.behind(),
            hedged: copy.hedged.load(Ordering::Relaxed),
            hedged_won: copy.hedged_won.load(Ordering::Relaxed),
        })
    }

    /// In a forked child: the copies are its parent's, which repairs them.
    pub(crate) fn forked(&self, shared: bool) {
        self.shared.is_parents.store(true, Ordering::Relaxed);
        self.shared.hedges.forked();
        // What the parent has counted is among its own.
        self.shared
            .copies
            .iter()
            .flat_map(|copy| [&copy.hedged, &copy.hedged_won])
            .for_each(|count| count.store(0, Ordering::Relaxed));
        self.copies().for_each(|copy| copy.forked(shared));
    }

    /// The descriptors of all copies.
    pub(crate) fn fds(&self) -> impl Iterator<Item = RawFd> {
        self.copies().flat_map(AnyBackend::fds)
    }
}

impl Backend for Mirror {
    type Queue = MirrorQueue;

    fn queue(&self, depth: u32) -> Result<MirrorQueue, IoError> {
        MirrorQueue::new(&self.shared, depth)
    }
}

impl Reads for Mirror {
    fn read(&self, slot: Slot, into: &mut PageBuf) -> Result<(), IoError> {
        self.read_run(slot, core::slice::from_mut(into))
    }

    fn read_run(&self, first: Slot, into: &mut [PageBuf]) -> Result<(), IoError> {
        self.shared.read_run(first, into, 0)
    }

    /// From one copy, if it has all of them.
    fn begin_read(&self, first: Slot, into: &mut [PageBuf]) -> ReadBegun {
        let copy = self.shared.slot(first).and_then(|slot| self.shared.choose(slot, 0));
        // What a read takes shows where a thread waits for it: the first one does.
        let is_known = |copy: &usize| self.shared.copies[*copy].read_ns.load(Ordering::Relaxed) > 0;
        // A read of a server is waited for in any case, and may be hedged.
        let is_server = |copy: &usize| matches!(self.shared.copies[*copy].space.get(), Some(AnyBackend::Nbd(_)));
        let copy = copy.filter(|copy| is_known(copy) && !is_server(copy));
        let copy = copy.filter(|&copy| self.shared.run_on(copy, first, into.len()) == into.len());
        let Some(copy) = copy else { return ReadBegun::Over(self.read_run(first, into)) };
        self.shared.served(copy, first, into.len());
        let Some(space) = self.shared.copies[copy].space.get() else { return ReadBegun::Over(Err(IoError::Short)) };
        match space.begin_read(first, into) {
            ReadBegun::Over(read) => ReadBegun::Over(self.ended(copy, first, into, read)),
            begun => begun,
        }
    }

    fn finish_read(&self, first: Slot, into: &mut [PageBuf], read: Result<(), IoError>) -> Result<(), IoError> {
        let Some(copy) = self.shared.slot(first).and_then(SlotCopies::server) else { return Err(IoError::Short) };
        let Some(space) = self.shared.copies[copy].space.get() else { return Err(IoError::Short) };
        let read = space.finish_read(first, into, read);
        self.ended(copy, first, into, read)
    }

    fn doubt(&self, slot: Slot) {
        if let Some(at) = self.shared.slot(slot) {
            self.shared.doubt(slot, at);
        }
    }
}

impl Mirror {
    /// A read that somebody has waited for has ended: if it failed, another copy is asked.
    fn ended(&self, copy: usize, first: Slot, into: &mut [PageBuf], read: Result<(), IoError>) -> Result<(), IoError> {
        match read {
            Ok(()) => {
                self.shared.copies[copy].works();
                Ok(())
            }
            Err(why) => {
                self.shared.copies[copy].failed(why);
                if !is_lost(why) && into.len() == 1 {
                    self.shared.cannot_read(copy, first);
                }
                self.shared.read_run(first, into, 1 << copy)
            }
        }
    }
}

impl Spaces for Mirror {
    fn capacity(&self) -> Option<u64> {
        self.slots
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn spaces(&self) -> usize {
        1
    }

    fn capacity_of(&self, _space: usize) -> Option<u64> {
        self.slots
    }

    fn name_of(&self, _slot: Slot) -> &str {
        &self.name
    }

    /// By each copy that is up. What one that is down keeps is overwritten when its slots are used again.
    fn give_back(&self, first: Slot, count: u32) -> Result<(), IoError> {
        for n in 0..u64::from(count) {
            let Some(slot) = self.shared.slot(first.plus(n)) else { break };
            self.shared.count(first.number() + n, slot.forget().ok_or(LATER)?);
        }
        let mut all = Err(CANNOT);
        for (copy, space) in self.shared.up_spaces() {
            match space.give_back(first, count) {
                Ok(()) if all != Err(LATER) => all = Ok(()),
                Err(LATER) => all = Err(LATER),
                Err(why) if is_lost(why) => copy.failed(why),
                _ => {}
            }
        }
        all
    }

    fn keep(&self) -> Option<u64> {
        let others = self.shared.up_spaces().filter_map(|(_, space)| space.keep()).min();
        let is_parents = self.shared.is_parents.load(Ordering::Relaxed);
        // Nobody else takes it: the thread that keeps the space is one.
        let own = self.repair.try_lock().map_or(LOOK_NS, |mut repair| {
            if !is_parents {
                repair.open_more(&self.shared, self.slots, &self.open);
            }
            repair.turn(&self.shared, !is_parents)
        });
        Some(others.map_or(own, |others| others.min(own)))
    }

    fn news(&self, tell: &mut dyn FnMut(&str, CopyChange)) {
        for copy in &self.shared.copies {
            let (down, stale) = (!copy.is_up(), copy.behind());
            if copy.replaced.swap(false, Ordering::Relaxed) {
                tell(&copy.name, CopyChange::Replaced(stale));
            }
            if copy.told_down.swap(down, Ordering::Relaxed) != down {
                tell(&copy.name, if down { CopyChange::Lost } else { CopyChange::Back(stale) });
            }
            let whole = !down && stale == 0;
            if copy.told_whole.swap(whole, Ordering::Relaxed) != whole && whole {
                tell(&copy.name, CopyChange::Whole);
            }
        }
    }
}

impl MemoryBudget for Mirror {}
