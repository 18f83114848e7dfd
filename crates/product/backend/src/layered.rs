//! The swap space of a forked child: the pages that its parent had written when it forked, which both read and neither changes,
//! and a space of its own on top.
//!
//! Slots below `first_own` are the parent's, the others lie in the child's own space, from its slot 0 on. (Slot 0 of a space
//! is never given out, and the slot map leaves the first of a child's out too.) The parent's space may be layered itself: a
//! read goes down until it finds its layer. Files of the base stay open, and on disk, as long as some process has them.
//!
//! The own space is made when it is first written to: most children only exec.

use crate::any::{AnyBackend, AnyQueue};
use crate::error::OpenError;
use crate::mirror::Mirror;
use farshore_core::seams::{
    Backend, FaultsSeen, FreeSlots, IoError, MemoryBudget, NoneFree, PageBuf, ReadBegun, Reads, Spaces, WriteQueue,
};
use farshore_core::slots::arrangement::SpaceSet;
use farshore_core::word::Slot;
use rustix::fd::RawFd;
use std::sync::OnceLock;

/// Makes a space of the same kind as the base.
pub type Open = Box<dyn Fn() -> Result<AnyBackend, OpenError> + Send + Sync>;

/// A base and a space of the child's own.
pub struct Layered {
    base: &'static AnyBackend,
    first_own: u64,
    /// What each of the own spaces will be able to hold, in slots.
    capacities: Box<[Option<u64>]>,
    own: OnceLock<AnyBackend>,
    open: Open,
}

impl core::fmt::Debug for Layered {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Layered").field("base", &self.base).field("first_own", &self.first_own).finish_non_exhaustive()
    }
}

impl Layered {
    /// A layered space on top of `base`, the copy of the parent's. Slots from `first_own` on are the child's, in spaces of these
    /// capacities (in slots; `None`: as much as there is room for), which `open` makes.
    pub fn new(base: &'static AnyBackend, first_own: u64, capacities: Box<[Option<u64>]>, open: Open) -> Layered {
        Layered { base, first_own, capacities, own: OnceLock::new(), open }
    }

    /// The space that the parent had.
    pub fn base(&self) -> &AnyBackend {
        self.base
    }

    /// The child's own space, once it is open.
    pub fn own(&self) -> Option<&AnyBackend> {
        self.own.get()
    }

    /// Opens the own space, as the base was opened, unless it is open.
    ///
    /// # Errors
    /// As when the base was opened: the disk may be full by now, say.
    pub fn open_own(&self) -> Result<&AnyBackend, OpenError> {
        if self.own.get().is_none() {
            // If another thread was faster, this one is closed again.
            let _ = self.own.set((self.open)()?);
        }
        self.own.get().ok_or(OpenError::NoSpace)
    }

    /// The space that has `slot`, and the slot's number there.
    fn layer(&self, slot: Slot) -> Result<(&AnyBackend, Slot), IoError> {
        match slot.number().checked_sub(self.first_own) {
            None => Ok((self.base, slot)),
            // No page was written there yet: reads of such a slot do not happen.
            Some(number) => Ok((self.own.get().ok_or(IoError::Short)?, Slot::new(number).ok_or(IoError::Short)?)),
        }
    }

    /// The copies of one of the layers, if there are any.
    pub fn mirror(&self) -> Option<&Mirror> {
        self.own().and_then(AnyBackend::mirror).or_else(|| self.base.mirror())
    }

    /// The descriptors of all layers.
    pub fn fds(&self) -> Vec<RawFd> {
        self.base.fds().chain(self.own.get().into_iter().flat_map(AnyBackend::fds)).collect()
    }
}

impl Layered {
    /// [`AnyBackend::take_rings`] of the own space. (Queues of the base are in none but the process that it was made in.)
    pub fn take_rings(&self) -> Vec<RawFd> {
        self.own.get().map_or_else(Vec::new, AnyBackend::take_rings)
    }
}

impl Backend for Layered {
    type Queue = LayeredQueue;

    fn queue(&self, depth: u32) -> Result<LayeredQueue, IoError> {
        let own = self.open_own().map_err(|_| IoError::Full)?;
        Ok(LayeredQueue { own: Box::new(own.queue(depth)?), first_own: self.first_own })
    }
}

impl Reads for Layered {
    fn read(&self, slot: Slot, into: &mut PageBuf) -> Result<(), IoError> {
        let (space, slot) = self.layer(slot)?;
        space.read(slot, into)
    }

    fn read_run(&self, first: Slot, into: &mut [PageBuf]) -> Result<(), IoError> {
        // Runs lie within an extent, and layers begin with one.
        let (space, first) = self.layer(first)?;
        space.read_run(first, into)
    }

    fn read_ahead(&self, first: Slot, into: &mut [PageBuf]) -> Result<(), IoError> {
        let (space, first) = self.layer(first)?;
        space.read_ahead(first, into)
    }

    fn begin_read(&self, first: Slot, into: &mut [PageBuf]) -> ReadBegun {
        match self.layer(first) {
            Ok((space, first)) => space.begin_read(first, into),
            Err(why) => ReadBegun::Over(Err(why)),
        }
    }

