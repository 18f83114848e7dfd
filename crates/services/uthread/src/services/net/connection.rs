//! A connection of a service: requests one after another, in the request buffer of its unithread.

use super::listening::Listening;
use super::service::Core;
use crate::services::sockets::deadline;
use crate::services::sockets::tcp::TcpStream;
use core::sync::atomic::Ordering;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// What a service says of the bytes that have come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frame {
    /// They begin with a whole request, which is so long: at least one byte, and no longer than what has come.
    Whole(usize),
    /// More is to come.
    More,
    /// This will never be a request.
    Malformed,
}

/// What [`Connection::receive`] has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Next {
    /// A request, to be served: [`Connection::request`].
    Request,
    /// A request for which there is no room: too many are under way. It is counted as dropped; the service tells the peer, or ends.
    Overload,
    /// There are no more: the peer has closed, or the service is being stopped.
    End,
}

/// See the module's head. Dropped, it is closed.
#[derive(Debug)]
pub struct Connection<'a> {
    under_way: Option<InFlight>,
    entry: Entry,
    peer: SocketAddr,
    buffer: &'a mut [u8],
    /// Bytes of the buffer that have come,
    filled: usize,
    /// and of these, those of the request that is served.
    taken: usize,
    /// The service is being stopped, and this one has had its last read.
    last: bool,
}

impl<'a> Connection<'a> {
    pub(super) fn new(entry: Entry, peer: SocketAddr, buffer: &'a mut [u8]) -> Connection<'a> {
        Connection { under_way: None, entry, peer, buffer, filled: 0, taken: 0, last: false }
    }

    /// Who is at the other end.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The stream, for what goes beyond requests.
    pub fn stream(&self) -> &TcpStream {
        &self.entry.stream
    }

    /// Waits for the next request; the one before is over. `frame` is asked whenever more has come.
    ///
    /// Errors: the peer was idle for too long (`TimedOut`), has closed within a request (`UnexpectedEof`), the request is malformed or longer than
    /// the limit (`InvalidData`); all but the second are counted. Then the service can send an error, and ends; if bytes of the peer's are left unread, the kernel resets the
    /// connection, and the error may not arrive.
    pub fn receive(&mut self, mut frame: impl FnMut(&[u8]) -> Frame) -> io::Result<Next> {
        self.forget();
        let until = deadline(self.core().limits.idle);
        loop {
            if self.filled > 0 {
                match frame(&self.buffer[..self.filled]) {
                    Frame::Whole(bytes) => return Ok(self.begin(bytes)),
                    Frame::More => {}
                    Frame::Malformed => return Err(self.refuse_malformed()),
                }
            }
            if self.filled == self.buffer.len() {
                self.core().tally.too_long.add();
                let why = format!("a request is longer than {} bytes (Limits::request_bytes)", self.filled);
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            if self.core().is_closing() && (self.last || self.filled == 0) {
                return Ok(Next::End);
            }
            if self.read_more(until)? == 0 {
                return if self.filled == 0 { Ok(Next::End) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// The request that was received last.
    pub fn request(&self) -> &[u8] {
        &self.buffer[..self.taken]
    }

    /// Sends a reply, or a part of it. `TimedOut`: the peer has taken nothing for too long. Errors are counted.
    ///
    /// The kernel reads `bytes` by itself, so they must not lie in managed memory: what does is copied to the stack first.
    /// That access may fault, and others run meanwhile.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let core = self.core();
        self.entry.stream.write_all_within(bytes, core.limits.idle).inspect_err(|error| {
            core.tally.send_failed.add();
            if error.kind() == io::ErrorKind::TimedOut {
                core.tally.timed_out.add();
            }
        })
    }

    /// Counts the request as malformed: for what shows only when it is served.
    pub fn malformed(&self) {
        self.core().tally.malformed.add();
    }

    fn core(&self) -> &Core {
        &self.entry.listening.core
    }

    /// The request that was served is over: what came behind it moves to the front.
    fn forget(&mut self) {
        self.under_way = None;
        self.buffer.copy_within(self.taken..self.filled, 0);
        self.filled -= self.taken;
        self.taken = 0;
    }

    fn begin(&mut self, bytes: usize) -> Next {
        assert!((1..=self.filled).contains(&bytes), "a whole request of {bytes} bytes, of {} that have come", self.filled);
        self.taken = bytes;
        self.last |= self.core().is_closing();
        self.core().tally.received.add();
        self.under_way = InFlight::enter(&self.entry.listening);
        if self.under_way.is_some() {
            return Next::Request;
        }
        self.core().tally.dropped.add();
        Next::Overload
    }

    fn read_more(&mut self, until: u64) -> io::Result<usize> {
        loop {
            match self.entry.stream.read_until(&mut self.buffer[self.filled..], Some(until)) {
                Ok(bytes) => {
                    self.filled += bytes;
                    return Ok(bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if error.kind() == io::ErrorKind::TimedOut {
                        self.core().tally.timed_out.add();
                    }
                    return Err(error);
                }
            }
        }
    }

    fn refuse_malformed(&self) -> io::Error {
        self.malformed();
        io::Error::new(io::ErrorKind::InvalidData, "this is no request")
    }
}

/// A stream in the registry of its service. Dropped, it leaves, and is closed then.
#[derive(Debug)]
pub(super) struct Entry {
    listening: Arc<Listening>,
    number: usize,
    stream: TcpStream,
}

impl Entry {
    /// `None`: the service is being stopped.
    pub(super) fn enter(listening: &Arc<Listening>, stream: TcpStream) -> Option<Entry> {
        let number = listening.sockets.enter(&stream)?;
        Some(Entry { listening: listening.clone(), number, stream })
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.listening.sockets.leave(self.number);
    }
}

/// A request that is served, until it is dropped.
#[derive(Debug)]
struct InFlight(Arc<Listening>);

impl InFlight {
    fn enter(listening: &Arc<Listening>) -> Option<InFlight> {
        let limit = listening.core.limits.requests_in_flight;
        let more = |now: u32| (now < limit).then_some(now + 1);
        // Relaxed: a number alone.
        let entered = listening.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        entered.is_ok().then(|| InFlight(listening.clone()))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
