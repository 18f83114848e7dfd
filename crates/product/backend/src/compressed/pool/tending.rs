//! Work on the pool's side: pages of freed slots are taken out, and the oldest pages go to the tier below.

use super::age::{Links, NOBODY};
use super::{Entry, Pool, State};
use core::sync::atomic::Ordering;
use farshore_core::limits::{EXTENT_SLOTS, PAGE_SIZE};
use farshore_core::pooled::{CopyEnd, Place};
use farshore_core::seams::{FaultsSeen, FreeSlots, PageBuf};
use farshore_core::word::Slot;

/// Groups of 64 slots that are looked through for pages that nobody needs, once a batch.
const GROUPS_A_LOOK: u64 = 128;
/// Pages that the tier below has too, and that are dropped at a time.
const DROPPED_A_LOOK: u32 = 512;

impl Pool {
    /// Looks at the next `extents` extents, and takes out pages of slots that are free. Returns whether the oldest pages should
    /// go to the tier below then.
    pub fn sweep(&self, extents: u64, free: &dyn FreeSlots, faults: &FaultsSeen) -> bool {
        self.with(|state| {
            let words = state.end.div_ceil(64);
            for _ in 0..words.min(extents * EXTENT_SLOTS as u64 / 64) {
                let word = if state.sweep >= words { 0 } else { state.sweep };
                state.sweep = word + 1;
                let mut dead = self.present(word).load(Ordering::Relaxed);
                if dead != 0 {
                    // Asked under the lock: a thread that is given a slot puts its page after this.
                    dead &= free.free_of(word * 64);
                }
                while dead != 0 {
                    let number = word * 64 + u64::from(dead.trailing_zeros());
                    dead &= dead - 1;
                    if let Some(entry) = self.entry(number) {
                        let _ = self.drop_page(state, number, entry);
                    }
                }
            }
            if let Some(worth) = &self.worth {
                self.drop_needless(state, words);
                worth.note_faults(faults);
                worth.decide();
                self.allowed.store(worth.bytes(), Ordering::Relaxed);
            }
            self.empty_some(state);
            self.has_lower && self.is_full(state, 15)
        })
    }

    /// Looks at the next [`GROUPS_A_LOOK`] groups of slots for pages that have come and that the tier below has, and takes them out.
    fn drop_needless(&self, state: &mut State, words: u64) {
        for _ in 0..words.min(GROUPS_A_LOOK) {
            let word = if state.needless >= words { 0 } else { state.needless };
            state.needless = word + 1;
            let mut present = self.present(word).load(Ordering::Relaxed);
            while present != 0 {
                let number = word * 64 + u64::from(present.trailing_zeros());
                present &= present - 1;
                let needless = Slot::new(number).and_then(|slot| self.tagged(slot)).is_some_and(|(_, tag)| tag.is_needless());
                if needless {
                    let _ = self.drop_below(state, number);
                }
            }
        }
    }

    /// Whether the tier below has the page that is here. It is never copied there.
    fn is_below(&self, slot: u64) -> bool {
        Slot::new(slot).and_then(|slot| self.tagged(slot)).is_some_and(|(_, tag)| tag.is_below())
    }

    /// Takes out a page that the tier below has, if that tier works and no thread reads the page.
    fn drop_below(&self, state: &mut State, slot: u64) -> bool {
        let may = self.is_below(slot) && !self.lower_fails.load(Ordering::Relaxed);
        let quiet = |entry: &&Entry| may && !entry.word.is_copied();
        self.entry(slot).filter(quiet).is_some_and(|entry| self.drop_page(state, slot, entry))
    }

    /// Takes out the oldest page if the tier below has it. False: it has not, or a thread reads it.
    pub(super) fn drop_oldest(&self, state: &mut State) -> bool {
        self.drop_below(state, u64::from(state.oldest))
    }

    /// Whether more than this many sixteenths of the allowed memory are in use (copies under way count as done), or a page had no
    /// room, or the pool may use less than it does.
    fn is_full(&self, state: &State, sixteenths: u64) -> bool {
        let allowed = self.allowed.load(Ordering::Relaxed);
        state.pressed || state.chunks.touched() > allowed || self.is_over(state, sixteenths)
    }

    /// Whether pages alone take more than this many sixteenths.
    fn is_over(&self, state: &State, sixteenths: u64) -> bool {
        let stays = state.chunks.held().saturating_sub(state.copying);
        stays > self.allowed.load(Ordering::Relaxed) / 16 * sixteenths
    }

