//! `farshore bench paper`: the papers' figures, measured here in scaled form, and set against their numbers.
//!
//! ```text
//! a figure   panels ─▶ points ─▶ one comparison each (experiments of this crate, all targets in turn) ─▶ raw.json
//! raw.json   series ─▶ points with intervals ─▶ plots;   claims ─▶ verdicts ─▶ two sentences ─▶ index.html
//! ```
//!
//! 1. **A figure is data**: what is run at which points, what is drawn, which numbers the paper's text has and where, what is compared with them by which
//!    rule. To add one: a [`Figure`] in the file of its paper (or beside it, in a folder of that name), and its name in [`all`]. The tests say what it lacks.
//! 2. **Raw rows are results** as every other comparison's ([`crate::result`]), each experiment with its place in the figure
//!    ([`crate::result::PaperPoint`]). A page is made from them alone, so `--from` makes the same page again.
//! 3. **Numbers of a paper are digits of its text or tables, or computed from them and marked so.** Nothing is read off a drawing; a curve without digits has no reference.
//! 4. **Verdicts are made by a rule** from the interval of what was measured ([`judge`]). What is known beforehand is written by hand, with the claim, and stands apart from verdicts.
//!
//! | module | what it does |
//! |---|---|
//! | `mage`, `extmem`, `adios`, `scaleswap` | the figures |
//! | `beyond`, `kept`, [`model`] | figures of machines that are not here, modelled |
//! | [`plan`] | which comparisons a figure is made of, and how long they take |
//! | [`series`] | from raw rows to points with intervals |
//! | [`judge`] | claims: what agrees, what does not |
//! | `draw`, `parts` | its plots |
//! | [`page`], [`index`] | a figure's page; the page of all of them |

mod adios;
mod beyond;
mod draw;
mod extmem;
pub mod index;
pub mod judge;
mod kept;
mod mage;
pub mod model;
pub mod page;
mod parts;
pub mod plan;
mod scaleswap;
pub mod series;
pub mod text;

use crate::report::axis::Scale;

/// A paper.
#[derive(Debug)]
pub struct Paper {
    /// As it is called here.
    pub name: &'static str,
    /// Its title.
    pub title: &'static str,
}

/// A figure of a paper, as it is made here.
#[derive(Debug)]
pub struct Figure {
    /// As the command line has it: `mage-9`.
    pub name: &'static str,
    /// The paper.
    pub paper: &'static Paper,
    /// Which figure or table of it: `Figure 9`.
    pub number: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// How the paper measured it.
    pub there: &'static str,
    /// How it is scaled here, and what of it is not here.
    pub here: &'static str,
    /// Its parts.
    pub panels: &'static [Panel],
    /// What is compared with the paper's numbers, the headline first.
    pub claims: &'static [Claim],
}

/// A part of a figure: runs at several points, which one or more plots show.
#[derive(Debug)]
pub struct Panel {
    /// Its name in raw rows.
    pub key: &'static str,
    /// Its title.
    pub title: &'static str,
    /// What changes from point to point.
    pub x: Across,
    /// What is run.
    pub runs: Runs,
    /// About how long one run of one target takes with all that belongs to it, in seconds: on the machine of the README's table.
    pub run_seconds: f64,
    /// The ideal line belongs to it, for this latency of far memory.
    pub ideal: Option<Latency>,
    /// What is drawn of it.
    pub plots: &'static [Plot],
}

/// The horizontal axis.
#[derive(Debug)]
pub struct Across {
    /// What it is.
    pub label: &'static str,
    /// How it is drawn.
    pub scale: Scale,
    /// The points.
    pub points: &'static [f64],
    /// Those of the quick form.
    pub quick: &'static [f64],
}

/// How long far memory takes for a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Latency {
    /// As the device below the swap files does.
    Device,
    /// So many ns: `delay:`.
    Delay(u64),
}

