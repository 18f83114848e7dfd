use std::collections::BTreeSet;

use super::plan::{PEAK, Plan};
use super::*;
use crate::args::{BenchArgs, Command, What};
use crate::targets::spec;

/// The options that `farshore bench paper` has without any.
fn arguments() -> BenchArgs {
    use clap::Parser;
    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: Command,
    }
    let Command::Bench(arguments) = Line::try_parse_from(["farshore", "bench", "paper"]).unwrap().command;
    assert!(matches!(arguments.what, Some(What::Paper(_))));
    *arguments
}

/// The series of a panel at a point.
fn series_of(panel: &Panel, x: f64) -> BTreeSet<String> {
    match &panel.runs {
        Runs::Load { variants, .. } => {
            let of = |variant: &Variant| {
                let labels = spec::labels(&spec::parse_list(&(variant.targets)(x)).unwrap());
                let named = |label: String| if variant.key.is_empty() { label } else { format!("{label}, {}", variant.key) };
                labels.into_iter().map(named).collect::<Vec<_>>()
            };
            variants.iter().flat_map(of).collect()
        }
        Runs::Modelled(at) => {
            let named = |run: model::Run| match run.variant {
                "" => run.system.name.to_string(),
                variant => format!("{}, {variant}", run.system.name),
            };
            at(x).into_iter().map(named).collect()
        }
        Runs::Served { line, .. } => {
            let words: Vec<&str> = line.split(' ').collect();
            words.windows(2).filter(|pair| pair[0] == "--mode").map(|pair| pair[1].to_string()).collect()
        }
    }
}

fn terms(claim: &Claim) -> Vec<Term> {
    match claim.ours {
        Ours::Level(term) => vec![term],
        Ours::Times(one, other) | Ours::Percent(one, other) => vec![one, other],
    }
}

/// Where a number stands: in a paper, or in a figure or document of ours.
fn is_section(text: &str) -> bool {
    text.starts_with('§') || text.starts_with("Table ") || find(text).is_ok() || text == "costs.md"
}

#[test]
fn names_differ_and_say_of_which_paper() {
    let names: BTreeSet<&str> = all().map(|figure| figure.name).collect();
    assert_eq!(names.len(), all().count());
    for figure in all() {
        let paper = figure.paper.name.to_lowercase();
        assert!(figure.name.starts_with(&format!("{paper}-")), "{}", figure.name);
        let panels: BTreeSet<&str> = figure.panels.iter().map(|panel| panel.key).collect();
        assert_eq!(panels.len(), figure.panels.len(), "{}", figure.name);
    }
    assert!(find("mage-9").is_ok());
    let why = find("mage-99").unwrap_err();
    assert!(why.contains("mage-99") && why.contains("adios-7") && why.contains("all"), "{why}");
}

#[test]
fn each_figure_is_whole() {
    let section = is_section;
    for figure in all() {
        let name = figure.name;
        assert!(!figure.panels.is_empty() && !figure.claims.is_empty(), "{name}");
        assert!(figure.there.ends_with('.') && figure.here.ends_with('.'), "{name}: how it was there and is here");
        for panel in figure.panels {
            assert!(!panel.plots.is_empty() && !panel.x.label.is_empty(), "{name}: {}", panel.key);
            assert!(
                panel.x.quick.iter().all(|x| panel.x.points.contains(x)),
                "{name}: {}: quick points are some of all",
                panel.key
            );
            let references: Vec<&Reference> = panel.plots.iter().flat_map(|plot| plot.references).collect();
            assert!(!references.is_empty(), "{name}: {}: what the paper says", panel.key);
            for reference in references {
                assert!(section(reference.section), "{name}: {}", reference.section);
                let told = reference.says.chars().any(|letter| letter.is_ascii_digit()) || reference.says.contains("digits");
                assert!(told, "{name}: digits, or that there are none: {}", reference.says);
            }
        }
    }
}

