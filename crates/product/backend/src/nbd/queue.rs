//! Writes over a connection that one evictor has for itself.
//!
//! # Life of a write
//!
//! ```text
//! Free ─start_write─▶ in line ─▶ sent, a piece at a time ─▶ acknowledged, the next piece in line … ─▶ Ended ─reap─▶ Free
//!                        ▲              │
//!                        └── the connection is lost: its places are tainted, and the piece is sent again
//! ```
//!
//! A write is a piece unless some of its places were moved ([`super::places`]). Pieces wait in `line` and go out in that order, as
//! fast as the socket takes them; the server acknowledges them in any order. The caller's pages stay as they are until the write
//! has ended, so the socket is given them as they lie.
//!
//! Without a connection the queue makes one, again and again. After a time ([`set_patience`](super::set_patience)) its writes end with an error, and
//! the engine keeps their pages.

use super::Shared;
use super::wire::{self, Command, REPLY, REQUEST};
use crate::sleep;
use crate::socket::{NO_FD, close, nowhere, ready, receive_now, replace, send_now};
use core::sync::atomic::{AtomicI32, Ordering};
use farshore_core::limits::PAGE_SIZE;
use farshore_core::seams::{IoError, PageBuf, WriteQueue};
use farshore_core::word::Slot;
use farshore_sys::fd::Fd;
use rustix::event::PollFlags;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;

/// Between two tries to make a connection, in ns.
const RETRY_NS: u64 = 100_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    /// In line, or sent.
    Started,
    Ended(Result<(), IoError>),
}

#[derive(Clone, Copy, Debug)]
struct Op {
    state: State,
    tag: u64,
    first: Slot,
    pages: *const PageBuf,
    count: u32,
    /// Pages that were acknowledged.
    done: u32,
    /// Pages of the piece that is in line or sent.
    piece: u32,
    /// How many times the place was used; part of the cookie.
    life: u32,
    /// Whether bytes of the piece were given to the socket.
    sent: bool,
}

/// What the socket is in the middle of taking.
#[derive(Debug)]
struct Sending {
    index: usize,
    head: [u8; REQUEST],
    /// Bytes of head and pages that it has taken.
    taken: usize,
}

/// Writes to an [`NbdSpace`](super::NbdSpace).
#[derive(Debug)]
pub struct NbdQueue {
    shared: Arc<Shared>,
    fd: AtomicI32,
    up: bool,
    ops: Box<[Op]>,
    free: Vec<usize>,
    line: VecDeque<usize>,
    sending: Option<Sending>,
    /// A reply's head, as far as it has come.
    reply: [u8; REPLY],
    got: usize,
    ended: usize,
    /// When bytes came last, or the first write of those under way was started.
    heard_ns: u64,
    retry_ns: u64,
    down_ns: u64,
    /// When a connection was lost first of those since the last acknowledgement; 0: none was.
    lost_ns: u64,
}

// SAFETY: the pointers in `ops` are to pages that may be read from any thread until their completion is reaped: `start_write`'s
// contract.
unsafe impl Send for NbdQueue {}

impl NbdQueue {
    pub(super) fn new(shared: &Arc<Shared>, depth: u32) -> Result<NbdQueue, IoError> {
        let depth = depth.clamp(1, 4096) as usize;
        let op = Op {
            state: State::Free,
            tag: 0,
            first: super::ANY,
            pages: core::ptr::null(),
            count: 0,
            done: 0,
            piece: 0,
            life: 0,
            sent: false,
        };
        let mut queue = NbdQueue {
            shared: Arc::clone(shared),
            fd: AtomicI32::new(NO_FD),
            up: false,
            ops: vec![op; depth].into(),
            free: (0..depth).rev().collect(),
            line: VecDeque::with_capacity(depth),
            sending: None,
            reply: [0; REPLY],
            got: 0,
            ended: 0,
            heard_ns: 0,
            retry_ns: 0,
            down_ns: 0,
            lost_ns: 0,
        };
        // If the server is away just now, the first write tries again.
        queue.connect();
        if !queue.up {
            // The number is kept, so that it is among those that the program cannot close.
            let _ = nowhere().and_then(|socket| queue.put(socket));
        }
        Ok(queue)
    }

