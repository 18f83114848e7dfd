//! Dormant until needed: the first process of a run does nothing but count its mappings until they could exceed the limit.
//!
//! ```text
//!               a mapping that could exceed the limit; a thread, a fork, an exec; a restriction;
//!               a call of which it is not known that it does no harm (watch.rs); unithreads
//!  DORMANT ───────────────────────────────────────────────────────────────▶ WAKING ─▶ AWAKE
//!                                                                             │ something that Farshore needs cannot be had
//!                                                                             └──────▶ REFUSED
//! ```
//!
//! While the process is dormant Farshore has no userfaultfd, no descriptor, no thread and no Syscall User Dispatch in it, and one
//! signal handler ([`called`]). Huge pages stay. Of the `syscall` instructions of libc and the loader, only those are patched
//! whose number is watched or not known before the call; all others are as they were. So a program that fits into its limit runs
//! as natively.
//!
//! # What must hold
//!
//! 1. **There is one thread, and one process on the memory.** A call that would change that wakes the process first. So waking
//!    is start-up, later: no other thread runs meanwhile.
//! 2. **Every watched call is seen.** A program whose text outside of libc and the loader may make one by an instruction of its
//!    own (Go, sanitizers, what is compiled at run time) is awake from the start, or from when that text is mapped. So is a
//!    program of which a site cannot be patched.
//! 3. **What is there when it wakes is plain.** A call that would lock memory, have it wiped or dropped, give it a key, have
//!    it merged, make a ring, or open a device that keeps memory wakes the process first.
//! 4. **A call that wakes begins again**, on the call stack that the thread has got meanwhile ([`entry::go_on`]), and is served
//!    as any other.
//!
//! A watched call runs on a stack of ours, as in a process that is awake. But handlers of the program run natively, on top of
//! that stack, and may make watched calls themselves: the frames of those calls lie below ([`entry::asleep`]). Such a call may
//! wake the process: then the call that its handler has interrupted finds the process awake, and begins again as well
//! (`farshore_dispatch`).
//!
//! # Waking
//!
//! The process wakes with all signals blocked, on a stack of ours: first the steps of start-up ([`crate::dispatch::start`]), then the stock
//! is taken. What the program has mapped meanwhile, as far as it is still private anonymous memory, is registered, and each page
//! that is there becomes resident and dirty ([`Engine::take_stock`]). Huge pages are split, since their halves must be able to
//! leave.
//!
//! Where waking fails (no descriptor is left, no userfaultfd is allowed any more) the program goes on with what fits: memory
//! beyond the limit is refused, as by a kernel that has none (`ENOMEM`; `EAGAIN` for a thread or a fork).
//!
//! [`Engine::take_stock`]: farshore_engine::Engine::take_stock

mod called;
mod ranges;
mod watch;

use crate::dispatch::start::{self, Begun};
use crate::ground::net;
use crate::ground::runtime::uninterrupted;
use crate::ground::{mappings, parts, report, text, thread};
use crate::memory;
use crate::memory::surrender;
use crate::signals;
use core::cell::UnsafeCell;
use core::ops::Range;
use core::sync::atomic::{AtomicU8, Ordering};
use farshore_backend::AnyBackend;
use farshore_catch::entry::{self, Call};
use farshore_catch::patch;
use farshore_config::{FaultMode, Options, SwapSpec};
use farshore_core::limits::PAGE_SIZE;
use farshore_net::calls::keepers;
use farshore_sys::raw::{Errno, nr, syscall};
use farshore_sys::signal::{self, Action, How, SigSet};
use farshore_sys::vm::{self, map, prot};
use ranges::Ranges;
use watch::Need;

const AWAKE: u8 = 0;
const DORMANT: u8 = 1;
const WAKING: u8 = 2;
const REFUSED: u8 = 3;

/// Bytes of the program's stack on either side of code of ours that wakes: below it our frames, and above it at most the kernel's
/// frame of a signal.
const NEAR: u64 = 64 << 10;

