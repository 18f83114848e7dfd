//! The way to a runtime from outside.

use crate::ground::error::SpawnError;
use crate::scheduler::join::{self, JoinHandle};
use crate::scheduler::record::Breakdown;
use crate::scheduler::shared::Shared;
use core::sync::atomic::Ordering;
use std::sync::Arc;

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
        self.shared.live()
    }

    /// Unithreads that have panicked.
    pub fn panics(&self) -> u64 {
        self.shared.panics()
    }

    /// Pages for which unithreads have waited so far while others could run. 0 without far memory, and where all wait in place.
    pub fn pages_waited_for(&self) -> u64 {
        (0..self.shared.config.workers).map(|worker| self.shared.dispatch.desk(worker).parked.load(Ordering::Relaxed)).sum()
    }

    /// What the time of the last requests went to, once the runtime has ended; while it runs, a record may be half written. `None`: `Config::breakdown` is 0.
    pub fn breakdown(&self) -> Option<Breakdown> {
        self.shared.stamps.as_ref().map(|stamps| stamps.breakdown())
    }

    /// Unithreads that there were at most at a time: their stacks take RAM.
    pub fn unithreads_touched(&self) -> u32 {
        self.shared.pool.used()
    }
}
