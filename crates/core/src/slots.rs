//! Places in swap space, handed out side by side.
//!
//! Swap space is divided into extents of 512 slots (2 MiB). An evictor asks for
//! a *run* of neighbouring slots for a batch, so that 256 scattered victims leave
//! by one large write: random 4 KiB writes beside the reads halve the reads of an
//! SSD, large ones cost them almost nothing (ARCHITECTURE.md, "Why slots are
//! handed out side by side"). The page word carries the slot, so any page can lie anywhere,
//! and a page that `mremap` moves keeps its slot.
//!
//! # Life of a slot
//!
//! *reserve* ([`SlotMap::reserve_run`], evictors only, one at a time) → *in use* (a page
//! word or a stage names it) → *forfeit* ([`SlotMap::free`], any thread, one atomic
//! or; the fault path does this when a clean page becomes dirty).
//!
//! # fork
//!
//! After a fork both processes read what was in use at that moment, and neither may change it. So
//!
//! * the child's map has the parent's extents as its **base**: it frees slots there for itself alone, and takes none. Its own
//!   extents come behind them, and lie in a space of its own;
//! * the parent *shares* ([`SlotMap::share`]): what was in use is **held**, and not given out again even when the parent frees it,
//!   until the child and all that descend from it are gone ([`SlotMap::unshare`]).
//!
//! # Several spaces
//!
//! Extents go round the files of an array: of `n` spaces, a process' own extent `e` (counted from its base) lies in space `e % n`
//! ([`SlotMap::set_spaces`]). A space that fails is left alone without any slot changing its place ([`SlotMap::allow`]): what is in
//! use there stays, and new slots come from the others. Each space has a *ceiling*, in extents of its own: those at or above it
//! are not given out.
//!
//! # Memory
//!
//! An evictor must not wait for memory: extents are made beforehand by a thread that may ([`SlotMap::stock`]). Without any left the map
//! does not grow for now ([`SlotMap::wants_stock`]), and gives out what it has. Where nobody does that, extents are made
//! as they are needed.
//!
//! # Equation
//!
//! `live` of an extent = its zero bits in `free` (checked by [`SlotMap::assert_valid`]).

use crate::canary::{Canary, is_planted};
use crate::limits::{EXTENT_SLOTS, EXTENTS_MAX};
use crate::sync::AtomicBool;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, spin_hint};
use crate::word::Slot;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::UnsafeCell;

const WORDS: usize = EXTENT_SLOTS / 64;
const CHUNK: usize = if cfg!(loom) { 2 } else { 1024 };
/// Room for each slot in use, while the space can grow.
const SLACK: u32 = 3;
/// Extents that a search looks at before the space rather grows.
const SEARCH_MAX: u32 = 4096;
/// Children whose slots are held apart from each other's. More have the last one's.
const SHARES_MAX: usize = 32;
/// Extents that are kept ready: 64 MiB of swap space.
const SPARES: usize = if cfg!(miri) { 8 } else { 32 };

struct Extent {
    /// Bit set: slot free.
    free: [AtomicU64; WORDS],
    live: AtomicU32,
    /// Bit set: a forked child may read the slot. Changed under `reserving`.
    held: [AtomicU64; WORDS],
    /// Checksum of the page in each slot.
    sums: [AtomicU64; EXTENT_SLOTS],
}

