//! Buffers that the kernel takes as datagrams come: one mapping for them and their ring.
//!
//! ```text
//!  ┌──────────────────────┬─────────┬──────────┬──────────┬────
//!  │ ring of free buffers │ message │ buffer 0 │ buffer 1 │ …
//!  └──────────────────────┴─────────┴──────────┴──────────┴────
//! ```
//!
//! It is mapped as stacks are, so that it is no managed memory: the kernel writes here at any time. The message is the form of all that is received: how
//! long addresses are.

use crate::ground::error::Error;
use crate::ground::own;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, Ordering};
use io_uring::types::BufRingEntry;

const PAGE: usize = 4096;
/// Buffers of a socket take about this together, however long each is,
const TOGETHER: usize = 1 << 20;
/// but there are so many at least, and at most.
const COUNT_MIN: usize = 16;
const COUNT_MAX: usize = 256;

#[derive(Debug)]
pub(super) struct Buffers {
    base: NonNull<u8>,
    bytes: usize,
    /// A power of two.
    count: u16,
    /// Bytes of one, and from one to the next.
    each: usize,
    stride: usize,
    first: usize,
    tail: u16,
}

impl Buffers {
    /// Maps buffers of `each` bytes, and puts them all into the ring.
    pub(super) fn new(each: usize) -> Result<Buffers, Error> {
        let stride = each.next_multiple_of(64);
        let count = (TOGETHER / stride).clamp(COUNT_MIN, COUNT_MAX);
        let count = 1 << count.ilog2();
        let first = (count * size_of::<BufRingEntry>() + size_of::<libc::msghdr>()).next_multiple_of(64);
        let bytes = (first + count * stride).next_multiple_of(PAGE);
        let base = own::map(bytes, "cannot map the buffers of a socket (ulimit -v?)")?;
        let mut buffers = Buffers { base, bytes, count: count as u16, each, stride, first, tail: 0 };
        (0..buffers.count).for_each(|number| buffers.give(number));
        buffers.publish();
        Ok(buffers)
    }

    pub(super) fn count(&self) -> u16 {
        self.count
    }

    /// The ring, as the kernel wants it.
    pub(super) fn entries(&self) -> *mut BufRingEntry {
        self.base.as_ptr().cast()
    }

    /// The place of the message, which is all zero at first.
    pub(super) fn message(&self) -> *mut libc::msghdr {
        self.entries().wrapping_add(usize::from(self.count)).cast()
    }

    fn buffer(&self, number: u16) -> *mut u8 {
        assert!(number < self.count, "there is no buffer {number}");
        self.base.as_ptr().wrapping_add(self.first + usize::from(number) * self.stride)
    }

    /// The first `bytes` of a buffer.
    ///
    /// # Safety
    /// The kernel has taken the buffer and completed what it took it for, and it is not given again while the slice lives.
    pub(super) unsafe fn bytes(&self, number: u16, bytes: usize) -> &[u8] {
        let at = self.buffer(number);
        // SAFETY: inside the mapping, zeroed at first; the kernel is done with it, says the caller.
        unsafe { core::slice::from_raw_parts(at, bytes.min(self.each)) }
    }

    /// Puts a buffer into the ring. The kernel sees it after [`Buffers::publish`].
    pub(super) fn give(&mut self, number: u16) {
        let (at, each) = (self.buffer(number).expose_provenance() as u64, self.each as u32);
        let entry = self.entries().wrapping_add(usize::from(self.tail & (self.count - 1)));
        // SAFETY: inside the ring, and free: there are as many entries as buffers. The kernel reads entries below the published tail alone.
        let entry = unsafe { &mut *entry };
        entry.set_addr(at);
        entry.set_len(each);
        entry.set_bid(number);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Shows the kernel what was given.
    pub(super) fn publish(&self) {
        // SAFETY: the ring is mapped, and zeroed or written before.
        let tail = unsafe { BufRingEntry::tail(self.entries()) };
        // SAFETY: aligned, mapped, and written here alone.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        // Release: the kernel, which reads it with Acquire, sees the entries.
        tail.store(self.tail, Ordering::Release);
    }

    /// Keeps the mapping for ever, since the kernel would not let go of it.
    pub(super) fn leak(self) {
        let _ = ManuallyDrop::new(self);
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: our own mapping; no slice of it lives, and the kernel has let go of it (`Receiver`).
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
