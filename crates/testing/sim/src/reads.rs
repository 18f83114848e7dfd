//! Reads that no thread blocks on ([`Backend::begin_read`]): over at once, made by the caller from a file, or over at a
//! time.
//!
//! | begun as | which side brings the bytes | what can happen |
//! |---|---|---|
//! | `Over` | the device, in place | as any read |
//! | `File` | the caller, which submits the read ([`submit`]) and takes the bytes that came ([`Read::reap`]) | a piece of any size, cut off, errors, wrong bytes |
//! | `Due` | the device, at once | errors, wrong bytes; the pages count later |
//!
//! Bytes of the latter two are sealed, each slot in its own way, and [`finish`] turns them into pages, as an encrypted space
//! does. A piece that was not finished, or finished twice or as another slot's, has a wrong sum.

use crate::device::{Device, SimBackend, begin_slot, deliver, hit, latency};
use crate::sched::maybe_switch;
use crate::setup::Fault;
use crate::world::{World, broken, world};
use farshore_core::limits::PAGE_SIZE;
use farshore_core::seams::{IoError, PageBuf, ReadBegun, Reads};
use farshore_core::word::Slot;

/// Descriptor of the first space's file.
const FD: i32 = 1000;
/// Reads in a row that bring no bytes, after which the caller takes that for an error.
const CUTS: u32 = 3;
const EINTR: i32 = 4;
const EIO: i32 = 5;
const EAGAIN: i32 = 11;
const ECANCELED: i32 = 125;

/// A read that a caller has under way.
#[derive(Debug)]
pub struct Read {
    first: u64,
    pages: usize,
    fault: Option<Fault>,
    /// When it has ended.
    pub done_at: u64,
}

fn fd(w: &World, slot: Slot) -> i32 {
    FD + w.device.space_of(slot.number()) as i32
}

fn seal(slot: Slot, bytes: &mut PageBuf) {
    let key = (slot.number().wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1).to_ne_bytes();
    bytes.0[..8].iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
}

/// [`Backend::begin_read`]: any of the three.
pub fn begin(backend: &SimBackend, first: Slot, into: &mut [PageBuf]) -> ReadBegun {
    maybe_switch();
    match world(|w| w.rng.below(4)) {
        _ if first.is_of_file() => ReadBegun::Over(backend.read_run(first, into)),
        0 => ReadBegun::Over(backend.read_run(first, into)),
        1 => at_once(first, into),
        _ => world(|w| {
            let pages = w.rng.between(1, into.len() as u64) as usize;
            ReadBegun::File { fd: fd(w, first), offset: first.number() * PAGE_SIZE as u64, pages }
        }),
    }
}

fn at_once(first: Slot, into: &mut [PageBuf]) -> ReadBegun {
    world(|w| {
        let fault = crate::device::begin(w);
        for (n, page) in (0..).zip(into) {
            let slot = first.plus(n);
            begin_slot(w, slot, false);
            w.device.content(slot).readers -= 1;
            if let Err(why) = deliver(w, slot, page, fault) {
                return ReadBegun::Over(Err(why));
            }
            seal(slot, page);
        }
        ReadBegun::Due(w.now + latency(w, first.number(), fault))
    })
}

/// [`Backend::finish_read`].
pub fn finish(first: Slot, into: &mut [PageBuf], read: Result<(), IoError>) -> Result<(), IoError> {
    if read.is_ok() {
        (0..).zip(into).for_each(|(n, page)| seal(first.plus(n), page));
    }
    read
}

/// The caller's ring takes a read.
pub fn submit(descriptor: i32, offset: u64, into: &mut [PageBuf]) -> Read {
    // Old bytes could pass for bytes that have not come.
    into.iter_mut().for_each(|page| page.0.fill(0xDD));
    world(|w| {
        let fault = crate::device::begin(w);
        let first = Device::number(offset / PAGE_SIZE as u64, 0);
        if descriptor != fd(w, first) {
            broken(0, &format!("{first:?} is read from descriptor {descriptor}"));
        }
        (0..into.len() as u64).for_each(|n| begin_slot(w, first.plus(n), false));
        let done_at = w.now + latency(w, first.number(), fault);
        Read { first: first.number(), pages: into.len(), fault, done_at }
    })
}

impl Read {
    /// The read has ended: puts the bytes that came `into` the place that it was submitted with. Returns bytes, or a
    /// negative errno.
    pub fn reap(&self, into: &mut [PageBuf]) -> i32 {
        world(|w| {
            let slots = |n| Device::number(self.first, n);
            for n in 0..self.pages {
                if w.device.is_gone(slots(n)) {
                    broken(0, &format!("the space of {:?} has gone during a read", slots(n)));
                }
                w.device.content(slots(n)).readers -= 1;
            }
            let answer = self.cut(w);
            let came = answer.max(0) as usize / PAGE_SIZE;
            note_cut(w, came);
            let fault = self.fault.filter(|&fault| fault != Fault::Short);
            for (n, page) in into.iter_mut().enumerate().take(came) {
                if deliver(w, slots(n), page, fault).is_err() {
                    return -EIO;
                }
                seal(slots(n), page);
            }
            answer
        })
    }

    /// How many bytes of the read come, if nothing else goes wrong.
    fn cut(&self, w: &mut World) -> i32 {
        let bytes = (self.pages * PAGE_SIZE) as u64;
        let often = w.rates.cut;
        if self.fault != Some(Fault::Short) && !hit(w, often) {
            return bytes as i32;
        }
        match w.rng.below(4) {
            0 => -w.rng.pick(&[EINTR, EAGAIN, ECANCELED]),
            1 => w.rng.below(PAGE_SIZE as u64) as i32,
            _ => w.rng.below(bytes) as i32,
        }
    }
}

/// Counts reads that bring no bytes, as the caller may do.
fn note_cut(w: &mut World, came: usize) {
    let luck = &mut w.actors[w.current].luck;
    luck.cut_reads = if came == 0 { luck.cut_reads + 1 } else { 0 };
    if luck.cut_reads == CUTS {
        luck.cut_reads = 0;
        luck.bad_reads += 1;
    }
}
