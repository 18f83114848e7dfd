//! What `farshore bench --json` writes: schema 1, told field by field in `docs/src/reference/bench-json.md`.
//!
//! Names are stable: scripts and `--compare` rely on them. Fields may be added within a schema; a reader takes
//! what is missing as empty. Units are in the names; `pages` are of 4 KiB; everything else counts.

use std::collections::BTreeMap;

use farshore_load::outcome::{Histogram, Outcome};
use serde::{Deserialize, Serialize};

/// The schema of this version.
pub const SCHEMA: u32 = 1;

/// One call of `farshore bench`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of Farshore that measured.
    pub version: String,
    /// When it began: `2026-11-21T09:30:00Z`.
    pub date: String,
    /// The command line.
    pub command: Vec<String>,
    /// The machine.
    pub machine: Machine,
    /// What the device below the swap files can do; `None` where it was not measured.
    pub device: Option<Device>,
    /// The comparisons, in the order in which they were made: one, or one for each point of a sweep or of the canonical set.
    pub experiments: Vec<Experiment>,
    /// Targets that were asked for and could not be had: name and why.
    pub skipped: BTreeMap<String, String>,
}

impl Results {
    /// As a file has them, on one line: distributions are long lists of numbers.
    ///
    /// # Errors
    /// They cannot be told as JSON: one line.
    pub fn to_json_line(&self) -> Result<String, String> {
        serde_json::to_string(self).map(|line| line + "\n").map_err(|error| format!("the results cannot be told ({error})"))
    }
}

/// The machine, for readers of the numbers.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Its name.
    pub host: String,
    /// `uname -r`.
    pub kernel: String,
    /// The processor's model.
    pub cpu: String,
    /// Processors that may be used.
    pub cpus: u32,
    /// RAM, in bytes.
    pub memory_bytes: u64,
    /// NUMA nodes.
    pub nodes: u32,
    /// The hypervisor's name where there is one, else empty.
    pub hypervisor: String,
    /// The directory of the swap files.
    pub directory: String,
    /// Its file system: `ext4`.
    pub filesystem: String,
    /// Its block device and model: `vda`, `nvme0n1 (Samsung …)`.
    pub disk: String,
    /// Settings of the kernel that bear on the result: `transparent_hugepage`, `swappiness`, `page-cluster`, `mitigations`, …
    pub settings: BTreeMap<String, String>,
    /// Swap that was on before, which the kernel's targets may use too.
    pub other_swap: Vec<String>,
    /// Load average of the last minute at the start.
    pub load: f64,
}

/// What a device can do, by io_uring with O_DIRECT, in the directory of the swap files.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Device {
    /// Bytes of the file that it was measured on.
    pub file_bytes: u64,
    /// Each measurement.
    pub points: Vec<DevicePoint>,
}

/// The kind of access of a [`DevicePoint`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// 4 KiB, anywhere.
    RandomRead,
    /// 4 KiB, anywhere.
    RandomWrite,
    /// 4 KiB, anywhere, half of them writes.
    RandomMixed,
    /// 1 MiB, in order.
    SequentialRead,
    /// 1 MiB, in order.
    SequentialWrite,
}

/// One measurement of a device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DevicePoint {
    /// What was done.
    pub access: Access,
    /// Requests in flight.
    pub depth: u32,
    /// Pages (4 KiB) a second.
    pub pages_per_second: f64,
    /// From submission to completion of one request, in ns.
    pub latency: Histogram,
}

/// One comparison: the same program, once under each target in each round.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Experiment {
    /// What it is called: `random updates, 8 threads`.
    pub name: String,
    /// The workload's name, or the program's.
    pub workload: String,
    /// The whole command line of the program.
    pub arguments: Vec<String>,
    /// Its data, in bytes; 0 if not known.
    pub data_bytes: u64,
    /// Local memory, in bytes.
    pub memory_bytes: u64,
    /// RAM for compressed pages on top of it, in bytes; 0 if none was said.
    pub pool_bytes: u64,
    /// Threads; 0 if not known.
    pub threads: u32,
    /// Swap files.
    pub swap_files: u32,
    /// Where on a sweep this is.
    pub sweep: Option<SweepPoint>,
    /// The row of `farshore bench families` that it belongs to; empty: none.
    pub family: String,
    /// The figure of a paper that it is a point of.
    pub paper: Option<PaperPoint>,
    /// The limit from the start of the measured phase on, in bytes; 0: the same as before it.
    pub raised_bytes: u64,
    /// What is compared.
    pub figure: Figure,
    /// What came out, the reference first.
    pub targets: Vec<TargetResult>,
}

/// A point of a figure of `farshore bench paper`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PaperPoint {
    /// The figure: `mage-9`.
    pub figure: String,
    /// Which of its panels.
    pub panel: String,
    /// Which of several runs at this point; empty where there is one.
    pub variant: String,
    /// Where it is, as the registry of figures has it: percent, threads, spaces.
    pub x: f64,
    /// Where it is on the axis: the same, or the load in requests a second that so many percent were.
    pub shown: f64,
    /// It was made by the quick form, which shows that all works and not how fast it is.
    pub quick: bool,
}

/// What of a run is compared.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Figure {
    /// `updates a second`, `seconds`, `p99 latency`.
    pub name: String,
    /// `/s`, `s`, `ns`.
    pub unit: String,
    /// Whether less of it is better.
    pub less_is_better: bool,
}

/// A point of a sweep.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SweepPoint {
    /// What changes.
    pub axis: Axis,
    /// Its value here: percent of the data that is local, threads, files.
    pub value: f64,
}

