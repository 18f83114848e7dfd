//! Somebody connects to the control socket while there is no thread to answer.
//!
//! The listening socket is made before the program runs (in a forked child: at its first fault), and stays open in the program's table of descriptors, under
//! a number of ours. While the control thread is not there the socket is *armed*: the kernel sends the process a SIGBUS when somebody connects
//! (`F_SETSIG`, `O_ASYNC`), and its handler makes our threads. What else a connection does is nothing: the control thread looks who it is.
//!
//! # The call that the signal interrupts
//!
//! The kernel goes on with most calls by itself (`SA_RESTART`). Some end with `EINTR` as soon as any handler has run, which a program that has no handler
//! does not expect. All calls of the program are made by our text, with the call's number in `r12` ([`farshore_sys::raw::syscall`]); so [`go_on`] has them made again:
//!
//! | calls | how |
//! |---|---|
//! | `select`, `pselect6`, `ppoll`, `pause`, `rt_sigsuspend`, sleeps until a time | again, with the same arguments: the kernel has written what is left |
//! | `poll`, `nanosleep`, `futex` with a time | by `restart_syscall`, for which the kernel remembers what is left. `rt_sigreturn` would make it forget: the handler is left without |
//! | waits without a time of the calls below | again |
//! | `epoll_wait` and its like with a time | again, by the code that made it (`signals::waits`) |
//! | `semtimedop`, `rt_sigtimedwait`, … with a time | `EINTR`, as natively whenever the process is stopped and continued, or a debugger attaches (signal(7)) |

use super::{STOP, start_late};
use crate::ground::above::{Above, Library};
use crate::ground::runtime::{Runtime, runtime};
use crate::ground::{parts, report, text};
use core::arch::global_asm;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use farshore_catch::entry::{self, edge};
use farshore_sys::raw::{getpid, gettid, nr, syscall};
use farshore_sys::signal::{Reg, SIGBUS, SigInfo, UContext};

/// The listening socket; -1: there is none.
static LISTENER: AtomicI32 = AtomicI32::new(-1);
/// The user in its name.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// A filter of the program stops what the control thread does.
static SILENT: AtomicBool = AtomicBool::new(false);
/// The thread that has the address-space lock and takes signals all the same; 0: none.
static HOLDER: AtomicU32 = AtomicU32::new(0);
/// A signal may come that was sent before the control thread was there.
static OUTSTANDING: AtomicBool = AtomicBool::new(false);
/// Somebody connected meanwhile.
static PUT_OFF: AtomicBool = AtomicBool::new(false);

const F_SETFL: u64 = 4;
const F_SETOWN: u64 = 8;
const F_SETSIG: u64 = 10;
const O_NONBLOCK: u64 = 0o4000;
const O_ASYNC: u64 = 0o20000;
/// `si_code` of a signal that a descriptor has sent, where those above 0 belong to the signal.
const SI_SIGIO: i32 = -5;

/// The listening socket's descriptor.
pub fn descriptor() -> Option<i32> {
    Some(LISTENER.load(Ordering::Acquire)).filter(|&fd| fd >= 0)
}

/// The user whose name it has.
pub fn owner() -> Option<u32> {
    descriptor().map(|_| OWNER.load(Ordering::Acquire))
}

/// Makes the listening socket, unless there is one. Without it the program can run.
pub fn listen(runtime: &Runtime) {
    if descriptor().is_some() {
        return;
    }
    match farshore_socket::listen() {
        Ok(listener) => {
            OWNER.store(rustix::process::geteuid().as_raw(), Ordering::Release);
            LISTENER.store(parts::raise(listener).into_raw(), Ordering::Release);
            runtime.note_own_fds();
            Library::name_socket();
        }
        Err(why) => report::line(format_args!("{why}")),
    }
}

/// In a forked child: makes it at the first fault.
pub(super) fn listen_late(runtime: &'static Runtime) {
    if is_to_be_made(runtime) && crate::ground::runtime::locked(runtime, |_| listen_once(runtime)) && arm() {
        start_late(runtime);
    }
}

/// The process that has tried to make it, in a forked child.
static TRIED: AtomicU32 = AtomicU32::new(0);

fn is_to_be_made(runtime: &Runtime) -> bool {
    !runtime.first && descriptor().is_none() && TRIED.load(Ordering::Acquire) != getpid()
}

/// The same, at the latest before there is a thread to serve it; under the address-space lock. Whether it was made.
pub(super) fn listen_once(runtime: &Runtime) -> bool {
    let wanted = is_to_be_made(runtime);
    if wanted {
        TRIED.store(getpid(), Ordering::Release);
        listen(runtime);
    }
    wanted && descriptor().is_some()
}

/// Whether there is something for a control thread to do.
pub(super) fn may_serve() -> bool {
    descriptor().is_some() && !SILENT.load(Ordering::Acquire)
}

/// A filter stops what the control thread does: there is none from now on. While there are no threads of ours.
pub fn be_silent() {
    SILENT.store(true, Ordering::Release);
    disarm();
}

