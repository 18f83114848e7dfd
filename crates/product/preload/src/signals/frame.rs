//! How a handler of the program starts and ends.
//!
//! The kernel starts every handler in [`on_signal`] (or in the handlers of [`super::OURS`]), on the alternate stack of the thread's
//! record, with all signals blocked. There the frame is built that the kernel would have built, on the stack on which
//! it would have built it; and the thread goes on in the program's handler, with the program's mask, when ours returns:
//!
//! ```text
//!  program ─signal─▶ on_signal ──writes──▶ ┌ the program's stack, or its alternate one ──────────────────┐
//!     ▲                  │ rt_sigreturn    │ floating-point state │ siginfo │ ucontext │ restorer's address│
//!     │                  ▼                 └──────────────────────────────────────────────────────────────┘
//!     │             its handler ─▶ its restorer ─▶ rt_sigreturn, caught (catch/src/entry/sigsys.rs)
//!     └───────────────────────────────────────────────┘
//! ```
//!
//! Why not by the kernel: it cannot write to a stack that is managed memory and absent (a coroutine's, an alternate stack on the heap): the
//! process would die. And a handler that ran on top of ours would keep the stack that faults are served on, also when it leaves by
//! switching to another context.
//!
//! A signal that comes in the middle of a system call waits for the call's end ([`Deferred`]; the head of `catch/src/entry/edge.rs`): no handler of the program
//! runs on top of our code. One at a time: all signals are blocked from then on.
//!
//! No page of the program's may fault here, since its signal would be blocked, and this is the stack to serve it on: pages are
//! brought and kept first ([`Pages`]), and the kernel is asked whether they can be accessed.

use super::{altstack, pretended, steps};
use crate::ground::kept::Pages;
use crate::ground::report;
use crate::ground::thread::actions::{self, SIG_DFL, SIG_IGN, is_handler};
use crate::ground::thread::pending::{Deferred, OURS, Suspended};
use crate::ground::thread::{self, Thread};
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, Ordering};
use farshore_catch::entry::edge::{self, Effect, Where};
use farshore_core::page::{Access, PageRange};
use farshore_sys::raw::{getpid, gettid};
use farshore_sys::signal::{self, Action, Reg, SIGBUS, SIGSEGV, SIGSYS, SigInfo, SigSet, UContext, flags};

/// What the kernel puts on the stack for a handler, below the floating-point state.
#[repr(C)]
struct Frame {
    restorer: u64,
    context: UContext,
    info: SigInfo,
}

const _: () = assert!(size_of::<Frame>() == 440);

/// Bytes under the stack pointer that belong to the interrupted function.
const RED_ZONE: u64 = 128;
/// What a handler of ours takes of the stack, at most, once it builds a frame.
const OWN_DEPTH: u64 = 16 << 10;
/// Direction, resume and trap: cleared when a handler starts.
const FLAGS_CLEARED: u64 = 1 << 10 | 1 << 16 | 1 << 8;

/// The handler of every signal for which the program has one, but [`super::OURS`].
///
/// # Safety
/// Called by the kernel as a signal handler, with all signals blocked.
pub(super) unsafe extern "C" fn on_signal(signal: i32, info: *mut SigInfo, context: *mut UContext) {
    // SAFETY: the kernel passes it, valid until the handler returns.
    let info = unsafe { &*info };
    // SAFETY: the same, and to this call alone.
    let context = unsafe { &mut *context };
    let thread = thread::current_or_new();
    if signal as u32 == steps::SIGTRAP {
        if steps::over(thread, info, context) {
            return;
        }
        if steps::has_taken(steps::SIGTRAP) && !is_handler(&actions::get(steps::SIGTRAP)) {
            return steps::by_default(info);
        }
    }
    let action = actions::last_handler(signal as u32);
    if is_handler(&action) {
        start(thread, signal as u32, &action, info, context);
    }
}

