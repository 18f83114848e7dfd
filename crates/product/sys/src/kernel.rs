//! The engine's [`Kernel`] on a userfaultfd.
//!
//! # Which call does what, and why
//!
//! A TLB flush interrupts every core that runs the process: some microseconds, ten in a virtual machine. So:
//!
//! * **in**: `UFFDIO_COPY`, which fills an empty place in the page table and never flushes (about 1 µs). `UFFDIO_MOVE` was
//!   measured and dropped: it must flush the place it takes the page from, 0.8 µs alone but 10 µs when another thread runs.
//! * **in, a whole granule that nobody has touched**: `UFFDIO_MOVE` of a huge page that was made beside it ([`crate::huge`]): one flush for 512 pages.
//! * **out**: one ranged `UFFDIO_WRITEPROTECT` before the bytes are copied (one flush for a batch), one vectored
//!   `process_madvise(MADV_DONTNEED)` after (one flush for a batch; neighbours are merged into one range).
//!
//! Everything works on memory that the program itself may not write or read (`PROT_READ`, `PROT_NONE`): userfaultfd's
//! calls fill page tables whatever the protection; bytes of unreadable pages are read through `/proc/self/mem`.
//!
//! # When the program changes its address space meanwhile
//!
//! A page may be unmapped by the program at any moment between an evictor's look and its call. Then the kernel answers
//! `ENOENT` or `ENOMEM`, which is [`KernelError::Gone`]; a copy out of such a page ends in the handlers' [`crate::guarded::fixup`], and is `Gone` too.

use crate::guarded;
use crate::huge::{HUGE, Source, Taken};
use crate::idle::Tracking;
use crate::pagemap::{Categories, Pagemap, Query, Region};
use crate::raw::{self, Errno};
use crate::samples::{self, Samples};
use crate::tls;
use crate::uffd::{Note, Uffd, UffdError};
use crate::vm::{self, AdviseError, Range, SelfAdvice, SelfMem, advice};
use core::sync::atomic::{AtomicU64, Ordering};
use farshore_core::limits::GRANULE_PAGES;
use farshore_core::limits::{PAGE_SHIFT, PAGE_SIZE};
use farshore_core::page::{GranuleId, Page, PageRange};
use farshore_core::seams::{Flushes, HugePages, Kernel, KernelError, PageBuf, Protect, Use, Watched};
use farshore_core::sync::Padded;

const PAGE: u64 = PAGE_SIZE as u64;

/// Pages of the source of zeros: one call maps at most so many.
const ZERO_PAGES: usize = 64;

/// Zeros to copy from. In `.bss`: its pages are the kernel's page of zeros, no memory. Not `const` data, which would be
/// 256 KiB in the library's file.
#[repr(transparent)]
struct Zeros(core::cell::UnsafeCell<[PageBuf; ZERO_PAGES]>);
// SAFETY: nobody ever writes it.
unsafe impl Sync for Zeros {}
static ZEROS: Zeros = Zeros(core::cell::UnsafeCell::new([const { PageBuf::ZERO }; ZERO_PAGES]));

/// How often a call is repeated that the kernel refuses for the moment (`EAGAIN`) without progress, before the engine hears of it.
const AGAIN_MAX: u32 = 64;

/// Ranges of one `process_madvise`: more than a batch (256 pages) needs. 8 KiB of stack.
const UNMAP_RANGES: usize = 512;

/// The real kernel.
#[derive(Debug)]
pub struct LinuxKernel {
    uffd: Uffd,
    advice: SelfAdvice,
    memory: SelfMem,
    wake: bool,
    shortage: fn(),
    huge: Option<HugeWay>,
    tracking: Tracking,
    samples: Samples,
    calls: Padded<Calls>,
}

/// Calls that flush TLBs. In a line of its own: faults read what lies beside it.
#[derive(Debug)]
struct Calls {
    protects: AtomicU64,
    unmaps: AtomicU64,
    ranges: AtomicU64,
}

