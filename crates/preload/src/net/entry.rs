//! The way of a caught system call into the dispatcher and back.
//!
//! # Two ways in, one entry
//!
//! A call is caught at a *patched site* (`patch.rs` put a jump over the `syscall`; the jump leads to a stub, the stub
//! here) or by *Syscall User Dispatch* (the kernel raises SIGSYS; [`on_sigsys`] sets the interrupted thread's `rip` to
//! the entry and returns). Both arrive with `jmp`, all registers as at the `syscall`, and two values in the two
//! registers that a `syscall` destroys anyway:
//!
//! - `rcx`: *resume*, where to go on: behind the `syscall`, or in the stub.
//! - `r11`: *site*, the address behind the original `syscall`: what the unwinder is told.
//!
//! Nothing is pushed by either way, so the SIGSYS handler writes nothing to the program's stack. There is no `call` and
//! no `ret`, so the processor's return stack stays in step with the program's.
//!
//! # What is preserved
//!
//! All that `syscall` preserves: every general register but `rax`, `rcx`, `r11`; the flags; the red zone (128 bytes
//! under `rsp`); MXCSR; xmm/ymm/zmm 0-31 and k 0-7. `r11` leaves as the flags and `rcx` as *resume*, as `syscall` does
//! it. Not saved, since our code does not touch them: x87 and MMX, AMX tiles, APX's r16-r31. Our code runs with the
//! direction flag clear and MXCSR's masks and rounding at their defaults.
//!
//! The vectors are saved by plain moves, because `xsavec` + `xrstor` cost 103 ns here (36 + 68) and the moves 7 ns, plus
//! 11 ns for `xgetbv(1)`. That tells whether the upper halves of registers 0-15 are in use. If they are not, they are
//! cleared (`vzeroupper`) rather than loaded, or the program's SSE code would be slow afterwards on many processors.
//!
//! The entry keeps no state but its frame on the program's stack, so a signal handler may leave it by `siglongjmp` or a
//! forced unwind at any instruction. The unwind rules name *site* as the return address: an unwinder goes from the
//! entry's frame to the function with the `syscall`, past the stub.
//!
//! The frame takes about 2,700 bytes of the program's stack, plus what the dispatcher needs. Stack memory may itself be
//! managed: writing to it faults and is served as anywhere else in the program.
//!
//! # Calls that go straight on
//!
//! For numbers marked by [`set_plain`] nothing is saved: the entry makes the call itself. Right for calls that neither
//! touch memory nor need a look at their arguments. For numbers marked by [`set_quick`] a function is asked first that gets along with
//! general registers and four of the others (`quick.rs`).
//!
//! # Calls that make threads
//!
//! `clone`, `clone3`, `fork` and `vfork` never reach `farshore_dispatch`. Order of the hooks: `farshore_before_clone`;
//! the call; then `farshore_child_started` in the child, on its own stack and with its own thread-local storage, and
//! `farshore_parent_after_clone` in the parent, also when the call failed. If the first hook refuses, neither follows. All
//! signals but those of faults are blocked from before the first hook until after the last, in the child too, so no handler
//! can leave in the middle by `siglongjmp`, and the hooks may hold locks for each other.
//!
//! - **The stack is copied** (no `CLONE_VM`, no new stack: `fork`). The child has a copy of the frame and returns by it.
//! - **A new stack** (`pthread_create`; `posix_spawn`, which adds `CLONE_VFORK`). The child has nothing of our frame. The
//!   top of a frame is written to the child's stack, under the red zone of its first `rsp`, the call gets that address
//!   for a stack, and the child builds the rest of the frame from its registers, runs the hook and leaves by the frame.
//!   So all of the program's registers, vectors too, are loaded before the call. The parent's frame is not touched.
//! - **The parent's stack** (`vfork`, `CLONE_VM | CLONE_VFORK` without a stack). The child runs on the parent's stack and
//!   will overwrite the frame. So the parent's frame is given up: what is needed goes into a *slot* outside of the stack,
//!   all registers but `rbx` are loaded, and `rbx` carries the slot through the call. Child and parent each build a new
//!   frame from the slot. The parent frees the slot; the kernel runs it only when the child has left the memory, so the
//!   child has read it by then. A `vfork` in the child takes another slot.
//! - **`CLONE_VM` without a stack and without `CLONE_VFORK`**: two threads on one stack at one time. Gets `EINVAL`: our
//!   frames would collide.
//!
//! `clone3` reads a structure from memory. It gets a copy in a slot, since the stack in it changes, and since slots are
//! never managed memory. The program's own is not changed.
//!
//! # rt_sigreturn
//!
//! It must run with the program's stack pointer and replaces everything. When it is caught by SIGSYS (libc's restorer is
//! never patched), the program's signal frame is copied over the frame of our own SIGSYS handler: the one return
//! from our handler is then the program's return, and the kernel never reads the program's frame, which may be managed.
//!
//! # Measured
//!
//! libc's `getppid`, medians in ns, release build, with a dispatcher that counts and makes the call; 2-core AMD EPYC
//! (Zen 5) virtual machine, Linux 6.18:
//!
//! | | dispatch off | Syscall User Dispatch on |
//! |---|---|---|
//! | not caught | 129 | |
//! | patched, marked by [`set_plain`] | 125 | 153 |
//! | patched, dispatched | 176 | 207 |
//! | trapped by SIGSYS, dispatched | | 1,840 |
//!
//! That Syscall User Dispatch is on costs every call of the thread 28 ns, ours too: the kernel takes its slow way in.