static STATE: AtomicU8 = AtomicU8::new(AWAKE);

/// What a dormant process knows of itself.
struct Sleeper {
    begun: Begun,
    /// Mappings that would be managed if the process were awake.
    mapped: Ranges,
    /// The break at the start, and now.
    heap: (u64, u64),
    /// What of the limit is there for the program's pages when the process wakes, bytes.
    room: u64,
    /// The action that the signal which we take had before.
    waker: Action,
}

impl Sleeper {
    /// Whether `more` bytes could be more than there is room for.
    fn exceeds(&self, more: u64) -> bool {
        let heap = self.heap.1.saturating_sub(self.heap.0);
        self.mapped.bytes().saturating_add(heap).saturating_add(more) > self.room
    }
}

struct Place(UnsafeCell<Option<Sleeper>>);
// SAFETY: used by the only thread of the process, with all signals blocked ([`with`]).
unsafe impl Sync for Place {}

static SLEEPER: Place = Place(UnsafeCell::new(None));

/// Runs `f` on the dormant process's state, with all signals blocked.
fn with<R>(f: impl FnOnce(&mut Sleeper) -> R) -> Option<R> {
    // SAFETY: there is one thread, and no handler runs on top of it; `f` is not given a way to come here again.
    uninterrupted(|| unsafe { (*SLEEPER.0.get()).as_mut() }.map(f))
}

/// Whether nothing is managed yet.
fn is_dormant() -> bool {
    matches!(STATE.load(Ordering::Relaxed), DORMANT | REFUSED)
}

/// Begins dormant, if the program can be: at start-up. Returns `begun` if it cannot.
///
/// # Errors
/// `begun`, with which start-up goes on.
pub fn begin(begun: Begun, maps: &patch::Maps) -> Result<(), Box<Begun>> {
    // Files with a name and devices belong to a run from its start to its end, so that no other takes them.
    let can_wait = |options: &Options| {
        !options.followed
            && options.family.is_none()
            && options.fault == FaultMode::Upcall
            && !options.trace
            && options.swap.iter().all(|space| space.is_directory() || space.is_memory())
    };

    if !can_wait(&begun.options) || !has_one_task() {
        return Err(Box::new(begun));
    }
    let filtered = has_filter();
    let elsewhere = |number| watch::must_be_seen_elsewhere(number, filtered);
    if patch::others_may_call(maps, patch::DEFAULT_NAMES, &elsewhere) {
        return Err(Box::new(begun));
    }
    // A reason to refuse the program must show now.
    if parts::policy(&begun.options).is_err() || parts::open_uffd(&begun.options).is_err() || !can_be_had(&begun.options) {
        return Err(Box::new(begun));
    }
    if !entry::asleep::prepare() {
        return Err(Box::new(begun));
    }
    // SAFETY: start-up: there is one thread, and the dispatcher passes every call on until the state changes; `maps` was read at
    // the start of ours.
    let report = unsafe { patch::patch(maps, patch::DEFAULT_NAMES, &watch::is_watched, patch::Way::Asleep) };
    if report.files < 2 || report.unknown > 0 || report.escapes.iter().any(|&number| watch::must_be_seen(number)) {
        return Err(Box::new(begun));
    }
    let Ok(waker) = called::listen() else { return Err(Box::new(begun)) };
    let (floor, room) = (begun.heap_floor, start::room(&begun.options));
    // SAFETY: start-up, one thread; a watched call that comes meanwhile finds that nothing is there to be woken yet.
    unsafe { *SLEEPER.0.get() = Some(Sleeper { begun, mapped: Ranges::default(), heap: (floor, floor), room, waker }) };
    STATE.store(DORMANT, Ordering::Release);
    Ok(())
}

/// Whether the swap space can be had now, and the key that it may need. The command has looked at directories.
fn can_be_had(options: &Options) -> bool {
    let is_seen = options.swap.iter().all(SwapSpec::is_directory) && !options.encrypt;
    is_seen || AnyBackend::open_with(&options.swap, options.encrypt, None, &mut |_| {}).is_ok()
}

