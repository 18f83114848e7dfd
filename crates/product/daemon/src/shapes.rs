//! Requests and answers as types. Their descriptions are what [`crate::openapi`] tells of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What runs under Farshore: a virtual machine, or a program.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct Vm {
    /// Its process: the virtual machine monitor's, or the program's. Requests name it by this number.
    pub pid: u32,
    /// When the process was started, in the kernel's ticks: a number of a process may come again, with this it does not.
    pub started: u64,
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// The process that manages its memory, of a virtual machine.
    pub manager: Option<u32>,
    /// Whether the numbers are of now.
    pub state: State,
    /// Why they are not.
    pub why: Option<String>,
    /// Whether this daemon has started it.
    pub created: bool,
    /// How its memory limit comes about.
    pub level: Option<Level>,
    /// The memory limit now.
    pub limit_bytes: Option<u64>,
    /// Memory that can be managed: what the guest has, or what the program has mapped.
    pub managed_bytes: Option<u64>,
    /// What of it is in RAM.
    pub resident_bytes: Option<u64>,
    /// What its swap spaces hold.
    pub out_bytes: Option<u64>,
    /// Faults of all kinds a second, over the last second or so.
    pub faults_per_second: Option<f64>,
    /// Pages that left a second.
    pub evicted_per_second: Option<f64>,
    /// Seconds that threads waited in faults, a second: 1 is one thread all the time.
    pub stall: Option<f64>,
    /// How much longer it takes than without faults, if its limit is chosen by that.
    pub slowdown: Option<Slowdown>,
    /// The budget that its memory is a share of.
    pub budget: Option<Budget>,
    /// The built-in policy in force.
    pub policy: Option<String>,
    /// The built-in prefetcher in force.
    pub prefetcher: Option<String>,
    /// Parameters of policies that have attached, which can be set.
    pub parameters: std::collections::BTreeMap<String, i64>,
}

/// What runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A virtual machine, whose memory a manager has.
    Vm,
    /// A program that was started by `farshore run`, or by one that was.
    Program,
}

/// Whether what is told is of now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// This daemon has started it, and its memory is not managed yet.
    Starting,
    /// It answers.
    Running,
    /// Its memory has always fitted: it has no counters.
    Dormant,
    /// It does not answer: it is stopped, or has no processor. The numbers are those of its last answer.
    Silent,
    /// It answers something else.
    Refusing,
    /// This daemon had started it, and it has ended.
    Ended,
}

/// How a memory limit comes about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// It stays as it was set.
    Fixed,
    /// It is the least with which faults make it at most so much slower.
    Slowdown,
    /// It is a share of a budget: whoever loses more time to faults gets more.
    Budget,
}

/// How much longer something takes than without faults, in millionths.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Slowdown {
    /// How much longer it may take.
    pub target_ppm: u64,
    /// How much longer it takes, over the last ten seconds or so.
    pub measured_ppm: u64,
}

/// A budget, and the share in it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Budget {
    /// Its name.
    pub name: String,
    /// What all in it may have together.
    pub size_bytes: u64,
    /// What all in it have together.
    pub taken_bytes: u64,
    /// The share of the one that tells.
    pub share_bytes: u64,
    /// How many have a share.
    pub programs: u64,
}

/// The machine.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct Host {
    /// The version of Farshore.
    pub version: String,
    /// The user whose virtual machines and programs are told; 0: everybody's.
    pub user: u32,
    /// Memory of the machine.
    pub memory_bytes: Option<u64>,
    /// What of it is to be had.
    pub available_bytes: Option<u64>,
    /// How much everybody waits for memory; none: the kernel does not tell.
    pub pressure: Option<Pressure>,
    /// Budgets that somebody is in.
    pub budgets: Vec<Budget>,
}

