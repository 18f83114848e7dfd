//! The runtime: configuration, workers, and how it begins and ends.
//!
//! # The end
//!
//! [`Runtime::shutdown`] is structured: it waits until every unithread has ended, so that all their destructors have run.
//!
//! 1. Nothing is spawned any more. Each worker ends the waits of its unithreads that say so in their type (`sleep`, `recv`, `send`:
//!    [`crate::Stopped`]) and cancels their requests in the ring (`io`, `net`: `ECANCELED`), once; waits that begin later end at once. Waits for fetches and
//!    for other unithreads end by themselves.
//! 2. The last unithread that ends, or the last slot that the heir gives back, wakes who waits for it ([`crate::lifetime`]).
//! 3. Workers end then, and their threads are joined.

use crate::dispatch::{Dispatch, Policy, WORKERS_MAX};
use crate::doze::Doze;
use crate::error::{Error, SpawnError};
use crate::far::{Joined, Kept};
use crate::heir::Heir;
use crate::join::{self, JoinHandle};
use crate::lifetime::Lifetime;
use crate::list::Inbox;
use crate::own::Here;
use crate::pool::{Pool, Shape};
use crate::request;
use crate::ring::{Kick, Ring};
use crate::thread::Inherited;
use crate::wait::{Complete, Token};
use crate::{overflow, text, thread as os, worker};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use farshore_core::sync::Padded;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;

/// How a unithread waits for a fetch or a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WaitMode {
    /// The worker runs other unithreads meanwhile.
    #[default]
    Yield,
    /// The worker sleeps. To compare with.
    Block,
    /// The worker looks for the completion without end, as systems before Adios do. To compare with.
    Busy,
}

/// What happens when a unithread panics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Panics {
    /// It is reported: by the panic hook on stderr, to who joins it, and in [`Handle::panics`]. The process goes on. Refused where panics cannot be
    /// caught (`panic = "abort"`).
    Report,
    /// It is reported on stderr, and the process is aborted.
    End,
}

/// How a runtime is made. The default has a worker for each core, and 4,096 unithreads with 64 KiB each.
#[derive(Clone, Debug)]
pub struct Config {
    /// Workers, 1 to 64; 0: one for each core that the process may use.
    pub workers: usize,
    /// Unithreads that there can be at a time, 1 to 2²⁴.
    pub unithreads: usize,
    /// Bytes of stack, control block and request buffer of one unithread together; a multiple of 4,096, at least 16,384. What is touched takes RAM,
    /// the rest addresses alone.
    pub stack_bytes: usize,
    /// Bytes of addresses without memory between two unithreads; a multiple of 4,096.
    pub guard_bytes: usize,
    /// Bytes of the request buffer; a multiple of 4,096 less what the control block takes wastes nothing.
    pub buffer_bytes: usize,
    /// Each worker stays on a core of its own.
    pub pin: bool,
    /// Which idle worker gets a new unithread.
    pub policy: Policy,
    /// How unithreads wait for fetches.
    pub wait: WaitMode,
    /// How long a worker whose unithreads all wait looks for completions before it sleeps. A worker without fetches under way sleeps at once.
    pub poll: Duration,
    /// After so long a unithread gives way in [`crate::checkpoint`], if others want to run.
    pub slice: Duration,
    /// What happens at a panic.
    pub panics: Panics,
    /// Unithreads wait in place inside of libc, the allocator and the C++ library, which have locks and thread-local data. Without this the program holds
    /// ([`crate::hold`], [`crate::Allocator`]) around each call of theirs that may touch far memory. That is exact, whereas this takes what an earlier call has left on
    /// the stack for a call: code with large variables that it does not write to may wait in place often.
    pub guard_libc: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            workers: 0,
            unithreads: 4096,
            stack_bytes: 64 << 10,
            guard_bytes: 64 << 10,
            buffer_bytes: 2048,
            pin: true,
            policy: Policy::FewestFetches,
            wait: WaitMode::Yield,
            poll: Duration::ZERO,
            slice: Duration::from_micros(100),
            panics: if cfg!(panic = "abort") { Panics::End } else { Panics::Report },
            guard_libc: true,
        }
    }
}

