//! The assembly of the entry. The head of `entry.rs` says what it does, and why.

use super::{
    AGAIN, AREA_HIGH, AREA_MASKS, AREA_MXCSR, AREA_SCRATCH, Call, DIRECTION, EINTR, FRAME, LEVEL_AVX, LEVEL_AVX512, LEVEL_XINUSE,
    MARK_MADE, MXCSR_DEFAULT, NOWHERE, PLAIN_NUMBERS, QUICK, RED_ZONE, TRAP, VECTOR_AREA, VECTOR_LEVEL, WAY_QUICK, WAYS, enter,
};
use core::arch::global_asm;
use core::mem::offset_of;
use farshore_sys::raw::nr;
use farshore_sys::tls;

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

    # The unwind rules. Register \column is saved at \at of the frame, whose address is in rbp. (DW_CFA_expression, DW_OP_breg6.)
    .macro farshore_saved column, at
    .cfi_escape 0x10, \column, 3, 0x76, ((\at) & 0x7f) | 0x80, ((\at) >> 7) & 0x7f
    .endm
    # The program's stack pointer is in the frame: at rbp + o_sp, or at rsp + \at with \at in one byte. (DW_CFA_def_cfa_expression.)
    .macro farshore_frame_by_rbp
    .cfi_escape 0x0f, 4, 0x76, (({o_sp}) & 0x7f) | 0x80, (({o_sp}) >> 7) & 0x7f, 0x06
    farshore_saved 16, {o_return_address}
    farshore_saved 6, {o_rbp}
    .endm
    .macro farshore_frame_by_rsp at
    .cfi_escape 0x0f, 3, 0x77, (\at) & 0x7f, 0x06
    .endm
    # site at rsp + \at
    .macro farshore_site_by_rsp at
    .cfi_escape 0x10, 16, 2, 0x77, (\at) & 0x7f
    .endm

    # The way out. rbp is the frame, all other registers but rcx and r11 are the program's. \out is the label of the last instruction: the
    # program's own stack pointer is back there.
    .macro farshore_leave out
    mov rcx, [rbp + {o_resume}]
    lea rsp, [rbp + {o_flags}]
    mov rbp, [rbp + {o_rbp}]
    farshore_frame_by_rsp {o_sp} - {o_flags}
    farshore_site_by_rsp {o_return_address} - {o_flags}
    .cfi_same_value rbp
    mov r11, [rsp]
    popfq
    farshore_frame_by_rsp {o_sp} - {o_flags} - 8
    farshore_site_by_rsp {o_return_address} - {o_flags} - 8
    mov rsp, [rsp + {o_sp} - {o_flags} - 8]
    .cfi_def_cfa rsp, 0
    .cfi_register rip, rcx
\out:
    jmp rcx
    .endm

    # The same for a call by the quick way, which has changed no flag but the direction and those of arithmetic. popfq takes 6 ns here, so it
    # is used only where trap flag or direction flag come back set, with an end of its own (\slow). Otherwise OF comes from an addition, and
    # the other five from sahf. The result is in the frame, too, so rax is free meanwhile.
    .macro farshore_leave_quickly slow, out
    lea rsp, [rbp + {o_flags}]
    mov rbp, [rbp + {o_rbp}]
    farshore_frame_by_rsp {o_sp} - {o_flags}
    farshore_site_by_rsp {o_return_address} - {o_flags}
    .cfi_same_value rbp
    mov r11, [rsp]
    test r11d, {trap_or_direction}
    jz 40f
    .cfi_remember_state
    mov rcx, [rsp + {o_resume} - {o_flags}]
    popfq
    farshore_frame_by_rsp {o_sp} - {o_flags} - 8
    farshore_site_by_rsp {o_return_address} - {o_flags} - 8
    mov rsp, [rsp + {o_sp} - {o_flags} - 8]
    .cfi_def_cfa rsp, 0
    .cfi_register rip, rcx
    farshore_label \slow
    jmp rcx
    .cfi_restore_state
