//! The upcall: a thread touched an absent or write-protected page, and its SIGBUS is served here.
//!
//! The handler of SIGBUS (`signals`) calls [`serve`], on the thread that faulted, with all signals blocked, on an alternate stack
//! (the page may be the thread's own stack). Nothing is held when it returns.
//!
//! ```text
//!  serve ─▶ the kernel's SIGBUS? ─no────────────────────────────▶ NotOurs   the program's own signal
//!               │yes
//!               ▼
//!           managed page? ─no─▶ just given up? ─no──────────────▶ NotOurs
//!               │yes                 │yes
//!               │                    └──────────────────────────▶ Yes       the access is made again
//!               ▼
//!           a unithread's? ─yes─▶ its worker begins the fetch ──▶ Yes       the unithread waits, its worker goes on
//!               │no, or it must wait in place
//!               ▼
//!           Engine::resolve, which sleeps where it has to ──────▶ Yes
//!               │the page cannot be had
//!               └───────────────────────────────────────────────▶ No        SIGBUS for the thread, a line on stderr
//! ```
//!
//! Layers: `signals` is above, and gives the program what is [`Served::NotOurs`] and [`Served::No`]. Below is the ground alone.
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
//! In poll mode a handler thread ([`poll`]) finds that a page cannot be had, and it cannot raise the signal. It poisons the page
//! (`UFFDIO_POISON`): the waiting thread goes on into a SIGBUS (`BUS_MCEERR_AR`), or its system call into `EFAULT`. The thread
//! then tries by itself, as by an upcall, with the same end. A page that is mapped takes the poison's place.

pub mod poll;

use crate::ground::lost::{self, Needed};
use crate::ground::runtime::{Runtime, is_forking, runtime};
use crate::ground::thread::{self, Thread};
use crate::ground::unithreads::worker::Way;
use crate::ground::{own_threads, report};
use core::sync::atomic::{AtomicBool, Ordering};
use farshore_attach::{Event, FAULT_PROTECTED, FAULT_WRITE, Kind};
use farshore_core::limits::PAGE_SIZE;
use farshore_core::page::{Access, Page};
use farshore_core::seams::Clock as _;
use farshore_engine::fault::resolve::Failure;
use farshore_sys::signal::{BUS_ADRERR, BUS_MCEERR_AR, Reg, SigInfo, UContext};
use farshore_sys::uffd::UffdError;

/// Whether Farshore ever poisoned a page. If not, the machine's memory is broken.
static POISONED: AtomicBool = AtomicBool::new(false);

/// The outcome of a SIGBUS.
#[must_use]
pub enum Served {
    /// The access can be made again.
    Yes,
    /// It is no fault on managed memory.
    NotOurs,
    /// The page cannot be had.
    No,
}

/// Serves the fault that raised a SIGBUS, if it was one on managed memory. In the handler, with its own context.
pub fn serve(info: &SigInfo, context: &mut UContext) -> Served {
    let by_fault = info.code() == BUS_ADRERR || (info.code() == BUS_MCEERR_AR && POISONED.load(Ordering::Acquire));
    let Some(runtime) = runtime().filter(|_| by_fault) else { return Served::NotOurs };
    let addr = info.fault_address();
    let page = Page::containing(addr);
    if !runtime.engine.is_managed(page) {
        return if runtime.engine.is_hidden(page) || is_doubtful(addr) { Served::Yes } else { Served::NotOurs };
    }
    if is_forking() {
        let at = context.get(Reg::Rip);
        report::abort(format_args!("bug: code at {at:#x} touched managed memory at {addr:#x} while the process forks"));
    }
    own_threads::ensure();
    let thread = thread::current_or_new();
    if thread.internal {
        report::abort(format_args!("bug: Farshore's own code touched managed memory at {addr:#x}"));
    }
    let told = runtime.engine.is_wanted(Kind::Fault).then(|| tell(runtime, thread, addr, context));
    match bring(runtime, thread, page, context, told) {
        Ok(()) => Served::Yes,
        Err(why) => {
            lost::tell(runtime, page, why, Needed::ByThread);
            Served::No
        }
    }
}

/// Tells policies and tracers of the fault, before it is served. Returns the time.
#[cold]
fn tell(runtime: &Runtime, thread: &Thread, address: u64, context: &UContext) -> u64 {
    let kind = context.fault_kind();
    let detail = if kind.write() { FAULT_WRITE } else { 0 } | if kind.present() { FAULT_PROTECTED } else { 0 };
    let instruction = context.get(Reg::Rip);
    let (ns, thread) = (runtime.engine.clock.now_ns(), thread.shared.tid().unwrap_or(0));
    let event = Event { detail, thread, ns, more: [instruction, 0, 0], ..Event::new(Kind::Fault, address, 1) };
    runtime.engine.tell_event(&event);
    ns
}

/// Brings a managed page for the thread, or has the thread's unithread wait for it. `now_ns`: the time, if it is known.
fn bring(runtime: &Runtime, thread: &Thread, page: Page, context: &mut UContext, now_ns: Option<u64>) -> Result<(), Failure> {
    let kind = context.fault_kind();
    let access = if kind.write() { Access::Write } else { Access::Read };
    if let Some(worker) = thread.worker.get() {
        match worker.serve(runtime, thread, page, access, kind.present(), context) {
            Way::Parked => return Ok(()),
            Way::Served(result) => return result.map(drop),
            // A unithread of the same worker may be fetching this very page.
            Way::InPlace => worker.settle(),
        }
    }
    let now = now_ns.unwrap_or_else(|| runtime.engine.clock.now_ns());
    thread.with_buffer(|buffer| runtime.engine.resolve_since(now, page, access, kind.present(), thread.core(), buffer)).map(drop)
}

/// Whether a fault on memory that is not ours may have been on memory that was ours: so the first time at this address.
fn is_doubtful(addr: u64) -> bool {
    let Some(thread) = thread::current().filter(|thread| !thread.internal) else { return false };
    let first = thread.doubted.get() != addr;
    thread.doubted.set(if first { addr } else { 0 });
    first
}

/// In poll mode: lets the thread that waits for `page`, which cannot be had, go on and find that out.
fn poison(runtime: &Runtime, page: Page, core: usize, why: Failure) {
    let mut done = Ok(());
    runtime.engine.while_absent(page, core, || {
        POISONED.store(true, Ordering::Release);
        done = runtime.engine.kernel.uffd().poison(page.addr(), PAGE_SIZE as u64);
    });
    match done {
        // Or another thread has brought or unmapped it meanwhile: the access is made again and finds out.
        Ok(()) | Err(UffdError::Exists | UffdError::NotRegistered | UffdError::Again { .. }) => {}
        // The waiting thread cannot be told in any other way.
        Err(_) => lost::fail(page, why),
    }
}
