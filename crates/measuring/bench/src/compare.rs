//! What got faster or slower from one file of results to another.
//!
//! # How it is judged
//!
//! 1. Experiments are the same if name, workload, arguments, memory, threads, swap files and point of the sweep are; targets if their labels are.
//! 2. Rounds of two files have nothing to do with each other, so each side is resampled by itself ([`statistics::unpaired_ratio`]).
//! 3. Machines drift: a disk fills, a neighbour wakes up. What does not change with Farshore (Linux' swap, zram, the program alone) drifts with it. So, where
//!    both files have the same such target, what is judged is the change of the *ratio to it*, whose two sides ran in the same
//!    rounds. Only without one are the figures themselves judged, and those targets always are.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::result::{Experiment, Machine, Ratio, Results, SCHEMA, Spread, TargetResult, Verdict};
use crate::statistics;
use crate::table::grid::{self, Cell, Column, Tone};
use crate::table::{WIDEST, targets, units};

/// Kinds of targets that others are set against, the best first: Linux' swap shares the device and its drift.
const STEADY: [&str; 4] = ["linux-swap", "zswap", "zram", "native"];

/// What [`compare`] found.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Comparison {
    /// The old file's date and version.
    pub old: String,
    /// The new one's.
    pub new: String,
    /// What is not the same about the machines: `kernel 6.1.0 → 6.18.44`.
    pub machines: Vec<String>,
    /// Each target of each experiment that both have, with good rounds in both.
    pub changes: Vec<Change>,
    /// What cannot be compared, and why: experiments and targets of one file only, or without a good round.
    pub alone: Vec<String>,
}

/// A target of an experiment, then and now.
#[derive(Clone, PartialEq, Debug)]
pub struct Change {
    /// The experiment's name.
    pub experiment: String,
    /// The target's label.
    pub target: String,
    /// Unit of the figures.
    pub unit: String,
    /// The old figures.
    pub old: Spread,
    /// The new ones.
    pub new: Spread,
    /// How many times better the new figures are.
    pub figures: Ratio,
    /// How many times better the ratio to another target is that both files have.
    pub beside: Option<Beside>,
}

/// A change in comparison to another target's.
#[derive(Clone, PartialEq, Debug)]
pub struct Beside {
    /// That target's label.
    pub label: String,
    /// How many times better the ratio to it is.
    pub ratio: Ratio,
}

impl Change {
    /// What the verdict rests on: the ratio to another target if there is one, else the figures.
    #[must_use]
    pub fn judged(&self) -> &Ratio {
        self.beside.as_ref().map_or(&self.figures, |beside| &beside.ratio)
    }

    /// Whether the new one is faster or slower beyond the noise.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        // The ratio says how much better the new one is; a ratio's own verdict is about the other side of it.
        match self.judged().verdict() {
            Verdict::Slower => Verdict::Faster,
            Verdict::Faster => Verdict::Slower,
            Verdict::Same => Verdict::Same,
        }
    }
}

impl Comparison {
    /// How many changes have this verdict.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        self.changes.iter().filter(|change| change.verdict() == verdict).count()
    }
}

/// Reads a file of results.
///
/// # Errors
/// In one line: it cannot be read, is no JSON, or not of a schema that this version knows.
pub fn load(path: &Path) -> Result<Results, String> {
    let name = path.display();
    let text = fs::read_to_string(path)
        .map_err(|error| format!("cannot read '{name}' ({error}): name a file that farshore bench --json has written"))?;
    let no_results = |why: &dyn std::fmt::Display| {
        format!("'{name}' holds no results of farshore bench ({why}): name a file that --json has written")
    };
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|error| no_results(&error))?;
    match value.get("schema").and_then(serde_json::Value::as_u64) {
        Some(schema) if schema == u64::from(SCHEMA) => serde_json::from_value(value).map_err(|error| no_results(&error)),
        Some(schema) => Err(format!(
            "'{name}' is of schema {schema}, this version reads schema {SCHEMA}: use the version of Farshore that wrote it, or measure anew"
        )),
        None => Err(no_results(&"it names no schema")),
    }
}

/// Sets `new` against `old`.
#[must_use]
pub fn compare(old: &Results, new: &Results) -> Comparison {
    let named = |results: &Results| format!("{} (Farshore {})", results.date, results.version);
    let mut comparison =
        Comparison { old: named(old), new: named(new), machines: machines(&old.machine, &new.machine), ..Comparison::default() };
    let mut unmatched: Vec<&Experiment> = new.experiments.iter().collect();
    for before in &old.experiments {
        match unmatched.iter().position(|after| is_same(before, after)) {
            Some(index) => experiment(before, unmatched.remove(index), &mut comparison),
            None => comparison.alone.push(format!("only in the old file: {}", before.name)),
        }
    }
    comparison.alone.extend(unmatched.iter().map(|after| format!("only in the new file: {}", after.name)));
    comparison
}

