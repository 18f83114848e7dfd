//! `kmers`: how often each word of 16 letters is in reads of a genome, counted in one table, as counters of DNA's k-mers do.
//!
//! The genome is text, one letter a byte as in a FASTA file, and made: letters by chance, and one block of four is the copy of another, since genomes repeat. The table is one
//! for all threads, without a lock: a slot has a word (two bits a letter) and its count, at the first free place behind the one that its hash gives. A word and
//! its reverse complement are one, as everywhere where strands are not known.
//!
//! `fill` counts all of the genome, in several passes over the text, each for a part of the table: so counters do whose table is larger than memory. Measured are *reads*: a
//! thread takes 100 letters at a random place, and counts each word in them. One operation is one word: it touches the table at a place of its own.
//!
//! Verified: the letters; that each word of the table is found where a search for it looks, so none is there twice; and, as what was counted is not kept, the sum of all
//! counts and the sum of their words' hashes, each as often as it was counted.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use farshore_load::outcome::Outcome;
use farshore_load::size::Bytes;
use farshore_load::workload;
use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::memory::{Memory, generator, mix, nth, shard};
use crate::report::Report;
use crate::team::{self, Stage};
use crate::verify::Wrongs;

/// Letters of a word: two bits each leave the other half of a slot for the count.
const LETTERS: usize = 16;
/// Bits of the count.
const COUNT_BITS: u32 = 32;
/// Letters of a read.
const READ: usize = 100;
/// One byte in so many is text; the others are the table, which is at most 57 % full then.
const TEXT_PART: u64 = 15;
/// A pass of `fill` is for so much of the table, in bytes.
const PASS_BYTES: usize = 8 << 20;
/// Letters of a block that may be a copy.
const BLOCK: usize = 1024;
/// Letters that one random word gives.
const LETTERS_OF_WORD: usize = 32;

/// Runs it.
///
/// # Errors
/// If memory or threads are not to be had.
pub fn run(args: &workload::Kmers, report: &mut Report) -> Result<Outcome, String> {
    let common = &args.common;
    let text = usize::try_from(common.size.0 / TEXT_PART).map_err(|_| format!("--size {} is too much", common.size))?;
    let genome = Genome::new(text, common.seed);
    let table = Table::new(Bytes(common.size.0 - text as u64))?;
    let threads = common.threads as usize;
    let mut counted = Counted::default();
    let all = |thread| genome.count_all(&table, shard(genome.words(), threads, thread));
    team::phase(report, "fill", common.threads, all)?.into_iter().for_each(|part| counted.add(&part));
    let worker = |thread| Worker {
        genome: &genome,
        table: &table,
        random: generator(common.seed, thread),
        read: 0..0,
        word: Word::default(),
        counted: Counted::default(),
    };
    let (total, workers) = team::timed(common, report, None, worker)?;
    workers.into_iter().for_each(|worker| counted.add(&worker.counted));
    let check = |thread| {
        let mut wrongs = genome.check(shard(genome.text.len(), threads, thread));
        let (more, found) = table.check(shard(table.slots.words().len(), threads, thread));
        wrongs.append(more);
        (wrongs, found)
    };
    let mut found = Counted::default();
    let mut wrongs = Wrongs::default();
    let mut different = 0;
    for (wrong, (part, words)) in team::phase(report, "verify", common.threads, check)? {
        wrongs.append(wrong);
        found.add(&part);
        different += words;
    }
    wrongs.append(differences(&counted, &found));
    let verified =
        format!("{} letters, and the counts of {different} words after {} were counted", genome.text.len(), counted.count);
    let outcome = Outcome { unit: "word".into(), verified, wrong: wrongs.lines(), ..Default::default() };
    Ok(super::measured(outcome, total))
}

/// What was counted, in two sums that do not depend on the order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Counted {
    count: u64,
    /// Of the words' hashes.
    hashes: u64,
    /// Words for which the table had no room.
    lost: u64,
}

