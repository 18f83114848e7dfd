//! A dormant process: its threads run natively, and stand still while one of them wakes the process.
//!
//! The threads that libc makes while the process is dormant get their records as in an awake one (`process`), but no alternate
//! stack, no Syscall User Dispatch, no handlers: only a stack for watched calls (`catch/src/entry/asleep.rs`). Each gets the rest when
//! it goes on after the process has woken, by itself ([`crate::dispatch`]).
//!
//! # How the thread that wakes stops the others
//!
//! 1. It begins a round ([`Halt`]). From then on every watched call stands still.
//! 2. It sends [`SIGNAL`] to each thread that has a record and does not stand. The handler stands still.
//! 3. It looks again whenever a thread has arrived, until **as many stand as the kernel counts, but for itself** (`Threads:` of
//!    `/proc/self/status`). Each of those that stand is alive and stays where it is. So at the moment at which the kernel counted there was no
//!    other thread; and none can be made, since a thread is made by one that runs.
//!
//! The numbers of threads that `/proc` lists are not used: they may be those of another namespace.
//!
//! A thread that ends is one that has not arrived, until the kernel does not count it any more. (It writes the word of
//! `CLONE_CHILD_CLEARTID` before, and walks the list of robust futexes.) A main thread that has ended while others run is counted for
//! ever, as a zombie.
//!
//! # The signal
//!
//! [`SIGNAL`] is the one by which libc cancels threads, because no thread has it blocked: libc takes it out of every mask of the
//! program's, and blocks it itself for moments only, around the making and the end of a thread. libc installs its handler at the first
//! `pthread_cancel`, a call that wakes the process first. It is a real-time signal, which the kernel refuses where a user has too many
//! queued; then [`WAKER`] is sent, of which the kernel needs to queue nothing. What was sent and did not stop a thread, since it had
//! arrived by a watched call, is taken back before the thread goes on: as many as were sent, since the program may send its own by then.

use crate::ground::thread::{self, NO_NUMBER};
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use farshore_config::control::WAKER;
use farshore_core::halt::{Halt, Round, State};
use farshore_sys::futex::KernelFutex;
use farshore_sys::raw::{Errno, getpid, gettid, syscall};
use farshore_sys::signal::{self, SigSet};
use farshore_sys::{clock, fd};
use std::sync::OnceLock;

/// The signal that stops a thread: libc's `SIGCANCEL`.
pub const SIGNAL: u32 = 32;

/// How long the waker waits for an arrival before it looks again by itself, ns: threads end without a word.
const LOOK_AGAIN_NS: u64 = 1_000_000;

static HALT: Halt = Halt::new();
/// The thread that has halted the others; 0: none.
static WAKING: AtomicU32 = AtomicU32::new(0);
/// The main thread has ended, or is about to.
static MAIN_HAS_LEFT: AtomicBool = AtomicBool::new(false);
/// Whether threads can be stopped: [`SIGNAL`] is nobody's.
static CAN_STOP: AtomicBool = AtomicBool::new(false);
/// Descriptors that a dormant process of a family has, in ascending order.
static KEPT: OnceLock<Vec<i32>> = OnceLock::new();
/// The program has made a thread.
static HAS_HAD_THREADS: AtomicBool = AtomicBool::new(false);

/// What came of an attempt to stop all other threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stopped {
    /// All stand still.
    All,
    /// One does not yet, after all the patience.
    NotInTime,
    /// `/proc` does not tell how many threads there are.
    Unknown,
}

/// What the process does now.
pub fn state() -> State {
    HALT.state()
}

/// Whether nothing is managed yet.
pub fn is_dormant() -> bool {
    matches!(state(), State::Dormant | State::Refused)
}

/// The process is dormant from now on. `can_stop`: the handler of [`SIGNAL`] is there.
pub fn sleep(can_stop: bool) {
    CAN_STOP.store(can_stop, Ordering::Relaxed);
    HALT.sleep();
}

/// The process keeps these descriptors while it is dormant. Once, at start-up.
pub fn keep(mut descriptors: Vec<i32>) {
    descriptors.sort_unstable();
    let _ = KEPT.set(descriptors);
}

/// Descriptors that a dormant process has. The program cannot close them.
pub fn kept() -> &'static [i32] {
    KEPT.get().map_or(&[], Vec::as_slice)
}

/// Whether there may be more than one thread before the process wakes.
pub fn may_have_threads() -> bool {
    CAN_STOP.load(Ordering::Relaxed)
}

/// The program makes a thread.
pub fn makes_thread() {
    HAS_HAD_THREADS.store(true, Ordering::Relaxed);
}

/// Whether the calling thread is the one that wakes the process just now: its calls are Farshore's own.
pub fn is_waker() -> bool {
    WAKING.load(Ordering::Relaxed) == gettid()
}

/// The calling thread stands still while another one wakes the process. With all signals blocked. `at`: something of ours, or of the
/// kernel's, on the stack of the program; it stays the kernel's. `site`: behind which `syscall` of the program's it has ended with
/// `EINTR`. Returns the state that the thread goes on by, and the number of that call.
pub fn stand(at: u64, site: Option<u64>) -> (State, Option<u64>) {
    let Some(thread) = thread::current() else { return (state(), None) };
    let shared = thread.shared;
    shared.near.store(at, Ordering::Relaxed);
    shared.site.store(site.unwrap_or(0), Ordering::Relaxed);
    shared.number.store(NO_NUMBER, Ordering::Relaxed);
    let state = HALT.stand(&shared.seat, &KernelFutex);
    take_back_signals();
    (state, Some(shared.number.load(Ordering::Relaxed)).filter(|&number| number != NO_NUMBER))
}

