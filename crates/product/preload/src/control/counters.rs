//! What `farshore stat` is told, and what `farshore set` changes: the library's answers at the control socket ([`farshore_socket`]).

use super::policies;
use crate::family::{self, pilot};
use crate::ground::report;
use crate::ground::runtime::{Runtime, runtime};
use core::sync::atomic::Ordering;
use farshore_backend::compressed::Compressed;
use farshore_config::control::{Attachment, Change, Set, Setting};
use farshore_config::pace::Knob;
use farshore_config::{StatsTarget, stats};
use farshore_core::seams::{Clock, Spaces};
use farshore_engine::Engine;
use farshore_engine::health::{Usage, Writing};
use farshore_engine::stats::{Count, FaultKind};
use farshore_socket::Target;
use farshore_sys::clock;
use farshore_sys::raw::{nr, syscall};

impl Runtime {
    /// One swap space, as the counters tell of it.
    fn space(&self, number: usize) -> stats::Space {
        let Runtime { engine: Engine { backend, health, slots, .. }, .. } = self;
        let used = slots.live_in(number);
        let usage = health.usage(number);
        let state = match health.writing(number) {
            _ if health.hangs(number) => "hangs",
            _ if usage == Usage::Left => "left",
            _ if usage != Usage::InUse => "draining",
            Writing::Works => "works",
            Writing::Full => "full",
            Writing::Fails => "fails",
        };
        stats::Space {
            name: slots.some_slot_of(number).map_or(backend.name(), |slot| backend.name_of(slot)).to_owned(),
            capacity_bytes: backend.capacity_of(number).map(|slots| slots * 4096),
            used_bytes: used * 4096,
            encrypted: backend.is_encrypted(),
            write_errors: health.errors(number),
            state: state.to_owned(),
            drained_percent: if state == "draining" { health.drained_percent(number, used) } else { 0 },
        }
    }
}

fn pool_stats(pool: &Compressed) -> stats::Pool {
    let counters = pool.counters();
    let counter = |c: &core::sync::atomic::AtomicU64| c.load(Ordering::Relaxed);
    let (capacity_bytes, used_bytes) = pool.bytes();
    stats::Pool {
        name: pool.pool_name().to_owned(),
        capacity_bytes,
        used_bytes,
        pages: counter(&counters.pages),
        repeated_pages: counter(&counters.repeated),
        compressed_bytes: counter(&counters.compressed_bytes),
        refused_pages: counter(&counters.passed_on),
        moved_pages: counter(&counters.moved),
    }
}

impl Runtime {
    fn evictors(&self) -> stats::Evictors {
        let paced = self.engine.paced();
        let (pace, wanted) = (paced.pace, paced.wanted);
        let counters = &self.engine.stats;
        stats::Evictors {
            count: paced.evictors.into(),
            awake: pace.evictors.into(),
            awake_fixed: wanted.evictors.is_some(),
            batch_pages: pace.batch.into(),
            batch_fixed: wanted.batch.is_some(),
            batch_pages_most: self.engine.sizes().batch as u64,
            writes_each: pace.writes.into(),
            writes_fixed: wanted.writes.is_some(),
            writes_in_flight: paced.writes_in_flight.into(),
            writes_in_flight_peak: paced.writes_in_flight_peak.into(),
            low_pages: paced.watermarks.0,
            high_pages: paced.watermarks.1,
            changes: paced.changes,
            frame_waits: counters.total(Count::FrameWaits),
            frame_wait_ns: counters.total(Count::FrameWaitNs),
        }
    }

    /// Fixes one number of the evictors' pace, or lets it adapt.
    ///
    /// # Errors
    /// It is more than this run has threads or stages for.
    fn set_pace(&self, knob: Knob, number: Option<u32>) -> Result<(), String> {
        let paced = self.engine.paced();
        let (most, why) = match knob {
            Knob::Evictors => (paced.evictors, "so many threads were started"),
            Knob::Batch => (self.engine.sizes().batch as u32, "staging memory is for so many pages"),
            Knob::Writes => (*knob.range().end(), "no evictor has room for more"),
            Knob::Free => (*knob.range().end(), "the rest is the program's"),
        };
        if let Some(number) = number.filter(|&number| number > most) {
            let name = knob.name();
            return Err(format!("{name}={number}: at most {most} in this run: {why}; for more, start it with --{name} {number}"));
        }
        let mut wanted = paced.wanted;
        *match knob {
            Knob::Evictors => &mut wanted.evictors,
            Knob::Batch => &mut wanted.batch,
            Knob::Writes => &mut wanted.writes,
            Knob::Free => &mut wanted.free,
        } = number;
        self.engine.fix_pace(wanted);
        Ok(())
    }
}

