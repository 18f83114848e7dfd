//! What `farshore-load open --json` tells, as the outcome of a run.

use farshore_load::outcome::{Histogram, Outcome};
use farshore_load::rates::Limit;
use farshore_uthread::record::Breakdown;
use serde::Deserialize;

use crate::paper::SHARES;
use crate::result::{Requests, RequestsAround};

/// How long the generator waits for an answer, in ns. In the percentiles a request without an answer took that long: they must not get better by
/// answers that never came.
pub const PATIENCE_NS: u64 = 1_000_000_000;

/// The operation whose latencies count; most services have no other.
const GET: &str = "get";

/// What came of a search in which even the lowest rate was too high. The generator's status tells it as a failure; here it is a result.
pub const NONE: &str = "no rate met the target: the server misses it at the lowest one";

/// What is read of it.
#[derive(Deserialize)]
struct Told {
    service: String,
    answers_per_second: f64,
    all: Times,
    operations: Vec<Times>,
    generator_too_slow: String,
    ended_early: bool,
    wrong: Vec<String>,
    /// Of `vsearch` alone.
    quality: Option<Quality>,
}

/// What of the nearest was found.
#[derive(Deserialize)]
struct Quality {
    nearest: u64,
    recall: f64,
    of: u64,
}

#[derive(Deserialize)]
struct Times {
    name: String,
    answered: u64,
    lost: u64,
    unsent: u64,
    misses: u64,
    histogram: Vec<(u64, u64)>,
}

/// What is read of a search for the highest rate.
#[derive(Deserialize)]
struct Searched {
    best: Option<f64>,
    limit: String,
    steps: Vec<Step>,
}

/// A rate that was tried.
#[derive(Deserialize)]
struct Step {
    met: bool,
    run: Told,
}

/// Reads the result of one run.
///
/// # Errors
/// It is not what the generator writes, or nothing was answered: one line.
pub fn outcome(json: &str) -> Result<Outcome, String> {
    let outcome = outcome_of(read(json)?);
    if outcome.operations == 0 && outcome.wrong.is_empty() {
        return Err("no request was answered".into());
    }
    Ok(outcome)
}

/// Reads the result of a search: latencies are those at the best rate, all else is of all rates together.
///
/// # Errors
/// It is not what the generator writes: one line.
pub fn searched(json: &str) -> Result<Outcome, String> {
    let Searched { best, limit, steps } = read(json)?;
    let mut all = Outcome { best_rate: best, ..Outcome::default() };
    for Step { met, run } in steps {
        let step = outcome_of(run);
        all.operations += step.operations;
        all.seconds += step.seconds;
        all.wrong.extend(step.wrong);
        all.workload = step.workload;
        all.unit = step.unit;
        // Rates that met the target came one higher than the other. What is lost above it is what ended the search.
        if met {
            (all.latency, all.lost, all.unsent) = (step.latency, step.lost, step.unsent);
        }
    }
    all.verified = format!("{} answers", all.operations);
    let generator = limit == Limit::Generator.text();
    all.rate_limit = match best {
        None if limit == Limit::Server.text() => NONE.into(),
        None if generator => "no rate met the target: the generator is too slow at the lowest one already".into(),
        None => format!("no rate met the target: {limit}"),
        Some(_) => limit,
    };
    if generator {
        all.generator_late.clone_from(&all.rate_limit);
    }
    Ok(all)
}

/// Reads what `farshore-serve --breakdown` has written: of the requests that came in the last `seconds`, those around some percentiles.
///
/// # Errors
/// It is something else, or no request was recorded: one line.
pub fn requests(text: &str, seconds: f64) -> Result<Requests, String> {
    let breakdown = Breakdown::from_csv(text).ok_or("the server's records cannot be read")?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some seconds")]
    let breakdown = breakdown.last((seconds * 1e9) as u64);
    let around = |share: f64| {
        let around = breakdown.around(share)?;
        let means = around.means.into_iter().map(|(name, mean)| (name.to_string(), mean)).collect();
        Some(RequestsAround { share, requests: around.requests, means })
    };
    let around = SHARES.iter().map(|share| around(*share)).collect::<Option<_>>().ok_or("the server has recorded no request")?;
    Ok(Requests { recorded: breakdown.records.len() as u64, dropped: breakdown.dropped, around })
}

