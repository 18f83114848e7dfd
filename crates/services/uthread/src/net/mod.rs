//! TCP and UDP by the worker's own ring, for services written as unithreads.
//!
//! What waits for a peer is a unithread, never its worker: each wait is a request in the ring that all else of the worker waits in too. What the
//! kernel reads and writes meanwhile (addresses, messages, buffers) lies on the stack of the unithread that waits, or in its request buffer.
//!
//! A wait ends with the peer, with its deadline (`TimedOut`), or with the runtime's shutdown (`ECANCELED`), in each case after the kernel has let go
//! of the memory. A wait for a peer is no fetch: it counts neither for the choice of a worker nor for polling, and `Config::wait` does not apply.

mod addr;
mod buffers;
mod connection;
mod datagrams;
mod limits;
mod listening;
mod receiver;
mod registry;
mod service;
mod socket;
mod tcp;
mod udp;

pub(crate) use addr::Name;
pub use connection::{Connection, Frame, Next};
pub use datagrams::{Datagram, UdpServer};
pub use limits::{Counts, Limits};
pub use listening::TcpServer;
pub use tcp::{TcpListener, TcpStream};
pub use udp::UdpSocket;
pub(crate) use udp::message;

use crate::error::{Error, SpawnError};
use core::time::Duration;

/// The time of the worker's clock that is `time` from now.
fn deadline(time: Duration) -> u64 {
    crate::worker::now().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Why a service has no unithread to begin with.
fn not_spawned(error: SpawnError) -> Error {
    Error::System { what: "a service cannot start, unithreads", value: 1, error: std::io::Error::other(error) }
}
