//! Far memory: how the library that serves page faults in this process, if there is one, lets unithreads wait for pages.
//!
//! What both say to each other is in [`farshore_core::joint`]; what the library does for a runtime is in `ground/library.rs`.
//!
//! # Why a unithread may be switched away from at an access
//!
//! The SIGBUS handler of the library writes the registers onto the unithread's stack and returns into code that waits there and then puts all of them back. That is sound
//! because of the following; `Worker::interrupted` and `begin_interrupted` check what can change, and where a check fails the fault is served in place: slower, never wrong.
//!
//! 1. **The stack is the unithread's**, and there is room below. *Checked.* So is the interrupted code: it does not run on an alternate stack, as a handler of the
//!    program may.
//! 2. **The signal mask is the worker's.** The return from the signal puts it back before the wait begins. Code that has blocked signals waits in place. *Checked.*
//! 3. **Registers** are all put back: the library sees to it. The thread pointer is none of them: a unithread stays on its worker. A shadow stack would not go
//!    along: refused at the start.
//! 4. **`errno`** is saved around each switch: the program may have faulted between a call and its look at `errno`.
//! 5. **The scheduler is not interrupted half way.** *Checked:* `busy` is 0. Its own memory is there (`ground/library.rs`), and workers block the program's signals, so that no handler of
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

pub(crate) mod text;

use crate::ground::library::Attached;
use crate::ground::ring::FETCH;
use crate::scheduler::wait::Token;
use crate::scheduler::worker::Worker;
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;
use farshore_core::joint::Scheduler;
use io_uring::{opcode, types};

/// Stack that a wait needs below the interrupted code: registers with all vectors, and the scheduler's calls.
const ROOM: u64 = 8 << 10;

/// Makes the calling thread's worker known to the library. `None`: there is none, or it has no memory for that.
pub(crate) fn attach(worker: &Worker) -> Option<Attached> {
    let joined = worker.shared.joined.as_ref()?;
    let worker: *const Worker = worker;
    let scheduler = Scheduler { worker: worker.cast(), begin, park, complete, read, progress, unithread };
    // SAFETY: they are called on this thread, for a worker that lives until it is detached.
    unsafe { joined.attach(&scheduler) }
}

/// The unithread that runs was interrupted at this instruction and stack pointer, with this signal mask, and is about to wait: whether it may, and by
/// which token. In a signal handler.
fn begin_interrupted(worker: &Worker, instruction: u64, stack_pointer: u64, mask: u64) -> Option<Token> {
    let (index, stack) = worker.interrupted(stack_pointer, ROOM, mask)?;
    // Last: it looks at the whole stack.
    let guards = worker.shared.config.guard_libc;
    if guards && text::is_on_stack(instruction as usize, stack_pointer as usize..stack.end) {
        return None;
    }
    Some(worker.shared.pool.unit(index).wait.arm(index))
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
    begin_interrupted(worker, instruction, stack_pointer, mask).map_or(0, Token::into_raw)
}

unsafe extern "C" fn park(worker: *const c_void, token: u64) {
    // SAFETY: as above.
    let worker = unsafe { of(worker) };
    let token = Token::from_raw(token).expect("the library parks with the token that it was given");
    let parked = &worker.desk().parked;
    parked.store(parked.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    worker.wait_for_fetch(token.index(), token);
}

unsafe extern "C" fn complete(worker: *const c_void, token: u64) {
    // SAFETY: as above.
    let worker = unsafe { of(worker) };
    worker.complete_here(Token::from_raw(token).expect("the library completes the token that it was given"), 0);
}

unsafe extern "C" fn read(worker: *const c_void, fd: c_int, offset: u64, to: *mut c_void, bytes: u32, cookie: u64) -> c_int {
    // SAFETY: as above.
    let worker = unsafe { of(worker) };
    let request = opcode::Read::new(types::Fd(fd), to.cast(), bytes).offset(offset).build().user_data(FETCH | cookie);
    // SAFETY: the library's memory, which stays until the completion.
    let pushed = unsafe { worker.push(&request) };
    pushed.map_or_else(|error| -error.raw_os_error().unwrap_or(libc::EAGAIN), |()| 0)
}

unsafe extern "C" fn progress(worker: *const c_void, ns: u64) -> c_int {
    // SAFETY: as above.
    let worker = unsafe { of(worker) };
    let Some(before) = worker.fetches_under_way() else { return 0 };
    c_int::from(worker.progress(ns, || worker.fetches_under_way() == Some(before)))
}

unsafe extern "C" fn unithread(_worker: *const c_void, token: u64) -> u32 {
    Token::from_raw(token).map_or(u32::MAX, Token::index)
}
