//! The interface between the library in the program and a scheduler of unithreads: the joint of delivery *yield*.
//!
//! The two are built separately: the scheduler is linked into the program, the library is loaded before it. So this is a C
//! interface. The scheduler looks the library up by [`SYMBOL`]. Where it finds none, the program runs without far memory, and
//! nothing else changes.
//!
//! ```text
//!  start of the runtime      join(unithreads)
//!  start of a worker         attach(scheduler) ─▶ Desk
//!  a unithread touches an absent page:
//!      library (handler)     begin ─▶ token           None: the page is fetched in place
//!                            read(file, …, cookie)    into the worker's ring, or a time at which the page is there (`Desk::due_ns`)
//!      library (unithread)   park(token)              other unithreads run
//!      scheduler (loop)      completed(cookie, bytes) for a read of its ring
//!                            tick()                   when `due_ns` is over, or while `polled` is not 0
//!      library               complete(token)          the unithread is ready; its page is mapped
//!  end of a worker           detach
//! ```
//!
//! Each function that belongs to a worker is called on that worker's thread. The worker's loop, or `progress`, calls `completed`
//! and `tick`. Inside those two the library may call `read` and `complete`, and nothing else.

use core::cell::Cell;
use core::ffi::{CStr, c_int, c_void};

/// The version of this interface. Both sides must have the same.
pub const VERSION: u32 = 2;

/// The library's function that returns its side of the interface: an [`Entry`].
pub const SYMBOL: &CStr = c"farshore_joint";

/// `version` is the scheduler's. Null: the library has another version.
pub type Entry = unsafe extern "C" fn(version: u32) -> *const Library;

/// What the library does for a scheduler.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// A runtime with this many unithreads begins. Null: faults are delivered in another way here, or something that this
    /// delivery needs is missing; the unithreads then wait in place.
    pub join: unsafe extern "C" fn(unithreads: u32) -> *const c_void,
    /// That runtime has ended, and all its workers were detached.
    pub leave: unsafe extern "C" fn(runtime: *const c_void),
    /// The calling thread may make and use rings (`on` 1), or may not any more (0). The thread is responsible for the memory that
    /// its requests name: that memory must be unmanaged, or pinned.
    pub rings: unsafe extern "C" fn(on: c_int),
    /// The calling thread is a worker of that runtime from now on. Null: out of memory.
    pub attach: unsafe extern "C" fn(runtime: *const c_void, *const Scheduler) -> *const Desk,
    /// The calling thread is not a worker any more. It has no fetches under way.
    pub detach: unsafe extern "C" fn(),
    /// A read that the library put into the worker's ring has ended: bytes, or a negative errno.
    pub completed: unsafe extern "C" fn(cookie: u64, result: i32),
    /// See [`Desk`].
    pub tick: unsafe extern "C" fn(),
    /// Brings the memory in and keeps it there, for writing if `write` is 1. Returns 0, or a negative errno, in which case
    /// nothing is kept. `kept` receives what [`Library::unpin`] needs; null if none of the memory is managed.
    pub pin: unsafe extern "C" fn(address: *const c_void, bytes: usize, write: c_int, kept: *mut *const c_void) -> c_int,
    /// Ends what `pin` began.
    pub unpin: unsafe extern "C" fn(kept: *const c_void),
}

/// What a worker's scheduler does for the library. `worker` is passed to all the functions.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Scheduler {
    /// The scheduler's own.
    pub worker: *const c_void,
    /// Called in a signal handler, on any stack. The code that was interrupted is about to wait; it was at this instruction, with
    /// this stack pointer and this signal mask. Returns the token of the wait; 0 if that code is no unithread, or cannot be
    /// switched away from now.
    pub begin: unsafe extern "C" fn(worker: *const c_void, instruction: u64, stack_pointer: u64, mask: u64) -> u64,
    /// On the unithread's own stack: waits until the token is completed.
    pub park: unsafe extern "C" fn(worker: *const c_void, token: u64),
    /// Ends the wait of a token.
    pub complete: unsafe extern "C" fn(worker: *const c_void, token: u64),
    /// Puts a read into the worker's ring. 0, or a negative errno. `to` is the library's memory, until `completed(cookie)`.
    pub read:
        unsafe extern "C" fn(worker: *const c_void, fd: c_int, offset: u64, to: *mut c_void, bytes: u32, cookie: u64) -> c_int,
    /// Looks for completions and ticks, in place: the caller waits for a fetch of this worker's and cannot be switched away from.
    /// Sleeps for at most `ns` if nothing has come. 0: the scheduler can do nothing now, since the fault interrupted the
    /// scheduler itself.
    pub progress: unsafe extern "C" fn(worker: *const c_void, ns: u64) -> c_int,
    /// The number of the unithread that is running, or that has the token.
    pub unithread: unsafe extern "C" fn(worker: *const c_void, token: u64) -> u32,
}

/// What a worker's loop looks at: when the library wants a [`Library::tick`].
#[repr(C)]
#[derive(Debug)]
pub struct Desk {
    /// When the next fetch that completes by time is there, in ns of the monotonic clock; `u64::MAX`: there is none.
    pub due_ns: Cell<u64>,
    /// Faults that wait for something that no completion reports: a frame, or a page that another thread owns.
    pub polled: Cell<u32>,
    /// Faults that are under way.
    pub under_way: Cell<u32>,
}

impl Desk {
    /// A desk with nothing under way.
    pub const fn new() -> Desk {
        Desk { due_ns: Cell::new(u64::MAX), polled: Cell::new(0), under_way: Cell::new(0) }
    }
}

impl Default for Desk {
    fn default() -> Desk {
        Desk::new()
    }
}
