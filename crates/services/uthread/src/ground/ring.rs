//! A worker's own io_uring, in which it also sleeps.
//!
//! A sleeping worker waits for a completion, a deadline, or a kick: another thread's write to its eventfd, which the ring has a read of under way. So
//! one system call waits for all three. Completions are taken from memory, without a call.

use crate::ground::error::Error;
use crate::ground::feed::{self, Feeds};
use crate::ground::library;
use core::sync::atomic::AtomicU64;
use io_uring::{IoUring, opcode, squeue, types};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// Requests that are submitted with one call at most. More are submitted by several; the kernel keeps completions beyond twice as many.
const ENTRIES: u32 = 256;
/// `user_data` of the read of the eventfd, and of requests to cancel: no token's raw form.
const KICKED: u64 = u64::MAX;
pub(crate) const CANCELLED: u64 = u64::MAX - 1;

/// The completion of a read for the library (`services/far`): the rest is its cookie. No token has this bit, since a pool has at most 2²⁴ unithreads, and no feed.
pub const FETCH: u64 = 1 << 61;

/// Flags of io_uring_enter(2).
const GETEVENTS: u32 = 1;
const EXT_ARG: u32 = 8;

/// The kernel's `struct io_uring_getevents_arg`.
#[repr(C)]
struct WaitArgs {
    mask: u64,
    mask_bytes: u32,
    reserved: u32,
    time: *const types::Timespec,
}

/// Where the kernel reads eventfds to; nobody looks at it. Never managed memory, and there for as long as a ring is being taken down.
static KICKED_TO: AtomicU64 = AtomicU64::new(0);

/// What wakes a worker.
#[derive(Debug)]
pub struct Kick(pub(crate) OwnedFd);

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
    /// A read of the eventfd is under way.
    armed: bool,
    pub(crate) feeds: Feeds,
    /// For tests: the kernel takes nothing.
    #[cfg(test)]
    pub(crate) refuses: bool,
}

impl Ring {
    pub fn new(kick: Arc<Kick>) -> Result<Ring, Error> {
        library::allow_rings();
        // Completions are taken together when the worker enters the kernel, which it does all the time, and interrupt nobody before. (Linux 6.1; before that
        // they interrupt nobody either, but come one by one.)
        let together = IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().build(ENTRIES);
        let build = together.or_else(|_| IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(ENTRIES));
        let uring = build.map_err(|error| Error::System {
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
        Ok(Ring {
            uring,
            kick,
            armed: false,
            feeds: Feeds::new()?,
            #[cfg(test)]
            refuses: false,
        })
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

    /// Asks the kernel to end the request with this `user_data` early. False: there is no room now, and the caller asks again later, or the request might
    /// never end.
    #[must_use]
    pub fn cancel(&mut self, user_data: u64) -> bool {
        let request = opcode::AsyncCancel::new(user_data).build().user_data(CANCELLED);
        // SAFETY: it points to nothing.
        unsafe { self.push(&request) }.is_ok()
    }

    /// Requests that wait for [`Ring::submit`].
    pub fn waiting(&mut self) -> usize {
        self.uring.submission().len()
    }

    /// Asks the kernel to end all requests early. False: as above.
    #[must_use]
    pub fn cancel_all(&mut self) -> bool {
        let all = types::CancelBuilder::any().all();
        let request = opcode::AsyncCancel2::new(all).build().user_data(CANCELLED);
        // SAFETY: as above.
        unsafe { self.push(&request) }.is_ok()
    }

    /// Starts what is in the queue, and has the kernel put completions where [`Ring::reap`] finds them.
    pub fn submit(&mut self) {
        let queue = self.uring.submission();
        let asks = queue.taskrun() || queue.cq_overflow();
        if queue.is_empty() && !asks {
            return;
        }
        drop(queue);
        self.enter(if asks { GETEVENTS } else { 0 }, 0, None);
    }

    /// Enters the kernel. Whatever it says (time over, a signal, no memory, completions that wait): what was not taken stays in the queue, and the caller looks again.
    ///
    /// By libc, not by the crate: under the library a call of libc's costs as much as a call, one of somebody's own instructions a signal.
    fn enter(&mut self, flags: u32, wait: u32, time: Option<u64>) {
        #[cfg(test)]
        if self.refuses {
            return;
        }
        let count = self.uring.submission().len() as u32;
        let time = time.map(|ns| types::Timespec::new().sec(ns / 1_000_000_000).nsec((ns % 1_000_000_000) as u32));
        let args = time.as_ref().map(|time| WaitArgs { mask: 0, mask_bytes: 0, reserved: 0, time });
        let (flags, args, bytes) = match &args {
            Some(args) => (flags | EXT_ARG, core::ptr::from_ref(args), size_of::<WaitArgs>()),
            None => (flags, core::ptr::null(), 0),
        };
        let fd = self.uring.as_raw_fd();
        // SAFETY: our ring; the arguments live until it returns.
        unsafe { libc::syscall(libc::SYS_io_uring_enter, fd, count, wait, flags, args, bytes) };
    }

    /// Calls `completed(user_data, result)` for each completion that has come, `most` at most.
    pub fn reap(&mut self, most: usize, mut completed: impl FnMut(u64, i32)) {
        for entry in self.uring.completion().take(most) {
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
                opcode::Read::new(types::Fd(self.kick.0.as_raw_fd()), KICKED_TO.as_ptr().cast(), 8).build().user_data(KICKED);
            // SAFETY: the eight bytes are a static.
            self.armed = unsafe { self.push(&read) }.is_ok();
        }
        let wait = match (ns, self.armed) {
            (ns, true) => ns,
            // It could not be kicked: a short sleep, and again.
            (ns, false) => Some(ns.unwrap_or(u64::MAX).min(1_000_000)),
        };
        self.enter(GETEVENTS, 1, wait);
    }
}

impl core::fmt::Debug for Ring {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Ring").field("armed", &self.armed).finish_non_exhaustive()
    }
}
