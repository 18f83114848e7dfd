//! The tables of the page.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::group::{self, Group};
use super::page;
use super::text::{self, float};
use crate::device;
use crate::result::{Device, Experiment, Machine, Ratio, Summary, TargetResult, Verdict};
use crate::statistics;

/// Something that is not known.
const NOTHING: &str = "–";

/// Two columns: what, and its value; what is empty is left out.
fn facts(caption: &str, rows: &[(String, String)]) -> Markup {
    html! {
        div.scroll {
            table.facts {
                caption { (caption) }
                tbody { @for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) { tr { th scope="row" { (name) } td { (value) } } } }
            }
        }
    }
}

fn settings(settings: &BTreeMap<String, String>) -> impl Iterator<Item = (String, String)> {
    settings.iter().map(|(name, value)| (name.clone(), value.clone()))
}

/// The machine.
pub fn machine(machine: &Machine) -> Markup {
    let count = |count: u32| if count == 0 { String::new() } else { count.to_string() };
    let rows = [
        ("host", machine.host.clone()),
        ("kernel", machine.kernel.clone()),
        ("processor", machine.cpu.clone()),
        ("processors", count(machine.cpus)),
        ("memory", if machine.memory_bytes == 0 { String::new() } else { text::bytes(machine.memory_bytes) }),
        ("NUMA nodes", count(machine.nodes)),
        ("hypervisor", machine.hypervisor.clone()),
        ("directory", machine.directory.clone()),
        ("file system", machine.filesystem.clone()),
        ("disk", machine.disk.clone()),
        ("other swap", machine.other_swap.join(", ")),
        ("load at the start", format!("{:.2}", machine.load)),
    ];
    let rows: Vec<_> =
        rows.into_iter().map(|(name, value)| (name.to_string(), value)).chain(settings(&machine.settings)).collect();
    facts("Machine", &rows)
}

/// What the device can do.
pub fn limits(limits: Option<&Device>) -> Markup {
    let Some(limits) = limits.filter(|limits| !limits.points.is_empty()) else {
        return html! { p.note { "The device was not measured: there are no percentages of its limit and no ideal lines." } };
    };
    html! {
        div.scroll {
            table {
                caption { "Device, by io_uring with O_DIRECT, on a file of " (text::bytes(limits.file_bytes)) }
                thead { tr { th scope="col" { "access" } @for title in ["in flight", "pages/s", "MiB/s", "p50", "p99", "p99.9"] { th.number scope="col" { (title) } } } }
                tbody {
                    @for point in &limits.points {
                        tr {
                            th scope="row" { (device::name(point.access)) }
                            td.number { (point.depth) }
                            td.number { (text::metric(point.pages_per_second)) }
                            td.number { (text::digits(point.pages_per_second * 4096.0 / f64::from(1 << 20))) }
                            @for share in [0.5, 0.99, 0.999] { td.number { (point.latency.quantile(share).map_or(NOTHING.into(), text::nanoseconds)) } }
                        }
                    }
                }
            }
        }
    }
}

/// The columns of a summary: of the figure, and of what else was counted.
const FIGURES: [&str; 4] = ["median", "smallest – largest", "first is better by", "interval"];
const COUNTS: [&str; 13] = [
    "p50",
    "p90",
    "p99",
    "p99.9",
    "max",
    "faults",
    "fetches",
    "fetches/s",
    "CPU a fault",
    "CPU",
    "peak memory",
    "of the device",
    "good rounds",
];
/// With the name and the verdict.
const COLUMNS: usize = FIGURES.len() + COUNTS.len() + 2;

/// The single experiments in numbers; for a sweep, where it is told.
pub fn summary(groups: &[Group]) -> Markup {
    numbers(html! {
        @for (index, group) in groups.iter().enumerate() {
            @if group.axis.is_none() {
                (experiment_rows(group, group.experiments[0]))
            } @else {
                tbody {
                    tr.experiment {
                        th colspan=(COLUMNS) scope="rowgroup" { a href={ "#" (page::section_id(index)) } { (page::section_title(group)) } span.quiet { ": " (group.experiments.len()) " points" } }
                    }
                }
            }
        }
    })
}

/// The points of a sweep in numbers.
pub fn points(group: &Group) -> Markup {
    numbers(html! { @for experiment in &group.experiments { (experiment_rows(group, experiment)) } })
}

fn numbers(bodies: Markup) -> Markup {
    html! {
        div.scroll {
            table.summary {
                thead {
                    tr {
                        th scope="col" { "target" }
                        @for title in FIGURES { th.number scope="col" { (title) } }
                        th scope="col" { "verdict on it" }
                        @for title in COUNTS { th.number scope="col" { (title) } }
                    }
                }
                (bodies)
            }
        }
    }
}

fn experiment_rows(group: &Group, experiment: &Experiment) -> Markup {
    html! {
        tbody {
            tr.experiment { th colspan=(COLUMNS) scope="rowgroup" { (heading(group, experiment)) } }
            @for (index, target) in experiment.targets.iter().enumerate() { (summary_row(experiment, target, index == 0)) }
            @if experiment.targets.is_empty() { tr { td colspan=(COLUMNS) { "no target was measured" } } }
        }
    }
}

fn heading(group: &Group, experiment: &Experiment) -> Markup {
    let better = if experiment.figure.less_is_better { "less is better" } else { "more is better" };
    html! {
        @if group.axis.is_some() { (page::place(experiment)) } @else { (group.name) }
        span.quiet { " " (experiment.figure.name) ", " (better) }
    }
}

