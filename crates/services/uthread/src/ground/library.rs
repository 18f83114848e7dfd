//! The library that serves page faults in this process, if there is one: what it does for a runtime and for memory. How unithreads wait for pages is
//! `services/far`.
//!
//! What both say to each other is in [`farshore_core::joint`]. Without the library everything here does nothing, and memory is memory.
//!
//! The scheduler's own memory must be there when the library asks it to switch. Stacks, control blocks, rings and the workers' own stacks are mappings that the library
//! leaves alone. What else a worker touches lies in the program's heap: it is pinned, for as long as the runtime lives ([`Kept`]).

use core::ffi::{c_int, c_void};
use farshore_core::joint::{Desk, Entry, Library, SYMBOL, Scheduler, VERSION};
use std::sync::OnceLock;

/// The library, if it is loaded and delivers faults in a way that can be joined.
fn library() -> Option<&'static Library> {
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

    /// Makes the calling thread's worker known to the library. `None`: it has no memory for that.
    ///
    /// # Safety
    /// The scheduler's functions do what [`Scheduler`] says, on this thread, until [`Attached::detach`].
    pub(crate) unsafe fn attach(&self, scheduler: &Scheduler) -> Option<Attached> {
        let library = self.library;
        // SAFETY: the caller's duty.
        let desk = unsafe { (library.attach)(self.runtime, scheduler) };
        // SAFETY: null, or the library's until `detach`.
        unsafe { desk.as_ref() }.map(|desk| Attached { library, desk })
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
        // SAFETY: a plain call. What requests name is in the pool, on a thread's own stack, or kept (`services/io.rs`).
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
pub(crate) struct Attached {
    pub(crate) library: &'static Library,
    pub(crate) desk: &'static Desk,
}

impl Attached {
    /// Ends what [`Joined::attach`] began.
    pub(crate) fn detach(self) {
        // SAFETY: by the thread that attached; its unithreads have ended, and with them their fetches.
        unsafe { (self.library.detach)() };
    }
}
