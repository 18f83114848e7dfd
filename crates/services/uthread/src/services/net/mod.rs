//! TCP and UDP by the worker's own ring, for services written as unithreads.
//!
//! What waits for a peer is a unithread, never its worker: each wait is a request in the ring that all else of the worker waits in too. What the
//! kernel reads and writes meanwhile (addresses, messages, buffers) lies on the stack of the unithread that waits, or in its request buffer.
//!
//! A wait ends with the peer, with its deadline (`TimedOut`), or with the runtime's shutdown (`ECANCELED`), in each case after the kernel has let go
//! of the memory. A wait for a peer is no fetch: it counts neither for the choice of a worker nor for polling, and `Config::wait` does not apply.

mod buffers;
mod connection;
mod datagrams;
mod limits;
mod listening;
mod receiver;
mod registry;
mod service;

pub use crate::services::sockets::tcp::{TcpListener, TcpStream};
pub use crate::services::sockets::udp::UdpSocket;
pub use connection::{Connection, Frame, Next};
pub use datagrams::{Datagram, UdpServer};
pub use limits::{Counts, Limits};
pub use listening::TcpServer;

use crate::ground::error::{Error, SpawnError};

/// Why a service has no unithread to begin with.
fn not_spawned(error: SpawnError) -> Error {
    Error::System { what: "a service cannot start, unithreads", value: 1, error: std::io::Error::other(error) }
}
