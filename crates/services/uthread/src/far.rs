//! Far memory: the library that serves page faults in this process, if there is one, and how it lets unithreads wait for pages.
//!
//! What both say to each other is in [`farshore_core::joint`]. Without the library everything here does nothing, and memory is memory.
//!
//! The scheduler's own memory must be there when the library asks it to switch. Stacks, control blocks, rings and the workers' own stacks are mappings that the library
//! leaves alone. What else a worker touches lies in the program's heap: it is pinned, for as long as the runtime lives ([`Kept`]).
//!
//! # Why a unithread may be switched away from at an access
//!
//! The SIGBUS handler of the library writes the registers onto the unithread's stack and returns into code that waits there and then puts all of them back. That is sound
//! because of the following; `Worker::begin_interrupted` checks what can change, and where a check fails the fault is served in place: slower, never wrong.
//!
//! 1. **The stack is the unithread's**, and there is room below. *Checked.* So is the interrupted code: it does not run on an alternate stack, as a handler of the
//!    program may.
//! 2. **The signal mask is the worker's.** The return from the signal puts it back before the wait begins. Code that has blocked signals waits in place. *Checked.*
//! 3. **Registers** are all put back: the library sees to it. The thread pointer is none of them: a unithread stays on its worker. A shadow stack would not go
//!    along: refused at the start.
//! 4. **`errno`** is saved around each switch: the program may have faulted between a call and its look at `errno`.
//! 5. **The scheduler is not interrupted half way.** *Checked:* `busy` is 0. Its own memory is there (above), and workers block the program's signals, so that no handler of
//!    the program's runs on top of it.
//! 6. **libc is not interrupted half way**, nor are the allocator and the C++ library: their locks and thread-local data would meet themselves on the same thread.
//!    *Checked:* none of their functions is on the stack (`text.rs`).
//! 7. **The program is not interrupted where it must not be.** Its own code may hold a lock, or have thread-local data in two minds (a borrowed `RefCell`). This cannot be
//!    seen from outside. *Checked:* `hold` is 0 ([`crate::hold`], `farshore_uthread_hold`), and no panic unwinds. The rest is the program's.
//!
//! # Where the hooks run
//!
//! `begin` runs in the SIGBUS handler, on another stack. `read` and `complete` run in there, or inside of `Worker::collect`. None of them runs while the worker's ring or
//! lists are in use: `begin` looks at `busy` first, and `collect` calls the library with nothing borrowed.

use crate::wait::Token;
use crate::worker::Worker;
use core::ffi::{c_int, c_void};
use farshore_core::joint::{Desk, Entry, Library, SYMBOL, Scheduler, VERSION};
use std::sync::OnceLock;

/// Stack that a wait needs below the interrupted code: registers with all vectors, and the scheduler's calls.
const ROOM: u64 = 8 << 10;

/// The library, if it is loaded and delivers faults in a way that can be joined.
pub(crate) fn library() -> Option<&'static Library> {
    static FOUND: OnceLock<Option<&'static Library>> = OnceLock::new();
    *FOUND.get_or_init(look_up)
}

fn look_up() -> Option<&'static Library> {
    // SAFETY: looks a name up.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, SYMBOL.as_ptr()) };
    if found.is_null() {
        return None;
    }
    // SAFETY: the symbol is the library's, and this is its type in every version.
    let entry = unsafe { core::mem::transmute::<*mut c_void, Entry>(found) };
    // SAFETY: may be called at any time.
    let library = unsafe { entry(VERSION) };
    // SAFETY: null, or a static of the library's.
    unsafe { library.as_ref() }
}

/// A runtime that has joined the library.
#[derive(Debug)]
pub(crate) struct Joined {
    library: &'static Library,
    runtime: *const c_void,
}

// SAFETY: a name that is given to the library, which takes it from any thread.
unsafe impl Send for Joined {}
// SAFETY: as above.
unsafe impl Sync for Joined {}

impl Joined {
    /// Joins, for a runtime with so many unithreads. `None`: there is no library, or it cannot.
    pub(crate) fn join(unithreads: usize) -> Option<Joined> {
        let library = library()?;
        // SAFETY: a plain call.
        let runtime = unsafe { (library.join)(unithreads as u32) };
        (!runtime.is_null()).then(|| Joined { library, runtime })
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        // SAFETY: the workers have ended, or never were.
        unsafe { (self.library.leave)(self.runtime) };
    }
}

