//! Pages in memory of this machine: for tests, and with a latency and a rate for measuring.
//!
//! A space is one anonymous mapping, reserved and not committed: pages that were never written take no memory. With a
//! latency of `t`, a read blocks for `t`, and a write completes `t` after its start. Its bytes arrive in the space at
//! that moment, not before. So an engine that reads a page whose write has not been acknowledged gets the old bytes, and
//! its checksum fails.
//!
//! Spaces with a latency make an array, as files do: extents go round them ([`Arrangements`]). Each may have a rate of its
//! own ([`Pace`]), which its reads and writes share. So several are as independent of each other as devices are.

use crate::error::{OpenError, SMALLEST_BYTES};
use crate::reserved::Reserved;
use crate::sleep;
use farshore_config::{Delay, Size, SwapSpec, Time};
use farshore_core::limits::{EXTENT_SLOTS, PAGE_SIZE};
use farshore_core::seams::{Backend, IoError, MemoryBudget, PageBuf, ReadBegun, Reads, Spaces, WriteQueue};
use farshore_core::slots::arrangement::{Arrangements, SPACES_MAX, SpaceSet};
use farshore_core::word::Slot;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most writes in flight of a queue.
const DEPTH_MAX: u32 = 4096;

/// The mapping.
#[derive(Debug)]
struct Memory {
    mapping: Reserved,
    pages: u64,
}

// The mapping is reached only through `read` and `write`, whose callers (the engine) never let a write of a slot meet a read or
// another write of it: the contract of `Backend`.
impl Memory {
    fn reserve(bytes: u64) -> Result<Memory, Errno> {
        Ok(Memory { mapping: Reserved::new(bytes)?, pages: bytes / PAGE_SIZE as u64 })
    }

    fn base(&self) -> *mut PageBuf {
        self.mapping.base().cast()
    }

    fn read(&self, slot: u64, into: &mut PageBuf) -> Result<(), IoError> {
        if slot >= self.pages {
            return Err(IoError::Device(Errno::INVAL.raw_os_error()));
        }
        // SAFETY: the slot lies in the mapping.
        let from = unsafe { self.base().add(slot as usize) };
        // SAFETY: one page of the mapping, into a page that we hold; no thread writes the slot now (see above).
        unsafe { core::ptr::copy_nonoverlapping(from, into, 1) };
        Ok(())
    }

    /// # Safety
    /// `pages` are `count` pages that can be read, and not in this mapping.
    unsafe fn write(&self, slot: u64, pages: *const PageBuf, count: u32) -> Result<(), IoError> {
        if slot.saturating_add(u64::from(count)) > self.pages {
            return Err(IoError::Full);
        }
        // SAFETY: the slots lie in the mapping.
        let to = unsafe { self.base().add(slot as usize) };
        // SAFETY: the caller's pages to slots of ours, which no thread reads or writes now (see above).
        unsafe { core::ptr::copy_nonoverlapping(pages, to, count as usize) };
        Ok(())
    }
}

/// How fast a space transfers pages: one transfer after another, in the order in which they are asked for.
#[derive(Debug)]
struct Pace {
    /// Bytes a second; 0: no bound.
    rate: u64,
    /// When the last transfer that was asked for will have passed. It stands alone: no other memory is told of by it.
    free_at: AtomicU64,
}

impl Pace {
    fn new(rate: Option<Size>) -> Pace {
        Pace { rate: rate.map_or(0, Size::bytes), free_at: AtomicU64::new(0) }
    }

    /// When `pages` pages will have passed that are asked for `now`.
    fn pass(&self, now: u64, pages: u32) -> u64 {
        if self.rate == 0 {
            return now;
        }
        let takes = u64::from(pages).saturating_mul(PAGE_SIZE as u64 * 1_000_000_000) / self.rate;
        let after = |free_at: u64| free_at.max(now).saturating_add(takes);
        let before = self.free_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free_at| Some(after(free_at)));
        before.map_or(now, after)
    }
}

/// One space of an array.
#[derive(Debug)]
struct Part {
    memory: Memory,
    pace: Pace,
    name: String,
}

/// The spaces, shared with their queues.
#[derive(Debug)]
struct Parts {
    list: Box<[Part]>,
    arrangements: Arrangements,
    latency_ns: Box<[u64]>,
    /// Whether anything of it takes time.
    is_timed: bool,
}

