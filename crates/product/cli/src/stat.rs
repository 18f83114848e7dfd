//! `farshore stat` and `farshore set`.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::time::Duration;

use farshore_client::shown::{bytes, duration, per_second};
use farshore_client::{Client, kinds};
use farshore_command::process::told;
use farshore_command::refusal::Refusal;
use farshore_command::swap;
use farshore_config::stats::Stats;
use farshore_config::{SwapSpec, plain};

use crate::args::{SetArgs, StatArgs};
use crate::print;

/// How often a change that takes its time is asked for.
const CHANGE_LOOK: Duration = Duration::from_millis(100);
/// How long the kernel may take to tell what lies in RAM.
const KINDS: Duration = Duration::from_secs(10);

/// Shows the counters of a program, once or again and again.
///
/// # Errors
/// The program cannot be asked (1).
pub fn stat(arguments: &StatArgs) -> Result<u8, Refusal> {
    let mut before = look(arguments.pid)?;
    let Some(seconds) = arguments.watch else {
        print(&if arguments.json { before.to_json() } else { table(&before, None) })?;
        return Ok(0);
    };
    let clear = !arguments.json && std::io::stdout().is_terminal();
    let show = |now: &Stats, since: Option<&Stats>| {
        if arguments.json {
            return print(&format!("{}\n", now.to_json_line()));
        }
        // Home and clear to the end, so that the table stays in its place.
        let (head, tail) = if clear { ("\x1b[H\x1b[J", "") } else { ("", "\n") };
        print(&format!("{head}{}{tail}", table(now, since)))
    };
    show(&before, None)?;
    loop {
        std::thread::sleep(Duration::from_secs_f64(seconds));
        // A connection for each look: the program closes those that are silent for long.
        let now = match look(arguments.pid) {
            Ok(now) => now,
            Err(_) if gone(arguments.pid) => return Ok(0),
            Err(refusal) => return Err(refusal),
        };
        show(&now, Some(&before))?;
        before = now;
    }
}

/// The program's counters, and what the kernel says of its memory.
fn look(pid: u32) -> Result<Stats, Refusal> {
    let stats = Client::connect(pid)?.stats()?;
    Ok(Stats { kinds: kinds::of(pid, KINDS), ..stats })
}

/// Whether the process has ended (it may not have been waited for yet).
fn gone(pid: u32) -> bool {
    let status = told(pid, "status").unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:")).unwrap_or("X").trim_start();
    state.starts_with(['X', 'Z'])
}

/// Makes settings, in order, and waits for each.
///
/// # Errors
/// The first that is refused or fails (1).
pub fn set(arguments: &SetArgs) -> Result<u8, Refusal> {
    let mut client = Client::connect(arguments.pid)?;
    for (key, value) in &arguments.settings {
        let value = by_absolute_path(key, value)?;
        if let Some(id) = client.set(key, &value)? {
            follow(&mut client, id, &format!("{key}={value}"))?;
        }
    }
    Ok(0)
}

/// A swap space by the path that it has from here; anything else as it is.
fn by_absolute_path(key: &str, value: &str) -> Result<String, Refusal> {
    match value.parse::<SwapSpec>() {
        Ok(spec) if matches!(key, "swap+" | "swap-") => {
            swap::absolute(spec).map(|spec| spec.to_string()).map_err(|refusal| Refusal::failed(refusal.text))
        }
        // The program says what is wrong with it.
        _ => Ok(value.to_owned()),
    }
}

/// Waits for a change to end, and shows on a terminal how far it is.
fn follow(client: &mut Client, id: u64, what: &str) -> Result<(), Refusal> {
    let shown = std::io::stderr().is_terminal();
    let mut line = String::new();
    loop {
        let state = client.change(id);
        if shown && (!line.is_empty() || matches!(state, Ok(Some(_)))) {
            // In place of the line before.
            line = match &state {
                Ok(Some(percent)) => format!("{}: {percent} % (it goes on if you leave with Ctrl-C)", plain(what)),
                _ => String::new(),
            };
            let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
        }
        match state? {
            Some(_) => std::thread::sleep(CHANGE_LOOK),
            None => return Ok(()),
        }
    }
}

