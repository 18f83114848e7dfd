//! Prefetchers against a memory in which every page is out, and pages that were asked for come before the next access.

extern crate std;

use super::{BuiltIn, Prefetchers};
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicU64, Ordering};
use farshore_core::limits::GRANULE_PAGES;
use farshore_core::page::{GranuleId, Page};
use farshore_core::seams::{Ahead, Fetch, Prefetcher};
use std::collections::HashSet;
use std::vec::Vec;

const GRANULES: usize = 64;

struct World {
    prefetcher: Prefetchers,
    notes: Vec<[AtomicU64; 2]>,
    resident: RefCell<HashSet<u64>>,
    faults: Cell<u32>,
    asked: Cell<u32>,
    used: Cell<u32>,
    /// Pages that are asked for do not come.
    deaf: bool,
    /// The program has said that it goes through its memory in order.
    told: bool,
}

struct At<'w> {
    world: &'w World,
    page: Page,
    core: usize,
}

impl Fetch for At<'_> {
    fn page(&self) -> Page {
        self.page
    }

    fn core(&self) -> usize {
        self.core
    }

    fn notes(&self, granule: GranuleId) -> Option<&[AtomicU64; 2]> {
        self.world.notes.get(granule.0 as usize)
    }

    fn is_out(&self, page: Page) -> bool {
        page.0 < (GRANULES * GRANULE_PAGES) as u64 && !self.world.resident.borrow().contains(&page.0)
    }

    fn take(&self, neighbours: i32) -> u32 {
        let step = i64::from(neighbours.signum());
        let mut taken = 0;
        while taken < neighbours.unsigned_abs() {
            let page = Page(self.page.0.wrapping_add_signed(step * i64::from(taken + 1)));
            if !self.is_out(page) || page.granule() != self.page.granule() {
                break;
            }
            self.world.bring(page);
            taken += 1;
        }
        taken
    }

    fn is_sequential(&self) -> bool {
        self.world.told
    }

    fn in_stream(&self) {}

    fn count_used(&self, pages: u32) {
        self.world.used.set(self.world.used.get() + pages);
    }
}

impl World {
    fn new(name: &str) -> World {
        let note = || [AtomicU64::new(0), AtomicU64::new(0)];
        World {
            prefetcher: Prefetchers::new(BuiltIn::named(name).expect("it is known")),
            notes: (0..GRANULES).map(|_| note()).collect(),
            resident: RefCell::default(),
            faults: Cell::new(0),
            asked: Cell::new(0),
            used: Cell::new(0),
            deaf: false,
            told: false,
        }
    }

    fn bring(&self, page: Page) {
        self.asked.set(self.asked.get() + 1);
        self.resident.borrow_mut().insert(page.0);
    }

    fn touch(&self, page: u64, core: usize) {
        if !self.resident.borrow_mut().insert(page) {
            return;
        }
        self.faults.set(self.faults.get() + 1);
        let ahead = self.prefetcher.fetch(&At { world: self, page: Page(page), core });
        if let Some(Ahead { first, step, pages }) = ahead.filter(|_| !self.deaf) {
            for n in 0..i64::from(pages) {
                let Some(page) = first.0.checked_add_signed(i64::from(step) * n) else { break };
                if (At { world: self, page: Page(page), core }).is_out(Page(page)) {
                    self.bring(Page(page));
                }
            }
        }
    }

    /// Touches these pages in order; returns how many faults that took.
    fn faults_of(&self, pages: impl IntoIterator<Item = u64>) -> u32 {
        let before = self.faults.get();
        pages.into_iter().for_each(|page| self.touch(page, 0));
        self.faults.get() - before
    }
}

#[test]
fn a_stream_that_is_told_of_begins_at_once() {
    let faults = |told| World { told, ..World::new("sequential") }.faults_of(100..100 + 1000);
    // The first window, which also asks for what follows; from then on markers.
    assert!(faults(true) <= 6 && faults(true) + 4 < faults(false), "{} faults, {} untold", faults(true), faults(false));
    for name in ["stride", "majority", "none"] {
        let [told, untold] = [true, false].map(|told| World { told, ..World::new(name) }.faults_of(100..164));
        assert!(if name == "none" { told == 64 } else { told < untold }, "{name}: {told} faults, {untold} untold");
    }
}

#[test]
fn a_stream_faults_at_its_markers_alone() {
    for pages in [(0..8000).collect::<Vec<u64>>(), (8000..16000).rev().collect()] {
        let world = World::new("sequential");
        let faults = world.faults_of(pages);
        assert!(faults <= 8000 / 253 + 16, "{faults} faults");
        // Pages beyond the last one were asked for in vain.
        assert!(world.used.get() + 2 * 256 > world.asked.get(), "{} of {}", world.used.get(), world.asked.get());
    }
}

