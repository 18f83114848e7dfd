//! What is checked at the end, and how it is told.

use std::sync::atomic::Ordering::Relaxed;

use crate::memory::{Contents, Memory, WORDS, mix, shard};
use crate::report::Report;
use crate::team;

/// More than this are counted, not told one by one.
const TOLD: usize = 3;

/// What was found to be wrong.
#[derive(Debug, Default)]
pub struct Wrongs {
    told: Vec<String>,
    count: u64,
}

impl Wrongs {
    /// One more.
    pub fn add(&mut self, what: impl FnOnce() -> String) {
        if self.told.len() < TOLD {
            self.told.push(what());
        }
        self.count += 1;
    }

    /// A word that is not what it must be.
    pub fn expect(&mut self, index: usize, found: u64, expected: u64) {
        if found != expected {
            self.add(|| format!("{} is {found:#x}, not {expected:#x}", place(index)));
        }
    }

    /// All of `other` too.
    pub fn append(&mut self, other: Wrongs) {
        let room = TOLD - self.told.len();
        self.told.extend(other.told.into_iter().take(room));
        self.count += other.count;
    }

    /// All in one.
    pub fn of(all: impl IntoIterator<Item = Wrongs>) -> Self {
        let mut wrongs = Wrongs::default();
        all.into_iter().for_each(|other| wrongs.append(other));
        wrongs
    }

    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// For a reader: empty if nothing is wrong.
    pub fn lines(self) -> Vec<String> {
        let mut lines = self.told;
        let more = self.count - lines.len() as u64;
        if more > 0 {
            lines.push(format!("and {more} more"));
        }
        lines
    }
}

/// A word, for a reader.
pub fn place(index: usize) -> String {
    format!("word {} of page {}", index % WORDS, index / WORDS)
}

/// A number over words and their places. Sums of it (wrapping) are the same in whatever order the words are gone through.
pub fn checksum(index: usize, word: u64) -> u64 {
    mix(word ^ mix(index as u64))
}

/// Writes the contents, as the phase `fill`.
///
/// # Errors
/// As [`team::run`].
pub fn fill(memory: &Memory, contents: Contents, threads: u32, report: &mut Report) -> Result<(), String> {
    let work = |thread| {
        let pages = shard(memory.pages(), threads as usize, thread);
        let first = pages.start * WORDS;
        for (index, word) in (first..).zip(memory.region(pages)) {
            word.store(contents.word(index), Relaxed);
        }
    };
    team::phase(report, "fill", threads, work).map(drop)
}

/// Checks each word, as the phase `verify`: what is at an index must be what `expected` says. Gives what is wrong, and
/// the checksum of what was found.
///
/// # Errors
/// As [`team::run`].
pub fn words(
    memory: &Memory,
    threads: u32,
    report: &mut Report,
    expected: impl Fn(usize) -> u64 + Sync,
) -> Result<(Wrongs, String), String> {
    let work = |thread| {
        let pages = shard(memory.pages(), threads as usize, thread);
        let first = pages.start * WORDS;
        let mut wrongs = Wrongs::default();
        let mut sum = 0_u64;
        for (index, word) in (first..).zip(memory.region(pages)) {
            let found = word.load(Relaxed);
            wrongs.expect(index, found, expected(index));
            sum = sum.wrapping_add(checksum(index, found));
        }
        (wrongs, sum)
    };
    let found = team::phase(report, "verify", threads, work)?;
    let sum = found.iter().fold(0_u64, |sum, (_, part)| sum.wrapping_add(*part));
    Ok((Wrongs::of(found.into_iter().map(|(wrongs, _)| wrongs)), format!("{sum:016x}")))
}

