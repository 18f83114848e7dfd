//! What is in the server: keys, their values, and which versions of a value may be there.
//!
//! A value follows from its key, its version and the seed, so that the value of a GET can be checked completely: it says of
//! itself what it is, and has to be that to the last byte. Each SET of a key has the next version.
//!
//! All SETs of a key go over the same connection, so the server does them in order, and the version of a key never goes down.
//! So a GET has to answer a version
//! * that is not older than the newest one acknowledged before the GET was sent,
//! * and not newer than the newest one sent when its answer comes.

use std::sync::atomic::{AtomicU32, Ordering};

use rand::Rng;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::SeedableRng;

use super::super::scatter::{mix, mix2};

/// Bytes at the start of a value: key, version, and a number over them and the seed, from which the rest follows.
const HEADER: usize = 24;
/// Random bytes come in runs of this many at most, and each run twice: pages of values compress to about half.
const RUN: usize = 256;

/// The values.
#[derive(Clone, Copy, Debug)]
pub struct Values {
    /// Bytes of each, at least 64.
    pub size: usize,
    /// Where the random numbers start.
    pub seed: u64,
}

impl Values {
    /// Appends the value of `key` in this version.
    pub fn write(&self, key: u64, version: u32, to: &mut Vec<u8>) {
        let start = to.len();
        let check = mix2(mix2(self.seed, key), u64::from(version));
        for word in [key, u64::from(version), check] {
            to.extend_from_slice(&word.to_le_bytes());
        }
        let mut random = SplitMix64::seed_from_u64(check);
        let run = self.run();
        while to.len() < start + self.size {
            let written = to.len() - start;
            if (written / run).is_multiple_of(2) {
                to.extend_from_slice(&random.next_u64().to_le_bytes());
            } else {
                to.extend_from_within(start + written - run..start + written);
            }
        }
        to.truncate(start + self.size);
    }

    /// The first byte at which `value`, which has the right length and begins with these words, is not what they say.
    fn differs(&self, key: u64, version: u64, value: &[u8]) -> Option<usize> {
        let check = mix2(mix2(self.seed, key), version);
        let mut random = SplitMix64::seed_from_u64(check);
        let run = self.run();
        let differs = |at: usize, should: &[u8]| {
            let is = &value[at..value.len().min(at + should.len())];
            let should = &should[..is.len()];
            if is == should { None } else { is.iter().zip(should).position(|(is, should)| is != should).map(|n| at + n) }
        };
        // 32 bits of the version are sent.
        if version > u64::from(u32::MAX) {
            return Some(8);
        }
        let mut found = differs(16, &check.to_le_bytes());
        let mut at = HEADER;
        while at < value.len() && found.is_none() {
            if (at / run).is_multiple_of(2) {
                found = differs(at, &random.next_u64().to_le_bytes());
                at += 8;
            } else {
                found = differs(at, &value[at - run..at]);
                at += run;
            }
        }
        found
    }

    /// Bytes of a run.
    fn run(&self) -> usize {
        RUN.min(self.size.div_ceil(2).next_multiple_of(8))
    }

    /// Whether `value` is the value of `key` in a version that is not older than `least` and not newer than `newest`.
    ///
    /// # Errors
    /// If it is not: what is wrong.
    pub fn check(&self, key: u64, least: u32, newest: u32, value: &[u8]) -> Result<(), Wrong> {
        if value.len() != self.size {
            return Err(Wrong::Damaged(format!("it has {} bytes", value.len())));
        }
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| value[at + n]));
        let (of, version) = (word(0), word(8));
        if let Some(place) = self.differs(of, version, value) {
            return Err(Wrong::Damaged(format!("byte {place} is wrong")));
        }
        if of != key {
            return Err(Wrong::OtherKey(format!("it is that of key {of:x}")));
        }
        if version < u64::from(least) {
            return Err(Wrong::Stale(format!("version {version}, though {least} was acknowledged before it was asked for")));
        }
        if version > u64::from(newest) {
            return Err(Wrong::Unknown(format!("version {version}, and {newest} is the newest that was sent")));
        }
        Ok(())
    }
}

/// What is wrong with a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// Its bytes are not what they say that they are.
    Damaged(String),
    /// It is another key's.
    OtherKey(String),
    /// An older one.
    Stale(String),
    /// It was never sent.
    Unknown(String),
}

impl Wrong {
    /// What kind of wrong, for a count of them; and what exactly.
    #[must_use]
    pub fn told(self) -> (&'static str, String) {
        match self {
            Wrong::Damaged(what) => ("damaged values", what),
            Wrong::OtherKey(what) => ("values of other keys", what),
            Wrong::Stale(what) => ("values too old", what),
            Wrong::Unknown(what) => ("values never sent", what),
        }
    }
}

