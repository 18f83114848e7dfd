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

use crate::ground::{own_threads, thread};
use core::mem::MaybeUninit;
use farshore_core::limits::PAGE_SIZE;
use farshore_core::page::Page;
use farshore_core::seams::PageBuf;
use farshore_engine::fault::unwaited::Unwaited;
use farshore_sys::own::map_own;
use farshore_sys::raw::Errno;
use farshore_sys::vm;
use worker::Worker;

/// Pages that the fetch of a unithread brings at most. Addresses are reserved for all; RAM is taken by those that were used.
const FETCH_MAX: usize = 16;

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
pub struct Table {
    places: *mut Place,
    buffers: *mut PageBuf,
    count: u32,
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
    pub fn new(count: u32) -> Result<Table, Errno> {
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
    own_threads::forget_unithreads();
}
