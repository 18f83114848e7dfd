//! What is running, what has come out so far, and how long it still takes.
//!
//! On a terminal a bar at the bottom, with a line for each finished round above it; elsewhere the lines alone. All of it goes to stderr:
//! standard output is for the results.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// The progress of one call.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    left: Estimate,
}

/// How long each kind of run has taken, and how many of it are still to come.
#[derive(Debug, Default)]
struct Estimate {
    kinds: HashMap<String, Kind>,
}

#[derive(Debug, Default)]
struct Kind {
    to_come: u32,
    last: Option<Duration>,
}

impl Estimate {
    /// Time left: what has not run yet is taken for as long as the mean of what has; `None` before the first.
    fn left(&self) -> Option<Duration> {
        let known: Vec<Duration> = self.kinds.values().filter_map(|kind| kind.last).collect();
        let mean = known.iter().sum::<Duration>().checked_div(u32::try_from(known.len()).ok()?)?;
        Some(self.kinds.values().map(|kind| kind.last.unwrap_or(mean) * kind.to_come).sum())
    }
}

impl Progress {
    /// For a call that has not told yet what it will run.
    #[must_use]
    pub fn new() -> Self {
        // indicatif draws on stderr, and only if that is a terminal.
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{bar:16} {pos}/{len} runs {prefix}{wide_msg}") {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(500));
        Progress { bar, left: Estimate::default() }
    }

    /// `count` more runs of a kind are to come.
    pub fn expect(&mut self, kind: &str, count: u32) {
        self.left.kinds.entry(kind.to_string()).or_default().to_come += count;
        self.bar.inc_length(u64::from(count));
    }

    /// None of that kind will come after all.
    pub fn drop_kind(&mut self, kind: &str) {
        if let Some(kind) = self.left.kinds.remove(kind) {
            self.bar.dec_length(u64::from(kind.to_come));
        }
    }

    /// Something runs now that is not counted.
    pub fn doing(&self, what: &str) {
        self.show(what);
    }

    /// A run of a kind begins.
    pub fn begin(&self, what: &str) -> Instant {
        self.show(what);
        Instant::now()
    }

    /// It has ended.
    pub fn end(&mut self, kind: &str, begun: Instant) {
        if let Some(kind) = self.left.kinds.get_mut(kind) {
            kind.to_come = kind.to_come.saturating_sub(1);
            kind.last = Some(begun.elapsed());
        }
        self.bar.inc(1);
    }

    /// A line that stays.
    pub fn say(&self, line: &str) {
        // Names and errors of other people's may be in it.
        let line = farshore_config::plain(line);
        if self.bar.is_hidden() {
            eprintln!("{line}");
        } else {
            self.bar.println(line);
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn show(&self, what: &str) {
        self.bar.set_prefix(self.left.left().map_or(String::new(), |left| format!("{} left, ", duration(left))));
        self.bar.set_message(farshore_config::plain(what));
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

/// As a person tells it: `40 s`, `3 min`.
#[must_use]
pub fn duration(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..=99 => format!("{seconds} s"),
        seconds => format!("{} min", (seconds + 30) / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_what_such_runs_took() {
        let mut progress = Progress::new();
        progress.expect("a", 3);
        progress.expect("b", 2);
        assert_eq!(progress.left.left(), None);
        let begun = Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
        progress.end("a", begun);
        // Two more of `a`, and `b` is taken to be as long.
        assert_eq!(progress.left.left().map(|left| left.as_secs()), Some(40));
        progress.drop_kind("b");
        assert_eq!(progress.left.left().map(|left| left.as_secs()), Some(20));
        assert_eq!(duration(Duration::from_secs(40)), "40 s");
        assert_eq!(duration(Duration::from_secs(170)), "3 min");
    }
}
