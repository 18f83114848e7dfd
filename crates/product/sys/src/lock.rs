//! A mutex on a futex, for our own rare data (the allocator). The fault path takes none.

use crate::futex;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering};
use farshore_core::sync::Futex;

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody may sleep on it.
const CONTENDED: u32 = 2;

/// Mutual exclusion without libc. No poisoning: the shipped library aborts on a panic.
#[derive(Debug)]
pub struct Mutex<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: `with` gives one thread at a time access, so sharing the mutex sends `T` between threads and no more.
unsafe impl<T: Send> Sync for Mutex<T> {}

/// Opens the mutex when dropped, so also when a closure panics in a test.
struct Unlock<'a>(&'a AtomicU32);

impl Drop for Unlock<'_> {
    fn drop(&mut self) {
        // Release: the next holder's Acquire sees what we wrote.
        if self.0.swap(FREE, Ordering::Release) == CONTENDED {
            futex::wake(self.0, 1);
        }
    }
}

impl<T> Mutex<T> {
    /// A free one.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Calls `f` while holding it. Not re-entrant: `f` and signal handlers that interrupt it must not come back here.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        // Acquire: pairs with the Release in `Unlock`.
        if self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_slowly();
        }
        let _unlock = Unlock(&self.state);
        // SAFETY: the state says that this thread holds the mutex until `_unlock` is dropped, so this is the only reference.
        f(unsafe { &mut *self.value.get() })
    }

    /// The same, unless somebody else holds it.
    pub fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        // Acquire: as in `with`.
        self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let _unlock = Unlock(&self.state);
        // SAFETY: as in `with`.
        Some(f(unsafe { &mut *self.value.get() }))
    }

    /// Takes it and keeps it, until [`Mutex::release`]: around a `fork`, where it must be held in both copies.
    pub fn acquire(&self) {
        if self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_slowly();
        }
    }

    /// Gives back what [`Mutex::acquire`] took, on the same thread or its copy in a forked child.
    pub fn release(&self) {
        if self.state.swap(FREE, Ordering::Release) == CONTENDED {
            futex::wake(&self.state, 1);
        }
    }

    /// In a forked child: whoever held it does not exist here.
    pub fn reset(&self) {
        self.state.store(FREE, Ordering::Release);
    }

    /// The value, for a forked child that finds the mutex held.
    ///
    /// # Safety
    /// Nobody else is using it: the calling thread, or the one that it is a copy of, has it by [`Mutex::acquire`].
    pub unsafe fn peek(&self) -> &T {
        // SAFETY: this function's own condition.
        unsafe { &*self.value.get() }
    }

    #[cold]
    fn lock_slowly(&self) {
        // A holder is done within a microsecond unless it enters the kernel.
        for _ in 0..100 {
            if self.state.load(Ordering::Relaxed) == FREE
                && self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            core::hint::spin_loop();
        }
        // Whoever takes it from here on cannot know if others sleep, so it says `CONTENDED`.
        while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
            futex::KernelFutex.wait(&self.state, CONTENDED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_try_does_not_wait() {
        let mutex = Mutex::new(1);
        assert_eq!(mutex.try_with(|value| *value), Some(1));
        assert_eq!(mutex.with(|_| mutex.try_with(|value| *value)), None);
        assert_eq!(mutex.try_with(|value| *value), Some(1));
    }

    #[test]
    fn excludes() {
        static COUNT: Mutex<u64> = Mutex::new(0);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| {
                    for i in 0..20_000 {
                        COUNT.with(|count| {
                            *count += 1;
                            if i % 1000 == 0 {
                                std::thread::yield_now();
                            }
                        });
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(COUNT.with(|count| *count), 80_000);
    }
}
