//! The command line of `farshore bench`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use farshore_command::usage::Words;
use farshore_load::size::Bytes;
use farshore_load::workload::Workload;

use crate::result::Axis;
use crate::run::THERE_IS;
use crate::targets::spec::{self, Spec};
use crate::uthread::args::UthreadArgs;

/// The one command.
#[derive(Subcommand, Debug)]
pub enum Command {
    #[expect(missing_docs, reason = "it would be the help")]
    #[command(
        about = farshore_command::BENCH_ABOUT,
        long_about = "Runs a workload, or a program of yours, under several targets in turn (Farshore, no limit, Linux swap, zram, zswap), for \
    several rounds. Then it shows how they compare: medians, ratios round by round with an interval, latencies, faults, processor time, \
    and what share of the disk's own limit the transfers took."
    )]
    Bench(Box<BenchArgs>),
}

/// What usage errors name.
pub const WORDS: Words = Words { first: "workload", known: THERE_IS, required: &[] };

/// `farshore bench`.
#[derive(Args, Debug)]
#[command(
    override_usage = "farshore bench WORKLOAD [OPTIONS] [--against TARGET[,TARGET]...]\n       \
    farshore bench [OPTIONS] [--against TARGET[,TARGET]...] -- PROGRAM [ARG]...\n       \
    farshore bench canonical [OPTIONS]\n       \
    farshore bench families [OPTIONS]\n       \
    farshore bench paper [FIGURE|all] [OPTIONS]\n       \
    farshore bench uthread [array|kv|scan|tpcc|vsearch|switch] [OPTIONS]\n       \
    farshore bench device [OPTIONS]\n       \
    farshore bench --compare OLD.json NEW.json",
    after_long_help = AFTER_BENCH,
    subcommand_help_heading = "Workloads",
    subcommand_value_name = "WORKLOAD",
    disable_help_subcommand = true
)]
pub struct BenchArgs {
    /// What is measured.
    #[command(subcommand)]
    pub what: Option<What>,

    /// What to run the program under; the first is set against each of the others [default: farshore,linux-swap]
    ///
    /// TARGET is one of
    ///   native                 no limit, without Farshore;
    ///   farshore[:OPTION[+OPTION]...]
    ///                          farshore run; OPTION is KEY=VALUE with an option of farshore run
    ///                          (prefetch=none, evictors=2, swap=delay:10us; swap=dir for a file
    ///                          below --dir, swap=dir\,size=1G for one that is no larger), or
    ///                          build=PATH for another build's command;
    ///   linux-swap             a memory cgroup (v1 or v2), and swap files in the same directory;
    ///   zram                   the same cgroup, and compressed RAM with lz4;
    ///   zswap                  the same swap files behind the kernel's compressed cache;
    ///   command:WORDS          WORDS before the program: 'command:nice -n 5'.
    /// With zram:pool=counted and zswap:pool=counted the limit is for what is compressed, too. With readahead=none
    /// the last three read no pages ahead of those that are asked for.
    /// Each also takes the options label=NAME and env.NAME=VALUE. Write a comma in an option as \,.
    /// linux-swap, zram and zswap need root.
    #[arg(long, global = true, value_name = "TARGETS", verbatim_doc_comment, value_parser = targets)]
    pub against: Vec<Targets>,

    /// Local memory for the program's data [default: half of --size]
    #[arg(long, global = true, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory: Option<Bytes>,

    /// RAM for compressed pages on top of --memory, for targets such as farshore:swap=ram:lz4, whose limit is both together
    ///
    /// A pool of Farshore's lies within that limit. zram takes what it needs on top of --memory in any case; its settings in the
    /// results say how much that was (compressed_bytes_peak).
    #[arg(long, global = true, value_name = "SIZE")]
    pub pool: Option<Bytes>,

    /// What a cgroup gets on top of --memory, for text, stacks and page tables
    #[arg(long, global = true, value_name = "SIZE", default_value = "4M")]
    pub extra: Bytes,

    /// How much the swap space must hold [default: twice the data of a workload, four times --memory for a program]
    #[arg(long, global = true, value_name = "SIZE")]
    pub swap_size: Option<Bytes>,

    /// Swap files to spread cold pages over
    #[arg(long, global = true, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub swap_files: u32,

    /// Rounds, in each of which every target runs once; fewer than 5 give no useful interval [default: 5]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,

    /// Warm-up rounds before those, which do not count [default: 1]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub warm_up_rounds: Option<u32>,

    /// One comparison for each value: memory[=PERCENT,...], threads[=N,...] or files[=N,...]
    ///
    /// Without values: memory from 100 % to 10 % of --size in steps of 10, threads 1 to 64 and
    /// files 1 to 8 in powers of two.
    #[arg(long, global = true, value_name = "AXIS", verbatim_doc_comment, value_parser = sweep)]
    pub sweep: Option<Sweep>,

