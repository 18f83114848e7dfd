//! Farshore's own threads in the program's process: evictors, threads that read ahead, the watcher of swap spaces, the one that drains
//! them, those that serve policies, fault handlers (poll mode), the control thread, the kin thread.
//!
//! # They exist while they are needed
//!
//! ```text
//!         a fault finds frames short (ensure, short_of_frames)
//!         somebody connects to the control socket (knock)
//!  NONE ─────────────────────────────────────────────────────▶ STARTING ─▶ STARTED
//!   ▲                                                             │ no thread can be had: tried again later
//!   │◀────────────────────────────────────────────────────────────┘
//!   └───────────── STOPPING ◀── a call that wants one thread, or that restricts the program (rights)
//! ```
//!
//! While memory is plenty a fault is served without them: a shell, `unshare` or a sandbox has the threads that it has natively, and a
//! program that restricts itself (a filter, other users) has none of ours that would have to follow. All come together, but for those that read ahead
//! ([`make_reader`]) and a kin thread that comes alone ([`start_kin`]). In poll mode, and where unithreads have joined, they are always there.
//!
//! What an evictor has (its stages, its queue of writes) outlives its thread: it is *parked*, and the next thread goes on with it.
//!
//! # How they are made
//!
//! Without libc ([`farshore_sys::thread`]), so that it can be done at any time, by a thread of the program that faults. What they need besides
//! was made at the start. In a forked child it was not: there a thread of ours makes the rest too, since what libraries do on the
//! way (`munmap` by libc's symbol, say) would be caught on a thread of the program as a call of the program.
//!
//! If the kernel refuses a thread (`RLIMIT_NPROC`, a cgroup's `pids.max`), faults go on without: it is tried again later, and a fault that waits for a frame gets one
//! beyond the limit meanwhile ([`short_of_frames`]). A line on stderr says so.
//!
//! They take no signals of the program: all are blocked but SIGBUS, by which they are told to look at something, and SIGSEGV.
//!
//! They are threads of the process that the memory belongs to, and of no other: in a *guest* ([`thread::Whose`]) they would end with it, and those that
//! stay would wait for them. So they are made before there is a guest that may need them ([`ensure_for_guest`]); where they are not there, a guest goes on without.
//!
//! The memory of a thread is never unmapped. It is used again by the next one, and by a forked child, which finds its parent's without their threads.

pub mod knock;
pub mod rights;

use crate::ground::above::{Above, Library};
use crate::ground::runtime::{Runtime, TheEvictor, locked, runtime, uninterrupted};
use crate::ground::{apart, report, thread};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use farshore_attach::audience::SEATS;
use farshore_config::FaultMode;
use farshore_core::limits::PAGE_SIZE;
use farshore_core::roll::Roll;
use farshore_core::seams::Clock as _;
use farshore_core::sync::Futex as _;
use farshore_engine::giving;
use farshore_engine::health::{Usage, Watcher};
use farshore_engine::prefetch::Reader;
use farshore_sys::clock::sleep_ns;
use farshore_sys::cpu;
use farshore_sys::futex::KernelFutex;
use farshore_sys::lock::Mutex;
use farshore_sys::raw::{Errno, nr, syscall};
use farshore_sys::signal::{self, How, SigSet};
use farshore_sys::thread::Home;

/// Handler threads of the poll mode. Each waits for its own fetch, so several a core.
const HANDLERS_A_CORE: usize = 4;
/// Most threads that read ahead ([`make_reader`]). Each waits for its own read: pages that do not lie side by side are read by all of them.
const READERS: u32 = 4;
/// Stack of Farshore's own threads.
const STACK: usize = 256 << 10;
/// After the kernel has refused a thread it is asked again so much later, ns.
const TRY_AGAIN_NS: u64 = 50_000_000;
/// Pages that a fault gets beyond the limit when there is nobody who could evict.
const LENT_AT_ONCE: u64 = 64;
/// Pages that a vforked child takes at most, as a rule, until it execs: its stack and what it writes there.
const VFORKED: u64 = 256;

const NONE: u32 = 0;
const STARTING: u32 = 1;
const STARTED: u32 = 2;
const STOPPING: u32 = 3;

