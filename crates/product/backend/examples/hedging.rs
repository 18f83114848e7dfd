//! What slow answers cost the reads of a mirror: `cargo run --release -p farshore-backend --example hedging`.
//!
//! Servers of the tests' own, on this machine, each of which answers some of its reads late. First without such answers; then over one server; then over two, of
//! which one is slow, or both are. A read of one server can be sent to no other, so that row is what a user would have without.

#[allow(dead_code)]
#[path = "../tests/nbd/server.rs"]
mod server;

use farshore_backend::AnyBackend;
use farshore_config::SwapSpec;
use farshore_core::seams::{Backend, PageBuf, Reads, WriteQueue};
use farshore_core::word::Slot;
use server::{Deed, READ, Server};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

const READS: usize = 100_000;
const SLOTS: u64 = 512;
/// One read in so many of a slow server is late, by so many ms.
const EACH: u32 = 100;
const LATE_MS: u64 = 20;

fn main() {
    println!("{:<44}{:>9}{:>9}{:>9}{:>9}{:>10}{:>9}", "us", "p50", "p99", "p99.9", "max", "hedged", "won");
    let healthy = row("two servers, neither of them slow", &[false, false]);
    row("one server, slow in 1 read of 100", &[true]);
    let one = row("two servers, one of them slow", &[true, false]);
    let both = row("two servers, both of them slow", &[true, true]);
    let times = |ns: u64| ns as f64 / healthy as f64;
    println!("p99.9, times that of the healthy pair: {:.2} with one slow server, {:.2} with two", times(one), times(both));
}

/// Reads of a space on such servers. Returns the 99.9th percentile.
fn row(name: &str, slow: &[bool]) -> u64 {
    let servers: Vec<Arc<Server>> = slow.iter().map(|_| Server::new(64 << 20)).collect();
    let specs: Vec<SwapSpec> = servers.iter().map(|server| server.uri().parse().expect("an address")).collect();
    let spec = if let [one] = &specs[..] { one.clone() } else { SwapSpec::Mirror(specs) };
    let space = AnyBackend::open(&[spec], false, &mut |_| {}).expect("the servers are there");
    let pages = vec![PageBuf([7; 4096]); SLOTS as usize];
    let first = Slot::new(SLOTS).expect("a slot");
    let mut queue = space.queue(1).expect("a queue");
    for (n, part) in (0..).zip(pages.chunks(64)) {
        // SAFETY: the pages outlive the completion, which is waited for.
        unsafe { queue.start_write(first.plus(64 * n), part.as_ptr(), part.len() as u32, n) }.expect("none is under way");
        while queue.in_flight() > 0 {
            queue.reap(true, &mut |_, result| result.expect("it is written"));
        }
    }
    for (server, _) in servers.iter().zip(slow).filter(|(_, slow)| **slow) {
        let turn = AtomicU32::new(0);
        server.behave(move |command, _| {
            let late = command == READ && turn.fetch_add(1, Ordering::Relaxed) % EACH == EACH - 1;
            if late { Deed::Late(LATE_MS) } else { Deed::Right }
        });
    }
    let mut into = PageBuf::ZERO;
    let mut all: Vec<u64> = (0..READS as u64)
        .map(|n| {
            let start = Instant::now();
            space.read(first.plus(n % SLOTS), &mut into).expect("it is read");
            assert!(into.0[0] == 7 && into.0[4095] == 7);
            start.elapsed().as_nanos() as u64
        })
        .collect();
    all.sort_unstable();
    let at = |part: f64| all[(READS as f64 * part) as usize];
    let seen = space.mirror().into_iter().flat_map(|mirror| mirror.seen());
    let (hedged, won) = seen.fold((0, 0), |sum, copy| (sum.0 + copy.hedged, sum.1 + copy.hedged_won));
    let us = |ns: u64| ns as f64 / 1000.0;
    println!(
        "{name:<44}{:>9.0}{:>9.0}{:>9.0}{:>9.0}{hedged:>10}{won:>9}",
        us(at(0.5)),
        us(at(0.99)),
        us(at(0.999)),
        us(all[READS - 1])
    );
    at(0.999)
}
