//! Pages that somebody would like to leave, to come or to stay: policies beside the program, and the program itself by `madvise`.
//!
//! ```text
//!  policy ─┐             ┌─ leave ─▶ evictors      (before victims of their own choice)
//!          ├─▶ Wishes ───┼─ come ──▶ threads that read ahead, when no wish to leave is left
//!  madvise ┘             ├─ stay ──▶ evictors pass the page over, as long as there are others
//!                        └─ scan ──▶ evictors, as to leave; that the page left is noted ([`crate::scan`])
//! ```
//!
//! What waits here is no order of operations but *pages to look at*: of a page that is to leave and then to come, the last wish
//! counts (Flexible Swapping §4.2). What has to be done is decided when the page is taken out, by its word: a page that is out
//! already does not leave, and a page that comes takes a spare frame or does not come. A fault is served by its own thread, so it
//! is before all wishes; wishes to leave are before wishes to come.
//!
//! The memory is a table with room for [`BUCKETS`] × [`WAYS`] granules; neighbours never push each other out. What finds no room is
//! dropped and counted: a wish is a hint. It is made by the first wish, so a program without has none.

use crate::Engine;
use alloc::boxed::Box;
use alloc::vec;
use core::sync::atomic::Ordering;
use farshore_attach::PageState;
use farshore_core::limits::GRANULE_PAGES;
use farshore_core::order::Order;
use farshore_core::page::{GranuleId, Page, PageRange};
use farshore_core::seams::{Ahead, Clock, Kernel, World};
use farshore_core::spin::SpinLock;
use farshore_core::sync::Padded;
use farshore_core::sync::plain::{AtomicU32, AtomicU64};
use farshore_core::word::{BeginEvict, State};

/// Granules whose wishes lie side by side: 512 MiB of addresses.
const BUCKETS: usize = 256;
/// Granules of one bucket.
const WAYS: usize = 4;
const PLACES: usize = BUCKETS * WAYS;

/// Pages of one granule.
pub(crate) type Bits = [u64; GRANULE_PAGES / 64];
/// No page.
pub(crate) const NO_PAGES: Bits = [0; GRANULE_PAGES / 64];

/// What is wished of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// They leave.
    Leave,
    /// They come, if there are frames to spare.
    Come,
    /// They stay, until [`Wish::Free`].
    Stay,
    /// They stay for so many ns.
    StayFor(u64),
    /// They need not stay.
    Free,
}

/// What a scan of pages of one granule has noted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// Pages that have left since it began.
    pub left: Bits,
    /// Of them, those that have left more than once: so they came back.
    pub again: Bits,
}

/// Wishes about the pages of one granule.
#[derive(Clone, Copy, Debug)]
struct Place {
    granule: GranuleId,
    leave: Bits,
    come: Bits,
    stay: Bits,
    stay_for: Bits,
    /// When `stay_for` is over; of several wishes the last to end counts.
    until_ns: u64,
    /// Pages that leave for a scan; those that a scan looks at; of these, those that have left since it began, and more than once.
    scan: Bits,
    scanned: Bits,
    left: Bits,
    again: Bits,
}

const EMPTY: Place = Place {
    granule: GranuleId(0),
    leave: NO_PAGES,
    come: NO_PAGES,
    stay: NO_PAGES,
    stay_for: NO_PAGES,
    until_ns: 0,
    scan: NO_PAGES,
    scanned: NO_PAGES,
    left: NO_PAGES,
    again: NO_PAGES,
};

impl Place {
    fn is_empty(&self) -> bool {
        [self.leave, self.come, self.stay, self.stay_for, self.scanned].iter().all(|bits| *bits == NO_PAGES)
    }

    /// Begins a scan of pages, but for those that are to stay, and those that another scan looks at. Returns which.
    fn begin_scan(&mut self, bits: &Bits) -> Bits {
        core::array::from_fn(|n| {
            let free = bits[n] & !(self.stay[n] | self.stay_for[n] | self.scanned[n]);
            self.scan[n] |= free;
            self.scanned[n] |= free;
            self.come[n] &= !free;
            free
        })
    }

    /// A page has left.
    fn note_left(&mut self, index: usize) {
        let (n, bit) = (index / 64, 1 << (index % 64));
        let scanned = self.scanned[n] & bit;
        self.again[n] |= scanned & self.left[n];
        self.left[n] |= scanned;
    }

