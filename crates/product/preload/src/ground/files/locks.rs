//! Record locks of the program on files whose mappings are managed ([`farshore_sys::record`]).
//!
//! The program loses them when a descriptor of ours of the same file is closed. So:
//!
//! 1. A file on which it has one is not taken: a descriptor of ours that gets a high number closes its low one.
//! 2. A file that is done stays open while the program has one; the table looks again when the next file comes or goes.
//!    A forked child that shares its parent's descriptors opens and closes none.
//! 3. Between the look and the close behind it no lock comes. Calls that lock are counted while they run, and wait while a look is under way; a look that
//!    finds such a call has found a lock.
//!
//! The kernel is asked what is locked, so that locks count that the program took while the process was dormant.

use core::sync::atomic::{AtomicU32, Ordering};
use farshore_core::seams::Futex as _;
use farshore_sys::futex::KernelFutex;
use farshore_sys::{lease, record};

/// Calls that lock.
static CALLS: AtomicU32 = AtomicU32::new(0);
/// A look is under way, or the close behind it.
static LOOKING: AtomicU32 = AtomicU32::new(NO);
const NO: u32 = 0;
const YES: u32 = 1;

/// Makes a call that may lock a part of a file.
pub fn locking(call: impl FnOnce() -> i64) -> i64 {
    // SeqCst, and the look after it, here and below: either the look sees the call, or the call sees the look.
    CALLS.fetch_add(1, Ordering::SeqCst);
    while LOOKING.load(Ordering::SeqCst) == YES {
        CALLS.fetch_sub(1, Ordering::SeqCst);
        // Asleep: the thread that looks may have a lower priority.
        KernelFutex.wait(&LOOKING, YES);
        CALLS.fetch_add(1, Ordering::SeqCst);
    }
    let result = call();
    CALLS.fetch_sub(1, Ordering::SeqCst);
    result
}

/// Does what closes descriptors of the file that `fd` has open, unless the program has record locks on it, or may be about to. One thread at a time, with
/// the table of files.
pub(super) fn unless_locked<R>(fd: i32, close: impl FnOnce() -> R) -> Option<R> {
    LOOKING.store(YES, Ordering::SeqCst);
    let about = if CALLS.load(Ordering::SeqCst) == 0 { lease::about(fd).ok() } else { None };
    let is_free = about.is_some_and(|about| record::has_locks(about.id) == Ok(false));
    let done = is_free.then(close);
    LOOKING.store(NO, Ordering::SeqCst);
    KernelFutex.wake_all(&LOOKING);
    done
}

/// A forked child has no thread of its parent's that looks or locks.
pub(super) fn begin_child() {
    CALLS.store(0, Ordering::Relaxed);
    LOOKING.store(NO, Ordering::Relaxed);
}
