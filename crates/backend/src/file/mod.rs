//! Swap files: one, or an array that pages are striped over.
//!
//! # Where a slot lies
//!
//! Extent `e` (512 slots, 2 MiB) of the space is extent `e / n` of file `e % n` of `n`. The engine hands
//! slots out in runs that stay within an extent, so that a batch is one request to one file, and the
//! batches of the evictors go round the disks. The space is as large as `n` times the smallest limit of a file.
//!
//! # Life of a file
//!
//! *made* without a name, or with a random one that it loses at once → *probed* with one page, which also
//! decides between direct and buffered I/O → *sparse*, growing as slots further on are used → gone with
//! its last descriptor, whatever ends the process.
//!
//! Files are used by direct I/O where the file system can: the page cache would hold a second copy of the
//! pages that were just evicted.
//!
//! Tried and dropped: making files longer, or allocating them (`fallocate`, 64 MiB at a time), ahead of the writes.
//! On ext4, with one reader of random pages beside 100 MB/s of 1 MiB writes: 15–19 k reads/s sparse, 14–19 k
//! lengthened, 19–21 k allocated, 20 k when overwriting what exists. That is within what a run varies, for disk space
//! that may never be used, and slots are handed out again before the file grows.

mod open;
mod queue;
mod uring;

pub use queue::FileQueue;

use crate::error::{OpenError, SMALLEST_BYTES};
use crate::fd::FdList;
use farshore_config::SwapSpec;
use farshore_core::limits::{EXTENT_SLOTS, PAGE_SIZE};
use farshore_core::word::Slot;
use farshore_engine::traits::{Backend, IoError, PageBuf};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::{Errno, pread, pwrite};
use std::sync::Arc;

/// Transfers of no page at all, or interrupted, in a row before a request is given up.
const TRIES: u32 = 8;

/// What the engine is told of an errno.
pub(crate) fn io_error(errno: Errno) -> IoError {
    match errno {
        // EFBIG: the file has reached the process' RLIMIT_FSIZE; other files may still grow.
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => IoError::Full,
        errno => IoError::Device(errno.raw_os_error()),
    }
}

/// The files of an array, shared with its queues.
#[derive(Debug)]
pub(crate) struct Files {
    fds: Box<[OwnedFd]>,
    /// Slots; `None`: as many as the disks have room for.
    capacity: Option<u64>,
    /// Rings that queues have open.
    rings: FdList,
}

/// Part of a request that lies within one extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// Which file.
    pub file: usize,
    /// Bytes into it.
    pub offset: u64,
    /// Pages.
    pub pages: u32,
}

impl Files {
    /// The first piece of `count` pages from `slot` on.
    fn piece(&self, slot: u64, count: u32) -> Piece {
        let per = EXTENT_SLOTS as u64;
        let (extent, within) = (slot / per, slot % per);
        let n = self.fds.len() as u64;
        Piece {
            file: (extent % n) as usize,
            offset: ((extent / n) * per + within) * PAGE_SIZE as u64,
            pages: count.min((per - within) as u32),
        }
    }

    /// Whether the space ends before `slot + count`.
    fn is_beyond(&self, slot: u64, count: u32) -> bool {
        self.capacity.is_some_and(|capacity| slot + u64::from(count) > capacity)
    }

    fn read(&self, first: u64, into: &mut [PageBuf]) -> Result<(), IoError> {
        let (mut done, mut tries) = (0, 0);
        while done < into.len() {
            let piece = self.piece(first + done as u64, (into.len() - done) as u32);
            let bytes = bytes_of(&mut into[done..done + piece.pages as usize]);
            match pread(&self.fds[piece.file], bytes, piece.offset) {
                // Nothing there: past the end of the file.
                Ok(0) => return Err(IoError::Short),
                // Direct I/O cannot go on from the middle of a page: that one is read again.
                Ok(read) if read >= PAGE_SIZE => {
                    done += read / PAGE_SIZE;
                    tries = 0;
                }
                Ok(_) | Err(Errno::INTR | Errno::AGAIN) => tries += 1,
                Err(errno) => return Err(io_error(errno)),
            }
            if tries == TRIES {
                return Err(IoError::Short);
            }
        }
        Ok(())
    }

