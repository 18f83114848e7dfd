//! Pages that somebody would like to leave, to come or to stay: policies beside the program, and the program itself by `madvise`.
//!
//! ```text
//!  policy ─┐             ┌─ leave ─▶ evictors      (before victims of their own choice)
//!          ├─▶ Wishes ───┼─ come ──▶ threads that read ahead, when no wish to leave is left
//!  madvise ┘             ├─ stay ──▶ evictors pass the page over, as long as there are others
//!                        └─ scan ──▶ the kernel watches, or evictors, as to leave; that the page left is noted ([`crate::scan`])
//! ```
//!
//! What waits here is no order of operations but *pages to look at*: of a page that is to leave and then to come, the last wish
//! counts (Flexible Swapping §4.2). What has to be done is decided when the page is taken out, by its word: a page that is out
//! already does not leave, and a page that comes takes a spare frame or does not come. A fault is served by its own thread, so it
//! is before all wishes; wishes to leave are before wishes to come.
//!
//! The memory is a table with room for [`BUCKETS`] × [`WAYS`] granules; neighbours never push each other out. What finds no room is
//! dropped and counted: a wish is a hint. Wishes whose time is over, or whose memory is gone, take no room from others. The table is made by the first
//! wish, so a program without has none. Where there is no memory for it (a limit of addresses), all wishes are dropped.

use crate::Engine;
use alloc::boxed::Box;
use alloc::vec::Vec;
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

/// Pages that a thread that reads ahead takes at a time, each of which may be a read of its own: who ends the threads waits for so many. One read brings as
/// many where they lie side by side.
const COMING_AT_ONCE: u32 = 64;

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
    /// Pages of which the kernel may have lost meanwhile whether they were used ([`Wishes::begin_cold`]).
    pub unsure: Bits,
}

/// What a scan may look at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    /// The pages.
    pub pages: Bits,
    /// No other scan looks at pages of their granule.
    pub alone: bool,
}

/// Nothing.
pub(crate) const NOT_BEGUN: Begun = Begun { pages: NO_PAGES, alone: false };

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
    /// Pages that leave for a scan; those that a scan looks at; of these, those that have left since it began, and more than once; and those of which it is not
    /// sure what the kernel tells.
    scan: Bits,
    scanned: Bits,
    left: Bits,
    again: Bits,
    unsure: Bits,
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
    unsure: NO_PAGES,
};

impl Place {
    fn is_empty(&self) -> bool {
        [self.leave, self.come, self.stay, self.stay_for, self.scanned].iter().all(|bits| *bits == NO_PAGES)
    }

    /// Begins a scan of pages, but for those that are to stay, and those that another scan looks at. Returns which.
    fn begin_scan(&mut self, bits: &Bits) -> Begun {
        let alone = self.scanned == NO_PAGES;
        let pages = core::array::from_fn(|n| {
            let free = bits[n] & !(self.stay[n] | self.stay_for[n] | self.scanned[n]);
            self.scanned[n] |= free;
            free
        });
        Begun { pages, alone }
    }

    /// Pages that a scan looks at leave for it, but for those that are to stay by now.
    fn take_away(&mut self, bits: &Bits) {
        for (n, bits) in bits.iter().enumerate() {
            let free = bits & self.scanned[n] & !(self.stay[n] | self.stay_for[n]);
            self.scan[n] |= free;
            self.come[n] &= !free;
        }
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
        let mut ended = Ended { left: NO_PAGES, again: NO_PAGES, unsure: NO_PAGES };
        for (n, &bits) in bits.iter().enumerate() {
            ended.left[n] = self.left[n] & bits;
            ended.again[n] = self.again[n] & bits;
            ended.unsure[n] = self.unsure[n] & bits;
            for plane in [&mut self.scan, &mut self.scanned, &mut self.left, &mut self.again, &mut self.unsure] {
                plane[n] &= !bits;
            }
        }
        ended
    }

    fn any_leaves(&self) -> bool {
        self.leave != NO_PAGES || self.scan != NO_PAGES
    }

