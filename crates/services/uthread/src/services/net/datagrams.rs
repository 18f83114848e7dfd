//! A service of datagrams: one unithread receives, and each datagram gets one of its own.

use super::limits::{Counts, Limits};
use super::receiver::{Got, Receiver};
use super::service::{Core, UnderWay};
use crate::ground::error::{Error, SpawnError};
use crate::ground::feed::Arrival;
use crate::scheduler::api::{sleep, stopping};
use crate::scheduler::handle::Handle;
use crate::scheduler::join::JoinHandle;
use crate::services::channel;
use crate::services::request::Request;
use crate::services::sockets::udp::UdpSocket;
use core::time::Duration;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// After an error of the kernel's (no memory) it is tried again so much later.
const AGAIN: Duration = Duration::from_millis(1);

/// A datagram, in the request buffer of the unithread that serves it. Dropped, it is not answered.
#[derive(Debug)]
pub struct Datagram<'a> {
    request: Request<'a>,
    peer: SocketAddr,
    receiving: &'a Receiving,
}

impl Datagram<'_> {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.request.bytes()
    }

    /// The whole request buffer, which begins with the datagram; for the reply. Behind it there is what earlier requests left.
    pub fn buffer(&mut self) -> &mut [u8] {
        self.request.buffer()
    }

    /// Who has sent it.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Sends the first `length` bytes of the buffer back, once the unithread has ended ([`Request::reply_to`]).
    pub fn reply(self, length: usize) {
        self.request.reply_to(self.receiving.socket.clone(), length, self.peer);
    }

    /// Sends a datagram to the peer at once, and waits for that: for answers of more than one. The last one is better a [`Datagram::reply`].
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.receiving.socket.send_to(bytes, self.peer)
    }

    /// It was not understood: it is counted, and not answered.
    pub fn malformed(self) {
        self.receiving.core.tally.malformed.add();
    }
}

/// What a service and its requests share.
#[derive(Debug)]
struct Receiving {
    core: Arc<Core>,
    socket: Arc<UdpSocket>,
}

/// A service of datagrams that runs. Dropped, it is stopped.
#[derive(Debug)]
pub struct UdpServer {
    receiving: Arc<Receiving>,
    receiver: Option<JoinHandle<()>>,
}

impl UdpServer {
    /// Calls `service` for each datagram that comes to `socket`, in a unithread of its own. Of the limits `request_bytes` and `requests_in_flight` count.
    /// While so many requests are in flight no more are taken: datagrams wait in the socket's buffer, and what that has no room for the network drops.
    /// One for which the runtime has no unithread is dropped, and counted.
    pub fn start<S>(handle: &Handle, socket: UdpSocket, limits: Limits, service: S) -> Result<UdpServer, Error>
    where
        S: Fn(Datagram<'_>) + Send + Sync + 'static,
    {
        limits.check(&handle.shared.config)?;
        let core = Arc::new(Core::new(handle, limits));
        let receiving = Arc::new(Receiving { core, socket: Arc::new(socket) });
        let (tell, hear) = channel::bounded(1);
        let service = Service { receiving: receiving.clone(), serve: Arc::new(service) };
        let receive = move || match Receiver::open(service.receiving.socket.clone(), limits.request_bytes) {
            Ok(receiver) => {
                // Who started it waits for this.
                let _ = tell.send(Ok(()));
                service.run(receiver);
            }
            Err(error) => drop(tell.send(Err(error))),
        };
        let receiver = handle.spawn(receive).map_err(super::not_spawned)?;
        hear.recv().map_err(|_| super::not_spawned(SpawnError::Stopping))??;
        Ok(UdpServer { receiving, receiver: Some(receiver) })
    }

    /// Where it is.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.receiving.socket.local_addr()
    }

    /// What it has counted.
    pub fn counts(&self) -> Counts {
        let Receiving { core, socket } = &*self.receiving;
        Counts { send_failed: socket.replies_failed(), overflowed: socket.overflowed(), ..core.tally.read() }
    }

    /// Requests that are served now.
    pub fn under_way(&self) -> u32 {
        self.receiving.core.under_way()
    }

    /// Receives no more; requests under way go on.
    pub fn stop(&self) {
        self.receiving.core.close();
    }

    /// Stops it, and waits until the last request has been served. What it has counted.
    pub fn join(mut self) -> Counts {
        self.stop();
        if let Some(receiver) = self.receiver.take() {
            // Its panic was reported when it came.
            let _ = receiver.join();
        }
        self.counts()
    }
}

impl Drop for UdpServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the receiver has.
struct Service<S> {
    receiving: Arc<Receiving>,
    serve: Arc<S>,
}

impl<S> Service<S>
where
    S: Fn(Datagram<'_>) + Send + Sync + 'static,
{
    fn run(&self, mut receiver: Receiver<'_>) {
        let mut stopped = false;
        loop {
            let failed = self.serve_all(&mut receiver, stopped);
            stopped |= self.receiving.core.is_closing() || stopping();
            match (stopped, receiver.is_armed()) {
                (true, false) => break,
                (true, true) => {
                    receiver.cancel();
                    receiver.wait_for_last();
                    continue;
                }
                (false, _) if failed => stopped = sleep(AGAIN).is_err(),
                (false, _) => {}
            }
            if !stopped && !self.has_room() {
                stopped |= self.receiving.core.wait_room(self.receiving.core.limits.requests_in_flight).is_err();
            } else if !receiver.is_armed() && receiver.arm().is_err() {
                stopped |= sleep(AGAIN).is_err();
            } else {
                stopped |= receiver.wait(&self.receiving.core).is_err();
            }
        }
        drop(receiver);
        self.receiving.core.wait_empty();
    }

    fn has_room(&self) -> bool {
        self.receiving.core.under_way() < self.receiving.core.limits.requests_in_flight
    }

    /// Serves what has come and may be served now; at the end there is nobody to leave the rest to. Whether a receive has failed.
    fn serve_all(&self, receiver: &mut Receiver<'_>, stopped: bool) -> bool {
        let mut failed = false;
        receiver.read_clocks();
        while (stopped || self.has_room())
            && let Some(arrival) = receiver.take()
        {
            failed |= self.serve(receiver, arrival);
            receiver.give(arrival);
        }
        receiver.publish();
        failed
    }

    fn serve(&self, receiver: &Receiver<'_>, arrival: Arrival) -> bool {
        let tally = &self.receiving.core.tally;
        match receiver.look(arrival) {
            Got::Datagram(bytes, peer, arrived) => {
                tally.received.add();
                if !self.begin(bytes, peer, arrived) {
                    tally.dropped.add();
                }
            }
            Got::TooLong => {
                tally.received.add();
                tally.too_long.add();
            }
            Got::Nothing => {}
            Got::Failed => {
                tally.receive_failed.add();
                return true;
            }
        }
        false
    }

    /// Begins the unithread of a datagram, which came at `arrived` if that is asked for. False: there is no room.
    fn begin(&self, bytes: &[u8], peer: SocketAddr, arrived: Option<u64>) -> bool {
        let core = &self.receiving.core;
        let Some(under_way) = UnderWay::enter(core, core.limits.requests_in_flight) else { return false };
        let (receiving, serve) = (self.receiving.clone(), self.serve.clone());
        let work = move |request: Request<'_>| {
            // Dropped last: nothing of the service is left when it ends.
            let _under_way = under_way;
            let (receiving, serve) = (receiving, serve);
            serve(Datagram { request, peer, receiving: &receiving });
        };
        core.handle.spawn_request_at(bytes, arrived, work).is_ok()
    }
}
