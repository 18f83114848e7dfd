//! Memory that is not managed, for one call.

use super::careful::careful_copy;
use super::{Access, Memory, PAGE, PinSet, Pins, USER_END, errno};
use farshore_sys::own;

/// Bytes that are pinned at once while scratch memory is filled or emptied.
const STEP: u64 = 64 << 10;

/// A mapping of its own, unmapped when it is dropped. The kernel fills it as it is touched, so a large one of
/// which little is used costs little.
pub struct Scratch<'m, M: Memory> {
    mem: &'m M,
    addr: u64,
    len: u64,
    /// Bytes from the first to the copy of the contents, 0: there is none.
    copy_at: u64,
}

impl<'m, M: Memory> Scratch<'m, M> {
    /// Room for `len` bytes.
    ///
    /// # Errors
    /// The kernel's errno, negative, if there is no memory (or `len` is 0).
    pub fn new(mem: &'m M, len: u64) -> Result<Self, i64> {
        Ok(Scratch { mem, addr: map(mem, len)?, len, copy_at: 0 })
    }
    /// Room for `len` bytes and a copy of them ([`Scratch::keep_copy`]).
    ///
    /// # Errors
    /// As [`Scratch::new`].
    pub fn with_copy(mem: &'m M, len: u64) -> Result<Self, i64> {
        let copy_at = len.checked_next_multiple_of(8).filter(|at| *at < USER_END).ok_or(errno(libc::ENOMEM))?;
        Ok(Scratch { mem, addr: map(mem, copy_at * 2)?, len, copy_at })
    }
    /// Remembers what is there now, so that [`Scratch::copy_changes`] knows what the kernel has changed.
    pub fn keep_copy(&self) {
        if self.copy_at != 0 {
            // SAFETY: `copy_at` is at least `len`, and the mapping holds twice as much: the two do not overlap.
            unsafe {
                core::ptr::copy_nonoverlapping(self.addr as *const u8, (self.addr + self.copy_at) as *mut u8, self.len as usize)
            }
        }
    }
    /// Copies to the program's memory at `to` what differs from the copy; whether all of it could be written.
    #[must_use]
    pub fn copy_changes(&self, to: u64) -> bool {
        assert!(self.copy_at != 0, "there is a copy to compare with");
        // SAFETY: `len` initialised bytes of our mapping, which nobody changes any more.
        let now = unsafe { core::slice::from_raw_parts(self.addr as *const u8, self.len as usize) };
        // SAFETY: as above; the copy lies behind.
        let before = unsafe { core::slice::from_raw_parts((self.addr + self.copy_at) as *const u8, self.len as usize) };
        let mut at = 0;
        while let Some(start) = (at..now.len()).find(|&i| now[i] != before[i]) {
            let end = (start..now.len()).find(|&i| now[i] == before[i]).unwrap_or(now.len());
            if !self.copy_out(start as u64, to + start as u64, (end - start) as u64) {
                return false;
            }
            at = end;
        }
        true
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
        self.copy_in_some(at, from, len) == len
    }
    /// The same; how many bytes could be read.
    #[must_use]
    pub fn copy_in_some(&self, at: u64, from: u64, len: u64) -> u64 {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len));
        copy_pinned(self.mem, self.addr + at, from, len, from, Access::Read)
    }
    /// Copies `len` bytes at `at` to the program's memory at `to`; whether all could be written.
    #[must_use]
    pub fn copy_out(&self, at: u64, to: u64, len: u64) -> bool {
        self.copy_out_some(at, to, len) == len
    }
    /// The same; how many bytes could be written.
    #[must_use]
    pub fn copy_out_some(&self, at: u64, to: u64, len: u64) -> u64 {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len));
        copy_pinned(self.mem, to, self.addr + at, len, to, Access::Write)
    }
    /// Stores a word of ours at `at`.
    pub fn store(&self, at: u64, word: u64) {
        assert!(at + 8 <= self.len);
        // SAFETY: the eight bytes lie in the mapping, which is ours alone.
        unsafe { ((self.addr + at) as *mut u64).write_unaligned(word) }
    }
}

impl<M: Memory> Drop for Scratch<'_, M> {
    fn drop(&mut self) {
        let mapped = if self.copy_at == 0 { self.len } else { self.copy_at * 2 };
        self.mem.own(libc::SYS_munmap as u64, &[self.addr, mapped, 0, 0, 0, 0]);
    }
}

fn map(mem: &impl Memory, len: u64) -> Result<u64, i64> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
    let addr = mem.own(libc::SYS_mmap as u64, &[own::place(len), len, protection, flags, u64::MAX, 0]);
    if addr < 0 { Err(addr) } else { Ok(addr as u64) }
}

impl<M: Memory> core::fmt::Debug for Scratch<'_, M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Scratch({} bytes at {:#x})", self.len, self.addr)
    }
}

/// Copies in steps, each with its managed side (`managed`, which is `to` or `from`) pinned; how many bytes that went.
fn copy_pinned(mem: &impl Memory, to: u64, from: u64, len: u64, managed: u64, access: Access) -> u64 {
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let (mut done, mut most) = (0, STEP);
    while done < len {
        let want = most.min(len - done);
        // What cannot be pinned is tried all the same: a fault on it is resolved, or ends the copy.
        let step = match mem.pin(&mut pins, managed + done, want, access) {
            0 => want.min(PAGE),
            safe => safe.min(want),
        };
        // SAFETY: one side is scratch memory with room (checked by the callers), the other the program's.
        let copied = unsafe { careful_copy((to + done) as *mut u8, from + done, step as usize) };
        pins.release();
        let to_the_page = PAGE - (managed + done) % PAGE;
        match copied {
            true => done += step,
            // Memory ends at the end of a page: up to there it can be copied.
            false if step > to_the_page => most = to_the_page,
            false => break,
        }
        if most < STEP && copied {
            most = PAGE;
        }
    }
    done
}

/// Copies between two places of the program, both pinned, up to the end of a page of one of them: there its memory may
/// end. 0 bytes if one cannot be accessed, else how many.
pub fn copy_between(mem: &impl Memory, to: u64, from: u64, len: u64) -> u64 {
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let want = len.min(PAGE - to % PAGE).min(PAGE - from % PAGE);
    // Two pages find room in any set.
    mem.pin(&mut pins, from, want, Access::Read);
    mem.pin(&mut pins, to, want, Access::Write);
    // SAFETY: both sides are the program's memory.
    let copied = unsafe { careful_copy(to as *mut u8, from, want as usize) };
    if copied { want } else { 0 }
}

/// The errno for memory of the program that cannot be accessed.
pub const FAULT: i64 = errno(libc::EFAULT);