impl Counted {
    fn add(&mut self, other: &Counted) {
        self.count += other.count;
        self.hashes = self.hashes.wrapping_add(other.hashes);
        self.lost += other.lost;
    }

    /// One word, `times` times.
    fn word(&mut self, word: u64, times: u64) {
        self.count += times;
        self.hashes = self.hashes.wrapping_add(mix(word).wrapping_mul(times));
    }
}

/// What the table has, set against what was counted.
fn differences(counted: &Counted, found: &Counted) -> Wrongs {
    let mut wrongs = Wrongs::default();
    if counted.lost > 0 {
        wrongs.add(|| format!("the table had no room for {} words", counted.lost));
    }
    if counted.count != found.count {
        let off = found.count.wrapping_sub(counted.count).cast_signed();
        wrongs.add(|| format!("the sum of all counts is off by {off} after {} words", counted.count));
    }
    if counted.hashes != found.hashes {
        wrongs.add(|| {
            format!("the words of the table hash to {:016x}, those that were counted to {:016x}", found.hashes, counted.hashes)
        });
    }
    wrongs
}

/// The text.
#[derive(Debug)]
struct Genome {
    text: Vec<u8>,
    seed: u64,
}

impl Genome {
    fn new(letters: usize, seed: u64) -> Self {
        let start = mix(seed);
        Genome { text: (0..letters).map(|at| letter(start, at)).collect(), seed: start }
    }

    /// How many words it has.
    fn words(&self) -> usize {
        (self.text.len() + 1).saturating_sub(LETTERS)
    }

    /// Counts the words that begin in a range, part of the table by part.
    fn count_all(&self, table: &Table, begins: Range<usize>) -> Counted {
        let mut counted = Counted::default();
        let parts = (table.slots.words().len() * size_of::<u64>()).div_ceil(PASS_BYTES);
        for part in 0..parts {
            let homes = shard(table.slots.words().len(), parts, part);
            let mut word = Word::default();
            for (number, letter) in self.text[begins.start..(begins.end + LETTERS - 1).min(self.text.len())].iter().enumerate() {
                word.push(*letter);
                if number + 1 >= LETTERS && homes.contains(&table.home(word.either())) {
                    table.count(word.either(), &mut counted);
                }
            }
        }
        counted
    }

    fn check(&self, part: Range<usize>) -> Wrongs {
        let mut wrongs = Wrongs::default();
        for (at, found) in (part.start..).zip(&self.text[part]) {
            let expected = letter(self.seed, at);
            if *found != expected {
                wrongs.add(|| format!("letter {at} is {found:#x}, not {expected:#x}"));
            }
        }
        wrongs
    }
}

/// The letter at a place: one of four, of the block itself or of the one that it repeats.
fn letter(start: u64, at: usize) -> u8 {
    let (block, within) = (at / BLOCK, at % BLOCK);
    let chance = nth(mix(start), block as u64);
    // Below `block`, which is a place in memory.
    let origin = if block > 0 && chance.is_multiple_of(4) {
        usize::try_from((chance >> 2) % block as u64).unwrap_or(block)
    } else {
        block
    };
    let from = origin * BLOCK + within;
    let bits = nth(start, (from / LETTERS_OF_WORD) as u64) >> (2 * (from % LETTERS_OF_WORD));
    b"ACTG"[(bits & 3) as usize]
}

/// The last letters, on both strands. A letter's two bits are those of its ASCII code that differ: A 0, C 1, T 2, G 3; the complement is the letter with the upper one turned.
#[derive(Clone, Copy, Debug, Default)]
struct Word {
    forward: u32,
    reverse: u32,
}

impl Word {
    fn push(&mut self, letter: u8) {
        let code = u32::from(letter >> 1 & 3);
        self.forward = self.forward << 2 | code;
        self.reverse = self.reverse >> 2 | (code ^ 2) << (2 * (LETTERS - 1));
    }

    /// The same for both strands.
    fn either(self) -> u64 {
        self.forward.min(self.reverse).into()
    }
}

/// Words and their counts.
#[derive(Debug)]
struct Table {
    slots: Memory,
}

