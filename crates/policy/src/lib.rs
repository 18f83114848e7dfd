//! Built-in policies: who is evicted. The example for writing another.
//!
//! A policy is asked about each resident page that an evictor passes and answers
//! [`Verdict`]; it never moves a page itself, so the worst that a wrong one does is
//! to choose badly.
#![forbid(unsafe_code)]
#![no_std]

use farshore_core::page::Page;
use farshore_core::word::Word;
use farshore_engine::traits::{Policy, Verdict};

/// The built-in policies by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BuiltIn {
    /// Evicts each page that the hand meets, but for those that were rescued since it last came by: they have
    /// proved that they are used. Linux reads access bits for this; a process cannot, so a page is
    /// unmapped, kept in RAM a while, and who comes back is young (Flexible Swapping §3 calls such a page hot).
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

impl Policy for BuiltIn {
    fn verdict(&self, _page: Page, _word: Word) -> Verdict {
        match self {
            BuiltIn::SecondChance => Verdict::SecondChance,
            BuiltIn::Fifo => Verdict::Evict,
        }
    }

    fn fetched_is_young(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_policy() {
        for name in BuiltIn::NAMES {
            assert!(BuiltIn::named(name).is_some(), "{name}");
        }
        assert_eq!(BuiltIn::named("lru"), None);
    }
}
