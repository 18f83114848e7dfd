//! How many more pages would come back with less memory than the run had, from how long pages were away.
//!
//! Accesses to pages that are there make no fault, so no event tells what a smaller memory would have missed. But evictors have no access bits:
//! they send pages away nearly without regard to their use. So each eviction is a look at one page at a moment that has nothing to do with its accesses, and **the time until it comes
//! back is the time until it would have been accessed**. That is the page's rate of accesses, before and after.
//!
//! ```text
//!        away a₀       there t          away a₁
//!   ────────────────┬────────────────┬──────────────┬──
//!                comes             leaves         comes
//! ```
//!
//! With less memory the hands go round faster, and each visit is shorter by one factor, s. After it the page is away as long as before, as long as nobody wants it. So
//! in the time `t₁ + a₁` it comes `(t₁ + a₁) / (st + a)` times, with the means of its last visits `t` and `a`, and it is there for the part `st / (st + a)` of it. The factor is
//! the one with which what is there fits the smaller memory (as the characteristic time is found in Che, Tung and Wang, Hierarchical Web Caching Systems,
//! IEEE JSAC 2002, and for random replacement by Gelenbe, 1973). Time is the run's own, as its progress: in a phase in which the program waits a lot both
//! times are long.
//!
//! Pages that were there all the time have told nothing. They are taken to be wanted as often as the median visit.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use farshore_replay::sample::Sample;

use super::ghosts::Mixed;

/// Pages that are followed at a time, at most.
const PAGES_MOST: usize = 1 << 16;
/// Times are told apart by an eighth of their doubling.
const EIGHTHS: f64 = 8.0;
/// A page's times are means of so many.
const LAST: u8 = 8;
/// Fewer visits than these tell nothing.
const VISITS_LEAST: f64 = 256.0;

/// What is known of pages that come and go.
#[derive(Debug)]
pub struct Visits {
    sample: Sample,
    most: usize,
    pages: HashMap<u64, Page, BuildHasherDefault<Mixed>>,
    /// Visits by the times (there, away).
    cells: HashMap<(u16, u16), Cell>,
    /// How many visits have been seen, as they came.
    seen: f64,
    first_ns: Option<u64>,
}

/// A page of the sample.
#[derive(Clone, Copy, Debug)]
struct Page {
    /// Since when it is there, or away.
    since_ns: u64,
    here: bool,
    /// How long it was there last; none: nobody has seen it come.
    stayed_ns: Option<u64>,
    /// How long it was there since the first page has left, until it left for the first time, if it was there all that time.
    first_ns: u64,
    there: Mean,
    away: Mean,
}

/// The mean of the last times, ns.
#[derive(Clone, Copy, Default, Debug)]
struct Mean {
    ns: f32,
    count: u8,
}

impl Mean {
    fn add(&mut self, ns: u64) {
        self.count = (self.count + 1).min(LAST);
        self.ns += (ns as f32 - self.ns) / f32::from(self.count);
    }

    fn known(self) -> Option<u16> {
        (self.count > 0).then(|| bucket(self.ns.max(1.0)))
    }
}

impl Page {
    /// Adds its last visit, which nobody has seen end until `ns`.
    fn end(self, ns: u64, weight: f64, cells: &mut HashMap<(u16, u16), Cell>) {
        let now = ns.saturating_sub(self.since_ns).max(1);
        let (mut there, mut away) = (self.there, self.away);
        let stayed = if self.here { Some(now) } else { self.stayed_ns };
        there.add(stayed.unwrap_or(self.first_ns.max(1)));
        if !self.here && away.count == 0 {
            away.add(now);
        }
        if let (Some(there), Some(away)) = (there.known(), away.known()) {
            let cell = cells.entry((there, away)).or_default();
            cell.ns += stayed.unwrap_or(0) as f64 * weight;
            cell.first_ns += self.first_ns as f64 * weight;
        }
    }
}

/// Visits of pages whose means are alike, and what they took: for the pages that they stand for, ns.
#[derive(Clone, Copy, Default, Debug)]
struct Cell {
    ns: f64,
    /// What their pages may have been there before anybody has seen them come, ns.
    first_ns: f64,
    /// How many of them came back by a read, …
    fetched: f64,
    /// … and how many before they were written.
    rescued: f64,
}

/// What less memory does.
#[derive(Debug)]
pub struct Fewer {
    cells: Vec<(f64, f64, Cell)>,
    /// What was there, pages times ns, …
    held: f64,
    /// … and how many came by a read, by the same reckoning.
    reads: f64,
}

impl Default for Visits {
    fn default() -> Visits {
        Visits::with(PAGES_MOST)
    }
}

