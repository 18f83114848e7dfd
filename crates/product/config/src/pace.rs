//! How hard evictors work: numbers that the user fixes, or leaves to Farshore.

use crate::error::ConfigError;
use farshore_core::limits::{BATCH_PAGES_MAX, BATCH_PAGES_MIN, EVICTORS_MAX, FREE_PERCENT_MAX, WRITES_MAX};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A number, or `auto`: Farshore adapts it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OrAuto(pub Option<u32>);

impl fmt::Display for OrAuto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(number) => write!(f, "{number}"),
            None => f.write_str("auto"),
        }
    }
}

impl FromStr for OrAuto {
    type Err = ConfigError;
    fn from_str(value: &str) -> Result<OrAuto, ConfigError> {
        match value {
            "auto" => Ok(OrAuto(None)),
            _ => match value.parse() {
                Ok(number) => Ok(OrAuto(Some(number))),
                Err(_) => Err(ConfigError::value("number", value, "write a whole number, or auto")),
            },
        }
    }
}

impl<'de> Deserialize<'de> for OrAuto {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<OrAuto, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = OrAuto;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number, or \"auto\"")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<OrAuto, E> {
                match text {
                    "auto" => Ok(OrAuto(None)),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }
            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<OrAuto, E> {
                let small = u32::try_from(number).map_err(|_| E::invalid_value(serde::de::Unexpected::Signed(number), &self));
                small.map(|number| OrAuto(Some(number)))
            }
            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<OrAuto, E> {
                let small = u32::try_from(number).map_err(|_| E::invalid_value(serde::de::Unexpected::Unsigned(number), &self));
                small.map(|number| OrAuto(Some(number)))
            }
        }
        from.deserialize_any(Visitor)
    }
}

/// One of the numbers that set the pace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Knob {
    /// Evictors that are awake.
    Evictors,
    /// Pages of a batch.
    Batch,
    /// Writes that each evictor may have with the device.
    Writes,
    /// Percent of the memory limit that evictors keep free.
    Free,
}

impl Knob {
    /// All of these numbers.
    pub const ALL: [Knob; 4] = [Knob::Evictors, Knob::Batch, Knob::Writes, Knob::Free];

    /// Its name in options and settings.
    pub const fn name(self) -> &'static str {
        match self {
            Knob::Evictors => "evictors",
            Knob::Batch => "batch",
            Knob::Writes => "writes",
            Knob::Free => "free",
        }
    }

    /// Its option on the command line.
    const fn option(self) -> &'static str {
        match self {
            Knob::Evictors => "--evictors",
            Knob::Batch => "--batch",
            Knob::Writes => "--writes",
            Knob::Free => "--free",
        }
    }

    /// The values that it may have.
    pub const fn range(self) -> RangeInclusive<u32> {
        match self {
            Knob::Evictors => 1..=EVICTORS_MAX as u32,
            Knob::Batch => BATCH_PAGES_MIN as u32..=BATCH_PAGES_MAX as u32,
            Knob::Writes => 1..=WRITES_MAX,
            Knob::Free => 1..=FREE_PERCENT_MAX,
        }
    }

    /// Why a number cannot be used, if it cannot.
    fn wrong(self, number: Option<u32>) -> Option<String> {
        let range = self.range();
        let outside = number.is_some_and(|number| !range.contains(&number));
        outside.then(|| format!("write a number from {} to {}, or auto", range.start(), range.end()))
    }

    /// Checks the option's number.
    ///
    /// # Errors
    /// The number is out of range.
    pub(crate) fn check(self, number: Option<u32>) -> Result<(), ConfigError> {
        match (self.wrong(number), number) {
            (Some(why), Some(number)) => Err(ConfigError::value(self.option(), &number.to_string(), why)),
            _ => Ok(()),
        }
    }

    /// Reads the value of the setting.
    ///
    /// # Errors
    /// The value is not a number, or out of range: a line for the user.
    pub(crate) fn read(self, value: &str) -> Result<Option<u32>, String> {
        let name = self.name();
        let OrAuto(number) = value.parse().map_err(|why| format!("{name}={value}: {why}"))?;
        self.wrong(number).map_or(Ok(number), |why| Err(format!("{name}={value}: {why}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_or_auto() {
        assert_eq!(["auto", "7"].map(|text| text.parse::<OrAuto>().unwrap().0), [None, Some(7)]);
        assert_eq!([OrAuto(None), OrAuto(Some(7))].map(|value| value.to_string()), ["auto", "7"]);
        for bad in ["", "Auto", "-1", "1.5", "4294967296", "7 "] {
            assert!(bad.parse::<OrAuto>().unwrap_err().to_string().contains("auto"), "{bad}");
        }
    }

    #[test]
    fn every_knob_has_its_range() {
        for knob in Knob::ALL {
            let (least, most) = knob.range().into_inner();
            assert_eq!(knob.read("auto"), Ok(None));
            assert_eq!(knob.read(&least.to_string()), Ok(Some(least)));
            assert_eq!(knob.read(&most.to_string()), Ok(Some(most)));
            for bad in [least - 1, most + 1] {
                let why = knob.read(&bad.to_string()).unwrap_err();
                assert!(
                    why.starts_with(&format!("{}={bad}: ", knob.name())) && why.contains(&format!("from {least} to {most}")),
                    "{why}"
                );
                assert!(knob.check(Some(bad)).unwrap_err().to_string().contains(knob.option()));
            }
        }
    }
}
