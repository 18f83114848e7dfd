//! Address space: mmap and its relatives on plain addresses, `process_madvise` on oneself, `/proc/self/mem`.
//!
//! All functions are async-signal-safe, except those that open a descriptor at start-up.

use crate::fd::{self, Fd};
use crate::raw::{self, Errno, nr};

/// `PROT_*`.
pub mod prot {
    #![allow(missing_docs)]
    pub const NONE: u64 = 0;
    pub const READ: u64 = 1;
    pub const WRITE: u64 = 2;
    pub const EXEC: u64 = 4;
}

/// `MAP_*`.
pub mod map {
    #![allow(missing_docs)]
    pub const SHARED: u64 = 0x01;
    pub const PRIVATE: u64 = 0x02;
    pub const FIXED: u64 = 0x10;
    pub const ANONYMOUS: u64 = 0x20;
    pub const NORESERVE: u64 = 0x4000;
    pub const STACK: u64 = 0x20000;
    pub const FIXED_NOREPLACE: u64 = 0x100000;
}

/// `MREMAP_*`.
pub mod remap {
    #![allow(missing_docs)]
    pub const MAYMOVE: u64 = 1;
    pub const FIXED: u64 = 2;
    pub const DONTUNMAP: u64 = 4;
}

/// `MADV_*`.
pub mod advice {
    #![allow(missing_docs)]
    pub const WILLNEED: u64 = 3;
    pub const DONTNEED: u64 = 4;
    pub const FREE: u64 = 8;
    pub const DONTFORK: u64 = 10;
    pub const MERGEABLE: u64 = 12;
    pub const HUGEPAGE: u64 = 14;
    pub const NOHUGEPAGE: u64 = 15;
    pub const DONTDUMP: u64 = 16;
    pub const DODUMP: u64 = 17;
    pub const WIPEONFORK: u64 = 18;
    pub const COLD: u64 = 20;
    pub const PAGEOUT: u64 = 21;
    pub const POPULATE_READ: u64 = 22;
    pub const POPULATE_WRITE: u64 = 23;
}

/// mmap(2). `fd` is -1 for anonymous memory.
///
/// # Errors
/// What the kernel answers.
///
/// # Safety
/// With [`map::FIXED`], what is at `addr` is the caller's to replace.
#[inline]
pub unsafe fn mmap(addr: u64, len: u64, prot: u64, flags: u64, fd: i32, offset: u64) -> Result<u64, Errno> {
    // SAFETY: the caller's promise.
    unsafe { raw::syscall_result(nr::MMAP, [addr, len, prot, flags, fd as i64 as u64, offset]) }
}

/// munmap(2).
///
/// # Errors
/// What the kernel answers.
///
/// # Safety
/// Nobody uses the memory any more.
#[inline]
pub unsafe fn munmap(addr: u64, len: u64) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { raw::syscall_result(nr::MUNMAP, [addr, len, 0, 0, 0, 0]) }.map(|_| ())
}

/// mremap(2). `new_addr` counts only with [`remap::FIXED`].
///
/// # Errors
/// What the kernel answers.
///
/// # Safety
/// Nobody relies on the old place of memory that may move, nor on what a fixed new place holds.
#[inline]
pub unsafe fn mremap(old: u64, old_len: u64, new_len: u64, flags: u64, new_addr: u64) -> Result<u64, Errno> {
    // SAFETY: the caller's promise.
    unsafe { raw::syscall_result(nr::MREMAP, [old, old_len, new_len, flags, new_addr, 0]) }
}

/// mprotect(2).
///
/// # Errors
/// What the kernel answers.
///
/// # Safety
/// Nobody relies on an access that is taken away.
#[inline]
pub unsafe fn mprotect(addr: u64, len: u64, prot: u64) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { raw::syscall_result(nr::MPROTECT, [addr, len, prot, 0, 0, 0]) }.map(|_| ())
}

