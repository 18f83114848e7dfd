//! The program's signals, as `libfarshore.so` does them, without what they need there: handlers of the program start at the edge of a call, on the program's stacks.
//!
//! SIGTRAP is the exception: its handlers start wherever they come, on a stack of ours, so that a test can look at every instruction of the entry.

use crate::KEPT;
use core::mem::offset_of;
use farshore_catch::entry::edge::{self, Effect, Where};
use farshore_catch::entry::{Trapped, on_sigsys};
use farshore_sys::lock::Mutex;
use farshore_sys::own::map_own;
use farshore_sys::signal::{
    self, Action, AltStack, Handler, How, Reg, SIGBUS, SIGSYS, SigInfo, SigSet, UContext, flags, restorer,
};
use farshore_sys::thread::Home;
use farshore_sys::{tls, vm};

/// Bytes of a thread's call stack, and of the alternate stack below it.
const STACK: usize = 128 << 10;
const ALTERNATE: usize = 64 << 10;
const SIGTRAP: u32 = 5;
const TRAP_TRACE: i32 = 2;
const SIGNALS: usize = 65;
const RED_ZONE: u64 = 128;

/// What there is of each thread, above its call stack.
#[repr(C)]
struct Thread {
    trapped: Trapped,
    stack: AltStack,
    /// The signal, what came with it, and the mask of before.
    deferred: (u32, SigInfo, SigSet),
}

/// What the kernel puts on the stack for a handler, below the floating-point state.
#[repr(C)]
struct Frame {
    restorer: u64,
    context: UContext,
    info: SigInfo,
}

/// What the program has set last, and the last that was a handler: a vforked child, which shares this memory, sets others to the default.
static ACTIONS: Mutex<[[Action; 2]; SIGNALS]> = Mutex::new([[Action::DEFAULT; 2]; SIGNALS]);

fn thread() -> &'static mut Thread {
    // SAFETY: above every call stack there is one (`farshore_take_stack`); only its thread uses it, one function at a time.
    unsafe { &mut *core::ptr::with_exposed_provenance_mut::<Thread>(tls::call_stack() as usize) }
}

#[unsafe(no_mangle)]
extern "C" fn farshore_take_stack() -> u64 {
    map_own(ALTERNATE + STACK + 4096).map_or(0, |base| base.as_ptr() as u64 + (ALTERNATE + STACK) as u64)
}

#[unsafe(no_mangle)]
extern "C" fn farshore_give_stack(top: u64) {
    // SAFETY: a mapping of `farshore_take_stack`, which nobody uses any more.
    let _ = unsafe { vm::munmap(top - (ALTERNATE + STACK) as u64, (ALTERNATE + STACK + 4096) as u64) };
}

#[unsafe(no_mangle)]
extern "C" fn farshore_begin_thread() {
    begin_thread(farshore_take_stack());
}

#[unsafe(no_mangle)]
extern "C" fn farshore_on_call_stack(at: u64) -> bool {
    let top = tls::call_stack();
    top != 0 && at > top - STACK as u64 && at <= top
}

/// The calling thread has this call stack from now on.
pub(crate) fn begin_thread(top: u64) {
    tls::set_call_stack(top);
    let own = AltStack { base: top - (ALTERNATE + STACK) as u64, flags: 0, size: ALTERNATE as u64 };
    // SAFETY: memory that nobody else uses.
    let _ = unsafe { signal::sigaltstack(Some(&own)) };
}

/// A child that runs beside its parent, with its parent's thread pointer, gets a copy of the storage there: both have a call stack in it.
pub(crate) fn storage_apart() {
    /// Of glibc's `struct pthread`.
    const THREAD_BYTES: usize = 2304;
    let home = Home::new(0).expect("memory for a thread's storage");
    // SAFETY: fresh memory, which nobody unmaps; a thread of libc's has that much behind its pointer.
    unsafe { home.move_in(THREAD_BYTES) }.expect("a thread pointer");
}

/// Our own handlers; the first thread's stacks.
pub(crate) fn install() {
    farshore_begin_thread();
    // What all storage begins with is copied now, while nobody else runs.
    let _ = Home::new(0);
    for (number, handler) in [(SIGBUS, on_sigbus as Handler as *const () as u64), (SIGSYS, on_sigsys as *const () as u64)] {
        // SAFETY: both take what SA_SIGINFO gives, and are async-signal-safe.
        unsafe { signal::sigaction(number, Some(&ours(handler, 0))) }.expect("a handler of ours");
    }
}

fn ours(handler: u64, more: u64) -> Action {
    Action { handler, flags: flags::SIGINFO | flags::RESTORER | flags::ONSTACK | more, restorer: restorer(), mask: SigSet::ALL }
}

unsafe extern "C" fn on_sigbus(_signal: i32, _info: *mut SigInfo, context: *mut UContext) {
    // SAFETY: the kernel passes it.
    if !edge::at_end(unsafe { &mut *context }) {
        // SAFETY: the access is made again, and ends the process.
        let _ = unsafe { signal::sigaction(SIGBUS, Some(&Action::DEFAULT)) };
    }
}

