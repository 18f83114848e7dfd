//! Which space an extent lies in, and where in it. The map of slots and the files both use this.
//!
//! Extents go round the spaces of an array. When a space comes or goes, the extents that exist stay where they are, and
//! later extents go round the changed set. Each such change is an **arrangement**: a set of spaces from an extent on.
//!
//! ```text
//!  extent      0 1 2 3 4 5 6 │ 7 8 9 …        a set of two spaces from extent 0, of three from extent 7
//!  space       0 1 0 1 0 1 0 │ 0 1 2 …
//!  number in   0 0 1 1 2 2 3 │ 4 3 0 …        goes on where the space's earlier extents end
//! ```
//!
//! # Protocol
//!
//! One thread at a time makes changes ([`Arrangements::arrange`]). Any thread, in a signal handler too, asks
//! ([`Arrangements::place_of`]) about extents that exist already. An entry is written before the count that makes it visible
//! (Release). It is changed afterwards only while no extent lies in it. So a thread that got a slot by a release of its page word
//! sees the arrangement that the slot lies in, and no lock is needed.
//!
//! # Room
//!
//! A change that leaves a space out only saves extents that would never be used. Such a change is dropped when the only room left
//! is what additions may need ([`Arrangements::can_leave_out`]). A space that comes where one has gone may still be in the set,
//! and then needs no change. So additions never lack room, however often spaces come and go.

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use alloc::boxed::Box;

/// Most spaces of an array at a time.
pub const SPACES_MAX: usize = if cfg!(loom) { 2 } else { 64 };
/// Most changes that leave a space out.
const OMISSIONS_MAX: usize = if cfg!(loom) { 1 } else { 32 };
/// Entries for the first arrangement, those that leave a space out, and those that add one. Without omissions between them, each
/// addition makes the set larger.
const ROOM: usize = 1 + OMISSIONS_MAX + SPACES_MAX;

/// A set of spaces, by number.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SpaceSet(u64);

impl SpaceSet {
    /// The spaces numbered below `count`, which is at most [`SPACES_MAX`].
    pub fn first(count: usize) -> SpaceSet {
        SpaceSet(u64::MAX.checked_shr(64 - count.min(SPACES_MAX) as u32).unwrap_or(0))
    }

    /// The set with `space` in it.
    #[must_use]
    pub fn with(self, space: usize) -> SpaceSet {
        SpaceSet(self.0 | 1 << space)
    }

    /// The set without `space`.
    #[must_use]
    pub fn without(self, space: usize) -> SpaceSet {
        SpaceSet(self.0 & !(1 << space))
    }

    /// Whether `space` is in the set.
    pub fn contains(self, space: usize) -> bool {
        self.0 >> space & 1 != 0
    }

    /// How many spaces are in the set.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether no space is in the set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The spaces in the set, in ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let next = |rest: &u64| Some(rest & rest.wrapping_sub(1)).filter(|rest| *rest != 0);
        core::iter::successors(Some(self.0).filter(|all| *all != 0), next).map(|rest| rest.trailing_zeros() as usize)
    }

    /// How many spaces of the set come before `space`.
    fn rank(self, space: usize) -> u32 {
        (self.0 & ((1 << space) - 1)).count_ones()
    }

    /// The space of the set that has this many before it.
    fn nth(self, rank: u32) -> usize {
        // The set is as it was at the start: 0, 1, 2 …
        if self.0 & self.0.wrapping_add(1) == 0 { rank as usize } else { self.iter().nth(rank as usize).unwrap_or(0) }
    }
}

/// Where an extent lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The space that it lies in.
    pub space: usize,
    /// Its number in that space.
    pub number: u32,
}

/// One arrangement: a set of spaces, from an extent on.
#[derive(Debug)]
struct Entry {
    first: AtomicU32,
    set: AtomicU64,
}

/// All arrangements of an array.
#[derive(Debug)]
pub struct Arrangements {
    list: Box<[Entry]>,
    count: AtomicU32,
}

impl Arrangements {
    /// Extents from the first one on go round the spaces of `set`, which is not empty.
    pub fn new(set: SpaceSet) -> Arrangements {
        let entry = |n: usize| Entry { first: AtomicU32::new(0), set: AtomicU64::new(if n == 0 { set.0 } else { 0 }) };
        Arrangements { list: (0..ROOM).map(entry).collect(), count: AtomicU32::new(1) }
    }

    fn entry(&self, at: usize) -> (u32, SpaceSet) {
        let entry = &self.list[at];
        (entry.first.load(Ordering::Relaxed), SpaceSet(entry.set.load(Ordering::Relaxed)))
    }

    fn last(&self) -> usize {
        // Acquire: pairs with the Release in `arrange`, so that the entries below are whole.
        self.count.load(Ordering::Acquire) as usize - 1
    }

    /// The spaces that new extents go round now.
    pub fn current(&self) -> SpaceSet {
        self.entry(self.last()).1
    }

    /// Where `extent`, which exists or is about to be added, lies.
    pub fn place_of(&self, extent: u32) -> Place {
        let mut at = self.last();
        let (mut first, mut set) = self.entry(at);
        while first > extent {
            at -= 1;
            (first, set) = self.entry(at);
        }
        let (turn, count) = (extent - first, set.len().max(1) as u32);
        let space = set.nth(turn % count);
        Place { space, number: turn / count + if at == 0 { 0 } else { self.extents_before(at, space) } }
    }

    /// How many extents of `space` lie in the arrangements before `at`.
    fn extents_before(&self, at: usize, space: usize) -> u32 {
        (0..at).map(|n| self.part(n, space, self.entry(n + 1).0).len() as u32).sum()
    }

