//! Open-loop load: when requests are due, and what came of them.
//!
//! Users do not wait for each other. So requests arrive at their times ([`Arrivals`], a Poisson process that is fixed before it
//! starts), whatever became of those before, and the latency of each counts from its time, not from when it was sent: if
//! a server, or the generator, stands still, then each request that was due meanwhile shows it ([`Record`]).
//! Nothing here knows what a request is.
//!
//! All times are in ns since the start of the schedule.

use std::ops::Range;
use std::time::Duration;

use farshore_load::outcome::{Histogram, Timeline};
use hdrhistogram::Histogram as Hdr;

use crate::record;
use rand::distr::Distribution;
use rand_distr::Exp1;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

/// A request that is sent this much after its time, in ns, is late.
const LATE: u64 = 1_000_000;
/// This share of late requests is said.
const LATE_SHARE: f64 = 0.01;
/// A generator whose threads work for more than this share of the time is too slow, or soon will be.
const BUSY_SHARE: f64 = 0.9;
/// Length of a step of the timeline, in ns.
const STEP: u64 = 100_000_000;
/// Longer latencies are recorded as this long: an hour.
const LONGEST: u64 = 3_600_000_000_000;
/// A latency in the histogram is exact to this many digits.
const DIGITS: u8 = 2;

/// When a request is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Its number, from 0.
    pub number: u64,
    /// Its time.
    pub at: u64,
}

/// The arrivals of a Poisson process, one after the other. Each has its time from the start on: nothing that
/// happens later changes it.
#[derive(Clone, Debug)]
pub struct Arrivals {
    random: Xoshiro256PlusPlus,
    /// Mean time from one to the next, in ns.
    gap: f64,
    /// The next one, which has a fraction of a ns too.
    at: f64,
    number: u64,
    end: f64,
}

impl Arrivals {
    /// `rate` requests a second on average, for this long. The same seed gives the same arrivals.
    #[must_use]
    pub fn new(rate: f64, length: Duration, seed: u64) -> Self {
        let random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut arrivals = Arrivals { random, gap: 1e9 / rate, at: 0.0, number: 0, end: length.as_secs_f64() * 1e9 };
        arrivals.at = arrivals.gap();
        arrivals
    }

    fn gap(&mut self) -> f64 {
        let gap: f64 = Exp1.sample(&mut self.random);
        gap * self.gap
    }

    /// The next one.
    #[must_use]
    pub fn peek(&self) -> Option<Arrival> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Positive, and days at most.
        (self.at < self.end).then_some(Arrival { number: self.number, at: self.at as u64 })
    }

    /// The next one, if it is due.
    pub fn due(&mut self, now: u64) -> Option<Arrival> {
        let arrival = self.peek().filter(|arrival| arrival.at <= now)?;
        self.number += 1;
        self.at += self.gap();
        Some(arrival)
    }
}

/// What came of the requests that were due in the measured time.
#[derive(Clone, Debug)]
pub struct Record {
    measured: Range<u64>,
    /// From the time of each request to its answer.
    latency: Hdr<u64>,
    /// Answers in each step.
    steps: Vec<u64>,
    /// When the last answer came.
    last: u64,
    sent: u64,
    /// Those sent late, though nothing but the generator held them up.
    late: u64,
    /// The latest of them.
    latest: u64,
    /// The largest share of the measured time that a thread of the generator worked.
    busy: f64,
}

impl Record {
    /// Nothing yet. Only requests that are due in this time are recorded.
    #[must_use]
    pub fn new(measured: Range<u64>) -> Self {
        // The bounds are constant and in order: the histogram can always be made.
        let latency = Hdr::new_with_bounds(1, LONGEST, DIGITS).unwrap_or_else(|_| unreachable!("constant bounds"));
        Record { last: measured.end, measured, latency, steps: Vec::new(), sent: 0, late: 0, latest: 0, busy: 0.0 }
    }

    /// A request that was due at `due` is sent `now`. `held` if something else than the generator held it up, such as
    /// a peer that takes no more.
    pub fn sent(&mut self, due: u64, now: u64, held: bool) {
        if !self.measured.contains(&due) {
            return;
        }
        self.sent += 1;
        let late = now.saturating_sub(due);
        if late > LATE && !held {
            self.late += 1;
            self.latest = self.latest.max(late);
        }
    }

