//! What `farshore-load --events` writes on its standard output: one JSON object a line.
//!
//! ```text
//! {"event":"phase","name":"fill"}         a phase begins
//! {"event":"phase","name":"measure"}      its figures are those of the outcome
//! {"event":"phase","name":"verify"}
//! {"event":"outcome", …}                  the last line; nothing after it
//! ```
//!
//! A reader may sample counters of its own when a mark arrives: the lines are written unbuffered, at the moment at
//! which the phase begins. Exit status 0: the data were right. 1: they were not (`wrong` says what), or the workload
//! could not be run (one line on stderr). 2: wrong options.

use serde::{Deserialize, Serialize};

/// The phase whose figures are the result of a workload that has one of that name.
pub const MEASURE: &str = "measure";

/// A line.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// A phase begins.
    Phase {
        /// Its name: `fill`, `warm-up`, [`MEASURE`], `verify`, or what else the workload has.
        name: String,
    },
    /// The end.
    Outcome(Box<Outcome>),
}

/// What a workload did.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// The workload's name.
    pub workload: String,
    /// What one operation is: `update`, `read`, `page`, `edge`, `request`.
    pub unit: String,
    /// Operations in the measured time.
    pub operations: u64,
    /// The measured time.
    pub seconds: f64,
    /// Memory that one operation goes through, in bytes: for workloads that are better told in bytes a second; else 0.
    pub bytes_per_operation: u64,
    /// Memory of the data, in bytes.
    pub data_bytes: u64,
    /// How long one operation took. Empty where operations are too short to be timed one by one.
    pub latency: Histogram,
    /// Operations over time.
    pub timeline: Timeline,
    /// The phases, in order.
    pub phases: Vec<Phase>,
    /// What was verified, for a reader: "the sum of 67108864 words".
    pub verified: String,
    /// A number over the data that is the same in each run with the same options and seed; empty where there is none.
    pub checksum: String,
    /// What was wrong. Empty if all was right.
    pub wrong: Vec<String>,
    /// Open loop: whether and how the generator itself was too slow. Empty if it was not.
    pub generator_late: String,
    /// Search for the highest rate that meets a target: that rate, in requests a second. None if no rate did, or there was no search.
    pub best_rate: Option<f64>,
    /// Why it is not higher. Empty without a search.
    pub rate_limit: String,
    /// Open loop: requests without an answer. They are in `latency`, with the time that was waited for them.
    pub lost: u64,
    /// Open loop: requests that were not sent since too many were under way. They are in `latency` likewise.
    pub unsent: u64,
}

/// A phase, as the program itself saw it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// How long it took.
    pub seconds: f64,
    /// Processor time in the program, in seconds.
    pub user_seconds: f64,
    /// Processor time in the kernel on its behalf, in seconds.
    pub system_seconds: f64,
    /// Page faults without I/O, as the kernel counts them.
    pub minor_faults: u64,
    /// Page faults with I/O, as the kernel counts them.
    pub major_faults: u64,
    /// The most page faults (minor and major) that one thread took: the ideal line needs them (MAGE §3.1). 0 if not known.
    pub faults_of_worst_thread: u64,
    /// Operations, if the phase has some.
    pub operations: u64,
}

/// A latency distribution: counts of values in ns, each exact to 1 %.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Histogram {
    /// (ns, count), ascending, without empty ones.
    pub counts: Vec<(u64, u64)>,
}

impl Histogram {
    /// How many values there are.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count).sum()
    }

    /// The value that a share (0 to 1) of all is at or below, in ns; `None` if there are none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<u64> {
        // A histogram of 2^53 values would be needed to lose one here.
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let wanted = ((self.total() as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        self.counts.iter().find_map(|(value, count)| {
            seen += count;
            (seen >= wanted).then_some(*value)
        })
    }

    /// The largest value, in ns.
    #[must_use]
    pub fn max(&self) -> Option<u64> {
        self.counts.last().map(|(value, _)| *value)
    }

    /// Adds all of `other`.
    pub fn add(&mut self, other: &Histogram) {
        let mut counts: std::collections::BTreeMap<u64, u64> = self.counts.iter().copied().collect();
        for (value, count) in &other.counts {
            *counts.entry(*value).or_default() += count;
        }
        self.counts = counts.into_iter().collect();
    }
}

