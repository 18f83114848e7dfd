//! A connection, and what is under way on it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::super::protocol::{self, Answer};
use super::Shared;

/// A server that was just started may not listen yet: for this long it is tried again.
const START: Duration = Duration::from_secs(3);
/// Bytes that were sent are dropped from the buffer when there are so many of them.
const SENT: usize = 1 << 20;

/// A request that is not answered yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pending {
    pub key: u64,
    pub what: What,
    /// When it was due, in ns since the start of the schedule.
    pub due: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// A GET: the oldest version that it may find.
    Get { least: u32 },
    /// A SET: the version.
    Set { version: u32 },
}

impl What {
    pub fn name(self) -> &'static str {
        match self {
            What::Get { .. } => "GET",
            What::Set { .. } => "SET",
        }
    }
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn open(address: &str) -> io::Result<Self> {
        if address.contains('/') || !address.contains(':') {
            let stream = UnixStream::connect(address)?;
            stream.set_nonblocking(true)?;
            return Ok(Stream::Unix(stream));
        }
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Stream::Tcp(stream))
    }

    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(to),
            Stream::Unix(stream) => stream.read(to),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

/// A connection. When one of its methods has failed, it is of no more use.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    /// What is to be sent; the first `sent` bytes of it were.
    output: Vec<u8>,
    sent: usize,
    /// The beginning of an answer.
    input: Vec<u8>,
    pending: VecDeque<Pending>,
}

impl Connection {
    /// Connects to a TCP address or the path of a socket.
    ///
    /// # Errors
    /// If nobody listens there.
    pub fn open(address: &str) -> Result<Self, String> {
        let start = Instant::now();
        let stream = loop {
            match Stream::open(address) {
                Ok(stream) => break stream,
                Err(error) if may_come(&error) && start.elapsed() < START => std::thread::sleep(Duration::from_millis(20)),
                Err(error) => {
                    return Err(format!(
                        "cannot connect to {address}: {error}; is the server running, and is this where it listens?"
                    ));
                }
            }
        };
        Ok(Connection { stream, output: Vec::new(), sent: 0, input: Vec::new(), pending: VecDeque::new() })
    }

    /// Appends a GET. Nothing is sent before [`Connection::flush`].
    pub fn get(&mut self, shared: &Shared, key: u64, due: u64) {
        protocol::get(shared.server, key, &mut self.output);
        self.pending.push_back(Pending { key, what: What::Get { least: shared.versions.least(key) }, due });
    }

    /// Appends a SET of the next version.
    pub fn set(&mut self, shared: &Shared, key: u64, due: u64) {
        let version = shared.versions.send(key);
        let write = |to: &mut Vec<u8>| shared.values.write(key, version, to);
        protocol::set(shared.server, key, shared.values.size, write, &mut self.output);
        self.pending.push_back(Pending { key, what: What::Set { version }, due });
    }

    /// How many requests are not answered.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// How many bytes the socket has not taken yet.
    pub fn unsent(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Gives the socket what it takes. If that is not all, [`Connection::unsent`] says so.
    ///
    /// # Errors
    /// If the connection is broken.
    pub fn flush(&mut self) -> Result<(), String> {
        while self.unsent() > 0 {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(&error.to_string())),
            }
        }
        if self.unsent() == 0 || self.sent > SENT {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// Reads once, into `space`, and calls `each` with each answer that is whole and its request.
    ///
    /// # Errors
    /// If the connection is broken, or what comes over it is no answer to a request.
    pub fn receive(&mut self, shared: &Shared, space: &mut [u8], each: impl FnMut(Pending, Answer<'_>)) -> Result<(), String> {
        let count = match self.stream.read(space) {
            Ok(0) => return Err(self.broken("the server closed it")),
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(()),
            Err(error) => return Err(self.broken(&error.to_string())),
        };
        if self.input.is_empty() {
            let used = self.answers(shared, &space[..count], each)?;
            self.input.extend_from_slice(&space[used..count]);
            return Ok(());
        }
        let mut input = std::mem::take(&mut self.input);
        input.extend_from_slice(&space[..count]);
        let used = self.answers(shared, &input, each)?;
        input.drain(..used);
        self.input = input;
        Ok(())
    }

    /// Calls `each` with all whole answers in `bytes`, and returns how many bytes those are.
    fn answers(&mut self, shared: &Shared, bytes: &[u8], mut each: impl FnMut(Pending, Answer<'_>)) -> Result<usize, String> {
        let mut used = 0;
        while used < bytes.len() {
            let Some((answer, length)) = protocol::answer(shared.server, &bytes[used..])? else { break };
            let pending = self.pending.pop_front();
            let pending = pending.ok_or_else(|| format!("the server answers what was not asked: {answer:?}"))?;
            each(pending, answer);
            used += length;
        }
        Ok(used)
    }

    fn broken(&self, why: &str) -> String {
        format!("a connection broke with {} requests unanswered: {why}", self.pending.len())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Whether somebody may listen there soon.
fn may_come(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound)
}
