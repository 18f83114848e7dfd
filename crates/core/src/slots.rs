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
//! A process' own extents (counted from its base) go round the files of an array ([`arrangement`]). A space that fails is left alone
//! without any slot changing its place ([`SlotMap::allow`]): what is in use there stays, and new slots come from the others. Each space
//! has a *ceiling*, in extents of its own: those at or above it are not given out.
//!
//! Spaces come and go while slots are given out ([`spaces`]). A space that is to go is *closed* first: none of its slots is given out
//! any more, whatever its ceiling says, and when none is in use it can be taken away.
//!
//! Room on the disk that is not needed any more is given back, whole extents at a time ([`giving`]).
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
use crate::spin::SpinLock;
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::word::Slot;
use alloc::boxed::Box;
use alloc::vec::Vec;
use arrangement::{Arrangements, SpaceSet};
pub use giving::Idle;
use giving::Room;
use shares::{SHARES_MAX, Share};
use spaces::Bounds;
pub use spaces::{Allowed, Removal};
use stock::boxed;

#[path = "slots/arrangement.rs"]
pub mod arrangement;
#[path = "slots/giving.rs"]
mod giving;
#[path = "slots/shares.rs"]
mod shares;
#[path = "slots/spaces.rs"]
mod spaces;
#[path = "slots/stock.rs"]
mod stock;

const WORDS: usize = EXTENT_SLOTS / 64;
const CHUNK: usize = if cfg!(loom) { 2 } else { 1024 };
/// Room for each slot in use, while the space can grow.
const SLACK: u32 = 3;
/// Extents that a search looks at before the space rather grows.
const SEARCH_MAX: u32 = 4096;
/// Extents that are kept ready: 64 MiB of swap space.
const SPARES: usize = if cfg!(miri) { 8 } else { 32 };

struct Extent {
    /// Bit set: slot free.
    free: [AtomicU64; WORDS],
    live: AtomicU32,
    /// Whether it takes room on the disk.
    room: Room,
    /// Bit set: a forked child may read the slot. Changed under the lock of `shares`.
    held: [AtomicU64; WORDS],
    /// Checksum of the page in each slot.
    sums: [AtomicU64; EXTENT_SLOTS],
}

