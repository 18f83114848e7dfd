//! How many more pages would come back with less memory than the run had, from how long pages were away.
//!
//! Accesses to pages that are there make no fault, so no event tells what a smaller memory would have missed. But evictors have no access bits:
//! they send pages away nearly without regard to their use. So each eviction is a *look* at one page of those that are there, at a moment that has nothing
//! to do with its accesses, and the time until the page comes back is the time `r` until it would have been accessed. While nothing leaves, a few pages are
//! sent away for a look ([`super::asked`]).
//!
//! ```text
//!     there           looked at          wanted
//!   ──────────────────────┬──────── r ─────┬──────
//! ```
//!
//! Let a memory send away each of its pages after a time that has nothing to do with its use, τ on average. A page is there at a moment if it was not sent
//! away since it was accessed last, and of a program that goes on as it does the time since the last access is as long as the time until the next one: it is there with
//! probability `E[exp(-r/τ)]`. Summed up over all pages, those that are there (by looks) and those that are away (which tell of each moment `t` since they left),
//! that is what fits a memory of this τ:
//!
//! ```text
//!   held(τ) = there · mean of exp(-r/τ) over looks  +  sum over pages away of exp(-t/τ)
//! ```
//!
//! So τ follows from a memory's size, and of `held(τ) / τ` pages that leave in a unit of time all come back but those that leave for ever. No law is assumed of how a page
//! is accessed: for pages at random this is what Gelenbe found (IEEE Transactions on Computers 1973) and Che, Tung and Wang made for LRU (IEEE JSAC 2002), with
//! each page's rate, which one or two looks do not tell; the mean over pages they do.
//!
//! A program has phases, so the run is cut into *slices*, each with a τ of its own. Time is the run's own, as its progress. Looks that nobody has seen end are taken to
//! end as those that were followed for longer (Kaplan and Meier, JASA 1958).

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::LazyLock;

use farshore_replay::sample::Sample;

use super::ghosts::Mixed;

/// Pages that are followed at a time, at most.
const PAGES_MOST: usize = 1 << 16;
/// Times are told apart by an eighth of their doubling.
const EIGHTHS: f64 = 8.0;
/// As many different times as there are.
const TIMES: usize = 64 * EIGHTHS as usize;
/// Fewer looks that ended tell nothing.
const LOOKS_LEAST: f64 = 256.0;
/// So many slices at most, …
const SLICES_MOST: usize = 64;
/// … of at least this time, ns.
const SLICE_LEAST: u64 = 125_000_000;
/// A slice with fewer looks is one with the next.
const LOOKS_A_SLICE: f64 = 48.0;

/// What is known of pages that come and go.
#[derive(Debug)]
pub struct Looks {
    sample: Sample,
    most: usize,
    /// Those that are away.
    away: HashMap<u64, Away, BuildHasherDefault<Mixed>>,
    slices: Vec<Slice>,
    slice_ns: u64,
    begun_ns: u64,
    now_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Away {
    since_ns: u64,
    /// It was sent away for a look, and would have been there.
    asked: bool,
}

/// A part of the run.
#[derive(Clone, Debug)]
struct Slice {
    ns: f64,
    /// What was there: pages times ns.
    held: f64,
    /// Looks by how long it took until the page was wanted.
    back: Vec<f64>,
    /// Looks at pages that were wanted no more.
    never: f64,
    /// Pages that left for ever, by themselves.
    lost: f64,
    /// How many times pages were away in all of their time within the slice, by how long.
    whole: Vec<f64>,
    /// What pages were away in the slice of which it has not all, by how long they were then away: ns.
    moments: Vec<f64>,
    /// Pages that came back by a read, …
    fetched: f64,
    /// … and before they were written.
    rescued: f64,
}

/// What less memory does.
#[derive(Debug)]
pub struct Fewer {
    slices: Vec<Slice>,
    /// The run's, pages.
    room: f64,
    /// How many came by a read, by the same reckoning and as counted; the larger.
    reads: (f64, f64),
}

impl Default for Looks {
    fn default() -> Looks {
        Looks::with(PAGES_MOST)
    }
}

impl Slice {
    fn new() -> Slice {
        let none = vec![0.0; TIMES];
        Slice {
            ns: 0.0,
            held: 0.0,
            back: none.clone(),
            never: 0.0,
            lost: 0.0,
            whole: none.clone(),
            moments: none,
            fetched: 0.0,
            rescued: 0.0,
        }
    }

