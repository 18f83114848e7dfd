//! The command's end of the control socket; the library's end (its `control` module) tells how it is served, [`farshore_config::control`] the protocol.
//!
//! The socket's name is abstract, so anybody could have taken it: before a word is said, the
//! listener must be the very process that was asked for and belong to one of its users (or to root, which it was before), by what the kernel says
//! about it. A program that finds its name taken adds a number to it that nobody could guess; so the kernel's list of sockets is looked through
//! for names that go on, and each is asked who it is.

use std::collections::BTreeSet;
use std::io::{ErrorKind, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::kinds;
use farshore_command::process::{if_there, is_late, is_unknown_now, managers_of, remedy, told};
use farshore_command::refusal::Refusal;
use farshore_config::control::{Request, Translated, WAKER, socket_name};
use farshore_config::stats::Stats;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket, sockopt::PeerCredentials};
use nix::unistd::Pid;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// How long a program may take to be connected to, and to answer: from the question to the last byte, however they come. Its thread may have to wait for a core.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a program is tried again whose queue of connections is full.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
/// How long a dormant program is waited for. It may have the signal blocked.
const WAKE_PATIENCE: Duration = Duration::from_secs(3);
/// Longest answer, in bytes.
pub(crate) const ANSWER_LIMIT: usize = 1 << 20;

/// A connection to a program that runs with Farshore.
#[derive(Debug)]
pub struct Client {
    pid: u32,
    stream: UnixStream,
    /// Descriptors that have come with answers.
    came: Vec<OwnedFd>,
}

impl Client {
    /// Connects to process `pid`, or to the manager of its memory.
    ///
    /// # Errors
    /// There is no such process, it does not run with Farshore, or it is somebody else's.
    pub fn connect(pid: u32) -> Result<Self, Refusal> {
        Self::reach(pid, true)
    }

    /// `leads`: what has no socket may have a manager.
    fn reach(pid: u32, leads: bool) -> Result<Self, Refusal> {
        let users = users(pid)?;
        let until = Instant::now() + ANSWER_TIMEOUT;
        let (mut impostor, mut woken, mut asked) = (None, None::<Instant>, false);
        loop {
            let list = kernels_list().map_err(|error| unlooked(pid, &error))?;
            let names = users.iter().map(|&user| socket_name(user, pid)).chain(longer_names(&list, pid));
            let mut busy = false;
            for name in names {
                match connect_to(&name) {
                    Ok(stream) => match peer(&stream) {
                        Ok((peer, user)) if peer == pid && users.contains(&user) => {
                            return Ok(Client { pid, stream, came: Vec::new() });
                        }
                        other => impostor = Some(other),
                    },
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                    // So many wait already; if it is ours, that is over soon.
                    Err(error) if error.kind() == ErrorKind::WouldBlock => busy = true,
                    Err(error) => {
                        let what = remedy(&error).unwrap_or("is its network namespace another one?");
                        return Err(Refusal::failed(format!("cannot reach process {pid} ({error}): {what}")));
                    }
                }
            }
            match impostor {
                _ if busy && Instant::now() < until => std::thread::sleep(CONNECT_PAUSE),
                // A dormant one is asked once, and makes its socket some milliseconds after it has heard.
                _ if woken.is_some_and(|at| at.elapsed() < WAKE_PATIENCE)
                    || woken.is_none() && (is_woken(pid, &mut asked) || is_ours(pid)) =>
                {
                    woken.get_or_insert_with(Instant::now);
                    // One that was just starting could not be asked before.
                    is_woken(pid, &mut asked);
                    std::thread::sleep(CONNECT_PAUSE);
                }
                None if busy => return Err(silent(pid)),
                None => {
                    // Of a virtual machine monitor its memory's manager is asked.
                    let is_theirs = |manager| told(manager, "status").is_ok_and(|status| users_in(&status).is_subset(&users));
                    if leads && let Some(manager) = managers_of(pid, is_theirs).next() {
                        return Self::reach(manager, false);
                    }
                    if let Err(why) = has_library(pid)
                        && is_late(&why)
                    {
                        return Err(Refusal::failed(format!("process {pid} cannot be looked at: {why}")));
                    }
                    if let Some(why) = kinds::obstacle(pid) {
                        return Err(Refusal::failed(format!("process {pid} runs without Farshore: {why}")));
                    }
                    return Err(Refusal::failed(format!(
                        "process {pid} has no control socket: it was not started by 'farshore run', or is in another network namespace, or is just starting"
                    )));
                }
                Some(peer) => {
                    let other = peer
                        .map_or_else(|error| error.to_string(), |(process, user)| format!("process {process} of user {user}"));
                    return Err(Refusal::failed(format!(
                        "the control socket of process {pid} is held by another ({other}): it cannot be asked"
                    )));
                }
            }
        }
    }