    fn socket(&self) -> BorrowedFd<'static> {
        // SAFETY: ours as long as `self` is there, and used within its methods only; called while `up`, when there is one.
        unsafe { BorrowedFd::borrow_raw(self.fd.load(Ordering::Relaxed)) }
    }

    fn end(&mut self, index: usize, result: Result<(), IoError>) {
        debug_assert_eq!(self.ops[index].state, State::Started);
        self.ops[index].state = State::Ended(result);
        self.ended += 1;
    }

    /// Puts the next piece of a write in line.
    fn next_piece(&mut self, index: usize) {
        let op = self.ops[index];
        match self.shared.places.find(op.first.number() + u64::from(op.done), op.count - op.done) {
            Ok(piece) => {
                (self.ops[index].piece, self.ops[index].sent) = (piece.pages, false);
                self.line.push_back(index);
            }
            // `prepare` has made sure that there is one.
            Err(why) => self.end(index, Err(why)),
        }
    }

    /// Gives the socket what it takes.
    fn push(&mut self) -> Result<(), Errno> {
        loop {
            let mut sending = match self.sending.take() {
                Some(sending) => sending,
                None => match self.line.front() {
                    Some(&index) => Sending { index, head: self.head(index), taken: 0 },
                    None => return Ok(()),
                },
            };
            let op = &mut self.ops[sending.index];
            op.sent = true;
            let all = REQUEST + op.piece as usize * PAGE_SIZE;
            while sending.taken < all {
                let result = match sending.taken.checked_sub(REQUEST) {
                    None => send_now(self.socket(), &sending.head[sending.taken..]),
                    Some(at) => {
                        let op = &self.ops[sending.index];
                        // SAFETY: `done` is below `count`, so this is within the caller's pages.
                        let pages = unsafe { op.pages.add(op.done as usize) };
                        // SAFETY: the piece is of the caller's pages, which stay readable until the completion is reaped.
                        let bytes = unsafe { core::slice::from_raw_parts(pages.cast::<u8>(), op.piece as usize * PAGE_SIZE) };
                        send_now(self.socket(), &bytes[at..])
                    }
                };
                match result {
                    Ok(len) => sending.taken += len,
                    Err(errno) => {
                        self.sending = Some(sending);
                        return if errno == Errno::AGAIN { Ok(()) } else { Err(errno) };
                    }
                }
            }
            self.line.pop_front();
        }
    }

    fn head(&self, index: usize) -> [u8; REQUEST] {
        let op = &self.ops[index];
        // In line only with a place.
        let place = self.shared.places.find(op.first.number() + u64::from(op.done), op.piece);
        let offset = place.map_or(u64::MAX, |piece| piece.offset);
        wire::request(Command::Write, u64::from(op.life) << 32 | index as u64, offset, op.piece * PAGE_SIZE as u32)
    }

    /// Takes replies that have come.
    fn pull(&mut self) -> Result<(), Errno> {
        let mut buffer = [0; 64 * REPLY];
        loop {
            let len = match receive_now(self.socket(), &mut buffer) {
                Ok(len) => len,
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            };
            self.heard_ns = sleep::now_ns();
            for &byte in &buffer[..len] {
                self.reply[self.got] = byte;
                self.got += 1;
                if self.got == REPLY {
                    self.got = 0;
                    let reply = wire::reply(&self.reply).map_err(|_| Errno::PROTO)?;
                    self.acknowledged(reply)?;
                }
            }
        }
    }

    fn acknowledged(&mut self, reply: wire::Reply) -> Result<(), Errno> {
        let (index, life) = ((reply.cookie & 0xffff_ffff) as usize, (reply.cookie >> 32) as u32);
        let is_sending = self.sending.as_ref().is_some_and(|sending| sending.index == index);
        // Nothing is acknowledged that was not sent whole.
        let known = self.ops.get(index).is_some_and(|op| op.state == State::Started && op.life == life && op.sent);
        if !known || is_sending || self.line.contains(&index) {
            return Err(Errno::PROTO);
        }
        self.lost_ns = 0;
        // A cookie is used once.
        self.ops[index].life = life.wrapping_add(1);
        match reply.result {
            Ok(()) => {
                let op = &mut self.ops[index];
                op.done += op.piece;
                if op.done == op.count { self.end(index, Ok(())) } else { self.next_piece(index) }
            }
            Err(Errno::NOSPC) => self.end(index, Err(IoError::Full)),
            Err(errno) => self.end(index, Err(IoError::Device(errno.raw_os_error()))),
        }
        Ok(())
    }

    /// The connection is lost: what was sent may still be done, and is sent again.
    fn lose(&mut self) {
        (self.up, self.sending, self.got) = (false, None, 0);
        let _ = rustix::net::shutdown(self.socket(), rustix::net::Shutdown::Both);
        self.down_ns = sleep::now_ns();
        if self.lost_ns == 0 {
            self.lost_ns = self.down_ns;
        }
        self.line.clear();
        for index in 0..self.ops.len() {
            let op = &mut self.ops[index];
            if op.state != State::Started {
                continue;
            }
            op.life = op.life.wrapping_add(1);
            if op.sent {
                self.shared.places.taint(op.first.number() + u64::from(op.done), op.piece);
            }
            self.next_piece(index);
        }
        // A server that ends each connection acknowledges nothing, though it can be reached.
        if self.down_ns - self.lost_ns > self.shared.peer.waits.give_up_ns() {
            self.give_up();
        }
    }

    /// Ends the writes that have not ended. Without a connection: places that may be written late are tainted by then.
    fn give_up(&mut self) {
        self.line.clear();
        for index in 0..self.ops.len() {
            if self.ops[index].state == State::Started {
                self.end(index, Err(IoError::Device(Errno::TIMEDOUT.raw_os_error())));
            }
        }
    }

    /// Puts a socket under our number.
    fn put(&self, socket: Fd) -> Result<(), Errno> {
        let before = self.fd.load(Ordering::Relaxed);
        replace(&self.fd, socket)?;
        let now = self.fd.load(Ordering::Relaxed);
        if now == before {
            return Ok(());
        }
        if before != NO_FD {
            self.shared.sockets.remove(before);
        }
        if self.shared.sockets.add(now) {
            return Ok(());
        }
        close(&self.fd);
        Err(Errno::MFILE)
    }

    /// Makes a connection, if one may be tried now.
    fn connect(&mut self) {
        if sleep::now_ns() < self.retry_ns {
            return;
        }
        let made = self.shared.connect().ok().and_then(|socket| self.put(socket).ok());
        let now = sleep::now_ns();
        (self.up, self.heard_ns, self.retry_ns) = (made.is_some(), now, now + RETRY_NS);
        if self.down_ns == 0 || self.up {
            self.down_ns = if self.up { 0 } else { now };
        }
    }

    /// Sends and takes, once. Without a connection: tries to get one; in the end its writes fail.
    fn turn(&mut self) {
        if !self.up && self.in_flight() > self.ended as u32 {
            self.connect();
            if !self.up && sleep::now_ns().saturating_sub(self.down_ns) > self.shared.peer.waits.reach_ns() {
                self.give_up();
            }
        }
        if self.up && self.push().and_then(|()| self.pull()).and_then(|()| self.push()).is_err() {
            self.lose();
        }
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

    /// Waits until the socket has or takes bytes; without one, until one may be tried.
    fn sleep(&mut self, until: u64) {
        let now = sleep::now_ns();
        if !self.up {
            return sleep::nap(until.min(self.retry_ns).saturating_sub(now).clamp(1_000, RETRY_NS));
        }
        if now.saturating_sub(self.heard_ns) > self.shared.peer.waits.silence_ns() {
            return self.lose();
        }
        let more = self.sending.is_some() || !self.line.is_empty();
        let what = if more { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        // Looks around once a second.
        let _ = ready(self.socket(), what, until.min(now + 1_000_000_000));
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

impl WriteQueue for NbdQueue {
    unsafe fn start_write(&mut self, first: Slot, pages: *const PageBuf, count: u32, tag: u64) -> Result<(), ()> {
        let index = self.free.pop().ok_or(())?;
        if self.in_flight() == 1 {
            (self.heard_ns, self.lost_ns) = (sleep::now_ns(), 0);
        }
        let op = &mut self.ops[index];
        let life = op.life.wrapping_add(1);
        *op = Op { state: State::Started, tag, first, pages, count, done: 0, piece: 0, life, sent: false };
        if count == 0 {
            self.end(index, Ok(()));
        } else if let Err(why) = self.shared.places.prepare(first.number(), count) {
            self.end(index, Err(why));
        } else {
            self.next_piece(index);
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

impl Drop for NbdQueue {
    fn drop(&mut self) {
        // What was sent and not acknowledged may be made at any time.
        for op in self.ops.iter().filter(|op| op.state == State::Started && op.sent) {
            self.shared.places.taint(op.first.number() + u64::from(op.done), op.piece);
        }
        let fd = self.fd.load(Ordering::Relaxed);
        if fd != NO_FD {
            self.shared.sockets.remove(fd);
            if self.up && self.sending.is_none() {
                // As the protocol asks; a server that is away does not need it.
                let _ = send_now(self.socket(), &wire::request(Command::Disconnect, 0, 0, 0));
            }
        }
        close(&self.fd);
    }
}
