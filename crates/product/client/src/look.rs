//! Looks at all programs again and again, and tells of each what it has now, what happened since the look before, and of its last minute.
//!
//! Rates go by the program's own clock ([`Stats::uptime_ns`]): so it does not matter how long an answer was on its way.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farshore_config::stats::Stats;

use crate::programs::{Program, State};
use crate::round::{Found, Outcome, Rounds};

/// What the bars show.
pub const HISTORY: Duration = Duration::from_secs(60);
/// How long programs are waited for in a look. One that has not answered by then is not waited for again.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// A program, as it was at one look.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// Its process.
    pub pid: u32,
    /// When the process was started, in the kernel's ticks.
    pub started: u64,
    /// Its effective user.
    pub user: u32,
    /// Its name.
    pub name: String,
    /// Whether the numbers are of now.
    pub status: Status,
    /// The limit that it shares with its family, in bytes.
    pub limit: Option<u64>,
    /// Managed memory that is local, in bytes.
    pub resident: Option<u64>,
    /// What its swap spaces hold, in bytes.
    pub out: Option<u64>,
    /// What happened since the look before; none at the first.
    pub rates: Option<Rates>,
    /// Faults a second in the last minute, oldest first, each with its age.
    pub history: Vec<(Duration, f64)>,
    /// How much longer it takes than without faults, and how much longer it may, in millionths, if its limit is chosen.
    pub slowed: Option<(u64, u64)>,
    /// Its part of the limit in bytes, and how many processes share it, if it shares.
    pub family: Option<(u64, u64)>,
    /// All counters of its last answer.
    pub stats: Option<Arc<Stats>>,
    /// The budget that its family is in, the family's share of it and its size in bytes, if it is in one.
    pub budget: Option<(String, u64, u64)>,
}

/// Whether a program's numbers are of now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Status {
    /// They are.
    Answers,
    /// It has not answered for so long; the sizes are those of its last answer.
    Silent(Duration),
    /// It has none.
    Dormant,
    /// It gives another answer: a line that says why.
    Refuses(String),
    /// It could not be asked now: a line that says why; the sizes are those of its last answer.
    Unasked(String),
}

/// What happens in a second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rates {
    /// Faults of all kinds.
    pub faults: f64,
    /// Pages that left.
    pub evicted: f64,
    /// Seconds that threads waited in faults.
    pub stall: f64,
}

impl Rates {
    /// Between two answers of one program. None, if it is another one by now, or has answered twice from the same moment.
    fn between(before: &Stats, now: &Stats) -> Option<Rates> {
        let passed = now.uptime_ns.checked_sub(before.uptime_ns).filter(|passed| *passed > 0)? as f64 / 1e9;
        let rate = |before: u64, now: u64| now.checked_sub(before).map(|count| count as f64 / passed);
        Some(Rates {
            faults: rate(faults(before), faults(now))?,
            evicted: rate(before.evictions.pages, now.evictions.pages)?,
            stall: rate(before.fault_latency_ns.total, now.fault_latency_ns.total)? / 1e9,
        })
    }
}

fn faults(stats: &Stats) -> u64 {
    let it = &stats.faults;
    [it.fetch, it.zero, it.rescue, it.wait, it.write_protect].into_iter().fold(0, u64::saturating_add)
}

/// What is known of a program from looks before.
#[derive(Debug)]
struct Seen {
    since: Instant,
    answered: Option<(Instant, Arc<Stats>)>,
    /// The limit that it has while it is dormant.
    dormant: Option<u64>,
    rates: Option<Rates>,
    history: VecDeque<(Instant, f64)>,
}

/// Looks again and again.
#[derive(Debug)]
pub struct Looker {
    user: u32,
    rounds: Rounds,
    seen: BTreeMap<(u32, u64), Seen>,
    trouble: Option<String>,
}

impl Looker {
    /// Looks at what this user may see.
    pub fn new(user: u32) -> Looker {
        Looker { user, rounds: Rounds::default(), seen: BTreeMap::new(), trouble: None }
    }

