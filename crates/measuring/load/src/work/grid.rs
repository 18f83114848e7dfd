//! `grid`: look-ups of cross sections on a unionised grid of energies, as XSBench does for neutron transport (Tramm et al., PHYSOR 2014).
//!
//! ```text
//! nuclides   for each nuclide its grid: points of an energy and five cross sections        nuclide by nuclide
//! union      the energies of all nuclides in one order
//! index      for each of them, and for each nuclide: the last of its points that is not above
//! ```
//!
//! A look-up draws an energy and a material, finds the energy in the union by bisection, and reads for each nuclide of the material its place in
//! the index and two neighbouring points, between which it interpolates. So it reads some twenty words at places that come closer, then two runs of
//! some words for each nuclide, anywhere.
//!
//! Energies are whole numbers. Each nuclide has one point in each interval of [`STRIDE`], at a random place in it: so the union of an interval follows
//! from the seed without the rest.
//!
//! Verified: at each look-up that the energies around it are those that they must be, and all words at the end.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use farshore_load::outcome::Outcome;
use farshore_load::workload;
use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::memory::{Contents, Memory, generator, nth, shard};
use crate::report::Report;
use crate::team::{self, Stage};
use crate::verify::{Wrongs, checksum};

/// Nuclides.
const NUCLIDES: usize = 32;
/// Nuclides of a material.
const PARTS: usize = 8;
/// Materials.
const MATERIALS: usize = 12;
/// Words of a point: its energy, and five cross sections.
const POINT: usize = 6;
/// Words of the index for one energy: two numbers in each.
const ENTRY: usize = NUCLIDES / 2;
/// In each interval of so many units of energy each nuclide has one point.
const STRIDE: u64 = 1 << 20;
/// Words of an interval, in all three regions.
const INTERVAL: usize = NUCLIDES * (POINT + 1 + ENTRY);

/// Runs it.
///
/// # Errors
/// If memory or threads are not to be had, or if it is too little for a grid.
pub fn run(args: &workload::Grid, report: &mut Report) -> Result<Outcome, String> {
    let common = &args.common;
    let grid = Grid::new(Memory::new(common.size)?, common.seed)?;
    let part = |thread| shard(grid.intervals, common.threads as usize, thread);
    team::phase(report, "fill", common.threads, |thread| grid.fill(part(thread)))?;
    let worker = |thread| Worker { grid: &grid, random: generator(common.seed, thread), sum: 0, wrongs: Wrongs::default() };
    let (total, workers) = team::timed(common, report, None, worker)?;
    let found = team::phase(report, "verify", common.threads, |thread| grid.check(part(thread)))?;
    let sum = found.iter().fold(0_u64, |sum, (_, part)| sum.wrapping_add(*part));
    let mut wrongs = Wrongs::of(found.into_iter().map(|(wrongs, _)| wrongs));
    wrongs.append(Wrongs::of(workers.into_iter().map(|worker| worker.wrongs)));
    let verified = format!("the energies around each look-up, and all {} words at the end", grid.intervals * INTERVAL);
    let (unit, checksum) = ("look-up".into(), format!("{sum:016x}"));
    Ok(super::measured(Outcome { unit, verified, checksum, wrong: wrongs.lines(), ..Default::default() }, total))
}

/// Where everything is.
#[derive(Debug)]
struct Grid {
    memory: Memory,
    contents: Contents,
    seed: u64,
    /// Points of each nuclide.
    intervals: usize,
}

impl Grid {
    fn new(memory: Memory, seed: u64) -> Result<Self, String> {
        let intervals = memory.words().len() / INTERVAL;
        if u32::try_from(intervals).is_err() {
            return Err("--size is too much for a grid: its index has numbers of 32 bits; give less".into());
        }
        Ok(Grid { memory, contents: Contents::new(seed), seed, intervals })
    }

    /// The word at which a nuclide's point begins.
    fn point(&self, nuclide: usize, number: usize) -> usize {
        (nuclide * self.intervals + number) * POINT
    }

