//! From raw rows to points: which number each round has, and where the middle of them lies.
//!
//! A point is the median over the good rounds with an interval: by bootstrap from three rounds on, and the range below ([`crate::statistics`]). Numbers that are
//! set against `native` are taken round by round.

use std::collections::BTreeMap;

use farshore_load::outcome::Outcome;

use super::{Figure, Panel, Value};
use crate::report::ideal;
use crate::report::text::float;
use crate::result::{Access, Device, DevicePoint, Experiment, Ratio, Results, Round, TargetResult};
use crate::statistics;

/// At this share of its rate before a workload that has changed is back.
const BACK_AT: f64 = 0.9;
/// Steps whose mean is the rate at a time: one alone may be luck.
const STEPS: usize = 3;

/// A number of each good round.
pub type Rounds = BTreeMap<u32, f64>;

/// A point of a series.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    /// Where it is, as the registry has it.
    pub x: f64,
    /// Where it is on the axis.
    pub shown: f64,
    /// Median and interval.
    pub middle: Ratio,
}

/// A series.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// Target and variant.
    pub label: String,
    /// Its points, ascending.
    pub points: Vec<Point>,
}

/// The experiments of a panel, ascending.
#[must_use]
pub fn experiments<'a>(results: &'a Results, figure: &Figure, panel: &str) -> Vec<&'a Experiment> {
    let of = |experiment: &&Experiment| {
        experiment.paper.as_ref().is_some_and(|point| point.figure == figure.name && point.panel == panel)
    };
    let mut found: Vec<&Experiment> = results.experiments.iter().filter(of).collect();
    found.sort_by(|one, other| x(one).total_cmp(&x(other)));
    found
}

/// Where it is, as the registry has it.
#[must_use]
pub fn x(experiment: &Experiment) -> f64 {
    experiment.paper.as_ref().map_or(f64::NAN, |point| point.x)
}

/// What a series is called.
#[must_use]
pub fn label(experiment: &Experiment, target: &TargetResult) -> String {
    match experiment.paper.as_ref().map(|point| point.variant.as_str()) {
        Some(variant) if !variant.is_empty() => format!("{}, {variant}", target.label),
        _ => target.label.clone(),
    }
}

/// The series of some experiments, in the order in which they come first. `native` is none where the others are set against it.
#[must_use]
pub fn all(experiments: &[&Experiment], value: Value) -> Vec<Series> {
    let mut series: Vec<Series> = Vec::new();
    for experiment in experiments {
        let targets = experiment.targets.iter().filter(|target| !is_base(target, value));
        let drawn = targets.flat_map(|target| value.drawn().into_iter().map(move |drawn| (target, drawn)));
        for (target, (value, part)) in drawn {
            let Some(middle) = middle(&rounds(experiment, target, value)) else { continue };
            let shown = if value.is_over_rate() {
                self::middle(&rounds(experiment, target, Value::Rate)).map_or(f64::NAN, |rate| rate.median)
            } else {
                experiment.paper.as_ref().map_or(f64::NAN, |point| point.shown)
            };
            let of = label(experiment, target);
            let label = if part.is_empty() { of } else { format!("{of}, {part}") };
            let point = Point { x: x(experiment), shown, middle };
            match series.iter_mut().find(|other| other.label == label) {
                Some(other) => other.points.push(point),
                None => series.push(Series { label, points: vec![point] }),
            }
        }
    }
    series
}

/// Whether the others are set against this target, so that it has no number of its own.
#[must_use]
pub fn is_base(target: &TargetResult, value: Value) -> bool {
    match value.of_target() {
        Some(label) => target.label == label,
        None => value.of_native().is_some() && target.kind == "native",
    }
}

/// The number of each good round of a target.
#[must_use]
pub fn rounds(experiment: &Experiment, target: &TargetResult, value: Value) -> Rounds {
    let base = |number: u32, of| {
        let base = experiment.targets.iter().find(|target| is_base(target, value))?;
        good(base).find(|round| round.number == number).and_then(|round| of_round(round, of))
    };
    let number = |round: &Round| match (value.of_native(), value.of_target()) {
        (Some(of), _) => Some(of_round(round, of)? / base(round.number, of)? * 100.0),
        (None, Some(_)) => Some(of_round(round, Value::Rate)? / base(round.number, Value::Rate)?),
        (None, None) => of_round(round, value),
    };
    let numbers = good(target).filter_map(|round| Some((round.number, number(round)?)));
    let numbers: Rounds = numbers.filter(|(_, number)| number.is_finite() && *number > 0.0).collect();
    // What is left of a whole may be below nothing by noise. The others alone would say too much.
    let is_rest = matches!(value, Value::FaultPart("around"));
    if is_rest && numbers.len() < good(target).count() { Rounds::new() } else { numbers }
}

