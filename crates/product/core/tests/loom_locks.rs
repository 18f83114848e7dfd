//! A page that a locker has locked and touched does not leave before it is unlocked. The frame is a cell, so that loom finds an evictor that takes it out while a device uses it. What the kernel does to the locker's page
//! table, under a lock of its own, is one read-modify-write each.
#![cfg(loom)]

use farshore_core::locks::Locks;
use farshore_core::sync::AtomicU8;
use farshore_models::{explore, must_die};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

struct World {
    counts: [AtomicU8; 1],
    /// The page can be written in the locker's mapping.
    writable: AtomicBool,
    /// Who has it owns the page. Whether it is in memory.
    there: Mutex<bool>,
    frame: UnsafeCell<u32>,
}

// SAFETY: the cell is what the models are about: loom stops at an access that is not ordered with the others.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    /// `writable`: the page is dirty; else it is clean, and protected.
    fn new(writable: bool) -> Arc<World> {
        let counts = [AtomicU8::new(0)];
        let (writable, there, frame) = (AtomicBool::new(writable), Mutex::new(true), UnsafeCell::new(0));
        Arc::new(World { counts, writable, there, frame })
    }

    fn locks(&self) -> Locks<'_> {
        Locks::new(&self.counts)
    }

    /// A touch goes through, or faults. The fault is served by whoever owns the page then.
    fn touch(&self) {
        while !self.writable.fetch_or(false, Ordering::AcqRel) {
            let mut there = self.there.lock().unwrap();
            if !*there {
                // SAFETY: loom looks whether it is.
                self.frame.with_mut(|frame| unsafe { *frame = 1 });
                *there = true;
            }
            self.writable.swap(true, Ordering::AcqRel);
            drop(there);
            thread::yield_now();
        }
    }

    /// A device writes to the page that it has found.
    fn is_used(&self) {
        // SAFETY: as above.
        self.frame.with_mut(|frame| unsafe { *frame += 1 });
    }

    fn locker(&self) {
        self.locks().lock(0, 1).unwrap();
        self.touch();
        self.is_used();
        self.locks().unlock(0, 1);
    }

    fn take_out(&self, there: &mut bool) {
        if core::mem::take(there) {
            // SAFETY: as above.
            self.frame.with_mut(|frame| unsafe { *frame = 0 });
        }
    }

    fn evictor(&self) {
        let mut there = self.there.lock().unwrap();
        self.writable.swap(false, Ordering::AcqRel);
        if !self.locks().holds(0) {
            self.take_out(&mut there);
        }
    }

    /// One that looks first, and protects then.
    fn hasty_evictor(&self) {
        let mut there = self.there.lock().unwrap();
        let holds = self.locks().holds(0);
        self.writable.swap(false, Ordering::AcqRel);
        if !holds {
            self.take_out(&mut there);
        }
    }
}

fn both(writable: bool, locker: fn(&World), evictor: fn(&World)) {
    let world = World::new(writable);
    let other = Arc::clone(&world);
    let first = thread::spawn(move || locker(&world));
    let second = thread::spawn(move || evictor(&other));
    first.join().unwrap();
    second.join().unwrap();
}

#[test]
fn a_dirty_page_stays() {
    explore(3, || both(true, World::locker, World::evictor));
}

#[test]
fn a_clean_page_stays() {
    explore(3, || both(false, World::locker, World::evictor));
}

/// Two evictors, one after the other: the second one may meet the page that the first one has put back, or that has come back.
#[test]
fn a_page_stays_again() {
    let twice = |world: &World| {
        world.evictor();
        world.evictor();
    };
    explore(3, move || both(true, World::locker, twice));
}

/// Shows that the models notice: an evictor that looks at the counts before it has protected the page.
#[test]
fn canary_an_evictor_that_looks_first_is_caught() {
    must_die("canary_an_evictor_that_looks_first_is_caught", "Causality violation", || {
        both(true, World::locker, World::hasty_evictor);
    });
}

/// The same for a locker that uses the page untouched.
#[test]
fn canary_a_locker_that_does_not_touch_is_caught() {
    must_die("canary_a_locker_that_does_not_touch_is_caught", "Causality violation", || {
        let untouched = |world: &World| {
            world.locks().lock(0, 1).unwrap();
            world.is_used();
            world.locks().unlock(0, 1);
        };
        both(true, untouched, World::evictor);
    });
}
