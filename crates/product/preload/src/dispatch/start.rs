//! Start-up and end: from the environment to a running engine, before the program's `main`.
//!
//! In this order, each step needing the ones before:
//!
//! 1. read the options and take Farshore's variables out of the environment ([`environment`]);
//! 2. open userfaultfd and swap space, build the engine;
//! 3. patch libc's system call sites, while there is one thread;
//! 4. start Farshore's own threads;
//! 5. give the main thread its record, install the signal handlers;
//! 6. catch the other system calls by Syscall User Dispatch. From here on memory is managed.
//!
//! The first process of a run does the first of them, and the rest when it wakes ([`crate::dispatch::dormant`]).
//!
//! Whatever fails before 6 ends the program with status 125 and one line: never a program that runs without what was asked for. But
//! a program that was started by one under Farshore then runs as it would have natively, also with a line.

use crate::dispatch::dormant;
use crate::ground::environment;
use crate::ground::own_threads::knock;
use crate::ground::report;
use crate::ground::runtime::{Parts, Runtime, Space, install};
use crate::ground::socket;
use crate::ground::{nodes, own_threads, thread};
use crate::{family, signals};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use farshore_backend::AnyBackend;
use farshore_backend::compressed::Compressed;
use farshore_backend::device;
use farshore_backend::faulty::FaultConfig;
use farshore_catch::{entry, patch};
use farshore_config::control::{Change, Set, Setting};
use farshore_config::pace::Knob;
use farshore_config::{FaultMode, Options, StatsTarget, stats};
use farshore_core::limits::{PAGE_SIZE, batch_pages_most};
use farshore_core::seams::{Clock, PageBuf, Spaces};
use farshore_engine::evict::control::Wanted;
use farshore_engine::health::{Usage, Writing};
use farshore_engine::stats::{Count, FaultKind};
use farshore_engine::{Engine, Nodes, Shape};
use farshore_net::calls::{follow, keepers, merging};
use farshore_policy::{BuiltIn, Chosen, prefetch};
use farshore_sys::clock::{self, MonotonicClock};
use farshore_sys::fd::Fd;
use farshore_sys::futex::KernelFutex;
use farshore_sys::huge::Source;
use farshore_sys::kernel::{HugeWay, LinuxKernel};
use farshore_sys::own::map_own;
use farshore_sys::pagemap::Pagemap;
use farshore_sys::signal::SigSet;
use farshore_sys::sud;
use farshore_sys::uffd::{Uffd, UffdOptions};
use farshore_sys::vm::{self, SelfAdvice, SelfMem};
use std::thread as threads;

/// Syscall User Dispatch looks here: always on. What is spared is our text.
static SELECTOR: AtomicU8 = AtomicU8::new(sud::BLOCK);
static TEXT_START: AtomicU64 = AtomicU64::new(0);
static TEXT_LEN: AtomicU64 = AtomicU64::new(0);

#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = at_load;

extern "C" fn at_load() {
    // SAFETY: start-up.
    let Some(text) = (unsafe { environment::take() }) else { return };
    let options = match Options::from_json(&text) {
        Ok(options) => options,
        Err(why) => refuse(&format!("the options of 'farshore run' do not reach the library as they should: {why}")),
    };
    let (followed, merges) = (options.followed, options.memory_merge);
    let maps = patch::Maps::read();
    let begun = begin(options, &maps);
    let awake = begun.and_then(|begun| match dormant::begin(begun, &maps) {
        Ok(()) => Ok(()),
        Err(begun) => start(*begun, &maps),
    });
    if let Err(why) = awake {
        if !followed {
            refuse(&why);
        }
        // Nobody has asked for this program: the one that started it expects it to run.
        merging::hand_back(merges);
        let program = std::env::args_os().next().unwrap_or_default();
        report::line(format_args!("'{}' runs without Farshore: {why}", program.as_encoded_bytes().escape_ascii()));
    }
}

fn refuse(why: &str) -> ! {
    report::line(format_args!("{why}"));
    report::exit(125)
}

