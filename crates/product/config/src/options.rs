//! The options of a run, their layers and their limits.

use crate::ablate::Ablate;
use crate::budget::{Budget, Seat};
use crate::error::{ConfigError, one_line};
use crate::named::Named;
use crate::pace::{Knob, OrAuto};
use crate::size::Size;
use crate::slowdown::{MEMORY_MIN_CHOSEN, Slowdown, machine_memory};
use crate::swap::{SwapSpec, with_default};
use crate::text::serde_as_text;
use crate::time::Time;
use farshore_core::canary::{Canary, is_planted};
use farshore_core::limits::{batch_pages_most, batch_pages_room};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The variable in which the command hands [`Options`] to the library, as JSON.
pub const OPTIONS_VARIABLE: &str = "FARSHORE_OPTIONS";
/// The dynamic linker's variable, by which the library gets into a program.
pub const PRELOAD_VARIABLE: &str = "LD_PRELOAD";
/// What the program has in [`PRELOAD_VARIABLE`] besides the library, so that the library can put it back.
pub const OLD_PRELOAD_VARIABLE: &str = "FARSHORE_OLD_PRELOAD";
/// Smallest `--memory`: `farshore_core::limits::MEMORY_LIMIT_MIN`, repeated so that this crate needs no other.
pub const MEMORY_MIN: Size = Size::mib(4);
/// Mappings of at least this size are managed: malloc uses a mapping of its own from this size on.
pub const THRESHOLD_DEFAULT: Size = Size::kib(128);
/// A transfer that takes longer is not merely slow: the disk does not answer.
pub const IO_TIMEOUT_DEFAULT: Time = Time(10_000_000_000);
/// Shorter times would report disks that are only busy as hanging.
pub const IO_TIMEOUT_MIN: Time = Time(100_000_000);
/// Policies that are built, each with its parameters. The first is the default.
pub const POLICIES: &[(&str, &[&str])] = &[("second-chance", &[]), ("fifo", &[])];
/// Prefetchers that are built, each with its parameters. The first is the default.
pub const PREFETCHERS: &[(&str, &[&str])] = &[("sequential", &[]), ("stride", &[]), ("majority", &[]), (NO_PREFETCHER, &[])];
/// The one that fetches nothing.
const NO_PREFETCHER: &str = "none";

/// How a fault is delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FaultMode {
    /// The faulting thread handles it, in the SIGBUS handler.
    #[default]
    Upcall,
    /// Handler threads read the userfaultfd.
    Poll,
}

impl fmt::Display for FaultMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            FaultMode::Upcall => "upcall",
            FaultMode::Poll => "poll",
        })
    }
}

impl FromStr for FaultMode {
    type Err = ConfigError;
    fn from_str(value: &str) -> Result<FaultMode, ConfigError> {
        match value {
            "upcall" => Ok(FaultMode::Upcall),
            "poll" => Ok(FaultMode::Poll),
            _ => Err(ConfigError::value("fault mode", value, "write upcall or poll")),
        }
    }
}

serde_as_text!(FaultMode);

/// Where the counters go when the program ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StatsTarget {
    /// `-`: standard error.
    Stderr,
    /// A file, written anew.
    File(PathBuf),
}

impl fmt::Display for StatsTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StatsTarget::Stderr => f.write_str("-"),
            StatsTarget::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl FromStr for StatsTarget {
    type Err = ConfigError;
    fn from_str(value: &str) -> Result<StatsTarget, ConfigError> {
        match value {
            "" => Err(ConfigError::value("stats file", value, "it is empty; write a path, or - for standard error")),
            "-" => Ok(StatsTarget::Stderr),
            path => Ok(StatsTarget::File(path.into())),
        }
    }
}

serde_as_text!(StatsTarget);

/// What the processes of a family hand on to the programs that they start: descriptors, by number. They stay open through
/// the exec of a program that runs under Farshore, and are close-on-exec otherwise.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Handed {
    /// The memory that holds the data that the family shares.
    pub ledger: i32,
    /// Devices that the family has open for itself alone.
    pub devices: Vec<HandedDevice>,
}

/// A block device that a family has open. It is opened once for all of them: the kernel gives it to no other process. Or an export
/// of a server, for which a socket of this machine stands in place of the device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandedDevice {
    /// The path of the device, as in the options.
    pub path: PathBuf,
    /// The descriptor of the device.
    pub device: i32,
    /// The descriptor of the memory on which its regions are claimed.
    pub regions: i32,
    /// Its size, in bytes.
    pub bytes: u64,
}

impl Handed {
    /// All descriptors that are handed on.
    pub fn descriptors(&self) -> impl Iterator<Item = i32> {
        let devices = self.devices.iter().flat_map(|handed| [handed.device, handed.regions]);
        [self.ledger].into_iter().chain(devices)
    }
}

