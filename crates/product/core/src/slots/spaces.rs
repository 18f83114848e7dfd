//! The spaces that extents lie in: which slots of each may be given out, and how spaces come and go.
//!
//! # A space goes
//!
//! ```text
//!  thread that reserves            takes slots, counts them in `live` ─ fence ─ looks whether the space is closed: gives them back
//!  thread that takes it away       closes the space                   ─ fence ─ looks at `live`
//! ```
//!
//! One of the two sees the other. So a closed space that was found empty ([`SlotMap::is_empty`]) stays empty: no page word and no
//! stage names a slot of it, and none will.
//!
//! Its extents stay in the map, and their slots belong to no page. A space that comes may take its number; then the extents lie
//! in that space.

use super::arrangement::{Place, SPACES_MAX, SpaceSet};
use super::{CHUNK, SlotMap, locate};
use crate::canary::{Canary, is_planted};
use crate::limits::{EXTENT_SLOTS, EXTENTS_MAX};
use crate::sync::plain::AtomicU32;
use crate::sync::{AtomicPtr, Ordering, fence};
use crate::word::Slot;
use alloc::boxed::Box;

/// Which slots of a space may be given out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allowed {
    /// Any, up to its capacity.
    All,
    /// Slots in extents that exist already: the disk is full, and what it holds can be overwritten. Not in those where it turned out
    /// that it does not hold all ([`SlotMap::bar`]).
    NoGrowth,
    /// None: the space fails.
    Nothing,
}

/// One space of an array. Plain atomics, in models too: they are hints, every value of which is right.
#[derive(Debug)]
pub(super) struct Bounds {
    /// Extents that the space can hold.
    capacity: AtomicU32,
    /// Its extents from here on are not given out.
    ceiling: AtomicU32,
    /// How many extents the space had when it was found full; all ones: it is not full.
    grown: AtomicU32,
    /// How often it was found full.
    times_full: AtomicU32,
}

impl Bounds {
    fn set(&self, capacity: u32) {
        self.capacity.store(capacity, Ordering::Relaxed);
        self.ceiling.store(capacity, Ordering::Relaxed);
        self.grown.store(u32::MAX, Ordering::Relaxed);
    }
}

/// Bounds for as many spaces as there can be, of which the first have these capacities.
pub(super) fn bounds(capacities: &[Option<u64>]) -> Box<[Bounds]> {
    let number = AtomicU32::new;
    let all: Box<[Bounds]> = (0..SPACES_MAX)
        .map(|_| Bounds { capacity: number(0), ceiling: number(0), grown: number(u32::MAX), times_full: number(0) })
        .collect();
    all.iter().zip(capacities).for_each(|(bounds, capacity)| bounds.set(extents(*capacity)));
    all
}

/// Whole extents of this many slots.
fn extents(capacity: Option<u64>) -> u32 {
    capacity.map_or(u64::from(u32::MAX), |slots| slots / EXTENT_SLOTS as u64).min(u64::from(u32::MAX)) as u32
}

/// The outcome of [`SlotMap::end_space`].
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Removal {
    /// New extents go round the other spaces.
    LeftOut,
    /// The space keeps its turn, for a space that takes its number: its extents will not be used.
    KeepsTurn,
}

impl SlotMap {
    /// Own extents go round spaces of these capacities, in slots (`None`: as many as there can be). To be called before the
    /// first slot is reserved, or just after [`SlotMap::begin_own`].
    ///
    /// # Panics
    /// For more than [`SPACES_MAX`].
    pub fn set_spaces(&mut self, capacities: &[Option<u64>]) {
        assert!(capacities.len() <= SPACES_MAX, "{} swap spaces", capacities.len());
        let own_max = EXTENTS_MAX as u32 - self.base.min(EXTENTS_MAX as u32);
        let largest = capacities.iter().map(|capacity| extents(*capacity)).max().unwrap_or(0);
        let count = capacities.len().max(1);
        self.set_extents_max(self.base + largest.saturating_mul(count as u32).min(own_max));
        self.stocked.store(false, Ordering::Relaxed);
        self.spaces = bounds(capacities);
        self.arrangements = super::Arrangements::new(SpaceSet::first(count));
        self.known.store(count as u32, Ordering::Relaxed);
        self.closed.store(0, Ordering::Relaxed);
        self.owners.changed();
    }