/// Whether the threads that every process needs are there. Changed from `NONE` and from `STARTED` under the address-space lock alone.
static STATE: AtomicU32 = AtomicU32::new(NONE);
/// They are to end.
pub static STOP: AtomicBool = AtomicBool::new(false);
/// Fault handlers of the poll mode, which end before the others: they may wait for frames.
static SERVING: AtomicU32 = AtomicU32::new(0);
/// They are to end.
pub static STOP_SERVING: AtomicBool = AtomicBool::new(false);
/// Whether there is a kin thread.
static KIN: AtomicBool = AtomicBool::new(false);
/// What threads need was made ([`prepare`]).
static PREPARED: AtomicBool = AtomicBool::new(false);
/// When the kernel is asked again for a thread that it has refused; 0: it has not.
static TRY_AGAIN: AtomicU64 = AtomicU64::new(0);
/// No thread that reads ahead is made just now, or any more ([`allow_readers`]).
static NO_READERS: AtomicBool = AtomicBool::new(false);
/// Pages that the limit was raised by because there was nobody who could evict.
static LENT: AtomicU64 = AtomicU64::new(0);

/// Who has begun has its record: a child that is forked then finds records for threads of its own, and needs no memory for them that a
/// limit (`ulimit -v`) may deny.
static ROLL: Roll = Roll::new();

/// Memory for threads: what was ever mapped, and how many of them have a thread.
struct Homes {
    all: Vec<&'static Home>,
    taken: usize,
}

static HOMES: Mutex<Homes> = Mutex::new(Homes { all: Vec::new(), taken: 0 });

/// What goes on when a thread has it again.
struct Parked {
    evictors: Vec<TheEvictor>,
    watcher: Option<Watcher>,
}

static PARKED: Mutex<Parked> = Mutex::new(Parked { evictors: Vec::new(), watcher: None });

/// What a thread of ours does.
enum Job {
    Evict(Box<TheEvictor>),
    ReadAhead,
    Watch(Watcher),
    Drain,
    Serve,
    Control,
    Policy(usize),
    Kin,
    /// Makes the others.
    Begin,
}

impl Job {
    fn name(&self) -> &'static CStr {
        const EVICT: [&CStr; 4] = [c"farshore-evict0", c"farshore-evict1", c"farshore-evict2", c"farshore-evict3"];
        match self {
            Job::Evict(evictor) => EVICT.get(evictor.id()).copied().unwrap_or(c"farshore-evict"),
            Job::ReadAhead => c"farshore-ahead",
            Job::Serve => c"farshore-fault",
            Job::Watch(_) => c"farshore-watch",
            Job::Drain => c"farshore-drain",
            Job::Control => c"farshore-ctl",
            Job::Policy(_) => c"farshore-policy",
            Job::Kin | Job::Begin => c"farshore-kin",
        }
    }

    /// What it has goes back to where it was.
    fn park(self) {
        PARKED.with(|parked| match self {
            Job::Evict(evictor) => parked.evictors.push(*evictor),
            Job::Watch(watcher) => parked.watcher = Some(watcher),
            _ => {}
        });
    }
}

impl Homes {
    /// The next one that is free.
    fn take(&mut self) -> Result<&'static Home, Errno> {
        if self.taken == self.all.len() {
            self.all.push(Box::leak(Box::new(Home::new(STACK)?)));
        }
        self.taken += 1;
        Ok(self.all[self.taken - 1])
    }
}

/// Makes a thread. It begins with all signals blocked: until it has its record, a handler would take it for one of the program's.
fn spawn(job: Job) -> Result<(), Errno> {
    uninterrupted(|| spawn_blocked(job))
}

fn spawn_blocked(job: Job) -> Result<(), Errno> {
    let home = match HOMES.with(Homes::take) {
        Ok(home) => home,
        Err(why) => {
            job.park();
            return Err(why);
        }
    };
    // SAFETY: the home was free and is taken now; it is never unmapped.
    let made = unsafe { spawn_in(home, job) };
    if made.is_err() {
        HOMES.with(|homes| homes.taken -= 1);
    }
    made.map(drop)
}

