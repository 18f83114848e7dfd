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

use crate::dispatch::{dormant, hosted};
use crate::family::{joint, pilot};
use crate::ground::environment;
use crate::ground::own_threads::{knock, rights};
use crate::ground::report;
use crate::ground::runtime::{Parts, Runtime, Space, install};
use crate::ground::small::Small;
use crate::ground::{count, mappings, nodes, own_threads, parts, text, thread};
use crate::memory::{self, attributes, statics};
use crate::{family, signals};
use core::ops::Range;
use core::sync::atomic::Ordering;
use farshore_backend::AnyBackend;
use farshore_backend::device;
use farshore_backend::faulty::FaultConfig;
use farshore_catch::{entry, patch};
use farshore_config::{FaultMode, Options, StatsTarget};
use farshore_core::limits::PAGE_SIZE;
use farshore_engine::evict::control::Wanted;
use farshore_engine::{EVICTORS_AUTO, Engine, Nodes, Shape};
use farshore_net::calls::{follow, keepers, merging};
use farshore_sys::clock::{self, MonotonicClock};
use farshore_sys::futex::KernelFutex;
use farshore_sys::hosted::is_hosted;
use farshore_sys::huge::Source;
use farshore_sys::kernel::LinuxKernel;
use farshore_sys::pagemap::Pagemap;
use farshore_sys::signal::SigSet;
use farshore_sys::vm::{self, SelfAdvice, SelfMem};
use std::thread as threads;

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
    let (may_run_natively, merges) = (options.followed && !options.require, options.memory_merge);
    let maps = patch::Maps::read();
    let begun = begin(options, &maps);
    let awake = begun.and_then(|begun| {
        if is_hosted() {
            return start(begun, &maps);
        }
        match dormant::begin(begun, &maps) {
            Ok(()) => Ok(()),
            Err(begun) => start(*begun, &maps),
        }
    });
    if let Err(why) = awake {
        if !may_run_natively {
            refuse(&why);
        }
        // Nobody has asked for this program: the one that started it expects it to run.
        merging::hand_back(merges);
        joint::forget();
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
    /// Static arrays that will be managed.
    pub statics: Vec<Range<u64>>,
    /// Faults that swap spaces inject (tests).
    faults: Option<FaultConfig>,
    /// Name of the program.
    program: String,
    /// When Farshore began, by the monotonic clock, ns.
    started_ns: u64,
}

fn begin(mut options: Options, maps: &patch::Maps) -> Result<Begun, String> {
    entry::init()?;
    text::find(maps, at_load as *const () as u64)?;
    joint::adopt(&mut options)?;
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
    // What another thread may be using stays the kernel's.
    let arrays = if is_hosted() { hosted::arrays } else { statics::arrays };
    let statics = if has_one_task() { arrays(options.threshold.bytes()) } else { Vec::new() };
    Ok(Begun { options, heap_floor, statics, faults, program, started_ns: clock::by_syscall() })
}

/// Whether no library has made a thread before Farshore's start.
pub fn has_one_task() -> bool {
    use std::os::unix::fs::MetadataExt;
    // A link for the folder, one for its `.`, and one for each thread's folder.
    std::fs::metadata("/proc/self/task").is_ok_and(|folder| folder.nlink() == 3)
}

fn start(begun: Begun, maps: &patch::Maps) -> Result<(), String> {
    let statics = begun.statics.clone();
    let runtime = prepare(begun, maps)?;
    enter(runtime, None)?;
    // A process whose user may not look at its page tables does without.
    if let (false, Ok(pagemap)) = (statics.is_empty(), Pagemap::open()) {
        // Nothing of a hosted program has run yet, and merging is off: its arrays are as the kernel has mapped them, without attributes.
        let (plain, mappings) = match is_hosted() {
            true => (statics, mappings::mappings_in(maps.text())),
            false => (attributes::plain_parts(&statics), mappings::mappings()),
        };
        memory::take_stock(runtime, &pagemap, &mappings, plain.into_iter(), &[]);
    }
    text::catch_calls();
    look_after(runtime);
    Ok(())
}

