//! Where on the export a slot's page lies.
//!
//! A layer takes regions of the export as it does of a device ([`crate::device::regions`]). Within a region a slot has its own
//! place, unless that place is *tainted*.
//!
//! # Late writes
//!
//! When a connection is lost, nobody knows whether the server has made the writes that were under way, or is still about to: a
//! server that hung may make them minutes later. To send such a write again is safe, since its bytes are the same. To write
//! *other* bytes to that place is not: the late write could come after them. So the places of these writes (and of a trim that
//! was under way) are tainted. A tainted place is read as any other, and is never written again but with the bytes that it was
//! to have: the slot's next page goes to a *spare* place, at the end of the layer's regions, which `moved` notes. A region with
//! such places is not given back before the layer is gone.
//!
//! # Protocol
//!
//! The engine lets one thread at a time use a slot, and orders its uses. So an entry of `moved` is changed by the one thread that
//! writes the slot; other threads read other entries.

use crate::device::regions::Regions;
use crate::reserved::Reserved;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use farshore_core::limits::{EXTENT_SLOTS, PAGE_SIZE};
use farshore_core::seams::IoError;
use rustix::io::Errno;

/// The place is tainted. The other bits: the spare place that the slot has, plus 1; 0: its own.
const TAINTED: u32 = 1 << 31;
/// The part of the regions that is kept for spare places.
const SPARE: u64 = 8;

/// A part of a transfer that lies together on the export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    /// Bytes into the export.
    pub(super) offset: u64,
    /// Pages.
    pub(super) pages: u32,
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Places {
    regions: Regions,
    /// An `AtomicU32` for each page.
    moved: Reserved,
    /// Some entry of `moved` is not 0.
    any: AtomicBool,
    /// Slots that the engine may use.
    slots: u64,
    /// The next spare place, in pages of the layer.
    spare: AtomicU64,
    /// Where spare places end.
    end: u64,
}

/// What cannot be used, in pages: more than an entry counts.
const PAGES_MAX: u64 = TAINTED as u64 - 1;

impl Places {
    /// The places of a layer that has these regions; `None`: they are too few.
    pub(super) fn new(regions: Regions) -> Result<Option<Places>, Errno> {
        let extent = (EXTENT_SLOTS * PAGE_SIZE) as u64;
        let extents = (regions.whole() / extent).min(PAGES_MAX / EXTENT_SLOTS as u64);
        let spare = extents.div_ceil(SPARE);
        if extents <= spare {
            return Ok(None);
        }
        let slots = (extents - spare) * EXTENT_SLOTS as u64;
        let end = extents * EXTENT_SLOTS as u64;
        let moved = Reserved::new(slots * size_of::<AtomicU32>() as u64)?;
        Ok(Some(Places { regions, moved, any: AtomicBool::new(false), slots, spare: AtomicU64::new(slots), end }))
    }

    pub(super) fn slots(&self) -> u64 {
        self.slots
    }

    pub(super) fn regions(&self) -> &Regions {
        &self.regions
    }

    fn entry(&self, slot: u64) -> &AtomicU32 {
        // SAFETY: within the mapping (`nth` asserts it), which lives as long as `self` and began as zeros.
        unsafe { &*self.moved.nth::<AtomicU32>(slot as usize) }
    }

    /// Spare places that were used.
    #[cfg(test)]
    fn moved(&self) -> u64 {
        self.spare.load(Ordering::Relaxed) - self.slots
    }

    /// Where the first of the `count` slots from `slot` on lie together. They were written, or are about to be
    /// ([`Places::prepare`]), and lie within an extent.
    pub(super) fn find(&self, slot: u64, count: u32) -> Result<Piece, IoError> {
        let spare_of = |slot: u64| self.entry(slot).load(Ordering::Acquire) & !TAINTED;
        let (page, pages) = if !self.any.load(Ordering::Acquire) {
            (slot, count)
        } else if let Some(spare) = spare_of(slot).checked_sub(1) {
            (u64::from(spare), 1)
        } else {
            let own = (0..count).take_while(|&n| spare_of(slot + u64::from(n)) == 0).count();
            (slot, own as u32)
        };
        let offset = self.regions.find(page * PAGE_SIZE as u64).ok_or(IoError::Short)?;
        Ok(Piece { offset, pages })
    }