/// What is found out at the start, whenever Farshore is needed.
#[derive(Debug, Clone)]
pub struct Begun {
    /// What the user asked for.
    pub options: Options,
    /// Where the heap began, bytes.
    pub heap_floor: u64,
    /// Faults that swap spaces inject (tests).
    faults: Option<FaultConfig>,
    /// Name of the program.
    program: String,
    /// When Farshore began, by the monotonic clock, ns.
    started_ns: u64,
}

fn begin(mut options: Options, maps: &patch::Maps) -> Result<Begun, String> {
    entry::init()?;
    find_own_text(maps)?;
    if let Some(StatsTarget::File(path)) = &options.stats {
        // The program may change its directory.
        let path = std::path::absolute(path).map_err(|why| format!("--stats {}: {why}", path.display()))?;
        options.stats = Some(StatsTarget::File(path));
    }
    options.encrypt = options.encrypts();
    let faults = AnyBackend::faults_asked().map_err(|why| why.to_string())?;
    let program = std::env::args().next().unwrap_or_default();
    // SAFETY: asks only.
    let heap_floor = unsafe { vm::brk(0) };
    Ok(Begun { options, heap_floor, faults, program, started_ns: clock::by_syscall() })
}

fn start(begun: Begun, maps: &patch::Maps) -> Result<(), String> {
    let runtime = prepare(begun, maps)?;
    enter(runtime, None)?;
    catch_system_calls();
    look_after(runtime);
    Ok(())
}

/// The rest of start-up, for a process that was dormant, but for the last step; `mask` is the one of the program. By its only thread, which has its record, with all
/// signals blocked.
///
/// # Errors
/// One line: what cannot be had.
pub fn rise(begun: Begun, mask: SigSet) -> Result<&'static Runtime, String> {
    let runtime = prepare(begun, &patch::Maps::read())?;
    enter(runtime, Some(mask))?;
    Ok(runtime)
}

/// Everything that the program's memory needs before any of it is managed.
fn prepare(begun: Begun, maps: &patch::Maps) -> Result<&'static Runtime, String> {
    let options = &begun.options;
    keepers::look_at_inherited(crate::dispatch::net());
    crate::dispatch::mark_plain_calls();
    crate::dispatch::mark_quick_calls();
    let uffd = raise_uffd(open_uffd(options)?);
    let memory = SelfMem::open().map_err(|why| format!("/proc/self/mem cannot be opened ({why:?}); is /proc mounted?"))?;
    let kernel = LinuxKernel::with_parts(
        uffd,
        SelfAdvice::probe(),
        memory.raise(lowest_own_descriptor()),
        options.fault == FaultMode::Poll,
    )
    .on_shortage(own_threads::short_of_frames)
    .with_huge_pages(Source::open().and_then(|source| huge_way(Box::leak(Box::new(source)))));
    let handed = options.family.as_ref().map_or(&[][..], |family| &family.devices);
    device::adopt(handed).map_err(|why| why.to_string())?;
    let backend = AnyBackend::open_with(&options.swap, options.encrypt, begun.faults.as_ref(), &mut |notice| {
        // Once: those who are started by a program that has said it say nothing that they would not have said natively.
        if !options.followed {
            report::line(format_args!("{notice}"));
        }
    })
    .map_err(|why| why.to_string())?;
    // SAFETY: there is one thread, and until `running` the dispatcher passes every call on; libraries stay where they are.
    let report = unsafe { patch::patch(maps, patch::DEFAULT_NAMES, &|_| true, patch::Way::Awake) };
    if options.trace {
        let how = if report.searched == 0 { "planned when the library was built" } else { "found by a search" };
        report::line(format_args!("{} of {} system call sites patched ({how})", report.patched, report.sites));
    }
    let runtime = install(build(begun, kernel, backend)?);
    std::panic::set_hook(Box::new(|info| report::abort(format_args!("bug: {info}"))));
    family::prepare(runtime).map_err(|why| format!("the list of this program's processes cannot be made ({why:?})"))?;
    runtime.note_own_fds();
    own_threads::start(runtime)?;
    if runtime.options.follow {
        // What it starts shares the limit, from a first exec on.
        family::begin(runtime).map_err(|why| format!("no memory to share with the programs that this one starts ({why:?})"))?;
    }
    Ok(runtime)
}

