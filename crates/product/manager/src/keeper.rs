//! The keeper: a process that does nothing but to wait for the end of a manager, which is its child, and to start the next one.
//!
//! ```text
//!  keeper ──starts──▶ manager                      keeper ──starts──▶ the next one
//!    ▲  ◀─ what must outlive it, as descriptors ─┘   └─ all of them, and which they are ─▶
//! ```
//!
//! A manager sends its keeper a descriptor of each thing that must outlive it, under a name ([`Kept`]): the connection and the process of its client, the userfaultfd, the files of the memory, the swap
//! files, and the memory of its tables. What is sent is the kernel's from then on, so it arrives even if the sender is killed at once. A manager that ends by itself is done. One that a signal ends
//! is replaced if it has sent its tables.
//!
//! The keeper has no memory to speak of, so a machine that is short of memory has no reason to kill it. If somebody does, the manager goes on, and will not be replaced.
//!
//! # How often
//!
//! A manager that ends again and again within a second is not replaced for ever: there is a pause before each, twice as long as the last one, and after [`QUICK_MAX`] of them no other one comes.

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use farshore_command::say::tell;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Pid, PidfdFlags, Resource, Signal, getrlimit, kill_process, pidfd_open, setrlimit};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::process::Process;

/// A manager that ends within this time has not got anywhere.
const QUICK: Duration = Duration::from_secs(1);
/// So many of them, one after the other, are enough.
const QUICK_MAX: u32 = 12;
/// The pause behind the first of them, and the longest one.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The most descriptors under one name (`SCM_MAX_FD`).
const AT_ONCE: usize = 253;
/// The longest name.
const NAME_MAX: usize = 64;
/// The name under which nothing is kept: all that there is has been sent; or the manager obeys signals from now on.
const READY: &str = "ready";

/// What must outlive a manager, by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    /// The connection to the client.
    Connection,
    /// The client's process.
    Client,
    /// A process at whose end standard error is to be left, if there is one.
    Caller,
    /// The client's userfaultfd.
    Uffd,
    /// A file of the client's memory, by device and inode.
    Memory(u64, u64),
    /// The swap files, in order.
    Swap,
    /// The memory of the manager's tables. Sent last: whoever has it can take over.
    Tables,
}

impl Kept {
    fn name(self) -> String {
        match self {
            Kept::Connection => "connection".into(),
            Kept::Client => "client".into(),
            Kept::Caller => "caller".into(),
            Kept::Uffd => "uffd".into(),
            Kept::Memory(device, inode) => format!("memory {device} {inode}"),
            Kept::Swap => "swap".into(),
            Kept::Tables => "tables".into(),
        }
    }
}

type Things = BTreeMap<String, Vec<OwnedFd>>;

/// Sends descriptors under a name. One that is there under the name is replaced.
fn send(socket: BorrowedFd<'_>, name: &str, descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::TOOBIG);
    }
    loop {
        match sendmsg(socket, &[IoSlice::new(name.as_bytes())], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            other => return other.map(drop),
        }
    }
}

/// The next message; `None`: the other end is closed, or nothing has come and nobody waits.
fn receive(socket: BorrowedFd<'_>, wait: bool) -> Result<Option<(String, Vec<OwnedFd>)>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut name = [0; NAME_MAX];
    let flags = if wait { RecvFlags::CMSG_CLOEXEC } else { RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT };
    let got = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut name)], &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN | Errno::CONNRESET) => return Ok(None),
            other => break other?,
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(all) = message {
            descriptors.extend(all);
        }
    }
    if got.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::MFILE);
    }
    Ok((got.bytes > 0).then(|| (String::from_utf8_lossy(&name[..got.bytes]).into_owned(), descriptors)))
}

/// The manager's end.
#[derive(Debug)]
pub struct Keeper {
    socket: OwnedFd,
    things: Mutex<Things>,
}

impl Keeper {
    /// Takes what the keeper has, at the start of a manager.
    ///
    /// # Errors
    /// One line: it cannot be had.
    pub fn meet(socket: OwnedFd) -> Result<Keeper, String> {
        let mut things = Things::new();
        loop {
            match receive(socket.as_fd(), true) {
                Ok(Some((name, _))) if name == READY => return Ok(Keeper { socket, things: Mutex::new(things) }),
                Ok(Some((name, descriptors))) => _ = things.insert(name, descriptors),
                Ok(None) => return Err("its keeper has ended before it has said what there is".into()),
                Err(errno) => return Err(format!("what its keeper has cannot be had ({errno})")),
            }
        }
    }

