//! Where the program ends and a call begins, for signals.
//!
//! The kernel starts a handler between two instructions of the program, or at the edge of a call: before it, with the call to be
//! made or made again, or behind it. Farshore does the same, though a call is thousands of instructions here. When a handler of
//! ours has a signal for the program, it asks [`find`] where the thread is:
//!
//! | `rip` | the stack | then |
//! |---|---|---|
//! | in the program | the program's | a handler of the program can start ([`Where::Program`]) |
//! | in a stub | the program's | the same, at the address in the original text that this one stands for |
//! | in the entry, before the stack is switched | the program's | back to before the call: all registers but `rcx` and `r11` are as there |
//! | in the entry, until a plain call is made | ours | back to before the call, with stack pointer and flags from the frame. The kernel leaves `rip` at the `syscall` when it wants the call made again |
//! | behind a plain call | ours | forward to behind the call |
//! | on the way out, behind the last look at [`tls::deferred`] | ours | forward: the frame has all, and the result |
//! | the last instruction of the way out | the program's | forward |
//! | anywhere else, while a call is under way | ours | the signal is *deferred* ([`Where::Call`]) |
//!
//! The handler of ours keeps a deferred signal, sets [`tls::deferred`] and blocks all signals in the interrupted context. Then
//!
//! - the dispatcher makes no more calls for the program ([`super::for_program`]): such a call answers [`AGAIN`]. A thread that
//!   was interrupted between the look at `deferred` and the `syscall`, or whose `rip` the kernel has set back to the `syscall`,
//!   is sent to that answer ([`not_made`]). A call that the kernel has interrupted ends with `EINTR`, as natively. The flag
//!   `SA_RESTART` decides which of the two happens, since the kernel's action of a signal has the program's flags;
//! - the dispatcher gives back what it holds, as after any error, and the call ends with the result so far, with `EINTR`, or with
//!   [`AGAIN`];
//! - at the end of the call the entry looks at `deferred`, and raises a SIGBUS by an access that the processor refuses. In that
//!   handler, [`at_end`] replaces the interrupted context by the program's context at the edge of its call, and the program's
//!   handler starts from there. The kernel has saved vectors and x87 by then.
//!
//! # Calls that our own signals interrupt
//!
//! A signal of ours must not end a call, so its handler has the call made again ([`go_back`]), or the kernel does (`SA_RESTART`). One for the
//! program that comes before that must end it, though: natively it would have found the call under way, and a program that waits by `pause`
//! for that signal would wait for ever. So the handler leaves a mark in `rcx`, which a `syscall` destroys anyway: the address to which
//! the call has gone back, where no other code has it. Two kinds of calls are marked: those that end with `EINTR` as soon as any handler has run,
//! and those of [`RESTARTED`], which a handler without `SA_RESTART` ends. The kernel goes back by itself with others, too, which nothing ends
//! (`ERESTARTNOINTR`: the lock of a mutex with inheritance of priority). These are never marked.
//!
//! As `rip` the program sees the address behind its `syscall`, or that of the `syscall` if the call is to be made (again), also
//! where a jump lies over it. A `rt_sigreturn` to such an address goes on in the stub ([`resumable`]). That needs `rt_sigreturn`
//! to be caught ([`show_sites`]).
//!
//! A program that steps itself by the trap flag gets its traps at the same places as natively: traps inside of our code are not
//! reported ([`Where::Step`]).

use super::super::{patch, stubs};
use super::asleep::{self, Native};
use super::{ACTION_SIGRETURN, AGAIN, Call, EINTR, FRAME, TRAP};
use core::sync::atomic::{AtomicBool, Ordering};
use farshore_sys::signal::{self, How, Reg, SigSet, UContext};
use farshore_sys::tls;

unsafe extern "C" {
    // Labels of the entry's text, in this order.
    fn farshore_entry_text();
    fn farshore_entry_switched();
    fn farshore_entry_plain();
    fn farshore_entry_plain_made();
    fn farshore_entry_plain_out();
    fn farshore_entry_quick_leave();
    fn farshore_entry_quick_slow_out();
    fn farshore_entry_quick_out();
    fn farshore_entry_leave();
    fn farshore_entry_out();
    fn farshore_entry_edge();
    fn farshore_entry_end();

    /// Whether an address lies on the calling thread's call stacks.
    fn farshore_on_call_stack(at: u64) -> bool;
    /// Called when a call has ended with a signal deferred. `context` is the program's, at the edge of the call; the hook lets it
    /// go on in a handler.
    fn farshore_deliver(context: &mut UContext);

    /// The linker's names for the ends of the section.
    #[link_name = "__start_farshore_not_made"]
    static NOT_MADE: NotMade;
    #[link_name = "__stop_farshore_not_made"]
    static NOT_MADE_END: NotMade;
}