impl Visits {
    /// Follows at most so many pages at a time.
    fn with(most: usize) -> Visits {
        Visits { sample: Sample::default(), most, pages: HashMap::default(), cells: HashMap::new(), seen: 0.0, first_ns: None }
    }

    /// A page has left.
    pub fn left(&mut self, page: u64, ns: u64) {
        let first_ns = ns.saturating_sub(*self.first_ns.get_or_insert(ns));
        if !self.sample.has(page) {
            return;
        }
        let known = self.pages.entry(page).or_insert(Page {
            since_ns: ns,
            here: false,
            stayed_ns: None,
            first_ns,
            there: Mean::default(),
            away: Mean::default(),
        });
        if known.here {
            known.stayed_ns = Some(ns.saturating_sub(known.since_ns).max(1));
        }
        (known.since_ns, known.here) = (ns, false);
        if self.pages.len() > self.most {
            self.sample.thin_out();
            let sample = self.sample;
            self.pages.retain(|&page, _| sample.has(page));
        }
    }

    /// A page has come back: by a read, or before it was written.
    pub fn came(&mut self, page: u64, ns: u64, read: bool) {
        let Some(known) = self.pages.get_mut(&page).filter(|known| !known.here) else { return };
        let away = ns.saturating_sub(known.since_ns).max(1);
        known.away.add(away);
        (known.since_ns, known.here) = (ns, true);
        let Some(stayed) = known.stayed_ns.take() else { return };
        known.there.add(stayed);
        let (Some(there), Some(mean)) = (known.there.known(), known.away.known()) else { return };
        let weight = 1.0 / self.sample.rate();
        self.seen += 1.0;
        let cell = self.cells.entry((there, mean)).or_default();
        cell.ns += (stayed + away) as f64 * weight;
        cell.first_ns += std::mem::take(&mut known.first_ns) as f64 * weight;
        *(if read { &mut cell.fetched } else { &mut cell.rescued }) += weight;
    }

    /// Pages are not there any more.
    pub fn gone(&mut self, first: u64, pages: u64, ns: u64) {
        let within = |page: u64| page.wrapping_sub(first) < pages;
        let gone: Vec<u64> = if pages < self.pages.len() as u64 {
            (first..first.saturating_add(pages)).filter(|page| self.pages.contains_key(page)).collect()
        } else {
            self.pages.keys().copied().filter(|&page| within(page)).collect()
        };
        for page in gone {
            if let Some(page) = self.pages.remove(&page) {
                page.end(ns, 1.0 / self.sample.rate(), &mut self.cells);
            }
        }
    }

    /// What less memory would do to a run that ends now, with so many pages there. None: too little has come back to tell.
    pub fn fewer(&self, ns: u64, resident: f64) -> Option<Fewer> {
        if self.seen < VISITS_LEAST {
            return None;
        }
        let weight = 1.0 / self.sample.rate();
        let here = self.pages.values().filter(|page| page.here).count() as f64 * weight;
        let mut cells = self.cells.clone();
        self.pages.values().for_each(|page| page.end(ns, weight, &mut cells));
        // Pages that have never left.
        let whole = ns.saturating_sub(self.first_ns.unwrap_or(ns)).max(1);
        cells.entry((bucket(whole as f32), self.median_away())).or_default().ns += (resident - here).max(0.0) * whole as f64;
        let mut cells: Vec<_> = cells.into_iter().map(|((there, away), cell)| (time(there), time(away), cell)).collect();
        // So much of what was there nobody has seen come. Pages that came later than the first one left are among those that may have been there.
        let missing = (resident * whole as f64 - held(&cells, 1.0)).max(0.0);
        let first: f64 = cells.iter().map(|&(there, away, cell)| cell.first_ns * there / (there + away)).sum();
        let part = if first > 0.0 { (missing / first).min(1.0) } else { 0.0 };
        cells.iter_mut().for_each(|(.., cell)| cell.ns += cell.first_ns * part);
        let (held, reads) = (held(&cells, 1.0), reads(&cells, 1.0));
        (reads > 0.0).then_some(Fewer { cells, held, reads })
    }

    fn median_away(&self) -> u16 {
        let mut away: Vec<(u16, f64)> = self.cells.iter().map(|(&(_, away), cell)| (away, cell.fetched)).collect();
        away.sort_by_key(|&(away, _)| away);
        let half = away.iter().map(|(_, count)| count).sum::<f64>() / 2.0;
        let mut sum = 0.0;
        let median = away.iter().find(|(_, count)| {
            sum += count;
            sum >= half
        });
        median.map_or(0, |&(away, _)| away)
    }
}

impl Fewer {
    /// How many times as many pages come back by a read with this part of the memory.
    pub fn times(&self, part: f64) -> f64 {
        if part >= 1.0 { 1.0 } else { reads(&self.cells, self.factor(part)) / self.reads }
    }