    /// Pages that were to stay until now need not any more; and where none is to stay for a time, the time of others does not count.
    fn end_stay(&mut self, now_ns: u64) {
        if self.until_ns <= now_ns {
            self.stay_for = NO_PAGES;
        }
        if self.stay_for == NO_PAGES {
            self.until_ns = 0;
        }
    }

    /// The memory is gone, and all that is wished of it. A scan is told of at its end all the same.
    fn forget(&mut self) {
        let Place { granule, scanned, left, again, unsure, .. } = *self;
        *self = Place { granule, scanned, left, again, unsure, ..EMPTY };
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

/// What is true when a wish is noted.
#[derive(Clone, Copy)]
pub(crate) struct Now<'a> {
    /// The time.
    pub ns: u64,
    /// Whether a granule's memory is gone.
    pub is_gone: &'a dyn Fn(GranuleId) -> bool,
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
    /// `None`: there is no memory for it.
    fn new() -> Option<Table> {
        let mut places = Vec::new();
        places.try_reserve_exact(PLACES).ok()?;
        places.resize(PLACES, EMPTY);
        Some(Table { places: places.into(), leaving: Sorted::default(), coming: Sorted::default(), scanned: 0 })
    }

    fn bucket(granule: GranuleId) -> core::ops::Range<usize> {
        let first = granule.0 as usize % BUCKETS * WAYS;
        first..first + WAYS
    }

    fn find(&self, granule: GranuleId) -> Option<usize> {
        Table::bucket(granule).find(|&n| self.places[n].granule == granule && !self.places[n].is_empty())
    }

    /// The place of a granule, which it gets if it has none and there is room.
    fn place(&mut self, granule: GranuleId, now: Now<'_>) -> Option<usize> {
        let empty = |table: &Table| Table::bucket(granule).find(|&n| table.places[n].is_empty());
        let found = self.find(granule).or_else(|| empty(self));
        let n = found.or_else(|| {
            self.clear_out(granule, now);
            empty(self)
        })?;
        let place = &mut self.places[n];
        place.end_stay(now.ns);
        if place.granule != granule || place.is_empty() {
            *place = Place { granule, ..EMPTY };
        }
        Some(n)
    }

    /// Takes out of the bucket of a granule what is over or gone.
    fn clear_out(&mut self, granule: GranuleId, now: Now<'_>) {
        for n in Table::bucket(granule) {
            let place = &mut self.places[n];
            place.end_stay(now.ns);
            if (now.is_gone)(place.granule) {
                place.forget();
            }
            self.sort(n);
        }
    }

    fn wish(&mut self, granule: GranuleId, bits: &Bits, wish: Wish, now: Now<'_>) -> bool {
        let Some(n) = self.place(granule, now) else { return false };
        self.places[n].wish(bits, wish, now.ns);
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
    /// Threads that have the kernel forget whether pages were used.
    cooling: AtomicU32,
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
            cooling: AtomicU32::new(0),
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

    /// `None`: there is no memory for a table.
    fn with<R>(&self, f: impl FnOnce(&mut Table) -> R) -> Option<R> {
        self.table.with(|table| {
            if table.is_none() {
                *table = Table::new();
            }
            let table = table.as_mut()?;
            let result = f(table);
            self.leaving.store(table.leaving.count(), Ordering::Relaxed);
            self.coming.store(table.coming.count(), Ordering::Relaxed);
            Some(result)
        })
    }

    /// Notes a wish about pages of one granule. False: there is no room.
    fn wish(&self, part: PageRange, wish: Wish, now: Now<'_>) -> bool {
        let bits = bits_of(part);
        let noted = self.with(|table| {
            let noted = table.wish(part.start.granule(), &bits, wish, now);
            if matches!(wish, Wish::Stay | Wish::StayFor(_)) && noted {
                self.staying.store(1, Ordering::Relaxed);
            }
            noted
        });
        let noted = noted.unwrap_or(false);
        if !noted {
            self.note_dropped(part.len());
        }
        noted
    }

    /// Pages of a wish, or of an estimate, were dropped.
    pub(crate) fn note_dropped(&self, pages: u64) {
        self.dropped.fetch_add(pages, Ordering::Relaxed);
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
        .flatten()
    }

    /// Takes pages of a granule that are to come, [`COMING_AT_ONCE`] at most. The rest of its pages is next.
    pub(crate) fn take_coming(&self) -> Option<(GranuleId, Bits)> {
        self.with(|table| {
            let n = table.coming.next()?;
            let bits = take_lowest(&mut table.places[n].come, COMING_AT_ONCE);
            table.sort(n);
            if table.places[n].come != NO_PAGES {
                table.coming.hand = n;
            }
            Some((table.places[n].granule, bits))
        })
        .flatten()
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
            table.wish(granule, &rest, Wish::Leave, Now { ns: 0, is_gone: &|_| false });
        });
    }