    /// The program's counters now.
    ///
    /// # Errors
    /// It does not answer, or refuses to.
    pub fn stats(&mut self) -> Result<Stats, Refusal> {
        let answer = self.ask(&Request::Stat {})?;
        Stats::from_json(&answer).map_err(|why| Refusal::failed(format!("process {}: {why}", self.pid)))
    }

    /// Changes one setting. The number of the change, if it takes its time.
    ///
    /// # Errors
    /// It does not answer, or refuses the setting.
    pub fn set(&mut self, key: &str, value: &str) -> Result<Option<u64>, Refusal> {
        let answer = self.ask(&Request::Set { key: key.into(), value: value.into() })?;
        Ok(member(&answer, "change").and_then(|id| id.as_u64()))
    }

    /// How far a change is, in per cent; `None`: it is made.
    ///
    /// # Errors
    /// The program does not answer, or the change has failed.
    pub fn change(&mut self, id: u64) -> Result<Option<u64>, Refusal> {
        let answer = self.ask(&Request::Change { id })?;
        let done = member(&answer, "done").and_then(|done| done.as_bool()).unwrap_or(false);
        Ok((!done).then(|| member(&answer, "percent").and_then(|percent| percent.as_u64()).unwrap_or(0)))
    }

    /// Where a virtual machine's guest has a virtual address.
    ///
    /// # Errors
    /// The manager does not answer, or cannot tell.
    pub fn translate(&mut self, address: u64) -> Result<Vec<Translated>, Refusal> {
        let answer = self.ask(&Request::Translate { address })?;
        let found = member(&answer, "found").and_then(|found| serde_json::from_value(found).ok());
        found.ok_or_else(|| {
            Refusal::failed(format!("process {}: an answer without 'found': is its Farshore another version?", self.pid))
        })
    }

    /// Attaches a policy that speaks this version of the protocol (`farshore-attach`). The attachment lasts as long as the connection; what the
    /// program shares is behind the descriptor.
    ///
    /// # Errors
    /// The program does not answer, or refuses.
    pub fn attach(mut self, version: u64) -> Result<(UnixStream, OwnedFd), Refusal> {
        let pid = self.pid;
        let answer = self.ask(&Request::Attach { version })?;
        match self.came.pop() {
            Some(descriptor) => Ok((self.stream, descriptor)),
            None => Err(Refusal::failed(format!(
                "process {pid} shares no memory, and answers {answer:?}: is its Farshore another version?"
            ))),
        }
    }

    /// Sends a request, and returns the answer's line unless it is an error.
    fn ask(&mut self, request: &Request) -> Result<String, Refusal> {
        let pid = self.pid;
        let lost = |error: std::io::Error| {
            Refusal::failed(match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => return silent(pid),
                _ => format!("the connection to process {pid} was lost ({error}): has it ended?"),
            })
        };
        // A refusal may lie there already, with the connection closed behind it: an error in writing
        // is told only if nothing can be read.
        let until = Instant::now() + ANSWER_TIMEOUT;
        let written = set_timeout(&self.stream, until).and_then(|()| self.stream.write_all(request.to_line().as_bytes()));
        let line = self.read_line(until).map_err(|error| match error.kind() {
            ErrorKind::FileTooLarge => Refusal::failed(format!(
                "process {pid} gave an answer of more than {} KiB: is it Farshore's?",
                ANSWER_LIMIT >> 10
            )),
            _ => lost(written.err().unwrap_or(error)),
        })?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let answer: serde_json::Value = serde_json::from_str(&line).map_err(|error| {
            Refusal::failed(format!("process {pid} gave an answer that is not JSON ({error}): is its Farshore another version?"))
        })?;
        match answer.get("error") {
            None => Ok(line),
            Some(why) => {
                Err(Refusal::failed(format!("process {pid}: {}", why.as_str().unwrap_or("refused, and did not say why"))))
            }
        }
    }
}

