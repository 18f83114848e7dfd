//! Requests, and polling delegation: replies are sent, and their completions reaped, by a thread that does nothing else (Adios, section 3.4).
//!
//! A request lies in the request buffer of its unithread, and the reply is made in its place. When the unithread has ended, its slot goes to the
//! thread of replies, which sends the reply from the buffer and gives the slot back to the pool when the send is complete. So no worker waits for a
//! peer.
//!
//! In the paper each worker sends by itself and only the completion goes to the dispatcher, since one completion queue can serve several send queues.
//! A completion of io_uring comes to the ring that the request was made in, so here the request goes there too; many replies are then submitted with
//! one call.
//!
//! The runtime's shutdown waits for replies. A peer that takes nothing would keep it for ever: when none of them has got on for [`PATIENCE`], those that
//! are left are given up, and counted as failed.
//!
//! A reply goes to who a socket is connected to, or to an address, which is kept in the control block. What `sendmsg` wants to be told in memory lies on
//! the stack that the unithread has left.

use crate::doze::Doze;
use crate::error::Error;
use crate::far::Kept;
use crate::list::{Fifo, Inbox};
use crate::net::{Name, UdpSocket, message};
use crate::pool::{Pool, Unit};
use crate::ring::{Kick, Ring};
use crate::runtime::Shared;
use crate::{thread, worker};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use io_uring::{opcode, squeue, types};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// How long the runtime's shutdown waits for peers that take nothing of their replies, in nanoseconds.
const PATIENCE: u64 = 1_000_000_000;

/// A request, in the request buffer of the unithread that serves it.
#[derive(Debug)]
pub struct Request<'a> {
    buffer: &'a mut [u8],
    length: usize,
    unit: &'a Unit,
}

impl Request<'_> {
    /// Serves the request of `length` bytes that lies in the caller's buffer.
    pub(crate) fn serve(length: usize, work: impl FnOnce(Request<'_>)) {
        let (worker, index) = worker::inside().expect("a unithread");
        let pool = &worker.shared.pool;
        // SAFETY: this unithread's buffer, which is its own while it runs, and zeroed memory at first.
        let buffer = unsafe { core::slice::from_raw_parts_mut(pool.buffer(index), pool.shape().buffer_bytes) };
        work(Request { buffer, length, unit: pool.unit(index) });
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
        self.leave_reply(length, Name::default(), || Arc::into_raw(to).cast());
    }

    /// Sends the first `length` bytes of the buffer as a datagram to `peer`, once the unithread has ended. The socket stays open until then, and counts
    /// what could not be sent ([`UdpSocket::replies_failed`]).
    pub fn reply_to(self, socket: Arc<UdpSocket>, length: usize, peer: SocketAddr) {
        self.leave_reply(length, Name::of(peer), || Arc::into_raw(socket).cast());
    }

    /// By an `Arc<OwnedFd>`, or an `Arc<UdpSocket>` if there is a name: see [`socket_of`].
    fn leave_reply(self, length: usize, name: Name, socket: impl FnOnce() -> *const ()) {
        assert!(length <= self.buffer.len(), "a reply of {length} bytes is longer than the buffer of {}", self.buffer.len());
        self.unit.reply_bytes.set(length as u32);
        self.unit.reply_sent.set(0);
        self.unit.reply_name.set(name);
        self.unit.reply_to.set(NonNull::new(socket().cast_mut()));
    }
}

/// What the thread of replies shares with the workers.
#[derive(Debug)]
pub(crate) struct Replies {
    inbox: Inbox,
    doze: Doze,
    kick: Arc<Kick>,
    failed: AtomicU64,
    /// Replies that were left since the thread last took any; near enough to tell many from few.
    untaken: AtomicU32,
}

impl Replies {
    pub(crate) fn new() -> Result<Replies, Error> {
        Ok(Replies {
            inbox: Inbox::default(),
            doze: Doze::default(),
            kick: Arc::new(Kick::new()?),
            failed: AtomicU64::new(0),
            untaken: AtomicU32::new(0),
        })
    }

    /// Keeps what lies in the heap in its place.
    pub(crate) fn keep(&self) -> std::io::Result<Kept> {
        Kept::all(core::slice::from_ref(&*self.kick))
    }

    pub(crate) fn ring(&self) -> Result<Ring, Error> {
        thread::block_signals();
        thread::ask_for_short_turns();
        Ring::new(self.kick.clone())
    }

