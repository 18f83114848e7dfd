//! What all threads of a runtime share.

use crate::ground::error::{Error, SpawnError};
use crate::ground::library::{Joined, Kept};
use crate::ground::os::{self, Inherited};
use crate::ground::own::Here;
use crate::ground::ring::Kick;
use crate::scheduler::config::{Config, Panics};
use crate::scheduler::dispatch::Dispatch;
use crate::scheduler::doze::Doze;
use crate::scheduler::heir::Heir;
use crate::scheduler::lifetime::Lifetime;
use crate::scheduler::list::Inbox;
use crate::scheduler::pool::Pool;
use crate::scheduler::stamps::Stamps;
use crate::scheduler::wait::{Complete, Token};
use core::sync::atomic::{AtomicU64, Ordering};
use farshore_core::sync::Padded;
use std::sync::{Arc, OnceLock};

/// What others reach of a worker.
#[derive(Debug)]
pub(crate) struct Side {
    /// Its unithreads whose waits were completed by others.
    pub(crate) inbox: Inbox,
    pub(crate) doze: Doze,
    pub(crate) kick: Arc<Kick>,
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
    /// The library, if there is one that unithreads are switched away for.
    pub(crate) joined: Option<Joined>,
    /// Time stamps of requests, if they are asked for.
    pub(crate) stamps: Option<Stamps>,
}

impl Shared {
    /// For the calling thread's process. It is kept where it is by [`Shared::keep`], once it has its place.
    pub(crate) fn new(config: Config, pool: Pool, joined: Option<Joined>) -> Result<Shared, Error> {
        let side = || Ok(Padded(Side { inbox: Inbox::default(), doze: Doze::default(), kick: Arc::new(Kick::new()?) }));
        let stamps =
            (config.breakdown > 0).then(|| Stamps::new(config.unithreads, config.workers, config.breakdown)).transpose()?;
        Ok(Shared {
            dispatch: Dispatch::new(config.workers, config.policy),
            sides: (0..config.workers).map(|_| side()).collect::<Result<_, Error>>()?,
            pool,
            heir: Heir::new()?,
            config,
            lifetime: Lifetime::default(),
            panics: AtomicU64::new(0),
            before: Inherited::now(),
            stamps,
            here: Here::new()?,
            kept: OnceLock::new(),
            joined,
        })
    }

    /// Keeps what lies in the heap in its place: see `ground/library.rs`.
    pub(crate) fn keep(&self) -> Result<(), Error> {
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

    /// `Config::slice` in ns.
    pub(crate) fn slice_ns(&self) -> u64 {
        u64::try_from(self.config.slice.as_nanos()).unwrap_or(u64::MAX)
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
            Complete::Resume => {
                if let Some(stamps) = &self.stamps {
                    stamps.ready(token.index());
                }
                self.side(home).inbox.push(&self.pool, token.index());
            }
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
            os::futex_wake(self.lifetime.word());
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

    /// Unithreads that have panicked.
    pub(crate) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Unithreads that were spawned and have not ended, and slots that the heir has.
    pub(crate) fn live(&self) -> u32 {
        self.lifetime.live()
    }

    pub(crate) fn wake_all(&self) {
        (0..self.sides.len()).for_each(|worker| self.wake(worker));
        self.heir.wake();
    }

    /// Nothing is spawned any more. Waits until nothing lives, until `deadline` of [`os::now`] at most: so many are left then.
    pub(crate) fn stop(&self, deadline: Option<u64>) -> Result<(), u32> {
        self.lifetime.stop();
        self.wake_all();
        loop {
            let (seen, left) = (self.lifetime.word().load(Ordering::Acquire), self.lifetime.live());
            if left == 0 {
                return Ok(());
            }
            let rest = deadline.map(|deadline| deadline.saturating_sub(os::now()));
            if rest == Some(0) {
                return Err(left);
            }
            os::futex_wait(self.lifetime.word(), seen, rest);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // While it is still there.
        drop(self.kept.take());
    }
}