impl Client {
    /// The answer's line, and its end. Nothing comes behind it: a question is asked when the answer before it is there.
    fn read_line(&mut self, until: Instant) -> std::io::Result<Vec<u8>> {
        let (mut line, mut piece) = (Vec::new(), [0; 4096]);
        while line.last() != Some(&b'\n') {
            set_timeout(&self.stream, until)?;
            match self.receive(&mut piece) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => line.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if line.len() > ANSWER_LIMIT {
                return Err(ErrorKind::FileTooLarge.into());
            }
        }
        Ok(line)
    }

    /// Reads what is there, with a descriptor that comes along.
    fn receive(&mut self, piece: &mut [u8]) -> std::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut along = RecvAncillaryBuffer::new(&mut space);
        let count = recvmsg(&self.stream, &mut [IoSliceMut::new(piece)], &mut along, RecvFlags::CMSG_CLOEXEC)?.bytes;
        for message in along.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.came.extend(descriptors);
            }
        }
        Ok(count)
    }
}

/// What is said of a process that does not answer.
fn silent(pid: u32) -> Refusal {
    Refusal::failed(format!("process {pid}{}", silence()))
}

fn silence() -> String {
    format!(" did not answer within {} seconds: is it stopped?", ANSWER_TIMEOUT.as_secs())
}

/// Whether a process was asked and has not answered; else it has refused, or cannot be asked.
#[must_use]
pub fn is_silence(refusal: &Refusal) -> bool {
    refusal.text.ends_with(&silence())
}

/// The next transfer ends at `until`, at the latest.
fn set_timeout(stream: &UnixStream, until: Instant) -> std::io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    stream.set_read_timeout(Some(left)).and_then(|()| stream.set_write_timeout(Some(left)))
}

/// A member of an answer.
fn member(answer: &str, name: &str) -> Option<serde_json::Value> {
    serde_json::from_str::<serde_json::Value>(answer).ok()?.get(name).cloned()
}

/// Connects to an abstract name. At once or not at all: a listener that takes nobody must not keep the command.
pub(crate) fn connect_to(name: &str) -> std::io::Result<UnixStream> {
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
    connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Process and user at the other end, as they were when it began to listen.
pub(crate) fn peer(stream: &UnixStream) -> std::io::Result<(u32, u32)> {
    let peer = getsockopt(stream, PeerCredentials)?;
    // Outside of our process namespace a process has no number.
    Ok((u32::try_from(peer.pid()).unwrap_or(0), peer.uid()))
}

/// Asks process `pid` to wake, once. Whether it was asked.
fn is_woken(pid: u32, asked: &mut bool) -> bool {
    *asked = *asked || wake(pid);
    *asked
}

/// Asks process `pid` to wake, if it runs with Farshore and is dormant. Whether it was asked.
fn wake(pid: u32) -> bool {
    let listens = catches_waker(&told(pid, "status").unwrap_or_default()) && hears_waker(pid);
    let number = Signal::try_from(WAKER as i32).ok();
    // Of a process that has more rights than we have only the status can be read.
    let is_ours = || has_library(pid).unwrap_or_else(|why| !is_unknown_now(&why));
    listens && is_ours() && kill(Pid::from_raw(pid as i32), number).is_ok()
}

/// Whether a thread of process `pid` has [`WAKER`] open. A handler of the program often has all signals blocked: sent now, the signal would come at its end, where
/// nobody can tell any more that it is not what has ended the call below.
fn hears_waker(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.into_iter().any(|thread| {
        let status = told(pid, &format!("task/{}/status", thread.file_name().display())).unwrap_or_default();
        mask(&status, "SigBlk:").is_some_and(|blocked| blocked >> (WAKER - 1) & 1 == 0)
    })
}

/// A mask of signals in a `/proc/PID/status`, by its name (`SigCgt:`); signal 1 is the lowest bit.
#[must_use]
pub fn mask(status: &str, name: &str) -> Option<u64> {
    status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix(name)?.trim(), 16).ok())
}

/// Whether a process with this status has a handler for [`WAKER`], as a dormant one has.
pub(crate) fn catches_waker(status: &str) -> bool {
    mask(status, "SigCgt:").is_some_and(|caught| caught >> (WAKER - 1) & 1 != 0)
}

/// Whether process `pid` runs with Farshore, and may be waking just now.
fn is_ours(pid: u32) -> bool {
    has_library(pid).unwrap_or(false)
}

pub(crate) fn has_library(pid: u32) -> std::io::Result<bool> {
    Ok(told(pid, "maps")?.contains("/libfarshore.so"))
}

