use std::io::Write;

use super::*;
use crate::result::{Figure, Round};

fn target(kind: &str, figures: &[f64]) -> TargetResult {
    let round = |(number, figure): (u32, &f64)| Round { number, figure: Some(*figure), ..Round::default() };
    TargetResult {
        label: kind.into(),
        kind: kind.into(),
        rounds: (1..).zip(figures).map(round).collect(),
        ..TargetResult::default()
    }
}

fn experiment(name: &str, targets: Vec<TargetResult>) -> Experiment {
    let figure = Figure { name: "updates a second".into(), unit: "/s".into(), less_is_better: false };
    Experiment { name: name.into(), workload: "random".into(), figure, targets, ..Experiment::default() }
}

fn results(experiments: Vec<Experiment>) -> Results {
    Results { schema: SCHEMA, version: "0.1.0".into(), date: "2026-11-21T09:30:00Z".into(), experiments, ..Results::default() }
}

const BASE: [f64; 5] = [100.0, 103.0, 98.0, 101.0, 99.0];

fn times(factor: f64) -> Vec<f64> {
    BASE.iter().rev().map(|value| value * factor).collect()
}

/// Verdicts by target.
fn verdicts(old: Vec<TargetResult>, new: Vec<TargetResult>) -> Vec<(String, Verdict)> {
    let comparison = compare(&results(vec![experiment("x", old)]), &results(vec![experiment("x", new)]));
    comparison.changes.iter().map(|change| (change.target.clone(), change.verdict())).collect()
}

#[test]
fn figures_alone() {
    for (factor, verdict) in [(1.2, Verdict::Faster), (0.8, Verdict::Slower), (1.01, Verdict::Same)] {
        assert_eq!(
            verdicts(vec![target("farshore", &BASE)], vec![target("farshore", &times(factor))]),
            [("farshore".into(), verdict)]
        );
    }
}

#[test]
fn less_is_better_turns_it_round() {
    let file = |factor| {
        let mut experiment = experiment("x", vec![target("farshore", &times(factor)), target("native", &BASE)]);
        experiment.figure.less_is_better = true;
        results(vec![experiment])
    };
    let comparison = compare(&file(1.0), &file(1.3));
    assert_eq!(comparison.changes[0].verdict(), Verdict::Slower);
    assert!(comparison.changes[0].figures.median < 0.8 && comparison.changes[0].judged().median < 0.8, "{comparison:?}");
}

#[test]
fn drift_of_the_machine_is_not_a_change() {
    let old = vec![target("farshore", &BASE), target("native", &BASE), target("linux-swap", &times(0.5))];
    let new = vec![target("farshore", &times(0.7)), target("native", &BASE), target("linux-swap", &times(0.35))];
    let wanted = [("farshore".into(), Verdict::Same), ("native".into(), Verdict::Same), ("linux-swap".into(), Verdict::Slower)];
    assert_eq!(verdicts(old.clone(), new.clone()), wanted);
    let comparison = compare(&results(vec![experiment("x", old)]), &results(vec![experiment("x", new)]));
    assert_eq!(comparison.changes[0].beside.as_ref().map(|beside| beside.label.as_str()), Some("linux-swap"));
    assert!(comparison.changes[0].figures.high < 0.8, "the figures themselves have changed");
}

#[test]
fn a_drift_can_hide_a_change() {
    let old = vec![target("farshore", &BASE), target("linux-swap", &BASE)];
    let new = vec![target("farshore", &times(1.0)), target("linux-swap", &times(1.3))];
    assert_eq!(verdicts(old, new)[0], ("farshore".into(), Verdict::Slower));
}

