//! The memory of an export: a sparse range of bytes, and the budget that all of them share.
//!
//! A space is one anonymous mapping, of which a *chunk* is 2 MiB. Each chunk has a lock, and says of its 512 pages which are
//! there. A page that is not there reads as zeros and is never touched, so the kernel has no memory for it.
//!
//! 1. Bytes of a chunk are read under its lock, shared, and changed under its lock, alone. So no two threads race for them.
//! 2. Room is taken from the budget before a page is touched first, and goes back after the kernel has the page again.
//!    So the kernel's memory for all spaces is never more than what was taken.
//! 3. With small pages the room of a page is a page. With huge pages it is the chunk, from its first page that is there until
//!    its last is gone.
//! 4. A page that is not there has no bytes but zeros, although it may be mapped (a part of a huge page): it is wiped when it
//!    goes.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Pages of a chunk.
pub const CHUNK_PAGES: u64 = 512;
/// Bytes of a chunk: what a huge page has.
pub const CHUNK: u64 = PAGE * CHUNK_PAGES;

/// The node is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// How large the kernel's pages are to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// 4 KiB.
    Small,
    /// 2 MiB where the kernel has them.
    Huge,
}

/// What all spaces may take together.
#[derive(Debug)]
pub struct Budget {
    most: u64,
    taken: AtomicU64,
    refused: AtomicU64,
    /// Since it was last far from full, somebody was refused.
    was_full: AtomicBool,
}

impl Budget {
    /// A budget of so many pages.
    #[must_use]
    pub fn new(most: u64) -> Budget {
        Budget { most, taken: AtomicU64::new(0), refused: AtomicU64::new(0), was_full: AtomicBool::new(false) }
    }

    /// Pages that there are.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.most
    }

    /// Pages that are taken.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// How often there were too few.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn take(&self, pages: u64) -> Result<(), Full> {
        let more = |taken: u64| taken.checked_add(pages).filter(|&sum| sum <= self.most);
        // Relaxed: a count, behind which no memory stands; the chunk's lock orders its pages.
        if self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok() {
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        self.was_full.store(true, Ordering::Relaxed);
        Err(Full)
    }

    /// Whether somebody was refused, and it was far from full before. (Whoever is refused holds a lock, and tells nobody himself.)
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.was_full.load(Ordering::Relaxed)
    }

    fn give(&self, pages: u64) {
        let before = self.taken.fetch_sub(pages, Ordering::Relaxed);
        // Told again only after a tenth was free.
        if self.was_full.load(Ordering::Relaxed) && before - pages < self.most / 10 * 9 {
            self.was_full.store(false, Ordering::Relaxed);
        }
    }
}

/// Which pages of a chunk are there.
#[derive(Default, Debug)]
struct There([u64; 8]);

impl There {
    fn has(&self, page: u64) -> bool {
        self.0[page as usize / 64] >> (page % 64) & 1 == 1
    }

