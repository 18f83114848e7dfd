//! A lock for what evictors and memory calls do now and then, for less than a microsecond at a time. The fault path takes no
//! such lock.
//!
//! A forked child has a copy of the lock, and no thread of the child releases it if another thread held it at the fork. So no
//! thread holds a lock whose data the child goes on with while the process forks (evictors rest); data that the child only reads
//! needs no lock.

use crate::sync::{AtomicBool, Ordering, spin_hint};
use core::cell::UnsafeCell;

/// Mutual exclusion by spinning.
#[derive(Debug)]
pub struct SpinLock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `with` gives one thread at a time access, so sharing the lock sends `T` between threads and no more.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// A lock that is free.
    pub fn new(value: T) -> SpinLock<T> {
        SpinLock { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// For a thread with exclusive access: the lock is free again, whichever thread held the original of which this is a copy (in
    /// a forked child). Returns the value.
    pub fn renew(&mut self) -> &mut T {
        self.held.store(false, Ordering::Relaxed);
        self.value.get_mut()
    }

    /// Calls `f` while holding the lock. Not re-entrant, and `f` must not fault on managed memory.
    #[cfg_attr(feature = "recorder", track_caller)]
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        while !self.take() {
            // Only reads while another thread holds the lock, so that the line stays with the holder.
            while self.held.load(Ordering::Relaxed) {
                spin_hint();
            }
        }
        self.run(f)
    }

    /// As [`SpinLock::with`], unless another thread holds the lock and still does after `looks` more looks.
    #[cfg_attr(feature = "recorder", track_caller)]
    pub fn try_with<R>(&self, looks: u32, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut left = looks;
        while self.held.load(Ordering::Relaxed) || !self.take() {
            left = left.checked_sub(1)?;
            spin_hint();
        }
        Some(self.run(f))
    }

    #[cfg_attr(feature = "recorder", track_caller)]
    fn take(&self) -> bool {
        // Acquire: pairs with the release in `run`.
        self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cfg_attr(feature = "recorder", track_caller)]
    fn run<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        #[cfg(feature = "recorder")]
        crate::recorder::wrote(self.value.get().addr(), size_of::<T>());
        // SAFETY: `held` is ours (`take`) until the store below, so this is the only reference.
        let result = f(unsafe { &mut *self.value.get() });
        self.held.store(false, Ordering::Release);
        result
    }
}