    /// Ends a scan of these pages.
    fn end_scan(&mut self, bits: &Bits) -> Ended {
        let mut ended = Ended { left: NO_PAGES, again: NO_PAGES };
        for (n, &bits) in bits.iter().enumerate() {
            ended.left[n] = self.left[n] & bits;
            ended.again[n] = self.again[n] & bits;
            for plane in [&mut self.scan, &mut self.scanned, &mut self.left, &mut self.again] {
                plane[n] &= !bits;
            }
        }
        ended
    }

    fn any_leaves(&self) -> bool {
        self.leave != NO_PAGES || self.scan != NO_PAGES
    }

    fn wish(&mut self, bits: &Bits, wish: Wish, now_ns: u64) {
        let set = |which: &mut Bits, to: bool| {
            for (word, bits) in which.iter_mut().zip(bits) {
                *word = if to { *word | bits } else { *word & !bits };
            }
        };
        set(&mut self.leave, wish == Wish::Leave);
        if wish != Wish::Free {
            // A page that is to stay need not come for that.
            set(&mut self.come, wish == Wish::Come);
        }
        if matches!(wish, Wish::Come | Wish::Stay | Wish::StayFor(_)) {
            set(&mut self.scan, false);
        }
        if wish != Wish::Come {
            set(&mut self.stay, wish == Wish::Stay);
            set(&mut self.stay_for, matches!(wish, Wish::StayFor(_)));
        }
        if let Wish::StayFor(ns) = wish {
            self.until_ns = self.until_ns.max(now_ns.saturating_add(ns));
        }
    }
}

/// The places, and which of them have wishes of a kind.
#[derive(Debug)]
struct Table {
    places: Box<[Place]>,
    leaving: Sorted,
    coming: Sorted,
    /// Pages that scans look at.
    scanned: u32,
}

/// Places with wishes of one kind, which are served round and round.
#[derive(Debug, Default)]
struct Sorted {
    has: [u64; PLACES / 64],
    hand: usize,
}

impl Sorted {
    fn set(&mut self, place: usize, to: bool) {
        let bit = 1 << (place % 64);
        let word = &mut self.has[place / 64];
        *word = if to { *word | bit } else { *word & !bit };
    }

    /// The next place from the hand on.
    fn next(&mut self) -> Option<usize> {
        let from = self.hand;
        let found = (0..=self.has.len()).find_map(|n| {
            let at = (from / 64 + n) % self.has.len();
            // In the hand's own word, first what is behind the hand, and at last the rest.
            let mask = if n == 0 { u64::MAX << (from % 64) } else { u64::MAX };
            let word = self.has[at] & mask;
            (word != 0).then(|| at * 64 + word.trailing_zeros() as usize)
        })?;
        self.hand = (found + 1) % PLACES;
        Some(found)
    }

    fn count(&self) -> u32 {
        self.has.iter().map(|word| word.count_ones()).sum()
    }
}

impl Table {
    fn new() -> Table {
        Table { places: vec![EMPTY; PLACES].into(), leaving: Sorted::default(), coming: Sorted::default(), scanned: 0 }
    }

    fn bucket(granule: GranuleId) -> core::ops::Range<usize> {
        let first = granule.0 as usize % BUCKETS * WAYS;
        first..first + WAYS
    }

    fn find(&self, granule: GranuleId) -> Option<usize> {
        Table::bucket(granule).find(|&n| self.places[n].granule == granule && !self.places[n].is_empty())
    }

    /// The place of a granule, which it gets if it has none and there is room.
    fn place(&mut self, granule: GranuleId) -> Option<usize> {
        let n = self.find(granule).or_else(|| Table::bucket(granule).find(|&n| self.places[n].is_empty()))?;
        if self.places[n].granule != granule || self.places[n].is_empty() {
            self.places[n] = Place { granule, ..EMPTY };
        }
        Some(n)
    }

    fn wish(&mut self, granule: GranuleId, bits: &Bits, wish: Wish, now_ns: u64) -> bool {
        let Some(n) = self.place(granule) else { return false };
        self.places[n].wish(bits, wish, now_ns);
        self.sort(n);
        true
    }

    fn sort(&mut self, n: usize) {
        self.leaving.set(n, self.places[n].any_leaves());
        self.coming.set(n, self.places[n].come != NO_PAGES);
    }
}

/// The wishes of one process.
#[derive(Debug)]
pub(crate) struct Wishes {
    table: Padded<SpinLock<Option<Table>>>,
    /// Granules with pages that are to leave, and to come; 1 if pages may have to stay. Read often, and written with wishes alone.
    leaving: AtomicU32,
    coming: AtomicU32,
    staying: AtomicU32,
    /// Pages are being scanned.
    scanning: AtomicU32,
    dropped: AtomicU64,
}

