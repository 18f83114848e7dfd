//! The loop of a thread of the generator.
//!
//! Each round
//! 1. sends what is due: appends it to the buffers of its connections, and lets the sockets take what they can;
//! 2. waits for answers until shortly before the next request is due, not at all if that is soon;
//! 3. reads and checks answers. The time of an answer is the time at which the read returned.
//!
//! Open loop: requests are due at the times of a Poisson process, whatever became of those before. Closed loop: a request
//! is due when the answer to another one has come, or was given up. Filling is a closed loop over all keys.
//!
//! A connection that breaks ends the load for all threads: the rest of the schedule would say nothing.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use super::link::{Came, Link, Space, drops};
use super::record::Record;
use super::service::kv::SET;
use super::service::{Checked, Request, Service};
use super::target::{Target, Transport};
use crate::work::kv::client::Wrongs;
use crate::work::kv::client::poller::Poller;
use crate::work::kv::schedule::Arrivals;
use crate::work::scatter::mix2;

/// Requests that are sent before answers are looked at.
const BATCH: usize = 64;
/// It is looked this often whether another thread, or the user, has ended the load.
const LOOK: Duration = Duration::from_millis(50);
/// For this long after the end, in ns, requests that were due before it are still sent.
const GRACE: u64 = 50_000_000;
/// Between two looks for what has to be given up, in ns.
const EXPIRY: u64 = 1_000_000;
/// A server that answers nothing for this long does not take the keys.
const FILL_PATIENCE: u64 = 30_000_000_000;

/// What makes requests due.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Mode {
    /// So many a second.
    Open(f64),
    /// So many are under way always.
    Closed(u32),
    /// SET of each of so many keys; as many as the second says are under way on each connection.
    Fill(u64, u32),
}

/// What all threads know.
pub struct Plan<'a> {
    /// What makes requests due.
    pub mode: Mode,
    /// The service.
    pub service: &'a Service,
    /// Where it is.
    pub target: &'a Target,
    /// The start of the schedule.
    pub start: Instant,
    /// The measured time, in ns since the start. It all ends with it.
    pub measured: Range<u64>,
    /// An answer that has not come after this time is lost.
    pub timeout: u64,
    /// Do not sleep for less than this.
    pub spin: u64,
    /// What is sent more than this after its time is late.
    pub late: Duration,
    /// Requests under way at most.
    pub window: usize,
    /// Where the random numbers start.
    pub seed: u64,
    /// How many threads there are.
    pub threads: usize,
    /// How many connections there are.
    pub connections: usize,
    /// The user wants it to end.
    pub stop: &'a AtomicBool,
    /// Set when a connection broke.
    pub broken: AtomicBool,
}

/// What came of a thread's part.
pub struct Share {
    /// What was measured.
    pub record: Record,
    /// What was wrong.
    pub wrong: Wrongs,
    /// Why it ended before its time.
    pub error: Option<String>,
    /// Requests that are still without an answer.
    pub open: usize,
}

impl Plan<'_> {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn is_udp(&self) -> bool {
        self.target.transport == Transport::Udp
    }
}

/// One thread's part: its connections, of which the first has the number `first` of all; it is thread `number`.
pub fn run(plan: &Plan<'_>, links: &mut [Link], first: usize, number: usize) -> Share {
    let record = Record::new(plan.measured.clone(), plan.service.ops.len(), plan.late);
    let mut worker = match Worker::new(plan, links, first, number) {
        Ok(worker) => worker,
        Err(error) => return Share { record, wrong: Wrongs::default(), error: Some(format!("epoll: {error}")), open: 0 },
    };
    let (begun, waited) = (Instant::now(), waited());
    let error = worker.go().err();
    let waited = self::waited().saturating_sub(waited);
    worker.record.waited = waited.as_secs_f64() / begun.elapsed().as_secs_f64().max(1e-9);
    if error.is_some() {
        plan.broken.store(true, Relaxed);
    }
    worker.give_up();
    let Worker { record, wrong, under_way, .. } = worker;
    Share { record, wrong, error, open: under_way }
}

/// Keys of a connection that are still to be filled.
struct Keys {
    next: u64,
    /// Those whose SET was lost.
    again: Vec<u64>,
}

struct Worker<'a> {
    plan: &'a Plan<'a>,
    links: &'a mut [Link],
    /// Numbers of the connections among all.
    own: Range<usize>,
    poller: Poller,
    space: Space,
    random: Xoshiro256PlusPlus,
    arrivals: Option<Arrivals>,
    /// Closed loop: connections that a request is due on.
    owed: Vec<usize>,
    /// Filling: the keys of each connection.
    fill: Vec<Keys>,
    /// Connections that have something to send.
    touched: Vec<usize>,
    ready: Vec<usize>,
    /// Whose turn it is.
    turn: usize,
    under_way: usize,
    /// No request is due from here on.
    end: u64,
    /// When something came or went.
    active: u64,
    expiry: u64,
    record: Record,
    wrong: Wrongs,
}

