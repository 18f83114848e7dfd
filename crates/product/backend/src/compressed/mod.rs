//! A pool of compressed pages in RAM, in front of other swap spaces or alone: `ram:lz4`, `ram:zstd`.
//!
//! ```text
//!  evictor ──write──▶ one word repeated? ─▶ the word
//!                     else compress ──────▶ pool ⋯⋯ oldest first, when it is full ⋯⋯▶ the tier below, same slot
//!                     not worth it, no room ─────────────────────────────────────────▶ the tier below, same slot
//!  fault ────read───▶ pool? decompress into the frame : the tier below
//! ```
//!
//! A page keeps its slot wherever it lies, so the layers above do not know where it lies. The pool is asked first; a page that
//! the pool has is the current one ([`farshore_core::pooled`] says why that is so while a copy is under way).
//!
//! # Which thread does what
//!
//! Evictors compress ([`CompressedQueue::start_write`]), and look after the pool once a batch ([`CompressedQueue::tend`]). They
//! take out pages of slots that were freed (the fault path frees slots and cannot wait for the pool's lock), and move the oldest
//! pages to the tier below. Faults read, without a lock.
//!
//! # Memory
//!
//! The pool counts as memory of the program: the engine takes it from the limit ([`Backend::own_memory`]). Entries of slots (16
//! bytes for each slot that was used, and 4 for a pool that finds its size) do not count.
//!
//! # Copies of freed pages
//!
//! A page may be freed while it is copied to the tier below. The write goes on, and its slot's place there must still be ours
//! when it lands. So room is not given back, and a space not closed, as long as a copy to it is under way ([`Pool::forget_all`],
//! [`Backend::is_quiet`]).
//!
//! # fork
//!
//! A forked child has a copy of the pool, as of all memory, and reads from it the pages that it has inherited; its own pages go
//! into a pool of its own ([`crate::layered`]). While a process forks no read and no write is under way, so no part of the pool
//! is locked or pinned.
//!
//! Pages are decompressed on the way to the tier below: files hold plain pages.

mod chunks;
mod codec;
mod pool;
#[cfg(test)]
mod tests;

pub use pool::{Counters, Decided};

use crate::any::{AnyBackend, AnyQueue};
use crate::error::{OpenError, SMALLEST_BYTES};
use crate::sleep;
use codec::{Encoder, WORTH_IT};
use farshore_config::{Compression, Size, SwapSpec};
use farshore_core::limits::BATCH_PAGES_MAX;
use farshore_core::seams::{
    Backend, CANNOT, CopyChange, FaultsSeen, FreeSlots, IoError, LATER, MemoryBudget, PageBuf, ReadBegun, Reads, Spaces,
    WriteQueue,
};
use farshore_core::slots::arrangement::SpaceSet;
use farshore_core::word::Slot;
use pool::{Pool, Put, Unpacked, Whose};
use std::collections::VecDeque;
use std::sync::Arc;

/// Pages of one copy to the tier below, and how many copies of one evictor may be under way.
const PAGES_A_COPY: usize = 32;
const COPIES: usize = 2;
/// Extents that are looked through for freed slots, once a batch. There are at most three slots for each page that lies
/// somewhere, so less than one page in a hundred is freed and not found yet.
const EXTENTS_A_SWEEP: u64 = 256;
/// How long is slept at a time, in ns, while a write waits for another evictor's copy and nothing of its own is on its way.
const COPY_WAIT_NS: u64 = 100_000;
/// The tag of a write below that is a copy.
const COPY: u64 = 1 << 63;
const EIO: i32 = 5;

/// A pool, and the space under it.
#[derive(Debug)]
pub struct Compressed {
    pool: Arc<Pool>,
    lower: Option<Box<AnyBackend>>,
    pool_name: String,
    /// The name, including the space under it.
    name: String,
}

