//! Pages of the program that a handler of ours works on.

use crate::ground::runtime::{Runtime, runtime};
use crate::ground::thread::Thread;
use crate::ground::{lost, own_threads};
use farshore_core::page::{Access, PageRange};
use farshore_engine::fault::pins::Pinned;
use farshore_sys::raw::{Errno, nr, syscall};

/// Pages of the program that stay where they are while a handler of ours works on them. Not more than 64.
#[derive(Debug)]
pub struct Pages {
    pub range: PageRange,
    pub pinned: u64,
}

impl Pages {
    /// Brings the pages of a range and keeps them; `None` if the program could not access them, or there are too many. With all
    /// signals blocked, on a stack that is not managed.
    pub fn take(thread: &Thread, addr: u64, len: u64, access: Access) -> Option<Pages> {
        let range = PageRange::covering(addr, len);
        if addr.checked_add(len)? > 1 << 47 || range.len() > u64::BITS.into() {
            return None;
        }
        let pages = Pages { range, pinned: pin(thread, range, access) };
        let reachable = range.iter().all(|page| is_reachable(page.addr().max(addr.next_multiple_of(8)), access));
        reachable.then_some(pages)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let Some(runtime) = runtime().filter(|_| self.pinned != 0) else { return };
        unpin(runtime, self.range, self.pinned);
    }
}

/// Pins the managed pages of a range of at most 64; a bit for each that was. With all signals blocked, on a stack that is not managed.
fn pin(thread: &Thread, range: PageRange, access: Access) -> u64 {
    let Some(runtime) = runtime() else { return 0 };
    let mut pinned = 0u64;
    for (bit, page) in range.iter().enumerate().filter(|&(_, page)| runtime.engine.is_managed(page)) {
        own_threads::ensure();
        match thread.with_buffer(|buffer| runtime.engine.pin(page, access, thread.core(), buffer)) {
            Ok(Pinned::Held) => pinned |= 1 << bit,
            Ok(Pinned::Foreign) => {}
            Err(why) => lost::fail(page, why),
        }
    }
    pinned
}

/// Takes back what [`pin`] has pinned.
fn unpin(runtime: &Runtime, range: PageRange, pinned: u64) {
    range.iter().enumerate().filter(|&(bit, _)| pinned >> bit & 1 != 0).for_each(|(_, page)| runtime.engine.unpin(page));
}

/// Whether the program may access eight bytes of a page: the kernel tries. It also makes a stack grow, as an access of the program does.
fn is_reachable(addr: u64, access: Access) -> bool {
    /// None of the ways in which a mask can change: the kernel reads it and refuses.
    const NO_WAY: u64 = 99;
    let args = match access {
        Access::Write => [0, 0, addr, 8, 0, 0],
        Access::Read => [NO_WAY, addr, 0, 8, 0, 0],
    };
    // SAFETY: writes the mask to memory where the caller is about to write anyway, or reads it. No mask is changed.
    let answer = unsafe { syscall(nr::RT_SIGPROCMASK, args) };
    answer != -i64::from(Errno::EFAULT.0)
}