use core::arch::{asm, global_asm};
use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

mod clone;
mod sigsys;

use clone::{CHILD_WORDS, Slot, after_clone, clone};
pub use sigsys::on_sigsys;
use sigsys::sigreturn_at_site;

/// Numbers under this can be marked by [`set_plain`] and [`set_quick`].
const PLAIN_NUMBERS: usize = 512;
/// Words at the top of a frame that are not pushed from registers: mask, aux, resume, site, flags.
const TOP_WORDS: usize = 5;
/// Bytes under `rsp` that belong to the interrupted function.
const RED_ZONE: usize = 128;
/// Vector area of a frame: 32 registers of 64 bytes, 8 masks of 8, MXCSR as it was (4) and a scratch word (4), rounded up to 64.
const VECTOR_AREA: usize = 2176;
const AREA_HIGH: usize = 1024;
const AREA_MASKS: usize = 2048;
const AREA_MXCSR: usize = 2112;
const AREA_SCRATCH: usize = 2116;
/// MXCSR with all exceptions masked and rounding to nearest, as C and Rust code expect it.
static MXCSR_DEFAULT: u32 = 0x1f80;

/// Bits of [`VECTOR_LEVEL`].
const LEVEL_AVX: u8 = 1;
const LEVEL_AVX512: u8 = 2;
const LEVEL_XINUSE: u8 = 4;
/// What [`init`] found; until then only xmm 0-15 are saved.
static VECTOR_LEVEL: AtomicU8 = AtomicU8::new(0);
/// Makes one system call (number, arguments), if it can do that with little. `quick.rs` says what it may not do.
pub type Quick = extern "C" fn(&[u64; 7]) -> Answer;

/// What the assembly has in two registers after that.
#[repr(C)]
#[derive(Debug)]
pub struct Answer {
    /// The call's result.
    pub result: i64,
    /// 0: nothing was done.
    pub done: u64,
}

/// Set before a number is marked that leads there.
static QUICK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// How a call goes: 0, dispatched.
static WAYS: [AtomicU8; PLAIN_NUMBERS] = [const { AtomicU8::new(0) }; PLAIN_NUMBERS];
const WAY_PLAIN: u8 = 1;
const WAY_QUICK: u8 = 2;

const NR_RT_SIGRETURN: u64 = 15;
const NR_CLONE: u64 = 56;
const NR_FORK: u64 = 57;
const NR_VFORK: u64 = 58;
const NR_CLONE3: u64 = 435;