unsafe extern "C" fn on_signal(number: i32, info: *mut SigInfo, context: *mut UContext) {
    // SAFETY: the kernel passes it, valid until the handler returns.
    let info = unsafe { &*info };
    // SAFETY: the same, and to this call alone.
    let context = unsafe { &mut *context };
    let step = number as u32 == SIGTRAP && info.code() == TRAP_TRACE;
    let [_, action] = ACTIONS.with(|actions| actions[number as usize]);
    let effect = Effect { step, ends: action.flags & flags::RESTART == 0 };
    match edge::find(context, effect) {
        Where::Step => {}
        Where::Program => start(number as u32, info, context),
        Where::Call => {
            assert!(!edge::is_deferred(), "two signals in one call");
            thread().deferred = (number as u32, *info, context.mask());
            context.set_mask(SigSet(KEPT));
            edge::defer(context, false);
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn farshore_deliver(context: &mut UContext) {
    let (number, info, mask) = thread().deferred;
    context.set_mask(mask);
    start(number, &info, context);
}

/// The context goes on in the program's handler.
fn start(number: u32, info: &SigInfo, context: &mut UContext) {
    const MAGIC_AT: u64 = 464;
    let [_, action] = ACTIONS.with(|actions| actions[number as usize]);
    let (sp, stack) = (context.get(Reg::Rsp), thread().stack);
    let on = stack.size != 0 && sp > stack.base && sp - stack.base <= stack.size;
    let top = if action.flags & flags::ONSTACK != 0 && stack.size != 0 && !on { stack.base + stack.size } else { sp - RED_ZONE };
    // SAFETY: the state that the kernel has written, which says how large it is.
    let size = u64::from(unsafe { ((context.fpstate() + MAGIC_AT) as *const [u32; 2]).read() }[1]);
    let floating = (top - size) & !63;
    let at = ((floating - size_of::<Frame>() as u64) & !15) - 8;
    let mut saved = Frame { restorer: action.restorer, context: *context, info: *info };
    saved.context.set_fpstate(floating);
    // SAFETY: below what the program uses of its stack.
    unsafe { (at as *mut Frame).write(saved) };
    // SAFETY: as above.
    unsafe { core::ptr::copy_nonoverlapping(context.fpstate() as *const u8, floating as *mut u8, size as usize) };
    let registers = [
        (Reg::Rip, action.handler),
        (Reg::Rsp, at),
        (Reg::Rdi, u64::from(number)),
        (Reg::Rsi, at + offset_of!(Frame, info) as u64),
        (Reg::Rdx, at + offset_of!(Frame, context) as u64),
        (Reg::Rax, 0),
        (Reg::Rflags, context.get(Reg::Rflags) & !(1 << 10 | 1 << 8)),
    ];
    for (register, value) in registers {
        // SAFETY: the program's handler starts with what the kernel would have given it.
        unsafe { context.set(register, value) };
    }
    let own = if action.flags & flags::NODEFER == 0 { SigSet::EMPTY.with(number) } else { SigSet::EMPTY };
    context.set_mask(SigSet((context.mask().0 | action.mask.0 | own.0) & KEPT));
}

/// `rt_sigaction`.
pub(crate) fn set_action(&[number, new, old, ..]: &[u64; 6]) -> i64 {
    if number == 0 || number >= SIGNALS as u64 {
        return -22;
    }
    let mask = signal::sigprocmask(How::Set, SigSet::ALL);
    let answer = ACTIONS.with(|actions| {
        let [before, _] = actions[number as usize];
        if new != 0 && ![SIGBUS, SIGSYS].contains(&(number as u32)) {
            // SAFETY: the test program passes valid actions.
            let wanted = unsafe { *(new as *const Action) };
            let kernels = match wanted.handler {
                0 | 1 => wanted,
                handler if number as u32 == SIGTRAP && wanted.flags & flags::RESTART == 0 => {
                    Action { flags: wanted.flags | flags::ONSTACK, handler, ..wanted }
                }
                _ => ours(on_signal as Handler as *const () as u64, wanted.flags & flags::RESTART),
            };
            // SAFETY: our own handler, or the program's.
            if let Err(why) = unsafe { signal::sigaction(number as u32, Some(&kernels)) } {
                return -i64::from(why.0);
            }
            actions[number as usize][0] = wanted;
            if wanted.handler > 1 {
                actions[number as usize][1] = wanted;
            }
        }
        if old != 0 {
            // SAFETY: the test program passes room for one.
            unsafe { *(old as *mut Action) = before };
        }
        0
    });
    signal::sigprocmask(How::Set, mask);
    answer
}

/// `sigaltstack`, of code with the stack pointer `sp`.
pub(crate) fn set_stack(&[new, old, ..]: &[u64; 6], sp: u64) -> i64 {
    let stack = &mut thread().stack;
    let on = stack.size != 0 && sp > stack.base && sp - stack.base <= stack.size;
    if old != 0 {
        let state = if stack.size == 0 { AltStack::DISABLE } else { i32::from(on) };
        // SAFETY: the test program passes room for one.
        unsafe { *(old as *mut AltStack) = AltStack { flags: state, ..*stack } };
    }
    if new != 0 {
        // SAFETY: the test program passes a valid one.
        *stack = unsafe { *(new as *const AltStack) };
    }
    0
}
