//! One experiment: every target once a round, in turn.
//!
//! The order goes round: A B C, B C A, C A B. So none always comes after the same neighbour, and a machine that is slower for a
//! while is slower for all. Rounds before the first do not count: they warm up what lasts from run to run (the program's pages in the cache, the
//! disk's own cache, the processor's clock).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::child::{Child, Output, Watch};
use crate::journal::Journal;
use crate::measure::{self, Interrupted, Noted};
use crate::plan::Experiment;
use crate::progress::Progress;
use crate::result;
use crate::targets::{Place, Target, spec};

/// What all experiments of a call have in common.
#[derive(Debug)]
pub struct Turns<'a> {
    /// `farshore-load`.
    pub load: &'a Path,
    /// The `farshore` command of targets that name no other build.
    pub farshore: &'a Path,
    /// What is made is written down there; its work directory is where swap files go.
    pub journal: &'a Arc<Journal>,
    /// What a cgroup gets on top of the local memory, in bytes.
    pub extra_bytes: u64,
    /// Rounds that count.
    pub rounds: u32,
    /// Rounds before them.
    pub warm_up_rounds: u32,
    /// Longest time of one run.
    pub timeout: Duration,
    /// Set by Ctrl-C.
    pub stop: &'a AtomicBool,
}

/// A target with its place in the results.
struct Side {
    /// Its place among those that were asked for.
    index: usize,
    target: Box<dyn Target>,
    result: result::TargetResult,
}

/// What has come of an experiment.
#[derive(Debug)]
pub struct Made {
    /// The results, without summaries.
    pub experiment: result::Experiment,
    /// Labels of the targets whose pages go to the device.
    pub on_device: BTreeSet<String>,
    /// Targets that could not be had, and why.
    pub skipped: BTreeMap<String, String>,
    /// The user has ended it: there are fewer rounds than were asked for.
    pub interrupted: bool,
}

