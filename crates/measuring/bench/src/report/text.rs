//! Numbers and words as a reader wants them: three digits that count, and a unit.

/// Keeps a number and its unit on one line.
const GAP: char = '\u{a0}';

/// Three digits that count: `0.0123`, `4.56`, `78.9`, `1234`.
pub fn digits(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    if !value.is_finite() {
        return "–".into();
    }
    // The exponent after rounding to three digits, so that 9.996 is 10.0 and not 10.00.
    let text = format!("{value:.2e}");
    let exponent = text.split_once('e').and_then(|(_, exponent)| exponent.parse::<i32>().ok()).unwrap_or(0);
    let decimals = usize::try_from((2 - exponent).clamp(0, 12)).unwrap_or(0);
    format!("{value:.decimals$}")
}

/// The same with a factor of 1000 as a letter: `12.3 k`, `4.56 M`.
pub fn metric(value: f64) -> String {
    const FACTORS: [(f64, &str); 4] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    // 999.6 is 1.00 k, as digits() would make 1000 of it.
    match FACTORS.iter().find(|(factor, _)| value.abs() >= factor * 0.9995) {
        Some((factor, letter)) => format!("{}{GAP}{letter}", digits(value / factor)),
        None => digits(value),
    }
}

/// A time: `3.90 µs`, `12.0 s`.
pub fn duration(seconds: f64) -> String {
    const UNITS: [(f64, &str); 3] = [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs")];
    if seconds == 0.0 {
        return format!("0{GAP}s");
    }
    match UNITS.iter().find(|(unit, _)| seconds.abs() >= unit * 0.9995) {
        Some((unit, name)) => format!("{}{GAP}{name}", digits(seconds / unit)),
        None => format!("{}{GAP}ns", digits(seconds * 1e9)),
    }
}

/// A time in ns.
pub fn nanoseconds(ns: u64) -> String {
    duration(float(ns) / 1e9)
}

/// A value of a figure with this unit.
pub fn quantity(value: f64, unit: &str) -> String {
    match unit {
        "s" => duration(value),
        "ns" => duration(value / 1e9),
        "" => metric(value),
        unit => {
            let number = metric(value);
            // `12.3 k/s`, but `512 MiB/s`.
            if unit.starts_with('/') || unit == "%" { format!("{number}{unit}") } else { format!("{number}{GAP}{unit}") }
        }
    }
}

/// Bytes, by powers of 1024.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) if bytes.is_multiple_of(*unit) => format!("{}{GAP}{name}", bytes / unit),
        Some((unit, name)) => format!("{}{GAP}{name}", digits(float(bytes) / float(*unit))),
        None => format!("{bytes}{GAP}B"),
    }
}

/// For a label of an axis: without the zeros that say nothing, `12.0 s` → `12 s`.
pub fn short(text: &str) -> String {
    let (number, unit) =
        text.split_at(text.find(|letter: char| !letter.is_ascii_digit() && letter != '.' && letter != '-').unwrap_or(text.len()));
    if !number.contains('.') {
        return text.into();
    }
    format!("{}{unit}", number.trim_end_matches('0').trim_end_matches('.'))
}

/// At most `most` characters, the end cut off with a mark.
pub fn cut(text: &str, most: usize) -> String {
    // Line ends and other control characters have no place in a label.
    let clean: String = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    if clean.chars().count() <= most {
        return clean;
    }
    let mut kept: String = clean.chars().take(most.saturating_sub(1)).collect();
    kept.push('…');
    kept
}

/// A command line as a shell would read it again.
pub fn command(words: &[String]) -> String {
    let plain = |word: &str| {
        !word.is_empty() && word.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_=+,./:@%^".contains(letter))
    };
    let quoted = words.iter().map(|word| if plain(word) { word.clone() } else { format!("'{}'", word.replace('\'', r"'\''")) });
    quoted.collect::<Vec<_>>().join(" ")
}

/// A count as a number to calculate with.
#[expect(clippy::cast_precision_loss, reason = "counts of pages, bytes and ns: what is beyond 2^53 is not shown to that digit")]
pub fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        text.replace(GAP, " ")
    }

    #[test]
    fn three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (9.996, "10.0"),
            (0.012_34, "0.0123"),
            (123.4, "123"),
            (-4.5, "-4.50"),
            (f64::NAN, "–"),
            (f64::INFINITY, "–"),
        ] {
            assert_eq!(digits(value), text);
        }
        for (value, text) in [(999.0, "999"), (999.7, "1.00 k"), (123_456.0, "123 k"), (7.5e6, "7.50 M"), (3e15, "3000 T")] {
            assert_eq!(plain(&metric(value)), text);
        }
    }

    #[test]
    fn units() {
        for (seconds, text) in [(3.9e-6, "3.90 µs"), (0.0, "0 s"), (999.9e-6, "1.00 ms"), (2e-9, "2.00 ns"), (75.0, "75.0 s")] {
            assert_eq!(plain(&duration(seconds)), text);
        }
        assert_eq!(plain(&quantity(12_345.0, "/s")), "12.3 k/s");
        assert_eq!(plain(&quantity(12_345.0, "ns")), "12.3 µs");
        assert_eq!(plain(&quantity(512.0, "MiB/s")), "512 MiB/s");
        assert_eq!(plain(&bytes(3 << 28)), "768 MiB");
        assert_eq!(plain(&bytes(3 << 29)), "1.50 GiB");
        assert_eq!(plain(&bytes(17)), "17 B");
        for (text, kept) in [("12.0 s", "12 s"), ("100 k", "100 k"), ("0.500 M", "0.5 M"), ("0", "0")] {
            assert_eq!(short(text), kept);
        }
    }

    #[test]
    fn words() {
        let line = ["farshore", "bench", "it's", "", "--size=512M", "a b"].map(String::from);
        assert_eq!(command(&line), r"farshore bench 'it'\''s' '' --size=512M 'a b'");
        assert_eq!(cut("näher\nbei", 6), "näher…");
        assert_eq!(cut("a\tb", 6), "a b");
    }
}
