//! Writes through io_uring.
//!
//! # Life of a write
//!
//! ```text
//! Free ─start_write─▶ Started ─▶ (SQE in the ring ─▶ in the kernel ─▶ CQE) ─▶ delivered: Free
//!                        ▲                                  │
//!                        └── the rest of a short write ─────┘
//! ```
//!
//! 1. A write has at most one SQE or CQE at a time, so rings of `depth` entries never overflow.
//! 2. `user_data` is the index of its [`Op`]. An op leaves `Started` only by its own CQE, or by (3).
//! 3. When the kernel no longer accepts the ring (its descriptor was closed under us), the ring is *broken*. SQEs that
//!    the kernel has not taken end with the error and will never be submitted; those that it has taken still complete
//!    into the ring's memory, which stays mapped. New writes are made at once with pwrite.
//!
//! The thread that starts Farshore makes the ring, and an evictor uses it, so SINGLE_ISSUER cannot be used. COOP_TASKRUN
//! keeps completions from interrupting the evictor (an IPI is 10 us in a VM).

use super::{Files, Progress, Step, TRIES, io_error};
use crate::fd::place_high;
use crate::sleep;
use core::sync::atomic::{AtomicBool, Ordering};
use farshore_core::limits::PAGE_SIZE;
use farshore_core::seams::{IoError, PageBuf, WriteQueue};
use farshore_core::word::Slot;
use io_uring::{IoUring, opcode, types};
use rustix::fd::{AsRawFd, BorrowedFd, IntoRawFd, RawFd};
use rustix::io::Errno;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

/// How long to wait before the kernel is asked again when it had no memory, in ns.
const PAUSE_NS: u64 = 200_000;

/// How long [`UringQueue::enter`] waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    No,
    ForOne,
    /// At most this many ns.
    AtMost(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    Started,
    /// Ended without a CQE.
    Ended(Result<(), IoError>),
}

#[derive(Clone, Copy, Debug)]
struct Op {
    state: State,
    tag: u64,
    pages: *const PageBuf,
    progress: Progress,
    /// The number of its last SQE, among all SQEs of the ring.
    pushed: u64,
}

/// No ring gets a write from now on (see [`set_in_place`]).
static IN_PLACE: AtomicBool = AtomicBool::new(false);

/// Writes are made in place from now on, or through rings again. The kernel makes threads in this process for operations that it
/// does not do at once. They keep the rights that a thread of ours had when they were made, and end with it.
pub fn set_in_place(on: bool) {
    IN_PLACE.store(on, Ordering::Relaxed);
}

/// A ring and the writes in it.
pub(super) struct UringQueue {
    /// Given up, not dropped, when broken: the number of its descriptor may be the program's by then.
    ring: ManuallyDrop<IoUring>,
    ring_fd: RawFd,
    files: Arc<Files>,
    ops: Box<[Op]>,
    free: Vec<u32>,
    /// Number of ops in `Ended`.
    ended: u32,
    /// SQEs put into the ring so far.
    pushed: u64,
    broken: Option<Errno>,
    /// The kernel could make no thread for an operation that it does not do at once (`RLIMIT_NPROC`, `pids.max`), and has
    /// cancelled such a write. From then on writes are made in place.
    in_place: bool,
}

// SAFETY: the pointers in `ops` are only handed to the kernel; that the memory behind them may be read from
// any thread is `start_write`'s contract. Everything else is Send.
unsafe impl Send for UringQueue {}

impl fmt::Debug for UringQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UringQueue")
            .field("ring_fd", &self.ring_fd)
            .field("in_flight", &self.in_flight())
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// A ring of at least `depth` entries whose descriptor has a high number.
fn build(depth: u32) -> Result<(IoUring, RawFd), Errno> {
    let low: IoUring =
        IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(depth).map_err(|error| errno_of(&error))?;
    let params = low.params().clone();
    // SAFETY: `low` owns its descriptor and outlives the borrow.
    let low_fd = unsafe { BorrowedFd::borrow_raw(low.as_raw_fd()) };
    let high = place_high(rustix::io::dup(low_fd)?)?;
    let fd = high.into_raw_fd();
    // SAFETY: the descriptor is owned (just given away by `high`) and belongs to the ring that `params` describe. The low
    // one's mapping and number go when `low` is dropped; the ring lives on through `fd`.
    let ring = unsafe { IoUring::from_fd(fd, params) }.map_err(|error| errno_of(&error))?;
    Ok((ring, fd))
}

/// Writes in flight of the queue that [`try_out`] makes.
pub(super) const FIRST_DEPTH: u32 = 64;

