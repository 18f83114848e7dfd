//! Writes over connections that one evictor has for itself.
//!
//! # Life of a write
//!
//! ```text
//! Free ─start_write─▶ Waiting ─▶ Piped: given to a pipe, a piece at a time ─▶ each piece answered ─▶ a replica has it ─▶ Ended ─reap─▶ Free
//!                        ▲         │                                              │
//!                        ├─────────┤ the connection is lost: its names are tainted │
//!                        └─────────┴──────── a server refuses: another has it, or not now
//! ```
//!
//! A write is within an extent, so all of it is for one server. When a part of it is refused or lost, all of it is sent again: the bytes are the same.
//!
//! # Pipes
//!
//! A *pipe* ([`Pipe`]) is a connection to one server. There are a few, which keep the numbers of their descriptors and go where they are needed. Replies come in
//! the order of the requests. So a pipe remembers what it has sent.
//!
//! # The replica
//!
//! In a Cluster `WAIT 1` follows when nothing more is to be given. Its answer counts for all that was sent before. Since replies come in
//! order, those writes are the ones whose pieces have all been given and answered when it comes. If no replica has answered within a second, the Cluster is asked whether there is one.
//! It has to say for some seconds that there is none ([`is_bare`](super::nodes::Nodes::is_bare)): a master that has just taken another's place has none for a moment, and who believed that would give pages to it alone for as long as nobody asks again.

mod pipe;

use super::Shared;
use super::wire::{self, Key, Refusal};
use crate::nbd::give_up_ns;
use crate::sleep;
use farshore_core::limits::EXTENT_SLOTS;
use farshore_core::seams::{IoError, PageBuf, WriteQueue};
use farshore_core::word::Slot;
use pipe::{Pipe, Reply};
use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;
use std::sync::Arc;

/// Most pipes of a queue.
const PIPES_MAX: usize = 8;
/// Until a write is tried again: that was refused for now; that was sent to and fro; for which there was no pipe, in ns.
const LATER_NS: u64 = 50_000_000;
const HOP_NS: u64 = 10_000_000;
const PIPE_NS: u64 = 1_000_000;
/// A sleeper looks around after so long, in ns.
const LOOK_NS: u64 = 1_000_000_000;
/// A placeholder until a write puts in its own slot.
const ANY: Slot = Slot::new(1).unwrap();

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    /// For its time, or for a pipe.
    Waiting,
    /// With this pipe.
    Piped(usize),
    Ended(Result<(), IoError>),
}

/// What is done with a write when each of its pieces was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum After {
    Fine,
    /// Sent to this server, which is told that it was asked for (`ASKING`).
    Go(u8, bool),
    Later,
    End(IoError),
}

#[derive(Clone, Copy, Debug)]
struct Op {
    state: State,
    tag: u64,
    first: Slot,
    pages: *const PageBuf,
    count: u32,
    /// Pages that were given to the pipe.
    given: u32,
    /// Pieces that were given and are not answered.
    open: u32,
    after: After,
    /// Where it is sent; `None`: to whoever has its hash slot.
    to: Option<(u8, bool)>,
    /// Not before this.
    due_ns: u64,
    /// When it went wrong first; 0: it has not.
    failing_ns: u64,
    hops: u32,
}

impl Op {
    fn key(&self, run: u64) -> Key {
        wire::key(run, (self.first.number() / EXTENT_SLOTS as u64) as u32)
    }

    fn is_asking(&self) -> bool {
        matches!(self.to, Some((_, true)))
    }

    /// Whether all that is to be sent was answered.
    fn is_answered(&self) -> bool {
        self.open == 0 && (self.given == self.count || self.after != After::Fine)
    }
}

/// Writes to a [`RedisSpace`](super::RedisSpace).
#[derive(Debug)]
pub struct RedisQueue {
    shared: Arc<Shared>,
    ops: Box<[Op]>,
    free: Vec<usize>,
    pipes: Box<[Pipe]>,
    waiting: usize,
    ended: usize,
}

// SAFETY: the pointers in `ops` are to pages that may be read from any thread until their completion is reaped: `start_write`'s
// contract.
unsafe impl Send for RedisQueue {}

