//! A request and its reply, over a connection that the thread has for itself.

use super::wire::{self, Head, LINE_MAX};
use crate::sleep;
use crate::socket::{give, receive};
use farshore_core::limits::PAGE_SIZE;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

/// What is taken from the kernel at once: a page, and what stands around it. It lies on the stack.
const INPUT: usize = PAGE_SIZE + 256;
const _: () = assert!(INPUT > LINE_MAX);

/// See the module's head.
#[derive(Debug)]
pub(super) struct Talk<'s> {
    socket: BorrowedFd<'s>,
    until: u64,
    input: [u8; INPUT],
    from: usize,
    to: usize,
}

impl<'s> Talk<'s> {
    /// `until`: when the clock says this, an answer that has not come has come too late. (About: by a second more.)
    pub(super) fn new(socket: BorrowedFd<'s>, until: u64) -> Talk<'s> {
        Talk { socket, until, input: [0; INPUT], from: 0, to: 0 }
    }

    pub(super) fn say(&mut self, request: &[u8]) -> Result<(), Errno> {
        give(self.socket, request, self.until)
    }

    /// Receives bytes into `into` by the time that was set.
    fn hear(socket: BorrowedFd<'_>, until: u64, into: &mut [u8]) -> Result<usize, Errno> {
        loop {
            match receive(socket, into) {
                // A tick, or a signal: looks at the clock.
                Err(Errno::AGAIN) if sleep::now_ns() < until => {}
                Err(Errno::AGAIN) => return Err(Errno::TIMEDOUT),
                heard => return heard,
            }
        }
    }

    fn fill(&mut self) -> Result<(), Errno> {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        } else if self.to == INPUT {
            self.input.copy_within(self.from.., 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        self.to += Talk::hear(self.socket, self.until, &mut self.input[self.to..])?;
        // Who tells without end is not listened to for ever.
        if sleep::now_ns() < self.until { Ok(()) } else { Err(Errno::TIMEDOUT) }
    }

    /// The first line of a reply.
    pub(super) fn head(&mut self) -> Result<Head, Errno> {
        let mut seen = 0;
        loop {
            let there = &self.input[self.from..self.to];
            if there.first().is_some_and(|byte| !wire::KINDS.contains(byte)) {
                // It speaks another protocol, and may never end this line.
                return Err(Errno::PROTO);
            }
            if let Some(len) = there[seen..].iter().position(|&byte| byte == b'\n').map(|at| seen + at) {
                let line = there[..len].strip_suffix(b"\r").ok_or(Errno::PROTO)?;
                let head = wire::head(line).map_err(|_| Errno::PROTO);
                self.from += len + 1;
                return head;
            }
            seen = there.len();
            if seen > LINE_MAX {
                return Err(Errno::PROTO);
            }
            self.fill()?;
        }
    }

    /// The bytes of a value, all of `into`, and the end of its line.
    pub(super) fn value(&mut self, into: &mut [u8]) -> Result<(), Errno> {
        let there = into.len().min(self.to - self.from);
        let (first, mut rest) = into.split_at_mut(there);
        first.copy_from_slice(&self.input[self.from..self.from + there]);
        self.from += there;
        while !rest.is_empty() {
            // Straight to their place.
            let len = Talk::hear(self.socket, self.until, rest)?;
            rest = &mut rest[len..];
            if sleep::now_ns() >= self.until {
                return Err(Errno::TIMEDOUT);
            }
        }
        self.end()
    }

    /// Passes over the bytes of a value.
    pub(super) fn pass(&mut self, mut len: usize) -> Result<(), Errno> {
        while len > 0 {
            if self.from == self.to {
                self.fill()?;
            }
            let some = len.min(self.to - self.from);
            self.from += some;
            len -= some;
        }
        self.end()
    }

    fn end(&mut self) -> Result<(), Errno> {
        while self.to - self.from < 2 {
            self.fill()?;
        }
        let is_end = &self.input[self.from..self.from + 2] == b"\r\n";
        self.from += 2;
        if is_end { Ok(()) } else { Err(Errno::PROTO) }
    }

    /// Whether nothing has come that nobody has asked for.
    pub(super) fn is_over(&self) -> bool {
        self.from == self.to
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::Refusal;
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    /// What is made of bytes that come in pieces of this length, and then end.
    fn told<R>(bytes: &[u8], piece: usize, hear: impl FnOnce(&mut Talk<'_>) -> R) -> R {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || bytes.chunks(piece).all(|piece| theirs.write_all(piece).is_ok()));
            hear(&mut Talk::new(ours.as_fd(), sleep::now_ns() + 10_000_000_000))
        })
    }

    #[test]
    fn a_reply_is_the_same_in_whatever_pieces_it_comes() {
        let page: Vec<u8> = (0..4096_u32).map(|n| (n % 251) as u8).collect();
        let mut bytes = b"*3\r\n$4096\r\n".to_vec();
        bytes.extend(&page);
        bytes.extend(b"\r\n$-1\r\n$3\r\na\r\n\r\n-OOM no\r\n");
        for piece in [1, 2, 7, 4096, 4352, 8192] {
            let (mut got, mut rest) = (vec![0; 4096], [0; 3]);
            told(&bytes, piece, |talk| {
                assert_eq!(talk.head(), Ok(Head::Array(Some(3))));
                assert_eq!(talk.head(), Ok(Head::Bulk(Some(4096))));
                talk.value(&mut got).unwrap();
                assert_eq!((talk.head(), talk.head()), (Ok(Head::Bulk(None)), Ok(Head::Bulk(Some(3)))));
                talk.value(&mut rest).unwrap();
                assert_eq!(talk.head(), Ok(Head::Error(Refusal::Full)));
                assert!(talk.is_over());
                assert_eq!(talk.head(), Err(Errno::CONNRESET));
            });
            assert!(got == page && rest == *b"a\r\n", "in pieces of {piece}");
            told(&bytes, piece, |talk| {
                assert_eq!((talk.head(), talk.head()), (Ok(Head::Array(Some(3))), Ok(Head::Bulk(Some(4096)))));
                talk.pass(4096).unwrap();
                assert_eq!(talk.head(), Ok(Head::Bulk(None)));
            });
        }
    }

    #[test]
    fn lines_and_values_have_ends() {
        let endless = vec![b'+'; 64 << 10];
        assert_eq!(told(&endless, 999, |talk| talk.head()), Err(Errno::PROTO));
        assert_eq!(told(b"+OK\n", 9, |talk| talk.head()), Err(Errno::PROTO));
        assert_eq!(told(b"NBDMAGICIHAVEOPT\0\x03", 9, |talk| talk.head()), Err(Errno::PROTO));
        let mut two = [0; 2];
        assert_eq!(told(b"abcd", 9, |talk| talk.value(&mut two)), Err(Errno::PROTO));
        assert_eq!(told(b"abc", 9, |talk| talk.pass(3)), Err(Errno::CONNRESET));
    }

    #[test]
    fn who_says_nothing_or_too_much_is_left() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        rustix::net::sockopt::set_socket_timeout(
            &ours,
            rustix::net::sockopt::Timeout::Recv,
            Some(std::time::Duration::from_millis(20)),
        )
        .unwrap();
        let mut talk = Talk::new(ours.as_fd(), sleep::now_ns() + 50_000_000);
        talk.say(b"hm?").unwrap();
        theirs.read_exact(&mut [0; 3]).unwrap();
        assert_eq!(talk.head(), Err(Errno::TIMEDOUT));
        let mut talk = Talk::new(ours.as_fd(), sleep::now_ns() + 50_000_000);
        std::thread::scope(|scope| {
            scope.spawn(move || while theirs.write_all(&[b'x'; 1000]).is_ok() {});
            assert_eq!(talk.pass(usize::MAX), Err(Errno::TIMEDOUT));
            rustix::net::shutdown(&ours, rustix::net::Shutdown::Both).unwrap();
        });
    }
}