    /// Writes `progress`' next piece and waits for it.
    ///
    /// # Safety
    /// `pages` are `progress.count` pages that can be read.
    unsafe fn write_now(&self, pages: *const PageBuf, mut progress: Progress) -> Result<(), IoError> {
        loop {
            let piece = self.piece(progress.slot(), progress.left());
            // SAFETY: `done < count` while pages are left, so this is within the caller's pages.
            let from = unsafe { pages.add(progress.done as usize) };
            // SAFETY: `piece.pages` is at most what is left of the caller's readable pages.
            let bytes = unsafe { core::slice::from_raw_parts(from.cast::<u8>(), piece.pages as usize * PAGE_SIZE) };
            let result = pwrite(&self.fds[piece.file], bytes, piece.offset);
            let result = result.map_or_else(|errno| -errno.raw_os_error(), |written| written as i32);
            if let Step::Over(result) = progress.advance(result) {
                return result;
            }
        }
    }
}

/// The bytes of pages that lie together.
fn bytes_of(pages: &mut [PageBuf]) -> &mut [u8] {
    let len = size_of_val(pages);
    // SAFETY: a `PageBuf` is 4096 bytes without padding, any bytes are one, and the borrow passes on.
    unsafe { core::slice::from_raw_parts_mut(pages.as_mut_ptr().cast(), len) }
}

/// How far a write has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    first: u64,
    count: u32,
    done: u32,
    tries: u32,
}

/// What [`Progress::advance`] says.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Write the next piece.
    More,
    /// The write has ended.
    Over(Result<(), IoError>),
}

impl Progress {
    pub(crate) fn new(first: Slot, count: u32) -> Progress {
        Progress { first: first.number(), count, done: 0, tries: 0 }
    }
    /// The next slot to write.
    pub(crate) fn slot(&self) -> u64 {
        self.first + u64::from(self.done)
    }
    /// Pages that are left to write.
    pub(crate) fn left(&self) -> u32 {
        self.count - self.done
    }
    /// Takes a result as the kernel gives it: bytes written, or a negative errno.
    pub(crate) fn advance(&mut self, result: i32) -> Step {
        let pages = if result >= 0 { result as u32 / PAGE_SIZE as u32 } else { 0 };
        if pages > 0 {
            self.done += pages.min(self.left());
            self.tries = 0;
            return if self.left() == 0 { Step::Over(Ok(())) } else { Step::More };
        }
        self.tries += 1;
        if result >= 0 {
            // Less than a page, which direct I/O cannot go on from: the page again.
            return if self.tries < TRIES { Step::More } else { Step::Over(Err(IoError::Short)) };
        }
        match Errno::from_raw_os_error(-result) {
            // ECANCELED: the thread that started the write has ended.
            Errno::INTR | Errno::AGAIN | Errno::CANCELED if self.tries < TRIES => Step::More,
            errno => Step::Over(Err(io_error(errno))),
        }
    }
}

/// How files are used; what tests change.
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    /// Use direct I/O where it works.
    pub direct: bool,
    /// Make files that never had a name where the file system can.
    pub nameless: bool,
    /// Write through io_uring where it works.
    pub uring: bool,
}

impl Default for FileOptions {
    fn default() -> FileOptions {
        FileOptions { direct: true, nameless: true, uring: true }
    }
}

/// A swap space of one file or several.
#[derive(Debug)]
pub struct FileArray {
    files: Arc<Files>,
    name: String,
    uring: bool,
}

impl FileArray {
    /// Opens a file for each of `specs`, which must be `dir:` and `file:`. What the user should know but
    /// need not act on goes to `notice`, one line each.
    ///
    /// # Errors
    /// The first space that cannot be used, and why.
    pub fn open(specs: &[SwapSpec], options: FileOptions, notice: &mut dyn FnMut(&str)) -> Result<FileArray, OpenError> {
        if specs.is_empty() {
            return Err(OpenError::NoSpace);
        }
        let mut fds = Vec::with_capacity(specs.len());
        let mut smallest: Option<u64> = None;
        for spec in specs {
            let opened = open::open(spec, options, notice)?;
            smallest = [smallest, opened.limit].into_iter().flatten().min();
            fds.push(opened.fd);
        }
        let name = specs.iter().map(SwapSpec::to_string).collect::<Vec<_>>().join(" + ");
        let capacity = match smallest {
            Some(bytes) if bytes < SMALLEST_BYTES => return Err(OpenError::TooSmall { what: name, bytes }),
            // Whole extents: the last one of a file must not be cut.
            Some(bytes) => Some(bytes / SMALLEST_BYTES * EXTENT_SLOTS as u64 * fds.len() as u64),
            None => None,
        };
        let files = Arc::new(Files { fds: fds.into(), capacity, rings: FdList::new() });
        let uring = options.uring && uring::is_available(&files, notice);
        Ok(FileArray { files, name, uring })
    }

