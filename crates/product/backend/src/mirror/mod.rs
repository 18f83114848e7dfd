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
//! | [`place`] | a place for a copy: what is there, and in which state |
//! | [`site`] | which place of this machine a copy has, whatever it is called |
//! | [`exchange`] | copies that come and go while the program runs |
//!
//! # Invariants
//!
//! - A write is acknowledged only when a copy has it. A copy that does not have it is *stale* in these slots before that
//!   ([`SlotCopies`]), and no reader is sent to it.
//! - A copy that has lost what it had (a memory node that was started again) is found by its *stamp*: a page behind the slots of the engine, with bytes that no
//!   other run has. It is read before the copy is used again, and every [`LOOK_NS`]. While its bytes are others, all slots of the copy are stale. What a reader gets
//!   before that has a wrong checksum, and the next copy is asked.
//! - A copy is used by whoever holds its place's lock for reading, which nobody waits for, and who has found its state and the slot right under it. It is closed under
//!   the same lock for writing.
//! - Copies are used in the order of their answers, not of their names: each is *up* or *down*. Where the last one is down too, a reader waits for any, as long as it
//!   would for a space without copies.
//!
//! # Time
//!
//! A server is waited for two minutes where its pages are nowhere else. Here a second must do ([`Waits::short`](super::nbd::Waits)): the others have the page, and what
//! the server misses is repaired. A disk that hangs cannot be left: the kernel gives neither the thread nor its buffer back.

pub mod exchange;
mod hedge;
mod place;
pub mod queue;
mod repair;
mod site;
mod table;

use crate::any::AnyBackend;
use crate::error::OpenError;
use crate::nbd;
use crate::sleep;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use farshore_config::SwapSpec;
use farshore_core::copies::{COPIES_MAX, CopySet, SlotCopies, Turned};
use farshore_core::limits::{EXTENT_SLOTS, PAGE_SIZE};
use farshore_core::seams::{
    Backend, CANNOT, CopyChange, FreeSlots, IoError, LATER, MemoryBudget, PageBuf, ReadBegun, Reads, Spaces,
};
use farshore_core::word::Slot;
use hedge::Hedges;
pub use place::Opened;
use place::{Closing, Copy};
use queue::{MirrorQueue, Parts};
use repair::Repair;
use rustix::fd::RawFd;
use rustix::io::Errno;
use site::Site;
use std::sync::{Arc, Mutex, MutexGuard, RwLock, TryLockError};
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
/// While another thread has a lock, in ns.
const LOCK_NAP_NS: u64 = 50_000;

/// Opens the copy of this number. Notices are for the user.
pub type Open = Box<dyn Fn(usize, &SwapSpec, &mut dyn FnMut(&str)) -> Result<AnyBackend, OpenError> + Send + Sync>;

/// Whether an error says that a server is away, rather than that it could not do something.
fn is_lost(why: IoError) -> bool {
    [Errno::TIMEDOUT, Errno::CONNRESET, Errno::MFILE].iter().any(|errno| why == IoError::Device(errno.raw_os_error()))
}

/// What a mirror and its queues share.
#[derive(Debug)]
struct Shared {
    /// A place for each copy that there can be.
    copies: [Copy; COPIES_MAX],
    table: Table,
    /// The copy that is repaired.
    repairing: AtomicUsize,
    reads: AtomicU64,
    hedges: Hedges,
    /// See [`repair`]; the first byte is the copy's number.
    stamp: Box<PageBuf>,
    /// The parts of all queues. Locked when a queue comes or goes, and when a copy begins to be used or is closed; never while anything is waited for.
    parts: Mutex<Vec<Arc<Parts>>>,
    /// A forked child's view of its parent's space: it reads, and repairs nothing. What its parent repairs it does not learn.
    is_parents: AtomicBool,
}

/// Takes a lock. The thread does not sleep in it: that would go through libc.
fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    loop {
        match lock.try_lock() {
            Ok(held) => return held,
            Err(TryLockError::Poisoned(held)) => return held.into_inner(),
            Err(TryLockError::WouldBlock) => sleep::nap(LOCK_NAP_NS),
        }
    }
}

/// What has become of the slots of a run, to be counted at once.
#[derive(Default)]
struct Tally {
    /// Copies that are stale in a slot of the extent of the slot that was noted last.
    stale: CopySet,
    slot: u64,
    /// How many more slots each copy is stale in.
    more: [i64; COPIES_MAX],
}

impl Shared {
    /// All copies.
    fn all(&self) -> CopySet {
        self.set(Copy::is_there)
    }

