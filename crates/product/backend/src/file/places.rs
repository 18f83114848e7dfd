//! The files of an array: a table that faults read without a lock, while files come and go.
//!
//! A file's place is filled before the engine learns of the file, its descriptor last (Release). The place is emptied when the
//! engine has no slot in the file any more ([`shut`](Places::shut), then [`close`](Places::close)). So a thread that reads a slot
//! finds its file. A thread that writes without a ring may still be about to write a page that is no longer needed (a pool's copy
//! of a page that was freed meanwhile). Such writers are counted, and a file is closed when there is none. With a ring the kernel
//! holds the file: each ring's table of files has the same places ([`Places::in_rings`]).

use super::open::{self, Opened};
use super::{FileOptions, io_error};
use crate::device::{self, regions::Regions};
use crate::error::{OpenError, SMALLEST_BYTES};
use crate::fd::FdList;
use crate::sleep;
use farshore_config::SwapSpec;
use farshore_core::limits::EXTENT_SLOTS;
use farshore_core::seams::IoError;
use farshore_core::slots::arrangement::SPACES_MAX;
use rustix::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::io_uring::{IoringRegisterOp, io_uring_files_update, io_uring_ptr, io_uring_register};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// No file.
pub(super) const NONE: RawFd = -1;
/// The capacity of a file that has no limit.
const ENDLESS: u64 = u64::MAX;
/// How long to wait for a writer before looking again, in ns.
const PAUSE_NS: u64 = 100_000;

/// The spec that a file was made from, and its text.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) spec: SwapSpec,
    pub(super) name: String,
    /// For a device: where written bytes lie on it.
    regions: Option<Regions>,
    /// There never was a file, and why.
    left_out: Option<IoError>,
}

#[derive(Debug)]
struct Place {
    fd: AtomicI32,
    /// Slots that the file can hold.
    capacity: AtomicU64,
    /// No thread may begin to write.
    shut: AtomicBool,
    /// Threads that write without a ring now.
    writers: AtomicU32,
    /// Never freed, because names are handed out.
    named: AtomicPtr<Named>,
}

/// All places.
#[derive(Debug)]
pub(super) struct Places {
    list: Box<[Place]>,
    /// Places that have or had a file.
    count: AtomicUsize,
    /// Rings that queues have open.
    pub(super) rings: FdList,
    /// Held while a ring comes or goes, or the files of rings change.
    pub(super) changing: Mutex<()>,
}

/// A thread that writes to a file without a ring.
pub(super) struct Writer<'f>(&'f Place);

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.0.writers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Slots of a file: whole extents, since the last one must not be cut.
fn slots_of(spec: &SwapSpec, opened: &Opened) -> Result<Option<u64>, OpenError> {
    match opened.limit {
        Some(bytes) if bytes < SMALLEST_BYTES => Err(OpenError::TooSmall { what: spec.to_string(), bytes }),
        Some(bytes) => Ok(Some(bytes / SMALLEST_BYTES * EXTENT_SLOTS as u64)),
        None => Ok(None),
    }
}

impl Places {
    pub(super) fn new() -> Places {
        let place = |_| Place {
            fd: AtomicI32::new(NONE),
            capacity: AtomicU64::new(0),
            shut: AtomicBool::new(false),
            writers: AtomicU32::new(0),
            named: AtomicPtr::new(core::ptr::null_mut()),
        };
        let list = (0..SPACES_MAX).map(place).collect();
        Places { list, count: AtomicUsize::new(0), rings: FdList::new(), changing: Mutex::new(()) }
    }

    /// Opens a file and puts it into `space`, which has none.
    pub(super) fn open(
        &self,
        space: usize,
        spec: &SwapSpec,
        options: FileOptions,
        notice: &mut dyn FnMut(&str),
    ) -> Result<Option<u64>, OpenError> {
        self.enter(space, spec, open::open(spec, options, notice)?)
    }

    /// Puts a file into `space`, which has none: one that a process has left that has ended.
    pub(super) fn take_over(
        &self,
        space: usize,
        spec: &SwapSpec,
        fd: OwnedFd,
        notice: &mut dyn FnMut(&str),
    ) -> Result<Option<u64>, OpenError> {
        self.enter(space, spec, open::take_over(spec, fd, notice)?)
    }

