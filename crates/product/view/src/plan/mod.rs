//! `farshore plan`: how much memory a program needs.
//!
//! It runs the program once under Farshore, listens beside it as a policy that wishes for next to nothing, and tells at the end how long the program
//! would take with more and with less memory. Nothing of it is in the program's process but the events, which any policy may have.
//!
//! | module | what it does |
//! |---|---|
//! | [`ghosts`] | reuse distances of pages that have left, from a sample |
//! | [`looks`] | how often pages that are there are wanted, from how long they are away once they leave |
//! | [`asked`] | sends a few pages away for a look while nothing leaves by itself |
//! | [`watch`] | what events tell of a program |
//! | [`cores`] | what the program's threads waited for a core |
//! | [`curve`] | the model: from one run to the time with any memory |
//! | [`follow`] | runs the program, asks for its counters, and keeps its limit at half of what it has |
//! | [`device`] | swap spaces to ask about |
//! | [`report`] | the table, the sentence, and JSON |
//! | [`signals`] | the program's are as without this command, and what ends the command is passed on |

pub mod asked;
pub mod cores;
pub mod curve;
pub mod device;
pub mod follow;
pub mod ghosts;
pub mod looks;
pub mod report;
pub mod signals;
pub mod watch;

use std::fs::File;
use std::io::{IsTerminal, Write};

use farshore_command::refusal::Refusal;

use crate::args::PlanArgs;
use follow::Run;

/// Runs or watches a program, and tells what memory it needs.
///
/// # Errors
/// The program cannot be started (125), or cannot be watched or the plan not be written (1).
pub fn plan(arguments: &PlanArgs, farshore: Option<std::path::PathBuf>) -> Result<u8, Refusal> {
    // Better to know now than after hours of work.
    let json = match arguments.json.as_deref() {
        None => None,
        Some(path) if path.as_os_str() == "-" => Some((path, None)),
        Some(path) => {
            let file = File::create(path).map_err(|error| {
                Refusal::cannot_start(format!("--json: cannot write '{}' ({error}): name another file", path.display()))
            })?;
            Some((path, Some(file)))
        }
    };
    let run = match arguments.pid {
        Some(pid) => follow::watch(pid)?,
        None => follow::run(arguments, farshore)?,
    };
    let status = run.status;
    let told = report::Report::of(&run, arguments.device.as_ref());
    let mut screen = std::io::stderr().lock();
    // That standard error is closed is no reason to take the program's status from who asked.
    let _ = screen.write_all(told.text(std::io::stderr().is_terminal()).as_bytes());
    match json {
        Some((_, None)) => crate::print(&told.json())?,
        Some((path, Some(mut file))) => file.write_all(told.json().as_bytes()).map_err(|error| {
            Refusal::failed(format!("--json: cannot write '{}' ({error}): is its disk full?", path.display()))
        })?,
        None => {}
    }
    Ok(status.status())
}

/// What a run is known by, for the report.
pub fn shown(run: &Run) -> Option<curve::Shown> {
    let stats = run.stats.as_ref()?;
    let heard = run.heard.as_ref()?;
    let (faults, ns) = (&stats.faults, 1e9);
    let begun = run.before.as_deref();
    // What came after they were asked for last was heard: as much again of each.
    let since =
        |now: u64, of: fn(&farshore_config::stats::Stats) -> u64| now.saturating_sub(begun.map_or(0, of)) as f64 / run.asked_at;
    let zero = since(faults.zero, |it| it.faults.zero);
    let cheap = zero + since(faults.rescue, |it| it.faults.rescue) + since(faults.write_protect, |it| it.faults.write_protect);
    let (fetches, pages_in) = (since(faults.fetch, |it| it.faults.fetch), since(stats.swap.pages_in, |it| it.swap.pages_in));
    let looked = (heard.looked_back as f64).min(pages_in);
    let waited = since(stats.fault_latency_ns.total, |it| it.fault_latency_ns.total) / ns;
    let overhead = run.cheapest + run.signal;
    // But for first touches, which it would have made alone too, its faults are all of their time Farshore's.
    let all = (waited - zero * NATIVE).max(0.0) + (fetches + cheap) * run.signal;
    let steady = (zero * (overhead - NATIVE)).clamp(0.0, all);
    let looks = heard.looked_rescued as f64 * overhead;
    let waited = (all - steady - looks).max(0.0);
    let besides = heard.took().map_or(0.0, |took| (waited - fetches * (took + run.signal)).max(0.0));
    Some(curve::Shown {
        seconds: run.seconds,
        limit: run.limit,
        whole: run.whole,
        needs: heard.needs.iter().map(|(&need, &returns)| (watch::limit_for(need, run.evictors), returns)).collect(),
        fewer: heard.fewer(stats).map_or_else(Vec::new, |fewer| {
            let room = watch::room(stats) as f64;
            let parts = (2..20).map(|part| f64::from(part) / 20.0);
            parts.map(|part| (watch::limit_for((room * part) as u64, run.evictors), fewer.with(part))).collect()
        }),
        pages_in: pages_in - looked,
        looked,
        pages_out: since(stats.swap.pages_out, |it| it.swap.pages_out),
        fetches,
        waited,
        besides,
        steady,
        signal: run.signal,
        queued: run.queued / run.asked_at,
        overhead,
        longest: run.longest,
    })
}

