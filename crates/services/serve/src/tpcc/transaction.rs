//! Transactions, by optimistic concurrency control as in Silo (Tu et al., SOSP 2013), with unithreads that leave their worker at any access.
//!
//! While a transaction works, nothing is locked. It notes which version it has read of each record, and keeps what it writes to itself. At its end:
//!
//! 1. All records that it has read or writes are touched: there the unithread is switched away from until their pages are near.
//! 2. It [`hold`]s from here on: its worker does nothing else. It locks what it writes, in the order of the places, each by one try. Where somebody
//!    else has the lock it gives all back: a conflict.
//! 3. It looks at what it has read. If a record has another version, or another one's lock: a conflict.
//! 4. It writes, with a version larger than those that the records had, and unlocks.
//!
//! **Serialisable.** Say T has committed. What it writes is its own from the end of step 2 on, and nothing that it has read was written from when it was
//! read until step 3 looked at it. So it is as if all of T happened at the end of step 2. Of two that each have read what the other one writes, both
//! cannot pass: each locks before it looks, so the later one to look sees a lock, or what was written under it (the orderings are with [`Records`]).
//!
//! **No phantoms.** There is nothing to find that has no record. A row that is not there has version 0, which is in the set of what was read as any
//! other version. Where a transaction looks for the smallest or largest key, the index is made of records itself ([`super::database`]).
//!
//! **Locks and far pages.** Whoever has a lock does not leave its worker: no unithread of the same worker ever finds a lock, and those of other workers
//! find one for some microseconds. If a page is evicted between steps 1 and 4 its lock's owner waits for it in place: slow, in little memory not rare, and
//! right, because whoever brings the page needs no lock of ours. A reader of another worker sleeps meanwhile. Nobody waits for a lock while it has one, so there is no deadlock.
//!
//! What differs from Silo: a try instead of a wait in step 2; no epochs, and versions that say nothing across records, since nothing is logged or read as
//! of the past.

use farshore_uthread::{checkpoint, hold};

use super::records::{Place, Records, Row, Version, row_of, words_of};

/// Another transaction was quicker. Nothing has happened; it can be tried again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conflict;

/// What a transaction writes to a record.
#[derive(Clone, Copy, Debug)]
struct Write {
    place: Place,
    /// Where its row is among `words`.
    start: usize,
    length: usize,
}

/// A transaction that works. See the module's head.
#[derive(Debug)]
pub struct Transaction<'a> {
    records: &'a Records,
    reads: Vec<(Place, Version)>,
    writes: Vec<Write>,
    words: Vec<u64>,
}

impl<'a> Transaction<'a> {
    /// At its beginning.
    pub fn new(records: &'a Records) -> Transaction<'a> {
        Transaction { records, reads: Vec::new(), writes: Vec::new(), words: Vec::new() }
    }

    /// Reads a record, or what this transaction has written to it. Zeroes: nobody has written it.
    ///
    /// What several reads say need not go together until [`Transaction::commit`] says so: the caller must not rely on it.
    pub fn read<R: Row>(&mut self, place: Place) -> R {
        if let Some(own) = self.writes.iter().find(|write| write.place == place) {
            return row_of(&self.words[own.start..own.start + own.length]);
        }
        // Nothing is locked, and at any record whose page is far others run anyway.
        checkpoint();
        let (row, version) = self.records.read(place);
        self.reads.push((place, version));
        row
    }

    /// Writes a record, once this transaction commits.
    pub fn write<R: Row>(&mut self, place: Place, row: &R) {
        let words = words_of(row);
        match self.writes.iter().find(|write| write.place == place) {
            Some(own) => self.words[own.start..own.start + own.length].copy_from_slice(words),
            None => {
                // Now rather than at the end, by when more has been read that others may change.
                self.records.touch(place);
                self.writes.push(Write { place, start: self.words.len(), length: words.len() });
                self.words.extend_from_slice(words);
            }
        }
    }

    /// Lets all of it happen at once, or nothing. The version that has what it wrote.
    ///
    /// # Errors
    /// Another transaction was quicker.
    pub fn commit(mut self) -> Result<Version, Conflict> {
        self.writes.sort_unstable_by_key(|write| write.place);
        self.reads.iter().for_each(|(place, _)| self.records.touch(*place));
        self.writes.iter().for_each(|write| self.records.touch(write.place));
        let _hold = hold();
        let mut locked = Locks { records: self.records, have: Vec::with_capacity(self.writes.len()) };
        for write in &self.writes {
            locked.have.push((write.place, self.records.lock(write.place).ok_or(Conflict)?));
        }
        for (place, version) in &self.reads {
            let own = locked.have.binary_search_by_key(place, |(place, _)| *place).is_ok();
            if !self.records.is_still(*place, *version, own) {
                return Err(Conflict);
            }
        }
        let newest = locked.have.iter().map(|(_, version)| *version).max();
        let version = newest.unwrap_or(Version::NONE).next();
        locked.have.clear();
        for write in &self.writes {
            self.records.unlock_with(write.place, &self.words[write.start..write.start + write.length], version);
        }
        Ok(version)
    }

    /// What it has read, and what it will write: for tests.
    #[cfg(test)]
    pub fn sets(&self) -> (Vec<(Place, Version)>, Vec<Place>) {
        (self.reads.clone(), self.writes.iter().map(|write| write.place).collect())
    }
}

/// Locks that are given back unless the records are written.
struct Locks<'a> {
    records: &'a Records,
    have: Vec<(Place, Version)>,
}

impl Drop for Locks<'_> {
    fn drop(&mut self) {
        for (place, version) in &self.have {
            self.records.unlock(*place, *version);
        }
    }
}
