//! One run of one program under one target.
//!
//! A workload tells its phases while it runs (`farshore_load::outcome`); at the marks around the measured one the target's counters
//! are read, so that what it counts of filling and verifying is left out. A *service* is a server under the target, with a workload that
//! asks it from outside; so is a *served* one, whose server runs on unithreads ([`served`]).

mod served;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use farshore_load::outcome::{Event, MEASURE, Outcome};
use rustix::process::Signal;

pub use self::served::Served;

use crate::child::{Child, End, Message, Output, Silence, Watch};
use crate::journal::{Journal, Thing};
use crate::proc;
use crate::result::{Counters, Round};
use crate::targets::Target;

/// How long a server may take until it listens, and again until it has ended.
const SERVER_PATIENCE: Duration = Duration::from_secs(60);

/// What is run.
#[derive(Clone, PartialEq, Debug)]
pub enum Program {
    /// Anything: its time and the hash of its output are taken.
    Any(Vec<OsString>),
    /// `farshore-load`, whose events are read.
    Workload(Vec<OsString>),
    /// The same, with another limit from the start of the measured phase on.
    Raised {
        /// Its command line.
        words: Vec<OsString>,
        /// That limit, for the program's data, in bytes.
        memory_bytes: u64,
    },
    /// A server under the target and a workload beside it.
    Service(Service),
    /// A server on unithreads under the target, and the generator of load beside it.
    Served(Box<Served>),
}

/// A server and its clients.
#[derive(Clone, PartialEq, Debug)]
pub struct Service {
    /// The server's command line.
    pub server: Vec<OsString>,
    /// The socket on which it listens when it is ready.
    pub socket: PathBuf,
    /// The workload that asks it.
    pub client: Vec<OsString>,
}

/// The run was ended by the user: it tells nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interrupted;

/// Runs `program` once. What goes wrong with it is in the round.
///
/// # Errors
/// The user wants everything to end.
pub fn run(
    target: &mut dyn Target,
    program: &Program,
    timeout: Duration,
    journal: &Journal,
    stop: &AtomicBool,
) -> Result<Round, Interrupted> {
    let mut round = Round::default();
    if let Err(why) = target.before() {
        round.wrong.push(why);
        target.after(&mut round);
        return Ok(round);
    }
    // What others have left to be written must not be written in this run's time.
    rustix::fs::sync();
    let watch = Watch { stop, deadline: Instant::now() + timeout };
    let machine = proc::machine_cpu_seconds();
    let ended = match program {
        Program::Any(words) => run_program(target, words, Output::Hash, None, journal, watch, &mut round),
        Program::Workload(words) => run_program(target, words, Output::Lines, None, journal, watch, &mut round),
        Program::Raised { words, memory_bytes } => {
            run_program(target, words, Output::Lines, Some(*memory_bytes), journal, watch, &mut round)
        }
        Program::Service(service) => run_service(target, service, journal, watch, &mut round),
        Program::Served(served) => served::run(target, served, journal, watch, &mut round),
    };
    round.machine_seconds = proc::machine_cpu_seconds() - machine;
    if let Err(why) = ended {
        round.wrong.push(why);
    }
    target.after(&mut round);
    if stop.load(std::sync::atomic::Ordering::Relaxed) { Err(Interrupted) } else { Ok(round) }
}

/// A child that is written down while it runs: after a `kill -9` of this command the next start ends it.
pub(crate) struct Noted<'a> {
    journal: &'a Journal,
    thing: Option<Thing>,
}

impl<'a> Noted<'a> {
    pub(crate) fn new(journal: &'a Journal, child: &Child) -> Result<Self, String> {
        let noted = Noted { journal, thing: Thing::process(child.pid()) };
        noted.thing.clone().map_or(Ok(()), |thing| journal.note(thing))?;
        Ok(noted)
    }
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        if let Some(thing) = &self.thing {
            self.journal.done(thing);
        }
    }
}

fn run_program(
    target: &dyn Target,
    words: &[OsString],
    output: Output,
    raised: Option<u64>,
    journal: &Journal,
    watch: Watch<'_>,
    round: &mut Round,
) -> Result<(), String> {
    let mut child = Child::start(target.command(words), output)?;
    let _noted = Noted::new(journal, &child)?;
    let mut listener = Listener { raised, ..Listener::new(target, child.pid()) };
    let ended = listen(&mut child, &mut listener, watch)?;
    let end = child.reap(ended);
    take_end(round, &end);
    if output == Output::Hash {
        round.output_sha256 = end.output_sha256;
    }
    listener.end_beside(watch, round);
    if output == Output::Lines {
        listener.tell(round);
    }
    Ok(())
}

