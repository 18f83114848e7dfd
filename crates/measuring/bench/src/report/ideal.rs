//! The ideal far-memory system: what would be left if only the movement of data cost time (MAGE §3.1).
//!
//! # Formula
//!
//! The paper gives the time of a program of which a part is remote, on a system without any software cost, as
//!
//! ```text
//! T_ideal(x) = T0 + L × F(x)
//! ```
//!
//! where `T0` is its time with all memory local, `L` the time of one access to far memory, and `F(x)` the faults of the
//! thread that has the most of them, when `x` percent are local. Here:
//!
//! - `T0` comes from `native` in the same experiment; else from `native` elsewhere in the sweep; else from the first target
//!   with all of its memory local. It is the median over the good rounds.
//! - `L` is the device's median latency of a random read of 4 KiB, one at a time, as measured in the same run.
//! - `F(x)` is what the *first* target has fetched in the measured time, so its read-ahead counts in its favour.
//!   Fetches are counted for all threads together; the worst thread's part of them is its part of the kernel's faults
//!   where the program tells it and the kernel has seen the fetches, else all threads are taken as equal.
//!
//! A workload that runs for a fixed time does less work when it is slower. So all is taken for one operation: with `n` threads
//! and `s` seconds an operation natively (all threads together), one thread needs `n × s` for one of its own.
//!
//! The paper has a processor for each thread. With more threads than processors a thread that waits for a page leaves its
//! processor to others, so that only its own computing time adds up with its waiting, `min(n, processors) × s`, while
//! all together cannot be faster than natively:
//!
//! ```text
//! T_ideal = max(n × s,  min(n, processors) × s + L × faults an operation)
//! ```
//!
//! which for `n ≤ processors` is the paper's.
//!
//! # What is assumed
//!
//! Each fetch is waited for, one after another within a thread, and takes `L` however many are under way: the limit of the
//! device's *throughput* is not in it (the percentages of the device are in the table), and as in the paper writing back
//! costs nothing. A target can come out above the line where its fetches take less than `L`: from a cache of the device, or
//! because one read brings several pages that are waited for.

use farshore_load::outcome::{MEASURE, Outcome};

use super::text::float;
use crate::result::{Access, Axis, Device, Experiment, Figure, Round, TargetResult};
use crate::statistics;

/// The line over a sweep, or one value of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Ideal {
    /// (value on the axis, figure), for each experiment that has what is needed.
    pub points: Vec<(f64, f64)>,
    /// The device's latency, in seconds.
    pub latency: f64,
    /// Where the time without faults comes from: the label of a target.
    pub local: String,
}

/// How many times longer the ideal system takes than a run with all memory local: at least 1; `None` without usable numbers.
///
/// `local`: seconds an operation, all threads together. `faults`: faults of the worst thread for each of its operations.
/// `latency`: of one, in seconds. `cpus`: 0 if not known, which stands for one a thread.
#[must_use]
pub fn slowdown(local: f64, threads: u32, cpus: u32, latency: f64, faults: f64) -> Option<f64> {
    let busy = if cpus == 0 { threads } else { threads.min(cpus) };
    let (threads, busy) = (f64::from(threads), f64::from(busy));
    let slowdown = ((busy * local + latency * faults) / (threads * local)).max(1.0);
    let usable = local > 0.0 && threads > 0.0 && latency > 0.0 && faults >= 0.0;
    (usable && slowdown.is_finite()).then_some(slowdown)
}

/// The device's latency of a random read of a page, in seconds.
#[must_use]
pub fn latency(device: Option<&Device>) -> Option<f64> {
    let point = device?.points.iter().find(|point| point.access == Access::RandomRead && point.depth == 1)?;
    point.latency.quantile(0.5).filter(|ns| *ns > 0).map(|ns| float(ns) / 1e9)
}

/// The ideal figures of the experiments of one sweep, or of one alone (its value on the axis is 0 then).
///
/// # Errors
/// Why there is no such line, for a reader.
pub fn line(experiments: &[&Experiment], device: Option<&Device>, cpus: u32) -> Result<Ideal, String> {
    let latency = latency(device).ok_or("the device's latency of single random reads was not measured")?;
    let first = experiments.first().ok_or("there is no experiment")?;
    if scaled(1.0, 1.0, &first.figure).is_none() {
        return Err(format!("it is a line for times and rates, and {:?} is neither", first.figure.name));
    }
    let mut ideal = Ideal { points: Vec::new(), latency, local: String::new() };
    for experiment in experiments {
        let Some((place, target)) = reference(experiment, experiments) else { continue };
        let threads = experiment.threads;
        let (Some(local), Some(faults)) = (seconds_per_operation(target), faults_per_operation(experiment)) else { continue };
        let figure = target.summary.as_ref().map(|summary| summary.figure.median);
        let slowdown = slowdown(local, threads, cpus, latency, faults);
        let Some(ideal_figure) = figure.zip(slowdown).and_then(|(figure, slowdown)| scaled(figure, slowdown, &place.figure))
        else {
            continue;
        };
        ideal.points.push((experiment.sweep.as_ref().map_or(0.0, |sweep| sweep.value), ideal_figure));
        ideal.local.clone_from(&target.label);
    }
    if ideal.points.is_empty() {
        return Err(
            "it needs a run with all memory local (native, or a first target at 100 %), the number of threads and of fetches"
                .into(),
        );
    }
    Ok(ideal)
}

