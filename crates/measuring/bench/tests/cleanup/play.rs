//! One process that uses a target as `farshore bench` does, and tells where it is: it can be ended at any moment.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use farshore_bench::journal::{Journal, Thing, clean_up_after_others};
use farshore_bench::result::{Counters, Round};
use farshore_bench::targets::spec::Spec;
use farshore_bench::targets::{Place, Target, zram};
use serde::{Deserialize, Serialize};

use crate::machine::{self, PATIENCE};

/// A user without rights.
pub const NOBODY: u32 = 65534;
/// The variable that has the play.
const VARIABLE: &str = "FARSHORE_BENCH_TEST_PLAY";
/// What a line for the test begins with: the test harness prints too.
const MARK: &str = "@@";

/// What is to be played.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Play<'a> {
    /// `run`, `clean` (what others left), or `intent` (a zram device is added, and not noted).
    pub role: &'a str,
    /// The target.
    pub target: &'a str,
    /// The program, with its arguments.
    pub program: &'a str,
    /// Where it stops and waits to be killed.
    pub pause: &'a str,
    /// Where swap files go.
    pub directory: PathBuf,
    /// What swap space must hold, in bytes.
    pub swap_bytes: u64,
    /// Who plays; `None`: the tests' own user.
    pub user: Option<u32>,
    /// Whether it waits for another `farshore bench` on this machine.
    pub patient: bool,
}

impl Play<'_> {
    /// A small one.
    pub fn new(directory: &Path) -> Self {
        let directory = directory.to_path_buf();
        Play { role: "run", target: "", program: "", pause: "", directory, swap_bytes: 64 << 20, user: None, patient: true }
    }
}

/// What it tells at its end.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct Told {
    /// Why it could not be played to the end.
    pub error: Option<String>,
    /// What was wrong with the run.
    pub wrong: Vec<String>,
    /// The peak of the target's limit, in bytes.
    pub peak: u64,
    /// Fetches, as sampled while the program ran.
    pub fetches: u64,
    /// Pages written to swap space in the whole run.
    pub pages_out: u64,
}

/// The process, as the test sees it.
pub struct Player {
    child: Child,
    lines: Receiver<String>,
    heard: Vec<String>,
    /// What it runs from, if it is another user's.
    _copy: Option<tempfile::TempDir>,
}

impl Player {
    /// Starts it.
    pub fn start(play: &Play) -> Player {
        let copied = play.user.map(|_| open_copy());
        let mut command = match play.user.zip(copied.as_ref()) {
            None => Command::new(std::env::current_exe().unwrap()),
            Some((user, copy)) => {
                let copy = copy.path();
                let mut command = Command::new(copy.join("cleanup"));
                command
                    .uid(user)
                    .gid(user)
                    .env("FARSHORE", copy.join("farshore"))
                    .env("FARSHORE_LIBRARY", copy.join("libfarshore.so"));
                command
            }
        };
        command.args(["--exact", "played_by_the_test", "--nocapture", "--test-threads=1"]);
        command.env(VARIABLE, serde_json::to_string(play).unwrap()).current_dir("/");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        machine::PLAYERS.lock().unwrap_or_else(PoisonError::into_inner).insert(child.id());
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            let marked = stdout.lines().map_while(Result::ok).filter_map(|line| line.strip_prefix(MARK).map(str::to_string));
            marked.for_each(|line| drop(sender.send(line)));
        });
        Player { child, lines, heard: Vec::new(), _copy: copied }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it says where it is.
    pub fn hear(&mut self, moment: &str) {
        while !self
            .heard
            .iter()
            .any(|line| line.strip_prefix(moment).is_some_and(|rest| rest.is_empty() || rest.starts_with(' ')))
        {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => self.heard.push(line),
                Err(why) => panic!("{moment:?} was not heard ({why}), but {:?}", self.heard),
            }
        }
    }

    /// The number that it told with a moment.
    pub fn told_number(&self, moment: &str) -> u32 {
        self.heard.iter().find_map(|line| line.strip_prefix(moment)?.trim().parse().ok()).unwrap()
    }

    /// Ctrl-C.
    pub fn interrupt(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end, and for what it tells.
    pub fn end(mut self) -> Told {
        self.hear("end");
        let end = self.heard.iter().find_map(|line| line.strip_prefix("end ")).unwrap();
        let told = serde_json::from_str(end).unwrap();
        let until = Instant::now() + PATIENCE;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        told
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        // Does nothing once it was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This program, farshore and its library, as far as they are built, where every user can start them.
fn open_copy() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    machine::open_to_all(directory.path());
    std::fs::copy(std::env::current_exe().unwrap(), directory.path().join("cleanup")).unwrap();
    if let Ok(farshore) = machine::farshore() {
        let named = std::env::var_os("FARSHORE_LIBRARY").map(PathBuf::from);
        let library = named.unwrap_or_else(|| farshore.with_file_name("libfarshore.so"));
        std::fs::copy(library, directory.path().join("libfarshore.so")).unwrap();
        std::fs::copy(farshore, directory.path().join("farshore")).unwrap();
    }
    directory
}

/// The process' own side.
pub fn play() {
    let Ok(text) = std::env::var(VARIABLE) else { return };
    let play: Play = serde_json::from_str(&text).unwrap();
    // The program's environment is as usual.
    let mut told = Told::default();
    let result = match play.role {
        "clean" => clean(&play),
        "intent" => intend(&play),
        _ => run(&play, &mut told),
    };
    told.error = result.err();
    say(&format!("end {}", serde_json::to_string(&told).unwrap()));
}

fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    let _ = write!(out, "\n{MARK}{what}\n");
    let _ = out.flush();
}

