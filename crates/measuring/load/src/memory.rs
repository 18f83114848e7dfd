//! The memory that a workload works on, and what is in it.
//!
//! Memory is one allocation of zeroes that the kernel makes page by page as it is touched: whoever fills a page first
//! gets it from the kernel. Words are atomic, since threads share pages; all accesses are relaxed: nothing is told from
//! one thread to another by these words, and threads are started and joined between phases.
//!
//! Contents are random words that follow from the seed and the place of the word, so that each of them can be computed
//! again at the end. Of each 64 words the second half repeats the first: pages compress to about 51 % with lz4 and with
//! zstd alike, neither the best nor the worst case for compressed RAM, and an update of a word spoils little of that.

use std::ops::Range;
use std::sync::atomic::AtomicU64;

use farshore_load::size::Bytes;
use rand::Rng;
use rand_xoshiro::rand_core::SeedableRng;
use rand_xoshiro::{SplitMix64, Xoshiro256PlusPlus};

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Words of a page.
pub const WORDS: usize = PAGE / size_of::<u64>();
/// The least memory that a workload takes.
pub const LEAST: Bytes = Bytes(1 << 20);

/// Words are repeated in runs of this many.
const RUN: usize = 32;
/// What `SplitMix64` adds to its state for each number.
const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Whole pages of shared words.
#[derive(Debug)]
pub struct Memory {
    words: Box<[AtomicU64]>,
    /// The first word that lies at the start of a page.
    first: usize,
    pages: usize,
}

impl Memory {
    /// As many whole pages as `size` holds, untouched.
    ///
    /// # Errors
    /// If the kernel does not give that much address space.
    pub fn new(size: Bytes) -> Result<Self, String> {
        let refused = || {
            format!("cannot allocate {size}: the kernel refuses it (see ulimit -v and vm.overcommit_memory); give less --size")
        };
        let pages = usize::try_from(size.0).map_err(|_| refused())? / PAGE;
        // One page more than wanted holds the words before the first page and those after the last.
        let words = bytemuck::allocation::try_zeroed_slice_box::<AtomicU64>((pages + 1) * WORDS).map_err(|()| refused())?;
        let first = words.as_ptr().align_offset(PAGE);
        Ok(Memory { words, first, pages })
    }

    /// How many pages there are.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// All words of the pages.
    pub fn words(&self) -> &[AtomicU64] {
        &self.words[self.first..][..self.pages * WORDS]
    }

    /// The words of one page.
    pub fn page(&self, page: usize) -> &[AtomicU64] {
        self.region(page..page + 1)
    }

    /// The words of neighbouring pages.
    pub fn region(&self, pages: Range<usize>) -> &[AtomicU64] {
        &self.words()[pages.start * WORDS..pages.end * WORDS]
    }
}

/// The part of `count` things that belongs to one of `threads`: neighbours, and all parts of the same length but for one.
pub fn shard(count: usize, threads: usize, thread: usize) -> Range<usize> {
    // In 128 bits nothing here overflows, and the results are at most `count`.
    let at = |thread: usize| usize::try_from(count as u128 * thread as u128 / threads as u128).unwrap_or(count);
    at(thread)..at(thread + 1)
}

/// What words are in the memory at first.
#[derive(Clone, Copy, Debug)]
pub struct Contents {
    start: u64,
}

impl Contents {
    /// Those of a seed.
    pub fn new(seed: u64) -> Self {
        // Seeds are small numbers: their sequences must not be the same one a few words apart.
        Contents { start: SplitMix64::seed_from_u64(seed).next_u64() }
    }

    /// The word at an index.
    pub fn word(self, index: usize) -> u64 {
        nth(self.start, (index & !RUN) as u64)
    }

    /// Other contents from the same seed.
    pub fn another(self, which: u64) -> Self {
        Contents { start: mix(self.start ^ mix(which)) }
    }
}

/// The number `n` of the sequence of `SplitMix64` from `start`.
pub fn nth(start: u64, n: u64) -> u64 {
    SplitMix64::seed_from_u64(start.wrapping_add(n.wrapping_mul(GOLDEN_GAMMA))).next_u64()
}

/// One number out of another, without a likeness between neighbours.
pub fn mix(number: u64) -> u64 {
    nth(number, 0)
}

/// Random numbers of one thread.
pub fn generator(seed: u64, thread: usize) -> Xoshiro256PlusPlus {
    Xoshiro256PlusPlus::seed_from_u64(nth(mix(seed), thread as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn pages_are_pages() -> Result<(), String> {
        let memory = Memory::new(Bytes((1 << 20) + 4095))?;
        assert_eq!(memory.pages(), 256);
        assert_eq!(memory.words().len(), 256 * WORDS);
        assert_eq!(memory.page(0).as_ptr().addr() % PAGE, 0);
        assert_eq!(memory.page(255).len(), WORDS);
        memory.page(255)[511].store(7, Relaxed);
        assert_eq!(memory.words()[256 * WORDS - 1].load(Relaxed), 7);
        Ok(())
    }

    #[test]
    fn too_much_is_refused() {
        for size in [1 << 62, u64::MAX] {
            let refusal = Memory::new(Bytes(size)).err().unwrap_or_default();
            assert!(refusal.contains("give less --size"), "{size}: {refusal:?}");
        }
    }

    #[test]
    fn shards_hold_everything_once() {
        for (count, threads) in [(256, 3), (5, 8), (1000, 1000), (0, 4), (7, 1)] {
            let all: Vec<usize> = (0..threads).flat_map(|thread| shard(count, threads, thread)).collect();
            assert_eq!(all, (0..count).collect::<Vec<_>>(), "{count} {threads}");
        }
    }

    #[test]
    fn half_of_the_words_repeat_the_other_half() {
        let contents = Contents::new(1);
        for (index, same) in [(0, 32), (31, 63), (64, 96), (1 << 30, (1 << 30) + 32)] {
            assert_eq!(contents.word(index), contents.word(same));
        }
        let words: HashSet<u64> = (0..4096).map(|index| contents.word(index)).collect();
        assert_eq!(words.len(), 2048);
        let others: HashSet<u64> = (0..4096).map(|index| Contents::new(2).word(index)).collect();
        assert!(words.is_disjoint(&others));
        assert_ne!(contents.word(0), contents.another(1).word(0));
    }

    #[test]
    fn numbers_are_those_of_the_generator() {
        let mut splitmix = SplitMix64::seed_from_u64(99);
        for n in 0..10 {
            assert_eq!(nth(99, n), splitmix.next_u64());
        }
        assert_ne!(generator(1, 0).next_u64(), generator(1, 1).next_u64());
        assert_ne!(generator(1, 0).next_u64(), generator(2, 0).next_u64());
    }
}
