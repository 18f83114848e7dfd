//! Runs a program and listens to it.
//!
//! One thread asks for counters, which takes its time; this one takes events, of which the ring loses those that it has no room for. It looks
//! by the clock and does not ask to be woken: so the program makes no call for it.
//!
//! Without `--memory` the limit follows the program: half of all memory that has had bytes in it so far. So a program is asked for
//! nothing twice, and its size need not be known before.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use farshore_beside::{Attachment, PAGE};
use farshore_client::client::Client;
use farshore_command::machine::available_memory;
use farshore_command::process::told;
use farshore_command::refusal::Refusal;
use farshore_config::Size;
use farshore_config::stats::Stats;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid as Whom;
use rustix::process::Pid;

use super::asked::Asker;
use super::cores::Cores;
use super::signals::{Signals, cost};
use super::watch::{KINDS, Watch, limit_for, room, staged};
use crate::args::PlanArgs;

/// How often counters are asked for.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// How long this sleeps between looks at the ring: as short where much comes, …
const SLEEP_MIN: Duration = Duration::from_micros(250);
/// … and as long where nothing does.
const SLEEP_MAX: Duration = Duration::from_millis(4);
/// Events of a look after which the next one comes soon.
const MANY: usize = 256;
/// The limit that a program starts with, whose size is not known yet. Staging memory is sized for it: enough for the largest batches, and no more.
const FIRST_LIMIT: u64 = 256 << 20;
/// Faults are listened to for the first part of each such time: threads can be told apart by a sample, and the ring has room for the rest.
const FAULTS_EVERY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(400));
/// A limit that follows the program is at least this.
const LIMIT_MIN: u64 = 16 << 20;
/// Seconds from a fault to its handler and back, where this command cannot see what a signal costs.
const SIGNAL: f64 = 2e-6;
/// Faults between two looks by which the cost of a fault without a read is judged, …
const FAULTS_TO_JUDGE: u64 = 200;
/// … and between what it is taken to be, seconds.
const CHEAPEST: (f64, f64) = (0.5e-6, 4e-6);

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// With this status.
    Status(u8),
    /// By this signal.
    Signal(i32),
    /// It was watched for as long as somebody wanted.
    Watching,
}

impl Ended {
    /// The exit status of a command that has run it.
    pub fn status(self) -> u8 {
        match self {
            Ended::Status(status) => status,
            Ended::Signal(signal) => 128_u8.saturating_add(u8::try_from(signal).unwrap_or(0)),
            Ended::Watching => 0,
        }
    }
}

/// What a run has shown.
#[derive(Debug)]
pub struct Run {
    /// The program, as the user has written it.
    pub name: String,
    /// How it ended.
    pub status: Ended,
    /// How long it took, or was watched, seconds.
    pub seconds: f64,
    /// What was heard; none: it could not be attached to.
    pub heard: Option<Watch>,
    /// Its counters when they were asked for last, a moment before its end, …
    pub stats: Option<Box<Stats>>,
    /// … how many pages had come back then, of all that were heard to come back: between 0 and 1, …
    pub asked_at: f64,
    /// … and what its threads had waited for a core, all together, seconds.
    pub queued: f64,
    /// … and where it was running before: at the beginning.
    pub before: Option<Box<Stats>>,
    /// The limit with the room that the run had at its end: misses with more are measured.
    pub limit: u64,
    /// Its evictors, by which staging memory is sized.
    pub evictors: u64,
    /// The most memory that had bytes in it.
    pub footprint: u64,
    /// The most memory that it had in RAM, with code and libraries: of one that was dormant nothing else is known.
    pub resident: u64,
    /// It is known to have had room for all of it, whether it could be asked or not.
    pub fitted: bool,
    /// It had other processes, which share its limit, and of which nothing is heard.
    pub has_others: bool,
    /// By so many bytes what has left has grown since its counters were asked for last.
    pub grown: u64,
    /// The limit with which nothing would have left.
    pub whole: u64,
    /// Seconds of a fault without a read.
    pub cheapest: f64,
    /// Seconds from a fault to its handler and back, which no counter has.
    pub signal: f64,
    /// See [`Watch::longest`].
    pub longest: f64,
}

/// What the thread that asks and this one share.
#[derive(Debug, Default)]
struct Shared {
    /// The limit that is wanted; 0: the one that there is.
    limit: AtomicU64,
    over: AtomicBool,
}

