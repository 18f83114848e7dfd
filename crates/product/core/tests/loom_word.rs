//! The page word under all interleavings: one owner at a time, and no byte read from a place that is
//! being given to somebody else.
#![cfg(loom)]

use farshore_core::page::Access;
use farshore_core::word::{AtomicWord, BeginEvict, BeginFault, Claim, Pin, Release, Stage, StageStep, State, Word};
use farshore_models::explore;
use farshore_models::kernel::slot;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

const DIRTY: Release = Release::Dirty { chances: 0, guessed: false, protected: false };

/// A word that is in this state, by the way that an owner takes.
fn word(state: Release) -> AtomicWord {
    let word = AtomicWord::new(Word::UNTOUCHED);
    assert!(matches!(word.claim(), Claim::Owned { .. }));
    let _ = word.release(state);
    word
}

/// Bytes that only the owner of a page word may touch. Loom fails the model when two threads touch
/// them without one having seen the other's release.
struct Owned<T>(UnsafeCell<T>);

// SAFETY: the models touch the cell only while they own the page word; loom's cell checks exactly that.
unsafe impl<T: Send> Sync for Owned<T> {}

impl<T: Copy> Owned<T> {
    fn new(value: T) -> Owned<T> {
        Owned(UnsafeCell::new(value))
    }
    fn set(&self, value: T) {
        // SAFETY: the caller owns the page word; loom's cell fails the model if it does not.
        self.0.with_mut(|p| unsafe { *p = value });
    }
    fn get(&self) -> T {
        // SAFETY: as in `set`.
        self.0.with(|p| unsafe { *p })
    }
}

