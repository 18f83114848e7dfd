//! Which key is asked for.

use rand::distr::Distribution;
use rand::{Rng, RngExt};
use rand_distr::Zipf;

use super::args::Keys;
use crate::work::scatter::Permutation;

/// How keys are drawn.
#[derive(Clone, Debug)]
pub struct KeyDraw {
    items: u64,
    /// Of the ranks of keys, from 1 on; `None`: all keys are the same.
    zipf: Option<Zipf<f64>>,
    /// Which key has which rank: those that are often asked for are not neighbours.
    places: Permutation,
}

impl KeyDraw {
    /// Keys below `items`. Which are asked for often is the same for all seeds: so a server that is warm stays so.
    ///
    /// # Errors
    /// If there is no such distribution.
    pub fn new(items: u64, keys: Keys) -> Result<Self, String> {
        #[expect(clippy::cast_precision_loss)] // There are not 2^53 keys.
        let zipf = match keys {
            Keys::Zipf(exponent) if exponent > 0.0 => Some(Zipf::new(items as f64, exponent)),
            _ => None,
        };
        let zipf = zipf.transpose().map_err(|error| format!("invalid --keys {keys:?}: {error}"))?;
        Ok(KeyDraw { items, zipf, places: Permutation::new(items, 0x6b65_7973) })
    }

    /// The next one.
    #[must_use]
    pub fn draw(&self, random: &mut impl Rng) -> u64 {
        let Some(zipf) = &self.zipf else { return random.random_range(0..self.items) };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // From 1 to the number of keys.
        let rank = zipf.sample(random) as u64;
        self.places.apply(rank.clamp(1, self.items) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::SeedableRng;

    const ITEMS: u64 = 1000;
    const DRAWS: u32 = 200_000;

    fn counts(keys: Keys) -> (KeyDraw, Vec<u32>) {
        let draw = KeyDraw::new(ITEMS, keys).unwrap_or_else(|error| panic!("{error}"));
        let (mut random, mut counts) = (Xoshiro256PlusPlus::seed_from_u64(7), vec![0; 1000]);
        for _ in 0..DRAWS {
            counts[usize::try_from(draw.draw(&mut random)).unwrap_or(usize::MAX)] += 1;
        }
        (draw, counts)
    }

    #[test]
    fn uniform_keys_are_drawn_equally_often() {
        let (_, counts) = counts(Keys::Uniform);
        // 200 expected; six standard deviations.
        assert!(counts.iter().all(|count| count.abs_diff(200) < 85), "{counts:?}");
    }

    #[test]
    fn zipf_keys_have_their_skew_and_are_scattered() {
        let (draw, counts) = counts(Keys::Zipf(0.99));
        let sum: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-0.99)).sum();
        let place = |rank| usize::try_from(draw.places.apply(rank)).unwrap_or(usize::MAX);
        for rank in [0, 1, 9, 99] {
            let expected = f64::from(DRAWS) * f64::from(u32::try_from(rank + 1).unwrap_or(0)).powf(-0.99) / sum;
            let count = f64::from(counts[place(rank)]);
            assert!((count - expected).abs() < 6.0 * expected.sqrt(), "rank {rank}: {count}, expected {expected}");
        }
        let near = (0..20).filter(|rank| place(*rank).abs_diff(place(rank + 1)) < 3).count();
        assert!(near < 3, "{near} of 20 pairs of hot keys are neighbours");
    }
}
