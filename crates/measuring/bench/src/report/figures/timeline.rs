//! Throughput over time.

use super::{Context, Figure, capital};
use crate::report::axis::Axis;
use crate::report::chart::{Chart, HEIGHT, Layer, Rule};
use crate::report::text::{self, float};
use crate::result::{Experiment, TargetResult};

use farshore_load::outcome::Outcome;

/// Points of a line at most; longer runs are shown in longer steps.
const POINTS: usize = 400;

/// Operations a second at the middle of each step: the median over the good rounds that have this step, as long as half of them do.
fn line(target: &TargetResult) -> Vec<(f64, f64)> {
    let rounds: Vec<Vec<(f64, f64)>> = outcomes(target).map(of_round).filter(|round| !round.is_empty()).collect();
    let longest = rounds.iter().map(Vec::len).max().unwrap_or(0);
    let mut line = Vec::new();
    for step in 0..longest {
        let mut there: Vec<(f64, f64)> = rounds.iter().filter_map(|round| round.get(step).copied()).collect();
        if there.len() * 2 < rounds.len() {
            break;
        }
        there.sort_by(|one, other| one.1.total_cmp(&other.1));
        let (low, high) = (there[(there.len() - 1) / 2], there[there.len() / 2]);
        line.push((low.0, f64::midpoint(low.1, high.1)));
    }
    line
}

fn outcomes(target: &TargetResult) -> impl Iterator<Item = &Outcome> {
    target.rounds.iter().filter(|round| round.wrong.is_empty()).filter_map(|round| round.outcome.as_ref())
}

/// One round: (seconds, operations a second). The last step is left out if it is shorter than the others.
fn of_round(outcome: &Outcome) -> Vec<(f64, f64)> {
    let (step, operations) = (outcome.timeline.step_seconds, &outcome.timeline.operations);
    if step <= 0.0 || !step.is_finite() || operations.is_empty() {
        return Vec::new();
    }
    let whole = float(operations.len() as u64) * step <= outcome.seconds + step * 0.01;
    let kept = if whole || operations.len() == 1 { &operations[..] } else { &operations[..operations.len() - 1] };
    let together = kept.len().div_ceil(POINTS);
    let width = step * float(together as u64);
    let points = kept.chunks_exact(together).enumerate();
    points
        .map(|(index, chunk)| ((float(index as u64) + 0.5) * width, chunk.iter().map(|count| float(*count)).sum::<f64>() / width))
        .collect()
}

/// The plot.
pub fn timeline(context: &Context, experiment: &Experiment) -> Result<Figure, String> {
    let (mut legend, mut layers, mut times, mut rates) = (Vec::new(), Vec::new(), vec![0.0], Vec::new());
    for target in &experiment.targets {
        let line = line(target);
        if line.is_empty() {
            continue;
        }
        let look = context.look(&target.label);
        times.extend(line.iter().map(|(time, _)| *time));
        rates.extend(line.iter().map(|(_, rate)| *rate));
        legend.push((target.label.clone(), look));
        // Markers tell the lines apart; one for each step would hide them.
        let marked: Vec<(f64, f64)> = line.iter().copied().skip(legend.len() * 2).step_by((line.len() / 6).max(1)).collect();
        layers.push((look, Layer::Line(line)));
        layers.push((look, Layer::Marks(marked)));
    }
    if legend.is_empty() {
        return Err("no good round told its operations over time".into());
    }
    let told =
        experiment.targets.iter().find_map(|target| outcomes(target).find(|outcome| !outcome.timeline.operations.is_empty()));
    let (unit, step) = told.map_or(("", 0.0), |outcome| (outcome.unit.as_str(), outcome.timeline.step_seconds));
    let marks = told.map(|outcome| outcome.timeline.marks.clone()).unwrap_or_default();
    let unit = if unit.is_empty() { "operation" } else { unit };
    let name = format!("{unit}s a second");
    let (x, y) = axes(&name, &times, &rates).ok_or("there is no value to show")?;
    let rules: Vec<Rule> = marks.into_iter().map(|(at, text)| Rule { at, upright: true, text }).collect();
    let marks = if rules.is_empty() { "" } else { " Upright lines mark what the workload changed." };
    let chart = Chart { x, y, legend, layers, rules, height: HEIGHT };
    let caption = format!(
        "{} over time in steps of {}: in each step the median over the good rounds. Higher is better, and steady is better than not.{marks}",
        capital(&name),
        text::short(&text::duration(step)),
    );
    Figure::new("timeline", "Throughput over time".into(), caption, &chart)
}

fn axes(name: &str, times: &[f64], rates: &[f64]) -> Option<(Axis, Axis)> {
    let end = times.iter().copied().fold(0.0, f64::max);
    let x =
        Axis::from_zero("seconds from the start of the measured time", &[end], |seconds| text::short(&text::digits(seconds)))?;
    // To the last value, not to the next round number.
    let x = Axis { range: (0.0, if end > 0.0 { end * 1.02 } else { x.range.1 }), ..x };
    let x = Axis { ticks: x.ticks.into_iter().filter(|(place, _)| *place <= x.range.1).collect(), ..x };
    Some((x, Axis::from_zero(name, rates, text::metric)?))
}

#[cfg(test)]
mod tests {
    use farshore_load::outcome::Timeline;

    use super::*;
    use crate::result::Round;

    fn outcome(step_seconds: f64, seconds: f64, operations: &[u64]) -> Outcome {
        Outcome {
            seconds,
            timeline: Timeline { step_seconds, operations: operations.to_vec(), marks: vec![] },
            ..Default::default()
        }
    }

    fn rates(line: &[(f64, f64)]) -> Vec<u64> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small round numbers")]
        line.iter().map(|(_, rate)| rate.round() as u64).collect()
    }

    #[test]
    fn a_short_last_step_is_left_out() {
        assert_eq!(rates(&of_round(&outcome(0.1, 0.3, &[10, 20, 30]))), [100, 200, 300]);
        assert_eq!(rates(&of_round(&outcome(0.1, 0.25, &[10, 20, 4]))), [100, 200]);
        assert_eq!(rates(&of_round(&outcome(0.1, 0.05, &[4]))), [40]);
        for nothing in [outcome(0.0, 1.0, &[1]), outcome(f64::NAN, 1.0, &[1]), outcome(0.1, 1.0, &[])] {
            assert!(of_round(&nothing).is_empty());
        }
    }

    #[test]
    fn many_steps_become_longer_ones() {
        let line = of_round(&outcome(0.1, 200.0, &[5; 2000]));
        assert_eq!(line.len(), POINTS);
        assert!(rates(&line).iter().all(|rate| *rate == 50));
        assert!((line[0].0 - 0.25).abs() < 1e-9);
    }

    #[test]
    fn a_step_is_the_median_of_the_good_rounds() {
        let round = |operations: &[u64], wrong: &[&str]| Round {
            wrong: wrong.iter().map(|word| (*word).to_string()).collect(),
            outcome: Some(outcome(1.0, float(operations.len() as u64), operations)),
            ..Default::default()
        };
        let rounds = vec![round(&[1, 10], &[]), round(&[3], &[]), round(&[2], &[]), round(&[99, 99], &["bad"])];
        // The second step is in one of three rounds alone.
        assert_eq!(rates(&line(&TargetResult { rounds, ..Default::default() })), [2]);
    }
}
