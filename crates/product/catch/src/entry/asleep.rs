//! The way in for a dormant process. Its handlers are native: one may run on top of a call, and make calls itself.
//!
//! Each thread has one stack of ours, and at any time at most one of its calls *has* it. A call that finds the stack free takes it, by one
//! instruction. A call that finds it taken was made by a handler on top of another call (or on top of one that the program has
//! left by a jump): its frame lies where the thread is, below the red zone. The call that has taken the stack gives it back when
//! its frame is not needed any more: by the last instruction but one before the thread is back in the program.

use super::{Call, FRAME, RED_ZONE};
use core::arch::global_asm;
use farshore_sys::by_thread;
use farshore_sys::own::Stack;
use farshore_sys::raw::Errno;
use farshore_sys::tls;

/// Bytes of the stack. Native handlers run on it too, if they come in the middle of a call.
const BYTES: usize = 2 << 20;

unsafe extern "C" {
    fn farshore_entry_asleep();
    fn farshore_leave_asleep();
}

/// The address to which stubs lead.
pub fn entry() -> u64 {
    farshore_entry_asleep as *const () as u64
}

/// A stack for the calls of a thread: its upper end. It is never unmapped.
///
/// # Errors
/// `ENOMEM`.
pub fn new_stack() -> Result<u64, Errno> {
    let stack = Stack::new(BYTES)?;
    let top = stack.top();
    core::mem::forget(stack);
    Ok(top)
}

/// The calling thread's calls are served on the stack that ends at `calls`, and the handler that stops it runs on the one that ends
/// at `handler`.
pub fn begin(calls: u64, handler: u64) {
    tls::set_asleep_handler(handler);
    tls::set_asleep_top(calls);
}

/// Ends the call, on its stack. From here on no waking would make it begin again.
pub fn leave(call: &mut Call) {
    if core::ptr::from_ref(call) as u64 + FRAME as u64 == tls::asleep_top() {
        tls::set_asleep_resume(call.resume);
        call.resume = farshore_leave_asleep as *const () as u64;
    }
}

global_asm!(
    ".pushsection .text.farshore_entry_asleep, \"ax\", @progbits",
    ".balign 32",
    ".hidden farshore_entry_asleep",
    ".globl farshore_entry_asleep",
    ".type farshore_entry_asleep, @function",
    "farshore_entry_asleep:",
    ".cfi_startproc",
    ".cfi_signal_frame",
    ".cfi_def_cfa rsp, 0",
    ".cfi_escape 0x10, 16, 2, 0x7b, 0",
    // As in the entry: no instruction changes the flags, and rcx alone is free. What comes to stand in the byte is the lowest byte
    // of its own distance from the thread pointer, which is never 0 (`sys/src/tls.rs`).
    "mov rcx, qword ptr [rip + farshore_tls_asleep@gottpoff]",
    by_thread!("xchg byte ptr fs:[rcx], cl"),
    "movzx ecx, cl",
    "jrcxz 1f",
    "lea rcx, [rsp - {red_zone}]",
    "jmp farshore_entry_framed",
    "1: mov rcx, qword ptr [rip + farshore_tls_asleep@gottpoff]",
    by_thread!("mov rcx, qword ptr fs:[rcx + {top}]"),
    "jmp farshore_entry_framed",
    ".cfi_endproc",
    ".size farshore_entry_asleep, . - farshore_entry_asleep",
    ".hidden farshore_leave_asleep",
    ".globl farshore_leave_asleep",
    ".type farshore_leave_asleep, @function",
    ".balign 16",
    "farshore_leave_asleep:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 0",
    ".cfi_undefined rip",
    // From the store on a handler may make a call that has the stack. (r11 is free: a system call destroys it.)
    "mov r11, qword ptr [rip + farshore_tls_asleep@gottpoff]",
    by_thread!("mov rcx, qword ptr fs:[r11 + {resume}]"),
    ".cfi_register rip, rcx",
    by_thread!("mov byte ptr fs:[r11], 0"),
    "jmp rcx",
    ".cfi_endproc",
    ".size farshore_leave_asleep, . - farshore_leave_asleep",
    ".popsection",
    top = const tls::ASLEEP_TOP_AT,
    resume = const tls::ASLEEP_RESUME_AT,
    red_zone = const RED_ZONE,
);
