//! A small plot with two logarithmic axes, as SVG.

use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = 60.0;
/// Those of Okabe and Ito: they can be told apart by all.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// A plot. Values that are not above 0 are left out.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// Above it.
    pub title: String,
    /// Below the horizontal axis.
    pub x: String,
    /// Beside the other one.
    pub y: String,
    /// Marks of the horizontal axis; of round numbers if there are none.
    pub ticks: Vec<(f64, String)>,
    /// Names and points of the lines.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
    /// A line across, with what it says.
    pub rule: Option<(f64, String)>,
}

/// A logarithmic axis: from value to place.
#[derive(Clone, Copy)]
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (low, high) = values
            .filter(|value| usable(*value))
            .fold((f64::MAX, 0.0), |(low, high), value| (f64::min(low, value), f64::max(high, value)));
        let (low, high) = if high > 0.0 { (low, high) } else { (1.0, 10.0) };
        // Room for a line that is level.
        let (low, high) = if high / low < 1.2 { (low / 1.5, high * 1.5) } else { (low, high) };
        Axis { low: low.ln(), high: high.ln(), from, to }
    }

    fn place(self, value: f64) -> f64 {
        self.from + (value.ln() - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    fn has(self, value: f64) -> bool {
        usable(value) && (self.low - 1e-9..=self.high + 1e-9).contains(&value.ln())
    }

    /// Round numbers of the axis: decades, with 2 and 5 where there are few.
    fn round(self) -> Vec<(f64, String)> {
        let decades = (self.high - self.low) / std::f64::consts::LN_10;
        let steps: &[f64] = if decades > 4.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let all = (-9..12).flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
        all.filter(|value| self.has(*value)).map(|value| (value, short(value))).collect()
    }
}

fn usable(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

/// A round number: 50k.
fn short(value: f64) -> String {
    match value {
        value if value >= 0.999e6 => format!("{}M", (value / 1e5).round() / 10.0),
        value if value >= 0.999e3 => format!("{}k", (value / 1e2).round() / 10.0),
        value => format!("{}", (value * 1e6).round() / 1e6),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The plot.
#[must_use]
pub fn draw(chart: &Chart) -> String {
    let points = || chart.lines.iter().flat_map(|(_, points)| points);
    let x = Axis::of(points().map(|(x, _)| *x), LEFT, WIDTH - RIGHT);
    let rule = chart.rule.iter().map(|(at, _)| *at);
    let y = Axis::of(points().map(|(_, y)| *y).chain(rule), HEIGHT - BOTTOM, TOP);
    let mut body = String::new();
    axes(chart, x, y, &mut body);
    if let Some((at, says)) = chart.rule.as_ref().filter(|(at, _)| usable(*at)) {
        let (at, right) = (y.place(*at), WIDTH - RIGHT);
        line((LEFT, at), (right, at), "stroke=\"#b00\" stroke-dasharray=\"6 4\"", &mut body);
        text(LEFT + 6.0, at - 5.0, "start", says, &mut body);
    }
    for (n, (name, points)) in chart.lines.iter().enumerate() {
        series(n, name, points, x, y, &mut body);
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

fn axes(chart: &Chart, x: Axis, y: Axis, to: &mut String) {
    const GRID: &str = "stroke=\"#ddd\"";
    let ticks = if chart.ticks.is_empty() { x.round() } else { chart.ticks.clone() };
    for (value, says) in ticks.iter().filter(|(value, _)| x.has(*value)) {
        let at = x.place(*value);
        line((at, TOP), (at, HEIGHT - BOTTOM), GRID, to);
        text(at, HEIGHT - BOTTOM + 18.0, "middle", says, to);
    }
    for (value, says) in y.round() {
        let at = y.place(value);
        line((LEFT, at), (WIDTH - RIGHT, at), GRID, to);
        text(LEFT - 8.0, at + 4.0, "end", &says, to);
    }
    text(WIDTH / 2.0, 22.0, "middle", &chart.title, to);
    text((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 16.0, "middle", &chart.x, to);
    let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
    let _ = writeln!(to, "<g transform=\"translate(24 {middle}) rotate(-90)\">");
    text(0.0, 0.0, "middle", &chart.y, to);
    to.push_str("</g>\n");
}

fn series(number: usize, name: &str, points: &[(f64, f64)], x: Axis, y: Axis, to: &mut String) {
    let colour = COLOURS[number % COLOURS.len()];
    let places = points.iter().filter(|(a, b)| usable(*a) && usable(*b)).map(|(a, b)| (x.place(*a), y.place(*b)));
    let mut path = String::new();
    for (n, (a, b)) in places.enumerate() {
        let _ = write!(path, "{}{a:.1} {b:.1}", if n == 0 { 'M' } else { 'L' });
        if points.len() <= 60 {
            let _ = writeln!(to, "<circle cx=\"{a:.1}\" cy=\"{b:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
    }
    let _ = writeln!(to, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>");
    // At most a few: they fit side by side.
    let at = LEFT + 130.0 * f64::from(u32::try_from(number).unwrap_or(0));
    line((at, 48.0), (at + 22.0, 48.0), &format!("stroke=\"{colour}\" stroke-width=\"3\""), to);
    text(at + 28.0, 52.0, "start", name, to);
}

fn line(from: (f64, f64), until: (f64, f64), look: &str, to: &mut String) {
    let ((a, b), (c, d)) = (from, until);
    let _ = writeln!(to, "<line x1=\"{a:.1}\" y1=\"{b:.1}\" x2=\"{c:.1}\" y2=\"{d:.1}\" {look}/>");
}

fn text(x: f64, y: f64, anchor: &str, says: &str, to: &mut String) {
    let _ = writeln!(to, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", escaped(says));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_lie_within_the_plot() {
        let points = vec![(1.0, 10.0), (10.0, 50.0), (100.0, 4000.0), (0.0, 5.0), (5.0, f64::NAN)];
        let lines = vec![("p50 & <x>".into(), points), ("level".into(), vec![(2.0, 30.0), (50.0, 30.0)])];
        let svg = draw(&Chart { title: "t".into(), lines, rule: Some((1000.0, "1 ms".into())), ..Chart::default() });
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && svg.contains("p50 &amp; &lt;x&gt;"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert_eq!((svg.matches("<circle").count(), svg.matches("<path").count()), (5, 2));
        assert!(svg.contains("cx=\"90.0\"") && svg.contains("cx=\"840.0\""), "{svg}");
        // Nothing to draw is no reason to panic.
        assert!(draw(&Chart::default()).contains("</svg>"));
        let level = vec![("one".into(), vec![(5.0, 5.0)])];
        assert!(!draw(&Chart { lines: level, ..Chart::default() }).contains("NaN"));
    }

    #[test]
    fn round_numbers() {
        let numbers = [1.0, 50.0, 1000.0, 20_000.0, 5e6, 0.5, 1500.0].map(short);
        assert_eq!(numbers, ["1", "50", "1k", "20k", "5M", "0.5", "1.5k"]);
    }
}
