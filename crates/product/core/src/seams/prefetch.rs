//! Which pages come without a fault that asks for them.
//!
//! A prefetcher guesses and never moves a page, so a wrong guess costs reads and spare frames, and nothing else.
//!
//! # Markers
//!
//! A process cannot see which of its mapped pages the program touches, so a page that came in time gives no signal. Therefore a
//! prefetcher leaves one page out between what it has asked for and what it asks for next: the *marker*. The marker's fault says
//! that the program has come this far. That is the moment to ask for what lies behind the pages that are on their way already.

use crate::page::{GranuleId, Page};
use crate::sync::plain::AtomicU64;

/// The most pages that can be asked for at a time: four reads of 252 KiB, at which SSDs come near to their sequential
/// rate.
pub const AHEAD_MAX: u32 = 252;
/// The most pages of one request: what one read brings.
pub const PIECE_MAX: u32 = 63;
/// Pages that another thread is to bring: `first`, and this many in all, each `step` pages further on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ahead {
    /// The first.
    pub first: Page,
    /// From one to the next, in pages; not 0.
    pub step: i32,
    /// How many, at most [`AHEAD_MAX`].
    pub pages: u32,
}

/// A fetch that is about to begin, and what a prefetcher may look at.
pub trait Fetch {
    /// The page that is needed.
    fn page(&self) -> Page;
    /// The core that the thread which needs the page counts on.
    fn core(&self) -> usize;
    /// Two words for notes about a granule, 0 when the granule begins to be managed; `None`: it is not managed. They are hints:
    /// any thread may change them at any time.
    fn notes(&self, granule: GranuleId) -> Option<&[AtomicU64; 2]>;
    /// Whether the program has said that it goes through these pages upwards, one after the other.
    fn is_sequential(&self) -> bool {
        false
    }
    /// Whether a page would have to be read from swap space.
    fn is_out(&self, page: Page) -> bool;
    /// Takes this many neighbours above the page (below, if negative), which the same read brings, as far as their slots lie side
    /// by side and spare frames exist. Returns how many were taken. Once a fetch.
    fn take(&self, neighbours: i32) -> u32;
    /// Says that the program goes through pages in order here, so that a part of a loop that is larger than memory can be
    /// kept.
    fn in_stream(&self);
    /// Counts pages that were brought before and that this fetch proves to be used.
    fn count_used(&self, pages: u32);
}

/// Guesses which pages will be wanted next. Each fault that fetches calls it, also in signal handlers: no locks, no allocation,
/// O(1).
pub trait Prefetcher: Sync {
    /// Takes neighbours of the page that is fetched, and says what another thread should bring meanwhile.
    fn fetch(&self, fetch: &dyn Fetch) -> Option<Ahead>;
}
