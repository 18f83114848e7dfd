//! Requests for pages that no fault has asked for ([`Prefetcher`]), and the threads that serve them.
//!
//! ```text
//!  a fault fetches a page ─▶ Prefetcher::fetch ─┬─▶ Fetch::take: neighbours that the same read brings                (fault::run)
//!                                               └─▶ Ahead: what another thread of ours brings meanwhile ─▶ Requests ─▶ fault::ahead
//! ```
//!
//! A thread that reads ahead is made when a request finds none that sleeps, up to a most. The watcher makes it, since a fault
//! makes no threads. Until the thread exists, requests wait in their places.
//!
//! [`Prefetcher`]: farshore_core::seams::Prefetcher

use core::sync::atomic::Ordering;
use farshore_core::page::Page;
use farshore_core::seams::{Ahead, PIECE_MAX};
use farshore_core::sync::plain::{AtomicBool, AtomicU32, AtomicU64};
use farshore_core::sync::{Futex, Padded};
use farshore_core::wait::Event;

/// The most pages that do not lie side by side which one thread reads.
const SCATTERED_MAX: u32 = 16;
/// Requests that can wait; those beyond are dropped.
const PLACES: usize = 16;

/// Requests for threads that read ahead: a few words, each a request or 0. They are hints, so a full list drops what comes, and
/// their order does not matter.
#[derive(Debug)]
pub struct Requests {
    places: [Padded<AtomicU64>; PLACES],
    came: Event,
    /// Threads that read ahead, and the most that there may be.
    readers: AtomicU32,
    readers_most: AtomicU32,
    /// One more thread would be of use.
    wants_reader: AtomicBool,
}

/// The outcome of making a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    /// There is one more thread.
    Made,
    /// Not now: ask again soon.
    Later,
    /// There will be no more threads.
    Never,
}

const STEP_BITS: u32 = 20;
const PAGES_BITS: u32 = 6;

/// Pages side by side are most likely one read, and so one request. Others are read one by one, by several threads.
fn pieces(ahead: Ahead) -> impl Iterator<Item = Ahead> {
    let most = if ahead.step.abs() == 1 { PIECE_MAX } else { SCATTERED_MAX };
    (0..ahead.pages.div_ceil(most)).map_while(move |n| {
        let first = ahead.first.0.checked_add_signed(i64::from(ahead.step) * i64::from(n * most))?;
        Some(Ahead { first: Page(first), step: ahead.step, pages: most.min(ahead.pages - n * most) })
    })
}

/// The request as one word, never 0; `None` if it is out of range.
fn pack(ahead: Ahead) -> Option<u64> {
    let limit = 1 << (STEP_BITS - 1);
    let fits = ahead.step != 0 && ahead.step.abs() < limit && (1..=PIECE_MAX).contains(&ahead.pages);
    let step = (ahead.step + limit) as u64;
    (fits && ahead.first.0 < 1 << (64 - STEP_BITS - PAGES_BITS))
        .then_some(ahead.first.0 << (STEP_BITS + PAGES_BITS) | step << PAGES_BITS | u64::from(ahead.pages))
}

fn unpack(word: u64) -> Ahead {
    let step = (word >> PAGES_BITS & ((1 << STEP_BITS) - 1)) as i32 - (1 << (STEP_BITS - 1));
    Ahead { first: Page(word >> (STEP_BITS + PAGES_BITS)), step, pages: (word & ((1 << PAGES_BITS) - 1)) as u32 }
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
    /// Asks for pages, unless too much is asked for already. Called by a fault on `core`. True: there are more requests than
    /// threads that sleep, and there may be one more thread: the watcher should make it. (A fault makes no threads.)
    #[must_use]
    pub fn ask<F: Futex>(&self, futex: &F, core: usize, ahead: Ahead) -> bool {
        let mut places = (0..PLACES).map(|n| &self.places[(core + n) % PLACES]);
        // Relaxed: a request lies whole in its word.
        let mut put =
            |word: u64| places.any(|place| place.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed).is_ok());
        let placed = pieces(ahead).map_while(pack).take_while(|&word| put(word)).count();
        if placed == 0 {
            return false;
        }
        let free = self.came.sleepers() as usize;
        self.came.signal(futex);
        let readers = self.readers.load(Ordering::Relaxed);
        placed > free && readers < self.readers_most.load(Ordering::Relaxed) && !self.wants_reader.swap(true, Ordering::AcqRel)
    }

    /// There are pages that are to come (`crate::wishes`): wakes threads that read ahead. True: there is none that sleeps, and there
    /// may be one more; the watcher should make it.
    #[must_use]
    pub(crate) fn nudge<F: Futex>(&self, futex: &F) -> bool {
        let free = self.came.sleepers();
        self.came.signal(futex);
        let readers = self.readers.load(Ordering::Relaxed);
        free == 0 && readers < self.readers_most.load(Ordering::Relaxed) && !self.wants_reader.swap(true, Ordering::AcqRel)
    }

    /// There may be this many threads that read ahead, which are made when they are of use.
    pub fn allow_readers(&self, most: u32) {
        self.readers_most.store(most, Ordering::Relaxed);
    }

    /// Threads that read ahead.
    pub fn readers(&self) -> u32 {
        self.readers.load(Ordering::Relaxed)
    }

    /// A thread that reads ahead would be of use, and none was made for it yet.
    pub(crate) fn want_reader(&self) -> bool {
        self.wants_reader.load(Ordering::Relaxed)
    }

    /// The threads that existed have ended; others may be made.
    pub(crate) fn forget_readers(&self) {
        self.readers.store(0, Ordering::Relaxed);
        self.wants_reader.store(false, Ordering::Release);
    }

    /// Makes a thread if one is wanted; called by the watcher. Returns whether to come again soon.
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
        self.places.iter().find_map(taken).map(unpack)
    }

    /// What to sleep on until one comes: prepare before [`Requests::take`].
    pub fn came(&self) -> &Event {
        &self.came
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::NoFutex;

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
            assert_eq!(pack(ahead).map(unpack), Some(ahead));
        }
        let scattered = Ahead { first: Page(100), step: -2, pages: 40 };
        let pieces: alloc::vec::Vec<_> = pieces(scattered).map(|piece| (piece.first.0, piece.pages)).collect();
        assert_eq!(pieces, [(100, 16), (68, 16), (36, 8)]);
        for (step, pages) in [(0, 1), (1, 0), (1, 64), (1 << 19, 1)] {
            assert_eq!(pack(Ahead { first: Page(1), step, pages }), None, "{step} {pages}");
        }
    }
}