fn run_service(
    target: &dyn Target,
    service: &Service,
    journal: &Journal,
    watch: Watch<'_>,
    round: &mut Round,
) -> Result<(), String> {
    let _ = std::fs::remove_file(&service.socket);
    let mut server = Child::start(target.command(&service.server), Output::Hash)?;
    let _noted = Noted::new(journal, &server)?;
    if let Some(ended) = wait_until_ready(&mut server, &service.socket, watch)? {
        return Err(format!("the server ended before it listened: {}", server.reap(ended).wrong.join("; ")));
    }
    let mut listener = Listener::new(target, server.pid());
    let mut command = Command::new(&service.client[0]);
    command.args(&service.client[1..]);
    let mut asking = Child::start(command, Output::Lines)?;
    let _asking_noted = Noted::new(journal, &asking)?;
    let asked = listen(&mut asking, &mut listener, watch)?;
    let client_end = asking.reap(asked);
    let (end, ended_before) = end_server(server, watch)?;
    take_end(round, &end);
    if ended_before {
        round.wrong.push("the server ended before it was asked to".into());
    }
    round.wrong.extend(client_end.wrong.into_iter().map(|why| format!("client: {why}")));
    listener.end_beside(watch, round);
    listener.tell(round);
    Ok(())
}

/// Ends a server that may have ended by itself: how it did, and whether it was before it was asked to.
fn end_server(mut server: Child, watch: Watch<'_>) -> Result<(End, bool), String> {
    let ended_before = matches!(server.try_next(), Some(Message::Ended(_)));
    server.signal(Signal::TERM);
    let patience = Watch { stop: watch.stop, deadline: Instant::now() + SERVER_PATIENCE };
    let ended = if ended_before {
        Instant::now()
    } else {
        let told = |silence| format!("the server did not end when it was asked to: {}", gave_up(silence, patience));
        server.wait(patience, |_| {}).map_err(told)?
    };
    Ok((server.reap(ended), ended_before))
}

/// Waits until the server listens; if it ends before, when that was.
fn wait_until_ready(server: &mut Child, socket: &Path, watch: Watch<'_>) -> Result<Option<Instant>, String> {
    let until = Instant::now() + SERVER_PATIENCE;
    while std::os::unix::net::UnixStream::connect(socket).is_err() {
        let short = Watch { stop: watch.stop, deadline: Instant::now() };
        match server.next(short) {
            Ok(Message::Ended(moment)) => return Ok(Some(moment)),
            Err(Silence::Interrupted) => return Err("interrupted".into()),
            _ => {}
        }
        if Instant::now() > until {
            return Err(format!("the server did not listen on '{}' within {} s", socket.display(), SERVER_PATIENCE.as_secs()));
        }
    }
    Ok(None)
}

/// Gives all that a child prints to the listener, until its end: when that was.
fn listen(child: &mut Child, listener: &mut Listener<'_>, watch: Watch<'_>) -> Result<Instant, String> {
    let ended = child.wait(watch, |line| listener.hear(line)).map_err(|silence| gave_up(silence, watch))?;
    // The end may be seen before the last line.
    let until = Instant::now() + Duration::from_secs(2);
    while listener.outcome.is_none() && Instant::now() < until {
        match child.try_next() {
            Some(Message::Line(line)) => listener.hear(&line),
            Some(_) => {}
            None if child.output_has_ended() => break,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    Ok(ended)
}

fn gave_up(silence: Silence, watch: Watch<'_>) -> String {
    match silence {
        Silence::Interrupted => "interrupted".into(),
        Silence::TimedOut => {
            let over = Instant::now().saturating_duration_since(watch.deadline);
            format!("no end in the time that it was given ({:.0} s over): --timeout gives it more", over.as_secs_f64())
        }
    }
}

fn take_end(round: &mut Round, end: &End) {
    round.wrong.extend(end.wrong.iter().cloned());
    round.wall_seconds = end.wall_seconds;
    round.user_seconds = end.user_seconds;
    round.system_seconds = end.system_seconds;
    round.peak_resident_bytes = end.peak_resident_bytes;
    round.counters = Counters {
        fetches: end.major_faults,
        other_faults: end.minor_faults,
        cpu_seconds: end.user_seconds + end.system_seconds,
        ..Counters::default()
    };
}

/// Takes the target's counters at the beginning and at the end of a measured phase.
struct Counted<'a> {
    target: &'a dyn Target,
    pid: u32,
    begun: Option<(Instant, Counters)>,
    measured: Option<(Duration, Counters)>,
}

impl<'a> Counted<'a> {
    fn new(target: &'a dyn Target, pid: u32) -> Self {
        Counted { target, pid, begun: None, measured: None }
    }

    fn begin(&mut self) {
        self.begun = self.sample().map(|counters| (Instant::now(), counters));
    }

    /// Nothing, if it has not begun.
    fn end(&mut self) {
        let Some((begun, before)) = self.begun.take() else { return };
        let took = begun.elapsed();
        // A workload that ends with this phase may be gone already: then the whole run's counters are all there is.
        self.measured = self.sample().map(|counters| (took, difference(counters, before)));
    }

    fn sample(&self) -> Option<Counters> {
        let cpu_seconds = proc::counters(self.pid).cpu_seconds;
        let counters = self.target.sample(self.pid)?;
        Some(Counters { cpu_seconds, machine_cpu_seconds: proc::machine_cpu_seconds(), ..counters })
    }

    fn tell(&self, round: &mut Round) {
        if let Some((took, counters)) = self.measured {
            round.measured_seconds = took.as_secs_f64();
            round.measured = Some(counters);
        }
    }
}

/// Reads the events of a workload, and the target's counters at the marks of its measured phase.
struct Listener<'a> {
    counted: Counted<'a>,
    /// The limit from the mark of the measured phase on, if it is another one.
    raised: Option<u64>,
    /// It could not be set.
    not_raised: Option<String>,
    outcome: Option<Outcome>,
    strange: Option<String>,
    /// What the target has beside the program, or why it could not be started.
    beside: Option<Result<Child, String>>,
}

