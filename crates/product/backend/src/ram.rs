//! Pages in memory of this machine: for tests, and with a fixed latency for measuring.
//!
//! The space is one anonymous mapping, reserved and not committed: pages that were never written take no memory. With a
//! latency of `t`, a read blocks for `t`, and a write completes `t` after its start. Its bytes arrive in the space at
//! that moment, not before. So an engine that reads a page whose write has not been acknowledged gets the old bytes, and
//! its checksum fails.

use crate::error::{OpenError, SMALLEST_BYTES};
use crate::reserved::Reserved;
use crate::sleep;
use farshore_config::{Size, SwapSpec, Time};
use farshore_core::limits::PAGE_SIZE;
use farshore_core::seams::{Backend, IoError, MemoryBudget, PageBuf, ReadBegun, Reads, Spaces, WriteQueue};
use farshore_core::word::Slot;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;

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

/// A swap space in RAM.
#[derive(Debug)]
pub struct RamSpace {
    memory: Arc<Memory>,
    latency_ns: u64,
    name: String,
}

impl RamSpace {
    /// Reserves a space of `size` (default: as much as the machine has RAM, or the largest half, quarter … of
    /// it that can be reserved), which answers after `latency`.
    ///
    /// # Errors
    /// When the space is smaller than 2 MiB or cannot be reserved.
    pub fn open(size: Option<Size>, latency: Option<Time>) -> Result<RamSpace, OpenError> {
        let spec = match latency {
            Some(time) => SwapSpec::Delay(time),
            None => SwapSpec::Ram { compress: None, size },
        };
        let name = spec.to_string();
        let bytes = size.map_or_else(machine_bytes, Size::bytes) / SMALLEST_BYTES * SMALLEST_BYTES;
        if bytes == 0 {
            return Err(OpenError::TooSmall { what: name, bytes: size.map_or(0, Size::bytes) });
        }
        let memory = crate::reserved::largest(bytes, size.is_none(), Memory::reserve)?;
        // The clock finds the kernel's page for it at its first use: that should be now, and not in a signal handler.
        sleep::now_ns();
        Ok(RamSpace { memory: Arc::new(memory), latency_ns: latency.map_or(0, Time::ns), name })
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
        let pending = VecDeque::with_capacity(depth);
        Ok(RamQueue { memory: Arc::clone(&self.memory), latency_ns: self.latency_ns, depth, pending })
    }
}

impl Reads for RamSpace {
    fn read(&self, slot: Slot, into: &mut PageBuf) -> Result<(), IoError> {
        self.read_run(slot, core::slice::from_mut(into))
    }

    /// One transfer, so one latency.
    fn read_run(&self, first: Slot, into: &mut [PageBuf]) -> Result<(), IoError> {
        let due = (self.latency_ns > 0).then(|| sleep::now_ns() + self.latency_ns);
        let result = (first.number()..).zip(into).try_for_each(|(slot, page)| self.memory.read(slot, page));
        if let Some(due) = due {
            sleep::until(due);
        }
        result
    }

    fn begin_read(&self, first: Slot, into: &mut [PageBuf]) -> ReadBegun {
        let due = (self.latency_ns > 0).then(|| sleep::now_ns() + self.latency_ns);
        match ((first.number()..).zip(into).try_for_each(|(slot, page)| self.memory.read(slot, page)), due) {
            (Ok(()), Some(due)) => ReadBegun::Due(due),
            (result, _) => ReadBegun::Over(result),
        }
    }
}

impl Spaces for RamSpace {
    fn capacity(&self) -> Option<u64> {
        Some(self.memory.pages)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn spaces(&self) -> usize {
        1
    }

    fn capacity_of(&self, _space: usize) -> Option<u64> {
        self.capacity()
    }

    fn name_of(&self, _slot: Slot) -> &str {
        self.name()
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
    memory: Arc<Memory>,
    latency_ns: u64,
    depth: usize,
    /// In the order of `due`, since every write takes the same time; room for `depth`.
    pending: VecDeque<Pending>,
}

// SAFETY: the pointers in `pending` are to pages that may be read from any thread until their completion is
// reaped: `start_write`'s contract.
unsafe impl Send for RamQueue {}

impl RamQueue {
    fn now(&self) -> u64 {
        if self.latency_ns == 0 { 0 } else { sleep::now_ns() }
    }
}

impl WriteQueue for RamQueue {
    unsafe fn start_write(&mut self, first: Slot, pages: *const PageBuf, count: u32, tag: u64) -> Result<(), ()> {
        if self.pending.len() == self.depth {
            return Err(());
        }
        let due = self.now() + self.latency_ns;
        self.pending.push_back(Pending { due, first, pages, count, tag });
        Ok(())
    }

    fn reap(&mut self, wait: bool, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        self.reap_within(if wait { u64::MAX } else { 0 }, done);
    }

    fn reap_within(&mut self, ns: u64, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        if let Some(first) = self.pending.front()
            && ns > 0
            && self.latency_ns != 0
        {
            sleep::until(first.due.min(sleep::now_ns().saturating_add(ns)));
        }
        let now = self.now();
        while self.pending.front().is_some_and(|write| write.due <= now) {
            let Some(write) = self.pending.pop_front() else { break };
            // SAFETY: the caller's pages stay readable until `done` below (`start_write`'s contract), and are
            // staging memory, not slots.
            let result = unsafe { self.memory.write(write.first.number(), write.pages, write.count) };
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
        assert_eq!(ram.name(), "delay:3ms");
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
}
