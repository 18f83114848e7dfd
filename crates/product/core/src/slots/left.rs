//! Slots of a map that has ended, and what becomes of them in the next one.
//!
//! A manager's extents lie in a [`Room`], which outlives it. Of them the next manager needs the checksums alone ([`LeftSums`]): which slots are in use is what the page words say. So it makes a map
//! of its own, and takes over slot by slot ([`SlotMap::take_over`]).

use super::extent::Extent;
use super::stock::boxed;
use super::{EXTENT_SLOTS, SlotMap, locate};
use crate::limits::EXTENTS_MAX;
use crate::room::{Part, Room};
use crate::sync::Ordering;
use crate::word::Slot;
use alloc::vec::Vec;

/// Bytes of an extent in a room.
const STRIDE: usize = size_of::<Extent>().next_multiple_of(128);

/// Threads that can make an extent at the same time: as many places may be empty between those that were used.
const GAP_MAX: u32 = if cfg!(miri) { 16 } else { 4096 };

/// The memory of an extent of a room. All extents are one range of it, so that few mappings will do.
fn place_of(room: &dyn Room, number: u64) -> Option<*mut Extent> {
    room.part(Part::Extent, number, STRIDE).map(|memory| memory.as_ptr().cast())
}

/// The checksums of a map that has ended.
#[derive(Debug)]
pub struct LeftSums(Vec<Option<&'static Extent>>);

impl core::fmt::Debug for Extent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Extent").field("number", &self.number()).finish_non_exhaustive()
    }
}

impl LeftSums {
    /// Those of the map whose extents lie in `room`, which nobody changes any more.
    pub fn new(room: &'static dyn Room) -> LeftSums {
        let (mut all, mut gap) = (Vec::new(), 0);
        for made in 0..2 * EXTENTS_MAX as u64 {
            let Some(place) = place_of(room, made) else { break };
            // SAFETY: memory of an extent's size and alignment (`Room`), where there is an extent or zeros, which is a value of each of its fields.
            let extent = unsafe { &*place };
            match extent.number() {
                // Threads that make extents may have ended before theirs were written.
                Err(false) if gap == GAP_MAX => break,
                Err(false) => gap += 1,
                Ok(number) if (number as usize) < EXTENTS_MAX => {
                    gap = 0;
                    let number = number as usize;
                    if all.len() <= number {
                        all.resize(number + 1, None);
                    }
                    all[number] = Some(extent);
                }
                Ok(_) | Err(true) => gap = 0,
            }
        }
        LeftSums(all)
    }

    /// The checksum that the bytes of a slot must have; `None`: the map never had the slot.
    pub fn of(&self, slot: Slot) -> Option<u64> {
        if slot.is_of_file() {
            return None;
        }
        let (index, i) = locate(slot);
        self.0.get(index as usize).copied().flatten().map(|extent| extent.sums[i].load(Ordering::Acquire))
    }
}

impl SlotMap {
    /// An extent that is none yet.
    pub(super) fn new_extent(&self) -> Option<*mut Extent> {
        let Some(room) = self.room else { return boxed(Extent::new) };
        let place = place_of(room, self.made.fetch_add(1, Ordering::Relaxed))?;
        // SAFETY: memory of this size and alignment (`Room`), which no other extent has: its number was not given before.
        unsafe { place.write(Extent::new()) };
        Some(place)
    }

    /// `slot` is in use from now on, with bytes of this checksum. Before any thread reserves slots; [`SlotMap::taken_over`] ends it. False: it is in use already, or there can be no such slot, or
    /// there is no memory.
    #[must_use]
    pub fn take_over(&self, slot: Slot, sum: u64) -> bool {
        if slot.is_of_file() {
            return false;
        }
        let (index, i) = locate(slot);
        if index >= self.extents_max.load(Ordering::Relaxed) {
            return false;
        }
        loop {
            let next = self.extents.load(Ordering::Acquire);
            if next > index {
                break;
            }
            let owner = next as usize % self.owners.all.len();
            if self.alone(|_| self.grow_by_one(owner)).is_err() {
                return false;
            }
            // It is on the shelf, and has no room on the disk as far as is known.
            let noted = self.with_token(owner, u32::MAX, |fill| fill.roomless += 1);
            assert!(noted.is_some(), "bug: slots are taken over while others reserve some");
        }
        let extent = self.extent(index);
        if extent.free_word(i / 64) >> (i % 64) & 1 == 0 {
            return false;
        }
        extent.turn_taken(i, 1);
        extent.sums[i].store(sum, Ordering::Release);
        let owner = extent.owner();
        let noted = self.with_token(owner, u32::MAX, |fill| self.note_use(owner, fill, extent.room()));
        assert!(noted.is_some(), "bug: slots are taken over while others reserve some");
        self.owners.all[owner].taken.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// All slots were taken over: each core looks at its extents before it reserves.
    pub fn taken_over(&self) {
        self.owners.changed();
    }
}

const _: () = assert!(EXTENT_SLOTS.is_multiple_of(64));

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::boxed::Box;
    use core::ptr::NonNull;
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Mutex;

