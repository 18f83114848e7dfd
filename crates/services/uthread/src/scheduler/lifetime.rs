//! How a runtime ends: nothing is spawned any more, and when the last unithread is over so is the runtime, not before. A unithread that waits for
//! a page is one that lives.
//!
//! ```text
//!  who spawns                    who stops                        who ends
//!  live + 1                      stopping, wake all               live − 1
//!  was stopping? live − 1        sleep until none is live         the last, and stopping? wake all
//!                                join the workers                 ─▶ workers end
//! ```
//!
//! Both are in one word: so either the one who stops sees the one who is spawned, or that one sees that it is too late; and the last one either sees
//! that it is the end, or the one who stops finds nobody there.

use farshore_core::sync::{AtomicU32, Ordering};

/// Set: stopping. The other bits count those who live.
const STOPPING: u32 = 1 << 31;

/// See the module's head.
#[derive(Debug)]
pub struct Lifetime(AtomicU32);

impl Default for Lifetime {
    fn default() -> Lifetime {
        Lifetime(AtomicU32::new(0))
    }
}

impl Lifetime {
    /// Nothing is spawned any more.
    pub fn is_stopping(&self) -> bool {
        self.0.load(Ordering::Acquire) & STOPPING != 0
    }

    /// Stopping, and nothing is left.
    pub fn has_ended(&self) -> bool {
        self.0.load(Ordering::Acquire) == STOPPING
    }

    /// Unithreads that were spawned and have not ended, and slots that the heir has.
    pub fn live(&self) -> u32 {
        self.0.load(Ordering::Acquire) & !STOPPING
    }

    /// The word, to sleep on until somebody is told to wake those who do.
    pub fn word(&self) -> &AtomicU32 {
        &self.0
    }

    /// One more, unless there are to be no more. False: too late, and the caller dismisses it.
    #[must_use]
    pub fn admit(&self) -> bool {
        self.0.fetch_add(1, Ordering::AcqRel) & STOPPING == 0
    }

    /// One less. True: that was the end, of which those who sleep have to be told.
    #[must_use]
    pub fn dismiss(&self) -> bool {
        // AcqRel: what all the others did before they ended is seen by the one that finds that all have.
        self.0.fetch_sub(1, Ordering::AcqRel) == STOPPING | 1
    }

    /// From now on. The caller wakes all that sleep.
    pub fn stop(&self) {
        self.0.fetch_or(STOPPING, Ordering::AcqRel);
    }
}
