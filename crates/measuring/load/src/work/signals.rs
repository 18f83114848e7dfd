//! `signals`: each thread raises a signal for itself and takes it, again and again.
//!
//! So it passes the lock of the kernel's that all threads of a process share, their table of signal handlers', twice: to raise, and to take. A fault that is told by SIGBUS passes it as often. The
//! signal is blocked and taken by sigwait(3), not by a handler: a handler that is safe has words that all threads write, and these would be measured too.
//!
//! With `--processes` each thread is a process, with a table of its own: the same work without a lock that is shared.
//!
//! Verified: each signal that was taken is the one that was raised.

use std::process::{Child, Command, Stdio};

use farshore_load::outcome::{Event, Histogram, MEASURE, Outcome, Timeline};
use farshore_load::workload;
use nix::sys::signal::{SigSet, Signal, raise};

use crate::record::{STEP, Total};
use crate::report::Report;
use crate::team::{self, Stage};
use crate::verify::Wrongs;

/// Which.
const SIGNAL: Signal = Signal::SIGUSR1;

/// Runs it.
///
/// # Errors
/// If threads or processes are not to be had.
pub fn run(args: &workload::Signals, report: &mut Report) -> Result<Outcome, String> {
    let (total, wrongs) = if args.processes { of_processes(args, report)? } else { of_threads(args, report)? };
    let verified = format!("each of {} signals was the one that was raised", total.operations);
    Ok(super::measured(Outcome { unit: "signal".into(), verified, wrong: wrongs.lines(), ..Default::default() }, total))
}

fn of_threads(args: &workload::Signals, report: &mut Report) -> Result<(Total, Wrongs), String> {
    let (total, workers) = team::timed(&args.common, report, None, |_| Worker::new())?;
    Ok((total, Wrongs::of(workers.into_iter().map(|worker| worker.wrongs))))
}

/// A thread, in which the signal is blocked.
struct Worker {
    signals: SigSet,
    wrongs: Wrongs,
}

impl Worker {
    fn new() -> Self {
        let signals = SigSet::from(SIGNAL);
        let mut wrongs = Wrongs::default();
        if let Err(error) = signals.thread_block() {
            wrongs.add(|| format!("{SIGNAL} could not be blocked: {error}"));
        }
        Worker { signals, wrongs }
    }
}

impl team::Worker for Worker {
    fn operate(&mut self, _: Stage) {
        if !self.wrongs.is_empty() {
            // Without its signal it would wait for ever, or end.
            return;
        }
        match raise(SIGNAL).and_then(|()| self.signals.wait()) {
            Ok(SIGNAL) => {}
            Ok(other) => self.wrongs.add(|| format!("{other} was taken, and {SIGNAL} was raised")),
            Err(error) => self.wrongs.add(|| format!("{SIGNAL} could not be raised or taken: {error}")),
        }
    }
}

/// As many processes with a thread each, each of which measures itself. They begin within milliseconds of each other.
fn of_processes(args: &workload::Signals, report: &mut Report) -> Result<(Total, Wrongs), String> {
    let cannot = |error: std::io::Error| format!("cannot start a process of {}: {error}", args.common.threads);
    let mut common = args.common.clone();
    let processes = std::mem::replace(&mut common.threads, 1);
    let words = workload::Workload::Signals(workload::Signals { common, processes: false }).arguments();
    let program = std::env::current_exe().map_err(cannot)?;
    report.phase(MEASURE);
    let start = |_| Command::new(&program).arg("--events").args(&words).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let children: Vec<Child> = (0..processes).map(start).collect::<Result<_, _>>().map_err(cannot)?;
    let mut total = Total { timeline: Timeline { step_seconds: STEP.as_secs_f64(), ..Timeline::default() }, ..Total::default() };
    let mut wrongs = Wrongs::default();
    for child in children {
        let done = child.wait_with_output().map_err(cannot)?;
        let said = String::from_utf8_lossy(&done.stdout);
        let Some(Event::Outcome(outcome)) = said.lines().last().and_then(Event::read) else {
            return Err(format!("a process told no outcome ({})", done.status));
        };
        add(&mut total, &outcome);
        outcome.wrong.into_iter().for_each(|wrong| wrongs.add(|| wrong));
    }
    report.operations(total.operations);
    Ok((total, wrongs))
}

/// What one process did, beside the others.
fn add(total: &mut Total, outcome: &Outcome) {
    total.operations += outcome.operations;
    total.seconds = total.seconds.max(outcome.seconds);
    let Total { latency, timeline, .. } = total;
    Histogram::add(latency, &outcome.latency);
    let steps = &mut timeline.operations;
    steps.resize(steps.len().max(outcome.timeline.operations.len()), 0);
    steps.iter_mut().zip(&outcome.timeline.operations).for_each(|(all, one)| *all += one);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::team::Worker as _;

    #[test]
    fn what_is_raised_is_taken_and_another_is_told() {
        let work = || {
            let mut worker = Worker::new();
            (0..1000).for_each(|_| worker.operate(Stage::Measure));
            assert!(worker.wrongs.is_empty() && SigSet::thread_get_mask().is_ok_and(|mask| mask.contains(SIGNAL)));
            // One with a lower number, which comes first.
            let other = SigSet::from(Signal::SIGHUP);
            other.thread_block().unwrap();
            worker.signals.add(Signal::SIGHUP);
            raise(Signal::SIGHUP).unwrap();
            worker.operate(Stage::Measure);
            assert_eq!(worker.wrongs.lines(), ["SIGHUP was taken, and SIGUSR1 was raised"]);
        };
        std::thread::spawn(work).join().unwrap();
    }

    #[test]
    fn processes_are_put_together() {
        let one = |operations: Vec<u64>, seconds| Outcome {
            operations: operations.iter().sum(),
            seconds,
            latency: Histogram { counts: vec![(7, operations.iter().sum())] },
            timeline: Timeline { operations, ..Timeline::default() },
            ..Outcome::default()
        };
        let mut total = Total::default();
        add(&mut total, &one(vec![3, 4], 1.0));
        add(&mut total, &one(vec![1, 1, 1], 1.2));
        assert_eq!((total.operations, total.seconds, total.latency.counts), (10, 1.2, vec![(7, 10)]));
        assert_eq!(total.timeline.operations, [4, 5, 1]);
    }
}
