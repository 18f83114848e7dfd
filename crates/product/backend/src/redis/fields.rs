//! What the pages of slots are called at the server.
//!
//! An extent is a key, a hash whose fields are its pages ([`super::wire::key`], [`super::wire::field`]). So a run is read by one request, goes to one
//! server of a Cluster, and one `EXPIRE` renews 512 pages.
//!
//! # Late writes
//!
//! As with any server ([`crate::nbd`]), nobody knows of a write whose connection was lost whether it is still to be made. To send it
//! again is safe, since its bytes are the same. To write *other* bytes to that field is not. So the slots of such writes (and of a
//! removal) are *tainted*, and the next page of a tainted slot gets a field of another name: its **generation** goes up by one. A late
//! write then changes a field that nobody reads, which goes when its key does.
//!
//! # Protocol
//!
//! The engine lets one thread at a time use a slot, and orders its uses. So an entry is changed by the one thread that writes the slot;
//! other threads read other entries. A forked child has a copy of the table as it was then, and reads only slots that its parent keeps for it.

use super::wire::{self, FIELD};
use crate::reserved::Reserved;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use farshore_core::limits::EXTENT_SLOTS;
use farshore_core::seams::IoError;
use rustix::io::Errno;

/// A write may be made late under the name that the slot has. The other bits are the generation.
const TAINTED: u32 = 1 << 31;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Fields {
    /// An `AtomicU32` for each slot.
    entries: Reserved,
    /// Whether there may be a key for an extent: an `AtomicBool` for each.
    used: Reserved,
    extents: u32,
}

impl Fields {
    /// For so many extents.
    pub(super) fn new(extents: u64) -> Result<Fields, Errno> {
        let entries = Reserved::new(extents * EXTENT_SLOTS as u64 * size_of::<AtomicU32>() as u64)?;
        Ok(Fields { entries, used: Reserved::new(extents)?, extents: extents as u32 })
    }

    pub(super) fn slots(&self) -> u64 {
        u64::from(self.extents) * EXTENT_SLOTS as u64
    }

    fn entry(&self, slot: u64) -> &AtomicU32 {
        // SAFETY: within the mapping (`nth` asserts it), which lives as long as `self` and began as zeros.
        unsafe { &*self.entries.nth::<AtomicU32>(slot as usize) }
    }

    fn used(&self, extent: u32) -> &AtomicBool {
        // SAFETY: within the mapping (`nth` asserts it), which lives as long as `self` and began as zeros, and each was stored by an `AtomicBool`.
        unsafe { &*self.used.nth::<AtomicBool>(extent as usize) }
    }

    /// The field that a slot has now.
    pub(super) fn name(&self, slot: u64) -> [u8; FIELD] {
        let generation = self.entry(slot).load(Ordering::Acquire) & !TAINTED;
        wire::field((slot % EXTENT_SLOTS as u64) as u32, generation)
    }

    /// Makes sure that these slots, within an extent, can be written.
    pub(super) fn prepare(&self, slot: u64, count: u32) -> Result<(), IoError> {
        if slot + u64::from(count) > self.slots() {
            return Err(IoError::Full);
        }
        for slot in slot..slot + u64::from(count) {
            let entry = self.entry(slot);
            let now = entry.load(Ordering::Relaxed);
            if now & TAINTED != 0 {
                let next = (now & !TAINTED) + 1;
                if next & TAINTED != 0 {
                    return Err(IoError::Full);
                }
                entry.store(next, Ordering::Release);
            }
        }
        self.used((slot / EXTENT_SLOTS as u64) as u32).store(true, Ordering::Release);
        Ok(())
    }

    /// What was sent for these slots may be done later, by a server that nobody can stop.
    pub(super) fn taint(&self, slot: u64, count: u32) {
        for slot in slot..slot + u64::from(count) {
            self.entry(slot).fetch_or(TAINTED, Ordering::AcqRel);
        }
    }

    /// Extents, used or not.
    pub(super) fn extents(&self) -> u32 {
        self.extents
    }

    pub(super) fn is_used(&self, extent: u32) -> bool {
        extent < self.extents && self.used(extent).load(Ordering::Acquire)
    }

    /// The extent has no page any more.
    pub(super) fn leave(&self, extent: u32) {
        self.used(extent).store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_may_be_written_late_is_not_used_again() {
        let fields = Fields::new(4).unwrap();
        assert_eq!((fields.slots(), fields.extents(), fields.is_used(1), fields.is_used(9)), (2048, 4, false, false));
        fields.prepare(513, 3).unwrap();
        assert!(fields.is_used(1) && !fields.is_used(0));
        assert_eq!(&fields.name(514), b"002.00000000");
        fields.taint(514, 1);
        assert_eq!(&fields.name(514), b"002.00000000", "what was sent again lies there");
        fields.prepare(513, 3).unwrap();
        assert_eq!([513, 514, 515].map(|slot| fields.name(slot)), [*b"001.00000000", *b"002.00000001", *b"003.00000000"]);
        fields.prepare(514, 1).unwrap();
        assert_eq!(&fields.name(514), b"002.00000001", "once is enough");
        assert_eq!(fields.prepare(2047, 2), Err(IoError::Full));
        fields.leave(1);
        assert!(!fields.is_used(1));
    }

    #[test]
    fn names_end() {
        let fields = Fields::new(1).unwrap();
        fields.entry(7).store(u32::MAX, Ordering::Relaxed);
        assert_eq!(fields.prepare(7, 1), Err(IoError::Full));
    }
}