/// What others reach of a worker.
#[derive(Debug)]
pub(crate) struct Side {
    /// Its unithreads whose waits were completed by others.
    pub(crate) inbox: Inbox,
    pub(crate) doze: Doze,
    kick: Arc<Kick>,
}

/// What all threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) pool: Pool,
    pub(crate) dispatch: Dispatch,
    sides: Vec<Padded<Side>>,
    pub(crate) heir: Heir,
    lifetime: Lifetime,
    panics: AtomicU64,
    /// What the thread had that started it: so do children of unithreads, and what runs as before (`api::as_before`).
    pub(crate) before: Inherited,
    here: Here,
    /// What of this workers touch and the library must leave in place.
    kept: OnceLock<Vec<Kept>>,
    pub(crate) joined: Option<Joined>,
}

impl Shared {
    /// Keeps what lies in the heap in its place: see `far.rs`.
    fn keep(&self) -> Result<(), Error> {
        let keep = || -> std::io::Result<Vec<Kept>> {
            let mut kept = vec![Kept::all(core::slice::from_ref(self))?, Kept::all(&self.sides)?, self.dispatch.keep()?];
            for side in &self.sides {
                kept.push(Kept::all(core::slice::from_ref(&*side.kick))?);
            }
            kept.push(self.heir.keep()?);
            Ok(kept)
        };
        let kept = keep().map_err(|error| Error::System {
            what: "the scheduler's memory cannot be kept, bytes",
            value: size_of::<Shared>() as u64,
            error,
        })?;
        let _ = self.kept.set(kept);
        Ok(())
    }

    pub(crate) fn side(&self, worker: usize) -> &Side {
        &self.sides[worker]
    }

    /// Wakes worker `worker` if it sleeps. May be called in a signal handler.
    pub(crate) fn wake(&self, worker: usize) {
        let side = self.side(worker);
        if side.doze.must_kick() {
            side.kick.kick();
        }
    }

    /// Not in a forked child, where there are no workers.
    pub(crate) fn is_here(&self) -> bool {
        self.here.is_here()
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.lifetime.is_stopping()
    }

    /// Stopping, and nothing is left.
    pub(crate) fn has_ended(&self) -> bool {
        self.lifetime.has_ended()
    }

    /// Completes a wait; from any thread, in a signal handler or not. False: it was over before.
    pub(crate) fn complete(&self, token: Token, result: i32) -> bool {
        let unit = self.pool.unit(token.index());
        // Before the completion: afterwards the unithread may have ended, and the slot have another home.
        let home = unit.home.load(Ordering::Relaxed) as usize;
        match unit.wait.complete(token, result) {
            Complete::Stale => return false,
            Complete::Resume => self.side(home).inbox.push(&self.pool, token.index()),
            // Its worker may wait for it in place.
            Complete::Noted => {}
        }
        self.wake(home);
        true
    }

    /// One more unithread, unless there are to be no more.
    pub(crate) fn admit(&self) -> Result<(), SpawnError> {
        if !self.is_here() {
            return Err(SpawnError::Forked);
        }
        if self.lifetime.admit() {
            return Ok(());
        }
        self.dismiss();
        Err(SpawnError::Stopping)
    }

    /// One less.
    pub(crate) fn dismiss(&self) {
        if self.lifetime.dismiss() {
            join::futex_wake(self.lifetime.word());
            self.wake_all();
        }
    }

    pub(crate) fn note_panic(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        if self.config.panics == Panics::End {
            eprintln!("farshore-uthread: a unithread panicked, and the process ends (Panics::End)");
            std::process::abort();
        }
    }

