//! The memory that a client has handed over: which page of its address space is which page of which file.
//!
//! The bytes of a page that is in memory are read from the file, by `pread`, and taken out of memory by punching a hole there. We do not map the file:
//!
//! * A mapping of ours would bring a page of zeros wherever we touch a hole, and the client would find it there.
//! * A client that makes its file shorter would have us end by SIGBUS. Here it gets a short read.
//! * Each page that we looked at would be in our page table too, and punching it would have to flush our processors' TLBs.
//!
//! Each file is open as a description of our own: reading where its holes are moves no position that the client uses.
//!
//! # The mark
//!
//! A page that was taken out is a hole in the file, and so is a page that nobody has ever touched. Only this manager knows which is which. So before
//! the first page of a file is taken out, the file is *marked* (its sticky bit is set, which means nothing else for a file), and the mark goes when all
//! pages are back. A manager that finds the mark on a file that is handed over to it knows that another one has ended before it could bring the pages back, and refuses: it
//! would give the client zeros in their place.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use farshore_core::limits::PAGE_SIZE;
use farshore_core::page::{Page, PageRange};
use farshore_core::seams::{KernelError, PageBuf};
use farshore_sys::fd::{cached_pages, lock_byte, unlock_byte};
use farshore_sys::raw;
use rustix::fs::{FallocateFlags, Mode, SealFlags, SeekFrom};
use rustix::io::Errno;

const PAGE: u64 = PAGE_SIZE as u64;
/// The file systems of shared memory, by the kernel's numbers: 4 KiB pages, and huge ones.
const TMPFS: i64 = 0x0102_1994;
const HUGETLBFS: i64 = 0x9584_58f6;
/// The bit of a file's mode that is the mark.
const MARK: u32 = 0o1000;
/// The byte of a file that its manager has locked.
const LOCK: u32 = 0x4661_7273;
/// How often a page is taken out of memory that stays there.
pub const PUNCHES: usize = 8;

/// Which file: device and inode.
pub type Identity = (u64, u64);

/// A file that has memory of the client.
#[derive(Debug)]
pub struct Backing {
    file: File,
    identity: Identity,
    marked: AtomicBool,
}