impl Target for Runtime {
    fn stats(&self) -> stats::Stats {
        let engine = &self.engine;
        let (read, written) = (engine.stats.total(Count::PagesIn), engine.stats.total(Count::PagesOut));
        let issued = engine.stats.total(Count::Prefetched);
        let used = engine.stats.total(Count::PrefetchUsed).min(issued);
        let latency = engine.stats.latency();
        let frames = engine.frames().counts();
        let mapped = farshore_sys::alloc::mapped_bytes() as u64 + engine.backend.mapped_bytes();
        let overhead = mapped.saturating_sub(engine.table.unused_bytes());
        let told = stats::Stats {
            program: self.program.clone(),
            pid: farshore_sys::raw::getpid(),
            fault_mode: self.options.fault.to_string(),
            policy: engine.policy.evict().name().to_owned(),
            prefetcher: engine.policy.prefetch().name().to_owned(),
            uptime_ns: engine.clock.now_ns().saturating_sub(self.started_ns),
            memory_limit_bytes: family::limit(self),
            managed_bytes: engine.stats.managed() * 4096,
            managed_bytes_peak: engine.stats.managed_peak() * 4096,
            used_bytes_peak: engine.stats.used_peak() * 4096,
            resident_bytes: engine.resident_bytes(),
            resident_bytes_peak: engine.resident_bytes_peak(),
            overhead_bytes: overhead,
            overhead_bytes_peak: overhead,
            faults: stats::Faults {
                fetch: engine.stats.faults(FaultKind::Fetch),
                zero: engine.stats.faults(FaultKind::Zero),
                rescue: engine.stats.faults(FaultKind::Rescue),
                wait: engine.stats.faults(FaultKind::Wait),
                write_protect: engine.stats.faults(FaultKind::WriteProtect),
            },
            evictions: stats::Evictions {
                pages: engine.stats.total(Count::Evicted),
                clean_pages: engine.stats.total(Count::EvictedClean),
                batches: engine.stats.total(Count::Batches),
                synchronous: engine.stats.total(Count::Synchronous),
            },
            evictors: self.evictors(),
            huge_pages: stats::HugePages {
                mapped: engine.stats.total(Count::HugeMapped),
                split: engine.stats.total(Count::HugeSplit),
            },
            swap: stats::Swap {
                pages_in: read,
                pages_out: written,
                bytes_in: read * 4096,
                bytes_out: written * 4096,
                errors: engine.stats.total(Count::IoErrors),
                last_error: engine.health.last_trouble().map(|trouble| trouble.to_string()),
                bytes_given_back: engine.stats.total(Count::GivenBack),
            },
            prefetch: stats::Prefetch { issued, used, wasted: issued - used, threads: u64::from(engine.readers()) },
            fault_latency_ns: stats::Latency {
                p50: latency.p50,
                p90: latency.p90,
                p99: latency.p99,
                p999: latency.p999,
                max: latency.max,
                total: latency.total,
            },
            family: family::stats(self),
            frames: stats::Frames {
                limit: frames.limit,
                debt: frames.debt,
                free: frames.free,
                cached: frames.cached,
                taken: frames.taken,
            },
            spaces: (0..engine.health.spaces())
                .filter(|&space| engine.health.usage(space) != Usage::Absent)
                .map(|space| self.space(space))
                .collect(),
            pool: engine.backend.pool().map(pool_stats),
            processor_ns: clock::of_process(),
            policies: policies::stats(self),
            autopilot: pilot::stats(self),
            budget: pilot::budget_stats(self),
            ..stats::Stats::default()
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
            Err(why) => return policies::set_parameter(self, key, value).unwrap_or(Err(why)).map(|()| Set::Done),
        };
        match setting {
            Setting::AddSwap(spec) => self.add_swap(spec),
            Setting::RemoveSwap(spec) => self.remove_swap(spec),
            Setting::Policy(name) => self.choose_policy(&name).map(|()| Set::Done),
            Setting::Prefetch(name) => self.choose_prefetcher(&name).map(|()| Set::Done),
            Setting::Slowdown(slowdown) => {
                pilot::set(self, slowdown);
                Ok(Set::Done)
            }
            Setting::Budget(size) => pilot::set_budget(self, size).map(|()| Set::Done),
            Setting::Pace(knob, number) => self.set_pace(knob, number).map(|()| Set::Done),
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
