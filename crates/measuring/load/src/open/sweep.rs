//! Looks for the highest rate at which a target is met. Knows nothing of requests: it is told what came of each rate.
//!
//! First rates grow by a factor until one misses the target, then the gap between the best and that one is halved, in proportion,
//! until it is small. Whether a target is met is taken to change once from low rates to high ones.

use farshore_load::rates::Limit;

/// From one rate to the next.
const FACTOR: f64 = 1.5;
/// The gap that is small enough.
const GAP: f64 = 1.02;

/// What came of a rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The target was met.
    Met,
    /// It was not.
    Missed,
    /// It was not, and the generator was too slow to say that it is the server's fault.
    TooSlow,
}

/// What was found.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Found {
    /// The highest rate that met the target.
    pub best: Option<f64>,
    /// Why there is no higher one.
    pub limit: Limit,
}

/// Searches from `low` to `high`. `step` runs a rate; `None` ends the search.
pub fn search(low: f64, high: f64, mut step: impl FnMut(f64) -> Option<Verdict>) -> Found {
    let mut best = None;
    // The lowest rate that missed, and why.
    let mut above: Option<(f64, Limit)> = None;
    loop {
        let rate = match (best, above) {
            (None, None) => low,
            (Some(best), None) if best >= high => return Found { best: Some(best), limit: Limit::Range },
            (Some(best), None) => f64::min(best * FACTOR, high),
            (Some(best), Some((above, _))) if above / best > GAP => (best * above).sqrt(),
            // It is found; or the lowest rate is too high.
            (_, Some((_, limit))) => return Found { best, limit },
        };
        match step(rate) {
            Some(Verdict::Met) => best = Some(rate),
            Some(Verdict::Missed) => above = Some((rate, Limit::Server)),
            Some(Verdict::TooSlow) => above = Some((rate, Limit::Generator)),
            None => return Found { best, limit: Limit::Ended },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::arrivals::Arrivals;
    use std::time::Duration;

    /// The 99th percentile of the latency, in seconds, of a server that does one request after the other and takes 10 µs for each:
    /// in virtual time.
    fn p99(rate: f64) -> f64 {
        const SERVICE: u64 = 10_000;
        let mut arrivals = Arrivals::new(rate, Duration::from_secs(4), 5);
        let (mut free, mut latencies) = (0, Vec::new());
        while let Some(arrival) = arrivals.due(u64::MAX) {
            free = u64::max(free, arrival.at) + SERVICE;
            latencies.push(free - arrival.at);
        }
        latencies.sort_unstable();
        Duration::from_nanos(latencies[latencies.len() * 99 / 100]).as_secs_f64()
    }

    #[test]
    fn the_capacity_of_a_server_is_found() {
        let most = 200e-6;
        let mut tried = Vec::new();
        let found = search(1000.0, 1e6, |rate| {
            tried.push(rate);
            Some(if p99(rate) <= most { Verdict::Met } else { Verdict::Missed })
        });
        let best = found.best.unwrap_or_else(|| panic!("{tried:?}"));
        // It can do 100 000 a second, but with a queue of less than 20 at p99 only 89 000 or so: M/D/1.
        assert!((85_000.0..95_000.0).contains(&best), "{best}");
        assert_eq!(found.limit, Limit::Server);
        assert!(p99(best) <= most && p99(best * 1.05) > most);
        assert!(tried.len() < 25, "{tried:?}");
    }

    #[test]
    fn the_ends_of_the_range() {
        let found = search(10.0, 100.0, |_| Some(Verdict::Met));
        assert_eq!(found, Found { best: Some(100.0), limit: Limit::Range });
        let found = search(10.0, 100.0, |_| Some(Verdict::Missed));
        assert_eq!(found, Found { best: None, limit: Limit::Server });
        let mut steps = 0;
        let found = search(10.0, 100.0, |_| {
            steps += 1;
            (steps < 3).then_some(Verdict::Met)
        });
        assert_eq!(found, Found { best: Some(15.0), limit: Limit::Ended });
    }

    #[test]
    fn the_generators_limit_is_not_the_servers() {
        let verdict = |rate: f64| if rate < 50.0 { Verdict::Met } else { Verdict::TooSlow };
        let found = search(10.0, 1000.0, |rate| Some(verdict(rate)));
        assert_eq!(found.limit, Limit::Generator);
        assert!(found.best.is_some_and(|best| (49.0..50.0).contains(&best)));
    }
}
