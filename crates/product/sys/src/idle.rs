//! Which pages are used, by the kernel's idle page tracking (`CONFIG_IDLE_PAGE_TRACKING`): for who may see frames, which is root.
//!
//! ```text
//!  mark    page ─pagemap─▶ frame ─kpageflags─▶ first frame of its huge page ─page_idle/bitmap─▶ "idle", and kpageflags says whether that was taken
//!  settle  all processors forget what they know of the page tables
//!  noted   is it idle still? ─ and does the page lie in that frame, and the frame in that huge page?
//! ```
//!
//! The kernel has a flag *idle* for each frame. Who sets it clears the accessed bits of the page tables that map the frame; who reads it has the kernel look at
//! them again. No page moves, and no byte changes. What follows from how the kernel does it:
//!
//! * **A processor does not set an accessed bit again** that it has in its TLB, and the kernel does not flush here. So [`Tracking::settle`] does, for all that
//!   was marked before: it throws two pages of ours away that lie so far apart that the kernel flushes all.
//! * **A huge page has one flag**, that of its first frame, and is used as a whole. It may be split meanwhile, and its parts are not idle then, or used apart:
//!   so it is looked at the end whether it is one still. Two scans that look at parts of one would hide uses from each other: the one that is `alone` in the
//!   granule marks it, and others join, as long as the flag is there: they hear of uses since it was marked.
//! * **Not every frame takes the flag**: it must be on a list of the kernel's for reclaim. A page that has just come is not for a while. `kpageflags` shows
//!   the flag as it is, so what did not take it is not watched.
//! * **A frame that is given back loses the flag.** So a page that has left and come back is not told as idle, wherever it lies.
//! * **While the kernel has a page locked** it does not look at page tables, and tells an old flag. So what is idle is asked twice.
//! * **Frames that others have mapped too** (after a fork, or shared) are left out, since others may set their flags.
//!
//! What others do to the accessed bits of a page is not seen: another tool that marks the same frames, DAMON, `clear_refs`, and the kernel's own aging by
//! generations (MGLRU) while it reclaims. A page that was used just before can seem unused then.
//!
//! Nothing is kept open: who loses the right to see frames, or the sight of `/sys`, does not see them any more.

use crate::fd::{self, Fd};
use crate::own::map_own;
use crate::pagemap::{Entry, Pagemap};
use crate::raw::{self, Errno, nr};
use crate::vm::{self, advice};
use core::ffi::CStr;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use farshore_core::page::Page;
use farshore_core::seams::{Use, Watched};

const BITMAP: &CStr = c"/sys/kernel/mm/page_idle/bitmap";
const FLAGS: &CStr = c"/proc/kpageflags";
const PAGEMAP: &CStr = c"/proc/self/pagemap";
/// What kind of file system they are on. (A program may have shut itself into a folder where a name leads elsewhere.)
pub(crate) const SYSFS: u64 = 0x6265_6572;
pub(crate) const PROC: u64 = 0x9fa0;

/// Pages that are asked for at a time.
const RUN: usize = 64;
/// Frames of a huge page, at most.
const BLOCK: usize = 512;

/// What `kpageflags` says of a frame.
mod kpf {
    pub const HEAD: u64 = 1 << 15;
    pub const TAIL: u64 = 1 << 16;
    /// One of `hugetlbfs`; one that several pages with the same bytes share.
    pub const ELSEWHERE: u64 = 1 << 17 | 1 << 21;
    pub const IDLE: u64 = 1 << 25;
}

/// Why pages cannot be watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lack {
    /// The kernel's file cannot be opened, or is something else.
    File(&'static CStr, Errno),
    /// The kernel does not tell this process in which frames its pages lie.
    Frames,
    /// There is no memory for what flushes the TLB.
    Memory(Errno),
    /// They are not to be, since a filter of system calls was installed.
    GivenUp,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lack::File(path, Errno::ENOENT) if *path == BITMAP => {
                f.write_str("no /sys/kernel/mm/page_idle: CONFIG_IDLE_PAGE_TRACKING")
            }
            Lack::File(path, why) => write!(f, "{}: {why}", path.to_str().unwrap_or_default()),
            Lack::Frames => f.write_str("/proc/self/pagemap hides frames: CAP_SYS_ADMIN"),
            Lack::Memory(why) => write!(f, "no memory to flush the TLB with: {why}"),
            Lack::GivenUp => f.write_str("a filter of system calls stops what it needs"),
        }
    }
}