impl Parts {
    /// The part in which `slot` lies, its slot there, and how many from there on lie side by side.
    fn place(&self, slot: u64) -> (usize, u64, u32) {
        let per = EXTENT_SLOTS as u64;
        let (extent, within) = (slot / per, slot % per);
        // No space has more extents than a number of 32 bits counts.
        let place = self.arrangements.place_of(extent as u32);
        (place.space, u64::from(place.number) * per + within, (per - within) as u32)
    }

    /// The pieces of `count` slots from `first` on: part, slot in it, how many come before, how many it has.
    fn pieces(&self, first: u64, count: u32) -> impl Iterator<Item = (usize, u64, u32, u32)> {
        let mut done = 0;
        core::iter::from_fn(move || {
            let left = count.checked_sub(done).filter(|left| *left > 0)?;
            let (part, slot, beside) = self.place(first.saturating_add(u64::from(done)));
            let piece = (part, slot, done, left.min(beside));
            done += piece.3;
            Some(piece)
        })
    }

    fn now(&self) -> u64 {
        if self.is_timed { sleep::now_ns() } else { 0 }
    }

    /// When a transfer that begins now has ended; 0 where none takes time.
    fn due(&self, first: u64, count: u32) -> u64 {
        if !self.is_timed {
            return 0;
        }
        let now = self.now();
        let pieces = self.pieces(first, count);
        let ends = pieces.map(|(part, _, _, pages)| self.list[part].pace.pass(now, pages).saturating_add(self.latency_ns[part]));
        ends.max().unwrap_or(now)
    }

    fn read(&self, first: u64, into: &mut [PageBuf]) -> Result<(), IoError> {
        for (part, slot, before, pages) in self.pieces(first, into.len() as u32) {
            let into = &mut into[before as usize..][..pages as usize];
            (slot..).zip(into).try_for_each(|(slot, page)| self.list[part].memory.read(slot, page))?;
        }
        Ok(())
    }

    /// # Safety
    /// `pages` are `count` pages that can be read, and in none of the mappings.
    unsafe fn write(&self, first: u64, pages: *const PageBuf, count: u32) -> Result<(), IoError> {
        // All of it or nothing, as with files: a part of a write that was refused must not be there.
        let fits = |(part, slot, _, pages): (usize, u64, u32, u32)| slot + u64::from(pages) <= self.list[part].memory.pages;
        if !self.pieces(first, count).all(fits) {
            return Err(IoError::Full);
        }
        for (part, slot, before, pages_of) in self.pieces(first, count) {
            // SAFETY: fewer pages come before than the caller's `count`.
            let from = unsafe { pages.add(before as usize) };
            // SAFETY: the caller's pages, of which this piece ends within `count`.
            unsafe { self.list[part].memory.write(slot, from, pages_of) }?;
        }
        Ok(())
    }
}

/// A swap space in RAM, or an array of them.
#[derive(Debug)]
pub struct RamSpace {
    parts: Arc<Parts>,
    name: String,
}

impl RamSpace {
    /// Reserves a space of `size` (default: as much as the machine has RAM, or the largest half, quarter … of
    /// it that can be reserved), which answers after `latency`.
    ///
    /// # Errors
    /// When the space is smaller than 2 MiB or cannot be reserved.
    pub fn open(size: Option<Size>, latency: Option<Time>) -> Result<RamSpace, OpenError> {
        match latency {
            Some(time) => RamSpace::delayed(&[Delay { size, ..Delay::of(time) }]),
            None => {
                let name = SwapSpec::Ram { compress: None, size }.to_string();
                RamSpace::around(vec![(name, Delay { size, ..Delay::of(Time(0)) })])
            }
        }
    }

    /// Reserves an array of spaces that answer late.
    ///
    /// # Errors
    /// As [`RamSpace::open`], of any of them, or when there are none, or too many.
    pub fn delayed(delays: &[Delay]) -> Result<RamSpace, OpenError> {
        RamSpace::around(delays.iter().map(|delay| (SwapSpec::Delay(*delay).to_string(), *delay)).collect())
    }