/// What the entry saved. The dispatcher may change `args` at will: the registers that the program sees afterwards come
/// from the named fields. The layout is known to the assembly below.
#[repr(C)]
#[derive(Debug)]
pub struct Call {
    /// Number of the system call, as in `rax`.
    pub nr: u64,
    /// Its arguments: `rdi`, `rsi`, `rdx`, `r10`, `r8`, `r9`. A copy to work with.
    pub args: [u64; 6],
    /// What the assembly does after `enter`: one of the `ACTION_` numbers.
    action: u64,
    /// The [`Slot`] for `ACTION_SHARED_STACK`.
    slot: u64,
    vectors: u64,
    vector_mode: u64,
    /// The program's registers at the call.
    pub r8: u64,
    /// See `r8`.
    pub r9: u64,
    /// See `r8`.
    pub r10: u64,
    /// See `r8`.
    pub rdi: u64,
    /// See `r8`.
    pub rsi: u64,
    /// See `r8`.
    pub rdx: u64,
    /// See `r8`.
    pub rbx: u64,
    /// See `r8`.
    pub r12: u64,
    /// See `r8`.
    pub r13: u64,
    /// See `r8`.
    pub r14: u64,
    /// See `r8`.
    pub r15: u64,
    /// See `r8`.
    pub rbp: u64,
    /// The program's `rsp` at the call.
    pub sp: u64,
    /// With `aux`: the program's signal mask, to be set again.
    mask: u64,
    /// 0, or a `MARK_` bit and the flags of the clone that this frame comes back from.
    aux: u64,
    /// Where the program goes on: behind the `syscall`, or in its stub.
    resume: u64,
    /// The address behind the original `syscall`.
    pub return_address: u64,
    /// The program's flags register.
    pub flags: u64,
}

/// `enter`'s result is the call's.
const ACTION_RETURN: u64 = 0;
/// Leave the frame and make the call in `nr` and `args` on the program's stack: `vfork`, `rt_sigreturn`.
const ACTION_SHARED_STACK: u64 = 1;

const MARK_CHILD: u64 = 1 << 63;
const MARK_PARENT: u64 = 1 << 62;

// The assembly pushes the registers from `flags` down to `nr`, and builds the upper words of some frames elsewhere.
const _: () = assert!(size_of::<Call>() == 29 * 8);
const _: () = assert!(
    offset_of!(Call, flags) == 28 * 8 && offset_of!(Call, mask) == (29 - TOP_WORDS) * 8 && offset_of!(Call, r8) == 11 * 8
);
const _: () = assert!(offset_of!(Call, rbp) == 22 * 8 && offset_of!(Call, vector_mode) == 10 * 8);

unsafe extern "C" {
    /// Serves one system call and gives the value for `rax`. May block; runs on the program's stack with the program's
    /// signal mask; is not called for the clone family nor for numbers marked by [`set_plain`].
    fn farshore_dispatch(call: &mut Call) -> i64;
    /// Makes the managed pages among `[addr, addr+len)` present and writable; other memory is left as it is.
    pub(super) fn farshore_make_writable(addr: u64, len: u64);

    /// Where stubs and the SIGSYS handler send a caught call. Not a function: see the module head for what it expects.
    pub(super) fn farshore_entry();
}