/// The thread will go on in the program's handler when ours returns, or at the end of its call. If there is no room for the handler's frame, it gets a SIGSEGV, as natively.
pub(super) fn start(thread: &Thread, signal: u32, action: &Action, info: &SigInfo, context: &mut UContext) {
    const TRAP_TRACE: i32 = 2;
    let step = signal == steps::SIGTRAP && info.code() == TRAP_TRACE;
    let effect = Effect { step, ends: action.flags & flags::RESTART == 0 };
    match edge::find(context, effect) {
        Where::Program => start_now(thread, signal, action, info, context),
        Where::Call => defer(thread, signal, action, info, context),
        Where::Step => {}
    }
}

fn start_now(thread: &Thread, signal: u32, action: &Action, info: &SigInfo, context: &mut UContext) {
    if build(thread, signal, action, info, context).is_none() {
        refuse(thread, signal, context);
    }
}

fn defer(thread: &Thread, signal: u32, action: &Action, info: &SigInfo, context: &mut UContext) {
    // A filter of the program's has stopped a call that was made for it.
    let trapped = signal == SIGSYS && info.from_kernel();
    if info.from_kernel() && is_fault(signal, info.code()) {
        report::abort(format_args!("bug: signal {signal} at {:#x} in a system call of the program's", context.get(Reg::Rip)));
    }
    if thread.deferred.get().is_some() || thread::is_nested() {
        // It comes again when it is not blocked any more.
        context.set_mask(context.mask().with(signal));
        if OURS.contains(signal) && !info.from_kernel() {
            pretended::put_back(thread, info);
        } else {
            let _ = signal::queue_again(getpid(), gettid(), info);
        }
        return;
    }
    let saved = pretended::of_program(thread, context);
    let masks = Suspended { saved, during: pretended::during(thread, saved) };
    thread.deferred.set(Some(Deferred { signal, action: *action, info: *info, masks }));
    pretended::enter(thread, OURS);
    context.set_mask(SigSet(!OURS.0));
    edge::defer(context, trapped);
}

/// Raised by an instruction that cannot be made: our code has none.
fn is_fault(signal: u32, code: i32) -> bool {
    const SIGILL: u32 = 4;
    const SIGFPE: u32 = 8;
    const BUS_MCEERR_AO: i32 = 5;
    matches!(signal, SIGILL | SIGFPE | SIGSEGV) || (signal == SIGBUS && code != BUS_MCEERR_AO)
}

/// Hook of the entry: a call has ended with a signal deferred.
#[unsafe(no_mangle)]
extern "C" fn farshore_deliver(context: &mut UContext) {
    let Some((thread, deferred)) = thread::current().and_then(|thread| Some((thread, thread.deferred.take()?))) else {
        report::abort(format_args!("bug: a system call ends with a signal that is not there"));
    };
    let Deferred { signal, action, info, masks } = deferred;
    thread.suspended.set(Some(masks));
    start_now(thread, signal, &action, &info, context);
}

/// What was deferred is nobody's: in a forked child, where no signal waits.
pub fn forget_deferred(thread: &Thread) {
    if let Some(deferred) = thread.deferred.take() {
        thread.shared.pretend(SigSet(deferred.masks.saved.0 & OURS.0));
        edge::forget_deferred();
    }
}

/// The frame of `signal` could not be written or read: what the kernel's `force_sigsegv` does.
pub(super) fn refuse(thread: &Thread, signal: u32, context: &mut UContext) {
    let blocked = pretended::of_program(thread, context).contains(SIGSEGV);
    let action = actions::take(SIGSEGV);
    let info = SigInfo::of_kernel(SIGSEGV);
    if signal == SIGSEGV
        || blocked
        || matches!(action.handler, SIG_DFL | SIG_IGN)
        || build(thread, SIGSEGV, &action, &info, context).is_none()
    {
        report::die_by(SIGSEGV);
    }
}

