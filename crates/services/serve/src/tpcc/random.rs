//! Random data by the specification (clauses 2.1.6, 4.3.2 and 4.3.3).

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

/// Syllables of a last name.
const SYLLABLES: [&str; 10] = ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];
/// Last names.
pub const NAMES: u64 = 1000;
/// The constant C of `NURand` for last names, for the data. (`farshore-load` has that for requests, which must be another one: clause 2.1.6.1.)
const C_LAST: u64 = 157;
const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

/// The last name of a number below [`NAMES`].
pub fn last_name(number: u64) -> String {
    [number / 100, number / 10, number].map(|digit| SYLLABLES[(digit % 10) as usize]).concat()
}

/// The number of a last name; there are no others.
pub fn number_of(name: &[u8]) -> Option<u64> {
    let (mut rest, mut number) = (name, 0);
    // No syllable is the beginning of another one.
    for _ in 0..3 {
        let digit = SYLLABLES.iter().position(|syllable| rest.starts_with(syllable.as_bytes()))?;
        rest = &rest[SYLLABLES[digit].len()..];
        number = number * 10 + digit as u64;
    }
    rest.is_empty().then_some(number)
}

/// Numbers and texts from a seed.
#[derive(Debug)]
pub struct Dice(Xoshiro256PlusPlus);

impl Dice {
    /// From this seed.
    pub fn new(seed: u64) -> Dice {
        Dice(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// A number from `low` to `high`, with both.
    pub fn number(&mut self, low: u64, high: u64) -> u64 {
        self.0.random_range(low..=high)
    }

    /// True in one of so many cases.
    pub fn one_in(&mut self, count: u64) -> bool {
        self.number(1, count) == 1
    }

    /// The number of a last name, of those that the data have: not uniform.
    pub fn name(&mut self) -> u64 {
        ((self.number(0, 255) | self.number(0, NAMES - 1)) + C_LAST) % NAMES
    }

    /// A permutation of 1 to `count`.
    pub fn permutation(&mut self, count: u64) -> Vec<u64> {
        let mut all: Vec<u64> = (1..=count).collect();
        for at in (1..all.len()).rev() {
            all.swap(at, self.number(0, at as u64) as usize);
        }
        all
    }

    /// Letters and digits, `low` or more of them.
    pub fn letters<const N: usize>(&mut self, low: usize) -> [u8; N] {
        let length = if low == N { N } else { self.number(low as u64, N as u64) as usize };
        let mut text = [0; N];
        for piece in text[..length].chunks_mut(8) {
            let mut bits: u64 = self.0.random();
            for letter in piece {
                // The bias is 1 in 10¹⁸ for the first, and 1 in 10⁵ for the eighth.
                *letter = LETTERS[(bits % 62) as usize];
                bits /= 62;
            }
        }
        text
    }

    /// Digits.
    pub fn digits<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| b'0' + self.number(0, 9) as u8)
    }

    /// A postal code: four digits, and 11111.
    pub fn zip(&mut self) -> [u8; 9] {
        let mut zip = *b"000011111";
        zip[..4].copy_from_slice(&self.digits::<4>());
        zip
    }

    /// `I_DATA` or `S_DATA`: one in ten has "ORIGINAL" somewhere.
    pub fn data(&mut self) -> [u8; 50] {
        let mut data: [u8; 50] = self.letters(26);
        if self.one_in(10) {
            let length = super::rows::text(&data).len();
            let at = self.number(0, length as u64 - 8) as usize;
            data[at..at + 8].copy_from_slice(ORIGINAL);
        }
        data
    }
}

/// What the data of some items and stocks have in them.
pub const ORIGINAL: &[u8; 8] = b"ORIGINAL";

/// Whether these data have it.
pub fn is_original(data: &[u8]) -> bool {
    data.windows(8).any(|piece| piece == ORIGINAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_numbers() {
        assert_eq!(last_name(371), "PRICALLYOUGHT");
        for number in 0..NAMES {
            assert_eq!(number_of(last_name(number).as_bytes()), Some(number));
            assert!(last_name(number).len() <= 16);
        }
        for wrong in ["", "BAR", "BARBAR", "BARBARBARBAR", "BARBARX", "barbarbar", "BARBARBAR "] {
            assert_eq!(number_of(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn texts_and_numbers() {
        let mut dice = Dice::new(1);
        let mut original = 0;
        for _ in 0..2000 {
            let text: [u8; 20] = dice.letters(10);
            let length = crate::tpcc::rows::text(&text).len();
            assert!((10..=20).contains(&length) && text[..length].iter().all(u8::is_ascii_alphanumeric));
            assert!((3..=5).contains(&dice.number(3, 5)) && dice.name() < NAMES);
            original += u32::from(is_original(&dice.data()));
        }
        assert!((120..300).contains(&original), "{original} of 2000, not a tenth");
        let mut sorted = dice.permutation(100);
        assert!(!sorted.is_sorted());
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(1..=100));
    }
}
