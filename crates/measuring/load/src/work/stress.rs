//! `stress`: every thread writes memory of its own and reads it back, several times.
//!
//! Each pass writes other words. All words are checked as they are read back, so there is nothing to verify at the end.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use farshore_load::outcome::Outcome;
use farshore_load::workload;

use crate::memory::{Contents, Memory, PAGE, WORDS, shard};
use crate::record::Recorder;
use crate::report::Report;
use crate::team;
use crate::verify::{Wrongs, checksum};

/// Runs it.
///
/// # Errors
/// If memory or threads are not to be had.
pub fn run(args: &workload::Stress, report: &mut Report) -> Result<Outcome, String> {
    let common = &args.common;
    let memory = Memory::new(common.size)?;
    let contents = Contents::new(common.seed);
    let mut fixed = team::Fixed::new(common.threads);
    let work = |thread, recorder: &mut Recorder| {
        let pages = shard(memory.pages(), common.threads as usize, thread);
        let (mut wrongs, mut sum) = (Wrongs::default(), 0);
        for pass in 0..args.passes {
            let contents = contents.another(pass.into());
            write(&memory, &pages, contents, recorder);
            sum = read_back(&memory, &pages, contents, recorder, &mut wrongs);
        }
        (wrongs, sum)
    };
    let found = fixed.part(report, |_, _| {}, work)?.results;
    let total = fixed.end(report);
    let sum = found.iter().fold(0_u64, |sum, (_, part)| sum.wrapping_add(*part));
    let wrongs = Wrongs::of(found.into_iter().map(|(wrongs, _)| wrongs));
    let verified = format!("each of {} words after each of {} writes", memory.words().len(), args.passes);
    let outcome = Outcome {
        unit: "page".into(),
        bytes_per_operation: PAGE as u64,
        verified,
        checksum: format!("{sum:016x}"),
        wrong: wrongs.lines(),
        ..Default::default()
    };
    Ok(super::measured(outcome, total))
}

fn write(memory: &Memory, pages: &Range<usize>, contents: Contents, recorder: &mut Recorder) {
    for page in pages.clone() {
        for (index, word) in (page * WORDS..).zip(memory.page(page)) {
            word.store(contents.word(index), Relaxed);
        }
        recorder.done();
    }
}

/// Checks each word; gives the checksum of what was found.
fn read_back(memory: &Memory, pages: &Range<usize>, contents: Contents, recorder: &mut Recorder, wrongs: &mut Wrongs) -> u64 {
    let mut sum = 0_u64;
    for page in pages.clone() {
        for (index, word) in (page * WORDS..).zip(memory.page(page)) {
            let found = word.load(Relaxed);
            wrongs.expect(index, found, contents.word(index));
            sum = sum.wrapping_add(checksum(index, found));
        }
        recorder.done();
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Total;
    use farshore_load::size::Bytes;
    use quanta::Clock;

    #[test]
    fn a_word_of_the_pass_before_is_found() -> Result<(), String> {
        let memory = Memory::new(Bytes(1 << 20))?;
        let (contents, clock) = (Contents::new(1), Clock::new());
        let mut recorder = Recorder::new(&clock);
        let mut wrongs = Wrongs::default();
        write(&memory, &(10..20), contents.another(0), &mut recorder);
        let before = memory.page(12)[34].load(Relaxed);
        write(&memory, &(10..20), contents.another(1), &mut recorder);
        let good = read_back(&memory, &(10..20), contents.another(1), &mut recorder, &mut wrongs);
        assert_eq!(wrongs.lines(), Vec::<String>::new());
        memory.page(12)[34].store(before, Relaxed);
        let mut wrongs = Wrongs::default();
        let bad = read_back(&memory, &(10..20), contents.another(1), &mut recorder, &mut wrongs);
        let lines = wrongs.lines();
        assert!(lines.len() == 1 && lines[0].starts_with("word 34 of page 12 is"), "{lines:?}");
        assert_ne!(good, bad);
        assert_eq!(Total::of(vec![recorder], 1.0).operations, 40);
        Ok(())
    }
}