/// Whether no library has made a thread before Farshore's start.
fn has_one_task() -> bool {
    use std::os::unix::fs::MetadataExt;
    // A link for the folder, one for its `.`, and one for each thread's folder.
    std::fs::metadata("/proc/self/task").is_ok_and(|folder| folder.nlink() == 3)
}

/// Whether the process has a filter of system calls.
fn has_filter() -> bool {
    const PR_GET_SECCOMP: u64 = 21;
    // SAFETY: asks only. (A process in strict mode never comes here: it could not make this call.)
    unsafe { syscall(nr::PRCTL, [PR_GET_SECCOMP, 0, 0, 0, 0, 0]) != 0 }
}

/// Serves a call of a dormant process; `None`: the process is awake.
pub fn answer(call: &mut Call) -> Option<i64> {
    if !is_dormant() {
        return None;
    }
    let answer = serve(call);
    entry::asleep::leave(call);
    Some(answer)
}

fn serve(call: &mut Call) -> i64 {
    let (number, args) = (call.nr, call.args);
    match watch::need_seen(number, &args) {
        Need::Nothing => {
            // SAFETY: the program's own call: nothing is managed.
            let answer = unsafe { entry::for_program(number, &args) };
            // A handler woke the process before the call was made, or made again.
            if answer == entry::AGAIN && !is_dormant() { begin_again(call) } else { answer }
        }
        Need::Mapped => match with(|sleeper| mapped(sleeper, number, &args)) {
            Some(Some(answer)) => answer,
            // Or a handler has woken it meanwhile.
            _ => wake_for(call),
        },
        Need::Question => with(|sleeper| tell_action(&sleeper.waker, &args)).unwrap_or(-i64::from(Errno::EINVAL.0)),
        Need::Refusal => net::pinned(number, &args),
        Need::Awake => wake_for(call),
        Need::End => {
            let tells = with(|sleeper| sleeper.begun.options.stats.is_some());
            if tells == Some(true) { wake_for(call) } else { report::exit(args[0]) }
        }
    }
}

/// Before a call that makes a thread or a process. 0, or the error with which it fails.
#[unsafe(no_mangle)]
extern "C" fn farshore_before_first_clone(call: &mut Call) -> i64 {
    if !is_dormant() {
        return 0;
    }
    let error = wake_for(call);
    entry::asleep::leave(call);
    error
}

/// Begins the call again on the thread's call stack, which the thread has by now.
fn begin_again(call: &Call) -> ! {
    let mask = signal::sigprocmask(How::Set, SigSet::ALL);
    // SAFETY: the frame of a call that has done nothing, by its own thread.
    unsafe { entry::go_on(call, mask) }
}

/// Wakes the process, and has the call begin again. Returns only where it cannot be woken, with the call's error.
#[cold]
fn wake_for(call: &mut Call) -> i64 {
    let mask = signal::sigprocmask(How::Set, SigSet::ALL);
    match wake(mask, call.sp) {
        // SAFETY: as in `begin_again`. All signals are blocked since the call before.
        Some(mask) => unsafe { entry::go_on(call, mask) },
        None => {
            signal::sigprocmask(How::Set, mask);
            if is_dormant() { refuse(call) } else { begin_again(call) }
        }
    }
}

/// The answer to a call that needs the process awake where it cannot be woken.
fn refuse(call: &Call) -> i64 {
    match watch::need_of(call.nr, &call.args) {
        Need::End => report::exit(call.args[0]),
        // The break as it is: this call has no errors. SAFETY: asks only.
        _ if call.nr == nr::BRK => unsafe { vm::brk(0) as i64 },
        _ if watch::makes_a_thread(call.nr) => -i64::from(Errno::EAGAIN.0),
        _ => -i64::from(Errno::ENOMEM.0),
    }
}

