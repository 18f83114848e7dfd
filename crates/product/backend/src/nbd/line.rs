//! A connection that many threads read over at once.
//!
//! # A request's life
//!
//! ```text
//! Free ─claim─▶ Claimed ─▶ Waiting ◀──▶ Asleep          (its owner sleeps on the word)
//!                             └──┬─────────┘
//!                                ├─ its reply comes ─▶ Filling ─▶ Done, or Failed and why
//!                                │                      ▲  ▼
//!                                │                      Half    (a part has come, and nobody has hold of the buffer)
//!                                └─ the connection is lost ─────▶ Lost          then Free, by its owner
//! ```
//!
//! A request is sent without a lock: a thread makes it known (Waiting), and then hands its 28 bytes to the kernel in one call. If
//! the kernel takes only a part, the connection is given up, since another thread's bytes may be next.
//!
//! # Who reads the replies
//!
//! One of the threads that wait has the role of the *receiver*. It takes replies for all, in whatever order the server sends them,
//! and gives the role up when it has its own. Then it wakes one that sleeps, who takes the role. A thread that wants to sleep says
//! so first (Asleep) and then looks whether there is a receiver; who gives the role up does so first, and then looks for sleepers.
//! Both are SeqCst, so one of the two sees the other. A receiver waits in the kernel, for at most [`TICK`](crate::socket::TICK) at
//! a time. The others wait for nothing that it holds, but for bytes that only it can get.
//!
//! # Connections have numbers
//!
//! `epoch` is odd while there is a connection, and goes up by one when it is lost and when the next is made. Only the receiver
//! changes it. It first raises the number and then declares the requests that wait to be lost, so a request that becomes known
//! after that sees the new number. A lost request may still have been sent on the *next* connection. Its reply is recognised by
//! its cookie, which names the request's place, how many times the place was used, and the length, so that it can be skipped.
//!
//! # Whose the buffer is
//!
//! **A receiver writes to a request's buffer only while that request is Filling, and the owner takes its buffer back only from a request that is not.** So the
//! owner may *withdraw* a request that still waits, or is Half: one compare-and-swap, and no answer finds the buffer any more ([`Asked`]). What comes later is known by
//! its cookie, or was begun already and is skipped: a receiver that goes on with a reply takes hold of the request anew (Half to Filling), and that fails once its
//! owner has left. No later user of the place can be Half then, since only a receiver makes a request so, and this one is in the middle of another reply.
//!
//! How long a request stays Filling is for its line to say. Where the pages are nowhere else ([`Waits::Long`]) nobody withdraws, and the bytes go from the kernel
//! straight to their place, so a request may be Filling for as long as its server likes. Where others have the pages ([`Waits::Short`]) all bytes go through the
//! input: a request is Filling for a copy within memory, and Half in between.
//!
//! # A server is waited for, and not for ever
//!
//! A connection that is silent for [`Waits::silence_ns`] is given up. Bytes alone are no answer: a receiver gives the connection up too
//! when its own request has no whole reply after [`Waits::give_up_ns`], whatever else has come meanwhile. A thread that withdraws a request has not waited for so
//! long. So the line remembers since when nothing has come, and who withdraws the next one gives the connection up.

mod race;

use super::connect::Failure;
use super::wire::{self, Command, REPLY};
use super::{Shared, Waits};
use crate::sleep;
use crate::socket::{NO_FD, close, is_broken, receive, replace, send_now};
use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use farshore_core::limits::PAGE_SIZE;
use farshore_core::sync::Futex;
use farshore_sys::fd::Fd;
use farshore_sys::futex::{self, KernelFutex};
use rustix::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::{DupFlags, Errno, dup3};
use rustix::net::{Shutdown, shutdown};
use std::mem::ManuallyDrop;

pub(crate) use race::{Asked, wait_for_any};

