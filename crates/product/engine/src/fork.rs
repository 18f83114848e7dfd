//! What a fork needs: a moment in which no thread owns a page, and an engine for the child.
//!
//! # In the parent
//!
//! [`Engine::quiesce`], under the address-space lock (so no memory call is under way):
//!
//! 1. the **gate** is closed: threads that fault now sleep, and faults that have begun end. Evictors go on meanwhile, since
//!    such a fault may need a frame;
//! 2. evictors **rest**: each ends the writes that it has begun, and says of every stage whether its slot has the bytes.
//!
//! Now every page is untouched, resident, leaving and written, or out; each slot in use is named by a page word or by a stage.
//! The caller shares the slots ([`SlotMap::share`]), forks, and calls [`Engine::resume`].
//!
//! # In the child
//!
//! The child has a copy of all memory, and none of the threads. [`Engine::for_child`] makes a new engine around the page words
//! and slots, and turns each word into what is true in the child
//! ([`AtomicWord::inherit`](farshore_core::word::AtomicWord::inherit)). Pages that were in the parent's stages are read from
//! their slots. No other part of the parent's engine is used.

use crate::{Engine, MEMORY_CALLS};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use farshore_core::canary::{Canary, is_planted};
use farshore_core::gate::Gate;
use farshore_core::page::{Page, PageRange};
use farshore_core::seams::{Kernel, PageBuf, World};
use farshore_core::slots::SlotMap;
use farshore_core::sync::Futex;
use farshore_core::sync::plain::{AtomicBool, AtomicU32, AtomicU64};
use farshore_core::table::{GranuleRef, PageTable};
use farshore_core::word::{Release, Slot, State, Word};

/// How evictors are brought to rest.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    /// 1: they are to rest.
    wanted: AtomicU32,
    /// How many evictors rest.
    resting: AtomicU32,
    /// How many evictors there are.
    evictors: AtomicU32,
    /// Pages whose bytes are in stages alone: their writes fail.
    unsaved: AtomicU64,
    /// The process has forked, or is a fork.
    has_forked: AtomicBool,
}

