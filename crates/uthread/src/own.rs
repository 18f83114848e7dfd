//! Memory that is never managed, for what a worker touches while it schedules: mapped as stacks are, which the library leaves alone.
//!
//! A fault there could be one on a page that a unithread of the same worker fetches, and nobody would end that fetch. So it is made where the worker is not busy, and is never made longer.

use crate::error::Error;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

/// Maps `bytes` of zeroed memory that the library leaves alone. `what` says what cannot be mapped.
pub(crate) fn map(bytes: usize, what: &'static str) -> Result<NonNull<u8>, Error> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    // SAFETY: a fresh mapping, wherever the kernel likes.
    let base = unsafe { libc::mmap(core::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(Error::system(what, bytes as u64));
    }
    Ok(NonNull::new(base.cast()).expect("mmap gives no null"))
}

/// Up to so many values as it was made for.
#[derive(Debug)]
pub(crate) struct OwnVec<T> {
    base: NonNull<T>,
    capacity: usize,
    length: usize,
}

// SAFETY: it has its values as a Vec has.
unsafe impl<T: Send> Send for OwnVec<T> {}

impl<T> OwnVec<T> {
    /// An empty one with room for `capacity` values.
    pub(crate) fn new(capacity: usize) -> Result<OwnVec<T>, Error> {
        assert!(capacity > 0 && align_of::<T>() <= 4096, "what can be mapped");
        let base = map(capacity * size_of::<T>(), "cannot map the scheduler's memory (ulimit -v?), bytes")?;
        Ok(OwnVec { base: base.cast(), capacity, length: 0 })
    }

    /// Puts a value behind the others; gives it back if there is no room.
    pub(crate) fn push(&mut self, value: T) -> Result<(), T> {
        if self.length == self.capacity {
            return Err(value);
        }
        // SAFETY: inside the mapping.
        let place = unsafe { self.base.add(self.length) };
        // SAFETY: nobody's until now.
        unsafe { place.write(value) };
        self.length += 1;
        Ok(())
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }
}

impl<T> Deref for OwnVec<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: so many were written.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr(), self.length) }
    }
}

impl<T> DerefMut for OwnVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts_mut(self.base.as_ptr(), self.length) }
    }
}

impl<T> Drop for OwnVec<T> {
    fn drop(&mut self) {
        let values: *mut [T] = &raw mut **self;
        // SAFETY: they are used no more.
        unsafe { core::ptr::drop_in_place(values) };
        // SAFETY: our own mapping.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.capacity * size_of::<T>()) };
    }
}
