//! How many more pages would come back with less memory than the run had, from how long pages were away.
//!
//! Accesses to pages that are there make no fault, so no event tells what a smaller memory would have missed. But evictors have no access bits:
//! they send pages away nearly without regard to their use: those alone that came back soon are passed over some times, as events tell, and stand for so many more when they leave.
//! So each eviction is a *look* at one page of those that are there, at a moment that has nothing
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
use super::watch::Returns;

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
/// What a fault takes is known of a slice with so many.
const KNOWN_LEAST: f64 = 16.0;

/// What is known of pages that come and go.
#[derive(Debug)]
pub struct Looks {
    sample: Sample,
    most: usize,
    /// Those that are away.
    away: HashMap<u64, Away, BuildHasherDefault<Mixed>>,
    /// How often evictors pass those over that came back soon, before they leave again.
    chances: HashMap<u64, Since, BuildHasherDefault<Mixed>>,
    /// How many of them were asked to leave for a look.
    asked: usize,
    slices: Vec<Slice>,
    /// Looks that ended as the page came back.
    ended: f64,
    slice_ns: u64,
    begun_ns: u64,
    now_ns: u64,
    /// Faults that waited for a page, by how long.
    took: Vec<f64>,
}

#[derive(Clone, Copy, Debug)]
struct Away {
    since_ns: u64,
    /// It was sent away for a look, and would have been there.
    asked: bool,
    /// How many looks it stands for.
    looks: f64,
    /// Why evictors passed it over before.
    since: Since,
}

/// How long pages linger follows from how many are passed over, and that from how long they linger: in so many rounds.
const ROUNDS: usize = 8;
/// Pages that come back so soon are passed over: within this part of the time for which a page stays.
const SOON: f64 = 0.25;

/// When a page had left that came back soon.
#[derive(Clone, Copy, Debug, Default)]
struct Since {
    chances: u8,
    /// It was read, not rescued.
    read: bool,
    /// How long it had been away.
    bucket: u16,
}

impl Away {
    /// How many looks it stands for, where one of the sample stands for `weight`.
    fn stands_for(&self, weight: f64) -> f64 {
        if self.asked { 1.0 } else { self.looks * weight }
    }

    /// At how many of them evictors passed it over.
    fn passed(&self, weight: f64) -> f64 {
        if self.asked { 0.0 } else { (self.looks - 1.0) * weight }
    }
}

/// Looks that began in one slice and were followed for as long: how many, and for how many they stand.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    count: f64,
    stands_for: f64,
    passed: f64,
}

/// A part of the run.
#[derive(Clone, Debug)]
struct Slice {
    ns: f64,
    /// What was there: pages times ns.
    held: f64,
    /// How many looks there were; and what they tell, where one stands for all that the sample leaves out: by how long it took until the page was wanted, …
    looks: f64,
    back: Vec<f64>,
    /// (of which so many passed the page over, …
    passed: Vec<f64>,
    /// … since it had been rescued, or read, so soon after it had left), …
    passed_since: [Vec<f64>; 2],
    /// … and at pages that were wanted no more.
    never: f64,
    /// Pages that left for ever, by themselves.
    lost: f64,
    /// How many times pages were away in all of their time within the slice, by how long.
    whole: Vec<f64>,
    /// What pages were away in the slice of which it has not all, by how long they were then away: ns.
    moments: Vec<f64>,
    /// Pages that came back by a read, …
    fetched: f64,
    /// … and of them those that a fault waited for.
    asked: f64,
    /// How long such faults took of which that is known, ns, and how many these are.
    took: f64,
    known: f64,
}

/// How a page has come back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Came {
    /// Before it was written.
    Rescued,
    /// By a read that a fault waited for.
    Asked,
    /// By a read, along with others or ahead of them.
    Unasked,
}

/// What less memory does.
#[derive(Debug)]
pub struct Fewer {
    slices: Vec<Slice>,
    /// The run's, pages.
    room: f64,
    /// Stages that it had.
    staged: f64,
    /// What is reckoned of each slice in the run itself.
    run: Vec<Returns>,
    /// How many came by a read, …
    reads: Reckoned,
    /// … and of them by a fault.
    asked: Reckoned,
    /// What a fault takes where it is not known, ns; 0: no such fault was told.
    typical: f64,
}

