//! `hotset`: most accesses go to few of the pages, which are scattered over the memory.

use farshore_load::outcome::Outcome;
use farshore_load::workload;
use rand::RngExt;
use rand::distr::{Bernoulli, Distribution};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::scatter::Permutation;
use super::{Access, accessed};
use crate::memory::{Contents, Memory, PAGE, generator, mix};
use crate::report::Report;
use crate::team::{self, Stage};
use crate::verify;

/// Runs it.
///
/// # Errors
/// If memory or threads are not to be had.
pub fn run(args: &workload::Hotset, report: &mut Report) -> Result<Outcome, String> {
    let common = &args.common;
    let memory = Memory::new(common.size)?;
    let contents = Contents::new(common.seed);
    let hot = hot_pages(memory.pages(), args.hot_pages);
    let places = Permutation::new(memory.pages() as u64, mix(common.seed));
    let goes_hot =
        Bernoulli::new(args.hot_accesses / 100.0).map_err(|error| format!("--hot-accesses {}: {error}", args.hot_accesses))?;
    verify::fill(&memory, contents, common.threads, report)?;
    let worker = |thread| Worker {
        access: Access::new(&memory, contents, args.mode),
        random: generator(common.seed, thread),
        picks: Picks { pages: memory.pages(), hot, goes_hot, places: places.clone() },
    };
    let (total, workers) = team::timed(common, report, None, worker)?;
    let accesses = workers.into_iter().map(|worker| worker.access).collect();
    let outcome = accessed(&memory, contents, args.mode, common.threads, report, accesses)?;
    Ok(Outcome { bytes_per_operation: PAGE as u64, ..super::measured(outcome, total) })
}

/// How many pages are hot: at least one.
// Percentages of a number of pages, far below 2^53.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn hot_pages(pages: usize, percent: f64) -> usize {
    ((pages as f64 * percent / 100.0).round() as usize).clamp(1, pages)
}

struct Worker<'a> {
    access: Access<'a>,
    random: Xoshiro256PlusPlus,
    picks: Picks,
}

impl team::Worker for Worker<'_> {
    fn operate(&mut self, _: Stage) {
        let page = self.picks.page(&mut self.random);
        self.access.page(page, &mut self.random);
    }
}

/// Which page is next.
struct Picks {
    pages: usize,
    hot: usize,
    goes_hot: Bernoulli,
    places: Permutation,
}

impl Picks {
    fn page(&self, random: &mut Xoshiro256PlusPlus) -> usize {
        let all_are_hot = self.hot == self.pages;
        let ranks = if all_are_hot || self.goes_hot.sample(random) { 0..self.hot } else { self.hot..self.pages };
        super::place(&self.places, random.random_range(ranks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(pages: usize, percent: f64, accesses: f64) -> Result<Vec<u32>, String> {
        let goes_hot = Bernoulli::new(accesses / 100.0).map_err(|error| error.to_string())?;
        let picks = Picks { pages, hot: hot_pages(pages, percent), goes_hot, places: Permutation::new(pages as u64, 3) };
        let mut random = generator(1, 0);
        let mut counts = vec![0; pages];
        (0..100_000).for_each(|_| counts[picks.page(&mut random)] += 1);
        Ok(counts)
    }

    #[test]
    fn a_tenth_of_the_pages_gets_nine_tenths() -> Result<(), String> {
        let mut counts = counts(1000, 10.0, 90.0)?;
        let low: u32 = counts[..500].iter().sum();
        assert!((40_000..60_000).contains(&low), "not scattered: {low}");
        counts.sort_unstable();
        let hot: u32 = counts[900..].iter().sum();
        assert!((89_500..90_500).contains(&hot), "{hot}");
        // Within each set all are alike: 11 and 900 on average.
        assert!(counts[899] < 40 && counts[900] > 700, "{:?}", &counts[895..905]);
        Ok(())
    }

    #[test]
    fn the_ends_of_the_percentages_work() -> Result<(), String> {
        assert_eq!(counts(100, 0.0, 100.0)?.iter().filter(|count| **count > 0).count(), 1);
        assert_eq!(counts(100, 100.0, 0.0)?.iter().filter(|count| **count > 0).count(), 100);
        assert_eq!(counts(100, 10.0, 0.0)?.iter().filter(|count| **count > 0).count(), 90);
        Ok(())
    }
}
