//! The generator of load: requests over many connections, at times that are fixed before they start (open loop), or one for
//! each answer (closed loop).
//!
//! Users do not wait for each other. So requests are due at the times of a Poisson process, whatever became of those before,
//! and the latency of each counts from its time: if the server stands still, each request that was due meanwhile shows it
//! (no coordinated omission).
//!
//! What is asked for and how is a service's: a [`protocol::Protocol`], and a [`engine::Schedule`] of requests. What is kept
//! of what came is its caller's ([`engine::Tally`]). The callers are the subcommand `open` and the workload `kv`.
//!
//! | module | what is there |
//! |---|---|
//! | [`engine`] | the loop of a thread |
//! | [`flight`], [`link`] | a connection: what is under way, and its socket |
//! | [`poller`] | waiting for sockets |
//! | [`arrivals`] | when requests are due |
//! | [`protocol`] | what a service is to the generator |
//! | [`wrongs`] | what was wrong with answers |

pub mod arrivals;
pub mod engine;
mod flight;
pub mod link;
mod poller;
pub mod protocol;
pub mod wrongs;

use std::thread;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::work::graph::joined;
use link::Link;

/// Calls `work` in threads, each with its share of the connections, the number of the first of them, and its own number; and
/// `meanwhile` here. There may be fewer threads than are allowed: see [`threads`].
pub fn each_thread<T: Send>(
    links: &mut [Link],
    allowed: usize,
    work: impl Fn(&mut [Link], usize, usize) -> T + Sync,
    meanwhile: impl FnOnce(),
) -> Vec<T> {
    let share = share(links.len(), allowed);
    thread::scope(|scope| {
        let work = &work;
        let parts = links.chunks_mut(share).enumerate();
        let running: Vec<_> = parts.map(|(number, part)| scope.spawn(move || work(part, number * share, number))).collect();
        meanwhile();
        running.into_iter().map(joined).collect()
    })
}

/// How many threads there are for so many connections: each has as many as another one, but for the last.
#[must_use]
pub fn threads(connections: usize, allowed: usize) -> usize {
    connections.div_ceil(share(connections, allowed))
}

fn share(connections: usize, allowed: usize) -> usize {
    connections.div_ceil(allowed.max(1)).max(1)
}

/// Raises the limit of open files where the connections need it. If that fails, opening them says so.
pub fn allow_files(connections: usize) {
    let wanted = connections as u64 + 64;
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < wanted
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted.min(hard), hard);
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn shares_of_connections_are_numbered() -> std::io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let mut links = (0..5).map(|_| Link::stream(&address, 1)).collect::<Result<Vec<_>, _>>()?;
        for (allowed, wanted) in [
            (1, vec![(0, 5, 0)]),
            (2, vec![(0, 3, 0), (3, 2, 1)]),
            (4, vec![(0, 2, 0), (2, 2, 1), (4, 1, 2)]),
            (9, (0..5).map(|n| (n, 1, n)).collect()),
        ] {
            let parts = each_thread(&mut links, allowed, |part, first, number| (first, part.len(), number), || ());
            assert_eq!((threads(5, allowed), parts), (wanted.len(), wanted));
        }
        Ok(())
    }
}
