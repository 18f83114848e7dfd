//! What a program's counters say that its user could do better.
//!
//! One thing is recognised: a program that goes over all its memory again and again, as a garbage collector does, in less local memory than that. No
//! choice of pages helps then: each page leaves before it is needed again.
//!
//! What tells it from others, by counters alone: each page that has bytes has come back [`TIMES`] times or more, on the average, so all of it has left as often
//! (a program that goes once through its data brings nothing back), and the program waited for its faults half of the time or more (one whose
//! hot pages stay does not). *The time* is that of the clock, or the processor time if it is more: of threads that compute side by
//! side, each with some faults, the waits add up and are no reason.

use crate::stats::{Stats, Thrashing};
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

/// Runtimes whose collector goes over all that a program has, and what makes it do so less often, or never. With half of the memory that they use,
/// lists that are built and changed were fetched so much less: LuaJIT's 51 %, Lua 5.4's 29 %, Python's 33 %. (What Ruby and PHP have, a limit for
/// old objects and `zend.enable_gc`, gave 4 and 10 %, and generations in Lua 5.4 nothing.)
const COLLECTORS: [(&str, &str); 3] = [
    ("luajit", "fewer collections (collectgarbage(\"setpause\", 400))"),
    ("lua", "fewer collections (collectgarbage(\"setpause\", 400))"),
    ("python", "no collections of cycles (gc.disable(), or gc.freeze() when its data are there)"),
];

/// Whether a program thrashes, and what helps it; `None`: it does not. It does if it has run for five seconds, has brought back each page four times
/// or more, and its faults took half of the time or more.
#[must_use]
pub fn of(stats: &Stats) -> Option<Thrashing> {
    within(&Stats::default(), stats)
}

/// The same by what faults took since `before`: a program may begin to thrash after hours.
#[must_use]
pub fn within(before: &Stats, stats: &Stats) -> Option<Thrashing> {
    let used = stats.used_bytes_peak;
    let times = stats.swap.pages_in / (used / PAGE).max(1);
    let since = |of: fn(&Stats) -> u64| of(stats).saturating_sub(of(before));
    let time = since(|stats| stats.uptime_ns).max(since(|stats| stats.processor_ns)).max(1);
    let waited_percent = (100 * u128::from(since(|stats| stats.fault_latency_ns.total)) / u128::from(time)).min(100) as u64;
    if stats.uptime_ns < SHORT_NS || times < TIMES || waited_percent < 50 {
        return None;
    }
    Some(Thrashing { times, waited_percent, advice: advice(stats, times, waited_percent) })
}

fn advice(stats: &Stats, times: u64, waited_percent: u64) -> String {
    let used = stats.used_bytes_peak;
    let name = stats.program.rsplit('/').next().unwrap_or_default();
    // With what is always kept free.
    let mut line = format!(
        "'{}' went over {} again and again in {} of memory: each page came back {times} times, and {waited_percent} % of the time was spent on that; what helps: --memory {}",
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
    let version = |rest: &str| rest.bytes().all(|byte| byte == b'.' || byte.is_ascii_digit());
    if let Some((_, less)) = COLLECTORS.iter().find(|(runtime, _)| name.strip_prefix(runtime).is_some_and(version)) {
        let _ = write!(line, ", or {less}");
    }
    line
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
        let told = of(&stats(20 * 16384, 9_000_000_000)).expect("it thrashes");
        assert_eq!((told.times, told.waited_percent), (20, 90));
        let line = told.advice;
        for part in [
            "'luajit' went over 64M",
            "in 32M",
            "back 20 times",
            "90 % of the time",
            "--memory 71M",
            "--swap ram:lz4 before",
            "collectgarbage(\"setpause\", 400)",
        ] {
            assert!(line.contains(part), "{part:?} is not in {line}");
        }
        let by = |program: &str| {
            of(&Stats { program: program.into(), ..stats(20 * 16384, 9_000_000_000) }).expect("it thrashes").advice
        };
        assert!(
            by("/usr/bin/python3.11").contains("gc.freeze()")
                && by("lua5.4").contains("setpause")
                && by("node").contains("--max-old")
        );
        // Only the names of runtimes, and no advice that is not known to help.
        for other in ["luajit-tool", "pythonic", "perl", "sort"] {
            assert!(by(other).ends_with("before the other swap space"), "{}", by(other));
        }
        let java = of(&Stats { program: "/usr/bin/java".into(), pool: Some(Pool::default()), ..stats(5 * 16384, u64::MAX) })
            .expect("it thrashes")
            .advice;
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
            // Eight threads that compute, each of which waits for an eighth of its time.
            Stats { processor_ns: 70_000_000_000, ..stats(20 * 16384, 10_000_000_000) },
            Stats::default(),
        ] {
            assert_eq!(of(&calm), None);
        }
    }

    #[test]
    fn what_begins_to_thrash_after_an_hour_is_told_by_what_came_since() {
        let hour = 3_600_000_000_000;
        let before = Stats { uptime_ns: hour, processor_ns: hour, ..stats(16384, 60_000_000_000) };
        let now = Stats { uptime_ns: hour + 2_000_000_000, processor_ns: hour + 200_000_000, ..stats(5 * 16384, 61_900_000_000) };
        assert_eq!((of(&now), within(&now, &now)), (None, None));
        assert_eq!(within(&before, &now).map(|told| told.waited_percent), Some(95));
    }
}
