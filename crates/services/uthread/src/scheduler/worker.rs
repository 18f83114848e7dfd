//! A worker: one OS thread, pinned to a core, that runs unithreads one after another, each on its own stack.
//!
//! ```text
//!  loop, on the worker's stack:
//!    completions and inbox ─▶ ready          looked at once before each unithread
//!    ready? ─────────▶ resume it             who has waited goes before who is new
//!    fresh? ─────────▶ begin it              what the dispatcher gave
//!    yielded? ───────▶ resume it             asks the dispatcher first
//!    nothing ────────▶ sleep in the ring     until a completion, a deadline, a kick
//! ```
//!
//! After [`STREAK_MAX`] resumed in a row a new or yielded one has a turn, so that two that keep each other ready starve nobody.
//!
//! # Who may touch a worker
//!
//! All but the [`Side`](super::shared::Side) belongs to the worker's thread, which runs either the loop or one unithread, and perhaps a signal handler on top. So there
//! are no locks, but there is `busy`: it is above 0 while ring, lists or timers are in use, and always on the worker's own stack. A signal handler
//! that finds it above 0 does not switch (`services/far`). `hold` counts the program's own reasons not to switch ([`crate::hold`]).
//!
//! A unithread stays on its worker. So its thread-local storage stays where it is, and code may keep addresses in it across a wait; but all
//! unithreads of a worker share it: what a unithread leaves there half done while it waits, the next one finds.

mod asked;
mod untold;

use crate::ground::library::{Attached, Kept};
use crate::ground::os::{self, now};
use crate::ground::ring::{FETCH, Ring};
use crate::scheduler::config::WaitMode;
use crate::scheduler::dispatch::Desk;
use crate::scheduler::list::{Fifo, NONE};
use crate::scheduler::pool::Unit;
use crate::scheduler::shared::Shared;
use crate::scheduler::timers::Timers;
use crate::scheduler::wait::{Complete, Park, Token};
use crate::scheduler::{exceptions, life, switch};
use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::{Ordering, compiler_fence};
use std::sync::{Arc, Once};
use untold::Untold;

/// So many resumed unithreads in a row, then another one has a turn.
const STREAK_MAX: u32 = 64;
/// So many requests go to the kernel with one call, if there is something else to do meanwhile …
const TOGETHER: usize = 8;
/// … for so many turns.
const TOGETHER_TURNS: u32 = 4;
/// Completions that are taken at a time.
const REAPED: usize = 32;
/// How often a worker that has nothing else to do looks for what no completion tells of, in ns.
const POLLED_NS: u64 = 50_000;
/// A sleep that is shorter is none: falling asleep and waking take as long.
const NEAR_NS: u64 = 40_000;
/// When a request could not be cancelled, as the ring was full, it is tried again so much later, in ns.
const AGAIN_NS: u64 = 1_000_000;
/// In `Unit::stoppable`: the wait is one for a request in the ring, which has to be cancelled there.
pub(crate) const BY_RING: u64 = 1 << 63;

thread_local! {
    /// The worker that this thread is, or null. Has a constant beginning and no destructor, so that a signal handler may read it; a worker has
    /// written it before it runs anything, so that no first access allocates.
    static WORKER: Cell<*const Worker> = const { Cell::new(core::ptr::null()) };
}

/// Why a unithread switched back to its worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why {
    Yielded,
    Parked,
    Ended,
}

/// See the module's head.
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) number: usize,
    /// The signal mask with which it began: bit n is signal n + 1.
    mask: u64,
    inner: UnsafeCell<Inner>,
    busy: Cell<u32>,
    pub(crate) hold: Cell<u32>,
    /// The unithread that runs, or [`NONE`].
    current: Cell<u32>,
    /// The loop's stack pointer while a unithread runs.
    stack_pointer: Cell<usize>,
    why: Cell<Why>,
    /// Where this thread's `errno` is.
    errno: *mut i32,
    exceptions: exceptions::OfThread,
    /// The library that fetches pages, if there is one.
    far: Cell<Option<Attached>>,
    untold: Untold,
}

struct Inner {
    ring: Ring,
    ready: Fifo,
    /// What the dispatcher gave.
    fresh: Fifo,
    yielded: Fifo,
    timers: Timers,
    streak: u32,
    /// A new one came last: a yielded one is next.
    fresh_last: bool,
    stopped: bool,
    /// Turns since requests went to the kernel.
    waited: u32,
}