/// What is run at each point.
#[derive(Debug)]
pub enum Runs {
    /// A workload.
    Load {
        /// As `farshore bench` takes it.
        line: &'static str,
        /// The same for the quick form.
        quick: &'static str,
        /// What a point changes.
        vary: Vary,
        /// The comparisons at each point.
        variants: &'static [Variant],
    },
    /// A service of ours, as `farshore bench uthread` takes it.
    Served {
        /// Service and options.
        line: &'static str,
        /// The same for the quick form.
        quick: &'static str,
        /// What a point is.
        over: Over,
    },
    /// Nothing: the model says what each of these systems would do at a point.
    Modelled(fn(f64) -> Vec<model::Run>),
}

/// What a point of a workload's panel changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vary {
    /// Far memory, in percent of the data.
    Far,
    /// Threads.
    Threads,
    /// Swap files, for targets without swap spaces of their own.
    Files,
    /// The targets alone: they are made from the point.
    Targets,
}

/// What a point of a service's panel is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// The load, in percent of the highest throughput of the reference (`busy`, if the line names no other). That is measured first, as the panel KEY`-peak`.
    Load,
    /// Local memory in percent of the data; the load is as high as can be.
    Local,
    /// The same under so many percent of the load that the reference takes with all data local. That is measured first, as the panel KEY`-peak`.
    LocalUnder(u8),
}

