//! How a unithread begins and ends, and what waits for it.
//!
//! Its closure lies at the end of its own stack, and so does its result, in the closure's place: nothing is allocated. What becomes of the
//! slot then is in `life.rs`.

use crate::ground::error::SpawnError;
use crate::ground::os::futex_wait;
use crate::scheduler::config::WaitMode;
use crate::scheduler::hold::hold;
use crate::scheduler::life::{DETACHED, DONE, ENDING, RUNNING, THREAD};
use crate::scheduler::pool::{Entry, Unit};
use crate::scheduler::shared::Shared;
use crate::scheduler::{switch, worker};
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::sync::atomic::{Ordering, fence};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

/// The exit status of a forked child that panics: that of Rust programs.
const PANICKED: i32 = 101;

/// The right to a unithread's result. Dropped, the unithread goes on, and its result is dropped.
#[derive(Debug)]
pub struct JoinHandle<T> {
    shared: Arc<Shared>,
    index: u32,
    result: PhantomData<fn() -> T>,
}

/// Makes a unithread of `work` and puts it into the queue.
pub(crate) fn spawn<F, T>(shared: &Arc<Shared>, work: F) -> Result<JoinHandle<T>, SpawnError>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    check::<F, thread::Result<T>>(shared)?;
    let index = admit(shared)?;
    begin_with::<F, thread::Result<T>>(shared, index, RUNNING, run::<F, T>, work);
    Ok(JoinHandle { shared: shared.clone(), index, result: PhantomData })
}

/// Makes a unithread that nobody joins, whose buffer begins with `bytes`. What `work` puts into its argument is left to the heir (`heir.rs`). With `arrived` it is stamped
/// as a request that came at that time (`stamps.rs`).
pub(crate) fn spawn_leaving<F, L>(shared: &Arc<Shared>, bytes: &[u8], arrived: Option<u64>, work: F) -> Result<(), SpawnError>
where
    F: FnOnce(&mut Option<L>) + Send + 'static,
    L: Send + 'static,
{
    let room = shared.config.buffer_bytes;
    if bytes.len() > room {
        return Err(SpawnError::TooLong { bytes: bytes.len(), room });
    }
    check::<F, L>(shared)?;
    let index = admit(shared)?;
    // SAFETY: the slot was taken, so its buffer is nobody else's, and there is room.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), shared.pool.buffer(index), bytes.len()) };
    if let (Some(stamps), Some(arrived)) = (&shared.stamps, arrived) {
        stamps.begin(index, arrived);
    }
    begin_with::<F, L>(shared, index, DETACHED, run_leaving::<F, L>, work);
    Ok(())
}

/// A free slot, counted as live.
fn admit(shared: &Shared) -> Result<u32, SpawnError> {
    shared.admit()?;
    let taken = shared.pool.take().ok_or_else(|| {
        shared.dismiss();
        SpawnError::Full(shared.config.unithreads)
    });
    if let (Some(stamps), Ok(index)) = (&shared.stamps, &taken) {
        // The one before may have panicked in the midst of a request.
        stamps.forget(*index);
    }
    taken
}

/// Bytes and alignment of the place for `F` and then `R`; 16 at least, for what lies below on the stack.
fn layout<F, R>() -> (usize, usize) {
    (size_of::<F>().max(size_of::<R>()), align_of::<F>().max(align_of::<R>()).max(16))
}

fn check<F, R>(shared: &Shared) -> Result<(), SpawnError> {
    let (size, align) = layout::<F, R>();
    if size + align > shared.config.stack_bytes / 4 { Err(SpawnError::TooLarge(size)) } else { Ok(()) }
}

/// Puts `work` onto the stack of slot `index`, which was taken, and the unithread into the queue. Its life begins as `life`: with a handle, or without.
/// `entry` runs an `F` and may leave an `R` in its place.
fn begin_with<F: Send + 'static, R>(shared: &Shared, index: u32, life: u32, entry: Entry, work: F) {
    let (size, align) = layout::<F, R>();
    let unit = shared.pool.unit(index);
    let end = shared.pool.stack_end(index);
    let down = size + (end.addr() - size) % align;
    let place = end.wrapping_sub(down);
    // SAFETY: inside the stack (checked above), aligned, and nobody else's: the slot was taken.
    unsafe { place.cast::<F>().write(work) };
    unit.place.set(place.expose_provenance());
    unit.entry.set(Some(entry));
    unit.errno.set(0);
    unit.exceptions.set(Default::default());
    unit.has_left.set(false);
    unit.life.store(life, Ordering::Relaxed);
    unit.joiner.store(0, Ordering::Relaxed);
    unit.stoppable.store(0, Ordering::Relaxed);
    let top = place.wrapping_sub(place.addr() % 16);
    // SAFETY: the stack below `place` is free, and far larger than a context; `begin` never returns.
    unit.stack_pointer.set(unsafe { switch::prepare(top, begin, index as usize) });
    // Who spawns may be the dispatcher for a moment, and must not be switched away from as such.
    let _hold = hold();
    shared.dispatch.submit(&shared.pool, index, |worker| shared.wake(worker));
}

