//! Which pages leave.

use super::Prefetcher;
use crate::page::Page;
use crate::word::Word;

/// What a policy says of a page that an evictor passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Evict it.
    Evict,
    /// Evict it unless it has chances left; then take one.
    EvictUnlessChances,
    /// Leave it.
    Keep,
}

/// How a page came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Came {
    /// A fault fetched it.
    Fetched,
    /// A fault fetched it, and nothing beside it; it is known when it had left.
    Returned(Return),
    /// A fault found it in a stage, so the page is used.
    Rescued,
    /// A fault found it in a stage, and did so the last time it came too: the page is used all the time.
    RescuedAgain,
}

/// Pages that had left came back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Return {
    /// How many pages left in between. If the program goes through them in order, round and round, the loop has this many pages more than
    /// there are frames.
    pub distance: u64,
    /// Number of frames.
    pub frames: u64,
}

/// Chooses victims. Evictors call it for each resident page that they pass, so it must be O(1), and take no locks and
/// allocate nothing. It never moves a page: a policy can be wrong, it cannot corrupt memory.
pub trait Policy: Sync {
    /// The type that guesses which pages will be wanted next.
    type Prefetch: Prefetcher;
    /// The prefetcher.
    fn prefetcher(&self) -> &Self::Prefetch;
    /// What to do with a resident page.
    fn verdict(&self, page: Page, word: Word) -> Verdict;
    /// How many chances a page gets that became resident like this, at most [`crate::word::CHANCES_MAX`].
    fn chances(&self, came: Came) -> u8;
    /// Whether evictors may take newer pages before older ones, where that is better (`evict::hands`).
    fn takes_newer_first(&self) -> bool {
        true
    }
    /// A program that goes through pages in order has brought some back: which share of such a loop fits into all of memory, in 65,536ths; 0: no part of the loop should stay
    /// (`evict::loops`).
    fn keep(&self, _returned: Return) -> u16 {
        0
    }
}
