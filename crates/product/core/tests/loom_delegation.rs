//! Cores that ask each other, under all interleavings: what is asked for is done once, in order, and what nobody waits for is taken back.
#![cfg(loom)]

use farshore_core::canary::{Canary, plant};
use farshore_core::delegation::{Queue, Tasks};
use farshore_core::limits::EXTENT_SLOTS;
use farshore_core::slots::SlotMap;
use farshore_models::{explore, must_die};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

const EXTENT: u64 = EXTENT_SLOTS as u64;

struct Rig {
    queue: Queue,
    tasks: Tasks,
    /// What the owner has given, less what it took back.
    given: AtomicU32,
}

fn rig() -> Arc<Rig> {
    Arc::new(Rig { queue: Queue::new(), tasks: Tasks::new(2), given: AtomicU32::new(0) })
}

impl Rig {
    /// The owner: does all that it was asked for; which requests.
    fn serve(&self) -> Vec<u64> {
        let mut done = Vec::new();
        let mut node = self.queue.take(|node| self.tasks.link(node));
        while node != 0 {
            let next = self.tasks.link(node).load(Ordering::Relaxed);
            if let Some(request) = self.tasks.begin(node) {
                done.push(request);
                self.given.fetch_add(1, Ordering::Relaxed);
                if !self.tasks.end(node, request + 100) {
                    self.given.fetch_sub(1, Ordering::Relaxed);
                }
            }
            node = next;
        }
        done
    }

    /// An asker with patience for `looks` looks: how many answers it got.
    fn ask(&self, core: usize, request: u64, looks: u32) -> u32 {
        let asked = self.tasks.post(core, request).expect("a core has more than one task");
        self.queue.push(asked.node(), self.tasks.link(asked.node()));
        for _ in 0..looks {
            if let Some(answer) = self.tasks.answer(asked) {
                assert_eq!(answer, request + 100);
                return 1;
            }
            thread::yield_now();
        }
        u32::from(self.tasks.cancel(asked).is_some())
    }
}

#[test]
fn work_is_done_once_and_in_order() {
    explore(3, || {
        let rig = rig();
        let askers: Vec<_> = (0..2)
            .map(|core| {
                let rig = rig.clone();
                thread::spawn(move || {
                    for n in 0..2 {
                        let asked = rig.tasks.post(core, 10 * core as u64 + n).expect("two tasks a core");
                        rig.queue.push(asked.node(), rig.tasks.link(asked.node()));
                    }
                })
            })
            .collect();
        let mut done = rig.serve();
        askers.into_iter().for_each(|asker| asker.join().unwrap());
        done.extend(rig.serve());
        for core in 0..2 {
            let of: Vec<u64> = done.iter().copied().filter(|request| request / 10 == core).collect();
            assert_eq!(of, [10 * core, 10 * core + 1], "as core {core} asked");
        }
        assert_eq!(done.len(), 4);
    });
}

/// Whoever stops waiting has the answer, or nobody has, and the owner took it back; and the task can be used again.
fn an_asker_that_stops_waiting() {
    let rig = rig();
    let owner = {
        let rig = rig.clone();
        thread::spawn(move || drop(rig.serve()))
    };
    let asker = {
        let rig = rig.clone();
        thread::spawn(move || rig.ask(0, 1, 1))
    };
    owner.join().unwrap();
    let got = asker.join().unwrap();
    rig.serve();
    assert_eq!(rig.given.load(Ordering::Relaxed), got, "what is given is had by somebody");
    for n in 0..2 {
        assert!(rig.tasks.post(0, n).is_some(), "task {n} is free again");
    }
}

#[test]
fn what_nobody_waits_for_is_taken_back() {
    explore(3, an_asker_that_stops_waiting);
}

#[test]
fn canary_an_answer_that_nobody_has() {
    must_die("canary_an_answer_that_nobody_has", "what is given is had by somebody", || {
        plant(Some(Canary::Delegation));
        an_asker_that_stops_waiting();
    });
}

/// Two cores with an extent together: the second has none of its own, and asks while the first reserves.
#[test]
fn a_core_without_room_asks_another() {
    explore(2, || {
        let map = Arc::new(SlotMap::for_cores(Some(EXTENT), &[0, 0]));
        let first = map.reserve_run(0, EXTENT_SLOTS as u32 - 4).expect("it is empty");
        let other = {
            let map = map.clone();
            thread::spawn(move || (map.reserve_run(1, 2), map.was_unanswered(1)))
        };
        let mine = map.reserve_run(0, 1);
        let unanswered = map.was_unanswered(0);
        let (theirs, theirs_unanswered) = other.join().unwrap();
        assert!(mine.is_some() || unanswered, "there is room");
        assert!(theirs.is_some() || theirs_unanswered, "there is room");
        if let (Some(mine), Some(theirs)) = (mine, theirs) {
            let apart = |n: u64| n < theirs.first.number() || n >= theirs.first.number() + u64::from(theirs.len);
            assert!(apart(mine.first.number()) && !(0..u64::from(theirs.len)).any(|n| theirs.first.plus(n) == first.first));
        }
        // What a cancelled task was given has come back.
        let had = first.len + mine.map_or(0, |run| run.len) + theirs.map_or(0, |run| run.len);
        while map.reserve_run(0, 64).is_some() {}
        map.assert_valid();
        assert_eq!(map.live(), EXTENT - 1);
        assert!(u64::from(had) < EXTENT);
    });
}

/// A fault frees a slot of a full extent while its owner finds itself full: the extent comes back, and the owner says that it has room.
#[test]
fn an_extent_that_comes_back_is_not_missed() {
    explore(3, || {
        let map = Arc::new(SlotMap::for_cores(Some(EXTENT), &[0, 0]));
        let all = map.reserve_run(0, EXTENT_SLOTS as u32).expect("it is empty");
        let fault = {
            let map = map.clone();
            thread::spawn(move || map.free(all.first))
        };
        let early = map.reserve_run(0, 1);
        fault.join().unwrap();
        let late = if early.is_none() { map.reserve_run(1, 1) } else { None };
        assert_eq!(early.or(late).map(|run| run.first), Some(all.first));
        assert_eq!((map.reserve_run(1, 1), map.reserve_run(0, 1)), (None, None));
        map.assert_valid();
    });
}
