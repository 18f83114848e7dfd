//! Pages of the papers' figures, from made-up raw rows and from damaged ones.

#[path = "../examples/report/synthetic.rs"]
mod synthetic;

use std::fs;
use std::path::Path;

use farshore_bench::paper::judge::{self, Verdict};
use farshore_bench::paper::{self, Figure, index};
use farshore_bench::result::{Results, Round};

fn figure() -> &'static Figure {
    paper::find(synthetic::PAPER).unwrap_or_else(|error| panic!("{error}"))
}

/// Writes the page into `directory`; its text.
fn write(results: &Results, directory: &Path) -> String {
    let path = index::write(results, figure(), directory).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(path, directory.join(synthetic::PAPER).join("index.html"));
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{error}"))
}

fn page(results: &Results) -> String {
    let directory = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    write(results, directory.path())
}

/// Headings, sections, plots and tables of a page, in order.
fn skeleton(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in page.match_indices('<') {
        let rest = &page[at..];
        let inside =
            |tag: &str| rest.split_once('>').and_then(|(_, text)| text.split_once(&format!("</{tag}>"))).map(|(text, _)| text);
        let attribute = |name: &str| {
            let (_, value) = rest.split_once('>')?.0.split_once(&format!("{name}=\""))?;
            value.split('"').next()
        };
        if rest.starts_with("<h1>") || rest.starts_with("<h2>") {
            found.extend(inside(&rest[1..3]).map(|text| format!("{} {text}", &rest[1..3])));
        } else if rest.starts_with("<section") {
            found.extend(attribute("id").map(|id| format!("section {id}")));
        } else if rest.starts_with("<figure") {
            let series = attribute("data-series").map_or(0, |series| series.split(' ').count());
            found.extend(attribute("data-plot").map(|kind| format!("plot {kind}, {series} series")));
        } else if rest.starts_with("<table") {
            let rows = rest.split_once("</table>").map_or(0, |(table, _)| table.matches("<tr>").count());
            found.push(format!("table, {rows} rows"));
        }
    }
    found
}

#[test]
fn a_page_has_verdicts_plots_points_and_the_papers_numbers() {
    let page = page(&synthetic::paper());
    let skeleton: Vec<String> = skeleton(&page).into_iter().filter(|line| !line.ends_with("16 rows")).collect();
    let rounds = |line: &&String| !line.starts_with("table, 3 rows");
    let shown: Vec<&str> = skeleton.iter().filter(rounds).map(String::as_str).collect();
    // Ours, the kernel's, the ideal, and four systems of the paper's; in the other panel two.
    assert_eq!(
        shown,
        [
            "h1 MAGE, Figures 3 and 9: throughput over far memory, random access, on a disk",
            "section summary",
            "h2 Paper and Farshore",
            "table, 5 rows",
            "section pagerank",
            "h2 PageRank, disk",
            "plot paper, 7 series",
            "table, 7 rows",
            "table, 19 rows",
            "section grid",
            "h2 XSBench-like grid, disk",
            "plot paper, 5 series",
            "table, 7 rows",
            "table, 19 rows",
            "section paper",
            "h2 What the paper has",
            "table, 7 rows",
            "section beforehand",
            "h2 Known beforehand",
            "section machine",
            "h2 Where it was measured",
            "table, 15 rows",
            "table, 7 rows",
            "section reading",
            "h2 How to read this",
        ]
    );
    for words in
        ["What agrees: ", "What does not: ", "computed: ", "href=\"raw.json\"", "href=\"../index.html\"", "ended by signal 9"]
    {
        assert_eq!(page.matches(words).count().min(1), 1, "{words}");
    }
    assert!(!page.contains("NaN") && !page.contains("Quick form") && !page.contains("because"));
}

#[test]
fn three_rounds_are_said_to_be_few() {
    let of = |rounds: usize| {
        let mut results = synthetic::paper();
        let targets = results.experiments.iter_mut().flat_map(|experiment| &mut experiment.targets);
        targets.for_each(|target| target.rounds.truncate(rounds));
        page(&results)
    };
    assert!(of(3).contains("one case of four") && !of(2).contains("one case of"));
}

#[test]
fn only_a_finished_run_replaces_results() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join(synthetic::PAPER);
    assert!(!index::is_kept(&folder));
    let mut results = synthetic::paper();
    write(&results, directory.path());
    assert!(index::is_kept(&folder));
    results.experiments.iter_mut().for_each(|experiment| experiment.paper.as_mut().unwrap().quick = true);
    write(&results, directory.path());
    assert!(!index::is_kept(&folder));
    // What cannot be read may be another version's results.
    fs::write(folder.join("raw.json"), "{").unwrap();
    assert!(index::is_kept(&folder));
}

#[test]
fn the_same_rows_make_the_same_page() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let page = write(&synthetic::paper(), first.path());
    let raw = first.path().join(synthetic::PAPER).join("raw.json");
    for wanted in [None, Some(synthetic::PAPER)] {
        let (read, figure) = index::read(&raw, wanted).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((figure.name, &read), (synthetic::PAPER, &synthetic::paper()));
        assert_eq!(write(&read, second.path()), page);
    }
}

