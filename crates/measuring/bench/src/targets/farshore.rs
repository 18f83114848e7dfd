//! The program under `farshore run`.
//!
//! Whether it can run here at all is tried in `set_up`, with the very options of the runs: what is wrong with them is said once, in the
//! command's own words, and not as a failure of each run.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use farshore_config::stats::Stats;
use farshore_config::{Size, SwapSpec};

use super::plain::environment_settings;
use super::spec::ATTACH;
use super::{Place, Target};
use crate::journal::Journal;
use crate::result::{Counters, Round};
use crate::targets::tools;

/// The value of `swap` that stands for the directory of this command's swap files, in which a run without `swap` has its own; with `,size=SIZE` behind it,
/// for a file there that is no larger.
const OWN_DIRECTORY: &str = "dir";

/// Whether a value of `swap` is a space in the directory of this command's swap files: `None` if not, else its size if one is said.
///
/// # Errors
/// What is no size: one line.
pub fn own_space(value: &str) -> Result<Option<Option<Size>>, String> {
    match value.strip_prefix(OWN_DIRECTORY) {
        Some("") => Ok(Some(None)),
        Some(rest) => match rest.strip_prefix(",size=") {
            Some(size) => size.parse::<Size>().map(|size| Some(Some(size))).map_err(|error| error.to_string()),
            None => Ok(None),
        },
        None => Ok(None),
    }
}

/// `farshore[:OPTIONS]`.
#[derive(Debug)]
pub struct Farshore {
    command: PathBuf,
    /// (key, value), as words of `farshore run`: `--KEY=VALUE`; and the policy to attach, which is none.
    options: Vec<(String, String)>,
    environment: BTreeMap<String, String>,
    journal: Arc<Journal>,
    place: Option<Place>,
    version: String,
    on_device: bool,
    /// Where the counters of a run are written.
    stats: PathBuf,
    /// The limit that this run was given while it ran, in bytes; 0: none.
    raised: Cell<u64>,
}

impl Farshore {
    /// `command run` with these options, none of which is `memory` or `stats`.
    #[must_use]
    pub fn new(
        command: PathBuf,
        options: Vec<(String, String)>,
        environment: BTreeMap<String, String>,
        journal: &Arc<Journal>,
    ) -> Self {
        let on_device = is_on_device(&options, journal.work());
        let stats = journal.work().join(format!("{}.stats", journal.new_name()));
        Farshore {
            command,
            options,
            environment,
            journal: Arc::clone(journal),
            place: None,
            version: String::new(),
            on_device,
            stats,
            raised: Cell::new(0),
        }
    }

