//! Numbers by index, as `farshore-load` knows them: what `array` and `scan` store.
//!
//! An item has a number of words. Their sum is its [`value`], so all of them must be read, and the client, who can compute it, sees if one was wrong.

/// Bytes of a word.
pub const WORD: usize = size_of::<u64>();
/// Makes the values of small indexes unlike the output of a generator that was seeded with them.
const SALT: u64 = 0x6661_7273_686f_7265;

/// The value at an index: the first number of the `SplitMix64` generator with a seed made of it.
pub fn value(index: u64) -> u64 {
    mix(index ^ SALT)
}

/// Scatters the bits of a word: the first number of the generator with that seed.
pub fn mix(seed: u64) -> u64 {
    let word = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The words of the item at an index. The last one makes the sum right.
pub fn words(index: u64, count: usize) -> impl Iterator<Item = u64> {
    let value = value(index);
    let mut rest = value;
    (1..=count as u64).map(move |place| {
        let word = if place == count as u64 { rest } else { mix(value ^ place) };
        rest = rest.wrapping_sub(word);
        word
    })
}

/// A little-endian word of a message.
pub fn word(bytes: &[u8], place: usize) -> u64 {
    bytes.as_chunks::<WORD>().0.get(place).map_or(0, |word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_splitmix64() {
        assert_eq!(value(SALT), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn words_sum_up_to_the_value() {
        for count in [1, 2, 8, 512] {
            for index in [0, 1, u64::MAX] {
                assert_eq!(words(index, count).count(), count);
                assert_eq!(words(index, count).fold(0, |sum: u64, word| sum.wrapping_add(word)), value(index));
            }
        }
    }
}
