//! Limits that the program sets for itself. They hold for Farshore too, which is in the same process.
//!
//! The kernel keeps them, and the program reads back what it has set. What each would break:
//!
//! | limit | what is done |
//! |---|---|
//! | `FSIZE` | swap files are made long before; writes past the limit go by another way (`backend/src/file/limit.rs`) |
//! | `NOFILE` | Farshore's descriptors are open already, above what programs use; a forked child's are as high as the limit lets them be |
//! | `AS`, `DATA` | Farshore's tables are mapped already; where memory cannot be had, the call that wants it fails; staging memory is there from the start |
//! | `NPROC` | before a limit so low that no thread could be made, Farshore makes its threads; where it does not see the limit, it tries again and again ([`crate::ground::own_threads`]) |
//! | `SIGPENDING` | Farshore's signals need nothing of what they carry |
//! | `MEMLOCK` | rings of samples are counted with what io_uring and sends without copies lock, so they take a sixteenth at most (`sys/src/samples.rs`) |
//! | `STACK`, `CORE`, … | nothing of Farshore's depends on them while the program runs |

use crate::ground::net::{net, pinned};
use crate::ground::own_threads::rights;
use crate::ground::runtime::{runtime, uninterrupted};
use crate::ground::thread;
use farshore_backend::file::lengthen;
use farshore_net::buffers::{self, Args};
use farshore_sys::raw::getpid;
use std::os::fd::BorrowedFd;

const INFINITE: u64 = u64::MAX;
const SETRLIMIT: u64 = 160;
const PRLIMIT64: u64 = 302;

/// The calls that set limits.
pub fn handles(number: u64) -> bool {
    matches!(number, SETRLIMIT | PRLIMIT64)
}

/// Does one of them. Not inlined: its pages and limits would lie in the stack frame of every call.
#[inline(never)]
pub fn set(number: u64, args: &Args) -> i64 {
    let (resource, new) = if number == PRLIMIT64 { (args[1], args[2]) } else { (args[0], args[1]) };
    if resource as u32 == libc::RLIMIT_FSIZE && new != 0 {
        let limits = buffers::read_once::<[u64; 2]>(net(), new);
        if limits.is_some_and(|limits| limits.iter().any(|&limit| limit != INFINITE)) {
            lengthen_swap_files();
        }
    }
    if resource as u32 == libc::RLIMIT_NPROC && new != 0 {
        return set_processes(number, args, new);
    }
    if resource as u32 == libc::RLIMIT_MEMLOCK && new != 0 {
        let answer = pinned(number, args);
        if let Some(runtime) = runtime().filter(|_| !thread::is_guest()) {
            // What they may have went by the limit before. They come again by this one.
            uninterrupted(|| runtime.engine.kernel.samples().rest());
        }
        return answer;
    }
    pinned(number, args)
}

/// `NPROC` counts threads. Before a limit holds under which none could be made any more, Farshore makes its own.
fn set_processes(number: u64, args: &Args, new: u64) -> i64 {
    const FEW: u64 = 16;
    let soft = buffers::read_once::<[u64; 2]>(net(), new).map(|limits| limits[0]);
    let own = number == SETRLIMIT || args[0] as u32 == 0 || args[0] as u32 == getpid();
    let (Some(runtime), Some(soft), false) = (runtime().filter(|_| own), soft, thread::is_guest()) else {
        return pinned(number, args);
    };
    if soft < FEW {
        rights::make_last(runtime);
    }
    let answer = pinned(number, args);
    if answer >= 0 {
        rights::set_few_threads(soft < FEW);
    }
    answer
}

fn lengthen_swap_files() {
    let Some(runtime) = runtime() else { return };
    for fd in runtime.engine.backend.fds() {
        // SAFETY: one of the backend's descriptors, which it keeps open as long as the process lives.
        lengthen(unsafe { BorrowedFd::borrow_raw(fd) });
    }
}
