//! Every constant that bounds something, with its reason, and the relations
//! between them checked when the crate is compiled.

/// Bytes of a page, and its binary logarithm.
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;
/// See [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;

/// Pages of a granule. A granule is 2 MiB. One leaf of the kernel's page table covers it, so a range operation inside it
/// takes one page-table lock. One 4 KiB piece of our own table of page words covers it too.
pub const GRANULE_PAGES: usize = 512;
/// Binary logarithm of [`GRANULE_PAGES`].
pub const GRANULE_SHIFT: u32 = 9;
/// Bytes of a granule.
pub const GRANULE_SIZE: usize = GRANULE_PAGES * PAGE_SIZE;

/// Granules of one leaf of the table: a leaf covers 1 GiB of addresses. (Miri visits every atomic behind each reference
/// that is made, so the address space is small under Miri.)
pub const LEAF_GRANULES: usize = if cfg!(miri) { 4 } else { 512 };
/// Leaves of the table: 2^17 × 1 GiB are the 47 bits of a user address on x86-64.
pub const LEAVES: usize = if cfg!(miri) { 64 } else { 1 << 17 };

/// Most pages of one eviction batch (MAGE §4.2.1: 256 pages a TLB shootdown; what that makes here is in `docs/src/decisions/costs.md`).
pub const BATCH_PAGES_MAX: usize = 256;
/// Most pages of a batch of an experiment ([`crate::ablated`]).
pub const BATCH_PAGES_ABLATED_MAX: usize = GRANULE_PAGES;
/// Fewest pages of a batch.
pub const BATCH_PAGES_MIN: usize = 8;
/// Batches an evictor keeps in flight (MAGE §4.1: select and unmap, write, free).
pub const BATCHES_IN_FLIGHT: usize = 3;
/// Most evictors (MAGE §4.2.1: more than four only contend).
pub const EVICTORS_MAX: usize = 16;
/// Most writes that one evictor may have in flight with a device: reads that faults wait for queue behind them.
pub const WRITES_MAX: u32 = 4;
/// Most of the memory limit that can be kept free, in percent. The rest is for the program.
pub const FREE_PERCENT_MAX: u32 = 50;

/// Pages of the largest batch that this many evictors can have in this memory (bytes), with room for their stages and for four
/// batches of frames.
pub const fn batch_pages_most(memory: u64, evictors: usize) -> usize {
    let most = batch_pages_room(memory, evictors);
    if most < BATCH_PAGES_MAX as u64 { most as usize } else { BATCH_PAGES_MAX }
}

/// The same, however many pages that may be.
pub const fn batch_pages_room(memory: u64, evictors: usize) -> u64 {
    memory / (PAGE_SIZE * (evictors * BATCHES_IN_FLIGHT + 4)) as u64
}

/// Pages of the largest batch, where none was fixed: all pipelines together hold at most a fortieth of the limit (pages), …
pub const fn batch_pages(limit: u64, evictors: u64) -> u64 {
    let pages = evictors * BATCHES_IN_FLIGHT as u64;
    let (part, least) = (limit / (40 * pages), batch_pages_small(limit / (8 * pages)));
    if part < least {
        least
    } else if part > BATCH_PAGES_MAX as u64 {
        BATCH_PAGES_MAX as u64
    } else {
        part
    }
}

/// … or, in little memory, an eighth with batches of 32: with fewer pages, and as few free frames, cores take each other's frames away.
const fn batch_pages_small(part: u64) -> u64 {
    if part < BATCH_PAGES_MIN as u64 {
        BATCH_PAGES_MIN as u64
    } else if part > 32 {
        32
    } else {
        part
    }
}

/// Stages of one evictor with such batches. Pages that linger for a rescue take a 128th of the limit (pages), if that is more than
/// what may be in flight.
pub const fn stages_each(batch: u64, limit: u64, evictors: u64) -> u64 {
    let (in_flight, lingering) = (batch * BATCHES_IN_FLIGHT as u64, limit / 128 / evictors);
    if in_flight < lingering { lingering } else { in_flight }
}

/// Free frames at which evictors stop, of so many frames, where no part was fixed.
pub const fn high_watermark(batch: u64, frames: u64) -> u64 {
    let (most, least) = (frames / 16, 16);
    let wanted = if 2 * batch < most { 2 * batch } else { most };
    if wanted < least { least } else { wanted }
}

/// Frames that move at once between a core's cache and the shared level.
pub const FRAME_CACHE_BATCH: u32 = 32;
/// Per-core caches of frames. Cores beyond this number share caches by remainder.
pub const FRAME_CACHES: usize = 64;

/// Slots of an extent: swap space is handed to evictors 2 MiB at a time.
pub const EXTENT_SLOTS: usize = if cfg!(loom) { 64 } else { 512 };
/// Most extents: 2 TiB of swap space. The table of extents is reserved for it
/// (8 bytes each) and filled as the space grows.
pub const EXTENTS_MAX: usize = 1 << 20;

/// Files of the program whose mappings are managed at a time: each takes a descriptor.
pub const MAPPED_FILES: usize = 128;
/// Binary logarithm of the pages of such a file that can be managed: 2 TiB.
pub const FILE_PAGE_BITS: u32 = 29;

/// Smallest memory limit, in bytes. Below it the pages that system calls may
/// pin and the batches in flight would leave nothing for the program.
pub const MEMORY_LIMIT_MIN: u64 = 4 << 20;

/// Buckets of the table in which threads wait for a page.
pub const WAIT_BUCKETS: usize = if cfg!(loom) { 2 } else { 512 };

const _: () = {
    assert!(GRANULE_PAGES == 1 << GRANULE_SHIFT);
    // The smallest limit has room for the smallest batches of the most evictors.
    assert!(batch_pages_most(MEMORY_LIMIT_MIN, EVICTORS_MAX) >= BATCH_PAGES_MIN);
    // A batch is taken from one granule, so that its pages can leave by one call.
    assert!(BATCH_PAGES_MAX <= GRANULE_PAGES && BATCH_PAGES_ABLATED_MAX <= GRANULE_PAGES);
    // The smallest limit holds every batch of the most evictors' share.
    assert!(MEMORY_LIMIT_MIN as usize / PAGE_SIZE >= 4 * BATCH_PAGES_MAX);
    // A page word has 40 bits for a place, the top three of which a claim borrows.
    assert!((EXTENTS_MAX as u64) * (EXTENT_SLOTS as u64) < 1 << 37);
    // The numbers from half of that on stand for pages of mapped files.
    assert!((EXTENTS_MAX as u64) * (EXTENT_SLOTS as u64) <= (MAPPED_FILES as u64) << FILE_PAGE_BITS);
    assert!((MAPPED_FILES as u64) << FILE_PAGE_BITS == 1 << 36 && MAPPED_FILES.is_power_of_two());
    assert!(cfg!(miri) || LEAVES as u64 * (LEAF_GRANULES * GRANULE_SIZE) as u64 == 1 << 47);
};
