//! What came of the requests. The latency of each counts from the time at which it was due, not from when it was sent: if a
//! server, or the generator, stands still, then each request that was due meanwhile shows it.
//!
//! All times are in ns since the start of the schedule.

use std::ops::Range;
use std::time::Duration;

use farshore_load::outcome::{Histogram, Timeline};
use hdrhistogram::Histogram as Hdr;

use crate::record;

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