    /// Makes room for this many extents, or for as many as there can be if spaces may come.
    pub(super) fn set_extents_max(&mut self, extents: u32) {
        self.extents_max.store(extents, Ordering::Relaxed);
        // The memory is reserved, and filled as the map grows.
        let room = if cfg!(any(loom, miri)) { extents as usize } else { EXTENTS_MAX };
        let chunks = room.div_ceil(CHUNK).max(1);
        if chunks > self.chunks.len() {
            let mut all = core::mem::take(&mut self.chunks).into_vec();
            all.resize_with(chunks, || AtomicPtr::new(core::ptr::null_mut()));
            self.chunks = all.into_boxed_slice();
        }
    }

    /// Number of spaces that exist or existed; their numbers are below it.
    pub fn spaces(&self) -> usize {
        self.known.load(Ordering::Acquire) as usize
    }

    /// The space of an own slot; `None` if it is in the base, or a page of a mapped file.
    pub fn space_of(&self, slot: Slot) -> Option<usize> {
        if slot.is_of_file() {
            return None;
        }
        Some(self.arrangements.place_of(locate(slot).0.checked_sub(self.base)?).space)
    }

    /// Some own slot of `space`, whether it exists or not: to look up the space's name.
    pub fn some_slot_of(&self, space: usize) -> Option<Slot> {
        let own = self.extents.load(Ordering::Acquire).saturating_sub(self.base);
        // The extents that come next are among them.
        let turn = self.arrangements.current().len() as u32;
        let extent = self.arrangements.extents_of(space, own + turn).last()?;
        Slot::new(u64::from(self.base + extent) * EXTENT_SLOTS as u64 + 1)
    }

    /// Slots in use in one space.
    pub fn live_in(&self, space: usize) -> u64 {
        let own = self.extents.load(Ordering::Acquire) - self.base;
        let live = |e: u32| u64::from(self.extent(self.base + e).live());
        let live = self.arrangements.extents_of(space, own).map(live).sum::<u64>();
        // No page has the very first slot, which counts as in use.
        live - u64::from(own > 0 && self.arrangements.place_of(0).space == space)
    }

    /// Which slots of `space` may be given out from now on, unless it is closed. One thread at a time.
    ///
    /// # Panics
    /// When there is no such space.
    pub fn allow(&self, space: usize, allowed: Allowed) {
        let bounds = &self.spaces[space];
        let capacity = bounds.capacity.load(Ordering::Relaxed);
        let ceiling = match allowed {
            Allowed::All => {
                if bounds.grown.swap(u32::MAX, Ordering::Relaxed) != u32::MAX {
                    // No extent is barred any more.
                    self.owners.changed();
                }
                capacity
            }
            Allowed::NoGrowth => {
                if bounds.grown.load(Ordering::Relaxed) == u32::MAX {
                    let own = self.extents.load(Ordering::Acquire) - self.base;
                    let grown = self.arrangements.extents_of(space, own).count() as u32;
                    bounds.times_full.fetch_add(1, Ordering::Relaxed);
                    bounds.grown.store(grown.min(capacity), Ordering::Relaxed);
                    // Also if the ceiling is the capacity: the extent that is being filled may be the one that has no
                    // room.
                    self.owners.changed();
                }
                bounds.grown.load(Ordering::Relaxed)
            }
            Allowed::Nothing => 0,
        };
        if bounds.ceiling.swap(ceiling, Ordering::Relaxed) != ceiling {
            self.owners.changed();
        }
    }

    /// The disk had no room for this own slot, although its extent exists: nobody has written it before, or its room was given back. As
    /// long as the disk is full no slot of the extent is given out, since nothing tells for which of them there is room.
    pub fn bar(&self, slot: Slot) {
        let Some(space) = self.space_of(slot) else { return };
        let times = self.spaces[space].times_full.load(Ordering::Relaxed);
        if self.extent(locate(slot).0).barred.swap(times, Ordering::Relaxed) != times {
            self.owners.changed();
        }
    }

    /// From now on `space` gives out no slots, not even to try whether it works, until [`SlotMap::reopen`]. Slots that were
    /// reserved just before may still be given back.
    pub fn close(&self, space: usize) {
        self.closed.fetch_or(1 << space, Ordering::SeqCst);
    }

    /// Undoes [`SlotMap::close`].
    pub fn reopen(&self, space: usize) {
        if self.closed.fetch_and(!(1 << space), Ordering::SeqCst) >> space & 1 != 0 {
            self.owners.changed();
        }
    }

    /// Whether no slot of `space`, which is closed, is in use. If so, none will be.
    pub fn is_empty(&self, space: usize) -> bool {
        // Pairs with the fence in `closed_meanwhile`, after the close.
        fence(Ordering::SeqCst);
        self.live_in(space) == 0
    }

    pub(super) fn is_closed(&self, space: usize) -> bool {
        self.closed.load(Ordering::Relaxed) >> space & 1 != 0
    }