/// What a part of the memory does.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Less {
    /// How many more pages come back by a read, and how many more faults wait for one.
    pub more: Returns,
    /// What each of these faults takes, seconds; 0: not known.
    pub each: f64,
}

/// A number of the run.
#[derive(Clone, Copy, Debug)]
struct Reckoned {
    /// By the same reckoning as for less memory.
    told: f64,
    /// As it was counted.
    counted: f64,
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
            looks: 0.0,
            back: none.clone(),
            passed: none.clone(),
            passed_since: [none.clone(), none.clone()],
            never: 0.0,
            lost: 0.0,
            whole: none.clone(),
            moments: none,
            fetched: 0.0,
            asked: 0.0,
            took: 0.0,
            known: 0.0,
        }
    }

    /// Takes what another one has.
    fn join(&mut self, other: &Slice) {
        for (sum, one) in [
            (&mut self.ns, other.ns),
            (&mut self.held, other.held),
            (&mut self.looks, other.looks),
            (&mut self.never, other.never),
            (&mut self.lost, other.lost),
            (&mut self.fetched, other.fetched),
            (&mut self.asked, other.asked),
            (&mut self.took, other.took),
            (&mut self.known, other.known),
        ] {
            *sum += one;
        }
        let [rescued, read] = &mut self.passed_since;
        for (all, ones) in [
            (rescued, &other.passed_since[0]),
            (read, &other.passed_since[1]),
            (&mut self.back, &other.back),
            (&mut self.passed, &other.passed),
            (&mut self.whole, &other.whole),
            (&mut self.moments, &other.moments),
        ] {
            all.iter_mut().zip(ones).for_each(|(sum, one)| *sum += one);
        }
    }

    /// So many pages fit, if each stays for `stay` ns.
    fn fits(&self, stay: f64) -> f64 {
        let wanted = |times: &[f64], value: &dyn Fn(f64) -> f64| -> f64 {
            times.iter().enumerate().filter(|(_, count)| **count > 0.0).map(|(n, count)| count * value(time(n))).sum()
        };
        let soon = |r: f64| (-r / stay).exp();
        let there = self.held * wanted(&self.back, &soon) / (self.back.iter().sum::<f64>() + self.never).max(1.0);
        let away = wanted(&self.whole, &|r| stay * -(-r / stay).exp_m1()) + wanted(&self.moments, &soon);
        (there + away) / self.ns
    }

    /// How many pages come back by a read, and how many of them by a fault, with room for so many of which so many more linger in stages.
    fn returns(&self, room: f64, staged: f64) -> Returns {
        let (mut low, mut high) = (1.0_f64, (TIMES as f64 / EIGHTHS).exp2());
        if self.ns <= 0.0 || self.fits(high) <= room {
            return Returns::default();
        }
        for _ in 0..50 {
            let middle = (low * high).sqrt();
            if self.fits(middle) <= room { low = middle } else { high = middle }
        }
        let stay = low;
        // `room / stay` are looked at in a unit of time. Of those that were passed over in the run, some have come back soon enough here, too; the others leave, and
        // each lingers for as long as it takes until all stages were used: who is wanted meanwhile is rescued.
        let back: f64 = self.back.iter().sum();
        let all: f64 = self.passed_since.iter().flatten().sum();
        let soon = |since: &[f64], until: f64| -> f64 { (0..TIMES).filter(|&n| time(n) < until).map(|n| since[n]).sum() };
        let [rescued, read] = &self.passed_since;
        let (mut lingers, mut passes) = (staged * stay / room, 0.0);
        for _ in 0..if all > 0.0 { ROUNDS } else { 0 } {
            passes = (soon(rescued, lingers) + soon(read, stay * SOON)) / all;
            lingers = staged * stay / room / (1.0 - passes * all / (back + self.never));
        }
        let read = |n: usize| if time(n) < lingers { 0.0 } else { (self.back[n] - self.passed[n] * passes).max(0.0) };
        let read: f64 = (0..TIMES).map(read).sum();
        let pages = (self.ns * room / stay - self.lost).max(0.0) * if back > 0.0 { read / back } else { 1.0 };
        Returns { pages, faults: pages * if self.fetched > 0.0 { self.asked / self.fetched } else { 1.0 } }
    }
}