impl<'a> Worker<'a> {
    fn new(plan: &'a Plan<'a>, links: &'a mut [Link], first: usize, number: usize) -> std::io::Result<Self> {
        let poller = Poller::new()?;
        for (place, link) in links.iter().enumerate() {
            poller.add(link, place, false)?;
        }
        let count = links.len();
        let seed = mix2(plan.seed, number as u64);
        let length = Duration::from_nanos(plan.measured.end);
        #[expect(clippy::cast_precision_loss)] // Of a handful of threads.
        let arrivals = match plan.mode {
            Mode::Open(rate) => Some(Arrivals::new(rate / plan.threads as f64, length, mix2(seed, 2))),
            _ => None,
        };
        let owed = match plan.mode {
            Mode::Open(_) => Vec::new(),
            Mode::Closed(all) => (0..all as usize).skip(number).step_by(plan.threads).map(|n| n / plan.threads % count).collect(),
            Mode::Fill(_, each) => (0..count).flat_map(|place| std::iter::repeat_n(place, each as usize)).collect(),
        };
        let keys = |place| Keys { next: (first + place) as u64, again: Vec::new() };
        Ok(Worker {
            fill: (0..count).map(keys).collect(),
            own: first..first + count,
            poller,
            space: Space::default(),
            random: Xoshiro256PlusPlus::seed_from_u64(mix2(seed, 1)),
            arrivals,
            owed,
            touched: Vec::new(),
            ready: Vec::new(),
            turn: 0,
            under_way: 0,
            end: plan.measured.end,
            active: 0,
            expiry: 0,
            record: Record::new(plan.measured.clone(), plan.service.ops.len(), plan.late),
            wrong: Wrongs::default(),
            plan,
            links,
        })
    }

    fn go(&mut self) -> Result<(), String> {
        loop {
            let now = self.plan.now();
            if self.over(now)? {
                return Ok(());
            }
            if self.arrivals.is_none() && now < self.end {
                self.send_owed(now);
            } else if now < self.end.saturating_add(GRACE) {
                self.send_due();
            } else {
                self.skip_due();
            }
            self.flush()?;
            self.wait()?;
            self.receive()?;
            self.expire();
        }
    }

    /// Whether it is over: no request is due any more, and no answer is waited for any longer.
    fn over(&mut self, now: u64) -> Result<bool, String> {
        if self.plan.broken.load(Relaxed) {
            return Ok(true);
        }
        if self.plan.stop.load(Relaxed) && now < self.end {
            self.end = now;
            self.record.end(now);
        }
        if matches!(self.plan.mode, Mode::Fill(..)) && self.end > now {
            if now.saturating_sub(self.active) > FILL_PATIENCE {
                return Err(format!("{}: the server has not answered for 30 s while it was filled", self.plan.target));
            }
            return Ok(self.under_way == 0 && self.owed.is_empty());
        }
        let is_over = now >= self.end && self.next().is_none();
        Ok(is_over && (self.under_way == 0 || now - self.end > self.plan.timeout))
    }

    /// Open loop: sends what is due.
    fn send_due(&mut self) {
        for _ in 0..BATCH {
            let now = self.plan.now();
            let due = now.min(self.end.saturating_sub(1));
            let Some(arrival) = self.arrivals.as_mut().and_then(|arrivals| arrivals.due(due)) else { break };
            let (request, link) = self.draw();
            self.send(request, link, arrival.at, now);
        }
    }

    /// When the next request is due.
    fn next(&self) -> Option<u64> {
        self.arrivals.as_ref().and_then(Arrivals::peek).map(|next| next.at).filter(|next| *next < self.end)
    }

    /// Open loop, after the end: what was due and is not sent never will be, and is not forgotten.
    fn skip_due(&mut self) {
        let end = self.end.saturating_sub(1);
        while let Some(arrival) = self.arrivals.as_mut().and_then(|arrivals| arrivals.due(end)) {
            let op = self.plan.service.operation(&mut self.random);
            self.record.behind(op, arrival.at);
        }
    }

    /// Closed loop: a request for each answer.
    fn send_owed(&mut self, now: u64) {
        for _ in 0..BATCH {
            let Some(link) = self.owed.pop() else { break };
            let Mode::Fill(keys, _) = self.plan.mode else {
                self.turn = link;
                let (request, link) = self.draw();
                self.send(request, link, now, now);
                continue;
            };
            if let Some(key) = self.next_fill(link, keys) {
                self.send(self.plan.service.protocol.request(SET, key), link, now, now);
            }
        }
    }

    fn next_fill(&mut self, link: usize, keys: u64) -> Option<u64> {
        let lane = &mut self.fill[link];
        lane.again.pop().or_else(|| {
            let key = lane.next;
            (key < keys).then(|| lane.next += self.plan.connections as u64)?;
            Some(key)
        })
    }

    /// The next request, and the place of its connection.
    fn draw(&mut self) -> (Request, usize) {
        let turn = self.own.start + self.turn;
        self.turn = (self.turn + 1) % self.links.len();
        let (request, link) = self.plan.service.draw(&mut self.random, &self.own, turn);
        (request, link - self.own.start)
    }

