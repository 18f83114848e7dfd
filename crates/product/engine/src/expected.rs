//! When pages are expected to be used again: a table that policies beside the program fill in advance, and evictors ask.
//!
//! ```text
//!             ┌─ late ──▶ these leave first, when frames are short
//!  policy ────┼─ soon ──▶ an evictor passes the page over once
//!             └─ next ──▶ twice: it is expected soon then
//! ```
//!
//! A policy cannot be asked for each victim, since nobody waits for it. So it says beforehand what it would answer, by an estimate of when
//! each page is used again (Flexible Swapping §6.5), and evictors look that up while they choose (`crate::evict`). The fault path
//! neither reads nor writes the table, and nothing moves because of an estimate alone: while frames are not short, no page leaves.
//!
//! # An estimate is used up
//!
//! Evictors that pass a page over take one pass from it, and a page that has left as a late one is like any other when it comes back. So a
//! table that is old, wrong or full of one answer soon says nothing, and each page is passed over as often as it was asked for at
//! most. A batch that would find nothing else takes what it should pass over (`evict/choose.rs`). The estimate of a page that is out waits
//! until the page is back. All are gone when a policy that has made some leaves ([`Engine::forget_expected`]).
//!
//! Late pages leave first because their granules are noted: an evictor looks at those before the hands go on. A granule that was looked at is
//! not noted any more. Pages of it that come later leave when a hand comes by, whatever chances they have.
//!
//! # What it takes
//!
//! Two bits a page, of Farshore's own memory (`overhead_bytes`): 64 KiB of addresses for each GiB in which something is expected. Of these a
//! page of RAM comes with the first estimate in 64 MiB, and all is given back when the estimates are forgotten. There is no room that could be full.
//!
//! Nothing is noted of a granule that no thread has touched. A program may reserve a hundred terabytes and use a megabyte, and a policy may speak of all of
//! them: so the table is bounded by what was used, as the page words are. Where there is no memory for it (a limit of addresses), an estimate is
//! dropped, and counted with the wishes that are.
//!
//! | first bit | second bit | expected |
//! |---|---|---|
//! | 0 | 0 | nothing is |
//! | 0 | 1 | late |
//! | 1 | 0 | soon |
//! | 1 | 1 | next |

use crate::Engine;
use crate::wishes::{Bits, NO_PAGES, bits_of};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use farshore_attach::Reuse;
use farshore_core::page::{GranuleId, PageRange};
use farshore_core::seams::{Kernel, World};
use farshore_core::spin::SpinLock;
use farshore_core::sync::Padded;
use farshore_core::sync::plain::AtomicBool;

/// Granules of one part of the table: 1 GiB.
const GRANULES: usize = 512;

/// What is expected of pages of one granule, as evictors see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Marks {
    /// Pages that are expected soon, or next: they are passed over.
    pub soon: Bits,
    /// Pages that are expected late.
    pub late: Bits,
}

impl Marks {
    /// Nothing is expected.
    pub(crate) const NONE: Marks = Marks { soon: NO_PAGES, late: NO_PAGES };
}

/// A GiB of addresses.
#[derive(Debug)]
struct Part {
    /// Which one.
    number: u64,
    /// The two bits of each page, by granule. A block of this size is a mapping of its own, so that it takes RAM where it is written.
    bits: Box<[[Bits; 2]]>,
    /// Granules with late pages that no evictor has looked at.
    noted: Bits,
}

impl Part {
    /// `None`: there is no memory for it.
    fn new(number: u64) -> Option<Part> {
        let bits = bytemuck::try_zeroed_slice_box(GRANULES).ok()?;
        Some(Part { number, bits, noted: NO_PAGES })
    }

    fn count(&self, granule: usize) -> u64 {
        let [first, second] = &self.bits[granule];
        first.iter().zip(second).map(|(a, b)| u64::from((a | b).count_ones())).sum()
    }

    fn marks(&self, granule: usize) -> Marks {
        let [first, second] = &self.bits[granule];
        Marks { soon: *first, late: core::array::from_fn(|n| second[n] & !first[n]) }
    }

