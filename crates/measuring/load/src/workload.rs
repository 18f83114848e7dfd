//! The workloads and their options. clap reads them here and in whoever starts `farshore-load`; [`Workload::arguments`]
//! gives them back as words.
//!
//! The workloads are those of the papers whose results they are set against: `random` and `hotset` (ExtMem §4.1, mmapbench),
//! `scan`, `gups-move` and `phase` (MAGE §6.2: sequential scan, GUPS, Metis), `pagerank` (MAGE §6.2, ExtMem §4.3: GAP), `bfs` (ScaleSwap §5.3) and `cc` (GAP),
//! `stress` (ScaleSwap §5), `kmers`, `list` and `images` (ScaleSwap §5.3), `grid` (XSBench; its look-ups alone), `tree` (the ordered map of Rust's standard library), `reads` (MAGE §6.4: raw reads), `kv` (MAGE §6.3: memcached, Facebook's USR mix).

use std::fmt;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};

use crate::size::Bytes;

/// A workload with its options.
#[derive(Subcommand, Clone, PartialEq, Debug)]
pub enum Workload {
    /// Read or update pages at random
    Random(Random),
    /// Go through all pages in order, several times
    Scan(Scan),
    /// 90 % of the accesses go to 10 % of the pages
    Hotset(Hotset),
    /// Zipf-distributed updates in one region, in mid-run in another
    GupsMove(GupsMove),
    /// Map over one region, then reduce over another
    Phase(PhaseArgs),
    /// PageRank of a Kronecker graph
    Pagerank(Pagerank),
    /// Breadth-first searches of a Kronecker graph
    Bfs(Search),
    /// Connected components of a Kronecker graph
    Cc(Search),
    /// Every thread writes memory of its own and reads it back
    Stress(Stress),
    /// Words of 16 letters in reads of a genome are counted in one table
    Kmers(Kmers),
    /// A list of Python's is made and gone through (needs python3)
    List(List),
    /// Pictures are made grey or flipped
    Images(Images),
    /// XSBench's look-ups of cross sections on a unionised grid
    Grid(Grid),
    /// Look-ups of random keys in a BTreeMap of Rust's
    Tree(Tree),
    /// Each thread raises a signal and takes it, again and again
    Signals(Signals),
    /// Pages of a file, or of memory that answers late, are read as they are, without far memory
    Reads(Reads),
    /// Requests to a redis or memcached server, on an absolute schedule
    Kv(Kv),
}

/// What all workloads take.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct Common {
    /// Memory of the data
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    pub size: Bytes,
    /// Threads that work
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,
    /// Measured seconds, for workloads that have no end of their own
    #[arg(long, value_name = "SECONDS", default_value_t = 6.0, value_parser = seconds)]
    pub seconds: f64,
    /// Seconds of the same load before that
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds)]
    pub warmup: f64,
    /// Where the random numbers start
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// What is done to a page.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Read one word of it
    Read,
    /// Add to one word of it
    #[default]
    Update,
}

/// `random`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct Random {
    #[command(flatten)]
    /// Size, threads, time.
    pub common: Common,
    /// What is done to a page
    #[arg(long, value_enum, default_value_t)]
    pub mode: Mode,
    /// Neighbouring pages that one operation goes through; 512 is the random access of mmapbench
    #[arg(long, value_name = "PAGES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=512))]
    pub run_length: u32,
}

/// `scan`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct Scan {
    #[command(flatten)]
    /// Size and threads.
    pub common: Common,
    /// What is done to a page
    #[arg(long, value_enum, default_value_t = Mode::Read)]
    pub mode: Mode,
    /// How often all pages are gone through
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub passes: u32,
}

/// `hotset`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct Hotset {
    #[command(flatten)]
    /// Size, threads, time.
    pub common: Common,
    /// What is done to a page
    #[arg(long, value_enum, default_value_t)]
    pub mode: Mode,
    /// Hot pages, in percent of all
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = percent)]
    pub hot_pages: f64,
    /// Accesses that go to them, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 90.0, value_parser = percent)]
    pub hot_accesses: f64,
}

