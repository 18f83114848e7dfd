//! Threads that serve connections, one a core: each waits for all of its own at once (epoll), and never for one.
//!
//! A connection belongs to one worker from its beginning to its end. A client that does not read its answers for a while, or sends half a
//! request, waits alone: its worker goes on with the others. A connection that has more to do than a few rounds waits its turn.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::{Errno, read, write};
use rustix::net::{SendFlags, send};

use crate::exports::Exports;
use crate::session::{Counts, Next, PIECE, Session, UNREAD_MAX};

/// How often its worker finds, a second apart, that a client has no export. Then its connection ends. So a client does not pay for a second in which the worker had
/// no time for it.
pub const PATIENCE: u32 = 10;
/// How often a connection is served before the others have their turn.
const ROUNDS: u32 = 8;
/// Events that are taken at a time.
const EVENTS: usize = 64;
/// What stands for the worker itself among the connections' numbers.
const SELF: u64 = u64::MAX;
/// A buffer of an idle connection that is larger is given back, in bytes.
const SMALL: usize = 64 << 10;

/// How many connections a node has, over all workers.
#[derive(Debug)]
pub struct Connections {
    most: usize,
    now: AtomicUsize,
    accepted: AtomicUsize,
    closed: AtomicUsize,
}

impl Connections {
    /// None yet, and so many at most.
    #[must_use]
    pub fn new(most: usize) -> Connections {
        Connections { most, now: AtomicUsize::new(0), accepted: AtomicUsize::new(0), closed: AtomicUsize::new(0) }
    }

    /// Counts one that has come; `false`: there is no room for it.
    pub fn come(&self) -> bool {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        let more = |now: usize| Some(now + 1).filter(|&now| now <= self.most);
        let fits = self.now.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        if !fits {
            self.closed.fetch_add(1, Ordering::Relaxed);
        }
        fits
    }

    fn go(&self) {
        self.now.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many there are.
    #[must_use]
    pub fn now(&self) -> usize {
        self.now.load(Ordering::Relaxed)
    }

    /// How many have come, and how many of them were closed at once.
    #[must_use]
    pub fn so_far(&self) -> (usize, usize) {
        (self.accepted.load(Ordering::Relaxed), self.closed.load(Ordering::Relaxed))
    }
}

/// A worker, for those who give it connections and read its counters.
#[derive(Debug)]
pub struct Worker {
    exports: Arc<Exports>,
    connections: Arc<Connections>,
    epoll: OwnedFd,
    /// Written when there is something in `inbox`.
    bell: OwnedFd,
    inbox: Mutex<Vec<OwnedFd>>,
    counts: Mutex<Counts>,
    /// How long it looks for more before it sleeps.
    poll: Duration,
}

/// What a connection waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wait {
    Input,
    Output,
}

/// How a turn of a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    Waits(Wait),
    /// It has more to do.
    Again,
    Over,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    session: Session,
    /// Bytes that have come and are not used.
    kept: Vec<u8>,
    /// Whether more bytes must come before `kept` can be used.
    is_hungry: bool,
    /// Answers, of which the first `sent` bytes have left.
    out: Vec<u8>,
    sent: usize,
    is_ending: bool,
    /// What the kernel is asked for.
    asked: Wait,
    /// It is among those that have more to do.
    is_listed: bool,
    /// How often it was looked at and had no export.
    looks: u32,
}

impl Connection {
    fn new(socket: OwnedFd, exports: Arc<Exports>) -> Connection {
        let mut out = Vec::new();
        let session = Session::new(exports, &mut out);
        Connection {
            socket,
            session,
            kept: Vec::new(),
            is_hungry: true,
            out,
            sent: 0,
            is_ending: false,
            asked: Wait::Input,
            is_listed: false,
            looks: 0,
        }
    }

