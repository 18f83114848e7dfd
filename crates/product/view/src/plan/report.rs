//! What is told of a run: the table, the sentence, and JSON.

use std::fmt::Write;

use farshore_client::shown::{bytes, duration};
use farshore_config::{plain, plain_json};
use serde::Serialize;

use super::curve::{Curve, Point};
use super::device::Named;
use super::follow::{Ended, Run};
use super::shown;

/// The schema of this version. Fields may be added within it.
pub const SCHEMA: u32 = 1;
/// The device of a plan that was asked for no other.
const OWN: &str = "own";
/// Rows are sixteenths of what the program uses, from so many on.
const SIXTEENTHS_FROM: u64 = 4;
/// The sentence names the smallest memory with about this slowdown, …
const LITTLE: f64 = 1.05;
/// … and with this.
const TWICE: f64 = 2.0;
/// Memory of a program for which there is something to plan.
const SIZE_WORTH: u64 = 16 << 20;
/// How far the run's own row may be from the run, before the plan says that its times are not to be trusted.
const DOUBT_WORTH: f64 = 0.2;
/// How much a program may have grown, of what it is known to use, before the plan says that its sizes are not to be trusted.
const GREW_WORTH: f64 = 0.2;
/// A part of events lost that is worth a line.
const LOST_WORTH: f64 = 0.01;

/// A plan, as JSON has it. Units are in the names.
#[derive(Serialize, Debug)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The program.
    pub program: String,
    /// Its exit status; null: a signal ended it, or it still runs.
    pub exit_status: Option<u8>,
    /// The signal that ended it, or null.
    pub signal: Option<i32>,
    /// How long it ran, or was watched.
    pub run_seconds: f64,
    /// The most memory that had bytes in it; unless `planned`, with code and libraries, in RAM.
    pub used_bytes: u64,
    /// `planned`, `fits` (it never had to give anything up) or `unseen` (it was not started, ended before it could be watched, or its processes did the work).
    pub outcome: &'static str,
    /// It had other processes, which share its limit: their memory is in no number here.
    pub other_processes: bool,
    /// The curve; null unless `planned`.
    pub plan: Option<Plan>,
}

/// The curve and what was read from it.
#[derive(Serialize, Debug)]
pub struct Plan {
    /// The run's limit at its end. From here on misses are measured; below they are extrapolated.
    pub measured_from_bytes: u64,
    /// The limit with which nothing leaves.
    pub whole_bytes: u64,
    /// The program's time without any wait for pages.
    pub alone_seconds: f64,
    /// What one page that comes took of the time in the run, on average.
    pub miss_us: f64,
    /// What one fault that waits for a page takes of it: rows go by that.
    pub fault_us: f64,
    /// What the program waited for a core, outside of faults: part of the run, and of no row.
    pub queued_seconds: f64,
    /// Why the times are not to be trusted, or null.
    pub doubt: Option<String>,
    /// `own` or what `--device` says.
    pub device: String,
    /// A read's time there, for `own` as far as the run shows it.
    pub device_read_us: f64,
    /// Pages that it reads and writes a second; null: not known.
    pub device_iops: Option<f64>,
    /// The part of the program's pages that was looked at.
    pub sampled: f64,
    /// Events that were lost.
    pub events_lost: u64,
    /// The part of pages that came back of which nobody has seen them leave.
    pub unseen: f64,
    /// The knee.
    pub knee_bytes: u64,
    /// The smallest memory with a slowdown of at most 1.05.
    pub little_slower_bytes: u64,
    /// The smallest memory with a slowdown of at most 2, if the curve reaches that.
    pub twice_bytes: Option<u64>,
    /// The sentence.
    pub advice: String,
    /// Whether anything is known of limits below the run's.
    #[serde(skip)]
    pub tells_less: bool,
    /// The curve, memory rising.
    pub curve: Vec<Row>,
}

/// The curve at one amount of memory.
#[derive(Serialize, Debug)]
pub struct Row {
    /// The limit.
    pub memory_bytes: u64,
    /// Whether misses are measured; else they are extrapolated.
    pub measured: bool,
    /// The program's time.
    pub seconds: f64,
    /// It, in times of `alone_seconds`.
    pub slowdown: f64,
    /// The time if a page that comes took the device's time alone.
    pub ideal_seconds: f64,
    /// Pages that come back.
    pub misses: f64,
    /// How many that would be if no part of a loop stayed.
    pub misses_lru: f64,
    /// How many of them a fault waits for.
    pub faults: f64,
    /// Pages that are written.
    pub writes: f64,
    /// Pages that the device reads a second.
    pub reads_per_second: f64,
    /// Pages that the device writes a second.
    pub writes_per_second: f64,
}