/// `gups-move`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct GupsMove {
    #[command(flatten)]
    /// Size, threads, time.
    pub common: Common,
    /// Skew of the updates
    #[arg(long, value_name = "EXPONENT", default_value_t = 0.99, value_parser = exponent)]
    pub zipf: f64,
    /// The region of the first half, in percent of the data; the rest is the second half's
    #[arg(long, value_name = "PERCENT", default_value_t = 80.0, value_parser = percent)]
    pub first_region: f64,
}

/// `phase`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct PhaseArgs {
    #[command(flatten)]
    /// Size and threads.
    pub common: Common,
}

/// `pagerank`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct Pagerank {
    #[command(flatten)]
    /// Size (the graph is the largest that fits) and threads.
    pub common: Common,
    /// Vertices as a power of two, in place of --size
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(4..=30))]
    pub scale: Option<u32>,
    /// Edges drawn for each vertex
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub degree: u32,
    /// Iterations
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub iterations: u32,
    /// Read the graph from FILE; if it is not there, make it and write it there
    #[arg(long, value_name = "FILE")]
    pub graph: Option<PathBuf>,
    /// Only make the file of --graph
    #[arg(long, requires = "graph")]
    pub only_graph: bool,
}

/// `bfs` and `cc`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct Search {
    #[command(flatten)]
    /// Size (the graph is the largest that fits) and threads.
    pub common: Common,
    /// Vertices as a power of two, in place of --size
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(4..=30))]
    pub scale: Option<u32>,
    /// Edges drawn for each vertex
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub degree: u32,
    /// How often the graph is searched: bfs, each time from another vertex; cc, from the start
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub trials: u32,
    /// Read the graph from FILE; if it is not there, make it and write it there
    #[arg(long, value_name = "FILE")]
    pub graph: Option<PathBuf>,
    /// Only make the file of --graph
    #[arg(long, requires = "graph")]
    pub only_graph: bool,
}

/// `stress`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct Stress {
    #[command(flatten)]
    /// Size (of all threads together) and threads.
    pub common: Common,
    /// How often it is written and read back
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub passes: u32,
}

/// `kmers`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct Kmers {
    #[command(flatten)]
    /// Size (of text and table together), threads, time.
    pub common: Common,
}

/// `list`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct List {
    #[command(flatten)]
    /// Size (40 bytes for each element); it has one thread.
    pub common: Common,
    /// How often it is gone through
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub passes: u32,
}

/// What becomes of a picture.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Change {
    /// A grey one
    #[default]
    Grey,
    /// One whose left is right
    Flip,
}

/// `images`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct Images {
    #[command(flatten)]
    /// Size (of pictures and what is made of them together) and threads.
    pub common: Common,
    /// What is made of each
    #[arg(long, value_enum, default_value_t)]
    pub change: Change,
    /// How often that is made
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub passes: u32,
}

/// `grid`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct Grid {
    #[command(flatten)]
    /// Size, threads, time.
    pub common: Common,
}

/// `tree`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct Tree {
    #[command(flatten)]
    /// Size (about: what a map takes depends on its nodes), threads, time.
    pub common: Common,
    /// What is done to a value
    #[arg(long, value_enum, default_value_t)]
    pub mode: Mode,
}

/// `signals`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct Signals {
    #[command(flatten)]
    /// Threads and time; there are no data.
    pub common: Common,
    /// Each thread is a process of its own
    #[arg(long)]
    pub processes: bool,
}

/// `reads`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct Reads {
    #[command(flatten)]
    /// Size (of what is read), threads, time.
    pub common: Common,
    /// Where the file is, which has no name
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/tmp")]
    pub directory: PathBuf,
    /// Read memory that answers after so many ns, in place of a file
    #[arg(long, value_name = "NS", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub delay: Option<u64>,
    /// Threads that write meanwhile, 64 pages at a time
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=64))]
    pub writers: u32,
    /// They write no more pages than are read
    #[arg(long, requires = "writers")]
    pub in_step: bool,
}

/// Whose language a server speaks.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Server {
    /// redis-server
    #[default]
    Redis,
    /// memcached, text protocol
    Memcached,
}

