//! What comes unasked: the interface of prefetchers, and their requests.
//!
//! ```text
//!  a fault fetches a page ─▶ Prefetcher::fetch ─┬─▶ Fetch::take: neighbours that the same read brings                (fault::run)
//!                                               └─▶ Ahead: what another thread of ours brings meanwhile ─▶ Requests ─▶ fault::ahead
//! ```
//!
//! Threads that read ahead are made when a request finds none that sleeps, up to a most: by the watcher, since a fault makes no threads. Until one is there, requests
//! wait in their places.
//!
//! A prefetcher guesses and never moves a page, so a wrong one costs reads and spare frames, and nothing else.
//!
//! # Markers
//!
//! A process cannot see which of the pages that are mapped its program touches, so a page that came in time tells nothing. Therefore a prefetcher leaves one
//! page out between what it has asked for and what it asks for next, the *marker*: its fault says that the program has come so far, and is
//! the moment to ask for what lies behind the pages that are on their way already.

use core::sync::atomic::Ordering;
use farshore_core::page::{GranuleId, Page};
use farshore_core::sync::plain::{AtomicBool, AtomicU32, AtomicU64};
use farshore_core::sync::{Futex, Padded};
use farshore_core::wait::Event;

/// Pages that can be asked for at a time: four reads of 252 KiB, at which SSDs come near to their sequential rate.
pub const AHEAD_MAX: u32 = 252;
/// Pages of one request at most: what one read brings.
pub const PIECE_MAX: u32 = 63;
/// Pages that do not lie side by side which one thread reads.
const SCATTERED_MAX: u32 = 16;
/// Requests that can wait; those beyond are dropped.
const PLACES: usize = 16;

/// Pages that shall be brought by another thread: `first`, and so many in all, each `step` pages further on.
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
    /// The core that the thread which needs it counts on.
    fn core(&self) -> usize;
    /// Two words for notes about a granule, 0 when it begins to be managed; `None`: it is not. Hints: any thread may change them at any time.
    fn notes(&self, granule: GranuleId) -> Option<&[AtomicU64; 2]>;
    /// Whether a page would have to be read from swap space.
    fn is_out(&self, page: Page) -> bool;
    /// Takes so many neighbours above the page (below, if negative), which the same read brings: as far as their slots lie side by side and frames are
    /// to spare. How many were taken. Once a fetch.
    fn take(&self, neighbours: i32) -> u32;
    /// Says that the program goes through pages in order here, so that a part of a loop that is larger than memory can stay.
    fn in_stream(&self);
    /// Counts pages that were brought before, and that this fetch proves to be used.
    fn count_used(&self, pages: u32);
}

/// Guesses which pages will be wanted next. Called by each fault that fetches, also in signal handlers: no locks, no allocation, O(1).
pub trait Prefetcher: Sync {
    /// Takes neighbours of the page that is fetched, and says what another thread should bring meanwhile.
    fn fetch(&self, fetch: &dyn Fetch) -> Option<Ahead>;
}

/// Requests for threads that read ahead: a few words, each a request or 0. They are hints, so a full list drops what comes, and their order
/// does not matter.
#[derive(Debug)]
pub struct Requests {
    places: [Padded<AtomicU64>; PLACES],
    came: Event,
    /// Threads that read ahead, and the most that there may be.
    readers: AtomicU32,
    readers_most: AtomicU32,
    /// One more would be of use.
    wants_reader: AtomicBool,
}

/// What has become of a thread that was to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    /// There is one more.
    Made,
    /// Not now: ask again soon.
    Later,
    /// There will be no more.
    Never,
}

const STEP_BITS: u32 = 20;
const PAGES_BITS: u32 = 6;

impl Ahead {
    /// Neighbours are most likely one read, and one request. Others are read one by one: by several threads.
    fn pieces(self) -> impl Iterator<Item = Ahead> {
        let most = if self.step.abs() == 1 { PIECE_MAX } else { SCATTERED_MAX };
        (0..self.pages.div_ceil(most)).map_while(move |n| {
            let first = self.first.0.checked_add_signed(i64::from(self.step) * i64::from(n * most))?;
            Some(Ahead { first: Page(first), step: self.step, pages: most.min(self.pages - n * most) })
        })
    }

    /// As one word, never 0; `None` if it is out of range.
    fn pack(self) -> Option<u64> {
        let limit = 1 << (STEP_BITS - 1);
        let fits = self.step != 0 && self.step.abs() < limit && (1..=PIECE_MAX).contains(&self.pages);
        let step = (self.step + limit) as u64;
        (fits && self.first.0 < 1 << (64 - STEP_BITS - PAGES_BITS))
            .then_some(self.first.0 << (STEP_BITS + PAGES_BITS) | step << PAGES_BITS | u64::from(self.pages))
    }

    fn unpack(word: u64) -> Ahead {
        let step = (word >> PAGES_BITS & ((1 << STEP_BITS) - 1)) as i32 - (1 << (STEP_BITS - 1));
        Ahead { first: Page(word >> (STEP_BITS + PAGES_BITS)), step, pages: (word & ((1 << PAGES_BITS) - 1)) as u32 }
    }
}

impl Default for Requests {
    fn default() -> Requests {
        Requests {
            places: core::array::from_fn(|_| Padded(AtomicU64::new(0))),
            came: Event::new(),
            readers: AtomicU32::new(0),
            readers_most: AtomicU32::new(0),
            wants_reader: AtomicBool::new(false),
        }
    }
}