    fn put(&mut self, page: u64, there: bool) {
        let (word, bit) = (&mut self.0[page as usize / 64], 1 << (page % 64));
        *word = if there { *word | bit } else { *word & !bit };
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The longest run from `page` on, below `end`, of pages that are all there, or all not.
    fn run(&self, page: u64, end: u64) -> (u64, bool) {
        let there = self.has(page);
        let other = (page + 1..end).find(|&page| self.has(page) != there);
        (other.unwrap_or(end), there)
    }
}

/// A part of a request that lies within a chunk.
#[derive(Clone, Copy, Debug)]
struct Part {
    chunk: usize,
    /// Offsets in the space.
    start: u64,
    end: u64,
}

impl Part {
    /// The pages that it touches, counted from the chunk's first.
    fn pages(self) -> (u64, u64) {
        let first = self.chunk as u64 * CHUNK;
        ((self.start - first) / PAGE, (self.end - first).div_ceil(PAGE))
    }
}

/// The parts of `len` bytes from `offset` on.
fn parts(offset: u64, len: u64) -> impl Iterator<Item = Part> {
    let end = offset + len;
    let chunks = if len == 0 { 0..0 } else { offset / CHUNK..end.div_ceil(CHUNK) };
    chunks.map(move |chunk| Part { chunk: chunk as usize, start: offset.max(chunk * CHUNK), end: end.min((chunk + 1) * CHUNK) })
}

/// The memory of an export.
#[derive(Debug)]
pub struct Space {
    base: NonNull<u8>,
    bytes: u64,
    /// What was mapped: more than `bytes`, so that chunks are aligned.
    mapping: (NonNull<u8>, usize),
    pages: Pages,
    chunks: Box<[RwLock<There>]>,
    budget: Arc<Budget>,
}

// SAFETY: the mapping is this space's alone and lives as long as it; bytes are reached under the lock of their chunk only.
unsafe impl Send for Space {}
// SAFETY: as above.
unsafe impl Sync for Space {}

impl Space {
    /// A space of `bytes` bytes, all zero, of which none has memory yet.
    ///
    /// # Errors
    /// The kernel has no addresses for it, or the table of its chunks no memory.
    pub fn new(bytes: u64, pages: Pages, budget: Arc<Budget>) -> Result<Space, Errno> {
        let count = bytes.div_ceil(CHUNK);
        let whole = count.checked_add(1).and_then(|count| count.checked_mul(CHUNK)).ok_or(Errno::NOMEM)? as usize;
        let mut chunks = Vec::new();
        chunks.try_reserve_exact(count as usize).map_err(|_| Errno::NOMEM)?;
        chunks.resize_with(count as usize, RwLock::default);
        // SAFETY: a new mapping at no fixed address touches no other memory.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                whole,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::NOMEM)?;
        let skip = start.as_ptr().align_offset(CHUNK as usize);
        // SAFETY: less than a chunk further, and the mapping has one chunk more than is needed.
        let base = unsafe { start.add(skip) };
        let advise = |advice| {
            // SAFETY: the mapping is new and ours; none of these advices changes what it holds.
            unsafe { madvise(start.as_ptr().cast(), whole, advice) }
        };
        // A core dump is no place for what others keep here. A kernel without huge pages refuses both; it has small ones then.
        let _ = advise(Advice::LinuxDontDump);
        let _ = advise(if pages == Pages::Huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage });
        Ok(Space { base, bytes, mapping: (start, whole), pages, chunks: chunks.into(), budget })
    }