/// `kv`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct Kv {
    #[command(flatten)]
    /// Size of all values together, threads of the generator, time.
    pub common: Common,
    /// What the server is
    #[arg(long, value_enum, default_value_t)]
    pub server: Server,
    /// Where it listens: a TCP address (127.0.0.1:6379) or the path of a socket
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6379")]
    pub address: String,
    /// Requests a second, whatever the answers do
    #[arg(long, value_name = "N", default_value_t = 10_000.0, value_parser = rate)]
    pub rate: f64,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub connections: u32,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(64..=1_048_576))]
    pub value_size: u32,
    /// GETs, in percent of the requests; the rest are SETs
    #[arg(long, value_name = "PERCENT", default_value_t = 99.8, value_parser = percent)]
    pub gets: f64,
    /// Skew of the keys
    #[arg(long, value_name = "EXPONENT", default_value_t = 0.99, value_parser = exponent)]
    pub zipf: f64,
}

impl Pagerank {
    /// Memory of the graph with its ranks at most, in bytes: loops and edges that are drawn twice make it a few percent smaller.
    #[must_use]
    pub fn most_bytes(scale: u32, degree: u32) -> u64 {
        // Each edge in both directions, 4 bytes each; an offset of 8 bytes for each vertex, one more at the end, and two ranks.
        (1_u64 << scale) * (8 * u64::from(degree) + 16) + 8
    }

    /// The graph's scale: as asked for, or that of the largest graph that fits the size.
    ///
    /// # Errors
    /// None fits: one line.
    pub fn graph_scale(&self) -> Result<u32, String> {
        graph_scale(self.scale, self.common.size, self.degree, Self::most_bytes)
    }
}

impl Search {
    /// Memory of the graph with what a search keeps at most, in bytes: four bytes a vertex for each search of `bfs`, and eight for `cc`.
    #[must_use]
    pub fn most_bytes(scale: u32, degree: u32, trials: u32) -> u64 {
        (1_u64 << scale) * (8 * u64::from(degree) + 8 + 4 * u64::from(trials.max(2))) + 8
    }

    /// As [`Pagerank::graph_scale`].
    ///
    /// # Errors
    /// None fits: one line.
    pub fn graph_scale(&self) -> Result<u32, String> {
        graph_scale(self.scale, self.common.size, self.degree, |scale, degree| Self::most_bytes(scale, degree, self.trials))
    }
}

/// Entries of some graphs, by their scale, as they were counted: loops are none, and edges that are drawn twice are one. A quarter fewer than drawn in the smallest.
pub const ENTRIES: &[(u32, u64)] =
    &[(15, 882_022), (16, 1_817_680), (17, 3_726_124), (18, 7_609_484), (19, 15_478_942), (20, 31_396_804), (21, 63_535_904)];
/// The degree and the seed of those.
pub const ENTRIES_DEGREE: u32 = 16;
/// See [`ENTRIES_DEGREE`].
pub const ENTRIES_SEED: u64 = 1;

/// A graph's scale: as asked for, or that of the largest one that fits.
fn graph_scale(asked: Option<u32>, size: Bytes, degree: u32, most_bytes: impl Fn(u32, u32) -> u64) -> Result<u32, String> {
    let bytes = |scale: u32| Bytes(most_bytes(scale, degree));
    let least = 4;
    let fitting = || (least..=30).rev().find(|scale| bytes(*scale) <= size);
    asked.or_else(fitting).ok_or_else(|| {
        let smallest = bytes(least);
        format!("no graph of degree {degree} fits into {size}: the smallest takes {smallest}; give more --size or less --degree")
    })
}

