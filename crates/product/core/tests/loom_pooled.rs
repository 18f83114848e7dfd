//! The word of a pooled page: readers, copies to the tier below, and slots that are given to other pages.
//!
//! Memory is in cells that know who may look, so that a reader of memory that was given away, or two writes of one slot below at a time, end the
//! model. Each page is its number.
#![cfg(loom)]

use farshore_core::pooled::{CopyEnd, Place, PooledWord};
use farshore_models::{explore, must_die};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

fn chunk(at: usize) -> Place {
    Place::Chunk { at: at as u64, len: 9 }
}

fn index(place: Place) -> usize {
    match place {
        Place::Chunk { at, .. } => at as usize,
        Place::Repeated => unreachable!("not in this model"),
    }
}

/// One slot: its word, the two chunks that it may have, and the tier below.
struct Slot {
    word: PooledWord,
    lock: Mutex<()>,
    chunks: [UnsafeCell<u32>; 2],
    below: UnsafeCell<u32>,
    /// Writes of the slot below that are under way, as the device sees them.
    writes: AtomicU32,
    /// Readers pin. A canary: they do not.
    pins: bool,
    /// A page that does not fit asks whether a copy is under way. A canary: it does not.
    asks: bool,
}

// SAFETY: loom checks each access to the cells.
unsafe impl Sync for Slot {}
// SAFETY: as above.
unsafe impl Send for Slot {}

impl Slot {
    fn with_page(page: u32, pins: bool, asks: bool) -> Arc<Slot> {
        let (chunks, below) = ([UnsafeCell::new(0), UnsafeCell::new(0)], UnsafeCell::new(0));
        let slot = Slot { word: PooledWord::new(), lock: Mutex::new(()), chunks, below, writes: AtomicU32::new(0), pins, asks };
        slot.fill(0, page);
        slot.word.put(chunk(0));
        Arc::new(slot)
    }

    fn fill(&self, at: usize, page: u32) {
        // SAFETY: the model's subject: nobody else may use the chunk now.
        self.chunks[at].with_mut(|chunk| unsafe { *chunk = page });
    }

    fn bytes(&self, place: Place) -> u32 {
        // SAFETY: as in `fill`: somebody has pinned it.
        self.chunks[index(place)].with(|chunk| unsafe { *chunk })
    }

    fn write_below(&self, page: u32) {
        assert_eq!(self.writes.fetch_add(1, Ordering::Relaxed), 0, "two writes of one slot below");
        // SAFETY: the model's subject.
        self.below.with_mut(|below| unsafe { *below = page });
        self.writes.fetch_sub(1, Ordering::Relaxed);
    }

    fn read(&self) -> u32 {
        let place = if self.pins { self.word.pin() } else { self.word.place() };
        match place {
            Some(place) => {
                let page = self.bytes(place);
                if self.pins {
                    self.word.unpin();
                }
                page
            }
            // SAFETY: the model's subject: who is not in the pool is below.
            None => self.below.with(|below| unsafe { *below }),
        }
    }

    /// An evictor copies the page below, and gives its chunk to another page when it can.
    fn copy_below(&self) {
        {
            let _lock = self.lock.lock();
            if !self.word.begin_copy() {
                return;
            }
        }
        // Pinned while it is read: it may be taken meanwhile.
        if let Some(place) = self.word.pin() {
            let page = self.bytes(place);
            self.word.unpin();
            self.write_below(page);
        }
        let _lock = self.lock.lock();
        if let CopyEnd::Moved(place) = self.word.end_copy(true) {
            self.fill(index(place), 99);
        }
    }

    /// An evictor moves the page to its other chunk, and gives the first to another page.
    fn compact(&self) {
        let _lock = self.lock.lock();
        let Some(from) = self.word.place() else { return };
        let to = 1 - index(from);
        self.fill(to, self.bytes(from));
        let old = if self.word.relocate(chunk(to)) { index(from) } else { to };
        self.fill(old, 99);
    }

    /// The slot was freed and given to another page: it goes into the pool again, or, when it does not fit, below.
    fn give_to(&self, page: u32, fits: bool) {
        loop {
            let lock = self.lock.lock();
            if self.word.place().is_some() && self.word.take().is_none() {
                drop(lock);
                thread::yield_now();
                continue;
            }
            if fits || (self.asks && self.word.is_copied()) {
                self.fill(0, page);
                self.word.put(chunk(0));
                return;
            }
            break;
        }
        self.write_below(page);
    }
}

/// Two threads with the slot.
fn side_by_side(slot: &Arc<Slot>, one: impl FnOnce(&Slot) + 'static, other: impl FnOnce(&Slot) + 'static) {
    let (ones, others) = (slot.clone(), slot.clone());
    let one = thread::spawn(move || one(&ones));
    let other = thread::spawn(move || other(&others));
    one.join().unwrap();
    other.join().unwrap();
}

fn copier_and_reader(pins: bool) {
    let slot = Slot::with_page(7, pins, true);
    side_by_side(&slot, |slot| assert_eq!(slot.read(), 7), Slot::copy_below);
    assert_eq!(slot.read(), 7);
}

fn compacter_and_reader(pins: bool) {
    let slot = Slot::with_page(7, pins, true);
    side_by_side(&slot, |slot| assert_eq!(slot.read(), 7), Slot::compact);
    assert_eq!(slot.read(), 7);
}

fn copiers_and_new_page(fits: bool, asks: bool) {
    let slot = Slot::with_page(7, true, asks);
    let copier = |slot: &Slot| {
        slot.copy_below();
        slot.copy_below();
    };
    let giver = move |slot: &Slot| {
        slot.give_to(8, fits);
        assert_eq!(slot.read(), 8);
    };
    side_by_side(&slot, copier, giver);
    assert_eq!(slot.read(), 8);
}

#[test]
fn a_reader_reads_the_page_wherever_it_is() {
    explore(3, || copier_and_reader(true));
}

#[test]
fn a_new_page_of_the_slot_is_not_taken_for_the_copied_one() {
    explore(3, || copiers_and_new_page(true, true));
}

#[test]
fn a_page_that_passes_the_pool_by_does_not_meet_a_copy() {
    explore(3, || copiers_and_new_page(false, true));
}

#[test]
fn two_copiers() {
    explore(3, || {
        let slot = Slot::with_page(7, true, true);
        side_by_side(&slot, Slot::copy_below, Slot::copy_below);
        assert_eq!(slot.read(), 7);
    });
}

#[test]
fn a_reader_reads_a_page_that_is_relocated() {
    explore(3, || compacter_and_reader(true));
}

#[test]
fn a_copy_and_a_relocation() {
    explore(3, || {
        let slot = Slot::with_page(7, true, true);
        let (copying, compacting, reading) = (slot.clone(), slot.clone(), slot.clone());
        let copier = thread::spawn(move || copying.copy_below());
        let compacter = thread::spawn(move || compacting.compact());
        assert_eq!(reading.read(), 7);
        copier.join().unwrap();
        compacter.join().unwrap();
        assert_eq!(slot.read(), 7);
    });
}

#[test]
fn canary_a_reader_that_does_not_pin() {
    must_die("canary_a_reader_that_does_not_pin", "Causality violation", || copier_and_reader(false));
}

#[test]
fn canary_a_reader_of_a_relocated_page_that_does_not_pin() {
    must_die("canary_a_reader_of_a_relocated_page_that_does_not_pin", "Causality violation", || compacter_and_reader(false));
}

#[test]
fn canary_a_page_that_does_not_ask_for_copies() {
    must_die("canary_a_page_that_does_not_ask_for_copies", "Causality violation", || copiers_and_new_page(false, false));
}
