//! A memcached on sockets: a unithread for each connection and each datagram.
//!
//! What a client can make the server hold: a connection has two buffers of [`BUFFER`] bytes on its stack, a line of a `get` that does not fit there (up to
//! `--max-line`), one item that is being sent and one that is being received. Commands are taken from what has been read and answered in order; no more is
//! read before the answers are sent, so a client that does not read them is not read from.
//!
//! **UDP.** Nobody knows who has sent a datagram: its sender may be somebody else, who is to get the answer. So what is no command has no answer, an answer has at
//! most [`Answers::longest`] bytes, one datagram if nothing else was asked for, and a longer one is an error that says to ask by TCP. The answers that are gathered at a
//! time have a sixteenth of the memory for items at most.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

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
        let mut output = [0; udp::DATAGRAM_MAX];
        let mut replies = Replies::new(&mut output, self.answers.begin());
        // Half a command is no request, and has no answer.
        let fed = Session::of_datagram(self).feed(text, &mut replies);
        let nonsense = matches!(fed, Ok((_, Next::Nonsense)));
        let whole = fed.and_then(|_| replies.finish());
        let bytes = match &whole {
            Ok(whole) => &whole.bytes[..],
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory => b"SERVER_ERROR out of memory for answers over UDP\r\n",
            Err(_) => b"SERVER_ERROR the answer is too long for UDP: ask by TCP\r\n",
        };
        if bytes.is_empty() {
            return if nonsense {
                datagram.malformed()
            };
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

/// What answers over UDP may take.
#[derive(Debug)]
pub struct Answers {
    /// Bytes of one.
    longest: usize,
    /// Bytes of all that are gathered at a time.
    most: usize,
    gathered: AtomicUsize,
}

impl Answers {
    /// Of `longest` bytes at most, beside a store of `memory` bytes.
    pub(super) fn new(longest: usize, memory: usize) -> Answers {
        Answers { longest: longest.min(udp::ANSWER_MAX), most: memory / 16, gathered: AtomicUsize::new(0) }
    }

    fn begin(&self) -> Gathered<'_> {
        Gathered { bytes: Vec::new(), of: self }
    }
}

/// One answer.
struct Gathered<'a> {
    bytes: Vec<u8>,
    of: &'a Answers,
}

impl Sink for Gathered<'_> {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Answers { longest, most, gathered } = self.of;
        if self.bytes.len() + bytes.len() > *longest {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        // A number alone. It counts for this answer from here on, whatever comes of it.
        let before = gathered.fetch_add(bytes.len(), Relaxed);
        if before + bytes.len() > *most {
            gathered.fetch_sub(bytes.len(), Relaxed);
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        // No more than is counted.
        self.bytes.reserve_exact(bytes.len());
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }
}

impl Drop for Gathered<'_> {
    fn drop(&mut self) {
        self.of.gathered.fetch_sub(self.bytes.len(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_keep_to_their_limits() {
        let answers = Answers::new(1000, 16 * 2500);
        let mut all = Vec::new();
        for _ in 0..2 {
            let mut one = answers.begin();
            one.send(&[0; 600]).unwrap();
            one.send(&[0; 400]).unwrap();
            assert_eq!(one.send(&[0; 1]).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
            all.push(one);
        }
        let mut third = answers.begin();
        assert_eq!(third.send(&[0; 501]).unwrap_err().kind(), io::ErrorKind::OutOfMemory, "2,500 in all");
        third.send(&[0; 500]).unwrap();
        all.clear();
        third.send(&[0; 500]).unwrap();
        drop(third);
        assert_eq!(answers.gathered.load(Relaxed), 0);
    }
}
