//! Start-up and end: from the environment to a running engine, before the program's `main`.
//!
//! In this order, each step needing the ones before:
//!
//! 1. read the options and take Farshore's variables out of the environment, so that children are ordinary;
//! 2. open userfaultfd and swap space, build the engine;
//! 3. patch libc's system call sites, while there is one thread;
//! 4. start Farshore's own threads, while libc still gives them stacks and thread-local storage that are not managed;
//! 5. give the main thread its record, install the signal handlers;
//! 6. catch the other system calls by Syscall User Dispatch. From here on memory is managed.
//!
//! Whatever fails before 6 ends the program with status 125 and one line: never a program that runs without what was asked for.

use crate::control::{self, Handover};
use crate::net::{entry, patch};
use crate::report;
use crate::runtime::{Runtime, Space, install};
use crate::{poll, signals, thread};
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use farshore_backend::AnyBackend;
use farshore_config::{FaultMode, Options, StatsTarget, stats};
use farshore_core::page::Page;
use farshore_engine::evict::pipeline::Evictor;
use farshore_engine::stats::FaultKind;
use farshore_engine::traits::{Backend, Clock, PageBuf};
use farshore_engine::{Engine, Shape};
use farshore_policy::BuiltIn;
use farshore_sys::clock::MonotonicClock;
use farshore_sys::futex::KernelFutex;
use farshore_sys::kernel::LinuxKernel;
use farshore_sys::lock::Mutex;
use farshore_sys::own::map_own;
use farshore_sys::raw::{nr, syscall};
use farshore_sys::signal::{self, How, SigSet};
use farshore_sys::sud;
use farshore_sys::uffd::{Uffd, UffdOptions};
use farshore_sys::vm::{self, SelfAdvice, SelfMem};
use std::thread as threads;

/// Handler threads of the poll mode. Each waits for its own fetch, so several a core.
const HANDLERS_A_CORE: usize = 4;
/// Stack of Farshore's own threads.
const STACK: usize = 256 << 10;

/// Syscall User Dispatch looks here: always on. What is spared is our text.
static SELECTOR: AtomicU8 = AtomicU8::new(sud::BLOCK);
static TEXT_START: AtomicU64 = AtomicU64::new(0);
static TEXT_LEN: AtomicU64 = AtomicU64::new(0);
static HANDOVER: Handover = Handover::new();
static NEVER: AtomicBool = AtomicBool::new(false);
/// Threads of ours that have begun.
static READY: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = at_load;

extern "C" fn at_load() {
    let Some(text) = take_environment() else { return };
    let options = match Options::from_json(&text) {
        Ok(options) => options,
        Err(why) => refuse(&format!("the options of 'farshore run' do not reach the library as they should: {why}")),
    };
    if let Err(why) = start(options) {
        refuse(&why);
    }
}

fn refuse(why: &str) -> ! {
    report::line(format_args!("{why}"));
    report::exit(125)
}

/// Takes Farshore's variables out of the environment and puts the user's own LD_PRELOAD back. The
/// options, if there are any.
fn take_environment() -> Option<String> {
    let mut options = None;
    // SAFETY: libc's list; start-up has one thread.
    let list = unsafe { environ };
    if list.is_null() {
        return None;
    }
    let (mut from, mut to) = (0, 0);
    loop {
        // SAFETY: the list ends with a null pointer, at which the loop ends.
        let place = unsafe { list.add(from) };
        // SAFETY: as above.
        let entry = unsafe { place.read() };
        from += 1;
        let mut keep = entry;
        if !entry.is_null() {
            // SAFETY: entries are C strings.
            let text = unsafe { CStr::from_ptr(entry) }.to_bytes();
            if let Some(value) = text.strip_prefix(b"FARSHORE_OPTIONS=") {
                options = Some(String::from_utf8_lossy(value).into_owned());
                continue;
            }
            if text.starts_with(b"LD_PRELOAD=") {
                continue;
            }
            if text.starts_with(b"FARSHORE_OLD_PRELOAD=") {
                // What follows "FARSHORE_O" is the variable as it was.
                // SAFETY: within the string.
                keep = unsafe { entry.add("FARSHORE_O".len()) };
            }
        }
        // SAFETY: `to` never passes `from`, which is within the list.
        let place = unsafe { list.add(to) };
        // SAFETY: as above; the list is writable memory of libc's.
        unsafe { place.write(keep) };
        to += 1;
        if entry.is_null() {
            return options;
        }
    }
}

