//! The text that Prometheus reads: OpenMetrics 1.0.

use std::collections::BTreeMap;
use std::fmt;

use farshore_client::programs::Program;
use farshore_client::round::Outcome;
use farshore_config::stats::Stats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit as Named};
use serde_json::Value;

use super::schema::{self, Metric, Unit};

/// Labels and their values.
type Labels = Vec<(String, String)>;

/// Programs, and what has come of asking them.
#[derive(Debug)]
struct Asked {
    metrics: Vec<Metric>,
    programs: Vec<(Labels, Outcome, Value)>,
}

/// What has come of asking programs, as text.
///
/// # Panics
/// Never: a string takes all that is written to it.
pub fn text(programs: &[Program], outcomes: Vec<Outcome>) -> String {
    let labels =
        |program: &Program| vec![("pid".into(), program.pid.to_string()), ("name".into(), farshore_config::plain(&program.name))];
    let value = |outcome: &Outcome| match outcome {
        Outcome::Answered(stats) => serde_json::to_value(stats).expect("numbers and strings have a JSON form"),
        _ => Value::Null,
    };
    let programs = programs.iter().zip(outcomes).filter(|(_, outcome)| *outcome != Outcome::Gone).map(|(program, outcome)| {
        let value = value(&outcome);
        (labels(program), outcome, value)
    });
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Asked { metrics: schema::metrics(), programs: programs.collect() }));
    let mut text = String::new();
    encode(&mut text, &registry).expect("a string takes all that is written to it");
    text
}

impl Collector for Asked {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let up = self.programs.iter().filter_map(|(labels, outcome, _)| match outcome {
            Outcome::Answered(_) => Some((labels.clone(), 1)),
            Outcome::Silent | Outcome::Refused(_) | Outcome::Unasked(_) => Some((labels.clone(), 0)),
            Outcome::Dormant(_) | Outcome::Gone => None,
        });
        gauges(&mut encoder, "farshore_up", "Whether the program has answered.", up)?;
        let dormant = self.programs.iter().filter(|(_, outcome, _)| matches!(outcome, Outcome::Dormant(_)));
        let dormant = dormant.map(|(labels, _, _)| (labels.clone(), 1));
        gauges(
            &mut encoder,
            "farshore_dormant",
            "1: the memory of the program has always fitted, so it has no counters.",
            dormant,
        )?;
        let info = |stats: &Stats| vec![("fault_mode".into(), farshore_config::plain(&stats.fault_mode))];
        let infos = self.answered().map(|(labels, stats, _)| (joined(labels, info(stats)), 1_u64));
        gauges(&mut encoder, "farshore_program", "What the program was started with.", infos)?;
        for metric in &self.metrics {
            self.encode_metric(&mut encoder, metric)?;
        }
        // The state of a swap space is a text: one of them is true.
        let states = self.answered().flat_map(|(labels, stats, _)| {
            let labels = spaces(stats).into_iter().zip(&stats.spaces).map(move |(space, it)| (labels, space, it.state.clone()));
            labels.map(|(labels, space, state)| {
                (joined(labels, vec![space, ("state".into(), farshore_config::plain(&state))]), 1_u64)
            })
        });
        gauges(&mut encoder, "farshore_spaces_state", "The state that the swap space is in.", states)?;
        let copies = self.answered().flat_map(|(labels, stats, _)| {
            let each = spaces(stats).into_iter().zip(&stats.spaces).flat_map(|(space, it)| {
                it.copies.iter().map(move |copy| {
                    let (name, state) = (farshore_config::plain(&copy.name), farshore_config::plain(&copy.state));
                    vec![space.clone(), ("copy".into(), name), ("state".into(), state)]
                })
            });
            each.map(|more| (joined(labels, more), 1_u64)).collect::<Vec<_>>()
        });
        gauges(&mut encoder, "farshore_spaces_copies_state", "The state that a copy of the swap space is in.", copies)
    }
}

