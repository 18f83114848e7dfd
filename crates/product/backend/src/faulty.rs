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
//! | `write_delay` | the same, of writes alone | as it should |
//! | `hang` | the same result, but not before `hang` is over: `until`, or the rate is 0 | as it should |
//! | `panic_read`, `panic_write` | a panic in the thread that begins the transfer | unchanged |
//!
//! Not injected: a write that is acknowledged and lost, and a read of another slot. A checksum detects both in the same
//! way as `corrupt`, but trying again does not cure them.
//!
//! Rates are probabilities, 0 to 1, and can be changed while the program runs ([`Faulty::set_rate`]); a rate
//! of 1 always strikes, which makes "the disk is full now" a switch. The choices depend on the seed and
//! on how many were made before: one thread sees the same faults in every run.
//!
//! # Where and when
//!
//! | key | faults strike only |
//! |---|---|
//! | `space=N` | transfers of the `N`th file of an array, from 0 |
//! | `from=TIME`, `until=TIME` | transfers that begin in this part of the time since the start: a disk that comes back |
//! | `nth=N` | the `N`th transfer of all, from 0: for sweeps that fail each in turn |
//!
//! # The environment variable
//!
//! `FARSHORE_FAULTY=seed=1,read_error=0.001,corrupt=0.001,delay=0.01,delay_time=1ms` wraps the space that
//! `--swap` names. It is meant for Farshore's own tests.

use crate::sleep;
use farshore_config::Time;
use farshore_core::limits::EXTENT_SLOTS;
use farshore_core::seams::{
    Backend, CopyChange, FaultsSeen, FreeSlots, IoError, MemoryBudget, PageBuf, ReadBegun, Reads, Spaces, WriteQueue,
};
use farshore_core::slots::arrangement::{Arrangements, SpaceSet};
use farshore_core::word::Slot;
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
    /// A write takes longer.
    WriteDelay,
    /// A read or write does not end for now.
    Hang,
    /// The thread that begins a read panics.
    PanicRead,
    /// The thread that begins a write panics.
    PanicWrite,
}

const KINDS: [(&str, Kind); 11] = [
    ("read_error", Kind::ReadError),
    ("short_read", Kind::ShortRead),
    ("corrupt", Kind::Corrupt),
    ("write_error", Kind::WriteError),
    ("short_write", Kind::ShortWrite),
    ("full", Kind::Full),
    ("delay", Kind::Delay),
    ("write_delay", Kind::WriteDelay),
    ("hang", Kind::Hang),
    ("panic_read", Kind::PanicRead),
    ("panic_write", Kind::PanicWrite),
];

/// How often a transfer that hangs checks whether the hang is over, in ns.
const HANG_LOOK_NS: u64 = 5_000_000;

/// A rate of 1, as the 53 bits that are compared with random ones.
const ALWAYS: f64 = (1u64 << 53) as f64;
const EIO: i32 = 5;

/// What the wrapper starts with.
#[derive(Clone, PartialEq, Debug)]
pub struct FaultConfig {
    /// The seed of the choices.
    pub seed: u64,
    /// Kinds and their rates, 0 to 1; the others have rate 0.
    pub rates: Vec<(Kind, f64)>,
    /// How long a delay is.
    pub delay_time: Time,
    /// Only transfers of this space of an array.
    pub space: Option<usize>,
    /// Only transfers that begin this long after the start, or later …
    pub from: Time,
    /// … and before this.
    pub until: Option<Time>,
    /// Only this transfer, from 0.
    pub nth: Option<u64>,
}

impl Default for FaultConfig {
    fn default() -> FaultConfig {
        FaultConfig {
            seed: 1,
            rates: Vec::new(),
            delay_time: Time(1_000_000),
            space: None,
            from: Time(0),
            until: None,
            nth: None,
        }
    }
}

impl std::str::FromStr for FaultConfig {
    type Err = String;

