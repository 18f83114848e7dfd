//! `farshore vm run`: this process becomes QEMU, and beside it is a manager for the memory of its guest.
//!
//! ```text
//!  farshore vm run ─▶ listens, at an abstract socket of its own name
//!      ├─▶ [`BESIDE`]: a session of its own, so that no terminal's Ctrl-C reaches the manager; it holds on to this process (`pidfd`), and ends
//!      │      └─▶ [`ONE`]: takes one client from the socket, and keeps its manager as a process of `farshore manage` does. If QEMU ends before, so does it.
//!      └─▶ execve: QEMU, with libfarshore_agent.so, which connects when QEMU maps its guest's memory
//! ```
//!
//! The manager is nobody's child: QEMU would find one that it has not made. It ends when QEMU's process does, and QEMU's process is the one that was started, with its terminal,
//! its signals and its exit status.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Error, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use farshore_command::process::ONE;
use farshore_command::refusal::Refusal;
use farshore_command::say::tell;
use farshore_command::{handed, library};
use farshore_config::Named;
use farshore_manager::process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{Errno, FdFlags};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open, setsid};

use crate::args::{Prefetcher, VmRunArgs};
use crate::{qemu, start};

/// The word behind which the process between QEMU and its manager finds its options and QEMU's number.
pub const BESIDE: &str = "--beside";
/// What the process between them says when the manager is there.
const STARTED: &[u8] = b"started";
/// The library that is preloaded into QEMU, and what names another one.
const AGENT: (&str, &str) = ("libfarshore_agent.so", "FARSHORE_AGENT");
/// Tells the agent the name of the socket.
const VARIABLE: &str = "FARSHORE_VM";
/// How long a QEMU may take to map its guest's memory before the user is told that it has not.
const SLOW: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Becomes QEMU. Returns only when it cannot.
///
/// # Errors
/// A wrong option (125), or QEMU cannot be started (126, 127).
pub fn run(arguments: VmRunArgs) -> Result<u8, Refusal> {
    let mut options = start::options(&arguments.memory)?;
    let mut words = qemu::with_shared_memory(&arguments.line).map_err(Refusal::cannot_start)?;
    let monitor = match &arguments.prefetch {
        Some(Prefetcher::BuiltIn(named)) => {
            options.prefetch = named.clone();
            None
        }
        Some(Prefetcher::Guest) => {
            options.prefetch = Named::new("none");
            Some(Monitor::make()?)
        }
        None => None,
    };
    if let Some(monitor) = &monitor {
        options.monitor = Some(monitor.ours.as_raw_fd());
        words = qemu::with_monitor(&words, monitor.config.as_raw_fd());
    }
    let agent = library::find(AGENT.0, AGENT.1)?;
    let (listener, name) = listen()?;
    let failed = |error: Error| {
        Refusal::failed(format!("the manager of the guest's memory cannot be started ({error}): raise the limits of processes"))
    };
    let own = getpid().as_raw_pid().to_string();
    let list = farshore_budgets::join::take_seat(&mut options, std::process::id()).map_err(Refusal::cannot_start)?;
    // The manager inherits it. This process, which becomes QEMU, closes it before.
    list.as_ref()
        .map(|list| rustix::io::fcntl_setfd(list, FdFlags::empty()))
        .transpose()
        .map_err(|errno| Refusal::failed(format!("the list of budgets cannot be handed on ({errno})")))?;
    monitor.as_ref().map(|monitor| inherited(&monitor.ours)).transpose()?;
    let mut beside = Command::new("/proc/self/exe")
        .args([BESIDE, &options.to_json(), &own])
        .stdin(OwnedFd::from(listener))
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    drop(list);
    let mut said = Vec::new();
    beside.stdout.take().map(|mut out| out.read_to_end(&mut said)).transpose().map_err(failed)?;
    // Whoever ignores SIGCHLD hears of no child's status.
    _ = beside.wait();
    if said != STARTED {
        return Err(Refusal::failed("the manager of the guest's memory could not be started: its line is above"));
    }
    // QEMU's end, and not its manager's, which would keep the connection.
    let _theirs = monitor.map(Monitor::for_qemu).transpose()?;
    let others = std::env::var_os("LD_PRELOAD").filter(|value| !value.is_empty());
    let preload: Vec<OsString> = [agent.into_os_string()].into_iter().chain(others).collect();
    let program = &words[0];
    let error =
        Command::new(program).args(&words[1..]).env(VARIABLE, name).env("LD_PRELOAD", preload.join(OsStr::new(":"))).exec();
    let shown = program.display();
    Err(match error.kind() {
        ErrorKind::NotFound => Refusal::not_found(format!("'{shown}' was not found: check the spelling, or give QEMU's path")),
        _ => Refusal::not_executable(format!("'{shown}' cannot be executed ({error}): name a QEMU")),
    })
}

/// A connection between QEMU's monitor and the manager.
struct Monitor {
    ours: OwnedFd,
    theirs: OwnedFd,
    /// The file that tells QEMU of its end.
    config: OwnedFd,
}

