//! The edges of a Kronecker graph, by the rules of the GAP Benchmark Suite (and of Graph 500): each edge goes down `scale`
//! levels of the adjacency matrix, and at each level into one of its quarters with the probabilities A, B, C and the rest.
//!
//! Edges are made in blocks of 2^18, each with a seed of its own, so that they are the same for any number of threads;
//! they can be made again, so that nobody needs to keep them. As in GAP, the numbers of the vertices are permuted
//! at the end: else neighbours in number would be neighbours in the graph.
//!
//! Where this is not GAP's code: random numbers are of xoshiro256++, 32 bits a level, in place of mt19937; the seed is an
//! option, not a constant; the permutation is computed, not shuffled. So the graph has the same distribution, and is
//! not the same graph.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::Recipe;
use crate::work::scatter::{Permutation, mix2};

/// Edges of a block.
const BLOCK: u64 = 1 << 18;

/// A probability as a bound of 32 random bits.
const fn bound(probability: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let bound = (probability * 4_294_967_296.0) as u32;
    bound
}

const A: u32 = bound(0.57);
const A_B: u32 = bound(0.57 + 0.19);
const A_B_C: u32 = bound(0.57 + 0.19 + 0.19);

/// The generator.
#[derive(Clone, Debug)]
pub struct Kronecker {
    recipe: Recipe,
    permutation: Permutation,
}

impl Kronecker {
    pub fn new(recipe: Recipe) -> Self {
        assert!(recipe.scale < 32, "vertices are numbers of 32 bits");
        Kronecker { recipe, permutation: Permutation::new(1 << recipe.scale, recipe.seed) }
    }

    pub fn recipe(&self) -> Recipe {
        self.recipe
    }

    pub fn vertices(&self) -> usize {
        1 << self.recipe.scale
    }

    fn edges(&self) -> u64 {
        u64::from(self.recipe.degree) << self.recipe.scale
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> u64 {
        self.edges().div_ceil(BLOCK)
    }

    /// Calls `each` with the ends of each edge of a block. Loops, and edges that were there before, are among them.
    pub fn block(&self, block: u64, mut each: impl FnMut(u32, u32)) {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(mix2(self.recipe.seed, block));
        for _ in block * BLOCK..((block + 1) * BLOCK).min(self.edges()) {
            let (from, to) = self.edge(&mut random);
            each(self.permuted(from), self.permuted(to));
        }
    }

    fn edge(&self, random: &mut Xoshiro256PlusPlus) -> (u32, u32) {
        let (mut from, mut to) = (0, 0);
        let mut levels = self.recipe.scale;
        while levels > 0 {
            // One word is good for two levels.
            let word = random.next_u64();
            (from, to) = descend(from, to, (word >> 32) as u32);
            if levels > 1 {
                (from, to) = descend(from, to, (word & u64::from(u32::MAX)) as u32);
            }
            levels = levels.saturating_sub(2);
        }
        (from, to)
    }

    #[expect(clippy::cast_possible_truncation)] // A permutation of numbers below 2^32.
    fn permuted(&self, vertex: u32) -> u32 {
        self.permutation.apply(u64::from(vertex)) as u32
    }
}

/// One level down, without a branch that could be guessed wrong: the quarters are (0, 0), (0, 1), (1, 0), (1, 1).
fn descend(from: u32, to: u32, random: u32) -> (u32, u32) {
    let lower = u32::from(random >= A_B);
    let right = u32::from(random >= A) ^ lower ^ u32::from(random >= A_B_C);
    (from << 1 | lower, to << 1 | right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_goes_into_each_quarter_at_its_bounds() {
        for (random, quarter) in [
            (0, (0, 0)),
            (A - 1, (0, 0)),
            (A, (0, 1)),
            (A_B - 1, (0, 1)),
            (A_B, (1, 0)),
            (A_B_C - 1, (1, 0)),
            (A_B_C, (1, 1)),
            (u32::MAX, (1, 1)),
        ] {
            assert_eq!(descend(0, 0, random), quarter, "{random}");
            assert_eq!(descend(1, 2, random), (2 + quarter.0, 4 + quarter.1), "{random}");
        }
    }

    #[test]
    fn blocks_have_all_edges_and_each_its_own() {
        let generator = Kronecker::new(Recipe { scale: 15, degree: 20, seed: 5 });
        let block = |number| {
            let mut edges = Vec::new();
            generator.block(number, |u, v| edges.push((u, v)));
            edges
        };
        assert_eq!(generator.blocks(), 3);
        assert_eq!((0..3).map(|number| block(number).len() as u64).collect::<Vec<_>>(), [BLOCK, BLOCK, BLOCK / 2]);
        assert_eq!(block(1), block(1));
        assert_ne!(block(0), block(1));
        assert!(block(2).iter().all(|(u, v)| u.max(v) >> 15 == 0));
    }

    /// The share of edges whose ends are in a quarter of the matrix is the probability of the quarter, at the first level
    /// and at the last.
    #[test]
    fn edges_are_drawn_with_their_probabilities() {
        for scale in [11, 12] {
            let generator = Kronecker::new(Recipe { scale, degree: 1, seed: 1 });
            let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
            let mut counts = [[0_u32; 4]; 2];
            for _ in 0..100_000 {
                let (from, to) = generator.edge(&mut random);
                assert!(from.max(to) < 1 << scale);
                for (counts, shift) in counts.iter_mut().zip([scale - 1, 0]) {
                    counts[((from >> shift & 1) << 1 | (to >> shift & 1)) as usize] += 1;
                }
            }
            for counts in counts {
                for (count, wanted) in counts.into_iter().zip([57_000_u32, 19_000, 19_000, 5_000]) {
                    // Six standard deviations at most.
                    assert!(count.abs_diff(wanted) < 1000, "{counts:?}");
                }
            }
        }
    }
}