impl RedisQueue {
    pub(super) fn new(shared: &Arc<Shared>, depth: u32) -> Result<RedisQueue, IoError> {
        let depth = depth.clamp(1, 4096) as usize;
        let op = Op {
            state: State::Free,
            tag: 0,
            first: ANY,
            pages: core::ptr::null(),
            count: 0,
            given: 0,
            open: 0,
            after: After::Fine,
            to: None,
            due_ns: 0,
            failing_ns: 0,
            hops: 0,
        };
        let masters = if shared.is_cluster { shared.nodes.masters().map_or(PIPES_MAX, |all| all.len() + 1) } else { 1 };
        let pipe = |_| Pipe::new(shared, depth).map_err(|errno| IoError::Device(errno.raw_os_error()));
        Ok(RedisQueue {
            shared: Arc::clone(shared),
            ops: vec![op; depth].into(),
            free: (0..depth).rev().collect(),
            pipes: (0..masters.min(PIPES_MAX)).map(pipe).collect::<Result<_, _>>()?,
            waiting: 0,
            ended: 0,
        })
    }

    fn end(&mut self, index: usize, result: Result<(), IoError>) {
        self.ops[index].state = State::Ended(result);
        self.ended += 1;
    }

    /// A write waits, for its time or for a pipe.
    fn hold(&mut self, index: usize, to: Option<(u8, bool)>, due_ns: u64) {
        let op = &mut self.ops[index];
        (op.state, op.to, op.due_ns) = (State::Waiting, to, due_ns);
        (op.given, op.open, op.after) = (0, 0, After::Fine);
        self.waiting += 1;
    }

    /// A write has gone wrong. Returns whether it has for too long.
    fn is_hopeless(&mut self, index: usize) -> bool {
        let (op, now) = (&mut self.ops[index], sleep::now_ns());
        if op.failing_ns == 0 {
            op.failing_ns = now;
        }
        now.saturating_sub(op.failing_ns) >= give_up_ns()
    }

    /// Gives writes whose time has come to pipes.
    fn assign(&mut self) {
        for index in 0..self.ops.len() {
            if self.waiting == 0 {
                return;
            }
            let op = self.ops[index];
            if op.state != State::Waiting || sleep::now_ns() < op.due_ns {
                continue;
            }
            let owner = || self.shared.nodes.owner(op.key(self.shared.run).hash_slot);
            let pipe = op.to.map(|(node, _)| node).or_else(owner).ok_or(Errno::HOSTUNREACH).and_then(|node| self.pipe_to(node));
            match pipe {
                Ok(Some(at)) => {
                    self.waiting -= 1;
                    self.ops[index].state = State::Piped(at);
                    self.pipes[at].take(index);
                }
                // Each pipe has something to do elsewhere.
                Ok(None) => self.ops[index].due_ns = sleep::now_ns() + PIPE_NS,
                Err(errno) => {
                    // The one that it was sent to may be gone: asks who has it now.
                    (self.ops[index].to, self.ops[index].due_ns) = (None, sleep::now_ns() + LATER_NS);
                    if self.is_hopeless(index) {
                        self.waiting -= 1;
                        let why = if errno == Errno::ACCESS { errno } else { Errno::TIMEDOUT };
                        self.end(index, Err(IoError::Device(why.raw_os_error())));
                    } else {
                        self.shared.refresh();
                    }
                }
            }
        }
    }

    /// A pipe that leads to a server; `None`: there is none now.
    fn pipe_to(&mut self, node: u8) -> Result<Option<usize>, Errno> {
        if let Some(at) = self.pipes.iter().position(|pipe| pipe.leads_to(node)) {
            return Ok(Some(at));
        }
        let is_free = |wanted: bool| self.pipes.iter().position(|pipe| pipe.is_idle() && pipe.is_up() != wanted);
        // One that leads nowhere, before one that leads elsewhere.
        let Some(at) = is_free(true).or_else(|| is_free(false)) else { return Ok(None) };
        let made = self.shared.connect(node).and_then(|socket| self.pipes[at].lead(&self.shared, socket, node));
        match made {
            Ok(()) => Ok(Some(at)),
            Err(errno) => {
                self.shared.nodes.note_down(node);
                Err(errno)
            }
        }
    }