impl Calls {
    const fn none() -> Padded<Calls> {
        Padded(Calls { protects: AtomicU64::new(0), unmaps: AtomicU64::new(0), ranges: AtomicU64::new(0) })
    }

    /// So many calls have unmapped so many ranges.
    fn unmapped(&self, calls: usize, ranges: usize) {
        self.unmaps.fetch_add(calls as u64, Ordering::Relaxed);
        self.ranges.fetch_add(ranges as u64, Ordering::Relaxed);
    }
}

/// How huge pages come.
#[derive(Debug)]
pub struct HugeWay {
    /// Where they are made.
    pub source: &'static Source,
    /// Tells whether anything is where one is to go, and whether it has come as one. This process'.
    pub pagemap: Pagemap,
}

impl LinuxKernel {
    /// Takes a userfaultfd. `wake`: threads (or the kernel for them) wait for pages, so each change wakes them: true in the
    /// poll mode, false with the SIGBUS feature, where nobody waits in the kernel.
    ///
    /// # Errors
    /// What opening `/proc/self/mem` answers.
    pub fn new(uffd: Uffd, wake: bool) -> Result<LinuxKernel, Errno> {
        for page in 0..ZERO_PAGES {
            let byte = ZEROS.0.get().cast::<u8>().wrapping_add(page * PAGE_SIZE);
            // So that the kernel finds the source mapped when it copies.
            // SAFETY: inside the static, which nobody writes.
            unsafe { byte.read_volatile() };
        }
        Ok(LinuxKernel {
            uffd,
            advice: SelfAdvice::probe(),
            memory: SelfMem::open()?,
            wake,
            shortage: || {},
            huge: None,
            tracking: Tracking::new(),
            samples: Samples::new(|_| false),
            calls: Calls::none(),
        })
    }

    /// As [`LinuxKernel::new`], with ways and descriptors of the caller's choice (moved to high numbers, say).
    pub const fn with_parts(uffd: Uffd, advice: SelfAdvice, memory: SelfMem, wake: bool) -> LinuxKernel {
        LinuxKernel {
            uffd,
            advice,
            memory,
            wake,
            shortage: || {},
            huge: None,
            tracking: Tracking::new(),
            samples: Samples::new(|_| false),
            calls: Calls::none(),
        }
    }

    /// Calls `shortage` when a fault has to wait for a frame: on its thread, with nothing in its hands.
    #[must_use]
    pub fn on_shortage(self, shortage: fn()) -> LinuxKernel {
        LinuxKernel { shortage, ..self }
    }

    /// Fresh memory may come as huge pages.
    #[must_use]
    pub fn with_huge_pages(mut self, way: Option<HugeWay>) -> LinuxKernel {
        self.huge = way;
        self
    }

    /// These threads are our own: what they use says nothing of the program.
    #[must_use]
    pub fn with_own_threads(mut self, ours: fn(u32) -> bool) -> LinuxKernel {
        self.samples = Samples::new(ours);
        self
    }

    /// How huge pages come, if they do.
    pub const fn huge_way(&self) -> Option<&HugeWay> {
        self.huge.as_ref()
    }

    /// How the kernel tells which pages are used.
    pub const fn tracking(&self) -> &Tracking {
        &self.tracking
    }

    /// How the processor shows pages that are used.
    pub const fn samples(&self) -> &Samples {
        &self.samples
    }

    /// The userfaultfd, to register memory with and to read messages from.
    pub const fn uffd(&self) -> &Uffd {
        &self.uffd
    }
    /// How pages are thrown away.
    pub const fn advice(&self) -> &SelfAdvice {
        &self.advice
    }
    /// How unreadable pages are read.
    pub const fn memory(&self) -> &SelfMem {
        &self.memory
    }

