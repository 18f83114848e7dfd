//! The gate: transactions go through it side by side, unless one has the database for itself.
//!
//! Each worker counts those that are inside; so they share no cache line. Who wants to be alone closes the gate, and waits until all counts are 0. Who
//! finds it closed takes itself off the count again, and waits. (SeqCst: of one who counts itself and looks, and one who closes and counts, at least
//! one sees the other.)
//!
//! Those who wait sleep for a moment at a time, with nothing held, so that a worker goes on. It is for the consistency check, and for a transaction
//! that has met too many conflicts.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use farshore_uthread::{Stopped, sleep, worker_index};

/// Workers that count for themselves; others share.
const COUNTS: usize = 64;
/// How long to wait before the next look.
const MOMENT: Duration = Duration::from_micros(200);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Count(AtomicU64);

/// See the module's head.
#[derive(Debug)]
pub struct Gate {
    inside: [Count; COUNTS],
    closed: AtomicBool,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate { inside: std::array::from_fn(|_| Count::default()), closed: AtomicBool::new(false) }
    }
}

/// One that is inside.
#[derive(Debug)]
pub struct Inside<'a>(&'a AtomicU64);

/// The only one.
#[derive(Debug)]
pub struct Alone<'a>(&'a AtomicBool);

impl Gate {
    /// Goes in, beside others.
    ///
    /// # Errors
    /// The runtime is being shut down.
    pub fn enter(&self) -> Result<Inside<'_>, Stopped> {
        let Count(count) = &self.inside[worker_index().unwrap_or(0) % COUNTS];
        loop {
            count.fetch_add(1, SeqCst);
            let inside = Inside(count);
            if !self.closed.load(SeqCst) {
                return Ok(inside);
            }
            drop(inside);
            sleep(MOMENT)?;
        }
    }

    /// Goes in alone.
    ///
    /// # Errors
    /// The runtime is being shut down.
    pub fn alone(&self) -> Result<Alone<'_>, Stopped> {
        while self.closed.swap(true, SeqCst) {
            sleep(MOMENT)?;
        }
        let alone = Alone(&self.closed);
        for Count(count) in &self.inside {
            while count.load(SeqCst) > 0 {
                sleep(MOMENT)?;
            }
        }
        Ok(alone)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Relaxed;
    use std::thread;

    #[test]
    fn to_be_alone_is_to_wait_for_those_inside() {
        let (gate, came) = (Arc::new(Gate::default()), Arc::new(AtomicBool::new(false)));
        let inside = gate.enter().unwrap();
        let other = {
            let (gate, came) = (gate.clone(), came.clone());
            thread::spawn(move || {
                let _alone = gate.alone().unwrap();
                came.store(true, SeqCst);
            })
        };
        while !gate.closed.load(SeqCst) && !came.load(SeqCst) {
            thread::yield_now();
        }
        // Time to go wrong in; nothing that is asserted depends on it.
        thread::sleep(20 * MOMENT);
        assert!(!came.load(SeqCst), "somebody is inside");
        drop(inside);
        other.join().unwrap();
        assert!(came.load(SeqCst) && gate.enter().is_ok());
    }

    #[test]
    fn whoever_is_alone_is_alone() {
        let gate = Arc::new(Gate::default());
        let (beside, alone) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let threads = [0, 1, 2, 3].map(|number| {
            let (gate, beside, alone) = (gate.clone(), beside.clone(), alone.clone());
            thread::spawn(move || {
                for round in 0..3000 {
                    if number == 0 && round % 10 == 0 || number == 1 && round % 100 == 0 {
                        let _alone = gate.alone().unwrap();
                        assert_eq!((beside.load(Relaxed), alone.fetch_add(1, Relaxed)), (0, 0));
                        thread::yield_now();
                        assert_eq!((beside.load(Relaxed), alone.fetch_sub(1, Relaxed)), (0, 1));
                    } else {
                        let _inside = gate.enter().unwrap();
                        beside.fetch_add(1, Relaxed);
                        assert_eq!(alone.load(Relaxed), 0);
                        beside.fetch_sub(1, Relaxed);
                    }
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
