//! Copies that come and go while the program runs.
//!
//! # One comes
//!
//! It takes a place without a copy. Each slot that has a page is stale there ([`SlotCopies`](farshore_core::copies::SlotCopies)), so nobody reads it, and the repair fills
//! it, as it does a copy that was away. Before anybody learns of it, it has its stamp, and each queue has a part for it.
//!
//! # One goes
//!
//! 1. At least two others stay, which answer and have each page that it has. Otherwise it is refused, and nothing is changed.
//! 2. It takes no new write. Then its life ends: a write that began before does not count it when it ends ([`queue`](super::queue)).
//! 3. It is made stale in each slot, if the ones that stay have the page ([`SlotCopies::retire`](farshore_core::copies::SlotCopies::retire)). If one of them has lost a
//!    page meanwhile, the copy stays: it is repaired as any other.
//! 4. From then on nobody begins to read it. When the last reader has left, each queue's part is at rest, and the caller says that no other process reads there, it is
//!    closed, and the place is empty. Until then it may be taken back: as a copy that has none of the pages.
//!
//! # Forks
//!
//! All of this is done by the one thread that keeps the space. Servers are waited for, and slots gone through, while the process may fork. Only the steps that a child must
//! not see by half are made by way of the caller's [`Alone`]: they wait for nobody. A child that is forked meanwhile has the copies of before, or of after.

use super::place::{AWAY, Copy, EMPTY, GOING, GONE, OPEN, Taken};
use super::site::Site;
use super::{Mirror, Shared, Tally, locked, repair};
use crate::any::AnyBackend;
use crate::error::OpenError;
use crate::sleep;
use core::sync::atomic::Ordering;
use farshore_config::{Size, SwapSpec};
use farshore_core::copies::CopySet;
use farshore_core::limits::{EXTENT_SLOTS, PAGE_SIZE};
use farshore_core::seams::IoError;
use std::fmt;

/// Copies that a space has at least.
const LEAST: u32 = 2;
/// So long a copy that comes finds no room before it is said to have none, in ns.
const FULL_FOR_NS: u64 = 3_000_000_000;

/// Runs something while the process cannot fork.
pub type Alone<'a> = &'a dyn Fn(&mut dyn FnMut());

/// Why a copy does not come or go. Displays as a line: what is wrong, and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NoExchange {
    /// There are as many as there can be.
    Three,
    /// It is one already.
    There,
    /// It is just being taken away.
    Goes,
    /// A pool of compressed pages is no copy.
    Pool,
    /// It has fewer slots than the others.
    Small {
        /// What it has room for, in bytes.
        bytes: u64,
        /// What the others have; `None`: as much as their disks have room for.
        needed: Option<u64>,
    },
    /// It is this copy by another name.
    Same(&'static str),
    /// It cannot be opened.
    Open(OpenError),
    /// It is open, and cannot be used.
    Use(IoError),
    /// There is no such copy; there are these.
    NoCopy(String),
    /// Only one other would stay.
    Two,
    /// This copy, which stays, does not answer.
    Down(&'static str),
    /// This copy, which stays, does not have so many of its pages.
    Lacks(&'static str, u64),
    /// The space is the parent's.
    Parents,
}

impl fmt::Display for NoExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoExchange::Three => f.write_str("there are three copies, as many as can be; take one away first (swap-=)"),
            NoExchange::There => f.write_str("it is one of the copies already; name another place"),
            NoExchange::Goes => f.write_str("it is just being taken away; try again when 'farshore stat' no longer shows it"),
            NoExchange::Pool => f.write_str("a pool of compressed pages, other copies, and Redis cannot be one of the copies; name a server (nbd:), a directory or a device"),
            NoExchange::Small { bytes, needed: Some(needed) } => write!(
                f,
                "it has room for {} of pages, and the other copies have {}; name a larger one",
                Size(*bytes),
                Size(*needed)
            ),
            NoExchange::Small { bytes, needed: None } => write!(
                f,
                "it has room for {} of pages, and the other copies for as much as their disks hold; name a directory, or start with a copy that has a size",
                Size(*bytes)
            ),
            NoExchange::Same(name) => write!(f, "it is the same place as {name}, by another name; name another"),
            NoExchange::Open(why) => why.fmt(f),
            NoExchange::Use(why) => write!(f, "it cannot be written ({why}); look after it, and try again"),
            NoExchange::NoCopy(there) => write!(f, "it is none of the copies; there are {there}"),
            NoExchange::Two => f.write_str("two copies are the fewest, and it is one of two; add another first (swap+=)"),
            NoExchange::Down(name) => write!(f, "{name}, which would stay, does not answer now; wait until it is back, or take that one away"),
            NoExchange::Lacks(name, pages) => write!(
                f,
                "{name}, which would stay, does not have {pages} of its pages yet; wait until 'farshore stat' shows no stale pages there"
            ),
            NoExchange::Parents => {
                f.write_str("this process has its parent's copies, and none of its own yet; change the parent's, or wait until this one has written")
            }
        }
    }
}