    /// One call that maps up to `count` pages with what lies from `source` on; how many it did, at least 1.
    ///
    /// # Safety
    /// So many pages can be read there, and nobody writes them.
    #[inline]
    unsafe fn copy_in(&self, first: Page, source: u64, count: u64, protect: Protect) -> Result<u64, KernelError> {
        Self::copied(count, || {
            // SAFETY: our own condition.
            unsafe { self.uffd.copy(first.addr(), source, count * PAGE, protect == Protect::WriteProtected, self.wake) }
        })
    }

    /// As [`Kernel::map_run`], with a note ([`Uffd::copy_noted`]).
    ///
    /// # Errors
    /// As [`Kernel::map_run`].
    pub fn map_run_noted(&self, note: &Note, first: Page, bytes: &[PageBuf], protect: Protect) -> Result<u64, KernelError> {
        let (source, count) = (bytes.as_ptr() as u64, bytes.len() as u64);
        Self::copied(count, || {
            let protect = protect == Protect::WriteProtected;
            // SAFETY: `bytes` is borrowed, so it is initialised and not being written.
            unsafe { self.uffd.copy_noted(note, first.addr(), source, count * PAGE, protect, self.wake) }
        })
    }

    /// What came of a copy of `count` pages.
    #[inline]
    fn copied(count: u64, copy: impl Fn() -> Result<(), UffdError>) -> Result<u64, KernelError> {
        let mut progress = 0;
        let answer = again(|| {
            let answer = copy();
            if let Err(UffdError::Again { done }) = answer {
                progress = done >> PAGE_SHIFT;
            }
            answer
        });
        match answer {
            Ok(()) => Ok(count),
            // A part: the next call meets what stopped this one first, and tells what it was.
            Err(KernelError::Again) if progress > 0 => Ok(progress),
            Err(why) => Err(why),
        }
    }

    /// Moves what was made at `place` to a granule that is absent.
    fn move_in(&self, pagemap: &Pagemap, granule: GranuleId, place: u64) -> Taken<KernelError> {
        let (first, pages) = (granule.first(), GRANULE_PAGES as u64);
        match look_for(pagemap, place, Categories::HUGE) {
            Ok(Found::Some) => {}
            Ok(Found::Nothing) => return Taken::Small(KernelError::Refused),
            Err(why) => return Taken::Kept(why),
        }
        if let Err(why) = empty_table(pagemap, first) {
            return Taken::Kept(why);
        }
        let mut done = pages;
        let moved = again(|| {
            // SAFETY: `place` is memory of ours that nobody else uses; what is moved to is absent, and its owner's to fill.
            match unsafe { self.uffd.move_pages(first.addr(), place, HUGE, false, self.wake) } {
                // In pieces, and not all.
                Err(UffdError::Again { done: bytes }) if bytes > 0 => {
                    done = bytes >> PAGE_SHIFT;
                    Ok(())
                }
                other => other.map(|_| ()),
            }
        });
        if let Err(why) = moved {
            return Taken::Kept(why);
        }
        let whole = done == pages;
        while done < pages {
            match self.map_zeros(first.plus(done), pages - done) {
                Ok(more) => done += more,
                Err(why) => {
                    // Only what has just come: it is the caller's, and nothing but zeros.
                    // SAFETY: as said.
                    let undone = unsafe { vm::madvise(first.addr(), done << PAGE_SHIFT, advice::DONTNEED) };
                    return Taken::Spoilt(undone.map_err(unmap_error).err().unwrap_or(why));
                }
            }
        }
        if whole && look_for(pagemap, first.addr(), Categories::HUGE) == Ok(Found::Some) { Taken::Huge } else { Taken::Pieces }
    }

    /// Protects a range of which a part is not registered: halves it until the parts are pure.
    fn protect_parts(&self, range: PageRange) -> Result<Registered, KernelError> {
        match again(|| self.uffd.protect(range.start.addr(), range.bytes())) {
            Ok(()) => {
                self.calls.0.protects.fetch_add(1, Ordering::Relaxed);
                Ok(Registered::Some)
            }
            Err(KernelError::Gone) if range.len() > 1 => {
                let middle = range.start.plus(range.len() / 2);
                let first = self.protect_parts(PageRange { start: range.start, end: middle })?;
                let second = self.protect_parts(PageRange { start: middle, end: range.end })?;
                Ok(first.max(second))
            }
            Err(KernelError::Gone) => Ok(Registered::Nothing),
            Err(why) => Err(why),
        }
    }

