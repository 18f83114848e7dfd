//! Colours, markers and dashes: one entity looks the same in each plot of a page.
//!
//! # Protocol
//!
//! Plots are drawn in the colours for a light background, each *role* having one that no other has. The style sheet that
//! [`css`] makes then says for each of them what a viewer with a dark background sees:
//! `svg [stroke="#0B32D6"] { stroke: var(--series-1) }`. So an image is complete in itself, and readable in both schemes.
//!
//! The eight colours of series were searched for the largest smallest distance (`OKLab`) between any two as seen with normal
//! vision, deuteranopia, protanopia and tritanopia, the first four weighing most, with a contrast of at least 3 to the
//! background. Nothing is told by colour alone: series differ in marker and dash too.

use std::fmt::Write as _;

use plotters::style::RGBColor;

use super::chart::LINE;

/// What a colour stands for: its name in the style sheet, in a light scheme, in a dark one.
#[derive(Debug)]
pub struct Role {
    name: &'static str,
    pub light: RGBColor,
    dark: RGBColor,
}

const fn role(name: &'static str, light: u32, dark: u32) -> Role {
    Role { name, light: rgb(light), dark: rgb(dark) }
}

const fn rgb(value: u32) -> RGBColor {
    let [_, red, green, blue] = value.to_be_bytes();
    RGBColor(red, green, blue)
}

impl Role {
    /// What to draw with.
    pub fn colour(&self) -> RGBColor {
        self.light
    }
}

/// Text in a plot.
pub const TEXT: Role = role("plot-text", 0x1F_24_2B, 0xE3_E7_EC);
/// Numbers at an axis.
pub const LABEL: Role = role("plot-label", 0x53_5C_67, 0xA9_B3_BF);
/// Lines behind the data.
pub const GRID: Role = role("plot-grid", 0xE2_E6_EB, 0x2A_31_3A);
/// Axes.
pub const AXIS: Role = role("plot-axis", 0x8B_94_9F, 0x6B_76_83);
/// What a result is set against: "as fast as the first".
pub const RULE: Role = role("plot-rule", 0x5E_67_73, 0x9E_A8_B4);
/// The ideal line.
pub const IDEAL: Role = role("plot-ideal", 0x2B_30_36, 0xF4_F6_F8);
/// The device itself.
pub const DEVICE: Role = role("plot-device", 0x6A_73_7F, 0x93_9E_AB);
/// Inside of hollow marks: the background.
pub const PAPER: Role = role("plot-paper", 0xFF_FF_FE, 0x16_1B_21);

/// The colours of series.
const SERIES: [Role; 8] = [
    role("series-1", 0x0B_32_D6, 0x5B_93_FF),
    role("series-2", 0xB6_33_00, 0xF9_89_38),
    role("series-3", 0x00_8D_92, 0x00_E6_C1),
    role("series-4", 0x6A_00_6D, 0xD0_5A_A8),
    role("series-5", 0x9A_7D_00, 0xEC_DA_38),
    role("series-6", 0x80_62_F0, 0xB4_CE_FF),
    role("series-7", 0x70_4E_56, 0x2E_BC_BA),
    role("series-8", 0xE0_28_78, 0xFF_5A_74),
];

/// Dashes of the series' lines, in units of the drawing; the first is a full line.
const DASHES: [&str; 8] = ["none", "16 7", "4 6", "18 6 4 6", "26 7", "9 6", "18 6 4 6 4 6", "2 5"];
/// Of the ideal line, and of the device's.
const IDEAL_DASH: &str = "24 10";
const DEVICE_DASH: &str = "3 8";

/// A marker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Filled.
    Circle,
    /// Filled.
    Square,
    /// Point up.
    Triangle,
    /// A square on its corner.
    Diamond,
    /// Point down.
    Nabla,
    /// Two lines.
    Cross,
    /// A hollow circle without a line: a number of somebody else's.
    Ring,
    /// No marker: a line alone.
    None,
}

/// How a series looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    /// Its colour.
    pub colour: RGBColor,
    /// Its marker.
    pub shape: Shape,
}