/// What is asked of the kernel; tests answer in its place.
trait Frames {
    /// What the page table says of the pages from `first` on.
    fn entries(&self, first: Page, into: &mut [Entry]) -> Result<(), Errno>;
    /// What the frames from `first` on are.
    fn flags(&self, first: u64, into: &mut [u64]) -> Result<(), Errno>;
    /// Which of the 64 frames from `64 * word` on are idle, a bit each.
    fn idle(&self, word: u64) -> Result<u64, Errno>;
    /// Marks some of them as idle.
    fn mark(&self, word: u64, bits: u64) -> Result<(), Errno>;
}

/// How a page is known again: its frame, how far behind the first frame of its huge page that is, and whether the flag of that is another scan's.
#[derive(Clone, Copy)]
struct Mark(u64);

impl Mark {
    const SHIFT: u32 = 52;
    const JOINS: u64 = 1 << 63;

    fn new(frame: u64, behind: u64, joins: bool) -> Mark {
        Mark(frame | behind << Mark::SHIFT | if joins { Mark::JOINS } else { 0 })
    }
    fn frame(self) -> u64 {
        self.0 & ((1 << Mark::SHIFT) - 1)
    }
    fn behind(self) -> u64 {
        self.0 >> Mark::SHIFT & (BLOCK as u64 - 1)
    }
    /// The frame that has the flag.
    fn head(self) -> u64 {
        self.frame() - self.behind()
    }
}

/// The frames around one, which are asked for once.
struct Block {
    first: u64,
    flags: [u64; BLOCK],
}

impl Block {
    const NONE: Block = Block { first: u64::MAX, flags: [0; BLOCK] };

    /// How far a frame lies behind the first of its huge page. `None`: it is in none.
    fn behind(&mut self, kernel: &impl Frames, frame: u64) -> Option<u64> {
        let first = frame / BLOCK as u64 * BLOCK as u64;
        if self.first != first {
            self.first = u64::MAX;
            kernel.flags(first, &mut self.flags).ok()?;
            self.first = first;
        }
        let before = &self.flags[..=(frame - first) as usize];
        let behind = before.iter().rev().take_while(|&flags| flags & kpf::TAIL != 0).count();
        let head = before.len().checked_sub(behind + 1)?;
        (before[head] & kpf::HEAD != 0).then_some(behind as u64)
    }
}

/// What the page table says of some pages near each other.
struct Run {
    /// Which of those that were asked of.
    pages: Range<usize>,
    first: Page,
    entries: [Entry; RUN],
    there: bool,
}

impl Run {
    /// Asks of the pages from `from` on, in ascending order, as far as they are near. `None`: there is none.
    fn read(kernel: &impl Frames, pages: &[Watched], from: usize) -> Option<Run> {
        let first = pages.get(from)?.page;
        let near = |watched: &Watched| watched.page.0.checked_sub(first.0).filter(|&n| n < RUN as u64);
        let (mut until, mut last) = (from, 0);
        while let Some(n) = pages.get(until).and_then(near) {
            (until, last) = (until + 1, last.max(n as usize));
        }
        let mut entries = [Entry(0); RUN];
        let there = kernel.entries(first, &mut entries[..=last]).is_ok();
        Some(Run { pages: from..until, first, entries, there })
    }

    /// Of one of them, which is mapped.
    fn mapped(&self, page: Page) -> Option<Entry> {
        let entry = self.entries.get(page.0.checked_sub(self.first.0)? as usize)?;
        Some(*entry).filter(|entry| self.there && entry.present())
    }
}