/// Bits of [`tls::deferred`].
const SIGNAL: u64 = 1;
const SIGRETURN: u64 = 2;
const TRAPPED: u64 = 4;

/// Calls that a handler without `SA_RESTART` ends, and another does not (signal(7)): read, write, open, readv, writev, connect, accept, sendto,
/// recvfrom, sendmsg, recvmsg, wait4, fcntl, flock, futex ([`is_restarted`]), mq_timedsend, mq_timedreceive, waitid, openat, accept4.
const RESTARTED: [u64; 20] = [0, 1, 2, 19, 20, 42, 43, 44, 45, 46, 47, 61, 72, 73, FUTEX, 242, 243, 247, 257, 288];
const FUTEX: u64 = 202;

/// Whether the call that is about to be made is one of [`RESTARTED`].
fn is_restarted(context: &UContext) -> bool {
    let number = u64::from(context.get(Reg::Rax) as u32);
    // FUTEX_WAIT and FUTEX_WAIT_BITSET, private or not.
    let waits = || matches!(context.get(Reg::Rsi) & 0x7f, 0 | 9);
    RESTARTED.contains(&number) && (number != FUTEX || waits())
}

/// A `syscall` that is made for the program: from the look at [`tls::deferred`] before it to its end, and the place that answers
/// that the call was not made. Each address is relative to its own field.
#[repr(C)]
struct NotMade {
    start: i32,
    end: i32,
    answer: i32,
}

/// Where a signal has interrupted a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Where {
    /// In the program. The context is as if there were no entry.
    Program,
    /// In a call.
    Call,
    /// At a step of the trap flag, inside of what is one instruction for the program.
    Step,
}

/// Whether the program sees the addresses of its own `syscall` instructions where jumps lie over them.
static SHOWS_SITES: AtomicBool = AtomicBool::new(false);

/// Turns [`SHOWS_SITES`] on: from now on every `rt_sigreturn` is caught.
pub fn show_sites() {
    SHOWS_SITES.store(true, Ordering::Release);
}

fn shows_sites() -> bool {
    SHOWS_SITES.load(Ordering::Acquire)
}

/// Where the program makes the call (again) whose `syscall` ends at `site`.
fn before(site: u64) -> u64 {
    let itself = site.wrapping_sub(2);
    if shows_sites() { itself } else { patch::call_in_stub(site).unwrap_or(itself) }
}

/// Where the program goes on behind its call.
fn behind(call: &Call) -> u64 {
    if shows_sites() { call.return_address } else { call.resume }
}

/// The frame of the calling thread's call.
fn frame() -> &'static Call {
    let at = tls::call_stack() - FRAME as u64;
    // SAFETY: the thread has a call stack (`find`), at whose end there is room for a frame; all bytes are numbers.
    unsafe { &*core::ptr::with_exposed_provenance::<Call>(at as usize) }
}

fn set(context: &mut UContext, values: &[(Reg, u64)]) {
    for &(register, value) in values {
        // SAFETY: the callers put there the program's own registers, at a place where it can go on.
        unsafe { context.set(register, value) };
    }
}

/// Sets the program's registers behind its call, or before it if the call is to be made again.
fn leave(context: &mut UContext, call: &Call, result: i64) {
    let (rax, rip) = if result == AGAIN { (call.nr, before(call.return_address)) } else { (result as u64, behind(call)) };
    let registers = [
        (Reg::Rax, rax),
        (Reg::Rip, rip),
        (Reg::Rcx, rip),
        (Reg::R11, call.flags),
        (Reg::Rflags, call.flags),
        (Reg::Rsp, call.sp),
    ];
    set(context, &registers);
}

