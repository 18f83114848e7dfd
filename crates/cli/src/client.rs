//! The command's end of the control socket; the library's end (its `control` module) tells how it is served, [`farshore_config::control`] the protocol.
//!
//! The socket's name is abstract, so anybody could have taken it: before a word is said, the
//! listener must be the very process that was asked for, by what the kernel says about it.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use farshore_config::control::{Request, socket_name};
use farshore_config::stats::Stats;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::refusal::Refusal;

/// How long a program may take to answer. Its thread may have to wait for a core.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer, in bytes.
const ANSWER_LIMIT: u64 = 1 << 20;

/// A connection to a program that runs with Farshore.
#[derive(Debug)]
pub struct Client {
    pid: u32,
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to process `pid`.
    ///
    /// # Errors
    /// There is no such process, it does not run with Farshore, or it is somebody else's.
    pub fn connect(pid: u32) -> Result<Self, Refusal> {
        for user in users(pid)? {
            match connect_as(user, pid) {
                Ok(stream) => return Client::take(pid, stream),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(error) => {
                    return Err(Refusal::failed(format!(
                        "cannot reach process {pid} ({error}): is its network namespace another one?"
                    )));
                }
            }
        }
        Err(Refusal::failed(format!(
            "process {pid} has no control socket: it was not started by 'farshore run', or is in another network namespace, or is just starting"
        )))
    }

    fn take(pid: u32, stream: UnixStream) -> Result<Self, Refusal> {
        let timeout = Some(ANSWER_TIMEOUT);
        let prepared = stream.set_read_timeout(timeout).and_then(|()| stream.set_write_timeout(timeout));
        prepared.map_err(|error| Refusal::failed(format!("cannot talk to process {pid} ({error})")))?;
        let peer = getsockopt(&stream, PeerCredentials).map(|peer| peer.pid());
        if peer.is_ok_and(|peer| u32::try_from(peer) == Ok(pid)) {
            return Ok(Client { pid, stream: BufReader::new(stream) });
        }
        let other = peer.map_or_else(|error| error.to_string(), |peer| format!("process {peer}"));
        Err(Refusal::failed(format!("the control socket of process {pid} is held by another ({other}): it cannot be asked")))
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

    /// Sends a request, and returns the answer's line unless it is an error.
    fn ask(&mut self, request: &Request) -> Result<String, Refusal> {
        let pid = self.pid;
        let lost = |error: std::io::Error| {
            Refusal::failed(match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                    format!("process {pid} did not answer within {} seconds: is it stopped?", ANSWER_TIMEOUT.as_secs())
                }
                _ => format!("the connection to process {pid} was lost ({error}): has it ended?"),
            })
        };
        // A refusal may lie there already, with the connection closed behind it: an error in writing
        // is told only if nothing can be read.
        let written = self.stream.get_mut().write_all(request.to_line().as_bytes());
        let mut line = Vec::new();
        let read = (&mut self.stream).take(ANSWER_LIMIT).read_until(b'\n', &mut line);
        if line.last() != Some(&b'\n') {
            return Err(lost(written.and(read).err().unwrap_or_else(|| ErrorKind::UnexpectedEof.into())));
        }
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

/// A member of an answer.
fn member(answer: &str, name: &str) -> Option<serde_json::Value> {
    serde_json::from_str::<serde_json::Value>(answer).ok()?.get(name).cloned()
}

fn connect_as(user: u32, pid: u32) -> std::io::Result<UnixStream> {
    let address = SocketAddr::from_abstract_name(socket_name(user, pid))?;
    UnixStream::connect_addr(&address)
}

/// The users that the socket's name may hold: it is that of the start, and a program may change its
/// user later (a service that gives up root).
fn users(pid: u32) -> Result<BTreeSet<u32>, Refusal> {
    let status = match std::fs::read_to_string(format!("/proc/{pid}/status")) {
        Ok(status) => status,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(Refusal::failed(format!("there is no process {pid}: check the number with 'pgrep -a NAME'")));
        }
        Err(error) => return Err(Refusal::failed(format!("cannot look at process {pid} ({error}): ask as its user or root"))),
    };
    Ok(users_in(&status))
}

fn users_in(status: &str) -> BTreeSet<u32> {
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
    fn a_process_that_is_not_there_is_named() {
        // Beyond the kernel's largest process id.
        let refusal = Client::connect(2_000_000_000).unwrap_err();
        assert!(refusal.text.contains("there is no process 2000000000"), "{}", refusal.text);
    }

    #[test]
    fn a_listener_that_is_another_process_is_not_believed() {
        use std::os::unix::net::UnixListener;
        // This process poses as process 1.
        let user = rustix::process::geteuid().as_raw();
        let address = SocketAddr::from_abstract_name(format!("farshore-{user}-1")).expect("short name");
        let _listener = UnixListener::bind_addr(&address).expect("the name is free");
        let refusal = Client::take(1, connect_as(user, 1).expect("it listens")).unwrap_err();
        assert!(refusal.text.contains("held by another"), "{}", refusal.text);
    }
}
