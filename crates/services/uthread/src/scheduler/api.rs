//! What a unithread can do. On a thread that is none each function does what fits there.

use crate::ground::error::{SpawnError, Stopped};
use crate::ground::os::{Inherited, now};
use crate::scheduler::config::WaitMode;
use crate::scheduler::hold::hold;
use crate::scheduler::join::{self, JoinHandle};
use crate::scheduler::wait::Token;
use crate::scheduler::worker::{self, Worker};
use core::sync::atomic::Ordering;
use core::time::Duration;

/// Whether the caller is a unithread.
pub fn is_unithread() -> bool {
    worker::inside().is_some()
}

/// The number of the worker that the caller runs on, and always will.
pub fn worker_index() -> Option<usize> {
    worker::inside().map(|(worker, _)| worker.number)
}

/// Makes a unithread on the caller's runtime.
pub fn spawn<F, T>(work: F) -> Result<JoinHandle<T>, SpawnError>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let (worker, _) = worker::inside().ok_or(SpawnError::NotInside)?;
    join::spawn(&worker.shared, work)
}

/// Lets others run: those that are ready, then a new one. No effect while the caller [`hold`]s.
pub fn yield_now() {
    match worker::inside() {
        Some((worker, index)) => worker.yield_now(index),
        None => std::thread::yield_now(),
    }
}

/// For long computations: yields if the caller has run for a slice (`Config::slice`) and others want to run. Costs one look at the clock.
pub fn checkpoint() {
    let Some((worker, index)) = worker::inside() else { return };
    let start = &worker.shared.pool.unit(index).slice_start;
    let now = now();
    if start.get() == 0 {
        start.set(now);
    } else if now.saturating_sub(start.get()) >= worker.shared.slice_ns() {
        start.set(now);
        if worker.may_switch() && worker.is_wanted() {
            worker.yield_now(index);
        }
    }
}

/// Sleeps for `time`. Ends early if the runtime is being shut down.
pub fn sleep(time: Duration) -> Result<(), Stopped> {
    let Some((worker, index)) = worker::inside().filter(|(worker, _)| worker.may_switch()) else {
        std::thread::sleep(time);
        return Ok(());
    };
    let deadline = now().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    let outcome = wait_stoppable(worker, index, |token| worker.set_timer(deadline, token));
    worker.remove_timer(index);
    outcome
}

/// Whether the caller's runtime is being shut down, so that a loop without an end knows when to end.
pub fn stopping() -> bool {
    worker::inside().is_some_and(|(worker, _)| worker.shared.is_stopping())
}

/// Runs `work` with the signal mask, the cores and the turns on the processor that the thread had that started the runtime, and without being switched away from: for
/// what is handed on to a process that is started in there by other means than `fork`, or to a thread. The program's signal handlers may run meanwhile. On a thread
/// that is no worker, it only runs it.
pub fn as_before<R>(work: impl FnOnce() -> R) -> R {
    struct Back(Inherited);
    impl Drop for Back {
        fn drop(&mut self) {
            self.0.give();
        }
    }
    let Some((worker, _)) = worker::inside() else { return work() };
    let _hold = hold();
    let _back = Back(Inherited::now());
    worker.shared.before.give();
    work()
}

/// Waits for a token's completion, or for the shutdown. `announce` makes the token known.
pub(crate) fn wait_stoppable(worker: &Worker, index: u32, announce: impl FnOnce(Token)) -> Result<(), Stopped> {
    let unit = worker.shared.pool.unit(index);
    let token = unit.wait.arm(index);
    unit.stoppable.store(token.into_raw(), Ordering::Relaxed);
    // The worker looks at `stoppable` once, on this thread, after `stopping` was set.
    let result = if worker.shared.is_stopping() {
        -libc::ECANCELED
    } else {
        announce(token);
        worker.wait(index, token, WaitMode::Yield)
    };
    unit.stoppable.store(0, Ordering::Relaxed);
    if result == -libc::ECANCELED { Err(Stopped) } else { Ok(()) }
}
