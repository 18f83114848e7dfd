//! Threads of ours have no more rights than the program.
//!
//! To the kernel users, groups, capabilities, filters of system calls, Landlock's rules and the like belong to a thread. A thread of ours that keeps what
//! the program has given up would be a way back for whoever takes the process over. A new thread begins with the rights of the one that makes it; so ours
//! are **ended** when they have rights that no thread of the program has any more, and made again, when they are needed, by a thread of the program
//! ([`super`]). Whatever kind of right it is, ours have all of it, in the right order and at once.
//!
//! **States.** Each change gives the thread that makes it a new state, a number; a new thread begins with the state of its maker. Ours have the state of the thread that made
//! them. As long as a thread of the program has that state too, they may stay: in a program of several threads a change of one is that thread's alone. libc's
//! `setuid` makes every thread change, and the last of them ends ours. Where each fault waits for ours (poll mode, unithreads) they stay when a *thread* ends whose rights
//! only they have then: nobody is there who could make others.
//!
//! **Where they could not be made again** (a filter forbids new threads, or `RLIMIT_NPROC` does), the change is made by each of ours as well, before the program goes on: an
//! *order*. They get a SIGBUS (which they never block), and [`take_order`] in its handler. What cannot be ordered is refused. Filters reach them by
//! `SECCOMP_FILTER_FLAG_TSYNC` (`process/filters.rs`).

use crate::ground::runtime::{Runtime, runtime, uninterrupted};
use crate::ground::{count, own_threads, report, thread};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use farshore_backend::file::set_in_place;
use farshore_core::sync::Futex as _;
use farshore_sys::futex::KernelFutex;
use farshore_sys::lock::Mutex;
use farshore_sys::raw::{getpid, gettid, sched_yield, syscall};
use farshore_sys::signal::{self, SIGBUS, SigInfo};

/// Threads of ours that there can be: evictors, handlers and a few.
const THREADS: usize = 1024;
/// How long to wait for a thread of ours, ns, before it is asked again: it may have begun only now.
const PATIENCE_NS: u64 = 2_000_000;
/// A thread that has said that it ends is gone within so many looks, as a rule.
const LOOKS: u32 = 64;

/// A thread of ours: its id, and the last order that it has carried out.
struct Worker {
    tid: AtomicU32,
    done: AtomicU32,
}

static WORKERS: [Worker; THREADS] = [const { Worker { tid: AtomicU32::new(0), done: AtomicU32::new(0) } }; THREADS];
/// Number of the last order; goes up by one with each.
static ORDER: AtomicU32 = AtomicU32::new(0);
/// Goes up when a thread has carried out an order, or is about to end.
static CARRIED_OUT: AtomicU32 = AtomicU32::new(0);
static CALL: [AtomicU64; 6] = [const { AtomicU64::new(0) }; 6];
/// One order at a time.
static ORDERS: Mutex<()> = Mutex::new(());

/// The last state of rights that was given to a thread.
static STATES: AtomicU32 = AtomicU32::new(0);
/// That of our threads.
static OURS: AtomicU32 = AtomicU32::new(0);
/// A state that no thread has.
const NOBODYS: u32 = u32::MAX;
/// `RLIMIT_NPROC` is so low that a thread could hardly be made again.
static FEW_THREADS: AtomicBool = AtomicBool::new(false);

/// A filter of this process may stop the call that makes a thread.
static NO_THREADS: AtomicBool = AtomicBool::new(false);

const SETUID: u64 = 105;
const SETGID: u64 = 106;
const SETREUID: u64 = 113;
const SETREGID: u64 = 114;
const SETGROUPS: u64 = 116;
const SETRESUID: u64 = 117;
const SETRESGID: u64 = 119;
const SETFSUID: u64 = 122;
const SETFSGID: u64 = 123;
const CAPSET: u64 = 126;
const PERSONALITY: u64 = 135;
const PRCTL: u64 = 157;
const KEYCTL: u64 = 250;
const UNSHARE: u64 = 272;
const SETNS: u64 = 308;
const LANDLOCK_RESTRICT_SELF: u64 = 446;