/// Makes a thread that lives there, and returns its number.
///
/// # Safety
/// Nobody lives there.
unsafe fn spawn_in(home: &'static Home, job: Job) -> Result<u32, Errno> {
    let name = job.name();
    let job = Box::into_raw(Box::new(job));
    ROLL.call();
    // SAFETY: this function's own condition; a home is never unmapped.
    match unsafe { home.start(name, begin, job as u64) } {
        Ok(thread) => {
            rights::add_thread(thread);
            Ok(thread)
        }
        Err(why) => {
            ROLL.dismiss(&KernelFutex);
            // SAFETY: made above, and no thread has it.
            unsafe { Box::from_raw(job) }.park();
            Err(why)
        }
    }
}

/// The first function of a thread of ours.
extern "C" fn begin(job: u64) -> ! {
    let Some(thread) = thread::adopt(true) else { report::abort(format_args!("no memory for the record of a thread")) };
    signal::sigprocmask(How::Set, blocked());
    // SAFETY: `spawn` has made it with `Box::into_raw` for this thread.
    let mut job = unsafe { Box::from_raw(core::ptr::with_exposed_provenance_mut::<Job>(job as usize)) };
    match &*job {
        // Before the program goes on, which may forbid it then.
        Job::Control => knock::leave_table(),
        Job::Serve => _ = SERVING.fetch_add(1, Ordering::AcqRel),
        _ => {}
    }
    ROLL.answer(&KernelFutex);
    let Some(runtime) = runtime() else { report::abort(format_args!("bug: a thread before there is a runtime")) };
    if !matches!(*job, Job::Begin) {
        runtime.wait_until_running();
    }
    match &mut *job {
        Job::Evict(evictor) => {
            if runtime.options.ablate.0.migration {
                stay(runtime, evictor.id());
            }
            evictor.run(&STOP)
        }
        Job::ReadAhead => thread.with_buffer(|buffer| runtime.engine.read_ahead(thread.core(), buffer, &STOP)),
        Job::Watch(watcher) => Library::watch(runtime, watcher),
        Job::Drain => Library::drain(runtime),
        Job::Serve => Library::serve_faults(runtime),
        Job::Control => knock::serve(runtime),
        Job::Policy(seat) => Library::serve_policy(runtime, *seat),
        Job::Kin => Library::look_after_family(runtime),
        Job::Begin => have_begun(runtime, prepare(runtime).and_then(|()| start_all(runtime).map_err(no_thread))),
    }
    signal::sigprocmask(How::Set, SigSet::ALL);
    if matches!(*job, Job::Serve) {
        SERVING.fetch_sub(1, Ordering::AcqRel);
    }
    job.park();
    thread::leave();
    rights::has_ended();
    loop {
        // SAFETY: ends this thread, whose home is free when the kernel does not know it any more.
        unsafe { syscall(nr::EXIT, [0; 6]) };
    }
}

/// For experiments: the calling thread, an evictor, stays on one core.
fn stay(runtime: &Runtime, evictor: usize) {
    match cpu::stay_on(evictor) {
        Ok(()) => runtime.engine.note_bound(evictor),
        Err(why) => report::line(format_args!("evictor {evictor} cannot be kept on one core: {why:?}")),
    }
}

/// Signals that a thread of ours has blocked.
fn blocked() -> SigSet {
    SigSet::ALL.without(signal::SIGBUS).without(signal::SIGSEGV)
}

fn no_thread(why: Errno) -> String {
    format!("no thread of our own can be made: {why:?}")
}

/// Makes what the threads of this process need, but for themselves. Under the address-space lock, or while the program does not run
/// ([`apart`]).
///
/// # Errors
/// One line, when a queue of writes cannot be had. What was made stays, and the rest can be made later.
pub fn prepare(runtime: &'static Runtime) -> Result<(), String> {
    if PREPARED.load(Ordering::Acquire) {
        return Ok(());
    }
    let engine = &runtime.engine;
    for id in PARKED.with(|parked| parked.evictors.len())..runtime.shape.evictors {
        let mut evictor = TheEvictor::new(id, engine).map_err(|why| format!("the swap space has no write queue: {why}"))?;
        evictor.park();
        PARKED.with(|parked| parked.evictors.push(evictor));
    }
    engine.allow_readers(READERS);
    engine.health.set_patience(runtime.options.io_timeout.ns());
    farshore_backend::nbd::set_patience(runtime.options.io_timeout.ns());
    if engine.backend.gives_back() && runtime.options.trim {
        engine.give_room_back_from(giving::KEEP, giving::PAUSE_NS);
    }
    PARKED.with(|parked| parked.watcher = Some(Watcher::new()));
    HOMES.with(|homes| {
        // Now, before the program sets itself a limit. Of what cannot be had now the thread's start will tell.
        let before = homes.taken;
        let made = (before..runtime.shape.evictors + 4).all(|_| homes.take().is_ok());
        homes.taken = before;
        made
    });
    runtime.note_own_fds();
    PREPARED.store(true, Ordering::Release);
    Ok(())
}