/// The same, with all registers from a whole frame.
fn finish(context: &mut UContext, call: &Call) {
    leave(context, call, call.result);
    let registers = [
        (Reg::R8, call.r8),
        (Reg::R9, call.r9),
        (Reg::R10, call.r10),
        (Reg::R12, call.r12),
        (Reg::R13, call.r13),
        (Reg::R14, call.r14),
        (Reg::R15, call.r15),
        (Reg::Rdi, call.rdi),
        (Reg::Rsi, call.rsi),
        (Reg::Rdx, call.rdx),
        (Reg::Rbx, call.rbx),
        (Reg::Rbp, call.rbp),
    ];
    set(context, &registers);
}

/// The same, with the registers that a call by the quick way has saved.
fn finish_quick(context: &mut UContext, call: &Call) {
    leave(context, call, call.result);
    let [rdi, rsi, rdx, r10, r8, r9] = call.args;
    let registers =
        [(Reg::Rdi, rdi), (Reg::Rsi, rsi), (Reg::Rdx, rdx), (Reg::R10, r10), (Reg::R8, r8), (Reg::R9, r9), (Reg::Rbp, call.rbp)];
    set(context, &registers);
}

/// What a signal is to a call that it interrupts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effect {
    /// It is a trap of the trap flag.
    pub step: bool,
    /// Its handler has no `SA_RESTART`.
    pub ends: bool,
}

/// Says where a signal has interrupted the calling thread; a context at the edge of a call is moved to the program's side, and to behind
/// the call if the signal has ended it. Called with all signals blocked.
pub fn find(context: &mut UContext, Effect { step, ends }: Effect) -> Where {
    let (rip, rsp) = (context.get(Reg::Rip), context.get(Reg::Rsp));
    if let Some(patched) = patch::of_stub(rip) {
        if step && patched.is_way_in(rip) {
            return Where::Step;
        }
        if shows_sites() {
            set(context, &[(Reg::Rip, patched.to_program(rip))]);
        }
        return Where::Program;
    }
    let at = |label: unsafe extern "C" fn()| label as *const () as u64;
    let within = |from, to| (at(from)..at(to)).contains(&rip);
    if within(farshore_entry_text, farshore_entry_switched) || stubs::is_gate(rip) {
        if step {
            return Where::Step;
        }
        let pair = core::ptr::with_exposed_provenance::<u64>(context.get(Reg::R11) as usize);
        // SAFETY: r11 has what the entry expects there: the address of site and resume.
        let site = unsafe { pair.read() };
        set(context, &[(Reg::Rip, before(site))]);
        return Where::Program;
    }
    // SAFETY: hook, called as its contract says.
    if !unsafe { farshore_on_call_stack(rsp) } {
        let ends = [farshore_entry_plain_out, farshore_entry_quick_slow_out, farshore_entry_quick_out, farshore_entry_out];
        if ends.map(at).contains(&rip) {
            let resume = context.get(Reg::Rcx);
            let shown = patch::of_stub(resume).filter(|_| shows_sites()).map(|patched| patched.to_program(resume));
            set(context, &[(Reg::Rip, shown.unwrap_or(resume))]);
        }
        return Where::Program;
    }
    if step {
        // By now the frame holds the program's own flags, except at the instruction that puts them there.
        if rip != at(farshore_entry_switched) {
            set(context, &[(Reg::Rflags, context.get(Reg::Rflags) & !TRAP)]);
        }
        return Where::Step;
    }
    if !within(farshore_entry_text, farshore_entry_end) {
        not_made(context, ends);
        return Where::Call;
    }
    let call = frame();
    if rip == at(farshore_entry_plain) && context.get(Reg::Rcx) == rip && ends {
        leave(context, call, EINTR);
        return Where::Program;
    }
    if within(farshore_entry_switched, farshore_entry_plain) || rip == at(farshore_entry_plain) {
        if rip != at(farshore_entry_switched) {
            set(context, &[(Reg::Rflags, call.flags)]);
        }
        // For a thread in the first instructions, r11 may lead to the site already while the frame does not have it yet.
        let site = if rip > at(farshore_entry_switched) && context.get(Reg::Rsp) <= at_return_address(call) {
            call.return_address
        } else {
            // SAFETY: as above.
            unsafe { core::ptr::with_exposed_provenance::<u64>(context.get(Reg::R11) as usize).read() }
        };
        set(context, &[(Reg::Rip, before(site)), (Reg::Rsp, call.sp)]);
        return Where::Program;
    }
    if within(farshore_entry_plain_made, farshore_entry_plain_out) {
        leave(context, call, context.get(Reg::Rax) as i64);
        return Where::Program;
    }
    // With a signal deferred, the way out leads to the handler.
    if tls::deferred() == 0 {
        if within(farshore_entry_quick_leave, farshore_entry_quick_out) {
            finish_quick(context, call);
            return Where::Program;
        }
        if within(farshore_entry_leave, farshore_entry_out) {
            finish(context, call);
            return Where::Program;
        }
    }
    Where::Call
}