    fn around(parts: Vec<(String, Delay)>) -> Result<RamSpace, OpenError> {
        if parts.is_empty() {
            return Err(OpenError::NoSpace);
        }
        if parts.len() > SPACES_MAX {
            return Err(OpenError::TooMany(parts.len()));
        }
        let name = parts.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(" + ");
        let latency_ns: Box<[u64]> = parts.iter().map(|(_, delay)| delay.time.ns()).collect();
        let is_timed = parts.iter().any(|(_, delay)| delay.time.ns() > 0 || delay.rate.is_some());
        let arrangements = Arrangements::new(SpaceSet::first(parts.len()));
        let reserve = |(name, delay): (String, Delay)| {
            let bytes = delay.size.map_or_else(machine_bytes, Size::bytes) / SMALLEST_BYTES * SMALLEST_BYTES;
            if bytes == 0 {
                return Err(OpenError::TooSmall { what: name, bytes: delay.size.map_or(0, Size::bytes) });
            }
            let memory = crate::reserved::largest(bytes, delay.size.is_none(), Memory::reserve)?;
            Ok(Part { memory, pace: Pace::new(delay.rate), name })
        };
        let list = parts.into_iter().map(reserve).collect::<Result<_, OpenError>>()?;
        // The clock finds the kernel's page for it at its first use: that should be now, and not in a signal handler.
        sleep::now_ns();
        Ok(RamSpace { parts: Arc::new(Parts { list, arrangements, latency_ns, is_timed }), name })
    }
}

/// RAM of this machine, in bytes.
pub(crate) fn machine_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit.max(1)))
}

impl Backend for RamSpace {
    type Queue = RamQueue;

    fn queue(&self, depth: u32) -> Result<RamQueue, IoError> {
        let depth = depth.clamp(1, DEPTH_MAX) as usize;
        Ok(RamQueue { parts: Arc::clone(&self.parts), depth, pending: VecDeque::with_capacity(depth) })
    }
}

impl Reads for RamSpace {
    fn read(&self, slot: Slot, into: &mut PageBuf) -> Result<(), IoError> {
        self.read_run(slot, core::slice::from_mut(into))
    }

    /// One transfer, so one latency.
    fn read_run(&self, first: Slot, into: &mut [PageBuf]) -> Result<(), IoError> {
        match self.begin_read(first, into) {
            ReadBegun::Due(due) => {
                sleep::until(due);
                Ok(())
            }
            ReadBegun::Over(result) => result,
            ReadBegun::File { .. } => Err(IoError::Short),
        }
    }

    fn begin_read(&self, first: Slot, into: &mut [PageBuf]) -> ReadBegun {
        let due = self.parts.due(first.number(), into.len() as u32);
        match self.parts.read(first.number(), into) {
            Ok(()) if self.parts.is_timed => ReadBegun::Due(due),
            result => ReadBegun::Over(result),
        }
    }
}

impl Spaces for RamSpace {
    fn capacity(&self) -> Option<u64> {
        Some(self.parts.list.iter().map(|part| part.memory.pages).sum())
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn spaces(&self) -> usize {
        self.parts.list.len()
    }

    fn capacity_of(&self, space: usize) -> Option<u64> {
        Some(self.parts.list.get(space).map_or(0, |part| part.memory.pages))
    }

    fn name_of(&self, slot: Slot) -> &str {
        &self.parts.list[self.parts.place(slot.number()).0].name
    }

    fn arrange(&self, first: u32, spaces: SpaceSet) {
        self.parts.arrangements.arrange(first, spaces);
    }
}

impl MemoryBudget for RamSpace {}

#[derive(Debug)]
struct Pending {
    due: u64,
    first: Slot,
    pages: *const PageBuf,
    count: u32,
    tag: u64,
}

/// Writes to a [`RamSpace`].
#[derive(Debug)]
pub struct RamQueue {
    parts: Arc<Parts>,
    depth: usize,
    /// In the order in which they began, which need not be that in which they end; room for `depth`.
    pending: VecDeque<Pending>,
}

// SAFETY: the pointers in `pending` are to pages that may be read from any thread until their completion is
// reaped: `start_write`'s contract.
unsafe impl Send for RamQueue {}

impl WriteQueue for RamQueue {
    unsafe fn start_write(&mut self, first: Slot, pages: *const PageBuf, count: u32, tag: u64) -> Result<(), ()> {
        if self.pending.len() == self.depth {
            return Err(());
        }
        let due = self.parts.due(first.number(), count);
        self.pending.push_back(Pending { due, first, pages, count, tag });
        Ok(())
    }

