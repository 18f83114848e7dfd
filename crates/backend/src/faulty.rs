//! Wraps a backend and injects faults from a seed: a testing aid.
//!
//! # What is injected
//!
//! | kind | what the engine sees | what the medium holds |
//! |---|---|---|
//! | `read_error` | EIO, the buffer is garbage | unchanged |
//! | `short_read` | `Short`, the second half of the buffer is garbage | unchanged |
//! | `corrupt` | success, one bit is wrong | unchanged: the next read is right |
//! | `write_error` | EIO | the first half of the pages, or none |
//! | `short_write` | `Short` | the first half of the pages, or none |
//! | `full` | `Full` | unchanged |
//! | `delay` | the same result, `delay_time` later (a write: out of order) | as it should |
//!
//! Not injected: a write that is acknowledged and lost, a read of another slot. A checksum finds both in the same
//! way as `corrupt`, but they cannot be cured by trying again.
//!
//! Rates are probabilities, 0 to 1, and can be changed while the program runs ([`Faulty::set_rate`]); a rate
//! of 1 always strikes, which makes "the disk is full now" a switch. The choices depend on the seed and
//! on how many were made before: one thread sees the same faults in every run.
//!
//! # The environment variable
//!
//! `FARSHORE_FAULTY=seed=1,read_error=0.001,corrupt=0.001,delay=0.01,delay_time=1ms` wraps the space that
//! `--swap` names. It is meant for Farshore's own tests.

use crate::sleep;
use farshore_config::Time;
use farshore_core::word::Slot;
use farshore_engine::traits::{Backend, IoError, PageBuf, WriteQueue};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Kind {
    /// A read fails with EIO.
    ReadError,
    /// A read ends early.
    ShortRead,
    /// A read gives a wrong bit.
    Corrupt,
    /// A write fails with EIO, half done.
    WriteError,
    /// A write ends early.
    ShortWrite,
    /// A write finds no room.
    Full,
    /// A read or write takes longer.
    Delay,
}

const KINDS: [(&str, Kind); 7] = [
    ("read_error", Kind::ReadError),
    ("short_read", Kind::ShortRead),
    ("corrupt", Kind::Corrupt),
    ("write_error", Kind::WriteError),
    ("short_write", Kind::ShortWrite),
    ("full", Kind::Full),
    ("delay", Kind::Delay),
];

/// A rate of 1, as the 53 bits that are compared with random ones.
const ALWAYS: f64 = (1u64 << 53) as f64;
const EIO: i32 = 5;

/// What the wrapper starts with.
#[derive(Clone, PartialEq, Debug)]
pub struct FaultConfig {
    /// What the choices depend on.
    pub seed: u64,
    /// Kinds and their rates, 0 to 1; the others have rate 0.
    pub rates: Vec<(Kind, f64)>,
    /// How long a delay is.
    pub delay_time: Time,
}

impl Default for FaultConfig {
    fn default() -> FaultConfig {
        FaultConfig { seed: 1, rates: Vec::new(), delay_time: Time(1_000_000) }
    }
}

impl std::str::FromStr for FaultConfig {
    type Err = String;

    fn from_str(text: &str) -> Result<FaultConfig, String> {
        let mut config = FaultConfig::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').ok_or_else(|| format!("{part:?} is not key=value"))?;
            match key {
                "seed" => config.seed = value.parse().map_err(|_| format!("seed {value:?} is not a whole number"))?,
                "delay_time" => config.delay_time = value.parse().map_err(|error| format!("delay_time: {error}"))?,
                _ => {
                    let kind = KINDS.iter().find(|(name, _)| *name == key).ok_or_else(|| {
                        let names = KINDS.map(|(name, _)| name).join(", ");
                        format!("{key:?} is not known; there is: seed, delay_time, {names}")
                    })?;
                    let rate: f64 = value.parse().map_err(|_| format!("{key} {value:?} is not a number"))?;
                    if !(0.0..=1.0).contains(&rate) {
                        return Err(format!("{key} {value:?} is not between 0 and 1"));
                    }
                    config.rates.push((kind.1, rate));
                }
            }
        }
        Ok(config)
    }
}

/// Rates, counts and the dice, shared by the backend and its queues.
#[derive(Debug)]
struct Dice {
    seed: u64,
    thrown: AtomicU64,
    thresholds: [AtomicU64; KINDS.len()],
    injected: [AtomicU64; KINDS.len()],
    delay_ns: AtomicU64,
}

