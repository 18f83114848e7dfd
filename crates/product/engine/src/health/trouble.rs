//! What was wrong with a transfer, and which transfer failed last.
//!
//! A try that fails is counted, and most often the next one succeeds, so that no line tells of it. The counters keep the last.

use core::sync::atomic::{AtomicU64, Ordering};
use farshore_core::seams::IoError;
use farshore_core::word::Slot;

/// A transfer that went wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// The slot could not be read.
    Read(Slot, IoError),
    /// The slot, or those behind it, could not be written.
    Write(Slot, IoError),
    /// The slot gave other bytes than were written to it.
    Checksum(Slot),
}

impl core::fmt::Display for Trouble {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Trouble::Read(slot, why) if slot.is_of_file() => write!(f, "reading a mapped file failed: {why}"),
            Trouble::Read(slot, why) => write!(f, "reading slot {} of the swap space failed: {why}", slot.number()),
            Trouble::Write(slot, why) => write!(f, "writing slot {} of the swap space failed: {why}", slot.number()),
            Trouble::Checksum(slot) => {
                write!(f, "slot {} of the swap space has other bytes than were written to it", slot.number())
            }
        }
    }
}

/// Bits of the word: the slot (below 2^37, see `farshore_core::limits`), above what happened, above the reason.
const SLOT_SHIFT: u32 = 24;
const KIND_SHIFT: u32 = 22;
const WHY: u64 = (1 << KIND_SHIFT) - 1;
/// Reasons that are no errno; numbers below are.
const FULL: u64 = WHY;
const SHORT: u64 = WHY - 1;

/// The last transfer that went wrong, in one word, so that threads may note theirs at once.
#[derive(Debug, Default)]
pub(crate) struct LastTrouble(AtomicU64);

pub(super) fn pack(why: IoError) -> u64 {
    match why {
        IoError::Full => FULL,
        IoError::Short => SHORT,
        IoError::Device(errno) => u64::from(errno as u32) & WHY,
    }
}

pub(super) fn unpack(why: u64) -> IoError {
    match why {
        FULL => IoError::Full,
        SHORT => IoError::Short,
        errno => IoError::Device(errno as i32),
    }
}

impl LastTrouble {
    pub(crate) fn set(&self, trouble: Trouble) {
        let (kind, slot, why) = match trouble {
            Trouble::Read(slot, why) => (1, slot, pack(why)),
            Trouble::Write(slot, why) => (2, slot, pack(why)),
            Trouble::Checksum(slot) => (3, slot, 0),
        };
        self.0.store(slot.number() << SLOT_SHIFT | kind << KIND_SHIFT | why, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Option<Trouble> {
        let word = self.0.load(Ordering::Relaxed);
        let (slot, why) = (Slot::new(word >> SLOT_SHIFT)?, unpack(word & WHY));
        match word >> KIND_SHIFT & 3 {
            1 => Some(Trouble::Read(slot, why)),
            2 => Some(Trouble::Write(slot, why)),
            3 => Some(Trouble::Checksum(slot)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_is_kept_whole() {
        let last = LastTrouble::default();
        assert_eq!(last.get(), None);
        let slot = |number| Slot::new(number).unwrap();
        let largest = slot((1 << 37) - 1);
        for trouble in [
            Trouble::Read(slot(1), IoError::Device(5)),
            Trouble::Write(largest, IoError::Full),
            Trouble::Write(slot(77), IoError::Device(122)),
            Trouble::Read(largest, IoError::Short),
            Trouble::Checksum(largest),
            Trouble::Checksum(slot(1)),
        ] {
            last.set(trouble);
            assert_eq!(last.get(), Some(trouble));
        }
    }
}
