//! The command: it listens, and starts a process for each client; waits for the signal that ends all of them.
//!
//! A client's process is this program once more, with the connection as its input and the options behind [`KEEPER`]: it keeps the client's manager ([`farshore_manager::keeper`]), which is this
//! program a third time, behind [`CLIENT`]. Both outlive this one if that is killed: the client's memory is in their hands. The manager outlives its keeper, and is this one's child from then on.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use farshore_command::handed::adopt;
use farshore_command::listen::{Address, Listener};
use farshore_command::process::{CLIENT, KEEPER, managers_of, told};
use farshore_command::refusal::Refusal;
use farshore_command::say::{amount, tell};
use farshore_command::swap;
use farshore_config::{Options, Partial};
use farshore_manager::keeper::{self, Keeper, Kept};
use farshore_manager::restore::{self, Source};
use farshore_manager::snapshot::{self, Snapshot};
use farshore_manager::{process, session};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::FileType;
use rustix::io::{Errno, FdFlags};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::args::{ManageArgs, MemoryArgs, Protocol};

/// The word behind which a process of ours gets what a guest is restored from.
pub const RESTORE: &str = "--restore";

/// What the process of a client does.
#[derive(Clone, Debug)]
enum Service {
    /// It manages memory, by these options.
    Managed(Box<Options>),
    /// It restores memory.
    Restored(Source),
}

impl Service {
    /// The words that a client's process is started with, but for the client.
    fn words(&self) -> [String; 2] {
        match self {
            Service::Managed(options) => [KEEPER.into(), options.to_json()],
            Service::Restored(source) => [RESTORE.into(), serde_json::to_string(source).expect("paths were looked at")],
        }
    }

    /// What is said of it at the start.
    fn told(&self) -> String {
        match self {
            Service::Managed(options) => match &options.budget {
                Some(budget) => format!("a share of the budget {budget} of each virtual machine's memory in RAM"),
                None => format!("at most {} of each virtual machine's memory in RAM", amount(options.memory.bytes())),
            },
            Service::Restored(source) => format!("guests are restored from {}", source.snapshot.display()),
        }
    }
}

/// What the options ask for.
fn service(arguments: &ManageArgs) -> Result<Service, Refusal> {
    let memory = &arguments.memory;
    match arguments.protocol {
        Protocol::CloudHypervisor => {
            let given = [("--snapshot", &arguments.snapshot), ("--working-set", &arguments.working_set)];
            if let Some((name, _)) = given.iter().find(|(_, path)| path.is_some()) {
                return Err(Refusal::cannot_start(format!("{name} goes with --protocol firecracker alone: leave it out")));
            }
            options(memory).map(|options| Service::Managed(Box::new(options)))
        }
        Protocol::Firecracker => {
            let given = [
                ("--memory", memory.memory.is_some()),
                ("--slowdown", memory.slowdown.is_some()),
                ("--memory-min", memory.memory_min.is_some()),
                ("--memory-max", memory.memory_max.is_some()),
                ("--budget", memory.budget.is_some()),
                ("--swap", !memory.swap.is_empty()),
                ("--encrypt", memory.encrypt),
            ];
            if let Some((name, _)) = given.iter().find(|(_, given)| *given) {
                return Err(Refusal::cannot_start(format!(
                    "{name} does not go with --protocol firecracker, whose guests' memory cannot be taken back: leave it out"
                )));
            }
            let snapshot = arguments.snapshot.as_ref().ok_or_else(|| {
                Refusal::cannot_start("no snapshot given: write --snapshot FILE, the memory file of the snapshot")
            })?;
            let whole = |path: &PathBuf| {
                let whole = std::path::absolute(path).ok().filter(|path| path.to_str().is_some());
                whole.ok_or_else(|| Refusal::cannot_start(format!("the path '{}' cannot be used: name another", path.display())))
            };
            let source =
                Source { snapshot: whole(snapshot)?, working_set: arguments.working_set.as_ref().map(whole).transpose()? };
            // What is wrong now is better known now.
            let looked = Snapshot::open(&source.snapshot).map_err(Refusal::cannot_start)?;
            if let Some(path) = &source.working_set {
                snapshot::working_set(path, looked.bytes()).map_err(Refusal::cannot_start)?;
            }
            Ok(Service::Restored(source))
        }
    }
}

/// The most clients at a time.
const CLIENTS_MAX: usize = 256;