impl Table {
    fn new(size: Bytes) -> Result<Self, String> {
        Ok(Table { slots: Memory::new(size)? })
    }

    /// Where a search for a word begins.
    fn home(&self, word: u64) -> usize {
        let count = self.slots.words().len();
        // Below the number of slots.
        usize::try_from((u128::from(mix(word)) * count as u128) >> 64).unwrap_or(0)
    }

    /// The places of a search, in order.
    fn search(&self, word: u64) -> impl Iterator<Item = (usize, &AtomicU64)> {
        let slots = self.slots.words();
        let home = self.home(word);
        (home..slots.len()).chain(0..home).map(move |at| (at, &slots[at]))
    }

    /// Counts a word. A count never reaches into the word above it: 2^32 times the same one take longer than any run.
    fn count(&self, word: u64, counted: &mut Counted) {
        for (_, slot) in self.search(word) {
            let mut found = slot.load(Relaxed);
            if found == 0 {
                match slot.compare_exchange(0, word << COUNT_BITS | 1, Relaxed, Relaxed) {
                    Ok(_) => return counted.word(word, 1),
                    Err(other) => found = other,
                }
            }
            if found >> COUNT_BITS == word {
                slot.fetch_add(1, Relaxed);
                return counted.word(word, 1);
            }
        }
        counted.lost += 1;
    }

    /// What is wrong with a part of it; what it has counted, and how many words are in it.
    fn check(&self, part: Range<usize>) -> (Wrongs, (Counted, u64)) {
        let (mut wrongs, mut counted, mut words) = (Wrongs::default(), Counted::default(), 0);
        for at in part {
            let slot = self.slots.words()[at].load(Relaxed);
            if slot == 0 {
                continue;
            }
            let word = slot >> COUNT_BITS;
            counted.word(word, slot & u64::from(u32::MAX));
            words += 1;
            let mut seen = self.search(word).map(|(at, slot)| (at, slot.load(Relaxed)));
            let found = seen.find(|(_, slot)| *slot == 0 || slot >> COUNT_BITS == word);
            if found.is_none_or(|(found, _)| found != at) {
                wrongs.add(|| format!("the word {word:#x} of slot {at} is not found there"));
            }
        }
        (wrongs, (counted, words))
    }
}

struct Worker<'a> {
    genome: &'a Genome,
    table: &'a Table,
    random: Xoshiro256PlusPlus,
    /// Letters of the read that are left.
    read: Range<usize>,
    word: Word,
    counted: Counted,
}