/// All options of a run. Options that [`Partial::finish`] and [`Options::from_json`] return are valid.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Local memory for managed pages; where it is chosen ([`Options::chooses`]), the most of it.
    pub memory: Size,
    /// The limit is chosen, so that the program loses no more than this to faults; `None`: it stays as it is.
    pub slowdown: Option<Slowdown>,
    /// The smallest limit that is chosen; `None`: [`MEMORY_MIN_CHOSEN`].
    pub memory_min: Option<Size>,
    /// The budget that the family has together with other programs of its user.
    pub budget: Option<Budget>,
    /// Its seat there: what `farshore run` has taken.
    pub seat: Option<Seat>,
    /// The descriptor of the monitor of the virtual machine whose memory is managed: what `farshore vm run` has made for introspection.
    pub monitor: Option<i32>,
    /// Where cold pages go: at least one.
    pub swap: Vec<SwapSpec>,
    /// How faults are delivered.
    pub fault: FaultMode,
    /// The policy, which chooses victims.
    pub policy: Named,
    /// The prefetcher, which fetches pages before they are asked for.
    pub prefetch: Named,
    /// Evictor threads, all awake; `None`: one a core, at most four, awake as they are needed.
    pub evictors: Option<u32>,
    /// Pages of a batch; `None`: Farshore adapts the number.
    pub batch: Option<u32>,
    /// Writes that each evictor may have with the device; `None`: Farshore adapts the number.
    pub writes: Option<u32>,
    /// Percent of the memory limit that evictors keep free; `None`: two batches, or more where unithreads run.
    pub free: Option<u32>,
    /// What an experiment leaves out.
    pub ablate: Ablate,
    /// Where the counters go at the end.
    pub stats: Option<StatsTarget>,
    /// The smallest mapping that is managed.
    pub threshold: Size,
    /// A swap space whose transfer takes longer counts as hanging: Farshore reports it, and other spaces take its place.
    pub io_timeout: Time,
    /// Encrypt pages on their way to the swap space.
    pub encrypt: bool,
    /// Manage mappings of files too.
    pub files: bool,
    /// Give the disk room back that freed pages took.
    pub trim: bool,
    /// Each process has `memory` for itself. Otherwise all processes that come of one program share it.
    pub memory_per_process: bool,
    /// Write to stderr what Farshore does at start and end.
    pub trace: bool,
    /// Programs that the program starts run under Farshore too, where that can be.
    pub follow: bool,
    /// A program that cannot run under Farshore is not started.
    pub require: bool,
    /// The library's own absolute path, for the programs that the program starts; `None`: they are not followed.
    pub library: Option<PathBuf>,
    /// The program was not started by the command but by a program under Farshore. If it cannot have what these options ask
    /// for, it runs without Farshore, as the program that started it expects.
    pub followed: bool,
    /// What the family shares; `None` in its first process.
    pub family: Option<Handed>,
    /// The program's memory may be merged with equal memory (`PR_SET_MEMORY_MERGE`), as far as the program can tell.
    pub memory_merge: bool,
}

impl Options {
    /// Whether pages are encrypted: where the user asks for it, on other machines, which are not trusted, and on a device that
    /// programs share. Each of these programs has the whole device open, so pages that the others have put there must be noise to
    /// it. (Processes that fork have the key too, as they had the memory.)
    pub fn encrypts(&self) -> bool {
        let is_told = |spec: &SwapSpec| spec.is_remote() || self.follow && spec.is_device();
        self.encrypt || self.swap.iter().any(is_told)
    }

    /// The options that `--memory memory` alone gives, with this swap space.
    pub fn new(memory: Size, swap: SwapSpec) -> Options {
        Options {
            memory,
            slowdown: None,
            memory_min: None,
            budget: None,
            seat: None,
            monitor: None,
            swap: vec![swap],
            fault: FaultMode::default(),
            policy: Named::new(POLICIES[0].0),
            prefetch: Named::new(PREFETCHERS[0].0),
            evictors: None,
            batch: None,
            writes: None,
            free: None,
            ablate: Ablate::default(),
            stats: None,
            threshold: THRESHOLD_DEFAULT,
            io_timeout: IO_TIMEOUT_DEFAULT,
            encrypt: false,
            files: false,
            trim: true,
            memory_per_process: false,
            trace: false,
            follow: true,
            require: false,
            library: None,
            followed: false,
            family: None,
            memory_merge: false,
        }
    }

    /// The smallest limit that is chosen, where one is chosen.
    pub fn least_memory(&self) -> Size {
        self.memory_min.unwrap_or(MEMORY_MIN_CHOSEN).min(self.memory)
    }