fn read<T: for<'a> Deserialize<'a>>(json: &str) -> Result<T, String> {
    serde_json::from_str(json).map_err(|error| format!("the generator's result cannot be read ({error})"))
}

fn outcome_of(told: Told) -> Outcome {
    // What reads a hundred values takes its time: it is the others' latency that tells how long they wait, for it too.
    let latency = latency(told.operations.iter().find(|operation| operation.name == GET).unwrap_or(&told.all));
    let Times { answered, lost, unsent, misses, .. } = told.all;
    let recall = |Quality { nearest, recall, of }| format!("; recall@{nearest} {recall:.4} of {of} queries");
    let recall = told.quality.map_or_else(String::new, recall);
    let mut wrong = told.wrong;
    if misses > 0 {
        wrong.push(format!("{misses} keys were not there: the server lost them"));
    }
    if told.ended_early {
        wrong.push("the generator ended early".into());
    }
    Outcome {
        workload: format!("uthread {}", told.service),
        unit: "request".into(),
        operations: answered,
        // Until the last answer.
        seconds: if told.answers_per_second > 0.0 { answered as f64 / told.answers_per_second } else { 0.0 },
        latency,
        verified: format!("{answered} answers{recall}"),
        wrong,
        generator_late: told.generator_too_slow,
        lost,
        unsent,
        ..Outcome::default()
    }
}