    /// By which factor visits are shorter if there is room for this part of what was there.
    fn factor(&self, part: f64) -> f64 {
        let (mut low, mut high) = (1e-9_f64, 1.0_f64);
        for _ in 0..60 {
            let middle = (low * high).sqrt();
            if held(&self.cells, middle) <= self.held * part { low = middle } else { high = middle }
        }
        low
    }
}

/// What is there, pages times ns, if visits are shorter by this factor.
fn held(cells: &[(f64, f64, Cell)], s: f64) -> f64 {
    cells.iter().map(|&(there, away, cell)| cell.ns * s * there / (s * there + away)).sum()
}

/// How many pages come by a read, if visits are shorter by this factor. Those of which nothing has come back come so.
fn reads(cells: &[(f64, f64, Cell)], s: f64) -> f64 {
    let by_read = |cell: Cell| if cell.fetched + cell.rescued > 0.0 { cell.fetched / (cell.fetched + cell.rescued) } else { 1.0 };
    cells.iter().map(|&(there, away, cell)| cell.ns / (s * there + away) * by_read(cell)).sum()
}

fn bucket(ns: f32) -> u16 {
    (f64::from(ns).log2() * EIGHTHS) as u16
}

fn time(bucket: u16) -> f64 {
    ((f64::from(bucket) + 0.5) / EIGHTHS).exp2()
}

#[cfg(test)]
mod tests {
    use super::super::ghosts::tests::Random;
    use super::*;
    use std::collections::HashSet;

    /// A memory that sends away any page: misses after all pages were touched once, and what was heard.
    fn run(trace: &[u64], room: usize, seed: u64) -> (f64, Visits) {
        let (mut random, mut there, mut here, mut known) = (Random(seed), Vec::new(), HashSet::new(), HashSet::new());
        let (mut visits, mut misses) = (Visits::with(1 << 12), 0.0);
        for (turn, &page) in trace.iter().enumerate() {
            let ns = turn as u64 * 100 + 1;
            if !here.insert(page) {
                continue;
            }
            if there.len() == room {
                let victim = there.swap_remove(random.below(room as u64) as usize);
                here.remove(&victim);
                visits.left(victim, ns);
            }
            there.push(page);
            if !known.insert(page) {
                misses += 1.0;
                visits.came(page, ns, true);
            }
        }
        (misses, visits)
    }

    /// Traces, and how much too many may be told. A loop does not forget how long a page was away, which is taken for granted.
    fn traces() -> Vec<(&'static str, Vec<u64>, f64)> {
        let (pages, length) = (4000_u64, 200_000_u64);
        let mut random = Random(7);
        let mut trace = |page: &mut dyn FnMut(&mut Random, u64) -> u64| -> Vec<u64> {
            (0..length).map(|turn| page(&mut random, turn)).collect()
        };
        vec![
            ("uniform", trace(&mut |random, _| random.below(pages)), 0.1),
            (
                "hot",
                trace(&mut |random, _| if random.below(10) < 9 { random.below(pages / 3) } else { random.below(pages) }),
                0.15,
            ),
            ("skewed", trace(&mut |random, _| random.below(random.0 % pages + 1)), 0.1),
            ("loop", trace(&mut |_, turn| turn % pages), 0.5),
            ("phases", trace(&mut |random, turn| random.below(pages / 4 * 3) + turn * 4 / length % 2 * (pages / 4)), 0.15),
        ]
    }

    #[test]
    fn less_memory_is_told_from_one_run() {
        for (name, trace, off) in traces() {
            let (misses, visits) = run(&trace, 2000, 3);
            let fewer = visits.fewer(trace.len() as u64 * 100, 2000.0).expect("enough has come back");
            for part in [0.75, 0.5, 0.25] {
                let (less, _) = run(&trace, (2000.0 * part) as usize, 5);
                let (told, took) = (fewer.times(part), less / misses);
                assert!(
                    told / took > 0.88 && told / took < 1.0 + off,
                    "{name}, {part} of the memory: told {told:.2}, took {took:.2} times as many of {misses}"
                );
            }
            assert!((fewer.times(1.0) - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn what_never_came_back_tells_nothing() {
        let mut visits = Visits::default();
        (0..10_000).for_each(|page| visits.left(page, page));
        assert!(visits.fewer(20_000, 100.0).is_none());
    }

    #[test]
    fn pages_that_are_gone_are_followed_no_more() {
        let mut visits = Visits::default();
        (0..1000).for_each(|page| visits.left(page, page + 1));
        visits.gone(0, 10, 2000);
        visits.gone(500, u64::MAX - 500, 2000);
        assert_eq!(visits.pages.len(), 490);
        visits.came(3, 3000, true);
        assert!(!visits.pages.contains_key(&3));
    }
}
