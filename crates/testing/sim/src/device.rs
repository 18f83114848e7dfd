//! The swap device: asynchronous writes that complete in any order, reads that take time, errors, no room, wrong bytes.
//!
//! The device checks the promises that the engine makes to a backend: no slot is read before its write was acknowledged,
//! no slot is written while it is written or read, and the memory of a write stays as it is until its completion was
//! reaped.

use crate::kernel::{set_stamp, stamp_of};
use crate::model::stamp_in_file;
use crate::reads;
use crate::sched::{block, maybe_switch};
use crate::setup::Fault;
use crate::world::{World, broken, note, world};
use farshore_core::limits::EXTENT_SLOTS;
use farshore_core::seams::{Backend, CANNOT, IoError, LATER, MemoryBudget, PageBuf, ReadBegun, Reads, Spaces, WriteQueue};
use farshore_core::slots::arrangement::{Arrangements, SPACES_MAX, SpaceSet};
use farshore_core::word::Slot;

/// One slot of the device.
#[derive(Clone, Default, Debug)]
pub struct Content {
    /// The bytes that were written, if any.
    pub bytes: Option<Box<PageBuf>>,
    /// The write was acknowledged.
    pub acknowledged: bool,
    /// A write is in flight.
    pub writing: bool,
    /// Reads in flight.
    pub readers: u32,
    /// Every read delivers wrong bytes.
    pub rotten: bool,
    /// The slot's room is being given back.
    pub giving: bool,
}

#[derive(Debug)]
struct Write {
    queue: usize,
    first: u64,
    pages: *const PageBuf,
    before: Vec<PageBuf>,
    tag: u64,
    begun_at: u64,
    done_at: u64,
    fault: Option<Fault>,
}

/// The device of one run.
#[derive(Debug)]
pub struct Device {
    slots: Vec<Content>,
    writes: Vec<Write>,
    depth: Vec<u32>,
    /// Which space a slot lies in, and how much each space can hold.
    arrangements: Arrangements,
    capacities: Vec<Option<u64>>,
    /// Spaces that exist.
    open: SpaceSet,
}

impl Device {
    /// A device of this many spaces, with this many slots together.
    pub fn new(spaces: usize, capacity: Option<u64>) -> Device {
        let all = SpaceSet::first(spaces);
        // As many extents in all as the capacity has, dealt out in turn.
        let extents = |space: usize| Some((capacity? / EXTENT_SLOTS as u64 + (spaces - 1 - space) as u64) / spaces as u64);
        Device {
            slots: Vec::new(),
            writes: Vec::new(),
            depth: Vec::new(),
            arrangements: Arrangements::new(all),
            capacities: (0..SPACES_MAX)
                .map(|n| if n < spaces { Some(extents(n)? * EXTENT_SLOTS as u64) } else { None })
                .collect(),
            open: all,
        }
    }

    /// What a space can hold, in slots.
    pub fn capacity_of(&self, space: usize) -> Option<u64> {
        self.capacities[space]
    }

    /// A space comes.
    pub fn open(&mut self, space: usize, capacity: Option<u64>) {
        self.open = self.open.with(space);
        self.capacities[space] = capacity;
    }

    pub(crate) fn space_of(&self, slot: u64) -> usize {
        self.arrangements.place_of((slot / EXTENT_SLOTS as u64) as u32).space
    }

    /// Whether the space of a slot has gone.
    pub fn is_gone(&self, slot: Slot) -> bool {
        !self.open.contains(self.space_of(slot.number()))
    }

    /// A slot's content.
    pub fn content(&mut self, slot: Slot) -> &mut Content {
        let n = slot.number() as usize;
        if n >= self.slots.len() {
            self.slots.resize(n + 512, Content::default());
        }
        &mut self.slots[n]
    }

    /// Writes in flight.
    pub fn in_flight(&self) -> usize {
        self.writes.len()
    }

    /// From now on no slot is rotten.
    pub fn heal(&mut self) {
        self.slots.iter_mut().for_each(|s| s.rotten = false);
    }

    pub(crate) fn number(first: u64, i: usize) -> Slot {
        let Some(slot) = Slot::new(first + i as u64) else { broken(0, "slot 0 is written") };
        slot
    }
}

/// The engine's side of the device.
#[derive(Debug)]
pub struct SimBackend {
    /// Spaces that extents go round at first.
    pub spaces: usize,
    /// Whether this is a forked child's side, which has the files of its parent open.
    pub is_childs: bool,
}

