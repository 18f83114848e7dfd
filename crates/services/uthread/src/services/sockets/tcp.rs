//! TCP: listeners and streams.

use super::addr::{NAME_BYTES, Name};
use super::{deadline, socket};
use crate::services::io::{For, run};
use core::time::Duration;
use io_uring::{opcode, types};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A socket that connections come to.
#[derive(Debug)]
pub struct TcpListener(OwnedFd);

impl TcpListener {
    /// Listens at `address` (port 0: the kernel chooses one). At most `backlog` connections wait to be accepted; the kernel has a limit of its own
    /// (`net.core.somaxconn`). May be called by any thread.
    pub fn bind(address: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
        let fd = socket::bound(libc::SOCK_STREAM, address)?;
        socket::listen(&fd, backlog)?;
        Ok(TcpListener(fd))
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        socket::local(&self.0)
    }

    /// Waits for a connection. For unithreads.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (mut name, mut bytes) = (Name::default(), NAME_BYTES as libc::socklen_t);
        let request = opcode::Accept::new(types::Fd(self.0.as_raw_fd()), name.as_mut_ptr(), &raw mut bytes)
            .flags(libc::SOCK_CLOEXEC)
            .build();
        // SAFETY: name and length are on this stack, and the listener is borrowed, for the whole of the wait.
        let fd = unsafe { run(request, For::Peer(None)) }?;
        // SAFETY: fresh, and ours.
        let stream = TcpStream(unsafe { OwnedFd::from_raw_fd(fd as i32) });
        let peer = name.get().ok_or_else(socket::strange)?;
        Ok((stream, peer))
    }
}

impl From<OwnedFd> for TcpListener {
    fn from(fd: OwnedFd) -> TcpListener {
        TcpListener(fd)
    }
}

impl AsFd for TcpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A connection. Dropped, it is closed.
///
/// Reading and writing is for unithreads; one may read while another writes. The kernel reads and writes buffers by itself, so they must not lie in
/// managed memory: the unithread's stack or its request buffer are good.
#[derive(Debug)]
pub struct TcpStream(OwnedFd);

impl TcpStream {
    /// Waits for bytes, and reads some; 0: the peer sends no more.
    pub fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        self.read_until(into, None)
    }

    /// The same, for at most `time`; then `TimedOut`.
    pub fn read_within(&self, into: &mut [u8], time: Duration) -> io::Result<usize> {
        self.read_until(into, Some(deadline(time)))
    }

    pub(in crate::services) fn read_until(&self, into: &mut [u8], deadline: Option<u64>) -> io::Result<usize> {
        let length = u32::try_from(into.len()).unwrap_or(u32::MAX);
        let request = opcode::Recv::new(types::Fd(self.0.as_raw_fd()), into.as_mut_ptr(), length).build();
        // SAFETY: `into` and the stream are borrowed for the whole of the wait.
        unsafe { run(request, For::Peer(deadline)) }
    }

    /// Waits for room, and writes some of `from`.
    pub fn write(&self, from: &[u8]) -> io::Result<usize> {
        self.write_until(from, None)
    }

    fn write_until(&self, from: &[u8], deadline: Option<u64>) -> io::Result<usize> {
        let length = u32::try_from(from.len()).unwrap_or(u32::MAX);
        let request = opcode::Send::new(types::Fd(self.0.as_raw_fd()), from.as_ptr(), length).flags(libc::MSG_NOSIGNAL).build();
        // SAFETY: as above.
        unsafe { run(request, For::Peer(deadline)) }
    }

    /// Writes all of `from`, and waits for room as often as it takes. After an error some of it may have been sent.
    pub fn write_all(&self, from: &[u8]) -> io::Result<()> {
        self.write_all_by(from, None)
    }

    /// The same, as long as the peer takes something at least every `time`; if not, `TimedOut`.
    pub fn write_all_within(&self, from: &[u8], time: Duration) -> io::Result<()> {
        self.write_all_by(from, Some(time))
    }

    fn write_all_by(&self, mut from: &[u8], time: Option<Duration>) -> io::Result<()> {
        let mut until = time.map(deadline);
        while !from.is_empty() {
            match self.write_until(from, until) {
                Ok(sent) => {
                    from = &from[sent..];
                    until = time.map(deadline);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Ends one direction or both. Who waits for it goes on.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => libc::SHUT_RD,
            Shutdown::Write => libc::SHUT_WR,
            Shutdown::Both => libc::SHUT_RDWR,
        };
        socket::shut(self.as_fd(), how)
    }

    /// Whether small pieces are sent at once (`TCP_NODELAY`).
    pub fn set_nodelay(&self, at_once: bool) -> io::Result<()> {
        socket::set(&self.0, libc::IPPROTO_TCP, libc::TCP_NODELAY, i32::from(at_once))
    }

    /// Who is at the other end.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        socket::peer(&self.0)
    }

    /// The address of this end.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        socket::local(&self.0)
    }
}

impl AsFd for TcpStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for TcpStream {
    fn from(fd: OwnedFd) -> TcpStream {
        TcpStream(fd)
    }
}

impl From<TcpStream> for OwnedFd {
    fn from(stream: TcpStream) -> OwnedFd {
        stream.0
    }
}