    fn enter(&self, space: usize, spec: &SwapSpec, opened: Opened) -> Result<Option<u64>, OpenError> {
        let slots = slots_of(spec, &opened)?;
        let Opened { fd, regions, .. } = opened;
        self.put(space, Named { spec: spec.clone(), name: spec.to_string(), regions, left_out: None }, fd.into_raw_fd(), slots);
        let registered = self.in_rings(space);
        registered.map(|()| slots).map_err(|errno| {
            self.shut(space);
            self.close(space);
            OpenError::Ring { what: spec.to_string(), errno }
        })
    }

    /// Gives `space` a number and a name, and no file: writes to it end with `why`.
    pub(super) fn leave_out(&self, space: usize, spec: &SwapSpec, why: IoError) {
        self.put(space, Named { spec: spec.clone(), name: spec.to_string(), regions: None, left_out: Some(why) }, NONE, None);
        self.list[space].shut.store(true, Ordering::Release);
    }

    fn put(&self, space: usize, named: Named, fd: RawFd, slots: Option<u64>) {
        let place = &self.list[space];
        place.named.store(Box::into_raw(Box::new(named)), Ordering::Release);
        place.capacity.store(slots.unwrap_or(ENDLESS), Ordering::Relaxed);
        place.shut.store(false, Ordering::Relaxed);
        place.fd.store(fd, Ordering::Release);
        self.count.fetch_max(space + 1, Ordering::AcqRel);
    }

    /// Number of places that have or had a file; their numbers are below it.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// The descriptors of all files.
    pub(super) fn fds(&self) -> impl Iterator<Item = RawFd> {
        let files = self.list.iter().map(|place| place.fd.load(Ordering::Acquire)).filter(|&fd| fd != NONE);
        files.chain((0..self.list.len()).map(|space| self.claims(space)).filter(|&fd| fd != NONE)).chain(device::fds())
    }

    /// For a device: where its parts are.
    pub(super) fn regions(&self, space: usize) -> Option<&Regions> {
        self.named(space).and_then(|named| named.regions.as_ref())
    }

    /// The description with which a device's regions are claimed.
    fn claims(&self, space: usize) -> RawFd {
        self.regions(space).and_then(Regions::fd).unwrap_or(NONE)
    }

    /// Where byte `offset` of a space, which was written, lies in its file.
    #[inline]
    pub(super) fn offset(&self, space: usize, offset: u64) -> Result<u64, IoError> {
        match self.regions(space) {
            None => Ok(offset),
            Some(regions) => regions.find(offset).ok_or(IoError::Short),
        }
    }

    /// As [`Places::offset`] for a page that is about to be written: this may take a part of a device that no layer had.
    pub(super) fn offset_to_write(&self, space: usize, offset: u64) -> Result<u64, IoError> {
        match self.named(space) {
            Some(Named { left_out: Some(why), .. }) => Err(*why),
            Some(Named { regions: Some(regions), .. }) => regions.claim(offset),
            Some(_) | None => Ok(offset),
        }
    }

    /// The spec that the file of `space` was made from, also when the file is gone.
    pub(super) fn named(&self, space: usize) -> Option<&Named> {
        // SAFETY: null, or from Box::into_raw in `put`, and never freed.
        unsafe { self.list[space].named.load(Ordering::Acquire).as_ref() }
    }

    /// Slots that the file of `space` can hold; `None`: as many as its disk has room for.
    pub(super) fn capacity(&self, space: usize) -> Option<u64> {
        Some(self.list[space].capacity.load(Ordering::Relaxed)).filter(|&slots| slots != ENDLESS)
    }

