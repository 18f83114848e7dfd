//! All programs that run under Farshore and may be asked by who asks: his own ones, or for root everybody's.
//!
//! Nothing of it touches a program. An awake one listens at its control socket, which is in the kernel's list of sockets. A dormant one has
//! none; it is known by what the kernel shows of it: a handler for [`WAKER`](farshore_config::control::WAKER), Farshore's library, and the
//! options that it was started with. The lists are not of one moment, so a program may have ended before it is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use farshore_command::process::{bytes, if_there, is_late, told};
use farshore_config::{OPTIONS_VARIABLE, Options};

use crate::client::{catches_waker, has_library, kernels_list, users_in};

/// The flag of a socket that listens, in the kernel's list.
const LISTENS: u32 = 1 << 16;

/// A program that runs under Farshore.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// Its process.
    pub pid: u32,
    /// When the process was started, in the kernel's ticks: a number of a process may come again, with this it does not.
    pub started: u64,
    /// Its effective user.
    pub user: u32,
    /// Its name, as the kernel has it: at most 15 bytes.
    pub name: String,
    /// Whether it is awake.
    pub state: State,
}

/// Whether a program can be asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// It listens at one of these names, of which others than Farshore may have taken some.
    Awake(Vec<String>),
    /// Its memory has always fitted, so it has no counters, and is not woken for being looked at.
    Dormant {
        /// The limit that it was started with, in bytes.
        limit: u64,
    },
    /// It may be dormant, but the kernel does not tell it now: a line that says why.
    Hidden(String),
}