    fn note(&mut self, granule: usize, bits: &Bits, reuse: Reuse) {
        let set = |plane: &mut Bits, to: bool| {
            plane.iter_mut().zip(bits).for_each(|(word, bits)| *word = if to { *word | bits } else { *word & !bits });
        };
        let [first, second] = &mut self.bits[granule];
        set(first, matches!(reuse, Reuse::Soon | Reuse::Next));
        set(second, matches!(reuse, Reuse::Late | Reuse::Next));
    }

    /// These pages were passed over: next becomes soon, and soon nothing. (What was said anew meanwhile counts as passed over, too.)
    fn pass(&mut self, granule: usize, passed: &Bits) {
        let [first, second] = &mut self.bits[granule];
        for (n, passed) in passed.iter().enumerate() {
            let passed = passed & first[n];
            first[n] &= !(passed & !second[n]);
            second[n] &= !passed;
        }
    }

    /// These pages have left as late ones.
    fn leave(&mut self, granule: usize, left: &Bits) {
        let [first, second] = &mut self.bits[granule];
        second.iter_mut().zip(left).zip(first).for_each(|((second, left), first)| *second &= *first | !left);
    }
}

/// The table.
#[derive(Debug, Default)]
struct Table {
    /// By their numbers.
    parts: Vec<Part>,
    /// Pages of which something is expected, and granules that are noted.
    pages: u64,
    noted: u32,
}

fn place_of(granule: GranuleId) -> (u64, usize) {
    (granule.0 / GRANULES as u64, granule.0 as usize % GRANULES)
}

impl Table {
    fn part(&mut self, number: u64) -> Result<&mut Part, usize> {
        let found = self.parts.binary_search_by_key(&number, |part| part.number);
        found.map(|at| &mut self.parts[at])
    }

    /// Changes what is expected in one granule, if something is.
    fn change(&mut self, granule: GranuleId, change: impl FnOnce(&mut Part, usize)) {
        let (number, at) = place_of(granule);
        let Ok(part) = self.part(number) else { return };
        let before = part.count(at);
        change(part, at);
        let after = part.count(at);
        self.pages = self.pages + after - before;
    }

    /// False: there is no memory for it.
    fn note(&mut self, granule: GranuleId, bits: &Bits, reuse: Reuse) -> bool {
        let number = place_of(granule).0;
        if let Err(at) = self.part(number) {
            if reuse == Reuse::Unknown {
                return true;
            }
            let made = self.parts.try_reserve(1).ok().and_then(|()| Part::new(number));
            let Some(made) = made else { return false };
            self.parts.insert(at, made);
        }
        self.change(granule, |part, at| part.note(at, bits, reuse));
        if reuse == Reuse::Late {
            self.note_granule(granule);
        }
        true
    }

    /// Late pages of this granule leave first.
    fn note_granule(&mut self, granule: GranuleId) {
        let (number, at) = place_of(granule);
        let Ok(part) = self.part(number) else { return };
        let before = part.noted[at / 64];
        part.noted[at / 64] |= 1 << (at % 64);
        let is_new = part.noted[at / 64] != before;
        self.noted += u32::from(is_new);
    }

    fn take_late(&mut self) -> Option<(GranuleId, Bits)> {
        let part = self.parts.iter_mut().find(|part| part.noted != NO_PAGES)?;
        let word = part.noted.iter().position(|word| *word != 0)?;
        let at = word * 64 + part.noted[word].trailing_zeros() as usize;
        part.noted[word] &= part.noted[word] - 1;
        self.noted -= 1;
        Some((GranuleId(part.number * GRANULES as u64 + at as u64), part.marks(at).late))
    }
}

/// What is expected of the pages of one process.
#[derive(Debug)]
pub(crate) struct Expected {
    table: Padded<SpinLock<Table>>,
    hints: Padded<Hints>,
}

/// Whether the table need be looked at: read often, written when that changes.
#[derive(Debug, Default)]
struct Hints {
    any: AtomicBool,
    any_noted: AtomicBool,
}

impl Default for Expected {
    fn default() -> Expected {
        Expected { table: Padded(SpinLock::new(Table::default())), hints: Padded::default() }
    }
}