/// Finds by what pages are known again: those that can be watched, and their mark.
fn find(kernel: &impl Frames, pages: &mut [Watched], alone: bool) -> Result<(), Lack> {
    let mut from = 0;
    while let Some(run) = Run::read(kernel, pages, from) {
        from = run.pages.end;
        for watched in &mut pages[run.pages.clone()] {
            let entry = run.mapped(watched.page);
            if entry.is_some_and(|entry| entry.frame() == 0) {
                return Err(Lack::Frames);
            }
            watched.mark = entry.filter(|entry| entry.exclusive() && !entry.of_file()).map_or(0, Entry::frame);
        }
    }
    let mut block = Block::NONE;
    for watched in pages.iter_mut().filter(|watched| watched.mark != 0) {
        let (frame, mut flags) = (watched.mark, [0]);
        let known = kernel.flags(frame, &mut flags).is_ok() && flags[0] & kpf::ELSEWHERE == 0;
        let is_huge = flags[0] & (kpf::HEAD | kpf::TAIL) != 0;
        let behind = if !known {
            None
        } else if !is_huge {
            Some(0)
        } else {
            // A huge page that lies as its addresses do is in one granule as a whole: who is alone there is so in all of it.
            let in_step = (frame ^ watched.page.0).is_multiple_of(BLOCK as u64);
            block.behind(kernel, frame).filter(|_| in_step)
        };
        watched.mark = behind.map_or(0, |behind| Mark::new(frame, behind, is_huge && !alone).0);
    }
    Ok(())
}

/// Marks pages, in ascending order, as idle. Those that cannot be, or did not take it, have no mark.
fn mark(kernel: &impl Frames, pages: &mut [Watched], alone: bool) -> Result<(), Lack> {
    find(kernel, pages, alone)?;
    let (mut word, mut bits) = (0, 0);
    for head in pages
        .iter()
        .filter(|watched| watched.mark != 0 && watched.mark & Mark::JOINS == 0)
        .map(|watched| Mark(watched.mark).head())
    {
        if head / 64 != word && bits != 0 {
            // What is not taken is seen below.
            let _ = kernel.mark(word, bits);
            bits = 0;
        }
        word = head / 64;
        bits |= 1 << (head % 64);
    }
    if bits != 0 {
        let _ = kernel.mark(word, bits);
    }
    let mut last = (0, false);
    for watched in pages.iter_mut().filter(|watched| watched.mark != 0) {
        let (head, mut flags) = (Mark(watched.mark).head(), [0]);
        if last.0 != head {
            last = (head, kernel.flags(head, &mut flags).is_ok() && flags[0] & kpf::IDLE != 0);
        }
        if !last.1 {
            watched.mark = 0;
        }
    }
    Ok(())
}

/// What has become of pages that were marked, in ascending order.
fn noted(kernel: &impl Frames, pages: &[Watched], uses: &mut [Use]) {
    uses.fill(Use::Unknown);
    for again in [false, true] {
        let mut last = (u64::MAX, Err(Errno::EIO));
        for (watched, used) in pages.iter().zip(&mut *uses).filter(|(watched, _)| watched.mark != 0) {
            if again && *used != Use::Unused {
                continue;
            }
            let head = Mark(watched.mark).head();
            if last.0 != head / 64 {
                last = (head / 64, kernel.idle(head / 64));
            }
            *used = match last.1 {
                Ok(bits) if bits >> (head % 64) & 1 != 0 => Use::Unused,
                Ok(_) => Use::Used,
                Err(_) => Use::Unknown,
            };
        }
    }
    // Then, whether that was told of these pages.
    let (mut block, mut from) = (Block::NONE, 0);
    while let Some(run) = Run::read(kernel, pages, from) {
        from = run.pages.end;
        let known = pages.iter().zip(&mut *uses).skip(run.pages.start).take(run.pages.len());
        for (watched, used) in known.filter(|(_, used)| **used != Use::Unknown) {
            let mark = Mark(watched.mark);
            let lies_there = run.mapped(watched.page).is_some_and(|entry| entry.frame() == mark.frame());
            if !lies_there || (mark.behind() > 0 && block.behind(kernel, mark.frame()) != Some(mark.behind())) {
                *used = Use::Unknown;
            }
        }
    }
}

