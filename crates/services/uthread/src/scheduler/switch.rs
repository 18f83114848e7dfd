//! The context switch: from one stack to another, without a system call.
//!
//! A context that does not run is its stack pointer; the rest lies on its stack:
//!
//! ```text
//!  stack pointer ▶ ┌──────────────┐
//!                  │ mxcsr │ fpucw│  8 bytes
//!                  │ r15 r14 r13  │
//!                  │ r12 rbx rbp  │  48 bytes
//!                  │ return       │  8 bytes
//!                  └──────────────┘  64 bytes together
//! ```
//!
//! That is what a called function must preserve under the System V ABI for x86-64 (section 3.2.3): six registers, and the control bits of
//! `mxcsr` and of the x87 unit. All other registers, vectors included, are the caller's to save, and the compiler has done so at the call. The
//! direction flag is clear at each call. The thread pointer (`fs`) is not switched: thread-local storage belongs to the worker.
//!
//! At a page fault it is the same switch, and not inside of the signal handler: the handler leaves every register of the interrupted code on the unithread's own
//! stack and returns into code that waits there (`services/far`). That code puts them all back, whenever that is.
//!
//! Loading a control word costs tens of cycles if it changes something (measured by `examples/switch.rs`: 135 cycles a switch against 7), so it is
//! loaded only where control bits differ. The flags of exceptions that have come are not the callee's to preserve; at a page fault the saved state
//! has them.
//!
//! Leaves by `pop` and `jmp`, not by `ret`: the processor predicts a `ret` by the call before it, which was another stack's.

use core::arch::global_asm;

global_asm!(
    ".pushsection .text.farshore_uthread_switch,\"ax\",@progbits",
    ".balign 16",
    ".hidden farshore_uthread_switch",
    ".globl farshore_uthread_switch",
    ".type farshore_uthread_switch,@function",
    "farshore_uthread_switch:",
    ".cfi_startproc",
    "endbr64",
    // Both directions have the same layout, so what describes the frame to unwinders holds before and after the change of stacks.
    "push rbp",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbp, 0",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbx, 0",
    "push r12",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset r12, 0",
    "push r13",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset r13, 0",
    "push r14",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset r14, 0",
    "push r15",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset r15, 0",
    "sub rsp, 8",
    ".cfi_adjust_cfa_offset 8",
    "stmxcsr [rsp]",
    "fnstcw [rsp + 4]",
    "mov [rdi], rsp",
    "mov eax, [rsp]",
    "mov dx, [rsp + 4]",
    "xor eax, [rsi]",
    "xor dx, [rsi + 4]",
    "mov rsp, rsi",
    // Control bits alone: bits 0 to 5 are what exceptions have come, which a called function may change.
    "test eax, 0xffc0",
    "jnz 4f",
    "3: test dx, dx",
    "jnz 5f",
    "2:",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "pop r15",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore r15",
    "pop r14",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore r14",
    "pop r13",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore r13",
    "pop r12",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore r12",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore rbx",
    "pop rbp",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore rbp",
    "pop rcx",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_register rip, rcx",
    "jmp rcx",
    // Seldom, and slow: the two have other control words.
    ".cfi_restore rip",
    ".cfi_def_cfa_offset 64",
    "4: ldmxcsr [rsp]",
    "jmp 3b",
    "5: fldcw [rsp + 4]",
    "jmp 2b",
    ".cfi_endproc",
    ".size farshore_uthread_switch, . - farshore_uthread_switch",
    // Where a fresh context begins: r12 is the argument, r13 the function. Unwinders stop here: there is no caller.
    ".balign 16",
    ".hidden farshore_uthread_begin",
    ".globl farshore_uthread_begin",
    ".type farshore_uthread_begin,@function",
    "farshore_uthread_begin:",
    ".cfi_startproc",
    ".cfi_undefined rip",
    "endbr64",
    "mov rdi, r12",
    "call r13",
    "ud2",
    ".cfi_endproc",
    ".size farshore_uthread_begin, . - farshore_uthread_begin",
    ".popsection",
);

unsafe extern "sysv64" {
    fn farshore_uthread_switch(save: *mut usize, load: usize);
    fn farshore_uthread_begin();
}

/// The layout above, from the stack pointer up.
#[repr(C)]
struct Frame {
    mxcsr: u32,
    fpucw: u32,
    r15: usize,
    r14: usize,
    r13: usize,
    r12: usize,
    rbx: usize,
    rbp: usize,
    rip: usize,
}

const _: () = assert!(size_of::<Frame>() == 64);

/// Bytes that a context keeps on its stack while it does not run.
pub const CONTEXT_BYTES: usize = size_of::<Frame>();

/// What a thread begins with under the ABI: all exceptions masked, round to nearest; x87 in extended precision.
const MXCSR: u32 = 0x1f80;
const FPUCW: u32 = 0x037f;

/// Prepares a stack whose first switch calls `function(argument)`. Returns the stack pointer for [`switch`].
///
/// # Safety
/// `top` is the upper end of writable memory, at least [`CONTEXT_BYTES`] + 16 of which are free, and is a multiple of 16. `function` never returns.
pub unsafe fn prepare(top: *mut u8, function: extern "sysv64" fn(usize) -> !, argument: usize) -> usize {
    debug_assert!(top.addr().is_multiple_of(16), "the ABI wants stacks aligned to 16 bytes");
    let frame = top.wrapping_sub(size_of::<Frame>()).cast::<Frame>();
    let begin = farshore_uthread_begin as *const () as usize;
    let fresh = Frame {
        mxcsr: MXCSR,
        fpucw: FPUCW,
        r15: 0,
        r14: 0,
        r13: function as *const () as usize,
        r12: argument,
        rbx: 0,
        rbp: 0,
        rip: begin,
    };
    // SAFETY: the caller's memory, aligned to 16 since `top` is.
    unsafe { frame.write(fresh) };
    frame.expose_provenance()
}

/// Stores this context's stack pointer in `save` and goes on with the one at `load`. Returns when something switches back.
///
/// # Safety
/// `load` came from [`prepare`] or from a `save`, its stack still exists, and nothing has switched to it since. `save` is writable, and stays so
/// until the switch.
#[inline(always)]
pub unsafe fn switch(save: *mut usize, load: usize) {
    // SAFETY: the caller's duties are the whole of it.
    unsafe { farshore_uthread_switch(save, load) }
}
