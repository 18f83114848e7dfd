//! The search for the highest rate that meets a target: where it looks, what it wants, and what may end it.
//!
//! `farshore-load open --sweep` makes it; whoever starts that program shares these words.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::workload::number;

/// Rates to look through, in requests a second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rates {
    /// The first.
    pub low: f64,
    /// The last.
    pub high: f64,
}

/// What is wanted: a percentile of the latency that is at most so long.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Goal {
    /// From 0 to 1.
    pub quantile: f64,
    /// The latency there, at most.
    pub most: Duration,
}

/// What ended the search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// The server misses the target at a rate just above.
    Server,
    /// The generator is too slow there: the server may be able to do more.
    Generator,
    /// No higher rate was asked for.
    Range,
    /// It was ended early.
    Ended,
}

impl Limit {
    /// For a reader.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Limit::Server => "the server misses the target above it",
            Limit::Generator => "the generator is too slow above it: the server may be able to do more",
            Limit::Range => "no higher rate was asked for",
            Limit::Ended => "ended early",
        }
    }
}

impl Goal {
    /// `p99.9`.
    #[must_use]
    pub fn percentile(self) -> String {
        // Without the digits that only arithmetic made.
        format!("p{}", (self.quantile * 1e8).round() / 1e6)
    }
}

impl FromStr for Rates {
    type Err = String;

    fn from_str(text: &str) -> Result<Rates, String> {
        let wrong = || format!("invalid rates {text:?}: write LOW..HIGH, such as 1000..100000");
        let (low, high) = text.split_once("..").ok_or_else(wrong)?;
        let (low, high) = (rate(low)?, rate(high)?);
        if low < high { Ok(Rates { low, high }) } else { Err(wrong()) }
    }
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.low, self.high)
    }
}

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Goal, String> {
        let wrong = || format!("invalid target {text:?}: write PERCENTILE=TIME, such as p99.9=1ms");
        let (percentile, most) = text.strip_prefix('p').and_then(|text| text.split_once('=')).ok_or_else(wrong)?;
        Ok(Goal { quantile: number(percentile, "percentile", 0.0, 100.0)? / 100.0, most: time(most)? })
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={:?}", self.percentile(), self.most)
    }
}

/// Reads requests a second.
///
/// # Errors
/// It is no such number: a line for the user.
pub fn rate(text: &str) -> Result<f64, String> {
    number(text, "rate", 1.0, 1e8)
}

/// Reads a time with its unit.
///
/// # Errors
/// It is none, or longer than a day: a line for the user.
pub fn time(text: &str) -> Result<Duration, String> {
    let units = [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let found = units.iter().find_map(|(unit, seconds)| {
        let value = text.strip_suffix(unit)?.trim().parse::<f64>().ok()?;
        (0.0..=86_400.0).contains(&(value * seconds)).then(|| Duration::from_secs_f64(value * seconds))
    });
    found.ok_or_else(|| format!("invalid time {text:?}: write a number with ns, us, ms or s, such as 500us"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, ns) in [("1ms", 1_000_000), ("50us", 50_000), ("0.5s", 500_000_000), ("7ns", 7), ("0s", 0), ("2 µs", 2000)] {
            assert_eq!(time(text), Ok(Duration::from_nanos(ns)), "{text}");
        }
        for text in ["", "1", "ms", "-1s", "1h", "NaNs", "1e9s"] {
            assert!(time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_a_search_looks_for() {
        assert_eq!("1000..2e5".parse(), Ok(Rates { low: 1000.0, high: 200_000.0 }));
        let wanted: Goal = "p99.9=1ms".parse().unwrap_or_else(|error| panic!("{error}"));
        assert!((wanted.quantile - 0.999).abs() < 1e-12 && wanted.most == Duration::from_millis(1));
        for text in ["5", "5..5", "9..5", "0..5", "a..b", ".."] {
            assert!(text.parse::<Rates>().is_err(), "{text}");
        }
        for text in ["99.9=1ms", "p=1ms", "p101=1ms", "p50", "p50=1"] {
            assert!(text.parse::<Goal>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for text in ["p99.9=1ms", "p50=500µs", "p99=1.5s", "p99.99=7ns", "p99.9999=1ms"] {
            assert_eq!(text.parse::<Goal>().map(|goal| goal.to_string()), Ok(text.into()));
        }
        assert_eq!("1e3..20000".parse::<Rates>().map(|rates| rates.to_string()), Ok("1000..20000".into()));
    }
}