impl Asked {
    fn answered(&self) -> impl Iterator<Item = (&Labels, &Stats, &Value)> {
        self.programs.iter().filter_map(|(labels, outcome, value)| match outcome {
            Outcome::Answered(stats) => Some((labels, &**stats, value)),
            _ => None,
        })
    }

    fn encode_metric(&self, encoder: &mut DescriptorEncoder<'_>, metric: &Metric) -> Result<(), fmt::Error> {
        let samples: Vec<(Labels, u64)> =
            self.answered().flat_map(|(labels, stats, value)| samples(metric, labels, stats, value)).collect();
        let unit = metric.unit.map(|unit| Named::Other(unit.name().into()));
        let seconds = metric.unit == Some(Unit::Seconds);
        if samples.is_empty() {
            return Ok(());
        }
        let kind = if metric.grows { MetricType::Counter } else { MetricType::Gauge };
        let mut family = encoder.encode_descriptor(&metric.name, &metric.help, unit.as_ref(), kind)?;
        for (labels, value) in samples {
            let mut one = family.encode_family(&labels)?;
            let exact = value as f64 / 1e9;
            match (metric.grows, seconds) {
                (true, true) => one.encode_counter::<Labels, f64, u64>(&exact, None)?,
                (true, false) => one.encode_counter::<Labels, u64, u64>(&value, None)?,
                (false, true) => one.encode_gauge(&exact)?,
                (false, false) => one.encode_gauge(&value)?,
            }
        }
        Ok(())
    }
}

/// Levels of one name.
fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl Iterator<Item = (Labels, u64)>,
) -> Result<(), fmt::Error> {
    let mut samples = samples.peekable();
    if samples.peek().is_none() {
        return Ok(());
    }
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    samples.into_iter().try_for_each(|(labels, value)| family.encode_family(&labels)?.encode_gauge(&value))
}

/// What a program has of a metric: as a rule one number, of swap spaces and policies one each.
fn samples(metric: &Metric, labels: &Labels, stats: &Stats, value: &Value) -> Vec<(Labels, u64)> {
    let Some((first, rest)) = metric.path.split_first() else { return Vec::new() };
    match value.get(first) {
        Some(Value::Array(list)) => {
            // Policies have no names: they are numbered as they came.
            let policies = || (1..).map(|number: u32| ("policy".to_owned(), number.to_string()));
            let named = if first == "policies" { policies().take(list.len()).collect() } else { spaces(stats) };
            let each = named.into_iter().zip(list);
            each.flat_map(|(space, value)| inside(&joined(labels, vec![space]), value, rest)).collect()
        }
        Some(value) => {
            let name = match first.as_str() {
                "pool" => stats.pool.as_ref().map(|pool| &pool.name),
                "budget" => stats.budget.as_ref().map(|budget| &budget.name),
                _ => None,
            };
            let label = name.map(|name| (first.clone(), farshore_config::plain(name)));
            inside(&joined(labels, label.into_iter().collect()), value, rest)
        }
        None => Vec::new(),
    }
}

/// The number that `path` leads to in a value; of the copies of a swap space one each.
fn inside(labels: &Labels, value: &Value, path: &[String]) -> Vec<(Labels, u64)> {
    let Some((first, rest)) = path.split_first() else {
        let number = value.as_u64().or_else(|| value.as_bool().map(u64::from));
        return number.map(|number| (labels.clone(), number)).into_iter().collect();
    };
    match value.get(first) {
        Some(Value::Array(copies)) => {
            let name = |copy: &Value| copy.get("name").and_then(Value::as_str).map(farshore_config::plain).unwrap_or_default();
            let each = |copy| inside(&joined(labels, vec![("copy".into(), name(copy))]), copy, rest);
            copies.iter().flat_map(each).collect()
        }
        Some(value) => inside(labels, value, rest),
        None => Vec::new(),
    }
}

