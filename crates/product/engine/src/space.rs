//! Memory calls: pages that become managed, stop being managed, lose their bytes or get another address.
//!
//! All functions run under the caller's address-space lock, which neither faults nor evictors take. A call has three
//! parts:
//!
//! 1. [`Engine::claim`] takes every page of the range (it waits for pages that other threads own);
//! 2. the caller makes the kernel do the call;
//! 3. [`Engine::finish_unmap`] or [`Engine::relocate`] says what became of the pages, or [`Engine::unclaim`] puts them
//!    back if the kernel refused.
//!
//! So nothing is given up before the kernel has agreed, and no thread sees a page in between. For a call that may fail after the
//! kernel has unmapped something already, [`Engine::finish_refused`] finds out what is left.

use crate::fault::epoch::Epoch;
use crate::stats::Count;
use crate::{Engine, MEMORY_CALLS};
use farshore_attach::Kind;
use farshore_core::canary::{Canary, is_planted};
use farshore_core::limits::GRANULE_PAGES;
use farshore_core::page::{Access, Page, PageRange};
use farshore_core::seams::{Kernel, KernelError, PageBuf, World};
use farshore_core::sync::Ordering;
use farshore_core::table::GranuleRef;
use farshore_core::word::{AtomicWord, Claim, Release, State, Word};

/// The word of a page of `range` that is no longer managed: for a granule that goes as a whole, the word of fresh memory.
fn nameless(range: PageRange, page: Page) -> Release {
    let granule = page.granule().range();
    if range.start <= granule.start && granule.end <= range.end { Release::Untouched } else { Release::Foreign }
}

impl<W: World> Engine<W> {
    /// The pages of `range`, mapped and registered just now, are managed from now on.
    pub fn manage(&self, range: PageRange) {
        for part in range.by_granule().filter(|part| part.len() < GRANULE_PAGES as u64) {
            // The granule's words are about to be written.
            if let Some(g) = self.table.granule_even_absent(part.start.granule()).filter(|g| !g.flags.is_present()) {
                self.wait_for_late_faults(&g);
            }
        }
        self.table.add(range);
        self.kernel.interleave();
        self.stats.manage(range.len() as i64);
        self.tell(Kind::Mapped, 0, range.start, range.len());
    }

    /// The pages of `range` have been managed since a moment ago, and had bytes before: they become resident, and dirty. Their
    /// frames are taken, whatever the limit.
    pub fn take_stock(&self, range: PageRange, core: usize) {
        for part in range.by_granule() {
            let Some(g) = self.table.granule(part.start.granule()) else { continue };
            self.claim_part(&g, part);
            // They have been registered for longer than they have words that say more than "foreign". An evictor that looked at these
            // may have write-protected them along with its victims, or may be about to.
            let protected = Epoch::has_ever_moved(g.granule);
            let mut new = 0;
            self.each_claimed(part, |page, word, was| {
                // Pages that were touched meanwhile have a frame already.
                if was.state() == State::Untouched {
                    new += 1;
                    self.release(page, word, Release::Dirty { chances: 0, guessed: false, protected });
                } else {
                    self.restore(page, word, was);
                }
            });
            if !is_planted(Canary::Stock) {
                self.frames().take_back(core, new);
            }
            self.stats.add(core, Count::Stocked, new);
            self.list_granule(g.granule, part.start, core);
        }
    }

    /// Takes every page of `range` before the kernel unmaps or moves it. Sleeps while other threads own one. Whole
    /// granules that no thread has touched are hidden instead, whatever their size.
    pub fn claim(&self, range: PageRange) {
        self.each_granule(range, |part| {
            let Some(g) = self.table.granule(part.start.granule()) else { return };
            if part.len() == GRANULE_PAGES as u64 && !g.granule.touched() {
                g.flags.hide();
                self.kernel.interleave();
                if !g.granule.touched() {
                    return;
                }
                g.flags.show();
            }
            self.claim_to_free(&g, part);
        });
    }

    fn claim_part(&self, g: &GranuleRef<'_>, part: PageRange) {
        g.granule.touch();
        for page in part.iter() {
            self.claim_page(page);
        }
    }

    /// Throws the bytes of `range` away: they read as zeros from now on (`MADV_DONTNEED`). `call` makes the kernel do it
    /// for a part; for untouched parts there is nothing to call it for.
    ///
    /// # Errors
    /// The first of `call`; that part and those after it are as they were.
    pub fn discard<E>(&self, range: PageRange, call: impl FnMut(PageRange) -> Result<(), E>) -> Result<(), E> {
        self.discard_to(range, |_| Release::Untouched, call)
    }