/// A descriptor of ours under a number that the program does not count on, if there is one.
pub fn raise(fd: Fd) -> Fd {
    fd.raise(lowest_own_descriptor()).unwrap_or_else(|(fd, _)| fd)
}

/// The same for a userfaultfd.
pub fn raise_uffd(uffd: Uffd) -> Uffd {
    uffd.raise(lowest_own_descriptor()).unwrap_or_else(|(uffd, _)| uffd)
}

/// How huge pages come to this process; `None` if it may not look at its own page tables.
pub fn huge_way(source: &'static Source) -> Option<HugeWay> {
    Some(HugeWay { source, pagemap: Pagemap::open().ok()?.raise(lowest_own_descriptor()) })
}

/// In poll mode with privilege the kernel's own accesses are served too. Buffers of calls are pinned all the same: what a
/// device reads into (`O_DIRECT`) must stay where it is, and the kernel faults it in only once.
pub fn open_uffd(options: &Options) -> Result<Uffd, String> {
    let unprivileged = UffdOptions { user_mode_only: true, ..UffdOptions::POLL };
    let opened = match options.fault {
        FaultMode::Upcall => Uffd::open(UffdOptions::UPCALL),
        FaultMode::Poll => Uffd::open(UffdOptions::POLL).or_else(|_| Uffd::open(unprivileged)),
    };
    opened.map(|(uffd, _)| uffd).map_err(|why| why.to_string())
}

fn build(begun: Begun, kernel: LinuxKernel, backend: AnyBackend) -> Result<Runtime, String> {
    let Begun { options, heap_floor, faults, program, started_ns } = begun;
    let cores = threads::available_parallelism().map_or(1, usize::from);
    let shape = shape(&options, cores);
    let policy = policy(&options)?;
    let staging = staging(shape)?;
    // SAFETY: fresh memory of just this size that nobody else knows.
    let engine = unsafe { Engine::new(shape, kernel, backend, policy, MonotonicClock::new(), KernelFutex, staging) };
    // SAFETY: asks only.
    let brk = unsafe { vm::brk(0) };
    let space = Space { heap_floor: heap_floor.next_multiple_of(4096), brk, locked: 0 };
    let parts = Parts { engine, options, space, shape, faults, first: true, started_ns, program };
    Ok(parts.assemble())
}

/// The most evictors where their number is not fixed.
const EVICTORS_AUTO: usize = 4;

/// How the engine is built. Where the number of evictors is not fixed there are as many as there are cores, at most four, and at most as many as
/// have room for batches that are.
fn shape(options: &Options, cores: usize) -> Shape {
    let Options { evictors, batch, writes, free, .. } = *options;
    let memory = options.memory.bytes();
    let has_room = |n: &usize| batch.is_none_or(|batch| batch as usize <= batch_pages_most(memory, *n));
    let evictors = evictors.map_or_else(|| (1..=cores.min(EVICTORS_AUTO)).rev().find(has_room).unwrap_or(1), |n| n as usize);
    Shape {
        memory,
        evictors,
        cores,
        nodes: Nodes::new(nodes::of_cores()),
        wanted: Wanted { evictors: options.evictors, batch, writes, free },
    }
}

/// What of the limit an engine has for the program's pages, at least; bytes.
pub fn room(options: &Options) -> u64 {
    let memory = options.memory.bytes();
    let Options { evictors, batch, writes, free, .. } = *options;
    let wanted = Wanted { evictors, batch, writes, free };
    let frames = |n: usize| Shape { memory, evictors: n, cores: 1, nodes: Nodes::new(|_| 0), wanted }.sizes().frames;
    let least = match evictors {
        Some(n) => frames(n as usize),
        None => (1..=EVICTORS_AUTO).map(frames).min().unwrap_or(0),
    };
    least * PAGE_SIZE as u64
}

