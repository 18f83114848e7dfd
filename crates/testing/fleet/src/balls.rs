//! What theory says of placement: balls that are thrown into bins, all of one size.
//!
//! | balls are thrown | the fullest bin has more than the mean |
//! |---|---|
//! | at random, as many as bins | ln n / ln ln n (1 + o(1)) |
//! | at random, m, many more | sqrt(2 m ln n / n) (1 + o(1)) (Raab and Steger, 1998) |
//! | into the emptier of two, as many as bins | ln ln n / ln 2 + O(1) (Azar, Broder, Karlin and Upfal, 1999; Mitzenmacher, 2001) |
//! | the same, many more | the same: it does not grow with m (Berenbrink, Czumaj, Steger and Vöcking, 2006) |

use crate::draws::Draws;
use serde::Serialize;

/// How balls fell.
#[derive(Clone, Debug, Serialize)]
pub struct Thrown {
    /// Bins.
    pub bins: usize,
    /// Balls for each of them.
    pub each: usize,
    /// By how many balls the fullest bin was above the mean, thrown at random: the mean of all rounds.
    pub random: f64,
    /// The same into the emptier of two.
    pub two: f64,
    /// What theory says of the first, without what is small.
    pub random_in_theory: f64,
    /// And of the second, without its constant.
    pub two_in_theory: f64,
}

/// By how much the fullest bin is above the mean.
#[must_use]
pub fn gap(bins: usize, each: usize, is_two: bool, draws: &mut Draws) -> f64 {
    let mut there = vec![0_u32; bins];
    for _ in 0..bins * each {
        let first = draws.below(bins);
        let bin = if is_two {
            let second = draws.below(bins);
            if there[second] < there[first] { second } else { first }
        } else {
            first
        };
        there[bin] += 1;
    }
    f64::from(there.into_iter().max().unwrap_or(0)) - each as f64
}

/// Throws them some rounds.
#[must_use]
pub fn throw(bins: usize, each: usize, rounds: u64, seed: u64) -> Thrown {
    let mean = |is_two: bool| {
        let one = |round| gap(bins, each, is_two, &mut Draws::new(seed, 100 + 2 * round + u64::from(is_two)));
        (0..rounds).map(one).sum::<f64>() / rounds.max(1) as f64
    };
    let n = bins as f64;
    let random_in_theory = if each == 1 { n.ln() / n.ln().ln() - 1.0 } else { (2.0 * each as f64 * n.ln()).sqrt() };
    Thrown {
        bins,
        each,
        random: mean(false),
        two: mean(true),
        random_in_theory,
        two_in_theory: n.ln().ln() / std::f64::consts::LN_2,
    }
}

/// The cases that are shown.
#[must_use]
pub fn cases(seed: u64) -> Vec<Thrown> {
    [(100, 1, 100), (10_000, 1, 10), (1_000_000, 1, 1), (100, 120, 100), (10_000, 120, 3)]
        .into_iter()
        .map(|(bins, each, rounds)| throw(bins, each, rounds, seed))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_choices_are_as_good_as_theory_says() {
        for thrown in [throw(100, 1, 30, 1), throw(1000, 100, 5, 2)] {
            // Its constant is below 2 in what was ever measured.
            assert!(thrown.two > 0.5 && thrown.two < thrown.two_in_theory + 2.0, "{thrown:?}");
            assert!(thrown.random > 1.5 * thrown.two, "{thrown:?}");
            assert!((0.5..2.0).contains(&(thrown.random / thrown.random_in_theory)), "{thrown:?}");
        }
    }

    #[test]
    fn with_one_bin_there_is_no_gap() {
        assert_eq!(gap(1, 50, false, &mut Draws::new(1, 1)), 0.0);
        assert_eq!(gap(1, 50, true, &mut Draws::new(1, 1)), 0.0);
    }
}