impl Report {
    /// What a run has shown, of this swap space if one is given.
    pub fn of(run: &Run, device: Option<&Named>) -> Report {
        let (exit_status, signal) = match run.status {
            Ended::Status(status) => (Some(status), None),
            Ended::Signal(signal) => (None, Some(signal)),
            Ended::Watching => (None, None),
        };
        let heard = run.heard.as_ref().filter(|heard| heard.evicted > 0 || heard.fetched > 0);
        let left = heard.is_some() || run.stats.as_ref().is_some_and(|stats| stats.evictions.pages > 0);
        let plan = match (shown(run), heard) {
            (Some(shown), Some(heard)) if left && run.limit > 0 => {
                let curve = Curve::of(shown, device.map(|named| named.device));
                let name = device.map_or_else(|| OWN.into(), |named| named.text.clone());
                let unseen = heard.unseen as f64 / (heard.unseen + heard.seen).max(1) as f64;
                Some(Plan::of(&curve, run, name, (heard.rate(), heard.lost, unseen)))
            }
            _ => None,
        };
        // With one of these `farshore run` says that the program was not started. Then what is known is of that command.
        let was_started = run.heard.is_some() || !matches!(exit_status, Some(125..=127));
        let outcome = match &plan {
            Some(_) => "planned",
            None if was_started && !run.has_others && (run.stats.is_some() || run.fitted) && !left => "fits",
            None => "unseen",
        };
        let resident = if was_started { run.resident } else { 0 };
        Report {
            schema: SCHEMA,
            program: run.name.clone(),
            exit_status,
            signal,
            run_seconds: run.seconds,
            used_bytes: if outcome == "planned" { run.footprint } else { run.footprint.max(resident) },
            outcome,
            other_processes: run.has_others,
            plan,
        }
    }

    /// JSON for people and scripts.
    ///
    /// # Panics
    /// Never: numbers and strings always have a JSON form.
    pub fn json(&self) -> String {
        // It may be for a terminal.
        plain_json(&serde_json::to_string_pretty(self).expect("numbers and strings have a JSON form")) + "\n"
    }

    /// The table and the sentence; with bars if it is for a terminal.
    pub fn text(&self, bars: bool) -> String {
        let name = plain(&self.program);
        let used = bytes(self.used_bytes);
        let Some(plan) = &self.plan else {
            return match (self.outcome, self.exit_status) {
                // What there is to say, `farshore run` has said.
                (_, Some(125..=127)) => String::new(),
                ("fits", _) if self.used_bytes < SIZE_WORTH => {
                    format!("farshore: '{name}' needs less than {} in all: there is no plan\n", bytes(SIZE_WORTH))
                }
                ("fits", _) => format!(
                    "farshore: '{name}' never needed more than {used}: --memory {} is enough, and less was not tried\n",
                    size(self.used_bytes)
                ),
                _ if self.other_processes => format!(
                    "farshore: '{name}' has started other processes, and a plan is of the first one alone: there is no plan; ask for one of the program that needs the memory\n"
                ),
                _ => format!("farshore: '{name}' ended before its memory could be watched: there is no plan\n"),
            };
        };
        let mut text = format!(
            "farshore: '{name}' ran {} with {} of the {used} that it uses, and would take {} alone\n\n",
            seconds(self.run_seconds),
            bytes(plan.measured_from_bytes),
            seconds(plan.alone_seconds)
        );
        let _ = writeln!(
            text,
            "{:>10} {:>10} {:>8} {:>10} {:>12} {:>10} {:>10}",
            "memory", "time", "slower", "ideal", "misses", "reads/s", "writes/s"
        );
        let most = plan.curve.iter().map(|row| row.slowdown).fold(1.0, f64::max);
        for row in plan.curve.iter().rev() {
            let _ = write!(
                text,
                "{:>10} {:>10} {:>7.2}x {:>10} {:>12.0} {:>10.0} {:>10.0}",
                bytes(row.memory_bytes),
                seconds(row.seconds),
                row.slowdown,
                seconds(row.ideal_seconds),
                row.misses,
                row.reads_per_second,
                row.writes_per_second
            );
            if bars {
                let length = (row.slowdown / most * 20.0).round() as usize;
                let _ = write!(text, "  {}", "█".repeat(length.max(1)));
            }
            text += if row.measured { "\n" } else { "  more or less\n" };
        }
        let _ = writeln!(text, "\n{}", plan.advice);
        let from = bytes(plan.measured_from_bytes);
        let _ = if plan.tells_less {
            writeln!(text, "Misses from {from} on are measured, those below are extrapolated ('more or less').")
        } else {
            writeln!(text, "Of less than {from} nothing is told: too few pages came back. Run it with less --memory.")
        };
        if let Some(doubt) = &plan.doubt {
            let _ = writeln!(text, "{doubt}");
        }
        if self.other_processes {
            text += "It had other processes, which shared its limit: their memory is not in the table.\n";
        }
        if plan.unseen > 0.1 {
            let _ = writeln!(
                text,
                "{:.0} % of the pages that came back were not seen leaving: all of it is rough.",
                plan.unseen * 100.0
            );
        }
        if plan.events_lost as f64 > LOST_WORTH * plan.curve.first().map_or(0.0, |row| row.misses) {
            let _ = writeln!(text, "{} events were lost, since the machine was busy: sizes are rough.", plan.events_lost);
        }
        text
    }
}

