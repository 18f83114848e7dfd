//! One queue of new unithreads to idle workers, first come first served (Adios, section 3.4, algorithm 1).
//!
//! The dispatcher is a role, not a thread: the thread that has news plays it, be it one who spawns or a worker that got idle. `news` counts what was not looked
//! at yet. The thread that raises it from 0 is the dispatcher; one that raises it further goes on with its own work, since the dispatcher looks again until nothing
//! came in between:
//!
//! ```text
//!  spawn:   incoming ◀ unithread ─▶ news + 1 ┬ was 0 ─▶ pass ─▶ news unchanged? ─ yes ─▶ 0
//!  worker:  idle ◀ 1 ─────────────▶ news + 1 ┘          ▲────────── no ─┘
//!                                            └ was not 0 ─▶ someone else passes
//! ```
//!
//! A pass moves unithreads in the order in which they came to idle workers, those first that have the fewest fetches under way. A worker that was
//! given one is not idle until it says so again. On a machine with few cores this spares two switches of threads for each request, which a dispatcher
//! with a thread of its own would cost. Nobody waits for the dispatcher; the fault path never comes here.

use crate::scheduler::list::{Fifo, Inbox, Links};
use core::cell::UnsafeCell;
use farshore_core::sync::{AtomicU32, AtomicU64, Ordering, Padded};

/// Workers at most.
pub const WORKERS_MAX: usize = 64;

/// Which of several idle workers gets the next unithread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// The one with the fewest fetches under way; of several, the one whose turn it is.
    #[default]
    FewestFetches,
    /// The one whose turn it is.
    RoundRobin,
}

/// What the dispatcher and one worker share.
#[derive(Debug, Default)]
pub struct Desk {
    /// 1: the worker asks for a new unithread.
    idle: AtomicU32,
    /// New unithreads for it.
    pub fresh: Inbox,
    /// Fetches of its unithreads that are under way.
    pub fetches: AtomicU32,
    /// Fetches for which unithreads have left their worker to others. Written by the worker.
    pub parked: AtomicU64,
}

/// The queue.
#[derive(Debug)]
pub struct Dispatch {
    policy: Policy,
    news: AtomicU32,
    incoming: Inbox,
    /// Unithreads in the queue, `incoming` or `pending`.
    waiting: AtomicU32,
    desks: Vec<Padded<Desk>>,
    turn: UnsafeCell<Turn>,
}

// SAFETY: `turn` is the dispatcher's alone, and `news` lets one thread be the dispatcher at a time.
unsafe impl Sync for Dispatch {}

/// What the dispatcher remembers.
#[derive(Debug, Default)]
struct Turn {
    pending: Fifo,
    /// The worker whose turn it is.
    cursor: usize,
}

impl Dispatch {
    /// A queue to `workers` workers, 1 to [`WORKERS_MAX`].
    pub fn new(workers: usize, policy: Policy) -> Dispatch {
        assert!((1..=WORKERS_MAX).contains(&workers), "workers: 1 to {WORKERS_MAX}, not {workers}");
        Dispatch {
            policy,
            news: AtomicU32::new(0),
            incoming: Inbox::default(),
            waiting: AtomicU32::new(0),
            desks: (0..workers).map(|_| Padded::default()).collect(),
            turn: UnsafeCell::default(),
        }
    }

    /// Keeps what lies in the heap in its place.
    #[cfg(not(loom))]
    pub(crate) fn keep(&self) -> std::io::Result<crate::ground::library::Kept> {
        crate::ground::library::Kept::all(&self.desks)
    }

    /// What worker `worker` and the dispatcher share.
    pub fn desk(&self, worker: usize) -> &Desk {
        &self.desks[worker]
    }

    /// Whether there is something in the queue, as far as this thread has heard.
    pub fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Puts a new unithread into the queue. `given(worker)` is called for each worker that something was given to, and wakes it.
    pub fn submit(&self, links: &impl Links, index: u32, given: impl FnMut(usize)) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.incoming.push(links, index);
        self.dispatch(links, given);
    }

    /// Worker `worker` has nothing to do but what was only yielded.
    pub fn ask(&self, links: &impl Links, worker: usize, given: impl FnMut(usize)) {
        // The order comes from `news`, in `dispatch`.
        self.desks[worker].idle.store(1, Ordering::Relaxed);
        self.dispatch(links, given);
    }

    /// Worker `worker` has something to do after all. What it was given meanwhile stays given.
    pub fn withdraw(&self, worker: usize) {
        self.desks[worker].idle.store(0, Ordering::Relaxed);
    }

    fn dispatch(&self, links: &impl Links, mut given: impl FnMut(usize)) {
        // AcqRel, here and below: all news are steps of one word, so the dispatcher sees what came before each of them, and the next one what this one did.
        let mut seen = self.news.fetch_add(1, Ordering::AcqRel) + 1;
        if seen != 1 {
            return;
        }
        loop {
            let mut told = self.pass(links);
            while told != 0 {
                given(told.trailing_zeros() as usize);
                told &= told - 1;
            }
            match self.news.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// One pass of algorithm 1. Returns the workers that something was given to, a bit each.
    fn pass(&self, links: &impl Links) -> u64 {
        // SAFETY: this thread is the dispatcher (`news`).
        let turn = unsafe { &mut *self.turn.get() };
        self.incoming.take(links, &mut turn.pending);
        let mut told = 0;
        while !turn.pending.is_empty() {
            let Some(worker) = self.choose(turn.cursor) else { break };
            // A worker that withdraws at this moment gets it all the same, and comes to it.
            self.desks[worker].idle.store(0, Ordering::Relaxed);
            let Some(index) = turn.pending.pop(links) else { break };
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.desks[worker].fresh.push(links, index);
            turn.cursor = (worker + 1) % self.desks.len();
            told |= 1 << worker;
        }
        told
    }

    /// The idle worker that is next, going round from `cursor`.
    fn choose(&self, cursor: usize) -> Option<usize> {
        let workers = self.desks.len();
        let idle = (0..workers).map(|i| (cursor + i) % workers).filter(|&w| self.desks[w].idle.load(Ordering::Relaxed) == 1);
        match self.policy {
            // `min_by_key` gives the first of several.
            Policy::FewestFetches => idle.min_by_key(|&w| self.desks[w].fetches.load(Ordering::Relaxed)),
            Policy::RoundRobin => idle.into_iter().next(),
        }
    }
}
