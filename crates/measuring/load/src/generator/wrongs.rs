//! What was wrong with answers, counted by kind.

use std::collections::BTreeMap;

/// What went wrong: how often each kind of it did, and the first of each.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wrongs(BTreeMap<&'static str, (u64, String)>);

impl Wrongs {
    /// One more.
    pub fn add(&mut self, kind: &'static str, what: impl FnOnce() -> String) {
        self.add_many(kind, 1, what);
    }

    /// So many more.
    pub fn add_many(&mut self, kind: &'static str, count: u64, what: impl FnOnce() -> String) {
        if count > 0 {
            self.0.entry(kind).or_insert_with(|| (0, what())).0 += count;
        }
    }

    /// Adds those of another thread.
    pub fn merge(&mut self, other: Wrongs) {
        for (kind, (count, what)) in other.0 {
            self.0.entry(kind).or_insert((0, what)).0 += count;
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A line for each kind.
    #[must_use]
    pub fn lines(&self, when: &str) -> Vec<String> {
        let line = |(kind, (count, what)): (&&str, &(u64, String))| {
            let first = if *count == 1 { "" } else { "the first: " };
            format!("{when}: {kind}: {count}; {first}{what}")
        };
        self.0.iter().map(line).collect()
    }
}
