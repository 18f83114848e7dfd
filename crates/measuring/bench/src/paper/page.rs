//! A figure's page, made from its raw rows alone.

use farshore_command::page;
use farshore_load::outcome::MEASURE;
use maud::{Markup, html};

use super::judge::{self, Judged};
use super::series::{self, Point, Series};
use super::{Figure, Panel, Plot, Value, draw, model, parts};
use crate::report::page::{STYLE, shown};
use crate::report::{palette, tables, text};
use crate::result::{Experiment, Results, Round, TargetResult};
use crate::statistics;

/// The file of raw rows beside a page.
pub const RAW: &str = "raw.json";

/// The whole page.
#[must_use]
pub fn page(results: &Results, figure: &'static Figure) -> String {
    let judged = judge::all(results, figure);
    let title = format!("{}: {}", figure.place(), figure.title);
    let body = html! {
        (head(results, figure, &title))
        main {
            (verdicts(&judged))
            @for panel in figure.panels { (section(results, figure, panel)) }
            (paper(figure))
            (beforehand(figure))
            @if !figure.is_modelled() {
                section id="machine" {
                    h2 { "Where it was measured" }
                    div.pair { (tables::machine(&results.machine)) @if results.device.is_some() { (tables::limits(results.device.as_ref())) } }
                }
            }
            (reading(figure))
        }
    };
    page::page(&title, &[&palette::css(), STYLE], &body)
}

/// Whether some of it was made by the quick form.
#[must_use]
pub fn is_quick(results: &Results) -> bool {
    results.experiments.iter().filter_map(|experiment| experiment.paper.as_ref()).any(|point| point.quick)
}