fn summary_row(experiment: &Experiment, target: &TargetResult, first: bool) -> Markup {
    let good = target.rounds.iter().filter(|round| round.wrong.is_empty()).count();
    html! {
        tr.first[first] {
            th scope="row" { (target.label) }
            @match &target.summary {
                Some(summary) => { (figures(experiment, summary, first)) (latencies(summary)) (costs(summary)) }
                None => {
                    @let reason = target.rounds.iter().flat_map(|round| &round.wrong).next();
                    td colspan=(COLUMNS - 2) { "no good round" @if let Some(reason) = reason { ": " (reason) } }
                }
            }
            td.number { (good) " of " (target.rounds.len()) }
        }
    }
}

fn figures(experiment: &Experiment, summary: &Summary, first: bool) -> Markup {
    let show = |value| text::quantity(value, &experiment.figure.unit);
    html! {
        td.number.main { (show(summary.figure.median)) }
        td.number { (show(summary.figure.min)) " – " (show(summary.figure.max)) }
        @match &summary.ratio {
            Some(ratio) => {
                td.number.main { (times(ratio.median)) }
                td.number { (times(ratio.low)) " – " (times(ratio.high)) }
                td { (verdict(ratio)) }
            }
            None => { td.number { (NOTHING) } td.number { (NOTHING) } td { @if first { "reference" } @else { (NOTHING) } } }
        }
    }
}

fn times(ratio: f64) -> String {
    format!("{}×", text::digits(ratio))
}

fn verdict(ratio: &Ratio) -> Markup {
    if ratio.rounds.len() < statistics::FEWEST_ROUNDS {
        return html! { span.verdict.same { "too few rounds" } };
    }
    let (class, word) = match ratio.verdict() {
        Verdict::Faster => ("faster", "▲ better"),
        Verdict::Same => ("same", "= same"),
        Verdict::Slower => ("slower", "▼ worse"),
    };
    html! { span class={ "verdict " (class) } { (word) } }
}

fn latencies(summary: &Summary) -> Markup {
    let values = summary.latency.map(|latency| [latency.p50, latency.p90, latency.p99, latency.p999, latency.max]);
    html! {
        @match values {
            Some(values) => { @for value in values { td.number { (text::nanoseconds(value)) } } }
            None => { @for _ in 0..5 { td.number { (NOTHING) } } }
        }
    }
}

fn costs(summary: &Summary) -> Markup {
    html! {
        td.number { (text::metric(float(summary.faults))) }
        td.number { (text::metric(float(summary.fetches))) }
        td.number { (text::metric(summary.fetches_per_second)) }
        td.number { @if summary.cpu_us_per_fault > 0.0 { (text::duration(summary.cpu_us_per_fault / 1e6)) } @else { (NOTHING) } }
        td.number { (text::duration(summary.cpu_seconds)) }
        td.number { (text::bytes(summary.peak_resident_bytes)) }
        td.number { (summary.device_percent.map_or(NOTHING.into(), |percent| format!("{} %", text::digits(percent)))) }
    }
}

/// What the targets of an experiment are.
pub fn targets(experiment: &Experiment) -> Markup {
    let rows = experiment.targets.iter().map(|target| {
        let settings: Vec<String> = settings(&target.settings).map(|(name, value)| format!("{name} {value}")).collect();
        let kind = if target.kind == target.label { String::new() } else { format!("{}: ", target.kind) };
        (target.label.clone(), format!("{kind}{}", if settings.is_empty() { "no settings".into() } else { settings.join(", ") }))
    });
    facts(&format!("Targets of {}", group::name_of(experiment)), &rows.collect::<Vec<_>>())
}

/// Each round of an experiment.
pub fn rounds(experiment: &Experiment) -> Markup {
    let titles = [
        "round",
        "turn",
        "figure",
        "wall",
        "CPU user",
        "CPU system",
        "CPU machine",
        "peak memory",
        "fetches",
        "other faults",
        "pages in",
        "pages out",
    ];
    html! {
        div.scroll {
            table {
                caption { "Rounds; faults and pages are those of the measured time where the program tells it" }
                thead { tr { th scope="col" { "target" } @for title in titles { th.number scope="col" { (title) } } th scope="col" { "what was wrong" } } }
                tbody {
                    @for (target, round) in experiment.targets.iter().flat_map(|target| target.rounds.iter().map(move |round| (target, round))) {
                        @let counters = round.measured.unwrap_or(round.counters);
                        tr {
                            th scope="row" { (target.label) }
                            td.number { (round.number) }
                            td.number { (round.place) }
                            td.number { (round.figure.map_or(NOTHING.into(), |figure| text::quantity(figure, &experiment.figure.unit))) }
                            @for seconds in [round.wall_seconds, round.user_seconds, round.system_seconds, round.machine_seconds] { td.number { (text::duration(seconds)) } }
                            td.number { (text::bytes(round.peak_resident_bytes)) }
                            @for count in [counters.fetches, counters.other_faults, counters.pages_in, counters.pages_out] { td.number { (text::metric(float(count))) } }
                            td { @if round.wrong.is_empty() { (NOTHING) } @else { (round.wrong.join("; ")) } }
                        }
                    }
                }
            }
        }
    }
}