fn at_return_address(call: &Call) -> u64 {
    &raw const call.return_address as u64
}

/// For a call that the kernel has interrupted at `at`: where the thread goes on to make it again after a handler of ours. That is
/// the look at [`tls::deferred`] for calls for the program, and the `syscall` for our own. `None`: a plain call, which the entry
/// makes.
pub fn again(at: u64) -> Option<u64> {
    let entry = farshore_entry_text as *const () as u64..farshore_entry_end as *const () as u64;
    (!entry.contains(&at)).then(|| {
        let found = not_made_entries().find(|&(_, end, _)| end == at);
        found.map_or(at.wrapping_sub(2), |(start, ..)| start)
    })
}

/// Start, end and answer of each call for the program.
fn not_made_entries() -> impl Iterator<Item = (u64, u64, u64)> {
    let (mut entry, last) = (&raw const NOT_MADE, &raw const NOT_MADE_END);
    core::iter::from_fn(move || {
        if entry >= last {
            return None;
        }
        // SAFETY: between the two ends of the section, which has nothing but these.
        let NotMade { start, end, answer } = unsafe { entry.read() };
        let place = |field: usize, distance: i32| (entry as u64 + field as u64).wrapping_add_signed(distance.into());
        let found = (place(0, start), place(4, end), place(8, answer));
        entry = entry.wrapping_add(1);
        Some(found)
    })
}

/// Sends a thread that was about to make a call for the program, or to make it again, to the answer that the call was not made. There
/// `rcx` says whether it was made before, and has been ended now.
fn not_made(context: &mut UContext, ends: bool) {
    let rip = context.get(Reg::Rip);
    let Some((start, _, answer)) = not_made_entries().find(|&(start, end, _)| (start..end).contains(&rip)) else { return };
    let is_marked = context.get(Reg::Rcx) == start;
    if is_marked && !ends && is_restarted(context) {
        set(context, &[(Reg::Rcx, 0)]);
    }
    set(context, &[(Reg::Rip, answer)]);
}

/// Bytes of a `syscall`.
const SYSCALL: u64 = 2;

/// At the end of a handler of ours, for a call of our text which its signal has interrupted, and with which the kernel goes on: marks it, if a
/// handler of the program's that comes first may end it.
pub fn note_interrupted(context: &mut UContext) {
    let rip = context.get(Reg::Rip);
    // The kernel has had it: it leaves there the address behind the `syscall`.
    if context.get(Reg::Rcx) != rip.wrapping_add(SYSCALL) {
        return;
    }
    let plain = farshore_entry_plain as *const () as u64;
    let mark = if rip == plain {
        Some(plain)
    } else {
        not_made_entries().find(|&(_, end, _)| end - SYSCALL == rip).map(|(start, ..)| start)
    };
    if let Some(mark) = mark.filter(|_| is_restarted(context)) {
        set(context, &[(Reg::Rcx, mark)]);
    }
}

/// The same for a context that a `rt_sigreturn` restores, where the call's frame is on the program's stack, since the call began
/// before the thread had a call stack.
pub fn unmake_on_programs_stack(context: &mut UContext) {
    // SAFETY: hook, called as its contract says.
    if !unsafe { farshore_on_call_stack(context.get(Reg::Rsp)) } {
        not_made(context, false);
    }
}

/// Where a call is made again whose `syscall` ended at `site`, over which a jump may lie by now.
pub fn made_again_at(site: u64) -> u64 {
    patch::call_in_stub(site).unwrap_or(site.wrapping_sub(2))
}

/// Whether there is a `syscall` at an address of the program's text at which a thread was just now.
pub fn is_to_be_made(at: u64) -> bool {
    let code = core::ptr::with_exposed_provenance::<[u8; 2]>(at as usize);
    // SAFETY: the thread was about to execute the bytes there. If they were not readable in two pieces at the end of a mapping,
    // they could not be executed either.
    unsafe { code.read_unaligned() == [0x0f, 0x05] }
}

