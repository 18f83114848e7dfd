//! Thread-local words that a signal handler may read: a pointer, two for the entry of caught system calls, and four for a thread of
//! a dormant process.
//!
//! Rust's and C's thread-locals in a preloaded library go through `__tls_get_addr`, which may allocate
//! at a thread's first access: not in a signal handler. This one uses the *initial-exec* model: the dynamic linker gives
//! it a fixed offset from the thread pointer when the library is loaded at program start (as LD_PRELOAD does; a later
//! `dlopen` is not supported), and a read is two `mov` instructions. Every new thread begins with null.

use crate::by_thread;
use core::arch::{asm, global_asm};

global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".balign 16",
    ".globl farshore_tls_slot",
    // Hidden: no other object can take its place, and two copies in one process (a test program and a preloaded library) stay apart.
    ".hidden farshore_tls_slot",
    ".type farshore_tls_slot,@object",
    ".size farshore_tls_slot,24",
    // The pointer; the top of the stack for caught calls; what such a call has to do at its end.
    "farshore_tls_slot: .zero 24",
    // Its distance from the thread pointer is no multiple of 16, so the lowest byte of that distance is never 0: the entry of a
    // dormant process relies on it (`catch/src/entry/asleep.rs`).
    ".globl farshore_tls_asleep",
    ".hidden farshore_tls_asleep",
    ".type farshore_tls_asleep,@object",
    ".size farshore_tls_asleep,32",
    // Whether a call has the stack; the stack's top; where the call goes on; the stack of the handler that stops the thread.
    "farshore_tls_asleep: .zero 32",
    ".popsection",
);

/// Where the second word is, from the first one on.
pub const CALL_STACK_AT: usize = 8;
/// Where the third word is.
pub const DEFERRED_AT: usize = 16;
/// Where the words of a dormant process' thread are, from `farshore_tls_asleep` on: the top of its stack for calls.
pub const ASLEEP_TOP_AT: usize = 8;
/// Where its call goes on.
pub const ASLEEP_RESUME_AT: usize = 16;
/// The top of the stack on which the handler runs that stops the thread.
pub const ASLEEP_HANDLER_AT: usize = 24;

/// The accessors' code, all of it on one page: in a hosted program each page with an instruction by the thread pointer is copied at the start
/// ([`crate::hosted`]), and inlined into their 130 callers they were on 65 pages. A call is 5 bytes, takes a nanosecond, and changes `rax` and `rcx` alone.
macro_rules! code {
    ($($name:literal: $slot:literal, $instruction:literal;)*) => {
        global_asm!(
            ".pushsection .text.farshore_tls, \"ax\", @progbits",
            ".balign 64",
            $(
                concat!(".hidden ", $name),
                concat!(".globl ", $name),
                concat!(".type ", $name, ", @function"),
                concat!($name, ":"),
                ".cfi_startproc",
                concat!("mov rcx, qword ptr [rip + ", $slot, "@gottpoff]"),
                by_thread!($instruction),
                "ret",
                ".cfi_endproc",
                concat!(".size ", $name, ", . - ", $name),
            )*
            ".popsection",
            call_stack_at = const CALL_STACK_AT,
            deferred_at = const DEFERRED_AT,
            top_at = const ASLEEP_TOP_AT,
            resume_at = const ASLEEP_RESUME_AT,
            handler_at = const ASLEEP_HANDLER_AT,
        );
    };
}