/// Good rounds that have no number above 0: nothing was done, or the rate never came back.
#[must_use]
pub fn lost(target: &TargetResult, value: Value) -> usize {
    let has = |round: &&Round| of_round(round, value).is_some_and(|number| number.is_finite() && number > 0.0);
    good(target).count() - good(target).filter(has).count()
}

fn good(target: &TargetResult) -> impl Iterator<Item = &Round> {
    target.rounds.iter().filter(|round| round.wrong.is_empty())
}

/// Median and interval; `None` without numbers.
#[must_use]
pub fn middle(rounds: &Rounds) -> Option<Ratio> {
    let numbers: Vec<Option<f64>> = rounds.values().copied().map(Some).collect();
    // Set against 1, each number is a ratio.
    statistics::ratio(&numbers, &vec![Some(1.0); numbers.len()], false)
}

fn of_round(round: &Round, value: Value) -> Option<f64> {
    let outcome = round.outcome.as_ref()?;
    let counted = |name: &str| round.stats.as_ref()?.get("swap")?.get(name)?.as_f64();
    match value {
        Value::Rate | Value::Kept | Value::Over(_) => {
            (outcome.seconds > 0.0).then(|| float(outcome.operations) / outcome.seconds)
        }
        Value::Part(name) | Value::PartKept(name) => {
            let part = outcome.phases.iter().find(|phase| phase.name == name && phase.seconds > 0.0)?;
            Some(float(part.operations) / part.seconds)
        }
        Value::PagesIn => {
            let measured = round.measured.filter(|_| round.measured_seconds > 0.0)?;
            Some(float(measured.pages_in) / round.measured_seconds)
        }
        Value::Quantile(share) | Value::QuantileOverRate(share) => outcome.latency.quantile(share).map(float),
        Value::Mean => {
            let (sum, count) = outcome
                .latency
                .counts
                .iter()
                .fold((0.0, 0.0), |(sum, all), (ns, count)| (sum + float(*ns) * float(*count), all + float(*count)));
            (count > 0.0).then(|| sum / count)
        }
        Value::Seconds => Some(outcome.seconds),
        // Back at once is back within the step.
        Value::Recovery => recovery(outcome).map(|seconds| seconds.max(outcome.timeline.step_seconds)),
        Value::Dip => dip(outcome),
        Value::Delegation => Some(counted("delegation_ns")? / counted("delegations")?),
        // The whole run's, which is little more than the measured phase where nothing is filled beforehand.
        Value::Delegations => {
            (round.wall_seconds > 0.0).then(|| counted("delegations").map(|count| count / round.wall_seconds)).flatten()
        }
        Value::FaultPart(part) => fault_part(round, part),
        Value::RequestPart(part, share) => request_part(round, part, share),
        Value::FaultParts | Value::RequestParts | Value::Timeline => None,
    }
}

/// Mean time of a part of the requests around a percentile, in ns; `requests` is how many they are.
pub(super) fn request_part(round: &Round, part: &str, share: f64) -> Option<f64> {
    let around = round.requests.as_ref()?.around.iter().find(|around| (around.share - share).abs() < 1e-9)?;
    let mean = |name: &str| around.means.get(name).copied().unwrap_or(0.0);
    // All in which a worker could have run it and did something else.
    let queue = || ["socket_ns", "queue_ns", "again_ns", "gave_way_ns"].into_iter().map(mean).sum::<f64>();
    Some(match part {
        "all" => mean("total_ns"),
        "queue" => queue(),
        "spun" => mean("spun_ns"),
        "unspun" => (queue() - mean("spun_ns")).max(0.0),
        "but-page" => mean("total_ns") - mean("page_ns"),
        "run" => mean("run_ns"),
        "page" => mean("page_ns"),
        "other" => mean("other_ns"),
        "reply" => mean("reply_ns"),
        "pages" => mean("pages"),
        "requests" => float(around.requests),
        _ => return None,
    })
}