    /// Runs `farshore run … -- true`.
    fn try_out(&self) -> Result<(), String> {
        let program = tools::need("true", "coreutils")?;
        let mut command = self.command(&[program.into_os_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        let done = command.output().map_err(|error| self.cannot_start(&error))?;
        if done.status.success() {
            return Ok(());
        }
        let said = tools::one_line(&String::from_utf8_lossy(&done.stderr));
        Err(if said.is_empty() { format!("'{}' failed ({})", self.command.display(), done.status) } else { said })
    }

    fn ask_version(&self) -> Result<String, String> {
        let mut command = Command::new(&self.command);
        command.arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let done = command.output().map_err(|error| self.cannot_start(&error))?;
        Ok(String::from_utf8_lossy(&done.stdout).trim().trim_start_matches("farshore ").to_string())
    }

    fn cannot_start(&self, error: &std::io::Error) -> String {
        format!("cannot start '{}' ({})", self.command.display(), tools::reason(error))
    }

    fn read_stats(&self) -> Result<(Stats, serde_json::Value), String> {
        let text =
            fs::read_to_string(&self.stats).map_err(|error| format!("farshore left no counters ({})", tools::reason(&error)))?;
        let value = serde_json::from_str(&text).map_err(|error| format!("farshore's counters are no JSON ({error})"))?;
        Ok((Stats::from_json(&text)?, value))
    }
}

/// The word for a swap file in the directory of this command's.
fn own_directory(place: &Place) -> OsString {
    let mut word = OsString::from("--swap=dir:");
    word.push(&place.directory);
    word
}

/// The word for a swap file of this size in the same directory. It has its name for a moment alone.
fn own_file(place: &Place, index: usize, size: Size) -> OsString {
    let mut word = OsString::from("--swap=file:");
    word.push(place.directory.join(format!("space-{index}")));
    word.push(format!(",size={}", size.0));
    word
}

/// The values of `swap`.
fn swaps(options: &[(String, String)]) -> impl Iterator<Item = &str> {
    options.iter().filter(|(key, _)| key == "swap").map(|(_, value)| value.as_str())
}

/// Whether one of the swap spaces is on the device of `directory`.
fn is_on_device(options: &[(String, String)], directory: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|about| about.dev()).ok();
    let here = device(directory);
    let on = |spec: &str| match spec.parse::<SwapSpec>() {
        Ok(SwapSpec::Dir(path)) => device(&path) == here,
        Ok(SwapSpec::File { path, .. }) => path.parent().and_then(device) == here,
        _ => false,
    };
    swaps(options).next().is_none() || swaps(options).any(|spec| matches!(own_space(spec), Ok(Some(_))) || on(spec))
}

/// The memory limit: with room for compressed pages, if they lie in RAM.
fn memory_bytes(options: &[(String, String)], place: &Place) -> u64 {
    let is_pool = |spec: &str| spec.parse::<SwapSpec>().is_ok_and(|spec| spec.is_pool());
    let pool = if swaps(options).any(is_pool) { place.pool_bytes } else { 0 };
    place.memory_bytes.saturating_add(pool)
}

/// What farshore's counters say of its promises.
fn broken_promises(stats: &Stats, memory_bytes: u64) -> Vec<String> {
    let mut wrong = Vec::new();
    if stats.evictions.synchronous != 0 {
        wrong.push(format!("farshore evicted {} times in a fault path: it must never", stats.evictions.synchronous));
    }
    if stats.swap.errors != 0 {
        wrong.push(format!("{} of farshore's reads and writes of swap space failed", stats.swap.errors));
    }
    for (what, bytes) in [("memory limit", stats.memory_limit_bytes), ("peak of local memory", stats.resident_bytes_peak)] {
        if bytes > memory_bytes {
            wrong.push(format!("farshore's {what} is {bytes} bytes, more than the {memory_bytes} that it was given"));
        }
    }
    wrong
}

fn counters(stats: &Stats) -> Counters {
    let faults = &stats.faults;
    Counters {
        fetches: faults.fetch,
        other_faults: faults.zero + faults.rescue + faults.wait + faults.write_protect,
        pages_in: stats.swap.pages_in,
        pages_out: stats.swap.pages_out,
        ..Counters::default()
    }
}

impl Target for Farshore {
    fn kind(&self) -> &'static str {
        "farshore"
    }

    fn settings(&self) -> BTreeMap<String, String> {
        let mut settings = environment_settings(&self.environment);
        settings.insert("command".to_string(), self.command.display().to_string());
        if !self.version.is_empty() {
            settings.insert("version".to_string(), self.version.clone());
        }
        for (key, value) in &self.options {
            let all = settings.entry(key.clone()).or_default();
            // Several swap spaces are one setting.
            *all = if all.is_empty() { value.clone() } else { format!("{all} {value}") };
        }
        settings
    }

    fn uses_device(&self) -> bool {
        self.on_device
    }

    fn set_up(&mut self, place: &Place) -> Result<(), String> {
        if self.place.as_ref() == Some(place) {
            return Ok(());
        }
        if !tools::is_executable(&self.command) {
            return Err(format!(
                "'{}' is no command that can be run: name farshore's own, or the directory that has it",
                self.command.display()
            ));
        }
        self.version = self.ask_version()?;
        self.on_device = is_on_device(&self.options, &place.directory);
        self.place = Some(place.clone());
        let tried = self.try_out();
        let _ = fs::remove_file(&self.stats);
        if tried.is_err() {
            self.place = None;
        }
        tried
    }