    /// Bytes that it seems to have.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether all of a range is inside.
    #[must_use]
    pub fn has(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.bytes)
    }

    fn look(&self, part: Part) -> RwLockReadGuard<'_, There> {
        self.chunks[part.chunk].read().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self, part: Part) -> RwLockWriteGuard<'_, There> {
        self.chunks[part.chunk].write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes from `start` to `end`, which lie in the chunk of this lock.
    fn slice<'a>(&'a self, _held: &'a There, start: u64, end: u64) -> &'a [u8] {
        assert!(start <= end && end <= self.chunks.len() as u64 * CHUNK);
        // SAFETY: inside of the mapping (above).
        let first = unsafe { self.base.add(start as usize) };
        // SAFETY: mapped for reading and writing as long as `self` lives, and initialised: anonymous memory is zeros. Nobody
        // changes it while the chunk's lock is held, of which `_held` is the proof; all callers name that chunk's.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), (end - start) as usize) }
    }

    /// The same, to be changed.
    fn slice_mut<'a>(&'a self, _held: &'a mut There, start: u64, end: u64) -> &'a mut [u8] {
        assert!(start <= end && end <= self.chunks.len() as u64 * CHUNK);
        // SAFETY: inside of the mapping (above).
        let first = unsafe { self.base.add(start as usize) };
        // SAFETY: as in `slice`; and nobody else reads or changes it, since the lock is held alone.
        unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), (end - start) as usize) }
    }

    /// Whether no page of this range is there: it reads as zeros.
    ///
    /// # Panics
    /// The range is not inside; so do the others.
    #[must_use]
    pub fn is_hole(&self, offset: u64, len: u64) -> bool {
        assert!(self.has(offset, len));
        parts(offset, len).all(|part| {
            let (first, end) = part.pages();
            self.look(part).run(first, end) == (end, false)
        })
    }

    /// Appends the bytes of a range to `out`.
    pub fn read(&self, offset: u64, len: u64, out: &mut Vec<u8>) {
        assert!(self.has(offset, len));
        for part in parts(offset, len) {
            let there = self.look(part);
            let (mut page, end) = part.pages();
            let first = part.chunk as u64 * CHUNK;
            while page < end {
                let (until, is_there) = there.run(page, end);
                let (from, to) = ((first + page * PAGE).max(part.start), (first + until * PAGE).min(part.end));
                if is_there {
                    out.extend_from_slice(self.slice(&there, from, to));
                } else {
                    out.resize(out.len() + (to - from) as usize, 0);
                }
                page = until;
            }
        }
    }

    /// Takes the room for the pages of a part that are not there.
    fn room(&self, there: &There, (first, end): (u64, u64)) -> Result<(), Full> {
        let pages = match self.pages {
            Pages::Small => (first..end).filter(|&page| !there.has(page)).count() as u64,
            Pages::Huge if there.count() == 0 => CHUNK_PAGES,
            Pages::Huge => 0,
        };
        if pages == 0 { Ok(()) } else { self.budget.take(pages) }
    }

    /// Writes `bytes`.
    ///
    /// # Errors
    /// There is no room for a part of it; what lies before that part may be written.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Full> {
        assert!(self.has(offset, bytes.len() as u64));
        for part in parts(offset, bytes.len() as u64) {
            let mut there = self.hold(part);
            let (first, end) = part.pages();
            self.room(&there, (first, end))?;
            let from = &bytes[(part.start - offset) as usize..(part.end - offset) as usize];
            self.slice_mut(&mut there, part.start, part.end).copy_from_slice(from);
            (first..end).for_each(|page| there.put(page, true));
        }
        Ok(())
    }

    /// Writes zeros, and gives the room back that they do not need; with `keep` they have room of their own afterwards.
    ///
    /// # Errors
    /// Only with `keep`: as [`Space::write`].
    pub fn zero(&self, offset: u64, len: u64, keep: bool) -> Result<(), Full> {
        assert!(self.has(offset, len));
        for part in parts(offset, len) {
            let mut there = self.hold(part);
            let (first, end) = part.pages();
            if keep {
                self.room(&there, (first, end))?;
                self.slice_mut(&mut there, part.start, part.end).fill(0);
                (first..end).for_each(|page| there.put(page, true));
            } else {
                self.clear(&mut there, part);
            }
        }
        Ok(())
    }

    /// Zeros in place of a part: pages as a whole go.
    fn clear(&self, there: &mut There, part: Part) {
        let chunk = part.chunk as u64 * CHUNK;
        let (mut page, end) = part.pages();
        while page < end {
            let (mut until, is_there) = there.run(page, end);
            if is_there {
                let (from, to) = ((chunk + page * PAGE).max(part.start), (chunk + until * PAGE).min(part.end));
                let is_whole = |page: u64| chunk + page * PAGE >= from && chunk + (page + 1) * PAGE <= to;
                if is_whole(page) {
                    until = (page..until).find(|&page| !is_whole(page)).unwrap_or(until);
                    self.drop_pages(there, chunk, page, until);
                } else {
                    // A part of a page stays.
                    until = page + 1;
                    let to = to.min(chunk + until * PAGE);
                    self.slice_mut(there, from, to).fill(0);
                }
            }
            page = until;
        }
    }

    /// Takes pages away that are there.
    fn drop_pages(&self, there: &mut There, chunk: u64, first: u64, end: u64) {
        let put = |there: &mut There| (first..end).for_each(|page| there.put(page, false));
        match self.pages {
            Pages::Small => {
                if self.forget(there, chunk + first * PAGE, chunk + end * PAGE) {
                    put(there);
                    self.budget.give(end - first);
                }
            }
            Pages::Huge if there.count() == end - first => {
                if self.forget(there, chunk, chunk + CHUNK) {
                    put(there);
                    self.budget.give(CHUNK_PAGES);
                }
            }
            Pages::Huge => {
                self.slice_mut(there, chunk + first * PAGE, chunk + end * PAGE).fill(0);
                put(there);
            }
        }
    }

    /// Gives memory back to the kernel: it is zeros afterwards. Where the kernel cannot, it is wiped, and stays.
    fn forget(&self, there: &mut There, start: u64, end: u64) -> bool {
        let slice = self.slice_mut(there, start, end);
        // SAFETY: these bytes are ours alone (`slice`), and are anonymous memory, which becomes zeros.
        let done = unsafe { madvise(slice.as_mut_ptr().cast(), slice.len(), Advice::LinuxDontNeed) };
        if done.is_err() {
            slice.fill(0);
        }
        done.is_ok()
    }

    /// Whether the kernel has given a huge page for any of it.
    #[must_use]
    pub fn is_huge(&self) -> bool {
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        self.smaps(&text, "AnonHugePages:").is_some_and(|kib| kib > 0)
    }

    /// A number that `/proc/self/smaps` has of the mapping, in KiB.
    fn smaps(&self, text: &str, field: &str) -> Option<u64> {
        let start = format!("{:x}-", self.mapping.0.as_ptr() as usize);
        let mut lines = text.lines().skip_while(|line| !line.starts_with(&start));
        lines.find_map(|line| line.strip_prefix(field))?.trim().strip_suffix(" kB")?.parse().ok()
    }

    /// Pages of the budget that it has.
    #[must_use]
    pub fn taken(&self) -> u64 {
        let count = |chunk: &RwLock<There>| chunk.read().unwrap_or_else(PoisonError::into_inner).count();
        let room = |pages| if self.pages == Pages::Huge && pages != 0 { CHUNK_PAGES } else { pages };
        self.chunks.iter().map(count).map(room).sum()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let (start, len) = self.mapping;
        // SAFETY: what `new` has mapped; nobody has a part of it any more, as all borrow from `self`.
        if unsafe { munmap(start.as_ptr().cast(), len) }.is_ok() {
            self.budget.give(self.taken());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_random::Rng;

    fn space(bytes: u64, pages: Pages, most: u64) -> (Space, Arc<Budget>) {
        let budget = Arc::new(Budget::new(most));
        (Space::new(bytes, pages, budget.clone()).expect("there are addresses"), budget)
    }

    fn bytes(space: &Space, offset: u64, len: u64) -> Vec<u8> {
        let mut out = Vec::new();
        space.read(offset, len, &mut out);
        out
    }

    /// KiB of it that are in RAM, as the kernel says.
    fn resident(space: &Space) -> u64 {
        let text = std::fs::read_to_string("/proc/self/smaps").expect("it is there");
        space.smaps(&text, "Rss:").expect("it is mapped")
    }

    #[test]
    fn memory_is_taken_when_it_is_written_and_goes_when_it_is_trimmed() {
        let (space, budget) = space(8 * CHUNK, Pages::Small, 100);
        assert!(space.is_hole(0, 8 * CHUNK));
        assert_eq!(bytes(&space, CHUNK - 2, 4), [0; 4]);
        assert_eq!((budget.taken(), resident(&space)), (0, 0), "a read takes nothing");
        space.write(CHUNK - 2, b"abcd").unwrap();
        assert_eq!((bytes(&space, CHUNK - 3, 6), budget.taken(), resident(&space)), (b"\0abcd\0".to_vec(), 2, 8));
        assert!(space.is_hole(0, CHUNK - PAGE) && !space.is_hole(0, CHUNK - PAGE + 1));
        space.zero(CHUNK - 1, 2, false).unwrap();
        assert_eq!((bytes(&space, CHUNK - 3, 6), budget.taken()), (b"\0a\0\0d\0".to_vec(), 2), "parts of pages stay");
        space.zero(CHUNK - PAGE, 2 * PAGE, false).unwrap();
        assert_eq!((bytes(&space, CHUNK - 3, 6), budget.taken(), resident(&space)), (vec![0; 6], 0, 0));
        space.zero(0, 3 * PAGE, true).unwrap();
        assert_eq!((budget.taken(), space.is_hole(PAGE, PAGE)), (3, false), "zeros with room");
        drop(space);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn there_is_never_more_than_the_budget() {
        let (space, budget) = space(CHUNK, Pages::Small, 3);
        let other = Space::new(CHUNK, Pages::Small, budget.clone()).unwrap();
        space.write(0, &[1; 2 * PAGE as usize]).unwrap();
        other.write(7, &[2]).unwrap();
        assert_eq!(other.write(PAGE, &[3]), Err(Full));
        assert_eq!(other.zero(PAGE, 1, true), Err(Full));
        assert_eq!(space.write(1, &[4; PAGE as usize]), Ok(()), "what is there can be written");
        assert_eq!(bytes(&other, PAGE, 1), [0]);
        assert_eq!((budget.taken(), budget.refused()), (3, 2));
        drop(space);
        assert_eq!(other.write(PAGE, &[3]), Ok(()));
    }

    #[test]
    fn a_huge_page_goes_with_its_last_page() {
        let (space, budget) = space(4 * CHUNK, Pages::Huge, 2 * CHUNK_PAGES);
        space.write(5 * PAGE, &[1; 2 * PAGE as usize]).unwrap();
        space.write(CHUNK, &[2]).unwrap();
        assert_eq!(budget.taken(), 2 * CHUNK_PAGES);
        assert_eq!(space.write(2 * CHUNK, &[3]), Err(Full));
        space.zero(5 * PAGE, PAGE, false).unwrap();
        assert_eq!((bytes(&space, 5 * PAGE, 1), bytes(&space, 6 * PAGE, 1)), (vec![0], vec![1]));
        // What was wiped is not there again with old bytes.
        space.write(5 * PAGE + 8, &[9]).unwrap();
        assert_eq!(bytes(&space, 5 * PAGE, 10), [0, 0, 0, 0, 0, 0, 0, 0, 9, 0]);
        space.zero(0, CHUNK, false).unwrap();
        assert_eq!(budget.taken(), CHUNK_PAGES);
        space.write(2 * CHUNK, &[3]).unwrap();
        assert_eq!(bytes(&space, 0, CHUNK), vec![0; CHUNK as usize]);
    }

    /// Random writes and zeros, against a plain vector and a set of pages.
    #[test]
    fn it_is_like_a_vector() {
        for pages in [Pages::Small, Pages::Huge] {
            let size = 2 * CHUNK + 5 * PAGE;
            let (space, budget) = space(size, pages, 3 * CHUNK_PAGES);
            let mut model = vec![0_u8; size as usize];
            let mut there = vec![false; size.div_ceil(PAGE) as usize];
            let mut rng = Rng::new(4711);
            for step in 0..3000 {
                let offset = rng.below(size);
                let offset = if step % 2 == 0 { offset / PAGE * PAGE } else { offset };
                let len = rng.between(1, 12 * PAGE).min(size - offset);
                let (from, to) = (offset as usize, (offset + len) as usize);
                let touched = from / PAGE as usize..to.div_ceil(PAGE as usize);
                match rng.below(4) {
                    0 | 1 => {
                        let byte = 1 + rng.below(255) as u8;
                        space.write(offset, &vec![byte; len as usize]).unwrap();
                        model[from..to].fill(byte);
                        there[touched].fill(true);
                    }
                    _ => {
                        space.zero(offset, len, false).unwrap();
                        model[from..to].fill(0);
                        for page in touched {
                            if page * PAGE as usize >= from && (page + 1) * PAGE as usize <= to {
                                there[page] = false;
                            }
                        }
                    }
                }
                assert!(bytes(&space, offset, len) == model[from..to], "step {step}");
            }
            assert!(bytes(&space, 0, size) == model);
            let count = |part: &[bool]| part.iter().filter(|&&is| is).count() as u64;
            let taken = match pages {
                Pages::Small => count(&there),
                Pages::Huge => {
                    there.chunks(CHUNK_PAGES as usize).map(|chunk| if count(chunk) > 0 { CHUNK_PAGES } else { 0 }).sum()
                }
            };
            assert_eq!((budget.taken(), space.taken()), (taken, taken));
        }
    }
}
