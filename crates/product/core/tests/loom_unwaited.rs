//! Faults that nobody waits for: workers poll the tickets of their unithreads, between other things, and never sleep on them.
//!
//! Nobody polls for ever (loom ends a model that takes too many steps), each page has one owner at a time, and an evictor that takes a page right after
//! its fetch has ended finds it whole.
#![cfg(loom)]

use farshore_core::page::{Access, Page};
use farshore_core::wait::{Ticket, WaitTable};
use farshore_core::word::{AtomicWord, BeginEvict, BeginFault, Claim, Release, State, Word};
use farshore_models::kernel::{LoomFutex, slot};
use farshore_models::{explore, must_die};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

const PAGE: Page = Page(5);
const BYTES: u32 = 7;
const REUSED: u32 = 0;

struct Rig {
    word: AtomicWord,
    waits: WaitTable,
    futex: LoomFutex,
    /// The frame's bytes: of whoever owns the page.
    bytes: UnsafeCell<u32>,
    fetches: AtomicU32,
}

// SAFETY: loom checks each access to the cell.
unsafe impl Sync for Rig {}
// SAFETY: as above.
unsafe impl Send for Rig {}

/// What a unithread's fault waits for.
enum Fault {
    Begins,
    Polls(Ticket),
    /// It owns the page, and its read is under way.
    Reads,
    Over,
}

impl Rig {
    /// A page that is out.
    fn new() -> Arc<Rig> {
        let word = AtomicWord::new(Word::UNTOUCHED);
        assert!(matches!(word.claim(), Claim::Owned { .. }));
        let _ = word.release(Release::Out { slot: slot(3) });
        Arc::new(Rig {
            word,
            waits: WaitTable::new(),
            futex: LoomFutex::new(),
            bytes: UnsafeCell::new(REUSED),
            fetches: AtomicU32::new(0),
        })
    }

    fn set(&self, bytes: u32) {
        // SAFETY: the model's subject: by the page's owner.
        self.bytes.with_mut(|cell| unsafe { *cell = bytes });
    }

    fn get(&self) -> u32 {
        // SAFETY: as above.
        self.bytes.with(|cell| unsafe { *cell })
    }

    /// Takes a fault one step on.
    fn step(&self, fault: &Fault) -> Fault {
        match fault {
            Fault::Polls(ticket) if !self.waits.is_over(*ticket) => Fault::Polls(*ticket),
            Fault::Begins | Fault::Polls(_) => match self.word.begin_fault(Access::Read, false) {
                BeginFault::Owned { was } => {
                    assert_eq!(was.state(), State::Out);
                    Fault::Reads
                }
                BeginFault::Wait => self.waits.announce(PAGE, &self.word).map_or(Fault::Begins, Fault::Polls),
                BeginFault::Satisfied => Fault::Over,
                BeginFault::Foreign => unreachable!("nobody made it foreign"),
            },
            Fault::Reads => {
                self.complete();
                Fault::Over
            }
            Fault::Over => Fault::Over,
        }
    }

    /// The read has ended: the page is mapped, then released.
    fn complete(&self) {
        self.set(BYTES);
        self.fetches.fetch_add(1, Ordering::Relaxed);
        let outcome = self.word.release(Release::Clean { slot: slot(3), chances: 0 });
        self.waits.released(&self.futex, PAGE, outcome);
    }

    /// A worker whose unithreads all want the page.
    fn worker(&self, unithreads: usize) {
        let mut faults: Vec<Fault> = (0..unithreads).map(|_| Fault::Begins).collect();
        while !faults.iter().all(|fault| matches!(fault, Fault::Over)) {
            let mut waits = true;
            for fault in &mut faults {
                *fault = self.step(fault);
                waits &= matches!(fault, Fault::Polls(_) | Fault::Over);
            }
            if waits {
                thread::yield_now();
            }
        }
    }

    /// The page leaves, if it is there: it is clean, so without a write. Its frame is used for something else.
    fn evictor(&self) {
        let BeginEvict::Owned { was } = self.word.begin_evict(false) else { return };
        assert_eq!(self.get(), BYTES, "a page is resident before its bytes are there");
        self.set(REUSED);
        let outcome = self.word.release(Release::Out { slot: was.slot().expect("it was clean") });
        self.waits.released(&self.futex, PAGE, outcome);
    }
}

