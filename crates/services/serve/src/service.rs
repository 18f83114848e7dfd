//! What services have in common: a runtime, sockets with limits, a line when they are ready, and an end.
//!
//! A service ends with SIGTERM or SIGINT: nothing more is accepted, reads and writes end, and each unithread goes through its destructors.

use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use farshore_config::Time;
use farshore_uthread::dispatch::Policy;
use farshore_uthread::net::{Counts, Datagram, Limits, TcpListener, TcpStream, UdpServer, UdpSocket};
use farshore_uthread::record::Breakdown;
use farshore_uthread::{Config, Handle, Panics, Replies, Runtime, WaitMode, sleep, stopping};
use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Bytes of the buffers that lie on a unithread's stack.
pub const BUFFER: usize = 16 << 10;
/// A stack has two of them, and frames of signal handlers.
const STACK_BYTES: usize = 128 << 10;
/// Bytes of the longest datagram, and of its unithread's buffer, where the answer is made.
pub const REQUEST_MAX: usize = 2048;
/// Bytes of the request's number, which datagrams of services of our own begin with.
pub const NUMBER: usize = 8;
/// Unithreads besides those for connections and datagrams: acceptors, receivers.
const SPARE_UNITHREADS: usize = 8;
/// Bytes of datagrams that wait in the kernel.
const RECEIVE_BUFFER: i32 = 4 << 20;
const BACKLOG: i32 = 1024;
/// How long to wait before the next try where there are no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// How long unithreads may take to end.
const END_TIME: Duration = Duration::from_secs(10);

/// Options of every service.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// TCP address; port 0: the kernel chooses one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:11211")]
    pub listen: SocketAddr,
    /// UDP address; without it there is no UDP
    #[arg(long, value_name = "ADDRESS")]
    pub udp: Option<SocketAddr>,
    /// Workers, each on a core; 0: one for each core
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=64))]
    pub workers: u16,
    /// Datagrams that are served at a time, besides connections; others wait in the socket
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub unithreads: u32,
    /// TCP connections at a time
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub max_connections: u32,
    /// Close a connection that is idle, or takes no answers, for so many seconds; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub idle_timeout: u64,
    /// What a worker does while a page comes
    #[arg(long, value_enum, default_value_t = Wait::Yield)]
    pub wait: Wait,
    /// Which idle worker gets a new request
    #[arg(long, value_enum, default_value_t = Dispatch::Fewest)]
    pub dispatch: Dispatch,
    /// Who sends answers over UDP
    #[arg(long, value_enum, default_value_t = Replier::Delegated)]
    pub replies: Replier,
    /// After so long a request that goes on for long (a SCAN, a search, a transaction) lets others run: 5us, or never. With busy and block what it waits for is a part of it
    #[arg(long, value_name = "TIME", default_value = "100us", value_parser = slice)]
    pub slice: Duration,
    /// Record what the time of requests over UDP goes to, and write it to FILE at the end, a line for each: waits in queues, work, waits for pages, the reply. Costs a look at the clock at each step of a request
    #[arg(long, value_name = "FILE", requires = "udp")]
    pub breakdown: Option<PathBuf>,
    /// With --breakdown: of so many requests, the last ones; 96 bytes each
    #[arg(long, value_name = "N", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1..=1 << 26))]
    pub breakdown_records: u32,
    /// Cores for the workers, such as 0,2; other threads of the process are not bound [default: all that it may use]
    #[arg(long, value_name = "CORE,...", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(0..1024))]
    pub cores: Vec<u16>,
    /// Workers may run on any core
    #[arg(long)]
    pub no_pin: bool,
}

/// What a worker does while a page comes.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Runs other unithreads
    Yield,
    /// Sleeps
    Block,
    /// Looks for it without end
    Busy,
}

impl From<Wait> for WaitMode {
    fn from(wait: Wait) -> WaitMode {
        match wait {
            Wait::Yield => WaitMode::Yield,
            Wait::Block => WaitMode::Block,
            Wait::Busy => WaitMode::Busy,
        }
    }
}

/// Which idle worker gets a new request.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dispatch {
    /// The one with the fewest fetches under way
    Fewest,
    /// The one whose turn it is, to compare with
    RoundRobin,
}

impl From<Dispatch> for Policy {
    fn from(dispatch: Dispatch) -> Policy {
        match dispatch {
            Dispatch::Fewest => Policy::FewestFetches,
            Dispatch::RoundRobin => Policy::RoundRobin,
        }
    }
}

/// Who sends answers over UDP.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replier {
    /// A thread that does nothing else
    Delegated,
    /// The worker, which waits for the send, to compare with
    Own,
}

impl From<Replier> for Replies {
    fn from(replier: Replier) -> Replies {
        match replier {
            Replier::Delegated => Replies::Delegated,
            Replier::Own => Replies::Own,
        }
    }
}

