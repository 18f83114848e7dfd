//! Draws a plot as an SVG image: what is drawn is a list of layers, whatever the plot shows.
//!
//! The drawing is twice as large as a page shows it, because plotters has whole pixels alone; the image scales to the
//! width that it gets. It has two groups: `legend` above, `plot` below.

use maud::{PreEscaped, html};
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::coord::{CoordTranslate, Shift};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::Axis;
use super::palette::{self, Look, Shape};
use super::text;

/// Width of a drawing.
pub const WIDTH: u32 = 1160;
/// Height of a drawing with two numeric axes, its legend not counted.
pub const HEIGHT: u32 = 620;
/// Size of letters, and how wide one is taken to be.
const LETTER: u32 = 27;
const LETTER_WIDTH: u32 = 15;
/// Width of the lines of series, and of ranges. The style sheet knows the first: what is this wide is dashed.
pub const LINE: u32 = 4;
const RANGE: u32 = 3;
/// plotters' sizes are a little larger than those it writes.
const PLOTTERS_FONT: f64 = 1.24;

/// Something that is drawn. All values are the data's; what has no place on an axis is left out.
#[derive(Clone, PartialEq, Debug)]
pub enum Layer {
    /// A line through points.
    Line(Vec<(f64, f64)>),
    /// A marker at each point.
    Marks(Vec<(f64, f64)>),
    /// A small hollow circle at each point.
    Dots(Vec<(f64, f64)>),
    /// A vertical range at each x: (x, from, to).
    Ranges(Vec<(f64, f64, f64)>),
    /// A horizontal range at each y: (y, from, to).
    Spans(Vec<(f64, f64, f64)>),
    /// A horizontal bar at each y, from the left edge: (y, to).
    Bars(Vec<(f64, f64)>),
    /// A part of a horizontal bar at each y: (y, from, to); with slashes or without.
    Parts {
        /// Where.
        spans: Vec<(f64, f64, f64)>,
        /// With slashes.
        slashed: bool,
    },
}

/// A line across the plot.
#[derive(Clone, PartialEq, Debug)]
pub struct Rule {
    /// Where.
    pub at: f64,
    /// Whether it goes up (at an x), or across (at a y).
    pub upright: bool,
    /// What it says; may be empty.
    pub text: String,
}

/// A plot.
#[derive(Clone, PartialEq, Debug)]
pub struct Chart {
    /// Across.
    pub x: Axis,
    /// Up.
    pub y: Axis,
    /// What is explained above it.
    pub legend: Vec<(String, Look)>,
    /// What is drawn, the first at the bottom.
    pub layers: Vec<(Look, Layer)>,
    /// Lines across.
    pub rules: Vec<Rule>,
    /// Height of the drawing without the legend.
    pub height: u32,
}

type Plane<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Places, Places>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// An axis as plotters wants it: places of our own, with ticks of our own.
struct Places {
    range: (f64, f64),
    ticks: Vec<f64>,
}

impl Places {
    fn of(axis: &Axis) -> Places {
        Places { range: axis.range, ticks: axis.ticks.iter().map(|(place, _)| *place).collect() }
    }
}

impl Ranged for Places {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    #[expect(clippy::cast_possible_truncation, reason = "within the limits, which are pixels")]
    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.range.0) / (self.range.1 - self.range.0);
        let (from, to) = (f64::from(limit.0), f64::from(limit.1));
        (from + share.clamp(0.0, 1.0) * (to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // No lines between those of the ticks.
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.range.0..self.range.1
    }
}

