//! Extents whose room on the disk the map gives back.
//!
//! ```text
//!              a slot is given out          idle at a look              idle at a later look
//!   no room ───────────────────────▶ used ────────────────▶ resting ───────────────────────────▶ taken out ─▶ no room
//!                                     ▲     a slot is given out │                                    │ it did not work
//!                                     └─────────────────────────┴────────────────────────────────────┘
//! ```
//!
//! *Idle*: no slot is in use, none is held for a child, and the extent's owner is not just filling it. An idle extent is *taken
//! out of circulation* while the disk is asked to free its room: all its slots are taken, as its owner would take them, with the
//! owner's token ([`super::owners`]). So no thread can be given one of its slots, and no page names one. To put the extent back
//! is to free its slots. The thread that takes an extent out must not let the process fork before the extent is back: `share`
//! would take its slots for used ones.
//!
//! Slots are given out of extents with room first. An extent without room is *shelved* when its owner meets it on the list, and
//! is taken from the shelf before the space grows. So room that was given back stays given back as long as the other extents are
//! enough.

use super::owners::{Fill, PATIENCE};
use super::{Extent, SLACK, SlotMap, WORDS};
use crate::canary::{Canary, is_planted};
use crate::limits::EXTENT_SLOTS;
use crate::sync::{AtomicU32, Ordering};
use crate::word::Slot;

const NO_ROOM: u32 = 0;
const USED: u32 = 1;
const RESTING: u32 = 2;
const SLOTS: u32 = EXTENT_SLOTS as u32;

/// Whether an extent takes room, and how long it has been idle. Changed with the token of the extent's owner.
#[derive(Debug)]
pub(super) struct Room(AtomicU32);

impl Room {
    pub(super) fn new() -> Room {
        Room(AtomicU32::new(NO_ROOM))
    }

    pub(super) fn is_there(&self) -> bool {
        self.0.load(Ordering::Relaxed) != NO_ROOM
    }
}

/// The result of [`SlotMap::look_whether_idle`].
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// The extent is in use, or has no room, or its owner's token could not be had.
    No,
    /// Idle since this look.
    Now,
    /// Idle since an earlier look, and not used in between.
    Rests,
}

impl SlotMap {
    /// Own extents that take room.
    pub fn roomy_extents(&self) -> u32 {
        self.owners.all.iter().map(|owner| owner.roomy.load(Ordering::Relaxed)).sum()
    }

    /// How many extents the map spreads the slots in use over, when it can grow.
    pub fn extents_needed(&self) -> u32 {
        // At most three times the number of extents.
        (self.live() * u64::from(SLACK)).div_ceil(EXTENT_SLOTS as u64).min(u64::from(u32::MAX)) as u32
    }

    /// The process' own extents, the last one first.
    pub fn own_extents(&self) -> impl Iterator<Item = u32> + use<> {
        (self.base..self.extents.load(Ordering::Acquire)).rev()
    }

    /// Slots of an own extent were taken. With the token of the extent's owner.
    pub(super) fn note_use(&self, owner: usize, fill: &mut Fill, room: &Room) {
        // Look before writing: most runs follow another, and the line is the owner's.
        if room.0.load(Ordering::Relaxed) != USED && room.0.swap(USED, Ordering::Relaxed) == NO_ROOM {
            self.owners.all[owner].roomy.fetch_add(1, Ordering::Relaxed);
            fill.roomless -= 1;
        }
    }

    /// Takes an extent without room from the shelf. With the owner's token.
    pub(super) fn take_from_shelf(&self, owner: usize, fill: &mut Fill) -> Option<u32> {
        if fill.roomless == 0 || fill.shelf_is_empty {
            return None;
        }
        let is_one = |index: &u32| {
            let extent = self.extent(*index);
            extent.owner() == owner && !extent.room().is_there() && self.is_allowed(*index) && self.used(*index) == 0
        };
        let mut all = self.base..self.extents.load(Ordering::Acquire);
        let found = all.find(|index| is_one(index) && self.extent(*index).fetch().is_some());
        fill.shelf_is_empty = found.is_none();
        fill.usable += u64::from(found.is_some());
        found
    }

    fn is_idle(&self, index: u32, fill: &Fill) -> bool {
        let extent = self.extent(index);
        let unused = extent.live() == 0 && (0..WORDS).all(|i| extent.held[i].load(Ordering::Relaxed) == 0);
        unused && !fill.is_filling(index)
    }

    fn with_owner<R>(&self, index: u32, f: impl FnOnce(&mut Fill, &Extent) -> R) -> Option<R> {
        let extent = self.extent(index);
        self.with_token(extent.owner(), PATIENCE, |fill| f(fill, extent))
    }

    /// Looks whether an own extent is idle. One thread at a time.
    pub fn look_whether_idle(&self, index: u32) -> Idle {
        let look = |fill: &mut Fill, extent: &Extent| match extent.room().0.load(Ordering::Relaxed) {
            NO_ROOM => Idle::No,
            _ if !self.is_idle(index, fill) && !is_planted(Canary::Trim) => Idle::No,
            RESTING => Idle::Rests,
            _ => {
                extent.room().0.store(RESTING, Ordering::Relaxed);
                Idle::Now
            }
        };
        self.with_owner(index, look).unwrap_or(Idle::No)
    }