    /// The extents of `space` in arrangement `at`, which ends at `end`.
    fn part(&self, at: usize, space: usize, end: u32) -> impl ExactSizeIterator<Item = u32> + DoubleEndedIterator + use<> {
        let (first, set) = self.entry(at);
        let from = if set.contains(space) { first + set.rank(space) } else { end };
        (from..end.max(from)).step_by(set.len().max(1))
    }

    /// The extents of `space` among the first `extents`.
    pub fn extents_of(&self, space: usize, extents: u32) -> impl DoubleEndedIterator<Item = u32> {
        let last = self.last();
        let end = move |at: usize| if at == last { extents } else { self.entry(at + 1).0.min(extents) };
        (0..=last).flat_map(move |at| self.part(at, space, end(at)))
    }

    /// Whether a space may still be left out.
    pub fn can_leave_out(&self) -> bool {
        let (left, set) = (ROOM - 1 - self.last(), self.current());
        // Each of the other spaces may still come, one by one.
        set.len() > 1 && left > SPACES_MAX - (set.len() - 1)
    }

    /// Extents from `first` on, of which none exists yet, go round the spaces of `set`, which is not empty. One thread at a time.
    ///
    /// # Panics
    /// When there is no room, which [`Arrangements::can_leave_out`] prevents.
    pub fn arrange(&self, first: u32, set: SpaceSet) {
        let last = self.last();
        let at = if self.entry(last).0 == first { last } else { last + 1 };
        assert!(at < ROOM && !set.is_empty(), "{ROOM} arrangements, and then one of {set:?}");
        self.list[at].first.store(first, Ordering::Relaxed);
        self.list[at].set.store(set.0, Ordering::Relaxed);
        self.count.store(at as u32 + 1, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    fn set(spaces: &[usize]) -> SpaceSet {
        spaces.iter().fold(SpaceSet::default(), |set, &space| set.with(space))
    }

    #[test]
    fn sets() {
        assert_eq!(SpaceSet::first(3), set(&[0, 1, 2]));
        assert_eq!((SpaceSet::first(0).len(), SpaceSet::first(64).len(), SpaceSet::first(99).len()), (0, 64, 64));
        let some = set(&[1, 5, 63]);
        assert_eq!(some.iter().collect::<Vec<_>>(), [1, 5, 63]);
        assert_eq!([0, 1, 2].map(|rank| some.nth(rank)), [1, 5, 63]);
        assert_eq!([1, 5, 63].map(|space| some.rank(space)), [0, 1, 2]);
        assert_eq!(some.without(5), set(&[1, 63]));
        assert_eq!(SpaceSet::default().iter().count(), 0);
    }

    #[test]
    fn the_picture_in_the_head() {
        let all = Arrangements::new(SpaceSet::first(2));
        all.arrange(7, SpaceSet::first(3));
        let places: Vec<_> = (0..10).map(|e| all.place_of(e)).map(|p| (p.space, p.number)).collect();
        assert_eq!(places, [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (0, 4), (1, 3), (2, 0)]);
    }

    /// However spaces come and go: each extent has a place of its own, the extents of each space are numbered without gaps, and
    /// no extent ever moves.
    #[test]
    fn no_two_extents_share_a_place_and_none_moves() {
        let (seeds, changes) = if cfg!(miri) { (2, 8) } else { (200, 60) };
        for seed in 0..seeds {
            let mut dice: u64 = seed;
            let mut below = |n: u64| {
                dice = dice.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                (dice >> 33) % n
            };
            let all = Arrangements::new(SpaceSet::first(1 + below(5) as usize));
            let mut places = Vec::new();
            for _ in 0..changes {
                for _ in 0..below(9) {
                    places.push(all.place_of(places.len() as u32));
                }
                let space = below(SPACES_MAX as u64) as usize;
                let now = all.current();
                if !now.contains(space) {
                    all.arrange(places.len() as u32, now.with(space));
                } else if all.can_leave_out() {
                    all.arrange(places.len() as u32, now.without(space));
                }
            }
            let again: Vec<_> = (0..places.len() as u32).map(|e| all.place_of(e)).collect();
            assert_eq!(again, places, "seed {seed}");
            let different: BTreeSet<_> = places.iter().map(|p| (p.space, p.number)).collect();
            assert_eq!(different.len(), places.len(), "seed {seed}");
            for space in 0..SPACES_MAX {
                let mine: Vec<u32> = all.extents_of(space, places.len() as u32).collect();
                let expected: Vec<u32> = (0..places.len() as u32).filter(|&e| places[e as usize].space == space).collect();
                assert_eq!(mine, expected, "seed {seed}");
                let back: Vec<u32> = all.extents_of(space, places.len() as u32).rev().collect();
                assert!(back.iter().rev().eq(expected.iter()), "seed {seed}");
                assert!(expected.iter().zip(0..).all(|(&e, n)| places[e as usize].number == n), "seed {seed}");
            }
        }
    }

    /// Each of `SPACES_MAX` spaces can be added after any number of changes.
    #[test]
    fn additions_never_want_for_room() {
        let all = Arrangements::new(SpaceSet::first(1));
        let mut extents = 0;
        let mut arrange = |set| {
            extents += 1;
            all.arrange(extents, set);
        };
        for n in 0..if cfg!(miri) { 150 } else { 1000 } {
            let space = 1 + n % (SPACES_MAX - 1);
            if !all.current().contains(space) {
                arrange(all.current().with(space));
            }
            if all.can_leave_out() {
                arrange(all.current().without(space));
            }
        }
        assert!(!all.can_leave_out());
        assert_eq!(all.current().len(), SPACES_MAX);
    }
}