fn unlooked(pid: u32, error: &std::io::Error) -> Refusal {
    Refusal::failed(format!("cannot look at process {pid} ({error}): {}", remedy(error).unwrap_or("ask as its user or root")))
}

/// The kernel's list of the sockets of this network namespace; nothing where there is none.
pub(crate) fn kernels_list() -> std::io::Result<String> {
    let list = if_there(std::fs::read("/proc/net/unix"))?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&list).into_owned())
}

/// Names in that list that a program has taken which found its own in other hands: with a number at the end. Each once: a listener and its connections have the same.
fn longer_names(list: &str, pid: u32) -> BTreeSet<String> {
    let name = |line: &str| {
        let name = line.split_whitespace().nth(7)?.strip_prefix('@')?;
        let (user, rest) = name.strip_prefix("farshore-")?.split_once('-')?;
        let (process, number) = rest.split_once('-')?;
        let is_ours = user.parse::<u32>().is_ok() && process.parse() == Ok(pid) && !number.is_empty();
        is_ours.then(|| name.to_owned())
    };
    list.lines().filter_map(name).collect()
}

/// The users that the socket's name may hold: it is that of the start, and a program may change its
/// user later (a service that gives up root).
fn users(pid: u32) -> Result<BTreeSet<u32>, Refusal> {
    let status = match told(pid, "status") {
        Ok(status) => status,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(Refusal::failed(format!("there is no process {pid}: check the number with 'pgrep -a NAME'")));
        }
        Err(error) => return Err(unlooked(pid, &error)),
    };
    Ok(users_in(&status))
}

pub(crate) fn users_in(status: &str) -> BTreeSet<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    line.split_whitespace().filter_map(|word| word.parse().ok()).chain([0]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_users_come_from_proc() {
        assert_eq!(users_in("Name:\tx\nUid:\t1000\t1000\t33\t1000\nGid:\t5\t5\t5\t5\n"), BTreeSet::from([0, 33, 1000]));
        assert_eq!(users_in(""), BTreeSet::from([0]));
    }

    #[test]
    fn silence_is_not_taken_for_a_refusal() {
        assert!(is_silence(&silent(7)) && !is_silence(&Refusal::failed("process 7: no such setting")));
    }

    #[test]
    fn a_process_that_is_not_there_is_named() {
        // Beyond the kernel's largest process id.
        let refusal = Client::connect(2_000_000_000).unwrap_err();
        assert!(refusal.text.contains("there is no process 2000000000"), "{}", refusal.text);
    }

    #[test]
    fn a_listener_that_is_another_process_is_not_believed() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixListener};
        // This process poses as process 1.
        let user = rustix::process::geteuid().as_raw();
        let pose = |name: String| UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).expect("short name"));
        let _short = pose(format!("farshore-{user}-1")).expect("the name is free");
        let _long = pose(format!("farshore-{user}-1-{:016x}", std::process::id())).expect("the name is free");
        let refusal = Client::connect(1).unwrap_err();
        let me = format!("held by another (process {} of user {user})", std::process::id());
        assert!(refusal.text.contains(&me), "{}", refusal.text);
    }

    #[test]
    fn masks_are_read_from_the_status() {
        let status = "SigBlk:\t0000000000000004\nSigIgn:\t0000000100000001\nSigCgt:\t0\n";
        assert_eq!(mask(status, "SigIgn:"), Some(0x1_0000_0001));
        assert_eq!([mask("", "SigIgn:"), mask("SigIgn:\tx\n", "SigIgn:")], [None, None]);
    }

    #[test]
    fn names_that_go_on_are_found_in_the_kernels_list() {
        let list = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0: 00000002 00000000 00010000 0001 01 1 @farshore-0-77\n\
            0: 00000002 00000000 00010000 0001 01 2 @farshore-0-77-00ab\n\
            0: 00000003 00000000 00000000 0001 03 3 @farshore-0-77-00ab\n\
            0: 00000002 00000000 00010000 0001 01 4 @farshore-1000-77-1\n\
            0: 00000002 00000000 00010000 0001 01 5 @farshore-0-78-00ab\n\
            0: 00000002 00000000 00010000 0001 01 6 @farshore-x-77-1\n\
            0: 00000002 00000000 00010000 0001 01 7 farshore-0-77-1\n\
            0: 00000002 00000000 00010000 0001 01 8\n";
        assert_eq!(longer_names(list, 77), ["farshore-0-77-00ab", "farshore-1000-77-1"].map(String::from).into());
        assert!(longer_names("", 77).is_empty());
    }
}
