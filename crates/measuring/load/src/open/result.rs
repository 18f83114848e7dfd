//! The result of a run, as `--json` writes it and the table shows it.

use hdrhistogram::Histogram as Hdr;
use serde::Serialize;

use super::args::Open;
use super::record::{Op, Record};
use crate::generator::protocol::Quality;

/// A run at one rate.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Run {
    /// The service.
    pub service: String,
    /// The server.
    pub target: String,
    /// Requests a second that were asked for; closed loop: none.
    pub rate: Option<f64>,
    /// Closed loop: requests under way.
    pub closed: Option<u32>,
    /// Connections.
    pub connections: u32,
    /// Threads of the generator.
    pub threads: u32,
    /// Where the random numbers started.
    pub seed: u64,
    /// The measured time; less than was asked for if it ended early.
    pub seconds: f64,
    /// Answers a second, in the time until the last one.
    pub answers_per_second: f64,
    /// All operations together.
    pub all: Times,
    /// Each operation.
    pub operations: Vec<Times>,
    /// Answers that came after their request was given up.
    pub late_answers: u64,
    /// Answers that came twice.
    pub duplicates: u64,
    /// How much later than its time a request was sent, in microseconds.
    pub lag: Lag,
    /// Whether requests were not sent because too many were under way.
    pub window_full: bool,
    /// Share of the requests that were sent in time.
    pub sent_in_time: f64,
    /// Why the generator was too slow; empty if it was not.
    pub generator_too_slow: String,
    /// The share of its time that a thread of the generator waited for a processor: the largest.
    pub waited_for_processor: f64,
    /// `vsearch`: what was found of what was looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quality: Option<Quality>,
    /// Whether the user ended it.
    pub ended_early: bool,
    /// What was wrong; empty if all was right.
    pub wrong: Vec<String>,
}

/// What came of an operation.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Times {
    /// Its name.
    pub name: String,
    /// Requests that were sent.
    pub sent: u64,
    /// Answers in time.
    pub answered: u64,
    /// Requests without one.
    pub lost: u64,
    /// Requests that were not sent: too many were under way, or the generator was too slow.
    pub unsent: u64,
    /// Answers that the key is not there.
    pub misses: u64,
    /// Mean latency in microseconds, of answers; so are the next ones.
    pub mean: f64,
    /// Half of them were not slower.
    pub p50: f64,
    /// 90 % were not.
    pub p90: f64,
    /// 99 % were not.
    pub p99: f64,
    /// 99.9 % were not.
    pub p999: f64,
    /// The slowest.
    pub max: f64,
    /// (ns, count): all latencies, to three digits.
    pub histogram: Vec<(u64, u64)>,
}

/// How late requests were sent, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Lag {
    /// Half of them were not later.
    pub p50: f64,
    /// 99 % were not.
    pub p99: f64,
    /// The latest.
    pub max: f64,
}

/// ns as microseconds.
#[must_use]
#[expect(clippy::cast_precision_loss)] // Hours at most.
pub fn micros(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

/// A percentile in microseconds.
fn at(times: &Hdr<u64>, quantile: f64) -> f64 {
    micros(times.value_at_quantile(quantile))
}

impl Times {
    fn new(name: &str, op: &Op) -> Self {
        let times = &op.latency;
        Times {
            name: name.into(),
            sent: op.sent(),
            answered: times.len(),
            lost: op.lost,
            unsent: op.unsent,
            misses: op.misses,
            mean: times.mean() / 1000.0,
            p50: at(times, 0.5),
            p90: at(times, 0.9),
            p99: at(times, 0.99),
            p999: at(times, 0.999),
            max: micros(times.max()),
            histogram: times.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect(),
        }
    }
}

impl Run {
    /// What is recorded, in figures.
    #[must_use]
    pub fn new(args: &Open, rate: Option<f64>, ops: &[&str], record: &Record) -> Self {
        let all = Times::new("all", &record.all());
        #[expect(clippy::cast_precision_loss)] // Of a rate.
        let answers_per_second = all.answered as f64 / record.answered_seconds().max(1e-9);
        Run {
            service: clap::ValueEnum::to_possible_value(&args.service).map_or_else(String::new, |name| name.get_name().into()),
            target: args.target.to_string(),
            rate,
            closed: args.closed,
            connections: args.connections,
            threads: args.threads,
            seed: args.seed,
            seconds: record.seconds(),
            answers_per_second,
            all,
            operations: ops.iter().zip(&record.ops).map(|(name, op)| Times::new(name, op)).collect(),
            late_answers: record.late_answers,
            duplicates: record.duplicates,
            lag: Lag { p50: at(&record.lag, 0.5), p99: at(&record.lag, 0.99), max: micros(record.lag.max()) },
            window_full: record.is_window_full(),
            sent_in_time: record.in_time(),
            generator_too_slow: record.too_slow(),
            waited_for_processor: record.waited,
            quality: None,
            ended_early: false,
            wrong: Vec::new(),
        }
    }

    /// For a reader.
    #[must_use]
    pub fn text(&self) -> String {
        let Run { service, target, connections, threads, seconds, all, .. } = self;
        let asked = match (self.rate, self.closed) {
            (Some(rate), _) => format!("rate asked {rate:.0}/s"),
            (None, closed) => format!("closed loop of {}", closed.unwrap_or(0)),
        };
        let early = if self.ended_early { ", ended early" } else { "" };
        let mut lines = vec![
            format!("{service} at {target}: {connections} connections, {threads} threads, {seconds:.2} s{early}"),
            format!("  {asked}, answered {:.0}/s", self.answers_per_second),
            format!(
                "  sent {}, answered {}, lost {}, not sent {}, misses {}, late {}, duplicates {}",
                all.sent, all.answered, all.lost, all.unsent, all.misses, self.late_answers, self.duplicates
            ),
            format!("  {:<12}{:>12}{:>11}{:>11}{:>11}{:>11}{:>11}", "us", "answered", "p50", "p90", "p99", "p99.9", "max"),
        ];
        let used = self.operations.iter().filter(|times| times.sent + times.unsent > 0);
        let rows = used.clone().chain((used.clone().count() != 1).then_some(all));
        lines.extend(rows.map(|times| {
            let Times { name, answered, p50, p90, p99, p999, max, .. } = times;
            format!("  {name:<12}{answered:>12}{p50:>11.1}{p90:>11.1}{p99:>11.1}{p999:>11.1}{max:>11.1}")
        }));
        if self.closed.is_none() {
            let Lag { p50, p99, max } = self.lag;
            let share = self.sent_in_time * 100.0;
            lines.push(format!("  lag      p50 {p50:.1} us, p99 {p99:.1} us, max {max:.1} us; {share:.2} % sent in time"));
        }
        if let Some(Quality { nearest, recall, of, queries, answers }) = &self.quality {
            lines.push(format!(
                "  recall@{nearest} {recall:.4} of {of} queries; the answers to {queries} queries come to {answers}"
            ));
        }
        if self.window_full {
            lines.push("  the server cannot keep up: too many requests were under way (--window)".into());
        }
        if !self.generator_too_slow.is_empty() {
            lines.push(format!("  generator too slow: {}", self.generator_too_slow));
        }
        if !self.wrong.is_empty() {
            lines.push("  WRONG".into());
        }
        lines.join("\n") + "\n"
    }
}
