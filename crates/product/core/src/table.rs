//! From an address to its page word.
//!
//! A two-level table over the 47 bits of a user address. It has a leaf for each GiB, which is allocated when the first
//! region of that GiB is managed, and never freed (a thread may be looking at it). A leaf is a flat table: 8 bytes a
//! page, one multiplication-free index, no search, no lock. Its memory comes zeroed, and zero is
//! [`State::Untouched`](crate::word::State), so managing 64 GiB costs a flag a granule and not a write a page.
//!
//! # Which pages are managed
//!
//! A granule (2 MiB) is *absent* or *present*. In an absent one no page is managed. In a present one every page is
//! managed, except those whose word is `Foreign`. Changes are made under the address-space lock:
//!
//! * a whole absent granule becomes present by its flag alone;
//! * of a partly managed granule, all 512 words are written before the flag is set;
//! * a granule becomes absent again only when all its words are `Untouched`.
//!
//! # Untouched memory costs nothing
//!
//! A program may reserve far more addresses than it ever uses (a terabyte, say). Of a granule that no thread has touched, only
//! the [`Flags`] are written, four bytes: a page of memory for a GiB. The granule's words and its other state are not looked at
//! one by one either, whatever happens to the granule.
//!
//! # A small mapping alone in its GiB takes two pages
//!
//! Other programs map their heap in small pieces at random addresses (V8 does), each in a GiB of its own. So the [`Granule`]s of a
//! leaf lie in the order in which they became present for the first time, behind the flags, which say where: those of the first
//! granules are on the page that has the flags. With the page of words that makes 8 KiB for such a piece.
//!
//! A granule gets its place once, under the address-space lock and before it is present, and keeps it. Whoever sees its presence
//! as anything but [`NEVER`] (Acquire) sees its place.

use crate::huge::Huge;
use crate::limits::{GRANULE_PAGES, LEAF_GRANULES, LEAVES, PAGE_SIZE};
use crate::order::{Order, Ordered};
use crate::page::{GranuleId, Page, PageRange};
use crate::room::{Part, Room};
use crate::sync::{AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, spin_hint};
use crate::word::{AtomicWord, State};
use alloc::alloc::{Layout, alloc_zeroed};
use alloc::boxed::Box;

/// The granule has never been present, and has no place.
const NEVER: u8 = 0;
const PRESENT: u8 = 1;
/// The granule is untouched, and about to become absent: see [`Flags::hide`].
const HIDDEN: u8 = 2;
const ABSENT: u8 = 3;

/// What is true of 2 MiB of the program's memory even if no thread has touched them. Kept apart from the rest, so that it takes
/// little room.
#[derive(Debug)]
pub struct Flags {
    /// [`NEVER`], [`ABSENT`], [`PRESENT`] or [`HIDDEN`].
    presence: AtomicU8,
    /// Part of the granule is memory that the evictor must not read through the program's own mapping (`PROT_NONE`,
    /// write-only).
    unreadable: AtomicBool,
    /// Which of the leaf's granules is this one's; says nothing while `presence` is [`NEVER`].
    place: AtomicU16,
}