/// The policies that the options name.
pub fn policy(options: &Options) -> Result<Chosen, String> {
    let unknown = |what: &str, name: &str| format!("--{what} {name}: there is no such {what}");
    let (policy, prefetcher) = (&options.policy.name, &options.prefetch.name);
    Ok(Chosen {
        evict: BuiltIn::named(policy).ok_or_else(|| unknown("policy", policy))?,
        prefetch: prefetch::BuiltIn::named(prefetcher).ok_or_else(|| unknown("prefetch", prefetcher))?,
    })
}

/// Memory for the stages of an engine of this shape.
pub fn staging(shape: Shape) -> Result<*mut PageBuf, String> {
    let bytes = shape.sizes().stages as usize * size_of::<PageBuf>();
    let base = map_own(bytes).map_err(|why| format!("no address space for {bytes} bytes of staging memory ({why:?})"))?;
    Ok(base.as_ptr().cast())
}

/// The last steps but one: from the end of this on, the program's memory may be managed. `dormant`: the mask of the main thread, which has its record.
fn enter(runtime: &'static Runtime, dormant: Option<SigSet>) -> Result<(), String> {
    if let Err(why) = follow::install(&Options { family: family::handed(), ..runtime.options.clone() }) {
        report::line(format_args!("{why}"));
    }
    let thread = match dormant {
        Some(_) => thread::current(),
        None => thread::adopt(false),
    };
    let thread = thread.ok_or("no memory for the record of the main thread")?;
    crate::process::is_alone();
    merging::take_over(runtime.options.memory_merge)?;
    signals::install().map_err(|why| format!("signal handlers cannot be installed ({why:?})"))?;
    signals::adopt_mask(thread, dormant);
    // From here on every `rt_sigreturn` is caught.
    entry::edge::show_sites();
    crate::HEAP.expect_handlers();
    runtime.running.store(true, Ordering::Release);
    Ok(())
}

/// Makes threads of ours if somebody waits for them already.
pub fn look_after(runtime: &'static Runtime) {
    if !own_threads::are_there() && (knock::arm() || runtime.engine.is_short()) {
        own_threads::ensure_now(runtime);
    }
}

/// Switches Syscall User Dispatch on for the calling thread.
pub fn catch_system_calls() {
    let (start, len) = (TEXT_START.load(Ordering::Acquire), TEXT_LEN.load(Ordering::Acquire));
    let selector = thread::current().map_or(&raw const SELECTOR, |thread| &raw const thread.selector);
    // SAFETY: the range is our text, where all our own system calls are made; the handler of SIGSYS is installed; records are never unmapped.
    if let Err(why) = unsafe { sud::enable(start, len, selector) } {
        report::abort(format_args!(
            "system calls cannot be caught (Syscall User Dispatch: {why:?}); 'farshore doctor' tells more"
        ));
    }
}

/// One line of `/proc/self/maps`.
#[derive(Debug)]
pub struct Mapping {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    private: bool,
    executable: bool,
    /// The program may read it.
    pub readable: bool,
    readable_writable: bool,
    /// Of no file, without a name.
    anonymous: bool,
    /// The heap, or with a name that the program gave.
    named: bool,
}

impl Mapping {
    /// Whether it is private memory of no file, and no code.
    pub fn may_be_managed(&self) -> bool {
        self.private && !self.executable && (self.anonymous || self.named)
    }
}

/// All mappings of this process.
pub fn mappings() -> Vec<Mapping> {
    let text = farshore_sys::fd::read_file(c"/proc/self/maps", 16 << 20).unwrap_or_default();
    text.split(|&b| b == b'\n').filter_map(|line| parse_mapping(core::str::from_utf8(line).ok()?)).collect()
}

fn parse_mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let rights = fields.next()?.as_bytes();
    let inode = fields.nth(2)?;
    let name = fields.next();
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        private: rights.get(3) == Some(&b'p'),
        executable: rights.get(2) == Some(&b'x'),
        readable: rights.first() == Some(&b'r'),
        readable_writable: rights.starts_with(b"rw"),
        anonymous: inode == "0" && name.is_none(),
        named: inode == "0" && name.is_some_and(|name| name == "[heap]" || name.starts_with("[anon:")),
    })
}

