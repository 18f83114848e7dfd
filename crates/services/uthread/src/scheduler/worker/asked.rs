//! What services ask of the worker that they run on: its ring, its timers, a wait; and of the fault path, whether a unithread may be switched away from.

use super::Worker;
use crate::ground::ring::Ring;
use crate::scheduler::list::NONE;
use crate::scheduler::wait::Token;
use core::ops::Range;
use core::sync::atomic::Ordering;

impl Worker {
    /// Sets a timer for `token`.
    pub(crate) fn set_timer(&self, deadline: u64, token: Token) {
        self.with(|inner| inner.timers.set(deadline, token));
    }

    /// Removes the timer of unithread `index`, if it is set.
    pub(crate) fn remove_timer(&self, index: u32) {
        self.with(|inner| inner.timers.remove(index));
    }

    /// This worker's ring, for a moment.
    pub(crate) fn with_ring<R>(&self, work: impl FnOnce(&mut Ring) -> R) -> R {
        self.with(|inner| work(&mut inner.ring))
    }

    /// Puts a request into this worker's ring. It starts before the worker does anything else.
    ///
    /// # Safety
    /// As for [`Ring::push`].
    pub(crate) unsafe fn request(&self, request: &io_uring::squeue::Entry) -> std::io::Result<()> {
        self.with(|inner| {
            // SAFETY: the caller's duty.
            if unsafe { inner.ring.push(request) }.is_ok() {
                return Ok(());
            }
            Err(std::io::Error::from_raw_os_error(libc::EAGAIN))
        })
        .or_else(|_: std::io::Error| {
            // The kernel takes nothing while completions wait.
            self.while_busy(|| self.reap());
            // SAFETY: the caller's duty; the first one was not taken.
            self.with(|inner| unsafe { inner.ring.push(request) })
        })
    }

    /// Puts a request into the ring; also while the worker is busy, if nothing of it is in use.
    ///
    /// # Safety
    /// As for [`Ring::push`].
    pub(crate) unsafe fn push(&self, request: &io_uring::squeue::Entry) -> std::io::Result<()> {
        // SAFETY: the caller's duty.
        self.with_busy(|inner| unsafe { inner.ring.push(request) })
    }

    /// In a signal handler: the unithread that runs was interrupted at this stack pointer, with this signal mask. Its number and its stack, if it may be
    /// switched away from there, which needs `room` bytes below.
    pub(crate) fn interrupted(&self, stack_pointer: u64, room: u64, mask: u64) -> Option<(u32, Range<usize>)> {
        let index = self.current.get();
        if index == NONE || !self.may_switch() || mask != self.mask {
            return None;
        }
        let stack = self.shared.pool.stack(index);
        (stack.start as u64 + room..stack.end as u64).contains(&stack_pointer).then_some((index, stack))
    }

    /// The unithread that runs, which has armed `token`, waits for a fetch, or for a file as for a fetch.
    pub(crate) fn wait_for_fetch(&self, index: u32, token: Token) -> i32 {
        let fetches = &self.desk().fetches;
        fetches.fetch_add(1, Ordering::Relaxed);
        let result = self.wait_for(index, token, self.shared.config.wait, true);
        fetches.fetch_sub(1, Ordering::Relaxed);
        result
    }

    /// Completes a wait of one of this worker's unithreads; by its thread, with nothing of the worker in use.
    pub(crate) fn complete_here(&self, token: Token, result: i32) {
        self.with_busy(|inner| self.complete_own(&mut inner.ready, token, result));
    }

    /// Faults of this worker's that the library has under way. `None`: it has no library.
    pub(crate) fn fetches_under_way(&self) -> Option<u32> {
        self.far.get().map(|far| far.desk.under_way.get())
    }

    /// Looks for completions, and sleeps for at most `ns` nanoseconds if there is `nothing` yet. False: this is the scheduler itself.
    pub(crate) fn progress(&self, ns: u64, nothing: impl Fn() -> bool) -> bool {
        if self.is_busy() {
            return false;
        }
        self.while_busy(|| {
            self.with_busy(|inner| inner.ring.submit());
            self.collect();
            self.sleep_in_place(Some(ns), nothing);
        });
        true
    }
}
