//! The canonical set: what `make bench` measures and the README shows.
//!
//! One line an experiment, in the words of the command line. Sizes are small enough for under 20 minutes on two cores and large enough
//! that the measured phase is made of misses: half of the data (or what the line says) does not fit. Linux' own numbers change little with
//! the size as long as that share stays.

use clap::Parser;
use farshore_load::size::Bytes;
use farshore_load::workload::Workload;

use crate::args::{CanonicalArgs, Sweep};
use crate::plan::{self, Common, Experiment, Subject};
use crate::result::Axis;
use crate::targets::spec::{self, Spec};

/// An experiment of the set.
struct Entry {
    /// As `farshore bench` takes it.
    line: &'static str,
    /// Local memory, and RAM for compressed pages on top.
    memory: &'static str,
    pool: Option<&'static str>,
    /// What is compared.
    against: &'static str,
    /// Local memory in percent, for a sweep.
    sweep: &'static [f64],
}

const fn entry(line: &'static str, memory: &'static str, against: &'static str) -> Entry {
    Entry { line, memory, pool: None, against, sweep: &[] }
}

const fn pooled(line: &'static str, memory: &'static str, pool: &'static str, against: &'static str) -> Entry {
    Entry { line, memory, pool: Some(pool), against, sweep: &[] }
}

/// The set. What a user compares first comes first.
const SET: &[Entry] = &[
    entry("random --size 512M --threads 8 --seconds 3 --warmup 1", "256M", "farshore,linux-swap,zram"),
    pooled("random --size 512M --threads 2 --seconds 3 --warmup 1", "256M", "140M", "farshore:swap=ram:lz4,zram"),
    entry("random --size 512M --threads 1 --seconds 3 --warmup 1", "256M", "farshore,linux-swap"),
    entry("scan --size 256M --passes 3", "128M", "farshore,linux-swap"),
    entry("hotset --size 256M --threads 2 --seconds 3 --warmup 1", "64M", "farshore,linux-swap"),
    entry("gups-move --size 256M --threads 2 --seconds 4 --warmup 1", "192M", "farshore,linux-swap"),
    entry("phase --size 256M --threads 2", "128M", "farshore,linux-swap"),
    entry("pagerank --scale 20 --threads 2 --iterations 2", "72M", "farshore,linux-swap"),
    entry("stress --size 256M --threads 2 --passes 1", "128M", "farshore,linux-swap"),
    entry("kv --server redis --size 128M --rate 2000 --seconds 3 --warmup 1", "128M", "farshore,linux-swap"),
    entry("hotset --size 256M --threads 2 --seconds 2 --warmup 1", "512M", "farshore,native"),
    Entry {
        line: "random --size 128M --threads 4 --seconds 1.5 --warmup 0.5",
        memory: "64M",
        pool: None,
        against: "farshore,linux-swap,native",
        sweep: &[100.0, 80.0, 60.0, 40.0, 20.0],
    },
];

/// A workload alone, as the set's lines have it.
#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    workload: Workload,
}

/// The experiments of the set, or those whose name has one of `arguments.only` in it; under `targets` in place of their own, if there are some.
///
/// # Errors
/// None has.
pub fn experiments(arguments: &CanonicalArgs, targets: &[Spec]) -> Result<Vec<Experiment>, String> {
    let mut experiments = Vec::new();
    for entry in SET {
        experiments.extend(read(entry)?);
    }
    if !arguments.only.is_empty() {
        experiments.retain(|experiment| arguments.only.iter().any(|text| experiment.name.contains(text.as_str())));
    }
    if !targets.is_empty() {
        for experiment in &mut experiments {
            experiment.targets = targets.to_vec();
        }
    }
    if experiments.is_empty() {
        return Err(format!("no experiment of the canonical set is called like {:?}: see them by --list", arguments.only));
    }
    Ok(experiments)
}

fn read(entry: &Entry) -> Result<Vec<Experiment>, String> {
    let words = std::iter::once("canonical").chain(entry.line.split(' '));
    let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
    let memory: Bytes = entry.memory.parse()?;
    let pool = entry.pool.map(str::parse::<Bytes>).transpose()?;
    let common = Common { memory: Some(memory), pool, swap_size: None, swap_files: 1, targets: spec::parse_list(entry.against)? };
    let sweep = (!entry.sweep.is_empty()).then(|| Sweep { axis: Axis::Memory, values: entry.sweep.to_vec() });
    plan::experiments(&Subject::Workload(Box::new(line.workload)), &common, sweep.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_can_be_read_and_names_differ() {
        let all = experiments(&CanonicalArgs { only: Vec::new(), list: false }, &[]).unwrap();
        assert!(all.len() >= SET.len());
        let names: std::collections::BTreeSet<&str> = all.iter().map(|experiment| experiment.name.as_str()).collect();
        assert_eq!(names.len(), all.len());
        let kinds: std::collections::BTreeSet<String> = all.iter().map(Experiment::workload).collect();
        assert_eq!(kinds.len(), 8, "every workload is in it: {kinds:?}");
    }

    #[test]
    fn a_part_of_it_is_asked_for_by_name() {
        let some = experiments(&CanonicalArgs { only: vec!["scan".into()], list: false }, &[]).unwrap();
        assert!(some.iter().all(|experiment| experiment.workload() == "scan"));
        assert!(experiments(&CanonicalArgs { only: vec!["nothing like it".into()], list: false }, &[]).is_err());
    }
}
