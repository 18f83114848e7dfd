//! The one error of this crate; the user reads its text.

use std::path::PathBuf;

/// Why a value, a file or a set of options cannot be used. Displays as one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// A value that cannot be read.
    Value {
        /// What the value was meant to be: `size`, `time`, `swap space` …
        what: &'static str,
        /// The text.
        value: String,
        /// What is wrong with it, and what to write instead.
        why: String,
    },
    /// A swap space of a kind that cannot be used yet.
    NotBuilt {
        /// Its text.
        spec: String,
    },
    /// An option that must be given was not.
    Missing {
        /// The option, as on the command line.
        option: &'static str,
        /// What to write.
        hint: &'static str,
    },
    /// The config file cannot be read.
    File {
        /// Its path.
        path: PathBuf,
        /// The system's reason.
        why: String,
    },
    /// The config file, or the JSON string, contains something that cannot be understood.
    Syntax {
        /// Where: `/etc/farshore.toml:3`, or the name of the variable.
        place: String,
        /// What is wrong.
        why: String,
    },
}

impl ConfigError {
    /// A value that cannot be read. `why` may quote a part of it, as it is.
    pub(crate) fn value(what: &'static str, value: &str, why: impl AsRef<str>) -> ConfigError {
        ConfigError::Value { what, value: value.to_owned(), why: crate::plain(why.as_ref()) }
    }
}

/// A parser's message as one line: such messages quote the input, and may take several lines.
pub(crate) fn one_line(message: &str) -> String {
    crate::plain(&message.split_whitespace().collect::<Vec<_>>().join(" "))
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // Debug quotes the value: one with a newline in it still gives one line.
            ConfigError::Value { what, value, why } => write!(f, "invalid {what} {value:?}: {why}"),
            ConfigError::NotBuilt { spec } => {
                write!(
                    f,
                    "swap space {spec:?} is not built yet; use dir:, file:, dev:, ram, ram:lz4, ram:zstd, ram:auto, nbd://, redis://, mirror: or delay:"
                )
            }
            ConfigError::Missing { option, hint } => write!(f, "{option} is missing: {hint}"),
            ConfigError::File { path, why } => {
                write!(f, "cannot read the config file {}: {why}; check --config", crate::plain(&path.display().to_string()))
            }
            ConfigError::Syntax { place, why } => write!(f, "{place}: {why}"),
        }
    }
}

impl std::error::Error for ConfigError {}
