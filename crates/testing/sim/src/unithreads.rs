//! Workers of unithreads: threads of the program whose faults no thread waits for (`farshore_engine::fault::unwaited`).
//!
//! ```text
//!  run one ─▶ access ─▶ fault ─▶ go_on ─┬─ served ─▶ the access again
//!     ▲                                 ├─ Read ───▶ ring ───┐
//!     │                                 ├─ Due ────▶ due ────┤ the worker runs others, makes calls, sleeps
//!     │                                 └─ Look ───▶ polled ─┤
//!     └──────────────── go_on ◀── look: what has come, or may have
//! ```
//!
//! A worker takes the steps of the shipped library (`preload/src/ground/unithreads/worker.rs`), in any order and at any later moment:
//!
//! * a read is taken on when it has ended, a time when it is over, other waits when the engine says that they may go on (now and
//!   then before, which must do no harm);
//! * a fault that could not be served is asked for once more in place;
//! * before the worker waits for anything, it ends those of its fetches that own a page ([`Worker::settle`]): before a fault in
//!   place, pins, memory calls, a fork.
//!
//! The invariants: a fault that waits for a transfer owns its page; one that is to be looked at owns nothing; and whatever is
//! under way when the run is brought to rest comes to its end.

use crate::Rig;
use crate::model::Expected;
use crate::program::{
    FAULTS_MAX, Pinned, Tried, accept, between_things, choose, fetch_buffer, is_over_when_foreign, must_be_explained, pin,
    pinned_call, progress, try_access, use_and_unpin,
};
use crate::reads::{Read, submit};
use crate::sched::{block, maybe_switch};
use crate::world::{Luck, broken, note, world};
use crate::{calls, forks};
use farshore_core::page::{Access, Page};
use farshore_core::seams::PageBuf;
use farshore_engine::fault::resolve::{Failure, Resolved};
use farshore_engine::fault::unwaited::{ALL_CAME, Unwaited, Wants};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

/// How long something may be under way after the run has asked all actors to stop. Longer than any read hangs.
const REST_NS: u64 = 10_000_000_000;
/// Longest pause between two looks at what is polled.
const POLL_MAX_NS: u64 = 2_000_000;

/// What a unithread does.
#[derive(Debug)]
enum Doing {
    Nothing,
    /// The unithread makes an access, which has faulted this often.
    Access {
        page: Page,
        access: Access,
        before: Expected,
        faults: u32,
    },
    /// The unithread waits for a system call that another thread, or the kernel, makes with pinned pages until then.
    Call {
        pinned: Pinned,
        access: Access,
        until: u64,
    },
}

#[derive(Debug)]
struct Unithread {
    doing: Doing,
    fault: Option<Unwaited>,
    buffer: Box<[PageBuf]>,
    cursor: Option<Page>,
    /// The page could not be brought in: its next fault is served in place, and shows why.
    in_place: bool,
    /// Faults that were injected into its own fault.
    luck: Luck,
}

/// A read under way: which unithread it is for, and where it goes to.
#[derive(Debug)]
struct Reading {
    index: usize,
    into: Range<usize>,
    read: Read,
}

#[derive(Debug)]
struct Worker {
    rig: Rc<Rig>,
    core: usize,
    /// A buffer for faults that are served in place.
    buffer: Box<[PageBuf]>,
    all: Vec<Unithread>,
    ring: Vec<Reading>,
    /// In the order of their times.
    due: VecDeque<(u64, usize)>,
    polled: VecDeque<usize>,
    /// Pause before the next look at them.
    pause: u64,
    /// When the worker learned that the run pauses.
    pausing_since: Option<u64>,
}

/// A thread of the program that is a worker.
pub fn worker(rig: &Rc<Rig>, core: usize) {
    let mut worker = Worker::new(rig, core);
    loop {
        if worker.is_idle() {
            worker.pausing_since = None;
            if between_things() {
                return;
            }
        } else {
            worker.must_end_soon();
        }
        if world(|w| w.rng.below(2) == 0) {
            worker.look();
        }
        if !worker.run_one() && !worker.look() {
            worker.doze();
        }
        maybe_switch();
    }
}

