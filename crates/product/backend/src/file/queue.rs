//! The queue that an evictor writes through: io_uring, or one write at a time where there is none.

use super::uring::{self, UringQueue};
use super::{Files, Progress};
use farshore_core::seams::{IoError, PageBuf, WriteQueue};
use farshore_core::word::Slot;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// Most writes in flight of one queue, whatever is asked for: three batches of 256 single pages and more.
const DEPTH_MAX: u32 = 4096;

/// Writes to a [`FileArray`](super::FileArray).
#[derive(Debug)]
pub struct FileQueue(Kind);

#[derive(Debug)]
enum Kind {
    Uring(Box<UringQueue>),
    Sync(SyncQueue),
}

impl FileQueue {
    /// `ready`: a queue of [`uring::FIRST_DEPTH`] that was made before.
    pub(super) fn new(
        files: &Arc<Files>,
        depth: u32,
        uring: bool,
        ready: &Mutex<Option<Box<UringQueue>>>,
    ) -> Result<FileQueue, IoError> {
        let depth = depth.clamp(1, DEPTH_MAX);
        if !uring {
            return Ok(FileQueue(Kind::Sync(SyncQueue::new(Arc::clone(files), depth))));
        }
        let ready = ready.lock().ok().filter(|_| depth <= uring::FIRST_DEPTH).and_then(|mut ready| ready.take());
        let queue = match ready {
            Some(queue) => Box::new(queue.limited(depth)),
            None => Box::new(UringQueue::new(Arc::clone(files), depth)?),
        };
        Ok(FileQueue(Kind::Uring(queue)))
    }

    /// The ring, so that tests can take it away from under the queue.
    #[doc(hidden)]
    pub fn ring_fd(&self) -> Option<rustix::fd::RawFd> {
        match &self.0 {
            Kind::Uring(queue) => Some(queue.ring_fd()),
            Kind::Sync(_) => None,
        }
    }
}

impl WriteQueue for FileQueue {
    unsafe fn start_write(&mut self, first: Slot, pages: *const PageBuf, count: u32, tag: u64) -> Result<(), ()> {
        match &mut self.0 {
            // SAFETY: the caller keeps our own contract, which is the same.
            Kind::Uring(queue) => unsafe { queue.start_write(first, pages, count, tag) },
            // SAFETY: as above.
            Kind::Sync(queue) => unsafe { queue.start_write(first, pages, count, tag) },
        }
    }

    fn reap(&mut self, wait: bool, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        match &mut self.0 {
            Kind::Uring(queue) => queue.reap(wait, done),
            Kind::Sync(queue) => queue.reap(wait, done),
        }
    }

    fn reap_within(&mut self, ns: u64, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        match &mut self.0 {
            Kind::Uring(queue) => queue.reap_within(ns, done),
            Kind::Sync(queue) => queue.reap(true, done),
        }
    }

    fn in_flight(&self) -> u32 {
        match &self.0 {
            Kind::Uring(queue) => queue.in_flight(),
            Kind::Sync(queue) => queue.in_flight(),
        }
    }
}

/// Writes at once, on the thread that starts them.
#[derive(Debug)]
struct SyncQueue {
    files: Arc<Files>,
    depth: usize,
    /// Writes that were made and not reaped; room for `depth`, so that it never allocates.
    written: VecDeque<(u64, Result<(), IoError>)>,
}

impl SyncQueue {
    fn new(files: Arc<Files>, depth: u32) -> SyncQueue {
        SyncQueue { files, depth: depth as usize, written: VecDeque::with_capacity(depth as usize) }
    }
}

impl WriteQueue for SyncQueue {
    unsafe fn start_write(&mut self, first: Slot, pages: *const PageBuf, count: u32, tag: u64) -> Result<(), ()> {
        if self.written.len() == self.depth {
            return Err(());
        }
        let result = if count == 0 {
            Ok(())
        } else if let Err(why) = self.files.prepare(first.number(), count) {
            Err(why)
        } else {
            // SAFETY: the caller's pages stay readable until the completion is reaped, which is later.
            unsafe { self.files.write_now(pages, Progress::new(first, count)) }
        };
        self.written.push_back((tag, result));
        Ok(())
    }

    fn reap(&mut self, _wait: bool, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        while let Some((tag, result)) = self.written.pop_front() {
            done(tag, result);
        }
    }

    /// Writes in flight have been made already.
    fn reap_within(&mut self, _ns: u64, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        self.reap(true, done);
    }

    fn in_flight(&self) -> u32 {
        self.written.len() as u32
    }
}