    /// Takes an own extent out of circulation, if it is idle. Returns its first slot. It stays out until
    /// [`SlotMap::put_back`], by the same thread.
    pub fn take_out(&self, index: u32) -> Option<Slot> {
        self.with_owner(index, |fill, extent| {
            if !is_planted(Canary::Trim) {
                if !self.is_idle(index, fill) {
                    return None;
                }
                extent.turn_taken(0, SLOTS);
                self.owners.all[extent.owner()].taken.fetch_add(SLOTS.into(), Ordering::Relaxed);
            }
            Slot::new(u64::from(index) * EXTENT_SLOTS as u64)
        })?
    }

    /// Puts an extent back that was taken out. `given`: it takes no room any more.
    pub fn put_back(&self, index: u32, given: bool) {
        let is_given = |fill: &mut Fill, extent: &Extent| {
            extent.room().0.store(NO_ROOM, Ordering::Relaxed);
            self.owners.all[extent.owner()].roomy.fetch_sub(1, Ordering::Relaxed);
            fill.roomless += 1;
            fill.shelf_is_empty = false;
        };
        if given {
            // No other thread names the extent. If the owner's token cannot be had, the room counts as there, which costs
            // a look later.
            let _ = self.with_owner(index, is_given);
        }
        if !is_planted(Canary::Trim) {
            self.free_all_of(index);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn reserve_all(map: &SlotMap, want: u64) -> Vec<Slot> {
        let mut all = Vec::new();
        while (all.len() as u64) < want {
            let run = map.reserve_run(0, (want - all.len() as u64) as u32).expect("room");
            all.extend((0..u64::from(run.len)).map(|n| run.first.plus(n)));
        }
        all
    }

    /// Looks at all extents, and gives back those that rest.
    fn give(map: &SlotMap) -> Vec<u32> {
        let rests = |&index: &u32| map.look_whether_idle(index) == Idle::Rests;
        let taken: Vec<u32> = map.own_extents().filter(rests).filter(|&index| map.take_out(index).is_some()).collect();
        taken.iter().for_each(|&index| map.put_back(index, true));
        map.assert_valid();
        taken
    }

    #[test]
    fn what_is_idle_at_two_looks_is_given_back_and_used_again() {
        let map = SlotMap::new(None);
        let slots = reserve_all(&map, 6 * 512);
        assert_eq!((map.roomy_extents(), give(&map).len()), (7, 0));
        slots.iter().for_each(|&slot| map.free(slot));
        assert_eq!(give(&map), []);
        // The first extent has a slot that no page may have, and slots are given out of the last.
        assert_eq!(give(&map), [5, 4, 3, 2, 1]);
        assert_eq!((map.roomy_extents(), map.live(), give(&map).len()), (2, 0, 0));
        // First out of extents that have room, then out of those that had, before the space grows.
        let lie_below =
            |extent: u64, slots: &[Slot]| slots.iter().all(|slot| slot.number() / 512 < extent || slot.number() / 512 == 6);
        assert!(lie_below(1, &reserve_all(&map, 300)));
        let more = reserve_all(&map, 2000);
        assert!(lie_below(7, &more));
        assert_eq!(map.own_extents().count(), 7);
        map.assert_valid();
    }

    #[test]
    fn an_extent_that_was_used_in_between_rests_anew() {
        let map = SlotMap::new(Some(2 * 512));
        let slots = reserve_all(&map, 600);
        slots.iter().for_each(|&slot| map.free(slot));
        // Slots are given out of 1: only slots elsewhere are idle, and 0 never is.
        assert_eq!((give(&map).len(), give(&map).len()), (0, 0));
        assert_eq!(map.look_whether_idle(1), Idle::No);
        assert_eq!(map.take_out(1), None);
    }

    #[test]
    fn nobody_is_given_a_slot_of_what_was_taken_out() {
        let map = SlotMap::new(Some(3 * 512));
        let slots = reserve_all(&map, 3 * 512 - 1);
        slots.iter().for_each(|&slot| map.free(slot));
        assert_eq!(map.look_whether_idle(1), Idle::Now);
        let first = map.take_out(1).expect("idle");
        assert_eq!((first.number(), map.take_out(1), map.look_whether_idle(1)), (512, None, Idle::No));
        map.assert_valid();
        let rest = reserve_all(&map, 1023);
        assert!(rest.iter().all(|slot| slot.number() / 512 != 1));
        assert_eq!(map.reserve_run(0, 1), None);
        map.put_back(1, false);
        assert_eq!(map.roomy_extents(), 3);
        assert_eq!(map.reserve_run(0, 512).map(|run| (run.first, run.len)), Some((first, 512)));
        map.assert_valid();
    }

    #[test]
    fn what_a_child_may_read_is_not_idle() {
        let map = SlotMap::new(None);
        let slots = reserve_all(&map, 4 * 512);
        let share = map.share();
        slots.iter().for_each(|&slot| map.free(slot));
        assert_eq!((give(&map).len(), give(&map).len()), (0, 0));
        map.unshare(share);
        assert_eq!((give(&map).len(), give(&map)), (0, alloc::vec![3, 2, 1]));
    }
}
