//! Partitions: which granules hold resident pages, in sharded lists (MAGE §4.2.2).
//!
//! The unit of a list is a granule (2 MiB of addresses), not a page. The fault path touches a list only when a granule gets its
//! first resident page, by one push without a lock. An evictor walks the granules of a partition round and round like the hand of
//! a clock, and the words of a granule in the order of their addresses. So victims that lie side by side are found side by side,
//! and a fault never writes a shared list (coordination avoidance). `docs/src/decisions/0004-evictors-take-granules.md` says why
//! it is not a list of pages.
//!
//! # Two hands
//!
//! A ring is in order of age: the order in which its granules were listed, or were last passed over. It has two hands ([`Hand`]). The forward one is
//! at the oldest granule, and what it passes over becomes the newest. The backward one begins at the newest and goes towards the oldest; it
//! leaves the order as it is, and begins anew when it has come round. [`super::hands`] says which of the two finds the victims of a batch.
//!
//! # Which partition is next
//!
//! A partition's granules are those that a core touched first, so one partition may have a hundred times as many as another, and all of them may be older. Were
//! the partitions taken in turn, the hands of the small one would come by a hundred times as often, and pages there that are used
//! all the time would leave as often.
//!
//! **Forward hands** go in the order of age over all partitions: `newest_at` of a granule says when it was listed or passed over, in units of [`TIME`], and the
//! partition whose oldest granule is the oldest of all is next. An evictor that finds it in another's hands takes the next one.
//!
//! **Backward hands** go round at about one pace: `passed` is how far the two hands of a partition have come together, in rounds (a
//! granule of `n` is 1/n of a round), and the partition whose hands are behind is next ([`Turns`]). A partition that was empty begins where the foremost hand
//! is.
//!
//! Both only about so, because evictors that look for victims in the same partitions write each other's cache lines: each evictor stays with its own
//! partitions until another's oldest granule is twice as old, or their hands go round twice as fast as another's.
//!
//! # Protocol
//!
//! * `listed` of a granule is true when the granule is on a list or about to be pushed. The thread that turns it true
//!   pushes.
//! * The time at which a list's oldest granule became the newest (`oldest_at`) is a hint: who looks may see that of a moment ago.
//! * Lists are linked through `Granule::next`, rings through `Granule::previous` too. They belong to the thread that pushes (until the push), and then to the
//!   holder of the partition's `busy` flag.
//! * An evictor that finds no page to evict or wait for unlinks the granule: it first sets `listed` false, **then** looks
//!   at the words again. A fault first makes its page resident, **then** looks at `listed`. Both are SeqCst, so one of
//!   the two sees the other: no resident page is forgotten.

use crate::Engine;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};
use farshore_core::page::{GranuleId, Page};
use farshore_core::seams::{Clock, Kernel, World};
use farshore_core::sync::Padded;
use farshore_core::sync::plain::{AtomicBool, AtomicU32, AtomicU64};
use farshore_core::table::{Granule, GranuleRef, PageTable};
use farshore_core::word::State;

/// One list of granules.
#[derive(Debug, Default)]
pub struct Partition {
    /// Newly listed granules.
    incoming: Padded<Incoming>,
    /// Held by the evictor that walks the list. Evictors try to take it, and never wait for it.
    busy: Padded<AtomicBool>,
    /// The newest granule of the ring (id + 1; 0: the ring is empty); the oldest one, at which the forward hand is, comes next. Under `busy`.
    newest: AtomicU32,
    /// The granule at which the backward hand is (id + 1; 0: it begins at the newest). Under `busy`.
    backward: AtomicU32,
    /// The page that each hand looks at next, in the granule at which it is. Under `busy`.
    index: [AtomicU32; 2],
    /// Granules of the ring. Changed under `busy`.
    granules: AtomicU32,
    /// When the oldest granule of the ring became the newest.
    oldest_at: AtomicU32,
    /// How far the hands have come, in rounds of [`ROUND`]. Changed under `busy`.
    passed: AtomicU64,
}

/// A stack of granules. Faults write it, and nothing else of a partition.
#[derive(Debug, Default)]
struct Incoming {
    /// Its head (id + 1; 0: there is none).
    head: AtomicU32,
    /// When its oldest granule was listed.
    oldest_at: AtomicU32,
}

