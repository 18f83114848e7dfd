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
//! # Equation
//!
//! `live` of an extent = its zero bits in `free` (checked by [`SlotMap::assert_valid`]).

use crate::limits::{EXTENT_SLOTS, EXTENTS_MAX};
use crate::sync::AtomicBool;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, spin_hint};
use crate::word::Slot;
use alloc::boxed::Box;
use alloc::vec::Vec;

const WORDS: usize = EXTENT_SLOTS / 64;
const CHUNK: usize = if cfg!(loom) { 2 } else { 1024 };
/// Room for each slot in use, while the space can grow.
const SLACK: u32 = 3;
/// Extents that a search looks at before the space rather grows.
const SEARCH_MAX: u32 = 4096;

struct Extent {
    /// Bit set: slot free.
    free: [AtomicU64; WORDS],
    live: AtomicU32,
    /// Checksum of the page in each slot.
    sums: [AtomicU64; EXTENT_SLOTS],
}

impl Extent {
    fn new() -> Extent {
        Extent {
            free: core::array::from_fn(|_| AtomicU64::new(u64::MAX)),
            live: AtomicU32::new(0),
            sums: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

type Chunk = [AtomicPtr<Extent>; CHUNK];

/// The slots of one swap space.
pub struct SlotMap {
    chunks: Box<[AtomicPtr<Chunk>]>,
    extents: AtomicU32,
    extents_max: u32,
    live: AtomicU64,
    /// Held by the evictor that reserves. Never by the fault path, never across a system call.
    reserving: AtomicBool,
    cursor_extent: AtomicU32,
    cursor_slot: AtomicU32,
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
            extents_max: max as u32,
            live: AtomicU64::new(0),
            reserving: AtomicBool::new(false),
            cursor_extent: AtomicU32::new(0),
            cursor_slot: AtomicU32::new(0),
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

    /// Adds an extent. Under `reserving`.
    fn grow(&self) -> Option<u32> {
        let index = self.extents.load(Ordering::Acquire);
        if index >= self.extents_max {
            return None;
        }
        let place = &self.chunks[index as usize / CHUNK];
        let mut chunk = place.load(Ordering::Acquire);
        if chunk.is_null() {
            let fresh: Box<Chunk> = Box::new(core::array::from_fn(|_| AtomicPtr::new(core::ptr::null_mut())));
            chunk = Box::into_raw(fresh);
            place.store(chunk, Ordering::Release);
        }
        // SAFETY: non-null, from Box::into_raw just now or in an earlier `grow`, never freed.
        let chunk = unsafe { &*chunk };
        let extent = Box::new(Extent::new());
        if index == 0 {
            // Slot 0 means "no slot" in a page word: nobody may have it.
            extent.free[0].fetch_and(!1, Ordering::Relaxed);
            extent.live.store(1, Ordering::Relaxed);
        }
        chunk[index as usize % CHUNK].store(Box::into_raw(extent), Ordering::Release);
        self.extents.store(index + 1, Ordering::Release);
        Some(index)
    }

    /// Reserves up to `want` neighbouring slots; `None` when the space is full.
    pub fn reserve_run(&self, want: u32) -> Option<Run> {
        while self.reserving.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // Reads while it is held: the holder's line stays where it is.
            while self.reserving.load(Ordering::Relaxed) {
                spin_hint();
            }
        }
        let run = self.reserve_locked(want.clamp(1, EXTENT_SLOTS as u32));
        self.reserving.store(false, Ordering::Release);
        run
    }

    fn reserve_locked(&self, want: u32) -> Option<Run> {
        loop {
            let index = self.cursor_extent.load(Ordering::Relaxed);
            let from = self.cursor_slot.load(Ordering::Relaxed) as usize;
            if index < self.extents.load(Ordering::Acquire)
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
        let room = u64::from(extents) * EXTENT_SLOTS as u64;
        let roomy = |limit: u32| {
            // Acquire, here and below: pairs with `free`, so that who sees the count sees the free bit and finds it.
            (1..=extents.min(SEARCH_MAX))
                .map(|step| (after + step) % extents.max(1))
                .find(|&e| self.extent(e).live.load(Ordering::Acquire) <= limit)
        };
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
        (0..extents).map(|step| (after + 1 + step) % extents).find(|&e| {
            // The cursor's own extent counts too: what was freed behind the cursor.
            self.extent(e).live.load(Ordering::Acquire) < EXTENT_SLOTS as u32
        })
    }

    /// Takes the first run of free slots at or after `from`.
    fn take_run(&self, extent: &Extent, from: usize, want: u32) -> Option<(usize, u32)> {
        let is_free = |i: usize| extent.free[i / 64].load(Ordering::Acquire) & (1 << (i % 64)) != 0;
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
        self.live.fetch_sub(1, Ordering::Relaxed);
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

    /// Slots in use.
    pub fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }
    /// Bytes of the space that have been in use at some time: an upper bound of the swap file's size.
    pub fn extent_bytes(&self) -> u64 {
        u64::from(self.extents.load(Ordering::Acquire)) * (EXTENT_SLOTS * crate::limits::PAGE_SIZE) as u64
    }

    /// Checks the equation of the module head. Only exact while no other thread uses the map.
    ///
    /// # Panics
    /// When an extent's count and bits disagree.
    pub fn assert_valid(&self) {
        let mut live = 0;
        for index in 0..self.extents.load(Ordering::Acquire) {
            let e = self.extent(index);
            let zeros: u32 = e.free.iter().map(|w| w.load(Ordering::Acquire).count_zeros()).sum();
            assert_eq!(zeros, e.live.load(Ordering::Acquire), "extent {index}");
            live += u64::from(zeros) - u64::from(index == 0);
        }
        assert_eq!(live, self.live());
    }
}

impl Drop for SlotMap {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            let chunk = chunk.load(Ordering::Acquire);
            if chunk.is_null() {
                continue;
            }
            // SAFETY: from Box::into_raw in `grow`, dropped once, and `&mut self` means nobody uses it.
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
    fn runs_lie_side_by_side_and_never_overlap() {
        let map = SlotMap::new(None);
        let mut used = BTreeSet::new();
        for _ in 0..20 {
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
        for _ in 0..if cfg!(miri) { 5 } else { 50 } {
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
