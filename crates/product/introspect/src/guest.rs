//! A guest: its address spaces, and which page a fault asks for next.
//!
//! # Which address spaces there are
//!
//! Those that a processor was seen to run, the last [`SPACES`] of them. A kernel that isolates its tables (KPTI) has two roots for a program, 4 KiB apart, of which both have the program's half: that is one
//! address space here.
//!
//! # How a physical page finds its virtual address
//!
//! 1. By what was seen before ([`crate::reverse`]). A walk makes sure that it is still so.
//! 2. Otherwise the page tables of the address spaces that ran last are gone through, from where the last look ended. So many words a second are read for that, and no more: a guest whose faults are all of its
//!    kernel (its page cache, say) would cost that for nothing.
//!
//! What a run goes over is seen on the way: whoever follows a run need not look for its pages.

use crate::PAGE;
use crate::linear::Follow;
use crate::paging::{Leaf, Paging, Physical};
use crate::registers::Processor;
use crate::reverse::{Id, Reverse};

/// Address spaces that are known at a time.
pub const SPACES: usize = 16;
/// Address spaces that are looked through for a page: those that ran last.
const LOOKED_AT: usize = 4;
/// Words that may be read in a second to find pages, 2 000 tables; saved up at most; and for one page and address space.
const WORDS_A_SECOND: u64 = 1 << 20;
const WORDS_SAVED: u64 = 1 << 16;
const WORDS_AT_ONCE: u64 = 1 << 14;
/// The two roots of a program differ in this bit.
const ISOLATION: u64 = PAGE;

/// What was asked and found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Faults whose virtual address was asked for.
    pub asked: u64,
    /// Of them, those for which one was found.
    pub found: u64,
    /// Virtual addresses that were remembered and not true any more.
    pub stale: u64,
    /// Virtual pages that a run asked for, and that have no physical one.
    pub untranslated: u64,
    /// Pages that were out and wished to come.
    pub wished: u64,
    /// Of them, those that the run went over afterwards.
    pub used: u64,
}

/// An address space.
#[derive(Debug)]
struct Space {
    paging: Paging,
    follow: Follow,
    /// Where the next look into its tables begins.
    cursor: u64,
    /// When a processor was seen to run it: the number of the look.
    seen: u64,
}

/// See the head of the module.
#[derive(Debug)]
pub struct Guest {
    bytes: u64,
    spaces: Vec<Space>,
    reverse: Reverse,
    counts: Counts,
    /// Looks at processors so far.
    looks: u64,
    /// Words that may be read, and when that was reckoned.
    words: u64,
    reckoned_ns: u64,
}

impl Guest {
    /// A guest with so much memory, of which no address space is known yet.
    #[must_use]
    pub fn new(bytes: u64) -> Guest {
        Guest {
            bytes,
            spaces: Vec::new(),
            reverse: Reverse::new(bytes),
            counts: Counts::default(),
            looks: 0,
            words: WORDS_SAVED,
            reckoned_ns: 0,
        }
    }

    /// It has so much memory now: some was plugged in, or taken out. What was seen stays, and is made sure of when it is used.
    pub fn set_bytes(&mut self, bytes: u64) {
        if bytes > self.bytes {
            self.bytes = bytes;
            self.reverse = Reverse::new(bytes);
        }
    }

    /// What was asked and found so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// How often processors were looked at.
    #[must_use]
    pub fn looks(&self) -> u64 {
        self.looks
    }

    /// How many address spaces are known.
    #[must_use]
    pub fn spaces(&self) -> usize {
        self.spaces.len()
    }

    /// Processors were looked at.
    pub fn look(&mut self, memory: &mut impl Physical, processors: &[Processor]) {
        self.looks += 1;
        for paging in processors.iter().filter(|one| !one.is_idle).map(|one| one.paging) {
            let is_it = |space: &Space| space.paging == paging;
            let place = self.spaces.iter().position(is_it).or_else(|| {
                let other = paging.with_root(paging.root() ^ ISOLATION);
                let place = self.spaces.iter().position(|space| space.paging == other)?;
                have_the_same(memory, paging, other).then_some(place)
            });
            let looks = self.looks;
            if let Some(place) = place {
                self.spaces[place].seen = looks;
                continue;
            }
            let new = Space { paging, follow: Follow::default(), cursor: 0, seen: looks };
            if self.spaces.len() < SPACES {
                self.spaces.push(new);
            } else if let Some(oldest) = self.spaces.iter_mut().min_by_key(|space| space.seen) {
                *oldest = new;
            }
        }
    }