    /// Takes what another one has.
    fn join(&mut self, other: &Slice) {
        for (sum, one) in [
            (&mut self.ns, other.ns),
            (&mut self.held, other.held),
            (&mut self.never, other.never),
            (&mut self.lost, other.lost),
            (&mut self.fetched, other.fetched),
            (&mut self.rescued, other.rescued),
        ] {
            *sum += one;
        }
        for (all, ones) in [(&mut self.back, &other.back), (&mut self.whole, &other.whole), (&mut self.moments, &other.moments)] {
            all.iter_mut().zip(ones).for_each(|(sum, one)| *sum += one);
        }
    }

    fn looks(&self) -> f64 {
        self.back.iter().sum::<f64>() + self.never
    }

    /// So many pages fit, if each stays for `stay` ns.
    fn fits(&self, stay: f64) -> f64 {
        let wanted = |times: &[f64], value: &dyn Fn(f64) -> f64| -> f64 {
            times.iter().enumerate().filter(|(_, count)| **count > 0.0).map(|(n, count)| count * value(time(n))).sum()
        };
        let soon = |r: f64| (-r / stay).exp();
        let there = self.held * wanted(&self.back, &soon) / self.looks().max(1.0);
        let away = wanted(&self.whole, &|r| stay * -(-r / stay).exp_m1()) + wanted(&self.moments, &soon);
        (there + away) / self.ns
    }

    /// How many pages come back by a read, with room for so many.
    fn reads(&self, room: f64) -> f64 {
        let (mut low, mut high) = (1.0_f64, (TIMES as f64 / EIGHTHS).exp2());
        if self.ns <= 0.0 || self.fits(high) <= room {
            return 0.0;
        }
        for _ in 0..50 {
            let middle = (low * high).sqrt();
            if self.fits(middle) <= room { low = middle } else { high = middle }
        }
        let came = self.fetched + self.rescued;
        let by_read = if came > 0.0 { self.fetched / came } else { 1.0 };
        (self.ns * room / low - self.lost).max(0.0) * by_read
    }
}

impl Looks {
    /// Follows at most so many pages at a time.
    fn with(most: usize) -> Looks {
        Looks {
            sample: Sample::default(),
            most,
            away: HashMap::default(),
            slices: Vec::new(),
            slice_ns: SLICE_LEAST,
            begun_ns: 0,
            now_ns: 0,
        }
    }

    /// It is so late, and so many pages were there since the last time.
    pub fn at(&mut self, ns: u64, pages: f64) {
        if self.slices.is_empty() {
            (self.begun_ns, self.now_ns) = (ns, ns);
            self.slices.push(Slice::new());
        }
        while self.now_ns < ns {
            let until = ns.min(self.begun_ns + self.slices.len() as u64 * self.slice_ns);
            let last = self.slices.last_mut().expect("there is one");
            let passed = (until - self.now_ns) as f64;
            last.ns += passed;
            last.held += passed * pages;
            self.now_ns = until;
            if until < ns {
                self.slices.push(Slice::new());
            }
            if self.slices.len() > SLICES_MOST {
                self.slice_ns *= 2;
                self.slices = self.slices.chunks(2).map(joined).collect();
            }
        }
    }

    /// A page has left; `asked`: for a look.
    pub fn left(&mut self, page: u64, ns: u64, asked: bool) {
        if !asked && !self.sample.has(page) {
            return;
        }
        self.away.insert(page, Away { since_ns: ns, asked });
        if self.away.len() > self.most {
            self.sample.thin_out();
            let sample = self.sample;
            self.away.retain(|&page, away| away.asked || sample.has(page));
        }
    }

