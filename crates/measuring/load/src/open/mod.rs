//! `open`: load for network services, on a schedule that waits for nobody. `crate::generator` makes it; if it cannot keep
//! its schedule, the result says so.
//!
//! | module | what is there |
//! |---|---|
//! | [`args`], [`sizes`], [`target`] | options: what they say, and what is refused |
//! | [`service`], [`keys`] | what is asked for, how that is written, and whether an answer is right |
//! | [`record`], [`result`] | what came of it |
//! | [`sweep`] | the search for the highest rate that meets a target |
//! | [`output`], [`svg`] | files and plots |

pub mod args;
mod keys;
mod output;
mod record;
mod result;
mod service;
mod sizes;
mod svg;
mod sweep;
mod target;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};

use farshore_load::rates::{Goal, Limit, Rates};

use crate::generator::engine::{self, Course, Pass, Plan, Share};
use crate::generator::link::Link;
use crate::generator::wrongs::Wrongs;
use crate::generator::{allow_files, each_thread, threads};
use crate::work::scatter::mix2;
use args::Open;
use output::{Step, Swept};
use record::Record;
use result::Run;
use service::kv::SET;
use service::{Dealer, Dealt, Service};
use sweep::Verdict;
use target::Transport;

/// Threads start before their schedule does.
const HEAD_START: Duration = Duration::from_millis(10);
/// Requests under way on a connection that is filled. Datagrams are lost when they are many.
const FILL_TCP: u32 = 16;
const FILL_UDP: u32 = 2;
/// A server that answers nothing for this long does not take the keys.
const FILL_PATIENCE: Duration = Duration::from_secs(30);
/// For this long after the end requests that were due before it are still sent.
const GRACE: Duration = Duration::from_millis(50);
/// Exit status with `--strict` if the generator was too slow.
const TOO_SLOW: u8 = 3;

/// Runs it, and prints what came of it.
///
/// # Errors
/// If it could not be run: one line.
pub fn run(args: &Open) -> Result<ExitCode, String> {
    let session = Session::new(args)?;
    if args.fill {
        session.fill()?;
    }
    match (args.sweep, args.goal) {
        (Some(sweep), Some(goal)) => session.sweep(sweep, goal),
        _ => session.single(),
    }
}

/// What makes requests due.
#[derive(Clone, Copy)]
enum Mode {
    /// So many a second.
    Open(f64),
    /// So many are under way always.
    Closed(u32),
    /// SET of each key.
    Fill,
}

struct Session<'a> {
    args: &'a Open,
    address: SocketAddr,
    service: Service,
    /// The user wants it to end.
    stop: Arc<AtomicBool>,
}

/// What came of a run.
struct Outcome {
    record: Record,
    /// What was wrong; empty if all was right.
    wrong: Vec<String>,
}

