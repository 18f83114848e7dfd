//! What came of the requests that were due in the measured time, and whether the generator was fast enough to say so.
//!
//! All times are in ns since the start. The latency of a request counts from its time, not from when it was sent.

use std::ops::Range;
use std::time::Duration;

use hdrhistogram::Histogram as Hdr;

use crate::generator::engine::Tally;

/// Longer latencies are recorded as this long: an hour.
const LONGEST: u64 = 3_600_000_000_000;
/// A latency is exact to this many digits.
const DIGITS: u8 = 3;
/// This share of requests may be sent late.
const LATE_SHARE: f64 = 0.01;
/// The lag may have this share in the latency, each at its 99th percentile.
const LAG_SHARE: f64 = 0.1;
/// Other programs that take more than this share of its time are named as a reason.
const WAITED_SHARE: f64 = 0.02;

/// Of one operation.
#[derive(Clone, Debug)]
pub struct Op {
    /// From the time of each request to its answer.
    pub latency: Hdr<u64>,
    /// Keys that were not there, among the answers.
    pub misses: u64,
    /// No answer came in time.
    pub lost: u64,
    /// Not sent: too many were under way.
    pub unsent: u64,
}

/// Of all.
#[derive(Clone, Debug)]
pub struct Record {
    /// The measured time.
    pub measured: Range<u64>,
    /// Of each operation.
    pub ops: Vec<Op>,
    /// How much later than its time each request was sent, though nothing but the generator held it up.
    pub lag: Hdr<u64>,
    /// More than this is late.
    late_after: u64,
    late: u64,
    /// Never sent, because the generator was behind its schedule when it ended.
    behind: u64,
    /// Answers that came too late, at any time of the run.
    pub late_answers: u64,
    /// Answers that came twice, at any time of the run.
    pub duplicates: u64,
    /// Answers that the sockets of the generator had no room for.
    pub dropped: u64,
    /// The share of its time that a thread waited for a processor: the largest.
    pub waited: f64,
    /// When the last answer came.
    last: u64,
}

fn histogram(digits: u8) -> Hdr<u64> {
    // The bounds are constant and in order: the histogram can always be made.
    Hdr::new_with_bounds(1, LONGEST, digits).unwrap_or_else(|_| unreachable!("constant bounds"))
}

impl Op {
    fn new() -> Self {
        Op { latency: histogram(DIGITS), misses: 0, lost: 0, unsent: 0 }
    }

    /// Requests that were sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.latency.len() + self.lost
    }

    /// The latency that this share of all requests had at most; `None` if so many were not answered.
    #[must_use]
    pub fn quantile_of_all(&self, quantile: f64) -> Option<u64> {
        let (answered, all) = (self.latency.len(), self.sent() + self.unsent);
        // A count of 2^53 would be needed to lose one.
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let rank = ((all as f64 * quantile - 1e-6).ceil() as u64).max(1);
        #[expect(clippy::cast_precision_loss)]
        (rank <= answered).then(|| self.latency.value_at_quantile((rank as f64 - 0.5) / answered as f64))
    }

    fn add(&mut self, other: &Op) {
        // All have the same bounds: they can always be added.
        self.latency.add(&other.latency).unwrap_or_else(|_| unreachable!("the same bounds"));
        self.misses += other.misses;
        self.lost += other.lost;
        self.unsent += other.unsent;
    }
}

impl Record {
    /// Nothing yet, of this many operations. What is sent more than `late` after its time is late.
    #[must_use]
    pub fn new(measured: Range<u64>, ops: usize, late: Duration) -> Self {
        Record {
            last: measured.end,
            measured,
            ops: (0..ops).map(|_| Op::new()).collect(),
            lag: histogram(2),
            late_after: u64::try_from(late.as_nanos()).unwrap_or(u64::MAX),
            late: 0,
            behind: 0,
            late_answers: 0,
            duplicates: 0,
            dropped: 0,
            waited: 0.0,
        }
    }

    /// The operation, if the request is among those that are recorded.
    fn of(&mut self, op: u8, due: u64) -> Option<&mut Op> {
        self.ops.get_mut(usize::from(op)).filter(|_| self.measured.contains(&due))
    }

