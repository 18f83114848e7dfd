//! Which code is ours, and how the calls of all other code are caught.

use crate::ground::{report, thread};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use farshore_catch::patch::Maps;
use farshore_sys::sud;

unsafe extern "C" {
    /// Where the library begins: the linker's name for its first byte.
    #[link_name = "__ehdr_start"]
    static BASE: u8;
}

/// Where the library lies. Its symbols are at offsets from here.
pub fn base() -> u64 {
    &raw const BASE as u64
}

/// Syscall User Dispatch looks here: always on. What is spared is our text.
static SELECTOR: AtomicU8 = AtomicU8::new(sud::BLOCK);
static TEXT_START: AtomicU64 = AtomicU64::new(0);
static TEXT_LEN: AtomicU64 = AtomicU64::new(0);

/// Notes where our text lies, in which `here` is. At start-up.
///
/// # Errors
/// One line: `/proc` does not tell.
pub fn find(maps: &Maps, here: u64) -> Result<(), String> {
    let text = maps.text_around(here);
    let text = text.ok_or("libfarshore.so does not find itself in /proc/self/maps; is /proc mounted?")?;
    TEXT_START.store(text.start, Ordering::Release);
    TEXT_LEN.store(text.end - text.start, Ordering::Release);
    Ok(())
}

/// Whether code at `addr` is ours.
#[inline]
pub fn is_ours(addr: u64) -> bool {
    addr.wrapping_sub(TEXT_START.load(Ordering::Acquire)) < TEXT_LEN.load(Ordering::Acquire)
}

/// Switches Syscall User Dispatch on for the calling thread.
pub fn catch_calls() {
    let (start, len) = (TEXT_START.load(Ordering::Acquire), TEXT_LEN.load(Ordering::Acquire));
    let selector = thread::current().map_or(&raw const SELECTOR, |thread| &raw const thread.selector);
    // SAFETY: the range is our text, where all our own system calls are made; the handler of SIGSYS is installed; records are never unmapped.
    if let Err(why) = unsafe { sud::enable(start, len, selector) } {
        report::abort(format_args!(
            "system calls cannot be caught (Syscall User Dispatch: {why:?}); 'farshore doctor' tells more"
        ));
    }
}
