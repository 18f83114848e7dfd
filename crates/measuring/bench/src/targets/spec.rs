//! What `--against` names: `farshore,farshore:prefetch=none+label=plain,linux-swap,command:nice -n 5`.
//!
//! # Grammar
//!
//! ```text
//! list      TARGET[,TARGET…]                    a comma within a target: \,
//! TARGET    NAME[:OPTION[+OPTION…]]             a plus within an option: \+
//!           command:[OPTION …] WORDS            as a shell would split them; options are leading words
//! NAME      native, farshore, linux-swap, zram, zswap
//! OPTION    label=NAME, env.NAME=VALUE; for farshore KEY=VALUE of farshore run, attach=POLICY and build=PATH; for the kernel's readahead=none; for zram and zswap pool=counted
//! ```
//!
//! Every other backslash is a backslash.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use farshore_config::pace::OrAuto;
use farshore_config::{Ablate, FaultMode, Named, Size, SwapSpec};

use super::Target;
use super::farshore::{self, Farshore};
use super::kernel::{self, Kernel};
use super::plain::Plain;
use crate::journal::Journal;

/// The targets, for messages.
const NAMES: &str = "native, farshore[:OPTION+…], linux-swap, zram, zswap, command:WORDS";
/// The options of every target, for messages.
const COMMON: &str = "label=NAME, env.NAME=VALUE";
/// Options of `farshore run` that a target can have. `memory` is every target's, by `--memory`.
const KEYS: [&str; 10] = ["swap", "fault", "policy", "prefetch", "evictors", "batch", "writes", "free", "threshold", "ablate"];
/// The option that names a policy of `farshore policy`, which is attached to the program.
pub const ATTACH: &str = "attach";

/// One target, as it was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spec {
    /// As it was written.
    text: String,
    label: Option<String>,
    environment: BTreeMap<String, String>,
    kind: Kind,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Kind {
    Native,
    Farshore { options: Vec<(String, String)>, build: Option<PathBuf> },
    Kernel { kind: kernel::Kind, counted: bool, ahead: bool },
    Command(Vec<String>),
}

/// Reads a list of targets.
///
/// # Errors
/// What is not known, and what there is: one line.
pub fn parse_list(text: &str) -> Result<Vec<Spec>, String> {
    split(text, ',').iter().map(|word| word.parse()).collect()
}

/// Names for tables, in the order of the targets: as they were written, or as their `label` says, each with a number where it would come twice.
#[must_use]
pub fn labels(specs: &[Spec]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for spec in specs {
        let name = spec.label.as_deref().unwrap_or(&spec.text);
        let numbered = (2_u32..).map(|number| format!("{name} {number}"));
        let label = std::iter::once(name.to_string()).chain(numbered).find(|label| !all.contains(label));
        all.push(label.unwrap_or_default());
    }
    all
}

impl Spec {
    /// Another build of Farshore, with its defaults: `command` is its `farshore`, or the directory that has it.
    #[must_use]
    pub fn of_build(command: &Path, label: &str) -> Spec {
        let kind = Kind::Farshore { options: Vec::new(), build: Some(command.to_path_buf()) };
        Spec::labelled(&format!("farshore:build={}", command.display()), kind, label)
    }

    /// Farshore with these swap spaces.
    #[must_use]
    pub fn of_swaps(swaps: &[String], label: &str) -> Spec {
        let options = swaps.iter().map(|swap| ("swap".to_string(), swap.clone())).collect();
        Spec::labelled("farshore", Kind::Farshore { options, build: None }, label)
    }

    /// Linux swap in a file.
    #[must_use]
    pub fn linux_swap(label: &str) -> Spec {
        Spec::labelled("linux-swap", Kind::Kernel { kind: kernel::Kind::File, counted: false, ahead: true }, label)
    }