fn head(results: &Results, figure: &Figure, title: &str) -> Markup {
    let machine = &results.machine;
    let cpus = format!("{} processors", machine.cpus);
    let place =
        [machine.cpu.clone(), cpus, text::bytes(machine.memory_bytes), format!("Linux {}", machine.kernel), machine.disk.clone()];
    html! {
        header {
            h1 { (title) }
            p.when { (figure.name) " · " (results.date) " · version " (results.version) " · " a href=(RAW) { "raw rows" } " · " a href="../index.html" { "all figures" } }
            @if figure.is_modelled() {
                p.note { strong { "Modelled. " } "No machine ran this. A model of steps, locks, interrupts and devices did, five seeds a point; its costs are measured here, a paper's digits, or fitted to a paper's digits." }
            }
            p.where { (place.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · ")) }
            @if !results.command.is_empty() { pre { code { (text::command(&results.command)) } } }
            @if is_quick(results) {
                p.note { strong { "Quick form. " } "It shows that everything works. Its numbers are no results." }
            }
            @for (name, reason) in &results.skipped {
                p.note { strong { (name) } " was not measured: " (reason) }
            }
        }
    }
}

fn verdicts(judged: &[Judged]) -> Markup {
    let [agrees, differs] = judge::sentences(judged);
    html! {
        section id="summary" {
            h2 { "Paper and Farshore" }
            p.agrees { (agrees) }
            p.differs { (differs) }
            @if let Some(words) = few(judged) { p.note { (words) } }
            div.scroll {
                table.claims {
                    thead { tr { th scope="col" { "what" } th scope="col" { "of" } th.number scope="col" { "paper" } th scope="col" { "in" } th.number scope="col" { "here (interval)" } th scope="col" { "verdict" } } }
                    tbody {
                        @for one in judged {
                            tr {
                                th scope="row" { (one.claim.what) }
                                td { (one.claim.system) }
                                td.number { (judge::papers(one.claim)) }
                                td { (one.claim.section) @if !one.claim.from.is_empty() { br; span.quiet { (one.claim.from) } } }
                                td.number.main { (judge::ours(one)) }
                                td { (verdict(one)) }
                            }
                        }
                    }
                }
            }
            @if judged.iter().any(|one| !one.claim.from.is_empty()) { p { "* Computed from digits of the paper's text, or a bound." } }
        }
    }
}

/// With few rounds the interval promises less than it says.
fn few(judged: &[Judged]) -> Option<String> {
    let rounds = judged.iter().filter_map(|one| one.ours.as_ref()).map(|ours| ours.rounds.len());
    let fewest = rounds.filter(|rounds| *rounds >= statistics::FEWEST_ROUNDS).min()?;
    let odds = match fewest {
        3 => "one case of four",
        4 => "one case of eight",
        _ => return None,
    };
    Some(format!(
        "Some of it rests on {fewest} rounds. Of so few the interval goes from the smallest to the largest and is no 95 %: where the truth is that both are equal, it lies on one side in {odds}. Take five rounds or more."
    ))
}

/// What was expected before anything was measured.
fn beforehand(figure: &Figure) -> Markup {
    let mut expected: Vec<&str> = Vec::new();
    for claim in figure.claims {
        if !expected.contains(&claim.why) {
            expected.push(claim.why);
        }
    }
    html! {
        section id="beforehand" {
            h2 { "Known beforehand" }
            p { "Differences between the setups that we expect to matter, written before anything was measured. None of them was tested here, so none is given as the cause of a number." }
            ul { @for words in expected { li { (words) } } }
        }
    }
}

/// A verdict in its colour.
pub(super) fn verdict(judged: &Judged) -> Markup {
    let class = match judged.agrees() {
        Some(true) => "faster",
        Some(false) if judged.verdict != judge::Verdict::Open => "slower",
        _ => "same",
    };
    html! { span class={ "verdict " (class) } { (judged.words()) } }
}

fn section(results: &Results, figure: &Figure, panel: &Panel) -> Markup {
    let experiments = series::experiments(results, figure, panel.key);
    html! {
        section id=(panel.key) {
            h2 { (panel.title) }
            @if let Some(first) = experiments.first().filter(|_| !figure.is_modelled()) {
                p.facts { (facts(first)) }
                pre { code { (text::command(&first.arguments)) } }
            }
            @for words in complaints(&experiments) { p.note { (words) } }
            div.plots { @for attempt in draw::panel(results, figure, panel) { (shown(&attempt)) } }
            @for plot in panel.plots {
                @match plot.value {
                    Value::Timeline => {}
                    Value::RequestParts => { (parts::table(&experiments)) }
                    _ => { (points(results, &experiments, panel, plot)) }
                }
            }
            @if figure.is_modelled() { (times(&experiments, panel)) } @else { (processors(&experiments, panel, results.machine.cpus)) }
            @for experiment in &experiments {
                details { summary { (at(experiment, panel)) ": each round" } (tables::targets(experiment)) (tables::rounds(experiment)) }
            }
        }
    }
}

fn facts(experiment: &Experiment) -> String {
    let mut facts = vec![format!("{} of data", text::bytes(experiment.data_bytes))];
    if experiment.threads > 0 {
        facts.push(format!("{} thread{}", experiment.threads, if experiment.threads == 1 { "" } else { "s" }));
    }
    facts.push("the command line is that of the first point".into());
    facts.join(" · ")
}

/// Which point an experiment is.
fn at(experiment: &Experiment, panel: &Panel) -> String {
    let Some(point) = &experiment.paper else { return String::new() };
    let variant = if point.variant.is_empty() { String::new() } else { format!(", {}", point.variant) };
    format!("{} {}{variant}", panel.x.label, text::short(&text::metric(point.shown)))
}

/// Rounds that do not count, target by target.
fn complaints(experiments: &[&Experiment]) -> Vec<String> {
    let mut targets: Vec<(String, usize, usize, &str)> = Vec::new();
    for target in experiments.iter().flat_map(|experiment| &experiment.targets) {
        let bad = target.rounds.iter().filter(|round| !round.wrong.is_empty()).count();
        let reason = target.rounds.iter().flat_map(|round| &round.wrong).next().map_or("", String::as_str);
        match targets.iter_mut().find(|(label, ..)| *label == target.label) {
            Some((_, all_bad, all, first)) => {
                *all_bad += bad;
                *all += target.rounds.len();
                *first = if first.is_empty() { reason } else { first };
            }
            None => targets.push((target.label.clone(), bad, target.rounds.len(), reason)),
        }
    }
    let told = targets.into_iter().filter(|(_, bad, ..)| *bad > 0);
    told.map(|(label, bad, all, reason)| format!("{label}: {bad} of {all} rounds do not count. The first: {reason}")).collect()
}

/// What the threads' time goes to in the model: the parts of a twentieth and more, at each point.
fn times(experiments: &[&Experiment], panel: &Panel) -> Markup {
    let parts = |target| {
        let of = |(name, part): (String, f64)| format!("{name} {}\u{a0}%", text::digits(part * 100.0));
        model::times(target).into_iter().filter(|(_, part)| *part >= 0.05).map(of).collect::<Vec<_>>().join(", ")
    };
    html! {
        details {
            summary { "What the threads' time goes to" }
            div.scroll {
                table {
                    thead { tr { th.number scope="col" { (panel.x.label) } th scope="col" { "system" } th scope="col" { "parts of the threads' time" } } }
                    tbody {
                        @for experiment in experiments {
                            @for target in &experiment.targets {
                                tr {
                                    th.number scope="row" { (text::short(&text::metric(series::x(experiment)))) }
                                    td { (series::label(experiment, target)) }
                                    td { (parts(target)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Where the time of all processors went in the measured phase.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Split {
    /// In the program, and in Farshore's threads in it, in user mode.
    user: f64,
    /// In the kernel on their behalf.
    system: f64,
    /// In all else that ran: kswapd and other threads of the kernel's, a policy, other programs.
    others: f64,
}

impl Split {
    /// Of a round, in percent; `None` where it does not tell its measured phase.
    fn of(round: &Round, cpus: u32) -> Option<Split> {
        let measured = round.measured.filter(|_| round.measured_seconds > 0.0)?;
        let phase = round.outcome.as_ref()?.phases.iter().find(|phase| phase.name == MEASURE)?;
        let all = round.measured_seconds * f64::from(cpus.max(1)) / 100.0;
        // The two sides read their clocks and counters a little apart, and the kernel's are in hundredths of a second.
        let others = (measured.machine_cpu_seconds - phase.user_seconds - phase.system_seconds).max(0.0);
        Some(Split { user: phase.user_seconds / all, system: phase.system_seconds / all, others: others / all })
    }

    /// The medians of a target's good rounds, and what is idle or waits.
    fn shares(target: &TargetResult, cpus: u32) -> Option<[f64; 4]> {
        let good = target.rounds.iter().filter(|round| round.wrong.is_empty());
        let all: Vec<Split> = good.filter_map(|round| Split::of(round, cpus)).collect();
        let median = |part: &dyn Fn(&Split) -> f64| statistics::median(&all.iter().map(part).collect::<Vec<_>>());
        let idle = |split: &Split| (100.0 - split.user - split.system - split.others).max(0.0);
        Some([median(&|split| split.user)?, median(&|split| split.system)?, median(&|split| split.others)?, median(&idle)?])
    }
}

/// A row for each target at each point.
fn processors(experiments: &[&Experiment], panel: &Panel, cpus: u32) -> Markup {
    let targets = experiments.iter().flat_map(|experiment| experiment.targets.iter().map(move |target| (experiment, target)));
    let rows: Vec<_> =
        targets.filter_map(|(experiment, target)| Some((experiment, target, Split::shares(target, cpus)?))).collect();
    html! {
        @if !rows.is_empty() {
            details {
                summary { "What the processors' time goes to" }
                p { "In percent of the time of all processors in the measured phase, medians of the good rounds. What Farshore's threads take is the program's, since they are in its process. Others are kswapd and what else the kernel runs, a policy beside the program, and other programs." }
                div.scroll {
                    table {
                        thead { tr { th.number scope="col" { (panel.x.label) } th scope="col" { "target" } @for title in ["user", "system", "others", "idle or waits"] { th.number scope="col" { (title) } } } }
                        tbody {
                            @for (experiment, target, shares) in &rows {
                                tr {
                                    th.number scope="row" { (text::short(&text::metric(series::x(experiment)))) }
                                    td { (series::label(experiment, target)) }
                                    @for share in shares { td.number { (text::digits(*share)) "\u{a0}%" } }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The points of a plot in numbers.
fn points(results: &Results, experiments: &[&Experiment], panel: &Panel, plot: &Plot) -> Markup {
    let all = series::all(experiments, plot.value);
    let ideal = matches!(plot.value, Value::Kept | Value::Rate)
        .then(|| series::ideal(results, experiments, panel, plot.value).ok())
        .flatten();
    // A rate that was measured is another one for each series.
    let place_of = |point: &Point| if plot.value.is_over_rate() { point.x } else { point.shown };
    let mut places: Vec<f64> = all.iter().flat_map(|series| &series.points).map(place_of).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let cell = |series: &Series, place: f64| {
        let point = series.points.iter().find(|point| place_of(point).total_cmp(&place).is_eq());
        point.map_or_else(String::new, |point| {
            let show = |value| text::quantity(value, plot.value.unit());
            let rate = if plot.value.is_over_rate() { format!(" at {}/s", text::metric(point.shown)) } else { String::new() };
            format!("{} ({}–{}){rate}", show(point.middle.median), show(point.middle.low), show(point.middle.high))
        })
    };
    let of_ideal = |place: f64| {
        let line = ideal.as_ref()?.iter().find(|(x, _)| x.total_cmp(&place).is_eq())?;
        let first = all.first()?.points.iter().find(|point| point.shown.total_cmp(&place).is_eq())?;
        Some(format!("{}\u{a0}%", text::digits(first.middle.median / line.1 * 100.0)))
    };
    html! {
        @if !all.is_empty() {
            div.scroll {
                table {
                    caption { (plot.title) ": " (plot.value.label()) ", median (interval)" }
                    thead {
                        tr {
                            th.number scope="col" { (panel.x.label) }
                            @for series in &all { th.number scope="col" { (series.label) } }
                            @if ideal.is_some() { th.number scope="col" { "the first, of the ideal" } }
                        }
                    }
                    tbody {
                        @for place in places {
                            tr {
                                th.number scope="row" { (text::short(&text::metric(place))) }
                                @for series in &all { td.number { (cell(series, place)) } }
                                @if ideal.is_some() { td.number { (of_ideal(place).unwrap_or_default()) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn paper(figure: &Figure) -> Markup {
    let references = figure.panels.iter().flat_map(|panel| {
        panel.plots.iter().flat_map(move |plot| plot.references.iter().map(move |reference| (panel, reference)))
    });
    html! {
        section id="paper" {
            h2 { "What the paper has" }
            p { (figure.paper.title) }
            p { strong { "There. " } (figure.there) }
            p { strong { "Here. " } (figure.here) }
            div.scroll {
                table {
                    caption { "Digits of its text and tables, or computed from them where marked" }
                    thead { tr { th scope="col" { "panel" } th scope="col" { "system" } th scope="col" { "section" } th scope="col" { "what it says" } } }
                    tbody { @for (panel, reference) in references { tr { th scope="row" { (panel.title) } td { (reference.system) } td { (reference.section) } td { (reference.says) } } } }
                }
            }
        }
    }
}

fn reading(figure: &Figure) -> Markup {
    html! {
        section id="reading" {
            h2 { "How to read this" }
            @if figure.is_modelled() {
                ul {
                    li { "A mark is the median over the seeds, its line the interval: how much chance there is in the model, and not how far it is from a machine. How far that is on two cores, farshore-here says." }
                    li { (judge::RULE) }
                    li { "A core does one thing at a time. Locks are taken in the order of requests, and their cache line travels. A flush interrupts each core that runs a thread. Caches, memory bandwidth, hyper-threads and the scheduler are not modelled." }
                    li { "The paper's numbers are digits of its text or tables, or computed from them where marked." }
                }
            } @else {
            ul {
                li { "All targets of a point ran the same program with the same options. They took turns, round by round; a warm-up before the first round is not counted." }
                li { "A mark is the median over the good rounds, its line the interval. A round is good if the program ended well and its data were right." }
                li { (judge::RULE) }
                li { "The ideal line is T0 + L × F: the time with all memory local, plus the latency of far memory for each page that the slowest thread of the first target waited for (MAGE, §3.1)." }
                li { "The paper's numbers are digits of its text or tables, or computed from them where marked. Nothing is read off its drawings. Absolute numbers of its machines are in the table and in no plot." }
            }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use farshore_load::outcome::{Outcome, Phase};

    use super::*;
    use crate::result::Counters;

    fn round(user: f64, system: f64, machine: f64) -> Round {
        let phase = |name: &str, user_seconds, system_seconds| Phase {
            name: name.into(),
            user_seconds,
            system_seconds,
            ..Phase::default()
        };
        let phases = vec![phase("fill", 9.0, 9.0), phase(MEASURE, user, system)];
        let measured = Some(Counters { machine_cpu_seconds: machine, ..Counters::default() });
        Round { outcome: Some(Outcome { phases, ..Outcome::default() }), measured, measured_seconds: 2.0, ..Round::default() }
    }

    #[test]
    fn the_time_of_all_processors_is_split() {
        let bad = Round { wrong: vec!["bad".into()], ..round(4.0, 0.0, 4.0) };
        let target = TargetResult { rounds: vec![round(1.0, 0.5, 2.5), bad, round(1.0, 0.5, 2.5)], ..TargetResult::default() };
        // Two processors for two seconds.
        assert_eq!(Split::shares(&target, 2), Some([25.0, 12.5, 25.0, 37.5]));
        // What the machine has counted in hundredths may be less than what the program has.
        let target = TargetResult { rounds: vec![round(2.0, 2.004, 4.0)], ..TargetResult::default() };
        assert!(Split::shares(&target, 2).is_some_and(|shares| shares[2] == 0.0 && shares[3] == 0.0));
        let untold = TargetResult { rounds: vec![Round { measured: None, ..round(1.0, 1.0, 3.0) }], ..TargetResult::default() };
        assert_eq!(Split::shares(&untold, 2), None);
    }
}
