//! What the time of requests went to, drawn as in Adios' figures 2(c) and 7(c): a bar for each system at each of four percentiles, its parts one behind the other.

use maud::{Markup, html};

use super::{REQUEST_PARTS, SHARES, Value, series};
use crate::report::axis::Axis;
use crate::report::chart::{Chart, Layer};
use crate::report::figures::Figure;
use crate::report::palette::Look;
use crate::report::text;
use crate::result::{Experiment, TargetResult};
use crate::statistics;

/// The two drawings, as in the paper: short times would not be seen beside long ones.
const DRAWINGS: [(&str, [f64; 2]); 2] = [("P10 and P50", [SHARES[0], SHARES[1]]), ("P99 and P99.9", [SHARES[2], SHARES[3]])];
/// Height of a bar, and what the axis takes, in the units of the drawing.
const ROW: u32 = 74;
const FRAME: u32 = 148;

/// A bar: the medians over the good rounds.
#[derive(Clone, PartialEq, Debug)]
struct Bar {
    name: String,
    /// As [`REQUEST_PARTS`] has them, in ns.
    parts: Vec<f64>,
    total: f64,
    pages: f64,
    requests: f64,
}

impl Bar {
    /// `None`: no good round has it.
    fn of(experiment: &Experiment, target: &TargetResult, share: f64) -> Option<Bar> {
        let good = || target.rounds.iter().filter(|round| round.wrong.is_empty());
        // A part that is 0 counts: rounds are not left out for that.
        let median = |part: &'static str| {
            statistics::median(&good().filter_map(|round| series::request_part(round, part, share)).collect::<Vec<f64>>())
        };
        let parts: Option<Vec<f64>> = REQUEST_PARTS.iter().map(|(part, _)| median(part)).collect();
        Some(Bar {
            name: format!("{}, {}", percentile(share), series::label(experiment, target)),
            parts: parts?,
            total: median("all")?,
            pages: median("pages")?,
            requests: median("requests")?,
        })
    }

    fn all(experiment: &Experiment, shares: &[f64]) -> Vec<Bar> {
        let of =
            |share: &f64| experiment.targets.iter().filter_map(|target| Bar::of(experiment, target, *share)).collect::<Vec<_>>();
        shares.iter().flat_map(of).collect()
    }
}

/// `P99.9`.
fn percentile(share: f64) -> String {
    format!("P{}", (share * 1000.0).round() / 10.0)
}

/// Both drawings of each experiment.
pub fn figures(kind: &'static str, title: &str, experiments: &[&Experiment]) -> Vec<Result<Figure, String>> {
    if experiments.is_empty() {
        return vec![Err("it was not measured".into())];
    }
    let all = experiments.iter().flat_map(|experiment| {
        DRAWINGS.iter().map(move |(name, shares)| figure(kind, &format!("{title}, {name}"), &Bar::all(experiment, shares)))
    });
    all.collect()
}

fn figure(kind: &'static str, title: &str, bars: &[Bar]) -> Result<Figure, String> {
    let longest = bars.iter().map(|bar| bar.parts.iter().sum::<f64>()).fold(0.0, f64::max);
    if longest <= 0.0 {
        return Err("no good round has recorded what the time of requests went to".into());
    }
    let x = Axis::from_zero("time of a request", &[longest], |ns| text::quantity(ns, "ns")).ok_or("there is no time to show")?;
    let names: Vec<String> = bars.iter().map(|bar| bar.name.clone()).collect();
    let (mut legend, mut layers) = (Vec::new(), Vec::new());
    for (index, (part, name)) in REQUEST_PARTS.iter().enumerate() {
        let mut spans = Vec::new();
        for (row, bar) in bars.iter().rev().enumerate() {
            let from: f64 = bar.parts[..index].iter().sum();
            if bar.parts[index] > 0.0 {
                spans.push((text::float(row as u64), from, from + bar.parts[index]));
            }
        }
        if !spans.is_empty() {
            let slashed = *part == "spun";
            let look = Look::series(index);
            legend.push(((*name).to_string(), look));
            layers.push((look, Layer::Parts { spans, slashed }));
        }
    }
    let height = FRAME + ROW * u32::try_from(bars.len()).unwrap_or(1);
    let chart = Chart { x, y: Axis::rows(&names), legend, layers, rules: vec![], height };
    let caption = "From when the kernel had a request until its reply was sent. Means of the requests around each percentile, and of those the medians over the rounds. Slashes: the worker spun for another request's page meanwhile. Shorter is better.";
    Figure::new(kind, title.into(), caption.into(), &chart)
}

