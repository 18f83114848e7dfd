//! How much of the memory limit a pool is worth, decided while the program runs (`ram:auto`).
//!
//! ```text
//!  ├─ frames ─┤├── the pool's pages: ratio × its memory ──┤├── in the spaces below ──▶
//!             0                                                             depth
//! ```
//!
//! A page that leaves gets a *stamp*, and is *away* until somebody fetches it. Its *depth* is the number of pages that have left after it and are away: so much more
//! memory would have kept it (Mattson et al., 1970; Linux' refault distance, `mm/workingset.c`). Pages of one age are counted together, so a depth is a sum over at most
//! [`CLASSES`] numbers, and takes no lock.
//!
//! How many fetches came from which depth says what another border between frames and pool would have cost ([`Seen::cost`]): what more frames hold costs nothing, what the
//! pool reaches costs a decompression, what lies deeper costs a read below. Of pages just inside the frames nothing is seen, so fewer frames are taken to cost what the
//! first pages behind them do. That holds for small steps, and so the border moves by one at a time.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use farshore_core::limits::PAGE_SIZE;

/// The memory that may be used is divided into so many units …
const UNITS: u64 = 16;
/// … of which the pool gets at most these.
const UNITS_MAX: u64 = 14;
/// Pages of a unit at least: with fewer, chance decides.
const UNIT_MIN: u64 = 64;
/// Ages that are told apart, and how many of them one unit has.
const CLASSES: usize = 256;
const CLASSES_A_UNIT: u64 = 4;
/// Depths that are told apart, in units. Deeper pages count with the last.
const DEPTHS: usize = 64;
/// Stages have a tenth of memory at most: depths that are seen only in part.
const UNSEEN: usize = 2;
/// Fetches that a decision rests on at least.
const FETCHES_MIN: f64 = 128.0;
/// The part of what is paid now that another border must save: a twentieth.
const GAIN_MIN: f64 = 0.05;
/// What each fault and the eviction that it brings about take besides, ns (measured with `--swap ram`, one thread).
const FAULT_NS: f64 = 8_000.0;
/// What a read below takes until one was measured, ns.
const BELOW_NS: f64 = 80_000.0;
/// The same for a page's way into the pool and back.
const POOL_NS: f64 = 4_000.0;
/// By how many times one measurement may be above the mean.
const OUTLIER: f64 = 8.0;
/// Chunks are larger than what lies in them, and free ones lie between them (record 35).
const CHUNK_WASTE: f64 = 1.1;
/// Bits of a stamp.
const STAMP_BITS: u32 = 28;
/// A page is away. With its stamp.
const AWAY: u32 = 1 << 28;
/// A page did not become smaller when it was tried last.
const NOISE: u32 = 1 << 29;
/// The slot below has the bytes too.
const BELOW: u32 = 1 << 30;

/// What is known of the page of one slot: its stamp, and three facts. Changed by evictors under the pool's lock; a reader only notes that the page has come.
#[derive(Debug)]
pub(super) struct Tag(AtomicU32);

impl Tag {
    /// Nothing that is known of a page holds for the one that the slot gets now.
    pub(super) fn is_new(&self) {
        self.0.fetch_and(!(NOISE | BELOW), Ordering::Relaxed);
    }

    /// The page did not become smaller.
    pub(super) fn set_noise(&self) {
        self.0.fetch_or(NOISE, Ordering::Relaxed);
    }

    pub(super) fn is_noise(&self) -> bool {
        self.0.load(Ordering::Relaxed) & NOISE != 0
    }

    /// The slot below has the page that the pool has.
    pub(super) fn set_below(&self) {
        self.0.fetch_or(BELOW, Ordering::Relaxed);
    }

    pub(super) fn is_below(&self) -> bool {
        self.0.load(Ordering::Relaxed) & BELOW != 0
    }

    /// The slot below has the page, and somebody has fetched it: nobody needs the pool's copy now.
    pub(super) fn is_needless(&self) -> bool {
        self.0.load(Ordering::Relaxed) & (BELOW | AWAY) == BELOW
    }

    fn number(word: u32) -> Option<u32> {
        (word & AWAY != 0).then_some(word & ((1 << STAMP_BITS) - 1))
    }