global_asm!(
    r#"
    .pushsection .text.farshore_entry, "ax", @progbits

    # Loads the vectors from the area at r11, by the mode in ecx. Spoils edx, the flags and nothing else.
    .macro farshore_load_vectors
    stmxcsr dword ptr [r11 + {scratch}]
    mov edx, dword ptr [r11 + {scratch}]
    cmp edx, dword ptr [r11 + {mxcsr}]
    je 20f
    ldmxcsr dword ptr [r11 + {mxcsr}]
20:
    test ecx, 2
    jz 21f
    .irp n, 16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    vmovdqa64 zmm\n, zmmword ptr [r11 + {high} + (\n - 16) * 64]
    .endr
    .irp n, 0,1,2,3,4,5,6,7
    kmovq k\n, qword ptr [r11 + {masks} + \n * 8]
    .endr
21:
    test ecx, 1
    jnz 23f
    test ecx, 4
    jnz 22f
    # The upper halves were clear: clear them again, or SSE code that comes after would have to keep them.
    vzeroupper
22:
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    movaps xmm\n, xmmword ptr [r11 + \n * 64]
    .endr
    jmp 25f
23:
    test ecx, 2
    jnz 24f
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    vmovdqa ymm\n, ymmword ptr [r11 + \n * 64]
    .endr
    jmp 25f
24:
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    vmovdqa64 zmm\n, zmmword ptr [r11 + \n * 64]
    .endr
25:
    .endm

    # The way out, the flags on top of the stack: rcx is where the program goes on.
    .macro farshore_leave
    mov r11, [rsp]
    popfq
    .cfi_def_cfa_offset 128
    lea rsp, [rsp + {red_zone}]
    .cfi_def_cfa_offset 0
    .cfi_register rip, rcx
    jmp rcx
    .endm

    # The same with the words of the way in above them.
    .macro farshore_leave_words
    pop rcx
    .cfi_def_cfa_offset 144
    pop r11
    .cfi_def_cfa_offset 136
    farshore_leave
    .endm

    .globl farshore_entry
    .hidden farshore_entry
    .type farshore_entry, @function
    .p2align 6
farshore_entry:
    .cfi_startproc
    .cfi_def_cfa rsp, 0
    .cfi_register rip, r11
    # lea, not sub: the flags are not saved yet.
    lea rsp, [rsp - {red_zone}]
    .cfi_def_cfa_offset 128
    pushfq
    .cfi_def_cfa_offset 136
    push r11
    .cfi_def_cfa_offset 144
    .cfi_offset rip, -144
    push rcx
    .cfi_def_cfa_offset 152
    # rcx and r11 are free from here on.
    cmp rax, {plain_numbers}
    jae 2f
    lea r11, [rip + {plain}]
    movzx r11d, byte ptr [r11 + rax]
    test r11d, r11d
    je 2f
    cmp r11d, {quick}
    je 1f
    # A plain call. rsp stays under the three words: a signal handler that interrupts the call may write below it.
    syscall
    .cfi_remember_state
    farshore_leave_words
    .cfi_restore_state
1:
    # Perhaps a quick one: what the code uses of the registers is saved (its head says which those are).
    .cfi_remember_state
    push rbp
    .cfi_def_cfa_offset 160
    .cfi_offset rbp, -160
    mov rbp, rsp
    .cfi_def_cfa_register rbp
    push r9
    push r8
    push r10
    push rdx
    push rsi
    push rdi
    push rax
    mov rdi, rsp
    sub rsp, 64
    and rsp, -16
    movaps [rsp], xmm0
    movaps [rsp + 16], xmm1
    movaps [rsp + 32], xmm2
    movaps [rsp + 48], xmm3
    cld
    call qword ptr [rip + {quick_function}]
    movaps xmm0, [rsp]
    movaps xmm1, [rsp + 16]
    movaps xmm2, [rsp + 32]
    movaps xmm3, [rsp + 48]
    mov rcx, rdx
    mov r11, rax
    lea rsp, [rbp - 56]
    pop rax
    pop rdi
    pop rsi
    pop rdx
    pop r10
    pop r8
    pop r9
    pop rbp
    .cfi_def_cfa rsp, 152
    .cfi_restore rbp
    test rcx, rcx
    je 3f
    mov rax, r11
    farshore_leave_words
3:
    .cfi_restore_state
2:
    push 0
    .cfi_def_cfa_offset 160
    push 0
    .cfi_def_cfa_offset 168
    # New children and parents after vfork come in here, their first words written: mask, aux, resume, site, flags.
.Lfarshore_frame:
    lea rcx, [rsp + {top_words} * 8 + {red_zone}]
    push rcx
    .cfi_def_cfa_offset 176
    push rbp
    .cfi_def_cfa_offset 184
    .cfi_offset rbp, -184
    mov rbp, rsp
    .cfi_def_cfa_register rbp
    push r15
    .cfi_offset r15, -192
    push r14
    .cfi_offset r14, -200
    push r13
    .cfi_offset r13, -208
    push r12
    .cfi_offset r12, -216
    push rbx
    .cfi_offset rbx, -224
    push rdx
    .cfi_offset rdx, -232
    push rsi
    .cfi_offset rsi, -240
    push rdi
    .cfi_offset rdi, -248
    push r10
    .cfi_offset r10, -256
    push r9
    .cfi_offset r9, -264
    push r8
    .cfi_offset r8, -272
    # vector_mode, vectors, slot, action; then the arguments again, for the dispatcher to change; then nr.
    push 0
    push 0
    push 0
    push 0
    push r9
    push r8
    push r10
    push rdx
    push rsi
    push rdi
    push rax
    cld
    mov r12, rsp
    sub rsp, {area}
    and rsp, -64
    mov [r12 + {o_vectors}], rsp

    # r13d becomes the mode: 1: upper halves of 0-15 in use; 2: there are 16-31 and masks; 4: no AVX at all.
    movzx r13d, byte ptr [rip + {level}]
    mov eax, 0x44
    test r13d, {l_xinuse}
    jz 3f
    mov ecx, 1
    xgetbv
3:
    mov ecx, r13d
    and r13d, {l_avx512}
    test ecx, {l_avx}
    jnz 4f
    mov r13d, 4
    jmp 5f
4:
    # The components "upper halves of ymm" (bit 2) and "upper halves of zmm 0-15" (bit 6).
    test eax, 0x44
    jz 5f
    or r13d, 1
5:
    mov [r12 + {o_vector_mode}], r13
    stmxcsr dword ptr [rsp + {mxcsr}]
    mov eax, dword ptr [rsp + {mxcsr}]
    # Without the six exception flags, which only accumulate.
    and eax, 0xffc0
    cmp eax, 0x1f80
    je 6f
    ldmxcsr dword ptr [rip + {mxcsr_default}]
6:
    test r13d, 2
    jz 7f
    .irp n, 16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    vmovdqa64 zmmword ptr [rsp + {high} + (\n - 16) * 64], zmm\n
    .endr
    .irp n, 0,1,2,3,4,5,6,7
    kmovq qword ptr [rsp + {masks} + \n * 8], k\n
    .endr
7:
    test r13d, 1
    jnz 8f
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    movaps xmmword ptr [rsp + \n * 64], xmm\n
    .endr
    jmp 30f
8:
    test r13d, 2
    jnz 9f
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    vmovdqa ymmword ptr [rsp + \n * 64], ymm\n
    .endr
    jmp 30f
9:
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    vmovdqa64 zmmword ptr [rsp + \n * 64], zmm\n
    .endr
30:
    mov rdi, r12
    call {enter}
    mov r11, rsp
    mov ecx, r13d
    farshore_load_vectors
    cmp qword ptr [r12 + {o_action}], {action_return}
    jne 31f

    # rax is the result. Each word read here is at most 128 bytes below rsp until it is read, safe from signal frames.
    .cfi_remember_state
    lea rsp, [r12 + {o_r8}]
    pop r8
    pop r9
    pop r10
    pop rdi
    pop rsi
    pop rdx
    pop rbx
    pop r12
    pop r13
    pop r14
    pop r15
    .cfi_def_cfa rsp, 184
    pop rbp
    .cfi_def_cfa_offset 176
    .cfi_same_value rbp
    .cfi_same_value r15
    .cfi_same_value r14
    .cfi_same_value r13
    .cfi_same_value r12
    .cfi_same_value rbx
    .cfi_same_value rdx
    .cfi_same_value rsi
    .cfi_same_value rdi
    .cfi_same_value r10
    .cfi_same_value r9
    .cfi_same_value r8
    # sp, mask, aux
    lea rsp, [rsp + 24]
    .cfi_def_cfa_offset 152
    pop rcx
    .cfi_def_cfa_offset 144
    lea rsp, [rsp + 8]
    .cfi_def_cfa_offset 136
    farshore_leave
    .cfi_restore_state

    # ACTION_SHARED_STACK: give up the frame, make the call on the program's stack, rbx the slot.
31:
    mov rbx, [r12 + {o_slot}]
    mov rax, [r12 + {o_nr}]
    mov rdi, [r12 + {o_args}]
    mov rsi, [r12 + {o_rsi}]
    mov rdx, [r12 + {o_rdx}]
    mov r10, [r12 + {o_r10}]
    mov r8, [r12 + {o_r8}]
    mov r9, [r12 + {o_r9}]
    mov r13, [r12 + {o_r13}]
    mov r14, [r12 + {o_r14}]
    mov r15, [r12 + {o_r15}]
    mov rbp, [r12 + {o_rbp}]
    mov rsp, [r12 + {o_sp}]
    mov r12, [r12 + {o_r12}]
    .cfi_def_cfa rsp, 0
    .cfi_same_value rbp
    .cfi_same_value r15
    .cfi_same_value r14
    .cfi_same_value r13
    .cfi_same_value r12
    .cfi_same_value rdx
    .cfi_same_value rsi
    .cfi_same_value r10
    .cfi_same_value r9
    .cfi_same_value r8
    # rip, rbx and rdi are at rbx + their place in the slot (DW_CFA_expression, DW_OP_breg3).
    .cfi_escape 0x10, 16, 2, 0x73, {s_site}
    .cfi_escape 0x10, 3, 2, 0x73, {s_rbx}
    .cfi_escape 0x10, 5, 2, 0x73, {s_rdi}
    syscall
    lea rsp, [rsp - {red_zone}]
    .cfi_def_cfa_offset 128
    push [rbx + {s_flags}]
    .cfi_def_cfa_offset 136
    push [rbx + {s_site}]
    .cfi_def_cfa_offset 144
    push [rbx + {s_resume}]
    .cfi_def_cfa_offset 152
    test rax, rax
    jnz 32f
    .cfi_remember_state
    push [rbx + {s_child}]
    push [rbx + {s_mask}]
    .cfi_def_cfa_offset 168
    .cfi_offset rip, -144
    mov rdi, [rbx + {s_rdi}]
    .cfi_same_value rdi
    mov rbx, [rbx + {s_rbx}]
    .cfi_same_value rbx
    jmp .Lfarshore_frame
    .cfi_restore_state
32:
    push [rbx + {s_parent}]
    push [rbx + {s_mask}]
    .cfi_def_cfa_offset 168
    .cfi_offset rip, -144
    mov rcx, rbx
    mov rdi, [rbx + {s_rdi}]
    .cfi_same_value rdi
    mov rbx, [rbx + {s_rbx}]
    .cfi_same_value rbx
    # The last touch: from here on another thread may have the slot.
    mov dword ptr [rcx + {s_busy}], 0
    jmp .Lfarshore_frame
    .cfi_endproc
    .size farshore_entry, . - farshore_entry

    # extern "C" fn(call, request: [nr, arg 0, arg 1]): the child starts on a stack on which its first words are written.
    .globl farshore_clone_new_stack
    .hidden farshore_clone_new_stack
    .type farshore_clone_new_stack, @function
    .p2align 4
farshore_clone_new_stack:
    .cfi_startproc
    .irp r, rbp,rbx,r12,r13,r14,r15
    push \r
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset \r, 0
    .endr
    mov r11, [rdi + {o_vectors}]
    mov ecx, [rdi + {o_vector_mode}]
    farshore_load_vectors
    mov rbx, [rdi + {o_rbx}]
    mov rdx, [rdi + {o_rdx}]
    mov r10, [rdi + {o_r10}]
    mov r8, [rdi + {o_r8}]
    mov r9, [rdi + {o_r9}]
    mov r12, [rdi + {o_r12}]
    mov r13, [rdi + {o_r13}]
    mov r14, [rdi + {o_r14}]
    mov r15, [rdi + {o_r15}]
    mov rbp, [rdi + {o_rbp}]
    mov rax, [rsi]
    mov rdi, [rsi + 8]
    mov rsi, [rsi + 16]
    syscall
    test rax, rax
    jz .Lfarshore_clone_child
    .irp r, r15,r14,r13,r12,rbx,rbp
    pop \r
    .cfi_adjust_cfa_offset -8
    .cfi_restore \r
    .endr
    ret
    .cfi_endproc
    .size farshore_clone_new_stack, . - farshore_clone_new_stack

.Lfarshore_clone_child:
    .cfi_startproc
    .cfi_def_cfa rsp, {child_words} * 8 + {red_zone}
    .cfi_offset rip, -144
    pop rdi
    .cfi_adjust_cfa_offset -8
    pop rsi
    .cfi_adjust_cfa_offset -8
    jmp .Lfarshore_frame
    .cfi_endproc
    .popsection
    "#,
    red_zone = const RED_ZONE,
    area = const VECTOR_AREA,
    high = const AREA_HIGH,
    masks = const AREA_MASKS,
    mxcsr = const AREA_MXCSR,
    scratch = const AREA_SCRATCH,
    mxcsr_default = sym MXCSR_DEFAULT,
    level = sym VECTOR_LEVEL,
    l_avx = const LEVEL_AVX,
    l_avx512 = const LEVEL_AVX512,
    l_xinuse = const LEVEL_XINUSE,
    plain = sym WAYS,
    quick = const WAY_QUICK,
    quick_function = sym QUICK,
    plain_numbers = const PLAIN_NUMBERS,
    enter = sym enter,
    action_return = const ACTION_RETURN,
    o_nr = const offset_of!(Call, nr),
    o_args = const offset_of!(Call, args),
    o_action = const offset_of!(Call, action),
    o_slot = const offset_of!(Call, slot),
    o_vectors = const offset_of!(Call, vectors),
    o_vector_mode = const offset_of!(Call, vector_mode),
    o_r8 = const offset_of!(Call, r8),
    o_r9 = const offset_of!(Call, r9),
    o_r10 = const offset_of!(Call, r10),
    o_rsi = const offset_of!(Call, rsi),
    o_rdx = const offset_of!(Call, rdx),
    o_rbx = const offset_of!(Call, rbx),
    o_r12 = const offset_of!(Call, r12),
    o_r13 = const offset_of!(Call, r13),
    o_r14 = const offset_of!(Call, r14),
    o_r15 = const offset_of!(Call, r15),
    o_rbp = const offset_of!(Call, rbp),
    o_sp = const offset_of!(Call, sp),
    s_busy = const offset_of!(Slot, busy),
    s_rbx = const offset_of!(Slot, rbx),
    s_rdi = const offset_of!(Slot, rdi),
    s_resume = const offset_of!(Slot, resume),
    s_site = const offset_of!(Slot, site),
    s_flags = const offset_of!(Slot, flags),
    s_child = const offset_of!(Slot, child),
    s_parent = const offset_of!(Slot, parent),
    s_mask = const offset_of!(Slot, mask),
    top_words = const TOP_WORDS,
    child_words = const CHILD_WORDS,
);

