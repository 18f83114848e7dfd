//! Vectors as they lie in far memory: rows of words.
//!
//! ```text
//!  word  0     1 2      3 …
//!        id    check    the vector's numbers, up to a multiple of the lanes
//! ```
//!
//! **The check** is made of the row's words, its id and its *place*. Whoever compares a row with a query looks at it, in the same pass and over the very
//! words that were compared. So a row with another word in it is no answer but an error; and so is a whole row of somewhere else, or of another time, which
//! a check over its words alone would take for right.
//!
//! A lane takes its words in one after the other: each step mixes the word with all before it, and no two words take a step to the same. So one word that is another one
//! always changes its lane. Sums would not do: what changes the uppermost bits of words, such as the signs of numbers, is lost in them.

use std::io;

use farshore_load::vectors::{LANES, total};

use crate::memory::Region;
use crate::numbers::mix;

/// Words before the vector.
const HEAD: usize = 3;
/// Tells the lanes apart.
const LANE: u64 = 0x9e6c_63d0_876a_3f6b;

/// Rows, each with a vector.
#[derive(Debug)]
pub struct Rows {
    words: Region<u32>,
    row_words: usize,
}

/// What a row's lanes come to.
#[derive(Clone, Copy, Default)]
struct Lanes([u32; LANES]);

impl Lanes {
    #[inline]
    fn add(&mut self, lane: usize, word: u32) {
        // An odd number, so that the step can be undone; the shift brings the upper bits, which a multiplication leaves alone, to the lower ones.
        let mixed = (self.0[lane] ^ word).wrapping_mul(0x9e37_79b1);
        self.0[lane] = mixed ^ mixed >> 15;
    }

    #[inline]
    fn check(&self, place: usize, id: u32) -> u64 {
        let mut check = mix((place as u64) << 32 | u64::from(id));
        for lane in 0..LANES {
            check = check.wrapping_add(mix(u64::from(self.0[lane]) ^ LANE.wrapping_mul(lane as u64 + 1)));
        }
        check
    }
}

impl Rows {
    /// Room for `count` vectors of this stride.
    ///
    /// # Errors
    /// If the kernel does not give that much address space.
    pub fn new(count: usize, stride: usize) -> io::Result<Rows> {
        let row_words = HEAD + stride;
        let words = Region::new(count.checked_mul(row_words).ok_or(io::ErrorKind::OutOfMemory)?)?;
        Ok(Rows { words, row_words })
    }

    /// Writes a row.
    pub fn put(&mut self, place: usize, id: u32, vector: &[f32]) {
        let row = &mut self.words[place * self.row_words..][..self.row_words];
        let mut lanes = Lanes::default();
        for (at, (word, number)) in row[HEAD..].iter_mut().zip(vector).enumerate() {
            *word = number.to_bits();
            lanes.add(at % LANES, *word);
        }
        let check = lanes.check(place, id);
        (row[0], row[1], row[2]) = (id, check as u32, (check >> 32) as u32);
    }

    /// The distance of a row's vector to the query, as [`farshore_load::vectors::distance`] has it, and its id. `None`: the row is not what was written.
    #[inline]
    pub fn look(&self, place: usize, query: &[f32]) -> Option<(f32, u32)> {
        let row = &self.words[place * self.row_words..][..self.row_words];
        let (mut squares, mut lanes) = ([0.0; LANES], Lanes::default());
        let (id, check) = (row[0], u64::from(row[1]) | u64::from(row[2]) << 32);
        for (words, query) in row[HEAD..].as_chunks::<LANES>().0.iter().zip(query.as_chunks::<LANES>().0) {
            for lane in 0..LANES {
                let apart = query[lane] - f32::from_bits(words[lane]);
                squares[lane] += apart * apart;
                lanes.add(lane, words[lane]);
            }
        }
        (lanes.check(place, id) == check).then(|| (total(&squares), id))
    }

    /// The words, for tests that change them.
    #[cfg(test)]
    pub fn words(&mut self) -> &mut [u32] {
        &mut self.words
    }
}

#[cfg(test)]
mod tests {
    use farshore_load::vectors::{Vectors, distance, stride};

    use super::*;

    const DIMENSIONS: usize = 28;
    const COUNT: usize = 40;

