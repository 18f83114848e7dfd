//! Transfers that are under way, and what the watcher sleeps on while there are none.
//!
//! # Protocol
//!
//! A thread notes its transfer in a place: a core has some of its own, so that cores do not write each other's lines, and beyond
//! these a few places of others are tried. A transfer that finds no place is not watched.
//!
//! The watcher says that it is *idle*, then looks at the places. A transfer takes its place, then looks whether the watcher is idle,
//! and wakes it. Both are SeqCst, so one of the two sees the other: no transfer hangs unseen.

use alloc::boxed::Box;
use core::sync::atomic::Ordering;
use farshore_core::limits::FRAME_CACHES;
use farshore_core::slots::SlotMap;
use farshore_core::sync::plain::{AtomicBool, AtomicU64};
use farshore_core::sync::{Futex, Padded};
use farshore_core::wait::Event;
use farshore_core::word::Slot;

/// Transfers that are watched at a time. Beyond this number, some are not watched.
const WATCHED: usize = FRAME_CACHES * PROBES;
/// Places of a core, in which its transfers look for a free one first; then they look at twice as many places of other
/// cores.
const PROBES: usize = 4;

/// Where a transfer that is under way is noted.
#[derive(Debug)]
struct Watched {
    /// When it began; 0: the place is free.
    since_ns: AtomicU64,
    slot: AtomicU64,
}

/// A transfer that is noted.
#[must_use]
#[derive(Debug)]
pub(crate) struct Transfer(Option<usize>);

/// See the module's head.
#[derive(Debug)]
pub(super) struct Transfers {
    places: Box<[Padded<Watched>]>,
    /// The watcher has something to look at.
    news: Event,
    /// The watcher sleeps until there is news: the thread that begins a transfer says so.
    idle: AtomicBool,
}

impl Transfers {
    /// None.
    pub(super) fn new() -> Transfers {
        let place = || Padded(Watched { since_ns: AtomicU64::new(0), slot: AtomicU64::new(0) });
        Transfers { places: (0..WATCHED).map(|_| place()).collect(), news: Event::new(), idle: AtomicBool::new(false) }
    }

    /// A transfer of the slots from `slot` on begins on `core`. What is read from the program's own files says nothing about swap
    /// spaces.
    pub(super) fn begin(&self, futex: &impl Futex, slot: Slot, now_ns: u64, core: usize) -> Transfer {
        if slot.is_of_file() {
            return Transfer(None);
        }
        let place = self.enter(slot, now_ns, core);
        if self.idle.load(Ordering::SeqCst) && self.idle.swap(false, Ordering::SeqCst) {
            self.news.signal(futex);
        }
        Transfer(place)
    }

    /// It has ended.
    pub(super) fn end(&self, transfer: Transfer) {
        if let Some(at) = transfer.0 {
            self.places[at].since_ns.store(0, Ordering::Release);
        }
    }

    /// Returns where the transfer is noted, if there is a place.
    fn enter(&self, slot: Slot, now_ns: u64, core: usize) -> Option<usize> {
        let own = core % FRAME_CACHES * PROBES;
        // If there are more threads than places, each waits for its own read.
        let shared = slot.number().wrapping_mul(0x9E37_79B9_7F4A_7C15) as usize >> 32;
        let all = (own..own + PROBES).chain((shared..shared + 2 * PROBES).map(|at| at % WATCHED));
        let place = { all }.find(|&at| {
            let since = &self.places[at].since_ns;
            // SeqCst: before the look at `idle`, as the watcher's store of it is before its look at the places.
            since.load(Ordering::Relaxed) == 0
                && since.compare_exchange(0, now_ns.max(1), Ordering::SeqCst, Ordering::Relaxed).is_ok()
        })?;
        self.places[place].slot.store(slot.number(), Ordering::Relaxed);
        Some(place)
    }

