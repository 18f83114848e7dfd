//! The systems, and what their steps cost. Times in ns.
//!
//! *Measured* costs are those of `docs/src/decisions/costs.md`, of a virtual machine with two cores. *Fitted* ones were chosen so that the model has a paper's digits:
//! the model then proves nothing by having these, and something by having others.

use crate::system::Step::{Frame, Hold, Read, Work};
use crate::system::{Eviction, Lock, System};

/// All memory is there: a fault takes no time.
pub const LOCAL: System = System { name: "native", fault: &[], along_ns: 0, eviction: NOTHING, shared: &[], own_device: true };

/// No pages leave of it, or without any cost.
const NOTHING: Eviction =
    Eviction { evictors: 1, batch: 256, page: &[], flushes: 0, pipelined: true, waits_for_write: false, by_faults: None };

/// MAGE's ideal: the device's latency and what the hardware does (§3.1).
pub const IDEAL: System =
    System { name: "ideal", fault: &[Frame, Read], along_ns: 0, eviction: NOTHING, shared: &[], own_device: true };

/// Hermit, on Linux' memory management: 5.8 µs a fault without eviction, 3.9 of them the read (MAGE §6.5). Fitted: the swap allocator's lock and its like, so that faults
/// alone come to 20 % of the ideal, and with evictions to 14 % (MAGE §3.2). Batches of 64, four evictors, and faults that evict.
pub const HERMIT: System = System {
    name: "Hermit",
    fault: &[Work(700), Hold(Lock::Space, 750), Hold(Lock::Lists, 150), Frame, Read, Work(300)],
    along_ns: 0,
    eviction: Eviction {
        evictors: 4,
        batch: 64,
        page: &[Hold(Lock::Lists, 150), Hold(Lock::Space, 400), Work(600)],
        flushes: 1,
        pipelined: false,
        waits_for_write: true,
        by_faults: Some(32),
    },
    shared: &[Lock::Lists, Lock::Space, Lock::Tables],
    own_device: false,
};

/// DiLOS, in a unikernel: 4.7 µs a fault (MAGE §6.5). Fitted: the allocator's mutex, so that faults alone come to 56 % of the ideal, and the list of all pages, so that
/// with evictions 30 % are left (MAGE §3.2). It is MAGE's own version of DiLOS, with four evictors and faults that evict.
pub const DILOS: System = System {
    name: "DiLOS",
    fault: &[Work(200), Hold(Lock::Frames, 200), Frame, Read, Work(150), Hold(Lock::Lists, 150)],
    along_ns: 0,
    eviction: Eviction {
        evictors: 4,
        batch: 64,
        page: &[Hold(Lock::Lists, 280), Hold(Lock::Frames, 150), Work(400)],
        flushes: 1,
        pipelined: false,
        waits_for_write: true,
        by_faults: Some(32),
    },
    shared: &[Lock::Frames, Lock::Lists],
    own_device: false,
};

/// MAGE-Lib: lists by core, frames by layers (0.2 and 0.5 µs of a fault, §6.4), batches of 256 whose flushes are not waited for, four evictors, no fault that evicts. What
/// an evictor does for a page is not in the paper: it is taken to be what DiLOS needs without its locks.
pub const MAGE: System = System {
    name: "MAGE-Lib",
    fault: &[Work(400), Hold(Lock::Frames, 500), Frame, Read, Work(300), Hold(Lock::Lists, 200)],
    along_ns: 0,
    eviction: Eviction {
        evictors: 4,
        batch: 256,
        page: &[Hold(Lock::Lists, 100), Work(400)],
        flushes: 1,
        pipelined: true,
        waits_for_write: false,
        by_faults: None,
    },
    shared: &[],
    own_device: false,
};

/// MAGE without its pipeline: an evictor waits for the answers of a flush, and for the write (§6.5).
pub const MAGE_IN_TURN: System = System {
    name: "MAGE-Lib, in turn",
    eviction: Eviction { batch: 64, pipelined: false, waits_for_write: true, ..MAGE.eviction },
    ..MAGE
};

/// Farshore's steps as they were measured here: a signal (2.1 µs, of which some 0.15 are under the handlers' lock, which is taken to raise it and to deliver it),
/// `UFFDIO_COPY` 1.0, the sum 0.25. A page that comes along is fitted to PageRank on two cores with half of its memory far (`mage-9`). What is left of a
/// fault is fitted to the rate of one thread here (`mage-5`, faults alone). Of an eviction: protect 0.08, copy out 0.25, sum 0.25, unmap 0.55; the rest is fitted to two threads
/// with evictions. Each batch has two calls that flush, which are waited for: no call of a stock kernel returns before. Writes are not.
pub const FARSHORE: System = System {
    name: "Farshore",
    fault: &[
        Work(1_950),
        Hold(Lock::Signals, 75),
        Hold(Lock::Signals, 75),
        Work(2_700),
        Hold(Lock::Frames, 30),
        Frame,
        Read,
        Work(250),
        Hold(Lock::Tables, 60),
        Work(1_000),
        Hold(Lock::Lists, 30),
    ],
    along_ns: 2_100,
    eviction: Eviction {
        evictors: 4,
        batch: 256,
        page: &[Hold(Lock::Lists, 30), Work(1_130), Hold(Lock::Space, 20), Work(1_500), Hold(Lock::Frames, 30)],
        flushes: 2,
        pipelined: false,
        waits_for_write: false,
        by_faults: None,
    },
    shared: &[Lock::Signals, Lock::Tables],
    own_device: true,
};

/// Farshore with one list of pages, one pool of frames and one allocator of swap space for all cores (`--ablate partitions`).
pub const FARSHORE_SHARED: System = System {
    name: "Farshore, all shared",
    shared: &[Lock::Signals, Lock::Tables, Lock::Lists, Lock::Frames, Lock::Space],
    own_device: false,
    ..FARSHORE
};

/// Farshore with as many evictors as there are cores for.
#[must_use]
pub const fn with_evictors(system: System, evictors: u32) -> System {
    System { eviction: Eviction { evictors, ..system.eviction }, ..system }
}

/// Linux swap in ScaleSwap's paper. Fitted to its Table 5: pages of the list's lock so long that 4.34 GB/s come and go, and of the allocator's so long that 8.13 do when
/// each core has its list. Threads reclaim by themselves, 32 pages at a time.
pub const LINUX: System = System {
    name: "Linux",
    fault: &[Work(1_500), Hold(Lock::Space, 350), Frame, Read, Work(1_000), Hold(Lock::Lists, 800)],
    along_ns: 0,
    eviction: Eviction {
        evictors: 2,
        batch: 32,
        page: &[Hold(Lock::Lists, 960), Hold(Lock::Space, 380), Work(800)],
        flushes: 1,
        pipelined: false,
        waits_for_write: false,
        by_faults: Some(32),
    },
    shared: &[Lock::Lists, Lock::Space],
    own_device: false,
};

/// ScaleSwap with lists by core alone (its Table 5).
pub const SCALESWAP_LISTS: System = System { name: "ScaleSwap, lists alone", shared: &[Lock::Space], ..LINUX };

/// ScaleSwap: a core has its lists and its swap space.
pub const SCALESWAP: System = System { name: "ScaleSwap", shared: &[], own_device: true, ..LINUX };
