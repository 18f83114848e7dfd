//! What the engine needs from the world around it, as traits: the seams. The library that ships passes the real kernel and real
//! swap spaces, the simulator passes simulated ones, and the engine's code is the same in both.
//!
//! The traits lie at the bottom so that an implementation of one (`sys`, `backend`, `policy`) depends neither on the engine nor
//! on the others.

mod kernel;
mod policy;
mod prefetch;
mod swap;
mod tracer;

pub use crate::sync::Futex;
pub use kernel::{Flushes, HugePages, Kernel, KernelError, Protect, Use, Watched};
pub use policy::{Came, Policy, Return, Verdict};
pub use prefetch::{AHEAD_MAX, Ahead, Fetch, PIECE_MAX, Prefetcher};
pub use swap::{
    Backend, CANNOT, CopyChange, FaultsSeen, FreeSlots, IoError, LATER, MemoryBudget, NoneFree, ReadBegun, Reads, Spaces,
    WriteQueue,
};
pub use tracer::{Told, Traced, Tracer};

/// The six seams of one engine.
pub trait World {
    /// The page tables of the program.
    type Kernel: Kernel;
    /// Swap space.
    type Backend: Backend;
    /// Chooses the pages that leave, and those that come unasked.
    type Policy: Policy;
    /// Time.
    type Clock: Clock;
    /// Sleeping and waking.
    type Futex: Futex;
    /// Tools outside that listen.
    type Tracer: Tracer;
}

/// The bytes of one page, aligned as direct I/O wants them.
#[repr(C, align(4096))]
#[derive(Clone)]
pub struct PageBuf(pub [u8; 4096]);

impl PageBuf {
    /// A page of zeros.
    pub const ZERO: PageBuf = PageBuf([0; 4096]);
}

impl core::fmt::Debug for PageBuf {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("PageBuf(4096 bytes)")
    }
}

/// Time, in nanoseconds from an arbitrary start.
pub trait Clock: Sync {
    /// Now.
    fn now_ns(&self) -> u64;
}