impl Rest {
    pub(crate) fn add_evictor(&self) {
        self.evictors.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn evictors(&self) -> usize {
        self.evictors.load(Ordering::SeqCst) as usize
    }

    /// An evictor without a thread rests all the time.
    pub(crate) fn park<F: Futex>(&self, futex: &F) {
        self.resting.fetch_add(1, Ordering::SeqCst);
        futex.wake_all(&self.resting);
    }

    /// The evictor has a thread again, which checks next whether it is to rest. If the thread that wants the rest has still
    /// counted it as resting, the evictor sees that it is to rest.
    pub(crate) fn unpark(&self) {
        self.resting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether pages may be shared with a parent or a child.
    pub(crate) fn has_forked(&self) -> bool {
        self.has_forked.load(Ordering::Relaxed)
    }

    /// Waits until every evictor rests; `wake` wakes those that sleep, which look at `wanted` then. `Err`: how many pages are in
    /// stages alone.
    fn bring_about<F: Futex>(&self, futex: &F, wake: impl FnOnce()) -> Result<(), u64> {
        self.has_forked.store(true, Ordering::Relaxed);
        self.unsaved.store(0, Ordering::SeqCst);
        self.wanted.store(1, Ordering::SeqCst);
        wake();
        loop {
            let resting = self.resting.load(Ordering::SeqCst);
            if resting >= self.evictors.load(Ordering::SeqCst) || is_planted(Canary::Rest) {
                break;
            }
            futex.wait(&self.resting, resting);
        }
        match self.unsaved.load(Ordering::SeqCst) {
            0 => Ok(()),
            unsaved => Err(unsaved),
        }
    }

    /// Evictors go on.
    fn end<F: Futex>(&self, futex: &F) {
        self.wanted.store(0, Ordering::SeqCst);
        futex.wake_all(&self.wanted);
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst) != 0
    }

    /// The calling evictor rests until it is told to go on.
    pub(crate) fn rest<F: Futex>(&self, futex: &F, unsaved: u64) {
        self.unsaved.fetch_add(unsaved, Ordering::SeqCst);
        self.resting.fetch_add(1, Ordering::SeqCst);
        futex.wake_all(&self.resting);
        while self.is_wanted() {
            futex.wait(&self.wanted, 1);
        }
        self.resting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What an engine for a child is made from: the copy of the parent's.
#[derive(Debug)]
pub struct Inheritance<'p> {
    /// Page words.
    pub table: PageTable,
    /// Slots, with the parent's as their base ([`SlotMap::begin_own`]).
    pub slots: SlotMap,
    /// The parent's stages, for the slots that they were written to.
    pub stages: &'p crate::evict::stage::Stages,
    /// Managed pages.
    pub managed: u64,
    /// Leave pins as they are: some call of this thread that is under way cannot tell which pins are its own.
    pub keep_pins: bool,
}

/// How faults and evictors stop while the process forks: the gate that faults pass, and the rest that evictors take.
#[derive(Debug)]
pub(crate) struct Quiet {
    pub(crate) gate: Gate,
    pub(crate) rest: Rest,
}

impl Quiet {
    /// Nothing stops. Faults of `cores` cores count themselves apart.
    pub(crate) fn new(cores: usize) -> Quiet {
        Quiet { gate: Gate::new(cores), rest: Rest::default() }
    }

    /// Closes the gate, then brings evictors to rest, which `wake` wakes. `Err`: pages whose bytes are in stages alone.
    fn begin<F: Futex>(&self, futex: &F, wake: impl FnOnce()) -> Result<(), u64> {
        self.gate.close(futex);
        self.rest.bring_about(futex, wake)
    }

    /// Evictors and faults go on.
    fn end<F: Futex>(&self, futex: &F) {
        self.rest.end(futex);
        self.gate.open(futex);
    }
}

impl<W: World> Engine<W> {
    /// Waits until no thread owns a page, and keeps it so until [`Engine::resume`]. Under the address-space lock, by a thread
    /// that is not serving a fault and touches no managed memory before the resume.
    ///
    /// # Errors
    /// How many pages are in stages alone because their writes fail: a child could not have them. The caller resumes all
    /// the same.
    pub fn quiesce(&self) -> Result<(), u64> {
        self.quiet.begin(&self.futex, || self.evictors.pace.wake_all(&self.futex))
    }

    /// Lets faults and evictors go on.
    pub fn resume(&self) {
        self.quiet.end(&self.futex);
    }

    /// The engine of a forked child. `staging` is as for [`Engine::new`]; the other parts are the child's own. The frames of
    /// resident pages are taken, whatever the limit.
    ///
    /// # Safety
    /// As for [`Engine::new`]; and the parent was quiet ([`Engine::quiesce`]) when it forked.
    ///
    /// # Errors
    /// A page that the child cannot have, and its word.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn for_child(
        shape: crate::Shape,
        kernel: W::Kernel,
        backend: W::Backend,
        policy: W::Policy,
        clock: W::Clock,
        futex: W::Futex,
        staging: *mut PageBuf,
        from: Inheritance<'_>,
    ) -> Result<Self, (Page, Word)> {
        // SAFETY: this function's own condition.
        let mut engine = unsafe { Engine::new(shape, kernel, backend, policy, clock, futex, staging) };
        engine.quiet.rest.has_forked.store(true, Ordering::Relaxed);
        // The counts are the child's own, so they do not say what it has inherited.
        engine.evictors.pace.headroom.fix();
        engine.table = from.table;
        engine.slots = from.slots;
        engine.slots.set_spaces(&crate::capacities(&engine.backend));
        engine.stats.manage(from.managed as i64);
        let mut resident = 0;
        // An absent granule may be on a list of the parent's, and pinned by a call of another thread: it comes again when memory is mapped
        // there.
        for g in engine.table.granules_even_absent() {
            if g.granule.listed.load(Ordering::Relaxed) {
                g.granule.listed.store(false, Ordering::Relaxed);
            }
            if g.granule.protection_epoch.load(Ordering::Relaxed) != 0 {
                g.granule.protection_epoch.store(0, Ordering::Relaxed);
            }
            if !g.flags.is_present() || !g.granule.touched() {
                if g.granule.was_used() && !from.keep_pins {
                    g.words.iter().for_each(|word| word.drop_pins());
                }
                continue;
            }
            let (mut here, mut in_files) = (0, Vec::new());
            for (page, word) in g.id.range().iter().zip(g.words) {
                let (state, freed) =
                    word.inherit(from.keep_pins, |stage| from.stages.slot(stage)).map_err(|word| (page, word))?;
                here += u64::from(state == State::Resident);
                match freed {
                    Some(slot) if slot.is_of_file() => in_files.push((page, slot)),
                    Some(slot) => engine.slots.free(slot),
                    None => {}
                }
            }
            engine.protect_again(&g, &in_files);
            if here > 0 {
                engine.list_granule(g.granule, g.id.first(), g.id.0 as usize);
            }
            resident += here;
        }
        engine.frames().take_back(MEMORY_CALLS, resident);
        Ok(engine)
    }

    /// In a forked child, whose only thread this is: pages of granule `g` that are as their files have them are protected again, so that they
    /// leave without a write. `pages`, in order, each with the slot that stands for it.
    fn protect_again(&self, g: &GranuleRef<'_>, pages: &[(Page, Slot)]) {
        for run in pages.chunk_by(|(one, _), (next, _)| one.plus(1) == *next) {
            let range = PageRange { start: run[0].0, end: run[0].0.plus(run.len() as u64) };
            let is_done = self.kernel.protect(range).is_ok();
            for &(page, slot) in run {
                let clean = Release::Clean { slot, chances: 0 };
                // Some of them may be protected all the same.
                let dirty = Release::Dirty { chances: 0, guessed: false, protected: true };
                if self.claim_page(page).is_some() {
                    self.release(page, &g.words[page.index_in_granule()], if is_done { clean } else { dirty });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::NoFutex;

    #[test]
    fn an_evictor_without_a_thread_rests() {
        let rest = Rest::default();
        rest.add_evictor();
        rest.park(&NoFutex);
        assert!(!rest.has_forked());
        assert_eq!(rest.bring_about(&NoFutex, || {}), Ok(()));
        assert!(rest.is_wanted() && rest.has_forked());
        rest.end(&NoFutex);
        rest.unpark();
        assert!(!rest.is_wanted());
    }

    /// The evictor has its turn whenever the thread that forks waits for it.
    struct OneThread<'r>(&'r Rest, AtomicBool);

    impl Futex for OneThread<'_> {
        fn wait(&self, word: &AtomicU32, expected: u32) {
            assert!(word.load(Ordering::SeqCst) == expected && self.0.is_wanted());
            assert!(!self.1.swap(true, Ordering::SeqCst), "it rests, and need not be waited for again");
            self.0.unsaved.fetch_add(3, Ordering::SeqCst);
            self.0.resting.fetch_add(1, Ordering::SeqCst);
        }
        fn wait_for(&self, word: &AtomicU32, expected: u32, _: u64) {
            self.wait(word, expected);
        }
        fn wake_all(&self, _: &AtomicU32) {}
    }

    #[test]
    fn the_fork_waits_for_evictors_and_hears_of_pages_that_are_in_stages_alone() {
        let rest = Rest::default();
        rest.add_evictor();
        let woken = core::cell::Cell::new(false);
        let thread = OneThread(&rest, AtomicBool::new(false));
        assert_eq!(rest.bring_about(&thread, || woken.set(true)), Err(3));
        assert!(woken.get() && thread.1.load(Ordering::SeqCst));
    }
}