/// Clients' processes that run, and who waits for the last of them.
#[derive(Default)]
struct Clients {
    running: Mutex<HashMap<u32, Pid>>,
    fewer: Condvar,
    /// Nobody comes any more.
    closed: AtomicBool,
}

impl Clients {
    fn running(&self) -> MutexGuard<'_, HashMap<u32, Pid>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a signal to each. One that has just ended does not get it. Nor does one that has just begun, and would end by a mere question.
    fn signal(&self, number: i32) {
        let Some(signal) = Signal::from_named_raw(number) else { return };
        let running = self.running();
        let asked = running.values().filter(|pid| signal != Signal::USR1 || catches(**pid, signal));
        asked.for_each(|pid| _ = kill_process(*pid, signal));
    }

    /// Waits until none is left.
    fn wait(&self) {
        let mut running = self.running();
        while !running.is_empty() {
            running = self.fewer.wait(running).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Whether a process has a handler for a signal.
fn catches(pid: Pid, signal: Signal) -> bool {
    let status = told(pid.as_raw_pid().cast_unsigned(), "status").unwrap_or_default();
    let caught = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigCgt:")?.trim(), 16).ok());
    caught.is_some_and(|caught| caught >> (signal.as_raw() - 1) & 1 != 0)
}

/// Listens until a signal ends it.
///
/// # Errors
/// A wrong option, or it cannot listen.
pub fn manage(arguments: &ManageArgs) -> Result<u8, Refusal> {
    let service = service(arguments)?;
    let failed = |what: &str, why: &dyn std::fmt::Display| Refusal::failed(format!("{what} ({why}): is there memory left?"));
    let mut signals =
        Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1]).map_err(|error| failed("cannot listen for signals", &error))?;
    signal_hook::flag::register(SIGPIPE, Arc::new(AtomicBool::new(false)))
        .map_err(|error| failed("cannot ignore SIGPIPE", &error))?;
    // A manager whose keeper was killed.
    _ = set_child_subreaper(Some(getpid()));
    let listener = Arc::new(Listener::at(&Address::Unix(arguments.listen.clone())).map_err(Refusal::failed)?);
    let clients = Arc::new(Clients::default());
    tell(&format!("manager listens at {}: {}", arguments.listen.display(), service.told()));
    let (accepting, theirs) = (listener.clone(), clients.clone());
    let accept = move || {
        if let Listener::Unix(listener, ..) = &*accepting {
            accept(listener, &service, &theirs);
        }
    };
    if let Err(error) = thread::Builder::new().name("manager-accept".into()).spawn(accept) {
        listener.remove();
        return Err(failed("cannot start a thread", &error));
    }
    let signal = signals.forever().find(|&signal| {
        if signal == SIGUSR1 {
            clients.signal(signal);
        }
        signal != SIGUSR1
    });
    listener.remove();
    let signal = signal.unwrap_or(SIGTERM);
    clients.closed.store(true, Ordering::SeqCst);
    clients.signal(signal);
    let (theirs, mut more) = (clients.clone(), signals);
    // Whoever asks again, asks them again: one that had no room may have some by now.
    let again = move || more.forever().for_each(|signal| theirs.signal(signal));
    thread::Builder::new().spawn(again).map_err(|error| failed("cannot start a thread", &error))?;
    clients.wait();
    Ok(128_u8.saturating_add(u8::try_from(signal).unwrap_or(0)))
}

/// The options of each client, checked as those of `farshore run`.
pub fn options(arguments: &MemoryArgs) -> Result<Options, Refusal> {
    let wrong = |error: farshore_config::ConfigError| Refusal::cannot_start(error.to_string());
    let layer = Partial {
        memory: arguments.memory,
        slowdown: arguments.slowdown,
        memory_min: arguments.memory_min,
        memory_max: arguments.memory_max,
        budget: arguments.budget.clone(),
        swap: (!arguments.swap.is_empty()).then(|| arguments.swap.clone()),
        encrypt: arguments.encrypt.then_some(true),
        ..Partial::default()
    };
    let mut options = layer.finish().map_err(wrong)?;
    options.swap = options.swap.into_iter().map(swap::absolute).collect::<Result<_, _>>()?;
    options.swap.iter().try_for_each(swap::check)?;
    Ok(options)
}

/// Takes connections, each of which gets a process.
fn accept(listener: &UnixListener, service: &Service, clients: &Arc<Clients>) {
    loop {
        let Ok((socket, _)) = listener.accept() else {
            // No descriptor or no memory is left: perhaps there will be. Or a client has gone before it was taken.
            thread::sleep(Duration::from_millis(20));
            continue;
        };
        if let Err(why) = welcome(socket, service, clients) {
            tell(&why);
        }
    }
}

/// Starts the process of a client, and a thread that waits for its end.
fn welcome(socket: UnixStream, service: &Service, clients: &Arc<Clients>) -> Result<(), String> {
    let client = process::peer(&socket)?;
    // Held until the new one is among them, so that a signal for all reaches it.
    let mut running = clients.running();
    if clients.closed.load(Ordering::SeqCst) {
        return Err(format!("process {client} comes too late: the manager ends"));
    }
    if running.len() >= CLIENTS_MAX {
        return Err(format!("process {client} is one client too many: there are {CLIENTS_MAX}"));
    }
    let mut child = Command::new("/proc/self/exe")
        .args(service.words())
        .arg(client.to_string())
        .stdin(Stdio::from(OwnedFd::from(socket)))
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| format!("no process can be made for process {client} ({error}): raise the limits of processes"))?;
    let number = child.id();
    let pid = i32::try_from(number).ok().and_then(Pid::from_raw);
    running.extend(pid.map(|pid| (number, pid)));
    drop(running);
    let theirs = clients.clone();
    let wait = move || {
        tell_of_end(&mut child, client, &theirs);
        theirs.running().remove(&number);
        theirs.fewer.notify_all();
    };
    // Without the thread it would be a zombie at its end, and counted on.
    thread::Builder::new().spawn(wait).map(drop).map_err(|error| {
        clients.running().remove(&number);
        format!("the end of the manager of process {client} is not waited for ({error})")
    })
}