#[test]
fn what_one_file_lacks_is_named() {
    let mut broken = target("zram", &[1.0]);
    broken.rounds[0].wrong.push("killed".into());
    let old = results(vec![
        experiment("x", vec![target("farshore", &BASE), target("zswap", &BASE), broken]),
        experiment("y", Vec::new()),
        Experiment { memory_bytes: 1, ..experiment("z", Vec::new()) },
    ]);
    let new = results(vec![
        Experiment { memory_bytes: 2, ..experiment("z", Vec::new()) },
        experiment("x", vec![target("farshore", &BASE), target("zram", &BASE), target("command", &BASE)]),
    ]);
    let comparison = compare(&old, &new);
    let wanted = [
        "only in the old file: x: zswap",
        "without a good round in both files: x: zram",
        "only in the new file: x: command",
        "only in the old file: y",
        "only in the old file: z",
        "only in the new file: z",
    ];
    assert_eq!(comparison.alone, wanted);
    assert_eq!(comparison.changes.len(), 1);
}

#[test]
fn a_row_of_families_is_the_same_where_its_peak_is_nearly() {
    let file = |family: &str, memory_bytes: u64| {
        let experiment = experiment("java-g1, 50 % local", vec![target("farshore", &BASE)]);
        results(vec![Experiment { family: family.into(), memory_bytes, ..experiment }])
    };
    let changes = |family, old: u64, new: u64| compare(&file(family, old << 20), &file(family, new << 20)).changes.len();
    // The limit is a part of what the program had that time.
    assert_eq!((changes("java-g1", 150, 153), changes("java-g1", 150, 148)), (1, 1));
    assert_eq!((changes("java-g1", 150, 200), changes("java-g1", 0, 150), changes("", 150, 153)), (0, 0, 0));
}

#[test]
fn as_text() {
    let mut old = results(vec![
        experiment("random updates", vec![target("farshore", &BASE), target("linux-swap", &BASE)]),
        experiment("scan", vec![target("farshore", &BASE)]),
    ]);
    let mut new = results(vec![
        experiment("random updates", vec![target("farshore", &times(2.0)), target("linux-swap", &BASE)]),
        experiment("scan", vec![target("farshore", &times(0.5))]),
    ]);
    old.machine.kernel = "6.1.0".into();
    new.machine.kernel = "6.18.44".into();
    new.machine.settings.insert("swappiness".into(), "60".into());
    let comparison = compare(&old, &new);
    let text = text(&comparison, false, 140);
    assert!(text.starts_with("old: 2026-11-21T09:30:00Z (Farshore 0.1.0)\nnew: "), "{text}");
    assert!(
        text.contains("\nnot the same machine, so figures alone say little: kernel 6.1.0 → 6.18.44, swappiness ? → 60\n"),
        "{text}"
    );
    assert!(text.contains("beside linux-swap"), "{text}");
    assert!(text.contains("\nfarshore    100/s"), "{text}");
    assert!(text.contains("2.00 × ("), "{text}");
    assert!(text.ends_with("else by the figures.\n") && text.contains("\n1 faster, 1 slower, 1 within the noise\n"), "{text}");
    assert_eq!(comparison.count(Verdict::Same), 1);
    assert!(super::text(&comparison, true, 140).contains("\x1b[31mslower"));
    let nothing = super::text(&compare(&results(Vec::new()), &results(Vec::new())), false, 80);
    assert!(nothing.ends_with("\n\n0 faster, 0 slower, 0 within the noise\n"), "{nothing}");
}

#[test]
fn files_that_are_none() {
    let line = |text: &str| {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(text.as_bytes()).expect("written");
        load(file.path())
    };
    for (text, wanted) in [
        ("", "holds no results of farshore bench (EOF"),
        ("[1]", "it names no schema"),
        ("{}", "it names no schema"),
        ("{\"schema\": 99}", "is of schema 99, this version reads schema 1"),
        ("{\"schema\": 1, \"experiments\": 5}", "holds no results of farshore bench (invalid type"),
    ] {
        let error = line(text).expect_err(text);
        assert!(error.contains(wanted) && !error.contains('\n'), "{error}");
    }
    let error = load(Path::new("/nowhere/x.json")).expect_err("no file");
    assert!(error.starts_with("cannot read '/nowhere/x.json' (No such file"), "{error}");
    let whole = results(vec![experiment("x", vec![target("farshore", &BASE)])]);
    assert_eq!(line(&serde_json::to_string(&whole).expect("JSON")), Ok(whole));
}
