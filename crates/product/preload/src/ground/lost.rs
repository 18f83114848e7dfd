//! A page that cannot be had: what is said about it, and the end of a program that cannot go on without.

use crate::ground::report;
use crate::ground::runtime::Runtime;
use core::sync::atomic::{AtomicU64, Ordering};
use farshore_core::page::Page;
use farshore_core::seams::{Clock, Spaces};
use farshore_engine::fault::resolve::Failure;
use farshore_engine::health::Trouble;
use farshore_sys::signal::SIGBUS;

/// No second line about the same page within this time: a handler that returns tries again at once.
const SAY_AGAIN_NS: u64 = 1_000_000_000;

/// The page that the last line was about, and when that was.
static TOLD: AtomicU64 = AtomicU64::new(0);
static TOLD_NS: AtomicU64 = AtomicU64::new(0);

/// What cannot have a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needed {
    /// A thread that touches it.
    ByThread,
    /// A system call.
    ByCall,
}

/// Says that a page cannot be had: its address, space and slot, the reason, and what follows.
pub fn tell(runtime: &Runtime, page: Page, why: Failure, needed: Needed) {
    let now = runtime.engine.clock.now_ns();
    let again = TOLD.swap(page.0, Ordering::Relaxed) == page.0 && now - TOLD_NS.load(Ordering::Relaxed) < SAY_AGAIN_NS;
    if again {
        return;
    }
    TOLD_NS.store(now, Ordering::Relaxed);
    let end = match needed {
        Needed::ByThread => "the thread that needs it gets SIGBUS",
        Needed::ByCall => "the system call that needs it fails",
    };
    let name = |slot| runtime.engine.backend.name_of(slot);
    match why {
        Failure::Transfer(Trouble::Read(slot, why)) if slot.is_of_file() => {
            report::line(format_args!("page {page:?} cannot be had: {} cannot be read ({why}); {end}", name(slot)));
        }
        Failure::Transfer(Trouble::Read(slot, why)) => report::line(format_args!(
            "page {page:?} cannot be had: slot {} of swap space {} cannot be read ({why}); {end}",
            slot.number(),
            name(slot)
        )),
        Failure::Transfer(Trouble::Checksum(slot)) => report::line(format_args!(
            "page {page:?} cannot be had: slot {} of swap space {} has other bytes than were written to it; {end}",
            slot.number(),
            name(slot)
        )),
        why @ (Failure::Transfer(Trouble::Write(..)) | Failure::NoFrames | Failure::Kernel(_)) => {
            report::line(format_args!("page {page:?} cannot be had: {why}; {end}"));
        }
    }
}

/// Ends the program, which cannot go on: it would find wrong bytes, or wait for ever.
pub fn fail(page: Page, why: Failure) -> ! {
    report::line(format_args!("page {page:?} is lost to the program: {why}"));
    report::die_by(SIGBUS)
}