    /// The word of an energy of the union.
    fn union(&self, number: usize) -> usize {
        NUCLIDES * self.intervals * POINT + number
    }

    /// The word of the index for an energy of the union and a nuclide.
    fn index(&self, number: usize, nuclide: usize) -> usize {
        NUCLIDES * self.intervals * (POINT + 1) + number * ENTRY + nuclide / 2
    }

    fn word(&self, index: usize) -> u64 {
        self.memory.words()[index].load(Relaxed)
    }

    /// The energy of a point.
    fn energy(&self, nuclide: usize, number: usize) -> u64 {
        let place = nth(self.seed, (number * NUCLIDES + nuclide) as u64) % STRIDE;
        number as u64 * STRIDE + place
    }

    /// Gives `each` the words of an interval, with their places.
    fn interval(&self, number: usize, mut each: impl FnMut(usize, u64)) {
        let energies: [u64; NUCLIDES] = std::array::from_fn(|nuclide| self.energy(nuclide, number));
        for (nuclide, energy) in energies.iter().enumerate() {
            let first = self.point(nuclide, number);
            each(first, *energy);
            (first + 1..first + POINT).for_each(|index| each(index, self.contents.word(index)));
        }
        let mut sorted = energies;
        sorted.sort_unstable();
        for (rank, energy) in sorted.into_iter().enumerate() {
            let union = number * NUCLIDES + rank;
            each(self.union(union), energy);
            // The point of this interval, or the one before: the first has none before, and counts as not above.
            let last = |nuclide: usize| if energies[nuclide] <= energy { number } else { number.saturating_sub(1) } as u64;
            for nuclide in (0..NUCLIDES).step_by(2) {
                each(self.index(union, nuclide), last(nuclide) | last(nuclide + 1) << u32::BITS);
            }
        }
    }

    fn fill(&self, intervals: Range<usize>) {
        let words = self.memory.words();
        intervals.for_each(|number| self.interval(number, |index, word| words[index].store(word, Relaxed)));
    }

    /// What is wrong, and a checksum of what was found.
    fn check(&self, intervals: Range<usize>) -> (Wrongs, u64) {
        let (mut wrongs, mut sum) = (Wrongs::default(), 0_u64);
        for number in intervals {
            self.interval(number, |index, word| {
                let found = self.word(index);
                wrongs.expect(index, found, word);
                sum = sum.wrapping_add(checksum(index, found));
            });
        }
        (wrongs, sum)
    }

    /// The last energy of the union that is not above `energy`; the first one if all are.
    fn find(&self, energy: u64) -> usize {
        let (mut low, mut high) = (0, self.intervals * NUCLIDES);
        while high - low > 1 {
            let middle = usize::midpoint(low, high);
            if self.word(self.union(middle)) <= energy { low = middle } else { high = middle }
        }
        low
    }

    /// The cross sections of a material at an energy, in one number.
    fn look_up(&self, energy: u64, material: usize, wrongs: &mut Wrongs) -> u64 {
        let union = self.find(energy);
        let mut sum = 0_u64;
        for part in 0..PARTS {
            let nuclide = nuclide_of(material, part);
            let word = self.word(self.index(union, nuclide));
            let number = (if nuclide.is_multiple_of(2) { word } else { word >> u32::BITS }) & u64::from(u32::MAX);
            // A number that is none is wrong data.
            let number = usize::try_from(number).unwrap_or(usize::MAX).min(self.intervals - 1);
            let next = (number + 1).min(self.intervals - 1);
            let (low, high) = (self.point(nuclide, number), self.point(nuclide, next));
            let (below, above) = (self.word(low), self.word(high));
            let enclosed = (below <= energy || number == 0) && (energy < above || next == number);
            if !enclosed || below != self.energy(nuclide, number) {
                wrongs.add(|| {
                    format!("nuclide {nuclide} at energy {energy}: found between {below} and {above}, at point {number}")
                });
            }
            let share = energy.saturating_sub(below);
            for section in 1..POINT {
                let (one, other) = (self.word(low + section) >> 32, self.word(high + section) >> 32);
                sum = sum
                    .wrapping_add(one.wrapping_mul(2 * STRIDE - share.min(2 * STRIDE)).wrapping_add(other.wrapping_mul(share)));
            }
        }
        sum
    }
}