40:
    mov rcx, rax
    mov eax, r11d
    # OF is bit 11, so bit 3 of ah, and bit 6 (the direction flag's, moved) is 0: OF is what bit 7 + bit 7 overflows to.
    shl ah, 4
    add ah, ah
    mov ah, al
    sahf
    mov rax, rcx
    mov rcx, [rsp + {o_resume} - {o_flags}]
    mov rsp, [rsp + {o_sp} - {o_flags}]
    .cfi_def_cfa rsp, 0
    .cfi_register rip, rcx
    farshore_label \out
    jmp rcx
    .endm

    # An instruction that goes by the thread pointer (sys/src/hosted.rs).
    .macro farshore_by_thread instruction:vararg
7701:
    \instruction
    .pushsection farshore_by_thread, "aR", @progbits
    .long 7701b - .
    .popsection
    .endm

    .macro farshore_label name
    .globl \name
    .hidden \name
\name:
    .endm

    .type farshore_entry, @function
    .p2align 6
    .cfi_startproc
    .cfi_signal_frame
    .cfi_def_cfa rsp, 0
    # site is where r11 leads
    .cfi_escape 0x10, 16, 2, 0x7b, 0
    farshore_label farshore_entry_text
    # No call stack: the frame is below the red zone.
9:
    lea rcx, [rsp - {red_zone}]
    jmp 8f
    .p2align 5
    farshore_label farshore_entry
    mov rcx, [rip + farshore_tls_slot@gottpoff]
    farshore_by_thread mov rcx, fs:[rcx + {call_stack}]
    # Neither this nor anything else before pushfq changes the flags.
    jrcxz 9b
8:
    farshore_label farshore_entry_framed
    mov [rcx + {o_sp} - {frame}], rsp
    lea rsp, [rcx + {o_flags} + 8 - {frame}]
    farshore_label farshore_entry_switched
    farshore_frame_by_rsp {o_sp} - {o_flags} - 8
    pushfq
    farshore_frame_by_rsp {o_sp} - {o_flags}
    push [r11]
    farshore_frame_by_rsp {o_sp} - {o_return_address}
    farshore_site_by_rsp 0
    push [r11 + 8]
    farshore_frame_by_rsp {o_sp} - {o_resume}
    farshore_site_by_rsp 8
    # rcx and r11 are free from here on.
    cmp rax, {plain_numbers}
    jae 2f
    lea r11, [rip + {plain}]
    movzx r11d, byte ptr [r11 + rax]
    test r11d, r11d
    je 2f
    cmp r11d, {quick}
    je 1f
    # A plain call.
    farshore_label farshore_entry_plain
    syscall
    farshore_label farshore_entry_plain_made
    .cfi_remember_state
    pop rcx
    farshore_frame_by_rsp {o_sp} - {o_return_address}
    farshore_site_by_rsp 0
    lea rsp, [rsp + 8]
    farshore_frame_by_rsp {o_sp} - {o_flags}
    farshore_site_by_rsp {o_return_address} - {o_flags}
    mov r11, [rsp]
    popfq
    farshore_frame_by_rsp {o_sp} - {o_flags} - 8
    farshore_site_by_rsp {o_return_address} - {o_flags} - 8
    mov rsp, [rsp + {o_sp} - {o_flags} - 8]
    .cfi_def_cfa rsp, 0
    .cfi_register rip, rcx
    farshore_label farshore_entry_plain_out
    jmp rcx
    .cfi_restore_state