impl Backing {
    /// Opens the file at this path, which leads to a descriptor of the client's or of ours, and makes sure that it can be managed, and that nobody else does.
    ///
    /// # Errors
    /// One line: what is wrong with it.
    pub fn open(path: &Path) -> Result<Backing, String> {
        let failed = |error: std::io::Error| format!("its file cannot be opened for reading and writing ({error})");
        let file = File::options().read(true).write(true).open(path).map_err(failed)?;
        let data = file.metadata().map_err(failed)?;
        let system = rustix::fs::fstatfs(&file).map_err(|errno| failed(errno.into()))?;
        match system.f_type {
            TMPFS => {}
            HUGETLBFS => {
                return Err(
                    "its file has huge pages (hugetlb), which are not managed yet: give it pages of 4 KiB (a plain memfd)".into(),
                );
            }
            other => {
                return Err(format!(
                    "its file is not shared memory (file system {other:#x}): only a memfd, or a file on a tmpfs, can give pages back"
                ));
            }
        }
        // A part of a huge page is zeroed before it is taken out, and stays if the page cannot be split: the client would find zeros, and so would a device that reads them.
        if data.blksize() > PAGE {
            return Err(format!(
                "its file may have huge pages (blocks of {} bytes), of which no part can be taken out safely: use a memfd while \
                 /sys/kernel/mm/transparent_hugepage/shmem_enabled is never, or a tmpfs with huge=never",
                data.blksize()
            ));
        }
        // A file of a tmpfs need not know of seals.
        let seals = rustix::fs::fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
        if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return Err("its file is sealed against writing, so no page can be taken out: do not seal it".into());
        }
        if let Err(errno) = lock_byte(file.as_fd(), LOCK) {
            return Err(match errno {
                raw::Errno::EAGAIN => "its memory has a manager already: one at a time can have it".into(),
                other => format!("its file cannot be locked ({other})"),
            });
        }
        if data.mode() & MARK != 0 {
            return Err("a manager that has ended had taken pages out of this memory, and what they held is lost: the client waits for them \
                 rather than to see zeros; end it, and start it anew"
                .into());
        }
        // It will be marked.
        rustix::fs::fchmod(&file, Mode::from_raw_mode(data.mode() & 0o7777)).map_err(|errno| {
            format!(
                "its file belongs to user {}, and only its owner can mark it when pages are taken out ({errno}): make it as the user of the manager",
                data.uid()
            )
        })?;
        Ok(Backing { identity: (data.dev(), data.ino()), file, marked: AtomicBool::new(false) })
    }

    /// Takes a file over that a manager has left, with its lock and its mark: the same description.
    ///
    /// # Errors
    /// What fstat(2) answers.
    pub fn left(file: OwnedFd) -> Result<Backing, Errno> {
        let data = rustix::fs::fstat(&file)?;
        Ok(Backing { identity: (data.st_dev, data.st_ino), file: file.into(), marked: AtomicBool::new(data.st_mode & MARK != 0) })
    }

    /// None of its pages is needed any more: takes the mark away.
    ///
    /// # Errors
    /// What fchmod(2) answers.
    pub fn give_up(&self) -> Result<(), Errno> {
        self.mark(false)
    }

    /// Takes the lock away, which would stay for as long as anybody has the description: from now on another manager may have it, and so may this one, should the client hand it over anew. Nothing that
    /// is left to whoever takes over may name it any more.
    pub fn unlock(&self) {
        // If it cannot be, it stays locked until its keeper has closed it too.
        let _ = unlock_byte(self.file.as_fd(), LOCK);
    }

    /// Its descriptor.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Which file it is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Sets the mark, or takes it away.
    fn mark(&self, marked: bool) -> Result<(), Errno> {
        if self.marked.load(Ordering::Acquire) == marked {
            return Ok(());
        }
        let mode = Mode::from_raw_mode(rustix::fs::fstat(&self.file)?.st_mode & 0o7777);
        let mark = Mode::from_raw_mode(MARK);
        rustix::fs::fchmod(&self.file, if marked { mode | mark } else { mode - mark })?;
        self.marked.store(marked, Ordering::Release);
        Ok(())
    }

    /// Reads a page at `offset`. A hole is zeros.
    fn read(&self, offset: u64, into: &mut PageBuf) -> Result<(), KernelError> {
        let mut done = 0;
        while done < PAGE_SIZE {
            match rustix::io::pread(&self.file, &mut into.0[done..], offset + done as u64) {
                // The client has made it shorter.
                Ok(0) => return Err(KernelError::Gone),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(KernelError::Other(errno.raw_os_error())),
            }
        }
        Ok(())
    }

    /// Takes `bytes` bytes from `offset` on out of memory, in whoever has them mapped. `false`: something is there, and it is zeros. A huge page that somebody has locked is not split;
    /// most locks are short.
    fn punch(&self, offset: u64, bytes: u64) -> Result<bool, KernelError> {
        self.mark(true).map_err(|_| KernelError::Refused)?;
        self.punch_once(offset, bytes)?;
        // Before Linux 6.5 nothing tells.
        let is_left = || cached_pages(self.file.as_fd(), offset, bytes).is_ok_and(|left| left > 0);
        for _ in 1..PUNCHES {
            if !is_left() {
                return Ok(true);
            }
            std::thread::yield_now();
            // No way back from here: the bytes are gone, whatever it answers.
            let _ = self.punch_once(offset, bytes);
        }
        Ok(!is_left())
    }

    fn punch_once(&self, offset: u64, bytes: u64) -> Result<(), KernelError> {
        loop {
            match rustix::fs::fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, bytes) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                // Sealed meanwhile.
                Err(Errno::PERM) => return Err(KernelError::Refused),
                Err(Errno::AGAIN) => return Err(KernelError::Again),
                Err(errno) => return Err(KernelError::Other(errno.raw_os_error())),
            }
        }
    }

    /// The first page that is a hole, of `pages` pages from `offset` on. What cannot be found out counts as being there.
    fn first_hole(&self, offset: u64, pages: u64) -> Option<u64> {
        let all_cached = |offset: u64, pages: u64| cached_pages(self.file.as_fd(), offset, pages * PAGE) == Ok(pages);
        // What the kernel has swapped out is not in memory, and is no hole. What was allocated (fallocate(2)) and not yet touched has no bytes, and is in memory.
        let is_hole = |page: &u64| {
            let at = offset + page * PAGE;
            !all_cached(at, 1) && self.next_data(at).is_ok_and(|next| next.is_none_or(|next| next >= at + PAGE))
        };
        if all_cached(offset, pages) { None } else { (0..pages).find(is_hole) }
    }

    /// Calls `each` with the parts, of `pages` pages from `offset` on that have no bytes, that are in memory all the same: they were allocated (fallocate(2)), and nobody has touched them.
    fn each_allocated(&self, offset: u64, pages: u64, each: &mut dyn FnMut(u64, u64)) {
        if pages == 0 {
            return;
        }
        match cached_pages(self.file.as_fd(), offset, pages * PAGE) {
            // Before Linux 6.5 nothing tells.
            Ok(0) | Err(_) => {}
            Ok(there) if there >= pages => each(offset, pages),
            Ok(_) => {
                let half = pages / 2;
                self.each_allocated(offset, half, each);
                self.each_allocated(offset + half * PAGE, pages - half, each);
            }
        }
    }

    /// Where the next bytes are, from `offset` on. `None`: there are none.
    fn next_data(&self, offset: u64) -> Result<Option<u64>, Errno> {
        match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Ok(at) => Ok(Some(at)),
            Err(Errno::NXIO) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Where the next hole is, from `offset` on, which is in bytes; at the latest the file's end.
    fn next_hole(&self, offset: u64) -> Result<u64, Errno> {
        rustix::fs::seek(&self.file, SeekFrom::Hole(offset))
    }
}