    /// Where swap files go [default: $FARSHORE_SWAP_DIR, else /var/tmp]; for root a directory that no other user can move away
    #[arg(long, global = true, value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// Write all measurements to FILE, as JSON
    #[arg(long, global = true, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write a page with tables and plots to DIR, and the JSON beside it
    #[arg(long, global = true, value_name = "DIR")]
    pub report: Option<PathBuf>,

    /// Write page, JSON and tables to DIR/DATE-MACHINE
    #[arg(long, global = true, value_name = "DIR", conflicts_with = "report")]
    pub results: Option<PathBuf>,

    /// The longest that one run may take, in seconds; then it is ended, and counts as failed
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 600.0, value_parser = positive)]
    pub timeout: f64,

    /// Do not measure the device
    #[arg(long, global = true)]
    pub no_device: bool,

    /// Compare the builds OLD and NEW in turn, to judge a change; each is a farshore command or its directory
    #[arg(long, global = true, value_names = ["OLD", "NEW"], num_args = 2)]
    pub builds: Option<Vec<PathBuf>>,

    /// Say what is faster or slower in NEW.json than in OLD.json, beyond the noise
    #[arg(long, value_names = ["OLD.json", "NEW.json"], num_args = 2, conflicts_with_all = ["program", "against", "builds"])]
    pub compare: Option<Vec<PathBuf>>,

    /// A program of your own, with its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// What is measured.
#[derive(Subcommand, Debug)]
pub enum What {
    /// One of the workloads
    #[command(flatten)]
    Workload(Workload),
    /// The canonical set: what `make bench` runs, in under 20 minutes on two cores
    Canonical(CanonicalArgs),
    /// Families of programs, each at parts of its peak: what the default is worth against Linux swap, zram, zswap and other --swap
    Families(FamiliesArgs),
    /// Figures of the papers that Farshore rests on, measured here and set against their numbers
    Paper(PaperArgs),
    /// The ways in which a service can wait for far memory: yield, busy, block, Linux swap
    Uthread(Box<UthreadArgs>),
    /// The device below --dir alone
    Device(DeviceArgs),
}

/// `farshore bench canonical`.
#[derive(Args, Debug)]
pub struct CanonicalArgs {
    /// Run only the comparisons whose name contains TEXT; repeat for more
    #[arg(long, value_name = "TEXT")]
    pub only: Vec<String>,
    /// List what would be run, and how long it takes
    #[arg(long)]
    pub list: bool,
}

/// `farshore bench families`.
#[derive(Args, Debug)]
pub struct FamiliesArgs {
    /// Run only the rows whose name contains TEXT; repeat for more
    #[arg(long, value_name = "TEXT")]
    pub only: Vec<String>,
    /// Local memory, in percent of the peak that the program has natively
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [75.0, 50.0, 25.0], value_parser = percent)]
    pub local: Vec<f64>,
    /// List the rows, and what is missing for them
    #[arg(long)]
    pub list: bool,
}

/// `farshore bench paper`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER_PAPER, override_usage = "farshore bench paper [FIGURE|all] [OPTIONS]")]
pub struct PaperArgs {
    /// The figure, as the list names it, or all of them; without it: the list, with what each needs and how long it takes
    pub figure: Option<String>,
    /// Where pages and raw rows go: DIR/FIGURE/index.html, DIR/FIGURE/raw.json, and DIR/index.html with a row for each figure
    #[arg(long, value_name = "DIR", default_value = "paper")]
    pub out: PathBuf,
    /// A few small points and one round, in less than a minute: to see that it works, not how fast anything is
    #[arg(long)]
    pub quick: bool,
    /// Draw the page of these raw rows again, and measure nothing
    #[arg(long, value_name = "RAW.json", conflicts_with = "quick")]
    pub from: Option<PathBuf>,
}

/// `farshore bench device`.
#[derive(Args, Debug)]
pub struct DeviceArgs {
    /// Size of the file that is read and written
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub size: Bytes,
    /// Seconds for each kind of access and depth
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0, value_parser = positive)]
    pub seconds: f64,
}

const AFTER_BENCH: &str = "\
Examples:
  farshore bench random --size 512M --threads 8 --against farshore,linux-swap,zram --json out.json
  farshore bench hotset --against farshore,farshore:prefetch=none,native
  farshore bench random --sweep memory --against farshore,linux-swap,native --report report
  farshore bench --memory 100M --against farshore,linux-swap,native -- sort -S 1G big.txt
  farshore bench kv --server memcached --rate 20000 --against farshore,linux-swap
  farshore bench uthread array --swap delay:10us
  sudo farshore bench paper mage-9 --out results/paper
  farshore bench random --threads 8 --builds ../before/target/release target/release
  farshore bench --compare monday.json tuesday.json

Each round runs every target once, one after the other. Ratios are taken round by round. Cgroups,
swap and zram that it has set up are taken down at the end, at an error and at Ctrl-C. The next
start finds and removes what a kill -9 leaves behind. Swap that was on before is not touched.

Under sudo, a PROGRAM of yours runs as root, under every target.