    /// The page leaves, with this stamp. The one that it had, if it was away.
    fn leave(&self, stamp: u32) -> Option<u32> {
        let next = |word| Some(word & (NOISE | BELOW) | AWAY | stamp);
        let (Ok(word) | Err(word)) = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        Tag::number(word)
    }

    /// The page has come. Its stamp, if it was away.
    fn come(&self) -> Option<u32> {
        Tag::number(self.0.fetch_and(!AWAY, Ordering::Relaxed))
    }
}

/// A sum and how many it is of.
#[derive(Debug, Default)]
struct Mean {
    sum: AtomicU64,
    count: AtomicU64,
}

impl Mean {
    /// Adds a sum of `count`. One that is far from all before counts less: a thread that did not run is no measurement, nor is a disk that stands still.
    fn add_within(&self, sum: u64, count: u64, usual: f64) {
        let most = OUTLIER * self.value().unwrap_or(usual) * count as f64;
        self.add(sum.min(most as u64), count);
    }

    fn add(&self, sum: u64, count: u64) {
        self.sum.fetch_add(sum, Ordering::Relaxed);
        self.count.fetch_add(count, Ordering::Relaxed);
    }

    fn value(&self) -> Option<f64> {
        let count = self.count.load(Ordering::Relaxed);
        (count > 0).then(|| self.sum.load(Ordering::Relaxed) as f64 / count as f64)
    }

    /// What is older counts less.
    fn fade(&self) {
        if self.count.load(Ordering::Relaxed) >= 64 {
            for part in [&self.sum, &self.count] {
                part.store(part.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
            }
        }
    }
}

/// What a decision rests on, for `farshore stat`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Decided {
    /// Memory that the pool may use now, bytes.
    pub bytes: u64,
    /// Pages that one page of the pool's memory holds.
    pub ratio: f64,
    /// What a page's way into the pool and back takes, ns.
    pub here_ns: f64,
    /// What a read below takes, ns a page.
    pub below_ns: f64,
}

/// See the module's head.
#[derive(Debug)]
pub(in crate::compressed) struct Worth {
    /// The most that may be used, bytes; and a unit of it, pages.
    given: AtomicU64,
    unit: AtomicU64,
    /// Pages that have left, ever.
    left: AtomicU64,
    /// How many had left when it was decided last, and when the unit changed last.
    looked: AtomicU64,
    since: AtomicU64,
    /// Pages of each age that are away.
    away: Box<[AtomicU32]>,
    /// Fetches from each depth.
    came: Box<[AtomicU32]>,
    unpacking: Mean,
    packing: Mean,
    below: Mean,
    /// Bytes of a page that became smaller; and which part of those that were tried do.
    packed: Mean,
    fit: Mean,
    /// What the pool gets, in units.
    units: AtomicU64,
}

impl Worth {
    pub(super) fn new(bytes: u64) -> Worth {
        let zeros = |count: usize| (0..count).map(|_| AtomicU32::new(0)).collect();
        let worth = Worth {
            given: AtomicU64::new(0),
            unit: AtomicU64::new(UNIT_MIN),
            left: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            since: AtomicU64::new(0),
            away: zeros(CLASSES),
            came: zeros(DEPTHS),
            unpacking: Mean::default(),
            packing: Mean::default(),
            below: Mean::default(),
            packed: Mean::default(),
            fit: Mean::default(),
            units: AtomicU64::new(0),
        };
        worth.give(bytes);
        worth
    }

    /// So many bytes may be used at most from now on. By one thread at a time.
    pub(super) fn give(&self, bytes: u64) {
        self.given.store(bytes, Ordering::Relaxed);
        let (unit, before) = ((bytes / PAGE_SIZE as u64 / UNITS).max(UNIT_MIN), self.unit.load(Ordering::Relaxed));
        if unit.abs_diff(before) > before / 8 {
            // Depths in the new unit: what was seen in the old one is forgotten, and pages that left before are not counted.
            self.unit.store(unit, Ordering::Relaxed);
            self.since.store(self.left.load(Ordering::Relaxed), Ordering::Relaxed);
            self.away.iter().chain(&self.came).for_each(|count| count.store(0, Ordering::Relaxed));
        }
    }

