//! What happened, counted.

use crate::counters::counters;

counters! {
    /// Searches that were done.
    Searches "searches",
    /// Lists that were read for them.
    Lists "lists_read",
    /// Vectors that were compared with a query.
    Rows "vectors_read",
    /// Commands that were not done.
    Refused "refused",
    /// Searches that met a vector that is not what was stored.
    Damaged "damaged",
}
