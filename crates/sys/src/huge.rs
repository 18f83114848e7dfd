//! Huge pages for managed memory: where the kernel gives them, and places to make them in.
//!
//! The kernel fills memory that is registered with a userfaultfd by small pages alone. But it moves a huge page there as it is
//! (`UFFDIO_MOVE`, 3 µs). So a huge page is made in a place of our own, by touching it, and moved from there ([`crate::kernel`]). A place is empty again then.
//!
//! Nothing here is asked of the kernel but what any program may ask: whether there is a huge page at a touch is its decision (its setting, its free memory).

use crate::alloc_crate::vec::Vec;
use crate::own::map_own;
use crate::raw::{nr, syscall_result};
use crate::vm::{self, advice};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use farshore_engine::traits::HugePages;

/// Bytes of a huge page: those of a granule.
pub const HUGE: u64 = 2 << 20;
/// Faults that can make a huge page at a time; those beyond it get small ones.
const PLACES: usize = 16;
/// After so many in a row that came as small pages none is asked for any more: none is free, or the program has switched them off (`PR_SET_THP_DISABLE`).
const FAILURES_MAX: u32 = 16;

/// Where huge pages are made. One a process; a forked child has a copy, whose places are empty and free (no fault is under way while a process forks).
#[derive(Debug)]
pub struct Source {
    /// The first place, aligned to [`HUGE`].
    base: u64,
    when: HugePages,
    taken: [AtomicBool; PLACES],
    failures: AtomicU32,
}

/// What one of the kernel's settings with a list of words says: the word in brackets.
fn chosen(name: &CStr) -> Option<Vec<u8>> {
    let text = crate::fd::read_file(name, 4096).ok()?;
    let word = text.split(|&b| b == b' ' || b == b'\n').find(|word| word.first() == Some(&b'['))?;
    Some(word.strip_prefix(b"[")?.strip_suffix(b"]")?.to_vec())
}

/// Where the kernel gives this process huge pages.
fn setting() -> HugePages {
    const PR_GET_THP_DISABLE: u64 = 42;
    // SAFETY: asks only.
    let disabled = unsafe { syscall_result(nr::PRCTL, [PR_GET_THP_DISABLE, 0, 0, 0, 0, 0]) };
    let size = crate::fd::read_file(c"/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", 64).unwrap_or_default();
    if disabled != Ok(0) || size.trim_ascii_end() != b"2097152" {
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
        let bytes = (PLACES as u64 + 1) * HUGE;
        let base = (map_own(bytes as usize).ok()?.as_ptr() as u64).next_multiple_of(HUGE);
        if when == HugePages::Asked {
            // Where the kernel gives them to all nothing is asked, so that it makes as much of an effort as it would natively.
            // SAFETY: memory of our own, just mapped.
            unsafe { vm::madvise(base, PLACES as u64 * HUGE, advice::HUGEPAGE) }.ok()?;
        }
        Some(Source { base, when, taken: [const { AtomicBool::new(false) }; PLACES], failures: AtomicU32::new(0) })
    }

    /// For which memory a huge page is worth asking for, now.
    pub fn when(&self) -> HugePages {
        if self.failures.load(Ordering::Relaxed) >= FAILURES_MAX { HugePages::Never } else { self.when }
    }

    /// Makes a huge page of zeros in a free place, and lets `take` move it away from the address that it gets; `take` says whether it was one. `None`: no place is free.
    /// Afterwards the place is empty.
    pub fn make<E>(&self, take: impl FnOnce(u64) -> Result<bool, E>) -> Option<Result<(), E>> {
        let is_free = |taken: &AtomicBool| taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        let number = self.taken.iter().position(is_free)?;
        let place = self.base + number as u64 * HUGE;
        // The kernel fills it with zeros.
        // SAFETY: a place of our own that nobody else has.
        unsafe { core::ptr::with_exposed_provenance_mut::<u8>(place as usize).write_volatile(0) };
        let taken = take(place);
        match taken {
            Ok(true) => self.failures.store(0, Ordering::Relaxed),
            _ => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                // SAFETY: what is left of it is nobody's.
                let _ = unsafe { vm::madvise(place, HUGE, advice::DONTNEED) };
            }
        }
        self.taken[number].store(false, Ordering::Release);
        Some(taken.map(|_| ()))
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
                Ok::<_, ()>(true)
            });
            assert_eq!(made.is_some(), depth < PLACES);
        }
        nest(&source, 0, &seen);
        assert_eq!(seen.get(), PLACES);
        assert!(source.taken.iter().all(|taken| !taken.load(Ordering::Relaxed)));
    }

    #[test]
    fn it_gives_up_after_many_that_were_none_in_a_row() {
        let source = Source::with(HugePages::Always).unwrap();
        let none = || source.make(|_| Ok::<_, ()>(false));
        (1..FAILURES_MAX).for_each(|_| assert!(none().is_some()));
        assert_eq!(source.when(), HugePages::Always);
        assert!(source.make(|_| Ok::<_, ()>(true)).is_some());
        (1..FAILURES_MAX).for_each(|_| assert!(none().is_some()));
        assert_eq!(source.when(), HugePages::Always, "one that was one makes them forgotten");
        assert!(none().is_some());
        assert_eq!(source.when(), HugePages::Never);
        assert!(Source::with(HugePages::Never).is_none());
    }
}