/// One comparison at a point.
#[derive(Debug)]
pub struct Variant {
    /// What sets it apart from the others of this panel; empty where it is alone.
    pub key: &'static str,
    /// Far memory in percent of the data, where points are not that.
    pub far: f64,
    /// The limit is lifted when the measured phase begins: pages come, and none leave.
    pub lifted: bool,
    /// The targets at a point, as `--against` has them.
    pub targets: fn(f64) -> String,
    /// A workload of its own, and its quick form; `None`: the panel's.
    pub lines: Option<[&'static str; 2]>,
}

/// What is drawn over the points.
#[derive(Debug)]
pub struct Plot {
    /// Its title.
    pub title: &'static str,
    /// What of each run.
    pub value: Value,
    /// The paper's numbers.
    pub references: &'static [Reference],
}

/// A number of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value {
    /// Operations a second.
    Rate,
    /// Operations a second, in percent of those of `native` in the same round.
    Kept,
    /// Operations a second in a part of the measured phase, which the workload names.
    Part(&'static str),
    /// The same, in percent of those of `native` in the same round.
    PartKept(&'static str),
    /// Pages that came from swap space a second, in the measured phase.
    PagesIn,
    /// The same, as many times those of the target of this label in the same round.
    Over(&'static str),
    /// This share of the operations took at most so long, in ns.
    Quantile(f64),
    /// The same, drawn over the operations a second that there were at each point.
    QuantileOverRate(f64),
    /// Mean time of an operation, in ns.
    Mean,
    /// Seconds of the measured phase.
    Seconds,
    /// How long after the change in mid-run the rate was back at nine tenths of what it was before, in s.
    Recovery,
    /// The lowest rate after that change, in percent of what it was before.
    Dip,
    /// Mean time that a core took to ask another one for slots, in ns.
    Delegation,
    /// How often a core asked another one for slots, a second.
    Delegations,
    /// Mean time of a part of a fetch, in ns: one of [`FETCH_PARTS`].
    FaultPart(&'static str),
    /// All of them, a series each.
    FaultParts,
    /// Mean time that a part took of the requests around the percentile of this share, in ns: one of [`REQUEST_PARTS`], or `queue` for both of its waits for a worker, `all`, or
    /// `but-page` for all but its own pages.
    RequestPart(&'static str, f64),
    /// All of them at all [`SHARES`], drawn as bars: no points.
    RequestParts,
    /// The rate over time, drawn as such: no points.
    Timeline,
}

/// Parts of a fetch, and what they are called in a legend. `all` is what the program sees, `around` what of it is in no other part.
pub const FETCH_PARTS: &[(&str, &str)] = &[
    ("all", "all"),
    ("around", "signal, waits and turns"),
    ("claim", "page and frame"),
    ("read", "read"),
    ("check", "check of the sum"),
    ("map", "map"),
    ("rest", "rest of the handler"),
];

/// Parts of a request, which add up to its time, and what they are called in a legend.
pub const REQUEST_PARTS: &[(&str, &str)] = &[
    ("spun", "waits while the worker spins for others' pages"),
    ("unspun", "other waits for the worker"),
    ("run", "runs"),
    ("page", "waits for its own pages"),
    ("other", "waits for something else"),
    ("reply", "reply"),
];

/// The percentiles at which requests are taken apart.
pub const SHARES: [f64; 4] = [0.1, 0.5, 0.99, 0.999];

impl Value {
    /// Its unit.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Value::Rate | Value::Part(_) | Value::PagesIn | Value::Delegations | Value::Timeline => "/s",
            Value::Kept | Value::PartKept(_) | Value::Dip => "%",
            Value::Over(_) => "×",
            Value::Quantile(_)
            | Value::QuantileOverRate(_)
            | Value::Mean
            | Value::Delegation
            | Value::FaultPart(_)
            | Value::FaultParts
            | Value::RequestPart(..)
            | Value::RequestParts => "ns",
            Value::Seconds | Value::Recovery => "s",
        }
    }

    /// Whether less of it is better.
    #[must_use]
    pub fn less_is_better(self) -> bool {
        !matches!(self.unit(), "/s" | "%" | "×")
    }

    /// The number that it is of `native`'s in percent; `None` if it is no such thing.
    #[must_use]
    pub fn of_native(self) -> Option<Value> {
        match self {
            Value::Kept => Some(Value::Rate),
            Value::PartKept(part) => Some(Value::Part(part)),
            _ => None,
        }
    }

    /// The label of the target that it is set against, if it is one of the same comparison that is not `native`.
    #[must_use]
    pub fn of_target(self) -> Option<&'static str> {
        if let Value::Over(label) = self { Some(label) } else { None }
    }

    /// Whether its place on the axis is the rate that was measured, and not the point.
    #[must_use]
    pub fn is_over_rate(self) -> bool {
        matches!(self, Value::QuantileOverRate(_))
    }

    /// What is drawn for it: a series each, with what is behind the name of its target.
    fn drawn(self) -> Vec<(Value, &'static str)> {
        match self {
            Value::FaultParts => FETCH_PARTS.iter().map(|(part, name)| (Value::FaultPart(part), *name)).collect(),
            value => vec![(value, "")],
        }
    }

    /// What it is, for an axis.
    #[must_use]
    pub fn label(self) -> String {
        match self {
            Value::Rate | Value::Timeline => "operations a second".into(),
            Value::Kept => "throughput, % of all local".into(),
            Value::Part(part) => format!("operations of {part} a second"),
            Value::PartKept(part) => format!("throughput of {part}, % of all local"),
            Value::PagesIn => "pages fetched a second".into(),
            Value::Over(label) => format!("operations a second, times those of {label}"),
            Value::Quantile(share) | Value::QuantileOverRate(share) => format!(
                "latency, {}th percentile",
                crate::report::text::digits(share * 100.0).trim_end_matches('0').trim_end_matches('.')
            ),
            Value::Mean => "mean latency".into(),
            Value::Seconds => "run time".into(),
            Value::Recovery => "time until it is back".into(),
            Value::Dip => "lowest rate, % of before".into(),
            Value::Delegation => "time of a delegation".into(),
            Value::Delegations => "delegations a second".into(),
            Value::FaultPart(part) => format!("mean time of a fetch, {part}"),
            Value::FaultParts => "mean time of a fetch".into(),
            Value::RequestPart(part, share) => format!("mean time of requests around P{}, {part}", share * 100.0),
            Value::RequestParts => "mean time of requests by part".into(),
        }
    }
}

/// Numbers of the paper.
#[derive(Debug)]
pub struct Reference {
    /// Of which system.
    pub system: &'static str,
    /// Where they stand: `§6.2`, `Table 6`.
    pub section: &'static str,
    /// What the text says, in its digits.
    pub says: &'static str,
    /// (x, y) on the plot's axes; empty where it has no place there: another machine's absolute numbers.
    pub points: &'static [(f64, f64)],
}

/// Something that a paper claims and that is measured here.
#[derive(Debug)]
pub struct Claim {
    /// What: "throughput that is kept with 10 % far memory, PageRank".
    pub what: &'static str,
    /// The paper's system, and what it is set against if that is a ratio: `MAGE-Lib over Hermit`.
    pub system: &'static str,
    /// Where it stands.
    pub section: &'static str,
    /// The paper's number; `None` where its text has none, and only says which is better.
    pub papers: Option<f64>,
    /// What the number is computed from, or of what it is a bound; empty where its digits are the text's.
    pub from: &'static str,
    /// The paper says it of what it does better than. Who does better than that contradicts it.
    pub baseline: bool,
    /// What is set beside it.
    pub ours: Ours,
    /// Which of the setups' differences is expected to matter: written before anything was measured, and not given as the cause of what was.
    pub why: &'static str,
}

/// What is measured for a claim.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Ours {
    /// A number as it is.
    Level(Term),
    /// How many times better the first is than the second.
    Times(Term, Term),
    /// The same in percent: how much of the second's speed the first has.
    Percent(Term, Term),
}

/// A number of a series at a point.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Term {
    /// The panel.
    pub panel: &'static str,
    /// What of its runs.
    pub value: Value,
    /// The series: a target's label, and behind a comma its variant.
    pub series: &'static str,
    /// The point.
    pub x: f64,
}

