//! The plots of a figure: ours and the baseline's as filled marks with intervals, the paper's numbers as hollow ones, the ideal line dashed.

use super::parts;
use super::series::{self, Series};
use super::{Figure as Shown, Panel, Plot, Value};
use crate::report::axis::{Axis, Scale};
use crate::report::chart::{Chart, HEIGHT, Layer};
use crate::report::figures::{Attempt, Context, Figure, timeline};
use crate::report::palette::{IDEAL, Look};
use crate::report::text;
use crate::result::{Experiment, Results};

/// What a panel's plots are called in the page's source.
const KIND: &str = "paper";

/// All plots of a panel.
pub fn panel(results: &Results, figure: &Shown, panel: &Panel) -> Vec<Attempt> {
    let experiments = series::experiments(results, figure, panel.key);
    let attempts = panel.plots.iter().flat_map(|plot| match plot.value {
        Value::Timeline => over_time(results, &experiments, plot),
        Value::RequestParts => parts::figures(KIND, plot.title, &experiments),
        _ => vec![over_points(results, &experiments, panel, plot)],
    });
    attempts.zip(std::iter::repeat(panel.title)).map(|(attempt, title)| attempt.map_err(|why| (title.to_string(), why))).collect()
}

fn over_time(results: &Results, experiments: &[&Experiment], plot: &Plot) -> Vec<Result<Figure, String>> {
    let context = Context::new(results);
    if experiments.is_empty() {
        return vec![Err("it was not measured".into())];
    }
    let named = |figure: Figure| Figure { kind: KIND, title: plot.title.into(), ..figure };
    experiments.iter().map(|experiment| timeline(&context, experiment).map(named)).collect()
}

fn over_points(results: &Results, experiments: &[&Experiment], panel: &Panel, plot: &Plot) -> Result<Figure, String> {
    let all = series::all(experiments, plot.value);
    if all.is_empty() {
        return Err("there is no good round in the raw rows".into());
    }
    let (mut legend, mut layers) = (Vec::new(), Vec::new());
    let (mut xs, mut ys) = (Vec::new(), Vec::new());
    let ideal = series::ideal(results, experiments, panel, plot.value).ok().filter(|_| has_ideal(plot.value));
    if let Some(line) = ideal {
        ys.extend(line.iter().map(|(_, y)| *y));
        let look = Look::line(&IDEAL);
        legend.push(("ideal".to_string(), look));
        layers.push((look, Layer::Line(line)));
    }
    for (index, Series { label, points }) in all.iter().enumerate() {
        let look = Look::series(index);
        let line: Vec<(f64, f64)> = points.iter().map(|point| (point.shown, point.middle.median)).collect();
        xs.extend(line.iter().map(|(x, _)| *x));
        ys.extend(points.iter().flat_map(|point| [point.middle.low, point.middle.median, point.middle.high]));
        legend.push((label.clone(), look));
        layers
            .push((look, Layer::Ranges(points.iter().map(|point| (point.shown, point.middle.low, point.middle.high)).collect())));
        layers.push((look, Layer::Line(line.clone())));
        layers.push((look, Layer::Marks(line)));
    }
    let drawn = plot.references.iter().filter(|reference| !reference.points.is_empty());
    for (index, reference) in drawn.enumerate() {
        let look = Look::series(all.len() + index).ring();
        xs.extend(reference.points.iter().map(|(x, _)| *x));
        ys.extend(reference.points.iter().map(|(_, y)| *y));
        // Another figure of ours is no paper.
        let of = if crate::paper::find(reference.section).is_ok() { "" } else { "paper, " };
        legend.push((format!("{} ({of}{})", reference.system, reference.section), look));
        layers.push((look, Layer::Marks(reference.points.to_vec())));
    }
    let x = x_axis(panel, plot.value, &xs).ok_or("no point has a place on its axis")?;
    let unit = if plot.value.unit() == "/s" { "" } else { plot.value.unit() };
    let y = y_axis(plot, &ys, unit).ok_or("there is no value to show")?;
    let chart = Chart { x, y, legend, layers, rules: vec![], height: HEIGHT };
    Figure::new(KIND, plot.title.into(), caption(plot), &chart)
}

/// Shares go from nothing to all, as in the papers.
fn y_axis(plot: &Plot, values: &[f64], unit: &str) -> Option<Axis> {
    let show = |value| text::quantity(value, unit);
    let label = plot.value.label();
    if unit != "%" {
        return Axis::from_zero(&label, values, show);
    }
    let most = values.iter().copied().filter(|value| value.is_finite()).fold(100.0, f64::max).min(1000.0);
    Some(Axis::linear(&label, (0.0, most * 1.04), if most > 250.0 { 100.0 } else { 20.0 }, show))
}

/// Whether the ideal line is one of these numbers.
fn has_ideal(value: Value) -> bool {
    matches!(value, Value::Kept | Value::Rate)
}

fn x_axis(panel: &Panel, value: Value, values: &[f64]) -> Option<Axis> {
    let plain = |value: f64| text::short(&text::metric(value));
    if value.is_over_rate() {
        return Axis::from_zero(&Value::Rate.label(), values, plain);
    }
    if panel.x.scale != Scale::Linear {
        return Axis::at_values(panel.x.label, panel.x.scale, values, plain);
    }
    let most = values.iter().copied().fold(0.0, f64::max);
    let axis = Axis::from_zero(panel.x.label, &[most], plain)?;
    // To the last value, and a little room, not to the next round number.
    let end = most * 1.04;
    Some(Axis { range: (-most * 0.02, end), ticks: axis.ticks.into_iter().filter(|(place, _)| *place <= end).collect(), ..axis })
}

fn caption(plot: &Plot) -> String {
    let direction = if plot.value.less_is_better() { "Lower is better." } else { "Higher is better." };
    let papers = if plot.references.iter().any(|reference| !reference.points.is_empty()) {
        " Hollow circles are digits of the paper's text, or what a drop that it states leaves of 100 %."
    } else {
        ""
    };
    let path = if plot.value.is_over_rate() { " The line goes from point to point in the order of the table below." } else { "" };
    format!("Medians over the rounds, each with its interval.{path}{papers} {direction}")
}
