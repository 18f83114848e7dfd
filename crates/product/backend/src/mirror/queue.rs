//! Writes to each copy.
//!
//! The pages of a write belong to the copies' queues until all of them have ended: a copy that does not answer is waited for by its own queue, for
//! a second or so ([`super`]), and writes that begin later pass it by.

use super::place::Opened;
use super::{LOCK_NAP_NS, Shared, Tally, locked};
use crate::any::{AnyBackend, AnyQueue};
use crate::sleep;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use farshore_core::copies::{COPIES_MAX, CopySet};
use farshore_core::seams::{Backend, FaultsSeen, FreeSlots, IoError, PageBuf, WriteQueue};
use farshore_core::word::Slot;
use rustix::io::Errno;
use std::sync::{Arc, Mutex, MutexGuard};

/// How long one copy is waited for before the others are looked at, in ns.
const SLICE_NS: u64 = 1_000_000;

/// A write in flight.
#[derive(Clone, Copy, Debug)]
struct Op {
    first: u64,
    count: u32,
    tag: u64,
    /// Copies that have not ended.
    left: u8,
    /// Copies that have it.
    right: CopySet,
    /// The copies' lives when it began.
    lives: [u32; COPIES_MAX],
    why: IoError,
}

const NONE: Op = Op { first: 0, count: 0, tag: 0, left: 0, right: 0, lives: [0; COPIES_MAX], why: IoError::Short };

/// A queue's part for each copy. The queue's thread uses it, and the one who keeps the space: that one gives a part before anybody writes to the copy, and takes it
/// back when nobody begins to any more. So neither waits for the other, and a part that is not to be had now is left alone.
#[derive(Debug)]
pub(super) struct Parts {
    depth: u32,
    queues: [Mutex<Option<AnyQueue>>; COPIES_MAX],
    /// Whether there is a part for each copy. (The lock of one that is there may be held as long as a server is waited for.)
    has: [AtomicBool; COPIES_MAX],
    /// Odd while the queue's thread counts which copies have what was written: see [`farshore_core::copies`].
    counting: AtomicU32,
}

impl Parts {
    /// The part for a copy, if it is there and nobody else has it.
    fn part(&self, copy: usize) -> Option<Part<'_>> {
        let held = self.queues[copy].try_lock().ok()?;
        held.is_some().then_some(Part(held))
    }

    /// Whether there is a part for a copy.
    pub(super) fn has(&self, copy: usize) -> bool {
        self.has[copy].load(Ordering::Acquire)
    }

    /// Makes the part for a copy, which has none. May wait for a server.
    pub(super) fn give(&self, copy: usize, space: &AnyBackend) -> Result<(), IoError> {
        let queue = space.queue(self.depth)?;
        *locked(&self.queues[copy]) = Some(queue);
        self.has[copy].store(true, Ordering::Release);
        Ok(())
    }

    /// Runs `f`, which counts what was written. By the queue's thread.
    fn counts<R>(&self, f: impl FnOnce() -> R) -> R {
        let number = self.counting.load(Ordering::Relaxed);
        self.counting.store(number.wrapping_add(1), Ordering::Relaxed);
        // Before the lives are looked at. Pairs with the fence in `Shared::end_life`.
        fence(Ordering::SeqCst);
        let result = f();
        // Release: who waits for this sees what was counted.
        self.counting.store(number.wrapping_add(2), Ordering::Release);
        result
    }

    /// Waits until what is just being counted, if anything is, has been. That waits for nobody.
    pub(super) fn let_counting_end(&self) {
        let number = self.counting.load(Ordering::Acquire);
        let mut looks = 0_u32;
        while number % 2 == 1 && self.counting.load(Ordering::Acquire) == number {
            looks += 1;
            if looks.is_multiple_of(256) { sleep::nap(LOCK_NAP_NS) } else { core::hint::spin_loop() }
        }
    }

    /// Takes the part for a copy back, if nothing is in flight there. Whether there is none now: it stays so.
    pub(super) fn take_back(&self, copy: usize) -> bool {
        let Ok(mut held) = self.queues[copy].try_lock() else { return false };
        if held.as_ref().is_some_and(|queue| queue.in_flight() > 0) {
            return false;
        }
        self.has[copy].store(false, Ordering::Release);
        let part = held.take();
        drop(held);
        drop(part);
        true
    }
}

