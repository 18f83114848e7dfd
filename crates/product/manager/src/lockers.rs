//! Other processes that have the client's memory mapped too (*lockers*), as evictors see them: in whose page tables a page must be protected, and whether one of them has locked it.
//!
//! ```text
//!  evictor   protect: the client's mapping, then each locker's ─▶ is it locked? ─▶ copy ─▶ punch: it leaves all mappings
//!  locker    lock ─▶ touch ─▶ a fault, if it is protected or out ─▶ `crate::lend`: pin ─▶ writable in the locker's mapping ─▶ unpin
//! ```
//!
//! [`farshore_core::locks`] says why that suffices.
//!
//! # What always holds
//!
//! 1. **A page that can be written in a locker's mapping is dirty, or pinned for writing.** Its mapping is write-protected as a whole before the locker hears that it is served. Each page is made writable there alone, while it is
//!    pinned; and an evictor protects it in all mappings before it copies it. What protects a page that leaves stays in the page table, as a marker, so a page that comes back clean is protected. So no write of a locker is
//!    missed, locked or not.
//! 2. **A locker can do nothing to anybody else.** All that it says (where it has mapped memory, what it has locked) concerns calls on its own userfaultfd and its own locks. Nothing is copied to where it says. What it locks beyond
//!    what it may ends in its being cut off.
//! 3. **One that is cut off has its mapping protected once more, and is served no more.** Its userfaultfd stays open until nothing is mapped there, or its process has ended: with the last descriptor the process would put zeros
//!    where a page is out, for the client too.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farshore_core::limits::PAGE_SIZE;
use farshore_core::page::{Page, PageRange};
use farshore_core::seams::KernelError;
use farshore_map::table::{Mapped, State, Table};
use farshore_sys::uffd::{Uffd, UffdError};

const PAGE: u64 = PAGE_SIZE as u64;
/// The most lockers at a time.
pub const LOCKERS_MAX: usize = 8;
/// Each may lock one page of so many that may be in RAM: all of them together a quarter.
const SHARE: u64 = 32;
/// But always so many.
const LEAST: u64 = 16;
/// How often a call is repeated that the kernel refuses for the moment.
const AGAIN_MAX: u32 = 1000;

/// How many pages each may lock, with this limit in bytes.
pub fn allowed(limit: u64) -> u64 {
    (limit / PAGE / SHARE).max(LEAST)
}

/// A part of the client's memory, as a locker has it mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The client's pages.
    pub pages: PageRange,
    /// Where the first one is in the locker's address space.
    pub at: u64,
    /// Its number in the locker's table.
    pub first: usize,
}

/// Checks where a locker says that it has mapped regions, in their order.
///
/// # Errors
/// One line: it cannot be so.
pub fn parts(regions: &[PageRange], mapped: &[u64]) -> Result<Vec<Part>, String> {
    if mapped.len() != regions.len() {
        return Err(format!("it has mapped {} of {} regions", mapped.len(), regions.len()));
    }
    let mut first = 0;
    let part = |(pages, &at): (&PageRange, &u64)| {
        if at % PAGE != 0 || at.checked_add(pages.bytes()).is_none_or(|end| end > 1 << 47) {
            return Err(format!("it cannot have mapped {} bytes at {at:#x}", pages.bytes()));
        }
        let part = Part { pages: *pages, at, first };
        first += pages.len() as usize;
        Ok(part)
    };
    regions.iter().zip(mapped).map(part).collect()
}

/// Another process that has the memory mapped.
#[derive(Debug)]
pub struct Locker {
    /// Its place among those that are there.
    pub number: usize,
    /// Its process.
    pub process: i32,
    /// Can be read when the process has ended.
    pub end: OwnedFd,
    /// Its connection.
    pub socket: OwnedFd,
    /// Of its mapping.
    pub uffd: Uffd,
    /// Its locks.
    pub table: Table,
    parts: Vec<Part>,
    /// It is served. Held while a page is made writable in its mapping.
    served: Mutex<bool>,
    /// It cannot be served on: why.
    broken: Mutex<Option<String>>,
    /// An evictor has met a lock of its, since it was looked last.
    met: AtomicBool,
    /// The most pages that it was ever told it may lock.
    granted: AtomicU64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls the kernel about a locker's mapping, again while it is busy. `None`: nothing is mapped and registered there.
fn ask(mut call: impl FnMut() -> Result<(), UffdError>) -> Result<Option<()>, UffdError> {
    let mut left = AGAIN_MAX;
    loop {
        match call() {
            Ok(()) => return Ok(Some(())),
            Err(UffdError::NotRegistered | UffdError::ProcessGone) => return Ok(None),
            Err(UffdError::Again { .. }) if left > 0 => left -= 1,
            Err(why) if why.errno() == farshore_sys::raw::Errno::EINTR && left > 0 => left -= 1,
            Err(why) => return Err(why),
        }
        std::thread::yield_now();
    }
}

impl Locker {
    /// One that is not served yet.
    pub fn new(number: usize, process: (i32, OwnedFd), socket: OwnedFd, uffd: Uffd, table: Table, parts: Vec<Part>) -> Locker {
        let (process, end) = process;
        Locker {
            number,
            process,
            end,
            socket,
            uffd,
            table,
            parts,
            served: Mutex::new(false),
            broken: Mutex::default(),
            met: AtomicBool::new(false),
            granted: AtomicU64::new(0),
        }
    }