    /// The copies that are up, and their spaces.
    fn up_spaces(&self) -> impl Iterator<Item = (&Copy, Opened<'_>)> {
        self.copies.iter().filter(|copy| copy.is_up()).filter_map(|copy| Some((copy, copy.held()?)))
    }

    fn up(&self) -> CopySet {
        self.set(Copy::is_up)
    }

    fn set(&self, is_in: impl Fn(&Copy) -> bool) -> CopySet {
        self.copies.iter().enumerate().filter(|(_, copy)| is_in(copy)).fold(0, |set, (n, _)| set | 1 << n)
    }

    /// What a copy has does not count any more, and no write that began before will. Nobody is waited for but threads that are just counting.
    fn end_life(&self, copy: usize) {
        self.copies[copy].life.fetch_add(1, Ordering::SeqCst);
        // Before it is looked who is counting. Pairs with the fence in `Parts::counts`.
        fence(Ordering::SeqCst);
        // The queues of a forked child's parent are not here, and what they were doing at the fork does not go on.
        if !self.is_parents.load(Ordering::Relaxed) {
            locked(&self.parts).iter().for_each(|parts| parts.let_counting_end());
        }
    }

    /// Makes the parts for a copy that queues lack. May wait for a server.
    ///
    /// # Errors
    /// A queue cannot have one.
    fn supply(&self, copy: usize, space: &AnyBackend) -> Result<(), IoError> {
        let lacking: Vec<_> = locked(&self.parts).iter().filter(|parts| !parts.has(copy)).cloned().collect();
        lacking.iter().try_for_each(|parts| parts.give(copy, space))
    }

    /// Takes back what [`Shared::supply`] has given for a copy that nobody writes to.
    fn take_supply(&self, copy: usize) {
        let all = locked(&self.parts).clone();
        for parts in all {
            // A queue's thread has it for a moment at most.
            while !parts.take_back(copy) {
                sleep::nap(LOCK_NAP_NS);
            }
        }
    }

    /// Runs `f`, by which a copy begins to be used, if each queue has a part for it. None is made meanwhile. `None`: one lacks it, and is to be supplied first.
    fn where_all_have<R>(&self, copy: usize, f: impl FnOnce() -> R) -> Option<R> {
        let all = locked(&self.parts);
        all.iter().all(|parts| parts.has(copy)).then(f)
    }

    /// A copy that was expected is open, and is used from now on. While nobody can fork.
    ///
    /// # Errors
    /// A queue cannot have a part for it.
    fn install(&self, copy: usize, space: AnyBackend) -> Result<(), IoError> {
        let mut space = Some(space);
        while let Some(it) = &space {
            if let Err(why) = self.supply(copy, it) {
                self.take_supply(copy);
                return Err(why);
            }
            self.where_all_have(copy, || space.take().into_iter().for_each(|space| self.copies[copy].put(space)));
        }
        self.copies[copy].rise(sleep::now_ns());
        Ok(())
    }

    /// Counts what has become of a slot.
    fn count(&self, slot: u64, turned: Turned) {
        let mut tally = Tally::default();
        self.note(&mut tally, slot, turned);
        self.settle(tally);
    }

    /// Notes what has become of a slot, of several one after the other.
    fn note(&self, tally: &mut Tally, slot: u64, turned: Turned) {
        if turned.stale | turned.right == 0 {
            return;
        }
        if slot / EXTENT_SLOTS as u64 != tally.slot / EXTENT_SLOTS as u64 {
            self.table.note_stale(tally.slot, tally.stale & self.all());
            tally.stale = 0;
        }
        tally.slot = slot;
        tally.stale |= turned.stale;
        for (n, more) in tally.more.iter_mut().enumerate() {
            *more += i64::from(turned.stale >> n & 1) - i64::from(turned.right >> n & 1);
        }
    }

    /// Counts what was noted. A place without a copy counts too: whoever comes there lacks so much.
    fn settle(&self, tally: Tally) {
        self.copies.iter().zip(tally.more).filter(|(_, more)| *more != 0).for_each(|(copy, more)| copy.turned(more));
        if tally.stale != 0 {
            self.table.note_stale(tally.slot, tally.stale & self.all());
        }
    }

    fn slot(&self, slot: Slot) -> Option<&SlotCopies> {
        self.table.slot(slot.number())
    }

