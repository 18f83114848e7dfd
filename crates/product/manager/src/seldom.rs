//! Lines that may come again and again, and are said once in a while.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use farshore_command::say::tell;

/// How long a line is not said again.
const AGAIN: Duration = Duration::from_secs(10);

/// What one kind of line remembers. Each kind has its own, so that no line keeps another from being said.
#[derive(Debug)]
pub struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    /// A kind of line that was not said yet.
    #[must_use]
    pub const fn new() -> Seldom {
        Seldom(Mutex::new(None))
    }

    /// Says it on stderr, unless it was said a moment ago.
    pub fn tell(&self, text: impl FnOnce() -> String) {
        if self.is_due() {
            tell(&text());
        }
    }

    fn is_due(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| last.elapsed() >= AGAIN);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}

impl Default for Seldom {
    fn default() -> Seldom {
        Seldom::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_kind_does_not_silence_another() {
        let (one, other) = (Seldom::new(), Seldom::new());
        assert_eq!([one.is_due(), one.is_due(), other.is_due(), other.is_due()], [true, false, true, false]);
    }
}
