//! What the library asks of a worker (`far.rs` says when).

use super::Worker;
use crate::dispatch::Desk;
use crate::list::NONE;
use crate::ring::FETCH;
use crate::text;
use crate::wait::Token;
use core::sync::atomic::Ordering;
use io_uring::{opcode, types};

impl Worker {
    /// In a signal handler: the unithread that runs was interrupted at this instruction and stack pointer, with this signal mask, and is about to wait; that needs `room`.
    pub(crate) fn begin_interrupted(&self, instruction: u64, stack_pointer: u64, room: u64, mask: u64) -> Option<Token> {
        let index = self.current.get();
        if index == NONE || !self.may_switch() || mask != self.mask {
            return None;
        }
        let stack = self.shared.pool.stack(index);
        let fits = (stack.start as u64 + room..stack.end as u64).contains(&stack_pointer);
        // Last: it looks at the whole stack.
        let guards = self.shared.config.guard_libc;
        let may = fits && !(guards && text::is_on_stack(instruction as usize, stack_pointer as usize..stack.end));
        may.then(|| self.unit(index).wait.arm(index))
    }

    /// The unithread that runs waits for a fetch.
    pub(crate) fn park(&self, token: Token) -> i32 {
        let Desk { fetches, parked, .. } = self.desk();
        fetches.fetch_add(1, Ordering::Relaxed);
        parked.store(parked.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let result = self.wait(token.index(), token, self.shared.config.wait);
        fetches.fetch_sub(1, Ordering::Relaxed);
        result
    }

    /// A fetch of one of this worker's unithreads has ended.
    pub(crate) fn complete_fetch(&self, token: Token) {
        self.with_busy(|inner| self.complete_own(&mut inner.ready, token, 0));
    }

    /// Puts a read into the ring.
    ///
    /// # Safety
    /// The memory can be written until the completion.
    pub(crate) unsafe fn read_for_library(
        &self,
        fd: i32,
        offset: u64,
        to: *mut core::ffi::c_void,
        bytes: u32,
        cookie: u64,
    ) -> i32 {
        let request = opcode::Read::new(types::Fd(fd), to.cast(), bytes).offset(offset).build().user_data(FETCH | cookie);
        // SAFETY: the caller's duty.
        let pushed = self.with_busy(|inner| unsafe { inner.ring.push(&request) });
        pushed.map_or_else(|error| -error.raw_os_error().unwrap_or(libc::EAGAIN), |()| 0)
    }

    /// Looks for completions, and sleeps for at most `ns` nanoseconds if nothing was there. False: this is the scheduler itself, or no worker's place.
    pub(crate) fn progress(&self, ns: u64) -> bool {
        let Some(far) = self.far.get().filter(|_| !self.is_busy()) else { return false };
        let before = far.desk.under_way.get();
        self.while_busy(|| {
            self.with_busy(|inner| inner.ring.submit());
            self.collect();
            self.sleep_in_place(Some(ns), || far.desk.under_way.get() == before);
        });
        true
    }
}
