//! Stages: the RAM in which a page waits after it was unmapped.
//!
//! Each evictor has a ring of stages. A batch of victims is copied into neighbouring stages (so that it can be
//! written by few large writes), and its frames are free at once. A stage is used again when the ring comes
//! round to it: until then its page can be *rescued* without any I/O. So the ring is
//! both MAGE's staging buffer (§4.1, "RSB") and the inactive list that gives a page its second chance.
//!
//! # Life of a stage
//!
//! ```text
//! free ─fill─▶ holds a page (word: Leaving{stage}) ─┬─ retired by its evictor (word: Out) ──────▶ free
//!                                                   └─ taken by a rescuer or a memory call, ──▶ free
//!                                                      which *vacates* it when done with its bytes
//! ```
//!
//! The thread that moves the page word out of `Leaving{stage}` is the one user of the stage from then on. If that is not the
//! evictor, the evictor does not use the stage again until that thread has vacated it. The evictor then frees the stage's slot,
//! unless the page kept it.

use alloc::boxed::Box;
use bytemuck::Zeroable;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use farshore_core::page::Page;
use farshore_core::room::{Part, Room};
use farshore_core::seams::{Kernel, PageBuf};
use farshore_core::sync::plain::{AtomicU8, AtomicU64};
use farshore_core::word::{Slot, Stage};

const HELD: u8 = 0;
const VACATED_SLOT_KEPT: u8 = 1;
const VACATED: u8 = 2;

/// One cache line each: stages of two evictors' rings lie side by side, and a rescuer writes only the line of the stage
/// that it vacates.
#[derive(Debug)]
#[repr(align(64))]
struct Meta {
    page: AtomicU64,
    slot: AtomicU64,
    vacated: AtomicU8,
    /// The write to `slot` may be under way, as far as whoever takes over can know.
    unsettled: AtomicU8,
}

// SAFETY: atomic numbers, of which zero is one.
unsafe impl Zeroable for Meta {}

/// The state of a stage whose page another thread has taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vacancy {
    /// Still in use.
    Held,
    /// Free; the page kept the slot.
    SlotKept,
    /// Free, and so is the slot.
    SlotFree,
}

/// Whether the stage that a page word names has the page's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// It has.
    Holds,
    /// It had, and who owned the page was done with them.
    GivenUp,
    /// It has those of another page, or none.
    Another,
}

/// All stages of an engine.
#[derive(Debug)]
pub struct Stages {
    memory: *mut PageBuf,
    meta: NonNull<[Meta]>,
    /// `meta` is in a room, and not ours to free.
    lasts: bool,
    ever_used: AtomicU64,
}

// SAFETY: `memory` is plain memory that outlives the engine; which thread may touch which stage when is
// the protocol of the module head, whose hand-overs are acquire/release operations on page words and `vacated`.
unsafe impl Send for Stages {}
// SAFETY: as for Send.
unsafe impl Sync for Stages {}

impl Stages {
    /// Stages in `memory`.
    ///
    /// # Safety
    /// `memory` must point to `count` writable pages, aligned to 4096 bytes, that no other code uses while `self` lives.
    pub unsafe fn new(memory: *mut PageBuf, count: usize) -> Stages {
        const { assert!(HELD == 0) };
        // As the kernel gives it: a page of it is there once one of its stages is used.
        let meta = NonNull::from(Box::leak(bytemuck::zeroed_slice_box(count)));
        Stages { memory, meta, lasts: false, ever_used: AtomicU64::new(0) }
    }

    /// The same with what is known of them in `room`, where there may be some already: those of an engine that has ended. `None`: there is no memory.
    ///
    /// # Safety
    /// As for [`Stages::new`].
    pub unsafe fn in_room(memory: *mut PageBuf, count: usize, room: &'static dyn Room) -> Option<Stages> {
        let meta = NonNull::slice_from_raw_parts(room.part(Part::Claims, 0, count * size_of::<Meta>())?.cast(), count);
        Some(Stages { memory, meta, lasts: true, ever_used: AtomicU64::new(0) })
    }

    fn all(&self) -> &[Meta] {
        // SAFETY: from a box of ours that is freed with `self`, or from a room, for as long as the process lives; atomic numbers, which may be shared.
        unsafe { self.meta.as_ref() }
    }

    fn meta(&self, stage: Stage) -> &Meta {
        &self.all()[stage.0 as usize]
    }

    /// Start of the stage's memory.
    pub fn memory(&self, stage: Stage) -> *mut PageBuf {
        assert!((stage.0 as usize) < self.all().len());
        // SAFETY: in bounds of the allocation that `new` was promised, by the assertion.
        unsafe { self.memory.add(stage.0 as usize) }
    }

    /// The bytes of a stage that is held.
    pub fn bytes(&self, stage: Stage) -> &PageBuf {
        // SAFETY: valid and aligned by `new`'s contract. The caller owns the page whose word named the stage, so
        // the evictor, its only writer, does not touch it before `vacate` (module head).
        unsafe { &*self.memory(stage) }
    }

