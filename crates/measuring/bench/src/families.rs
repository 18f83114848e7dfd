//! `farshore bench families`: the default of Farshore against what else there is, for kinds of programs, at parts of their peak.
//!
//! ```text
//! each row   is it here? ─▶ its files, made once ─▶ one native run: its peak ─▶ for each part of the peak one comparison, all targets in turn
//! ```
//!
//! A row whose program is not installed is left out, with the reason, and the others are measured. The limit is a part of the peak that one
//! native run has: the largest resident memory of one of its processes. That run is in the results as the point of 100 percent, so a reader also sees
//! how long the program takes without a limit.
//!
//! All targets of a comparison have the same RAM: what zram and zswap have compressed counts within their limit ([`crate::targets::total`]), as a pool
//! of Farshore's does.

mod rows;

use std::ffi::OsString;
use std::path::Path;

use clap::Parser;
use farshore_load::size::Bytes;
use farshore_load::workload::Workload;

use self::rows::{ROWS, Row, What};
use crate::args::FamiliesArgs;
use crate::place;
use crate::plan::{self, Experiment, Subject};
use crate::result::{self, Axis, SweepPoint};
use crate::run::Failure;
use crate::statistics;
use crate::targets::spec::{self, Spec};
use crate::targets::tools;
use crate::uthread::course::{Maker, Rounds};

/// What is compared where nothing else is said. The default is a directory today, so that has no target of its own; it gets one when the default
/// is another.
const USUAL: &str = "farshore,farshore:swap=ram:lz4+swap=dir+label=ram:lz4,farshore:swap=ram:auto+swap=dir+label=ram:auto,linux-swap,\
                     zram:pool=counted,zswap:pool=counted";
/// Limits are whole ones of these, in bytes.
const GRAIN: u64 = 1 << 20;

/// Whoever makes comparisons, and can make what they need before.
pub trait Kitchen: Maker {
    /// Where files of a row go; it is gone at the end.
    fn directory(&self) -> &Path;

    /// Runs a command once, natively, that makes something for a row.
    ///
    /// # Errors
    /// It failed: one line.
    fn make_first(&mut self, name: &str, words: &[OsString]) -> Result<(), String>;

    /// Tells that a row is not measured, and why.
    fn leave_out(&mut self, name: &str, why: &str);
}

/// The rows that were asked for.
#[derive(Debug)]
pub struct Families {
    rows: Vec<&'static Row>,
    local: Vec<f64>,
    targets: Vec<Spec>,
}

/// A workload alone, as rows have it.
#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    workload: Workload,
}

impl Families {
    /// As the command line says, under `targets` if there are some.
    ///
    /// # Errors
    /// No row is called so: one line.
    pub fn new(arguments: &FamiliesArgs, targets: &[Spec]) -> Result<Families, String> {
        let wanted = |row: &&Row| arguments.only.is_empty() || arguments.only.iter().any(|text| row.name.contains(text.as_str()));
        let rows: Vec<&Row> = ROWS.iter().filter(wanted).collect();
        if rows.is_empty() {
            return Err(format!("no row of families is called like {:?}: see them by --list", arguments.only));
        }
        let targets = if targets.is_empty() { spec::parse_list(USUAL)? } else { targets.to_vec() };
        Ok(Families { rows, local: arguments.local.clone(), targets })
    }

    /// A line for each row: what it is, and what is missing for it here.
    #[must_use]
    pub fn list(&self) -> String {
        let targets = spec::labels(&self.targets).join(", ");
        let line = |row: &&Row| {
            let missing = missing(row).map_or_else(|why| format!(" (left out: {why})"), |()| String::new());
            format!("{}: {}{missing}\n", row.name, row.about)
        };
        let local: Vec<String> = self.local.iter().map(f64::to_string).collect();
        self.rows.iter().map(line).collect::<String>() + &format!("each at {} % of its peak, under {targets}\n", local.join(", "))
    }

    /// Experiments that need about as much as those that will be made: peaks are known only later.
    ///
    /// # Errors
    /// No row can be measured here, or one cannot be read: one line.
    pub fn needs(&self) -> Result<Vec<Experiment>, String> {
        let most = self.local.iter().copied().fold(0.0, f64::max);
        let here: Vec<&&Row> = self.rows.iter().filter(|row| missing(row).is_ok()).collect();
        if here.is_empty() {
            let why: Vec<String> =
                self.rows.iter().filter_map(|row| Some(format!("{}: {}", row.name, missing(row).err()?))).collect();
            return Err(format!("no row of families can be measured here: {}", why.join("; ")));
        }
        here.into_iter().map(|row| Ok(self.limited(row, &subject(row, Path::new("."))?, row.about_mib << 20, most))).collect()
    }

