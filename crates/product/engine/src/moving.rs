//! The range that a page move fills: there, *untouched* does not mean zeros yet.
//!
//! One thread writes this, under the address-space lock, and sets it before the words can be seen. So a fault that has taken such a
//! word (an acquire) sees it too, and lets go of the page: the access is tried again and finds out what is there.

use core::sync::atomic::Ordering;
use farshore_core::canary::{Canary, is_planted};
use farshore_core::page::{Page, PageRange};
use farshore_core::sync::Padded;
use farshore_core::sync::plain::AtomicU64;

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Moving(Padded<Range>);

/// Pages; `end` is 0 while there is no move. First touches read it: it has a line of its own.
#[derive(Debug, Default)]
struct Range {
    start: AtomicU64,
    end: AtomicU64,
}

impl Moving {
    /// A move to `range` begins: to be called before its pages are managed.
    pub(crate) fn begin(&self, range: PageRange) {
        self.0.start.store(range.start.0, Ordering::Release);
        self.0.end.store(range.end.0, Ordering::Release);
    }

    /// All words of the range are set.
    pub(crate) fn end(&self) {
        self.0.end.store(0, Ordering::Release);
    }

    /// Whether a move to `page` is under way.
    #[inline]
    pub(crate) fn contains(&self, page: Page) -> bool {
        !is_planted(Canary::Moving)
            && page.0 < self.0.end.load(Ordering::Acquire)
            && self.0.start.load(Ordering::Acquire) <= page.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_moving_from_the_begin_of_its_range_to_the_end_of_the_move() {
        let (moving, range) = (Moving::default(), PageRange { start: Page(10), end: Page(12) });
        assert!(!moving.contains(Page(0)) && !moving.contains(Page(10)));
        moving.begin(range);
        assert_eq!([9, 10, 11, 12].map(|page| moving.contains(Page(page))), [false, true, true, false]);
        moving.end();
        assert!(range.iter().all(|page| !moving.contains(page)));
    }
}
