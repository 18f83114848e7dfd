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
//! pool reaches costs a decompression, what lies deeper costs a read below. That holds for small steps, and so the border moves by one at a time.
//!
//! * **What a page costs** is what threads of the program wait for it ([`Source`]). A read below that nobody waits for, because its pages are read ahead, costs nothing, however long the
//!   device takes; but compressing and decompressing take a processor whoever does it, and count in full.
//! * **What a page from below cost without a pool** is what it would cost without one again. A pool brings about more evictions, and their writes slow reads down: a pool that was judged by these would
//!   seem to be worth more the more it writes.
//! * **What fewer frames cost**: pages just inside the frames are not seen, but evictors' stages are a window to them. So many pages come back from so many stages; as many would from a
//!   unit of the frames. (A program with a hot set brings back from stages many times what it fetches from behind: there frames are worth more than what a pool reaches.)

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use farshore_core::limits::PAGE_SIZE;
use farshore_core::seams::FaultsSeen;

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
/// What each fault and the eviction that it brings about take besides its read, ns (measured with `--swap ram`, one thread).
const FAULT_NS: f64 = 8_000.0;
/// What a read below takes until one was measured, ns.
const BELOW_NS: f64 = 80_000.0;
/// The same for a page's way into the pool and back.
const POOL_NS: f64 = 4_000.0;
/// Pages of a source from which on it is known what they cost.
const KNOWN: u64 = 64;
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

    fn sum(&self) -> f64 {
        self.sum.load(Ordering::Relaxed) as f64
    }

    fn count(&self) -> f64 {
        self.count.load(Ordering::Relaxed) as f64
    }

    fn value(&self) -> Option<f64> {
        (self.count() > 0.0).then(|| self.sum() / self.count())
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

/// One place that pages come from, the pool or what is below: how many did of late, and how long that took.
#[derive(Debug, Default)]
struct Source {
    pages: AtomicU64,
    /// Reads that faults waited for, ns.
    waited: Mean,
    /// Reads ahead of their use, ns.
    ahead: Mean,
}

impl Source {
    /// One read has brought `pages`, within `ns`. `usual`: what it takes as far as is known without a measurement.
    fn note(&self, pages: u64, ns: u64, whose: Whose, usual: f64) {
        let mean = match whose {
            Whose::Fault => &self.waited,
            Whose::Reader => &self.ahead,
        };
        mean.add_within(ns, 1, usual);
        self.pages.fetch_add(pages, Ordering::Relaxed);
    }

    fn is_known(&self) -> bool {
        self.pages.load(Ordering::Relaxed) >= KNOWN
    }

    /// Faults a page that came: few where most pages are read ahead, or along with others.
    fn faults(&self) -> f64 {
        if self.is_known() { self.waited.count() / self.pages.load(Ordering::Relaxed) as f64 } else { 1.0 }
    }

    /// What threads wait for a page, ns, if that is known. `more`: what they have waited for pages that were being read ahead.
    fn waits_ns(&self, more: f64) -> Option<f64> {
        let waited = self.waited.sum() + self.waited.count() * FAULT_NS + more;
        self.is_known().then(|| waited / self.pages.load(Ordering::Relaxed) as f64)
    }

    /// What is older counts less.
    fn fade(&self) {
        if self.is_known() {
            for part in [&self.pages, &self.waited.sum, &self.waited.count, &self.ahead.sum, &self.ahead.count] {
                part.store(part.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
            }
        }
    }
}

/// Who reads pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::compressed) enum Whose {
    /// A fault, whose thread waits for them.
    Fault,
    /// A thread that reads ahead.
    Reader,
}

/// What a decision rests on, for `farshore stat`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Decided {
    /// Memory that the pool may use now, bytes.
    pub bytes: u64,
    /// Pages that one page of the pool's memory holds.
    pub ratio: f64,
    /// What a page costs that goes into the pool and comes back, ns: compressing, decompressing, its part of a fault.
    pub here_ns: f64,
    /// What a page from below costs, ns: what threads wait for it, its part of a fault.
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
    packing: Mean,
    here: Source,
    below: Source,
    /// What of late was told of faults that are not seen here: pages that came back from stages, stages, and waits for pages that were being read ahead, ns. And what was told in all.
    rescued: AtomicU64,
    stages: AtomicU64,
    waited_ns: AtomicU64,
    told: [AtomicU64; 2],
    /// What a page from below cost when there was no pool last, ns; `u64::MAX`: that is not known.
    alone_ns: AtomicU64,
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
            packing: Mean::default(),
            here: Source::default(),
            below: Source::default(),
            rescued: AtomicU64::new(0),
            stages: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
            told: Default::default(),
            alone_ns: AtomicU64::new(u64::MAX),
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
        Decided { bytes: self.bytes(), ratio: seen.ratio, here_ns: seen.here_ns + seen.pack_ns, below_ns: seen.below_ns }
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

    /// One read has brought so many compressed pages from the pool.
    pub(super) fn note_here(&self, pages: u64, ns: u64, whose: Whose) {
        self.here.note(pages, ns, whose, POOL_NS / 2.0 * pages as f64);
    }

    /// One read has brought so many pages from below.
    pub(super) fn note_below(&self, pages: u64, ns: u64, whose: Whose) {
        self.below.note(pages, ns, whose, BELOW_NS);
    }

    /// What evictors know of faults. Under the pool's lock.
    pub(super) fn note_faults(&self, faults: &FaultsSeen) {
        let since = |told: &AtomicU64, now: u64| now.saturating_sub(told.fetch_max(now, Ordering::Relaxed));
        self.rescued.fetch_add(since(&self.told[0], faults.rescued), Ordering::Relaxed);
        self.waited_ns.fetch_add(since(&self.told[1], faults.waited_ns), Ordering::Relaxed);
        self.stages.store(faults.stages, Ordering::Relaxed);
    }

    fn seen(&self) -> Seen {
        let part = |mean: &Mean, unknown: f64| mean.value().unwrap_or(unknown);
        let mut came: [f64; DEPTHS] = core::array::from_fn(|depth| f64::from(self.came[depth].load(Ordering::Relaxed)));
        // Of pages that left just now, many are in stages still, and nobody sees that they come. There are no fewer of them than of those a little deeper.
        for depth in (0..UNSEEN).rev() {
            came[depth] = came[depth].max(came[depth + 1]);
        }
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed) as f64;
        // Faults that wait for a page on its way wait longer where reads ahead take longer.
        let (ahead_here, ahead_below) = (self.here.ahead.sum(), self.below.ahead.sum());
        let of_waits = |ahead: f64| if ahead > 0.0 { count(&self.waited_ns) * ahead / (ahead_here + ahead_below) } else { 0.0 };
        let pages_here = count(&self.here.pages).max(1.0);
        Seen {
            came,
            inside: came[0].max(count(&self.rescued) * count(&self.unit) / count(&self.stages).max(1.0)),
            ratio: PAGE_SIZE as f64 / (part(&self.packed, PAGE_SIZE as f64) * CHUNK_WASTE),
            fit: part(&self.fit, 0.0),
            // Until pages have come from the pool, as many of them would be waited for as of those from below.
            here_ns: self
                .here
                .waits_ns(of_waits(ahead_here))
                .map_or_else(|| POOL_NS / 2.0 + FAULT_NS * self.below.faults(), |waits| waits + ahead_here / pages_here),
            pack_ns: part(&self.packing, POOL_NS / 2.0),
            below_ns: self
                .below
                .waits_ns(of_waits(ahead_below))
                .unwrap_or(FAULT_NS + BELOW_NS)
                .min(self.alone_ns.load(Ordering::Relaxed) as f64),
        }
    }

    /// Decides anew, if enough pages have left and come since the last time. Under the pool's lock.
    pub(super) fn decide(&self) {
        let left = self.left.load(Ordering::Relaxed);
        if left - self.looked.load(Ordering::Relaxed) < self.unit.load(Ordering::Relaxed) / 2 {
            return;
        }
        let now = self.units.load(Ordering::Relaxed);
        if now == 0 {
            self.alone_ns.store(u64::MAX, Ordering::Relaxed);
        }
        let seen = self.seen();
        if seen.came.iter().sum::<f64>() < FETCHES_MIN {
            return;
        }
        self.looked.store(left, Ordering::Relaxed);
        if now == 0 && self.below.is_known() {
            self.alone_ns.store(seen.below_ns as u64, Ordering::Relaxed);
        }
        self.units.store(seen.next(now), Ordering::Relaxed);
        for count in &self.came {
            count.store(count.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
        }
        for count in [&self.rescued, &self.waited_ns] {
            count.store(count.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
        }
        [&self.packing, &self.packed, &self.fit].into_iter().for_each(Mean::fade);
        [&self.here, &self.below].into_iter().for_each(Source::fade);
    }
}

/// What was seen of late.
#[derive(Clone, Debug)]
struct Seen {
    came: [f64; DEPTHS],
    /// Fetches that a unit less of frames would bring about.
    inside: f64,
    ratio: f64,
    fit: f64,
    /// What a page from the pool and one from below cost.
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
        let more = shift.max(0.0) * self.inside;
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
                worth.note_below(1, below_ns, Whose::Fault);
                worth.note_here(1, 1000, Whose::Fault);
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
        let mut seen = Seen {
            came: [100.0; DEPTHS],
            inside: 100.0,
            ratio: 4.0,
            fit: 1.0,
            here_ns: 10_000.0,
            below_ns: 30_000.0,
            pack_ns: 0.0,
        };
        assert_eq!(seen.next(4), 5);
        seen.pack_ns = 20_000.0;
        assert_eq!(seen.next(4), 3);
    }

    #[test]
    fn reads_that_nobody_waits_for_are_worth_no_pool() {
        // 32 pages a read, each of which takes as long as four of the pool's; one read of 50 is a fault's.
        let costs = |whose: Whose| {
            let worth = Worth::new(GIVEN);
            for n in 0..100 {
                worth.note_below(32, 600_000, if n % 50 == 0 { Whose::Fault } else { whose });
                worth.note_packed(Some(930), 2000);
            }
            worth.came.iter().for_each(|count| count.store(100, Ordering::Relaxed));
            let seen = worth.seen();
            (seen.below_ns, seen.next(0))
        };
        let (waited, nobody) = (costs(Whose::Fault), costs(Whose::Reader));
        assert_eq!(waited, (19_000.0, 1), "18,750 ns a page, and a thirty-second of a fault");
        assert!(nobody.0 < 500.0 && nobody.1 == 0, "{nobody:?}");
    }

    #[test]
    fn waits_for_pages_on_their_way_are_those_of_the_slower_source() {
        let worth = Worth::new(GIVEN);
        (0..100).for_each(|_| worth.note_below(32, 540_000, Whose::Reader));
        (0..100).for_each(|_| worth.note_here(32, 60_000, Whose::Reader));
        worth.note_faults(&FaultsSeen { waited_ns: 64_000_000, ..FaultsSeen::default() });
        // What is told is a sum.
        worth.note_faults(&FaultsSeen { waited_ns: 64_000_000, ..FaultsSeen::default() });
        let seen = worth.seen();
        let (below, here) = (64e6 * 0.9 / 3200.0, (64e6 * 0.1 + 100.0 * 60_000.0) / 3200.0);
        assert!((seen.below_ns - below).abs() < 1.0 && (seen.here_ns - here).abs() < 1.0, "{seen:?}");
    }

    #[test]
    fn what_a_pool_costs_the_device_does_not_speak_for_it() {
        let worth = Worth::new(GIVEN);
        let decided = |units: u64, ns: u64| {
            worth.set_units(units);
            (0..10_000).for_each(|_| worth.note_below(1, ns, Whose::Fault));
            worth.came.iter().for_each(|count| count.store(100, Ordering::Relaxed));
            worth.left.fetch_add(1 << 20, Ordering::Relaxed);
            worth.decide();
            worth.decided().below_ns
        };
        assert!((57_000.0..59_000.0).contains(&decided(0, 50_000)));
        assert!(decided(4, 200_000) < 59_000.0);
        (0..5).for_each(|_| _ = decided(4, 20_000));
        assert!((27_000.0..40_000.0).contains(&decided(4, 20_000)), "less counts");
        assert!(decided(0, 200_000) > 100_000.0, "without a pool it is measured anew");
    }

    #[test]
    fn stages_show_what_frames_are_worth() {
        let worth = Worth::new(GIVEN);
        worth.came.iter().for_each(|count| count.store(100, Ordering::Relaxed));
        (0..100).for_each(|_| worth.note_below(1, 30_000, Whose::Fault));
        (0..100).for_each(|_| worth.note_packed(Some(930), 2000));
        assert_eq!(worth.seen().next(0), 1);
        // From half as many stages as a unit has pages ten times as many pages came back as from half a unit behind.
        worth.note_faults(&FaultsSeen { rescued: 500, stages: 128, waited_ns: 0 });
        assert_eq!(worth.seen().inside, 1000.0);
        assert_eq!(worth.seen().next(0), 0);
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