/// The worker that this thread is. In a forked child it is none, whose rings are its parent's: not even where no handler has run, as after a `clone` without libc.
#[inline]
pub(crate) fn this<'a>() -> Option<&'a Worker> {
    // SAFETY: set by `run` for as long as the worker lives, which is longer than anything that runs on this thread meanwhile.
    unsafe { WORKER.get().as_ref() }.filter(|worker| worker.shared.is_here())
}

/// The worker of this thread, if a unithread runs on it and the caller is that unithread: its stack pointer lies in its stack. Code of the scheduler,
/// and handlers on another stack, are none. May be called in a signal handler.
#[inline]
pub(crate) fn inside<'a>() -> Option<(&'a Worker, u32)> {
    let worker = this()?;
    let index = worker.current.get();
    let here: *const u8 = (&raw const index).cast();
    (index != NONE && worker.shared.pool.stack(index).contains(&here.addr())).then_some((worker, index))
}

/// In a forked child there are no workers: the thread that has forked is none there, and has what it had before.
pub(crate) fn forget_in_children() {
    static ONCE: Once = Once::new();
    extern "C" fn forget() {
        // SAFETY: as in `this`; the child has a copy.
        if let Some(worker) = unsafe { WORKER.replace(core::ptr::null()).as_ref() } {
            worker.shared.before.give();
        }
    }
    // SAFETY: the function may run in any child; that there is no memory to note it leaves things as they were.
    ONCE.call_once(|| unsafe { _ = libc::pthread_atfork(None, None, Some(forget)) });
}

/// The unithread of this worker's whose guard has `address`, and the bytes of its stack. May be called in a signal handler.
pub(crate) fn overflow_at(address: usize) -> Option<(u32, usize)> {
    let worker = this()?;
    let slot = worker.shared.pool.guard_at(address)?;
    (slot == worker.current.get()).then(|| (slot, worker.shared.pool.shape().stack_bytes))
}

/// Runs a worker on this thread until the runtime ends. `attach` makes it known to the library that fetches pages, if there is one.
pub(crate) fn run(shared: Arc<Shared>, number: usize, ring: Ring, attach: impl FnOnce(&Worker) -> Option<Attached>) {
    let count = shared.pool.shape().count;
    let inner = Inner {
        ring,
        ready: Fifo::default(),
        fresh: Fifo::default(),
        yielded: Fifo::default(),
        timers: Timers::new(count),
        streak: 0,
        fresh_last: false,
        stopped: false,
        waited: 0,
    };
    let worker = Worker {
        shared,
        number,
        mask: os::mask(),
        inner: UnsafeCell::new(inner),
        // On the worker's own stack nothing may switch.
        busy: Cell::new(1),
        hold: Cell::new(0),
        current: Cell::new(NONE),
        stack_pointer: Cell::new(0),
        why: Cell::new(Why::Ended),
        // SAFETY: the address of this thread's errno.
        errno: unsafe { libc::__errno_location() },
        exceptions: exceptions::OfThread::find(),
        far: Cell::new(None),
        untold: Untold::default(),
    };
    WORKER.set(&raw const worker);
    // SAFETY: by this thread, before anything else runs on it.
    let timers = unsafe { &(*worker.inner.get()).timers };
    let kept = WORKER.with(|word| (timers.keep(), Kept::all(core::slice::from_ref(word)), worker.exceptions.keep()));
    let far = attach(&worker);
    worker.far.set(far);
    while worker.turn() {}
    far.into_iter().for_each(Attached::detach);
    WORKER.set(core::ptr::null());
    drop(kept);
}

impl Worker {
    fn unit(&self, index: u32) -> &Unit {
        self.shared.pool.unit(index)
    }

    pub(crate) fn desk(&self) -> &Desk {
        self.shared.dispatch.desk(self.number)
    }

