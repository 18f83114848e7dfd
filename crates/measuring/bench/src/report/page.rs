//! The page: what is on it, in which order.

use farshore_command::page;
use maud::{Markup, PreEscaped, html};

use super::figures::{self, Attempt, Context, Figure};
use super::group::{self, Group, groups};
use super::{palette, tables, text};
use crate::result::{Axis, Experiment, Results};

pub(crate) const STYLE: &str = include_str!("style.css");

/// The whole page.
pub fn page(results: &Results) -> String {
    let (context, groups) = (Context::new(results), groups(&results.experiments));
    let title = format!("farshore bench: {}", if results.date.is_empty() { "results" } else { &results.date });
    let body = html! {
        (head(results))
        main {
            (summary(results, &context, &groups))
            @for (index, group) in groups.iter().enumerate() { (section(&context, group, index)) }
            section id="machine" {
                h2 { "Where it was measured" }
                div.pair { (tables::machine(&results.machine)) (tables::limits(results.device.as_ref())) }
            }
            (reading())
        }
    };
    page::page(&title, &[&palette::css(), STYLE], &body)
}

fn head(results: &Results) -> Markup {
    let machine = &results.machine;
    let place = [
        machine.host.clone(),
        machine.cpu.clone(),
        format!("{} processors", machine.cpus),
        text::bytes(machine.memory_bytes),
        machine.disk.clone(),
    ];
    html! {
        header {
            h1 { "farshore bench" }
            p.when {
                (results.date) " · version " (results.version) " · "
                a href="results.json" { "results.json" }
            }
            p.where { (place.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · ")) }
            @if !results.command.is_empty() { pre { code { (text::command(&results.command)) } } }
            @for (name, reason) in &results.skipped {
                p.note { strong { (name) } " was not measured: " (reason) }
            }
        }
    }
}

fn summary(results: &Results, context: &Context, groups: &[Group]) -> Markup {
    let overview = figures::overview(context, groups);
    html! {
        section id="summary" {
            h2 { "Summary" }
            @if results.experiments.is_empty() {
                p.note { "There is no experiment in these results." }
            } @else {
                @if let Some(overview) = &overview { div.wide { (shown(overview)) } }
                (tables::summary(groups))
            }
        }
    }
}

/// A plot, or why there is none.
pub(crate) fn shown(attempt: &Attempt) -> Markup {
    match attempt {
        Ok(figure) => drawn(figure),
        Err((what, reason)) => html! { p.note.missing { "No plot of " (what) ": " (reason) "." } },
    }
}

fn drawn(figure: &Figure) -> Markup {
    // Which colours belong to data: for tests of the page.
    let colours = figure.series.iter().map(|(_, colour)| colour.as_str()).collect::<Vec<_>>().join(" ");
    html! {
        figure data-plot=(figure.kind) data-series=(colours) {
            h3 { (figure.title) }
            (PreEscaped(&figure.svg))
            figcaption { (figure.caption) }
        }
    }
}

/// Where the section of the group with this index is.
pub fn section_id(index: usize) -> String {
    format!("experiment-{}", index + 1)
}

/// What it is called.
pub fn section_title(group: &Group) -> String {
    match group.axis {
        Some(axis) => format!(
            "{}, over {}",
            group.name.trim_end_matches(&format!(" over {}", group::axis_name(axis))),
            group::axis_name(axis)
        ),
        None => group.name.clone(),
    }
}

fn section(context: &Context, group: &Group, index: usize) -> Markup {
    let first = group.experiments[0];
    html! {
        section id=(section_id(index)) {
            h2 { (section_title(group)) }
            p.facts { (facts(first, group.axis).join(" · ")) }
            @if !first.arguments.is_empty() { pre { code { (text::command(&fixed_arguments(first, group.axis))) } } }
            @for experiment in &group.experiments {
                @for words in complaints(experiment, group.axis) { p.note { (words) } }
            }
            div.plots { @for attempt in figures::of_group(context, group) { (shown(&attempt)) } }
            @if group.axis.is_some() {
                (tables::points(group))
                @for experiment in &group.experiments { (point(context, experiment)) }
            } @else {
                details { summary { "Each round, and what the targets are" } (tables::targets(first)) (tables::rounds(first)) }
            }
        }
    }
}

/// The program's command line, without what the sweep changes in it.
fn fixed_arguments(experiment: &Experiment, axis: Option<Axis>) -> Vec<String> {
    experiment.arguments.iter().filter(|word| axis != Some(Axis::Threads) || !word.starts_with("--threads=")).cloned().collect()
}

/// One point of a sweep, for those who want to look at it.
fn point(context: &Context, experiment: &Experiment) -> Markup {
    html! {
        details {
            summary { (place(experiment)) ": each round" }
            div.plots { @for attempt in figures::of_experiment(context, experiment) { (shown(&attempt)) } }
            (tables::targets(experiment))
            (tables::rounds(experiment))
        }
    }
}

/// Where on its sweep an experiment is.
pub fn place(experiment: &Experiment) -> String {
    let Some(point) = &experiment.sweep else { return group::name_of(experiment) };
    let value = text::short(&text::digits(point.value));
    match point.axis {
        Axis::Memory => format!("{value} % local"),
        Axis::Threads if value == "1" => "1 thread".into(),
        Axis::Threads => format!("{value} threads"),
        Axis::Files if value == "1" => "1 swap file".into(),
        Axis::Files => format!("{value} swap files"),
    }
}

/// What an experiment was made with; not what its sweep changes.
fn facts(experiment: &Experiment, axis: Option<Axis>) -> Vec<String> {
    let mut facts = vec![format!("workload {}", experiment.workload)];
    if experiment.data_bytes > 0 {
        facts.push(format!("{} of data", text::bytes(experiment.data_bytes)));
    }
    if experiment.memory_bytes > 0 && axis != Some(Axis::Memory) {
        facts.push(format!("{} local", text::bytes(experiment.memory_bytes)));
    }
    if experiment.pool_bytes > 0 {
        facts.push(format!("{} for compressed pages", text::bytes(experiment.pool_bytes)));
    }
    if experiment.threads > 0 && axis != Some(Axis::Threads) {
        facts.push(format!("{} thread{}", experiment.threads, if experiment.threads == 1 { "" } else { "s" }));
    }
    if experiment.swap_files > 0 && axis != Some(Axis::Files) {
        facts.push(format!("{} swap file{}", experiment.swap_files, if experiment.swap_files == 1 { "" } else { "s" }));
    }
    facts
}

/// What a reader must know before the plots: rounds that failed, targets without any, generators that were late.
fn complaints(experiment: &Experiment, axis: Option<Axis>) -> Vec<String> {
    let mut words = Vec::new();
    let at = if axis.is_some() { format!("At {}: ", place(experiment)) } else { String::new() };
    if experiment.targets.is_empty() {
        words.push(format!("{at}no target was measured."));
    }
    for target in &experiment.targets {
        let bad: Vec<_> = target.rounds.iter().filter(|round| !round.wrong.is_empty()).collect();
        let reason = bad.first().map_or("", |round| round.wrong[0].as_str());
        if target.rounds.is_empty() {
            words.push(format!("{at}{} has no round.", target.label));
        } else if bad.len() == target.rounds.len() {
            words.push(format!("{at}{} has no good round: {reason}", target.label));
        } else if !bad.is_empty() {
            words.push(format!("{at}{} of {} rounds of {} are left out: {reason}", bad.len(), target.rounds.len(), target.label));
        } else if bad.is_empty() && target.rounds.len() == 1 {
            words.push(format!("{at}{} has a single round, which tells nothing about its spread.", target.label));
        }
        let late =
            target.rounds.iter().filter_map(|round| round.outcome.as_ref()).find(|outcome| !outcome.generator_late.is_empty());
        words.extend(late.map(|outcome| format!("{at}{}: {}", target.label, outcome.generator_late)));
    }
    words
}

fn reading() -> Markup {
    html! {
        section id="reading" {
            h2 { "How to read this" }
            ul {
                li { "All targets ran the same program with the same options. They took turns, round by round; a warm-up before the first round is not counted." }
                li { "A figure is the median over the good rounds, with the smallest and the largest. A round is good if the program ended well and its data were right." }
                li {
                    "A ratio says how many times better the first target is, round by round; the interval is a bootstrap of their median. Above 1 the first target \
                     is better. An interval that contains 1 decides nothing, and neither do fewer than three rounds."
                }
                li { "Faults are those of the measured time. Fetches are the faults that waited for a page from swap space." }
                li { "The percentage of the device is what the target's transfers took of what the device can do, as measured in the same run by io_uring with O_DIRECT." }
                li {
                    "The ideal line is T0 + L × F: the time with all memory local, plus the device's latency of one random read for each page that the slowest thread \
                     of the first target waited for (MAGE, §3.1). With more threads than processors a waiting thread leaves its processor to others."
                }
            }
        }
    }
}