/// The kernel's files, while they are used.
struct Files {
    bitmap: Fd,
    flags: Fd,
    pagemap: Pagemap,
}

/// Opens a file of the kernel's, or a folder.
pub(crate) fn open(path: &'static CStr, flags: u64, kind: u64) -> Result<Fd, Lack> {
    let lacks = |why| Lack::File(path, why);
    let file = fd::open(path, flags | fd::O_NONBLOCK).map_err(lacks)?;
    // struct statfs, of which the kind is the first word.
    let mut about = [0u64; 15];
    // SAFETY: the kernel writes one struct statfs, which is as large as the buffer.
    unsafe { raw::syscall_result(nr::FSTATFS, [file.arg(), about.as_mut_ptr() as u64, 0, 0, 0, 0]) }.map_err(lacks)?;
    if about[0] == kind { Ok(file) } else { Err(lacks(Errno::ENODEV)) }
}

impl Files {
    fn open() -> Result<Files, Lack> {
        let bitmap = open(BITMAP, fd::O_RDWR, SYSFS)?;
        let flags = open(FLAGS, fd::O_RDONLY, PROC)?;
        let pagemap = Pagemap::of(open(PAGEMAP, fd::O_RDONLY, PROC)?);
        Ok(Files { bitmap, flags, pagemap })
    }
}

impl Frames for Files {
    fn entries(&self, first: Page, into: &mut [Entry]) -> Result<(), Errno> {
        self.pagemap.entries(first.addr(), into)
    }

    fn flags(&self, first: u64, into: &mut [u64]) -> Result<(), Errno> {
        let bytes = size_of_val(into);
        // SAFETY: numbers, whose bytes may have any value; borrowed for the call alone.
        let room = unsafe { core::slice::from_raw_parts_mut(into.as_mut_ptr().cast::<u8>(), bytes) };
        match fd::pread(&self.flags, room, first * 8)? {
            read if read == bytes => Ok(()),
            _ => Err(Errno::EIO),
        }
    }

    fn idle(&self, word: u64) -> Result<u64, Errno> {
        let mut bits = [0; 8];
        match fd::pread(&self.bitmap, &mut bits, word * 8)? {
            8 => Ok(u64::from_ne_bytes(bits)),
            _ => Err(Errno::EIO),
        }
    }

    fn mark(&self, word: u64, bits: u64) -> Result<(), Errno> {
        let bits = bits.to_ne_bytes();
        // SAFETY: the kernel reads 8 bytes. What it changes are flags of its own, and accessed bits.
        unsafe { raw::syscall_retry(nr::PWRITE64, [self.bitmap.arg(), bits.as_ptr() as u64, 8, word * 8, 0, 0]) }.map(drop)
    }
}

/// Pages at either end of this are thrown away to flush the TLB: the kernel flushes all of it where single pages of such a range would take longer (33 pages).
const SCRATCH: u64 = 256 * 4096;
/// Where that is; 0: nowhere yet. A forked child has a copy.
static SCRATCH_AT: AtomicU64 = AtomicU64::new(0);
/// No page is watched any more. A forked child has the filter too.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// Makes that memory, if there is none.
fn have_scratch() -> Result<(), Lack> {
    if SCRATCH_AT.load(Ordering::Acquire) != 0 {
        return Ok(());
    }
    let at = map_own(SCRATCH as usize).map_err(Lack::Memory)?.as_ptr().expose_provenance() as u64;
    // A huge page would be one page to flush. Where the kernel has none there is nothing to refuse.
    // SAFETY: memory of our own, just mapped.
    let _ = unsafe { vm::madvise(at, SCRATCH, advice::NOHUGEPAGE) };
    if SCRATCH_AT.compare_exchange(0, at, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: ours, and known to nobody.
        let _ = unsafe { vm::munmap(at, SCRATCH) };
    }
    Ok(())
}

/// Watches pages of this process.
#[derive(Debug, Default)]
pub struct Tracking {
    /// Threads that are at the kernel's files.
    inside: AtomicU32,
}

impl Tracking {
    /// Nothing is opened.
    pub const fn new() -> Tracking {
        Tracking { inside: AtomicU32::new(0) }
    }