/// The nuclides of a material: no two parts are the same one.
fn nuclide_of(material: usize, part: usize) -> usize {
    (material * 5 + part * 3) % NUCLIDES
}

struct Worker<'a> {
    grid: &'a Grid,
    random: Xoshiro256PlusPlus,
    /// Of what was looked up, so that no compiler leaves it out.
    sum: u64,
    wrongs: Wrongs,
}

impl team::Worker for Worker<'_> {
    fn operate(&mut self, _: Stage) {
        let energy = self.random.random_range(0..self.grid.intervals as u64 * STRIDE);
        let material = self.random.random_range(0..MATERIALS);
        let sections = self.grid.look_up(energy, material, &mut self.wrongs);
        self.sum = std::hint::black_box(self.sum.wrapping_add(sections));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_load::size::Bytes;
    use std::collections::BTreeSet;

    fn filled() -> Result<Grid, String> {
        let grid = Grid::new(Memory::new(Bytes(1 << 20))?, 7)?;
        grid.fill(0..grid.intervals);
        Ok(grid)
    }

    #[test]
    fn each_word_belongs_to_one_place() -> Result<(), String> {
        let grid = filled()?;
        let mut places = BTreeSet::new();
        (0..grid.intervals).for_each(|number| grid.interval(number, |index, _| assert!(places.insert(index))));
        assert_eq!(places.len(), grid.intervals * INTERVAL);
        assert!(places.last().is_some_and(|last| *last < grid.memory.words().len()));
        Ok(())
    }

    #[test]
    fn what_is_found_is_what_a_search_of_all_finds() -> Result<(), String> {
        let grid = filled()?;
        let mut random = generator(3, 0);
        let mut wrongs = Wrongs::default();
        for _ in 0..300 {
            let energy = random.random_range(0..grid.intervals as u64 * STRIDE);
            let union = grid.find(energy);
            let below = (0..grid.intervals * NUCLIDES).rev().find(|number| grid.word(grid.union(*number)) <= energy);
            assert_eq!(union, below.unwrap_or(0));
            for material in 0..MATERIALS {
                grid.look_up(energy, material, &mut wrongs);
            }
        }
        assert_eq!(wrongs.lines(), Vec::<String>::new());
        Ok(())
    }

    #[test]
    fn materials_have_different_nuclides() {
        for material in 0..MATERIALS {
            let nuclides: BTreeSet<usize> = (0..PARTS).map(|part| nuclide_of(material, part)).collect();
            assert_eq!(nuclides.len(), PARTS);
        }
    }

    #[test]
    fn a_flipped_word_is_found() -> Result<(), String> {
        let grid = filled()?;
        let (good, sum) = grid.check(0..grid.intervals);
        assert_eq!(good.lines(), Vec::<String>::new());
        for index in [grid.point(3, 2) + 4, grid.union(17), grid.index(40, 9)] {
            grid.memory.words()[index].fetch_xor(1 << 13, Relaxed);
            let (bad, other) = grid.check(0..grid.intervals);
            assert_eq!(bad.lines().len(), 1, "word {index}");
            assert_ne!(sum, other);
            grid.memory.words()[index].fetch_xor(1 << 13, Relaxed);
        }
        Ok(())
    }

    #[test]
    fn a_wrong_energy_is_found_where_it_is_read() -> Result<(), String> {
        let grid = filled()?;
        let nuclide = nuclide_of(0, 0);
        let energy = grid.energy(nuclide, 3) + 1;
        grid.memory.words()[grid.point(nuclide, 3)].fetch_add(1 << 40, Relaxed);
        let mut wrongs = Wrongs::default();
        grid.look_up(energy, 0, &mut wrongs);
        assert_eq!(wrongs.lines().len(), 1);
        Ok(())
    }
}