/// The same in numbers.
pub fn table(experiments: &[&Experiment]) -> Markup {
    let bars: Vec<Bar> = experiments.iter().flat_map(|experiment| Bar::all(experiment, &SHARES)).collect();
    html! {
        @if !bars.is_empty() {
            div.scroll {
                table {
                    caption { (Value::RequestParts.label()) ", medians over the rounds" }
                    thead {
                        tr {
                            th scope="col" { "around" }
                            th.number scope="col" { "all" }
                            @for (_, name) in REQUEST_PARTS { th.number scope="col" { (name) } }
                            th.number scope="col" { "waits for pages" }
                            th.number scope="col" { "requests" }
                        }
                    }
                    tbody {
                        @for bar in &bars {
                            tr {
                                th scope="row" { (bar.name) }
                                td.number.main { (text::quantity(bar.total, "ns")) }
                                @for ns in &bar.parts { td.number { (text::quantity(*ns, "ns")) } }
                                td.number { (text::digits(bar.pages)) }
                                td.number { (text::metric(bar.requests)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Requests, RequestsAround, Round};

    fn round(number: u32, socket: f64, spun: f64) -> Round {
        let of = |share: f64| {
            let scale = if share > 0.9 { 100.0 } else { 1.0 };
            let means = [
                ("socket_ns", socket),
                ("queue_ns", 0.0),
                ("run_ns", 20.0),
                ("page_ns", 50.0),
                ("spun_ns", spun),
                ("reply_ns", 5.0),
            ];
            let mut means: std::collections::BTreeMap<String, f64> =
                means.into_iter().map(|(name, ns)| (name.to_string(), ns * scale)).collect();
            means.insert("total_ns".into(), (socket + 75.0) * scale);
            means.insert("pages".into(), 1.0);
            RequestsAround { share, requests: 10, means }
        };
        let requests = Requests { recorded: 100, dropped: 0, around: SHARES.map(of).to_vec() };
        Round { number, requests: Some(requests), ..Round::default() }
    }

    fn experiment() -> Experiment {
        let busy = vec![round(1, 30.0, 10.0), round(2, 40.0, 20.0), round(3, 1000.0, 600.0)];
        let bad = Round { wrong: vec!["bad".into()], ..round(3, 9.0, 0.0) };
        let target = |label: &str, rounds| TargetResult { label: label.into(), rounds, ..TargetResult::default() };
        let targets = vec![
            target("busy:1", busy),
            target("yield:1", vec![round(1, 3.0, 0.0), bad]),
            target("none", vec![Round::default()]),
        ];
        Experiment { targets, ..Experiment::default() }
    }

    #[test]
    fn a_bar_has_the_medians_of_the_good_rounds() {
        let bars = Bar::all(&experiment(), &SHARES);
        let names: Vec<&str> = bars.iter().map(|bar| bar.name.as_str()).collect();
        assert_eq!(names[..4], ["P10, busy:1", "P10, yield:1", "P50, busy:1", "P50, yield:1"]);
        assert_eq!((names.len(), names[7]), (8, "P99.9, yield:1"));
        // Spun, other waits for a worker, run, page, other waits, reply.
        assert_eq!(bars[0].parts, [20.0, 20.0, 20.0, 50.0, 0.0, 5.0]);
        assert_eq!(bars[1].parts, [0.0, 3.0, 20.0, 50.0, 0.0, 5.0]);
        assert_eq!((bars[0].total, bars[0].pages, bars[0].requests, bars[6].total), (115.0, 1.0, 10.0, 11_500.0));
    }

    #[test]
    fn bars_are_drawn_in_two_drawings_and_told_in_one_table() {
        let experiment = experiment();
        let drawn = figures("paper", "Parts", &[&experiment]);
        let [short, long] = &drawn[..] else { panic!("{drawn:?}") };
        let (short, long) = (short.as_ref().unwrap(), long.as_ref().unwrap());
        assert_eq!((short.title.as_str(), long.title.as_str()), ("Parts, P10 and P50", "Parts, P99 and P99.9"));
        let parts: Vec<&str> = short.series.iter().map(|(name, _)| name.as_str()).collect();
        assert!(parts[0].contains("spins") && parts.len() == 5, "what is nowhere has no place: {parts:?}");
        assert!(short.svg.contains("P50, yield:1") && long.svg.contains("P99.9, busy:1"));
        let table = table(&[&experiment]).into_string();
        assert!(table.contains("P99.9, busy:1") && table.contains("11.5"), "{table}");
        assert_eq!(figures("paper", "Parts", &[]).len(), 1);
        let none = Experiment { targets: vec![], ..experiment };
        assert!(figures("paper", "Parts", &[&none]).iter().all(Result::is_err));
    }
}
