//! Datagrams as they come: one receive that completes again and again, into buffers that the kernel takes by itself.
//!
//! So a datagram costs no system call, and one wake of the receiver takes all that have come. A receive ends when no buffer is left, or for some other
//! reason of the kernel's; then the next one is begun. Belongs to one unithread, and so to one ring.

use super::buffers::Buffers;
use super::service::Core;
use crate::ground::error::{Error, Stopped};
use crate::ground::feed::{self, Arrival, Queue};
use crate::ground::os;
use crate::ground::ring::CANCELLED;
use crate::scheduler::api::yield_now;
use crate::scheduler::config::WaitMode;
use crate::scheduler::worker::{self, Worker};
use crate::services::sockets::addr::{NAME_BYTES, Name};
use crate::services::sockets::udp::{ARRIVAL_BYTES, UdpSocket, arrived, message};
use core::mem::ManuallyDrop;
use io_uring::types::{Fd, RecvMsgOut};
use io_uring::{opcode, squeue};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

/// Bytes that the kernel puts before a datagram and its control data: four numbers, and the address.
const BEFORE: usize = 16 + NAME_BYTES;

/// What was received.
pub(super) enum Got<'a> {
    /// A datagram, its sender, and when it came, by the monotonic clock: that if it is asked for.
    Datagram(&'a [u8], SocketAddr, Option<u64>),
    /// One that was longer than the buffers.
    TooLong,
    /// None: the receive has ended, as it does when buffers are out.
    Nothing,
    /// None: an error of the kernel's.
    Failed,
}

pub(super) struct Receiver<'a> {
    worker: &'a Worker,
    index: u32,
    socket: Arc<UdpSocket>,
    buffers: ManuallyDrop<Buffers>,
    feed: u16,
    /// Bytes of control data before each datagram: the kernel says when it came, if requests are stamped.
    control: usize,
    /// How far the clock of that is ahead of the monotonic one, in ns.
    ahead: u64,
    /// A receive is under way.
    armed: bool,
    /// Its end was asked for.
    cancelled: bool,
}

