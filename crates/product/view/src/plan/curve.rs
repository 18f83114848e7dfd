//! From what one run has shown to the time with other amounts of memory.
//!
//! ```text
//!  time(memory) = alone + faults(memory) * wait of one fault          not below what the device can do
//! ```
//!
//! The faults are those that wait for a page. Pages that come unasked, along with others or ahead of them, are misses too, but nobody waits for them: a
//! program that reads in order with much memory, and at random with less, waits for more of its misses then. `alone` is the run's time without its faults and without what its threads waited for a core besides (on a machine that has one for each, nothing
//! would have been waited); what one wait takes is an average of the run, for the thread that waits longest
//! (MAGE, section 3.1: the slowest thread decides). The *ideal* line has the device's time alone in place of the wait.
//!
//! Misses with more memory than the run had are measured, by [`super::ghosts`]. Those are the misses of LRU. A program that goes round and round
//! makes cliffs in such a curve: all misses are there until everything fits, and then none. Farshore keeps a part of a loop in memory, which
//! gets what lies on the line across the cliff (its convex hull: Beckmann and Sanchez, Talus, HPCA 2015), so that line is what is told.
//!
//! Misses with less memory are told by how long pages were away ([`super::looks`]). Of a run of which that says nothing, the line goes on as steeply as
//! it began.

use farshore_beside::PAGE;

use super::looks::Less;
use super::watch::Returns;

/// Fewer pages that came back tell neither what one takes nor how many it would be with less memory.
const MISSES_LEAST: f64 = 256.0;

/// What a run has shown.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    /// How long it took, seconds.
    pub seconds: f64,
    /// The limit at its end: misses with more memory are measured.
    pub limit: u64,
    /// The limit with which nothing would have left.
    pub whole: u64,
    /// Returns by the memory that would have kept the page, and how many there were.
    pub needs: Vec<(u64, Returns)>,
    /// Limits below the run's, rising, and what each does; empty: not known.
    pub fewer: Vec<(u64, Less)>,
    /// Pages that came back from swap space, having left by themselves, …
    pub pages_in: f64,
    /// … and those that had left for a look: they would have been there.
    pub looked: f64,
    /// Pages that were written to it.
    pub pages_out: f64,
    /// Faults that read.
    pub fetches: f64,
    /// Seconds that threads spent in faults that go with these pages, all together, …
    pub waited: f64,
    /// … of these the seconds in faults that did not wait for a read, …
    pub besides: f64,
    /// … and in others that they would not have had alone: they are there with any memory of which something leaves.
    pub steady: f64,
    /// Seconds from a fault to its handler and back.
    pub signal: f64,
    /// Seconds that threads waited for a core, in faults and besides, all together.
    pub queued: f64,
    /// Seconds of a fault without its read.
    pub overhead: f64,
    /// The part of the waits that the thread has which waits longest.
    pub longest: f64,
}

/// A swap space, as far as it matters here.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Device {
    /// Seconds of a read.
    pub read: f64,
    /// Pages a second, read and written; infinite where it is not known.
    pub rate: f64,
}

/// The curve at one amount of memory.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    /// The limit, bytes.
    pub memory: u64,
    /// Whether the run has measured these misses; else they are extrapolated.
    pub measured: bool,
    /// Pages that come back, …
    pub misses: f64,
    /// … how many they would be if no part of a loop stayed, …
    pub misses_lru: f64,
    /// … and how many of them a fault waits for.
    pub faults: f64,
    /// Pages that are written.
    pub writes: f64,
    /// How long the program takes, seconds.
    pub seconds: f64,
    /// How long it would take if a miss took the device's time alone.
    pub ideal: f64,
}

/// The model of a program.
#[derive(Debug)]
pub struct Curve {
    shown: Shown,
    device: Device,
    /// What a fault that waits for a page takes of the time, seconds.
    fault: f64,
    alone: f64,
    queued: f64,
    misses: Line,
    faults: Line,
    /// What misses and faults that are more with less memory than the run had take, seconds, for the thread that waits longest; memory rising.
    more: Vec<(f64, f64)>,
    knows_less: bool,
}

