//! The one engine of this process, and what goes with it.

use crate::ground::above::{Above, Library};
use crate::ground::changes::Changes;
use crate::ground::small::Small;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use farshore_backend::AnyBackend;
use farshore_backend::faulty::FaultConfig;
use farshore_config::Options;
use farshore_core::seams::World;
use farshore_core::sync::Futex as _;
use farshore_engine::evict::pipeline::Evictor;
use farshore_engine::{Engine, Shape};
use farshore_policy::Chosen;
use farshore_sys::clock::MonotonicClock;
use farshore_sys::fd::Fd;
use farshore_sys::futex::KernelFutex;
use farshore_sys::kernel::LinuxKernel;
use farshore_sys::lock::Mutex;
use farshore_sys::raw::gettid;
use farshore_sys::signal::{self, How, SigSet};
use farshore_sys::usdt::Usdt;

/// What the engine of a program works with.
#[derive(Debug)]
pub struct Real;

impl World for Real {
    type Kernel = LinuxKernel;
    type Backend = AnyBackend;
    type Policy = Chosen;
    type Clock = MonotonicClock;
    type Futex = KernelFutex;
    type Tracer = Usdt;
}

/// The engine that ships.
pub type TheEngine = Engine<Real>;
/// Its evictors.
pub type TheEvictor = Evictor<'static, Real>;

/// What only memory calls use; its mutex is the address-space lock.
#[derive(Debug)]
pub struct Space {
    /// Managed heap begins here: the break as it was at the start, rounded up.
    pub heap_floor: u64,
    /// The program break as the kernel last told it.
    pub brk: u64,
    /// Managed pages that became the kernel's by `mlock`: at least as many as are still locked.
    pub locked: u64,
    /// Mappings below the threshold.
    pub small: Small,
}

/// Everything that lives as long as the program.
#[derive(Debug)]
pub struct Runtime {
    /// Moves pages.
    pub engine: TheEngine,
    /// What the user asked for.
    pub options: Options,
    /// The address-space lock. Never taken by evictors, and by faults only before they begin, to make our threads; with signals blocked ([`locked`]).
    pub space: Mutex<Space>,
    /// Our descriptors, sorted: a leaked list, replaced when one comes ([`Runtime::note_own_fds`]).
    own_fds: AtomicPtr<Vec<i32>>,
    /// How the engine was built.
    pub shape: Shape,
    /// Faults that swap spaces have injected (tests).
    pub faults: Option<FaultConfig>,
    /// This is the process that `farshore run` became, not a fork of it.
    pub first: bool,
    /// When Farshore began, by the monotonic clock, ns.
    pub started_ns: u64,
    /// Name of the program.
    pub program: String,
    /// Swap spaces that were asked to come and go.
    pub changes: Changes,
    /// Threads of ours wait for this to become true: the net is up, the program is about to run.
    pub running: AtomicBool,
}

static RUNTIME: AtomicPtr<Runtime> = AtomicPtr::new(core::ptr::null_mut());

/// The runtime, once start-up has made it.
#[inline(always)]
pub fn runtime() -> Option<&'static Runtime> {
    // SAFETY: null, or what `install` stored: a leaked box, never freed.
    unsafe { RUNTIME.load(Ordering::Acquire).as_ref() }
}

/// Makes `runtime` the process's. Once.
pub fn install(runtime: Runtime) -> &'static Runtime {
    let leaked = Box::into_raw(Box::new(runtime));
    RUNTIME.store(leaked, Ordering::Release);
    // SAFETY: leaked just now.
    unsafe { &*leaked }
}

/// Puts a forked child's runtime where its parent's was: code that a signal handler has interrupted, which then forked, goes on in the child
/// with a reference that it had before, and must find the child's there.
///
/// # Safety
/// By the only thread of the child, with signals blocked, and nobody below it on the stack has the address-space lock. Nothing of the
/// parent's is dropped; what is used on (`read` out of it) must be somewhere else by now.
pub unsafe fn replace(runtime: Runtime) -> &'static Runtime {
    let place = RUNTIME.load(Ordering::Acquire);
    // SAFETY: a leaked box (`install`), which no other thread uses; the system call in between has made the compiler forget what was there.
    unsafe { place.write(runtime) };
    // SAFETY: as in `runtime`.
    unsafe { &*place }
}