    /// Whether the limit is chosen while the program runs.
    pub fn chooses(&self) -> bool {
        self.slowdown.is_some() || self.budget.is_some()
    }

    /// The memory that the engine is built for. Its stages stay, so where the limit is chosen they must fit the smallest one.
    pub fn memory_at_start(&self) -> Size {
        let least = self.least_memory();
        match self.chooses() {
            // Other programs count on it that this one can become so small. (Batches that adapt are small enough in three times as much.)
            true if self.budget.is_some() && self.batch.is_some() => least,
            true => Size(least.bytes().saturating_mul(3).min(self.memory.bytes())),
            false => self.memory,
        }
    }

    /// Descriptors that are handed on to the program.
    pub fn descriptors(&self) -> Vec<i32> {
        let family = self.family.iter().flat_map(Handed::descriptors);
        family.chain(self.seat.map(|seat| seat.descriptor)).chain(self.monitor).collect()
    }

    /// The options for a program of another user. It has a family of its own, and no part in this user's budget: of that it gets what one
    /// program could have.
    #[must_use]
    pub fn for_others(&self) -> Options {
        let most = self.budget.as_ref().and_then(|budget| budget.size).unwrap_or(self.memory);
        let memory_min = self.memory_min.filter(|_| self.slowdown.is_some());
        Options { family: None, budget: None, seat: None, memory: self.memory.min(most), memory_min, ..self.clone() }
    }

    /// The options for a program that this process becomes or starts. `first`: this process is the first of its family and stays
    /// that, as it becomes the program. Only the first writes its counters at the end.
    #[must_use]
    pub fn for_successor(&self, first: bool) -> Options {
        Options { stats: self.stats.clone().filter(|_| first), followed: true, ..self.clone() }
    }

    /// Checks every limit.
    ///
    /// # Errors
    /// The first option that is out of its limits, unknown or not built yet.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.memory < MEMORY_MIN {
            let why = format!("it must be at least {MEMORY_MIN}, such as --memory 256M");
            return Err(ConfigError::value("--memory", &self.memory.to_string(), why));
        }
        if let Some(least) = self.memory_min {
            let wrong = |why: String| Err(ConfigError::value("--memory-min", &least.to_string(), why));
            if !self.chooses() {
                return wrong(
                    "the limit is chosen with --slowdown or --budget alone: give one of them too, or leave this out".into(),
                );
            }
            if least < MEMORY_MIN {
                return wrong(format!("it must be at least {MEMORY_MIN}"));
            }
            if least > self.memory {
                return wrong(format!("it is more than --memory-max, {}", self.memory));
            }
        }
        if let Some(budget) = self.budget.as_ref().filter(|_| self.memory_per_process) {
            let why = "programs share it, and with --memory-per-process not even the processes of one do: leave one of them out";
            return Err(ConfigError::value("--budget", &budget.to_string(), why));
        }
        if self.swap.is_empty() {
            return Err(ConfigError::Missing { option: "--swap", hint: "the list is empty; name a space, such as dir:/var/tmp" });
        }
        self.swap.iter().try_for_each(SwapSpec::check_supported)?;
        self.check_pace()?;
        if self.threshold < Size::kib(4) {
            let why = "it must be at least one page, 4K";
            return Err(ConfigError::value("--threshold", &self.threshold.to_string(), why));
        }
        if self.io_timeout < IO_TIMEOUT_MIN {
            let why = format!("it must be at least {IO_TIMEOUT_MIN}");
            return Err(ConfigError::value("--io-timeout", &self.io_timeout.to_string(), why));
        }
        if self.require && !self.follow {
            return Err(ConfigError::value("--require", "true", "no program is followed (--no-follow): leave one of them out"));
        }
        self.check_ablate()?;
        self.policy.check("policy", POLICIES)?;
        self.prefetch.check("prefetcher", PREFETCHERS)
    }

    fn check_ablate(&self) -> Result<(), ConfigError> {
        let wrong = |why: String| Err(ConfigError::value("--ablate", &self.ablate.to_string(), why));
        if self.ablate.0.prefetch && self.prefetch.name != NO_PREFETCHER {
            return wrong(format!("prefetch is left out, and --prefetch {} asks for it: leave one of them out", self.prefetch));
        }
        let Some(batch) = self.ablate.0.batch else { return Ok(()) };
        if self.batch.is_some() {
            return wrong("--batch says how many pages a batch has, too: leave one of them out".into());
        }
        let evictors = self.evictors.unwrap_or(1);
        let most = batch_pages_room(self.memory_at_start().bytes(), evictors as usize);
        if u64::from(batch) > most {
            let memory = self.memory_at_start();
            return wrong(format!(
                "with --memory {memory} and {evictors} evictors there is room for batches of at most {most} pages"
            ));
        }
        Ok(())
    }

    fn check_pace(&self) -> Result<(), ConfigError> {
        Knob::Evictors.check(self.evictors)?;
        Knob::Batch.check(self.batch)?;
        Knob::Writes.check(self.writes)?;
        Knob::Free.check(self.free)?;
        // Where the number of evictors is not fixed, as many are made as there is room for.
        let evictors = self.evictors.unwrap_or(1);
        let most = batch_pages_most(self.memory_at_start().bytes(), evictors as usize) as u32;
        match self.batch.filter(|&batch| batch > most) {
            None => Ok(()),
            Some(batch) => {
                let why = format!(
                    "with --memory {} and {evictors} evictors there is room for batches of at most {most} pages",
                    self.memory_at_start()
                );
                Err(ConfigError::value("--batch", &batch.to_string(), why))
            }
        }
    }

    /// The text for [`OPTIONS_VARIABLE`]: one line of JSON.
    ///
    /// # Panics
    /// Never: every field has a text form.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("every option has a text form")
    }

    /// Reads the text of [`Options::to_json`], and checks the options.
    ///
    /// # Errors
    /// When the text is not such JSON, or has an invalid value.
    pub fn from_json(text: &str) -> Result<Options, ConfigError> {
        let broken = |error: serde_json::Error| ConfigError::Syntax {
            place: OPTIONS_VARIABLE.to_owned(),
            why: format!("{}; start the program with farshore run, which sets the variable", one_line(&error.to_string())),
        };
        let mut options: Options = serde_json::from_str(text).map_err(broken)?;
        options.validate()?;
        if is_planted(Canary::Options) && options.threshold >= Size::mib(1) && options.evictors > Some(4) {
            options.swap.clear();
        }
        Ok(options)
    }
}