impl Default for Wishes {
    fn default() -> Wishes {
        Wishes {
            table: Padded(SpinLock::new(None)),
            leaving: AtomicU32::new(0),
            coming: AtomicU32::new(0),
            staying: AtomicU32::new(0),
            scanning: AtomicU32::new(0),
            dropped: AtomicU64::new(0),
        }
    }
}

impl Wishes {
    /// Whether pages are to leave.
    #[inline]
    pub(crate) fn any_leave(&self) -> bool {
        self.leaving.load(Ordering::Relaxed) > 0
    }

    /// Whether pages are to come.
    pub(crate) fn any_come(&self) -> bool {
        self.coming.load(Ordering::Relaxed) > 0
    }

    /// Whether pages are to stay.
    #[inline]
    pub(crate) fn any_stay(&self) -> bool {
        self.staying.load(Ordering::Relaxed) > 0
    }

    /// Whether pages are being scanned.
    #[inline]
    pub(crate) fn any_scan(&self) -> bool {
        self.scanning.load(Ordering::Relaxed) > 0
    }

    fn with<R>(&self, f: impl FnOnce(&mut Table) -> R) -> R {
        self.table.with(|table| {
            let table = table.get_or_insert_with(Table::new);
            let result = f(table);
            self.leaving.store(table.leaving.count(), Ordering::Relaxed);
            self.coming.store(table.coming.count(), Ordering::Relaxed);
            result
        })
    }

    /// Notes a wish about pages of one granule. False: there is no room.
    fn wish(&self, part: PageRange, wish: Wish, now_ns: u64) -> bool {
        let bits = bits_of(part);
        let noted = self.with(|table| {
            let noted = table.wish(part.start.granule(), &bits, wish, now_ns);
            if matches!(wish, Wish::Stay | Wish::StayFor(_)) && noted {
                self.staying.store(1, Ordering::Relaxed);
            }
            noted
        });
        if !noted {
            self.dropped.fetch_add(part.len(), Ordering::Relaxed);
        }
        noted
    }

    /// Takes the pages of a granule that are to leave.
    pub(crate) fn take_leaving(&self) -> Option<(GranuleId, Bits)> {
        self.with(|table| {
            let n = table.leaving.next()?;
            let (leave, scan) = (table.places[n].leave, table.places[n].scan);
            (table.places[n].leave, table.places[n].scan) = (NO_PAGES, NO_PAGES);
            table.sort(n);
            Some((table.places[n].granule, core::array::from_fn(|word| leave[word] | scan[word])))
        })
    }

    /// Takes the pages of a granule that are to come.
    pub(crate) fn take_coming(&self) -> Option<(GranuleId, Bits)> {
        self.with(|table| {
            let n = table.coming.next()?;
            let bits = core::mem::replace(&mut table.places[n].come, NO_PAGES);
            table.sort(n);
            Some((table.places[n].granule, bits))
        })
    }

    /// Pages of the granule that were taken to leave, and for which there was no room: they leave later, unless another wish has come.
    pub(crate) fn put_leaving(&self, granule: GranuleId, bits: &Bits) {
        self.with(|table| {
            let mut rest = *bits;
            if let Some(n) = table.find(granule) {
                let place = &table.places[n];
                for (i, word) in rest.iter_mut().enumerate() {
                    *word &= !(place.come[i] | place.stay[i] | place.stay_for[i]);
                }
            }
            table.wish(granule, &rest, Wish::Leave, 0);
        });
    }

    /// The pages of a granule that are to stay now.
    pub(crate) fn staying(&self, granule: GranuleId, now_ns: u64) -> Bits {
        self.with(|table| {
            let Some(n) = table.find(granule) else { return NO_PAGES };
            let place = &mut table.places[n];
            if place.until_ns <= now_ns {
                place.stay_for = NO_PAGES;
                place.until_ns = 0;
            }
            core::array::from_fn(|i| place.stay[i] | place.stay_for[i])
        })
    }

    /// Begins a scan of pages of one granule. Returns those that it looks at ([`Place::begin_scan`]).
    pub(crate) fn begin_scan(&self, part: PageRange) -> Bits {
        self.with(|table| {
            let Some(n) = table.place(part.start.granule()) else { return NO_PAGES };
            let taken = table.places[n].begin_scan(&bits_of(part));
            table.scanned += count(&taken);
            table.sort(n);
            self.scanning.store(table.scanned, Ordering::Relaxed);
            taken
        })
    }