/// What is true of 2 MiB of the program's memory as a whole, once a thread has touched them.
#[derive(Debug)]
#[repr(align(64))]
pub struct Granule {
    /// Some page of the granule has been touched since the granule became present: its words may differ from 0.
    touched: AtomicBool,
    /// The granule was touched in an earlier life: its words have memory.
    used: AtomicBool,
    /// The granule is on a partition's list (or about to be): see the engine's `evict::partition`.
    pub listed: AtomicBool,
    /// Goes up by one before and after an evictor write-protects a range here: odd while the evictor does so.
    pub protection_epoch: AtomicU32,
    /// Some page of the granule may hold a guard (`MADV_GUARD_INSTALL`): mapped, registered, and foreign. A hint.
    pub guards: AtomicBool,
    /// How sure we are that pages here are written after they are read, 0 to 255.
    pub write_guess: AtomicU8,
    /// What a prefetcher remembers of fetches here (the engine's `prefetch`); hints.
    pub notes: [AtomicU64; 2],
    /// When pages of the granule last left, in the time of the engine's `evict::loops`; a hint, as are the next two.
    pub left_at: AtomicU32,
    /// How often the granule has come back in a loop.
    pub returns: AtomicU8,
    /// Until when the granule may be kept.
    pub loops_until: AtomicU32,
    /// Whether the granule may come as a huge page, and may have come so.
    pub huge: Huge,
    /// In which order the program says that it uses a part of the granule.
    pub ordered: Ordered,
    /// When the granule became the newest of its list, in the engine's `evict::partition` time.
    pub newest_at: AtomicU32,
    /// Which of a partition's hands has found pages of the granule that left (the engine's `evict::hands`); a hint.
    pub found_by: AtomicU8,
    /// The next granule of the partition's list, as `GranuleId + 1`; 0 ends it.
    pub next: AtomicU32,
    /// The one before it, once an evictor has linked the granule into the ring.
    pub previous: AtomicU32,
}

#[repr(C, align(4096))]
struct Leaf {
    words: [AtomicWord; LEAF_GRANULES * GRANULE_PAGES],
    flags: [Flags; LEAF_GRANULES],
    /// The leaf that was made before this one, as its index + 1; 0: there is none.
    before: AtomicU64,
    /// Granules that have a place: the first ones of `granules`. Changed under the address-space lock.
    placed: AtomicU16,
    granules: [Granule; LEAF_GRANULES],
}

impl Leaf {
    /// The state of the granule with these flags, if its presence is not [`NEVER`].
    #[inline(always)]
    fn granule(&self, flags: &Flags) -> &Granule {
        // Relaxed: the caller has looked at the presence. The remainder, of a power of two, spares a comparison.
        &self.granules[usize::from(flags.place.load(Ordering::Relaxed)) % LEAF_GRANULES]
    }
}

/// Granules of a leaf that are on the page of its flags.
const FIRST_GRANULES: usize = {
    let room = (PAGE_SIZE - core::mem::offset_of!(Leaf, granules) % PAGE_SIZE) / size_of::<Granule>();
    if room < LEAF_GRANULES { room } else { LEAF_GRANULES }
};
const _: () = assert!(LEAF_GRANULES.is_power_of_two() && LEAF_GRANULES <= 1 << 16);
// A link is 32 bits.
const _: () = assert!(LEAVES * LEAF_GRANULES < 1 << 32);

/// The table of page words of one address space.
pub struct PageTable {
    leaves: Box<[AtomicPtr<Leaf>; LEAVES]>,
    /// The leaf that was made last, as its index + 1; 0: there is none.
    last: AtomicU64,
    /// Where leaves lie, if not on the heap.
    room: Option<&'static dyn Room>,
}

impl core::fmt::Debug for PageTable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PageTable").finish_non_exhaustive()
    }
}

/// A managed (or `Foreign`) page: its word and its granule.
#[derive(Clone, Copy, Debug)]
pub struct PageRef<'t> {
    /// The page word.
    pub word: &'t AtomicWord,
    /// The granule that the page lies in.
    pub granule: &'t Granule,
    /// Its flags.
    pub flags: &'t Flags,
}

/// A present granule: its state, and the words of all its 512 pages.
#[derive(Clone, Copy, Debug)]
pub struct GranuleRef<'t> {
    /// Its number.
    pub id: GranuleId,
    /// Words of its pages, in order.
    pub words: &'t [AtomicWord],
    /// What is true of the granule as a whole.
    pub granule: &'t Granule,
    /// What is true of the granule even if no thread has touched it.
    pub flags: &'t Flags,
}

