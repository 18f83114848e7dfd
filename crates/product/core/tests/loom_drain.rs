//! A space that goes away while slots are reserved, written, read and freed, under all interleavings.
//!
//! Two spaces of one extent each. An evictor brings a page out: reserves a slot, writes the page there, names it in the page word. A thread of
//! the program reads the page, or writes to it, which brings it in and frees the slot. The drainer closes space 0, brings the page in
//! itself if it is there, and takes the space away when it is empty. Then nobody may write or read there, and the page's bytes must be
//! somewhere.
#![cfg(loom)]

use farshore_core::canary::{Canary, plant};
use farshore_core::limits::EXTENT_SLOTS;
use farshore_core::page::Access;
use farshore_core::slots::SlotMap;
use farshore_core::slots::arrangement::{Arrangements, SpaceSet};
use farshore_core::word::{AtomicWord, BeginEvict, BeginFault, Release, Slot, State, Word};
use farshore_models::{explore, must_die};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::thread;

const BYTES: u32 = 7;

struct Rig {
    slots: SlotMap,
    page: AtomicWord,
    /// The page in memory, while it is resident or in somebody's hands.
    memory: AtomicU32,
    /// What each space holds: one page. Whoever uses a space that is gone ends the model: its file is taken out by `with_mut`.
    files: [UnsafeCell<u32>; 2],
    gone: AtomicBool,
}

// SAFETY: loom checks each access to the cells.
unsafe impl Sync for Rig {}
// SAFETY: as above.
unsafe impl Send for Rig {}

fn two_spaces() -> Arc<Rig> {
    let mut slots = SlotMap::new(Some(2 * EXTENT_SLOTS as u64));
    let extent = Some(EXTENT_SLOTS as u64);
    slots.set_spaces(&[extent, extent]);
    let page = AtomicWord::new(Word::UNTOUCHED);
    let BeginFault::Owned { .. } = page.begin_fault(Access::Write, false) else { unreachable!("nobody else has it") };
    let _ = page.release(Release::Dirty { chances: 0, guessed: false, protected: false });
    let files = [UnsafeCell::new(0), UnsafeCell::new(0)];
    Arc::new(Rig { slots, page, memory: AtomicU32::new(BYTES), files, gone: AtomicBool::new(false) })
}

impl Rig {
    fn space_of(&self, slot: Slot) -> usize {
        self.slots.space_of(slot).expect("there is no base")
    }

    fn write(&self, slot: Slot, bytes: u32) {
        // SAFETY: the model's subject: whoever has the slot has the file.
        self.files[self.space_of(slot)].with_mut(|file| unsafe { *file = bytes });
    }

    fn read(&self, slot: Slot) -> u32 {
        // SAFETY: as above.
        self.files[self.space_of(slot)].with(|file| unsafe { *file })
    }

    /// The evictor: the page leaves.
    fn evict(&self) {
        let BeginEvict::Owned { was } = self.page.begin_evict(false) else { return };
        let run = if was.slot().is_none() { self.slots.reserve_run(0, 1) } else { None };
        match was.slot().or(run.map(|run| run.first)) {
            Some(slot) => {
                if was.slot().is_none() {
                    self.write(slot, self.memory.swap(0, Ordering::Relaxed));
                }
                let _ = self.page.release(Release::Out { slot });
            }
            None => drop(self.page.restore(was)),
        }
    }

    /// A fault, or the drainer as one that writes: the page comes in. Whether it was ours to bring.
    fn bring(&self, access: Access, only_from: Option<usize>) -> bool {
        let BeginFault::Owned { was } = self.page.begin_fault(access, false) else { return false };
        match was.slot().filter(|&slot| was.state() == State::Out && only_from.is_none_or(|space| self.space_of(slot) == space)) {
            Some(slot) => {
                let bytes = self.read(slot);
                assert_eq!(bytes, BYTES, "the page's only copy was in a space that has gone");
                self.memory.store(bytes, Ordering::Relaxed);
                if access == Access::Write {
                    self.slots.free(slot);
                    let _ = self.page.release(Release::Dirty { chances: 0, guessed: false, protected: false });
                } else {
                    let _ = self.page.release(Release::Clean { slot, chances: 0 });
                }
                true
            }
            None => {
                let _ = self.page.restore(was);
                false
            }
        }
    }

