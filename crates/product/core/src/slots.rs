//! Places in swap space, handed out side by side.
//!
//! Swap space is divided into extents of 512 slots (2 MiB). An evictor asks for
//! a *run* of neighbouring slots for a batch, so that 256 scattered victims leave
//! by one large write: random 4 KiB writes beside the reads halve the reads of an
//! SSD, large ones cost them almost nothing (`docs/src/decisions/0006-slots-side-by-side.md`).
//! The page word carries the slot, so any page can lie anywhere,
//! and a page that `mremap` moves keeps its slot.
//!
//! # Life of a slot
//!
//! *reserve* ([`SlotMap::reserve_run`], evictors only) → *in use* (a page
//! word or a stage names it) → *forfeit* ([`SlotMap::free`], any thread, without a lock;
//! the fault path does this when a clean page becomes dirty).
//!
//! Each core has extents of its own, and fills them without touching lines that another core writes ([`owners`]).
//!
//! # fork
//!
//! After a fork both processes read the slots that were in use at that moment, and neither may change them. So
//!
//! * the child's map has the parent's extents as its **base**: the child frees slots there for itself alone, and takes none. Its
//!   own extents come behind the base, and lie in a space of their own;
//! * the parent *shares* ([`SlotMap::share`]): slots that were in use are **held**. They are not given out again even when the
//!   parent frees them, until the child and all its descendants are gone ([`SlotMap::unshare`]).
//!
//! # Several spaces
//!
//! A process' own extents (counted from its base) go round the files of an array ([`arrangement`]). When a space fails, the map
//! leaves it alone, and no slot changes its place ([`SlotMap::allow`]): slots in use there stay, and new slots come from the
//! other spaces. Each space has a *ceiling*, in extents of its own: extents at or above it are not given out.
//!
//! Spaces come and go while slots are given out ([`spaces`]). A space that is to go is *closed* first: none of its slots is given
//! out any more, whatever its ceiling says. When none of its slots is in use, it can be taken away.
//!
//! Room on the disk that is no longer needed is given back, whole extents at a time ([`giving`]).
//!
//! # Memory
//!
//! An evictor must not wait for memory, so a thread that may wait makes extents beforehand ([`SlotMap::stock`]). When none of
//! them is left, the map does not grow for now ([`SlotMap::wants_stock`]), and gives out the slots that it has. Where no thread
//! makes extents beforehand, they are made as they are needed.
//!
//! # Equation
//!
//! `live` of an extent = its slots in use, bit by bit. Slots that each core has taken less those that came back = `live` of its
//! extents (checked by [`SlotMap::assert_valid`]).

use crate::limits::{EXTENT_SLOTS, EXTENTS_MAX};
use crate::room::Room;
use crate::spin::SpinLock;
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::word::Slot;
use alloc::boxed::Box;
use alloc::vec::Vec;
use arrangement::{Arrangements, SpaceSet};
use core::ops::Range;
use extent::{Extent, WORDS};
pub use giving::Idle;
pub use left::LeftSums;
use owners::Owners;
use shares::{SHARES_MAX, Share};
use spaces::Bounds;
pub use spaces::{Allowed, Removal};
use stock::boxed;

#[path = "slots/arrangement.rs"]
pub mod arrangement;
#[path = "slots/asking.rs"]
mod asking;
#[path = "slots/extent.rs"]
mod extent;
#[path = "slots/giving.rs"]
mod giving;
#[path = "slots/left.rs"]
mod left;
#[path = "slots/owners.rs"]
pub mod owners;
#[path = "slots/shares.rs"]
mod shares;
#[path = "slots/spaces.rs"]
mod spaces;
#[path = "slots/stock.rs"]
mod stock;
#[path = "slots/waiting.rs"]
mod waiting;

const CHUNK: usize = if cfg!(loom) { 2 } else { 1024 };
/// Slots that the map has room for, for each slot in use, while the space can grow.
const SLACK: u32 = 3;
/// Extents that are kept ready: 64 MiB of swap space.
const SPARES: usize = if cfg!(miri) { 8 } else { 32 };

type Chunk = [AtomicPtr<Extent>; CHUNK];

fn new_chunk() -> Chunk {
    core::array::from_fn(|_| AtomicPtr::new(core::ptr::null_mut()))
}

