//! The loop of a thread of the generator.
//!
//! Each round
//! 1. sends what is due: appends it to the buffers of its connections, and lets the sockets take what they can;
//! 2. waits for answers until shortly before the next request is due, not at all if that is soon;
//! 3. reads and checks answers. The time of an answer is the time at which the read returned.
//!
//! Open loop: requests are due at the times of a Poisson process, whatever became of those before. Closed loop: a request
//! is due when the answer to another one has come, or was given up. A pass over all keys, to fill a server or to read all
//! back, is a closed loop.
//!
//! A connection that breaks ends the load for all threads: the rest of the schedule would say nothing.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::link::{Came, Link, Space, drops};
use super::poller::Poller;
use super::protocol::{Checked, Protocol, Request};
use super::wrongs::Wrongs;

/// Requests that are sent before answers are looked at.
const BATCH: usize = 64;
/// It is looked this often whether another thread, or the user, has ended the load.
const LOOK: Duration = Duration::from_millis(50);
/// Between two looks for what has to be given up, in ns.
const EXPIRY: u64 = 1_000_000;

/// The requests of one thread, at their times. Connections have their numbers among all.
pub trait Schedule {
    /// When the next one is due.
    fn next(&mut self) -> Option<u64>;

    /// The next one, if it is due by then: its time, what it asks for, and its connection.
    fn due(&mut self, until: u64) -> Option<(u64, Request, usize)>;

    /// The time and the operation of the next one, if it is due by then. It will not be sent.
    fn skip(&mut self, until: u64) -> Option<(u64, u8)>;
}

/// The requests of one thread, as they are wanted.
pub trait Draw {
    /// One for the connection `turn`, or for another one that it has to go over; and its connection.
    fn draw(&mut self, turn: usize) -> (Request, usize);
}

/// One operation on each of many keys; connection c of n has the keys c, c + n, c + 2n and so on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pass {
    /// How many keys there are.
    pub keys: u64,
    /// The operation.
    pub op: u8,
    /// Requests under way on each connection.
    pub each: u32,
    /// The first answer that is wrong ends it.
    pub ends_at_wrong: bool,
}

/// What makes requests due.
pub enum Course<'a> {
    /// Their times (open loop).
    Open(Box<dyn Schedule + 'a>),
    /// An answer: so many are always under way, of all threads together (closed loop).
    Closed(u32, Box<dyn Draw + 'a>),
    /// An answer, until all keys were gone through.
    Pass(Pass),
}

/// What came of the requests of a thread. Times are in ns since the start.
pub trait Tally {
    /// A round of the loop begins.
    fn look(&mut self, now: u64) {
        let _ = now;
    }

    /// A request that was due at `due` goes to its socket `now`.
    fn sent(&mut self, due: u64, now: u64);

    /// It waits for its socket, which takes no more.
    fn held(&mut self, due: u64) {
        let _ = due;
    }

    /// Its answer came; `miss`: the key was not there.
    fn answered(&mut self, op: u8, due: u64, now: u64, miss: bool);

    /// No answer came.
    fn lost(&mut self, op: u8, due: u64);

    /// It was not sent, since too many were under way.
    fn unsent(&mut self, op: u8, due: u64);

    /// It was not sent, since the time was over before the generator came to it.
    fn behind(&mut self, op: u8, due: u64);

    /// An answer came after its request was given up.
    fn late_answer(&mut self) {}

    /// An answer came twice.
    fn duplicate(&mut self) {}

    /// The user ends it now.
    fn end(&mut self, now: u64);

    /// It is over: the share of its time that the thread waited for a processor, and the answers that its sockets had no
    /// room for.
    fn over(&mut self, waited: f64, dropped: u64) {
        let _ = (waited, dropped);
    }
}

/// How an error of a connection is told: what was done, the error, and how many requests of the thread are unanswered.
pub type Told<'a> = &'a (dyn Fn(&str, &io::Error, usize) -> String + Sync);

/// What all threads know.
pub struct Plan<'a> {
    /// How the server is talked to.
    pub protocol: &'a dyn Protocol,
    /// The start of the schedule.
    pub start: Instant,
    /// No request is due from here on, in ns since the start.
    pub end: u64,
    /// An answer that has not come after this time is lost.
    pub timeout: u64,
    /// Messages may be lost: what is not answered in time is given up at once, and not at the end.
    pub may_lose: bool,
    /// For this long after the end, in ns, requests that were due before it are still sent.
    pub grace: u64,
    /// Do not sleep for less than this.
    pub spin: u64,
    /// Requests under way at most, of all threads together.
    pub window: usize,
    /// Bytes that sockets have not taken at most, of all threads together.
    pub backlog: usize,
    /// A server that answers nothing for this long while keys are gone through has failed.
    pub patience: Duration,
    /// How many threads there are.
    pub threads: usize,
    /// How many connections there are.
    pub connections: usize,
    /// The user wants it to end.
    pub stop: &'a AtomicBool,
    /// Set when a connection broke.
    pub broken: AtomicBool,
    /// How an error is told.
    pub told: Told<'a>,
}

