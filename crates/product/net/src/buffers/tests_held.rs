//! Calls that end in a way that nobody told us of.

use super::*;
use farshore_core::page::{Page, PageRange};

/// A set in a place of its own, as in a stack frame. The caller overwrites it to let the frame be gone.
fn frame(held: &Held, pages: &[u64], unpinned: &mut Vec<u64>) -> Box<PinSet> {
    let mut set = Box::new(PinSet::new());
    for &page in pages {
        assert!(set.push_page(Page(page)));
        held.note(&mut set, |page| unpinned.push(page.0));
    }
    set
}

/// What a jump and later calls make of a frame.
fn overwrite(set: &mut Box<PinSet>) {
    **set = PinSet::new();
}

#[test]
fn what_a_call_has_left_is_unpinned_by_a_later_one() {
    let (held, mut unpinned) = (Held::new(), Vec::new());
    let mut left = frame(&held, &[7, 8, 20], &mut unpinned);
    overwrite(&mut left);
    assert!(unpinned.is_empty());
    let mut later = frame(&held, &[100], &mut unpinned);
    assert_eq!(unpinned, [7, 8, 20]);
    assert!(Held::give_back(&mut later));
    // Once.
    let mut last = frame(&held, &[101], &mut unpinned);
    assert!(Held::give_back(&mut last));
    assert_eq!(unpinned.len(), 3);
}

#[test]
fn what_a_living_call_holds_stays() {
    let (held, mut unpinned) = (Held::new(), Vec::new());
    let mut outer = frame(&held, &[1, 2], &mut unpinned);
    for round in 0..100 {
        let mut handler = frame(&held, &[1000 + round], &mut unpinned);
        let mut nested = frame(&held, &[2000 + round], &mut unpinned);
        assert!(Held::give_back(&mut nested));
        assert!(Held::give_back(&mut handler));
    }
    assert!(Held::give_back(&mut outer));
    assert!(unpinned.is_empty());
}

#[test]
fn a_call_that_was_left_under_others_is_found_when_its_frame_goes() {
    let (held, mut unpinned) = (Held::new(), Vec::new());
    let mut outer = frame(&held, &[1], &mut unpinned);
    let mut handler = frame(&held, &[50], &mut unpinned);
    // The handler jumps over both calls. The memory of the outer one is used again first.
    overwrite(&mut outer);
    let mut later = frame(&held, &[60], &mut unpinned);
    assert!(Held::give_back(&mut later));
    assert_eq!(unpinned, [1]);
    overwrite(&mut handler);
    let mut last = frame(&held, &[61], &mut unpinned);
    assert!(Held::give_back(&mut last));
    assert_eq!(unpinned, [1, 50]);
}

#[test]
fn a_frame_that_comes_back_does_not_unpin_again() {
    let (held, mut unpinned) = (Held::new(), Vec::new());
    let mut set = frame(&held, &[5], &mut unpinned);
    // SAFETY: plain data; the copy is put back below.
    let copy = unsafe { core::ptr::read(&raw const *set) };
    overwrite(&mut set);
    let mut other = frame(&held, &[6], &mut unpinned);
    assert_eq!(unpinned, [5]);
    // As programs do that copy stacks away and back.
    *set = copy;
    assert!(!Held::give_back(&mut set), "its page is unpinned already");
    assert!(Held::give_back(&mut other));
}

#[test]
fn what_does_not_fit_is_not_remembered() {
    let (held, mut unpinned) = (Held::new(), Vec::new());
    let many: Vec<u64> = (0..30).map(|n| n * 2).collect();
    let mut left = frame(&held, &many, &mut unpinned);
    overwrite(&mut left);
    // More calls at once than there is room for.
    let mut deep: Vec<_> = (0..20).map(|n| frame(&held, &[n], &mut unpinned)).collect();
    assert!(deep.iter_mut().all(|set| Held::give_back(set)));
    assert!(unpinned.is_empty());
}

