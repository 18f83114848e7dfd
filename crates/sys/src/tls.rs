//! One thread-local pointer that a signal handler may read.
//!
//! Rust's and C's thread-locals in a preloaded library go through `__tls_get_addr`, which may allocate
//! at a thread's first access: not in a signal handler. This one uses the *initial-exec* model: the dynamic linker gives
//! it a fixed offset from the thread pointer when the library is loaded at program start (as LD_PRELOAD does; a later
//! `dlopen` is not supported), and a read is two `mov` instructions. Every new thread begins with null.

use core::arch::{asm, global_asm};

global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".balign 8",
    ".globl farshore_tls_slot",
    // Hidden: no other object can take its place, and two copies in one process (a test program and a preloaded library) stay apart.
    ".hidden farshore_tls_slot",
    ".type farshore_tls_slot,@object",
    ".size farshore_tls_slot,8",
    "farshore_tls_slot: .zero 8",
    ".popsection",
);

/// This thread's pointer: what [`set`] stored, null before.
#[inline(always)]
pub fn get() -> *mut u8 {
    let value: *mut u8;
    // SAFETY: reads our own 8 bytes of this thread's static TLS block, which the dynamic linker set up before the thread ran.
    unsafe {
        asm!(
            "mov {value}, qword ptr [rip + farshore_tls_slot@gottpoff]",
            "mov {value}, qword ptr fs:[{value}]",
            value = out(reg) value,
            options(nostack, preserves_flags, readonly),
        );
    }
    value
}

/// Stores this thread's pointer.
///
/// # Safety
/// Whoever reads it with [`get`] must be able to trust it: it is null or stays valid until it is replaced or the thread ends.
#[inline(always)]
pub unsafe fn set(value: *mut u8) {
    // SAFETY: writes our own 8 bytes of this thread's static TLS block.
    unsafe {
        asm!(
            "mov {offset}, qword ptr [rip + farshore_tls_slot@gottpoff]",
            "mov qword ptr fs:[{offset}], {value}",
            offset = out(reg) _,
            value = in(reg) value,
            options(nostack, preserves_flags),
        );
    }
}

/// Sets the pointer of another thread, whose thread pointer is `thread`, to null.
///
/// # Safety
/// `thread` is where a thread that has not begun will have its thread pointer, with static storage below as in this thread.
pub unsafe fn clear_in(thread: *mut u8) {
    // SAFETY: our 8 bytes of that storage, by this function's own condition.
    unsafe {
        asm!(
            "mov {offset}, qword ptr [rip + farshore_tls_slot@gottpoff]",
            "mov qword ptr [{thread} + {offset}], 0",
            offset = out(reg) _,
            thread = in(reg) thread,
            options(nostack, preserves_flags),
        );
    }
}

/// The thread pointer: a number that no other living thread of the process has.
#[inline(always)]
pub fn thread_pointer() -> u64 {
    let value: u64;
    // SAFETY: the x86-64 ABI keeps the thread pointer's own value at its first 8 bytes.
    unsafe { asm!("mov {value}, qword ptr fs:[0]", value = out(reg) value, options(nostack, preserves_flags, readonly)) };
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own() {
        assert!(get().is_null());
        let mut mine = 1u8;
        // SAFETY: `mine` outlives the use; the slot is reset below.
        unsafe { set(&raw mut mine) };
        let threads: Vec<_> = (0..8usize)
            .map(|i| {
                std::thread::spawn(move || {
                    assert!(get().is_null(), "a new thread starts with null");
                    // SAFETY: never dereferenced.
                    unsafe { set(core::ptr::without_provenance_mut(i + 1)) };
                    std::thread::yield_now();
                    assert_eq!(get().addr(), i + 1);
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(get(), &raw mut mine);
        // SAFETY: null is always allowed.
        unsafe { set(core::ptr::null_mut()) };
    }
}
