//! The mapping that a policy shares with a program, and sleeping on its words.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::time::Duration;

use farshore_attach::{BYTES, WORDS};
use farshore_core::sync::AtomicU64;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex;
use std::sync::atomic::AtomicU32;

/// The mapping. It is there as long as this is.
#[derive(Debug)]
pub struct Shared {
    first: NonNull<AtomicU64>,
}

// SAFETY: what it points to is atomics, which any thread may use, and which belong to this value alone.
unsafe impl Send for Shared {}

impl Shared {
    /// Maps the file that the program has sent.
    pub fn map(file: &OwnedFd) -> io::Result<Shared> {
        // A file that ends before would be a SIGBUS. The program has sealed it, so it does not shrink.
        let seals = rustix::fs::fcntl_get_seals(file.as_fd())?;
        if rustix::fs::fstat(file)?.st_size < BYTES as i64 || !seals.contains(rustix::fs::SealFlags::SHRINK) {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that there is.
        let place = unsafe { mmap(null_mut(), BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0) }?;
        let first = NonNull::new(place.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Shared { first })
    }

    /// Its words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has `WORDS` times 8 bytes, page-aligned, as long as `self`; each side changes them by atomic accesses alone,
        // and any bytes are an `AtomicU64`.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), WORDS) }
    }

    /// The low half of a word, on which futex(2) sleeps.
    fn half(&self, place: usize) -> &AtomicU32 {
        let word: *const AtomicU64 = &self.words()[place];
        // SAFETY: the low half of a word of x86-64 is at its address, aligned; it lives as long as `self`, and an atomic half of an atomic
        // word is what the kernel looks at too.
        unsafe { &*word.cast::<AtomicU32>() }
    }

    /// Sleeps while the word's low half is `expected`, for at most that long.
    pub fn sleep(&self, place: usize, expected: u32, timeout: Duration) {
        let timeout = rustix::time::Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        // Whatever ends it, the caller looks again.
        let _ = futex::wait(self.half(place), futex::Flags::empty(), expected, Some(&timeout));
    }

    /// Wakes who sleeps on a word.
    pub fn wake(&self, place: usize) {
        let _ = futex::wake(self.half(place), futex::Flags::empty(), 1);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's alone, and no reference to it outlives `self`.
        let _ = unsafe { munmap(self.first.as_ptr().cast(), BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    #[test]
    fn a_file_that_is_short_or_may_shrink_is_not_mapped() {
        let file = |bytes: usize, seals: SealFlags| {
            let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("there is memory");
            ftruncate(&file, bytes as u64).expect("there is memory");
            fcntl_add_seals(&file, seals).expect("it may be sealed");
            file
        };
        assert!(Shared::map(&file(BYTES - 1, SealFlags::SHRINK)).is_err());
        assert!(Shared::map(&file(BYTES, SealFlags::GROW)).is_err());
        let shared = Shared::map(&file(BYTES, SealFlags::SHRINK)).expect("it is as it should be");
        assert_eq!(shared.words().len(), WORDS);
        // A number that is another one by now: it does not sleep.
        shared.sleep(0, 1, Duration::from_secs(1000));
    }
}
