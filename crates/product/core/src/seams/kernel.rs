//! The page tables of the program, as the engine changes them.

use super::PageBuf;
use crate::page::{GranuleId, Page, PageRange};

/// Whether a page is mapped so that a write to it faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protect {
    /// The program can write it.
    Writable,
    /// A write faults first.
    WriteProtected,
}

/// Why the kernel did not map, unmap or protect a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelError {
    /// A page is mapped there already.
    Exists,
    /// There is no (registered) memory there any more: the program unmapped it meanwhile.
    Gone,
    /// The address space is being changed: try again.
    Again,
    /// The kernel has no memory.
    NoMemory,
    /// The page cannot be read or moved (protection, pinned by the kernel, shared with a fork).
    Refused,
    /// Anything else, by errno.
    Other(i32),
}

/// Where the kernel gives fresh memory as huge pages: its own setting (`transparent_hugepage/enabled`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HugePages {
    /// Nowhere.
    Never,
    /// Where the program has asked for them (`MADV_HUGEPAGE`).
    Asked,
    /// Everywhere, except where the program does not want them.
    Always,
}

/// A page that the kernel watches ([`Kernel::watch`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watched {
    /// The page.
    pub page: Page,
    /// By what the kernel knows it again; 0: it does not watch it.
    pub mark: u64,
}

/// Whether a page that is watched was used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// It cannot be said: it has left meanwhile, or lies elsewhere, or nothing was heard of it, or the kernel does not tell any more.
    Unknown,
    /// No.
    Unused,
    /// Yes, or a neighbour that it shares a huge page with.
    Used,
}

/// Calls of evictors, and of moves of pages, that flush TLBs, so far. (Taking protection off a page flushes, too: faults on write-protected pages
/// are counted elsewhere.)
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flushes {
    /// Calls that protect a range.
    pub protects: u64,
    /// Calls that unmap pages.
    pub unmaps: u64,
    /// Ranges of these calls. Where the kernel flushes for each range, as many flushes.
    pub ranges: u64,
}

/// Changes to the program's page tables. All methods act on pages of which the caller owns the
/// words, except that [`Kernel::protect`] may cover neighbours.
pub trait Kernel: Sync {
    /// Whether another process takes the memory over when this one is killed. Then the engine leaves notes for it before each step from which there is no way back, and tells the kernel when the
    /// notes of its own about what was mapped are no longer needed ([`Kernel::forget_mapped`]).
    #[inline(always)]
    fn is_outlived(&self) -> bool {
        false
    }
    /// Maps `page`, absent until now, with a copy of `bytes`, and wakes kernel waiters if there are any.
    fn map(&self, page: Page, bytes: &PageBuf, protect: Protect) -> Result<(), KernelError>;
    /// Maps the absent pages from `first` on with copies of `bytes`, as [`Kernel::map`] maps one. Returns how many were mapped
    /// (at least 1).
    fn map_run(&self, first: Page, bytes: &[PageBuf], protect: Protect) -> Result<u64, KernelError> {
        for (page, bytes) in (0..).zip(bytes) {
            match self.map(first.plus(page), bytes, protect) {
                Ok(()) => {}
                Err(_) if page > 0 => return Ok(page),
                Err(why) => return Err(why),
            }
        }
        Ok(bytes.len() as u64)
    }
    /// The words of the pages that this thread has mapped last say that they are mapped.
    fn forget_mapped(&self) {}
    /// Maps the absent pages from `first` on with zeros, writable. Returns how many were mapped (at least 1).
    fn map_zeros(&self, first: Page, count: u64) -> Result<u64, KernelError>;
    /// Where [`Kernel::map_huge`] is worth a call.
    fn huge_pages(&self) -> HugePages {
        HugePages::Never
    }
    /// Maps a granule that is absent as a whole with zeros, writable, as one huge page where the kernel can provide one. Maps all
    /// of it or, with an error, none.
    fn map_huge(&self, _granule: GranuleId) -> Result<(), KernelError> {
        Err(KernelError::Refused)
    }
    /// Splits all huge pages that have parts in a granule into small pages, so that each page that leaves gives its own RAM back.
    /// The bytes and the write permissions stay. Splitting may fail where a huge page is shared with another process or pinned;
    /// the RAM of such a huge page is given back when its last page leaves.
    fn split_huge(&self, _granule: GranuleId) {}
    /// Write-protects every mapped page of `range`, with one TLB flush.
    fn protect(&self, range: PageRange) -> Result<(), KernelError>;
    /// Makes `page` writable and wakes kernel waiters if there are any.
    fn unprotect(&self, page: Page) -> Result<(), KernelError>;
    /// Copies the bytes of a mapped page. `readable` is false when the program itself may not read it.
    fn copy_out(&self, page: Page, into: &mut PageBuf, readable: bool) -> Result<(), KernelError>;
    /// Unmaps `pages` and throws their bytes away, with as few TLB flushes as possible. Either all are unmapped, or the
    /// first `n` of `Err((n, why))`.
    fn unmap(&self, pages: &[Page]) -> Result<(), (usize, KernelError)>;
    /// Gives `count` pages of our own memory from `memory` on back to the system; they are zeros when they are used again. False: this kernel cannot, and nothing has changed.
    ///
    /// # Safety
    /// They are writable memory of ours, and nobody uses their bytes before they are written again.
    unsafe fn give_back(&self, _memory: *mut PageBuf, _count: usize) -> bool {
        false
    }
    /// Begins to watch pages that are mapped, in ascending order, which changes nothing about them: whether each is used from [`Kernel::settle`] on. Those that
    /// cannot be watched, or of which nothing would be heard within `ns`, get no mark. `alone`: nobody watches other pages of their granules. The caller need not own their words.
    /// False: no page is watched, since this kernel cannot, or not for us.
    fn watch(&self, _pages: &mut [Watched], _alone: bool, _ns: u64) -> bool {
        false
    }
    /// From now on all processors see to it that uses of the pages that are watched are noted. False: they may not be.
    fn settle(&self) -> bool {
        false
    }
    /// Whether pages were used that [`Kernel::watch`] has marked, in ascending order. Of one that has left meanwhile, it may be told as of the page that has
    /// come in its place.
    fn uses(&self, _pages: &[Watched], uses: &mut [Use]) {
        uses.fill(Use::Unknown);
    }
    /// Does nothing. The engine calls this between two changes that other threads can come between; the simulator lets
    /// other threads run here.
    #[inline(always)]
    fn interleave(&self) {}
    /// A number for the calling thread, so that an eviction on a thread that is not an evictor is noticed.
    fn current_thread(&self) -> u64;
    /// How many calls have flushed TLBs, where they are counted.
    fn flushes(&self) -> Flushes {
        Flushes::default()
    }
    /// Lets other threads that are ready use the processor.
    fn step_aside(&self) {}
    /// A fault that owns no page waits for a frame. The thread that makes the evictors' threads may have to make them
    /// now.
    fn short_of_frames(&self) {}
}
