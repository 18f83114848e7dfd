//! Requests on a schedule: each is sent at its time, or as soon as the generator comes to it, whatever became of those before.
//!
//! Each round of the loop of a thread
//! 1. sends what is due: appends it to the buffers of its connections, and lets the sockets take what they can;
//! 2. waits for answers until the next request is due, not at all if one is;
//! 3. reads and checks answers. The time of an answer is the time at which the read returned.
//!
//! A connection that breaks ends the load for all threads: the rest of the schedule would say nothing. So that an overloaded
//! server does not cost memory without end, requests that would be too many under way are not sent, which is wrong, and said.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::super::requests::Request;
use super::super::schedule::{Arrivals, Record};
use super::connection::Connection;
use super::{Poller, READ, Shared, Wrongs};

/// Requests under way, of all threads together.
const MOST_PENDING: usize = 100_000;
/// Bytes that sockets have not taken, of all threads together.
const MOST_UNSENT: usize = 256 << 20;
/// Requests that are sent before answers are looked at.
const BATCH: usize = 64;
/// While nothing is due it is looked this often whether another thread has ended the load.
const LOOK: Duration = Duration::from_millis(50);

/// What the threads share for this.
#[derive(Debug)]
pub struct Load {
    /// All requests, of all threads.
    pub arrivals: Arrivals,
    /// The time that is measured, in ns since the start.
    pub measured: Range<u64>,
    /// The start of the schedule.
    pub start: Instant,
    /// How many threads there are.
    pub threads: usize,
    /// Set when a connection broke.
    pub broken: AtomicBool,
}

impl Load {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// What came of a thread's part.
#[derive(Debug)]
pub struct Share {
    pub record: Record,
    pub wrong: Wrongs,
    /// Values that were checked, also those before the measured time.
    pub answers: u64,
}

/// One thread's part: its connections, of which the first has the number `first` of all.
pub fn run(shared: &Shared, load: &Load, connections: &mut [Connection], first: usize) -> Share {
    let share = Share { record: Record::new(load.measured.clone()), wrong: Wrongs::default(), answers: 0 };
    let own = first..first + connections.len();
    let lanes = connections.iter_mut().map(|connection| Lane { connection, writing: false, touched: false }).collect();
    let mut client = Client { shared, load, own, lanes, share, touched: Vec::new(), pending: 0, unsent: 0 };
    if let Err(error) = client.go() {
        load.broken.store(true, Relaxed);
        client.share.wrong.add("ends of the load", || error);
    }
    client.share
}

/// A connection in the loop.
struct Lane<'a> {
    connection: &'a mut Connection,
    /// Whether the poller says when the socket takes more.
    writing: bool,
    /// Whether it is among [`Client::touched`].
    touched: bool,
}

/// A thread's state.
struct Client<'a> {
    shared: &'a Shared,
    load: &'a Load,
    /// Numbers of its connections among all.
    own: Range<usize>,
    lanes: Vec<Lane<'a>>,
    share: Share,
    /// Connections that have something to send.
    touched: Vec<usize>,
    /// Requests under way.
    pending: usize,
    /// Bytes that sockets have not taken, of blocked connections.
    unsent: usize,
}

