//! Requests, and polling delegation: replies are sent, and their completions reaped, by a thread that does nothing else (Adios, section 3.4).
//!
//! A request lies in the buffer of its unithread, and the reply is made in its place. The unithread leaves a [`Reply`] when it ends, and its slot goes to
//! the thread of replies (the scheduler's [`Heir`]), which sends the reply from the buffer and gives the slot back to the pool when the send is
//! complete. So no worker waits for a peer.
//!
//! In the paper each worker sends by itself and only the completion goes to the dispatcher, since one completion queue can serve several send queues.
//! A completion of io_uring comes to the ring that the request was made in, so here the request goes there too; many replies are then submitted with
//! one call.
//!
//! The runtime's shutdown waits for replies. A peer that takes nothing would keep it for ever: when none of them has got on for [`PATIENCE`], those that
//! are left are given up, and counted as failed.
//!
//! To compare with, workers send datagrams themselves ([`Replies::Own`]).
//!
//! What `sendmsg` wants to be told in memory lies on the stack that the unithread has left, below the reply.

use crate::ground::error::SpawnError;
use crate::ground::os::now;
use crate::ground::ring::Ring;
use crate::scheduler::config::Replies;
use crate::scheduler::handle::Handle;
use crate::scheduler::heir::Heir;
use crate::scheduler::join;
use crate::scheduler::list::Fifo;
use crate::scheduler::shared::Shared;
use crate::scheduler::worker;
use crate::services::io::{For, run as run_in_ring};
use crate::services::sockets::addr::Name;
use crate::services::sockets::udp::{UdpSocket, message};
use core::sync::atomic::Ordering;
use io_uring::{opcode, types};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

/// How long the runtime's shutdown waits for peers that take nothing of their replies, in nanoseconds.
const PATIENCE: u64 = 1_000_000_000;

/// A request, in the request buffer of the unithread that serves it.
#[derive(Debug)]
pub struct Request<'a> {
    buffer: &'a mut [u8],
    length: usize,
    left: &'a mut Option<Reply>,
}

/// What a unithread leaves that has answered its request. Its bytes begin the buffer.
#[derive(Debug)]
struct Reply {
    to: To,
    bytes: u32,
    /// So many of them were sent.
    sent: u32,
}

