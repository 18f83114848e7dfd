//! Swap files: one, or an array that pages are striped over.
//!
//! # Where a slot lies
//!
//! Extents (512 slots, 2 MiB) go round the files, as the engine's map of slots has it ([`Arrangements`]); files come and go while
//! the space is in use ([`places`]). The engine hands slots out in runs that stay within an extent. So a batch is one request to
//! one file, and the batches of the evictors go round the disks. A file that is smaller than the others has extents that are
//! never handed out.
//!
//! # Life of a file
//!
//! *made* without a name, or with a random one that it loses at once → *probed* with one page, which also
//! decides between direct and buffered I/O → *sparse*, growing as slots further on are used → gone with
//! its last descriptor, whatever ends the process.
//!
//! Files are used with direct I/O where the file system can do it: the page cache would hold a second copy of the pages
//! that were just evicted.
//!
//! Tried and dropped: making files longer, or allocating them (`fallocate`, 64 MiB at a time), ahead of the writes. On
//! ext4, with one reader of random pages beside 100 MB/s of 1 MiB writes: 15–19 k reads/s sparse, 14–19 k lengthened,
//! 19–21 k allocated, 20 k when overwriting what exists. The gain is within the variation between runs, and costs disk
//! space that may never be used; slots are handed out again before the file grows.

mod giving;
mod limit;
mod open;
mod places;
mod queue;
mod uring;

pub use limit::lengthen;
pub use open::can_be_made;
pub use queue::FileQueue;
pub use uring::set_in_place;

use crate::error::OpenError;
use farshore_config::SwapSpec;
use farshore_core::limits::{EXTENT_SLOTS, PAGE_SIZE};
use farshore_core::seams::{Backend, IoError, MemoryBudget, PageBuf, ReadBegun, Reads, Spaces};
use farshore_core::slots::arrangement::{Arrangements, SPACES_MAX, SpaceSet};
use farshore_core::word::Slot;
use places::Places;
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::{Errno, pread, pwrite};
use std::sync::{Arc, Mutex};
use uring::UringQueue;

/// Transfers of no page at all, or interrupted, in a row before a request is given up.
const TRIES: u32 = 8;

/// The error that the engine gets for an errno.
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
    places: Places,
    arrangements: Arrangements,
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
        // No space has more extents than a number of 32 bits counts.
        let place = self.arrangements.place_of(extent as u32);
        Piece {
            file: place.space,
            offset: (u64::from(place.number) * per + within) * PAGE_SIZE as u64,
            pages: count.min((per - within) as u32),
        }
    }

    /// Whether a file ends before its part of `slot` to `slot + count`.
    fn is_beyond(&self, slot: u64, count: u32) -> bool {
        let mut done = 0;
        while done < count {
            let piece = self.piece(slot + u64::from(done), count - done);
            let end = piece.offset / PAGE_SIZE as u64 + u64::from(piece.pages);
            if self.places.capacity(piece.file).is_some_and(|capacity| end > capacity) {
                return true;
            }
            done += piece.pages;
        }
        false
    }

    /// Makes sure that `count` pages can be written from `slot` on: that the files are long enough, and that the parts of devices
    /// that are needed are ours.
    fn prepare(&self, slot: u64, count: u32) -> Result<(), IoError> {
        if self.is_beyond(slot, count) {
            return Err(IoError::Full);
        }
        let mut done = 0;
        while done < count {
            let piece = self.piece(slot + u64::from(done), count - done);
            self.places.offset_to_write(piece.file, piece.offset)?;
            done += piece.pages;
        }
        Ok(())
    }

    fn read(&self, first: u64, into: &mut [PageBuf]) -> Result<(), IoError> {
        let mut progress = Progress { first, count: into.len() as u32, done: 0, tries: 0 };
        while progress.left() > 0 {
            let piece = self.piece(progress.slot(), progress.left());
            let from = progress.done as usize;
            let bytes = bytes_of(&mut into[from..from + piece.pages as usize]);
            let result = pread(self.places.file(piece.file)?, bytes, self.places.offset(piece.file, piece.offset)?);
            let result = result.map_or_else(|errno| -errno.raw_os_error(), |read| read as i32);
            if let Step::Over(result) = progress.advance(result) {
                return result;
            }
        }
        Ok(())
    }

    /// The result of writing `progress`' next piece, as the kernel gives it. A write that the process' limit of file sizes has
    /// refused is made here, in another way.
    ///
    /// # Safety
    /// `pages` are the pages of the whole write, which can be read.
    unsafe fn past_limit(&self, result: i32, pages: *const PageBuf, progress: &Progress) -> i32 {
        if result != -Errno::FBIG.raw_os_error() {
            return result;
        }
        let piece = self.piece(progress.slot(), progress.left());
        let len = piece.pages as usize * PAGE_SIZE;
        let Ok((_writer, fd)) = self.places.writer(piece.file) else { return -Errno::BADF.raw_os_error() };
        let Ok(offset) = self.places.offset(piece.file, piece.offset) else { return -Errno::BADF.raw_os_error() };
        // SAFETY: `done < count` while pages are left, so these are the caller's.
        match unsafe { limit::write(fd, pages.wrapping_add(progress.done as usize).cast(), len, offset) } {
            Ok(()) => len as i32,
            Err(errno) => -errno.raw_os_error(),
        }
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
            // SAFETY: `piece.pages` is at most the number of the caller's readable pages that are left.
            let bytes = unsafe { core::slice::from_raw_parts(from.cast::<u8>(), piece.pages as usize * PAGE_SIZE) };
            let (writer, file) = self.places.writer(piece.file)?;
            let result = pwrite(file, bytes, self.places.offset(piece.file, piece.offset)?);
            drop(writer);
            let result = result.map_or_else(|errno| -errno.raw_os_error(), |written| written as i32);
            // SAFETY: the caller's pages.
            let result = unsafe { self.past_limit(result, pages, &progress) };
            if let Step::Over(result) = progress.advance(result) {
                return result;
            }
        }
    }
}