/// What a call does to the rights of the thread that makes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    /// Nothing.
    None,
    /// It changes them, and threads of ours can be told to make the same call.
    Ordered,
    /// It changes them, in a way that only new threads can follow.
    Inherited,
    /// The same, and the kernel may want that the process has one thread.
    Alone,
}

/// What a call does, before it is made.
fn change_of(number: u64, args: &[u64; 6]) -> Change {
    /// `PR_SET_KEEPCAPS`, `PR_CAPBSET_DROP`, `PR_SET_SECUREBITS`, `PR_SET_NO_NEW_PRIVS`, `PR_CAP_AMBIENT`, `PR_SET_SPECULATION_CTRL`.
    const OPTIONS: [u64; 6] = [8, 24, 28, 38, 47, 53];
    const ASKS_ONLY: u64 = 0xffff_ffff;
    const JOIN_SESSION_KEYRING: u64 = 1;
    match number {
        SETUID | SETGID | SETREUID | SETREGID | SETGROUPS | SETRESUID | SETRESGID | SETFSUID | SETFSGID | CAPSET => {
            Change::Ordered
        }
        PRCTL if OPTIONS.contains(&(args[0] & 0xffff_ffff)) => Change::Ordered,
        PERSONALITY if args[0] & 0xffff_ffff != ASKS_ONLY => Change::Ordered,
        KEYCTL if args[0] & 0xffff_ffff == JOIN_SESSION_KEYRING => Change::Inherited,
        LANDLOCK_RESTRICT_SELF => Change::Inherited,
        UNSHARE | SETNS => Change::Alone,
        _ => Change::None,
    }
}

/// The calls that may change a thread's rights.
pub const fn may_change(number: u64) -> bool {
    matches!(
        number,
        SETUID
            | SETGID
            | SETREUID
            | SETREGID
            | SETGROUPS
            | SETRESUID
            | SETRESGID
            | SETFSUID
            | SETFSGID
            | CAPSET
            | PERSONALITY
            | PRCTL
            | KEYCTL
            | UNSHARE
            | SETNS
            | LANDLOCK_RESTRICT_SELF
    )
}

/// Makes such a call for the program by `make`; `order` carries it out once more, by all threads of ours ([`order`]).
pub fn change(number: u64, args: &[u64; 6], make: impl Fn() -> i64, order: impl FnOnce()) -> i64 {
    let what = change_of(number, args);
    let (Some(runtime), Some(thread)) = (runtime(), thread::current()) else { return make() };
    // A guest is a process of its own: what it changes is not ours.
    if what == Change::None || thread.is_guest() {
        return make();
    }
    let alone = count::has_one_thread();
    if what != Change::Ordered && !can_be_made_again() && has_threads() && uninterrupted(|| would_be_left(thread)) {
        const EPERM: i64 = -1;
        report::line(format_args!(
            "call {number} is refused: threads of Farshore's would keep what the program gives up, and the filters or limits of the \
             program allow no new ones; run the program without Farshore"
        ));
        return EPERM;
    }
    if what == Change::Alone && alone {
        // Ours, if there are any, share what a process of one thread has for itself.
        uninterrupted(|| own_threads::stop(runtime));
    }
    let answer = make();
    if answer >= 0 {
        uninterrupted(|| changed(runtime, order));
    } else {
        own_threads::go_on(runtime);
    }
    answer
}

/// The calling thread has other rights now than before. With all signals blocked.
fn changed(runtime: &'static Runtime, order: impl FnOnce()) {
    let state = STATES.fetch_add(1, Ordering::AcqRel) + 1;
    if let Some(thread) = thread::current() {
        thread.shared.set_rights(state);
    }
    if thread::is_guest() || is_ours_kept() {
        return;
    }
    if can_be_made_again() {
        own_threads::stop(runtime);
        own_threads::go_on(runtime);
    } else if has_threads() {
        order();
        OURS.store(state, Ordering::Release);
    }
}

