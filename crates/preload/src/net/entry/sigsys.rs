//! The SIGSYS handler of Syscall User Dispatch, and `rt_sigreturn`, which cannot be made through a frame.

use super::{ACTION_SHARED_STACK, Call, NR_RT_SIGRETURN, farshore_entry, farshore_make_writable};
use core::mem::size_of;

const ENOSYS: i64 = -38;

unsafe extern "C" {
    /// Before a caught rt_sigreturn, which the program makes at stack pointer `sp`: may change what will be restored (keep SIGBUS and SIGSYS
    /// out of the mask).
    fn farshore_before_sigreturn(context: &mut UContext, sp: u64);
    /// Brings memory of the program and keeps it until `farshore_let_go`, which gets `pinned` back; false if it cannot be read.
    fn farshore_hold(addr: u64, len: u64, pinned: &mut u64) -> bool;
    fn farshore_let_go(addr: u64, len: u64, pinned: u64);
    /// The frame of a caught rt_sigreturn cannot be read: ends the program or makes `context` go on in its handler of SIGSEGV.
    fn farshore_bad_frame(context: *mut UContext);
    /// A SIGSYS that Syscall User Dispatch did not raise: for the program's handler.
    fn farshore_foreign_sigsys(info: *mut SigInfo, context: *mut UContext);
}

/// `rt_sigreturn` by a patched site: `syscall(SYS_rt_sigreturn)`. It replaces all registers, so it needs no way back.
pub(super) fn sigreturn_at_site(call: &mut Call) -> i64 {
    // SAFETY: hook; harmless for memory that is not managed.
    unsafe { farshore_make_writable(call.sp, size_of::<UContext>() as u64) };
    // SAFETY: a program that makes this call has a signal frame at its stack pointer.
    let context = unsafe { &mut *(call.sp as *mut UContext) };
    // SAFETY: hook, called as its contract says.
    unsafe { farshore_before_sigreturn(context, call.sp) };
    call.action = ACTION_SHARED_STACK;
    0
}

/// The kernel's siginfo of a SIGSYS.
#[repr(C)]
#[derive(Debug)]
pub struct SigInfo {
    /// Signal number.
    pub signo: i32,
    /// Always 0.
    pub errno: i32,
    /// Who raised it.
    pub code: i32,
    pad: i32,
    /// Address behind the `syscall`.
    pub call_address: u64,
    /// Number of the call.
    pub nr: i32,
    /// `AUDIT_ARCH_` number of the way into the kernel.
    pub arch: u32,
    rest: [u64; 12],
}

/// The kernel's ucontext, as far as it is the same for all sizes of signal mask.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UContext {
    /// `UC_` flags.
    pub flags: u64,
    link: u64,
    /// The alternate stack to restore: address, flags, size.
    pub stack: [u64; 3],
    /// r8-r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, flags, segments, error, trap, old mask, cr2.
    pub registers: [u64; 23],
    /// Address of the floating-point state, 0 if there is none.
    pub floating: u64,
    reserved: [u64; 8],
    /// The signal mask to restore.
    pub mask: u64,
}

const REG_R11: usize = 3;
const REG_RAX: usize = 13;
const REG_RCX: usize = 14;
const REG_RSP: usize = 15;
const REG_RIP: usize = 16;

const SYS_USER_DISPATCH: i32 = 2;
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;

/// Offsets in the floating-point state: `magic1`, and behind it the size of the whole.
const FLOATING_MAGIC: u64 = 464;
const FLOATING_LEGACY: u64 = 512;
const MAGIC1: u32 = 0x4650_5853;