    /// The same for pages that have other bytes than zeros when theirs are gone: `to` says what each becomes.
    ///
    /// # Errors
    /// As [`Engine::discard`].
    pub(crate) fn discard_to<E>(
        &self,
        range: PageRange,
        to: impl Fn(Page) -> Release,
        mut call: impl FnMut(PageRange) -> Result<(), E>,
    ) -> Result<(), E> {
        for part in range.by_granule() {
            let Some(g) = self.table.granule(part.start.granule()) else { continue };
            if !g.granule.touched() {
                continue;
            }
            self.claim_to_free(&g, part);
            if let Err(why) = call(part) {
                self.unclaim(part);
                return Err(why);
            }
            let mut frames = 0;
            self.each_claimed(part, |page, word, was| {
                frames += self.forfeit(was);
                self.release(page, word, to(page));
            });
            self.give_frames(MEMORY_CALLS, frames);
        }
        self.wake_giver();
        Ok(())
    }

    fn each_granule(&self, range: PageRange, mut each: impl FnMut(PageRange)) {
        for part in range.by_granule() {
            each(part);
        }
    }

    /// Takes one page. None: it is not managed.
    pub(crate) fn claim_page(&self, page: Page) -> Option<Word> {
        let at = self.page(page)?;
        loop {
            self.kernel.interleave();
            match at.word.claim() {
                Claim::Owned { was } => return Some(was),
                Claim::Foreign => return None,
                Claim::Wait => {
                    if let Some(ticket) = self.waits.announce(page, at.word) {
                        self.waits.sleep(&self.futex, ticket);
                    }
                }
            }
        }
    }

    /// Pages of `part` that this thread has claimed, each with its word before.
    pub(crate) fn each_claimed(&self, range: PageRange, mut each: impl FnMut(Page, &AtomicWord, Word)) {
        self.each_granule(range, |part| {
            let Some(g) = self.table.granule(part.start.granule()) else { return };
            if !g.granule.touched() {
                return;
            }
            for page in part.iter() {
                let word = &g.words[page.index_in_granule()];
                // Under the address-space lock, after `claim`: every Busy page here is ours, all others are foreign.
                if word.load().state() == State::Busy {
                    each(page, word, word.claimed());
                }
            }
        });
    }

    /// Gives up what a claimed page had: frame, slot or stage. Returns the frames.
    fn forfeit(&self, was: Word) -> u64 {
        match was.state() {
            State::Resident => {
                if let Some(slot) = was.slot() {
                    self.slots.free(slot);
                }
                self.stats.add(MEMORY_CALLS, Count::GivenUp, 1);
                1
            }
            State::Out => {
                if let Some(slot) = was.slot() {
                    self.slots.free(slot);
                }
                self.stats.add(MEMORY_CALLS, Count::GivenUpOut, 1);
                0
            }
            State::Leaving => {
                self.stats.add(MEMORY_CALLS, Count::GivenUpOut, 1);
                if let Some(stage) = was.stage() {
                    // The stage's evictor frees the slot, when no write of it is in flight any more.
                    self.evictors.stages.vacate(stage, false);
                }
                0
            }
            State::Untouched | State::Foreign | State::Busy => 0,
        }
    }

    /// The kernel has unmapped the claimed `range`.
    pub fn finish_unmap(&self, range: PageRange) {
        let managed = self.count_managed(range);
        let mut frames = 0;
        self.each_claimed(range, |page, word, was| {
            frames += self.forfeit(was);
            self.release(page, word, nameless(range, page));
        });
        self.unmanage(range);
        self.stats.manage(-(managed as i64));
        self.give_frames(MEMORY_CALLS, frames);
        self.wake_giver();
        self.tell(Kind::Unmapped, 0, range.start, range.len());
    }

    /// The claimed and released pages of `range` are no longer managed. A fault that looked a granule up before (the program
    /// touches memory that it unmaps) may have taken a page since the page was released. So the granule is hidden first, and
    /// this waits for such faults, so that none of them reaches into the granule's next life.
    fn unmanage(&self, range: PageRange) {
        self.each_granule(range, |part| {
            let whole = part.len() == GRANULE_PAGES as u64 && !is_planted(Canary::Rebirth);
            let Some(g) = self.table.granule_even_absent(part.start.granule()).filter(|_| whole) else { return };
            if !g.flags.is_present() && !g.flags.is_hidden() {
                return;
            }
            g.flags.hide();
            self.kernel.interleave();
            if g.granule.touched() {
                self.wait_for_late_faults(&g);
            }
        });
        self.table.remove(range);
    }

