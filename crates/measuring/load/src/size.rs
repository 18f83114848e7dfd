//! Sizes such as `512M`: powers of 1024. `farshore-load` depends on nothing of Farshore's, so it reads sizes itself. It
//! takes and refuses the same texts in the same words as Farshore's options do: both are tested with one table.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// The units, smallest first: each is 1024 times the one before.
const UNITS: [char; 4] = ['K', 'M', 'G', 'T'];
/// What to write instead.
const VALID: &str = "write a number with K, M, G or T (powers of 1024), such as 64M, 2G or 1.5G";

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        read(text.trim()).map(Bytes).map_err(|why| format!("invalid size {text:?}: {why}; {VALID}"))
    }
}

/// The bytes, or what is wrong.
fn read(text: &str) -> Result<u64, &'static str> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()));
    if !number.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(match text.chars().next() {
            None => "it is empty",
            Some('-') => "a size cannot be negative",
            Some(_) => "it does not begin with a digit",
        });
    }
    let unit = unit.trim_start().to_ascii_uppercase();
    let place = UNITS.iter().position(|letter| unit.starts_with(*letter));
    let (shift, known) = match place {
        Some(place) => (10 * (place + 1), matches!(&unit[1..], "" | "B" | "IB")),
        None => (0, matches!(&unit[..], "" | "B")),
    };
    if !known {
        return Err("its unit is not known");
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if number.ends_with('.') || fraction.contains('.') {
        return Err("its number is not complete");
    }
    if !fraction.is_empty() && shift == 0 {
        return Err("it is not a whole number of bytes");
    }
    let too_large = "it is larger than 16E - 1";
    let whole: u64 = whole.parse().map_err(|_| too_large)?;
    // From the last digit up. What is below a byte is dropped at each, by which nothing is lost.
    let part = fraction.bytes().rev().fold(0, |part, digit| ((u64::from(digit - b'0') << shift) + part) / 10);
    u64::try_from((u128::from(whole) << shift) + u128::from(part)).map_err(|_| too_large)
}

impl fmt::Display for Bytes {
    /// Exact: `512M`, `1536K`, `4097`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 0 is a multiple of every unit, and is written without one.
        let exact = (1..=UNITS.len()).rev().find(|place| self.0 != 0 && self.0.trailing_zeros() as usize >= 10 * place);
        match exact {
            Some(place) => write!(f, "{}{}", self.0 >> (10 * place), UNITS[place - 1]),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        for (text, bytes) in [("512M", 512 << 20), ("1536K", 1536 << 10), ("4097", 4097), ("2T", 2 << 40)] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)));
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(Bytes(0).to_string(), "0");
    }

    /// The same table as for Farshore's options, and for the sizes that tests in Python and C read.
    #[test]
    fn reads_and_refuses_as_the_shared_table_says() {
        let table: Vec<(String, serde_json::Value)> =
            serde_json::from_str(include_str!("../../../../tests/sizes.json")).unwrap_or_else(|error| panic!("{error}"));
        assert!(!table.is_empty());
        for (text, wanted) in table {
            let refused = || format!("invalid size {text:?}: {}; {VALID}", wanted.as_str().unwrap_or_default());
            assert_eq!(text.parse(), wanted.as_u64().map(Bytes).ok_or_else(refused), "{text:?}");
        }
    }
}