    /// Linux swap on zram.
    #[must_use]
    pub fn zram(label: &str) -> Spec {
        Spec::labelled("zram", Kind::Kernel { kind: kernel::Kind::Zram, counted: false, ahead: true }, label)
    }

    fn labelled(text: &str, kind: Kind, label: &str) -> Spec {
        Spec { text: text.to_string(), label: Some(label.to_string()), environment: BTreeMap::new(), kind }
    }

    /// `native`, `farshore`, `linux-swap`, `zram`, `zswap`, `command`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match &self.kind {
            Kind::Native => "native",
            Kind::Farshore { .. } => "farshore",
            Kind::Kernel { kind: kernel::Kind::File, .. } => "linux-swap",
            Kind::Kernel { kind: kernel::Kind::Zram, .. } => "zram",
            Kind::Kernel { kind: kernel::Kind::Zswap, .. } => "zswap",
            Kind::Command(_) => "command",
        }
    }

    /// Whether it is one of the kernel's, which need root.
    #[must_use]
    pub fn is_the_kernels(&self) -> bool {
        matches!(self.kind, Kind::Kernel { .. })
    }

    /// The target. `farshore` is the command for those that name no build of their own; what is made is written down in `journal`.
    #[must_use]
    pub fn build(&self, farshore: &Path, journal: &Arc<Journal>) -> Box<dyn Target> {
        let environment = self.environment.clone();
        match &self.kind {
            Kind::Native => Box::new(Plain::new(Vec::new(), environment)),
            Kind::Command(words) => Box::new(Plain::new(words.clone(), environment)),
            Kind::Kernel { kind, counted, ahead } => Box::new(Kernel::new(*kind, *counted, *ahead, environment, journal)),
            Kind::Farshore { options, build } => {
                let command = build.as_deref().map_or_else(|| farshore.to_path_buf(), command_of);
                Box::new(Farshore::new(command, options.clone(), environment, journal))
            }
        }
    }
}

/// A build's command: itself, or `farshore` in its directory.
fn command_of(build: &Path) -> PathBuf {
    if build.is_dir() { build.join("farshore") } else { build.to_path_buf() }
}

impl fmt::Display for Spec {
    /// As it was written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::str::FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Spec, String> {
        let text = text.trim();
        let (name, rest) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        let kind = match name {
            "native" => Kind::Native,
            "farshore" => Kind::Farshore { options: Vec::new(), build: None },
            "linux-swap" => Kind::Kernel { kind: kernel::Kind::File, counted: false, ahead: true },
            "zram" => Kind::Kernel { kind: kernel::Kind::Zram, counted: false, ahead: true },
            "zswap" => Kind::Kernel { kind: kernel::Kind::Zswap, counted: false, ahead: true },
            "command" => Kind::Command(Vec::new()),
            _ => return Err(format!("unknown target {name:?}: use {NAMES}")),
        };
        let mut spec = Spec { text: text.to_string(), label: None, environment: BTreeMap::new(), kind };
        if name == "command" {
            spec.read_command(rest.unwrap_or_default())?;
            return Ok(spec);
        }
        for option in rest.map(|rest| split(rest, '+')).unwrap_or_default() {
            spec.read_option(name, &option)?;
        }
        Ok(spec)
    }
}

impl Spec {
    fn read_command(&mut self, text: &str) -> Result<(), String> {
        let words =
            shlex::split(text).ok_or_else(|| format!("invalid target {:?}: a quotation mark is not closed", self.text))?;
        let is_option = |word: &&String| word.starts_with("label=") || word.starts_with("env.");
        let count = words.iter().take_while(is_option).count();
        for option in &words[..count] {
            self.read_option("command", option)?;
        }
        if words.len() == count {
            return Err(format!("invalid target {:?}: no command; write command:WORDS such as 'command:nice -n 5'", self.text));
        }
        self.kind = Kind::Command(words[count..].to_vec());
        Ok(())
    }

