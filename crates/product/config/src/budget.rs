//! A budget that several programs of one user have together: `jobs=8G`, or `jobs` to join one that is there.

use crate::error::ConfigError;
use crate::options::MEMORY_MIN;
use crate::size::Size;
use crate::text::serde_as_text;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The longest name, bytes.
pub const BUDGET_NAME_MAX: usize = 32;
const VALID: &str = "write NAME=SIZE, such as jobs=8G, or NAME to join the programs that have it already";

/// Which budget, and how large it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Letters, digits, `-`, `_` and `.`, beginning with a letter or digit; at most [`BUDGET_NAME_MAX`].
    pub name: String,
    /// `None`: as large as it is.
    pub size: Option<Size>,
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.size.map_or(Ok(()), |size| write!(f, "={size}"))
    }
}

impl FromStr for Budget {
    type Err = ConfigError;

    fn from_str(value: &str) -> Result<Budget, ConfigError> {
        let wrong = |why: String| Err(ConfigError::value("budget", value, why));
        let (name, size) = match value.split_once('=') {
            Some((name, size)) => (name, Some(size.parse::<Size>()?)),
            None => (value, None),
        };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if !name.starts_with(|first: char| first.is_ascii_alphanumeric()) || !name.bytes().all(is_plain) {
            return wrong(format!("its name has letters, digits, '-', '_' and '.', and begins with a letter or digit; {VALID}"));
        }
        if name.len() > BUDGET_NAME_MAX {
            return wrong(format!("its name is longer than {BUDGET_NAME_MAX} letters; choose a shorter one"));
        }
        if let Some(size) = size.filter(|size| *size < MEMORY_MIN) {
            return wrong(format!("{size} is less than one program needs; it must be at least {MEMORY_MIN}"));
        }
        Ok(Budget { name: name.to_owned(), size })
    }
}

serde_as_text!(Budget);

/// The seat that a family has in its budget: `farshore run` takes it, and hands it on to the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seat {
    /// The descriptor of the user's list of budgets. As long as a process has it open, the seat is taken.
    pub descriptor: i32,
    /// Which line of the list.
    pub line: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_shows_and_refuses_the_rest() {
        for (text, name, size) in [
            ("jobs=8G", "jobs", Some(Size(8 << 30))),
            ("jobs", "jobs", None),
            ("7-nightly_jobs.v2=4M", "7-nightly_jobs.v2", Some(Size::mib(4))),
        ] {
            let read: Budget = text.parse().unwrap();
            assert_eq!((read.name.as_str(), read.size), (name, size), "{text}");
            assert_eq!(read.to_string().parse(), Ok(read));
        }
        let long = "x".repeat(BUDGET_NAME_MAX + 1);
        for (text, why) in [
            ("", "NAME=SIZE"),
            ("=8G", "NAME=SIZE"),
            ("../jobs=8G", "letters, digits"),
            ("-jobs=8G", "begins with"),
            ("my jobs=8G", "letters, digits"),
            ("jöbs", "letters, digits"),
            ("jobs=", "size"),
            ("jobs=much", "much"),
            ("jobs=8G=9G", "8G=9G"),
            ("jobs=3M", "at least 4M"),
            (long.as_str(), "longer than 32"),
        ] {
            let error = text.parse::<Budget>().expect_err(text).to_string();
            assert!(error.contains(why) && !error.contains('\n'), "{text}: {error}");
        }
    }
}