    /// Whether requests were not sent because too many were under way.
    #[must_use]
    pub fn is_window_full(&self) -> bool {
        self.ops.iter().map(|op| op.unsent).sum::<u64>() > self.behind
    }

    /// Adds the record of another thread.
    pub fn add(&mut self, other: &Record) {
        for (op, other) in self.ops.iter_mut().zip(&other.ops) {
            op.add(other);
        }
        self.lag.add(&other.lag).unwrap_or_else(|_| unreachable!("the same bounds"));
        self.measured.end = self.measured.end.min(other.measured.end);
        self.late += other.late;
        self.behind += other.behind;
        self.late_answers += other.late_answers;
        self.duplicates += other.duplicates;
        self.dropped += other.dropped;
        self.waited = self.waited.max(other.waited);
        self.last = self.last.max(other.last);
    }

    /// All operations together.
    #[must_use]
    pub fn all(&self) -> Op {
        let mut all = Op::new();
        self.ops.iter().for_each(|op| all.add(op));
        all
    }

    /// The measured time, in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        Duration::from_nanos(self.measured.end - self.measured.start).as_secs_f64()
    }

    /// The time in which the answers came, in seconds: longer than the measured time if some came after it, so that answers a
    /// second are what the server did, not what was asked of it.
    #[must_use]
    pub fn answered_seconds(&self) -> f64 {
        Duration::from_nanos(self.last.max(self.measured.end) - self.measured.start).as_secs_f64()
    }

    /// The share of requests that were sent in time.
    #[must_use]
    pub fn in_time(&self) -> f64 {
        #[expect(clippy::cast_precision_loss)] // Of a share.
        let share = (self.late + self.behind) as f64 / (self.lag.len() + self.behind).max(1) as f64;
        1.0 - share
    }

    /// Why the generator was too slow; empty if it was not.
    #[must_use]
    pub fn too_slow(&self) -> String {
        let mut why = Vec::new();
        if self.in_time() < 1.0 - LATE_SHARE {
            let late = Duration::from_nanos(self.late_after);
            let share = (1.0 - self.in_time()) * 100.0;
            why.push(format!("{share:.1} % of the requests were sent more than {late:?} after their time, or not at all"));
        }
        let [lag, latency] = [&self.lag, &self.all().latency].map(|times| times.value_at_quantile(0.99));
        #[expect(clippy::cast_precision_loss)] // Times of an hour at most.
        let share = lag as f64 / latency.max(1) as f64;
        if share > LAG_SHARE && !self.lag.is_empty() {
            let [lag, latency] = [lag, latency].map(Duration::from_nanos);
            why.push(format!("its lag is {lag:.1?} at p99, more than a tenth of the latency's p99, {latency:.1?}"));
        }
        if self.dropped > 0 {
            why.push(format!("its sockets had no room for {} answers", self.dropped));
        }
        if self.waited > WAITED_SHARE && !why.is_empty() {
            why.push(format!("others had its processor for {:.0} % of the time", self.waited * 100.0));
        }
        why.join("; ")
    }
}

impl Tally for Record {
    fn sent(&mut self, due: u64, now: u64) {
        if self.measured.contains(&due) {
            let lag = now.saturating_sub(due);
            self.lag.saturating_record(lag);
            self.late += u64::from(lag > self.late_after);
        }
    }

    fn answered(&mut self, op: u8, due: u64, now: u64, miss: bool) {
        let Some(op) = self.of(op, due) else { return };
        op.latency.saturating_record(now.saturating_sub(due));
        op.misses += u64::from(miss);
        self.last = self.last.max(now);
    }

    fn lost(&mut self, op: u8, due: u64) {
        if let Some(op) = self.of(op, due) {
            op.lost += 1;
        }
    }

    fn unsent(&mut self, op: u8, due: u64) {
        if let Some(op) = self.of(op, due) {
            op.unsent += 1;
        }
    }

    fn behind(&mut self, op: u8, due: u64) {
        if let Some(op) = self.of(op, due) {
            op.unsent += 1;
            self.behind += 1;
        }
    }

    fn late_answer(&mut self) {
        self.late_answers += 1;
    }

