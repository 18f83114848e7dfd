//! The seam to who fetches pages: how a unithread waits for a fetch, from inside a signal handler.
//!
//! ```text
//!  the unithread's own stack            worker                     whoever completes
//!  program's frames
//!   │ touches an absent page
//!  signal frame (all registers)
//!  handler: begin ─▶ token
//!           start the fetch, with the token ─────────────────────▶ …
//!           park ─────────────────────▶ runs other unithreads
//!                                       inbox ◀──────────────────── complete(token, result)
//!           park returns result ◀────── resume
//!  handler maps the page, returns
//!   │ rt_sigreturn: all registers as they were
//!   ▼ the access again
//! ```
//!
//! The signal frame stays on the unithread's stack for as long as it takes, and the unithread with it: this is Adios' universal stack (section 3.2)
//! without a change to the kernel. It is sound because of the following; `begin` checks what can change.
//!
//! 1. **The frame is the unithread's.** The handler runs on the stack that was interrupted: it is installed without `SA_ONSTACK`, or its worker has
//!    no alternate stack. A frame on the alternate stack would be overwritten by the next signal. *Checked:* the stack pointer lies in the
//!    unithread's stack.
//! 2. **The signal mask is the worker's.** During a handler the kernel blocks its signal and `sa_mask`, and a blocked SIGBUS that a fault raises ends
//!    the process. So it is installed with [`HANDLER_FLAGS`] and an empty `sa_mask`: the mask does not change. At its end the kernel puts back the
//!    mask of the frame, on whatever thread that is and whatever it is then. *Checked:* the frame's mask is the one that the worker began with; so a
//!    fault in code that has blocked signals, or in another handler that has, waits in place.
//! 3. **The alternate stack is the worker's.** `rt_sigreturn` also puts back the alternate stack of the time of the signal. *Checked:* the frame's is
//!    the one that the worker began with.
//! 4. **Registers.** The kernel saved them all in the frame, vectors included, and gives the handler clean floating-point control words. The switch
//!    saves what a called function must preserve (`switch.rs`). The thread pointer is in no frame: a unithread stays on its worker. With a shadow
//!    stack the return would fail: refused at the start.
//! 5. **`errno`** is saved and put back around each switch: the program may have faulted between a call and its look at `errno`.
//! 6. **The scheduler is not interrupted half way.** *Checked:* `busy` is 0. It touches no managed memory, so only handlers of other signals can come
//!    in between.
//! 7. **The program is not interrupted where it must not be.** Code that holds a lock, or has thread-local data in two minds (`malloc`'s cache of the
//!    thread, a borrowed `RefCell`), would meet itself on the same thread. This cannot be seen from outside. *Checked:* `hold` is 0 ([`crate::hold`],
//!    `farshore_uthread_hold`), and no panic unwinds. **Whoever joins this to the engine must see to the rest**: hold around the allocator, or keep
//!    its memory unmanaged; and around locks.
//!
//! Where a check fails `begin` says `None`, and the fault is served as an upcall, in place: slower, never wrong.
//!
//! Stacks, and all else of this crate's, must not be managed: the kernel writes signal frames without asking, and `complete` runs where nothing may fault.
//!
//! `begin`, `park` and `complete` allocate nothing, take no lock, and enter the kernel only to wake a worker that sleeps. Other functions of this
//! crate are not for handlers.

use crate::runtime::{Handle, WaitMode};
use crate::wait::Token;
use crate::{thread, worker};
use core::ffi::c_void;
use core::sync::atomic::Ordering;
use std::sync::Arc;

/// How a handler is installed that parks, with an empty `sa_mask`.
pub const HANDLER_FLAGS: i32 = libc::SA_SIGINFO | libc::SA_NODEFER;

/// What the kernel puts back at the end of a signal handler, beside registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Base {
    /// The signal mask: bit n is signal n + 1.
    mask: u64,
    /// The alternate stack: address and bytes.
    alternate: (usize, usize),
}

impl Base {
    /// The signal mask: bit n is signal n + 1.
    pub(crate) fn mask(&self) -> u64 {
        self.mask
    }

    /// As it is now, on this thread.
    pub(crate) fn of_this_thread() -> Base {
        Base { mask: thread::mask(), alternate: thread::alternate_stack() }
    }

    /// As a signal frame has it.
    ///
    /// # Safety
    /// `ucontext` is the third argument of a signal handler that runs.
    pub unsafe fn of_frame(ucontext: *const c_void) -> Base {
        let context = ucontext.cast::<libc::ucontext_t>();
        // SAFETY: the kernel's frame, which begins as libc's type does.
        let stack = unsafe { (*context).uc_stack };
        // SAFETY: as above; a place, not read here.
        let mask = unsafe { &raw const (*context).uc_sigmask };
        // SAFETY: of libc's larger mask the kernel has the first eight bytes.
        let mask = unsafe { mask.cast::<u64>().read_unaligned() };
        Base { mask, alternate: (stack.ss_sp.addr(), stack.ss_size) }
    }
}

/// What a fetch path needs of a scheduler. See the module's head.
pub trait Parking: Sync {
    /// The unithread that was interrupted is about to wait. `None`: the caller is none, or cannot be switched away from now, and waits in place. The
    /// frame's [`Base`] is `None` if the caller is not in a handler.
    ///
    /// A wait that was begun need not be waited for.
    fn begin(&self, frame: Option<Base>) -> Option<Token>;

    /// Waits for the completion of `token`, the latest that `begin` gave to this unithread, and returns its result. Other unithreads run meanwhile,
    /// as the configuration says.
    fn park(&self, token: Token) -> i32;

    /// Ends the wait of `token`, from any thread, in a signal handler or not. False: it was over before.
    fn complete(&self, token: Token, result: i32) -> bool;
}

impl Parking for Handle {
    fn begin(&self, frame: Option<Base>) -> Option<Token> {
        let (worker, index) = worker::inside()?;
        let ours = Arc::ptr_eq(&worker.shared, &self.shared) && worker.may_switch();
        (ours && frame.is_none_or(|frame| frame == worker.base)).then(|| self.shared.pool.unit(index).wait.arm(index))
    }

    fn park(&self, token: Token) -> i32 {
        let (worker, index) = worker::inside().expect("`begin` said that this is a unithread");
        assert!(token.index() == index, "unithread {index} parks with the token of {}", token.index());
        let fetches = &worker.desk().fetches;
        fetches.fetch_add(1, Ordering::Relaxed);
        let result = worker.wait(index, token, self.shared.config.wait);
        fetches.fetch_sub(1, Ordering::Relaxed);
        result
    }

    fn complete(&self, token: Token, result: i32) -> bool {
        self.shared.complete(token, result)
    }
}

/// The way that a fetch is waited for by configuration; for [`crate::io`].
pub(crate) fn mode(handle: &worker::Worker) -> WaitMode {
    handle.shared.config.wait
}