impl Extent {
    fn new() -> Extent {
        Extent {
            free: core::array::from_fn(|_| AtomicU64::new(u64::MAX)),
            live: AtomicU32::new(0),
            held: core::array::from_fn(|_| AtomicU64::new(0)),
            sums: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// The slots that cannot be given out: in use here, or held for a child.
    fn unavailable(&self) -> u32 {
        let word = |i: usize| !self.free[i].load(Ordering::Acquire) | self.held[i].load(Ordering::Relaxed);
        (0..WORDS).map(|i| word(i).count_ones()).sum()
    }

    fn in_use(&self) -> [u64; WORDS] {
        core::array::from_fn(|i| !self.free[i].load(Ordering::Acquire))
    }
}

/// What one or more forked children may read.
#[derive(Debug)]
struct Share {
    id: u64,
    /// Children that are not gone.
    users: u32,
    /// Slots that were in use when they began, by extent.
    held: Vec<[u64; WORDS]>,
}

/// A new value on the heap, as Box::into_raw gives it; `None` without memory.
fn boxed<T>(value: impl FnOnce() -> T) -> Option<*mut T> {
    const { assert!(size_of::<T>() > 0) };
    // SAFETY: the layout is not empty.
    let place = unsafe { alloc::alloc::alloc(core::alloc::Layout::new::<T>()) }.cast::<T>();
    if place.is_null() {
        return None;
    }
    // SAFETY: fresh memory of this layout.
    unsafe { place.write(value()) };
    Some(place)
}

const _: () = assert!(cfg!(loom) || SPARES < CHUNK, "`stock_chunk` looks one list ahead");

type Chunk = [AtomicPtr<Extent>; CHUNK];

fn new_chunk() -> Chunk {
    core::array::from_fn(|_| AtomicPtr::new(core::ptr::null_mut()))
}

/// Which slots of a space may be given out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allowed {
    /// Any, up to its capacity.
    All,
    /// Those in extents that are there already: the disk is full, and what it holds can be overwritten.
    NoGrowth,
    /// None: the space fails.
    Nothing,
}

/// One space of an array. Plain atomics, in models too: a hint, every value of which is right.
#[derive(Debug)]
struct Bounds {
    /// Extents that it can hold.
    capacity: u32,
    /// Its extents from here on are not given out.
    ceiling: core::sync::atomic::AtomicU32,
    /// What it had when it was found full; all ones: it is not.
    grown: core::sync::atomic::AtomicU32,
}

impl Bounds {
    fn new(capacity: u32) -> Bounds {
        let number = core::sync::atomic::AtomicU32::new;
        Bounds { capacity, ceiling: number(capacity), grown: number(u32::MAX) }
    }
}

/// The slots of one swap space.
pub struct SlotMap {
    chunks: Box<[AtomicPtr<Chunk>]>,
    extents: AtomicU32,
    extents_max: u32,
    /// Extents below are the parent's.
    base: u32,
    /// Slots of the base that nobody has: the first of each space in it.
    reserved_in_base: u32,
    /// Slots in use, but for those in the base.
    live: AtomicU64,
    /// Slots of the base that are in use.
    inherited: AtomicU64,
    /// Under `reserving`.
    shares: UnsafeCell<Vec<Share>>,
    /// Whether there are any.
    shared: AtomicBool,
    /// Held by the evictor that reserves. Never by the fault path, never across a system call.
    reserving: AtomicBool,
    cursor_extent: AtomicU32,
    cursor_slot: AtomicU32,
    /// The spaces that own extents go round, at least one.
    spaces: Box<[Bounds]>,
    /// Extents that were made beforehand. Put in by `stock`, taken under `reserving`.
    spares: [core::sync::atomic::AtomicPtr<Extent>; SPARES],
    /// Somebody sees to it that there are.
    stocked: core::sync::atomic::AtomicBool,
    /// It did not grow, for want of one.
    wants_stock: core::sync::atomic::AtomicBool,
}

// SAFETY: all fields are atomics but `shares`, which is used by the thread that holds `reserving` alone.
unsafe impl Sync for SlotMap {}
// SAFETY: as above.
unsafe impl Send for SlotMap {}

impl core::fmt::Debug for SlotMap {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SlotMap").field("extents", &self.extents).field("live", &self.live).finish_non_exhaustive()
    }
}

/// Neighbouring slots that an evictor has reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Run {
    /// The first.
    pub first: Slot,
    /// How many, at least 1.
    pub len: u32,
}

fn locate(slot: Slot) -> (u32, usize) {
    let n = slot.number();
    ((n / EXTENT_SLOTS as u64) as u32, (n % EXTENT_SLOTS as u64) as usize)
}

impl SlotMap {
    /// A space of at most `capacity` slots (rounded down to whole extents); `None`: as many as there can be.
    pub fn new(capacity: Option<u64>) -> SlotMap {
        let max = capacity.map_or(EXTENTS_MAX as u64, |c| (c / EXTENT_SLOTS as u64).min(EXTENTS_MAX as u64));
        let chunks = (max as usize).div_ceil(CHUNK).max(1);
        SlotMap {
            chunks: (0..chunks).map(|_| AtomicPtr::new(core::ptr::null_mut())).collect::<Vec<_>>().into_boxed_slice(),
            extents: AtomicU32::new(0),
            extents_max: max as u32,
            base: 0,
            reserved_in_base: 0,
            live: AtomicU64::new(0),
            inherited: AtomicU64::new(0),
            shares: UnsafeCell::new(Vec::with_capacity(SHARES_MAX)),
            shared: AtomicBool::new(false),
            reserving: AtomicBool::new(false),
            cursor_extent: AtomicU32::new(0),
            cursor_slot: AtomicU32::new(0),
            spaces: Box::new([Bounds::new(u32::MAX)]),
            spares: [const { core::sync::atomic::AtomicPtr::new(core::ptr::null_mut()) }; SPARES],
            stocked: core::sync::atomic::AtomicBool::new(false),
            wants_stock: core::sync::atomic::AtomicBool::new(false),
        }
    }

    /// Own extents go round spaces of these capacities, in slots (`None`: as many as there can be). Before the first slot is
    /// reserved, or just after [`SlotMap::begin_own`].
    pub fn set_spaces(&mut self, capacities: &[Option<u64>]) {
        let extents = |capacity: &Option<u64>| {
            capacity.map_or(u64::from(u32::MAX), |slots| slots / EXTENT_SLOTS as u64).min(u64::from(u32::MAX)) as u32
        };
        let own_max = EXTENTS_MAX as u32 - self.base.min(EXTENTS_MAX as u32);
        let largest = capacities.iter().map(extents).max().unwrap_or(0);
        let count = capacities.len().max(1) as u32;
        self.extents_max = self.base + largest.saturating_mul(count).min(own_max);
        self.stocked.store(false, Ordering::Relaxed);
        self.spaces = capacities.iter().map(|capacity| Bounds::new(extents(capacity))).collect();
        let chunks = (self.extents_max as usize).div_ceil(CHUNK).max(1);
        if chunks > self.chunks.len() {
            let mut all = core::mem::take(&mut self.chunks).into_vec();
            all.resize_with(chunks, || AtomicPtr::new(core::ptr::null_mut()));
            self.chunks = all.into_boxed_slice();
        }
    }

