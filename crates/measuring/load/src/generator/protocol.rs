//! How a service is talked to: what is asked of a server, how that is written, and whether what it answers is right.

use serde::Serialize;

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Request {
    /// Number of its operation: 0 is GET, 1 what else the service has.
    pub op: u8,
    /// Its key.
    pub key: u64,
    /// SET: the version it writes. GET: the oldest version that it may find.
    pub version: u32,
}

/// An answer that was checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Checked {
    /// It is right.
    Right,
    /// The key is not there, which may be.
    Miss,
    /// It is wrong: what kind of wrong, and what exactly.
    Wrong(&'static str, String),
}

/// What a datagram begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The number of its request.
    pub id: Id,
    /// Which part of the answer it is.
    pub part: u16,
    /// How many parts there are.
    pub parts: u16,
    /// Bytes of the header that are no part of the answer.
    pub bytes: usize,
}

/// A request's number in a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Id {
    /// All of it.
    Whole(u64),
    /// Its lowest bits.
    Low(u16),
}

/// What answers were worth that may be more or less good.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Quality {
    /// How many vectors were asked for each time.
    pub nearest: u64,
    /// Of these the share that was found, from 0 to 1.
    pub recall: f64,
    /// Of how many different queries that is so.
    pub of: u64,
    /// Different queries that were answered.
    pub queries: u64,
    /// What the answers to these come to: the same where each was answered as in another run.
    pub answers: String,
}

/// How a service is talked to.
pub trait Protocol: Sync {
    /// Makes the request of an operation and a key.
    fn request(&self, op: u8, key: u64) -> Request {
        Request { op, key, version: 0 }
    }

    /// Appends a request.
    fn write(&self, number: u64, request: &Request, to: &mut Vec<u8>);

    /// Checks the answer that `bytes` begin with; tells how many of them it has. `None` if it is not whole yet.
    ///
    /// # Errors
    /// If it is no answer at all: what it is.
    fn check(&self, number: u64, request: &Request, bytes: &[u8]) -> Result<Option<(usize, Checked)>, String>;

    /// Reads the header of a datagram; `None` if it is none of this service.
    fn header(&self, datagram: &[u8]) -> Option<Header>;

    /// Whether all writes of a key go over one connection.
    fn owns_keys(&self, op: u8) -> bool {
        let _ = op;
        false
    }

    /// Answers of requests may be missing: nothing is known of the order of writes from here on.
    fn left_open(&self) {}

    /// What the answers so far were worth. `None`: each is right or wrong.
    fn quality(&self) -> Option<Quality> {
        None
    }
}