    fn duplicate(&mut self) {
        self.duplicates += 1;
    }

    fn end(&mut self, now: u64) {
        self.measured.end = now.max(self.measured.start);
        self.last = self.last.min(self.measured.end);
    }

    fn over(&mut self, waited: f64, dropped: u64) {
        (self.waited, self.dropped) = (waited, dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn record() -> Record {
        Record::new(100 * MS..200 * MS, 2, Duration::from_millis(1))
    }

    #[test]
    fn only_what_is_due_in_the_measured_time_counts() {
        let mut record = record();
        for due in [0, 99 * MS, 200 * MS, 300 * MS] {
            record.answered(0, due, due + MS, false);
            record.lost(0, due);
            record.unsent(1, due);
            record.sent(due, due + 5 * MS);
        }
        let all = record.all();
        assert_eq!((all.latency.len(), all.lost, all.unsent, record.lag.len()), (0, 0, 0, 0));
        record.answered(1, 199 * MS, 300 * MS, true);
        assert_eq!((record.ops[1].latency.len(), record.ops[1].misses, record.ops[0].latency.len()), (1, 1, 0));
        assert!((record.seconds() - 0.1).abs() < 1e-9 && (record.answered_seconds() - 0.2).abs() < 1e-9);
        record.end(150 * MS);
        assert!((record.seconds() - 0.05).abs() < 1e-9);
    }

    #[test]
    fn what_is_lost_is_beyond_all_that_was_answered() {
        let mut record = record();
        (0..990).for_each(|n| record.answered(0, 100 * MS, 100 * MS + n, false));
        assert_eq!(record.all().quantile_of_all(1.0), Some(989));
        (0..6).for_each(|_| record.lost(0, 100 * MS));
        (0..4).for_each(|_| record.unsent(1, 100 * MS));
        let all = record.all();
        assert_eq!((all.sent(), all.quantile_of_all(0.99), all.quantile_of_all(0.991)), (996, Some(989), None));
        assert_eq!(all.quantile_of_all(0.5), Some(499));
        assert_eq!(Op::new().quantile_of_all(0.5), None);
    }

    #[test]
    fn a_slow_generator_is_told() {
        let with = |lag: u64, late: u64, latency: u64, dropped| {
            let mut record = record();
            record.dropped = dropped;
            (0..1000).for_each(|n| record.sent(100 * MS, 100 * MS + if n < late { 3 * MS } else { lag }));
            (0..1000).for_each(|_| record.answered(0, 100 * MS, 100 * MS + latency, false));
            record.too_slow()
        };
        assert_eq!(with(1000, 0, 100_000, 0), "");
        assert_eq!(with(1000, 10, 100_000, 0), "");
        assert!(with(1000, 20, 100 * MS, 0).starts_with("2.0 % of the requests"), "{}", with(1000, 20, 100 * MS, 0));
        assert!(with(1000, 0, 5_000, 0).contains("a tenth"), "{}", with(1000, 0, 5_000, 0));
        assert!(with(1000, 0, 100_000, 7).contains("7 answers"));
        let mut behind = record();
        (0..50).for_each(|_| behind.sent(100 * MS, 100 * MS));
        (0..50).for_each(|n| if n < 25 { behind.unsent(0, 100 * MS) } else { behind.behind(1, 100 * MS) });
        assert!(behind.is_window_full() && behind.too_slow().starts_with("33.3 %"), "{}", behind.too_slow());
        assert_eq!(behind.all().unsent, 50);
        let mut waited = record();
        waited.waited = 0.25;
        assert_eq!(waited.too_slow(), "", "it is a reason, and no fault");
        waited.dropped = 1;
        assert!(waited.too_slow().ends_with("others had its processor for 25 % of the time"));
    }

    #[test]
    fn records_add_up() {
        let (mut sum, mut other) = (record(), record());
        other.answered(1, 150 * MS, 160 * MS, false);
        other.duplicates = 3;
        sum.add(&other);
        sum.add(&other);
        assert_eq!((sum.all().latency.len(), sum.ops[1].latency.len(), sum.duplicates), (2, 2, 6));
    }
}