impl Workload {
    /// Memory of its data at most, in bytes.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        match self {
            Workload::Pagerank(pagerank) => {
                pagerank.graph_scale().map_or(pagerank.common.size.0, |scale| Pagerank::most_bytes(scale, pagerank.degree))
            }
            Workload::Bfs(search) | Workload::Cc(search) => {
                // Those of `cc` use the same memory, one after another.
                let trials = if matches!(self, Workload::Cc(_)) { 1 } else { search.trials };
                let most = |scale| Search::most_bytes(scale, search.degree, trials);
                search.graph_scale().map_or(search.common.size.0, most)
            }
            _ => self.common().size.0,
        }
    }

    /// Memory of its data, in bytes, where it is known beforehand; at most so much where it is not.
    #[must_use]
    pub fn usual_bytes(&self) -> u64 {
        let (scale, common, degree) = match self {
            Workload::Pagerank(pagerank) => (pagerank.graph_scale(), &pagerank.common, pagerank.degree),
            Workload::Bfs(search) | Workload::Cc(search) => (search.graph_scale(), &search.common, search.degree),
            _ => return self.data_bytes(),
        };
        let is_counted = degree == ENTRIES_DEGREE && common.seed == ENTRIES_SEED;
        let counted = ENTRIES.iter().find(|(counted, _)| is_counted && scale == Ok(*counted));
        let lacks = counted.map_or(0, |(scale, entries)| ((2 * u64::from(degree)) << scale) - entries);
        self.data_bytes() - 4 * lacks
    }

    /// Its name on the command line.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Workload::Random(_) => "random",
            Workload::Scan(_) => "scan",
            Workload::Hotset(_) => "hotset",
            Workload::GupsMove(_) => "gups-move",
            Workload::Phase(_) => "phase",
            Workload::Pagerank(_) => "pagerank",
            Workload::Bfs(_) => "bfs",
            Workload::Cc(_) => "cc",
            Workload::Stress(_) => "stress",
            Workload::Kmers(_) => "kmers",
            Workload::List(_) => "list",
            Workload::Images(_) => "images",
            Workload::Grid(_) => "grid",
            Workload::Tree(_) => "tree",
            Workload::Signals(_) => "signals",
            Workload::Reads(_) => "reads",
            Workload::Kv(_) => "kv",
        }
    }

    /// What all workloads take.
    #[must_use]
    pub fn common(&self) -> &Common {
        match self {
            Workload::Random(Random { common, .. })
            | Workload::Scan(Scan { common, .. })
            | Workload::Hotset(Hotset { common, .. })
            | Workload::GupsMove(GupsMove { common, .. })
            | Workload::Phase(PhaseArgs { common, .. })
            | Workload::Pagerank(Pagerank { common, .. })
            | Workload::Bfs(Search { common, .. })
            | Workload::Cc(Search { common, .. })
            | Workload::Stress(Stress { common, .. })
            | Workload::Kmers(Kmers { common })
            | Workload::List(List { common, .. })
            | Workload::Images(Images { common, .. })
            | Workload::Grid(Grid { common })
            | Workload::Tree(Tree { common, .. })
            | Workload::Signals(Signals { common, .. })
            | Workload::Reads(Reads { common, .. })
            | Workload::Kv(Kv { common, .. }) => common,
        }
    }

    /// The same, to change it.
    pub fn common_mut(&mut self) -> &mut Common {
        match self {
            Workload::Random(Random { common, .. })
            | Workload::Scan(Scan { common, .. })
            | Workload::Hotset(Hotset { common, .. })
            | Workload::GupsMove(GupsMove { common, .. })
            | Workload::Phase(PhaseArgs { common, .. })
            | Workload::Pagerank(Pagerank { common, .. })
            | Workload::Bfs(Search { common, .. })
            | Workload::Cc(Search { common, .. })
            | Workload::Stress(Stress { common, .. })
            | Workload::Kmers(Kmers { common })
            | Workload::List(List { common, .. })
            | Workload::Images(Images { common, .. })
            | Workload::Grid(Grid { common })
            | Workload::Tree(Tree { common, .. })
            | Workload::Signals(Signals { common, .. })
            | Workload::Reads(Reads { common, .. })
            | Workload::Kv(Kv { common, .. }) => common,
        }
    }

    /// Where its graph comes from and whether it only makes that, for those that have one.
    pub fn graph_mut(&mut self) -> Option<(&mut Option<PathBuf>, &mut bool)> {
        match self {
            Workload::Pagerank(Pagerank { graph, only_graph, .. })
            | Workload::Bfs(Search { graph, only_graph, .. })
            | Workload::Cc(Search { graph, only_graph, .. }) => Some((graph, only_graph)),
            _ => None,
        }
    }

    /// The words that say the same to `farshore-load`, its own name not among them.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let common = self.common();
        let mut words = Words(vec![self.name().into()]);
        words.option("size", common.size);
        words.option("threads", common.threads);
        words.option("seconds", common.seconds);
        words.option("warmup", common.warmup);
        words.option("seed", common.seed);
        match self {
            Workload::Random(random) => {
                words.option("mode", random.mode);
                words.option("run-length", random.run_length);
            }
            Workload::Scan(scan) => {
                words.option("mode", scan.mode);
                words.option("passes", scan.passes);
            }
            Workload::Hotset(hotset) => {
                words.option("mode", hotset.mode);
                words.option("hot-pages", hotset.hot_pages);
                words.option("hot-accesses", hotset.hot_accesses);
            }
            Workload::GupsMove(gups) => {
                words.option("zipf", gups.zipf);
                words.option("first-region", gups.first_region);
            }
            Workload::Phase(_) | Workload::Grid(_) | Workload::Kmers(_) => {}
            Workload::Pagerank(pagerank) => {
                words.option("iterations", pagerank.iterations);
                words.graph(pagerank.scale, pagerank.degree, pagerank.graph.as_deref(), pagerank.only_graph);
            }
            Workload::Bfs(search) | Workload::Cc(search) => {
                words.option("trials", search.trials);
                words.graph(search.scale, search.degree, search.graph.as_deref(), search.only_graph);
            }
            Workload::Stress(stress) => words.option("passes", stress.passes),
            Workload::List(list) => words.option("passes", list.passes),
            Workload::Images(images) => {
                words.option("change", images.change);
                words.option("passes", images.passes);
            }
            Workload::Tree(tree) => words.option("mode", tree.mode),
            Workload::Signals(signals) if signals.processes => words.0.push("--processes".into()),
            Workload::Signals(_) => {}
            Workload::Reads(reads) => {
                words.option("directory", reads.directory.display());
                words.option("writers", reads.writers);
                reads.delay.into_iter().for_each(|ns| words.option("delay", ns));
                if reads.in_step {
                    words.0.push("--in-step".into());
                }
            }
            Workload::Kv(kv) => {
                words.option("server", kv.server);
                words.option("address", &kv.address);
                words.option("rate", kv.rate);
                words.option("connections", kv.connections);
                words.option("value-size", kv.value_size);
                words.option("gets", kv.gets);
                words.option("zipf", kv.zipf);
            }
        }
        words.0
    }
}