impl Turns<'_> {
    /// Tells `progress` which runs `experiment` will take.
    pub fn announce(&self, experiment: &Experiment, progress: &mut Progress) {
        for label in spec::labels(&experiment.targets) {
            progress.expect(&kind(experiment, &label), self.rounds + self.warm_up_rounds);
        }
    }

    /// Makes the comparison. Targets that cannot be had are left out.
    ///
    /// # Errors
    /// None of the targets can be had, or what must be made first cannot be: one line.
    pub fn compare(&self, experiment: &Experiment, progress: &mut Progress) -> Result<Made, String> {
        self.prepare(experiment, progress)?;
        let mut skipped = BTreeMap::new();
        let mut sides = self.sides(experiment, progress, &mut skipped);
        if sides.is_empty() {
            let why: Vec<String> = skipped.iter().map(|(label, why)| format!("{label}: {why}")).collect();
            return Err(format!("nothing to run for '{}': {}", experiment.name, why.join("; ")));
        }
        let interrupted = self.take_turns(experiment, &mut sides, progress).is_err();
        for side in &mut sides {
            // Some are known only after a run.
            side.result.settings = side.target.settings();
            side.target.take_down();
        }
        // A graph has the size that it has.
        let told =
            |side: &Side| side.result.rounds.iter().find_map(|round| round.outcome.as_ref()).map(|outcome| outcome.data_bytes);
        let data_bytes = sides.iter().find_map(told).filter(|bytes| *bytes > 0).unwrap_or_else(|| experiment.data_bytes());
        let on_device = sides.iter().filter(|side| side.target.uses_device()).map(|side| side.result.label.clone()).collect();
        let experiment = result::Experiment {
            name: experiment.name.clone(),
            workload: experiment.workload(),
            arguments: self.words(experiment),
            data_bytes,
            memory_bytes: experiment.memory_bytes,
            pool_bytes: experiment.pool_bytes,
            threads: experiment.threads(),
            swap_files: experiment.swap_files,
            sweep: experiment.sweep.clone(),
            family: experiment.family.clone(),
            paper: experiment.paper.clone(),
            raised_bytes: experiment.raised.unwrap_or(0),
            figure: experiment.figure(),
            targets: sides.into_iter().map(|side| side.result).collect(),
        };
        Ok(Made { experiment, on_device, skipped, interrupted })
    }

    /// The command line of the first round, without the paths of this machine.
    fn words(&self, experiment: &Experiment) -> Vec<String> {
        let words = match experiment.program(Path::new("farshore-load"), Path::new("."), 1, 0) {
            measure::Program::Any(words) | measure::Program::Workload(words) | measure::Program::Raised { words, .. } => words,
            measure::Program::Served(served) => served.words(),
            measure::Program::Service(service) => service.server.into_iter().chain(["+".into()]).chain(service.client).collect(),
        };
        let work = self.journal.work().to_string_lossy();
        words.into_iter().map(|word| word.to_string_lossy().replace(&*work, ".")).collect()
    }

    fn prepare(&self, experiment: &Experiment, progress: &Progress) -> Result<(), String> {
        let words = experiment.preparation(self.load, self.journal.work());
        words.map_or(Ok(()), |words| self.make_first(&experiment.name, &words, progress))
    }

    /// Runs what makes something that a comparison needs, once and natively.
    ///
    /// # Errors
    /// It could not be made: one line.
    pub fn make_first(&self, name: &str, words: &[OsString], progress: &Progress) -> Result<(), String> {
        progress.doing(&format!("{name}: making the data"));
        let mut command = std::process::Command::new(&words[0]);
        command.args(&words[1..]);
        let mut child = Child::start(command, Output::Hash)?;
        let _noted = Noted::new(self.journal, &child)?;
        let watch = Watch { stop: self.stop, deadline: Instant::now() + self.timeout };
        let ended = child.wait(watch, |_| {}).map_err(|silence| format!("making the data was ended ({silence:?})"))?;
        let wrong = child.reap(ended).wrong;
        if wrong.is_empty() { Ok(()) } else { Err(format!("cannot make the data: {}", wrong.join("; "))) }
    }

    fn sides(&self, experiment: &Experiment, progress: &mut Progress, skipped: &mut BTreeMap<String, String>) -> Vec<Side> {
        let place = Place {
            memory_bytes: experiment.memory_bytes,
            pool_bytes: experiment.pool_bytes,
            extra_bytes: self.extra_bytes,
            swap_bytes: experiment.swap_bytes,
            swap_files: experiment.swap_files,
            directory: self.journal.work().to_path_buf(),
        };
        let mut sides = Vec::new();
        for (index, (spec, label)) in experiment.targets.iter().zip(spec::labels(&experiment.targets)).enumerate() {
            let mut target = spec.build(self.farshore, self.journal);
            progress.doing(&format!("setting up {label}"));
            if let Err(why) = target.set_up(&place) {
                target.take_down();
                progress.drop_kind(&kind(experiment, &label));
                skipped.insert(label, why);
                continue;
            }
            let kind = target.kind().to_string();
            sides.push(Side { index, target, result: result::TargetResult { label, kind, ..Default::default() } });
        }
        sides
    }

    fn take_turns(&self, experiment: &Experiment, sides: &mut [Side], progress: &mut Progress) -> Result<(), Interrupted> {
        let count = sides.len();
        for number in 0..self.warm_up_rounds + self.rounds {
            let counted = number.checked_sub(self.warm_up_rounds).map(|round| round + 1);
            for place in 0..count {
                let side = &mut sides[(place + number as usize) % count];
                let what = match counted {
                    Some(round) => format!("{}, round {round} of {}: {}", side.result.label, self.rounds, experiment.name),
                    None => format!("{}, warm-up: {}", side.result.label, experiment.name),
                };
                let begun = progress.begin(&what);
                let program = experiment.program(self.load, self.journal.work(), counted.unwrap_or(0), side.index);
                let mut round = measure::run(side.target.as_mut(), &program, self.timeout, self.journal, self.stop)?;
                progress.end(&kind(experiment, &side.result.label), begun);
                let Some(number) = counted else {
                    complain(progress, &what, &round);
                    continue;
                };
                round.number = number;
                round.place = u32::try_from(place + 1).unwrap_or(u32::MAX);
                round.figure = experiment.figure_of(&round);
                if round.figure.is_none() && round.wrong.is_empty() {
                    round.wrong.push("it told nothing that can be compared".into());
                }
                complain(progress, &what, &round);
                side.result.rounds.push(round);
            }
            if let Some(round) = counted {
                for why in same_output(sides, round as usize - 1) {
                    progress.say(&format!("{}: round {round}, {why}", experiment.name));
                }
                progress.say(&line(experiment, sides, round));
            }
        }
        Ok(())
    }
}