    fn things(&self) -> std::sync::MutexGuard<'_, Things> {
        self.things.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was kept under a name, once.
    pub fn take(&self, what: Kept) -> Vec<OwnedFd> {
        self.things().remove(&what.name()).unwrap_or_default()
    }

    /// The one descriptor under a name, once.
    pub fn take_one(&self, what: Kept) -> Option<OwnedFd> {
        self.take(what).pop()
    }

    /// Has descriptors kept, in place of those that are there under the name; none: nothing is kept under it. A keeper that has ended keeps nothing, and that is all.
    ///
    /// # Errors
    /// One line: they are too many.
    pub fn keep(&self, what: Kept, descriptors: &[BorrowedFd<'_>]) -> Result<(), String> {
        match send(self.socket.as_fd(), &what.name(), descriptors) {
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Ok(()),
            Err(errno) => Err(format!("what must outlive the manager cannot be kept ({errno}): raise the limit of open files")),
        }
    }

    /// Signals are obeyed from now on.
    pub fn obeys(&self) {
        _ = send(self.socket.as_fd(), READY, &[]);
    }
}

/// To whom signals go that the keeper gets.
#[derive(Debug, Default)]
struct Forward {
    to: Option<Pid>,
    /// A manager that has just begun would end by a signal.
    obeys: bool,
    /// What has come meanwhile.
    waiting: Vec<i32>,
}

impl Forward {
    /// There is a manager, which does not obey yet.
    fn begin(&mut self, manager: Pid) {
        (self.to, self.obeys) = (Some(manager), false);
    }

    /// There is none.
    fn end(&mut self) {
        (self.to, self.obeys) = (None, false);
    }

    fn send(&mut self, number: i32) {
        match (self.to, Signal::from_named_raw(number)) {
            (Some(pid), Some(signal)) if self.obeys => _ = kill_process(pid, signal),
            // Nobody needs a line about what is not there.
            (_, Some(signal)) if signal != Signal::USR1 => self.waiting.push(number),
            _ => {}
        }
    }
}

/// How a manager has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// By itself, with this status: its client has ended, or has its memory back, or was refused.
    Done(u8),
    /// It was ended, or has failed in the middle.
    Failed,
}

/// A status above 128 is that of a manager that was told to end, and has given everything back.
fn end_of(status: ExitStatus, has_tables: bool) -> End {
    match status.code().map(|code| u8::try_from(code).unwrap_or(u8::MAX)) {
        Some(code) if code == 0 || code > 128 || !has_tables => End::Done(code),
        _ => End::Failed,
    }
}

/// How long to wait before the next one begins, when so many have ended at once; `None`: there is to be none.
fn pause_behind(quick: u32) -> Option<Duration> {
    match quick {
        0 => Some(Duration::ZERO),
        QUICK_MAX.. => None,
        _ => Some(PAUSE.saturating_mul(1 << (quick - 1)).min(PAUSE_MAX)),
    }
}

/// Starts managers of a client's memory, one after the other, until one is done; its exit status. `start` starts one, with this socket as its input. `caller`: see [`Kept::Caller`].
///
/// # Errors
/// One line: there is none to be had.
pub fn keep(
    connection: OwnedFd,
    caller: Option<OwnedFd>,
    start: impl Fn(OwnedFd) -> std::io::Result<Child>,
) -> Result<u8, String> {
    let client = Process::behind(&connection)?;
    let number = client.number();
    let mut things = Things::new();
    let client_end = client.end().try_clone_to_owned().map_err(|error| format!("no descriptor is left ({error})"))?;
    things.insert(Kept::Connection.name(), vec![connection]);
    things.insert(Kept::Client.name(), vec![client_end]);
    if let Some(caller) = caller {
        things.insert(Kept::Caller.name(), vec![caller]);
    }
    // A guest may have many files.
    let files = getrlimit(Resource::Nofile);
    _ = setrlimit(Resource::Nofile, rustix::process::Rlimit { current: files.maximum, ..files });
    let forward = forward_signals()?;
    let mut quick = 0;
    loop {
        let began = Instant::now();
        let ended = run_one(&mut things, &forward, &start);
        let has_tables = things.contains_key(&Kept::Tables.name());
        let how = match ended {
            Ok(status) => match (end_of(status, has_tables), status.signal()) {
                (End::Done(code), _) => return Ok(code),
                (End::Failed, Some(signal)) => format!("was ended by signal {signal}"),
                (End::Failed, None) => format!("has failed ({status})"),
            },
            // A machine that was so short of memory that the last one was killed may have none for the next one yet.
            Err(why) if has_tables => format!("cannot be started ({why})"),
            Err(why) => return Err(format!("no manager can be started ({why})")),
        };
        if has_ended(client.end()) {
            return Ok(0);
        }
        let waits = format!("whoever needs a page that is out waits for ever; end process {number}");
        if !has_tables {
            tell(&format!("the manager of process {number} {how}, and cannot be replaced: {waits}"));
            return Ok(1);
        }
        quick = if began.elapsed() < QUICK { quick + 1 } else { 0 };
        let Some(pause) = pause_behind(quick) else {
            tell(&format!(
                "the manager of process {number} {how}, as {QUICK_MAX} in a row at once, and is not replaced again: {waits}"
            ));
            return Ok(1);
        };
        tell(&format!("the manager of process {number} {how}: another one takes over"));
        std::thread::sleep(pause);
    }
}