/// A command line being made.
struct Words(Vec<String>);

impl Words {
    fn option(&mut self, name: &str, value: impl fmt::Display) {
        self.0.push(format!("--{name}={value}"));
    }

    fn graph(&mut self, scale: Option<u32>, degree: u32, file: Option<&Path>, only: bool) {
        if let Some(scale) = scale {
            self.option("scale", scale);
        }
        self.option("degree", degree);
        if let Some(file) = file {
            self.option("graph", file.display());
        }
        if only {
            self.0.push("--only-graph".into());
        }
    }
}

/// As on the command line.
fn word(value: &impl ValueEnum, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    value.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        word(self, f)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        word(self, f)
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        word(self, f)
    }
}

/// Reads a number of the command line.
///
/// # Errors
/// It is none, or out of range: a line for the user, with what it is.
pub fn number(text: &str, what: &str, least: f64, most: f64) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (least..=most).contains(&value) => Ok(value),
        _ => Err(format!("invalid {what} {text:?}: write a number from {least} to {most}")),
    }
}

/// Reads seconds of the command line, up to a day.
///
/// # Errors
/// As [`number`].
pub fn seconds(text: &str) -> Result<f64, String> {
    number(text, "number of seconds", 0.0, 86_400.0)
}

fn percent(text: &str) -> Result<f64, String> {
    number(text, "percentage", 0.0, 100.0)
}

fn exponent(text: &str) -> Result<f64, String> {
    number(text, "exponent", 0.0, 10.0)
}

