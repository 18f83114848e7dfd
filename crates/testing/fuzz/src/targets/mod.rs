//! The targets, one a file. What several of them ask is here.

pub mod control;
pub mod names;
pub mod node;
pub mod options;
pub mod sizes;
pub mod stats;
pub mod structured;
pub mod swap;
pub mod toml;
pub mod word;

use std::fmt::{Debug, Display};
use std::str::FromStr;

/// The input as text; what is not UTF-8 in it is replaced.
fn text(input: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(input)
}

/// What the crate `config` promises of an error: one line that says something.
fn assert_one_line(error: &impl Display) {
    let line = error.to_string();
    assert!(!line.trim().is_empty(), "an error says nothing");
    assert!(!line.contains(char::is_control), "an error is more than a line: {line:?}");
}

/// Reads `text`; what was read displays as a text that reads back to the same. `None`: it was refused, in one line.
fn reads_back<T>(text: &str) -> Option<T>
where
    T: FromStr<Err = farshore_config::ConfigError> + Display + PartialEq + Debug,
{
    match text.parse::<T>() {
        Ok(value) => {
            let shown = value.to_string();
            assert_eq!(shown.parse::<T>().as_ref(), Ok(&value), "{text:?} displays as {shown:?}, which reads as something else");
            Some(value)
        }
        Err(error) => {
            assert_one_line(&error);
            None
        }
    }
}