fn latency(times: &Times) -> Histogram {
    let mut latency = Histogram { counts: times.histogram.clone() };
    latency.counts.retain(|(_, count)| *count > 0);
    let without = times.lost + times.unsent;
    if without > 0 {
        latency.add(&Histogram { counts: vec![(PATIENCE_NS, without)] });
    }
    latency
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a generator wrote, shortened.
    const SAMPLE: &str = include_str!("sample.json");

    #[test]
    fn a_recorded_result_is_read() {
        let outcome = outcome(SAMPLE).unwrap();
        assert_eq!(outcome.verified, "995 answers");
        assert_eq!((outcome.workload.as_str(), outcome.unit.as_str()), ("uthread array", "request"));
        assert_eq!((outcome.operations, outcome.lost, outcome.unsent), (995, 3, 2));
        assert!((outcome.operations as f64 / outcome.seconds - 2000.5).abs() < 1e-6);
        assert_eq!(outcome.latency.total(), 1000, "those without an answer count");
        assert_eq!(outcome.latency.quantile(0.5), Some(21_000));
        assert_eq!(outcome.latency.quantile(0.999), Some(PATIENCE_NS));
        assert!(outcome.wrong.is_empty() && outcome.generator_late.contains("2.0 %"));
    }

    #[test]
    fn recall_is_told() {
        let quality =
            r#""quality": { "nearest": 10, "recall": 0.96251, "of": 80, "queries": 900, "answers": "0f" }, "wrong": []"#;
        let outcome = outcome(&SAMPLE.replace("\"wrong\": []", quality)).unwrap();
        assert_eq!(outcome.verified, "995 answers; recall@10 0.9625 of 80 queries");
    }

    #[test]
    fn latencies_are_those_of_gets() {
        // One more answer, to another operation, that took a second.
        let told = SAMPLE.replacen("\"answered\": 995", "\"answered\": 996", 1).replacen("151000,", "1000000000,", 1);
        let outcome = outcome(&told).unwrap();
        assert_eq!((outcome.operations, outcome.latency.total(), outcome.latency.quantile(0.995)), (996, 1000, Some(151_000)));
    }

    #[test]
    fn what_was_wrong_is_kept() {
        let told = SAMPLE.replace("\"wrong\": []", "\"wrong\": [\"wrong values: 1\"]").replace("\"misses\": 0", "\"misses\": 4");
        let wrong = outcome(&told).unwrap().wrong;
        assert_eq!(wrong.len(), 2);
        assert!(wrong[0].contains("wrong values") && wrong[1].contains('4'), "{wrong:?}");
        assert!(
            outcome(&SAMPLE.replace("\"ended_early\": false", "\"ended_early\": true"))
                .is_ok_and(|outcome| !outcome.wrong.is_empty())
        );
    }

    /// A search whose steps are the sample, that met the target or did not.
    fn search(best: &str, limit: Limit, met: &[bool]) -> String {
        let step = |met: &bool| format!("{{\"at_target\": 1.0, \"met\": {met}, \"run\": {SAMPLE}}}");
        let steps: Vec<String> = met.iter().map(step).collect();
        format!("{{\"best\": {best}, \"limit\": \"{}\", \"steps\": [{}]}}", limit.text(), steps.join(","))
    }

    #[test]
    fn the_highest_rate_of_a_search_is_read() {
        let found = searched(&search("1500.5", Limit::Server, &[true, true, false])).unwrap();
        assert_eq!((found.best_rate, found.operations, found.latency.total(), found.lost), (Some(1500.5), 3 * 995, 1000, 3));
        assert!(found.wrong.is_empty() && found.generator_late.is_empty() && found.rate_limit.contains("above"));
        let none = searched(&search("null", Limit::Server, &[false])).unwrap();
        assert!(none.best_rate.is_none() && none.wrong.is_empty() && none.latency.total() == 0, "{none:?}");
        assert_eq!(none.rate_limit, NONE);
        assert!(searched(&search("null", Limit::Ended, &[])).is_ok_and(|none| none.rate_limit.contains("ended early")));
        let slow = searched(&search("null", Limit::Generator, &[false])).unwrap();
        assert!(slow.generator_late == slow.rate_limit && slow.rate_limit.starts_with("no rate"), "{slow:?}");
        assert!(searched(&search("5", Limit::Generator, &[true])).is_ok_and(|found| found.generator_late.contains("too slow")));
        let wrong = search("5", Limit::Ended, &[true]).replace("\"wrong\": []", "\"wrong\": [\"damaged values: 1\"]");
        assert!(searched(&wrong).is_ok_and(|found| found.wrong == ["damaged values: 1"]));
        assert!(searched(SAMPLE).is_err());
    }

    #[test]
    fn records_of_the_last_seconds_are_read() {
        use farshore_uthread::record::Record;
        let record = |number: u64| Record { arrived: number * 1_000_000, total: number, run: number, ..Record::default() };
        let text = Breakdown { records: (1..=1000).map(record).collect(), dropped: 7 }.to_csv();
        let told = requests(&text, 0.5).unwrap();
        assert_eq!((told.recorded, told.dropped), (501, 0));
        let means: Vec<f64> = told.around.iter().map(|around| around.means["total_ns"]).collect();
        assert!((means[1] - 750.0).abs() < 2.0 && (means[3] - 1000.0).abs() < 1.0, "{means:?}");
        assert_eq!(told.around.iter().map(|around| around.share).collect::<Vec<_>>(), SHARES);
        assert_eq!(requests(&text, 5.0).unwrap().dropped, 7);
        for wrong in [String::new(), "x".into(), Breakdown::default().to_csv()] {
            assert!(requests(&wrong, 1.0).is_err_and(|why| why.lines().count() == 1), "{wrong}");
        }
    }

    #[test]
    fn what_is_no_result_is_refused() {
        for text in
            ["", "{}", "[]", &SAMPLE.replace("answered", "answers"), &SAMPLE.replace("\"answered\": 995", "\"answered\": 0")]
        {
            assert!(outcome(text).is_err_and(|why| why.lines().count() == 1));
        }
    }
}