#[test]
fn what_others_are_set_against_is_there() {
    for (panel, plot) in
        all().flat_map(|figure| figure.panels).flat_map(|panel| panel.plots.iter().map(move |plot| (panel, plot)))
    {
        if let Some(label) = plot.value.of_target() {
            assert!(panel.x.points.iter().all(|x| series_of(panel, *x).contains(label)), "{}: {label}", panel.key);
        }
    }
}

#[test]
fn claims_are_about_what_is_measured() {
    for figure in all() {
        for claim in figure.claims {
            let at = format!("{}: {}", figure.name, claim.what);
            assert!(is_section(claim.section) && !claim.why.ends_with('.') && !claim.why.is_empty(), "{at}");
            assert!(claim.papers.is_some() || matches!(claim.ours, Ours::Times(..)), "{at}: a level has the paper's number");
            let marked = ["computed: ", "a lower bound, computed: ", "the text says "];
            assert!(claim.from.is_empty() || claim.papers.is_some(), "{at}: no number is computed");
            assert!(claim.from.is_empty() || marked.iter().any(|mark| claim.from.starts_with(mark)), "{at}: {}", claim.from);
            assert!(!claim.baseline || !matches!(claim.ours, Ours::Times(..)), "{at}: a ratio is of no baseline");
            for term in terms(claim) {
                let peak = term.panel.ends_with(PEAK);
                let panel = figure.panel(term.panel.trim_end_matches(PEAK)).unwrap_or_else(|| panic!("{at}: {term:?}"));
                assert!(series_of(panel, term.x).contains(term.series), "{at}: {term:?}: {:?}", series_of(panel, term.x));
                let is = |points: &[f64]| points.iter().any(|x| (x - term.x).abs() < 1e-9);
                // The headline is in the quick form, too.
                let headline = std::ptr::eq(claim, &figure.claims[0]);
                assert!(peak || is(panel.x.points) && (!headline || is(panel.x.quick)), "{at}: {term:?}");
                let native = term.series.split_once(", ").map_or("native".into(), |(_, variant)| format!("native, {variant}"));
                let native = series_of(panel, term.x).contains(&native);
                assert!(term.value.of_native().is_none() || native, "{at}: nothing to set it against");
                assert!(term.value.of_target().is_none(), "{at}: a ratio of ratios");
            }
        }
    }
}

#[test]
fn each_figure_can_be_planned_and_takes_no_more_than_ten_minutes() {
    let arguments = arguments();
    for figure in all() {
        for quick in [false, true] {
            let made = Plan::new(figure, quick, &arguments, "/here/farshore-serve".into());
            let made = made.unwrap_or_else(|why| panic!("{}: {why}", figure.name));
            let needs = made.needs();
            let names: BTreeSet<&str> = needs.iter().map(|experiment| experiment.name.as_str()).collect();
            assert!(needs.is_empty() == figure.is_modelled() && names.len() == needs.len(), "{}: {names:?}", figure.name);
            for experiment in &needs {
                assert!(experiment.memory_bytes >= 4 << 20, "{}: farshore run takes no less than 4M", experiment.name);
            }
        }
        let (full, quick) = (plan::seconds(figure, 5, false), plan::seconds(figure, 1, true));
        assert!((10.0..=600.0).contains(&full), "{}: {full} s", figure.name);
        assert!(quick <= 60.0, "{}: {quick} s", figure.name);
    }
}