    /// Makes all comparisons, row by row.
    ///
    /// # Errors
    /// One could not be made: one line.
    pub fn run(&self, kitchen: &mut dyn Kitchen) -> Result<(), Failure> {
        for row in &self.rows {
            let ready = missing(row).and_then(|()| make_ready(row, kitchen)).and_then(|()| subject(row, kitchen.directory()));
            let subject = match ready {
                Ok(subject) => subject,
                Err(why) => {
                    kitchen.leave_out(row.name, &why);
                    continue;
                }
            };
            let Some(made) = kitchen.make(&native(row, &subject)?, Rounds::One)? else { return Ok(()) };
            let Some(peak) = peak_of(&made) else {
                kitchen.leave_out(row.name, "its native run failed, so its peak is not known");
                continue;
            };
            kitchen.say(&format!("{}: its peak is {}", row.name, Bytes(peak / GRAIN * GRAIN)));
            for percent in &self.local {
                if kitchen.make(&self.limited(row, &subject, peak, *percent), Rounds::All)?.is_none() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The comparison at a part of the peak.
    fn limited(&self, row: &Row, subject: &Subject, peak: u64, percent: f64) -> Experiment {
        let memory_bytes = (plan::percent_of(peak, percent) / GRAIN).max(1) * GRAIN;
        // What is out is never more than the peak; half as much again is for what the kernel keeps in swap space of pages that are in.
        point(row, subject.clone(), memory_bytes, peak.saturating_add(peak / 2), percent, self.targets.clone())
    }
}

/// The run that tells the peak.
fn native(row: &Row, subject: &Subject) -> Result<Experiment, Failure> {
    let targets = spec::parse_list("native").map_err(Failure::Failed)?;
    // There is no limit.
    Ok(point(row, subject.clone(), 0, 0, 100.0, targets))
}

fn point(row: &Row, subject: Subject, memory_bytes: u64, swap_bytes: u64, percent: f64, targets: Vec<Spec>) -> Experiment {
    Experiment {
        name: format!("{}, {percent} % local", row.name),
        subject,
        memory_bytes,
        pool_bytes: 0,
        swap_bytes,
        swap_files: 1,
        sweep: Some(SweepPoint { axis: Axis::Memory, value: percent }),
        targets,
        family: row.name.to_string(),
        paper: None,
        raised: None,
    }
}

/// The largest resident memory of the native run, in bytes; `None` if it failed, or the kernel did not tell.
fn peak_of(made: &result::Experiment) -> Option<u64> {
    let peaks = made.targets.iter().flat_map(statistics::good).map(|(round, _)| round.peak_resident_bytes);
    peaks.max().filter(|peak| *peak >= GRAIN)
}

/// Refuses a row whose program is not installed.
fn missing(row: &Row) -> Result<(), String> {
    for (tool, package) in row.tools {
        tools::need(tool, package)?;
    }
    if let What::Program { module: Some(module), .. } = &row.what {
        let import = format!("import {module}");
        tools::run("python3", "python3", &["-c", import.as_str()])
            .map_err(|_| format!("python3 has no module {module}: pip install {module}, in a venv that comes first in PATH"))?;
    }
    Ok(())
}

/// Writes a program's files and runs what makes something of them.
fn make_ready(row: &Row, kitchen: &mut dyn Kitchen) -> Result<(), String> {
    let What::Program { file: (name, text), first, .. } = &row.what else { return Ok(()) };
    let path = kitchen.directory().join(name);
    place::write(&path, text.as_bytes()).map_err(|error| format!("cannot write '{}' ({error})", path.display()))?;
    let words = placed(first, kitchen.directory());
    if words.is_empty() { Ok(()) } else { kitchen.make_first(row.name, &words) }
}

/// What is run, with its files in `directory`.
fn subject(row: &Row, directory: &Path) -> Result<Subject, String> {
    match &row.what {
        What::Workload(line) => {
            let line = Line::try_parse_from(std::iter::once("families").chain(line.split(' ')));
            Ok(Subject::Workload(Box::new(line.map_err(|error| error.to_string())?.workload)))
        }
        What::Program { run, .. } => Ok(Subject::Program(placed(run, directory))),
    }
}

/// Words with the directory in the place of `{}`.
fn placed(words: &[&str], directory: &Path) -> Vec<OsString> {
    let word = |word: &&str| match word.split_once("{}") {
        Some((before, after)) => {
            let mut all = OsString::from(before);
            all.push(directory);
            all.push(after);
            all
        }
        None => OsString::from(word),
    };
    words.iter().map(word).collect()
}

#[cfg(test)]
mod tests;
