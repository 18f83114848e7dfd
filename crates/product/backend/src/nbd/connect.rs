//! A connection to a server: made, and set up so far that requests can be sent.
//!
//! Everything here may run in a fault, when a connection was lost: no allocation, system calls by instructions of our own, and an
//! end after [`Waits::connect_ns`](super::Waits) whatever the server does. Errors come back as values without text.

use super::Waits;
use super::wire::{self, About, Command, GO_MAX, GREETING, OPTION_REPLY, OptionReply, REPLY, Violation};
use crate::sleep;
use crate::socket::{self, Place, give, take};
use farshore_sys::fd::Fd;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::fmt;

/// The most that a server may tell about an export at a time, in bytes.
const INFO_MAX: usize = 512;
/// The most text that a server may give with a refusal, in bytes.
const TEXT_MAX: u32 = 64 << 10;

/// A server, and the export that is wanted of it.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) place: Place,
    pub(super) export: Box<[u8]>,
    pub(super) waits: Waits,
}

/// Why there is no connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Failure {
    /// It was not made.
    Unreached(Errno),
    /// It was lost, or took too long, before the export was ours.
    Unfinished(Errno),
    /// What answered speaks another protocol.
    Stranger,
    /// The server refuses, by its reason.
    Refused(u32),
}

impl From<Violation> for Failure {
    fn from(_: Violation) -> Failure {
        Failure::Stranger
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Unreached(errno) => write!(f, "no server can be reached there ({errno}): start it, or name another"),
            Failure::Unfinished(Errno::TIMEDOUT) => {
                f.write_str("the server does not answer in time: it may take no more clients (qemu-nbd: -e 0)")
            }
            Failure::Unfinished(errno) => {
                write!(f, "the server ends the connection ({errno}): it may take no more clients, or know no export of that name")
            }
            Failure::Stranger => f.write_str("what answers there is no NBD server of the newer style: look at the address"),
            Failure::Refused(reason) => write!(f, "the server refuses: {}", wire::refusal(*reason)),
        }
    }
}

impl Peer {
    /// A new connection, ready for requests.
    pub(super) fn connect(&self) -> Result<(Fd, About), Failure> {
        let until = sleep::now_ns() + self.waits.connect_ns();
        let socket = socket::reach(&self.place, until).map_err(Failure::Unreached)?;
        let about = self.settle(socket.as_fd(), until)?;
        Ok((socket, about))
    }

    /// The negotiation.
    fn settle(&self, socket: BorrowedFd<'_>, until: u64) -> Result<About, Failure> {
        let mut greeting = [0; GREETING];
        take(socket, &mut greeting, until).map_err(Failure::Unfinished)?;
        give(socket, &wire::answer(&greeting)?, until).map_err(Failure::Unfinished)?;
        let mut option = [0; GO_MAX];
        let len = wire::go(&self.export, &mut option);
        give(socket, &option[..len], until).map_err(Failure::Unfinished)?;
        let mut about = About::default();
        loop {
            // A server that tells without end is never waited for.
            if sleep::now_ns() >= until {
                return Err(Failure::Unfinished(Errno::TIMEDOUT));
            }
            let mut head = [0; OPTION_REPLY];
            take(socket, &mut head, until).map_err(Failure::Unfinished)?;
            match wire::option_reply(&head)? {
                OptionReply::Ready if about.told => return Ok(about),
                OptionReply::Ready => return Err(Failure::Stranger),
                OptionReply::Info(len) if len as usize > INFO_MAX => return Err(Failure::Stranger),
                OptionReply::Info(len) => {
                    let mut info = [0; INFO_MAX];
                    let info = &mut info[..len as usize];
                    take(socket, info, until).map_err(Failure::Unfinished)?;
                    about.learn(info)?;
                }
                OptionReply::Refused(reason, len) => {
                    // The text is for a person who reads the server's log.
                    return if len > TEXT_MAX { Err(Failure::Stranger) } else { Err(Failure::Refused(reason)) };
                }
            }
        }
    }
}

/// Makes one request for `into` over a connection that nobody else uses. Returns what the server answers.
pub(super) fn fetch(socket: BorrowedFd<'_>, offset: u64, into: &mut [u8], until: u64) -> Result<Result<(), Errno>, Failure> {
    const COOKIE: u64 = 1;
    give(socket, &wire::request(Command::Read, COOKIE, offset, into.len() as u32), until).map_err(Failure::Unfinished)?;
    let mut head = [0; REPLY];
    take(socket, &mut head, until).map_err(Failure::Unfinished)?;
    let reply = wire::reply(&head)?;
    if reply.cookie != COOKIE {
        return Err(Failure::Stranger);
    }
    if reply.result.is_ok() {
        take(socket, into, until).map_err(Failure::Unfinished)?;
    }
    Ok(reply.result)
}