/// How far a copy is that has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Coming {
    /// It has all pages, or had once.
    Whole,
    /// It gets them.
    Filled,
    /// It has no room for so many of them, for some seconds now.
    Full(u64),
}

/// How far a copy is that was taken away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaving {
    /// Somebody uses it still: ask again.
    Used,
    /// Somebody may read by its descriptor still. When all faults that were under way have ended: [`Mirror::faults_have_ended`].
    Lent,
    /// It is closed.
    Closed,
}

impl Mirror {
    /// What the copies are made from, but for one that goes.
    pub fn specs(&self) -> Vec<SwapSpec> {
        self.shared.copies.iter().filter(|copy| matches!(copy.state(), AWAY | OPEN)).filter_map(Copy::spec).collect()
    }

    fn place_of(&self, spec: &SwapSpec) -> Option<usize> {
        // `force` is an order and no part of a name.
        let named = |spec: &SwapSpec| match spec.clone() {
            SwapSpec::Nbd(mut export) => {
                export.force = false;
                SwapSpec::Nbd(export)
            }
            SwapSpec::Dev { path, size, .. } => SwapSpec::Dev { path, size, force: false },
            other => other,
        };
        self.shared.copies.iter().position(|copy| copy.spec().is_some_and(|there| named(&there) == named(spec)))
    }

    /// Whether a copy can come, as far as that is known without opening it.
    ///
    /// # Errors
    /// Why not.
    pub fn may_add(&self, spec: &SwapSpec) -> Result<(), NoExchange> {
        if self.shared.is_parents.load(Ordering::Relaxed) {
            return Err(NoExchange::Parents);
        }
        if !spec.can_be_copy() {
            return Err(NoExchange::Pool);
        }
        match self.place_of(spec).map(|n| self.shared.copies[n].state()) {
            Some(GOING | GONE) => Err(NoExchange::Goes),
            Some(_) => Err(NoExchange::There),
            None if self.shared.copies.iter().all(|copy| copy.state() != EMPTY) => Err(NoExchange::Three),
            None => Ok(()),
        }
    }

    /// A copy comes: it is open from now on, and is filled by [`Spaces::keep`](farshore_core::seams::Spaces::keep). By the thread that keeps the space.
    ///
    /// # Errors
    /// Why not. Nothing has changed then.
    pub fn add(&self, spec: &SwapSpec, alone: Alone<'_>, notice: &mut dyn FnMut(&str)) -> Result<(), NoExchange> {
        self.may_add(spec)?;
        let shared = &*self.shared;
        let is_free = |n: &usize| shared.copies[*n].state() == EMPTY;
        let place = (0..shared.copies.len()).find(is_free).ok_or(NoExchange::Three)?;
        let mut site = Site::of(spec);
        if let Some(there) = shared.copies.iter().find(|copy| copy.is_at(site.as_ref())) {
            return Err(NoExchange::Same(there.name()));
        }
        let space = (self.open)(place, spec, notice).map_err(NoExchange::Open)?;
        let slot_bytes = |slots: u64| slots * PAGE_SIZE as u64;
        if let Some(room) = Copy::room(&space, spec.is_remote())
            && self.slots.is_none_or(|slots| room < slots)
        {
            return Err(NoExchange::Small { bytes: slot_bytes(room), needed: self.slots.map(slot_bytes) });
        }
        let queue = repair::try_out(shared, place, &space, spec.is_remote())?;
        // It has none of the pages. As a rule that is known of a place without a copy.
        shared.lose(place);
        let mut comes = Some((space, queue));
        while let Some((space, _)) = &comes {
            if let Err(why) = shared.supply(place, space) {
                shared.take_supply(place);
                return Err(NoExchange::Use(why));
            }
            alone(&mut || {
                // Before the parts, as the one who repairs.
                let mut repair = locked(&self.repair);
                shared.where_all_have(place, || {
                    if let Some((space, queue)) = comes.take() {
                        repair.begin_with(place, queue);
                        self.begin(place, spec, site.take(), space);
                    }
                });
            });
        }
        Ok(())
    }

    fn begin(&self, place: usize, spec: &SwapSpec, site: Option<Site>, space: AnyBackend) {
        let copy = &self.shared.copies[place];
        copy.expect(spec, site);
        self.fill(place);
        copy.put(space);
        copy.rise(sleep::now_ns());
        self.rename();
    }