/// All figures, paper by paper.
pub fn all() -> impl Iterator<Item = &'static Figure> {
    [mage::FIGURES, extmem::FIGURES, adios::FIGURES, scaleswap::FIGURES, beyond::FIGURES, kept::FIGURES]
        .into_iter()
        .flatten()
        .copied()
}

/// The figure of this name.
///
/// # Errors
/// There is none: one line with those that there are.
pub fn find(name: &str) -> Result<&'static Figure, String> {
    let names = || all().map(|figure| figure.name).collect::<Vec<_>>().join(", ");
    all()
        .find(|figure| figure.name == name)
        .ok_or_else(|| format!("no figure is called {name:?}: there are {}, or all for each of them", names()))
}

impl Figure {
    /// `MAGE, Figure 9`.
    #[must_use]
    pub fn place(&self) -> String {
        format!("{}, {}", self.paper.name, self.number)
    }

    /// Its panel of this name.
    #[must_use]
    pub fn panel(&self, key: &str) -> Option<&'static Panel> {
        self.panels.iter().find(|panel| panel.key == key)
    }

    /// Whether the device has to be measured for it.
    #[must_use]
    pub fn needs_device(&self) -> bool {
        self.panels.iter().any(|panel| panel.ideal == Some(Latency::Device))
    }

    /// Whether it is modelled, and nothing of it measured.
    #[must_use]
    pub fn is_modelled(&self) -> bool {
        self.panels.iter().all(|panel| matches!(panel.runs, Runs::Modelled(_)))
    }

    /// Whether it takes the real memcached.
    #[must_use]
    pub fn needs_memcached(&self) -> bool {
        self.panels.iter().any(|panel| matches!(&panel.runs, Runs::Served { line, .. } if line.contains("--mode memcached")))
    }

    /// Whether it takes `farshore-serve`.
    #[must_use]
    pub fn needs_server(&self) -> bool {
        self.panels.iter().any(|panel| matches!(panel.runs, Runs::Served { .. }))
    }
}

/// A comparison of its own at each point.
const fn only(far: f64, targets: fn(f64) -> String) -> Variant {
    Variant { key: "", far, lifted: false, targets, lines: None }
}

/// A number of a series at a point.
const fn term(panel: &'static str, value: Value, series: &'static str, x: f64) -> Term {
    Term { panel, value, series, x }
}

#[cfg(test)]
mod tests;