/// The label of each swap space. Two of one name (one leaves while the other comes) get a number.
fn spaces(stats: &Stats) -> Vec<(String, String)> {
    let mut seen = BTreeMap::<&str, u32>::new();
    let label = |space: &farshore_config::stats::Space, number: u32| {
        let name = farshore_config::plain(&space.name);
        ("space".to_owned(), if number == 1 { name } else { format!("{name} #{number}") })
    };
    let numbered = stats.spaces.iter().map(|space| {
        let number = seen.entry(&space.name).and_modify(|number| *number += 1).or_insert(1);
        label(space, *number)
    });
    numbered.collect()
}

fn joined(labels: &Labels, more: Labels) -> Labels {
    labels.iter().cloned().chain(more).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use farshore_client::programs::State;
    use farshore_config::stats::{Attached, Autopilot, Budget, Family, Guest, Kinds, Pool, Space, SpaceCopy, Thrashing};

    /// Programs of each kind, of which one has all that there is.
    pub fn some() -> (Vec<Program>, Vec<Outcome>) {
        let program = |pid, name: &str| Program { pid, started: 1, user: 0, name: name.into(), state: State::Awake(Vec::new()) };
        let space =
            |name: &str, state: &str| Space { name: name.into(), used_bytes: 4096, state: state.into(), ..Space::default() };
        let mut full = Stats { pid: 7, fault_mode: "upcall".into(), uptime_ns: 1_500_000_000, ..Stats::default() };
        full.spaces = vec![
            space("dir:/a", "works"),
            Space {
                copies: vec![SpaceCopy {
                    name: "nbd://n".into(),
                    state: "down".into(),
                    stale_pages: 12,
                    hedged_reads: 7,
                    hedged_reads_won: 6,
                }],
                ..space("dir:/a", "draining")
            },
            Space { capacity_bytes: Some(1 << 30), ..space("ram", "full") },
        ];
        full.pool = Some(Pool { name: "ram:lz4".into(), pages: 3, ..Pool::default() });
        full.kinds = Some(Kinds { stack_bytes: 5, ..Kinds::default() });
        full.policies = vec![Attached { requests: 9, ..Attached::default() }, Attached::default()];
        full.autopilot = Some(Autopilot::default());
        full.budget = Some(Budget { name: "jobs".into(), programs: 2, ..Budget::default() });
        full.thrashing = Some(Thrashing { times: 4, ..Thrashing::default() });
        full.guest = Some(Guest { prefetched: 6, ..Guest::default() });
        full.family = Family { own_limit_bytes: 1, processes: 2, memory_bytes: 3 };
        (full.faults.fetch, full.fault_latency_ns.total, full.evictors.awake_fixed) = (42, 2_000_000_000, true);
        let programs = vec![
            program(7, "a\"b\\c\nd"),
            program(8, "plain"),
            program(9, "stopped"),
            program(10, "fits"),
            program(11, "odd"),
            program(12, "gone"),
        ];
        let outcomes = vec![
            Outcome::Answered(Box::new(full)),
            Outcome::Answered(Box::default()),
            Outcome::Silent,
            Outcome::Dormant(5),
            Outcome::Refused("no".into()),
            Outcome::Gone,
        ];
        (programs, outcomes)
    }

    #[test]
    fn each_program_has_its_samples() {
        let (programs, outcomes) = some();
        let text = text(&programs, outcomes);
        println!("{text}");
        for line in [
            "# HELP farshore_faults_fetch The page's bytes came from its slot.",
            "# TYPE farshore_faults_fetch counter",
            r#"farshore_faults_fetch_total{pid="7",name="a\"b\\c\\nd"} 42"#,
            r#"farshore_faults_fetch_total{pid="8",name="plain"} 0"#,
            r#"farshore_up{pid="9",name="stopped"} 0"#,
            r#"farshore_up{pid="11",name="odd"} 0"#,
            r#"farshore_dormant{pid="10",name="fits"} 1"#,
            r#"farshore_spaces_copies_stale_pages{pid="7",name="a\"b\\c\\nd",space="dir:/a #2",copy="nbd://n"} 12"#,
            r#"farshore_spaces_copies_hedged_reads_total{pid="7",name="a\"b\\c\\nd",space="dir:/a #2",copy="nbd://n"} 7"#,
            r#"farshore_spaces_copies_hedged_reads_won_total{pid="7",name="a\"b\\c\\nd",space="dir:/a #2",copy="nbd://n"} 6"#,
            r#"farshore_spaces_copies_state{pid="7",name="a\"b\\c\\nd",space="dir:/a #2",copy="nbd://n",state="down"} 1"#,
            "# UNIT farshore_fault_latency_seconds seconds",
            r#"farshore_fault_latency_seconds_total{pid="7",name="a\"b\\c\\nd"} 2.0"#,
            r#"farshore_uptime_seconds{pid="7",name="a\"b\\c\\nd"} 1.5"#,
            r#"farshore_evictors_awake_fixed{pid="7",name="a\"b\\c\\nd"} 1"#,
            r##"farshore_spaces_used_bytes{pid="7",name="a\"b\\c\\nd",space="dir:/a #2"} 4096"##,
            r#"farshore_spaces_state{pid="7",name="a\"b\\c\\nd",space="ram",state="full"} 1"#,
            r#"farshore_spaces_capacity_bytes{pid="7",name="a\"b\\c\\nd",space="ram"} 1073741824"#,
            r#"farshore_pool_pages{pid="7",name="a\"b\\c\\nd",pool="ram:lz4"} 3"#,
            r#"farshore_budget_programs{pid="7",name="a\"b\\c\\nd",budget="jobs"} 2"#,
            r#"farshore_kinds_stack_bytes{pid="7",name="a\"b\\c\\nd"} 5"#,
            r#"farshore_policies_requests_total{pid="7",name="a\"b\\c\\nd",policy="1"} 9"#,
            r#"farshore_guest_prefetched_total{pid="7",name="a\"b\\c\\nd"} 6"#,
            r#"farshore_thrashing_times{pid="7",name="a\"b\\c\\nd"} 4"#,
            r#"farshore_program{pid="7",name="a\"b\\c\\nd",fault_mode="upcall"} 1"#,
        ] {
            assert!(text.lines().any(|one| one == line), "{line}");
        }
        assert!(text.ends_with("# EOF\n") && !text.contains("\"12\""), "{text}");
        let samples: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(name, _)| name)
            .collect();
        assert_eq!(samples.iter().collect::<std::collections::BTreeSet<_>>().len(), samples.len(), "two samples are of the same");
        // Every number of the schema is there.
        for metric in schema::metrics() {
            assert!(text.contains(&format!("# TYPE {}", metric.name)), "{metric:?}");
        }
        assert_eq!(super::text(&[], Vec::new()), "# EOF\n");
    }

    /// Metrics that a dashboard names, in all strings of a JSON value.
    fn named(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::String(text) => {
                let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
                found.extend(text.split(word).filter(|word| word.starts_with("farshore_")).map(String::from));
            }
            Value::Array(list) => list.iter().for_each(|value| named(value, found)),
            Value::Object(map) => map.values().for_each(|value| named(value, found)),
            _ => {}
        }
    }

    #[test]
    fn the_dashboard_names_metrics_that_there_are() {
        let dashboard: Value = serde_json::from_str(include_str!("../../grafana.json")).expect("it is JSON");
        let mut names = Vec::new();
        named(&dashboard, &mut names);
        let (programs, outcomes) = some();
        let text = text(&programs, outcomes);
        let missing: Vec<&String> = names.iter().filter(|name| !text.contains(&format!("\n{name}{{"))).collect();
        assert!(names.len() > 10 && missing.is_empty(), "there is no {missing:?}");
        // Panels lie on the grid without covering each other.
        let panels = dashboard["panels"].as_array().expect("it has panels");
        let mut taken = std::collections::BTreeSet::new();
        for panel in panels {
            let at = |name: &str| panel["gridPos"][name].as_u64().expect("it has a place");
            let cells = (at("y")..at("y") + at("h")).flat_map(|y| (at("x")..at("x") + at("w")).map(move |x| (x, y)));
            assert!(at("x") + at("w") <= 24 && cells.into_iter().all(|cell| taken.insert(cell)), "{}", panel["title"]);
        }
    }
}