/// Allocates a `T` whose every byte is zero, in memory that the allocator need not touch itself.
///
/// # Safety
/// All-zero bytes must be a valid `T`.
unsafe fn zeroed_box<T>() -> Box<T> {
    let layout = Layout::new::<T>();
    // SAFETY: `alloc_zeroed` wants a layout of non-zero size: both callers' types are larger.
    let memory = unsafe { alloc_zeroed(layout) };
    if memory.is_null() {
        alloc::alloc::handle_alloc_error(layout);
    }
    // SAFETY: the memory is fresh, has T's layout, comes from the global allocator as Box wants
    // it, and holds a valid T because all-zero is one (this function's own condition).
    unsafe { Box::from_raw(memory.cast::<T>()) }
}

/// Makes the word of a page that no thread uses any more, or yet, foreign or untouched. A thread that faulted on the page
/// while the program was giving the memory up may own the page for a moment: only that thread may move it on.
fn settle(word: &AtomicWord, foreign: bool) {
    while !word.set_foreign(foreign) {
        if word.load().state() != State::Busy {
            // The page stays as the caller left it; a memory call claims touched pages (see `PageTable::remove`).
            return;
        }
        spin_hint();
    }
}

/// Makes the word of a page that is about to be managed foreign or untouched.
///
/// # Panics
/// If the page still has bytes: the code that gave the memory up has forgotten them, and they would be taken for those of the
/// new memory.
fn begin_life(word: &AtomicWord, foreign: bool) {
    while !word.set_foreign(foreign) {
        let state = word.load().state();
        let settles = matches!(state, State::Busy | State::Untouched | State::Foreign);
        assert!(settles, "bug: memory that is mapped anew has a page whose word says {state:?}");
        spin_hint();
    }
}

impl Default for PageTable {
    fn default() -> Self {
        PageTable::new()
    }
}

impl PageTable {
    /// An empty table: 1 MiB of address space, none of it touched.
    pub fn new() -> PageTable {
        // SAFETY: a zeroed AtomicPtr is a null pointer, and an array of them is valid.
        PageTable { leaves: unsafe { zeroed_box() }, last: AtomicU64::new(0), room: None }
    }

    /// The same with its words in `room`, where there may be some already: those of an engine that has ended ([`PageTable::recall`]).
    pub fn in_room(room: Option<&'static dyn Room>) -> PageTable {
        let mut table = PageTable::new();
        table.room = room;
        table
    }

    /// Finds the words of a range again that an engine has left in the room. They are looked at ([`PageTable::word_for_unpin`]), and nothing is managed by this table.
    pub fn recall(&self, range: PageRange) {
        range.by_granule().for_each(|part| _ = self.leaf_or_new(part.start.granule().0 / LEAF_GRANULES as u64));
    }

    /// Whether the table has words for all of `range`: a process may have addresses beyond 47 bits if it asks for them
    /// (five-level paging).
    pub fn covers(range: PageRange) -> bool {
        range.end.0 <= (LEAVES * LEAF_GRANULES * GRANULE_PAGES) as u64
    }

    #[inline]
    fn leaf(&self, index: u64) -> Option<&Leaf> {
        let leaf = self.leaves.get(index as usize)?.load(Ordering::Acquire);
        // SAFETY: a non-null pointer was published by `leaf_or_new` (Acquire pairs with its
        // AcqRel exchange), points to a Leaf from Box::into_raw, and is never freed while `self` lives.
        unsafe { leaf.as_ref() }
    }

