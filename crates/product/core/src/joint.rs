//! What the library in the program and a scheduler of unithreads say to each other: the joint of delivery *yield*.
//!
//! The two are made apart: the scheduler is linked into the program, the library is loaded before it. So this is a C interface. The scheduler looks
//! the library up by [`SYMBOL`]; where it is not there the program runs without far memory, and nothing else changes.
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
//! Each function of a worker's is called on the worker's thread. `completed` and `tick` are called by its loop, or by `progress`; inside of them
//! the library may call `read` and `complete`, and nothing else.

use core::cell::Cell;
use core::ffi::{CStr, c_int, c_void};

/// The version of this interface. Both sides must have the same.
pub const VERSION: u32 = 2;

/// The library's function that gives its side: a [`Entry`].
pub const SYMBOL: &CStr = c"farshore_joint";

/// `version` is the scheduler's. Null: the library has another one.
pub type Entry = unsafe extern "C" fn(version: u32) -> *const Library;

/// What the library does for a scheduler.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// A runtime with so many unithreads begins. Null: faults are delivered in another way here, or there is not what it needs; its unithreads wait in place.
    pub join: unsafe extern "C" fn(unithreads: u32) -> *const c_void,
    /// That runtime has ended, and all its workers were detached.
    pub leave: unsafe extern "C" fn(runtime: *const c_void),
    /// The calling thread may make and use rings (`on` 1), or may not any more (0). It answers for the memory that its requests name: not managed, or pinned.
    pub rings: unsafe extern "C" fn(on: c_int),
    /// The calling thread is a worker of that runtime from now on. Null: there is no memory.
    pub attach: unsafe extern "C" fn(runtime: *const c_void, *const Scheduler) -> *const Desk,
    /// The calling thread is none any more. It has no fetches under way.
    pub detach: unsafe extern "C" fn(),
    /// A read that the library put into the worker's ring has ended: bytes, or a negative errno.
    pub completed: unsafe extern "C" fn(cookie: u64, result: i32),
    /// See [`Desk`].
    pub tick: unsafe extern "C" fn(),
    /// Brings the memory in and keeps it there, for writing if `write` is 1: 0, or a negative errno, and nothing is kept. `kept` gets what ends that; null if
    /// nothing of it is managed.
    pub pin: unsafe extern "C" fn(address: *const c_void, bytes: usize, write: c_int, kept: *mut *const c_void) -> c_int,
    /// Ends that.
    pub unpin: unsafe extern "C" fn(kept: *const c_void),
}

/// What a worker's scheduler does for the library. All but `worker` are functions that get it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Scheduler {
    /// The scheduler's own.
    pub worker: *const c_void,
    /// In a signal handler, on any stack: the code that was interrupted, which was at this instruction, had this stack pointer and this signal mask, and is about to
    /// wait. The token of the wait; 0 if it is no unithread, or cannot be switched away from now.
    pub begin: unsafe extern "C" fn(worker: *const c_void, instruction: u64, stack_pointer: u64, mask: u64) -> u64,
    /// On the unithread's own stack: waits until the token is completed.
    pub park: unsafe extern "C" fn(worker: *const c_void, token: u64),
    /// Ends the wait of a token.
    pub complete: unsafe extern "C" fn(worker: *const c_void, token: u64),
    /// Puts a read into the worker's ring. 0, or a negative errno. `to` is the library's memory, until `completed(cookie)`.
    pub read:
        unsafe extern "C" fn(worker: *const c_void, fd: c_int, offset: u64, to: *mut c_void, bytes: u32, cookie: u64) -> c_int,
    /// Looks for completions and ticks, in place: the caller waits for a fetch of this worker's and cannot be switched away from. Sleeps for at most `ns`
    /// if nothing has come. 0: it can do nothing now, since it is itself what was interrupted.
    pub progress: unsafe extern "C" fn(worker: *const c_void, ns: u64) -> c_int,
    /// The number of the unithread that runs, or that has the token.
    pub unithread: unsafe extern "C" fn(worker: *const c_void, token: u64) -> u32,
}

/// What a worker's loop looks at: when the library wants a [`Library::tick`].
#[repr(C)]
#[derive(Debug)]
pub struct Desk {
    /// When the next fetch by time is there, in ns of the monotonic clock; `u64::MAX`: there is none.
    pub due_ns: Cell<u64>,
    /// Faults that wait for something that no completion tells of: a frame, or a page in other hands.
    pub polled: Cell<u32>,
    /// Faults that are under way.
    pub under_way: Cell<u32>,
}

impl Desk {
    /// Nothing is under way.
    pub const fn new() -> Desk {
        Desk { due_ns: Cell::new(u64::MAX), polled: Cell::new(0), under_way: Cell::new(0) }
    }
}

impl Default for Desk {
    fn default() -> Desk {
        Desk::new()
    }
}
