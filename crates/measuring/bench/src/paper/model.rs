//! Figures that no machine here can make: the model of [`farshore_scale`] runs at their points. Its rows are rows as any others, of the kind `model`, a round for each
//! seed; what the threads' time went to is in [`Round::stats`].

use std::collections::BTreeMap;

use farshore_load::outcome::{Histogram, Outcome};
use farshore_scale::systems::LOCAL;
use farshore_scale::{Load, Machine, System, Told};

use super::{Figure, Panel, Runs};
use crate::report::text::float;
use crate::result::{self, Counters, Experiment, PaperPoint, Results, Round, Spread, Summary, TargetResult};
use crate::statistics;

/// The kind of a target that was modelled.
pub const KIND: &str = "model";
/// Seeds of a point.
const SEEDS: u32 = 5;
/// The parts of the threads' time in [`Round::stats`].
const TIME: &str = "time";
/// Most steps of a distribution that are kept.
const STEPS: usize = 64;

/// One system at a point.
#[derive(Debug)]
pub struct Run {
    /// What sets it apart from another of the same name; empty where it is alone.
    pub variant: &'static str,
    /// The system.
    pub system: System,
    /// On this machine.
    pub machine: Machine,
    /// Under this load.
    pub load: Load,
}

/// Runs all points of a modelled figure.
#[must_use]
pub fn results(figure: &'static Figure, quick: bool, command: &[String], date: String, machine: result::Machine) -> Results {
    let version = env!("CARGO_PKG_VERSION").to_string();
    let mut results = Results { schema: result::SCHEMA, version, date, command: command.to_vec(), machine, ..Results::default() };
    for panel in figure.panels {
        let Runs::Modelled(at) = &panel.runs else { continue };
        let points = if quick { panel.x.quick } else { panel.x.points };
        for x in points {
            let runs = at(*x);
            let mut variants: Vec<&str> = runs.iter().map(|run| run.variant).collect();
            variants.dedup();
            for variant in variants {
                let of: Vec<&Run> = runs.iter().filter(|run| run.variant == variant).collect();
                results.experiments.push(experiment(figure, panel, variant, *x, quick, &of));
            }
        }
    }
    results
}

fn experiment(figure: &Figure, panel: &Panel, variant: &str, x: f64, quick: bool, runs: &[&Run]) -> Experiment {
    let point = PaperPoint { figure: figure.name.into(), panel: panel.key.into(), variant: variant.into(), x, shown: x, quick };
    let seeds = if quick { 1 } else { SEEDS };
    Experiment {
        name: format!("{}, {}, {x}{}{variant}", figure.name, panel.key, if variant.is_empty() { "" } else { ", " }),
        workload: KIND.into(),
        threads: runs.iter().map(|run| run.load.threads).max().unwrap_or(0),
        paper: Some(point),
        figure: result::Figure { name: "faults a second".into(), unit: "/s".into(), less_is_better: false },
        targets: runs.iter().map(|run| target(run, seeds)).collect(),
        ..Experiment::default()
    }
}

fn target(run: &Run, seeds: u32) -> TargetResult {
    let rounds: Vec<Round> = (1..=seeds)
        .map(|seed| round(seed, &farshore_scale::run(&run.machine, &run.system, &run.load, u64::from(seed))))
        .collect();
    let figures: Vec<f64> = rounds.iter().filter_map(|round| round.figure).collect();
    let spread = Spread {
        median: statistics::median(&figures).unwrap_or(0.0),
        min: figures.iter().copied().fold(f64::INFINITY, f64::min),
        max: figures.iter().copied().fold(0.0, f64::max),
    };
    let settings = [
        ("cores", run.machine.cores.to_string()),
        ("devices", run.machine.far.devices.to_string()),
        ("evictors", run.system.eviction.evictors.to_string()),
        ("batch", run.system.eviction.batch.to_string()),
    ];
    TargetResult {
        label: run.system.name.into(),
        // Whose memory is all there is what others are set against, as on a machine.
        kind: if run.system.name == LOCAL.name { LOCAL.name.into() } else { KIND.into() },
        settings: settings.into_iter().map(|(name, value)| (name.to_string(), value)).collect(),
        rounds,
        summary: Some(Summary { figure: spread, ..Summary::default() }),
    }
}

fn round(number: u32, told: &Told) -> Round {
    let seconds = float(told.ns) / 1e9;
    let shares: BTreeMap<&str, f64> = told.shares().into_iter().filter(|(_, share)| *share >= 0.000_5).collect();
    let counters = Counters { fetches: told.faults, pages_in: told.faults, ..Counters::default() };
    Round {
        number,
        place: 1,
        figure: Some(told.rate()),
        wall_seconds: seconds,
        counters,
        measured: Some(counters),
        measured_seconds: seconds,
        outcome: Some(Outcome { operations: told.faults, seconds, latency: histogram(&told.latencies), ..Outcome::default() }),
        stats: Some(serde_json::json!({
            TIME: shares,
            "flush_ns": told.flush_ns.checked_div(told.flushes).unwrap_or(0),
            "batches_by_faults": told.by_faults,
        })),
        ..Round::default()
    }
}

/// A distribution in at most so many steps, each the largest of as many.
fn histogram(ascending: &[u64]) -> Histogram {
    let each = ascending.len().div_ceil(STEPS).max(1);
    let counts = ascending.chunks(each).map(|some| (some[some.len() - 1], some.len() as u64));
    Histogram { counts: counts.collect() }
}

/// What the time of a target's threads went to, the median over its seeds, largest first: names and parts of all.
#[must_use]
pub fn times(target: &TargetResult) -> Vec<(String, f64)> {
    let of = |round: &Round| round.stats.as_ref()?.get(TIME)?.as_object().cloned();
    let all: Vec<_> = target.rounds.iter().filter_map(of).collect();
    let names: std::collections::BTreeSet<&String> = all.iter().flat_map(serde_json::Map::keys).collect();
    let part = |name: &str| {
        let parts: Vec<f64> = all.iter().map(|one| one.get(name).and_then(serde_json::Value::as_f64).unwrap_or(0.0)).collect();
        statistics::median(&parts).unwrap_or(0.0)
    };
    let mut parts: Vec<(String, f64)> = names.into_iter().map(|name| (name.clone(), part(name))).collect();
    parts.sort_by(|one, other| other.1.total_cmp(&one.1));
    parts
}