    fn read_option(&mut self, target: &str, option: &str) -> Result<(), String> {
        let Some((key, value)) = option.split_once('=').filter(|(key, value)| !key.is_empty() && !value.is_empty()) else {
            return Err(format!("invalid option {option:?} of target {target:?}: write KEY=VALUE; it takes {}", valid(target)));
        };
        let twice = || Err(format!("option {key:?} of target {target:?} is given twice: give it once"));
        if let Some(name) = key.strip_prefix("env.").filter(|name| !name.is_empty()) {
            return match self.environment.insert(name.to_string(), value.to_string()) {
                None => Ok(()),
                Some(_) => twice(),
            };
        }
        match (key, &mut self.kind) {
            ("label", _) => match self.label.replace(value.to_string()) {
                None => Ok(()),
                Some(_) => twice(),
            },
            ("build", Kind::Farshore { build, .. }) => match build.replace(PathBuf::from(value)) {
                None => Ok(()),
                Some(_) => twice(),
            },
            ("readahead", Kind::Kernel { ahead, .. }) => match value {
                "none" if !*ahead => twice(),
                "none" => {
                    *ahead = false;
                    Ok(())
                }
                _ => Err(format!("option \"readahead\" of target {target:?} is {value:?}: the only value is none")),
            },
            ("pool", Kind::Kernel { kind: kernel::Kind::Zram | kernel::Kind::Zswap, counted, .. }) => match value {
                "counted" if *counted => twice(),
                "counted" => {
                    *counted = true;
                    Ok(())
                }
                _ => Err(format!("option \"pool\" of target {target:?} is {value:?}: the only value is counted")),
            },
            (_, Kind::Farshore { options, .. }) if KEYS.contains(&key) || key == ATTACH => {
                if key != "swap" && options.iter().any(|(other, _)| other == key) {
                    return twice();
                }
                check_value(key, value).map_err(|why| format!("option {key:?} of target {target:?}: {why}"))?;
                options.push((key.to_string(), value.to_string()));
                Ok(())
            }
            ("memory", Kind::Farshore { .. }) => {
                Err("option \"memory\" of target \"farshore\": all targets have the same; use --memory".to_string())
            }
            _ => Err(format!("unknown option {key:?} of target {target:?}: it takes {}", valid(target))),
        }
    }
}

/// The options that a target takes, for messages.
fn valid(target: &str) -> String {
    match target {
        "farshore" => format!("{}, {ATTACH}, build, {COMMON}", KEYS.join(", ")),
        "zram" | "zswap" => format!("pool=counted, readahead=none, {COMMON}"),
        "linux-swap" => format!("readahead=none, {COMMON}"),
        _ => COMMON.to_string(),
    }
}

/// Refuses what no build of Farshore would take.
fn check_value(key: &str, value: &str) -> Result<(), String> {
    match key {
        // The directory of this command's own swap files.
        "swap" => match farshore::own_space(value)? {
            Some(_) => Ok(()),
            None => value.parse::<SwapSpec>().map(|_| ()).map_err(|error| error.to_string()),
        },
        "fault" => value.parse::<FaultMode>().map(|_| ()).map_err(|error| error.to_string()),
        "threshold" => value.parse::<Size>().map(|_| ()).map_err(|error| error.to_string()),
        "ablate" => value.parse::<Ablate>().map(|_| ()).map_err(|error| error.to_string()),
        "evictors" | "batch" | "writes" => value.parse::<OrAuto>().map(|_| ()).map_err(|error| error.to_string()),
        _ => value.parse::<Named>().map(|_| ()).map_err(|error| error.to_string()),
    }
}

/// The parts between separators. One behind a backslash separates nothing, and loses the backslash.
fn split(text: &str, separator: char) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let escaped = character == '\\' && characters.peek() == Some(&separator);
        if character == separator {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(if escaped { characters.next().unwrap_or(separator) } else { character });
        }
    }
    parts
}

#[cfg(test)]
#[path = "spec/tests.rs"]
mod tests;