#[test]
fn the_end_of_a_thread_unpins_all() {
    let (held, mut unpinned) = (Held::new(), Vec::new());
    let _left = frame(&held, &[5], &mut unpinned);
    let _also = frame(&held, &[9, 10], &mut unpinned);
    held.release_all(|page| unpinned.push(page.0));
    assert_eq!(unpinned, [5, 9, 10]);
}

#[test]
fn a_range_is_remembered_as_a_set_is() {
    let (held, mut unpinned) = (Held::new(), Vec::new());
    let range = PageRange { start: Page(7), end: Page(9) };
    let mut ticket = Box::new(Ticket::NONE);
    assert!(held.note_range(&mut ticket, range));
    let mut pages = Vec::new();
    held.each(|page| pages.push(page.0));
    assert_eq!(pages, [7, 8]);
    // One at a time; sets take the next slots.
    let mut second = Box::new(Ticket::NONE);
    assert!(!held.note_range(&mut second, range));
    assert!(second.give_back(), "it has remembered nothing");
    let mut set = frame(&held, &[100], &mut unpinned);
    assert!(Held::give_back(&mut set));
    assert!(ticket.give_back());
    // Left by a jump: found by the next call, which is a set.
    assert!(held.note_range(&mut ticket, range));
    *ticket = Ticket::NONE;
    assert!(!held.note_range(&mut second, range));
    let mut set = frame(&held, &[101], &mut unpinned);
    assert_eq!(unpinned, [7, 8]);
    assert!(Held::give_back(&mut set));
}

#[test]
fn pins_that_are_on_their_way_are_not_complete() {
    let held = Held::new();
    assert!(held.is_complete());
    held.announce();
    assert!(!held.is_complete());
    // A handler's own calls come and go.
    held.announce();
    held.settle();
    assert!(!held.is_complete());
    held.settle();
    assert!(held.is_complete());
}

/// The kept buffer, as each thread has one for a moment; then the numbers of threads that may keep one are as before.
#[test]
fn a_buffer_stays_pinned_once_two_calls_have_used_it() {
    let (held, one, two) = (Held::new(), PageRange { start: Page(7), end: Page(8) }, PageRange { start: Page(7), end: Page(9) });
    let other = PageRange { start: Page(20), end: Page(22) };
    let remembered = || {
        let mut pages = Vec::new();
        held.each(|page| pages.push(page.0));
        pages
    };
    assert!(!held.borrow(one));
    assert_eq!((held.keep(one), held.is_keeper()), (Some(one), false), "the first call unpins its page");
    assert_eq!((held.keep(one), held.is_keeper()), (None, true));
    assert_eq!(remembered(), [7]);
    // One page is not two, and nobody else's.
    assert!(!held.borrow(two) && !held.borrow(other));
    // While a call goes by the pins, a handler on top neither borrows them, nor keeps another buffer.
    assert!(held.borrow(one) && !held.borrow(one));
    assert_eq!((held.keep(other), held.keep(other)), (Some(other), Some(other)));
    held.give_back_kept();
    assert_eq!(remembered(), [7]);
    // Pinned once more because the page was away: one pin is too many.
    assert_eq!((held.keep(one), held.keep(one)), (Some(one), Some(one)));
    // Another buffer takes its place.
    assert_eq!((held.keep(other), held.keep(other)), (Some(other), Some(one)));
    assert_eq!(remembered(), [20, 21]);
    assert!(!held.borrow(one) && held.borrow(other));
    // The thread ends, in the middle of a call.
    let mut unpinned = Vec::new();
    held.release_all(|page| unpinned.push(page.0));
    assert_eq!((unpinned, held.is_keeper(), remembered()), (vec![20, 21], false, vec![]));
}

#[test]
fn a_guests_thread_keeps_no_buffer() {
    let (held, one) = (Held::new(), PageRange { start: Page(7), end: Page(8) });
    held.keep_nothing();
    for _ in 0..3 {
        assert!(!held.borrow(one));
        assert_eq!((held.keep(one), held.is_keeper()), (Some(one), false));
    }
}
