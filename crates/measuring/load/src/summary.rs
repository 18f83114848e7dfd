//! The outcome for a reader, in a few lines.

use std::io::{self, Write};

use farshore_load::outcome::{Outcome, Phase};

/// Prints it on standard output.
///
/// # Errors
/// As standard output gives them.
pub fn print(outcome: &Outcome) -> io::Result<()> {
    io::stdout().lock().write_all(text(outcome).as_bytes())
}

// Rates and shares for a reader: digits beyond 2^53 are of no interest.
#[expect(clippy::cast_precision_loss)]
fn text(outcome: &Outcome) -> String {
    let mut lines = vec![rate(outcome)];
    let latency = &outcome.latency;
    if let Some(max) = latency.max() {
        let at = |share| latency.quantile(share).map_or_else(String::new, |ns| duration(ns as f64));
        let [p50, p90, p99, p999] = [0.5, 0.9, 0.99, 0.999].map(at);
        lines.push(format!("  latency   p50 {p50}, p90 {p90}, p99 {p99}, p99.9 {p999}, max {}", duration(max as f64)));
    }
    lines.extend(outcome.phases.iter().map(phase));
    let marks = outcome.timeline.marks.iter();
    lines.extend(marks.map(|(second, what)| format!("  at {second:.1} s  {what}")));
    if !outcome.checksum.is_empty() {
        lines.push(format!("  checksum  {}", outcome.checksum));
    }
    if !outcome.generator_late.is_empty() {
        lines.push(format!("  late      {}", outcome.generator_late));
    }
    if outcome.wrong.is_empty() {
        lines.push(format!("  verified  {}", outcome.verified));
    } else {
        lines.push("  WRONG DATA".into());
    }
    lines.join("\n") + "\n"
}

#[expect(clippy::cast_precision_loss)]
fn rate(outcome: &Outcome) -> String {
    let Outcome { workload, unit, operations, seconds, bytes_per_operation, .. } = outcome;
    let rate = if *seconds > 0.0 { *operations as f64 / seconds } else { 0.0 };
    let bytes = match bytes_per_operation {
        0 => String::new(),
        bytes => format!(", {:.1} MiB/s", rate * *bytes as f64 / f64::from(1 << 20)),
    };
    format!("{workload}: {rate:.0} {unit}s/s ({operations} in {seconds:.2} s{bytes})")
}

fn phase(phase: &Phase) -> String {
    let Phase { name, seconds, user_seconds, system_seconds, minor_faults, major_faults, .. } = phase;
    format!(
        "  {name:9} {seconds:.2} s, CPU {user_seconds:.2} + {system_seconds:.2} s, faults {minor_faults} minor {major_faults} major"
    )
}

/// ns with a unit of its size.
fn duration(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.3} us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.3} ms", ns / 1e6),
        ns => format!("{:.3} s", ns / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_load::outcome::Histogram;

    #[test]
    fn tells_what_a_reader_wants() {
        let outcome = Outcome {
            workload: "random".into(),
            unit: "update".into(),
            operations: 1000,
            seconds: 2.0,
            bytes_per_operation: 4096,
            latency: Histogram { counts: vec![(150, 900), (2500, 99), (7_000_000, 1)] },
            phases: vec![Phase { name: "fill".into(), seconds: 1.5, ..Default::default() }],
            verified: "the sum of 5 words".into(),
            ..Default::default()
        };
        let text = text(&outcome);
        for part in
            ["random: 500 updates/s", "2.0 MiB/s", "p50 150 ns", "p99 2.500 us", "max 7.000 ms", "fill", "the sum of 5 words"]
        {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }

    #[test]
    fn wrong_data_are_not_called_verified() {
        let text = text(&Outcome { wrong: vec!["a word".into()], verified: "all".into(), ..Default::default() });
        assert!(text.contains("WRONG DATA") && !text.contains("verified"), "{text}");
    }
}