impl Look {
    /// Of the series with this number. The ninth has the first one's colour and another marker.
    pub fn series(index: usize) -> Look {
        const SHAPES: [Shape; 6] = [Shape::Circle, Shape::Square, Shape::Triangle, Shape::Diamond, Shape::Nabla, Shape::Cross];
        let turn = index / SERIES.len();
        Look { colour: SERIES[index % SERIES.len()].colour(), shape: SHAPES[(index + turn) % SHAPES.len()] }
    }

    /// The same colour for a number that is not ours.
    pub fn ring(self) -> Look {
        Look { shape: Shape::Ring, ..self }
    }

    /// Of a line that is no series.
    pub fn line(role: &Role) -> Look {
        Look { colour: role.colour(), shape: Shape::None }
    }

    /// As it is written in an image.
    pub fn hex(&self) -> String {
        hex(self.colour)
    }
}

/// As plotters writes it.
fn hex(colour: RGBColor) -> String {
    format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2)
}

fn roles() -> impl Iterator<Item = &'static Role> {
    static OTHERS: [Role; 8] = [TEXT, LABEL, GRID, AXIS, RULE, IDEAL, DEVICE, PAPER];
    static ALL: [Role; 8] = SERIES;
    OTHERS.iter().chain(&ALL)
}

/// The part of the style sheet that colours plots, in a page or in an image of its own.
pub fn css() -> String {
    let (mut light, mut dark, mut rules) = (String::new(), String::new(), String::new());
    for Role { name, light: in_light, dark: in_dark } in roles() {
        let drawn = hex(*in_light);
        // Writing to a string cannot fail.
        let _ = write!(light, "--{name}:{drawn};");
        let _ = write!(dark, "--{name}:{};", hex(*in_dark));
        let _ = writeln!(rules, "svg [fill=\"{drawn}\"]{{fill:var(--{name})}} svg [stroke=\"{drawn}\"]{{stroke:var(--{name})}}");
    }
    let dashed = SERIES.iter().zip(DASHES).chain([(&IDEAL, IDEAL_DASH), (&DEVICE, DEVICE_DASH)]);
    for (role, dash) in dashed {
        let _ =
            writeln!(rules, "svg polyline[stroke=\"{}\"][stroke-width=\"{LINE}\"]{{stroke-dasharray:{dash}}}", hex(role.light));
    }
    format!(":root{{{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{rules}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_role_has_a_colour_of_its_own() {
        let drawn: BTreeSet<String> = roles().map(|role| hex(role.light)).collect();
        assert_eq!(drawn.len(), roles().count());
        assert_eq!(roles().count(), 16);
    }

    #[test]
    fn the_style_sheet_knows_each_role_in_both_schemes() {
        let css = css();
        for role in roles() {
            assert_eq!(css.matches(&format!("--{}:#", role.name)).count(), 2, "{}", role.name);
        }
    }

    /// WCAG 2: (lighter + 0.05) / (darker + 0.05).
    fn contrast(one: RGBColor, other: RGBColor) -> f64 {
        let luminance = |colour: RGBColor| {
            let part = |value: u8| {
                let value = f64::from(value) / 255.0;
                if value <= 0.040_45 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
            };
            0.2126 * part(colour.0) + 0.7152 * part(colour.1) + 0.0722 * part(colour.2) + 0.05
        };
        let (one, other) = (luminance(one), luminance(other));
        one.max(other) / one.min(other)
    }

    #[test]
    fn contrasts_suffice_in_both_schemes() {
        let wanted = |name: &str| match name {
            "plot-text" | "plot-label" => 4.5,
            "plot-grid" | "plot-paper" => 1.0,
            "plot-axis" => 2.5,
            _ => 3.0,
        };
        for role in roles() {
            for (colour, paper) in [(role.light, PAPER.light), (role.dark, PAPER.dark)] {
                let found = contrast(colour, paper);
                assert!(found >= wanted(role.name), "{}: {found:.2}", role.name);
            }
        }
    }

    #[test]
    fn sixteen_series_differ() {
        for one in 0..16 {
            for other in 0..one {
                assert_ne!(Look::series(one), Look::series(other), "{one} {other}");
            }
        }
    }
}