/// Makes the first queue, if writes through io_uring work here; reports it if they do not.
///
/// The queue is kept for the first caller that wants one. A ring that is taken down interrupts the thread that made it, some time
/// later, as a signal does: the program's `read` from `/dev/zero` came back short, and its `epoll_wait` with `EINTR`.
pub(super) fn try_out(files: &Arc<Files>, notice: &mut dyn FnMut(&str)) -> Option<UringQueue> {
    let works = || -> Result<UringQueue, Errno> {
        let mut queue = UringQueue::build(Arc::clone(files), FIRST_DEPTH)?;
        // SAFETY: a NOP uses no memory.
        let pushed = unsafe { queue.ring.submission().push(&opcode::Nop::new().build()) };
        pushed.map_err(|_| Errno::BUSY)?;
        queue.ring.submit_and_wait(1).map_err(|error| errno_of(&error))?;
        let done = queue.ring.completion().next().is_some();
        if done { Ok(queue) } else { Err(Errno::IO) }
    };
    works()
        .inspect_err(|errno| {
            notice(&format!(
                "io_uring cannot be used ({errno}): pages are written one batch at a time; \
                 see kernel.io_uring_disabled and the limits of the container"
            ));
        })
        .ok()
}

impl UringQueue {
    pub(super) fn new(files: Arc<Files>, depth: u32) -> Result<UringQueue, IoError> {
        UringQueue::build(files, depth).map_err(io_error)
    }

    fn build(files: Arc<Files>, depth: u32) -> Result<UringQueue, Errno> {
        let (ring, ring_fd) = build(depth)?;
        files.places.alone(|| {
            // As many files as there can be, with holes.
            ring.submitter().register_files(&files.places.table()).map_err(|error| errno_of(&error))?;
            if files.places.rings.add(ring_fd) { Ok(()) } else { Err(Errno::MFILE) }
        })?;
        let progress = Progress { first: 0, count: 0, done: 0, tries: 0 };
        let op = Op { state: State::Free, tag: 0, pages: core::ptr::null(), progress, pushed: 0 };
        Ok(UringQueue {
            ring: ManuallyDrop::new(ring),
            ring_fd,
            files,
            ops: vec![op; depth as usize].into(),
            free: (0..depth).rev().collect(),
            ended: 0,
            pushed: 0,
            broken: None,
            in_place: false,
        })
    }

    /// The queue, for at most `depth` writes. It was made for [`FIRST_DEPTH`], and has not been used.
    pub(super) fn limited(mut self, depth: u32) -> UringQueue {
        self.free = (0..depth.min(FIRST_DEPTH)).rev().collect();
        self.ops = self.ops[..self.free.len()].into();
        self
    }

    pub(super) fn ring_fd(&self) -> RawFd {
        self.ring_fd
    }

    fn end(&mut self, index: u32, result: Result<(), IoError>) {
        debug_assert_eq!(self.ops[index as usize].state, State::Started);
        self.ops[index as usize].state = State::Ended(result);
        self.ended += 1;
    }

    /// Puts the next piece of a write into the ring; writes it at once when the ring is broken.
    fn push(&mut self, index: u32) {
        let op = self.ops[index as usize];
        if self.broken.is_some() || self.in_place || IN_PLACE.load(Ordering::Relaxed) {
            // SAFETY: the pages stay readable until the completion is reaped, which comes after `end`.
            let result = unsafe { self.files.write_now(op.pages, op.progress) };
            return self.end(index, result);
        }
        let piece = self.files.piece(op.progress.slot(), op.progress.left());
        let offset = match self.files.places.offset(piece.file, piece.offset) {
            Ok(offset) => offset,
            // `start_write` has made sure that the place exists.
            Err(why) => return self.end(index, Err(why)),
        };
        // SAFETY: `done` is below `count`, so this is within the caller's pages.
        let from = unsafe { op.pages.add(op.progress.done as usize) };
        let sqe = opcode::Write::new(types::Fixed(piece.file as u32), from.cast(), piece.pages * PAGE_SIZE as u32)
            .offset(offset)
            .build()
            .user_data(u64::from(index));
        // SAFETY: the kernel reads `piece.pages` of the caller's pages, which stay as they are until the
        // completion has been reaped (`start_write`'s contract); the file's index was registered.
        let pushed = unsafe { self.ring.submission().push(&sqe) };
        if pushed.is_err() {
            // Rule 1 says that there is room. If that should be wrong, the write must end all the same.
            return self.end(index, Err(IoError::Device(Errno::BUSY.raw_os_error())));
        }
        self.pushed += 1;
        self.ops[index as usize].pushed = self.pushed;
    }