    /// Begins to copy the oldest page and those that follow it, side by side, at most `pages.len()`. Returns the first slot, and
    /// how many pages were decompressed to `pages`. [`Pool::end_copies`] must follow.
    pub fn begin_copies(&self, pages: &mut [PageBuf], free: &dyn FreeSlots) -> Option<(Slot, u32)> {
        let (first, count) = self.with(|state| {
            if !self.is_full(state, 14) {
                return None;
            }
            let mut dropped = 0;
            let first = loop {
                let slot = state.oldest;
                let entry = self.entry(u64::from(slot)).filter(|_| slot != NOBODY)?;
                if Slot::new(u64::from(slot)).is_some_and(|slot| free.is_free(slot)) {
                    if !self.drop_page(state, u64::from(slot), entry) {
                        return None;
                    }
                } else if self.is_below(u64::from(slot)) {
                    // Nothing needs to be copied. Where pages take less than they may, and chunks between them the rest, spans are emptied, by and by.
                    if dropped == DROPPED_A_LOOK || !self.is_over(state, 14) {
                        return None;
                    }
                    if !self.drop_oldest(state) {
                        self.unlist(state, slot);
                        self.list(state, slot);
                        return None;
                    }
                    state.pressed = false;
                    dropped += 1;
                } else if self.begin_copy(state, slot, entry) {
                    break slot;
                } else {
                    // The slot is being copied for another page: this page's turn comes later.
                    self.unlist(state, slot);
                    self.list(state, slot);
                    return None;
                }
            };
            state.pressed = false;
            let mut count = 1;
            while count < pages.len() as u32 && !(first + count).is_multiple_of(EXTENT_SLOTS as u32) {
                let slot = first + count;
                let is_listed = |entry: &&Entry| {
                    matches!(entry.word.place(), Some(Place::Chunk { .. }))
                        && Links::decode(entry.extra.load(Ordering::Relaxed)).listed
                };
                let Some(entry) = self.entry(u64::from(slot)).filter(is_listed) else { break };
                let is_free = Slot::new(u64::from(slot)).is_none_or(|slot| free.is_free(slot));
                // What is below already is not written once more: if that failed, the page would be nowhere.
                if is_free || self.is_below(u64::from(slot)) || !self.begin_copy(state, slot, entry) {
                    break;
                }
                count += 1;
            }
            state.copies.push((first.into(), count));
            Some((first, count))
        })?;
        let first = Slot::new(u64::from(first))?;
        for (slot, page) in (0..).map(|n| first.plus(n)).zip(pages).take(count as usize) {
            // A page that is gone, or was replaced by now, does not count as below when the copy ends.
            let _ = self.unpack(slot, page);
        }
        Some((first, count))
    }

    /// Whether no copy of these slots is under way.
    pub fn is_quiet(&self, is_there: &dyn Fn(Slot) -> bool) -> bool {
        let matters = |&(first, count): &(u64, u32)| (first..first + u64::from(count)).filter_map(Slot::new).any(is_there);
        self.with(|state| !state.copies.iter().any(matters))
    }

    /// Forgets the pages of `count` slots, which are no longer needed; their slots cannot be told from used ones now. Returns
    /// whether no copy of them is under way: if so, no copy begins until there is a page again.
    pub fn forget_all(&self, first: Slot, count: u32) -> bool {
        let slots = first.number()..first.number() + u64::from(count);
        self.with(|state| {
            let is_copied = |&(copied, count): &(u64, u32)| copied < slots.end && slots.start < copied + u64::from(count);
            // No slot is left out: each slot whose page goes is not found as freed again.
            let mut quiet = !state.copies.iter().any(is_copied);
            for number in slots.start..slots.end.min(state.end) {
                quiet &= self.entry(number).is_none_or(|entry| self.drop_page(state, number, entry));
            }
            quiet
        })
    }

    fn begin_copy(&self, state: &mut State, slot: u32, entry: &Entry) -> bool {
        let begun = entry.word.begin_copy();
        if begun {
            self.unlist(state, slot);
            state.copying += PAGE_SIZE as u64 / 2;
        }
        begun
    }

    /// The copies of `count` slots have ended; `well`: the tier below has them.
    pub fn end_copies(&self, first: Slot, count: u32, well: bool) {
        self.with(|state| {
            if let Some(index) = state.copies.iter().position(|&copy| copy == (first.number(), count)) {
                state.copies.swap_remove(index);
            }
            for number in first.number()..first.number() + u64::from(count) {
                let Some(entry) = self.entry(number) else { continue };
                state.copying -= PAGE_SIZE as u64 / 2;
                match entry.word.end_copy(well) {
                    CopyEnd::Moved(place) => {
                        self.counters.moved.fetch_add(1, Ordering::Relaxed);
                        self.forget(state, number, entry, place);
                    }
                    CopyEnd::Stays => {
                        let is_chunk = matches!(entry.word.place(), Some(Place::Chunk { .. }));
                        if is_chunk && !Links::decode(entry.extra.load(Ordering::Relaxed)).listed {
                            self.list(state, number as u32);
                        }
                    }
                }
            }
        });
    }
}
