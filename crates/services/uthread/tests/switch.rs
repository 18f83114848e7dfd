//! The switch by itself: what a called function must preserve is preserved, on each of two stacks.
#![cfg(not(loom))]

use core::arch::asm;
use core::cell::Cell;
use farshore_uthread::switch::{CONTEXT_BYTES, prepare, switch};

/// Two contexts, and what the second one saw.
struct Both {
    here: Cell<usize>,
    there: Cell<usize>,
    turns: Cell<u32>,
    control: Cell<(u32, u16)>,
}

fn control() -> (u32, u16) {
    let (mut mxcsr, mut fpucw) = (0u32, 0u16);
    // SAFETY: stores the two control words.
    unsafe { asm!("stmxcsr [{}]", "fnstcw [{}]", in(reg) &raw mut mxcsr, in(reg) &raw mut fpucw) };
    (mxcsr & !0x3f, fpucw)
}

/// # Safety
/// Floating point code that runs under other control words rounds otherwise; the caller puts them back.
unsafe fn set_control(mxcsr: u32, fpucw: u16) {
    // SAFETY: loads valid control words (all exceptions masked).
    unsafe { asm!("ldmxcsr [{}]", "fldcw [{}]", in(reg) &raw const mxcsr, in(reg) &raw const fpucw) };
}

extern "sysv64" fn other(both: usize) -> ! {
    // SAFETY: the test lives for as long as this runs.
    let both = unsafe { &*core::ptr::with_exposed_provenance::<Both>(both) };
    both.control.set(control());
    // Rounds towards zero here: the test's own stack does not notice.
    // SAFETY: put back never; this stack ends with the test.
    unsafe { set_control(0x7f80, 0x0f7f) };
    loop {
        both.turns.set(both.turns.get() + 1);
        assert_eq!(control(), (0x7f80, 0x0f7f), "another stack's control words");
        clobber();
        // SAFETY: the test's context waits.
        unsafe { switch(both.there.as_ptr(), both.here.get()) };
    }
}

/// Leaves other values in all registers that are not preserved, and uses those that are.
#[inline(never)]
fn clobber() {
    // SAFETY: changes what it declares, and puts rbx and rbp back.
    unsafe {
        asm!(
            "push rbx", "push rbp",
            "mov rbx, -1", "mov rbp, -1", "mov r12, -1", "mov r13, -1", "mov r14, -1", "mov r15, -1",
            "pop rbp", "pop rbx",
            out("r12") _, out("r13") _, out("r14") _, out("r15") _, clobber_abi("sysv64"),
        );
    }
}

extern "sysv64" fn switch_of(both: &Both) {
    // SAFETY: the other context waits at `there`.
    unsafe { switch(both.here.as_ptr(), both.there.get()) };
}

#[test]
fn registers_and_control_words_are_preserved() {
    let mut stack = vec![0u128; 4096];
    let top = stack.as_mut_ptr_range().end.cast::<u8>();
    let both = Both { here: Cell::new(0), there: Cell::new(0), turns: Cell::new(0), control: Cell::new((0, 0)) };
    // SAFETY: the stack has 64 KiB, and is aligned.
    both.there.set(unsafe { prepare(top, other, (&raw const both).expose_provenance()) });
    assert_eq!(both.there.get(), top.addr() - CONTEXT_BYTES);
    // SAFETY: rounds up in this thread; put back below.
    unsafe { set_control(0x5f80, 0x0b7f) };
    for turn in 1..=100u64 {
        let (rbx, rbp, r12, r13, r14, r15): (u64, u64, u64, u64, u64, u64);
        // SAFETY: a call under the ABI with an aligned stack (asm blocks begin with an aligned one when they say nothing of flags); rbx and rbp are put back.
        unsafe {
            asm!(
                "push rbx", "push rbp", "sub rsp, 8",
                "mov r8, rsp", "and rsp, -16", "push r8", "sub rsp, 8",
                "mov rbx, rsi", "lea rbp, [rbx + 1]", "lea r12, [rbx + 2]", "lea r13, [rbx + 3]", "lea r14, [rbx + 4]", "lea r15, [rbx + 5]",
                "call rax",
                "mov rax, rbx", "mov rcx, rbp",
                "add rsp, 8", "pop rsp",
                "add rsp, 8", "pop rbp", "pop rbx",
                in("rsi") turn * 1000,
                inout("rax") switch_of as *const () as u64 => rbx,
                out("rcx") rbp, out("r12") r12, out("r13") r13, out("r14") r14, out("r15") r15,
                in("rdi") &raw const both,
                clobber_abi("sysv64"),
            );
        }
        let n = turn * 1000;
        assert_eq!([rbx, rbp, r12, r13, r14, r15], [n, n + 1, n + 2, n + 3, n + 4, n + 5]);
        assert_eq!(control(), (0x5f80, 0x0b7f), "the other stack's control words");
    }
    // SAFETY: what a thread begins with.
    unsafe { set_control(0x1f80, 0x037f) };
    assert_eq!((both.turns.get(), both.control.get()), (100, (0x1f80, 0x037f)));
}
