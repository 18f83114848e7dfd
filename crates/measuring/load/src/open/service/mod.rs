//! What is asked of a server, how that is written, and whether what it answers is right.
//!
//! | module | what is there |
//! |---|---|
//! | [`words`] | `array` and `scan`: messages of words |
//! | [`tpcc`] | `tpcc`: the transactions of TPC-C, and the sums in their answers |
//! | [`vsearch`] | `vsearch`: `FT.SEARCH` of Redis, and the nearest vectors |
//! | [`kv`] | `kv`: memcached's text protocol, values that are known by key and version |

pub mod kv;
pub mod tpcc;
pub mod vsearch;
pub mod words;

use std::ops::Range;
use std::time::Duration;

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use super::args::{Kind, Mix, Open};
use super::keys::KeyDraw;
use super::target::Transport;
use crate::generator::arrivals::Arrivals;
use crate::generator::engine::{Draw, Schedule};
use crate::generator::protocol::{Protocol, Request};
use crate::work::scatter::mix2;

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
            Kind::Tpcc => tpcc::OPS,
            Kind::Vsearch => vsearch::OPS,
        };
        let protocol: Box<dyn Protocol> = match args.service {
            Kind::Array => Box::new(words::Array),
            Kind::Scan => Box::new(words::Scan { items: args.items }),
            Kind::Kv => Box::new(kv::Kv::new(args)?),
            Kind::Tpcc => Box::new(tpcc::Tpcc::new(args)?),
            Kind::Vsearch => Box::new(vsearch::Vsearch::new(args)?),
        };
        if args.service != Kind::Kv && args.fill {
            return Err("--fill is for kv: other services have their data already".into());
        }
        let of_tpcc = || Mix(ops.iter().zip(tpcc::MIX).map(|(op, share)| ((*op).to_owned(), share)).collect());
        let mix = args.mix.clone().or_else(|| (args.service == Kind::Tpcc).then(of_tpcc));
        let shares = shares(ops, mix.as_ref())?;
        // A query is known by its number.
        let keys = if args.service == Kind::Vsearch { args.queries.into() } else { args.items };
        Ok(Service { ops, shares, keys: KeyDraw::new(keys, args.keys)?, connections: u64::from(args.connections), protocol })
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

/// The requests of a thread: drawn at random, each over the next of its connections.
pub struct Dealer<'a> {
    service: &'a Service,
    random: Xoshiro256PlusPlus,
    /// Numbers of its connections among all.
    own: Range<usize>,
    /// Whose turn it is.
    turn: usize,
}

impl<'a> Dealer<'a> {
    /// Of the thread with these connections.
    #[must_use]
    pub fn new(service: &'a Service, own: Range<usize>, seed: u64) -> Self {
        Dealer { service, random: Xoshiro256PlusPlus::seed_from_u64(mix2(seed, 1)), turn: own.start, own }
    }
}

impl Draw for Dealer<'_> {
    fn draw(&mut self, turn: usize) -> (Request, usize) {
        self.service.draw(&mut self.random, &self.own, turn)
    }
}

/// The same at the times of a Poisson process.
pub struct Dealt<'a> {
    arrivals: Arrivals,
    dealer: Dealer<'a>,
}

impl<'a> Dealt<'a> {
    /// `rate` requests a second for this long.
    #[must_use]
    pub fn new(dealer: Dealer<'a>, rate: f64, length: Duration, seed: u64) -> Self {
        Dealt { arrivals: Arrivals::new(rate, length, mix2(seed, 2)), dealer }
    }
}

impl Schedule for Dealt<'_> {
    fn next(&mut self) -> Option<u64> {
        self.arrivals.peek().map(|next| next.at)
    }

    fn due(&mut self, until: u64) -> Option<(u64, Request, usize)> {
        let arrival = self.arrivals.due(until)?;
        let (turn, own) = (self.dealer.turn, self.dealer.own.clone());
        self.dealer.turn = if turn + 1 == own.end { own.start } else { turn + 1 };
        let (request, connection) = self.dealer.draw(turn);
        Some((arrival.at, request, connection))
    }

    fn skip(&mut self, until: u64) -> Option<(u64, u8)> {
        let arrival = self.arrivals.due(until)?;
        Some((arrival.at, self.dealer.service.operation(&mut self.dealer.random)))
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
    let first = [(ops.first().copied().unwrap_or_default().to_owned(), 1.0)];
    for (name, share) in mix.map_or(&first[..], |mix| &mix.0[..]) {
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
        assert_eq!(shares(&["search"], None), Ok(vec![1.0]));
        let mix = Mix(vec![("set".into(), 1.0), ("get".into(), 3.0)]);
        assert_eq!(shares(&["get", "set"], Some(&mix)), Ok(vec![0.75, 1.0]));
        assert!(shares(&["get"], Some(&mix)).is_err_and(|said| said.contains("set")));
    }
}