    /// The copy to read `slot` from, of those that were not tried.
    fn choose(&self, slot: &SlotCopies, tried: CopySet) -> Option<usize> {
        let able = self.set(Copy::is_readable) & !slot.stale() & !tried;
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
            let it = &self.copies[copy];
            let Some(space) = it.held() else {
                // It has just gone, and another one has the page.
                tried |= 1 << copy;
                continue;
            };
            // Looked at once more, as another copy may have come to its place meanwhile.
            let count = self.run_on(copy, here, if single { 1 } else { into.len() - at });
            if count == 0 {
                continue;
            }
            match self.fetch(copy, &space, here, &mut into[at..at + count]) {
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
    /// Replaced where a copy comes or goes; the old one stays, since names are handed out.
    name: RwLock<&'static str>,
    slots: Option<u64>,
    /// Taken by the thread that keeps the space, and never waited for.
    repair: Mutex<Repair>,
    closing: Closing,
    open: Open,
}

impl core::fmt::Debug for Mirror {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Mirror").field("shared", &self.shared).finish_non_exhaustive()
    }
}

/// What a copy is like now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Its name.
    pub name: &'static str,
    /// Whether it answers.
    pub up: bool,
    /// It has come while the program runs, and did not have all pages yet.
    pub filling: bool,
    /// It was taken away, and somebody may use it still.
    pub leaving: bool,
    /// It has no room for pages that it does not have.
    pub full: bool,
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
        let copies: [Copy; COPIES_MAX] = core::array::from_fn(|_| Copy::empty());
        let mut why = None;
        for (n, (copy, spec)) in copies.iter().zip(specs).enumerate() {
            let site = Site::of(spec);
            // Where not all must be there, the process that was started first has looked.
            if !partly && let Some(there) = copies[..n].iter().find(|there| there.is_at(site.as_ref())) {
                return Err(OpenError::OnePlace { what: spec.to_string(), there: there.name().to_owned() });
            }
            copy.expect(spec, site);
            match open(n, spec, notice) {
                Ok(space) => {
                    copy.put(space);
                    copy.rise(0);
                }
                Err(error) if partly => why = why.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        let spaces = || copies.iter().filter_map(|copy| Some((copy, copy.opened()?)));
        if let Some(why) = why.filter(|_| spaces().next().is_none()) {
            return Err(why);
        }
        let slots = spaces().filter_map(|(copy, space)| Copy::room(&space, copy.is_remote())).min();
        if slots.is_some_and(|slots| slots < EXTENT_SLOTS as u64) {
            let bytes = spaces().filter_map(|(_, space)| space.capacity()).min().unwrap_or(0) * PAGE_SIZE as u64;
            return Err(OpenError::TooSmall { what: name, bytes });
        }
        let table = Table::new(slots).map_err(|(bytes, errno)| OpenError::NoMemory { bytes, errno })?;
        let hedges = Hedges::new().map_err(|(bytes, errno)| OpenError::NoMemory { bytes, errno })?;
        let stamp = repair::new_stamp().map_err(|why| OpenError::Copies { what: name.clone(), why })?;
        let shared = Arc::new(Shared {
            copies,
            table,
            repairing: AtomicUsize::new(0),
            reads: AtomicU64::new(1),
            hedges,
            stamp,
            parts: Mutex::new(Vec::new()),
            is_parents: AtomicBool::new(false),
        });
        let repair = Repair::new(&shared, partly)
            .map_err(|(copy, why)| OpenError::Copies { what: shared.copies[copy].name().to_owned(), why })?;
        Ok(Mirror {
            shared,
            name: RwLock::new(name.leak()),
            slots,
            repair: Mutex::new(repair),
            closing: Closing::default(),
            open,
        })
    }

    /// The copies that are open. None is closed as long as its like is held.
    pub fn copies(&self) -> impl Iterator<Item = Opened<'_>> {
        self.shared.copies.iter().filter_map(Copy::opened)
    }

    /// What the copies are like now.
    pub fn seen(&self) -> impl Iterator<Item = Seen> {
        self.shared.copies.iter().filter(|copy| copy.is_there()).map(|copy| Seen {
            name: copy.name(),
            up: copy.is_up(),
            filling: copy.filling.load(Ordering::Relaxed),
            leaving: copy.is_leaving(),
            full: copy.full_for_ns() > 0,
            stale: copy.behind(),
            hedged: copy.hedged.load(Ordering::Relaxed),
            hedged_won: copy.hedged_won.load(Ordering::Relaxed),
        })
    }

    /// Its name now.
    fn name_now(&self) -> &'static str {
        loop {
            // Another thread stores a pointer at most.
            if let Ok(name) = self.name.try_read() {
                return *name;
            }
            core::hint::spin_loop();
        }
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