/// Ends a call that was to be made (again) at `site` with `EINTR`.
pub fn end_interrupted(context: &mut UContext, site: u64) {
    set(context, &[(Reg::Rax, EINTR as u64), (Reg::Rip, site + SYSCALL)]);
}

/// Has call `number`, which has ended without an effect, made again at `start`. Where that is our own text, a handler of the program's that comes
/// before ends it.
pub fn go_back(context: &mut UContext, number: u64, start: u64) {
    set(context, &[(Reg::Rax, number), (Reg::Rip, start)]);
    if not_made_entries().any(|(own, ..)| own == start) {
        set(context, &[(Reg::Rcx, start)]);
    }
}

/// Whether the kernel has had the call before which a context of the program is, and a handler without `SA_RESTART` ends it.
pub fn is_interrupted_here(context: &UContext) -> bool {
    context.get(Reg::Rcx) == context.get(Reg::Rip).wrapping_add(SYSCALL) && is_restarted(context)
}

/// Lets a context in text over which a jump has come to lie go on in the stub.
pub fn resume_in_stub(context: &mut UContext) {
    set(context, &[(Reg::Rip, resumable(context))]);
}

/// Moves a context of a dormant process that is in a call which is made natively behind a stub ([`asleep`]) to the program's side of it. That
/// place is for a process that sleeps: awake, the call goes by the stub.
pub fn leave_native(context: &mut UContext) -> Option<Native> {
    let native = asleep::find_native(context)?;
    set(context, &[(Reg::Rip, native.at)]);
    Some(native)
}

/// Notes that the call under way has a signal to deliver at its end. Called in a handler, after [`find`] said [`Where::Call`].
/// `trapped`: the signal says that a filter of the program's has stopped a call that was made for it. The dispatcher gives up
/// then, and the program finds itself behind its `syscall`, with the number in `rax`, as natively.
pub fn defer(context: &mut UContext, trapped: bool) {
    if trapped {
        set(context, &[(Reg::Rax, AGAIN as u64)]);
    }
    tls::set_deferred(tls::deferred() | SIGNAL | if trapped { TRAPPED } else { 0 });
}

/// Whether it has one.
pub fn is_deferred() -> bool {
    tls::deferred() & SIGNAL != 0
}

/// In a forked child: forgets a deferred signal, which was not the child's.
pub fn forget_deferred() {
    tls::set_deferred(0);
}

/// To be called first in the handlers of SIGBUS and SIGSEGV. Returns whether the signal is the one that the end of a call has
/// raised; then it has been served.
pub fn at_end(context: &mut UContext) -> bool {
    if context.get(Reg::Rip) != farshore_entry_edge as *const () as u64 {
        return false;
    }
    let at = core::ptr::with_exposed_provenance_mut::<Call>(context.get(Reg::Rbx) as usize);
    // SAFETY: the entry has put its frame's address there, and no other code uses the frame now.
    let call = unsafe { &mut *at };
    let deferred = tls::deferred();
    tls::set_deferred(0);
    if deferred & SIGNAL == 0 {
        set(context, &[(Reg::Rsp, call.sp)]);
        super::sigsys::return_from_handler(context);
        return true;
    }
    if call.action == ACTION_SIGRETURN {
        call.result = AGAIN;
    }
    finish(context, call);
    if deferred & TRAPPED != 0 && call.result == AGAIN {
        set(context, &[(Reg::Rip, behind(call))]);
    }
    // SAFETY: hook, called as its contract says.
    unsafe { farshore_deliver(context) };
    true
}

/// `rt_sigreturn` by a patched site: at the end of the call.
pub(super) fn sigreturn(call: &mut Call) -> i64 {
    // The signal frame brings the mask with all the rest.
    signal::sigprocmask(How::Set, SigSet::ALL);
    call.action = ACTION_SIGRETURN;
    tls::set_deferred(tls::deferred() | SIGRETURN);
    AGAIN
}

/// Where a thread goes on that a `rt_sigreturn` gives this context. A handler that has begun while the process was dormant may have interrupted
/// a call made natively.
pub(super) fn resumable(context: &UContext) -> u64 {
    let rip = asleep::find_native(context).map_or(context.get(Reg::Rip), |native| native.at);
    patch::to_stub(rip).unwrap_or(rip)
}