/// A figure when everything takes `slowdown` times as long; `None` if it is neither a time nor a rate.
fn scaled(figure: f64, slowdown: f64, kind: &Figure) -> Option<f64> {
    if !kind.less_is_better && kind.unit.ends_with("/s") {
        Some(figure / slowdown)
    } else if kind.less_is_better && kind.unit == "s" {
        Some(figure * slowdown)
    } else {
        None
    }
}

/// Who ran without faults: see the head of this module.
fn reference<'a>(experiment: &'a Experiment, experiments: &[&'a Experiment]) -> Option<(&'a Experiment, &'a TargetResult)> {
    let native = |place: &'a Experiment| place.targets.iter().find(|target| target.kind == "native" && target.summary.is_some());
    let found = native(experiment).map(|target| (experiment, target));
    // The same threads and files everywhere in a sweep over memory alone.
    let axis = experiment.sweep.as_ref().map(|sweep| sweep.axis);
    if found.is_some() || axis != Some(Axis::Memory) {
        return found;
    }
    let elsewhere = experiments.iter().find_map(|place| native(place).map(|target| (*place, target)));
    elsewhere.or_else(|| {
        let all_local = experiments.iter().find(|place| place.sweep.as_ref().is_some_and(|sweep| sweep.value >= 100.0))?;
        all_local.targets.first().filter(|target| target.summary.is_some()).map(|target| (*all_local, target))
    })
}

/// Seconds an operation, all threads together, median over the good rounds; a program that does not tell is one operation.
fn seconds_per_operation(target: &TargetResult) -> Option<f64> {
    median(good(target).map(|round| match &round.outcome {
        Some(outcome) if outcome.operations > 0 => outcome.seconds / float(outcome.operations),
        _ => round.wall_seconds,
    }))
}

/// What the worst thread of the first target fetched for each of its operations, median over the good rounds.
fn faults_per_operation(experiment: &Experiment) -> Option<f64> {
    let target = experiment.targets.first()?;
    let threads = f64::from(experiment.threads);
    median(good(target).map(|round| {
        let fetches = round.measured.unwrap_or(round.counters).fetches;
        let (operations, share) = match &round.outcome {
            Some(outcome) if outcome.operations > 0 => {
                (float(outcome.operations), share_of_worst_thread(outcome, threads, fetches))
            }
            _ => (1.0, 1.0 / threads),
        };
        float(fetches) * share * threads / operations
    }))
}

/// The worst thread's part of the faults, at least an equal one.
///
/// The kernel's count of faults a thread is used only if there are as many as fetches: it does not see those that a signal handler serves.
fn share_of_worst_thread(outcome: &Outcome, threads: f64, fetches: u64) -> f64 {
    let measured = outcome.phases.iter().find(|phase| phase.name == MEASURE);
    let told = measured.map_or((0, 0), |phase| (phase.faults_of_worst_thread, phase.minor_faults + phase.major_faults));
    match told {
        (worst, all) if worst > 0 && worst <= all && all >= fetches => (float(worst) / float(all)).max(1.0 / threads),
        _ => 1.0 / threads,
    }
}

fn good(target: &TargetResult) -> impl Iterator<Item = &Round> {
    statistics::good(target).map(|(round, _)| round)
}

