//! The client: connections that are never waited for, and two ways to use them.
//!
//! A thread has some connections and one [`Poller`] over them. Sending appends to a buffer of the connection, from which
//! the socket takes what it can; what was sent and is not answered waits in a queue, and answers come in its order.
//!
//! | module | what is there |
//! |---|---|
//! | [`connection`] | a connection and its queue |
//! | [`bulk`] | all keys, as fast as the server answers: to fill it, and to read all back |
//! | [`open`] | requests on a schedule, whatever the server does |

pub mod bulk;
pub mod connection;
pub mod open;
pub mod poller;

use std::collections::BTreeMap;
use std::time::Duration;

use farshore_load::workload::Server;

use super::data::{Values, Versions};
use super::protocol::{Answer, quoted};
use super::requests::Requests;
use connection::{Pending, What};
use poller::Poller;

/// Bytes of one read.
const READ: usize = 256 << 10;

/// What all threads know.
#[derive(Debug)]
pub struct Shared {
    pub server: Server,
    pub values: Values,
    pub versions: Versions,
    pub requests: Requests,
    /// How long an answer is waited for when nothing else is left to do.
    pub patience: Duration,
}

impl Shared {
    /// Checks an answer, and remembers what it says. `space` is memory to work in.
    fn check(&self, pending: &Pending, answer: &Answer<'_>, space: &mut Vec<u8>, wrong: &mut Wrongs) {
        let key = pending.key;
        match (pending.what, answer) {
            (What::Set { version }, Answer::Stored) => self.versions.acknowledge(key, version),
            (What::Get { .. }, Answer::Value { key: of, .. }) if of.is_some_and(|of| of != super::protocol::name(key)) => {
                wrong.add("values of other keys", || format!("key {key:x}: {}", quoted(of.unwrap_or_default())));
            }
            (What::Get { least }, Answer::Value { value, .. }) => {
                let checked = self.values.check(key, least, self.versions.newest(key), value, space);
                if let Err((kind, what)) = checked.map_err(super::data::Wrong::told) {
                    wrong.add(kind, || format!("key {key:x}: {what}"));
                }
            }
            (What::Get { .. }, Answer::Missing) => {
                wrong.add("keys not there", || format!("key {key:x}, which was SET: has the server evicted it, or lost it?"));
            }
            (_, Answer::Refused(words)) => {
                let what = pending.what.name();
                wrong.add("requests refused", || format!("{what} of key {key:x}: {}", quoted(words)));
            }
            (what, answer) => {
                let name = what.name();
                wrong.add("answers of the wrong kind", || format!("{name} of key {key:x}: {}", kind(answer)));
            }
        }
    }
}

/// An answer in a word.
fn kind(answer: &Answer<'_>) -> &'static str {
    match answer {
        Answer::Value { .. } => "a value",
        Answer::Missing => "not there",
        Answer::Stored => "stored",
        Answer::Refused(_) => "refused",
    }
}

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