    /// Spaces that own extents go round.
    pub fn spaces(&self) -> usize {
        self.spaces.len()
    }

    /// The space of an own slot; `None` if it is in the base.
    pub fn space_of(&self, slot: Slot) -> Option<usize> {
        Some(locate(slot).0.checked_sub(self.base)? as usize % self.spaces.len())
    }

    /// Some own slot of `space`, there or not: to find its name by.
    pub fn some_slot_of(&self, space: usize) -> Option<Slot> {
        Slot::new((u64::from(self.base) + space as u64) * EXTENT_SLOTS as u64 + 1)
    }

    /// Slots in use in one space.
    pub fn live_in(&self, space: usize) -> u64 {
        let own = self.base..self.extents.load(Ordering::Acquire);
        let first = u64::from(space == 0 && !own.is_empty());
        let live = own.skip(space).step_by(self.spaces.len()).map(|e| u64::from(self.extent(e).live.load(Ordering::Relaxed)));
        live.sum::<u64>() - first
    }

    /// Which slots of `space` may be given out from now on. One thread at a time.
    ///
    /// # Panics
    /// When there is no such space.
    pub fn allow(&self, space: usize, allowed: Allowed) {
        let bounds = &self.spaces[space];
        let ceiling = match allowed {
            Allowed::All => {
                bounds.grown.store(u32::MAX, Ordering::Relaxed);
                bounds.capacity
            }
            Allowed::NoGrowth => {
                if bounds.grown.load(Ordering::Relaxed) == u32::MAX {
                    let own = self.extents.load(Ordering::Acquire) - self.base;
                    // Of `own` extents that go round, this space has those with its number.
                    let grown = own.saturating_sub(space as u32).div_ceil(self.spaces.len() as u32);
                    bounds.grown.store(grown.min(bounds.capacity), Ordering::Relaxed);
                }
                bounds.grown.load(Ordering::Relaxed)
            }
            Allowed::Nothing => 0,
        };
        bounds.ceiling.store(ceiling, Ordering::Relaxed);
    }

    /// Where an own extent lies: its space, and its number there.
    fn place_of(&self, extent: u32) -> (&Bounds, u32) {
        let (own, count) = (extent - self.base, self.spaces.len() as u32);
        (&self.spaces[(own % count) as usize], own / count)
    }

    /// Whether slots of an own extent may be given out.
    fn is_allowed(&self, extent: u32) -> bool {
        let (bounds, number) = self.place_of(extent);
        number < bounds.ceiling.load(Ordering::Relaxed)
    }

    /// Makes extents beforehand, so that reserving need not. By a thread that may allocate and will do so again, until
    /// [`SlotMap::set_spaces`]. Whether all are there.
    pub fn stock(&self) -> bool {
        self.stocked.store(true, Ordering::Relaxed);
        let missing = |place: &&core::sync::atomic::AtomicPtr<Extent>| place.load(Ordering::Relaxed).is_null();
        for place in self.spares.iter().filter(missing) {
            let Some(extent) = boxed(Extent::new) else { return false };
            // Release: pairs with the taker's Acquire. Should another thread have filled the place, ours goes.
            let put = place.compare_exchange(core::ptr::null_mut(), extent, Ordering::Release, Ordering::Relaxed);
            if put.is_err() {
                // SAFETY: from `boxed`, and nobody else has it.
                drop(unsafe { Box::from_raw(extent) });
            }
        }
        let complete = self.stock_chunk();
        self.wants_stock.store(!complete, Ordering::Relaxed);
        complete
    }

    /// Whether the map did not grow since the last [`SlotMap::stock`], because nothing was left of it.
    pub fn wants_stock(&self) -> bool {
        self.wants_stock.load(Ordering::Relaxed)
    }

    /// Whether fewer than half of the extents that are made beforehand are left.
    pub fn is_short_of_spares(&self) -> bool {
        self.spares[SPARES / 2].load(Ordering::Relaxed).is_null()
    }

    /// One that was made beforehand (the last, so that the first half goes last), else a new one.
    fn take_spare(&self) -> Option<*mut Extent> {
        let taken = self.spares.iter().rev().map(|place| place.swap(core::ptr::null_mut(), Ordering::Acquire));
        let spare = taken.into_iter().find(|extent| !extent.is_null());
        spare.or_else(|| if self.is_stocked() { None } else { boxed(Extent::new) })
    }

    /// Asked when something is missing: whether somebody else makes it.
    fn is_stocked(&self) -> bool {
        let stocked = self.stocked.load(Ordering::Relaxed);
        if stocked {
            self.wants_stock.store(true, Ordering::Relaxed);
        }
        stocked
    }

