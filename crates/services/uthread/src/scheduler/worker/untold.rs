//! When a worker wakes the heir (`heir.rs`).
//!
//! That thread has the worker's core, as a rule, where there are few. Woken for each slot it would take two switches of threads for each; woken late it would
//! keep what is done (replies that are made). So several slots go together while the worker has other things to do, and all go when it has none, or sleeps.
//!
//! The kernel lets a thread that wakes run at once. One that was pushed aside by others waits for its turn, which is a tick of the kernel's (1 to 10 ms)
//! away while the worker is busy; then the worker gives way itself.

use crate::scheduler::heir::Heir;
use core::cell::Cell;

/// Slots that go together …
const TOGETHER: u32 = 16;
/// … or after so many turns of the worker's loop.
const TURNS: u32 = 32;
/// With so many that the heir has not taken, the worker gives way.
const LATE: u32 = 32;

/// Slots of a worker of which the heir was not told.
#[derive(Debug, Default)]
pub(super) struct Untold {
    count: Cell<u32>,
    turns: Cell<u32>,
}

impl Untold {
    /// One more.
    pub(super) fn note(&self) {
        self.count.set(self.count.get() + 1);
    }

    /// A turn of the loop: tells of them if it is time to. `busy`: the worker has something else to do.
    pub(super) fn turn(&self, heir: &Heir, busy: impl FnOnce() -> bool) {
        if self.is_time(busy) {
            heir.wake();
            if heir.untaken() >= LATE {
                std::thread::yield_now();
            }
        }
    }

    fn is_time(&self, busy: impl FnOnce() -> bool) -> bool {
        if self.count.get() == 0 {
            return false;
        }
        self.turns.set(self.turns.get() + 1);
        let wait = self.count.get() < TOGETHER && self.turns.get() < TURNS && busy();
        if !wait {
            self.count.set(0);
            self.turns.set(0);
        }
        !wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_go_together_and_none_stays() {
        let untold = Untold::default();
        assert!(!untold.is_time(|| false), "there is none");
        untold.note();
        assert!(!untold.is_time(|| true) && untold.is_time(|| false), "nothing else to do");
        for _ in 1..TOGETHER {
            untold.note();
            assert!(!untold.is_time(|| true));
        }
        untold.note();
        assert!(untold.is_time(|| true), "enough");
        untold.note();
        let turns = (1..).find(|_| untold.is_time(|| true));
        assert_eq!(turns, Some(TURNS), "one alone does not wait for others for ever");
    }
}
