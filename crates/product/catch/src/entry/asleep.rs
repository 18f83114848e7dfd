//! The way in for a dormant process. Its handlers are native: one may run on top of a call, and make calls itself.
//!
//! There is one stack of ours, and at any time at most one call *has* it. A call that finds the stack free takes it, by one
//! instruction. A call that finds it taken was made by a handler on top of another call (or on top of one that the program has
//! left by a jump): its frame lies where the thread is, below the red zone. The call that has taken the stack gives it back when
//! its frame is not needed any more: by the last instruction but one before the thread is back in the program.

use super::{Call, FRAME, RED_ZONE};
use core::arch::global_asm;
use core::sync::atomic::{AtomicU64, Ordering};
use farshore_sys::own::Stack;

/// Bytes of the stack. Native handlers run on it too, if they come in the middle of a call.
const BYTES: usize = 2 << 20;

/// The stack's upper end.
static TOP: AtomicU64 = AtomicU64::new(0);
/// 1: a call has the stack. The assembly uses one byte of it.
static TAKEN: AtomicU64 = AtomicU64::new(0);
/// Where the program goes on behind the call that has the stack.
static RESUME: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" {
    fn farshore_entry_asleep();
    fn farshore_leave_asleep();
}

/// The address to which stubs lead.
pub fn entry() -> u64 {
    farshore_entry_asleep as *const () as u64
}

/// Makes the stack. False: there is no memory.
pub fn prepare() -> bool {
    let Ok(stack) = Stack::new(BYTES) else { return false };
    TOP.store(stack.top(), Ordering::Release);
    core::mem::forget(stack);
    true
}

/// Ends the call, on its stack. From here on no waking would make it begin again.
pub fn leave(call: &mut Call) {
    if core::ptr::from_ref(call) as u64 + FRAME as u64 == TOP.load(Ordering::Relaxed) {
        RESUME.store(call.resume, Ordering::Relaxed);
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
    // As in the entry: no instruction changes the flags.
    "mov ecx, 1",
    "xchg byte ptr [rip + {taken}], cl",
    "jrcxz 1f",
    "lea rcx, [rsp - {red_zone}]",
    "jmp farshore_entry_framed",
    "1: mov rcx, [rip + {top}]",
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
    "mov rcx, [rip + {resume}]",
    ".cfi_register rip, rcx",
    "mov byte ptr [rip + {taken}], 0",
    "jmp rcx",
    ".cfi_endproc",
    ".size farshore_leave_asleep, . - farshore_leave_asleep",
    ".popsection",
    taken = sym TAKEN,
    top = sym TOP,
    resume = sym RESUME,
    red_zone = const RED_ZONE,
);