    /// Hands SQEs to the kernel, and waits for a completion as long as `wait` says.
    fn enter(&mut self, wait: Wait) {
        let (unsubmitted, taskrun) = {
            let queue = self.ring.submission();
            (queue.len(), queue.taskrun() || queue.cq_overflow())
        };
        if self.broken.is_some() {
            if wait != Wait::No {
                // Writes that the kernel has taken complete by themselves, at the next system call of this thread.
                sleep::nap(PAUSE_NS);
            }
            return;
        }
        if unsubmitted == 0 && !taskrun && wait == Wait::No {
            return;
        }
        let entered = match wait {
            Wait::No => self.ring.submit(),
            Wait::ForOne => self.ring.submit_and_wait(1),
            Wait::AtMost(ns) => {
                let time = types::Timespec::from(Duration::from_nanos(ns));
                self.ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&time))
            }
        };
        match entered {
            Ok(_) => {}
            Err(error) => match errno_of(&error) {
                Errno::INTR | Errno::TIME => {}
                // The kernel has no memory for a request, or completions must be taken first.
                Errno::AGAIN | Errno::BUSY | Errno::NOMEM => sleep::nap(PAUSE_NS),
                errno => self.break_ring(errno),
            },
        }
    }

    /// Breaks the ring (rule 3).
    fn break_ring(&mut self, errno: Errno) {
        self.broken = Some(errno);
        let taken = self.pushed - self.ring.submission().len() as u64;
        for index in 0..self.ops.len() {
            if self.ops[index].state == State::Started && self.ops[index].pushed > taken {
                self.end(index as u32, Err(IoError::Device(errno.raw_os_error())));
            }
        }
    }

    /// Takes completions out of the ring and moves their writes on. Delivers writes that have ended, and returns how
    /// many.
    fn deliver(&mut self, done: &mut dyn FnMut(u64, Result<(), IoError>)) -> u32 {
        let mut delivered = 0;
        loop {
            // One at a time: a write that goes on needs the ring for its next piece.
            let Some(entry) = self.ring.completion().next() else { break };
            let index = entry.user_data() as u32;
            let op = &mut self.ops[index as usize];
            debug_assert_eq!(op.state, State::Started);
            if entry.result() == -Errno::CANCELED.raw_os_error() {
                // Only the kernel cancels anything here.
                self.in_place = true;
                self.push(index);
                continue;
            }
            // SAFETY: the pages stay readable until the completion is reaped, which is below.
            let result = unsafe { self.files.past_limit(entry.result(), op.pages, &op.progress) };
            match op.progress.advance(result) {
                Step::More => self.push(index),
                Step::Over(result) => {
                    op.state = State::Free;
                    let tag = op.tag;
                    self.free.push(index);
                    delivered += 1;
                    done(tag, result);
                }
            }
        }
        delivered + self.deliver_ended(done)
    }

    /// Delivers writes that have ended without a completion.
    fn deliver_ended(&mut self, done: &mut dyn FnMut(u64, Result<(), IoError>)) -> u32 {
        let mut delivered = 0;
        let mut index = 0;
        while self.ended > 0 && index < self.ops.len() {
            let op = &mut self.ops[index];
            if let State::Ended(result) = op.state {
                op.state = State::Free;
                let tag = op.tag;
                self.ended -= 1;
                self.free.push(index as u32);
                delivered += 1;
                done(tag, result);
            }
            index += 1;
        }
        delivered
    }
}

impl WriteQueue for UringQueue {
    unsafe fn start_write(&mut self, first: Slot, pages: *const PageBuf, count: u32, tag: u64) -> Result<(), ()> {
        let index = self.free.pop().ok_or(())?;
        let progress = Progress::new(first, count);
        self.ops[index as usize] = Op { state: State::Started, tag, pages, progress, pushed: 0 };
        if count == 0 {
            self.end(index, Ok(()));
        } else if let Err(why) = self.files.prepare(first.number(), count) {
            self.end(index, Err(why));
        } else {
            self.push(index);
        }
        Ok(())
    }

    fn reap(&mut self, wait: bool, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        self.enter(Wait::No);
        let mut delivered = self.deliver(done);
        while wait && delivered == 0 && self.in_flight() > 0 {
            self.enter(Wait::ForOne);
            delivered = self.deliver(done);
        }
        // Submits the rest of short writes.
        self.enter(Wait::No);
    }

    fn reap_within(&mut self, ns: u64, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        self.enter(Wait::No);
        if self.deliver(done) == 0 && self.in_flight() > 0 {
            self.enter(Wait::AtMost(ns));
            self.deliver(done);
        }
        self.enter(Wait::No);
    }

    fn in_flight(&self) -> u32 {
        (self.ops.len() - self.free.len()) as u32
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        // The kernel may read the pages until the last completion.
        while self.in_flight() > 0 {
            self.reap(true, &mut |_, _| {});
        }
        self.files.places.alone(|| self.files.places.rings.remove(self.ring_fd));
        if self.broken.is_none() {
            // The kernel takes rings down later, and until then the files' disk space would stay in use.
            let _ = self.ring.submitter().unregister_files();
            // SAFETY: dropped here once; the queue is gone afterwards.
            unsafe { ManuallyDrop::drop(&mut self.ring) };
        }
    }
}

const _: () = assert!(TRIES > 1, "an interrupted write must be tried again");