    fn leaf_or_new(&self, index: u64) -> &Leaf {
        if let Some(leaf) = self.leaf(index) {
            return leaf;
        }
        let fresh: *mut Leaf = match self.room {
            // SAFETY: a Leaf is made of atomics and flags, and zero is a valid value of each.
            None => Box::into_raw(unsafe { zeroed_box::<Leaf>() }),
            // Zeros, or the leaf of an engine that has ended.
            Some(room) => match room.part(Part::Leaf, index, size_of::<Leaf>()) {
                Some(memory) => memory.as_ptr().cast(),
                None => alloc::alloc::handle_alloc_error(Layout::new::<Leaf>()),
            },
        };
        let place = &self.leaves[index as usize];
        let published = match place.compare_exchange(core::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                // SAFETY: published just now, never freed while `self` lives.
                self.list_leaf(index, unsafe { &*fresh });
                fresh
            }
            Err(other) => {
                if self.room.is_none() {
                    // SAFETY: `fresh` came from Box::into_raw above and was not published.
                    drop(unsafe { Box::from_raw(fresh) });
                }
                other
            }
        };
        // SAFETY: published leaves are never freed while `self` lives (see `leaf`).
        unsafe { &*published }
    }

    fn list_leaf(&self, index: u64, leaf: &Leaf) {
        let mut last = self.last.load(Ordering::Acquire);
        loop {
            leaf.before.store(last, Ordering::Relaxed);
            match self.last.compare_exchange(last, index + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(seen) => last = seen,
            }
        }
    }

    /// Every present granule, in no particular order. Granules that become present meanwhile may be left out.
    pub fn granules(&self) -> impl Iterator<Item = GranuleRef<'_>> {
        self.ids().filter_map(|id| self.granule(id))
    }

    /// What the leaves that there are cover.
    fn ids(&self) -> impl Iterator<Item = GranuleId> {
        let index_of = |link: u64| link.checked_sub(1);
        let first = index_of(self.last.load(Ordering::Acquire));
        core::iter::successors(first, move |&index| index_of(self.leaf(index)?.before.load(Ordering::Relaxed)))
            .flat_map(|index| (index * LEAF_GRANULES as u64..(index + 1) * LEAF_GRANULES as u64).map(GranuleId))
    }

    /// The same with those that were present and are not.
    pub fn granules_even_absent(&self) -> impl Iterator<Item = GranuleRef<'_>> {
        self.ids().filter_map(|id| self.granule_even_absent(id))
    }

    /// Bytes of the table that have addresses and no memory: words of granules that no thread has touched. Looks at each granule
    /// of each leaf.
    pub fn unused_bytes(&self) -> u64 {
        const WORDS: usize = size_of::<[AtomicWord; GRANULE_PAGES]>();
        let index_of = |link: u64| link.checked_sub(1);
        let first = index_of(self.last.load(Ordering::Acquire));
        core::iter::successors(first, move |&index| index_of(self.leaf(index)?.before.load(Ordering::Relaxed)))
            .filter_map(|index| self.leaf(index))
            .map(|leaf| {
                let is_used = |g: &Granule| g.touched() || g.was_used();
                let used = leaf.granules.iter().filter(|g| is_used(g)).count();
                // The first granules share their page with the flags.
                let (_, others) = leaf.granules.split_at(FIRST_GRANULES);
                let pages = others.chunks(PAGE_SIZE / size_of::<Granule>()).filter(|page| !page.iter().any(is_used));
                ((LEAF_GRANULES - used) * WORDS + pages.count() * PAGE_SIZE) as u64
            })
            .sum()
    }

    /// A copy of the table, word by word, as `fork` makes one: for the simulator, where fork does not.
    #[must_use]
    pub fn duplicate(&self) -> PageTable {
        let copy = PageTable::new();
        for g in self.granules() {
            copy.add(g.id.range());
            let Some(to) = copy.granule(g.id) else { continue };
            to.words.iter().zip(g.words).for_each(|(to, from)| to.copy_from(from));
            to.granule.touched.store(g.granule.touched(), Ordering::SeqCst);
            to.flags.set_unreadable(g.flags.is_unreadable());
            to.granule.huge.copy_from(&g.granule.huge);
        }
        copy
    }

    /// The page's word, if its granule is present.
    #[inline(always)]
    pub fn page(&self, page: Page) -> Option<PageRef<'_>> {
        let id = page.granule();
        let leaf = self.leaf(id.0 / LEAF_GRANULES as u64)?;
        let at = (id.0 % LEAF_GRANULES as u64) as usize;
        let flags = &leaf.flags[at];
        // Acquire: pairs with the release in `add`, so that the words of a partly managed granule are seen, and its place.
        if flags.presence.load(Ordering::Acquire) != PRESENT {
            return None;
        }
        let word = &leaf.words[at * GRANULE_PAGES + page.index_in_granule()];
        Some(PageRef { word, granule: leaf.granule(flags), flags })
    }

    /// The page's word even if its granule is absent: for unpinning a page that has been unmapped since it was pinned.
    #[inline(always)]
    pub fn word_for_unpin(&self, page: Page) -> Option<&AtomicWord> {
        let id = page.granule();
        let leaf = self.leaf(id.0 / LEAF_GRANULES as u64)?;
        Some(&leaf.words[(id.0 % LEAF_GRANULES as u64) as usize * GRANULE_PAGES + page.index_in_granule()])
    }

    /// The granule, if it is present.
    pub fn granule(&self, id: GranuleId) -> Option<GranuleRef<'_>> {
        self.granule_even_absent(id).filter(|g| g.flags.presence.load(Ordering::Acquire) == PRESENT)
    }

    /// The granule, if it was ever present: an evictor's list may still name a granule that has become absent.
    pub fn granule_even_absent(&self, id: GranuleId) -> Option<GranuleRef<'_>> {
        let leaf = self.leaf(id.0 / LEAF_GRANULES as u64)?;
        let at = (id.0 % LEAF_GRANULES as u64) as usize;
        // Acquire: pairs with the stores in `granule_or_new`, so that its place is seen.
        let known = leaf.flags[at].presence.load(Ordering::Acquire) != NEVER;
        known.then(|| Self::granule_of(leaf, id, at))
    }

    fn granule_of(leaf: &Leaf, id: GranuleId, at: usize) -> GranuleRef<'_> {
        let words = &leaf.words[at * GRANULE_PAGES..(at + 1) * GRANULE_PAGES];
        let flags = &leaf.flags[at];
        GranuleRef { id, words, granule: leaf.granule(flags), flags }
    }

    /// The granule, which is absent if it was never present. Under the address-space lock.
    ///
    /// # Panics
    /// If the table does not cover the granule ([`PageTable::covers`]).
    pub fn granule_or_new(&self, id: GranuleId) -> GranuleRef<'_> {
        let leaf = self.leaf_or_new(id.0 / LEAF_GRANULES as u64);
        let at = (id.0 % LEAF_GRANULES as u64) as usize;
        let flags = &leaf.flags[at];
        // Relaxed: the lock orders those who give places.
        if flags.presence.load(Ordering::Relaxed) == NEVER {
            let place = leaf.placed.load(Ordering::Relaxed);
            assert!(usize::from(place) < LEAF_GRANULES, "bug: a leaf has more granules than it covers");
            leaf.placed.store(place + 1, Ordering::Relaxed);
            flags.place.store(place, Ordering::Relaxed);
            // Release: pairs with the looks at the presence, here and at all later values of it, which are stored under the
            // lock too, with Release or more.
            flags.presence.store(ABSENT, Ordering::Release);
        }
        Self::granule_of(leaf, id, at)
    }

    /// Every page of `range` becomes managed and untouched. Under the address-space lock; before the call, the pages must
    /// be foreign or absent.
    ///
    /// # Panics
    /// If the table does not cover the range ([`PageTable::covers`]), or a page of it has bytes.
    pub fn add(&self, range: PageRange) {
        for part in range.by_granule() {
            let GranuleRef { words, granule, flags, .. } = self.granule_or_new(part.start.granule());
            let in_part = part.start.index_in_granule()..part.start.index_in_granule() + part.len() as usize;
            if flags.presence.load(Ordering::Acquire) == PRESENT {
                words[in_part].iter().for_each(|w| begin_life(w, false));
                continue;
            }
            if part.len() < GRANULE_PAGES as u64 {
                for (i, word) in words.iter().enumerate() {
                    begin_life(word, !in_part.contains(&i));
                }
                granule.touched.store(true, Ordering::Relaxed);
            }
            flags.presence.store(PRESENT, Ordering::Release);
        }
    }

    /// Every page of `range` stops being managed. Under the address-space lock; the caller has claimed each touched page
    /// and released it as `Untouched` (whole granules) or `Foreign` (parts).
    pub fn remove(&self, range: PageRange) {
        for part in range.by_granule() {
            let Some(g) = self.granule_even_absent(part.start.granule()) else { continue };
            if g.flags.presence.load(Ordering::Acquire) == ABSENT {
                continue;
            }
            if part.len() == GRANULE_PAGES as u64 {
                g.flags.presence.store(ABSENT, Ordering::SeqCst);
                g.flags.unreadable.store(false, Ordering::Relaxed);
                g.granule.ordered.forget();
                if !g.granule.touched() {
                    // No word of the granule was changed.
                    continue;
                }
                // The granule was managed in part until now: the words of its other pages must not be foreign when it
                // comes back whole.
                g.words.iter().filter(|w| w.load().state() == State::Foreign).for_each(|w| settle(w, false));
                g.granule.used.store(true, Ordering::Relaxed);
                g.granule.touched.store(false, Ordering::Relaxed);
                g.granule.write_guess.store(0, Ordering::Relaxed);
                g.granule.notes.iter().for_each(|note| note.store(0, Ordering::Relaxed));
                g.granule.left_at.store(0, Ordering::Relaxed);
                g.granule.returns.store(0, Ordering::Relaxed);
                g.granule.loops_until.store(0, Ordering::Relaxed);
                g.granule.huge.forget();
            } else {
                g.granule.ordered.advise(part, Order::Unknown);
                // Foreign words differ from 0.
                g.granule.touch();
                let first = part.start.index_in_granule();
                for word in &g.words[first..first + part.len() as usize] {
                    if matches!(word.load().state(), State::Untouched | State::Busy) {
                        settle(word, true);
                    }
                }
            }
        }
    }
}

