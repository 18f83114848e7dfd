//! What the kernel tells of a process, as text.
//!
//! A process may have any bytes in its name, and so may a file that it has mapped. Often it is the kernel that makes them so: it keeps
//! the first 15 bytes of a program's name, and a letter of two bytes may lie across that. What is wanted of such a file are its other
//! fields, so bytes that are no text are replaced, and the rest is read.
//!
//! # What may never be answered
//!
//! `status`, `stat` and `comm` the kernel tells from its own memory, at once. For `cmdline`, `environ`, `maps`, `smaps` and `pagemap` it takes the lock of the process'
//! mappings; and what runs (`exe`), or is mapped, may lie in a file system whose server does not answer. A process that waits for such a file system while it has its lock, on
//! purpose or not, keeps whoever reads these waiting for ever. Every user can make one. So all that is not the kernel's own is asked by [`ask`], with a time limit, and
//! [`told`] knows which is which.

mod asked;

use std::io::{self, ErrorKind};
use std::time::Duration;

pub use asked::ask;
use rustix::io::Errno;

/// How long the kernel may take to tell something small of a process' memory.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// The file `/proc/PID/FILE` as text; bytes that are none become U+FFFD.
///
/// # Errors
/// There is no such process, or it may not be looked at; or the kernel does not tell it in time ([`ask`]).
pub fn told(pid: u32, file: &str) -> io::Result<String> {
    told_within(pid, file, PATIENCE)
}

/// The same, with more time: for what is long.
///
/// # Errors
/// As [`told`].
pub fn told_within(pid: u32, file: &str, patience: Duration) -> io::Result<String> {
    bytes_within(pid, file, patience).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The file `/proc/PID/FILE`.
///
/// # Errors
/// As [`told`].
pub fn bytes(pid: u32, file: &str) -> io::Result<Vec<u8>> {
    bytes_within(pid, file, PATIENCE)
}

fn bytes_within(pid: u32, file: &str, patience: Duration) -> io::Result<Vec<u8>> {
    let path = format!("/proc/{pid}/{file}");
    if is_the_kernels_own(file) { std::fs::read(path) } else { ask(pid, patience, move || std::fs::read(path)) }
}

/// Whether the kernel tells it from its own memory: of a process, or of one of its threads (`task/TID/status`).
fn is_the_kernels_own(file: &str) -> bool {
    matches!(file.rsplit('/').next(), Some("status" | "stat" | "comm"))
}

/// Whether something is only not known now: the kernel did not tell it in time, or this process lacks what it takes to ask (descriptors, memory, a thread). Other errors say that the process
/// has ended, or may not be looked at.
#[must_use]
pub fn is_unknown_now(error: &io::Error) -> bool {
    is_late(error) || remedy(error).is_some()
}

/// Whether the kernel did not tell something in time.
#[must_use]
pub fn is_late(error: &io::Error) -> bool {
    error.kind() == ErrorKind::TimedOut
}

/// What helps where something could not be asked for lack of something.
#[must_use]
pub fn remedy(error: &io::Error) -> Option<&'static str> {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    match errno {
        Some(Errno::MFILE | Errno::NFILE) => Some("raise the limits of open files (ulimit -n, fs.file-max)"),
        Some(Errno::NOMEM | Errno::NOBUFS) => Some("is there memory left?"),
        Some(Errno::AGAIN) => Some("raise the limits of processes (ulimit -u, pids.max)"),
        _ => None,
    }
}