    /// The answer to a request that was due at `due` came `now`.
    pub fn answered(&mut self, due: u64, now: u64) {
        if !self.measured.contains(&due) {
            return;
        }
        self.latency.saturating_record(now.saturating_sub(due));
        self.last = self.last.max(now);
        let step = usize::try_from(now.saturating_sub(self.measured.start) / STEP).unwrap_or(usize::MAX);
        if step >= self.steps.len() {
            self.steps.resize(step + 1, 0);
        }
        self.steps[step] += 1;
    }

    /// The thread worked for this share of the measured time.
    pub fn busy(&mut self, share: f64) {
        self.busy = self.busy.max(share);
    }

    /// Adds the record of another thread, of the same measured time.
    pub fn add(&mut self, other: &Record) {
        // All have the same bounds: they can always be added.
        self.latency.add(&other.latency).unwrap_or_else(|_| unreachable!("the same bounds"));
        if self.steps.len() < other.steps.len() {
            self.steps.resize(other.steps.len(), 0);
        }
        for (sum, step) in self.steps.iter_mut().zip(&other.steps) {
            *sum += step;
        }
        self.last = self.last.max(other.last);
        self.sent += other.sent;
        self.late += other.late;
        self.latest = self.latest.max(other.latest);
        self.busy = self.busy.max(other.busy);
    }