fn kind(experiment: &Experiment, label: &str) -> String {
    format!("{}\0{label}", experiment.name)
}

fn complain(progress: &Progress, what: &str, round: &result::Round) {
    for why in &round.wrong {
        progress.say(&format!("{what}: {why}"));
    }
}

/// A program must print the same, and a workload come to the same checksum, under every target: as it does natively, or under the first. Tells
/// where it did not.
fn same_output(sides: &mut [Side], index: usize) -> Vec<String> {
    let proof = |round: &result::Round| {
        let checksum = round.outcome.as_ref().map_or(String::new(), |outcome| outcome.checksum.clone());
        format!("{}{checksum}", round.output_sha256)
    };
    let good = |side: &&Side| side.result.rounds.get(index).is_some_and(|round| round.wrong.is_empty());
    let judge = sides.iter().filter(good).min_by_key(|side| side.result.kind != "native");
    let Some((label, wanted)) = judge.map(|side| (side.result.label.clone(), proof(&side.result.rounds[index]))) else {
        return Vec::new();
    };
    let mut told = Vec::new();
    for side in sides {
        let Some(round) = side.result.rounds.get_mut(index) else { continue };
        if round.wrong.is_empty() && proof(round) != wanted {
            let why = format!("it printed something else than under {label}, or came to another checksum");
            told.push(format!("{}: {why}", side.result.label));
            round.wrong.push(why);
        }
    }
    told
}

/// The figures of a round.
fn line(experiment: &Experiment, sides: &[Side], number: u32) -> String {
    let figure = experiment.figure();
    let mut text = format!("{}, round {number}:", experiment.name);
    for side in sides {
        let round = side.result.rounds.last();
        let value = round.filter(|round| round.wrong.is_empty()).and_then(|round| round.figure);
        let value = value.map_or("failed".into(), |value| crate::table::quantity(value, &figure.unit));
        text.push_str(&format!("  {} {value}", side.result.label));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Subject;

    #[test]
    fn what_a_run_was_is_told_without_the_paths_of_this_machine() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Arc::new(Journal::open(directory.path()).unwrap());
        let turns = Turns {
            load: Path::new("farshore-load"),
            farshore: Path::new("farshore"),
            journal: &journal,
            extra_bytes: 0,
            rounds: 1,
            warm_up_rounds: 0,
            timeout: Duration::from_secs(1),
            stop: &AtomicBool::new(false),
        };
        let script = journal.work().join("records.pl").into_os_string();
        let experiment = Experiment {
            name: String::new(),
            subject: Subject::Program(vec!["perl".into(), script, "/etc/hosts".into()]),
            memory_bytes: 0,
            pool_bytes: 0,
            swap_bytes: 0,
            swap_files: 1,
            sweep: None,
            targets: Vec::new(),
            family: String::new(),
            paper: None,
            raised: None,
        };
        assert_eq!(turns.words(&experiment), ["perl", "./records.pl", "/etc/hosts"]);
    }
}