impl Unithread {
    fn new() -> Unithread {
        Unithread {
            doing: Doing::Nothing,
            fault: None,
            buffer: fetch_buffer(),
            cursor: None,
            in_place: false,
            luck: Luck::default(),
        }
    }

    fn owns(&self) -> bool {
        self.fault.as_ref().is_some_and(Unwaited::owns)
    }

    fn is_idle(&self) -> bool {
        matches!(self.doing, Doing::Nothing)
    }
}

impl Worker {
    fn new(rig: &Rc<Rig>, core: usize) -> Worker {
        let each = world(|w| w.setup.unithreads);
        Worker {
            rig: Rc::clone(rig),
            core,
            buffer: fetch_buffer(),
            all: (0..each).map(|_| Unithread::new()).collect(),
            ring: Vec::new(),
            due: VecDeque::new(),
            polled: VecDeque::new(),
            pause: 0,
            pausing_since: None,
        }
    }

    fn is_idle(&self) -> bool {
        self.all.iter().all(Unithread::is_idle)
    }

    /// While the run is brought to rest, nothing stays under way.
    fn must_end_soon(&mut self) {
        let (pausing, now) = world(|w| (w.pausing, w.now));
        if !pausing {
            self.pausing_since = None;
        } else if now - *self.pausing_since.get_or_insert(now) > REST_NS {
            let page = self.all.iter().find_map(|one| one.fault.as_ref()).map_or(0, |fault| fault.page().0);
            broken(page, "a fault of a unithread is under way, and nobody moves it on");
        }
    }

    /// Does `what` as unithread `index`: faults injected meanwhile explain its failures, and not those of others.
    fn as_unithread<R>(&mut self, index: usize, what: impl FnOnce(&mut Worker) -> R) -> R {
        let swap = |worker: &mut Worker| {
            world(|w| {
                let current = w.current;
                std::mem::swap(&mut w.actors[current].luck, &mut worker.all[index].luck);
            });
        };
        swap(self);
        let result = what(self);
        swap(self);
        result
    }

    // What unithreads do.

    /// Lets a unithread that can run take one action. False: there is none.
    fn run_one(&mut self) -> bool {
        let (now, pausing) = world(|w| (w.now, w.pausing || w.stopping));
        let can = |one: &Unithread| match &one.doing {
            _ if one.fault.is_some() => false,
            Doing::Nothing => !pausing,
            Doing::Access { .. } => true,
            Doing::Call { until, .. } => *until <= now,
        };
        let ready: Vec<usize> = (0..self.all.len()).filter(|&index| can(&self.all[index])).collect();
        if ready.is_empty() {
            return false;
        }
        let index = world(|w| w.rng.pick(&ready));
        self.as_unithread(index, |worker| worker.run(index))
    }

    fn run(&mut self, index: usize) -> bool {
        match std::mem::replace(&mut self.all[index].doing, Doing::Nothing) {
            Doing::Nothing => return self.start(index),
            Doing::Access { page, access, before, faults } => {
                if faults > FAULTS_MAX {
                    broken(page.0, "an access of a unithread faults for ever");
                }
                self.all[index].doing = Doing::Access { page, access, before, faults: faults + 1 };
                if self.touch(index, page, access, before) {
                    self.all[index].doing = Doing::Nothing;
                    self.all[index].in_place = false;
                }
            }
            Doing::Call { pinned, access, .. } => use_and_unpin(&self.rig, &pinned, access),
        }
        true
    }

    /// Begins an action. False: the program has no memory.
    fn start(&mut self, index: usize) -> bool {
        let Some((page, access, call)) = world(|w| choose(w, &mut self.all[index].cursor)) else { return false };
        let (dice, calls, forks) = world(|w| (w.rng.below(1000), w.setup.callers > 0, w.setup.forks));
        match dice {
            _ if call => self.system_call(index, page, access),
            0..=2 if calls => {
                self.settle();
                calls::call(&self.rig, self.core, &mut self.buffer);
            }
            3 if forks => {
                self.settle();
                forks::perhaps_fork(&self.rig);
            }
            _ => {
                let before = world(|w| w.model.get(page));
                self.all[index].doing = Doing::Access { page, access, before, faults: 0 };
            }
        }
        true
    }