    /// The bytes of a free stage, for its evictor.
    ///
    /// # Safety
    /// The stage must be free and belong to the calling evictor's ring.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn bytes_mut(&self, stage: Stage) -> &mut PageBuf {
        // Once all stages are in use, no thread writes this line, which evictors share.
        if self.ever_used.load(Ordering::Relaxed) <= u64::from(stage.0) {
            self.ever_used.fetch_max(u64::from(stage.0) + 1, Ordering::Relaxed);
        }
        // SAFETY: valid and aligned by `new`'s contract; unique by this function's own condition.
        unsafe { &mut *self.memory(stage) }
    }

    /// Gives the memory of `count` stages back to the system. False: that cannot be done, and nothing has changed.
    ///
    /// # Safety
    /// The stages must be free, and belong to the calling evictor's ring.
    pub(super) unsafe fn give_back(&self, kernel: &impl Kernel, first: Stage, count: usize) -> bool {
        assert!(first.0 as usize + count <= self.all().len());
        // SAFETY: in bounds, as `new` was promised; nobody uses the bytes of a stage that is free, and its evictor, which calls, writes them before anybody does again.
        unsafe { kernel.give_back(self.memory(first), count) }
    }

    /// Records whose bytes are in a stage, before the page word names the stage.
    pub fn hold(&self, stage: Stage, page: Page, slot: Option<Slot>) {
        let meta = self.meta(stage);
        meta.page.store(page.0, Ordering::Relaxed);
        meta.slot.store(slot.map_or(0, Slot::number), Ordering::Relaxed);
        // Release: with the page word's release that follows, a rescuer sees all three.
        meta.vacated.store(HELD, Ordering::Release);
    }

    /// The stage has no page's bytes: its evictor is about to write it. For whoever takes over; a stage that is free is none that the engine asks about.
    pub fn disown(&self, stage: Stage) {
        // Release: before the bytes.
        self.meta(stage).page.store(0, Ordering::Release);
    }

    /// A write to the stage's slot is to be made (`true`), or has been made. For whoever takes over.
    pub fn note_write(&self, stage: Stage, pending: bool) {
        self.meta(stage).unsettled.store(pending.into(), Ordering::Release);
    }

    /// Of an engine that has ended: whether a stage has the bytes of the page whose word names it.
    pub fn claim(&self, stage: Stage, page: Page) -> Claim {
        match self.all().get(stage.0 as usize) {
            Some(meta) if page.0 != 0 && meta.page.load(Ordering::Acquire) == page.0 => {
                match meta.vacated.load(Ordering::Acquire) {
                    HELD => Claim::Holds,
                    _ => Claim::GivenUp,
                }
            }
            _ => Claim::Another,
        }
    }

    /// Of an engine that has ended: slots whose writes may still be under way.
    pub fn unsettled(&self) -> impl Iterator<Item = Slot> {
        let pending = self.all().iter().filter(|meta| meta.unsettled.load(Ordering::Acquire) != 0);
        pending.filter_map(|meta| Slot::new(meta.slot.load(Ordering::Acquire)))
    }

    /// The page whose bytes are in the stage.
    pub fn page(&self, stage: Stage) -> Page {
        Page(self.meta(stage).page.load(Ordering::Acquire))
    }

    /// The page has another address now (`mremap`). Called by its owner, before the new word names the stage.
    pub fn rename(&self, stage: Stage, page: Page) {
        self.meta(stage).page.store(page.0, Ordering::Release);
    }

    /// The slot that the stage is, or will be, written to.
    pub fn slot(&self, stage: Stage) -> Option<Slot> {
        Slot::new(self.meta(stage).slot.load(Ordering::Acquire))
    }

    /// Names another slot, when a write is retried elsewhere. Called by the evictor.
    pub fn set_slot(&self, stage: Stage, slot: Option<Slot>) {
        self.meta(stage).slot.store(slot.map_or(0, Slot::number), Ordering::Release);
    }

    /// The owner of the page is done with the stage's bytes; `slot_kept`: the page word names its slot now.
    pub fn vacate(&self, stage: Stage, slot_kept: bool) {
        let state = if slot_kept { VACATED_SLOT_KEPT } else { VACATED };
        // Release: our reads of the bytes come before the evictor's next use of them (its Acquire in `vacancy`).
        self.meta(stage).vacated.store(state, Ordering::Release);
    }

    /// The state of a stage whose page was taken.
    pub fn vacancy(&self, stage: Stage) -> Vacancy {
        match self.meta(stage).vacated.load(Ordering::Acquire) {
            HELD => Vacancy::Held,
            VACATED_SLOT_KEPT => Vacancy::SlotKept,
            _ => Vacancy::SlotFree,
        }
    }

    /// Stages that have been written to at least once: the RAM that the staging memory takes, in pages.
    pub fn ever_used(&self) -> u64 {
        // Rings are filled from their start, evictor by evictor; the highest number bounds the count.
        self.ever_used.load(Ordering::Relaxed)
    }
}

impl Drop for Stages {
    fn drop(&mut self) {
        if !self.lasts {
            // SAFETY: from Box::leak in `new`, freed once, and `&mut self` means that nobody uses it.
            drop(unsafe { Box::from_raw(self.meta.as_ptr()) });
        }
    }
}
