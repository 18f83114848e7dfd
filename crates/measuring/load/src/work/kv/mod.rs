//! `kv`: GET and SET against redis or memcached, on a schedule (open loop).
//!
//! All keys are SET once; then requests come at their times for the warm-up and the measured time; at the end all keys are
//! read back. Each answer is checked on the way. The data are the server's: this program has next to none, and belongs
//! outside of what is measured.
//!
//! | module | what is there |
//! |---|---|
//! | [`requests`] | which request is the n-th |
//! | [`data`] | what a value has to be |
//! | [`protocol`] | the servers' languages |
//! | [`service`] | both together, as the generator wants them |
//! | [`record`] | what came of the requests |
//!
//! The generator of the load is `crate::generator`.

pub mod data;
pub mod protocol;
mod record;
mod requests;
mod service;

use std::io::ErrorKind;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use farshore_load::outcome::{MEASURE, Outcome};
use farshore_load::workload;
use rustix::time::{ClockId, clock_gettime};

use super::scatter::mix2;
use crate::generator::arrivals::Arrivals;
use crate::generator::engine::{self, Course, Pass, Plan, Share, Tally, Told};
use crate::generator::link::Link;
use crate::generator::wrongs::Wrongs;
use crate::generator::{allow_files, each_thread, threads};
use crate::report::Report;
use data::{Values, Versions};
use record::Record;
use requests::{Own, Requests};
use service::{GET, Kv, SET};

/// How long a missing answer is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// Threads start before their schedule does.
const HEAD_START: Duration = Duration::from_millis(10);
/// Requests under way, of all threads together. So an overloaded server does not cost memory without end: those beyond it
/// are not sent, which is wrong, and told.
const WINDOW: usize = 100_000;
/// Bytes that sockets have not taken, of all threads together.
const BACKLOG: usize = 256 << 20;
/// In a pass over all keys: requests under way on a connection. The server is never idle, and does not have to keep them
/// anywhere.
const PASS_WINDOW: u32 = 64;
/// Bytes of values of them.
const PASS_BYTES: u32 = 1 << 20;

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
    service: Kv,
    requests: Requests,
    links: Vec<Link>,
    keys: u64,
    /// How long an answer is waited for when nothing else is left to do.
    patience: Duration,
}

impl<'a> Session<'a> {
    fn open(args: &'a workload::Kv, patience: Duration) -> Result<Self, String> {
        let keys = (args.common.size.0 / u64::from(args.value_size)).max(1);
        let count = args.connections as usize;
        let too_many = |_| format!("cannot keep account of {keys} keys: give less --size or more --value-size");
        let service = Kv {
            server: args.server,
            values: Values { size: args.value_size as usize, seed: args.common.seed },
            versions: Versions::new(usize::try_from(keys).map_err(too_many)?),
        };
        let requests = Requests::new(keys, count, args.gets, args.zipf, args.common.seed)?;
        allow_files(count);
        let address = &args.address;
        let refused =
            |error| format!("cannot connect to {address}: {error}; is the server running, and is this where it listens?");
        let links = (0..count).map(|_| Link::stream(address, WINDOW)).collect::<Result<_, _>>().map_err(refused)?;
        Ok(Session { args, service, requests, links, keys, patience })
    }

    fn run(mut self, report: &mut Report) -> Result<Outcome, String> {
        report.phase("fill");
        self.fill()?;
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
        if loaded.broken || loaded.open > 0 {
            wrong.push("the keys were not read back, since not all requests were answered".into());
            return Ok(Outcome { wrong, ..outcome });
        }
        report.phase("verify");
        match self.pass(GET) {
            Ok(wrongs) => wrong.extend(wrongs.lines("reading back")),
            Err(error) => wrong.push(format!("reading back: {error}")),
        }
        report.operations(self.keys);
        outcome.verified = format!("{} answers under load, and the values of all {} keys at the end", loaded.answers, self.keys);
        outcome.checksum = format!("{:016x}", self.service.versions.checksum(self.args.common.seed));
        Ok(Outcome { wrong, ..outcome })
    }

    /// SETs all keys.
    fn fill(&mut self) -> Result<(), String> {
        let wrong = self.pass(SET)?;
        if wrong.is_empty() {
            return Ok(());
        }
        Err(format!("{}: does the server have memory for {} keys?", wrong.lines("fill").join("; "), self.keys))
    }

    /// Does something with all keys. Of SETs, the first answer that is wrong ends it.
    fn pass(&mut self, op: u8) -> Result<Wrongs, String> {
        let pass = Pass {
            keys: self.keys,
            op,
            each: PASS_WINDOW.min((PASS_BYTES / self.args.value_size).max(1)),
            ends_at_wrong: op == SET,
        };
        let stop = AtomicBool::new(false);
        let mut links = std::mem::take(&mut self.links);
        let plan = self.plan(u64::MAX, &stop);
        let work = |part: &mut [Link], first, number| {
            engine::run(&plan, part, first, number, Course::Pass(pass), Part::new(0..u64::MAX))
        };
        let shares = each_thread(&mut links, self.args.common.threads as usize, work, || ());
        self.links = links;
        shares.into_iter().try_fold(Wrongs::default(), |mut sum, share| {
            sum.merge(share.wrong);
            share.error.map_or(Ok(sum), Err)
        })
    }