/// What a sweep changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Axis {
    /// Local memory in percent of the data.
    Memory,
    /// Threads.
    Threads,
    /// Swap files.
    Files,
}

/// One target in one experiment.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetResult {
    /// Its name in tables: as it was asked for, made unique.
    pub label: String,
    /// `native`, `farshore`, `linux-swap`, `zram`, `zswap`, `command`.
    pub kind: String,
    /// Its settings, and versions.
    pub settings: BTreeMap<String, String>,
    /// Each round, the warm-up not among them.
    pub rounds: Vec<Round>,
    /// Of the good rounds; `None` if there is none.
    pub summary: Option<Summary>,
}

/// One run of one target.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Round {
    /// From 1.
    pub number: u32,
    /// Its place within the round, from 1.
    pub place: u32,
    /// What was wrong; empty if the run is good. Others are not in the summary.
    pub wrong: Vec<String>,
    /// [`Experiment::figure`].
    pub figure: Option<f64>,
    /// From start to end of the program, in seconds.
    pub wall_seconds: f64,
    /// Processor time of the program and its children, in seconds.
    pub user_seconds: f64,
    /// The kernel's on their behalf, in seconds.
    pub system_seconds: f64,
    /// All processor time that the machine spent meanwhile, other programs' too, in seconds.
    pub machine_seconds: f64,
    /// Largest resident memory of one process, in bytes.
    pub peak_resident_bytes: u64,
    /// The most that the target's own limit has counted, in bytes; 0 if it does not tell.
    pub peak_limited_bytes: u64,
    /// Of the whole run.
    pub counters: Counters,
    /// Of the measured phase alone, where the program tells its phases.
    pub measured: Option<Counters>,
    /// How long the measured phase took by this command's clock, in seconds; 0 without one.
    pub measured_seconds: f64,
    /// SHA-256 of what the program printed, for programs that are not workloads.
    pub output_sha256: String,
    /// What the workload told.
    pub outcome: Option<Outcome>,
    /// Farshore's own counters at the end, as `--stats` writes them.
    pub stats: Option<serde_json::Value>,
    /// What the time of the requests went to that came in the measured time, by the server's own clock; `None` where that was not asked for.
    pub requests: Option<Requests>,
}

/// What the time of requests went to.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Requests {
    /// Requests that were recorded.
    pub recorded: u64,
    /// Requests whose records may have been dropped, for want of room.
    pub dropped: u64,
    /// Those around some percentiles of the time that requests took.
    pub around: Vec<RequestsAround>,
}

/// Requests around a percentile.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestsAround {
    /// The percentile, as a share: 0.999.
    pub share: f64,
    /// How many they are.
    pub requests: u64,
    /// Their means: `total_ns`, its parts, and others, named as in the file of `farshore-serve --breakdown`.
    pub means: BTreeMap<String, f64>,
}

/// What a target counts.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Faults that waited for a page from swap space: the kernel's major faults, or Farshore's fetches.
    pub fetches: u64,
    /// Other faults: first touches, write protection, pages that were still local.
    pub other_faults: u64,
    /// Pages read from swap space (the whole machine's, for the kernel's targets).
    pub pages_in: u64,
    /// Pages written to swap space (likewise).
    pub pages_out: u64,
    /// Processor time of the program and its children, user and kernel, in seconds.
    pub cpu_seconds: f64,
    /// Processor time of the whole machine, in seconds.
    pub machine_cpu_seconds: f64,
}

/// A target in a few numbers: medians over the good rounds.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// The figure.
    pub figure: Spread,
    /// Latency over all good rounds together; `None` where operations are not timed one by one.
    pub latency: Option<Percentiles>,
    /// How much better the *first* target is; `None` for itself.
    pub ratio: Option<Ratio>,
    /// Faults (fetches and others) in the measured phase, or the whole run.
    pub faults: u64,
    /// Of them, fetches.
    pub fetches: u64,
    /// Fetches a second.
    pub fetches_per_second: f64,
    /// Processor time a fault, in microseconds; 0 without faults.
    pub cpu_us_per_fault: f64,
    /// Processor time of the whole run, in seconds.
    pub cpu_seconds: f64,
    /// Wall time of the whole run, in seconds.
    pub wall_seconds: f64,
    /// Largest resident memory of one process, in bytes.
    pub peak_resident_bytes: u64,
    /// What of the device's limit its transfers took, in percent (see `device::share`); `None` if it does not use the device.
    pub device_percent: Option<f64>,
}

/// A median and its range.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

/// Percentiles in ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Percentiles {
    /// Half took at most this.
    pub p50: u64,
    /// 90 %.
    pub p90: u64,
    /// 99 %.
    pub p99: u64,
    /// 99.9 %.
    pub p999: u64,
    /// The longest.
    pub max: u64,
}

/// How many times better the first target is than this one, round by round: above 1, the first is better.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Ratio {
    /// Median of the rounds.
    pub median: f64,
    /// Where it lies with the given confidence, by bootstrap.
    pub low: f64,
    /// The other end.
    pub high: f64,
    /// 0.95.
    pub confidence: f64,
    /// Each round in which both were good.
    pub rounds: Vec<f64>,
}

impl Ratio {
    /// What the interval says about this target, set against the first.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        if self.low > 1.0 {
            Verdict::Slower
        } else if self.high < 1.0 {
            Verdict::Faster
        } else {
            Verdict::Same
        }
    }
}

/// A target against the first one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Better than the first, beyond the interval.
    Faster,
    /// The interval contains 1.
    Same,
    /// Worse than the first, beyond the interval.
    Slower,
}
