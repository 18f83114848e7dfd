//! The upcall: SIGBUS of a thread that touched an absent or write-protected page.
//!
//! The handler runs on the thread that faulted, with all signals blocked, on an alternate stack (the page may be the thread's own
//! stack). It holds nothing when it returns.
//!
//! # A page that cannot be had
//!
//! A page cannot be had when its swap space cannot be read, or has other bytes than were written, or no frame comes free. One
//! line on stderr says so. The thread that needs the page then gets what Linux gives when a page cannot be swapped in: SIGBUS
//! with `BUS_ADRERR` and the address, delivered to the program's handler if there is one. A system call that needs the page gets
//! `EFAULT`. All other threads go on. The page stays where it is, so a later access tries again.
//!
//! # Memory that another thread gives up or hands over
//!
//! `mlock` and the like leave to the kernel memory that the program goes on using. A fault that came just before finds a page
//! that is not ours any more. So such an access is made once more, and only if it fails again at the same address is the SIGBUS
//! the program's own.
//!
//! # Poll mode
//!
//! In poll mode a handler thread finds that out, and it cannot raise the signal. It poisons the page (`UFFDIO_POISON`): the
//! waiting thread goes on into a SIGBUS (`BUS_MCEERR_AR`), or its system call into `EFAULT`. The thread then tries by itself, as
//! by an upcall, with the same end. A page that is mapped takes the poison's place.

pub mod poll;

use crate::ground::report;
use crate::ground::runtime::{Runtime, runtime};
use crate::ground::unithreads::worker::Way;
use crate::ground::{own_threads, thread};
use crate::process::fork;
use crate::signals;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use farshore_catch::entry;
use farshore_core::limits::PAGE_SIZE;
use farshore_core::page::{Access, Page};
use farshore_core::seams::{Clock, Spaces};
use farshore_engine::fault::resolve::Failure;
use farshore_sys::signal::{BUS_ADRERR, BUS_MCEERR_AR, Reg, SIGBUS, SigInfo, UContext};
use farshore_sys::uffd::UffdError;

/// No second line about the same page within this time: a handler that returns tries again at once.
const SAY_AGAIN_NS: u64 = 1_000_000_000;

/// Whether Farshore ever poisoned a page. If not, the machine's memory is broken.
static POISONED: AtomicBool = AtomicBool::new(false);
/// The page that the last line was about, and when that was.
static TOLD: AtomicU64 = AtomicU64::new(0);
static TOLD_NS: AtomicU64 = AtomicU64::new(0);

/// The outcome of a fault on memory that may be ours.
enum Served {
    /// The access can be made again.
    Yes,
    /// It is not ours.
    NotOurs,
    /// The page cannot be had.
    No,
}

/// The handler of SIGBUS.
///
/// # Safety
/// Called by the kernel as a signal handler.
pub unsafe extern "C" fn on_sigbus(_signal: i32, info: *mut SigInfo, context: *mut UContext) {
    // SAFETY: the kernel passes it, on this stack, to this call alone.
    let info = unsafe { &*info };
    // SAFETY: as above.
    let context = unsafe { &mut *context };
    if entry::edge::at_end(context) {
        return;
    }
    let ours = info.code() == BUS_ADRERR || (info.code() == BUS_MCEERR_AR && POISONED.load(Ordering::Acquire));
    let served = match runtime().filter(|_| ours) {
        Some(runtime) => serve(runtime, info.fault_address(), context),
        None => Served::NotOurs,
    };
    match served {
        Served::Yes => {}
        Served::NotOurs => signals::deliver(SIGBUS, info, context),
        Served::No => signals::deliver(SIGBUS, &SigInfo::of_bad_access(info.fault_address()), context),
    }
}

/// Serves the fault if it is on managed memory.
fn serve(runtime: &Runtime, addr: u64, context: &mut UContext) -> Served {
    let page = Page::containing(addr);
    if !runtime.engine.is_managed(page) {
        return if runtime.engine.is_hidden(page) || is_doubtful(addr) { Served::Yes } else { Served::NotOurs };
    }
    let kind = context.fault_kind();
    let access = if kind.write() { Access::Write } else { Access::Read };
    if fork::is_under_way() {
        let at = context.get(Reg::Rip);
        report::abort(format_args!("bug: code at {at:#x} touched managed memory at {addr:#x} while the process forks"));
    }
    own_threads::ensure();
    // A thread that was made in a way that Farshore did not see gets its record now.
    let Some(thread) = thread::current().or_else(|| thread::adopt(false)) else {
        report::abort(format_args!("no memory for the record of a thread"));
    };
    if thread.internal {
        report::abort(format_args!("bug: Farshore's own code touched managed memory at {addr:#x}"));
    }
    let mut way = Way::InPlace;
    if let Some(worker) = thread.worker.get() {
        way = worker.serve(runtime, thread, page, access, kind.present(), context);
        if matches!(way, Way::InPlace) {
            // A unithread of the same worker may be fetching this very page.
            worker.settle();
        }
    }
    let served = match way {
        Way::Parked => return Served::Yes,
        Way::Served(result) => result,
        Way::InPlace => thread.with_buffer(|buffer| runtime.engine.resolve(page, access, kind.present(), thread.core(), buffer)),
    };
    match served {
        Ok(_) => Served::Yes,
        Err(why) => {
            tell(runtime, page, why, Needed::ByThread);
            Served::No
        }
    }
}

/// Whether a fault on memory that is not ours may have been on memory that was ours: so the first time at this address.
fn is_doubtful(addr: u64) -> bool {
    let Some(thread) = thread::current().filter(|thread| !thread.internal) else { return false };
    let first = thread.doubted.get() != addr;
    thread.doubted.set(if first { addr } else { 0 });
    first
}

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
        Failure::Read(slot, why) => report::line(format_args!(
            "page {page:?} cannot be had: slot {} of swap space {} cannot be read ({why}); {end}",
            slot.number(),
            name(slot)
        )),
        Failure::Checksum(slot) => report::line(format_args!(
            "page {page:?} cannot be had: slot {} of swap space {} has other bytes than were written to it; {end}",
            slot.number(),
            name(slot)
        )),
        why @ (Failure::NoFrames | Failure::Kernel(_)) => {
            report::line(format_args!("page {page:?} cannot be had: {why}; {end}"));
        }
    }
}

/// In poll mode: lets the thread that waits for `page`, which cannot be had, go on and find that out.
pub fn poison(runtime: &Runtime, page: Page, core: usize, why: Failure) {
    let mut done = Ok(());
    runtime.engine.while_absent(page, core, || {
        POISONED.store(true, Ordering::Release);
        done = runtime.engine.kernel.uffd().poison(page.addr(), PAGE_SIZE as u64);
    });
    match done {
        // Or another thread has brought or unmapped it meanwhile: the access is made again and finds out.
        Ok(()) | Err(UffdError::Exists | UffdError::NotRegistered | UffdError::Again { .. }) => {}
        // The waiting thread cannot be told in any other way.
        Err(_) => fail(page, why),
    }
}

/// Ends the program, which cannot go on: it would find wrong bytes, or wait for ever.
pub fn fail(page: Page, why: Failure) -> ! {
    report::line(format_args!("page {page:?} is lost to the program: {why}"));
    report::die_by(SIGBUS)
}
