//! The pages that one call has pinned, and who takes the pins off.
//!
//! # Protocol
//!
//! A call pins into a [`PinSet`] through [`Pins`], which unpins when its scope ends, whichever way the function returns.
//!
//! 1. [`Pins::release`] ends pins before the scope: no other call is made, and no other memory of the program touched, under pins
//!    of a call that is over. A guard of one statement (a temporary, as an argument) does the same.
//! 2. Nothing is unwound here. A call that the program leaves by a jump runs no destructor: [`Held`](super::Held) finds its pins. In a
//!    child that a signal handler forks meanwhile, the frames of the interrupted calls end too, and their guards unpin: so the
//!    child keeps the pins of its own thread ([`Held::each`](super::Held::each)).
//! 3. What never returns to its caller (an exit, a successful `exec`, a call that begins again) has no guard in its frames: it
//!    pins in functions that return.

use super::held::Ticket;
use super::{Memory, share};
use core::mem::MaybeUninit;
use farshore_core::page::{Page, PageRange};

/// Runs of pinned pages: fixed capacity, no allocation, 1 KiB of stack of which nothing is touched that is not
/// used. A page is in it at most once: ask [`PinSet::contains`] first.
///
/// A set with pages in it stays where it is until they are unpinned (`Held` knows its address).
pub struct PinSet {
    /// Of the thread's copy of this set.
    pub(super) ticket: Ticket,
    len: usize,
    pages: u64,
    /// Pages beyond the free ones that the set has grants for.
    granted: u64,
    /// The first `len` are initialised.
    runs: [MaybeUninit<PageRange>; PinSet::CAPACITY],
}

impl PinSet {
    /// Runs that it can hold.
    pub const CAPACITY: usize = 64;

    /// An empty set.
    #[inline]
    pub const fn new() -> PinSet {
        PinSet { ticket: Ticket::NONE, len: 0, pages: 0, granted: 0, runs: [const { MaybeUninit::uninit() }; PinSet::CAPACITY] }
    }

    /// Adds a page that is not in the set; false if there is no room (then nothing has changed).
    #[inline]
    pub fn push_page(&mut self, page: Page) -> bool {
        // Latest first: a buffer is pinned in ascending order, so its run is the last one.
        for run in self.runs_mut().iter_mut().rev() {
            if run.end == page {
                run.end = page.plus(1);
                self.pages += 1;
                return true;
            }
            if page.plus(1) == run.start {
                run.start = page;
                self.pages += 1;
                return true;
            }
        }
        if self.len == PinSet::CAPACITY {
            return false;
        }
        self.runs[self.len].write(PageRange { start: page, end: page.plus(1) });
        self.len += 1;
        self.pages += 1;
        true
    }

    /// Whether `page` is in the set.
    #[inline]
    pub fn contains(&self, page: Page) -> bool {
        self.runs().iter().rev().any(|run| run.start <= page && page < run.end)
    }

    /// The runs, in no particular order.
    #[inline]
    pub fn runs(&self) -> &[PageRange] {
        let first = self.runs.as_ptr().cast::<PageRange>();
        // SAFETY: the first `len` elements are initialised, and `MaybeUninit` has the layout of its content.
        unsafe { core::slice::from_raw_parts(first, self.len) }
    }

    #[inline]
    fn runs_mut(&mut self) -> &mut [PageRange] {
        let first = self.runs.as_mut_ptr().cast::<PageRange>();
        // SAFETY: as in `runs`, and `self` is borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(first, self.len) }
    }

    /// How many pages are in the set.
    #[inline]
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Whether one more page may be pinned, of `want` that are wanted: takes grants from the share of all calls, of which there
    /// are `most`. Remember the set ([`Held::note`]) also when no page follows.
    #[inline]
    pub fn may_grow(&mut self, want: u64, most: u64) -> bool {
        if self.pages >= share::FREE + self.granted {
            self.granted += share::take(want, most);
        }
        self.pages < share::FREE + self.granted
    }

    /// Pages that the set has grants for.
    #[inline]
    pub fn granted(&self) -> u64 {
        self.granted
    }

    /// Whether nothing is in it.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives the grants back: the pages are unpinned.
    #[inline]
    pub fn give_grants(&mut self) {
        share::give(core::mem::take(&mut self.granted));
    }

    /// Forgets all pages and grants. The caller has unpinned and given them back, or lost them to somebody who does.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
        self.pages = 0;
        self.granted = 0;
    }
}

/// Unpins a set's pages when it is dropped.
///
/// It borrows the set: one that it had inside would be copied when the guard is made, 1 KiB for each call.
pub struct Pins<'p, M: Memory> {
    mem: &'p M,
    set: &'p mut PinSet,
}

impl<'p, M: Memory> Pins<'p, M> {
    /// Answers for `set`.
    #[inline(always)]
    pub const fn new(mem: &'p M, set: &'p mut PinSet) -> Self {
        Pins { mem, set }
    }

    /// Unpins all, before the scope ends; more may be pinned then.
    #[inline(always)]
    pub fn release(&mut self) {
        self.mem.unpin(self.set);
    }
}

impl<M: Memory> Drop for Pins<'_, M> {
    #[inline(always)]
    fn drop(&mut self) {
        self.release();
    }
}

impl<M: Memory> core::ops::Deref for Pins<'_, M> {
    type Target = PinSet;
    #[inline(always)]
    fn deref(&self) -> &PinSet {
        self.set
    }
}

impl<M: Memory> core::ops::DerefMut for Pins<'_, M> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut PinSet {
        self.set
    }
}

impl<M: Memory> core::fmt::Debug for Pins<'_, M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        (*self.set).fmt(f)
    }
}

impl Default for PinSet {
    fn default() -> PinSet {
        PinSet::new()
    }
}

impl core::fmt::Debug for PinSet {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.runs()).finish()
    }
}
