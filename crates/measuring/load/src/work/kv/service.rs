//! redis and memcached as services of the generator: GET and SET of values that are known by key and version.

use farshore_load::workload::Server;

use super::data::{Values, Versions, Wrong};
use super::protocol::{self, Answer, quoted};
use crate::generator::protocol::{Checked, Header, Protocol, Request};

/// Numbers of the operations.
pub const GET: u8 = 0;
pub const SET: u8 = 1;

/// What is in the server, and its language.
#[derive(Debug)]
pub struct Kv {
    pub server: Server,
    pub values: Values,
    pub versions: Versions,
}

impl Kv {
    fn checked(&self, request: &Request, answer: &Answer<'_>) -> Checked {
        let key = request.key;
        match (request.op, answer) {
            (SET, Answer::Stored) => {
                self.versions.acknowledge(key, request.version);
                Checked::Right
            }
            (GET, Answer::Value { key: Some(of), .. }) if *of != protocol::name(key) => {
                Checked::Wrong("values of other keys", format!("key {key:x}: {}", quoted(of)))
            }
            (GET, Answer::Value { value, .. }) => {
                match self.values.check(key, request.version, self.versions.newest(key), value).map_err(Wrong::told) {
                    Ok(()) => Checked::Right,
                    Err((kind, what)) => Checked::Wrong(kind, format!("key {key:x}: {what}")),
                }
            }
            (GET, Answer::Missing) => {
                Checked::Wrong("keys not there", format!("key {key:x}, which was SET: has the server evicted it, or lost it?"))
            }
            (op, Answer::Refused(words)) => {
                Checked::Wrong("requests refused", format!("{} of key {key:x}: {}", name(op), quoted(words)))
            }
            (op, answer) => Checked::Wrong("answers of the wrong kind", format!("{} of key {key:x}: {}", name(op), kind(answer))),
        }
    }
}

impl Protocol for Kv {
    fn request(&self, op: u8, key: u64) -> Request {
        let version = if op == SET { self.versions.send(key) } else { self.versions.least(key) };
        Request { op, key, version }
    }

    fn write(&self, _: u64, request: &Request, to: &mut Vec<u8>) {
        let key = request.key;
        if request.op == SET {
            let write = |to: &mut Vec<u8>| self.values.write(key, request.version, to);
            protocol::set(self.server, key, self.values.size, write, to);
        } else {
            protocol::get(self.server, key, to);
        }
    }

    fn check(&self, _: u64, request: &Request, bytes: &[u8]) -> Result<Option<(usize, Checked)>, String> {
        let answer = protocol::answer(self.server, bytes)?;
        Ok(answer.map(|(answer, used)| (used, self.checked(request, &answer))))
    }

    /// There are no datagrams.
    fn header(&self, _: &[u8]) -> Option<Header> {
        None
    }
}

fn name(op: u8) -> &'static str {
    if op == SET { "SET" } else { "GET" }
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
