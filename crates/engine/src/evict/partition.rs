//! Partitions: which granules hold resident pages, in sharded lists (MAGE §4.2.2).
//!
//! The unit of a list is a granule (2 MiB of addresses), not a page: the fault path
//! touches a list only when a granule gets its first resident page, by one push without a lock;
//! an evictor walks the granules of a partition round and round like the hand of a
//! clock, and the words of a granule in the order of their addresses. So victims that lie side by side are found side by side, and a
//! fault never writes a shared list (coordination avoidance, P3). Why not a list of pages: ARCHITECTURE.md.
//!
//! # Protocol
//!
//! * `listed` of a granule is true when it is on a list or about to be pushed. Who turns it true pushes.
//! * Lists are linked through `Granule::next`, which belongs to whoever pushes (until the push) and
//!   then to the holder of the partition's `busy` flag.
//! * An evictor that finds no page to evict or wait for unlinks the granule: it first sets `listed` false, **then**
//!   looks at the words again. A fault first makes its page resident, **then** looks at `listed`. Both are SeqCst, so
//!   one of the two sees the other: no resident page is forgotten.

use crate::Engine;
use crate::traits::{Backend, Clock, Kernel, Policy};
use core::sync::atomic::{Ordering, fence};
use farshore_core::page::{GranuleId, Page};
use farshore_core::sync::plain::{AtomicBool, AtomicU32, AtomicU64};
use farshore_core::sync::{Futex, Padded};
use farshore_core::table::{Granule, GranuleRef, PageTable};
use farshore_core::word::State;

/// One list of granules.
#[derive(Debug, Default)]
pub struct Partition {
    /// Head of the stack of newly listed granules (id + 1; 0: none).
    incoming: Padded<AtomicU64>,
    /// Held by the evictor that walks the list. Tried, never waited for.
    busy: Padded<AtomicBool>,
    /// The granule *before* the hand in the ring (id + 1; 0: the ring is empty). Under `busy`.
    before_hand: AtomicU64,
    /// Page of the granule at the hand that is looked at next. Under `busy`.
    index: AtomicU32,
}

/// A partition that this evictor walks; lets go when dropped.
#[derive(Debug)]
pub struct Walk<'e> {
    partition: &'e Partition,
    table: &'e PageTable,
}

fn id_of(link: u64) -> Option<GranuleId> {
    link.checked_sub(1).map(GranuleId)
}

fn link_to(id: GranuleId) -> u64 {
    id.0 + 1
}

impl Partition {
    /// An empty partition.
    pub fn new() -> Partition {
        Partition::default()
    }

    fn push(&self, id: GranuleId, granule: &Granule) {
        let mut head = self.incoming.load(Ordering::Relaxed);
        loop {
            granule.next.store(head, Ordering::Relaxed);
            // Release: the link is seen by the evictor that takes the stack (its swap is Acquire).
            match self.incoming.compare_exchange_weak(head, link_to(id), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(seen) => head = seen,
            }
        }
    }

    /// Starts to walk, unless another evictor does.
    pub fn walk<'e>(&'e self, table: &'e PageTable) -> Option<Walk<'e>> {
        if self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        let walk = Walk { partition: self, table };
        walk.take_incoming();
        Some(walk)
    }
}

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        self.partition.busy.store(false, Ordering::Release);
    }
}

impl<'e> Walk<'e> {
    fn granule(&self, link: u64) -> Option<GranuleRef<'e>> {
        id_of(link).and_then(|id| self.table.granule_even_absent(id))
    }

    /// Links newly listed granules into the ring, behind the hand: they are the last to be looked at.
    fn take_incoming(&self) {
        let mut link = self.partition.incoming.swap(0, Ordering::Acquire);
        while let Some(g) = self.granule(link) {
            let next_in_stack = g.granule.next.load(Ordering::Relaxed);
            match self.granule(self.partition.before_hand.load(Ordering::Relaxed)) {
                None => g.granule.next.store(link, Ordering::Relaxed),
                Some(before) => {
                    g.granule.next.store(before.granule.next.load(Ordering::Relaxed), Ordering::Relaxed);
                    before.granule.next.store(link, Ordering::Relaxed);
                }
            }
            self.partition.before_hand.store(link, Ordering::Relaxed);
            link = next_in_stack;
        }
    }

    /// The granule at the hand, and the page of it to look at next.
    pub fn hand(&self) -> Option<(GranuleRef<'e>, usize)> {
        let before = self.granule(self.partition.before_hand.load(Ordering::Relaxed))?;
        let here = self.granule(before.granule.next.load(Ordering::Relaxed))?;
        Some((here, self.partition.index.load(Ordering::Relaxed) as usize))
    }

    /// The hand stays in its granule, at page `index`.
    pub fn stay_at(&self, index: usize) {
        self.partition.index.store(index as u32, Ordering::Relaxed);
    }

    /// The hand moves to the next granule. Returns false when it came round to the same one.
    pub fn advance(&self) -> bool {
        self.partition.index.store(0, Ordering::Relaxed);
        let Some(before) = self.granule(self.partition.before_hand.load(Ordering::Relaxed)) else { return false };
        let here = before.granule.next.load(Ordering::Relaxed);
        let moved = Some(before.id) != id_of(here);
        self.partition.before_hand.store(here, Ordering::Relaxed);
        moved
    }

    /// Takes the granule at the hand off the list, if no page of it is resident; the hand moves on.
    pub fn unlist(&self) {
        let Some(before) = self.granule(self.partition.before_hand.load(Ordering::Relaxed)) else { return };
        let Some(here) = self.granule(before.granule.next.load(Ordering::Relaxed)) else { return };
        self.partition.index.store(0, Ordering::Relaxed);
        let next = here.granule.next.load(Ordering::Relaxed);
        if before.id == here.id {
            self.partition.before_hand.store(0, Ordering::Relaxed);
        } else {
            before.granule.next.store(next, Ordering::Relaxed);
        }
        here.granule.listed.store(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // See the protocol: look once more, now that a fault would list it anew.
        let populated = here.words.iter().any(|w| matches!(w.load().state(), State::Resident | State::Busy));
        if populated && !here.granule.listed.swap(true, Ordering::SeqCst) {
            self.partition.push(here.id, here.granule);
        }
    }
}

impl<K: Kernel, B: Backend, P: Policy, C: Clock, F: Futex> Engine<K, B, P, C, F> {
    /// A page of the granule has become resident: puts the granule on a list unless it is on one.
    #[inline]
    pub(crate) fn list_granule(&self, granule: &Granule, page: Page, core: usize) {
        self.kernel.interleave();
        fence(Ordering::SeqCst);
        if !granule.listed.load(Ordering::SeqCst) && !granule.listed.swap(true, Ordering::SeqCst) {
            // MAGE §4.2.2: by the CPU that faults, so that lists fill evenly.
            self.partitions[core % self.partitions.len()].push(page.granule(), granule);
        }
    }
}
