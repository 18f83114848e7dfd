//! How many threads the program has in this process.

use crate::ground::thread;
use core::sync::atomic::{AtomicU32, Ordering};

/// Threads of the program in this process. The kernel ends a process with its last thread, and ours would go on.
static PROGRAM_THREADS: AtomicU32 = AtomicU32::new(1);

/// Whether the program has one thread in this process.
pub fn has_one_thread() -> bool {
    PROGRAM_THREADS.load(Ordering::Acquire) == 1
}

/// The calling thread is the process' first, or the one that is left in a forked child.
pub fn is_alone() {
    PROGRAM_THREADS.store(1, Ordering::Release);
    if let Some(thread) = thread::current() {
        thread.counted.set(true);
    }
}

/// The calling thread is one of those of a process that was dormant, which were counted as they came and went.
pub fn is_among_them() {
    if let Some(thread) = thread::current() {
        thread.counted.set(true);
    }
}

/// A thread of the program is about to be made.
pub fn one_more() {
    PROGRAM_THREADS.fetch_add(1, Ordering::AcqRel);
}

/// One has ended, or could not be made. Whether it was the last.
pub fn one_less() -> bool {
    PROGRAM_THREADS.fetch_sub(1, Ordering::AcqRel) == 1
}
