//! The `array` and `scan` services: numbers by index, in messages of fixed size, so that a server is a few lines and its
//! answers can be checked.
//!
//! All numbers are little-endian words of 8 bytes. Over UDP a message is a datagram, over TCP messages follow one another, and a
//! connection's answers come in the order of its requests.
//!
//! | service | request | answer |
//! |---|---|---|
//! | `array` | id, index | id, [`array_value`] of the index |
//! | `scan` | id, word whose first byte is the [operation](GET), key | id, [status](FOUND), count, sum of the values |
//!
//! A GET finds one value. A SCAN finds the values of its key and of those that follow it, [`SCAN_LENGTH`] or as many as
//! there are; the sum wraps around. (The other bytes of the operation's word may have another length, if they are not 0.)
//! The value of a key is its `array_value`; keys are 0 to the number of items less one.

use rand::Rng;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::SeedableRng;

/// Bytes of a request of `array`, and of its answer.
pub const ARRAY_BYTES: usize = 16;
/// Bytes of an answer of `scan`.
pub const SCAN_ANSWER_BYTES: usize = 32;
/// Operation of `scan`: one key.
pub const GET: u8 = 0;
/// Operation of `scan`: a key and those after it.
pub const SCAN: u8 = 1;
/// Values that a SCAN finds at most.
pub const SCAN_LENGTH: u64 = 100;
/// Status of `scan`: the key is there.
pub const FOUND: u64 = 0;
/// Status of `scan`: it is not.
pub const NOT_FOUND: u64 = 1;

/// Makes the values of small indexes unlike the output of a generator that was seeded with them.
const ARRAY: u64 = 0x6661_7273_686f_7265;

/// The value at an index.
#[must_use]
pub fn array_value(index: u64) -> u64 {
    splitmix64(index ^ ARRAY)
}

/// The sum of the values of `count` keys from `key` on.
#[must_use]
pub fn scan_sum(key: u64, count: u64) -> u64 {
    (key..key.saturating_add(count)).fold(0, |sum, key| sum.wrapping_add(array_value(key)))
}

/// The first number of the `SplitMix64` generator with this seed.
fn splitmix64(seed: u64) -> u64 {
    SplitMix64::seed_from_u64(seed).next_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_splitmix64() {
        // The first numbers of the reference implementation, for the seeds 0 and 1234567.
        assert_eq!(splitmix64(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(splitmix64(1_234_567), 6_457_827_717_110_365_317);
        assert_eq!(array_value(ARRAY), splitmix64(0));
    }

    #[test]
    fn a_sum_is_that_of_its_values() {
        assert_eq!(scan_sum(7, 0), 0);
        assert_eq!(scan_sum(7, 3), array_value(7).wrapping_add(array_value(8)).wrapping_add(array_value(9)));
    }
}
