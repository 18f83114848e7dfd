//! The heap. `malloc` has locks and per-thread lists; both are one per worker, and who is switched away from in the midst of it leaves them in
//! two minds for the next unithread. So each call of it is made under [`hold`].

use std::alloc::{GlobalAlloc, Layout, System};

use farshore_uthread::hold;

/// The system's allocator, under [`hold`].
#[derive(Clone, Copy, Debug)]
pub struct HeldHeap;

// SAFETY: all calls go to the system's allocator, whose contract this is. `hold` does not allocate.
unsafe impl GlobalAlloc for HeldHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _held = hold();
        // SAFETY: the caller's duty.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let _held = hold();
        // SAFETY: the caller's duty.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let _held = hold();
        // SAFETY: the caller's duty.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let _held = hold();
        // SAFETY: the caller's duty.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}
