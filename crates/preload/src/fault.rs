//! The upcall: SIGBUS of a thread that touched an absent or write-protected page (DESIGN, "Three deliveries").
//!
//! The handler runs on the thread that faulted, with all signals blocked, on an alternate stack
//! (the page may be the thread's own stack). It owns nothing when it returns.

use crate::report;
use crate::runtime::{Runtime, runtime};
use crate::{fork, signals, thread};
use core::sync::atomic::Ordering;
use farshore_core::page::{Access, Page};
use farshore_engine::fault::resolve::Failure;
use farshore_sys::signal::{BUS_ADRERR, SIGBUS, SigInfo, UContext};

/// The handler of SIGBUS.
///
/// # Safety
/// Called by the kernel as a signal handler.
pub unsafe extern "C" fn on_sigbus(_signal: i32, info: *mut SigInfo, context: *mut UContext) {
    // SAFETY: the kernel passes it, on this stack, to this call alone.
    let info = unsafe { &*info };
    // SAFETY: as above.
    let context = unsafe { &mut *context };
    if info.code() == BUS_ADRERR
        && let Some(runtime) = runtime()
        && serve(runtime, info.fault_address(), context)
    {
        return;
    }
    signals::deliver(SIGBUS, info, context);
}

/// Serves the fault if it is on managed memory.
fn serve(runtime: &Runtime, addr: u64, context: &mut UContext) -> bool {
    let page = Page::containing(addr);
    if !runtime.engine.is_managed(page) {
        return false;
    }
    let kind = context.fault_kind();
    let access = if kind.write() { Access::Write } else { Access::Read };
    if runtime.forked.load(Ordering::Acquire) {
        fork::serve(runtime, page);
        return true;
    }
    // A thread that was made in a way that we did not see gets its record now.
    let Some(thread) = thread::current().or_else(|| thread::adopt(false)) else {
        report::abort(format_args!("no memory for the record of a thread"));
    };
    if thread.internal {
        report::abort(format_args!("bug: Farshore's own code touched managed memory at {addr:#x}"));
    }
    match runtime.engine.resolve(page, access, kind.present(), thread.core, thread.buffer()) {
        Ok(_) => true,
        Err(why) => fail(page, why),
    }
}

/// The page cannot be had: the thread that needs it ends by SIGBUS, with the reason. Nobody gets wrong bytes.
pub fn fail(page: Page, why: Failure) -> ! {
    report::line(format_args!("page {page:?} is lost to the program: {why}"));
    report::die_by(SIGBUS)
}
