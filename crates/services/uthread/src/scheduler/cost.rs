//! What a switch between two stacks costs on this machine: for `farshore bench uthread switch` and the example `switch`.

use crate::scheduler::switch::{prepare, switch};
use core::arch::x86_64::_rdtsc;
use core::cell::Cell;
use std::time::Instant;

/// How often is measured; the median counts.
const ROUNDS: usize = 15;
/// Switches of a round: there and back is two.
const SWITCHES: u32 = 1_000_000;

/// What one of something costs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cost {
    /// Nanoseconds.
    pub ns: f64,
    /// Cycles of the time-stamp counter.
    pub cycles: f64,
}

/// What one costs of what `work` does `count` times: the median of several rounds.
pub fn of(count: u32, mut work: impl FnMut()) -> Cost {
    let mut rounds: Vec<Cost> = (0..ROUNDS)
        .map(|_| {
            // SAFETY: every x86-64 processor has it.
            let (time, cycles) = (Instant::now(), unsafe { _rdtsc() });
            work();
            // SAFETY: as above.
            let cycles = unsafe { _rdtsc() } - cycles;
            Cost { ns: time.elapsed().as_nanos() as f64 / f64::from(count), cycles: cycles as f64 / f64::from(count) }
        })
        .collect();
    rounds.sort_by(|a, b| a.ns.total_cmp(&b.ns));
    rounds[ROUNDS / 2]
}

struct Both {
    here: Cell<usize>,
    there: Cell<usize>,
}

extern "sysv64" fn other(both: usize) -> ! {
    // SAFETY: `of_a_switch` lives for as long as this runs.
    let both = unsafe { &*core::ptr::with_exposed_provenance::<Both>(both) };
    loop {
        // SAFETY: the other context waits at `here`.
        unsafe { switch(both.there.as_ptr(), both.here.get()) };
    }
}

/// What a switch from one stack to another costs.
pub fn of_a_switch() -> Cost {
    let mut stack = vec![0u128; 1024];
    let both = Both { here: Cell::new(0), there: Cell::new(0) };
    let argument = (&raw const both).expose_provenance();
    // SAFETY: 16 KiB of stack, aligned.
    both.there.set(unsafe { prepare(stack.as_mut_ptr_range().end.cast(), other, argument) });
    of(SWITCHES, || {
        for _ in 0..SWITCHES / 2 {
            // SAFETY: the other context waits at `there`.
            unsafe { switch(both.here.as_ptr(), both.there.get()) };
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_costs_something_and_little() {
        let cost = of_a_switch();
        assert!(cost.ns > 0.1 && cost.ns < 10_000.0 && cost.cycles > 1.0, "{cost:?}");
    }
}