    /// Makes sure that these slots, within an extent, can be written.
    pub(super) fn prepare(&self, slot: u64, count: u32) -> Result<(), IoError> {
        if slot + u64::from(count) > self.slots {
            return Err(IoError::Full);
        }
        self.regions.claim(slot * PAGE_SIZE as u64)?;
        if !self.any.load(Ordering::Acquire) {
            return Ok(());
        }
        (slot..slot + u64::from(count)).try_for_each(|slot| {
            let entry = self.entry(slot);
            if entry.load(Ordering::Relaxed) & TAINTED == 0 {
                return Ok(());
            }
            let spare = self.spare.fetch_add(1, Ordering::Relaxed);
            if spare >= self.end {
                self.spare.fetch_sub(1, Ordering::Relaxed);
                return Err(IoError::Full);
            }
            self.regions.claim(spare * PAGE_SIZE as u64)?;
            // Release: pairs with `find`'s Acquire, as the region's claim does.
            entry.store(spare as u32 + 1, Ordering::Release);
            Ok(())
        })
    }

    /// The place that each of these slots has may be written later, by a server that nobody can stop.
    pub(super) fn taint(&self, slot: u64, count: u32) {
        for slot in slot..slot + u64::from(count) {
            self.entry(slot).fetch_or(TAINTED, Ordering::AcqRel);
        }
        self.any.store(true, Ordering::Release);
    }

    /// Whether a write may come late anywhere.
    pub(super) fn are_tainted(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Whether each of these slots has its own place, and no write can come late there.
    pub(super) fn are_plain(&self, slot: u64, count: u32) -> bool {
        !self.any.load(Ordering::Acquire)
            || (slot..slot + u64::from(count)).all(|slot| self.entry(slot).load(Ordering::Acquire) == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    const EXTENT: u32 = EXTENT_SLOTS as u32;

    fn places(extents: u64) -> Places {
        let claims = memfd_create("claims", MemfdFlags::CLOEXEC).unwrap();
        Places::new(Regions::new(extents << 21, claims, || ())).unwrap().unwrap()
    }

    #[test]
    fn a_part_is_kept_for_spare_places() {
        assert_eq!(places(2).slots(), 512);
        assert_eq!(places(32).slots(), 28 * 512);
        let claims = memfd_create("claims", MemfdFlags::CLOEXEC).unwrap();
        assert!(Places::new(Regions::new(2 << 20, claims, || ())).unwrap().is_none());
    }

    #[test]
    fn slots_have_their_own_places_at_first() {
        let places = places(32);
        assert_eq!(places.find(5, 3), Err(IoError::Short), "never written");
        places.prepare(5, 3).unwrap();
        assert_eq!(places.find(5, 3), Ok(Piece { offset: 5 * 4096, pages: 3 }));
        assert_eq!(places.prepare(places.slots() - 1, 2), Err(IoError::Full));
        assert!(places.are_plain(0, EXTENT));
    }

    #[test]
    fn a_tainted_place_is_read_and_not_written_again() {
        let places = places(32);
        places.prepare(8, 8).unwrap();
        places.taint(10, 2);
        assert_eq!(places.find(8, 8), Ok(Piece { offset: 8 * 4096, pages: 8 }), "what was sent again lies there");
        assert!(!places.are_plain(8, 8) && places.are_plain(0, 8));
        places.prepare(8, 8).unwrap();
        assert_eq!(places.find(8, 8), Ok(Piece { offset: 8 * 4096, pages: 2 }));
        let (one, two) = (places.find(10, 6).unwrap(), places.find(11, 5).unwrap());
        assert_eq!((one.pages, two.pages, one.offset + 4096), (1, 1, two.offset));
        // The second region that the layer took: the first spare place is its first page.
        assert_eq!(one.offset, 2 << 20);
        assert_eq!(places.find(12, 4), Ok(Piece { offset: 12 * 4096, pages: 4 }));
        assert_eq!(places.moved(), 2);
        // Lost once more: yet another place.
        places.taint(10, 1);
        assert_eq!(places.find(10, 1), Ok(one));
        places.prepare(10, 1).unwrap();
        assert_eq!(places.find(10, 1).unwrap().offset, two.offset + 4096);
    }

    #[test]
    fn spare_places_end() {
        let places = places(2);
        places.prepare(0, EXTENT).unwrap();
        places.taint(0, EXTENT);
        places.prepare(0, EXTENT).unwrap();
        places.taint(0, EXTENT);
        assert_eq!(places.prepare(0, 1), Err(IoError::Full));
        assert!(places.find(0, 1).is_ok(), "the page there can be read all the same");
    }
}
