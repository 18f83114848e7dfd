//! Requests, and polling delegation: replies are sent, and their completions reaped, by a thread that does nothing else (Adios, section 3.4).
//!
//! A request lies in the request buffer of its unithread, and the reply is made in its place. When the unithread has ended, its slot goes to the
//! thread of replies, which sends the reply from the buffer and gives the slot back to the pool when the send is complete. So no worker waits for a
//! peer.
//!
//! In the paper each worker sends by itself and only the completion goes to the dispatcher, since one completion queue can serve several send queues.
//! A completion of io_uring comes to the ring that the request was made in, so here the request goes there too; many replies are then submitted with
//! one call.

use crate::doze::Doze;
use crate::error::Error;
use crate::far::Kept;
use crate::list::{Fifo, Inbox};
use crate::pool::{Pool, Unit};
use crate::ring::{Kick, Ring};
use crate::runtime::Shared;
use crate::{thread, worker};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use io_uring::{opcode, types};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

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
        assert!(length <= self.buffer.len(), "a reply of {length} bytes is longer than the buffer of {}", self.buffer.len());
        self.unit.reply_bytes.set(length as u32);
        self.unit.reply_sent.set(0);
        self.unit.reply_to.set(NonNull::new(Arc::into_raw(to).cast_mut()));
    }
}

/// What the thread of replies shares with the workers.
#[derive(Debug)]
pub(crate) struct Replies {
    inbox: Inbox,
    doze: Doze,
    kick: Arc<Kick>,
    failed: AtomicU64,
}

impl Replies {
    pub(crate) fn new() -> Result<Replies, Error> {
        Ok(Replies { inbox: Inbox::default(), doze: Doze::default(), kick: Arc::new(Kick::new()?), failed: AtomicU64::new(0) })
    }

    /// Keeps what lies in the heap in its place.
    pub(crate) fn keep(&self) -> std::io::Result<Kept> {
        Kept::all(core::slice::from_ref(&*self.kick))
    }

    pub(crate) fn ring(&self) -> Result<Ring, Error> {
        thread::block_signals();
        Ring::new(self.kick.clone())
    }

    /// Unithread `index` has ended and left a reply.
    pub(crate) fn post(&self, pool: &Pool, index: u32) {
        self.inbox.push(pool, index);
        self.wake();
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
            if self.inbox.is_empty() && !shared.has_ended() {
                ring.sleep(None);
            }
            self.doze.end();
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
        if sent < unit.reply_bytes.get() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        let to = unit.reply_to.take().expect("set by reply");
        // SAFETY: made by `Arc::into_raw` in `reply`, and taken out once.
        drop(unsafe { Arc::from_raw(to.as_ptr()) });
        shared.pool.give(index);
        shared.dismiss();
    }
}

/// Puts the send of what is left of a reply into the ring. False: there is no room now.
fn send(shared: &Shared, ring: &mut Ring, index: u32) -> bool {
    let unit = shared.pool.unit(index);
    let to = unit.reply_to.get().expect("posted with a reply");
    // SAFETY: kept alive by the reference that `reply` gave away.
    let to = unsafe { to.as_ref() }.as_raw_fd();
    let sent = unit.reply_sent.get();
    let from = shared.pool.buffer(index).wrapping_add(sent as usize);
    let request = opcode::Send::new(types::Fd(to), from, unit.reply_bytes.get() - sent).flags(libc::MSG_NOSIGNAL).build();
    // SAFETY: buffer and descriptor stay until the completion: the slot is not given back before.
    unsafe { ring.push(&request.user_data(u64::from(index) + 1)) }.is_ok()
}