/// The SIGSYS handler: sends the interrupted thread to the entry.
///
/// Register it with `SA_SIGINFO | SA_ONSTACK`, all signals in its mask, and a restorer in our own text.
///
/// # Safety
/// `info` and `context` are what the kernel gave the handler of a SIGSYS; [`init`] was called.
pub unsafe extern "C" fn on_sigsys(_signal: i32, info: *mut SigInfo, context: *mut UContext) {
    // SAFETY: the kernel's, valid until the handler returns.
    let signal = unsafe { &*info };
    // SAFETY: the same, and ours alone.
    let thread = unsafe { &mut *context };
    if signal.code != SYS_USER_DISPATCH {
        // SAFETY: hook, called as its contract says.
        unsafe { farshore_foreign_sigsys(info, context) };
        return;
    }
    let registers = &mut thread.registers;
    if signal.arch != AUDIT_ARCH_X86_64 {
        // int 0x80 in a 64-bit program: other numbers and structures than the table's.
        registers[REG_RAX] = ENOSYS as u64;
        return;
    }
    // The kernel rolled rax back to the number, and left rip behind the syscall.
    if registers[REG_RAX] as u32 == NR_RT_SIGRETURN as u32 {
        // SAFETY: our own context; the program is at an rt_sigreturn.
        if !unsafe { adopt_signal_frame(thread) } {
            // SAFETY: hook, called as its contract says.
            unsafe { farshore_bad_frame(context) };
        }
        return;
    }
    registers[REG_RCX] = registers[REG_RIP];
    registers[REG_R11] = registers[REG_RIP];
    registers[REG_RIP] = farshore_entry as *const () as u64;
}

/// Copies `len` bytes of the program, if they can be read.
///
/// # Safety
/// `to` has room for them.
unsafe fn copy_program(to: *mut u8, from: u64, len: u64) -> bool {
    let mut pinned = 0;
    // SAFETY: hook, called as its contract says.
    if !unsafe { farshore_hold(from, len, &mut pinned) } {
        return false;
    }
    // SAFETY: the hook says that they can be read; the destination is the caller's promise, in our own frame or stack.
    unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to, len as usize) };
    // SAFETY: hook, called as its contract says.
    unsafe { farshore_let_go(from, len, pinned) };
    true
}

/// Makes the return from our handler the return from the program's. False if its frame cannot be read.
///
/// # Safety
/// `ours` is the context of the running handler, and the program is at an `rt_sigreturn`.
unsafe fn adopt_signal_frame(ours: &mut UContext) -> bool {
    let (frame, own_floating) = (ours.registers[REG_RSP], ours.floating);
    let mut theirs = core::mem::MaybeUninit::<UContext>::uninit();
    // SAFETY: room for a UContext.
    if !unsafe { copy_program(theirs.as_mut_ptr().cast(), frame, size_of::<UContext>() as u64) } {
        return false;
    }
    // SAFETY: all its bytes were written, and it is made of numbers.
    let mut theirs = unsafe { theirs.assume_init() };
    if theirs.floating != 0 {
        // SAFETY: our own floating-point state.
        match unsafe { adopt_floating(own_floating, theirs.floating) } {
            Some(floating) => theirs.floating = floating,
            None => return false,
        }
    }
    *ours = theirs;
    // SAFETY: hook, called as its contract says.
    unsafe { farshore_before_sigreturn(ours, frame) };
    true
}

/// Copies the program's floating-point state over ours if ours has the room. The one to restore from; `None` if it cannot be read.
///
/// # Safety
/// `ours` is 0 or the address of the state in our own signal frame.
unsafe fn adopt_floating(ours: u64, theirs: u64) -> Option<u64> {
    let mut legacy = [0u64; FLOATING_LEGACY as usize / 8];
    // SAFETY: room for it.
    if !unsafe { copy_program(legacy.as_mut_ptr().cast(), theirs, FLOATING_LEGACY) } {
        return None;
    }
    // SAFETY: a state's first 512 bytes, in whatever form the program has left it.
    let needed = unsafe { floating_size(legacy.as_ptr() as u64) };
    // SAFETY: the caller's promise.
    let room = unsafe { floating_size(ours) };
    if needed > room {
        return Some(theirs);
    }
    // SAFETY: as many bytes are there in ours, which the kernel has written.
    unsafe { copy_program(ours as *mut u8, theirs, needed) }.then_some(ours)
}

/// Bytes of a floating-point state.
///
/// # Safety
/// There is one at `at`, or it is 0.
unsafe fn floating_size(at: u64) -> u64 {
    if at == 0 {
        return 0;
    }
    // SAFETY: within the first 512 bytes, which every state has.
    let [magic, extended] = unsafe { ((at + FLOATING_MAGIC) as *const [u32; 2]).read() };
    if magic == MAGIC1 { u64::from(extended) } else { FLOATING_LEGACY }
}