/// The slots of one swap space.
pub struct SlotMap {
    chunks: Box<[AtomicPtr<Chunk>]>,
    extents: AtomicU32,
    /// A plain atomic, in models too: it changes only while no thread grows the map.
    extents_max: crate::sync::plain::AtomicU32,
    /// Extents below this one are the parent's.
    base: u32,
    /// Slots of the base that no page can have: the first of each space in it.
    reserved_in_base: u32,
    /// Slots of the base that were in use when this process began.
    inherited: u64,
    /// What each core has.
    owners: Owners,
    /// The children's shares. A thread that makes an extent holds this lock, too. Never taken by the fault path, never
    /// held across a system call.
    shares: SpinLock<Vec<Share>>,
    /// Whether there are any shares.
    shared: AtomicBool,
    /// Which space each own extent lies in.
    arrangements: Arrangements,
    /// Bounds of the spaces that exist or existed.
    spaces: Box<[Bounds]>,
    /// How many spaces there are, are coming, or ever were.
    known: crate::sync::plain::AtomicU32,
    /// A bit for each space that gives out no slots, because it is going, or has gone.
    closed: AtomicU64,
    /// Extents that were made beforehand. `stock` puts them in; they are taken under the lock of `shares`.
    spares: [crate::sync::plain::AtomicPtr<Extent>; SPARES],
    /// A thread makes extents beforehand.
    stocked: crate::sync::plain::AtomicBool,
    /// The map did not grow, because no extent was left of those made beforehand.
    wants_stock: crate::sync::plain::AtomicBool,
    /// Cores ask each other for slots, as a rule ([`crate::ablated`]).
    delegates: bool,
    /// Where extents lie, if not on the heap, and how many were made there.
    room: Option<&'static dyn Room>,
    made: crate::sync::plain::AtomicU64,
}

impl core::fmt::Debug for SlotMap {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SlotMap").field("extents", &self.extents).field("live", &self.live()).finish_non_exhaustive()
    }
}

/// Neighbouring slots that an evictor has reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Run {
    /// The first slot.
    pub first: Slot,
    /// How many slots, at least 1.
    pub len: u32,
}

/// Why no extent was added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NoGrowth {
    /// No further extent may be given out, until something else is allowed.
    NoRoom,
    /// There is no memory for an extent at the moment.
    NoMemory,
}

fn locate(slot: Slot) -> (u32, usize) {
    let n = slot.number();
    ((n / EXTENT_SLOTS as u64) as u32, (n % EXTENT_SLOTS as u64) as usize)
}

impl SlotMap {
    /// A map of a space of at most `capacity` slots (rounded down to whole extents), `None`: as many as there can be. For
    /// one core.
    pub fn new(capacity: Option<u64>) -> SlotMap {
        SlotMap::for_cores(capacity, &[0])
    }

    /// As [`SlotMap::new`], for as many cores as `nodes` has entries; each entry is the NUMA node of a core. Cores beyond
    /// [`owners::OWNERS_MAX`] share with the first ones.
    ///
    /// # Panics
    /// If `nodes` is empty.
    pub fn for_cores(capacity: Option<u64>, nodes: &[usize]) -> SlotMap {
        assert!(!nodes.is_empty(), "slots for no core");
        let max = capacity.map_or(EXTENTS_MAX as u64, |c| (c / EXTENT_SLOTS as u64).min(EXTENTS_MAX as u64));
        let chunks = (max as usize).div_ceil(CHUNK).max(1);
        SlotMap {
            chunks: (0..chunks).map(|_| AtomicPtr::new(core::ptr::null_mut())).collect::<Vec<_>>().into_boxed_slice(),
            extents: AtomicU32::new(0),
            extents_max: crate::sync::plain::AtomicU32::new(max as u32),
            base: 0,
            reserved_in_base: 0,
            inherited: 0,
            owners: Owners::new(nodes),
            shares: SpinLock::new(Vec::with_capacity(SHARES_MAX)),
            shared: AtomicBool::new(false),
            arrangements: Arrangements::new(SpaceSet::first(1)),
            spaces: spaces::bounds(&[None]),
            known: crate::sync::plain::AtomicU32::new(1),
            closed: AtomicU64::new(0),
            spares: [const { crate::sync::plain::AtomicPtr::new(core::ptr::null_mut()) }; SPARES],
            stocked: crate::sync::plain::AtomicBool::new(false),
            wants_stock: crate::sync::plain::AtomicBool::new(false),
            delegates: true,
            room: None,
            made: crate::sync::plain::AtomicU64::new(0),
        }
    }

    /// Extents lie in this room. To be called before the first slot is reserved.
    pub fn set_room(&mut self, room: Option<&'static dyn Room>) {
        self.room = room;
    }

    /// A core that has no slots left takes those of another by itself, and asks nobody.
    pub fn end_delegation(&mut self) {
        self.delegates = false;
    }

    fn extent(&self, index: u32) -> &Extent {
        let chunk = self.chunks[index as usize / CHUNK].load(Ordering::Acquire);
        // SAFETY: callers pass the index of an extent that exists (`< self.extents`, or of a slot that was reserved).
        // `grow` published its chunk with Release before it published the extent; neither is ever freed.
        let chunk = unsafe { &*chunk };
        let extent = chunk[index as usize % CHUNK].load(Ordering::Acquire);
        // SAFETY: as above.
        unsafe { &*extent }
    }

