//! A connection to one server, on which requests follow each other without waiting.
//!
//! A piece of a write is `HSET` with some pages, and `EXPIRE`, so that no key is without an end. It has one [`Reply`] for both.

use super::super::Shared;
use super::super::wire::{self, FIELD, Head, LINE_MAX, Out, Refusal, decimal};
use super::Op;
use crate::sleep;
use crate::socket::{NO_FD, close, nowhere, receive_now, replace, send_now};
use core::sync::atomic::{AtomicI32, Ordering};
use farshore_core::limits::PAGE_SIZE;
use farshore_sys::fd::Fd;
use rustix::event::PollFlags;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use std::collections::VecDeque;

/// Pages of the longest piece.
const PIECE: u32 = 16;
/// Bytes of what is sent at a time: a piece.
const OUT: usize = PIECE as usize * (PAGE_SIZE + FIELD + 32) + 512;
/// Bytes of replies that are taken at a time.
const INPUT: usize = 4 * LINE_MAX;
/// Most replies that are waited for; and those of a piece, at most.
const SENT_MAX: usize = 512;
const OF_PIECE: usize = 4;
/// How long a replica may take before the master says how many have all, in ms.
const WAIT_MS: &[u8] = b"1000";
const WAIT_BARE_MS: &[u8] = b"1";
/// How long after an answer that was none of them this is asked again, in ns.
const AGAIN_NS: u64 = 100_000_000;

/// A reply that is waited for.
#[derive(Clone, Copy, Debug)]
enum Sent {
    Asking,
    Pages,
    /// The last one of a piece of this write.
    Expire(usize),
    Wait,
}

/// What a server has said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    /// It has a piece of this write.
    Good(usize),
    /// It does not.
    Refused(usize, Refusal),
    /// So many replicas have all that was sent.
    Replicas(i64),
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Pipe {
    fd: AtomicI32,
    node: u8,
    up: bool,
    /// Writes of which something is still to be given.
    line: VecDeque<usize>,
    /// Writes that are here: in line, or given and not ended.
    ops: u32,
    sent: VecDeque<Sent>,
    /// `WAIT` is among them; and when it may be sent again.
    waits: bool,
    wait_ns: u64,
    /// The first refusal of the piece whose replies are coming.
    refusal: Option<Refusal>,
    out: Box<[u8]>,
    out_from: usize,
    out_to: usize,
    /// Replies to what is just being sent; and where its pages end.
    out_replies: usize,
    pages_end: usize,
    input: Box<[u8]>,
    from: usize,
    to: usize,
    /// When a reply came last, or the first of those requests was sent that have no reply.
    heard_ns: u64,
}

impl Pipe {
    /// One that leads nowhere yet.
    pub(super) fn new(shared: &Shared, depth: usize) -> Result<Pipe, Errno> {
        let pipe = Pipe {
            fd: AtomicI32::new(NO_FD),
            node: 0,
            up: false,
            line: VecDeque::with_capacity(depth),
            ops: 0,
            sent: VecDeque::with_capacity(SENT_MAX),
            waits: false,
            wait_ns: 0,
            refusal: None,
            out: vec![0; OUT].into(),
            out_from: 0,
            out_to: 0,
            out_replies: 0,
            pages_end: 0,
            input: vec![0; INPUT].into(),
            from: 0,
            to: 0,
            heard_ns: 0,
        };
        // The number is among those that the program cannot close.
        pipe.put(shared, nowhere()?)?;
        Ok(pipe)
    }

