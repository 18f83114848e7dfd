//! One process of a comparison: started, listened to, waited for, ended.
//!
//! # Protocol
//!
//! 1. The child leads a process group of its own: Ctrl-C on the terminal is not for it, and all of it can be ended at once.
//! 2. Three threads turn what it does into messages: its output, its errors, its end. The end is seen without reaping
//!    (`WNOWAIT`), with the moment at which it was seen, so that the process id stays valid until [`Child::reap`].
//! 3. Whoever drops it ends its group: nothing of it runs on.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use sha2::{Digest, Sha256};
use wait4::Wait4;

use crate::proc;

/// How often the flag that ends everything is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long output is waited for when the process has ended: others may hold the pipe.
const LAST_OUTPUT: Duration = Duration::from_secs(2);
/// How much of what it says on stderr is kept, in bytes.
const ERRORS_KEPT: usize = 4096;

/// What a child did.
#[derive(Debug)]
pub enum Message {
    /// It printed a line (only with [`Output::Lines`]).
    Line(String),
    /// Its output has ended: the SHA-256 of all.
    Printed(String),
    /// Its errors have ended: the last of them.
    Complained(String),
    /// It has ended.
    Ended(Instant),
}

/// What to do with its standard output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// Give it on line by line.
    Lines,
    /// Hash it.
    Hash,
}

/// Why a wait ended without a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Silence {
    /// The user wants everything to end.
    Interrupted,
    /// The time is over.
    TimedOut,
}

/// How long to wait at most, and the flag that ends it at once.
#[derive(Clone, Copy, Debug)]
pub struct Watch<'a> {
    /// Set by Ctrl-C.
    pub stop: &'a AtomicBool,
    /// When it has taken too long.
    pub deadline: Instant,
}

/// A running child.
#[derive(Debug)]
pub struct Child {
    child: std::process::Child,
    messages: Receiver<Message>,
    started: Instant,
    printed: Option<String>,
    complained: Option<String>,
    /// The last of what it has said on stderr so far.
    said: Arc<Mutex<Vec<u8>>>,
    /// Largest resident memory that was seen while it ran, in bytes.
    peak_seen: u64,
    reaped: bool,
}

/// What the kernel tells of a child at its end, its children that it waited for included.
#[derive(Clone, Debug)]
pub struct End {
    /// Empty for status 0, else what it ended with, and the end of what it said on stderr.
    pub wrong: Vec<String>,
    /// From start to end, in seconds.
    pub wall_seconds: f64,
    /// Processor time, in seconds.
    pub user_seconds: f64,
    /// The kernel's on its behalf, in seconds.
    pub system_seconds: f64,
    /// Largest resident memory of one process, in bytes.
    pub peak_resident_bytes: u64,
    /// Page faults with I/O.
    pub major_faults: u64,
    /// Page faults without.
    pub minor_faults: u64,
    /// SHA-256 of its output.
    pub output_sha256: String,
}