/// One of the two hands of a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hand {
    /// From the oldest granule towards the newest.
    Forward,
    /// From the newest towards the oldest.
    Backward,
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
    /// The partitions in order: each one's key, the next one that decides between equals, and its number.
    order: Vec<(u64, u64, u32)>,
}

/// Nanoseconds in a unit of time, as a power of two: four milliseconds. Time goes round after 208 days: a granule that has been the newest for longer is taken for a younger one.
const TIME: u32 = 22;
/// Others' granules are no older than an evictor's own if it is by less than this.
const LEAST_APART: u32 = 8;
/// A granule became the newest a moment after the evictor has looked at the clock, and not 208 days ago.
const MOMENT: u32 = 1 << 14;

/// The time of lists.
pub(super) fn time(now_ns: u64) -> u32 {
    (now_ns >> TIME) as u32
}

impl Turns {
    pub fn new(partitions: usize) -> Turns {
        Turns { since: alloc::vec![0; partitions], order: Vec::with_capacity(partitions) }
    }

    /// Puts the partitions in order for hands of this kind, the next one first, and returns how far the foremost hand has come. Partitions that are
    /// `own` come before others as far as the module says; empty ones are last.
    pub fn order(&mut self, partitions: &[Partition], with: Hand, now: u32, own: impl Fn(usize) -> bool) -> u64 {
        let passed = |partition: &Partition| partition.passed.load(Ordering::Relaxed);
        let foremost = partitions.iter().map(passed).max().unwrap_or(0);
        if partitions.iter().zip(&self.since).any(|(partition, since)| passed(partition) - since > REMEMBERED) {
            self.since.iter_mut().zip(partitions).for_each(|(since, partition)| *since = passed(partition));
        }
        self.order.clear();
        self.order.extend(partitions.iter().zip(&self.since).enumerate().map(|(at, (partition, since))| {
            let come = match (partition.is_empty(), partition.incoming.head.load(Ordering::Relaxed)) {
                // The first round of an own hand counts as nothing, its other rounds as half.
                (false, _) if own(at) => (passed(partition) - since).saturating_sub(ROUND) / 2,
                (false, _) => passed(partition) - since + 1,
                // The partition begins where the foremost hand is.
                (true, 1..) => u64::from(!own(at)),
                (true, 0) => u64::MAX,
            };
            let oldest_at = if partition.is_empty() { &partition.incoming.oldest_at } else { &partition.oldest_at };
            let age = match now.wrapping_sub(oldest_at.load(Ordering::Relaxed)) {
                age if age > u32::MAX - MOMENT => 0,
                age => age,
            };
            let young = match with {
                _ if come == u64::MAX => u64::MAX,
                Hand::Forward if own(at) => u64::from(u32::MAX) * 4 - (u64::from(age) + u64::from(LEAST_APART)) * 2,
                Hand::Forward => u64::from(u32::MAX) * 4 - u64::from(age),
                Hand::Backward => 0,
            };
            (young, come, at as u32)
        }));
        self.order.sort_unstable();
        foremost
    }

    /// The partition that is `nth` in order.
    pub fn at(&self, nth: usize) -> usize {
        self.order[nth].2 as usize
    }
}

/// A partition that this evictor walks, with one of its hands; dropping it lets the partition go.
#[derive(Debug)]
pub struct Walk<'e> {
    partition: &'e Partition,
    table: &'e PageTable,
    with: Hand,
    /// The time when it began.
    now: u32,
    /// The most that the hand is said to have come: one round in a walk, however often it comes by a granule that is alone.
    passed_most: u64,
}

fn id_of(link: u32) -> Option<GranuleId> {
    link.checked_sub(1).map(|id| GranuleId(id.into()))
}

fn link_to(id: GranuleId) -> u32 {
    // The table has fewer granules than that.
    id.0 as u32 + 1
}

impl Partition {
    /// An empty partition.
    pub fn new() -> Partition {
        Partition::default()
    }

    fn push(&self, id: GranuleId, granule: &Granule) {
        let mut head = self.incoming.head.load(Ordering::Relaxed);
        loop {
            granule.next.store(head, Ordering::Relaxed);
            // Release: the evictor that takes the stack (its swap is Acquire) sees the link.
            match self.incoming.head.compare_exchange_weak(head, link_to(id), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(seen) => head = seen,
            }
        }
    }