/// A part of the client's address space, and where its bytes are.
#[derive(Clone, Debug)]
pub struct Region {
    /// The client's pages.
    pub pages: PageRange,
    /// The file.
    pub backing: Arc<Backing>,
    /// The first page's place in the file, bytes.
    pub offset: u64,
}

impl Region {
    /// The page's place in the file.
    fn offset_of(&self, page: Page) -> u64 {
        self.offset + (page.0 - self.pages.start.0) * PAGE
    }

    /// Whether the two have bytes of a file in common.
    pub fn shares_with(&self, other: &Region) -> bool {
        let end = |region: &Region| region.offset + region.pages.bytes();
        self.backing.identity == other.backing.identity && self.offset < end(other) && other.offset < end(self)
    }

    /// The parts that the file has now: pages that were touched, written to the file, or allocated.
    ///
    /// # Errors
    /// What lseek(2) and fstat(2) answer.
    pub fn parts_in_memory(&self) -> Result<Vec<PageRange>, Errno> {
        let backing = &self.backing;
        let size = u64::try_from(rustix::fs::fstat(&backing.file)?.st_size).unwrap_or(0).next_multiple_of(PAGE);
        let end = size.min(self.offset + self.pages.bytes());
        let (mut parts, mut at) = (Vec::<PageRange>::new(), self.offset);
        let mut add = |offset: u64, pages: u64| {
            if pages == 0 {
                return;
            }
            let start = self.pages.start.plus((offset - self.offset) / PAGE);
            let part = PageRange { start, end: start.plus(pages) };
            match parts.last_mut().filter(|last| last.end == part.start) {
                Some(last) => last.end = part.end,
                None => parts.push(part),
            }
        };
        while at < end {
            let start = backing.next_data(at)?.unwrap_or(end).min(end);
            backing.each_allocated(at, (start - at) / PAGE, &mut add);
            if start == end {
                break;
            }
            at = backing.next_hole(start)?.next_multiple_of(PAGE).min(end);
            add(start, (at - start) / PAGE);
        }
        Ok(parts)
    }
}

