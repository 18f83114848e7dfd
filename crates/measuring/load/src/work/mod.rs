//! The workloads, one a file: `run` fills memory, works on it, checks it, and tells what it did.

pub mod bfs;
pub mod components;
pub mod graph;
pub mod grid;
pub mod gups;
pub mod hotset;
pub mod images;
pub mod kmers;
pub mod kv;
pub mod list;
pub mod pagerank;
pub mod phase;
pub mod random;
pub mod reads;
pub mod scan;
pub mod scatter;
pub mod signals;
pub mod stress;
pub mod tree;

use std::sync::atomic::Ordering::Relaxed;

use farshore_load::outcome::Outcome;
use farshore_load::workload::Mode;
use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::memory::{Contents, Memory, WORDS};
use crate::record::Total;
use crate::report::Report;
use crate::verify::{self, Wrongs};

/// What one thread does to pages: it reads or updates one random word of each.
struct Access<'a> {
    memory: &'a Memory,
    contents: Contents,
    mode: Mode,
    /// Updates, those of the warm-up too.
    updates: u64,
    /// Words that were not what they must be when they were read.
    wrongs: Wrongs,
}

impl<'a> Access<'a> {
    fn new(memory: &'a Memory, contents: Contents, mode: Mode) -> Self {
        Access { memory, contents, mode, updates: 0, wrongs: Wrongs::default() }
    }

    #[inline]
    fn page(&mut self, page: usize, random: &mut Xoshiro256PlusPlus) {
        let offset = random.random_range(0..WORDS);
        let word = &self.memory.page(page)[offset];
        match self.mode {
            Mode::Update => {
                word.fetch_add(1, Relaxed);
                self.updates += 1;
            }
            Mode::Read => {
                let index = page * WORDS + offset;
                self.wrongs.expect(index, word.load(Relaxed), self.contents.word(index));
            }
        }
    }
}

/// Checks the memory after all those accesses: the outcome without what was measured.
fn accessed(
    memory: &Memory,
    contents: Contents,
    mode: Mode,
    threads: u32,
    report: &mut Report,
    accesses: Vec<Access>,
) -> Result<Outcome, String> {
    let count = memory.words().len();
    let updates = accesses.iter().map(|access| access.updates).sum();
    let mut wrongs = Wrongs::of(accesses.into_iter().map(|access| access.wrongs));
    let (unit, verified, checksum) = match mode {
        Mode::Update => {
            wrongs.append(verify::updates(memory, contents, threads, report, updates)?);
            ("update", format!("the sum of {count} words after {updates} updates"), String::new())
        }
        Mode::Read => {
            let (found, checksum) = verify::words(memory, threads, report, |index| contents.word(index))?;
            wrongs.append(found);
            ("read", format!("each word as it was read, and all {count} at the end"), checksum)
        }
    };
    Ok(Outcome { unit: unit.into(), verified, checksum, wrong: wrongs.lines(), ..Default::default() })
}

/// An outcome with what was measured.
fn measured(outcome: Outcome, total: Total) -> Outcome {
    let Total { operations, seconds, latency, timeline } = total;
    Outcome { operations, seconds, latency, timeline, ..outcome }
}

/// Where a rank goes.
fn place(places: &scatter::Permutation, rank: usize) -> usize {
    // It permutes numbers of pages, which are `usize`.
    usize::try_from(places.apply(rank as u64)).unwrap_or(usize::MAX)
}