/// What stays the kernel's of the threads that stand still: where they have something of ours or of the kernel's on their stacks. Finds
/// out by `numbers` which calls they were in, at which places. By the waker, before the program's text changes.
pub fn look_at_all(round: Round, numbers: impl Fn(&[u64]) -> Vec<Option<u64>>) -> Vec<u64> {
    let standing = RefCell::new(Vec::new());
    thread::each(|shared| {
        if HALT.stands(&shared.seat, round) {
            standing.borrow_mut().push(shared);
        }
    });
    let standing = standing.into_inner();
    let site = |shared: &&&thread::Shared| shared.site.load(Ordering::Relaxed);
    let waiting: Vec<_> = standing.iter().filter(|shared| site(shared) != 0).collect();
    let sites: Vec<u64> = waiting.iter().map(site).collect();
    if !sites.is_empty() {
        for (shared, number) in waiting.into_iter().zip(numbers(&sites)) {
            shared.number.store(number.unwrap_or(NO_NUMBER), Ordering::Relaxed);
        }
    }
    standing.iter().map(|shared| shared.near.load(Ordering::Relaxed)).collect()
}

/// The calling thread wants to wake the process. `None`: it is not dormant, or another thread does it. With all signals blocked.
pub fn begin() -> Option<Round> {
    let round = HALT.begin()?;
    WAKING.store(gettid(), Ordering::Relaxed);
    Some(round)
}

/// Ends that.
pub fn end(round: Round, state: State) {
    WAKING.store(0, Ordering::Relaxed);
    take_back_signals();
    HALT.end(round, state, &KernelFutex);
}

/// Waits until all other threads stand still, for `patience` nanoseconds at most.
pub fn stop_others(round: Round, patience: Option<u64>) -> Stopped {
    if !HAS_HAD_THREADS.load(Ordering::Relaxed) {
        return Stopped::All;
    }
    let start = clock::by_syscall();
    loop {
        let arrivals = HALT.arrivals();
        let standing = Cell::new(0);
        thread::each(|shared| match HALT.stands(&shared.seat, round) {
            true => standing.set(standing.get() + 1),
            false => tell(shared),
        });
        // Itself, and a main thread that is none any more.
        let others = 1 + usize::from(main_has_left());
        // Those that stand were counted before: each of them is among these.
        match count() {
            Ok(threads) if threads == standing.get() + others => return Stopped::All,
            Ok(_) => {}
            Err(_) => return Stopped::Unknown,
        }
        if patience.is_some_and(|patience| clock::by_syscall().saturating_sub(start) > patience) {
            return Stopped::NotInTime;
        }
        HALT.await_arrival(arrivals, LOOK_AGAIN_NS, &KernelFutex);
    }
}

/// Sends the signal to the thread that has this record, unless one is under way or it is the calling thread.
fn tell(shared: &thread::Shared) {
    let Some(tid) = shared.tid().filter(|&tid| tid != gettid() && shared.owed.load(Ordering::Acquire) == 0) else { return };
    shared.owed.fetch_add(1, Ordering::AcqRel);
    let sent = signal::tgkill(getpid(), tid, SIGNAL);
    if sent.is_err() {
        shared.owed.fetch_sub(1, Ordering::AcqRel);
    }
    if sent == Err(Errno::EAGAIN) {
        let _ = signal::tgkill(getpid(), tid, WAKER);
    }
}

/// In the handler of [`SIGNAL`]: whether it is one that was sent to stop this thread. Otherwise it is the program's.
pub fn is_stopped() -> bool {
    let take = |shared: &thread::Shared| {
        let less = |owed: u32| owed.checked_sub(1);
        shared.owed.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok()
    };
    thread::current().is_some_and(|thread| take(thread.shared))
}

/// Takes back what was sent to the calling thread and has not stopped it, and no more: by now the program may have sent its own.
/// With all signals blocked.
fn take_back_signals() {
    const RT_SIGTIMEDWAIT: u64 = 128;
    let set = SigSet::EMPTY.with(SIGNAL);
    let at_once = [0u64; 2];
    let owed = thread::current().map_or(0, |thread| thread.shared.owed.swap(0, Ordering::AcqRel));
    for _ in 0..owed {
        // SAFETY: a set of eight bytes, and a time, of ours.
        unsafe { syscall(RT_SIGTIMEDWAIT, [&raw const set as u64, 0, &raw const at_once as u64, 8, 0, 0]) };
    }
}

/// The main thread is about to end, while others run.
pub fn main_leaves() {
    MAIN_HAS_LEFT.store(true, Ordering::Release);
}

/// Whether the main thread is a zombie.
fn main_has_left() -> bool {
    MAIN_HAS_LEFT.load(Ordering::Acquire) && {
        // `pid (name) state …`; the name may have anything in it.
        let text = fd::read_file(c"/proc/self/stat", 4096).unwrap_or_default();
        text.iter().rposition(|&byte| byte == b')').and_then(|at| text.get(at + 2)) == Some(&b'Z')
    }
}

/// How many threads the kernel counts.
fn count() -> Result<usize, Errno> {
    let text = fd::read_file(c"/proc/self/status", 16 << 10)?;
    let line = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Threads:"));
    let count = line.and_then(|line| core::str::from_utf8(line).ok()?.trim().parse().ok());
    count.ok_or(Errno::ENOENT)
}