impl Dice {
    fn random(&self) -> u64 {
        // Steps of the golden ratio, mixed: every number of throws has its own, well-spread value.
        let n = self.thrown.fetch_add(1, Ordering::Relaxed);
        let mut z = self.seed.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Whether a fault of this kind strikes now.
    fn strikes(&self, kind: Kind) -> bool {
        let threshold = self.thresholds[kind as usize].load(Ordering::Relaxed);
        let strikes = threshold != 0 && self.random() >> 11 < threshold;
        if strikes {
            self.injected[kind as usize].fetch_add(1, Ordering::Relaxed);
        }
        strikes
    }

    /// How long a transfer is held back, in ns.
    fn delay(&self) -> u64 {
        if self.strikes(Kind::Delay) { self.delay_ns.load(Ordering::Relaxed) } else { 0 }
    }
}

/// A backend that fails now and then.
#[derive(Debug)]
pub struct Faulty<B> {
    inner: B,
    dice: Arc<Dice>,
    name: String,
}

impl<B: Backend> Faulty<B> {
    /// Wraps `inner`.
    pub fn new(inner: B, config: &FaultConfig) -> Faulty<B> {
        let dice = Dice {
            seed: config.seed,
            thrown: AtomicU64::new(0),
            thresholds: [const { AtomicU64::new(0) }; KINDS.len()],
            injected: [const { AtomicU64::new(0) }; KINDS.len()],
            delay_ns: AtomicU64::new(config.delay_time.ns()),
        };
        let name = format!("faulty:{}", inner.name());
        let faulty = Faulty { inner, dice: Arc::new(dice), name };
        for &(kind, rate) in &config.rates {
            faulty.set_rate(kind, rate);
        }
        faulty
    }

    /// Changes how often a kind strikes, for all transfers that begin from now on. `rate` is cut to 0 to 1.
    pub fn set_rate(&self, kind: Kind, rate: f64) {
        // Relaxed: nothing else is read on the strength of it.
        self.dice.thresholds[kind as usize].store((rate.clamp(0.0, 1.0) * ALWAYS) as u64, Ordering::Relaxed);
    }

    /// Changes how long delays are, in ns.
    pub fn set_delay_ns(&self, ns: u64) {
        self.dice.delay_ns.store(ns, Ordering::Relaxed);
    }

    /// Faults of a kind so far.
    pub fn injected(&self, kind: Kind) -> u64 {
        self.dice.injected[kind as usize].load(Ordering::Relaxed)
    }

    /// What is wrapped.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    fn scramble(&self, bytes: &mut [u8]) {
        for byte in bytes {
            *byte = byte.wrapping_add(1 + (self.dice.seed as u8 & 0x7f));
        }
    }
}

impl<B: Backend> Backend for Faulty<B> {
    type Queue = FaultyQueue<B::Queue>;

    fn read(&self, slot: Slot, into: &mut PageBuf) -> Result<(), IoError> {
        let delay = self.dice.delay();
        if delay > 0 {
            sleep::until(sleep::now_ns() + delay);
        }
        self.inner.read(slot, into)?;
        if self.dice.strikes(Kind::ReadError) {
            self.scramble(&mut into.0);
            return Err(IoError::Device(EIO));
        }
        if self.dice.strikes(Kind::ShortRead) {
            self.scramble(&mut into.0[2048..]);
            return Err(IoError::Short);
        }
        if self.dice.strikes(Kind::Corrupt) {
            let bit = self.dice.random() as usize % (4096 * 8);
            into.0[bit / 8] ^= 1 << (bit % 8);
        }
        Ok(())
    }

    fn queue(&self, depth: u32) -> Result<Self::Queue, IoError> {
        let depth = depth.clamp(1, 4096);
        let entry = Entry { tag: 0, verdict: None, due: 0, state: State::Free };
        Ok(FaultyQueue {
            inner: self.inner.queue(depth)?,
            dice: Arc::clone(&self.dice),
            entries: vec![entry; depth as usize].into(),
            free: (0..depth).rev().collect(),
        })
    }

    fn capacity(&self) -> Option<u64> {
        self.inner.capacity()
    }

