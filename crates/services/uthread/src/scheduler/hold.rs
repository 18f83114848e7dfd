//! The program's own reasons not to be switched away from.

use crate::scheduler::worker;
use core::marker::PhantomData;

/// While it lives the caller is not switched away from: what it waits for it waits for in place, and the worker's other unithreads with it. For code
/// that has a lock, or thread-local data in two minds. It must be short, and must not wait for another unithread of the same worker.
#[derive(Debug)]
#[must_use]
pub struct Hold(PhantomData<*const ()>);

/// See [`Hold`].
pub fn hold() -> Hold {
    if let Some((worker, _)) = worker::inside() {
        worker.hold.set(worker.hold.get() + 1);
    }
    Hold(PhantomData)
}

impl Drop for Hold {
    fn drop(&mut self) {
        release();
    }
}

/// The end of a [`Hold`].
pub(crate) fn release() {
    if let Some((worker, _)) = worker::inside() {
        let held = worker.hold.get().checked_sub(1).expect("released more often than held");
        worker.hold.set(held);
    }
}