    /// Makes the list that the next extents go into, if it is not there.
    fn stock_chunk(&self) -> bool {
        let next = self.extents.load(Ordering::Acquire).saturating_add(SPARES as u32).min(self.extents_max.saturating_sub(1));
        let Some(place) = self.chunks.get(next as usize / CHUNK).filter(|place| place.load(Ordering::Relaxed).is_null()) else {
            return true;
        };
        let Some(chunk) = boxed(new_chunk) else { return false };
        // Should another thread have put one there, ours goes.
        if place.compare_exchange(core::ptr::null_mut(), chunk, Ordering::Release, Ordering::Relaxed).is_err() {
            // SAFETY: from `boxed`, and nobody else has it.
            drop(unsafe { Box::from_raw(chunk) });
        }
        true
    }

    fn extent(&self, index: u32) -> &Extent {
        let chunk = self.chunks[index as usize / CHUNK].load(Ordering::Acquire);
        // SAFETY: callers pass the index of an extent that exists (`< self.extents`, or of a slot that was
        // reserved), whose chunk `grow` published with Release before the extent; neither is ever freed.
        let chunk = unsafe { &*chunk };
        let extent = chunk[index as usize % CHUNK].load(Ordering::Acquire);
        // SAFETY: as above.
        unsafe { &*extent }
    }

    /// Adds an extent. Under `reserving`.
    fn grow_by_one(&self) -> Option<u32> {
        let index = self.extents.load(Ordering::Acquire);
        if index >= self.extents_max {
            return None;
        }
        let place = &self.chunks[index as usize / CHUNK];
        let mut chunk = place.load(Ordering::Acquire);
        if chunk.is_null() {
            if self.is_stocked() {
                return None;
            }
            chunk = boxed(new_chunk)?;
            place.store(chunk, Ordering::Release);
        }
        // SAFETY: non-null, from `boxed` just now or in an earlier `grow`, never freed.
        let chunk = unsafe { &*chunk };
        let fresh = self.take_spare()?;
        // SAFETY: from `boxed`, and nobody else's.
        let extent = unsafe { &*fresh };
        if index == self.base {
            // Slot 0 means "no slot" in a page word: nobody may have it. The same in a child's own space.
            extent.free[0].fetch_and(!1, Ordering::Relaxed);
            extent.live.store(1, Ordering::Relaxed);
        }
        chunk[index as usize % CHUNK].store(fresh, Ordering::Release);
        self.extents.store(index + 1, Ordering::Release);
        Some(index)
    }

    /// Adds extents up to the next one whose slots may be given out. Under `reserving`.
    fn grow(&self) -> Option<u32> {
        let first = self.extents.load(Ordering::Acquire);
        let last = (first..first.saturating_add(self.spaces.len() as u32)).find(|&e| self.is_allowed(e))?;
        let mut grown = None;
        while grown != Some(last) {
            grown = Some(self.grow_by_one()?);
        }
        grown
    }

    /// Reserves up to `want` neighbouring slots; `None` when the space is full.
    pub fn reserve_run(&self, want: u32) -> Option<Run> {
        self.alone(|_| self.reserve_locked(want.clamp(1, EXTENT_SLOTS as u32)))
    }