    fn reap(&mut self, wait: bool, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        self.reap_within(if wait { u64::MAX } else { 0 }, done);
    }

    fn reap_within(&mut self, ns: u64, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        if let Some(due) = self.pending.iter().map(|write| write.due).min()
            && ns > 0
            && self.parts.is_timed
        {
            sleep::until(due.min(sleep::now_ns().saturating_add(ns)));
        }
        let now = self.parts.now();
        while let Some(ended) = self.pending.iter().position(|write| write.due <= now) {
            let Some(write) = self.pending.remove(ended) else { break };
            // SAFETY: the caller's pages stay readable until `done` below (`start_write`'s contract), and are
            // staging memory, not slots.
            let result = unsafe { self.parts.write(write.first.number(), write.pages, write.count) };
            done(write.tag, result);
        }
    }

    fn in_flight(&self) -> u32 {
        self.pending.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(byte: u8) -> PageBuf {
        PageBuf([byte; 4096])
    }

    fn slot(n: u64) -> Slot {
        Slot::new(n).unwrap()
    }

    #[test]
    fn what_goes_in_comes_out() {
        let ram = RamSpace::open(Some(Size::mib(2)), None).unwrap();
        let mut queue = ram.queue(2).unwrap();
        let pages = [page(1), page(2)];
        // SAFETY: `pages` lives until the completion is reaped below.
        unsafe { queue.start_write(slot(510), pages.as_ptr(), 2, 7) }.unwrap();
        // SAFETY: as above.
        unsafe { queue.start_write(slot(511), pages.as_ptr(), 2, 8) }.unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { queue.start_write(slot(1), pages.as_ptr(), 1, 9) }, Err(()));
        let mut seen = Vec::new();
        queue.reap(true, &mut |tag, result| seen.push((tag, result)));
        assert_eq!(seen, [(7, Ok(())), (8, Err(IoError::Full))]);
        let mut back = PageBuf::ZERO;
        ram.read(slot(511), &mut back).unwrap();
        assert_eq!(back.0, page(2).0);
        assert_eq!(ram.read(slot(512), &mut back), Err(IoError::Device(22)));
        assert_eq!(ram.capacity(), Some(512));
    }

    #[test]
    fn a_delay_delays_reads_and_writes() {
        let ram = RamSpace::open(Some(Size::mib(2)), Some(Time(3_000_000))).unwrap();
        assert_eq!(ram.name(), "delay:3ms,size=2M");
        let mut queue = ram.queue(4).unwrap();
        let pages = [page(9)];
        let start = sleep::now_ns();
        // SAFETY: `pages` lives until the completion is reaped below.
        unsafe { queue.start_write(slot(1), pages.as_ptr(), 1, 1) }.unwrap();
        let mut back = page(0);
        let mut seen = 0;
        queue.reap(false, &mut |_, _| seen += 1);
        if sleep::now_ns() - start < 3_000_000 {
            assert_eq!((seen, queue.in_flight()), (0, 1));
        }
        queue.reap(true, &mut |_, _| seen += 1);
        assert!(seen == 1 && sleep::now_ns() - start >= 3_000_000);
        let start = sleep::now_ns();
        ram.read(slot(1), &mut back).unwrap();
        assert!(sleep::now_ns() - start >= 3_000_000);
        assert_eq!(back.0, page(9).0);
    }

    #[test]
    fn sizes_have_limits() {
        assert!(matches!(RamSpace::open(Some(Size::kib(4)), None), Err(OpenError::TooSmall { .. })));
        let error = RamSpace::open(Some(Size(1 << 62)), None).unwrap_err().to_string();
        assert!(error.contains("4194304T") && error.contains("size="), "{error}");
        assert!(RamSpace::open(None, None).unwrap().capacity().unwrap() >= 512);
    }

