//! The table: what stands in it, in which order, and how it is printed.

use std::cmp::Ordering;
use std::fmt::Write as _;
use std::time::Duration;

use clap::ValueEnum;

use crate::args::Column;
use farshore_client::look::{HISTORY, Row, Status};

/// What stands where there is nothing to tell.
const NOTHING: &str = "-";

impl Column {
    /// What stands above it.
    pub fn head(self) -> &'static str {
        match self {
            Column::Pid => "PID",
            Column::Name => "NAME",
            Column::Limit => "LIMIT",
            Column::Resident => "RESIDENT",
            Column::Out => "OUT",
            Column::Faults => "FAULTS/S",
            Column::Evicted => "EVICT/S",
            Column::Stall => "STALL",
            Column::Slowed => "SLOWED",
            Column::Family => "FAMILY",
        }
    }

    /// Whether it is text, which begins at the left and is sorted by the alphabet.
    pub fn is_text(self) -> bool {
        matches!(self, Column::Name)
    }

    /// The columns beside it, round and round.
    pub fn beside(self, to_the_right: bool) -> Column {
        let all = Column::value_variants();
        let at = all.iter().position(|one| *one == self).unwrap_or(0);
        all[(at + if to_the_right { 1 } else { all.len() - 1 }) % all.len()]
    }

    /// What a row has there.
    pub fn cell(self, row: &Row) -> String {
        let size = |value: Option<u64>| value.map_or(NOTHING.into(), size);
        let rate = |value: Option<f64>| value.map_or(NOTHING.into(), count);
        match self {
            Column::Pid => row.pid.to_string(),
            Column::Name => row.name.clone(),
            Column::Limit => size(row.limit),
            Column::Resident => size(row.resident),
            Column::Out => size(row.out),
            Column::Faults => rate(row.rates.map(|rates| rates.faults)),
            Column::Evicted => rate(row.rates.map(|rates| rates.evicted)),
            Column::Stall => row.rates.map_or(NOTHING.into(), |rates| percent(rates.stall)),
            Column::Slowed => row.slowed.map_or(NOTHING.into(), |(measured, target)| {
                let target = percent(target as f64 / 1e6);
                format!("{}/{}", percent(measured as f64 / 1e6).trim_end_matches('%'), target.replace(".0%", "%"))
            }),
            Column::Family => match (&row.status, row.family) {
                (Status::Answers, family) => {
                    let part = family.map(|(part, processes)| format!("{} of {processes}", self::size(part)));
                    let of_budget =
                        |(name, share, size): &(String, u64, u64)| format!("{name} {}/{}", self::size(*share), self::size(*size));
                    let parts: Vec<String> = part.into_iter().chain(row.budget.as_ref().map(of_budget)).collect();
                    if parts.is_empty() { NOTHING.into() } else { parts.join(", ") }
                }
                (Status::Dormant, _) => "dormant".into(),
                (Status::Silent(since), _) => format!("no answer for {}", seconds(*since)),
                (Status::Refuses(why) | Status::Unasked(why), _) => why.clone(),
            },
        }
    }

    /// Which of two rows comes first: the one with more, or for numbers and names of programs the one before.
    fn compare(self, one: &Row, other: &Row) -> Ordering {
        let rate = |row: &Row| {
            row.rates.map(|rates| match self {
                Column::Evicted => rates.evicted,
                Column::Stall => rates.stall,
                _ => rates.faults,
            })
        };
        let size = |row: &Row| match self {
            Column::Limit => row.limit,
            Column::Resident => row.resident,
            Column::Out => row.out,
            Column::Slowed => row.slowed.map(|(measured, _)| measured),
            _ => row.family.map(|(part, _)| part),
        };
        match self {
            Column::Pid => one.pid.cmp(&other.pid),
            Column::Name => one.name.cmp(&other.name),
            Column::Limit | Column::Resident | Column::Out | Column::Slowed | Column::Family => size(other).cmp(&size(one)),
            Column::Faults | Column::Evicted | Column::Stall => {
                // None is less than any rate.
                rate(other).unwrap_or(-1.0).total_cmp(&rate(one).unwrap_or(-1.0))
            }
        }
    }
}