impl Looks {
    /// Follows at most so many pages at a time.
    fn with(most: usize) -> Looks {
        Looks {
            sample: Sample::default(),
            most,
            away: HashMap::default(),
            chances: HashMap::default(),
            asked: 0,
            slices: Vec::new(),
            ended: 0.0,
            slice_ns: SLICE_LEAST,
            begun_ns: 0,
            now_ns: 0,
            took: vec![0.0; TIMES],
        }
    }

    /// How long a part of the run is that is told by itself, ns.
    pub fn slice_ns(&self) -> u64 {
        self.slice_ns
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
        // An evictor came by as often as it passed the page over, and once more. Who is asked to leave is not passed over.
        let since = self.chances.remove(&page).filter(|_| !asked).unwrap_or_default();
        let before = self.away.insert(page, Away { since_ns: ns, asked, looks: 1.0 + f64::from(since.chances), since });
        self.asked = self.asked + usize::from(asked) - usize::from(before.is_some_and(|before| before.asked));
        if (self.away.len() - self.asked).max(self.chances.len()) > self.most {
            self.sample.thin_out();
            let sample = self.sample;
            self.away.retain(|&page, away| away.asked || sample.has(page));
            self.chances.retain(|&page, _| sample.has(page));
        }
    }

    /// A page has come back, and evictors will pass it over so many times. Whether it had left for a look.
    pub fn came(&mut self, page: u64, ns: u64, how: Came, chances: u8) -> bool {
        let weight = 1.0 / self.sample.rate();
        let Some(away) = self.remove(page) else { return false };
        // Events of two threads may be told in another order.
        let ns = ns.max(away.since_ns + 1);
        let took = ns - away.since_ns;
        let place = self.place(away.since_ns);
        let Some(slice) = self.slices.get_mut(place) else { return away.asked };
        self.ended += 1.0;
        slice.looks += 1.0;
        slice.back[bucket(took as f64)] += away.stands_for(weight);
        slice.passed[bucket(took as f64)] += away.passed(weight);
        slice.passed_since[usize::from(away.since.read)][usize::from(away.since.bucket)] += away.passed(weight);
        if chances > 0 && self.sample.has(page) {
            let since = Since { chances, read: how != Came::Rescued, bucket: bucket(took as f64) as u16 };
            self.chances.insert(page, since);
        }
        if away.asked {
            return true;
        }
        slice.fetched += if how == Came::Rescued { 0.0 } else { weight };
        slice.asked += if how == Came::Asked { weight } else { 0.0 };
        self.was_away(away.since_ns, ns, weight);
        false
    }

    /// A fault has waited so long for a page.
    pub fn waited(&mut self, ns: u64, took: u64) {
        self.took[bucket(took as f64)] += 1.0;
        let place = self.place(ns);
        if let Some(slice) = self.slices.get_mut(place) {
            slice.took += took as f64;
            slice.known += 1.0;
        }
    }