    /// Slots have been taken, and their count raised. Gives them back if their space was closed before that could be seen.
    pub(super) fn closed_meanwhile(&self, extent: u32, at: usize, len: u32) -> bool {
        // Pairs with the fence in `is_empty`: either that thread sees our count, or we see that the space is closed.
        fence(Ordering::SeqCst);
        let closed = self.is_closed(self.arrangements.place_of(extent - self.base).space) && !is_planted(Canary::Closed);
        if closed {
            let it = self.extent(extent);
            if it.turn_freed(at, len) {
                self.send_back(extent, it);
            }
        }
        closed
    }

    /// Whether slots of an own extent, which exists, may be given out.
    pub(super) fn is_allowed(&self, extent: u32) -> bool {
        let place = self.arrangements.place_of(extent - self.base);
        let bounds = &self.spaces[place.space];
        let is_full = bounds.grown.load(Ordering::Relaxed) != u32::MAX;
        let barred = || self.extent(extent).barred.load(Ordering::Relaxed) == bounds.times_full.load(Ordering::Relaxed);
        self.is_place_allowed(place) && !(is_full && barred())
    }

    /// The same for one that may not exist yet.
    pub(super) fn would_be_allowed(&self, extent: u32) -> bool {
        self.is_place_allowed(self.arrangements.place_of(extent - self.base))
    }

    fn is_place_allowed(&self, place: Place) -> bool {
        #[cfg(all(test, not(loom)))]
        super::tests::LOOKS.set(super::tests::LOOKS.get() + 1);
        place.number < self.spaces[place.space].ceiling.load(Ordering::Relaxed) && !self.is_closed(place.space)
    }

    /// Own extents of one space, as many as it can hold.
    pub(super) fn extents_in(&self, space: usize) -> impl DoubleEndedIterator<Item = u32> {
        let capacity = self.spaces[space].capacity.load(Ordering::Relaxed);
        let there = self.extents.load(Ordering::Acquire) - self.base;
        let base = self.base;
        // Numbers in a space go up with those of extents.
        let holds = move |extent: &u32| self.arrangements.place_of(*extent).number < capacity;
        self.arrangements.extents_of(space, there).filter(holds).map(move |extent| base + extent)
    }

    /// Adds extents of `owner`'s up to the next one of `space`, unless the space is at its capacity.
    pub(super) fn grow_in(&self, owner: usize, space: usize) -> Option<core::ops::Range<u32>> {
        let capacity = self.spaces[space].capacity.load(Ordering::Relaxed);
        let fits = |extent: u32| {
            let place = self.arrangements.place_of(extent - self.base);
            place.space == space && place.number < capacity
        };
        self.grow_to(owner, fits).ok()
    }

    /// A space of `capacity` slots comes, under a number that no other space has now. It is closed until [`SlotMap::reopen`].
    /// `tell` is called if new extents go round other spaces than before, with the own extent from which on, and the set of
    /// spaces. The code that reads slots must know this before the first slot is given out, which does not happen before this
    /// returns.
    ///
    /// # Panics
    /// When the number is [`SPACES_MAX`] or above.
    pub fn begin_space(&self, space: usize, capacity: Option<u64>, tell: impl FnOnce(u32, SpaceSet)) {
        self.close(space);
        self.alone(|_| {
            self.spaces[space].set(extents(capacity));
            self.known.fetch_max(space as u32 + 1, Ordering::AcqRel);
            let set = self.arrangements.current();
            if !set.contains(space) {
                self.arrange(set.with(space), tell);
            }
            // However small the other spaces are: the ceiling of each says what it may hold.
            self.extents_max.store((self.chunks.len() * CHUNK).min(EXTENTS_MAX) as u32, Ordering::Relaxed);
        });
        self.owners.changed();
    }

    /// `space`, which is closed and empty, goes. `tell` is as for [`SlotMap::begin_space`].
    pub fn end_space(&self, space: usize, tell: impl FnOnce(u32, SpaceSet)) -> Removal {
        self.alone(|_| {
            self.spaces[space].set(0);
            let set = self.arrangements.current();
            if !set.contains(space) || !self.arrangements.can_leave_out() {
                return Removal::KeepsTurn;
            }
            self.arrange(set.without(space), tell);
            Removal::LeftOut
        })
    }

    fn arrange(&self, set: SpaceSet, tell: impl FnOnce(u32, SpaceSet)) {
        let first = self.extents.load(Ordering::Acquire) - self.base;
        tell(first, set);
        self.arrangements.arrange(first, set);
    }
}