/// Signals go to the manager. Two are the keeper's own: one that ignores the ends of its children, as it may have inherited it, hears of none; and a line that nobody reads any more must not end it.
fn forward_signals() -> Result<Arc<Mutex<Forward>>, String> {
    const OWN: [i32; 2] = [SIGCHLD, SIGPIPE];
    let all = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1].into_iter().chain(OWN);
    let mut signals = Signals::new(all).map_err(|why| format!("cannot listen for signals ({why})"))?;
    let forward = Arc::new(Mutex::new(Forward::default()));
    let theirs = forward.clone();
    let send = move || {
        let theirs = |signal| theirs.lock().unwrap_or_else(PoisonError::into_inner).send(signal);
        signals.forever().filter(|signal| !OWN.contains(signal)).for_each(theirs);
    };
    std::thread::Builder::new().spawn(send).map_err(|why| format!("no thread can be made ({why})"))?;
    Ok(forward)
}

fn has_ended(process: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::from_borrowed_fd(process, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
}

/// Starts a manager, keeps what it sends, and waits for its end.
fn run_one(
    things: &mut Things,
    forward: &Mutex<Forward>,
    start: &impl Fn(OwnedFd) -> std::io::Result<Child>,
) -> std::io::Result<ExitStatus> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let mut child = start(theirs)?;
    let locked = || forward.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = Pid::from_child(&child);
    locked().begin(pid);
    let end = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(end) => end,
        // It has got nothing yet.
        Err(errno) => {
            locked().end();
            child.kill().and_then(|()| child.wait())?;
            return Err(errno.into());
        }
    };
    let sent =
        things.iter().try_for_each(|(name, all)| send(ours.as_fd(), name, &all.iter().map(AsFd::as_fd).collect::<Vec<_>>()));
    if sent.and_then(|()| send(ours.as_fd(), READY, &[])).is_err() {
        // It has ended already, or too many descriptors are under way: it would wait for ever for the rest.
        _ = child.kill();
    }
    loop {
        let mut wanted = [PollFd::new(&ours, PollFlags::IN), PollFd::new(&end, PollFlags::IN)];
        match poll(&mut wanted, None) {
            Ok(_) | Err(Errno::INTR) => {}
            // The kernel has no memory for it.
            Err(_) => std::thread::sleep(PAUSE),
        }
        let ended = !wanted[1].revents().is_empty();
        // All that it has sent before its end.
        loop {
            match receive(ours.as_fd(), false) {
                Ok(None) => break,
                Ok(Some((name, _))) if name == READY => {
                    let mut forward = locked();
                    forward.obeys = true;
                    std::mem::take(&mut forward.waiting).into_iter().for_each(|number| forward.send(number));
                }
                Ok(Some((name, descriptors))) if descriptors.is_empty() => _ = things.remove(&name),
                Ok(Some((name, descriptors))) => _ = things.insert(name, descriptors),
                Err(errno) => {
                    tell(&format!("what must outlive a manager cannot be kept ({errno}): it will not be replaced"));
                    things.remove(&Kept::Tables.name());
                }
            }
        }
        if ended {
            // Before the number may become another's.
            locked().end();
            return child.wait();
        }
        if !wanted[0].revents().is_empty() && wanted[0].revents().contains(PollFlags::HUP) {
            // It has closed its end, and is about to end.
            _ = poll(&mut [PollFd::new(&end, PollFlags::IN)], None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    #[test]
    fn a_manager_that_ends_by_itself_is_done() {
        let status = |raw: i32| ExitStatus::from_raw(raw);
        for (raw, tables, expected) in [
            (0, true, End::Done(0)),
            (0, false, End::Done(0)),
            ((128 + 15) << 8, true, End::Done(143)),
            (1 << 8, false, End::Done(1)),
            // It has its client's memory, and could not go on.
            (1 << 8, true, End::Failed),
            (9, true, End::Failed),
            (9, false, End::Failed),
            (6, true, End::Failed),
        ] {
            assert_eq!(end_of(status(raw), tables), expected, "{raw:#x} {tables}");
        }
    }

    #[test]
    fn pauses_get_longer_and_end() {
        assert_eq!(pause_behind(0), Some(Duration::ZERO));
        let all: Vec<Duration> = (1..).map_while(pause_behind).collect();
        assert_eq!((all.len() as u32, all[0], all[1]), (QUICK_MAX - 1, PAUSE, 2 * PAUSE));
        assert!(all.is_sorted() && all.iter().all(|pause| *pause <= PAUSE_MAX));
    }

    fn shell(text: &'static str) -> impl Fn(OwnedFd) -> std::io::Result<Child> {
        move |socket| Command::new("sh").args(["-c", text]).stdin(Stdio::from(socket)).stdout(Stdio::null()).spawn()
    }

    #[test]
    fn who_was_never_given_memory_is_not_replaced() {
        let (here, _there) = UnixStream::pair().expect("it can be made");
        assert_eq!(keep(here.into(), None, shell("exit 7")), Ok(7));
        let (here, _there) = UnixStream::pair().expect("it can be made");
        assert_eq!(keep(here.into(), None, shell("kill -9 $$")), Ok(1));
    }

    /// A machine that was short of memory may be so for a moment more.
    #[test]
    fn one_that_cannot_be_started_is_tried_again() {
        let (here, _there) = UnixStream::pair().expect("it can be made");
        let file = std::fs::File::open("/dev/null").expect("it is there");
        let times = std::cell::Cell::new(0);
        let start = |socket: OwnedFd| {
            times.set(times.get() + 1);
            match times.get() {
                1 => {
                    // As one that has handed its tables over.
                    send(socket.as_fd(), &Kept::Tables.name(), &[file.as_fd()]).expect("there is room");
                    shell("kill -9 $$")(socket)
                }
                2 | 3 => Err(Errno::AGAIN.into()),
                _ => shell("exit 0")(socket),
            }
        };
        assert_eq!((keep(here.into(), None, start), times.get()), (Ok(0), 4));
    }

    #[test]
    fn what_is_kept_comes_back() {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a pair");
        let file = std::fs::File::open("/dev/null").expect("it is there");
        for what in [Kept::Memory(3, 4), Kept::Swap] {
            let count = if what == Kept::Swap { 3 } else { 1 };
            send(ours.as_fd(), &what.name(), &vec![file.as_fd(); count]).expect("there is room");
        }
        send(ours.as_fd(), READY, &[]).expect("there is room");
        let keeper = Keeper::meet(theirs).expect("all has come");
        assert_eq!((keeper.take(Kept::Swap).len(), keeper.take(Kept::Swap).len()), (3, 0));
        assert!(keeper.take_one(Kept::Memory(3, 4)).is_some() && keeper.take_one(Kept::Tables).is_none());
        keeper.obeys();
        assert_eq!(receive(ours.as_fd(), true).map(|came| came.map(|(name, _)| name)), Ok(Some(READY.into())));
        keeper.keep(Kept::Tables, &[file.as_fd()]).expect("there is room");
        drop(keeper);
        // Its sender has gone.
        let came = receive(ours.as_fd(), true).expect("it can be read").expect("it has come");
        assert_eq!((came.0.as_str(), came.1.len()), ("tables", 1));
        assert!(matches!(receive(ours.as_fd(), true), Ok(None)));
        let too_many = vec![file.as_fd(); AT_ONCE + 1];
        assert!(send(ours.as_fd(), "many", &too_many).is_err());
    }
}