/// How many there are with any memory.
#[derive(Debug)]
struct Line {
    /// LRU's where they change, memory rising; and their hull.
    lru: Vec<(f64, f64)>,
    hull: Vec<(f64, f64)>,
    /// How many more, with less memory than the run had.
    fewer: Vec<(f64, f64)>,
    /// The limit with which nothing leaves.
    whole: f64,
}

impl Curve {
    /// The curve of a program that has shown this, with another swap space if one is given.
    pub fn of(shown: Shown, other: Option<Device>) -> Curve {
        let own = shown.waited / shown.fetches.max(1.0);
        // The handler is entered by a signal, before any clock of ours runs.
        let device = other.unwrap_or(Device { read: (own - shown.overhead).max(0.0), rate: f64::INFINITY });
        let fault = other.map_or(own, |device| shown.overhead + device.read) * shown.longest;
        let besides = (shown.seconds - (shown.waited + shown.steady) * shown.longest).max(0.0);
        // Of the waits for a core those in faults are among what faults took. Where each was is not known: by their times.
        let queued = (shown.queued * shown.longest * besides / shown.seconds.max(1e-9)).min(besides);
        let alone = (besides - queued).max(shown.seconds * 0.01);
        let misses = Line::of(&shown, shown.pages_in, |of| of.pages);
        // Nearly each page that was looked at came by a fault of its own.
        let faults = Line::of(&shown, (shown.fetches - shown.looked).max(0.0), |of| of.faults);
        let each = |less: &Less| match other {
            Some(device) => shown.overhead + device.read,
            None if less.each > 0.0 => less.each + shown.signal,
            None => own,
        };
        let each: Vec<_> = shown.fewer.iter().map(|(memory, less)| (*memory as f64, each(less) * shown.longest)).collect();
        // Rescues, and writes to pages that came for a read, are as many more as pages.
        let a_page = shown.besides * shown.longest / (shown.pages_in + shown.looked).max(1.0);
        let takes = |(&(memory, faults), &(_, pages)): (&(f64, f64), &(f64, f64))| {
            (memory, faults * along(&each, memory) + pages * a_page)
        };
        let more = falling(faults.fewer.iter().zip(&misses.fewer).map(takes).collect());
        // Of a few reads nobody knows what one takes.
        let knows_fault = shown.pages_in + shown.looked >= MISSES_LEAST || other.is_some();
        let knows_less = knows_fault && (!misses.fewer.is_empty() || misses.lru[0].1 >= MISSES_LEAST);
        Curve { shown, device, fault, alone, queued, misses, faults, more, knows_less }
    }

    /// The program's time if nothing leaves, seconds.
    pub fn alone(&self) -> f64 {
        self.alone
    }

    /// What a fault that waits for a page takes of the time, seconds.
    pub fn fault(&self) -> f64 {
        self.fault
    }

    /// What a page that comes takes of it in the run, seconds: it may have come unasked.
    pub fn miss(&self) -> f64 {
        self.fault * self.shown.fetches / (self.shown.pages_in + self.shown.looked).max(1.0)
    }

    /// What the thread that waits longest waited for a core outside of faults, seconds: it is not in [`Curve::alone`].
    pub fn queued(&self) -> f64 {
        self.queued
    }

    /// The swap space that it is for.
    pub fn device(&self) -> Device {
        self.device
    }

    /// What the curve is at this limit.
    pub fn at(&self, memory: u64) -> Point {
        let measured = memory >= self.shown.limit;
        let (misses, misses_lru, faults) = (self.misses.at(memory), self.misses.of_lru(memory), self.faults.at(memory));
        let over = |limit: u64| self.shown.whole.saturating_sub(limit) as f64 / PAGE as f64;
        // Each page that does not fit leaves once; what is written besides was changed again before it left again, also for a look.
        let again = (self.shown.pages_out - over(self.shown.limit)).max(0.0);
        let writes = if misses > 0.0 || over(memory) > 0.0 {
            let of = self.misses.at(self.shown.limit) + self.shown.looked;
            over(memory).min(self.shown.pages_out) + again * misses / of.max(1.0)
        } else {
            0.0
        };
        let busy = (misses + writes) / self.device.rate;
        let ideal = self.alone + faults * self.device.read * self.shown.longest;
        let steady = if memory < self.shown.whole { self.shown.steady * self.shown.longest } else { 0.0 };
        let seconds = (self.alone + steady + self.waits(memory, faults)).max(busy);
        Point { memory, measured, misses, misses_lru, faults, writes, seconds, ideal: ideal.min(seconds) }
    }