    /// How many answers there were.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.latency.len()
    }

    /// The time in which the answers came: longer than the measured time if some came after it, so that
    /// answers a second are what the server did, not what was asked of it.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        Duration::from_nanos(self.last - self.measured.start).as_secs_f64()
    }

    /// The latencies.
    #[must_use]
    pub fn latency(&self) -> Histogram {
        record::counts(&self.latency)
    }

    /// Answers over time, until the last one.
    #[must_use]
    pub fn timeline(&self) -> Timeline {
        let count = (self.last - self.measured.start).div_ceil(STEP);
        let mut operations = self.steps.clone();
        operations.resize(usize::try_from(count).unwrap_or(0).max(operations.len()), 0);
        Timeline { step_seconds: Duration::from_nanos(STEP).as_secs_f64(), operations, marks: Vec::new() }
    }

    /// Whether and how the generator was too slow; empty if it was not.
    #[must_use]
    pub fn generator_late(&self) -> String {
        let mut said = Vec::new();
        // A count of 2^53 would be needed to lose one.
        #[expect(clippy::cast_precision_loss)]
        let share = self.late as f64 / self.sent.max(1) as f64;
        if share > LATE_SHARE {
            let latest = Duration::from_nanos(self.latest);
            said.push(format!("{:.1} % of the requests were sent more than 1 ms late, up to {latest:.1?}", share * 100.0));
        }
        if self.busy > BUSY_SHARE {
            said.push(format!("a thread of it was busy for {:.0} % of the time", self.busy * 100.0));
        }
        said.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn all(rate: f64, seconds: u64, seed: u64) -> Vec<Arrival> {
        let mut arrivals = Arrivals::new(rate, Duration::from_secs(seconds), seed);
        std::iter::from_fn(|| arrivals.due(u64::MAX)).collect()
    }

    #[test]
    fn arrivals_have_the_mean_rate_and_its_scatter() {
        for (rate, seconds) in [(100.0, 500), (50_000.0, 2), (2_000_000.0, 1)] {
            let times: Vec<u64> = all(rate, seconds, 1).iter().map(|arrival| arrival.at).collect();
            let expected = rate * seconds as f64;
            // Six standard deviations of a Poisson distribution.
            assert!((times.len() as f64 - expected).abs() < 6.0 * expected.sqrt(), "{rate}: {}", times.len());
            assert!(times.is_sorted() && times.last().is_some_and(|last| *last < seconds * SECOND));
            // Gaps of a Poisson process: as much deviation as mean, and a share 1/e of them above the mean.
            let mean = 1e9 / rate;
            let above = times.windows(2).filter(|pair| (pair[1] - pair[0]) as f64 > mean).count() as f64 / expected;
            assert!((above - (-1.0_f64).exp()).abs() < 0.02, "{rate}: {above}");
        }
    }

    #[test]
    fn arrivals_are_numbered_and_the_same_for_a_seed() {
        let arrivals = all(1000.0, 3, 7);
        assert!(arrivals.iter().enumerate().all(|(number, arrival)| arrival.number == number as u64));
        assert_eq!(arrivals, all(1000.0, 3, 7));
        assert_ne!(arrivals, all(1000.0, 3, 8));
        assert_eq!(all(1000.0, 0, 7), []);
    }

    #[test]
    fn a_stall_does_not_shift_later_arrivals() {
        let mut arrivals = Arrivals::new(1000.0, Duration::from_secs(2), 3);
        let (mut now, mut taken, mut at_once) = (0, Vec::new(), 0);
        while arrivals.peek().is_some() {
            // Once, for 300 ms, nobody looks.
            now += if now == SECOND { 3 * SECOND / 10 } else { SECOND / 10_000 };
            let before = taken.len();
            taken.extend(std::iter::from_fn(|| arrivals.due(now)));
            at_once = at_once.max(taken.len() - before);
        }
        assert_eq!(taken, all(1000.0, 2, 3));
        assert!((200..400).contains(&at_once), "those that were due meanwhile come at once: {at_once}");
    }

    #[test]
    fn nothing_is_due_before_its_time() {
        let mut arrivals = Arrivals::new(10.0, Duration::from_secs(10), 3);
        let first = arrivals.peek().map_or(0, |arrival| arrival.at);
        assert!(first > 0);
        assert_eq!(arrivals.due(first - 1), None);
        assert_eq!(arrivals.due(first), Some(Arrival { number: 0, at: first }));
    }

    #[test]
    fn latency_counts_from_the_time_of_the_request() {
        let mut record = Record::new(0..2 * SECOND);
        // 1000 a second, answered at once; but from 1.0 to 1.3 s nothing is.
        for due in (0..2 * SECOND).step_by(1_000_000) {
            let stalled = (SECOND..13 * SECOND / 10).contains(&due);
            record.answered(due, if stalled { 13 * SECOND / 10 } else { due + 50_000 });
        }
        assert_eq!(record.operations(), 2000);
        let latency = record.latency();
        assert_eq!(latency.total(), 2000);
        let quantile = |share| latency.quantile(share).unwrap_or(0);
        assert!(quantile(0.5).abs_diff(50_000) < 500);
        // 300 of 2000 waited, the first for 300 ms, the others for less and less.
        assert!(quantile(0.9).abs_diff(100_000_000) < 3_000_000, "{}", quantile(0.9));
        assert!(quantile(1.0).abs_diff(300_000_000) < 3_000_000);
        let steps = record.timeline().operations;
        assert_eq!(steps.len(), 20);
        assert_eq!(steps[10..14], [0, 0, 0, 400]);
    }

    #[test]
    fn only_the_measured_time_is_recorded_and_answers_after_it_count() {
        let mut record = Record::new(SECOND..2 * SECOND);
        record.sent(SECOND - 1, 5 * SECOND, false);
        record.answered(SECOND - 1, SECOND + 5);
        record.answered(2 * SECOND, 2 * SECOND + 5);
        assert_eq!((record.operations(), record.seconds()), (0, 1.0));
        assert_eq!(record.timeline().operations, [0; 10]);
        record.answered(SECOND, SECOND + 5);
        record.answered(2 * SECOND - 1, 7 * SECOND / 2);
        assert_eq!((record.operations(), record.seconds()), (2, 2.5));
        let steps = record.timeline().operations;
        assert_eq!((steps.iter().sum::<u64>(), steps.len(), steps[0], steps[25]), (2, 26, 1, 1));
    }

    #[test]
    fn a_slow_generator_is_told_and_a_slow_peer_is_not_taken_for_one() {
        let sent = |late: u64, held| {
            let mut record = Record::new(0..SECOND);
            (0..1000).for_each(|n| record.sent(n, n + if n < late { 2 * LATE } else { LATE }, held));
            record.generator_late()
        };
        assert_eq!(sent(10, false), "");
        assert!(sent(20, false).starts_with("2.0 % of the requests"), "{}", sent(20, false));
        assert_eq!(sent(1000, true), "");
        let mut record = Record::new(0..SECOND);
        record.busy(0.89);
        assert_eq!(record.generator_late(), "");
        let mut other = Record::new(0..SECOND);
        other.busy(0.97);
        record.add(&other);
        assert!(record.generator_late().contains("97 %"));
    }

    #[test]
    fn records_add_up() {
        let mut sum = Record::new(0..SECOND);
        for thread in 0..3 {
            let mut record = Record::new(0..SECOND);
            (0..100).for_each(|n| record.answered(n, n + thread * STEP + 10));
            sum.add(&record);
        }
        assert_eq!(sum.operations(), 300);
        assert_eq!(sum.timeline().operations[..4], [100, 100, 100, 0]);
    }
}