impl Child {
    /// Starts `command`, with nothing on its standard input.
    ///
    /// # Errors
    /// It could not be started: one line.
    pub fn start(mut command: Command, output: Output) -> Result<Child, String> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let started = Instant::now();
        let mut child = command.spawn().map_err(|error| format!("cannot start {:?} ({error})", command.get_program()))?;
        let (sender, messages) = channel();
        let said = Arc::default();
        if let Some(stdout) = child.stdout.take() {
            let sender = sender.clone();
            std::thread::spawn(move || read_output(stdout, output, &sender));
        }
        if let Some(stderr) = child.stderr.take() {
            let sender = sender.clone();
            let said = Arc::clone(&said);
            std::thread::spawn(move || read_errors(stderr, &said, &sender));
        }
        let pid = pid_of(&child);
        std::thread::spawn(move || {
            // Interrupted by a signal: again. Any other error means that there is no such child any more.
            while waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).is_err_and(|errno| errno == Errno::INTR)
            {
            }
            let _ = sender.send(Message::Ended(Instant::now()));
        });
        Ok(Child { child, messages, started, printed: None, complained: None, said, peak_seen: 0, reaped: false })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line or its end; what else comes is kept.
    ///
    /// # Errors
    /// Neither came in time, or the user wants everything to end.
    pub fn next(&mut self, watch: Watch<'_>) -> Result<Message, Silence> {
        loop {
            if watch.stop.load(Ordering::Relaxed) {
                return Err(Silence::Interrupted);
            }
            match self.messages.recv_timeout(LOOK) {
                Ok(Message::Printed(hash)) => self.printed = Some(hash),
                Ok(Message::Complained(text)) => self.complained = Some(text),
                Ok(message) => return Ok(message),
                Err(RecvTimeoutError::Timeout) if Instant::now() < watch.deadline => {
                    self.peak_seen = self.peak_seen.max(proc::peak_resident_bytes(self.pid()));
                }
                Err(_) => return Err(Silence::TimedOut),
            }
        }
    }

    /// Gives each line to `hear`, until it ends: when that was.
    ///
    /// # Errors
    /// It did not end in time, or the user wants everything to end.
    pub fn wait(&mut self, watch: Watch<'_>, mut hear: impl FnMut(&str)) -> Result<Instant, Silence> {
        loop {
            match self.next(watch)? {
                Message::Line(line) => hear(&line),
                Message::Ended(moment) => return Ok(moment),
                Message::Printed(_) | Message::Complained(_) => {}
            }
        }
    }

    /// The next message, if there is one now; what is not for the caller is kept.
    pub fn try_next(&mut self) -> Option<Message> {
        loop {
            match self.messages.try_recv().ok()? {
                Message::Printed(hash) => self.printed = Some(hash),
                Message::Complained(text) => self.complained = Some(text),
                message => return Some(message),
            }
        }
    }

    /// Whether all that it printed was given on.
    #[must_use]
    pub fn output_has_ended(&self) -> bool {
        self.printed.is_some()
    }

    /// The last of what it has said on stderr so far.
    #[must_use]
    pub fn complaints(&self) -> String {
        String::from_utf8_lossy(&kept(&self.said)).into_owned()
    }

    /// Sends a signal to it alone.
    pub fn signal(&self, signal: Signal) {
        if !self.reaped {
            let _ = kill_process(pid_of(&self.child), signal);
        }
    }

    /// Takes its end, which was seen at `ended`, and everything that it still had to say. Ends what is left of its group.
    pub fn reap(mut self, ended: Instant) -> End {
        let wall_seconds = ended.saturating_duration_since(self.started).as_secs_f64();
        let until = Instant::now() + LAST_OUTPUT;
        while self.printed.is_none() || self.complained.is_none() {
            match self.messages.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Message::Printed(hash)) => self.printed = Some(hash),
                Ok(Message::Complained(text)) => self.complained = Some(text),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        self.kill_group();
        let counted = proc::counters(self.pid());
        // It has ended: this reaps it without waiting.
        let used = self.child.try_wait4();
        self.reaped = true;
        let complained = self.complained.take().unwrap_or_default();
        let (wrong, used) = match used {
            Ok(Some(used)) => (how_it_ended(used.status, &complained), Some(used.rusage)),
            Ok(None) => (vec!["it was told to have ended, and had not".into()], None),
            Err(error) => (vec![format!("its end was lost ({error})")], None),
        };
        End {
            wrong,
            wall_seconds,
            user_seconds: used.as_ref().map_or(0.0, |used| used.utime.as_secs_f64()),
            system_seconds: used.as_ref().map_or(0.0, |used| used.stime.as_secs_f64()),
            peak_resident_bytes: used.as_ref().map_or(0, |used| peak(used.maxrss, self.peak_seen)),
            major_faults: counted.major_faults,
            minor_faults: counted.minor_faults,
            output_sha256: self.printed.take().unwrap_or_default(),
        }
    }

    fn kill_group(&self) {
        let _ = kill_process_group(pid_of(&self.child), Signal::KILL);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill_group();
            let _ = self.child.wait();
        }
    }
}

fn pid_of(child: &std::process::Child) -> Pid {
    Pid::from_child(child)
}

fn read_output(stdout: impl Read, output: Output, sender: &Sender<Message>) {
    let mut hash = Sha256::new();
    let mut reader = BufReader::with_capacity(1 << 16, stdout);
    let mut line = Vec::new();
    loop {
        let count = match output {
            Output::Hash => match reader.fill_buf() {
                Ok(bytes) => {
                    hash.update(bytes);
                    bytes.len()
                }
                Err(_) => 0,
            },
            Output::Lines => reader.read_until(b'\n', &mut line).unwrap_or(0),
        };
        if count == 0 {
            break;
        }
        match output {
            Output::Hash => reader.consume(count),
            Output::Lines => {
                hash.update(&line);
                let _ = sender.send(Message::Line(String::from_utf8_lossy(&line).into_owned()));
                line.clear();
            }
        }
    }
    let digits: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let _ = sender.send(Message::Printed(digits));
}