/// The bytes of pages that lie together.
pub(crate) fn bytes_of(pages: &mut [PageBuf]) -> &mut [u8] {
    let len = size_of_val(pages);
    // SAFETY: a `PageBuf` is 4096 bytes without padding, any bytes are a valid one, and the borrow passes on.
    unsafe { core::slice::from_raw_parts_mut(pages.as_mut_ptr().cast(), len) }
}

/// How far a read or write has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    first: u64,
    count: u32,
    done: u32,
    tries: u32,
}

/// The answer of [`Progress::advance`].
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Transfer the next piece.
    More,
    /// The transfer has ended.
    Over(Result<(), IoError>),
}

impl Progress {
    pub(crate) fn new(first: Slot, count: u32) -> Progress {
        Progress { first: first.number(), count, done: 0, tries: 0 }
    }
    /// The next slot to transfer.
    pub(crate) fn slot(&self) -> u64 {
        self.first + u64::from(self.done)
    }
    /// Pages that are left.
    pub(crate) fn left(&self) -> u32 {
        self.count - self.done
    }
    /// Takes a result as the kernel gives it: bytes transferred, or a negative errno.
    pub(crate) fn advance(&mut self, result: i32) -> Step {
        let pages = if result >= 0 { result as u32 / PAGE_SIZE as u32 } else { 0 };
        if pages > 0 {
            self.done += pages.min(self.left());
            self.tries = 0;
            return if self.left() == 0 { Step::Over(Ok(())) } else { Step::More };
        }
        self.tries += 1;
        if result >= 0 {
            // Less than a page came, and direct I/O cannot go on from there: the page is transferred again.
            return if self.tries < TRIES { Step::More } else { Step::Over(Err(IoError::Short)) };
        }
        match Errno::from_raw_os_error(-result) {
            // ECANCELED: the thread that started the write has ended.
            Errno::INTR | Errno::AGAIN | Errno::CANCELED if self.tries < TRIES => Step::More,
            errno => Step::Over(Err(io_error(errno))),
        }
    }
}

/// How files are used; tests change this.
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    /// Use direct I/O where it works.
    pub direct: bool,
    /// Make files that never had a name where the file system can.
    pub nameless: bool,
    /// Write through io_uring where it works.
    pub uring: bool,
    /// Go on with those of several files that can be opened. One that cannot keeps its number, and writes to it fail, as to a disk that has died.
    pub partly: bool,
}

impl Default for FileOptions {
    fn default() -> FileOptions {
        FileOptions { direct: true, nameless: true, uring: true, partly: false }
    }
}

/// A swap space of one file or several, some of which may be devices.
#[derive(Debug)]
pub struct FileArray {
    files: Arc<Files>,
    /// The name that the space had at first.
    name: String,
    options: FileOptions,
    uring: bool,
    /// The queue with which io_uring was tried out, until the first caller wants a queue.
    ready: Mutex<Option<Box<UringQueue>>>,
}