    fn with<R>(&self, what: impl FnOnce(&Files) -> R) -> Result<R, Lack> {
        // SeqCst, as in `give_up`: that says so and looks whether somebody is inside, and this is inside and looks whether it may be.
        self.inside.fetch_add(1, Ordering::SeqCst);
        let result = if GIVEN_UP.load(Ordering::SeqCst) { Err(Lack::GivenUp) } else { Files::open().map(|files| what(&files)) };
        self.inside.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Marks mapped pages, in ascending order: those that are watched from [`Tracking::settle`] on have a mark then. `alone`: nobody watches other pages of
    /// their granules; of huge pages that others watch, uses before are told too.
    ///
    /// # Errors
    /// Why none is watched.
    pub fn mark(&self, pages: &mut [Watched], alone: bool) -> Result<(), Lack> {
        self.with(|files| have_scratch().and_then(|()| mark(files, pages, alone)))?
    }

    /// From now on each use of what was marked is seen. False: it may not be.
    pub fn settle(&self) -> bool {
        let at = SCRATCH_AT.load(Ordering::Acquire);
        if at == 0 {
            return false;
        }
        for page in [at, at + SCRATCH - 4096] {
            // SAFETY: memory of our own that is never unmapped, and of which nobody reads the bytes.
            unsafe { core::ptr::with_exposed_provenance_mut::<u8>(page as usize).write_volatile(1) };
        }
        // SAFETY: as above.
        unsafe { vm::madvise(at, SCRATCH, advice::DONTNEED) }.is_ok()
    }

    /// Whether pages were used that were marked, in ascending order.
    pub fn noted(&self, pages: &[Watched], uses: &mut [Use]) {
        if self.with(|files| noted(files, pages, uses)).is_err() {
            uses.fill(Use::Unknown);
        }
    }

    /// Whether it ever was there, so that [`Tracking::settle`] has something to do.
    pub fn was_there(&self) -> bool {
        SCRATCH_AT.load(Ordering::Acquire) != 0
    }

    /// Watches none any more: a filter is about to forbid the calls. Waits until nobody is at it.
    pub fn give_up(&self) {
        GIVEN_UP.store(true, Ordering::SeqCst);
        while self.inside.load(Ordering::SeqCst) > 0 {
            crate::clock::sleep_ns(50_000);
        }
    }
}

/// Tries it on a page of our own: used and unused are told apart. Waits some milliseconds for the kernel to have the page on its list.
///
/// # Errors
/// Why it cannot be used; the text says more where it is there and does not work.
pub fn try_out() -> Result<(), alloc_crate::string::String> {
    use alloc_crate::string::ToString;
    /// Tries, between which other pages come: the kernel puts pages on its list some at a time.
    const TRIES: usize = 64;
    let tracking = Tracking::new();
    let scratch = crate::own::Own::new((TRIES + 1) * 4096).map_err(|why| why.to_string())?;
    let at = |n: usize| scratch.base().as_ptr().wrapping_add(n * 4096);
    // SAFETY: a page of our own, which nobody else uses.
    let touch = |n: usize| unsafe { at(n).write_volatile(1) };
    let mut pages = [Watched { page: Page::containing(at(0) as u64), mark: 0 }];
    touch(0);
    for n in 1..=TRIES {
        tracking.mark(&mut pages, true).map_err(|lack| lack.to_string())?;
        if pages[0].mark != 0 {
            break;
        }
        touch(n);
    }
    if pages[0].mark == 0 {
        return Err("the kernel does not mark a page as idle".to_string());
    }
    let ask = || {
        let mut uses = [Use::Unknown];
        tracking.noted(&pages, &mut uses);
        uses[0]
    };
    if !tracking.settle() || ask() != Use::Unused {
        return Err("the kernel tells an unused page as used".to_string());
    }
    touch(0);
    if ask() != Use::Used {
        return Err("the kernel tells a used page as unused".to_string());
    }
    Ok(())
}

#[cfg(test)]
#[path = "idle_tests.rs"]
mod tests;