/// Lets the calling thread have a ring.
pub(crate) fn allow_rings() {
    if let Some(library) = library() {
        // SAFETY: a plain call. What requests name is in the pool, on a thread's own stack, or kept (`io`).
        unsafe { (library.rings)(1) };
    }
}

/// Memory that stays in place until it is dropped.
#[derive(Debug)]
pub(crate) struct Kept {
    library: Option<&'static Library>,
    held: *const c_void,
}

// SAFETY: what is given back to the library, from any thread.
unsafe impl Send for Kept {}
// SAFETY: as above.
unsafe impl Sync for Kept {}

impl Kept {
    /// Keeps `bytes` at `address`; with `write`, for the kernel's or the scheduler's writing.
    pub(crate) fn new(address: *const c_void, bytes: usize, write: bool) -> std::io::Result<Kept> {
        let mut kept = Kept { library: library(), held: core::ptr::null() };
        if let Some(library) = kept.library.filter(|_| bytes > 0) {
            // SAFETY: the program's memory; where it is not there, it says so.
            let answer = unsafe { (library.pin)(address, bytes, c_int::from(write), &raw mut kept.held) };
            if answer != 0 {
                return Err(std::io::Error::from_raw_os_error(-answer));
            }
        }
        Ok(kept)
    }

    /// Keeps what `of` points to.
    pub(crate) fn all<T>(of: &[T]) -> std::io::Result<Kept> {
        Kept::new(of.as_ptr().cast(), size_of_val(of), true)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(library) = self.library {
            // SAFETY: what `pin` has given, or null; once.
            unsafe { (library.unpin)(self.held) };
        }
    }
}

/// What a worker has of the library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Far {
    pub(crate) library: &'static Library,
    pub(crate) desk: &'static Desk,
}

/// Makes the calling thread's worker known to the library. `None`: there is none, or no memory.
pub(crate) fn attach(worker: &Worker) -> Option<Far> {
    let Joined { library, runtime } = worker.shared.joined.as_ref()?;
    let worker: *const Worker = worker;
    let scheduler = Scheduler { worker: worker.cast(), begin, park, complete, read, progress, unithread };
    // SAFETY: the worker lives until `detach`, on this thread.
    let desk = unsafe { (library.attach)(*runtime, &raw const scheduler) };
    // SAFETY: null, or the library's until `detach`.
    unsafe { desk.as_ref() }.map(|desk| Far { library, desk })
}

/// Ends that.
pub(crate) fn detach(far: Far) {
    // SAFETY: by the thread that attached; its unithreads have ended, and with them their fetches.
    unsafe { (far.library.detach)() };
}

/// # Safety
/// `worker` is what `attach` gave to the library.
unsafe fn of<'a>(worker: *const c_void) -> &'a Worker {
    // SAFETY: the caller's duty; it is detached before it goes.
    unsafe { &*worker.cast::<Worker>() }
}

unsafe extern "C" fn begin(worker: *const c_void, instruction: u64, stack_pointer: u64, mask: u64) -> u64 {
    // SAFETY: the library passes what it was given.
    let worker = unsafe { of(worker) };
    worker.begin_interrupted(instruction, stack_pointer, ROOM, mask).map_or(0, Token::into_raw)
}

unsafe extern "C" fn park(worker: *const c_void, token: u64) {
    // SAFETY: as above.
    let worker = unsafe { of(worker) };
    worker.park(Token::from_raw(token).expect("the library parks with the token that it was given"));
}

unsafe extern "C" fn complete(worker: *const c_void, token: u64) {
    // SAFETY: as above.
    let worker = unsafe { of(worker) };
    worker.complete_fetch(Token::from_raw(token).expect("the library completes the token that it was given"));
}

unsafe extern "C" fn read(worker: *const c_void, fd: c_int, offset: u64, to: *mut c_void, bytes: u32, cookie: u64) -> c_int {
    // SAFETY: as above.
    let worker = unsafe { of(worker) };
    // SAFETY: the library's memory, which stays until the completion.
    unsafe { worker.read_for_library(fd, offset, to, bytes, cookie) }
}

unsafe extern "C" fn progress(worker: *const c_void, ns: u64) -> c_int {
    // SAFETY: as above.
    let worker = unsafe { of(worker) };
    c_int::from(worker.progress(ns))
}

unsafe extern "C" fn unithread(_worker: *const c_void, token: u64) -> u32 {
    Token::from_raw(token).map_or(u32::MAX, Token::index)
}