impl Client<'_> {
    /// Goes through the schedule, and then waits for the rest of the answers.
    fn go(&mut self) -> Result<(), String> {
        let cannot = |error: std::io::Error| format!("epoll: {error}");
        let mut poller = Poller::new().map_err(cannot)?;
        for (number, lane) in self.lanes.iter().enumerate() {
            poller.add(&*lane.connection, number, false).map_err(cannot)?;
        }
        let (mut space, mut scratch, mut ready) = (vec![0; READ], Vec::new(), Vec::new());
        let mut arrivals = Own { arrivals: self.load.arrivals.clone(), next: None };
        let mut busy = Busy::default();
        loop {
            let now = self.load.now();
            busy.look(now, &self.load.measured, &mut self.share.record);
            if self.load.broken.load(Relaxed) {
                return Ok(());
            }
            self.send_due(&mut arrivals);
            self.flush(&poller)?;
            let next = arrivals.peek(self.shared, &self.own).map(|(due, _)| due);
            if next.is_none() && self.over(now) {
                return Ok(());
            }
            let until = next.map_or(LOOK, |due| Duration::from_nanos(due.saturating_sub(self.load.now())));
            poller.wait(until.min(LOOK), |number| ready.push(number)).map_err(cannot)?;
            for number in ready.drain(..) {
                self.receive(number, &mut space, &mut scratch)?;
            }
        }
    }

    /// Whether the time is over, and no answer is waited for any longer.
    fn over(&mut self, now: u64) -> bool {
        let Some(waited) = now.checked_sub(self.load.measured.end).map(Duration::from_nanos) else { return false };
        if waited > self.shared.patience {
            let (patience, pending) = (self.shared.patience, self.pending as u64);
            self.share.wrong.add_many("requests unanswered", pending, || format!("{patience:?} after the last of them was due"));
            return true;
        }
        self.pending == 0
    }

    /// Step 1, without the sockets.
    fn send_due(&mut self, arrivals: &mut Own) {
        for _ in 0..BATCH {
            let now = self.load.now();
            let Some((due, request)) = arrivals.peek(self.shared, &self.own).filter(|(due, _)| *due <= now) else { break };
            arrivals.next = None;
            let number = request.connection - self.own.start;
            let lane = &mut self.lanes[number];
            self.share.record.sent(due, now, lane.writing);
            if self.pending >= MOST_PENDING / self.load.threads || self.unsent >= MOST_UNSENT / self.load.threads {
                self.share
                    .wrong
                    .add("requests not sent", || "too many were unanswered: the server cannot keep up with --rate".into());
                continue;
            }
            let before = lane.connection.unsent();
            if request.set {
                lane.connection.set(self.shared, request.key, due);
            } else {
                lane.connection.get(self.shared, request.key, due);
            }
            self.unsent += lane.connection.unsent() - before;
            self.pending += 1;
            if !std::mem::replace(&mut lane.touched, true) {
                self.touched.push(number);
            }
        }
    }

    /// Lets sockets take what they can.
    fn flush(&mut self, poller: &Poller) -> Result<(), String> {
        for number in self.touched.drain(..) {
            let lane = &mut self.lanes[number];
            lane.touched = false;
            let before = lane.connection.unsent();
            lane.connection.flush()?;
            self.unsent -= before - lane.connection.unsent();
            let writing = lane.connection.unsent() > 0;
            if writing != lane.writing {
                lane.writing = writing;
                poller.change(&*lane.connection, number, writing).map_err(|error| format!("epoll: {error}"))?;
            }
        }
        Ok(())
    }

    /// Step 3 for a connection that has answers, or takes requests again.
    fn receive(&mut self, number: usize, space: &mut [u8], scratch: &mut Vec<u8>) -> Result<(), String> {
        let lane = &mut self.lanes[number];
        if lane.writing && !std::mem::replace(&mut lane.touched, true) {
            self.touched.push(number);
        }
        let (share, load, shared) = (&mut self.share, self.load, self.shared);
        let (mut now, mut count) = (None, 0);
        let received = lane.connection.receive(shared, space, |pending, answer| {
            let now = *now.get_or_insert_with(|| load.now());
            share.record.answered(pending.due, now);
            shared.check(&pending, &answer, scratch, &mut share.wrong);
            count += 1;
        });
        self.pending -= count;
        self.share.answers += count as u64;
        received
    }
}

/// The requests of the schedule that are this thread's.
struct Own {
    arrivals: Arrivals,
    next: Option<(u64, Request)>,
}

impl Own {
    /// The next of them.
    fn peek(&mut self, shared: &Shared, own: &Range<usize>) -> Option<(u64, Request)> {
        while self.next.is_none() {
            let arrival = self.arrivals.due(u64::MAX)?;
            self.next = shared.requests.request(arrival.number, own).map(|request| (arrival.at, request));
        }
        self.next
    }
}

/// Processor time of the thread in the measured time.
#[derive(Default)]
struct Busy {
    /// (time, processor time) at the first look in the measured time.
    start: Option<(u64, Duration)>,
    over: bool,
}

impl Busy {
    fn look(&mut self, now: u64, measured: &Range<u64>, record: &mut Record) {
        if self.start.is_none() && now >= measured.start {
            self.start = Some((now, processor_time()));
        }
        let Some((start, used)) = self.start.filter(|(start, _)| now >= measured.end && now > *start) else { return };
        if !std::mem::replace(&mut self.over, true) {
            let used = processor_time().saturating_sub(used);
            record.busy(used.as_secs_f64() / Duration::from_nanos(now - start).as_secs_f64());
        }
    }
}

/// Of the calling thread.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
