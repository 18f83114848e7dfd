//! Records: a word with version and lock, and the words of a row behind it.
//!
//! ```text
//!  version word: │ version, 63 bits │ lock │     row: 8 bytes │ 8 bytes │ …
//! ```
//!
//! A version says which transaction has written the row: each that writes it gives it a larger one. 0: nobody has yet, and the row is zeroes. That is how
//! a record is known that is not there.
//!
//! A row is read without a lock: the version word before and after says whether somebody has written meanwhile ([`Records::read`]). The page may be far,
//! at any of these words; what is read at two times because of that is not the same version, or is.
//!
//! No record lies on two pages ([`Table`]), so whoever has touched one of its words has all of them near.

use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, fence};
use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use farshore_uthread::{sleep, yield_now};

use crate::memory::Region;

/// Words of a page.
pub const PAGE: u64 = 512;
/// In a version word: somebody writes the record.
const LOCKED: u64 = 1;
/// From a version word to the next larger one.
const STEP: u64 = 2;
/// Looks at a lock of another worker before the reader sleeps: it is held for microseconds, unless its owner waits for a page in place.
const LOOKS: u32 = 100;
/// How long it sleeps before the next look.
const MOMENT: Duration = Duration::from_micros(50);
/// Words that are read at a time.
const PIECE: usize = 8;

/// A version of a record. The larger one is the newer one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Version(u64);

impl Version {
    /// Of a record that was never written.
    pub const NONE: Version = Version(0);

    /// The next larger one.
    #[must_use]
    pub fn next(self) -> Version {
        Version(self.0 + STEP)
    }
}

/// Where a record is: the number of its version word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place(u64);

/// What is stored in a record: whole words.
pub trait Row: Pod {
    /// Words of it.
    const WORDS: usize = {
        assert!(size_of::<Self>().is_multiple_of(8) && align_of::<Self>() == 8);
        size_of::<Self>() / 8
    };
}

/// The words of a row.
pub fn words_of<R: Row>(row: &R) -> &[u64] {
    bytemuck::cast_slice(std::slice::from_ref(row))
}

/// The row of these words; all of it zeroes if there are no words.
pub fn row_of<R: Row>(words: &[u64]) -> R {
    let mut row = R::zeroed();
    bytemuck::cast_slice_mut::<R, u64>(std::slice::from_mut(&mut row)).iter_mut().zip(words).for_each(|(to, from)| *to = *from);
    row
}

/// Records of one size, in pages of their own.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Its first word.
    base: u64,
    /// Words of a record, with its version.
    each: u64,
    /// How many there are at most.
    count: u64,
}

impl Table {
    /// For `count` records of `R`, behind the word `end`, which becomes its end.
    ///
    /// # Errors
    /// There are no such addresses.
    pub fn new<R: Row>(count: u64, end: &mut u64) -> io::Result<Table> {
        Table::of(R::WORDS as u64 + 1, count, end)
    }

    /// For records of so many words, with their versions: at most a page.
    ///
    /// # Errors
    /// There are no such addresses.
    pub fn of(each: u64, count: u64, end: &mut u64) -> io::Result<Table> {
        let table = Table { base: *end, each, count };
        let words = count.div_ceil(PAGE / each).checked_mul(PAGE).and_then(|words| words.checked_add(*end));
        *end = words.filter(|words| *words < u64::MAX / 16).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(table)
    }

    /// How many records there may be.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Where a record is.
    ///
    /// # Panics
    /// If there is none of this number: what comes from outside is looked at before.
    pub fn at(&self, number: u64) -> Place {
        assert!(number < self.count, "record {number} of {}", self.count);
        let on_page = PAGE / self.each;
        Place(self.base + number / on_page * PAGE + number % on_page * self.each)
    }

    /// Where the record at a word of this one is, for records that lie in others.
    pub fn inside(&self, number: u64, word: u64) -> Place {
        assert!(word < self.each, "word {word} of {}", self.each);
        Place(self.at(number).0 + word)
    }
}

/// All records.
#[derive(Debug)]
pub struct Records {
    words: Region<AtomicU64>,
    /// How often somebody found a record locked: once, however long it took.
    locked: AtomicU64,
}

impl Records {
    /// Of so many words; nothing is written.
    ///
    /// # Errors
    /// If the kernel does not give that much address space.
    pub fn new(words: u64) -> io::Result<Records> {
        let words = usize::try_from(words).map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(Records { words: Region::new(words)?, locked: AtomicU64::new(0) })
    }

    /// How often somebody found a record locked.
    pub fn found_locked(&self) -> u64 {
        self.locked.load(Relaxed)
    }

    fn word(&self, place: Place) -> &AtomicU64 {
        &self.words[place.0 as usize]
    }