/// Learns which vector registers there are. Call once, before the first call is caught.
///
/// # Errors
/// The processor has a set of registers that the entry cannot save.
pub fn init() -> Result<(), &'static str> {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    let mut level = 0;
    // OSXSAVE: the kernel has switched on extended states, and xgetbv may be used.
    if __cpuid(1).ecx & 1 << 27 != 0 {
        let states = extended_states();
        if states & 0b110 == 0b110 {
            level |= LEVEL_AVX;
        }
        if states & 0xe0 == 0xe0 {
            if __cpuid_count(7, 0).ebx & 1 << 30 == 0 {
                return Err("this processor has AVX-512 without its byte and word instructions (AVX512BW); the kernel option \
                            clearcpuid=avx512f makes it usable");
            }
            level |= LEVEL_AVX512;
        }
        if __cpuid_count(0xd, 1).eax & 1 << 2 != 0 {
            level |= LEVEL_XINUSE;
        }
    }
    VECTOR_LEVEL.store(level, Ordering::Release);
    Ok(())
}

/// XCR0: the register states that the kernel keeps for a thread.
fn extended_states() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the caller has seen OSXSAVE; xgetbv only reads.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack)) };
    u64::from(high) << 32 | u64::from(low)
}

/// From now on, calls with this number go straight to the kernel (or to the dispatcher again). The clone family and
/// `rt_sigreturn` never do, nor numbers of 512 and more.
pub fn set_plain(nr: u64, plain: bool) {
    let special = matches!(nr, NR_RT_SIGRETURN | NR_CLONE | NR_FORK | NR_VFORK | NR_CLONE3);
    mark(nr, if plain && !special { WAY_PLAIN } else { 0 });
}

