//! Farshore's own heap: Rust's global allocator inside `libfarshore.so`.
//!
//! The program's malloc hands out memory that we manage and may be held by the thread that we run in; so nothing of ours may come from it.
//!
//! * Blocks below [`LARGE`] come from dlmalloc on top of our own mappings, under a mutex. All signals are
//!   blocked while it is held: a handler of the program that interrupts us, and allocates through one of our calls or leaves by
//!   `siglongjmp`, never finds it held ([`OwnMemory::expect_handlers`]). Two more system calls make an allocation slow (about 1 µs); nothing hot allocates.
//! * Larger blocks are mappings of their own: no lock, zeros without a touch, and freed memory goes back at once. Their
//!   size comes from the `Layout`, so there is no header.
//!
//! The fault path and signal handlers never allocate (rule 1 of the design); this is not async-signal-safe to use there.

use crate::lock::Mutex;
use crate::own;
use crate::signal::{self, How, SigSet};
use crate::vm::{self, remap};
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use dlmalloc::Dlmalloc;

/// Blocks of at least so many bytes are mappings of their own.
pub const LARGE: usize = 64 << 10;
const PAGE: usize = 4096;

/// Bytes mapped now, for `overhead_bytes` in the counters. Only touched pages of it are in memory.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Bytes of address space that the heap has mapped now.
pub fn mapped_bytes() -> usize {
    MAPPED.load(Ordering::Relaxed)
}

fn map(len: usize) -> *mut u8 {
    match own::map_own(len) {
        Ok(base) => {
            MAPPED.fetch_add(len, Ordering::Relaxed);
            base.as_ptr()
        }
        Err(_) => ptr::null_mut(),
    }
}

/// # Safety
/// `base..base + len` are whole pages of a mapping made by [`map`] that nobody uses any more.
unsafe fn unmap(base: *mut u8, len: usize) -> bool {
    // SAFETY: the caller's promise.
    let done = unsafe { vm::munmap(base as u64, len as u64) }.is_ok();
    if done {
        MAPPED.fetch_sub(len, Ordering::Relaxed);
    }
    done
}

/// # Safety
/// `base..base + old` are whole pages of a mapping made by [`map`]; if `may_move`, nobody keeps the old address.
unsafe fn resize(base: *mut u8, old: usize, new: usize, may_move: bool) -> *mut u8 {
    let flags = if may_move { remap::MAYMOVE } else { 0 };
    // SAFETY: the caller's promise.
    match unsafe { vm::mremap(base as u64, old as u64, new as u64, flags, 0) } {
        Ok(place) => {
            // One wrapping step, so that growing and shrinking are alike.
            MAPPED.fetch_add(new.wrapping_sub(old), Ordering::Relaxed);
            ptr::with_exposed_provenance_mut(place as usize)
        }
        Err(_) => ptr::null_mut(),
    }
}

/// Where dlmalloc gets its segments.
#[derive(Debug)]
struct Segments;

// SAFETY: `alloc` gives fresh, exclusive, zeroed, page-aligned mappings of the size told; the others resize or unmap such.
unsafe impl dlmalloc::Allocator for Segments {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let base = map(size);
        // Its pages come when they are touched: to have them at once costs nearly as much for each, and for those that nobody needs, too.
        (base, if base.is_null() { 0 } else { size }, 0)
    }
    fn remap(&self, base: *mut u8, old: usize, new: usize, can_move: bool) -> *mut u8 {
        // SAFETY: dlmalloc passes a segment that it got from `alloc`.
        unsafe { resize(base, old, new, can_move) }
    }
    fn free_part(&self, base: *mut u8, old: usize, new: usize) -> bool {
        // SAFETY: the part lies in a segment that dlmalloc got from `alloc` (sizes are multiples of the page), and is unused.
        unsafe { unmap(base.wrapping_add(new), old - new) }
    }
    fn free(&self, base: *mut u8, size: usize) -> bool {
        // SAFETY: a whole segment that dlmalloc no longer uses.
        unsafe { unmap(base, size) }
    }
    fn can_release_part(&self, _flags: u32) -> bool {
        true
    }
    fn allocates_zeros(&self) -> bool {
        true
    }
    fn page_size(&self) -> usize {
        PAGE
    }
}

/// The allocator: `#[global_allocator] static HEAP: OwnMemory = OwnMemory::new();`
pub struct OwnMemory {
    small: Mutex<Dlmalloc<Segments>>,
    /// Handlers of the program may run.
    handlers: AtomicBool,
}

impl core::fmt::Debug for OwnMemory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("OwnMemory")
    }
}

impl Default for OwnMemory {
    fn default() -> Self {
        OwnMemory::new()
    }
}

impl OwnMemory {
    /// An empty heap; maps nothing yet.
    pub const fn new() -> OwnMemory {
        OwnMemory { small: Mutex::new(Dlmalloc::new_with_allocator(Segments)), handlers: AtomicBool::new(false) }
    }

