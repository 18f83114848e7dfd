//! A worker's own io_uring, in which it also sleeps.
//!
//! A sleeping worker waits for a completion, a deadline, or a kick: another thread's write to its eventfd, which the ring has a read of under way. So
//! one system call waits for all three. Completions are taken from memory, without a call.

use crate::error::Error;
use crate::feed::{self, Feeds};
use core::sync::atomic::AtomicU64;
use io_uring::{IoUring, opcode, squeue, types};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// Requests that are submitted with one call at most. More are submitted by several; the kernel keeps completions beyond twice as many.
const ENTRIES: u32 = 256;
/// `user_data` of the read of the eventfd, and of requests to cancel: no token's raw form.
const KICKED: u64 = u64::MAX;
pub(crate) const CANCELLED: u64 = u64::MAX - 1;

/// What wakes a worker.
#[derive(Debug)]
pub struct Kick(OwnedFd);

impl Kick {
    pub fn new() -> Result<Kick, Error> {
        // SAFETY: makes a descriptor.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(Error::system("cannot make an eventfd (ulimit -n?)", 0));
        }
        // SAFETY: fresh, and ours.
        Ok(Kick(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Ends the worker's sleep, or the next one. May be called in a signal handler.
    pub fn kick(&self) {
        let one = 1u64;
        // SAFETY: eight bytes of ours. It cannot fail: nobody can have kicked 2^64 times.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

/// See the module's head.
pub struct Ring {
    uring: IoUring,
    kick: Arc<Kick>,
    /// Where the kernel reads the eventfd to; nobody looks at it. Outlives the ring.
    kicked: &'static AtomicU64,
    /// A read of the eventfd is under way.
    armed: bool,
    pub(crate) feeds: Feeds,
}

impl Ring {
    pub fn new(kick: Arc<Kick>) -> Result<Ring, Error> {
        let uring = IoUring::new(ENTRIES).map_err(|error| Error::System {
            what: "cannot make an io_uring (kernel.io_uring_disabled?), entries",
            value: u64::from(ENTRIES),
            error,
        })?;
        if !uring.params().is_feature_ext_arg() || !uring.params().is_feature_nodrop() {
            return Err(Error::Config {
                what: "the kernel's io_uring features",
                value: 0,
                want: "EXT_ARG and NODROP (Linux 5.11)",
            });
        }
        // Eight bytes for ever: the kernel may still write them while the ring is taken down.
        Ok(Ring { uring, kick, kicked: Box::leak(Box::new(AtomicU64::new(0))), armed: false, feeds: Feeds::default() })
    }

    /// Puts a request into the queue. It starts with the next [`Ring::submit`] or [`Ring::sleep`].
    ///
    /// # Safety
    /// What the request points to stays valid until its completion has come.
    pub unsafe fn push(&mut self, request: &squeue::Entry) -> std::io::Result<()> {
        for _ in 0..2 {
            // SAFETY: the caller's duty.
            if unsafe { self.uring.submission().push(request) }.is_ok() {
                return Ok(());
            }
            self.submit();
        }
        Err(std::io::Error::from_raw_os_error(libc::EAGAIN))
    }

    /// Asks the kernel to end the request with this `user_data` early.
    pub fn cancel(&mut self, user_data: u64) {
        let request = opcode::AsyncCancel::new(user_data).build().user_data(CANCELLED);
        // SAFETY: it points to nothing. If there is no room the request ends by itself, later.
        let _ = unsafe { self.push(&request) };
    }

    /// Asks the kernel to end all requests early.
    pub fn cancel_all(&mut self) {
        let all = types::CancelBuilder::any().all();
        let request = opcode::AsyncCancel2::new(all).build().user_data(CANCELLED);
        // SAFETY: as above.
        let _ = unsafe { self.push(&request) };
    }

    /// Starts what is in the queue.
    pub fn submit(&mut self) {
        if self.uring.submission().is_empty() {
            return;
        }
        // What could not be submitted (EBUSY, EAGAIN, EINTR) stays in the queue for the next time.
        let _ = self.uring.submitter().submit();
    }

    /// Calls `completed(user_data, result)` for each completion that has come.
    pub fn reap(&mut self, mut completed: impl FnMut(u64, i32)) {
        for entry in self.uring.completion() {
            match entry.user_data() {
                KICKED => self.armed = false,
                CANCELLED => {}
                of_feed if feed::is_feed(of_feed) => {
                    if let Some(waiter) = self.feeds.note(of_feed, entry.result(), entry.flags()) {
                        completed(waiter, 0);
                    }
                }
                token => completed(token, entry.result()),
            }
        }
    }

    /// Gives the kernel a ring of buffers, of which requests that name `group` take one each.
    ///
    /// # Safety
    /// `at` has `entries` (a power of two) entries, whose pages are the ring's until [`Ring::take_buffers`], as are the buffers that it ever names.
    pub(crate) unsafe fn give_buffers(&mut self, at: *mut types::BufRingEntry, entries: u16, group: u16) -> std::io::Result<()> {
        // SAFETY: the caller's duty.
        unsafe { self.uring.submitter().register_buf_ring_with_flags(at.expose_provenance() as u64, entries, group, 0) }
    }

    /// Takes them back. No request that takes buffers of `group` is under way.
    pub(crate) fn take_buffers(&mut self, group: u16) -> std::io::Result<()> {
        self.uring.submitter().unregister_buf_ring(group)
    }

    /// Sleeps until a completion, a kick, or for `ns` nanoseconds; may return early. Starts what is in the queue.
    pub fn sleep(&mut self, ns: Option<u64>) {
        if !self.armed {
            let read =
                opcode::Read::new(types::Fd(self.kick.0.as_raw_fd()), self.kicked.as_ptr().cast(), 8).build().user_data(KICKED);
            // SAFETY: the eight bytes are never freed.
            self.armed = unsafe { self.push(&read) }.is_ok();
        }
        let wait = match (ns, self.armed) {
            (ns, true) => ns,
            // It could not be kicked: a short sleep, and again.
            (ns, false) => Some(ns.unwrap_or(u64::MAX).min(1_000_000)),
        };
        let time = wait.map(|ns| types::Timespec::new().sec(ns / 1_000_000_000).nsec((ns % 1_000_000_000) as u32));
        let mut args = types::SubmitArgs::new();
        if let Some(time) = &time {
            args = args.timespec(time);
        }
        // Whatever it says (time over, a signal, completions that wait): the caller looks again.
        let _ = self.uring.submitter().submit_with_args(1, &args);
    }
}

impl core::fmt::Debug for Ring {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Ring").field("armed", &self.armed).finish_non_exhaustive()
    }
}