    /// A page has come back: by a read, or before it was written. Whether it had left for a look.
    pub fn came(&mut self, page: u64, ns: u64, read: bool) -> bool {
        let weight = 1.0 / self.sample.rate();
        let Some(away) = self.away.remove(&page) else { return false };
        // Events of two threads may be told in another order.
        let ns = ns.max(away.since_ns + 1);
        let took = ns - away.since_ns;
        let place = self.place(away.since_ns);
        let Some(slice) = self.slices.get_mut(place) else { return away.asked };
        slice.back[bucket(took as f64)] += 1.0;
        if away.asked {
            return true;
        }
        *(if read { &mut slice.fetched } else { &mut slice.rescued }) += weight;
        self.was_away(away.since_ns, ns, weight);
        false
    }

    /// Pages are not there any more.
    pub fn gone(&mut self, first: u64, pages: u64, ns: u64) {
        let within = |page: u64| page.wrapping_sub(first) < pages;
        let gone: Vec<u64> = if pages < self.away.len() as u64 {
            (first..first.saturating_add(pages)).filter(|page| self.away.contains_key(page)).collect()
        } else {
            self.away.keys().copied().filter(|&page| within(page)).collect()
        };
        let weight = 1.0 / self.sample.rate();
        for page in gone {
            let Some(away) = self.away.remove(&page) else { continue };
            let place = self.place(away.since_ns);
            let Some(slice) = self.slices.get_mut(place) else { continue };
            slice.never += 1.0;
            if !away.asked {
                slice.lost += weight;
                self.was_away(away.since_ns, ns.max(away.since_ns + 1), weight);
            }
        }
    }

    fn place(&self, ns: u64) -> usize {
        (ns.saturating_sub(self.begun_ns) / self.slice_ns) as usize
    }

    /// A page was away from then to then.
    fn was_away(&mut self, from: u64, to: u64, weight: f64) {
        let (first, last) = (self.place(from), self.place(to));
        for place in first..=last {
            let begin = self.begun_ns + place as u64 * self.slice_ns;
            let Some(slice) = self.slices.get_mut(place) else { return };
            if first == last {
                slice.whole[bucket((to - from) as f64)] += weight;
            } else {
                let (low, high) = (from.max(begin) - from, to.min(begin + self.slice_ns) - from);
                spread(&mut slice.moments, low as f64, high as f64, weight);
            }
        }
    }

    /// What less memory would do to a run that ends now and had room for so many pages. None: too little has come back to tell.
    pub fn fewer(&self, room: f64) -> Option<Fewer> {
        let ended: f64 = self.slices.iter().flat_map(|slice| &slice.back).sum();
        if ended < LOOKS_LEAST {
            return None;
        }
        let slices = joined_until_known(&self.to_their_ends().slices);
        let (reads, counted) = (reads(&slices, room), slices.iter().map(|slice| slice.fetched).sum());
        let most = reads.max(counted);
        (most > 0.0).then_some(Fewer { slices, room, reads: (reads, most) })
    }