/// Without those that are no numbers: 0 operations, 0 threads.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    statistics::median(&values.filter(|value| value.is_finite()).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use farshore_load::outcome::{Histogram, Phase};

    use super::*;
    use crate::result::{Counters, DevicePoint, Spread, Summary, SweepPoint};

    const L: f64 = 100e-6;

    fn near(found: f64, wanted: f64) {
        assert!((found - wanted).abs() <= 1e-9 * wanted.abs(), "{found} is not {wanted}");
    }

    #[test]
    fn the_papers_formula_where_each_thread_has_a_processor() {
        // T0 = 10 s for 4 threads, 50 000 faults of the worst: 10 s + 5 s.
        near(slowdown(10.0, 4, 4, L, 50_000.0 * 4.0).unwrap_or(0.0), 15.0 / 10.0);
        near(slowdown(10.0, 4, 0, L, 50_000.0 * 4.0).unwrap_or(0.0), 1.5);
        // Without faults there is nothing to pay.
        near(slowdown(10.0, 4, 4, L, 0.0).unwrap_or(0.0), 1.0);
    }

    #[test]
    fn waiting_threads_leave_their_processor_to_others() {
        // 8 threads on 2 processors, 1 µs a processor: 4 µs of 8 threads' own time are waiting for a processor anyway.
        let local = 0.5e-6;
        near(slowdown(local, 8, 2, 2e-6, 1.0).unwrap_or(0.0), 1.0);
        near(slowdown(local, 8, 2, 9e-6, 1.0).unwrap_or(0.0), 10.0 / 4.0);
    }

    #[test]
    fn useless_numbers_make_no_line() {
        for (local, threads, latency, faults) in
            [(0.0, 1, L, 1.0), (1.0, 0, L, 1.0), (1.0, 1, 0.0, 1.0), (1.0, 1, L, f64::NAN), (f64::NAN, 1, L, 1.0)]
        {
            assert_eq!(slowdown(local, threads, 1, latency, faults), None);
        }
    }

    #[test]
    fn the_worst_threads_part() {
        let outcome = |worst, minor, major| Outcome {
            phases: vec![Phase {
                name: MEASURE.into(),
                faults_of_worst_thread: worst,
                minor_faults: minor,
                major_faults: major,
                ..Default::default()
            }],
            ..Default::default()
        };
        near(share_of_worst_thread(&outcome(50, 60, 40), 4.0, 100), 0.5);
        // Most fetches were not seen by the kernel.
        near(share_of_worst_thread(&outcome(50, 60, 40), 4.0, 101), 0.25);
        // Not told, less than an equal part, more than all: an equal part.
        for (worst, minor) in [(0, 100), (10, 100), (200, 100)] {
            near(share_of_worst_thread(&outcome(worst, minor, 0), 4.0, 9), 0.25);
        }
        near(share_of_worst_thread(&Outcome::default(), 2.0, 0), 0.5);
    }

    fn target(kind: &str, operations: u64, seconds: f64, fetches: u64) -> TargetResult {
        let figure = float(operations) / seconds;
        let round = Round {
            figure: Some(figure),
            outcome: Some(Outcome { operations, seconds, ..Default::default() }),
            measured: Some(Counters { fetches, ..Default::default() }),
            ..Default::default()
        };
        TargetResult {
            label: kind.into(),
            kind: kind.into(),
            rounds: vec![round],
            summary: Some(Summary { figure: Spread { median: figure, min: figure, max: figure }, ..Default::default() }),
            ..Default::default()
        }
    }

    fn point(value: f64, targets: Vec<TargetResult>) -> Experiment {
        let figure = Figure { name: "updates a second".into(), unit: "/s".into(), less_is_better: false };
        Experiment { threads: 2, sweep: Some(SweepPoint { axis: Axis::Memory, value }), figure, targets, ..Default::default() }
    }

    fn device() -> Device {
        let latency = Histogram { counts: vec![(100_000, 10)] };
        Device {
            file_bytes: 0,
            points: vec![DevicePoint { access: Access::RandomRead, depth: 1, pages_per_second: 1e4, latency }],
        }
    }

    #[test]
    fn a_sweep_over_memory() {
        // 2 threads, 2 processors, a million operations a second: 2 µs each; at 50 % every second one waits 100 µs.
        let all = point(100.0, vec![target("farshore", 6_000_000, 6.0, 0)]);
        let half = point(50.0, vec![target("farshore", 100_000, 6.0, 50_000)]);
        let device = device();
        let found = line(&[&half, &all], Some(&device), 2);
        let ideal = found.unwrap_or_else(|reason| panic!("{reason}"));
        assert_eq!(ideal.local, "farshore");
        near(ideal.points[0].1, 2.0 / 52e-6);
        near(ideal.points[1].1, 1e6);
        // With native beside it, native is what it is set against.
        let half = point(50.0, vec![target("farshore", 100_000, 6.0, 50_000), target("native", 12_000_000, 6.0, 0)]);
        let ideal = line(&[&half, &all], Some(&device), 2).unwrap_or_else(|reason| panic!("{reason}"));
        near(ideal.points[0].1, 2.0 / 51e-6);
    }

    #[test]
    fn reasons_against_a_line() {
        let half = point(50.0, vec![target("farshore", 100_000, 6.0, 50_000)]);
        assert!(line(&[&half], None, 2).is_err_and(|reason| reason.contains("not measured")));
        assert!(line(&[&half], Some(&device()), 2).is_err_and(|reason| reason.contains("local")));
        let mut latency = half.clone();
        latency.figure = Figure { name: "p99 latency".into(), unit: "ns".into(), less_is_better: true };
        assert!(line(&[&latency], Some(&device()), 2).is_err_and(|reason| reason.contains("p99")));
    }

    #[test]
    fn a_program_that_tells_nothing_is_one_operation() {
        let mut slow = point(50.0, vec![target("farshore", 0, 0.0, 30_000), target("native", 0, 0.0, 0)]);
        slow.figure = Figure { name: "seconds".into(), unit: "s".into(), less_is_better: true };
        for target in &mut slow.targets {
            target.rounds[0].outcome = None;
            target.rounds[0].wall_seconds = 4.0;
            target.rounds[0].figure = Some(4.0);
            target.summary = Some(Summary { figure: Spread { median: 4.0, min: 4.0, max: 4.0 }, ..Default::default() });
        }
        let ideal = line(&[&slow], Some(&device()), 2).unwrap_or_else(|reason| panic!("{reason}"));
        near(ideal.points[0].1, 4.0 + 15_000.0 * 100e-6);
    }
}
