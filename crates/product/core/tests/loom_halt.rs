//! While one thread has halted the others, none of them runs, and none stays for good.
#![cfg(loom)]

use farshore_core::halt::{Halt, Round, Seat, State};
use farshore_core::sync::{AtomicU32, Futex as _, Ordering};
use farshore_models::kernel::LoomFutex;
use farshore_models::{explore, must_die};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

struct World {
    halt: Halt,
    futex: LoomFutex,
    seats: Vec<Seat>,
    /// Signals that wait for the threads.
    signals: Vec<AtomicU32>,
    /// What the others run on. Loom notices two that use it at a time.
    text: UnsafeCell<u32>,
}

// SAFETY: the cell is what the models are about: loom stops at an access that is not ordered with the others.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    fn new(threads: usize) -> Arc<World> {
        let world = World {
            halt: Halt::new(),
            futex: LoomFutex::new(),
            seats: (0..threads).map(|_| Seat::new()).collect(),
            signals: (0..threads).map(|_| AtomicU32::new(0)).collect(),
            text: UnsafeCell::new(0),
        };
        world.halt.sleep();
        Arc::new(world)
    }

    /// A thread: it runs, a signal stops it, and it goes on.
    fn runs(&self, thread: usize) {
        while self.halt.state() != State::Awake {
            self.futex.wait(&self.signals[thread], 0);
            self.signals[thread].swap(0, Ordering::AcqRel);
            self.halt.stand(&self.seats[thread], &self.futex);
        }
        // SAFETY: reads alone, while nobody halts any more.
        self.text.with(|text| assert_eq!(unsafe { *text }, 1, "the text is not whole"));
    }

    fn signal(&self, thread: usize) {
        self.signals[thread].swap(1, Ordering::AcqRel);
        self.futex.wake_all(&self.signals[thread]);
    }

    fn wait_for_all(&self, round: Round, others: core::ops::Range<usize>) {
        others.clone().for_each(|other| self.signal(other));
        loop {
            let arrivals = self.halt.arrivals();
            if others.clone().all(|other| self.halt.stands(&self.seats[other], round)) {
                return;
            }
            self.halt.await_arrival(arrivals, u64::MAX, &self.futex);
        }
    }

    fn wakes(&self, others: core::ops::Range<usize>) {
        let Some(round) = self.halt.begin() else { return };
        self.wait_for_all(round, others);
        // SAFETY: all others stand still.
        self.text.with_mut(|text| unsafe { *text += 1 });
        self.halt.end(round, State::Awake, &self.futex);
    }
}

#[test]
fn two_stand_still() {
    explore(2, || {
        let world = World::new(2);
        let others: Vec<_> = (0..2)
            .map(|number| {
                let world = Arc::clone(&world);
                thread::spawn(move || world.runs(number))
            })
            .collect();
        world.wakes(0..2);
        others.into_iter().for_each(|one| one.join().unwrap());
    });
}

/// Both want to wake the process: one of them does, and the other one stands still meanwhile.
#[test]
fn two_that_wake() {
    explore(3, || {
        let world = World::new(2);
        let other = Arc::clone(&world);
        let other = thread::spawn(move || {
            other.wakes(0..1);
            other.runs(1);
        });
        world.wakes(1..2);
        world.runs(0);
        other.join().unwrap();
    });
}

/// A round is given up, and another one begins at once: who stood in the first one does not count in the second before it has
/// arrived again.
#[test]
fn a_round_that_is_given_up() {
    explore(3, || {
        let world = World::new(1);
        let other = Arc::clone(&world);
        let other = thread::spawn(move || other.runs(0));
        if let Some(round) = world.halt.begin() {
            world.signal(0);
            world.halt.end(round, State::Dormant, &world.futex);
        }
        world.wakes(0..1);
        other.join().unwrap();
    });
}

/// Shows that the models notice: one that changes the text before all stand.
#[test]
fn canary_one_that_does_not_wait_is_caught() {
    must_die("canary_one_that_does_not_wait_is_caught", "Causality violation", || {
        let world = World::new(1);
        let other = Arc::clone(&world);
        let other = thread::spawn(move || {
            // SAFETY: loom looks whether it is.
            other.text.with(|text| unsafe { *text });
            other.runs(0);
        });
        world.wakes(0..0);
        other.join().unwrap();
    });
}
