//! Where a pool in RAM has the page of a slot: one word a slot, which faults read and evictors change.
//!
//! ```text
//!   nothing ──put──▶ a chunk, or one word repeated ──take──▶ nothing
//! ```
//!
//! A reader *pins* the place while it decompresses, without a lock (the reader may be a signal handler). An evictor *takes* a
//! place to give its memory to another page, or *relocates* the page to empty the memory around it. Both fail while another
//! thread reads the place. Evictors change words under the pool's lock, so only pins can come between.
//!
//! # The copy in the tier below
//!
//! The oldest places are copied to the same slot of the tier below while they stay readable here: [`PooledWord::begin_copy`].
//! While a copy is under way no other thread may write that slot below, or two writes of one block would race in the device. So a
//! second copy is refused, and so is a write of the page that goes past the pool ([`PooledWord::is_copied`]). A place that is
//! taken or replaced meanwhile is *stale*: the copy that ends then is of bytes that are no longer wanted, and the new place stays
//! ([`PooledWord::end_copy`]).
//!
//! # What must hold (modelled in `tests/loom_pooled.rs`)
//!
//! 1. No thread reads memory that was taken.
//! 2. A page whose place was taken after its copy reads the same bytes below.
//! 3. No slot below is written twice at one time.

use crate::sync::{AtomicU64, Ordering};

const READER: u64 = 1;
const READERS: u64 = 0xff;
const COPIED: u64 = 1 << 8;
const STALE: u64 = 1 << 9;
const KIND_SHIFT: u32 = 10;
const KIND: u64 = 3 << KIND_SHIFT;
const LEN_SHIFT: u32 = 12;
const LEN_BITS: u32 = 13;
const AT_SHIFT: u32 = LEN_SHIFT + LEN_BITS;
/// Bits of the word that say where the page is.
const PLACE: u64 = !(READERS | COPIED | STALE);

/// Where a page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In a chunk of the pool.
    Chunk {
        /// Its number: bytes into the pool, in units of the smallest chunk. Below 2^39.
        at: u64,
        /// Bytes of it that are used: 1 to 4096.
        len: u32,
    },
    /// The page is one 64-bit word again and again. The word is kept by the code that keeps the slot's entry.
    Repeated,
}

impl Place {
    fn encode(self) -> u64 {
        match self {
            Place::Chunk { at, len } => {
                debug_assert!(at < 1 << (64 - AT_SHIFT) && (1..=4096).contains(&len));
                1 << KIND_SHIFT | u64::from(len) << LEN_SHIFT | at << AT_SHIFT
            }
            Place::Repeated => 2 << KIND_SHIFT,
        }
    }

    fn decode(word: u64) -> Option<Place> {
        match (word & KIND) >> KIND_SHIFT {
            1 => Some(Place::Chunk { at: word >> AT_SHIFT, len: (word >> LEN_SHIFT & ((1 << LEN_BITS) - 1)) as u32 }),
            2 => Some(Place::Repeated),
            _ => None,
        }
    }
}

/// How a copy to the tier below ended.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyEnd {
    /// The page is below: its place here has been taken.
    Moved(Place),
    /// The page stays here: a thread reads it, the copy failed, or the bytes that were copied are no longer here.
    Stays,
}

/// The word of one slot.
#[derive(Debug, Default)]
pub struct PooledWord(AtomicU64);

impl PooledWord {
    /// A word that says that the slot has no page here.
    pub fn new() -> PooledWord {
        PooledWord(AtomicU64::new(0))
    }

    /// Where the page is. For evictors, under the pool's lock: without the lock the answer may be outdated when it
    /// arrives.
    pub fn place(&self) -> Option<Place> {
        Place::decode(self.0.load(Ordering::Acquire))
    }