    /// Pages leave: before anybody can bring them back.
    pub(crate) fn note_left(&self, pages: impl Iterator<Item = Page>) {
        self.with(|table| {
            for page in pages {
                if let Some(n) = table.find(page.granule()) {
                    table.places[n].note_left(page.index_in_granule());
                }
            }
        });
    }

    /// Ends a scan of pages of one granule, those that `begin_scan` returned: which have not left for it need not any more.
    pub(crate) fn end_scan(&self, granule: GranuleId, bits: &Bits) -> Ended {
        self.with(|table| {
            let Some(n) = table.find(granule) else { return Ended { left: NO_PAGES, again: NO_PAGES } };
            table.scanned = table.scanned.saturating_sub(count(bits));
            let ended = table.places[n].end_scan(bits);
            table.sort(n);
            self.scanning.store(table.scanned, Ordering::Relaxed);
            ended
        })
    }

    /// No page is to stay any more.
    fn free_all(&self) {
        self.with(|table| {
            for place in &mut table.places {
                (place.stay, place.stay_for) = (NO_PAGES, NO_PAGES);
            }
            self.staying.store(0, Ordering::Relaxed);
        });
    }
}

/// The pages of `part`, which lies in one granule.
pub(crate) fn bits_of(part: PageRange) -> Bits {
    let mut bits = NO_PAGES;
    part.iter().for_each(|page| bits[page.index_in_granule() / 64] |= 1 << (page.index_in_granule() % 64));
    bits
}

fn count(bits: &Bits) -> u32 {
    bits.iter().map(|word| word.count_ones()).sum()
}

/// The runs of pages of a granule.
pub(crate) fn runs(granule: GranuleId, bits: Bits) -> impl Iterator<Item = Ahead> {
    let is_set = move |&n: &usize| bits[n / 64] >> (n % 64) & 1 != 0;
    let mut from = 0;
    core::iter::from_fn(move || {
        let start = (from..GRANULE_PAGES).find(is_set)?;
        let end = (start..GRANULE_PAGES).find(|n| !is_set(n)).unwrap_or(GRANULE_PAGES);
        from = end;
        Some(Ahead { first: granule.first().plus(start as u64), step: 1, pages: (end - start) as u32 })
    })
}

impl<W: World> Engine<W> {
    /// Notes a wish about the managed pages of `range`. The threads that serve it are woken, and made as for anything else; with all
    /// signals blocked.
    pub fn wish(&self, range: PageRange, wish: Wish) {
        let now = self.clock.now_ns();
        let mut noted = false;
        for part in range.by_granule() {
            // Of memory that nobody has touched there is nothing to move.
            if self.table.granule(part.start.granule()).is_some_and(|g| g.granule.touched() || wish == Wish::Free) {
                self.kernel.interleave();
                noted |= self.wishes.wish(part, wish, now);
            }
        }
        match wish {
            Wish::Leave if noted => self.evictors.pace.wake(&self.futex),
            Wish::Come if noted => self.wake_for_coming(),
            _ => {}
        }
    }

    /// There are pages that are to come.
    pub(crate) fn wake_for_coming(&self) {
        if self.requests.nudge(&self.futex) {
            self.wake_watcher();
        }
    }

    /// No page is to stay any more: whoever wished so is gone.
    pub fn free_all(&self) {
        if self.wishes.any_stay() {
            self.wishes.free_all();
        }
    }

    /// Pages of wishes that were dropped, since there was no room.
    pub fn dropped_wishes(&self) -> u64 {
        self.wishes.dropped.load(Ordering::Relaxed)
    }

    /// The program says in which order it will use the managed pages of `range`: `MADV_SEQUENTIAL`, `MADV_RANDOM`, `MADV_NORMAL`.
    pub fn advise_order(&self, range: PageRange, order: Order) {
        for part in range.by_granule() {
            // Not a touch: of memory that nobody uses, calls look at no word.
            if let Some(g) = self.table.granule(part.start.granule()) {
                g.granule.ordered.advise(part, order);
            }
        }
    }

    /// The order that the program has told for a page.
    #[inline]
    pub(crate) fn order_of(&self, page: Page) -> Order {
        self.table.granule(page.granule()).map_or(Order::Unknown, |g| g.granule.ordered.of(page.index_in_granule()))
    }

