//! From rounds to numbers: medians, ranges, ratios with an interval. Pure: the same rounds give the same numbers, on each machine.
//!
//! # What the interval is
//!
//! Targets take turns, so a round's ratio is free of whatever changed slowly. The interval is the percentile bootstrap of the ratios'
//! median: draw as many ratios as there are, with repetition, take the median, [`RESAMPLES`] times, and leave out 2.5 % at each end.
//!
//! With few rounds this is about the range. Of `n = 5` draws the median is the smallest ratio if at least 3 draws hit it:
//! `Σ(k=3..5) C(5,k)·0.2^k·0.8^(5−k) = 5.8 %`, more than the 2.5 % that are left out, so that the interval is just smallest to largest.
//! The true median is outside the range only if all ratios are on the same side of it: `2·0.5^5 = 6.3 %`. So one of sixteen
//! comparisons of a target with itself is told as a difference at 5 rounds; it is one of eight at 4, one of four at 3. With 6
//! and more rounds the interval lies inside the range, and holds the true median in 90 to 95 % of the cases. Below 3 rounds
//! nothing can be said of chance: the interval is the range, and a verdict that rests on it has no confidence at all.

use std::collections::BTreeSet;

use farshore_load::outcome::Histogram;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use crate::device;
use crate::result::{Counters, Device, Experiment, Percentiles, Ratio, Round, Spread, Summary, TargetResult};

/// The share of intervals that should hold the true value.
pub const CONFIDENCE: f64 = 0.95;

/// How often is drawn. The ends of the interval are exact to a tenth of a percent of probability.
pub const RESAMPLES: usize = 10_000;

/// Fewer rounds than this are not resampled.
pub const FEWEST_ROUNDS: usize = 3;

/// The same numbers each time: an interval must not change by looking at it again.
const SEED: u64 = 0xfa25_40e1;

/// Runs of this many pages and more are to a device as good as in order: 256 KiB.
const LONG_RUN_PAGES: u32 = 64;

/// The median; of an even number of values, the mean of the two in the middle. `None` if there are none.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    (!values.is_empty()).then(|| median_of(&mut values))
}

/// Median and range; `None` if there are no values.
#[must_use]
pub fn spread(values: &[f64]) -> Option<Spread> {
    let median = median(values)?;
    let min = values.iter().copied().fold(f64::INFINITY, f64::min);
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Some(Spread { median, min, max })
}

/// How many times better `first` is than `other`, round by round (the index is the round). Rounds that one of them lacks are left
/// out, and so are those whose ratio is no positive number (a figure of 0). `None` if no round is left.
///
/// What the interval is, and what it is worth, is told at the head of this module.
#[must_use]
pub fn ratio(first: &[Option<f64>], other: &[Option<f64>], less_is_better: bool) -> Option<Ratio> {
    let rounds = paired(first, other, less_is_better);
    let mut sample = rounds.clone();
    let (low, high) = if rounds.len() < FEWEST_ROUNDS {
        let range = spread(&rounds)?;
        (range.min, range.max)
    } else {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(SEED);
        interval(|| resampled_median(&rounds, &mut sample, &mut random))
    };
    Some(Ratio { median: median(&rounds)?, low, high, confidence: CONFIDENCE, rounds })
}

/// The ratio of each round in which both have a figure, in order: above 1, `first` is better.
#[must_use]
pub fn paired(first: &[Option<f64>], other: &[Option<f64>], less_is_better: bool) -> Vec<f64> {
    let better = |first: f64, other: f64| if less_is_better { other / first } else { first / other };
    let ratios = first.iter().zip(other).filter_map(|(first, other)| Some(better((*first)?, (*other)?)));
    ratios.filter(|ratio| ratio.is_finite() && *ratio > 0.0).collect()
}