/// At the start of the program: prepares, and makes the threads that must be there from the beginning.
///
/// # Errors
/// One line, when something cannot be had.
pub fn start(runtime: &'static Runtime) -> Result<(), String> {
    prepare(runtime)?;
    knock::listen(runtime);
    if must_be_there(runtime) {
        let started = uninterrupted(|| start_all(runtime));
        STATE.store(if started.is_ok() { STARTED } else { NONE }, Ordering::Release);
        started.map_err(no_thread)?;
    }
    Ok(())
}

/// Whether threads are needed whatever memory does.
fn must_be_there(runtime: &Runtime) -> bool {
    let health = &runtime.engine.health;
    let moving = || !health.all_that_are(Usage::Draining).is_empty() || !health.all_that_are(Usage::Going).is_empty();
    serve_faults(runtime) || moving() || runtime.changes.are_waiting() || Library::is_measured(runtime) || must_keep(runtime)
}

/// Whether pages of this process, or those that it has inherited, are with a server that forgets those of which it hears nothing: the drainer's thread tells it.
pub fn must_keep(runtime: &Runtime) -> bool {
    let slots = &runtime.engine.slots;
    slots.live() + slots.inherited() > 0 && runtime.engine.backend.wants_keeping()
}

/// Whether threads of the program wait for ours at each fault: then there is no moment without.
pub fn serve_faults(runtime: &Runtime) -> bool {
    runtime.options.fault == FaultMode::Poll || unithreads_are_joined()
}

/// Schedulers of unithreads that have joined and not left.
static JOINED: AtomicU32 = AtomicU32::new(0);

/// A scheduler of unithreads joins. Whether it is the first.
pub fn join_unithreads() -> bool {
    JOINED.fetch_add(1, Ordering::AcqRel) == 0
}

/// One leaves. Whether it was the last.
pub fn leave_unithreads() -> bool {
    JOINED.fetch_sub(1, Ordering::AcqRel) == 1
}

/// Whether a scheduler of unithreads has joined.
fn unithreads_are_joined() -> bool {
    JOINED.load(Ordering::Acquire) > 0
}

/// In a forked child: none has.
pub fn forget_unithreads() {
    JOINED.store(0, Ordering::Release);
}

/// Makes the threads that work together, and waits until each has begun.
fn start_all(runtime: &'static Runtime) -> Result<(), Errno> {
    let made = start_needed(runtime);
    if made.is_ok() {
        // Without these it goes on.
        let drains = runtime.engine.backend.gives_back() || runtime.engine.backend.wants_keeping();
        let more = [drains.then_some(Job::Drain), knock::may_serve().then_some(Job::Control)];
        for job in more.into_iter().flatten() {
            if let Err(why) = spawn(job) {
                report::line(format_args!("{}: some of what 'farshore set' does waits for the next one", no_thread(why)));
            }
        }
        if Library::has_family() && !KIN.swap(true, Ordering::AcqRel) && spawn(Job::Kin).is_err() {
            KIN.store(false, Ordering::Release);
        }
        knock::disarm();
    }
    ROLL.wait(&KernelFutex);
    made
}

fn start_needed(runtime: &'static Runtime) -> Result<(), Errno> {
    while let Some(evictor) = PARKED.with(|parked| parked.evictors.pop()) {
        spawn(Job::Evict(Box::new(evictor)))?;
    }
    spawn(Job::Watch(PARKED.with(|parked| parked.watcher.take()).unwrap_or_default()))?;
    if runtime.options.fault == FaultMode::Poll {
        for _ in 0..(HANDLERS_A_CORE * runtime.shape.cores).max(2) {
            spawn(Job::Serve)?;
        }
    }
    Ok(())
}