/// The counters for reading; with `since`, also what has happened in between, by second.
fn table(now: &Stats, since: Option<&Stats>) -> String {
    // Names are the program's own, which may be anybody's.
    let (program, mode) = (plain(&now.program), plain(&now.fault_mode));
    let mut text = format!("{program} (process {}), {mode}, up {}\n", now.pid, duration(now.uptime_ns));
    // A library of a version before does not tell.
    if !now.policy.is_empty() {
        let _ = writeln!(text, "policy {}, prefetcher {}", plain(&now.policy), plain(&now.prefetcher));
    }
    if !now.ablated.is_empty() {
        let _ = writeln!(text, "an experiment, --ablate {}: its figures are not Farshore's", plain(&now.ablated));
    }
    text += &attached(now);
    text.push('\n');
    let _ = writeln!(text, "{:<22}{:>12}{:>12}", "memory", "now", "peak");
    let _ = writeln!(text, "{:<22}{:>12}", "  limit", bytes(now.memory_limit_bytes));
    if let Some(it) = &now.autopilot {
        let percent = |ppm: u64| format!("{:.2} %", ppm as f64 / 10_000.0);
        let bounds = format!("{} to {}", bytes(it.least_bytes), bytes(it.most_bytes));
        let decides = if it.decides { "" } else { ", by a relative" };
        let _ = writeln!(text, "{:<22}{:>12}  ({bounds}{decides})", "  chosen for", percent(it.target_ppm));
        let _ = writeln!(text, "{:<22}{:>12}", "  measured slowdown", percent(it.measured_ppm));
    }
    if let Some(it) = &now.budget {
        let programs = if it.programs == 1 { "1 program".into() } else { format!("{} programs", it.programs) };
        let (size, taken) = (bytes(it.size_bytes), bytes(it.taken_bytes));
        let _ = writeln!(
            text,
            "{:<22}{:>12}  (budget {}: {size}, {programs} with {taken})",
            "  share",
            bytes(it.share_bytes),
            plain(&it.name)
        );
    }
    for (name, value, peak) in [
        ("  resident", now.resident_bytes, now.resident_bytes_peak),
        ("  managed", now.managed_bytes, now.managed_bytes_peak),
        ("  Farshore's own", now.overhead_bytes, now.overhead_bytes_peak),
    ] {
        let _ = writeln!(text, "{name:<22}{:>12}{:>12}", bytes(value), bytes(peak));
    }
    text.push_str(&in_ram(now));
    let passed = since.map(|since| now.uptime_ns.saturating_sub(since.uptime_ns)).filter(|passed| *passed > 0);
    let old = since.map(counters);
    for (index, (name, value)) in counters(now).into_iter().enumerate() {
        let Some(value) = value else {
            let (total, rate) = ("total", if passed.is_some() { "a second" } else { "" });
            let _ = writeln!(text, "\n{}", format!("{name:<22}{total:>12}{rate:>12}").trim_end());
            continue;
        };
        let before = old.as_ref().and_then(|old| old.get(index)).and_then(|(_, value)| *value);
        let rate = before.zip(passed).map(|(before, passed)| per_second(value.saturating_sub(before), passed));
        let line = format!("{name:<22}{value:>12}{:>12}", rate.map_or(String::new(), |rate| rate.to_string()));
        let _ = writeln!(text, "{}", line.trim_end());
    }
    if let Some(error) = &now.swap.last_error {
        let _ = writeln!(text, "\nThe last of the errors: {}.", plain(error));
    }
    text.push_str(&pace(now));
    text.push_str(&scans(now));
    text.push_str(&guest(now));
    if let Some(thrashing) = farshore_config::advice::within(since.unwrap_or(&Stats::default()), now) {
        let _ = writeln!(text, "\n{}", plain(&thrashing.advice));
    }
    let latency = &now.fault_latency_ns;
    let _ = writeln!(text, "\nfault latency");
    for (name, value) in
        [("p50", latency.p50), ("p90", latency.p90), ("p99", latency.p99), ("p99.9", latency.p999), ("max", latency.max)]
    {
        let _ = writeln!(text, "  {name:<20}{:>12}", duration(value));
    }
    text.push_str(&fetch_parts(now));
    if !now.spaces.is_empty() {
        let _ = writeln!(text, "\n{:<46}{:>12}{:>12}", "swap space", "used", "capacity");
    }
    for space in &now.spaces {
        let capacity = space.capacity_bytes.map_or_else(|| "the disk".into(), bytes);
        let mut name = plain(&space.name) + if space.encrypted { ", encrypted" } else { "" };
        if !matches!(space.state.as_str(), "" | "works") {
            let _ = match space.state.as_str() {
                "draining" => write!(name, " (draining, {} %)", space.drained_percent),
                state => write!(name, " ({})", plain(state)),
            };
        }
        let _ = writeln!(text, "  {name:<44}{:>12}{capacity:>12}", bytes(space.used_bytes));
        for copy in &space.copies {
            let state = match copy.stale_pages {
                0 => plain(&copy.state),
                pages => format!("{}, {pages} pages behind", plain(&copy.state)),
            };
            let _ = writeln!(text, "    {:<42}{state:>24}", plain(&copy.name));
            if copy.hedged_reads > 0 {
                let hedged = format!("{} of {}", copy.hedged_reads_won, copy.hedged_reads);
                let _ = writeln!(text, "      {:<40}{hedged:>24}", "late, and first from another copy");
            }
        }
    }
    if let Some(pool) = &now.pool {
        let _ = writeln!(text, "\n{:<46}{:>12}{:>12}", "pool", "used", "capacity");
        let _ = writeln!(text, "  {:<44}{:>12}{:>12}", plain(&pool.name), bytes(pool.used_bytes), bytes(pool.capacity_bytes));
        for (name, pages) in [
            ("pages", pool.pages),
            ("  of one word", pool.repeated_pages),
            ("not taken", pool.refused_pages),
            ("moved on", pool.moved_pages),
        ] {
            let _ = writeln!(text, "  {name:<44}{pages:>12}");
        }
        if let Some(held) = pool.pages.checked_sub(pool.repeated_pages).filter(|held| *held > 0) {
            let percent = pool.used_bytes as f64 / (held * 4096) as f64 * 100.0;
            let _ = writeln!(text, "  {:<44}{percent:>10.0} %", "of their size");
        }
        if pool.page_ns > 0 {
            let us = |ns: u64| ns as f64 / 1000.0;
            let (here, behind) = (us(pool.page_ns), us(pool.behind_page_ns));
            let why = format!("chosen: a page costs {here:.1} µs here, {behind:.1} behind");
            let _ = writeln!(text, "  {why:<44}{:>12}", bytes(pool.chosen_bytes));
        }
    }
    text
}

