//! The program as it is, and behind a prefix of the user's own.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::Command;

use super::{Place, Target};
use crate::proc;
use crate::result::{Counters, Round};
use crate::targets::swap;

/// `native` and `command:WORDS`.
#[derive(Debug)]
pub struct Plain {
    /// What comes before the program; empty: `native`.
    prefix: Vec<String>,
    environment: BTreeMap<String, String>,
    /// The machine's swap traffic before the run.
    traffic: (u64, u64),
}

impl Plain {
    /// The program behind `prefix`, with these variables.
    #[must_use]
    pub fn new(prefix: Vec<String>, environment: BTreeMap<String, String>) -> Plain {
        Plain { prefix, environment, traffic: (0, 0) }
    }
}

impl Target for Plain {
    fn kind(&self) -> &'static str {
        if self.prefix.is_empty() { "native" } else { "command" }
    }

    fn settings(&self) -> BTreeMap<String, String> {
        let mut settings = environment_settings(&self.environment);
        if !self.prefix.is_empty() {
            settings.insert("command".to_string(), self.prefix.join(" "));
        }
        settings
    }

    fn uses_device(&self) -> bool {
        false
    }

    fn set_up(&mut self, _place: &Place) -> Result<(), String> {
        Ok(())
    }

    fn before(&mut self) -> Result<(), String> {
        self.traffic = swap::traffic();
        Ok(())
    }

    fn command(&self, program: &[OsString]) -> Command {
        let mut words = self.prefix.iter().map(OsString::from).chain(program.iter().cloned());
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).envs(&self.environment);
        command
    }

    fn sample(&self, pid: u32) -> Option<Counters> {
        Some(kernel_counters(pid, self.traffic))
    }

    fn set_memory(&self, _pid: u32, _memory_bytes: u64) -> Result<(), String> {
        Ok(())
    }

    fn after(&mut self, round: &mut Round) {
        add_traffic(round, self.traffic);
    }

    fn take_down(&mut self) {}
}

/// What the kernel has counted for a process, and the machine's swap traffic since `before`.
pub(super) fn kernel_counters(pid: u32, before: (u64, u64)) -> Counters {
    let used = proc::counters(pid);
    let (read, written) = swap::traffic();
    Counters {
        fetches: used.major_faults,
        other_faults: used.minor_faults,
        pages_in: read.saturating_sub(before.0),
        pages_out: written.saturating_sub(before.1),
        ..Counters::default()
    }
}

/// The machine's swap traffic of a whole run. Its faults are known to whoever waited for the program.
pub(super) fn add_traffic(round: &mut Round, before: (u64, u64)) {
    let (read, written) = swap::traffic();
    round.counters.pages_in = read.saturating_sub(before.0);
    round.counters.pages_out = written.saturating_sub(before.1);
}

/// Variables among a target's settings.
pub(super) fn environment_settings(environment: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    environment.iter().map(|(name, value)| (format!("env.{name}"), value.clone())).collect()
}