impl FileArray {
    /// Opens a file for each of `specs`, which must be `dir:`, `file:` and `dev:`. What the user should know but
    /// need not act on goes to `notice`, one line each.
    ///
    /// # Errors
    /// The first space that cannot be used, and why; with [`FileOptions::partly`], only if none can.
    pub fn open(specs: &[SwapSpec], options: FileOptions, notice: &mut dyn FnMut(&str)) -> Result<FileArray, OpenError> {
        if specs.is_empty() {
            return Err(OpenError::NoSpace);
        }
        if specs.len() > SPACES_MAX {
            return Err(OpenError::TooMany(specs.len()));
        }
        let places = Places::new();
        let (mut opened, mut obstacle) = (0, None);
        for (space, spec) in specs.iter().enumerate() {
            match places.open(space, spec, options, notice) {
                Ok(_) => opened += 1,
                Err(why) if options.partly => {
                    notice(&format!("{why}; without this one"));
                    places.leave_out(space, spec, why.for_writes());
                    obstacle = obstacle.or(Some(why));
                }
                Err(why) => return Err(why),
            }
        }
        if let Some(why) = obstacle.filter(|_| opened == 0) {
            return Err(why);
        }
        Ok(FileArray::around(places, specs, options, notice))
    }

    /// Takes the files over that a process has left: one for each of `specs`, in order, with what is written there.
    ///
    /// # Errors
    /// One that cannot be used, or there are more or fewer.
    pub fn take_over(
        specs: &[SwapSpec],
        left: Vec<OwnedFd>,
        options: FileOptions,
        notice: &mut dyn FnMut(&str),
    ) -> Result<FileArray, OpenError> {
        if specs.is_empty() || specs.len() != left.len() {
            return Err(OpenError::NoSpace);
        }
        let places = Places::new();
        for (space, (spec, fd)) in specs.iter().zip(left).enumerate() {
            places.take_over(space, spec, fd, notice)?;
        }
        Ok(FileArray::around(places, specs, options, notice))
    }

    fn around(places: Places, specs: &[SwapSpec], options: FileOptions, notice: &mut dyn FnMut(&str)) -> FileArray {
        let names: Vec<String> = specs.iter().map(SwapSpec::to_string).collect();
        let files = Arc::new(Files { places, arrangements: Arrangements::new(SpaceSet::first(specs.len())) });
        let ready = if options.uring { uring::try_out(&files, notice).map(Box::new) } else { None };
        FileArray { files, name: names.join(" + "), options, uring: ready.is_some(), ready: Mutex::new(ready) }
    }

    /// Opens one more file, as `space`, which has none now. Its slots are not used before [`Backend::arrange`] says so, unless
    /// extents go round that number already. One thread at a time, while others read and write. Returns what the file can hold, in
    /// slots (`None`: as much as its disk has room for).
    ///
    /// # Errors
    /// Why the file cannot be used.
    pub fn add(&self, space: usize, spec: &SwapSpec, notice: &mut dyn FnMut(&str)) -> Result<Option<u64>, OpenError> {
        self.files.places.open(space, spec, self.options, notice)
    }

    /// The spec that the file of `space` was made from, also when the file is gone.
    pub fn spec_of(&self, space: usize) -> Option<&SwapSpec> {
        self.files.places.named(space).map(|named| &named.spec)
    }

    /// In a forked child: closes the files that the parent was about to close.
    pub fn close_shut(&self) {
        self.files.places.close_shut();
    }

    /// The descriptors that Farshore uses now: the files, and the rings of queues.
    pub fn fds(&self) -> impl Iterator<Item = RawFd> {
        self.files.places.fds().chain(self.files.places.rings.iter())
    }

    /// The descriptors of its queues' rings, which are none of ours from now on.
    pub fn take_rings(&self) -> Vec<RawFd> {
        self.files.places.rings.take()
    }

    /// Whether queues write through io_uring (else: one write at a time). Tests alone ask.
    pub fn is_asynchronous(&self) -> bool {
        self.uring
    }

    /// The files.
    pub fn borrow(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        (0..self.spaces()).filter_map(|space| self.files.places.file(space).ok())
    }
}

impl Backend for FileArray {
    type Queue = FileQueue;

    fn queue(&self, depth: u32) -> Result<FileQueue, IoError> {
        FileQueue::new(&self.files, depth, self.uring, &self.ready)
    }
}