/// Thread id of the thread that is forking, from when the engine is quiet; in the child until it has an engine. 0: no thread is.
pub static FORKING: AtomicU32 = AtomicU32::new(0);

/// Whether the calling thread is forking: then it cannot serve a fault.
pub fn is_forking() -> bool {
    let forking = FORKING.load(Ordering::Relaxed);
    forking != 0 && forking == gettid()
}

/// Runs `f` with all signals of this thread blocked, so that no handler of the program runs on top of it.
pub fn uninterrupted<R>(f: impl FnOnce() -> R) -> R {
    let before = signal::sigprocmask(How::Set, SigSet::ALL);
    let result = f();
    signal::sigprocmask(How::Set, before);
    result
}

/// Runs `f` under the address-space lock, uninterrupted.
pub fn locked<R>(runtime: &Runtime, f: impl FnOnce(&mut Space) -> R) -> R {
    uninterrupted(|| runtime.space.with(f))
}

/// What a [`Runtime`] is made from.
#[derive(Debug)]
pub struct Parts {
    /// See [`Runtime`].
    pub engine: TheEngine,
    /// See [`Runtime`].
    pub options: Options,
    /// See [`Runtime`].
    pub space: Space,
    /// See [`Runtime`].
    pub shape: Shape,
    /// See [`Runtime`].
    pub faults: Option<FaultConfig>,
    /// See [`Runtime`].
    pub first: bool,
    /// See [`Runtime`].
    pub started_ns: u64,
    /// See [`Runtime`].
    pub program: String,
}

impl Parts {
    /// The runtime, not running.
    pub fn assemble(self) -> Runtime {
        Runtime {
            engine: self.engine,
            options: self.options,
            space: Mutex::new(self.space),
            own_fds: AtomicPtr::new(core::ptr::null_mut()),
            shape: self.shape,
            faults: self.faults,
            first: self.first,
            started_ns: self.started_ns,
            program: self.program,
            changes: Changes::new(),
            running: AtomicBool::new(false),
        }
    }
}

impl Runtime {
    /// Our descriptors, in ascending order. The program cannot close them.
    pub fn own_fds(&self) -> &[i32] {
        // SAFETY: null, or a list that was leaked by `note_own_fds`.
        unsafe { self.own_fds.load(Ordering::Acquire).as_ref() }.map_or(&[], Vec::as_slice)
    }

    /// One of our descriptors has come: remembers them all anew. Rare: what was known before is leaked, since others may look at it.
    pub fn note_own_fds(&self) {
        let kernel = &self.engine.kernel;
        let mut all = vec![kernel.uffd().fd().raw()];
        all.extend(kernel.memory().fd().map(Fd::raw));
        all.extend(kernel.huge_way().map(|way| way.pagemap.fd().raw()));
        all.extend(self.engine.backend.fds());
        all.extend(crate::ground::files::descriptors());
        all.extend(Library::family_descriptors());
        all.extend(crate::ground::own_threads::knock::descriptor());
        all.sort_unstable();
        self.own_fds.store(Box::into_raw(Box::new(all)), Ordering::Release);
    }

    /// No huge pages are made from now on, nor is one in the making.
    pub fn have_small_pages(&self) {
        self.engine.kernel.huge_way().inspect(|way| way.source.give_up());
    }

    /// Sleeps until start-up is over.
    pub fn wait_until_running(&self) {
        let never = core::sync::atomic::AtomicU32::new(0);
        while !self.running.load(Ordering::Acquire) {
            KernelFutex.wait_for(&never, 0, 1_000_000);
        }
    }
}