impl Plan {
    fn of(curve: &Curve, run: &Run, device: String, (sampled, events_lost, unseen): (f64, u64, f64)) -> Plan {
        let (knee, whole) = (curve.knee(), run.whole);
        let tells_less = curve.knows_less();
        let from = if tells_less { run.limit.min(whole / 16 * SIXTEENTHS_FROM).max(4096) } else { run.limit };
        let sixteenths = (SIXTEENTHS_FROM..=16).map(|part| whole / 16 * part).filter(|size| *size >= from);
        let mut sizes: Vec<u64> = sixteenths.chain([run.limit, knee, whole]).collect();
        sizes.sort_unstable();
        // A row beside another tells nothing new.
        let keep = |size: u64| size == run.limit || size == whole || size == knee;
        let close = |one: u64, other: u64| one.abs_diff(other) < whole / 64;
        let all = sizes.clone();
        sizes.retain(|&size| keep(size) || !all.iter().any(|&other| keep(other) && close(size, other)));
        sizes.dedup();
        let rows: Vec<Row> = sizes.into_iter().map(|size| row(curve, &curve.at(size))).collect();
        let little = curve.least(LITTLE, from);
        let twice = (curve.slowdown(from) > TWICE).then(|| curve.least(TWICE, from));
        Plan {
            measured_from_bytes: run.limit,
            whole_bytes: whole,
            alone_seconds: curve.alone(),
            miss_us: curve.miss() * 1e6,
            fault_us: curve.fault() * 1e6,
            queued_seconds: curve.queued(),
            // Another device's row has no run to compare with.
            doubt: grew(run.grown, run.footprint)
                .or_else(|| (device == OWN).then(|| doubt(run.seconds, curve.at(run.limit).seconds, curve.queued())).flatten()),
            device,
            device_read_us: curve.device().read * 1e6,
            device_iops: Some(curve.device().rate).filter(|rate| rate.is_finite()),
            sampled,
            events_lost,
            unseen,
            knee_bytes: knee,
            little_slower_bytes: little,
            twice_bytes: twice,
            advice: advice(curve, whole, from, (little, twice)),
            tells_less,
            curve: rows,
        }
    }
}

/// Why the sizes of a plan are not to be trusted: the program grew at its end, when nobody could ask it any more.
fn grew(grown: u64, footprint: u64) -> Option<String> {
    (grown as f64 > GREW_WORTH * footprint as f64).then(|| {
        format!(
            "Sizes are not to be trusted: it ended while it grew, and used about {} more than was seen. Run it with --memory.",
            bytes(grown)
        )
    })
}

/// Why the times of a plan are not to be trusted whose row for the run's own limit is far from the run.
fn doubt(run: f64, row: f64, queued: f64) -> Option<String> {
    if (run - row).abs() <= DOUBT_WORTH * run {
        return None;
    }
    let why = if queued > (run - row).abs() / 2.0 {
        format!("it waited {} for a core: run it when the machine is less busy", seconds(queued))
    } else {
        "its limit was another while it grew: run it with --memory".into()
    };
    Some(format!(
        "Times are not to be trusted, misses are: the run took {}, and its row is {}. Most likely {why}.",
        seconds(run),
        seconds(row)
    ))
}

