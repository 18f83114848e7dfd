//! Chooses which actor runs next. Actors are stackful coroutines on one thread: the engine's own blocking calls
//! (`resolve`, `claim`, `Evictor::run`) run unchanged, and every call that the engine makes to the world may switch.

use crate::world::{Status, note, stamp, world};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::Cell;
use std::mem::ManuallyDrop;

const STACK_BYTES: usize = 512 << 10;
/// Steps after which the scheduler changes which actors it favours.
const MOOD_STEPS: u64 = 700;

thread_local! {
    static YIELDER: Cell<*const Yielder<(), ()>> = const { Cell::new(std::ptr::null()) };
}

type Body = Coroutine<(), (), ()>;

/// All coroutines of a run. A broken run leaks the coroutines that have not returned: their stacks hold frames of the
/// engine in the middle of its work.
#[derive(Default)]
pub struct Scheduler {
    bodies: Vec<ManuallyDrop<Body>>,
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scheduler").field("actors", &self.bodies.len()).finish()
    }
}

/// Lets other actors run; returns when the scheduler chooses this actor again. Outside an actor it does nothing.
pub fn switch() {
    let yielder = YIELDER.get();
    if yielder.is_null() {
        return;
    }
    // SAFETY: `spawn` stored the address of the yielder of the coroutine that runs now, which lives on its stack as long
    // as its body runs; each `switch` restores its own coroutine's address when it resumes.
    unsafe { &*yielder }.suspend(());
    YIELDER.set(yielder);
}

/// Perhaps lets other actors run, as often as the run's set-up says.
pub fn maybe_switch() {
    if world(|w| {
        let often = w.setup.switch_rate;
        w.rng.chance(often)
    }) {
        switch();
    }
}

/// Sleeps until `now + ns`.
pub fn sleep_ns(ns: u64) {
    block(0, Some(world(|w| w.now) + ns));
}

/// Sleeps until `until`, or until another actor wakes `on`.
pub fn block(on: usize, until: Option<u64>) {
    world(|w| w.actors[w.current].status = Status::Blocked { on, until });
    switch();
}

/// Sleeps until the run's main thread calls.
pub fn park() {
    world(|w| w.actors[w.current].status = Status::Parked);
    switch();
}

/// Wakes every actor that sleeps on `on`.
pub fn wake(on: usize) {
    world(|w| {
        for actor in &mut w.actors {
            if matches!(actor.status, Status::Blocked { on: o, .. } if o == on) {
                actor.status = Status::Runnable;
            }
        }
    });
}

/// The outcome of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stepped {
    /// An actor ran.
    Ran,
    /// Every actor sleeps, and no time will wake one.
    Stuck,
}

impl Scheduler {
    /// Adds the body of the actor that was last added to the world.
    ///
    /// # Panics
    /// When there is no memory for a stack.
    pub fn spawn(&mut self, body: impl FnOnce() + 'static) {
        let stack = DefaultStack::new(STACK_BYTES).expect("no memory for a coroutine's stack");
        self.bodies.push(ManuallyDrop::new(Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            YIELDER.set(yielder);
            body();
        })));
    }

    /// Steps one actor, chosen by chance.
    pub fn step(&mut self) -> Stepped {
        let Some(next) = world(|w| {
            w.step += 1;
            w.now += w.rng.between(20, 400);
            if w.step % MOOD_STEPS == 0 {
                for i in 0..w.actors.len() {
                    w.actors[i].weight = w.rng.pick(&[0, 1, 4, 16]);
                }
            }
            let next = choose(w);
            if let Some(next) = next {
                w.current = next;
                stamp(w.step, next);
            }
            next
        }) else {
            return Stepped::Stuck;
        };
        let body = &mut self.bodies[next];
        let result = body.resume(());
        YIELDER.set(std::ptr::null());
        if let CoroutineResult::Return(()) = result {
            world(|w| w.actors[next].status = Status::Done);
            note("returned", 0, 0);
            // SAFETY: the body has returned, `choose` never takes a `Done` actor again, and no other code drops it.
            unsafe { ManuallyDrop::drop(body) };
        }
        Stepped::Ran
    }
}

/// Chooses an actor that can run; moves the time on if all sleep.
fn choose(w: &mut crate::world::World) -> Option<usize> {
    loop {
        let (now, mut sum, mut first_alarm) = (w.now, 0, u64::MAX);
        for i in 0..w.actors.len() {
            if let Status::Blocked { until, .. } = w.actors[i].status {
                let over = until.is_some_and(|t| t <= now);
                if over {
                    w.actors[i].status = Status::Runnable;
                } else {
                    first_alarm = first_alarm.min(until.unwrap_or(u64::MAX));
                }
            }
            if w.actors[i].status == Status::Runnable {
                sum += w.actors[i].weight.max(1) * if w.actors[i].weight == 0 { 1 } else { 64 };
            }
        }
        if sum > 0 {
            let mut ticket = w.rng.below(sum);
            for (i, actor) in w.actors.iter().enumerate() {
                if actor.status == Status::Runnable {
                    let share = actor.weight.max(1) * if actor.weight == 0 { 1 } else { 64 };
                    if ticket < share {
                        return Some(i);
                    }
                    ticket -= share;
                }
            }
        }
        if first_alarm == u64::MAX {
            return None;
        }
        w.now = first_alarm;
    }
}
