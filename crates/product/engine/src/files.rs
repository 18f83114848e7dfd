//! Pages of files that the program has mapped: the file is their swap space.
//!
//! Such a page is a page of anonymous memory whose bytes are in the file as long as it is clean. Its slot stands for the page of the
//! file ([`FilePage`]), so for faults, evictors and prefetchers it is a clean page as any other, which leaves without a write:
//!
//! ```text
//!  manage_file ─▶ Out (in the file) ─fault: read─▶ Resident, clean ─evicted─▶ Leaving, written ─▶ Out (in the file)
//!                     ▲                               │write
//!                     └───── discard_to_file ──── Resident, dirty ─▶ leaves to swap space, as any other page
//!  hand_back: what is clean becomes the kernel's mapping of the file again; what is dirty stays
//! ```
//!
//! Nothing of the file is checked by a sum: what the file gives is the page. The caller sees to it that the file does not change
//! meanwhile.
//!
//! All functions run under the caller's address-space lock, as those of [`crate::space`].
//!
//! [`FilePage`]: farshore_core::word::FilePage

use crate::Engine;
use farshore_core::page::{Page, PageRange};
use farshore_core::seams::World;
use farshore_core::word::{Release, Slot, State, Word};

/// What `page` becomes if `start` is the first of the pages that have the bytes of the slots from `first` on.
fn in_file(start: Page, first: Slot, page: Page) -> Release {
    Release::Out { slot: first.plus(page.0 - start.0) }
}

impl<W: World> Engine<W> {
    /// The pages of `range`, mapped and registered just now and never touched, are managed from now on, and have the bytes of a file's
    /// pages, for which the slots from `first` on stand.
    pub fn manage_file(&self, range: PageRange, first: Slot) {
        debug_assert!(first.is_of_file());
        // Until a page has its slot its word says that it was never touched: no fault may fill it with zeros.
        self.moving.begin(range);
        self.manage(range);
        for part in range.by_granule() {
            let Some(g) = self.table.granule(part.start.granule()) else { unreachable!("{part:?} was managed just now") };
            g.granule.touch();
            for page in part.iter() {
                // A fault that looked too early owns the page for a moment.
                let before = self.claim_page(page);
                debug_assert!(
                    before.is_some_and(|was| was.state() == State::Untouched),
                    "{page:?} was touched before it was there"
                );
                self.release(page, &g.words[page.index_in_granule()], in_file(range.start, first, page));
            }
        }
        self.moving.end();
    }

    /// Throws the bytes of `range` away, which has the bytes of a file from then on, as [`Engine::manage_file`] has it.
    ///
    /// # Errors
    /// As [`Engine::discard`].
    pub fn discard_to_file<E>(
        &self,
        range: PageRange,
        first: Slot,
        call: impl FnMut(PageRange) -> Result<(), E>,
    ) -> Result<(), E> {
        self.discard_to(range, |page| in_file(range.start, first, page), call)
    }

    /// Gives pages of `range`, which have the bytes of a file, to the kernel: `give` maps the file over a run of them, or says that it
    /// could not. Pages that the program has written stay managed; with `all` there are none. False: `give` could not, and the
    /// pages of that run are as they were.
    pub fn hand_back(&self, range: PageRange, all: bool, mut give: impl FnMut(PageRange) -> bool) -> bool {
        self.claim(range);
        let mut runs: [Option<PageRange>; 2] = [None; 2];
        let mut done = true;
        let mut end = |run: Option<PageRange>, files: bool| {
            let Some(run) = run else { return };
            if files && give(run) {
                self.finish_unmap(run);
            } else {
                done &= !files;
                self.unclaim(run);
            }
        };
        for part in range.by_granule() {
            let Some(g) = self.table.granule(part.start.granule()) else { continue };
            for page in part.iter() {
                let word = &g.words[page.index_in_granule()];
                let is_ours = word.load().state() == State::Busy;
                let which = usize::from(is_ours && (all || self.is_in_file(word.claimed())));
                if !is_ours {
                    // Not managed: it ends either run.
                    for files in [0, 1] {
                        end(runs[files].take(), files == 1);
                    }
                    continue;
                }
                end(runs[1 - which].take(), which == 0);
                let run = runs[which].get_or_insert(PageRange { start: page, end: page });
                run.end = page.plus(1);
            }
        }
        for files in [0, 1] {
            end(runs[files].take(), files == 1);
        }
        done
    }

    /// Whether the bytes of a page that was taken in this state are those of a file.
    fn is_in_file(&self, was: Word) -> bool {
        match was.state() {
            State::Leaving => {
                was.written() && was.stage().and_then(|stage| self.evictors.stages.slot(stage)).is_some_and(Slot::is_of_file)
            }
            _ => was.slot().is_some_and(Slot::is_of_file),
        }
    }
}
