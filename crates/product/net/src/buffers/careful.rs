//! Reads and writes of the program's memory that survive a wild pointer.
//!
//! The routines are assembly between `farshore_careful_start` and `farshore_careful_end`. They use no stack. A
//! SIGSEGV or SIGBUS handler that finds the interrupted `rip` in that range, and cannot resolve the fault (it is
//! not a managed page, or its protection forbids the access), sets `rip` to `farshore_careful_fault` and
//! returns: the routine then returns 0, which means *fault*. A fault on a managed page is resolved as any other,
//! and the routine goes on where it was. [`repair`] is the handler's half.

use core::arch::global_asm;

global_asm!(
    ".pushsection .text.farshore_careful, \"ax\", @progbits",
    ".balign 16",
    ".globl farshore_careful_start",
    ".globl farshore_careful_end",
    ".globl farshore_careful_fault",
    ".globl farshore_careful_copy",
    ".globl farshore_careful_strnlen",
    ".hidden farshore_careful_start",
    ".hidden farshore_careful_end",
    ".hidden farshore_careful_fault",
    ".hidden farshore_careful_copy",
    ".hidden farshore_careful_strnlen",
    ".globl farshore_careful_exchange",
    ".hidden farshore_careful_exchange",
    ".type farshore_careful_exchange, @function",
    ".type farshore_careful_copy, @function",
    ".type farshore_careful_strnlen, @function",
    "farshore_careful_start:",
    // rdi: to, rsi: from, rdx: bytes; eax: 1, or 0 after a fault.
    "farshore_careful_copy:",
    ".cfi_startproc",
    "cmp rdx, 512",
    "jae 5f",
    // Structures of a few words: plain moves beat the start-up cost of `rep movsb`.
    "2: cmp rdx, 8",
    "jb 3f",
    "mov rax, qword ptr [rsi]",
    "mov qword ptr [rdi], rax",
    "add rsi, 8",
    "add rdi, 8",
    "sub rdx, 8",
    "jmp 2b",
    "3: test rdx, rdx",
    "je 6f",
    "4: mov al, byte ptr [rsi]",
    "mov byte ptr [rdi], al",
    "inc rsi",
    "inc rdi",
    "dec rdx",
    "jne 4b",
    "jmp 6f",
    "5: mov rcx, rdx",
    "rep movsb",
    "6: mov eax, 1",
    "ret",
    ".cfi_endproc",
    ".size farshore_careful_copy, . - farshore_careful_copy",
    // rdi: string, rsi: at most so many bytes; rax: 1 + its length (1 + rsi if there is no zero byte), or 0.
    "farshore_careful_strnlen:",
    ".cfi_startproc",
    "xor eax, eax",
    "2: cmp rax, rsi",
    "je 3f",
    "cmp byte ptr [rdi + rax], 0",
    "je 3f",
    "inc rax",
    "jmp 2b",
    "3: inc rax",
    "ret",
    ".cfi_endproc",
    ".size farshore_careful_strnlen, . - farshore_careful_strnlen",
    // rdi: word, esi: what it should be, edx: what it becomes then; rax: what it was, with bit 32 set. 0 after a fault.
    "farshore_careful_exchange:",
    ".cfi_startproc",
    "mov eax, esi",
    "lock cmpxchg dword ptr [rdi], edx",
    "mov eax, eax",
    "bts rax, 32",
    "ret",
    ".cfi_endproc",
    ".size farshore_careful_exchange, . - farshore_careful_exchange",
    "farshore_careful_end:",
    "farshore_careful_fault:",
    ".cfi_startproc",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".popsection",
);

unsafe extern "C" {
    static farshore_careful_start: u8;
    static farshore_careful_end: u8;
    static farshore_careful_fault: u8;
    fn farshore_careful_copy(to: *mut u8, from: u64, len: usize) -> u32;
    fn farshore_careful_strnlen(text: u64, max: usize) -> usize;
    fn farshore_careful_exchange(word: u64, old: u32, new: u32) -> u64;
}

/// For the SIGSEGV and SIGBUS handlers: where to go on if the fault at `rip`, which could not be resolved, was taken
/// by one of the careful routines; `None` if it was not.
#[inline]
pub fn repair(rip: u64) -> Option<u64> {
    let start = &raw const farshore_careful_start as u64;
    let end = &raw const farshore_careful_end as u64;
    (start..end).contains(&rip).then_some(&raw const farshore_careful_fault as u64)
}

/// Copies `len` bytes between our memory and the program's, in either direction; false if a byte could not be
/// read or written (bytes before it may have been copied).
///
/// # Safety
/// `dst` and `src` must each be memory of the program, where anything may happen, or our own with room for `len`.
#[inline]
pub unsafe fn careful_copy(dst: *mut u8, src: u64, len: usize) -> bool {
    // SAFETY: the caller vouches for what is ours; what is not may fault, which ends in a return of 0.
    if unsafe { farshore_careful_copy(dst, src, len) } != 0 {
        return true;
    }
    if len < WORDS {
        copy_to_the_fault(dst, src, len);
    }
    false
}

/// Fewer bytes than this are copied in words.
const WORDS: usize = 512;

/// A word across the end of what can be accessed has not been copied in part; the kernel's copies are exact to the byte.
#[cold]
fn copy_to_the_fault(dst: *mut u8, src: u64, len: usize) {
    // SAFETY: as in `careful_copy`, a byte at a time.
    let _ = (0..len).all(|at| unsafe { farshore_careful_copy(dst.wrapping_add(at), src + at as u64, 1) != 0 });
}

/// Replaces an aligned word of the program, if it is `old`, by `new` in one step; what it was. `None` if it cannot be read or written.
pub fn careful_exchange(word: u64, old: u32, new: u32) -> Option<u32> {
    // SAFETY: the routine changes one word of the program's, which is the caller's business, and a fault ends in a return of 0.
    match unsafe { farshore_careful_exchange(word, old, new) } {
        0 => None,
        found => Some(found as u32),
    }
}

/// Bytes before the first zero byte from `text` on, or `max` if there is none among so many; `None` if one of
/// these bytes could not be read.
#[inline]
pub fn careful_strnlen(text: u64, max: usize) -> Option<usize> {
    // SAFETY: the routine only reads, and a fault ends in a return of 0.
    unsafe { farshore_careful_strnlen(text, max) }.checked_sub(1)
}