    /// Waits for faults that looked a granule up while it was present and took a page of it since.
    fn wait_for_late_faults(&self, g: &GranuleRef<'_>) {
        let is_busy = |(_, word): &(Page, &AtomicWord)| word.load().state() == State::Busy;
        while let Some((page, word)) = g.id.range().iter().zip(g.words).find(is_busy) {
            self.wait_while_busy(page, word);
        }
    }

    fn wait_while_busy(&self, page: Page, word: &AtomicWord) {
        while word.load().state() == State::Busy {
            if let Some(ticket) = self.waits.announce(page, word) {
                self.waits.sleep(&self.futex, ticket);
            }
        }
    }

    /// Managed pages of `range`: a granule that no thread has touched is managed as a whole (or hidden just now).
    fn count_managed(&self, range: PageRange) -> u64 {
        let mut count = 0;
        self.each_granule(range, |part| {
            let Some(g) = self.table.granule_even_absent(part.start.granule()) else { return };
            if !g.flags.is_present() && !g.flags.is_hidden() {
                // A late fault may have marked it touched all the same.
                return;
            }
            if !g.granule.touched() {
                count += part.len();
            } else {
                count += part.iter().filter(|p| g.words[p.index_in_granule()].load().state() != State::Foreign).count() as u64;
            }
        });
        count
    }

    /// The kernel refused: puts every claimed page back as it was.
    pub fn unclaim(&self, range: PageRange) {
        self.each_granule(range, |part| {
            if !self.show_hidden(part) {
                self.each_claimed(part, |page, word, was| self.restore(page, word, was));
            }
        });
    }

    /// The kernel refused, but may have unmapped some or all of the claimed `range` before it did: a mapping over it, or a move
    /// onto it, that failed late. Asks the kernel: pages that are left are as they were, the others are given up.
    pub fn finish_refused(&self, range: PageRange) {
        if is_planted(Canary::Refused) {
            return self.unclaim(range);
        }
        self.each_granule(range, |part| {
            let Some(g) = self.table.granule_even_absent(part.start.granule()) else { return };
            if g.flags.is_hidden() {
                let last = PageRange { start: Page(part.end.0 - 1), end: part.end };
                match (self.is_left(part.start, Word::UNTOUCHED), self.is_left(last.start, Word::UNTOUCHED)) {
                    (true, true) => return g.flags.show(),
                    (false, false) => return self.finish_unmap(part),
                    _ => {
                        g.flags.show();
                        self.claim_part(&g, part);
                    }
                }
            } else if !g.flags.is_present() {
                return;
            }
            self.finish_refused_pages(&g, part);
        });
    }

    fn finish_refused_pages(&self, g: &GranuleRef<'_>, part: PageRange) {
        let end = |run: PageRange, left: bool| if left { self.unclaim(run) } else { self.finish_unmap(run) };
        let (mut start, mut left) = (part.start, None);
        for page in part.iter() {
            let word = &g.words[page.index_in_granule()];
            if word.load().state() != State::Busy {
                // Foreign: it belongs to either run.
                continue;
            }
            let now = self.is_left(page, word.claimed());
            if let Some(before) = left.filter(|&before| before != now) {
                end(PageRange { start, end: page }, before);
                start = page;
            }
            left = Some(now);
        }
        if let Some(left) = left {
            end(PageRange { start, end: part.end }, left);
        }
    }

    /// Whether the claimed `page` is still mapped and registered. The question changes nothing: it gives a page that is there the
    /// protection that its word promises (a move that the kernel has undone may have dropped it).
    fn is_left(&self, page: Page, was: Word) -> bool {
        let clean = was.state() == State::Resident && was.slot().is_some();
        let one = PageRange { start: page, end: page.plus(1) };
        loop {
            match if clean { self.kernel.protect(one) } else { self.kernel.unprotect(page) } {
                Err(KernelError::Gone) => return false,
                Err(KernelError::Again | KernelError::NoMemory) => self.kernel.step_aside(),
                _ => return true,
            }
        }
    }

