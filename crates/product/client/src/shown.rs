//! Sizes and times for reading.

/// `count` in so many nanoseconds, by second.
#[must_use]
pub fn per_second(count: u64, passed_ns: u64) -> u64 {
    let rate = u128::from(count) * 1_000_000_000 / u128::from(passed_ns.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// `value` with three significant digits or so, and its unit.
#[must_use]
pub fn bytes(value: u64) -> String {
    for (unit, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if value >> shift > 0 {
            let whole = value as f64 / (1_u64 << shift) as f64;
            return if whole < 100.0 { format!("{whole:.1} {unit}") } else { format!("{whole:.0} {unit}") };
        }
    }
    format!("{value} B")
}

/// Nanoseconds in the unit that suits them.
#[must_use]
pub fn duration(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ if seconds < 120 => format!("{:.1} s", ns as f64 / 1e9),
        _ if seconds < 7_200 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!([bytes(0), bytes(4096), bytes(268_435_456), bytes(1_610_612_736)], ["0 B", "4.0 KiB", "256 MiB", "1.5 GiB"]);
        assert_eq!(bytes(u64::MAX), "16777216 TiB");
        assert_eq!([duration(999), duration(8_700), duration(2_000_000)], ["999 ns", "8.7 us", "2.0 ms"]);
        assert_eq!([duration(90_000_000_000), duration(3_600_000_000_000)], ["90.0 s", "60 min 0 s"]);
        assert_eq!(duration(8_000_000_000_000), "2 h 13 min");
    }
}
