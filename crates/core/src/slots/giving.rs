//! Extents whose room on the disk is given back.
//!
//! ```text
//!              a slot is given out          idle at a look              idle at a later look
//!   no room ───────────────────────▶ used ────────────────▶ resting ───────────────────────────▶ taken out ─▶ no room
//!                                     ▲     a slot is given out │                                    │ it did not work
//!                                     └─────────────────────────┴────────────────────────────────────┘
//! ```
//!
//! *Idle*: no slot is in use, none is held for a child, and slots are not just being given out there. An idle extent is *taken out of circulation* while the
//! disk is asked: all its slots are reserved, as an evictor would reserve them. So nobody can be given one, and nobody names one. All in one moment under the lock of
//! those who reserve. Who takes it out must not let the process fork before it is back: `share` would take its slots for used ones.
//!
//! Slots are given out of extents with room first, so that what was given back stays so as long as the others are enough.

use super::{SLACK, SlotMap, WORDS};
use crate::canary::{Canary, is_planted};
use crate::limits::EXTENT_SLOTS;
use crate::sync::{AtomicU32, Ordering};
use crate::word::Slot;

const NO_ROOM: u32 = 0;
const USED: u32 = 1;
const RESTING: u32 = 2;

/// Whether an extent takes room, and how long it has been idle.
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

/// What [`SlotMap::look_whether_idle`] says.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// It is in use, or has no room.
    No,
    /// Since this look.
    Now,
    /// Since an earlier look, without having been used in between.
    Rests,
}

impl SlotMap {
    /// Own extents that take room.
    pub fn roomy_extents(&self) -> u32 {
        self.roomy.load(Ordering::Relaxed)
    }

    /// As many as the map spreads the slots in use over, when it can grow.
    pub fn extents_needed(&self) -> u32 {
        // At most three times the number of extents.
        (self.live() * u64::from(SLACK)).div_ceil(EXTENT_SLOTS as u64).min(u64::from(u32::MAX)) as u32
    }

    /// Own extents, the last one first.
    pub fn own_extents(&self) -> impl Iterator<Item = u32> + use<> {
        (self.base..self.extents.load(Ordering::Acquire)).rev()
    }

    /// Slots of an extent are given out. Under the lock of who reserves.
    pub(super) fn note_use(&self, room: &Room) {
        if room.0.swap(USED, Ordering::Relaxed) == NO_ROOM {
            self.roomy.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Begins anew, with a base that is none of ours. Nobody else uses the map.
    pub(super) fn forget_room(&mut self) {
        self.roomy.store(0, Ordering::Relaxed);
    }

    fn is_idle(&self, index: u32) -> bool {
        let extent = self.extent(index);
        // Acquire: pairs with `free`, so that who frees a slot last has done with all before.
        let unused = extent.live.load(Ordering::Acquire) == 0 && (0..WORDS).all(|i| extent.held[i].load(Ordering::Relaxed) == 0);
        unused && index != self.cursor_extent.load(Ordering::Relaxed)
    }

    /// Looks at an own extent. By one thread.
    pub fn look_whether_idle(&self, index: u32) -> Idle {
        self.alone(|_| match self.extent(index).room.0.load(Ordering::Relaxed) {
            NO_ROOM => Idle::No,
            _ if !self.is_idle(index) && !is_planted(Canary::Trim) => Idle::No,
            RESTING => Idle::Rests,
            _ => {
                self.extent(index).room.0.store(RESTING, Ordering::Relaxed);
                Idle::Now
            }
        })
    }

    /// Takes an own extent out of circulation, if it is idle: its first slot. Until [`SlotMap::put_back`], by the same thread.
    pub fn take_out(&self, index: u32) -> Option<Slot> {
        self.alone(|_| {
            let extent = self.extent(index);
            if !is_planted(Canary::Trim) {
                if !self.is_idle(index) {
                    return None;
                }
                extent.free.iter().for_each(|word| {
                    // Acquire: pairs with `free`.
                    word.fetch_and(0, Ordering::AcqRel);
                });
                extent.live.fetch_add(EXTENT_SLOTS as u32, Ordering::AcqRel);
                self.live.fetch_add(EXTENT_SLOTS as u64, Ordering::Relaxed);
            }
            Slot::new(u64::from(index) * EXTENT_SLOTS as u64)
        })
    }

    /// Puts an extent back that was taken out. `given`: it has no room any more.
    pub fn put_back(&self, index: u32, given: bool) {
        self.alone(|_| {
            let extent = self.extent(index);
            if given {
                extent.room.0.store(NO_ROOM, Ordering::Relaxed);
                self.roomy.fetch_sub(1, Ordering::Relaxed);
            }
            if is_planted(Canary::Trim) {
                return;
            }
            // As `free` does, and in its order: bits first.
            extent.free.iter().for_each(|word| word.store(u64::MAX, Ordering::Release));
            extent.live.fetch_sub(EXTENT_SLOTS as u32, Ordering::AcqRel);
            self.live.fetch_sub(EXTENT_SLOTS as u64, Ordering::Relaxed);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn reserve_all(map: &SlotMap, want: u64) -> Vec<Slot> {
        let mut all = Vec::new();
        while (all.len() as u64) < want {
            let run = map.reserve_run((want - all.len() as u64) as u32).expect("room");
            all.extend((0..u64::from(run.len)).map(|n| run.first.plus(n)));
        }
        all
    }

    /// Looks at all, and gives back what rests.
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
        // The first has a slot that nobody may have, and slots are given out of the last.
        assert_eq!(give(&map), [5, 4, 3, 2, 1]);
        assert_eq!((map.roomy_extents(), map.live(), give(&map).len()), (2, 0, 0));
        // First of those that have room, then of those that had, before the space grows.
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
        // Slots are given out of 1: only what lies elsewhere is idle, and 0 never is.
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
        assert_eq!(map.reserve_run(1), None);
        map.put_back(1, false);
        assert_eq!(map.roomy_extents(), 3);
        assert_eq!(map.reserve_run(512).map(|run| (run.first, run.len)), Some((first, 512)));
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