/// A queue of writes.
#[derive(Debug)]
pub struct SimQueue {
    id: usize,
}

/// How long a transfer may take before its space counts as hanging. Short, since an actor that has to wait for it polls.
pub const PATIENCE_NS: u64 = 50_000_000;

/// Whether the space of `slot` fails now.
fn is_sick(w: &World, slot: u64) -> bool {
    w.rates.sick >> w.device.space_of(slot) & 1 == 1
}

/// A read of `slot` begins, for the program or for a child that has its parent's files open.
pub(crate) fn begin_slot(w: &mut World, slot: Slot, is_childs: bool) {
    if w.device.is_gone(slot) && !is_childs {
        broken(0, &format!("{slot:?} is read, whose space has gone"));
    }
    let content = w.device.content(slot);
    if !content.acknowledged || content.writing {
        broken(0, &format!("{slot:?} is read before its write was acknowledged"));
    }
    content.readers += 1;
    note("read slot", 0, slot.number());
}

/// An operation begins. Returns the fault that it is to meet, if it is the one that is to fail.
pub(crate) fn begin(w: &mut World) -> Option<Fault> {
    let number = w.counts.operations;
    w.counts.operations += 1;
    let fault = w.setup.single.filter(|single| single.nth == number).map(|single| single.fault);
    w.counts.injected += u64::from(fault.is_some());
    fault
}

/// How long an operation takes: mostly a short time, now and then a long one, longer than any patience.
pub(crate) fn latency(w: &mut World, slot: u64, fault: Option<Fault>) -> u64 {
    let often = w.rates.hang;
    if fault == Some(Fault::Hang) || (is_sick(w, slot) && hit(w, often)) {
        return w.rng.between(PATIENCE_NS + PATIENCE_NS / 4, 4 * PATIENCE_NS);
    }
    match w.rng.below(100) {
        0 => w.rng.between(1_000_000, 20_000_000),
        1..=10 => w.rng.between(100_000, 1_000_000),
        _ => w.rng.between(2_000, 100_000),
    }
}

pub(crate) fn hit(w: &mut World, rate: u32) -> bool {
    let hit = w.rng.chance(rate);
    w.counts.injected += u64::from(hit);
    hit
}

/// What a read delivers: right bytes, an error, or wrong bytes without one.
pub(crate) fn deliver(w: &mut World, slot: Slot, into: &mut PageBuf, fault: Option<Fault>) -> Result<(), IoError> {
    let (read_error, corrupt) = match fault {
        Some(Fault::Error | Fault::Short) => (10_000, 0),
        Some(Fault::Corrupt) => (0, 10_000),
        _ if w.rates.mute && is_sick(w, slot.number()) => (10_000, 0),
        _ => (w.rates.read_error, w.rates.corrupt),
    };
    w.actors[w.current].luck.cut_reads = 0;
    let rotten = w.device.content(slot).rotten;
    if let Some(bytes) = &w.device.content(slot).bytes {
        into.0.copy_from_slice(&bytes.0);
    }
    if hit(w, read_error) {
        // After an error, the buffer may hold any bytes.
        let from = w.rng.below(4096) as usize;
        into.0[from..].fill(0xEE);
        w.actors[w.current].luck.bad_reads += 1;
        return Err(w.rng.pick(&[IoError::Device(5), IoError::Short]));
    }
    if rotten || hit(w, corrupt) {
        w.actors[w.current].luck.bad_reads += 1;
        if !rotten && w.rng.chance(5000) {
            // Another slot's bytes, whole and with a checksum of their own.
            let other = w.rng.below(w.device.slots.len() as u64) as usize;
            if other as u64 != slot.number()
                && let Some(bytes) = w.device.slots.get(other).and_then(|s| s.bytes.clone())
            {
                into.0.copy_from_slice(&bytes.0);
                return Ok(());
            }
        }
        let at = w.rng.below(4096) as usize;
        into.0[at] ^= 1 << w.rng.below(8);
        return Ok(());
    }
    w.actors[w.current].luck.bad_reads = 0;
    Ok(())
}

impl Backend for SimBackend {
    type Queue = SimQueue;

    fn queue(&self, depth: u32) -> Result<SimQueue, IoError> {
        world(|w| {
            w.device.depth.push(depth.min(w.setup.depth));
            Ok(SimQueue { id: w.device.depth.len() - 1 })
        })
    }
}