    fn send(&mut self, request: Request, place: usize, due: u64, now: u64) {
        let link = &mut self.links[place];
        let most = (self.plan.window / self.plan.threads).max(1);
        let open = self.arrivals.is_some();
        if (open && self.under_way >= most) || !link.send(&*self.plan.service.protocol, request, due, now) {
            self.record.unsent(request.op, due);
            return;
        }
        self.under_way += 1;
        self.active = now;
        if !std::mem::replace(&mut link.touched, true) {
            self.touched.push(place);
        }
    }

    /// Lets sockets take what they can.
    fn flush(&mut self) -> Result<(), String> {
        for place in self.touched.drain(..) {
            let link = &mut self.links[place];
            link.touched = false;
            let was_blocked = link.blocked;
            if self.arrivals.is_some() && !link.fresh.is_empty() {
                let now = self.plan.now();
                link.fresh.iter().for_each(|due| self.record.sent(*due, now));
            }
            link.fresh.clear();
            link.flush(&mut self.space).map_err(|error| self.plan.target.told("send to", &error))?;
            if link.blocked != was_blocked {
                self.poller.change(&*link, place, link.blocked).map_err(|error| format!("epoll: {error}"))?;
            }
        }
        Ok(())
    }

    /// Step 2.
    fn wait(&mut self) -> Result<(), String> {
        let now = self.plan.now();
        let left = match self.next() {
            Some(next) => next.saturating_sub(now).saturating_sub(self.plan.spin),
            None if !self.owed.is_empty() && now < self.end => 0,
            // Closed loop: what is waited for will be there soon.
            None if self.arrivals.is_none() && now.saturating_sub(self.active) < self.plan.spin => 0,
            None => u64::MAX,
        };
        let look = if self.under_way > 0 && self.plan.is_udp() {
            LOOK.min(Duration::from_nanos(self.plan.timeout / 4 + 100_000))
        } else {
            LOOK
        };
        let ready = &mut self.ready;
        self.poller
            .wait(Duration::from_nanos(left).min(look), |place| ready.push(place))
            .map_err(|error| format!("epoll: {error}"))
    }

    /// Step 3.
    fn receive(&mut self) -> Result<(), String> {
        while let Some(place) = self.ready.pop() {
            let link = &mut self.links[place];
            if link.blocked && !std::mem::replace(&mut link.touched, true) {
                self.touched.push(place);
            }
            let (plan, record, wrong, owed) = (self.plan, &mut self.record, &mut self.wrong, &mut self.owed);
            let (mut now, mut answers) = (None, 0);
            let received = link.receive(&*plan.service.protocol, &mut self.space, |came| match came {
                Came::Answer(sent, checked) => {
                    let now = *now.get_or_insert_with(|| plan.now());
                    answers += 1;
                    record.answered(sent.request.op, sent.due, now, checked == Checked::Miss);
                    if let Checked::Wrong(kind, what) = checked {
                        wrong.add(kind, || what);
                    }
                    owed.push(place);
                }
                Came::Late => record.late_answers += 1,
                Came::Duplicate => record.duplicates += 1,
                Came::Stray(what) => wrong.add("no answers", || what),
            });
            self.under_way -= answers;
            self.active = now.unwrap_or(self.active);
            if self.arrivals.is_some() {
                self.owed.clear();
            }
            received.map_err(|error| self.plan.target.told("receive from", &error))?;
        }
        Ok(())
    }

    /// Gives up what was not answered in time. Over TCP an answer comes, or the connection breaks.
    fn expire(&mut self) {
        if !self.plan.is_udp() || self.under_way == 0 {
            return;
        }
        let now = self.plan.now();
        if now < self.expiry {
            return;
        }
        self.expiry = now + EXPIRY;
        let before = now.saturating_sub(self.plan.timeout);
        for (place, link) in self.links.iter_mut().enumerate() {
            while let Some(sent) = link.expire(before) {
                self.record.lost(sent.request.op, sent.due);
                self.under_way -= 1;
                match self.plan.mode {
                    Mode::Open(_) => continue,
                    Mode::Closed(_) => {}
                    Mode::Fill(..) => self.fill[place].again.push(sent.request.key),
                }
                self.owed.push(place);
            }
        }
    }

    /// At the end: what is still not answered is lost.
    fn give_up(&mut self) {
        let open = self.under_way;
        for link in self.links.iter_mut() {
            while let Some(sent) = link.expire(u64::MAX) {
                self.record.lost(sent.request.op, sent.due);
            }
        }
        let ports: Vec<u16> = self.links.iter().filter_map(Link::udp_port).collect();
        if !ports.is_empty() {
            self.record.dropped = drops(&ports);
        }
        self.under_way = open;
    }
}

/// How long the thread has waited for a processor while it could run; 0 if the kernel does not tell.
fn waited() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split_whitespace().nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0))
}