    /// All programs, by their numbers.
    pub fn look(&mut self) -> Vec<Row> {
        let Found { programs, outcomes, trouble } = self.rounds.look(self.user, PATIENCE);
        self.trouble = trouble;
        self.rows(&programs, outcomes, Instant::now())
    }

    /// Why the last look has seen nothing: a line.
    #[must_use]
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    fn rows(&mut self, programs: &[Program], outcomes: Vec<Outcome>, now: Instant) -> Vec<Row> {
        self.seen.retain(|key, _| programs.iter().any(|program| (program.pid, program.started) == *key));
        programs.iter().zip(outcomes).filter_map(|(program, outcome)| self.row(program, outcome, now)).collect()
    }

    /// The row of a program; none, if it has ended.
    fn row(&mut self, program: &Program, outcome: Outcome, now: Instant) -> Option<Row> {
        let key = (program.pid, program.started);
        // Whether it is a program under Farshore is known of those alone that were seen before.
        if matches!(program.state, State::Hidden(_)) && !self.seen.contains_key(&key) {
            return None;
        }
        let seen = self.seen.entry(key).or_insert_with(|| Seen {
            since: now,
            answered: None,
            dormant: None,
            rates: None,
            history: VecDeque::new(),
        });
        let mut row = Row {
            pid: program.pid,
            started: program.started,
            user: program.user,
            name: farshore_config::plain(&program.name),
            status: Status::Answers,
            limit: None,
            resident: None,
            out: None,
            rates: None,
            history: Vec::new(),
            slowed: None,
            family: None,
            stats: None,
            budget: None,
        };
        match outcome {
            Outcome::Gone => return None,
            Outcome::Dormant(limit) => {
                seen.dormant = Some(limit);
                return Some(Row { status: Status::Dormant, limit: Some(limit), ..row });
            }
            Outcome::Refused(why) => return Some(Row { status: Status::Refuses(farshore_config::plain(&why)), ..row }),
            Outcome::Unasked(why) => {
                row.status = Status::Unasked(farshore_config::plain(&why));
                row.limit = seen.dormant;
            }
            Outcome::Silent => {
                let last = seen.answered.as_ref().map_or(seen.since, |(at, _)| *at);
                row.status = Status::Silent(now.saturating_duration_since(last));
            }
            Outcome::Answered(stats) => {
                seen.rates = seen.answered.as_ref().and_then(|(_, before)| Rates::between(before, &stats));
                seen.history.extend(seen.rates.map(|rates| (now, rates.faults)));
                seen.answered = Some((now, Arc::from(stats)));
                row.rates = seen.rates;
            }
        }
        let age = |at: Instant| now.saturating_duration_since(at);
        seen.history.retain(|(at, _)| age(*at) < HISTORY);
        row.history = seen.history.iter().map(|(at, rate)| (age(*at), *rate)).collect();
        if let Some((_, stats)) = &seen.answered {
            row.stats = Some(stats.clone());
            row.limit = Some(stats.memory_limit_bytes);
            row.resident = Some(stats.resident_bytes);
            row.out = Some(stats.spaces.iter().map(|space| space.used_bytes).fold(0, u64::saturating_add));
            row.slowed = stats.autopilot.as_ref().map(|it| (it.measured_ppm, it.target_ppm));
            let it = &stats.family;
            row.family = (it.processes > 1).then_some((it.own_limit_bytes, it.processes));
            let budget = stats.budget.as_ref();
            row.budget = budget.map(|it| (farshore_config::plain(&it.name), it.share_bytes, it.size_bytes));
        }
        Some(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_config::stats::{Autopilot, Budget, Family, Space};

    fn program(pid: u32, started: u64) -> Program {
        Program { pid, started, user: 0, name: "a\x1b[2J".into(), state: State::Awake(Vec::new()) }
    }

    fn answer(seconds: u64, fetch: u64) -> Outcome {
        let mut stats = Stats {
            uptime_ns: seconds * 1_000_000_000,
            memory_limit_bytes: 64 << 20,
            resident_bytes: 60 << 20,
            ..Stats::default()
        };
        (stats.faults.fetch, stats.faults.zero, stats.evictions.pages) = (fetch, 10, 2 * fetch);
        stats.fault_latency_ns.total = fetch * 1_000_000;
        stats.spaces = vec![Space { used_bytes: 3, ..Space::default() }, Space { used_bytes: 4, ..Space::default() }];
        stats.family = Family { own_limit_bytes: 8, processes: 3, memory_bytes: 9 };
        stats.autopilot = Some(Autopilot { target_ppm: 50_000, measured_ppm: 26_000, ..Autopilot::default() });
        stats.budget = Some(Budget { name: "jobs".into(), share_bytes: 2, size_bytes: 5, ..Budget::default() });
        Outcome::Answered(Box::new(stats))
    }

    #[test]
    fn rates_are_of_the_time_between_two_answers() {
        let (mut looker, start) = (Looker::new(0), Instant::now());
        let mut look = |seconds: u64, outcome| looker.rows(&[program(7, 1)], vec![outcome], start + Duration::from_secs(seconds));
        let first = look(0, answer(5, 100));
        assert_eq!(
            (first[0].rates, first[0].resident, first[0].out, first[0].family),
            (None, Some(60 << 20), Some(7), Some((8, 3)))
        );
        assert_eq!((first[0].slowed, &first[0].budget), (Some((26_000, 50_000)), &Some(("jobs".into(), 2, 5))));
        assert_eq!(first[0].name, "a\\u{1b}[2J");
        let second = look(4, answer(7, 300));
        assert_eq!(second[0].rates, Some(Rates { faults: 100.0, evicted: 200.0, stall: 0.1 }));
        // It is silent: what it had, and no rates; then its history goes on.
        let third = look(9, Outcome::Silent);
        assert_eq!(
            (&third[0].status, third[0].rates, third[0].resident),
            (&Status::Silent(Duration::from_secs(5)), None, Some(60 << 20))
        );
        let fourth = look(10, answer(17, 300));
        let ages = |row: &Row| row.history.iter().map(|(age, rate)| (age.as_secs(), *rate)).collect::<Vec<_>>();
        assert_eq!(ages(&fourth[0]), [(6, 100.0), (0, 0.0)]);
        // Another program in the same process.
        let fifth = look(63, answer(1, 2));
        assert_eq!((fifth[0].rates, ages(&fifth[0])), (None, vec![(59, 100.0), (53, 0.0)]));
        assert_eq!(ages(&look(65, answer(3, 2))[0]), [(55, 0.0), (0, 0.0)]);
    }

    #[test]
    fn what_ends_is_forgotten() {
        let (mut looker, start) = (Looker::new(0), Instant::now());
        looker.rows(&[program(7, 1), program(8, 1)], vec![answer(1, 1), answer(1, 1)], start);
        // The number came again.
        let rows = looker.rows(&[program(7, 2)], vec![answer(3, 9)], start);
        assert_eq!((rows.len(), rows[0].rates, looker.seen.len()), (1, None, 1));
        assert!(looker.rows(&[program(7, 2)], vec![Outcome::Gone], start).is_empty());
        let odd = looker.rows(&[program(7, 2), program(9, 1)], vec![Outcome::Refused("no\n".into()), Outcome::Dormant(5)], start);
        assert_eq!([&odd[0].status, &odd[1].status], [&Status::Refuses("no\\n".into()), &Status::Dormant]);
        assert_eq!((odd[0].limit, odd[1].limit), (None, Some(5)));
        // The kernel does not tell of it now: it stays, unless nothing was known of it.
        let hidden = |pid| Program { state: State::Hidden("a lock".into()), ..program(pid, 1) };
        let unasked = || Outcome::Unasked("a lock\n".into());
        let stays = looker.rows(&[hidden(9), hidden(10), program(11, 1)], vec![unasked(), unasked(), unasked()], start);
        let told: Vec<_> = stays.iter().map(|row| (row.pid, row.limit)).collect();
        assert_eq!(told, [(9, Some(5)), (11, None)]);
        assert_eq!(stays[0].status, Status::Unasked("a lock\\n".into()));
        // Silent from the start.
        let silent = looker.rows(&[program(5, 2)], vec![Outcome::Silent], start);
        assert_eq!((&silent[0].status, silent[0].limit), (&Status::Silent(Duration::ZERO), None));
    }
}
