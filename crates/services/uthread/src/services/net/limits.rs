//! What a service allows, and what it has counted.

use crate::ground::error::Error;
use crate::scheduler::config::Config;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

/// What a service allows. Beyond a limit something is refused and counted; nothing queues up without bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Connections at a time, each of which has a unithread. One more is closed at once.
    pub connections: u32,
    /// Bytes of a request, at most the request buffer's (`Config::buffer_bytes`).
    pub request_bytes: usize,
    /// How long a connection may take to bring a whole request, and how long to take any bytes of a reply. Then it is closed.
    pub idle: Duration,
    /// Requests that are served at a time.
    pub requests_in_flight: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { connections: 1024, request_bytes: 2048, idle: Duration::from_secs(60), requests_in_flight: 1024 }
    }
}

impl Limits {
    pub(super) fn check(&self, config: &Config) -> Result<(), Error> {
        let refuse = |what, value, want| Err(Error::Config { what, value, want });
        if self.request_bytes > config.buffer_bytes || self.request_bytes == 0 {
            return refuse("request_bytes", self.request_bytes as u64, "1 to buffer_bytes of the runtime");
        }
        if self.connections == 0 {
            return refuse("connections", 0, "at least 1");
        }
        if self.requests_in_flight == 0 {
            return refuse("requests_in_flight", 0, "at least 1");
        }
        Ok(())
    }
}

/// What a service has counted since it began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Connections that were served.
    pub accepted: u64,
    /// Connections that were closed at once: the limit, or no unithread was free.
    pub refused: u64,
    /// Connections that could not be accepted, for example because no descriptor was free. They were tried again.
    pub accept_failed: u64,
    /// Connections that are open now.
    pub open: u64,
    /// Whole requests that came, also those that were dropped; for UDP all datagrams, also malformed ones and those that were too long.
    pub received: u64,
    /// Requests that were not served: too many under way, or no unithread was free.
    pub dropped: u64,
    /// Datagrams that the kernel dropped, since the socket's buffer was full. They are not among those that came.
    pub overflowed: u64,
    /// Requests that were longer than the limit.
    pub too_long: u64,
    /// Requests that the service did not understand.
    pub malformed: u64,
    /// Connections that ended because the peer brought no request, or took no reply, for too long.
    pub timed_out: u64,
    /// Replies that could not be sent, as a whole or in part.
    pub send_failed: u64,
    /// Receives of UDP that failed and were tried again.
    pub receive_failed: u64,
}

/// The counters behind [`Counts`]. Each is a number alone, so that Relaxed is enough.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) accepted: Counter,
    pub(super) refused: Counter,
    pub(super) accept_failed: Counter,
    pub(super) received: Counter,
    pub(super) dropped: Counter,
    pub(super) too_long: Counter,
    pub(super) malformed: Counter,
    pub(super) timed_out: Counter,
    pub(super) send_failed: Counter,
    pub(super) receive_failed: Counter,
}

impl Tally {
    /// As they are now, one after another: connections that are open, and what sockets count, the caller knows.
    pub(super) fn read(&self) -> Counts {
        Counts {
            accepted: self.accepted.get(),
            refused: self.refused.get(),
            accept_failed: self.accept_failed.get(),
            open: 0,
            received: self.received.get(),
            dropped: self.dropped.get(),
            overflowed: 0,
            too_long: self.too_long.get(),
            malformed: self.malformed.get(),
            timed_out: self.timed_out.get(),
            send_failed: self.send_failed.get(),
            receive_failed: self.receive_failed.get(),
        }
    }
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