    /// The pages of a granule that are to stay now.
    pub(crate) fn staying(&self, granule: GranuleId, now_ns: u64) -> Bits {
        self.with(|table| {
            let Some(n) = table.find(granule) else { return NO_PAGES };
            let place = &mut table.places[n];
            place.end_stay(now_ns);
            core::array::from_fn(|i| place.stay[i] | place.stay_for[i])
        })
        .unwrap_or(NO_PAGES)
    }

    /// Begins a scan of pages of one granule. Returns those that it looks at ([`Place::begin_scan`]).
    pub(crate) fn begin_scan(&self, part: PageRange, now: Now<'_>) -> Begun {
        self.with(|table| {
            let Some(n) = table.place(part.start.granule(), now) else { return NOT_BEGUN };
            let begun = table.places[n].begin_scan(&bits_of(part));
            table.scanned += count(&begun.pages);
            table.sort(n);
            self.scanning.store(table.scanned, Ordering::Relaxed);
            begun
        })
        .unwrap_or(NOT_BEGUN)
    }

    /// Pages that a scan looks at leave for it.
    pub(crate) fn take_away(&self, granule: GranuleId, bits: &Bits) {
        self.with(|table| {
            if let Some(n) = table.find(granule) {
                table.places[n].take_away(bits);
                table.sort(n);
            }
        });
    }

    /// The calling thread is about to have the kernel forget whether pages were used. Until [`Wishes::end_cold`].
    pub(crate) fn begin_cold(&self) {
        // SeqCst, as where it is read: a scan that does not see it has asked the kernel before.
        self.cooling.fetch_add(1, Ordering::SeqCst);
    }

    /// It has, of pages of this granule: scans that are under way do not know any more.
    pub(crate) fn end_cold(&self, granule: GranuleId) {
        if self.any_scan() {
            self.with(|table| {
                if let Some(n) = table.find(granule) {
                    let place = &mut table.places[n];
                    place.unsure.iter_mut().zip(place.scanned).for_each(|(unsure, scanned)| *unsure |= scanned);
                }
            });
        }
        self.cooling.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether a thread has the kernel forget just now. To be asked between the kernel's answer and the end of the scan.
    pub(crate) fn is_cooling(&self) -> bool {
        self.cooling.load(Ordering::SeqCst) > 0
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
        let nothing = Ended { left: NO_PAGES, again: NO_PAGES, unsure: NO_PAGES };
        self.with(|table| {
            let Some(n) = table.find(granule) else { return nothing };
            table.scanned = table.scanned.saturating_sub(count(bits));
            let ended = table.places[n].end_scan(bits);
            table.sort(n);
            self.scanning.store(table.scanned, Ordering::Relaxed);
            ended
        })
        .unwrap_or(nothing)
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

/// Takes the lowest pages out of `bits`, `most` of them.
fn take_lowest(bits: &mut Bits, most: u32) -> Bits {
    let mut left = most;
    core::array::from_fn(|n| {
        let mut taken = 0;
        while left > 0 && bits[n] != 0 {
            let lowest = bits[n] & bits[n].wrapping_neg();
            bits[n] &= !lowest;
            taken |= lowest;
            left -= 1;
        }
        taken
    })
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
        let now = Now { ns: self.clock.now_ns(), is_gone: &|granule| self.is_gone(granule) };
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

    /// Whether no page of a granule is managed any more.
    pub(crate) fn is_gone(&self, granule: GranuleId) -> bool {
        self.table.granule(granule).is_none()
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
#[path = "wishes_tests.rs"]
mod tests;