    /// Undoes the hiding of `part`'s granule. False when the granule was not hidden but claimed page by page. (No page of
    /// a hidden granule is ours: a fault that came too early owns the busy pages there.)
    fn show_hidden(&self, part: PageRange) -> bool {
        let Some(g) = self.table.granule_even_absent(part.start.granule()).filter(|g| g.flags.is_hidden()) else {
            return false;
        };
        g.flags.show();
        true
    }

    /// The kernel has moved the claimed pages of `old` to `new` (as many pages, mapped and registered, not yet
    /// managed). Pages keep their slots and stages; those that are mapped count as dirty, since the move drops their
    /// write protection. `old_stays`: the old range stays managed, empty (`MREMAP_DONTUNMAP`).
    pub fn relocate(&self, old: PageRange, new: Page, old_stays: bool) {
        let moved = PageRange { start: new, end: new.plus(old.len()) };
        self.moving.begin(moved);
        let there =
            |run: PageRange| PageRange { start: new.plus(run.start.0 - old.start.0), end: new.plus(run.end.0 - old.start.0) };
        // Foreign pages in between are guards, which the kernel has moved too.
        self.each_run(old, true, |run| self.manage(there(run)));
        self.inherit_unreadable(old, moved);
        if old.by_granule().any(|part| self.may_hold_guards(part.start)) {
            self.note_guards(moved);
        }
        self.inherit_huge(old, moved);
        self.each_claimed(old, |page, _, was| {
            if was.state() == State::Untouched {
                return;
            }
            let target = new.plus(page.0 - old.start.0);
            let Some(at) = self.page(target) else { unreachable!("{target:?} was managed just now") };
            at.granule.touch();
            // A fault on a neighbour that brings zeros along may own the page for a moment.
            let before = self.claim_page(target);
            debug_assert!(before.is_some_and(|w| w.state() == State::Untouched), "{target:?} was touched while it was moved");
            let to = match was.state() {
                State::Resident => {
                    if let Some(slot) = was.slot() {
                        self.slots.free(slot);
                    }
                    // An evictor at work in this granule may have protected it before its word said anything.
                    Release::Dirty { chances: was.chances(), guessed: false, protected: !is_planted(Canary::Moved) }
                }
                State::Out => match was.slot() {
                    Some(slot) => Release::Out { slot },
                    None => unreachable!("{was:?} is out without a slot"),
                },
                _ => match was.stage() {
                    Some(stage) => {
                        self.evictors.stages.rename(stage, target);
                        Release::Leaving { stage, written: was.written() }
                    }
                    None => unreachable!("{was:?} cannot be claimed"),
                },
            };
            self.release(target, at.word, to);
            if was.state() == State::Resident {
                self.list_granule(at.granule, target, 0);
            }
        });
        self.moving.end();
        self.leave_moved(old, old_stays);
        if old_stays {
            // Where the guards were there is nothing now.
            self.each_run(old, false, |run| self.manage(run));
        }
    }

    /// Finds the longest runs of pages of `range` that are managed (or hidden just now), or of those that are not. `each` may
    /// manage its run.
    fn each_run(&self, range: PageRange, managed: bool, mut each: impl FnMut(PageRange)) {
        let mut run = PageRange { start: range.start, end: range.start };
        let mut extend = |part: PageRange, fits: bool| {
            if fits && run.end == part.start {
                run.end = part.end;
            } else {
                if !run.is_empty() {
                    each(run);
                }
                run = PageRange { start: if fits { part.start } else { part.end }, end: part.end };
            }
        };
        for part in range.by_granule() {
            let g = self.table.granule_even_absent(part.start.granule());
            match g.filter(|g| g.flags.is_present() || g.flags.is_hidden()) {
                None => extend(part, !managed),
                Some(g) if !g.granule.touched() => extend(part, managed),
                Some(g) => part.iter().for_each(|page| {
                    let is_managed = g.words[page.index_in_granule()].load().state() != State::Foreign;
                    extend(PageRange { start: page, end: page.plus(1) }, is_managed == managed);
                }),
            }
        }
        if !run.is_empty() {
            each(run);
        }
    }

    /// Pages of `range`, which are mapped, registered and foreign, hold guards. Under the address-space lock.
    pub fn note_guards(&self, range: PageRange) {
        self.each_granule(range, |part| {
            // Where memory was moved to, a granule of guards alone may be one of which no page was ever managed.
            self.table.granule_or_new(part.start.granule()).granule.guards.store(true, Ordering::Relaxed);
        });
    }