/// Requests on a connection at a time.
const REQUESTS: usize = 64;
/// Between two tries to make a connection, in ns.
const RETRY_NS: u64 = 50_000_000;
/// The same after one that was made: a server that ends each is not asked without a pause.
const RENEW_NS: u64 = 10_000_000;
/// How long a thread sleeps at most before it looks around, in ns.
const LOOK_NS: u64 = 1_000_000_000;
/// The same while its reply is coming.
const FILLING_NS: u64 = 100_000;
/// What a receiver takes from the kernel at once, in bytes.
const INPUT: usize = 64 << 10;
/// Pages of the longest request: within what every server takes.
pub(super) const PAGES_MAX: usize = 256;

const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const WAITING: u32 = 2;
const ASLEEP: u32 = 3;
const FILLING: u32 = 4;
const DONE: u32 = 5;
const LOST: u32 = 6;
/// The error's number is above the lowest byte.
const FAILED: u32 = 7;
const HALF: u32 = 8;

/// How a request ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// It was done.
    Done,
    /// The connection was lost meanwhile: whether the server has done it, nobody knows.
    Lost,
    /// Nothing was sent: there is no connection, or no place for one more request.
    Unsent,
    /// The server could not do it.
    Failed(Errno),
}

#[derive(Debug)]
struct Request {
    state: AtomicU32,
    /// How many times the place was used.
    life: AtomicU32,
    into: AtomicPtr<u8>,
    /// Bytes that the reply brings.
    bytes: AtomicU32,
}

/// A reply that is coming.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// The request that it is for.
    at: usize,
    /// Bytes that have come, and that come in all. (The request may be another one by now.)
    done: usize,
    bytes: usize,
    /// Its owner slept when it began.
    asleep: bool,
}

/// What the next bytes of the input are.
#[derive(Clone, Copy, Debug)]
enum Next {
    Head,
    /// Data of a request.
    Data(Part),
    /// Data that nobody waits for any more.
    Skip(usize),
}

#[derive(Debug)]
struct Input {
    buffer: Box<[u8]>,
    from: usize,
    to: usize,
    next: Next,
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Line {
    fd: AtomicI32,
    epoch: AtomicU32,
    receiver: AtomicU32,
    /// When a connection may be tried again.
    retry_ns: AtomicU64,
    /// Since when nothing has come, although a request was withdrawn that had no answer; 0: something has.
    silent_ns: AtomicU64,
    waits: Waits,
    requests: [Request; REQUESTS],
    /// The receiver's.
    input: UnsafeCell<Input>,
}

// SAFETY: `input` is used by the receiver alone, of whom there is one (`receiver`). The pointers in `requests` are handled as the
// module's head says.
unsafe impl Sync for Line {}

/// The role of the receiver.
struct Receiver<'l>(&'l Line);

impl Drop for Receiver<'_> {
    fn drop(&mut self) {
        // SAFETY: we have the role until the next line.
        let next = unsafe { (*self.0.input.get()).next };
        // SeqCst, and the look after it: see the module's head.
        self.0.receiver.store(0, Ordering::SeqCst);
        // A receiver may have all that it wants, and half of another's reply. That one sleeps until all is there.
        if let Next::Data(part) = next {
            futex::wake(&self.0.requests[part.at].state, 1);
        }
        for request in &self.0.requests {
            if request.state.compare_exchange(ASLEEP, WAITING, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                futex::wake(&request.state, 1);
                return;
            }
        }
    }
}

fn cookie(at: usize, life: u32, bytes: usize) -> u64 {
    u64::from(life) << 32 | ((bytes / PAGE_SIZE) as u64) << 16 | at as u64
}

impl Line {
    /// A line without a connection yet.
    pub(super) fn new(waits: Waits) -> Line {
        let request = || Request {
            state: AtomicU32::new(FREE),
            life: AtomicU32::new(0),
            into: AtomicPtr::new(core::ptr::null_mut()),
            bytes: AtomicU32::new(0),
        };
        let input = Input { buffer: vec![0; INPUT].into(), from: 0, to: 0, next: Next::Head };
        Line {
            fd: AtomicI32::new(NO_FD),
            epoch: AtomicU32::new(0),
            receiver: AtomicU32::new(0),
            retry_ns: AtomicU64::new(0),
            silent_ns: AtomicU64::new(0),
            waits,
            requests: core::array::from_fn(|_| request()),
            input: UnsafeCell::new(input),
        }
    }

