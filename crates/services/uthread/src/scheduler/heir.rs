//! What unithreads leave when they end, and the thread that takes it.
//!
//! A unithread that nobody joins may leave a value where its closure lay, at the end of its stack. Its slot goes to the *heir* then, a thread beside
//! the workers, and not to the pool. The heir does what is to be done with the value, from the slot's memory, and gives the slot back. So no worker
//! waits for what takes long. The scheduler knows neither the value nor what is done: the layer above spawns such unithreads, and runs the heir's thread.
//!
//! What was left counts as live, so the runtime's shutdown waits until the heir has given the slot back and dismissed it.

use crate::ground::error::Error;
use crate::ground::library::Kept;
use crate::ground::os;
use crate::ground::ring::{Kick, Ring};
use crate::scheduler::doze::Doze;
use crate::scheduler::list::{Fifo, Inbox};
use crate::scheduler::pool::Pool;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

/// What the heir shares with the workers.
#[derive(Debug)]
pub(crate) struct Heir {
    inbox: Inbox,
    doze: Doze,
    kick: Arc<Kick>,
    /// What was left and could not be carried out. The heir counts.
    pub(crate) failed: AtomicU64,
    /// Slots that came since the thread last took any; near enough to tell many from few.
    untaken: AtomicU32,
}

impl Heir {
    pub(crate) fn new() -> Result<Heir, Error> {
        Ok(Heir {
            inbox: Inbox::default(),
            doze: Doze::default(),
            kick: Arc::new(Kick::new()?),
            failed: AtomicU64::new(0),
            untaken: AtomicU32::new(0),
        })
    }

    /// Keeps what lies in the heap in its place.
    pub(crate) fn keep(&self) -> std::io::Result<Kept> {
        Kept::all(core::slice::from_ref(&*self.kick))
    }

    /// Prepares the calling thread to be the heir. Its ring, in which it sleeps.
    pub(crate) fn prepare(&self) -> Result<Ring, Error> {
        os::block_signals();
        os::ask_for_short_turns();
        Ring::new(self.kick.clone())
    }

    /// Unithread `index` has ended and left something. Its worker wakes the thread, for several together.
    pub(crate) fn post(&self, pool: &Pool, index: u32) {
        self.inbox.push(pool, index);
        self.untaken.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn untaken(&self) -> u32 {
        self.untaken.load(Ordering::Relaxed)
    }

    pub(crate) fn wake(&self) {
        if self.doze.must_kick() {
            self.kick.kick();
        }
    }

    /// Takes the slots that came. By the heir's thread, as what follows.
    pub(crate) fn take(&self, pool: &Pool, into: &mut Fifo) {
        self.untaken.store(0, Ordering::Relaxed);
        self.inbox.take(pool, into);
    }

    /// Runs `sleep`, which may sleep in the ring of [`Heir::prepare`]: from its beginning on, whoever posts or stops the runtime ends that. It is told
    /// whether nothing has come.
    pub(crate) fn dozing<R>(&self, sleep: impl FnOnce(bool) -> R) -> R {
        self.doze.begin();
        let result = sleep(self.inbox.is_empty());
        self.doze.end();
        result
    }

    /// What the unithread of slot `index`, which was taken here, has left: an `L`, if it was spawned to leave one ([`crate::scheduler::join::spawn_leaving`]).
    pub(crate) fn left<L>(pool: &Pool, index: u32) -> *mut L {
        core::ptr::with_exposed_provenance_mut(pool.unit(index).place.get())
    }
}
