//! Reuse distances of pages that have left: how much more memory would have kept each page that came back.
//!
//! Resident pages are the top of an LRU stack, and pages that have left, the *ghosts*, lie below them in the order in which they left
//! (Mattson et al., Evaluation techniques for storage hierarchies, IBM Systems Journal 1970). The ghosts above a page that comes back are as
//! many pages as memory was too small by. Which one a page is among them a Fenwick tree tells, over the turns in which ghosts left.
//!
//! A program has too many pages for that, so ghosts are a sample: those pages whose hash is below a threshold, which falls when they become
//! too many (SHARDS with a fixed size, Waldspurger et al., Efficient MRC Construction with SHARDS, FAST 2015, section 3.2). A page of the sample stands for
//! all that there are for one of them, and so do the ghosts above it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use farshore_replay::sample::{Sample, hash};

/// Ghosts at a time, at most. The paper has 8 Ki; a mebibyte or two costs nothing here.
pub const GHOSTS_MAX: usize = 1 << 16;
/// Turns until they are numbered anew, for each ghost.
const TURNS_A_GHOST: usize = 4;

/// Pages that have left and not come back.
#[derive(Debug)]
pub struct Ghosts {
    most: usize,
    sample: Sample,
    turns: HashMap<u64, u32, BuildHasherDefault<Mixed>>,
    /// How many ghosts left in each turn: 0 or 1.
    tree: Vec<u32>,
    next: u32,
}

/// A page that came back.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Return {
    /// It is not in the sample.
    Unsampled,
    /// It is in the sample, and nobody has seen it leave.
    Unseen,
    /// It stands for `weight` returns; `above` pages left behind it, and have not come back.
    Ghost {
        /// How many returns it stands for.
        weight: f64,
        /// How many pages more would have kept it, but for itself.
        above: f64,
    },
}

impl Default for Ghosts {
    fn default() -> Ghosts {
        Ghosts::with(GHOSTS_MAX)
    }
}

impl Ghosts {
    /// At most so many at a time.
    pub fn with(most: usize) -> Ghosts {
        let tree = vec![0; most * TURNS_A_GHOST + 1];
        Ghosts { most, sample: Sample::default(), turns: HashMap::default(), tree, next: 0 }
    }

    /// The part of the pages that is in the sample.
    pub fn rate(&self) -> f64 {
        self.sample.rate()
    }

    /// How many pages the ghosts stand for.
    pub fn pages(&self) -> f64 {
        self.turns.len() as f64 / self.rate()
    }

    /// A page has left.
    pub fn left(&mut self, page: u64) {
        if !self.sample.has(page) {
            return;
        }
        self.remove(page);
        if self.next as usize == self.tree.len() - 1 {
            self.number_anew();
        }
        self.turns.insert(page, self.next);
        self.add(self.next, 1);
        self.next += 1;
        if self.turns.len() > self.most {
            self.thin_out();
        }
    }

    /// A page has come back.
    pub fn came(&mut self, page: u64) -> Return {
        if !self.sample.has(page) {
            return Return::Unsampled;
        }
        let Some(turn) = self.remove(page) else { return Return::Unseen };
        let above = self.turns.len() as u32 - self.up_to(turn);
        let weight = 1.0 / self.rate();
        Return::Ghost { weight, above: f64::from(above) * weight }
    }

    /// Pages are not there any more.
    pub fn gone(&mut self, first: u64, pages: u64) {
        if pages < self.turns.len() as u64 {
            (first..first.saturating_add(pages)).for_each(|page| {
                self.remove(page);
            });
        } else {
            let gone: Vec<u64> = self.turns.keys().copied().filter(|page| page.wrapping_sub(first) < pages).collect();
            gone.into_iter().for_each(|page| {
                self.remove(page);
            });
        }
    }

    fn remove(&mut self, page: u64) -> Option<u32> {
        let turn = self.turns.remove(&page)?;
        self.add(turn, 1_u32.wrapping_neg());
        Some(turn)
    }

    /// A smaller sample: half as large a part of the pages.
    fn thin_out(&mut self) {
        self.sample.thin_out();
        let sample = self.sample;
        let out: Vec<u64> = self.turns.keys().copied().filter(|&page| !sample.has(page)).collect();
        out.into_iter().for_each(|page| {
            self.remove(page);
        });
    }

    fn number_anew(&mut self) {
        let mut order: Vec<(u32, u64)> = self.turns.iter().map(|(&page, &turn)| (turn, page)).collect();
        order.sort_unstable();
        self.tree.fill(0);
        self.next = 0;
        for (_, page) in order {
            self.turns.insert(page, self.next);
            self.add(self.next, 1);
            self.next += 1;
        }
    }

    /// Fenwick's tree: `change` at a turn.
    fn add(&mut self, turn: u32, change: u32) {
        let mut at = turn as usize + 1;
        while at < self.tree.len() {
            self.tree[at] = self.tree[at].wrapping_add(change);
            at += at & at.wrapping_neg();
        }
    }

    /// Ghosts of turns up to this one.
    fn up_to(&self, turn: u32) -> u32 {
        let (mut at, mut sum) = (turn as usize + 1, 0_u32);
        while at > 0 {
            sum = sum.wrapping_add(self.tree[at]);
            at &= at - 1;
        }
        sum
    }
}