/// madvise(2).
///
/// # Errors
/// What the kernel answers. After `ENOMEM` (a part is not mapped) the rest has been advised.
///
/// # Safety
/// Nobody relies on bytes that the advice throws away.
#[inline]
pub unsafe fn madvise(addr: u64, len: u64, advice: u64) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { raw::syscall_result(nr::MADVISE, [addr, len, advice, 0, 0, 0]) }.map(|_| ())
}

/// brk(2): the end of the heap after the call, which is the old end if it could not be moved; 0 asks.
///
/// # Safety
/// Nobody uses memory above a lowered end.
#[inline]
pub unsafe fn brk(end: u64) -> u64 {
    // SAFETY: the caller's promise.
    (unsafe { raw::syscall(nr::BRK, [end, 0, 0, 0, 0, 0]) }) as u64
}

/// mincore(2) for tests and probes: whether any memory is mapped at this page.
pub fn is_mapped(page_addr: u64) -> bool {
    let mut resident = 0u8;
    // SAFETY: the kernel writes one byte for one page.
    unsafe { raw::syscall_result(nr::MINCORE, [page_addr, 1, &raw mut resident as u64, 0, 0, 0]) }.is_ok()
}

/// A range of bytes, laid out as `struct iovec`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Range {
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}

/// Most ranges of one call (`UIO_MAXIOV`).
const RANGES_MAX: usize = 1024;

/// The kernel's names for the calling process where a pidfd is wanted (Linux 6.14: `PIDFD_SELF_THREAD_GROUP`).
const PIDFD_SELF_PROCESS: i32 = -10001;

/// A pidfd of this process.
#[derive(Debug)]
pub enum SelfPidfd {
    /// The kernel's constant: needs no descriptor and is right in forked children too.
    Constant,
    /// A descriptor. A forked child must open its own.
    Open(Fd),
}

impl SelfPidfd {
    /// Opens a pidfd of this process.
    ///
    /// # Errors
    /// What pidfd_open(2) answers.
    pub fn open() -> Result<SelfPidfd, Errno> {
        // SAFETY: makes a descriptor, touches no memory.
        let raw = unsafe { raw::syscall_result(nr::PIDFD_OPEN, [raw::getpid().into(), 0, 0, 0, 0, 0]) }?;
        // SAFETY: the kernel has just made it for us.
        Ok(SelfPidfd::Open(unsafe { Fd::from_raw(raw as i32) }))
    }

    /// The number to pass to the kernel.
    pub const fn number(&self) -> i32 {
        match self {
            SelfPidfd::Constant => PIDFD_SELF_PROCESS,
            SelfPidfd::Open(fd) => fd.raw(),
        }
    }
}

/// Advice for many ranges at once.
///
/// Linux takes `MADV_DONTNEED` through `process_madvise` for the calling process since 6.13, and flushes the TLB once for all
/// ranges since 6.16. Where it does not, ranges are advised one by one: the same result, slower.
#[derive(Debug)]
pub struct SelfAdvice {
    pidfd: Option<SelfPidfd>,
}

/// An advice that failed at some range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdviseError {
    /// Ranges before it, which are done.
    pub done: usize,
    /// Why.
    pub errno: Errno,
}

impl SelfAdvice {
    /// Finds the best way by trying it on scratch memory. For start-up.
    pub fn probe() -> SelfAdvice {
        for pidfd in [Some(SelfPidfd::Constant), SelfPidfd::open().ok()].into_iter().flatten() {
            if try_out(&pidfd) == Ok(Effect::Done) {
                return SelfAdvice { pidfd: Some(pidfd) };
            }
        }
        SelfAdvice::one_by_one()
    }

    /// The same way for a forked child, which finds its parent's.
    pub fn for_child(&self) -> SelfAdvice {
        match &self.pidfd {
            Some(SelfPidfd::Constant) => SelfAdvice { pidfd: Some(SelfPidfd::Constant) },
            // The parent's descriptor names the parent.
            Some(SelfPidfd::Open(_)) => SelfAdvice { pidfd: SelfPidfd::open().ok() },
            None => SelfAdvice { pidfd: None },
        }
    }