    /// A page of the guest's memory was touched, by its guest-physical address. `come` has a page of it come, by the same, and says whether that was wished. Returns the address space's number and the virtual page,
    /// if they were found.
    pub fn touched(
        &mut self,
        memory: &mut impl Physical,
        physical: u64,
        now_ns: u64,
        come: &mut dyn FnMut(u64) -> bool,
    ) -> Option<(Id, u64)> {
        self.counts.asked += 1;
        let physical = physical & !(PAGE - 1);
        let (id, address) = match self.known(memory, physical) {
            Some(found) => found,
            None => {
                self.look_around(memory, now_ns);
                self.known(memory, physical)?
            }
        };
        self.counts.found += 1;
        let Guest { spaces, reverse, counts, .. } = self;
        let Space { paging, follow, .. } = &mut spaces[usize::from(id)];
        let mut forward = |page: u64| {
            // Pages of a run are small numbers: they are of a program's half.
            match paging.leaf(memory, page * PAGE) {
                Ok(leaf) => {
                    reverse.seen(id, (page * PAGE) & !(leaf.bytes - 1), &leaf);
                    come(leaf.first + (page * PAGE) % leaf.bytes)
                }
                Err(_) => {
                    counts.untranslated += 1;
                    false
                }
            }
        };
        let (wished, used) = follow.touched(address / PAGE, &mut forward);
        self.counts.wished += wished;
        self.counts.used += used;
        Some((id, address))
    }

    /// Where a virtual address is in each address space that has it: the root of its tables, and the page.
    pub fn translate(&self, memory: &mut impl Physical, address: u64) -> Vec<(u64, Leaf)> {
        let of = |space: &Space| Some((space.paging.root(), space.paging.leaf(memory, address).ok()?));
        self.spaces.iter().filter_map(of).collect()
    }

    /// The virtual address of a physical page, if it was seen, and still is so.
    fn known(&mut self, memory: &mut impl Physical, physical: u64) -> Option<(Id, u64)> {
        let (id, address) = self.reverse.find(physical)?;
        let space = self.spaces.get(usize::from(id))?;
        if space.paging.translate(memory, address) == Ok(physical) {
            return Some((id, address));
        }
        self.counts.stale += 1;
        None
    }

    /// Goes on looking through the page tables of what ran last.
    fn look_around(&mut self, memory: &mut impl Physical, now_ns: u64) {
        let since = now_ns.saturating_sub(self.reckoned_ns);
        let more = u128::from(since) * u128::from(WORDS_A_SECOND) / 1_000_000_000;
        // What is too little for a word is saved up, too.
        if more > 0 {
            self.words = WORDS_SAVED.min(self.words.saturating_add(u64::try_from(more).unwrap_or(u64::MAX)));
            self.reckoned_ns = now_ns;
        }
        let mut order: Vec<usize> = (0..self.spaces.len()).collect();
        order.sort_by_key(|&place| std::cmp::Reverse(self.spaces[place].seen));
        for place in order.into_iter().take(LOOKED_AT) {
            // Less would be spent on the way to the tables.
            if self.words < 1024 {
                return;
            }
            let mut counted = Counted { memory: &mut *memory, words: 0 };
            let (space, reverse) = (&mut self.spaces[place], &mut self.reverse);
            let at_once = WORDS_AT_ONCE.min(self.words) as u32;
            let seen = &mut |address, leaf: Leaf| reverse.seen(place as Id, address, &leaf);
            space.cursor = space.paging.scan(&mut counted, space.cursor, at_once, seen).unwrap_or(0);
            self.words = self.words.saturating_sub(counted.words);
        }
    }
}

/// Memory whose reads are counted.
struct Counted<'m, M> {
    memory: &'m mut M,
    words: u64,
}

impl<M: Physical> Physical for Counted<'_, M> {
    fn word(&mut self, at: u64) -> Option<u64> {
        let word = self.memory.word(at);
        // A table that cannot be had is wished to come, whole.
        self.words += if word.is_some() { 1 } else { PAGE / 8 };
        word
    }
}

/// Whether two roots name the same tables for the programs' half, and at least one.
fn have_the_same(memory: &mut impl Physical, one: Paging, other: Paging) -> bool {
    const PRESENT: u64 = 1;
    const ADDRESS: u64 = ((1 << 52) - 1) & !(PAGE - 1);
    let mut any = false;
    for place in (0..PAGE / 2).step_by(8) {
        let mut entry = |paging: Paging| {
            let word = memory.word(paging.root() + place)?;
            Some(if word & PRESENT != 0 { word & ADDRESS | PRESENT } else { 0 })
        };
        let (Some(a), Some(b)) = (entry(one), entry(other)) else { return false };
        if a != b {
            return false;
        }
        any |= a != 0;
    }
    any
}

#[cfg(test)]
#[path = "guest_tests.rs"]
mod tests;