/// The control thread takes no descriptors of the program's.
pub(super) fn leave_table() {
    if let Some(listener) = descriptor() {
        farshore_socket::leave_table(listener);
    }
}

/// The control thread.
pub(super) fn serve(runtime: &'static Runtime) {
    if let Some(listener) = descriptor() {
        farshore_socket::serve(listener, runtime, &STOP);
    }
}

fn fcntl(command: u64, argument: u64) {
    let Some(listener) = descriptor() else { return };
    // SAFETY: a descriptor of ours; the commands take numbers.
    unsafe { syscall(nr::FCNTL, [listener as u64, command, argument, 0, 0, 0]) };
}

/// Whether somebody waits at the listening socket.
fn is_somebody_there() -> bool {
    const POLL: u64 = 7;
    const POLLIN: u64 = 1;
    let Some(listener) = descriptor() else { return false };
    let mut asked = listener as u32 as u64 | POLLIN << 32;
    // SAFETY: one `struct pollfd` of ours.
    unsafe { syscall(POLL, [&raw mut asked as u64, 1, 0, 0, 0, 0]) == 1 }
}

/// From now on the kernel says when somebody connects. When there is no control thread, and our handlers are there. Whether somebody was faster.
pub fn arm() -> bool {
    if SILENT.load(Ordering::Acquire) || descriptor().is_none() {
        return false;
    }
    fcntl(F_SETSIG, SIGBUS.into());
    fcntl(F_SETOWN, getpid().into());
    fcntl(F_SETFL, O_NONBLOCK | O_ASYNC);
    is_somebody_there()
}

/// Whether somebody waits for threads of ours to be made.
pub fn is_waited_for() -> bool {
    !SILENT.load(Ordering::Acquire) && is_somebody_there()
}

/// The control thread hears by itself. A signal of before may still come.
pub fn disarm() {
    fcntl(F_SETFL, O_NONBLOCK);
    OUTSTANDING.store(true, Ordering::Release);
}

/// In a forked child: the socket is its parent's, whose name it has. (The code that closes the others closes its copy.)
pub(super) fn forget() {
    LISTENER.store(-1, Ordering::Release);
    HOLDER.store(0, Ordering::Release);
    PUT_OFF.store(false, Ordering::Release);
}

/// Whether a SIGBUS that was sent says that somebody connects. What it carried may be lost (`RLIMIT_SIGPENDING`).
pub fn is_knock(info: &SigInfo) -> bool {
    let Some(listener) = descriptor() else { return false };
    // struct siginfo of a descriptor: the band, then its number.
    let by_socket = info.code() == SI_SIGIO && info.descriptor() == listener;
    let lost = info.code() == 0 && info.sender_pid() == 0;
    by_socket || (lost && (is_somebody_there() || OUTSTANDING.swap(false, Ordering::AcqRel)))
}

/// Answers it: in the handler, with all signals blocked.
pub fn answer() {
    let Some(runtime) = runtime().filter(|runtime| runtime.running.load(Ordering::Acquire)) else { return };
    if HOLDER.load(Ordering::Acquire) == gettid() {
        PUT_OFF.store(true, Ordering::Release);
        return;
    }
    if !SILENT.load(Ordering::Acquire) {
        start_late(runtime);
    }
}

/// The calling thread has the address-space lock, and will take signals.
pub fn put_off() {
    HOLDER.store(gettid(), Ordering::Release);
}

/// It has it no more, and all signals blocked.
pub fn end_put_off() {
    HOLDER.store(0, Ordering::Release);
    if PUT_OFF.swap(false, Ordering::AcqRel) {
        answer();
    }
}

/// Lets the call that the signal has interrupted go on, where a handler would end it. At the end of the handler: it may not come back.
pub fn go_on(context: &mut UContext) {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    let at = context.get(Reg::Rip);
    edge::note_interrupted(context);
    if context.get(Reg::Rax) as i64 != entry::EINTR || !text::is_ours(at) || !text::is_ours(at.wrapping_sub(2)) {
        return;
    }
    let before = core::ptr::with_exposed_provenance::<[u8; 2]>((at - 2) as usize);
    // SAFETY: two bytes of our own text.
    if unsafe { before.read_unaligned() } != SYSCALL {
        return;
    }
    let number = context.get(Reg::R12);
    if let Some(start) = edge::again(at) {
        go_on_with(context, number, start);
    }
}

/// The same for call `number`, which is made at `start`.
pub fn go_on_with(context: &mut UContext, number: u64, start: u64) {
    let again = match Wait::of(number, context) {
        Wait::Again => number,
        Wait::Remembered => RESTART_SYSCALL,
        Wait::Ended => return edge::resume_in_stub(context),
    };
    edge::go_back(context, again, start);
    if again == RESTART_SYSCALL {
        leave(context);
    }
}

