//! Numbers that look random and are computed, not stored: [`mix`] and [`Permutation`].

/// Scatters the bits of a word: each bit of the result depends on each of `word` (the finalizer of `SplitMix64`).
#[must_use]
pub fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// [`mix`] of two words, in their order.
#[must_use]
pub fn mix2(first: u64, second: u64) -> u64 {
    mix(mix(first.wrapping_add(0x9e37_79b9_7f4a_7c15)).wrapping_add(second))
}

const ROUNDS: usize = 4;

/// A permutation of the numbers below `length`, without a table: random access to one would be a load of its own.
///
/// Each round is a bijection of the numbers below a power of two (times an odd number, plus a number, the upper half folded
/// into the lower). A result that is not below `length` goes through them again: that walks along one cycle of the
/// bijection, and comes to a number below `length` at the latest where it started.
#[derive(Clone, Debug)]
pub struct Permutation {
    length: u64,
    mask: u64,
    shift: u32,
    /// Factor and summand of each round.
    rounds: [(u64, u64); ROUNDS],
}

impl Permutation {
    /// A permutation of the numbers below `length` (at most 2^63).
    #[must_use]
    pub fn new(length: u64, seed: u64) -> Self {
        let bits = length.max(2).next_power_of_two().trailing_zeros();
        let word = |n: usize| mix2(seed, n as u64);
        let rounds = std::array::from_fn(|round| (word(2 * round) | 1, word(2 * round + 1)));
        Permutation { length, mask: (1 << bits) - 1, shift: bits.div_ceil(2), rounds }
    }

    /// Where `number` (below the length) goes.
    #[must_use]
    pub fn apply(&self, number: u64) -> u64 {
        debug_assert!(number < self.length);
        let mut x = number;
        loop {
            for (factor, summand) in self.rounds {
                x = x.wrapping_mul(factor).wrapping_add(summand) & self.mask;
                x ^= x >> self.shift;
            }
            if x < self.length {
                return x;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_takes_each_number_once() {
        for length in [1, 2, 3, 5, 16, 17, 1000, 4096, 65_537] {
            for seed in 0..3 {
                let permutation = Permutation::new(length, seed);
                let mut images: Vec<u64> = (0..length).map(|n| permutation.apply(n)).collect();
                images.sort_unstable();
                assert!(images.iter().copied().eq(0..length), "length {length}, seed {seed}");
            }
        }
    }

    #[test]
    fn neighbours_are_scattered() {
        let length = 1 << 20;
        let permutation = Permutation::new(length, 7);
        // Of 1000 pairs of neighbours, about one in 2^20 / 2000 would lie within 1000 by chance.
        let near = (0..1000).filter(|n| permutation.apply(*n).abs_diff(permutation.apply(n + 1)) < 1000).count();
        assert!(near < 20, "{near} of 1000 pairs stayed near each other");
        let other = Permutation::new(length, 8);
        assert!((0..1000).filter(|n| permutation.apply(*n) == other.apply(*n)).count() < 10);
    }
}
