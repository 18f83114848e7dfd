//! Plots over the axis of a sweep: the figure with the ideal line, the ratios, the tail of the latencies.

use super::{Attempt, Context, Figure, attempt, capital, direction, figure_name, first_label, ratio};
use crate::report::axis::{Axis, Scale};
use crate::report::chart::{Chart, HEIGHT, Layer, Rule};
use crate::report::group::{Group, axis_name, value};
use crate::report::ideal::{self, Ideal};
use crate::report::palette::{IDEAL, Look};
use crate::report::text;
use crate::result::{Axis as Swept, TargetResult};

/// All of them.
pub fn all(context: &Context, group: &Group, axis: Swept) -> Vec<Attempt> {
    let mut attempts = vec![attempt("the figure over the sweep", figure(context, group, axis))];
    if group.labels().len() > 1 {
        attempts.push(attempt("ratios over the sweep", ratios(context, group, axis)));
    }
    let timed = |target: &TargetResult| target.summary.as_ref().is_some_and(|summary| summary.latency.is_some());
    if group.experiments.iter().flat_map(|experiment| &experiment.targets).any(timed) {
        attempts.push(attempt("latencies over the sweep", tail(context, group, axis)));
    }
    attempts
}

/// x, and y as median, from, to.
type Point = (f64, [f64; 3]);

/// The points of one target, broken where there is none for it.
fn segments(group: &Group, label: &str, pick: impl Fn(&TargetResult) -> Option<[f64; 3]>) -> Vec<Vec<Point>> {
    let mut segments: Vec<Vec<Point>> = vec![Vec::new()];
    for experiment in &group.experiments {
        let target = experiment.targets.iter().find(|target| target.label == label);
        match target.and_then(&pick).filter(|values| values.iter().all(|value| value.is_finite())) {
            Some(values) => segments.last_mut().into_iter().for_each(|segment| segment.push((value(experiment), values))),
            None => segments.push(Vec::new()),
        }
    }
    segments.retain(|segment| !segment.is_empty());
    segments
}

/// Lines with ranges and markers, and all y values.
fn lines(
    context: &Context,
    group: &Group,
    labels: &[&str],
    pick: impl Fn(&TargetResult) -> Option<[f64; 3]>,
) -> (Drawing, Vec<f64>) {
    let (mut drawing, mut values) = (Drawing::default(), Vec::new());
    for label in labels {
        let look = context.look(label);
        let segments = segments(group, label, &pick);
        if segments.is_empty() {
            continue;
        }
        drawing.legend.push(((*label).to_string(), look));
        for segment in segments {
            let line: Vec<(f64, f64)> = segment.iter().map(|(x, y)| (*x, y[0])).collect();
            values.extend(segment.iter().flat_map(|(_, y)| *y));
            drawing.layers.push((look, Layer::Ranges(segment.iter().map(|(x, y)| (*x, y[1], y[2])).collect())));
            drawing.layers.push((look, Layer::Line(line.clone())));
            drawing.layers.push((look, Layer::Marks(line)));
        }
    }
    (drawing, values)
}

#[derive(Default)]
struct Drawing {
    legend: Vec<(String, Look)>,
    layers: Vec<(Look, Layer)>,
}

/// The axis of the sweep.
fn x_axis(group: &Group, axis: Swept) -> Result<Axis, String> {
    let values: Vec<f64> = group.experiments.iter().map(|experiment| value(experiment)).collect();
    let plain = |value: f64| text::short(&text::digits(value));
    match axis {
        Swept::Memory => {
            let most = values.iter().copied().filter(|value| value.is_finite()).fold(100.0, f64::max);
            Some(Axis::linear(
                "local memory, % of the data",
                (0.0, most * 1.04),
                if most > 250.0 { most / 5.0 } else { 20.0 },
                plain,
            ))
        }
        Swept::Threads => Axis::at_values("threads", Scale::Log2, &values, plain),
        Swept::Files => Axis::at_values("swap files", Scale::Linear, &values, plain),
    }
    .ok_or_else(|| "no point of the sweep has a place on its axis".into())
}