    /// Whether pages near `page` may hold guards: never false if they do.
    pub fn may_hold_guards(&self, page: Page) -> bool {
        self.table.granule_even_absent(page.granule()).is_some_and(|g| g.granule.guards.load(Ordering::Relaxed))
    }

    /// Whether `page`, which is not managed, is mapped and registered all the same: it holds a guard. Under the address-space
    /// lock.
    pub fn is_guard(&self, page: Page) -> bool {
        self.may_hold_guards(page) && !self.is_managed(page) && self.is_left(page, Word::FOREIGN)
    }

    /// Memory that could not be read through the program's mapping cannot be read at its new address either. Called
    /// before any page of `moved` can be a victim.
    fn inherit_unreadable(&self, old: PageRange, moved: PageRange) {
        let unreadable = |g: GranuleRef<'_>| g.flags.is_unreadable();
        let forget = is_planted(Canary::Unreadable);
        if !forget && old.by_granule().any(|part| self.table.granule_even_absent(part.start.granule()).is_some_and(unreadable)) {
            self.each_granule(moved, |part| {
                if let Some(g) = self.table.granule(part.start.granule()) {
                    g.flags.set_unreadable(true);
                }
            });
        }
    }

    /// Pages that may be huge pages, or parts of some, may be so at their new addresses.
    fn inherit_huge(&self, old: PageRange, moved: PageRange) {
        let huge =
            |part: PageRange| self.table.granule_even_absent(part.start.granule()).is_some_and(|g| g.granule.huge.may_be());
        if !old.by_granule().any(huge) {
            return;
        }
        let in_step = moved.start.0.abs_diff(old.start.0).is_multiple_of(GRANULE_PAGES as u64);
        self.each_granule(moved, |part| {
            let Some(g) = self.table.granule(part.start.granule()) else { return };
            let beyond = |old: PageRange| {
                self.table.granule_even_absent(old.start.granule()).is_some_and(|g| g.granule.huge.may_reach_beyond())
            };
            if in_step && part.len() == GRANULE_PAGES as u64 && !old.by_granule().any(beyond) {
                g.granule.huge.came();
            } else {
                g.granule.huge.parts_came();
            }
        });
    }

    /// Takes every page of a part of a granule before its memory goes. The rest of a huge page would keep the RAM of all of it
    /// until the kernel is short of memory; and our limit is not the kernel's. So the huge page is split first.
    fn claim_to_free(&self, g: &GranuleRef<'_>, part: PageRange) {
        self.claim_part(g, part);
        if part.len() < GRANULE_PAGES as u64 || g.granule.huge.may_reach_beyond() {
            self.split_huge(g);
        }
    }

    /// Splits the huge pages in a granule of which the caller owns pages ([`crate::fault::huge`]).
    pub(crate) fn split_huge(&self, g: &GranuleRef<'_>) {
        // Huge pages that a parent and its child share cannot be split.
        if !is_planted(Canary::Whole) && g.granule.huge.begin_split(self.quiet.rest.has_forked()) {
            // The kernel splits what is said to be cold, and forgets whether it was used.
            self.wishes.begin_cold();
            self.kernel.split_huge(g.id);
            self.wishes.end_cold(g.id);
            g.granule.huge.end_split();
            self.stats.add(MEMORY_CALLS, Count::HugeSplit, 1);
        }
    }

    /// The program asks for huge pages in `range`, or wants none there: applies to the granules that lie in it as a whole. Under
    /// the address-space lock. A range larger than the frames would not come in huge pages anyway.
    pub fn advise_huge(&self, range: PageRange, wanted: bool) {
        if wanted && range.len() > self.frames().limit() {
            return;
        }
        for part in range.by_granule().filter(|part| part.len() == GRANULE_PAGES as u64) {
            if let Some(g) = self.table.granule(part.start.granule()) {
                // The advice is forgotten when the granule goes.
                g.granule.touch();
                g.granule.huge.advise(wanted);
            }
        }
    }

