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
    /// A fault has fetched it.
    Fetched,
    /// A fault found it in a stage: it is used.
    Rescued,
    /// The same, and so it was when it came the last time: it is used all the time.
    RescuedAgain,
}

/// Pages that have left came back, to a program that goes through them in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Return {
    /// How many pages left in between. If the program goes round in a loop, it has so many pages more than there are frames.
    pub distance: u64,
    /// Frames that there are.
    pub frames: u64,
}

/// Chooses victims. Called by evictors for each resident page that they pass, so O(1), no locks, no
/// allocation. It never moves a page: a policy can be wrong, it cannot corrupt memory.
pub trait Policy: Sync {
    /// What guesses the pages that will be wanted next.
    type Prefetch: Prefetcher;
    /// It.
    fn prefetcher(&self) -> &Self::Prefetch;
    /// What to do with a resident page.
    fn verdict(&self, page: Page, word: Word) -> Verdict;
    /// How many chances a page gets that became resident like this, at most [`crate::word::CHANCES_MAX`].
    fn chances(&self, came: Came) -> u8;
    /// Which share of such a loop fits into all of memory, in 65,536ths; 0: no part of it should stay (`evict::loops`).
    fn keep(&self, _returned: Return) -> u16 {
        0
    }
}