fn figure(context: &Context, group: &Group, axis: Swept) -> Result<Figure, String> {
    let measured = &group.experiments[0].figure;
    let spread = |target: &TargetResult| {
        target.summary.as_ref().map(|summary| [summary.figure.median, summary.figure.min, summary.figure.max])
    };
    let (mut drawing, mut values) = lines(context, group, &group.labels(), spread);
    if drawing.legend.is_empty() {
        return Err("no target has a good round".into());
    }
    let ideal = ideal::line(&group.experiments, context.device, context.cpus);
    if let Ok(ideal) = &ideal {
        values.extend(ideal.points.iter().map(|(_, figure)| *figure));
        let look = Look::line(&IDEAL);
        drawing.legend.push((format!("ideal for {}", first_label(group.experiments[0])), look));
        drawing.layers.insert(0, (look, Layer::Line(ideal.points.clone())));
    }
    let name = figure_name(measured);
    let y = Axis::from_zero(&name, &values, |value| text::quantity(value, per_second(&measured.unit)))
        .ok_or("there is no value to show")?;
    let chart =
        Chart { x: x_axis(group, axis)?, y, legend: drawing.legend, layers: drawing.layers, rules: vec![], height: HEIGHT };
    let caption = format!(
        "{} against {}: medians over the rounds, each with the range from the worst to the best round. {} {}",
        capital(&name),
        axis_name(axis),
        direction(measured),
        ideal_words(&ideal, axis)
    );
    Figure::new("sweep", format!("{} over {}", capital(&name), axis_name(axis)), caption.trim_end().into(), &chart)
}

/// The axis says what it is a second of: numbers alone suffice at the ticks.
pub fn per_second(unit: &str) -> &str {
    if unit == "/s" { "" } else { unit }
}

fn ideal_words(ideal: &Result<Ideal, String>, axis: Swept) -> String {
    match ideal {
        Ok(ideal) => format!(
            "The dashed line is a system without any software cost: the time of {} with all memory local, plus {} (the device's latency) for each \
             page that the first target waited for.",
            ideal.local,
            text::duration(ideal.latency)
        ),
        Err(reason) if axis == Swept::Memory => format!("There is no ideal line: {reason}."),
        Err(_) => String::new(),
    }
}

fn ratios(context: &Context, group: &Group, axis: Swept) -> Result<Figure, String> {
    let first = first_label(group.experiments[0]);
    let labels = group.labels();
    let others: Vec<&str> = labels.iter().copied().filter(|label| *label != first).collect();
    let (drawing, values) =
        lines(context, group, &others, |target| ratio(target).map(|ratio| [ratio.median, ratio.low, ratio.high]));
    let y = Axis::ratios(&format!("{} is better by", text::cut(first, 24)), &values)
        .ok_or("no target has a ratio: it takes a good round of both")?;
    let rules = vec![Rule { at: 1.0, upright: false, text: String::new() }];
    let chart = Chart { x: x_axis(group, axis)?, y, legend: drawing.legend, layers: drawing.layers, rules, height: HEIGHT };
    let caption = format!(
        "How many times better {first} is than each other target: the median over the rounds, with its confidence interval. \
         Above 1 {first} is better, below 1 the other one; an interval that contains 1 decides nothing."
    );
    Figure::new("sweep-ratio", format!("{first} against the others over {}", axis_name(axis)), caption, &chart)
}

fn tail(context: &Context, group: &Group, axis: Swept) -> Result<Figure, String> {
    let p99 = |target: &TargetResult| target.summary.as_ref()?.latency.map(|latency| [text::float(latency.p99); 3]);
    let (mut drawing, values) = lines(context, group, &group.labels(), p99);
    // A percentile of all rounds together has no range.
    drawing.layers.retain(|(_, layer)| !matches!(layer, Layer::Ranges(_)));
    let y =
        Axis::logarithmic("latency, 99th percentile", &values, |ns| text::duration(ns / 1e9)).ok_or("no operation was timed")?;
    let chart =
        Chart { x: x_axis(group, axis)?, y, legend: drawing.legend, layers: drawing.layers, rules: vec![], height: HEIGHT };
    let caption = format!(
        "99 % of the operations took at most this long, against {}; all good rounds together, logarithmic. Lower is better.",
        axis_name(axis)
    );
    Figure::new("sweep-latency", format!("99th percentile of the latency over {}", axis_name(axis)), caption, &chart)
}