    /// A room on the heap, whose memory is never freed. (In a static, where Miri finds it.)
    #[derive(Debug)]
    struct Heap(Mutex<BTreeMap<u64, Place>>);

    static ROOM: Heap = Heap(Mutex::new(BTreeMap::new()));

    #[derive(Clone, Copy, Debug)]
    struct Place(NonNull<u8>);

    // SAFETY: it is a place, and nothing is done with it here.
    unsafe impl Send for Place {}

    #[repr(align(128))]
    #[derive(Clone)]
    struct Line(#[allow(dead_code)] [u8; 128]);

    // SAFETY: each number gets memory of its own, which is never freed.
    unsafe impl Room for Heap {
        fn part(&self, part: Part, number: u64, bytes: usize) -> Option<NonNull<u8>> {
            assert_eq!(part, Part::Extent);
            let fresh =
                || Place(NonNull::from(Box::leak(alloc::vec![Line([0; 128]); bytes.div_ceil(128)].into_boxed_slice())).cast());
            Some(self.0.lock().unwrap().entry(number).or_insert_with(fresh).0)
        }
    }

    fn slot(number: u64) -> Slot {
        Slot::new(number).unwrap()
    }

    #[test]
    fn sums_outlive_their_map_and_slots_are_taken_over_once() {
        let room: &'static Heap = &ROOM;
        let mut first = SlotMap::for_cores(None, &[0, 0]);
        first.set_room(Some(room));
        // Some are made and not used.
        assert!(first.stock());
        let runs: Vec<_> = (0..4).map(|n| first.reserve_run(n % 2, 300).unwrap()).collect();
        let all: Vec<Slot> = runs.iter().flat_map(|run| (0..u64::from(run.len)).map(|n| run.first.plus(n))).collect();
        all.iter().for_each(|&slot| first.set_sum(slot, slot.number() * 7));
        drop(first);

        let left = LeftSums::new(room);
        assert!(all.iter().all(|&slot| left.of(slot) == Some(slot.number() * 7)));
        assert_eq!(left.of(slot(1 << 25)), None);
        let next = SlotMap::for_cores(None, &[0, 0]);
        // Every third one was in use, the last first.
        let kept: Vec<Slot> = all.iter().copied().rev().step_by(3).collect();
        assert!(kept.iter().all(|&slot| next.take_over(slot, left.of(slot).unwrap())));
        assert!(kept.iter().all(|&slot| !next.take_over(slot, 0)), "a slot has one owner");
        next.taken_over();
        next.assert_valid();
        assert_eq!((next.live(), next.sum(kept[0])), (kept.len() as u64, kept[0].number() * 7));
        // Nobody else gets one of them.
        let mut more = Vec::new();
        for n in 0..if cfg!(miri) { 8 } else { 40 } {
            let run = next.reserve_run(n % 2, 64).unwrap();
            more.extend((0..u64::from(run.len)).map(|n| run.first.plus(n)));
        }
        let had: BTreeSet<u64> = kept.iter().map(|slot| slot.number()).collect();
        assert!(more.iter().all(|slot| !had.contains(&slot.number())));
        next.assert_valid();
        kept.iter().chain(&more).for_each(|&slot| next.free(slot));
        next.assert_valid();
        assert_eq!(next.live(), 0);
    }

    #[test]
    fn what_can_be_no_slot_is_not_taken_over() {
        let map = SlotMap::new(Some(2 * 512));
        assert!(!map.take_over(slot(2 * 512), 1) && map.take_over(slot(2 * 512 - 1), 1));
        let of_a_file = crate::word::FilePage { file: 0, page: 3 }.slot().unwrap();
        assert!(!map.take_over(of_a_file, 1));
        map.taken_over();
        map.assert_valid();
    }
}
