//! A whole set as one Markdown table, for a README or the file beside the results.

use super::families;
use super::targets::{self, verdict_word};
use super::units::{digits, metric, nanoseconds, percent, point, quantity};
use crate::report::group::{self, Group};
use crate::result::{Experiment, Results, Summary, TargetResult};

/// The titles; those of numbers are aligned to the right.
const TITLES: [(&str, bool); 9] = [
    ("experiment", false),
    ("target", false),
    ("figure", true),
    ("how much better the first is", false),
    ("target is", false),
    ("p50 / p99", true),
    ("faults", true),
    ("CPU µs a fault", true),
    ("of the device", true),
];

/// The results of a set as a Markdown table, a line for each experiment and target, with the machine above it and what went wrong
/// below.
#[must_use]
pub fn markdown(results: &Results) -> String {
    let groups = group::groups(&results.experiments);
    let mut text = lines(&super::machine_text(&results.machine));
    if let Some((about, rows)) = families::markdown_rows(&results.experiments) {
        text += &format!("The table shows {about}.\n\n");
        for (number, cells) in rows.into_iter().enumerate() {
            let marks = (number == 0).then(|| row(cells.iter().map(|_| "---".to_string())));
            text += &row(cells);
            text += &marks.unwrap_or_default();
        }
        text += "\n";
    }
    text += &row(TITLES.iter().map(|(title, _)| (*title).to_string()));
    text += &row(TITLES.iter().map(|(_, right)| if *right { "---:" } else { "---" }.to_string()));
    for group in &groups {
        for experiment in &group.experiments {
            let name = if group.axis.is_some() { format!("{}, {}", group.name, at(experiment)) } else { group.name.clone() };
            let targets = experiment.targets.iter().enumerate();
            text +=
                &targets.map(|(index, target)| line(if index == 0 { &name } else { "" }, experiment, target)).collect::<String>();
        }
    }
    let notes = groups
        .iter()
        .flat_map(|group: &Group<'_>| targets::notes(group).into_iter().map(|note| format!("{}: {note}", group.name)));
    let skipped = results.skipped.iter().map(|(label, why)| format!("{label} was left out: {why}"));
    let notes: String = notes.chain(skipped).map(|note| format!("- {}\n", escape(&note))).collect();
    if notes.is_empty() { text } else { format!("{text}\n{notes}") }
}

/// A paragraph whose lines stay lines, and an empty line.
fn lines(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(escape).collect();
    if lines.is_empty() { String::new() } else { lines.join("  \n") + "\n\n" }
}

fn at(experiment: &Experiment) -> String {
    let axis = experiment.sweep.as_ref().map_or("", |point| group::axis_name(point.axis));
    format!("{axis} {}", point(experiment))
}

fn line(name: &str, experiment: &Experiment, target: &TargetResult) -> String {
    let Some(summary) = &target.summary else {
        return row([name.into(), target.label.clone(), "failed".into()]
            .into_iter()
            .chain(std::iter::repeat_n(String::new(), TITLES.len() - 3)));
    };
    let less = if experiment.figure.less_is_better { " (less is better)" } else { "" };
    let latency =
        summary.latency.map_or(String::new(), |latency| format!("{} / {}", nanoseconds(latency.p50), nanoseconds(latency.p99)));
    row([
        name.to_string(),
        target.label.clone(),
        format!("{}{less}", quantity(summary.figure.median, &experiment.figure.unit)),
        summary.ratio.as_ref().map_or(String::new(), targets::ratio),
        summary.ratio.as_ref().map_or(String::new(), |ratio| verdict_word(ratio.verdict()).into()),
        latency,
        metric(summary.faults as f64),
        cpu(summary),
        summary.device_percent.map_or(String::new(), percent),
    ])
}

fn cpu(summary: &Summary) -> String {
    if summary.cpu_us_per_fault > 0.0 { digits(summary.cpu_us_per_fault) } else { String::new() }
}

fn row(cells: impl IntoIterator<Item = String>) -> String {
    let cells: Vec<String> = cells.into_iter().map(|cell| escape(&cell)).collect();
    format!("| {} |\n", cells.join(" | "))
}

/// What Markdown would take for its own: names of targets hold commands of the user's.
fn escape(text: &str) -> String {
    text.chars()
        .flat_map(|c| ['\\'].into_iter().filter(move |_| "|*_`<[\\".contains(c)).chain([if c.is_control() { ' ' } else { c }]))
        .collect()
}