impl<'a> Listener<'a> {
    fn new(target: &'a dyn Target, pid: u32) -> Self {
        Listener {
            counted: Counted::new(target, pid),
            raised: None,
            not_raised: None,
            outcome: None,
            strange: None,
            beside: None,
        }
    }

    fn hear(&mut self, line: &str) {
        match Event::read(line) {
            Some(Event::Phase { name }) => {
                // A mark ends the phase before it.
                self.counted.end();
                if self.beside.is_none() {
                    let command = self.counted.target.beside(self.counted.pid);
                    self.beside = command.map(|command| Child::start(command, Output::Hash));
                }
                if name == MEASURE {
                    if let Some(bytes) = self.raised {
                        self.not_raised = self.counted.target.set_memory(self.counted.pid, bytes).err();
                    }
                    self.counted.begin();
                }
            }
            Some(Event::Outcome(outcome)) => {
                self.counted.end();
                self.outcome = Some(*outcome);
            }
            None => self.strange = Some(line.trim().chars().take(200).collect()),
        }
    }

    /// Waits for the end of what runs beside the program, which has ended.
    fn end_beside(&mut self, watch: Watch<'_>, round: &mut Round) {
        let ended = match self.beside.take() {
            None => return,
            Some(Err(why)) => Err(why),
            Some(Ok(mut child)) => {
                let patience = Watch { stop: watch.stop, deadline: Instant::now() + SERVER_PATIENCE };
                let ended = child.wait(patience, |_| {}).map_err(|silence| gave_up(silence, patience));
                ended.map(|moment| child.reap(moment).wrong)
            }
        };
        let wrong = ended.unwrap_or_else(|why| vec![why]);
        round.wrong.extend(wrong.into_iter().map(|why| format!("beside the program: {why}")));
    }

    fn tell(self, round: &mut Round) {
        match &self.outcome {
            None if round.wrong.is_empty() => {
                let said = self.strange.map_or(String::new(), |line| format!(": {line}"));
                round.wrong.push(format!("it told no outcome{said}"));
            }
            None => {}
            // A generator that was late makes the latencies look worse, never better: it is told with them (`generator_late`).
            Some(outcome) => round.wrong.extend(outcome.wrong.iter().cloned()),
        }
        round.wrong.extend(self.not_raised);
        self.counted.tell(round);
        round.outcome = self.outcome;
    }
}

fn difference(after: Counters, before: Counters) -> Counters {
    Counters {
        fetches: after.fetches.saturating_sub(before.fetches),
        other_faults: after.other_faults.saturating_sub(before.other_faults),
        pages_in: after.pages_in.saturating_sub(before.pages_in),
        pages_out: after.pages_out.saturating_sub(before.pages_out),
        cpu_seconds: after.cpu_seconds - before.cpu_seconds,
        machine_cpu_seconds: after.machine_cpu_seconds - before.machine_cpu_seconds,
    }
}