    /// What so many faults, and the misses that go with them, take of the time, seconds.
    fn waits(&self, memory: u64, faults: f64) -> f64 {
        if memory >= self.shown.limit || self.more.is_empty() {
            return faults * self.fault;
        }
        self.faults.at(self.shown.limit) * self.fault + beyond(&self.more, memory as f64)
    }

    /// Whether anything is known of limits below the run's: how many more pages come back, or how steep the line begins, and what one takes.
    pub fn knows_less(&self) -> bool {
        self.knows_less
    }

    /// How many times longer it takes than if nothing leaves.
    pub fn slowdown(&self, memory: u64) -> f64 {
        self.at(memory).seconds / self.alone
    }

    /// The smallest limit with which the program takes at most so many times longer.
    pub fn least(&self, slowdown: f64, from: u64) -> u64 {
        let (mut low, mut high) = (from, self.shown.whole);
        while high > low + PAGE {
            let middle = low + (high - low) / 2;
            if self.slowdown(middle) <= slowdown { high = middle } else { low = middle }
        }
        if self.slowdown(low) <= slowdown { low } else { high }
    }

    /// The knee: where more memory begins to gain much less than memory before it, the point that lies farthest below the straight line from
    /// the run's limit to where everything fits. Of LRU's misses: that is the program's own shape. Where there is no such point, as in a loop
    /// or a straight line, it is the first memory with a twentieth of the misses at most.
    pub fn knee(&self) -> u64 {
        let lru = &self.misses.lru;
        let (first, last) = (lru[0], *lru.last().expect("it has two points"));
        let (width, height) = ((last.0 - first.0).max(1.0), (first.1 - last.1).max(1.0));
        let below = |&(memory, misses): &(f64, f64)| 1.0 - (memory - first.0) / width - (misses - last.1) / height;
        let deepest = lru.iter().max_by(|one, other| below(one).total_cmp(&below(other))).expect("it has two points");
        if below(deepest) > 0.1 {
            return deepest.0 as u64;
        }
        let few = lru.iter().find(|(_, misses)| *misses - last.1 <= height * 0.05);
        few.map_or(self.shown.whole, |point| point.0 as u64)
    }
}

impl Line {
    /// Of those of the returns that `of` counts, of which the run had so many.
    fn of(shown: &Shown, counted: f64, of: impl Fn(&Returns) -> f64) -> Line {
        let needs: Vec<_> = shown.needs.iter().map(|(need, returns)| (*need, of(returns))).collect();
        let lru = by_need(shown, &needs, counted);
        let limit = shown.limit as f64;
        let below = shown.fewer.iter().map(|(memory, less)| (*memory as f64, of(&less.more))).filter(|point| point.0 < limit);
        let mut fewer: Vec<_> = below.collect();
        if !fewer.is_empty() {
            // The run's own limit is where the two lines meet.
            fewer.push((limit, 0.0));
        }
        Line { hull: hull_of(&lru), lru, fewer: falling(fewer), whole: shown.whole as f64 }
    }

    /// How many there are with so much memory, of which a part of a loop stays.
    fn at(&self, memory: u64) -> f64 {
        self.below(memory as f64).unwrap_or_else(|| along(&self.hull, memory as f64))
    }

    /// How many there would be with LRU.
    fn of_lru(&self, memory: u64) -> f64 {
        self.below(memory as f64).unwrap_or_else(|| step(&self.lru, memory as f64))
    }

    /// The same with less memory than the run had.
    fn below(&self, memory: f64) -> Option<f64> {
        let first = self.lru[0];
        if memory >= first.0 {
            return None;
        }
        if !self.fewer.is_empty() {
            return Some(first.1 + beyond(&self.fewer, memory).max(0.0));
        }
        // As steep as at the beginning: over a tenth of the way, since the first step may be a small one.
        let step = (self.whole - first.0) / 10.0;
        let slope = if step > 0.0 { (first.1 - along(&self.hull, first.0 + step)) / step } else { 0.0 };
        Some(first.1 + slope * (first.0 - memory))
    }
}

