//! What a manager and one process share: the locks of that process, and what each must know of the other. A memfd.
//!
//! ```text
//!  0        numbers: what the manager says, how much is locked, where the memory is mapped
//!  32 KiB   a byte a page, the regions one behind the other ([`Locks`])
//! ```
//!
//! The manager makes it, and seals its size. Each may find any numbers in it: the other one may write what it likes. So nothing that one of them owns hangs on them.

use core::ptr::NonNull;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use farshore_core::limits::PAGE_SIZE;
use farshore_core::locks::Locks;
use farshore_sys::raw::Errno;
use farshore_sys::vm::{self, advice, map, prot};
use rustix::fs::{MemfdFlags, SealFlags};

use crate::wire::REGIONS_MAX;

const HEAD: usize = 32 << 10;
const STATE: usize = 0;
const ALLOWED: usize = 1;
const TAKEN: usize = 2;
const REGIONS: usize = 3;
const FIRST: usize = 8;
const EACH: usize = 3;

const _: () = assert!((FIRST + REGIONS_MAX * EACH) * 8 <= HEAD);

/// What the manager says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Nothing yet.
    New,
    /// Locks hold.
    Served,
    /// The process is cut off: its locks hold no more.
    CutOff,
    /// The memory has no manager any more, and all its pages. Nothing leaves.
    Free,
}

/// Where one region is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// The region's address in the virtual machine's monitor.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Its address in the process that has the locks.
    pub at: u64,
}

/// The table of one process.
#[derive(Debug)]
pub struct Table {
    file: OwnedFd,
    base: NonNull<u8>,
    bytes: usize,
    /// Where it is mapped: not in a child.
    process: u32,
}

// SAFETY: the mapping is the value's own until it is dropped, and is reached through atomics alone.
unsafe impl Send for Table {}
// SAFETY: as for Send.
unsafe impl Sync for Table {}

impl Table {
    /// A fresh one, for so many pages.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn make(pages: usize) -> Result<Table, Errno> {
        let wrong = |errno: rustix::io::Errno| Errno(errno.raw_os_error());
        let file = rustix::fs::memfd_create("farshore-locks", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(wrong)?;
        let bytes = pages.checked_add(HEAD).and_then(|bytes| bytes.checked_next_multiple_of(PAGE_SIZE)).ok_or(Errno::ENOMEM)?;
        rustix::fs::ftruncate(&file, bytes as u64).map_err(wrong)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map_err(wrong)?;
        Table::open(file)
    }

    /// One that somebody else has made.
    ///
    /// # Errors
    /// `EINVAL`: it is none. What the kernel answers.
    pub fn open(file: OwnedFd) -> Result<Table, Errno> {
        // Without the seal, memory that is mapped could go.
        let is_sealed = rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        let size = rustix::fs::fstat(&file).map_or(0, |stat| stat.st_size);
        let bytes = usize::try_from(size).ok().filter(|bytes| is_sealed && *bytes >= HEAD).ok_or(Errno::EINVAL)?;
        let raw = std::os::fd::AsRawFd::as_raw_fd(&file);
        // SAFETY: new memory, at a place that the kernel chooses.
        let base = unsafe { vm::mmap(0, bytes as u64, prot::READ | prot::WRITE, map::SHARED | map::NORESERVE, raw, 0) }?;
        // SAFETY: the memory that was just mapped; a child that is forked has none of it.
        let _ = unsafe { vm::madvise(base, bytes as u64, advice::DONTFORK) };
        let base = NonNull::new(core::ptr::with_exposed_provenance_mut(base as usize)).ok_or(Errno::ENOMEM)?;
        Ok(Table { file, base, bytes, process: std::process::id() })
    }

    fn numbers(&self) -> &[AtomicU64] {
        // SAFETY: the head is mapped as long as `self` is there, aligned to pages, and its file cannot become shorter; any bytes are atomic numbers.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr().cast(), HEAD / 8) }
    }

