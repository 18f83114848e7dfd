//! Numbers that look like chance, from a seed (splitmix64), for tests and the simulator. The generator is small and our own,
//! so that a seed means the same run for ever, whatever becomes of other people's crates.
#![no_std]
#![forbid(unsafe_code)]

/// A generator of numbers from a seed.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// From a seed.
    pub const fn new(seed: u64) -> Rng {
        Rng(seed)
    }
    /// 64 bits of chance.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }
    /// Below `n`; 0 for `n` = 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // The bias of the high product is far below anything a run could notice.
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }
    /// From `low` up to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }
    /// True in `n` of 10,000 cases.
    pub fn chance(&mut self, n: u32) -> bool {
        self.below(10_000) < u64::from(n)
    }
    /// One of `choices`.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
    /// Noise.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.bits().to_le_bytes()[..chunk.len()]);
        }
    }
    /// Brings them into an order at random.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// Scatters the bits of a word: each bit of the result depends on each of `word`.
pub const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_splitmix64() {
        // The first numbers of the reference implementation.
        let mut rng = Rng::new(1_234_567);
        assert_eq!([rng.bits(), rng.bits()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
        assert_eq!(Rng::new(0).bits(), 0xE220_A839_7B1D_CDAF);
    }

    #[test]
    fn numbers_are_within_their_bounds_and_all_of_them_come() {
        let (mut rng, mut seen) = (Rng::new(7), [0; 10]);
        (0..10_000).for_each(|_| seen[rng.below(10) as usize] += 1);
        // Six standard deviations.
        assert!(seen.iter().all(|count: &u32| count.abs_diff(1000) < 180), "{seen:?}");
        assert!((0..1000).all(|_| (3..=5).contains(&rng.between(3, 5))));
        assert_eq!((rng.below(0), rng.below(1), rng.pick(&[9])), (0, 0, 9));
        assert!(!rng.chance(0) && rng.chance(10_000));
    }

    #[test]
    fn noise_reaches_the_last_byte_and_shuffling_keeps_all() {
        let mut rng = Rng::new(1);
        for length in 0..20 {
            let mut bytes = [0; 20];
            // A byte of noise is 0 in one of 256 cases, not always.
            (0..8).for_each(|_| {
                let mut noise = [0; 20];
                rng.fill(&mut noise[..length]);
                bytes.iter_mut().zip(noise).for_each(|(byte, noise)| *byte |= noise);
            });
            assert!(bytes[..length].iter().all(|byte| *byte != 0) && bytes[length..].iter().all(|byte| *byte == 0));
        }
        let mut order: [usize; 100] = core::array::from_fn(|n| n);
        rng.shuffle(&mut order);
        assert_ne!(order, core::array::from_fn(|n| n));
        order.sort_unstable();
        assert_eq!(order, core::array::from_fn(|n| n));
    }
}