    /// What the pool may use, bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.given.load(Ordering::Relaxed) / UNITS * self.units.load(Ordering::Relaxed)
    }

    /// Fetches that are counted now.
    #[cfg(test)]
    pub(in crate::compressed) fn fetches(&self) -> u64 {
        self.came.iter().map(|count| u64::from(count.load(Ordering::Relaxed))).sum()
    }

    #[cfg(test)]
    pub(in crate::compressed) fn set_units(&self, units: u64) {
        self.units.store(units, Ordering::Relaxed);
    }

    /// What was decided, and on what grounds.
    pub(super) fn decided(&self) -> Decided {
        let seen = self.seen();
        Decided {
            bytes: self.bytes(),
            ratio: seen.ratio,
            here_ns: seen.here_ns + seen.pack_ns - FAULT_NS,
            below_ns: seen.below_ns - FAULT_NS,
        }
    }

    fn class_pages(&self) -> u64 {
        self.unit.load(Ordering::Relaxed) / CLASSES_A_UNIT
    }

    /// The page of this tag leaves. Under the pool's lock.
    pub(super) fn leave(&self, tag: &Tag) {
        let number = self.left.load(Ordering::Relaxed) + 1;
        let pages = self.class_pages();
        let class = &self.away[(number / pages) as usize % CLASSES];
        if number.is_multiple_of(pages) {
            // Those that were counted here before are too old to count.
            class.store(0, Ordering::Relaxed);
        }
        self.left.store(number, Ordering::Relaxed);
        class.fetch_add(1, Ordering::Relaxed);
        if let Some(before) = tag.leave(number as u32 & ((1 << STAMP_BITS) - 1)).and_then(|stamp| self.number(stamp)) {
            let _ = self.back(before);
        }
    }

    /// The page of this tag is fetched. For any thread.
    pub(super) fn come(&self, tag: &Tag) {
        if let Some(number) = tag.come().and_then(|stamp| self.number(stamp)) {
            let depth = self.back(number).map_or(DEPTHS - 1, |pages| (pages / self.unit.load(Ordering::Relaxed)) as usize);
            self.came[depth.min(DEPTHS - 1)].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many pages had left with the one that has this stamp, if that was in the unit of now.
    fn number(&self, stamp: u32) -> Option<u64> {
        let left = self.left.load(Ordering::Relaxed);
        let age = (left as u32).wrapping_sub(stamp) & ((1 << STAMP_BITS) - 1);
        left.checked_sub(u64::from(age)).filter(|&number| number > self.since.load(Ordering::Relaxed))
    }

    /// The page that left as this one is away no more. Its depth, if it was not too deep to be counted.
    fn back(&self, number: u64) -> Option<u64> {
        let pages = self.class_pages();
        let (newest, own) = (self.left.load(Ordering::Relaxed) / pages, number / pages);
        if newest.checked_sub(own)? >= CLASSES as u64 - 1 {
            return None;
        }
        let class = |n: u64| &self.away[n as usize % CLASSES];
        let of_age = class(own).fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1)).unwrap_or(0);
        let newer: u64 = (own + 1..=newest).map(|n| u64::from(class(n).load(Ordering::Relaxed))).sum();
        Some(newer + u64::from(of_age) / 2)
    }

    /// A page was compressed to `bytes`, or could not be (`None`), which took so long.
    pub(super) fn note_packed(&self, bytes: Option<usize>, ns: u64) {
        self.packing.add_within(ns, 1, POOL_NS / 2.0);
        self.fit.add(u64::from(bytes.is_some()), 1);
        if let Some(bytes) = bytes {
            self.packed.add(bytes as u64, 1);
        }
    }

    /// A page came that is known not to become smaller.
    pub(super) fn note_noise(&self) {
        self.fit.add(0, 1);
    }

    pub(super) fn note_unpacked(&self, ns: u64) {
        self.unpacking.add_within(ns, 1, POOL_NS / 2.0);
    }

    pub(super) fn note_below(&self, ns: u64, pages: u64) {
        self.below.add_within(ns, pages, BELOW_NS);
    }

    fn seen(&self) -> Seen {
        let part = |mean: &Mean, unknown: f64| mean.value().unwrap_or(unknown);
        let mut came: [f64; DEPTHS] = core::array::from_fn(|depth| f64::from(self.came[depth].load(Ordering::Relaxed)));
        // Of pages that left just now, many are in stages still, and nobody sees that they come. There are no fewer of them than of those a little deeper.
        for depth in (0..UNSEEN).rev() {
            came[depth] = came[depth].max(came[depth + 1]);
        }
        Seen {
            came,
            ratio: PAGE_SIZE as f64 / (part(&self.packed, PAGE_SIZE as f64) * CHUNK_WASTE),
            fit: part(&self.fit, 0.0),
            here_ns: FAULT_NS + part(&self.unpacking, POOL_NS / 2.0),
            pack_ns: part(&self.packing, POOL_NS / 2.0),
            below_ns: FAULT_NS + part(&self.below, BELOW_NS),
        }
    }

    /// Decides anew, if enough pages have left and come since the last time. Under the pool's lock.
    pub(super) fn decide(&self) {
        let left = self.left.load(Ordering::Relaxed);
        if left - self.looked.load(Ordering::Relaxed) < self.unit.load(Ordering::Relaxed) / 2 {
            return;
        }
        let seen = self.seen();
        if seen.came.iter().sum::<f64>() < FETCHES_MIN {
            return;
        }
        self.looked.store(left, Ordering::Relaxed);
        let now = self.units.load(Ordering::Relaxed);
        self.units.store(seen.next(now), Ordering::Relaxed);
        for count in &self.came {
            count.store(count.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
        }
        [&self.unpacking, &self.packing, &self.below, &self.packed, &self.fit].into_iter().for_each(Mean::fade);
    }
}