    /// The drainer looks once; another look would find the same, later.
    fn drain(&self) {
        self.slots.close(0);
        let word = self.page.load();
        if word.slot().is_some_and(|slot| self.space_of(slot) == 0) {
            if word.state() == State::Out {
                self.bring(Access::Write, Some(0));
            } else if let BeginFault::Owned { was } = self.page.begin_fault(Access::Write, true) {
                match was.slot().filter(|_| was.state() == State::Resident) {
                    Some(slot) => {
                        self.slots.free(slot);
                        let _ = self.page.release(Release::Dirty { chances: 0, guessed: false, protected: true });
                    }
                    None => drop(self.page.restore(was)),
                }
            }
        }
        if self.slots.is_empty(0) {
            // SAFETY: nobody has a slot there, and nobody will.
            self.files[0].with_mut(|file| unsafe { *file = 0 });
            self.gone.store(true, Ordering::Relaxed);
        }
    }

    fn check(&self) {
        let word = self.page.load();
        let bytes = match (word.state(), word.slot()) {
            (State::Out, Some(slot)) => {
                assert!(self.space_of(slot) != 0 || !self.gone.load(Ordering::Relaxed), "{word:?} is in a space that has gone");
                self.read(slot)
            }
            (State::Resident, slot) => {
                assert!(slot.is_none_or(|slot| self.space_of(slot) != 0) || !self.gone.load(Ordering::Relaxed));
                self.memory.load(Ordering::Relaxed)
            }
            _ => unreachable!("{word:?} is in nobody's hands"),
        };
        assert_eq!(bytes, BYTES);
        self.slots.assert_valid();
    }
}

/// `access`: of the program's thread; `was_out`: the page is out in space 0 when the drain begins.
fn drainer_evictor_and_fault(access: Access, was_out: bool) {
    let rig = two_spaces();
    if was_out {
        rig.evict();
    }
    let actors: [fn(&Rig, Access); 3] = [
        |rig, _| rig.drain(),
        |rig, _| rig.evict(),
        |rig, access| {
            let _ = rig.bring(access, None);
        },
    ];
    let threads = actors.map(|actor| {
        let rig = rig.clone();
        thread::spawn(move || actor(&rig, access))
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    rig.check();
}

/// A slot that is reserved while its space is closed is either seen by the drainer, or given back.
fn drainer_and_evictor() {
    let rig = two_spaces();
    let actors: [fn(&Rig); 2] = [Rig::drain, Rig::evict];
    let threads = actors.map(|actor| {
        let rig = rig.clone();
        thread::spawn(move || actor(&rig))
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    rig.check();
}

#[test]
fn a_slot_is_not_given_out_after_the_last_look() {
    explore(3, drainer_and_evictor);
}

#[test]
fn a_page_that_is_out_is_read_meanwhile() {
    explore(2, || drainer_evictor_and_fault(Access::Read, true));
}

#[test]
fn a_page_that_is_out_is_written_meanwhile() {
    explore(2, || drainer_evictor_and_fault(Access::Write, true));
}

#[test]
fn a_page_that_is_in_leaves_meanwhile() {
    explore(2, || drainer_evictor_and_fault(Access::Write, false));
}

#[test]
fn canary_an_evictor_that_does_not_look_again() {
    must_die("canary_an_evictor_that_does_not_look_again", "Causality violation", || {
        plant(Some(Canary::Closed));
        drainer_and_evictor();
    });
}

/// Who has a slot finds where it lies, although spaces came just before: the arrangement is published before the slot.
#[test]
fn an_arrangement_is_seen_by_whoever_gets_a_slot_there() {
    explore(3, || {
        let all = Arc::new(Arrangements::new(SpaceSet::first(1)));
        let slot = Arc::new(AtomicU32::new(u32::MAX));
        let reader = {
            let (all, slot) = (all.clone(), slot.clone());
            thread::spawn(move || {
                // Old extents, at any time.
                assert_eq!(all.place_of(2).space, 0);
                let extent = slot.load(Ordering::Acquire);
                if extent != u32::MAX {
                    let place = all.place_of(extent);
                    assert_eq!((place.space, place.number), if extent == 3 { (0, 3) } else { (1, 0) });
                }
            })
        };
        all.arrange(3, SpaceSet::first(2));
        slot.store(3, Ordering::Release);
        slot.store(4, Ordering::Release);
        reader.join().unwrap();
    });
}