/// Puts rows in order; those that are equal by their numbers.
pub fn sort(rows: &mut [Row], column: Column, reversed: bool) {
    rows.sort_by(|one, other| {
        let order = column.compare(one, other);
        if reversed { order.reverse() } else { order }.then(one.pid.cmp(&other.pid))
    });
}

/// The table as lines of text, as wide as its contents.
pub fn plain(rows: &[Row]) -> String {
    let columns = Column::value_variants();
    let mut lines: Vec<Vec<String>> = vec![columns.iter().map(|column| column.head().to_owned()).collect()];
    lines.extend(rows.iter().map(|row| columns.iter().map(|column| column.cell(row)).collect()));
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    lines.iter().fold(String::new(), |mut text, line| {
        let cells = line.iter().zip(columns).zip(&widths).map(|((cell, column), &width)| match column {
            // The last one is as long as it is.
            Column::Family => cell.clone(),
            column if column.is_text() => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  "));
        text
    })
}

/// The last minute in `width` characters, the present at the right. The highest bar is as high as there is room for.
pub fn bars(history: &[(Duration, f64)], width: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let highest = history.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let of = |at: usize| {
        let back = |cells: usize| HISTORY.mul_f64(cells as f64 / width.max(1) as f64);
        let (newest, oldest) = (back(width - 1 - at), back(width - at));
        let mut inside = history.iter().filter(|(age, _)| (newest..oldest).contains(age)).map(|(_, rate)| *rate).peekable();
        if inside.peek().is_some() {
            return Some(inside.fold(0.0, f64::max));
        }
        // A rate is that of the time since the look before.
        let before = history.iter().any(|(age, _)| *age >= oldest);
        history.iter().filter(|(age, _)| before && *age < newest).max_by_key(|(age, _)| *age).map(|(_, rate)| *rate)
    };
    let bar = |rate: f64| if highest > 0.0 { BARS[((rate / highest * 8.0).ceil() as usize).clamp(1, 8) - 1] } else { BARS[0] };
    (0..width).map(|at| of(at).map_or(' ', bar)).collect()
}

/// Bytes, short: `1.5G`.
pub fn size(bytes: u64) -> String {
    for (unit, shift) in [("T", 40), ("G", 30), ("M", 20), ("K", 10)] {
        if bytes >> shift > 0 {
            let whole = bytes as f64 / (1_u64 << shift) as f64;
            return if whole < 9.95 { format!("{whole:.1}{unit}") } else { format!("{whole:.0}{unit}") };
        }
    }
    bytes.to_string()
}

/// How many a second.
fn count(rate: f64) -> String {
    match rate {
        ..=0.0 => "0".into(),
        ..9.95 => format!("{rate:.1}"),
        ..999_999.5 => format!("{rate:.0}"),
        _ => format!("{:.1}M", rate / 1e6),
    }
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 0.0 && percent < 9.95 { format!("{percent:.1}%") } else { format!("{percent:.0}%") }
}

/// A time of seconds and more.
fn seconds(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use farshore_client::look::Rates;

    /// Four programs, one of each kind.
    pub fn some() -> Vec<Row> {
        let row = |pid, name: &str| Row {
            started: 0,
            user: 0,
            stats: None,
            pid,
            name: name.into(),
            status: Status::Answers,
            limit: Some(64 << 20),
            resident: Some(60 << 20),
            out: Some(3 << 29),
            rates: Some(Rates { faults: 12_345.6, evicted: 9.94, stall: 1.234 }),
            history: (0..60).map(|age| (Duration::from_secs(59 - age), age as f64)).collect(),
            slowed: None,
            family: None,
            budget: None,
        };
        vec![
            row(412, "redis-server"),
            Row {
                family: Some((20 << 20, 3)),
                slowed: Some((26_400, 50_000)),
                rates: Some(Rates { faults: 0.0, evicted: 0.0, stall: 0.0 }),
                history: Vec::new(),
                ..row(7, "sh")
            },
            Row {
                status: Status::Silent(Duration::from_secs(130)),
                rates: None,
                history: Vec::new(),
                limit: Some(1 << 40),
                ..row(90, "stopped")
            },
            Row {
                status: Status::Dormant,
                resident: None,
                out: None,
                rates: None,
                history: Vec::new(),
                ..row(4_194_303, "python3")
            },
        ]
    }

    #[test]
    fn is_printed_in_columns() {
        let mut rows = some();
        sort(&mut rows, Column::Stall, false);
        let expected = "    PID  NAME          LIMIT  RESIDENT   OUT  FAULTS/S  EVICT/S  STALL  SLOWED  FAMILY
    412  redis-server    64M       60M  1.5G     12346      9.9   123%       -  -
      7  sh              64M       60M  1.5G         0        0     0%  2.6/5%  20M of 3
     90  stopped        1.0T       60M  1.5G         -        -      -       -  no answer for 2 min
4194303  python3         64M         -     -         -        -      -       -  dormant
";
        assert_eq!(plain(&rows), expected);
        assert_eq!(plain(&[]).lines().count(), 1);
    }

    #[test]
    fn a_budget_stands_behind_the_family() {
        let mut rows = some();
        rows[0].budget = Some(("jobs".into(), 2 << 30, 8 << 30));
        assert_eq!(Column::Family.cell(&rows[0]), "jobs 2.0G/8.0G");
        rows[0].family = Some((20 << 20, 3));
        assert_eq!(Column::Family.cell(&rows[0]), "20M of 3, jobs 2.0G/8.0G");
    }

    #[test]
    fn is_sorted_by_each_column() {
        let by = |column, reversed| {
            let mut rows = some();
            sort(&mut rows, column, reversed);
            rows.iter().map(|row| row.pid).collect::<Vec<_>>()
        };
        assert_eq!(by(Column::Pid, false), [7, 90, 412, 4_194_303]);
        assert_eq!(by(Column::Pid, true), [4_194_303, 412, 90, 7]);
        assert_eq!(by(Column::Name, false), [4_194_303, 412, 7, 90]);
        assert_eq!(by(Column::Limit, false), [90, 7, 412, 4_194_303]);
        assert_eq!(by(Column::Resident, true), [4_194_303, 7, 90, 412]);
        assert_eq!(by(Column::Faults, false), [412, 7, 90, 4_194_303]);
        assert_eq!(by(Column::Family, false), [7, 90, 412, 4_194_303]);
        assert_eq!(by(Column::Slowed, false), [7, 90, 412, 4_194_303]);
        let round = |right| Column::value_variants().iter().try_fold(Column::Pid, |at, _| Some(at.beside(right)));
        assert_eq!(
            (round(true), round(false), Column::Pid.beside(false)),
            (Some(Column::Pid), Some(Column::Pid), Column::Family)
        );
    }

    #[test]
    fn bars_show_the_last_minute() {
        let history =
            |rates: &[(u64, f64)]| rates.iter().map(|&(age, rate)| (Duration::from_secs(age), rate)).collect::<Vec<_>>();
        assert_eq!(bars(&history(&[(11, 0.0), (9, 10.0), (3, 20.0), (0, 80.0)]), 6), "    ▁█");
        // What lies between two looks is of the second. Nothing is known of what came after the last.
        assert_eq!(bars(&history(&[(25, 40.0), (5, 80.0)]), 12), "      ▄████ ");
        assert_eq!(bars(&[], 3), "   ");
        assert_eq!(bars(&history(&[(1, 0.0)]), 3), "  ▁");
        assert_eq!(bars(&history(&[(1, 0.0)]), 0), "");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([0, 1023, 1 << 20, 10_432_000, 64 << 30].map(size), ["0", "1023", "1.0M", "9.9M", "64G"]);
        assert_eq!([0.0, 0.04, 9.96, 123_456.0, 2.3e6].map(count), ["0", "0.0", "10", "123456", "2.3M"]);
        assert_eq!([0.0, 0.005, 0.0996, 15.0].map(percent), ["0%", "0.5%", "10%", "1500%"]);
        assert_eq!([5, 119, 600, 7200].map(|time| seconds(Duration::from_secs(time))), ["5 s", "119 s", "10 min", "2 h"]);
    }
}
