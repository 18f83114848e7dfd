//! Our side of the joint ([`farshore_core::joint`]): the functions that a scheduler of unithreads in the program calls. What a worker
//! does with a fault is in [`crate::ground::unithreads`].

use super::dormant;
use crate::ground::lost::{self, Needed};
use crate::ground::runtime::{runtime, uninterrupted};
use crate::ground::unithreads::worker::Worker;
use crate::ground::unithreads::{Table, of_this_thread, resume, settle};
use crate::ground::{own_threads, report, thread};
use crate::memory;
use core::ffi::{c_int, c_void};
use farshore_catch::entry;
use farshore_config::FaultMode;
use farshore_core::joint::{Desk, Library, Scheduler, VERSION};
use farshore_core::page::{Access, Page, PageRange};
use farshore_engine::fault::pins::Pinned;
use farshore_net::asynchronous;
use farshore_sys::raw::Errno;

/// Its number.
pub const IO_URING_ENTER: u64 = 426;

static LIBRARY: Library = Library { join, leave, rings, attach, detach, completed, tick, pin, unpin };

/// Our side of the joint, for a scheduler in the program.
#[unsafe(no_mangle)]
extern "C" fn farshore_joint(version: u32) -> *const Library {
    dormant::wake_now();
    if version == VERSION && runtime().is_some() { &raw const LIBRARY } else { core::ptr::null() }
}

extern "C" fn join(unithreads: u32) -> *const c_void {
    // In poll mode other threads serve faults, and ours sleep in the kernel.
    let Some(runtime) = runtime().filter(|runtime| runtime.options.fault == FaultMode::Upcall) else { return core::ptr::null() };
    own_threads::ensure_now(runtime);
    match resume::prepare().and_then(|()| Table::new(unithreads)) {
        Ok(table) => {
            if own_threads::join_unithreads() {
                runtime.engine.serve_requests(true);
            }
            Box::into_raw(Box::new(table)).cast()
        }
        Err(why) => {
            report::line(format_args!("unithreads wait in place for their pages: {why:?}"));
            core::ptr::null()
        }
    }
}

/// # Safety
/// `table` came from `join`, and nobody uses it any more.
unsafe extern "C" fn leave(table: *const c_void) {
    // SAFETY: the caller's duty.
    drop(unsafe { Box::from_raw(table.cast::<Table>().cast_mut()) });
    if own_threads::leave_unithreads()
        && let Some(runtime) = runtime()
    {
        runtime.engine.serve_requests(false);
    }
}

extern "C" fn rings(on: c_int) {
    if let Some(thread) = thread::current().or_else(|| thread::adopt(false)) {
        thread.rings.set(on != 0);
        // Of no use to a program that has made no ring; not for one that has made others than such threads' (`Net::requests_come` comes after the use).
        entry::set_plain(IO_URING_ENTER, true);
        if asynchronous::is_used() {
            entry::set_plain(IO_URING_ENTER, false);
        }
    }
}

/// # Safety
/// `table` came from `join`, and is used until `detach`; `scheduler` points to one whose functions can be called with its worker, by this thread, until then.
unsafe extern "C" fn attach(table: *const c_void, scheduler: *const Scheduler) -> *const Desk {
    // SAFETY: the caller's duty.
    let table = unsafe { table.cast::<Table>().as_ref() };
    let (Some(table), Some(thread)) = (table, thread::current()) else { return core::ptr::null() };
    // SAFETY: the caller's duty.
    let scheduler = unsafe { scheduler.read() };
    let worker: &'static Worker = Box::leak(Box::new(Worker::new(scheduler, table)));
    thread.worker.set(Some(worker));
    worker.desk()
}

extern "C" fn detach() {
    let Some(thread) = thread::current() else { return };
    if let Some(worker) = thread.worker.take() {
        worker.assert_idle();
        // SAFETY: leaked by `attach`; the thread was the only one to know it, and does not any more.
        drop(unsafe { Box::from_raw(core::ptr::from_ref(worker).cast_mut()) });
    }
}

extern "C" fn completed(cookie: u64, result: i32) {
    if let Some(worker) = of_this_thread() {
        worker.completed(cookie as u32, result);
    }
}

extern "C" fn tick() {
    if let Some(worker) = of_this_thread() {
        worker.tick();
    }
}

/// Pages that stay in place for a scheduler, or for the kernel on behalf of one.
struct Kept(Vec<Page>);

impl Drop for Kept {
    fn drop(&mut self) {
        let Some(runtime) = runtime() else { return };
        self.0.iter().for_each(|&page| runtime.engine.unpin(page));
    }
}

/// # Safety
/// `kept` can be written.
unsafe extern "C" fn pin(address: *const c_void, bytes: usize, write: c_int, kept: *mut *const c_void) -> c_int {
    let mut pages = Kept(Vec::new());
    let range = PageRange::covering(address.addr() as u64, bytes as u64);
    if let (Some(runtime), Some(thread)) = (runtime(), thread::current())
        && memory::any_managed(runtime, range)
    {
        settle();
        let access = if write != 0 { Access::Write } else { Access::Read };
        for page in range.iter() {
            match uninterrupted(|| thread.with_buffer(|buffer| runtime.engine.pin(page, access, thread.core(), buffer))) {
                Ok(Pinned::Held) => pages.0.push(page),
                Ok(Pinned::Foreign) => {}
                Err(why) => {
                    lost::tell(runtime, page, why, Needed::ByCall);
                    return -Errno::EFAULT.0;
                }
            }
        }
    }
    let held = if pages.0.is_empty() { core::ptr::null() } else { Box::into_raw(Box::new(pages)).cast_const().cast() };
    // SAFETY: the caller's duty.
    unsafe { kept.write(held) };
    0
}

/// # Safety
/// `kept` came from `pin`, and is used once.
unsafe extern "C" fn unpin(kept: *const c_void) {
    if !kept.is_null() {
        // SAFETY: the caller's duty.
        drop(unsafe { Box::from_raw(kept.cast::<Kept>().cast_mut()) });
    }
}