/// LRU's, by what each of them needs: from the run's limit to where everything fits. The run had `counted`.
fn by_need(shown: &Shown, needs: &[(u64, f64)], counted: f64) -> Vec<(f64, f64)> {
    let all: f64 = needs.iter().map(|(_, weight)| weight).sum();
    let scale = if all > 0.0 { counted / all } else { 0.0 };
    let (limit, whole) = (shown.limit as f64, shown.whole.max(shown.limit + PAGE) as f64);
    // A sum of nothing is -0, which a table would show.
    let beyond = needs.iter().filter(|(need, _)| *need as f64 > limit);
    let mut left = beyond.map(|(_, weight)| weight * scale).sum::<f64>() + 0.0;
    let mut points = vec![(limit, left)];
    for (need, weight) in needs.iter().filter(|(need, _)| *need as f64 > limit) {
        left -= weight * scale;
        // What is needed is told a little too large, since sizes are rounded.
        let need = (*need as f64).min(whole);
        match points.last_mut() {
            Some(last) if last.0 >= need => last.1 = left.max(0.0),
            _ => points.push((need, left.max(0.0))),
        }
    }
    match points.last_mut() {
        Some(last) if last.0 >= whole => last.1 = 0.0,
        _ => points.push((whole, 0.0)),
    }
    points
}

/// The lower convex hull of a falling line.
fn hull_of(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut hull: Vec<(f64, f64)> = Vec::new();
    for &point in points {
        while let [.., before, last] = hull[..] {
            let turn = (last.0 - before.0) * (point.1 - before.1) - (last.1 - before.1) * (point.0 - before.0);
            if turn > 0.0 {
                break;
            }
            hull.pop();
        }
        hull.push(point);
    }
    hull
}

/// A line with straight pieces, at `memory`.
fn along(line: &[(f64, f64)], memory: f64) -> f64 {
    let next = line.partition_point(|point| point.0 <= memory);
    match (next.checked_sub(1).map(|before| line[before]), line.get(next)) {
        (Some(before), Some(after)) => before.1 + (after.1 - before.1) * (memory - before.0) / (after.0 - before.0),
        (Some(before), None) => before.1,
        (None, _) => line[0].1,
    }
}

/// A line that falls as memory rises. What looks say of two amounts may be wrong by chance, and less memory is never better.
fn falling(mut line: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    for n in (1..line.len()).rev() {
        line[n - 1].1 = line[n - 1].1.max(line[n].1);
    }
    line
}

/// A line with straight pieces, at `memory`; before its beginning as steep as there.
fn beyond(line: &[(f64, f64)], memory: f64) -> f64 {
    match *line {
        [first, second, ..] if memory < first.0 => first.1 + (first.1 - second.1) * (first.0 - memory) / (second.0 - first.0),
        _ => along(line, memory),
    }
}

