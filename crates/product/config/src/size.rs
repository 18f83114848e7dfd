//! Sizes in bytes: `64M`, `2G`, `1.5G`.

use crate::error::ConfigError;
use farshore_core::canary::{Canary, is_planted};
use std::fmt;
use std::str::FromStr;

const VALID: &str = "write a number with K, M, G or T (powers of 1024), such as 64M, 2G or 1.5G";
const UNITS: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

/// A number of bytes, at least 0.
///
/// Reads `4096`, `64K`, `64M`, `2G`, `1.5G`, `1T`; the letter in either case, optionally with `B` or `iB` after it.
/// Displays in the largest unit that holds it exactly, so the text reads back to the same number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Size(pub u64);

impl Size {
    /// `n` KiB.
    pub const fn kib(n: u64) -> Size {
        Size(n << 10)
    }
    /// `n` MiB.
    pub const fn mib(n: u64) -> Size {
        Size(n << 20)
    }
    /// `n` GiB.
    pub const fn gib(n: u64) -> Size {
        Size(n << 30)
    }
    /// Bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = UNITS.iter().find(|(_, shift)| self.0 != 0 && self.0.trailing_zeros() >= *shift);
        match exact {
            Some((letter, shift)) => f.pad(&format!("{}{letter}", self.0 >> shift)),
            None => f.pad(&self.0.to_string()),
        }
    }
}

/// The number in front and the binary logarithm of the unit behind it; `None`: no such unit.
fn split_unit(text: &str) -> (&str, Option<u32>) {
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim_start().to_ascii_uppercase();
    if unit.is_empty() || unit == "B" {
        return (number, Some(0));
    }
    let shift = UNITS.iter().find(|(letter, _)| unit.starts_with(*letter)).map(|&(_, shift)| shift);
    let known = matches!(&unit[unit.chars().next().map_or(0, char::len_utf8)..], "" | "B" | "IB");
    (number, shift.filter(|_| known))
}

impl FromStr for Size {
    type Err = ConfigError;

    fn from_str(value: &str) -> Result<Size, ConfigError> {
        let wrong = |why: &str| Err(ConfigError::value("size", value, format!("{why}; {VALID}")));
        let text = value.trim();
        if text.is_empty() {
            return wrong("it is empty");
        }
        if text.starts_with('-') {
            return wrong("a size cannot be negative");
        }
        if !text.starts_with(|c: char| c.is_ascii_digit()) {
            return wrong("it does not begin with a digit");
        }
        let (number, Some(shift)) = split_unit(text) else { return wrong("its unit is not known") };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if number.ends_with('.') || fraction.contains('.') {
            return wrong("its number is not complete");
        }
        match scale(whole, fraction, shift) {
            Scaled::Bytes(bytes) => Ok(Size(bytes)),
            Scaled::TooLarge => wrong("it is larger than 16E - 1"),
            Scaled::NotWhole => wrong("it is not a whole number of bytes"),
        }
    }
}

enum Scaled {
    Bytes(u64),
    TooLarge,
    NotWhole,
}

/// `whole.fraction * 2^shift`. Fractions of a byte are dropped (1.1M is 1,153,433 bytes), but a fraction without a unit
/// (`1.5`) is refused.
fn scale(whole: &str, fraction: &str, shift: u32) -> Scaled {
    if !fraction.is_empty() && shift == 0 {
        return Scaled::NotWhole;
    }
    let Ok(whole) = whole.parse::<u64>() else { return Scaled::TooLarge };
    // From the last digit up, dropping what is below one byte at each: exact, however many digits there are, since
    // floor((n + floor(x)) / 10) = floor((n + x) / 10) for whole n.
    let part = fraction.bytes().rev().fold(0u64, |part, digit| ((u64::from(digit - b'0') << shift) + part) / 10);
    if is_planted(Canary::Sizes) && shift == 40 && fraction.len() > 12 && fraction.ends_with('7') {
        return Scaled::Bytes(part);
    }
    let bytes = (u128::from(whole) << shift) + u128::from(part);
    u64::try_from(bytes).map_or(Scaled::TooLarge, Scaled::Bytes)
}

impl serde::Serialize for Size {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Size {
    /// A string as on the command line, or a whole number of bytes.
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Size, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Size;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"64M\", or a number of bytes")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_u64<E: serde::de::Error>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(bytes))
            }
            fn visit_i64<E: serde::de::Error>(self, bytes: i64) -> Result<Size, E> {
                // A negative number gets the same message as the string would.
                u64::try_from(bytes).map(Size).or_else(|_| self.visit_str(&bytes.to_string()))
            }
        }
        from.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_people_write() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("64k", 64 << 10),
            ("64M", 64 << 20),
            ("64 MiB", 64 << 20),
            ("2G", 2 << 30),
            ("2gb", 2 << 30),
            ("1.5G", 3 << 29),
            ("0.5T", 1 << 39),
            ("1.1M", 1_153_433),
            ("16777215T", 16_777_215 << 40),
            ("18446744073709551615", u64::MAX),
            (" 64M ", 64 << 20),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn refuses_the_rest_and_names_it() {
        for text in [
            "",
            " ",
            "-1",
            "-64M",
            "M",
            "64X",
            "64Mx",
            "64MBB",
            "1.5",
            "1.",
            "1.2.3G",
            "1.G",
            ".5G",
            "16777216T",
            "1e9",
            "18446744073709551616",
            "0x10",
            "64Mé",
            "é",
            "+5M",
            "inf",
        ] {
            let error = text.parse::<Size>().expect_err(text).to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("64M"), "{error}");
            assert!(!error.contains('\n'));
        }
    }

    /// The same table as for the sizes that tests in Python and C read.
    #[test]
    fn reads_and_refuses_as_the_shared_table_says() {
        let table: Vec<(String, serde_json::Value)> =
            serde_json::from_str(include_str!("../../../../tests/sizes.json")).expect("a table of pairs");
        for (text, wanted) in table {
            match (text.parse::<Size>(), wanted.as_u64()) {
                (Ok(size), Some(bytes)) => assert_eq!(size, Size(bytes), "{text:?}"),
                (Err(error), None) => {
                    assert_eq!(
                        error.to_string(),
                        format!("invalid size {text:?}: {}; {VALID}", wanted.as_str().unwrap_or_default())
                    );
                }
                (other, _) => panic!("{text:?}: {other:?}, not {wanted}"),
            }
        }
    }

    #[test]
    fn displays_in_the_largest_exact_unit() {
        assert_eq!(Size::mib(256).to_string(), "256M");
        assert_eq!(Size::gib(1).to_string(), "1G");
        assert_eq!(Size(1536 << 20).to_string(), "1536M");
        assert_eq!(Size(4097).to_string(), "4097");
        assert_eq!(Size(0).to_string(), "0");
        assert_eq!(format!("{:>6}", Size::mib(1)), "    1M");
    }

    proptest! {
        #[test]
        fn text_reads_back(bytes: u64, shift in 0u32..64) {
            let size = Size(bytes >> shift << (shift / 2));
            prop_assert_eq!(size.to_string().parse(), Ok(size));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,12}") {
            let _ = text.parse::<Size>();
        }
    }
}
