//! Huge pages for managed memory: where the kernel gives them, and places to make them in.
//!
//! The kernel fills memory that is registered with a userfaultfd by small pages alone. But it moves a huge page there as it is
//! (`UFFDIO_MOVE`, 3 µs). So a huge page is made in a place of our own, by touching it, and moved from there ([`crate::kernel`]). A place is empty again then.
//!
//! Nothing here is asked of the kernel but what any program may ask: whether there is a huge page at a touch is its decision (its setting, its free memory).

use crate::alloc_crate::vec::Vec;
use crate::clock;
use crate::own::map_own;
use crate::raw::{nr, syscall_result};
use crate::vm::{self, advice};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use farshore_core::seams::HugePages;

/// Bytes of a huge page: those of a granule.
pub const HUGE: u64 = 2 << 20;
/// Faults that can make a huge page at a time; those beyond it get small ones.
const PLACES: usize = 8;
/// After so many in a row that came as small pages none is asked for any more: none is free, or the program has switched them off (`PR_SET_THP_DISABLE`).
const FAILURES_MAX: u32 = 16;
/// Where a process may have fewer descriptors than that it has use for each of them, and we do without.
const DESCRIPTORS_LEAST: u64 = 256;

/// Nothing is in a place, or a huge page of zeros is that nobody could use; or somebody has it.
const EMPTY: u8 = 0;
const FULL: u8 = 1;
const TAKEN: u8 = 2;

/// Where huge pages are made. One a process; a forked child has a copy, which nobody is using (no fault is under way while a process forks).
#[derive(Debug)]
pub struct Source {
    /// The first place, aligned to [`HUGE`]; 0: nobody has needed one yet.
    base: AtomicU64,
    when: HugePages,
    places: [AtomicU8; PLACES],
    failures: AtomicU32,
    /// Nothing is asked of the kernel any more.
    given_up: AtomicBool,
}

/// How `take` of [`Source::make`] ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken<E> {
    /// All of it was moved away, as a huge page.
    Huge,
    /// All of it was moved away, but not as a huge page.
    Pieces,
    /// The kernel had made small pages at the place. What is there is thrown away.
    Small(E),
    /// It was not moved: what is there stays for the next.
    Kept(E),
    /// Some of it was moved. What is there is thrown away.
    Spoilt(E),
}

/// What one of the kernel's settings with a list of words says: the word in brackets.
fn chosen(name: &CStr) -> Option<Vec<u8>> {
    let text = crate::fd::read_file(name, 4096).ok()?;
    let word = text.split(|&b| b == b' ' || b == b'\n').find(|word| word.first() == Some(&b'['))?;
    Some(word.strip_prefix(b"[")?.strip_suffix(b"]")?.to_vec())
}

const RLIMIT_NOFILE: u64 = 7;
const RLIMIT_AS: u64 = 9;

/// One of the soft limits of this process; none is the largest number.
pub(crate) fn limit(which: u64) -> u64 {
    let mut limits = [u64::MAX; 2];
    // SAFETY: the kernel writes two numbers there.
    let _ = unsafe { syscall_result(nr::PRLIMIT64, [0, which, 0, limits.as_mut_ptr().expose_provenance() as u64, 0, 0]) };
    limits[0]
}

/// Where the kernel gives this process huge pages.
fn setting() -> HugePages {
    const PR_GET_THP_DISABLE: u64 = 42;
    // SAFETY: asks only.
    let disabled = unsafe { syscall_result(nr::PRCTL, [PR_GET_THP_DISABLE, 0, 0, 0, 0, 0]) };
    let size = crate::fd::read_file(c"/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", 64).unwrap_or_default();
    // Where address space or descriptors are counted, the program has use for all of them.
    let limited = limit(RLIMIT_AS) != u64::MAX || limit(RLIMIT_NOFILE) < DESCRIPTORS_LEAST;
    if disabled != Ok(0) || limited || size.trim_ascii_end() != b"2097152" {
        return HugePages::Never;
    }
    match chosen(c"/sys/kernel/mm/transparent_hugepage/enabled").as_deref() {
        Some(b"always") => HugePages::Always,
        Some(b"madvise") => HugePages::Asked,
        _ => HugePages::Never,
    }
}

impl Source {
    /// A source, if this process can have huge pages at all. For start-up: reads settings of the kernel.
    pub fn open() -> Option<Source> {
        Source::with(setting())
    }

    /// A source of huge pages for memory that may have them as `when` says. `None`: nowhere, or there is no address space.
    pub fn with(when: HugePages) -> Option<Source> {
        if when == HugePages::Never {
            return None;
        }
        Some(Source {
            base: AtomicU64::new(0),
            when,
            places: [const { AtomicU8::new(EMPTY) }; PLACES],
            failures: AtomicU32::new(0),
            given_up: AtomicBool::new(false),
        })
    }

    /// Where the first place is. `None`: there is no address space for them, or they cannot be huge.
    fn base(&self) -> Option<u64> {
        let known = self.base.load(Ordering::Acquire);
        if known != 0 {
            return Some(known);
        }
        let bytes = (PLACES as u64 + 1) * HUGE;
        let mapped = map_own(bytes as usize).ok()?.as_ptr().expose_provenance() as u64;
        let base = mapped.next_multiple_of(HUGE);
        if self.when == HugePages::Asked {
            // Where the kernel gives them to all nothing is asked, so that it makes as much of an effort as it would natively.
            // SAFETY: memory of our own, just mapped.
            let _ = unsafe { vm::madvise(base, PLACES as u64 * HUGE, advice::HUGEPAGE) };
        }
        match self.base.compare_exchange(0, base, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some(base),
            Err(others) => {
                // SAFETY: ours, and known to nobody.
                let _ = unsafe { vm::munmap(mapped, bytes) };
                Some(others)
            }
        }
    }