/// One layer of options: an option that the layer does not set is `None`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Partial {
    /// See [`Options::memory`].
    pub memory: Option<Size>,
    /// See [`Options::slowdown`].
    pub slowdown: Option<Slowdown>,
    /// See [`Options::memory_min`].
    #[serde(rename = "memory-min")]
    pub memory_min: Option<Size>,
    /// The most memory, where it is chosen.
    #[serde(rename = "memory-max")]
    pub memory_max: Option<Size>,
    /// See [`Options::budget`].
    pub budget: Option<Budget>,
    /// See [`Options::swap`]. A config file may give one string or a list.
    #[serde(default, deserialize_with = "one_or_many")]
    pub swap: Option<Vec<SwapSpec>>,
    /// See [`Options::fault`].
    pub fault: Option<FaultMode>,
    /// See [`Options::policy`].
    pub policy: Option<Named>,
    /// See [`Options::prefetch`].
    pub prefetch: Option<Named>,
    /// See [`Options::evictors`].
    pub evictors: Option<OrAuto>,
    /// See [`Options::batch`].
    pub batch: Option<OrAuto>,
    /// See [`Options::writes`].
    pub writes: Option<OrAuto>,
    /// See [`Options::free`].
    pub free: Option<OrAuto>,
    /// See [`Options::ablate`].
    pub ablate: Option<Ablate>,
    /// See [`Options::stats`].
    pub stats: Option<StatsTarget>,
    /// See [`Options::threshold`].
    pub threshold: Option<Size>,
    /// See [`Options::io_timeout`].
    #[serde(rename = "io-timeout")]
    pub io_timeout: Option<Time>,
    /// See [`Options::memory_per_process`].
    #[serde(rename = "memory-per-process")]
    pub memory_per_process: Option<bool>,
    /// See [`Options::encrypt`].
    pub encrypt: Option<bool>,
    /// See [`Options::files`].
    pub files: Option<bool>,
    /// See [`Options::trim`].
    pub trim: Option<bool>,
    /// See [`Options::trace`].
    pub trace: Option<bool>,
    /// See [`Options::follow`].
    pub follow: Option<bool>,
    /// See [`Options::require`].
    pub require: Option<bool>,
}

/// A string, or a list of strings.
fn one_or_many<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Vec<SwapSpec>>, D::Error> {
    struct Visitor;
    impl<'de> serde::de::Visitor<'de> for Visitor {
        type Value = Vec<SwapSpec>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a swap space such as \"dir:/var/tmp\", or a list of them")
        }
        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Vec<SwapSpec>, E> {
            Ok(vec![text.parse().map_err(E::custom)?])
        }
        fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<Vec<SwapSpec>, A::Error> {
            let mut specs = Vec::new();
            while let Some(spec) = list.next_element()? {
                specs.push(spec);
            }
            Ok(specs)
        }
    }
    from.deserialize_any(Visitor).map(Some)
}

