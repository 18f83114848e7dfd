//! Two signals come to a dormant process. `farshore stat` and `farshore set` find no control socket, so they send it [`WAKER`], which is
//! ignored where it has no handler: our handler wakes the process, in the middle of whatever the thread does. A thread that wakes the
//! process sends the others [`sleeping::SIGNAL`]: the same handler stands still, until the process is awake. A program that wants one of
//! the two for itself is woken before it has it.
//!
//! # Where the thread goes on
//!
//! The handler has interrupted the program, or one of its system calls. The kernel goes on with most calls by itself. A call that
//! ends with `EINTR` as soon as any handler has run goes on here as in a process that is awake ([`knock`], whose table says how); a wait
//! with a time that the kernel does not remember begins again, with all of its time ([`TIMED`]). A call that was made natively behind a stub
//! (`catch/src/entry/asleep.rs`) is one of the program's: which one it was, the place says. A thread in text over which a jump has
//! come to lie goes on in the stub, whatever it did. While the program blocks [`WAKER`], or all signals, `farshore stat` does not wake the
//! process.

use crate::dispatch::dormant::{self, Called};
use crate::ground::net::net;
use crate::ground::own_threads::knock;
use crate::ground::thread::actions::{SIG_DFL, SIG_IGN};
use crate::ground::{report, sleeping, text};
use crate::signals;
use core::arch::global_asm;
use core::sync::atomic::{AtomicBool, Ordering};
use farshore_catch::entry::{self, asleep, edge};
use farshore_config::control::WAKER;
use farshore_net::buffers::Memory as _;
use farshore_sys::own::Stack;
use farshore_sys::raw::Errno;
use farshore_sys::signal::{self, Action, How, Reg, SigInfo, SigSet, UContext, flags};
use farshore_sys::{by_thread, tls};

/// The actions that the two signals had before.
#[derive(Debug)]
pub struct Before {
    waker: Action,
    /// None: it is the program's, and threads cannot be stopped.
    stopper: Option<Action>,
}

/// The program was started with [`sleeping::SIGNAL`] ignored.
static IS_IGNORED: AtomicBool = AtomicBool::new(false);

/// Calls of the calling thread, which is the only one, are served on the stack that ends at `calls`.
///
/// # Errors
/// What the kernel answers.
pub fn begin(calls: u64) -> Result<(), Errno> {
    let stack = Stack::new(STACK)?;
    asleep::begin(calls, stack.top());
    core::mem::forget(stack);
    Ok(())
}

/// Installs the handler.
///
/// # Errors
/// What the kernel answers.
pub fn listen() -> Result<Before, Errno> {
    let action = Action {
        handler: farshore_on_waker as *const () as u64,
        flags: flags::SIGINFO | flags::RESTORER | flags::RESTART,
        restorer: signal::restorer(),
        mask: SigSet::ALL,
    };
    // SAFETY: the handler does nothing but stand still or wake, on a stack of ours.
    let take = |signal| unsafe { signal::sigaction(signal, Some(&action)) };
    let stopper = take(sleeping::SIGNAL)?;
    let can_stop = [SIG_DFL, SIG_IGN].contains(&stopper.handler);
    if can_stop {
        // Whoever starts a program may have all signals ignored, or blocked. libc unblocks this one in each thread that it makes.
        IS_IGNORED.store(stopper.handler == SIG_IGN, Ordering::Relaxed);
        signal::sigprocmask(How::Unblock, SigSet::EMPTY.with(sleeping::SIGNAL));
    } else {
        put_back(sleeping::SIGNAL, &stopper);
    }
    Ok(Before { waker: take(WAKER)?, stopper: can_stop.then_some(stopper) })
}

fn put_back(signal: u32, action: &Action) {
    // SAFETY: the action that the program was started with: no handler, or a library's own.
    let _ = unsafe { signal::sigaction(signal, Some(action)) };
}

impl Before {
    /// Whether threads can be stopped.
    pub const fn can_stop(&self) -> bool {
        self.stopper.is_some()
    }

    /// The action that the program finds natively for one of the two signals.
    pub fn action(&self, signal: u64) -> Action {
        if signal == u64::from(WAKER) { self.waker } else { self.stopper.unwrap_or(Action::DEFAULT) }
    }

    /// Puts both back. A signal that waits for a thread that stands still is taken back by the thread ([`sleeping::stand`]).
    pub fn put_back(&self) {
        put_back(WAKER, &self.waker);
        if let Some(stopper) = &self.stopper {
            put_back(sleeping::SIGNAL, stopper);
        }
    }
}