impl Reads for SimBackend {
    fn read(&self, slot: Slot, into: &mut PageBuf) -> Result<(), IoError> {
        maybe_switch();
        if let Some(stamp) = stamp_in_file(slot) {
            let until = world(|w| w.now + w.rng.between(1_000, 100_000));
            block(0, Some(until));
            set_stamp(into, stamp);
            return Ok(());
        }
        let (until, fault) = world(|w| {
            let fault = begin(w);
            begin_slot(w, slot, self.is_childs);
            (w.now + latency(w, slot.number(), fault), fault)
        });
        block(0, Some(until));
        world(|w| {
            w.device.content(slot).readers -= 1;
            deliver(w, slot, into, fault)
        })
    }

    fn begin_read(&self, first: Slot, into: &mut [PageBuf]) -> ReadBegun {
        reads::begin(self, first, into)
    }

    fn finish_read(&self, first: Slot, into: &mut [PageBuf], read: Result<(), IoError>) -> Result<(), IoError> {
        reads::finish(first, into, read)
    }
}

impl Spaces for SimBackend {
    fn capacity(&self) -> Option<u64> {
        (0..self.spaces).map(|space| self.capacity_of(space)).sum()
    }

    fn name(&self) -> &str {
        "sim:"
    }

    fn spaces(&self) -> usize {
        self.spaces
    }

    fn capacity_of(&self, space: usize) -> Option<u64> {
        if self.is_childs { None } else { world(|w| w.device.capacity_of(space)) }
    }

    fn arrange(&self, first: u32, spaces: SpaceSet) {
        world(|w| w.device.arrangements.arrange(first, spaces));
    }

    /// Now and then false, as if the device copied something there by itself.
    fn is_quiet(&self, _is_there: &dyn Fn(Slot) -> bool) -> bool {
        maybe_switch();
        world(|w| {
            let refused = w.rates.refused;
            !hit(w, refused)
        })
    }

    fn shut_space(&self, _space: usize) {
        maybe_switch();
    }

    /// All bytes of the space are gone, except for those that children may read through their own descriptors.
    fn close_space(&self, space: usize) {
        note("space goes", 0, space as u64);
        world(|w| {
            let mine = |n: u64| w.device.space_of(n) == space;
            if let Some(write) = w.device.writes.iter().find(|write| mine(write.first)) {
                broken(0, &format!("space {space} goes while slot {} is being written", write.first));
            }
            let held = |n: u64| w.children.iter().any(|(_, slots)| slots.contains(&n));
            let gone: Vec<usize> = (0..w.device.slots.len()).filter(|&n| mine(n as u64) && !held(n as u64)).collect();
            if let Some(read) = gone.iter().find(|&&n| w.device.slots[n].readers > 0) {
                broken(0, &format!("space {space} goes while slot {read} is being read"));
            }
            gone.into_iter().for_each(|n| w.device.slots[n] = Content::default());
            w.device.open = w.device.open.without(space);
        });
    }

    fn name_of(&self, _slot: Slot) -> &str {
        self.name()
    }

    /// Takes time. Afterwards the old bytes cannot be read.
    fn give_back(&self, first: Slot, count: u32) -> Result<(), IoError> {
        maybe_switch();
        if !self.is_quiet(&|_| true) {
            return Err(LATER);
        }
        let slots = || (first.number()..first.number() + u64::from(count)).map(|n| Device::number(n, 0));
        let until = world(|w| {
            note("give back", 0, first.number());
            for slot in slots() {
                let held = w.children.iter().any(|(_, slots)| slots.contains(&slot.number()));
                let content = w.device.content(slot);
                if content.writing || content.readers > 0 || held {
                    broken(
                        0,
                        &format!(
                            "room of {slot:?} is given back while it is written or read, or a child may read it: {content:?}"
                        ),
                    );
                }
                content.giving = true;
            }
            w.now + latency(w, first.number(), None)
        });
        block(0, Some(until));
        world(|w| {
            let refused = w.rates.refused / 64;
            let result = if hit(w, refused) { Err(CANNOT) } else { Ok(()) };
            w.counts.given_back += u64::from(result.is_ok());
            // An operation that ends with an error may have given the room back all the same.
            slots().for_each(|slot| *w.device.content(slot) = Content::default());
            result
        })
    }
}

impl MemoryBudget for SimBackend {}

impl SimQueue {
    fn mine(&self, w: &World) -> u32 {
        w.device.writes.iter().filter(|op| op.queue == self.id).count() as u32
    }
}