impl Chart {
    /// The image. `name` is read to those who do not see it.
    ///
    /// # Errors
    /// What plotters says.
    pub fn svg(&self, name: &str) -> Result<String, String> {
        let (legend, top) = self.legend()?;
        let mut plot = String::new();
        {
            let area = SVGBackend::with_string(&mut plot, (WIDTH, self.height)).into_drawing_area();
            self.draw(&area).and_then(|()| area.present()).map_err(|error| error.to_string())?;
        }
        let place = format!("translate(0 {top})");
        let image = html! {
            svg xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (WIDTH) " " (self.height + top) } role="img" aria-label=(name) {
                g class="legend" { (PreEscaped(inside(&legend))) }
                g class="plot" transform=(place) { (PreEscaped(inside(&plot))) }
            }
        };
        Ok(image.into_string())
    }

    /// The legend and its height.
    fn legend(&self) -> Result<(String, u32), String> {
        const SAMPLE: u32 = 70;
        const ROW: u32 = 42;
        let mut places = Vec::new();
        let (mut x, mut row) = (10, 0);
        for (name, look) in &self.legend {
            let name = text::cut(name, 60);
            let width = SAMPLE + 14 + LETTER_WIDTH * u32::try_from(name.chars().count()).unwrap_or(0) + 34;
            if x > 10 && x + width > WIDTH {
                (x, row) = (10, row + 1);
            }
            places.push((name, *look, signed(x), signed(row * ROW + ROW / 2)));
            x += width;
        }
        let height = if places.is_empty() { 0 } else { (row + 1) * ROW + 4 };
        let mut image = String::new();
        {
            let area = SVGBackend::with_string(&mut image, (WIDTH, height.max(1))).into_drawing_area();
            for (name, look, x, y) in &places {
                sample(&area, name, *look, (*x, *y), signed(SAMPLE)).map_err(|error| error.to_string())?;
            }
            area.present().map_err(|error| error.to_string())?;
        }
        Ok((image, height))
    }

    fn draw(&self, area: &Area) -> Drawn {
        let longest = self.y.ticks.iter().map(|(_, text)| text.chars().count()).max().unwrap_or(0);
        let left = u32::try_from(longest).unwrap_or(0) * LETTER_WIDTH + 30 + if self.y.label.is_empty() { 0 } else { 42 };
        let mut builder = ChartBuilder::on(area);
        builder.margin_top(22).margin_right(46).margin_left(4).margin_bottom(4);
        builder.x_label_area_size(96).y_label_area_size(left.min(WIDTH * 11 / 20));
        let mut plane: Plane = builder.build_cartesian_2d(Places::of(&self.x), Places::of(&self.y))?;
        self.mesh(&mut plane)?;
        for (look, layer) in &self.layers {
            if matches!(layer, Layer::Bars(_)) {
                self.layer(&mut plane, *look, layer)?;
            }
        }
        for rule in &self.rules {
            self.rule(&plane, rule)?;
        }
        for (look, layer) in &self.layers {
            if !matches!(layer, Layer::Bars(_)) {
                self.layer(&mut plane, *look, layer)?;
            }
        }
        for rule in &self.rules {
            self.rule_text(&plane, rule)?;
        }
        Ok(())
    }

    /// Grid, axes, numbers and labels.
    fn mesh(&self, plane: &mut Plane) -> Drawn {
        let rows = self.y.label.is_empty();
        let (label, desc) = (font(&palette::LABEL), font(&palette::TEXT));
        let (x_text, y_text) = (|value: &f64| tick_text(&self.x, *value), |value: &f64| tick_text(&self.y, *value));
        let mut mesh = plane.configure_mesh();
        mesh.x_label_formatter(&x_text).y_label_formatter(&y_text);
        mesh.bold_line_style(palette::GRID.colour().stroke_width(2)).light_line_style(TRANSPARENT);
        mesh.axis_style(palette::AXIS.colour().stroke_width(2)).set_all_tick_mark_size(8);
        mesh.x_label_style(label.clone()).y_label_style(if rows { desc.clone() } else { label }).axis_desc_style(desc);
        mesh.x_desc(&self.x.label);
        if rows {
            mesh.disable_y_mesh();
        } else {
            mesh.y_desc(&self.y.label);
        }
        mesh.draw()
    }

    /// Where a point lies; `None` outside of the axes, where plotters would calculate with pixels beyond any number.
    fn place(&self, (x, y): (f64, f64)) -> Option<(f64, f64)> {
        let inside = |axis: &Axis, value: f64| {
            let slack = (axis.range.1 - axis.range.0) * 1e-6;
            axis.scale.place(value).filter(|place| (axis.range.0 - slack..=axis.range.1 + slack).contains(place))
        };
        Some((inside(&self.x, x)?, inside(&self.y, y)?))
    }

    fn layer(&self, plane: &mut Plane, look: Look, layer: &Layer) -> Drawn {
        let colour = look.colour;
        match layer {
            Layer::Line(points) => {
                let line = points.iter().filter_map(|point| self.place(*point)).collect::<Vec<_>>();
                plane.draw_series(LineSeries::new(line, colour.stroke_width(LINE)))?;
            }
            Layer::Marks(points) => {
                for place in points.iter().filter_map(|point| self.place(*point)) {
                    marker(plane.plotting_area(), look.shape, place, colour)?;
                }
            }
            Layer::Dots(points) => {
                for place in points.iter().filter_map(|point| self.place(*point)) {
                    plane.draw_series([Circle::new(place, 6, palette::PAPER.colour().filled())])?;
                    plane.draw_series([Circle::new(place, 6, colour.stroke_width(3))])?;
                }
            }
            Layer::Ranges(ranges) => {
                for (x, from, to) in ranges {
                    if let (Some((x, from)), Some((_, to))) = (self.place((*x, *from)), self.place((*x, *to))) {
                        range(plane, [(x, from), (x, to)], (7, 0), colour)?;
                    }
                }
            }
            Layer::Spans(spans) => {
                for (y, from, to) in spans {
                    if let (Some((from, y)), Some((to, _))) = (self.place((*from, *y)), self.place((*to, *y))) {
                        range(plane, [(from, y), (to, y)], (0, 11), colour)?;
                    }
                }
            }
            Layer::Bars(bars) => {
                for (to, y) in bars.iter().filter_map(|(y, to)| self.place((*to, *y))) {
                    plane
                        .draw_series([Rectangle::new([(self.x.range.0, y - 0.34), (to, y + 0.34)], colour.mix(0.22).filled())])?;
                }
            }
            Layer::Parts { spans, slashed } => {
                for (y, from, to) in spans {
                    if let (Some((from, y)), Some((to, _))) = (self.place((*from, *y)), self.place((*to, *y))) {
                        self.part(plane, (y, from, to), *slashed, colour)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// A part of a bar.
    fn part(&self, plane: &Plane, (y, from, to): (f64, f64, f64), slashed: bool, colour: RGBColor) -> Drawn {
        const HALF: f64 = 0.34;
        /// Slashes over the whole width, if there were no end.
        const SLASHES: f64 = 70.0;
        let fill = colour.mix(if slashed { 0.3 } else { 0.8 }).filled();
        let area = plane.plotting_area();
        area.draw(&Rectangle::new([(from, y - HALF), (to, y + HALF)], fill))?;
        if slashed {
            let step = (self.x.range.1 - self.x.range.0) / SLASHES;
            let mut at = from;
            while at < to {
                // One that would leave the part ends at its edge.
                let end = (at + step).min(to);
                let up = 2.0 * HALF * (end - at) / step;
                area.draw(&PathElement::new(vec![(at, y - HALF), (end, y - HALF + up)], colour.stroke_width(RANGE)))?;
                at += step;
            }
        }
        Ok(())
    }

    /// The ends of a rule; `None` if it is not in the range.
    fn rule_ends(&self, rule: &Rule) -> Option<[(f64, f64); 2]> {
        let axis = if rule.upright { &self.x } else { &self.y };
        let at = axis.scale.place(rule.at).filter(|at| (axis.range.0..=axis.range.1).contains(at))?;
        Some(if rule.upright {
            [(at, self.y.range.0), (at, self.y.range.1)]
        } else {
            [(self.x.range.0, at), (self.x.range.1, at)]
        })
    }

    fn rule(&self, plane: &Plane, rule: &Rule) -> Drawn {
        let Some(ends) = self.rule_ends(rule) else { return Ok(()) };
        plane.plotting_area().draw(&PathElement::new(ends.to_vec(), palette::RULE.colour().stroke_width(3)))
    }

    /// Its text, at the upper end, on the side that has more room.
    fn rule_text(&self, plane: &Plane, rule: &Rule) -> Drawn {
        let Some([start, end]) = self.rule_ends(rule) else { return Ok(()) };
        let words = text::cut(&rule.text, 44);
        let beyond_middle = end.0 - self.x.range.0 > (self.x.range.1 - self.x.range.0) * 0.55;
        let (place, side, shift) = match (rule.upright, beyond_middle) {
            (true, true) => (end, HPos::Right, (-12, 0)),
            (true, false) => (end, HPos::Left, (12, 0)),
            (false, _) => (start, HPos::Left, (8, -LETTER.cast_signed() - 4)),
        };
        let style = font(&palette::TEXT).pos(Pos::new(side, VPos::Top));
        plane.plotting_area().draw(&(EmptyElement::at(place) + Text::new(words, shift, style)))
    }
}

/// Coordinates of a drawing are small.
fn signed(value: u32) -> i32 {
    value.cast_signed()
}

fn font(role: &'static palette::Role) -> TextStyle<'static> {
    TextStyle::from(("sans-serif", f64::from(LETTER) * PLOTTERS_FONT)).color(&role.light)
}

/// What a tick at this place says.
fn tick_text(axis: &Axis, place: f64) -> String {
    let width = (axis.range.1 - axis.range.0) * 1e-6;
    axis.ticks.iter().find(|(tick, _)| (tick - place).abs() <= width).map_or_else(String::new, |(_, text)| text.clone())
}

/// One entry of a legend.
fn sample(area: &Area, name: &str, look: Look, (x, y): (i32, i32), width: i32) -> Drawn {
    if look.shape != Shape::Ring {
        area.draw(&PathElement::new(vec![(x, y), (x + width, y)], look.colour.stroke_width(LINE)))?;
    }
    marker(area, look.shape, (x + width / 2, y), look.colour)?;
    let style = font(&palette::TEXT).pos(Pos::new(HPos::Left, VPos::Center));
    area.draw(&Text::new(name.to_string(), (x + width + 14, y), style))
}

/// A range with a short stroke across at both ends.
fn range(plane: &Plane, ends: [(f64, f64); 2], across: (i32, i32), colour: RGBColor) -> Drawn {
    let area = plane.plotting_area();
    area.draw(&PathElement::new(ends, colour.stroke_width(RANGE)))?;
    for end in ends {
        let stroke = PathElement::new([(-across.0, -across.1), across], colour.stroke_width(RANGE));
        area.draw(&(EmptyElement::at(end) + stroke))?;
    }
    Ok(())
}

/// A marker, each of about the same area.
fn marker<C: CoordTranslate>(area: &DrawingArea<SVGBackend, C>, kind: Shape, place: C::From, colour: RGBColor) -> Drawn
where
    C::From: Clone,
{
    let corners: &[(i32, i32)] = match kind {
        Shape::None => return Ok(()),
        Shape::Circle => return area.draw(&(EmptyElement::at(place) + Circle::new((0, 0), 9, colour.filled()))),
        Shape::Ring => {
            area.draw(&(EmptyElement::at(place.clone()) + Circle::new((0, 0), 9, palette::PAPER.colour().filled())))?;
            return area.draw(&(EmptyElement::at(place) + Circle::new((0, 0), 9, colour.stroke_width(4))));
        }
        Shape::Square => &[(-8, -8), (8, -8), (8, 8), (-8, 8)],
        Shape::Triangle => &[(0, -12), (11, 8), (-11, 8)],
        Shape::Diamond => &[(0, -12), (12, 0), (0, 12), (-12, 0)],
        Shape::Nabla => &[(0, 12), (11, -8), (-11, -8)],
        Shape::Cross => {
            &[(0, -4), (6, -10), (10, -6), (4, 0), (10, 6), (6, 10), (0, 4), (-6, 10), (-10, 6), (-4, 0), (-10, -6), (-6, -10)]
        }
    };
    area.draw(&(EmptyElement::at(place) + Polygon::new(corners, colour.filled())))
}

/// What is inside of the outermost element of an image.
fn inside(svg: &str) -> &str {
    let start = svg.find('>').map_or(0, |end| end + 1);
    svg[start..].trim().trim_end_matches("</svg>")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(layers: Vec<Layer>) -> Chart {
        let look = Look::series(0);
        Chart {
            x: Axis::linear("x", (0.0, 10.0), 2.0, text::digits),
            y: Axis::linear("y", (0.0, 10.0), 2.0, text::digits),
            legend: vec![("<b>&\"name'".into(), look)],
            layers: layers.into_iter().map(|layer| (look, layer)).collect(),
            rules: vec![
                Rule { at: 5.0, upright: true, text: "</svg><script>".into() },
                Rule { at: 99.0, upright: false, text: "outside".into() },
            ],
            height: HEIGHT,
        }
    }

    #[test]
    fn every_layer_leaves_its_marks() {
        let layers = [
            (Layer::Line(vec![(1.0, 1.0), (2.0, 3.0)]), "<polyline"),
            (Layer::Marks(vec![(1.0, 1.0)]), "<circle"),
            (Layer::Dots(vec![(1.0, 1.0)]), "<circle"),
            (Layer::Ranges(vec![(1.0, 2.0, 3.0)]), "<polyline"),
            (Layer::Spans(vec![(1.0, 2.0, 3.0)]), "<polyline"),
            (Layer::Bars(vec![(1.0, 2.0)]), "<rect"),
        ];
        let colour = Look::series(0).hex();
        let marks = |svg: &str, tag: &str| svg.lines().filter(|line| line.starts_with(tag) && line.contains(&colour)).count();
        let empty = chart(vec![]).svg("empty").unwrap_or_default();
        for (layer, tag) in layers {
            let svg = chart(vec![layer.clone()]).svg("name").unwrap_or_default();
            assert!(marks(&svg, tag) > marks(&empty, tag), "{layer:?}");
        }
    }

    #[test]
    fn texts_are_only_text() {
        let svg = chart(vec![]).svg("\"><script>").unwrap_or_default();
        assert!(!svg.contains("<script") && !svg.contains("<b>"), "{svg}");
        assert!(svg.contains("&lt;script&gt;") && svg.contains("&lt;b&gt;"), "{svg}");
        assert!(!svg.contains("outside"));
        assert_eq!((svg.matches("<svg").count(), svg.matches("</svg>").count()), (1, 1));
    }

    #[test]
    fn points_without_a_place_are_left_out() {
        let bad = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, f64::MAX];
        let points: Vec<(f64, f64)> = bad.iter().flat_map(|x| bad.iter().map(|y| (*x, *y))).collect();
        let ranges: Vec<(f64, f64, f64)> = points.iter().map(|(x, y)| (*x, *y, *x)).collect();
        let layers = vec![
            Layer::Line(points.clone()),
            Layer::Marks(points.clone()),
            Layer::Dots(points.clone()),
            Layer::Bars(points),
            Layer::Ranges(ranges.clone()),
            Layer::Spans(ranges),
        ];
        let mut chart = chart(layers);
        let values: [f64; 2] = [1.0, 100.0];
        chart.y = Axis::logarithmic("y", &values, text::digits).unwrap_or(chart.y);
        assert!(chart.svg("bad").is_ok());
    }

    #[test]
    fn a_ring_is_hollow_and_has_no_line_in_the_legend() {
        let mut chart = chart(vec![]);
        let lines = |chart: &Chart| chart.svg("name").unwrap_or_default().matches("<polyline").count();
        let with_line = lines(&chart);
        let ring = Look::series(1).ring();
        chart.legend[0].1 = ring;
        assert!(lines(&chart) < with_line);
        chart.layers.push((ring, Layer::Marks(vec![(1.0, 1.0)])));
        let svg = chart.svg("name").unwrap_or_default();
        // In the legend and in the plot, each a disc of the background below a circle.
        let stroke = format!("fill=\"none\" stroke=\"{}\"", ring.hex());
        assert_eq!((svg.matches("<circle").count(), svg.matches(&stroke).count()), (4, 2), "{svg}");
    }

    #[test]
    fn a_legend_wraps() {
        let mut chart = chart(vec![]);
        let low = chart.legend().map(|(_, height)| height);
        chart.legend = (0..9).map(|index| (format!("a target with a long name {index}"), Look::series(index))).collect();
        assert!(chart.legend().map(|(_, height)| height) > low);
    }
}