/// From now on, calls with this number are offered to `function`, the same for all numbers.
pub fn set_quick(nr: u64, function: Quick) {
    QUICK.store(function as *mut (), Ordering::Release);
    mark(nr, WAY_QUICK);
}

fn mark(nr: u64, way: u8) {
    if let Some(mark) = WAYS.get(nr as usize) {
        mark.store(way, Ordering::Relaxed);
    }
}

/// A system call from our own text, which Syscall User Dispatch spares.
///
/// # Safety
/// What the call does to memory must be sound.
#[inline(always)]
pub(super) unsafe fn raw(nr: u64, args: [u64; 6]) -> i64 {
    let result;
    // SAFETY: the kernel changes rax, rcx, r11 and what the call is defined to change, which the caller answers for.
    unsafe {
        asm!(
            "syscall", inlateout("rax") nr => result, in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5], lateout("rcx") _, lateout("r11") _, options(nostack)
        );
    }
    result
}

/// Called by the assembly with a complete frame.
extern "C" fn enter(call: &mut Call) -> i64 {
    if call.aux != 0 {
        return after_clone(call);
    }
    // The kernel looks at the low half only.
    call.nr = u64::from(call.nr as u32);
    match call.nr {
        NR_CLONE | NR_FORK | NR_VFORK | NR_CLONE3 => clone(call),
        NR_RT_SIGRETURN => sigreturn_at_site(call),
        // SAFETY: the hook's contract: it is called with a complete frame, on the program's stack.
        _ => unsafe { farshore_dispatch(call) },
    }
}
