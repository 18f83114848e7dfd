//! What `farshore stat` is told, and what `farshore set` changes: the library's answers at the control socket ([`farshore_socket`]).

use super::policies;
use crate::family::{self, pilot};
use crate::ground::report;
use crate::ground::runtime::{Runtime, runtime};
use farshore_config::control::{Attachment, Change, Set, Setting};
use farshore_config::{StatsTarget, stats};
use farshore_engine::stats::Count;
use farshore_socket::{Target, counters};
use farshore_sys::clock;
use farshore_sys::raw::{nr, syscall};

impl Target for Runtime {
    fn stats(&self) -> stats::Stats {
        let engine = &self.engine;
        let mapped = farshore_sys::alloc::mapped_bytes() as u64 + engine.backend.mapped_bytes();
        let overhead = mapped.saturating_sub(engine.table.unused_bytes());
        let told = stats::Stats {
            program: self.program.clone(),
            fault_mode: self.options.fault.to_string(),
            memory_limit_bytes: family::limit(self),
            overhead_bytes: overhead,
            overhead_bytes_peak: overhead,
            family: family::stats(self),
            processor_ns: clock::of_process(),
            policies: policies::stats(self),
            autopilot: pilot::stats(self),
            budget: pilot::budget_stats(self),
            ..counters::of(engine, self.started_ns)
        };
        stats::Stats { thrashing: farshore_config::advice::of(&told), ..told }
    }

    fn change(&self, id: u64) -> Result<Change, String> {
        self.change_now(id)
    }

    fn attach(&self, version: u64) -> Result<Attachment, String> {
        runtime().map_or_else(|| Err("attach: the program is ending".into()), |runtime| policies::attach(runtime, version))
    }

    fn detach(&self, seat: usize) {
        policies::detach(self, seat);
    }

    fn set(&self, key: &str, value: &str) -> Result<Set, String> {
        let setting = match Setting::read(key, value) {
            Ok(setting) => setting,
            // A policy's parameter may have any name: it does not hide that a setting was refused.
            Err(why) if Setting::is_known(key) => return Err(why),
            Err(why) => return policies::set_parameter(self, key, value).unwrap_or(Err(why)).map(|()| Set::Done),
        };
        match setting {
            Setting::AddSwap(spec) => self.add_swap(spec),
            Setting::RemoveSwap(spec) => self.remove_swap(spec),
            Setting::Policy(name) => self.choose_policy(&name).map(|()| Set::Done),
            Setting::Prefetch(name) => {
                counters::check_prefetcher(&self.engine, &name)?;
                self.choose_prefetcher(&name).map(|()| Set::Done)
            }
            Setting::Slowdown(slowdown) => {
                pilot::set(self, slowdown);
                Ok(Set::Done)
            }
            Setting::Budget(size) => pilot::set_budget(self, size).map(|()| Set::Done),
            Setting::Pace(knob, number) => counters::set_pace(&self.engine, knob, number).map(|()| Set::Done),
            Setting::Memory(size) => pilot::end_at(self, size.bytes()).map(|()| Set::Done).map_err(|least| {
                format!("memory={value} is below what this run can shrink to; give at least {}", farshore_config::Size(least))
            }),
        }
    }
}

/// Tells a user who sees it, at the end of the program, what would help it, if there is something.
pub fn advise(runtime: &Runtime) {
    const TCGETS: u64 = 0x5401;
    // The counters take memory, of which a program may have none left. Few have something to be told.
    if runtime.engine.stats.total(Count::PagesIn)
        < runtime.engine.stats.used_peak().saturating_mul(farshore_config::advice::TIMES)
    {
        return;
    }
    let mut terminal = [0u8; 64];
    // SAFETY: `struct termios` of the kernel, 36 bytes.
    let is_terminal = unsafe { syscall(nr::IOCTL, [2, TCGETS, terminal.as_mut_ptr() as u64, 0, 0, 0]) } == 0;
    if is_terminal && let Some(thrashing) = Target::stats(runtime).thrashing {
        report::line(format_args!("{}", thrashing.advice));
    }
}

/// Writes the counters where `--stats` says, at the end of the program.
pub fn write_stats(runtime: &Runtime) {
    let Some(target) = &runtime.options.stats else { return };
    let text = Target::stats(runtime).to_json();
    match target {
        StatsTarget::Stderr => {
            report::write_all(2, text.as_bytes());
        }
        StatsTarget::File(path) => {
            use rustix::fs::{Mode, OFlags};
            use std::os::fd::AsRawFd;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
            match rustix::fs::open(path, flags, Mode::from_raw_mode(0o644)) {
                Ok(file) => {
                    if !report::write_all(file.as_raw_fd() as u64, text.as_bytes()) {
                        report::line(format_args!("--stats {}: could not be written", path.display()));
                    }
                    // The process ends: a close by libc's symbol is not worth a way around.
                    core::mem::forget(file);
                }
                Err(why) => report::line(format_args!("--stats {}: {why}", path.display())),
            }
        }
    }
}