impl Compressed {
    /// A pool of `size` bytes (default: as much as the machine has RAM, or an eighth of the address space that there is; the memory limit bounds it in any case), on
    /// top of `lower`.
    ///
    /// # Errors
    /// When it is smaller than 2 MiB, or cannot be reserved.
    pub fn open(kind: Compression, size: Option<Size>, lower: Option<AnyBackend>) -> Result<Compressed, OpenError> {
        let pool_name = SwapSpec::Ram { compress: Some(kind), size }.to_string();
        let all = || crate::ram::machine_bytes().min(crate::reserved::spare_bytes()).max(SMALLEST_BYTES);
        let bytes = size.map_or_else(all, Size::bytes);
        if bytes < SMALLEST_BYTES {
            return Err(OpenError::TooSmall { what: pool_name, bytes });
        }
        // However many slots the spaces below have: other spaces may come.
        let pool = crate::reserved::largest(bytes, size.is_none(), |bytes| Pool::new(kind, bytes, None, lower.is_some()))?;
        let name = lower.as_ref().map_or_else(|| pool_name.clone(), |lower| format!("{pool_name} over {}", lower.name()));
        Ok(Compressed { pool: Arc::new(pool), lower: lower.map(Box::new), pool_name, name })
    }

    /// The space under the pool.
    pub fn lower(&self) -> Option<&AnyBackend> {
        self.lower.as_deref()
    }

    /// The pool as it was asked for: `ram:lz4,size=1G`.
    pub fn pool_name(&self) -> &str {
        &self.pool_name
    }

    /// Memory for entries of slots and for the bookkeeping of chunks, in bytes.
    pub fn mapped_bytes(&self) -> u64 {
        self.pool.mapped_bytes()
    }

    /// How much memory was decided to be worth it, and on what grounds; `None`: the user has said how much.
    pub fn decided(&self) -> Option<Decided> {
        self.pool.decided()
    }

    /// Counts of what has gone through the pool.
    pub fn counters(&self) -> &Counters {
        &self.pool.counters
    }

    /// The most bytes that the pool may use, and how many it uses now.
    pub fn bytes(&self) -> (u64, u64) {
        self.pool.bytes()
    }

    fn below(&self) -> Result<&AnyBackend, IoError> {
        // A page that no tier has: its checksum would not be right either.
        self.lower.as_deref().ok_or(IoError::Device(EIO))
    }

    fn read_below(&self, first: Slot, into: &mut [PageBuf], whose: Whose) -> Result<(), IoError> {
        let lower = self.below()?;
        if !self.pool.is_adaptive() {
            return lower.read_run(first, into);
        }
        let began = sleep::now_ns();
        lower.read_run(first, into)?;
        self.pool.come(first, into.len(), Some((sleep::now_ns().saturating_sub(began), whose)));
        Ok(())
    }

    /// Pages that lie below are read by one transfer, if no pooled page is between them.
    fn read_for(&self, whose: Whose, first: Slot, into: &mut [PageBuf]) -> Result<(), IoError> {
        let mut below: Option<(usize, usize)> = None;
        let mut unpacked = Unpacked::default();
        for n in 0..=into.len() {
            let pooled = match into.get_mut(n) {
                Some(page) => self.pool.read(first.plus(n as u64), page, &mut unpacked),
                None => Some(true),
            };
            match pooled {
                None => below = Some((below.map_or(n, |(start, _)| start), n + 1)),
                Some(false) => return Err(IoError::Device(EIO)),
                Some(true) => {
                    if let Some((start, end)) = below.take() {
                        self.read_below(first.plus(start as u64), &mut into[start..end], whose)?;
                    }
                }
            }
        }
        self.pool.note_here(unpacked, whose);
        Ok(())
    }
}

impl Backend for Compressed {
    type Queue = CompressedQueue;

    fn queue(&self, depth: u32) -> Result<CompressedQueue, IoError> {
        let lower = self.lower.as_ref().map(|lower| lower.queue(depth + COPIES as u32)).transpose()?;
        let copies = if lower.is_some() { COPIES } else { 0 };
        Ok(CompressedQueue {
            pool: Arc::clone(&self.pool),
            lower,
            encoder: Encoder::new(self.pool.kind()),
            small: Box::new([0; WORTH_IT]),
            writes: vec![None; depth.max(1) as usize].into_boxed_slice(),
            passed_on: VecDeque::with_capacity(depth as usize * BATCH_PAGES_MAX),
            waiting: Vec::with_capacity(depth as usize * BATCH_PAGES_MAX),
            copies: (0..copies)
                .map(|_| Copy { run: None, pages: vec![PageBuf::ZERO; PAGES_A_COPY].into_boxed_slice() })
                .collect(),
            copies_fail: false,
            may_keep: true,
        })
    }
}

