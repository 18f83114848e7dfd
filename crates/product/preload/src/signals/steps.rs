//! System calls that must be made where they are: `uretprobe` and `uprobe`.
//!
//! The kernel puts them into code of its own in the process (`[uprobes]`, for probes that perf or an eBPF program has set) and looks whether they come from there: made again from our text, the
//! first ends the program by SIGILL, the second does nothing. Syscall User Dispatch traps them like any call. So the thread makes such a call at its place after all: the
//! SIGSYS handler opens the thread's selector, sets `rip` back to the `syscall`, and sets the trap flag. The trap comes one instruction behind the call, which is
//! the kernel's too, and closes the selector. Meanwhile all signals are blocked but those of faults, and the words of the stack that the kernel reads and writes stay in place.

use super::{action_of, frame, pretended, restart_of};
use crate::ground::kept::Pages;
use crate::ground::report;
use crate::ground::runtime::uninterrupted;
use crate::ground::thread::pending::{OURS, Step};
use crate::ground::thread::{self, Thread, actions};
use core::sync::atomic::Ordering;
use farshore_core::page::Access;
use farshore_sys::signal::{self, Handler, Reg, SigInfo, SigSet, UContext};
use farshore_sys::sud;

pub(super) const SIGTRAP: u32 = 5;
const TRAP_TRACE: i32 = 2;
const TRAP: u64 = 1 << 8;
/// What both calls have pushed, and more than they look at.
const WORDS: u64 = 64;

/// Whether the kernel's action of a signal is ours because of that, whatever the program sets.
pub(super) fn has_taken(signal: u32) -> bool {
    signal == SIGTRAP && actions::mine().trap_taken.load(Ordering::Acquire)
}

/// With all signals blocked.
fn take_signal() -> bool {
    let set = || {
        let action = action_of(frame::on_signal as Handler as *const () as u64, restart_of(&actions::get(SIGTRAP)));
        // SAFETY: a handler of ours, which is async-signal-safe and takes what SA_SIGINFO gives.
        unsafe { signal::sigaction(SIGTRAP, Some(&action)) }.is_ok()
    };
    let taken = &actions::mine().trap_taken;
    taken.load(Ordering::Acquire)
        || actions::setting(|| {
            let taken_now = set();
            taken.store(taken_now, Ordering::Release);
            taken_now
        })
}

/// Hook of the SIGSYS handler: the thread is behind one of these calls, which was trapped. Whether it will make it at its place.
#[unsafe(no_mangle)]
extern "C" fn farshore_step_over(context: &mut UContext) -> bool {
    let Some(thread) = thread::current().filter(|_| take_signal()) else { return false };
    let saved = pretended::of_program(thread, context);
    let flags = context.get(Reg::Rflags);
    let pages = Pages::take(thread, context.get(Reg::Rsp), WORDS, Access::Write);
    thread.step.set(Some(Step { saved, trapped_itself: flags & TRAP != 0, pages }));
    thread.selector.store(sud::ALLOW, Ordering::Relaxed);
    thread.shared.pretend(OURS);
    context.set_mask(SigSet::ALL.without(SIGTRAP).minus(OURS));
    for (register, value) in [(Reg::Rip, context.get(Reg::Rip) - 2), (Reg::Rflags, flags | TRAP)] {
        // SAFETY: back to the `syscall`, whose number is in rax; the flag's trap is expected (`over`).
        unsafe { context.set(register, value) };
    }
    true
}

/// In the handler of SIGTRAP: whether it was the trap behind such a call.
pub(super) fn over(thread: &Thread, info: &SigInfo, context: &mut UContext) -> bool {
    if info.code() != TRAP_TRACE {
        return false;
    }
    let Some(Step { saved, trapped_itself, pages }) = thread.step.take() else { return false };
    thread.selector.store(sud::BLOCK, Ordering::Relaxed);
    drop(pages);
    if !trapped_itself {
        // SAFETY: as the program had it.
        unsafe { context.set(Reg::Rflags, context.get(Reg::Rflags) & !TRAP) };
    }
    context.set_mask(saved.minus(OURS));
    pretended::change(thread, SigSet(saved.0 & OURS.0));
    true
}

/// The handler of SIGTRAP has come for the program, which has none.
pub(super) fn by_default(info: &SigInfo) {
    let action = uninterrupted(|| actions::get(SIGTRAP));
    if info.from_kernel() || action.handler == actions::SIG_DFL {
        report::die_by(SIGTRAP);
    }
}
