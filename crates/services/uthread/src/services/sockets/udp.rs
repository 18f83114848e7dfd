//! UDP sockets.

use super::addr::{NAME_BYTES, Name};
use super::socket;
use crate::services::io::{For, run};
use core::sync::atomic::{AtomicU64, Ordering};
use io_uring::{opcode, types};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A socket for datagrams.
///
/// Receiving and sending is for unithreads, of which several may do so at a time. Buffers must not lie in managed memory (see [`super::tcp::TcpStream`]).
#[derive(Debug)]
pub struct UdpSocket {
    fd: OwnedFd,
    /// Replies that could not be sent.
    pub(crate) failed: AtomicU64,
}

impl UdpSocket {
    /// A socket at `address` (port 0: the kernel chooses one). May be called by any thread.
    pub fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
        Ok(UdpSocket::from(socket::bound(libc::SOCK_DGRAM, address)?))
    }

    /// How many bytes of datagrams the kernel keeps while nobody takes them; what comes on top is lost. Of a user who is not root it takes
    /// `net.core.rmem_max` at most, in silence.
    pub fn set_receive_buffer(&self, bytes: i32) -> io::Result<()> {
        let set = |option| socket::set(&self.fd, libc::SOL_SOCKET, option, bytes);
        set(libc::SO_RCVBUFFORCE).or_else(|_| set(libc::SO_RCVBUF))
    }

    /// Datagrams that were lost because the buffer of [`UdpSocket::set_receive_buffer`] was full. 0 where the kernel does not tell (before Linux 4.12).
    pub fn overflowed(&self) -> u64 {
        socket::overflowed(&self.fd).unwrap_or(0)
    }

    /// From now on the kernel says of each datagram when it came ([`arrived`]).
    pub(crate) fn tell_arrivals(&self) -> io::Result<()> {
        socket::set(&self.fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
    }

    /// Where it is.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        socket::local(&self.fd)
    }

    /// Waits for a datagram; its bytes and its sender. What does not fit into `into` is lost.
    pub fn recv_from(&self, into: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let mut name = Name::default();
        let mut part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let mut message = message(name.as_mut_ptr(), NAME_BYTES as u32, &raw mut part);
        let request = opcode::RecvMsg::new(types::Fd(self.fd.as_raw_fd()), &raw mut message).build();
        // SAFETY: name, part and message are on this stack, and socket and buffer are borrowed, for the whole of the wait.
        let bytes = unsafe { run(request, For::Peer(None)) }?;
        Ok((bytes, name.get().ok_or_else(socket::strange)?))
    }

    /// Sends a datagram.
    pub fn send_to(&self, from: &[u8], to: SocketAddr) -> io::Result<usize> {
        let mut name = Name::of(to);
        let mut part = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
        let bytes = name.bytes();
        let message = message(name.as_mut_ptr(), bytes, &raw mut part);
        let request =
            opcode::SendMsg::new(types::Fd(self.fd.as_raw_fd()), &raw const message).flags(libc::MSG_NOSIGNAL as u32).build();
        // SAFETY: as above.
        unsafe { run(request, For::Peer(None)) }
    }

    /// Replies by [`crate::Request::reply_to`] that could not be sent.
    pub fn replies_failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }
}

impl From<OwnedFd> for UdpSocket {
    fn from(fd: OwnedFd) -> UdpSocket {
        UdpSocket { fd, failed: AtomicU64::new(0) }
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Bytes of control data that say when a datagram came.
pub(crate) const ARRIVAL_BYTES: usize = CONTROL_HEAD + size_of::<libc::timespec>();
/// Bytes of a `cmsghdr`: its length, level and type.
const CONTROL_HEAD: usize = 16;

/// When a datagram came, in ns of the real clock, as its control data say: what [`UdpSocket::tell_arrivals`] asks for.
pub(crate) fn arrived(control: &[u8]) -> Option<u64> {
    let (head, time) = control.split_at_checked(CONTROL_HEAD)?;
    let number = |bytes: &[u8], at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
    let kind = (libc::SCM_TIMESTAMPNS as u64) << 32 | libc::SOL_SOCKET as u64;
    let (seconds, ns) = (number(time, 0)?, number(time, 8)?);
    (number(head, 8)? == kind).then(|| seconds.saturating_mul(1_000_000_000).saturating_add(ns))
}

/// A message of one part, without control data.
pub(crate) fn message(name: *mut libc::sockaddr, bytes: u32, part: *mut libc::iovec) -> libc::msghdr {
    // SAFETY: numbers and pointers; all zero is an empty message.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_name = name.cast();
    message.msg_namelen = bytes;
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message
}
