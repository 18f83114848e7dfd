//! The table of one experiment or of the points of one sweep, with what is to be said of failures below it.

use std::collections::{BTreeMap, BTreeSet};

use farshore_load::outcome::Outcome;

use super::grid::{self, Cell, Column, Tone};
use super::units::{bytes, decimals, digits, metric, nanoseconds, percent, point, quantity, quantity_range};
use crate::report::group::{Group, axis_name};
use crate::result::{Axis, Experiment, Figure, Ratio, Round, Summary, TargetResult, Verdict};
use crate::statistics;

/// A line of the table.
struct Row<'a> {
    experiment: &'a Experiment,
    target: &'a TargetResult,
    /// Whether it begins a point of the sweep.
    first: bool,
}

/// A column that is about a target's summary: title, how dispensable it is, content.
type About = (&'static str, u32, fn(&Figure, &Summary) -> String);

/// The columns between the figure and the ratio. The higher the number, the earlier a narrow terminal does without.
const ABOUT: [About; 13] = [
    ("range", 9, |figure, summary| quantity_range(summary.figure.min, summary.figure.max, &figure.unit)),
    ("p50", 5, |_, summary| summary.latency.map_or(String::new(), |latency| nanoseconds(latency.p50))),
    ("p90", 12, |_, summary| summary.latency.map_or(String::new(), |latency| nanoseconds(latency.p90))),
    ("p99", 1, |_, summary| summary.latency.map_or(String::new(), |latency| nanoseconds(latency.p99))),
    ("p99.9", 7, |_, summary| summary.latency.map_or(String::new(), |latency| nanoseconds(latency.p999))),
    ("max", 10, |_, summary| summary.latency.map_or(String::new(), |latency| nanoseconds(latency.max))),
    ("faults", 8, |_, summary| metric(summary.faults as f64)),
    ("fetches/s", 6, |_, summary| metric(summary.fetches_per_second)),
    ("CPU/fault", 4, |_, summary| some(summary.cpu_us_per_fault, |us| quantity(us * 1e3, "ns"))),
    ("CPU s", 13, |_, summary| digits(summary.cpu_seconds)),
    ("wall s", 14, |_, summary| digits(summary.wall_seconds)),
    ("peak RSS", 11, |_, summary| bytes(summary.peak_resident_bytes)),
    ("device", 3, |_, summary| summary.device_percent.map_or(String::new(), percent)),
];

/// The share of its rate at the end at which a workload that has changed is back.
const BACK_AT: f64 = 0.9;

/// Nothing for 0.
fn some(value: f64, show: impl Fn(f64) -> String) -> String {
    if value > 0.0 { show(value) } else { String::new() }
}

/// The group's heading, table and notes.
pub fn text(group: &Group<'_>, colours: bool, width: usize) -> String {
    let rows: Vec<Row<'_>> = group
        .experiments
        .iter()
        .flat_map(|experiment| {
            experiment.targets.iter().enumerate().map(|(index, target)| Row { experiment, target, first: index == 0 })
        })
        .collect();
    let mut text = Tone::Strong.paint(&heading(group), colours) + "\n";
    text += &grid::render(columns(group, &rows), width, colours);
    let notes = printed(group).into_iter().chain(notes(group));
    text += &notes.map(|note| Tone::Faint.paint(&note, colours) + "\n").collect::<String>();
    text
}

/// What a program of the user's printed in all good runs.
fn printed(group: &Group<'_>) -> Option<String> {
    let rounds = group.experiments.iter().flat_map(|experiment| &experiment.targets).flat_map(|target| &target.rounds);
    let good = rounds.filter(|round| round.wrong.is_empty() && !round.output_sha256.is_empty());
    let hashes: BTreeSet<&str> = good.map(|round| round.output_sha256.as_str()).collect();
    match hashes.len() {
        0 => None,
        1 => Some(format!("the output was the same in all good runs: SHA-256 {}", hashes.first()?)),
        count => Some(format!("the output differed from round to round, the same under all targets: {count} different ones")),
    }
}

/// What was done, what is compared, and how often: `random updates, 512M, 8 threads, 256M local: updates a second, 5 rounds`.
fn heading(group: &Group<'_>) -> String {
    let Some(first) = group.experiments.first() else { return group.name.clone() };
    let rounds = group.experiments.iter().flat_map(|experiment| &experiment.targets).map(|target| target.rounds.len()).max();
    let rounds = rounds.unwrap_or(0);
    let sweep = group.axis.map_or(String::new(), |axis| format!(", over {}", axis_name(axis)));
    let less = if first.figure.less_is_better { " (less is better)" } else { "" };
    format!("{}{sweep}: {}{less}, {rounds} round{}", group.name, first.figure.name, if rounds == 1 { "" } else { "s" })
}

fn columns(group: &Group<'_>, rows: &[Row<'_>]) -> Vec<Column> {
    let column = |title: &str, right: bool, dispensable: u32, cell: &dyn Fn(&Row<'_>) -> Cell| Column {
        title: title.into(),
        right,
        dispensable,
        cells: rows.iter().map(cell).collect(),
    };
    let mut columns = Vec::new();
    if let Some(axis) = group.axis {
        columns.push(column(short_axis(axis), true, 0, &|row| {
            if row.first { point(row.experiment).into() } else { Cell::default() }
        }));
    }
    columns.push(column("target", false, 0, &|row| row.target.label.as_str().into()));
    columns.push(column("median", true, 0, &figure));
    for (title, dispensable, about) in ABOUT {
        let cell = |row: &Row<'_>| {
            row.target.summary.as_ref().map_or(String::new(), |summary| about(&row.experiment.figure, summary)).into()
        };
        columns.push(column(title, true, dispensable, &cell));
    }
    columns.push(column(&first_is(group), false, 0, &|row| {
        row.target.summary.as_ref().and_then(|summary| summary.ratio.as_ref()).map_or(String::new(), ratio).into()
    }));
    columns.push(column("target is", false, 2, &verdict));
    columns
}

