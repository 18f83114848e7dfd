//! The client's process, as the kernel shows it.

use std::fs;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use farshore_command::process::told;
use farshore_sys::fd::is_description_of;
use farshore_sys::raw;
use farshore_sys::uffd::{Features, Uffd};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{UnixCredentials, getsockopt};
use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};

use crate::memory::{Backing, Identity, own_path};
use crate::regions::{self, Mapping};
use crate::wire::{Handed, Restored};

/// The process at the other end of a connection.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    pidfd: OwnedFd,
}

/// Who is at the other end of a connection, if it may hand memory over: a process of this one's user. Its number, which is 0 in another PID namespace.
///
/// # Errors
/// One line: who it is.
pub fn peer(socket: &impl AsFd) -> Result<i32, String> {
    let peer =
        getsockopt(&socket.as_fd(), PeerCredentials).map_err(|errno| format!("who has connected is not known ({errno})"))?;
    check_user(peer, geteuid().as_raw())
}

fn check_user(peer: UnixCredentials, own: u32) -> Result<i32, String> {
    let (pid, user) = (peer.pid(), peer.uid());
    if user == own {
        return Ok(pid);
    }
    Err(format!(
        "process {pid} of user {user} has connected: only those of user {own} may hand memory over; start a manager as that user"
    ))
}

impl Process {
    /// The process that has made this connection.
    ///
    /// # Errors
    /// One line: it may not hand memory over, or has ended.
    pub fn behind(socket: &impl AsFd) -> Result<Process, String> {
        let number = peer(socket)?;
        let pid = Pid::from_raw(number).ok_or("its process is in another PID namespace: start a manager in that one")?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| format!("process {number} has ended ({errno})"))?;
        Ok(Process { pid, pidfd })
    }

    /// The process that has made this connection, by a descriptor of it that was opened when it did.
    ///
    /// # Errors
    /// One line: it is in another PID namespace.
    pub fn kept(socket: &impl AsFd, pidfd: OwnedFd) -> Result<Process, String> {
        let pid = Pid::from_raw(peer(socket)?).ok_or("its process is in another PID namespace: start a manager in that one")?;
        Ok(Process { pid, pidfd })
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.pid.as_raw_pid()
    }

    /// Can be read when the process has ended.
    #[must_use]
    pub fn end(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    fn path(&self, what: &str) -> PathBuf {
        format!("/proc/{}/{what}", self.number()).into()
    }

    /// All its mappings.
    ///
    /// # Errors
    /// One line: this process may not look at it.
    pub fn mappings(&self) -> Result<Vec<Mapping>, String> {
        let text = fs::read(self.path("maps")).map_err(|error| {
            format!(
                "what process {} has mapped cannot be read ({error}): a program with capabilities of its file (setcap) is hidden from its user, and a sandbox may hide it too; \
                 give the manager's file the same ones, or take them away",
                self.number()
            )
        })?;
        // Names of files may be no text; nobody asks for them.
        Ok(String::from_utf8_lossy(&text).lines().filter_map(Mapping::parse).collect())
    }

    /// Makes sure that regions which a userfaultfd has registered are this process', and have no huge pages.
    ///
    /// # Errors
    /// One line: what they have in their place.
    pub fn check_registered(&self, regions: &[Handed]) -> Result<(), String> {
        let text = fs::read(self.path("smaps")).map_err(|error| {
            format!(
                "what process {} has registered cannot be read ({error}): has the kernel CONFIG_PROC_PAGE_MONITOR?",
                self.number()
            )
        })?;
        regions::check_registered(regions, &String::from_utf8_lossy(&text))
    }

    /// The same for memory that is filled alone ([`regions::check_told`]).
    ///
    /// # Errors
    /// One line: what they have in their place.
    pub fn check_told(&self, regions: &[Restored]) -> Result<(), String> {
        let text = fs::read(self.path("smaps"))
            .map_err(|error| format!("what process {} has registered cannot be read ({error})", self.number()))?;
        regions::check_told(regions, &String::from_utf8_lossy(&text))
    }

    /// Makes sure that the process keeps a descriptor of a userfaultfd that it has sent. With the last descriptor its memory becomes ordinary memory, and a page that is out zeros:
    /// that must not happen when a manager is killed.
    ///
    /// # Errors
    /// One line: it does not, or this process may not look.
    pub fn keeps(&self, uffd: &OwnedFd) -> Result<(), String> {
        let failed = |why: String| format!("which descriptors process {} has cannot be found out ({why})", self.number());
        let entries = fs::read_dir(self.path("fd")).map_err(|error| failed(error.to_string()))?;
        let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        for number in numbers {
            match is_description_of(self.number().unsigned_abs(), number, uffd.as_fd()) {
                Ok(true) => return Ok(()),
                // Or it was closed meanwhile.
                Ok(false) | Err(raw::Errno::EBADF) => {}
                // A kernel that cannot tell: whether it keeps one is its affair.
                Err(raw::Errno::ENOSYS) => return Ok(()),
                Err(errno) => return Err(failed(errno.to_string())),
            }
        }
        Err("it has closed its userfaultfd: keep a descriptor of it open, or pages that are out would be zeros if the manager were killed".into())
    }

    /// Opens the file of a region, which is known to be `identity`: by one of the descriptors that came along, one that the process has open, or by its mapping.
    ///
    /// # Errors
    /// One line: it cannot be opened, or cannot be managed.
    pub fn open(&self, region: &Handed, identity: Identity, passed: &[OwnedFd]) -> Result<Backing, String> {
        let is_it = |path: &PathBuf| fs::metadata(path).is_ok_and(|data| (data.dev(), data.ino()) == identity);
        let own = fs::read_dir(self.path("fd")).into_iter().flatten().flatten().map(|entry| entry.path());
        let found = passed.iter().map(own_path).chain(own).find(is_it);
        // This one is for privileged users alone.
        let by_mapping = || {
            let folder = fs::read_dir(self.path("map_files")).ok()?;
            folder.flatten().map(|entry| entry.path()).find(is_it)
        };
        let path = found.or_else(by_mapping).ok_or_else(|| {
            format!(
                "{region}: its file is not among the descriptors that came along, nor among those of process {}: send it along",
                self.number()
            )
        })?;
        let backing = Backing::open(&path).map_err(|why| format!("{region}: {why}"))?;
        if backing.identity() == identity { Ok(backing) } else { Err(format!("{region}: its file was closed meanwhile")) }
    }
}

