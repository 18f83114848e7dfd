//! `kv`: GET and SET against redis or memcached, on a schedule (open loop).
//!
//! All keys are SET once; then requests come at their times for the warm-up and the measured time; at the end all keys are
//! read back. Each answer is checked on the way. The data are the server's: this program has next to none, and belongs
//! outside of what is measured.
//!
//! | module | what is there |
//! |---|---|
//! | [`schedule`] | when requests are due, and what came of them; knows nothing of keys |
//! | [`requests`] | which request is the n-th |
//! | [`data`] | what a value has to be |
//! | [`protocol`] | the servers' languages |
//! | [`client`] | connections, and sending without waiting |

pub mod client;
pub mod data;
pub mod protocol;
mod requests;
pub mod schedule;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use farshore_load::outcome::{MEASURE, Outcome};
use farshore_load::workload;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::graph::joined;
use super::scatter::mix2;
use crate::report::Report;
use client::bulk::{self, Pass};
use client::connection::Connection;
use client::open::{self, Load};
use client::{Shared, Wrongs};
use data::{Values, Versions};
use requests::Requests;
use schedule::{Arrivals, Record};

/// How long a missing answer is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// Threads start before their schedule does.
const HEAD_START: Duration = Duration::from_millis(10);

/// Runs the workload.
///
/// # Errors
/// If the server cannot be reached, or does not take the data.
pub fn run(args: &workload::Kv, report: &mut Report) -> Result<Outcome, String> {
    Session::open(args, PATIENCE)?.run(report)
}

/// A run.
struct Session<'a> {
    args: &'a workload::Kv,
    shared: Shared,
    connections: Vec<Connection>,
    keys: u64,
}

impl<'a> Session<'a> {
    fn open(args: &'a workload::Kv, patience: Duration) -> Result<Self, String> {
        let keys = (args.common.size.0 / u64::from(args.value_size)).max(1);
        let count = args.connections as usize;
        let too_many = |_| format!("cannot keep account of {keys} keys: give less --size or more --value-size");
        let shared = Shared {
            server: args.server,
            values: Values { size: args.value_size as usize, seed: args.common.seed },
            versions: Versions::new(usize::try_from(keys).map_err(too_many)?),
            requests: Requests::new(keys, count, args.gets, args.zipf, args.common.seed)?,
            patience,
        };
        allow_files(count);
        let connections = (0..count).map(|_| Connection::open(&args.address)).collect::<Result<_, _>>()?;
        Ok(Session { args, shared, connections, keys })
    }

    fn run(mut self, report: &mut Report) -> Result<Outcome, String> {
        report.phase("fill");
        self.pass(Pass::Fill)?;
        report.operations(self.keys);
        let loaded = self.load(report);
        report.operations(loaded.record.operations());
        let mut wrong = loaded.wrong.lines("under load");
        let mut outcome = Outcome {
            unit: "request".into(),
            operations: loaded.record.operations(),
            seconds: loaded.record.seconds(),
            data_bytes: self.keys * u64::from(self.args.value_size),
            latency: loaded.record.latency(),
            timeline: loaded.record.timeline(),
            generator_late: loaded.record.generator_late(),
            ..Outcome::default()
        };
        if loaded.broken || self.connections.iter().any(|connection| connection.pending() > 0) {
            wrong.push("the keys were not read back, since not all requests were answered".into());
            return Ok(Outcome { wrong, ..outcome });
        }
        report.phase("verify");
        match self.pass(Pass::ReadBack) {
            Ok(wrongs) => wrong.extend(wrongs.lines("reading back")),
            Err(error) => wrong.push(format!("reading back: {error}")),
        }
        report.operations(self.keys);
        outcome.verified = format!("{} answers under load, and the values of all {} keys at the end", loaded.answers, self.keys);
        outcome.checksum = format!("{:016x}", self.shared.versions.checksum(self.args.common.seed));
        Ok(Outcome { wrong, ..outcome })
    }

    /// Does something with all keys.
    fn pass(&mut self, pass: Pass) -> Result<Wrongs, String> {
        let (shared, count, threads) = (&self.shared, self.connections.len(), self.threads());
        let work = |connections: &mut [Connection], first| bulk::pass(shared, pass, connections, first, count);
        let parts = each_thread(&mut self.connections, threads, work, || ());
        parts.into_iter().try_fold(Wrongs::default(), |mut sum, part| {
            sum.merge(part?);
            Ok(sum)
        })
    }

    /// Goes through the schedule: the warm-up and the measured time.
    fn load(&mut self, report: &mut Report) -> Loaded {
        let common = &self.args.common;
        let [warmup, seconds] = [common.warmup, common.seconds].map(Duration::from_secs_f64);
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let load = Load {
            arrivals: Arrivals::new(self.args.rate, warmup + seconds, mix2(common.seed, 2)),
            measured: ns(warmup)..ns(warmup + seconds),
            start: Instant::now() + HEAD_START,
            threads: self.threads(),
            broken: AtomicBool::new(false),
        };
        let mark = || {
            if !warmup.is_zero() {
                report.phase("warm-up");
                wait(&load, load.start + warmup);
            }
            report.phase(MEASURE);
        };
        let shared = &self.shared;
        let work = |connections: &mut [Connection], first| open::run(shared, &load, connections, first);
        let shares = each_thread(&mut self.connections, load.threads, work, mark);
        let mut sum = Loaded {
            record: Record::new(load.measured.clone()),
            wrong: Wrongs::default(),
            answers: 0,
            broken: load.broken.load(Relaxed),
        };
        for share in shares {
            sum.record.add(&share.record);
            sum.wrong.merge(share.wrong);
            sum.answers += share.answers;
        }
        sum
    }

    /// How many threads there are: none without a connection.
    fn threads(&self) -> usize {
        (self.args.common.threads as usize).min(self.connections.len())
    }
}

/// What came of the schedule.
struct Loaded {
    record: Record,
    wrong: Wrongs,
    /// Answers that were checked.
    answers: u64,
    /// Whether a connection broke.
    broken: bool,
}

/// Calls `work` in threads, each with its share of the connections and the number of the first of them; and `meanwhile` here.
fn each_thread<T: Send>(
    connections: &mut [Connection],
    threads: usize,
    work: impl Fn(&mut [Connection], usize) -> T + Sync,
    meanwhile: impl FnOnce(),
) -> Vec<T> {
    let share = connections.len().div_ceil(threads);
    thread::scope(|scope| {
        let work = &work;
        let parts = connections.chunks_mut(share).enumerate();
        let running: Vec<_> = parts.map(|(number, part)| scope.spawn(move || work(part, number * share))).collect();
        meanwhile();
        running.into_iter().map(joined).collect()
    })
}

/// Waits for a moment, or until a connection broke.
fn wait(load: &Load, until: Instant) {
    while !load.broken.load(Relaxed) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(Duration::from_millis(50)));
    }
}

/// Raises the limit of open files where the connections need it. If that fails, opening them says so.
pub fn allow_files(connections: usize) {
    let wanted = connections as u64 + 64;
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < wanted
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted.min(hard), hard);
    }
}

#[cfg(test)]
mod tests;
