//! What is counted for `stats`, by the names that memcached gives it.

use crate::counters::counters;

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
