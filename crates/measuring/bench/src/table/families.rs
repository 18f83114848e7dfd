//! The table of `farshore bench families`: a line for each row and limit, a column for each target that the first is set against.

use std::collections::BTreeSet;

use super::grid::{self, Cell, Column, Tone};
use super::targets;
use super::units::quantity;
use crate::result::{Axis, Experiment, TargetResult};

/// What its cells are, for a reader.
const ABOUT: &str =
    "how many times better the first target is than each of the others (95 % interval); below 1 the other one is better";

/// Titles and cells, line by line; `None` if no experiment belongs to a row of families.
struct Lines {
    titles: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

/// For a terminal; empty if there is nothing to tell.
pub fn text(experiments: &[Experiment], colours: bool, width: usize) -> String {
    let Some(Lines { titles, rows }) = lines(experiments) else { return String::new() };
    let column = |(index, title): (usize, String)| Column {
        title,
        right: (1..4).contains(&index),
        dispensable: u32::from((2..4).contains(&index)),
        cells: rows.iter().map(|row| row[index].clone()).collect(),
    };
    let columns = titles.into_iter().enumerate().map(column).collect();
    Tone::Strong.paint(&format!("Families of programs: {ABOUT}"), colours) + "\n" + &grid::render(columns, width, colours)
}

/// The lines of a Markdown table, titles first, and what is said above it; `None` if there is nothing to tell.
pub fn markdown_rows(experiments: &[Experiment]) -> Option<(&'static str, Vec<Vec<String>>)> {
    let Lines { titles, rows } = lines(experiments)?;
    let words = rows.into_iter().map(|row| row.into_iter().map(|cell| cell.text).collect());
    Some((ABOUT, std::iter::once(titles).chain(words).collect()))
}

fn lines(experiments: &[Experiment]) -> Option<Lines> {
    let limited: Vec<&Experiment> =
        experiments.iter().filter(|experiment| !experiment.family.is_empty() && experiment.memory_bytes > 0).collect();
    // A target that could not be had for one row is missing there alone.
    let first = limited.iter().rev().max_by_key(|experiment| experiment.targets.len())?.targets.first()?.label.clone();
    let mut others: Vec<&str> = Vec::new();
    for label in limited.iter().flat_map(|experiment| experiment.targets.iter().skip(1)).map(|target| target.label.as_str()) {
        if !others.contains(&label) {
            others.push(label);
        }
    }
    let several = limited.iter().any(|experiment| fixed(experiment).count() > 1);
    let mut titles = vec!["row".to_string(), "local".into(), "native".into(), first.clone()];
    titles.extend(others.iter().map(|label| format!("to {label}")));
    titles.extend(several.then(|| "to the best other --swap".to_string()));
    let mut told = BTreeSet::new();
    let rows = limited.iter().map(|experiment| {
        let begins = told.insert(experiment.family.as_str());
        let once = |text: String| if begins { text } else { String::new() };
        let at = experiment.sweep.as_ref().filter(|point| point.axis == Axis::Memory).map_or(0.0, |point| point.value);
        // Ratios are to what came first there, which is another target where this one could not be had.
        let is_first = experiment.targets.first().is_some_and(|target| target.label == first);
        let own = if is_first { figure(experiment, experiment.targets.first()) } else { left_out() };
        let to = |cell: Cell| if is_first { cell } else { Cell::default() };
        let mut cells: Vec<Cell> = vec![
            once(experiment.family.clone()).into(),
            format!("{at} %").into(),
            once(native(experiments, &experiment.family)).into(),
            own,
        ];
        cells.extend(others.iter().map(|label| {
            let target = experiment.targets.iter().find(|target| target.label == *label);
            to(target.map_or_else(Cell::default, against))
        }));
        cells.extend(several.then(|| to(best(experiment))));
        cells
    });
    let rows = rows.collect();
    Some(Lines { titles, rows })
}

/// The figure of the row's run without a limit.
fn native(experiments: &[Experiment], family: &str) -> String {
    let run = experiments.iter().find(|experiment| experiment.family == family && experiment.memory_bytes == 0);
    run.map_or_else(String::new, |run| figure(run, run.targets.first()).text)
}

fn figure(experiment: &Experiment, target: Option<&TargetResult>) -> Cell {
    match target.and_then(|target| target.summary.as_ref()) {
        Some(summary) => quantity(summary.figure.median, &experiment.figure.unit).into(),
        None => failed(),
    }
}

fn failed() -> Cell {
    Cell { text: "failed".into(), tone: Tone::Bad }
}

fn left_out() -> Cell {
    Cell { text: "left out".into(), tone: Tone::Bad }
}

/// The first target against this one. The tone is the first one's: green where it is better.
fn against(target: &TargetResult) -> Cell {
    let Some(summary) = &target.summary else { return failed() };
    let Some(ratio) = &summary.ratio else { return Cell::default() };
    let tone = if ratio.low > 1.0 {
        Tone::Good
    } else if ratio.high < 1.0 {
        Tone::Bad
    } else {
        Tone::Plain
    };
    Cell { text: targets::ratio(ratio), tone }
}

/// Targets behind the first that are Farshore with swap spaces of their own.
fn fixed(experiment: &Experiment) -> impl Iterator<Item = &TargetResult> {
    experiment.targets.iter().skip(1).filter(|target| target.kind == "farshore" && target.settings.contains_key("swap"))
}

/// The best of [`fixed`]. It is chosen by the same rounds that its interval is made of: noise makes the first look a little worse than it is.
fn best(experiment: &Experiment) -> Cell {
    let ratio = |target: &&TargetResult| Some(target.summary.as_ref()?.ratio.as_ref()?.median);
    let best =
        fixed(experiment).filter_map(|target| Some((ratio(&target)?, target))).min_by(|one, other| one.0.total_cmp(&other.0));
    best.map_or_else(failed, |(_, target)| {
        let cell = against(target);
        Cell { text: format!("{}: {}", target.label, cell.text), ..cell }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Figure, Ratio, Spread, Summary, SweepPoint};

    fn target(label: &str, kind: &str, swap: bool, ratio: Option<[f64; 3]>) -> TargetResult {
        let ratio = ratio.map(|[median, low, high]| Ratio { median, low, high, ..Ratio::default() });
        let summary = Summary { figure: Spread { median: 2.0, min: 2.0, max: 2.0 }, ratio, ..Summary::default() };
        let settings = if swap { [("swap".to_string(), label.to_string())].into() } else { std::collections::BTreeMap::new() };
        TargetResult { label: label.into(), kind: kind.into(), settings, summary: Some(summary), ..TargetResult::default() }
    }

    fn experiment(family: &str, percent: f64, memory: u64, targets: Vec<TargetResult>) -> Experiment {
        Experiment {
            family: family.into(),
            memory_bytes: memory,
            sweep: Some(SweepPoint { axis: Axis::Memory, value: percent }),
            figure: Figure { name: "seconds".into(), unit: "s".into(), less_is_better: true },
            targets,
            ..Experiment::default()
        }
    }

    fn all() -> Vec<Experiment> {
        let mut zram = target("zram", "zram", false, None);
        zram.summary = None;
        let limited = |percent, lz4, auto| {
            let first = target("farshore", "farshore", false, None);
            let others = [target("lz4", "farshore", true, Some(lz4)), target("auto", "farshore", true, Some(auto))];
            let swap = target("linux-swap", "linux-swap", false, Some([1.5, 1.4, 1.6]));
            let targets = std::iter::once(first).chain(others).chain([swap, zram.clone()]).collect();
            experiment("sort", percent, 7, targets)
        };
        vec![
            experiment("sort", 100.0, 0, vec![target("native", "native", false, None)]),
            limited(50.0, [0.9, 0.8, 0.95], [0.7, 0.6, 1.1]),
            limited(25.0, [0.9, 0.8, 0.95], [1.2, 1.1, 1.3]),
        ]
    }

    #[test]
    fn a_line_for_each_limit_with_the_best_of_the_others() {
        let wanted = "\
Families of programs: how many times better the first target is than each of the others (95 % interval); below 1 the other one is better
row   local  native  farshore  to lz4              to auto             to linux-swap       to zram  to the best other --swap
sort   50 %  2.00 s    2.00 s  0.90 × (0.80–0.95)  0.70 × (0.60–1.10)  1.50 × (1.40–1.60)  failed   auto: 0.70 × (0.60–1.10)
       25 %          2.00 s    0.90 × (0.80–0.95)  1.20 × (1.10–1.30)  1.50 × (1.40–1.60)  failed   lz4: 0.90 × (0.80–0.95)
";
        let squeezed = |text: &str| text.split_whitespace().map(str::to_string).collect::<Vec<_>>();
        assert_eq!(squeezed(&text(&all(), false, 200)), squeezed(wanted));
        let rows = markdown_rows(&all()).map(|(_, rows)| rows).unwrap_or_default();
        assert_eq!(rows.len(), 3);
        assert!(rows.iter().all(|row| row.len() == rows[0].len()));
    }

    #[test]
    fn a_line_without_the_first_target_tells_nothing_of_it() {
        let mut experiments = all();
        // It could not be had there, and what is left is set against the next.
        experiments[2].targets.remove(0);
        let text = text(&experiments, false, 200);
        let line = text.lines().last().unwrap_or_default();
        assert!(line.contains("25 %") && !line.contains('×') && !line.contains("2.00 s"), "{text}");
    }

    #[test]
    fn other_comparisons_have_no_such_table() {
        let plain = vec![experiment("", 50.0, 7, vec![target("farshore", "farshore", false, None)])];
        assert_eq!(text(&plain, false, 140), "");
        assert!(markdown_rows(&plain).is_none());
        assert!(markdown_rows(&all()[..1]).is_none(), "a native run alone has nothing to be set against");
    }
}