/// What was seen of late.
#[derive(Clone, Debug)]
struct Seen {
    came: [f64; DEPTHS],
    ratio: f64,
    fit: f64,
    /// What a fetch from the pool and one from below take.
    here_ns: f64,
    below_ns: f64,
    /// What each page takes on its way into the pool.
    pack_ns: f64,
}

impl Seen {
    /// Fetches from depths between these, in units.
    fn between(&self, from: f64, to: f64) -> f64 {
        let part = |n: usize| (to.min(n as f64 + 1.0) - from.max(n as f64)).clamp(0.0, 1.0);
        self.came.iter().enumerate().map(|(n, count)| count * part(n)).sum()
    }

    /// What the fetches that were seen with a pool of `now` units would have cost with one of `units`, ns.
    fn cost(&self, now: u64, units: u64) -> f64 {
        // By so many units the frames become fewer.
        let shift = units as f64 - now as f64;
        let first = (-shift).max(0.0);
        let end = (units as f64 * self.ratio / self.fit.max(0.01) - shift).max(first);
        let more = shift.max(0.0) * self.came[0];
        let (reached, deeper) = (self.between(first, end), self.between(end, DEPTHS as f64));
        let of_pool = self.fit * self.here_ns + (1.0 - self.fit) * self.below_ns;
        if units == 0 {
            return (more + reached + deeper) * self.below_ns;
        }
        // Whatever comes has left before, and was compressed if it can be: also what the pool had no room for by then.
        (more + reached) * of_pool + deeper * self.below_ns + (more + reached + deeper) * self.fit * self.pack_ns
    }

