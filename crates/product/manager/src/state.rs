//! What a manager leaves to the next one in memory that outlives it: its engine's tables ([`farshore_sys::lasting`]), and these numbers.
//!
//! ```text
//!      0   a version; how many stages; a limit that a user has set; whether a request is under way; how often the memory was taken over; how many slots are barred; whether all is given back
//!    512   notes: what each thread has last copied into the client's memory (`farshore_sys::uffd::Note`), 8 numbers each
//!  65536   regions: 0 free, 1 managed, 2 given up, 3 about to come; first page, pages, place in the file, the file's device and inode; 8 numbers each
//! 131072   barred slots: their writes may still be under way, in a kernel that works for a manager that was killed
//! ```
//!
//! A region's first number is written last. All else is one number each, so a manager may end between any two changes.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use farshore_core::page::{Page, PageRange};
use farshore_core::word::Slot;
use farshore_sys::lasting::{Lasting, NUMBERS, SIZE};
use farshore_sys::uffd::Note;
use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::memory::{Identity, Region};
use crate::regions::REGIONS_MAX;

/// What this version leaves. Another one's tables are not understood: that a manager is replaced by one of another version is refused.
const VERSION: u64 = 0x6661_7273_0001;
const RECORD: usize = 8;
const NOTES: usize = 512;
/// Notes that there are: one for each thread that a manager ever makes.
const NOTES_MAX: usize = 4096;
const REGIONS: usize = 1 << 16;
const BARRED: usize = 1 << 17;
/// Slots that can be barred: the writes of a few hundred managers that were killed.
const BARRED_MAX: usize = NUMBERS - BARRED;

const _: () = assert!(NOTES + NOTES_MAX * RECORD <= REGIONS && REGIONS + REGIONS_MAX * RECORD <= BARRED);

/// Single numbers.
#[derive(Clone, Copy, Debug)]
enum Number {
    Version,
    Stages,
    Limit,
    UnderWay,
    Takeovers,
    Barred,
    GivenBack,
}

const FREE: u64 = 0;
const MANAGED: u64 = 1;
const GIVEN_UP: u64 = 2;
const COMING: u64 = 3;

/// The memory, and what is in it.
#[derive(Debug)]
pub struct State {
    lasting: Lasting,
}

/// A region, as it is written down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Noted {
    /// The client's pages.
    pub pages: PageRange,
    /// Its file.
    pub file: Identity,
    /// The first page's place there, bytes.
    pub offset: u64,
    /// The client has given it up; or was handing it over, and has no answer. None of its pages was taken out, or none is needed.
    pub given_up: bool,
}