/// The versions of all keys.
///
/// One thread, that of the key's connection, writes them; others read. What another thread has to see, it has heard of
/// from the server, by a message that was sent after the write: release and acquire say the same to the compiler.
#[derive(Debug)]
pub struct Versions {
    sent: Vec<AtomicU32>,
    acknowledged: Vec<AtomicU32>,
}

impl Versions {
    /// Of this many keys, none of them set.
    #[must_use]
    pub fn new(keys: usize) -> Self {
        let zeroes = || (0..keys).map(|_| AtomicU32::new(0)).collect();
        Versions { sent: zeroes(), acknowledged: zeroes() }
    }

    /// The version of a SET that is sent now.
    pub fn send(&self, key: u64) -> u32 {
        self.sent[place(key)].fetch_add(1, Ordering::AcqRel) + 1
    }

    /// A SET was acknowledged.
    pub fn acknowledge(&self, key: u64, version: u32) {
        self.acknowledged[place(key)].fetch_max(version, Ordering::AcqRel);
    }

    /// The newest version sent.
    #[must_use]
    pub fn newest(&self, key: u64) -> u32 {
        self.sent[place(key)].load(Ordering::Acquire)
    }

    /// The newest version acknowledged.
    #[must_use]
    pub fn least(&self, key: u64) -> u32 {
        self.acknowledged[place(key)].load(Ordering::Acquire)
    }

    /// A number over what has to be in the server.
    #[must_use]
    pub fn checksum(&self, seed: u64) -> u64 {
        let versions = self.sent.iter().enumerate();
        let hash = versions.map(|(key, version)| mix2(key as u64, u64::from(version.load(Ordering::Acquire))));
        mix2(mix(seed), hash.fold(0, u64::wrapping_add))
    }
}

/// A key as an index: keys are below the number of keys, which is that of a vector.
#[expect(clippy::cast_possible_truncation)]
fn place(key: u64) -> usize {
    key as usize
}

const _: () = assert!(HEADER <= 64, "the least size of a value");

#[cfg(test)]
mod tests {
    use super::*;

    fn value(values: &Values, key: u64, version: u32) -> Vec<u8> {
        let mut value = Vec::new();
        values.write(key, version, &mut value);
        value
    }

    #[test]
    fn a_value_passes_as_itself_alone() {
        for size in [64, 65, 100, 255, 512, 1000, 1024, 5000, 1 << 20] {
            let values = Values { size, seed: 5 };
            let right = value(&values, 7, 3);
            assert_eq!(right.len(), size);
            let check = |key, least, newest, value: &[u8]| values.check(key, least, newest, value);
            assert_eq!(check(7, 3, 3, &right), Ok(()));
            assert_eq!(check(7, 1, 9, &right), Ok(()));
            assert!(matches!(check(7, 4, 9, &right), Err(Wrong::Stale(_))));
            assert!(matches!(check(7, 1, 2, &right), Err(Wrong::Unknown(_))));
            assert!(matches!(check(8, 1, 9, &right), Err(Wrong::OtherKey(_))));
            assert!(matches!(check(7, 1, 9, &right[1..]), Err(Wrong::Damaged(_))));
            assert!(matches!(check(7, 1, 9, &[]), Err(Wrong::Damaged(_))));
            for place in [0, 7, 8, 12, 16, 23, 24, 31, 33, 63, size / 2, size - 1] {
                let mut wrong = right.clone();
                wrong[place] ^= 0x40;
                assert!(matches!(check(7, 1, 9, &wrong), Err(Wrong::Damaged(_))), "byte {place} of {size}");
            }
            let other = value(&Values { size, seed: 6 }, 7, 3);
            assert!(matches!(check(7, 1, 9, &other), Err(Wrong::Damaged(_))), "another seed");
        }
    }

    #[test]
    fn half_of_a_value_is_in_it_twice() {
        let value = value(&Values { size: 4096, seed: 1 }, 1, 1);
        for pair in value.chunks_exact(2 * RUN) {
            assert_eq!(pair[..RUN], pair[RUN..]);
        }
        assert_ne!(value[..RUN], value[2 * RUN..3 * RUN]);
    }

    #[test]
    fn versions_are_between_what_was_acknowledged_and_what_was_sent() {
        let versions = Versions::new(10);
        assert_eq!((versions.send(4), versions.send(4)), (1, 2));
        assert_eq!((versions.least(4), versions.newest(4)), (0, 2));
        versions.acknowledge(4, 2);
        versions.acknowledge(4, 1);
        assert_eq!((versions.least(4), versions.newest(4), versions.newest(5)), (2, 2, 0));
        let before = versions.checksum(1);
        versions.send(5);
        assert_ne!(versions.checksum(1), before);
        assert_ne!(versions.checksum(1), versions.checksum(2));
    }
}
