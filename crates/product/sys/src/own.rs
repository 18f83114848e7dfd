//! Farshore's own mappings: staging areas, tables, stacks. Never managed, never registered.
//!
//! They lie apart from the program's. The kernel gives the next mapping the highest hole that it fits into, and a program may count on a
//! hole that it has just made: for a stack that grows down into it (`MAP_GROWSDOWN`, LTP's mmap18), or to map there (`MAP_FIXED`), which
//! would replace ours without a word.

use crate::raw::Errno;
use crate::vm::{self, advice, map, prot};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a page.
const PAGE: usize = 4096;

/// Anonymous memory of our own, unmapped when dropped.
#[derive(Debug)]
pub struct Own {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: it is plain memory that the value owns; nothing about it belongs to a thread.
unsafe impl Send for Own {}
// SAFETY: a shared reference gives only the address; each use of the memory says why it is sound.
unsafe impl Sync for Own {}

impl Own {
    /// `len` bytes (rounded up to pages) of zeros, of which nothing is in memory until it is touched.
    ///
    /// # Errors
    /// `ENOMEM`; `EINVAL` for 0 bytes.
    pub fn new(len: usize) -> Result<Own, Errno> {
        let len = len.checked_next_multiple_of(PAGE).ok_or(Errno::ENOMEM)?;
        Ok(Own { base: map_own(len)?, len })
    }

    /// First byte; page-aligned.
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }
    /// Bytes.
    pub const fn len(&self) -> usize {
        self.len
    }
    /// Never: there is no mapping of 0 bytes.
    pub const fn is_empty(&self) -> bool {
        false
    }
    /// Gives the memory away; it is never unmapped.
    pub const fn leak(self) -> NonNull<u8> {
        let base = self.base;
        core::mem::forget(self);
        base
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: we own the mapping, and nobody may use it after us. It cannot fail for a whole mapping of our own,
        // unless the process has too many; then it stays, which is a leak and no harm.
        let _ = unsafe { vm::munmap(self.base.as_ptr() as u64, self.len as u64) };
    }
}

/// How far below our own text our mappings lie, and how much room they have there before they begin at the bottom again. Sanitizers want
/// all mappings in the upper part of the address space, where libraries are.
const BELOW: u64 = 256 << 30;
const ROOM: u64 = 128 << 30;
/// Bytes that were given places so far.
static PLACED: AtomicU64 = AtomicU64::new(0);

/// Where a mapping of ours of `len` bytes shall lie: a hint for the kernel, which takes another place if this one is in use. 0: anywhere.
pub fn place(len: u64) -> u64 {
    let page = PAGE as u64;
    // As random as the place of our text. (A function may have an address in each crate that has a copy of it.)
    let base = (&raw const PLACED as u64 / page * page).saturating_sub(BELOW);
    if base < BELOW || len > ROOM {
        return 0;
    }
    base + PLACED.fetch_add(len.next_multiple_of(page), Ordering::Relaxed) % ROOM
}

/// Maps `len` bytes (rounded up to pages) of zeros, untouched. Not counted against strict overcommit until touched.
///
/// # Errors
/// `ENOMEM`; `EINVAL` for 0 bytes.
pub fn map_own(len: usize) -> Result<NonNull<u8>, Errno> {
    let len = len.checked_next_multiple_of(PAGE).ok_or(Errno::ENOMEM)? as u64;
    let flags = map::PRIVATE | map::ANONYMOUS | map::NORESERVE;
    // SAFETY: new memory, at a place that the kernel chooses.
    let base = unsafe { vm::mmap(place(len), len, prot::READ | prot::WRITE, flags, -1, 0) }?;
    // A forked child has to have our tables too, so no DONTFORK; but a core dump need not.
    // SAFETY: changes nothing but the dump. May be refused by a sandbox, which does no harm.
    let _ = unsafe { vm::madvise(base, len, advice::DONTDUMP) };
    NonNull::new(core::ptr::with_exposed_provenance_mut(base as usize)).ok_or(Errno::ENOMEM)
}

/// A stack for a thread or a signal handler, with a page below it that cannot be touched: an overflow
/// raises SIGSEGV instead of writing into something else.
#[derive(Debug)]
pub struct Stack {
    memory: Own,
}

impl Stack {
    /// A stack of `len` bytes (rounded up to pages), guard page not counted.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(len: usize) -> Result<Stack, Errno> {
        let len = len.checked_next_multiple_of(PAGE).and_then(|len| len.checked_add(PAGE)).ok_or(Errno::ENOMEM)?;
        let memory = Own::new(len)?;
        // SAFETY: the lowest page of memory that nobody uses yet.
        unsafe { vm::mprotect(memory.base().as_ptr() as u64, PAGE as u64, prot::NONE) }?;
        Ok(Stack { memory })
    }
    /// Lowest usable address.
    pub fn base(&self) -> u64 {
        self.memory.base().as_ptr() as u64 + PAGE as u64
    }
    /// Usable bytes.
    pub const fn len(&self) -> usize {
        self.memory.len() - PAGE
    }
    /// Never.
    pub const fn is_empty(&self) -> bool {
        false
    }
    /// Where the stack begins to grow down from; 16-byte aligned.
    pub fn top(&self) -> u64 {
        self.base() + self.len() as u64
    }
    /// As sigaltstack(2) wants it, for tests.
    pub fn as_alt_stack(&self) -> crate::signal::AltStack {
        crate::signal::AltStack { base: self.base(), flags: 0, size: self.len() as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_and_unmaps() {
        let own = Own::new(10_000).unwrap();
        assert_eq!(own.len(), 12_288);
        let base = own.base().as_ptr();
        // SAFETY: the last byte of the mapping.
        unsafe { base.wrapping_add(12_287).write(1) };
        drop(own);
        assert!(!vm::is_mapped(base as u64));
        assert_eq!(map_own(0), Err(Errno::EINVAL));
        assert_eq!(map_own(usize::MAX), Err(Errno::ENOMEM));
    }

    #[test]
    fn our_mappings_lie_apart() {
        let hole = |len| {
            // SAFETY: new memory, which nobody knows and which is given back at once.
            let addr = unsafe { vm::mmap(0, len, prot::NONE, map::PRIVATE | map::ANONYMOUS, -1, 0) }.unwrap();
            // SAFETY: as above.
            unsafe { vm::munmap(addr, len) }.unwrap();
            addr
        };
        for len in [4096, 1 << 20, 64 << 20] {
            let (theirs, own) = (hole(len as u64), Own::new(len).unwrap());
            let here = own.base().as_ptr() as u64;
            assert!(here.abs_diff(theirs) > 1 << 30, "{here:#x} beside {theirs:#x}");
        }
        assert_eq!(place(u64::MAX), 0, "anywhere");
    }

    #[test]
    fn stack_has_a_guard() {
        let stack = Stack::new(64 << 10).unwrap();
        assert_eq!((stack.len(), stack.top() % 16), (64 << 10, 0));
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let guard = format!("{:x}-{:x} ---p", stack.base() - 4096, stack.base());
        assert!(maps.contains(&guard), "{guard} in {maps}");
    }
}