    /// Makes a call with pinned pages: the worker is in it, or the unithread waits for it.
    fn system_call(&mut self, index: usize, page: Page, access: Access) {
        self.settle();
        if world(|w| w.rng.below(2) == 0) {
            return pinned_call(&self.rig, page, access, self.core, &mut self.buffer);
        }
        let pinned = pin(&self.rig, page, access, self.core, &mut self.buffer);
        let until = world(|w| w.now + w.rng.between(0, 200_000));
        self.all[index].doing = Doing::Call { pinned, access, until };
    }

    /// Tries the access. True: the access is over.
    fn touch(&mut self, index: usize, page: Page, access: Access, before: Expected) -> bool {
        let protected = match try_access(page, access, before) {
            Tried::Ended(_) => return true,
            Tried::Fault { protected } => protected,
        };
        maybe_switch();
        // Now and then the access is at a place where the worker cannot be switched away.
        if self.all[index].in_place || world(|w| w.rng.chance(300)) {
            self.all[index].in_place = false;
            self.settle();
            let served = self.rig.engine.resolve(page, access, protected, self.core, &mut self.buffer);
            return self.ends(page, before, served);
        }
        let now = world(|w| w.now);
        self.all[index].fault = Some(Unwaited::new(page, access, protected, self.core, now));
        match self.take_on(index, 0) {
            Some(Err(why)) => self.failed(index, page, why),
            Some(served) => self.ends(page, before, served),
            None => false,
        }
    }

    /// Whether an access is over when its fault has ended with this result.
    fn ends(&self, page: Page, before: Expected, served: Result<Resolved, Failure>) -> bool {
        match served {
            Ok(Resolved::Done) => false,
            Ok(Resolved::Foreign) => is_over_when_foreign(page, before),
            Err(why) => {
                accept(&self.rig, page, why);
                true
            }
        }
    }

    fn failed(&mut self, index: usize, page: Page, why: Failure) -> bool {
        must_be_explained(&self.rig, page, why);
        self.all[index].in_place = true;
        false
    }

    // What their faults wait for.

    /// Takes a fault on, as its unithread. `None`: the fault waits, in its place.
    fn take_on(&mut self, index: usize, mut answer: i32) -> Option<Result<Resolved, Failure>> {
        loop {
            let one = &mut self.all[index];
            let Some(fault) = one.fault.as_mut() else { broken(0, "a unithread has no fault") };
            let (page, wants) = (fault.page(), self.rig.engine.go_on(fault, &mut one.buffer, answer));
            if fault.owns() != matches!(wants, Wants::Read { .. } | Wants::Due(_)) {
                broken(page.0, &format!("a fault wants {wants:?}, and that it owns its page is {}", fault.owns()));
            }
            match wants {
                Wants::Served(result) => {
                    one.fault = None;
                    world(progress);
                    return Some(result);
                }
                Wants::Read { fd, offset, into } => {
                    let read = submit(fd, offset, &mut one.buffer[into.clone()]);
                    if world(|w| w.rng.chance(9_500)) {
                        self.put_aside("aside: read", index, page, |counts| &mut counts.aside_for_read);
                        self.ring.push(Reading { index, into, read });
                        return None;
                    }
                    // The ring takes no read: it is made here and now.
                    block(0, Some(read.done_at));
                    answer = read.reap(&mut one.buffer[into]);
                }
                Wants::Due(ns) => {
                    self.put_aside("aside: due", index, page, |counts| &mut counts.aside_for_time);
                    let place = self.due.partition_point(|&(other, _)| other <= ns);
                    self.due.insert(place, (ns, index));
                    return None;
                }
                Wants::Look => {
                    self.put_aside("aside: look", index, page, |counts| &mut counts.aside_to_look);
                    self.polled.push_back(index);
                    return None;
                }
            }
        }
    }

    fn put_aside(&self, what: &'static str, index: usize, page: Page, count: fn(&mut crate::world::Counts) -> &mut u64) {
        note(what, page.0, index as u64);
        world(|w| *count(&mut w.counts) += 1);
    }

