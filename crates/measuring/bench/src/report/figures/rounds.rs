//! Plots of one experiment: the figure of each round, the ratios; and the ratios of all experiments together.

use super::sweep::per_second;
use super::{Attempt, Context, Figure, attempt, capital, direction, figure_name, first_label, ratio};
use crate::report::axis::{Axis, Scale};
use crate::report::chart::{Chart, Layer, Rule};
use crate::report::group;
use crate::report::ideal;
use crate::report::palette::Look;
use crate::report::text::{self, float};
use crate::result::{Experiment, TargetResult};
use crate::statistics;

/// Letters of a row's name that are shown.
const NAME: usize = 24;
/// Height of a row, and what the axis takes, in the units of the drawing.
const ROW: u32 = 74;
const FRAME: u32 = 148;

/// The figure, and the ratios where there is more than one target.
pub fn all(context: &Context, experiment: &Experiment) -> Vec<Attempt> {
    let mut attempts = vec![attempt("the figure of each round", figure(context, experiment))];
    if experiment.targets.len() > 1 {
        attempts.push(attempt("ratios", ratios(context, experiment)));
    }
    attempts
}

/// Where the row of the target with this index is: the first is at the top.
fn row(index: usize, count: usize) -> f64 {
    float((count - 1 - index) as u64)
}

/// From the top of a row to its bottom, in the order of the rounds: a drift shows as a slope.
fn beside(row: f64, index: usize, count: usize) -> f64 {
    row + 0.25 - 0.5 * (float(index as u64) + 0.5) / float(count.max(1) as u64)
}

fn height(rows: usize) -> u32 {
    FRAME + ROW * u32::try_from(rows.max(1)).unwrap_or(1)
}

/// Figures of the good rounds.
fn figures(target: &TargetResult) -> Vec<f64> {
    statistics::good(target).map(|(_, figure)| figure).collect()
}

fn figure(context: &Context, experiment: &Experiment) -> Result<Figure, String> {
    let measured = &experiment.figure;
    let (name, count) = (figure_name(measured), experiment.targets.len());
    let mut values: Vec<f64> = experiment.targets.iter().flat_map(figures).collect();
    if values.is_empty() {
        return Err("no target has a good round".into());
    }
    let ideal = ideal::line(&[experiment], context.device, context.cpus).ok().and_then(|ideal| ideal.points.first().copied());
    values.extend(ideal.map(|(_, figure)| figure));
    let x = Axis::from_zero(&name, &values, |value| text::quantity(value, per_second(&measured.unit)))
        .ok_or("there is no value to show")?;
    let names: Vec<String> = experiment.targets.iter().map(|target| text::cut(&target.label, NAME)).collect();
    let mut layers = Vec::new();
    for (index, target) in experiment.targets.iter().enumerate() {
        let (look, row, rounds) = (context.look(&target.label), row(index, count), figures(target));
        let Some(spread) = target.summary.as_ref().map(|summary| summary.figure) else { continue };
        // A bar has a meaning where its length is the value: from 0.
        if x.scale == Scale::Linear {
            layers.push((look, Layer::Bars(vec![(row, spread.median)])));
        }
        layers.push((
            look,
            Layer::Dots(rounds.iter().enumerate().map(|(round, value)| (*value, beside(row, round, rounds.len()))).collect()),
        ));
        layers.push((look, Layer::Marks(vec![(spread.median, row)])));
    }
    let rules: Vec<Rule> = ideal.map(|(_, at)| Rule { at, upright: true, text: "ideal".into() }).into_iter().collect();
    let line = if rules.is_empty() {
        ""
    } else {
        " The line is the ideal: a system without any software cost, for the pages that the first target fetched."
    };
    let chart = Chart { x, y: Axis::rows(&names), legend: vec![], layers, rules, height: height(count) };
    let caption = format!(
        "{}: each round is a small circle (the first round at the top of its row), the filled mark is the median. {}{line}",
        capital(&name),
        direction(measured)
    );
    Ok(with_series(
        Figure::new("figure", capital(&name), caption, &chart)?,
        context,
        experiment.targets.iter().filter(|target| target.summary.is_some()),
    ))
}

/// Rows need no legend, but have series.
fn with_series<'a>(mut figure: Figure, context: &Context, targets: impl Iterator<Item = &'a TargetResult>) -> Figure {
    figure.series = targets.map(|target| (target.label.clone(), context.look(&target.label).hex())).collect();
    figure
}

