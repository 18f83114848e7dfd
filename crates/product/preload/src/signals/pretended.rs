//! What the program believes about signals that Farshore needs: which it has blocked, and which wait because of that.
//!
//! The kernel never blocks [`OURS`] (but for the time of `rt_sigtimedwait`, [`super::waits`]). Each thread's *pretended* mask says which
//! of them the program thinks blocked. It changes as the kernel's mask would:
//!
//! * by `rt_sigprocmask`;
//! * while a handler runs, by the action's mask: [`super::frame`] writes the whole mask to the saved context, as natively, and it is taken
//!   from there when the handler has returned ([`settle`]; a handler may change it there);
//! * a handler that is left by `siglongjmp` restores it by `rt_sigprocmask`;
//! * for the time of a call that takes a mask ([`super::waits`]);
//! * a new thread inherits it.
//!
//! A signal of ours that somebody *sends* while the thread that the kernel chose pretends to block it: one for the process goes on
//! to a thread that waits for it or has it unblocked; otherwise it waits here until somebody unblocks it. As in the kernel, the first of a
//! kind is kept. A descriptor of `signalfd` does not see it.
//!
//! A signal that waits here is never sent again itself: the kernel keeps one of a kind for a thread, and would drop it silently where one is
//! on its way. What is sent is a note ([`HANDED`]), and whoever gets it takes here what there is ([`collect`]): two notes may become one, and
//! no signal is lost.
//!
//! A *fault* whose signal is pretended to be blocked ends the process, as natively.

use super::altstack;
use crate::ground::runtime::uninterrupted;
use crate::ground::thread::pending::{OURS, Waiting};
use crate::ground::thread::{self, Shared, Thread};
use farshore_catch::entry::edge;
use farshore_sys::lock::Mutex;
use farshore_sys::raw::{Errno, getpid, gettid};
use farshore_sys::signal::{self, Action, SigInfo, SigSet, UContext, flags};

/// Signal masks around the start of a handler.
#[derive(Debug)]
pub(super) struct Masks {
    /// What the program finds in the context.
    pub(super) saved: SigSet,
    /// What the kernel is to block while the handler runs.
    pub(super) kernel: SigSet,
    /// What is pretended meanwhile.
    pub(super) pretended: SigSet,
}

/// What the program thinks to be blocked in the code that `context` interrupts, and that its frame is to restore.
pub(super) fn of_program(thread: &Thread, context: &UContext) -> SigSet {
    match thread.suspended.get() {
        Some(suspended) => suspended.saved,
        None => SigSet(context.mask().0 & !OURS.0 | thread.shared.pretended().0),
    }
}

/// What is blocked there, if not the same: a call under way has a mask for its time.
pub(super) fn during(thread: &Thread, saved: SigSet) -> SigSet {
    thread.suspended.get().map_or(saved, |suspended| suspended.during)
}

/// The masks for a handler of `signal`.
pub(super) fn for_handler(thread: &Thread, context: &UContext, signal: u32, action: &Action) -> Masks {
    let saved = of_program(thread, context);
    let now = during(thread, saved);
    let own = if action.flags & flags::NODEFER != 0 || signal == 0 { SigSet::EMPTY } else { SigSet::EMPTY.with(signal) };
    let during = now.0 | action.mask.0 | own.0;
    Masks { saved, kernel: SigSet(during & !OURS.0), pretended: SigSet(during & OURS.0) }
}

/// A handler starts: the call that it has interrupted, if it took a mask or waited for signals, is over.
pub(super) fn enter(thread: &Thread, pretended: SigSet) {
    thread.suspended.set(None);
    thread.shared.await_signals(SigSet::EMPTY);
    change(thread, pretended);
    // One that waited beside that of this handler, which does not block its own signal (`SA_NODEFER`).
    let open = OURS.0 & !pretended.0;
    if waiting_now(thread).0 & open != 0 {
        announce(thread, SigSet(open));
    }
}

/// `context` is about to be restored by a `rt_sigreturn` made at `sp`: what it has of our signals becomes the pretended mask, and its
/// alternate stack the program's.
pub(super) fn settle(context: &mut UContext, sp: u64) {
    let mask = context.mask();
    context.set_mask(SigSet(mask.0 & !OURS.0));
    if let Some(thread) = thread::current() {
        // As the kernel: on that stack nothing changes, and what it cannot be is left as it was.
        let _ = altstack::set(thread, context.alt_stack(), sp);
        context.set_alt_stack(thread::own_stack(thread));
        change(thread, SigSet(mask.0 & OURS.0));
    }
}

/// Sets the pretended mask, and lets signals go that waited for it.
pub(super) fn change(thread: &Thread, to: SigSet) {
    let before = thread.shared.pretended();
    thread.shared.pretend(to);
    let_go(thread, before, to);
}

/// What waited because of `before`, and is not blocked by `to`, is sent again.
fn let_go(thread: &Thread, before: SigSet, to: SigSet) {
    let freed = before.0 & !to.0;
    if freed != 0 {
        announce(thread, SigSet(freed));
    }
}

/// The same, by a call under way. A signal that came when the kernel had just changed its own mask waits for the call's end, with the pretended mask of before:
/// what its handler goes back to is what the call has set.
pub(super) fn change_in_call(thread: &Thread, to: SigSet) {
    let before = uninterrupted(|| match thread.deferred.get() {
        Some(deferred) => {
            thread.deferred.set(Some(deferred.going_back_to(to)));
            to
        }
        None => {
            let before = thread.shared.pretended();
            thread.shared.pretend(to);
            before
        }
    });
    let_go(thread, before, to);
}