    /// Writes down where it has its memory, for whoever takes over.
    pub fn note(&self) {
        let mapped = |part: &Part| Mapped { address: part.pages.start.addr(), bytes: part.pages.bytes(), at: part.at };
        self.table.note(&self.parts.iter().map(mapped).collect::<Vec<_>>());
    }

    /// Its parts.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The client's page at an address of the locker's.
    pub fn page_at(&self, address: u64) -> Option<Page> {
        let inside = |part: &&Part| address.checked_sub(part.at).is_some_and(|from| from < part.pages.bytes());
        self.parts.iter().find(inside).map(|part| part.pages.start.plus((address - part.at) / PAGE))
    }

    fn holds(&self, page: Page) -> bool {
        let place = self.parts.iter().find(|part| part.pages.contains(page));
        place.is_some_and(|part| self.table.locks().holds(part.first + (page.0 - part.pages.start.0) as usize))
    }

    /// It cannot be served on.
    pub fn fail(&self, why: String) {
        locked(&self.broken).get_or_insert(why);
    }

    /// Why it cannot be served on, if it cannot.
    pub fn failure(&self) -> Option<String> {
        locked(&self.broken).clone()
    }

    /// Protects pages in its mapping, as far as there are some.
    fn protect(&self, range: PageRange) -> Result<(), UffdError> {
        for part in &self.parts {
            let pages = part.pages.intersect(range);
            if !pages.is_empty() {
                let at = part.at + (pages.start.0 - part.pages.start.0) * PAGE;
                ask(|| self.uffd.protect(at, pages.bytes()))?;
            }
        }
        Ok(())
    }

    /// Protects all of its mapping. Whether anything is mapped there.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn protect_all(&self) -> Result<bool, UffdError> {
        let mut is_there = false;
        for part in &self.parts {
            is_there |= ask(|| self.uffd.protect(part.at, part.pages.bytes()))?.is_some();
        }
        Ok(is_there)
    }

    /// Its mapping is ordinary memory again, and whoever waits there is woken: all pages are back.
    pub fn unregister(&self) {
        self.parts.iter().for_each(|part| _ = self.uffd.unregister(part.at, part.pages.bytes()));
    }

    /// Makes a page writable in its mapping, unless it is served no more. The page is pinned for writing.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn unprotect(&self, address: u64) -> Result<(), UffdError> {
        let served = locked(&self.served);
        if *served {
            ask(|| self.uffd.unprotect(address, PAGE, false))?;
        }
        Ok(())
    }

    /// Looks how much it may lock with this limit, and whether it has locked more. How much, if it has.
    pub fn look(&self, limit: u64) -> Option<u64> {
        let may = allowed(limit);
        self.table.allow(may);
        let most = self.granted.fetch_max(may, Ordering::Relaxed).max(may);
        let has = if self.met.swap(false, Ordering::Relaxed) { self.table.locks().count() } else { 0 };
        Some(has).filter(|has| *has > most)
    }
}

/// Counts.
#[derive(Debug, Default)]
pub struct Counts {
    /// Faults that were served.
    pub faults: AtomicU64,
    /// Pages that an evictor has put back.
    pub put_back: AtomicU64,
    /// Lockers that were cut off.
    pub cut_off: AtomicU64,
}

/// All lockers of a client's memory.
#[derive(Debug, Default)]
pub struct Lockers {
    /// Those that are served. Evictors take a copy of the list, so that nobody who comes or goes waits for one of them.
    served: Mutex<Arc<[Arc<Locker>]>>,
    /// There are some.
    some: AtomicBool,
    /// Those that have a place: served, about to be, or cut off with memory that is still mapped.
    there: Mutex<[bool; LOCKERS_MAX]>,
    /// Those that are cut off.
    cut: Mutex<Vec<Arc<Locker>>>,
    /// What has happened.
    pub counts: Counts,
}

impl Lockers {
    /// Takes a place.
    pub fn take_place(&self) -> Option<usize> {
        let mut there = locked(&self.there);
        let free = there.iter().position(|is| !is)?;
        there[free] = true;
        Some(free)
    }

    /// Takes the place of one that was there before this process.
    pub fn take_this_place(&self, number: usize) {
        locked(&self.there)[number] = true;
    }

    /// Gives it back.
    pub fn give_place(&self, number: usize) {
        locked(&self.there)[number] = false;
    }

