//! All memory becomes the kernel's, for good: the program talks to a device that may keep what it is told about (`net/calls/keepers.rs`).
//!
//! What is out comes in first, so this is done only where all of it fits into the limit. From then on nothing is
//! managed: the program runs as it would natively, and a line says that the limit does not hold any more. A forked child stays so; a
//! program that is started begins anew.

use crate::ground::runtime::{Runtime, locked};
use crate::ground::{files, own_threads, report};
use crate::memory::hand_over_managed;
use core::sync::atomic::{AtomicBool, Ordering};
use farshore_core::page::PageRange;
use farshore_core::word::State;

/// Nothing is managed any more. Written under the address-space lock.
static DONE: AtomicBool = AtomicBool::new(false);
/// A refusal was said.
static SAID: AtomicBool = AtomicBool::new(false);

/// Whether all memory is the kernel's.
#[inline]
pub fn is_done() -> bool {
    DONE.load(Ordering::Relaxed)
}

/// Nothing is managed from the beginning: a device that may keep memory is open already.
pub fn from_the_beginning() {
    DONE.store(true, Ordering::Relaxed);
    report::line(format_args!(
        "a device is open that may keep memory of the program: all of it stays in RAM, and --memory does not limit it"
    ));
}

/// Hands all memory over, because of this device (major and minor number). False: it stays managed, and the device must not be used.
pub fn all(runtime: &Runtime, (major, minor): (u32, u32)) -> bool {
    if is_done() {
        return true;
    }
    own_threads::ensure();
    let limit = runtime.engine.frames().limit();
    let (done, used) = locked(runtime, |_| {
        // What files have does not count, since the kernel can read it again.
        files::decline(runtime);
        let used = pages_in_use(runtime);
        if is_done() || used > limit {
            return (is_done(), used);
        }
        // Before the first page: what is mapped from now on is the kernel's from the beginning.
        DONE.store(true, Ordering::Relaxed);
        let done = hand_over_all(runtime);
        DONE.store(done, Ordering::Relaxed);
        (done, used)
    });
    let device = format_args!("device {major}:{minor} may keep memory of the program");
    if done {
        report::line(format_args!(
            "{device}: all of it ({} MiB) stays in RAM from here on, and --memory does not limit it",
            used.div_ceil(256)
        ));
    } else if !SAID.swap(true, Ordering::Relaxed) {
        report::line(format_args!(
            "{device}: it is refused, since {} MiB do not fit into the limit of {} MiB; give a larger --memory",
            used.div_ceil(256),
            limit / 256
        ));
    }
    done
}

/// Pages that have bytes: in memory, or away.
fn pages_in_use(runtime: &Runtime) -> u64 {
    let has_bytes = |state| matches!(state, State::Busy | State::Resident | State::Leaving | State::Out);
    let touched = runtime.engine.table.granules().filter(|g| g.granule.touched());
    touched.map(|g| g.words.iter().filter(|word| has_bytes(word.load().state())).count() as u64).sum()
}

/// Under the lock. False: some page cannot be had; what was handed over before it stays so.
fn hand_over_all(runtime: &Runtime) -> bool {
    let give = |range: PageRange| hand_over_managed(runtime, range, false) >= 0;
    let mut granules = runtime.engine.table.granules().map(|g| g.id.range());
    let Some(mut range) = granules.next() else { return true };
    // Neighbours together: each piece cuts the kernel's mappings for a moment.
    for next in granules {
        if next.start == range.end {
            range.end = next.end;
        } else {
            if !give(range) {
                return false;
            }
            range = next;
        }
    }
    give(range)
}
