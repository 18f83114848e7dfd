//! Which request is the n-th: a GET or a SET, of which key, over which connection. It follows from its number alone, so
//! that each thread finds those of its connections without a word with the others ([`Own`]).

use std::ops::Range;

use rand::distr::Distribution;
use rand::{Rng, RngExt};
use rand_distr::Zipf;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::SeedableRng;

use super::super::scatter::{Permutation, mix2};
use super::service::{GET, SET};
use crate::generator::arrivals::Arrivals;
use crate::generator::engine::Schedule;
use crate::generator::protocol::{self, Protocol};

/// How requests are drawn.
#[derive(Clone, Debug)]
pub struct Requests {
    keys: u64,
    connections: usize,
    /// The share of GETs.
    gets: f64,
    /// Of the ranks of keys, from 1 on; `None`: all keys are the same.
    zipf: Option<Zipf<f64>>,
    /// Which key has which rank: often asked keys are not neighbours.
    ranks: Permutation,
    seed: u64,
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Whether it is a SET.
    pub set: bool,
    /// Its key.
    pub key: u64,
    /// Its connection.
    pub connection: usize,
}

impl Requests {
    /// Requests of this many keys, `gets` percent of them GETs, over these connections.
    ///
    /// # Errors
    /// If there is no such distribution.
    pub fn new(keys: u64, connections: usize, gets: f64, exponent: f64, seed: u64) -> Result<Self, String> {
        #[expect(clippy::cast_precision_loss)] // There are not 2^53 keys.
        let zipf = (exponent > 0.0).then(|| Zipf::new(keys as f64, exponent)).transpose();
        let zipf = zipf.map_err(|error| format!("invalid --zipf {exponent}: {error}"))?;
        Ok(Requests { keys, connections, gets: gets / 100.0, zipf, ranks: Permutation::new(keys, seed), seed: mix2(seed, 1) })
    }

    /// The connection over which all SETs of a key go.
    #[must_use]
    pub fn connection(&self, key: u64) -> usize {
        // A remainder by their number is below it.
        usize::try_from(key % self.connections as u64).unwrap_or(0)
    }

    /// Request `number`, if it goes over one of these connections.
    #[must_use]
    pub fn request(&self, number: u64, own: &Range<usize>) -> Option<Request> {
        let mut random = SplitMix64::seed_from_u64(mix2(self.seed, number));
        let set = random.random::<f64>() >= self.gets;
        // GETs are dealt in turn.
        let turn = usize::try_from(number % self.connections as u64).unwrap_or(0);
        if !set && !own.contains(&turn) {
            return None;
        }
        let key = self.key(&mut random);
        let connection = if set { self.connection(key) } else { turn };
        own.contains(&connection).then_some(Request { set, key, connection })
    }

    fn key(&self, random: &mut impl Rng) -> u64 {
        let Some(zipf) = &self.zipf else { return random.random_range(0..self.keys) };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // From 1 to the number of keys.
        let rank = zipf.sample(random) as u64;
        self.ranks.apply(rank.clamp(1, self.keys) - 1)
    }
}

/// Those of one thread, at their times.
pub struct Own<'a> {
    requests: &'a Requests,
    protocol: &'a dyn Protocol,
    /// All requests, of all threads.
    arrivals: Arrivals,
    /// Numbers of the thread's connections.
    own: Range<usize>,
    next: Option<(u64, Request)>,
}

impl<'a> Own<'a> {
    /// Of the thread with these connections.
    #[must_use]
    pub fn new(requests: &'a Requests, protocol: &'a dyn Protocol, arrivals: Arrivals, own: Range<usize>) -> Self {
        Own { requests, protocol, arrivals, own, next: None }
    }

    fn peek(&mut self) -> Option<(u64, Request)> {
        while self.next.is_none() {
            let arrival = self.arrivals.due(u64::MAX)?;
            self.next = self.requests.request(arrival.number, &self.own).map(|request| (arrival.at, request));
        }
        self.next
    }

    fn take(&mut self, until: u64) -> Option<(u64, Request)> {
        let taken = self.peek().filter(|(due, _)| *due <= until)?;
        self.next = None;
        Some(taken)
    }
}

impl Schedule for Own<'_> {
    fn next(&mut self) -> Option<u64> {
        self.peek().map(|(due, _)| due)
    }

    fn due(&mut self, until: u64) -> Option<(u64, protocol::Request, usize)> {
        let (due, request) = self.take(until)?;
        Some((due, self.protocol.request(if request.set { SET } else { GET }, request.key), request.connection))
    }

    fn skip(&mut self, until: u64) -> Option<(u64, u8)> {
        self.take(until).map(|(due, request)| (due, if request.set { SET } else { GET }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(gets: f64, zipf: f64) -> Requests {
        Requests::new(1000, 7, gets, zipf, 3).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn each_request_is_one_threads_and_the_same_for_any_number_of_threads() {
        let requests = requests(70.0, 0.99);
        for number in 0..2000 {
            let all = requests.request(number, &(0..7));
            assert!(all.is_some());
            for parts in [vec![0..4, 4..7], vec![0..1, 1..2, 2..5, 5..7]] {
                let found: Vec<Request> = parts.iter().filter_map(|own| requests.request(number, own)).collect();
                assert_eq!(found, Vec::from_iter(all));
            }
        }
    }

    #[test]
    fn all_sets_of_a_key_go_over_one_connection() {
        let requests = requests(0.0, 0.0);
        for request in (0..5000).filter_map(|number| requests.request(number, &(0..7))) {
            assert!(request.set && request.connection == requests.connection(request.key));
        }
    }

    #[test]
    fn gets_and_sets_have_their_shares_and_all_connections_some() {
        for (gets, least, most) in [(100.0, 0, 0), (99.8, 100, 300), (0.0, 100_000, 100_000)] {
            let requests = requests(gets, 0.99);
            let all = (0..100_000).filter_map(|number| requests.request(number, &(0..7)));
            let (mut sets, mut of) = (0, [0; 7]);
            all.for_each(|request| {
                sets += u32::from(request.set);
                of[request.connection] += 1;
            });
            assert!((least..=most).contains(&sets), "{gets} %: {sets}");
            assert!(of.iter().all(|count| *count > 100_000 / 50), "{of:?}");
        }
    }

    #[test]
    fn keys_have_their_skew() {
        for exponent in [0.0, 0.99, 1.5] {
            let requests = requests(100.0, exponent);
            let mut counts = [0_u32; 1000];
            let all = (0..200_000).filter_map(|number| requests.request(number, &(0..7)));
            all.for_each(|request| counts[usize::try_from(request.key).unwrap_or(0)] += 1);
            let expected = 200_000.0 / (1..=1000).map(|rank| f64::from(rank).powf(-exponent)).sum::<f64>();
            let first = requests.ranks.apply(0);
            let most = f64::from(counts[usize::try_from(first).unwrap_or(0)]);
            assert!((most / expected - 1.0).abs() < 6.0 / expected.sqrt(), "{exponent}: {most}, expected {expected}");
            if exponent > 0.0 {
                assert_eq!(counts.iter().max(), Some(&counts[usize::try_from(first).unwrap_or(0)]));
            }
        }
    }
}
