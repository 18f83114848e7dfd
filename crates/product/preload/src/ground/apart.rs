//! Where what the library's dependencies map lies: apart from the program's memory, or spared.
//!
//! The crates that the library is built with call libc's `mmap` and let the kernel choose: the highest hole. That may be one that the program
//! has just made, and that it unmaps once more, or maps over (stress-ng's `mmapmany` does): what lies there is gone below our threads. So the
//! linker gives these crates the two functions below in the place of libc's (`build.rs`). Nobody else gets them: the program's `mmap` is libc's.
//!
//! 1. What they map lies where [`own::place`] says.
//! 2. Of a ring of io_uring the kernel alone chooses the place (since Linux 6.4 a hint is `EINVAL`). Such a mapping is written down in
//!    [`AMONG`], and a forked child does not have it.
//! 3. The program's memory calls are answered as if there were a hole ([`spared`]); what natively would map there is refused.
//! 4. The list changes under the address-space lock, which calls that unmap take too, or while the program does not run
//!    ([`super::own_threads::prepare`]).

use super::spare::{bytes, spare, word};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use farshore_core::limits::EVICTORS_MAX;
use farshore_sys::own;
use farshore_sys::raw::Errno;
use farshore_sys::vm::{self, advice, map};

/// Mappings of ours that lie among the program's, each in one word ([`word`]); 0: none. Signal handlers read it.
static AMONG: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
/// None beyond this was ever used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Two for each ring: of each evictor, the one that is tried first, and one that is mapped a second time when its descriptor moves up.
const MOST: usize = 2 * (EVICTORS_MAX + 2);

/// Puts a mapping on the list, if there is room.
fn written_down(base: u64, len: u64) -> bool {
    let Some(word) = word(base, len) else { return false };
    let free = |entry: &AtomicU64| entry.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let at = AMONG.iter().position(free);
    at.inspect(|at| _ = USED.fetch_max(at + 1, Ordering::Release)).is_some()
}

/// Strikes one off.
fn strike_off(base: u64, len: u64) {
    let Some(word) = word(base, len) else { return };
    for entry in AMONG.iter().filter(|entry| entry.load(Ordering::Relaxed) == word) {
        entry.store(0, Ordering::Release);
    }
}

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
            let base = map_at(0)?;
            // SAFETY: memory of ours, which a child of ours does not use.
            let _ = unsafe { vm::madvise(base, len as u64, advice::DONTFORK) };
            if !written_down(base, len as u64) {
                // SAFETY: it was mapped just now, and nobody knows it.
                let _ = unsafe { vm::munmap(base, len as u64) };
                return Err(Errno::ENOMEM);
            }
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
    // Before: what the program maps there afterwards is its own. Nobody uses it any more.
    strike_off(addr as u64, len as u64);
    // SAFETY: this function's own condition.
    match unsafe { vm::munmap(addr as u64, len as u64) } {
        Ok(()) => 0,
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
    AMONG.iter().for_each(|entry| entry.store(0, Ordering::Release));
}

/// Does a memory call of the program that reaches one of these mappings, by `call`, and answers as if there were a hole in its place. `None`: it reaches
/// none, and is not done.
#[inline]
pub fn spared(number: u64, args: &[u64; 6], call: impl Fn(u64, &[u64; 6]) -> i64) -> Option<i64> {
    let among = AMONG.iter().take(USED.load(Ordering::Acquire)).map(|entry| bytes(entry.load(Ordering::Acquire)));
    spare(among, number, args, call)
}
