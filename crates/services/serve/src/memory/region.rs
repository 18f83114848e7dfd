//! Big anonymous mappings of shared, plain old data.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use bytemuck::Zeroable;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// A mapping of `T`s that are zeroes at first. Addresses are reserved at once; memory is taken page by page, as it is touched.
///
/// What is written while it is shared is made of atomics, so that whatever is done with it is no data race. What is filled first, and only read once it is
/// shared, may be plain numbers.
#[derive(Debug)]
pub struct Region<T> {
    start: NonNull<T>,
    length: usize,
}

// SAFETY: it owns its memory, and gives out borrows as a vector does: shared ones for a shared borrow of itself, an exclusive one for an exclusive one.
unsafe impl<T: Send + Sync> Send for Region<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Region<T> {}

impl<T: Zeroable> Region<T> {
    /// Room for `length` of them.
    ///
    /// # Errors
    /// If the kernel does not give that much address space.
    pub fn new(length: usize) -> io::Result<Region<T>> {
        const { assert!(align_of::<T>() <= 4096 && size_of::<T>() > 0 && !std::mem::needs_drop::<T>()) };
        let bytes = length.max(1).checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
        let bytes = bytes.ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        let start: NonNull<T> = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Region { start, length: length.max(1) })
    }
}

impl<T> Deref for Region<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        #[cfg(test)]
        super::comes_from_far();
        // SAFETY: `length` zeroed `T`s at a page's start, which `T: Zeroable` makes valid, for as long as this lives; an exclusive borrow of them is one of
        // this, of which there is none now.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl<T> DerefMut for Region<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and nobody else borrows them: they are this one's own, which is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl<T> Drop for Region<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, and nobody borrows from it any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.length * size_of::<T>()) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn is_zero_and_keeps_what_is_written() {
        let region: Region<AtomicU64> = Region::new(1 << 20).unwrap();
        assert_eq!(region.len(), 1 << 20);
        assert_eq!(region[(1 << 20) - 1].load(Ordering::Relaxed), 0);
        region[77].store(5, Ordering::Relaxed);
        assert_eq!(region[77].load(Ordering::Relaxed), 5);
        assert!(Region::<AtomicU64>::new(usize::MAX / 4).is_err());
        let mut plain: Region<u32> = Region::new(5000).unwrap();
        plain[4999] = 7;
        assert_eq!(plain.iter().sum::<u32>(), 7);
    }
}
