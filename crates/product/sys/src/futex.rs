//! futex(2) for [`farshore_core::sync::Futex`].

use crate::raw::{self, nr};
use farshore_core::sync::AtomicU32;
use farshore_core::sync::Futex;

/// Words are in our own memory and waited on by threads of this process only.
const FUTEX_PRIVATE: u64 = 128;
const FUTEX_WAIT: u64 = FUTEX_PRIVATE;
const FUTEX_WAKE: u64 = 1 | FUTEX_PRIVATE;

/// `struct timespec` of the kernel.
#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

/// The kernel's futex. No state, async-signal-safe.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelFutex;

fn wait(word: &AtomicU32, expected: u32, timeout: u64) {
    let args = [word.as_ptr() as u64, FUTEX_WAIT, u64::from(expected), timeout, 0, 0];
    // SAFETY: the word is borrowed for the call, and so is the timeout, if there is one (our callers below). Every
    // answer (woken, changed, interrupted, timed out) means the same to the caller: look again.
    let _ = unsafe { raw::syscall(nr::FUTEX, args) };
}

/// Wakes at most `count` sleepers on `word`.
pub fn wake(word: &AtomicU32, count: u32) {
    let args = [word.as_ptr() as u64, FUTEX_WAKE, u64::from(count.min(i32::MAX as u32)), 0, 0, 0];
    // SAFETY: the kernel uses the address only as a key.
    let _ = unsafe { raw::syscall(nr::FUTEX, args) };
}

impl Futex for KernelFutex {
    fn wait(&self, word: &AtomicU32, expected: u32) {
        wait(word, expected, 0);
    }

    fn wait_for(&self, word: &AtomicU32, expected: u32, timeout_ns: u64) {
        let timeout = Timespec {
            seconds: i64::try_from(timeout_ns / 1_000_000_000).unwrap_or(i64::MAX),
            nanoseconds: (timeout_ns % 1_000_000_000) as i64,
        };
        wait(word, expected, &raw const timeout as u64);
    }

    fn wake_all(&self, word: &AtomicU32) {
        wake(word, i32::MAX as u32);
    }
}

/// futex(2) on memory that is shared with another process: the lower half of a word.
pub mod shared {
    use super::{Timespec, nr, raw};
    use core::sync::atomic::AtomicU64;

    const WAIT: u64 = 0;
    const WAKE: u64 = 1;

    /// Sleeps while the lower half of `word` is `expected`, for at most `timeout_ns`. May return early for any reason.
    pub fn wait_for(word: &AtomicU64, expected: u32, timeout_ns: u64) {
        let timeout = Timespec { seconds: (timeout_ns / 1_000_000_000) as i64, nanoseconds: (timeout_ns % 1_000_000_000) as i64 };
        let args = [word.as_ptr() as u64, WAIT, u64::from(expected), &raw const timeout as u64, 0, 0];
        // SAFETY: the word and the timeout are borrowed for the call. Every answer means the same to the caller: look again.
        let _ = unsafe { raw::syscall(nr::FUTEX, args) };
    }

    /// Wakes one sleeper on the lower half of `word`. The other process can have any number sleep there, and to wake them all would take the caller as long as
    /// that process likes.
    pub fn wake(word: &AtomicU64) {
        // SAFETY: the kernel uses the address only as a key.
        let _ = unsafe { raw::syscall(nr::FUTEX, [word.as_ptr() as u64, WAKE, 1, 0, 0, 0]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_core::sync::Ordering;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    #[test]
    fn changed_word_does_not_sleep() {
        KernelFutex.wait(&AtomicU32::new(1), 0);
    }

    #[test]
    fn timeout_ends_the_sleep() {
        let start = Instant::now();
        KernelFutex.wait_for(&AtomicU32::new(0), 0, 20_000_000);
        assert!(start.elapsed() >= Duration::from_millis(15));
    }

    #[test]
    fn of_those_who_share_a_word_one_is_woken() {
        use core::sync::atomic::AtomicU64;
        const SLEEPERS: usize = 3;
        let word = Arc::new(AtomicU64::new(0));
        let (tell, told) = std::sync::mpsc::channel();
        let sleepers: Vec<_> = (0..SLEEPERS)
            .map(|_| {
                let (word, tell) = (word.clone(), tell.clone());
                std::thread::spawn(move || {
                    tell.send(raw::gettid()).unwrap();
                    while word.load(Ordering::Acquire) == 0 {
                        shared::wait_for(&word, 0, 3600 * 1_000_000_000);
                    }
                })
            })
            .collect();
        for tid in told.iter().take(SLEEPERS) {
            let call = format!("{} {:#x} ", nr::FUTEX, word.as_ptr() as u64);
            let sleeps =
                || std::fs::read_to_string(format!("/proc/self/task/{tid}/syscall")).is_ok_and(|is| is.starts_with(&call));
            while !sleeps() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        word.store(1, Ordering::Release);
        shared::wake(&word);
        // SAFETY: the kernel uses the address only as a key.
        let others = unsafe { raw::syscall(nr::FUTEX, [word.as_ptr() as u64, 1, i32::MAX as u64, 0, 0, 0]) };
        assert_eq!(others, SLEEPERS as i64 - 1);
        sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
    }

    #[test]
    fn wake_all_wakes_all() {
        let word = Arc::new(AtomicU32::new(0));
        let sleepers: Vec<_> = (0..4)
            .map(|_| {
                let word = word.clone();
                std::thread::spawn(move || {
                    while word.load(Ordering::Acquire) == 0 {
                        KernelFutex.wait(&word, 0);
                    }
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(20));
        word.store(1, Ordering::Release);
        KernelFutex.wake_all(&word);
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
    }
}