    /// The transfer of each space that takes longest: since when, and its slot.
    pub(super) fn longest(&self, slots: &SlotMap, each: &mut [Option<(u64, Slot)>]) {
        each.fill(None);
        for watched in &self.places {
            let since = watched.since_ns.load(Ordering::SeqCst);
            let Some(slot) = Slot::new(watched.slot.load(Ordering::Relaxed)).filter(|_| since != 0) else { continue };
            // Transfers of a forked child from its parent's space come last.
            let space = slots.space_of(slot).unwrap_or(each.len() - 1);
            if each[space].is_none_or(|(longest, _)| since < longest) {
                each[space] = Some((since, slot));
            }
        }
    }

    /// The watcher looks at the spaces, and whether it is to stop.
    pub(super) fn wake_watcher(&self, futex: &impl Futex) {
        self.news.signal(futex);
    }

    pub(super) fn watcher_sleeps(&self) -> bool {
        self.news.sleepers() > 0
    }

    /// To be called by the watcher before it looks at anything. Returns what it may sleep on.
    pub(super) fn prepare(&self) -> u32 {
        let prepared = self.news.prepare();
        // Stored first, so that a transfer that begins after the look wakes us.
        self.idle.store(true, Ordering::SeqCst);
        prepared
    }

    /// The watcher has looked; `busy`: it looks again soon, whatever begins.
    pub(super) fn note_look(&self, busy: bool) {
        self.idle.store(!busy, Ordering::SeqCst);
    }

    /// The watcher sleeps until there is news, or for this long.
    pub(super) fn sleep<F: Futex>(&self, futex: &F, prepared: u32, pause: Option<u64>) {
        self.news.sleep(futex, prepared, pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::NoFutex;
    use alloc::vec::Vec;

    #[test]
    fn the_longest_of_each_space_is_found() {
        let mut slots = SlotMap::new(None);
        slots.set_spaces(&[None, None]);
        let transfers = Transfers::new();
        let slot_in = |space: usize| slots.reserve_run_in(0, space, 1).expect("there is room").first;
        let (first, second, other) = (slot_in(0), slot_in(0), slot_in(1));
        let begun = [(second, 70), (first, 40), (other, 0)].map(|(slot, now)| transfers.begin(&NoFutex, slot, now, 3));
        let mut longest = [Some((1, first)); 3];
        transfers.longest(&slots, &mut longest);
        assert_eq!(longest, [Some((40, first)), Some((1, other)), None], "a transfer that began at 0 is under way all the same");
        let [_, of_first, of_other] = begun;
        transfers.end(of_first);
        transfers.end(of_other);
        transfers.longest(&slots, &mut longest);
        assert_eq!(longest, [Some((70, second)), None, None]);
    }

    #[test]
    fn transfers_without_a_place_are_not_noted_and_places_are_used_again() {
        let (transfers, slot) = (Transfers::new(), Slot::new(1).expect("a slot"));
        let begun: Vec<Transfer> = (0..4 * PROBES).map(|_| transfers.begin(&NoFutex, slot, 5, 0)).collect();
        let noted = begun.iter().filter(|transfer| transfer.0.is_some()).count();
        assert!((2 * PROBES..=3 * PROBES).contains(&noted), "{noted}: those of the core, and those that the slot's number names");
        begun.into_iter().for_each(|transfer| transfers.end(transfer));
        assert!(transfers.begin(&NoFutex, slot, 6, 0).0 == Some(0));
    }

    #[test]
    fn the_first_transfer_wakes_a_watcher_that_sleeps() {
        let (transfers, slot) = (Transfers::new(), Slot::new(1).expect("a slot"));
        let end = |prepared| {
            transfers.end(transfers.begin(&NoFutex, slot, 5, 0));
            transfers.news.happened_since(prepared)
        };
        let prepared = transfers.prepare();
        assert!(end(prepared), "the watcher may have looked before");
        let prepared = transfers.prepare();
        transfers.note_look(true);
        assert!(!end(prepared), "it looks again by itself");
        let prepared = transfers.prepare();
        transfers.note_look(false);
        assert!(end(prepared));
        let prepared = transfers.news.prepare();
        assert!(!end(prepared), "it was told");
    }
}