1:
    # Perhaps a quick one: what the code uses of the registers is saved (its head says which those are).
    .cfi_remember_state
    mov [rsp + {o_rbp} - {o_resume}], rbp
    lea rbp, [rsp - {o_resume}]
    farshore_frame_by_rbp
    mov [rbp + {o_nr}], rax
    mov [rbp + {o_args}], rdi
    mov [rbp + {o_args} + 8], rsi
    mov [rbp + {o_args} + 16], rdx
    mov [rbp + {o_args} + 24], r10
    mov [rbp + {o_args} + 32], r8
    mov [rbp + {o_args} + 40], r9
    mov rdi, rbp
    lea rsp, [rbp - 64]
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
    mov rdi, [rbp + {o_args}]
    mov rsi, [rbp + {o_args} + 8]
    mov r10, [rbp + {o_args} + 24]
    mov r8, [rbp + {o_args} + 32]
    mov r9, [rbp + {o_args} + 40]
    test rdx, rdx
    mov rdx, [rbp + {o_args} + 16]
    je 3f
    mov [rbp + {o_result}], rax
    mov rcx, [rip + farshore_tls_slot@gottpoff]
    farshore_by_thread cmp qword ptr fs:[rcx + {deferred}], 0
    # From here on the frame has all, should a signal come.
    farshore_label farshore_entry_quick_leave
    jne 4f
    farshore_leave_quickly farshore_entry_quick_slow_out, farshore_entry_quick_out
    .cfi_restore_state
    .cfi_remember_state
    farshore_frame_by_rbp
4:
    # Something to do at the end of the call: by the whole frame.
    mov rcx, {mark_made}
    jmp 5f
3:
    xor ecx, ecx
5:
    mov rax, [rbp + {o_nr}]
    jmp 6f
    .cfi_restore_state
2:
    mov [rsp + {o_rbp} - {o_resume}], rbp
    lea rbp, [rsp - {o_resume}]
    farshore_frame_by_rbp
    # Of a dormant process a handler may come at any moment, and begins below the red zone.
    mov rsp, rbp
    xor ecx, ecx
6:
    mov [rbp + {o_aux}], rcx
    mov [rbp + {o_r15}], r15
    farshore_saved 15, {o_r15}
    mov [rbp + {o_r14}], r14
    farshore_saved 14, {o_r14}
    mov [rbp + {o_r13}], r13
    farshore_saved 13, {o_r13}
    mov [rbp + {o_r12}], r12
    farshore_saved 12, {o_r12}
    mov [rbp + {o_rbx}], rbx
    farshore_saved 3, {o_rbx}
    mov [rbp + {o_rdx}], rdx
    farshore_saved 1, {o_rdx}
    mov [rbp + {o_rsi}], rsi
    farshore_saved 4, {o_rsi}
    mov [rbp + {o_rdi}], rdi
    farshore_saved 5, {o_rdi}
    mov [rbp + {o_r10}], r10
    farshore_saved 10, {o_r10}
    mov [rbp + {o_r9}], r9
    farshore_saved 9, {o_r9}
    mov [rbp + {o_r8}], r8
    farshore_saved 8, {o_r8}
    mov qword ptr [rbp + {o_action}], 0
    mov [rbp + {o_args} + 40], r9
    mov [rbp + {o_args} + 32], r8
    mov [rbp + {o_args} + 24], r10
    mov [rbp + {o_args} + 16], rdx
    mov [rbp + {o_args} + 8], rsi
    mov [rbp + {o_args}], rdi
    mov [rbp + {o_nr}], rax
    cld
    lea rsp, [rbp - {area}]
    and rsp, -64
    mov [rbp + {o_vectors}], rsp

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
    mov [rbp + {o_vector_mode}], r13
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
    jmp .Lfarshore_enter
8:
    test r13d, 2
    jnz 9f
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    vmovdqa ymmword ptr [rsp + \n * 64], ymm\n
    .endr
    jmp .Lfarshore_enter
9:
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    vmovdqa64 zmmword ptr [rsp + \n * 64], zmm\n
    .endr
    # New children come in here, with a frame that is complete, as is the area of vectors at rsp.