impl Expected {
    fn with<R>(&self, f: impl FnOnce(&mut Table) -> R) -> R {
        self.table.with(|table| {
            let result = f(table);
            // Relaxed: an evictor that sees one too late looks once more, or not yet.
            for (hint, is) in [(&self.hints.any, table.pages > 0), (&self.hints.any_noted, table.noted > 0)] {
                if hint.load(Ordering::Relaxed) != is {
                    hint.store(is, Ordering::Relaxed);
                }
            }
            result
        })
    }

    #[inline]
    fn is_any(&self) -> bool {
        self.hints.any.load(Ordering::Relaxed)
    }

    /// What is expected of pages of one granule, by the last estimate. False: there is no memory for it.
    fn note(&self, part: PageRange, reuse: Reuse) -> bool {
        let bits = bits_of(part);
        self.with(|table| table.note(part.start.granule(), &bits, reuse))
    }

    /// What is expected of the pages of a granule.
    #[inline]
    pub(crate) fn of(&self, granule: GranuleId) -> Marks {
        if !self.is_any() {
            return Marks::NONE;
        }
        let (number, at) = place_of(granule);
        self.table.with(|table| table.part(number).map_or(Marks::NONE, |part| part.marks(at)))
    }

    /// A granule with pages that are to leave first, and these: no evictor has looked at it since that was said.
    pub(crate) fn take_late(&self) -> Option<(GranuleId, Bits)> {
        if !self.hints.any_noted.load(Ordering::Relaxed) {
            return None;
        }
        self.with(Table::take_late)
    }

    /// There was no room for all that was taken: the rest leaves first still.
    pub(crate) fn put_late(&self, granule: GranuleId) {
        self.with(|table| table.note_granule(granule));
    }

    /// Evictors have passed some pages over, and others have left as late ones.
    pub(crate) fn use_up(&self, granule: GranuleId, passed: &Bits, left: &Bits) {
        self.with(|table| {
            table.change(granule, |part, at| {
                part.pass(at, passed);
                part.leave(at, left);
            });
        });
    }

    /// Nothing is expected any more.
    fn forget(&self) {
        // Given back when evictors need not wait for it.
        drop(self.with(core::mem::take));
    }
}

impl<W: World> Engine<W> {
    /// Notes when the managed pages of `range` are expected to be used again. With all signals blocked.
    pub fn expect(&self, range: PageRange, reuse: Reuse) {
        for part in range.by_granule() {
            // What nobody has touched may be more than any table has room for. What was said of an earlier life of it can be taken back.
            if self.table.granule(part.start.granule()).is_some_and(|g| g.granule.touched() || reuse == Reuse::Unknown) {
                self.kernel.interleave();
                if !self.expected.note(part, reuse) {
                    self.wishes.note_dropped(part.len());
                }
            }
        }
    }