/// Interval, rounds and median of one ratio in one row.
fn ratio_layers(look: Look, row: f64, ratio: &crate::result::Ratio) -> [(Look, Layer); 3] {
    let rounds = ratio.rounds.iter().enumerate().map(|(index, value)| (*value, beside(row, index, ratio.rounds.len())));
    [
        (look, Layer::Dots(rounds.collect())),
        (look, Layer::Spans(vec![(row, ratio.low, ratio.high)])),
        (look, Layer::Marks(vec![(ratio.median, row)])),
    ]
}

fn ratios(context: &Context, experiment: &Experiment) -> Result<Figure, String> {
    let first = first_label(experiment);
    let others: Vec<&TargetResult> = experiment.targets.iter().skip(1).collect();
    let values: Vec<f64> = others
        .iter()
        .filter_map(|target| ratio(target))
        .flat_map(|ratio| ratio.rounds.iter().copied().chain([ratio.median, ratio.low, ratio.high]))
        .collect();
    let label = format!("{} is better by", text::cut(first, NAME));
    let x = Axis::ratios(&label, &values).ok_or("no target has a ratio: it takes a round in which both were good")?;
    let names: Vec<String> = others.iter().map(|target| text::cut(&target.label, NAME)).collect();
    let mut layers = Vec::new();
    for (index, target) in others.iter().enumerate() {
        if let Some(ratio) = ratio(target) {
            layers.extend(ratio_layers(context.look(&target.label), row(index, others.len()), ratio));
        }
    }
    let rules = vec![Rule { at: 1.0, upright: true, text: "equal".into() }];
    let chart = Chart { x, y: Axis::rows(&names), legend: vec![], layers, rules, height: height(others.len()) };
    let caption = format!(
        "How many times better {first} is than each other target, round by round (small circles); the filled mark is the median, the bar its \
         confidence interval. Right of 1 {first} is better; a bar that crosses 1 decides nothing."
    );
    let figure = Figure::new("ratio", format!("{first} against the others"), caption, &chart)?;
    Ok(with_series(figure, context, others.into_iter().filter(|target| ratio(target).is_some())))
}

/// The ratios of several experiments, a row for each of them.
pub fn overview(context: &Context, experiments: &[&Experiment]) -> Result<Figure, String> {
    let (mut layers, mut legend, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let (mut most, mut firsts) = (1, Vec::new());
    for (index, experiment) in experiments.iter().enumerate() {
        let compared: Vec<&TargetResult> = experiment.targets.iter().skip(1).filter(|target| ratio(target).is_some()).collect();
        most = most.max(compared.len());
        if !firsts.contains(&first_label(experiment)) {
            firsts.push(first_label(experiment));
        }
        for (place, target) in compared.iter().enumerate() {
            let (Some(ratio), look) = (ratio(target), context.look(&target.label)) else { continue };
            let row = row(index, experiments.len()) + 0.34 - 0.68 * (float(place as u64) + 0.5) / float(compared.len() as u64);
            values.extend([ratio.median, ratio.low, ratio.high]);
            layers.push((look, Layer::Spans(vec![(row, ratio.low, ratio.high)])));
            layers.push((look, Layer::Marks(vec![(ratio.median, row)])));
            let entry = (target.label.clone(), look);
            if !legend.contains(&entry) {
                legend.push(entry);
            }
        }
    }
    let first = if let [first] = firsts[..] { first } else { "the first target" };
    let x = Axis::ratios(&format!("{} is better by", text::cut(first, NAME)), &values).ok_or("no target has a ratio")?;
    let names: Vec<String> = experiments.iter().map(|experiment| text::cut(&group::name_of(experiment), 40)).collect();
    let rules = vec![Rule { at: 1.0, upright: true, text: "equal".into() }];
    let rows = u32::try_from(experiments.len()).unwrap_or(1);
    let height = FRAME + rows * (26 * u32::try_from(most).unwrap_or(1)).max(ROW - 20);
    let chart = Chart { x, y: Axis::rows(&names), legend, layers, rules, height };
    let caption = format!(
        "How many times better {first} is than each other target: the median over the rounds with its confidence interval, one row an experiment. \
         Right of 1 {first} is better, left of it the other one; an interval that crosses 1 decides nothing."
    );
    Figure::new("overview", format!("{} against the others, all experiments", capital(first)), caption, &chart)
}
