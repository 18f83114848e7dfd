//! `phase`: map over one region, then reduce over another, as Metis does.
//!
//! ```text
//! input (half)  ──map──▶  pairs (a quarter)  ──reduce──▶  result (a quarter)
//! ```
//!
//! Each two words of the input make a pair of a key and a value. Map: each thread goes through its part of the input
//! in order and writes pairs into buckets of its own, one for each range of keys; buckets grow by pages from the thread's part
//! of the second region. Reduce: each thread goes through the buckets of its range of keys, of all threads, and adds the
//! values up by key: random access within that range of the result. So at the end of map one half of the memory is
//! done with, and another one is wanted.
//!
//! Verified: pairs are made again from the seed, not from memory, and taken off the sums. Nothing must be left.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use farshore_load::outcome::Outcome;
use farshore_load::workload;

use crate::memory::{Contents, Memory, WORDS, mix, shard};
use crate::record::Recorder;
use crate::report::Report;
use crate::team::{self, Fixed};
use crate::verify::{Wrongs, checksum};

/// Words of the input that make a pair.
const WORDS_PER_PAIR: usize = 2;
/// A pair is one word: the value in this many low bits, the key above.
const VALUE_BITS: u32 = 24;
/// A thread has a bucket for each range of keys; of its pages, this share at most may be begun but not full.
const PAGES_PER_BUCKET: usize = 4;

/// Slices of the keys in verification.
const SLICES: usize = 8;

/// Runs it.
///
/// # Errors
/// If memory or threads are not to be had, or if there are too many threads for the memory.
pub fn run(args: &workload::PhaseArgs, report: &mut Report) -> Result<Outcome, String> {
    let common = &args.common;
    let job = Job::new(Memory::new(common.size)?, Contents::new(common.seed), common.threads as usize)?;
    team::phase(report, "fill", common.threads, |thread| job.fill(thread))?;

    let mut fixed = Fixed::new(common.threads);
    let mapped = fixed.part(report, |report, _| report.part("map"), |thread, recorder| job.map(thread, recorder))?;
    report.end_part(job.pairs(), mapped.worst_faults);
    let mut reduce_at = 0.0;
    let opening = |report: &mut Report, at| {
        reduce_at = at;
        report.part("reduce");
    };
    let reduced = fixed.part(report, opening, |thread, recorder| job.reduce(thread, &mapped.results, recorder))?;
    report.end_part(job.pairs(), reduced.worst_faults);
    let mut total = fixed.end(report);
    total.timeline.marks.push((reduce_at, "reduce begins".into()));

    let (wrongs, checksum) = job.verify(common.threads, report)?;
    let verified = format!("the sums of {} pairs by {} keys, and the input", job.pairs(), job.keys);
    let outcome = Outcome { unit: "pair".into(), verified, checksum, wrong: wrongs.lines(), ..Default::default() };
    Ok(super::measured(outcome, total))
}

/// The regions, and how they are shared out.
struct Job {
    memory: Memory,
    contents: Contents,
    threads: usize,
    /// Pages of the second region; the first one, before it, has twice as many, and the third, after it, as many.
    quarter: usize,
    /// Words of the result.
    keys: usize,
    /// Into how many ranges keys are cut.
    ranges: usize,
}

/// Pairs of one thread whose keys are in one range.
#[derive(Default)]
struct Bucket {
    pages: Vec<usize>,
    /// Pairs in the last page.
    used: usize,
}

impl Job {
    fn new(memory: Memory, contents: Contents, threads: usize) -> Result<Self, String> {
        let quarter = memory.pages() / 4;
        let least = quarter / threads;
        if least == 0 {
            return Err(format!(
                "{threads} threads need at least {}K of memory: give more --size or fewer --threads",
                threads * 16
            ));
        }
        let ranges = threads.min(least / PAGES_PER_BUCKET).max(1);
        Ok(Job { memory, contents, threads, quarter, keys: quarter * WORDS, ranges })
    }

    /// Pages of pairs that belong to a thread, counted from the start of their region.
    fn pages_of(&self, thread: usize) -> Range<usize> {
        shard(self.quarter, self.threads, thread)
    }

    /// The pairs that a thread makes, by number. They leave room for buckets whose last page is not full.
    fn pairs_of(&self, thread: usize) -> Range<usize> {
        let pages = self.pages_of(thread);
        let spare = if self.ranges > 1 { self.ranges } else { 0 };
        pages.start * WORDS..(pages.end - spare) * WORDS
    }

    /// All of them.
    fn pairs(&self) -> u64 {
        (0..self.threads).map(|thread| self.pairs_of(thread).len() as u64).sum()
    }

    /// The pages of the input that a thread's pairs are made from.
    fn input_of(&self, thread: usize) -> Range<usize> {
        let pairs = self.pairs_of(thread);
        pairs.start * WORDS_PER_PAIR / WORDS..pairs.end * WORDS_PER_PAIR / WORDS
    }