impl<'a> Session<'a> {
    fn new(args: &'a Open) -> Result<Self, String> {
        let (seconds, threads, connections) = (args.seconds, args.threads, args.connections);
        if seconds < 0.01 {
            return Err(format!("--seconds {seconds} is too short to measure: give at least 0.01"));
        }
        if threads > connections {
            return Err(format!("--threads {threads} is more than one for each of {connections} --connections"));
        }
        let address = args.target.resolve(args.remote)?;
        let service = Service::new(args)?;
        allow_files(connections as usize);
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // Who asks twice does not want to wait for the results.
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
                .map_err(|error| format!("cannot handle signals: {error}"))?;
        }
        Ok(Session { args, address, service, stop })
    }

    fn fill(&self) -> Result<(), String> {
        let begun = Instant::now();
        let filled = self.measure(Mode::Fill, 0..u64::MAX)?;
        if let Some(wrong) = filled.wrong.first() {
            return Err(format!("filling: {wrong}"));
        }
        if !self.stop.load(Relaxed) {
            eprintln!("filled {} keys in {:.1} s", self.args.items, begun.elapsed().as_secs_f64());
        }
        Ok(())
    }

    fn single(&self) -> Result<ExitCode, String> {
        let (mode, rate) = match self.args.closed {
            Some(count) => (Mode::Closed(count), None),
            None => (Mode::Open(self.args.rate), Some(self.args.rate)),
        };
        let (run, _) = self.run(mode, rate)?;
        print(&run.text())?;
        output::of_run(self.args, &run)?;
        tell(&run.wrong);
        Ok(self.status(!run.wrong.is_empty(), !run.generator_too_slow.is_empty()))
    }

    fn sweep(&self, sweep: Rates, goal: Goal) -> Result<ExitCode, String> {
        let percentile = goal.percentile();
        let us = goal.most.as_secs_f64() * 1e6;
        print(&format!(
            "{:>12}{:>12}{:>9}{:>11}{:>11}{:>11}  {percentile} <= {us} us\n",
            "rate", "answers/s", "lost", "p50 us", "p99 us", percentile
        ))?;
        let (mut steps, mut failed) = (Vec::new(), None);
        let found = sweep::search(sweep.low, sweep.high, |rate| {
            self.tries(rate, goal, &mut steps).unwrap_or_else(|error| {
                failed = Some(error);
                None
            })
        });
        let limit = found.limit.text();
        match found.best {
            Some(best) => print(&format!("best rate {best:.0}/s; {limit}\n"))?,
            None => print(&format!("no rate from {:.0}/s on was found that meets the target; {limit}\n", sweep.low))?,
        }
        let swept = Swept { best: found.best, limit: limit.into(), quantile: goal.quantile, most: us, steps };
        output::of_sweep(self.args, goal, &swept)?;
        let wrong: Vec<String> = swept.steps.iter().flat_map(|step| step.run.wrong.clone()).chain(failed).collect();
        tell(&wrong);
        let none = found.best.is_none() && found.limit == Limit::Server;
        Ok(self.status(!wrong.is_empty() || none, found.limit == Limit::Generator))
    }

    /// Runs one rate of a sweep until it meets the target, at most as often as was asked for. `None`: the sweep has to end.
    fn tries(&self, rate: f64, goal: Goal, steps: &mut Vec<Step>) -> Result<Option<Verdict>, String> {
        for left in (0..self.args.tries).rev() {
            let (verdict, step) = self.step(rate, goal)?;
            let wrong = !step.run.wrong.is_empty();
            steps.push(step);
            if wrong || self.stop.load(Relaxed) {
                return Ok(None);
            }
            if verdict == Verdict::Met || left == 0 {
                return Ok(Some(verdict));
            }
        }
        Ok(None)
    }

    /// Runs one rate of a sweep, and prints its row.
    fn step(&self, rate: f64, goal: Goal) -> Result<(Verdict, Step), String> {
        let (run, record) = self.run(Mode::Open(rate), Some(rate))?;
        let at_target = record.all().quantile_of_all(goal.quantile);
        let met = at_target.is_some_and(|ns| Duration::from_nanos(ns) <= goal.most);
        let verdict = match (met, run.generator_too_slow.is_empty()) {
            (true, _) => Verdict::Met,
            (false, true) => Verdict::Missed,
            (false, false) => Verdict::TooSlow,
        };
        let mut said = if met { "met".to_owned() } else { "missed".to_owned() };
        if !run.generator_too_slow.is_empty() {
            said += &format!("; generator too slow: {}", run.generator_too_slow);
        }
        let at_target = at_target.map(result::micros);
        let shown = at_target.map_or_else(|| "never".into(), |us| format!("{us:.1}"));
        let (all, answers) = (&run.all, run.answers_per_second);
        let lost = all.lost + all.unsent;
        print(&format!("{rate:>12.0}{answers:>12.0}{lost:>9}{:>11.1}{:>11.1}{shown:>11}  {said}\n", all.p50, all.p99))?;
        Ok((verdict, Step { at_target, met, run }))
    }

    /// Warm-up and measured time.
    fn run(&self, mode: Mode, rate: Option<f64>) -> Result<(Run, Record), String> {
        let [warmup, end] = [self.args.warmup, self.args.warmup + self.args.seconds]
            .map(|seconds| u64::try_from(Duration::from_secs_f64(seconds).as_nanos()).unwrap_or(u64::MAX));
        let Outcome { record, wrong } = self.measure(mode, warmup..end)?;
        let mut run = Run::new(self.args, rate, self.service.ops, &record);
        run.ended_early = self.stop.load(Relaxed);
        run.quality = self.service.protocol.quality();
        run.wrong = wrong;
        Ok((run, record))
    }

    fn measure(&self, mode: Mode, measured: std::ops::Range<u64>) -> Result<Outcome, String> {
        let (args, target) = (self.args, &self.args.target);
        let (count, allowed) = (args.connections as usize, args.threads as usize);
        let most = service::most_under_way(args.service, target.transport, args.window);
        let open = || match target.transport {
            Transport::Tcp => Link::tcp(self.address, most),
            Transport::Udp => Link::udp(self.address, most),
        };
        let open = || open().map_err(|error| target.told("connect to", &error));
        let mut links: Vec<Link> = (0..count).map(|_| open()).collect::<Result<_, _>>()?;
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let plan = Plan {
            protocol: &*self.service.protocol,
            start: Instant::now() + HEAD_START,
            end: measured.end,
            timeout: ns(args.timeout),
            may_lose: target.transport == Transport::Udp,
            grace: ns(GRACE),
            spin: ns(args.spin),
            window: args.window as usize,
            backlog: usize::MAX,
            patience: FILL_PATIENCE,
            threads: threads(count, allowed),
            connections: count,
            stop: &self.stop,
            broken: AtomicBool::new(false),
            told: &|doing, error, _| target.told(doing, error),
        };
        let work = |part: &mut [Link], first: usize, number: usize| {
            let course = self.course(mode, first..first + part.len(), number, &plan);
            let record = Record::new(measured.clone(), self.service.ops.len(), args.late);
            engine::run(&plan, part, first, number, course, record)
        };
        let shares = each_thread(&mut links, allowed, work, || ());
        self.together(shares, measured.clone())
    }

    /// The part of a thread with these connections.
    fn course(&self, mode: Mode, own: std::ops::Range<usize>, number: usize, plan: &Plan<'_>) -> Course<'_> {
        let seed = mix2(self.args.seed, number as u64);
        let dealer = Dealer::new(&self.service, own, seed);
        match mode {
            #[expect(clippy::cast_precision_loss)] // Of a handful of threads.
            Mode::Open(rate) => {
                let rate = rate / plan.threads as f64;
                Course::Open(Box::new(Dealt::new(dealer, rate, Duration::from_nanos(plan.end), seed)))
            }
            Mode::Closed(all) => Course::Closed(all, Box::new(dealer)),
            Mode::Fill => {
                let each = if self.args.target.transport == Transport::Tcp { FILL_TCP } else { FILL_UDP };
                Course::Pass(Pass { keys: self.args.items, op: SET, each, ends_at_wrong: false })
            }
        }
    }

    /// Puts together what the threads have.
    fn together(&self, shares: Vec<Share<Record>>, measured: std::ops::Range<u64>) -> Result<Outcome, String> {
        let mut record = Record::new(measured, self.service.ops.len(), self.args.late);
        let (mut wrong, mut errors, mut open) = (Wrongs::default(), Vec::new(), 0);
        for share in shares {
            record.add(&share.tally);
            wrong.merge(share.wrong);
            errors.extend(share.error);
            open += share.open;
        }
        if open > 0 || !errors.is_empty() {
            self.service.protocol.left_open();
        }
        if record.all().latency.is_empty() && wrong.is_empty() && !errors.is_empty() {
            // There is nothing else to tell.
            return Err(errors.swap_remove(0));
        }
        wrong.add_many("answers that came twice", record.duplicates, || "a request has one".into());
        let mut wrong = wrong.lines("answers");
        wrong.extend(errors);
        Ok(Outcome { record, wrong })
    }

    fn status(&self, wrong: bool, too_slow: bool) -> ExitCode {
        match (wrong, too_slow && self.args.strict) {
            (true, _) => ExitCode::from(1),
            (false, true) => ExitCode::from(TOO_SLOW),
            (false, false) => ExitCode::SUCCESS,
        }
    }
}

fn print(text: &str) -> Result<(), String> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| format!("cannot write to standard output: {error}"))
}

fn tell(wrong: &[String]) {
    for wrong in wrong {
        eprintln!("farshore-load: {wrong}");
    }
}