/// Builds the frame, and lets the context go on in the handler. `None`: the stack has no room; nothing has changed then.
fn build(thread: &Thread, signal: u32, action: &Action, info: &SigInfo, context: &mut UContext) -> Option<()> {
    let sp = context.get(Reg::Rsp);
    let changed = if action.flags & flags::ONSTACK != 0 { altstack::top_for_handler(thread, sp) } else { None };
    let top = changed.unwrap_or(sp.wrapping_sub(RED_ZONE));
    // Without our stack, on a thread that we did not see begin, this handler runs where the frame belongs: below it then.
    let here = (&raw const sp) as u64;
    let top = if altstack::is_ours(thread, here) { top } else { top.min(here.wrapping_sub(OWN_DEPTH)) };
    let floating = floating::size(context.fpstate());
    let floating_at = top.wrapping_sub(floating) & !63;
    let at = (floating_at.wrapping_sub(size_of::<Frame>() as u64) & !15).wrapping_sub(8);
    if (changed.is_some() || altstack::is_on(thread, sp)) && !altstack::contains(thread, at) {
        return None;
    }
    let pages = Pages::take(thread, at, top.checked_sub(at)?, Access::Write)?;
    let masks = pretended::for_handler(thread, context, signal, action);
    let mut saved = Frame { restorer: action.restorer, context: *context, info: *info };
    saved.context.set_mask(masks.saved);
    saved.context.set_fpstate(if floating == 0 { 0 } else { floating_at });
    let stack = thread.program_stack.get();
    saved.context.set_alt_stack(if stack.size == 0 {
        signal::AltStack { flags: signal::AltStack::DISABLE, ..stack }
    } else {
        stack
    });
    // SAFETY: writable memory of the program's stack, which `Pages` has asked the kernel about; nothing of the program's lies there.
    unsafe { (at as *mut Frame).write(saved) };
    // SAFETY: as above, for the bytes behind; the source is the state in our own frame, of that size.
    unsafe { core::ptr::copy_nonoverlapping(context.fpstate() as *const u8, floating_at as *mut u8, floating as usize) };
    drop(pages);
    altstack::disarm(thread);
    // SAFETY: the state in our own frame, of which we have the only copy that is to be restored.
    unsafe { floating::reset(context.fpstate()) };
    let registers = [
        (Reg::Rip, action.handler),
        (Reg::Rsp, at),
        (Reg::Rdi, u64::from(signal)),
        (Reg::Rsi, at + offset_of!(Frame, info) as u64),
        (Reg::Rdx, at + offset_of!(Frame, context) as u64),
        (Reg::Rax, 0),
        (Reg::Rflags, context.get(Reg::Rflags) & !FLAGS_CLEARED),
    ];
    for (register, value) in registers {
        // SAFETY: the program's handler starts with the registers that the kernel would have given it.
        unsafe { context.set(register, value) };
    }
    context.set_mask(masks.kernel);
    pretended::enter(thread, masks.pretended);
    Some(())
}

/// The floating-point and vector state in a signal frame.
mod floating {
    use super::{AtomicU32, Ordering};

    /// Bytes of the old state, which every frame has.
    const LEGACY: u64 = 512;
    /// Where the kernel says how large the whole is: a magic number, bytes, components.
    const MAGIC_AT: u64 = 464;
    const MAGIC: u32 = 0x4650_5853;
    const CONTROL_WORD: u16 = 0x37f;
    const MXCSR: u32 = 0x1f80;
    const MXCSR_AT: u64 = 24;
    const MXCSR_MASK_AT: u64 = 28;
    /// Protection keys: bit 9 of the components.
    const KEYS: u64 = 1 << 9;
    /// Where the register of the protection keys is in the state; 0: not known yet.
    static KEYS_AT: AtomicU32 = AtomicU32::new(0);

    /// Bytes of the state at `at`; 0 if there is none.
    pub(super) fn size(at: u64) -> u64 {
        match described(at) {
            Some((size, _)) => size,
            None if at != 0 => LEGACY,
            None => 0,
        }
    }