    fn wake_all(&self) {
        (0..self.sides.len()).for_each(|worker| self.wake(worker));
        self.heir.wake();
    }

    fn stop(&self) {
        self.lifetime.stop();
        self.wake_all();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // While it is still there.
        drop(self.kept.take());
    }
}

/// A way to a runtime that may be sent and cloned. It does not keep the runtime going.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(crate) shared: Arc<Shared>,
}

impl Handle {
    /// Makes a unithread that runs `work`.
    pub fn spawn<F, T>(&self, work: F) -> Result<JoinHandle<T>, SpawnError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        join::spawn(&self.shared, work)
    }

    /// Unithreads that were spawned and have not ended.
    pub fn live(&self) -> u32 {
        self.shared.lifetime.live()
    }

    /// Unithreads that have panicked.
    pub fn panics(&self) -> u64 {
        self.shared.panics.load(Ordering::Relaxed)
    }

    /// Pages for which unithreads have waited so far while others could run. 0 without far memory, and where all wait in place.
    pub fn pages_waited_for(&self) -> u64 {
        (0..self.shared.sides.len()).map(|worker| self.shared.dispatch.desk(worker).parked.load(Ordering::Relaxed)).sum()
    }

    /// Unithreads that there were at most at a time: their stacks take RAM.
    pub fn unithreads_touched(&self) -> u32 {
        self.shared.pool.used()
    }

    /// The pool's slot whose guard has this address: a unithread's stack has overflowed there.
    pub fn guard_at(&self, address: usize) -> Option<u32> {
        self.shared.pool.guard_at(address)
    }
}

/// A runtime with its workers. Dropped, it is shut down, and waits for that; one of its own unithreads must not drop it, which aborts the process.
#[derive(Debug)]
pub struct Runtime {
    handle: Handle,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Runtime {
    /// Starts the workers.
    pub fn start(config: Config) -> Result<Runtime, Error> {
        let cores = os::allowed_cores()?;
        let config =
            Config { workers: if config.workers == 0 { cores.len().min(WORKERS_MAX) } else { config.workers }, ..config };
        if config.workers > WORKERS_MAX {
            return Err(Error::Config { what: "workers", value: config.workers as u64, want: "1 to 64, or 0 for one a core" });
        }
        if config.panics == Panics::Report && cfg!(panic = "abort") {
            return Err(Error::CannotCatchPanics);
        }
        os::refuse_shadow_stack()?;
        let Config { unithreads: count, stack_bytes, guard_bytes, buffer_bytes, .. } = config;
        let pool = Pool::new(Shape { count, stack_bytes, guard_bytes, buffer_bytes })?;
        let joined = if config.wait == WaitMode::Block { None } else { Joined::join(count) };
        text::find();
        worker::forget_in_children();
        overflow::watch();
        let side = || Ok(Padded(Side { inbox: Inbox::default(), doze: Doze::default(), kick: Arc::new(Kick::new()?) }));
        let shared = Arc::new(Shared {
            dispatch: Dispatch::new(config.workers, config.policy),
            sides: (0..config.workers).map(|_| side()).collect::<Result<_, Error>>()?,
            pool,
            heir: Heir::new()?,
            config,
            lifetime: Lifetime::default(),
            panics: AtomicU64::new(0),
            before: Inherited::now(),
            here: Here::new()?,
            kept: OnceLock::new(),
            joined,
        });
        shared.keep()?;
        // Dropped on an error below, it takes the threads down that were started.
        let mut runtime = Runtime { handle: Handle { shared: shared.clone() }, threads: Vec::new() };
        for number in 0..shared.config.workers {
            let core = cores[number % cores.len()];
            let work = move |shared: Arc<Shared>, ring| worker::run(shared, number, ring);
            runtime.threads.push(start_thread(
                &shared,
                format!("unithreads{number}"),
                move |shared| prepare(shared, number, core),
                work,
            )?);
        }
        let work = |shared: Arc<Shared>, ring| request::run(&shared, ring);
        runtime.threads.push(start_thread(&shared, "unireplies".into(), |shared| shared.heir.prepare(), work)?);
        Ok(runtime)
    }

    /// A way to this runtime.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Makes a unithread that runs `work`.
    pub fn spawn<F, T>(&self, work: F) -> Result<JoinHandle<T>, SpawnError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.handle.spawn(work)
    }