impl Reads for Compressed {
    fn read(&self, slot: Slot, into: &mut PageBuf) -> Result<(), IoError> {
        self.read_for(Whose::Fault, slot, core::slice::from_mut(into))
    }

    fn read_run(&self, first: Slot, into: &mut [PageBuf]) -> Result<(), IoError> {
        self.read_for(Whose::Fault, first, into)
    }

    fn read_ahead(&self, first: Slot, into: &mut [PageBuf]) -> Result<(), IoError> {
        self.read_for(Whose::Reader, first, into)
    }

    /// Pages that all lie below are read there; if one of them is pooled, all are read at once.
    fn begin_read(&self, first: Slot, into: &mut [PageBuf]) -> ReadBegun {
        if (0..into.len() as u64).any(|n| self.pool.has(first.plus(n))) {
            return ReadBegun::Over(self.read_run(first, into));
        }
        let begun = self.below().map_or_else(|why| ReadBegun::Over(Err(why)), |lower| lower.begin_read(first, into));
        let pages = match begun {
            ReadBegun::Over(Err(_)) => 0,
            ReadBegun::File { pages, .. } => pages,
            ReadBegun::Over(Ok(())) | ReadBegun::Due(_) => into.len(),
        };
        self.pool.come(first, pages, None);
        begun
    }

    fn finish_read(&self, first: Slot, into: &mut [PageBuf], read: Result<(), IoError>) -> Result<(), IoError> {
        self.below()?.finish_read(first, into, read)
    }

    fn doubt(&self, slot: Slot) {
        if !self.pool.has(slot) {
            self.lower.iter().for_each(|lower| lower.doubt(slot));
        }
    }
}

impl Spaces for Compressed {
    fn capacity(&self) -> Option<u64> {
        match &self.lower {
            Some(lower) => lower.capacity(),
            None => Some(self.pool.slots()),
        }
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn spaces(&self) -> usize {
        self.lower.as_ref().map_or(1, |lower| lower.spaces())
    }

    fn capacity_of(&self, space: usize) -> Option<u64> {
        match &self.lower {
            Some(lower) => lower.capacity_of(space),
            None => self.capacity(),
        }
    }

    fn name_of(&self, slot: Slot) -> &str {
        self.lower.as_ref().map_or(&self.name, |lower| lower.name_of(slot))
    }

    fn arrange(&self, first: u32, spaces: SpaceSet) {
        self.lower.iter().for_each(|lower| lower.arrange(first, spaces));
    }

    fn shut_space(&self, space: usize) {
        self.lower.iter().for_each(|lower| lower.shut_space(space));
    }

    fn close_space(&self, space: usize) {
        self.lower.iter().for_each(|lower| lower.close_space(space));
    }

    fn is_quiet(&self, is_there: &dyn Fn(Slot) -> bool) -> bool {
        self.pool.is_quiet(is_there) && self.lower.as_ref().is_none_or(|lower| lower.is_quiet(is_there))
    }

    /// A copy of a freed page that is on its way below would, on a device, land in a region that another process may have by
    /// then. And no copy may begin meanwhile: slots that are taken out look used.
    fn give_back(&self, first: Slot, count: u32) -> Result<(), IoError> {
        let Some(lower) = &self.lower else { return Err(CANNOT) };
        if self.pool.forget_all(first, count) { lower.give_back(first, count) } else { Err(LATER) }
    }

    fn keep(&self, free: &dyn FreeSlots) -> Option<u64> {
        self.lower.as_ref().and_then(|lower| lower.keep(free))
    }

    fn news(&self, tell: &mut dyn FnMut(&str, CopyChange)) {
        self.lower.iter().for_each(|lower| lower.news(tell));
    }
}

impl MemoryBudget for Compressed {
    fn own_memory(&self) -> Option<u64> {
        Some(self.pool.bytes().1)
    }

    fn takes_memory(&self) -> bool {
        self.pool.is_open()
    }