fn short_axis(axis: Axis) -> &'static str {
    match axis {
        Axis::Memory => "local",
        Axis::Threads => "threads",
        Axis::Files => "files",
    }
}

/// `farshore is`; in a sweep whose first target is not the same everywhere, `first is`.
pub fn first_is(group: &Group<'_>) -> String {
    let mut firsts =
        group.experiments.iter().filter_map(|experiment| experiment.targets.first()).map(|target| target.label.as_str());
    let first = firsts.next().unwrap_or("first");
    if firsts.all(|other| other == first) { format!("{first} is") } else { "first is".into() }
}

fn figure(row: &Row<'_>) -> Cell {
    match (&row.target.summary, row.target.rounds.is_empty()) {
        (Some(summary), _) => quantity(summary.figure.median, &row.experiment.figure.unit).into(),
        (None, true) => Cell { text: "not run".into(), tone: Tone::Bad },
        (None, false) => Cell { text: "failed".into(), tone: Tone::Bad },
    }
}

/// `1.34 × (1.31–1.60)`.
pub fn ratio(ratio: &Ratio) -> String {
    let places = decimals(ratio.median);
    format!("{:.places$} × ({:.places$}–{:.places$})", ratio.median, ratio.low, ratio.high)
}

/// What the interval says of the target, set against the first.
fn verdict(row: &Row<'_>) -> Cell {
    match row.target.summary.as_ref().and_then(|summary| summary.ratio.as_ref()).map(Ratio::verdict) {
        Some(verdict) => Cell { text: verdict_word(verdict).into(), tone: verdict_tone(verdict) },
        None => Cell::default(),
    }
}

/// A verdict in a word.
pub fn verdict_word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Faster => "faster",
        Verdict::Same => "the same",
        Verdict::Slower => "slower",
    }
}

/// A verdict's tone.
pub fn verdict_tone(verdict: Verdict) -> Tone {
    match verdict {
        Verdict::Faster => Tone::Good,
        Verdict::Same => Tone::Plain,
        Verdict::Slower => Tone::Bad,
    }
}