    /// The same, with the looks that go on ended as those were that were followed for longer.
    fn to_their_ends(&self) -> Looks {
        let mut all = Looks { away: HashMap::default(), slices: self.slices.clone(), ..*self };
        // By how long they were followed: those that ended, and those that did not.
        let (mut ended, mut going) = (vec![0.0; TIMES], vec![0.0; TIMES]);
        self.slices.iter().for_each(|slice| slice.back.iter().zip(&mut ended).for_each(|(one, sum)| *sum += one));
        let mut never: f64 = self.slices.iter().map(|slice| slice.never).sum();
        let mut groups: HashMap<(usize, usize, bool), f64> = HashMap::new();
        for away in self.away.values() {
            let followed = bucket(self.now_ns.saturating_sub(away.since_ns).max(1) as f64);
            going[followed] += 1.0;
            *groups.entry((self.place(away.since_ns), followed, away.asked)).or_default() += 1.0;
        }
        // The part that is wanted at a time, of those that are not wanted before.
        let mut hazard = vec![0.0; TIMES];
        for n in (0..TIMES).rev() {
            never += ended[n] + going[n];
            hazard[n] = if never > 0.0 { ended[n] / never } else { 0.0 };
        }
        let weight = 1.0 / self.sample.rate();
        for ((place, followed, asked), count) in groups {
            let mut still = count;
            for (n, part) in hazard.iter().enumerate().skip(followed + 1) {
                let now = still * part;
                if now <= 0.0 {
                    continue;
                }
                still -= now;
                if let Some(slice) = all.slices.get_mut(place) {
                    slice.back[n] += now;
                }
            }
            if let Some(slice) = all.slices.get_mut(place) {
                slice.never += still;
                slice.lost += if asked { 0.0 } else { still * weight };
            }
        }
        for away in self.away.values().filter(|away| !away.asked) {
            all.was_away(away.since_ns, self.now_ns.max(away.since_ns + 1), weight);
        }
        all
    }
}

impl Fewer {
    /// How many times as many pages come back by a read with this part of the memory.
    pub fn times(&self, part: f64) -> f64 {
        if part >= 1.0 {
            return 1.0;
        }
        // What is reckoned of the run itself may be less than what was counted: then what is added counts, and not the ratio of small numbers.
        1.0 + (reads(&self.slices, self.room * part) - self.reads.0).max(0.0) / self.reads.1
    }
}

/// How many pages come back by a read, with room for so many.
fn reads(slices: &[Slice], room: f64) -> f64 {
    slices.iter().map(|slice| slice.reads(room)).sum()
}

fn joined(slices: &[Slice]) -> Slice {
    let mut all = slices[0].clone();
    slices[1..].iter().for_each(|slice| all.join(slice));
    all
}

/// Slices that have enough looks: each with the next ones until it has, the last one with the one before.
fn joined_until_known(slices: &[Slice]) -> Vec<Slice> {
    let mut known: Vec<Slice> = Vec::new();
    for slice in slices {
        match known.last_mut() {
            Some(last) if last.looks() < LOOKS_A_SLICE => last.join(slice),
            _ => known.push(slice.clone()),
        }
    }
    if let [.., before, last] = &mut known[..]
        && last.looks() < LOOKS_A_SLICE
    {
        before.join(last);
        known.pop();
    }
    known
}

/// Spreads moments from `low` to `high` ns after a page has left over the times that there are.
fn spread(moments: &mut [f64], low: f64, high: f64, weight: f64) {
    // What is smaller than a hundredth of it is all one.
    let (mut from, mut n) = (low, bucket(low.max(high / 128.0).max(1.0)));
    while from < high && n < TIMES {
        let to = if n + 1 == TIMES { high } else { edge(n + 1).min(high) };
        moments[n] += (to - from).max(0.0) * weight;
        (from, n) = (to.max(from), n + 1);
    }
}

fn bucket(ns: f64) -> usize {
    ((ns.log2() * EIGHTHS) as usize).min(TIMES - 1)
}

fn edge(bucket: usize) -> f64 {
    // Asked dozens of times for each page that comes.
    static EDGES: LazyLock<Vec<f64>> = LazyLock::new(|| (0..TIMES).map(|bucket| (bucket as f64 / EIGHTHS).exp2()).collect());
    EDGES[bucket]
}

fn time(bucket: usize) -> f64 {
    ((bucket as f64 + 0.5) / EIGHTHS).exp2()
}

#[cfg(test)]
mod tests {
    use super::super::ghosts::tests::Random;
    use super::*;
    use std::collections::HashSet;

    /// Between two accesses of a trace, ns.
    const TURN: u64 = 10_000;

    /// A memory that sends away any page: misses after all pages were touched once, and what was heard. Each `look_every` turns a page that is there is looked
    /// at, once something has left.
    fn run(trace: &[u64], room: usize, seed: u64, look_every: u64) -> (f64, Looks) {
        let (mut random, mut there, mut here, mut known) = (Random(seed), Vec::new(), HashSet::new(), HashSet::new());
        let (mut looks, mut misses, mut asked) = (Looks::with(1 << 12), 0.0, HashSet::new());
        for (turn, &page) in trace.iter().enumerate() {
            let ns = turn as u64 * TURN + 1;
            looks.at(ns, there.len() as f64);
            if look_every > 0 && (turn as u64).is_multiple_of(look_every) && there.len() == room {
                let page: u64 = there[random.below(room as u64) as usize];
                if asked.insert(page) {
                    looks.left(page, ns, true);
                }
            }
            if asked.remove(&page) {
                assert!(looks.came(page, ns, true));
            }
            if !here.insert(page) {
                continue;
            }
            if there.len() == room {
                let victim = there.swap_remove(random.below(room as u64) as usize);
                here.remove(&victim);
                // One that is looked at stays away.
                if !asked.remove(&victim) {
                    looks.left(victim, ns, false);
                }
            }
            there.push(page);
            if !known.insert(page) {
                misses += 1.0;
                looks.came(page, ns, true);
            }
        }
        looks.at(trace.len() as u64 * TURN, there.len() as f64);
        (misses, looks)
    }

