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
    /// Vectors and centroids that were not what was stored, however they were met.
    Damaged "damaged",
}
