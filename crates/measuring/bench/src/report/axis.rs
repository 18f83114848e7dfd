//! Axes: from values to a place between 0 and 1, with ticks where a reader expects them.
//!
//! plotters gets plain linear axes of already scaled values. Whatever the data are (none, one value, zeros on a logarithmic
//! scale, infinities), an axis has a range that is finite and not empty, or there is none at all.

use super::text;

/// How values are laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// By powers of two.
    Log2,
    /// By powers of ten.
    Log10,
    /// Shares, by the number of nines: 0.9 is 1, 0.99 is 2.
    Nines,
}

impl Scale {
    /// Where a value lies; `None` if it has no place: no number, no logarithm, or so large or small that nothing measures it and
    /// calculating with it would leave what numbers can hold.
    pub fn place(self, value: f64) -> Option<f64> {
        const LARGEST: f64 = 1e100;
        let logarithmic = matches!(self, Scale::Log2 | Scale::Log10);
        if value.abs() > LARGEST || logarithmic && value < 1.0 / LARGEST {
            return None;
        }
        let place = match self {
            Scale::Linear => value,
            Scale::Log2 => value.log2(),
            Scale::Log10 => value.log10(),
            Scale::Nines => -(1.0 - value).log10(),
        };
        place.is_finite().then_some(place)
    }
}

/// An axis of a plot.
#[derive(Clone, PartialEq, Debug)]
pub struct Axis {
    /// What it shows, with the unit.
    pub label: String,
    /// How.
    pub scale: Scale,
    /// From where to where, as [`Scale::place`] tells: finite, not empty.
    pub range: (f64, f64),
    /// (place, text).
    pub ticks: Vec<(f64, String)>,
}

/// Room above the first row, in rows.
const ROWS_ROOM: f64 = 0.3;

/// More than this between the largest and the smallest value, and a linear scale would hide the small ones.
const WIDE: f64 = 20.0;

impl Axis {
    /// A linear axis from 0, or a logarithmic one where the values are too far apart. `show` makes the text of a tick. `None` without values.
    pub fn from_zero(label: &str, values: &[f64], show: impl Fn(f64) -> String) -> Option<Axis> {
        let (low, high) = extent(Scale::Log10, values).map_or((1.0, 1.0), |(low, high)| (10f64.powf(low), 10f64.powf(high)));
        if high / low > WIDE {
            return Axis::logarithmic(&format!("{label} (logarithmic)"), values, show);
        }
        let (_, high) = extent(Scale::Linear, values)?;
        let high = if high > 1e-100 { high } else { 1.0 };
        let step = step(high, 5.0);
        // A little room above the highest mark.
        Some(Axis::linear(label, (0.0, (high * 1.02 / step).ceil() * step), step, show))
    }

    /// Linear over just this range.
    pub fn linear(label: &str, range: (f64, f64), step: f64, show: impl Fn(f64) -> String) -> Axis {
        let first = (range.0 / step).ceil();
        let ticks =
            (0..=30u32).map(|index| (first + f64::from(index)) * step).take_while(|place| *place <= range.1 + step * 1e-6);
        // A zero that rounding has moved would be shown as one.
        let ticks = ticks.map(|place| if place.abs() < step * 1e-6 { 0.0 } else { place });
        Axis {
            label: label.into(),
            scale: Scale::Linear,
            range,
            ticks: ticks.map(|place| (place, text::short(&show(place)))).collect(),
        }
    }

    /// Logarithmic, as far as the values go. `None` without positive values.
    pub fn logarithmic(label: &str, values: &[f64], show: impl Fn(f64) -> String) -> Option<Axis> {
        let (low, high) = extent(Scale::Log10, values)?;
        let room = ((high - low) * 0.05).max(0.02);
        let range = (low - room, high + room);
        Some(Axis { label: label.into(), scale: Scale::Log10, range, ticks: decades(range, show) })
    }

    /// Ratios around 1, which is always in it: as far above as below means as much better as worse.
    pub fn ratios(label: &str, values: &[f64]) -> Option<Axis> {
        extent(Scale::Log10, values)?;
        let values: Vec<f64> = values.iter().copied().chain([0.9, 1.0, 1.0 / 0.9]).collect();
        Axis::logarithmic(label, &values, |value| format!("{}×", text::short(&text::digits(value))))
    }

    /// One tick for each value. `None` without values.
    pub fn at_values(label: &str, scale: Scale, values: &[f64], show: impl Fn(f64) -> String) -> Option<Axis> {
        let (low, high) = extent(scale, values)?;
        let room = if high > low { (high - low) * 0.06 } else { 0.5 };
        let mut ticks: Vec<(f64, String)> =
            values.iter().filter_map(|value| Some((scale.place(*value)?, show(*value)))).collect();
        ticks.sort_by(|one, other| one.0.total_cmp(&other.0));
        ticks.dedup_by(|one, other| one.1 == other.1);
        Some(Axis { label: label.into(), scale, range: (low - room, high + room), ticks })
    }

    /// One line for each name, the first at the top: the first of `n` is at `n - 1`. Above it is room for the words of a rule.
    pub fn rows(names: &[String]) -> Axis {
        let count = names.len().max(1);
        let ticks = names.iter().rev().enumerate().map(|(index, name)| (text::float(index as u64), name.clone())).collect();
        Axis { label: String::new(), scale: Scale::Linear, range: (-0.5, text::float(count as u64) - 0.5 + ROWS_ROOM), ticks }
    }

