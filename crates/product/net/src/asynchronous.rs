//! Asynchronous I/O of the program: io_uring and Linux AIO, by which the kernel touches memory after the call has returned.
//!
//! An evictor must not take a page that the kernel will read or write: a write that comes between its copy and the unmapping is lost, and an absent page is an
//! `EFAULT`. So the pages of a request are kept from its submission to its completion.
//!
//! # Protocol
//!
//! 1. **Before** the kernel sees a request, its memory is pinned ([`holds::admit`]), by pins that belong to no call and no thread. The page words count one pin for all
//!    requests that use a page; [`holds`] counts the requests.
//! 2. **Completions are read where the program reads them.** The queue of completions lies in shared memory, through the program's own mapping. Whenever a call of the
//!    program comes by (a submission, a wait, a change of memory), all that have come since the last look are counted ([`ring::Ring::reap`],
//!    [`context::Context::reap`]). Nothing is copied, and the program may take them without a call. None is missed as long as no more requests are in flight than
//!    the queue has places: a place is used again only when as many others have been.
//! 3. **What is counted is the name** that the program has given (`user_data`; for AIO the address of the request). Names may be used twice: a *group* has the pages of
//!    all requests of a name in flight, and lets them go when as many completions have come.
//! 4. **Where completions cannot be counted** (multishot requests, more in flight than there are places, tags of resources, memory of the queue that the program unmaps) the ring
//!    *keeps*: the memory of its requests is handed over to the kernel, for good ([`holds::keep`]). So is the memory of registered buffers. What may be kept is a quarter of the limit.
//! 5. **Where there is no room**, of the pages that may be pinned (a quarter of the limit) or kept, a submission waits for completions as long as some come; then it ends
//!    with what was submitted, or with `EAGAIN`, as where the kernel has no memory for requests.
//! 6. What cannot be made safe is refused as an older kernel would: a flag of `io_uring_setup` by the call, an operation by a completion with `EINVAL`. For that the
//!    operation's code is replaced in the program's queue for the time of the submission. So are descriptors of Farshore's own, by one that is not open.
//! 7. **A ring belongs to the process that made it.** In a forked child, and for rings that come by messages, nothing is known of what is in flight: `EOPNOTSUPP`, as of a descriptor that is
//!    no ring. A ring is recognised by its inode, so copies of its descriptor are the same ring.
//! 8. **Memory calls** on pages in flight: what is unmapped is natively gone for the kernel, too. What stays mapped and would lose its bytes or its place is handed over before
//!    ([`before_change`]).
//!
//! # Locks
//!
//! A ring's *gate* is held for a submission, as the kernel holds its own lock. The table's lock is held for moments; it comes before the address-space lock. Both are
//! held with all signals blocked but those that carry faults.

mod context;
mod holds;
mod register;
mod request;
mod ring;
#[cfg(test)]
mod tests;

pub(super) use context::call as aio;
pub(super) use ring::call as io_uring;

use super::buffers::{Memory, PAGE};
use super::calls::NEEDED_SIGNALS;
use core::sync::atomic::{AtomicBool, Ordering};
use farshore_sys::lock::Mutex;
use farshore_sys::signal::{self, How, SigSet};
use holds::Holds;

/// Everything that is in flight.
struct Table {
    rings: Vec<ring::Ring>,
    contexts: Vec<context::Context>,
    holds: Holds,
}

static TABLE: Mutex<Table> = Mutex::new(Table { rings: Vec::new(), contexts: Vec::new(), holds: Holds::new() });

/// The program has made a ring or a context at some time.
static USED: AtomicBool = AtomicBool::new(false);

/// Whether the program has made a ring or a context at some time.
pub fn is_used() -> bool {
    USED.load(Ordering::Acquire)
}

/// The program makes its first ring or context. Requests may write to devices, and open them.
fn note_use(mem: &impl Memory) {
    USED.store(true, Ordering::Release);
    mem.requests_come();
    super::calls::keepers::requests_come();
}

/// Runs `f` with all signals blocked, but for those that carry faults.
fn quietly<R>(f: impl FnOnce() -> R) -> R {
    let before = signal::sigprocmask(How::Set, SigSet(!NEEDED_SIGNALS));
    let result = f();
    signal::sigprocmask(How::Set, before);
    result
}

impl Table {
    /// Counts the completions that have come. Whether there were any.
    fn reap(&mut self, mem: &impl Memory) -> bool {
        let mut came = false;
        for ring in &mut self.rings {
            came |= ring.reap(mem, &mut self.holds);
        }
        for context in &mut self.contexts {
            came |= context.reap(mem, &mut self.holds);
        }
        came
    }
}

/// The program is about to change the pages of `len` bytes from `addr`. `stays`: they stay mapped, with other bytes or elsewhere.
pub fn before_change(mem: &impl Memory, addr: u64, len: u64, stays: bool) {
    if !is_used() || len == 0 {
        return;
    }
    let pages = addr / PAGE..addr.saturating_add(len).div_ceil(PAGE);
    quietly(|| {
        let mut given_up = Vec::new();
        let in_flight = TABLE.with(|table| {
            table.reap(mem);
            if !stays {
                table.holds.forget_kept(pages.clone());
                table.rings.iter_mut().for_each(|ring| ring.unmapped(addr, len, &mut given_up));
            }
            if stays { table.holds.among(pages) } else { Vec::new() }
        });
        holds::hand_over(mem, &in_flight);
        holds::hand_over(mem, &given_up);
        TABLE.with(|table| table.holds.release(mem, &given_up));
    });
}

/// The program has mapped `len` bytes of the file `fd` from `offset` on at `addr`.
pub fn mapped(mem: &impl Memory, fd: u64, offset: u64, addr: u64, len: u64) {
    if is_used()
        && let Some(part) = ring::Part::at(offset)
        && let Some(id) = super::calls::descriptors::identity(mem, fd)
    {
        quietly(|| {
            TABLE.with(|table| table.rings.iter_mut().filter(|ring| ring.id == id).for_each(|ring| ring.mapped(part, addr, len)))
        });
    }
}

/// Before a fork, before the address-space lock is taken; with all signals blocked.
pub fn hold() {
    TABLE.acquire();
}

/// After a fork, in the parent.
pub fn let_go() {
    TABLE.release();
}

/// In a forked child: the requests, and the pins, are its parent's.
pub fn begin_child() {
    TABLE.release();
    TABLE.with(|table| {
        table.rings.clear();
        table.contexts.clear();
        table.holds = Holds::new();
    });
}