#[test]
fn the_index_has_a_row_a_figure() {
    let directory = tempfile::tempdir().unwrap();
    write(&synthetic::paper(), directory.path());
    let index = fs::read_to_string(directory.path().join("index.html")).unwrap();
    assert_eq!(index.matches("<tr>").count(), 1 + paper::all().count());
    assert_eq!(index.matches("was not measured").count(), paper::all().count() - 1);
    assert!(index.contains(&format!("href=\"{}/index.html\"", synthetic::PAPER)), "{index}");
    let headline = &judge::all(&synthetic::paper(), figure())[0];
    assert!(index.contains(headline.verdict.words()), "{:?}", headline.verdict);
    // One that cannot be read is told in its row.
    fs::write(directory.path().join(synthetic::PAPER).join("raw.json"), "{").unwrap();
    assert!(index::index(directory.path()).contains("holds no results"));
}

#[test]
fn raw_rows_that_are_none_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("raw.json");
    let refused = |text: &str, wanted: Option<&str>, part: &str| {
        fs::write(&path, text).unwrap();
        let why = index::read(&path, wanted).map(|_| ()).expect_err(part);
        assert!(why.contains(part) && why.contains("raw.json") && why.lines().count() == 1, "{part}: {why}");
    };
    let line = |results: &Results| results.to_json_line().unwrap();
    let mut rows = synthetic::paper();
    refused("", None, "holds no results");
    refused("{\"schema\": 99}", None, "schema 99");
    refused(&line(&synthetic::results()), None, "no raw rows of a figure");
    refused(&line(&rows), Some("mage-10"), "not of mage-10");
    rows.experiments[1].paper.as_mut().unwrap().panel = "walk".into();
    refused(&line(&rows), None, "no panel \"walk\"");
    rows.experiments[1].paper.as_mut().unwrap().figure = "adios-7".into();
    refused(&line(&rows), None, "adios-7 and mage-9-disk");
    rows.experiments.iter_mut().for_each(|experiment| experiment.paper.as_mut().unwrap().figure = "mage-99".into());
    refused(&line(&rows), None, "mage-99");
    let why = index::read(&directory.path().join("nothing"), None).map(|_| ()).unwrap_err();
    assert!(why.contains("cannot read"), "{why}");
}

/// The rounds of the targets of this label.
fn rounds<'a>(results: &'a mut Results, label: &'a str) -> impl Iterator<Item = &'a mut Round> {
    let targets = results.experiments.iter_mut().flat_map(|experiment| &mut experiment.targets);
    targets.filter(move |target| target.label == label).flat_map(|target| &mut target.rounds)
}

#[test]
fn verdicts_follow_the_rows() {
    let verdict = |results: &Results| judge::all(results, figure())[0].verdict;
    // Each round of one is so many times that of the other.
    let times = |factor: f64| {
        let mut results = synthetic::paper();
        for label in ["farshore", "Linux swap", "native"] {
            for round in rounds(&mut results, label) {
                let outcome = round.outcome.as_mut().unwrap();
                outcome.seconds = 1.0;
                let speed = if label == "farshore" { 100_000.0 * factor } else { 100_000.0 };
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and small")]
                let operations = speed as u64;
                outcome.operations = operations + u64::from(round.number);
            }
        }
        results
    };
    for (factor, wanted) in
        [(3.2, Verdict::Size), (9.0, Verdict::Larger), (1.5, Verdict::Smaller), (0.5, Verdict::Opposed), (1.0, Verdict::Open)]
    {
        assert_eq!(verdict(&times(factor)), wanted, "{factor}");
    }
    let mut few = times(3.2);
    few.experiments.iter_mut().flat_map(|experiment| &mut experiment.targets).for_each(|target| target.rounds.truncate(2));
    assert_eq!(verdict(&few), Verdict::TooFew);
    // A round that did nothing is not dropped.
    let mut idle = times(3.2);
    rounds(&mut idle, "farshore").filter(|round| round.number == 2).for_each(|round| {
        round.outcome.as_mut().unwrap().operations = 0;
    });
    let judged = judge::all(&idle, figure());
    assert_eq!((judged[0].verdict, judged[0].words()), (Verdict::Open, "nothing is decided"));
    assert!(judge::sentences(&judged)[1].contains("have no number (farshore: 1 of "), "{:?}", judged[0].lost);
    let mut none = times(3.2);
    rounds(&mut none, "Linux swap").for_each(|round| round.wrong = vec!["bad".into()]);
    assert_eq!(verdict(&none), Verdict::Missing);
}

#[test]
fn hostile_names_are_text_and_odd_numbers_no_end() {
    let evil = "</style></svg><script>alert(1)</script><img src=x onerror=y>\"'&";
    let mut results = synthetic::paper();
    results.machine.cpu = evil.into();
    results.command = vec![evil.into()];
    results.skipped.insert(evil.into(), evil.into());
    for (index, experiment) in results.experiments.iter_mut().enumerate() {
        experiment.arguments = vec![evil.into()];
        let point = experiment.paper.as_mut().unwrap();
        point.variant = evil.into();
        point.shown = [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e300, 5.0][index % 6];
        for round in experiment.targets.iter_mut().flat_map(|target| &mut target.rounds) {
            round.outcome.as_mut().unwrap().seconds = [f64::NAN, 0.0, -1.0, 1e-300, 1.0][round.number as usize % 5];
        }
        experiment.targets[0].rounds[0].wrong = vec![evil.into()];
    }
    let page = page(&results);
    assert!(page.ends_with("</html>") && !page.contains("<script") && !page.contains("<img"));
    assert!(page.contains("&lt;script&gt;") && page.matches("</style>").count() == 1);
}

#[test]
fn no_rows_make_a_page_that_says_so() {
    let page = page(&Results { experiments: vec![], ..synthetic::paper() });
    assert!(page.contains("nothing was decided") && page.contains("No plot of") && !page.contains("<figure"));
}