    /// In a forked child: closes the files of copies that the parent was about to close.
    pub(crate) fn close_shut(&self) {
        for space in self.shared.copies.iter().filter(|copy| copy.is_leaving()).filter_map(Copy::opened) {
            (0..space.spaces()).for_each(|n| space.shut_space(n));
            space.close_shut();
        }
        self.closing.close();
    }

    /// The descriptors of all copies.
    pub(crate) fn fds(&self) -> impl Iterator<Item = RawFd> {
        self.copies().flat_map(|copy| copy.fds().collect::<Vec<_>>())
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
        let held = copy.filter(is_known).and_then(|copy| Some((copy, self.shared.copies[copy].held()?)));
        // A read of a server is waited for in any case, and may be hedged.
        let held = held.filter(|(copy, space)| {
            !matches!(**space, AnyBackend::Nbd(_)) && self.shared.run_on(*copy, first, into.len()) == into.len()
        });
        let Some((copy, space)) = held else { return ReadBegun::Over(self.read_run(first, into)) };
        self.shared.served(copy, first, into.len());
        // Whoever reads by its descriptor holds nothing, so the copy is not closed before all such reads have ended.
        self.shared.copies[copy].lend();
        match space.begin_read(first, into) {
            ReadBegun::Over(read) => {
                drop(space);
                ReadBegun::Over(self.ended(copy, first, into, read))
            }
            begun => begun,
        }
    }

    /// Which copy it was of is not known here: another read of the slot may have noted another one since. So if it failed, none is blamed. It is read once more by
    /// somebody who knows whom he asks.
    fn finish_read(&self, first: Slot, into: &mut [PageBuf], read: Result<(), IoError>) -> Result<(), IoError> {
        read.or_else(|_| self.read_run(first, into))
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
        self.name_now()
    }

    fn spaces(&self) -> usize {
        1
    }

    fn capacity_of(&self, _space: usize) -> Option<u64> {
        self.slots
    }

    fn name_of(&self, _slot: Slot) -> &str {
        self.name_now()
    }

    /// By each copy that is up. What one that is down keeps is overwritten when its slots are used again.
    fn give_back(&self, first: Slot, count: u32) -> Result<(), IoError> {
        let (mut tally, mut forgotten) = (Tally::default(), Ok(()));
        for n in 0..u64::from(count) {
            let Some(slot) = self.shared.slot(first.plus(n)) else { break };
            match slot.forget() {
                Some(turned) => self.shared.note(&mut tally, first.number() + n, turned),
                None => {
                    forgotten = Err(LATER);
                    break;
                }
            }
        }
        self.shared.settle(tally);
        forgotten?;
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

    fn keep(&self, free: &dyn FreeSlots) -> Option<u64> {
        let others = self.shared.up_spaces().filter_map(|(_, space)| space.keep(free)).min();
        let is_parents = self.shared.is_parents.load(Ordering::Relaxed);
        // Nobody else takes it: the thread that keeps the space is one.
        let own = self.repair.try_lock().map_or(LOOK_NS, |mut repair| {
            if !is_parents {
                repair.open_more(&self.shared, self.slots, &self.open);
            }
            repair.turn(&self.shared, !is_parents, free)
        });
        self.look_at_filled();
        Some(others.map_or(own, |others| others.min(own)))
    }

    fn news(&self, tell: &mut dyn FnMut(&str, CopyChange)) {
        for copy in self.shared.copies.iter().filter(|copy| copy.is_there() && !copy.is_leaving()) {
            let (down, stale) = (!copy.is_up(), copy.behind());
            if copy.replaced.swap(false, Ordering::Relaxed) {
                tell(copy.name(), CopyChange::Replaced(stale));
            }
            if copy.told_down.swap(down, Ordering::Relaxed) != down {
                tell(copy.name(), if down { CopyChange::Lost } else { CopyChange::Back(stale) });
            }
            let whole = !down && stale == 0;
            // Once until it has all: there may be room for a little now and then.
            if whole {
                copy.told_full.store(false, Ordering::Relaxed);
            } else if copy.full_for_ns() > 0 && !copy.told_full.swap(true, Ordering::Relaxed) {
                tell(copy.name(), CopyChange::Full(stale));
            }
            if copy.filling.load(Ordering::Relaxed) {
                continue;
            }
            if copy.told_whole.swap(whole, Ordering::Relaxed) != whole && whole {
                tell(copy.name(), CopyChange::Whole);
            }
        }
    }
}

impl MemoryBudget for Mirror {}
