//! Whether the page of a read fault is mapped writable, because its neighbours were written after they were read.
//!
//! A write to a page that is mapped write-protected is a second fault. A page that is mapped writable counts as dirty, and costs a
//! write when it leaves. So each granule keeps a guess: a write to a page that was fetched for reading raises it, and a page that
//! leaves unwritten lowers it. The guess is a hint that any thread may change at any time.

use core::sync::atomic::Ordering;
use farshore_core::page::Page;
use farshore_core::table::Granule;
use farshore_core::word::Slot;

/// From here on a read fault maps its page writable: neighbours were written after they were read.
const GUESS_WRITES: u8 = 128;
/// How much one write to a page that was fetched for reading adds to the guess …
const GUESS_UP: u8 = 48;
/// … and how much a page that leaves unwritten takes away.
const GUESS_DOWN: u8 = 24;
/// One read fault in this many is not guessed, so that a change of habit is noticed.
const GUESS_SAMPLE: u64 = 16;

/// Whether pages here are so often written after they are read that a write fault can be saved. A page of a mapped file costs no write
/// as long as it is clean, and the program may not be allowed to write it: there is no guess.
#[inline]
pub(super) fn guess_write(granule: &Granule, page: Page, slot: Slot) -> bool {
    !slot.is_of_file()
        && granule.write_guess.load(Ordering::Relaxed) >= GUESS_WRITES
        && !page.0.wrapping_mul(7).is_multiple_of(GUESS_SAMPLE)
}

/// A page that was fetched for reading leaves (or is written): learn from it.
#[inline]
pub(crate) fn learn_write(granule: &Granule, written: bool) {
    let now = granule.write_guess.load(Ordering::Relaxed);
    let then = if written { now.saturating_add(GUESS_UP) } else { now.saturating_sub(GUESS_DOWN) };
    if then != now {
        granule.write_guess.store(then, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_core::page::GranuleId;
    use farshore_core::table::PageTable;
    use farshore_core::word::FilePage;

    #[test]
    fn three_writes_make_a_habit_and_one_page_in_sixteen_looks_whether_it_lasts() {
        let (table, id) = (PageTable::new(), GranuleId(0x10_0000));
        table.add(id.range());
        let g = table.granule(id).expect("it was added").granule;
        let (slot, of_file) = (Slot::new(7).unwrap(), FilePage { file: 0, page: 7 }.slot().unwrap());
        let guessed = || {
            assert!(id.range().iter().all(|page| !guess_write(g, page, of_file)));
            id.range().iter().filter(|&page| guess_write(g, page, slot)).count()
        };
        for _ in 0..3 {
            assert_eq!(guessed(), 0);
            learn_write(g, true);
        }
        assert_eq!(guessed(), 512 - 512 / 16);
        learn_write(g, false);
        assert_eq!(guessed(), 0, "half as fast as it grew, and below the mark");
        (0..10).for_each(|_| learn_write(g, true));
        (0..5).for_each(|_| learn_write(g, false));
        assert_eq!(guessed(), 512 - 512 / 16, "a habit of long standing lasts longer");
        learn_write(g, false);
        assert_eq!(guessed(), 0);
    }
}
