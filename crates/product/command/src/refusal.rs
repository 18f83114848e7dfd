//! Why the command does not do what it was asked, and the exit status that says so.

use std::fmt;

/// Farshore could not start the program, or was asked in a way that it does not understand.
pub const CANNOT_START: u8 = 125;
/// The program is there and cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// The program is not there.
pub const NOT_FOUND: u8 = 127;
/// `stat`, `set`, `doctor` and `bench`: what was asked for could not be done.
pub const FAILED: u8 = 1;

/// One line for the user and an exit status.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The exit status.
    pub status: u8,
    /// What was wrong, with which value, and what to do.
    pub text: String,
}

impl Refusal {
    /// Exit status 125.
    pub fn cannot_start(text: impl Into<String>) -> Self {
        Refusal { status: CANNOT_START, text: text.into() }
    }

    /// Exit status 126.
    pub fn not_executable(text: impl Into<String>) -> Self {
        Refusal { status: NOT_EXECUTABLE, text: text.into() }
    }

    /// Exit status 127.
    pub fn not_found(text: impl Into<String>) -> Self {
        Refusal { status: NOT_FOUND, text: text.into() }
    }

    /// Exit status 1.
    pub fn failed(text: impl Into<String>) -> Self {
        Refusal { status: FAILED, text: text.into() }
    }
}

impl fmt::Display for Refusal {
    /// Always one line: file names may hold line ends and terminal control characters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "farshore: {}", farshore_config::plain(&self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_one_line_whatever_the_names_hold() {
        let refusal = Refusal::not_found("'a\nb\u{1b}[31m' does not exist");
        assert_eq!(refusal.to_string(), "farshore: 'a\\nb\\u{1b}[31m' does not exist");
    }
}