fn start(mut options: Options) -> Result<(), String> {
    entry::init()?;
    crate::net::mark_plain_calls();
    find_own_text()?;
    if let Some(StatsTarget::File(path)) = &options.stats {
        // The program may change its directory.
        let path = std::path::absolute(path).map_err(|why| format!("--stats {}: {why}", path.display()))?;
        options.stats = Some(StatsTarget::File(path));
    }
    let lowest = lowest_own_descriptor();
    let uffd = open_uffd(&options)?;
    let uffd = uffd.raise(lowest).unwrap_or_else(|(uffd, _)| uffd);
    let memory = SelfMem::open().map_err(|why| format!("/proc/self/mem cannot be opened ({why:?}); is /proc mounted?"))?;
    let memory = memory.raise(lowest).unwrap_or_else(|(memory, _)| memory);
    let polled = options.fault == FaultMode::Poll;
    let kernel = LinuxKernel::with_parts(uffd, SelfAdvice::probe(), memory, polled);
    let backend =
        AnyBackend::open(&options.swap, &mut |notice| report::line(format_args!("{notice}"))).map_err(|why| why.to_string())?;
    // SAFETY: start-up: there is one thread, and until `running` the dispatcher passes every call on.
    let report = unsafe { patch::patch(patch::DEFAULT_NAMES) };
    if options.trace {
        report::line(format_args!("{} of {} system call sites patched", report.patched, report.sites));
    }
    if options.prefetch.name != "none" {
        thread::fetch_streams();
    }
    let runtime = install(build(options, kernel, backend)?);
    start_threads(runtime, polled)?;
    enter(runtime)
}

/// In poll mode with privilege the kernel's own accesses are served too. Buffers of calls are pinned all the same: what a
/// device reads into (`O_DIRECT`) must stay where it is, and the kernel faults it in only once.
fn open_uffd(options: &Options) -> Result<Uffd, String> {
    let unprivileged = UffdOptions { user_mode_only: true, ..UffdOptions::POLL };
    let opened = match options.fault {
        FaultMode::Upcall => Uffd::open(UffdOptions::UPCALL),
        FaultMode::Poll => Uffd::open(UffdOptions::POLL).or_else(|_| Uffd::open(unprivileged)),
    };
    opened.map(|(uffd, _)| uffd).map_err(|why| why.to_string())
}

fn build(options: Options, kernel: LinuxKernel, backend: AnyBackend) -> Result<Runtime, String> {
    let cores = threads::available_parallelism().map_or(1, usize::from);
    let evictors = options.evictors.map_or(cores.min(4), |n| n as usize);
    let shape = Shape { memory: options.memory.bytes(), evictors, cores };
    let policy = BuiltIn::named(&options.policy.name)
        .ok_or_else(|| format!("--policy {}: there is no such policy", options.policy.name))?;
    let bytes = shape.sizes().stages as usize * size_of::<PageBuf>();
    let staging = map_own(bytes).map_err(|why| format!("no address space for {bytes} bytes of staging memory ({why:?})"))?;
    let clock = MonotonicClock::new();
    let started_ns = clock.now_ns();
    let mut own_fds = vec![kernel.uffd().fd().raw(), kernel.memory().fd().raw()];
    own_fds.extend(backend.fds());
    own_fds.sort_unstable();
    // SAFETY: fresh memory of just this size that nobody else knows.
    let engine = unsafe { Engine::new(shape, kernel, backend, policy, clock, KernelFutex, staging.as_ptr().cast()) };
    // SAFETY: asks only.
    let brk = unsafe { vm::brk(0) };
    Ok(Runtime {
        engine,
        options,
        space: Mutex::new(Space { heap_floor: brk.next_multiple_of(4096), brk }),
        own_fds,
        forked: AtomicBool::new(false),
        started_ns,
        program: std::env::args().next().unwrap_or_default(),
        running: AtomicBool::new(false),
    })
}