impl WriteQueue for SimQueue {
    unsafe fn start_write(&mut self, first: Slot, pages: *const PageBuf, count: u32, tag: u64) -> Result<(), ()> {
        world(|w| {
            if self.mine(w) >= w.device.depth[self.id] {
                return Err(());
            }
            // SAFETY: the caller promises `count` readable pages that stay as they are until the completion.
            let before = unsafe { std::slice::from_raw_parts(pages, count as usize) }.to_vec();
            for (i, bytes) in before.iter().enumerate() {
                let slot = Device::number(first.number(), i);
                if w.device.is_gone(slot) {
                    broken(0, &format!("{slot:?} is written, whose space has gone"));
                }
                let content = w.device.content(slot);
                if content.writing || content.readers > 0 {
                    broken(0, &format!("{slot:?} is written while it is being written or read"));
                }
                if content.giving {
                    broken(0, &format!("{slot:?} is written while its room is being given back"));
                }
                if let Some((child, _)) = w.children.iter().find(|(_, slots)| slots.contains(&slot.number())) {
                    broken(0, &format!("{slot:?} is written, which child {child} may read"));
                }
                *content = Content { writing: true, ..Content::default() };
                note("write slot", 0, slot.number());
                if stamp_of(bytes).is_none() {
                    broken(0, &format!("a torn page is written to {slot:?}"));
                }
            }
            let fault = begin(w);
            let done_at = w.now + latency(w, first.number(), fault);
            w.device.writes.push(Write {
                queue: self.id,
                first: first.number(),
                pages,
                before,
                tag,
                begun_at: w.now,
                done_at,
                fault,
            });
            Ok(())
        })
    }

    fn reap(&mut self, wait: bool, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        self.reap_within(if wait { u64::MAX } else { 0 }, done);
    }

    fn reap_within(&mut self, ns: u64, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        maybe_switch();
        let mut reaped = 0;
        let deadline = world(|w| w.now).saturating_add(ns);
        loop {
            let first_due = world(|w| w.device.writes.iter().filter(|op| op.queue == self.id).map(|op| op.done_at).min());
            let Some(due) = first_due else { return };
            if due > world(|w| w.now) {
                if reaped > 0 || world(|w| w.now) >= deadline {
                    return;
                }
                block(0, Some(due.min(deadline)));
                continue;
            }
            let (tag, result) = world(|w| complete(w, self.id));
            done(tag, result);
            reaped += 1;
        }
    }

    fn in_flight(&self) -> u32 {
        world(|w| self.mine(w))
    }
}

/// Completes one due write of a queue.
fn complete(w: &mut World, queue: usize) -> (u64, Result<(), IoError>) {
    let now = w.now;
    let due: Vec<usize> =
        (0..w.device.writes.len()).filter(|&i| w.device.writes[i].queue == queue && w.device.writes[i].done_at <= now).collect();
    let at = w.rng.pick(&due);
    let op = w.device.writes.swap_remove(at);
    let write_error = w.rates.write_error;
    let sick = is_sick(w, op.first);
    let result = if (sick && w.rates.full) || op.fault == Some(Fault::Full) {
        Err(IoError::Full)
    } else if (sick && w.rates.dead) || op.fault == Some(Fault::Error) {
        Err(IoError::Device(5))
    } else if op.fault == Some(Fault::Short) {
        Err(IoError::Short)
    } else if sick && hit(w, write_error) {
        Err(w.rng.pick(&[IoError::Device(5), IoError::Short]))
    } else {
        Ok(())
    };
    if result.is_err() || now - op.begun_at > PATIENCE_NS {
        w.trouble_at = now;
    }
    // A write that fails may have written a part.
    let written = if result.is_ok() { op.before.len() } else { w.rng.below(op.before.len() as u64) as usize };
    // SAFETY: the caller of `start_write` promised this memory until the completion, which is handed out after this.
    let memory = unsafe { std::slice::from_raw_parts(op.pages, op.before.len()) };
    for (i, (bytes, before)) in memory.iter().zip(&op.before).enumerate() {
        let slot = Device::number(op.first, i);
        if bytes.0 != before.0 {
            broken(0, &format!("the memory of the write to {slot:?} changed while it was in flight"));
        }
        let often = w.rates.rot;
        let rot = result.is_ok() && w.rng.chance(often);
        let content = w.device.content(slot);
        *content = Content { acknowledged: result.is_ok(), rotten: rot, ..Content::default() };
        if i < written {
            content.bytes = Some(Box::new(before.clone()));
        }
        note(if result.is_ok() { "written slot" } else { "failed slot" }, 0, slot.number());
    }
    (op.tag, result)
}
