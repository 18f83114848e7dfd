//! A dormant process has no control socket. So `farshore stat` and `farshore set` send it [`WAKER`], a signal that is ignored
//! where it has no handler. Our handler wakes the process, in the middle of whatever the thread does. A program that wants the
//! signal for itself is woken before it has it.
//!
//! The handler has interrupted the program, or one of its system calls. The kernel goes on with most calls by itself. A call that
//! ends with `EINTR` as soon as any handler has run goes on here as in a process that is awake ([`knock`], whose table says how);
//! `epoll_wait` and its like with a time do not go on, and end as when a debugger attaches (signal(7)). While the program blocks
//! the signal, or all of them, the process stays dormant.

use crate::dispatch::dormant;
use crate::ground::net::net;
use crate::ground::own_threads::knock;
use crate::ground::text;
use crate::signals;
use core::arch::global_asm;
use core::sync::atomic::{AtomicU64, Ordering};
use farshore_catch::{entry::edge, patch};
use farshore_config::control::WAKER;
use farshore_net::buffers::Memory as _;
use farshore_sys::own::Stack;
use farshore_sys::raw::Errno;
use farshore_sys::signal::{self, Action, Reg, SigInfo, SigSet, UContext, flags};

/// Installs the handler. Returns the action that was there before.
///
/// # Errors
/// What the kernel answers.
pub fn listen() -> Result<Action, Errno> {
    let stack = Stack::new(STACK)?;
    TOP.store(stack.top(), Ordering::Release);
    core::mem::forget(stack);
    let action = Action {
        handler: farshore_on_waker as *const () as u64,
        flags: flags::SIGINFO | flags::RESTORER | flags::RESTART,
        restorer: signal::restorer(),
        mask: SigSet::ALL,
    };
    // SAFETY: the handler does nothing but wake, on a stack of ours.
    unsafe { signal::sigaction(WAKER, Some(&action)) }
}

/// Puts back the action that was there before.
pub fn end(before: &Action) {
    // SAFETY: the action that the program was started with: no handler.
    let _ = unsafe { signal::sigaction(WAKER, Some(before)) };
}

/// Bytes of the stack on which the handler runs: the program's own stack may be small.
const STACK: usize = 64 << 10;
/// Its upper end.
static TOP: AtomicU64 = AtomicU64::new(0);

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
    "mov rsp, [rip + {top}]",
    "call {handler}",
    "mov rsp, rbp",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size farshore_on_waker, . - farshore_on_waker",
    ".popsection",
    top = sym TOP,
    handler = sym on_waker,
);

/// The handler, with all signals blocked: one at a time.
unsafe extern "C" fn on_waker(_signal: i32, _info: *mut SigInfo, context: *mut UContext) {
    const EINTR: i64 = -4;
    // SAFETY: the kernel passes the context to this call alone, valid until the handler returns.
    let context = unsafe { &mut *context };
    let site = context.get(Reg::Rip);
    let ended = context.get(Reg::Rax) as i64 == EINTR;
    let to_be_made = !text::is_ours(site) && edge::is_to_be_made(site);
    // This must be read before a jump lies over it.
    let number = if ended && !text::is_ours(site) { patch::number_before(site) } else { None };
    if !dormant::wake_called(context.mask(), core::ptr::from_ref(context) as u64) {
        return;
    }
    let sp = context.get(Reg::Rsp);
    signals::settle(context, sp);
    if signals::ends_calls(context.mask()) {
        // The call ends, as it would have natively: the program's handler runs when ours returns.
        if to_be_made {
            edge::end_interrupted(context, site);
        }
        return edge::resume_in_stub(context);
    }
    match number {
        Some(number) => {
            keep_what_is_written(number, context);
            knock::go_on_with(context, number, edge::made_again_at(site));
        }
        None if text::is_ours(site) => knock::go_on(context),
        None => edge::resume_in_stub(context),
    }
}

/// For a call that the kernel goes on with, and of which nothing is pinned: leaves to the kernel the memory that the call writes
/// to.
fn keep_what_is_written(number: u64, context: &UContext) {
    let (addr, len) = match number {
        // poll: array and count
        7 => (context.get(Reg::Rdi), context.get(Reg::Rsi).saturating_mul(8)),
        // nanosleep, clock_nanosleep: the rest of the time
        35 => (context.get(Reg::Rsi), 16),
        230 => (context.get(Reg::R10), 16),
        _ => return,
    };
    if addr != 0 && len != 0 {
        net().keep(addr, len);
    }
}