    /// Unmaps pages one at a time from `first` on, to find which of them fails, and why.
    fn unmap_singly(&self, pages: &[Page], first: usize) -> Result<(), (usize, KernelError)> {
        for (n, page) in pages.iter().enumerate().skip(first) {
            // SAFETY: the caller of `Kernel::unmap` owns the pages' words and has saved what must be.
            unsafe { vm::madvise(page.addr(), PAGE, advice::DONTNEED) }.map_err(|errno| (n, unmap_error(errno)))?;
            self.calls.0.unmapped(1, 1);
        }
        Ok(())
    }
}

/// How much of a range is registered. In this order: of two parts the greater one holds for both.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Registered {
    Nothing,
    /// A part, or all of it.
    Some,
}

/// A request's failure, as the engine sorts them.
const fn kernel_error(error: UffdError) -> KernelError {
    match error {
        UffdError::Exists => KernelError::Exists,
        UffdError::NotRegistered | UffdError::ProcessGone => KernelError::Gone,
        UffdError::Again { .. } => KernelError::Again,
        UffdError::Busy => KernelError::Refused,
        UffdError::NoMemory => KernelError::NoMemory,
        UffdError::BadAddress | UffdError::Other(_) => KernelError::Other(error.errno().0),
    }
}

/// A failed `MADV_DONTNEED`: `ENOMEM` is memory that is not mapped, `EINVAL` such that may not be thrown away (locked).
const fn unmap_error(errno: Errno) -> KernelError {
    match errno {
        Errno::ENOMEM => KernelError::Gone,
        Errno::EINVAL => KernelError::Refused,
        Errno::EAGAIN | Errno::EINTR => KernelError::Again,
        other => KernelError::Other(other.0),
    }
}

/// Repeats a request while the kernel says "again" without having done anything, within bounds.
fn again(mut request: impl FnMut() -> Result<(), UffdError>) -> Result<(), KernelError> {
    let mut left = AGAIN_MAX;
    loop {
        match request() {
            Ok(()) => return Ok(()),
            Err(UffdError::Again { done: 0 }) if left > 0 => left -= 1,
            Err(UffdError::Other(Errno::EINTR)) if left > 0 => left -= 1,
            Err(error) => return Err(kernel_error(error)),
        }
        core::hint::spin_loop();
    }
}

/// Takes the page table away in which nothing is. The fault has left it, and a huge page comes in pieces where there is one. The kernel does so when all that it could hold is
/// thrown away (Linux 6.14). All of the granule is the caller's, and nothing should be there; but where a mistake would cost bytes the kernel is asked.
fn empty_table(pagemap: &Pagemap, first: Page) -> Result<(), KernelError> {
    if look_for(pagemap, first.addr(), Categories::PRESENT.with(Categories::SWAPPED))? == Found::Some {
        return Err(KernelError::Exists);
    }
    // SAFETY: memory that is registered, in which there is nothing: nobody but its owner, who has called, can bring anything there.
    unsafe { vm::madvise(first.addr(), HUGE, advice::DONTNEED) }.map_err(unmap_error)
}

/// Whether there is a page that was looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    Nothing,
    Some,
}

/// Looks for a page that is one of these in the 2 MiB from `start` on.
fn look_for(pagemap: &Pagemap, start: u64, any: Categories) -> Result<Found, KernelError> {
    let mut regions = [Region::default(); 1];
    let query = Query { any, report: any, ..Query::default() };
    match pagemap.scan(start, start + HUGE, query, &mut regions) {
        Ok((0, _)) => Ok(Found::Nothing),
        Ok(_) => Ok(Found::Some),
        Err(errno) => Err(KernelError::Other(errno.0)),
    }
}