impl Reply {
    /// Sends a datagram that unithread `index`, the caller, has left, and waits for it in place. What the kernel does not take now, and all while the runtime ends, stays
    /// left.
    fn send_here(shared: &Shared, index: u32, left: &mut Option<Reply>) {
        let Some(Reply { to: To::Peer(socket, name), bytes, .. }) = left else { return };
        let mut part = libc::iovec { iov_base: shared.pool.buffer(index).cast(), iov_len: *bytes as usize };
        let message = message(name.as_ptr().cast_mut(), name.bytes(), &raw mut part);
        let to = types::Fd(socket.as_fd().as_raw_fd());
        let request = opcode::SendMsg::new(to, &raw const message).flags(libc::MSG_NOSIGNAL as u32).build();
        // SAFETY: name and socket are in `left`, which is borrowed, part and message on this stack, and the buffer is this unithread's, for the whole of the wait.
        match unsafe { run_in_ring(request, For::Send) }.map_err(|error| error.raw_os_error()) {
            Ok(_) => {}
            Err(Some(libc::ECANCELED | libc::EINTR | libc::EAGAIN)) => return,
            Err(_) => {
                shared.heir.failed.fetch_add(1, Ordering::Relaxed);
                socket.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        *left = None;
    }
}

#[derive(Debug)]
enum To {
    /// Who the socket is connected to.
    Connected(Arc<OwnedFd>),
    Peer(Arc<UdpSocket>, Name),
}

impl Request<'_> {
    /// Serves the request of `length` bytes that lies in the caller's buffer. The reply, if it is answered, goes to `left`.
    fn serve(length: usize, left: &mut Option<Reply>, work: impl FnOnce(Request<'_>)) {
        let (worker, index) = worker::inside().expect("a unithread");
        let pool = &worker.shared.pool;
        // SAFETY: this unithread's buffer, which is its own while it runs, and zeroed memory at first.
        let buffer = unsafe { core::slice::from_raw_parts_mut(pool.buffer(index), pool.shape().buffer_bytes) };
        work(Request { buffer, length, left });
        let stamps = worker.shared.stamps.as_ref();
        if let Some(stamps) = stamps {
            if left.is_some() { stamps.answers(index) } else { stamps.forget(index) }
        }
        if worker.shared.config.replies == Replies::Own {
            Reply::send_here(&worker.shared, index, left);
            if let (Some(stamps), None) = (stamps, &left) {
                stamps.ends(index);
            }
        }
    }

    /// The request's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }

    /// The whole buffer: the request, and behind it what earlier ones left. For the reply.
    pub fn buffer(&mut self) -> &mut [u8] {
        self.buffer
    }

    /// Sends the first `length` bytes of the buffer to socket `to`, once the unithread has ended. The descriptor stays open until then.
    pub fn reply(self, to: Arc<OwnedFd>, length: usize) {
        self.leave_reply(length, To::Connected(to));
    }

    /// Sends the first `length` bytes of the buffer as a datagram to `peer`, once the unithread has ended. The socket stays open until then, and counts
    /// what could not be sent ([`UdpSocket::replies_failed`]).
    pub fn reply_to(self, socket: Arc<UdpSocket>, length: usize, peer: SocketAddr) {
        self.leave_reply(length, To::Peer(socket, Name::of(peer)));
    }

    fn leave_reply(self, length: usize, to: To) {
        assert!(length <= self.buffer.len(), "a reply of {length} bytes is longer than the buffer of {}", self.buffer.len());
        *self.left = Some(Reply { to, bytes: length as u32, sent: 0 });
    }
}

impl Handle {
    /// Makes a unithread for a request, which is copied into its request buffer. Nobody joins it.
    pub fn spawn_request<F>(&self, request: &[u8], work: F) -> Result<(), SpawnError>
    where
        F: FnOnce(Request<'_>) + Send + 'static,
    {
        self.spawn_request_at(request, None, work)
    }

    /// The same, for a request that is stamped as one that came at that time (`Config::breakdown`).
    pub(crate) fn spawn_request_at<F>(&self, request: &[u8], arrived: Option<u64>, work: F) -> Result<(), SpawnError>
    where
        F: FnOnce(Request<'_>) + Send + 'static,
    {
        let length = request.len();
        let serve = move |left: &mut Option<Reply>| Request::serve(length, left, work);
        join::spawn_leaving(&self.shared, request, arrived, serve)
    }

    /// Replies that could not be sent, as a whole or in part: the peer is gone.
    pub fn replies_failed(&self) -> u64 {
        self.shared.heir.failed.load(Ordering::Relaxed)
    }
}

/// The thread of replies. Ends with the runtime, which waits for replies as for unithreads.
pub(crate) fn run(shared: &Shared, mut ring: Ring) {
    let mut posted = Fifo::default();
    while !shared.has_ended() {
        shared.heir.take(&shared.pool, &mut posted);
        let mut more = Fifo::default();
        while let Some(index) = posted.pop(&shared.pool) {
            if !send(shared, &mut ring, index) {
                more.push(&shared.pool, index);
            }
        }
        posted = more;
        ring.submit();
        ring.reap(usize::MAX, |user_data, result| sent(shared, &mut posted, (user_data - 1) as u32, result));
        if !posted.is_empty() {
            continue;
        }
        let (stopping, before) = shared.heir.dozing(|nothing| {
            let (stopping, before) = (shared.is_stopping(), now());
            if nothing && !shared.has_ended() {
                ring.sleep(stopping.then_some(PATIENCE));
            }
            (stopping, before)
        });
        if stopping && now() - before >= PATIENCE {
            // If there is no room, the next time.
            let _ = ring.cancel_all();
        }
    }
}

/// The reply that the unithread of slot `index` has left.
fn reply_of(shared: &Shared, index: u32) -> *mut Reply {
    // Replies are all that is ever left.
    Heir::left(&shared.pool, index)
}

/// A send is complete: the rest of the reply goes back to `posted`, a slot whose reply is sent to the pool.
fn sent(shared: &Shared, posted: &mut Fifo, index: u32, result: i32) {
    let at = reply_of(shared, index);
    // SAFETY: written before the slot was posted, which is this thread's until it is given back; the kernel is done with it.
    let reply = unsafe { &mut *at };
    reply.sent += u32::try_from(result).unwrap_or(0);
    let again = result == -libc::EINTR || result == -libc::EAGAIN || (result > 0 && reply.sent < reply.bytes);
    if again {
        return posted.push(&shared.pool, index);
    }
    let failed = u64::from(result < 0 || reply.sent < reply.bytes);
    shared.heir.failed.fetch_add(failed, Ordering::Relaxed);
    // SAFETY: as above; once, since the slot is given back.
    let reply = unsafe { at.read() };
    if let To::Peer(socket, _) = &reply.to {
        socket.failed.fetch_add(failed, Ordering::Relaxed);
    }
    drop(reply);
    if let Some(stamps) = &shared.stamps {
        stamps.ends(index);
    }
    shared.pool.give(index);
    shared.dismiss();
}

/// Puts the send of what is left of a reply into the ring. False: there is no room now.
fn send(shared: &Shared, ring: &mut Ring, index: u32) -> bool {
    let at = reply_of(shared, index);
    // SAFETY: written before the slot was posted, which is this thread's until it is given back.
    let reply = unsafe { &*at };
    let buffer = shared.pool.buffer(index);
    let request = match &reply.to {
        To::Connected(to) => {
            let from = buffer.wrapping_add(reply.sent as usize);
            let socket = types::Fd(to.as_raw_fd());
            opcode::Send::new(socket, from, reply.bytes - reply.sent).flags(libc::MSG_NOSIGNAL).build()
        }
        To::Peer(socket, name) => {
            // SAFETY: below the reply, which is aligned for it; its unithread has left this stack for good.
            let message = unsafe { Envelope::write(at.cast::<Envelope>().wrapping_sub(1), name, buffer, reply.bytes) };
            opcode::SendMsg::new(types::Fd(socket.as_fd().as_raw_fd()), message).flags(libc::MSG_NOSIGNAL as u32).build()
        }
    };
    // SAFETY: buffer, stack and socket stay until the completion: the slot is not given back before.
    unsafe { ring.push(&request.user_data(u64::from(index) + 1)) }.is_ok()
}

/// What `sendmsg` reads.
#[repr(C, align(16))]
struct Envelope {
    message: libc::msghdr,
    part: libc::iovec,
}

impl Envelope {
    /// One at `at`, for a datagram of `bytes` bytes at `buffer`.
    ///
    /// # Safety
    /// It may be written there.
    unsafe fn write(at: *mut Envelope, name: &Name, buffer: *mut u8, bytes: u32) -> *const libc::msghdr {
        const PART_AT: usize = core::mem::offset_of!(Envelope, part);
        let part = libc::iovec { iov_base: buffer.cast(), iov_len: bytes as usize };
        let message = message(name.as_ptr().cast_mut(), name.bytes(), at.cast::<u8>().wrapping_add(PART_AT).cast());
        // SAFETY: the caller's duty.
        unsafe { at.write(Envelope { message, part }) };
        at.cast()
    }
}
