//! Pages that come along with a fetch.
//!
//! The prefetcher says how many neighbours it would like (`crate::prefetch`). One read brings them too, as far as their slots lie
//! side by side: evictors lay out a batch in the order of its pages.
//!
//! ```text
//!  fault ─▶ claim_run: Out words ─▶ Busy, a spare frame each ─▶ one read ─▶ map_along ─▶ Clean (or Dirty, where writes are expected)
//!                                                                └ error, wrong sum, not mapped ─▶ restored, frame given back
//! ```
//!
//! No step here waits: a page that is not free to take, or for which there is no spare frame, ends the run. Pages that came
//! along are old from the start, so pages that no thread wants leave first, and without a write.

use crate::Engine;
use crate::fault::epoch::Epoch;
use crate::fault::guess::guess_write;
use crate::stats::Count;
use core::cell::Cell;
use farshore_attach::Kind;
use farshore_core::limits::GRANULE_PAGES;
use farshore_core::order::Order;
use farshore_core::page::{Access, GranuleId, Page};
use farshore_core::seams::{Fetch, Prefetcher, World};
use farshore_core::seams::{Kernel, PageBuf, Policy, Protect};
use farshore_core::sync::plain::AtomicU64;
use farshore_core::table::Granule;
use farshore_core::word::{BeginFault, Release, Slot, State, Word};

/// Pages that come along with one, side by side with it in memory and in swap space.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Along {
    pub(super) before: usize,
    pub(super) after: usize,
}

impl Along {
    /// Pages that are read: the page itself, and those that come with it.
    pub(super) fn pages(self) -> usize {
        self.before + 1 + self.after
    }

    /// The first slot of the run.
    pub(super) fn first(self, slot: Slot) -> Slot {
        back_from(slot, self.before as u64).unwrap_or(slot)
    }
}

fn back_from(slot: Slot, n: u64) -> Option<Slot> {
    Slot::new(slot.number().checked_sub(n)?)
}

/// How pages of a run are mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alike {
    /// Write-protected: the pages keep their slots.
    Clean,
    /// Writable, since the pages will most likely be written.
    Guessed,
    /// Writable: the pages' slots are to be freed.
    Dirty,
}

impl<W: World> Engine<W> {
    /// Takes the pages beside `page`, which is about to be read from `slot`, that the prefetcher wants; at most `most`. Pages
    /// that are to be brought meanwhile are passed to the threads that read ahead.
    pub(super) fn claim_run(&self, page: Page, core: usize, slot: Slot, most: usize) -> Along {
        // The program says that neighbours are of no use.
        if most == 0 || self.order_of(page) == Order::Random {
            return Along::default();
        }
        let fetching = Fetching { engine: self, page, core, slot, most, along: Cell::default() };
        if let Some(ahead) = self.policy.prefetcher().fetch(&fetching)
            && self.requests.ask(&self.futex, core, ahead)
        {
            self.wake_watcher();
        }
        fetching.along.get()
    }

    fn claim_along(&self, page: Page, core: usize, slot: Slot, wished: i32) -> Along {
        let up = wished >= 0;
        let beside = |n: u64| {
            if up { Some((page.plus(n), slot.plus(n))) } else { Some((Page(page.0 - n), back_from(slot, n)?)) }
        };
        let index = page.index_in_granule() as u64;
        let room = if up { GRANULE_PAGES as u64 - 1 - index } else { index };
        let is_there =
            |&n: &u64| beside(n).is_some_and(|(page, slot)| self.page(page).is_some_and(|p| is_out_at(p.word.load(), slot)));
        let wanted = (1..=room.min(wished.unsigned_abs().into())).take_while(is_there).count() as u64;
        let taken = self.claim_each(core, wanted, beside) as usize;
        if up { Along { before: 0, after: taken } } else { Along { before: taken, after: 0 } }
    }

    /// Takes pages 1 to `wanted` with a spare frame each, up to the first that cannot be taken. Returns how many.
    pub(super) fn claim_each(&self, core: usize, wanted: u64, which: impl Fn(u64) -> Option<(Page, Slot)>) -> u64 {
        let spare = if wanted == 0 { 0 } else { self.frames().take_spare(core, wanted, self.budget.spare_mark()) };
        if spare < wanted {
            self.stats.add(core, Count::Missed, wanted - spare);
        }
        let mut taken = 0;
        while taken < spare && which(taken + 1).is_some_and(|(page, slot)| self.take_beside(page, slot)) {
            taken += 1;
        }
        self.give_frames(core, spare - taken);
        taken
    }

    pub(crate) fn take_beside(&self, page: Page, slot: Slot) -> bool {
        let Some(at) = self.page(page).filter(|at| is_out_at(at.word.load(), slot)) else { return false };
        self.kernel.interleave();
        at.granule.touch();
        match at.word.begin_fault(Access::Read, false) {
            BeginFault::Owned { was } if is_out_at(was, slot) => true,
            BeginFault::Owned { was } => {
                self.restore(page, at.word, was);
                false
            }
            _ => false,
        }
    }

    /// Maps the pages that came along with `page`, whose own slot is `slot`, from the buffer of the read; pages that cannot be
    /// mapped are put back.
    pub(super) fn map_along(&self, page: Page, core: usize, granule: &Granule, slot: Slot, along: Along, buffer: &[PageBuf]) {
        let (before, after) = (&buffer[..along.before], &buffer[along.before + 1..along.pages()]);
        self.map_run(Page(page.0 - along.before as u64), core, granule, along.first(slot), before);
        self.map_run(page.plus(1), core, granule, slot.plus(1), after);
    }