/// Wakes a dormant process, from a function that the program has called.
pub fn wake_now() {
    if is_dormant() {
        let mask = signal::sigprocmask(How::Set, SigSet::ALL);
        let here = core::ptr::from_ref(&mask) as u64;
        signal::sigprocmask(How::Set, wake(mask, here).unwrap_or(mask));
    }
}

/// Wakes a dormant process, in a handler of a signal that has interrupted code with this mask. Returns whether it did.
fn wake_called(mask: SigSet, context: u64) -> bool {
    is_dormant() && wake(mask, context).is_some()
}

/// Wakes the process, with all signals blocked, for code that had the signal mask `mask`; something of ours lies at `stack` on
/// the program's stack. Returns the mask that the code is to have. `None`: the process is awake already, or cannot be woken.
fn wake(mask: SigSet, stack: u64) -> Option<SigSet> {
    match STATE.load(Ordering::Acquire) {
        DORMANT => rise(mask, stack),
        _ => None,
    }
}

fn rise(mask: SigSet, stack: u64) -> Option<SigSet> {
    STATE.store(WAKING, Ordering::Release);
    // SAFETY: one thread, all signals blocked.
    let sleeper = unsafe { (*SLEEPER.0.get()).as_ref() }?;
    // Libraries that waking calls set the program's errno. SAFETY: libc's own word of this thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let no_memory = || Err("no memory for the record of the main thread".to_owned());
    // What lies below us on the program's stack, up to the frame of a handler of ours, is needed while all signals are blocked.
    // So it stays the kernel's.
    let here = stack & !(PAGE_SIZE as u64 - 1);
    let near = here.saturating_sub(NEAR)..here + NEAR;
    let risen = thread::adopt_first(|| stand_up(sleeper, mask, near)).unwrap_or_else(no_memory);
    // SAFETY: as above.
    unsafe { *errno = before };
    match risen {
        Ok(mask) => {
            STATE.store(AWAKE, Ordering::Release);
            Some(mask)
        }
        Err(why) => {
            report::line(format_args!(
                "{why}; the program goes on with what fits its limit, without threads, forks and other programs"
            ));
            STATE.store(REFUSED, Ordering::Release);
            None
        }
    }
}

/// Wakes the process, on a stack of ours, with a record of the thread.
fn stand_up(sleeper: &Sleeper, mask: SigSet, near: Range<u64>) -> Result<SigSet, String> {
    let Sleeper { begun, mapped, heap, waker, .. } = sleeper;
    called::end(waker);
    let told = keepers::may_have_been_told(net::net());
    let runtime = start::rise(begun.clone(), mask)?;
    if told {
        surrender::from_the_beginning();
    } else {
        // Something may be mapped in the middle of the heap.
        let mut all = mapped.clone();
        all.add(heap.0.next_multiple_of(PAGE_SIZE as u64), heap.1.next_multiple_of(PAGE_SIZE as u64));
        memory::take_stock(runtime, all.iter(), near);
    }
    text::catch_calls();
    start::look_after(runtime);
    Ok(SigSet(mask.0 & !thread::pending::OURS.0))
}

/// Makes a call that changes mappings, with all signals blocked. `None`: the call must wake the process.
fn mapped(sleeper: &mut Sleeper, number: u64, args: &[u64; 6]) -> Option<i64> {
    match number {
        nr::MMAP => mmap(sleeper, args),
        nr::MUNMAP => {
            let answer = raw(number, args);
            if answer == 0 {
                sleeper.mapped.remove(args[0], args[0].saturating_add(rounded(args[1])?));
            }
            Some(answer)
        }
        nr::MREMAP => mremap(sleeper, args),
        _ => brk(sleeper, args[0]),
    }
}

/// Answers an `rt_sigaction` without a new action: with the action that the program would find natively.
fn tell_action(action: &Action, args: &[u64; 6]) -> i64 {
    let answer = raw(nr::RT_SIGACTION, args);
    if answer == 0 && args[2] != 0 {
        let told = core::ptr::with_exposed_provenance_mut::<[u64; 4]>(args[2] as usize);
        // SAFETY: the kernel has just written an action there, for which the program has made room.
        unsafe { told.write_unaligned(signals::to_words(action)) };
    }
    answer
}

