//! Sizes such as `512M`: powers of 1024.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// The units, largest first.
const UNITS: [(u64, &str); 4] = [(1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || format!("invalid size {text:?}: write a number with K, M, G or T such as 512M");
        let parser = parse_size::Config::new().with_binary();
        parser.parse_size(text).map(Bytes).map_err(|_| refuse())
    }
}

impl fmt::Display for Bytes {
    /// Exact: `512M`, `1536K`, `4097`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(unit, _)| self.0 >= *unit && self.0.is_multiple_of(*unit)) {
            Some((unit, name)) => write!(f, "{}{name}", self.0 / unit),
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
        assert_eq!("1.5G".parse(), Ok(Bytes(3 << 29)));
        for wrong in ["", "M", "-5M", "5Q", "5x"] {
            assert!(wrong.parse::<Bytes>().is_err(), "{wrong:?}");
        }
    }
}