    /// The locks.
    pub fn locks(&self) -> Locks<'_> {
        // SAFETY: as above, for what lies behind the head.
        let counts = unsafe { core::slice::from_raw_parts(self.base.as_ptr().add(HEAD).cast::<AtomicU8>(), self.bytes - HEAD) };
        Locks::new(counts)
    }

    /// How many pages it has room for.
    pub fn pages(&self) -> usize {
        self.bytes - HEAD
    }

    /// What the manager says.
    pub fn state(&self) -> State {
        match self.numbers()[STATE].load(Ordering::SeqCst) {
            0 => State::New,
            1 => State::Served,
            3 => State::Free,
            _ => State::CutOff,
        }
    }

    /// Says it.
    pub fn set_state(&self, to: State) {
        self.numbers()[STATE].store(to as u64, Ordering::SeqCst);
    }

    /// So many pages may be locked.
    pub fn allowed(&self) -> u64 {
        self.numbers()[ALLOWED].load(Ordering::Relaxed)
    }

    /// So many may be from now on.
    pub fn allow(&self, pages: u64) {
        self.numbers()[ALLOWED].store(pages, Ordering::Relaxed);
    }

    /// `pages` locks more, if they are allowed.
    pub fn take(&self, pages: u64) -> bool {
        let allowed = if self.state() == State::Free { u64::MAX } else { self.allowed() };
        let more = |now: u64| now.checked_add(pages).filter(|sum| *sum <= allowed);
        self.numbers()[TAKEN].fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// So many locks fewer.
    pub fn give(&self, pages: u64) {
        let _ = self.numbers()[TAKEN].fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| now.checked_sub(pages));
    }

    /// Writes down where the memory is mapped, for whoever takes over from the manager.
    pub fn note(&self, regions: &[Mapped]) {
        for (n, Mapped { address, bytes, at }) in regions.iter().enumerate() {
            for (place, number) in [address, bytes, at].into_iter().enumerate() {
                self.numbers()[FIRST + n * EACH + place].store(*number, Ordering::Relaxed);
            }
        }
        self.numbers()[REGIONS].store(regions.len() as u64, Ordering::Release);
    }

    /// What was written down, or what the process has made of it.
    pub fn noted(&self) -> Vec<Mapped> {
        let count = (self.numbers()[REGIONS].load(Ordering::Acquire) as usize).min(REGIONS_MAX);
        let number = |n: usize, place: usize| self.numbers()[FIRST + n * EACH + place].load(Ordering::Relaxed);
        (0..count).map(|n| Mapped { address: number(n, 0), bytes: number(n, 1), at: number(n, 2) }).collect()
    }
}

impl AsFd for Table {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        // SAFETY: the mapping is ours, and whoever has borrowed from it has borrowed `self`.
        let _ = unsafe { vm::munmap(self.base.as_ptr().addr() as u64, self.bytes as u64) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_see_the_same() {
        let ours = Table::make(5000).expect("there is memory");
        let theirs = Table::open(ours.as_fd().try_clone_to_owned().expect("a number")).expect("it is one");
        assert!(theirs.pages() >= 5000 && theirs.state() == State::New);
        ours.set_state(State::Served);
        ours.allow(3);
        assert!(theirs.take(2) && !theirs.take(2) && theirs.take(1));
        theirs.give(3);
        theirs.give(1);
        assert!(theirs.take(3), "what was never taken cannot be given back");
        theirs.locks().lock(4999, 1).expect("there is room");
        assert!(ours.locks().holds(4999) && ours.locks().count() == 1);
        let regions = [Mapped { address: 1, bytes: 2, at: 3 }, Mapped { address: 4, bytes: 5, at: 6 }];
        ours.note(&regions);
        assert_eq!(theirs.noted(), regions);
        ours.set_state(State::Free);
        assert!(theirs.state() == State::Free && theirs.take(1 << 40));
        ours.set_state(State::CutOff);
        assert_eq!(theirs.state(), State::CutOff);
    }

    #[test]
    fn what_may_become_shorter_is_refused() {
        let file = rustix::fs::memfd_create("other", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("there is memory");
        rustix::fs::ftruncate(&file, 1 << 20).expect("it grows");
        assert!(Table::open(file).is_err());
        let table = Table::make(1).expect("there is memory");
        assert!(rustix::fs::ftruncate(&table, 4096).is_err());
    }
}
