//! A run: events in the order of their times.
//!
//! An actor (a thread or an evictor) has one event at a time. When its core is busy then, with another actor or with interrupts, the event comes again when it is
//! not. A lock, a device and a core are each a time until which they are taken, so whoever comes first is served first.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use farshore_random::Rng;

use crate::machine::Machine;
use crate::system::{LOCKS, Load, Lock, Step, System};
use crate::told::{CAUSES, Cause, Told};

/// Faults of a thread before any are counted, and of all; counted ones.
const WARM: u64 = 40;
const WARM_ALL: u64 = 4_000;
const COUNTED: u64 = 150;
const COUNTED_ALL: u64 = 30_000;
/// Frames of the pool, in batches of all evictors; in frames for each thread at least.
const BATCHES: u32 = 4;
const FRAMES: u32 = 4;
/// The widest variation of a cost, in permille.
const VARIES: u64 = 100;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    Turn(usize),
    /// So many pages are in no TLB any more.
    Flushed(u32, usize),
    /// So many pages are written.
    Written(u32),
}

#[derive(Clone, Copy, Debug)]
struct Batch {
    pages: u32,
    stage: usize,
}

#[derive(Clone, Debug)]
struct Actor {
    core: u32,
    evictor: bool,
    /// The next step of the fault; 0: it computes.
    step: usize,
    began_ns: u64,
    /// Pages that come along with the fault's.
    along: u32,
    batch: Option<Batch>,
    /// It waits for a frame, or an evictor for work, since then.
    asleep_ns: Option<u64>,
    /// A frame was given to it while it waited.
    given: bool,
}

#[derive(Clone, Copy, Default, Debug)]
struct Held {
    until_ns: u64,
    by: Option<u32>,
}

struct World<'a> {
    machine: &'a Machine,
    system: &'a System,
    load: &'a Load,
    rng: Rng,
    now_ns: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    number: u64,
    actors: Vec<Actor>,
    cores: Vec<u64>,
    interrupts: Vec<u64>,
    locks: [Held; LOCKS.len()],
    reads: Vec<u64>,
    writes: Vec<u64>,
    next_write: usize,
    free: u32,
    coming: u32,
    pool: u32,
    waiting: VecDeque<usize>,
    done: u64,
    told: Told,
    since_ns: u64,
}

/// Runs a load on a system on a machine, until enough faults were counted. The same `seed` gives the same.
///
/// # Panics
/// There is neither an evictor nor a fault that evicts although pages leave, or no thread: nothing would go on.
#[must_use]
pub fn run(machine: &Machine, system: &System, load: &Load, seed: u64) -> Told {
    let mut world = World::new(machine, system, load, seed);
    let threads = u64::from(load.threads);
    let warm = (threads * WARM).max(WARM_ALL);
    let end = warm + (threads * COUNTED).max(COUNTED_ALL);
    let mut is_warm = false;
    while world.done < end {
        let Reverse((now, _, event)) = world.events.pop().expect("nothing can go on: who evicts?");
        world.now_ns = now;
        if !is_warm && world.done >= warm {
            is_warm = true;
            world.since_ns = now;
            world.told = none();
        }
        match event {
            Event::Turn(actor) => world.turn(actor),
            Event::Flushed(pages, actor) => _ = world.write(pages, world.actors[actor].core),
            Event::Written(pages) => world.release(pages),
        }
    }
    world.told.ns = world.now_ns - world.since_ns;
    world.told.faults = world.told.latencies.len() as u64;
    world.told.latencies.sort_unstable();
    world.told
}

fn none() -> Told {
    Told { faults: 0, ns: 0, latencies: Vec::new(), spent: [0; CAUSES.len()], flushes: 0, flush_ns: 0, by_faults: 0 }
}