impl Monitor {
    fn make() -> Result<Monitor, Refusal> {
        let failed = |error: Error| {
            Refusal::failed(format!("no connection to QEMU's monitor can be made ({error}): raise the limit of descriptors"))
        };
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let config = memfd_create("farshore-monitor", MemfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
        File::from(config.try_clone().map_err(failed)?)
            .write_all(qemu::monitor(theirs.as_raw_fd()).as_bytes())
            .map_err(failed)?;
        Ok(Monitor { ours: ours.into(), theirs: theirs.into(), config })
    }

    /// The ends that QEMU gets.
    fn for_qemu(self) -> Result<[OwnedFd; 2], Refusal> {
        inherited(&self.theirs)?;
        inherited(&self.config)?;
        Ok([self.theirs, self.config])
    }
}

/// Programs that are started from here get the descriptor.
fn inherited(descriptor: &OwnedFd) -> Result<(), Refusal> {
    rustix::io::fcntl_setfd(descriptor, FdFlags::empty())
        .map_err(|errno| Refusal::failed(format!("a descriptor cannot be handed on ({errno})")))
}

/// Listens at a name that nobody else has.
fn listen() -> Result<(UnixListener, String), Refusal> {
    let own = getpid().as_raw_pid();
    let of = |number: u32| {
        let name = format!("farshore-vm-{own}-{number}");
        SocketAddr::from_abstract_name(&name)
            .and_then(|address| UnixListener::bind_addr(&address))
            .map(|listener| (listener, name))
    };
    // A process of the same number in another PID namespace may have the first ones.
    let mut tries = (0..100).map(of);
    let first = tries.find(|tried| !tried.as_ref().is_err_and(|error| error.kind() == ErrorKind::AddrInUse));
    let failed =
        |error: &dyn std::fmt::Display| Refusal::failed(format!("cannot listen for QEMU ({error}): are sockets forbidden here?"));
    first.ok_or_else(|| failed(&"all names are taken"))?.map_err(|error| failed(&error))
}

/// The process between QEMU and its manager: what it starts is nobody's child, and in a session of its own.
///
/// # Errors
/// The manager cannot be started.
pub fn beside(options: &OsStr, process: &OsStr) -> Result<u8, Refusal> {
    let failed =
        |error: &dyn std::fmt::Display| Refusal::failed(format!("the manager of the guest's memory cannot be started ({error})"));
    let pid = process.to_str().and_then(|text| text.parse().ok()).and_then(Pid::from_raw);
    // Whoever has this number waits for us, so it is the right one.
    let qemu = pidfd_open(pid.ok_or_else(|| failed(&"no process"))?, PidfdFlags::empty()).map_err(|errno| failed(&errno))?;
    setsid().map_err(|errno| failed(&errno))?;
    let listener = start::take_input()?;
    Command::new("/proc/self/exe")
        .args([OsStr::new(ONE), options, process])
        .stdin(Stdio::from(listener))
        .stdout(Stdio::from(qemu))
        .spawn()
        .and_then(|_| std::io::stdout().write_all(STARTED))
        .and_then(|()| std::io::stdout().flush())
        .map(|()| 0)
        .map_err(|error| failed(&error))
}

/// A manager of one client: at its input clients connect, and its output is a descriptor of the process that is to become QEMU.
///
/// # Errors
/// Why the memory is not managed.
pub fn one(options: &OsStr, process: &OsStr) -> Result<u8, Refusal> {
    let options = start::handed_on(options)?;
    let list = options.seat.map(|seat| handed::adopt(seat.descriptor)).transpose()?;
    let listener = UnixListener::from(start::take_input()?);
    let qemu = take_output()?;
    match wait_for(&listener, &qemu)? {
        Some(socket) => {
            drop(listener);
            // A daemon, which is another process than the one that was started.
            let is_daemon = process::peer(&socket).is_ok_and(|client| *process != *client.to_string());
            let caller = Some(qemu).filter(|_| is_daemon);
            let own = caller.as_ref().map(|caller| caller.try_clone()).transpose();
            let own = own.map_err(|error| Refusal::failed(format!("no descriptor is left ({error})")))?;
            own.map(start::leave_caller).transpose()?;
            start::keep(socket, &options, list, caller, &process.to_string_lossy())
        }
        None => Ok(0),
    }
}

/// The descriptor that is this process' output, which is standard error from now on.
fn take_output() -> Result<OwnedFd, Refusal> {
    let failed = |why: &dyn std::fmt::Display| Refusal::failed(format!("what it was started with cannot be had ({why})"));
    let taken = std::io::stdout().as_fd().try_clone_to_owned().map_err(|error| failed(&error))?;
    rustix::stdio::dup2_stdout(std::io::stderr()).map_err(|errno| failed(&errno))?;
    Ok(taken)
}

/// Waits for the client; `None` when QEMU has ended without one.
fn wait_for(listener: &UnixListener, qemu: &OwnedFd) -> Result<Option<OwnedFd>, Refusal> {
    let mut patience = Some(&SLOW);
    loop {
        let mut wanted = [PollFd::new(listener, PollFlags::IN), PollFd::new(qemu, PollFlags::IN)];
        match poll(&mut wanted, patience) {
            Ok(0) => {
                patience = None;
                tell(
                    "QEMU has not handed its guest's memory over yet, and runs without a limit as long as it does not: is it QEMU, and linked \
                     dynamically? (A wrapper that clears the environment is in the way, too.)",
                );
                continue;
            }
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(Refusal::failed(format!("QEMU cannot be waited for ({errno})"))),
        }
        // A QEMU that has made itself a daemon has connected before its first process ends.
        if wanted[0].revents().is_empty() {
            return Ok(None);
        }
        let Ok((socket, _)) = listener.accept() else { continue };
        match process::peer(&socket) {
            Ok(_) => return Ok(Some(socket.into())),
            Err(why) => tell(&why),
        }
    }
}
