//! When requests are due: a Poisson process that is fixed before it starts, so that nothing that happens later changes it.
//! Nothing here knows what a request is.

use std::time::Duration;

use rand::distr::Distribution;
use rand_distr::Exp1;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

/// When a request is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Its number, from 0.
    pub number: u64,
    /// Its time.
    pub at: u64,
}

/// The arrivals of a Poisson process, one after the other. Each has its time from the start on: nothing that
/// happens later changes it.
#[derive(Clone, Debug)]
pub struct Arrivals {
    random: Xoshiro256PlusPlus,
    /// Mean time from one to the next, in ns.
    gap: f64,
    /// The next one, which has a fraction of a ns too.
    at: f64,
    number: u64,
    end: f64,
}

impl Arrivals {
    /// `rate` requests a second on average, for this long. The same seed gives the same arrivals.
    #[must_use]
    pub fn new(rate: f64, length: Duration, seed: u64) -> Self {
        let random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut arrivals = Arrivals { random, gap: 1e9 / rate, at: 0.0, number: 0, end: length.as_secs_f64() * 1e9 };
        arrivals.at = arrivals.gap();
        arrivals
    }

    fn gap(&mut self) -> f64 {
        let gap: f64 = Exp1.sample(&mut self.random);
        gap * self.gap
    }

    /// The next one.
    #[must_use]
    pub fn peek(&self) -> Option<Arrival> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Positive, and days at most.
        (self.at < self.end).then_some(Arrival { number: self.number, at: self.at as u64 })
    }

    /// The next one, if it is due.
    pub fn due(&mut self, now: u64) -> Option<Arrival> {
        let arrival = self.peek().filter(|arrival| arrival.at <= now)?;
        self.number += 1;
        self.at += self.gap();
        Some(arrival)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn all(rate: f64, seconds: u64, seed: u64) -> Vec<Arrival> {
        let mut arrivals = Arrivals::new(rate, Duration::from_secs(seconds), seed);
        std::iter::from_fn(|| arrivals.due(u64::MAX)).collect()
    }

    #[test]
    fn arrivals_have_the_mean_rate_and_its_scatter() {
        for (rate, seconds) in [(100.0, 500), (50_000.0, 2), (2_000_000.0, 1)] {
            let times: Vec<u64> = all(rate, seconds, 1).iter().map(|arrival| arrival.at).collect();
            let expected = rate * seconds as f64;
            // Six standard deviations of a Poisson distribution.
            assert!((times.len() as f64 - expected).abs() < 6.0 * expected.sqrt(), "{rate}: {}", times.len());
            assert!(times.is_sorted() && times.last().is_some_and(|last| *last < seconds * SECOND));
            // Gaps of a Poisson process: as much deviation as mean, and a share 1/e of them above the mean.
            let mean = 1e9 / rate;
            let above = times.windows(2).filter(|pair| (pair[1] - pair[0]) as f64 > mean).count() as f64 / expected;
            assert!((above - (-1.0_f64).exp()).abs() < 0.02, "{rate}: {above}");
        }
    }

    #[test]
    fn arrivals_are_numbered_and_the_same_for_a_seed() {
        let arrivals = all(1000.0, 3, 7);
        assert!(arrivals.iter().enumerate().all(|(number, arrival)| arrival.number == number as u64));
        assert_eq!(arrivals, all(1000.0, 3, 7));
        assert_ne!(arrivals, all(1000.0, 3, 8));
        assert_eq!(all(1000.0, 0, 7), []);
    }

    #[test]
    fn a_stall_does_not_shift_later_arrivals() {
        let mut arrivals = Arrivals::new(1000.0, Duration::from_secs(2), 3);
        let (mut now, mut taken, mut at_once) = (0, Vec::new(), 0);
        while arrivals.peek().is_some() {
            // Once, for 300 ms, nobody looks.
            now += if now == SECOND { 3 * SECOND / 10 } else { SECOND / 10_000 };
            let before = taken.len();
            taken.extend(std::iter::from_fn(|| arrivals.due(now)));
            at_once = at_once.max(taken.len() - before);
        }
        assert_eq!(taken, all(1000.0, 2, 3));
        assert!((200..400).contains(&at_once), "those that were due meanwhile come at once: {at_once}");
    }

    #[test]
    fn nothing_is_due_before_its_time() {
        let mut arrivals = Arrivals::new(10.0, Duration::from_secs(10), 3);
        let first = arrivals.peek().map_or(0, |arrival| arrival.at);
        assert!(first > 0);
        assert_eq!(arrivals.due(first - 1), None);
        assert_eq!(arrivals.due(first), Some(Arrival { number: 0, at: first }));
    }
}