impl<'a> World<'a> {
    fn new(machine: &'a Machine, system: &'a System, load: &'a Load, seed: u64) -> World<'a> {
        let cores = machine.cores.max(1);
        let evictors = if load.evicts { system.eviction.evictors } else { 0 };
        let actor = |index: u32| Actor {
            core: index % cores,
            evictor: index >= load.threads,
            step: 0,
            began_ns: 0,
            along: 0,
            batch: None,
            asleep_ns: None,
            given: false,
        };
        let frames = load.threads * FRAMES * (1 + load.along_percent.div_ceil(100));
        let pool = (system.eviction.batch * evictors * BATCHES).max(frames);
        let devices = machine.far.devices as usize;
        let mut world = World {
            machine,
            system,
            load,
            rng: Rng::new(seed),
            now_ns: 0,
            events: BinaryHeap::new(),
            number: 0,
            actors: (0..load.threads + evictors).map(actor).collect(),
            cores: vec![0; cores as usize],
            interrupts: vec![0; cores as usize],
            locks: [Held::default(); LOCKS.len()],
            reads: vec![0; devices],
            writes: vec![0; devices],
            next_write: 0,
            free: pool,
            coming: 0,
            pool,
            waiting: VecDeque::new(),
            done: 0,
            told: none(),
            since_ns: 0,
        };
        for index in 0..world.actors.len() {
            // Threads do not begin as one.
            let at = world.rng.below(load.think_ns.max(1_000));
            world.at(at, Event::Turn(index));
        }
        world
    }

    fn at(&mut self, ns: u64, event: Event) {
        self.number += 1;
        self.events.push(Reverse((ns, self.number, event)));
    }

    fn varied(&mut self, ns: u64) -> u64 {
        let widest = ns * VARIES / 1_000;
        ns - widest + self.rng.below(2 * widest + 1)
    }

    /// What a thread's time went to. Evictors' time is nobody's.
    fn spend(&mut self, index: usize, cause: Cause, ns: u64) {
        if !self.actors[index].evictor {
            let cause = if self.actors[index].batch.is_some() { Cause::Evicts } else { cause };
            self.told.spent[cause as usize] += ns;
        }
    }

    /// The actor goes on.
    fn turn(&mut self, index: usize) {
        let core = self.actors[index].core as usize;
        if self.cores[core] > self.now_ns {
            let free = self.cores[core];
            self.spend(index, Cause::Core, free - self.now_ns);
            return self.at(free, Event::Turn(index));
        }
        if let Some(since) = self.actors[index].asleep_ns.take() {
            self.spend(index, Cause::NoFrame, self.now_ns - since);
        }
        if self.actors[index].batch.is_some() {
            return self.evict(index);
        }
        if self.actors[index].evictor {
            return self.begin(index);
        }
        let step = self.actors[index].step;
        if step == 0 {
            self.actors[index].step = 1;
            let ns = self.varied(self.load.think_ns);
            return self.work(index, Cause::Think, ns);
        }
        if step == 1 {
            self.actors[index].began_ns = self.now_ns;
            self.actors[index].along = self.comes_along();
        }
        let along = self.actors[index].along;
        if step == self.system.fault.len() + 1 && along > 0 {
            self.actors[index].step += 1;
            let ns = self.varied(self.system.along_ns * u64::from(along));
            return self.work(index, Cause::Work, ns);
        }
        let Some(&what) = self.system.fault.get(step - 1) else {
            let took = self.now_ns - self.actors[index].began_ns;
            self.told.latencies.push(took);
            self.done += 1;
            self.actors[index].step = 0;
            return self.turn(index);
        };
        if what == Step::Frame && !self.takes_frame(index) {
            return;
        }
        self.actors[index].step += 1;
        match what {
            Step::Work(ns) => {
                let ns = self.varied(ns);
                self.work(index, Cause::Work, ns);
            }
            Step::Hold(lock, ns) => self.hold(index, lock, ns),
            Step::Frame => self.turn(index),
            Step::Read => self.read(index),
        }
    }

    /// How many pages come along this time, so that the mean is the load's.
    fn comes_along(&mut self) -> u32 {
        let (whole, part) = (self.load.along_percent / 100, self.load.along_percent % 100);
        whole + u32::from(part > 0 && self.rng.below(100) < u64::from(part))
    }

    fn work(&mut self, index: usize, cause: Cause, ns: u64) {
        self.spend(index, cause, ns);
        let end = self.now_ns + ns;
        self.cores[self.actors[index].core as usize] = end;
        self.at(end, Event::Turn(index));
    }

    fn hold(&mut self, index: usize, lock: Lock, ns: u64) {
        let ns = self.varied(ns);
        if !self.system.shared.contains(&lock) {
            return self.work(index, Cause::Work, ns);
        }
        let core = self.actors[index].core;
        let held = self.locks[lock as usize];
        let line = match held.by {
            Some(other) if other != core => self.machine.line_ns[self.machine.apart(other, core)],
            _ => 0,
        };
        let start = held.until_ns.max(self.now_ns) + line;
        let end = start + ns;
        self.locks[lock as usize] = Held { until_ns: end, by: Some(core) };
        let cause = [Cause::Lists, Cause::Frames, Cause::Space, Cause::Tables, Cause::Signals][lock as usize];
        self.spend(index, cause, start - self.now_ns);
        self.spend(index, Cause::Work, ns);
        self.cores[core as usize] = end;
        self.at(end, Event::Turn(index));
    }

    fn read(&mut self, index: usize) {
        let far = self.machine.far;
        let device = self.device(self.actors[index].core);
        let start = self.reads[device].max(self.now_ns);
        let moves_ns = far.page_ns * (1 + u64::from(self.actors[index].along));
        self.reads[device] = start + moves_ns;
        if !far.both_ways {
            self.writes[device] = self.reads[device];
        }
        let end = start + moves_ns + self.varied(far.read_ns);
        self.spend(index, Cause::Queue, start - self.now_ns);
        self.spend(index, Cause::Read, end - start);
        if far.spins {
            self.cores[self.actors[index].core as usize] = end;
        }
        self.at(end, Event::Turn(index));
    }

    fn turn_of_writes(&mut self) -> usize {
        self.next_write = (self.next_write + 1) % self.writes.len();
        self.next_write
    }

    fn device(&mut self, core: u32) -> usize {
        let devices = u64::from(self.machine.far.devices);
        let device = if self.system.own_device { u64::from(core) % devices } else { self.rng.below(devices) };
        usize::try_from(device).unwrap_or(0)
    }

    /// Frames that the actor's fault needs.
    fn needs(&self, index: usize) -> u32 {
        1 + self.actors[index].along
    }

    /// Whether the thread has its frames. If not, it waits for them, or has begun to evict.
    fn takes_frame(&mut self, index: usize) -> bool {
        if !self.load.evicts || core::mem::take(&mut self.actors[index].given) {
            return true;
        }
        let needs = self.needs(index);
        if self.waiting.is_empty() && self.free >= needs {
            self.free -= needs;
            self.wake_evictor();
            return true;
        }
        if let Some(pages) = self.system.eviction.by_faults {
            self.coming += pages;
            self.told.by_faults += 1;
            self.actors[index].batch = Some(Batch { pages, stage: 0 });
            self.evict(index);
        } else {
            self.actors[index].asleep_ns = Some(self.now_ns);
            self.waiting.push_back(index);
            self.wake_evictor();
        }
        false
    }

    fn is_short(&self) -> bool {
        self.free + self.coming + self.system.eviction.batch <= self.pool
    }

    fn wake_evictor(&mut self) {
        let short = self.is_short();
        let asleep = |actor: &Actor| actor.evictor && actor.asleep_ns.is_some();
        if let Some(index) = self.actors.iter().position(asleep).filter(|_| short) {
            self.actors[index].asleep_ns = None;
            self.at(self.now_ns, Event::Turn(index));
        }
    }

    /// An evictor begins a batch, if one is wanted. Those that wait for a frame want one each.
    fn begin(&mut self, index: usize) {
        let pages = self.system.eviction.batch;
        let wanted = self.is_short() || self.coming < self.waiting.iter().map(|&waits| self.needs(waits)).sum();
        if !wanted {
            self.actors[index].asleep_ns = Some(self.now_ns);
            return;
        }
        self.coming += pages;
        self.actors[index].batch = Some(Batch { pages, stage: 0 });
        self.evict(index);
    }

    /// The next stage of a batch: a step for all its pages, a flush, or its write.
    fn evict(&mut self, index: usize) {
        let eviction = self.system.eviction;
        let Some(Batch { pages, stage }) = self.actors[index].batch else { return };
        self.actors[index].batch = Some(Batch { pages, stage: stage + 1 });
        let core = self.actors[index].core;
        let flushes = eviction.page.len()..eviction.page.len() + eviction.flushes as usize;
        match eviction.page.get(stage) {
            Some(&Step::Work(ns)) => {
                let ns = self.varied(ns * u64::from(pages));
                self.work(index, Cause::Work, ns);
            }
            Some(&Step::Hold(lock, ns)) => self.hold(index, lock, ns * u64::from(pages)),
            Some(Step::Frame | Step::Read) => self.evict(index),
            None if flushes.contains(&stage) => {
                let (sent, answered) = self.flush(core);
                let is_last = stage + 1 == flushes.end;
                if eviction.pipelined && is_last && self.actors[index].evictor {
                    self.actors[index].batch = None;
                    self.at(answered, Event::Flushed(pages, index));
                    self.work(index, Cause::Work, sent - self.now_ns);
                } else {
                    self.work(index, Cause::Work, answered - self.now_ns);
                }
            }
            None if stage == flushes.end => {
                let end = self.write(pages, core);
                if !self.actors[index].evictor || eviction.waits_for_write {
                    self.spend(index, Cause::Evicts, end - self.now_ns);
                    return self.at(end, Event::Turn(index));
                }
                self.actors[index].batch = None;
                self.begin(index);
            }
            None => {
                self.actors[index].batch = None;
                self.turn(index);
            }
        }
    }

    /// Interrupts all other cores that run threads. Returns when all were sent, and when all have answered.
    fn flush(&mut self, core: u32) -> (u64, u64) {
        let costs = self.machine.interrupts;
        let (mut sent, mut answered) = (self.now_ns, self.now_ns);
        let running = self.load.threads.min(self.machine.cores);
        for other in (0..running).filter(|&other| other != core) {
            sent += costs.send_ns;
            let way = costs.way_ns[self.machine.apart(core, other)];
            let taken = &mut self.interrupts[other as usize];
            *taken = (*taken).max(sent + way) + costs.handle_ns;
            answered = answered.max(*taken + way);
            // A core that works loses the time; one that waits does not.
            let busy = &mut self.cores[other as usize];
            if *busy > self.now_ns {
                *busy += costs.handle_ns;
            }
        }
        self.told.flushes += 1;
        self.told.flush_ns += answered - self.now_ns;
        (sent, answered)
    }

    /// Writes a batch: one run on one device. Returns when it is there; its frames come then.
    fn write(&mut self, pages: u32, core: u32) -> u64 {
        let far = self.machine.far;
        // What belongs to no core goes to each device in turn, and is read from any.
        let device = if self.system.own_device { self.device(core) } else { self.turn_of_writes() };
        let start = self.writes[device].max(self.now_ns);
        self.writes[device] = start + far.page_ns * u64::from(pages);
        if !far.both_ways {
            self.reads[device] = self.writes[device];
        }
        let end = self.writes[device] + self.varied(far.write_ns);
        self.at(end, Event::Written(pages));
        end
    }

    fn release(&mut self, pages: u32) {
        self.coming -= pages;
        self.free += pages;
        while let Some(index) = self.waiting.front().copied().filter(|&index| self.needs(index) <= self.free) {
            self.waiting.pop_front();
            self.free -= self.needs(index);
            self.actors[index].given = true;
            self.at(self.now_ns, Event::Turn(index));
        }
        if self.is_short() {
            self.wake_evictor();
        }
    }
}

#[cfg(test)]
#[path = "world_tests.rs"]
mod tests;
