//! `farshore plan`: how much memory a program needs.
//!
//! It runs the program once under Farshore, listens beside it as a policy that wishes for next to nothing, and tells at the end how long the program
//! would take with more and with less memory. Nothing of it is in the program's process but the events, which any policy may have.
//!
//! | module | what it does |
//! |---|---|
//! | [`ghosts`] | reuse distances of pages that have left, from a sample |
//! | [`looks`] | how often pages that are there are wanted, from how long they are away once they leave |
//! | [`asked`] | sends a few pages away for a look while nothing leaves by itself |
//! | [`watch`] | what events tell of a program |
//! | [`cores`] | what the program's threads waited for a core |
//! | [`curve`] | the model: from one run to the time with any memory |
//! | [`follow`] | runs the program, asks for its counters, and keeps its limit at half of what it has |
//! | [`device`] | swap spaces to ask about |
//! | [`report`] | the table, the sentence, and JSON |
//! | [`signals`] | the program's are as without this command, and what ends the command is passed on |

pub mod asked;
pub mod cores;
pub mod curve;
pub mod device;
pub mod follow;
pub mod ghosts;
pub mod looks;
pub mod report;
pub mod signals;
pub mod watch;

use std::fs::File;
use std::io::{IsTerminal, Write};

use farshore_command::refusal::Refusal;

use crate::args::PlanArgs;
use follow::Run;

/// Runs or watches a program, and tells what memory it needs.
///
/// # Errors
/// The program cannot be started (125), or cannot be watched or the plan not be written (1).
pub fn plan(arguments: &PlanArgs, farshore: Option<std::path::PathBuf>) -> Result<u8, Refusal> {
    // Better to know now than after hours of work.
    let json = match arguments.json.as_deref() {
        None => None,
        Some(path) if path.as_os_str() == "-" => Some((path, None)),
        Some(path) => {
            let file = File::create(path).map_err(|error| {
                Refusal::cannot_start(format!("--json: cannot write '{}' ({error}): name another file", path.display()))
            })?;
            Some((path, Some(file)))
        }
    };
    let run = match arguments.pid {
        Some(pid) => follow::watch(pid)?,
        None => follow::run(arguments, farshore)?,
    };
    let status = run.status;
    let told = report::Report::of(&run, arguments.device.as_ref());
    let mut screen = std::io::stderr().lock();
    // That standard error is closed is no reason to take the program's status from who asked.
    let _ = screen.write_all(told.text(std::io::stderr().is_terminal()).as_bytes());
    match json {
        Some((_, None)) => crate::print(&told.json())?,
        Some((path, Some(mut file))) => file.write_all(told.json().as_bytes()).map_err(|error| {
            Refusal::failed(format!("--json: cannot write '{}' ({error}): is its disk full?", path.display()))
        })?,
        None => {}
    }
    Ok(status.status())
}

/// What a run is known by, for the report.
pub fn shown(run: &Run) -> Option<curve::Shown> {
    let stats = run.stats.as_ref()?;
    let heard = run.heard.as_ref()?;
    let (faults, ns) = (&stats.faults, 1e9);
    let begun = run.before.as_deref();
    // What came after they were asked for last was heard: as much again of each.
    let since =
        |now: u64, of: fn(&farshore_config::stats::Stats) -> u64| now.saturating_sub(begun.map_or(0, of)) as f64 / run.asked_at;
    let zero = since(faults.zero, |it| it.faults.zero);
    let cheap = zero + since(faults.rescue, |it| it.faults.rescue) + since(faults.write_protect, |it| it.faults.write_protect);
    let (fetches, pages_in) = (since(faults.fetch, |it| it.faults.fetch), since(stats.swap.pages_in, |it| it.swap.pages_in));
    // What came back from a look would have been there.
    let own = 1.0 - (heard.looked_back as f64 / pages_in.max(1.0)).min(1.0);
    let (fetches, pages_in) = (fetches * own, pages_in * own);
    let waited = since(stats.fault_latency_ns.total, |it| it.fault_latency_ns.total) / ns * own;
    let overhead = run.cheapest + SIGNAL;
    // But for first touches, which it would have made alone too, its faults are all of their time Farshore's.
    let waited = (waited - zero * NATIVE).max(0.0) + (fetches + cheap) * SIGNAL;
    let besides = heard.took().map_or(0.0, |took| (waited - fetches * (took + SIGNAL)).max(0.0));
    Some(curve::Shown {
        seconds: run.seconds,
        limit: run.limit,
        whole: run.whole,
        needs: heard.needs.iter().map(|(&need, &returns)| (watch::limit_for(need, run.evictors), returns)).collect(),
        fewer: heard.fewer(stats).map_or_else(Vec::new, |fewer| {
            let room = watch::room(stats) as f64;
            let parts = (2..20).map(|part| f64::from(part) / 20.0);
            parts.map(|part| (watch::limit_for((room * part) as u64, run.evictors), fewer.with(part))).collect()
        }),
        pages_in,
        pages_out: since(stats.swap.pages_out, |it| it.swap.pages_out),
        fetches,
        waited,
        besides,
        signal: SIGNAL,
        queued: run.queued / run.asked_at,
        overhead,
        longest: run.longest,
    })
}

/// Seconds from a fault to its handler and back, which no counter has: the kernel's delivery of a signal, and the return from it.
const SIGNAL: f64 = 2e-6;
/// Seconds of a first touch without Farshore.
const NATIVE: f64 = 0.5e-6;
