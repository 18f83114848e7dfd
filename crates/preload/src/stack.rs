//! Calls of a program whose stack is managed memory: a coroutine's, or any that it made itself and not by libc.
//!
//! Our own code runs on that stack when a system call was caught, and works with all signals blocked while it holds a page or a lock. A
//! page of the stack that left then could not be brought: its SIGBUS is blocked. So the part of the stack that our code may use is pinned
//! for the time of the call. What does this must not use that stack either: it runs on the alternate stack of the thread's record,
//! with all signals blocked before it gets there.
//!
//! The stacks that libc and the kernel make are not managed, so all that most calls pay is a look at the table.

use crate::net::buffers::PinSet;
use crate::runtime::Runtime;
use crate::signals::frame;
use crate::thread::{self, Thread};
use core::arch::global_asm;
use farshore_core::page::{Access, Page, PageRange};
use farshore_sys::raw::nr;

/// What our code may use below the frame of a caught call, and how far the frame's caller reaches above.
const BELOW: u64 = 24 << 10;
const ABOVE: u64 = 4 << 10;

global_asm!(
    ".pushsection .text.farshore_on_own_stack, \"ax\", @progbits",
    ".balign 16",
    ".hidden farshore_on_own_stack",
    ".globl farshore_on_own_stack",
    ".type farshore_on_own_stack, @function",
    // (function, its argument, top of the own stack, masks): what the function returns. The masks are [all signals, room for the one
    // of before], in memory that is not managed.
    "farshore_on_own_stack:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    ".cfi_offset rbx, -24",
    ".cfi_offset r12, -32",
    ".cfi_offset r13, -40",
    ".cfi_offset r14, -48",
    "mov rbx, rdi",
    "mov r12, rsi",
    "mov r13, rdx",
    "mov r14, rcx",
    // All signals blocked. From here to the other mask the program's stack is not touched.
    "mov eax, {sigprocmask}",
    "mov edi, 2",
    "mov rsi, r14",
    "lea rdx, [r14 + 8]",
    "mov r10d, 8",
    "syscall",
    "mov rdi, r12",
    "mov r12, rsp",
    "mov rsp, r13",
    "call rbx",
    "mov rbx, rax",
    "mov rsp, r12",
    "mov eax, {sigprocmask}",
    "mov edi, 2",
    "lea rsi, [r14 + 8]",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "mov rax, rbx",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size farshore_on_own_stack, . - farshore_on_own_stack",
    ".popsection",
    sigprocmask = const nr::RT_SIGPROCMASK,
);

unsafe extern "C" {
    fn farshore_on_own_stack(function: extern "C" fn(u64) -> u64, argument: u64, top: u64, masks: *mut [u64; 2]) -> u64;
}

/// Where our code runs for the program, from `here` on down.
fn range_at(here: u64) -> PageRange {
    PageRange { start: Page::containing(here.saturating_sub(BELOW)), end: Page::containing(here + ABOVE).plus(1) }
}

/// Whether the stack at `here` is managed, or goes on into memory that is.
#[inline]
pub fn is_managed(runtime: &Runtime, here: u64) -> bool {
    runtime.engine.is_managed(Page::containing(here)) || runtime.engine.is_managed(Page::containing(here.saturating_sub(BELOW)))
}

/// The same, but true too where others share pages with it that are not managed. For code that may not call anything.
#[inline(always)]
pub fn may_be_managed(runtime: &Runtime, here: u64) -> bool {
    let is_there = |addr: u64| runtime.engine.table.page(Page::containing(addr)).is_some();
    is_there(here) || is_there(here.saturating_sub(BELOW))
}

/// Pins the managed stack around `here`, until `pins` are unpinned.
pub fn keep(runtime: &Runtime, here: u64, pins: &mut PinSet) {
    let Some(thread) = thread::current() else { return };
    thread.held.announce();
    let (range, pinned) = pin(thread, here);
    for (_, page) in range.iter().enumerate().filter(|&(bit, _)| pinned >> bit & 1 != 0) {
        if !pins.push_page(page) {
            runtime.engine.unpin(page);
        }
    }
    thread.held.note(pins, |page| runtime.engine.unpin(page));
    thread.held.settle();
}

/// Pins the stack around `here`: which pages were looked at, and a bit for each that is pinned now ([`frame::unpin`]).
fn pin(thread: &mut Thread, here: u64) -> (PageRange, u64) {
    let range = range_at(here);
    (range, pin_range(thread, range))
}

/// Pins a part of the stack that we run on, of at most 64 pages; a bit for each page that is pinned now ([`frame::unpin`]).
pub fn pin_range(thread: &mut Thread, range: PageRange) -> u64 {
    on_own_stack(thread, pin_packed, range.start.0 << LEN_BITS | range.len())
}

/// Runs `f` on the own stack of the calling thread's record, with all signals blocked: where the program's may be absent, or too small.
pub fn on_own_stack(thread: &mut Thread, f: extern "C" fn(u64) -> u64, argument: u64) -> u64 {
    let top = (&raw const *thread) as u64 & !15;
    let masks = (&raw mut thread.masks).cast::<[u64; 2]>();
    // SAFETY: the own stack lies below the record; nothing else uses it while all signals are blocked, and this is not it.
    unsafe { farshore_on_own_stack(f, argument, top, masks) }
}

/// Bits for a number of pages.
const LEN_BITS: u32 = 8;

/// On the own stack. A range in one word, since what lies on the program's stack is not there for us.
extern "C" fn pin_packed(range: u64) -> u64 {
    let start = Page(range >> LEN_BITS);
    let range = PageRange { start, end: start.plus(range & ((1 << LEN_BITS) - 1)) };
    thread::current().map_or(0, |thread| frame::pin(thread, range, Access::Write))
}