/// Starts the thread that looks after the family of processes, unless there is one. Under the address-space lock.
///
/// # Errors
/// What clone(2) answers.
pub fn start_kin() -> Result<(), Errno> {
    if thread::is_guest() || STATE.load(Ordering::Acquire) == STOPPING || KIN.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    uninterrupted(|| {
        if !rights::has_threads() {
            rights::are_made_by_this_thread();
        }
        let started = spawn(Job::Kin).inspect_err(|_| KIN.store(false, Ordering::Release));
        ROLL.wait(&KernelFutex);
        started
    })
}

/// Whether there is a thread that looks after this process' part of the family's limit.
pub fn has_kin() -> bool {
    KIN.load(Ordering::Acquire)
}

/// Whether the threads are there.
pub fn are_there() -> bool {
    STATE.load(Ordering::Acquire) == STARTED
}

/// Makes one more thread that reads ahead; by the watcher. Under the address-space lock, so that no fork comes between, but it does not wait for that: who holds it may
/// wait for a page in a space that hangs, which the watcher has to notice.
pub fn make_reader(runtime: &'static Runtime) -> Reader {
    if !rights::can_be_made_again() {
        return Reader::Never;
    }
    let made = runtime.space.try_with(|_| {
        // It may be stopping, or starting with a program's thread in the lock.
        (STATE.load(Ordering::Acquire) == STARTED && !NO_READERS.load(Ordering::Relaxed)).then(|| {
            uninterrupted(|| {
                let made = spawn(Job::ReadAhead);
                ROLL.wait(&KernelFutex);
                made
            })
        })
    });
    match made.flatten() {
        Some(Ok(())) => Reader::Made,
        Some(Err(why)) => {
            report::line(format_args!("no thread to read ahead ({why:?}): pages are fetched when they are needed"));
            Reader::Never
        }
        None => Reader::Later,
    }
}

