/* Probes: load every register from probe_in, make a system call, store every register.
 *
 * `probe_inline_LEVEL` makes the call with an instruction of its own, `probe_libc_LEVEL` calls the function at probe_target.
 * LEVEL is what the processor has: 512 (AVX-512), 513 (the same with clean upper halves of registers 0-15), 256 (AVX2),
 * 129 (the same with clean upper halves), 128 (SSE). An inline probe that gets 0 is a child: it stores to probe_child and,
 * if probe_forks says so, ends. Nothing between a load and a store changes the flags or the red zone.
 *
 * A probe's area: general registers by their number in the instruction set, flags, MXCSR, vectors of 64 bytes, masks, red
 * zone (the highest word first). The same offsets are in nettest.h. */
    .intel_syntax noprefix
    .section .note.GNU-stack, "", @progbits

    .set AT_FLAGS, 128
    .set AT_MXCSR, 136
    .set AT_VECTORS, 144
    .set AT_MASKS, 144 + 2048
    .set AT_RED_ZONE, 144 + 2048 + 64

    /* \action with each general register but rsp, and its offset in an area. */
    .macro each_register action
    \action rax, 0
    \action rcx, 8
    \action rdx, 16
    \action rbx, 24
    \action rbp, 40
    \action rsi, 48
    \action rdi, 56
    \action r8, 64
    \action r9, 72
    \action r10, 80
    \action r11, 88
    \action r12, 96
    \action r13, 104
    \action r14, 112
    \action r15, 120
    .endm

    .macro load_register register, at
    mov \register, [rip + probe_in + \at]
    .endm

    .macro store_register register, at
    /* rcx is the area's address. */
    .ifnc \register, rcx
    mov [rcx + \at], \register
    .endif
    .endm

    .macro load_high_vectors
    .irp n, 16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    vmovdqu64 zmm\n, [rip + probe_in + AT_VECTORS + \n * 64]
    .endr
    .irp n, 0,1,2,3,4,5,6,7
    kmovq k\n, [rip + probe_in + AT_MASKS + \n * 8]
    .endr
    .endm

    .macro load_low_vectors instruction, register
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    \instruction \register\n, [rip + probe_in + AT_VECTORS + \n * 64]
    .endr
    .endm

    .macro load level
    .if \level == 512
    load_low_vectors vmovdqu64, zmm
    load_high_vectors
    .elseif \level == 513
    vzeroupper
    load_low_vectors movups, xmm
    load_high_vectors
    .elseif \level == 256
    load_low_vectors vmovdqu, ymm
    .else
    .if \level == 129
    vzeroupper
    .endif
    load_low_vectors movups, xmm
    .endif
    ldmxcsr [rip + probe_in + AT_MXCSR]
    push [rip + probe_in + AT_FLAGS]
    popfq
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    mov rax, [rip + probe_in + AT_RED_ZONE + \n * 8]
    mov [rsp - (\n + 1) * 8], rax
    .endr
    each_register load_register
    .endm

    /* To the area at rcx. */
    .macro store level
    mov [rcx + 32], rsp
    each_register store_register
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    mov rax, [rsp - (\n + 1) * 8]
    mov [rcx + AT_RED_ZONE + \n * 8], rax
    .endr
    lea rsp, [rsp - 256]
    pushfq
    pop [rcx + AT_FLAGS]
    cld
    lea rsp, [rsp + 256]
    stmxcsr [rcx + AT_MXCSR]
    .if \level >= 512
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    vmovdqu64 [rcx + AT_VECTORS + \n * 64], zmm\n
    .endr
    .irp n, 0,1,2,3,4,5,6,7
    kmovq [rcx + AT_MASKS + \n * 8], k\n
    .endr
    .else
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    .if \level == 128
    movups [rcx + AT_VECTORS + \n * 64], xmm\n
    .else
    vmovdqu [rcx + AT_VECTORS + \n * 64], ymm\n
    .endif
    .endr
    .endif
    .endm

    .macro begin
    .irp register, rbx,rbp,r12,r13,r14,r15
    push \register
    .endr
    lea rsp, [rsp - 520]
    stmxcsr [rsp]
    fnstcw [rsp + 8]
    mov [rip + saved_rsp], rsp
    lea rsp, [rsp - 1024]
    .endm

    .macro end
    mov rsp, [rip + saved_rsp]
    ldmxcsr [rsp]
    fldcw [rsp + 8]
    cld
    lea rsp, [rsp + 520]
    .irp register, r15,r14,r13,r12,rbp,rbx
    pop \register
    .endr
    ret
    .endm

    .macro probe level
    .globl probe_inline_\level
    .type probe_inline_\level, @function
probe_inline_\level:
    begin
    load \level
    syscall
    mov [rip + probe_raw_rcx], rcx
    mov [rip + probe_raw_r11], r11
    /* The child has an area of its own. jrcxz leaves the flags alone. */
    mov rcx, rax
    jrcxz 1f
    lea rcx, [rip + probe_out]
    jmp 2f
1:
    lea rcx, [rip + probe_child]
2:
    store \level
    cmp qword ptr [rcx], 0
    jne 3f
    cmp qword ptr [rip + probe_forks], 0
    je 3f
    mov qword ptr [rip + probe_child_done], 1
    xor edi, edi
    mov eax, 60
    syscall
3:
    end
    .size probe_inline_\level, . - probe_inline_\level

    .globl probe_libc_\level
    .type probe_libc_\level, @function
probe_libc_\level:
    begin
    load \level
    call [rip + probe_target]
    lea rcx, [rip + probe_out]
    store \level
    end
    .size probe_libc_\level, . - probe_libc_\level
    .endm

    .text
    probe 512
    probe 513
    probe 256
    probe 129
    probe 128

    .bss
    .p2align 6
    .irp name, probe_in, probe_out, probe_child
    .globl \name
\name:
    .skip 4096
    .endr
    .irp name, saved_rsp, probe_raw_rcx, probe_raw_r11, probe_target, probe_forks, probe_child_done
    .globl \name
\name:
    .skip 8
    .endr
