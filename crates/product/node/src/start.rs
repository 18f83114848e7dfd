//! Starts a node: checks, listeners, threads; waits for the signal that ends it.

use std::net::ToSocketAddrs;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use farshore_command::http;
use farshore_command::listen::{Address, Listener};
use farshore_command::machine::available_memory;
use farshore_command::refusal::Refusal;
use farshore_command::token::Tokens;
use farshore_node::exports::{Exports, Rules};
use farshore_node::space::{Budget, CHUNK, PAGE, Pages, Space};
use farshore_node::status::Parts;
use farshore_node::worker::{Connections, Worker};
use farshore_node::{amount, tell};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::args::NodeArgs;

/// After this long without a word a TCP client is asked whether it is there, …
const QUIET: Duration = Duration::from_secs(20);
/// … again after this long, …
const ASK: Duration = Duration::from_secs(10);
/// … and so often. Then its connection ends.
const ASKS: u32 = 4;
/// So long may data be unacknowledged, in ms.
const UNACKNOWLEDGED_MS: u32 = 60_000;
/// Descriptors that are no clients' connections.
const SPARE: u64 = 600;

/// Runs a node until a signal ends it.
///
/// # Errors
/// It must not or cannot listen, a file of tokens is wrong, or the kernel lacks something.
pub fn node(arguments: &NodeArgs) -> Result<u8, Refusal> {
    let tokens = arguments.token_file.as_deref().map(Tokens::read).transpose().map_err(Refusal::cannot_start)?;
    if tokens.is_none() && !arguments.open {
        arguments.listen.iter().try_for_each(only_near)?;
    }
    let failed = |what: &str, why: &dyn std::fmt::Display| Refusal::failed(format!("{what} ({why}): is there memory left?"));
    // Before threads: they inherit what is blocked. One that reads stderr may go; the node stays.
    let mut signals =
        Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1]).map_err(|error| failed("cannot listen for signals", &error))?;
    signal_hook::flag::register(SIGPIPE, Arc::new(AtomicBool::new(false)))
        .map_err(|error| failed("cannot ignore SIGPIPE", &error))?;
    descriptors(u64::from(arguments.connections))?;

    let budget = Arc::new(Budget::new(arguments.memory.bytes() / PAGE));
    let pages = Pages::from(arguments.pages);
    let rules = Rules { bytes: arguments.size(), most: arguments.exports.into(), keep: arguments.keep, tokens, pages };
    let exports = Exports::new(rules, budget);
    let connections = Arc::new(Connections::new(arguments.connections as usize));
    let cores = || thread::available_parallelism().map_or(1, |cores| cores.get().min(256));
    let workers = arguments.threads.map_or_else(cores, usize::from);
    let worker = |_| Worker::new(exports.clone(), connections.clone(), arguments.poll);
    let workers: Vec<Arc<Worker>> =
        (0..workers).map(worker).collect::<Result<_, Errno>>().map_err(|errno| failed("cannot make a thread's epoll", &errno))?;
    let parts = Parts { exports, connections, workers };

    let places = Places::at(arguments)?;
    let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| match thread::Builder::new().name(name.into()).spawn(work) {
        Ok(_) => Ok(()),
        Err(error) => {
            places.remove();
            Err(failed("cannot start a thread", &error))
        }
    };
    for worker in &parts.workers {
        let worker = worker.clone();
        spawn("node-worker", Box::new(move || worker.run()))?;
    }
    let exports = parts.exports.clone();
    spawn("node-exports", Box::new(move || exports.tend()))?;
    let next = Arc::new(AtomicUsize::new(0));
    for listener in &places.listeners {
        let (listener, parts, next) = (listener.clone(), parts.clone(), next.clone());
        spawn("node-accept", Box::new(move || accept(&listener, &parts, &next)))?;
    }
    if let Some(listener) = places.metrics.clone() {
        let parts = parts.clone();
        spawn("node-metrics", Box::new(move || listener.serve_metrics(http::OPEN_METRICS, move || parts.metrics())))?;
    }
    let exports = parts.exports.clone();
    spawn("node-full", Box::new(move || tell_when_full(exports.budget())))?;
    if let Some(pause) = arguments.status {
        let parts = parts.clone();
        spawn(
            "node-status",
            Box::new(move || {
                loop {
                    thread::sleep(pause);
                    tell(&parts.line());
                }
            }),
        )?;
    }
    say(arguments, &places, pages);
    let signal = signals.forever().find(|&signal| {
        if signal == SIGUSR1 {
            tell(&parts.line());
        }
        signal != SIGUSR1
    });
    places.remove();
    parts.exports.close();
    Ok(128_u8.saturating_add(u8::try_from(signal.unwrap_or(SIGTERM)).unwrap_or(0)))
}

/// Where a node listens.
struct Places {
    listeners: Vec<Arc<Listener>>,
    metrics: Option<Arc<Listener>>,
}

impl Places {
    fn at(arguments: &NodeArgs) -> Result<Places, Refusal> {
        let mut places = Places { listeners: Vec::new(), metrics: None };
        let all = arguments.listen.iter().map(|address| (address, false));
        for (address, is_page) in all.chain(arguments.metrics.iter().map(|address| (address, true))) {
            let listener = Listener::at(address).map(Arc::new).map_err(|why| {
                places.remove();
                Refusal::failed(why)
            })?;
            match is_page {
                true => places.metrics = Some(listener),
                false => places.listeners.push(listener),
            }
        }
        Ok(places)
    }