/// What was told; none, if the process has ended or may not be looked at.
///
/// # Errors
/// It is not known now ([`is_unknown_now`]).
pub fn if_there<T>(told: io::Result<T>) -> io::Result<Option<T>> {
    match told {
        Ok(it) => Ok(Some(it)),
        Err(error) if is_unknown_now(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// The word behind which a manager of a virtual machine's memory finds its options and the number of the process whose memory it has: a client of
/// `farshore manage`, or the QEMU of `farshore vm run`.
pub const CLIENT: &str = "--client";
/// The same of the process that keeps a manager: of a client of `farshore manage`.
pub const KEEPER: &str = "--keep";
/// See [`KEEPER`]: of the QEMU of `farshore vm run`, which has not connected yet.
pub const ONE: &str = "--one";

/// The processes that were started as managers of the memory of process `pid`, of those that `may` be. Everybody may start a process with such words, so `may` makes sure whose it
/// is: before it is asked for its words, as another user's need not answer.
pub fn managers_of(pid: u32, may: impl Fn(u32) -> bool) -> impl Iterator<Item = u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.filter(move |&number| may(number) && told(number, "cmdline").is_ok_and(|line| is_manager(&line, pid)))
}

/// The process whose memory process `manager` was started for, if it is such a manager. It may have ended.
///
/// # Errors
/// It is not known now ([`is_unknown_now`]).
pub fn managed_by(manager: u32) -> io::Result<Option<u32>> {
    Ok(if_there(told(manager, "cmdline"))?.and_then(|line| client_in(&line)))
}

fn is_manager(line: &str, pid: u32) -> bool {
    client_in(line) == Some(pid)
}

fn client_in(line: &str) -> Option<u32> {
    let words: Vec<&str> = line.split_terminator('\0').collect();
    match words[..] {
        [_, CLIENT, _, client] => client.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::io::{Read as _, Write as _};
    use std::os::unix::ffi::OsStrExt;
    use std::process::{Command, Stdio};

    #[test]
    fn managers_are_known_by_their_command_line() {
        assert!(is_manager("/proc/self/exe\x00--client\x00{}\x004711\x00", 4711));
        for other in [
            "",
            "x\x00--client\x00{}\x004712\x00",
            "x\x00--one\x00{}\x004711\x00",
            "x\x00--keep\x00{}\x004711\x00",
            "x\x00--beside\x00{}\x004711\x00",
            "x\x00--client\x00{}\x004711\x00more\x00",
            "x\x00--client\x004711\x00",
        ] {
            assert!(!is_manager(other, 4711), "{other:?}");
        }
        assert_eq!(managers_of(2_000_000_000, |_| true).count(), 0);
    }

    #[test]
    fn what_is_lacking_is_not_taken_for_an_end() {
        let of = |errno: Errno| is_unknown_now(&errno.into());
        assert!([Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN].into_iter().all(of));
        assert!(![Errno::NOENT, Errno::SRCH, Errno::ACCESS, Errno::IO].into_iter().any(of));
        let late = io::Error::from(ErrorKind::TimedOut);
        assert!(is_unknown_now(&late) && is_late(&late) && !is_late(&Errno::MFILE.into()));
        assert_eq!(if_there(Err::<(), _>(Errno::SRCH.into())).expect("it has ended"), None);
        assert!(if_there(Err::<(), _>(Errno::NFILE.into())).is_err() && if_there(Ok(1)).is_ok_and(|it| it == Some(1)));
    }

    #[test]
    fn what_takes_a_lock_of_the_process_is_known() {
        for own in ["status", "stat", "comm", "task/7/status"] {
            assert!(is_the_kernels_own(own), "{own}");
        }
        for its in ["cmdline", "environ", "maps", "smaps", "pagemap", "exe", "status/maps"] {
            assert!(!is_the_kernels_own(its), "{its}");
        }
    }

    #[test]
    fn a_process_with_any_bytes_in_its_name_is_told_of() {
        let folder = std::env::temp_dir().join(format!("farshore-process-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("it is new");
        let program = folder.join(OsStr::from_bytes(b"name \xff) Z"));
        std::fs::copy("/bin/cat", &program).expect("there is room");
        let mut child = Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it can be run");
        // `spawn` returns when the kernel has the old program's memory away, before it has mapped the new one. A program that answers is there.
        child.stdin.as_mut().expect("it is a pipe").write_all(b"?").expect("it reads");
        child.stdout.as_mut().expect("it is a pipe").read_exact(&mut [0]).expect("it answers");
        let texts = ["status", "stat", "maps"].map(|file| told(child.id(), file));
        child.kill().expect("it runs");
        child.wait().expect("it has ended");
        std::fs::remove_dir_all(&folder).expect("it is this test's");
        let [status, stat, maps] = texts.map(|text| text.expect("it was there"));
        assert!(status.starts_with("Name:\tname \u{fffd}) Z\n") && status.contains("\nUid:\t"), "{status}");
        assert!(stat.contains("(name \u{fffd}) Z) "), "{stat}");
        assert!(maps.contains("/name \u{fffd}) Z\n"), "{maps}");
        // Beyond the kernel's largest process id.
        assert_eq!(told(2_000_000_000, "stat").expect_err("it is not there").kind(), io::ErrorKind::NotFound);
    }
}