/// What went wrong, and open-loop load that came late: a line for each target and reason.
pub fn notes(group: &Group<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    for experiment in &group.experiments {
        let point = if group.axis.is_some() { format!(" at {}", point(experiment)) } else { String::new() };
        for target in &experiment.targets {
            let outcome = if target.summary.is_some() { "left out" } else { "failed" };
            let note =
                |(why, rounds): (String, Vec<u32>)| format!("{}{point}: {outcome}, {}: {why}", target.label, in_rounds(&rounds));
            notes.extend(reasons(target).into_iter().map(note));
            let note =
                |(why, rounds): (String, Vec<u32>)| format!("{}{point}: late load, {}: {why}", target.label, in_rounds(&rounds));
            notes.extend(late(target).into_iter().map(note));
            let note = |(why, rounds): (String, Vec<u32>)| format!("{}{point}: {}: {why}", target.label, in_rounds(&rounds));
            notes.extend(limits(target).into_iter().map(note));
            notes.extend(lost(target).map(|note| format!("{}{point}: {note}", target.label)));
            // Elsewhere another kind of work begins, with a rate of its own.
            let moves = experiment.workload == "gups-move";
            notes.extend(recovery(target).filter(|_| moves).map(|note| format!("{}{point}: {note}", target.label)));
        }
    }
    notes
}

/// Why rounds are not in the summary: each reason, with its rounds.
fn reasons(target: &TargetResult) -> BTreeMap<String, Vec<u32>> {
    let mut reasons: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for round in &target.rounds {
        let no_figure = (round.wrong.is_empty() && round.figure.is_none()).then(|| "no figure came out".to_string());
        for why in round.wrong.iter().cloned().chain(no_figure) {
            reasons.entry(why).or_default().push(round.number);
        }
    }
    reasons
}

/// How long it took until the rate was back after the hot set had moved.
fn recovery(target: &TargetResult) -> Option<String> {
    let outcomes = || statistics::good(target).filter_map(|(round, _)| round.outcome.as_ref());
    let (_, what) = outcomes().find_map(|outcome| outcome.timeline.marks.last())?;
    let times: Vec<f64> = outcomes().filter_map(|outcome| outcome.timeline.recovery(BACK_AT)).collect();
    let never = outcomes().count() - times.len();
    let seconds = |time: f64| quantity(time * 1e9, "ns");
    let back = statistics::spread(&times)
        .map(|times| format!("{} ({}–{})", seconds(times.median), seconds(times.min), seconds(times.max)));
    let never = if never == 0 { String::new() } else { format!("; in {never} rounds not at all") };
    Some(format!(
        "{what}: back at {:.0} % of the rate at the end after {}{never}",
        BACK_AT * 100.0,
        back.unwrap_or_else(|| "–".into())
    ))
}

/// Where the generator of open-loop load was too slow itself.
fn late(target: &TargetResult) -> BTreeMap<String, Vec<u32>> {
    told(target, |outcome| &outcome.generator_late)
}

/// Why no higher rate was found, where one was looked for; if that was the generator, [`late`] has told it.
fn limits(target: &TargetResult) -> BTreeMap<String, Vec<u32>> {
    told(target, |outcome| if outcome.generator_late == outcome.rate_limit { "" } else { &outcome.rate_limit })
}

/// What outcomes tell in words: each, with its rounds.
fn told(target: &TargetResult, words: impl Fn(&Outcome) -> &str) -> BTreeMap<String, Vec<u32>> {
    let mut told: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for round in &target.rounds {
        if let Some(words) = round.outcome.as_ref().map(&words).filter(|words| !words.is_empty()) {
            told.entry(words.to_string()).or_default().push(round.number);
        }
    }
    told
}

/// Requests of open-loop load without an answer.
fn lost(target: &TargetResult) -> Option<String> {
    let of = |round: &Round| round.outcome.as_ref().map_or((0, 0), |outcome| (outcome.lost, outcome.unsent));
    let rounds = || target.rounds.iter().map(|round| (round.number, of(round))).filter(|(_, (lost, unsent))| lost + unsent > 0);
    let numbers: Vec<u32> = rounds().map(|(number, _)| number).collect();
    let (lost, unsent) = rounds().fold((0, 0), |sum, (_, (lost, unsent))| (sum.0 + lost, sum.1 + unsent));
    let text =
        || format!("{}: {lost} requests without an answer, {unsent} not sent; the percentiles have them", in_rounds(&numbers));
    (!numbers.is_empty()).then(text)
}

/// `round 2`, `rounds 1, 3, 4`.
fn in_rounds(rounds: &[u32]) -> String {
    let numbers: Vec<String> = rounds.iter().map(u32::to_string).collect();
    format!("round{} {}", if rounds.len() == 1 { "" } else { "s" }, numbers.join(", "))
}