/// What lies in RAM, by kind, as far as there is any of it.
fn in_ram(now: &Stats) -> String {
    let Some(kinds) = &now.kinds else { return String::new() };
    let rows = [
        ("managed", kinds.managed_bytes),
        ("Farshore's own", kinds.farshore_bytes),
        ("locked", kinds.locked_bytes),
        ("hugetlbfs", kinds.huge_bytes),
        ("shared", kinds.shared_bytes),
        ("of files", kinds.file_bytes),
        ("executable", kinds.executable_bytes),
        ("stack", kinds.stack_bytes),
        ("static data", kinds.static_bytes),
        ("other", kinds.other_bytes),
    ];
    let rows = rows.into_iter().filter(|(_, value)| *value > 0);
    rows.fold(format!("\n{:<22}{:>12}\n", "in RAM, all kinds", "now"), |text, (name, value)| {
        text + &format!("  {name:<20}{:>12}\n", bytes(value))
    })
}

/// The policies that are attached, if there are any.
fn attached(now: &Stats) -> String {
    let mut text = String::new();
    for (number, it) in now.policies.iter().enumerate() {
        let title = if number == 0 { "policies attached" } else { "" };
        let parameters =
            it.parameters.iter().fold(String::new(), |text, (name, value)| text + &format!("{}={value}, ", plain(name)));
        let bad = if it.requests_bad == 0 { String::new() } else { format!(" ({} bad)", it.requests_bad) };
        let _ = writeln!(text, "{title:<22}{parameters}{} requests{bad}, {} events lost", it.requests, it.events_lost);
    }
    text
}

/// How scans of policies have looked at pages, if there were any.
fn scans(now: &Stats) -> String {
    let it = &now.scans;
    if it.watched_pages + it.taken_pages == 0 {
        return String::new();
    }
    let rows = [("watched", it.watched_pages), ("taken away", it.taken_pages)];
    rows.iter().fold(format!("\n{:<22}{:>12}\n", "pages scanned", "total"), |text, (name, value)| {
        text + &format!("  {name:<20}{value:>12}\n")
    })
}

/// What a guest's page tables tell of its faults, if they are looked at.
fn guest(now: &Stats) -> String {
    let Some(it) = &now.guest else { return String::new() };
    let rows = [
        ("address spaces", it.address_spaces),
        ("faults asked", it.asked),
        ("  found", it.found),
        ("  not heard", it.unheard),
        ("page tables out", it.tables_out),
        ("pages prefetched", it.prefetched),
        ("  used", it.used),
    ];
    rows.iter()
        .fold(format!("\n{:<22}{:>12}\n", "guest", "total"), |text, (name, value)| text + &format!("  {name:<20}{value:>12}\n"))
}