/// All regions of a client.
#[derive(Debug, Default)]
pub struct Memory {
    /// In order of addresses. Read by evictors, and written when one comes or goes.
    regions: RwLock<Vec<Region>>,
}

impl Memory {
    fn regions(&self) -> RwLockReadGuard<'_, Vec<Region>> {
        self.regions.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more region. It overlaps none that is there.
    pub fn add(&self, region: Region) {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        let place = regions.partition_point(|other| other.pages.start < region.pages.start);
        regions.insert(place, region);
    }

    /// A region goes, of which no page is in an evictor's hands. What was out of it is given up, so the last one of a file takes the mark along.
    ///
    /// # Errors
    /// What fchmod(2) answers; the region is gone all the same.
    pub fn remove(&self, pages: PageRange) -> Result<(), Errno> {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<Region> = regions.extract_if(.., |region| region.pages == pages).collect();
        let is_last = |region: &&Region| !regions.iter().any(|other| other.backing.identity == region.backing.identity);
        gone.iter().filter(is_last).try_for_each(|region| region.backing.mark(false))
    }

    /// All regions, as they are now.
    pub fn all(&self) -> Vec<Region> {
        self.regions().clone()
    }

    /// The region that has a page.
    pub fn region(&self, page: Page) -> Option<Region> {
        region_of(&self.regions(), page).cloned()
    }

    /// Reads the bytes of a page that is in memory.
    ///
    /// # Errors
    /// `Gone` when it is in no region, or the client has made its file shorter.
    pub fn read(&self, page: Page, into: &mut PageBuf) -> Result<(), KernelError> {
        let regions = self.regions();
        let region = region_of(&regions, page).ok_or(KernelError::Gone)?;
        region.backing.read(region.offset_of(page), into)
    }

    /// Takes pages out of memory, neighbours with one call: whoever touches them faults. Their order is the caller's. `stuck` gets those of them in whose place the kernel keeps zeros.
    ///
    /// # Errors
    /// How many of them are out, and why the next one is not: `Gone` also if it is a hole already.
    pub fn punch(&self, pages: &[Page], stuck: &mut Vec<Page>) -> Result<(), (usize, KernelError)> {
        let regions = self.regions();
        let mut done = 0;
        while let Some(&first) = pages.get(done) {
            let region = region_of(&regions, first).ok_or((done, KernelError::Gone))?;
            let room = (region.pages.end.0 - first.0) as usize;
            let count = pages[done..].iter().zip(0..).take(room).take_while(|(page, n)| **page == first.plus(*n)).count() as u64;
            let offset = region.offset_of(first);
            let hole = region.backing.first_hole(offset, count);
            let there = hole.unwrap_or(count);
            if there > 0 {
                if !region.backing.punch(offset, there * PAGE).map_err(|why| (done, why))? {
                    let is_there = |page: &&Page| region.backing.first_hole(region.offset_of(**page), 1).is_none();
                    stuck.extend(pages[done..done + there as usize].iter().filter(is_there));
                }
                done += there as usize;
            }
            if hole.is_some() {
                return Err((done, KernelError::Gone));
            }
        }
        Ok(())
    }

    /// Whether nothing is in memory where the page would be. What cannot be found out counts as being there.
    pub fn is_hole(&self, page: Page) -> bool {
        let regions = self.regions();
        region_of(&regions, page).is_some_and(|region| region.backing.first_hole(region.offset_of(page), 1).is_some())
    }

    /// All pages are back: takes the marks away.
    ///
    /// # Errors
    /// What fchmod(2) answers.
    pub fn forget_marks(&self) -> Result<(), Errno> {
        self.regions().iter().try_for_each(|region| region.backing.mark(false))
    }
}

/// The region that a page lies in, of regions in order.
fn region_of(regions: &[Region], page: Page) -> Option<&Region> {
    let behind = regions.partition_point(|region| region.pages.start <= page);
    regions[..behind].last().filter(|region| region.pages.contains(page))
}

/// The path by which we reach a descriptor of ours.
pub fn own_path(fd: &impl std::os::fd::AsFd) -> std::path::PathBuf {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()).into()
}