    /// Runs `f` while no other thread reserves or shares.
    fn alone<R>(&self, f: impl FnOnce(&mut Vec<Share>) -> R) -> R {
        while self.reserving.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // Reads while it is held: the holder's line stays where it is.
            while self.reserving.load(Ordering::Relaxed) {
                spin_hint();
            }
        }
        // SAFETY: `reserving` is ours until the store below, so nobody else uses the list.
        let result = f(unsafe { &mut *self.shares.get() });
        self.reserving.store(false, Ordering::Release);
        result
    }

    fn reserve_locked(&self, want: u32) -> Option<Run> {
        loop {
            let index = self.cursor_extent.load(Ordering::Relaxed);
            let from = self.cursor_slot.load(Ordering::Relaxed) as usize;
            if (self.base..self.extents.load(Ordering::Acquire)).contains(&index)
                && self.is_allowed(index)
                && let Some((at, len)) = self.take_run(self.extent(index), from, want)
            {
                self.cursor_slot.store((at + len as usize) as u32, Ordering::Relaxed);
                self.live.fetch_add(u64::from(len), Ordering::Relaxed);
                let first = Slot::new(u64::from(index) * EXTENT_SLOTS as u64 + at as u64)?;
                return Some(Run { first, len });
            }
            let next = self.next_extent(index)?;
            self.cursor_extent.store(next, Ordering::Relaxed);
            self.cursor_slot.store(0, Ordering::Relaxed);
        }
    }

    /// The extent to fill next: one at most half full if the space is no tighter than that, else a
    /// new one, else any that has room.
    fn next_extent(&self, after: u32) -> Option<u32> {
        let extents = self.extents.load(Ordering::Acquire);
        let own = extents - self.base;
        let room = u64::from(own) * EXTENT_SLOTS as u64;
        // The `step`th own extent after `after`, round and round.
        let turn = |step: u32| self.base + (after.saturating_sub(self.base) + step) % own.max(1);
        // Acquire, here and below: pairs with `free`, so that who sees the count sees the free bit and finds it.
        let shared = self.shared.load(Ordering::Relaxed);
        let used = |e: u32| {
            let extent = self.extent(e);
            if shared { extent.unavailable() } else { extent.live.load(Ordering::Acquire) }
        };
        let roomy = |limit: u32| (1..=own.min(SEARCH_MAX)).map(turn).find(|&e| self.is_allowed(e) && used(e) <= limit);
        // Two thirds of the room are free: then some extent is at most a third full, and the next of those in turn, the
        // oldest, is emptier still if updates are spread.
        if self.live.load(Ordering::Relaxed) * u64::from(SLACK) <= room
            && let Some(e) = roomy(EXTENT_SLOTS as u32 / SLACK)
        {
            return Some(e);
        }
        if let Some(e) = self.grow() {
            return Some(e);
        }
        // The cursor's own extent counts too: what was freed behind the cursor.
        (0..own).map(|step| turn(1 + step)).find(|&e| self.is_allowed(e) && used(e) < EXTENT_SLOTS as u32)
    }

    /// Reserves up to `want` neighbouring slots of one space, also if it is left alone: to see whether it works (again). Slots
    /// that were never used before those that were, since overwriting may work where there is no room for more.
    pub fn reserve_run_in(&self, space: usize, want: u32) -> Option<Run> {
        self.alone(|_| {
            let is_there = |&e: &u32| {
                let (bounds, number) = self.place_of(e);
                core::ptr::eq(bounds, &raw const self.spaces[space]) && number < bounds.capacity
            };
            let own = || (self.base..self.extents.load(Ordering::Acquire)).rev().filter(is_there);
            let unused = own().next().filter(|&e| self.extent(e).unavailable() == 0);
            let index = unused
                .or_else(|| self.grow_in(space))
                .or_else(|| own().find(|&e| self.extent(e).unavailable() < EXTENT_SLOTS as u32))?;
            let (at, len) = self.take_run(self.extent(index), 0, want.clamp(1, EXTENT_SLOTS as u32))?;
            self.live.fetch_add(u64::from(len), Ordering::Relaxed);
            Some(Run { first: Slot::new(u64::from(index) * EXTENT_SLOTS as u64 + at as u64)?, len })
        })
    }

    /// Adds extents up to the next one of `space`, unless that is at its capacity. Under `reserving`.
    fn grow_in(&self, space: usize) -> Option<u32> {
        let count = self.spaces.len() as u32;
        let next = self.extents.load(Ordering::Acquire);
        let ahead = (space as u32 + count - (next - self.base) % count) % count;
        let (bounds, number) = self.place_of(next.checked_add(ahead)?);
        if number >= bounds.capacity {
            return None;
        }
        let mut grown = None;
        for _ in 0..=ahead {
            grown = Some(self.grow_by_one()?);
        }
        grown
    }

    /// Takes the first run of free slots at or after `from`.
    fn take_run(&self, extent: &Extent, from: usize, want: u32) -> Option<(usize, u32)> {
        let is_free = |i: usize| {
            let held = if is_planted(Canary::Share) { 0 } else { extent.held[i / 64].load(Ordering::Relaxed) };
            let word = extent.free[i / 64].load(Ordering::Acquire) & !held;
            word & (1 << (i % 64)) != 0
        };
        let at = (from..EXTENT_SLOTS).find(|&i| is_free(i))?;
        // Only the reserving evictor clears bits, so what it saw free stays free.
        let len = (at..EXTENT_SLOTS).take(want as usize).take_while(|&i| is_free(i)).count();
        for i in at..at + len {
            extent.free[i / 64].fetch_and(!(1 << (i % 64)), Ordering::AcqRel);
        }
        extent.live.fetch_add(len as u32, Ordering::AcqRel);
        Some((at, len as u32))
    }

    /// The bytes in `slot` are needed no more. No read or write of it may be in flight.
    pub fn free(&self, slot: Slot) {
        let (index, i) = locate(slot);
        let extent = self.extent(index);
        let before = extent.free[i / 64].fetch_or(1 << (i % 64), Ordering::AcqRel);
        debug_assert!(before & (1 << (i % 64)) == 0, "{slot:?} was freed twice");
        extent.live.fetch_sub(1, Ordering::AcqRel);
        let count = if index < self.base { &self.inherited } else { &self.live };
        count.fetch_sub(1, Ordering::Relaxed);
    }

    /// A child is about to be forked: what is in use now is not given out again until [`SlotMap::unshare`] of the number that
    /// this returns. Nothing may be reserved and not yet named by a page. Allocates.
    pub fn share(&self) -> u64 {
        let extents = self.extents.load(Ordering::Acquire);
        let mut held: Vec<[u64; WORDS]> = Vec::with_capacity((extents - self.base) as usize);
        held.extend((self.base..extents).map(|e| self.extent(e).in_use()));
        self.shared.store(true, Ordering::Relaxed);
        let id = self.alone(|shares| {
            for (e, bits) in (self.base..).zip(&held) {
                self.extent(e).held.iter().zip(bits).for_each(|(word, bits)| {
                    word.fetch_or(*bits, Ordering::Relaxed);
                });
            }
            if shares.len() < SHARES_MAX {
                let id = shares.last().map_or(1, |last| last.id + 1);
                shares.push(Share { id, users: 1, held: core::mem::take(&mut held) });
                return id;
            }
            // Rather hold some longer than need be, than a list without end.
            let last = &mut shares[SHARES_MAX - 1];
            last.users += 1;
            core::mem::swap(&mut last.held, &mut held);
            for (all, old) in last.held.iter_mut().zip(&held) {
                all.iter_mut().zip(old).for_each(|(all, old)| *all |= old);
            }
            last.id
        });
        // What was replaced is freed here, outside of the lock.
        drop(held);
        id
    }

    /// A child is gone, and all that it has forked.
    ///
    /// # Panics
    /// When there is no such share.
    pub fn unshare(&self, id: u64) {
        let gone = self.alone(|shares| {
            let at = shares.iter().position(|s| s.id == id).expect("a share ends once");
            shares[at].users -= 1;
            if shares[at].users > 0 {
                return None;
            }
            let gone = shares.remove(at);
            for (n, e) in (self.base..self.base + gone.held.len() as u32).enumerate() {
                for (i, word) in self.extent(e).held.iter().enumerate() {
                    let still = shares.iter().filter_map(|s| s.held.get(n)).fold(0, |all, bits| all | bits[i]);
                    word.store(still, Ordering::Relaxed);
                }
            }
            self.shared.store(!shares.is_empty(), Ordering::Relaxed);
            Some(gone)
        });
        // Freed outside of the lock.
        drop(gone);
    }

    /// Children, or groups of them, for which slots are held.
    pub fn shares(&self) -> usize {
        self.alone(|shares| shares.len())
    }

    /// In a forked child: all that there is becomes the base; new slots come behind, at most `capacity` of them (rounded down
    /// to whole extents). The first slot of the child's own space.
    pub fn begin_own(&mut self, capacity: Option<u64>) -> u64 {
        self.reserved_in_base += u32::from(self.extents.load(Ordering::Relaxed) > self.base);
        self.base = self.extents.load(Ordering::Relaxed);
        let most = (EXTENTS_MAX as u32).saturating_sub(self.base);
        let own = capacity.map_or(most, |c| (c / EXTENT_SLOTS as u64).min(u64::from(most)) as u32);
        self.extents_max = self.base + own;
        let chunks = (self.extents_max as usize).div_ceil(CHUNK).max(1);
        if chunks > self.chunks.len() {
            let mut all = core::mem::take(&mut self.chunks).into_vec();
            all.resize_with(chunks, || AtomicPtr::new(core::ptr::null_mut()));
            self.chunks = all.into_boxed_slice();
        }
        self.inherited.fetch_add(self.live.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        for e in 0..self.base {
            self.extent(e).held.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
        self.shares.get_mut().clear();
        self.shared.store(false, Ordering::Relaxed);
        self.reserving.store(false, Ordering::Relaxed);
        self.cursor_extent.store(self.base, Ordering::Relaxed);
        self.cursor_slot.store(0, Ordering::Relaxed);
        u64::from(self.base) * EXTENT_SLOTS as u64
    }

    /// A copy, as `fork` makes one: for the simulator, where it does not. Of a map whose owner does nothing meanwhile.
    #[must_use]
    pub fn duplicate(&self) -> SlotMap {
        let mut copy = SlotMap::new(Some(u64::from(self.extents_max) * EXTENT_SLOTS as u64));
        copy.base = self.base;
        copy.reserved_in_base = self.reserved_in_base;
        for index in 0..self.extents.load(Ordering::Acquire) {
            if copy.grow().is_none() {
                break;
            }
            let (from, to) = (self.extent(index), copy.extent(index));
            let pairs = [(&from.free[..], &to.free[..]), (&from.held[..], &to.held[..]), (&from.sums[..], &to.sums[..])];
            for (from, to) in pairs.into_iter().flat_map(|(from, to)| from.iter().zip(to)) {
                to.store(from.load(Ordering::Acquire), Ordering::Release);
            }
            to.live.store(from.live.load(Ordering::Acquire), Ordering::Release);
        }
        copy.live.store(self.live(), Ordering::Release);
        copy.inherited.store(self.inherited(), Ordering::Release);
        copy
    }

    /// Slots of the parent's space that a forked child still uses.
    pub fn inherited(&self) -> u64 {
        self.inherited.load(Ordering::Relaxed)
    }

    /// Remembers the checksum of the bytes that are being written to `slot`.
    pub fn set_sum(&self, slot: Slot, sum: u64) {
        let (index, i) = locate(slot);
        self.extent(index).sums[i].store(sum, Ordering::Release);
    }

    /// The checksum that the bytes of `slot` must have.
    pub fn sum(&self, slot: Slot) -> u64 {
        let (index, i) = locate(slot);
        self.extent(index).sums[i].load(Ordering::Acquire)
    }

    /// Slots in use in this process' own space.
    pub fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }
    /// Bytes of the space that have been in use at some time: an upper bound of the swap file's size.
    pub fn extent_bytes(&self) -> u64 {
        u64::from(self.extents.load(Ordering::Acquire) - self.base) * (EXTENT_SLOTS * crate::limits::PAGE_SIZE) as u64
    }

    /// Checks the equation of the module head. Only exact while no other thread uses the map.
    ///
    /// # Panics
    /// When an extent's count and bits disagree.
    pub fn assert_valid(&self) {
        let (mut live, mut inherited) = (0, 0);
        for index in 0..self.extents.load(Ordering::Acquire) {
            let e = self.extent(index);
            let zeros: u32 = e.free.iter().map(|w| w.load(Ordering::Acquire).count_zeros()).sum();
            assert_eq!(zeros, e.live.load(Ordering::Acquire), "extent {index}");
            let count = if index < self.base { &mut inherited } else { &mut live };
            *count += u64::from(zeros) - u64::from(index == self.base);
        }
        inherited -= u64::from(self.reserved_in_base);
        assert_eq!((live, inherited), (self.live(), self.inherited()));
    }
}