impl Requests {
    /// Asks for pages, unless too much is asked for already. By a fault on `core`. True: more is asked for than there are threads that
    /// sleep, and there may be one more: the watcher should make it. (A fault makes no threads.)
    #[must_use]
    pub fn ask<F: Futex>(&self, futex: &F, core: usize, ahead: Ahead) -> bool {
        let mut places = (0..PLACES).map(|n| &self.places[(core + n) % PLACES]);
        // Relaxed: a request is all in its word.
        let mut put =
            |word: u64| places.any(|place| place.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed).is_ok());
        let placed = ahead.pieces().map_while(Ahead::pack).take_while(|&word| put(word)).count();
        if placed == 0 {
            return false;
        }
        let free = self.came.sleepers() as usize;
        self.came.signal(futex);
        let readers = self.readers.load(Ordering::Relaxed);
        placed > free && readers < self.readers_most.load(Ordering::Relaxed) && !self.wants_reader.swap(true, Ordering::AcqRel)
    }

    /// There may be so many threads that read ahead, which are made when they are of use.
    pub fn allow_readers(&self, most: u32) {
        self.readers_most.store(most, Ordering::Relaxed);
    }

    /// Threads that read ahead.
    pub fn readers(&self) -> u32 {
        self.readers.load(Ordering::Relaxed)
    }

    /// A thread that reads ahead would be of use, and nobody has made it yet.
    pub(crate) fn want_reader(&self) -> bool {
        self.wants_reader.load(Ordering::Relaxed)
    }

    /// Those that there were have ended; others may be made.
    pub(crate) fn forget_readers(&self) {
        self.readers.store(0, Ordering::Relaxed);
        self.wants_reader.store(false, Ordering::Release);
    }

    /// Makes a thread if one is wanted; by the watcher. Whether to come again soon.
    pub(crate) fn serve(&self, make: &mut dyn FnMut() -> Reader) -> bool {
        if !self.wants_reader.load(Ordering::Acquire) {
            return false;
        }
        match make() {
            Reader::Made => {
                self.readers.fetch_add(1, Ordering::Relaxed);
            }
            Reader::Later => return true,
            Reader::Never => self.allow_readers(0),
        }
        self.wants_reader.store(false, Ordering::Release);
        false
    }

    /// Takes a request.
    pub fn take(&self) -> Option<Ahead> {
        let taken = |place: &Padded<AtomicU64>| match place.load(Ordering::Relaxed) {
            0 => None,
            _ => Some(place.swap(0, Ordering::Relaxed)).filter(|&word| word != 0),
        };
        self.places.iter().find_map(taken).map(Ahead::unpack)
    }

    /// What to sleep on until one comes: prepare before [`Requests::take`].
    pub fn came(&self) -> &Event {
        &self.came
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody sleeps here.
    struct NoFutex;

    impl Futex for NoFutex {
        fn wait(&self, _: &AtomicU32, _: u32) {}
        fn wait_for(&self, _: &AtomicU32, _: u32, _: u64) {}
        fn wake_all(&self, _: &AtomicU32) {}
    }

    #[test]
    fn readers_are_made_when_they_are_of_use() {
        let requests = Requests::default();
        let neighbours = Ahead { first: Page(1), step: 1, pages: 10 };
        let none = &mut || panic!("none is wanted");
        assert!(!requests.ask(&NoFutex, 0, neighbours), "there may be none");
        assert!(!requests.serve(none));
        requests.allow_readers(2);
        assert!(requests.ask(&NoFutex, 0, neighbours) && !requests.ask(&NoFutex, 0, neighbours), "asked for once");
        assert!(requests.serve(&mut || Reader::Later), "come again");
        assert!(!requests.serve(&mut || Reader::Made) && !requests.serve(none));
        assert!(requests.ask(&NoFutex, 0, neighbours) && !requests.serve(&mut || Reader::Made));
        assert_eq!(requests.readers(), 2);
        assert!(!requests.ask(&NoFutex, 0, neighbours), "no more than that");
        requests.allow_readers(3);
        assert!(requests.ask(&NoFutex, 0, neighbours) && !requests.serve(&mut || Reader::Never));
        assert!(!requests.ask(&NoFutex, 0, neighbours), "it cannot be");
        assert_eq!(core::iter::from_fn(|| requests.take()).count(), 7);
    }

    #[test]
    fn a_request_is_one_word() {
        for (first, step, pages) in [(1, 1, 1), (0x7_ffff_ffff, -1, 63), (512, 1 << 18, 5), (7, -(1 << 18), 63)] {
            let ahead = Ahead { first: Page(first), step, pages };
            assert_eq!(ahead.pack().map(Ahead::unpack), Some(ahead));
        }
        let scattered = Ahead { first: Page(100), step: -2, pages: 40 };
        let pieces: alloc::vec::Vec<_> = scattered.pieces().map(|piece| (piece.first.0, piece.pages)).collect();
        assert_eq!(pieces, [(100, 16), (68, 16), (36, 8)]);
        for (step, pages) in [(0, 1), (1, 0), (1, 64), (1 << 19, 1)] {
            assert_eq!(Ahead { first: Page(1), step, pages }.pack(), None, "{step} {pages}");
        }
    }
}