/// Waits for the end of a client's process. If something has ended it, its manager goes on, and has this process for a parent now.
fn tell_of_end(child: &mut Child, client: i32, clients: &Clients) {
    let number = child.id();
    let Ok(status) = child.wait() else { return };
    let Some(signal) = status.signal() else { return };
    let is_own = |manager| parent(manager) == Some(std::process::id());
    let manager = managers_of(client.cast_unsigned(), is_own).next().and_then(|manager| i32::try_from(manager).ok());
    let Some(manager) = manager.and_then(Pid::from_raw) else {
        tell(&format!("what keeps the manager of process {client} (process {number}) was ended by signal {signal}"));
        return;
    };
    let shown = manager.as_raw_pid();
    tell(&format!(
        "what keeps the manager of process {client} (process {number}) was ended by signal {signal}: the manager, process {shown}, goes on, and will not be replaced if it is killed"
    ));
    clients.running().insert(number, manager);
    while waitpid(Some(manager), WaitOptions::empty()).is_err_and(|errno| errno == Errno::INTR) {}
}

/// The parent of a process.
fn parent(process: u32) -> Option<u32> {
    let status = told(process, "status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

/// The keeper of a client's manager: the client's connection is this process' input.
///
/// # Errors
/// Why the client's memory is not managed.
pub fn kept(options: &OsStr) -> Result<u8, Refusal> {
    let mut options = handed_on(options)?;
    let socket = take_input()?;
    let client = process::peer(&socket).map_err(Refusal::failed)?;
    let list = farshore_budgets::join::take_seat(&mut options, client.cast_unsigned())
        .map_err(|why| Refusal::failed(format!("process {client} is refused: {why}")))?;
    keep(socket, &options, list, None, &client.to_string())
}

/// Keeps the manager of the client of a connection: starts it, and the next one if it is killed. `list`: where the client has a seat, if its memory is a share of a budget. `client`: how the
/// manager's process names it.
///
/// # Errors
/// No manager can be started.
pub fn keep(
    socket: OwnedFd,
    options: &Options,
    list: Option<OwnedFd>,
    caller: Option<OwnedFd>,
    client: &str,
) -> Result<u8, Refusal> {
    end_by_bugs();
    // Each manager inherits it, under this number.
    let handed_on = list.as_ref().map(|list| rustix::io::fcntl_setfd(list, FdFlags::empty())).transpose();
    handed_on.map_err(|errno| Refusal::failed(format!("the list of budgets cannot be handed on ({errno})")))?;
    let words = [CLIENT, &options.to_json(), client].map(str::to_owned);
    let start =
        |input: OwnedFd| Command::new("/proc/self/exe").args(&words).stdin(Stdio::from(input)).stdout(Stdio::null()).spawn();
    keeper::keep(socket, caller, start).map_err(|why| Refusal::failed(format!("process {client} is refused: {why}")))
}

/// A client's manager: its keeper is this process' input.
///
/// # Errors
/// Why the client's memory is not managed.
pub fn client(options: &OsStr, client: &OsStr) -> Result<u8, Refusal> {
    end_by_bugs();
    let options = handed_on(options)?;
    let list = options.seat.map(|seat| adopt(seat.descriptor)).transpose()?;
    let monitor = options.monitor.map(adopt).transpose()?;
    let keeper = Keeper::meet(take_input()?).map_err(Refusal::failed)?;
    if let Some(caller) = keeper.take_one(Kept::Caller) {
        leave_caller(caller)?;
    }
    let refused = |why| Refusal::failed(format!("process {} is refused: {why}", client.display()));
    session::run(Box::leak(Box::new(keeper)), &options, list, monitor).map(|()| 0).map_err(refused)
}

/// Leaves standard error when this process has ended, if somebody may wait for its end: see [`Kept::Caller`].
///
/// # Errors
/// There is no thread to be had.
pub fn leave_caller(caller: OwnedFd) -> Result<(), Refusal> {
    let leave = move || {
        while poll(&mut [PollFd::new(&caller, PollFlags::IN)], None) == Err(Errno::INTR) {}
        let is_waited_for = rustix::fs::fstat(std::io::stderr())
            .is_ok_and(|stat| matches!(FileType::from_raw_mode(stat.st_mode), FileType::Fifo | FileType::Socket));
        if is_waited_for && let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
            _ = rustix::stdio::dup2_stderr(&null).and_then(|()| rustix::stdio::dup2_stdout(&null));
        }
    };
    let made = thread::Builder::new().spawn(leave);
    made.map(drop).map_err(|error| Refusal::failed(format!("no thread can be made ({error})")))
}

/// A client's process that restores memory: its connection is this process' input.
///
/// # Errors
/// Why the client's memory is not restored.
pub fn restored(source: &OsStr) -> Result<u8, Refusal> {
    let text = source.to_str().ok_or_else(|| Refusal::cannot_start("a source that is no text"))?;
    let source = serde_json::from_str(text).map_err(|error| Refusal::cannot_start(error.to_string()))?;
    let socket = take_input()?;
    let client = process::peer(&socket).unwrap_or(0);
    end_by_bugs();
    restore::run(socket, &source).map_err(|why| Refusal::failed(format!("process {client} is refused: {why}")))
}

/// A bug ends this process, and is told.
fn end_by_bugs() {
    std::panic::set_hook(Box::new(|info| {
        tell(&format!("bug: {info}"));
        std::process::abort();
    }));
}

/// The options that a process of ours was started with.
///
/// # Errors
/// They are none.
pub fn handed_on(options: &OsStr) -> Result<Options, Refusal> {
    let text = options.to_str().ok_or_else(|| Refusal::cannot_start("options that are no text"))?;
    Options::from_json(text).map_err(|error| Refusal::cannot_start(error.to_string()))
}

/// The socket that is this process' input, which is in another place from now on: it ends when that one is closed.
///
/// # Errors
/// It cannot be had.
pub fn take_input() -> Result<OwnedFd, Refusal> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned();
    let socket = socket.map_err(|error| Refusal::failed(format!("its connection cannot be had ({error})")))?;
    leave_input()?;
    Ok(socket)
}

fn leave_input() -> Result<(), Refusal> {
    let failed = |error: std::io::Error| Refusal::failed(format!("/dev/null cannot be opened ({error})"));
    let null = std::fs::File::open("/dev/null").map_err(failed)?;
    rustix::stdio::dup2_stdin(null).map_err(|errno| failed(errno.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_options_are_said_before_anybody_connects() {
        let of = |memory: u64, swap: &[&str]| {
            let swap = swap.iter().map(|spec| spec.parse().expect("it is one")).collect();
            let memory = Some(farshore_config::Size(memory));
            options(&MemoryArgs {
                memory,
                slowdown: None,
                memory_min: None,
                memory_max: None,
                budget: None,
                swap,
                encrypt: false,
            })
        };
        assert_eq!(of(64 << 20, &["ram:lz4"]).expect("it is right").swap.len(), 1);
        for (memory, swap, part) in
            [(1 << 20, &["ram:lz4"][..], "--memory"), (64 << 20, &["dir:/nowhere/at/all"], "does not exist")]
        {
            let refusal = of(memory, swap).map(|_| panic!("{part}")).unwrap_err();
            assert!(refusal.text.contains(part) && refusal.status == farshore_command::refusal::CANNOT_START, "{refusal}");
        }
    }
}