    fn socket(&self) -> BorrowedFd<'_> {
        // SAFETY: ours as long as `self` is there, and open: `new` has put one there.
        unsafe { BorrowedFd::borrow_raw(self.fd.load(Ordering::Relaxed)) }
    }

    /// Puts a socket under our number.
    fn put(&self, shared: &Shared, socket: Fd) -> Result<(), Errno> {
        let before = self.fd.load(Ordering::Relaxed);
        replace(&self.fd, socket)?;
        let now = self.fd.load(Ordering::Relaxed);
        if now == before {
            return Ok(());
        }
        shared.sockets.remove(before);
        if shared.sockets.add(now) { Ok(()) } else { Err(Errno::MFILE) }
    }

    pub(super) fn close(&self, shared: &Shared) {
        shared.sockets.remove(self.fd.load(Ordering::Relaxed));
        close(&self.fd);
    }

    pub(super) fn node(&self) -> u8 {
        self.node
    }

    pub(super) fn is_up(&self) -> bool {
        self.up
    }

    pub(super) fn leads_to(&self, node: u8) -> bool {
        self.up && self.node == node
    }

    /// Whether it may lead elsewhere.
    pub(super) fn is_idle(&self) -> bool {
        self.ops == 0 && self.sent.is_empty() && self.out_from == self.out_to
    }

    /// From now on it leads to `node`, by this connection.
    pub(super) fn lead(&mut self, shared: &Shared, socket: Fd, node: u8) -> Result<(), Errno> {
        self.lose();
        self.put(shared, socket)?;
        (self.up, self.node) = (true, node);
        Ok(())
    }

    /// The connection is of no use any more. Whoever has writes here takes them back.
    pub(super) fn lose(&mut self) {
        if self.up {
            let _ = shutdown(self.socket(), Shutdown::Both);
        }
        self.up = false;
        self.line.clear();
        self.sent.clear();
        (self.ops, self.waits, self.wait_ns, self.refusal) = (0, false, 0, None);
        (self.out_from, self.out_to, self.from, self.to) = (0, 0, 0, 0);
    }

    /// A write comes.
    pub(super) fn take(&mut self, index: usize) {
        self.line.push_back(index);
        self.ops += 1;
    }

    /// The rest of a write is not given.
    pub(super) fn give_no_more(&mut self, index: usize) {
        self.line.retain(|&other| other != index);
    }

    /// A write has left.
    pub(super) fn leave(&mut self) {
        self.ops -= 1;
    }

    /// The next `WAIT` need not be later: the last one's answer was all that can be had.
    pub(super) fn ask_on(&mut self) {
        self.wait_ns = 0;
    }

    /// Whether it has said nothing for so long although it was asked something.
    pub(super) fn is_silent(&self, now: u64, silence_ns: u64) -> bool {
        self.up && !self.sent.is_empty() && now.saturating_sub(self.heard_ns) > silence_ns
    }

    /// When it has something to ask although nothing comes, in ns.
    pub(super) fn due_ns(&self) -> u64 {
        if self.up && self.ops > 0 && self.sent.is_empty() && self.line.is_empty() { self.wait_ns } else { u64::MAX }
    }

    /// What is to be waited for.
    pub(super) fn waits_for(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let more = self.out_from < self.out_to;
        let what = if more { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        (self.up && (more || !self.sent.is_empty())).then(|| (self.socket(), what))
    }

    /// Gives the socket what it takes.
    pub(super) fn push(&mut self, shared: &Shared, ops: &mut [Op]) -> Result<(), Errno> {
        loop {
            while self.out_from < self.out_to {
                match send_now(self.socket(), &self.out[self.out_from..self.out_to]) {
                    Ok(len) => self.out_from += len,
                    Err(Errno::AGAIN) => return Ok(()),
                    Err(errno) => return Err(errno),
                }
            }
            if self.sent.len() + OF_PIECE > SENT_MAX {
                return Ok(());
            }
            let was_quiet = self.sent.is_empty();
            if let Some(&index) = self.line.front() {
                self.give(shared, index, &mut ops[index]);
            } else if self.ops > 0 && !self.waits && shared.is_cluster && sleep::now_ns() >= self.wait_ns {
                let mut out = Out::new(&mut self.out);
                // Where there is none as far as anybody knows, it says at once whether that is so.
                out.request(&[b"WAIT", b"1", if shared.nodes.has_replicas(self.node) { WAIT_MS } else { WAIT_BARE_MS }]);
                (self.out_from, self.out_to) = (0, out.len());
                self.sent.push_back(Sent::Wait);
                (self.waits, self.out_replies) = (true, 1);
            } else {
                return Ok(());
            }
            if was_quiet {
                self.heard_ns = sleep::now_ns();
            }
        }
    }

    /// Makes the next piece of a write.
    fn give(&mut self, shared: &Shared, index: usize, op: &mut Op) {
        let before = self.sent.len();
        let (key, pages) = (op.key(shared.run), (op.count - op.given).min(PIECE));
        let mut out = Out::new(&mut self.out);
        let asking = |out: &mut Out<'_>, sent: &mut VecDeque<Sent>| {
            if op.is_asking() {
                out.request(&[b"ASKING"]);
                sent.push_back(Sent::Asking);
            }
        };
        asking(&mut out, &mut self.sent);
        out.words(2 + 2 * pages as usize);
        out.word(b"HSET");
        out.word(&key.name);
        for n in op.given..op.given + pages {
            // SAFETY: `n` is below `count`, so this is one of the caller's pages.
            let page = unsafe { op.pages.add(n as usize) };
            // SAFETY: the caller's pages stay readable, and as they are, until the completion is reaped.
            let page = unsafe { &*page };
            out.word(&shared.fields.name(op.first.number() + u64::from(n)));
            out.word(&page.0);
        }
        self.sent.push_back(Sent::Pages);
        self.pages_end = out.len();
        asking(&mut out, &mut self.sent);
        let mut text = [0; 20];
        out.request(&[b"EXPIRE", &key.name, decimal(shared.expire_s, &mut text)]);
        self.sent.push_back(Sent::Expire(index));
        (self.out_from, self.out_to, self.out_replies) = (0, out.len(), self.sent.len() - before);
        op.given += pages;
        op.open += 1;
        if op.given == op.count {
            self.line.pop_front();
        }
    }

    /// Takes bytes that have come. Returns whether there were any.
    pub(super) fn fill(&mut self) -> Result<bool, Errno> {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        } else if self.to == INPUT {
            self.input.copy_within(self.from.., 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        // SAFETY: as in `socket`, which would borrow all of `self`.
        let socket = unsafe { BorrowedFd::borrow_raw(self.fd.load(Ordering::Relaxed)) };
        match receive_now(socket, &mut self.input[self.to..]) {
            Ok(len) => {
                self.to += len;
                Ok(true)
            }
            Err(Errno::AGAIN) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// The next reply among the bytes that have come.
    pub(super) fn reply(&mut self) -> Result<Option<Reply>, Errno> {
        loop {
            let there = &self.input[self.from..self.to];
            let Some(len) = there.iter().position(|&byte| byte == b'\n') else {
                return if there.len() > LINE_MAX { Err(Errno::PROTO) } else { Ok(None) };
            };
            let line = there[..len].strip_suffix(b"\r").ok_or(Errno::PROTO)?;
            let head = wire::head(line).map_err(|_| Errno::PROTO)?;
            self.from += len + 1;
            // Not each byte counts: one that says a byte now and then is silent, too.
            self.heard_ns = sleep::now_ns();
            // Nothing is answered that was not asked, and sent whole.
            let whole = match self.sent.front() {
                Some(Sent::Asking) => 0,
                Some(Sent::Pages) => self.pages_end,
                _ => self.out_to,
            };
            if self.sent.len() <= self.out_replies && self.out_from < whole {
                return Err(Errno::PROTO);
            }
            let sent = self.sent.pop_front().ok_or(Errno::PROTO)?;
            match (sent, head) {
                (Sent::Wait, Head::Number(count)) => {
                    self.waits = false;
                    if count <= 0 {
                        self.wait_ns = sleep::now_ns() + AGAIN_NS;
                    }
                    return Ok(Some(Reply::Replicas(count.max(0))));
                }
                // It is no master any more.
                (Sent::Wait, _) => return Err(Errno::PROTO),
                (Sent::Asking, Head::Simple) | (Sent::Pages, Head::Number(_)) => {}
                (Sent::Expire(_), Head::Number(1)) => {}
                // The key went elsewhere in between.
                (Sent::Expire(_), Head::Number(0)) => _ = self.refusal.get_or_insert(Refusal::Later),
                (_, Head::Error(refusal)) => _ = self.refusal.get_or_insert(refusal),
                _ => return Err(Errno::PROTO),
            }
            if let Sent::Expire(index) = sent {
                return Ok(Some(match self.refusal.take() {
                    Some(refusal) => Reply::Refused(index, refusal),
                    None => Reply::Good(index),
                }));
            }
        }
    }
}