/// Mean time of a part of a fetch, in ns. The parts inside the handler are Farshore's, of fetches that waited for nothing but their read; all is what the program
/// sees in its measured time, for each page that came.
fn fault_part(round: &Round, part: &str) -> Option<f64> {
    let parts = round.stats.as_ref()?.get("fetch_parts")?;
    let counted = |name: &str| parts.get(name)?.as_f64();
    let measured = counted("measured").filter(|measured| *measured > 0.0)?;
    let inside = |name: &str| Some(counted(&format!("{name}_ns"))? / measured);
    let all = || {
        let fetches = round.measured.filter(|measured| measured.fetches > 0)?.fetches;
        let waited = |(ns, count): &(u64, u64)| float(*ns) * float(*count);
        Some(round.outcome.as_ref()?.latency.counts.iter().map(waited).sum::<f64>() / float(fetches))
    };
    match part {
        "all" => all(),
        "around" => {
            let known: Option<Vec<f64>> = ["claim", "read", "check", "map", "rest"].into_iter().map(inside).collect();
            Some(all()? - known?.into_iter().sum::<f64>())
        }
        part => inside(part),
    }
}

/// A change in mid-run: the median of the steps before the last mark, when the first step behind it begins after it in s, and the rates of the steps from there on.
fn change(outcome: &Outcome) -> Option<(f64, f64, Vec<f64>)> {
    let timeline = &outcome.timeline;
    let &(at, _) = timeline.marks.last()?;
    let begins = |step: usize| float(step as u64) * timeline.step_seconds;
    // The last step may be shorter.
    let steps = timeline.operations.len().checked_sub(1)?;
    // Times are sums of tenths, and not exact.
    let near = timeline.step_seconds * 1e-6;
    let of = |wanted: &dyn Fn(usize) -> bool| -> Vec<f64> {
        (0..steps).filter(|step| wanted(*step)).map(|step| float(timeline.operations[step])).collect()
    };
    let before = statistics::median(&of(&|step| begins(step + 1) <= at + near))?;
    let first = (0..steps).find(|step| begins(*step) >= at - near)?;
    // Later rates are no base: they may have collapsed.
    (before > 0.0).then(|| (before, (begins(first) - at).max(0.0), of(&|step| step >= first)))
}

fn means(rates: &[f64]) -> impl Iterator<Item = f64> {
    rates.windows(STEPS).map(|steps| steps.iter().sum::<f64>() / float(STEPS as u64))
}

/// After how many seconds the rate was back; `None` if it never was.
fn recovery(outcome: &Outcome) -> Option<f64> {
    let (before, lag, after) = change(outcome)?;
    let back = means(&after).position(|rate| rate >= BACK_AT * before)?;
    Some(lag + float(back as u64) * outcome.timeline.step_seconds)
}

/// The lowest rate after the change, in percent of that before it.
fn dip(outcome: &Outcome) -> Option<f64> {
    let (before, _, after) = change(outcome)?;
    let lowest = means(&after).fold(f64::INFINITY, f64::min);
    // A rate of 0 is a number too: as a ratio it would be left out.
    lowest.is_finite().then(|| (lowest / before * 100.0).max(0.1))
}

/// The ideal line of a panel, in operations a second or percent of all local: (shown, number).
///
/// # Errors
/// Why there is none, for a reader.
pub fn ideal(results: &Results, experiments: &[&Experiment], panel: &Panel, value: Value) -> Result<Vec<(f64, f64)>, String> {
    let latency = panel.ideal.ok_or("it has no ideal line")?;
    let delay;
    let device = match latency {
        super::Latency::Device => results.device.as_ref(),
        super::Latency::Delay(ns) => {
            delay = of_delay(ns);
            Some(&delay)
        }
    };
    let mut line = Vec::new();
    let mut why = "no point was measured".to_string();
    for experiment in experiments {
        let found = ideal::line(&[*experiment], device, results.machine.cpus);
        let point = found.map(|ideal| ideal.points.first().map(|(_, rate)| *rate));
        let native = experiment.targets.iter().find(|target| target.kind == "native").and_then(|target| target.summary.as_ref());
        match (point, native) {
            (Ok(Some(rate)), Some(native)) => {
                let number = if value == Value::Kept { rate / native.figure.median * 100.0 } else { rate };
                line.extend(experiment.paper.as_ref().map(|point| (point.shown, number)).filter(|_| number.is_finite()));
            }
            (Err(reason), _) => why = reason,
            _ => {}
        }
    }
    if line.is_empty() { Err(why) } else { Ok(line) }
}