/// What a fetch takes, part by part, on the average of those that were measured.
fn fetch_parts(now: &Stats) -> String {
    let it = &now.fetch_parts;
    let Some(mean) = (it.measured > 0).then_some(|ns: u64| duration(ns / it.measured)) else { return String::new() };
    let rows = [
        ("frame and page", it.claim_ns),
        ("read", it.read_ns),
        ("check", it.check_ns),
        ("map", it.map_ns),
        ("all else", it.rest_ns),
    ];
    let head = format!("\n{:<22}{:>12}\n", "a fetch, on average", format!("of {}", it.measured));
    rows.iter().fold(head, |text, (name, value)| text + &format!("  {name:<20}{:>12}\n", mean(*value)))
}

/// How hard evictors work.
fn pace(now: &Stats) -> String {
    let it = &now.evictors;
    let fixed = |is: bool| if is { ", fixed" } else { "" };
    let rows = [
        ("awake", format!("{} of {}{}", it.awake, it.count, fixed(it.awake_fixed))),
        ("pages of a batch", format!("{}{}", it.batch_pages, fixed(it.batch_fixed))),
        ("writes each", format!("{}{}", it.writes_each, fixed(it.writes_fixed))),
        ("begin at free pages", it.low_pages.to_string()),
        ("end at free pages", it.high_pages.to_string()),
    ];
    rows.iter()
        .fold(format!("\n{:<22}{:>12}\n", "evictors", "now"), |text, (name, value)| text + &format!("  {name:<20}{value:>12}\n"))
}