/// A part that this thread has.
struct Part<'p>(MutexGuard<'p, Option<AnyQueue>>);

impl Part<'_> {
    fn queue(&mut self) -> &mut AnyQueue {
        match self.0.as_mut() {
            Some(queue) => queue,
            None => unreachable!("a part went while it was held"),
        }
    }
}

/// See the module's head.
#[derive(Debug)]
pub struct MirrorQueue {
    shared: Arc<Shared>,
    parts: Arc<Parts>,
    /// Writes in flight at each copy.
    flying: [u32; COPIES_MAX],
    ops: Box<[Op]>,
    /// Ops without a write.
    free: Vec<u32>,
    /// Writes that no copy took; room for all.
    over: Vec<u32>,
}

impl Drop for MirrorQueue {
    fn drop(&mut self) {
        locked(&self.shared.parts).retain(|parts| !Arc::ptr_eq(parts, &self.parts));
        // Each waits for its writes.
        self.parts.queues.iter().for_each(|queue| drop(locked(queue).take()));
    }
}

impl MirrorQueue {
    pub(super) fn new(shared: &Arc<Shared>, depth: u32) -> Result<MirrorQueue, IoError> {
        let depth = depth.max(1);
        let parts = Arc::new(Parts { depth, queues: Default::default(), has: Default::default(), counting: AtomicU32::new(0) });
        // None of these is closed, and another one put in its place, as long as it is held.
        let mut held: [Option<Opened<'_>>; COPIES_MAX] = Default::default();
        loop {
            for (n, copy) in shared.copies.iter().enumerate().filter(|(n, _)| !parts.has(*n)) {
                held[n] = copy.held();
                held[n].as_ref().map_or(Ok(()), |space| parts.give(n, space))?;
            }
            // A copy comes while nobody has this, so each that has come by now has its part. No server is waited for under it.
            let mut all = locked(&shared.parts);
            if shared.copies.iter().enumerate().all(|(n, copy)| !copy.is_readable() || parts.has(n)) {
                all.push(Arc::clone(&parts));
                break;
            }
            drop(all);
            sleep::nap(LOCK_NAP_NS);
        }
        // The part of one that has gone meanwhile is taken back as from any other queue.
        drop(held);
        Ok(MirrorQueue {
            shared: Arc::clone(shared),
            parts,
            flying: [0; COPIES_MAX],
            ops: vec![NONE; depth as usize].into(),
            free: (0..depth).rev().collect(),
            over: Vec::with_capacity(depth as usize),
        })
    }

    /// A write has ended, whatever came of it.
    fn finish(shared: &Shared, parts: &Parts, op: &Op) -> Result<(), IoError> {
        parts.counts(|| {
            // A copy that has lost what it had meanwhile, or was taken away, does not count. Who finds that out, or does it, counts its life on, and waits for us.
            let lives = |n: usize| shared.copies[n].life.load(Ordering::SeqCst) == op.lives[n];
            let right = (0..COPIES_MAX).filter(|&n| op.right >> n & 1 != 0 && lives(n)).fold(0, |set, n| set | 1 << n);
            let mut tally = Tally::default();
            for n in 0..u64::from(op.count) {
                if let Some(slot) = shared.table.slot(op.first + n) {
                    shared.note(&mut tally, op.first + n, slot.end_write(right));
                }
            }
            shared.settle(tally);
            if right != 0 { Ok(()) } else { Err(op.why) }
        })
    }

    /// Takes what has ended at copy `n`, after waiting at most `ns` for the first. Whether a write has ended everywhere.
    fn take(&mut self, n: usize, ns: u64, done: &mut dyn FnMut(u64, Result<(), IoError>)) -> bool {
        if self.flying[n] == 0 {
            return false;
        }
        let MirrorQueue { shared, parts, flying, ops, free, .. } = self;
        let (copy, mut delivered) = (&shared.copies[n], false);
        let Some(mut part) = parts.part(n) else { return false };
        let queue = part.queue();
        let mut ended = |index: u64, result: Result<(), IoError>| {
            let op = &mut ops[index as usize];
            op.left -= 1;
            flying[n] -= 1;
            match result {
                Ok(()) => {
                    copy.works();
                    op.right |= 1 << n;
                }
                Err(why) => {
                    copy.failed(why);
                    op.why = why;
                }
            }
            if op.left == 0 {
                free.push(index as u32);
                delivered = true;
                done(op.tag, MirrorQueue::finish(shared, parts, op));
            }
        };
        match ns {
            0 => queue.reap(false, &mut ended),
            ns => queue.reap_within(ns, &mut ended),
        }
        delivered
    }

    fn take_over(&mut self, done: &mut dyn FnMut(u64, Result<(), IoError>)) -> bool {
        let any = !self.over.is_empty();
        while let Some(index) = self.over.pop() {
            self.free.push(index);
            let op = &self.ops[index as usize];
            done(op.tag, MirrorQueue::finish(&self.shared, &self.parts, op));
        }
        any
    }

    /// Until a write has ended, or this many ns have passed.
    fn reap_for(&mut self, mut ns: u64, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        loop {
            let mut delivered = self.take_over(done);
            for n in 0..COPIES_MAX {
                delivered |= self.take(n, 0, done);
            }
            if delivered || ns == 0 || self.in_flight() == 0 {
                return;
            }
            // The one that has most to do: a write ends with its last copy.
            let Some(slowest) = (0..COPIES_MAX).max_by_key(|&n| self.flying[n]) else { return };
            let slice = ns.min(SLICE_NS);
            ns -= if ns == u64::MAX { 0 } else { slice };
            if self.take(slowest, slice, done) {
                return;
            }
        }
    }
}

impl WriteQueue for MirrorQueue {
    unsafe fn start_write(&mut self, first: Slot, pages: *const PageBuf, count: u32, tag: u64) -> Result<(), ()> {
        let index = self.free.pop().ok_or(())?;
        let shared = &self.shared;
        let mut spoiled = false;
        let slots = first.number()..first.number() + u64::from(count);
        for slot in slots.clone().filter_map(|slot| shared.table.slot(slot)) {
            spoiled |= slot.begin_write();
        }
        slots.last().into_iter().for_each(|last| shared.table.note_use(last));
        // After the slots: whoever repairs has noted the copy before.
        let skip = if spoiled { 1 << shared.repairing.load(Ordering::Acquire) } else { 0 };
        // The lives before the states: who takes a copy away does it the other way round. So a write that begins there all the same has the old life, and does not count.
        let lives = core::array::from_fn(|n| shared.copies[n].life.load(Ordering::SeqCst));
        let able = shared.set(|copy| copy.takes_writes() && !copy.stuck.load(Ordering::Acquire)) & !skip;
        // Where none is up, they are tried all the same.
        let to = if able & shared.up() != 0 { able & shared.up() } else { able };
        let why = IoError::Device(Errno::BUSY.raw_os_error());
        self.ops[index as usize] = Op { first: first.number(), count, tag, left: 0, right: 0, lives, why };
        for n in (0..COPIES_MAX).filter(|n| to >> n & 1 != 0) {
            let Some(mut part) = self.parts.part(n) else { continue };
            // SAFETY: the caller keeps the pages as they are until this write's completion, which comes after that of each copy.
            if unsafe { part.queue().start_write(first, pages, count, u64::from(index)) }.is_ok() {
                self.ops[index as usize].left += 1;
                self.flying[n] += 1;
            }
        }
        if self.ops[index as usize].left == 0 {
            self.over.push(index);
        }
        Ok(())
    }

    fn reap(&mut self, wait: bool, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        self.reap_for(if wait { u64::MAX } else { 0 }, done);
    }

    fn reap_within(&mut self, ns: u64, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        self.reap_for(ns.min(u64::MAX - 1), done);
    }

    fn in_flight(&self) -> u32 {
        (self.ops.len() - self.free.len()) as u32
    }

    fn tend(&mut self, free: &dyn FreeSlots, faults: &FaultsSeen) {
        (0..COPIES_MAX).filter_map(|n| self.parts.part(n)).for_each(|mut part| part.queue().tend(free, faults));
    }
}
