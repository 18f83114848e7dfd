//! The program's signals, where Farshore stands in between.
//!
//! Farshore needs SIGBUS (faults), SIGSYS (caught system calls) and SIGSEGV (guarded copies of wild pointers) on every
//! thread at every moment. So for these three:
//!
//! * our handlers are installed; what the program installs is remembered here and called for what is not ours;
//! * no mask of the program blocks them: their bits are taken out of every set that reaches the kernel (masks for the time
//!   of one call, as `ppoll`'s: [`waits`]), and put back into every set that the program reads ([`pretended`]).
//!
//! All other signals are the kernel's, but their handlers start in ours too: [`frame`] says how a handler starts and ends, and
//! [`actions`] has what the program installed.
//!
//! Layers: below are the ground and [`fault`], which the handler of SIGBUS asks first. What a thread's record keeps for its signals
//! is data of the ground ([`crate::ground::thread::pending`], [`actions`]).
//!
//! The alternate stack that the kernel knows is ours, on every thread; the program's own is kept here ([`altstack`]).

mod altstack;
pub mod frame;
pub mod pretended;
pub mod steps;
pub mod waits;

use crate::fault::{self, Served};
use crate::ground::files;
use crate::ground::net::net;
use crate::ground::own_threads::{knock, rights};
use crate::ground::runtime::uninterrupted;
use crate::ground::thread::actions::{self, SIG_DFL, SIG_IGN, SIGNALS, is_handler};
use crate::ground::thread::pending::{OURS, place};
use crate::ground::{report, text, thread};
use farshore_catch::entry;
use farshore_net::buffers::{self, PinSet, Pins, careful};
use farshore_sys::guarded;
use farshore_sys::raw::{Errno, getpid, gettid, nr, syscall};
use farshore_sys::signal::{
    self, Action, AltStack, Handler, How, Reg, SIGBUS, SIGSEGV, SIGSYS, SigInfo, SigSet, UContext, flags,
};

type Args = [u64; 6];

const RT_SIGPENDING: u64 = 127;
const RT_SIGTIMEDWAIT: u64 = 128;
/// Flags of an action that the kernel acts on; we act on the others.
const KERNELS_FLAGS: u64 = flags::RESTART | flags::RESETHAND | 0x1 | 0x2;

/// Our handlers of [`OURS`].
fn handler_of(signal: u32) -> u64 {
    match signal {
        SIGBUS => on_sigbus as Handler as *const () as u64,
        SIGSEGV => on_sigsegv as Handler as *const () as u64,
        _ => farshore_catch::entry::on_sigsys as *const () as u64,
    }
}

/// The kernel's action that runs a handler of ours.
fn action_of(handler: u64, more: u64) -> Action {
    Action {
        handler,
        flags: flags::SIGINFO | flags::RESTORER | flags::ONSTACK | more,
        restorer: signal::restorer(),
        mask: SigSet::ALL,
    }
}

/// Installs our handlers; what was there becomes what the program has set. While there is one thread.
pub fn install() -> Result<(), Errno> {
    for number in 1..SIGNALS as u32 {
        // SAFETY: reads only.
        let before = unsafe { signal::sigaction(number, None) }?;
        actions::put(number, before);
        let action = if place(number).is_some() {
            action_of(handler_of(number), restart_of(&before))
        } else if is_handler(&before) {
            kernels_action(&before)
        } else {
            continue;
        };
        // SAFETY: the handlers are async-signal-safe (module heads of fault, catch::entry, frame and this) and take what SA_SIGINFO gives.
        unsafe { signal::sigaction(number, Some(&action)) }?;
    }
    Ok(())
}

/// For one of [`OURS`]: calls that the signal interrupts go on, unless a handler of the program runs that wants them to end.
fn restart_of(action: &Action) -> u64 {
    if is_handler(action) { action.flags & flags::RESTART } else { flags::RESTART }
}

/// What the kernel is given for an action of the program, for signals that are not [`OURS`].
fn kernels_action(action: &Action) -> Action {
    if is_handler(action) {
        return action_of(frame::on_signal as Handler as *const () as u64, action.flags & KERNELS_FLAGS);
    }
    Action {
        mask: SigSet(action.mask.0 & !OURS.0),
        flags: action.flags | flags::RESTORER,
        restorer: signal::restorer(),
        ..*action
    }
}

/// The handler of SIGBUS: a fault, a signal that tells us something, or the program's.
unsafe extern "C" fn on_sigbus(_signal: i32, info: *mut SigInfo, context: *mut UContext) {
    // SAFETY: the kernel passes it, on this stack, to this call alone.
    let info = unsafe { &*info };
    // SAFETY: as above.
    let context = unsafe { &mut *context };
    if entry::edge::at_end(context) {
        return;
    }
    match fault::serve(info, context) {
        Served::Yes => {}
        Served::NotOurs => deliver(SIGBUS, info, context),
        Served::No => deliver(SIGBUS, &SigInfo::of_bad_access(info.fault_address()), context),
    }
}