/// Counters in the order of the table; those without a value are headings.
fn counters(stats: &Stats) -> Vec<(&'static str, Option<u64>)> {
    let (faults, evictions, swap, prefetch) = (&stats.faults, &stats.evictions, &stats.swap, &stats.prefetch);
    vec![
        ("faults", None),
        ("  fetch", Some(faults.fetch)),
        ("  zero", Some(faults.zero)),
        ("  rescue", Some(faults.rescue)),
        ("  wait", Some(faults.wait)),
        ("  write protect", Some(faults.write_protect)),
        ("waits for memory", Some(stats.evictors.frame_waits)),
        ("waits for a page", Some(stats.waits.page)),
        ("evictions", None),
        ("  pages", Some(evictions.pages)),
        ("  clean pages", Some(evictions.clean_pages)),
        ("  batches", Some(evictions.batches)),
        ("  synchronous", Some(evictions.synchronous)),
        ("swap", None),
        ("  pages in", Some(swap.pages_in)),
        ("  pages out", Some(swap.pages_out)),
        ("  writes", Some(swap.writes)),
        ("  delegations", Some(swap.delegations)),
        ("  errors", Some(swap.errors)),
        ("  bytes given back", Some(swap.bytes_given_back)),
        ("TLB flushes", None),
        ("  protect", Some(stats.flushes.protect_calls)),
        ("  unmap", Some(stats.flushes.unmap_calls)),
        ("bytes copied", None),
        ("  in", Some(stats.copies.in_bytes)),
        ("  out", Some(stats.copies.out_bytes)),
        ("prefetch", None),
        ("  issued", Some(prefetch.issued)),
        ("  used", Some(prefetch.used)),
        ("  wasted", Some(prefetch.wasted)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_config::stats::{Attached, Autopilot, Budget, FetchParts, Guest, Kinds, Pool, Scans, Space};

    #[test]
    fn the_table_shows_rates_when_it_is_watched() {
        let mut before = Stats { program: "sort".into(), pid: 7, uptime_ns: 1_000_000_000, ..Stats::default() };
        before.spaces = vec![Space {
            name: "dir:/var/tmp".into(),
            capacity_bytes: None,
            used_bytes: 4096,
            encrypted: true,
            ..Space::default()
        }];
        before.faults.fetch = 100;
        before.swap.last_error = Some("reading slot 7 of the swap space failed\u{1b}: short transfer".into());
        assert!(table(&before, None).starts_with("sort (process 7), , up 1.0 s\n\nmemory"), "{}", table(&before, None));
        (before.policy, before.prefetcher) = ("fifo".into(), "none".into());
        let mut attended = before.clone();
        attended.policies = vec![Attached { requests: 5, parameters: [("ahead".into(), 8)].into(), ..Attached::default() }; 2];
        let told = table(&attended, None);
        assert!(
            told.contains("\npolicies attached     ahead=8, 5 requests, 0 events lost\n                      ahead=8, 5 req"),
            "{told}"
        );
        let mut now = before.clone();
        now.uptime_ns += 2_000_000_000;
        now.faults.fetch += 500;
        before.kinds = Some(Kinds { managed_bytes: 3 << 20, static_bytes: 5 << 20, ..Kinds::default() });
        let once = table(&before, None);
        assert!(once.contains("\nThe last of the errors: reading slot 7 of the swap space failed"), "{once}");
        assert!(!once.contains('\u{1b}'), "{once}");
        assert!(once.contains("  managed                  3.0 MiB\n  static data              5.0 MiB\n\nfaults"), "{once}");
        assert!(once.contains(" s\npolicy fifo, prefetcher none\n\nmemory"), "{once}");
        assert!(once.contains("sort (process 7)") && once.contains("  fetch                        100\n"), "{once}");
        assert!(once.contains("  dir:/var/tmp, encrypted  "), "{once}");
        assert!(once.contains("the disk") && !once.contains("a second"), "{once}");
        assert!(!once.contains("pool") && !once.contains("scanned"), "{once}");
        before.scans = Scans { watched_pages: 512, taken_pages: 3 };
        let scanned = table(&before, None);
        assert!(
            scanned.contains(
                "\npages scanned                total\n  watched                      512\n  taken away                     3\n"
            ),
            "{scanned}"
        );
        before.scans = Scans::default();
        before.guest = Some(Guest { asked: 90, found: 81, used: 7, ..Guest::default() });
        let told = table(&before, None);
        assert!(told.contains("\n  faults asked                  90\n    found                       81\n"), "{told}");
        before.guest = None;
        assert!(!scanned.contains("faults asked"), "{scanned}");
        before.fetch_parts = FetchParts { measured: 2, claim_ns: 600, read_ns: 170_000, ..FetchParts::default() };
        before.ablated = "rescue,batch=1".into();
        let measured = table(&before, None);
        assert!(measured.contains("\na fetch, on average           of 2\n  frame and page "), "{measured}");
        assert!(
            measured.contains("\nan experiment, --ablate rescue,batch=1: its figures are not Farshore's\n\nmemory"),
            "{measured}"
        );
        assert!(!once.contains("a fetch") && !once.contains("experiment"), "{once}");
        (before.fetch_parts, before.ablated) = (FetchParts::default(), String::new());
        let mib = 1 << 20;
        let (pages, repeated_pages) = (612, 100);
        now.pool = Some(Pool {
            name: "ram:lz4".into(),
            used_bytes: mib,
            capacity_bytes: 8 * mib,
            pages,
            repeated_pages,
            chosen_bytes: 3 * mib,
            page_ns: 4100,
            behind_page_ns: 88_000,
            ..Pool::default()
        });
        now.autopilot = Some(Autopilot {
            target_ppm: 50_000,
            measured_ppm: 31_400,
            least_bytes: 16 * mib,
            most_bytes: 1024 * mib,
            decides: true,
            ..Autopilot::default()
        });
        now.budget = Some(Budget {
            name: "jobs".into(),
            size_bytes: 8192 * mib,
            share_bytes: 512 * mib,
            taken_bytes: 7168 * mib,
            programs: 3,
            ..Budget::default()
        });
        let watched = table(&now, Some(&before));
        assert!(
            watched.contains("\n  share                    512 MiB  (budget jobs: 8.0 GiB, 3 programs with 7.0 GiB)\n"),
            "{watched}"
        );
        assert!(
            watched.contains("\n  chosen for                5.00 %  (16.0 MiB to 1.0 GiB)\n  measured slowdown         3.14 %\n"),
            "{watched}"
        );
        assert!(!once.contains("chosen"), "{once}");
        assert!(
            watched.contains("1.0 MiB     8.0 MiB\n") && watched.contains("of their size   ") && watched.contains(" 50 %\n"),
            "{watched}"
        );
        assert!(watched.contains("  fetch                        600         250\n"), "{watched}");
        assert!(watched.lines().all(|line| line.trim_end() == line), "{watched}");
    }

    #[test]
    fn a_process_that_has_ended_is_seen() {
        assert!(!gone(std::process::id()));
        assert!(gone(2_000_000_000));
    }
}