/// Homes of threads that serve policies, by seat: they come and go while the others stay.
static POLICY_HOMES: Mutex<[Option<&'static Home>; SEATS]> = Mutex::new([None; SEATS]);

/// How often it is tried to make such a thread, and how long is waited in between, ns.
const POLICY_TRIES: u32 = 200;
const POLICY_PAUSE_NS: u64 = 1_000_000;

/// Makes the thread that serves the policy on `seat`, whose last one has ended, and returns its number; by the control thread. Under the address-space lock, as
/// [`make_reader`].
///
/// # Errors
/// Why there is none, in a line.
pub fn make_policy(runtime: &'static Runtime, seat: usize) -> Result<u32, String> {
    if !rights::can_be_made_again() {
        return Err("attach: filters or limits of this program allow no new thread".into());
    }
    let home = POLICY_HOMES.with(|homes| match homes[seat] {
        Some(home) => Ok(home),
        None => Home::new(STACK).map(|home| *homes[seat].insert(Box::leak(Box::new(home)))),
    });
    let home = home.map_err(no_thread)?;
    for _ in 0..POLICY_TRIES {
        let made = runtime.space.try_with(|_| {
            (STATE.load(Ordering::Acquire) == STARTED).then(|| {
                uninterrupted(|| {
                    // SAFETY: the last thread that lived there has ended, as the kernel says (`control/policies.rs`).
                    let made = unsafe { spawn_in(home, Job::Policy(seat)) };
                    ROLL.wait(&KernelFutex);
                    made
                })
            })
        });
        match made.flatten() {
            Some(made) => return made.map_err(no_thread),
            None if STOP.load(Ordering::Acquire) => break,
            None => sleep_ns(POLICY_PAUSE_NS),
        }
    }
    Err("attach: the program is in the middle of a call that allows no new thread; try again".into())
}

/// Whether threads that read ahead are made as they are needed. When this comes back with "no", none is in the making, and none will be: before a filter that stops
/// clone(2), or what a new thread does first, is installed for all threads.
pub fn allow_readers(runtime: &Runtime, allowed: bool) {
    locked(runtime, |_| NO_READERS.store(!allowed, Ordering::Relaxed));
}

/// Makes the threads if there is something for them to do: before a fault is served or a page is brought in. Not under the address-space
/// lock: a memory call that may bring pages in asks before it takes it.
#[inline]
pub fn ensure() {
    if STATE.load(Ordering::Acquire) != STARTED {
        ensure_late();
    }
}

#[cold]
fn ensure_late() {
    let Some(runtime) = runtime().filter(|_| !thread::is_guest()) else { return };
    // A forked child is heard of from its first fault on.
    knock::listen_late(runtime);
    if runtime.engine.wants_threads() || Library::family_wants_thread() {
        start_late(runtime);
    }
}

/// Makes the threads now, whatever memory does. Whether they are there.
pub fn ensure_now(runtime: &'static Runtime) -> bool {
    if STATE.load(Ordering::Acquire) != STARTED {
        start_late(runtime);
    }
    are_there()
}

/// Before there is a guest, which cannot make them: makes the threads if it may need them. One whose parent waits (`vforked`) does where little is free;
/// any other may take as much memory as the program itself.
pub fn ensure_for_guest(runtime: &'static Runtime, vforked: bool) {
    if !vforked || runtime.engine.is_short_after(VFORKED) {
        ensure_now(runtime);
    }
}

/// Under the address-space lock, so that no fork comes between.
#[cold]
fn start_late(runtime: &'static Runtime) {
    if thread::is_guest() {
        return;
    }
    loop {
        match STATE.load(Ordering::Acquire) {
            STARTED => return,
            // Not under the lock: threads that are to end may need it.
            state @ (STARTING | STOPPING) => {
                KernelFutex.wait(&STATE, state);
                continue;
            }
            _ => {}
        }
        let again = TRY_AGAIN.load(Ordering::Relaxed);
        if again != 0 && runtime.engine.clock.now_ns() < again {
            return;
        }
        let (begun, failed) = locked(runtime, |_| {
            let begun = begin_all(runtime);
            (begun, begun && STATE.compare_exchange(NONE, STOPPING, Ordering::AcqRel, Ordering::Acquire).is_ok())
        });
        if failed {
            // Some are of no use without the others. Not under the lock, for which a kin thread may wait that was there before.
            uninterrupted(|| end_all(runtime));
            STATE.store(NONE, Ordering::Release);
            KernelFutex.wake_all(&STATE);
        }
        if begun {
            return;
        }
    }
}

/// Makes all that are missing, unless others do just now; under the address-space lock. Whether it has tried: then [`have_begun`] has said how it went.
fn begin_all(runtime: &'static Runtime) -> bool {
    if STATE.compare_exchange(NONE, STARTING, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return false;
    }
    if !thread::is_internal() {
        rights::are_made_by_this_thread();
    }
    knock::listen_once(runtime);
    if PREPARED.load(Ordering::Acquire) {
        have_begun(runtime, start_all(runtime).map_err(no_thread));
    } else if let Err(why) = spawn(Job::Begin) {
        have_begun(runtime, Err(no_thread(why)));
    }
    while STATE.load(Ordering::Acquire) == STARTING {
        KernelFutex.wait(&STATE, STARTING);
    }
    true
}

/// Makes the others, if there is something for them to do; by a kin thread that came alone, whose budget shrinks while the program does not fault. It waits
/// for nobody: who ends threads waits for it. Those that it could make stay, when others could not be had: who ends threads ends them too.
pub fn join_kin(runtime: &'static Runtime) {
    let again = TRY_AGAIN.load(Ordering::Relaxed);
    let is_time = || again == 0 || runtime.engine.clock.now_ns() >= again;
    if STATE.load(Ordering::Acquire) == NONE && rights::can_be_made_again() && runtime.engine.wants_threads() && is_time() {
        runtime.space.try_with(|_| begin_all(runtime));
    }
}

/// The threads are there, or cannot be had now.
fn have_begun(runtime: &Runtime, how: Result<(), String>) {
    match &how {
        Ok(()) => {
            TRY_AGAIN.store(0, Ordering::Relaxed);
            take_back(runtime);
        }
        Err(why) => {
            let again = runtime.engine.clock.now_ns() + TRY_AGAIN_NS;
            if TRY_AGAIN.swap(again, Ordering::Relaxed) == 0 {
                report::line(format_args!(
                    "{why}; it is tried again, and until then no page is evicted: more than the memory limit may be used"
                ));
            }
        }
    }
    STATE.store(if how.is_ok() { STARTED } else { NONE }, Ordering::Release);
    KernelFutex.wake_all(&STATE);
}

/// A fault waits for a frame. If there is nobody who could make one free, and no thread can be had, the limit gives way: the program would not come
/// back from here.
pub fn short_of_frames() {
    if STATE.load(Ordering::Acquire) == STARTED {
        return;
    }
    let Some(runtime) = runtime() else { return };
    if thread::is_internal() || ensure_now(runtime) {
        return;
    }
    LENT.fetch_add(LENT_AT_ONCE, Ordering::Relaxed);
    runtime.engine.set_budget(runtime.engine.memory_limit() / PAGE_SIZE as u64 + LENT_AT_ONCE);
}

/// There is somebody who evicts: what was lent comes back.
fn take_back(runtime: &Runtime) {
    let lent = LENT.swap(0, Ordering::Relaxed);
    if lent > 0 {
        runtime.engine.set_budget((runtime.engine.memory_limit() / PAGE_SIZE as u64).saturating_sub(lent));
    }
}

/// Ends all threads of ours, and comes back when the kernel does not know them any more. They are made again when they are needed. With all
/// signals blocked, by a thread that holds nothing. Whether there were any. A guest ends none: they are not of its process.
pub fn stop(runtime: &Runtime) -> bool {
    if thread::is_guest() {
        return false;
    }
    loop {
        match STATE.load(Ordering::Acquire) {
            state @ (STARTING | STOPPING) => KernelFutex.wait(&STATE, state),
            NONE if !rights::has_threads() => return false,
            state => {
                // Under the lock: nobody makes one just now, and no fork is under way.
                let stopping = || STATE.compare_exchange(state, STOPPING, Ordering::AcqRel, Ordering::Acquire).is_ok();
                if runtime.space.with(|_| stopping()) {
                    break;
                }
            }
        }
    }
    end_all(runtime);
    STATE.store(NONE, Ordering::Release);
    KernelFutex.wake_all(&STATE);
    knock::arm();
    true
}

/// What must be there all the time is made again, after [`stop`].
pub fn go_on(runtime: &'static Runtime) {
    if must_be_there(runtime) || runtime.engine.wants_threads() || knock::is_waited_for() {
        ensure_now(runtime);
    }
}

/// Tells all threads to end, and waits for it.
fn end_all(runtime: &Runtime) {
    STOP_SERVING.store(true, Ordering::SeqCst);
    rights::wait_for_end(|| runtime.engine.wake_all_threads(), || SERVING.load(Ordering::Acquire) == 0);
    STOP.store(true, Ordering::SeqCst);
    rights::wait_for_end(|| runtime.engine.wake_all_threads(), || false);
    STOP.store(false, Ordering::SeqCst);
    STOP_SERVING.store(false, Ordering::SeqCst);
    runtime.engine.threads_have_ended();
    KIN.store(false, Ordering::Release);
    Library::family_sleeps();
    HOMES.with(|homes| homes.taken = 0);
}

/// In a forked child: nobody lives in the parent's homes here.
pub fn forget() {
    STATE.store(NONE, Ordering::Release);
    STOP.store(false, Ordering::Release);
    STOP_SERVING.store(false, Ordering::Release);
    SERVING.store(0, Ordering::Release);
    KIN.store(false, Ordering::Release);
    PREPARED.store(false, Ordering::Release);
    TRY_AGAIN.store(0, Ordering::Release);
    LENT.store(0, Ordering::Release);
    NO_READERS.store(false, Ordering::Release);
    ROLL.clear();
    HOMES.reset();
    HOMES.with(|homes| homes.taken = 0);
    POLICY_HOMES.reset();
    PARKED.reset();
    // The parent's queues are copies of its memory: nothing of them is closed here.
    PARKED.with(|parked| parked.evictors.drain(..).for_each(core::mem::forget));
    apart::forget();
    knock::forget();
    rights::forget_threads();
}