.Lfarshore_enter:
    mov rdi, rbp
    call {enter}
    mov [rbp + {o_result}], rax
    mov r11, [rbp + {o_vectors}]
    mov ecx, [rbp + {o_vector_mode}]
    farshore_load_vectors
    mov rcx, [rip + farshore_tls_slot@gottpoff]
    farshore_by_thread cmp qword ptr fs:[rcx + {deferred}], 0
    # From here on the frame has all, should a signal come.
    farshore_label farshore_entry_leave
    jne 31f
    .cfi_remember_state
    mov rax, [rbp + {o_result}]
    mov r8, [rbp + {o_r8}]
    mov r9, [rbp + {o_r9}]
    mov r10, [rbp + {o_r10}]
    mov rdi, [rbp + {o_rdi}]
    mov rsi, [rbp + {o_rsi}]
    mov rdx, [rbp + {o_rdx}]
    mov rbx, [rbp + {o_rbx}]
    mov r12, [rbp + {o_r12}]
    mov r13, [rbp + {o_r13}]
    mov r14, [rbp + {o_r14}]
    mov r15, [rbp + {o_r15}]
    .irp register, r15,r14,r13,r12,rbx,rdx,rsi,rdi,r10,r9,r8
    .cfi_same_value \register
    .endr
    farshore_leave farshore_entry_out
    .globl farshore_entry_out
    .hidden farshore_entry_out
    .cfi_restore_state
31:
    # Something to do at the end of the call, in a handler (entry/edge.rs): an access that the processor refuses, by rsp's
    # segment, is a SIGBUS at once.
    mov rbx, rbp
    mov rsp, rbp
    .irp column, 3,4,5,1,8,9,10,12,13,14,15
    .cfi_undefined \column
    .endr
    mov rax, {nowhere}
    mov rbp, rax
    .cfi_undefined rip
    farshore_label farshore_entry_edge
    mov rax, [rbp]
    ud2
    .cfi_endproc
    .size farshore_entry, . - farshore_entry
    farshore_label farshore_entry_end

    # extern "C" fn(child's frame, request: [nr, six arguments]): the child goes on with that frame, on the stack below it.
    .globl farshore_clone_onto
    .hidden farshore_clone_onto
    .type farshore_clone_onto, @function
    .p2align 4
farshore_clone_onto:
    .cfi_startproc
    push rbx
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset rbx, 0
    push rbp
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset rbp, 0
    mov rbp, rsp
    .cfi_def_cfa_register rbp
    mov rbx, rdi
    mov rax, [rsi]
    mov rdi, [rsi + 8]
    mov rdx, [rsi + 24]
    mov r10, [rsi + 32]
    mov r8, [rsi + 40]
    mov r9, [rsi + 48]
    mov rsi, [rsi + 16]
    # A child that is not told a stack begins on this one.
    mov rsp, rbx
    syscall
    test rax, rax
    jz 1f
    mov rsp, rbp
    pop rbp
    pop rbx
    .cfi_def_cfa rsp, 8
    .cfi_same_value rbp
    .cfi_same_value rbx
    ret
1:
    .cfi_undefined rip
    mov rbp, rbx
    mov rsp, [rbp + {o_vectors}]
    jmp .Lfarshore_enter
    .cfi_endproc
    .size farshore_clone_onto, . - farshore_clone_onto

    # extern "C" fn(frame) -> !: goes on with that frame, on the stack below it and with its mask of signals.
    .globl farshore_go_on
    .hidden farshore_go_on
    .type farshore_go_on, @function
    .p2align 4
farshore_go_on:
    .cfi_startproc
    .cfi_undefined rip
    mov rbp, rdi
    mov rsp, [rbp + {o_vectors}]
    mov eax, {sigprocmask}
    mov edi, 2
    lea rsi, [rbp + {o_mask}]
    xor edx, edx
    mov r10d, 8
    syscall
    jmp .Lfarshore_enter
    .cfi_endproc
    .size farshore_go_on, . - farshore_go_on

    # extern "C" fn(nr, arguments): a call for the program. See the head of edge.rs.
    .globl farshore_for_program
    .hidden farshore_for_program
    .type farshore_for_program, @function
    .p2align 4
