//! The one engine of this process, and what goes with it.

use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use farshore_backend::AnyBackend;
use farshore_config::Options;
use farshore_core::sync::Futex as _;
use farshore_engine::Engine;
use farshore_policy::BuiltIn;
use farshore_sys::clock::MonotonicClock;
use farshore_sys::futex::KernelFutex;
use farshore_sys::kernel::LinuxKernel;
use farshore_sys::lock::Mutex;
use farshore_sys::signal::{self, How, SigSet};

/// The engine that ships.
pub type TheEngine = Engine<LinuxKernel, AnyBackend, BuiltIn, MonotonicClock, KernelFutex>;

/// What only memory calls use; its mutex is the address-space lock.
#[derive(Debug)]
pub struct Space {
    /// Managed heap begins here: the break as it was at the start, rounded up.
    pub heap_floor: u64,
    /// The program break as the kernel last told it.
    pub brk: u64,
}

/// Everything that lives as long as the program.
#[derive(Debug)]
pub struct Runtime {
    /// Moves pages.
    pub engine: TheEngine,
    /// What the user asked for.
    pub options: Options,
    /// The address-space lock. Never taken by faults or evictors; with signals blocked ([`locked`]).
    pub space: Mutex<Space>,
    /// Our descriptors, sorted. The program cannot close them.
    pub own_fds: Vec<i32>,
    /// This process is a fork: it has no evictors and only the memory that was local (see `fork`).
    pub forked: AtomicBool,
    /// When Farshore began, by the monotonic clock, ns.
    pub started_ns: u64,
    /// Name of the program.
    pub program: String,
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

impl Runtime {
    /// Sleeps until start-up is over.
    pub fn wait_until_running(&self) {
        let never = core::sync::atomic::AtomicU32::new(0);
        while !self.running.load(Ordering::Acquire) {
            KernelFutex.wait_for(&never, 0, 1_000_000);
        }
    }
}
