//! For how long a page stays that has come back soon twice.
//!
//! Such a page gets the most chances ([`Came::ReturnedAgain`](farshore_core::seams::Came::ReturnedAgain)). The first of them it loses in its *turn* alone: all memory leaves
//! once, twice, and so on, and of so many times, a power of two, one is the page's, by its number. So a hand that goes round fast among pages that stay takes no more from
//! them than one that goes slowly.
//!
//! # How seldom turns come
//!
//! Turns that come seldom keep what is always used: where half of memory holds such pages, one turn in 128 reads a sixth less than each look does. But where
//! the program then turns to other pages, the old ones stay for as long, and up to a third more is read. So whoever had its turn and has left is a *test*. A page that is worth
//! more than others comes back soon more often than whatever else leaves: if tests do by a third more, turns come half as often, else twice as often. That the comparison is
//! with others matters: which part comes back soon depends on stages, in which those that come back soonest are found, and when a program turns to other pages, it is those that come back.
//!
//! ```text
//!   comes back soon ─▶ and again ─▶ stays until its turn ─▶ its other chances ─▶ leaves: a test ─┬─▶ comes back soon: it should have stayed
//!                                           ▲                                                  └─▶ does not
//!                                           └──────────────── how seldom? ◀─────────────────────────┘
//! ```
//!
//! # How many stay
//!
//! Pages that leave must come from somewhere. For each that leaves an evictor passes at most [`SPARED_A_VICTIM`] over that have the most chances and not their turn; others lose one. So all of memory may
//! stay until its turn, and still an evictor finds pages without going round for long.
//!
//! Tests are counted by evictors. Faults count pages that come back, each core for itself. All of it is hints.

use crate::stats::{Count, Stats};
use core::sync::atomic::Ordering;
use farshore_core::page::Page;
use farshore_core::sync::Padded;
use farshore_core::sync::plain::{AtomicU32, AtomicU64};

/// Turns come once in 2 to this many memories full: at first, …
const TURNS_AT_FIRST: u32 = 4;
/// … and at least and at most.
const TURNS: (u32, u32) = (1, 8);
/// Tests that are judged at a time: one for so many frames, …
const FRAMES_A_TEST: u64 = 256;
/// … but never fewer than these.
const TESTS_LEAST: u64 = 8;
/// By this part more of the tests come back soon, if pages should stay for longer, than of all pages that left.
const MORE: (u64, u64) = (4, 3);
/// Pages with the most chances that an evictor passes over for each that leaves.
pub(super) const SPARED_A_VICTIM: u32 = 16;
/// For how many pages an evictor saves that up.
const SAVED_FOR: u32 = 256;
/// As many as it passes over at first, and after each pause.
pub(super) const SPARED_MOST: u32 = SPARED_A_VICTIM * SAVED_FOR;

/// How seldom turns come.
#[derive(Debug)]
pub(crate) struct Lasting {
    turns: Padded<AtomicU32>,
    /// Tests since the last judgement. Evictors alone write it.
    tests: Padded<AtomicU32>,
    /// What had been counted by then ([`COUNTED`]).
    before: [AtomicU64; COUNTED.len()],
}

/// What is counted: pages that left, those of them that came back soon, and those that had done so before.
const COUNTED: [Count; 3] = [Count::Out, Count::Returned, Count::ReturnedAgain];

impl Default for Lasting {
    fn default() -> Lasting {
        Lasting { turns: Padded(AtomicU32::new(TURNS_AT_FIRST)), tests: Padded::default(), before: Default::default() }
    }
}

/// How seldom turns come after so many tests, of which `again` came back soon, while `returned` did of all `out` that left. Pages that left a little earlier may be among them.
fn judged(turns: u32, tests: u64, [out, returned, again]: [u64; 3]) -> u32 {
    let (least, most) = TURNS;
    let (tested, all) = (u128::from(again) * u128::from(out), u128::from(returned) * u128::from(tests));
    if tested * u128::from(MORE.1) >= all * u128::from(MORE.0) && again > 0 {
        (turns + 1).min(most)
    } else {
        (turns - 1).max(least)
    }
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    turns: u32,
    now: u64,
}

impl Turn {
    /// When so many memories full of pages have left.
    fn of(turns: u32, fulls: u64) -> Turn {
        Turn { turns, now: fulls % (1 << turns) }
    }

