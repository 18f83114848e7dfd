//! Writes to each copy.
//!
//! The pages of a write belong to the copies' queues until all of them have ended: a copy that does not answer is waited for by its own queue, for
//! a second or so ([`super`]), and writes that begin later pass it by.

use super::{Copy, Shared};
use crate::any::{AnyBackend, AnyQueue};
use core::sync::atomic::Ordering;
use farshore_core::copies::{COPIES_MAX, CopySet};
use farshore_core::seams::{Backend, FaultsSeen, FreeSlots, IoError, PageBuf, WriteQueue};
use farshore_core::word::Slot;
use rustix::io::Errno;
use std::sync::{Arc, Mutex, PoisonError};

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

/// What a queue is given when a copy is opened that was not there before: whoever opens it allocates, and the evictor takes.
#[derive(Debug)]
pub(super) struct Lacking {
    depth: u32,
    queues: [Mutex<Option<AnyQueue>>; COPIES_MAX],
}

impl Lacking {
    /// Makes the queue of a copy.
    pub(super) fn give(&self, copy: usize, space: &AnyBackend) -> Result<(), IoError> {
        let queue = space.queue(self.depth)?;
        *self.queues[copy].lock().unwrap_or_else(PoisonError::into_inner) = Some(queue);
        Ok(())
    }
}

/// See the module's head.
#[derive(Debug)]
pub struct MirrorQueue {
    shared: Arc<Shared>,
    queues: Box<[Option<AnyQueue>]>,
    lacking: Option<Arc<Lacking>>,
    ops: Box<[Op]>,
    /// Ops without a write.
    free: Vec<u32>,
    /// Writes that no copy took; room for all.
    over: Vec<u32>,
}

impl MirrorQueue {
    pub(super) fn new(shared: &Arc<Shared>, depth: u32) -> Result<MirrorQueue, IoError> {
        let depth = depth.max(1);
        // No copy is opened meanwhile.
        let mut all = shared.lacking.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = |copy: &Copy| copy.space.get().map(|space| space.queue(depth)).transpose();
        let queues: Box<[_]> = shared.copies.iter().map(queue).collect::<Result<_, _>>()?;
        let lacking = queues.iter().any(Option::is_none).then(|| Arc::new(Lacking { depth, queues: Default::default() }));
        all.extend(lacking.clone());
        drop(all);
        Ok(MirrorQueue {
            shared: Arc::clone(shared),
            queues,
            lacking,
            ops: vec![NONE; depth as usize].into(),
            free: (0..depth).rev().collect(),
            over: Vec::with_capacity(depth as usize),
        })
    }

    /// A write has ended, whatever came of it.
    fn finish(shared: &Shared, op: &Op) -> Result<(), IoError> {
        let mut right = op.right;
        for n in 0..u64::from(op.count) {
            if let Some(slot) = shared.table.slot(op.first + n) {
                shared.count(op.first + n, slot.end_write(right));
            }
        }
        // A copy that has lost what it had meanwhile: whoever found out has marked all slots, before we did or after. Its life was counted first.
        for (n, copy) in shared.copies.iter().enumerate() {
            if right >> n & 1 == 0 || copy.life.load(Ordering::SeqCst) == op.lives[n] {
                continue;
            }
            right &= !(1 << n);
            for at in op.first..op.first + u64::from(op.count) {
                if let Some(slot) = shared.table.slot(at) {
                    shared.count(at, slot.lose(1 << n));
                }
            }
        }
        if right != 0 { Ok(()) } else { Err(op.why) }
    }

    /// Takes what has ended at copy `n`, after waiting at most `ns` for the first. Whether a write has ended everywhere.
    fn take(&mut self, n: usize, ns: u64, done: &mut dyn FnMut(u64, Result<(), IoError>)) -> bool {
        let MirrorQueue { shared, queues, ops, free, .. } = self;
        let (copy, mut delivered) = (&shared.copies[n], false);
        let Some(queue) = &mut queues[n] else { return false };
        let mut ended = |index: u64, result: Result<(), IoError>| {
            let op = &mut ops[index as usize];
            op.left -= 1;
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
                done(op.tag, MirrorQueue::finish(shared, op));
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
            done(op.tag, MirrorQueue::finish(&self.shared, op));
        }
        any
    }

    /// Until a write has ended, or this many ns have passed.
    fn reap_for(&mut self, mut ns: u64, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        loop {
            let mut delivered = self.take_over(done);
            for n in 0..self.queues.len() {
                delivered |= self.take(n, 0, done);
            }
            if delivered || ns == 0 || self.in_flight() == 0 {
                return;
            }
            // The one that has most to do: a write ends with its last copy.
            let Some(slowest) = (0..self.queues.len()).max_by_key(|&n| self.queues[n].as_ref().map_or(0, AnyQueue::in_flight))
            else {
                return;
            };
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
        let able = shared.set(|copy| !copy.stuck.load(Ordering::Acquire)) & !skip;
        // Where none is up, they are tried all the same.
        let to = if able & shared.up() != 0 { able & shared.up() } else { able };
        let lives = core::array::from_fn(|n| shared.copies.get(n).map_or(0, |copy| copy.life.load(Ordering::SeqCst)));
        let why = IoError::Device(Errno::BUSY.raw_os_error());
        self.ops[index as usize] = Op { first: first.number(), count, tag, left: 0, right: 0, lives, why };
        for (n, queue) in self.queues.iter_mut().enumerate().filter(|(n, _)| to >> n & 1 != 0) {
            if queue.is_none()
                && let Some(lacking) = &self.lacking
                && let Ok(mut given) = lacking.queues[n].try_lock()
            {
                *queue = given.take();
            }
            let Some(queue) = queue else { continue };
            // SAFETY: the caller keeps the pages as they are until this write's completion, which comes after that of each copy.
            if unsafe { queue.start_write(first, pages, count, u64::from(index)) }.is_ok() {
                self.ops[index as usize].left += 1;
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
        self.queues.iter_mut().flatten().for_each(|queue| queue.tend(free, faults));
    }
}