/// Runs the program of a command line.
///
/// # Errors
/// It cannot be started.
pub fn run(arguments: &PlanArgs, farshore: Option<PathBuf>) -> Result<Run, Refusal> {
    let memory = arguments.memory.unwrap_or_else(first_limit);
    // Before there is a child for which one could come.
    let signals = Signals::new()?;
    let started = Instant::now();
    let child = start(farshore, Some(memory), &arguments.swap, &arguments.command, &signals)?;
    let name = arguments.command.first().map_or_else(String::new, |name| name.display().to_string());
    let mut follower = Follower::new(child.id(), arguments.memory.is_none());
    let status = follower.until_the_end(&Over::child(child), &signals);
    let seconds = started.elapsed().as_secs_f64();
    let mut run = follower.finish(name, status, seconds);
    let children = getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0, |usage| usage.max_rss());
    run.resident = u64::try_from(children).unwrap_or(0) << 10;
    // Pages leave where a limit is nearly reached, long after half of it.
    run.fitted = run.resident <= memory.0 / 2;
    Ok(run)
}

/// Starts a program by `farshore run`, with what these options say.
///
/// # Errors
/// `farshore` cannot be run. What is wrong with the program, it says itself, with its exit status.
pub fn start(
    farshore: Option<PathBuf>,
    memory: Option<Size>,
    swap: &[OsString],
    program: &[OsString],
    signals: &Signals,
) -> Result<Child, Refusal> {
    let farshore = farshore.unwrap_or_else(|| "farshore".into());
    let mut command = Command::new(&farshore);
    command.args(["run", "--require"]);
    if let Some(memory) = memory {
        command.args(["--memory", &memory.to_string()]);
    }
    swap.iter().for_each(|swap| {
        command.arg("--swap").arg(swap);
    });
    command.arg("--").args(program);
    signals.spawn(&mut command).map_err(|error| {
        Refusal::cannot_start(format!("cannot run '{}' ({error}): is Farshore installed completely?", farshore.display()))
    })
}

/// Watches a program that runs, until it ends or Ctrl-C.
///
/// # Errors
/// There is none, or it cannot be attached to.
pub fn watch(pid: u32) -> Result<Run, Refusal> {
    let signals = Signals::new()?;
    let mut client = Client::connect(pid)?;
    let before = client.stats()?;
    let mut follower = Follower::new(pid, false);
    follower.attachment = Some(attach(pid)?);
    (follower.heard, follower.with_faults) = (true, true);
    let started = Instant::now();
    eprintln!("farshore: watching process {pid}; Ctrl-C ends it and tells what memory it needs");
    let status = follower.until_the_end(&Over::Somebodys(pid), &signals);
    let mut run = follower.finish(before.program.clone(), status, started.elapsed().as_secs_f64());
    run.before = Some(Box::new(before));
    Ok(run)
}

fn attach(pid: u32) -> Result<Attachment, Refusal> {
    let mut attachment = farshore_beside::attach(pid)?;
    attachment.want(&KINDS);
    Ok(attachment)
}

/// A limit for a program of which nothing is known: not more than the machine has to spare.
fn first_limit() -> Size {
    let available = available_memory().unwrap_or(FIRST_LIMIT);
    Size(FIRST_LIMIT.min(available / 4 * 3).max(LIMIT_MIN) & !(PAGE - 1))
}

/// Whose end is waited for.
#[derive(Debug)]
pub enum Over {
    /// A program that was started here, and how it ended: the kernel says so once.
    Child(Child, OnceCell<Ended>),
    /// A process that was there before.
    Somebodys(u32),
}

impl Over {
    /// A program that was started here.
    pub fn child(child: Child) -> Over {
        Over::Child(child, OnceCell::new())
    }

    /// How it ended, if it has.
    pub fn look(&self) -> Option<Ended> {
        match self {
            Over::Child(_, ended) if ended.get().is_some() => ended.get().copied(),
            Over::Child(child, ended) => {
                let pid = Pid::from_raw(child.id() as i32)?;
                let (_, status) = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG).ok()??;
                let status = std::process::ExitStatus::from_raw(status.as_raw());
                Some(*ended.get_or_init(|| match (status.code(), status.signal()) {
                    (Some(code), _) => Ended::Status(code as u8),
                    (None, signal) => Ended::Signal(signal.unwrap_or(0)),
                }))
            }
            Over::Somebodys(pid) => {
                let stat = told(*pid, "stat").unwrap_or_default();
                let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
                matches!(state, None | Some('Z' | 'X')).then_some(Ended::Watching)
            }
        }
    }
}