    /// Traces, how often a page is looked at, and how much may be told wrongly.
    fn traces() -> Vec<(&'static str, Vec<u64>, u64, f64)> {
        let (pages, length) = (4000_u64, 400_000_u64);
        let mut random = Random(7);
        let mut trace = |page: &mut dyn FnMut(&mut Random, u64) -> u64| -> Vec<u64> {
            (0..length).map(|turn| page(&mut random, turn)).collect()
        };
        vec![
            ("uniform", trace(&mut |random, _| random.below(pages)), 0, 0.1),
            (
                "hot",
                trace(&mut |random, _| if random.below(10) < 9 { random.below(pages / 3) } else { random.below(pages) }),
                0,
                0.1,
            ),
            ("skewed", trace(&mut |random, _| random.below(random.0 % pages + 1)), 0, 0.1),
            ("loop", trace(&mut |_, turn| turn % pages), 0, 0.1),
            ("phases", trace(&mut |random, turn| random.below(pages / 4 * 3) + turn * 4 / length % 2 * (pages / 4)), 0, 0.1),
            // In each second phase all that is used fits the run, and not half of it.
            (
                "fits now and then",
                trace(&mut |random, turn| random.below(if turn * 8 / length % 2 == 0 { pages } else { pages * 2 / 5 })),
                100,
                0.13,
            ),
        ]
    }

    #[test]
    fn less_memory_is_told_from_one_run() {
        let mut wrong = Vec::new();
        for (name, trace, look_every, off) in traces() {
            let (misses, looks) = run(&trace, 2000, 3, look_every);
            let fewer = looks.fewer(2000.0).expect("enough has come back");
            for part in [0.75, 0.5, 0.25] {
                let (less, _) = run(&trace, (2000.0 * part) as usize, 5, 0);
                let (told, took) = (fewer.times(part), less / misses);
                if !((1.0 - off)..(1.0 + off)).contains(&(told / took)) {
                    wrong.push(format!("{name}, {part} of the memory: told {told:.2}, took {took:.2} times as many of {misses}"));
                }
            }
            assert!((fewer.times(1.0) - 1.0).abs() < 1e-9);
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn what_never_came_back_tells_nothing() {
        let mut looks = Looks::default();
        looks.at(1, 100.0);
        (1..10_000).for_each(|page| looks.left(page, page, false));
        looks.at(20_000, 100.0);
        assert!(looks.fewer(100.0).is_none());
    }

    #[test]
    fn pages_that_are_gone_are_followed_no_more() {
        let mut looks = Looks::default();
        looks.at(1, 0.0);
        (0..1000).for_each(|page| looks.left(page, page + 1, page % 2 == 0));
        looks.gone(0, 10, 2000);
        looks.gone(500, u64::MAX - 500, 2000);
        assert_eq!(looks.away.len(), 490);
        assert!(!looks.came(4, 3000, true) && looks.came(12, 3000, true) && !looks.came(13, 3000, true));
        assert_eq!((looks.slices[0].never, looks.slices[0].lost), (510.0, 255.0));
    }

    #[test]
    fn a_long_run_has_longer_slices() {
        let mut looks = Looks::default();
        looks.at(5, 0.0);
        for second in 1..=1000 {
            looks.at(5 + second * 1_000_000_000, second as f64);
        }
        assert!(looks.slices.len() <= SLICES_MOST && looks.slice_ns > SLICE_LEAST);
        let ns: f64 = looks.slices.iter().map(|slice| slice.ns).sum();
        let held: f64 = looks.slices.iter().map(|slice| slice.held).sum();
        assert_eq!((ns, held), (1e12, 500_500.0 * 1e9));
    }
}
