//! GET and SCAN on an ordered store.
//!
//! A request is three little-endian words of 8 bytes: a number of the client's own, the operation, a key. Of the operation's word the lowest byte says which
//! it is, the others how many values a SCAN finds at most: 0 stands for [`SCAN_LENGTH`], and it is 0 for a GET. The answer is four words: that number, a
//! status, how many values were found, and their sum. A GET finds one value, a SCAN the value of its key and those of the keys after it, as many as there
//! are. A SCAN that asks for more than the service allows is told so, with how many that are in the place of values that were found: or one datagram, of whoever
//! says to be its sender, would read all of the store. [`messages`] has how they travel, and what happens to what is no request.
//!
//! [`Store`] says how what is asked for is read.

mod store;

pub use store::{Error, Store};

use std::io;

use farshore_uthread::net::Datagram;

use crate::messages;
use crate::numbers::{WORD, word};
use crate::service::{Connections, Service, Stream};

/// Bytes of a request.
pub const REQUEST: usize = 3 * WORD;
/// Bytes of an answer.
pub const ANSWER: usize = 4 * WORD;
/// Operation: one key.
pub const GET: u8 = 0;
/// Operation: a key and those after it.
pub const SCAN: u8 = 1;
/// Values that a SCAN finds at most that does not say how many.
pub const SCAN_LENGTH: u64 = 100;
/// Status: the key is there, or one after it.
pub const FOUND: u64 = 0;
/// Status: it is not.
pub const NOT_FOUND: u64 = 1;
/// Status: more values were asked for than may be.
pub const TOO_MANY: u64 = 2;

/// See the module's head.
#[derive(Debug)]
pub struct Scan {
    store: Store,
    most: u64,
    connections: Connections,
}

impl Scan {
    /// Of this store; a SCAN may ask for `most` values.
    pub fn new(store: Store, most: u64) -> Scan {
        Scan { store, most, connections: Connections::default() }
    }

    /// `None`: it is no request, or the service ends.
    fn answer(&self, request: &[u8; REQUEST]) -> Option<[u8; ANSWER]> {
        let key = word(request, 2);
        let [operation, ..] = word(request, 1).to_le_bytes();
        let found = |(count, sum)| (if count > 0 { FOUND } else { NOT_FOUND }, count, sum);
        let (status, count, sum) = match (operation, word(request, 1) >> 8) {
            (GET, 0) => found(self.store.get(key).map_or((0, 0), |value| (1, value))),
            (SCAN, 0) => found(self.store.scan(key, SCAN_LENGTH.min(self.most))?),
            (SCAN, most) if most > self.most => (TOO_MANY, self.most, 0),
            (SCAN, most) => found(self.store.scan(key, most)?),
            _ => return None,
        };
        let mut answer = [0; ANSWER];
        for (place, word) in answer.as_chunks_mut::<WORD>().0.iter_mut().zip([word(request, 0), status, count, sum]) {
            *place = word.to_le_bytes();
        }
        Some(answer)
    }
}

impl Service for Scan {
    fn connections(&self) -> &Connections {
        &self.connections
    }

    fn connection(&self, stream: &Stream) -> io::Result<()> {
        messages::connection(stream, |request| self.answer(request))
    }

    fn datagram(&self, datagram: Datagram<'_>) {
        messages::datagram(datagram, |request| self.answer(request));
    }
}

#[cfg(test)]
mod tests;