fn find_own_text(maps: &patch::Maps) -> Result<(), String> {
    let text = maps.text_around(at_load as *const () as u64);
    let text = text.ok_or("libfarshore.so does not find itself in /proc/self/maps; is /proc mounted?")?;
    TEXT_START.store(text.start, Ordering::Release);
    TEXT_LEN.store(text.end - text.start, Ordering::Release);
    Ok(())
}

/// Whether code at `addr` is ours.
#[inline]
pub fn is_own_text(addr: u64) -> bool {
    addr.wrapping_sub(TEXT_START.load(Ordering::Acquire)) < TEXT_LEN.load(Ordering::Acquire)
}

/// Whether `len` bytes at `addr` are one piece of private anonymous memory that can be read and written.
pub fn is_private_anonymous(addr: u64, len: u64) -> bool {
    mappings().iter().any(|m| m.private && m.anonymous && m.readable_writable && m.start <= addr && addr + len <= m.end)
}

/// Where the numbers of our descriptors begin. Not higher than need be: the kernel's table of a process's descriptors is as
/// long as the highest number, and is made, copied and searched whenever a process starts.
pub fn lowest_own_descriptor() -> i32 {
    const HIGHEST: u64 = 4096;
    let soft = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(HIGHEST);
    i32::try_from(soft.min(HIGHEST).saturating_sub(64).max(64)).unwrap_or(64)
}

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

impl socket::Target for Runtime {
    fn stats(&self) -> stats::Stats {
        let engine = &self.engine;
        let counter = |c: &core::sync::atomic::AtomicU64| c.load(Ordering::Relaxed);
        let (read, written) = (engine.stats.total(Count::PagesIn), engine.stats.total(Count::PagesOut));
        let issued = engine.stats.total(Count::Prefetched);
        let used = engine.stats.total(Count::PrefetchUsed).min(issued);
        let latency = engine.stats.latency();
        let frames = engine.frames().counts();
        let mapped = farshore_sys::alloc::mapped_bytes() as u64 + engine.backend.mapped_bytes();
        let overhead = mapped.saturating_sub(engine.table.unused_bytes());
        stats::Stats {
            program: self.program.clone(),
            pid: farshore_sys::raw::getpid(),
            fault_mode: self.options.fault.to_string(),
            uptime_ns: engine.clock.now_ns().saturating_sub(self.started_ns),
            memory_limit_bytes: family::limit(self),
            managed_bytes: counter(&engine.stats.managed) * 4096,
            managed_bytes_peak: counter(&engine.stats.managed_peak) * 4096,
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
                bytes_given_back: engine.stats.total(Count::GivenBack),
            },
            prefetch: stats::Prefetch { issued, used, wasted: issued - used, threads: u64::from(engine.readers()) },
            fault_latency_ns: stats::Latency {
                p50: latency.p50,
                p90: latency.p90,
                p99: latency.p99,
                p999: latency.p999,
                max: latency.max,
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
            ..stats::Stats::default()
        }
    }

    fn change(&self, id: u64) -> Result<Change, String> {
        self.change_now(id)
    }

    fn set(&self, key: &str, value: &str) -> Result<Set, String> {
        match Setting::read(key, value)? {
            Setting::AddSwap(spec) => self.add_swap(spec),
            Setting::RemoveSwap(spec) => self.remove_swap(spec),
            Setting::Pace(knob, number) => self.set_pace(knob, number).map(|()| Set::Done),
            Setting::Memory(size) => family::set_limit(self, size.bytes())
                .unwrap_or_else(|| self.engine.set_memory_limit(size.bytes()))
                .map(|()| Set::Done)
                .map_err(|least| {
                    format!("memory={value} is below what this run can shrink to; give at least {}", farshore_config::Size(least))
                }),
        }
    }
}

/// Writes the counters where `--stats` says, at the end of the program.
pub fn write_stats(runtime: &Runtime) {
    let Some(target) = &runtime.options.stats else { return };
    let text = socket::Target::stats(runtime).to_json();
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