fn raw(number: u64, args: &[u64; 6]) -> i64 {
    // SAFETY: the program's own call with its own arguments; nothing is managed.
    unsafe { syscall(number, *args) }
}

fn rounded(len: u64) -> Option<u64> {
    len.checked_next_multiple_of(PAGE_SIZE as u64)
}

fn mmap(sleeper: &mut Sleeper, args: &[u64; 6]) -> Option<i64> {
    let [addr, len, protection, flags, ..] = *args;
    let fixed = flags & map::FIXED != 0;
    let Some(bytes) = rounded(len) else { return Some(raw(nr::MMAP, args)) };
    let counts = memory::would_manage(&sleeper.begun.options, args);
    if counts && sleeper.exceeds(bytes) {
        return None;
    }
    let mut args = *args;
    if counts {
        args[0] = memory::hint(addr, flags);
    }
    let answer = raw(nr::MMAP, &args);
    if memory::is_error(answer) {
        return Some(answer);
    }
    let (start, end) = (answer as u64, answer as u64 + bytes);
    if protection & prot::EXEC != 0 && (protection & prot::READ == 0 || may_call(start, bytes, args[4], args[5])) {
        // It is mapped again when the process is awake, at the same place if the program has named one.
        if !fixed {
            raw(nr::MUNMAP, &[start, bytes, 0, 0, 0, 0]);
        }
        return None;
    }
    sleeper.mapped.remove(start, end);
    if counts {
        sleeper.mapped.add(start, end);
    }
    Some(answer)
}

/// Whether the file text that was just mapped may make calls by instructions of its own. The mapping must be readable; the file
/// may end before it.
fn may_call(start: u64, bytes: u64, fd: u64, offset: u64) -> bool {
    const FSTAT: u64 = 5;
    let mut stat = [0u64; 18];
    // SAFETY: `struct stat`, of 144 bytes.
    let answer = unsafe { syscall(FSTAT, [fd, stat.as_mut_ptr() as u64, 0, 0, 0, 0]) };
    let size = if answer == 0 { stat[6] } else { 0 };
    let end = start + bytes.min(size.saturating_sub(offset).next_multiple_of(PAGE_SIZE as u64));
    // SAFETY: readable as far as the file goes; there is one thread.
    unsafe { patch::has_syscalls(start..end) }
}

fn mremap(sleeper: &mut Sleeper, args: &[u64; 6]) -> Option<i64> {
    let [old, old_len, new_len, ..] = *args;
    let (Some(old_bytes), Some(new_bytes)) = (rounded(old_len), rounded(new_len)) else { return Some(raw(nr::MREMAP, args)) };
    let old_end = old.checked_add(old_bytes)?;
    let threshold = sleeper.begun.options.threshold.bytes();
    if old < sleeper.heap.1 && sleeper.heap.0 < old_end {
        return None;
    }
    let counted = sleeper.mapped.touches(old, old_end);
    let counts = counted || old_bytes < threshold && new_bytes >= threshold;
    if counts && new_bytes > old_bytes && sleeper.exceeds(new_bytes - old_bytes) {
        return None;
    }
    let answer = raw(nr::MREMAP, args);
    if !memory::is_error(answer) && counts {
        let (start, end) = (answer as u64, answer as u64 + new_bytes);
        sleeper.mapped.remove(old, old_end);
        if counted || mappings::is_private_anonymous(start, new_bytes) {
            sleeper.mapped.add(start, end);
        }
    }
    Some(answer)
}

fn brk(sleeper: &mut Sleeper, wanted: u64) -> Option<i64> {
    if wanted > sleeper.heap.1 && sleeper.exceeds(wanted - sleeper.heap.1) {
        return None;
    }
    // SAFETY: the program's own call; nothing is managed.
    sleeper.heap.1 = unsafe { vm::brk(wanted) };
    Some(sleeper.heap.1 as i64)
}