/// Tells where it is, and waits there if that was asked for.
fn reach(moment: &str, play: &Play) {
    say(moment);
    if moment.split(' ').next() == play.pause.split(' ').next() && moment.starts_with(play.pause) {
        // Nothing comes: the test kills it, or ends itself.
        let _ = std::io::stdin().read_line(&mut String::new());
        std::process::abort();
    }
}

fn clean(play: &Play) -> Result<(), String> {
    let said = clean_up_after_others(&play.directory);
    if said.iter().any(|line| line.contains("removed: work directory")) { Ok(()) } else { Err(said.join("; ")) }
}

fn intend(play: &Play) -> Result<(), String> {
    let journal = Journal::open(&play.directory)?;
    journal.note(Thing::ZramIntent { before: zram::present().into_iter().collect() })?;
    let device = zram::add()?;
    let moment = format!("added {}", device.number);
    reach(&moment, &Play { pause: "added", ..play.clone() });
    Ok(())
}

fn run(play: &Play, told: &mut Told) -> Result<(), String> {
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&stop)).map_err(|error| error.to_string())?;
    let journal = Arc::new(Journal::open(&play.directory)?.ended_by(Arc::clone(&stop)));
    reach("opened", play);
    let farshore = machine::farshore().unwrap_or_else(|_| "/nonexistent".into());
    let spec: Spec = play.target.parse()?;
    let mut target = spec.build(&farshore, &journal);
    let place = Place {
        memory_bytes: 16 << 20,
        pool_bytes: 0,
        extra_bytes: 8 << 20,
        swap_bytes: play.swap_bytes,
        swap_files: 2,
        directory: journal.work().to_path_buf(),
    };
    set_up(target.as_mut(), &place, play.patient)?;
    reach("set up", play);
    let mut round = Round::default();
    let done = target.before().and_then(|()| one_run(target.as_ref(), play, &journal, &stop, &mut round));
    target.after(&mut round);
    *told = Told {
        error: None,
        wrong: round.wrong,
        peak: round.peak_limited_bytes,
        pages_out: round.counters.pages_out,
        ..told.clone()
    };
    told.fetches = round.measured.map_or(0, |counters| counters.fetches);
    done?;
    reach("measured", play);
    target.take_down();
    // Twice does no harm.
    target.take_down();
    drop(target);
    let problems = journal.close();
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}

/// Others on this machine may be at it too: these tests can wait.
fn set_up(target: &mut dyn Target, place: &Place, patient: bool) -> Result<(), String> {
    let until = Instant::now() + PATIENCE;
    loop {
        match target.set_up(place) {
            Err(why) if patient && why.contains("another farshore bench") && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(100));
            }
            done => return done,
        }
    }
}

fn one_run(target: &dyn Target, play: &Play, journal: &Journal, stop: &AtomicBool, round: &mut Round) -> Result<(), String> {
    reach("ready", play);
    let words: Vec<_> = play.program.split(' ').map(Into::into).collect();
    let mut command = target.command(&words);
    let mut child =
        command.stdin(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn().map_err(|error| error.to_string())?;
    let process = Thing::process(child.id());
    if let Some(process) = &process {
        journal.note(process.clone())?;
    }
    let mut most = Counters::default();
    let status = loop {
        let sample = target.sample(child.id()).unwrap_or_default();
        if sample.fetches > most.fetches {
            most = sample;
        }
        if stop.load(Ordering::Relaxed) {
            let _ = child.kill();
            let _ = child.wait();
            process.iter().for_each(|process| journal.done(process));
            return Err("interrupted".to_string());
        }
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            break status;
        }
        // It swaps by now, where there is a limit.
        if most.fetches > 0 || matches!(target.kind(), "native" | "command") {
            reach("running", play);
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    process.iter().for_each(|process| journal.done(process));
    round.measured = Some(most);
    if !status.success() {
        round.wrong.push(format!("it ended with {status}"));
    }
    Ok(())
}
