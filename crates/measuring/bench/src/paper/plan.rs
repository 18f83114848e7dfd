//! Which comparisons a figure is made of, and how long they take.

use std::path::PathBuf;

use clap::Parser;
use farshore_load::workload::Workload;

use super::{Figure, Latency, Over, Panel, Runs, Variant, Vary};
use crate::args::BenchArgs;
use crate::plan::{self, Common, Experiment, Subject, percent_of};
use crate::result::PaperPoint;
use crate::run::Failure;
use crate::targets::spec;
use crate::uthread::args::{Modes, UthreadArgs};
use crate::uthread::course::{Course, Maker, Rounds};

/// What the panel of the highest throughput is called, behind the name of the panel over load.
pub const PEAK: &str = "-peak";
/// The device takes so long, in seconds: nine points and its file.
const DEVICE_SECONDS: f64 = 20.0;
/// A limit that is lifted is so many times the data.
const LIFTED: u64 = 2;

/// A workload alone, as panels have it.
#[derive(Parser)]
struct LoadLine {
    #[command(subcommand)]
    workload: Workload,
}

/// A service with its options.
#[derive(Parser)]
struct ServedLine {
    #[command(flatten)]
    arguments: UthreadArgs,
}

/// The comparisons of a figure.
#[derive(Debug)]
pub struct Plan {
    figure: &'static Figure,
    quick: bool,
    parts: Vec<Part>,
}

/// Those of a panel.
#[derive(Debug)]
enum Part {
    Load(Vec<Experiment>),
    Served { course: Box<Course>, panel: &'static Panel, over: Over },
}

impl Plan {
    /// Of `figure`. `serve` is `farshore-serve`; `all` has what all comparisons share.
    ///
    /// # Errors
    /// The registry has what cannot be read: one line.
    pub fn new(figure: &'static Figure, quick: bool, all: &BenchArgs, serve: PathBuf) -> Result<Plan, String> {
        let part = |panel: &'static Panel| match &panel.runs {
            Runs::Load { line, quick: quick_line, vary, variants } => {
                let line_of = move |variant: &Variant| {
                    let [line, quick_line] = variant.lines.unwrap_or([line, quick_line]);
                    if quick { quick_line } else { line }
                };
                let points = points(panel, quick).iter();
                let made = points.flat_map(|x| {
                    let made = move |variant| experiment(figure, panel, quick, line_of(variant), *vary, variant, *x);
                    variants.iter().map(made)
                });
                made.collect::<Result<_, _>>().map(Part::Load)
            }
            Runs::Served { line, quick: quick_line, over } => {
                let line = if quick { quick_line } else { line };
                let words = std::iter::once("paper").chain(line.split(' '));
                let arguments = ServedLine::try_parse_from(words).map_err(|error| format!("{}: {error}", figure.name))?.arguments;
                Ok(Part::Served { course: Box::new(Course::new(&arguments, all, serve.clone())?), panel, over: *over })
            }
            // Nothing is run for it ([`super::model`]).
            Runs::Modelled(_) => Ok(Part::Load(Vec::new())),
        };
        let parts = figure.panels.iter().map(part).collect::<Result<_, String>>()?;
        Ok(Plan { figure, quick, parts })
    }

    /// Experiments that need as much memory and disk as those that will be made.
    #[must_use]
    pub fn needs(&self) -> Vec<Experiment> {
        let needs = self.parts.iter().flat_map(|part| match part {
            Part::Load(experiments) => experiments.clone(),
            Part::Served { course, .. } => course.needs(),
        });
        needs.collect()
    }

    /// Who is bound to which cores, for a reader; `None` where there is no server.
    #[must_use]
    pub fn bound(&self) -> Option<String> {
        self.parts.iter().find_map(|part| match part {
            Part::Load(_) => None,
            Part::Served { course, .. } => Some(course.bound()),
        })
    }

    /// Whether the device has to be measured. The quick form draws no ideal line for it.
    #[must_use]
    pub fn needs_device(&self) -> bool {
        self.figure.needs_device() && !self.quick
    }