/// Merges neighbours of `pages` from `from` on into ranges; how many ranges, and the page after the last one taken.
fn merge(pages: &[Page], from: usize, ranges: &mut [Range; UNMAP_RANGES]) -> (usize, usize) {
    let (mut count, mut next) = (0usize, from);
    while next < pages.len() {
        let addr = pages[next].addr();
        match count.checked_sub(1).map(|last| &mut ranges[last]) {
            Some(last) if last.addr + last.len == addr => last.len += PAGE,
            _ if count == UNMAP_RANGES => break,
            _ => {
                ranges[count] = Range { addr, len: PAGE };
                count += 1;
            }
        }
        next += 1;
    }
    (count, next)
}

/// Pages in the first `done` ranges.
fn pages_in(ranges: &[Range], done: usize) -> usize {
    ranges[..done].iter().map(|range| (range.len >> PAGE_SHIFT) as usize).sum()
}

impl Kernel for LinuxKernel {
    fn map(&self, page: Page, bytes: &PageBuf, protect: Protect) -> Result<(), KernelError> {
        self.map_run(page, core::slice::from_ref(bytes), protect).map(|_| ())
    }

    fn map_run(&self, first: Page, bytes: &[PageBuf], protect: Protect) -> Result<u64, KernelError> {
        // SAFETY: `bytes` is borrowed, so it is initialised and not being written.
        unsafe { self.copy_in(first, bytes.as_ptr() as u64, bytes.len() as u64, protect) }
    }

    fn map_zeros(&self, first: Page, count: u64) -> Result<u64, KernelError> {
        let (mut done, mut most) = (0, ZERO_PAGES as u64);
        while done < count {
            let wanted = (count - done).min(most);
            // SAFETY: a static of ZERO_PAGES pages, of which nobody writes any.
            match unsafe { self.copy_in(first.plus(done), ZEROS.0.get() as u64, wanted, Protect::Writable) } {
                Ok(mapped) => done += mapped,
                // The kernel fills nothing if a part lies outside the mapping (a change of protection cuts a mapping in two).
                Err(KernelError::Gone) if wanted > 1 => most = wanted / 2,
                Err(_) if done > 0 => break,
                Err(why) => return Err(why),
            }
        }
        Ok(done)
    }

    fn huge_pages(&self) -> HugePages {
        self.huge.as_ref().map_or(HugePages::Never, |way| way.source.when())
    }

    fn map_huge(&self, granule: GranuleId) -> Result<(), KernelError> {
        let HugeWay { source, pagemap } = self.huge.as_ref().ok_or(KernelError::Refused)?;
        source.make(|place| self.move_in(pagemap, granule, place)).unwrap_or(Err(KernelError::Refused))
    }

    fn split_huge(&self, granule: GranuleId) {
        // The kernel splits a huge page of which a part is said to be cold. Any page may be a part of another one, or of none. What else it does to them does not
        // matter to us: they are about to leave.
        let mut ranges = [Range::default(); GRANULE_PAGES];
        for (range, page) in ranges.iter_mut().zip(granule.range().iter()) {
            *range = Range { addr: page.addr(), len: PAGE };
        }
        let mut rest = &ranges[..];
        // SAFETY: no byte changes.
        while let Err(failed) = unsafe { self.advice.advise(rest, advice::COLD) } {
            // Not mapped, or locked.
            rest = &rest[failed.done + 1..];
        }
    }

    fn protect(&self, range: PageRange) -> Result<(), KernelError> {
        if range.is_empty() {
            return Ok(());
        }
        // A range between two victims may hold memory that is not ours: what is ours is protected all the same.
        match self.protect_parts(range)? {
            Registered::Some => Ok(()),
            Registered::Nothing => Err(KernelError::Gone),
        }
    }

    fn unprotect(&self, page: Page) -> Result<(), KernelError> {
        again(|| self.uffd.unprotect(page.addr(), PAGE, self.wake))
    }

