//! Delivery *yield*: a unithread that touches an absent page leaves its worker to others until the page is there (Adios, section 3.2).
//!
//! ```text
//!  a unithread's stack           SIGBUS handler, alternate stack      the worker's loop
//!  program
//!   │ touches an absent page ──▶ begin the fetch (worker::serve)
//!                                 ├ served at once ─▶ return
//!  all registers ◀─── write down ─┘ else: go on in `resume`
//!  resume: park ─────────────────────────────────────────────────────▶ other unithreads
//!                                                                       a read has come, a time is over, a frame is free:
//!                                                                       the next step; at the last one the page is mapped
//!  resume: all registers ◀──────────────────────────────────── ready ◀──┘
//!   │ the access again
//! ```
//!
//! The scheduler is the program's (`crates/services/uthread`); what both say to each other is in [`farshore_core::joint`].
//!
//! # The frame on the unithread's stack
//!
//! Adios calls the stack on which a fetch is left behind and gone on with the *universal stack*. Here the handler returns at once: it has written the interrupted
//! registers onto the unithread's stack, and the return from the signal leads to [`resume`], which saves the rest, waits, and puts everything back without
//! the kernel. Compared with a handler that itself runs on that stack and switches there: the alternate stack stays, so that an overflow of the
//! unithread's stack can be told; no signal is blocked when another unithread runs, without a system call that unblocks it; and the kernel
//! writes its frame of 3 KiB to a place that is in the cache.
//!
//! # Why the last steps are the loop's
//!
//! A fetch that is under way has a page that others may want, and keeps a fork waiting. If the unithread had to run for its end, a unithread of the same
//! worker that cannot be switched away from (it holds something, or makes a system call) could wait for it for ever. The loop ends fetches, and so does
//! whoever waits in place ([`settle`]).
//!
//! So a worker never waits in the kernel for what may depend on a fetch of its own: [`settle`] comes before a system call that is dispatched, a fault that is
//! served in place, a fork.

pub mod resume;
pub mod worker;

use crate::dispatch::dormant;
use crate::ground::runtime::{runtime, uninterrupted};
use crate::ground::{own_threads, report, thread};
use crate::{fault, memory};
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};
use farshore_catch::entry;
use farshore_config::FaultMode;
use farshore_core::joint::{Desk, Library, Scheduler, VERSION};
use farshore_core::limits::PAGE_SIZE;
use farshore_core::page::{Access, Page, PageRange};
use farshore_core::seams::PageBuf;
use farshore_engine::fault::pins::Pinned;
use farshore_engine::fault::unwaited::Unwaited;
use farshore_sys::own::map_own;
use farshore_sys::raw::Errno;
use farshore_sys::vm;
use worker::Worker;

/// Pages that the fetch of a unithread brings at most. Addresses are reserved for all; RAM is taken by those that were used.
const FETCH_MAX: usize = 16;
const IO_URING_ENTER: u64 = 426;
/// Runtimes that have joined and not left.
static JOINED: AtomicU32 = AtomicU32::new(0);

/// The fault of one unithread.
#[derive(Debug, Default)]
pub struct Record {
    fault: Option<Unwaited>,
    token: u64,
    /// The page could not be had in this way: its next fault is served in place, and tells why.
    in_place: Option<Page>,
}

/// Where a record lies. Zeroed memory is a valid one, so that RAM is taken by those that were used.
#[derive(Debug)]
struct Place {
    /// There is one.
    begun: bool,
    record: MaybeUninit<Record>,
}

/// Records and buffers of one runtime, one a unithread.
#[derive(Debug)]
struct Table {
    places: *mut Place,
    buffers: *mut PageBuf,
    count: u32,
}

static LIBRARY: Library = Library { join, leave, rings, attach, detach, completed, tick, pin, unpin };

/// Our side of the joint, for a scheduler in the program.
#[unsafe(no_mangle)]
extern "C" fn farshore_joint(version: u32) -> *const Library {
    dormant::wake_now();
    if version == VERSION && runtime().is_some() { &raw const LIBRARY } else { core::ptr::null() }
}