    /// Reads a row as one transaction has left it, and says which.
    pub fn read<R: Row>(&self, place: Place) -> (R, Version) {
        let mut row = R::zeroed();
        let into: &mut [u64] = bytemuck::cast_slice_mut(std::slice::from_mut(&mut row));
        let mut looks = 0;
        loop {
            let before = self.word(place).load(Acquire);
            if before & LOCKED != 0 {
                looks = LOOKS.min(looks + 1);
                if looks == 1 {
                    self.locked.fetch_add(1, Relaxed);
                }
                // Where the runtime is being shut down nobody sleeps.
                if looks < LOOKS || sleep(MOMENT).is_err() {
                    yield_now();
                }
                continue;
            }
            let mut at = place.0 as usize + 1;
            for piece in into.chunks_mut(PIECE) {
                let words = &self.words[at..at + piece.len()];
                piece.iter_mut().zip(words).for_each(|(to, from)| *to = from.load(Relaxed));
                at += piece.len();
            }
            // Whoever has written one of those words had locked the record before (the fence in `lock`), which the next look sees.
            fence(Acquire);
            if self.word(place).load(Relaxed) == before {
                return (row, Version(before));
            }
        }
    }

    /// Writes a row that nobody else knows of yet.
    pub fn fill<R: Row>(&self, place: Place, row: &R) {
        self.unlock_with(place, words_of(row), Version::NONE.next());
    }

    /// Brings a record's page near.
    pub fn touch(&self, place: Place) {
        std::hint::black_box(self.word(place).load(Relaxed));
    }

    /// Tries to lock a record, and says which version it has.
    pub fn lock(&self, place: Place) -> Option<Version> {
        let word = self.word(place);
        let seen = word.load(Relaxed);
        // SeqCst: of two that each lock what the other one has read, one finds the other's lock (partner: `is_still`).
        if seen & LOCKED != 0 || word.compare_exchange(seen, seen | LOCKED, SeqCst, Relaxed).is_err() {
            self.locked.fetch_add(1, Relaxed);
            return None;
        }
        // The lock is seen by whoever sees a word that is written under it (partner: the fence in `read`).
        fence(Release);
        Some(Version(seen))
    }

    /// Whether a record has this version, and nobody else writes it. `own`: it is the caller's lock.
    pub fn is_still(&self, place: Place, version: Version, own: bool) -> bool {
        let word = self.word(place).load(SeqCst);
        word == if own { version.0 | LOCKED } else { version.0 }
    }

    /// Gives a lock back; the record is as it was.
    pub fn unlock(&self, place: Place, version: Version) {
        self.word(place).store(version.0, Release);
    }

    /// Writes a row and its version, and gives the lock back.
    pub fn unlock_with(&self, place: Place, row: &[u64], version: Version) {
        let at = place.0 as usize + 1;
        self.words[at..at + row.len()].iter().zip(row).for_each(|(to, from)| to.store(*from, Relaxed));
        self.unlock(place, version);
    }
}

/// A row of one number.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
pub struct Number(pub u64);

impl Row for Number {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_record_lies_on_two_pages() {
        for each in [2, 9, 41, 85, 128, 512] {
            let mut end = PAGE;
            let table = Table::of(each, 1000, &mut end).unwrap();
            let mut next = PAGE;
            for number in 0..1000 {
                let Place(at) = table.at(number);
                assert!(at >= next && at + each <= end, "{number} overlaps");
                assert_eq!(at / PAGE, (at + each - 1) / PAGE, "{number} of {each} words");
                next = at + each;
            }
            assert!(end - next < PAGE, "no page is empty");
        }
        assert!(Table::of(2, u64::MAX / 2, &mut 0).is_err());
    }

    #[test]
    fn a_reader_counts_a_lock_once_and_waits_for_it() {
        let mut end = 0;
        let place = Table::new::<Number>(1, &mut end).unwrap().at(0);
        let records = Records::new(end).unwrap();
        let version = records.lock(place).unwrap();
        let row = std::thread::scope(|scope| {
            let reader = scope.spawn(|| records.read::<Number>(place));
            while records.found_locked() == 0 {
                std::thread::yield_now();
            }
            // Time for many looks.
            std::thread::sleep(400 * MOMENT);
            records.unlock_with(place, words_of(&Number(7)), version.next());
            reader.join().unwrap()
        });
        assert_eq!((row, records.found_locked()), ((Number(7), version.next()), 1));
    }

    #[test]
    fn a_record_is_locked_once_and_keeps_its_version() {
        let mut end = 0;
        let table = Table::new::<Number>(10, &mut end).unwrap();
        let records = Records::new(end).unwrap();
        let place = table.at(3);
        assert_eq!(records.read::<Number>(place), (Number(0), Version::NONE));
        let version = records.lock(place).unwrap();
        assert_eq!((version, records.lock(place), records.found_locked()), (Version::NONE, None, 1));
        assert!(records.is_still(place, version, true) && !records.is_still(place, version, false));
        records.unlock(place, version);
        assert!(records.is_still(place, version, false));
        records.lock(place).unwrap();
        records.unlock_with(place, words_of(&Number(7)), version.next());
        assert_eq!(records.read::<Number>(place), (Number(7), version.next()));
        assert_eq!(records.read::<Number>(table.at(2)).1, Version::NONE);
    }
}
