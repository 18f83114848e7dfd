//! The ordered store: LMDB, filled once and read only from then on.
//!
//! **Why LMDB.** A unithread may be switched away from at any access to a page, and another one may read at the same place meanwhile, on the same thread. So
//! a read must not hold a lock, have thread-local data in two minds, or be inside of `malloc` when it touches what it reads. LMDB's are like that (looked up in
//! `mdb.c` of the pinned version, for a transaction that only reads, in an environment without locks and thread-local data, whose only database is the
//! unnamed one):
//!
//! - `mdb_get`, and `mdb_cursor_get` with `MDB_SET_RANGE` and `MDB_NEXT`, walk from page to page by their numbers. They write to the cursor alone, which lies
//!   on the stack or is the request's own; and to the transaction, where they find a page damaged. They allocate nothing.
//! - A transaction's beginning copies what it needs from one of the first two pages, and `mdb_cursor_open` touches no page at all (only a named database would
//!   be looked up). Both allocate, by C's `malloc`, and their ends free: they are called with a `Hold`. If that page is far, it is waited for in place.
//!
//! **Each request has a transaction of its own**, from those that ended requests have left: so that this holds without asking what one that is shared
//! would have to promise.

use std::fmt;
use std::ops::Bound;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use farshore_uthread::{checkpoint, hold, stopping};
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, PutFlags, RoTxn, WithoutTls};

use crate::memory::{Far, Unnamed, create, open_far};
use crate::numbers::{self, WORD};

/// Bytes of a page of LMDB's.
const PAGE: usize = 4096;
/// Values that are larger than so have pages of their own: two items must fit into a page.
const SHARES_PAGE: usize = 1984;
/// Bytes of an item besides its value, and more than of what leads to it.
const BESIDES: usize = 64;
/// Addresses that LMDB may have at most.
const MOST: usize = 1 << 45;
/// Bytes of values that are written in one transaction: they lie in the heap until it ends.
const TRANSACTION: usize = 4 << 20;

type Reading = RoTxn<'static, WithoutTls>;

/// Keys from 0 on, each with the item of that index: see [`numbers`].
pub struct Store {
    /// Transactions that no request has now. They go before the environment.
    idle: Mutex<Vec<Reading>>,
    far: Far,
}

/// Why there is no store.
#[derive(Debug)]
pub enum Error {
    /// More than can be mapped.
    TooMany,
    /// No file can be made there.
    Directory(std::io::Error),
    /// It cannot be written: so many bytes.
    Write(usize, heed::Error),
    /// It cannot be read into memory: so many bytes.
    Read(usize, heed::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mega = |bytes: &usize| bytes.div_ceil(1 << 20);
        match self {
            Error::TooMany => write!(f, "more than {} TiB: give less", MOST >> 40),
            Error::Directory(error) => write!(f, "no file can be made there: {error}: name a directory by --path"),
            Error::Write(bytes, error) => {
                let why = why_not_written(error);
                let bytes = mega(bytes);
                write!(f, "cannot write a file of {bytes} MiB: {why}: give less --items, or another directory by --path")
            }
            Error::Read(bytes, error) => write!(f, "cannot get {} MiB of memory for the items: {error}: give less", mega(bytes)),
        }
    }
}

/// LMDB tells a write that was cut short, as on a disk that gets full, as `EIO`.
fn why_not_written(error: &heed::Error) -> String {
    match error {
        heed::Error::Io(why) if why.raw_os_error() == Some(libc::EIO) => "the disk is full, or fails".into(),
        error => error.to_string(),
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("far", &self.far).finish_non_exhaustive()
    }
}

impl Store {
    /// Of so many items, at least one, with values of `value_bytes`, a multiple of 8. They are written to a file without a name in `directory`, which is empty
    /// afterwards.
    ///
    /// # Errors
    /// Why there is none.
    pub fn new(items: u64, value_bytes: usize, directory: &Path) -> Result<Store, Error> {
        let most = map_bytes(items, value_bytes).ok_or(Error::TooMany)?;
        let file = Unnamed::new(directory).map_err(Error::Directory)?;
        let total = usize::try_from(items).map_or(0, |items| items * value_bytes);
        let bytes = fill(&file, most, items, value_bytes).map_err(|error| Error::Write(total, error))?;
        let far = open_far(file, bytes).map_err(|error| Error::Read(bytes, error))?;
        Ok(Store { idle: Mutex::default(), far })
    }

    /// The value of a key.
    pub fn get(&self, key: u64) -> Option<u64> {
        self.read(|reading| self.far.items.get(reading, &key.to_be_bytes()).unwrap_or_else(damaged).map(sum))
    }

