//! Refaults: pages that are fetched soon after they have left.
//!
//! A fetch alone says little about a page: it may have been wanted once. But one that is wanted again while few pages have left since it did is used more
//! often than those that stayed (Linux' refault distance, `mm/workingset.c`). So evictors write down when the bytes of a page are in its slot only, and the
//! fault that fetches it tells the policy how many pages have left meanwhile ([`Came::Returned`](farshore_core::seams::Came::Returned)). A page that comes back sooner
//! than that is rescued from its stage.
//!
//! # What is written down
//!
//! ```text
//!   mark of a page:  16 bits of a hash of its number │ 16 bits of time
//! ```
//!
//! Pages share marks by that hash. There is one for each frame or two: so most pages are still known when a quarter of a memory full of others has left. Each evictor has a table of its
//! own, since a mark is written for each page that leaves, and two that write one table would take its lines from each other. A fault looks in all of them, which is little beside its read.
//!
//! Time is counted in pages that have left, in 64ths of a memory full, and goes round after 1,024 memories full.
//!
//! All of this is hints: any thread may write any mark at any time. A page that is taken for another one (one in 65,536 of those that share a mark), or a time that
//! has gone round, costs some rounds in which a page stays that should have left.

use alloc::boxed::Box;
use core::sync::atomic::Ordering;
use farshore_core::page::Page;
use farshore_core::sync::Padded;
use farshore_core::sync::plain::AtomicU32;

/// Units of time in a memory full of pages.
const UNITS: u64 = 64;
/// Fewest and most marks of an evictor.
const MARKS: (u64, u64) = (1 << 10, 1 << 24);
/// Marks in a cache line, of the larger ones that there are.
const LINE: usize = 32;
/// The marks of an evictor.
type Table = Box<[Padded<[AtomicU32; LINE]>]>;

/// When pages left.
#[derive(Debug)]
pub(crate) struct Refaults {
    /// Of each evictor.
    tables: Box<[Table]>,
    /// Pages that leave in one unit of time.
    unit: u64,
}

impl Refaults {
    /// For a memory of so many frames at first. A limit that grows later leaves this as it is: pages that are away for longer are then forgotten.
    pub(crate) fn new(frames: u64, evictors: usize) -> Refaults {
        let line = |_| Padded(core::array::from_fn(|_| AtomicU32::new(0)));
        let tables = (0..evictors).map(|_| (0..marks(frames, evictors) / LINE).map(line).collect()).collect();
        Refaults { tables, unit: (frames / UNITS).max(1) }
    }

    /// The mark of a page in a table, and its upper half.
    fn mark(table: &[Padded<[AtomicU32; LINE]>], page: Page) -> (&AtomicU32, u32) {
        // The upper bits of a multiplication by 2^64 / golden ratio. A hash of 0 would not be told from a mark that nobody has written.
        let hash = page.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = (hash >> 40) as usize & (table.len() * LINE - 1);
        (&table[place / LINE][place % LINE], ((hash >> 24) as u32 & 0xffff).max(1) << 16)
    }

    fn time(&self, left: u64) -> u16 {
        (left / self.unit) as u16
    }

    /// An evictor says that the bytes of `page` are in its slot only from now on, when `left` pages have left in all.
    #[inline]
    pub(super) fn note_out(&self, evictor: usize, page: Page, left: u64) {
        let (mark, whose) = Refaults::mark(&self.tables[evictor], page);
        mark.store(whose | u32::from(self.time(left)), Ordering::Relaxed);
    }

    /// How many pages have left since `page` did, to a sixty-fourth of a memory full; `None`: it is not known. `left`: how many have in all.
    #[inline]
    pub(crate) fn since_out(&self, page: Page, left: u64) -> Option<u64> {
        let since = self.tables.iter().filter_map(|table| {
            let (mark, whose) = Refaults::mark(table, page);
            let mark = mark.load(Ordering::Relaxed);
            (mark & 0xffff << 16 == whose).then(|| u64::from(self.time(left).wrapping_sub(mark as u16)) * self.unit)
        });
        since.min()
    }
}

/// Marks of each of so many evictors, a power of two.
fn marks(frames: u64, evictors: usize) -> usize {
    1 << (frames / evictors as u64).clamp(MARKS.0, MARKS.1).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_known_again_for_a_quarter_of_a_memory_full() {
        let frames = if cfg!(miri) { 2000 } else { 20_000 };
        let refaults = Refaults::new(frames, 2);
        assert_eq!(refaults.since_out(Page(7), 0), None, "nothing has left");
        // Pages leave one after the other, from far along the time.
        let first = 1 << 40;
        let pages = || (0..frames).map(|n| (Page(0x7f00_0000_0000 + n * 3), first + n));
        pages().for_each(|(page, left)| refaults.note_out(page.0 as usize % 2, page, left));
        let now = first + frames;
        let (mut known, mut recent) = (0, 0);
        for (page, left) in pages() {
            if let Some(since) = refaults.since_out(page, now) {
                assert!(since.abs_diff(now - left) <= frames / UNITS, "{page:?}: {since} for {}", now - left);
                known += 1;
                recent += u64::from(now - left <= frames / 4);
            }
        }
        assert!(recent > frames / 4 * 3 / 4 && known < frames * 9 / 10, "{recent} of {}, {known} in all", frames / 4);
        let strangers = (0..10_000).filter(|n| refaults.since_out(Page(0x5500_0000_0000 + n * 7), now).is_some()).count();
        assert!(strangers <= 5, "{strangers} pages that have never left are taken for others");
    }

    #[test]
    fn there_are_marks_for_any_memory() {
        for (frames, evictors, most) in [(0, 1, 1 << 10), (256, 4, 1 << 10), (20_000, 4, 1 << 12), (u64::MAX, 1, 1 << 24)] {
            assert_eq!(marks(frames, evictors), most);
        }
        for (frames, evictors) in [(0, 1), (256, 4), (9000, 4)] {
            let refaults = Refaults::new(frames, evictors);
            let all = marks(frames, evictors);
            assert!(refaults.tables.len() == evictors && refaults.tables.iter().all(|table| table.len() * LINE == all));
            refaults.note_out(evictors - 1, Page(9), u64::MAX);
            assert_eq!(refaults.since_out(Page(9), u64::MAX), Some(0));
        }
    }

    #[test]
    fn of_two_evictors_the_last_one_knows() {
        let refaults = Refaults::new(64_000, 2);
        for (evictor, left, since) in [(0, 1000, 5000), (1, 4000, 2000), (0, 6000, 0)] {
            refaults.note_out(evictor, Page(77), left);
            assert_eq!(refaults.since_out(Page(77), 6000), Some(since));
        }
    }
}
