//! Results as text: aligned tables for a terminal, and Markdown.
//!
//! | module | what it does |
//! |---|---|
//! | `grid` | aligned columns, as many as there is room for |
//! | `targets` | the table of an experiment or a sweep |
//! | `families` | all rows of families in one |
//! | `markdown` | a whole set for a README |
//! | `units` | numbers with units |
//!
//! A table takes at most 140 columns. On a narrow terminal columns go in this order: wall time, CPU time, p90, peak RSS, max, range, faults,
//! p99.9, fetches a second, p50, CPU time a fault, device, verdict, p99. The target, its figure and the ratio always stay.

mod families;
pub(crate) mod grid;
mod markdown;
pub(crate) mod targets;
pub(crate) mod units;

use std::collections::BTreeMap;

use self::grid::{Cell, Column, Tone};
pub use self::markdown::markdown;
use crate::device;
use crate::report::group::{self, Group};
use crate::result::{Device, DevicePoint, Experiment, Machine, Results};

/// No table is wider, however wide the terminal: the eye loses the line.
pub const WIDEST: usize = 140;

/// All of a call's results: machine, device, a table for each experiment or sweep, and what was left out. `width` is the terminal's, in columns.
#[must_use]
pub fn results(results: &Results, colours: bool, width: usize) -> String {
    let mut parts = vec![machine_text(&results.machine)];
    parts.extend(results.device.as_ref().map(|device| device_text(device, colours, width)));
    parts.extend(group::groups(&results.experiments).iter().map(|group| targets::text(group, colours, width.min(WIDEST))));
    parts.push(families::text(&results.experiments, colours, width.min(WIDEST)));
    parts.push(skipped_text(&results.skipped));
    parts.retain(|part| !part.is_empty());
    parts.join("\n")
}

/// One experiment: a heading, a line a target, and what went wrong.
#[must_use]
pub fn experiment(experiment: &Experiment, colours: bool, width: usize) -> String {
    let group = Group { name: group::name_of(experiment), axis: None, experiments: vec![experiment] };
    targets::text(&group, colours, width.min(WIDEST))
}

/// A value of a figure, in words: `1.23 M/s`, `12.0 s`, `3.90 µs`.
#[must_use]
pub fn quantity(value: f64, unit: &str) -> String {
    units::quantity(value, unit)
}

/// The machine in a few lines; nothing if it is not known.
#[must_use]
pub fn machine_text(machine: &Machine) -> String {
    if machine.kernel.is_empty() {
        return String::new();
    }
    let plural = |count: u32, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut hardware = vec![
        machine.cpu.clone(),
        plural(machine.cpus, "processor"),
        plural(machine.nodes, "node"),
        format!("{} of RAM", units::bytes(machine.memory_bytes)),
        format!("Linux {}", machine.kernel),
    ];
    if !machine.hypervisor.is_empty() {
        hardware.push(format!("hypervisor {}", machine.hypervisor));
    }
    let mut storage =
        vec![format!("{} on {} in {}", machine.filesystem, machine.disk, machine.directory), format!("load {:.2}", machine.load)];
    if !machine.other_swap.is_empty() {
        storage.push(format!("other swap: {}", machine.other_swap.join(", ")));
    }
    let settings: Vec<String> = machine.settings.iter().map(|(name, value)| format!("{name} {value}")).collect();
    [hardware.join(", "), storage.join(", "), settings.join(", ")]
        .iter()
        .filter(|line| !line.is_empty())
        .map(|line| format!("{line}\n"))
        .collect()
}

/// What the device can do.
#[must_use]
pub fn device_text(device: &Device, colours: bool, width: usize) -> String {
    let column = |title: &str, right: bool, cell: &dyn Fn(&DevicePoint) -> String| Column {
        title: title.into(),
        right,
        dispensable: 0,
        cells: device.points.iter().map(|point| Cell::from(cell(point))).collect(),
    };
    let quantile = |point: &DevicePoint, share: f64| point.latency.quantile(share).map_or(String::new(), units::nanoseconds);
    let mut columns = vec![
        column("device", false, &|point| device::name(point.access).into()),
        column("in flight", true, &|point| point.depth.to_string()),
        column("pages/s", true, &|point| units::metric(point.pages_per_second)),
        column("MiB/s", true, &|point| units::digits(point.pages_per_second / 256.0)),
        column("p50", true, &|point| quantile(point, 0.5)),
        column("p99", true, &|point| quantile(point, 0.99)),
        column("p99.9", true, &|point| quantile(point, 0.999)),
        column("max", true, &|point| point.latency.max().map_or(String::new(), units::nanoseconds)),
    ];
    for (dispensable, column) in columns[4..].iter_mut().enumerate() {
        column.dispensable = dispensable as u32 + 1;
    }
    let heading = format!("What the device can do (O_DIRECT, a file of {})", units::bytes(device.file_bytes));
    Tone::Strong.paint(&heading, colours) + "\n" + &grid::render(columns, width.min(WIDEST), colours)
}

/// Targets that could not be had, a line each.
fn skipped_text(skipped: &BTreeMap<String, String>) -> String {
    skipped.iter().map(|(label, why)| format!("{label} was left out: {why}\n")).collect()
}

#[cfg(test)]
mod tests;