/// Hashes a page for the table.
#[derive(Default, Debug)]
pub struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u64(&mut self, word: u64) {
        // Not the hash that the sample goes by, whose first bits are all the same in a small one.
        self.0 = hash(self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Numbers from a seed (xorshift64*).
    pub(crate) struct Random(pub u64);
    impl Random {
        pub fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % bound
        }
        fn unit(&mut self) -> f64 {
            self.below(1 << 40) as f64 / (1_u64 << 40) as f64
        }
    }

    /// Traces: at random, a loop, a loop whose length changes, and Zipf by the inverse of its distribution's integral.
    fn traces(pages: u64, length: usize) -> Vec<(&'static str, Vec<u64>)> {
        let mut random = Random(7);
        let uniform = (0..length).map(|_| random.below(pages)).collect();
        let around = (0..length as u64).map(|n| n % pages).collect();
        let phases = (0..length as u64).map(|n| if n < length as u64 / 2 { n % pages } else { n % (pages / 2) }).collect();
        let mut random = Random(11);
        let zipf = (0..length).map(|_| ((pages as f64).powf(random.unit()) as u64 - 1) * 7919 % pages).collect();
        vec![("uniform", uniform), ("loop", around), ("phases", phases), ("zipf", zipf)]
    }

    /// What a memory of LRU with `room` pages makes of a trace: to the ghosts it says which pages leave and come. The LRU distance of each
    /// return is taken from a stack, by search, too.
    fn run(ghosts: &mut Ghosts, trace: &[u64], room: usize) -> (Vec<(Return, usize)>, Vec<usize>) {
        let mut stack: Vec<u64> = Vec::new();
        let (mut returns, mut distances) = (Vec::new(), Vec::new());
        for &page in trace {
            let depth = stack.iter().rev().position(|&other| other == page);
            if let Some(depth) = depth {
                stack.remove(stack.len() - 1 - depth);
                distances.push(depth);
            }
            if depth.is_none_or(|depth| depth >= room) {
                if let Some(depth) = depth {
                    returns.push((ghosts.came(page), depth));
                }
                if stack.len() >= room {
                    ghosts.left(stack[stack.len() - room]);
                }
            }
            stack.push(page);
        }
        (returns, distances)
    }

    #[test]
    fn a_whole_sample_gives_the_distances_of_a_stack() {
        for (name, trace) in traces(300, 6_000) {
            for room in [1, 7, 150, 299] {
                // So few turns that they are numbered anew many times.
                let mut ghosts = Ghosts::with(300);
                let (returns, _) = run(&mut ghosts, &trace, room);
                assert!(name == "zipf" || returns.len() > 50 || room >= 150, "{name} {room}: {}", returns.len());
                for (seen, depth) in returns {
                    // Below the page itself lie `room` resident pages, of which one leaves for it.
                    assert_eq!(seen, Return::Ghost { weight: 1.0, above: (depth - room) as f64 }, "{name} {room}");
                }
            }
        }
    }

    /// Misses of memories of so many pages, told by a small sample, differ from those of a stack by at most 3 % of all accesses.
    #[test]
    fn a_small_sample_is_near_it() {
        let (pages, length, room) = (20_000, 60_000, 4_000);
        for (name, trace) in traces(pages, length) {
            let mut ghosts = Ghosts::with(2_048);
            let (returns, distances) = run(&mut ghosts, &trace, room);
            assert!(ghosts.rate() < 0.3, "{name}: {}", ghosts.rate());
            let total = returns.len() as f64;
            let sampled: Vec<(f64, f64)> = returns
                .iter()
                .filter_map(|(seen, _)| match *seen {
                    Return::Ghost { weight, above } => Some((weight, above + room as f64)),
                    Return::Unsampled => None,
                    Return::Unseen => panic!("{name}: all have left before"),
                })
                .collect();
            let all: f64 = sampled.iter().map(|(weight, _)| weight).sum();
            for memory in [4_000_u64, 6_000, 10_000, 14_000, 19_000, 21_000] {
                let told: f64 =
                    sampled.iter().filter(|(_, need)| *need >= memory as f64).map(|(weight, _)| weight * total / all).sum();
                let real = distances.iter().filter(|&&depth| depth as u64 >= memory).count() as f64;
                assert!((told - real).abs() < 0.03 * length as f64, "{name}, {memory} pages: told {told}, by the stack {real}");
            }
        }
    }

    #[test]
    fn pages_that_are_gone_are_no_ghosts() {
        for pages in [3, 1 << 40] {
            let mut ghosts = Ghosts::with(100);
            (10..20).for_each(|page| ghosts.left(page));
            assert_eq!(ghosts.came(25), Return::Unseen);
            ghosts.gone(13, pages);
            assert_eq!(ghosts.came(13), Return::Unseen);
            let above = if pages == 3 { 6.0 } else { 0.0 };
            assert_eq!(ghosts.came(12), Return::Ghost { weight: 1.0, above: if pages == 3 { 4.0 } else { 0.0 } }, "{above}");
            // It leaves twice, as where its return was not heard of: it is one ghost.
            ghosts.left(11);
            ghosts.left(11);
            assert_eq!(ghosts.came(11), Return::Ghost { weight: 1.0, above: 0.0 });
        }
    }
}
