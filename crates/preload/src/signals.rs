//! The program's signals, where Farshore stands in between.
//!
//! Farshore needs SIGBUS (faults), SIGSYS (caught system calls) and SIGSEGV (guarded copies of wild pointers) on every
//! thread at every moment. So for these three:
//!
//! * our handlers are installed; what the program installs is remembered here and called for what is not ours;
//! * no mask of the program blocks them: their bits are taken out of every set that reaches the kernel (masks for the time
//!   of one call, as `ppoll`'s: [`crate::net::calls`]), and put back into every set that the program reads ([`pretended`]).
//!
//! All other signals are the kernel's, except that their handlers start in ours, for the masks, and that their restorer
//! is ours (libc's `rt_sigreturn` would be caught).
//!
//! The alternate stack of a thread is ours until the program sets its own; then that one is used, pinned.

pub mod pretended;

use crate::net::buffers::{self, Memory, PinSet, careful};
use crate::net::calls::NEEDED_SIGNALS;
use crate::net::net;
use crate::report;
use crate::runtime::uninterrupted;
use crate::thread::{self, Thread};
use core::sync::atomic::{AtomicU64, Ordering};
use farshore_sys::guarded;
use farshore_sys::lock::Mutex;
use farshore_sys::raw::{Errno, getpid, nr, syscall};
use farshore_sys::signal::{
    self, Action, AltStack, Handler, How, Reg, SIGBUS, SIGSEGV, SIGSYS, SigInfo, SigSet, UContext, flags,
};

type Args = [u64; 6];

/// The signals that Farshore needs.
pub const OURS: SigSet = SigSet(NEEDED_SIGNALS);

const SIG_DFL: u64 = 0;
const SIG_IGN: u64 = 1;
/// Signals are numbered from 1 to 64.
const SIGNALS: usize = 65;
const RT_SIGPENDING: u64 = 127;

/// What the program believes to have installed, for our three signals.
struct Believed([Action; 3]);

static BELIEVED: Mutex<Believed> = Mutex::new(Believed([Action::DEFAULT; 3]));
/// The restorers that the program gave for the other signals.
static RESTORERS: [AtomicU64; SIGNALS] = [const { AtomicU64::new(0) }; SIGNALS];

fn place(signal: u32) -> Option<usize> {
    match signal {
        SIGBUS => Some(0),
        SIGSEGV => Some(1),
        SIGSYS => Some(2),
        _ => None,
    }
}

/// Installs our handlers; what was there becomes what the program believes.
pub fn install() -> Result<(), Errno> {
    let sigsys = crate::net::entry::on_sigsys as *const () as u64;
    let handlers: [(u32, u64); 3] = [
        (SIGBUS, crate::fault::on_sigbus as Handler as *const () as u64),
        (SIGSEGV, on_sigsegv as Handler as *const () as u64),
        (SIGSYS, sigsys),
    ];
    for (number, handler) in handlers {
        // The SIGSYS handler reads the program's signal frame, which may fault; nobody else is interrupted.
        let mask = if number == SIGSYS { SigSet::ALL.without(SIGBUS).without(SIGSEGV) } else { SigSet::ALL };
        let action =
            Action { handler, flags: flags::SIGINFO | flags::RESTORER | flags::ONSTACK, restorer: signal::restorer(), mask };
        // SAFETY: the handlers are async-signal-safe (module heads of fault, net::entry and this) and take what SA_SIGINFO gives.
        let before = unsafe { signal::sigaction(number, Some(&action)) }?;
        if let Some(i) = place(number) {
            BELIEVED.with(|b| b.0[i] = before);
        }
    }
    Ok(())
}

/// The handler of SIGSEGV: a guarded access of ours, or the program's.
unsafe extern "C" fn on_sigsegv(_signal: i32, info: *mut SigInfo, context: *mut UContext) {
    // SAFETY: the kernel passes it, valid until the handler returns.
    let info = unsafe { &*info };
    // SAFETY: the same, and to this call alone.
    let context = unsafe { &mut *context };
    deliver(SIGSEGV, info, context);
}