    /// Ends the runtime: see the module's head. Waits for as long as it takes. A unithread of this runtime is refused, and the runtime goes on.
    pub fn shutdown(mut self) -> Result<(), Error> {
        self.end(None)
    }

    /// The same, for at most `time`. After that the unithreads that are left, and their workers, go on by themselves.
    pub fn shutdown_within(mut self, time: Duration) -> Result<(), Error> {
        self.end(Some(time))
    }

    fn end(&mut self, time: Option<Duration>) -> Result<(), Error> {
        let shared = &self.handle.shared;
        if !shared.is_here() {
            // They are the parent's, and nothing here.
            core::mem::forget(core::mem::take(&mut self.threads));
            return Err(Error::Forked);
        }
        if worker::this().is_some_and(|worker| Arc::ptr_eq(&worker.shared, shared)) {
            self.threads.clear();
            return Err(Error::FromInside);
        }
        shared.stop();
        let deadline = time.map(|time| worker::now().saturating_add(time.as_nanos() as u64));
        loop {
            let (seen, left) = (shared.lifetime.word().load(Ordering::Acquire), shared.lifetime.live());
            if left == 0 {
                break;
            }
            let rest = deadline.map(|deadline| deadline.saturating_sub(worker::now()));
            if rest == Some(0) {
                self.threads.clear();
                return Err(Error::NotEnded(left));
            }
            join::futex_wait(shared.lifetime.word(), seen, rest);
        }
        shared.wake_all();
        for thread in self.threads.drain(..) {
            // Its panic was reported when it came, and has aborted the process.
            let _ = thread.join();
        }
        Ok(())
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if self.threads.is_empty() {
            return;
        }
        if let Err(error) = self.end(None)
            && !matches!(error, Error::Forked)
        {
            eprintln!("farshore-uthread: {error}");
            std::process::abort();
        }
    }
}

/// Starts a thread; returns when it is prepared.
fn start_thread<P: 'static>(
    shared: &Arc<Shared>,
    name: String,
    prepare: impl FnOnce(&Shared) -> Result<P, Error> + Send + 'static,
    run: impl FnOnce(Arc<Shared>, P) + Send + 'static,
) -> Result<thread::JoinHandle<()>, Error> {
    let (tell, hear) = mpsc::channel();
    let shared = shared.clone();
    let work = move || {
        let prepared = match prepare(&shared) {
            Ok(prepared) => prepared,
            // Who hears it starts no runtime; if he is gone, so is the runtime.
            Err(error) => return drop(tell.send(Err(error))),
        };
        let _ = tell.send(Ok(()));
        drop(tell);
        // A scheduler that is half way through something cannot go on.
        let end_all = AbortOnUnwind;
        run(shared, prepared);
        core::mem::forget(end_all);
    };
    let failed = |error| Error::System { what: "cannot start a thread (ulimit -u?)", value: 0, error };
    let thread = thread::Builder::new().name(name).spawn(work).map_err(failed)?;
    match hear.recv() {
        Ok(Ok(())) => Ok(thread),
        Ok(Err(error)) => Err(error),
        Err(_) => unreachable!("a thread of ours tells how it began"),
    }
}

fn prepare(shared: &Shared, number: usize, core: usize) -> Result<Ring, Error> {
    if shared.config.pin {
        os::pin(core)?;
    }
    os::block_signals();
    os::ask_for_short_turns();
    overflow::have_a_stack();
    Ring::new(shared.side(number).kick.clone())
}

/// Aborts the process if it is dropped.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}
