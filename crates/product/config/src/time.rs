//! Lengths of time: `500ns`, `10us`, `1ms`, `2s`.

use crate::error::ConfigError;
use crate::text::serde_as_text;
use std::fmt;
use std::str::FromStr;

const VALID: &str = "write a whole number with ns, us, ms or s, such as 10us or 1ms";
const UNITS: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

/// A number of nanoseconds. Displays in the largest unit that holds it exactly.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(pub u64);

impl Time {
    /// Nanoseconds.
    pub const fn ns(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, ns) = UNITS.into_iter().find(|(_, ns)| self.0 != 0 && self.0.is_multiple_of(*ns)).unwrap_or(("ns", 1));
        f.pad(&format!("{}{unit}", self.0 / ns))
    }
}

impl FromStr for Time {
    type Err = ConfigError;

    fn from_str(value: &str) -> Result<Time, ConfigError> {
        let wrong = |why: &str| Err(ConfigError::value("time", value, format!("{why}; {VALID}")));
        let text = value.trim();
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        if number.is_empty() {
            return wrong("it does not begin with a digit");
        }
        let Some((_, ns)) = UNITS.into_iter().find(|(name, _)| *name == unit.trim_start()) else {
            return wrong(if unit.is_empty() { "it has no unit" } else { "its unit is not known" });
        };
        match number.parse::<u64>().ok().and_then(|n| n.checked_mul(ns)) {
            Some(ns) => Ok(Time(ns)),
            None => wrong("it is longer than 584 years"),
        }
    }
}

serde_as_text!(Time);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_people_write() {
        for (text, ns) in [("500ns", 500), ("10us", 10_000), ("1ms", 1_000_000), ("2s", 2_000_000_000), ("0ns", 0)] {
            assert_eq!(text.parse(), Ok(Time(ns)), "{text}");
            assert_eq!(Time(ns).to_string(), text);
        }
    }

    #[test]
    fn refuses_the_rest_and_names_it() {
        for text in ["", "10", "us", "-1us", "1.5ms", "10 minutes", "10US", "99999999999999999999s", "18446744074s"] {
            let error = text.parse::<Time>().expect_err(text).to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("10us"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn text_reads_back(ns: u64) {
            prop_assert_eq!(Time(ns).to_string().parse(), Ok(Time(ns)));
        }
    }
}
