//! Files: `--json`, `--csv`, `--histogram`, `--plot`.

use std::fmt::Write;
use std::path::Path;

use farshore_load::rates::Goal;
use serde::Serialize;

use super::args::Open;
use super::result::{Run, Times, micros};
use super::svg::{self, Chart};

/// What a sweep found, as `--json` writes it.
#[derive(Clone, Debug, Serialize)]
pub struct Swept {
    /// The highest rate that met the target.
    pub best: Option<f64>,
    /// Why there is no higher one.
    pub limit: String,
    /// The percentile of the target, from 0 to 1.
    pub quantile: f64,
    /// The latency that it may have, in microseconds.
    pub most: f64,
    /// Each rate that was tried, in that order.
    pub steps: Vec<Step>,
}

/// A rate of a sweep.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// The latency at the percentile of the target, in microseconds; none if so many requests were not answered.
    pub at_target: Option<f64>,
    /// Whether that meets the target.
    pub met: bool,
    /// What was measured.
    pub run: Run,
}

/// Writes what was asked for, of a single run.
///
/// # Errors
/// If a file cannot be written.
pub fn of_run(args: &Open, run: &Run) -> Result<(), String> {
    to(args.json.as_deref(), || json(run))?;
    to(args.csv.as_deref(), || csv(run))?;
    to(args.histogram.as_deref(), || percentiles(&run.all))?;
    to(args.plot.as_deref(), || drawing(args, &curve(run)))
}

/// Writes what was asked for, of a sweep.
///
/// # Errors
/// If a file cannot be written.
pub fn of_sweep(args: &Open, goal: Goal, swept: &Swept) -> Result<(), String> {
    to(args.json.as_deref(), || json(swept))?;
    to(args.csv.as_deref(), || csv_of_sweep(swept))?;
    to(args.plot.as_deref(), || drawing(args, &over_rates(args, goal, swept)))
}

fn to(path: Option<&Path>, text: impl FnOnce() -> String) -> Result<(), String> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, text()).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

/// (share of all at or below, ns, count) of each latency.
#[expect(clippy::cast_precision_loss)] // Of a share.
fn shares(times: &Times) -> impl Iterator<Item = (f64, u64, u64)> {
    let mut seen = 0;
    times.histogram.iter().map(move |(ns, count)| {
        seen += count;
        (seen as f64 / times.answered as f64, *ns, *count)
    })
}

fn csv(run: &Run) -> String {
    let mut text = String::from("operation,percentile,latency_us,count\n");
    for times in run.operations.iter().chain([&run.all]) {
        for (share, ns, count) in shares(times) {
            let _ = writeln!(text, "{},{:.6},{:.3},{count}", times.name, share * 100.0, micros(ns));
        }
    }
    text
}

fn csv_of_sweep(swept: &Swept) -> String {
    let mut text = String::from(
        "rate,answers_per_second,sent,lost,unsent,p50_us,p90_us,p99_us,p999_us,max_us,target_us,met,generator_too_slow\n",
    );
    for Step { at_target, met, run } in &swept.steps {
        let Times { sent, lost, unsent, p50, p90, p99, p999, max, .. } = &run.all;
        let at_target = at_target.map_or_else(String::new, |us| format!("{us:.3}"));
        let (rate, slow) = (run.rate.unwrap_or(0.0), !run.generator_too_slow.is_empty());
        let _ = writeln!(
            text,
            "{rate:.1},{:.1},{sent},{lost},{unsent},{p50:.3},{p90:.3},{p99:.3},{p999:.3},{max:.3},{at_target},{met},{slow}",
            run.answers_per_second
        );
    }
    text
}