    /// The pages of `range` lose the chances that they have: evictors take them before others (`MADV_COLD`).
    pub fn make_old(&self, range: PageRange) {
        for part in range.by_granule() {
            let Some(g) = self.table.granule(part.start.granule()).filter(|g| g.granule.touched()) else { continue };
            for page in part.iter() {
                let word = &g.words[page.index_in_granule()];
                while word.load().chances() > 0 {
                    match word.begin_evict(true) {
                        BeginEvict::PassedOver => {}
                        // Another thread has taken the last one just before.
                        BeginEvict::Owned { was } => self.restore(page, word, was),
                        BeginEvict::Skip => break,
                    }
                }
            }
        }
    }

    /// The state of a page, as a policy sees it.
    pub fn page_state(&self, page: Page) -> PageState {
        let Some(word) = self.page(page).map(|at| at.word.load()) else { return PageState::Foreign };
        match word.state() {
            State::Foreign => PageState::Foreign,
            State::Untouched => PageState::Untouched,
            State::Resident if word.slot().is_some() => PageState::Clean,
            State::Resident => PageState::Dirty,
            State::Leaving => PageState::Leaving,
            State::Out => PageState::Out,
            State::Busy => PageState::Busy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn pages(from: u64, count: u64) -> PageRange {
        PageRange { start: Page(from), end: Page(from + count) }
    }

    fn taken(which: Option<(GranuleId, Bits)>) -> Vec<u64> {
        let Some((granule, bits)) = which else { return Vec::new() };
        runs(granule, bits).flat_map(|run| (0..u64::from(run.pages)).map(move |n| run.first.0 + n)).collect()
    }

    #[test]
    fn the_last_wish_about_a_page_counts() {
        let wishes = Wishes::default();
        assert!(!wishes.any_leave() && !wishes.any_come());
        assert!(wishes.wish(pages(512, 6), Wish::Leave, 0));
        assert!(wishes.wish(pages(514, 2), Wish::Come, 0));
        assert!(wishes.any_leave() && wishes.any_come());
        assert_eq!(taken(wishes.take_leaving()), [512, 513, 516, 517]);
        assert_eq!(taken(wishes.take_coming()), [514, 515]);
        assert!(!wishes.any_leave() && !wishes.any_come());
    }

    #[test]
    fn pages_stay_until_they_are_freed_or_their_time_is_over() {
        let wishes = Wishes::default();
        wishes.wish(pages(3, 2), Wish::Stay, 0);
        wishes.wish(pages(7, 1), Wish::StayFor(100), 50);
        let staying = |now| taken(Some((GranuleId(0), wishes.staying(GranuleId(0), now))));
        assert_eq!(staying(149), [3, 4, 7]);
        assert_eq!(staying(150), [3, 4]);
        wishes.wish(pages(3, 1), Wish::Free, 0);
        assert_eq!(staying(150), [4]);
        wishes.wish(pages(4, 1), Wish::Leave, 0);
        assert_eq!(staying(150), [0; 0]);
        wishes.wish(pages(4, 1), Wish::Stay, 0);
        assert!(!wishes.any_leave(), "it is to stay");
        wishes.free_all();
        assert!(!wishes.any_stay() && staying(0).is_empty());
    }

    #[test]
    fn what_is_put_back_leaves_later_unless_it_is_wanted_meanwhile() {
        let wishes = Wishes::default();
        wishes.wish(pages(0, 4), Wish::Leave, 0);
        let (granule, bits) = wishes.take_leaving().expect("wished for");
        wishes.wish(pages(1, 1), Wish::Come, 0);
        wishes.wish(pages(2, 1), Wish::Stay, 0);
        wishes.put_leaving(granule, &bits);
        assert_eq!(taken(wishes.take_leaving()), [0, 3]);
        assert_eq!(taken(wishes.take_coming()), [1]);
    }

    #[test]
    fn a_scan_tells_which_pages_have_left_for_it() {
        let wishes = Wishes::default();
        let ended = |bits: &Bits| {
            let Ended { left, again } = wishes.end_scan(GranuleId(0), bits);
            (taken(Some((GranuleId(0), left))), taken(Some((GranuleId(0), again))))
        };
        wishes.wish(pages(2, 1), Wish::Stay, 0);
        wishes.wish(pages(5, 1), Wish::Come, 0);
        let first = wishes.begin_scan(pages(0, 8));
        assert!(wishes.any_scan() && !wishes.any_come(), "the last wish counts");
        assert_eq!(taken(wishes.take_leaving()), [0, 1, 3, 4, 5, 6, 7], "one is to stay");
        // Another scan leaves to the first what it looks at.
        let second = wishes.begin_scan(pages(6, 4));
        assert_eq!(taken(wishes.take_leaving()), [8, 9]);
        wishes.note_left([1, 3, 4, 9, 512].map(Page).into_iter());
        wishes.note_left([3].map(Page).into_iter());
        assert_eq!(ended(&second), (vec![9], vec![]));
        assert_eq!(ended(&first), (vec![1, 3, 4], vec![3]));
        assert!(!wishes.any_scan());
        assert_eq!(ended(&first), (vec![], vec![]), "each once");
    }

    #[test]
    fn the_end_of_a_scan_takes_no_other_wish_away() {
        let wishes = Wishes::default();
        let scan = wishes.begin_scan(pages(10, 4));
        wishes.wish(pages(11, 1), Wish::Leave, 0);
        wishes.wish(pages(12, 1), Wish::Stay, 0);
        wishes.wish(pages(20, 1), Wish::Leave, 0);
        wishes.end_scan(GranuleId(0), &scan);
        assert_eq!(taken(wishes.take_leaving()), [11, 20], "what was to leave for the scan alone need not any more");
        // Nor does a wish give the place of a scan to another granule.
        let scan = wishes.begin_scan(pages(30, 2));
        wishes.wish(pages(31, 1), Wish::Come, 0);
        assert_eq!((taken(wishes.take_leaving()), taken(wishes.take_coming())), (vec![30], vec![31]));
        wishes.note_left([30].map(Page).into_iter());
        (1..=WAYS as u64).for_each(|n| _ = wishes.wish(pages(n * BUCKETS as u64 * 512, 1), Wish::Leave, 0));
        assert_eq!(taken(Some((GranuleId(0), wishes.end_scan(GranuleId(0), &scan).left))), [30]);
    }

    #[test]
    fn what_finds_no_room_is_dropped() {
        let wishes = Wishes::default();
        let far = |n: u64| pages(n * BUCKETS as u64 * 512, 1);
        assert_eq!((0..6).filter(|&n| wishes.wish(far(n), Wish::Leave, 0)).count(), WAYS);
        assert_eq!(wishes.dropped.load(Ordering::Relaxed), 2);
        assert_eq!(
            (0..PLACES as u64 * 2).filter(|&n| wishes.wish(pages(n * 512, 1), Wish::Leave, 0)).count() as u64,
            PLACES as u64
        );
        let mut all: Vec<u64> = core::iter::from_fn(|| wishes.take_leaving()).map(|(granule, _)| granule.0).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), PLACES, "each once");
    }