    /// How long a fault took that waited for a page, ns, on average; none: of no fault it is known.
    pub fn took(&self) -> Option<f64> {
        let known: f64 = self.slices.iter().map(|slice| slice.known).sum();
        (known > 0.0).then(|| self.slices.iter().map(|slice| slice.took).sum::<f64>() / known)
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
            let Some(away) = self.remove(page) else { continue };
            let place = self.place(away.since_ns);
            let Some(slice) = self.slices.get_mut(place) else { continue };
            slice.looks += 1.0;
            slice.never += away.stands_for(weight);
            if !away.asked {
                slice.lost += weight;
                self.was_away(away.since_ns, ns.max(away.since_ns + 1), weight);
            }
        }
    }

    fn remove(&mut self, page: u64) -> Option<Away> {
        let away = self.away.remove(&page)?;
        self.asked -= usize::from(away.asked);
        Some(away)
    }

    /// So many pages were asked to leave and have not come back that no more need be asked.
    pub fn is_full(&self) -> bool {
        self.asked >= self.most
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

    /// What less memory would do to a run that ends now and had room for so many pages, and so many stages. None: too little has come back to tell.
    pub fn fewer(&self, room: f64, staged: f64) -> Option<Fewer> {
        if self.ended < LOOKS_LEAST {
            return None;
        }
        let slices = joined_until_known(&self.to_their_ends().slices);
        let run: Vec<Returns> = slices.iter().map(|slice| slice.returns(room, staged)).collect();
        let told = sum(&run);
        let reckoned = |told: f64, counted: fn(&Slice) -> f64| Reckoned { told, counted: slices.iter().map(counted).sum() };
        let (reads, asked) = (reckoned(told.pages, |slice| slice.fetched), reckoned(told.faults, |slice| slice.asked));
        Some(Fewer { slices, room, staged, run, reads, asked, typical: median(&self.took) })
    }

    /// The same, with the looks that go on ended as those were that were followed for longer.
    fn to_their_ends(&self) -> Looks {
        let mut all = Looks {
            away: HashMap::default(),
            chances: HashMap::default(),
            slices: self.slices.clone(),
            took: Vec::new(),
            ..*self
        };
        // By how long they were followed: those that ended, and those that did not.
        let (mut ended, mut going) = (vec![0.0; TIMES], vec![0.0; TIMES]);
        self.slices.iter().for_each(|slice| slice.back.iter().zip(&mut ended).for_each(|(one, sum)| *sum += one));
        let mut never: f64 = self.slices.iter().map(|slice| slice.never).sum();
        let mut groups: HashMap<(usize, usize, bool), Group> = HashMap::new();
        let weight = 1.0 / self.sample.rate();
        for away in self.away.values() {
            let followed = bucket(self.now_ns.saturating_sub(away.since_ns).max(1) as f64);
            going[followed] += away.stands_for(weight);
            let group = groups.entry((self.place(away.since_ns), followed, away.asked)).or_default();
            group.count += 1.0;
            group.stands_for += away.stands_for(weight);
            group.passed += away.passed(weight);
        }
        // The part that is wanted at a time, of those that are not wanted before.
        let mut hazard = vec![0.0; TIMES];
        for n in (0..TIMES).rev() {
            never += ended[n] + going[n];
            hazard[n] = if never > 0.0 { ended[n] / never } else { 0.0 };
        }
        for ((place, followed, asked), Group { count, stands_for, passed }) in groups {
            if let Some(slice) = all.slices.get_mut(place) {
                slice.looks += count;
            }
            let mut still = stands_for;
            for (n, part) in hazard.iter().enumerate().skip(followed + 1) {
                let now = still * part;
                if now <= 0.0 {
                    continue;
                }
                still -= now;
                if let Some(slice) = all.slices.get_mut(place) {
                    slice.back[n] += now;
                    slice.passed[n] += now * passed / stands_for;
                }
            }
            if let Some(slice) = all.slices.get_mut(place) {
                slice.never += still;
                slice.lost += if asked { 0.0 } else { still / stands_for * count * weight };
            }
        }
        for away in self.away.values().filter(|away| !away.asked) {
            all.was_away(away.since_ns, self.now_ns.max(away.since_ns + 1), weight);
        }
        all
    }
}

impl Fewer {
    /// What this part of the memory does.
    pub fn with(&self, part: f64) -> Less {
        if part >= 1.0 {
            return Less { more: Returns::default(), each: self.typical / 1e9 };
        }
        // A smaller memory has fewer stages.
        let (room, staged) = (self.room * part, self.staged * part);
        // The faults that there are more in each part of the run take what they took there: those of a phase in order wait for many pages at once.
        let less: Vec<Returns> = self.slices.iter().map(|slice| slice.returns(room, staged)).collect();
        let (now, mut faults, mut took) = (sum(&less), 0.0, 0.0);
        for (slice, (less, run)) in self.slices.iter().zip(less.iter().zip(&self.run)) {
            let more = (less.faults - run.faults).max(0.0);
            faults += more;
            took += more * if slice.known >= KNOWN_LEAST { slice.took / slice.known } else { self.typical };
        }
        // Of the run itself more may be reckoned than was counted; what is added is too much by as many times, the less the more is added.
        let more = |now: f64, Reckoned { told, counted }: Reckoned| {
            let more = (now - told).max(0.0);
            if more > 0.0 && told > counted { more * (counted + more) / (told + more) } else { more }
        };
        let more = Returns { pages: more(now.pages, self.reads), faults: more(now.faults, self.asked) };
        Less { more, each: if faults > 0.0 { took / faults } else { self.typical } / 1e9 }
    }
}