impl Receiver<'_> {
    /// For datagrams of at most `bytes`.
    pub(super) fn open(socket: Arc<UdpSocket>, bytes: usize) -> Result<Self, Error> {
        let (worker, index) = worker::inside().expect("the receiver is a unithread");
        // Where the kernel does not tell, a datagram came when it was taken.
        let told = worker.shared.stamps.is_some() && socket.tell_arrivals().is_ok();
        let control = if told { ARRIVAL_BYTES } else { 0 };
        let buffers = Buffers::new(BEFORE + control + bytes)?;
        // SAFETY: mapped for it, aligned, and zeroed, which is an empty message.
        let form = unsafe { &mut *buffers.message() };
        form.msg_namelen = NAME_BYTES as u32;
        form.msg_controllen = control;
        let count = buffers.count();
        // The last completion takes no buffer.
        let queue = Queue::new(usize::from(count) + 1)?;
        let feed = worker.with_ring(|ring| ring.feeds.open(queue)).map_err(|_| Error::Config {
            what: "services that receive datagrams on one worker",
            value: 4096,
            want: "fewer at a time",
        })?;
        let entries = buffers.entries();
        // SAFETY: as many entries, a power of two; they name buffers of the same mapping alone, and `drop` takes all back before it unmaps that.
        let given = worker.with_ring(|ring| unsafe { ring.give_buffers(entries, count, feed) });
        if let Err(error) = given {
            drop(worker.with_ring(|ring| ring.feeds.close(feed)));
            return Err(Error::System {
                what: "cannot give the kernel buffers to receive, number",
                value: u64::from(count),
                error,
            });
        }
        let buffers = ManuallyDrop::new(buffers);
        Ok(Receiver { worker, index, socket, buffers, feed, control, ahead: 0, armed: false, cancelled: false })
    }

    pub(super) fn is_armed(&self) -> bool {
        self.armed
    }

    /// Begins to receive. It may fail when the kernel has no memory: try again.
    pub(super) fn arm(&mut self) -> std::io::Result<()> {
        let socket = Fd(self.socket.as_fd().as_raw_fd());
        let request = opcode::RecvMsgMulti::new(socket, self.buffers.message(), self.feed).build();
        self.push(&request.user_data(feed::user_data(self.feed)))?;
        self.armed = true;
        Ok(())
    }

    fn push(&self, request: &squeue::Entry) -> std::io::Result<()> {
        // SAFETY: socket, message and buffers stay until the last completion: `drop` waits for it.
        unsafe { self.worker.request(request) }
    }

    /// What has come and was not taken.
    pub(super) fn take(&mut self) -> Option<Arrival> {
        let arrival = self.worker.with_ring(|ring| ring.feeds.take(self.feed))?;
        self.armed &= arrival.has_more();
        Some(arrival)
    }

    /// Reads the clocks before some are looked at, if the kernel says when they came.
    pub(super) fn read_clocks(&mut self) {
        if self.control > 0 {
            self.ahead = os::real_ahead();
        }
    }

    /// Looks at what has come. Its buffer goes back by [`Receiver::give`].
    pub(super) fn look(&self, arrival: Arrival) -> Got<'_> {
        let (bytes, number) = match (arrival.result, arrival.buffer()) {
            (bytes @ 0.., Some(number)) => (bytes as usize, number),
            (error, _) if error == -libc::ENOBUFS || error == -libc::ECANCELED => return Got::Nothing,
            _ => return Got::Failed,
        };
        // SAFETY: taken for this arrival, which is complete; the borrow of `self` keeps it from being given.
        let bytes = unsafe { self.buffers.bytes(number, bytes) };
        let mut form = message(core::ptr::null_mut(), NAME_BYTES as u32, core::ptr::null_mut());
        form.msg_controllen = self.control;
        let Ok(message) = RecvMsgOut::parse(bytes, &form) else { return Got::Failed };
        match Name::read(message.name_data()) {
            _ if message.is_payload_truncated() => Got::TooLong,
            Some(peer) => {
                let came = self.worker.shared.stamps.as_ref().map(|_| match arrived(message.control_data()) {
                    Some(real) => real.saturating_sub(self.ahead),
                    None => os::now(),
                });
                Got::Datagram(&bytes[BEFORE + self.control..][..message.payload_data().len()], peer, came)
            }
            None => Got::Failed,
        }
    }

    /// Gives the arrival's buffer, if it has one, to the kernel again.
    pub(super) fn give(&mut self, arrival: Arrival) {
        if let Some(number) = arrival.buffer() {
            self.buffers.give(number);
        }
    }

    /// Shows the kernel what was given.
    pub(super) fn publish(&self) {
        self.buffers.publish();
    }

    /// Waits until something has come, or the service ends.
    pub(super) fn wait(&self, core: &Core) -> Result<(), Stopped> {
        core.wait(|token| self.worker.with_ring(|ring| ring.feeds.wait(self.feed, token.into_raw())))
    }

    /// Ends the receive that is under way. What comes until its last completion is to be taken as before.
    pub(super) fn cancel(&mut self) {
        let request = opcode::AsyncCancel::new(feed::user_data(self.feed)).build().user_data(CANCELLED);
        while self.armed && !self.cancelled {
            match self.push(&request) {
                Ok(()) => self.cancelled = true,
                Err(_) => yield_now(),
            }
        }
    }

    /// Waits until something has come, whatever ends meanwhile: for a unithread that has cancelled.
    pub(super) fn wait_for_last(&self) {
        let token = self.worker.shared.pool.unit(self.index).wait.arm(self.index);
        if self.worker.with_ring(|ring| ring.feeds.wait(self.feed, token.into_raw())) {
            self.worker.wait(self.index, token, WaitMode::Yield);
        }
    }
}

impl Drop for Receiver<'_> {
    fn drop(&mut self) {
        self.cancel();
        while self.armed {
            while self.take().is_some() {}
            if self.armed {
                self.wait_for_last();
            }
        }
        let (queue, taken) = self.worker.with_ring(|ring| (ring.feeds.close(self.feed), ring.take_buffers(self.feed)));
        drop(queue);
        // SAFETY: taken once, here.
        let buffers = unsafe { ManuallyDrop::take(&mut self.buffers) };
        if taken.is_err() {
            buffers.leak();
        }
    }
}
