//! Partitions: which granules hold resident pages, in sharded lists (MAGE §4.2.2).
//!
//! The unit of a list is a granule (2 MiB of addresses), not a page. The fault path touches a list only when a granule gets its
//! first resident page, by one push without a lock. An evictor walks the granules of a partition round and round like the hand of
//! a clock, and the words of a granule in the order of their addresses. So victims that lie side by side are found side by side,
//! and a fault never writes a shared list (coordination avoidance). `docs/src/decisions/0004-evictors-take-granules.md` says why
//! it is not a list of pages.
//!
//! # Which partition is next
//!
//! A partition's granules are those that a core touched first, so one partition may have a hundred times as many as another. Were
//! the partitions taken in turn, the hand of the small one would come by a hundred times as often, and pages there that are used
//! all the time would leave as often. So hands go round at about one pace: `passed` is how far a hand has come, in rounds (a
//! granule of `n` is 1/n of a round), and the partition whose hand is behind is next ([`Turns`]). Only at about one pace, because
//! evictors that look for victims in the same partitions write each other's cache lines: each evictor stays with its own
//! partitions until their hands go round twice as fast as another's. A partition that was empty begins where the foremost hand
//! is.
//!
//! # Protocol
//!
//! * `listed` of a granule is true when the granule is on a list or about to be pushed. The thread that turns it true
//!   pushes.
//! * Lists are linked through `Granule::next`. It belongs to the thread that pushes (until the push), and then to the
//!   holder of the partition's `busy` flag.
//! * An evictor that finds no page to evict or wait for unlinks the granule: it first sets `listed` false, **then** looks
//!   at the words again. A fault first makes its page resident, **then** looks at `listed`. Both are SeqCst, so one of
//!   the two sees the other: no resident page is forgotten.

use crate::Engine;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};
use farshore_core::page::{GranuleId, Page};
use farshore_core::seams::{Kernel, World};
use farshore_core::sync::Padded;
use farshore_core::sync::plain::{AtomicBool, AtomicU32, AtomicU64};
use farshore_core::table::{Granule, GranuleRef, PageTable};
use farshore_core::word::State;

/// One list of granules.
#[derive(Debug, Default)]
pub struct Partition {
    /// Head of the stack of newly listed granules (id + 1; 0: none).
    incoming: Padded<AtomicU64>,
    /// Held by the evictor that walks the list. Evictors try to take it, and never wait for it.
    busy: Padded<AtomicBool>,
    /// The granule *before* the hand in the ring (id + 1; 0: the ring is empty). Under `busy`.
    before_hand: AtomicU64,
    /// The page of the granule at the hand that is looked at next. Under `busy`.
    index: AtomicU32,
    /// Granules of the ring. Changed under `busy`.
    granules: AtomicU32,
    /// How far the hand has come, in rounds of [`ROUND`]. Changed under `busy`.
    passed: AtomicU64,
}

/// One round of a hand.
const ROUND: u64 = 1 << 32;
/// How long, in rounds of the foremost hand, an evictor remembers how far hands have come.
const REMEMBERED: u64 = 16 * ROUND;

/// Which partition is next, as one evictor sees it; no memory of another thread is written for it.
#[derive(Debug)]
pub(super) struct Turns {
    /// How far each hand had come when this evictor last began to compare them.
    since: Vec<u64>,
    /// The partitions in order: each one's key, and its number.
    order: Vec<(u64, u32)>,
}

impl Turns {
    pub fn new(partitions: usize) -> Turns {
        Turns { since: alloc::vec![0; partitions], order: Vec::with_capacity(partitions) }
    }

    /// Puts the partitions in order, the next one first, and returns how far the foremost hand has come. Partitions that are
    /// `own` come before others unless their hands go twice as fast; empty ones are last.
    pub fn order(&mut self, partitions: &[Partition], own: impl Fn(usize) -> bool) -> u64 {
        let passed = |partition: &Partition| partition.passed.load(Ordering::Relaxed);
        let foremost = partitions.iter().map(passed).max().unwrap_or(0);
        if partitions.iter().zip(&self.since).any(|(partition, since)| passed(partition) - since > REMEMBERED) {
            self.since.iter_mut().zip(partitions).for_each(|(since, partition)| *since = passed(partition));
        }
        self.order.clear();
        self.order.extend(partitions.iter().zip(&self.since).enumerate().map(|(at, (partition, since))| {
            let come = match (partition.is_empty(), partition.incoming.load(Ordering::Relaxed)) {
                // The first round of an own hand counts as nothing, its other rounds as half.
                (false, _) if own(at) => (passed(partition) - since).saturating_sub(ROUND) / 2,
                (false, _) => passed(partition) - since + 1,
                // The partition begins where the foremost hand is.
                (true, 1..) => u64::from(!own(at)),
                (true, 0) => u64::MAX,
            };
            (come, at as u32)
        }));
        self.order.sort_unstable();
        foremost
    }

