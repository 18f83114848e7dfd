//! What this kernel, and this user, can do: for `farshore doctor` and for a clear refusal at the start.
//!
//! Each probe carries the operation out on scratch memory of its own and leaves nothing behind; version numbers and feature bits alone
//! prove nothing in containers and on patched kernels. While they run, the actions of SIGBUS and SIGSYS are
//! replaced for moments, so [`probe_all`] is for a process that does nothing else meanwhile. Allocates.

mod faults;
mod system;

pub use system::kernel_release;

use alloc_crate::string::String;
use alloc_crate::vec::Vec;

/// Whether Farshore can do without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needed {
    /// No.
    Required,
    /// Yes; what happens then.
    Optional(&'static str),
}

/// The outcome of one probe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probe {
    /// What was tried.
    pub name: &'static str,
    /// Whether Farshore can do without.
    pub needed: Needed,
    /// Details, or why it does not work.
    pub result: Result<String, String>,
    /// How to mend it; empty when it works.
    pub advice: String,
}

impl Probe {
    /// Pairs an outcome with the advice for its failure.
    fn new(name: &'static str, needed: Needed, result: Result<String, String>, advice: &str) -> Probe {
        let advice = if result.is_ok() { String::new() } else { String::from(advice) };
        Probe { name, needed, result, advice }
    }

    /// Whether Farshore cannot run because of it. Tests alone ask.
    pub fn is_fatal(&self) -> bool {
        self.needed == Needed::Required && self.result.is_err()
    }
}

/// Tries everything. Takes some milliseconds.
pub fn probe_all() -> Vec<Probe> {
    let mut probes = Vec::new();
    probes.push(system::kernel_version());
    faults::probe(&mut probes);
    probes.push(system::process_madvise());
    probes.push(system::dispatch());
    probes.push(system::io_uring());
    probes.push(system::pagemap_scan());
    probes.push(system::scans());
    probes.push(system::open_files());
    probes
}
