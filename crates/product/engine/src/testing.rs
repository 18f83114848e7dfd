//! What unit tests of the parts share.

use farshore_core::sync::{AtomicU32, Futex};

/// A futex on which no thread sleeps.
pub(crate) struct NoFutex;

impl Futex for NoFutex {
    fn wait(&self, _: &AtomicU32, _: u32) {}
    fn wait_for(&self, _: &AtomicU32, _: u32, _: u64) {}
    fn wake_all(&self, _: &AtomicU32) {}
}
