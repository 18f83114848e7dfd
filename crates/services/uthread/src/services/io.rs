//! Reading and writing by the worker's own ring: the unithread waits, the worker does not.

use crate::ground::library::Kept;
use crate::ground::os;
use crate::scheduler::config::WaitMode;
use crate::scheduler::worker::{self, BY_RING};
use core::sync::atomic::Ordering;
use io_uring::{opcode, squeue, types};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// What a unithread waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum For {
    /// A file, which answers soon: as for a fetch.
    File,
    /// A peer, who may never answer: at most until this time of `os::now`. It is no fetch, so nobody polls for it, and no worker waits in place
    /// because the configuration says so of fetches.
    Peer(Option<u64>),
    /// A send that takes no longer than the kernel does: in place, without sleep.
    Send,
}

/// Reads from `file` at `offset` (`u64::MAX`: at its position, or from a stream), as pread(2) does. The runtime's shutdown ends it with `ECANCELED`.
pub fn read(file: impl AsFd, into: &mut [u8], offset: u64) -> io::Result<usize> {
    let length = u32::try_from(into.len()).unwrap_or(u32::MAX);
    let request = opcode::Read::new(types::Fd(file.as_fd().as_raw_fd()), into.as_mut_ptr(), length).offset(offset).build();
    let _kept = keep(into, true)?;
    // SAFETY: `into` and `file` are borrowed for the whole of the wait.
    unsafe { run(request, For::File) }
}

/// Writes to `file` at `offset` (`u64::MAX`: at its position, or to a stream), as pwrite(2) does. The runtime's shutdown ends it with `ECANCELED`.
pub fn write(file: impl AsFd, from: &[u8], offset: u64) -> io::Result<usize> {
    let length = u32::try_from(from.len()).unwrap_or(u32::MAX);
    let request = opcode::Write::new(types::Fd(file.as_fd().as_raw_fd()), from.as_ptr(), length).offset(offset).build();
    let _kept = keep(from, false)?;
    // SAFETY: as above.
    unsafe { run(request, For::File) }
}

/// Keeps the memory of a request where it is: the kernel cannot wait for a page. Pages that are far are waited for here, by a touch.
fn keep(memory: &[u8], write: bool) -> io::Result<Option<Kept>> {
    // The pool is not managed.
    if worker::inside().is_some_and(|(worker, index)| worker.shared.pool.is_own(index, memory.as_ptr().addr())) {
        return Ok(None);
    }
    for at in memory.iter().step_by(4096).chain(memory.last()) {
        // SAFETY: borrowed.
        unsafe { core::ptr::from_ref(at).read_volatile() };
    }
    Kept::new(memory.as_ptr().cast(), memory.len(), write).map(Some)
}

/// For code that calls what unithreads alone can do.
fn not_inside() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "not called by a unithread, so there is no ring: use std's functions")
}

/// Carries a request out. The runtime's shutdown ends it with `ECANCELED`, its deadline with `TimedOut`.
///
/// # Safety
/// What it points to is valid until this returns.
pub(crate) unsafe fn run(request: squeue::Entry, what: For) -> io::Result<usize> {
    let (worker, index) = worker::inside().ok_or_else(not_inside)?;
    let unit = worker.shared.pool.unit(index);
    if worker.shared.is_stopping() {
        return Err(io::Error::from_raw_os_error(libc::ECANCELED));
    }
    let token = unit.wait.arm(index);
    // SAFETY: the caller's duty: this waits until the completion has come.
    unsafe { worker.request(&request.user_data(token.into_raw())) }?;
    unit.stoppable.store(token.into_raw() | BY_RING, Ordering::Relaxed);
    let result = match what {
        For::File => worker.wait_for_fetch(index, token),
        For::Send => worker.wait(index, token, WaitMode::Busy),
        For::Peer(None) => worker.wait(index, token, WaitMode::Yield),
        For::Peer(Some(deadline)) => {
            worker.set_timer(deadline, token);
            let result = worker.wait(index, token, WaitMode::Yield);
            worker.remove_timer(index);
            result
        }
    };
    unit.stoppable.store(0, Ordering::Relaxed);
    // One that the kernel waits for in a thread of its own (a socket whose other side sends no more is always ready, and has no room all the same) is interrupted.
    let over = |deadline| result == -libc::ECANCELED || (result == -libc::EINTR && os::now() >= deadline);
    if let For::Peer(Some(deadline)) = what
        && over(deadline)
        && !worker.shared.is_stopping()
    {
        return Err(io::ErrorKind::TimedOut.into());
    }
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result as usize) }
}

#[cfg(test)]
mod tests;
