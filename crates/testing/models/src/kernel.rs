//! The kernel's part in loom models: a futex made of loom's mutex and condition variable, and the kernel's view of a page.

use farshore_core::sync::Futex;
use farshore_core::word::Slot;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Condvar, Mutex};

/// Slot `n`, which must not be 0.
pub fn slot(n: u64) -> Slot {
    Slot::new(n).expect("slot 0 means no slot")
}

/// futex(2) for loom. All words share one queue, so wake-ups that were meant for another word
/// happen too, as the contract of [`Futex::wait`] allows.
#[derive(Debug, Default)]
pub struct LoomFutex {
    queue: Mutex<()>,
    woken: Condvar,
}

impl LoomFutex {
    /// A futex that nobody sleeps on.
    pub fn new() -> LoomFutex {
        LoomFutex::default()
    }
}

impl Futex for LoomFutex {
    fn wait(&self, word: &AtomicU32, expected: u32) {
        let queue = self.queue.lock().unwrap();
        // The kernel counts itself as a sleeper, passes a full barrier and only then reads the word.
        // Loom takes SeqCst accesses for AcqRel ones; a read that is a read-modify-write sees the
        // newest value, which is what the barrier gives.
        if word.fetch_add(0, Ordering::AcqRel) == expected {
            drop(self.woken.wait(queue).unwrap());
        }
    }

    /// Sleeps without a limit: a time-out would hide a lost wake-up from the model.
    fn wait_for(&self, word: &AtomicU32, expected: u32, _timeout_ns: u64) {
        self.wait(word, expected);
    }

    fn wake_all(&self, _word: &AtomicU32) {
        let queue = self.queue.lock().unwrap();
        self.woken.notify_all();
        drop(queue);
    }
}

/// How the kernel has a page mapped, and the page's bytes (a set of bits, so that no write hides another).
#[derive(Clone, Copy, Debug, Default)]
pub struct Mapping {
    /// The page is present.
    pub mapped: bool,
    /// A write does not fault.
    pub writable: bool,
    /// The bytes.
    pub bytes: u32,
}

/// A page of the kernel. Each operation is one step under the kernel's page-table lock, which orders what the
/// threads did before and after it on this page (without that, loom lets a thread read a word from before the
/// unmapping for ever).
#[derive(Debug)]
pub struct KernelPage {
    steps: AtomicU32,
    // Not loom's: it is only touched right behind a step on `steps`, where loom does not switch threads.
    mapping: std::sync::Mutex<Mapping>,
}

impl KernelPage {
    /// A page in this state.
    pub fn new(mapping: Mapping) -> KernelPage {
        KernelPage { steps: AtomicU32::new(0), mapping: std::sync::Mutex::new(mapping) }
    }

    /// One operation of the kernel or the processor.
    pub fn step<R>(&self, operation: impl FnOnce(&mut Mapping) -> R) -> R {
        self.steps.fetch_add(1, Ordering::AcqRel);
        operation(&mut self.mapping.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}