    /// The way that every kernel has.
    pub const fn one_by_one() -> SelfAdvice {
        SelfAdvice { pidfd: None }
    }

    /// Whether many ranges take one call.
    pub const fn is_vectored(&self) -> bool {
        self.pidfd.is_some()
    }

    /// The descriptor in use, if there is one.
    pub const fn pidfd(&self) -> Option<&SelfPidfd> {
        self.pidfd.as_ref()
    }

    /// Advises all of `ranges`, in order.
    ///
    /// # Errors
    /// The range that failed: those before are done; of that one, with `ENOMEM`, what is mapped is.
    ///
    /// # Safety
    /// Nobody relies on bytes that the advice throws away.
    pub unsafe fn advise(&self, ranges: &[Range], advice: u64) -> Result<(), AdviseError> {
        let mut done = 0;
        while done < ranges.len() {
            let Some(pidfd) = self.pidfd.as_ref().filter(|_| ranges.len() - done > 1) else {
                let range = ranges[done];
                // SAFETY: the caller's promise.
                unsafe { madvise(range.addr, range.len, advice) }.map_err(|errno| AdviseError { done, errno })?;
                done += 1;
                continue;
            };
            let rest = &ranges[done..ranges.len().min(done + RANGES_MAX)];
            // SAFETY: the caller's promise.
            match unsafe { process_madvise(pidfd.number(), rest, advice) } {
                Ok(bytes) => match whole_ranges(rest, bytes) {
                    // The first range failed behind its first bytes: let madvise tell why.
                    // SAFETY: the caller's promise.
                    0 => match unsafe { madvise(rest[0].addr, rest[0].len, advice) } {
                        Ok(()) => done += 1,
                        Err(errno) => return Err(AdviseError { done, errno }),
                    },
                    whole => done += whole,
                },
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(AdviseError { done, errno }),
            }
        }
        Ok(())
    }
}

/// How many of `ranges` the first `bytes` bytes make up.
fn whole_ranges(ranges: &[Range], mut bytes: u64) -> usize {
    let mut whole = 0;
    for range in ranges {
        if range.len > bytes {
            break;
        }
        bytes -= range.len;
        whole += 1;
    }
    whole
}

/// process_madvise(2) as it is: bytes advised.
///
/// # Safety
/// Nobody relies on bytes that the advice throws away.
unsafe fn process_madvise(pidfd: i32, ranges: &[Range], advice: u64) -> Result<u64, Errno> {
    let args = [pidfd as i64 as u64, ranges.as_ptr() as u64, ranges.len() as u64, advice, 0, 0];
    // SAFETY: the kernel reads the ranges, which are borrowed. The memory they name is the caller's promise.
    unsafe { raw::syscall_result(nr::PROCESS_MADVISE, args) }
}

/// What advice that the kernel has accepted did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    /// Just what was asked for.
    Done,
    /// Something else, or nothing.
    Other,
}

/// Tries `process_madvise(DONTNEED)` on the outer two of three pages.
pub(crate) fn try_out(pidfd: &SelfPidfd) -> Result<Effect, Errno> {
    const PAGE: u64 = 4096;
    let flags = map::PRIVATE | map::ANONYMOUS;
    // SAFETY: new memory, at a place that the kernel chooses.
    let base = unsafe { mmap(0, 3 * PAGE, prot::READ | prot::WRITE, flags, -1, 0) }?;
    let byte = |page: u64| core::ptr::with_exposed_provenance_mut::<u8>((base + page * PAGE) as usize);
    for page in 0..3 {
        // SAFETY: inside the mapping just made, which nobody else knows.
        unsafe { byte(page).write_volatile(7) };
    }
    let outer = [Range { addr: base, len: PAGE }, Range { addr: base + 2 * PAGE, len: PAGE }];
    // SAFETY: our own scratch memory.
    let answer = unsafe { process_madvise(pidfd.number(), &outer, advice::DONTNEED) };
    // SAFETY: as above.
    let seen = [0, 1, 2].map(|page| unsafe { byte(page).read_volatile() });
    // SAFETY: our own scratch memory, unused from here on.
    unsafe { munmap(base, 3 * PAGE) }?;
    Ok(if answer? == 2 * PAGE && seen == [0, 7, 0] { Effect::Done } else { Effect::Other })
}