    /// The partition that is `nth` in order.
    pub fn at(&self, nth: usize) -> usize {
        self.order[nth].1 as usize
    }
}

/// A partition that this evictor walks; dropping it lets the partition go.
#[derive(Debug)]
pub struct Walk<'e> {
    partition: &'e Partition,
    table: &'e PageTable,
    /// The most that the hand is said to have come: one round in a walk, however often it comes by a granule that is alone.
    passed_most: u64,
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
            // Release: the evictor that takes the stack (its swap is Acquire) sees the link.
            match self.incoming.compare_exchange_weak(head, link_to(id), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(seen) => head = seen,
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.granules.load(Ordering::Relaxed) == 0
    }

    /// Starts to walk, unless another evictor does. If the partition was empty its hand begins at `foremost`.
    pub fn walk<'e>(&'e self, table: &'e PageTable, foremost: u64) -> Option<Walk<'e>> {
        if self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        if self.is_empty() {
            self.passed.fetch_max(foremost, Ordering::Relaxed);
        }
        let walk = Walk { partition: self, table, passed_most: self.passed.load(Ordering::Relaxed) + ROUND };
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
            self.partition.granules.fetch_add(1, Ordering::Relaxed);
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
        let granules = u64::from(self.partition.granules.load(Ordering::Relaxed).max(1));
        let passed = self.partition.passed.load(Ordering::Relaxed) + ROUND / granules;
        self.partition.passed.store(passed.min(self.passed_most), Ordering::Relaxed);
        self.partition.before_hand.store(here, Ordering::Relaxed);
        moved
    }

    /// Takes the granule at the hand off the list, if no page of it is resident; the hand moves on.
    pub fn unlist(&self) {
        let Some(before) = self.granule(self.partition.before_hand.load(Ordering::Relaxed)) else { return };
        let Some(here) = self.granule(before.granule.next.load(Ordering::Relaxed)) else { return };
        self.partition.index.store(0, Ordering::Relaxed);
        let next = here.granule.next.load(Ordering::Relaxed);
        self.partition.granules.fetch_sub(1, Ordering::Relaxed);
        if before.id == here.id {
            self.partition.before_hand.store(0, Ordering::Relaxed);
        } else {
            before.granule.next.store(next, Ordering::Relaxed);
        }
        here.granule.listed.store(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // See the protocol: look once more, now that a fault would list the granule anew.
        let populated = here.words.iter().any(|w| matches!(w.load().state(), State::Resident | State::Busy));
        if populated && !here.granule.listed.swap(true, Ordering::SeqCst) {
            self.partition.push(here.id, here.granule);
        }
    }
}

/// All partitions of an engine, one for each core; the pages on a core's list get that core's slots.
#[derive(Debug)]
pub(crate) struct Partitions(Box<[Partition]>);

impl Partitions {
    /// This many, all of them empty.
    pub(super) fn new(count: usize) -> Partitions {
        Partitions((0..count).map(|_| Partition::new()).collect())
    }

    /// The partitions, to walk.
    pub(crate) fn all(&self) -> &[Partition] {
        &self.0
    }

    /// A page of the granule has become resident: puts the granule on a list unless it is on one already.
    #[inline]
    pub(crate) fn list(&self, granule: &Granule, page: Page, core: usize) {
        fence(Ordering::SeqCst);
        if !granule.listed.load(Ordering::SeqCst) && !granule.listed.swap(true, Ordering::SeqCst) {
            // MAGE §4.2.2: on the list of the CPU that faults, so that lists fill evenly.
            self.0[core % self.0.len()].push(page.granule(), granule);
        }
    }
}