impl Extent {
    fn new() -> Extent {
        Extent {
            free: core::array::from_fn(|_| AtomicU64::new(u64::MAX)),
            live: AtomicU32::new(0),
            room: Room::new(),
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

type Chunk = [AtomicPtr<Extent>; CHUNK];

fn new_chunk() -> Chunk {
    core::array::from_fn(|_| AtomicPtr::new(core::ptr::null_mut()))
}

/// The slots of one swap space.
pub struct SlotMap {
    chunks: Box<[AtomicPtr<Chunk>]>,
    extents: AtomicU32,
    /// Plain, in models too: changed while nobody grows the map.
    extents_max: core::sync::atomic::AtomicU32,
    /// Extents below are the parent's.
    base: u32,
    /// Slots of the base that nobody has: the first of each space in it.
    reserved_in_base: u32,
    /// Slots in use, but for those in the base.
    live: AtomicU64,
    /// Slots of the base that are in use.
    inherited: AtomicU64,
    /// Own extents that take room on the disk.
    roomy: AtomicU32,
    /// Held by the evictor that reserves, too. Never by the fault path, never across a system call.
    shares: SpinLock<Vec<Share>>,
    /// Whether there are any.
    shared: AtomicBool,
    cursor_extent: AtomicU32,
    cursor_slot: AtomicU32,
    /// Which space an own extent lies in.
    arrangements: Arrangements,
    /// Spaces that there are or were.
    spaces: Box<[Bounds]>,
    /// Those that are there, those that come, and how many there ever were.
    known: core::sync::atomic::AtomicU32,
    /// A bit for each space that gives out no slots, because it goes, or has gone.
    closed: AtomicU64,
    /// Extents that were made beforehand. Put in by `stock`, taken under the lock of `shares`.
    spares: [core::sync::atomic::AtomicPtr<Extent>; SPARES],
    /// Somebody sees to it that there are.
    stocked: core::sync::atomic::AtomicBool,
    /// It did not grow, for want of one.
    wants_stock: core::sync::atomic::AtomicBool,
}

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
            extents_max: core::sync::atomic::AtomicU32::new(max as u32),
            base: 0,
            reserved_in_base: 0,
            live: AtomicU64::new(0),
            inherited: AtomicU64::new(0),
            roomy: AtomicU32::new(0),
            shares: SpinLock::new(Vec::with_capacity(SHARES_MAX)),
            shared: AtomicBool::new(false),
            cursor_extent: AtomicU32::new(0),
            cursor_slot: AtomicU32::new(0),
            arrangements: Arrangements::new(SpaceSet::first(1)),
            spaces: spaces::bounds(&[None]),
            known: core::sync::atomic::AtomicU32::new(1),
            closed: AtomicU64::new(0),
            spares: [const { core::sync::atomic::AtomicPtr::new(core::ptr::null_mut()) }; SPARES],
            stocked: core::sync::atomic::AtomicBool::new(false),
            wants_stock: core::sync::atomic::AtomicBool::new(false),
        }
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

    /// Adds an extent. Under the lock of `shares`.
    fn grow_by_one(&self) -> Option<u32> {
        let index = self.extents.load(Ordering::Acquire);
        if index >= self.extents_max.load(Ordering::Relaxed) {
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

    /// Adds extents up to the next one whose slots may be given out. Under the lock of `shares`.
    fn grow(&self) -> Option<u32> {
        let first = self.extents.load(Ordering::Acquire);
        let turn = self.arrangements.current().len() as u32;
        let last = (first..first.saturating_add(turn)).find(|&e| self.is_allowed(e))?;
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
        self.shares.with(f)
    }

    fn reserve_locked(&self, want: u32) -> Option<Run> {
        loop {
            let index = self.cursor_extent.load(Ordering::Relaxed);
            let from = self.cursor_slot.load(Ordering::Relaxed) as usize;
            if (self.base..self.extents.load(Ordering::Acquire)).contains(&index)
                && self.is_allowed(index)
                && let Some((at, len)) = self.take_run(self.extent(index), from, want)
            {
                if self.closed_meanwhile(index, at, len) {
                    continue;
                }
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
        let room = u64::from(self.roomy_extents()) * EXTENT_SLOTS as u64;
        // The `step`th own extent after `after`, round and round.
        let turn = |step: u32| self.base + (after.saturating_sub(self.base) + step) % own.max(1);
        // Acquire, here and below: pairs with `free`, so that who sees the count sees the free bit and finds it.
        let shared = self.shared.load(Ordering::Relaxed);
        let used = |e: u32| {
            let extent = self.extent(e);
            if shared { extent.unavailable() } else { extent.live.load(Ordering::Acquire) }
        };
        let roomy = |limit: u32| {
            (1..=own.min(SEARCH_MAX))
                .map(turn)
                .find(|&e| self.is_allowed(e) && self.extent(e).room.is_there() && used(e) <= limit)
        };
        // Two thirds of the room are free: then some extent is at most a third full, and the next of those in turn, the
        // oldest, is emptier still if updates are spread.
        if self.live.load(Ordering::Relaxed) * u64::from(SLACK) <= room
            && let Some(e) = roomy(EXTENT_SLOTS as u32 / SLACK)
        {
            return Some(e);
        }
        // What was given back, before what never was.
        let given_back = |e: &u32| !self.extent(*e).room.is_there() && self.is_allowed(*e) && used(*e) == 0;
        if self.roomy_extents() < own
            && let Some(e) = (1..=own.min(SEARCH_MAX)).map(turn).find(given_back)
        {
            return Some(e);
        }
        if let Some(e) = self.grow() {
            return Some(e);
        }
        // The cursor's own extent counts too: what was freed behind the cursor.
        (0..own).map(|step| turn(1 + step)).find(|&e| self.is_allowed(e) && used(e) < EXTENT_SLOTS as u32)
    }

    /// Takes the first run of free slots at or after `from`.
    fn take_run(&self, extent: &Extent, from: usize, want: u32) -> Option<(usize, u32)> {
        let is_free = |i: usize| {
            let held = if is_planted(Canary::Share) { 0 } else { extent.held[i / 64].load(Ordering::Relaxed) };
            let word = extent.free[i / 64].load(Ordering::Acquire) & !held;
            word & (1 << (i % 64)) != 0
        };
        let at = (from..EXTENT_SLOTS).find(|&i| is_free(i))?;
        self.note_use(&extent.room);
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

    /// Of the 64 slots from `first`, a multiple of 64, on: a bit for each that nobody has. One that is held for a child alone is free, too: the child has
    /// read what it needs, or has a copy.
    pub fn free_of(&self, first: u64) -> u64 {
        let Some((index, i)) = Slot::new(first.max(1)).map(locate) else { return u64::MAX };
        if index >= self.extents.load(Ordering::Acquire) {
            return u64::MAX;
        }
        // Acquire: pairs with `take_run`, so that who is given the slot comes after who was told that it is free.
        self.extent(index).free[i / 64].load(Ordering::Acquire)
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
#[path = "slots/tests.rs"]
mod tests;