    fn copy_out(&self, page: Page, into: &mut PageBuf, readable: bool) -> Result<(), KernelError> {
        if !readable {
            return self.memory.read(page.addr(), &mut into.0).map_err(|_| KernelError::Refused);
        }
        let source = core::ptr::with_exposed_provenance::<u8>(page.addr() as usize);
        // SAFETY: 1. `into` is borrowed exclusively and a page long; 2. it is ours, so not the program's page; 3. the
        // engine copies pages that it has protected, and checks the word afterwards.
        unsafe { guarded::copy(into.0.as_mut_ptr(), source, PAGE_SIZE) }.map_err(|_| KernelError::Gone)
    }

    fn unmap(&self, pages: &[Page]) -> Result<(), (usize, KernelError)> {
        let mut ranges = [Range::default(); UNMAP_RANGES];
        let mut from = 0;
        while from < pages.len() {
            let (count, next) = merge(pages, from, &mut ranges);
            // SAFETY: the caller owns the pages' words and has saved what must be.
            match unsafe { self.advice.advise(&ranges[..count], advice::DONTNEED) } {
                Ok(()) => {
                    let calls = if self.advice.is_vectored() { 1 } else { count };
                    self.calls.0.unmapped(calls, count);
                    from = next;
                }
                Err(AdviseError { done, .. }) => {
                    // The range that failed may be done in part; doing a page twice is harmless since nobody else may map it.
                    self.unmap_singly(&pages[..next], from + pages_in(&ranges, done))?;
                    from = next;
                }
            }
        }
        Ok(())
    }

    fn watch(&self, pages: &mut [Watched], alone: bool, ns: u64) -> bool {
        // The kernel tells of unused pages too, and without a sample of each.
        self.tracking.mark(pages, alone).is_ok() || self.samples.mark(pages, ns).is_ok()
    }

    fn settle(&self) -> bool {
        // Samples come by themselves.
        !self.tracking.was_there() || self.tracking.settle()
    }

    fn uses(&self, pages: &[Watched], uses: &mut [Use]) {
        // All pages of a scan are watched in one way.
        if samples::are_marks(pages) {
            self.samples.noted(pages, uses);
        } else {
            self.tracking.noted(pages, uses);
        }
    }

    fn current_thread(&self) -> u64 {
        // No system call: this is asked in the middle of the eviction path.
        tls::thread_pointer()
    }

    fn flushes(&self) -> Flushes {
        let sum = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let calls = &self.calls.0;
        Flushes { protects: sum(&calls.protects), unmaps: sum(&calls.unmaps), ranges: sum(&calls.ranges) }
    }

    unsafe fn give_back(&self, memory: *mut PageBuf, count: usize) -> bool {
        // SAFETY: memory of ours that nobody uses, by this function's own condition; it is anonymous (`map_own`).
        unsafe { vm::madvise(memory as u64, (count * PAGE_SIZE) as u64, advice::DONTNEED) }.is_ok()
    }

    fn step_aside(&self) {
        raw::sched_yield();
    }

    fn short_of_frames(&self) {
        (self.shortage)();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_neighbours() {
        let pages: Vec<Page> = [5, 6, 7, 9, 8, 20].map(Page).into();
        let mut ranges = [Range::default(); UNMAP_RANGES];
        let (count, next) = merge(&pages, 0, &mut ranges);
        let seen: Vec<_> = ranges[..count].iter().map(|r| (r.addr / PAGE, r.len / PAGE)).collect();
        assert_eq!((seen, next), (vec![(5, 3), (9, 1), (8, 1), (20, 1)], 6));
        assert_eq!((pages_in(&ranges, 2), pages_in(&ranges, 0)), (4, 0));
        let scattered: Vec<Page> = (0..600).map(|n| Page(2 * n)).collect();
        assert_eq!(merge(&scattered, 0, &mut ranges), (UNMAP_RANGES, UNMAP_RANGES));
        assert_eq!(merge(&scattered, 512, &mut ranges), (88, 600));
    }
}
