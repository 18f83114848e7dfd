//! Built-in policies: which pages are evicted, and which come unasked ([`prefetch`]). An example for writers of other
//! policies.
//!
//! An evictor asks the policy about each resident page that it passes, and the policy answers with a [`Verdict`]. It
//! never moves a page itself, so the worst that a wrong policy does is to choose badly.
//!
//! # Changing them while the program runs
//!
//! [`Chosen::choose`] and [`Chosen::choose_prefetch`] change what is asked from then on, and may be called at any time, by any
//! thread, while faults and evictors ask. Nobody waits and nobody is told. This is sound for three reasons:
//!
//! 1. **One answer, one policy.** Each question reads the choice once. A question that was asked before is answered by the policy
//!    before: an evictor that is in the middle of a batch may have asked both.
//! 2. **All that policies leave behind are hints that the next one can read.** Chances in page words mean the same to each
//!    policy; `fifo` leaves them as they are. Notes of granules are `sequential`'s alone; `stride` and `majority` have places of
//!    their own. One that comes back finds what it knew before, which may be wrong by then and costs reads.
//! 3. **What was chosen is there.** A prefetcher with places of its own is made before the choice is published (Release, which the
//!    fault's Acquire pairs with), and stays until the process ends. So no fault allocates, and none finds it gone.
#![forbid(unsafe_code)]
#![no_std]

extern crate alloc;

pub mod prefetch;

use core::sync::atomic::Ordering;
use farshore_core::page::Page;
use farshore_core::seams::{Came, Policy, Return, Verdict};
use farshore_core::sync::plain::AtomicU8;
use farshore_core::word::{CHANCES_MAX, Word};

/// A loop is kept in part up to this many times the size of memory: a smaller share of a larger loop gains little.
const LOOP_MEMORIES: u64 = 5;

/// The built-in policies by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BuiltIn {
    /// Evicts each page that the hand meets, except for pages that were rescued since a hand last came by: a rescue proves that the
    /// page is used. Linux reads access bits for this. A process cannot read them, so a page is unmapped and kept in RAM for a
    /// while, and a page that comes back has proved its use (Flexible Swapping §3 calls such a page hot). A page that comes back
    /// again is left alone for longer, and so is one that is read again soon after it has left.
    SecondChance,
    /// First in, first out: granules in the order in which they came, the pages of each in the order of their addresses.
    Fifo,
}