    /// A copy that has none of the pages is to get them.
    fn fill(&self, place: usize) {
        let copy = &self.shared.copies[place];
        copy.lacked.store(copy.behind(), Ordering::Relaxed);
        copy.filling.store(true, Ordering::Relaxed);
        copy.found_room();
        self.shared.table.note_all(place);
    }

    /// A copy that was taken away and is not closed yet is used again, and is filled as one that comes. By the thread that keeps the space.
    /// Whether there is such a copy.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn take_back(&self, spec: &SwapSpec, alone: Alone<'_>) -> Result<bool, NoExchange> {
        let shared = &*self.shared;
        let Some(place) = self.place_of(spec).filter(|&n| shared.copies[n].state() == GONE) else { return Ok(false) };
        let copy = &shared.copies[place];
        let Some(space) = copy.opened() else {
            alone(&mut || {
                copy.set_state(AWAY);
                self.rename();
            });
            return Ok(true);
        };
        let mut is_back = false;
        while !is_back {
            // If one cannot have it, those of the others are taken back when the copy is closed.
            shared.supply(place, &space).map_err(NoExchange::Use)?;
            alone(&mut || {
                shared.where_all_have(place, || {
                    self.fill(place);
                    copy.set_state(OPEN);
                    self.rename();
                    is_back = true;
                });
            });
        }
        Ok(true)
    }

    /// How far a copy is that has come. `None`: there is no such copy.
    pub fn coming(&self, spec: &SwapSpec) -> Option<Coming> {
        let copy = &self.shared.copies[self.place_of(spec)?];
        match copy.state() {
            AWAY | OPEN if !copy.filling.load(Ordering::Relaxed) => Some(Coming::Whole),
            AWAY | OPEN if copy.full_for_ns() > FULL_FOR_NS => Some(Coming::Full(copy.behind())),
            AWAY | OPEN => Some(Coming::Filled),
            _ => None,
        }
    }

    /// How far a copy that has come is filled, in percent of what it lacked at first; 100: it has all, or had once. `None`: there is no such copy.
    pub fn filled_percent(&self, spec: &SwapSpec) -> Option<u8> {
        if self.coming(spec)? == Coming::Whole {
            return Some(100);
        }
        let copy = &self.shared.copies[self.place_of(spec)?];
        let lacked = copy.lacked.load(Ordering::Relaxed).max(1);
        Some((99 * lacked.saturating_sub(copy.behind()) / lacked) as u8)
    }

    /// Looks which of the copies that have come have all pages now. By the thread that keeps the space.
    pub(super) fn look_at_filled(&self) {
        let shared = &*self.shared;
        let filling = |copy: &Copy| copy.filling.load(Ordering::Relaxed) && copy.is_up() && copy.behind() == 0;
        for (n, copy) in shared.copies.iter().enumerate().filter(|(_, copy)| filling(copy)) {
            // The count may be behind by what two threads count at once.
            if shared.lacks(n) == 0 {
                copy.told_whole.store(true, Ordering::Relaxed);
                copy.filling.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Whether a copy can go, as far as that is known at once.
    ///
    /// # Errors
    /// Why not.
    pub fn may_remove(&self, spec: &SwapSpec) -> Result<(), NoExchange> {
        if self.shared.is_parents.load(Ordering::Relaxed) {
            return Err(NoExchange::Parents);
        }
        let Some(place) = self.place_of(spec) else {
            let there: Vec<_> = self.specs().iter().map(SwapSpec::to_string).collect();
            return Err(NoExchange::NoCopy(there.join(", ")));
        };
        if matches!(self.shared.copies[place].state(), GOING | GONE) {
            return Err(NoExchange::Goes);
        }
        self.staying(place).map(|_| ())
    }

    /// The copies that stay when one goes.
    fn staying(&self, place: usize) -> Result<CopySet, NoExchange> {
        let staying = self.shared.set(|copy| matches!(copy.state(), AWAY | OPEN)) & !(1 << place);
        if staying.count_ones() < LEAST {
            return Err(NoExchange::Two);
        }
        match (0..self.shared.copies.len()).find(|&n| staying >> n & 1 != 0 && !self.shared.copies[n].is_up()) {
            Some(down) => Err(NoExchange::Down(self.shared.copies[down].name())),
            None => Ok(staying),
        }
    }

    /// A copy goes: it is used no more. [`Mirror::leave`] closes it. By the thread that keeps the space.
    ///
    /// # Errors
    /// Why not. It is used as before then.
    pub fn remove(&self, spec: &SwapSpec, alone: Alone<'_>) -> Result<(), NoExchange> {
        self.may_remove(spec)?;
        let Some(place) = self.place_of(spec) else { return Ok(()) };
        let (shared, copy, staying) = (&*self.shared, &self.shared.copies[place], self.staying(place)?);
        shared.whole_without(place, staying)?;
        let before = copy.state();
        // In this order: a write that finds the new life finds this too.
        copy.set_state(if before == OPEN { GOING } else { GONE });
        shared.end_life(place);
        let (mut tally, mut needed) = (Tally::default(), false);
        for slot in 0..shared.table.used() * EXTENT_SLOTS as u64 {
            let Some(it) = shared.table.slot(slot) else { continue };
            match it.retire(place, staying) {
                Some(turned) => shared.note(&mut tally, slot, turned),
                None => {
                    needed = true;
                    break;
                }
            }
        }
        shared.settle(tally);
        if needed {
            copy.set_state(before);
            shared.whole_without(place, staying)?;
            // It had been written once more when we looked.
            return Err(NoExchange::Lacks(copy.name(), 1));
        }
        alone(&mut || {
            copy.set_state(GONE);
            self.rename();
        });
        Ok(())
    }

    /// All faults have ended that were under way when a copy was said to be lent ([`Leaving::Lent`]).
    pub fn faults_have_ended(&self, spec: &SwapSpec) {
        if let Some(copy) = self.place_of(spec).map(|place| &self.shared.copies[place])
            && copy.state() == GONE
        {
            copy.give_back();
        }
    }

    /// Closes a copy that was removed, if nobody uses it any more and `may_close`. By the thread that keeps the space.
    pub fn leave(&self, spec: &SwapSpec, may_close: bool, alone: Alone<'_>) -> Leaving {
        let Some(place) = self.place_of(spec) else { return Leaving::Closed };
        let (shared, copy) = (&*self.shared, &self.shared.copies[place]);
        if !may_close || copy.state() != GONE {
            return Leaving::Used;
        }
        // All of them, one by one: what is at rest stays so.
        let all = locked(&shared.parts).clone();
        if all.iter().filter(|parts| !parts.take_back(place)).count() > 0 {
            return Leaving::Used;
        }
        drop(all);
        let (mut queue, mut space, mut now) = (None, None, Leaving::Used);
        alone(&mut || {
            let mut repair = locked(&self.repair);
            let parts = locked(&shared.parts);
            // A queue that was just being made when the copy went may have got a part since.
            if !repair.is_at_rest(place) || parts.iter().any(|parts| parts.has(place)) {
                return;
            }
            match copy.take() {
                Taken::Used => {}
                Taken::Lent => now = Leaving::Lent,
                Taken::Yes(taken) => {
                    now = Leaving::Closed;
                    queue = repair.forget(place);
                    let files = taken.as_ref().and_then(AnyBackend::files);
                    // Claims of devices are the process', and a child has them on its list.
                    files.filter(|_| !spec.is_device()).into_iter().for_each(|files| self.closing.note(files.fds()));
                    space = taken;
                }
            }
        });
        if now != Leaving::Closed {
            return now;
        }
        drop(queue);
        // A disk may take its time for that.
        drop(space);
        alone(&mut || self.closing.forget());
        Leaving::Closed
    }

    fn rename(&self) {
        let name: &'static str = SwapSpec::Mirror(self.specs()).to_string().leak();
        loop {
            // Others copy a pointer at most.
            if let Ok(mut now) = self.name.try_write() {
                *now = name;
                return;
            }
            core::hint::spin_loop();
        }
    }
}

impl Shared {
    /// A copy has none of the pages that slots have.
    pub(super) fn lose(&self, copy: usize) {
        let mut tally = Tally::default();
        for slot in 0..self.table.used() * EXTENT_SLOTS as u64 {
            if let Some(it) = self.table.slot(slot) {
                self.note(&mut tally, slot, it.lose(1 << copy));
            }
        }
        self.settle(tally);
    }

    /// Slots that have a page which this copy does not have.
    fn lacks(&self, copy: usize) -> u64 {
        let slots = 0..self.table.used() * EXTENT_SLOTS as u64;
        slots.filter_map(|slot| self.table.slot(slot)).filter(|slot| slot.has_page() && slot.stale() >> copy & 1 != 0).count()
            as u64
    }

    /// Whether all that stay have each page that copy `place` has.
    fn whole_without(&self, place: usize, staying: CopySet) -> Result<(), NoExchange> {
        for n in (0..self.copies.len()).filter(|&n| staying >> n & 1 != 0) {
            let slots = 0..self.table.used() * EXTENT_SLOTS as u64;
            let lacks = slots.filter_map(|slot| self.table.slot(slot)).filter(|slot| slot.needs(place, 1 << n)).count();
            if lacks > 0 {
                return Err(NoExchange::Lacks(self.copies[n].name(), lacks as u64));
            }
        }
        Ok(())
    }
}
