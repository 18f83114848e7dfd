//! `farshore-load`: workloads for comparisons. A plain program: nothing in it knows what it runs under.
//!
//! It reads the options, runs one workload, and tells the outcome: as lines for a program with `--events` (see
//! [`farshore_load::outcome`]), else as a few lines for a reader. Exit status 0: the data were right; 1: they were not,
//! or the workload could not be run; 2: wrong options; 3: `open --strict`, and the generator was too slow.
#![forbid(unsafe_code)]

mod generator;
mod memory;
mod open;
mod record;
mod report;
mod summary;
mod team;
mod verify;
mod work;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use farshore_load::outcome::{Event, Outcome};
use farshore_load::workload::Workload;

use memory::{LEAST, PAGE};
use open::args::Open;
use record::Ballast;
use report::Report;

/// The shortest time for workloads that are measured for a time.
const LEAST_SECONDS: f64 = 0.01;

const AFTER_HELP: &str = "\
Examples:
  farshore-load random --size 1G --threads 8              update pages at random for 6 seconds
  farshore-load random --run-length 512 --mode read       read runs of 512 neighbouring pages
  farshore-load scan --size 2G --passes 5                 five passes over 2 GiB
  farshore-load open array udp:127.0.0.1:7000 --rate 50000
                                                          50 000 requests a second
  farshore-load --events gups-move --seconds 20 | jq .    the outcome as JSON lines

Environment:
  LOAD_BALLAST=PERCENT  slow each thread down by this much (0 to 95): all threads stop together for
                        that share of each 50 ms. For tests of comparisons: they must see it.

Exit status: 0 the data were right, 1 they were not or the workload could not be run, 2 wrong
options, 3 open --strict: the generator was too slow.";

/// Workloads for comparisons: each fills memory, works on it for a while, and checks its data at the end
#[derive(Parser, Debug)]
#[command(name = "farshore-load", version, after_help = AFTER_HELP)]
struct Options {
    /// Write JSON lines: one as each phase begins, and the outcome
    #[arg(long)]
    events: bool,
    #[command(subcommand)]
    action: Action,
}

/// What is done.
#[derive(Subcommand, Debug)]
#[expect(clippy::large_enum_variant)] // There is one of it.
enum Action {
    #[command(flatten)]
    Workload(Workload),
    /// Load for a network service, on a schedule that does not wait for answers
    Open(Open),
}

fn main() -> ExitCode {
    let options = Options::parse();
    let workload = match &options.action {
        Action::Workload(workload) => workload,
        Action::Open(open) => return generate(open, options.events),
    };
    if let Err(error) = check(workload) {
        Options::command().error(ErrorKind::ValueValidation, error).exit();
    }
    match measure(workload, options.events) {
        Ok(outcome) if outcome.wrong.is_empty() => ExitCode::SUCCESS,
        Ok(outcome) => {
            for wrong in outcome.wrong {
                eprintln!("farshore-load: wrong data: {wrong}");
            }
            ExitCode::from(1)
        }
        Err(error) => {
            eprintln!("farshore-load: {error}");
            ExitCode::from(1)
        }
    }
}

/// `open`.
fn generate(open: &Open, events: bool) -> ExitCode {
    if events {
        Options::command().error(ErrorKind::ArgumentConflict, "--events does not go with open: use its --json FILE").exit();
    }
    open::run(open).unwrap_or_else(|error| {
        eprintln!("farshore-load: {error}");
        ExitCode::from(1)
    })
}

/// What cannot be told from one option alone.
fn check(workload: &Workload) -> Result<(), String> {
    let common = workload.common();
    let in_pages =
        !matches!(workload, Workload::Pagerank(_) | Workload::Bfs(_) | Workload::Cc(_) | Workload::Signals(_) | Workload::Kv(_));
    if in_pages && common.size < LEAST {
        return Err(format!("--size {} is too little: give at least {LEAST}", common.size));
    }
    let pages = common.size.0 / PAGE as u64;
    if in_pages && u64::from(common.threads) > pages {
        return Err(format!(
            "--size {} is {pages} pages, less than one for each of {} threads: give more",
            common.size, common.threads
        ));
    }
    let timed = matches!(
        workload,
        Workload::Random(_)
            | Workload::Hotset(_)
            | Workload::GupsMove(_)
            | Workload::Kmers(_)
            | Workload::Grid(_)
            | Workload::Tree(_)
            | Workload::Signals(_)
            | Workload::Reads(_)
            | Workload::Kv(_)
    );
    if timed && common.seconds < LEAST_SECONDS {
        return Err(format!("--seconds {} is too short to measure: give at least {LEAST_SECONDS}", common.seconds));
    }
    if let Workload::List(list) = workload {
        return work::list::check(list);
    }
    Ballast::from_environment().map(drop)
}

/// Runs the workload and tells its outcome.
fn measure(workload: &Workload, events: bool) -> Result<Outcome, String> {
    let mut report = Report::new(events)?;
    let mut outcome = run(workload, &mut report)?;
    outcome.phases = report.finish()?;
    outcome.workload = workload.name().into();
    if outcome.data_bytes == 0 {
        outcome.data_bytes = workload.common().size.0;
    }
    if events {
        report.event(&Event::Outcome(Box::new(outcome.clone())));
        report.written()?;
    } else {
        summary::print(&outcome).map_err(|error| format!("cannot write to standard output: {error}"))?;
    }
    Ok(outcome)
}

fn run(workload: &Workload, report: &mut Report) -> Result<Outcome, String> {
    match workload {
        Workload::Random(args) => work::random::run(args, report),
        Workload::Scan(args) => work::scan::run(args, report),
        Workload::Hotset(args) => work::hotset::run(args, report),
        Workload::GupsMove(args) => work::gups::run(args, report),
        Workload::Phase(args) => work::phase::run(args, report),
        Workload::Pagerank(args) => work::pagerank::run(args, report),
        Workload::Bfs(args) => work::bfs::run(args, report),
        Workload::Cc(args) => work::components::run(args, report),
        Workload::Stress(args) => work::stress::run(args, report),
        Workload::Kmers(args) => work::kmers::run(args, report),
        Workload::Images(args) => work::images::run(args, report),
        Workload::List(args) => match work::list::run(args, report.has_events())? {},
        Workload::Grid(args) => work::grid::run(args, report),
        Workload::Tree(args) => work::tree::run(args, report),
        Workload::Signals(args) => work::signals::run(args, report),
        Workload::Reads(args) => work::reads::run(args, report),
        Workload::Kv(args) => work::kv::run(args, report),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_says_what_the_help_says() {
        let mut command = Options::command();
        command.build();
        let see = "farshore(1), farshore-bench(1)";
        farshore_manual::check(env!("CARGO_MANIFEST_DIR"), "farshore-load", &command, farshore_manual::Parts::Sections, see);
    }
}