    /// Keeps the page where it is until [`PooledWord::unpin`]; `None`: the page is not here. For any thread that may read
    /// the slot.
    pub fn pin(&self) -> Option<Place> {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            let place = Place::decode(word)?;
            debug_assert!(word & READERS < READERS, "255 readers of one page");
            // Acquire: the chunk's bytes were written before the word.
            match self.0.compare_exchange_weak(word, word + READER, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(place),
                Err(now) => word = now,
            }
        }
    }

    /// Ends a reader's pin.
    pub fn unpin(&self) {
        // Release: the reader's loads come before the memory is given to another page.
        let before = self.0.fetch_sub(READER, Ordering::Release);
        debug_assert!(before & READERS > 0, "unpinned twice");
    }

    /// A new page has come, in a place that was written before this call. Under the pool's lock; the word must have no
    /// place.
    pub fn put(&self, place: Place) {
        let word = self.0.load(Ordering::Relaxed);
        debug_assert!(Place::decode(word).is_none() && word & READERS == 0, "there is a page already");
        // The word has no place, so no thread can pin it, and every other access holds the lock.
        self.0.store(word & (COPIED | STALE) | place.encode(), Ordering::Release);
    }

    /// Takes the page out, unless a thread reads it; its memory may then be used for another page. Under the pool's lock.
    pub fn take(&self) -> Option<Place> {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            let place = Place::decode(word)?;
            if word & READERS > 0 {
                return None;
            }
            // A copy that is under way is of this page, and not of the next page that comes here.
            let stale = if word & COPIED > 0 { STALE } else { 0 };
            // Acquire: pairs with the last reader's release. Release: a thread that finds no page here looks below, at what was
            // written before.
            match self.0.compare_exchange_weak(word, word & !PLACE | stale, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(place),
                Err(now) => word = now,
            }
        }
    }

    /// The page lies elsewhere from now on, where it was written before this call, unless a thread reads it. The old place may
    /// then be used for another page. Under the pool's lock.
    pub fn relocate(&self, to: Place) -> bool {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            debug_assert!(Place::decode(word).is_some(), "there is no page");
            if word & READERS > 0 {
                return false;
            }
            // Orderings as in `take`. A copy that is under way is still a copy of this page.
            match self.0.compare_exchange_weak(word, word & !PLACE | to.encode(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    /// Begins a copy to the tier below, unless one is under way or there is nothing to copy. Under the pool's lock.
    pub fn begin_copy(&self) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        if word & COPIED > 0 || Place::decode(word).is_none() {
            return false;
        }
        self.0.fetch_or(COPIED, Ordering::Relaxed);
        true
    }

    /// Whether a copy is under way, so that no other thread may write the slot below.
    pub fn is_copied(&self) -> bool {
        self.0.load(Ordering::Relaxed) & COPIED > 0
    }

    /// The copy has ended; `well`: the tier below has the bytes. Under the pool's lock.
    pub fn end_copy(&self, well: bool) -> CopyEnd {
        let mut word = self.0.load(Ordering::Acquire);
        debug_assert!(word & COPIED > 0, "no copy was begun");
        loop {
            let moved = Place::decode(word).filter(|_| well && word & (STALE | READERS) == 0);
            let next = match moved {
                Some(_) => 0,
                None => word & !(COPIED | STALE),
            };
            // Orderings as in `take`.
            match self.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return moved.map_or(CopyEnd::Stays, CopyEnd::Moved),
                Err(now) => word = now,
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const HERE: Place = Place::Chunk { at: 0x7f_ffff_ffff, len: 4096 };

    #[test]
    fn places_are_kept_whole() {
        for place in [HERE, Place::Chunk { at: 0, len: 1 }, Place::Chunk { at: 77, len: 2048 }, Place::Repeated] {
            let word = PooledWord::new();
            assert_eq!((word.place(), word.pin()), (None, None));
            word.put(place);
            assert_eq!((word.place(), word.pin()), (Some(place), Some(place)));
            assert_eq!(word.take(), None, "while it is read");
            word.unpin();
            assert_eq!((word.take(), word.place(), word.take()), (Some(place), None, None));
        }
    }

    #[test]
    fn a_page_is_relocated_unless_it_is_read() {
        let there = Place::Chunk { at: 5, len: 4096 };
        let word = PooledWord::new();
        word.put(HERE);
        assert!(word.pin().is_some() && !word.relocate(there));
        word.unpin();
        assert!(word.begin_copy() && word.relocate(there) && word.is_copied());
        assert_eq!(word.end_copy(true), CopyEnd::Moved(there));
    }

    #[test]
    fn a_copy_moves_what_was_copied_and_nothing_else() {
        let word = PooledWord::new();
        assert!(!word.begin_copy(), "of nothing");
        word.put(HERE);
        assert!(word.begin_copy() && word.is_copied() && !word.begin_copy());
        assert_eq!((word.end_copy(true), word.is_copied(), word.place()), (CopyEnd::Moved(HERE), false, None));
        // The copy failed.
        word.put(HERE);
        assert!(word.begin_copy());
        assert_eq!((word.end_copy(false), word.is_copied(), word.place()), (CopyEnd::Stays, false, Some(HERE)));
        // A reader has the page pinned.
        assert!(word.begin_copy() && word.pin().is_some());
        assert_eq!(word.end_copy(true), CopyEnd::Stays);
        word.unpin();
        // Another page came meanwhile, even into the same place.
        assert!(word.begin_copy());
        assert_eq!(word.take(), Some(HERE));
        assert!(word.is_copied() && !word.begin_copy());
        word.put(HERE);
        assert!(!word.begin_copy(), "the slot below is being written");
        assert_eq!((word.end_copy(true), word.place()), (CopyEnd::Stays, Some(HERE)));
        assert!(word.begin_copy());
        assert_eq!(word.end_copy(true), CopyEnd::Moved(HERE));
        // No other page came.
        word.put(HERE);
        assert!(word.begin_copy() && word.take().is_some());
        assert_eq!((word.end_copy(true), word.place(), word.is_copied()), (CopyEnd::Stays, None, false));
    }
}
