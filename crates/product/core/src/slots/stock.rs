//! Extents that are made beforehand, by a thread that may wait for memory.

use super::{CHUNK, Extent, SPARES, SlotMap, new_chunk};
use crate::sync::Ordering;
use alloc::boxed::Box;

const _: () = assert!(cfg!(loom) || SPARES < CHUNK, "`stock_chunk` looks one list ahead");

/// A new value on the heap, as Box::into_raw gives it; `None` without memory.
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
    /// Makes extents beforehand, so that reserving need not. By a thread that may allocate and will do so again, until
    /// [`SlotMap::set_spaces`]. Whether all are there.
    pub fn stock(&self) -> bool {
        self.stocked.store(true, Ordering::Relaxed);
        let missing = |place: &&crate::sync::plain::AtomicPtr<Extent>| place.load(Ordering::Relaxed).is_null();
        for place in self.spares.iter().filter(missing) {
            let Some(extent) = boxed(Extent::new) else { return false };
            // Release: pairs with the taker's Acquire. Should another thread have filled the place, ours goes.
            let put = place.compare_exchange(core::ptr::null_mut(), extent, Ordering::Release, Ordering::Relaxed);
            if put.is_err() {
                // SAFETY: from `boxed`, and nobody else has it.
                drop(unsafe { Box::from_raw(extent) });
            }
        }
        let complete = self.stock_chunk();
        self.wants_stock.store(!complete, Ordering::Relaxed);
        complete
    }

    /// Whether the map did not grow since the last [`SlotMap::stock`], because nothing was left of it.
    pub fn wants_stock(&self) -> bool {
        self.wants_stock.load(Ordering::Relaxed)
    }

    /// Whether fewer than half of the extents that are made beforehand are left.
    pub fn is_short_of_spares(&self) -> bool {
        self.spares[SPARES / 2].load(Ordering::Relaxed).is_null()
    }

    /// One that was made beforehand (the last, so that the first half goes last), else a new one.
    pub(super) fn take_spare(&self) -> Option<*mut Extent> {
        let taken = self.spares.iter().rev().map(|place| place.swap(core::ptr::null_mut(), Ordering::Acquire));
        let spare = taken.into_iter().find(|extent| !extent.is_null());
        spare.or_else(|| if self.is_stocked() { None } else { boxed(Extent::new) })
    }

    /// Asked when something is missing: whether somebody else makes it.
    pub(super) fn is_stocked(&self) -> bool {
        let stocked = self.stocked.load(Ordering::Relaxed);
        if stocked {
            self.wants_stock.store(true, Ordering::Relaxed);
        }
        stocked
    }

    /// Makes the list that the next extents go into, if it is not there.
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
        // Should another thread have put one there, ours goes.
        if place.compare_exchange(core::ptr::null_mut(), chunk, Ordering::Release, Ordering::Relaxed).is_err() {
            // SAFETY: from `boxed`, and nobody else has it.
            drop(unsafe { Box::from_raw(chunk) });
        }
        true
    }
}