/// The handler of SIGSEGV: a guarded access of ours, or the program's.
unsafe extern "C" fn on_sigsegv(_signal: i32, info: *mut SigInfo, context: *mut UContext) {
    // SAFETY: the kernel passes it, valid until the handler returns.
    let info = unsafe { &*info };
    // SAFETY: the same, and to this call alone.
    let context = unsafe { &mut *context };
    // A processor that refuses the access in another way than most.
    if !entry::edge::at_end(context) {
        deliver(SIGSEGV, info, context);
    }
}

/// Gives one of our three signals to the program, as the kernel would have. In the handler of that signal, with all signals blocked.
pub fn deliver(signal: u32, info: &SigInfo, context: &mut UContext) {
    let sent = !info.from_kernel();
    if sent && signal == SIGSYS && files::is_wanted(info) {
        files::answer();
        return knock::go_on(context);
    }
    if sent && signal == SIGBUS && is_for_us(info, context) {
        return;
    }
    if !sent && (guarded::fixup(context) || repair_careful(context)) {
        return;
    }
    let collected;
    let info = if sent {
        let Some(info) = pretended::collect(info) else { return };
        collected = info;
        &collected
    } else {
        info
    };
    if sent && thread::current().is_none() {
        // A new thread that has not begun: natively it has all signals blocked. It waits in the kernel until it has begun.
        context.set_mask(context.mask().with(signal));
        let _ = signal::queue_again(getpid(), gettid(), info);
        return;
    }
    let thread = thread::current_or_new();
    match (thread.internal, sent) {
        // The kernel chose one of our threads: it is for the program.
        (true, true) => return pretended::offer(info),
        (true, false) => {
            let (address, offset) = (info.fault_address(), context.get(Reg::Rip).wrapping_sub(text::base()));
            report::abort(format_args!(
                "bug: signal {signal} at {address:#x} in a thread of Farshore's, by libfarshore.so+{offset:#x}"
            ))
        }
        (false, true) if thread.shared.pretended().contains(signal) => return pretended::keep(thread, info),
        (false, false) if thread.shared.pretended().contains(signal) => return default_action(signal, false),
        (false, _) => {}
    }
    let action = actions::take(signal);
    // A fault cannot be ignored: the kernel kills instead. A signal that was sent can.
    match action.handler {
        SIG_IGN if sent => {}
        SIG_DFL | SIG_IGN => default_action(signal, sent),
        _ => frame::start(thread, signal, &action, info, context),
    }
}

/// Whether a SIGBUS that was sent is for Farshore; then it is done with.
fn is_for_us(info: &SigInfo, context: &mut UContext) -> bool {
    if thread::is_internal() {
        // Where there are threads of ours the control thread is one of them, and has heard.
        return rights::take_order(info) || knock::is_knock(info);
    }
    let knock = knock::is_knock(info);
    if knock {
        knock::answer();
        knock::go_on(context);
    }
    knock
}