    /// Unithread `index` has ended and left a reply. Its worker wakes the thread, for several together.
    pub(crate) fn post(&self, pool: &Pool, index: u32) {
        self.inbox.push(pool, index);
        self.untaken.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn untaken(&self) -> u32 {
        self.untaken.load(Ordering::Relaxed)
    }

    pub(crate) fn wake(&self) {
        if self.doze.must_kick() {
            self.kick.kick();
        }
    }

    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// The thread of replies. Ends with the runtime, which waits for replies as for unithreads.
    pub(crate) fn run(&self, shared: &Shared, mut ring: Ring) {
        let mut posted = Fifo::default();
        while !shared.has_ended() {
            self.untaken.store(0, Ordering::Relaxed);
            self.inbox.take(&shared.pool, &mut posted);
            let mut more = Fifo::default();
            while let Some(index) = posted.pop(&shared.pool) {
                if !send(shared, &mut ring, index) {
                    more.push(&shared.pool, index);
                }
            }
            posted = more;
            ring.submit();
            ring.reap(usize::MAX, |user_data, result| self.sent(shared, &mut posted, (user_data - 1) as u32, result));
            if !posted.is_empty() {
                continue;
            }
            self.doze.begin();
            let (stopping, before) = (shared.is_stopping(), worker::now());
            if self.inbox.is_empty() && !shared.has_ended() {
                ring.sleep(stopping.then_some(PATIENCE));
            }
            self.doze.end();
            if stopping && worker::now() - before >= PATIENCE {
                // If there is no room, the next time.
                let _ = ring.cancel_all();
            }
        }
    }

    /// A send is complete: the rest of the reply goes back to `posted`, a slot whose reply is sent to the pool.
    fn sent(&self, shared: &Shared, posted: &mut Fifo, index: u32, result: i32) {
        let unit = shared.pool.unit(index);
        let sent = unit.reply_sent.get() + u32::try_from(result).unwrap_or(0);
        unit.reply_sent.set(sent);
        let again = result == -libc::EINTR || result == -libc::EAGAIN || (result > 0 && sent < unit.reply_bytes.get());
        if again {
            return posted.push(&shared.pool, index);
        }
        let failed = result < 0 || sent < unit.reply_bytes.get();
        self.failed.fetch_add(u64::from(failed), Ordering::Relaxed);
        let by = unit.reply_to.take().expect("set by reply").as_ptr();
        match unit.reply_name.get().bytes() {
            // SAFETY: made by `Arc::into_raw` in `reply`, and taken out once.
            0 => drop(unsafe { Arc::from_raw(by.cast::<OwnedFd>()) }),
            _ => {
                // SAFETY: as above, in `reply_to`.
                let socket = unsafe { Arc::from_raw(by.cast::<UdpSocket>()) };
                socket.failed.fetch_add(u64::from(failed), Ordering::Relaxed);
            }
        }
        shared.pool.give(index);
        shared.dismiss();
    }
}

/// Puts the send of what is left of a reply into the ring. False: there is no room now.
fn send(shared: &Shared, ring: &mut Ring, index: u32) -> bool {
    let unit = shared.pool.unit(index);
    let request = match unit.reply_name.get().bytes() {
        0 => rest_of_stream(&shared.pool, index),
        _ => datagram(&shared.pool, index),
    };
    // SAFETY: buffer, stack and socket stay until the completion: the slot is not given back before.
    unsafe { ring.push(&request.user_data(u64::from(index) + 1)) }.is_ok()
}

/// The socket of the reply of slot `index`.
fn socket_of(unit: &Unit) -> RawFd {
    let by = unit.reply_to.get().expect("posted with a reply");
    match unit.reply_name.get().bytes() {
        // SAFETY: kept alive by the reference that `reply` gave away.
        0 => unsafe { by.cast::<OwnedFd>().as_ref() }.as_raw_fd(),
        // SAFETY: as above, `reply_to`.
        _ => unsafe { by.cast::<UdpSocket>().as_ref() }.as_fd().as_raw_fd(),
    }
}

fn rest_of_stream(pool: &Pool, index: u32) -> squeue::Entry {
    let unit = pool.unit(index);
    let sent = unit.reply_sent.get();
    let from = pool.buffer(index).wrapping_add(sent as usize);
    let socket = types::Fd(socket_of(unit));
    opcode::Send::new(socket, from, unit.reply_bytes.get() - sent).flags(libc::MSG_NOSIGNAL).build()
}

/// What `sendmsg` reads.
#[repr(C, align(16))]
struct Envelope {
    message: libc::msghdr,
    part: libc::iovec,
}

fn datagram(pool: &Pool, index: u32) -> squeue::Entry {
    let unit = pool.unit(index);
    let at = pool.stack_end(index).cast::<Envelope>().wrapping_sub(1);
    let part = libc::iovec { iov_base: pool.buffer(index).cast(), iov_len: unit.reply_bytes.get() as usize };
    let name = unit.reply_name.as_ptr();
    let message = message(name.cast(), unit.reply_name.get().bytes(), at.cast::<u8>().wrapping_add(PART_AT).cast());
    // SAFETY: the end of the stack, which is aligned; its unithread has left it for good, and the slot is this thread's.
    unsafe { at.write(Envelope { message, part }) };
    opcode::SendMsg::new(types::Fd(socket_of(unit)), at.cast()).flags(libc::MSG_NOSIGNAL as u32).build()
}

const PART_AT: usize = core::mem::offset_of!(Envelope, part);