    /// Sends what is to be sent, as far as the kernel takes it; whether it has taken all.
    fn flush(&mut self) -> Result<bool, Errno> {
        while self.sent < self.out.len() {
            match send(&self.socket, &self.out[self.sent..], SendFlags::NOSIGNAL) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(errno) => return Err(errno),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Serves it for some rounds.
    fn turn(&mut self, scratch: &mut [u8]) -> Turn {
        for _ in 0..ROUNDS {
            match self.flush() {
                Ok(true) if self.is_ending => return Turn::Over,
                Ok(true) => {}
                // One that has said its last waits for nobody.
                Ok(false) if self.is_ending => return Turn::Over,
                Ok(false) => return Turn::Waits(Wait::Output),
                Err(_) => return Turn::Over,
            }
            let mut kept = std::mem::take(&mut self.kept);
            let mut is_all = false;
            let next = if self.is_hungry {
                let (before, room) = scratch.split_at_mut(kept.len());
                before.copy_from_slice(&kept);
                let (count, room) = match read(&self.socket, &mut *room) {
                    Ok(0) => return Turn::Over,
                    Ok(count) => (count, room.len()),
                    Err(Errno::INTR) => {
                        self.kept = kept;
                        continue;
                    }
                    Err(Errno::AGAIN) => {
                        self.kept = kept;
                        return Turn::Waits(Wait::Input);
                    }
                    Err(_) => return Turn::Over,
                };
                is_all = count < room;
                let mut input = &scratch[..kept.len() + count];
                let next = self.session.feed(&mut input, &mut self.out);
                kept.clear();
                kept.extend_from_slice(input);
                next
            } else {
                let mut input = &kept[..];
                let next = self.session.feed(&mut input, &mut self.out);
                let used = kept.len() - input.len();
                kept.drain(..used);
                next
            };
            self.kept = kept;
            if next == Next::Later {
                self.is_hungry = false;
                return Turn::Again;
            }
            self.is_hungry = next == Next::Input;
            self.is_ending = next == Next::End;
            // What has come was less than there was room for: no need to ask for more.
            if is_all && self.is_hungry {
                return match self.flush() {
                    Ok(true) => {
                        self.shrink();
                        Turn::Waits(Wait::Input)
                    }
                    Ok(false) => Turn::Waits(Wait::Output),
                    Err(_) => Turn::Over,
                };
            }
        }
        Turn::Again
    }

    /// A connection that waits for requests holds no large buffers.
    fn shrink(&mut self) {
        if self.out.capacity() > SMALL {
            self.out = Vec::new();
        }
        if self.kept.capacity() > SMALL {
            self.kept.shrink_to_fit();
        }
    }
}

/// What a worker's thread has for itself.
#[derive(Default)]
struct Served {
    all: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Connections that have more to do.
    again: Vec<usize>,
    /// How many have no export yet.
    strangers: usize,
}

impl Worker {
    /// A worker, of which [`Worker::run`] is the thread. `poll`: how long it looks for more requests before it sleeps.
    ///
    /// # Errors
    /// The kernel has no descriptors left.
    pub fn new(exports: Arc<Exports>, connections: Arc<Connections>, poll: Duration) -> Result<Arc<Worker>, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(SELF), epoll::EventFlags::IN)?;
        let (inbox, counts) = (Mutex::default(), Mutex::default());
        Ok(Arc::new(Worker { exports, connections, epoll, bell, inbox, counts, poll }))
    }