/// How many times the median of `new` is that of `old`, two samples whose values are *not* paired: each is resampled by itself.
/// With fewer than three values on a side the interval is what the ranges allow. `None` if a side is empty or has a value that is
/// not above 0.
///
/// At 5 values a side the interval is wider than it need be: it holds the true value in about 97 % of the cases.
#[must_use]
pub fn unpaired_ratio(new: &[f64], old: &[f64]) -> Option<Ratio> {
    let (new_range, old_range) = (spread(new)?, spread(old)?);
    if new.iter().chain(old).any(|value| !value.is_finite() || *value <= 0.0) {
        return None;
    }
    let (low, high) = if new.len().min(old.len()) < FEWEST_ROUNDS {
        (new_range.min / old_range.max, new_range.max / old_range.min)
    } else {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(SEED);
        let (mut new_sample, mut old_sample) = (new.to_vec(), old.to_vec());
        interval(|| resampled_median(new, &mut new_sample, &mut random) / resampled_median(old, &mut old_sample, &mut random))
    };
    Some(Ratio { median: new_range.median / old_range.median, low, high, confidence: CONFIDENCE, rounds: Vec::new() })
}

/// The percentiles; `None` if there are no values.
#[must_use]
pub fn percentiles(latency: &Histogram) -> Option<Percentiles> {
    Some(Percentiles {
        p50: latency.quantile(0.5)?,
        p90: latency.quantile(0.9)?,
        p99: latency.quantile(0.99)?,
        p999: latency.quantile(0.999)?,
        max: latency.max()?,
    })
}

/// Fills in each target's summary from its good rounds: those in which nothing was wrong and which have a figure.
///
/// Faults, fetches and transfers are those of the measured phase where the program tells of one, else of the whole run.
/// `uses_device` says of a target's label whether its pages go to `device`.
pub fn summarise(experiment: &mut Experiment, device: Option<&Device>, uses_device: &dyn Fn(&str) -> bool) {
    let in_order = goes_in_order(experiment);
    let less_is_better = experiment.figure.less_is_better;
    let rounds: BTreeSet<u32> = experiment.targets.iter().flat_map(|target| &target.rounds).map(|round| round.number).collect();
    let figures: Vec<Vec<Option<f64>>> = experiment.targets.iter().map(|target| figures(target, &rounds)).collect();
    for (index, target) in experiment.targets.iter_mut().enumerate() {
        let device = device.filter(|_| uses_device(&target.label)).map(|device| (device, in_order));
        target.summary = summary(target, device).map(|summary| Summary {
            ratio: (index > 0).then(|| ratio(&figures[0], &figures[index], less_is_better)).flatten(),
            ..summary
        });
    }
}

/// The target's figure in each of `rounds`; `None` where it has no good one.
#[must_use]
pub fn figures(target: &TargetResult, rounds: &BTreeSet<u32>) -> Vec<Option<f64>> {
    let figure = |number| good(target).find(|(round, _)| round.number == number).map(|(_, figure)| figure);
    rounds.iter().map(|number| figure(*number)).collect()
}

/// The target's good rounds, with their figures.
pub fn good(target: &TargetResult) -> impl Iterator<Item = (&Round, f64)> {
    let figure = |round: &Round| round.figure.filter(|figure| round.wrong.is_empty() && figure.is_finite());
    target.rounds.iter().filter_map(move |round| Some((round, figure(round)?)))
}