    /// Whether the structures of the worker are in use.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.get() != 0
    }

    /// Whether the unithread that runs may be switched away from.
    pub(crate) fn may_switch(&self) -> bool {
        // While a panic unwinds: the count of panics is the thread's, and would be the next unithread's.
        !self.is_busy() && self.hold.get() == 0 && !std::thread::panicking()
    }

    /// Ring, lists and timers, for a moment in which nothing switches.
    fn with<R>(&self, work: impl FnOnce(&mut Inner) -> R) -> R {
        assert!(!self.is_busy(), "a signal handler called the scheduler that it interrupted");
        self.with_busy(work)
    }

    /// The same on the worker's own stack, where `busy` is above 0 throughout.
    fn with_busy<R>(&self, work: impl FnOnce(&mut Inner) -> R) -> R {
        // SAFETY: this thread alone has the worker; callers do not nest (`with` asserts it, the loop is one frame), and handlers that interrupt stay away.
        self.while_busy(|| work(unsafe { &mut *self.inner.get() }))
    }

    /// One round of the loop. False: the runtime has ended.
    fn turn(&self) -> bool {
        self.collect();
        if let Some(index) = self.with_busy(|inner| self.choose(inner)) {
            self.resume(index);
            return true;
        }
        if self.shared.has_ended() {
            return false;
        }
        self.sleep();
        true
    }

    fn choose(&self, inner: &mut Inner) -> Option<u32> {
        inner.streak += 1;
        if inner.streak <= STREAK_MAX
            && let Some(index) = inner.ready.pop(&self.shared.pool)
        {
            return Some(index);
        }
        inner.streak = 0;
        let first = if inner.fresh_last { inner.yielded.pop(&self.shared.pool) } else { None };
        inner.fresh_last = false;
        let next = first.or_else(|| self.fresh(inner)).or_else(|| inner.yielded.pop(&self.shared.pool));
        next.or_else(|| inner.ready.pop(&self.shared.pool))
    }

    /// Completions, wakes by others, and deadlines that are over, to `ready`; requests to the kernel. On the worker's own stack, or where the caller has
    /// made the worker busy.
    fn collect(&self) {
        self.with_busy(|inner| {
            inner.waited += 1;
            if inner.ring.waiting() >= TOGETHER || inner.waited >= TOGETHER_TURNS || !self.has_more(inner) {
                inner.waited = 0;
                inner.ring.submit();
            }
            self.untold.turn(&self.shared.heir, || self.has_more(inner));
        });
        self.reap();
        if let Some(far) = self.far.get()
            && (far.desk.polled.get() != 0 || (far.desk.due_ns.get() != u64::MAX && far.desk.due_ns.get() <= now()))
        {
            // SAFETY: by the thread that attached, with nothing borrowed.
            unsafe { (far.library.tick)() };
        }
        self.with_busy(|inner| {
            self.shared.side(self.number).inbox.take(&self.shared.pool, &mut inner.ready);
            if inner.timers.next().is_some() {
                let time = now();
                while let Some(token) = inner.timers.expire(time) {
                    let by_ring = token.into_raw() | BY_RING;
                    if self.unit(token.index()).stoppable.load(Ordering::Relaxed) != by_ring {
                        self.complete_own(&mut inner.ready, token, 0);
                    } else if !inner.ring.cancel(token.into_raw()) {
                        // It is over when the kernel says so, since until then it uses what it points to; and the kernel has not been told yet.
                        inner.timers.set(time + AGAIN_NS, token);
                        break;
                    }
                }
            }
            if !inner.stopped && self.shared.is_stopping() {
                inner.stopped = self.stop_waits(inner);
            }
        });
    }

    /// Whether a unithread runs next, so that requests can wait for more.
    fn has_more(&self, inner: &Inner) -> bool {
        let given = !inner.fresh.is_empty() || !self.desk().fresh.is_empty() || self.shared.dispatch.has_waiting();
        !inner.ready.is_empty() || given || !inner.yielded.is_empty()
    }

    /// Takes completions out of the ring. Those of the library's reads go to it, with nothing borrowed.
    fn reap(&self) {
        let mut fetched = [(0u64, 0i32); REAPED];
        loop {
            let mut count = 0;
            self.with_busy(|inner| {
                let Inner { ring, ready, .. } = inner;
                ring.reap(REAPED, |raw, result| {
                    if raw >> 61 == FETCH >> 61 {
                        fetched[count] = (raw & !FETCH, result);
                        count += 1;
                        return;
                    }
                    let token = Token::from_raw(raw).expect("our ring has tokens alone");
                    self.complete_own(ready, token, result);
                });
            });
            let Some(far) = self.far.get() else { return };
            for &(cookie, result) in &fetched[..count] {
                // SAFETY: by the thread that attached, with nothing borrowed; the library's read has ended.
                unsafe { (far.library.completed)(cookie, result) };
            }
            if count < REAPED {
                return;
            }
        }
    }

    /// Completes a wait of one of this worker's unithreads.
    fn complete_own(&self, ready: &mut Fifo, token: Token, result: i32) {
        match self.unit(token.index()).wait.complete(token, result) {
            Complete::Resume => {
                if let Some(stamps) = &self.shared.stamps {
                    stamps.ready(token.index());
                }
                ready.push(&self.shared.pool, token.index());
            }
            Complete::Noted | Complete::Stale => {}
        }
    }

    /// The runtime is being shut down: waits that allow it are over. False: the ring was full, and some are to be told at the next turn.
    fn stop_waits(&self, inner: &mut Inner) -> bool {
        for index in 0..self.shared.pool.used() {
            let unit = self.unit(index);
            let raw = unit.stoppable.load(Ordering::Relaxed);
            if raw == 0 || unit.home.load(Ordering::Relaxed) as usize != self.number {
                continue;
            }
            if raw & BY_RING != 0 {
                if !inner.ring.cancel(raw & !BY_RING) {
                    return false;
                }
            } else if let Some(token) = Token::from_raw(raw) {
                self.complete_own(&mut inner.ready, token, -libc::ECANCELED);
            }
        }
        true
    }

    /// A new unithread, if there is one; else the dispatcher knows that this worker is idle.
    fn fresh(&self, inner: &mut Inner) -> Option<u32> {
        let shared = &*self.shared;
        let desk = self.desk();
        desk.fresh.take(&shared.pool, &mut inner.fresh);
        if inner.fresh.is_empty() && (shared.dispatch.has_waiting() || inner.yielded.is_empty()) {
            shared.dispatch.ask(&shared.pool, self.number, |worker| shared.wake(worker));
            desk.fresh.take(&shared.pool, &mut inner.fresh);
        }
        let index = inner.fresh.pop(&shared.pool)?;
        shared.dispatch.withdraw(self.number);
        self.unit(index).home.store(self.number as u32, Ordering::Relaxed);
        inner.fresh_last = true;
        Some(index)
    }

    /// When there is something to do although nobody says so, in ns from now. `None`: never.
    fn alarm(&self, inner: &Inner) -> Option<u64> {
        let far = self.far.get();
        let due = far.map(|far| far.desk.due_ns.get()).filter(|&due| due != u64::MAX);
        let polled = far.filter(|far| far.desk.polled.get() != 0).map(|_| POLLED_NS);
        let deadline = [inner.timers.next(), due].into_iter().flatten().min().map(|deadline| deadline.saturating_sub(now()));
        [deadline, polled].into_iter().flatten().min()
    }

    fn sleep(&self) {
        let shared = &*self.shared;
        let side = shared.side(self.number);
        let until = shared.config.poll.as_nanos() as u64;
        if until != 0 && self.desk().fetches.load(Ordering::Relaxed) != 0 && self.poll(until) {
            return;
        }
        self.untold.turn(&shared.heir, || false);
        side.doze.begin();
        self.with_busy(|inner| {
            let nothing = side.inbox.is_empty()
                && self.desk().fresh.is_empty()
                && !shared.has_ended()
                && (inner.stopped || !shared.is_stopping());
            let alarm = self.alarm(inner);
            // A deadline that is this near would be over before the kernel has put us to sleep and woken us.
            if nothing && alarm.is_none_or(|ns| ns > NEAR_NS) {
                inner.ring.sleep(alarm);
            }
        });
        side.doze.end();
    }

    /// Looks for completions for `ns` nanoseconds. Whether something came.
    fn poll(&self, ns: u64) -> bool {
        let side = self.shared.side(self.number);
        let end = now() + ns;
        loop {
            self.collect();
            if self.with_busy(|inner| !inner.ready.is_empty()) || !side.inbox.is_empty() || !self.desk().fresh.is_empty() {
                return true;
            }
            if now() >= end {
                return false;
            }
            core::hint::spin_loop();
        }
    }

    /// Switches from the loop to unithread `index`, and comes back when it switches away.
    fn resume(&self, index: u32) {
        let unit = self.unit(index);
        // It works now, so it is not idle, whatever it said before.
        self.shared.dispatch.withdraw(self.number);
        // What it waits for in place is a part of its slice; else the first checkpoint is soon enough, and a look at the clock is spared.
        unit.slice_start.set(if self.shared.config.wait == WaitMode::Yield { 0 } else { now() });
        if let Some(stamps) = &self.shared.stamps {
            stamps.runs(index, self.number);
        }
        self.current.set(index);
        // SAFETY: this thread's errno.
        unsafe { self.errno.write(unit.errno.get()) };
        self.exceptions.set(unit.exceptions.get());
        self.busy.set(0);
        // SAFETY: saved by `leave`, or prepared by `spawn`; its stack is in the pool. A unithread is in one list at most, so nobody else switches to it.
        unsafe { switch::switch(self.stack_pointer.as_ptr(), unit.stack_pointer.get()) };
        // SAFETY: as above.
        unit.errno.set(unsafe { self.errno.read() });
        unit.exceptions.set(self.exceptions.get());
        self.current.set(NONE);
        match self.why.get() {
            Why::Yielded => self.with_busy(|inner| inner.yielded.push(&self.shared.pool, index)),
            Why::Parked => {}
            Why::Ended => {
                if life::ended(&self.shared, index) {
                    self.untold.note();
                }
            }
        }
    }

    /// Switches from unithread `index`, which runs, to the loop. Returns when it is resumed.
    fn leave(&self, index: u32, why: Why) {
        self.why.set(why);
        // Before the switch: a handler that interrupts it must not switch too.
        self.busy.set(1);
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the loop saved its pointer in `resume`, which waits for this.
        unsafe { switch::switch(self.unit(index).stack_pointer.as_ptr(), self.stack_pointer.get()) };
    }

    /// Lets others run.
    pub(crate) fn yield_now(&self, index: u32) {
        if self.may_switch() {
            if let Some(stamps) = &self.shared.stamps {
                stamps.gives_way(index);
            }
            self.leave(index, Why::Yielded);
        }
    }

    /// The unithread has ended. Nothing comes back.
    pub(crate) fn end(&self, index: u32) -> ! {
        assert!(self.hold.get() == 0, "a unithread ended while it holds (farshore_uthread_hold without _release)");
        self.leave(index, Why::Ended);
        unreachable!("an ended unithread was resumed")
    }

    /// Others have something to do here.
    pub(crate) fn is_wanted(&self) -> bool {
        self.while_busy(|| self.collect());
        self.with(|inner| {
            !inner.ready.is_empty()
                || !inner.yielded.is_empty()
                || !self.desk().fresh.is_empty()
                || self.shared.dispatch.has_waiting()
        })
    }

    /// Waits for the completion of `token`, which the unithread `index` has armed: as the mode says if it is a fetch, else by switching; in place
    /// where it may not switch.
    pub(crate) fn wait(&self, index: u32, token: Token, mode: WaitMode) -> i32 {
        self.wait_for(index, token, mode, false)
    }

    /// The same; `page`: for one, or for a file.
    fn wait_for(&self, index: u32, token: Token, mode: WaitMode, page: bool) -> i32 {
        let unit = self.unit(index);
        let stamps = self.shared.stamps.as_ref();
        // Before it is parked: from then on whoever completes the wait has the stamps.
        if let Some(stamps) = stamps {
            stamps.waits(index, page);
        }
        if mode != WaitMode::Yield || !self.may_switch() {
            let result = self.wait_in_place(unit, mode);
            if let Some(stamps) = stamps {
                stamps.goes_on(index, self.number, mode == WaitMode::Busy);
            }
            return result;
        }
        match unit.wait.park(token) {
            Park::Stay(result) => {
                if let Some(stamps) = stamps {
                    stamps.goes_on(index, self.number, false);
                }
                result
            }
            Park::Leave => {
                self.leave(index, Why::Parked);
                unit.wait.result().expect("resumed by a completion alone")
            }
        }
    }

    fn wait_in_place(&self, unit: &Unit, mode: WaitMode) -> i32 {
        loop {
            if let Some(result) = unit.wait.result() {
                return result;
            }
            assert!(!self.is_busy(), "the scheduler waits for a unithread");
            // Others' completions too: they are ready when this one leaves.
            self.while_busy(|| self.collect());
            if mode == WaitMode::Busy {
                core::hint::spin_loop();
            } else if unit.wait.result().is_none() {
                self.while_busy(|| self.sleep_in_place(None, || unit.wait.result().is_none()));
            }
        }
    }

    /// Sleeps until something comes, for `ns` nanoseconds at most, if there is `nothing` yet.
    fn sleep_in_place(&self, ns: Option<u64>, nothing: impl Fn() -> bool) {
        let side = self.shared.side(self.number);
        self.untold.turn(&self.shared.heir, || false);
        side.doze.begin();
        self.with_busy(|inner| {
            let alarm = [self.alarm(inner), ns].into_iter().flatten().min();
            if nothing() && (inner.stopped || !self.shared.is_stopping()) && alarm.is_none_or(|ns| ns > NEAR_NS) {
                inner.ring.sleep(alarm);
            }
        });
        side.doze.end();
    }

    /// Runs `work` while handlers stay away.
    fn while_busy<R>(&self, work: impl FnOnce() -> R) -> R {
        self.busy.set(self.busy.get() + 1);
        // A signal handler on this thread is to see it before anything is touched, and see all of it done before it is taken back.
        compiler_fence(Ordering::SeqCst);
        let result = work();
        compiler_fence(Ordering::SeqCst);
        self.busy.set(self.busy.get() - 1);
        result
    }
}
