//! Memory that is not managed, for one call.

use super::careful::careful_copy;
use super::{Access, Memory, PinSet, errno};

/// Bytes that are pinned at once while scratch memory is filled or emptied.
const STEP: u64 = 64 << 10;

/// A mapping of its own, unmapped when it is dropped. The kernel fills it as it is touched, so a large one of
/// which little is used costs little.
pub struct Scratch<'m, M: Memory> {
    mem: &'m M,
    addr: u64,
    len: u64,
}

impl<'m, M: Memory> Scratch<'m, M> {
    /// Room for `len` bytes.
    ///
    /// # Errors
    /// The kernel's errno, negative, if there is no memory (or `len` is 0).
    pub fn new(mem: &'m M, len: u64) -> Result<Self, i64> {
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
        let addr = mem.raw(libc::SYS_mmap as u64, &[0, len, protection, flags, u64::MAX, 0]);
        if addr < 0 { Err(addr) } else { Ok(Scratch { mem, addr: addr as u64, len }) }
    }
    /// Its first byte.
    pub fn addr(&self) -> u64 {
        self.addr
    }
    /// Its bytes.
    pub fn size(&self) -> u64 {
        self.len
    }
    /// Copies `len` bytes of the program from `from` to `at`; whether all could be read.
    #[must_use]
    pub fn copy_in(&self, at: u64, from: u64, len: u64) -> bool {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len));
        copy_pinned(self.mem, self.addr + at, from, len, from, Access::Read)
    }
    /// Copies `len` bytes at `at` to the program's memory at `to`; whether all could be written.
    #[must_use]
    pub fn copy_out(&self, at: u64, to: u64, len: u64) -> bool {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len));
        copy_pinned(self.mem, to, self.addr + at, len, to, Access::Write)
    }
    /// Stores a word of ours at `at`.
    pub fn store(&self, at: u64, word: u64) {
        assert!(at + 8 <= self.len);
        // SAFETY: the eight bytes lie in the mapping, which is ours alone.
        unsafe { ((self.addr + at) as *mut u64).write_unaligned(word) }
    }
    /// Stores bytes of ours at `at`.
    pub fn store_bytes(&self, at: u64, bytes: &[u8]) {
        assert!(at + bytes.len() as u64 <= self.len);
        // SAFETY: the bytes lie in the mapping, which is ours alone, so it does not overlap `bytes`.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), (self.addr + at) as *mut u8, bytes.len()) }
    }
}

impl<M: Memory> Drop for Scratch<'_, M> {
    fn drop(&mut self) {
        self.mem.raw(libc::SYS_munmap as u64, &[self.addr, self.len, 0, 0, 0, 0]);
    }
}

impl<M: Memory> core::fmt::Debug for Scratch<'_, M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Scratch({} bytes at {:#x})", self.len, self.addr)
    }
}

/// Copies in steps, each with its managed side (`managed`, which is `to` or `from`) pinned.
fn copy_pinned(mem: &impl Memory, to: u64, from: u64, len: u64, managed: u64, access: Access) -> bool {
    let mut pins = PinSet::new();
    let mut done = 0;
    while done < len {
        let want = STEP.min(len - done);
        // What cannot be pinned is tried all the same: a fault on it is resolved, or ends the copy.
        let step = match mem.pin(&mut pins, managed + done, want, access) {
            0 => want.min(super::PAGE),
            safe => safe.min(want),
        };
        // SAFETY: one side is scratch memory with room (checked by the callers), the other the program's.
        let copied = unsafe { careful_copy((to + done) as *mut u8, from + done, step as usize) };
        mem.unpin(&mut pins);
        if !copied {
            return false;
        }
        done += step;
    }
    true
}

/// Copies between two places of the program, both pinned; 0 bytes if one cannot be accessed, else how many.
pub fn copy_between(mem: &impl Memory, to: u64, from: u64, len: u64) -> u64 {
    let mut pins = PinSet::new();
    let want = len.min(super::PAGE);
    let readable = mem.pin(&mut pins, from, want, Access::Read);
    let writable = mem.pin(&mut pins, to, want, Access::Write);
    let step = match readable.min(writable) {
        0 => 1,
        safe => safe.min(want),
    };
    // SAFETY: both sides are the program's memory.
    let copied = unsafe { careful_copy(to as *mut u8, from, step as usize) };
    mem.unpin(&mut pins);
    if copied { step } else { 0 }
}

/// The errno for memory of the program that cannot be accessed.
pub const FAULT: i64 = errno(libc::EFAULT);