/// What a process is called, as `ps` says it.
#[must_use]
pub fn name(pid: i32) -> String {
    told(pid.cast_unsigned(), "comm").map_or_else(|_| "?".into(), |name| name.trim_end().into())
}

/// Processor time that a process has used, all its threads, ns; 0 when it has ended.
#[must_use]
pub fn processor_ns(pid: i32) -> u64 {
    let stat = told(pid.cast_unsigned(), "stat").unwrap_or_default();
    // Behind its name, which may have any bytes: the times of user and kernel are the 14th and 15th field of all.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = fields.split_ascii_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    ticks * (1_000_000_000 / rustix::param::clock_ticks_per_second().max(1))
}

/// Memory of this process that is in RAM, bytes.
#[must_use]
pub fn resident_bytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split_ascii_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Takes a userfaultfd that came over a connection. `served`: events that are served beside faults; reads wait, unless there are some.
///
/// # Errors
/// One line: it is none, or reports faults in another way than by messages.
pub fn userfaultfd(fd: OwnedFd, served: Features) -> Result<Uffd, String> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))
        .map_err(|error| format!("what its descriptor is cannot be read ({error}): is /proc mounted?"))?;
    check_features(features(&text)?, served)?;
    // Reads wait from now on, each in a thread of its own; or one thread waits for several things.
    let wanted = |flags| if served.is_empty() { flags - OFlags::NONBLOCK } else { flags | OFlags::NONBLOCK };
    let flags = rustix::fs::fcntl_getfl(&fd).and_then(|flags| rustix::fs::fcntl_setfl(&fd, wanted(flags)));
    flags.map_err(|errno| format!("its userfaultfd cannot be made to wait ({errno})"))?;
    Ok(Uffd::adopt(fd.into()))
}

/// The features that a userfaultfd was opened with, by what `/proc` tells of the descriptor.
fn features(fdinfo: &str) -> Result<Features, String> {
    // `API:	aa:FEATURES:ALL`, all in hexadecimal.
    let features = fdinfo.lines().find_map(|line| line.strip_prefix("API:")?.trim().split(':').nth(1));
    let features = features.and_then(|features| u64::from_str_radix(features, 16).ok());
    features.map(Features).ok_or_else(|| "the first descriptor that came along is no userfaultfd".into())
}

