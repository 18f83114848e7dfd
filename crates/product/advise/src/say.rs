//! Wishes that are collected until they are made all at once: neighbours of one kind become one request.

use std::collections::VecDeque;

use farshore_beside::{PAGES, REQUEST_PAGES_MAX, Reuse, Wanted};

/// Requests that wait at most. A policy that says more loses the oldest: they say least about what is to be.
const MOST: usize = 4096;

/// A request about pages side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish {
    /// What is wished.
    pub wanted: Wanted,
    /// The first page, by number.
    pub page: u64,
    /// How many.
    pub pages: u64,
}

/// Pages by what was wished of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// They leave.
    pub leave: u64,
    /// They come.
    pub come: u64,
    /// They stay, for a time or for good.
    pub stay: u64,
    /// It was said when they are expected to be used again.
    pub expected: u64,
    /// Requests that were never made, as too many waited, or there can be no such pages.
    pub lost: u64,
}

/// What a policy says.
#[derive(Debug, Default)]
pub struct Say {
    waiting: VecDeque<Wish>,
    survey: bool,
    counts: Counts,
}

impl Say {
    /// The pages leave.
    pub fn leave(&mut self, page: u64, pages: u64) {
        self.counts.leave += self.wish(Wanted::Reclaim, page, pages);
    }

    /// They come.
    pub fn come(&mut self, page: u64, pages: u64) {
        self.counts.come += self.wish(Wanted::Prefetch, page, pages);
    }

    /// They stay.
    pub fn stay(&mut self, page: u64, pages: u64) {
        self.counts.stay += self.wish(Wanted::Pin, page, pages);
    }

    /// They need not stay.
    pub fn free(&mut self, page: u64, pages: u64) {
        self.wish(Wanted::Unpin, page, pages);
    }

    /// They stay for a time.
    pub fn stay_for(&mut self, ns: u64, page: u64, pages: u64) {
        self.counts.stay += self.wish(Wanted::Protect { ns }, page, pages);
    }

    /// They are expected to be used again then.
    pub fn expect(&mut self, reuse: Reuse, page: u64, pages: u64) {
        self.counts.expected += self.wish(Wanted::Expect { reuse }, page, pages);
    }

    /// Whether the page is used in the next so many µs is to be told, by [`farshore_beside::Kind::Scanned`].
    pub fn scan(&mut self, micros: u32, page: u64) {
        self.wish(Wanted::Scan { micros, tag: 0 }, page, 1);
    }

    /// The states of all pages of the program are to be told, by events of [`farshore_beside::Kind::Pages`].
    pub fn survey(&mut self) {
        self.survey = true;
    }

    /// Whether that was said since this was asked last.
    pub fn take_survey(&mut self) -> bool {
        std::mem::take(&mut self.survey)
    }

    /// Scattered pages, which are joined where they are neighbours.
    pub fn each(&mut self, mut pages: Vec<u64>, mut wish: impl FnMut(&mut Say, u64, u64)) {
        pages.sort_unstable();
        pages.dedup();
        for run in pages.chunk_by(|a, b| a + 1 == *b) {
            wish(self, run[0], run.len() as u64);
        }
    }

    /// How many of the pages there can be: the others are not wished.
    fn wish(&mut self, wanted: Wanted, page: u64, pages: u64) -> u64 {
        if pages == 0 {
            return 0;
        }
        let pages = pages.min(PAGES.saturating_sub(page));
        if pages == 0 {
            self.counts.lost += 1;
            return 0;
        }
        if let Some(last) = self.waiting.back_mut()
            && last.wanted == wanted
            && last.page + last.pages == page
        {
            last.pages += pages;
            return pages;
        }
        if self.waiting.len() == MOST {
            self.waiting.pop_front();
            self.counts.lost += 1;
        }
        self.waiting.push_back(Wish { wanted, page, pages });
        pages
    }

    /// Makes the requests, as long as `make` takes them; the others wait. Each is made once: of a long wish that is not taken whole, only the
    /// rest waits.
    pub fn make(&mut self, mut make: impl FnMut(Wish) -> bool) {
        while let Some(wish) = self.waiting.front_mut() {
            let part = wish.pages.min(REQUEST_PAGES_MAX);
            if !make(Wish { pages: part, ..*wish }) {
                return;
            }
            (wish.page, wish.pages) = (wish.page + part, wish.pages - part);
            if wish.pages == 0 {
                self.waiting.pop_front();
            }
        }
    }

    /// What was wished so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What waits: for tests.
    #[cfg(test)]
    pub fn all(&mut self) -> Vec<Wish> {
        self.waiting.drain(..).collect()
    }

    /// The pages of one kind of wish that wait: for tests.
    #[cfg(test)]
    pub fn pages_of(&mut self, wanted: Wanted) -> Vec<u64> {
        self.all().into_iter().filter(|wish| wish.wanted == wanted).flat_map(|wish| wish.page..wish.page + wish.pages).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_joined_and_the_order_is_kept() {
        let mut say = Say::default();
        say.come(4, 2);
        say.come(6, 1);
        say.leave(7, 1);
        say.come(8, 0);
        say.come(7, 1);
        let wish = |wanted, page, pages| Wish { wanted, page, pages };
        assert_eq!(say.all(), [wish(Wanted::Prefetch, 4, 3), wish(Wanted::Reclaim, 7, 1), wish(Wanted::Prefetch, 7, 1)]);
        assert_eq!(say.counts(), Counts { leave: 1, come: 4, ..Counts::default() });
    }

    #[test]
    fn what_is_not_taken_waits_and_the_oldest_is_lost() {
        let mut say = Say::default();
        (0..MOST as u64 + 3).for_each(|n| say.leave(n * 2, 1));
        assert_eq!(say.counts().lost, 3);
        let mut taken = Vec::new();
        say.make(|wish| {
            taken.push(wish.page);
            taken.len() < 3
        });
        assert_eq!(taken, [6, 8, 10]);
        assert_eq!(say.all()[0].page, 10, "the third was not taken");
    }

    #[test]
    fn a_long_wish_goes_on_where_it_was_not_taken() {
        let mut say = Say::default();
        say.come(7, 5 * REQUEST_PAGES_MAX / 2);
        say.leave(1, 1);
        let mut taken = Vec::new();
        for room in [1, 0, 1, 2, 9] {
            let mut left = room;
            say.make(|wish| {
                let takes = left > 0;
                if takes {
                    left -= 1;
                    taken.push((wish.page, wish.pages));
                }
                takes
            });
        }
        assert_eq!(
            taken,
            [
                (7, REQUEST_PAGES_MAX),
                (7 + REQUEST_PAGES_MAX, REQUEST_PAGES_MAX),
                (7 + 2 * REQUEST_PAGES_MAX, REQUEST_PAGES_MAX / 2),
                (1, 1)
            ]
        );
    }

    #[test]
    fn of_pages_that_cannot_be_nothing_waits() {
        let mut say = Say::default();
        say.come(PAGES - 2, u64::MAX);
        say.stay(PAGES, 3);
        say.leave(u64::MAX, u64::MAX);
        assert_eq!(say.counts(), Counts { come: 2, lost: 2, ..Counts::default() });
        assert_eq!(say.all(), [Wish { wanted: Wanted::Prefetch, page: PAGES - 2, pages: 2 }]);
    }

    #[test]
    fn scattered_pages_become_runs() {
        let mut say = Say::default();
        say.each(vec![9, 3, 4, 5, 4], Say::leave);
        assert_eq!(say.pages_of(Wanted::Reclaim), [3, 4, 5, 9]);
    }
}