#[test]
fn a_stream_goes_on_where_what_it_asked_for_does_not_come() {
    let world = World { deaf: true, ..World::new("sequential") };
    let faults = world.faults_of(0..8000);
    // A window of its own after each marker.
    assert!(faults <= 2 * 8000 / 64 + 40, "{faults} faults");
}

#[test]
fn long_jumps_are_no_stream() {
    let world = World::new("sequential");
    assert_eq!(world.faults_of((0..32_000).step_by(10)), 3200);
    assert_eq!(world.asked.get(), 0);
}

#[test]
fn two_streams_in_one_granule() {
    let world = World::new("sequential");
    let both = (0..256).flat_map(|n| [n, 511 - n]);
    let faults = world.faults_of(both);
    assert!(faults < 40, "{faults} faults");
}

#[test]
fn single_pages_bring_nothing() {
    for name in BuiltIn::ALL.map(BuiltIn::name) {
        let world = World::new(name);
        let mut page = 1;
        for _ in 0..2000 {
            page = page * 5 % 32749;
            world.touch(page, 0);
        }
        // Of 30 pages in a granule, some are near each other by chance.
        let asked = world.asked.get();
        assert!(asked < 400, "{name}: {asked} pages for nothing");
    }
}

#[test]
fn strides_are_followed() {
    for name in ["stride", "majority"] {
        for step in [-7_i64, -1, 2, 3, 16, 100] {
            let world = World::new(name);
            let pages = (0..300).map(|n| (15_000 + step * n) as u64).filter(|&page| page < 32_000);
            let (count, faults) = (pages.clone().count() as u32, world.faults_of(pages));
            // `stride` learns anew in each region, of 2,048 pages, which a trail leaves unless a window reaches over.
            assert!(faults < 20 + count / 12, "{name}, step {step}: {faults} faults of {count} pages");
        }
    }
}

#[test]
fn threads_that_take_turns() {
    // Three threads on one core, each with its own step, and now and then a fault that belongs to none.
    let pages = |n: u64| [1000 + 3 * n, 12_000 - 2 * n, 20_000 + 5 * n];
    let noise = |n: u64| n.is_multiple_of(16).then_some(31_000 + n * 37 % 1500);
    let mix = || (0..400).flat_map(move |n| pages(n).into_iter().chain(noise(n)));
    for name in ["stride", "majority"] {
        let world = World::new(name);
        let faults = world.faults_of(mix());
        assert!(faults < 250, "{name}: {faults} faults of 1225 pages");
    }
    // Without a prefetcher each page is a fault.
    assert!(World::new("none").faults_of(mix()) >= 1200);
}

#[test]
fn disturbed_strides_are_the_majoritys() {
    // Every third fault is elsewhere in the same region: two equal steps in a row never come.
    let mix = |n: u64| [Some(2048 + 4 * n), n.is_multiple_of(2).then_some(2048 + 1999 - n * 7 % 150)];
    let faults = |name: &str| World::new(name).faults_of((0..400).flat_map(mix).flatten());
    let [none, stride, majority] = ["none", "stride", "majority"].map(faults);
    assert!(majority < none * 3 / 4 && majority < stride, "{none} faults, {stride} with strides, {majority} with the majority");
}

/// A choice that changes to and fro while a program goes on: what one prefetcher remembers is a hint to itself, and old by the time that it comes
/// back. Whatever lies in the notes of granules is borne too.
#[test]
fn any_of_them_may_follow_any_other() {
    let mut rng = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        rng
    };
    for _ in 0..200 {
        let world = World::new("none");
        world.notes.iter().flatten().for_each(|note| note.store(next() & next(), Ordering::Relaxed));
        let (mut page, pages) = (0, (GRANULES * GRANULE_PAGES) as u64);
        for _ in 0..2000 {
            if next().is_multiple_of(16) {
                world.prefetcher.choose(BuiltIn::ALL[next() as usize % 4]);
                page = next() % pages;
            }
            page = [page + 1, page.wrapping_sub(1), page + 7, page][next() as usize % 4] % pages;
            world.resident.borrow_mut().remove(&(next() % pages));
            world.touch(page, next() as usize % 4);
        }
    }
    // One that is chosen again goes on as it would have.
    let world = World::new("stride");
    world.faults_of((0..30).map(|n| 15_000 + 3 * n));
    world.prefetcher.choose(BuiltIn::None);
    let (faults, asked) = (world.faults_of((0..100).map(|n| 25_000 + n)), world.asked.get());
    assert_eq!(faults, 100);
    world.prefetcher.choose(BuiltIn::Stride);
    assert!(world.faults_of((30..130).map(|n| 15_000 + 3 * n)) < 10 && world.asked.get() > asked);
}
