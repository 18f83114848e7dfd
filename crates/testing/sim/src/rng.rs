//! The source of all chance. Small and our own, so that a seed means the same run for ever.

/// A generator of numbers from a seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// From a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed ^ 0x5DEE_CE66_D1CE_4E5B)
    }
    /// 64 bits of chance.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
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
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}