impl Reads for FileArray {
    fn read(&self, slot: Slot, into: &mut PageBuf) -> Result<(), IoError> {
        self.files.read(slot.number(), core::slice::from_mut(into))
    }

    fn read_run(&self, first: Slot, into: &mut [PageBuf]) -> Result<(), IoError> {
        self.files.read(first.number(), into)
    }

    /// The caller reads the first piece; it asks again for pages that it does not get.
    fn begin_read(&self, first: Slot, into: &mut [PageBuf]) -> ReadBegun {
        let piece = self.files.piece(first.number(), into.len() as u32);
        let file = self.files.places.file(piece.file);
        match file.and_then(|file| Ok((file.as_raw_fd(), self.files.places.offset(piece.file, piece.offset)?))) {
            Ok((fd, offset)) => ReadBegun::File { fd, offset, pages: piece.pages as usize },
            Err(why) => ReadBegun::Over(Err(why)),
        }
    }
}

impl Spaces for FileArray {
    fn capacity(&self) -> Option<u64> {
        (0..self.spaces()).map(|space| self.capacity_of(space)).sum()
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn spaces(&self) -> usize {
        self.files.places.count()
    }

    fn capacity_of(&self, space: usize) -> Option<u64> {
        self.files.places.capacity(space)
    }

    fn name_of(&self, slot: Slot) -> &str {
        self.files.places.named(self.files.piece(slot.number(), 1).file).map_or(&self.name, |named| &named.name)
    }

    fn arrange(&self, first: u32, spaces: SpaceSet) {
        self.files.arrangements.arrange(first, spaces);
    }

    fn shut_space(&self, space: usize) {
        self.files.places.shut(space);
    }

    fn close_space(&self, space: usize) {
        self.files.places.close(space);
    }

    fn give_back(&self, first: Slot, count: u32) -> Result<(), IoError> {
        self.files.give_back(first.number(), count)
    }
}

impl MemoryBudget for FileArray {}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(n: usize) -> Files {
        Files { places: Places::new(), arrangements: Arrangements::new(SpaceSet::first(n)) }
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

    /// Every transfer of up to three pages, with every sequence of answers that the kernel may give: reads and writes, with the
    /// ring and without.
    #[test]
    fn every_sequence_of_answers_ends_as_it_must() {
        const ERRNOS: [Errno; 8] =
            [Errno::INTR, Errno::AGAIN, Errno::CANCELED, Errno::NOSPC, Errno::DQUOT, Errno::FBIG, Errno::IO, Errno::NODEV];
        let bytes = [0, 512, 4095, 4096, 4096 + 512, 2 * 4096, 3 * 4096];
        let answers: Vec<i32> = bytes.into_iter().chain(ERRNOS.map(|errno| -errno.raw_os_error())).collect();
        let retried = |answer: i32| [Errno::INTR, Errno::AGAIN, Errno::CANCELED].iter().any(|e| answer == -e.raw_os_error());
        let mut ends = 0;
        for count in 1..=3 {
            for code in 0..answers.len().pow(5) {
                let mut progress = Progress::new(Slot::new(9).unwrap(), count);
                let (mut pages, mut rest) = (0, code);
                loop {
                    let answer = answers[rest % answers.len()];
                    rest /= answers.len();
                    // A kernel never transfers more than it was asked for.
                    let answer = answer.min((count - pages) as i32 * 4096);
                    let step = progress.advance(answer);
                    pages += (answer.max(0) / 4096) as u32;
                    assert_eq!((progress.slot(), progress.left()), (9 + u64::from(pages), count - pages));
                    let full = [Errno::NOSPC, Errno::DQUOT, Errno::FBIG].iter().any(|e| answer == -e.raw_os_error());
                    match step {
                        Step::More => assert!(pages < count && (answer >= 0 || retried(answer))),
                        Step::Over(Ok(())) => assert_eq!(pages, count),
                        Step::Over(Err(IoError::Full)) => assert!(full && pages < count),
                        Step::Over(Err(IoError::Device(errno))) => assert!(errno == -answer && !full && pages < count),
                        Step::Over(Err(IoError::Short)) => unreachable!("after {TRIES} in a row, and these are five"),
                    }
                    if step != Step::More || rest == 0 {
                        ends += u32::from(step != Step::More);
                        break;
                    }
                }
            }
        }
        assert!(ends > 1_000_000, "{ends}");
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
        assert_ne!(last, Some(Step::Over(Err(farshore_core::seams::LATER))), "it would not count as the device's error");
    }
}
