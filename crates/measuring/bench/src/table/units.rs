//! Numbers with their units, as the report's page has them, with plain spaces for the terminal.

use crate::report::text;
use crate::result::{Axis, Experiment};

/// The page keeps numbers and units on one line by spaces that do not break; those would be copied out of a terminal.
fn plain(text: &str) -> String {
    text.replace('\u{a0}', " ")
}

/// Three digits that count.
pub fn digits(value: f64) -> String {
    text::digits(value)
}

/// The same with a factor of 1000 as a letter: `12.3 k`.
pub fn metric(value: f64) -> String {
    // Counts below 1000 are whole.
    if value < 1000.0 && value.fract() == 0.0 { format!("{value}") } else { plain(&text::metric(value)) }
}

/// A time of so many ns: `3.90 µs`.
pub fn nanoseconds(ns: u64) -> String {
    plain(&text::nanoseconds(ns))
}

/// Bytes by powers of 1024: `512 MiB`.
pub fn bytes(bytes: u64) -> String {
    plain(&text::bytes(bytes))
}

/// A value of a figure: `1.23 M/s`, `12.0 s`, `3.90 µs`.
pub fn quantity(value: f64, unit: &str) -> String {
    plain(&text::quantity(value, unit))
}

/// A range of such values, with the unit once if it is the same: `1.20–1.25 M/s`, `900 µs–1.20 ms`.
pub fn quantity_range(min: f64, max: f64, unit: &str) -> String {
    let (min, max) = (quantity(min, unit), quantity(max, unit));
    let end = |text: &str| text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, min_unit) = min.split_at(end(&min));
    if min_unit == max.split_at(end(&max)).1 { format!("{number}–{max}") } else { format!("{min}–{max}") }
}

/// A percentage.
pub fn percent(value: f64) -> String {
    format!("{value:.0} %")
}

/// Digits behind the point that a ratio needs for two or three that count: at most four.
pub fn decimals(ratio: f64) -> usize {
    [100.0, 10.0, 0.1, 0.01].iter().position(|least| ratio >= *least).unwrap_or(4)
}

/// Where an experiment is on its sweep: `40 %`, `8`; empty if it is on none.
pub fn point(experiment: &Experiment) -> String {
    match &experiment.sweep {
        Some(point) if point.axis == Axis::Memory => format!("{} %", point.value),
        Some(point) => point.value.to_string(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        assert_eq!(quantity_range(1.2e6, 1.25e6, "/s"), "1.20–1.25 M/s");
        assert_eq!(quantity_range(900e3, 1.2e6, "ns"), "900 µs–1.20 ms");
        assert_eq!(quantity_range(1.0, 2.0, "s"), "1.00–2.00 s");
    }

    #[test]
    fn digits_of_ratios() {
        let shown = |ratio: f64| format!("{ratio:.*}", decimals(ratio));
        let shown: Vec<String> = [123.4, 12.34, 1.234, 0.1234, 0.012_34, 0.000_123].into_iter().map(shown).collect();
        assert_eq!(shown, ["123", "12.3", "1.23", "0.12", "0.012", "0.0001"]);
    }

    #[test]
    fn counts_are_whole() {
        assert_eq!((metric(7.0), metric(0.0), metric(1234.0)), ("7".into(), "0".into(), "1.23 k".into()));
        assert_eq!(nanoseconds(3900), "3.90 µs");
    }
}