    /// The pool's size after this, in units: one nearer to the best, if that is much better.
    fn next(&self, now: u64) -> u64 {
        let best = (0..=UNITS_MAX).min_by(|&a, &b| self.cost(now, a).total_cmp(&self.cost(now, b))).unwrap_or(now);
        if self.cost(now, best) > self.cost(now, now) * (1.0 - GAIN_MIN) {
            return now;
        }
        if best > now { now + 1 } else { now - 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_random::Rng;

    /// 16 MiB: units of 256 pages.
    const GIVEN: u64 = 16 << 20;
    const FRAMES: usize = 4096;

    /// A memory that sends away the page that was used longest ago, with `pages` pages of data that shrink to `packed` bytes, in which `next` says what is used. The
    /// units of the pool in the end.
    fn played(pages: usize, packed: Option<usize>, below_ns: u64, mut next: impl FnMut(usize) -> usize) -> u64 {
        let worth = Worth::new(GIVEN);
        let tags: Vec<Tag> = (0..pages).map(|_| Tag(AtomicU32::new(0))).collect();
        // By the time of its last use, each page in the frames.
        let (mut used, mut by_age) = (vec![None; pages], std::collections::BTreeMap::new());
        for time in 0..400_000 {
            let page = next(time);
            match used[page].take() {
                Some(before) => _ = by_age.remove(&before),
                None => worth.come(&tags[page]),
            }
            used[page] = Some(time);
            by_age.insert(time, page);
            let frames = FRAMES - (worth.bytes() / PAGE_SIZE as u64) as usize;
            while by_age.len() > frames {
                let (_, oldest) = by_age.pop_first().unwrap();
                used[oldest] = None;
                worth.leave(&tags[oldest]);
                worth.note_packed(packed, 2000);
                worth.note_below(below_ns, 1);
                worth.note_unpacked(1000);
                worth.decide();
            }
        }
        worth.units.load(Ordering::Relaxed)
    }

    #[test]
    fn random_use_of_what_shrinks_is_worth_a_pool_that_reaches_all() {
        let mut random = Rng::new(1);
        // Twice the memory: with a third of it for the pool, at four to one, all are reached.
        let units = played(2 * FRAMES, Some(930), 90_000, |_| random.below(2 * FRAMES as u64) as usize);
        assert!((5..=8).contains(&units), "{units} units");
    }

    #[test]
    fn what_does_not_shrink_or_is_near_below_is_worth_none() {
        for (packed, below_ns) in [(None, 90_000), (Some(3000), 4000)] {
            let mut random = Rng::new(2);
            let units = played(2 * FRAMES, packed, below_ns, |_| random.below(2 * FRAMES as u64) as usize);
            assert_eq!(units, 0, "{packed:?}, {below_ns} ns");
        }
    }

    #[test]
    fn what_is_compressed_for_nothing_counts() {
        // Pages come from all depths alike, of which the pool reaches most.
        let mut seen = Seen { came: [100.0; DEPTHS], ratio: 4.0, fit: 1.0, here_ns: 10_000.0, below_ns: 30_000.0, pack_ns: 0.0 };
        assert_eq!(seen.next(4), 5);
        seen.pack_ns = 20_000.0;
        assert_eq!(seen.next(4), 3);
    }

    #[test]
    fn a_pool_that_would_cost_more_hits_than_it_reaches_is_not_made() {
        // Nine of ten uses are of a sixteenth more than fits, the tenth of sixteen times as much: no pool reaches that.
        let mut random = Rng::new(3);
        let hot = FRAMES + FRAMES / 16;
        let units = played(16 * FRAMES, Some(2800), 20_000, |_| {
            if random.below(10) > 0 { random.below(hot as u64) as usize } else { random.below(16 * FRAMES as u64) as usize }
        });
        assert!(units <= 2, "{units} units");
    }

    #[test]
    fn it_is_given_up_when_the_use_changes() {
        let mut random = Rng::new(4);
        let units = played(2 * FRAMES, Some(930), 90_000, |time| {
            let of = if time < 200_000 { 2 * FRAMES } else { FRAMES + 400 };
            random.below(of as u64) as usize
        });
        assert!(units <= 3, "{units} units");
    }

    #[test]
    fn depths_are_those_of_a_stack() {
        let worth = Worth::new(GIVEN);
        let tags: Vec<Tag> = (0..4096).map(|_| Tag(AtomicU32::new(0))).collect();
        tags.iter().for_each(|tag| worth.leave(tag));
        // Each second one comes back: half of them are above the first then.
        tags.iter().skip(1).step_by(2).for_each(|tag| worth.come(tag));
        let stamp = Tag::number(tags[0].0.load(Ordering::Relaxed)).unwrap();
        let depth = worth.back(worth.number(stamp).unwrap()).unwrap();
        assert!((2048 - 64..=2048 + 64).contains(&depth), "{depth}");
        // One that has not come leaves again: it is the newest.
        worth.leave(&tags[0]);
        let depth = worth.back(worth.number(tags[0].come().unwrap()).unwrap()).unwrap();
        assert!(depth < 64, "{depth}");
        // In another unit nothing is known of those that left before.
        worth.leave(&tags[1]);
        worth.give(2 * GIVEN);
        worth.come(&tags[1]);
        assert_eq!(worth.fetches(), 0);
    }
}