    fn allow_memory(&self, bytes: u64) {
        self.pool.allow(bytes);
    }
}

/// A write that its caller waits for.
#[derive(Clone, Copy, Debug)]
struct Write {
    tag: u64,
    /// Runs that were passed on and are not written yet, and pages that wait for a copy.
    left: u32,
    result: Result<(), IoError>,
}

/// Pages that are written past the pool.
#[derive(Clone, Copy, Debug)]
struct PassedOn {
    first: Slot,
    pages: *const PageBuf,
    count: u32,
    /// The write that they belong to.
    write: usize,
}

/// A page without room here, of whose slot an older page is being copied below. Until that is over nobody else may write there.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    slot: Slot,
    page: *const PageBuf,
    /// The write that it belongs to.
    write: usize,
}

/// A copy to the tier below, and the memory for one.
#[derive(Debug)]
struct Copy {
    run: Option<(Slot, u32)>,
    pages: Box<[PageBuf]>,
}

/// Writes to a [`Compressed`].
#[derive(Debug)]
pub struct CompressedQueue {
    pool: Arc<Pool>,
    lower: Option<AnyQueue>,
    encoder: Encoder,
    small: Box<[u8; WORTH_IT]>,
    writes: Box<[Option<Write>]>,
    /// Pages that wait for their turn below.
    passed_on: VecDeque<PassedOn>,
    /// Pages that wait until they may be passed on.
    waiting: Vec<Waiting>,
    copies: Box<[Copy]>,
    /// The last copy failed: only one copy at a time until one succeeds.
    copies_fail: bool,
    /// Pages of the next write may be kept ([`WriteQueue::may_keep`]).
    may_keep: bool,
}

// SAFETY: the pointers in `passed_on` and `waiting` are to pages that may be read from any thread until their completion is reaped:
// `start_write`'s contract.
unsafe impl Send for CompressedQueue {}

impl CompressedQueue {
    /// Gives the tier below as many waiting pages as it takes.
    fn pass_on(&mut self) {
        let (pool, passed_on) = (&self.pool, &mut self.passed_on);
        self.waiting.retain(|&Waiting { slot, page, write }| {
            // The pool has no page of the slot any more, and the slot is the write's: no other copy begins.
            let waits = pool.is_copied(slot);
            if !waits {
                passed_on.push_back(PassedOn { first: slot, pages: page, count: 1, write });
            }
            waits
        });
        let Some(lower) = &mut self.lower else { return };
        while let Some(&PassedOn { first, pages, count, write }) = self.passed_on.front() {
            // SAFETY: the caller of our own `start_write` keeps the pages until the completion of its write.
            if unsafe { lower.start_write(first, pages, count, write as u64) }.is_err() {
                return;
            }
            self.passed_on.pop_front();
        }
    }

    /// Handles the completions of the tier below. A page that waits for the copy of another evictor is not told of by any of them, so not
    /// all is waited for then.
    fn reap_lower(&mut self, wait_ns: u64) {
        let Some(lower) = &mut self.lower else { return };
        let wait_ns = if self.waiting.is_empty() { wait_ns } else { wait_ns.min(COPY_WAIT_NS) };
        if wait_ns > 0 && !self.waiting.is_empty() && lower.in_flight() == 0 {
            sleep::nap(wait_ns);
        }
        let (writes, copies, pool, fail) = (&mut self.writes, &mut self.copies, &self.pool, &mut self.copies_fail);
        let mut done = |tag: u64, result: Result<(), IoError>| {
            if tag & COPY != 0 {
                if let Some((first, count)) = copies[(tag & !COPY) as usize].run.take() {
                    pool.end_copies(first, count, result.is_ok());
                    *fail = result.is_err();
                    pool.set_lower_fails(result.is_err());
                }
            } else if let Some(write) = &mut writes[tag as usize] {
                write.left -= 1;
                write.result = write.result.and(result);
                // Where all pages are below too, none is copied that could show it.
                if result.is_ok() && pool.is_adaptive() {
                    pool.set_lower_fails(false);
                }
            }
        };
        match wait_ns {
            0 => lower.reap(false, &mut done),
            u64::MAX => lower.reap(true, &mut done),
            ns => lower.reap_within(ns, &mut done),
        }
    }

