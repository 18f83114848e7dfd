//! What the loom models share: how they are run, a futex made of loom's mutex and condition variable, and
//! the kernel's view of a page.
#![cfg(loom)]
// Every model is a crate of its own and uses a part of this.
#![allow(dead_code)]

use farshore_core::sync::Futex;
use farshore_core::word::Slot;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Condvar, Mutex};

/// Runs a model with all schedules of up to `preemptions` forced switches, which each model has chosen so that it ends
/// in seconds. `LOOM_MAX_PREEMPTIONS` above 3 raises it, for a long search.
///
/// A model that is to see an error with few switches starts all its actors as threads and only joins them, so that
/// going from one actor to the first is no forced switch.
pub fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    let asked = builder.preemption_bound.filter(|&asked| asked > 3);
    builder.preemption_bound = Some(asked.unwrap_or(preemptions));
    // Searching an extent is one step a slot.
    builder.max_branches = 20_000;
    builder.check(model);
}

/// Passes when `model` ends in a panic that says `why`. Loom's report of a deadlock cannot be caught (its
/// destructors panic again), so the model runs in a process of its own: this test, started once more.
pub fn must_die(test: &str, why: &str, model: impl Fn() + Sync + Send + 'static) {
    const INSIDE: &str = "FARSHORE_CANARY_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        explore(2, model);
        return;
    }
    let this = std::env::current_exe().expect("the test knows its own program");
    let child = std::process::Command::new(this).args(["--exact", test, "--nocapture"]).env(INSIDE, "1").output();
    let child = child.expect("the test can start itself");
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(!child.status.success() && said.contains(why), "the model did not see `{why}`:\n{said}");
}

/// Slot `n`, which must not be 0.
pub fn slot(n: u64) -> Slot {
    Slot::new(n).expect("slot 0 means no slot")
}

/// futex(2) for loom. All words share one queue, so wake-ups that were meant for another word
/// happen too, as the contract of [`Futex::wait`] allows.
pub struct LoomFutex {
    queue: Mutex<()>,
    woken: Condvar,
}

impl LoomFutex {
    /// A futex that nobody sleeps on.
    pub fn new() -> LoomFutex {
        LoomFutex { queue: Mutex::new(()), woken: Condvar::new() }
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