/// A device whose single reads take just so long.
fn of_delay(ns: u64) -> Device {
    let latency = farshore_load::outcome::Histogram { counts: vec![(ns, 1)] };
    let point = DevicePoint { access: Access::RandomRead, depth: 1, pages_per_second: 1e9 / float(ns.max(1)), latency };
    Device { file_bytes: 0, points: vec![point] }
}

#[cfg(test)]
mod tests {
    use farshore_load::outcome::{Histogram, Timeline};

    use super::*;
    use crate::result::{Counters, PaperPoint};

    fn round(number: u32, operations: u64, seconds: f64) -> Round {
        let outcome = Outcome { operations, seconds, ..Outcome::default() };
        Round { number, outcome: Some(outcome), ..Round::default() }
    }

    fn target(label: &str, rounds: Vec<Round>) -> TargetResult {
        let kind = if label == "native" { "native" } else { "farshore" };
        TargetResult { label: label.into(), kind: kind.into(), rounds, ..TargetResult::default() }
    }

    fn experiment(x: f64, variant: &str, targets: Vec<TargetResult>) -> Experiment {
        let point =
            PaperPoint { figure: "f".into(), panel: "p".into(), variant: variant.into(), x, shown: x * 10.0, quick: false };
        Experiment { paper: Some(point), targets, ..Experiment::default() }
    }

    #[test]
    fn what_is_kept_is_taken_round_by_round() {
        let bad = Round { wrong: vec!["bad".into()], ..round(3, 9, 1.0) };
        let ours = target("ours", vec![round(1, 50, 1.0), round(2, 30, 1.0), bad.clone(), round(4, 10, 1.0)]);
        // The rounds of the other in another order, and one that it lacks.
        let native = target("native", vec![round(2, 300, 1.0), round(1, 200, 2.0), round(3, 100, 1.0)]);
        let experiment = experiment(1.0, "", vec![ours, native]);
        let kept = rounds(&experiment, &experiment.targets[0], Value::Kept);
        assert_eq!(kept, [(1, 50.0), (2, 10.0)].into());
        assert_eq!(all(&[&experiment], Value::Kept).iter().map(|series| series.label.as_str()).collect::<Vec<_>>(), ["ours"]);
        assert_eq!(all(&[&experiment], Value::Rate).len(), 2);
    }

    #[test]
    fn a_ratio_is_taken_round_by_round_and_its_base_has_none() {
        let bad = Round { wrong: vec!["bad".into()], ..round(3, 1, 1.0) };
        let ours = target("ours", vec![round(1, 50, 1.0), round(2, 30, 1.0), round(3, 7, 1.0)]);
        let other = target("other", vec![round(2, 300, 1.0), round(1, 20, 2.0), bad]);
        let experiment = experiment(1.0, "", vec![ours, other]);
        let over = Value::Over("other");
        assert_eq!(rounds(&experiment, &experiment.targets[0], over), [(1, 5.0), (2, 0.1)].into());
        assert_eq!(all(&[&experiment], over).iter().map(|series| series.label.as_str()).collect::<Vec<_>>(), ["ours"]);
        assert!(rounds(&experiment, &experiment.targets[0], Value::Over("none")).is_empty());
        assert!((over.unit(), over.less_is_better(), over.of_native()) == ("×", false, None));
    }

    #[test]
    fn a_curve_over_the_rate_stands_where_the_rate_was() {
        let of = |x, operations, ns| {
            let mut round = round(1, operations, 2.0);
            round.outcome.as_mut().unwrap().latency.counts = vec![(ns, operations)];
            experiment(x, "", vec![target("ours", vec![round])])
        };
        // More threads, and a rate that falls in the end: the order of the points is that of the threads.
        let experiments = [of(1.0, 100, 1000), of(2.0, 180, 1500), of(4.0, 160, 3000)];
        let curve = &all(&experiments.iter().collect::<Vec<_>>(), Value::QuantileOverRate(0.5))[0];
        let places: Vec<(f64, f64)> = curve.points.iter().map(|point| (point.x, point.shown)).collect();
        assert_eq!(places, [(1.0, 50.0), (2.0, 90.0), (4.0, 80.0)]);
        let plain = &all(&experiments.iter().collect::<Vec<_>>(), Value::Quantile(0.5))[0];
        assert!(curve.points.iter().zip(&plain.points).all(|(one, other)| one.middle == other.middle));
    }