fn is_same(one: &Experiment, other: &Experiment) -> bool {
    let key = |it: &Experiment| {
        (it.name.clone(), it.family.clone(), it.workload.clone(), it.arguments.clone(), it.pool_bytes, it.threads, it.swap_files)
    };
    // A limit of families is a part of the peak that the program had that time.
    let off = if one.family.is_empty() { 0 } else { one.memory_bytes / 20 };
    let beside = one.memory_bytes.abs_diff(other.memory_bytes) <= off;
    key(one) == key(other) && beside && one.sweep == other.sweep && one.figure == other.figure
}

/// An experiment with the figures of its rounds.
struct Side<'a> {
    experiment: &'a Experiment,
    rounds: BTreeSet<u32>,
}

impl<'a> Side<'a> {
    fn new(experiment: &'a Experiment) -> Side<'a> {
        Side {
            experiment,
            rounds: experiment.targets.iter().flat_map(|target| &target.rounds).map(|round| round.number).collect(),
        }
    }

    fn target(&self, label: &str) -> Option<&'a TargetResult> {
        self.experiment.targets.iter().find(|target| target.label == label)
    }

    /// Figures of the good rounds.
    fn figures(&self, target: &TargetResult) -> Vec<f64> {
        statistics::figures(target, &self.rounds).into_iter().flatten().collect()
    }

    /// How many times better `target` is than `other`, round by round.
    fn ratios(&self, target: &TargetResult, other: &TargetResult) -> Vec<f64> {
        let figures = |target| statistics::figures(target, &self.rounds);
        statistics::paired(&figures(target), &figures(other), self.experiment.figure.less_is_better)
    }
}

fn experiment(old: &Experiment, new: &Experiment, comparison: &mut Comparison) {
    let (old, new) = (Side::new(old), Side::new(new));
    let name = &old.experiment.name;
    for target in &old.experiment.targets {
        match new.target(&target.label) {
            None => comparison.alone.push(format!("only in the old file: {name}: {}", target.label)),
            Some(after) => match change(&old, &new, target, after) {
                Some(change) => comparison.changes.push(change),
                None => comparison.alone.push(format!("without a good round in both files: {name}: {}", target.label)),
            },
        }
    }
    let added = new.experiment.targets.iter().filter(|target| old.target(&target.label).is_none());
    comparison.alone.extend(added.map(|target| format!("only in the new file: {name}: {}", target.label)));
}

fn change(old: &Side<'_>, new: &Side<'_>, before: &TargetResult, after: &TargetResult) -> Option<Change> {
    let figure = &old.experiment.figure;
    let (old_figures, new_figures) = (old.figures(before), new.figures(after));
    let figures = if figure.less_is_better {
        statistics::unpaired_ratio(&old_figures, &new_figures)
    } else {
        statistics::unpaired_ratio(&new_figures, &old_figures)
    };
    Some(Change {
        experiment: old.experiment.name.clone(),
        target: before.label.clone(),
        unit: figure.unit.clone(),
        old: statistics::spread(&old_figures)?,
        new: statistics::spread(&new_figures)?,
        figures: figures?,
        beside: beside(old, new, before, after),
    })
}

/// The change beside the steadiest target that both have; none for those themselves.
fn beside(old: &Side<'_>, new: &Side<'_>, before: &TargetResult, after: &TargetResult) -> Option<Beside> {
    if STEADY.contains(&before.kind.as_str()) {
        return None;
    }
    STEADY.iter().find_map(|kind| {
        let mut steady = old.experiment.targets.iter().filter(|target| target.kind == *kind);
        steady.find_map(|old_other| {
            let new_other = new.target(&old_other.label).filter(|target| target.kind == *kind)?;
            let ratio = statistics::unpaired_ratio(&new.ratios(after, new_other), &old.ratios(before, old_other))?;
            Some(Beside { label: old_other.label.clone(), ratio })
        })
    })
}