    fn name(&self) -> &str {
        &self.name
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    Free,
    /// The wrapped queue has it.
    Inner,
    /// It has ended, and waits for its time.
    Held(Result<(), IoError>),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    tag: u64,
    /// What its end shall be, whatever the wrapped queue says.
    verdict: Option<IoError>,
    /// When it may be delivered, in ns; 0: at once.
    due: u64,
    state: State,
}

/// Writes to a [`Faulty`] backend. The wrapped queue's tags are indices of `entries`.
#[derive(Debug)]
pub struct FaultyQueue<Q> {
    inner: Q,
    dice: Arc<Dice>,
    entries: Box<[Entry]>,
    free: Vec<u32>,
}

impl<Q: WriteQueue> FaultyQueue<Q> {
    /// The fault that a write meets, and how many of its pages reach the medium.
    fn judge(&self, count: u32) -> (Option<IoError>, u32) {
        if self.dice.strikes(Kind::Full) {
            (Some(IoError::Full), 0)
        } else if self.dice.strikes(Kind::WriteError) {
            (Some(IoError::Device(EIO)), count / 2)
        } else if self.dice.strikes(Kind::ShortWrite) {
            (Some(IoError::Short), count / 2)
        } else {
            (None, count)
        }
    }

    /// Delivers what has ended and is due; how many, and when the next is.
    fn deliver(&mut self, done: &mut dyn FnMut(u64, Result<(), IoError>)) -> (u32, Option<u64>) {
        let now = sleep::now_ns();
        let (mut delivered, mut next) = (0, None::<u64>);
        for index in 0..self.entries.len() {
            let State::Held(result) = self.entries[index].state else { continue };
            let due = self.entries[index].due;
            if due > now {
                next = Some(next.map_or(due, |earliest| earliest.min(due)));
                continue;
            }
            self.entries[index].state = State::Free;
            self.free.push(index as u32);
            delivered += 1;
            done(self.entries[index].tag, result);
        }
        (delivered, next)
    }

    fn reap_inner(&mut self, wait: bool) {
        let entries = &mut self.entries;
        self.inner.reap(wait, &mut |index, result| {
            let entry = &mut entries[index as usize];
            entry.state = State::Held(entry.verdict.map_or(result, Err));
        });
    }
}

impl<Q: WriteQueue> WriteQueue for FaultyQueue<Q> {
    unsafe fn start_write(&mut self, first: Slot, pages: *const PageBuf, count: u32, tag: u64) -> Result<(), ()> {
        let index = self.free.pop().ok_or(())?;
        let delay = self.dice.delay();
        let due = if delay == 0 { 0 } else { sleep::now_ns() + delay };
        let (verdict, reach) = self.judge(count);
        let mut entry = Entry { tag, verdict, due, state: State::Inner };
        if let (Some(error), 0) = (verdict, reach) {
            entry.state = State::Held(Err(error));
        } else {
            // SAFETY: the caller keeps to our own contract, and `reach` is at most `count`.
            let started = unsafe { self.inner.start_write(first, pages, reach, u64::from(index)) };
            if started.is_err() {
                self.free.push(index);
                return Err(());
            }
        }
        self.entries[index as usize] = entry;
        Ok(())
    }

    fn reap(&mut self, wait: bool, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        self.reap_inner(false);
        let (mut delivered, mut next) = self.deliver(done);
        while wait && delivered == 0 && self.in_flight() > 0 {
            match next {
                // Something is held back: by its time at the latest there is a completion.
                Some(due) => {
                    sleep::until(due);
                    self.reap_inner(false);
                }
                None => self.reap_inner(true),
            }
            (delivered, next) = self.deliver(done);
        }
    }

    fn in_flight(&self) -> u32 {
        (self.entries.len() - self.free.len()) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_read_and_mistakes_are_named() {
        let config: FaultConfig = "seed=7,read_error=0.5,delay=1,delay_time=2us".parse().unwrap();
        assert_eq!((config.seed, config.delay_time), (7, Time(2000)));
        assert_eq!(config.rates, [(Kind::ReadError, 0.5), (Kind::Delay, 1.0)]);
        for (text, part) in [
            ("seed", "key=value"),
            ("seed=x", "\"x\""),
            ("reed_error=1", "read_error"),
            ("full=2", "between 0 and 1"),
            ("full=-1", "between 0 and 1"),
            ("full=NaN", "between 0 and 1"),
            ("full=x", "not a number"),
            ("delay_time=1", "no unit"),
        ] {
            let error = text.parse::<FaultConfig>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn kinds_and_their_places_agree() {
        for (place, (_, kind)) in KINDS.iter().enumerate() {
            assert_eq!(*kind as usize, place);
        }
    }
}
