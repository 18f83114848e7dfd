//! Which plots the data allow, and what each of them says.
//!
//! A plot is made from results by one function, which gives either a [`Figure`] or the reason why there is none: the page shows one or
//! the other, and never an empty frame.

mod latency;
mod rounds;
mod sweep;
mod timeline;

pub(crate) use timeline::timeline;

use std::collections::BTreeMap;

use super::chart::Chart;
use super::group::{Group, groups};
use super::palette::{self, Look};
use crate::result::{Device, Experiment, Figure as Measured, Results, TargetResult};

/// A plot.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// Of which kind: `sweep`, `sweep-ratio`, `sweep-latency`, `figure`, `ratio`, `latency`, `timeline`, `overview`, `paper`.
    pub kind: &'static str,
    /// Its title.
    pub title: String,
    /// What it shows, and which direction is better.
    pub caption: String,
    /// What is drawn in it, and the colour in which it is drawn: `#0B32D6`.
    pub series: Vec<(String, String)>,
    /// The image. It needs the style sheet of the page.
    pub svg: String,
}

impl Figure {
    pub(crate) fn new(kind: &'static str, title: String, caption: String, chart: &Chart) -> Result<Figure, String> {
        let svg = chart.svg(&format!("{title}. {caption}")).map_err(|error| format!("it could not be drawn: {error}"))?;
        let series = chart.legend.iter().map(|(name, look)| (name.clone(), look.hex())).collect();
        Ok(Figure { kind, title, caption, series, svg })
    }

    /// The image on its own, for a file: it has its colours, for light and dark, and its font in itself.
    #[must_use]
    pub fn standalone(&self) -> String {
        let style = format!("<style>text{{font-family:system-ui,sans-serif}}\n{}</style>", palette::css());
        let start = self.svg.find('>').map_or(0, |end| end + 1);
        format!("{}{style}{}", &self.svg[..start], &self.svg[start..])
    }
}

/// A figure, or what it would have shown and why it is not there.
pub type Attempt = Result<Figure, (String, String)>;

fn attempt(what: &str, figure: Result<Figure, String>) -> Attempt {
    figure.map_err(|reason| (what.into(), reason))
}

/// What the makers of figures know of the whole page.
#[derive(Debug)]
pub struct Context<'a> {
    looks: BTreeMap<&'a str, Look>,
    /// Of the device.
    pub device: Option<&'a Device>,
    /// Processors.
    pub cpus: u32,
}

impl<'a> Context<'a> {
    /// Of these results.
    pub fn new(results: &'a Results) -> Context<'a> {
        let mut looks = BTreeMap::new();
        for target in results.experiments.iter().flat_map(|experiment| &experiment.targets) {
            let next = Look::series(looks.len());
            looks.entry(target.label.as_str()).or_insert(next);
        }
        Context { looks, device: results.device.as_ref(), cpus: results.machine.cpus }
    }

    /// How the target of this label looks on the whole page.
    pub fn look(&self, label: &str) -> Look {
        self.looks.get(label).copied().unwrap_or(Look::series(0))
    }
}

/// The ratios of all single experiments on one plot; `None` if there are not two of them with ratios.
pub fn overview(context: &Context, groups: &[Group]) -> Option<Attempt> {
    let single: Vec<&Experiment> =
        groups.iter().filter(|group| group.axis.is_none()).flat_map(|group| group.experiments.iter().copied()).collect();
    let with_ratio = |experiment: &&&Experiment| experiment.targets.iter().any(|target| ratio(target).is_some());
    (single.iter().filter(with_ratio).count() > 1).then(|| attempt("all ratios", rounds::overview(context, &single)))
}

/// The plots of a section: those over the axis for a sweep, those of the one experiment else.
pub fn of_group(context: &Context, group: &Group) -> Vec<Attempt> {
    match group.axis {
        Some(axis) => sweep::all(context, group, axis),
        None => group
            .experiments
            .iter()
            .flat_map(|experiment| rounds::all(context, experiment).into_iter().chain(of_experiment(context, experiment)))
            .collect(),
    }
}

/// Latencies and throughput over time, for one experiment; nothing where the workload tells neither.
pub fn of_experiment(context: &Context, experiment: &Experiment) -> Vec<Attempt> {
    let mut attempts = Vec::new();
    let outcomes = || experiment.targets.iter().flat_map(|target| &target.rounds).filter_map(|round| round.outcome.as_ref());
    if outcomes().any(|outcome| outcome.latency.total() > 0) {
        attempts.push(attempt("latencies", latency::distribution(context, experiment)));
    }
    if outcomes().any(|outcome| outcome.timeline.operations.len() > 1) {
        attempts.push(attempt("throughput over time", timeline::timeline(context, experiment)));
    }
    attempts
}

/// All plots of some results, in the order of the page: also those of the single points of sweeps.
pub fn all(results: &Results) -> Vec<Figure> {
    let context = Context::new(results);
    let groups = groups(&results.experiments);
    let mut attempts: Vec<Attempt> = overview(&context, &groups).into_iter().collect();
    for group in &groups {
        attempts.extend(of_group(&context, group));
        if group.axis.is_some() {
            attempts.extend(group.experiments.iter().flat_map(|experiment| of_experiment(&context, experiment)));
        }
    }
    attempts.into_iter().flatten().collect()
}

/// The ratio of a target, if it is one that can be shown.
fn ratio(target: &TargetResult) -> Option<&crate::result::Ratio> {
    target.summary.as_ref()?.ratio.as_ref().filter(|ratio| ratio.median > 0.0 && ratio.median.is_finite())
}

/// "Higher is better."
fn direction(figure: &Measured) -> &'static str {
    if figure.less_is_better { "Lower is better." } else { "Higher is better." }
}

/// What is compared, as a label.
fn figure_name(figure: &Measured) -> String {
    match (figure.name.is_empty(), figure.unit.is_empty()) {
        (true, true) => "figure".into(),
        (true, false) => figure.unit.clone(),
        _ => figure.name.clone(),
    }
}

/// The first letter large, for a title.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// The label of the first target, which the others are set against.
fn first_label(experiment: &Experiment) -> &str {
    experiment.targets.first().map_or("the first target", |target| target.label.as_str())
}