    /// The file, for a caller that has a slot in it.
    #[inline]
    pub(super) fn file(&self, space: usize) -> Result<BorrowedFd<'_>, IoError> {
        match self.list[space].fd.load(Ordering::Acquire) {
            NONE => Err(io_error(Errno::BADF)),
            // SAFETY: open, and closed only when no caller has a slot in it (module head).
            fd => Ok(unsafe { BorrowedFd::borrow_raw(fd) }),
        }
    }

    /// The file, for a thread that writes without a ring, perhaps a page that is no longer needed.
    pub(super) fn writer(&self, space: usize) -> Result<(Writer<'_>, BorrowedFd<'_>), IoError> {
        let place = &self.list[space];
        // SeqCst, and the look after it: pairs with `shut`, so that either we see that the file is shut, or that thread
        // sees us.
        place.writers.fetch_add(1, Ordering::SeqCst);
        let writer = Writer(place);
        if place.shut.load(Ordering::SeqCst) {
            return Err(io_error(Errno::BADF));
        }
        self.file(space).map(|file| (writer, file))
    }

    /// From now on no thread begins a write without a ring; waits for those that have begun.
    pub(super) fn shut(&self, space: usize) {
        let place = &self.list[space];
        place.shut.store(true, Ordering::SeqCst);
        while place.writers.load(Ordering::SeqCst) != 0 {
            sleep::nap(PAUSE_NS);
        }
    }

    /// Closes the file of `space`, which was shut.
    pub(super) fn close(&self, space: usize) {
        let fd = self.list[space].fd.swap(NONE, Ordering::AcqRel);
        if fd != NONE {
            // SAFETY: the descriptor is ours, and no other code uses it any more (module head).
            unsafe { rustix::io::close(fd) };
            self.regions(space).into_iter().for_each(Regions::close);
            // A file that a ring still holds keeps its disk space. An error here means that the ring is gone.
            let _ = self.in_rings(space);
        }
    }

    /// In a forked child: closes the files that the parent was about to close.
    pub(super) fn close_shut(&self) {
        for (space, place) in self.list.iter().enumerate().filter(|(_, place)| place.shut.load(Ordering::Acquire)) {
            let fd = place.fd.swap(NONE, Ordering::AcqRel);
            if fd != NONE {
                // SAFETY: this process' copy of a descriptor that the parent was about to close.
                unsafe { rustix::io::close(fd) };
                self.regions(space).into_iter().for_each(Regions::close);
            }
        }
    }

    /// The table of files that a new ring begins with: the files, and behind them the descriptions that keep parts of devices
    /// claimed until the ring's last write has ended ([`crate::device::regions`]).
    pub(super) fn table(&self) -> Vec<RawFd> {
        let files = self.list.iter().map(|place| place.fd.load(Ordering::Acquire));
        files.chain((0..self.list.len()).map(|space| self.claims(space))).collect()
    }

    /// Runs `f` while no ring comes or goes, and the files of no ring change. For threads of Farshore's that may wait.
    pub(super) fn alone<R>(&self, f: impl FnOnce() -> R) -> R {
        // The thread does not sleep in the lock: that would go through libc.
        let held = loop {
            match self.changing.try_lock() {
                Ok(held) => break Some(held),
                Err(std::sync::TryLockError::WouldBlock) => sleep::nap(PAUSE_NS),
                Err(std::sync::TryLockError::Poisoned(_)) => break None,
            }
        };
        let result = f();
        drop(held);
        result
    }

    /// Tells all rings which file is in `space` now, or that there is none.
    fn in_rings(&self, space: usize) -> Result<(), Errno> {
        self.alone(|| {
            let file = self.list[space].fd.load(Ordering::Acquire);
            // The description that claims parts of a device goes after the device: a write that is under way keeps both.
            let entries = [(space, file), (self.list.len() + space, self.claims(space))];
            let mut all = Ok(());
            for ring in self.rings.iter() {
                // SAFETY: a ring's descriptor. Its queue takes it off the list before it closes it, and does not do so while we
                // are alone.
                let ring = unsafe { BorrowedFd::borrow_raw(ring) };
                for (at, fd) in entries {
                    all = all.and(update(ring, at, fd));
                }
            }
            all
        })
    }
}

/// Tells a ring which file is at a place of its table.
fn update(ring: BorrowedFd<'_>, at: usize, mut fd: RawFd) -> Result<(), Errno> {
    let mut update = io_uring_files_update::default();
    (update.offset, update.fds) = (at as u32, io_uring_ptr::new((&raw mut fd).cast()));
    let update = (&raw const update).cast();
    // SAFETY: the structure, and the one descriptor that it points to, are read during the call.
    unsafe { io_uring_register(ring, IoringRegisterOp::RegisterFilesUpdate, update, 1) }.map(drop)
}

impl Drop for Places {
    fn drop(&mut self) {
        for space in 0..self.list.len() {
            self.close(space);
        }
    }
}
