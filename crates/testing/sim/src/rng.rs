//! The source of all chance. A seed means the same run for ever.

pub use farshore_random::Rng;

/// From a seed of a run.
pub fn seeded(seed: u64) -> Rng {
    Rng::new(seed ^ 0x5DEE_CE66_D1CE_4E5B)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_seed_means_the_same_for_ever() {
        assert_eq!(super::seeded(4711).bits(), 8_324_190_664_186_963_299);
    }
}