/// Gives one of our three signals to the program, as the kernel would have. In the handler of that signal.
pub fn deliver(signal: u32, info: &SigInfo, context: &mut UContext) {
    if guarded::fixup(context) || repair_careful(context) {
        return;
    }
    let Some(i) = place(signal) else { return };
    let sent = !info.from_kernel();
    if let Some(thread) = thread::current() {
        if thread.internal && sent {
            // The kernel chose one of our threads: it is for the program.
            let _ = signal::queue_again(getpid(), getpid(), info);
            return;
        }
        if thread.pretended_mask.contains(signal) {
            if sent {
                return pretended::keep(thread, i, info);
            }
            return default_action(signal, false);
        }
    }
    let action = BELIEVED.with(|b| {
        let action = b.0[i];
        if action.flags & flags::RESETHAND != 0 {
            b.0[i].handler = SIG_DFL;
        }
        action
    });
    // A fault cannot be ignored: the kernel kills instead. A signal that was sent can.
    match action.handler {
        SIG_IGN if sent => {}
        SIG_DFL | SIG_IGN => default_action(signal, sent),
        handler => call(handler, action, signal, info, context),
    }
}

fn default_action(signal: u32, sent: bool) {
    if sent {
        report::die_by(signal);
    }
    // The access that faulted faults again when we return, and ends the process with the right core.
    // SAFETY: the default action has no handler.
    let _ = unsafe { signal::sigaction(signal, Some(&Action::DEFAULT)) };
}

/// Calls the program's handler with the mask that it asked for.
fn call(handler: u64, action: Action, signal: u32, info: &SigInfo, context: &mut UContext) {
    let own = if action.flags & flags::NODEFER != 0 { SigSet::EMPTY } else { SigSet::EMPTY.with(signal) };
    let mask = SigSet((context.mask().0 | action.mask.0 | own.0) & !OURS.0);
    if let Some(thread) = thread::current() {
        pretended::enter(thread, context, SigSet(action.mask.0 | own.0));
    }
    signal::sigprocmask(How::Set, mask);
    // SAFETY: the program installed this address as a handler of this signal, with or without SA_SIGINFO; on x86-64 both are
    // called with the same registers.
    let handler = unsafe { core::mem::transmute::<u64, Handler>(handler) };
    // SAFETY: the program's handler gets what the kernel would have given it.
    unsafe { handler(signal as i32, core::ptr::from_ref(info).cast_mut(), context) };
    // Everything is restored from `context` when our own handler returns.
    signal::sigprocmask(How::Set, SigSet::ALL);
    pretended::settle(context);
}

fn repair_careful(context: &mut UContext) -> bool {
    let Some(way_out) = careful::repair(context.get(Reg::Rip)) else { return false };
    // SAFETY: the address of the routine's own way out.
    unsafe { context.set(Reg::Rip, way_out) };
    true
}

/// A SIGSYS that Syscall User Dispatch did not raise.
///
/// # Safety
/// Called by the entry's handler with what the kernel gave it.
#[unsafe(no_mangle)]
unsafe extern "C" fn farshore_foreign_sigsys(info: *mut SigInfo, context: *mut UContext) {
    // SAFETY: this function's own condition.
    let info = unsafe { &*info };
    // SAFETY: this function's own condition.
    let context = unsafe { &mut *context };
    deliver(SIGSYS, info, context);
}

/// Before a caught `rt_sigreturn`.
///
/// # Safety
/// Called by the entry with the context that is about to be restored.
#[unsafe(no_mangle)]
unsafe extern "C" fn farshore_before_sigreturn(context: *mut UContext) {
    // SAFETY: this function's own condition.
    pretended::settle(unsafe { &mut *context });
}

/// The calls of this module, by number.
pub fn handles(number: u64) -> bool {
    matches!(number, nr::RT_SIGACTION | nr::RT_SIGPROCMASK | nr::SIGALTSTACK | RT_SIGPENDING)
}

/// Does one of the calls.
pub fn handle(number: u64, args: &Args) -> i64 {
    match number {
        nr::RT_SIGACTION => rt_sigaction(args),
        nr::RT_SIGPROCMASK => rt_sigprocmask(args),
        RT_SIGPENDING => rt_sigpending(args),
        _ => sigaltstack(args),
    }
}