    /// From now on signal handlers may run that allocate or leave by `siglongjmp`. (Before the program starts there are none,
    /// and what start-up allocates, 30,000 times, need not block them.)
    pub fn expect_handlers(&self) {
        self.handlers.store(true, Ordering::Release);
    }

    /// Calls `f` while no other thread is inside the heap. For `fork`: the child is a copy of the moment, and finds
    /// the heap whole and free when `f` has returned there too. `f` must not allocate.
    pub fn hold<R>(&self, f: impl FnOnce() -> R) -> R {
        self.small(|_| f())
    }

    /// Keeps every other thread out of the heap until [`OwnMemory::release`], with signals blocked by the caller: around a `fork`.
    pub fn acquire(&self) {
        self.small.acquire();
    }

    /// Ends what [`OwnMemory::acquire`] began, in the parent and in the child.
    pub fn release(&self) {
        self.small.release();
    }

    /// Uses the small heap with all signals blocked (see the module's head).
    fn small<R>(&self, f: impl FnOnce(&mut Dlmalloc<Segments>) -> R) -> R {
        if !self.handlers.load(Ordering::Acquire) {
            return self.small.with(f);
        }
        let mask = signal::sigprocmask(How::Set, SigSet::ALL);
        let result = self.small.with(f);
        signal::sigprocmask(How::Set, mask);
        result
    }
}

/// Mapped bytes of a large block: whole pages.
const fn large_len(size: usize) -> usize {
    size.next_multiple_of(PAGE)
}

/// A mapping of `len` bytes at a multiple of `align`, which is larger than a page: maps more and cuts both ends off.
fn map_aligned(len: usize, align: usize) -> *mut u8 {
    let Some(more) = len.checked_add(align) else { return ptr::null_mut() };
    let base = map(more);
    if base.is_null() {
        return base;
    }
    let before = base.align_offset(align);
    if before > 0 {
        // SAFETY: the part before the aligned place, in pages since both ends are aligned to pages.
        unsafe { unmap(base, before) };
    }
    let after = more - before - len;
    if after > 0 {
        // SAFETY: the part behind the block.
        unsafe { unmap(base.wrapping_add(before + len), after) };
    }
    base.wrapping_add(before)
}

/// Whether a block of this layout is a mapping of its own.
const fn is_large(layout: &Layout) -> bool {
    layout.size() >= LARGE || layout.align() > PAGE
}

fn alloc_large(layout: &Layout) -> *mut u8 {
    // `Layout` keeps sizes below isize::MAX, so rounding up cannot overflow.
    let len = large_len(layout.size().max(1));
    if layout.align() > PAGE { map_aligned(len, layout.align()) } else { map(len) }
}

// SAFETY: blocks are exclusive, sized and aligned as the layout says: small ones by dlmalloc under the mutex, large ones by mmap. A
// block's kind follows from its layout alone (`is_large`), which the caller repeats when freeing.
unsafe impl GlobalAlloc for OwnMemory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(&layout) {
            return alloc_large(&layout);
        }
        // SAFETY: we hold the heap exclusively; the layout is valid.
        self.small(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(&layout) {
            // A fresh mapping is zeros, and stays untouched.
            return alloc_large(&layout);
        }
        // SAFETY: we hold the heap exclusively; the layout is valid.
        self.small(|heap| unsafe { heap.calloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_large(&layout) {
            // SAFETY: a large block is a mapping of this length. If the kernel refuses, it leaks, which is no harm.
            unsafe { unmap(block, large_len(layout.size().max(1))) };
            return;
        }
        // SAFETY: the block came from this heap with this layout (the trait's promise).
        self.small(|heap| unsafe { heap.free(block, layout.size(), layout.align()) });
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: `new_size`, rounded up to the alignment, does not overflow (the trait's promise).
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        match (is_large(&layout), is_large(&new)) {
            // SAFETY: the block came from this heap with this layout.
            (false, false) => self.small(|heap| unsafe { heap.realloc(block, layout.size(), layout.align(), new_size) }),
            (true, true) if layout.align() <= PAGE => {
                // SAFETY: a large block is a mapping of this length, and the caller gives up the old address.
                unsafe { resize(block, large_len(layout.size()), large_len(new_size), true) }
            }
            // SAFETY: the same promises as this function's.
            _ => unsafe { self.replace(block, layout, new) },
        }
    }
}

impl OwnMemory {
    /// Reallocation by a new block and a copy.
    ///
    /// # Safety
    /// As `GlobalAlloc::realloc`.
    unsafe fn replace(&self, block: *mut u8, old: Layout, new: Layout) -> *mut u8 {
        // SAFETY: the layout is valid and not empty (the caller's promise).
        let Some(place) = NonNull::new(unsafe { self.alloc(new) }) else { return ptr::null_mut() };
        let bytes = old.size().min(new.size());
        // SAFETY: both blocks are at least `bytes` long, and a new block does not overlap an old one.
        unsafe { ptr::copy_nonoverlapping(block, place.as_ptr(), bytes) };
        // SAFETY: the caller gives up the old block.
        unsafe { self.dealloc(block, old) };
        place.as_ptr()
    }
}