/// Checks words that were counted up from their contents, `updates` times by 1 in all, as the phase `verify`: the sum
/// must be right, and no word may be farther from where it began than all updates together.
///
/// # Errors
/// As [`team::run`].
pub fn updates(memory: &Memory, contents: Contents, threads: u32, report: &mut Report, updates: u64) -> Result<Wrongs, String> {
    let work = |thread| {
        let pages = shard(memory.pages(), threads as usize, thread);
        let first = pages.start * WORDS;
        let mut wrongs = Wrongs::default();
        let mut sum = 0_u64;
        for (index, word) in (first..).zip(memory.region(pages)) {
            let (found, began) = (word.load(Relaxed), contents.word(index));
            let added = found.wrapping_sub(began);
            if added > updates {
                wrongs.add(|| format!("{} is {found:#x}, which updates cannot make of {began:#x}", place(index)));
            }
            sum = sum.wrapping_add(added);
        }
        (wrongs, sum)
    };
    let found = team::phase(report, "verify", threads, work)?;
    let sum = found.iter().fold(0_u64, |sum, (_, part)| sum.wrapping_add(*part));
    let mut wrongs = Wrongs::of(found.into_iter().map(|(wrongs, _)| wrongs));
    if sum != updates {
        // Signed, since a lost update is the likeliest fault.
        let off = sum.wrapping_sub(updates).cast_signed();
        wrongs.add(|| format!("the sum of all words is off by {off} after {updates} updates"));
    }
    Ok(wrongs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_load::size::Bytes;

    fn filled() -> Result<(Memory, Contents, Report), String> {
        let (memory, contents, mut report) = (Memory::new(Bytes(1 << 20))?, Contents::new(7), Report::new(false)?);
        fill(&memory, contents, 3, &mut report)?;
        Ok((memory, contents, report))
    }

    #[test]
    fn a_flipped_word_is_found() -> Result<(), String> {
        let (memory, contents, mut report) = filled()?;
        let good = words(&memory, 2, &mut report, |index| contents.word(index))?;
        assert_eq!(good.0.lines(), Vec::<String>::new());
        memory.page(200)[17].fetch_xor(1 << 40, Relaxed);
        let bad = words(&memory, 3, &mut report, |index| contents.word(index))?;
        let lines = bad.0.lines();
        assert_eq!(lines.len(), 1);
        assert!(lines[0].starts_with("word 17 of page 200 is"), "{lines:?}");
        assert_ne!(good.1, bad.1);
        Ok(())
    }

    #[test]
    fn the_checksum_knows_places_but_not_threads() -> Result<(), String> {
        let (memory, contents, mut report) = filled()?;
        let [one, many] = [1, 5].map(|threads| words(&memory, threads, &mut report, |index| contents.word(index)));
        let one = one?.1;
        assert_eq!(one, many?.1);
        let (a, b) = (memory.words()[0].load(Relaxed), memory.words()[1].load(Relaxed));
        memory.words()[0].store(b, Relaxed);
        memory.words()[1].store(a, Relaxed);
        assert_ne!(words(&memory, 1, &mut report, |index| contents.word(index))?.1, one);
        Ok(())
    }

    #[test]
    fn a_lost_update_and_a_page_of_before_are_found() -> Result<(), String> {
        let (memory, contents, mut report) = filled()?;
        for index in 0..1000 {
            memory.words()[index * 7].fetch_add(1, Relaxed);
        }
        assert_eq!(updates(&memory, contents, 3, &mut report, 1000)?.lines(), Vec::<String>::new());
        memory.words()[7].fetch_sub(1, Relaxed);
        let lost = updates(&memory, contents, 1, &mut report, 1000)?.lines();
        assert_eq!(lost, ["the sum of all words is off by -1 after 1000 updates"]);
        memory.words()[7].fetch_add(1, Relaxed);
        for word in memory.page(100) {
            word.store(0, Relaxed);
        }
        let lines = updates(&memory, contents, 2, &mut report, 1000)?.lines();
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert!(lines[0].starts_with("word 0 of page 100 is 0x0,"), "{lines:?}");
        Ok(())
    }

    #[test]
    fn two_words_that_make_up_for_each_other_are_found() -> Result<(), String> {
        let (memory, contents, mut report) = filled()?;
        memory.words()[3].fetch_add(1 << 50, Relaxed);
        memory.words()[9000].fetch_sub(1 << 50, Relaxed);
        assert_eq!(updates(&memory, contents, 2, &mut report, 0)?.lines().len(), 2);
        Ok(())
    }
}
