//! Pages that come along with a fetch.
//!
//! A fault that goes on where the last fetch in its granule ended, or before where it began, belongs to a stream: one read
//! brings the pages behind (or before) it too, as far as their slots lie side by side (evictors lay out a batch in the order of
//! its pages). The window doubles with each fetch of the stream (ExtMem §3.4), up to the room in the caller's buffer; any other
//! fault fetches one page. Streams are kept in the granule, two in each, so those of several threads do not disturb each other, also where
//! they go through one granule.
//!
//! ```text
//!  fault ─▶ claim_run: Out words ─▶ Busy, a spare frame each ─▶ one read ─▶ map_along ─▶ Clean (or Dirty, where writes are expected)
//!                                                                └ error, wrong sum, not mapped ─▶ restored, frame given back
//! ```
//!
//! Nothing here waits: a page that is not free to take, or for which there is no spare frame, ends the run. Pages that came
//! along are old from the start, so those that nobody wants leave first, and without a write.

use crate::Engine;
use crate::fault::resolve::protection_epoch;
use crate::traits::{Backend, Clock, Kernel, PageBuf, Policy, Protect};
use core::sync::atomic::{AtomicU32, Ordering};
use farshore_core::limits::GRANULE_PAGES;
use farshore_core::page::{Access, GranuleId, Page};
use farshore_core::sync::Futex;
use farshore_core::table::{Granule, PageRef};
use farshore_core::word::{BeginFault, Release, Slot, State, Word};

/// Pages between the end of the last fetch and a fault that still goes on with it: pages that were resident.
const GAP: i32 = 16;
/// The largest window; callers' buffers are smaller.
const WINDOW_MAX: u32 = 63;

/// Pages that come along with one, side by side with it in memory and in swap space.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Along {
    pub(super) before: usize,
    pub(super) after: usize,
}

impl Along {
    /// Pages that are read: it, and those with it.
    pub(super) fn pages(self) -> usize {
        self.before + 1 + self.after
    }

    /// The slot of the first of them.
    pub(super) fn first(self, slot: Slot) -> Slot {
        back_from(slot, self.before as u64).unwrap_or(slot)
    }
}

