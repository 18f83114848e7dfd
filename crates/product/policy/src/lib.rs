//! Built-in policies: which pages are evicted, and which come unasked ([`prefetch`]). An example for writers of other
//! policies.
//!
//! An evictor asks the policy about each resident page that it passes, and the policy answers with a [`Verdict`]. It
//! never moves a page itself, so the worst that a wrong policy does is to choose badly.
#![forbid(unsafe_code)]
#![no_std]

extern crate alloc;

pub mod prefetch;

use farshore_core::page::Page;
use farshore_core::seams::{Came, Policy, Return, Verdict};
use farshore_core::word::Word;

/// A loop is kept in part up to this many times the size of memory: a smaller share of a larger loop gains little.
const LOOP_MEMORIES: u64 = 5;

/// The built-in policies by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BuiltIn {
    /// Evicts each page that the hand meets, except for pages that were rescued since it last came by: a rescue proves that the
    /// page is used. Linux reads access bits for this. A process cannot read them, so a page is unmapped and kept in RAM for a
    /// while, and a page that comes back has proved its use (Flexible Swapping §3 calls such a page hot). A page that comes back
    /// again is left alone for longer.
    SecondChance,
    /// First in, first out: like `SecondChance` without the chance.
    Fifo,
}

impl BuiltIn {
    /// Every name, the default first.
    pub const NAMES: [&'static str; 2] = ["second-chance", "fifo"];

    /// The policy of this name.
    pub fn named(name: &str) -> Option<BuiltIn> {
        match name {
            "second-chance" => Some(BuiltIn::SecondChance),
            "fifo" => Some(BuiltIn::Fifo),
            _ => None,
        }
    }
}

/// What a process was told to use.
#[derive(Debug)]
pub struct Chosen {
    /// Chooses the pages that leave.
    pub evict: BuiltIn,
    /// Chooses the pages that come unasked.
    pub prefetch: prefetch::BuiltIn,
}

impl Policy for Chosen {
    type Prefetch = prefetch::BuiltIn;

    fn prefetcher(&self) -> &prefetch::BuiltIn {
        &self.prefetch
    }

    fn verdict(&self, _page: Page, _word: Word) -> Verdict {
        match self.evict {
            BuiltIn::SecondChance => Verdict::EvictUnlessChances,
            BuiltIn::Fifo => Verdict::Evict,
        }
    }

    fn chances(&self, came: Came) -> u8 {
        match came {
            Came::Fetched => 0,
            Came::Rescued => 1,
            Came::RescuedAgain => 3,
        }
    }

    fn keep(&self, Return { distance, frames }: Return) -> u16 {
        let pages = distance.saturating_add(frames);
        if self.evict == BuiltIn::Fifo || frames == 0 || pages / frames >= LOOP_MEMORIES {
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
        let chosen = |evict| Chosen { evict, prefetch: prefetch::BuiltIn::None };
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
    fn every_name_is_a_policy() {
        for name in BuiltIn::NAMES {
            assert!(BuiltIn::named(name).is_some(), "{name}");
        }
        assert_eq!(BuiltIn::named("lru"), None);
        for name in prefetch::BuiltIn::NAMES {
            assert!(prefetch::BuiltIn::named(name).is_some(), "{name}");
        }
        assert!(prefetch::BuiltIn::named("oracle").is_none());
    }
}