    /// What a server has said to one of the requests of a pipe.
    fn answered(&mut self, at: usize, reply: Reply) {
        match reply {
            Reply::Good(index) => self.ops[index].open -= 1,
            Reply::Refused(index, refusal) => {
                let after = match refusal {
                    Refusal::Moved(..) | Refusal::Ask(_) if !self.shared.is_cluster => After::End(super::ask::ASTRAY),
                    Refusal::Moved(hash_slot, to) => match self.shared.nodes.at(to, self.pipes[at].node()) {
                        Some(to) => {
                            self.shared.nodes.set_owner(hash_slot, to);
                            After::Go(to, false)
                        }
                        None => After::Later,
                    },
                    Refusal::Ask(to) => {
                        self.shared.nodes.at(to, self.pipes[at].node()).map_or(After::Later, |to| After::Go(to, true))
                    }
                    Refusal::Later => After::Later,
                    Refusal::Full => After::End(IoError::Full),
                    Refusal::Never(errno) => After::End(IoError::Device(errno.raw_os_error())),
                };
                let op = &mut self.ops[index];
                op.open -= 1;
                if op.after == After::Fine {
                    op.after = after;
                }
                self.pipes[at].give_no_more(index);
            }
            Reply::Replicas(0) => {
                self.shared.refresh();
                if self.shared.nodes.is_bare(self.pipes[at].node(), sleep::now_ns()) {
                    self.pipes[at].ask_on();
                    self.confirm(at);
                } else {
                    self.leave_hopeless(at);
                }
                return;
            }
            Reply::Replicas(_) => return self.confirm(at),
        }
        let (Reply::Good(index) | Reply::Refused(index, _)) = reply else { return };
        if self.ops[index].is_answered() {
            self.settle(at, index);
        }
    }

    /// Each piece of a write was answered.
    fn settle(&mut self, at: usize, index: usize) {
        let (op, now) = (self.ops[index], sleep::now_ns());
        match op.after {
            // It waits for the replica.
            After::Fine if self.shared.is_cluster => return,
            After::Fine => self.end(index, Ok(())),
            After::End(why) => self.end(index, Err(why)),
            After::Go(..) | After::Later if self.is_hopeless(index) => {
                self.end(index, Err(IoError::Device(Errno::TIMEDOUT.raw_os_error())));
            }
            After::Go(node, asking) => {
                self.ops[index].hops += 1;
                self.hold(index, Some((node, asking)), if op.hops < super::ask::AT_ONCE { now } else { now + HOP_NS });
            }
            After::Later => {
                self.shared.refresh();
                self.hold(index, None, now + LATER_NS);
            }
        }
        self.pipes[at].leave();
    }

    /// A replica has all that was given to the pipe and answered; or there is none.
    fn confirm(&mut self, at: usize) {
        for index in 0..self.ops.len() {
            let op = &self.ops[index];
            if op.state == State::Piped(at) && op.is_answered() && op.after == After::Fine {
                self.end(index, Ok(()));
                self.pipes[at].leave();
            }
        }
    }

    /// No replica has what was given to the pipe, although there is one: those that have waited too long fail.
    fn leave_hopeless(&mut self, at: usize) {
        for index in 0..self.ops.len() {
            let op = self.ops[index];
            if op.state == State::Piped(at) && op.is_answered() && self.is_hopeless(index) {
                self.end(index, Err(IoError::Device(Errno::TIMEDOUT.raw_os_error())));
                self.pipes[at].leave();
            }
        }
    }

    /// A connection is lost: what was sent may still be done, and is sent again.
    fn lose(&mut self, at: usize) {
        self.shared.nodes.note_down(self.pipes[at].node());
        self.pipes[at].lose();
        let now = sleep::now_ns();
        for index in 0..self.ops.len() {
            let op = self.ops[index];
            if op.state != State::Piped(at) {
                continue;
            }
            if op.given > 0 {
                self.shared.fields.taint(op.first.number(), op.given);
            }
            if self.is_hopeless(index) {
                self.end(index, Err(IoError::Device(Errno::TIMEDOUT.raw_os_error())));
            } else {
                self.hold(index, None, now);
            }
        }
        self.shared.refresh();
    }