    /// Its descriptor.
    pub(super) fn fd(&self) -> Option<RawFd> {
        Some(self.fd.load(Ordering::Acquire)).filter(|&fd| fd != NO_FD)
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the number is ours, and the socket behind it is replaced, never closed, while threads use the line.
        self.fd().map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Whether there is a connection.
    pub(super) fn is_up(&self) -> bool {
        self.epoch.load(Ordering::SeqCst) % 2 == 1
    }

    fn take_role(&self) -> Option<Receiver<'_>> {
        (self.receiver.load(Ordering::Relaxed) == 0 && self.receiver.swap(1, Ordering::SeqCst) == 0).then(|| Receiver(self))
    }

    /// Asks the server for `command` on `len` bytes from `offset` on, and waits. A read fills `into`, which has that length;
    /// other commands bring nothing.
    pub(super) fn ask(&self, command: Command, offset: u64, len: u32, into: Option<&mut [u8]>) -> End {
        self.begin(command, offset, len, into).map_or(End::Unsent, |asked| asked.wait())
    }

    /// As [`Line::ask`], but does not wait. `None`: there is no place for one more request.
    pub(super) fn begin<'b>(&self, command: Command, offset: u64, len: u32, into: Option<&'b mut [u8]>) -> Option<Asked<'_, 'b>> {
        let (at, request) = self.requests.iter().enumerate().find(|(_, request)| {
            request.state.load(Ordering::Relaxed) == FREE
                && request.state.compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })?;
        let epoch = self.epoch.load(Ordering::SeqCst);
        let bytes = into.as_ref().map_or(0, |into| into.len());
        debug_assert!(bytes == 0 || bytes == len as usize && bytes <= PAGES_MAX * PAGE_SIZE);
        let life = request.life.load(Ordering::Relaxed).wrapping_add(1);
        request.life.store(life, Ordering::Relaxed);
        request.into.store(into.map_or(core::ptr::null_mut(), |into| into.as_mut_ptr()), Ordering::Relaxed);
        request.bytes.store(bytes as u32, Ordering::Relaxed);
        // Release: the receiver sees the buffer. SeqCst: before the look at the epoch (module head).
        request.state.store(WAITING, Ordering::SeqCst);
        let mut asked = Asked { line: self, request, sent: false, buffer: PhantomData };
        if let Some(socket) = self.socket()
            && epoch % 2 == 1
            && self.epoch.load(Ordering::SeqCst) == epoch
        {
            asked.sent = true;
            if send_now(socket, &wire::request(command, cookie(at, life, bytes), offset, len)) != Ok(wire::REQUEST) {
                // The receiver, or we as the receiver, find the connection's end.
                let _ = shutdown(socket, Shutdown::Both);
            }
        }
        Some(asked)
    }

    /// Waits until `request` has ended. One that was not sent is taken back as soon as no receiver has hold of it: one may look at
    /// it for a reply to an earlier user of the place, and put back what it found.
    fn wait(&self, request: &Request, sent: bool) -> End {
        // A server cannot answer what was not sent. If it seems to, its bytes are taken as any others, and we wait for them.
        let withdrawn = || !sent && request.state.compare_exchange(WAITING, LOST, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        loop {
            if withdrawn() {
                return End::Lost;
            }
            if let Some(end) = request.ended() {
                return end;
            }
            if let Some(role) = self.take_role() {
                // Put back by the receiver before us, just now.
                if !withdrawn() {
                    self.receive_for(request);
                }
                drop(role);
                continue;
            }
            self.sleep(request, LOOK_NS);
        }
    }

    /// Sleeps while `request` has not ended, and somebody else receives, for at most `ns`.
    fn sleep(&self, request: &Request, ns: u64) {
        let state = request.state.load(Ordering::Acquire);
        if state == FILLING || state == HALF {
            // Its reply is coming: it is soon there, or the receiver leaves us the rest, or gives the connection up.
            KernelFutex.wait_for(&request.state, state, ns.min(FILLING_NS));
            return;
        }
        match request.state.compare_exchange(WAITING, ASLEEP, Ordering::SeqCst, Ordering::Relaxed) {
            // Asleep: the receiver has looked at us for a reply to somebody else, and put back what it found.
            Ok(_) | Err(ASLEEP) => {}
            Err(_) => return,
        }
        if self.receiver.load(Ordering::SeqCst) != 0 {
            KernelFutex.wait_for(&request.state, ASLEEP, ns);
        }
        let _ = request.state.compare_exchange(ASLEEP, WAITING, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// Receives, as the receiver, until `request` has ended.
    fn receive_for(&self, request: &Request) {
        let waits = || request.ended().is_none();
        let since = sleep::now_ns();
        // SAFETY: the caller is the receiver.
        let input = unsafe { &mut *self.input.get() };
        let mut heard = since;
        while waits() {
            if !self.is_up() {
                self.lose(input);
                return;
            }
            let taken = self.take_bytes(input, receive);
            let now = sleep::now_ns();
            let is_over = match taken {
                Ok(()) => {
                    heard = now;
                    waits() && now.saturating_sub(since) > self.waits.give_up_ns()
                }
                Err(Errno::AGAIN) => now.saturating_sub(heard) >= self.waits.silence_ns(),
                Err(_) => true,
            };
            if is_over {
                self.lose(input);
            }
        }
    }

    /// Receives bytes by `receive`, and gives them to whom they belong. For the receiver.
    fn take_bytes(&self, input: &mut Input, receive: fn(BorrowedFd<'_>, &mut [u8]) -> Result<usize, Errno>) -> Result<(), Errno> {
        let socket = self.socket().ok_or(Errno::BADF)?;
        if let Next::Data(part) = input.next
            && input.from == input.to
            && self.waits == Waits::Long
        {
            // Straight to its place.
            let request = &self.requests[part.at];
            // SAFETY: Filling, since the line before: the owner leaves the buffer alone until we say so, and it has `part.bytes` bytes.
            let to = unsafe { request.into.load(Ordering::Relaxed).add(part.done) };
            // SAFETY: as above.
            let into = unsafe { core::slice::from_raw_parts_mut(to, part.bytes - part.done) };
            let len = receive(socket, into)?;
            input.next = Next::Data(Part { done: part.done + len, ..part });
        } else {
            if input.from == input.to {
                (input.from, input.to) = (0, 0);
            } else if input.to == input.buffer.len() {
                input.buffer.copy_within(input.from.., 0);
                (input.from, input.to) = (0, input.to - input.from);
            }
            let len = receive(socket, &mut input.buffer[input.to..])?;
            input.to += len;
        }
        if self.silent_ns.load(Ordering::Relaxed) != 0 {
            self.silent_ns.store(0, Ordering::Relaxed);
        }
        self.sort(input)
    }

    /// Hands on what the input holds.
    fn sort(&self, input: &mut Input) -> Result<(), Errno> {
        loop {
            let there = &input.buffer[input.from..input.to];
            match input.next {
                Next::Data(part) => {
                    let request = &self.requests[part.at];
                    if !self.take_hold(request) {
                        input.next = Next::Skip(part.bytes - part.done);
                        continue;
                    }
                    let len = there.len().min(part.bytes - part.done);
                    // SAFETY: Filling: the owner leaves the buffer alone until we say so, and `done + len` is at most its length.
                    let to = unsafe { request.into.load(Ordering::Relaxed).add(part.done) };
                    // SAFETY: as above; the input is memory of ours that no request has.
                    unsafe { core::ptr::copy_nonoverlapping(there.as_ptr(), to, len) };
                    input.from += len;
                    let part = Part { done: part.done + len, ..part };
                    if part.done < part.bytes {
                        input.next = Next::Data(part);
                        self.let_go(request);
                        return Ok(());
                    }
                    input.next = Next::Head;
                    self.end(request, DONE, part.asleep);
                }
                Next::Skip(left) => {
                    let len = there.len().min(left);
                    input.from += len;
                    if len < left {
                        input.next = Next::Skip(left - len);
                        return Ok(());
                    }
                    input.next = Next::Head;
                }
                Next::Head => {
                    let Some(head) = there.first_chunk::<REPLY>() else { return Ok(()) };
                    let reply = wire::reply(head).map_err(|_| Errno::PROTO)?;
                    input.from += REPLY;
                    input.next = self.answered(reply)?;
                }
            }
        }
    }

    /// A reply's head has come. Returns what follows.
    fn answered(&self, reply: wire::Reply) -> Result<Next, Errno> {
        let (at, bytes) = ((reply.cookie & 0xffff) as usize, (reply.cookie >> 16 & 0xffff) as usize * PAGE_SIZE);
        // A place that does not exist, or more than we ever ask for: no cookie of ours.
        let request = self.requests.get(at).filter(|_| bytes <= PAGES_MAX * PAGE_SIZE).ok_or(Errno::PROTO)?;
        let Some(asleep) = self.begin_filling(request, reply.cookie, at) else {
            return Ok(if reply.result.is_ok() && bytes > 0 { Next::Skip(bytes) } else { Next::Head });
        };
        match reply.result {
            Err(errno) => self.end(request, FAILED | (errno.raw_os_error() as u32) << 8, asleep),
            Ok(()) if bytes == 0 => self.end(request, DONE, asleep),
            Ok(()) => return Ok(Next::Data(Part { at, done: 0, bytes, asleep })),
        }
        Ok(Next::Head)
    }

    /// Takes hold of the request that a reply is for; `None`: nobody waits for it any more. Tells whether its owner sleeps.
    fn begin_filling(&self, request: &Request, cookie_of: u64, at: usize) -> Option<bool> {
        loop {
            let state = request.state.load(Ordering::Acquire);
            if state != WAITING && state != ASLEEP {
                return None;
            }
            if request.state.compare_exchange(state, FILLING, Ordering::SeqCst, Ordering::Relaxed).is_err() {
                continue;
            }
            // The owner changes neither while we fill.
            let (life, bytes) = (request.life.load(Ordering::Relaxed), request.bytes.load(Ordering::Relaxed) as usize);
            if cookie(at, life, bytes) == cookie_of {
                return Some(state == ASLEEP);
            }
            // Of an earlier user of the place.
            request.state.store(state, Ordering::SeqCst);
            return None;
        }
    }

    /// Takes hold of a request again that was let go in the middle of its reply. `false`: its owner has withdrawn it.
    fn take_hold(&self, request: &Request) -> bool {
        // Acquire: the buffer's use by the owner, if it has left. Filling: we have not let it go, which nobody else makes a request.
        let taken = request.state.compare_exchange(HALF, FILLING, Ordering::AcqRel, Ordering::Acquire);
        matches!(taken, Ok(_) | Err(FILLING))
    }

    /// More of its reply is to come: its owner may withdraw it now.
    fn let_go(&self, request: &Request) {
        if self.waits == Waits::Short {
            // Release: the owner sees what has come, before it uses the buffer for something else.
            request.state.store(HALF, Ordering::Release);
        }
    }

    fn end(&self, request: &Request, state: u32, asleep: bool) {
        // Release: the owner sees the bytes. Its buffer may be gone right after.
        request.state.store(state, Ordering::Release);
        if asleep {
            futex::wake(&request.state, 1);
        }
    }

    /// The connection is lost. For the receiver.
    fn lose(&self, input: &mut Input) {
        if let Some(socket) = self.socket().filter(|_| self.is_up()) {
            self.epoch.fetch_add(1, Ordering::SeqCst);
            let _ = shutdown(socket, Shutdown::Both);
        }
        self.silent_ns.store(0, Ordering::Relaxed);
        // One that was let go may be another one by now, so it is as the others.
        if let Next::Data(part) = input.next
            && self.requests[part.at].state.load(Ordering::Relaxed) == FILLING
        {
            self.end(&self.requests[part.at], LOST, part.asleep);
        }
        (input.from, input.to, input.next) = (0, 0, Next::Head);
        for request in &self.requests {
            for state in [WAITING, ASLEEP, HALF] {
                if request.state.compare_exchange(state, LOST, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                    futex::wake(&request.state, 1);
                }
            }
        }
    }

    /// Whether its descriptor leads to a server, as far as the kernel knows: over this process' connection, or in a forked child over
    /// its parent's.
    pub(super) fn has_connection(&self) -> bool {
        self.socket().is_some_and(|socket| !is_broken(socket))
    }

    /// Finds out whether the connection was lost while nobody waited for an answer.
    pub(super) fn look(&self) {
        if let Some(_role) = self.take_role()
            && self.is_up()
            && !self.has_connection()
        {
            // SAFETY: we have the role.
            self.lose(unsafe { &mut *self.input.get() });
        }
    }

    /// Makes a connection if there is none, nobody else does so now, and none was tried just now. Returns the failure of a try;
    /// `None`: there was none to make.
    pub(super) fn mend(&self, shared: &Shared) -> Option<Failure> {
        let role = self.take_role()?;
        let now = sleep::now_ns();
        if self.is_up() || now < self.retry_ns.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: we have the role.
        self.lose(unsafe { &mut *self.input.get() });
        let made = shared.connect().and_then(|socket| self.put(socket).map_err(Failure::Unfinished));
        let pause = if made.is_ok() { RENEW_NS } else { RETRY_NS };
        self.retry_ns.store(sleep::now_ns() + pause, Ordering::Relaxed);
        drop(role);
        made.err()
    }

    /// Puts a connection into place. For the receiver, while there is none.
    pub(super) fn put(&self, socket: Fd) -> Result<(), Errno> {
        replace(&self.fd, socket)?;
        self.epoch.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// In a forked child, which has one thread: the connection is the parent's. `shared`: the descriptor is too, and stays open.
    /// `holds`: what keeps the number until the child makes a connection, so that it is among those that the program cannot close.
    /// `keeps`: the parent's connection does so, and the child never uses it.
    pub(super) fn forked(&self, shared: bool, holds: Option<BorrowedFd<'_>>, keeps: bool) {
        let mut kept = keeps && !shared;
        if let Some(fd) = self.fd().filter(|_| !shared && !keeps) {
            // SAFETY: this process' copy of the parent's descriptor, which no thread here uses.
            let mut own = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
            kept = holds.is_some_and(|holds| dup3(holds, &mut own, DupFlags::CLOEXEC).is_ok());
            if !kept {
                // SAFETY: as above.
                unsafe { rustix::io::close(fd) };
            }
        }
        if !kept {
            self.fd.store(NO_FD, Ordering::Release);
        }
        self.epoch.store(0, Ordering::SeqCst);
        self.receiver.store(0, Ordering::SeqCst);
        self.retry_ns.store(0, Ordering::Relaxed);
        self.silent_ns.store(0, Ordering::Relaxed);
        // SAFETY: no other thread exists.
        let input = unsafe { &mut *self.input.get() };
        (input.from, input.to, input.next) = (0, 0, Next::Head);
        self.requests.iter().for_each(|request| request.state.store(FREE, Ordering::SeqCst));
    }
}

impl Request {
    /// How it has ended, if it has.
    fn ended(&self) -> Option<End> {
        match self.state.load(Ordering::Acquire) {
            DONE => Some(End::Done),
            LOST => Some(End::Lost),
            state if state & 0xff == FAILED => Some(End::Failed(Errno::from_raw_os_error((state >> 8) as i32))),
            _ => None,
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        close(&self.fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;
    use std::time::Duration;

    /// The receiver looks at a request for a late reply to an earlier user of its place, while its owner finds that the connection
    /// is another one by now.
    #[test]
    fn a_request_that_was_not_sent_waits_for_no_reply() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let line: &'static Line = Box::leak(Box::new(Line::new(Waits::Long)));
        line.put(Fd::from(OwnedFd::from(ours))).unwrap();
        line.receiver.store(1, Ordering::SeqCst);
        let request = &line.requests[0];
        request.state.store(FILLING, Ordering::SeqCst);
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || tell.send(line.wait(request, false)));
        std::thread::sleep(Duration::from_millis(50));
        request.state.store(WAITING, Ordering::SeqCst);
        assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok(End::Lost));
    }
}