fn row(curve: &Curve, at: &Point) -> Row {
    Row {
        memory_bytes: at.memory,
        measured: at.measured,
        seconds: at.seconds,
        slowdown: at.seconds / curve.alone(),
        ideal_seconds: at.ideal,
        misses: at.misses,
        misses_lru: at.misses_lru,
        faults: at.faults,
        writes: at.writes,
        reads_per_second: at.misses / at.seconds,
        writes_per_second: at.writes / at.seconds,
    }
}

/// The one sentence.
fn advice(curve: &Curve, whole: u64, from: u64, (little, twice): (u64, Option<u64>)) -> String {
    let slower = |memory: u64| {
        let slowdown = curve.slowdown(memory);
        let about = if curve.at(memory).measured { "" } else { "about " };
        match slowdown {
            ..1.005 => format!("{about}as fast as with all"),
            ..1.5 => format!("{about}{:.0} % slower", (slowdown - 1.0) * 100.0),
            _ => format!("{about}{slowdown:.1} x as long"),
        }
    };
    let least = twice.unwrap_or(from);
    let first = format!("--memory {}: {}", size(little), slower(little));
    if size(least) == size(little) && curve.slowdown(least) >= 2.0 {
        return format!(
            "Advice: --memory {}, with which everything fits; with less it is {} at once.",
            size(whole),
            slower(least)
        );
    }
    if least >= little || curve.slowdown(little) >= curve.slowdown(least) {
        return format!("Advice: {first}; with {} everything fits.", bytes(whole));
    }
    format!("Advice: {first}; --memory {}: {}; with {} everything fits.", size(least), slower(least), bytes(whole))
}

/// A size as `--memory` takes it, rounded up.
fn size(value: u64) -> String {
    if value >= 10 << 30 {
        format!("{:.1}G", (value as f64 / (1_u64 << 30) as f64 * 10.0).ceil() / 10.0)
    } else {
        format!("{}M", value.div_ceil(1 << 20))
    }
}

fn seconds(value: f64) -> String {
    duration((value * 1e9) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of a second of which nothing was heard.
    fn run(status: u8) -> Run {
        Run {
            name: "x".into(),
            status: Ended::Status(status),
            seconds: 1.0,
            heard: None,
            stats: None,
            asked_at: 1.0,
            queued: 0.0,
            before: None,
            limit: 0,
            evictors: 1,
            footprint: 0,
            resident: 20 << 20,
            fitted: true,
            has_others: false,
            grown: 0,
            whole: 0,
            cheapest: 1e-6,
            signal: 2e-6,
            longest: 1.0,
        }
    }

    #[test]
    fn that_a_program_fits_is_told_of_what_was_seen_alone() {
        let told = Report::of(&run(0), None);
        assert_eq!((told.outcome, told.used_bytes), ("fits", 20 << 20));
        assert!(told.text(false).contains("never needed more than 20.0 MiB"), "{}", told.text(false));
        // One that was not started.
        let told = Report::of(&run(127), None);
        assert_eq!((told.outcome, told.used_bytes, told.text(false).as_str()), ("unseen", 0, ""));
        // Whatever its name: no character that a terminal obeys is in the JSON.
        let name = "x\u{9b}31m\u{202e}\u{1b}y";
        let json = Report::of(&Run { name: name.into(), ..run(0) }, None).json();
        assert!(json.contains("x\\u009b31m\\u202e\\u001by"), "{json}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).expect("it is JSON")["program"], name);
        // A shell, whose children have the memory.
        let told = Report::of(&Run { has_others: true, ..run(0) }, None);
        let text = told.text(false);
        assert!(told.outcome == "unseen" && !text.contains("is enough") && text.contains("other processes"), "{text}");
    }

    #[test]
    fn one_that_grew_at_its_end_is_told() {
        assert_eq!([grew(0, 0), grew(2 << 20, 20 << 20)], [None, None]);
        assert!(grew(50 << 20, 24 << 20).is_some_and(|told| told.contains("50.0 MiB")));
    }

    #[test]
    fn a_row_far_from_the_run_is_told_and_why() {
        assert_eq!([doubt(10.0, 10.0, 0.0), doubt(10.0, 8.1, 1.9), doubt(10.0, 11.9, 0.0)], [None, None, None]);
        let busy = doubt(10.0, 6.0, 3.0).expect("it is far");
        assert!(busy.contains("took 10.0 s, and its row is 6.0 s") && busy.contains("waited 3.0 s for a core"), "{busy}");
        assert!(doubt(10.0, 6.0, 1.0).is_some_and(|told| told.contains("--memory")));
        assert!(doubt(10.0, 12.5, 0.0).is_some());
    }
}