    /// Gives it a connection, which [`Connections::come`] has counted and which never blocks.
    pub fn give(&self, socket: OwnedFd) {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
        // It fails only when it was rung 2^64 times and not heard.
        let _ = write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// What its clients have asked for so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves its connections, for good.
    ///
    /// # Panics
    /// The kernel refuses to wait for descriptors that are open, which it does not do.
    pub fn run(&self) {
        let mut scratch = vec![0; PIECE + UNREAD_MAX];
        let mut served = Served::default();
        let mut events = Vec::with_capacity(EVENTS);
        let (mut until, mut looked) = (Instant::now(), Instant::now());
        let (none, second) = (Timespec { tv_sec: 0, tv_nsec: 0 }, Timespec { tv_sec: 1, tv_nsec: 0 });
        loop {
            let is_awake = !served.again.is_empty() || (!self.poll.is_zero() && Instant::now() < until);
            let timeout = match (is_awake, served.strangers) {
                (true, _) => Some(&none),
                (false, 0) => None,
                (false, _) => Some(&second),
            };
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => panic!("epoll_wait fails ({errno})"),
            }
            // Those that had more to do before now come after those that are new.
            let again = std::mem::take(&mut served.again);
            for event in &events {
                match event.data.u64() {
                    SELF => self.welcome(&mut served, &mut scratch),
                    number => self.serve(&mut served, number as usize, &mut scratch),
                }
            }
            if !events.is_empty() && !self.poll.is_zero() {
                until = Instant::now() + self.poll;
            }
            for number in again {
                if let Some(Some(connection)) = served.all.get_mut(number) {
                    connection.is_listed = false;
                    self.serve(&mut served, number, &mut scratch);
                }
            }
            if served.strangers > 0 && looked.elapsed() >= Duration::from_secs(1) {
                looked = Instant::now();
                self.lose_patience(&mut served);
            }
        }
    }

    /// Takes new connections.
    fn welcome(&self, served: &mut Served, scratch: &mut [u8]) {
        let _ = read(&self.bell, &mut [0; 8]);
        let new = std::mem::take(&mut *self.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        for socket in new {
            let number = served.free.pop().unwrap_or_else(|| {
                served.all.push(None);
                served.all.len() - 1
            });
            let data = epoll::EventData::new_u64(number as u64);
            if epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN).is_err() {
                // The kernel has no memory for one more.
                served.free.push(number);
                self.connections.go();
                continue;
            }
            served.all[number] = Some(Connection::new(socket, self.exports.clone()));
            served.strangers += 1;
            self.serve(served, number, scratch);
        }
    }

    /// A turn of a connection. (An event of one that is gone may come late; then it is another's, or nobody's, and harmless.)
    fn serve(&self, served: &mut Served, number: usize, scratch: &mut [u8]) {
        let Some(Some(connection)) = served.all.get_mut(number) else { return };
        let was_in = connection.session.is_in();
        let mut turn = connection.turn(scratch);
        let counts = connection.session.take_counts();
        if counts != Counts::default() {
            *self.counts.lock().unwrap_or_else(PoisonError::into_inner) += counts;
        }
        if !was_in && connection.session.is_in() {
            served.strangers -= 1;
        }
        if let Turn::Waits(wait) = turn
            && wait != connection.asked
        {
            let flags = if wait == Wait::Input { epoll::EventFlags::IN } else { epoll::EventFlags::OUT };
            let data = epoll::EventData::new_u64(number as u64);
            connection.asked = wait;
            if epoll::modify(&self.epoll, &connection.socket, data, flags).is_err() {
                turn = Turn::Over;
            }
        }
        match turn {
            Turn::Waits(_) => {}
            Turn::Again if connection.is_listed => {}
            Turn::Again => {
                connection.is_listed = true;
                served.again.push(number);
            }
            Turn::Over => self.end(served, number),
        }
    }

    fn end(&self, served: &mut Served, number: usize) {
        let Some(connection) = served.all.get_mut(number).and_then(Option::take) else { return };
        if !connection.session.is_in() {
            served.strangers -= 1;
        }
        let _ = epoll::delete(&self.epoll, connection.socket.as_fd());
        served.free.push(number);
        self.connections.go();
    }

    /// Ends connections that have no export after all these looks.
    fn lose_patience(&self, served: &mut Served) {
        let is_late = |connection: &mut Connection| {
            connection.looks += u32::from(!connection.session.is_in());
            !connection.session.is_in() && connection.looks > PATIENCE
        };
        let all = served.all.iter_mut().enumerate();
        let late: Vec<usize> = all.filter_map(|(number, one)| one.as_mut().is_some_and(is_late).then_some(number)).collect();
        late.into_iter().for_each(|number| self.end(served, number));
    }
}