    /// Nothing is expected any more: a policy is gone, and the table does not know whose an estimate is.
    pub fn forget_expected(&self) {
        self.expected.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use farshore_core::page::Page;
    use proptest::prelude::*;

    fn pages(from: u64, count: u64) -> PageRange {
        PageRange { start: Page(from), end: Page(from + count) }
    }

    fn numbers(granule: GranuleId, bits: &Bits) -> Vec<u64> {
        (0..512).filter(|n| bits[n / 64] >> (n % 64) & 1 != 0).map(|n| granule.first().0 + n as u64).collect()
    }

    fn soon(table: &Expected, granule: u64) -> Vec<u64> {
        numbers(GranuleId(granule), &table.of(GranuleId(granule)).soon)
    }

    fn late(table: &Expected, granule: u64) -> Vec<u64> {
        numbers(GranuleId(granule), &table.of(GranuleId(granule)).late)
    }

    #[test]
    fn a_page_is_passed_over_as_often_as_was_said() {
        let table = Expected::default();
        assert!(table.note(pages(10, 3), Reuse::Next));
        assert!(table.note(pages(12, 2), Reuse::Soon));
        assert!(table.note(pages(11, 1), Reuse::Unknown));
        let pass = |from, count| table.use_up(GranuleId(0), &bits_of(pages(from, count)), &NO_PAGES);
        assert_eq!(soon(&table, 0), [10, 12, 13]);
        pass(10, 3);
        assert_eq!(soon(&table, 0), [10, 13], "12 was to be passed over once");
        pass(0, 512);
        assert_eq!((soon(&table, 0), late(&table, 0)), (vec![], vec![]));
        assert!(!table.is_any(), "nobody need ask any more");
        pass(0, 512);
        assert_eq!(table.of(GranuleId(0)), Marks::NONE);
    }

    #[test]
    fn late_pages_are_looked_at_once_and_late_until_they_have_left() {
        let table = Expected::default();
        assert!(table.note(pages(512, 4), Reuse::Late));
        assert!(table.note(pages(1 << 30, 1), Reuse::Late));
        assert_eq!(table.take_late().map(|(granule, bits)| numbers(granule, &bits)), Some(vec![512, 513, 514, 515]));
        table.use_up(GranuleId(1), &NO_PAGES, &bits_of(pages(512, 2)));
        table.put_late(GranuleId(1));
        assert_eq!(table.take_late().map(|(granule, bits)| numbers(granule, &bits)), Some(vec![514, 515]));
        assert_eq!(table.take_late().map(|(granule, _)| granule.first().0), Some(1 << 30));
        assert_eq!(table.take_late(), None);
        assert_eq!(late(&table, 1), [514, 515], "a hand that comes by takes them");
        // What is said anew counts, and what has left as a late page is not less soon for it.
        assert!(table.note(pages(514, 1), Reuse::Next));
        table.use_up(GranuleId(1), &NO_PAGES, &bits_of(pages(514, 2)));
        assert_eq!((soon(&table, 1), late(&table, 1)), (vec![514], vec![]));
    }

    #[test]
    fn all_is_forgotten_and_its_memory_given_back() {
        let table = Expected::default();
        (0..100).for_each(|n| assert!(table.note(pages(n << 18, 1), Reuse::Late)));
        table.table.with(|table| assert_eq!((table.parts.len(), table.pages, table.noted), (100, 100, 100)));
        table.forget();
        table.table.with(|table| assert_eq!((table.parts.capacity(), table.pages, table.noted), (0, 0, 0)));
        assert_eq!((table.is_any(), table.take_late()), (false, None));
        assert!(table.note(pages(7, 1), Reuse::Unknown));
        table.table.with(|table| assert_eq!(table.parts.len(), 0, "for that there need be no room"));
    }

    proptest! {
        /// As a map from pages to what was said last, less what was used up.
        #[test]
        fn as_a_map(steps in proptest::collection::vec((0..3000u64, 1..600u64, 0..6u8), 1..60)) {
            let (table, mut model) = (Expected::default(), BTreeMap::new());
            for (from, count, what) in steps {
                for part in pages(from, count).by_granule() {
                    let (granule, bits) = (part.start.granule(), bits_of(part));
                    match what {
                        0..=3 => {
                            let reuse = Reuse::ALL[usize::from(what)];
                            assert!(table.note(part, reuse));
                            part.iter().for_each(|page| _ = model.insert(page.0, reuse));
                        }
                        4 => {
                            table.use_up(granule, &bits, &NO_PAGES);
                            for page in part.iter() {
                                match model.get(&page.0) {
                                    Some(Reuse::Next) => _ = model.insert(page.0, Reuse::Soon),
                                    Some(Reuse::Soon) => _ = model.remove(&page.0),
                                    _ => {}
                                }
                            }
                        }
                        _ => {
                            table.use_up(granule, &NO_PAGES, &bits);
                            for page in part.iter().filter(|page| model.get(&page.0) == Some(&Reuse::Late)).collect::<Vec<_>>() {
                                model.remove(&page.0);
                            }
                        }
                    }
                }
            }
            for granule in 0..8 {
                let of = |which: &dyn Fn(Reuse) -> bool| {
                    let mine = model.iter().filter(|(page, reuse)| **page / 512 == granule && which(**reuse));
                    mine.map(|(page, _)| *page).collect::<Vec<_>>()
                };
                prop_assert_eq!(soon(&table, granule), of(&|reuse| matches!(reuse, Reuse::Soon | Reuse::Next)));
                prop_assert_eq!(late(&table, granule), of(&|reuse| reuse == Reuse::Late));
            }
            let known = model.values().filter(|reuse| **reuse != Reuse::Unknown).count() as u64;
            table.table.with(|table| assert_eq!(table.pages, known));
            prop_assert_eq!(table.is_any(), known > 0);
        }
    }
}