/// Bytes of the stack on which the handler runs in the main thread: the program's own stack may be small.
const STACK: usize = 64 << 10;

unsafe extern "C" {
    fn farshore_on_waker();
}

global_asm!(
    ".pushsection .text.farshore_on_waker, \"ax\", @progbits",
    ".balign 16",
    ".hidden farshore_on_waker",
    ".globl farshore_on_waker",
    ".type farshore_on_waker, @function",
    "farshore_on_waker:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbp, 0",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "mov rax, qword ptr [rip + farshore_tls_asleep@gottpoff]",
    by_thread!("mov rsp, qword ptr fs:[rax + {top}]"),
    "call {handler}",
    "mov rsp, rbp",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size farshore_on_waker, . - farshore_on_waker",
    ".popsection",
    top = const tls::ASLEEP_HANDLER_AT,
    handler = sym on_waker,
);

/// The handler, with all signals blocked: one at a time.
unsafe extern "C" fn on_waker(signal: i32, _info: *mut SigInfo, context: *mut UContext) {
    if signal as u32 == sleeping::SIGNAL && !sleeping::is_stopped() {
        // Somebody has sent it to the program, which has no handler for it.
        if IS_IGNORED.load(Ordering::Relaxed) {
            return;
        }
        report::die_by(sleeping::SIGNAL);
    }
    // SAFETY: the kernel passes the context to this call alone, valid until the handler returns.
    let context = unsafe { &mut *context };
    let made = edge::is_interrupted_here(context);
    let native = edge::leave_native(context);
    let site = context.get(Reg::Rip);
    // The kernel has had it, and wants it made again.
    let restarts = made
        && match native {
            Some(native) => native.to_be_made,
            None => !text::is_ours(site) && edge::is_to_be_made(site),
        };
    let ended = context.get(Reg::Rax) as i64 == entry::EINTR && !native.is_some_and(|native| native.to_be_made);
    let asked = Some(site).filter(|_| ended && native.is_none() && !text::is_ours(site));
    let at = core::ptr::from_ref(context) as u64;
    let Called { awake, number } = dormant::called(signal as u32 == WAKER, context.mask(), at, asked);
    if awake {
        signals::settle(context, context.get(Reg::Rsp));
        if signals::ends_calls(context.mask(), ended) {
            // The call ends, as it would have natively: the program's handler runs when ours returns.
            if restarts {
                edge::end_interrupted(context, site);
            }
            return edge::resume_in_stub(context);
        }
    }
    match native.filter(|_| ended).and_then(|native| native.number).or(number) {
        Some(number) => {
            keep_what_is_used(number, context);
            let start = edge::made_again_at(site);
            if TIMED.contains(&number) {
                edge::go_back(context, number, start)
            } else {
                knock::go_on_with(context, number, start)
            }
        }
        None if text::is_ours(site) => knock::go_on(context),
        None => edge::resume_in_stub(context),
    }
}

/// Waits with a time, given by the call or (for sockets) before it, that a handler ends. They have had no effect: read, write, accept,
/// sendto, recvfrom, sendmsg, recvmsg, semop, msgsnd, msgrcv, rt_sigtimedwait, semtimedop, epoll_wait, epoll_pwait, accept4, recvmmsg,
/// sendmmsg, epoll_pwait2.
const TIMED: [u64; 18] = [0, 1, 43, 44, 45, 46, 47, 65, 69, 70, 128, 220, 232, 281, 288, 299, 307, 441];

/// For a call that the kernel goes on with, and of which nothing is pinned: leaves to the kernel the memory that the call looks at or
/// writes to.
fn keep_what_is_used(number: u64, context: &UContext) {
    let (addr, len) = match number {
        // poll: array and count
        7 => (context.get(Reg::Rdi), context.get(Reg::Rsi).saturating_mul(8)),
        // futex: the word
        202 => (context.get(Reg::Rdi), 4),
        // nanosleep, clock_nanosleep: the rest of the time
        35 => (context.get(Reg::Rsi), 16),
        230 => (context.get(Reg::R10), 16),
        _ => return,
    };
    if addr != 0 && len != 0 {
        net().keep(addr, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_that_a_handler_lets_go_on_is_told_apart() {
        for number in 0..farshore_net::table::COUNT as u64 {
            let is_told = asleep::TOLD_APART.contains(&number);
            assert!(is_told || !TIMED.contains(&number) && !knock::lets_go_on(number), "{number}");
        }
    }
}
