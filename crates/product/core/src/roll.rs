//! Waiting until every thread that was made has begun.
//!
//! The thread that makes another one calls [`Roll::call`] *before* the new thread exists. Waiters are woken when a thread
//! answers, and not when one is called, so a call that came after the last answer would never be noticed (modelled in
//! `tests/loom_roll.rs`).

use crate::sync::{AtomicU32, Futex, Ordering};

/// Threads that were called, and those that have answered.
#[derive(Debug)]
pub struct Roll {
    called: AtomicU32,
    present: AtomicU32,
}

impl Default for Roll {
    fn default() -> Roll {
        Roll::new()
    }
}

impl Roll {
    /// An empty roll.
    #[cfg(not(loom))]
    pub const fn new() -> Roll {
        Roll { called: AtomicU32::new(0), present: AtomicU32::new(0) }
    }

    /// An empty roll.
    #[cfg(loom)]
    pub fn new() -> Roll {
        Roll { called: AtomicU32::new(0), present: AtomicU32::new(0) }
    }

    /// To be called when a thread is about to be made.
    pub fn call(&self) {
        self.called.fetch_add(1, Ordering::AcqRel);
    }

    /// The thread that was called could not be made.
    pub fn dismiss(&self, futex: &impl Futex) {
        // Counted as present rather than as not called: that changes the word that waiters sleep on.
        self.answer(futex);
    }

    /// The calling thread has begun.
    pub fn answer(&self, futex: &impl Futex) {
        self.present.fetch_add(1, Ordering::AcqRel);
        futex.wake_all(&self.present);
    }

    /// Waits until all threads that were called have answered.
    pub fn wait(&self, futex: &impl Futex) {
        loop {
            let present = self.present.load(Ordering::Acquire);
            if present == self.called.load(Ordering::Acquire) {
                return;
            }
            futex.wait(&self.present, present);
        }
    }

    /// Empties the roll: in a forked child, where none of these threads exists.
    pub fn clear(&self) {
        self.called.store(0, Ordering::Release);
        self.present.store(0, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Spin;
    impl Futex for Spin {
        fn wait(&self, _: &AtomicU32, _: u32) {
            std::thread::yield_now();
        }
        fn wait_for(&self, word: &AtomicU32, expected: u32, _: u64) {
            self.wait(word, expected);
        }
        fn wake_all(&self, _: &AtomicU32) {}
    }

    #[test]
    fn all_are_there_when_the_wait_ends() {
        let roll = Roll::new();
        let begun = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                roll.call();
                scope.spawn(|| {
                    begun.fetch_add(1, Ordering::Relaxed);
                    roll.answer(&Spin);
                });
            }
            roll.call();
            roll.dismiss(&Spin);
            roll.wait(&Spin);
            assert_eq!(begun.load(Ordering::Relaxed), 4);
        });
        roll.clear();
        roll.wait(&Spin);
    }
}