impl team::Worker for Worker<'_> {
    fn operate(&mut self, _: Stage) {
        let text = &self.genome.text;
        if self.read.is_empty() {
            let begin = self.random.random_range(0..=text.len() - READ);
            text[begin..begin + LETTERS - 1].iter().for_each(|letter| self.word.push(*letter));
            self.read = begin + LETTERS - 1..begin + READ;
        }
        self.word.push(text[self.read.start]);
        self.read.start += 1;
        self.table.count(self.word.either(), &mut self.counted);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::team::Worker as _;

    fn made() -> (Genome, Table) {
        (Genome::new(20_000, 3), Table::new(Bytes(1 << 20)).unwrap())
    }

    /// Letter by letter, without bits.
    fn canonical(letters: &[u8]) -> Vec<u8> {
        let complement = |letter: &u8| match letter {
            b'A' => b'T',
            b'T' => b'A',
            b'C' => b'G',
            _ => b'C',
        };
        let reverse: Vec<u8> = letters.iter().rev().map(complement).collect();
        letters.to_vec().min(reverse)
    }

    fn word_of(letters: &[u8]) -> u64 {
        let mut word = Word::default();
        letters.iter().for_each(|letter| word.push(*letter));
        word.either()
    }

    fn counts(table: &Table) -> HashMap<u64, u64> {
        let slots = table.slots.words().iter().map(|slot| slot.load(Relaxed)).filter(|slot| *slot != 0);
        slots.map(|slot| (slot >> COUNT_BITS, slot & 0xffff_ffff)).collect()
    }

    #[test]
    fn counts_are_those_of_a_map_of_strings_for_any_number_of_threads() {
        let (genome, _) = made();
        let mut naive: HashMap<Vec<u8>, u64> = HashMap::new();
        genome.text.windows(LETTERS).for_each(|letters| *naive.entry(canonical(letters)).or_default() += 1);
        // Some words are there several times, since blocks are copies.
        assert!(naive.values().any(|count| *count > 1) && naive.values().sum::<u64>() == 19_985);
        let naive: HashMap<u64, u64> = naive.into_iter().map(|(letters, count)| (word_of(&letters), count)).collect();
        for threads in [1, 2, 5] {
            let table = Table::new(Bytes(1 << 20)).unwrap();
            let mut counted = Counted::default();
            for thread in 0..threads {
                counted.add(&genome.count_all(&table, shard(genome.words(), threads, thread)));
            }
            assert!(counts(&table) == naive, "{threads} threads");
            let (wrongs, (found, words)) = table.check(0..table.slots.words().len());
            assert_eq!((wrongs.lines(), found, words), (vec![], counted, naive.len() as u64));
        }
    }

    #[test]
    fn a_word_and_its_reverse_complement_are_one() {
        assert_eq!(word_of(b"AACCAACCAACCAACG"), word_of(b"CGTTGGTTGGTTGGTT"));
        assert_ne!(word_of(b"AACCAACCAACCAACG"), word_of(b"AACCAACCAACCAACC"));
        assert_eq!(word_of(b"AAAAAAAAAAAAAAAA"), word_of(b"TTTTTTTTTTTTTTTT"));
    }

    #[test]
    fn reads_are_counted_and_what_is_lost_is_found() {
        let (genome, table) = made();
        let mut counted = genome.count_all(&table, 0..genome.words());
        let mut worker = Worker {
            genome: &genome,
            table: &table,
            random: generator(1, 0),
            read: 0..0,
            word: Word::default(),
            counted: Counted::default(),
        };
        (0..10_000).for_each(|_| worker.operate(Stage::Measure));
        assert_eq!(worker.counted.count, 10_000);
        counted.add(&worker.counted);
        let check = || table.check(0..table.slots.words().len());
        assert_eq!(differences(&counted, &check().1.0).lines(), Vec::<String>::new());
        let full = table.slots.words().iter().position(|slot| slot.load(Relaxed) != 0).unwrap();
        let slot = &table.slots.words()[full];
        let before = slot.load(Relaxed);
        // A count that is lost.
        slot.store(before + 1, Relaxed);
        assert!(differences(&counted, &check().1.0).lines()[0].starts_with("the sum of all counts is off by 1 after 29985"));
        // Another word with the same count: the sum is right, the words are not.
        slot.store(before ^ 1 << 60, Relaxed);
        let (wrongs, (found, _)) = check();
        assert!(wrongs.lines()[0].contains("is not found there"));
        assert!(differences(&counted, &found).lines()[0].starts_with("the words of the table hash to"));
        // A slot that is empty again, in front of a word that had to go on: that is not found any more, or the sum is off.
        slot.store(0, Relaxed);
        assert_eq!(differences(&counted, &check().1.0).lines().len(), 2);
    }

    #[test]
    fn a_table_without_room_says_so() {
        let genome = Genome::new(4000, 1);
        let table = Table::new(Bytes(4096)).unwrap();
        let counted = genome.count_all(&table, 0..genome.words());
        assert!(counted.lost > 0 && counted.count + counted.lost == genome.words() as u64, "{counted:?}");
        assert!(differences(&counted, &counted).lines()[0].starts_with("the table had no room"));
    }

    #[test]
    fn a_letter_that_changes_is_found() {
        let (mut genome, _) = made();
        assert_eq!(genome.check(0..20_000).lines(), Vec::<String>::new());
        genome.text[777] ^= 4;
        assert!(genome.check(0..20_000).lines()[0].starts_with("letter 777 is"));
    }
}
