//! No wake-up is lost: loom reports a thread that sleeps for ever as a deadlock.
#![cfg(loom)]

use farshore_core::frames::Frames;
use farshore_core::page::{Access, Page};
use farshore_core::wait::{Event, WaitTable};
use farshore_core::word::{AtomicWord, BeginFault, Release, Word};
use farshore_models::kernel::LoomFutex;
use farshore_models::{explore, must_die};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

const DIRTY: Release = Release::Dirty { chances: 1, guessed: false, protected: false };

struct World {
    word: AtomicWord,
    waits: WaitTable,
    futex: LoomFutex,
    owners: AtomicU32,
}

impl World {
    fn new() -> Arc<World> {
        Arc::new(World {
            word: AtomicWord::new(Word::UNTOUCHED),
            waits: WaitTable::new(),
            futex: LoomFutex::new(),
            owners: AtomicU32::new(0),
        })
    }

    /// A fault that sleeps while another thread has the page.
    fn fault(&self, page: Page) {
        loop {
            match self.word.begin_fault(Access::Write, false) {
                BeginFault::Owned { .. } => {
                    self.owners.fetch_add(1, Ordering::Relaxed);
                    let outcome = self.word.release(DIRTY);
                    self.waits.released(&self.futex, page, outcome);
                    return;
                }
                BeginFault::Wait => {
                    if let Some(ticket) = self.waits.announce(page, &self.word) {
                        self.waits.sleep(&self.futex, ticket);
                    }
                }
                BeginFault::Satisfied => return,
                BeginFault::Foreign => unreachable!("nobody made it foreign"),
            }
        }
    }
}

fn faults(threads: usize) {
    explore(3, move || {
        let world = World::new();
        let others: Vec<_> = (1..threads)
            .map(|_| {
                let world = world.clone();
                thread::spawn(move || world.fault(Page(5)))
            })
            .collect();
        world.fault(Page(5));
        others.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(world.owners.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn two_faults_on_one_page() {
    faults(2);
}

#[test]
fn three_faults_on_one_page() {
    faults(3);
}

/// The page is put back instead of released: whoever waits must wake and take it.
#[test]
fn a_restore_wakes_too() {
    explore(3, || {
        let world = World::new();
        let other = {
            let world = world.clone();
            thread::spawn(move || world.fault(Page(5)))
        };
        if let BeginFault::Owned { was } = world.word.begin_fault(Access::Write, false) {
            let outcome = world.word.restore(was);
            world.waits.released(&world.futex, Page(5), outcome);
        }
        other.join().unwrap();
        assert_eq!(world.owners.load(Ordering::Relaxed), 1);
    });
}

/// Shows that the model notices: a release that wakes nobody.
#[test]
fn canary_a_release_without_a_wake_is_caught() {
    must_die("canary_a_release_without_a_wake_is_caught", "deadlock", || {
        let world = World::new();
        let BeginFault::Owned { .. } = world.word.begin_fault(Access::Write, false) else { unreachable!() };
        let other = {
            let world = world.clone();
            thread::spawn(move || world.fault(Page(5)))
        };
        let _ = world.word.release(DIRTY);
        other.join().unwrap();
    });
}

/// Faults that wait for frames, as the engine's fault path does it.
fn take_or_sleep(frames: &Frames, available: &Event, futex: &LoomFutex) {
    loop {
        let prepared = available.prepare();
        if frames.take(0) {
            return;
        }
        available.sleep(futex, prepared, None);
    }
}

fn frames_model(sleepers: usize) {
    explore(3, move || {
        let world = Arc::new((Frames::new(1, 1), Event::new(), LoomFutex::new()));
        assert!(world.0.take(0), "somebody has the only frame");
        let others: Vec<_> = (0..sleepers)
            .map(|_| {
                let world = world.clone();
                thread::spawn(move || {
                    take_or_sleep(&world.0, &world.1, &world.2);
                    // Give it on, so that each sleeper's turn comes.
                    world.0.give(0, 1);
                    world.1.signal(&world.2);
                })
            })
            .collect();
        world.0.give(0, 1);
        world.1.signal(&world.2);
        others.into_iter().for_each(|t| t.join().unwrap());
        world.0.assert_valid();
        assert_eq!((world.0.taken(), world.1.sleepers()), (0, 0));
    });
}

#[test]
fn frames_that_come_free_wake_a_fault() {
    frames_model(1);
}

#[test]
fn frames_that_come_free_wake_two_faults() {
    frames_model(2);
}

/// Shows that the model notices: the condition is looked at before the number is read.
#[test]
fn canary_looking_before_preparing_is_caught() {
    must_die("canary_looking_before_preparing_is_caught", "deadlock", || {
        let world = Arc::new((Frames::new(1, 1), Event::new(), LoomFutex::new()));
        assert!(world.0.take(0));
        let other = {
            let world = world.clone();
            thread::spawn(move || {
                while !world.0.take(0) {
                    let too_late = world.1.prepare();
                    world.1.sleep(&world.2, too_late, None);
                }
            })
        };
        world.0.give(0, 1);
        world.1.signal(&world.2);
        other.join().unwrap();
    });
}