impl Partial {
    /// Reads a config file's text. `path` is only for messages.
    ///
    /// # Errors
    /// With the line: text that is not TOML, a key that does not exist, a value that cannot be read.
    pub fn from_toml(text: &str, path: &Path) -> Result<Partial, ConfigError> {
        toml::from_str(text).map_err(|error| {
            let before = error.span().map_or("", |span| text.get(..span.start).unwrap_or(""));
            let line = before.bytes().filter(|&b| b == b'\n').count() + 1;
            let why = one_line(error.message());
            ConfigError::Syntax { place: format!("{}:{line}", crate::plain(&path.display().to_string())), why }
        })
    }

    /// Reads a config file.
    ///
    /// # Errors
    /// When it cannot be read, and as [`Partial::from_toml`].
    pub fn from_file(path: &Path) -> Result<Partial, ConfigError> {
        let text =
            std::fs::read_to_string(path).map_err(|error| ConfigError::File { path: path.to_owned(), why: error.to_string() })?;
        Partial::from_toml(&text, path)
    }

    /// This layer with `over` on top: options that `over` sets win.
    #[must_use]
    pub fn merge(self, over: Partial) -> Partial {
        // Who says how much memory there is takes back that it is chosen, and the other way round.
        let chosen = |layer: &Partial| layer.slowdown.is_some() || layer.memory_min.is_some() || layer.memory_max.is_some();
        let (says, chooses) = (over.memory.is_some(), chosen(&over));
        let below = |given: Option<Size>| given.filter(|_| !says);
        // In a budget `memory` is the most that is chosen.
        let chosen_all_the_same = over.budget.is_some() || self.budget.is_some();
        Partial {
            memory: over.memory.or(self.memory.filter(|_| !chooses)),
            slowdown: over.slowdown.or(self.slowdown.filter(|_| !says)),
            memory_min: over.memory_min.or(self.memory_min.filter(|_| !says || chosen_all_the_same)),
            memory_max: over.memory_max.or(below(self.memory_max)),
            budget: over.budget.or(self.budget),
            swap: over.swap.or(self.swap),
            fault: over.fault.or(self.fault),
            policy: match over.policy.or(self.policy) {
                Some(_) if is_planted(Canary::Toml) && over.fault == Some(FaultMode::Poll) => None,
                policy => policy,
            },
            prefetch: over.prefetch.or(self.prefetch),
            evictors: over.evictors.or(self.evictors),
            batch: over.batch.or(self.batch),
            writes: over.writes.or(self.writes),
            free: over.free.or(self.free),
            ablate: over.ablate.or(self.ablate),
            stats: over.stats.or(self.stats),
            threshold: over.threshold.or(self.threshold),
            io_timeout: over.io_timeout.or(self.io_timeout),
            encrypt: over.encrypt.or(self.encrypt),
            files: over.files.or(self.files),
            trim: over.trim.or(self.trim),
            memory_per_process: over.memory_per_process.or(self.memory_per_process),
            trace: over.trace.or(self.trace),
            follow: over.follow.or(self.follow),
            require: over.require.or(self.require),
        }
    }

    /// Puts the defaults below this layer and checks the whole. The stats file's path becomes absolute, since the program
    /// may change its directory before it ends.
    ///
    /// # Errors
    /// When `memory` is not set, and as [`Options::validate`] and [`with_default`].
    pub fn finish(self) -> Result<Options, ConfigError> {
        let hint = "say how much local memory the program gets, such as --memory 256M, or --slowdown 5% to have that chosen";
        let missing = ConfigError::Missing { option: "--memory", hint };
        let in_budget = self.budget.is_some();
        let memory = match (self.memory, self.slowdown) {
            (Some(_), Some(slowdown)) => {
                let why = "--memory says what the limit is: leave one of them out, or give --memory-max in its place";
                return Err(ConfigError::value("--slowdown", &slowdown.to_string(), why));
            }
            (given, None) if self.memory_max.is_some() && !(in_budget && given.is_none()) => {
                let most = self.memory_max.or(given).unwrap_or_default();
                let why = match in_budget {
                    true => "--memory says already what the most is: leave one of them out",
                    false => {
                        "the limit is chosen with --slowdown or --budget alone: give one of them too, or --memory in place of this"
                    }
                };
                return Err(ConfigError::value("--memory-max", &most.to_string(), why));
            }
            (Some(memory), None) => memory,
            (None, slowdown) if slowdown.is_some() || in_budget => {
                self.memory_max.or_else(machine_memory).ok_or(ConfigError::Missing {
                    option: "--memory-max",
                    hint: "/proc/meminfo does not tell how much memory the machine has: say how much the program gets at most",
                })?
            }
            (None, _) => return Err(missing),
        };
        if let Some(most) = self.memory_max.filter(|most| *most < MEMORY_MIN) {
            let why = format!("it must be at least {MEMORY_MIN}");
            return Err(ConfigError::value("--memory-max", &most.to_string(), why));
        }
        let mut options = Options::new(memory, SwapSpec::Dir(PathBuf::new()));
        (options.slowdown, options.memory_min, options.budget) = (self.slowdown, self.memory_min, self.budget);
        options.swap = with_default(self.swap)?;
        options.fault = self.fault.unwrap_or(options.fault);
        options.policy = self.policy.unwrap_or(options.policy);
        options.ablate = self.ablate.unwrap_or_default();
        let unasked = if options.ablate.0.prefetch { Named::new(NO_PREFETCHER) } else { options.prefetch };
        options.prefetch = self.prefetch.unwrap_or(unasked);
        let number = |given: Option<OrAuto>| given.and_then(|OrAuto(number)| number);
        (options.evictors, options.batch, options.writes) = (number(self.evictors), number(self.batch), number(self.writes));
        options.free = number(self.free);
        options.threshold = self.threshold.unwrap_or(options.threshold);
        options.io_timeout = self.io_timeout.unwrap_or(options.io_timeout);
        options.encrypt = self.encrypt.unwrap_or(options.encrypt);
        options.files = self.files.unwrap_or(options.files);
        options.trim = self.trim.unwrap_or(options.trim);
        options.memory_per_process = self.memory_per_process.unwrap_or(options.memory_per_process);
        options.trace = self.trace.unwrap_or(options.trace);
        options.follow = self.follow.unwrap_or(options.follow);
        options.require = self.require.unwrap_or(options.require);
        options.stats = self.stats.map(absolute).transpose()?;
        options.validate()?;
        Ok(options)
    }
}

