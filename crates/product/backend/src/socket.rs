//! Connections to servers: made, waited on, and put under numbers that stay.
//!
//! Everything here may run in a fault, when a connection was lost: no allocation, system calls by instructions of our own, and an
//! end at the time that the caller names, whatever the server does.

use crate::sleep;
use core::sync::atomic::{AtomicI32, Ordering};
use farshore_config::ServerPlace;
use farshore_sys::fd::Fd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::{DupFlags, Errno, dup3};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send, socket_with,
};
use std::mem::ManuallyDrop;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

/// The place of no descriptor.
pub(crate) const NO_FD: RawFd = -1;
/// After this long without an answer, a thread that waits on a connection looks at it again.
pub(crate) const TICK: Duration = Duration::from_secs(1);
/// Data that the other end does not acknowledge for so long means that the network is cut, in ms.
const UNACKNOWLEDGED_MS: u32 = 10_000;

/// Where a server is.
#[derive(Debug)]
pub(crate) enum Place {
    Tcp(SocketAddr),
    Unix(SocketAddrUnix),
}

/// Where a server is that a user has named; `Err`: why it cannot be used.
pub(crate) fn place_of(server: &ServerPlace) -> Result<Place, String> {
    match server {
        ServerPlace::Tcp { host, port } => {
            let mut address = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), *port);
            let (ip, zone) = host.split_once('%').map_or((host.as_str(), None), |(ip, zone)| (ip, Some(zone)));
            let read = match zone {
                None => ip.parse().ok().map(|ip| address.set_ip(ip)),
                // An address of a link alone, with the link's number.
                Some(zone) => ip
                    .parse()
                    .ok()
                    .zip(zone.parse().ok())
                    .map(|(ip, zone)| address = SocketAddrV6::new(ip, *port, 0, zone).into()),
            };
            let named =
                || "its host is a name, which only the command `farshore` looks up: give it the host's address".to_owned();
            read.ok_or_else(named).map(|()| Place::Tcp(address))
        }
        ServerPlace::Unix(path) => {
            let address = SocketAddrUnix::new(path.as_path());
            Ok(Place::Unix(address.map_err(|errno| format!("the path of its socket cannot be used ({errno})"))?))
        }
    }
}

/// A connection to what listens at `place`, with nothing said yet, by `until`. A wait for bytes ends after [`TICK`].
pub(crate) fn reach(place: &Place, until: u64) -> Result<Fd, Errno> {
    let family = match place {
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
        let connected = match place {
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
    // The kernel ends a wait that is longer, so that the waiting thread can look around.
    sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(TICK))?;
    if matches!(place, Place::Tcp(_)) {
        sockopt::set_tcp_nodelay(&socket, true)?;
        sockopt::set_tcp_user_timeout(&socket, UNACKNOWLEDGED_MS)?;
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, Duration::from_secs(5))?;
        sockopt::set_tcp_keepintvl(&socket, Duration::from_secs(5))?;
    }
    Ok(socket)
}

/// A socket that leads nowhere: it keeps a descriptor's number until there is a connection.
pub(crate) fn nowhere() -> Result<Fd, Errno> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: as in `reach`.
    crate::fd::raise(unsafe { Fd::from_raw(socket.into_raw_fd()) })
}

/// Waits until the socket is ready for `what`, or broken.
pub(crate) fn ready(socket: BorrowedFd<'_>, what: PollFlags, until: u64) -> Result<(), Errno> {
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
pub(crate) fn is_broken(socket: BorrowedFd<'_>) -> bool {
    let mut all = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // Asked for nothing else, so whatever is answered is an end.
    poll(&mut all, Some(&now)).is_ok_and(|count| count > 0)
}

/// Receives what has come, at most `into`. `Err(AGAIN)`: nothing.
pub(crate) fn receive_now(socket: BorrowedFd<'_>, into: &mut [u8]) -> Result<usize, Errno> {
    received(recv(socket, into, RecvFlags::DONTWAIT).map(|(_, len)| len))
}

/// As [`receive_now`], but waits for the first byte, for at most [`TICK`].
pub(crate) fn receive(socket: BorrowedFd<'_>, into: &mut [u8]) -> Result<usize, Errno> {
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
pub(crate) fn send_now(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    loop {
        match send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent,
        }
    }
}

/// Receives all of `into`, by `until`.
pub(crate) fn take(socket: BorrowedFd<'_>, mut into: &mut [u8], until: u64) -> Result<(), Errno> {
    while !into.is_empty() {
        match receive_now(socket, into) {
            Ok(len) => into = &mut into[len..],
            Err(Errno::AGAIN) => ready(socket, PollFlags::IN, until)?,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Sends all of `bytes`, by `until`.
pub(crate) fn give(socket: BorrowedFd<'_>, mut bytes: &[u8], until: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match send_now(socket, bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(Errno::AGAIN) => ready(socket, PollFlags::OUT, until)?,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Closes what `place` has.
pub(crate) fn close(place: &AtomicI32) {
    let fd = place.swap(NO_FD, Ordering::AcqRel);
    if fd != NO_FD {
        // SAFETY: ours, and nobody uses it any more.
        unsafe { rustix::io::close(fd) };
    }
}

/// Puts `socket` under the number in `place`, in one step with the end of what had it; under a high one where there is none, or where
/// the program's limit of descriptors does not allow the old one any more.
pub(crate) fn replace(place: &AtomicI32, socket: Fd) -> Result<(), Errno> {
    let number = place.load(Ordering::Acquire);
    if number == NO_FD {
        let high = crate::fd::raise(socket)?;
        place.store(high.into_raw(), Ordering::Release);
        return Ok(());
    }
    // SAFETY: the number is ours; it is not closed when this goes away.
    let mut old = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
    match dup3(socket.as_fd(), &mut old, DupFlags::CLOEXEC) {
        // The old number stays, with a socket that is shut down: a thread may be about to use it.
        Err(Errno::BADF) => {
            place.store(crate::fd::raise(socket)?.into_raw(), Ordering::Release);
            Ok(())
        }
        result => result,
    }
}