impl Flags {
    /// Whether the granule is present now. A fault that has just taken an untouched page asks again: see [`Flags::hide`].
    #[inline]
    pub fn is_present(&self) -> bool {
        self.presence.load(Ordering::SeqCst) == PRESENT
    }
    /// Whether [`Flags::hide`] made the granule look absent.
    pub fn is_hidden(&self) -> bool {
        self.presence.load(Ordering::SeqCst) == HIDDEN
    }
    /// Makes the granule absent before its memory goes, when no page of it was touched. The caller looks at
    /// [`Granule::touched`] afterwards. Both sides use SeqCst, so either the caller sees the touch of a racing fault, or
    /// that fault sees the granule absent and lets go.
    pub fn hide(&self) {
        self.presence.store(HIDDEN, Ordering::SeqCst);
    }
    /// Undoes [`Flags::hide`] when the kernel refused the call.
    pub fn show(&self) {
        self.presence.store(PRESENT, Ordering::SeqCst);
    }
    /// Whether evictors must not read the granule through the program's own mapping.
    #[inline]
    pub fn is_unreadable(&self) -> bool {
        self.unreadable.load(Ordering::SeqCst)
    }
    /// Says whether evictors must not read the granule through the program's own mapping. SeqCst: the thread that sets this looks
    /// at [`Granule::touched`] afterwards, and an evictor has a page of the granule only after a touch. So either the thread sees
    /// that touch, or the evictor sees this flag.
    pub fn set_unreadable(&self, unreadable: bool) {
        self.unreadable.store(unreadable, Ordering::SeqCst);
    }
}

