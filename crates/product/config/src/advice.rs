//! What a program's counters say that its user could do better.
//!
//! One thing is recognised: a program that goes over all its memory again and again, as a garbage collector does, in less local memory than that. No
//! choice of pages helps then: each page leaves before it is needed again.

use crate::stats::Stats;
use crate::{Size, plain};
use std::fmt::Write as _;

/// A shorter run than this may still be filling its memory, ns.
const SHORT_NS: u64 = 5_000_000_000;
/// So often each page of a program that thrashes has come back at least, on the average.
pub const TIMES: u64 = 4;
const PAGE: u64 = 4096;

/// Options of runtimes that bound their heap: the program, and what stands before and after a number of MiB.
const HEAPS: [(&str, &str, &str); 3] =
    [("java", "-Xmx", "m"), ("node", "--max-old-space-size=", ""), ("nodejs", "--max-old-space-size=", "")];

/// What helps a program that thrashes, in one line; `None`: it does not. It does if it has run for five seconds, has brought back each page four times
/// or more, and its faults took half of the time or more.
#[must_use]
pub fn of(stats: &Stats) -> Option<String> {
    let used = stats.used_bytes_peak;
    let times = stats.swap.pages_in / (used / PAGE).max(1);
    let waited = (100 * u128::from(stats.fault_latency_ns.total) / u128::from(stats.uptime_ns.max(1))).min(100);
    if stats.uptime_ns < SHORT_NS || times < TIMES || waited < 50 {
        return None;
    }
    let name = stats.program.rsplit('/').next().unwrap_or_default();
    // With what is always kept free.
    let mut line = format!(
        "'{}' went over {} again and again in {} of memory: each page came back {times} times, and {waited} % of the time was spent on that; what helps: --memory {}",
        plain(name),
        whole(used),
        whole(stats.memory_limit_bytes),
        whole(used + used / 10),
    );
    if stats.pool.is_none() && stats.spaces.iter().any(|space| !space.name.starts_with("ram")) {
        line.push_str(", or --swap ram:lz4 before the other swap space");
    }
    if let Some((_, before, after)) = HEAPS.iter().find(|(runtime, ..)| *runtime == name) {
        // What is no heap takes some of it.
        let _ = write!(line, ", or a smaller heap ({before}{}{after})", (stats.memory_limit_bytes * 3 / 4) >> 20);
    }
    Some(line)
}

/// In whole MiB.
fn whole(bytes: u64) -> Size {
    Size::mib(bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Latency, Pool, Space, Swap};

    /// Ten seconds on 64 MiB in 32 MiB.
    fn stats(pages_in: u64, waited_ns: u64) -> Stats {
        Stats {
            program: "luajit".into(),
            uptime_ns: 10_000_000_000,
            managed_bytes_peak: 1 << 40,
            used_bytes_peak: 64 << 20,
            memory_limit_bytes: 32 << 20,
            swap: Swap { pages_in, ..Swap::default() },
            fault_latency_ns: Latency { total: waited_ns, ..Latency::default() },
            spaces: vec![Space { name: "dir:/var/tmp".into(), ..Space::default() }],
            ..Stats::default()
        }
    }

    #[test]
    fn what_thrashes_is_told_what_helps() {
        let line = of(&stats(20 * 16384, 9_000_000_000)).expect("it thrashes");
        for part in
            ["'luajit' went over 64M", "in 32M", "back 20 times", "90 % of the time", "--memory 71M", "--swap ram:lz4 before"]
        {
            assert!(line.contains(part), "{part:?} is not in {line}");
        }
        let java = of(&Stats { program: "/usr/bin/java".into(), pool: Some(Pool::default()), ..stats(5 * 16384, u64::MAX) })
            .expect("it thrashes");
        assert!(
            java.contains("100 % of the time") && java.ends_with("or a smaller heap (-Xmx24m)") && !java.contains("lz4"),
            "{java}"
        );
    }

    #[test]
    fn others_are_told_nothing() {
        for calm in [
            stats(3 * 16384, 9_000_000_000),
            stats(20 * 16384, 4_000_000_000),
            Stats { uptime_ns: 4_000_000_000, ..stats(20 * 16384, 4_000_000_000) },
            Stats::default(),
        ] {
            assert_eq!(of(&calm), None);
        }
    }
}