    /// A fault that was put aside goes on; its unithread can run when it is over.
    fn go_on(&mut self, index: usize, answer: impl FnOnce(&mut Unithread) -> i32) {
        self.as_unithread(index, |worker| {
            let answer = answer(&mut worker.all[index]);
            let Doing::Access { page, before, .. } = worker.all[index].doing else { broken(0, "a fault without an access") };
            let over = match worker.take_on(index, answer) {
                Some(Err(why)) => worker.failed(index, page, why),
                Some(served) => worker.ends(page, before, served),
                None => false,
            };
            if over {
                worker.all[index].doing = Doing::Nothing;
            }
        });
    }

    /// Takes on the faults that can go on, or some of them. False: there were none.
    fn look(&mut self) -> bool {
        self.pause = self.pause.clamp(1_000, POLL_MAX_NS);
        let any = self.completions() | self.times() | self.poll();
        if any {
            self.pause = 0;
        }
        any
    }

    /// Takes reads that have ended, in any order.
    fn completions(&mut self) -> bool {
        let mut any = false;
        for _ in 0..world(|w| w.rng.between(1, 8)) {
            let ended: Vec<usize> = world(|w| (0..self.ring.len()).filter(|&at| self.ring[at].read.done_at <= w.now).collect());
            if ended.is_empty() {
                break;
            }
            let Reading { index, into, read } = self.ring.swap_remove(world(|w| w.rng.pick(&ended)));
            self.go_on(index, |one| read.reap(&mut one.buffer[into]));
            any = true;
        }
        any
    }

    fn times(&mut self) -> bool {
        let mut any = false;
        while let Some(&(ns, index)) = self.due.front()
            && ns <= world(|w| w.now)
        {
            self.due.pop_front();
            self.go_on(index, |_| ALL_CAME);
            any = true;
        }
        any
    }

    /// Looks at some of the polled faults.
    fn poll(&mut self) -> bool {
        let mut any = false;
        for _ in 0..self.polled.len() {
            let Some(index) = self.polled.pop_front() else { break };
            let may = self.all[index].fault.as_ref().is_some_and(|fault| self.rig.engine.may_go_on(fault));
            if !may && !world(|w| w.rng.chance(100)) {
                self.polled.push_back(index);
                continue;
            }
            let before = self.polled.len();
            self.go_on(index, |_| 0);
            any = true;
            if self.polled.len() > before && world(|w| w.rng.below(2) == 0) {
                break;
            }
        }
        any
    }

    /// When the next transfer has ended.
    fn next_transfer(&self) -> Option<u64> {
        self.ring.iter().map(|reading| reading.read.done_at).chain(self.due.iter().map(|&(ns, _)| ns)).min()
    }

    /// The worker can do nothing now: sleeps until something may have come, or a little longer.
    fn doze(&mut self) {
        let calls = self.all.iter().filter_map(|one| match one.doing {
            Doing::Call { until, .. } => Some(until),
            _ => None,
        });
        let next = self.next_transfer().into_iter().chain(calls).min();
        let until = world(|w| {
            let late = if w.rng.below(10) == 0 { w.rng.below(1_000_000) } else { 0 };
            let look = w.now + self.pause.max(2_000);
            let idle = next.is_none() || !self.polled.is_empty();
            next.map_or(look, |next| if idle { next.min(look) } else { next }) + late
        });
        self.pause = (self.pause * 2).min(POLL_MAX_NS);
        block(0, Some(until));
    }

    /// Ends the fetches that others may wait for: the worker is about to wait, perhaps for one of them.
    fn settle(&mut self) {
        if self.all.iter().any(Unithread::owns) {
            note("settle", 0, 0);
            world(|w| w.counts.settled += 1);
        }
        while self.all.iter().any(Unithread::owns) {
            if self.look() {
                continue;
            }
            let Some(next) = self.next_transfer() else { broken(0, "a fault owns its page, and nothing brings it") };
            let until = world(|w| next.max(w.now + 1).min(w.now + 100_000));
            block(0, Some(until));
        }
    }
}