impl<W: World> Engine<W> {
    /// A page of the granule has become resident.
    #[inline]
    pub(crate) fn list_granule(&self, granule: &Granule, page: Page, core: usize) {
        self.kernel.interleave();
        self.evictors.lists.list(granule, page, core);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_core::limits::GRANULE_PAGES;
    use farshore_core::page::PageRange;

    const FIRST: u64 = 0x10_0000;

    fn list(partition: &Partition, table: &PageTable, granules: core::ops::Range<u64>) {
        for number in granules {
            let start = Page(FIRST * GRANULE_PAGES as u64).plus(number * GRANULE_PAGES as u64);
            table.add(PageRange { start, end: start.plus(GRANULE_PAGES as u64) });
            let g = table.granule(start.granule()).unwrap();
            g.granule.listed.store(true, Ordering::SeqCst);
            partition.push(g.id, g.granule);
        }
    }

    /// Two partitions of this many granules each, and evictors that look after one of them or after neither.
    struct Two(PageTable, [Partition; 2], [Turns; 3]);

    const NEITHER: usize = 2;

    impl Two {
        fn new(granules: [u64; 2]) -> Two {
            let (table, partitions) = (PageTable::new(), [Partition::new(), Partition::new()]);
            list(&partitions[0], &table, 0..granules[0]);
            list(&partitions[1], &table, granules[0]..granules[0] + granules[1]);
            Two(table, partitions, [Turns::new(2), Turns::new(2), Turns::new(2)])
        }

        /// One evictor's turn: which partition it walks; its hand passes `steps` granules.
        fn turn(&mut self, evictor: usize, steps: usize) -> usize {
            let Two(table, partitions, turns) = self;
            let foremost = turns[evictor].order(partitions, |at| at == evictor);
            let at = turns[evictor].at(0);
            let walk = partitions[at].walk(table, foremost).unwrap();
            for _ in 0..steps {
                walk.advance();
            }
            at
        }
    }

    #[test]
    fn the_hand_of_a_small_one_goes_twice_as_fast_at_most() {
        let mut two = Two::new([2, 198]);
        let mut passed = [0; 2];
        for n in 0..100_000 {
            passed[two.turn(n % 2, 2)] += 2;
        }
        let rounds = [passed[0] as f64 / 2.0, passed[1] as f64 / 198.0];
        assert!((1.5..2.3).contains(&(rounds[0] / rounds[1])), "{rounds:?} rounds");
    }

    #[test]
    fn one_evictor_for_all_keeps_one_pace() {
        let mut two = Two::new([2, 198]);
        let mut passed = [0; 2];
        for _ in 0..100_000 {
            passed[two.turn(NEITHER, 2)] += 2;
        }
        let rounds = [passed[0] as f64 / 2.0, passed[1] as f64 / 198.0];
        assert!((rounds[0] - rounds[1]).abs() < 3.0, "{rounds:?} rounds");
    }

    #[test]
    fn evictors_stay_with_their_own_while_hands_are_about_as_fast() {
        let mut two = Two::new([150, 100]);
        for n in 0..100_000 {
            assert_eq!(two.turn(n % 2, 2), n % 2);
        }
    }

    #[test]
    fn one_that_was_empty_has_nothing_to_catch_up_with() {
        let mut two = Two::new([10, 0]);
        for _ in 0..500 {
            assert_eq!(two.turn(1, 1), 0);
        }
        list(&two.1[1], &two.0, 10..20);
        let turns = (0..1000).filter(|_| two.turn(NEITHER, 1) == 1).count();
        assert!((480..=520).contains(&turns), "{turns} of 1000 turns");
    }

    #[test]
    fn a_walk_is_one_round_at_most() {
        let mut two = Two::new([1, 10]);
        assert_eq!(two.turn(1, 1), 1);
        assert_eq!(two.turn(NEITHER, 64), 0, "nothing was found in the only granule");
        let others = (0..).take_while(|_| two.turn(NEITHER, 1) == 1).count();
        assert!((8..=12).contains(&others), "then it waits for one round of the other, not {others} of 10 granules");
    }

    #[test]
    fn what_is_taken_off_is_not_counted() {
        let table = PageTable::new();
        let partition = Partition::new();
        list(&partition, &table, 0..3);
        let walk = partition.walk(&table, 0).unwrap();
        for left in [2, 1, 0] {
            walk.unlist();
            assert_eq!(partition.granules.load(Ordering::Relaxed), left);
        }
        assert!(walk.hand().is_none() && partition.is_empty());
    }
}
