//! A part of many keys, by their hashes: the same keys each time, and a smaller part of them whenever they become too many (SHARDS, Waldspurger et
//! al., Efficient MRC Construction with SHARDS, FAST 2015).

/// Keys whose hash is below a threshold. At first it has all (but for the one whose hash is the largest).
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    threshold: u64,
}

impl Default for Sample {
    fn default() -> Sample {
        Sample { threshold: u64::MAX }
    }
}

impl Sample {
    /// Whether a key is in it.
    #[must_use]
    pub fn has(self, key: u64) -> bool {
        hash(key) < self.threshold
    }

    /// From now on it has half of the keys that it had.
    pub fn thin_out(&mut self) {
        self.threshold /= 2;
    }

    /// The part of all keys that it has, above 0.
    #[must_use]
    pub fn rate(self) -> f64 {
        (self.threshold as f64 / u64::MAX as f64).max(f64::MIN_POSITIVE)
    }
}

/// A key's hash: neighbours are as far apart as any (the finalizer of `MurmurHash3`).
#[must_use]
pub const fn hash(key: u64) -> u64 {
    let key = (key ^ key >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let key = (key ^ key >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    key ^ key >> 33
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sample_is_a_half_of_the_one_before() {
        let (mut sample, mut before) = (Sample::default(), (0..100_000).collect::<Vec<u64>>());
        for halves in 1..6 {
            sample.thin_out();
            let now: Vec<u64> = (0..100_000).filter(|&key| sample.has(key)).collect();
            assert!(now.iter().all(|key| before.binary_search(key).is_ok()), "{halves}");
            let (wanted, rate) = (100_000.0 * sample.rate(), sample.rate());
            assert!(
                (rate * f64::from(1 << halves) - 1.0).abs() < 1e-9 && (now.len() as f64 - wanted).abs() < wanted * 0.05,
                "{halves}"
            );
            before = now;
        }
    }
}
