//! Farshore's own threads in the program's process: evictors, threads that read ahead, the watcher of swap spaces, the one that drains
//! them, fault handlers (poll mode), the control thread, the kin thread.
//!
//! They are made without libc ([`farshore_sys::thread`]), so that they can be made at any time: at the start of the program,
//! in a forked child when it first needs one ([`ensure`]; most children only exec), and those that read ahead when there is something to
//! read ([`make_reader`]).
//!
//! In a child they are made by a thread of ours too, and not by the thread of the program that needs them: what libraries do on the way
//! (`munmap` by libc's symbol, say) would be caught there as a call of the program.
//!
//! They take no signals of the program: all are blocked but SIGBUS and SIGSEGV, so that a fault of ours on managed memory
//! ends with a message.
//!
//! The memory of a thread is never unmapped. A forked child finds its parent's, without their threads, and uses it again.

pub mod rights;

use crate::control::{self, Handover};
use crate::net::calls::seccomp;
use crate::runtime::{Runtime, TheEvictor, locked, runtime};
use crate::{family, poll, report, spaces, thread, watch};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use farshore_config::FaultMode;
use farshore_core::roll::Roll;
use farshore_core::sync::Futex as _;
use farshore_engine::giving;
use farshore_engine::health::Watcher;
use farshore_engine::prefetch::Reader;
use farshore_sys::futex::KernelFutex;
use farshore_sys::lock::Mutex;
use farshore_sys::raw::{Errno, nr, syscall};
use farshore_sys::signal::{self, How, SigSet};
use farshore_sys::thread::Home;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Handler threads of the poll mode. Each waits for its own fetch, so several a core.
const HANDLERS_A_CORE: usize = 4;
/// Most threads that read ahead ([`make_reader`]). Each waits for its own read: pages that do not lie side by side are read by all of them.
const READERS: u32 = 4;
/// Stack of Farshore's own threads.
const STACK: usize = 256 << 10;

const NONE: u32 = 0;
const STARTING: u32 = 1;
const STARTED: u32 = 2;

/// Whether the threads that every process needs were started.
static STATE: AtomicU32 = AtomicU32::new(NONE);
static NEVER: AtomicBool = AtomicBool::new(false);
/// Whether there is a kin thread.
static KIN: AtomicBool = AtomicBool::new(false);

/// Who has begun has its record: a child that is forked then finds records for threads of its own, and needs no memory for them that a
/// limit (`ulimit -v`) may deny.
static ROLL: Roll = Roll::new();

/// Memory for threads: what was ever mapped, and how many of them have a thread.
struct Homes {
    all: Vec<&'static Home>,
    taken: usize,
}

static HOMES: Mutex<Homes> = Mutex::new(Homes { all: Vec::new(), taken: 0 });

/// What a thread of ours does.
enum Job {
    Evict(Box<TheEvictor>),
    ReadAhead,
    Watch(Watcher),
    Drain,
    Serve,
    Control(RawFd, &'static Handover),
    Kin,
    /// Makes the others.
    Begin,
}

impl Job {
    fn name(&self, number: usize) -> &'static CStr {
        const EVICT: [&CStr; 4] = [c"farshore-evict0", c"farshore-evict1", c"farshore-evict2", c"farshore-evict3"];
        match self {
            Job::Evict(_) => EVICT.get(number).copied().unwrap_or(c"farshore-evict"),
            Job::ReadAhead => c"farshore-ahead",
            Job::Serve => c"farshore-fault",
            Job::Watch(_) => c"farshore-watch",
            Job::Drain => c"farshore-drain",
            Job::Control(..) => c"farshore-ctl",
            Job::Kin | Job::Begin => c"farshore-kin",
        }
    }
}

fn spawn(job: Job, number: usize) -> Result<(), Errno> {
    let home = HOMES.with(|homes| {
        let free = homes.all.get(homes.taken).copied();
        let home = match free {
            Some(home) => home,
            None => {
                let home: &'static Home = Box::leak(Box::new(Home::new(STACK)?));
                homes.all.push(home);
                home
            }
        };
        homes.taken += 1;
        Ok(home)
    })?;
    let name = job.name(number);
    let job = Box::into_raw(Box::new(job)) as u64;
    ROLL.call();
    // SAFETY: the home was free and is taken now; it is never unmapped.
    let thread = unsafe { home.start(name, begin, job) }.inspect_err(|_| ROLL.dismiss(&KernelFutex))?;
    rights::add_thread(thread);
    Ok(())
}

/// The first function of a thread of ours.
extern "C" fn begin(job: u64) -> ! {
    if thread::adopt(true).is_none() {
        report::abort(format_args!("no memory for the record of a thread"));
    }
    ROLL.answer(&KernelFutex);
    // SAFETY: `spawn` has made it with `Box::into_raw` for this thread.
    let job = unsafe { Box::from_raw(core::ptr::with_exposed_provenance_mut::<Job>(job as usize)) };
    let Some(runtime) = runtime() else { report::abort(format_args!("bug: a thread before there is a runtime")) };
    match *job {
        // It begins before the others, so that it has a descriptor table of its own before the program runs.
        Job::Control(listener, handover) => control::serve(listener, runtime, handover),
        Job::Evict(mut evictor) => {
            runtime.wait_until_running();
            evictor.run(&NEVER);
        }
        Job::ReadAhead => {
            runtime.wait_until_running();
            let Some(thread) = thread::current() else { report::abort(format_args!("bug: a thread of ours has no record")) };
            runtime.engine.read_ahead(thread.core(), thread.buffer(), &NEVER);
        }
        Job::Watch(watcher) => {
            runtime.wait_until_running();
            watch::run(runtime, watcher);
        }
        Job::Drain => {
            runtime.wait_until_running();
            spaces::run(runtime);
        }
        Job::Serve => {
            runtime.wait_until_running();
            poll::run(runtime)
        }
        Job::Kin => family::run(runtime),
        Job::Begin => {
            if let Err(why) = start(runtime) {
                report::abort(format_args!("a forked child cannot go on: {why}"));
            }
            if KIN.swap(true, Ordering::AcqRel) {
                loop {
                    // SAFETY: ends this thread, on whose home nobody counts.
                    unsafe { syscall(nr::EXIT, [0; 6]) };
                }
            }
            family::run(runtime)
        }
    }
    report::abort(format_args!("bug: a thread of Farshore's has ended"))
}