/// The programs that `user` may ask, by their numbers.
///
/// # Errors
/// This process lacks what it takes to look (descriptors, memory), so which there are is not known now.
pub fn of_user(user: u32) -> io::Result<Vec<Program>> {
    let mut listening = listening(&kernels_list()?);
    let folders = if_there(std::fs::read_dir("/proc"))?.into_iter().flatten().flatten();
    let mut pids: Vec<u32> = folders.filter_map(|folder| folder.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids.into_iter().filter_map(|pid| program(pid, user, listening.remove(&pid)).transpose()).collect()
}

/// Process `pid`, if `user` may ask it and it runs under Farshore.
fn program(pid: u32, user: u32, names: Option<BTreeSet<String>>) -> io::Result<Option<Program>> {
    let Some(status) = if_there(told(pid, "status"))? else { return Ok(None) };
    let Some(effective) = effective_user(&status).filter(|effective| user == 0 || user == *effective) else { return Ok(None) };
    let state = match names {
        // Only names that the program itself may have taken.
        Some(names) => State::Awake(names.into_iter().filter(|name| is_of(name, &users_in(&status))).collect()),
        None if catches_waker(&status) => match dormant(pid) {
            Ok(Some(state)) => state,
            Ok(None) => return Ok(None),
            Err(why) if is_late(&why) => State::Hidden(why.to_string()),
            Err(why) => return Err(why),
        },
        None => return Ok(None),
    };
    let stat = if_there(told(pid, "stat"))?.unwrap_or_default();
    let (Some(started), Some(name)) = (started_in(&stat), name_in(&stat)) else { return Ok(None) };
    Ok(Some(Program { pid, started, user: effective, name: name.to_owned(), state }))
}

/// The state of a process that has a handler for the signal, if it is dormant.
fn dormant(pid: u32) -> io::Result<Option<State>> {
    let limit = if_there(bytes(pid, "environ"))?.and_then(|environment| limit_in(&environment));
    let Some(limit) = limit else { return Ok(None) };
    Ok(if_there(has_library(pid))?.filter(|has| *has).map(|_| State::Dormant { limit }))
}

/// Names of control sockets that something listens at, by the process that they are for.
fn listening(list: &str) -> BTreeMap<u32, BTreeSet<String>> {
    let mut found = BTreeMap::<u32, BTreeSet<String>>::new();
    for line in list.lines() {
        let mut fields = line.split_ascii_whitespace();
        let flags = fields.nth(3).and_then(|flags| u32::from_str_radix(flags, 16).ok());
        let Some(name) = fields.nth(3).and_then(|name| name.strip_prefix('@')) else { continue };
        if let Some((_, pid)) = parts(name)
            && flags.is_some_and(|flags| flags & LISTENS != 0)
        {
            found.entry(pid).or_default().insert(name.to_owned());
        }
    }
    found
}

/// User and process of a control socket's name: `farshore-UID-PID`, which goes on by a number where that name was taken.
fn parts(name: &str) -> Option<(u32, u32)> {
    let (user, rest) = name.strip_prefix("farshore-")?.split_once('-')?;
    let pid = rest.split_once('-').map_or(rest, |(pid, _)| pid);
    Some((user.parse().ok()?, pid.parse().ok()?))
}

fn is_of(name: &str, users: &BTreeSet<u32>) -> bool {
    parts(name).is_some_and(|(user, _)| users.contains(&user))
}

fn effective_user(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// When process `pid` was started, in the kernel's ticks; none, if there is none.
///
/// # Errors
/// This process lacks what it takes to look.
pub fn started(pid: u32) -> io::Result<Option<u64>> {
    Ok(if_there(told(pid, "stat"))?.and_then(|stat| started_in(&stat)))
}

/// The memory limit of the options in an environment.
fn limit_in(environment: &[u8]) -> Option<u64> {
    let value = |variable: &[u8]| variable.strip_prefix(OPTIONS_VARIABLE.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec);
    let options = environment.split(|byte| *byte == 0).find_map(value)?;
    let options = Options::from_json(&String::from_utf8(options).ok()?).ok()?;
    // Of a budget it has taken the least, until it wakes.
    Some(if options.budget.is_some() { options.least_memory() } else { options.memory }.bytes())
}

/// The name in `/proc/PID/stat`, which may hold anything, even `)`.
fn name_in(stat: &str) -> Option<&str> {
    stat.split_once('(')?.1.rsplit_once(')').map(|(name, _)| name)
}

/// When the process was started: field 22.
fn started_in(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_listen_are_found_in_the_kernels_list() {
        let list = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0: 00000002 00000000 00010000 0001 01 1 @farshore-0-77\n\
            0: 00000002 00000000 00010000 0001 01 2 @farshore-1000-77-00ab\n\
            0: 00000003 00000000 00000000 0001 03 3 @farshore-0-78\n\
            0: 00000002 00000000 00010000 0001 01 4 @farshore-0-79x\n\
            0: 00000002 00000000 00010000 0001 01 5 @farshore-0\n\
            0: 00000002 00000000 00010000 0001 01 6 farshore-0-80\n\
            0: 00000002 00000000 zzz 0001 01 7 @farshore-0-81\n\
            0: 00000002 00000000 00010000 0001 01 8\n";
        let names = ["farshore-0-77", "farshore-1000-77-00ab"].map(String::from);
        assert_eq!(listening(list), BTreeMap::from([(77, BTreeSet::from(names.clone()))]));
        let of = |user| names.iter().filter(|name| is_of(name, &BTreeSet::from([0, user]))).count();
        assert_eq!((of(1000), of(1001)), (2, 1));
    }

    #[test]
    fn a_name_may_hold_anything() {
        let stat = "4242 (a) S (b) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21";
        assert_eq!((name_in(stat), started_in(stat)), (Some("a) S (b"), Some(19)));
        assert_eq!((name_in("4242"), started_in("4242 (a) S 1")), (None, None));
        assert_eq!(effective_user("Uid:\t1\t2\t3\t4\n"), Some(2));
    }

    #[test]
    fn the_limit_is_in_the_environment() {
        let options = r#"{"memory":67108864,"swap":["dir:/var/tmp"]}"#;
        let environment = format!("A=1\0FARSHORE_OPTIONSX=2\0{OPTIONS_VARIABLE}={options}\0B=\0");
        let read = Options::from_json(options).map(|options| options.memory.bytes());
        assert_eq!(limit_in(environment.as_bytes()), read.ok());
        assert_eq!((limit_in(b"A=1\0"), limit_in(b"FARSHORE_OPTIONS={\0")), (None, None));
    }

    #[test]
    fn a_process_without_farshore_is_none() {
        let user = rustix::process::geteuid().as_raw();
        let of =
            |user| of_user(user).expect("there are descriptors").into_iter().any(|program| program.pid == std::process::id());
        assert!(!of(user) && !of(user + 1));
    }
}