    fn fill(&self, thread: usize) {
        let pages = self.input_of(thread);
        for (index, word) in (pages.start * WORDS..).zip(self.memory.region(pages)) {
            word.store(self.contents.word(index), Relaxed);
        }
    }

    /// The key of a pair, from its number and its first word.
    fn key(&self, number: usize, word: u64) -> usize {
        // Words repeat in the input, keys must not.
        let spread = mix(word.wrapping_add(number as u64));
        // The high half of the product is below the number of keys.
        ((u128::from(spread) * self.keys as u128) >> u64::BITS) as usize
    }

    fn map(&self, thread: usize, recorder: &mut Recorder) -> Vec<Bucket> {
        let mut buckets: Vec<Bucket> = (0..self.ranges).map(|_| Bucket::default()).collect();
        let mut free = self.pages_of(thread).map(|page| 2 * self.quarter + page);
        let pairs = self.pairs_of(thread);
        for first in pairs.step_by(WORDS) {
            let input = &self.memory.words()[first * WORDS_PER_PAIR..][..WORDS * WORDS_PER_PAIR];
            for (number, words) in (first..).zip(input.chunks_exact(WORDS_PER_PAIR)) {
                let (key, value) = (self.key(number, words[0].load(Relaxed)), value(words[1].load(Relaxed)));
                let bucket = &mut buckets[self.range_of(key)];
                if bucket.pages.is_empty() || bucket.used == WORDS {
                    // There is one: all buckets but for one spare page each have as many pages as pairs fill.
                    bucket.pages.extend(free.next());
                    bucket.used = 0;
                }
                let page = bucket.pages[bucket.pages.len() - 1];
                self.memory.page(page)[bucket.used].store((key as u64) << VALUE_BITS | value, Relaxed);
                bucket.used += 1;
            }
            recorder.done_untimed(WORDS as u64);
        }
        buckets
    }

    /// The range of keys that a key is in.
    fn range_of(&self, key: usize) -> usize {
        key * self.ranges / self.keys
    }

    /// Where there are more threads than ranges, those of one range share its buckets out, by the thread that wrote them.
    fn reduce(&self, thread: usize, mapped: &[Vec<Bucket>], recorder: &mut Recorder) {
        let (range, turn) = (thread % self.ranges, thread / self.ranges);
        let sharers = (self.threads - range).div_ceil(self.ranges);
        let result = self.result();
        for buckets in mapped.iter().skip(turn).step_by(sharers) {
            let bucket = &buckets[range];
            for (number, page) in (1..).zip(&bucket.pages) {
                let used = if number == bucket.pages.len() { bucket.used } else { WORDS };
                for word in &self.memory.page(*page)[..used] {
                    let pair = word.load(Relaxed);
                    let (key, value) = ((pair >> VALUE_BITS) as usize, pair & ((1 << VALUE_BITS) - 1));
                    // A key that is none is wrong data: the sum that lacks it tells.
                    if let Some(sum) = result.get(key) {
                        sum.fetch_add(value, Relaxed);
                    }
                }
                recorder.done_untimed(used as u64);
            }
        }
    }

    /// The sums by key.
    fn result(&self) -> &[AtomicU64] {
        self.memory.region(3 * self.quarter..4 * self.quarter)
    }

    /// As the phase `verify`. The sums are gone after that.
    fn verify(&self, threads: u32, report: &mut Report) -> Result<(Wrongs, String), String> {
        let found = team::phase(report, "verify", threads, |thread| self.check_input(thread))?;
        let sum = found.iter().fold(0_u64, |sum, (_, part)| sum.wrapping_add(*part));
        let mut wrongs = Wrongs::of(found.into_iter().map(|(wrongs, _)| wrongs));
        team::run(threads, |thread| self.take_off(thread), || {}, || {})?;
        wrongs.append(Wrongs::of(team::run(threads, |thread| self.check_nothing_left(thread), || {}, || {})?));
        Ok((wrongs, format!("{sum:016x}")))
    }

    /// Checks the input, and gives the checksum of a part of the result.
    fn check_input(&self, thread: usize) -> (Wrongs, u64) {
        let mut wrongs = Wrongs::default();
        let pages = self.input_of(thread);
        for (index, word) in (pages.start * WORDS..).zip(self.memory.region(pages)) {
            wrongs.expect(index, word.load(Relaxed), self.contents.word(index));
        }
        let keys = shard(self.keys, self.threads, thread);
        let sums = keys.clone().zip(&self.result()[keys]);
        (wrongs, sums.fold(0, |all, (key, sum)| all.wrapping_add(checksum(key, sum.load(Relaxed)))))
    }

