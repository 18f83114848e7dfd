//! A slot of a space that is kept twice, while one of the copies is repaired. The copy that is repaired is a cell, so that loom finds two writes at a time,
//! and a read beside a write. (The other one may be written while it is read for a repair, which then does not count.)
#![cfg(loom)]

use farshore_core::copies::{CopySet, SlotCopies};
use farshore_models::explore;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use loom::thread;

const BOTH: CopySet = 0b11;

/// A slot, and what its copies hold.
struct Space {
    slot: SlotCopies,
    first: AtomicU32,
    second: UnsafeCell<u32>,
}

impl Space {
    /// A page that only the first copy has.
    fn degraded() -> Space {
        let space = Space { slot: SlotCopies::new(), first: AtomicU32::new(1), second: UnsafeCell::new(0) };
        let _ = space.slot.begin_write();
        space.slot.end_write(0b01);
        space
    }

    fn put(&self, copy: usize, version: u32) {
        match copy {
            0 => self.first.store(version, Ordering::Relaxed),
            // SAFETY: loom finds an access at the same time.
            _ => self.second.with_mut(|it| unsafe { *it = version }),
        }
    }

    fn get(&self, copy: usize) -> u32 {
        match copy {
            0 => self.first.load(Ordering::Relaxed),
            // SAFETY: as above.
            _ => self.second.with(|it| unsafe { *it }),
        }
    }

    /// Both copies are up. The one that is repaired is the second.
    fn write(&self, version: u32) {
        let to = if self.slot.begin_write() { 0b01 } else { BOTH };
        (0..2).filter(|copy| to >> copy & 1 != 0).for_each(|copy| self.put(copy, version));
        self.slot.end_write(to);
    }

    fn repair(&self) {
        if let Some(stale) = self.slot.begin_copy(1, BOTH) {
            assert_eq!(stale & BOTH, 0b10);
            self.put(1, self.get(0));
            self.slot.end_copy(1, true);
        }
    }

    /// What each copy has that is not stale.
    fn check(&self, version: u32) {
        let stale = self.slot.stale() & BOTH;
        assert_ne!(stale, BOTH);
        (0..2).filter(|copy| stale >> copy & 1 == 0).for_each(|copy| assert_eq!(self.get(copy), version, "copy {copy}"));
    }
}

#[test]
fn a_copy_that_counts_has_what_was_written_last() {
    explore(3, || {
        let space = Arc::new(Space::degraded());
        let repairer = {
            let space = space.clone();
            thread::spawn(move || {
                space.repair();
                space.repair();
            })
        };
        space.write(2);
        space.check(2);
        space.write(3);
        space.check(3);
        repairer.join().unwrap();
        space.check(3);
        space.repair();
        assert_eq!(space.slot.stale() & BOTH, 0);
        space.check(3);
    });
}

#[test]
fn a_slot_is_given_back_when_no_repair_is_under_way() {
    explore(3, || {
        let space = Arc::new(Space::degraded());
        let repairer = {
            let space = space.clone();
            thread::spawn(move || space.repair())
        };
        if space.slot.forget().is_some() {
            // It belongs to somebody else now.
            space.put(0, 7);
            space.put(1, 7);
        }
        repairer.join().unwrap();
    });
}

/// Copies that are exchanged: the first goes, and the second stays. What the queues of a mirror and the one who exchanges share.
struct Exchange {
    slot: SlotCopies,
    pages: [AtomicU32; 2],
    going: AtomicBool,
    life: AtomicU32,
    /// Odd while the writer counts.
    counting: AtomicU32,
    gone: AtomicBool,
}

impl Exchange {
    fn new() -> Exchange {
        let slot = SlotCopies::new();
        let _ = slot.begin_write();
        slot.end_write(BOTH);
        let pages = [AtomicU32::new(1), AtomicU32::new(1)];
        let (life, counting) = (AtomicU32::new(0), AtomicU32::new(0));
        Exchange { slot, pages, going: AtomicBool::new(false), life, counting, gone: AtomicBool::new(false) }
    }

    /// Of copies that take it all the same (`able`). Whether it is acknowledged.
    fn write(&self, version: u32, able: CopySet) -> bool {
        let _ = self.slot.begin_write();
        let life = self.life.load(Ordering::SeqCst);
        let to = able & if self.going.load(Ordering::SeqCst) { 0b10 } else { BOTH };
        (0..2).filter(|copy| to >> copy & 1 != 0).for_each(|copy| self.pages[copy].store(version, Ordering::Relaxed));
        self.counting.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let right = if self.life.load(Ordering::SeqCst) == life { to } else { to & 0b10 };
        self.slot.end_write(right);
        self.counting.store(2, Ordering::Release);
        right != 0
    }

    /// The first copy is taken away, if the other one has all.
    fn take_away(&self) {
        self.going.store(true, Ordering::SeqCst);
        self.life.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.counting.load(Ordering::SeqCst) == 1 {
            while self.counting.load(Ordering::Acquire) == 1 {
                thread::yield_now();
            }
        }
        match self.slot.retire(0, 0b10) {
            Some(_) => self.gone.store(true, Ordering::SeqCst),
            None => return self.going.store(false, Ordering::SeqCst),
        }
        // Another copy has the place from now on. At no time is it said to have the page: it could be read there, or a repair copy it from there.
        for _ in 0..2 {
            assert_eq!(self.slot.stale() & 1, 1, "a copy that has come has a page that nobody has written there");
            assert!(self.slot.begin_copy(1, 0b01).is_none(), "a repair copies from a copy that has nothing");
            thread::yield_now();
        }
    }
}

/// As [`a_copy_goes_and_no_page_with_it`]; `able`: which copies take the write.
fn exchange(able: CopySet) {
    explore(3, move || {
        let it = Arc::new(Exchange::new());
        let taker = {
            let it = it.clone();
            thread::spawn(move || it.take_away())
        };
        let acknowledged = it.write(2, able);
        taker.join().unwrap();
        let right = !it.slot.stale() & BOTH;
        if it.gone.load(Ordering::SeqCst) {
            assert_eq!(right & 1, 0, "it is gone, and would be read");
        }
        if acknowledged {
            assert_ne!(right, 0, "a page that was acknowledged is nowhere");
        }
        let version = if acknowledged { 2 } else { 1 };
        for copy in (0..2).filter(|copy| acknowledged && right >> copy & 1 != 0) {
            assert_eq!(it.pages[copy].load(Ordering::Relaxed), version, "copy {copy}");
        }
    });
}

#[test]
fn a_copy_goes_and_no_page_with_it() {
    exchange(BOTH);
}

#[test]
fn a_copy_goes_while_the_other_one_takes_nothing() {
    exchange(0b01);
}
