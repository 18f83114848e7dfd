//! Where what the library's dependencies map lies: apart from the program's memory, or spared.
//!
//! The crates that the library is built with call libc's `mmap` and let the kernel choose: the highest hole. That may be one that the program
//! has just made, and that it unmaps once more, or maps over (stress-ng's `mmapmany` does): what lies there is gone below our threads. So the
//! linker gives these crates the two functions below in the place of libc's (`build.rs`); nobody but the library sees them.
//!
//! 1. What they map lies where [`own::place`] says.
//! 2. Of a ring of io_uring the kernel alone chooses the place (since Linux 6.4 a hint is `EINVAL`). Such a mapping is written down in
//!    [`AMONG`], and a forked child does not have it.
//! 3. The program's memory calls are answered as if there were a hole ([`spared`]); what natively would map there is refused.
//! 4. The list changes under the address-space lock, which calls that unmap take too, or while the program does not run
//!    ([`super::own_threads::prepare`]).

use super::spare::spare;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use farshore_core::limits::{EVICTORS_MAX, PAGE_SIZE};
use farshore_sys::own;
use farshore_sys::raw::Errno;
use farshore_sys::vm::{self, advice, map};

/// Mappings of ours that lie among the program's: bytes from, bytes to. Signal handlers read it.
static AMONG: [[AtomicU64; 2]; MOST] = [const { [const { AtomicU64::new(0) }; 2] }; MOST];
/// Of these, so many were used. None is used again.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Two for a ring, of which each evictor has one, and one more is tried first. To get a high descriptor a ring is mapped twice (`backend/src/file/uring.rs`).
const MOST: usize = 2 * 2 * (EVICTORS_MAX + 1);

/// `mmap` of libc, but that a mapping without an address lies apart, or is written down.
///
/// # Safety
/// As of `mmap`.
#[unsafe(no_mangle)]
unsafe extern "C" fn farshore_mmap_apart(
    addr: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: this function's own condition. A hint replaces nothing.
    let map_at = |addr| unsafe { vm::mmap(addr, len as u64, protection as u64, flags as u64, fd, offset as u64) };
    let made = if addr.is_null() && flags as u64 & map::FIXED == 0 {
        map_at(own::place(len as u64)).or_else(|_| {
            let at = USED.load(Ordering::Relaxed);
            let [from, to] = AMONG.get(at).ok_or(Errno::ENOMEM)?;
            let base = map_at(0)?;
            // SAFETY: memory of ours, which a child of ours does not use.
            let _ = unsafe { vm::madvise(base, len as u64, advice::DONTFORK) };
            from.store(base, Ordering::Relaxed);
            to.store(base + (len as u64).next_multiple_of(PAGE_SIZE as u64), Ordering::Relaxed);
            USED.store(at + 1, Ordering::Release);
            Ok(base)
        })
    } else {
        map_at(addr as u64)
    };
    match made {
        Ok(base) => core::ptr::with_exposed_provenance_mut(base as usize),
        Err(why) => {
            tell(why);
            libc::MAP_FAILED
        }
    }
}

/// `munmap` of libc; what is unmapped is struck off the list.
///
/// # Safety
/// As of `munmap`.
#[unsafe(no_mangle)]
unsafe extern "C" fn farshore_munmap_apart(addr: *mut c_void, len: usize) -> c_int {
    // SAFETY: this function's own condition.
    let answer = unsafe { vm::munmap(addr as u64, len as u64) };
    match answer {
        Ok(()) => {
            let ours =
                AMONG.iter().take(USED.load(Ordering::Relaxed)).filter(|[from, _]| from.load(Ordering::Relaxed) == addr as u64);
            ours.for_each(|[from, to]| to.store(from.load(Ordering::Relaxed), Ordering::Release));
            0
        }
        Err(why) => {
            tell(why);
            -1
        }
    }
}

/// Sets libc's `errno`, where callers of the two look.
fn tell(why: Errno) {
    // SAFETY: no condition.
    let word = unsafe { libc::__errno_location() };
    // SAFETY: the calling thread's own word.
    unsafe { word.write(why.0) };
}

/// In a forked child, which does not have them.
pub fn forget() {
    USED.store(0, Ordering::Release);
}

/// Does a memory call of the program that reaches one of these mappings, by `call`, and answers as if there were a hole in its place. `None`: it reaches
/// none, and is not done.
#[inline]
pub fn spared(number: u64, args: &[u64; 6], call: impl Fn(&[u64; 6]) -> i64) -> Option<i64> {
    let among = AMONG.iter().take(USED.load(Ordering::Acquire));
    spare(among.map(|[from, to]| from.load(Ordering::Relaxed)..to.load(Ordering::Acquire)), number, args, call)
}