    /// Releases the old addresses of moved pages: nothing that the pages had is given up.
    fn leave_moved(&self, old: PageRange, stays: bool) {
        let managed = self.count_managed(old);
        self.each_claimed(old, |page, word, _| {
            self.release(page, word, if stays { Release::Untouched } else { nameless(old, page) });
        });
        if stays {
            // Not `unclaim`: the pages are released, and another thread owns pages that are busy now.
            self.each_granule(old, |part| {
                if !self.show_hidden(part) && is_planted(Canary::Stays) {
                    self.unclaim(part);
                }
            });
        } else {
            self.unmanage(old);
            self.stats.manage(-(managed as i64));
            self.tell(Kind::Unmapped, 0, old.start, old.len());
        }
    }

    /// Brings every page of `range` in and takes it, so that the caller can hand the range over to the kernel (`mlock`):
    /// afterwards [`Engine::hand_over`]. Without `fill`, pages that were never touched are taken as they are: the kernel fills
    /// them with zeros when they are touched.
    ///
    /// # Errors
    /// When a page cannot be brought in; claimed pages are put back.
    pub fn claim_resident(
        &self,
        range: PageRange,
        fill: bool,
        core: usize,
        buffer: &mut [PageBuf],
    ) -> Result<(), crate::fault::resolve::Failure> {
        for part in range.by_granule() {
            if let Some(g) = self.table.granule(part.start.granule()) {
                // Also where no page was touched: the program goes on using this memory, so faults and pins must find that we own
                // each page.
                g.granule.touch();
            }
            for page in part.iter() {
                if let Err(why) = self.claim_brought_in(page, fill, core, buffer) {
                    // Only pages that were claimed so far: another thread owns a busy page further on.
                    self.unclaim_resident(PageRange { start: range.start, end: page });
                    return Err(why);
                }
            }
        }
        Ok(())
    }

    /// Takes one page with its bytes in memory, if it is managed.
    fn claim_brought_in(
        &self,
        page: Page,
        fill: bool,
        core: usize,
        buffer: &mut [PageBuf],
    ) -> Result<(), crate::fault::resolve::Failure> {
        let may_stay = |state: State| state == State::Resident || (!fill && state == State::Untouched);
        while self.is_managed(page) {
            let Some(at) = self.page(page).filter(|at| may_stay(at.word.load().state())) else {
                self.resolve(page, Access::Read, false, core, buffer)?;
                continue;
            };
            match self.claim_page(page) {
                Some(was) if may_stay(was.state()) => {
                    // The frame goes back at once: locked memory is not managed any more, and the rest of the range must
                    // still find frames.
                    self.frames().give(MEMORY_CALLS, u64::from(was.state() == State::Resident));
                    break;
                }
                Some(was) => self.restore(page, at.word, was),
                None => break,
            }
        }
        Ok(())
    }

    /// The kernel refused to lock the pages that [`Engine::claim_resident`] claimed: they are managed as before.
    pub fn unclaim_resident(&self, range: PageRange) {
        let mut back = 0;
        self.each_claimed(range, |_, _, was| back += u64::from(was.state() == State::Resident));
        self.frames().take_back(MEMORY_CALLS, back);
        self.each_claimed(range, |page, word, was| self.restore(page, word, was));
        self.evictors.pace.wake(&self.futex);
    }

    /// The pages that [`Engine::claim_resident`] claimed are the kernel's alone now.
    pub fn hand_over(&self, range: PageRange) {
        let managed = self.count_managed(range);
        self.each_claimed(range, |page, word, was| {
            if let Some(slot) = was.slot() {
                self.slots.free(slot);
            }
            self.release(page, word, nameless(range, page));
        });
        self.unmanage(range);
        self.stats.manage(-(managed as i64));
        self.tell(Kind::Unmapped, 0, range.start, range.len());
        self.budget.came().signal(&self.futex);
    }

    /// The program may (or may no longer) read `range` itself: evictors copy its pages another way while it may
    /// not. Under the address-space lock, before the kernel takes the right away, or after it gave it back.
    pub fn set_unreadable(&self, range: PageRange, unreadable: bool) {
        self.each_granule(range, |part| {
            let Some(g) = self.table.granule(part.start.granule()) else { return };
            if unreadable {
                g.flags.set_unreadable(true);
                if !g.granule.touched() {
                    // No evictor can own a page of it, and an evictor that takes one from here on sees the flag.
                    return;
                }
                // An evictor that looked before may be copying right now: wait until it has let go of its pages.
                for page in part.iter() {
                    self.wait_while_busy(page, &g.words[page.index_in_granule()]);
                }
            } else if part.len() == GRANULE_PAGES as u64 {
                g.flags.set_unreadable(false);
            }
        });
    }
}