    /// Size and components, where the kernel tells them.
    fn described(at: u64) -> Option<(u64, u64)> {
        if at == 0 {
            return None;
        }
        // SAFETY: within the first 512 bytes of a state that the kernel has written.
        let [magic, size] = unsafe { ((at + MAGIC_AT) as *const [u32; 2]).read_unaligned() };
        // SAFETY: as above.
        let components = unsafe { ((at + MAGIC_AT + 8) as *const u64).read_unaligned() };
        (magic == MAGIC).then_some((size.into(), components))
    }

    /// Makes it the state in which a handler starts: registers as after start-up; for protection keys what the kernel has set for the
    /// handler that runs now.
    ///
    /// # Safety
    /// `at` is 0, or a state that the kernel has written and nobody else uses.
    pub(super) unsafe fn reset(at: u64) {
        if at == 0 {
            return;
        }
        let described = described(at);
        // SAFETY: the caller's promise: the legacy part of a state.
        let mask = unsafe { ((at + MXCSR_MASK_AT) as *const u32).read() };
        // SAFETY: as above; what the kernel needs to restore the frame lies behind byte 416.
        unsafe { core::ptr::write_bytes(at as *mut u8, 0, 416) };
        // SAFETY: as above.
        unsafe { (at as *mut u16).write(CONTROL_WORD) };
        // SAFETY: as above.
        unsafe { ((at + MXCSR_AT) as *mut u32).write(MXCSR) };
        // SAFETY: as above.
        unsafe { ((at + MXCSR_MASK_AT) as *mut u32).write(mask) };
        let Some((_, components)) = described else { return };
        let mut in_use = 0;
        if components & KEYS != 0 {
            // SAFETY: the component is there, at the place that the processor names.
            unsafe { ((at + keys_at()) as *mut u32).write(read_keys()) };
            in_use = KEYS;
        }
        // SAFETY: the header behind the old state: which components are not in their first state.
        unsafe { ((at + LEGACY) as *mut u64).write(in_use) };
    }

    fn keys_at() -> u64 {
        let known = KEYS_AT.load(Ordering::Relaxed);
        if known != 0 {
            return known.into();
        }
        let place = core::arch::x86_64::__cpuid_count(0xd, 9).ebx;
        KEYS_AT.store(place, Ordering::Relaxed);
        place.into()
    }

    /// The thread's rights to memory by key.
    fn read_keys() -> u32 {
        let value: u32;
        // SAFETY: the component is in use, so the processor has the register; reading has no effect.
        unsafe { core::arch::asm!("rdpkru", in("ecx") 0, out("eax") value, out("edx") _, options(nomem, nostack)) };
        value
    }
}

/// Hook of the entry's SIGSYS handler: a caught `rt_sigreturn` reads the program's frame. Keeps its pages until [`farshore_let_go`]; false
/// if it cannot be read.
#[unsafe(no_mangle)]
extern "C" fn farshore_hold(addr: u64, len: u64, pinned: &mut u64) -> bool {
    *pinned = 0;
    let Some(thread) = thread::current() else { return true };
    let Some(pages) = Pages::take(thread, addr, len, Access::Read) else { return false };
    *pinned = pages.pinned;
    core::mem::forget(pages);
    true
}

/// See [`farshore_hold`].
#[unsafe(no_mangle)]
extern "C" fn farshore_let_go(addr: u64, len: u64, pinned: u64) {
    drop(Pages { range: PageRange::covering(addr, len), pinned });
}

/// The frame of a caught `rt_sigreturn` cannot be read.
///
/// # Safety
/// Called in a handler, with its own context.
#[unsafe(no_mangle)]
unsafe extern "C" fn farshore_bad_frame(context: *mut UContext) {
    // SAFETY: this function's own condition.
    let context = unsafe { &mut *context };
    match thread::current() {
        Some(thread) => refuse(thread, 0, context),
        None => report::die_by(SIGSEGV),
    }
}