/// What is not the same about two machines.
fn machines(old: &Machine, new: &Machine) -> Vec<String> {
    let described = |machine: &Machine| {
        let mut fields = vec![
            ("processor".to_string(), machine.cpu.clone()),
            ("processors".into(), machine.cpus.to_string()),
            ("RAM".into(), units::bytes(machine.memory_bytes)),
            ("kernel".into(), machine.kernel.clone()),
            ("hypervisor".into(), machine.hypervisor.clone()),
            ("file system".into(), machine.filesystem.clone()),
            ("disk".into(), machine.disk.clone()),
        ];
        fields.extend(machine.settings.clone());
        fields
    };
    let (old, new) = (described(old), described(new));
    let names: Vec<&String> = old
        .iter()
        .chain(new.iter().filter(|(name, _)| old.iter().all(|(other, _)| other != name)))
        .map(|(name, _)| name)
        .collect();
    let value = |fields: &[(String, String)], name: &str| {
        let value = fields.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone()).unwrap_or_default();
        if value.is_empty() { "?".to_string() } else { value }
    };
    let differs = |name: &&String| (value(&old, name), value(&new, name));
    names
        .iter()
        .map(|name| (name, differs(name)))
        .filter(|(_, (old, new))| old != new)
        .map(|(name, (old, new))| format!("{name} {old} → {new}"))
        .collect()
}

/// The comparison for a terminal that is `width` columns wide.
#[must_use]
pub fn text(comparison: &Comparison, colours: bool, width: usize) -> String {
    let mut parts = vec![head(comparison)];
    let mut changes = comparison.changes.as_slice();
    while let Some(first) = changes.first() {
        let (same, rest) = changes.split_at(changes.iter().take_while(|change| change.experiment == first.experiment).count());
        parts.push(
            Tone::Strong.paint(&first.experiment, colours) + "\n" + &grid::render(columns(same), width.min(WIDEST), colours),
        );
        changes = rest;
    }
    if !comparison.alone.is_empty() {
        parts.push(comparison.alone.iter().map(|line| line.clone() + "\n").collect());
    }
    parts.push(sum(comparison));
    parts.join("\n")
}

fn head(comparison: &Comparison) -> String {
    let machines = if comparison.machines.is_empty() {
        String::new()
    } else {
        format!("not the same machine, so figures alone say little: {}\n", comparison.machines.join(", "))
    };
    format!("old: {}\nnew: {}\n{machines}", comparison.old, comparison.new)
}

/// The table of an experiment.
fn columns(changes: &[Change]) -> Vec<Column> {
    let column = |title: &str, right: bool, dispensable: u32, cell: &dyn Fn(&Change) -> Cell| Column {
        title: title.into(),
        right,
        dispensable,
        cells: changes.iter().map(cell).collect(),
    };
    let range = |range: Spread, unit: &str| units::quantity_range(range.min, range.max, unit);
    // Targets of one experiment may have different neighbours only if some of their rounds went wrong: then the cell says which.
    let labels: BTreeSet<&str> =
        changes.iter().filter_map(|change| change.beside.as_ref()).map(|beside| beside.label.as_str()).collect();
    let title =
        if labels.len() == 1 { format!("beside {}", labels.first().copied().unwrap_or_default()) } else { "beside".into() };
    let beside = |change: &Change| match &change.beside {
        Some(beside) if labels.len() == 1 => targets::ratio(&beside.ratio),
        Some(beside) => format!("{} {}", beside.label, targets::ratio(&beside.ratio)),
        None => String::new(),
    };
    vec![
        column("target", false, 0, &|change| change.target.as_str().into()),
        column("old", true, 2, &|change| units::quantity(change.old.median, &change.unit).into()),
        column("range", true, 4, &|change| range(change.old, &change.unit).into()),
        column("new", true, 2, &|change| units::quantity(change.new.median, &change.unit).into()),
        column("range", true, 3, &|change| range(change.new, &change.unit).into()),
        column("new is", false, 1, &|change| targets::ratio(&change.figures).into()),
        column(&title, false, 0, &|change| beside(change).into()),
        column("new is", false, 0, &|change| Cell {
            text: word(change.verdict()).into(),
            tone: targets::verdict_tone(change.verdict()),
        }),
    ]
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Same => "within the noise",
        other => targets::verdict_word(other),
    }
}

/// The counts, and what the verdicts rest on.
fn sum(comparison: &Comparison) -> String {
    let [faster, slower, same] = [Verdict::Faster, Verdict::Slower, Verdict::Same].map(|verdict| comparison.count(verdict));
    let rests = match comparison.changes.iter().any(|change| change.beside.is_some()) {
        true => {
            "Judged by the column 'beside' where it is filled (the ratio to a target that does not change with Farshore), else by the figures.\n"
        }
        false => "Judged by the figures: there is no target beside that does not change with Farshore.\n",
    };
    let rests = if comparison.changes.is_empty() { "" } else { rests };
    format!("{faster} faster, {slower} slower, {same} within the noise\n{rests}")
}

#[cfg(test)]
mod tests;
