//! Memory that is never managed, for what a worker touches while it schedules: mapped as stacks are, which the library leaves alone.
//!
//! A fault there could be one on a page that a unithread of the same worker fetches, and nobody would end that fetch. So it is made where the worker is not busy, and is never made longer.

use crate::ground::error::Error;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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

/// Whether this is the process that made it, or a child that was forked since, in whatever way: a word that the kernel clears in children.
#[derive(Debug)]
pub(crate) struct Here(NonNull<AtomicU32>);

// SAFETY: the word is atomic, and there until it is dropped.
unsafe impl Send for Here {}
// SAFETY: as above.
unsafe impl Sync for Here {}

impl Here {
    const BYTES: usize = 4096;

    pub(crate) fn new() -> Result<Here, Error> {
        let here = Here(map(Here::BYTES, "cannot map a page (ulimit -v?), bytes")?.cast());
        // SAFETY: our own mapping.
        let done = unsafe { libc::madvise(here.0.as_ptr().cast(), Here::BYTES, libc::MADV_WIPEONFORK) };
        if done != 0 {
            return Err(Error::system("the kernel cannot clear memory in children (Linux 4.14), bytes", Here::BYTES as u64));
        }
        // Relaxed: children see what their parent wrote before.
        here.word().store(1, Ordering::Relaxed);
        Ok(here)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: mapped, zeroed at first, and ours.
        unsafe { self.0.as_ref() }
    }

    pub(crate) fn is_here(&self) -> bool {
        self.word().load(Ordering::Relaxed) != 0
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody uses any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), Here::BYTES) };
    }
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
// SAFETY: as above.
unsafe impl<T: Sync> Sync for OwnVec<T> {}

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

impl<const N: usize> OwnVec<[AtomicU64; N]> {
    /// `count` values of zeros. RAM is taken for those alone that are touched.
    pub(crate) fn words(count: usize) -> Result<Self, Error> {
        let mut words = OwnVec::new(count)?;
        // The mapping is zeroed, and zeros are numbers.
        words.length = count;
        Ok(words)
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