impl Record {
    /// The page that it waits for.
    fn page(&self) -> Option<Page> {
        self.fault.as_ref().map(Unwaited::page)
    }
}

/// Bytes of the two mappings for so many unithreads.
fn sizes(count: u32) -> [usize; 2] {
    [size_of::<Place>(), FETCH_MAX * size_of::<PageBuf>()].map(|each| count as usize * each)
}

impl Drop for Table {
    fn drop(&mut self) {
        let [places, buffers] = sizes(self.count);
        // Records have nothing to drop.
        for (at, bytes) in [(self.places as u64, places), (self.buffers as u64, buffers)] {
            // SAFETY: our own mappings, which nobody uses any more (`leave`).
            let _ = unsafe { vm::munmap(at, bytes.next_multiple_of(PAGE_SIZE) as u64) };
        }
    }
}

impl Table {
    fn new(count: u32) -> Result<Table, Errno> {
        let [places, buffers] = sizes(count);
        Ok(Table { places: map_own(places)?.cast().as_ptr(), buffers: map_own(buffers)?.cast().as_ptr(), count })
    }

    /// Runs `f` with record and buffer of unithread `index`.
    ///
    /// # Safety
    /// By its worker's thread, and not inside of another call for the same unithread.
    unsafe fn with<R>(&self, index: u32, f: impl FnOnce(&mut Record, &mut [PageBuf]) -> R) -> R {
        assert!(index < self.count, "unithread {index} of {}", self.count);
        // SAFETY: in the table, zeroed at first; nobody else has it: the caller's duty.
        let place = unsafe { &mut *self.places.wrapping_add(index as usize) };
        if !place.begun {
            place.record.write(Record::default());
            place.begun = true;
        }
        // SAFETY: it is there.
        let record = unsafe { place.record.assume_init_mut() };
        let first = self.buffers.wrapping_add(index as usize * FETCH_MAX);
        // SAFETY: this unithread's pages, any bytes of which are pages.
        f(record, unsafe { core::slice::from_raw_parts_mut(first, FETCH_MAX) })
    }
}

extern "C" fn join(unithreads: u32) -> *const c_void {
    // In poll mode other threads serve faults, and ours sleep in the kernel.
    let Some(runtime) = runtime().filter(|runtime| runtime.options.fault == FaultMode::Upcall) else { return core::ptr::null() };
    own_threads::ensure_now(runtime);
    match resume::prepare().and_then(|()| Table::new(unithreads)) {
        Ok(table) => {
            if JOINED.fetch_add(1, Ordering::AcqRel) == 0 {
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

/// Whether a scheduler of unithreads has joined.
pub fn are_joined() -> bool {
    JOINED.load(Ordering::Acquire) > 0
}

/// # Safety
/// `table` came from `join`, and nobody uses it any more.
unsafe extern "C" fn leave(table: *const c_void) {
    // SAFETY: the caller's duty.
    drop(unsafe { Box::from_raw(table.cast::<Table>().cast_mut()) });
    if JOINED.fetch_sub(1, Ordering::AcqRel) == 1
        && let Some(runtime) = runtime()
    {
        runtime.engine.serve_requests(false);
    }
}

extern "C" fn rings(on: c_int) {
    if let Some(thread) = thread::current().or_else(|| thread::adopt(false)) {
        thread.rings.set(on != 0);
        // Of no use to who has made no ring.
        entry::set_plain(IO_URING_ENTER, true);
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
                    fault::tell(runtime, page, why, fault::Needed::ByCall);
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

/// The worker that the calling thread is.
#[inline]
pub fn of_this_thread() -> Option<&'static Worker> {
    thread::current().and_then(|thread| thread.worker.get())
}

/// Before the calling thread waits for anything in the kernel: if it is a worker, fetches of its unithreads that others may wait for are ended first.
#[inline]
pub fn settle() {
    if let Some(worker) = of_this_thread() {
        worker.settle();
    }
}

/// In a forked child: there are no workers here.
pub fn forget() {
    if let Some(thread) = thread::current() {
        thread.worker.set(None);
        thread.rings.set(false);
    }
    JOINED.store(0, Ordering::Release);
}