farshore_for_program:
    .cfi_startproc
    push r12
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset r12, 0
    # As farshore_sys::raw has it: a handler that lets the call go on finds its number.
    mov r12, rdi
    mov rax, rdi
    mov rcx, rsi
    mov rdi, [rcx]
    mov rsi, [rcx + 8]
    mov rdx, [rcx + 16]
    mov r10, [rcx + 24]
    mov r8, [rcx + 32]
    mov r9, [rcx + 40]
1:
    mov r11, [rip + farshore_tls_slot@gottpoff]
    farshore_by_thread cmp qword ptr fs:[r11 + {deferred}], 0
    jne 3f
    syscall
2:
    pop r12
    .cfi_adjust_cfa_offset -8
    .cfi_restore r12
    ret
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset r12, 0
3:
    mov rax, {again}
    # Where a handler of ours has gone back with a call that had been made (edge.rs), it has left this in rcx.
    lea r11, [rip + 1b]
    cmp rcx, r11
    jne 2b
    mov rax, {eintr}
    jmp 2b
    .cfi_endproc
    .size farshore_for_program, . - farshore_for_program
    .pushsection farshore_not_made, "aR", @progbits
    .long 1b - ., 2b - ., 3b - .
    .popsection
    .popsection
    "#,
    red_zone = const RED_ZONE,
    frame = const FRAME,
    area = const VECTOR_AREA,
    high = const AREA_HIGH,
    masks = const AREA_MASKS,
    mxcsr = const AREA_MXCSR,
    scratch = const AREA_SCRATCH,
    mxcsr_default = sym MXCSR_DEFAULT,
    trap_or_direction = const TRAP | DIRECTION,
    level = sym VECTOR_LEVEL,
    l_avx = const LEVEL_AVX,
    l_avx512 = const LEVEL_AVX512,
    l_xinuse = const LEVEL_XINUSE,
    plain = sym WAYS,
    quick = const WAY_QUICK,
    quick_function = sym QUICK,
    plain_numbers = const PLAIN_NUMBERS,
    enter = sym enter,
    again = const AGAIN,
    eintr = const EINTR,
    mark_made = const MARK_MADE,
    nowhere = const NOWHERE,
    call_stack = const tls::CALL_STACK_AT,
    deferred = const tls::DEFERRED_AT,
    o_nr = const offset_of!(Call, nr),
    o_args = const offset_of!(Call, args),
    o_action = const offset_of!(Call, action),
    o_result = const offset_of!(Call, result),
    o_vectors = const offset_of!(Call, vectors),
    o_mask = const offset_of!(Call, mask),
    sigprocmask = const nr::RT_SIGPROCMASK,
    o_vector_mode = const offset_of!(Call, vector_mode),
    o_r8 = const offset_of!(Call, r8),
    o_r9 = const offset_of!(Call, r9),
    o_r10 = const offset_of!(Call, r10),
    o_rdi = const offset_of!(Call, rdi),
    o_rsi = const offset_of!(Call, rsi),
    o_rdx = const offset_of!(Call, rdx),
    o_rbx = const offset_of!(Call, rbx),
    o_r12 = const offset_of!(Call, r12),
    o_r13 = const offset_of!(Call, r13),
    o_r14 = const offset_of!(Call, r14),
    o_r15 = const offset_of!(Call, r15),
    o_rbp = const offset_of!(Call, rbp),
    o_sp = const offset_of!(Call, sp),
    o_aux = const offset_of!(Call, aux),
    o_resume = const offset_of!(Call, resume),
    o_return_address = const offset_of!(Call, return_address),
    o_flags = const offset_of!(Call, flags),
);