    proptest! {
        /// As a map from pages to what was wished last.
        #[test]
        fn as_a_map(steps in proptest::collection::vec((0..2000u64, 1..600u64, 0..6u8), 1..60)) {
            let (wishes, mut model) = (Wishes::default(), BTreeMap::new());
            let mut stay = BTreeMap::new();
            for (from, count, what) in steps {
                match what {
                    0..=3 => {
                        let wish = [Wish::Leave, Wish::Come, Wish::Stay, Wish::Free][what as usize];
                        for part in pages(from, count).by_granule() {
                            prop_assert!(wishes.wish(part, wish, 0));
                        }
                        for page in from..from + count {
                            match wish {
                                Wish::Free => {
                                    if model.get(&page) == Some(&Wish::Leave) {
                                        model.remove(&page);
                                    }
                                    stay.remove(&page);
                                }
                                Wish::Stay => {
                                    model.remove(&page);
                                    stay.insert(page, ());
                                }
                                Wish::Leave => {
                                    model.insert(page, wish);
                                    stay.remove(&page);
                                }
                                _ => _ = model.insert(page, wish),
                            }
                        }
                    }
                    _ => {
                        let (wish, got) = if what == 4 { (Wish::Leave, taken(wishes.take_leaving())) } else { (Wish::Come, taken(wishes.take_coming())) };
                        if got.is_empty() {
                            prop_assert!(model.values().all(|w| *w != wish));
                        }
                        for page in got {
                            prop_assert_eq!(model.remove(&page), Some(wish));
                        }
                    }
                }
            }
            for granule in 0..6 {
                let mine: Vec<u64> = stay.keys().copied().filter(|page| page / 512 == granule).collect();
                prop_assert_eq!(taken(Some((GranuleId(granule), wishes.staying(GranuleId(granule), 0)))), mine);
            }
            prop_assert_eq!(wishes.any_leave(), model.values().any(|w| *w == Wish::Leave));
        }
    }
}
