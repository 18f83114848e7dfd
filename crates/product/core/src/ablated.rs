//! Mechanisms that an experiment leaves out (`--ablate`), to see what each of them gives. Nothing else is this for: a run without all of
//! them is as right as any other, and slower.
//!
//! Each is a choice that is made when the engine is built, or on the way of an evictor, or where a fault meets a page that is leaving.
//! The other ways of a fault do not ask.

/// What is left out.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Ablated {
    /// Batches overlap: an evictor begins a batch while the ones before are written. Without, it has one at a time.
    pub pipeline: bool,
    /// Cores' own caches of frames. Without, each fault takes its frame from the level that all share.
    pub caches: bool,
    /// Pages come back from their stages. Without, a fault waits for the page's write, and reads what was written.
    pub rescue: bool,
    /// Cores ask each other for slots. Without, a core takes them itself, with the other core's lock.
    pub delegation: bool,
    /// A write takes pages that lie side by side. Without, each page is a write of its own.
    pub write_runs: bool,
    /// Each core has a list of granules, and extents, of its own. Without, all have one.
    pub partitions: bool,
    /// Pages come before they are asked for.
    pub prefetch: bool,
    /// Stages and free frames become few where the program's data would nearly fit without them. Without, they are as many as ever.
    pub headroom: bool,
    /// Evictors move from core to core, as the scheduler likes. Without, each stays on one of those that the process may use.
    pub migration: bool,
    /// The pages of each batch are exactly so many at most, from 1 to [`BATCH_PAGES_ABLATED_MAX`](crate::limits::BATCH_PAGES_ABLATED_MAX).
    pub batch: Option<u32>,
}