fn read_errors(mut stderr: impl Read, said: &Mutex<Vec<u8>>, sender: &Sender<Message>) {
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = stderr.read(&mut piece) {
        let mut kept = kept(said);
        kept.extend_from_slice(&piece[..count]);
        let surplus = kept.len().saturating_sub(ERRORS_KEPT);
        kept.drain(..surplus);
    }
    let _ = sender.send(Message::Complained(String::from_utf8_lossy(&kept(said)).trim().to_string()));
}

fn kept(said: &Mutex<Vec<u8>>) -> MutexGuard<'_, Vec<u8>> {
    said.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A new process starts with the peak of the one that made it, this command's. Where the kernel's number is no larger than that, what was
/// seen of the process itself is the better one.
fn peak(told: u64, seen: u64) -> u64 {
    if told > proc::peak_resident_bytes(std::process::id()) { told.max(seen) } else { seen }
}

fn how_it_ended(status: std::process::ExitStatus, complained: &str) -> Vec<String> {
    if status.success() {
        return Vec::new();
    }
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with status {code}"),
        (None, Some(signal)) => {
            format!(
                "it was ended by {}",
                signal_hook::low_level::signal_name(signal).map_or(format!("signal {signal}"), String::from)
            )
        }
        (None, None) => "it ended in an unknown way".into(),
    };
    let last: Vec<&str> = complained.lines().rev().take(3).collect();
    let said = last.into_iter().rev().collect::<Vec<_>>().join(" / ");
    vec![if said.is_empty() { how } else { format!("{how}: {said}") }]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(stop: &AtomicBool, seconds: u64) -> Watch<'_> {
        Watch { stop, deadline: Instant::now() + Duration::from_secs(seconds) }
    }

    fn shell(script: &str, output: Output) -> Child {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        Child::start(command, output).unwrap()
    }

    fn ended(child: &mut Child, stop: &AtomicBool) -> (Vec<String>, Instant) {
        let mut lines = Vec::new();
        loop {
            match child.next(watch(stop, 20)).unwrap() {
                Message::Line(line) => lines.push(line),
                Message::Ended(moment) => return (lines, moment),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn what_it_says_and_how_it_ends() {
        let stop = AtomicBool::new(false);
        let mut child = shell("printf 'a\\nb\\n'; echo oh no >&2; exit 3", Output::Hash);
        let (lines, moment) = ended(&mut child, &stop);
        assert!(lines.is_empty());
        let end = child.reap(moment);
        assert_eq!(end.wrong, ["it ended with status 3: oh no"]);
        assert_eq!(end.output_sha256, "911169ddaaf146aff539f58c26c489af3b892dff0fe283c1c264c65ae5aa59a2");

        let mut child = shell("kill -SEGV $$", Output::Lines);
        let (_, moment) = ended(&mut child, &stop);
        assert_eq!(child.reap(moment).wrong, ["it was ended by SIGSEGV"]);
    }

    #[test]
    fn what_it_says_is_heard_while_it_runs() {
        let stop = AtomicBool::new(false);
        let mut child = shell("echo ready >&2; read x; sleep 1000", Output::Hash);
        let until = Instant::now() + Duration::from_secs(20);
        while child.complaints() != "ready\n" && Instant::now() < until {
            assert_eq!(child.next(watch(&stop, 0)).unwrap_err(), Silence::TimedOut);
        }
        assert_eq!(child.complaints(), "ready\n");
    }

    #[test]
    fn time_and_the_users_wish_end_it_with_all_its_children() {
        let stop = AtomicBool::new(false);
        let mut child = shell("sleep 1000 & echo $!; wait", Output::Lines);
        let Ok(Message::Line(line)) = child.next(watch(&stop, 20)) else { panic!("no line") };
        assert_eq!(child.next(watch(&stop, 0)).unwrap_err(), Silence::TimedOut);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(child.next(watch(&stop, 20)).unwrap_err(), Silence::Interrupted);
        drop(child);
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", line.trim())).unwrap_or_default();
        let until = Instant::now() + Duration::from_secs(20);
        // Its parent is gone: whoever adopted it may take a moment to reap it.
        while !(state().is_empty() || state().contains(") Z ")) {
            assert!(Instant::now() < until, "a grandchild lives on: {}", state());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