fn back_from(slot: Slot, n: u64) -> Option<Slot> {
    Slot::new(slot.number().checked_sub(n)?)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

/// What a granule remembers of a stream's last fetch: its pages from `first` to before `next`, the window, and how many came along.
#[derive(Clone, Copy)]
struct Stream {
    first: u32,
    next: u32,
    window: u32,
    along: u32,
}

/// Which of a granule's streams.
type Which = usize;

impl Stream {
    fn load(place: &AtomicU32) -> Stream {
        // Relaxed: a hint that may be any other thread's.
        let bits = place.load(Ordering::Relaxed);
        Stream { first: bits >> 22, next: bits >> 12 & 0x3ff, window: bits >> 6 & 0x3f, along: bits & 0x3f }
    }

    fn store(self, place: &AtomicU32) {
        let bits = self.first << 22 | self.next << 12 | self.window << 6 | self.along;
        place.store(bits, Ordering::Relaxed);
    }

    /// The stream of the granule that goes on with page `index` (beyond 0 to 511: of a neighbouring granule), and which way.
    fn that_goes_on_at(granule: &Granule, index: i32) -> Option<(Which, Stream, Way)> {
        let streams = granule.streams.iter().map(Stream::load).enumerate();
        streams.filter_map(|(which, stream)| Some((which, stream, stream.goes_on_at(index)?))).next()
    }

    /// Which stream of the granule makes room for a new one: the one with the smaller window. The other one's is halved, so that what has
    /// ended makes room in the end; one that goes on doubles it again.
    fn make_room(granule: &Granule) -> Which {
        let [a, b] = granule.streams.each_ref().map(Stream::load);
        let (which, other) = if a.window <= b.window { (0, b) } else { (1, a) };
        Stream { window: other.window / 2, ..other }.store(&granule.streams[1 - which]);
        which
    }

    /// Which way the stream goes on with page `index` (beyond 0 to 511: of a neighbouring granule), if it does.
    fn goes_on_at(self, index: i32) -> Option<Way> {
        let (first, next) = (self.first as i32, self.next as i32);
        match self.window {
            0 => None,
            _ if (next..=next + GAP).contains(&index) => Some(Way::Up),
            _ if (first - 1 - GAP..first).contains(&index) => Some(Way::Down),
            _ => None,
        }
    }
}

impl<K: Kernel, B: Backend, P: Policy, C: Clock, F: Futex> Engine<K, B, P, C, F> {
    /// Takes the pages beside `page`, which is about to be read from `slot`, that belong to its stream. At most `most`.
    pub(super) fn claim_run(&self, page: Page, at: PageRef<'_>, slot: Slot, most: usize) -> Along {
        if most == 0 {
            return Along::default();
        }
        let index = page.index_in_granule() as u32;
        let (which, window, way) = self.window(page, at.granule, index);
        let beside = |n: u64| match way {
            Way::Up => Some((page.plus(n), slot.plus(n))),
            Way::Down => Some((Page(page.0 - n), back_from(slot, n)?)),
        };
        let room = if way == Way::Up { GRANULE_PAGES as u32 - index } else { index + 1 };
        let window = window.min(1 + most as u32);
        let is_there = |&n: &u32| {
            let beside = beside(n.into());
            beside.is_some_and(|(page, slot)| self.page(page).is_some_and(|p| is_out_at(p.word.load(), slot)))
        };
        let wanted = (1..window.min(room)).take_while(is_there).count() as u64;
        let spare = if wanted == 0 { 0 } else { self.frames.take_spare(wanted, self.spare_mark()) };
        let mut taken = 0;
        while taken < spare && beside(taken + 1).is_some_and(|(page, slot)| self.take_beside(page, slot)) {
            taken += 1;
        }
        self.give_frames(spare - taken);
        let along = match way {
            Way::Up => Along { before: 0, after: taken as usize },
            Way::Down => Along { before: taken as usize, after: 0 },
        };
        let (first, next) = (index - along.before as u32, index + 1 + along.after as u32);
        Stream { first, next, window, along: taken as u32 }.store(&at.granule.streams[which]);
        along
    }

    /// Where the fetch is remembered, how many pages it may bring, `page` included, and which way.
    fn window(&self, page: Page, granule: &Granule, index: u32) -> (Which, u32, Way) {
        let index = index as i32;
        let grown = |stream: Stream| {
            self.stats.prefetch_used.fetch_add(stream.along.into(), Ordering::Relaxed);
            (2 * stream.window).min(WINDOW_MAX)
        };
        if let Some((which, stream, way)) = Stream::that_goes_on_at(granule, index) {
            return (which, grown(stream), way);
        }
        let which = Stream::make_room(granule);
        // From a neighbouring granule into this one.
        let (id, granule_pages) = (page.granule().0, GRANULE_PAGES as i32);
        let (beside, index, wanted) = match index {
            0..=GAP => (id.wrapping_sub(1), index + granule_pages, Way::Up),
            _ if index >= granule_pages - 1 - GAP => (id + 1, index - granule_pages, Way::Down),
            _ => return (which, 1, Way::Up),
        };
        let beside = self.table.granule(GranuleId(beside)).and_then(|g| Stream::that_goes_on_at(g.granule, index));
        match beside {
            Some((_, stream, way)) if way == wanted => (which, grown(stream), way),
            _ => (which, 1, Way::Up),
        }
    }

    fn take_beside(&self, page: Page, slot: Slot) -> bool {
        let Some(at) = self.page(page).filter(|at| is_out_at(at.word.load(), slot)) else { return false };
        self.kernel.interleave();
        match at.word.begin_fault(Access::Read, false) {
            BeginFault::Owned { was } if is_out_at(was, slot) => true,
            BeginFault::Owned { was } => {
                self.restore(page, at.word, was);
                false
            }
            _ => false,
        }
    }

    /// Maps the pages that came along with `page`, whose own slot is `slot`, from the buffer of the read; those that cannot be
    /// are put back.
    pub(super) fn map_along(&self, page: Page, granule: &Granule, slot: Slot, along: Along, buffer: &[PageBuf]) {
        let (before, after) = (&buffer[..along.before], &buffer[along.before + 1..along.pages()]);
        self.map_run(Page(page.0 - along.before as u64), granule, along.first(slot), before);
        self.map_run(page.plus(1), granule, slot.plus(1), after);
    }

    fn map_run(&self, first: Page, granule: &Granule, slot: Slot, bytes: &[PageBuf]) {
        let mut mapped = 0;
        for (n, bytes) in (0..).zip(bytes) {
            let (page, from) = (first.plus(n), slot.plus(n));
            // A page whose sum is wrong is for its own fault to report.
            if Self::checksum(from, bytes) == self.slots.sum(from) && self.map_one(page, granule, from, bytes) {
                mapped += 1;
            } else {
                self.drop_run(page, from, 1);
            }
        }
        self.stats.pages_in.fetch_add(mapped, Ordering::Relaxed);
        self.stats.prefetched.fetch_add(mapped, Ordering::Relaxed);
    }

    fn map_one(&self, page: Page, granule: &Granule, slot: Slot, bytes: &PageBuf) -> bool {
        let Some(at) = self.page(page) else { return false };
        let dirty = self.guess_write(granule, page);
        let protect = if dirty { Protect::Writable } else { Protect::WriteProtected };
        let epoch = protection_epoch(granule);
        if self.kernel.map(page, bytes, protect).is_err() {
            return false;
        }
        if dirty {
            let protected = self.protection_moved(granule, epoch);
            self.slots.free(slot);
            self.release(page, at.word, Release::Dirty { young: false, guessed: true, protected });
        } else {
            self.release(page, at.word, Release::Clean { slot, young: false });
        }
        true
    }

    /// Puts back the pages that were to come along with `page`, whose own slot is `slot`.
    pub(super) fn drop_along(&self, page: Page, slot: Slot, along: Along) {
        self.drop_run(Page(page.0 - along.before as u64), along.first(slot), along.before);
        self.drop_run(page.plus(1), slot.plus(1), along.after);
    }

    fn drop_run(&self, first: Page, slot: Slot, count: usize) {
        for n in 0..count as u64 {
            if let Some(at) = self.page(first.plus(n)) {
                self.release(first.plus(n), at.word, Release::Out { slot: slot.plus(n) });
            }
        }
        self.give_frames(count as u64);
    }
}

fn is_out_at(word: Word, slot: Slot) -> bool {
    word.state() == State::Out && word.slot() == Some(slot)
}
