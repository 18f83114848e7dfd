//! The gate: transactions go through it side by side, unless one has the database for itself.
//!
//! Each worker counts those that are inside; so they share no cache line. Who wants to be alone closes the gate, and waits until all counts are 0. Who
//! finds it closed takes itself off the count again, and waits. (SeqCst: of one who counts itself and looks, and one who closes and counts, at least
//! one sees the other.)
//!
//! Those who wait sleep for a moment at a time, with nothing held, so that a worker goes on. It is for the consistency check, and for a transaction
//! that has met too many conflicts.
//!
//! The check takes long, and one may follow another. So for it the gate closes only when it has been open for as long as it was closed for the last one:
//! whoever was turned away gets in meanwhile.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use farshore_uthread::{Stopped, sleep, worker_index};

/// Workers that count for themselves; others share.
const COUNTS: usize = 64;
/// How long to wait before the next look.
const MOMENT: Duration = Duration::from_micros(200);
/// How long the gate stays open at least: some looks.
const OPEN_MIN: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Count(AtomicU64);

/// See the module's head.
#[derive(Debug)]
pub struct Gate {
    inside: [Count; COUNTS],
    closed: AtomicBool,
    began: Instant,
    /// Until when it stays open for those who take long: nanoseconds since it began.
    open_until: AtomicU64,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate {
            inside: std::array::from_fn(|_| Count::default()),
            closed: AtomicBool::new(false),
            began: Instant::now(),
            open_until: AtomicU64::new(0),
        }
    }
}

/// One that is inside.
#[derive(Debug)]
pub struct Inside<'a>(&'a AtomicU64);

/// The only one.
#[derive(Debug)]
pub struct Alone<'a> {
    gate: &'a Gate,
    /// When one who takes long has closed the gate.
    long_since: Option<Instant>,
}

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

    /// Goes in alone, for a moment.
    ///
    /// # Errors
    /// The runtime is being shut down.
    pub fn alone(&self) -> Result<Alone<'_>, Stopped> {
        while self.closed.swap(true, SeqCst) {
            sleep(MOMENT)?;
        }
        self.emptied(Alone { gate: self, long_since: None })
    }

    /// Goes in alone, for long.
    ///
    /// # Errors
    /// The runtime is being shut down.
    pub fn alone_for_long(&self) -> Result<Alone<'_>, Stopped> {
        loop {
            if self.is_due() && !self.closed.swap(true, SeqCst) {
                // Another one may have come and gone between the two looks.
                if self.is_due() {
                    return self.emptied(Alone { gate: self, long_since: Some(Instant::now()) });
                }
                self.closed.store(false, SeqCst);
            }
            sleep(MOMENT)?;
        }
    }

    /// Whether one who takes long may close the gate.
    fn is_due(&self) -> bool {
        self.began.elapsed() >= Duration::from_nanos(self.open_until.load(SeqCst))
    }

    /// Waits until nobody else is inside.
    fn emptied<'a>(&'a self, alone: Alone<'a>) -> Result<Alone<'a>, Stopped> {
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
        if let Some(since) = self.long_since {
            let until = self.gate.began.elapsed() + since.elapsed().max(OPEN_MIN);
            self.gate.open_until.store(until.as_nanos() as u64, SeqCst);
        }
        self.gate.closed.store(false, SeqCst);
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
    fn between_two_who_take_long_it_is_open_for_as_long() {
        let gate = Gate::default();
        let one = gate.alone_for_long().unwrap();
        thread::sleep(50 * MOMENT);
        let open = Instant::now();
        drop(one);
        // One who needs a moment does not wait for that.
        drop(gate.alone().unwrap());
        let _other = gate.alone_for_long().unwrap();
        assert!(open.elapsed() >= 50 * MOMENT, "{:?}", open.elapsed());
    }

    /// One who takes long, again and again, and one who was turned away.
    #[test]
    fn whoever_was_turned_away_gets_in() {
        let gate = Arc::new(Gate::default());
        let (got_in, turns) = (Arc::new(AtomicBool::new(false)), 10_000);
        let first = gate.alone_for_long().unwrap();
        let other = {
            let (gate, got_in) = (gate.clone(), got_in.clone());
            thread::spawn(move || {
                let _inside = gate.enter().unwrap();
                got_in.store(true, SeqCst);
            })
        };
        drop(first);
        let turn = (0..turns).find(|_| {
            let _alone = gate.alone_for_long().unwrap();
            thread::sleep(MOMENT);
            got_in.load(SeqCst)
        });
        assert!(turn.is_some_and(|turn| turn < turns / 10), "after {turn:?}");
        other.join().unwrap();
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
                        let _alone = if round % 500 == 0 { gate.alone_for_long() } else { gate.alone() }.unwrap();
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