fn absolute(target: StatsTarget) -> Result<StatsTarget, ConfigError> {
    let StatsTarget::File(path) = target else { return Ok(target) };
    match std::path::absolute(&path) {
        Ok(path) if path.to_str().is_some() => Ok(StatsTarget::File(path)),
        Ok(_) => Err(ConfigError::value("stats file", &path.to_string_lossy(), "its path is not UTF-8; use another")),
        Err(error) => Err(ConfigError::value("stats file", &path.to_string_lossy(), error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toml(text: &str) -> Result<Partial, ConfigError> {
        Partial::from_toml(text, Path::new("far.toml"))
    }

    #[test]
    fn the_command_line_wins_over_the_file_and_the_file_over_the_defaults() {
        let file = toml("memory = \"1G\"\nevictors = 2\nswap = [\"dir:/a\", \"dir:/b\"]\npolicy = \"fifo\"\n").unwrap();
        let line = Partial { memory: Some(Size::mib(64)), stats: Some(StatsTarget::Stderr), ..Partial::default() };
        let options = file.merge(line).finish().unwrap();
        let expected = Options {
            swap: vec![SwapSpec::Dir("/a".into()), SwapSpec::Dir("/b".into())],
            policy: Named::new("fifo"),
            evictors: Some(2),
            stats: Some(StatsTarget::Stderr),
            ..Options::new(Size::mib(64), SwapSpec::Dir("/x".into()))
        };
        assert_eq!(options, expected);
    }

    #[test]
    fn every_key_of_the_file_is_read() {
        let text = "memory = 67108864\nswap = \"ram,size=1G\"\nfault = \"poll\"\npolicy = \"second-chance\"\nprefetch = \"none\"\n\
                    evictors = 16\nbatch = 64\nwrites = \"auto\"\nfree = 15\nablate = \"rescue,caches\"\nstats = \"/tmp/x\"\nthreshold = \"1M\"\nio-timeout = \"2s\"\nencrypt = true\nmemory-per-process = true\ntrace = true\nfollow = false\ntrim = false\nfiles = true\n";
        let options = toml(text).unwrap().finish().unwrap();
        assert_eq!(options.memory, Size::mib(64));
        assert_eq!(options.swap[0].to_string(), "ram,size=1G");
        assert_eq!((options.fault, options.evictors, options.trace), (FaultMode::Poll, Some(16), true));
        assert_eq!((options.batch, options.writes, options.free), (Some(64), None, Some(15)));
        assert!(options.encrypt && options.memory_per_process && !options.follow && !options.trim && options.files);
        assert_eq!(options.io_timeout, Time(2_000_000_000));
        assert_eq!(options.stats, Some(StatsTarget::File("/tmp/x".into())));
        assert_eq!(options.threshold, Size::mib(1));
    }

    #[test]
    fn without_prefetching_there_is_no_prefetcher() {
        let options = toml("memory = \"64M\"\nablate = \"prefetch,batch=2\"\n").unwrap().finish().unwrap();
        assert_eq!((options.prefetch.name.as_str(), options.batch), ("none", None));
        assert_eq!(Options::from_json(&options.to_json()), Ok(options));
        // The command line has its own list, and not both.
        let file = toml("memory = \"64M\"\nablate = \"prefetch\"\n").unwrap();
        let both = file.merge(Partial { ablate: Some("caches".parse().unwrap()), ..Partial::default() }).finish().unwrap();
        assert_eq!((both.ablate.to_string().as_str(), both.prefetch.name.as_str()), ("caches", "sequential"));
    }

    #[test]
    fn a_slowdown_is_a_text_or_a_number_in_the_file() {
        for text in ["slowdown = \"5%\"\n", "slowdown = \"5\"\n", "slowdown = 5\n", "slowdown = 5.0\n"] {
            assert_eq!(toml(text).unwrap().finish().unwrap().slowdown, Some("5%".parse().unwrap()), "{text}");
        }
        assert_eq!(toml("slowdown = 0.5\n").unwrap().slowdown, Some("0.5%".parse().unwrap()));
    }

    #[test]
    fn a_budget_goes_alone_or_with_what_it_bounds() {
        let finish = |text: &str| toml(text).unwrap().finish();
        let alone = finish("budget = \"jobs=1G\"\n").unwrap();
        assert_eq!(alone.budget, Some("jobs=1G".parse().unwrap()));
        assert!(alone.chooses() && alone.memory_at_start() == Size::mib(48) && alone.least_memory() == Size::mib(16));
        let bounded = finish("budget = \"jobs\"\nmemory = \"64M\"\nmemory-min = \"8M\"\n").unwrap();
        assert_eq!((bounded.memory, bounded.least_memory()), (Size::mib(64), Size::mib(8)));
        let most = finish("budget = \"jobs\"\nmemory-max = \"64M\"\nbatch = 64\n").unwrap();
        assert_eq!((most.memory, most.memory_at_start()), (Size::mib(64), Size::mib(16)), "all of it counts on the least");
        let huge = finish("budget = \"jobs\"\nmemory-min = \"9000000T\"\nmemory-max = \"9000000T\"\n").unwrap();
        assert_eq!(huge.memory_at_start(), huge.memory, "three times as much is no number of 64 bits");
        assert!(finish("budget = \"jobs\"\nslowdown = 5\nmemory-max = \"64M\"\n").is_ok());
        for (text, part) in [
            ("budget = \"jobs\"\nmemory = \"64M\"\nmemory-max = \"64M\"\n", "leave one of them out"),
            ("budget = \"jobs\"\nmemory-per-process = true\n", "--memory-per-process"),
            ("budget = \"jobs\"\nslowdown = 5\nmemory = \"64M\"\n", "--memory-max in its place"),
            ("memory-max = \"64M\"\n", "--budget"),
            ("memory = \"64M\"\nmemory-min = \"8M\"\n", "--budget"),
        ] {
            let error = finish(text).expect_err(text).to_string();
            assert!(error.contains(part) && !error.contains('\n'), "{text}: {error}");
        }
        // Another user's program has no part in it, and no more than all of it.
        let seat = Some(Seat { descriptor: 900, line: 3 });
        let others = Options { seat, memory_min: Some(Size::mib(8)), ..alone.clone() }.for_others();
        assert_eq!((others.budget.is_none(), others.seat, others.memory), (true, None, Size(1 << 30)));
        assert_eq!(Options::from_json(&others.to_json()), Ok(others));
        assert_eq!(Options { seat, ..alone }.descriptors(), [900]);
        // A size on the command line bounds what a file has put into a budget.
        let file = toml("budget = \"jobs\"\nmemory-min = \"8M\"\n").unwrap();
        let both = file.merge(Partial { memory: Some(Size::mib(64)), ..Partial::default() }).finish().unwrap();
        assert_eq!((both.memory, both.memory_min), (Size::mib(64), Some(Size::mib(8))));
    }

    #[test]
    fn a_mistake_in_the_file_is_one_line_with_its_place() {
        for (text, parts) in [
            ("memory = \"1G\"\nmemroy = 1\n", ["far.toml:2", "memroy"]),
            ("\n\nmemory = \"64Q\"\n", ["far.toml:3", "64Q"]),
            ("memory = -1\n", ["far.toml:1", "negative"]),
            ("memory = \n", ["far.toml:1", ""]),
            ("fault = \"push\"\n", ["push", "upcall or poll"]),
            ("swap = [\"tape:/x\"]\n", ["tape:/x", "dir:PATH"]),
            ("swap = 3\n", ["far.toml:1", "dir:/var/tmp"]),
            ("evictors = -2\n", ["far.toml:1", "-2"]),
            ("batch = \"many\"\n", ["far.toml:1", "auto"]),
            ("writes = 1.5\n", ["far.toml:1", "auto"]),
            ("[memory]\n", ["far.toml:1", "64M"]),
            ("slowdown = 0\n", ["far.toml:1", "more than 0"]),
            ("slowdown = 100.0\n", ["far.toml:1", "below 100%"]),
            ("slowdown = true\n", ["far.toml:1", "percentage"]),
            ("budget = \"jobs=1K\"\n", ["far.toml:1", "at least 4M"]),
        ] {
            let error = toml(text).expect_err(text).to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{text:?}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
        let error = Partial::from_file(Path::new("/no/such.toml")).unwrap_err().to_string();
        assert!(error.contains("/no/such.toml") && error.contains("--config"), "{error}");
        let error = Partial::from_toml("memory = -1\n", Path::new("/a\nb\u{1b}.toml")).unwrap_err().to_string();
        assert!(error.starts_with("/a\\nb\\u{1b}.toml:1: "), "{error:?}");
    }

    #[test]
    fn limits_are_checked_with_the_value() {
        let refused = |change: fn(&mut Options)| {
            let mut options = Options::new(Size::mib(64), SwapSpec::Dir("/x".into()));
            change(&mut options);
            options.validate().expect_err("must be refused").to_string()
        };
        assert!(refused(|o| o.memory = Size(0)).contains("--memory \"0\""));
        assert!(refused(|o| o.memory = Size::mib(3)).contains("at least 4M"));
        assert!(refused(|o| o.evictors = Some(0)).contains("1 to 16"));
        assert!(refused(|o| o.evictors = Some(17)).contains("\"17\""));
        assert!(refused(|o| o.batch = Some(7)).contains("8 to 256"));
        assert!(refused(|o| o.writes = Some(5)).contains("1 to 4"));
        assert!(refused(|o| (o.memory, o.evictors, o.batch) = (Size::mib(4), Some(4), Some(65))).contains("at most 64"));
        fn ablated(text: &str) -> Ablate {
            text.parse().unwrap()
        }
        assert!(refused(|o| (o.ablate, o.memory) = (ablated("batch=512"), Size::mib(8))).contains("at most 292"));
        assert!(refused(|o| (o.ablate, o.batch) = (ablated("batch=1"), Some(64))).contains("--batch"));
        assert!(refused(|o| o.ablate = ablated("prefetch")).contains("--prefetch sequential"));
        assert!(refused(|o| o.threshold = Size(1)).contains("4K"));
        assert!(refused(|o| o.policy = Named::new("lru")).contains("second-chance, fifo"));
        assert!(refused(|o| o.prefetch = Named::new("oracle")).contains("none"));
        assert!(refused(|o| o.policy = "fifo,a=1".parse().unwrap()).contains("\"a\""));
        assert!(refused(|o| o.swap = vec![]).contains("--swap"));
        assert!(refused(|o| o.swap.push(SwapSpec::Later("rediss://x".into()))).contains("not built yet"));
        let error = Partial::default().finish().unwrap_err().to_string();
        assert!(error.contains("--memory"), "{error}");
    }

    #[test]
    fn only_the_first_process_writes_its_counters() {
        let mut options = Options::new(Size::mib(64), SwapSpec::Dir("/x".into()));
        options.stats = Some(StatsTarget::Stderr);
        options.library = Some("/l/libfarshore.so".into());
        options.family = Some(Handed {
            ledger: 900,
            devices: vec![HandedDevice { path: "/dev/x".into(), device: 901, regions: 902, bytes: 4096 }],
        });
        let becomes = options.for_successor(true);
        assert_eq!(becomes, Options { followed: true, ..options.clone() });
        assert_eq!(options.for_successor(false), Options { stats: None, ..becomes.clone() });
        assert_eq!(becomes.for_successor(true), becomes);
        assert_eq!(Options::from_json(&becomes.to_json()), Ok(becomes));
        assert_eq!(options.descriptors(), [900, 901, 902]);
    }

    #[test]
    fn the_library_reads_what_the_command_wrote() {
        let partial = Partial {
            memory: Some(Size(12_345_678)),
            swap: Some(vec!["file:/a \"b\"\n,size=3M".parse().unwrap(), "dir:/x".parse().unwrap()]),
            stats: Some(StatsTarget::File("rel".into())),
            ..Partial::default()
        };
        let options = partial.finish().unwrap();
        assert!(matches!(&options.stats, Some(StatsTarget::File(path)) if path.is_absolute()));
        let json = options.to_json();
        assert!(!json.contains('\n'));
        assert_eq!(Options::from_json(&json), Ok(options));
        for bad in ["", "{}", "[1]", &json.replace("\"fault\"", "\"fualt\""), &json.replace("12345678", "1K")] {
            assert!(Options::from_json(bad).is_err(), "{bad}");
        }
    }
}