fn check_features(features: Features, served: Features) -> Result<(), String> {
    // The kernel's own note that there was a handshake (`UFFDIO_API`).
    const INITIALIZED: Features = Features(1 << 31);
    for (unwanted, why) in [
        (Features::SIGBUS, "its faults raise signals, of which nobody else hears: open it without SIGBUS"),
        (Features::WP_ASYNC, "nobody hears of writes to protected pages: open it without WP_ASYNC"),
        (
            Features::EVENTS,
            "its process would wait for answers to forks, moves and removals, which are not served yet: open it without these events",
        ),
    ] {
        let has = features.and(unwanted).without(served);
        if !has.is_empty() {
            return Err(format!("its userfaultfd has {has}: {why}"));
        }
    }
    if !features.contains(INITIALIZED) {
        return Err("its userfaultfd was not made ready (UFFDIO_API)".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_sys::uffd::UffdOptions;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;
    use std::process::Stdio;

    #[test]
    fn who_has_connected() {
        let (here, _there) = UnixStream::pair().expect("it can be made");
        let process = Process::behind(&here).expect("it is this one");
        assert_eq!(process.number() as u32, std::process::id());
        assert!(process.mappings().expect("it may look at itself").len() > 3);
        let (kept, other) = (std::fs::File::open("/dev/zero"), std::fs::File::open("/dev/zero"));
        let [kept, other] = [kept, other].map(|file| OwnedFd::from(file.expect("it is there")));
        let copy = kept.try_clone().expect("there is a number");
        assert_eq!((process.keeps(&copy), process.keeps(&other)), (Ok(()), Ok(())), "a process keeps its own");
        let mut child = std::process::Command::new("cat");
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it can be made");
        // `spawn` returns before the kernel has closed what a started program does not keep. A program that answers has come so far.
        child.stdin.as_mut().expect("it is a pipe").write_all(b"?").expect("it reads");
        child.stdout.as_mut().expect("it is a pipe").read_exact(&mut [0]).expect("it answers");
        let pid = Pid::from_child(&child);
        let second = Process { pid, pidfd: pidfd_open(pid, PidfdFlags::empty()).expect("it is there") };
        match is_description_of(child.id(), 0, copy.as_fd()) {
            Err(raw::Errno::ENOSYS) => println!("skipped: the kernel has no kcmp(2)"),
            _ => assert!(second.keeps(&copy).is_err_and(|why| why.contains("has closed its userfaultfd"))),
        }
        child.kill().and_then(|()| child.wait()).expect("it is ours");
        let peer = getsockopt(&here, PeerCredentials).expect("it is known");
        assert_eq!(check_user(peer, peer.uid()), Ok(peer.pid()));
        assert!(check_user(peer, peer.uid() + 1).is_err_and(|why| why.contains(&format!("of user {}", peer.uid()))));
    }

    #[test]
    fn what_a_descriptor_is() {
        let (uffd, _) = Uffd::open(UffdOptions::UPCALL).expect("every user may have one");
        let one = uffd.fd().as_fd().try_clone_to_owned().expect("there is a number for it");
        assert!(userfaultfd(one, Features::default()).is_err_and(|why| why.contains("has SIGBUS")));
        let zero = std::fs::File::open("/dev/zero").expect("it is there");
        assert!(userfaultfd(zero.into(), Features::default()).is_err_and(|why| why.contains("no userfaultfd")));
        for (text, part) in [("", "no userfaultfd"), ("API:\tzz", "no userfaultfd")] {
            assert!(features(text).is_err_and(|why| why.contains(part)), "{text}");
        }
        let of = |text: &str| features(text).and_then(|all| check_features(all, Features::default()));
        let line = |bits: u32| format!("pos:\t0\npending:\t0\ntotal:\t0\nAPI:\taa:{bits:x}:1ffff\n");
        assert_eq!(of(&line(1 << 31 | 0x3001)), Ok(()));
        for (bits, part) in [
            (0, "not made ready"),
            (1 << 31 | 1 << 15, "WP_ASYNC"),
            (1 << 31 | 1 << 3, "EVENT_REMOVE"),
            (1 << 31 | 1 << 1, "EVENT_FORK"),
        ] {
            assert!(of(&line(bits)).is_err_and(|why| why.contains(part)), "{part}");
        }
        let fills = |bits| features(&line(bits)).and_then(|all| check_features(all, Features::EVENT_REMOVE));
        assert_eq!(fills(1 << 31 | 1 << 3), Ok(()));
        assert!(fills(1 << 31 | 1 << 3 | 1 << 2).is_err_and(|why| why.contains("EVENT_REMAP") && !why.contains("EVENT_REMOVE")));
    }
}
