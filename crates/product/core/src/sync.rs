//! The one module that atomics come from: `core` when shipped, loom when modelled, and types that note which thread writes which
//! cache line (`recorder`).

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, fence};

#[cfg(not(loom))]
pub use core::sync::atomic::fence;
#[cfg(not(loom))]
pub use plain::{AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// Atomics that models need not see.
pub mod plain {
    #[cfg(feature = "recorder")]
    pub use crate::recorder::{AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize};
    #[cfg(not(feature = "recorder"))]
    pub use core::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize};
}

pub use core::sync::atomic::Ordering;

/// Tells the CPU (or loom's scheduler) that this thread is spinning.
pub fn spin_hint() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    core::hint::spin_loop();
}

/// Stands between a change of one thing and a look at another, where another thread changes the second and looks at the first:
/// one of the two sees the other. The accesses are SeqCst, which is enough in the shipped library. But loom treats SeqCst
/// accesses as AcqRel ones, and gives only fences their full meaning.
pub fn both_sides() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

/// Pads a value to a cache line of its own, so that two cores that write neighbouring values do not write the same line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Padded<T>(pub T);

impl<T> core::ops::Deref for Padded<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Sleeping and waking on a 32-bit word, as futex(2) does it. The implementation that calls the kernel is in
/// `farshore-sys`; loom and the simulator bring their own.
pub trait Futex: Sync {
    /// Sleeps while `*word == expected`. The check and the start of the sleep
    /// are one atomic step with respect to [`Futex::wake_all`]. May return
    /// early for any reason; the caller checks its condition again.
    fn wait(&self, word: &AtomicU32, expected: u32);
    /// Sleeps as [`Futex::wait`] does, for at most `timeout_ns` nanoseconds.
    fn wait_for(&self, word: &AtomicU32, expected: u32, timeout_ns: u64);
    /// Wakes every sleeper on `word`.
    fn wake_all(&self, word: &AtomicU32);
}
