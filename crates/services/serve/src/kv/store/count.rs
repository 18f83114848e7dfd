//! What is counted for `stats`: a set of counters for each worker, so that no two write the same line.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use farshore_uthread::worker_index;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident $text:literal,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Count { $($(#[$doc])* $name,)* }

        /// The names that memcached gives them.
        pub const NAMES: &[(Count, &str)] = &[$((Count::$name, $text),)*];
    };
}

counters! {
    /// Keys that were asked for.
    Gets "cmd_get",
    /// Values that came.
    Sets "cmd_set",
    /// Flushes.
    Flushes "cmd_flush",
    /// Touches.
    Touches "cmd_touch",
    /// Meta debugs.
    Metas "cmd_meta",
    /// Keys that were found.
    GetHits "get_hits",
    /// Keys that were not.
    GetMisses "get_misses",
    /// Of these, expired ones.
    GetExpired "get_expired",
    /// Of these, flushed ones.
    GetFlushed "get_flushed",
    /// Deletes of nothing.
    DeleteMisses "delete_misses",
    /// Deletes.
    DeleteHits "delete_hits",
    /// incr of nothing.
    IncrMisses "incr_misses",
    /// incr.
    IncrHits "incr_hits",
    /// decr of nothing.
    DecrMisses "decr_misses",
    /// decr.
    DecrHits "decr_hits",
    /// cas of nothing.
    CasMisses "cas_misses",
    /// cas.
    CasHits "cas_hits",
    /// cas of what has changed.
    CasBad "cas_badval",
    /// Touches of something.
    TouchHits "touch_hits",
    /// Touches of nothing.
    TouchMisses "touch_misses",
    /// Values that were too large.
    TooLarge "store_too_large",
    /// Values for which there was no memory.
    NoMemory "store_no_memory",
    /// Items that came.
    Items "total_items",
    /// Items that went for others.
    Evictions "evictions",
    /// Of these, those that nobody had asked for.
    EvictedUnfetched "evicted_unfetched",
    /// Items that were found to be over.
    Reclaimed "reclaimed",
    /// Bytes from clients.
    BytesRead "bytes_read",
    /// Bytes to clients.
    BytesWritten "bytes_written",
}

/// Sets of counters; a worker beyond them shares.
const SETS: usize = 64;

#[repr(align(128))]
#[derive(Debug)]
struct Set([AtomicU64; NAMES.len()]);

/// All counters.
#[derive(Debug)]
pub struct Counters(Vec<Set>);

impl Default for Counters {
    fn default() -> Counters {
        Counters((0..SETS).map(|_| Set([const { AtomicU64::new(0) }; NAMES.len()])).collect())
    }
}

impl Counters {
    /// One more.
    #[inline]
    pub fn add(&self, count: Count) {
        self.add_many(count, 1);
    }

    /// So many more.
    #[inline]
    pub fn add_many(&self, count: Count, by: u64) {
        self.0[worker_index().unwrap_or(0) % SETS].0[count as usize].fetch_add(by, Relaxed);
    }

    /// How many.
    pub fn get(&self, count: Count) -> u64 {
        self.0.iter().map(|set| set.0[count as usize].load(Relaxed)).sum()
    }

    /// From 0 again.
    pub fn reset(&self) {
        self.0.iter().flat_map(|set| &set.0).for_each(|count| count.store(0, Relaxed));
    }
}