/// Passes signals on to a program that was started here. What comes from the terminal (Ctrl-C), it has got too; a hangup may be for this process alone.
/// For another program they say that nobody wants to hear more.
pub fn pass_on(pid: u32, over: &Over, signals: &Signals) -> Option<Ended> {
    let came = signals.come();
    if matches!(over, Over::Somebodys(_)) {
        return (!came.is_empty()).then_some(Ended::Watching);
    }
    let is_for_both = |signal, by_kernel| by_kernel && matches!(signal, Signal::SIGINT | Signal::SIGQUIT);
    for (signal, _) in came.into_iter().filter(|&(signal, by_kernel)| !is_for_both(signal, by_kernel)) {
        let _ = kill(Whom::from_raw(pid as i32), signal);
    }
    None
}

/// One program on its way.
struct Follower {
    pid: u32,
    attachment: Option<Attachment>,
    watch: Watch,
    asker: Asker,
    shared: Arc<Shared>,
    follows: bool,
    heard: bool,
    with_faults: bool,
    last: Option<Box<Stats>>,
    /// Pages that had been heard to come back by then.
    last_returned: u64,
    queued_ns: u64,
    limit: u64,
    least: u64,
    footprint: u64,
    evictors: u64,
    cheapest: f64,
    /// What a signal took at the beginning.
    signal: Option<f64>,
    lost: u64,
    has_others: bool,
    /// What was away when it answered last, and the most that was since, bytes.
    away: (u64, u64),
}

impl Follower {
    fn new(pid: u32, follows: bool) -> Follower {
        Follower {
            pid,
            attachment: None,
            watch: Watch::default(),
            asker: Asker::default(),
            shared: Arc::default(),
            follows,
            heard: false,
            with_faults: false,
            last: None,
            last_returned: 0,
            queued_ns: 0,
            limit: 0,
            least: LIMIT_MIN,
            footprint: 0,
            evictors: 1,
            cheapest: CHEAPEST.1,
            signal: cost(),
            lost: 0,
            has_others: false,
            away: (0, 0),
        }
    }

    /// Listens until the program ends, or for one that is watched, until somebody wants no more.
    fn until_the_end(&mut self, over: &Over, signals: &Signals) -> Ended {
        let (shared, pid) = (self.shared.clone(), self.pid);
        let (asking, answers) = channel();
        // It ends with this process at the latest: a program that is gone may be waited for.
        let cores = if matches!(over, Over::Child(..)) { Cores::default() } else { Cores::from_now(pid) };
        std::thread::spawn(move || ask(pid, cores, &shared, &asking));
        let (mut sleep, mut looked, begun) = (SLEEP_MIN, Instant::now(), Instant::now());
        let ended = loop {
            let count = self.take();
            sleep = if count >= MANY { SLEEP_MIN } else { (sleep * 2).min(SLEEP_MAX) };
            if looked.elapsed() >= SLEEP_MAX {
                looked = Instant::now();
                answers.try_iter().for_each(|answer| self.answered(answer));
                if let Some(ended) = over.look().or_else(|| pass_on(self.pid, over, signals)) {
                    break ended;
                }
                self.attach_again();
                self.choose(begun.elapsed());
                if let Some(attachment) = &mut self.attachment {
                    self.asker.ask(self.pid, attachment, &mut self.watch);
                }
            }
            std::thread::sleep(sleep);
        };
        // What it said last.
        self.take();
        self.shared.over.store(true, Ordering::Relaxed);
        answers.try_iter().for_each(|answer| self.answered(answer));
        ended
    }

    /// Takes what the ring has; how many.
    fn take(&mut self) -> usize {
        let Some(attachment) = &mut self.attachment else { return 0 };
        let mut count = 0;
        let mut state = attachment.state();
        while let Some(event) = attachment.take() {
            if count % 64 == 63 {
                state = attachment.state();
            }
            self.watch.hear(&event, &state);
            count += 1;
        }
        self.watch.lost = self.lost + state.events_lost;
        self.away.1 = self.away.1.max(self.watch.away());
        count
    }

    /// At the beginning, when the program answers the other thread; and after an exec, which ends attachments.
    fn attach_again(&mut self) {
        if let Some(attachment) = &self.attachment {
            if attachment.is_there() {
                return;
            }
            self.take();
            self.lost = self.watch.lost;
            self.attachment = None;
        }
        if self.last.is_some()
            && let Ok(attachment) = attach(self.pid)
        {
            self.attachment = Some(attachment);
            (self.heard, self.with_faults) = (true, true);
        }
    }

    /// Whether faults are listened to now.
    fn choose(&mut self, passed: Duration) {
        let (part, whole) = FAULTS_EVERY;
        let with_faults = passed.as_millis() % whole.as_millis() < part.as_millis();
        if let Some(attachment) = &mut self.attachment
            && self.with_faults != with_faults
        {
            attachment.want(if with_faults { &KINDS } else { &KINDS[1..] });
            self.with_faults = with_faults;
        }
    }