fn raw(number: u64, args: &Args) -> i64 {
    // SAFETY: the program's own call; pointers are to our locals or were refused by a guarded copy.
    unsafe { syscall(number, *args) }
}

const EFAULT: i64 = -14;
const EINVAL: i64 = -22;

/// Reads a plain structure of the program; `None` as the kernel's EFAULT.
fn read<T: buffers::Plain>(addr: u64) -> Option<T> {
    let mut pins = PinSet::new();
    let value = buffers::read_user::<T>(net(), &mut pins, addr);
    net().unpin(&mut pins);
    value
}

fn write<T: buffers::Plain>(addr: u64, value: &T) -> bool {
    let mut pins = PinSet::new();
    let written = buffers::write_user(net(), &mut pins, addr, value);
    net().unpin(&mut pins);
    written
}

fn from_words(words: [u64; 4]) -> Action {
    Action { handler: words[0], flags: words[1], restorer: words[2], mask: SigSet(words[3]) }
}

fn to_words(action: &Action) -> [u64; 4] {
    [action.handler, action.flags, action.restorer, action.mask.0]
}

fn rt_sigaction(args: &Args) -> i64 {
    let [number, new, old, size, ..] = *args;
    if size != 8 || number == 0 || number >= SIGNALS as u64 {
        return EINVAL;
    }
    let new = match new {
        0 => None,
        addr => match read::<[u64; 4]>(addr) {
            Some(words) => Some(from_words(words)),
            None => return EFAULT,
        },
    };
    let before = match place(number as u32) {
        Some(i) => uninterrupted(|| believe(i, new)),
        None => match install_for_program(number as u32, new) {
            Ok(before) => before,
            Err(errno) => return -i64::from(errno.0),
        },
    };
    if old != 0 && !write(old, &to_words(&before)) { EFAULT } else { 0 }
}

fn believe(i: usize, new: Option<Action>) -> Action {
    // A vforked child has its own actions, but our memory is its parent's: what it sets is forgotten, since
    // all it may do is exec, which resets handlers anyway.
    let borrowed = thread::current().is_some_and(|t| t.vforked > 0);
    BELIEVED.with(|b| {
        let before = b.0[i];
        if let Some(new) = new.filter(|_| !borrowed) {
            b.0[i] = new;
        }
        before
    })
}

fn install_for_program(number: u32, new: Option<Action>) -> Result<Action, Errno> {
    // A vforked child has its own actions, but our memory is its parent's: its handlers start without us.
    let borrowed = thread::current().is_some_and(|t| t.vforked > 0);
    let ours = |action: &Action| action.handler > SIG_IGN && !borrowed;
    let filtered = new.map(|action| Action {
        handler: if ours(&action) { pretended::trampoline() } else { action.handler },
        mask: SigSet(action.mask.0 & !OURS.0),
        flags: action.flags | flags::RESTORER,
        restorer: signal::restorer(),
    });
    let (handler, mask) = match new.filter(ours) {
        Some(action) => pretended::note(number, action.handler, action.mask),
        None => pretended::noted(number),
    };
    // SAFETY: the program's own handler, with the restorer's contract kept by ours.
    let mut before = unsafe { signal::sigaction(number, filtered.as_ref()) }?;
    let restorer = &RESTORERS[number as usize];
    let known = match new.filter(|_| !borrowed) {
        Some(action) => restorer.swap(action.restorer, Ordering::AcqRel),
        None => restorer.load(Ordering::Acquire),
    };
    if before.restorer == signal::restorer() {
        before.restorer = known;
    }
    if before.handler == pretended::trampoline() {
        before.handler = handler;
        before.mask = SigSet(before.mask.0 | mask.0);
    }
    Ok(before)
}