/// HdrHistogram's percentile format, which its plotter and others read.
#[expect(clippy::cast_precision_loss)] // Of a deviation.
fn percentiles(times: &Times) -> String {
    let mut text = format!("{:>12} {:>14} {:>10} {:>14}\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
    let (mut seen, mut squares) = (0, 0.0);
    for (share, ns, count) in shares(times) {
        seen += count;
        squares += (micros(ns) - times.mean).powi(2) * count as f64;
        let _ = write!(text, "{:12.3} {share:14.12} {seen:10}", micros(ns));
        let _ = if share < 1.0 { writeln!(text, " {:14.2}", 1.0 / (1.0 - share)) } else { writeln!(text) };
    }
    let deviation = (squares / times.answered.max(1) as f64).sqrt();
    let _ = writeln!(text, "#[Mean    = {:12.3}, StdDeviation   = {deviation:12.3}]", times.mean);
    let _ = writeln!(text, "#[Max     = {:12.3}, Total count    = {:12}]", times.max, times.answered);
    let _ = writeln!(text, "#[Buckets = {:12}, SubBuckets     = {:12}]", 32, 2048);
    text
}

fn drawing(args: &Open, chart: &Chart) -> String {
    let svg = svg::draw(chart);
    if args.plot.as_deref().and_then(Path::extension).is_some_and(|end| end == "html") {
        let title = format!("{} at {}", name(args), args.target);
        return format!("<!doctype html>\n<meta charset=\"utf-8\">\n<title>{title}</title>\n{svg}");
    }
    svg
}

fn name(args: &Open) -> String {
    clap::ValueEnum::to_possible_value(&args.service).map_or_else(String::new, |name| name.get_name().into())
}

/// The latency over percentiles, the far end drawn out.
fn curve(run: &Run) -> Chart {
    let points = |times: &Times| {
        // The last one has no place: all are at or below it.
        shares(times).filter(|(share, ..)| *share < 1.0).map(|(share, ns, _)| (1.0 / (1.0 - share), micros(ns))).collect()
    };
    let used = run.operations.iter().filter(|times| times.answered > 0);
    let ticks = ["0", "50", "90", "99", "99.9", "99.99", "99.999", "99.9999"];
    let asked = run.rate.map_or_else(|| format!("{} under way", run.closed.unwrap_or(0)), |rate| format!("{rate:.0} a second"));
    Chart {
        title: format!("{} at {}, {asked}", run.service, run.target),
        x: "percentile".into(),
        y: "latency, µs".into(),
        ticks: ticks.iter().filter_map(|tick| Some((100.0 / (100.0 - tick.parse::<f64>().ok()?), (*tick).into()))).collect(),
        lines: used.map(|times| (times.name.clone(), points(times))).collect(),
        rule: None,
    }
}

fn over_rates(args: &Open, goal: Goal, swept: &Swept) -> Chart {
    let mut steps: Vec<&Step> = swept.steps.iter().collect();
    steps.sort_by(|a, b| a.run.rate.unwrap_or(0.0).total_cmp(&b.run.rate.unwrap_or(0.0)));
    let line = |name: &str, of: &dyn Fn(&Step) -> f64| {
        (name.to_owned(), steps.iter().map(|step| (step.run.rate.unwrap_or(0.0), of(step))).collect())
    };
    let percentile = goal.percentile();
    let mut lines = vec![line("p50", &|step| step.run.all.p50), line("p99", &|step| step.run.all.p99)];
    if !["p50", "p99"].contains(&percentile.as_str()) {
        lines.push(line(&percentile, &|step| step.at_target.unwrap_or(f64::NAN)));
    }
    Chart {
        title: format!("{} at {}", name(args), args.target),
        x: "requests a second".into(),
        y: "latency, µs".into(),
        ticks: Vec::new(),
        lines,
        rule: Some((goal.most.as_secs_f64() * 1e6, format!("{percentile} wanted"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times() -> Times {
        let histogram = vec![(10_000, 90), (20_000, 9), (500_000, 1)];
        Times { name: "get".into(), answered: 100, mean: 15.8, max: 500.0, histogram, ..Times::default() }
    }

    #[test]
    fn the_percentile_format() {
        let text = percentiles(&times());
        let rows: Vec<Vec<&str>> = text.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["10.000", "0.900000000000", "90", "10.00"]);
        assert_eq!(rows[1], ["20.000", "0.990000000000", "99", "100.00"]);
        assert_eq!(rows[2], ["500.000", "1.000000000000", "100"]);
        assert!(text.contains("#[Mean    =       15.800") && text.contains("Total count    =          100]"), "{text}");
    }

    #[test]
    fn lines_of_the_csv() {
        let run = Run { operations: vec![times()], all: Times { name: "all".into(), ..times() }, ..Run::default() };
        let text = csv(&run);
        assert_eq!(text.lines().count(), 7);
        assert_eq!(text.lines().nth(2), Some("get,99.000000,20.000,9"));
        let chart = curve(&run);
        assert_eq!(chart.lines[0].1.len(), 2);
    }
}
