//! Which copies have which slot, for all slots: memory that is reserved, and taken where slots are used.

use crate::reserved::Reserved;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use farshore_core::copies::{CopySet, SlotCopies};
use farshore_core::limits::{EXTENT_SLOTS, EXTENTS_MAX};
use rustix::io::Errno;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Table {
    slots: Reserved,
    /// For each extent the copies that may be stale in one of its slots: a hint, set after the slot.
    stale: Reserved,
    count: u64,
    /// Extents from here on were never written.
    used: AtomicU64,
}

impl Table {
    /// For so many slots; `None`: as many as there can be. The error has the bytes that are not to be had.
    pub(super) fn new(slots: Option<u64>) -> Result<Table, (u64, Errno)> {
        let count = slots.unwrap_or(u64::MAX).min((EXTENTS_MAX * EXTENT_SLOTS) as u64);
        let reserved = |bytes: u64| Reserved::new(bytes).map_err(|errno| (bytes, errno));
        let extents = count.div_ceil(EXTENT_SLOTS as u64);
        Ok(Table {
            slots: reserved(count * size_of::<SlotCopies>() as u64)?,
            stale: reserved(extents * size_of::<AtomicU8>() as u64)?,
            count,
            used: AtomicU64::new(0),
        })
    }

    /// A slot; `None`: there is none of that number.
    pub(super) fn slot(&self, number: u64) -> Option<&SlotCopies> {
        // SAFETY: within the mapping (`nth` asserts it), which lives as long as `self`. Zeros are a slot without a page, and its word is atomic.
        (number < self.count).then(|| unsafe { &*self.slots.nth::<SlotCopies>(number as usize) })
    }

    fn extent(&self, extent: u64) -> &AtomicU8 {
        // SAFETY: as in `slot`.
        unsafe { &*self.stale.nth::<AtomicU8>(extent as usize) }
    }

    /// This slot is written.
    pub(super) fn note_use(&self, slot: u64) {
        let used = slot / EXTENT_SLOTS as u64 + 1;
        if self.used.load(Ordering::Relaxed) < used {
            self.used.fetch_max(used, Ordering::AcqRel);
        }
    }

    /// Extents that may have pages.
    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    /// These copies of a slot are stale since just now.
    pub(super) fn note_stale(&self, slot: u64, copies: CopySet) {
        if copies != 0 {
            self.extent(slot / EXTENT_SLOTS as u64).fetch_or(copies, Ordering::AcqRel);
        }
    }

    /// This copy may be stale in each extent that has pages.
    pub(super) fn note_all(&self, copy: usize) {
        (0..self.used()).for_each(|extent| {
            self.extent(extent).fetch_or(1 << copy, Ordering::AcqRel);
        });
    }

    /// Whether this copy may be stale in a slot of the extent.
    pub(super) fn may_be_stale(&self, extent: u64, copy: usize) -> bool {
        self.extent(extent).load(Ordering::Acquire) >> copy & 1 != 0
    }

    /// All of the extent is about to be looked at: what becomes stale from now on is noted again.
    pub(super) fn look(&self, extent: u64, copy: usize) {
        self.extent(extent).fetch_and(!(1 << copy), Ordering::AcqRel);
    }
}