/// Starts evictors, the control thread and, in poll mode, the fault handlers, and waits until each has done what
/// libc and std do at the start of a thread: that allocates from libc's heap, which is about to be managed.
///
/// They take no signals of the program: all are blocked but the two that libc itself sends to every thread, and
/// those of faults, so that a fault of ours on managed memory ends with a message.
fn start_threads(runtime: &'static Runtime, polled: bool) -> Result<(), String> {
    let kept = SigSet::ALL.without(32).without(33).without(signal::SIGBUS).without(signal::SIGSEGV);
    let before = signal::sigprocmask(How::Set, kept);
    let started = start_all(runtime, polled);
    signal::sigprocmask(How::Set, before);
    let started = started?;
    while READY.load(Ordering::Acquire) < started {
        threads::yield_now();
    }
    Ok(())
}

/// A thread of ours begins: its record first, then what std keeps for it.
fn begin_own_thread() {
    if thread::adopt(true).is_none() {
        report::abort(format_args!("no memory for the record of a thread"));
    }
    // std makes its handle of the current thread, with a destructor, now rather than later.
    let _ = threads::current().id();
    READY.fetch_add(1, Ordering::AcqRel);
}

/// How many were started.
fn start_all(runtime: &'static Runtime, polled: bool) -> Result<u32, String> {
    let mut count = 0;
    let mut spawn = |name: String, body: Box<dyn FnOnce() + Send>| {
        count += 1;
        let body = move || {
            begin_own_thread();
            runtime.wait_until_running();
            body();
        };
        threads::Builder::new()
            .name(name)
            .stack_size(STACK)
            .spawn(body)
            .map(drop)
            .map_err(|why| format!("no thread of our own: {why}"))
    };
    std::panic::set_hook(Box::new(|info| report::abort(format_args!("bug: {info}"))));
    let cores = threads::available_parallelism().map_or(1, usize::from);
    let evictors = runtime.options.evictors.map_or(cores.min(4), |n| n as usize);
    for id in 0..evictors {
        let mut evictor = Evictor::new(id, &runtime.engine).map_err(|why| format!("the swap space has no write queue: {why}"))?;
        spawn(format!("farshore-evict{id}"), Box::new(move || evictor.run(&runtime.engine, &NEVER)))?;
    }
    if polled {
        for id in 0..(HANDLERS_A_CORE * cores).max(2) {
            spawn(format!("farshore-fault{id}"), Box::new(move || poll::run(runtime)))?;
        }
    }
    match control::listen() {
        Ok(listener) => {
            use std::os::fd::AsRawFd;
            let raw = listener.as_raw_fd();
            // It begins before the others, so that it has a descriptor table of its own before the program runs.
            let body = move || {
                begin_own_thread();
                control::serve(raw, runtime, &HANDOVER)
            };
            count += 1;
            let spawned = threads::Builder::new().name("farshore-ctl".into()).stack_size(STACK).spawn(body);
            spawned.map(drop).map_err(|why| format!("no thread of our own: {why}"))?;
            HANDOVER.finish(listener);
        }
        // The program can run without.
        Err(why) => report::line(format_args!("{why}")),
    }
    Ok(count)
}

/// The last steps: from the end of this on, the program's memory is managed.
fn enter(runtime: &'static Runtime) -> Result<(), String> {
    thread::adopt(false).ok_or("no memory for the record of the main thread")?;
    signals::install().map_err(|why| format!("signal handlers cannot be installed ({why:?})"))?;
    crate::HEAP.expect_handlers();
    runtime.running.store(true, Ordering::Release);
    catch_system_calls();
    Ok(())
}

/// Switches Syscall User Dispatch on for the calling thread.
pub fn catch_system_calls() {
    let (start, len) = (TEXT_START.load(Ordering::Acquire), TEXT_LEN.load(Ordering::Acquire));
    // SAFETY: the range is our text, where all our own system calls are made; the handler of SIGSYS is installed.
    if let Err(why) = unsafe { sud::enable(start, len, &raw const SELECTOR) } {
        report::abort(format_args!(
            "system calls cannot be caught (Syscall User Dispatch: {why:?}); 'farshore doctor' tells more"
        ));
    }
}