    /// Makes all comparisons.
    ///
    /// # Errors
    /// One could not be made: one line.
    pub fn run(&self, maker: &mut dyn Maker) -> Result<(), Failure> {
        for part in &self.parts {
            match part {
                Part::Load(experiments) => {
                    for experiment in experiments {
                        if maker.make(experiment, Rounds::All)?.is_none() {
                            return Ok(());
                        }
                    }
                }
                Part::Served { course, panel, over } => {
                    let points = points(panel, self.quick);
                    let mark = |experiment: Experiment, x: f64, shown: f64, suffix: &str| {
                        let point = point(self.figure, &format!("{}{suffix}", panel.key), "", x, shown, self.quick);
                        Experiment { name: name(&point), paper: Some(point), ..experiment }
                    };
                    match over {
                        Over::Load => course.over_load(maker, points, &|experiment, at| match at {
                            None => mark(experiment, 0.0, 0.0, PEAK),
                            Some((percent, rate)) => mark(experiment, percent, rate, ""),
                        })?,
                        Over::Local => {
                            course.over_local(maker, points, &|experiment, percent| mark(experiment, percent, percent, ""))?
                        }
                        Over::LocalUnder(load) => {
                            course.over_local_under(maker, points, f64::from(*load), &|experiment, at| match at {
                                None => mark(experiment, 0.0, 0.0, PEAK),
                                Some(percent) => mark(experiment, percent, percent, ""),
                            })?
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

fn points(panel: &Panel, quick: bool) -> &'static [f64] {
    if quick { panel.x.quick } else { panel.x.points }
}

fn point(figure: &Figure, panel: &str, variant: &str, x: f64, shown: f64, quick: bool) -> PaperPoint {
    PaperPoint { figure: figure.name.into(), panel: panel.into(), variant: variant.into(), x, shown, quick }
}

fn name(point: &PaperPoint) -> String {
    let variant = if point.variant.is_empty() { String::new() } else { format!(", {}", point.variant) };
    format!("{}, {}, {}{variant}", point.figure, point.panel, point.x)
}

fn experiment(
    figure: &Figure,
    panel: &Panel,
    quick: bool,
    line: &str,
    vary: Vary,
    variant: &Variant,
    x: f64,
) -> Result<Experiment, String> {
    let words = std::iter::once("paper").chain(line.split(' '));
    let mut workload = LoadLine::try_parse_from(words).map_err(|error| format!("{}: {error}", figure.name))?.workload;
    if vary == Vary::Threads {
        workload.common_mut().threads = whole(x);
    }
    let data = workload.usual_bytes();
    let far = if vary == Vary::Far { x } else { variant.far };
    let common = Common {
        memory: Some(farshore_load::size::Bytes(percent_of(data, 100.0 - far))),
        pool: None,
        swap_size: None,
        swap_files: if vary == Vary::Files { whole(x) } else { 1 },
        targets: spec::parse_list(&(variant.targets)(x)).map_err(|why| format!("{}: {why}", figure.name))?,
    };
    let made = plan::experiments(&Subject::Workload(Box::new(workload)), &common, None)?;
    let made = made.into_iter().next().ok_or("no experiment")?;
    let point = point(figure, panel.key, variant.key, x, x, quick);
    Ok(Experiment { name: name(&point), paper: Some(point), raised: variant.lifted.then(|| data.saturating_mul(LIFTED)), ..made })
}

/// Points are whole where they count something.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(super) fn whole(x: f64) -> u32 {
    x as u32
}

/// About how long a figure takes with so many rounds and one to warm up, in seconds, on two processors.
#[must_use]
pub fn seconds(figure: &Figure, rounds: u32, quick: bool) -> f64 {
    let turns = f64::from(rounds + u32::from(!quick));
    let panel = |panel: &Panel| {
        let points = points(panel, quick);
        let runs = match &panel.runs {
            Runs::Load { variants, .. } => {
                points.iter().flat_map(|x| variants.iter().map(|variant| targets(&(variant.targets)(*x)))).sum()
            }
            Runs::Served { line, over, .. } => {
                let modes = line.split(' ').filter(|word| *word == "--mode").count();
                modes * (points.len() + usize::from(*over != Over::Local))
            }
            Runs::Modelled(_) => return panel.run_seconds,
        };
        float(runs) * turns * panel.run_seconds
    };
    let device = if figure.needs_device() && !quick { DEVICE_SECONDS } else { 0.0 };
    figure.panels.iter().map(panel).sum::<f64>() + device
}

/// How many targets a list has.
fn targets(list: &str) -> usize {
    spec::parse_list(list).map_or(0, |targets| targets.len())
}

#[expect(clippy::cast_precision_loss, reason = "a few hundred runs")]
fn float(count: usize) -> f64 {
    count as f64
}

/// What a figure needs, for a reader.
#[must_use]
pub fn needs_text(figure: &Figure) -> String {
    let lists = figure.panels.iter().flat_map(|panel| match &panel.runs {
        Runs::Load { variants, .. } => variants.iter().map(|variant| (variant.targets)(panel.x.points[0])).collect(),
        Runs::Served { line, .. } => vec![(*line).to_string()],
        Runs::Modelled(_) => Vec::new(),
    });
    let lists: Vec<String> = lists.collect();
    let kinds = lists.iter().filter_map(|list| spec::parse_list(list).ok()).flatten();
    let mut needs = Vec::new();
    let served = |line: &String| {
        line.split(' ')
            .filter_map(|word| word.parse::<Modes>().ok())
            .flat_map(|modes| modes.0)
            .any(|mode| mode.wait.is_linux_swap())
    };
    if kinds.into_iter().any(|target| target.is_the_kernels()) || lists.iter().any(served) {
        needs.push("root for Linux swap");
    }
    if figure.panels.iter().any(|panel| panel.ideal == Some(Latency::Device)) || lists.iter().any(|list| on_disk(list)) {
        needs.push("a disk");
    }
    let takes_python = |panel: &Panel| matches!(panel.runs, Runs::Load { line, .. } if line.starts_with("list "));
    if figure.panels.iter().any(takes_python) {
        needs.push("python3");
    }
    if figure.needs_server() {
        needs.push("a core for the generator");
    }
    if figure.needs_memcached() {
        needs.push("memcached");
    }
    if needs.is_empty() { "nothing else".into() } else { needs.join(", ") }
}

/// Whether pages of some target of a list go to the disk.
fn on_disk(list: &str) -> bool {
    let targets = spec::parse_list(list).unwrap_or_default();
    targets.iter().any(|target| match target.kind() {
        "farshore" => !target.to_string().contains("swap="),
        kind => kind == "linux-swap",
    })
}