    fn vector(number: u64) -> Vec<f32> {
        let vectors = Vectors::made(DIMENSIONS);
        let mut to = vec![0.0; stride(DIMENSIONS)];
        vectors.get(number, &mut to).unwrap();
        to
    }

    fn rows() -> Rows {
        let mut rows = Rows::new(COUNT, stride(DIMENSIONS)).unwrap();
        for place in 0..COUNT {
            rows.put(place, 900 - place as u32, &vector(place as u64));
        }
        rows
    }

    #[test]
    fn a_row_is_as_far_as_its_vector() {
        let (rows, query) = (rows(), vector(77));
        for place in 0..COUNT {
            let wanted = (distance(&query, &vector(place as u64)), 900 - place as u32);
            assert_eq!(rows.look(place, &query), Some(wanted), "{place}");
        }
        // Numbers that are not whole: to the last bit all the same.
        let odd: Vec<f32> = query.iter().map(|number| number / 3.0).collect();
        let mut rows = Rows::new(1, stride(DIMENSIONS)).unwrap();
        rows.put(0, 5, &odd);
        assert_eq!(rows.look(0, &query).map(|(far, _)| far.to_bits()), Some(distance(&query, &odd).to_bits()));
    }

    #[test]
    fn each_bit_is_missed() {
        let (mut rows, query) = (rows(), vector(77));
        let row_words = rows.row_words;
        for place in [0, 17, COUNT - 1] {
            for bit in 0..row_words * 32 {
                rows.words()[place * row_words + bit / 32] ^= 1 << (bit % 32);
                assert_eq!(rows.look(place, &query), None, "bit {bit} of row {place}");
                rows.words()[place * row_words + bit / 32] ^= 1 << (bit % 32);
            }
            assert!(rows.look(place, &query).is_some());
        }
    }

    #[test]
    fn what_sums_would_not_see_is_missed() {
        let wide = 128;
        let mut numbers: Vec<f32> = (0..wide).map(|n| (n % 7) as f32).collect();
        (numbers[8], numbers[40]) = (0.0, 2.0);
        let mut rows = Rows::new(1, wide).unwrap();
        rows.put(0, 5, &numbers);
        let good = rows.words().to_vec();
        let mut missed = |change: &dyn Fn(&mut [u32])| {
            rows.words().copy_from_slice(&good);
            assert!(rows.look(0, &numbers).is_some());
            change(&mut rows.words()[HEAD..]);
            assert_ne!(&good[..], &rows.words()[..], "nothing is changed");
            assert_eq!(rows.look(0, &numbers), None);
        };
        missed(&|words| words.swap(8, 40));
        missed(&|words| words.iter_mut().for_each(|word| *word ^= 1 << 31));
        missed(&|words| words.iter_mut().step_by(2).for_each(|word| *word |= 1 << 31));
        // Signs of a lane, two and four of them at any distance.
        for far in 1..wide / LANES {
            for count in [2, 4] {
                missed(&|words| words.iter_mut().step_by(far * LANES).take(count).for_each(|word| *word ^= 1 << 31));
            }
        }
    }

    #[test]
    fn a_row_of_elsewhere_or_of_another_time_is_missed() {
        let (mut rows, query) = (rows(), vector(77));
        let row_words = rows.row_words;
        // All of another row, its id and check, too.
        rows.words().copy_within(3 * row_words..4 * row_words, 9 * row_words);
        assert_eq!((rows.look(3, &query).is_some(), rows.look(9, &query)), (true, None));
        // As it was before it was written, as a whole or in part.
        rows.words()[20 * row_words..21 * row_words].fill(0);
        rows.words()[22 * row_words - 5..22 * row_words].fill(0);
        assert_eq!((rows.look(20, &query), rows.look(21, &query)), (None, None));
        // Words that are exchanged, of the same lane and of two.
        rows.words().swap(30 * row_words + HEAD, 30 * row_words + HEAD + LANES);
        rows.words().swap(31 * row_words + HEAD, 31 * row_words + HEAD + 1);
        assert_eq!((rows.look(30, &query), rows.look(31, &query)), (None, None));
        assert!(rows.look(22, &query).is_some() && rows.look(32, &query).is_some());
    }
}