/// A line of steps, at `memory`.
fn step(line: &[(f64, f64)], memory: f64) -> f64 {
    line[line.partition_point(|point| point.0 <= memory).saturating_sub(1)].1
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// 100 s, of which 40 went into 4 million reads of one thread, of which it waited for all.
    fn shown(needs: Vec<(u64, f64)>) -> Shown {
        let needs = needs.into_iter().map(|(need, pages)| (need, Returns { pages, faults: pages })).collect();
        Shown {
            seconds: 100.0,
            limit: 500 * MIB,
            whole: 1000 * MIB,
            needs,
            fewer: Vec::new(),
            pages_in: 4e6,
            looked: 0.0,
            pages_out: 1e6,
            fetches: 4e6,
            waited: 40.0,
            besides: 0.0,
            signal: 0.0,
            steady: 0.0,
            queued: 0.0,
            overhead: 2e-6,
            longest: 1.0,
        }
    }

    /// So many more with half of the memory, each by a fault that takes as long as those of the run.
    fn more(pages: f64) -> Vec<(u64, Less)> {
        vec![(250 * MIB, Less { more: Returns { pages, faults: pages }, each: 0.0 })]
    }

    fn near(one: f64, other: f64) -> bool {
        (one - other).abs() <= 0.001 * other.abs().max(1.0)
    }

    #[test]
    fn a_loop_is_a_cliff_and_what_stays_of_it_a_straight_line() {
        let curve = Curve::of(shown(vec![(1000 * MIB, 3.0)]), None);
        assert!(
            near(curve.alone(), 60.0) && near(curve.at(1000 * MIB).seconds, 60.0) && near(curve.at(500 * MIB).seconds, 100.0)
        );
        let between = curve.at(750 * MIB);
        assert!(near(between.misses, 2e6) && near(between.misses_lru, 4e6) && near(between.seconds, 80.0), "{between:?}");
        assert!(near(curve.at(250 * MIB).seconds, 120.0) && !curve.at(250 * MIB).measured && between.measured);
        assert_eq!(curve.knee(), 1000 * MIB);
        assert!(near(curve.slowdown(curve.least(1.2, 500 * MIB)), 1.2));
        assert_eq!(curve.least(1.0, 500 * MIB), 1000 * MIB);
    }

    #[test]
    fn a_hot_set_has_a_knee_at_its_size() {
        let curve = Curve::of(shown(vec![(640 * MIB, 90.0), (900 * MIB, 10.0)]), None);
        assert_eq!(curve.knee(), 640 * MIB);
        assert!(near(curve.at(640 * MIB).misses, 4e5) && near(curve.at(600 * MIB).misses_lru, 4e6));
    }

    #[test]
    fn misses_of_a_smaller_limit_in_between_are_none_of_this_one() {
        // While the program grew its limit was smaller: half of the returns would not have been with the last one.
        let curve = Curve::of(shown(vec![(300 * MIB, 50.0), (1000 * MIB, 50.0)]), None);
        assert!(near(curve.at(500 * MIB).misses, 2e6) && near(curve.at(500 * MIB).seconds, 80.0));
    }

    #[test]
    fn another_device_has_its_own_time_and_rate() {
        let device = |read, rate| Curve::of(shown(vec![(1000 * MIB, 1.0)]), Some(Device { read, rate })).at(500 * MIB);
        // 4 million times 2 us of ours and 8 us.
        assert!(near(device(8e-6, f64::INFINITY).seconds, 100.0) && near(device(98e-6, f64::INFINITY).seconds, 460.0));
        assert!(near(device(8e-6, f64::INFINITY).ideal, 92.0));
        // Five million pages, read and written.
        assert!(near(device(8e-6, 10_000.0).seconds, 500.0));
        // Four threads wait at the same time.
        let four = Curve::of(Shown { longest: 0.25, ..shown(vec![(1000 * MIB, 1.0)]) }, None);
        assert!(near(four.alone(), 90.0) && near(four.at(750 * MIB).seconds, 95.0));
    }

    #[test]
    fn time_goes_by_what_is_waited_for() {
        // Half of the pages came unasked, all of those that 800 MiB would have kept; with half of the memory half as many pages more come, and all are waited for.
        let returns = |pages, faults| Returns { pages, faults };
        let shown = Shown {
            needs: vec![(800 * MIB, returns(2.0, 0.0)), (1000 * MIB, returns(2.0, 2.0))],
            fewer: vec![(250 * MIB, Less { more: returns(2e6, 2e6), each: 8e-6 })],
            besides: 4.0,
            signal: 2e-6,
            fetches: 2e6,
            ..shown(Vec::new())
        };
        let curve = Curve::of(shown, None);
        assert!(near(curve.fault(), 20e-6) && near(curve.miss(), 10e-6));
        let (run, half) = (curve.at(500 * MIB), curve.at(250 * MIB));
        assert!(near(run.seconds, 100.0) && near(run.faults, 2e6) && near(run.misses, 4e6), "{run:?}");
        // 2 million faults more of 10 us, and 2 million pages more of 1 us besides.
        assert!(near(half.seconds, 122.0) && near(half.faults, 4e6) && near(half.misses, 6e6), "{half:?}");
        // On the line across the cliff at 1000 MiB.
        let more = curve.at(800 * MIB);
        assert!(near(more.faults, 0.8e6) && near(more.seconds, 76.0) && near(more.misses_lru, 2e6), "{more:?}");
    }

    #[test]
    fn less_memory_is_never_told_to_be_faster() {
        // By chance looks tell fewer faults of less memory, or faults that take less.
        let less = |faults, each| Less { more: Returns { pages: 3e6, faults }, each };
        let curves = [(2e6, 8e-6, 1.9e6, 8e-6), (2e6, 8e-6, 2.1e6, 4e-6)].map(|(one, slow, two, fast)| {
            let fewer = vec![(125 * MIB, less(two, fast)), (250 * MIB, less(one, slow)), (375 * MIB, less(0.5e6, slow))];
            Curve::of(Shown { fewer, ..shown(vec![(1000 * MIB, 1.0)]) }, None)
        });
        for curve in curves {
            let points: Vec<Point> = (1..20).map(|n| curve.at(n * 50 * MIB)).collect();
            for (less, more) in points.iter().zip(&points[1..]) {
                let falls = less.misses >= more.misses && less.faults >= more.faults && less.seconds >= more.seconds;
                assert!(falls && less.ideal >= more.ideal, "{less:?} {more:?}");
            }
            assert!(points[0].seconds > points[9].seconds);
        }
    }

    #[test]
    fn waits_for_a_core_are_not_the_programs() {
        // Half of the run was in faults, and so were half of the waits.
        let busy = Curve::of(Shown { waited: 50.0, queued: 60.0, ..shown(vec![(1000 * MIB, 1.0)]) }, None);
        assert!(near(busy.queued(), 30.0) && near(busy.alone(), 20.0) && near(busy.at(500 * MIB).seconds, 70.0));
        // All of it was in faults.
        let faults = Curve::of(Shown { waited: 99.0, queued: 90.0, ..shown(vec![(1000 * MIB, 1.0)]) }, None);
        assert!(near(faults.queued(), 0.9) && near(faults.alone(), 1.0));
    }

    #[test]
    fn a_run_that_missed_nothing_tells_what_less_memory_misses() {
        // 500 MiB suffice for what it did last. With half of them 4 million pages come back.
        let looks = Shown { pages_in: 0.0, fewer: more(4e6), ..shown(Vec::new()) };
        let curve = Curve::of(looks, None);
        assert!(near(curve.at(250 * MIB).misses, 4e6) && near(curve.at(375 * MIB).misses, 2e6));
        assert_eq!(curve.at(500 * MIB).misses, 0.0);
    }

    #[test]
    fn first_touches_are_not_of_the_pages_that_come() {
        // A twentieth of the run was in faults that are there with any limit.
        let curve = Curve::of(Shown { waited: 35.0, steady: 5.0, ..shown(vec![(1000 * MIB, 1.0)]) }, None);
        let seconds = [500, 750, 999, 1000].map(|memory| curve.at(memory * MIB).seconds);
        assert!(
            near(seconds[0], 100.0) && near(seconds[1], 82.5) && near(seconds[2], 65.07) && near(seconds[3], 60.0),
            "{seconds:?}"
        );
    }

    #[test]
    fn little_that_came_back_tells_nothing_of_less_memory() {
        let few = || Shown { pages_in: 100.0, fewer: more(4e6), ..shown(vec![(1000 * MIB, 1.0)]) };
        let device = Device { read: 1e-4, rate: f64::INFINITY };
        assert_eq!([Curve::of(few(), None), Curve::of(few(), Some(device))].map(|curve| curve.knows_less()), [false, true]);
        let known = [shown(vec![(1000 * MIB, 1.0)]), Shown { looked: 300.0, ..few() }, Shown { fewer: Vec::new(), ..few() }];
        assert_eq!(known.map(|shown| Curve::of(shown, None).knows_less()), [true, true, false]);
    }

    #[test]
    fn nothing_that_came_back_is_a_flat_line() {
        let curve = Curve::of(Shown { pages_in: 0.0, fetches: 0.0, waited: 0.0, ..shown(Vec::new()) }, None);
        for memory in [100, 500, 750, 1000, 2000] {
            assert!(near(curve.at(memory * MIB).seconds, 100.0), "{memory}");
            assert_eq!(format!("{:.0}", curve.at(memory * MIB).misses), "0", "{memory}");
        }
        let same = Curve::of(Shown { whole: 400 * MIB, ..shown(vec![(600 * MIB, 1.0)]) }, None);
        assert!(same.at(500 * MIB).seconds.is_finite() && same.at(10 * MIB).seconds.is_finite());
    }
}