/// A filter was installed in the calling thread, and with `everywhere` in all threads, ours too. With all signals blocked.
pub fn has_filtered(runtime: &'static Runtime, everywhere: bool) {
    if !everywhere {
        return changed(runtime, || {});
    }
    let state = STATES.fetch_add(1, Ordering::AcqRel) + 1;
    thread::each(|shared| shared.set_rights(state));
    OURS.store(state, Ordering::Release);
}

/// Whether some thread of the program has the rights of ours, or there are none of ours.
fn is_ours_kept() -> bool {
    let ours = OURS.load(Ordering::Acquire);
    !has_threads() || thread::find(|shared| shared.rights() == ours).is_some()
}

/// Whether no other thread of the program than `thread` has the rights of ours.
pub fn would_be_left(thread: &thread::Thread) -> bool {
    let (ours, mine) = (OURS.load(Ordering::Acquire), core::ptr::from_ref(thread.shared));
    !has_threads() || thread::find(|shared| !core::ptr::eq(shared, mine) && shared.rights() == ours).is_none()
}

/// The calling thread of the program ends: ours must not have what only it had. With all signals blocked.
pub fn are_left_by_this_thread(runtime: &'static Runtime) {
    let Some(thread) = thread::current() else { return };
    thread.shared.set_rights(NOBODYS);
    // Who cannot be made again stays: it has taken each change of the program as an order. And who serves faults stays: those that are left (one of them may not
    // have begun) would wait for it, and this thread cannot make others that have their rights.
    if !is_ours_kept() && can_be_made_again() && !own_threads::serve_faults(runtime) {
        own_threads::stop(runtime);
    }
}

/// Threads of ours are about to be made by the calling thread, or for it.
pub fn are_made_by_this_thread() {
    if let Some(thread) = thread::current() {
        OURS.store(thread.shared.rights(), Ordering::Release);
    }
}

/// Whether threads that end now could be made again later.
pub fn can_be_made_again() -> bool {
    !NO_THREADS.load(Ordering::Relaxed) && !FEW_THREADS.load(Ordering::Relaxed)
}

/// A filter of this process may stop the call that makes a thread: from now on none is counted on.
pub fn stop_new_threads() {
    NO_THREADS.store(true, Ordering::Relaxed);
}

/// The program's limit of processes is so low, or is not any more, that threads can hardly be made.
pub fn set_few_threads(few: bool) {
    FEW_THREADS.store(few, Ordering::Relaxed);
    if !few {
        set_in_place(false);
    }
}

/// Before no thread can be made any more: makes ours, with nothing beside them. (The kernel makes threads for a ring; those could not be told to
/// change their rights.) Whether they are there.
pub fn make_last(runtime: &'static Runtime) -> bool {
    if can_be_made_again() {
        uninterrupted(|| own_threads::stop(runtime));
        set_in_place(true);
    }
    own_threads::ensure_now(runtime)
}

/// Those of them that change the users that a process can act as.
pub const fn changes_user(number: u64) -> bool {
    matches!(number, SETUID | SETREUID | SETRESUID)
}

/// A thread of ours has been made.
pub fn add_thread(tid: u32) {
    let order = ORDER.load(Ordering::Acquire);
    for worker in &WORKERS {
        if worker.tid.load(Ordering::Relaxed) == 0 {
            worker.done.store(order, Ordering::Relaxed);
            if worker.tid.compare_exchange(0, tid, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return;
            }
        }
    }
    report::abort(format_args!("bug: more than {THREADS} threads of our own"));
}

/// In a forked child: there are none.
pub fn forget_threads() {
    WORKERS.iter().for_each(|worker| worker.tid.store(0, Ordering::Relaxed));
    ORDERS.reset();
}

/// Threads of ours.
pub fn threads() -> impl Iterator<Item = u32> {
    WORKERS.iter().map(|worker| worker.tid.load(Ordering::Acquire)).filter(|&tid| tid != 0)
}

/// Whether it is one of them.
pub fn is_ours(tid: u32) -> bool {
    threads().any(|ours| ours == tid)
}

/// Whether there are threads of ours.
pub fn has_threads() -> bool {
    WORKERS.iter().any(|worker| worker.tid.load(Ordering::Acquire) != 0)
}

