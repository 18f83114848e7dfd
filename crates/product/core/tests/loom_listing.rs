//! Listing of granules: a resident page is in a granule that some evictor will come to.
//!
//! # The protocol (the engine's `evict::partition`)
//!
//! A fault releases its page as resident → fence → **lists** the granule: `if !listed && !listed.swap(true)` push. An
//! evictor looks at the pages of a listed granule and evicts; the granule stays on the list as long as a page of it is
//! resident or in somebody's hands, else it is taken off: unlink → `listed = false` → fence → look again → if there is a
//! page after all, list it. `listed` of a granule on a list is true, so only one evictor has it at a time.
//!
//! Both sides write one word and then read the other's, so each needs its fence: one of the two sees the other.
//!
//! # What must hold
//!
//! A granule is on the list at most once, and when all threads are done it is there if a page of it is resident.
#![cfg(loom)]

use farshore_core::page::Access;
use farshore_core::word::{AtomicWord, BeginEvict, BeginFault, Pin, Release, State, Word};
use farshore_models::explore;
use farshore_models::kernel::slot;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use loom::thread;

const DIRTY: Release = Release::Dirty { chances: 0, guessed: false, protected: false };

struct Granule {
    words: [AtomicWord; 2],
    listed: AtomicBool,
    /// How often the granule is on the list.
    entries: AtomicU32,
    /// The partition's `busy`.
    walked: AtomicBool,
    fences: bool,
}

impl Granule {
    /// Both pages absent, on the list, where the last round left it.
    fn new(fences: bool) -> Arc<Granule> {
        Arc::new(Granule {
            words: [AtomicWord::new(Word::UNTOUCHED), AtomicWord::new(Word::UNTOUCHED)],
            listed: AtomicBool::new(true),
            entries: AtomicU32::new(1),
            walked: AtomicBool::new(false),
            fences,
        })
    }

    fn fence(&self) {
        if self.fences {
            fence(Ordering::SeqCst);
        }
    }

    fn push(&self) {
        // As the engine's list does it: a push is a release, taking the pushed ones an acquire.
        assert_eq!(self.entries.fetch_add(1, Ordering::Release), 0, "on the list twice");
    }

    fn fault(&self, i: usize) {
        loop {
            match self.words[i].begin_fault(Access::Write, false) {
                BeginFault::Owned { .. } => break,
                BeginFault::Wait => thread::yield_now(),
                BeginFault::Satisfied => return,
                BeginFault::Foreign => unreachable!("nobody made it foreign"),
            }
        }
        let _ = self.words[i].release(DIRTY);
        self.fence();
        if !self.listed.load(Ordering::Relaxed) && !self.listed.swap(true, Ordering::AcqRel) {
            self.push();
        }
    }

    /// One evictor's turn: a page that can go, goes; a granule without pages is unlisted.
    fn evict(&self) {
        if self.walked.swap(true, Ordering::Acquire) {
            return;
        }
        if self.entries.fetch_add(0, Ordering::Acquire) == 1 {
            let mut populated = false;
            for word in &self.words {
                populated |= matches!(word.load().state(), State::Resident | State::Busy);
                if let BeginEvict::Owned { .. } = word.begin_evict(false) {
                    let _ = word.release(Release::Out { slot: slot(1) });
                }
            }
            if !populated {
                self.unlist();
            }
        }
        self.walked.store(false, Ordering::Release);
    }

    fn unlist(&self) {
        self.entries.fetch_sub(1, Ordering::Relaxed);
        // A store in the engine. Loom lets a swap that came before a store read as if it came after it (C++ does not: a
        // read-modify-write is next to what it read), so here it is a swap, one that acquires nothing.
        self.listed.swap(false, Ordering::Release);
        self.fence();
        let populated = self.words.iter().any(|w| matches!(w.load().state(), State::Resident | State::Busy));
        if populated && !self.listed.swap(true, Ordering::AcqRel) {
            self.push();
        }
    }

    fn assert_listed_if_resident(&self) {
        let resident = self.words.iter().any(|w| w.load().state() == State::Resident);
        let entries = self.entries.load(Ordering::Relaxed);
        assert!(!resident || entries == 1, "a resident page in no list");
        assert_eq!(self.listed.load(Ordering::Relaxed), entries == 1);
    }
}

fn spawn(granule: &Arc<Granule>, act: fn(&Granule)) -> thread::JoinHandle<()> {
    let granule = granule.clone();
    thread::spawn(move || act(&granule))
}

fn faults_and_an_evictor(preemptions: usize, fences: bool, rounds: usize) {
    explore(preemptions, move || {
        let granule = Granule::new(fences);
        let evictor = {
            let granule = granule.clone();
            thread::spawn(move || (0..rounds).for_each(|_| granule.evict()))
        };
        [spawn(&granule, |g| g.fault(0)), spawn(&granule, |g| g.fault(1)), evictor].into_iter().for_each(|t| t.join().unwrap());
        granule.assert_listed_if_resident();
    });
}

#[test]
fn a_page_that_comes_while_its_granule_is_taken_off_the_list() {
    faults_and_an_evictor(3, true, 1);
}

#[test]
fn pages_that_come_and_go_in_two_rounds() {
    faults_and_an_evictor(2, true, 2);
}

#[test]
fn two_evictors_and_a_fault() {
    explore(3, || {
        let granule = Granule::new(true);
        let threads = [spawn(&granule, Granule::evict), spawn(&granule, Granule::evict), spawn(&granule, |g| g.fault(0))];
        threads.into_iter().for_each(|t| t.join().unwrap());
        granule.assert_listed_if_resident();
    });
}

#[test]
fn a_pinned_page_stays_listed() {
    explore(3, || {
        let granule = Granule::new(true);
        let evictor = spawn(&granule, Granule::evict);
        granule.fault(0);
        let pinned = granule.words[0].pin(Access::Read) == Pin::Pinned;
        evictor.join().unwrap();
        granule.assert_listed_if_resident();
        assert!(!pinned || granule.words[0].load().state() == State::Resident);
        if pinned {
            granule.words[0].unpin();
        }
    });
}

#[test]
#[should_panic(expected = "in no list")]
fn canary_listing_without_fences_is_caught() {
    faults_and_an_evictor(3, false, 1);
}
