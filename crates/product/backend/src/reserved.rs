//! Address space that is reserved and not committed: pages that were never written take no memory.

use crate::error::{OpenError, SMALLEST_BYTES};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

/// How much address space may be reserved, in bytes, for what may be needed: where the process has a limit of it, or of private memory, which counts what is reserved too, an
/// eighth, since the program needs the most.
pub(crate) fn spare_bytes() -> u64 {
    let limits = [Resource::As, Resource::Data].map(|of| getrlimit(of).current);
    limits.into_iter().flatten().min().map_or(u64::MAX, |limit| limit / 8)
}

/// What `make` makes of so many bytes, or where `fewer` will do, of the largest half, quarter … of them of which it can: there may be strict overcommit, or a limit of the
/// address space.
///
/// # Errors
/// It cannot be had.
pub(crate) fn largest<T>(mut bytes: u64, fewer: bool, make: impl Fn(u64) -> Result<T, Errno>) -> Result<T, OpenError> {
    loop {
        match make(bytes) {
            Ok(made) => return Ok(made),
            Err(_) if fewer && bytes >= 2 * SMALLEST_BYTES => bytes = bytes / 2 / SMALLEST_BYTES * SMALLEST_BYTES,
            Err(errno) => return Err(OpenError::NoMemory { bytes, errno }),
        }
    }
}

/// One private anonymous mapping, zeros at first. A forked child has a copy of it.
#[derive(Debug)]
pub struct Reserved {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the owner decides which thread gets which part of the mapping; nothing here depends on the thread.
unsafe impl Send for Reserved {}
// SAFETY: no byte is read or written through a shared reference.
unsafe impl Sync for Reserved {}

impl Reserved {
    /// Reserves `bytes` bytes.
    ///
    /// # Errors
    /// The error of mmap(2).
    pub fn new(bytes: u64) -> Result<Reserved, Errno> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let bytes = usize::try_from(bytes).map_err(|_| Errno::NOMEM)?;
        // SAFETY: the kernel chooses the address, so nothing that exists is replaced.
        let base = unsafe { mmap_anonymous(core::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        Ok(Reserved { base: base.cast(), bytes })
    }

    /// Where the mapping begins: aligned to a page.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// The `index`th of the `T` that lie in it, side by side.
    ///
    /// # Panics
    /// When that one is not inside.
    pub fn nth<T>(&self, index: usize) -> *mut T {
        assert!(index < self.bytes / size_of::<T>(), "{index} is not within {} bytes", self.bytes);
        // SAFETY: within the mapping.
        unsafe { self.base.cast::<T>().add(index) }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; the last user is gone. An error would leave it mapped.
        let _ = unsafe { munmap(self.base.cast(), self.bytes) };
    }
}