    fn finish_read(&self, first: Slot, into: &mut [PageBuf], read: Result<(), IoError>) -> Result<(), IoError> {
        let (space, first) = self.layer(first)?;
        space.finish_read(first, into, read)
    }

    fn doubt(&self, slot: Slot) {
        if let Ok((space, slot)) = self.layer(slot) {
            space.doubt(slot);
        }
    }
}

impl Spaces for Layered {
    fn capacity(&self) -> Option<u64> {
        self.own.get().map_or_else(|| self.capacities.iter().copied().sum(), AnyBackend::capacity)
    }

    fn name(&self) -> &str {
        self.base.name()
    }

    fn spaces(&self) -> usize {
        self.own.get().map_or(self.capacities.len(), AnyBackend::spaces)
    }

    fn capacity_of(&self, space: usize) -> Option<u64> {
        self.own.get().map_or_else(|| self.capacities[space], |own| own.capacity_of(space))
    }

    fn name_of(&self, slot: Slot) -> &str {
        self.layer(slot).map_or_else(|_| self.name(), |(space, slot)| space.name_of(slot))
    }

    fn arrange(&self, first: u32, spaces: SpaceSet) {
        self.own.get().into_iter().for_each(|own| own.arrange(first, spaces));
    }

    fn is_quiet(&self, is_there: &dyn Fn(Slot) -> bool) -> bool {
        let is_there = |slot: Slot| Slot::new(slot.number() + self.first_own).is_some_and(is_there);
        self.own.get().is_none_or(|own| own.is_quiet(&is_there))
    }

    fn shut_space(&self, space: usize) {
        self.own.get().into_iter().for_each(|own| own.shut_space(space));
    }

    fn close_space(&self, space: usize) {
        self.own.get().into_iter().for_each(|own| own.close_space(space));
    }

    fn give_back(&self, first: Slot, count: u32) -> Result<(), IoError> {
        let own = first.number().checked_sub(self.first_own).zip(self.own.get());
        // The parent's slots stay; and an own space that is not open has no pages.
        let Some((number, own)) = own else { return Ok(()) };
        // Its very first extent is never given back, because slot 0 is reserved.
        Slot::new(number).map_or(Ok(()), |first| own.give_back(first, count))
    }

    fn keep(&self, free: &dyn FreeSlots) -> Option<u64> {
        let own = self.own.get().and_then(|own| own.keep(&OwnSlots { free, first_own: self.first_own }));
        // Of the parent's slots this process' map says nothing that counts: they are kept.
        self.base.keep(&NoneFree).into_iter().chain(own).min()
    }
}

impl MemoryBudget for Layered {
    /// The memory of pages that a child has inherited is its parent's.
    fn own_memory(&self) -> Option<u64> {
        self.own.get().map_or_else(|| self.base.own_memory().map(|_| 0), AnyBackend::own_memory)
    }

    fn takes_memory(&self) -> bool {
        self.own.get().is_some_and(AnyBackend::takes_memory)
    }

    fn allow_memory(&self, bytes: u64) {
        self.own.get().into_iter().for_each(|own| own.allow_memory(bytes));
    }
}

/// Writes to the own space.
#[derive(Debug)]
pub struct LayeredQueue {
    own: Box<AnyQueue>,
    first_own: u64,
}

impl WriteQueue for LayeredQueue {
    unsafe fn start_write(&mut self, first: Slot, pages: *const PageBuf, count: u32, tag: u64) -> Result<(), ()> {
        let Some(first) = first.number().checked_sub(self.first_own).and_then(Slot::new) else {
            unreachable!("{first:?} is the parent's, which nobody writes")
        };
        // SAFETY: the caller keeps our own contract, which is the same.
        unsafe { self.own.start_write(first, pages, count, tag) }
    }

    fn reap(&mut self, wait: bool, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        self.own.reap(wait, done);
    }

    fn reap_within(&mut self, ns: u64, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        self.own.reap_within(ns, done);
    }

    fn in_flight(&self) -> u32 {
        self.own.in_flight()
    }

    fn takes_clean(&self) -> bool {
        self.own.takes_clean()
    }

    fn may_keep(&mut self, may: bool) {
        self.own.may_keep(may);
    }

    fn offer(&mut self, slot: Slot, page: &PageBuf, is_right: &mut dyn FnMut() -> bool) {
        // The parent's pages stay where they are.
        if let Some(slot) = slot.number().checked_sub(self.first_own).and_then(Slot::new) {
            self.own.offer(slot, page, is_right);
        }
    }

    fn tend(&mut self, free: &dyn FreeSlots, faults: &FaultsSeen) {
        self.own.tend(&OwnSlots { free, first_own: self.first_own }, faults);
    }
}

/// The slots of the own space, under its own numbers.
struct OwnSlots<'f> {
    free: &'f dyn FreeSlots,
    first_own: u64,
}

impl FreeSlots for OwnSlots<'_> {
    fn free_of(&self, first: u64) -> u64 {
        // Layers begin with an extent.
        self.free.free_of(first + self.first_own)
    }

    fn unneeded_of(&self, first: u64) -> u64 {
        self.free.unneeded_of(first + self.first_own)
    }
}