    /// Whether it is the turn of `page`: by the uppermost bits of a multiplication by 2^64 / golden ratio, so that neighbours fall apart.
    #[inline]
    pub(super) fn is_of(self, page: Page) -> bool {
        page.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - self.turns) == self.now
    }
}

impl Lasting {
    /// Whose turn it is when `left` pages have left a memory of so many frames.
    pub(super) fn turn(&self, left: u64, frames: u64) -> Turn {
        Turn::of(self.turns.load(Ordering::Relaxed), left / frames.max(1))
    }

    /// A page that was proven is in its slot only.
    pub(super) fn tested(&self, stats: &Stats, frames: u64) {
        let least = (frames / FRAMES_A_TEST).max(TESTS_LEAST);
        if u64::from(self.tests.fetch_add(1, Ordering::Relaxed)) + 1 < least {
            return;
        }
        let tests = u64::from(self.tests.swap(0, Ordering::Relaxed));
        if tests < least {
            // Another evictor has just judged.
            return;
        }
        let counts = core::array::from_fn(|n| {
            let now = stats.total(COUNTED[n]);
            now.saturating_sub(self.before[n].swap(now, Ordering::Relaxed))
        });
        self.turns.store(judged(self.turns.load(Ordering::Relaxed), tests, counts), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn pages_stay_for_longer_while_those_that_leave_come_back_more_often_than_others() {
        // A tenth of all that left came back soon.
        let of = |turns, again| judged(turns, 300, [9000, 900, again]);
        assert_eq!([0, 39, 40, 300].map(|again| of(4, again)), [3, 3, 5, 5]);
        assert_eq!([(1, 0), (2, 0), (7, 300), (8, 300)].map(|(turns, again)| of(turns, again)), [1, 1, 8, 8]);
        // Nobody came back at all, and all did.
        assert_eq!((judged(4, 300, [9000, 0, 0]), judged(4, 300, [300, 300, 300])), (3, 3));
        assert_eq!(judged(4, u64::MAX >> 2, [u64::MAX >> 2, 1, u64::MAX >> 2]), 5, "no overflow");
    }

    #[test]
    fn each_page_has_one_turn_in_so_many() {
        for turns in [TURNS.0, 4, TURNS.1] {
            let mut pages = [0_u32; 1 << TURNS.1];
            for page in (0..20_000).map(|n| Page(0x7f00_0000_0000 + n)) {
                let its: Vec<u64> = (0..1 << turns).filter(|&now| Turn::of(turns, now).is_of(page)).collect();
                assert_eq!(its.len(), 1, "{page:?}");
                assert!(Turn::of(turns, its[0] + (3 << turns)).is_of(page), "it comes round");
                pages[its[0] as usize] += 1;
            }
            let fair = 20_000 >> turns;
            assert!(pages[..1 << turns].iter().all(|&pages| pages.abs_diff(fair) <= fair / 4 + 1), "{pages:?}");
        }
    }

    #[test]
    fn tests_are_judged_when_there_are_enough() {
        let (lasting, stats, frames) = (Lasting::default(), Stats::new(2), 25_600);
        let turns = || lasting.turns.load(Ordering::Relaxed);
        let judge = |again: u64| {
            for (core, what, count) in [(0, Count::Out, 1000), (1, Count::Returned, 250), (1, Count::ReturnedAgain, again)] {
                stats.add(core, what, count);
            }
            let before = turns();
            (0..99).for_each(|_| lasting.tested(&stats, frames));
            assert_eq!(turns(), before, "a hundred are to be judged");
            lasting.tested(&stats, frames);
            turns()
        };
        assert_eq!([0, 0, 33, 34, 100, 100].map(judge), [3, 2, 1, 2, 3, 4]);
        // Of a memory of few frames no single page decides.
        (1..TESTS_LEAST).for_each(|_| lasting.tested(&stats, 16));
        assert_eq!(turns(), 4);
        lasting.tested(&stats, 16);
        assert_eq!(turns(), 3);
    }

    #[test]
    fn a_turn_lasts_as_long_as_it_takes_all_memory_to_leave() {
        let lasting = Lasting::default();
        let now = |left| lasting.turn(left, 1000).now;
        assert_eq!([0, 999, 1000, 15_999, 16_000].map(now), [0, 0, 1, 15, 0]);
        assert_eq!(lasting.turn(5, 0).now, 5, "no frames");
    }
}
