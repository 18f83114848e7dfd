//! Rights that the program gives up are given up by our threads too.
//!
//! To the kernel user, groups and capabilities belong to a thread. libc makes a process of it: `setuid` sends each of its threads
//! a signal, whose handler makes the same call. It does not know of ours, and a thread that keeps root's rights in a process which has
//! given them up would be a way back for whoever takes the process over.
//!
//! So when such a call of the program has succeeded, it is made by each of our threads as well, before the program goes on: they get a
//! SIGBUS (which they never block), and [`take_order`] in its handler.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use farshore_core::sync::Futex as _;
use farshore_sys::futex::KernelFutex;
use farshore_sys::lock::Mutex;
use farshore_sys::raw::{getpid, gettid, syscall};
use farshore_sys::signal::{self, SIGBUS, SigInfo};

/// Threads of ours that there can be: evictors, handlers and a few.
const THREADS: usize = 1024;
/// How long to wait for a thread of ours, ns, before it is asked again: it may have begun only now.
const PATIENCE_NS: u64 = 10_000_000;

/// A thread of ours: its id, and the last order that it has carried out.
struct Worker {
    tid: AtomicU32,
    done: AtomicU32,
}

static WORKERS: [Worker; THREADS] = [const { Worker { tid: AtomicU32::new(0), done: AtomicU32::new(0) } }; THREADS];
/// Number of the last order; goes up by one with each.
static ORDER: AtomicU32 = AtomicU32::new(0);
/// Goes up when a thread has carried out an order.
static CARRIED_OUT: AtomicU32 = AtomicU32::new(0);
static CALL: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
/// `si_code` of the signal that tells of an order, so that it is never taken for one of the program's.
const CODE: i32 = -0x4653;
/// One order at a time.
static ORDERS: Mutex<()> = Mutex::new(());

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

/// The calls that change a thread's rights.
pub const fn changes_rights(number: u64) -> bool {
    matches!(number, SETUID | SETGID | SETREUID | SETREGID | SETGROUPS | SETRESUID | SETRESGID | SETFSUID | SETFSGID | CAPSET)
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
    crate::report::abort(format_args!("bug: more than {THREADS} threads of our own"));
}

/// In a forked child: there are none.
pub fn forget_threads() {
    WORKERS.iter().for_each(|worker| worker.tid.store(0, Ordering::Relaxed));
    ORDERS.reset();
}

/// The program's thread has made a call that changes its rights, with success: all of ours make it. With signals blocked.
/// What pointers among `args` lead to is memory of ours.
pub fn follow_suit(number: u64, args: [u64; 3]) {
    ORDERS.with(|()| {
        for (place, value) in CALL.iter().zip([number, args[0], args[1], args[2]]) {
            place.store(value, Ordering::Relaxed);
        }
        let order = ORDER.fetch_add(1, Ordering::AcqRel) + 1;
        let late = |worker: &&Worker| worker.tid.load(Ordering::Acquire) != 0 && worker.done.load(Ordering::Acquire) != order;
        loop {
            let seen = CARRIED_OUT.load(Ordering::Acquire);
            let mut waiting = false;
            for worker in WORKERS.iter().filter(late) {
                // One that is gone (it was only needed for a moment) carries nothing out.
                let tid = worker.tid.load(Ordering::Acquire);
                if signal::queue_again(getpid(), tid, &SigInfo::queued(SIGBUS, CODE)).is_err() {
                    let _ = worker.tid.compare_exchange(tid, 0, Ordering::AcqRel, Ordering::Relaxed);
                } else {
                    waiting = true;
                }
            }
            if !waiting {
                return;
            }
            KernelFutex.wait_for(&CARRIED_OUT, seen, PATIENCE_NS);
        }
    });
}

/// In the handler of SIGBUS, on a thread of ours: whether the signal was for this.
pub fn take_order(info: &SigInfo) -> bool {
    if info.code() != CODE {
        return false;
    }
    let me = gettid();
    let Some(worker) = WORKERS.iter().find(|worker| worker.tid.load(Ordering::Acquire) == me) else { return true };
    let order = ORDER.load(Ordering::Acquire);
    if worker.done.load(Ordering::Acquire) == order {
        // It was told twice.
        return true;
    }
    let [number, first, second, third] = [0, 1, 2, 3].map(|i| CALL[i].load(Ordering::Relaxed));
    // SAFETY: the call that a thread of the program has made with success; what its pointers lead to is memory of ours.
    let answer = unsafe { syscall(number, [first, second, third, 0, 0, 0]) };
    if answer < 0 && !matches!(number, SETFSUID | SETFSGID) {
        crate::report::line(format_args!(
            "a thread of Farshore's could not change its rights as the program did (call {number}, errno {}): threads of the program \
             have different rights",
            -answer
        ));
    }
    worker.done.store(order, Ordering::Release);
    CARRIED_OUT.fetch_add(1, Ordering::AcqRel);
    KernelFutex.wake_all(&CARRIED_OUT);
    true
}