    /// Shares from a half to `most`, by nines.
    pub fn nines(label: &str, most: f64) -> Axis {
        let top = Scale::Nines.place(most).unwrap_or(1.0).max(1.0);
        let marks = [
            (0.5, "50\u{a0}%"),
            (0.9, "90\u{a0}%"),
            (0.99, "99\u{a0}%"),
            (0.999, "99.9\u{a0}%"),
            (0.9999, "99.99\u{a0}%"),
            (0.99999, "99.999\u{a0}%"),
            (0.999_999, "99.9999\u{a0}%"),
        ];
        let ticks = marks.iter().filter_map(|(share, name)| Some((Scale::Nines.place(*share)?, (*name).to_string())));
        Axis {
            label: label.into(),
            scale: Scale::Nines,
            range: (0.0, top * 1.03),
            ticks: ticks.filter(|(place, _)| *place <= top * 1.03).collect(),
        }
    }
}

/// The smallest and the largest place.
fn extent(scale: Scale, values: &[f64]) -> Option<(f64, f64)> {
    let places = values.iter().filter_map(|value| scale.place(*value));
    places.fold(None, |extent, place| match extent {
        None => Some((place, place)),
        Some((low, high)) => Some((place.min(low), place.max(high))),
    })
}

/// A step of 1, 2 or 5 times a power of ten that divides `span` into about `wanted` parts.
fn step(span: f64, wanted: f64) -> f64 {
    let rough = span / wanted;
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= rough * 0.999).unwrap_or(10.0);
    factor * power
}

/// Ticks on a range of powers of ten: the fewer, the wider it is.
fn decades(range: (f64, f64), show: impl Fn(f64) -> String) -> Vec<(f64, String)> {
    let span = range.1 - range.0;
    if span < 0.7 {
        // So narrow that it is nearly linear.
        let (low, high) = (10f64.powf(range.0), 10f64.powf(range.1));
        let even = Axis::linear("", (low, high), step(high - low, 7.0), show);
        return even.ticks.into_iter().filter_map(|(value, text)| Some((value.log10(), text)).filter(|_| value > 0.0)).collect();
    }
    let factors: &[f64] = match span {
        span if span < 2.0 => &[1.0, 2.0, 5.0],
        span if span < 4.5 => &[1.0, 3.0],
        _ => &[1.0],
    };
    let every = (span / 7.0).ceil().max(1.0);
    let first = (range.0 / every).floor() * every;
    let powers = (0..=400u32).map(|index| first + f64::from(index) * every).take_while(|power| *power <= range.1);
    let values = powers.flat_map(|power| factors.iter().map(move |factor| (power + factor.log10(), factor * 10f64.powf(power))));
    values
        .filter(|(place, _)| (range.0..=range.1).contains(place))
        .map(|(place, value)| (place, text::short(&show(value))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis) -> String {
        axis.ticks.iter().map(|(_, text)| text.replace('\u{a0}', "")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn ticks_are_round_numbers() {
        let axis = Axis::from_zero("", &[123_456.0, 480_000.0], text::metric).map(|axis| texts(&axis));
        assert_eq!(axis.as_deref(), Some("0 100k 200k 300k 400k 500k"));
        let axis = Axis::from_zero("", &[3.0, 100.0], text::metric).map(|axis| texts(&axis));
        assert_eq!(axis.as_deref(), Some("5 10 20 50 100"));
        let axis = Axis::logarithmic("", &[900.0, 5e6], |value| text::duration(value / 1e9)).map(|axis| texts(&axis));
        assert_eq!(axis.as_deref(), Some("1µs 3µs 10µs 30µs 100µs 300µs 1ms 3ms"));
        let axis = Axis::ratios("", &[0.97, 1.04]).map(|axis| texts(&axis));
        assert_eq!(axis.as_deref(), Some("0.9× 0.95× 1× 1.05× 1.1× 1.15×"));
        let axis = Axis::ratios("", &[0.5, 6.0]).map(|axis| texts(&axis));
        assert_eq!(axis.as_deref(), Some("0.5× 1× 2× 5×"));
        assert_eq!(texts(&Axis::nines("", 0.9995)), "50% 90% 99% 99.9%");
        let axis = Axis::at_values("", Scale::Log2, &[4.0, 1.0, 2.0, 2.0], |value| value.to_string()).map(|axis| texts(&axis));
        assert_eq!(axis.as_deref(), Some("1 2 4"));
    }

    #[test]
    fn any_values_make_a_range_or_none() {
        let awkward =
            [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-300, 1e300, f64::MAX, f64::MIN_POSITIVE, 1.0, 5e-324];
        let show = text::digits;
        for one in awkward {
            for other in awkward {
                let values = [one, other];
                let axes = [
                    Axis::from_zero("", &values, show),
                    Axis::logarithmic("", &values, show),
                    Axis::ratios("", &values),
                    Axis::at_values("", Scale::Log2, &values, show),
                    Some(Axis::nines("", one)),
                ];
                for axis in axes.into_iter().flatten() {
                    let (low, high) = axis.range;
                    assert!(low.is_finite() && high.is_finite() && high > low, "{values:?}: {axis:?}");
                    assert!(axis.ticks.len() < 60, "{values:?}: {axis:?}");
                }
            }
        }
        assert_eq!(Axis::from_zero("", &[], show), None);
        assert_eq!(Axis::logarithmic("", &[0.0, -3.0], show), None);
    }

    #[test]
    fn the_first_row_is_at_the_top() {
        let axis = Axis::rows(&["a".into(), "b".into(), "c".into()]);
        assert_eq!(axis.ticks.last(), Some(&(2.0, "a".to_string())));
        assert_eq!(axis.range, (-0.5, 2.5 + ROWS_ROOM));
        assert_eq!(Axis::rows(&[]).range, (-0.5, 0.5 + ROWS_ROOM));
    }
}