/// The first function on a unithread's stack.
extern "sysv64" fn begin(index: usize) -> ! {
    let index = index as u32;
    let worker = worker::this().expect("unithreads run on workers");
    let unit = worker.shared.pool.unit(index);
    let entry = unit.entry.get().expect("set by spawn");
    // SAFETY: `spawn` has set both together.
    unsafe { entry(core::ptr::with_exposed_provenance_mut(unit.place.get()), unit) };
    if worker::this().is_none() {
        // A forked child, whose only thread has ended. Its process ends as it would if this were a thread of the system's.
        std::process::exit(0);
    }
    worker.end(index)
}

/// Runs the closure at `place` and leaves the result there.
///
/// # Safety
/// `place` has an `F` that nobody else reads, and room for the result.
unsafe fn run<F, T>(place: *mut u8, unit: &Unit)
where
    F: FnOnce() -> T,
{
    // SAFETY: the caller's duty.
    let work = unsafe { place.cast::<F>().read() };
    let result = catch_unwind(AssertUnwindSafe(work));
    if result.is_err() {
        note_panic();
    }
    // SAFETY: room and alignment are `spawn`'s.
    unsafe { place.cast::<thread::Result<T>>().write(result) };
    // Release: the handle that sees it reads the result.
    if unit.life.compare_exchange(RUNNING, ENDING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        return;
    }
    // SAFETY: written above; the handle is gone, so it is read here alone.
    let result = unsafe { place.cast::<thread::Result<T>>().read() };
    if catch_unwind(AssertUnwindSafe(move || drop(result))).is_err() {
        note_panic();
    }
}

/// Runs the closure at `place`, and leaves there what it leaves.
///
/// # Safety
/// `place` has an `F` that nobody else reads, and room for an `L`.
unsafe fn run_leaving<F, L>(place: *mut u8, unit: &Unit)
where
    F: FnOnce(&mut Option<L>),
{
    // SAFETY: the caller's duty.
    let work = unsafe { place.cast::<F>().read() };
    let mut left = None;
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| work(&mut left))) {
        note_panic();
        // What was panicked with may panic itself when it is dropped.
        if catch_unwind(AssertUnwindSafe(move || drop(payload))).is_err() {
            note_panic();
        }
    }
    if let Some(left) = left {
        // SAFETY: room and alignment are `spawn_leaving`'s; the closure was moved away.
        unsafe { place.cast::<L>().write(left) };
        unit.has_left.set(true);
    }
}

fn note_panic() {
    match worker::this() {
        Some(worker) => worker.shared.note_panic(),
        // A forked child: nobody else hears of it.
        None => std::process::exit(PANICKED),
    }
}

impl<T> JoinHandle<T> {
    /// Waits until it has ended, and returns its result, or what it panicked with.
    pub fn join(self) -> thread::Result<T> {
        self.wait();
        let this = ManuallyDrop::new(self);
        let result = this.take();
        this.shared.pool.give(this.index);
        // SAFETY: `this` is not dropped, so its part is read once.
        drop(unsafe { core::ptr::read(&raw const this.shared) });
        result
    }

    /// Whether it has ended, so that `join` returns at once.
    pub fn is_finished(&self) -> bool {
        self.unit().life.load(Ordering::Acquire) == DONE
    }

    /// It has ended, or can: not in a forked child.
    pub(crate) fn can_end(&self) -> bool {
        self.is_finished() || self.shared.is_here()
    }

    fn unit(&self) -> &Unit {
        self.shared.pool.unit(self.index)
    }

    /// The result, which was written and not read yet.
    fn take(&self) -> thread::Result<T> {
        let place = core::ptr::with_exposed_provenance::<thread::Result<T>>(self.unit().place.get());
        // SAFETY: `life` was seen as ENDING or DONE with Acquire, so it is there; the handle is used up.
        unsafe { place.read() }
    }

    fn wait(&self) {
        let unit = self.unit();
        while !self.is_finished() {
            assert!(self.can_end(), "a forked child waits for a unithread of its parent's");
            match worker::inside() {
                Some((worker, index)) => {
                    assert!(Arc::ptr_eq(&worker.shared, &self.shared), "a unithread can join those of its own runtime alone");
                    let token = worker.shared.pool.unit(index).wait.arm(index);
                    self.put_down(unit, token.into_raw());
                    if !self.is_finished() {
                        worker.wait(index, token, WaitMode::Yield);
                    }
                }
                None => {
                    self.put_down(unit, THREAD);
                    let life = unit.life.load(Ordering::Acquire);
                    if life != DONE {
                        futex_wait(&unit.life, life, None);
                    }
                }
            }
        }
    }

    fn put_down(&self, unit: &Unit, joiner: u64) {
        unit.joiner.store(joiner, Ordering::Relaxed);
        // SeqCst: `joiner` is written before `life` is read again. Partner: the fence in `ended`.
        fence(Ordering::SeqCst);
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        let life = &self.unit().life;
        if life.compare_exchange(RUNNING, DETACHED, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return;
        }
        let result = self.take();
        if life.compare_exchange(ENDING, DETACHED, Ordering::AcqRel, Ordering::Acquire).is_err() {
            self.shared.pool.give(self.index);
        }
        drop(result);
    }
}
