//! How a thread falls asleep without missing work, and how it is woken only if it sleeps.
//!
//! ```text
//!  sleeper                              waker
//!  ASLEEP ─▶ word                       work ─▶ list
//!  fence                                fence
//!  look for work: none ─▶ sleep         word was ASLEEP ─▶ AWAKE, and a kick
//! ```
//!
//! Each writes one and reads the other's. With the fences at least one of them sees what the other wrote: the sleeper the work, or the waker the sleeper. The
//! kick is an eventfd here, which remembers, so it may come before the sleep begins.

use farshore_core::sync::{AtomicU32, Ordering, fence};

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// Whether its owner sleeps.
#[derive(Debug)]
pub struct Doze(AtomicU32);

impl Default for Doze {
    fn default() -> Doze {
        Doze(AtomicU32::new(AWAKE))
    }
}

impl Doze {
    /// The owner is about to sleep. It looks for work after this and before the sleep.
    pub fn begin(&self) {
        // All changes are swaps, so that each sees the one before it: one order, in which no wake is behind a sleep that it did not see.
        self.0.swap(ASLEEP, Ordering::AcqRel);
        // SeqCst: the store above must not pass the loads that look for work. Partner: the fence in `must_kick`.
        fence(Ordering::SeqCst);
    }

    /// The owner is awake.
    pub fn end(&self) {
        self.0.swap(AWAKE, Ordering::AcqRel);
    }

    /// Work was put where the owner looks: whether it has to be kicked. Of several wakers one is told so.
    pub fn must_kick(&self) -> bool {
        // SeqCst: the work was stored before this, and must not pass the load below. Partner: the fence in `begin`.
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) == ASLEEP && self.0.swap(AWAKE, Ordering::AcqRel) == ASLEEP
    }
}