    /// Reports the writes that are done; returns whether there were any.
    fn deliver(&mut self, done: &mut dyn FnMut(u64, Result<(), IoError>)) -> bool {
        let mut any = false;
        for write in &mut self.writes {
            if let Some(Write { tag, left: 0, result }) = *write {
                *write = None;
                any = true;
                done(tag, result);
            }
        }
        any
    }

    fn copies_under_way(&self) -> usize {
        self.copies.iter().filter(|copy| copy.run.is_some()).count()
    }
}

impl WriteQueue for CompressedQueue {
    unsafe fn start_write(&mut self, first: Slot, pages: *const PageBuf, count: u32, tag: u64) -> Result<(), ()> {
        let Some(number) = self.writes.iter().position(Option::is_none) else { return Err(()) };
        let mut write = Write { tag, left: 0, result: Ok(()) };
        let mut run: Option<PassedOn> = None;
        for n in 0..count {
            let slot = first.plus(u64::from(n));
            // SAFETY: `n` is below `count`, the number of the caller's pages.
            let at = unsafe { pages.add(n as usize) };
            // SAFETY: the pages stay as they are until the write's completion.
            let page = unsafe { &*at };
            match self.pool.put(slot, page, self.may_keep, &mut self.encoder, &mut self.small) {
                Put::Kept => self.passed_on.extend(run.take()),
                Put::PassedOn => match &mut run {
                    Some(run) => run.count += 1,
                    None => {
                        write.left += 1;
                        run = Some(PassedOn { first: slot, pages: at, count: 1, write: number });
                    }
                },
                Put::Later => {
                    // What follows is a run of its own.
                    self.passed_on.extend(run.take());
                    write.left += 1;
                    self.waiting.push(Waiting { slot, page: at, write: number });
                }
                Put::Full => write.result = Err(IoError::Full),
            }
        }
        self.passed_on.extend(run);
        self.writes[number] = Some(write);
        self.pass_on();
        Ok(())
    }

    fn reap(&mut self, wait: bool, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        loop {
            self.pass_on();
            self.reap_lower(0);
            let any = self.deliver(done);
            if any || !wait || self.in_flight() == 0 {
                return;
            }
            self.pass_on();
            self.reap_lower(u64::MAX);
            if self.writes.iter().all(Option::is_none) {
                // Only copies are in flight: no caller waits for them.
                return;
            }
        }
    }

    fn reap_within(&mut self, ns: u64, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        self.pass_on();
        if !self.deliver(done) {
            self.reap_lower(ns);
            self.pass_on();
            self.deliver(done);
        }
    }

    fn in_flight(&self) -> u32 {
        (self.writes.iter().flatten().count() + self.copies_under_way()) as u32
    }

    fn takes_clean(&self) -> bool {
        self.pool.is_adaptive()
    }

    fn may_keep(&mut self, may: bool) {
        self.may_keep = may || !self.pool.is_adaptive() || self.lower.is_none();
    }

    fn offer(&mut self, slot: Slot, page: &PageBuf, is_right: &mut dyn FnMut() -> bool) {
        self.pool.offer(slot, page, is_right, self.may_keep, &mut self.encoder, &mut self.small);
    }

    fn tend(&mut self, free: &dyn FreeSlots, faults: &FaultsSeen) {
        let wants_room = self.pool.sweep(EXTENTS_A_SWEEP, free, faults);
        if !wants_room || (self.copies_fail && self.copies_under_way() > 0) {
            return;
        }
        let Some(lower) = &mut self.lower else { return };
        for (number, copy) in self.copies.iter_mut().enumerate().filter(|(_, copy)| copy.run.is_none()) {
            let Some((first, count)) = self.pool.begin_copies(&mut copy.pages, free) else { break };
            // SAFETY: the pages are the copy's, and are used for another copy only when this one has ended.
            match unsafe { lower.start_write(first, copy.pages.as_ptr(), count, COPY | number as u64) } {
                Ok(()) => copy.run = Some((first, count)),
                Err(()) => {
                    self.pool.end_copies(first, count, false);
                    break;
                }
            }
        }
        self.reap_lower(0);
    }
}

impl Drop for CompressedQueue {
    /// Writes from our own memory must end before that memory goes.
    fn drop(&mut self) {
        while self.copies_under_way() > 0 {
            self.reap_lower(u64::MAX);
        }
    }
}
