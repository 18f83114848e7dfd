//! Draws from distributions, from a seed.

use farshore_random::{Rng, mix};

/// A generator of draws.
#[derive(Clone, Debug)]
pub struct Draws(Rng);

impl Draws {
    /// From a seed, and what it is for: two uses of one seed have nothing to do with each other.
    #[must_use]
    pub fn new(seed: u64, what: u64) -> Draws {
        Draws(Rng::new(mix(seed) ^ mix(what.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1))))
    }

    /// Below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        self.0.below(n as u64) as usize
    }

    /// Above 0 and at most 1.
    pub fn uniform(&mut self) -> f64 {
        ((self.0.bits() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// From the exponential distribution with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.uniform().ln()
    }

    /// From the standard normal distribution (Box and Muller, 1958).
    pub fn normal(&mut self) -> f64 {
        let (radius, angle) = ((-2.0 * self.uniform().ln()).sqrt(), std::f64::consts::TAU * self.uniform());
        radius * angle.cos()
    }

    /// From the log-normal distribution with mean 1, whose logarithm has this standard deviation.
    pub fn skewed(&mut self, sigma: f64) -> f64 {
        (sigma * self.normal() - sigma * sigma / 2.0).exp()
    }

    /// Brings them into an order at random.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        self.0.shuffle(items);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_their_mean_and_their_spread() {
        let mut draws = Draws::new(1, 2);
        let n = 100_000;
        let mut mean = |draw: &mut dyn FnMut(&mut Draws) -> f64| (0..n).map(|_| draw(&mut draws)).sum::<f64>() / f64::from(n);
        // Ten standard errors each, from a fixed seed.
        assert!((mean(&mut |draws| draws.uniform()) - 0.5).abs() < 0.01);
        assert!((mean(&mut |draws| draws.exponential(3.0)) - 3.0).abs() < 0.1);
        assert!(mean(&mut |draws| draws.normal()).abs() < 0.032);
        assert!((mean(&mut |draws| draws.normal().powi(2)) - 1.0).abs() < 0.045);
        assert!((mean(&mut |draws| draws.skewed(1.0)) - 1.0).abs() < 0.042);
    }

    #[test]
    fn one_seed_has_many_uses() {
        let first = |seed, what| Draws::new(seed, what).below(1 << 40);
        assert_eq!(first(1, 2), first(1, 2));
        assert_ne!(first(1, 2), first(1, 3));
        assert_ne!(first(1, 2), first(2, 2));
        assert_ne!(first(1, 2), first(2, 1));
    }
}