impl BuiltIn {
    /// Every policy, the default first.
    pub const ALL: [BuiltIn; 2] = [BuiltIn::SecondChance, BuiltIn::Fifo];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            BuiltIn::SecondChance => "second-chance",
            BuiltIn::Fifo => "fifo",
        }
    }

    /// The policy of this name.
    pub fn named(name: &str) -> Option<BuiltIn> {
        BuiltIn::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// What a process uses now; see the head of the crate for how it changes.
#[derive(Debug)]
pub struct Chosen {
    /// Chooses the pages that leave: a place in [`BuiltIn::ALL`].
    evict: AtomicU8,
    /// Chooses the pages that come unasked.
    prefetch: prefetch::Prefetchers,
}

impl Chosen {
    /// What a process begins with.
    pub fn new(evict: BuiltIn, prefetch: prefetch::BuiltIn) -> Chosen {
        Chosen { evict: AtomicU8::new(evict as u8), prefetch: prefetch::Prefetchers::new(prefetch) }
    }

    /// The policy in force.
    pub fn evict(&self) -> BuiltIn {
        // Relaxed: nothing goes with it.
        match self.evict.load(Ordering::Relaxed) {
            0 => BuiltIn::SecondChance,
            _ => BuiltIn::Fifo,
        }
    }

    /// The prefetcher in force.
    pub fn prefetch(&self) -> prefetch::BuiltIn {
        self.prefetch.now()
    }

    /// From now on evictors ask this policy.
    pub fn choose(&self, policy: BuiltIn) {
        self.evict.store(policy as u8, Ordering::Relaxed);
    }

    /// From now on faults ask this prefetcher. Allocates the first time.
    pub fn choose_prefetch(&self, prefetcher: prefetch::BuiltIn) {
        self.prefetch.choose(prefetcher);
    }
}

impl Policy for Chosen {
    type Prefetch = prefetch::Prefetchers;

    fn prefetcher(&self) -> &prefetch::Prefetchers {
        &self.prefetch
    }

    fn verdict(&self, _page: Page, _word: Word) -> Verdict {
        match self.evict() {
            BuiltIn::SecondChance => Verdict::EvictUnlessChances,
            BuiltIn::Fifo => Verdict::Evict,
        }
    }

    fn chances(&self, came: Came) -> u8 {
        match came {
            Came::Fetched => 0,
            // In eighths of a memory full.
            Came::Returned(Return { distance, frames }) => match distance.saturating_mul(8) / frames.max(1) {
                0 => CHANCES_MAX,
                1 => 3,
                _ => 0,
            },
            Came::Rescued => 1,
            Came::RescuedAgain => CHANCES_MAX,
        }
    }

    fn takes_newer_first(&self) -> bool {
        self.evict() != BuiltIn::Fifo
    }

    fn keep(&self, Return { distance, frames }: Return) -> u16 {
        let pages = distance.saturating_add(frames);
        if self.evict() == BuiltIn::Fifo || frames == 0 || pages / frames >= LOOP_MEMORIES {
            return 0;
        }
        (u128::from(frames) * u128::from(u16::MAX) / u128::from(pages)) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_loop_stays_what_fits() {
        let chosen = |evict| Chosen::new(evict, prefetch::BuiltIn::None);
        let keep = |distance, frames| chosen(BuiltIn::SecondChance).keep(Return { distance, frames });
        assert_eq!(keep(0, 1 << 20), u16::MAX, "all");
        assert_eq!(keep(1 << 20, 1 << 20), u16::MAX / 2, "of twice as much, half of it");
        assert_eq!(keep(4 << 20, 1 << 20), 0, "too large");
        assert!(keep((4 << 20) - 1, 1 << 20) > 0);
        assert_eq!(keep(100, 0), 0);
        assert_eq!(keep(u64::MAX, u64::MAX), u16::MAX, "no overflow");
        assert_eq!(chosen(BuiltIn::Fifo).keep(Return { distance: 0, frames: 100 }), 0);
    }

    #[test]
    fn what_comes_back_soon_is_passed_over() {
        let chosen = Chosen::new(BuiltIn::SecondChance, prefetch::BuiltIn::None);
        let of = |distance, frames| chosen.chances(Came::Returned(Return { distance, frames }));
        assert_eq!([0, 99, 100, 199, 200, 800].map(|distance| of(distance, 800)), [7, 7, 3, 3, 0, 0]);
        assert_eq!((of(u64::MAX, 800), of(1, 0)), (0, 0), "no overflow, and no frames");
    }

    #[test]
    fn every_name_is_a_policy() {
        for (place, policy) in BuiltIn::ALL.into_iter().enumerate() {
            assert_eq!((policy as usize, BuiltIn::named(policy.name())), (place, Some(policy)));
        }
        assert_eq!(BuiltIn::named("lru"), None);
        for (place, prefetcher) in prefetch::BuiltIn::ALL.into_iter().enumerate() {
            assert_eq!((prefetcher as usize, prefetch::BuiltIn::named(prefetcher.name())), (place, Some(prefetcher)));
        }
        assert!(prefetch::BuiltIn::named("oracle").is_none());
    }

    #[test]
    fn a_choice_is_in_force_at_once() {
        let chosen = Chosen::new(BuiltIn::SecondChance, prefetch::BuiltIn::Sequential);
        let back = Return { distance: 100, frames: 100 };
        for policy in [BuiltIn::Fifo, BuiltIn::SecondChance, BuiltIn::Fifo] {
            chosen.choose(policy);
            let (verdict, keeps) = match policy {
                BuiltIn::Fifo => (Verdict::Evict, false),
                BuiltIn::SecondChance => (Verdict::EvictUnlessChances, true),
            };
            assert_eq!(chosen.evict(), policy);
            assert_eq!(chosen.verdict(Page(1), Word::UNTOUCHED), verdict);
            assert_eq!((chosen.keep(back) > 0, chosen.takes_newer_first()), (keeps, keeps));
        }
        for prefetcher in prefetch::BuiltIn::ALL {
            chosen.choose_prefetch(prefetcher);
            assert_eq!(chosen.prefetch(), prefetcher);
        }
    }
}