    /// The same for a granule that is listed now.
    fn push_new(&self, id: GranuleId, granule: &Granule, now: u32) {
        granule.newest_at.store(now, Ordering::Relaxed);
        if self.incoming.head.load(Ordering::Relaxed) == 0 {
            self.incoming.oldest_at.store(now, Ordering::Relaxed);
        }
        self.push(id, granule);
    }

    fn is_empty(&self) -> bool {
        self.granules.load(Ordering::Relaxed) == 0
    }

    /// Starts to walk, unless another evictor does. If the partition was empty its hands begin at `foremost`.
    pub fn walk<'e>(&'e self, table: &'e PageTable, with: Hand, now: u32, foremost: u64) -> Option<Walk<'e>> {
        if self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        if self.is_empty() {
            self.passed.fetch_max(foremost, Ordering::Relaxed);
        }
        let walk = Walk { partition: self, table, with, now, passed_most: self.passed.load(Ordering::Relaxed) + ROUND };
        walk.take_incoming();
        Some(walk)
    }
}

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        if let Some(oldest) = self.oldest() {
            self.partition.oldest_at.store(oldest.granule.newest_at.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.partition.busy.store(false, Ordering::Release);
    }
}

impl<'e> Walk<'e> {
    fn granule(&self, link: u32) -> Option<GranuleRef<'e>> {
        id_of(link).and_then(|id| self.table.granule_even_absent(id))
    }

    fn newest(&self) -> Option<GranuleRef<'e>> {
        self.granule(self.partition.newest.load(Ordering::Relaxed))
    }

    fn oldest(&self) -> Option<GranuleRef<'e>> {
        self.newest().and_then(|newest| self.granule(newest.granule.next.load(Ordering::Relaxed)))
    }

    /// Links newly listed granules into the ring, each as the newest.
    fn take_incoming(&self) {
        let mut link = self.oldest_first(self.partition.incoming.head.swap(0, Ordering::Acquire));
        while let Some(g) = self.granule(link) {
            let next_in_stack = g.granule.next.load(Ordering::Relaxed);
            let (newest, oldest) = match (self.newest(), self.oldest()) {
                (Some(newest), Some(oldest)) => (newest, oldest),
                _ => (g, g),
            };
            connect(&newest, &g);
            connect(&g, &oldest);
            self.partition.newest.store(link, Ordering::Relaxed);
            self.partition.granules.fetch_add(1, Ordering::Relaxed);
            link = next_in_stack;
        }
    }

    /// Turns a stack round, so that its oldest granule is first. While memory is plenty nobody takes the stack, so a program's whole memory may be on it
    /// when memory gets short.
    fn oldest_first(&self, mut link: u32) -> u32 {
        let mut turned = 0;
        while let Some(g) = self.granule(link) {
            let next = g.granule.next.swap(turned, Ordering::Relaxed);
            turned = link;
            link = next;
        }
        turned
    }

    fn index(&self) -> &'e AtomicU32 {
        &self.partition.index[self.with as usize]
    }

    /// The granule at the hand, and the page of it to look at next.
    pub fn hand(&self) -> Option<(GranuleRef<'e>, usize)> {
        let here = match self.with {
            Hand::Forward => self.oldest(),
            Hand::Backward => self.granule(self.partition.backward.load(Ordering::Relaxed)).or_else(|| self.newest()),
        };
        here.map(|here| (here, self.index().load(Ordering::Relaxed) as usize))
    }

    /// The hand stays in its granule, at page `index`.
    pub fn stay_at(&self, index: usize) {
        if let (Hand::Backward, Some((here, _))) = (self.with, self.hand()) {
            self.partition.backward.store(link_to(here.id), Ordering::Relaxed);
        }
        self.index().store(index as u32, Ordering::Relaxed);
    }

    /// The hand moves to the next granule on its way. Returns false when there is no other.
    pub fn advance(&self) -> bool {
        self.index().store(0, Ordering::Relaxed);
        let (Some((here, _)), Some(oldest)) = (self.hand(), self.oldest()) else { return false };
        let granules = u64::from(self.partition.granules.load(Ordering::Relaxed).max(1));
        let passed = self.partition.passed.load(Ordering::Relaxed) + ROUND / granules;
        self.partition.passed.store(passed.min(self.passed_most), Ordering::Relaxed);
        match self.with {
            Hand::Forward => {
                here.granule.newest_at.store(self.now, Ordering::Relaxed);
                self.partition.newest.store(link_to(here.id), Ordering::Relaxed);
            }
            Hand::Backward => self.partition.backward.store(behind(&here, &oldest), Ordering::Relaxed),
        }
        granules > 1
    }

    /// Takes the granule at the hand off the list, if no page of it is resident; the hand moves on.
    pub fn unlist(&self) {
        let (Some((here, _)), Some(newest), Some(oldest)) = (self.hand(), self.newest(), self.oldest()) else { return };
        let partition = self.partition;
        // The other hand may be here, too.
        if here.id == oldest.id {
            partition.index[Hand::Forward as usize].store(0, Ordering::Relaxed);
        }
        let backward = partition.backward.load(Ordering::Relaxed);
        if backward == link_to(here.id) || self.with == Hand::Backward {
            partition.backward.store(behind(&here, &oldest), Ordering::Relaxed);
            partition.index[Hand::Backward as usize].store(0, Ordering::Relaxed);
        }
        let (next, previous) = (here.granule.next.load(Ordering::Relaxed), here.granule.previous.load(Ordering::Relaxed));
        partition.granules.fetch_sub(1, Ordering::Relaxed);
        if newest.id == oldest.id {
            partition.newest.store(0, Ordering::Relaxed);
        } else {
            if here.id == newest.id {
                partition.newest.store(previous, Ordering::Relaxed);
            }
            if let (Some(previous), Some(next)) = (self.granule(previous), self.granule(next)) {
                connect(&previous, &next);
            }
        }
        here.granule.listed.store(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // See the protocol: look once more, now that a fault would list the granule anew.
        let populated = here.words.iter().any(|w| matches!(w.load().state(), State::Resident | State::Busy));
        if populated && !here.granule.listed.swap(true, Ordering::SeqCst) {
            self.partition.push_new(here.id, here.granule, self.now);
        }
    }
}

