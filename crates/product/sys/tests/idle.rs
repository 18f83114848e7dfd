//! Idle page tracking on the real kernel, where it has it and shows frames: a used page is never told as unused, nor most unused ones as used.

mod common;

use common::{PAGE, install_fixup, managed, map_pages, pointer};
use farshore_core::page::{Page, PageRange};
use farshore_core::seams::{Use, Watched};
use farshore_sys::idle::{Lack, Tracking};
use farshore_sys::pagemap::{Categories, Pagemap, Query, Region};
use farshore_sys::uffd::UffdOptions;
use farshore_sys::vm::{self, advice};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const PAGES: u64 = 256;

fn write(page: Page) {
    // SAFETY: scratch memory of the test.
    unsafe { pointer(page.addr()).write_volatile(1) };
}

fn read(page: Page) {
    // SAFETY: scratch memory of the test.
    unsafe { pointer(page.addr()).read_volatile() };
}

/// Marks the pages of `range`. `None`: this kernel, or user, has it not, which is said.
fn marked(tracking: &Tracking, range: PageRange, alone: bool) -> Option<Vec<Watched>> {
    let mut pages: Vec<Watched> = range.iter().map(|page| Watched { page, mark: 0 }).collect();
    match tracking.mark(&mut pages, alone) {
        Ok(()) => Some(pages),
        Err(lack) => {
            println!("skipped: {lack}");
            None
        }
    }
}

fn uses(tracking: &Tracking, pages: &[Watched]) -> Vec<Use> {
    let mut uses = vec![Use::Unknown; pages.len()];
    tracking.noted(pages, &mut uses);
    uses
}

/// Scratch pages that are there, and that the kernel has on its lists: it puts them there some at a time.
fn filled(pages: u64) -> PageRange {
    let range = map_pages(pages + 64);
    range.iter().for_each(write);
    PageRange { start: range.start, end: range.start.plus(pages) }
}

#[test]
fn used_pages_are_told_from_unused_ones() {
    let (tracking, range) = (Tracking::new(), filled(PAGES));
    for round in 0..3 {
        let Some(pages) = marked(&tracking, range, true) else { return };
        assert!(tracking.settle());
        let known = pages.iter().filter(|watched| watched.mark != 0).count();
        assert!(known as u64 > PAGES / 2, "{known} of {PAGES} pages can be watched");
        let is_used = |n: usize| n % 3 == round;
        pages
            .iter()
            .enumerate()
            .filter(|(n, _)| is_used(*n))
            .for_each(|(n, it)| if n % 2 == 0 { read(it.page) } else { write(it.page) });
        let (mut wrong, told) = (0, uses(&tracking, &pages));
        for (n, (watched, used)) in pages.iter().zip(told).enumerate() {
            if watched.mark == 0 {
                assert_eq!(used, Use::Unknown);
            } else if is_used(n) {
                assert!(matches!(used, Use::Used | Use::Unknown), "page {n} was used and is {used:?}");
            } else {
                wrong += usize::from(used != Use::Unused);
            }
        }
        assert!(wrong * 10 <= known, "{wrong} of {known} pages that were not used are told as used");
    }
}

#[test]
fn what_a_processor_has_in_its_tlb_is_seen() {
    let (tracking, range, over, laps) = (Tracking::new(), filled(8), AtomicBool::new(false), AtomicU64::new(0));
    let told: Vec<Vec<Use>> = std::thread::scope(|scope| {
        scope.spawn(|| {
            // A few pages alone, which no other access drives out of any TLB.
            while !over.load(Ordering::Relaxed) {
                range.iter().for_each(write);
                laps.fetch_add(1, Ordering::Relaxed);
            }
        });
        let round = || {
            let pages = marked(&tracking, range, true)?;
            let (settled, before) = (tracking.settle(), laps.load(Ordering::Relaxed));
            std::thread::sleep(Duration::from_millis(20));
            // It has used all of them since, also where it gets little of a processor.
            while laps.load(Ordering::Relaxed) < before + 2 {
                std::thread::sleep(Duration::from_millis(1));
            }
            Some(if settled { uses(&tracking, &pages) } else { vec![Use::Unused] })
        };
        let told = (0..20).map_while(|_| round()).collect();
        over.store(true, Ordering::Relaxed);
        told
    });
    assert!(told.iter().flatten().all(|used| *used != Use::Unused), "pages that are used all the time: {told:?}");
}