Exit status:
  0    it was measured, and the data of each run under farshore or native were right
  1    a run under farshore or native failed or could not be made, or memory or disk do not suffice.
       A failure of the kernel's targets (out of memory in a cgroup) is reported, and is a result
  125  a wrong option
  130  ended by Ctrl-C (128+n by signal n): what was measured so far is written

Environment:
  FARSHORE_SWAP_DIR  the directory for swap files if no --dir is given
  FARSHORE_LOAD      farshore-load, if it is not beside farshore
  LOAD_BALLAST       slows farshore-load down by so many percent; env.LOAD_BALLAST=20 as a target's
                     option shows whether a comparison notices";

const AFTER_PAPER: &str = "\
Examples:
  farshore bench paper
      the figures, what each needs, and how many minutes it takes
  sudo farshore bench paper mage-9 --out results/paper
      MAGE's figure 9: pages in results/paper, the raw rows beside them
  sudo farshore bench paper all --out results/paper
      every figure; what is there is replaced when the new run has ended
  farshore bench paper adios-7 --quick
      whether it works here
  farshore bench paper mage-9 --from results/paper/mage-9/raw.json --out page
      the page once more, after the rule has changed

A page has the plots, the paper's numbers (digits of its text, or computed from them where marked)
as hollow marks, medians with intervals, a verdict for each claim by a rule that the page states,
and two sentences: what agrees, and what does not. Sizes are scaled; each page says how.

Not for this: --against, --builds, --sweep, --memory, --pool, --swap-size, --swap-files, --json,
--report, --results.";

impl BenchArgs {
    /// Rounds that count.
    #[must_use]
    pub fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.is_quick() { 1 } else { 5 })
    }

    /// Rounds before them.
    #[must_use]
    pub fn warm_up_rounds(&self) -> u32 {
        self.warm_up_rounds.unwrap_or(u32::from(!self.is_quick()))
    }

    fn is_quick(&self) -> bool {
        matches!(&self.what, Some(What::Paper(PaperArgs { quick: true, .. })))
    }
}

/// The targets of one `--against`.
#[derive(Clone, Debug)]
pub struct Targets(pub Vec<Spec>);

/// `--sweep`.
#[derive(Clone, PartialEq, Debug)]
pub struct Sweep {
    /// What changes.
    pub axis: Axis,
    /// Its values, in the order in which they are measured.
    pub values: Vec<f64>,
}

fn targets(text: &str) -> Result<Targets, String> {
    spec::parse_list(text).map(Targets)
}

pub(crate) fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.01..=1e6).contains(&value) => Ok(value),
        _ => Err(format!("invalid number of seconds {text:?}: write one from 0.01 to 1000000")),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim().trim_end_matches('%').parse::<f64>() {
        Ok(value) if (1.0..100.0).contains(&value) => Ok(value),
        _ => Err(format!("invalid percentage {text:?}: write numbers from 1 to 99, with commas between them")),
    }
}

fn sweep(text: &str) -> Result<Sweep, String> {
    let (name, values) = text.split_once('=').map_or((text, None), |(name, values)| (name, Some(values)));
    let (axis, usual, least, most): (_, &[f64], _, _) = match name {
        "memory" => (Axis::Memory, &[100.0, 90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0, 20.0, 10.0], 1.0, 1000.0),
        "threads" => (Axis::Threads, &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0], 1.0, 1024.0),
        "files" => (Axis::Files, &[1.0, 2.0, 4.0, 8.0], 1.0, 64.0),
        _ => return Err(format!("cannot sweep {name:?}: use memory, threads or files")),
    };
    let Some(values) = values else { return Ok(Sweep { axis, values: usual.to_vec() }) };
    let read = |word: &str| match word.trim().trim_end_matches('%').parse::<f64>() {
        Ok(value) if (least..=most).contains(&value) && (axis == Axis::Memory || value.fract() == 0.0) => Ok(value),
        _ => Err(format!("cannot sweep {name} over {word:?}: write numbers from {least} to {most}, with commas between them")),
    };
    Ok(Sweep { axis, values: values.split(',').map(read).collect::<Result<_, _>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use farshore_command::usage::Line;

    #[test]
    fn the_manual_says_what_the_help_says() {
        let pages = [("bench", farshore_manual::Parts::Sections, "farshore(1), farshore-load(1), farshore-serve(1)")];
        farshore_manual::check_commands(env!("CARGO_MANIFEST_DIR"), Line::<Command>::command(), &pages);
    }

    #[test]
    fn sweeps_are_read() {
        assert_eq!(sweep("threads").map(|sweep| sweep.values.len()), Ok(7));
        assert_eq!(sweep("memory=100%,50,12.5"), Ok(Sweep { axis: Axis::Memory, values: vec![100.0, 50.0, 12.5] }));
        assert_eq!(sweep("files=1,3"), Ok(Sweep { axis: Axis::Files, values: vec![1.0, 3.0] }));
        for wrong in ["", "size", "threads=", "threads=0", "threads=1.5", "files=65", "memory=x", "threads=2000"] {
            assert!(sweep(wrong).is_err(), "{wrong:?}");
        }
    }
}