    /// Takes sockets away that have paths.
    fn remove(&self) {
        self.listeners.iter().chain(&self.metrics).for_each(|listener| listener.remove());
    }
}

/// The first lines: where, how much, and in what pages.
fn say(arguments: &NodeArgs, places: &Places, pages: Pages) {
    let at = |listener: &Listener| match listener {
        Listener::Tcp(listener) => listener.local_addr().map_or_else(|_| "a port".into(), |address| address.to_string()),
        Listener::Unix(_, path, _) => format!("unix:{}", path.display()),
    };
    let all: Vec<String> = places.listeners.iter().map(|listener| at(listener)).collect();
    let pages = match pages {
        Pages::Small => "in pages of 4 KiB".into(),
        Pages::Huge => huge(),
    };
    let memory = arguments.memory.bytes();
    tell(&format!(
        "node listens at {}: {} for exports of {} each, {pages}",
        all.join(" and "),
        amount(memory),
        amount(arguments.size()),
    ));
    if let Some(listener) = &places.metrics {
        tell(&format!("metrics are at {}", listener.page_at()));
    }
    if let Some(free) = available_memory()
        && free < memory
    {
        tell(&format!(
            "--memory {} is more than the {} that this machine has free now: the kernel may swap the node out or end it when it gets full",
            arguments.memory,
            amount(free)
        ));
    }
}

/// Whether there are huge pages, tried out.
fn huge() -> String {
    const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
    let tried = Space::new(CHUNK, Pages::Huge, Arc::new(Budget::new(CHUNK / PAGE)))
        .is_ok_and(|space| space.write(0, &[1]).is_ok() && space.is_huge());
    if tried {
        return "in huge pages of 2 MiB where the kernel has them".into();
    }
    let enabled = std::fs::read_to_string(ENABLED).unwrap_or_else(|_| "not there".into());
    format!("in pages of 4 KiB, as the kernel gives no huge ones ({ENABLED} is {})", enabled.trim())
}

/// Refuses an address that other machines can reach.
fn only_near(address: &Address) -> Result<(), Refusal> {
    let Address::Tcp(text) = address else { return Ok(()) };
    // One that cannot be resolved is told when it is listened at.
    let mut all = text.to_socket_addrs().into_iter().flatten();
    if all.all(|address| address.ip().to_canonical().is_loopback()) {
        return Ok(());
    }
    Err(Refusal::cannot_start(format!(
        "--listen: whoever can reach '{text}' could use this node's memory: say with --token-file who may, or say --open"
    )))
}

/// Makes sure that there can be as many descriptors.
fn descriptors(connections: u64) -> Result<(), Refusal> {
    let wanted = connections + SPARE;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let raised = limit.maximum.map_or(wanted, |most| most.min(wanted));
    if raised < wanted || setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: limit.maximum }).is_err() {
        return Err(Refusal::cannot_start(format!(
            "--connections: for {connections} connections this process may not have enough descriptors (ulimit -n is {raised}, {wanted} are \
             needed): raise the limit, or give fewer"
        )));
    }
    Ok(())
}

/// Says that the node is full, each time after it was far from full. Once a minute at most: clients can make it so as often as they like.
fn tell_when_full(budget: &Budget) {
    loop {
        while !budget.is_full() {
            thread::sleep(Duration::from_secs(1));
        }
        tell(&format!(
            "the node is full: all {} are taken, and writes to more are answered with ENOSPC; give it more --memory",
            amount(budget.most() * PAGE)
        ));
        thread::sleep(Duration::from_secs(60));
        while budget.is_full() {
            thread::sleep(Duration::from_secs(1));
        }
    }
}

/// Takes connections, and gives them to the workers in turn.
fn accept(listener: &Listener, parts: &Parts, next: &AtomicUsize) {
    loop {
        let taken = match listener {
            Listener::Tcp(listener) => listener.accept().map(|(stream, _)| OwnedFd::from(stream)),
            Listener::Unix(listener, ..) => listener.accept().map(|(stream, _)| OwnedFd::from(stream)),
        };
        let Ok(socket) = taken else {
            // No descriptor or no memory is left: perhaps there will be. Or a client has gone before it was taken.
            thread::sleep(Duration::from_millis(20));
            continue;
        };
        if rustix::io::ioctl_fionbio(&socket, true).is_err() || !parts.connections.come() {
            continue;
        }
        if matches!(listener, Listener::Tcp(_)) {
            // A client whose machine is gone is noticed; where the kernel refuses one of these, that takes longer.
            let _ = sockopt::set_tcp_nodelay(&socket, true);
            let _ = sockopt::set_socket_keepalive(&socket, true);
            let _ = sockopt::set_tcp_keepidle(&socket, QUIET);
            let _ = sockopt::set_tcp_keepintvl(&socket, ASK);
            let _ = sockopt::set_tcp_keepcnt(&socket, ASKS);
            let _ = sockopt::set_tcp_user_timeout(&socket, UNACKNOWLEDGED_MS);
        }
        let worker = next.fetch_add(1, Ordering::Relaxed) % parts.workers.len();
        parts.workers[worker].give(socket);
    }
}