impl Drop for SlotMap {
    fn drop(&mut self) {
        for spare in self.spares.iter().map(|place| place.swap(core::ptr::null_mut(), Ordering::Acquire)) {
            if !spare.is_null() {
                // SAFETY: from `boxed`, and nobody else has it.
                drop(unsafe { Box::from_raw(spare) });
            }
        }
        for chunk in &self.chunks {
            let chunk = chunk.load(Ordering::Acquire);
            if chunk.is_null() {
                continue;
            }
            // SAFETY: from `boxed` in `grow_by_one`, dropped once, and `&mut self` means nobody uses it.
            let chunk = unsafe { Box::from_raw(chunk) };
            // The pointers as they were stored: one that is made from a shared reference may not be dropped.
            for extent in chunk.iter().map(|extent| extent.load(Ordering::Acquire)) {
                if !extent.is_null() {
                    // SAFETY: as above.
                    drop(unsafe { Box::from_raw(extent) });
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn what_a_child_may_read_is_not_given_out_again() {
        let map = SlotMap::new(Some(if cfg!(miri) { 4 } else { 12 } * EXTENT_SLOTS as u64));
        let first = map.reserve_run(300).unwrap();
        let share = map.share();
        (0..300).for_each(|i| map.free(first.first.plus(i)));
        assert_eq!(map.live(), 0);
        let mut later = BTreeSet::new();
        for _ in 0..if cfg!(miri) { 4 } else { 20 } {
            let run = map.reserve_run(256).unwrap();
            (0..u64::from(run.len)).for_each(|i| assert!(later.insert(run.first.plus(i).number())));
        }
        assert!((0..300).all(|i| !later.contains(&first.first.plus(i).number())));
        // A second child sees what is in use now, not what the first one sees.
        let second = map.share();
        map.unshare(share);
        later.iter().for_each(|&n| map.free(Slot::new(n).unwrap()));
        let mut again = BTreeSet::new();
        while let Some(run) = map.reserve_run(64) {
            (0..u64::from(run.len)).for_each(|i| assert!(again.insert(run.first.plus(i).number())));
        }
        assert!(again.is_disjoint(&later));
        assert!((0..300).all(|i| again.contains(&first.first.plus(i).number())), "the first child is gone");
        map.unshare(second);
        map.assert_valid();
        assert_eq!(map.shares(), 0);
    }

    #[test]
    fn more_children_than_shares_hold_together() {
        let map = SlotMap::new(None);
        let mut ids = Vec::new();
        let mut used = Vec::new();
        for _ in 0..SHARES_MAX + 5 {
            used.push(map.reserve_run(8).unwrap());
            ids.push(map.share());
        }
        assert_eq!(map.shares(), SHARES_MAX);
        used.iter().for_each(|run| (0..u64::from(run.len)).for_each(|i| map.free(run.first.plus(i))));
        ids.into_iter().for_each(|id| map.unshare(id));
        assert_eq!(map.shares(), 0);
        map.assert_valid();
    }

    #[test]
    fn a_child_takes_slots_behind_its_parents() {
        let mut map = SlotMap::new(Some(4 * EXTENT_SLOTS as u64));
        let parents = map.reserve_run(400).unwrap();
        let own = map.begin_own(Some(2 * EXTENT_SLOTS as u64));
        assert_eq!(own, EXTENT_SLOTS as u64);
        map.assert_valid();
        map.free(parents.first);
        assert_eq!((map.live(), map.inherited()), (0, u64::from(parents.len) - 1));
        let mut count = 0;
        while let Some(run) = map.reserve_run(100) {
            assert!(run.first.number() > own);
            count += run.len;
        }
        assert_eq!(count, 2 * EXTENT_SLOTS as u32 - 1);
        map.assert_valid();
        // And its child.
        assert_eq!(map.begin_own(None), 3 * EXTENT_SLOTS as u64);
        assert!(map.reserve_run(1).unwrap().first.number() > 3 * EXTENT_SLOTS as u64);
        map.assert_valid();
    }

    /// Reserves all that there is; how many slots lie in each space.
    fn drain(map: &SlotMap) -> Vec<u32> {
        let mut count = alloc::vec![0; map.spaces()];
        while let Some(run) = map.reserve_run(256) {
            count[map.space_of(run.first).unwrap()] += run.len;
        }
        count
    }

    #[test]
    fn spaces_of_different_sizes_are_all_used() {
        let slots = |extents: usize| Some((extents * EXTENT_SLOTS) as u64);
        let mut map = SlotMap::new(None);
        map.set_spaces(&[slots(1), slots(4), slots(2)]);
        assert_eq!(drain(&map), [512 - 1, 4 * 512, 2 * 512]);
        map.assert_valid();
        assert_eq!((map.reserve_run_in(0, 1), map.reserve_run_in(1, 1)), (None, None));
    }

    #[test]
    fn a_space_that_fails_is_left_alone_and_tried() {
        let slots = Some((4 * EXTENT_SLOTS) as u64);
        let mut map = SlotMap::new(None);
        map.set_spaces(&[slots, slots]);
        let old = map.reserve_run(100).unwrap();
        assert_eq!(map.space_of(old.first), Some(0));
        map.allow(0, Allowed::Nothing);
        let trial = map.reserve_run_in(0, 8).unwrap();
        assert_eq!((map.space_of(trial.first), trial.len), (Some(0), 8));
        assert!(trial.first.number() >= 2 * 512, "what was never used");
        (0..8).for_each(|i| map.free(trial.first.plus(i)));
        assert_eq!(map.reserve_run_in(0, 8).unwrap().first, trial.first, "a trial that failed is no reason to grow");
        assert_eq!(drain(&map), [0, 4 * 512]);
        map.allow(0, Allowed::All);
        assert_eq!(drain(&map), [4 * 512 - 1 - 100 - 8, 0]);
        map.assert_valid();
    }

    #[test]
    fn a_full_disk_keeps_what_it_has() {
        let mut map = SlotMap::new(None);
        map.set_spaces(&[None, Some((3 * EXTENT_SLOTS) as u64)]);
        let first = map.reserve_run(512).unwrap();
        assert_eq!(map.reserve_run(512).map(|run| map.space_of(run.first)), Some(Some(1)));
        let _ = map.reserve_run(512).unwrap();
        map.allow(0, Allowed::NoGrowth);
        assert_eq!(drain(&map), [0, 2 * 512]);
        map.allow(0, Allowed::Nothing);
        map.free(first.first);
        assert_eq!(map.reserve_run(8), None);
        map.allow(0, Allowed::NoGrowth);
        assert_eq!(map.reserve_run(8), Some(Run { first: first.first, len: 1 }));
        assert_eq!(map.reserve_run(8), None, "it has not grown meanwhile");
        map.assert_valid();
    }

    #[test]
    fn extents_are_made_beforehand() {
        let map = SlotMap::new(None);
        assert!(map.is_short_of_spares());
        assert!(map.stock() && !map.is_short_of_spares());
        for _ in 0..SPARES / 2 {
            assert_eq!(map.reserve_run(512).map(|run| run.len >= 511), Some(true));
        }
        assert!(map.is_short_of_spares());
        while let Some(run) = map.reserve_run(512) {
            assert!(run.first.number() < (SPARES * EXTENT_SLOTS) as u64);
        }
        assert!(map.wants_stock(), "the map does not allocate");
        assert!(map.stock() && !map.wants_stock());
        assert!(map.reserve_run(512).is_some());
        map.assert_valid();
    }

    #[test]
    fn runs_lie_side_by_side_and_never_overlap() {
        let map = SlotMap::new(None);
        let mut used = BTreeSet::new();
        for _ in 0..if cfg!(miri) { 4 } else { 20 } {
            let run = map.reserve_run(100).unwrap();
            for i in 0..u64::from(run.len) {
                assert!(used.insert(run.first.plus(i).number()));
            }
        }
        assert!(!used.contains(&0));
        map.assert_valid();
        assert_eq!(map.live(), used.len() as u64);
        for n in used {
            map.free(Slot::new(n).unwrap());
        }
        map.assert_valid();
        assert_eq!(map.live(), 0);
    }

    #[test]
    fn a_full_space_says_so_and_recovers() {
        let map = SlotMap::new(Some(2 * EXTENT_SLOTS as u64));
        let mut runs = Vec::new();
        while let Some(run) = map.reserve_run(256) {
            runs.push(run);
        }
        assert_eq!(map.live(), 2 * EXTENT_SLOTS as u64 - 1);
        map.free(runs[0].first);
        assert_eq!(map.reserve_run(8), Some(Run { first: runs[0].first, len: 1 }));
        assert_eq!(map.reserve_run(8), None);
    }

    #[test]
    fn freed_room_is_used_before_the_space_grows() {
        let map = SlotMap::new(None);
        for _ in 0..if cfg!(miri) { 2 } else { 50 } {
            let runs: Vec<Run> = (0..8).map(|_| map.reserve_run(256).unwrap()).collect();
            for run in runs {
                for i in 0..u64::from(run.len) {
                    map.free(run.first.plus(i));
                }
            }
        }
        // At most 2048 slots, 4 extents, were in use at a time.
        let room = u64::from(SLACK) * 4 * (EXTENT_SLOTS * 4096) as u64;
        assert!(map.extent_bytes() <= room, "{}", map.extent_bytes());
    }
}
