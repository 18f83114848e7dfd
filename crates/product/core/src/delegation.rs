//! Work that one core asks another to do (ScaleSwap §4.5). Only a core itself touches what it owns, so other cores ask
//! it.
//!
//! ```text
//!  asker     post ─▶ push ─▶ looks for the answer, serves its own queue meanwhile ─▶ answered, or cancels
//!                      │                                                               ▲
//!  owner               └─▶ take (all, oldest first) ─▶ begin ─▶ the work ─▶ end ───────┘
//! ```
//!
//! # A queue a core
//!
//! Any thread pushes; one thread at a time takes. A push is one compare-and-swap. Taking is one swap, after which the taker
//! reverses the chain, so work is done in the order in which it came. Nobody looks at a link after its node was given back. Nodes
//! exist beforehand (a [`Task`] of the pool, or another object with a link of its own), so pushing never allocates and never
//! fails.
//!
//! # A task
//!
//! ```text
//!  Free ─claim─▶ Claimed ─post─▶ Posted ─begin─▶ Serving ─end─▶ Done ─answer─▶ Free
//!                                   │                │
//!                                   └────cancel──────┴─▶ Cancelled ─▶ Free   (by the thread that takes it from the queue, or ends it)
//! ```
//!
//! The thread that serves an owner's queue may be stopped at any moment, so no asker depends on it. The asker cancels the task
//! instead, and from then on the task belongs to the server. Both ends are one compare-and-swap on the state. So either the asker
//! has the answer, or the server knows that nobody has it, and takes the work back.

use crate::canary::{Canary, is_planted};
use crate::sync::{AtomicU32, AtomicU64, Ordering, Padded};
use alloc::boxed::Box;

/// Tasks of a core. The core uses one at a time; others may be cancelled and still be in a queue.
pub const TASKS_A_CORE: usize = if cfg!(loom) { 2 } else { 8 };

const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const POSTED: u32 = 2;
const SERVING: u32 = 3;
const DONE: u32 = 4;
const CANCELLED: u32 = 5;

/// The number of a node in a queue; never 0.
pub type Node = u32;

/// The queue of what other cores ask one core for. Many threads push, one takes.
#[derive(Debug)]
pub struct Queue {
    /// The newest node; 0: none.
    newest: AtomicU32,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue::new()
    }
}

impl Queue {
    /// An empty queue.
    pub fn new() -> Queue {
        Queue { newest: AtomicU32::new(0) }
    }

    /// Puts in a node that is in no queue. `link` is the node's own.
    pub fn push(&self, node: Node, link: &AtomicU32) {
        let mut newest = self.newest.load(Ordering::Relaxed);
        loop {
            link.store(newest, Ordering::Relaxed);
            // Release: what the pusher wrote for this node is visible to the thread that takes it (the Acquire in
            // `take`).
            match self.newest.compare_exchange_weak(newest, node, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(seen) => newest = seen,
            }
        }
    }

    /// Whether the queue is empty. Acquire: the caller sees what was done before the last push.
    pub fn is_empty(&self) -> bool {
        self.newest.load(Ordering::Acquire) == 0
    }

    /// Takes all nodes: returns the oldest, from which links lead to the newest (0 ends the chain). One thread at a time.
    pub fn take<'l>(&self, link: impl Fn(Node) -> &'l AtomicU32) -> Node {
        if self.is_empty() {
            return 0;
        }
        let mut node = self.newest.swap(0, Ordering::Acquire);
        let mut newer = 0;
        while node != 0 {
            let older = link(node).load(Ordering::Relaxed);
            link(node).store(newer, Ordering::Relaxed);
            newer = node;
            node = older;
        }
        newer
    }
}

/// One piece of work, of a fixed size.
#[derive(Debug)]
struct Task {
    state: AtomicU32,
    link: AtomicU32,
    request: AtomicU64,
    answer: AtomicU64,
}

/// A task that was posted, in the asker's hands.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked(Node);

impl Asked {
    /// Its number, to be pushed.
    pub fn node(self) -> Node {
        self.0
    }
}

/// The tasks of all cores, allocated at the start.
#[derive(Debug)]
pub struct Tasks {
    all: Box<[Padded<Task>]>,
}

impl Tasks {
    /// Tasks for this many cores.
    pub fn new(cores: usize) -> Tasks {
        let task = || {
            let [state, link] = [FREE, 0].map(AtomicU32::new);
            let [request, answer] = [0, 0].map(AtomicU64::new);
            Padded(Task { state, link, request, answer })
        };
        Tasks { all: (0..cores.max(1) * TASKS_A_CORE).map(|_| task()).collect() }
    }

    /// The highest number of a node.
    pub fn last(&self) -> Node {
        self.all.len() as Node
    }

    fn task(&self, node: Node) -> &Task {
        &self.all[node as usize - 1]
    }

    /// A node's link.
    pub fn link(&self, node: Node) -> &AtomicU32 {
        &self.task(node).link
    }

    /// Posts a task of `core`'s that says `request`; the caller pushes it. `None`: all tasks of the core are in queues
    /// that no thread serves.
    pub fn post(&self, core: usize, request: u64) -> Option<Asked> {
        let first = (core * TASKS_A_CORE) % self.all.len();
        let at = (first..first + TASKS_A_CORE).find(|&at| {
            let state = &self.all[at].state;
            // Acquire: the server is done with it.
            state.load(Ordering::Relaxed) == FREE
                && state.compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })?;
        self.all[at].request.store(request, Ordering::Relaxed);
        self.all[at].state.store(POSTED, Ordering::Release);
        Some(Asked(at as Node + 1))
    }

    /// The answer, if there is one. The task is over then.
    pub fn answer(&self, asked: Asked) -> Option<u64> {
        let task = self.task(asked.0);
        if task.state.load(Ordering::Acquire) != DONE {
            return None;
        }
        let answer = task.answer.load(Ordering::Relaxed);
        task.state.store(FREE, Ordering::Release);
        Some(answer)
    }

    /// The asker stops waiting for the task. Returns the answer if it came just before.
    pub fn cancel(&self, asked: Asked) -> Option<u64> {
        let task = self.task(asked.0);
        for from in [POSTED, SERVING] {
            if task.state.compare_exchange(from, CANCELLED, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return None;
            }
        }
        // The state goes from Posted through Serving to Done, and it was past both.
        self.answer(asked)
    }

    /// The thread that has taken a task from its queue begins it. Returns the request; `None`: the task was cancelled.
    pub fn begin(&self, node: Node) -> Option<u64> {
        let task = self.task(node);
        if task.state.compare_exchange(POSTED, SERVING, Ordering::AcqRel, Ordering::Acquire).is_err() {
            task.state.store(FREE, Ordering::Release);
            return None;
        }
        Some(task.request.load(Ordering::Relaxed))
    }

    /// Answers a task that was begun. False: it was cancelled meanwhile, and no thread receives the answer.
    #[must_use]
    pub fn end(&self, node: Node, answer: u64) -> bool {
        let task = self.task(node);
        task.answer.store(answer, Ordering::Relaxed);
        let told = task.state.compare_exchange(SERVING, DONE, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if !told {
            task.state.store(FREE, Ordering::Release);
        }
        told || is_planted(Canary::Delegation)
    }

    /// In a forked child: no task is under way. The child has a copy of the parent's tasks, and none of the threads that
    /// wait for them.
    pub fn forget(&mut self) {
        self.all.iter().for_each(|task| task.state.store(FREE, Ordering::Relaxed));
    }
}