/// Runs actors side by side; all of them end.
fn together(rig: &Arc<Rig>, actors: Vec<fn(&Rig)>) {
    let threads: Vec<_> = actors
        .into_iter()
        .map(|actor| {
            let rig = rig.clone();
            thread::spawn(move || actor(&rig))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_ne!(rig.word.load().state(), State::Busy);
}

#[test]
fn two_workers_on_one_page() {
    explore(3, || {
        let rig = Rig::new();
        together(&rig, vec![|rig| rig.worker(1), |rig| rig.worker(1)]);
        assert_eq!(rig.fetches.load(Ordering::Relaxed), 1);
    });
}

/// One of two unithreads of a worker reads the page while the other one polls for it.
#[test]
fn two_unithreads_of_one_worker_and_one_of_another() {
    explore(2, || {
        let rig = Rig::new();
        together(&rig, vec![|rig| rig.worker(2), |rig| rig.worker(1)]);
        assert_eq!(rig.fetches.load(Ordering::Relaxed), 1);
    });
}

/// The page is put back instead of released: the thread that polls takes it.
#[test]
fn a_fetch_that_fails_is_somebody_elses() {
    explore(3, || {
        let rig = Rig::new();
        let fails = |rig: &Rig| {
            if let BeginFault::Owned { was } = rig.word.begin_fault(Access::Read, false) {
                let outcome = rig.word.restore(was);
                rig.waits.released(&rig.futex, PAGE, outcome);
            }
        };
        together(&rig, vec![fails, |rig| rig.worker(1)]);
        assert_eq!(rig.fetches.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn an_evictor_takes_the_page_right_after_its_fetch() {
    explore(3, || {
        let rig = Rig::new();
        together(&rig, vec![|rig| rig.worker(1), Rig::evictor]);
    });
}

/// Who polls may find the page out again: then it fetches it.
#[test]
fn an_evictor_takes_the_page_before_who_polls_for_it() {
    explore(2, || {
        let rig = Rig::new();
        together(&rig, vec![|rig| rig.worker(1), |rig| rig.worker(1), Rig::evictor]);
        assert!((1..=2).contains(&rig.fetches.load(Ordering::Relaxed)));
    });
}

/// Shows that the models notice: a release that no thread that polls can see.
#[test]
fn canary_a_release_without_a_number_is_caught() {
    must_die("canary_a_release_without_a_number_is_caught", "exceeded maximum number of branches", || {
        let rig = Rig::new();
        let forgets = |rig: &Rig| {
            if let BeginFault::Owned { was } = rig.word.begin_fault(Access::Read, false) {
                let _ = rig.word.restore(was);
            }
        };
        together(&rig, vec![forgets, |rig| rig.worker(1)]);
    });
}

/// The number is read after the announcement instead of before.
#[test]
fn canary_a_ticket_that_is_made_too_late_is_caught() {
    must_die("canary_a_ticket_that_is_made_too_late_is_caught", "exceeded maximum number of branches", || {
        let rig = Rig::new();
        let late = |rig: &Rig| {
            while !matches!(rig.word.begin_fault(Access::Read, false), BeginFault::Satisfied) {
                if !rig.word.announce_waiter() {
                    continue;
                }
                // Another word of the same bucket: its ticket has the number of this moment.
                let other = AtomicWord::new(Word::UNTOUCHED);
                let _ = other.claim();
                let Some(ticket) = rig.waits.announce(PAGE, &other) else { unreachable!("it is claimed") };
                while !rig.waits.is_over(ticket) {
                    thread::yield_now();
                }
            }
        };
        assert!(matches!(rig.word.begin_fault(Access::Read, false), BeginFault::Owned { .. }));
        together(&rig, vec![Rig::complete, late]);
    });
}

/// The page is released before its bytes are there.
#[test]
fn canary_a_release_before_the_map_is_caught() {
    must_die("canary_a_release_before_the_map_is_caught", "a page is resident before its bytes are there", || {
        let rig = Rig::new();
        assert!(matches!(rig.word.begin_fault(Access::Read, false), BeginFault::Owned { .. }));
        let hasty = |rig: &Rig| {
            let outcome = rig.word.release(Release::Clean { slot: slot(3), chances: 0 });
            rig.waits.released(&rig.futex, PAGE, outcome);
        };
        together(&rig, vec![hasty, Rig::evictor]);
    });
}