/// `next` comes after `previous`.
fn connect(previous: &GranuleRef<'_>, next: &GranuleRef<'_>) {
    previous.granule.next.store(link_to(next.id), Ordering::Relaxed);
    next.granule.previous.store(link_to(previous.id), Ordering::Relaxed);
}

/// Where the backward hand is when it leaves `here`.
fn behind(here: &GranuleRef<'_>, oldest: &GranuleRef<'_>) -> u32 {
    if here.id == oldest.id { 0 } else { here.granule.previous.load(Ordering::Relaxed) }
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
    pub(crate) fn list(&self, granule: &Granule, page: Page, core: usize, now_ns: impl FnOnce() -> u64) {
        fence(Ordering::SeqCst);
        if !granule.listed.load(Ordering::SeqCst) && !granule.listed.swap(true, Ordering::SeqCst) {
            // MAGE §4.2.2: on the list of the CPU that faults, so that lists fill evenly.
            self.0[core % self.0.len()].push_new(page.granule(), granule, time(now_ns()));
        }
    }
}

impl<W: World> Engine<W> {
    /// A page of the granule has become resident.
    #[inline]
    pub(crate) fn list_granule(&self, granule: &Granule, page: Page, core: usize) {
        self.kernel.interleave();
        self.evictors.lists.list(granule, page, core, || self.clock.now_ns());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_core::limits::GRANULE_PAGES;
    use farshore_core::page::PageRange;

    const FIRST: u64 = 0x10_0000;

    /// At this time.
    fn list_at(at: u32, partition: &Partition, table: &PageTable, granules: core::ops::Range<u64>) {
        for number in granules {
            let start = Page(FIRST * GRANULE_PAGES as u64).plus(number * GRANULE_PAGES as u64);
            table.add(PageRange { start, end: start.plus(GRANULE_PAGES as u64) });
            let g = table.granule(start.granule()).unwrap();
            g.granule.listed.store(true, Ordering::SeqCst);
            partition.push_new(g.id, g.granule, at);
        }
    }

    fn list(partition: &Partition, table: &PageTable, granules: core::ops::Range<u64>) {
        list_at(0, partition, table, granules);
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
            let foremost = turns[evictor].order(partitions, Hand::Backward, 0, |at| at == evictor);
            let at = turns[evictor].at(0);
            let walk = partitions[at].walk(table, Hand::Backward, 0, foremost).unwrap();
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

    /// The granules that a hand comes by in one round, as how many were listed before them.
    fn round(partition: &Partition, table: &PageTable, with: Hand) -> Vec<u64> {
        let walk = partition.walk(table, with, 0, 0).unwrap();
        let step = |_| {
            let (here, _) = walk.hand().unwrap();
            walk.advance();
            here.id.0 - FIRST
        };
        (0..walk.partition.granules.load(Ordering::Relaxed)).map(step).collect()
    }

    #[test]
    fn hands_go_from_the_oldest_and_from_the_newest() {
        let (table, partition) = (PageTable::new(), Partition::new());
        list(&partition, &table, 0..4);
        assert_eq!(round(&partition, &table, Hand::Forward), [0, 1, 2, 3], "all that there was before memory got short");
        assert_eq!(round(&partition, &table, Hand::Backward), [3, 2, 1, 0]);
        let walk = partition.walk(&table, Hand::Backward, 0, 0).unwrap();
        walk.advance();
        assert!(walk.advance(), "there are others");
        drop(walk);
        let walk = partition.walk(&table, Hand::Forward, 0, 0).unwrap();
        walk.advance();
        drop(walk);
        list(&partition, &table, 4..7);
        assert_eq!(
            round(&partition, &table, Hand::Forward),
            [1, 2, 3, 0, 4, 5, 6],
            "the newest is what was passed over or listed last"
        );
        let walk = partition.walk(&table, Hand::Backward, 0, 0).unwrap();
        assert_eq!(walk.hand().unwrap().0.id.0 - FIRST, 1, "the backward hand is where it was");
        walk.advance();
        assert_eq!(walk.hand().unwrap().0.id.0 - FIRST, 6, "it has come round, to what is the newest now");
    }

    #[test]
    fn a_hand_stays_where_it_is_while_the_other_takes_granules_off() {
        for (with, other) in [(Hand::Forward, Hand::Backward), (Hand::Backward, Hand::Forward)] {
            let (table, partition) = (PageTable::new(), Partition::new());
            list(&partition, &table, 0..4);
            let walk = partition.walk(&table, with, 0, 0).unwrap();
            walk.stay_at(77);
            let at = walk.hand().unwrap();
            drop(walk);
            let walk = partition.walk(&table, other, 0, 0).unwrap();
            (0..3).for_each(|_| walk.unlist());
            drop(walk);
            let walk = partition.walk(&table, with, 0, 0).unwrap();
            assert_eq!(walk.hand().map(|(here, index)| (here.id, index)), Some((at.0.id, 77)), "{with:?}");
            drop(walk);
            // Then the one at which it is.
            partition.walk(&table, other, 0, 0).unwrap().unlist();
            assert!(partition.is_empty());
            list(&partition, &table, 4..6);
            let walk = partition.walk(&table, with, 0, 0).unwrap();
            let (here, index) = walk.hand().unwrap();
            assert_eq!((here.id.0 - FIRST, index), (if with == Hand::Forward { 4 } else { 5 }, 0));
            assert!(
                walk.advance()
                    && !{
                        walk.unlist();
                        walk.advance()
                    }
            );
        }
    }

    #[test]
    fn forward_hands_go_by_age_over_all_partitions() {
        let (table, partitions, mut turns) = (PageTable::new(), [Partition::new(), Partition::new()], Turns::new(2));
        // A thread has filled memory on one core, and two go on from there on both.
        list_at(1000, &partitions[0], &table, 0..4);
        list_at(2000, &partitions[1], &table, 4..6);
        list_at(2100, &partitions[0], &table, 6..7);
        let mut round = |now: u32, own: usize| {
            let step = |_| {
                let foremost = turns.order(&partitions, Hand::Forward, now, |at| at == own);
                let walk = partitions[turns.at(0)].walk(&table, Hand::Forward, now, foremost).unwrap();
                let (here, _) = walk.hand().unwrap();
                walk.advance();
                here.id.0 - FIRST
            };
            (0..7).map(step).collect::<Vec<_>>()
        };
        const ALONE: usize = 2;
        assert_eq!(round(3000, ALONE), [0, 1, 2, 3, 4, 5, 6]);
        let mut at = |now: u32, own: usize| {
            turns.order(&partitions, Hand::Forward, now, |at| at == own);
            turns.at(0)
        };
        assert_eq!((at(4000, 0), at(4000, 1)), (0, 1), "each stays with its own where they are about as old");
        let foremost = turns.order(&partitions, Hand::Forward, 5000, |_| true);
        let walk = partitions[1].walk(&table, Hand::Forward, 5000, foremost).unwrap();
        (0..2).for_each(|_| _ = walk.advance());
        drop(walk);
        let mut at = |now: u32, own: usize| {
            turns.order(&partitions, Hand::Forward, now, |at| at == own);
            turns.at(0)
        };
        assert_eq!((at(5000, 1), at(6000, 1), at(7100, 1)), (0, 0, 1), "and goes to others that are twice as old");
        assert_eq!(time(5 << TIME), 5);
    }

    #[test]
    fn what_lies_for_months_is_the_oldest_and_what_has_just_come_is_not() {
        let (table, partitions, mut turns) = (PageTable::new(), [Partition::new(), Partition::new()], Turns::new(2));
        let day = time(86_400_000_000_000);
        list_at(0, &partitions[0], &table, 0..1);
        list_at(200 * day, &partitions[1], &table, 1..2);
        let mut first = |now: u32| {
            turns.order(&partitions, Hand::Forward, now, |_| false);
            turns.at(0)
        };
        assert_eq!((first(200 * day), first(200 * day + 1)), (0, 0));
        // The evictor looked at the clock before that.
        assert_eq!(first(200 * day - 1), 0);
    }

    #[test]
    fn the_order_is_that_of_a_plain_list() {
        let (table, partition, mut rng) = (PageTable::new(), Partition::new(), 7_u64);
        let mut below = |most: u64| {
            rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (rng >> 33) % most
        };
        // Granules from the oldest to the newest, and where the backward hand is.
        let (mut plain, mut backward, mut listed) = (Vec::<u64>::new(), None::<u64>, 0);
        for _ in 0..if cfg!(miri) { 200 } else { 5000 } {
            let new = below(3) * u64::from(plain.len() < 12);
            list(&partition, &table, listed..listed + new);
            plain.extend(listed..listed + new);
            listed += new;
            let with = if below(2) == 0 { Hand::Forward } else { Hand::Backward };
            let walk = partition.walk(&table, with, 0, 0).unwrap();
            for _ in 0..below(4) {
                let place = match with {
                    Hand::Forward => 0,
                    Hand::Backward => {
                        backward.and_then(|at| plain.iter().position(|&one| one == at)).unwrap_or(plain.len().saturating_sub(1))
                    }
                };
                assert_eq!(walk.hand().map(|(here, _)| here.id.0 - FIRST), plain.get(place).copied());
                if plain.is_empty() {
                    break;
                }
                let before = |place: usize| place.checked_sub(1).map(|place| plain[place]);
                let unlists = below(3) == 0;
                if with == Hand::Backward || (unlists && backward == Some(plain[place])) {
                    backward = before(place);
                }
                if unlists {
                    plain.remove(place);
                    walk.unlist();
                } else {
                    if with == Hand::Forward {
                        plain.rotate_left(1);
                    }
                    assert_eq!(walk.advance(), plain.len() > 1);
                }
            }
            assert_eq!(partition.granules.load(Ordering::Relaxed) as usize, plain.len());
        }
        assert!(listed > 100);
    }

    #[test]
    fn what_is_taken_off_is_not_counted() {
        let table = PageTable::new();
        let partition = Partition::new();
        list(&partition, &table, 0..3);
        let walk = partition.walk(&table, Hand::Forward, 0, 0).unwrap();
        for left in [2, 1, 0] {
            walk.unlist();
            assert_eq!(partition.granules.load(Ordering::Relaxed), left);
        }
        assert!(walk.hand().is_none() && partition.is_empty());
    }
}
