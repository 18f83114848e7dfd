//! What is asked of a server, how that is written, and whether what it answers is right.
//!
//! | module | what is there |
//! |---|---|
//! | [`words`] | `array` and `scan`: messages of words |
//! | [`kv`] | `kv`: memcached's text protocol, values that are known by key and version |

pub mod kv;
pub mod words;

use std::ops::Range;

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::args::{Kind, Mix, Open};
use super::keys::KeyDraw;
use super::target::Transport;

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
}

/// A service: what is drawn, and how it is talked to.
pub struct Service {
    /// Names of the operations.
    pub ops: &'static [&'static str],
    /// Share of each and those before it.
    shares: Vec<f64>,
    keys: KeyDraw,
    connections: u64,
    /// How it is talked to.
    pub protocol: Box<dyn Protocol>,
}

impl Service {
    /// As the options say.
    ///
    /// # Errors
    /// If they do not go together.
    pub fn new(args: &Open) -> Result<Self, String> {
        let ops: &[&str] = match args.service {
            Kind::Array => &["get"],
            Kind::Kv => &["get", "set"],
            Kind::Scan => &["get", "scan"],
        };
        let protocol: Box<dyn Protocol> = match args.service {
            Kind::Array => Box::new(words::Array),
            Kind::Scan => Box::new(words::Scan { items: args.items }),
            Kind::Kv => Box::new(kv::Kv::new(args)?),
        };
        if args.service != Kind::Kv && args.fill {
            return Err("--fill is for kv: other services have their data already".into());
        }
        let shares = shares(ops, args.mix.as_ref())?;
        Ok(Service {
            ops,
            shares,
            keys: KeyDraw::new(args.items, args.keys)?,
            connections: u64::from(args.connections),
            protocol,
        })
    }

    /// The next request of a thread that has the connections `own`, of which it is `turn`'s turn; and its connection.
    pub fn draw(&self, random: &mut Xoshiro256PlusPlus, own: &Range<usize>, turn: usize) -> (Request, usize) {
        let op = self.operation(random);
        if !self.protocol.owns_keys(op) {
            return (self.protocol.request(op, self.keys.draw(random)), turn);
        }
        // Keys of other threads are drawn again: the others draw as many of this thread's.
        let of = |key: u64| usize::try_from(key % self.connections).unwrap_or(0);
        let drawn = (0..1000).map(|_| self.keys.draw(random)).find(|key| own.contains(&of(*key)));
        let key = drawn.unwrap_or(turn as u64);
        (self.protocol.request(op, key), of(key))
    }

    /// The next operation.
    pub fn operation(&self, random: &mut Xoshiro256PlusPlus) -> u8 {
        if self.shares.first().is_none_or(|share| *share >= 1.0) {
            return 0;
        }
        let place: f64 = random.random();
        let op = self.shares.iter().position(|share| place < *share).unwrap_or(self.shares.len() - 1);
        u8::try_from(op).unwrap_or(0)
    }
}

/// How many requests can be told apart on a connection.
#[must_use]
pub fn most_under_way(kind: Kind, transport: Transport, window: u32) -> usize {
    match (kind, transport) {
        (Kind::Kv, Transport::Udp) => 1 << 16,
        // Those that are lost, and those since then.
        (_, Transport::Udp) => (window as usize).saturating_mul(4),
        (_, Transport::Tcp) => window as usize,
    }
}

/// The share of each operation and those before it.
fn shares(ops: &[&str], mix: Option<&Mix>) -> Result<Vec<f64>, String> {
    let mut shares = vec![0.0; ops.len()];
    for (name, share) in mix.map_or(&[("get".to_owned(), 1.0)][..], |mix| &mix.0[..]) {
        let wrong = || format!("invalid --mix: the service has no operation {name:?}, only {}", ops.join(", "));
        shares[ops.iter().position(|op| op == name).ok_or_else(wrong)?] += share;
    }
    let all: f64 = shares.iter().sum();
    let mut sum = 0.0;
    for share in &mut shares {
        sum += *share / all;
        *share = sum;
    }
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_have_their_shares() {
        assert_eq!(shares(&["get", "set"], None), Ok(vec![1.0, 1.0]));
        let mix = Mix(vec![("set".into(), 1.0), ("get".into(), 3.0)]);
        assert_eq!(shares(&["get", "set"], Some(&mix)), Ok(vec![0.75, 1.0]));
        assert!(shares(&["get"], Some(&mix)).is_err_and(|said| said.contains("set")));
    }
}
