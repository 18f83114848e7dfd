//! Locks on pages, set by a process that has the memory mapped too (the *locker*), and honoured by evictors of another process. The counts lie in memory that both share.
//!
//! ```text
//!  locker                                   evictor
//!  1. counts the lock                       1. owns the page, and protects it in each mapping
//!  2. touches the page, for writing         2. looks at the counts
//!  3. uses it (a device does)               3. locked: the page stays. Else it is copied, and taken out
//!  4. counts the lock down
//! ```
//!
//! # Why a page that is locked, and was touched, stays
//!
//! Each says what it does, and only then looks what the other one does. What the locker says is a count. What the evictor says is the page's protection: a touch goes through only where it finds the page there and
//! writable. The kernel changes an entry of a page table under a lock of its own, and so has both in one order:
//!
//! * **The touch came first.** The count was there before it, so the evictor, which looks behind the protection, sees it.
//! * **The protection came first.** The touch faults, and waits for the page's owner, which is the evictor. Either it has seen the count, and the page stays. Or the page has left, and the fault brings it back: then it is
//!   writable again, and the next evictor begins with its first step.
//!
//! A page that is clean is protected already, in each mapping. So the touch faults, and the same holds.
//!
//! The touch is one for writing also where the page is only to be read: a touch that reads finds a protected page, and would not tell that it leaves. So a page that was locked is dirty, which it must be if a device writes
//! to it: no fault would tell of that.
//!
//! # Counts
//!
//! One byte a page, in a table that one locker alone has: how often its threads have locked the page. The other lockers' tables are theirs, so none can take another one's lock away. With a locker its table goes.

use crate::sync::{AtomicU8, Ordering, both_sides};

/// How often a page can be locked at a time, by one locker.
pub const LOCKS_MAX: u8 = u8::MAX;

/// A page is locked so often that one more lock cannot be counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// The counts of one locker, a byte a page.
#[derive(Clone, Copy, Debug)]
pub struct Locks<'t>(&'t [AtomicU8]);

impl<'t> Locks<'t> {
    /// The counts in this memory. 0: not locked.
    pub const fn new(counts: &'t [AtomicU8]) -> Locks<'t> {
        Locks(counts)
    }

    /// Locks `pages` pages from `first` on, once more each: all of them or, with an error, none. They must be touched afterwards, and used only then.
    ///
    /// # Errors
    /// One of them is locked too often.
    ///
    /// # Panics
    /// There are not so many pages.
    pub fn lock(self, first: usize, pages: usize) -> Result<(), Full> {
        let range = &self.0[first..first + pages];
        for (done, count) in range.iter().enumerate() {
            let more = |now: u8| now.checked_add(1);
            if count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_err() {
                self.unlock(first, done);
                return Err(Full);
            }
        }
        // Between the counts and the touch that follows.
        both_sides();
        Ok(())
    }

    /// Takes one lock of each of these pages away. What has used them is done with them.
    ///
    /// # Panics
    /// There are not so many pages.
    pub fn unlock(self, first: usize, pages: usize) {
        for count in &self.0[first..first + pages] {
            // One that is not locked, by a mistake of the caller's, stays so: it must not become locked for ever.
            let _ = count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| now.checked_sub(1));
        }
    }

    /// Whether all of these pages are locked.
    pub fn are_locked(self, first: usize, pages: usize) -> bool {
        self.0[first..first + pages].iter().all(|count| count.load(Ordering::SeqCst) > 0)
    }

    /// Whether a page is locked: an evictor asks that owns the page, and has protected it in the locker's mapping. A page that the table does not have is not locked.
    pub fn holds(self, page: usize) -> bool {
        both_sides();
        self.0.get(page).is_some_and(|count| count.load(Ordering::SeqCst) > 0)
    }

    /// How many pages are locked.
    pub fn count(self) -> u64 {
        self.0.iter().filter(|count| count.load(Ordering::Relaxed) > 0).count() as u64
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn locks_are_counted() {
        let counts: [AtomicU8; 4] = core::array::from_fn(|_| AtomicU8::new(0));
        let locks = Locks::new(&counts);
        assert_eq!((locks.lock(0, 3), locks.lock(2, 2), locks.count()), (Ok(()), Ok(()), 4));
        locks.unlock(0, 3);
        assert_eq!([0, 1, 2, 3].map(|page| locks.holds(page)), [false, false, true, true]);
        assert!(locks.are_locked(2, 2) && !locks.are_locked(1, 2) && !locks.holds(4));
        // One unlock too many is nobody's lock.
        locks.unlock(0, 1);
        assert_eq!((locks.lock(0, 1), locks.holds(0)), (Ok(()), true));
    }

    #[test]
    fn one_lock_too_many_changes_nothing() {
        let counts: [AtomicU8; 3] = core::array::from_fn(|_| AtomicU8::new(0));
        let locks = Locks::new(&counts);
        (0..LOCKS_MAX).for_each(|_| locks.lock(1, 1).expect("there is room"));
        assert_eq!(locks.lock(0, 3), Err(Full));
        assert_eq!([0, 1, 2].map(|page| locks.holds(page)), [false, true, false]);
        locks.unlock(1, 1);
        assert_eq!(locks.lock(0, 3), Ok(()));
    }
}
