//! An allocator that is not switched away from.
//!
//! `malloc` has a cache for each thread, and all unithreads of a worker are one thread to it. If one of them waited for a page in the middle of `malloc`, and another one
//! called it meanwhile, the second would find the cache half changed. Where `malloc` is a library's, the runtime sees that by itself (`far/text.rs`); this says so
//! everywhere, also where it is linked into the program.

use crate::scheduler::hold::hold;
use std::alloc::{GlobalAlloc, Layout, System};

/// The system's allocator, with a [`crate::Hold`] around each call: what it touches is waited for in place. For programs that have unithreads:
///
/// ```
/// #[global_allocator]
/// static HEAP: farshore_uthread::Allocator = farshore_uthread::Allocator;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocator;

// SAFETY: the system's, whose guarantees are passed on.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _hold = hold();
        // SAFETY: the caller's duty.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let _hold = hold();
        // SAFETY: the caller's duty.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let _hold = hold();
        // SAFETY: the caller's duty.
        unsafe { System.realloc(at, layout, bytes) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let _hold = hold();
        // SAFETY: the caller's duty.
        unsafe { System.dealloc(at, layout) }
    }
}