    /// Adds an extent of `owner`'s to the shelf. Under the lock of `shares`.
    fn grow_by_one(&self, owner: usize) -> Result<(), NoGrowth> {
        let index = self.extents.load(Ordering::Acquire);
        if index >= self.extents_max.load(Ordering::Relaxed) {
            return Err(NoGrowth::NoRoom);
        }
        let place = &self.chunks[index as usize / CHUNK];
        let mut chunk = place.load(Ordering::Acquire);
        if chunk.is_null() {
            if self.is_stocked() {
                return Err(NoGrowth::NoMemory);
            }
            chunk = boxed(new_chunk).ok_or(NoGrowth::NoMemory)?;
            place.store(chunk, Ordering::Release);
        }
        // SAFETY: non-null, from `boxed` just now or in an earlier `grow`, never freed.
        let chunk = unsafe { &*chunk };
        let fresh = self.take_spare().ok_or(NoGrowth::NoMemory)?;
        // SAFETY: from `boxed`, and no other thread has the pointer.
        let extent = unsafe { &mut *fresh };
        extent.set_owner(owner);
        extent.set_number(index);
        if index == self.base {
            // Slot 0 means "no slot" in a page word, so no page may have it. The same holds in a child's own space.
            extent.turn_taken(0, 1);
        }
        chunk[index as usize % CHUNK].store(fresh, Ordering::Release);
        self.extents.store(index + 1, Ordering::Release);
        Ok(())
    }

    /// Adds extents of `owner`'s up to the next one that `fits`. Returns which.
    fn grow_to(&self, owner: usize, fits: impl Fn(u32) -> bool) -> Result<Range<u32>, NoGrowth> {
        self.alone(|_| {
            let first = self.extents.load(Ordering::Acquire);
            let turn = self.arrangements.current().len() as u32;
            let last = (first..first.saturating_add(turn)).find(|&e| fits(e)).ok_or(NoGrowth::NoRoom)?;
            (first..=last).try_for_each(|_| self.grow_by_one(owner))?;
            Ok(first..last + 1)
        })
    }

    /// Adds extents of `owner`'s up to the next one whose slots may be given out.
    fn grow(&self, owner: usize) -> Result<Range<u32>, NoGrowth> {
        self.grow_to(owner, |e| self.would_be_allowed(e))
    }

    /// Runs `f` while no other thread adds an extent or makes a share.
    fn alone<R>(&self, f: impl FnOnce(&mut Vec<Share>) -> R) -> R {
        self.shares.with(f)
    }

    /// A bit for each of the 64 slots from `first` on, a multiple of 64: set if no page of this process has the slot. A slot that
    /// is held for a child alone counts as free, too: the child has read what it needs, or has a copy.
    pub fn free_of(&self, first: u64) -> u64 {
        let Some((index, i)) = Slot::new(first.max(1)).map(locate) else { return u64::MAX };
        if index >= self.extents.load(Ordering::Acquire) {
            return u64::MAX;
        }
        self.extent(index).free_word(i / 64)
    }

    /// As [`SlotMap::free_of`], without those that are held for a child.
    pub fn unneeded_of(&self, first: u64) -> u64 {
        let Some((index, i)) = Slot::new(first.max(1)).map(locate) else { return u64::MAX };
        if index >= self.extents.load(Ordering::Acquire) {
            return u64::MAX;
        }
        let extent = self.extent(index);
        extent.free_word(i / 64) & !extent.held[i / 64].load(Ordering::Relaxed)
    }

    /// Slots of the parent's space that a forked child still uses.
    pub fn inherited(&self) -> u64 {
        self.inherited - self.owners.freed_in_base()
    }

    /// Remembers the checksum of the bytes that are being written to `slot`.
    pub fn set_sum(&self, slot: Slot, sum: u64) {
        let (index, i) = locate(slot);
        self.extent(index).sums[i].store(sum, Ordering::Release);
    }

    /// The checksum that the bytes of `slot` must have, which is not a page of a mapped file.
    pub fn sum(&self, slot: Slot) -> u64 {
        let (index, i) = locate(slot);
        self.extent(index).sums[i].load(Ordering::Acquire)
    }

    /// Slots in use in this process' own space.
    pub fn live(&self) -> u64 {
        self.owners.live()
    }

    /// Bytes of the space that have been in use at some time: an upper bound of the swap file's size. Tests alone ask.
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
            let extent = self.extent(index);
            extent.assert_valid(index);
            let count = if index < self.base { &mut inherited } else { &mut live };
            *count += u64::from(extent.live()) - u64::from(index == self.base);
        }
        self.assert_owners_valid();
        inherited -= u64::from(self.reserved_in_base);
        assert_eq!((live, inherited), (self.live(), self.inherited()));
    }
}

impl Drop for SlotMap {
    fn drop(&mut self) {
        // Extents of a room outlive the map.
        let are_ours = self.room.is_none();
        for spare in self.spares.iter().filter(|_| are_ours).map(|place| place.swap(core::ptr::null_mut(), Ordering::Acquire)) {
            if !spare.is_null() {
                // SAFETY: from `boxed`, and no other thread has the pointer.
                drop(unsafe { Box::from_raw(spare) });
            }
        }
        for chunk in &self.chunks {
            let chunk = chunk.load(Ordering::Acquire);
            if chunk.is_null() {
                continue;
            }
            // SAFETY: from `boxed` in `grow_by_one`, dropped once, and `&mut self` means that no thread uses it.
            let chunk = unsafe { Box::from_raw(chunk) };
            // The pointers as they were stored: a pointer that is made from a shared reference may not be dropped.
            for extent in chunk.iter().filter(|_| are_ours).map(|extent| extent.load(Ordering::Acquire)) {
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