/// The calling thread of ours is about to end.
pub fn has_ended() {
    CARRIED_OUT.fetch_add(1, Ordering::AcqRel);
    KernelFutex.wake_all(&CARRIED_OUT);
}

/// A thread of ours has ended by itself: its number may soon be another thread's.
pub fn has_gone(tid: u32) {
    for worker in &WORKERS {
        let _ = worker.tid.compare_exchange(tid, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Tells a thread of ours to look; false: the kernel does not know it any more.
fn tell(worker: &Worker) -> bool {
    let tid = worker.tid.load(Ordering::Acquire);
    let there = tid != 0 && signal::tgkill(getpid(), tid, SIGBUS).is_ok();
    if !there {
        let _ = worker.tid.compare_exchange(tid, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
    there
}

/// Waits until the kernel knows none of our threads any more, which were told to end, or `over` is true. `wake` wakes those that sleep on something of the engine's.
pub fn wait_for_end(wake: impl Fn(), over: impl Fn() -> bool) {
    while !over() {
        let seen = CARRIED_OUT.load(Ordering::Acquire);
        wake();
        let mut there = WORKERS.iter().filter(|worker| tell(worker)).count();
        // Who has just said that it ends is still known for a moment.
        for _ in 0..LOOKS {
            if there == 0 {
                return;
            }
            sched_yield();
            let known = |worker: &&Worker| {
                let tid = worker.tid.load(Ordering::Acquire);
                tid != 0 && signal::tgkill(getpid(), tid, 0).is_ok()
            };
            there = WORKERS.iter().filter(known).count();
        }
        KernelFutex.wait_for(&CARRIED_OUT, seen, PATIENCE_NS);
    }
}

/// All threads of ours make a call that a thread of the program has made with success. With signals blocked. What pointers among `args` lead to is memory
/// of ours.
pub fn order(number: u64, args: [u64; 6]) {
    ORDERS.with(|()| {
        for (place, value) in CALL.iter().zip([number, args[0], args[1], args[2], args[3], args[4]]) {
            place.store(value, Ordering::Relaxed);
        }
        let order = ORDER.fetch_add(1, Ordering::AcqRel) + 1;
        let late = |worker: &&Worker| worker.tid.load(Ordering::Acquire) != 0 && worker.done.load(Ordering::Acquire) != order;
        loop {
            let seen = CARRIED_OUT.load(Ordering::Acquire);
            if WORKERS.iter().filter(late).filter(|worker| tell(worker)).count() == 0 {
                return;
            }
            KernelFutex.wait_for(&CARRIED_OUT, seen, PATIENCE_NS);
        }
    });
}

/// In the handler of SIGBUS, on a thread of ours: whether the signal was for this. By what is to be done, since the kernel may have lost what the signal
/// carried (`RLIMIT_SIGPENDING`).
pub fn take_order(info: &SigInfo) -> bool {
    let lost = info.code() == 0 && info.sender_pid() == 0;
    if !(lost || (info.to_thread() && info.sender_pid() == getpid())) {
        return false;
    }
    let me = gettid();
    let Some(worker) = WORKERS.iter().find(|worker| worker.tid.load(Ordering::Acquire) == me) else { return true };
    let order = ORDER.load(Ordering::Acquire);
    if worker.done.load(Ordering::Acquire) == order {
        // It was told twice, or is to end: what it waits in was interrupted by this.
        return true;
    }
    let [number, args @ ..] = [0, 1, 2, 3, 4, 5].map(|i| CALL[i].load(Ordering::Relaxed));
    // SAFETY: the call that a thread of the program has made with success; what its pointers lead to is memory of ours.
    let answer = unsafe { syscall(number, [args[0], args[1], args[2], args[3], args[4], 0]) };
    if answer < 0 && !matches!(number, SETFSUID | SETFSGID) {
        report::abort(format_args!(
            "a thread of Farshore's cannot change its rights as the program did (call {number}, errno {}), and would keep what the program has given up",
            -answer
        ));
    }
    worker.done.store(order, Ordering::Release);
    has_ended();
    true
}
