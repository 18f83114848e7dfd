//! A memcached on sockets: a unithread for each connection and each datagram.
//!
//! What a client can make the server hold: a connection has two buffers of [`BUFFER`] bytes on its stack, a line of a `get` that does not fit there (up to
//! `--max-line`), one item that is being sent and one that is being received. Commands are taken from what has been read and answered in order; no more is
//! read before the answers are sent, so who does not read them is not read from.

use std::io;

use farshore_uthread::net::Datagram;

use super::protocol::udp;
use super::reply::{Replies, Sink};
use super::session::{Next, Service, Session};
use super::store::Count;
use crate::service::{self, BUFFER, Connections, Stream};

impl Sink for &Stream {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }
}

impl service::Service for Service {
    fn connections(&self) -> &Connections {
        &self.connections
    }

    fn connection(&self, stream: &Stream) -> io::Result<()> {
        let mut output = [0; BUFFER];
        let mut replies = Replies::new(&mut output, stream);
        let mut session = Session::new(self);
        let mut input = Input { buffer: [0; BUFFER], have: 0, long: Vec::new() };
        loop {
            let next = input.feed(&mut session, &mut replies)?;
            replies.flush()?;
            self.store.counters.add_many(Count::BytesWritten, replies.take_sent());
            if next == Next::Close {
                return Ok(());
            }
            let read = stream.read(&mut input.buffer[input.have..])?;
            if read == 0 {
                return Ok(());
            }
            self.store.counters.add_many(Count::BytesRead, read as u64);
            input.have += read;
        }
    }

    fn datagram(&self, mut datagram: Datagram<'_>) {
        let Some((id, text)) = udp::request(datagram.bytes()) else { return datagram.malformed() };
        self.store.counters.add_many(Count::BytesRead, datagram.bytes().len() as u64);
        let most = (self.store.item_max() + BUFFER).min(udp::ANSWER_MAX);
        let mut output = [0; udp::DATAGRAM_MAX];
        let mut replies = Replies::new(&mut output, Bounded { bytes: Vec::new(), most });
        // Half a command is no request, and has no answer.
        let fed = Session::new(self).feed(text, &mut replies);
        let whole = fed.and_then(|_| replies.finish());
        let bytes = match &whole {
            Ok(whole) => &whole.bytes[..],
            Err(_) => b"SERVER_ERROR the answer is too long for UDP\r\n",
        };
        if bytes.is_empty() {
            return;
        }
        self.store.counters.add_many(Count::BytesWritten, bytes.len() as u64);
        let mut piece = [0; udp::DATAGRAM_MAX];
        let last = udp::count(bytes.len()) - 1;
        for at in 0..last {
            let length = udp::datagram(id, bytes, at, &mut piece);
            if datagram.send(&piece[..length]).is_err() {
                return;
            }
        }
        let length = udp::datagram(id, bytes, last, &mut piece);
        datagram.buffer()[..length].copy_from_slice(&piece[..length]);
        datagram.reply(length);
    }

    fn too_many(&self) -> &'static [u8] {
        b"ERROR Too many open connections\r\n"
    }
}

/// What has come and is not used up.
struct Input {
    /// Where the kernel puts it.
    buffer: [u8; BUFFER],
    have: usize,
    /// A line that did not fit, and what comes before the buffer then.
    long: Vec<u8>,
}

impl Input {
    fn feed<S: Sink>(&mut self, session: &mut Session<'_>, replies: &mut Replies<'_, S>) -> io::Result<Next> {
        if self.long.is_empty() {
            let (used, next) = session.feed(&self.buffer[..self.have], replies)?;
            self.buffer.copy_within(used..self.have, 0);
            self.have -= used;
            if self.have == self.buffer.len() {
                self.long.extend_from_slice(&self.buffer);
                self.have = 0;
            }
            return Ok(next);
        }
        self.long.extend_from_slice(&self.buffer[..self.have]);
        self.have = 0;
        let (used, next) = session.feed(&self.long, replies)?;
        self.long.drain(..used);
        if self.long.len() < self.buffer.len() {
            self.have = self.long.len();
            self.buffer[..self.have].copy_from_slice(&self.long);
            self.long = Vec::new();
        }
        Ok(next)
    }
}

/// Bytes, up to so many.
struct Bounded {
    bytes: Vec<u8>,
    most: usize,
}

impl Sink for Bounded {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.bytes.len() + bytes.len() > self.most {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }
}
