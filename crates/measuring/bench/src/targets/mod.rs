//! What a program is run under.
//!
//! # Protocol
//!
//! ```text
//! set_up(place) ─▶ { before() ─▶ command(…) runs, sample(…) ─▶ after(…) }, again and again ─▶ take_down()
//! ```
//!
//! 1. `set_up` makes what outlives a run (a swap file, a device) for one size of memory; another place takes it down and makes it anew.
//! 2. What others could notice (swap that is on, zswap's settings) is so from `before` to `after` alone.
//! 3. Whatever is made is written down first ([`crate::journal`]), so that the next start finds it after a `kill -9`.
//! 4. `after` is called whatever became of the run. `take_down` may be called at any moment, twice as well.
#![forbid(unsafe_code)]

pub mod cgroup;
pub mod farshore;
pub mod kernel;
pub mod plain;
pub mod setting;
pub mod spec;
pub mod swap;
pub mod tools;
pub mod total;
pub mod zram;
pub mod zswap;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::process::Command;

use crate::result::{Counters, Round};

/// What a run gets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// Local memory for the program's data, in bytes.
    pub memory_bytes: u64,
    /// RAM for compressed pages on top of it, in bytes, for a pool that counts within a limit.
    pub pool_bytes: u64,
    /// What a memory cgroup gets on top of it, in bytes: text, stacks and page tables, which Farshore's limit does not count.
    pub extra_bytes: u64,
    /// What swap space must be able to hold, in bytes.
    pub swap_bytes: u64,
    /// Swap files (devices) to spread it over.
    pub swap_files: u32,
    /// A directory of this command's own, on the device that is measured: swap files go there.
    pub directory: PathBuf,
}

/// Something that a program can be run under.
pub trait Target: fmt::Debug {
    /// `native`, `farshore`, `linux-swap`, `zram`, `zswap`, `command`.
    fn kind(&self) -> &'static str;

    /// For readers of the results: its options, versions, the kernel's settings that it sets.
    fn settings(&self) -> BTreeMap<String, String>;

    /// Whether its pages go to the device of the swap directory.
    fn uses_device(&self) -> bool;

    /// Makes what runs at `place` need.
    ///
    /// # Errors
    /// Why this machine or user cannot have it, and what to do: one line.
    fn set_up(&mut self, place: &Place) -> Result<(), String>;

    /// Makes ready for one run.
    ///
    /// # Errors
    /// Why not: one line.
    fn before(&mut self) -> Result<(), String>;

    /// The command that runs `program` under it. Its process id is the program's.
    fn command(&self, program: &[OsString]) -> Command;

    /// What is to run beside the program `pid` from its first phase on, and ends with it; `None`: nothing.
    fn beside(&self, pid: u32) -> Option<Command> {
        let _ = pid;
        None
    }

    /// What it has counted so far, for the running process `pid`: everything in [`Counters`] but processor time; `None` if that cannot
    /// be told (any more). Takes a few milliseconds at most.
    fn sample(&self, pid: u32) -> Option<Counters>;

    /// Gives the running process `pid` another limit, in bytes of the program's data. Where there is none, nothing is done.
    ///
    /// # Errors
    /// It could not be set: one line.
    fn set_memory(&self, pid: u32, memory_bytes: u64) -> Result<(), String>;

    /// Cleans up behind a run, and adds what it knows of it to `round`: counters of the whole run, the peak of its limit, Farshore's `--stats`,
    /// and to `wrong` what breaks its promises.
    fn after(&mut self, round: &mut Round);

    /// Removes all that it has made. Says on stderr what it could not remove.
    fn take_down(&mut self);
}