/// A new thread begins with its parent's mask. What waits for the process and is not blocked comes now.
pub fn inherit(thread: &Thread, mask: SigSet) {
    thread.shared.pretend(SigSet(mask.0 & OURS.0));
    announce(thread, SigSet(OURS.0 & !mask.0));
}

/// Those that were sent to the process.
static PROCESS: Mutex<Waiting> = Mutex::new(Waiting::new());

/// A signal was sent while this thread has it blocked. In its handler, with all signals blocked.
pub(super) fn keep(thread: &Thread, info: &SigInfo) {
    if is_threads_own(thread, info) { thread.waiting.put(info) } else { offer(info) }
}

/// A guest's process is another one: what was sent to it waits with the thread that the kernel chose.
fn is_threads_own(thread: &Thread, info: &SigInfo) -> bool {
    info.to_thread() || thread.is_guest()
}

/// Takes one of `wanted` that waits for the calling thread's process. With all signals blocked.
fn take_from_process(wanted: SigSet) -> Option<SigInfo> {
    // What waits there was not sent to a guest.
    if thread::is_guest() { None } else { PROCESS.with(|waiting| waiting.take(wanted)) }
}

/// The code of a signal that tells a thread to [`collect`] one. (A thread could not send another one a signal that a process has sent anyway.)
const HANDED: i32 = -0x4653;

/// A signal for the process: keeps it, and tells a thread that waits for it or has it unblocked to collect it. With all signals blocked.
pub(super) fn offer(info: &SigInfo) {
    let signal = info.signal() as u32;
    let waits = |shared: &Shared| shared.awaited().contains(signal);
    let open = |shared: &Shared| !shared.pretended().contains(signal);
    PROCESS.with(|waiting| waiting.put(info));
    // A thread that begins to wait for it or unblocks it from here on looks itself.
    while let Some(tid) = thread::find(waits).or_else(|| thread::find(open)) {
        if note(tid, signal) != Err(Errno::ESRCH) {
            return;
        }
    }
}

/// What is to be delivered when `info` has come: `None` when somebody has collected it before.
pub(super) fn collect(info: &SigInfo) -> Option<SigInfo> {
    // Where too many signals are queued, the kernel delivers them without what they carry.
    let bare = info.code() == 0 && info.sender_pid() == 0;
    if info.code() != HANDED && !bare {
        return Some(*info);
    }
    let kind = SigSet::EMPTY.with(info.signal() as u32);
    uninterrupted(|| take(kind)).or(bare.then_some(*info))
}

/// Which wait for this thread.
pub(super) fn waiting(thread: &Thread) -> SigSet {
    uninterrupted(|| waiting_now(thread))
}

/// The same, with all signals blocked.
fn waiting_now(thread: &Thread) -> SigSet {
    let process = if thread.is_guest() { SigSet::EMPTY } else { PROCESS.with(|waiting| waiting.set()) };
    SigSet(thread.waiting.set().0 | process.0)
}

/// Takes one of `wanted` that waits for this thread or the process; if there is none, lets others know that this thread waits for it.
/// With all signals blocked.
pub(super) fn take_or_await(thread: &Thread, wanted: SigSet) -> Option<SigInfo> {
    let own = thread.waiting.take(wanted);
    own.or_else(|| {
        PROCESS.with(|waiting| {
            let found = if thread.is_guest() { None } else { waiting.take(wanted) };
            if found.is_none() {
                thread.shared.await_signals(wanted);
            }
            found
        })
    })
}

/// Takes one of `which` that waits for this thread or the process. With all signals blocked.
fn take(which: SigSet) -> Option<SigInfo> {
    let own = thread::current().and_then(|thread| thread.waiting.take(which));
    own.or_else(|| take_from_process(which))
}

/// Sends this thread a note for each of `which` that waits for it or the process.
fn announce(thread: &Thread, which: SigSet) {
    for signal in [signal::SIGBUS, signal::SIGSEGV, signal::SIGSYS].into_iter().filter(|&signal| which.contains(signal)) {
        // Two of a kind may wait, the thread's and the process's. Where notes are blocked, the second one's comes when a handler has the first.
        for _ in 0..2 {
            // In a call, one of them ends all that: from then on the thread pretends to have all blocked, until that one is handled.
            if edge::is_deferred() || !waiting(thread).contains(signal) {
                break;
            }
            let _ = note(gettid(), signal);
        }
    }
}

/// Tells a thread to collect `signal`. If the thread is there, the note comes in any case: where too many signals are queued, without its code.
fn note(tid: u32, signal: u32) -> Result<(), Errno> {
    signal::queue_again(getpid(), tid, &SigInfo::queued(signal, HANDED))
}

/// A signal that has come, and been collected, cannot be handled now: it comes again as soon as the kernel does not block it. With all signals blocked.
pub(super) fn put_back(thread: &Thread, info: &SigInfo) {
    if is_threads_own(thread, info) {
        thread.waiting.put(info)
    } else {
        PROCESS.with(|waiting| waiting.put(info))
    }
    let _ = note(gettid(), info.signal() as u32);
}

/// Before an exec, with those of `which` blocked by the kernel: gives it those that wait, as they were sent.
pub(super) fn to_kernel(which: SigSet) {
    while let Some(info) = uninterrupted(|| take(which)) {
        let _ = signal::queue_again(getpid(), gettid(), &info);
    }
}

/// Keeps what waits as it is, for the time of a fork.
pub(super) fn acquire() {
    PROCESS.acquire();
}

/// Ends that, in the parent.
pub(super) fn release() {
    PROCESS.release();
}

/// Nothing waits for a new process.
pub(super) fn forget(thread: &Thread) {
    PROCESS.with(|waiting| waiting.clear());
    thread.waiting.clear();
    thread.shared.await_signals(SigSet::EMPTY);
}