#[test]
fn a_point_sets_memory_threads_files_and_the_limit_that_is_lifted() {
    let arguments = arguments();
    let needs = |name| Plan::new(find(name).unwrap(), false, &arguments, "/s".into()).unwrap().needs();
    let grid = needs("mage-9").into_iter().find(|experiment| experiment.name == "mage-9, grid, 30").unwrap();
    assert_eq!(grid.memory_bytes, crate::plan::percent_of(192 << 20, 70.0));
    assert_eq!(grid.paper.as_ref().map(|point| (point.panel.as_str(), point.x, point.quick)), Some(("grid", 30.0, false)));
    let alone = needs("mage-5").into_iter().find(|experiment| experiment.name == "mage-5, read, 8, faults alone").unwrap();
    assert_eq!((alone.threads(), alone.memory_bytes), (8, crate::plan::percent_of(192 << 20, 10.0)));
    assert_eq!(alone.raised, Some(384 << 20));
    let program = alone.program("load".as_ref(), "/d".as_ref(), 1, 0);
    assert!(matches!(program, crate::measure::Program::Raised { memory_bytes, .. } if memory_bytes == 384 << 20), "{program:?}");
    let files = needs("scaleswap-12").into_iter().find(|experiment| experiment.name == "scaleswap-12, files, 4").unwrap();
    assert_eq!((files.swap_files, files.raised), (4, None));
    let spaces = needs("scaleswap-12").into_iter().find(|experiment| experiment.name == "scaleswap-12, spaces, 8").unwrap();
    assert_eq!(spaces.targets[0].to_string().matches("swap=dir:/dev/shm").count(), 8);
    let full = needs("scaleswap-t6-spaces").into_iter();
    let full = full.filter(|experiment| experiment.name.starts_with("scaleswap-t6-spaces, little"));
    for (experiment, (count, size)) in full.zip([(0, "8M"), (1, "10M"), (2, "10M"), (4, "14M"), (6, "26M"), (7, "50M")]) {
        let target = experiment.targets[0].to_string();
        let spaces = |size: &str| target.matches(&format!("size={size}")).count();
        assert_eq!((spaces("2M"), spaces(size), target.matches("delay:4us").count()), (count, 8 - count, 8), "{target}");
    }
    let line = |name: &str| {
        let raw = needs("mage-15").into_iter().find(|experiment| experiment.name == name).unwrap();
        (raw.workload(), raw.threads(), raw.program("load".as_ref(), "/d".as_ref(), 1, 0))
    };
    let (workload, threads, program) = line("mage-15, disk, 4, writers in step");
    let crate::measure::Program::Workload(words) = program else { panic!("{program:?}") };
    assert_eq!((workload.as_str(), threads), ("reads", 4));
    assert!(["--directory=/d", "--in-step", "--writers=2"].iter().all(|word| words.contains(&(*word).into())), "{words:?}");
    assert_eq!(line("mage-15, disk, 4").0, "scan");
}

#[test]
fn the_list_has_each_figure_and_its_minutes() {
    let list = text::list(5, false, 200);
    for figure in all() {
        assert!(list.lines().any(|line| line.starts_with(figure.name)), "{}: {list}", figure.name);
    }
    assert!(list.contains("minutes") && list.contains("root for Linux swap"), "{list}");
}

#[test]
fn a_modelled_figure_is_made_without_a_machine_and_judged_whole() {
    for figure in all().filter(|figure| figure.is_modelled()) {
        let of = |quick| model::results(figure, quick, &["farshore".into()], "now".into(), crate::result::Machine::default());
        let quick = of(true);
        assert_eq!(quick, of(true), "{}: the same seeds give the same", figure.name);
        assert!(page::is_quick(&quick) && page::page(&quick, figure).contains("Modelled."), "{}", figure.name);
        for experiment in &quick.experiments {
            for target in &experiment.targets {
                let parts = model::times(target);
                let all: f64 = parts.iter().map(|(_, part)| part).sum();
                assert!((0.97..=1.001).contains(&all), "{}: {}: {all} of the time is told", experiment.name, target.label);
                let outcome = target.rounds[0].outcome.as_ref().unwrap();
                assert_eq!(outcome.latency.counts.iter().map(|(_, count)| count).sum::<u64>(), outcome.operations);
            }
        }
        let headline = &judge::all(&quick, figure)[0];
        assert!(headline.verdict == judge::Verdict::TooFew, "{}: one seed decides nothing: {:?}", figure.name, headline.verdict);
    }
}
