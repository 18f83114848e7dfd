//! `scan`: all pages in order, several times. Each thread goes through a part of its own.
//!
//! All words of a page are read and added up, so that each pass is checked by its sum; in `update` mode one word of each
//! page, another one in each pass, is then counted up.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use farshore_load::outcome::Outcome;
use farshore_load::workload::{self, Mode};

use crate::memory::{Contents, Memory, PAGE, WORDS, mix, shard};
use crate::record::Recorder;
use crate::report::Report;
use crate::team;
use crate::verify::{self, Wrongs};

/// Runs it.
///
/// # Errors
/// If memory or threads are not to be had.
pub fn run(args: &workload::Scan, report: &mut Report) -> Result<Outcome, String> {
    let common = &args.common;
    let memory = Memory::new(common.size)?;
    let contents = Contents::new(common.seed);
    verify::fill(&memory, contents, common.threads, report)?;
    let mut fixed = team::Fixed::new(common.threads);
    let scan = |thread, recorder: &mut Recorder| {
        let pages = shard(memory.pages(), common.threads as usize, thread);
        let sums = passes(&memory, &pages, args, recorder);
        Part { pages, sums }
    };
    let parts = fixed.part(report, |_, _| {}, scan)?.results;
    let total = fixed.end(report);
    let outcome = check(&memory, contents, args, &parts, report)?;
    Ok(Outcome { bytes_per_operation: PAGE as u64, ..super::measured(outcome, total) })
}

/// What one thread went through, and the sum of all words in each pass.
struct Part {
    pages: Range<usize>,
    sums: Vec<u64>,
}

fn passes(memory: &Memory, pages: &Range<usize>, args: &workload::Scan, recorder: &mut Recorder) -> Vec<u64> {
    let mut pass = |pass| {
        let mut sum = 0_u64;
        for page in pages.clone() {
            let words = memory.page(page);
            sum = sum.wrapping_add(add_up(words));
            if args.mode == Mode::Update {
                words[target(page, pass)].fetch_add(1, Relaxed);
            }
            recorder.done();
        }
        sum
    };
    (0..args.passes).map(&mut pass).collect()
}

fn add_up(words: &[AtomicU64]) -> u64 {
    words.iter().fold(0, |sum, word| sum.wrapping_add(word.load(Relaxed)))
}

/// The word of a page that a pass updates.
fn target(page: usize, pass: u32) -> usize {
    // Below the number of words of a page.
    (mix(page as u64).wrapping_add(u64::from(pass)) % WORDS as u64) as usize
}

/// How often a word was updated in so many passes: its turn comes every [`WORDS`] of them.
fn updates(index: usize, passes: u32) -> u64 {
    let first = (index % WORDS + WORDS - target(index / WORDS, 0)) % WORDS;
    (passes as usize).saturating_sub(first).div_ceil(WORDS) as u64
}

/// Checks the sum of each pass, and each word at the end.
fn check(
    memory: &Memory,
    contents: Contents,
    args: &workload::Scan,
    parts: &[Part],
    report: &mut Report,
) -> Result<Outcome, String> {
    let passes = if args.mode == Mode::Update { args.passes } else { 0 };
    let expected = |index: usize| contents.word(index).wrapping_add(updates(index, passes));
    let (mut wrongs, checksum) = verify::words(memory, args.common.threads, report, expected)?;
    let found = team::run(args.common.threads, |thread| check_sums(&parts[thread], contents, args.mode), || {}, || {})?;
    wrongs.append(Wrongs::of(found));
    let verified = format!("the sum of each of {} passes, and all {} words at the end", args.passes, memory.words().len());
    Ok(Outcome { unit: "page".into(), verified, checksum, wrong: wrongs.lines(), ..Default::default() })
}

fn check_sums(part: &Part, contents: Contents, mode: Mode) -> Wrongs {
    let words = part.pages.start * WORDS..part.pages.end * WORDS;
    let first = words.fold(0_u64, |sum, index| sum.wrapping_add(contents.word(index)));
    let grows = if mode == Mode::Update { part.pages.len() as u64 } else { 0 };
    let mut wrongs = Wrongs::default();
    for (pass, sum) in (0_u64..).zip(&part.sums) {
        let expected = first.wrapping_add(pass * grows);
        if *sum != expected {
            wrongs.add(|| format!("pages {:?}: the sum in pass {pass} is {sum:#x}, not {expected:#x}", part.pages));
        }
    }
    wrongs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_are_those_of_the_passes() {
        for passes in [0, 1, 2, 511, 512, 513, 1500] {
            for page in [0, 1, 77] {
                let mut counts = [0; WORDS];
                (0..passes).for_each(|pass| counts[target(page, pass)] += 1);
                for (word, count) in counts.iter().enumerate() {
                    assert_eq!(updates(page * WORDS + word, passes), *count, "{passes} {page} {word}");
                }
            }
        }
    }

    #[test]
    fn a_wrong_sum_is_found() {
        let contents = Contents::new(5);
        let sum = (0..2 * WORDS).fold(0_u64, |sum, index| sum.wrapping_add(contents.word(index)));
        let mut part = Part { pages: 0..2, sums: vec![sum, sum + 2, sum + 4] };
        assert_eq!(check_sums(&part, contents, Mode::Update).lines(), Vec::<String>::new());
        part.sums[1] ^= 1 << 33;
        let lines = check_sums(&part, contents, Mode::Update).lines();
        assert!(lines.len() == 1 && lines[0].contains("the sum in pass 1 is"), "{lines:?}");
        assert_eq!(check_sums(&part, contents, Mode::Read).lines().len(), 2);
    }
}