/// Signals that a thread of ours has blocked.
fn blocked() -> SigSet {
    SigSet::ALL.without(signal::SIGBUS).without(signal::SIGSEGV)
}

/// Starts what every process has: evictors, fault handlers in poll mode, the control thread.
///
/// # Errors
/// One line, when a thread or its write queue cannot be had.
pub fn start(runtime: &'static Runtime) -> Result<(), String> {
    let before = signal::sigprocmask(How::Set, blocked());
    let started = start_all(runtime);
    signal::sigprocmask(How::Set, before);
    STATE.store(STARTED, Ordering::Release);
    KernelFutex.wake_all(&STATE);
    started
}

fn start_all(runtime: &'static Runtime) -> Result<(), String> {
    let no_thread = |why: Errno| format!("no thread of our own: {why:?}");
    for id in 0..runtime.shape.evictors {
        let evictor = TheEvictor::new(id, &runtime.engine).map_err(|why| format!("the swap space has no write queue: {why}"))?;
        spawn(Job::Evict(Box::new(evictor)), id).map_err(no_thread)?;
    }
    if runtime.options.prefetch.name != "none" {
        runtime.engine.allow_readers(READERS);
    }
    runtime.engine.health.set_patience(runtime.options.io_timeout.ns());
    spawn(Job::Watch(Watcher::new()), 0).map_err(no_thread)?;
    if runtime.engine.backend.files().is_some() {
        if runtime.options.trim {
            runtime.engine.give_room_back_from(giving::KEEP, giving::PAUSE_NS);
        }
        spawn(Job::Drain, 0).map_err(no_thread)?;
    }
    if runtime.options.fault == FaultMode::Poll {
        for id in 0..(HANDLERS_A_CORE * runtime.shape.cores).max(2) {
            spawn(Job::Serve, id).map_err(no_thread)?;
        }
    }
    runtime.note_own_fds();
    match control::listen() {
        Ok(listener) => start_control(listener).map_err(no_thread)?,
        // The program can run without.
        Err(why) => report::line(format_args!("{why}")),
    }
    ROLL.wait(&KernelFutex);
    Ok(())
}

fn start_control(listener: OwnedFd) -> Result<(), Errno> {
    let handover: &'static Handover = Box::leak(Box::new(Handover::new()));
    spawn(Job::Control(listener.as_raw_fd(), handover), 0)?;
    handover.finish(listener);
    Ok(())
}

/// Starts the thread that looks after the family of processes, unless there is one. Under the address-space lock.
///
/// # Errors
/// What clone(2) answers.
pub fn start_kin() -> Result<(), Errno> {
    if KIN.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    let before = signal::sigprocmask(How::Set, blocked());
    let started = spawn(Job::Kin, 0);
    ROLL.wait(&KernelFutex);
    signal::sigprocmask(How::Set, before);
    started
}

/// Makes one more thread that reads ahead; by the watcher. Under the address-space lock, so that no fork comes between, but it does not wait for that: who holds it may
/// wait for a page in a space that hangs, which the watcher has to notice.
pub fn make_reader(runtime: &'static Runtime) -> Reader {
    if seccomp::stops_new_threads() {
        return Reader::Never;
    }
    let made = runtime.space.try_with(|_| {
        let made = spawn(Job::ReadAhead, 0);
        ROLL.wait(&KernelFutex);
        made
    });
    match made {
        Some(Ok(())) => Reader::Made,
        Some(Err(why)) => {
            report::line(format_args!("no thread to read ahead ({why:?}): pages are fetched when they are needed"));
            Reader::Never
        }
        None => Reader::Later,
    }
}

/// Makes sure that this process has its threads: before a fault is served or a page is brought in. Not under the address-space
/// lock: a memory call that may bring pages in asks before it takes it.
#[inline]
pub fn ensure(runtime: &Runtime) {
    if STATE.load(Ordering::Acquire) != STARTED {
        start_late(runtime);
    }
}

/// In a forked child. Under the address-space lock, so that no fork comes between.
#[cold]
fn start_late(runtime: &Runtime) {
    locked(runtime, |_| {
        if STATE.compare_exchange(NONE, STARTING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            signal::sigprocmask(How::Set, blocked());
            if let Err(why) = spawn(Job::Begin, 0) {
                report::abort(format_args!("a forked child cannot go on: no thread of our own ({why:?})"));
            }
        }
        while STATE.load(Ordering::Acquire) == STARTING {
            KernelFutex.wait(&STATE, STARTING);
        }
    });
}

/// In a forked child: nobody lives in the parent's homes here.
pub fn forget() {
    STATE.store(NONE, Ordering::Release);
    KIN.store(false, Ordering::Release);
    ROLL.clear();
    HOMES.with(|homes| homes.taken = 0);
    rights::forget_threads();
}
