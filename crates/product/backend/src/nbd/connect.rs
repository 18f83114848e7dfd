//! A connection to a server: made, and set up so far that requests can be sent.
//!
//! Everything here may run in a fault, when a connection was lost: no allocation, system calls by instructions of our own, and an
//! end after [`Waits::connect_ns`](super::Waits) whatever the server does. Errors come back as values without text.

use super::Waits;
use super::wire::{self, About, Command, GO_MAX, GREETING, OPTION_REPLY, OptionReply, REPLY, Violation};
use crate::sleep;
use farshore_sys::fd::Fd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send, socket_with,
};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// After this long without an answer, a thread that waits on a connection looks at it again.
pub(super) const TICK: Duration = Duration::from_secs(1);
/// Data that the other end does not acknowledge for so long means that the network is cut, in ms.
const UNACKNOWLEDGED_MS: u32 = 10_000;
/// The most that a server may tell about an export at a time, in bytes.
const INFO_MAX: usize = 512;
/// The most text that a server may give with a refusal, in bytes.
const TEXT_MAX: u32 = 64 << 10;

/// Where the server is.
#[derive(Debug)]
pub(super) enum Place {
    Tcp(SocketAddr),
    Unix(SocketAddrUnix),
}

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
        let socket = self.reach(until).map_err(Failure::Unreached)?;
        let about = self.settle(socket.as_fd(), until)?;
        // The kernel ends a wait that is longer, so that the waiting thread can look around.
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(TICK)).map_err(Failure::Unfinished)?;
        Ok((socket, about))
    }

    fn reach(&self, until: u64) -> Result<Fd, Errno> {
        let family = match &self.place {
            Place::Tcp(SocketAddr::V4(_)) => AddressFamily::INET,
            Place::Tcp(SocketAddr::V6(_)) => AddressFamily::INET6,
            Place::Unix(_) => AddressFamily::UNIX,
        };
        // What waits does so in `poll`, with a time.
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
        // SAFETY: open, and given away by `into_raw_fd`. (A standard library's descriptor would be closed through libc.)
        let socket = unsafe { Fd::from_raw(socket.into_raw_fd()) };
        // At once: a program that closes a number and opens a file expects that number.
        let socket = crate::fd::raise(socket)?;
        loop {
            let connected = match &self.place {
                Place::Tcp(address) => connect(&socket, address),
                Place::Unix(address) => connect(&socket, address),
            };
            match connected {
                Ok(()) => break,
                Err(Errno::INPROGRESS | Errno::ALREADY | Errno::INTR) => {
                    ready(socket.as_fd(), PollFlags::OUT, until)?;
                    sockopt::socket_error(&socket)??;
                    break;
                }
                // The queue of a server's socket is full: it has not taken those before us.
                Err(Errno::AGAIN) if sleep::now_ns() < until => sleep::nap(10_000_000),
                Err(errno) => return Err(errno),
            }
        }
        rustix::fs::fcntl_setfl(&socket, rustix::fs::OFlags::empty())?;
        if matches!(self.place, Place::Tcp(_)) {
            sockopt::set_tcp_nodelay(&socket, true)?;
            sockopt::set_tcp_user_timeout(&socket, UNACKNOWLEDGED_MS)?;
            sockopt::set_socket_keepalive(&socket, true)?;
            sockopt::set_tcp_keepidle(&socket, Duration::from_secs(5))?;
            sockopt::set_tcp_keepintvl(&socket, Duration::from_secs(5))?;
        }
        Ok(socket)
    }

    /// The negotiation.
    fn settle(&self, socket: BorrowedFd<'_>, until: u64) -> Result<About, Failure> {
        let mut greeting = [0; GREETING];
        take(socket, &mut greeting, until)?;
        give(socket, &wire::answer(&greeting)?, until)?;
        let mut option = [0; GO_MAX];
        let len = wire::go(&self.export, &mut option);
        give(socket, &option[..len], until)?;
        let mut about = About::default();
        loop {
            // A server that tells without end is never waited for.
            if sleep::now_ns() >= until {
                return Err(Failure::Unfinished(Errno::TIMEDOUT));
            }
            let mut head = [0; OPTION_REPLY];
            take(socket, &mut head, until)?;
            match wire::option_reply(&head)? {
                OptionReply::Ready if about.told => return Ok(about),
                OptionReply::Ready => return Err(Failure::Stranger),
                OptionReply::Info(len) if len as usize > INFO_MAX => return Err(Failure::Stranger),
                OptionReply::Info(len) => {
                    let mut info = [0; INFO_MAX];
                    let info = &mut info[..len as usize];
                    take(socket, info, until)?;
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
    give(socket, &wire::request(Command::Read, COOKIE, offset, into.len() as u32), until)?;
    let mut head = [0; REPLY];
    take(socket, &mut head, until)?;
    let reply = wire::reply(&head)?;
    if reply.cookie != COOKIE {
        return Err(Failure::Stranger);
    }
    if reply.result.is_ok() {
        take(socket, into, until)?;
    }
    Ok(reply.result)
}

/// A socket that leads nowhere: it keeps a descriptor's number until there is a connection.
pub(super) fn nowhere() -> Result<Fd, Errno> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: as in `reach`.
    crate::fd::raise(unsafe { Fd::from_raw(socket.into_raw_fd()) })
}

/// Waits until the socket is ready for `what`, or broken.
pub(super) fn ready(socket: BorrowedFd<'_>, what: PollFlags, until: u64) -> Result<(), Errno> {
    loop {
        let left = until.saturating_sub(sleep::now_ns());
        let time = Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as _ };
        match poll(&mut [PollFd::from_borrowed_fd(socket, what)], Some(&time)) {
            Ok(0) => return Err(Errno::TIMEDOUT),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Whether the other end is gone, as far as the kernel knows.
pub(super) fn is_broken(socket: BorrowedFd<'_>) -> bool {
    let mut all = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // Asked for nothing else, so whatever is answered is an end.
    poll(&mut all, Some(&now)).is_ok_and(|count| count > 0)
}

/// Receives what has come, at most `into`. `Err(AGAIN)`: nothing.
pub(super) fn receive_now(socket: BorrowedFd<'_>, into: &mut [u8]) -> Result<usize, Errno> {
    received(recv(socket, into, RecvFlags::DONTWAIT).map(|(_, len)| len))
}

/// As [`receive_now`], but waits for the first byte, for at most [`TICK`].
pub(super) fn receive(socket: BorrowedFd<'_>, into: &mut [u8]) -> Result<usize, Errno> {
    received(recv(socket, into, RecvFlags::empty()).map(|(_, len)| len))
}

/// The other end is gone when nothing comes any more.
fn received(len: Result<usize, Errno>) -> Result<usize, Errno> {
    match len {
        Ok(0) => Err(Errno::CONNRESET),
        Err(Errno::INTR) => Err(Errno::AGAIN),
        len => len,
    }
}

/// Sends what fits now. A broken connection is an error and no signal.
pub(super) fn send_now(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    loop {
        match send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent,
        }
    }
}

fn take(socket: BorrowedFd<'_>, mut into: &mut [u8], until: u64) -> Result<(), Failure> {
    while !into.is_empty() {
        match receive_now(socket, into) {
            Ok(len) => into = &mut into[len..],
            Err(Errno::AGAIN) => ready(socket, PollFlags::IN, until).map_err(Failure::Unfinished)?,
            Err(errno) => return Err(Failure::Unfinished(errno)),
        }
    }
    Ok(())
}

fn give(socket: BorrowedFd<'_>, mut bytes: &[u8], until: u64) -> Result<(), Failure> {
    while !bytes.is_empty() {
        match send_now(socket, bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(Errno::AGAIN) => ready(socket, PollFlags::OUT, until).map_err(Failure::Unfinished)?,
            Err(errno) => return Err(Failure::Unfinished(errno)),
        }
    }
    Ok(())
}
