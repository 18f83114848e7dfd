//! Waiting to the microsecond. The kernel may let a sleeper oversleep by its timer slack (50 us by
//! default) and the wake-up, so the bulk is slept and the rest is spun.

use rustix::thread::{ClockId, clock_nanosleep_relative};
use rustix::time::{Timespec, clock_gettime};

/// What is spun at the end, in ns: the default timer slack and a wake-up.
const SPIN_NS: u64 = 80_000;

/// Now, in ns from an arbitrary start.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Blocks until [`now_ns`] is at least `due`.
pub(crate) fn until(due: u64) {
    loop {
        let left = due.saturating_sub(now_ns());
        if left == 0 {
            return;
        }
        if left > SPIN_NS {
            nap(left - SPIN_NS);
        } else {
            core::hint::spin_loop();
        }
    }
}

/// Sleeps for about `ns`; a signal may end it early.
pub(crate) fn nap(ns: u64) {
    let time = Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ };
    // Interrupted: the caller looks at the clock again.
    let _ = clock_nanosleep_relative(ClockId::Monotonic, &time);
}