/// A target's summary, without the ratio.
fn summary(target: &TargetResult, device: Option<(&Device, bool)>) -> Option<Summary> {
    let (rounds, figures): (Vec<&Round>, Vec<f64>) = good(target).unzip();
    let windows: Vec<Window> = rounds.iter().map(|round| Window::of(round)).collect();
    let mut latency = Histogram::default();
    rounds.iter().filter_map(|round| round.outcome.as_ref()).for_each(|outcome| latency.add(&outcome.latency));
    let share = |(device, in_order)| over(&windows, |window| window.share(device, in_order));
    Some(Summary {
        figure: spread(&figures)?,
        latency: percentiles(&latency),
        ratio: None,
        faults: whole(over(&windows, |window| Some(window.faults()))),
        fetches: whole(over(&windows, |window| Some(window.counters.fetches as f64))),
        fetches_per_second: over(&windows, Window::fetches_per_second).unwrap_or(0.0),
        cpu_us_per_fault: over(&windows, Window::cpu_us_per_fault).unwrap_or(0.0),
        cpu_seconds: over(&rounds, |round| Some(round.user_seconds + round.system_seconds))?,
        wall_seconds: over(&rounds, |round| Some(round.wall_seconds))?,
        peak_resident_bytes: whole(over(&rounds, |round| Some(round.peak_resident_bytes as f64))),
        device_percent: device.and_then(share),
    })
}

/// What was counted, and for how long.
struct Window {
    counters: Counters,
    seconds: f64,
}

impl Window {
    fn of(round: &Round) -> Window {
        match round.measured {
            Some(counters) if round.measured_seconds > 0.0 => Window { counters, seconds: round.measured_seconds },
            _ => Window { counters: round.counters, seconds: round.wall_seconds },
        }
    }

    fn faults(&self) -> f64 {
        (self.counters.fetches + self.counters.other_faults) as f64
    }

    fn a_second(&self, count: u64) -> Option<f64> {
        (self.seconds > 0.0).then(|| count as f64 / self.seconds)
    }

    fn fetches_per_second(&self) -> Option<f64> {
        self.a_second(self.counters.fetches)
    }

    fn cpu_us_per_fault(&self) -> Option<f64> {
        (self.faults() > 0.0).then(|| self.counters.cpu_seconds * 1e6 / self.faults())
    }

    fn share(&self, device: &Device, in_order: bool) -> Option<f64> {
        device::share(device, self.a_second(self.counters.pages_in)?, self.a_second(self.counters.pages_out)?, in_order)
    }
}

/// The median of a number of each item that has it.
fn over<T>(items: &[T], number: impl Fn(&T) -> Option<f64>) -> Option<f64> {
    median(&items.iter().filter_map(number).collect::<Vec<f64>>())
}

/// A median of counts as a count again; 0 for none.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(median: Option<f64>) -> u64 {
    median.unwrap_or(0.0).round() as u64
}

/// Whether the workload goes through its pages in order, so that its limit is that of large transfers.
fn goes_in_order(experiment: &Experiment) -> bool {
    let run_length = experiment.arguments.iter().find_map(|word| word.strip_prefix("--run-length=")?.parse::<u32>().ok());
    ["scan", "stress"].contains(&experiment.workload.as_str())
        || (experiment.workload == "random" && run_length.is_some_and(|pages| pages >= LONG_RUN_PAGES))
}

/// Sorts `values`, of which there is at least one.
fn median_of(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) { f64::midpoint(values[middle - 1], values[middle]) } else { values[middle] }
}

/// The median of as many values as `values` has, drawn from it; `sample`, of the same length, is the place for them.
fn resampled_median(values: &[f64], sample: &mut [f64], random: &mut Xoshiro256PlusPlus) -> f64 {
    sample.fill_with(|| values[random.random_range(0..values.len())]);
    median_of(sample)
}

/// Where [`CONFIDENCE`] of what `draw` gives lies; the ends are rounded outwards.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn interval(mut draw: impl FnMut() -> f64) -> (f64, f64) {
    let mut drawn: Vec<f64> = (0..RESAMPLES).map(|_| draw()).collect();
    drawn.sort_unstable_by(f64::total_cmp);
    let left_out = (1.0 - CONFIDENCE) / 2.0;
    let last = (RESAMPLES - 1) as f64;
    (drawn[(left_out * last).floor() as usize], drawn[((1.0 - left_out) * last).ceil() as usize])
}

#[cfg(test)]
mod tests;