fn default_action(signal: u32, sent: bool) {
    // A call that a filter has trapped (SIGSYS) is not made again.
    if sent || signal == SIGSYS {
        report::die_by(signal);
    }
    // The access that faulted faults again when we return, and ends the process with the right core.
    // SAFETY: the default action has no handler.
    let _ = unsafe { signal::sigaction(signal, Some(&Action::DEFAULT)) };
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

/// Before a caught `rt_sigreturn`, which the program makes at `sp`.
///
/// # Safety
/// Called by the entry with the context that is about to be restored.
#[unsafe(no_mangle)]
unsafe extern "C" fn farshore_before_sigreturn(context: *mut UContext, sp: u64) {
    // SAFETY: this function's own condition.
    settle(unsafe { &mut *context }, sp);
}

/// A context of the program is about to be restored, by code at `sp`: it goes on with our stack for handlers, and without our signals blocked. A call of a
/// process that was dormant when it was interrupted, and that was about to be made, is not: it begins again.
pub fn settle(context: &mut UContext, sp: u64) {
    entry::edge::unmake_on_programs_stack(context);
    pretended::settle(context, sp);
}

/// Whether a signal waits that code with this mask will handle by a handler that ends calls: one without `SA_RESTART`, or `any`.
pub fn ends_calls(mask: SigSet, any: bool) -> bool {
    let mut pending = 0u64;
    // SAFETY: eight bytes of ours.
    unsafe { syscall(RT_SIGPENDING, [&raw mut pending as u64, 8, 0, 0, 0, 0]) };
    let waiting = pending & !mask.0;
    (1..SIGNALS as u32).filter(|number| waiting >> (number - 1) & 1 != 0).any(|number| {
        let action = actions::get(number);
        is_handler(&action) && (any || action.flags & flags::RESTART == 0)
    })
}

/// The calls of this module, by number.
pub fn handles(number: u64) -> bool {
    matches!(number, nr::RT_SIGACTION | nr::RT_SIGPROCMASK | nr::SIGALTSTACK | RT_SIGPENDING | RT_SIGTIMEDWAIT)
}

/// Does one of the calls, for code with the stack pointer `sp`.
pub fn handle(number: u64, args: &Args, sp: u64) -> i64 {
    match number {
        nr::RT_SIGACTION => rt_sigaction(args),
        nr::RT_SIGPROCMASK => rt_sigprocmask(args),
        RT_SIGPENDING => rt_sigpending(args),
        RT_SIGTIMEDWAIT => waits::timed_wait(args),
        _ => sigaltstack(args, sp),
    }
}

fn raw(number: u64, args: &Args) -> i64 {
    // SAFETY: the program's own call; pointers are to our locals or were refused by a guarded copy.
    unsafe { entry::for_program(number, args) }
}

const EFAULT: i64 = -14;
const EINVAL: i64 = -22;

/// Reads a plain structure of the program; `None` as the kernel's EFAULT.
fn read<T: buffers::Plain>(addr: u64) -> Option<T> {
    buffers::read_once::<T>(net(), addr)
}

fn write<T: buffers::Plain>(addr: u64, value: &T) -> bool {
    buffers::write_once(net(), addr, value)
}

fn from_words(words: [u64; 4]) -> Action {
    Action { handler: words[0], flags: words[1], restorer: words[2], mask: SigSet(words[3]) }
}

/// As the kernel has it in memory.
pub fn to_words(action: &Action) -> [u64; 4] {
    [action.handler, action.flags, action.restorer, action.mask.0]
}

fn rt_sigaction(args: &Args) -> i64 {
    let [number, new, old, size, ..] = *args;
    if size != 8 {
        return EINVAL;
    }
    let new = match new {
        0 => None,
        addr => match read::<[u64; 4]>(addr) {
            Some(words) => Some(from_words(words)),
            None => return EFAULT,
        },
    };
    if number == 0 || number >= SIGNALS as u64 {
        return EINVAL;
    }
    let before = match uninterrupted(|| actions::setting(|| change_action(number as u32, new))) {
        Ok(before) => before,
        Err(errno) => return -i64::from(errno.0),
    };
    if old != 0 && !write(old, &to_words(&before)) { EFAULT } else { 0 }
}

/// Reads and, if `new` is given, changes an action of the program.
fn change_action(number: u32, new: Option<Action>) -> Result<Action, Errno> {
    let set = actions::get(number);
    let handler = if steps::has_taken(number) {
        Some(frame::on_signal as Handler as *const () as u64)
    } else {
        place(number).map(|_| handler_of(number))
    };
    if let Some(handler) = handler {
        if let Some(new) = new {
            actions::put(number, new);
            // SAFETY: our own handler.
            unsafe { signal::sigaction(number, Some(&action_of(handler, restart_of(&new)))) }?;
        }
        return Ok(set);
    }
    let kernels = new.map(|new| kernels_action(&new));
    // A handler is noted before the kernel may start it; anything else afterwards.
    let early = new.filter(is_handler);
    if let Some(new) = early {
        actions::put(number, new);
    }
    // SAFETY: our own handler, or the program's with its own restorer.
    let before = match unsafe { signal::sigaction(number, kernels.as_ref()) } {
        Ok(before) => before,
        Err(errno) => {
            if early.is_some() {
                actions::put(number, set);
            }
            return Err(errno);
        }
    };
    if let Some(new) = new.filter(|_| early.is_none()) {
        actions::put(number, new);
    }
    let noted = before.handler == frame::on_signal as Handler as *const () as u64;
    // Also what a handler with SA_RESETHAND has become.
    Ok(if noted { set } else { Action { handler: before.handler, ..set } })
}

/// A child that was made with `CLONE_CLEAR_SIGHAND` begins: what is not ignored becomes the default. (The kernel was not asked to, or ours would be gone.)
pub fn clear_handlers() {
    uninterrupted(|| {
        actions::setting(|| {
            for number in 1..SIGNALS as u32 {
                let set = actions::get(number);
                let handler = if set.handler == SIG_IGN { SIG_IGN } else { SIG_DFL };
                let cleared = Action { handler, ..Action::DEFAULT };
                if set != cleared && change_action(number, Some(cleared)).is_err() {
                    report::abort(format_args!("bug: the action of signal {number} cannot be reset"));
                }
            }
        });
    });
}

fn rt_sigprocmask(args: &Args) -> i64 {
    let [how, set, old, size, ..] = *args;
    let Some(thread) = thread::current().filter(|_| size == 8) else {
        return raw(nr::RT_SIGPROCMASK, args);
    };
    let known = thread.shared.pretended();
    let mut pretended = known;
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
    let mut pin_set = PinSet::new();
    let mut pins = Pins::new(net(), &mut pin_set);
    let at = buffers::pin_local(net(), &mut pins, &mut masks);
    let answer = raw(nr::RT_SIGPROCMASK, &[how, if set != 0 { at } else { 0 }, at + 8, 8, 0, 0]);
    pins.release();
    if answer < 0 {
        return answer;
    }
    if pretended != known {
        pretended::change_in_call(thread, pretended);
    }
    let before = masks[1] & !OURS.0 | known.0;
    if old != 0 && !write(old, &before) { EFAULT } else { 0 }
}

fn rt_sigpending(args: &Args) -> i64 {
    let [set, size, ..] = *args;
    let Some(thread) = thread::current().filter(|_| size == 8) else { return crate::ground::net::pinned(RT_SIGPENDING, args) };
    let mut pending = 0u64;
    let answer = raw(RT_SIGPENDING, &[&raw mut pending as u64, 8, 0, 0, 0, 0]);
    pending |= pretended::waiting(thread).0;
    if answer == 0 && !write(set, &pending) { EFAULT } else { answer }
}

fn sigaltstack(args: &Args, sp: u64) -> i64 {
    let [new, old, ..] = *args;
    let Some(thread) = thread::current() else { return raw(nr::SIGALTSTACK, args) };
    let new = match new {
        0 => None,
        addr => match read::<[u64; 3]>(addr) {
            Some([base, flags, size]) => Some(AltStack { base, flags: flags as i32, size }),
            None => return EFAULT,
        },
    };
    let before = altstack::tell(thread, sp);
    if let Some(new) = new
        && let Err(errno) = uninterrupted(|| altstack::set(thread, new, sp))
    {
        return -i64::from(errno.0);
    }
    let words = [before.base, before.flags as u32 as u64, before.size];
    if old != 0 && !write(old, &words) { EFAULT } else { 0 }
}

/// Before an exec: the signals that the program thinks blocked or ignored become so, since the next program inherits
/// both. Returns the mask to go back to if the exec fails.
pub fn before_exec() -> SigSet {
    let mask = signal::current_mask();
    if let Some(thread) = thread::current() {
        let pretended = thread.shared.pretended();
        signal::sigprocmask(How::Set, SigSet(mask.0 | pretended.0));
        // They wait in the kernel now, across the exec.
        pretended::to_kernel(pretended);
    }
    mask
}

/// Keeps what this module has for all threads as it is, for the time of a fork. With all signals blocked.
pub fn hold() {
    actions::acquire();
    pretended::acquire();
}

/// Ends that, in the parent.
pub fn let_go() {
    pretended::release();
    actions::release();
}

/// Ends [`hold`] in the child, for which nothing waits.
pub fn begin_child() {
    let_go();
    actions::become_owners();
    if let Some(thread) = thread::current() {
        pretended::forget(thread);
        frame::forget_deferred(thread);
    }
}

/// At the start: what the program before has left blocked of [`OURS`] is pretended from now on. `mask`: the thread's, if it has another one for the moment.
pub fn adopt_mask(thread: &thread::Thread, mask: Option<SigSet>) {
    let mask = mask.unwrap_or_else(|| signal::sigprocmask(How::Unblock, OURS));
    thread.shared.pretend(SigSet(mask.0 & OURS.0));
}

/// Which of [`OURS`] the calling thread pretends to have blocked, a bit for each: its children begin with that.
pub fn inheritance() -> i64 {
    let Some(thread) = thread::current() else { return 0 };
    let pretended = thread.shared.pretended();
    let bit = |signal| place(signal).filter(|_| pretended.contains(signal)).map_or(0, |place| 1 << place);
    [SIGBUS, SIGSEGV, SIGSYS].map(bit).iter().sum()
}

/// A new thread begins with what [`inheritance`] gave its parent for it.
pub fn inherit(thread: &thread::Thread, given: u64) {
    let blocked =
        [SIGBUS, SIGSEGV, SIGSYS].into_iter().filter(|&signal| place(signal).is_some_and(|place| given >> place & 1 != 0));
    pretended::inherit(thread, blocked.fold(SigSet::EMPTY, SigSet::with));
}