    /// Sends and takes what there is, once.
    fn turn(&mut self) {
        self.assign();
        for at in 0..self.pipes.len() {
            if !self.pipes[at].is_up() {
                continue;
            }
            if self.pipes[at].push(&self.shared, &mut self.ops).is_err() || self.pull(at).is_err() {
                self.lose(at);
            }
        }
        self.assign();
        for at in 0..self.pipes.len() {
            if self.pipes[at].is_up() && self.pipes[at].push(&self.shared, &mut self.ops).is_err() {
                self.lose(at);
            }
        }
    }

    fn pull(&mut self, at: usize) -> Result<(), Errno> {
        while self.pipes[at].fill()? {
            self.shared.nodes.note_up(self.pipes[at].node());
            while let Some(reply) = self.pipes[at].reply()? {
                self.answered(at, reply);
            }
        }
        Ok(())
    }

    fn deliver(&mut self, done: &mut dyn FnMut(u64, Result<(), IoError>)) -> bool {
        let mut delivered = false;
        let mut index = 0;
        while self.ended > 0 && index < self.ops.len() {
            let op = &mut self.ops[index];
            if let State::Ended(result) = op.state {
                op.state = State::Free;
                let tag = op.tag;
                self.ended -= 1;
                self.free.push(index);
                delivered = true;
                done(tag, result);
            }
            index += 1;
        }
        delivered
    }

    /// Waits until a pipe has or takes bytes, or the next write's time has come.
    fn sleep(&mut self, until: u64) {
        let now = sleep::now_ns();
        let silence_ns = self.shared.silence_ns();
        for at in 0..self.pipes.len() {
            if self.pipes[at].is_silent(now, silence_ns) {
                return self.lose(at);
            }
        }
        let due = self.ops.iter().filter(|op| op.state == State::Waiting).map(|op| op.due_ns).min().unwrap_or(u64::MAX);
        let due = self.pipes.iter().map(Pipe::due_ns).fold(due, u64::min);
        let time = until.min(due).saturating_sub(now).min(LOOK_NS);
        let mut busy = self.pipes.iter().filter_map(|pipe| pipe.waits_for());
        let Some(first) = busy.next() else { return sleep::nap(time.max(1_000)) };
        let of = |(socket, what)| PollFd::from_borrowed_fd(socket, what);
        let mut count = 1;
        let mut polled: [PollFd<'_>; PIPES_MAX] = core::array::from_fn(|n| {
            if n == 0 {
                return of(first);
            }
            let next = busy.next();
            count += usize::from(next.is_some());
            of(next.unwrap_or(first))
        });
        let time = Timespec { tv_sec: (time / 1_000_000_000) as i64, tv_nsec: (time % 1_000_000_000) as _ };
        // Whatever it says: the pipes are looked at.
        let _ = poll(&mut polled[..count], Some(&time));
    }

    fn reap_until(&mut self, until: u64, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        loop {
            self.turn();
            if self.deliver(done) || self.in_flight() == 0 || sleep::now_ns() >= until {
                return;
            }
            self.sleep(until);
        }
    }
}

impl WriteQueue for RedisQueue {
    unsafe fn start_write(&mut self, first: Slot, pages: *const PageBuf, count: u32, tag: u64) -> Result<(), ()> {
        let index = self.free.pop().ok_or(())?;
        let op = &mut self.ops[index];
        (op.tag, op.first, op.pages, op.count) = (tag, first, pages, count);
        (op.failing_ns, op.hops) = (0, 0);
        if count == 0 {
            self.end(index, Ok(()));
        } else if let Err(why) = self.shared.fields.prepare(first.number(), count) {
            self.end(index, Err(why));
        } else {
            self.hold(index, None, 0);
            self.turn();
        }
        Ok(())
    }

    fn reap(&mut self, wait: bool, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        self.reap_until(if wait { u64::MAX } else { 0 }, done);
    }

    fn reap_within(&mut self, ns: u64, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        self.reap_until(sleep::now_ns().saturating_add(ns), done);
    }

    fn in_flight(&self) -> u32 {
        (self.ops.len() - self.free.len()) as u32
    }
}

impl Drop for RedisQueue {
    fn drop(&mut self) {
        // What was sent and not acknowledged may be made at any time.
        for op in self.ops.iter().filter(|op| matches!(op.state, State::Piped(_))) {
            self.shared.fields.taint(op.first.number(), op.given);
        }
        self.pipes.iter().for_each(|pipe| pipe.close(&self.shared));
    }
}