    /// Maps what can be mapped of pages that we own, as many with one call as are mapped alike.
    pub(super) fn map_run(&self, first: Page, core: usize, granule: &Granule, slot: Slot, bytes: &[PageBuf]) {
        let (mut done, mut mapped) = (0, 0);
        // A page whose sum is wrong is left to its own fault, which reports it.
        let is_right = |n: usize| self.is_right(slot.plus(n as u64), &bytes[n]);
        while done < bytes.len() {
            let guess = |n: usize| guess_write(granule, first.plus(n as u64), slot.plus(n as u64));
            let dirty = guess(done);
            let alike = |&n: &usize| guess(n) == dirty && is_right(n);
            let count = (done..bytes.len()).take_while(alike).count();
            let (page, from) = (first.plus(done as u64), slot.plus(done as u64));
            let how = if dirty { Alike::Guessed } else { Alike::Clean };
            let mut now = if count == 0 { 0 } else { self.map_alike(page, granule, from, &bytes[done..done + count], how) };
            if now == 0 && count > 1 {
                // The kernel maps nothing of a run that a change of protection cuts in two.
                now = self.map_alike(page, granule, from, &bytes[done..=done], how);
            }
            mapped += now as u64;
            if now > 0 {
                self.tell(Kind::Fetched, 1, page, now as u64);
            }
            done += now;
            if now == 0 {
                self.drop_run(page, core, from, 1);
                done += 1;
            }
        }
        self.stats.add(core, Count::PagesIn, mapped);
        self.stats.add(core, Count::Prefetched, mapped);
        self.note_back(granule, core, mapped);
    }

    /// One call of the kernel: returns how many of the pages are mapped, and released, now.
    pub(crate) fn map_alike(&self, first: Page, granule: &Granule, slot: Slot, bytes: &[PageBuf], how: Alike) -> usize {
        let dirty = how != Alike::Clean;
        let protect = if dirty { Protect::Writable } else { Protect::WriteProtected };
        let epoch = Epoch::of(granule);
        let mapped = self.kernel.map_run(first, bytes, protect).unwrap_or(0);
        let protected = dirty && epoch.has_moved(granule);
        if self.kernel.is_outlived() {
            (0..mapped).filter_map(|n| self.page(first.plus(n))).for_each(|at| at.word.note_mapped());
            self.kernel.forget_mapped();
        }
        for n in 0..mapped {
            let (page, slot) = (first.plus(n), slot.plus(n));
            let Some(at) = self.page(page) else { unreachable!("{page:?} vanished while it was owned") };
            if dirty {
                self.release(page, at.word, Release::Dirty { chances: 0, guessed: how == Alike::Guessed, protected });
                // As of the page that was asked for: behind the release.
                self.slots.free(slot);
            } else {
                self.release(page, at.word, Release::Clean { slot, chances: 0 });
            }
        }
        mapped as usize
    }

    /// Puts back the pages that were to come along with `page`, whose own slot is `slot`.
    pub(super) fn drop_along(&self, page: Page, core: usize, slot: Slot, along: Along) {
        self.drop_run(Page(page.0 - along.before as u64), core, along.first(slot), along.before);
        self.drop_run(page.plus(1), core, slot.plus(1), along.after);
    }

    pub(crate) fn drop_run(&self, first: Page, core: usize, slot: Slot, count: usize) {
        for n in 0..count as u64 {
            if let Some(at) = self.page(first.plus(n)) {
                self.release(first.plus(n), at.word, Release::Out { slot: slot.plus(n) });
            }
        }
        self.give_frames(core, count as u64);
    }
}

/// A fetch as its prefetcher sees it.
struct Fetching<'e, W: World> {
    engine: &'e Engine<W>,
    page: Page,
    core: usize,
    slot: Slot,
    most: usize,
    along: Cell<Along>,
}

impl<W: World> Fetch for Fetching<'_, W> {
    fn page(&self) -> Page {
        self.page
    }

    fn core(&self) -> usize {
        self.core
    }

    fn notes(&self, granule: GranuleId) -> Option<&[AtomicU64; 2]> {
        self.engine.table.granule(granule).map(|g| &g.granule.notes)
    }

    fn is_sequential(&self) -> bool {
        self.engine.order_of(self.page) == Order::Sequential
    }

    fn is_out(&self, page: Page) -> bool {
        self.engine.page(page).is_some_and(|at| at.word.load().state() == State::Out)
    }

    fn take(&self, neighbours: i32) -> u32 {
        if self.along.get().pages() > 1 {
            return 0;
        }
        let most = self.most as i32;
        self.along.set(self.engine.claim_along(self.page, self.core, self.slot, neighbours.clamp(-most, most)));
        (self.along.get().pages() - 1) as u32
    }

    fn in_stream(&self) {
        if let Some(g) = self.engine.table.granule(self.page.granule()) {
            self.engine.evictors.loops.note_stream(g.granule, &self.engine.policy, self.engine.frames());
        }
    }

    fn count_used(&self, pages: u32) {
        self.engine.stats.add(self.core, Count::PrefetchUsed, pages.into());
    }
}

fn is_out_at(word: Word, slot: Slot) -> bool {
    word.state() == State::Out && word.slot() == Some(slot)
}
