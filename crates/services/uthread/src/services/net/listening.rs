//! A service of connections: one unithread accepts, and each connection gets one of its own.

use super::connection::{Connection, Entry};
use super::limits::{Counts, Limits};
use super::registry::Registry;
use super::service::{Core, UnderWay};
use crate::ground::error::Error;
use crate::scheduler::api::{sleep, stopping};
use crate::scheduler::handle::Handle;
use crate::scheduler::join::JoinHandle;
use crate::services::request::Request;
use crate::services::sockets::tcp::{TcpListener, TcpStream};
use core::sync::atomic::AtomicU32;
use core::time::Duration;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// When nothing can be accepted (no descriptor is free) it is tried again so much later.
const AGAIN: Duration = Duration::from_millis(10);

/// What a service and its connections share.
#[derive(Debug)]
pub(super) struct Listening {
    pub(super) core: Arc<Core>,
    pub(super) sockets: Registry,
    pub(super) in_flight: AtomicU32,
    address: SocketAddr,
}

/// A service of connections that runs. Dropped, it is stopped.
#[derive(Debug)]
pub struct TcpServer {
    listening: Arc<Listening>,
    acceptor: Option<JoinHandle<()>>,
}

impl TcpServer {
    /// Calls `service` for each connection that comes to `listener`, in a unithread of its own. When it returns, the connection is closed; its error
    /// ends the connection alone.
    pub fn start<S>(handle: &Handle, listener: TcpListener, limits: Limits, service: S) -> Result<TcpServer, Error>
    where
        S: Fn(&mut Connection<'_>) -> io::Result<()> + Send + Sync + 'static,
    {
        limits.check(&handle.shared.config)?;
        let address = listener.local_addr().map_err(|error| Error::System { what: "this is no listener", value: 0, error })?;
        let core = Arc::new(Core::new(handle, limits));
        let listening = Arc::new(Listening { core, sockets: Registry::default(), in_flight: AtomicU32::new(0), address });
        let number = listening.sockets.enter(&listener).expect("the first one");
        let service = Service { listening: listening.clone(), serve: Arc::new(service) };
        let accept = move || {
            service.accept_all(&listener);
            service.listening.sockets.leave(number);
            drop(listener);
            service.listening.core.wait_empty();
        };
        let acceptor = handle.spawn(accept).map_err(super::not_spawned)?;
        Ok(TcpServer { listening, acceptor: Some(acceptor) })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.listening.address
    }

    /// What it has counted.
    pub fn counts(&self) -> Counts {
        let core = &self.listening.core;
        Counts { open: u64::from(core.under_way()), ..core.tally.read() }
    }

    /// Accepts no more. Connections that wait for a request end; requests under way go on, as do whole ones that have come behind them.
    pub fn stop(&self) {
        self.listening.core.close();
        self.listening.sockets.shut_all();
    }

    /// Stops it, and waits until the last connection is closed. What it has counted.
    pub fn join(mut self) -> Counts {
        self.stop();
        if let Some(acceptor) = self.acceptor.take() {
            // Its panic was reported when it came.
            let _ = acceptor.join();
        }
        self.counts()
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the acceptor has.
struct Service<S> {
    listening: Arc<Listening>,
    serve: Arc<S>,
}

impl<S> Service<S>
where
    S: Fn(&mut Connection<'_>) -> io::Result<()> + Send + Sync + 'static,
{
    fn accept_all(&self, listener: &TcpListener) {
        let core = &self.listening.core;
        while !core.is_closing() {
            match listener.accept() {
                Ok((stream, peer)) => match self.begin(stream, peer) {
                    true => core.tally.accepted.add(),
                    false => core.tally.refused.add(),
                },
                Err(_) if core.is_closing() || stopping() => return,
                // The peer has gone before it was accepted.
                Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => {}
                Err(_) => {
                    core.tally.accept_failed.add();
                    if sleep(AGAIN).is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Begins the unithread of a connection. False: there is no room, and the connection is closed.
    fn begin(&self, stream: TcpStream, peer: SocketAddr) -> bool {
        let core = &self.listening.core;
        let Some(under_way) = UnderWay::enter(core, core.limits.connections) else { return false };
        let Some(entry) = Entry::enter(&self.listening, stream) else { return false };
        let (serve, bytes) = (self.serve.clone(), core.limits.request_bytes);
        let work = move |mut request: Request<'_>| {
            // Dropped last: nothing of the service is left when it ends.
            let _under_way = under_way;
            let serve = serve;
            let mut connection = Connection::new(entry, peer, &mut request.buffer()[..bytes]);
            // Its error is the peer's, or was counted where it came.
            let _ = serve(&mut connection);
        };
        core.handle.spawn_request(&[], work).is_ok()
    }
}