/// Operations over time.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Timeline {
    /// Length of one step, in seconds.
    pub step_seconds: f64,
    /// Operations in each step of the measured time, the last one perhaps shorter.
    pub operations: Vec<u64>,
    /// Moments at which something changed: (seconds from the start, what).
    pub marks: Vec<(f64, String)>,
}

/// Steps whose mean must have the rate again: one alone may be luck.
const STEADY_STEPS: usize = 3;

impl Timeline {
    /// How long after the last mark the rate was back at `share` of what it was in the last half of the time after the mark (its median); in seconds,
    /// in whole steps. `None` if there is no mark, too little time after it, or if it never was.
    #[must_use]
    // Numbers of steps and operations, far below 2^53; a step that a mark lies in is one of the timeline's.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn recovery(&self, share: f64) -> Option<f64> {
        let &(at, _) = self.marks.last()?;
        let first = (at / self.step_seconds).ceil() as usize;
        // The last step may be shorter.
        let after: Vec<f64> =
            self.operations.get(first..self.operations.len().checked_sub(1)?)?.iter().map(|&count| count as f64).collect();
        let mut late = after[after.len() / 2..].to_vec();
        late.sort_by(f64::total_cmp);
        let steady = *late.get(late.len() / 2)?;
        let back = |steps: &[f64]| steps.iter().sum::<f64>() >= share * steady * STEADY_STEPS as f64;
        after.windows(STEADY_STEPS).position(back).map(|steps| (first + steps) as f64 * self.step_seconds - at)
    }
}

impl Event {
    /// The line, with its end.
    #[must_use]
    pub fn line(&self) -> String {
        // Strings and numbers alone: nothing in it can fail to be written.
        serde_json::to_string(self).map_or_else(|_| String::new(), |line| line + "\n")
    }

    /// Reads a line; `None` if it is something else.
    #[must_use]
    pub fn read(line: &str) -> Option<Event> {
        serde_json::from_str(line).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_comes_back() {
        let outcome = Outcome {
            workload: "random".into(),
            operations: 3,
            latency: Histogram { counts: vec![(5, 2), (9, 1)] },
            ..Default::default()
        };
        for event in [Event::Phase { name: MEASURE.into() }, Event::Outcome(Box::new(outcome))] {
            assert_eq!(Event::read(&event.line()), Some(event));
        }
        assert_eq!(Event::read("Killed"), None);
    }

    #[test]
    fn the_time_to_recover_is_that_of_several_steps() {
        let timeline = |operations: &[u64], marks: &[f64]| Timeline {
            step_seconds: 0.5,
            operations: operations.to_vec(),
            marks: marks.iter().map(|&at| (at, String::new())).collect(),
        };
        let moved = timeline(&[90, 90, 90, 10, 95, 20, 80, 90, 110, 100, 100, 100, 100, 7], &[1.25]);
        assert_eq!(moved.recovery(0.9), Some(1.75), "not the lucky step at 2 s");
        assert_eq!(moved.recovery(0.4), Some(0.25));
        assert_eq!(timeline(&[5; 9], &[]).recovery(0.9), None, "nothing moved");
        assert_eq!(timeline(&[5; 4], &[1.0]).recovery(0.9), None, "too short");
        assert_eq!(timeline(&[5, 5, 9, 1, 1, 1, 9, 1, 9, 1], &[1.0]).recovery(5.0), None, "never");
        assert_eq!(Timeline::default().recovery(0.9), None);
    }

    #[test]
    fn quantiles_and_sums() {
        let mut histogram = Histogram { counts: vec![(10, 98), (20, 1), (30, 1)] };
        assert_eq!(histogram.quantile(0.5), Some(10));
        assert_eq!(histogram.quantile(0.99), Some(20));
        assert_eq!(histogram.quantile(1.0), Some(30));
        assert_eq!(Histogram::default().quantile(0.5), None);
        histogram.add(&Histogram { counts: vec![(5, 1), (20, 2)] });
        assert_eq!(histogram.counts, [(5, 1), (10, 98), (20, 3), (30, 1)]);
        assert_eq!(histogram.total(), 103);
        assert_eq!(histogram.max(), Some(30));
    }
}
