//! How many pages all calls together may keep pinned.
//!
//! A call may block for ever with its buffers pinned: hundreds of threads that wait in `read`, each with 64 KiB, would pin
//! all the memory that there is. And calls that wait for a frame while they hold pages could wait for each other. So
//! what calls pin at one time is a *share* of the limit (a quarter, [`most`]); the rest can always be evicted.
//!
//! A set has its first [`FREE`] pages for nothing, which is nearly every call, and costs no shared cache line. For more it
//! takes *grants* from the share, and gives them back when it is unpinned. Without a grant the set is full, and the call goes
//! on in one of the ways that there are for that: in pieces, with fewer events, or on scratch memory, where nothing is pinned
//! while it blocks. So a thread that is blocked for long keeps two pages beyond the share at most.

use core::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use farshore_core::limits::{MEMORY_LIMIT_MIN, PAGE_SIZE};

/// Pages that a set may hold without a grant. Two, so that a piece can be cut to a whole page wherever its buffer begins.
pub const FREE: u64 = 2;
/// Pages that are granted at once: the counter is common to all threads.
const CHUNK: u64 = 16;

/// Pages that are granted. Below zero only after a fork, when sets give back what [`forget`] has forgotten.
static GRANTED: AtomicI64 = AtomicI64::new(0);

/// Of a limit of `frames`, what may be granted.
pub const fn most(frames: u64) -> u64 {
    frames / 4
}

/// Takes a grant for up to `want` more pages, of `most` in all; how many it is for, 0 if there is none.
#[cold]
pub fn take(want: u64, most: u64) -> u64 {
    let want = want.clamp(1, CHUNK).cast_signed();
    // Only a number; the pages are kept by their pins.
    let before = GRANTED.fetch_add(want, Ordering::Relaxed);
    if before + want <= most.cast_signed() {
        return want.unsigned_abs();
    }
    GRANTED.fetch_sub(want, Ordering::Relaxed);
    0
}

/// Gives grants back.
#[inline]
pub fn give(pages: u64) {
    if pages > 0 {
        GRANTED.fetch_sub(pages.cast_signed(), Ordering::Relaxed);
    }
}

/// Threads that may keep a buffer pinned between their calls, of [`FREE`] pages: 256 KiB, a sixteenth of the smallest limit.
pub const KEEPERS: u32 = 32;
const _: () = assert!(KEEPERS as usize * FREE as usize * PAGE_SIZE * 16 <= MEMORY_LIMIT_MIN as usize);

/// Threads that do.
static KEEPING: AtomicU32 = AtomicU32::new(0);

/// Whether one more thread may keep a buffer; it is counted then.
#[inline(always)]
pub fn may_keep() -> bool {
    // Looked at first: where there are more threads than may, they would all write the number at each call.
    if KEEPING.load(Ordering::Relaxed) >= KEEPERS {
        return false;
    }
    // Only a number; the pages are kept by their pins.
    let before = KEEPING.fetch_add(1, Ordering::Relaxed);
    if before >= KEEPERS {
        KEEPING.fetch_sub(1, Ordering::Relaxed);
    }
    before < KEEPERS
}

/// A thread that was counted has ended.
pub fn keeps_no_more() {
    let before = KEEPING.fetch_sub(1, Ordering::Relaxed);
    debug_assert!(before > 0, "more threads have stopped keeping a buffer than did");
}

/// In a forked child: the grants of the other threads went with them. `keeper`: its thread may keep a buffer.
pub fn forget(keeper: bool) {
    GRANTED.store(0, Ordering::Relaxed);
    KEEPING.store(keeper.into(), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    // One test: the counters are common.
    #[test]
    fn grants_end_at_the_share_and_come_back() {
        assert!((0..KEEPERS).all(|_| may_keep()) && !may_keep() && !may_keep());
        keeps_no_more();
        assert!(may_keep() && !may_keep());
        forget(true);
        assert!((1..KEEPERS).all(|_| may_keep()) && !may_keep());
        assert_eq!(take(3, 20), 3);
        assert_eq!(take(100, 20), CHUNK);
        assert_eq!(take(2, 20), 0, "19 of 20 are granted");
        assert_eq!(take(1, 20), 1);
        assert_eq!(take(1, 20), 0);
        give(3);
        assert_eq!(take(3, 20), 3);
        give(20);
        assert_eq!(GRANTED.load(Ordering::Relaxed), 0);
        assert_eq!(take(0, 20), 1, "at least one page");
        forget(false);
        assert_eq!(GRANTED.load(Ordering::Relaxed), 0);
    }
}
