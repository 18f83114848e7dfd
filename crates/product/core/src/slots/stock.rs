//! Extents that are made beforehand, by a thread that may wait for memory.

use super::{CHUNK, Extent, SPARES, SlotMap, new_chunk};
use crate::sync::Ordering;
use alloc::boxed::Box;

const _: () = assert!(cfg!(loom) || SPARES < CHUNK, "`stock_chunk` looks one list ahead");

/// A new value on the heap, as Box::into_raw gives it; `None`: out of memory.
pub(super) fn boxed<T>(value: impl FnOnce() -> T) -> Option<*mut T> {
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

impl SlotMap {
    /// Makes extents beforehand, so that reserving need not make any. For a thread that may allocate and will call this
    /// again, until [`SlotMap::set_spaces`]. Returns whether all of them are there.
    pub fn stock(&self) -> bool {
        self.stocked.store(true, Ordering::Relaxed);
        let missing = |place: &&crate::sync::plain::AtomicPtr<Extent>| place.load(Ordering::Relaxed).is_null();
        for place in self.spares.iter().filter(missing) {
            let Some(extent) = self.new_extent() else { return false };
            // Release: pairs with the taker's Acquire. If another thread has filled the place, our extent is freed.
            let put = place.compare_exchange(core::ptr::null_mut(), extent, Ordering::Release, Ordering::Relaxed);
            if put.is_err() && self.room.is_none() {
                // SAFETY: from `boxed`, and no other thread has the pointer.
                drop(unsafe { Box::from_raw(extent) });
            }
        }
        let complete = self.stock_chunk();
        self.wants_stock.store(!complete, Ordering::Relaxed);
        complete
    }

    /// Whether the map did not grow since the last [`SlotMap::stock`], because no extent of the stock was left.
    pub fn wants_stock(&self) -> bool {
        self.wants_stock.load(Ordering::Relaxed)
    }

    /// Whether fewer than half of the extents that are made beforehand are left.
    pub fn is_short_of_spares(&self) -> bool {
        self.spares[SPARES / 2].load(Ordering::Relaxed).is_null()
    }

    /// Takes an extent that was made beforehand (the last, so that the first half goes last), else makes a new one.
    pub(super) fn take_spare(&self) -> Option<*mut Extent> {
        let taken = self.spares.iter().rev().map(|place| place.swap(core::ptr::null_mut(), Ordering::Acquire));
        let spare = taken.into_iter().find(|extent| !extent.is_null());
        spare.or_else(|| if self.is_stocked() { None } else { self.new_extent() })
    }

    /// Asked when something is missing: whether another thread makes it.
    pub(super) fn is_stocked(&self) -> bool {
        let stocked = self.stocked.load(Ordering::Relaxed);
        if stocked {
            self.wants_stock.store(true, Ordering::Relaxed);
        }
        stocked
    }

    /// Makes the list that the next extents go into, if it does not exist.
    fn stock_chunk(&self) -> bool {
        let next = self
            .extents
            .load(Ordering::Acquire)
            .saturating_add(SPARES as u32)
            .min(self.extents_max.load(Ordering::Relaxed).saturating_sub(1));
        let Some(place) = self.chunks.get(next as usize / CHUNK).filter(|place| place.load(Ordering::Relaxed).is_null()) else {
            return true;
        };
        let Some(chunk) = boxed(new_chunk) else { return false };
        // If another thread has put a list there, ours is freed.
        if place.compare_exchange(core::ptr::null_mut(), chunk, Ordering::Release, Ordering::Relaxed).is_err() {
            // SAFETY: from `boxed`, and no other thread has the pointer.
            drop(unsafe { Box::from_raw(chunk) });
        }
        true
    }
}