/// What came of a thread's part.
pub struct Share<T> {
    /// What was measured.
    pub tally: T,
    /// What was wrong.
    pub wrong: Wrongs,
    /// Why it ended before its time.
    pub error: Option<String>,
    /// Answers that were checked, at any time of the run.
    pub answers: u64,
    /// Requests that are still without an answer.
    pub open: usize,
}

impl Plan<'_> {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// One thread's part: its connections, of which the first has the number `first` of all; it is thread `number`.
pub fn run<T: Tally>(plan: &Plan<'_>, links: &mut [Link], first: usize, number: usize, course: Course<'_>, tally: T) -> Share<T> {
    let poller = match Worker::<T>::poller(links) {
        Ok(poller) => poller,
        Err(error) => return Share { tally, wrong: Wrongs::default(), error: Some(epoll(&error)), answers: 0, open: 0 },
    };
    let mut worker = Worker::new(plan, links, poller, first, number, course, tally);
    let (begun, waited) = (Instant::now(), waited());
    let error = worker.go().err();
    let waited = self::waited().saturating_sub(waited);
    if error.is_some() {
        plan.broken.store(true, Relaxed);
    }
    let dropped = worker.give_up();
    worker.tally.over(waited.as_secs_f64() / begun.elapsed().as_secs_f64().max(1e-9), dropped);
    let Worker { tally, wrong, answers, under_way, .. } = worker;
    Share { tally, wrong, error, answers, open: under_way }
}

fn epoll(error: &io::Error) -> String {
    format!("epoll: {error}")
}

/// Keys of a connection that are still to be gone through.
struct Keys {
    next: u64,
    /// Those whose request was lost.
    again: Vec<u64>,
}

struct Worker<'a, T> {
    plan: &'a Plan<'a>,
    links: &'a mut [Link],
    /// Numbers of the connections among all.
    own: Range<usize>,
    poller: Poller,
    space: Space,
    course: Course<'a>,
    /// Closed loop: connections that a request is due on.
    owed: Vec<usize>,
    /// A pass: the keys of each connection.
    keys: Vec<Keys>,
    /// Connections that have something to send.
    touched: Vec<usize>,
    ready: Vec<usize>,
    under_way: usize,
    /// Bytes that sockets have not taken.
    backlog: usize,
    /// No request is due from here on.
    end: u64,
    /// When something came or went.
    active: u64,
    expiry: u64,
    tally: T,
    wrong: Wrongs,
    answers: u64,
}

impl<'a, T: Tally> Worker<'a, T> {
    fn poller(links: &[Link]) -> io::Result<Poller> {
        let poller = Poller::new()?;
        for (place, link) in links.iter().enumerate() {
            poller.add(link, place, link.blocked)?;
        }
        Ok(poller)
    }