    /// How many values of `key` and those after it there are, at most `most`, and their sum. `None`: the runtime ends.
    pub fn scan(&self, key: u64, most: u64) -> Option<(u64, u64)> {
        let start = key.to_be_bytes();
        let bounds = (Bound::Included(&start[..]), Bound::Unbounded);
        self.read(|reading| {
            let mut range = {
                let _hold = hold();
                self.far.items.range(reading, &bounds).unwrap_or_else(damaged)
            };
            let found = add_up(&mut range, most);
            let _hold = hold();
            drop(range);
            found
        })
    }

    /// Does `work` with a transaction that nobody else has.
    fn read<T>(&self, work: impl FnOnce(&Reading) -> T) -> T {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let reading = {
            let _hold = hold();
            let left = idle().pop();
            left.unwrap_or_else(|| self.far.env.clone().static_read_txn().unwrap_or_else(damaged))
        };
        let done = work(&reading);
        let _hold = hold();
        idle().push(reading);
        done
    }
}

/// How many values come, at most `most`, and their sum. `None`: the runtime ends.
fn add_up<'a>(items: &mut impl Iterator<Item = heed::Result<(&'a [u8], &'a [u8])>>, most: u64) -> Option<(u64, u64)> {
    let (mut count, mut all) = (0, 0_u64);
    while count < most
        && let Some(item) = items.next()
    {
        let (_, value) = item.unwrap_or_else(damaged);
        all = all.wrapping_add(sum(value));
        count += 1;
        checkpoint();
        if stopping() {
            return None;
        }
    }
    Some((count, all))
}

fn sum(value: &[u8]) -> u64 {
    #[cfg(test)]
    crate::memory::comes_from_far();
    value.as_chunks::<WORD>().0.iter().fold(0, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}

/// Nobody changes the pages: what is wrong with them is memory that is not what was written.
fn damaged<T>(error: heed::Error) -> T {
    panic!("the store cannot be read: {error}")
}

/// Addresses for the file, a multiple of pages: rather more than it will need.
fn map_bytes(items: u64, value_bytes: usize) -> Option<usize> {
    let item = if value_bytes <= SHARES_PAGE {
        PAGE / ((PAGE - BESIDES) / (value_bytes + BESIDES / 2))
    } else {
        (value_bytes + BESIDES).next_multiple_of(PAGE) + BESIDES
    };
    let items = usize::try_from(items).ok()?.checked_mul(item)?;
    // What leads to them, and what the versions of a page take that transactions leave behind.
    let all = items.checked_add(items / 8)?.checked_add(64 << 20)?.checked_next_multiple_of(PAGE)?;
    (all <= MOST).then_some(all)
}

/// Writes all items, in the order of their keys. Tells how many bytes of the file are used.
fn fill(file: &Unnamed, most: usize, items: u64, value_bytes: usize) -> heed::Result<usize> {
    let env = create(file, most)?;
    let database = env.create_databases_and_commit(env.write_txn()?, |opener, txn| {
        opener.create_database::<Bytes, Bytes>(txn, None).map(CommitOrAbort::<_, ()>::Commit)
    })?;
    let database: Database<'static, Bytes, Bytes> = database.unwrap_commit();
    let at_a_time = (TRANSACTION / value_bytes).max(1);
    let mut value = vec![0; value_bytes];
    for start in (0..items).step_by(at_a_time) {
        let mut txn = env.write_txn()?;
        for key in start..items.min(start + at_a_time as u64) {
            let places = value.as_chunks_mut::<WORD>().0.iter_mut();
            places.zip(numbers::words(key, value_bytes / WORD)).for_each(|(place, word)| *place = word.to_le_bytes());
            database.put_with_flags(&mut txn, PutFlags::APPEND, &key.to_be_bytes(), &value)?;
        }
        txn.commit()?;
    }
    let used = (env.info().last_page_number + 1) * PAGE;
    env.prepare_for_closing().wait();
    Ok(used)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_is_less_than_what_is_mapped() {
        const ITEMS: u64 = 4000;
        for bytes in [8, 64, 1024, 1344, 1352, 1984, 1992, 2016, 2024, 4064, 4080, 4088, 9000] {
            let most = map_bytes(ITEMS, bytes).unwrap();
            let file = Unnamed::new(&std::env::temp_dir()).unwrap();
            let used = fill(&file, most, ITEMS, bytes).unwrap();
            // Both without what is there for small stores.
            assert!(used < most - (64 << 20) + 64 * PAGE, "{bytes}: {used} of {most}");
            assert!(used > 4000 * bytes);
        }
    }

    #[test]
    fn errors_say_what_to_do() {
        let full = || heed::Error::Io(std::io::Error::from_raw_os_error(libc::EIO));
        for (error, part) in [
            (Error::TooMany, "32 TiB"),
            (Error::Write(5 << 20, full()), "5 MiB: the disk is full"),
            (Error::Read(1, full()), "1 MiB"),
        ] {
            let text = error.to_string();
            assert!(text.contains(part) && text.contains("give less") && !text.contains('\n'), "{text}");
        }
    }
}