    /// Pairs are made again for each slice of the keys, so that what is taken off stays within a small part of the result.
    fn take_off(&self, thread: usize) {
        for slice in (0..SLICES).map(|slice| shard(self.keys, SLICES, slice)) {
            for number in self.pairs_of(thread) {
                let first = number * WORDS_PER_PAIR;
                let key = self.key(number, self.contents.word(first));
                if slice.contains(&key) {
                    self.result()[key].fetch_sub(value(self.contents.word(first + 1)), Relaxed);
                }
            }
        }
    }

    fn check_nothing_left(&self, thread: usize) -> Wrongs {
        let keys = shard(self.keys, self.threads, thread);
        let mut wrongs = Wrongs::default();
        for (key, sum) in keys.clone().zip(&self.result()[keys]) {
            let left = sum.load(Relaxed).cast_signed();
            if left != 0 {
                wrongs.add(|| format!("the sum of key {key} is off by {left}"));
            }
        }
        wrongs
    }
}

/// The value of a pair, from its second word.
fn value(word: u64) -> u64 {
    word >> (u64::BITS - VALUE_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_load::size::Bytes;
    use quanta::Clock;

    fn done(size: u64, threads: usize) -> Result<(Job, Vec<Vec<Bucket>>), String> {
        let job = Job::new(Memory::new(Bytes(size))?, Contents::new(1), threads)?;
        let mut recorder = Recorder::new(&Clock::new());
        (0..threads).for_each(|thread| job.fill(thread));
        let mapped: Vec<_> = (0..threads).map(|thread| job.map(thread, &mut recorder)).collect();
        (0..threads).for_each(|thread| job.reduce(thread, &mapped, &mut recorder));
        let written: usize = mapped.iter().flatten().map(|bucket| (bucket.pages.len().max(1) - 1) * WORDS + bucket.used).sum();
        assert_eq!(written as u64, job.pairs());
        assert_eq!(crate::record::Total::of(vec![recorder], 1.0).operations, 2 * job.pairs());
        Ok((job, mapped))
    }

    #[test]
    fn all_is_added_up_however_it_is_shared_out() -> Result<(), String> {
        // More threads than ranges, as many, a page of pairs for each thread, one thread.
        for (size, threads) in [(1 << 20, 10), (4 << 20, 3), (1 << 20, 64), (5 << 20, 1), (2 << 20, 11)] {
            let (job, _) = done(size, threads)?;
            assert!(4 * job.pairs() >= 3 * job.keys as u64, "{} pairs, {} keys", job.pairs(), job.keys);
            let (wrongs, _) = job.verify(u32::try_from(threads).unwrap_or(0), &mut Report::new(false)?)?;
            assert_eq!(wrongs.lines(), Vec::<String>::new(), "{size} {threads}");
        }
        Ok(())
    }

    #[test]
    fn keys_of_a_bucket_are_in_its_range() -> Result<(), String> {
        let (job, mapped) = done(4 << 20, 5)?;
        assert_eq!(job.ranges, 5);
        for buckets in &mapped {
            for (range, bucket) in buckets.iter().enumerate() {
                let first = job.memory.page(bucket.pages[0])[0].load(Relaxed);
                assert_eq!(job.range_of((first >> VALUE_BITS) as usize), range);
            }
        }
        Ok(())
    }

    #[test]
    fn wrong_words_are_found() -> Result<(), String> {
        let report = &mut Report::new(false)?;
        let (job, _) = done(1 << 20, 2)?;
        job.result()[77].fetch_add(5, Relaxed);
        assert_eq!(job.verify(2, report)?.0.lines(), ["the sum of key 77 is off by 5"]);

        let (job, _) = done(1 << 20, 2)?;
        job.memory.page(3)[4].fetch_xor(1, Relaxed);
        let lines = job.verify(2, report)?.0.lines();
        assert!(lines.len() == 1 && lines[0].starts_with("word 4 of page 3 is"), "{lines:?}");

        // A pair that is another one when it is read back.
        let (job, mapped) = done(1 << 20, 2)?;
        job.result().iter().for_each(|sum| sum.store(0, Relaxed));
        job.memory.page(mapped[1][0].pages[2])[9].fetch_xor(1 << 20, Relaxed);
        let mut recorder = Recorder::new(&Clock::new());
        (0..2).for_each(|thread| job.reduce(thread, &mapped, &mut recorder));
        let lines = job.verify(2, report)?.0.lines();
        assert!(lines.len() == 1 && lines[0].contains("is off by"), "{lines:?}");
        Ok(())
    }

    #[test]
    fn too_many_threads_are_refused() -> Result<(), String> {
        assert!(Job::new(Memory::new(Bytes(1 << 20))?, Contents::new(1), 64).is_ok());
        let refusal = Job::new(Memory::new(Bytes(1 << 20))?, Contents::new(1), 65).err().unwrap_or_default();
        assert!(refusal.contains("1040K"), "{refusal}");
        Ok(())
    }
}
