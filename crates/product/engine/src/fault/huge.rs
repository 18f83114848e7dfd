//! First touches that bring a whole granule as one huge page.
//!
//! A program whose memory fits into its limit is to run as fast as without Farshore, and the kernel gives fresh memory as huge
//! pages where it is set to do so (`transparent_hugepage/enabled`). With small pages alone, random updates in a GiB ran at 0.7 of
//! that speed.
//!
//! # When
//!
//! No part of a huge page can leave by itself: the huge page is split first, which takes as long as it took to fill it. So a
//! granule comes as a huge page only where, as far as can be seen, no page will have to leave: if all managed memory, touched or
//! not, fits into the frames that there are. And only where the program could have had a huge page natively.
//!
//! # How
//!
//! The first touch owns its page. It takes all other pages of the granule, with frames to spare, or lets go of them and goes on
//! as an ordinary fault; it waits for none. The kernel maps the granule with one call ([`Kernel::map_huge`]), and all pages are
//! released as resident and dirty. From then on they are pages like any other: each has its word, and its frame.
//!
//! An evictor that takes the first victims of such a granule splits the huge page ([`Kernel::split_huge`]), before it protects or
//! copies anything. Otherwise the victims' RAM would be free only when the last of the 512 pages has left, and the program would
//! have more RAM than its limit. Canary `whole`.
//!
//! When the program gives up or moves a part of a huge page (`munmap`, `MADV_DONTNEED`, `mremap`), the kernel splits it in the
//! page table alone: natively the RAM of the part that is gone comes back when the kernel is short of memory. So a memory call
//! splits the huge page as well, before a part of it goes.

use crate::Engine;
use crate::stats::Count;
use farshore_core::limits::GRANULE_PAGES;
use farshore_core::page::{Access, Page, PageRange};
use farshore_core::seams::{HugePages, Kernel, World};
use farshore_core::table::PageRef;
use farshore_core::word::{BeginFault, Release, State, Word};

use super::epoch::Epoch;

impl<W: World> Engine<W> {
    /// Maps the granule of `page`, which the caller owns and which is untouched, as a huge page, and releases its other pages as
    /// resident. `None`: it was not mapped, and nothing has changed. Otherwise returns whether the pages may be write-protected
    /// all the same; the caller releases its own page.
    pub(super) fn map_granule(&self, page: Page, at: PageRef<'_>, core: usize) -> Option<bool> {
        let unasked = match self.kernel.huge_pages() {
            HugePages::Never => return None,
            HugePages::Asked => false,
            HugePages::Always => true,
        };
        if !at.granule.huge.is_wanted(unasked) || !self.would_fit(0) {
            return None;
        }
        let others = GRANULE_PAGES as u64 - 1;
        let frames = self.frames().take_spare(core, others, self.frames().limit() / 8);
        if frames < others || !self.claim_others(page) {
            self.give_frames(core, frames);
            return None;
        }
        let epoch = Epoch::of(at.granule);
        let mapped = self.kernel.map_huge(page.granule());
        let protected = epoch.has_moved(at.granule);
        if mapped.is_err() {
            // Asking once is enough: a huge page that cannot be had now (none is free, or the mapping ends here) is not asked for
            // at each touch.
            at.granule.huge.advise(false);
            self.release_others(page, GRANULE_PAGES, Release::Untouched);
            self.give_frames(core, frames);
            return None;
        }
        at.granule.huge.came();
        self.stats.add(core, Count::HugeMapped, 1);
        self.stats.add(core, Count::Touched, GRANULE_PAGES as u64);
        self.release_others(page, GRANULE_PAGES, Release::Dirty { chances: 0, guessed: false, protected });
        Some(protected)
    }

    /// Memory in `range` may be parts of huge pages: it was there before it was managed, or was moved here. To be called before
    /// any of it is released as resident.
    pub fn note_huge(&self, range: PageRange) {
        for part in range.by_granule() {
            if let Some(g) = self.table.granule(part.start.granule()) {
                g.granule.huge.came();
            }
        }
    }

    /// Takes all pages of `page`'s granule except `page`, if all are untouched and no thread owns any of them.
    fn claim_others(&self, page: Page) -> bool {
        for (count, other) in page.granule().range().iter().enumerate().filter(|&(_, other)| other != page) {
            let taken = self.page(other).filter(|at| at.word.load() == Word::UNTOUCHED).is_some_and(|at| {
                match at.word.begin_fault(Access::Write, false) {
                    BeginFault::Owned { was } if was.state() == State::Untouched && !self.moving.contains(other) => true,
                    BeginFault::Owned { was } => {
                        self.restore(other, at.word, was);
                        false
                    }
                    _ => false,
                }
            });
            if !taken {
                self.release_others(page, count, Release::Untouched);
                return false;
            }
        }
        true
    }

    /// Releases the first `count` pages of `page`'s granule, except `page`. [`Engine::claim_others`] took all of them.
    fn release_others(&self, page: Page, count: usize, to: Release) {
        for other in page.granule().range().iter().take(count).filter(|&other| other != page) {
            self.release_taken(other, to);
        }
    }
}