    /// For which memory a huge page is worth asking for, now.
    pub fn when(&self) -> HugePages {
        let given_up = self.given_up.load(Ordering::Relaxed) || self.failures.load(Ordering::Relaxed) >= FAILURES_MAX;
        if given_up { HugePages::Never } else { self.when }
    }

    /// Makes none any more: a filter is about to forbid the calls. Waits until nobody is making one.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::SeqCst);
        while self.places.iter().any(|place| place.load(Ordering::SeqCst) == TAKEN) {
            clock::sleep_ns(50_000);
        }
    }

    /// Makes a huge page of zeros in a free place, and lets `take` move it away from the address that it gets. `None`: no place is free.
    pub fn make<E>(&self, take: impl FnOnce(u64) -> Taken<E>) -> Option<Result<(), E>> {
        let base = self.base()?;
        let has = |place: &AtomicU8, state: u8| place.compare_exchange(state, TAKEN, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        let free = |state: u8| self.places.iter().position(|place| has(place, state));
        let number = free(FULL).or_else(|| free(EMPTY))?;
        if self.given_up.load(Ordering::SeqCst) {
            self.places[number].store(EMPTY, Ordering::Release);
            return None;
        }
        let place = base + number as u64 * HUGE;
        // The kernel fills it with zeros.
        // SAFETY: a place of our own that nobody else has.
        unsafe { core::ptr::with_exposed_provenance_mut::<u8>(place as usize).write_volatile(0) };
        let taken = take(place);
        let (supplied, left, answer) = match taken {
            Taken::Huge => (Some(true), EMPTY, Ok(())),
            Taken::Pieces => (Some(false), EMPTY, Ok(())),
            Taken::Small(why) => (Some(false), EMPTY, Err(why)),
            Taken::Spoilt(why) => (None, EMPTY, Err(why)),
            // One is enough to be kept.
            Taken::Kept(why) => {
                let another = self.places.iter().any(|place| place.load(Ordering::Relaxed) == FULL);
                (None, if another { EMPTY } else { FULL }, Err(why))
            }
        };
        match supplied {
            Some(true) => self.failures.store(0, Ordering::Relaxed),
            Some(false) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
            }
            // What stood in the way says nothing of the kernel's supply.
            None => {}
        }
        if left == EMPTY && answer.is_err() {
            // SAFETY: what is left of it is nobody's.
            let _ = unsafe { vm::madvise(place, HUGE, advice::DONTNEED) };
        }
        self.places[number].store(left, Ordering::Release);
        Some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_few_and_come_back() {
        let source = Source::with(HugePages::Always).unwrap();
        let seen = core::cell::Cell::new(0);
        fn nest(source: &Source, depth: usize, seen: &core::cell::Cell<usize>) {
            let made = source.make(|place| {
                assert_eq!(place % HUGE, 0);
                seen.set(seen.get() + 1);
                nest(source, depth + 1, seen);
                Taken::<()>::Huge
            });
            assert_eq!(made.is_some(), depth < PLACES);
        }
        nest(&source, 0, &seen);
        assert_eq!(seen.get(), PLACES);
        assert!(source.places.iter().all(|place| place.load(Ordering::Relaxed) == EMPTY));
    }

    #[test]
    fn it_gives_up_after_many_that_were_none_in_a_row() {
        let source = Source::with(HugePages::Always).unwrap();
        let none = || source.make(|_| Taken::Small(()));
        (1..FAILURES_MAX).for_each(|_| assert!(none().is_some()));
        assert_eq!(source.when(), HugePages::Always);
        assert!(source.make(|_| Taken::<()>::Huge).is_some());
        (1..FAILURES_MAX).for_each(|_| assert!(none().is_some()));
        assert_eq!(source.when(), HugePages::Always, "one that was one makes them forgotten");
        (0..FAILURES_MAX).for_each(|_| assert!(source.make(|_| Taken::Kept(())).is_some()));
        assert_eq!(source.when(), HugePages::Always, "the kernel had one");
        assert!(none().is_some());
        assert_eq!(source.when(), HugePages::Never);
        assert!(Source::with(HugePages::Never).is_none());
    }

    #[test]
    fn what_nobody_could_use_is_the_next_ones() {
        let source = Source::with(HugePages::Always).unwrap();
        let kept = |at: &core::cell::Cell<u64>| {
            source.make(|place| {
                at.set(place);
                Taken::Kept(())
            })
        };
        let [first, second] = [core::cell::Cell::new(0), core::cell::Cell::new(0)];
        assert_eq!((kept(&first), kept(&second)), (Some(Err(())), Some(Err(()))));
        assert_eq!(first, second);
        let full = || source.places.iter().filter(|place| place.load(Ordering::Relaxed) == FULL).count();
        assert_eq!(full(), 1);
        source.make(|_| {
            assert_eq!(kept(&second), Some(Err(())));
            Taken::Kept(())
        });
        assert_eq!(full(), 1, "one of those that failed at a time");
        source.make(|_| Taken::<()>::Huge);
        assert_eq!(full(), 0);
        source.give_up();
        assert_eq!((source.when(), source.make(|_| Taken::<()>::Huge)), (HugePages::Never, None));
    }
}
