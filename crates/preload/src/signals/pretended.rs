//! What the program believes about signals that Farshore needs: which it has blocked, and which wait because of that.
//!
//! The kernel never blocks [`OURS`]. Each thread's *pretended* mask says which of them the program thinks blocked. It changes
//! as the kernel's mask would:
//!
//! * by `rt_sigprocmask`;
//! * while a handler runs, by the action's mask. So handlers of the program start in [`farshore_handler`], which shows the
//!   whole mask in the saved context, as natively, and takes it from there when the handler has returned (a handler may
//!   change it there);
//! * a handler that is left by `siglongjmp` restores it by `rt_sigprocmask`.
//!
//! A signal of ours that somebody *sends* while it is pretended to be blocked is kept here, and sent again, with all that it
//! carried, when it is unblocked. As in the kernel, the first of a kind is kept. Unlike there, a signal for the process is not
//! offered to other threads that have it unblocked, and `sigtimedwait` and `signalfd` do not see it.
//!
//! A *fault* whose signal is pretended to be blocked ends the process, as natively.

use super::{OURS, SIGNALS};
use crate::thread::{self, Thread};
use core::arch::global_asm;
use core::sync::atomic::{AtomicU64, Ordering};
use farshore_sys::lock::Mutex;
use farshore_sys::raw::{getpid, gettid};
use farshore_sys::signal::{self, SigInfo, SigSet, UContext};

// Called by the kernel as a handler: (signal, information, context), and returns to the restorer. An ordinary frame, told to
// unwinders, so that exceptions and cancellation pass through it.
global_asm!(
    ".pushsection .text.farshore_handler, \"ax\", @progbits",
    ".balign 16",
    ".hidden farshore_handler",
    ".globl farshore_handler",
    ".type farshore_handler, @function",
    "farshore_handler:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "push rdx",
    "push rdi",
    "push rsi",
    "sub rsp, 8",
    "call {before}",
    "mov rdi, [rbp - 16]",
    "mov rsi, [rbp - 24]",
    "mov rdx, [rbp - 8]",
    "call rax",
    "mov rdi, [rbp - 8]",
    "call {after}",
    "leave",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size farshore_handler, . - farshore_handler",
    ".popsection",
    before = sym before_handler,
    after = sym after_handler,
);

unsafe extern "C" {
    fn farshore_handler();
}

/// A handler of the program, for signals that are not ours.
struct Installed {
    handler: AtomicU64,
    /// Those of [`OURS`] that its action's mask names.
    mask: AtomicU64,
}

static INSTALLED: [Installed; SIGNALS] = [const { Installed { handler: AtomicU64::new(0), mask: AtomicU64::new(0) } }; SIGNALS];

/// Where the kernel is to start a handler of the program.
pub(super) fn trampoline() -> u64 {
    farshore_handler as *const () as u64
}

/// Notes the program's handler of `signal`, before the kernel knows; what was noted before.
pub(super) fn note(signal: u32, handler: u64, mask: SigSet) -> (u64, SigSet) {
    let place = &INSTALLED[signal as usize];
    let before = place.mask.swap(mask.0 & OURS.0, Ordering::AcqRel);
    (place.handler.swap(handler, Ordering::AcqRel), SigSet(before))
}

/// The handler of `signal` that was noted last, and what its mask has of ours.
pub(super) fn noted(signal: u32) -> (u64, SigSet) {
    let place = &INSTALLED[signal as usize];
    (place.handler.load(Ordering::Acquire), SigSet(place.mask.load(Ordering::Acquire)))
}

/// A handler of the program is about to run; its address.
unsafe extern "C" fn before_handler(signal: i32, _info: *mut SigInfo, context: *mut UContext) -> u64 {
    let (handler, mask) = noted(signal as u32);
    if let Some(thread) = thread::current() {
        // SAFETY: the kernel's frame, which is this handler's alone.
        enter(thread, unsafe { &mut *context }, mask);
    }
    handler
}

unsafe extern "C" fn after_handler(context: *mut UContext) {
    // SAFETY: as above; the program may have changed it, as it may natively.
    settle(unsafe { &mut *context });
}

/// A handler starts: what it interrupted sees its whole mask in the context, and `mask` is blocked besides.
pub(super) fn enter(thread: &mut Thread, context: &mut UContext, mask: SigSet) {
    context.set_mask(SigSet(context.mask().0 | thread.pretended_mask.0));
    thread.pretended_mask = SigSet(thread.pretended_mask.0 | mask.0 & OURS.0);
}

/// `context` is about to be restored: what it has of our signals becomes the pretended mask.
pub(super) fn settle(context: &mut UContext) {
    let mask = context.mask();
    context.set_mask(SigSet(mask.0 & !OURS.0));
    if let Some(thread) = thread::current() {
        change(thread, SigSet(mask.0 & OURS.0));
    }
}

/// Sets the pretended mask, and lets signals go that waited for it.
pub(super) fn change(thread: &mut Thread, to: SigSet) {
    let freed = thread.pretended_mask.0 & !to.0;
    thread.pretended_mask = to;
    if freed != 0 {
        send_again(thread, SigSet(freed));
    }
}

/// Signals of ours that wait, one of each kind.
#[derive(Debug)]
pub struct Waiting([Option<SigInfo>; 3]);

impl Waiting {
    /// None.
    pub const NONE: Waiting = Waiting([None; 3]);

    fn set(&self) -> SigSet {
        self.0.iter().flatten().fold(SigSet::EMPTY, |set, info| set.with(info.signal() as u32))
    }

    fn take(&mut self, wanted: SigSet) -> Option<SigInfo> {
        self.0.iter_mut().find(|w| w.is_some_and(|info| wanted.contains(info.signal() as u32)))?.take()
    }
}

/// Those that were sent to the process.
static PROCESS: Mutex<Waiting> = Mutex::new(Waiting::NONE);

/// Keeps a signal that was sent while blocked. In its handler, with all signals blocked.
pub(super) fn keep(thread: &mut Thread, place: usize, info: &SigInfo) {
    if info.to_thread() {
        thread.waiting.0[place].get_or_insert(*info);
    } else {
        PROCESS.with(|waiting| _ = waiting.0[place].get_or_insert(*info));
    }
}

/// Which wait for this thread.
pub(super) fn waiting(thread: &Thread) -> SigSet {
    let process = crate::runtime::uninterrupted(|| PROCESS.with(|waiting| waiting.set()));
    SigSet(thread.waiting.set().0 | process.0)
}

/// Sends those of `which` that wait to this thread again.
pub(super) fn send_again(thread: &mut Thread, which: SigSet) {
    let mut next = || {
        let own = thread.waiting.take(which);
        own.or_else(|| crate::runtime::uninterrupted(|| PROCESS.with(|waiting| waiting.take(which))))
    };
    while let Some(info) = next() {
        // Fails when the user has too many signals queued: then it is lost, as a signal that the kernel has no memory for.
        let _ = signal::queue_again(getpid(), gettid(), &info);
    }
}
