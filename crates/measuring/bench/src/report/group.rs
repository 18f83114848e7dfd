//! Which experiments are told together: the points of one sweep, or one alone.

use crate::result::{Axis, Experiment};

/// Experiments that make one section of the page.
#[derive(Debug)]
pub struct Group<'a> {
    /// What it is called.
    pub name: String,
    /// What changes from one experiment to the next; `None` for one alone.
    pub axis: Option<Axis>,
    /// The experiments, ascending on the axis.
    pub experiments: Vec<&'a Experiment>,
}

impl Group<'_> {
    /// The labels of its targets, in order of their first appearance.
    pub fn labels(&self) -> Vec<&str> {
        let mut labels: Vec<&str> = Vec::new();
        for target in self.experiments.iter().flat_map(|experiment| &experiment.targets) {
            if !labels.contains(&target.label.as_str()) {
                labels.push(&target.label);
            }
        }
        labels
    }
}

/// What an axis is called.
pub fn axis_name(axis: Axis) -> &'static str {
    match axis {
        Axis::Memory => "local memory",
        Axis::Threads => "threads",
        Axis::Files => "swap files",
    }
}

/// Experiments by section, in the order in which they were made.
///
/// A point of a sweep belongs to the last sweep over the same axis with the same program and figure, unless that has its value
/// already: then another sweep begins.
pub fn groups(experiments: &[Experiment]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group> = Vec::new();
    for experiment in experiments {
        let Some(point) = &experiment.sweep else {
            groups.push(Group { name: name_of(experiment), axis: None, experiments: vec![experiment] });
            continue;
        };
        let same = groups
            .iter_mut()
            .rev()
            .find(|group| group.axis == Some(point.axis) && same_sweep(group.experiments[0], experiment, point.axis));
        match same {
            Some(group) if group.experiments.iter().all(|other| value(other) != point.value) => {
                group.experiments.push(experiment)
            }
            _ => groups.push(Group { name: String::new(), axis: Some(point.axis), experiments: vec![experiment] }),
        }
    }
    for group in &mut groups {
        if group.axis.is_some() {
            group.name = common_name(&group.experiments);
            group.experiments.sort_by(|one, other| value(one).total_cmp(&value(other)));
        }
    }
    groups
}

/// Where on its axis a point of a sweep is.
pub fn value(experiment: &Experiment) -> f64 {
    experiment.sweep.as_ref().map_or(0.0, |point| point.value)
}

fn same_sweep(one: &Experiment, other: &Experiment, axis: Axis) -> bool {
    // What changes along the axis, and what may differ from run to run without being another program.
    let words = |experiment: &Experiment| {
        let kept = experiment
            .arguments
            .iter()
            .filter(|word| !(word.starts_with("--address=") || axis == Axis::Threads && word.starts_with("--threads=")));
        kept.cloned().collect::<Vec<_>>()
    };
    one.workload == other.workload && one.figure == other.figure && words(one) == words(other)
}

/// What an experiment is called.
pub fn name_of(experiment: &Experiment) -> String {
    let name = if experiment.name.is_empty() { &experiment.workload } else { &experiment.name };
    if name.is_empty() { "experiment".into() } else { name.clone() }
}

/// What the names of all have in common, to the end of a word.
fn common_name(experiments: &[&Experiment]) -> String {
    let first = name_of(experiments[0]);
    let whole = experiments.iter().all(|experiment| name_of(experiment) == first);
    if whole {
        return first;
    }
    let names: Vec<Vec<char>> = experiments.iter().map(|experiment| name_of(experiment).chars().collect()).collect();
    let length =
        (0..names[0].len()).take_while(|index| names.iter().all(|name| name.get(*index) == names[0].get(*index))).count();
    let common: String = names[0][..length].iter().collect();
    // "random, 1" of "random, 16 threads" and "random, 1 thread": the last word may be half of one.
    let words = common.rfind([' ', ',']).map_or("", |end| &common[..end]);
    let trimmed = words.trim_end_matches(|letter: char| !letter.is_alphanumeric() && letter != ')');
    if trimmed.is_empty() { experiments[0].workload.clone() } else { trimmed.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::SweepPoint;

    fn experiment(name: &str, sweep: Option<(Axis, f64)>, arguments: &[&str]) -> Experiment {
        Experiment {
            name: name.into(),
            workload: "random".into(),
            arguments: arguments.iter().map(|word| (*word).to_string()).collect(),
            sweep: sweep.map(|(axis, value)| SweepPoint { axis, value }),
            ..Default::default()
        }
    }

    #[test]
    fn points_of_a_sweep_come_together() {
        let experiments = [
            experiment("random, 100 % local", Some((Axis::Memory, 100.0)), &["--size=1G"]),
            experiment("scan", None, &[]),
            experiment("random, 10 % local", Some((Axis::Memory, 10.0)), &["--size=1G"]),
            experiment("random, 100 % local", Some((Axis::Memory, 100.0)), &["--size=1G"]),
            experiment("random, 100 % local", Some((Axis::Memory, 100.0)), &["--size=2G"]),
            experiment("random, 1 thread", Some((Axis::Threads, 1.0)), &["--threads=1"]),
            experiment("random, 16 threads", Some((Axis::Threads, 16.0)), &["--threads=16"]),
        ];
        let groups = groups(&experiments);
        let shape: Vec<(&str, Vec<f64>)> = groups
            .iter()
            .map(|group| (group.name.as_str(), group.experiments.iter().map(|point| value(point)).collect()))
            .collect();
        let wanted = [
            ("random", vec![10.0, 100.0]),
            ("scan", vec![0.0]),
            ("random, 100 % local", vec![100.0]),
            ("random, 100 % local", vec![100.0]),
            ("random", vec![1.0, 16.0]),
        ];
        assert_eq!(shape, wanted);
    }

    #[test]
    fn names() {
        let named = |names: &[&str]| {
            let experiments: Vec<Experiment> = names.iter().map(|name| experiment(name, None, &[])).collect();
            common_name(&experiments.iter().collect::<Vec<_>>())
        };
        assert_eq!(named(&["random updates, 8 threads", "random updates, 16 threads"]), "random updates");
        assert_eq!(named(&["page rank (scale 20), 1 thread", "page rank (scale 20), 2 threads"]), "page rank (scale 20)");
        assert_eq!(named(&["a", "b"]), "random");
        assert_eq!(named(&["", ""]), "random");
    }
}