    fn new(
        plan: &'a Plan<'a>,
        links: &'a mut [Link],
        poller: Poller,
        first: usize,
        number: usize,
        course: Course<'a>,
        tally: T,
    ) -> Self {
        let count = links.len();
        let owed = match &course {
            Course::Open(_) => Vec::new(),
            Course::Closed(all, _) => {
                (0..*all as usize).skip(number).step_by(plan.threads).map(|n| n / plan.threads % count).collect()
            }
            Course::Pass(pass) => (0..count).flat_map(|place| std::iter::repeat_n(place, pass.each as usize)).collect(),
        };
        Worker {
            keys: (first..first + count).map(|number| Keys { next: number as u64, again: Vec::new() }).collect(),
            own: first..first + count,
            poller,
            space: Space::default(),
            course,
            owed,
            touched: Vec::new(),
            ready: Vec::new(),
            under_way: 0,
            backlog: links.iter().map(Link::unsent).sum(),
            end: plan.end,
            active: 0,
            expiry: 0,
            tally,
            wrong: Wrongs::default(),
            answers: 0,
            plan,
            links,
        }
    }

    fn go(&mut self) -> Result<(), String> {
        loop {
            let now = self.plan.now();
            self.tally.look(now);
            if self.over(now)? {
                return Ok(());
            }
            if !self.is_open() && now < self.end {
                self.send_owed(now);
            } else if now < self.end.saturating_add(self.plan.grace) {
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

    fn is_open(&self) -> bool {
        matches!(self.course, Course::Open(_))
    }

    /// Whether it is over: no request is due any more, and no answer is waited for any longer.
    fn over(&mut self, now: u64) -> Result<bool, String> {
        if self.plan.broken.load(Relaxed) {
            return Ok(true);
        }
        if self.plan.stop.load(Relaxed) && now < self.end {
            self.end = now;
            self.tally.end(now);
        }
        if let Course::Pass(pass) = &self.course
            && self.end > now
        {
            if pass.ends_at_wrong && !self.wrong.is_empty() {
                self.plan.broken.store(true, Relaxed);
                return Ok(true);
            }
            if Duration::from_nanos(now.saturating_sub(self.active)) > self.plan.patience {
                return Err(format!("the server has answered nothing for {:?}", self.plan.patience));
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
            let until = now.min(self.end.saturating_sub(1));
            let Course::Open(schedule) = &mut self.course else { break };
            let Some((due, request, connection)) = schedule.due(until) else { break };
            self.send(request, connection - self.own.start, due, now);
        }
    }

    /// When the next request is due.
    fn next(&mut self) -> Option<u64> {
        let Course::Open(schedule) = &mut self.course else { return None };
        schedule.next().filter(|next| *next < self.end)
    }

    /// Open loop, after the end: what was due and is not sent never will be, and is not forgotten.
    fn skip_due(&mut self) {
        let end = self.end.saturating_sub(1);
        let Course::Open(schedule) = &mut self.course else { return };
        while let Some((due, op)) = schedule.skip(end) {
            self.tally.behind(op, due);
        }
    }

    /// Closed loop: a request for each answer.
    fn send_owed(&mut self, now: u64) {
        for _ in 0..BATCH {
            let Some(place) = self.owed.pop() else { break };
            match &mut self.course {
                Course::Open(_) => {}
                Course::Closed(_, draw) => {
                    let (request, connection) = draw.draw(self.own.start + place);
                    self.send(request, connection - self.own.start, now, now);
                }
                Course::Pass(pass) => {
                    let (op, keys) = (pass.op, pass.keys);
                    if let Some(key) = self.next_key(place, keys) {
                        self.send(self.plan.protocol.request(op, key), place, now, now);
                    }
                }
            }
        }
    }

    fn next_key(&mut self, place: usize, all: u64) -> Option<u64> {
        let keys = &mut self.keys[place];
        keys.again.pop().or_else(|| {
            let key = keys.next;
            (key < all).then(|| keys.next += self.plan.connections as u64)?;
            Some(key)
        })
    }

    fn send(&mut self, request: Request, place: usize, due: u64, now: u64) {
        let open = self.is_open();
        let link = &mut self.links[place];
        let [window, backlog] = [self.plan.window, self.plan.backlog].map(|most| (most / self.plan.threads).max(1));
        let before = link.unsent();
        let is_full = open && (self.under_way >= window || self.backlog >= backlog);
        if is_full || !link.send(self.plan.protocol, request, due, now) {
            self.tally.unsent(request.op, due);
            return;
        }
        if link.blocked {
            self.tally.held(due);
        }
        self.backlog += link.unsent() - before;
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
            if matches!(self.course, Course::Open(_)) && !link.fresh.is_empty() {
                let now = self.plan.now();
                link.fresh.iter().for_each(|due| self.tally.sent(*due, now));
            }
            link.fresh.clear();
            let before = link.unsent();
            link.flush(&mut self.space).map_err(|error| (self.plan.told)("send to", &error, self.under_way))?;
            self.backlog -= before - link.unsent();
            if link.blocked != was_blocked {
                self.poller.change(&*link, place, link.blocked).map_err(|error| epoll(&error))?;
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
            // A pass is over, which the next round sees.
            None if !self.is_open() && self.under_way == 0 => 0,
            // Closed loop: what is waited for will be there soon.
            None if !self.is_open() && now.saturating_sub(self.active) < self.plan.spin => 0,
            None => u64::MAX,
        };
        let look = if self.under_way > 0 && self.plan.may_lose {
            LOOK.min(Duration::from_nanos(self.plan.timeout / 4 + 100_000))
        } else {
            LOOK
        };
        let ready = &mut self.ready;
        self.poller.wait(Duration::from_nanos(left).min(look), |place| ready.push(place)).map_err(|error| epoll(&error))
    }

    /// Step 3.
    fn receive(&mut self) -> Result<(), String> {
        while let Some(place) = self.ready.pop() {
            let link = &mut self.links[place];
            if link.blocked && !std::mem::replace(&mut link.touched, true) {
                self.touched.push(place);
            }
            let (plan, tally, wrong, owed) = (self.plan, &mut self.tally, &mut self.wrong, &mut self.owed);
            let (mut now, mut answers) = (None, 0);
            let received = link.receive(plan.protocol, &mut self.space, |came| match came {
                Came::Answer(sent, checked) => {
                    let now = *now.get_or_insert_with(|| plan.now());
                    answers += 1;
                    tally.answered(sent.request.op, sent.due, now, checked == Checked::Miss);
                    if let Checked::Wrong(kind, what) = checked {
                        wrong.add(kind, || what);
                    }
                    owed.push(place);
                }
                Came::Late => tally.late_answer(),
                Came::Duplicate => tally.duplicate(),
                Came::Stray(what) => wrong.add("no answers", || what),
            });
            self.under_way -= answers;
            self.answers += answers as u64;
            self.active = now.unwrap_or(self.active);
            if self.is_open() {
                self.owed.clear();
            }
            received.map_err(|error| (self.plan.told)("receive from", &error, self.under_way))?;
        }
        Ok(())
    }

    /// Gives up what was not answered in time. Over TCP an answer comes, or the connection breaks.
    fn expire(&mut self) {
        if !self.plan.may_lose || self.under_way == 0 {
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
                self.tally.lost(sent.request.op, sent.due);
                self.under_way -= 1;
                match self.course {
                    Course::Open(_) => continue,
                    Course::Closed(..) => {}
                    Course::Pass(_) => self.keys[place].again.push(sent.request.key),
                }
                self.owed.push(place);
            }
        }
    }

    /// At the end: what is still not answered is lost. Returns how many answers the sockets had no room for.
    fn give_up(&mut self) -> u64 {
        for link in self.links.iter_mut() {
            while let Some(sent) = link.expire(u64::MAX) {
                self.tally.lost(sent.request.op, sent.due);
            }
        }
        let ports: Vec<u16> = self.links.iter().filter_map(Link::udp_port).collect();
        if ports.is_empty() { 0 } else { drops(&ports) }
    }
}

/// How long the thread has waited for a processor while it could run; 0 if the kernel does not tell.
fn waited() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split_whitespace().nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0))
}
