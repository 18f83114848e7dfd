//! Pages that come along with a fetch.
//!
//! A fault that goes on where the last fetch in its granule ended belongs to a stream: one read brings the pages behind it
//! too, as far as their slots lie side by side (evictors lay out a batch in the order of its pages, so what was written
//! in order is). The window doubles with each fetch of the stream (ExtMem §3.4), up to the room in the caller's buffer; any other
//! fault fetches one page. The stream is kept in the granule, so streams of several threads do not disturb each other.
//!
//! ```text
//!  fault ─▶ claim_run: Out words ─▶ Busy, a spare frame each ─▶ one read ─▶ map_run ─▶ Clean (or Dirty, where writes are expected)
//!                                                                └ error, wrong sum, not mapped ─▶ restored, frame given back
//! ```
//!
//! Nothing here waits: a page that is not free to take, or for which there is no spare frame, ends the run. Pages that came
//! along are old from the start, so those that nobody wants leave first, and without a write.

use crate::Engine;
use crate::fault::resolve::protection_epoch;
use crate::traits::{Backend, Clock, Kernel, PageBuf, Policy, Protect};
use core::sync::atomic::Ordering;
use farshore_core::limits::GRANULE_PAGES;
use farshore_core::page::{Access, GranuleId, Page};
use farshore_core::sync::Futex;
use farshore_core::table::{Granule, PageRef};
use farshore_core::word::{BeginFault, Release, Slot, State, Word};

/// Pages between the end of the last fetch and a fault that still goes on with it: pages that were resident.
const GAP: u32 = 16;

/// What a granule remembers of its last fetch: the page behind it, the window, and how many pages came along.
#[derive(Clone, Copy)]
struct Stream {
    next: u32,
    window: u32,
    along: u32,
}

impl Stream {
    fn load(granule: &Granule) -> Stream {
        // Relaxed: a hint that may be any other thread's.
        let bits = granule.stream.load(Ordering::Relaxed);
        Stream { next: bits >> 16, window: bits >> 8 & 0xff, along: bits & 0xff }
    }

    fn store(self, granule: &Granule) {
        granule.stream.store(self.next << 16 | self.window << 8 | self.along, Ordering::Relaxed);
    }

    fn goes_on_at(self, index: u32) -> bool {
        self.window > 0 && (self.next..=self.next + GAP).contains(&index)
    }
}

impl<K: Kernel, B: Backend, P: Policy, C: Clock, F: Futex> Engine<K, B, P, C, F> {
    /// Takes the pages behind `page`, which is about to be read from `slot`, that belong to its stream. At most `most`; how many.
    pub(super) fn claim_run(&self, page: Page, at: PageRef<'_>, slot: Slot, most: usize) -> usize {
        if most == 0 {
            return 0;
        }
        let index = page.index_in_granule() as u32;
        let window = self.window(page, at.granule, index).min(1 + most as u32).min(GRANULE_PAGES as u32 - index);
        let is_next = |n: u32| {
            let next = self.page(page.plus(n.into()));
            next.is_some_and(|p| is_out_at(p.word.load(), slot.plus(n.into())))
        };
        let wanted = (1..window).take_while(|&n| is_next(n)).count() as u64;
        let spare = if wanted == 0 { 0 } else { self.frames.take_spare(wanted, self.spare_mark()) };
        let mut along = 0;
        while along < spare && self.take_next(page.plus(along + 1), slot.plus(along + 1)) {
            along += 1;
        }
        self.give_frames(spare - along);
        Stream { next: index + 1 + along as u32, window, along: along as u32 }.store(at.granule);
        along as usize
    }

    /// Pages that a fetch of `page` may bring, itself included.
    fn window(&self, page: Page, granule: &Granule, index: u32) -> u32 {
        let grown = |stream: Stream| {
            self.stats.prefetch_used.fetch_add(stream.along.into(), Ordering::Relaxed);
            (2 * stream.window).min(u8::MAX.into())
        };
        let stream = Stream::load(granule);
        if stream.goes_on_at(index) {
            return grown(stream);
        }
        // From the granule before into this one.
        let before = (index <= GAP).then(|| GranuleId(page.granule().0.wrapping_sub(1)));
        match before.and_then(|id| self.table.granule(id)).map(|g| Stream::load(g.granule)) {
            Some(stream) if stream.goes_on_at(GRANULE_PAGES as u32 + index) => grown(stream),
            _ => 1,
        }
    }

    fn take_next(&self, page: Page, slot: Slot) -> bool {
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

    /// Maps the pages behind `page` with `bytes`, read from the slots behind `slot`; those that cannot be are put back.
    pub(super) fn map_run(&self, page: Page, granule: &Granule, slot: Slot, bytes: &[PageBuf]) {
        let mut mapped = 0;
        for (n, bytes) in (1..).zip(bytes) {
            let (next, from) = (page.plus(n), slot.plus(n));
            // A page whose sum is wrong is for its own fault to report.
            if Self::checksum(from, bytes) == self.slots.sum(from) && self.map_next(next, granule, from, bytes) {
                mapped += 1;
            } else {
                self.drop_run(next, from, 1);
            }
        }
        self.stats.pages_in.fetch_add(mapped, Ordering::Relaxed);
        self.stats.prefetched.fetch_add(mapped, Ordering::Relaxed);
    }

    fn map_next(&self, page: Page, granule: &Granule, slot: Slot, bytes: &PageBuf) -> bool {
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

    /// Puts back `count` claimed pages from `first` on, whose slots begin at `slot`.
    pub(super) fn drop_run(&self, first: Page, slot: Slot, count: usize) {
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