fn sum(all: &[Returns]) -> Returns {
    all.iter().fold(Returns::default(), |sum, one| Returns { pages: sum.pages + one.pages, faults: sum.faults + one.faults })
}

/// The middle of times, by how many there are of each.
fn median(times: &[f64]) -> f64 {
    let (half, mut sum) = (times.iter().sum::<f64>() / 2.0, 0.0);
    let middle = times.iter().position(|count| {
        sum += count;
        sum > half
    });
    middle.map_or(0.0, time)
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
            Some(last) if last.looks < LOOKS_A_SLICE => last.join(slice),
            _ => known.push(slice.clone()),
        }
    }
    if let [.., before, last] = &mut known[..]
        && last.looks < LOOKS_A_SLICE
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
    use std::collections::{HashSet, VecDeque};

    /// Between two accesses of a trace, ns.
    const TURN: u64 = 10_000;
    /// How often evictors pass over a page that was rescued, and one that was rescued again.
    const CHANCES: [u8; 2] = [1, 7];

    /// A memory that sends away any page but those that have chances, and lets the last ones linger: misses after all pages were touched once, and what was heard. Each
    /// `look_every` turns a page that is there is looked at, once something has left. At most `most` are followed.
    fn run(trace: &[u64], (room, staged): (usize, usize), seed: u64, look_every: u64, most: usize) -> (f64, Looks) {
        let (mut random, mut there, mut here, mut known) = (Random(seed), Vec::new(), HashSet::new(), HashSet::new());
        let (mut looks, mut misses, mut asked) = (Looks::with(most), 0.0, HashSet::new());
        let mut lingering: VecDeque<u64> = VecDeque::new();
        // Of those that were rescued: what they were given, and what is left of it.
        let mut chances: HashMap<u64, (u8, u8)> = HashMap::new();
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
                assert!(looks.came(page, ns, Came::Asked, 0));
            }
            if !here.insert(page) {
                continue;
            }
            if there.len() == room {
                let victim = loop {
                    let place = random.below(room as u64) as usize;
                    match chances.get_mut(&there[place]) {
                        Some((_, left)) if *left > 0 => *left -= 1,
                        _ => break there.swap_remove(place),
                    }
                };
                here.remove(&victim);
                // One that is looked at stays away.
                if !asked.remove(&victim) {
                    looks.left(victim, ns, false);
                }
                lingering.push_back(victim);
                lingering.drain(..lingering.len().saturating_sub(staged));
            }
            there.push(page);
            if let Some(place) = lingering.iter().position(|&other| other == page) {
                lingering.remove(place);
                let given = CHANCES[usize::from(chances.contains_key(&page))];
                looks.came(page, ns, Came::Rescued, given);
                chances.insert(page, (given, given));
                continue;
            }
            chances.remove(&page);
            if !known.insert(page) {
                misses += 1.0;
                looks.came(page, ns, Came::Asked, 0);
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

    /// Where less memory is told wrongly by more than may be, with so many pages followed at most.
    fn told_wrongly(most: usize, more_off: f64) -> Vec<String> {
        let mut wrong = Vec::new();
        for (name, trace, look_every, off) in traces() {
            // Where pages linger the hot ones have chances, so it is not any page that leaves: less is told well.
            let lingering = ["uniform", "hot"].contains(&name).then_some((200.0, 0.35));
            for (staged, off) in [(0.0, off)].into_iter().chain(lingering) {
                let off = off + more_off;
                let of = |part: f64| ((2000.0 * part) as usize, (staged * part) as usize);
                let (misses, looks) = run(&trace, of(1.0), 3, look_every, most);
                let fewer = looks.fewer(2000.0, staged).expect("enough has come back");
                for part in [0.75, 0.5, 0.25] {
                    let (less, _) = run(&trace, of(part), 5, 0, most);
                    let (told, took) = (1.0 + fewer.with(part).more.pages / misses, less / misses);
                    if !((1.0 - off)..(1.0 + off)).contains(&(told / took)) {
                        wrong.push(format!("{name}, {staged} linger, {part} of the memory: told {told:.2}, took {took:.2} times as many of {misses}"));
                    }
                }
                assert_eq!(fewer.with(1.0).more, Returns::default());
            }
        }
        wrong
    }

    #[test]
    fn less_memory_is_told_from_one_run() {
        let wrong = told_wrongly(1 << 12, 0.0);
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn faults_take_what_they_took_in_their_part_of_the_run() {
        // Two seconds at random over twice the room, with faults of 40 µs; then two in which all that is used fits, and nobody waits.
        let mut random = Random(5);
        let trace: Vec<u64> = (0..400_000).map(|turn| random.below(if turn < 200_000 { 4000 } else { 1500 })).collect();
        let (_, mut looks) = run(&trace, (2000, 0), 3, 100, 1 << 12);
        let second = 1_000_000_000;
        (0..1000).for_each(|n| looks.waited(n * second / 1000, 40_000));
        let fewer = looks.fewer(2000.0, 0.0).expect("enough has come back");
        let near = |each: f64, us: f64| (each * 1e6 / us - 1.0).abs() < 0.07;
        assert!(near(fewer.with(0.5).each, 40.0), "{}", fewer.with(0.5).each);
        // Ten times as long in the second part: what is more there takes that.
        (2000..3000).for_each(|n| looks.waited(n * second / 1000, 400_000));
        let each = looks.fewer(2000.0, 0.0).expect("as before").with(0.5).each;
        assert!(each > 60e-6 && each < 390e-6, "{each}");
        // Of a run whose faults were not told nothing is known.
        assert_eq!(median(&[0.0; TIMES]), 0.0);
    }

    #[test]
    fn who_came_back_soon_stands_for_the_times_that_evictors_passed_it_over() {
        let mut looks = Looks::default();
        looks.at(1, 0.0);
        for (ns, how, chances, stands_for) in
            [(10, Came::Rescued, 1, 1.0), (20, Came::Rescued, 7, 2.0), (30, Came::Asked, 3, 8.0), (40, Came::Asked, 0, 4.0)]
        {
            looks.left(7, ns, false);
            assert_eq!(looks.away[&7].looks, stands_for);
            looks.came(7, ns + 5, how, chances);
        }
        looks.left(7, 50, false);
        looks.came(7, 55, Came::Rescued, 1);
        looks.left(7, 60, true);
        assert_eq!(looks.away[&7].looks, 1.0, "who is asked to leave is not passed over");
        assert_eq!(looks.slices[0].back.iter().sum::<f64>(), 16.0);
    }

    #[test]
    fn less_memory_is_told_from_a_sample() {
        let wrong = told_wrongly(1 << 9, 0.05);
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn pages_that_were_asked_to_leave_take_no_room_from_others() {
        let mut looks = Looks::with(64);
        looks.at(1, 100.0);
        (0..100).for_each(|page| looks.left(page, page + 1, true));
        (1000..1064).for_each(|page| looks.left(page, page, false));
        assert_eq!(looks.sample.rate(), 1.0);
        assert!((1000..1064).all(|page| looks.away.contains_key(&page)));
    }

    #[test]
    fn what_never_came_back_tells_nothing() {
        let mut looks = Looks::default();
        looks.at(1, 100.0);
        (1..10_000).for_each(|page| looks.left(page, page, false));
        looks.at(20_000, 100.0);
        assert!(looks.fewer(100.0, 0.0).is_none());
    }

    #[test]
    fn pages_that_are_gone_are_followed_no_more() {
        let mut looks = Looks::default();
        looks.at(1, 0.0);
        (0..1000).for_each(|page| looks.left(page, page + 1, page % 2 == 0));
        looks.gone(0, 10, 2000);
        looks.gone(500, u64::MAX - 500, 2000);
        assert_eq!(looks.away.len(), 490);
        assert!(
            !looks.came(4, 3000, Came::Asked, 0)
                && looks.came(12, 3000, Came::Asked, 0)
                && !looks.came(13, 3000, Came::Unasked, 0)
        );
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
