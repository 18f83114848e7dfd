//! Listing of granules: a resident page is in a granule that some evictor will come to.
//!
//! # The protocol
//!
//! Evictor: take the granule off the list → `listed.swap(false)` → look at its pages, evict → if a page stays resident
//! (young, pinned), **list** it again. Fault: release the page as resident → **list** it. To list is: `if
//! !listed.swap(true)` push.
//!
//! The evictor's change of `listed` must be a swap and not a store. When a fault's swap came first and found `true`, the
//! fault does not push, so the evictor must see its page; a swap reads the fault's value and with it all that came
//! before (acquire), a store reads nothing.
//!
//! # What must hold
//!
//! A granule is on the list at most once, and when all threads are done it is there if a page of it is resident.
#![cfg(loom)]

mod common;

use common::{explore, slot};
use farshore_core::page::Access;
use farshore_core::word::{AtomicWord, BeginEvict, BeginFault, Pin, Release, State, Word};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::thread;

const DIRTY: Release = Release::Dirty { young: false, guessed: false, protected: false };

struct Granule {
    words: [AtomicWord; 2],
    listed: AtomicBool,
    /// How often the granule is on the list.
    entries: AtomicU32,
    unlist_by_store: bool,
}

impl Granule {
    /// Both pages absent, on the list, where the last round left it.
    fn new(unlist_by_store: bool) -> Arc<Granule> {
        Arc::new(Granule {
            words: [AtomicWord::new(Word::UNTOUCHED), AtomicWord::new(Word::UNTOUCHED)],
            listed: AtomicBool::new(true),
            entries: AtomicU32::new(1),
            unlist_by_store,
        })
    }

    fn list(&self) {
        if !self.listed.swap(true, Ordering::AcqRel) {
            assert_eq!(self.entries.fetch_add(1, Ordering::Relaxed), 0, "on the list twice");
        }
    }

    fn fault(&self, i: usize) {
        loop {
            match self.words[i].begin_fault(Access::Write, false) {
                BeginFault::Owned { .. } => {
                    let _ = self.words[i].release(DIRTY);
                    self.list();
                    return;
                }
                BeginFault::Wait => thread::yield_now(),
                BeginFault::Satisfied => return,
                BeginFault::Foreign => unreachable!("nobody made it foreign"),
            }
        }
    }

    fn evict(&self) {
        // Taking it off the list, as popping does: relaxed, so that the list's own order does not help.
        if self.entries.compare_exchange(1, 0, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        if self.unlist_by_store {
            self.listed.store(false, Ordering::SeqCst);
        } else {
            self.listed.swap(false, Ordering::AcqRel);
        }
        let mut stays = false;
        for word in &self.words {
            match word.begin_evict(false) {
                BeginEvict::Owned { .. } => {
                    let _ = word.release(Release::Out { slot: slot(1) });
                }
                BeginEvict::SecondChance => stays = true,
                // In a fault's hands: that fault will list it. Pinned: it stays.
                BeginEvict::Skip => stays |= word.load().state() == State::Resident,
            }
        }
        if stays {
            self.list();
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

fn faults_and_an_evictor(unlist_by_store: bool) {
    explore(3, move || {
        let granule = Granule::new(unlist_by_store);
        let threads = [spawn(&granule, |g| g.fault(0)), spawn(&granule, Granule::evict)];
        granule.fault(1);
        threads.into_iter().for_each(|t| t.join().unwrap());
        granule.assert_listed_if_resident();
    });
}

#[test]
fn a_page_that_comes_while_its_granule_is_taken_off_the_list() {
    faults_and_an_evictor(false);
}

/// One round may still be at work in the granule when a fault lists it and the next evictor takes it.
#[test]
fn two_evictors_and_a_fault() {
    explore(3, || {
        let granule = Granule::new(false);
        let threads = [spawn(&granule, Granule::evict), spawn(&granule, Granule::evict)];
        granule.fault(0);
        threads.into_iter().for_each(|t| t.join().unwrap());
        granule.assert_listed_if_resident();
    });
}

#[test]
fn a_pinned_page_stays_listed() {
    explore(3, || {
        let granule = Granule::new(false);
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
fn canary_unlisting_by_a_store_is_caught() {
    faults_and_an_evictor(true);
}