    #[test]
    fn a_rate_spaces_transfers_out_and_each_space_has_its_own() {
        let pace = Pace::new(Some(Size(4096 * 1000)));
        // A page takes a millisecond.
        assert_eq!(pace.pass(5_000_000, 2), 7_000_000);
        assert_eq!(pace.pass(5_500_000, 1), 8_000_000, "it waits for those before it");
        assert_eq!(pace.pass(20_000_000, 512), 532_000_000, "what was not used is gone");
        assert_eq!(Pace::new(None).pass(7, 512), 7);
        let delay = Delay { rate: Some(Size(4096 * 1000)), ..Delay::of(Time(10)) };
        let array = RamSpace::delayed(&[delay, delay]).unwrap();
        let now = sleep::now_ns();
        let per = EXTENT_SLOTS as u64;
        // 100 pages of one space, and then as many of the other, which does not wait for them.
        let [first, other, again] = [0, per, 2 * per].map(|slot| array.parts.due(slot, 100));
        assert!(first >= now + 100_000_010 && other >= now + 100_000_010 && other < first + 100_000_000, "{first} {other}");
        assert!(again >= first + 100_000_000, "{first} {again}");
    }

    #[test]
    fn an_array_has_each_page_once() {
        let of = |mib| Delay { size: Some(Size::mib(mib)), ..Delay::of(Time(0)) };
        let array = RamSpace::delayed(&[of(4), of(2), of(4)]).unwrap();
        assert_eq!((array.spaces(), array.capacity(), array.capacity_of(1)), (3, Some(2560), Some(512)));
        assert_eq!(array.name(), "delay:0ns,size=4M + delay:0ns,size=2M + delay:0ns,size=4M");
        assert_eq!(array.name_of(slot(513)), "delay:0ns,size=2M");
        let mut queue = array.queue(8).unwrap();
        // Over the border of two spaces.
        let pages: Vec<PageBuf> = (0..20).map(page).collect();
        // SAFETY: `pages` lives until the completion is reaped below.
        unsafe { queue.start_write(slot(502), pages.as_ptr(), 20, 1) }.unwrap();
        // SAFETY: as above. The second extent of the smallest space, which it does not have.
        unsafe { queue.start_write(slot(4 * 512 + 1), pages.as_ptr(), 1, 2) }.unwrap();
        let mut seen = Vec::new();
        queue.reap(true, &mut |tag, result| seen.push((tag, result)));
        assert_eq!(seen, [(1, Ok(())), (2, Err(IoError::Full))]);
        let mut back = vec![PageBuf::ZERO; 20];
        array.read_run(slot(502), &mut back).unwrap();
        assert!(back.iter().zip(&pages).all(|(back, page)| back.0 == page.0));
        let mut one = PageBuf::ZERO;
        array.read(slot(512), &mut one).unwrap();
        assert_eq!(one.0, page(10).0);
    }

    #[test]
    fn writes_end_by_their_time_and_not_by_their_order() {
        let slow = Delay { rate: Some(Size(4096 * 10)), ..Delay::of(Time(0)) };
        let array = RamSpace::delayed(&[slow, Delay::of(Time(0))]).unwrap();
        let mut queue = array.queue(4).unwrap();
        let pages = [page(1), page(2)];
        // SAFETY: `pages` lives until both completions are reaped below.
        unsafe { queue.start_write(slot(1), pages.as_ptr(), 2, 1) }.unwrap();
        // SAFETY: as above.
        unsafe { queue.start_write(slot(513), pages.as_ptr(), 2, 2) }.unwrap();
        let mut seen = Vec::new();
        queue.reap(true, &mut |tag, result| seen.push((tag, result)));
        assert_eq!((seen.first(), seen.len() as u32 + queue.in_flight()), (Some(&(2, Ok(()))), 2));
        while queue.in_flight() > 0 {
            queue.reap(true, &mut |tag, result| seen.push((tag, result)));
        }
        assert_eq!(seen, [(2, Ok(())), (1, Ok(()))]);
    }

    #[test]
    fn arrays_have_limits() {
        assert!(matches!(RamSpace::delayed(&[]), Err(OpenError::NoSpace)));
        let one = Delay { size: Some(Size::mib(2)), ..Delay::of(Time(1)) };
        assert!(matches!(RamSpace::delayed(&vec![one; SPACES_MAX + 1]), Err(OpenError::TooMany(_))));
        let small = Delay { size: Some(Size::kib(4)), ..one };
        assert!(matches!(RamSpace::delayed(&[one, small]), Err(OpenError::TooSmall { .. })));
    }
}
