//! The runtime: how it begins and ends. Here the scheduler and the services meet: the heir's thread sends replies, and workers are attached to the library.
//!
//! # The end
//!
//! [`Runtime::shutdown`] is structured: it waits until every unithread has ended, so that all their destructors have run.
//!
//! 1. Nothing is spawned any more. Each worker ends the waits of its unithreads that say so in their type (`sleep`, `recv`, `send`:
//!    [`crate::Stopped`]) and cancels their requests in the ring (`io`, `net`: `ECANCELED`), once; waits that begin later end at once. Waits for fetches and
//!    for other unithreads end by themselves.
//! 2. The last unithread that ends, or the last slot that the heir gives back, wakes the threads that wait for it ([`crate::lifetime`]).
//! 3. Workers end then, and their threads are joined.

use crate::ground::error::{Error, SpawnError};
use crate::ground::library::Joined;
use crate::ground::os;
use crate::ground::ring::Ring;
use crate::scheduler::config::{Config, Panics, WaitMode};
use crate::scheduler::dispatch::WORKERS_MAX;
use crate::scheduler::handle::Handle;
use crate::scheduler::join::JoinHandle;
use crate::scheduler::pool::{Pool, Shape};
use crate::scheduler::shared::Shared;
use crate::scheduler::{overflow, worker};
use crate::services::{far, request};
use core::time::Duration;
use std::sync::{Arc, mpsc};
use std::thread;

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
        far::text::find();
        worker::forget_in_children();
        overflow::watch();
        let shared = Arc::new(Shared::new(config, pool, joined)?);
        shared.keep()?;
        // Dropped on an error below, it takes the threads down that were started.
        let mut runtime = Runtime { handle: Handle { shared: shared.clone() }, threads: Vec::new() };
        for number in 0..shared.config.workers {
            let core = cores[number % cores.len()];
            let work = move |shared: Arc<Shared>, ring| worker::run(shared, number, ring, far::attach);
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
        let deadline = time.map(|time| os::now().saturating_add(time.as_nanos() as u64));
        if let Err(left) = shared.stop(deadline) {
            self.threads.clear();
            return Err(Error::NotEnded(left));
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
