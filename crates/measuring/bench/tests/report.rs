//! The report and the schema's documentation, from made-up results (the example `report` has them) and from damaged ones.

#[path = "../examples/report/synthetic.rs"]
mod synthetic;

use std::collections::BTreeSet;
use std::fs;

use farshore_bench::report;
use farshore_bench::result::{
    Access, Axis, Device, DevicePoint, Experiment, Figure, Percentiles, Ratio, Results, Round, Spread, Summary, SweepPoint,
    TargetResult,
};
use farshore_load::outcome::{Histogram, Outcome, Timeline};

/// The page of some results.
fn page(results: &Results) -> String {
    let directory = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let path = report::write(results, directory.path()).unwrap_or_else(|error| panic!("{error}"));
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn two_files_are_written_into_a_new_directory() {
    let directory = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let below = directory.path().join("a").join("b");
    let results = synthetic::results();
    assert_eq!(report::write(&results, &below), Ok(below.join("index.html")));
    let json = fs::read_to_string(below.join("results.json")).unwrap_or_default();
    assert!(serde_json::from_str::<Results>(&json).is_ok_and(|read| read == results), "the results do not come back");
    let names: BTreeSet<_> = fs::read_dir(&below).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn what_cannot_be_written_is_told() {
    let file = tempfile::NamedTempFile::new().unwrap_or_else(|error| panic!("{error}"));
    let error = report::write(&Results::default(), file.path()).expect_err("a file is no directory");
    assert!(error.contains(&file.path().display().to_string()) && error.lines().count() == 1, "{error}");
}

#[test]
fn hostile_names_are_text_wherever_they_stand() {
    let mut results = synthetic::results();
    let evil = "</style></svg><script>alert(1)</script><img src=x onerror=y>\"'&";
    results.date = evil.into();
    results.version = evil.into();
    results.command = vec![evil.into()];
    results.machine.host = evil.into();
    results.machine.settings.insert(evil.into(), evil.into());
    results.skipped.insert(evil.into(), evil.into());
    for experiment in &mut results.experiments {
        experiment.name = evil.into();
        experiment.workload = evil.into();
        experiment.arguments = vec![evil.into()];
        experiment.figure.name = evil.into();
        for target in &mut experiment.targets {
            target.label.push_str(evil);
            target.kind = evil.into();
            target.settings.insert(evil.into(), evil.into());
            for round in &mut target.rounds {
                if let Some(outcome) = &mut round.outcome {
                    outcome.unit = evil.into();
                    outcome.generator_late = evil.into();
                    outcome.timeline.marks.push((1.0, evil.into()));
                }
            }
            target.rounds[0].wrong = vec![evil.into()];
        }
    }
    let page = page(&results);
    for tag in ["<script", "<img", "</style></svg>"] {
        assert!(
            !page.contains(tag),
            "{tag}: {:?}",
            page.find(tag).map(|at| page[at.saturating_sub(200)..].chars().take(300).collect::<String>())
        );
    }
    assert!(page.contains("&lt;script&gt;"));
    assert_eq!(page.matches("</style>").count(), 1);
}

#[test]
fn each_plot_stands_alone() {
    let figures = report::figures(&synthetic::results());
    let kinds: BTreeSet<&str> = figures.iter().map(|figure| figure.kind).collect();
    assert_eq!(kinds.len(), 8, "{kinds:?}");
    for figure in &figures {
        let image = figure.standalone();
        assert!(image.starts_with("<svg ") && image.trim_end().ends_with("</svg>"), "{}", figure.title);
        assert_eq!((image.matches("<svg").count(), image.matches("<style>").count()), (1, 1), "{}", figure.title);
        assert!(!image.contains("NaN") && !image.contains("inf\""), "{}", figure.title);
        for (name, colour) in &figure.series {
            assert!(image.matches(colour.as_str()).count() > 3, "{}: nothing is drawn for {name}", figure.title);
        }
    }
}

#[test]
fn no_experiment_is_said() {
    assert!(page(&Results::default()).contains("There is no experiment in these results."));
}

fn figure() -> Figure {
    Figure { name: "updates a second".into(), unit: "/s".into(), less_is_better: false }
}

fn with(experiments: Vec<Experiment>) -> Results {
    Results { experiments, ..Default::default() }
}

#[test]
fn failed_experiments_are_said() {
    let target = |label: &str, wrong: &[&str]| TargetResult {
        label: label.into(),
        rounds: wrong.iter().map(|word| Round { wrong: vec![(*word).into()], ..Default::default() }).collect(),
        ..Default::default()
    };
    let failed = Experiment {
        name: "failed".into(),
        figure: figure(),
        targets: vec![target("one", &["ended by signal 9"]), target("two", &[])],
        ..Default::default()
    };
    let nothing = Experiment { name: "nothing".into(), ..Default::default() };
    let swept = Experiment { sweep: Some(SweepPoint { axis: Axis::Memory, value: 50.0 }), ..failed.clone() };
    let page = page(&with(vec![failed, nothing, swept]));
    for words in [
        "one has no good round: ended by signal 9",
        "two has no round.",
        "no target was measured.",
        "No plot of",
        "At 50 % local: one has no good round",
    ] {
        assert!(page.contains(words), "{words}");
    }
    assert!(!page.contains("<figure"), "there is nothing to draw");
}

#[test]
fn a_single_round_is_drawn_and_said() {
    let mut results = synthetic::results();
    for target in results.experiments.iter_mut().flat_map(|experiment| &mut experiment.targets) {
        target.rounds.truncate(1);
    }
    let page = page(&results);
    assert!(page.contains("has a single round"));
    assert!(page.contains("data-plot=\"sweep\"") && page.contains("data-plot=\"timeline\""));
}

/// A target all of whose numbers are `value`.
fn odd_target(label: &str, value: f64) -> TargetResult {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, which is odd enough")]
    let count = value as u64;
    let outcome = Outcome {
        operations: count,
        seconds: value,
        latency: Histogram { counts: vec![(count, 1), (count.saturating_add(1), count.saturating_add(1).min(1 << 40))] },
        timeline: Timeline {
            step_seconds: value,
            operations: vec![count.min(1 << 50); 3],
            marks: vec![(value, "mark".into()), (-1.0, "before".into())],
        },
        ..Default::default()
    };
    let round = Round { figure: Some(value), wall_seconds: value, outcome: Some(outcome), ..Default::default() };
    let ratio = Ratio { median: value, low: -value, high: value, confidence: 0.95, rounds: vec![value, 1.0] };
    let latency = Percentiles { p50: count, p90: count, p99: count, p999: count, max: count };
    let summary = Summary {
        figure: Spread { median: value, min: value, max: value },
        latency: Some(latency),
        ratio: Some(ratio),
        fetches_per_second: value,
        cpu_us_per_fault: value,
        cpu_seconds: value,
        device_percent: Some(value),
        ..Default::default()
    };
    TargetResult {
        label: label.into(),
        kind: "native".into(),
        rounds: vec![round; 3],
        summary: Some(summary),
        ..Default::default()
    }
}

#[test]
fn odd_numbers_do_not_stop_the_page() {
    let odd =
        [0.0, -0.0, -7.0, 1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN_POSITIVE, 5e-324, 1e300, 1e18];
    let sweeps = [None, Some(Axis::Memory), Some(Axis::Threads), Some(Axis::Files)];
    let mut experiments = Vec::new();
    for value in odd {
        for axis in sweeps {
            let targets = vec![odd_target("one", value), odd_target("two", 1.0), odd_target("three", value)];
            let sweep = axis.map(|axis| SweepPoint { axis, value });
            experiments.push(Experiment { sweep, figure: figure(), threads: 2, targets, ..Default::default() });
        }
    }
    let latency = Histogram { counts: vec![(0, 3), (u64::MAX, 1)] };
    let points = vec![DevicePoint { access: Access::RandomRead, depth: 1, pages_per_second: f64::NAN, latency }];
    for device in [None, Some(Device::default()), Some(Device { file_bytes: 0, points })] {
        let page = page(&Results { device, ..with(experiments.clone()) });
        assert!(page.ends_with("</html>"));
        assert!(
            !page.contains("NaN"),
            "{:?}",
            page.find("NaN").map(|at| page[at.saturating_sub(200)..].chars().take(300).collect::<String>())
        );
    }
}

/// Names of all fields in a value. Below `free`, names are the data's.
fn fields(value: &serde_json::Value, free: &[&str], found: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(object) => {
            for (name, inner) in object {
                found.insert(name.clone());
                if !free.contains(&name.as_str()) {
                    fields(inner, free, found);
                }
            }
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| fields(item, free, found)),
        _ => {}
    }
}

#[test]
fn the_documentation_names_each_field() {
    let mut found = BTreeSet::new();
    for results in [synthetic::results(), synthetic::paper()] {
        let json = serde_json::to_value(results).unwrap_or_default();
        fields(&json, &["settings", "skipped", "stats"], &mut found);
    }
    // That the example is a full one: something of each level.
    for name in [
        "experiments",
        "sweep",
        "p999",
        "cpu_seconds",
        "faults_of_worst_thread",
        "marks",
        "pages_per_second",
        "confidence",
        "other_swap",
        "stats",
        "variant",
        "shown",
    ] {
        assert!(found.contains(name), "the example has no {name}");
    }
    let document = include_str!("../../../../docs/src/reference/bench-json.md");
    let missing: Vec<&String> = found.iter().filter(|name| !document.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/src/reference/bench-json.md does not tell of {missing:?}");
}

#[test]
fn the_documentation_names_each_word() {
    let document = include_str!("../../../../docs/src/reference/bench-json.md");
    let accesses =
        [Access::RandomRead, Access::RandomWrite, Access::RandomMixed, Access::SequentialRead, Access::SequentialWrite]
            .map(|access| serde_json::to_string(&access));
    let axes = [Axis::Memory, Axis::Threads, Axis::Files].map(|axis| serde_json::to_string(&axis));
    for word in accesses.into_iter().chain(axes) {
        let word = word.unwrap_or_default();
        assert!(document.contains(&format!("`{word}`")), "docs/src/reference/bench-json.md does not tell of {word}");
    }
}
