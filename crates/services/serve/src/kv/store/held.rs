//! A lock for a moment, under [`hold`]: a unithread that has it is not switched away from, so no unithread of the same worker can find it locked, and other
//! workers wait for as long as the moment lasts. Nothing that waits may be done with it.

use std::sync::{Mutex, PoisonError};

use farshore_uthread::hold;

/// See the module's head.
#[derive(Debug, Default)]
pub struct Held<T>(Mutex<T>);

impl<T> Held<T> {
    /// A lock around it.
    pub fn new(value: T) -> Held<T> {
        Held(Mutex::new(value))
    }

    /// Does something with it.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let held = hold();
        let result = work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
        drop(held);
        result
    }
}