fn rate(text: &str) -> Result<f64, String> {
    number(text, "rate", 1.0, 1e8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        workload: Workload,
    }

    fn pagerank(size: u64) -> Pagerank {
        match Line::try_parse_from(["x", "pagerank", "--size", &size.to_string()]).map(|line| line.workload) {
            Ok(Workload::Pagerank(pagerank)) => pagerank,
            other => panic!("{:?}", other.map_err(|error| error.to_string())),
        }
    }

    #[test]
    fn the_largest_graph_that_fits() {
        for scale in [4, 5, 21, 30] {
            let bytes = Pagerank::most_bytes(scale, 16);
            assert_eq!(pagerank(bytes).graph_scale(), Ok(scale));
            assert_eq!(pagerank(bytes * 2 - 9).graph_scale(), Ok(scale));
            assert_eq!(Workload::Pagerank(pagerank(bytes + 1)).data_bytes(), bytes);
        }
        assert_eq!(pagerank(512 << 20).graph_scale(), Ok(21));
        let said = pagerank(1000).graph_scale().unwrap_err();
        assert!(said.contains("degree 16") && said.contains("--size"), "{said}");
    }

    #[test]
    fn what_is_counted_is_known() {
        let bytes = |line: &str| {
            let line = Line::try_parse_from(std::iter::once("x").chain(line.split(' ')));
            line.map(|line| (line.workload.usual_bytes(), line.workload.data_bytes())).map_err(|error| error.to_string()).unwrap()
        };
        for (scale, entries) in ENTRIES {
            let vertices = 1 << scale;
            let graph = 4 * entries + 8 * (vertices + 1);
            assert_eq!(bytes(&format!("pagerank --scale {scale}")).0, graph + 8 * vertices);
            assert_eq!(bytes(&format!("bfs --scale {scale} --trials 3")).0, graph + 12 * vertices);
            assert_eq!(bytes(&format!("cc --scale {scale}")).0, graph + 8 * vertices);
            assert!(entries * 100 > (32 << scale) * 75, "{scale}");
        }
        for line in ["pagerank --scale 20 --seed 2", "bfs --scale 20 --degree 8", "cc --scale 12", "grid --size 5M"] {
            let (usual, most) = bytes(line);
            assert_eq!(usual, most, "{line}");
        }
    }

    #[test]
    fn the_largest_graph_that_fits_a_search() {
        let search =
            |line: &str| match Line::try_parse_from(std::iter::once("x").chain(line.split(' '))).map(|line| line.workload) {
                Ok(Workload::Bfs(search)) => search,
                other => panic!("{:?}", other.map_err(|error| error.to_string())),
            };
        let bytes = Search::most_bytes(12, 16, 4);
        assert_eq!(search(&format!("bfs --size {bytes}")).graph_scale(), Ok(12));
        assert_eq!(search(&format!("bfs --size {}", bytes - 1)).graph_scale(), Ok(11));
        assert_eq!(Workload::Bfs(search("bfs --scale 12")).data_bytes(), bytes);
        assert!(search("bfs --size 1000").graph_scale().unwrap_err().contains("degree 16"));
    }

    #[test]
    fn the_words_say_the_same() {
        for line in [
            "random --size 1G --threads 8 --run-length 512 --mode read",
            "scan --passes 7 --mode update --seed 9",
            "hotset --hot-pages 5 --hot-accesses 99.5 --seconds 0.5 --warmup 0",
            "gups-move --zipf 1.2 --first-region 50",
            "phase --size 1536K",
            "pagerank --scale 20 --degree 8 --iterations 3 --graph /x/g --only-graph",
            "bfs --scale 12 --degree 4 --trials 2 --graph /x/g --only-graph",
            "cc --size 3M --trials 7",
            "stress --passes 1",
            "kmers --size 64M --threads 2 --seconds 3",
            "list --size 64M --passes 3",
            "images --size 64M --threads 2 --change flip --passes 3",
            "grid --size 64M --threads 2",
            "tree --mode read --size 32M",
            "signals --threads 4 --processes --seconds 0.5",
            "signals --threads 4",
            "reads --size 8M --threads 2 --directory /x --writers 2 --in-step",
            "reads --delay 4000",
            "kv --server memcached --address /run/s --rate 2500.5 --connections 3 --value-size 100 --gets 50 --zipf 0",
        ] {
            let words = std::iter::once("x").chain(line.split(' '));
            let workload = Line::try_parse_from(words).map_or_else(|error| panic!("{line}: {error}"), |line| line.workload);
            let again = std::iter::once("x".to_string()).chain(workload.arguments());
            let again = Line::try_parse_from(again).map_or_else(|error| panic!("{line}: {error}"), |line| line.workload);
            assert_eq!(workload, again, "{line}");
        }
    }
}