impl Granule {
    /// Whether some word of the granule may differ from 0.
    #[inline]
    pub fn touched(&self) -> bool {
        self.touched.load(Ordering::SeqCst)
    }
    /// Whether the granule was touched in an earlier life, and has been absent since.
    pub fn was_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }
    /// Remembers that a page of the granule is being touched. Costs one load when that is known already.
    #[inline]
    pub fn touch(&self) {
        // Acquire: a thread that relies on another thread's touch comes after it (C++20 [atomics.order]: Relaxed would
        // not put our look at `presence` after that touch).
        if !self.touched.load(Ordering::Acquire) {
            // SeqCst, and before the change of the word: pairs with `hide`.
            self.touched.store(true, Ordering::SeqCst);
        }
    }
}

impl Drop for PageTable {
    fn drop(&mut self) {
        if self.room.is_some() {
            return;
        }
        for leaf in self.leaves.iter_mut() {
            let leaf = *leaf.get_mut();
            if !leaf.is_null() {
                // SAFETY: published leaves came from Box::into_raw, and `&mut self` means that no thread looks at them
                // any more.
                drop(unsafe { Box::from_raw(leaf) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::word::Word;
    use std::vec::Vec;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange { start: Page(start), end: Page(end) }
    }

    #[test]
    fn only_what_was_added_is_managed() {
        let t = PageTable::new();
        assert!(t.page(Page(0x7_f123_4567)).is_none());
        t.add(range(1000, 2100));
        assert_eq!(t.page(Page(999)).unwrap().word.load(), Word::FOREIGN);
        assert_eq!(t.page(Page(1000)).unwrap().word.load(), Word::UNTOUCHED);
        assert_eq!(t.page(Page(2099)).unwrap().word.load(), Word::UNTOUCHED);
        assert_eq!(t.page(Page(2100)).unwrap().word.load(), Word::FOREIGN);
        t.add(range(2100, 2200));
        assert_eq!(t.page(Page(2100)).unwrap().word.load(), Word::UNTOUCHED);
        t.remove(range(1000, 2150));
        assert_eq!(t.page(Page(1000)).unwrap().word.load(), Word::FOREIGN);
        assert!(t.page(Page(1536)).is_none(), "a whole granule went");
        assert_eq!(t.page(Page(2149)).unwrap().word.load(), Word::FOREIGN);
        assert_eq!(t.page(Page(2150)).unwrap().word.load(), Word::UNTOUCHED);
    }

    #[test]
    fn words_of_what_nobody_has_touched_are_not_looked_at() {
        let t = PageTable::new();
        let granule = GRANULE_PAGES as u64;
        let all = range(0, 4 * granule);
        t.add(all);
        // Words that no untouched granule can have: a thread that looked at them would wait for them, or change them.
        let words: Vec<_> = (0..4).map(|n| t.granule(GranuleId(n)).unwrap().words).collect();
        words.iter().flat_map(|words| words.iter()).for_each(|word| word.overwrite(Word::FOREIGN));
        t.remove(all);
        assert!((0..4).all(|n| t.granule(GranuleId(n)).is_none()));
        t.add(all);
        assert!(words.iter().flat_map(|words| words.iter()).all(|word| word.load() == Word::FOREIGN));
        // The words of a granule that was touched are looked at.
        t.granule(GranuleId(1)).unwrap().granule.touch();
        t.remove(all);
        assert!(words[1].iter().all(|word| word.load() == Word::UNTOUCHED) && words[0][0].load() == Word::FOREIGN);
        // And its words have memory from then on.
        assert_eq!(size_of::<Leaf>() as u64 - t.unused_bytes(), 2 * PAGE_SIZE as u64);
    }

    #[test]
    #[should_panic(expected = "a page whose word says Out")]
    fn bytes_do_not_outlive_their_memory() {
        let t = PageTable::new();
        t.add(range(1000, 2100));
        let word = t.page(Page(1500)).unwrap().word;
        assert!(matches!(word.claim(), crate::word::Claim::Owned { .. }));
        let _ = word.release(crate::word::Release::Out { slot: crate::word::Slot::new(7).unwrap() });
        t.add(range(1400, 1600));
    }

    #[test]
    fn flags_and_the_first_granules_are_on_one_page() {
        const FLAGS: usize = core::mem::offset_of!(Leaf, flags);
        assert!(FLAGS.is_multiple_of(PAGE_SIZE) && size_of::<Flags>() == 4);
        let page = (FLAGS..core::mem::offset_of!(Leaf, granules)).len() + FIRST_GRANULES * size_of::<Granule>();
        // A leaf is smaller under Miri.
        let wanted = if cfg!(miri) { (page, LEAF_GRANULES) } else { (PAGE_SIZE, 31) };
        assert_eq!((page, FIRST_GRANULES), wanted);
    }

    #[test]
    fn granules_have_places_in_the_order_in_which_they_come() {
        let t = PageTable::new();
        let page = |id: u64| Page(id * GRANULE_PAGES as u64 + 7);
        let place = |id| core::ptr::from_ref(t.page(page(id)).unwrap().granule).addr();
        let last = LEAF_GRANULES as u64 - 1;
        // The last of a leaf comes first: its place is the first one.
        assert!(t.granule_even_absent(GranuleId(last)).is_none());
        t.add(range(page(last).0, page(last).0 + 1));
        assert!(t.granule_even_absent(GranuleId(0)).is_none(), "a granule that never came has no place");
        t.granule_or_new(GranuleId(0)).granule.guards.store(true, Ordering::Relaxed);
        assert!(t.page(page(0)).is_none() && t.granule_even_absent(GranuleId(0)).is_some());
        t.add(range(0, 2 * GRANULE_PAGES as u64));
        assert!(t.page(page(0)).unwrap().granule.guards.load(Ordering::Relaxed), "a place is kept");
        let places = [place(last), place(0), place(1)];
        assert_eq!(places.map(|at| at - places[0]), [0, size_of::<Granule>(), 2 * size_of::<Granule>()]);
        t.remove(range(0, 2 * GRANULE_PAGES as u64));
        t.add(range(GRANULE_PAGES as u64, 3 * GRANULE_PAGES as u64));
        assert_eq!([place(last), place(1)], [places[0], places[2]]);
        // All of a leaf have one, no two the same.
        t.add(range(0, LEAF_GRANULES as u64 * GRANULE_PAGES as u64));
        let all: std::collections::BTreeSet<_> = (0..=last).map(place).collect();
        assert_eq!(all.len(), LEAF_GRANULES);
    }

    #[test]
    fn a_small_mapping_alone_takes_two_pages() {
        let t = PageTable::new();
        let leaf = (LEAF_GRANULES * GRANULE_PAGES) as u64;
        t.add(range(leaf - 100, leaf - 36));
        assert_eq!(size_of::<Leaf>() as u64 - t.unused_bytes(), 2 * PAGE_SIZE as u64);
    }

    #[test]
    fn ranges_across_leaves_and_the_end_of_the_address_space() {
        let t = PageTable::new();
        let leaf = (LEAF_GRANULES * GRANULE_PAGES) as u64;
        t.add(range(leaf - 1, leaf + 1));
        assert_eq!(t.page(Page(leaf)).unwrap().word.load(), Word::UNTOUCHED);
        assert!(t.page(Page(u64::MAX >> 12)).is_none());
        let end = LEAVES as u64 * leaf;
        t.add(range(end - 3, end));
        assert_eq!(t.page(Page(end - 1)).unwrap().word.load(), Word::UNTOUCHED);
        assert!(t.page(Page(end)).is_none() && t.granule_even_absent(Page(end).granule()).is_none());
        assert!(PageTable::covers(range(end - 3, end)) && !PageTable::covers(range(end - 3, end + 1)));
        assert!(!PageTable::covers(range(end << 9, (end << 9) + 1)));
    }
}