/// A slice: a time, or none.
fn slice(text: &str) -> Result<Duration, String> {
    if text == "never" {
        return Ok(Duration::MAX);
    }
    text.parse::<Time>().map(|time| Duration::from_nanos(time.ns())).map_err(|error| format!("{error}; or never"))
}

/// Connections, counted.
#[derive(Debug, Default)]
pub struct Connections {
    /// Now.
    pub now: AtomicU64,
    /// Ever.
    pub ever: AtomicU64,
    /// Too many.
    pub refused: AtomicU64,
}

/// Serves connections and datagrams.
pub trait Service: Send + Sync + 'static {
    /// Counts connections.
    fn connections(&self) -> &Connections;

    /// Serves a connection to its end.
    fn connection(&self, stream: &Stream) -> io::Result<()>;

    /// Serves one datagram, of at most [`REQUEST_MAX`] bytes.
    fn datagram(&self, datagram: Datagram<'_>);

    /// What a connection is told that is one too many.
    fn too_many(&self) -> &'static [u8] {
        b""
    }
}

/// A connection, with the limit on idleness.
#[derive(Debug)]
pub struct Stream {
    stream: TcpStream,
    idle: Option<Duration>,
}

impl Stream {
    /// Waits for bytes; 0: there are no more.
    pub fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self.idle {
            Some(time) => self.stream.read_within(into, time),
            None => self.stream.read(into),
        }
    }

    /// Writes all of it, and waits for a peer that does not read.
    pub fn write_all(&self, from: &[u8]) -> io::Result<()> {
        match self.idle {
            Some(time) => self.stream.write_all_within(from, time),
            None => self.stream.write_all(from),
        }
    }
}

/// Runs a service until the process is told to end.
///
/// # Errors
/// With what was tried and why it failed.
pub fn run(options: &Options, service: Arc<impl Service>) -> Result<(), String> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    // Before there are threads, which inherit it: the signals wait for `wait` below.
    signals.thread_block().map_err(|error| format!("cannot block signals: {error}"))?;
    raise_descriptors(options.max_connections);

    let listener = TcpListener::bind(options.listen, BACKLOG).map_err(|error| format!("--listen {}: {error}", options.listen))?;
    let socket = match options.udp {
        Some(address) => Some(UdpSocket::bind(address).map_err(|error| format!("--udp {address}: {error}"))?),
        None => None,
    };
    if let Some(socket) = &socket {
        // Fewer are lost while something keeps all workers from taking them. As it is if that is refused.
        let _ = socket.set_receive_buffer(RECEIVE_BUFFER);
    }
    let mut ready = format!("ready: tcp {}", listener.local_addr().map_err(|error| error.to_string())?);
    if let Some(socket) = &socket {
        ready += &format!(" udp {}", socket.local_addr().map_err(|error| error.to_string())?);
    }

    // Now, so that one that cannot be written is told at once.
    let breakdown =
        options.breakdown.as_ref().map(|path| File::create(path).map_err(|error| untold(path, &error))).transpose()?;
    let config = Config {
        workers: options.workers.into(),
        unithreads: (options.unithreads + options.max_connections) as usize + SPARE_UNITHREADS,
        stack_bytes: STACK_BYTES,
        buffer_bytes: REQUEST_MAX,
        pin: !options.no_pin,
        wait: options.wait.into(),
        slice: options.slice,
        replies: options.replies.into(),
        policy: options.dispatch.into(),
        panics: Panics::End,
        breakdown: if breakdown.is_some() { options.breakdown_records as usize } else { 0 },
        // The heap is held (`main.rs`), and so is what of the stores calls it. What unithreads leave on their stacks would be taken for such calls.
        guard_libc: false,
        ..Config::default()
    };
    bind(&options.cores)?;
    let runtime = Runtime::start(config).map_err(|error| error.to_string())?;
    let handle = runtime.handle();
    let idle = (options.idle_timeout > 0).then(|| Duration::from_secs(options.idle_timeout));
    let limit = u64::from(options.max_connections);
    let started = {
        let (handle, service) = (handle.clone(), service.clone());
        runtime.spawn(move || accept(&listener, &handle, &service, limit, idle))
    };
    started.map_err(|error| format!("cannot start: {error}"))?;
    let limits = Limits { request_bytes: REQUEST_MAX, requests_in_flight: options.unithreads, ..Limits::default() };
    let datagrams = move |datagram: Datagram<'_>| service.datagram(datagram);
    let receiving = socket.map(|socket| UdpServer::start(&handle, socket, limits, datagrams)).transpose();
    let receiving = receiving.map_err(|error| error.to_string())?;
    eprintln!("{ready}");
    signals.wait().map_err(|error| format!("cannot wait for signals: {error}"))?;
    let ended = runtime.shutdown_within(END_TIME).map_err(|error| error.to_string());
    if let Some(receiving) = &receiving {
        eprintln!("{}", told(&receiving.counts()));
    }
    if let (Some(path), Some(mut file), Some(breakdown)) = (&options.breakdown, breakdown, handle.breakdown()) {
        let written = file.write_all(breakdown.to_csv().as_bytes()).map_err(|error| untold(path, &error));
        eprintln!("{}", told_of(&breakdown));
        return ended.and(written);
    }
    ended
}