    fn before(&mut self) -> Result<(), String> {
        self.raised.set(0);
        // An old one must not be taken for the next run's.
        let _ = fs::remove_file(&self.stats);
        if self.place.is_some() { Ok(()) } else { Err("this target was not set up".to_string()) }
    }

    fn command(&self, program: &[OsString]) -> Command {
        let mut command = Command::new(&self.command);
        command.arg("run").envs(&self.environment);
        if let Some(place) = &self.place {
            command.arg(format!("--memory={}", memory_bytes(&self.options, place)));
            if swaps(&self.options).next().is_none() {
                command.args(std::iter::repeat_n(own_directory(place), place.swap_files.max(1) as usize));
            }
        }
        let mut stats = OsString::from("--stats=");
        stats.push(&self.stats);
        command.arg(stats);
        let word = |(index, (key, value)): (usize, &(String, String))| {
            let own = own_space(value).ok().flatten().filter(|_| key == "swap");
            match (&self.place, own) {
                (Some(place), Some(None)) => own_directory(place),
                (Some(place), Some(Some(size))) => own_file(place, index, size),
                _ => format!("--{key}={value}").into(),
            }
        };
        command.args(self.options.iter().filter(|(key, _)| key != ATTACH).enumerate().map(word));
        command.arg("--").args(program);
        command
    }

    fn beside(&self, pid: u32) -> Option<Command> {
        let (_, policy) = self.options.iter().find(|(key, _)| key == ATTACH)?;
        let mut words = policy.split(',');
        let mut command = Command::new(&self.command);
        command.arg("policy").args(words.next()).arg(pid.to_string()).args(words);
        Some(command)
    }

    fn sample(&self, pid: u32) -> Option<Counters> {
        let mut command = Command::new(&self.command);
        command.args(["stat", "--json"]).arg(pid.to_string());
        command.stdin(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let told = command.output().ok().and_then(|done| Stats::from_json(&String::from_utf8_lossy(&done.stdout)).ok());
        told.as_ref().map(counters)
    }

    fn set_memory(&self, pid: u32, memory_bytes: u64) -> Result<(), String> {
        let mut command = Command::new(&self.command);
        command.arg("set").arg(pid.to_string()).arg(format!("memory={memory_bytes}"));
        command.stdin(Stdio::null()).process_group(0);
        let done = command.output().map_err(|error| self.cannot_start(&error))?;
        if done.status.success() {
            self.raised.set(self.raised.get().max(memory_bytes));
            return Ok(());
        }
        Err(format!(
            "its limit could not be set to {memory_bytes} bytes: {}",
            tools::one_line(&String::from_utf8_lossy(&done.stderr))
        ))
    }

    fn after(&mut self, round: &mut Round) {
        let Some(place) = &self.place else { return };
        match self.read_stats() {
            Ok((stats, value)) => {
                let counted = counters(&stats);
                round.counters.fetches = counted.fetches;
                round.counters.other_faults = counted.other_faults;
                round.counters.pages_in = counted.pages_in;
                round.counters.pages_out = counted.pages_out;
                round.peak_limited_bytes = stats.resident_bytes_peak;
                round.wrong.extend(broken_promises(&stats, memory_bytes(&self.options, place).max(self.raised.get())));
                if self.beside(0).is_some() && stats.policies.is_empty() {
                    round.wrong.push("no policy was attached: it is with the first phase of a workload".to_string());
                }
                round.stats = Some(value);
            }
            // A program that was killed leaves none.
            Err(why) if round.wrong.is_empty() => round.wrong.push(why),
            Err(_) => {}
        }
        let _ = fs::remove_file(&self.stats);
    }

    fn take_down(&mut self) {
        self.place = None;
        if self.journal.work().is_dir() {
            let _ = fs::remove_file(&self.stats);
        }
    }
}

impl Drop for Farshore {
    fn drop(&mut self) {
        self.take_down();
    }
}

#[cfg(test)]
#[path = "farshore/tests.rs"]
mod tests;