const RESTART_SYSCALL: u64 = 219;
/// Red zone of the interrupted code.
const RED_ZONE: u64 = 128;
/// In the order in which they are loaded, behind the mask.
const ORDER: [Reg; 17] = [
    Reg::R15,
    Reg::R14,
    Reg::R13,
    Reg::R12,
    Reg::R11,
    Reg::R10,
    Reg::R9,
    Reg::R8,
    Reg::Rdi,
    Reg::Rsi,
    Reg::Rbp,
    Reg::Rbx,
    Reg::Rdx,
    Reg::Rcx,
    Reg::Rax,
    Reg::Rflags,
    Reg::Rip,
];

/// The mask, and those.
const WORDS: usize = 1 + ORDER.len();

/// Leaves the handler without `rt_sigreturn`: loads what `context` has. The mask comes when this stack is left, so that a signal that waits
/// finds the thread where it was interrupted.
fn leave(context: &UContext) -> ! {
    let words = context.get(Reg::Rsp) - RED_ZONE - WORDS as u64 * 8;
    let mut values = [context.mask().0; WORDS];
    values[1..].iter_mut().zip(ORDER).for_each(|(value, register)| *value = context.get(register));
    // SAFETY: the words come to lie below the stack pointer and the red zone, where there is room, which is kept in memory: a call of ours has it; of a
    // call that a dormant process has made the kernel has saved the state there. That is why the state is loaded first. It is what the kernel has saved
    // with this signal. Nothing of the handler's is used again.
    unsafe { farshore_leave_handler(words, context.fpstate(), &values) }
}

/// What becomes of a call that has answered `EINTR`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wait {
    Again,
    Remembered,
    Ended,
}

impl Wait {
    fn of(number: u64, context: &UContext) -> Wait {
        /// `TIMER_ABSTIME` of `clock_nanosleep`.
        const UNTIL: u64 = 1;
        let forever = |condition: bool| if condition { Wait::Again } else { Wait::Ended };
        match number {
            // poll, nanosleep, futex, and these made again
            7 | 35 | 202 | RESTART_SYSCALL => Wait::Remembered,
            // clock_nanosleep
            230 if context.get(Reg::Rsi) & UNTIL == 0 => Wait::Remembered,
            // select, pause, rt_sigsuspend, pselect6, ppoll
            230 | 23 | 34 | 130 | 270 | 271 => Wait::Again,
            // epoll_wait, epoll_pwait
            232 | 281 => forever(context.get(Reg::R10) as i32 == -1),
            // semop; semtimedop, epoll_pwait2: a time
            65 => Wait::Again,
            220 | 441 => forever(context.get(Reg::R10) == 0),
            // rt_sigtimedwait
            128 => forever(context.get(Reg::Rdx) == 0),
            _ => Wait::Ended,
        }
    }
}

/// Whether there are arguments with which a call is made again.
#[cfg(test)]
pub fn lets_go_on(number: u64) -> bool {
    [0, u64::MAX].into_iter().any(|value| {
        // SAFETY: it is made of numbers.
        let mut context = unsafe { core::mem::MaybeUninit::<UContext>::zeroed().assume_init() };
        for register in [Reg::Rdi, Reg::Rsi, Reg::Rdx, Reg::R10, Reg::R8, Reg::R9] {
            // SAFETY: a context that nobody goes on with.
            unsafe { context.set(register, value) };
        }
        Wait::of(number, &context) != Wait::Ended
    })
}

global_asm!(
    ".pushsection .text.farshore_leave_handler, \"ax\", @progbits",
    ".balign 16",
    ".hidden farshore_leave_handler",
    ".globl farshore_leave_handler",
    ".type farshore_leave_handler, @function",
    // (where the words go, the floating-point state, the words)
    "farshore_leave_handler:",
    ".cfi_startproc",
    ".cfi_undefined rip",
    "mov r8, rdx",
    "test rsi, rsi",
    "jz 3f",
    // `struct _fpx_sw_bytes`: whether there is more than the legacy area, and which components.
    "cmp dword ptr [rsi + 464], 0x46505853",
    "jne 2f",
    "mov eax, [rsi + 472]",
    "mov edx, [rsi + 476]",
    "xrstor64 [rsi]",
    "jmp 3f",
    "2: fxrstor64 [rsi]",
    "3:",
    "mov rdx, rdi",
    "mov rsi, r8",
    "mov ecx, {words}",
    "rep movsq",
    "mov rsp, rdx",
    "mov eax, {sigprocmask}",
    "mov edi, 2",
    "mov rsi, rsp",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "add rsp, 8",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop r11",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rdi",
    "pop rsi",
    "pop rbp",
    "pop rbx",
    "pop rdx",
    "pop rcx",
    "pop rax",
    "popfq",
    "ret {red_zone}",
    ".cfi_endproc",
    ".size farshore_leave_handler, . - farshore_leave_handler",
    ".popsection",
    sigprocmask = const nr::RT_SIGPROCMASK,
    red_zone = const RED_ZONE,
    words = const WORDS,
);

unsafe extern "C" {
    fn farshore_leave_handler(words: u64, floating: u64, values: &[u64; WORDS]) -> !;
}