fn untold(path: &Path, error: &io::Error) -> String {
    format!("--breakdown {}: {error}", path.display())
}

/// How many requests were recorded.
fn told_of(breakdown: &Breakdown) -> String {
    let dropped = match breakdown.dropped {
        0 => String::new(),
        count => format!("; {count} before them were dropped (--breakdown-records)"),
    };
    format!("breakdown: {} requests{dropped}", breakdown.records.len())
}

/// How many datagrams came, and what became of those that were not answered.
fn told(counts: &Counts) -> String {
    let lost = [
        (counts.overflowed, "lost, as they came faster than they were taken and the socket's buffer was full"),
        (counts.dropped, "dropped, as no unithread was free"),
        (counts.too_long, "too long"),
        (counts.malformed, "malformed"),
        (counts.send_failed, "answers that could not be sent"),
        (counts.receive_failed, "receives that failed"),
    ];
    let lost = lost.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("; {count} {what}"));
    format!("end: {} datagrams{}", counts.received, lost.collect::<String>())
}

/// Binds this thread to the cores, if some are named: workers, which it starts, take theirs from them.
fn bind(cores: &[u16]) -> Result<(), String> {
    if cores.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    for core in cores {
        set.set((*core).into());
    }
    sched_setaffinity(None, &set).map_err(|error| format!("--cores: {error}: are they there, and allowed (taskset -cp $$)?"))
}

/// As many descriptors as connections take, if that is allowed.
fn raise_descriptors(connections: u32) {
    let limit = getrlimit(Resource::Nofile);
    let want = u64::from(connections) + 64;
    if limit.current.is_some_and(|current| current < want) {
        let current = Some(limit.maximum.map_or(want, |maximum| want.min(maximum)));
        // If it is refused, connections will be.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum: limit.maximum });
    }
}

/// Counts a connection for as long as it lives.
struct Counted<S: Service>(Arc<S>);

impl<S: Service> Drop for Counted<S> {
    fn drop(&mut self) {
        self.0.connections().now.fetch_sub(1, Relaxed);
    }
}

fn accept<S: Service>(listener: &TcpListener, handle: &Handle, service: &Arc<S>, limit: u64, idle: Option<Duration>) {
    while !stopping() {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => return,
            Err(error) => {
                let passing = matches!(error.raw_os_error(), Some(libc::ECONNABORTED | libc::EINTR));
                if !passing && sleep(ACCEPT_PAUSE).is_err() {
                    return;
                }
                continue;
            }
        };
        let connections = service.connections();
        connections.ever.fetch_add(1, Relaxed);
        let now = connections.now.fetch_add(1, Relaxed);
        let counted = Counted(service.clone());
        let stream = Stream { stream, idle };
        // Answers are gathered here; what is sent shall go at once.
        let _ = stream.stream.set_nodelay(true);
        if now >= limit {
            connections.refused.fetch_add(1, Relaxed);
            // A few bytes into an empty buffer: that waits for nobody.
            let _ = stream.write_all(service.too_many());
            continue;
        }
        let spawned = handle.spawn(move || {
            // Its end is the peer's: there is nobody to be told of an error.
            let _ = counted.0.connection(&stream);
        });
        if spawned.is_err() {
            connections.refused.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_read() {
        assert_eq!((slice("5us"), slice("never")), (Ok(Duration::from_micros(5)), Ok(Duration::MAX)));
        for wrong in ["", "5", "always", "-1us"] {
            assert!(slice(wrong).is_err_and(|why| why.contains("never") && why.lines().count() == 1), "{wrong:?}");
        }
    }

    #[test]
    fn the_end_tells_of_how_many_the_time_was_recorded() {
        let of = |dropped| told_of(&Breakdown { records: vec![Default::default(); 3], dropped });
        assert_eq!(of(0), "breakdown: 3 requests");
        assert_eq!(of(8), "breakdown: 3 requests; 8 before them were dropped (--breakdown-records)");
    }

    #[test]
    fn the_end_tells_what_was_not_answered() {
        let mut counts = Counts::default();
        counts.received = 7;
        assert_eq!(told(&counts), "end: 7 datagrams");
        (counts.overflowed, counts.malformed) = (3, 2);
        let line = told(&counts);
        assert!(line.starts_with("end: 7 datagrams; 3 lost") && line.ends_with("; 2 malformed"), "{line}");
    }
}