/// `/proc/self/mem`, kept open: reads this process' memory also where its own protection forbids it.
#[derive(Debug)]
pub struct SelfMem {
    /// None: unreadable pages cannot be read, so they stay where they are.
    fd: Option<Fd>,
}

impl SelfMem {
    /// Opens it. For start-up; a forked child must open its own.
    ///
    /// # Errors
    /// What open(2) answers; `ENOENT` too if what is found there is not this process' memory.
    pub fn open() -> Result<SelfMem, Errno> {
        let memory = SelfMem { fd: Some(fd::open(c"/proc/self/mem", fd::O_RDONLY | fd::O_NONBLOCK)?) };
        if memory.is_ours() { Ok(memory) } else { Err(Errno::ENOENT) }
    }

    /// Opens a forked child's. A process that has given up its rights may not have it, nor one whose root directory has no `/proc` by now: then every
    /// read fails, and unreadable pages stay where they are.
    pub fn for_child() -> SelfMem {
        SelfMem::open().unwrap_or(SelfMem { fd: None })
    }

    /// Whether it is this process' memory: it shows what was written just now, and again. Where the program has another root directory, a file of this name may
    /// be anything.
    fn is_ours(&self) -> bool {
        const GETRANDOM: u64 = 318;
        let mut challenge = [0u64; 2];
        let at = challenge.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: the kernel writes 16 bytes there. Without random numbers the two words differ all the same, below.
        let _ = unsafe { raw::syscall(GETRANDOM, [at, 16, 1, 0, 0, 0]) };
        let first = challenge[0];
        [first, !first].into_iter().all(|word| {
            let mut seen = [0; 8];
            // SAFETY: a live local, written so that the compiler does not keep it elsewhere.
            unsafe { core::ptr::write_volatile(&raw mut challenge[0], word) };
            self.read(at, &mut seen).is_ok() && u64::from_ne_bytes(seen) == word
        })
    }

    /// Reads `into.len()` bytes at `addr`.
    ///
    /// # Errors
    /// `EIO` or `EFAULT`: not mapped, absent, or the kernel (`proc_mem.force_override`, which some build as `ptrace`) forbids it.
    pub fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), Errno> {
        let Some(fd) = &self.fd else { return Err(Errno::EIO) };
        let mut done = 0;
        while done < into.len() {
            match fd::pread(fd, &mut into[done..], addr + done as u64)? {
                0 => return Err(Errno::EIO),
                got => done += got,
            }
        }
        Ok(())
    }

    /// The descriptor.
    pub const fn fd(&self) -> Option<&Fd> {
        self.fd.as_ref()
    }

    /// The same under a number of at least `lowest`, if there is one. See [`Fd::raise`].
    #[must_use]
    pub fn raise(self, lowest: i32) -> SelfMem {
        SelfMem { fd: self.fd.map(|fd| fd.raise(lowest).unwrap_or_else(|(fd, _)| fd)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_bytes_to_ranges() {
        let ranges = [Range { addr: 0, len: 4096 }, Range { addr: 8192, len: 8192 }, Range { addr: 0, len: 4096 }];
        assert_eq!([0, 4095, 4096, 12287, 12288, 16384].map(|bytes| whole_ranges(&ranges, bytes)), [0, 0, 1, 1, 2, 3]);
    }
}