    /// Those that are served now.
    pub fn all(&self) -> Arc<[Arc<Locker>]> {
        locked(&self.served).clone()
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Arc<Locker>>)) {
        let mut served = locked(&self.served);
        let mut all = served.to_vec();
        change(&mut all);
        self.some.store(!all.is_empty(), Ordering::SeqCst);
        *served = all.into();
    }

    /// A locker is served from now on: evictors protect its pages, and its locks hold. Its mapping is registered and protected as a whole afterwards, and before it hears of it.
    pub fn add(&self, locker: Arc<Locker>) {
        *locked(&locker.served) = true;
        self.change(|all| all.push(locker));
    }

    /// A locker is served no more. False: it was not. Whoever cuts it off keeps it until nothing is mapped there.
    pub fn cut_off(&self, locker: &Arc<Locker>) -> bool {
        let mut served = locked(&locker.served);
        if !std::mem::take(&mut *served) {
            return false;
        }
        locker.table.set_state(State::CutOff);
        // From here on no page of it becomes writable.
        let _ = locker.protect_all();
        self.change(|all| all.retain(|other| !Arc::ptr_eq(other, locker)));
        locked(&self.cut).push(locker.clone());
        true
    }

    /// One that was cut off before this process.
    pub fn add_cut(&self, locker: Arc<Locker>) {
        locked(&self.cut).push(locker);
    }

    /// Nothing of one that was cut off is mapped any more; or it was told nothing, and keeps its userfaultfd itself. It has its place still.
    pub fn forget(&self, locker: &Arc<Locker>) {
        locked(&self.cut).retain(|other| !Arc::ptr_eq(other, locker));
    }

    /// Cuts those off that have pages of a region that goes.
    pub fn cut_off_at(&self, pages: PageRange) {
        for locker in self.all().iter().filter(|locker| locker.parts.iter().any(|part| !part.pages.intersect(pages).is_empty())) {
            locker.fail("a part of the memory that it has mapped was taken away".into());
            if self.cut_off(locker) {
                self.counts.cut_off.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// All pages are back, and none leaves any more: lockers go on without a manager.
    pub fn set_free(&self) {
        let (served, cut) = (self.all(), locked(&self.cut).clone());
        served.iter().for_each(|locker| locker.table.set_state(State::Free));
        served.iter().chain(&cut).for_each(|locker| locker.unregister());
    }

    /// Protects pages in all mappings.
    ///
    /// # Errors
    /// In one of them they cannot be: it will be cut off.
    pub fn protect(&self, range: PageRange) -> Result<(), KernelError> {
        if !self.some.load(Ordering::SeqCst) {
            return Ok(());
        }
        for locker in self.all().iter() {
            locker.protect(range).map_err(|why| {
                locker.fail(format!("pages cannot be protected in its mapping ({why})"));
                KernelError::Again
            })?;
        }
        Ok(())
    }

    /// Whether a locker has locked a page.
    pub fn holds(&self, page: Page) -> bool {
        if !self.some.load(Ordering::SeqCst) {
            return false;
        }
        self.all().iter().any(|locker| {
            let holds = locker.holds(page);
            if holds {
                locker.met.store(true, Ordering::Relaxed);
            }
            holds
        })
    }

    /// Pages that are locked, each locker's counted for itself; and how many lockers there are.
    pub fn locked_pages(&self) -> (u64, u64) {
        let all = self.all();
        (all.iter().map(|locker| locker.table.locks().count()).sum(), all.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange { start: Page(start), end: Page(end) }
    }

    #[test]
    fn what_a_locker_says_is_checked() {
        let regions = [range(100, 110), range(200, 205)];
        let parts_of = |mapped: &[u64]| parts(&regions, mapped);
        let right = parts_of(&[0x10000, 0x40000]).expect("it is right");
        assert_eq!(right.iter().map(|part| part.first).collect::<Vec<_>>(), [0, 10]);
        for (mapped, part) in [
            (&[0x10000][..], "1 of 2"),
            (&[0x10000, 1], "cannot have mapped"),
            (&[u64::MAX - 4095, 0x1000], "cannot have mapped"),
            (&[(1 << 47) - 4096, 0x1000], "cannot have mapped"),
        ] {
            assert!(parts_of(mapped).is_err_and(|why| why.contains(part)), "{mapped:?}");
        }
    }

    #[test]
    fn a_share_is_a_share() {
        assert_eq!([0, 1 << 20, 64 << 20, 1 << 30].map(allowed), [16, 16, 512, 8192]);
        assert!(allowed(64 << 20) * LOCKERS_MAX as u64 * 4 == (64 << 20) / PAGE);
    }

    #[test]
    fn places_are_bounded() {
        let lockers = Lockers::default();
        lockers.take_this_place(3);
        let taken: Vec<_> = std::iter::from_fn(|| lockers.take_place()).collect();
        assert_eq!(taken, [0, 1, 2, 4, 5, 6, 7]);
        lockers.give_place(5);
        assert_eq!(lockers.take_place(), Some(5));
        // With none, nothing is asked.
        assert!(!lockers.holds(Page(1)) && lockers.protect(range(0, 9)) == Ok(()) && lockers.locked_pages() == (0, 0));
    }
}
