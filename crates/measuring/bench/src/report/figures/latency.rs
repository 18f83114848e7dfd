//! The distribution of latencies: which share of the operations took at most how long.

use farshore_load::outcome::Histogram;

use super::{Context, Figure};
use crate::report::axis::{Axis, Scale};
use crate::report::chart::{Chart, HEIGHT, Layer};
use crate::report::palette::{DEVICE, Look};
use crate::report::text::{self, float};
use crate::result::{Access, Experiment, TargetResult};

/// Steps of a curve between two nines: finer than a pixel makes an image large and no better.
const STEPS: f64 = 24.0;
/// Nines that are shown at most.
const NINES: f64 = 6.0;

/// All good rounds of a target together.
fn of_target(target: &TargetResult) -> Histogram {
    let mut sum = Histogram::default();
    for outcome in target.rounds.iter().filter(|round| round.wrong.is_empty()).filter_map(|round| round.outcome.as_ref()) {
        sum.add(&outcome.latency);
    }
    sum
}

/// (share, ns), ascending, as far as the number of values bears it: the slowest of 1000 is shown at 99.9 %.
fn curve(histogram: &Histogram) -> Vec<(f64, f64)> {
    let total = float(histogram.total());
    let most = 1.0 - 1.0 / total.max(2.0);
    let steps = Scale::Nines.place(most).unwrap_or(0.0).min(NINES) * STEPS;
    let places = (0..=200u32).map(f64::from).take_while(|step| *step < steps).chain([steps]);
    let shares = places.map(|step| 1.0 - 10f64.powf(-step / STEPS));
    shares.filter_map(|share| Some((share, float(histogram.quantile(share)?)))).collect()
}

/// The plot.
pub fn distribution(context: &Context, experiment: &Experiment) -> Result<Figure, String> {
    let (mut legend, mut layers, mut values, mut most) = (Vec::new(), Vec::new(), Vec::new(), 0.0_f64);
    for target in &experiment.targets {
        let curve = curve(&of_target(target));
        let Some((share, _)) = curve.last() else { continue };
        let look = context.look(&target.label);
        most = most.max(*share);
        values.extend(curve.iter().map(|(_, ns)| *ns));
        legend.push((target.label.clone(), look));
        let marked = [0.5, 0.9, 0.99, 0.999, 0.9999]
            .into_iter()
            .filter_map(|share| curve.iter().find(|point| point.0 >= share - 1e-9).copied());
        layers.push((look, Layer::Marks(marked.collect())));
        layers.push((look, Layer::Line(curve)));
    }
    if legend.is_empty() {
        return Err("no good round timed its operations".into());
    }
    let alone = context
        .device
        .and_then(|device| device.points.iter().find(|point| point.access == Access::RandomRead && point.depth == 1));
    let device = alone.map(|point| curve(&point.latency)).filter(|curve| !curve.is_empty());
    let mut words = "";
    if let Some(mut device) = device {
        // As far as the others go: it has the fewest values, or the most.
        device.retain(|(share, _)| *share <= most);
        values.extend(device.iter().map(|(_, ns)| *ns));
        let look = Look::line(&DEVICE);
        legend.push(("device: one random read".into(), look));
        layers.insert(0, (look, Layer::Line(device)));
        words = " The dotted line is the device itself: random reads of 4 KiB, one at a time.";
    }
    let y = Axis::logarithmic("latency", &values, |ns| text::duration(ns / 1e9)).ok_or("all operations took 0 ns")?;
    let chart = Chart { x: Axis::nines("share of the operations", most), y, legend, layers, rules: vec![], height: HEIGHT };
    let caption = format!(
        "How long operations took: so many percent of them at most this long, all good rounds together; both axes logarithmic, to show the tail. \
         Lower is better.{words}"
    );
    Figure::new("latency", "Latencies".into(), caption, &chart)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_ends_where_the_values_end() {
        let histogram = Histogram { counts: vec![(100, 999), (5_000, 1)] };
        let curve = curve(&histogram);
        let (share, ns) = curve.last().copied().unwrap_or_default();
        assert!((share - 0.999).abs() < 1e-9, "{share}");
        assert!((ns - 100.0).abs() < 1e-9, "{ns}");
        assert!(curve.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1), "{curve:?}");
    }

    #[test]
    fn few_values_make_a_short_curve_and_none_no_curve() {
        assert!(curve(&Histogram::default()).is_empty());
        let one = curve(&Histogram { counts: vec![(7, 1)] });
        assert!(one.iter().all(|(share, ns)| *share <= 0.5 && (*ns - 7.0).abs() < 1e-9) && !one.is_empty(), "{one:?}");
        let many = curve(&Histogram { counts: vec![(7, u64::MAX / 4)] });
        assert!(many.len() < 200 && many.iter().all(|(share, _)| *share <= 0.999_999_1), "{}", many.len());
    }
}