    fn from_str(text: &str) -> Result<FaultConfig, String> {
        let mut config = FaultConfig::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').ok_or_else(|| format!("{part:?} is not key=value"))?;
            let whole = || value.parse::<u64>().map_err(|_| format!("{key} {value:?} is not a whole number"));
            let time = || value.parse::<Time>().map_err(|error| format!("{key}: {error}"));
            match key {
                "seed" => config.seed = whole()?,
                "nth" => config.nth = Some(whole()?),
                "space" => config.space = Some(whole()? as usize),
                "delay_time" => config.delay_time = time()?,
                "from" => config.from = time()?,
                "until" => config.until = Some(time()?),
                _ => {
                    let kind = KINDS.iter().find(|(name, _)| *name == key).ok_or_else(|| {
                        let names = KINDS.map(|(name, _)| name).join(", ");
                        format!("{key:?} is not known; there is: seed, delay_time, space, from, until, nth, {names}")
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
    delay_ns: u64,
    /// Where and when faults strike.
    space: Option<usize>,
    arrangements: Arrangements,
    nth: Option<u64>,
    window_ns: (u64, u64),
    transfers: AtomicU64,
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

    /// A transfer of `count` slots, within two extents, begins. Returns whether faults may strike it.
    fn begin(&self, first: Slot, count: u64) -> bool {
        let number = self.transfers.fetch_add(1, Ordering::Relaxed);
        // Side by side in numbers, and perhaps in two files.
        let ends = [first.number(), first.number() + count.saturating_sub(1)];
        let is_in =
            |only: usize| ends.iter().any(|slot| self.arrangements.place_of((slot / EXTENT_SLOTS as u64) as u32).space == only);
        self.nth.is_none_or(|n| n == number) && self.space.is_none_or(is_in) && self.is_time()
    }

    fn is_time(&self) -> bool {
        let (from, until) = self.window_ns;
        (from == 0 && until == u64::MAX) || (from..until).contains(&sleep::now_ns())
    }

    /// Whether transfers that hang still hang.
    fn hangs_on(&self) -> bool {
        self.thresholds[Kind::Hang as usize].load(Ordering::Relaxed) != 0 && self.is_time()
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

    /// How long a transfer that one of `kinds` strikes is held back, in ns.
    fn delay(&self, kinds: &[Kind]) -> u64 {
        if kinds.iter().any(|&kind| self.strikes(kind)) { self.delay_ns } else { 0 }
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
            delay_ns: config.delay_time.ns(),
            space: config.space,
            arrangements: Arrangements::new(SpaceSet::first(inner.spaces().max(1))),
            nth: config.nth,
            window_ns: match (config.from.ns(), config.until) {
                (0, None) => (0, u64::MAX),
                (from, until) => {
                    let now = sleep::now_ns();
                    (now + from, until.map_or(u64::MAX, |until| now + until.ns()))
                }
            },
            transfers: AtomicU64::new(0),
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
        // Relaxed: no other data is read because of it.
        self.dice.thresholds[kind as usize].store((rate.clamp(0.0, 1.0) * ALWAYS) as u64, Ordering::Relaxed);
    }

    /// Faults of a kind so far.
    pub fn injected(&self, kind: Kind) -> u64 {
        self.dice.injected[kind as usize].load(Ordering::Relaxed)
    }

    /// Transfers so far.
    pub fn transfers(&self) -> u64 {
        self.dice.transfers.load(Ordering::Relaxed)
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

/// The faults that strike a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ReadStrike {
    delay_ns: u64,
    hangs: bool,
    /// What happens to its bytes: an error, or wrong bytes.
    ends: Option<Kind>,
}

impl ReadStrike {
    const NONE: ReadStrike = ReadStrike { delay_ns: 0, hangs: false, ends: None };
}

impl<B: Backend> Faulty<B> {
    /// Throws the dice for a read of `pages` slots from `first` on.
    fn read_strike(&self, first: Slot, pages: usize) -> ReadStrike {
        if !self.dice.begin(first, pages as u64) {
            return ReadStrike::NONE;
        }
        assert!(!self.dice.strikes(Kind::PanicRead), "injected: panic_read");
        ReadStrike {
            delay_ns: self.dice.delay(&[Kind::Delay]),
            hangs: self.dice.strikes(Kind::Hang),
            ends: [Kind::ReadError, Kind::ShortRead, Kind::Corrupt].into_iter().find(|&kind| self.dice.strikes(kind)),
        }
    }

    fn struck_read(&self, first: Slot, into: &mut [PageBuf], strike: ReadStrike) -> Result<(), IoError> {
        if strike.delay_ns > 0 {
            sleep::until(sleep::now_ns() + strike.delay_ns);
        }
        while strike.hangs && self.dice.hangs_on() {
            sleep::nap(HANG_LOOK_NS);
        }
        self.inner.read_run(first, into)?;
        match strike.ends {
            Some(Kind::ReadError) => {
                into.iter_mut().for_each(|page| self.scramble(&mut page.0));
                Err(IoError::Device(EIO))
            }
            Some(Kind::ShortRead) => {
                let whole = into.len() / 2;
                self.scramble(&mut into[whole].0[2048..]);
                into[whole + 1..].iter_mut().for_each(|page| self.scramble(&mut page.0));
                Err(IoError::Short)
            }
            // Nothing tells wrong bytes of the program's own file from right ones, with Farshore or without.
            Some(_) if first.is_of_file() => Ok(()),
            Some(_) => {
                let bit = self.dice.random() as usize % (into.len() * 4096 * 8);
                into[bit / (4096 * 8)].0[bit / 8 % 4096] ^= 1 << (bit % 8);
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl<B: Backend> Backend for Faulty<B> {
    type Queue = FaultyQueue<B::Queue>;

    fn queue(&self, depth: u32) -> Result<Self::Queue, IoError> {
        let depth = depth.clamp(1, 4096);
        let entry = Entry { tag: 0, verdict: None, due: 0, hangs: false, state: State::Free };
        Ok(FaultyQueue {
            inner: self.inner.queue(depth)?,
            dice: Arc::clone(&self.dice),
            entries: vec![entry; depth as usize].into(),
            free: (0..depth).rev().collect(),
        })
    }
}

impl<B: Backend> Reads for Faulty<B> {
    fn read(&self, slot: Slot, into: &mut PageBuf) -> Result<(), IoError> {
        self.read_run(slot, core::slice::from_mut(into))
    }

    fn read_run(&self, first: Slot, into: &mut [PageBuf]) -> Result<(), IoError> {
        let strike = self.read_strike(first, into.len());
        self.struck_read(first, into, strike)
    }

    /// A read that is struck is made at once; others go on as they do without faults.
    fn begin_read(&self, first: Slot, into: &mut [PageBuf]) -> ReadBegun {
        match self.read_strike(first, into.len()) {
            ReadStrike::NONE => self.inner.begin_read(first, into),
            strike => ReadBegun::Over(self.struck_read(first, into, strike)),
        }
    }

    fn finish_read(&self, first: Slot, into: &mut [PageBuf], read: Result<(), IoError>) -> Result<(), IoError> {
        self.inner.finish_read(first, into, read)
    }

    fn doubt(&self, slot: Slot) {
        self.inner.doubt(slot);
    }
}

impl<B: Backend> Spaces for Faulty<B> {
    fn capacity(&self) -> Option<u64> {
        self.inner.capacity()
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn spaces(&self) -> usize {
        self.inner.spaces()
    }

    fn capacity_of(&self, space: usize) -> Option<u64> {
        self.inner.capacity_of(space)
    }

    fn name_of(&self, slot: Slot) -> &str {
        self.inner.name_of(slot)
    }

    fn arrange(&self, first: u32, spaces: SpaceSet) {
        self.inner.arrange(first, spaces);
        self.dice.arrangements.arrange(first, spaces);
    }

    fn is_quiet(&self, is_there: &dyn Fn(Slot) -> bool) -> bool {
        self.inner.is_quiet(is_there)
    }

    fn shut_space(&self, space: usize) {
        self.inner.shut_space(space);
    }

    fn close_space(&self, space: usize) {
        self.inner.close_space(space);
    }

    fn give_back(&self, first: Slot, count: u32) -> Result<(), IoError> {
        self.inner.give_back(first, count)
    }

    fn keep(&self, free: &dyn FreeSlots) -> Option<u64> {
        self.inner.keep(free)
    }

    fn news(&self, tell: &mut dyn FnMut(&str, CopyChange)) {
        self.inner.news(tell);
    }
}

impl<B: Backend> MemoryBudget for Faulty<B> {
    fn own_memory(&self) -> Option<u64> {
        self.inner.own_memory()
    }

    fn takes_memory(&self) -> bool {
        self.inner.takes_memory()
    }

    fn allow_memory(&self, bytes: u64) {
        self.inner.allow_memory(bytes);
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    Free,
    /// The wrapped queue has the write.
    Inner,
    /// The write has ended, and waits for its time.
    Held(Result<(), IoError>),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    tag: u64,
    /// The result that is delivered, whatever the wrapped queue says.
    verdict: Option<IoError>,
    /// When the result may be delivered, in ns; 0: at once.
    due: u64,
    /// Not delivered before the hang is over.
    hangs: bool,
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

    /// Delivers writes that have ended and are due. Returns how many, and when the next one is due.
    fn deliver(&mut self, done: &mut dyn FnMut(u64, Result<(), IoError>)) -> (u32, Option<u64>) {
        let now = sleep::now_ns();
        let (mut delivered, mut next) = (0, None::<u64>);
        for index in 0..self.entries.len() {
            let State::Held(result) = self.entries[index].state else { continue };
            let hangs = self.entries[index].hangs && self.dice.hangs_on();
            let due = if hangs { now + HANG_LOOK_NS } else { self.entries[index].due };
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

    /// Takes completions of the wrapped queue; waits for at most `ns`.
    fn reap_inner(&mut self, ns: u64) {
        let entries = &mut self.entries;
        let mut held = |index: u64, result| {
            let entry = &mut entries[index as usize];
            entry.state = State::Held(entry.verdict.map_or(result, Err));
        };
        match ns {
            0 => self.inner.reap(false, &mut held),
            u64::MAX => self.inner.reap(true, &mut held),
            ns => self.inner.reap_within(ns, &mut held),
        }
    }
}

impl<Q: WriteQueue> WriteQueue for FaultyQueue<Q> {
    unsafe fn start_write(&mut self, first: Slot, pages: *const PageBuf, count: u32, tag: u64) -> Result<(), ()> {
        if self.free.is_empty() {
            return Err(());
        }
        let struck = self.dice.begin(first, u64::from(count));
        assert!(!(struck && self.dice.strikes(Kind::PanicWrite)), "injected: panic_write");
        let index = self.free.pop().ok_or(())?;
        let delay = if struck { self.dice.delay(&[Kind::Delay, Kind::WriteDelay]) } else { 0 };
        let due = if delay == 0 { 0 } else { sleep::now_ns() + delay };
        let hangs = struck && self.dice.strikes(Kind::Hang);
        let (verdict, reach) = if struck { self.judge(count) } else { (None, count) };
        let mut entry = Entry { tag, verdict, due, hangs, state: State::Inner };
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
        self.reap_within(if wait { u64::MAX } else { 0 }, done);
    }

    fn reap_within(&mut self, ns: u64, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        let deadline = sleep::now_ns().saturating_add(ns);
        self.reap_inner(0);
        let (mut delivered, mut next) = self.deliver(done);
        while delivered == 0 && self.in_flight() > 0 {
            let now = sleep::now_ns();
            if now >= deadline {
                return;
            }
            match next {
                // A write is held back: there is a completion by its time at the latest, or it goes on hanging.
                Some(due) => {
                    sleep::until(due.min(deadline));
                    self.reap_inner(0);
                }
                None => self.reap_inner(if deadline == u64::MAX { u64::MAX } else { deadline - now }),
            }
            (delivered, next) = self.deliver(done);
        }
    }

    fn in_flight(&self) -> u32 {
        (self.entries.len() - self.free.len()) as u32
    }

    fn tend(&mut self, free: &dyn FreeSlots, faults: &FaultsSeen) {
        self.inner.tend(free, faults);
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
            ("space=x", "\"x\""),
            ("until=1", "no unit"),
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