/// The rest of start-up, for a process that was dormant, but for the last step; `mask` is the one of the program. By the only thread that runs, which has its record,
/// with all signals blocked.
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
    keepers::look_at_inherited(crate::ground::net::net());
    crate::dispatch::mark_plain_calls();
    crate::dispatch::mark_quick_calls();
    let uffd = parts::raise_uffd(parts::open_uffd(options)?);
    let memory = SelfMem::open().map_err(|why| format!("/proc/self/mem cannot be opened ({why:?}); is /proc mounted?"))?;
    let kernel = LinuxKernel::with_parts(
        uffd,
        SelfAdvice::probe(),
        memory.raise(parts::lowest_own_descriptor()),
        options.fault == FaultMode::Poll,
    )
    .on_shortage(own_threads::short_of_frames)
    .with_own_threads(rights::is_ours)
    .with_huge_pages(Source::open().and_then(|source| parts::huge_way(Box::leak(Box::new(source)))));
    let handed = options.family.as_ref().map_or(&[][..], |family| &family.devices);
    device::adopt(handed).map_err(|why| why.to_string())?;
    let backend = AnyBackend::open_with(&options.swap, options.encrypt, options.followed, begun.faults.as_ref(), &mut |notice| {
        // Once: those who are started by a program that has said it say nothing that they would not have said natively.
        if !options.followed {
            report::line(format_args!("{notice}"));
        }
    })
    .map_err(|why| why.to_string())?;
    // One thread runs (all others stand still in code of ours, and go on in the stubs), and until `running` the dispatcher passes every
    // call on; libraries stay where they are.
    let report = match hosted::entry_of_program() {
        // Its libc is in its own text, and ours is nobody else's.
        // SAFETY: as said.
        Some(at) => unsafe { patch::patch_program(maps, at) },
        // SAFETY: as said.
        None => unsafe { patch::patch(maps, patch::DEFAULT_NAMES, &|_| true, patch::Way::Awake) },
    };
    if options.trace {
        let how = if report.searched == 0 { "planned when the library was built" } else { "found by a search" };
        report::line(format_args!("{} of {} system call sites patched ({how})", report.patched, report.sites));
    }
    let runtime = install(build(begun, kernel, backend)?);
    if let Some(pages) = pilot::begin(&runtime.options) {
        // Its stages are for the smallest limit that may be chosen; it begins with the largest.
        runtime.engine.set_budget(pages);
    }
    std::panic::set_hook(Box::new(|info| report::abort(format_args!("bug: {info}"))));
    family::prepare(&runtime.options).map_err(|why| format!("the list of this program's processes cannot be made ({why:?})"))?;
    runtime.note_own_fds();
    own_threads::start(runtime)?;
    let no_memory = |why| format!("no memory to share with the programs that this one starts ({why:?})");
    if family::is_there() {
        // It was dormant, and has its line.
        family::take_part(runtime).map_err(no_memory)?;
    } else if runtime.options.follow {
        // What it starts shares the limit, from a first exec on.
        family::begin(runtime).map_err(no_memory)?;
    }
    Ok(runtime)
}

fn build(begun: Begun, kernel: LinuxKernel, backend: AnyBackend) -> Result<Runtime, String> {
    let Begun { options, heap_floor, faults, program, started_ns, .. } = begun;
    let cores = threads::available_parallelism().map_or(1, usize::from);
    let shape = shape(&options, cores);
    let policy = parts::policy(&options)?;
    let staging = parts::staging(shape)?;
    // SAFETY: fresh memory of just this size that nobody else knows.
    let engine = unsafe { Engine::new(shape, kernel, backend, policy, MonotonicClock::new(), KernelFutex, staging) };
    // SAFETY: asks only.
    let brk = unsafe { vm::brk(0) };
    let space = Space { heap_floor: heap_floor.next_multiple_of(4096), brk, locked: 0, small: Small::default() };
    let parts = Parts { engine, options, space, shape, faults, first: true, started_ns, program };
    Ok(parts.assemble())
}

/// How the engine is built.
fn shape(options: &Options, cores: usize) -> Shape {
    let Options { evictors, batch, writes, free, .. } = *options;
    let wanted = Wanted { evictors, batch, writes, free };
    Shape::fitting(options.memory_at_start().bytes(), wanted, options.ablate.0, cores, Nodes::new(nodes::of_cores()))
}

/// What of the limit an engine has for the program's pages, at least; bytes.
pub fn room(options: &Options) -> u64 {
    // Where the limit is chosen: a program that fits the smallest one is left alone.
    let memory = if options.chooses() { options.least_memory() } else { options.memory }.bytes();
    let Options { evictors, batch, writes, free, .. } = *options;
    let wanted = Wanted { evictors, batch, writes, free };
    let ablated = options.ablate.0;
    let frames = |n: usize| Shape { memory, evictors: n, cores: 1, nodes: Nodes::new(|_| 0), wanted, ablated }.sizes().frames;
    let least = match evictors {
        Some(n) => frames(n as usize),
        None => (1..=EVICTORS_AUTO).map(frames).min().unwrap_or(0),
    };
    least * PAGE_SIZE as u64
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
    match dormant {
        Some(_) => count::is_among_them(),
        None => count::is_alone(),
    }
    merging::take_over(runtime.options.memory_merge)?;
    signals::install().map_err(|why| format!("signal handlers cannot be installed ({why:?})"))?;
    signals::adopt_mask(thread, dormant);
    // From here on every `rt_sigreturn` is caught.
    entry::edge::show_sites();
    crate::ground::HEAP.expect_handlers();
    runtime.running.store(true, Ordering::Release);
    Ok(())
}

/// Makes threads of ours if somebody waits for them already.
pub fn look_after(runtime: &'static Runtime) {
    if !own_threads::are_there() && (knock::arm() || runtime.engine.is_short()) {
        own_threads::ensure_now(runtime);
    }
}
