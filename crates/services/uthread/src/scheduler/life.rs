//! What becomes of a unithread's slot: `Unit::life`.
//!
//! The slot goes back to the pool when the unithread has left its stack **and** nobody wants the result any more:
//!
//! ```text
//!            result written        off its stack (its worker)
//!  RUNNING ─────────────▶ ENDING ─────────────▶ DONE ───── handle takes the result, frees the slot
//!     │ handle dropped       │ handle drops the result
//!     └──────▶ DETACHED ◀────┘ ─────────────────────────▶ freed by its worker (a result that comes later is dropped by the unithread itself)
//! ```
//!
//! Who waits puts himself down in `joiner` and looks at `life` again; its worker sets `life` and looks at `joiner` then. A slot can be used again
//! between these two steps of the worker, so a joiner can be woken for nothing: he looks again.

use crate::ground::os::futex_wake;
use crate::scheduler::shared::Shared;
use crate::scheduler::wait::Token;
use core::sync::atomic::{Ordering, fence};

pub(super) const RUNNING: u32 = 0;
pub(super) const ENDING: u32 = 1;
pub(super) const DONE: u32 = 2;
pub(super) const DETACHED: u32 = 3;
/// In `Unit::joiner`: a thread sleeps on `life`.
pub(super) const THREAD: u64 = u64::MAX;

/// Unithread `index` has left its stack for good. Called by its worker. Whether it has left something to the heir.
pub(crate) fn ended(shared: &Shared, index: u32) -> bool {
    let unit = shared.pool.unit(index);
    match unit.life.compare_exchange(ENDING, DONE, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // SeqCst: `life` is written before `joiner` is read. Partner: the fence in `JoinHandle::wait`.
            fence(Ordering::SeqCst);
            match unit.joiner.load(Ordering::Relaxed) {
                THREAD => futex_wake(&unit.life),
                joiner => {
                    // A joiner that has gone on by itself is no error.
                    Token::from_raw(joiner).map(|token| shared.complete(token, 0));
                }
            }
        }
        // The heir recycles and dismisses it.
        Err(_) if unit.has_left.get() => {
            shared.heir.post(&shared.pool, index);
            return true;
        }
        Err(_) => shared.pool.give(index),
    }
    shared.dismiss();
    false
}