fn rt_sigprocmask(args: &Args) -> i64 {
    let [how, set, old, size, ..] = *args;
    let Some(thread) = thread::current().filter(|_| size == 8) else {
        return raw(nr::RT_SIGPROCMASK, args);
    };
    let mut pretended = thread.pretended_mask;
    let mut wanted = 0u64;
    if set != 0 {
        match read::<u64>(set) {
            Some(bits) => wanted = bits,
            None => return EFAULT,
        }
        let ours = wanted & OURS.0;
        pretended = SigSet(match how {
            0 => pretended.0 | ours,
            1 => pretended.0 & !ours,
            2 => ours,
            _ => return EINVAL,
        });
        wanted &= !OURS.0;
    }
    // What to set, and what was set. Pinned, or the kernel might set the mask and then not be able to tell the one before.
    let mut masks = [wanted, 0u64];
    let mut pins = PinSet::new();
    let at = buffers::pin_local(net(), &mut pins, &mut masks);
    let answer = raw(nr::RT_SIGPROCMASK, &[how, if set != 0 { at } else { 0 }, at + 8, 8, 0, 0]);
    net().unpin(&mut pins);
    if answer < 0 {
        return answer;
    }
    let before = masks[1] | thread.pretended_mask.0;
    let answer = if old != 0 && !write(old, &before) { EFAULT } else { 0 };
    pretended::change(thread, pretended);
    answer
}

fn rt_sigpending(args: &Args) -> i64 {
    let [set, size, ..] = *args;
    let Some(thread) = thread::current().filter(|_| size == 8) else { return crate::net::pinned(RT_SIGPENDING, args) };
    let mut pending = 0u64;
    let answer = raw(RT_SIGPENDING, &[&raw mut pending as u64, 8, 0, 0, 0, 0]);
    pending |= pretended::waiting(thread).0;
    if answer == 0 && !write(set, &pending) { EFAULT } else { answer }
}

fn sigaltstack(args: &Args) -> i64 {
    let [new, old, ..] = *args;
    let Some(thread) = thread::current() else { return raw(nr::SIGALTSTACK, args) };
    let new = match new {
        0 => None,
        addr => match read::<[u64; 3]>(addr) {
            Some([base, flags, size]) => Some(AltStack { base, flags: flags as i32, size }),
            None => return EFAULT,
        },
    };
    let before = match uninterrupted(|| change_stack(thread, new)) {
        Ok(before) => before,
        Err(errno) => return -i64::from(errno.0),
    };
    let words = [before.base, before.flags as u32 as u64, before.size];
    if old != 0 && !write(old, &words) { EFAULT } else { 0 }
}

/// Changes the program's alternate stack; what it believes to have had before.
fn change_stack(thread: &mut Thread, new: Option<AltStack>) -> Result<AltStack, Errno> {
    // SAFETY: reads only.
    let now = unsafe { signal::sigaltstack(None) }?;
    let before = if thread.program_stack.is_some() { now } else { AltStack::NONE };
    let Some(new) = new else { return Ok(before) };
    if thread.program_stack.is_none() && now.flags & AltStack::ON_STACK != 0 {
        // In a handler that runs on our stack: the change takes effect for the program only when it is through.
        return Err(Errno::EPERM);
    }
    if new.flags & AltStack::DISABLE != 0 {
        if thread.program_stack.take().is_some() {
            thread::use_own_stack(thread);
        }
        net().unpin(&mut thread.stack_pins);
        return Ok(before);
    }
    let mut pins = PinSet::new();
    if new.size <= 16 << 20 {
        // The kernel writes signal frames there at any time.
        buffers::pin_all(net(), &mut pins, new.base, new.size, buffers::Access::Write);
        pins.detach();
    }
    // SAFETY: the program's own stack, which it promises to leave alone.
    if let Err(errno) = unsafe { signal::sigaltstack(Some(&new)) } {
        net().unpin(&mut pins);
        return Err(errno);
    }
    net().unpin(&mut thread.stack_pins);
    thread.stack_pins = pins;
    thread.program_stack = Some(new);
    Ok(before)
}

/// Before an exec: the signals that the program thinks blocked or ignored become so, since the next program inherits
/// both. Returns the mask to go back to if the exec fails.
pub fn before_exec() -> SigSet {
    let mask = signal::current_mask();
    if let Some(thread) = thread::current() {
        signal::sigprocmask(How::Set, SigSet(mask.0 | thread.pretended_mask.0));
        // They wait in the kernel now, across the exec.
        pretended::send_again(thread, thread.pretended_mask);
    }
    mask
}