/// Seconds of a first touch without Farshore.
const NATIVE: f64 = 0.5e-6;

#[cfg(test)]
mod tests {
    use super::curve::Curve;
    use super::ghosts::tests::Random;
    use super::*;
    use farshore_beside::{Event, Kind, PAGE, State};
    use farshore_config::stats::Stats;
    use std::collections::HashSet;

    const MS: u64 = 1_000_000;
    /// Pages that are used at random all the time, which fit; and others, used once and no more.
    const HOT: u64 = 8000;
    const COLD: u64 = 4000;

    /// Ten seconds with room for 8192 pages, with a look at a page each 9 ms until there were enough, which is used again within 80 ms, more or less. A fetch takes 100 us.
    fn run_that_fits(looks: u64) -> Run {
        let (room, mut random, mut watch) = (8192, Random(5), watch::Watch::default());
        let stats = Stats {
            memory_limit_bytes: room * PAGE,
            frames: farshore_config::stats::Frames { limit: room, ..Default::default() },
            evictors: farshore_config::stats::Evictors { count: 1, ..Default::default() },
            ..Stats::default()
        };
        let state = State { resident_bytes: room * PAGE, ..State::default() };
        let mut events: Vec<(u64, Kind, u64)> = (0..COLD).map(|page| (MS + page, Kind::Evicted, HOT + page)).collect();
        for look in 0..looks {
            let unit = (random.below(1 << 20) + 1) as f64 / f64::from(1 << 20);
            let at = (10 + 9 * look) * MS;
            events.push((at, Kind::Evicted, look));
            events.push((at + (unit.ln() * -80e6) as u64 + 1, Kind::Fetched, look));
        }
        events.sort_unstable_by_key(|event| event.0);
        for (ns, kind, page) in events {
            if matches!(kind, Kind::Evicted) && page < HOT {
                watch.ask(HashSet::from([page]));
            }
            watch.hear(&Event { ns, ..Event::new(kind, page * PAGE, 1) }, &state);
        }
        assert_eq!((watch.looked_at, watch.looked_back, watch.fetched), (looks, looks, 0), "{looks}");
        let faults = farshore_config::stats::Faults { fetch: looks, zero: HOT + COLD, ..Default::default() };
        let stats = Stats {
            faults,
            swap: farshore_config::stats::Swap { pages_in: looks, pages_out: COLD + looks, ..Default::default() },
            fault_latency_ns: farshore_config::stats::Latency {
                total: looks * 100_000 + (HOT + COLD) * 1000,
                ..Default::default()
            },
            ..stats
        };
        let whole = watch::limit_for((HOT + COLD) * PAGE, 1);
        Run {
            name: "x".into(),
            status: follow::Ended::Status(0),
            seconds: 10.0,
            heard: Some(watch),
            stats: Some(Box::new(stats)),
            asked_at: 1.0,
            queued: 0.0,
            before: None,
            limit: watch::limit_for(room * PAGE, 1),
            evictors: 1,
            footprint: (HOT + COLD) * PAGE,
            resident: 0,
            fitted: false,
            has_others: false,
            grown: 0,
            whole,
            cheapest: 1e-6,
            signal: 2e-6,
            longest: 1.0,
        }
    }

    #[test]
    fn a_run_that_fits_tells_what_it_would_miss_with_less() {
        let run = run_that_fits(1000);
        let curve = Curve::of(shown(&run).expect("it was heard"), None);
        // A hundred thousand accesses a second, of which half find their page, told to a quarter.
        let half = curve.at(watch::limit_for(HOT / 2 * PAGE, 1));
        assert!((375e3..625e3).contains(&half.misses), "{half:?}");
        assert_eq!(curve.at(run.limit).misses, 0.0);
        assert!((95e-6..110e-6).contains(&curve.miss()), "{}", curve.miss());
        // A tenth of a second was in looks.
        assert!((9.7..=9.9).contains(&curve.alone()), "{}", curve.alone());
    }

    #[test]
    fn a_run_that_tells_nothing_of_less_memory_gets_no_advice_of_it() {
        let run = run_that_fits(100);
        let told = report::Report::of(&run, None);
        let plan = told.plan.as_ref().expect("pages have left");
        assert!(plan.little_slower_bytes >= run.limit && plan.curve.iter().all(|row| row.memory_bytes >= run.limit), "{told:?}");
        assert!(told.text(false).contains("too few"), "{}", told.text(false));
        assert!(report::Report::of(&run_that_fits(1000), None).plan.is_some_and(|plan| plan.curve[0].memory_bytes < run.limit));
    }
}