#[test]
fn of_two_faults_on_one_page_one_owns_it() {
    explore(3, || {
        let page = Arc::new((AtomicWord::new(Word::UNTOUCHED), Owned::new(0u32), AtomicU32::new(0)));
        let faults: Vec<_> = (0..2)
            .map(|_| {
                let page = page.clone();
                thread::spawn(move || {
                    let (word, bytes, owners) = &*page;
                    loop {
                        match word.begin_fault(Access::Write, false) {
                            BeginFault::Owned { was } => {
                                assert_eq!(was, Word::UNTOUCHED);
                                owners.fetch_add(1, Ordering::Relaxed);
                                bytes.set(7);
                                let _ = word.release(DIRTY);
                                return;
                            }
                            BeginFault::Satisfied => {
                                assert_eq!(bytes.get(), 7);
                                return;
                            }
                            BeginFault::Wait => thread::yield_now(),
                            BeginFault::Foreign => unreachable!("nobody made it foreign"),
                        }
                    }
                })
            })
            .collect();
        faults.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(page.2.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_fault_an_eviction_and_a_claim_take_turns() {
    explore(3, || {
        let page = Arc::new((word(Release::Clean { slot: slot(3), chances: 0 }), Owned::new(0u32)));
        let turn = |act: fn(&AtomicWord) -> Option<Release>| {
            let page = page.clone();
            thread::spawn(move || {
                let (word, count) = &*page;
                let Some(then) = act(word) else { return 0 };
                count.set(count.get() + 1);
                let _ = word.release(then);
                1
            })
        };
        let turns = [
            turn(|w| matches!(w.begin_fault(Access::Write, true), BeginFault::Owned { .. }).then_some(DIRTY)),
            turn(|w| match w.begin_evict(false) {
                // Clean goes to its slot; what a fault has made dirty has no slot any more.
                BeginEvict::Owned { was } => {
                    Some(was.slot().map_or(Release::Leaving { stage: Stage(1), written: false }, |slot| Release::Out { slot }))
                }
                _ => None,
            }),
            turn(|w| matches!(w.claim(), Claim::Owned { .. }).then_some(Release::Untouched)),
        ];
        let owners: u32 = turns.map(|t| t.join().unwrap()).iter().sum();
        assert_eq!(page.1.get(), owners);
        assert!(owners >= 1);
        assert_ne!(page.0.load().state(), State::Busy);
    });
}

#[test]
fn a_pinned_page_is_not_evicted_and_an_evicted_one_not_pinned() {
    explore(3, || {
        let page = Arc::new((word(DIRTY), Owned::new(1u32)));
        let evictor = {
            let page = page.clone();
            thread::spawn(move || {
                if let BeginEvict::Owned { was } = page.0.begin_evict(false) {
                    assert_eq!(was.pins(), 0);
                    page.1.set(0);
                    let _ = page.0.release(Release::Out { slot: slot(9) });
                }
            })
        };
        match page.0.pin(Access::Write) {
            Pin::Pinned => {
                assert_eq!(page.1.get(), 1, "the page left under a pin");
                page.0.unpin();
            }
            Pin::Fault => {}
            Pin::Foreign => unreachable!("nobody made it foreign"),
        }
        evictor.join().unwrap();
        assert_eq!(page.0.load().pins(), 0);
    });
}

#[test]
fn a_pin_that_races_with_a_claim_is_still_there_afterwards() {
    explore(3, || {
        let page = Arc::new(word(DIRTY));
        let claimer = {
            let page = page.clone();
            thread::spawn(move || {
                if let Claim::Owned { was } = page.claim() {
                    assert_eq!(page.claimed().state(), was.state());
                    let _ = page.restore(page.claimed());
                }
            })
        };
        let pinned = page.pin(Access::Write) == Pin::Pinned;
        claimer.join().unwrap();
        let now = page.load();
        assert_eq!((now.state(), now.pins()), (State::Resident, u32::from(pinned)));
        if pinned {
            page.unpin();
        }
        assert_eq!(page.load().pins(), 0);
    });
}

/// One page's way out through a stage.
struct Leaving {
    word: AtomicWord,
    stage: Owned<u32>,
    slot: Owned<u32>,
}

const BYTES: u32 = 77;
const REUSED: u32 = 0;

/// What the evictor does with the stage when the word says that the page is in somebody's hands.
#[derive(Clone, Copy, PartialEq)]
enum WhenHeld {
    LookAgain,
    TakeItForGone,
}

/// The evictor's part: the write has come back, the stage is wanted for the next batch.
fn finish(page: &Leaving, when_held: WhenHeld) {
    page.slot.set(BYTES);
    loop {
        match page.word.stage_written(Stage(7)) {
            StageStep::Held if when_held == WhenHeld::LookAgain => thread::yield_now(),
            StageStep::Done => break,
            StageStep::Gone | StageStep::Held => {
                page.stage.set(REUSED);
                return;
            }
        }
    }
    loop {
        match page.word.retire_stage(Stage(7), slot(5)) {
            StageStep::Held if when_held == WhenHeld::LookAgain => thread::yield_now(),
            _ => break,
        }
    }
    page.stage.set(REUSED);
}

/// The rescuer's part. With `refuse` the kernel refuses the first time and the page is put back.
fn rescue(page: &Leaving, mut refuse: bool) {
    loop {
        let BeginFault::Owned { was } = page.word.begin_fault(Access::Write, false) else {
            unreachable!("one thread faults, and evictors never take an absent page");
        };
        let bytes = match was.state() {
            State::Leaving => page.stage.get(),
            _ => page.slot.get(),
        };
        assert_eq!(bytes, BYTES, "rescued from {was:?}");
        if !core::mem::take(&mut refuse) {
            let _ = page.word.release(DIRTY);
            return;
        }
        let _ = page.word.restore(was);
    }
}

fn rescue_model(when_held: WhenHeld, refuse: bool) {
    explore(3, move || {
        let page = Arc::new(Leaving {
            word: word(Release::Leaving { stage: Stage(7), written: false }),
            stage: Owned::new(BYTES),
            slot: Owned::new(0),
        });
        let evictor = {
            let page = page.clone();
            thread::spawn(move || finish(&page, when_held))
        };
        rescue(&page, refuse);
        evictor.join().unwrap();
        let end = page.word.load();
        assert_eq!((end.state(), end.slot()), (State::Resident, None));
    });
}

#[test]
fn a_rescue_reads_whole_bytes_whenever_it_comes() {
    rescue_model(WhenHeld::LookAgain, false);
}

#[test]
fn a_rescue_that_the_kernel_refuses_can_be_put_back() {
    rescue_model(WhenHeld::LookAgain, true);
}

/// Shows that the model sees what it is there for: the rescuer reads a stage that has been reused.
#[test]
#[should_panic]
fn canary_a_stage_that_is_reused_while_held_is_caught() {
    rescue_model(WhenHeld::TakeItForGone, false);
}

#[test]
fn a_discarded_page_is_gone_for_its_evictor() {
    explore(3, || {
        let page = Arc::new(word(Release::Leaving { stage: Stage(7), written: false }));
        let discard = {
            let page = page.clone();
            thread::spawn(move || {
                if let Claim::Owned { .. } = page.claim() {
                    let _ = page.release(Release::Untouched);
                }
            })
        };
        let mut done = 0;
        while done < 2 {
            let step = if done == 0 { page.stage_written(Stage(7)) } else { page.retire_stage(Stage(7), slot(5)) };
            match step {
                StageStep::Done => done += 1,
                StageStep::Gone => break,
                StageStep::Held => thread::yield_now(),
            }
        }
        discard.join().unwrap();
        assert_eq!(page.load(), Word::UNTOUCHED, "a discard always wins, before or after the stage is retired");
    });
}