impl State {
    /// Fresh memory, for an engine of so many stages. It lives as long as this process, and as long as anybody has its descriptor.
    ///
    /// # Errors
    /// One line: there is none.
    pub fn make(stages: u64) -> Result<&'static State, String> {
        let failed =
            |what: &str, why: &dyn std::fmt::Display| format!("memory that outlives the manager cannot be {what} ({why})");
        let file = rustix::fs::memfd_create("farshore-manager", MemfdFlags::CLOEXEC).map_err(|errno| failed("made", &errno))?;
        // It is sparse, and none of the files that a limit of their sizes is for.
        let limit = getrlimit(Resource::Fsize);
        let _ = setrlimit(Resource::Fsize, Rlimit { current: limit.maximum, ..limit });
        let made = rustix::fs::ftruncate(&file, SIZE);
        let _ = setrlimit(Resource::Fsize, limit);
        made.map_err(|errno| failed("given its size", &errno))?;
        let state = State::of(file)?;
        state.set(Number::Stages, stages);
        state.set(Number::Version, VERSION);
        Ok(state)
    }

    /// What a manager has left that has ended.
    ///
    /// # Errors
    /// One line: it is nothing that is understood.
    pub fn left(file: OwnedFd) -> Result<&'static State, String> {
        let size = rustix::fs::fstat(&file).map_or(0, |stat| stat.st_size);
        if u64::try_from(size) != Ok(SIZE) {
            return Err(format!("what the manager before has left has {size} bytes, and is none of ours"));
        }
        let state = State::of(file)?;
        match state.get(Number::Version) {
            VERSION => Ok(state),
            other => Err(format!("the manager before was of another version ({other:#x}, this one is {VERSION:#x})")),
        }
    }

    fn of(file: OwnedFd) -> Result<&'static State, String> {
        let lasting =
            Lasting::new(file.into()).map_err(|errno| format!("no address space for the manager's tables ({errno})"))?;
        Ok(Box::leak(Box::new(State { lasting })))
    }

    /// The memory, for the engine's tables.
    pub fn room(&self) -> &Lasting {
        &self.lasting
    }

    fn number(&self, what: Number) -> &AtomicU64 {
        &self.lasting.numbers()[what as usize]
    }

    fn get(&self, what: Number) -> u64 {
        self.number(what).load(Ordering::Acquire)
    }

    fn set(&self, what: Number, to: u64) {
        self.number(what).store(to, Ordering::Release);
    }

    /// Stages of the engine.
    pub fn stages(&self) -> u64 {
        self.get(Number::Stages)
    }

    /// A limit that a user has set, in bytes.
    pub fn limit(&self) -> Option<u64> {
        Some(self.get(Number::Limit)).filter(|&bytes| bytes > 0)
    }

    /// A user has set this limit, in bytes.
    pub fn set_limit(&self, bytes: u64) {
        self.set(Number::Limit, bytes);
    }

    /// Whether a request of the client is under way: part of it was read, or it was not answered.
    pub fn is_under_way(&self) -> bool {
        self.get(Number::UnderWay) != 0
    }

    /// A request is under way from now on, or is no more.
    pub fn set_under_way(&self, is: bool) {
        self.set(Number::UnderWay, is.into());
    }

    /// Whether the client has all its pages back.
    pub fn is_given_back(&self) -> bool {
        self.get(Number::GivenBack) != 0
    }

    /// The client has all its pages back, and none is taken out any more: what is left to do is that nobody waits for us.
    pub fn set_given_back(&self) {
        self.set(Number::GivenBack, 1);
    }

    /// What was asked for, and how often the memory was taken over, is here as it was there, and once more.
    pub fn follow(&self, last: &State) {
        self.set(Number::Limit, last.get(Number::Limit));
        // The connection has not ended yet: should this process, too, be killed before.
        self.set(Number::UnderWay, last.get(Number::UnderWay));
        self.set(Number::GivenBack, last.get(Number::GivenBack));
        self.set(Number::Takeovers, last.takeovers() + 1);
    }

    /// How often the memory was taken over.
    pub fn takeovers(&self) -> u64 {
        self.get(Number::Takeovers)
    }

    fn note(&self, number: usize) -> &Note {
        let at = NOTES + number * RECORD;
        let numbers: &[AtomicU64; Note::NUMBERS] =
            self.lasting.numbers()[at..at + Note::NUMBERS].try_into().expect("as many as are asked for");
        Note::of(numbers)
    }

    /// The calling thread's own note. The first one is for whoever takes over.
    ///
    /// # Panics
    /// When this process has made thousands of threads.
    pub fn own_note(&self) -> &Note {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        thread_local!(static OWN: Cell<usize> = const { Cell::new(0) });
        let own = OWN.get();
        let own = if own == 0 { NEXT.fetch_add(1, Ordering::Relaxed) } else { own };
        OWN.set(own);
        assert!(own < NOTES_MAX, "bug: this is thread {own} of a manager");
        self.note(own)
    }

    /// The note of whoever takes over.
    pub fn first_note(&self) -> &Note {
        self.note(0)
    }

    /// All notes.
    pub fn notes(&self) -> impl Iterator<Item = &Note> {
        (0..NOTES_MAX).map(|number| self.note(number))
    }

    fn record(&self, number: usize) -> &[AtomicU64] {
        &self.lasting.numbers()[REGIONS + number * RECORD..][..RECORD]
    }

    /// Writes a region down that is about to be registered: whoever takes over before it is managed takes the registration back, so that nobody waits there for ever.
    ///
    /// # Errors
    /// One line: there are too many.
    pub fn expect(&self, region: &Region) -> Result<(), String> {
        self.write(region, COMING)
    }

    /// A region that was expected is managed from now on.
    pub fn manage(&self, pages: PageRange) {
        self.change(pages, COMING, MANAGED);
    }

    /// Writes a region down, before the first of its pages is taken out.
    ///
    /// # Errors
    /// One line: there are too many.
    pub fn add(&self, region: &Region) -> Result<(), String> {
        self.write(region, MANAGED)
    }

    fn write(&self, region: &Region, state: u64) -> Result<(), String> {
        let mut all = (0..REGIONS_MAX).map(|number| self.record(number));
        let record = all.find(|record| record[0].load(Ordering::Acquire) == FREE).ok_or("it has too many regions")?;
        let (device, inode) = region.backing.identity();
        for (at, number) in [(1, region.pages.start.0), (2, region.pages.len()), (3, region.offset), (4, device), (5, inode)] {
            record[at].store(number, Ordering::Relaxed);
        }
        record[0].store(state, Ordering::Release);
        Ok(())
    }

    fn change(&self, pages: PageRange, from: u64, to: u64) {
        let is_it = |record: &&[AtomicU64]| {
            record[0].load(Ordering::Acquire) == from && record[1].load(Ordering::Relaxed) == pages.start.0
        };
        if let Some(record) = (0..REGIONS_MAX).map(|number| self.record(number)).find(is_it) {
            record[0].store(to, Ordering::Release);
        }
    }

    /// The client gives a region up: whatever happens from now on, none of its pages is needed.
    pub fn give_up(&self, pages: PageRange) {
        self.change(pages, MANAGED, GIVEN_UP);
    }

    /// A region that was given up is no longer registered, nor is one that was expected and is refused.
    pub fn forget(&self, pages: PageRange) {
        self.change(pages, GIVEN_UP, FREE);
        self.change(pages, COMING, FREE);
    }

    /// The regions that are written down.
    pub fn regions(&self) -> Vec<Noted> {
        let noted = |number: usize| {
            let record = self.record(number);
            let state = record[0].load(Ordering::Acquire);
            let of = |at: usize| record[at].load(Ordering::Relaxed);
            let start = Page(of(1));
            (state != FREE).then(|| Noted {
                pages: PageRange { start, end: start.plus(of(2)) },
                file: (of(4), of(5)),
                offset: of(3),
                given_up: state != MANAGED || self.is_given_back(),
            })
        };
        (0..REGIONS_MAX).filter_map(noted).collect()
    }

    /// Slots that nobody may get.
    pub fn barred(&self) -> impl Iterator<Item = Slot> {
        let count = (self.get(Number::Barred) as usize).min(BARRED_MAX);
        self.lasting.numbers()[BARRED..BARRED + count].iter().filter_map(|slot| Slot::new(slot.load(Ordering::Relaxed)))
    }

    /// One more slot that nobody may get. False: there are too many.
    #[must_use]
    pub fn bar(&self, slot: Slot) -> bool {
        let count = self.get(Number::Barred);
        let Some(place) = self.lasting.numbers()[BARRED..].get(count as usize) else { return false };
        place.store(slot.number(), Ordering::Relaxed);
        self.set(Number::Barred, count + 1);
        true
    }

    /// Nobody needs it any more: gives its memory back.
    pub fn empty(&self) {
        // An error leaves the memory until this process ends.
        let _ = rustix::fs::fallocate(self.file(), FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, SIZE);
    }

    /// The file, to be kept by others too.
    pub fn file(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(self.lasting.file())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;

    fn again(state: &State) -> &'static State {
        State::left(state.file().try_clone_to_owned().expect("there is a number for it")).expect("it is ours")
    }

    #[test]
    fn numbers_are_found_again() {
        let first = State::make(48).expect("there is memory");
        let slot = |number| Slot::new(number).expect("it is one");
        first.set_limit(5 << 20);
        first.set_under_way(true);
        assert!(first.bar(slot(7)) && first.bar(slot(1 << 36)));
        let next = again(first);
        assert_eq!((next.stages(), next.limit(), next.is_under_way(), next.takeovers()), (48, Some(5 << 20), true, 0));
        assert_eq!(next.barred().collect::<Vec<_>>(), [slot(7), slot(1 << 36)]);
        next.empty();
        assert_eq!((again_fails(first), first.barred().count()), (true, 0));
    }

    /// A manager that takes over may be killed before it has closed a connection of which nobody knows how far it came.
    #[test]
    fn what_was_under_way_stays_so() {
        let [first, second] = [1, 2].map(|stages| State::make(stages).expect("there is memory"));
        first.set_under_way(true);
        first.set_limit(7 << 20);
        second.follow(first);
        assert_eq!((second.is_under_way(), second.limit(), second.takeovers(), second.stages()), (true, Some(7 << 20), 1, 2));
        assert!(!second.is_given_back());
        second.set_given_back();
        first.follow(second);
        assert_eq!((first.is_given_back(), first.takeovers()), (true, 2));
    }

    #[test]
    fn regions_that_were_about_to_come_are_given_up() {
        let state = State::make(1).expect("there is memory");
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&state.file()));
        let backing = std::sync::Arc::new(crate::memory::Backing::open(path.as_ref()).expect("it is a memfd"));
        let of = |start: u64| {
            let pages = PageRange { start: Page(start), end: Page(start + 5) };
            Region { pages, backing: backing.clone(), offset: start << 12 }
        };
        let found = || state.regions().iter().map(|noted| (noted.pages.start.0, noted.given_up)).collect::<Vec<_>>();
        [10, 20, 30].iter().for_each(|start| state.expect(&of(*start)).expect("there is room"));
        assert_eq!(found(), [(10, true), (20, true), (30, true)]);
        state.manage(of(20).pages);
        state.forget(of(10).pages);
        assert_eq!(found(), [(20, false), (30, true)]);
        // Of the client that has everything back, none is anybody's.
        state.set_given_back();
        assert_eq!(found(), [(20, true), (30, true)]);
    }

    fn again_fails(state: &State) -> bool {
        State::left(state.file().try_clone_to_owned().expect("there is a number for it")).is_err()
    }

    #[test]
    fn what_is_not_ours_is_refused() {
        let file = rustix::fs::memfd_create("other", MemfdFlags::CLOEXEC).expect("there is memory");
        assert!(State::left(file).is_err_and(|why| why.contains("0 bytes")));
        let state = State::make(1).expect("there is memory");
        state.set(Number::Version, 4711);
        assert!(
            State::left(state.file().try_clone_to_owned().expect("a number")).is_err_and(|why| why.contains("another version"))
        );
    }

    #[test]
    fn each_thread_has_a_note() {
        let state = State::make(1).expect("there is memory");
        let own = || core::ptr::from_ref(state.own_note()).addr();
        let here = own();
        assert_eq!(here, own());
        let there = std::thread::scope(|scope| scope.spawn(own).join().expect("it ends"));
        let first = core::ptr::from_ref(state.first_note()).addr();
        assert!(here != there && here != first && there != first);
        assert_eq!(state.notes().filter_map(Note::mapped).count(), 0);
        assert!(state.room().file().as_fd().try_clone_to_owned().is_ok());
    }
}