/// How much of the last ten seconds was spent waiting for memory (`/proc/pressure/memory`).
#[derive(Clone, Copy, PartialEq, Debug, Serialize, JsonSchema)]
pub struct Pressure {
    /// By some.
    pub some_percent: f64,
    /// By all at a time.
    pub full_percent: f64,
}

/// The last minutes.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct History {
    /// One for each look, oldest first.
    pub samples: Vec<Sample>,
}

/// One look.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, JsonSchema)]
pub struct Sample {
    /// How long ago it was.
    pub age_ms: u64,
    /// The limit.
    pub limit_bytes: u64,
    /// What was in RAM.
    pub resident_bytes: u64,
    /// What the swap spaces held.
    pub out_bytes: u64,
    /// Faults a second.
    pub faults_per_second: f64,
    /// Pages that left a second.
    pub evicted_per_second: f64,
    /// Seconds that threads waited in faults, a second.
    pub stall: f64,
}

/// Which memory was in RAM, and when: pieces by time.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct Heat {
    /// Pieces of the memory, by address.
    pub pieces: Vec<Piece>,
    /// Looks, oldest first. The first request begins to look, so there is none at first.
    pub looks: Vec<Look>,
}

/// A piece of memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Piece {
    /// Its first byte in the process.
    pub start: u64,
    /// How long it is.
    pub bytes: u64,
    /// What the kernel calls its mapping.
    pub name: String,
    /// How many of its pages are looked at: of large memory, a part.
    pub pages: u32,
}

/// One look at all pieces.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Look {
    /// How long ago it was.
    pub age_ms: u64,
    /// Of each piece, how many of its pages that are looked at were in RAM.
    pub resident: Vec<u32>,
    /// Of each piece, how many of these were not there one look before: they have come.
    pub came: Vec<u32>,
}

/// A virtual machine to be started.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Create {
    /// The monitor and its arguments, such as `["qemu-system-x86_64", "-m", "4G"]`, as they stand behind `farshore vm run --`.
    pub command: Vec<String>,
    /// What it gets.
    pub service: Service,
    /// Where cold pages go, as `--swap` has it; empty: a file in /var/tmp.
    #[serde(default)]
    pub swap: Vec<String>,
    /// Whether pages are encrypted on their way there.
    #[serde(default)]
    pub encrypt: bool,
}

/// A service level: which memory a virtual machine gets.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Service {
    /// How the limit comes about. It says which of the other members are wanted.
    pub level: Option<Level>,
    /// The limit (`"512M"`) of level `fixed`; of `budget`, the most that it takes.
    pub memory: Option<String>,
    /// Of level `slowdown`: how much slower it may become (`"5%"`).
    pub slowdown: Option<String>,
    /// Of level `budget`: its name, and its size where nobody is in it yet (`"guests=8G"`).
    pub budget: Option<String>,
    /// The least memory that may be chosen for it.
    pub memory_min: Option<String>,
    /// Of level `slowdown`: the most.
    pub memory_max: Option<String>,
}

/// A setting, as `farshore set PID KEY=VALUE` takes it.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Set {
    /// `memory`, `slowdown`, `budget`, `policy`, `prefetch`, `swap+`, `swap-`, `evictors`, `batch`, `writes`, `free`, or a parameter of a policy that has attached.
    pub key: String,
    /// Its value.
    pub value: String,
}

/// A setting was made, or has begun to be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Made {
    /// The number of the change, if it takes its time.
    pub change: Option<u64>,
}

/// How far a change is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Change {
    /// Whether it is made.
    pub done: bool,
    /// How much of it is done, in per cent.
    pub percent: u64,
}

/// What a virtual machine that was started here has written.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Output {
    /// The last of it.
    pub text: String,
    /// How it has ended; none: it has not.
    pub ended: Option<String>,
}

/// A virtual machine was told to end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Told {
    /// By which signal.
    pub signal: String,
}

/// Why something was not done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Problem {
    /// One line: what was wrong, with which value, and what to do.
    pub error: String,
}