    /// The descriptors that are ours now: the files, and the rings of queues.
    pub fn fds(&self) -> impl Iterator<Item = RawFd> {
        self.files.fds.iter().map(AsRawFd::as_raw_fd).chain(self.files.rings.iter())
    }

    /// Whether queues write through io_uring (else: one write at a time).
    pub fn is_asynchronous(&self) -> bool {
        self.uring
    }

    /// The files, to look at in tests.
    #[doc(hidden)]
    pub fn borrow(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.files.fds.iter().map(rustix::fd::AsFd::as_fd)
    }
}

impl Backend for FileArray {
    type Queue = FileQueue;

    fn read(&self, slot: Slot, into: &mut PageBuf) -> Result<(), IoError> {
        self.files.read(slot.number(), core::slice::from_mut(into))
    }

    fn read_run(&self, first: Slot, into: &mut [PageBuf]) -> Result<(), IoError> {
        self.files.read(first.number(), into)
    }

    fn queue(&self, depth: u32) -> Result<FileQueue, IoError> {
        FileQueue::new(&self.files, depth, self.uring)
    }

    fn capacity(&self) -> Option<u64> {
        self.files.capacity
    }

    fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(n: usize) -> Files {
        let fds = (0..n).map(|_| std::fs::File::open("/dev/null").unwrap().into()).collect();
        Files { fds, capacity: None, rings: FdList::new() }
    }

    #[test]
    fn extents_go_round_the_files() {
        let array = files(3);
        assert_eq!(array.piece(1, 8), Piece { file: 0, offset: 4096, pages: 8 });
        assert_eq!(array.piece(512, 8), Piece { file: 1, offset: 0, pages: 8 });
        assert_eq!(array.piece(3 * 512 + 7, 8), Piece { file: 0, offset: (512 + 7) << 12, pages: 8 });
        assert_eq!(array.piece(5 * 512 + 510, 8), Piece { file: 2, offset: (512 + 510) << 12, pages: 2 });
    }

    #[test]
    fn no_two_slots_share_a_place() {
        for n in 1..5 {
            let array = files(n);
            let places: std::collections::HashSet<_> = (0..5000).map(|s| array.piece(s, 1)).map(|p| (p.file, p.offset)).collect();
            assert_eq!(places.len(), 5000);
        }
    }

    #[test]
    fn short_transfers_go_on_and_end() {
        let slot = Slot::new(7).unwrap();
        let mut p = Progress::new(slot, 4);
        assert_eq!(p.advance(4096 + 100), Step::More);
        assert_eq!((p.slot(), p.left()), (8, 3));
        assert_eq!(p.advance(-Errno::INTR.raw_os_error()), Step::More);
        assert_eq!(p.advance(3 * 4096), Step::Over(Ok(())));

        let mut p = Progress::new(slot, 1);
        assert_eq!(p.advance(-Errno::NOSPC.raw_os_error()), Step::Over(Err(IoError::Full)));
        let mut p = Progress::new(slot, 1);
        assert_eq!(p.advance(-Errno::IO.raw_os_error()), Step::Over(Err(IoError::Device(5))));
        let mut p = Progress::new(slot, 1);
        let last = (0..TRIES).map(|_| p.advance(512)).last();
        assert_eq!(last, Some(Step::Over(Err(IoError::Short))));
        let mut p = Progress::new(slot, 1);
        let last = (0..TRIES).map(|_| p.advance(-Errno::AGAIN.raw_os_error())).last();
        assert_eq!(last, Some(Step::Over(Err(IoError::Device(11)))));
    }
}