    #[test]
    fn a_series_is_a_target_with_its_variant_and_its_points_ascend() {
        let of = |x, variant: &str, operations| experiment(x, variant, vec![target("ours", vec![round(1, operations, 1.0)])]);
        let results = Results { experiments: vec![of(8.0, "a", 80), of(1.0, "a", 10), of(1.0, "b", 20)], ..Results::default() };
        let figure = Figure { name: "f", ..*super::super::find("mage-5").unwrap() };
        let series = all(&experiments(&results, &figure, "p"), Value::Rate);
        let told: Vec<(&str, Vec<(f64, f64)>)> = series
            .iter()
            .map(|series| (series.label.as_str(), series.points.iter().map(|point| (point.shown, point.middle.median)).collect()))
            .collect();
        assert_eq!(told, [("ours, a", vec![(10.0, 10.0), (80.0, 80.0)]), ("ours, b", vec![(10.0, 20.0)])]);
        assert!(experiments(&results, &figure, "another").is_empty());
    }

    #[test]
    fn numbers_of_a_round() {
        let mut round = round(1, 40, 2.0);
        let number = |round: &Round, value| of_round(round, value);
        assert_eq!((number(&round, Value::Rate), number(&round, Value::Seconds)), (Some(20.0), Some(2.0)));
        for value in [
            Value::PagesIn,
            Value::Quantile(0.5),
            Value::Mean,
            Value::Recovery,
            Value::Dip,
            Value::Delegation,
            Value::Delegations,
        ] {
            assert_eq!(number(&round, value), None, "{value:?}: nothing was told");
        }
        let phase = |name: &str, seconds| farshore_load::outcome::Phase {
            name: name.into(),
            operations: 20,
            seconds,
            ..Default::default()
        };
        round.outcome.as_mut().unwrap().phases = vec![phase("map", 0.5), phase("reduce", 2.0), phase("never", 0.0)];
        assert_eq!((number(&round, Value::Part("map")), number(&round, Value::Part("reduce"))), (Some(40.0), Some(10.0)));
        assert_eq!((number(&round, Value::Part("never")), number(&round, Value::Part("another"))), (None, None));
        let of = |seconds| {
            let outcome = Outcome { phases: vec![phase("map", seconds)], ..Outcome::default() };
            Round { number: 1, outcome: Some(outcome), ..Round::default() }
        };
        let kept = experiment(1.0, "", vec![target("ours", vec![of(2.0)]), target("native", vec![of(0.5)])]);
        assert_eq!(rounds(&kept, &kept.targets[0], Value::PartKept("map")), [(1, 25.0)].into());
        assert_eq!(all(&[&kept], Value::PartKept("map")).len(), 1, "native is what the other is set against");
        round.measured = Some(Counters { pages_in: 30, ..Counters::default() });
        round.measured_seconds = 0.5;
        round.wall_seconds = 0.8;
        round.stats = Some(serde_json::json!({"swap": {"delegations": 4, "delegation_ns": 100}}));
        let outcome = round.outcome.as_mut().unwrap();
        outcome.latency = Histogram { counts: vec![(10, 3), (50, 1)] };
        let operations = vec![100, 100, 20, 40, 60, 100, 100, 100, 100, 100, 7];
        outcome.timeline = Timeline { step_seconds: 0.1, operations, marks: vec![(0.2, "moves".into())] };
        assert_eq!(number(&round, Value::PagesIn), Some(60.0));
        assert_eq!((number(&round, Value::Quantile(0.5)), number(&round, Value::Mean)), (Some(10.0), Some(20.0)));
        assert_eq!((number(&round, Value::Dip), number(&round, Value::Delegation)), (Some(40.0), Some(25.0)));
        assert_eq!(number(&round, Value::Delegations), Some(5.0));
        // 20, 40, 60, then 100: back from the step that begins 0.3 s after the change.
        assert!(number(&round, Value::Recovery).is_some_and(|seconds| (seconds - 0.3).abs() < 1e-9));
    }