#[test]
fn a_page_that_left_and_came_back_is_not_told_as_unused() {
    let (tracking, range) = (Tracking::new(), filled(PAGES));
    let Some(pages) = marked(&tracking, range, true) else { return };
    assert!(tracking.settle());
    let half = PageRange { start: range.start, end: range.start.plus(PAGES / 2) };
    // SAFETY: scratch memory.
    unsafe { vm::madvise(half.start.addr(), half.bytes(), advice::DONTNEED) }.unwrap();
    // They get frames that have just become free.
    PageRange { start: half.start.plus(8), end: half.end }.iter().for_each(write);
    let told = uses(&tracking, &pages);
    assert!(told[..PAGES as usize / 2].iter().all(|used| *used != Use::Unused), "{told:?}");
    assert!(told[..8].iter().all(|used| *used == Use::Unknown), "those that are away: {told:?}");
    assert!(told[PAGES as usize / 2..].contains(&Use::Unused));
}

#[test]
fn pages_behind_a_userfaultfd_are_seen() {
    install_fixup();
    let Some(uffd) = common::open(UffdOptions::UPCALL) else { return };
    let (tracking, range) = (Tracking::new(), managed(&uffd, PAGES));
    // Write-protected, as clean pages are.
    range.iter().for_each(|page| common::copy(&uffd, page, 7, true).unwrap());
    filled(64);
    let Some(pages) = marked(&tracking, range, true) else { return };
    assert!(tracking.settle() && pages.iter().filter(|watched| watched.mark != 0).count() as u64 > PAGES / 2);
    pages.iter().step_by(2).for_each(|watched| assert_eq!(common::read(watched.page.addr()), Ok(7)));
    // What an evictor does to a neighbour is no use.
    uffd.protect(range.start.addr(), range.bytes()).unwrap();
    let told = uses(&tracking, &pages);
    assert!(told.iter().step_by(2).all(|used| *used != Use::Unused), "{told:?}");
    let unused = told.iter().skip(1).step_by(2).filter(|used| **used == Use::Unused).count() as u64;
    assert!(unused > PAGES / 4, "{unused} of {} are told as unused", PAGES / 2);
}

#[test]
fn a_huge_page_is_one() {
    let (tracking, range) = (Tracking::new(), map_pages(512));
    // SAFETY: changes no byte.
    unsafe { vm::madvise(range.start.addr(), range.bytes(), advice::HUGEPAGE) }.unwrap();
    range.iter().for_each(write);
    let query = Query { all: Categories::HUGE, report: Categories::HUGE, ..Query::default() };
    let (start, end) = (range.start.addr(), range.end.addr());
    if Pagemap::open().and_then(|pagemap| pagemap.scan(start, end, query, &mut [Region::default()])).map(|found| found.0) != Ok(1)
    {
        return println!("skipped: no huge page came");
    }
    let some = PageRange { start: range.start.plus(100), end: range.start.plus(110) };
    let Some(pages) = marked(&tracking, some, false) else { return };
    assert!(pages.iter().all(|watched| watched.mark == 0), "another scan may look at other pages of it");
    let Some(pages) = marked(&tracking, some, true) else { return };
    if pages.iter().any(|watched| watched.mark == 0) {
        return println!("skipped: the huge page is on no list of the kernel's yet");
    }
    assert!(tracking.settle());
    assert_eq!(uses(&tracking, &pages), [Use::Unused; 10]);
    read(range.start.plus(400));
    assert_eq!(uses(&tracking, &pages), [Use::Used; 10]);
    let Some(pages) = marked(&tracking, some, true) else { return };
    assert!(tracking.settle());
    // The kernel splits it: the flag that was marked tells of its first page alone from now on.
    // SAFETY: changes no byte.
    unsafe { vm::madvise(range.start.addr(), PAGE, advice::COLD) }.unwrap();
    some.iter().for_each(read);
    let told = uses(&tracking, &pages);
    assert!(!told.contains(&Use::Unused), "pages that were used: {told:?}");
}

#[test]
fn an_ordinary_user_does_not_see_frames() {
    // SAFETY: reads a number.
    let user = unsafe { farshore_sys::raw::syscall(farshore_sys::raw::nr::GETUID, [0; 6]) };
    if user != 0 {
        let lack = Tracking::new().mark(&mut [Watched { page: filled(1).start, mark: 0 }], true);
        assert!(matches!(lack, Err(Lack::File(..) | Lack::Frames)), "{lack:?}");
    }
}

#[test]
fn again_as_nobody() {
    common::again_as_nobody();
}
