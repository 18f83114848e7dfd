//! `gups-move`: Zipf-distributed updates in one region; when half of the time is over, they move to another one.
//!
//! The popular pages are scattered over their region: popularity is a property of pages, not of places.

use farshore_load::outcome::Outcome;
use farshore_load::workload::{self, Mode};
use rand::distr::Distribution;
use rand_distr::Zipf;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::scatter::Permutation;
use super::{Access, accessed};
use crate::memory::{Contents, Memory, PAGE, generator, nth};
use crate::report::Report;
use crate::team::{self, Stage};
use crate::verify;

/// What the timeline is marked with.
const MOVE: &str = "the hot set moves";

/// Runs it.
///
/// # Errors
/// If memory or threads are not to be had, or if a region has no page.
pub fn run(args: &workload::GupsMove, report: &mut Report) -> Result<Outcome, String> {
    let common = &args.common;
    let memory = Memory::new(common.size)?;
    let contents = Contents::new(common.seed);
    let regions = regions(memory.pages(), args.first_region, args.zipf, common.seed)?;
    verify::fill(&memory, contents, common.threads, report)?;
    let worker = |thread| Worker {
        access: Access::new(&memory, contents, Mode::Update),
        random: generator(common.seed, thread),
        regions: regions.clone(),
    };
    let (total, workers) = team::timed(common, report, Some(MOVE), worker)?;
    let accesses = workers.into_iter().map(|worker| worker.access).collect();
    let outcome = accessed(&memory, contents, Mode::Update, common.threads, report, accesses)?;
    Ok(Outcome { bytes_per_operation: PAGE as u64, ..super::measured(outcome, total) })
}

struct Worker<'a> {
    access: Access<'a>,
    random: Xoshiro256PlusPlus,
    regions: [Region; 2],
}

impl team::Worker for Worker<'_> {
    fn operate(&mut self, stage: Stage) {
        let region = &self.regions[usize::from(stage == Stage::Moved)];
        let page = region.page(&mut self.random);
        self.access.page(page, &mut self.random);
    }
}

/// Neighbouring pages of which some are more popular than others.
#[derive(Clone, Debug)]
struct Region {
    first: usize,
    popularity: Zipf<f64>,
    last_rank: usize,
    places: Permutation,
}

impl Region {
    // Numbers of pages, far below 2^53.
    #[expect(clippy::cast_precision_loss)]
    fn new(first: usize, pages: usize, exponent: f64, seed: u64) -> Result<Self, String> {
        let popularity =
            Zipf::new(pages as f64, exponent).map_err(|error| format!("--zipf {exponent} over {pages} pages: {error}"))?;
        Ok(Region { first, popularity, last_rank: pages - 1, places: Permutation::new(pages as u64, seed) })
    }

    // Ranks are whole numbers from 1 on.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn page(&self, random: &mut Xoshiro256PlusPlus) -> usize {
        let rank = self.popularity.sample(random) as usize - 1;
        self.first + super::place(&self.places, rank.min(self.last_rank))
    }
}

#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn regions(pages: usize, first_region: f64, exponent: f64, seed: u64) -> Result<[Region; 2], String> {
    let first = (pages as f64 * first_region / 100.0).round() as usize;
    if first == 0 || first >= pages {
        return Err(format!(
            "--first-region {first_region} leaves no page to one of the two regions: give a percentage between 0 and 100"
        ));
    }
    Ok([Region::new(0, first, exponent, nth(seed, 0))?, Region::new(first, pages - first, exponent, nth(seed, 1))?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_region_is_kept_to_and_its_popular_pages_are_scattered() -> Result<(), String> {
        let pages = 1000;
        let mut random = generator(1, 0);
        for (region, range) in regions(pages, 80.0, 0.99, 1)?.iter().zip([0..800, 800..1000]) {
            let mut counts = vec![0_u32; pages];
            (0..100_000).for_each(|_| counts[region.page(&mut random)] += 1);
            let inside: u32 = counts[range.clone()].iter().sum();
            assert_eq!(inside, 100_000);
            let mut by_popularity: Vec<usize> = range.clone().collect();
            by_popularity.sort_by_key(|page| std::cmp::Reverse(counts[*page]));
            // 1/1 to 1/2 to 1/4: each rank r has about 1/r of what the first one has.
            let [first, second, fourth] = [0, 1, 3].map(|rank| f64::from(counts[by_popularity[rank]]));
            assert!((1.7..2.3).contains(&(first / second)), "{first} {second}");
            assert!((3.4..4.6).contains(&(first / fourth)), "{first} {fourth}");
            let popular = &by_popularity[..10];
            let middle = range.start + range.len() / 2;
            let low = popular.iter().filter(|page| **page < middle).count();
            assert!((1..10).contains(&low), "{popular:?}");
        }
        Ok(())
    }

    #[test]
    fn a_region_without_a_page_is_refused() {
        for percent in [0.0, 100.0, 0.001] {
            assert!(regions(256, percent, 0.99, 1).is_err(), "{percent}");
        }
        assert!(regions(2, 50.0, 0.0, 1).is_ok());
    }
}