    #[test]
    fn a_fetch_has_parts_and_a_rest_around_them() {
        let parts = serde_json::json!({"measured": 10, "claim_ns": 1000, "read_ns": 40_000, "check_ns": 500, "map_ns": 8000, "rest_ns": 500});
        let mut round = round(1, 100, 1.0);
        round.stats = Some(serde_json::json!({ "fetch_parts": parts }));
        let number = |round: &Round, part| of_round(round, Value::FaultPart(part));
        assert_eq!((number(&round, "read"), number(&round, "map"), number(&round, "all")), (Some(4000.0), Some(800.0), None));
        round.outcome.as_mut().unwrap().latency = Histogram { counts: vec![(100, 50), (7900, 50)] };
        round.measured = Some(Counters { fetches: 50, ..Counters::default() });
        assert_eq!((number(&round, "all"), number(&round, "around")), (Some(8000.0), Some(3000.0)));
        let of = experiment(2.0, "", vec![target("ours", vec![round.clone()])]);
        let drawn = all(&[&of], Value::FaultParts);
        assert_eq!(drawn.len(), super::super::FETCH_PARTS.len());
        assert!(
            drawn
                .iter()
                .any(|series| series.label == "ours, page and frame" && (series.points[0].middle.median - 100.0).abs() < 1e-9)
        );
        round.stats = Some(serde_json::json!({"fetch_parts": {"measured": 0, "read_ns": 0}}));
        assert_eq!(number(&round, "read"), None, "nothing was measured");
    }

    #[test]
    fn a_request_has_parts_at_percentiles() {
        let names = ["total_ns", "socket_ns", "queue_ns", "run_ns", "page_ns", "again_ns", "gave_way_ns", "reply_ns", "spun_ns"];
        let means = names.into_iter().zip([100.0, 10.0, 20.0, 5.0, 40.0, 8.0, 7.0, 10.0, 30.0]);
        let means = means.map(|(name, ns)| (name.to_string(), ns)).collect();
        let around = vec![crate::result::RequestsAround { share: 0.99, requests: 12, means }];
        let requests = Some(crate::result::Requests { recorded: 1200, dropped: 0, around });
        let round = Round { requests, ..round(1, 40, 2.0) };
        let number = |part| of_round(&round, Value::RequestPart(part, 0.99));
        assert_eq!(
            (number("all"), number("queue"), number("spun"), number("unspun")),
            (Some(100.0), Some(45.0), Some(30.0), Some(15.0))
        );
        assert_eq!((number("page"), number("but-page"), number("requests")), (Some(40.0), Some(60.0), Some(12.0)));
        let sum: f64 = super::super::REQUEST_PARTS.iter().filter_map(|(part, _)| number(part)).sum();
        assert_eq!((Some(sum), number("another")), (number("all"), None));
        assert_eq!(of_round(&round, Value::RequestPart("all", 0.5)), None);
    }

    #[test]
    fn a_rate_that_collapses_does_not_come_back() {
        let mut round = round(1, 40, 2.0);
        let operations = vec![100, 100, 100, 10, 10, 10, 10, 10, 10, 3];
        round.outcome.as_mut().unwrap().timeline = Timeline { step_seconds: 0.1, operations, marks: vec![(0.3, "moves".into())] };
        // Set against the later rate it would be back at once, and have no dip.
        assert_eq!((of_round(&round, Value::Dip), of_round(&round, Value::Recovery)), (Some(10.0), None));
        let target = target("ours", vec![round.clone()]);
        assert_eq!((lost(&target, Value::Dip), lost(&target, Value::Recovery)), (0, 1));
        round.outcome.as_mut().unwrap().operations = 0;
        round.outcome.as_mut().unwrap().timeline.operations = vec![100, 100, 100, 0, 0, 0, 0, 0];
        assert_eq!((of_round(&round, Value::Dip), of_round(&round, Value::Rate)), (Some(0.1), Some(0.0)));
        let bad = Round { wrong: vec!["bad".into()], ..round.clone() };
        assert_eq!(lost(&self::target("ours", vec![round, bad]), Value::Rate), 1);
    }

    #[test]
    fn one_number_has_no_interval_and_three_have_one() {
        let of = |numbers: &[f64]| {
            middle(&(1..).zip(numbers.iter().copied()).collect()).map(|ratio| (ratio.low, ratio.median, ratio.high))
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[5.0]), Some((5.0, 5.0, 5.0)));
        assert_eq!(of(&[4.0, 5.0, 9.0]), Some((4.0, 5.0, 9.0)));
    }
}