/// One line of `/proc/self/maps`.
struct Mapping {
    start: u64,
    end: u64,
    private: bool,
    executable: bool,
    readable_writable: bool,
    anonymous: bool,
}

fn mappings() -> Vec<Mapping> {
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
        readable_writable: rights.starts_with(b"rw"),
        anonymous: inode == "0" && name.is_none(),
    })
}

fn find_own_text() -> Result<(), String> {
    let here = at_load as *const () as u64;
    let all = mappings();
    let text = all.iter().find(|m| m.executable && (m.start..m.end).contains(&here));
    let text = text.ok_or("libfarshore.so does not find itself in /proc/self/maps; is /proc mounted?")?;
    TEXT_START.store(text.start, Ordering::Release);
    TEXT_LEN.store(text.end - text.start, Ordering::Release);
    Ok(())
}

/// Whether `len` bytes at `addr` are one piece of private anonymous memory that can be read and written.
pub fn is_private_anonymous(addr: u64, len: u64) -> bool {
    mappings().iter().any(|m| m.private && m.anonymous && m.readable_writable && m.start <= addr && addr + len <= m.end)
}

/// Whether the kernel has the page mapped (of a forked child).
pub fn is_present(page: Page) -> bool {
    let mut there = 0u8;
    // SAFETY: the kernel writes one byte for one page.
    let answer = unsafe { syscall(nr::MINCORE, [page.addr(), 4096, &raw mut there as u64, 0, 0, 0]) };
    answer == 0 && there & 1 == 1
}

fn lowest_own_descriptor() -> i32 {
    let soft = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(65_536);
    i32::try_from(soft.saturating_sub(64).max(64)).unwrap_or(65_472)
}

impl control::Target for Runtime {
    fn stats(&self) -> stats::Stats {
        let engine = &self.engine;
        let counter = |c: &core::sync::atomic::AtomicU64| c.load(Ordering::Relaxed);
        let (read, written) = (counter(&engine.stats.pages_in), counter(&engine.stats.pages_out));
        let issued = counter(&engine.stats.prefetched);
        let used = counter(&engine.stats.prefetch_used).min(issued);
        let latency = engine.stats.latency();
        let overhead = farshore_sys::alloc::mapped_bytes() as u64;
        stats::Stats {
            program: self.program.clone(),
            pid: farshore_sys::raw::getpid(),
            fault_mode: self.options.fault.to_string(),
            uptime_ns: engine.clock.now_ns().saturating_sub(self.started_ns),
            memory_limit_bytes: engine.memory_limit(),
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
                pages: counter(&engine.stats.evicted),
                clean_pages: counter(&engine.stats.evicted_clean),
                batches: counter(&engine.stats.batches),
                synchronous: counter(&engine.stats.synchronous),
            },
            swap: stats::Swap {
                pages_in: read,
                pages_out: written,
                bytes_in: read * 4096,
                bytes_out: written * 4096,
                errors: counter(&engine.stats.io_errors),
            },
            prefetch: stats::Prefetch { issued, used, wasted: issued - used },
            fault_latency_ns: stats::Latency {
                p50: latency.p50,
                p90: latency.p90,
                p99: latency.p99,
                p999: latency.p999,
                max: latency.max,
            },
            spaces: vec![stats::Space {
                name: engine.backend.name().to_owned(),
                capacity_bytes: engine.backend.capacity().map(|slots| slots * 4096),
                used_bytes: engine.slots.live() * 4096,
            }],
            ..stats::Stats::default()
        }
    }

    fn set(&self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "memory" => {
                let size: farshore_config::Size = value.parse().map_err(|why| format!("memory={value}: {why}"))?;
                self.engine.set_memory_limit(size.bytes()).map_err(|least| {
                    format!("memory={value} is below what this run can shrink to; give at least {}", farshore_config::Size(least))
                })
            }
            _ => Err(format!("{key}={value}: there is no setting {key:?}; memory can be set")),
        }
    }
}

/// Writes the counters where `--stats` says, at the end of the program.
pub fn write_stats(runtime: &Runtime) {
    let Some(target) = &runtime.options.stats else { return };
    let text = control::Target::stats(runtime).to_json();
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