code! {
    "farshore_tls_get": "farshore_tls_slot", "mov rax, qword ptr fs:[rcx]";
    "farshore_tls_set": "farshore_tls_slot", "mov qword ptr fs:[rcx], rax";
    "farshore_tls_get_call_stack": "farshore_tls_slot", "mov rax, qword ptr fs:[rcx + {call_stack_at}]";
    "farshore_tls_set_call_stack": "farshore_tls_slot", "mov qword ptr fs:[rcx + {call_stack_at}], rax";
    "farshore_tls_get_deferred": "farshore_tls_slot", "mov rax, qword ptr fs:[rcx + {deferred_at}]";
    "farshore_tls_set_deferred": "farshore_tls_slot", "mov qword ptr fs:[rcx + {deferred_at}], rax";
    "farshore_tls_get_asleep_top": "farshore_tls_asleep", "mov rax, qword ptr fs:[rcx + {top_at}]";
    "farshore_tls_set_asleep_top": "farshore_tls_asleep", "mov qword ptr fs:[rcx + {top_at}], rax";
    "farshore_tls_get_asleep_resume": "farshore_tls_asleep", "mov rax, qword ptr fs:[rcx + {resume_at}]";
    "farshore_tls_set_asleep_resume": "farshore_tls_asleep", "mov qword ptr fs:[rcx + {resume_at}], rax";
    "farshore_tls_get_asleep_handler": "farshore_tls_asleep", "mov rax, qword ptr fs:[rcx + {handler_at}]";
    "farshore_tls_set_asleep_handler": "farshore_tls_asleep", "mov qword ptr fs:[rcx + {handler_at}], rax";
    "farshore_tls_pointer": "farshore_tls_slot", "mov rax, qword ptr fs:[0]";
}

/// Reads and writes one of the other words.
macro_rules! word {
    ($get:ident, $set:ident, $doc:literal) => {
        #[doc = $doc]
        #[inline(always)]
        pub fn $get() -> u64 {
            let value: u64;
            // SAFETY: reads our own 8 bytes of this thread's static TLS block. Not `readonly`: a handler of this thread may write them.
            unsafe {
                asm!(
                    concat!("call farshore_tls_get_", stringify!($get)),
                    out("rax") value,
                    out("rcx") _,
                    options(preserves_flags),
                );
            }
            value
        }

        /// Changes it.
        #[inline(always)]
        pub fn $set(value: u64) {
            // SAFETY: writes our own 8 bytes of this thread's static TLS block; whatever relies on the number says what it must be.
            unsafe {
                asm!(
                    concat!("call farshore_tls_set_", stringify!($get)),
                    in("rax") value,
                    out("rcx") _,
                    options(preserves_flags),
                );
            }
        }
    };
}

word!(call_stack, set_call_stack, "Top of the stack on which this thread's caught system calls are served; 0: it has none.");
word!(
    deferred,
    set_deferred,
    "Not 0: a caught system call is under way that has something to do at its end; it makes no more calls for the program."
);
word!(
    asleep_top,
    set_asleep_top,
    "Top of the stack on which this thread of a dormant process has its watched calls served; 0: it has none."
);
word!(asleep_resume, set_asleep_resume, "Where the program goes on behind the call that has that stack.");
word!(
    asleep_handler,
    set_asleep_handler,
    "Top of the stack on which the handler runs that stops this thread, or wakes its process."
);

/// This thread's pointer: what [`set`] stored, null before.
#[inline(always)]
pub fn get() -> *mut u8 {
    let value: *mut u8;
    // SAFETY: reads our own 8 bytes of this thread's static TLS block, which the dynamic linker set up before the thread ran.
    unsafe { asm!("call farshore_tls_get", out("rax") value, out("rcx") _, options(preserves_flags, readonly)) };
    value
}

/// The same without a call, for code that may make none.
#[inline(always)]
pub fn get_inlined() -> *mut u8 {
    let value: *mut u8;
    // SAFETY: as in `get`.
    unsafe {
        asm!(
            "mov {value}, qword ptr [rip + farshore_tls_slot@gottpoff]",
            by_thread!("mov {value}, qword ptr fs:[{value}]"),
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
    unsafe { asm!("call farshore_tls_set", in("rax") value, out("rcx") _, options(preserves_flags)) };
}

/// Sets the words of another thread, whose thread pointer is `thread`, to 0.
///
/// # Safety
/// `thread` is where a thread that has not begun will have its thread pointer, with static storage below as in this thread.
pub unsafe fn clear_in(thread: *mut u8) {
    // SAFETY: our 24 bytes of that storage, by this function's own condition.
    unsafe {
        asm!(
            "mov {offset}, qword ptr [rip + farshore_tls_slot@gottpoff]",
            "mov qword ptr [{thread} + {offset}], 0",
            "mov qword ptr [{thread} + {offset} + 8], 0",
            "mov qword ptr [{thread} + {offset} + 16], 0",
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
    unsafe { asm!("call farshore_tls_pointer", out("rax") value, out("rcx") _, options(preserves_flags, readonly)) };
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