    fn answered(&mut self, Answer { stats, queued_ns }: Answer) {
        self.queued_ns = queued_ns;
        self.watch.look(&stats);
        if let Some(before) = &self.last {
            let all = |it: &Stats| it.faults.zero + it.faults.fetch + it.faults.rescue + it.faults.write_protect;
            let (faults, time) = (
                all(&stats).saturating_sub(all(before)),
                stats.fault_latency_ns.total.saturating_sub(before.fault_latency_ns.total),
            );
            if faults >= FAULTS_TO_JUDGE {
                self.cheapest = self.cheapest.min(time as f64 / faults as f64 / 1e9).max(CHEAPEST.0);
            }
            let fetches = stats.faults.fetch.saturating_sub(before.faults.fetch);
            self.asker.note_fetches(fetches, time as f64 / 1e9 - faults.saturating_sub(fetches) as f64 * self.cheapest);
        }
        let pool = stats.pool.as_ref().map_or(0, |pool| pool.pages * PAGE);
        let away: u64 = stats.spaces.iter().map(|space| space.used_bytes).sum::<u64>() + pool;
        // What the swap space holds are copies too, of pages that are there; what was heard to leave may have left before it was heard.
        let away = if self.heard { away.min(self.watch.away()) } else { away };
        // Returns that were not heard of leave ghosts behind; but all of it is managed.
        let resident = stats.resident_bytes.saturating_sub(staged(&stats));
        let footprint = (resident + away).min(stats.managed_bytes.max(resident));
        if footprint > self.footprint {
            self.footprint = footprint;
        }
        if stats.evictions.pages > 0 {
            let limit = limit_for(room(&stats), stats.evictors.count);
            self.limit = if self.follows { limit } else { self.limit.max(limit) };
        }
        if self.follows {
            let half = (self.footprint / 2).max(self.least) & !(PAGE - 1);
            // A hundredth more or less is not worth a change.
            if half.abs_diff(stats.memory_limit_bytes) > half / 100 {
                self.shared.limit.store(half, Ordering::Relaxed);
            }
        }
        self.evictors = stats.evictors.count;
        self.has_others |= stats.family.processes > 1;
        self.away = (self.watch.away(), self.watch.away());
        self.last = Some(stats);
        self.last_returned = self.watch.returned();
    }

    fn finish(mut self, name: String, status: Ended, seconds: f64) -> Run {
        let longest = self.watch.longest();
        let limit = self.limit;
        let asked_at = if self.last_returned > 0 { self.last_returned as f64 / self.watch.returned() as f64 } else { 1.0 };
        let signal = self.signal.zip(cost()).map_or(SIGNAL, |(begun, ended)| f64::midpoint(begun, ended));
        Run {
            name,
            status,
            seconds,
            signal,
            heard: self.heard.then_some(self.watch),
            stats: self.last,
            asked_at,
            queued: self.queued_ns as f64 / 1e9,
            before: None,
            limit,
            footprint: self.footprint,
            resident: 0,
            fitted: false,
            has_others: self.has_others,
            grown: self.away.1 - self.away.0,
            whole: limit_for(self.footprint, self.evictors),
            evictors: self.evictors,
            cheapest: self.cheapest,
            longest,
        }
    }
}

/// What the thread that asks has learned.
struct Answer {
    stats: Box<Stats>,
    queued_ns: u64,
}

/// Asks for counters, and sets the limit, until it is over.
fn ask(pid: u32, mut cores: Cores, shared: &Shared, answers: &Sender<Answer>) {
    let mut client = None;
    while !shared.over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        client = client.or_else(|| Client::connect(pid).ok());
        if let Some(asked) = &mut client {
            match asked.stats() {
                Ok(stats) => {
                    let limit = shared.limit.swap(0, Ordering::Relaxed);
                    if limit > 0 && limit != stats.memory_limit_bytes {
                        // A limit below what this run can shrink to is refused, and the one before stays.
                        let _ = asked.set("memory", &limit.to_string());
                    }
                    if answers.send(Answer { stats: Box::new(stats), queued_ns: cores.look(pid) }).is_err() {
                        return;
                    }
                }
                Err(_) => client = None,
            }
        }
        let pause = if client.is_some() { ASK_EVERY } else { ASK_EVERY / 10 };
        std::thread::sleep(pause.saturating_sub(begun.elapsed()).max(Duration::from_millis(2)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_child_ended_is_known_as_often_as_it_is_asked() {
        let over = Over::child(Command::new("sh").args(["-c", "exit 7"]).spawn().expect("sh is there"));
        let first = std::iter::repeat_with(|| over.look()).find(Option::is_some).flatten();
        assert_eq!((first, over.look(), over.look()), (Some(Ended::Status(7)), first, first));
    }
}
