//! Memory accesses that return an error instead of raising a signal.
//!
//! Two places must touch memory that may vanish under them: an evictor that copies a page which
//! another thread of the program unmaps at that moment, and code that reads a structure whose address the program
//! gave. They use the routines here. Each is a leaf of a few instructions between two labels, with nothing pushed on the stack. The
//! process' SIGBUS and SIGSEGV handlers call [`fixup`] first: if the interrupted instruction lies between the labels, it
//! sends the thread to the common exit, with the kind of fault as the result.
//!
//! Without a handler that calls [`fixup`] a fault has its usual consequence.

use crate::signal::{FaultKind, Reg, UContext};
use core::arch::global_asm;

global_asm!(
    ".pushsection .text.farshore_guarded,\"ax\",@progbits",
    ".balign 16",
    ".globl farshore_guarded_copy",
    ".hidden farshore_guarded_copy",
    ".type farshore_guarded_copy,@function",
    ".globl farshore_guarded_read",
    ".hidden farshore_guarded_read",
    ".type farshore_guarded_read,@function",
    ".globl farshore_guarded_write",
    ".hidden farshore_guarded_write",
    ".type farshore_guarded_write,@function",
    ".globl farshore_guarded_end",
    ".hidden farshore_guarded_end",
    ".globl farshore_guarded_exit",
    ".hidden farshore_guarded_exit",
    // fn(to: rdi, from: rsi, bytes: rdx) -> 0. String moves are the fastest copy of a page where the
    // processor has fast strings (all since 2013), and use no vector registers.
    "farshore_guarded_copy:",
    ".cfi_startproc",
    "mov rcx, rdx",
    "rep movsb",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    // fn(from: rdi) -> the byte
    "farshore_guarded_read:",
    ".cfi_startproc",
    "movzx eax, byte ptr [rdi]",
    "ret",
    ".cfi_endproc",
    // fn(to: rdi, value: esi) -> 0
    "farshore_guarded_write:",
    ".cfi_startproc",
    "mov byte ptr [rdi], sil",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    "farshore_guarded_end:",
    // Where `fixup` sends a thread that faulted above; rax holds the fault's kind.
    "farshore_guarded_exit:",
    ".cfi_startproc",
    "ret",
    ".cfi_endproc",
    ".popsection",
);

unsafe extern "C" {
    fn farshore_guarded_copy(to: *mut u8, from: *const u8, bytes: usize) -> u64;
    fn farshore_guarded_read(from: *const u8) -> u64;
    fn farshore_guarded_write(to: *mut u8, value: u8) -> u64;
    fn farshore_guarded_end();
    fn farshore_guarded_exit();
}

/// Marks a result as a fault; the error code is in the low bits.
const FAULT: u64 = 1 << 32;

const fn sort(result: u64) -> Result<u8, FaultKind> {
    if result & FAULT != 0 { Err(FaultKind(result & !FAULT)) } else { Ok(result as u8) }
}

/// Copies `bytes` bytes.
///
/// # Errors
/// The kind of the first fault; what was copied before it stays copied.
///
/// # Safety
/// 1. What lies at `to` may be overwritten and nobody else uses it meanwhile. 2. The ranges do not overlap.
/// 3. Nobody relies on the bytes at `from` being unchanged meanwhile.
pub unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) -> Result<(), FaultKind> {
    // SAFETY: the caller's three promises; a fault is caught by `fixup` or is the process' end.
    sort(unsafe { farshore_guarded_copy(to, from, bytes) }).map(|_| ())
}

/// Reads one byte.
///
/// # Errors
/// The kind of the fault.
///
/// # Safety
/// There is no device memory at `from` whose reading has effects.
pub unsafe fn read_byte(from: *const u8) -> Result<u8, FaultKind> {
    // SAFETY: the caller's promise; a fault is caught by `fixup` or is the process' end.
    sort(unsafe { farshore_guarded_read(from) })
}

/// Writes one byte.
///
/// # Errors
/// The kind of the fault.
///
/// # Safety
/// What lies at `to` may be overwritten and nobody else uses it meanwhile.
pub unsafe fn write_byte(to: *mut u8, value: u8) -> Result<(), FaultKind> {
    // SAFETY: the caller's promise; a fault is caught by `fixup` or is the process' end.
    sort(unsafe { farshore_guarded_write(to, value) }).map(|_| ())
}

/// To be called first in the handlers of SIGBUS and SIGSEGV: if the fault was in a guarded access, makes that
/// access return the error, and answers true (the handler returns). Async-signal-safe.
///
/// Where the handler could serve the fault of a guarded access (an absent page of the program), it may
/// do that instead of calling this.
pub fn fixup(context: &mut UContext) -> bool {
    let begin = farshore_guarded_copy as *const () as u64;
    let end = farshore_guarded_end as *const () as u64;
    if !(begin..end).contains(&context.get(Reg::Rip)) {
        return false;
    }
    let result = FAULT | (context.fault_kind().0 & 0xffff);
    // SAFETY: the routines have pushed nothing, so their return address is where the exit's `ret` takes it from.
    unsafe { context.set(Reg::Rip, farshore_guarded_exit as *const () as u64) };
    // SAFETY: rax is the routines' result and is not live before.
    unsafe { context.set(Reg::Rax, result) };
    true
}