    /// Goes through the schedule: the warm-up and the measured time.
    fn load(&mut self, report: &mut Report) -> Loaded {
        let common = &self.args.common;
        let [warmup, seconds] = [common.warmup, common.seconds].map(Duration::from_secs_f64);
        let arrivals = Arrivals::new(self.args.rate, warmup + seconds, mix2(common.seed, 2));
        let measured = ns(warmup)..ns(warmup + seconds);
        let stop = AtomicBool::new(false);
        let mut links = std::mem::take(&mut self.links);
        let plan = self.plan(measured.end, &stop);
        let mark = || {
            if !warmup.is_zero() {
                report.phase("warm-up");
                wait(&plan, plan.start + warmup);
            }
            report.phase(MEASURE);
        };
        let (service, requests) = (&self.service, &self.requests);
        let work = |part: &mut [Link], first: usize, number| {
            let own = Own::new(requests, service, arrivals.clone(), first..first + part.len());
            engine::run(&plan, part, first, number, Course::Open(Box::new(own)), Part::new(measured.clone()))
        };
        let shares = each_thread(&mut links, common.threads as usize, work, mark);
        let broken = plan.broken.load(Relaxed);
        self.links = links;
        self.together(shares, measured, broken)
    }

    /// Puts together what the threads have.
    fn together(&self, shares: Vec<Share<Part>>, measured: Range<u64>, broken: bool) -> Loaded {
        let (mut sum, mut unsent) =
            (Loaded { record: Record::new(measured), wrong: Wrongs::default(), answers: 0, open: 0, broken }, 0);
        for share in shares {
            sum.record.add(&share.tally.record);
            sum.wrong.merge(share.wrong);
            sum.answers += share.answers;
            sum.open += share.open;
            unsent += share.tally.unsent;
            if let Some(error) = share.error {
                sum.wrong.add("ends of the load", || error);
            }
        }
        let patience = self.patience;
        let unanswered = if broken { 0 } else { sum.open as u64 };
        sum.wrong.add_many("requests unanswered", unanswered, || format!("{patience:?} after the last of them was due"));
        let too_many = || "too many were unanswered: the server cannot keep up with --rate".into();
        sum.wrong.add_many("requests not sent", unsent, too_many);
        sum
    }

    /// How the generator goes about it, until `end`.
    fn plan<'p>(&'p self, end: u64, stop: &'p AtomicBool) -> Plan<'p> {
        Plan {
            protocol: &self.service,
            start: Instant::now() + HEAD_START,
            end,
            timeout: ns(self.patience),
            may_lose: false,
            // All that is due is sent: what is in the server at the end follows from the schedule.
            grace: u64::MAX,
            spin: 0,
            window: WINDOW,
            backlog: BACKLOG,
            patience: self.patience,
            threads: threads(self.args.connections as usize, self.args.common.threads as usize),
            connections: self.args.connections as usize,
            stop,
            broken: AtomicBool::new(false),
            told: TOLD,
        }
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// An error of a connection. If it is none of the system's, it says itself what came over it.
const TOLD: Told<'static> = &|_, error, open| match error.kind() {
    ErrorKind::Other => error.to_string(),
    _ => format!("a connection broke with {open} requests unanswered: {error}"),
};

/// What came of the schedule.
struct Loaded {
    record: Record,
    wrong: Wrongs,
    /// Answers that were checked.
    answers: u64,
    /// Requests without an answer.
    open: usize,
    /// Whether a connection broke.
    broken: bool,
}

/// What a thread keeps of its requests.
struct Part {
    record: Record,
    measured: Range<u64>,
    /// Requests that were not sent.
    unsent: u64,
    /// (time, processor time) at the first look in the measured time, until its end.
    busy: Option<(u64, Duration)>,
    is_over: bool,
}

impl Part {
    fn new(measured: Range<u64>) -> Self {
        Part { record: Record::new(measured.clone()), measured, unsent: 0, busy: None, is_over: false }
    }
}

impl Tally for Part {
    /// Takes the processor time of the thread in the measured time.
    fn look(&mut self, now: u64) {
        if self.is_over || now < self.measured.start {
            return;
        }
        let Some((start, used)) = self.busy else {
            self.busy = Some((now, processor_time()));
            return;
        };
        if now >= self.measured.end && now > start {
            self.is_over = true;
            let used = processor_time().saturating_sub(used);
            self.record.busy(used.as_secs_f64() / Duration::from_nanos(now - start).as_secs_f64());
        }
    }

    fn sent(&mut self, due: u64, now: u64) {
        self.record.sent(due, now, false);
    }

    fn held(&mut self, due: u64) {
        self.record.sent(due, due, true);
    }

    fn answered(&mut self, _: u8, due: u64, now: u64, _: bool) {
        self.record.answered(due, now);
    }

    fn lost(&mut self, _: u8, _: u64) {}

    fn unsent(&mut self, _: u8, due: u64) {
        self.record.sent(due, due, true);
        self.unsent += 1;
    }

    fn behind(&mut self, op: u8, due: u64) {
        self.unsent(op, due);
    }

    fn end(&mut self, _: u64) {}
}

/// Of the calling thread.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Waits for a moment, or until a connection broke.
fn wait(plan: &Plan<'_>, until: Instant) {
    while !plan.broken.load(Relaxed) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(Duration::from_millis(50)));
    }
}

#[cfg(test)]
mod tests;
