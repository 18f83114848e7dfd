//! The SIGSYS handler of Syscall User Dispatch, and `rt_sigreturn`, which cannot be made through a frame.

use super::{NR_RT_SIGRETURN, edge, farshore_entry};
use core::mem::size_of;
use farshore_sys::signal::{Reg, SYS_USER_DISPATCH, SigInfo, UContext};
use farshore_sys::tls;

const ENOSYS: i64 = -38;
/// Calls that the kernel's own code in the process makes, for probes.
const NR_URETPROBE: u32 = 335;
const NR_UPROBE: u32 = 336;

unsafe extern "C" {
    /// Before a caught rt_sigreturn, which the program makes at stack pointer `sp`: may change what will be restored (keep SIGBUS
    /// and SIGSYS out of the mask).
    fn farshore_before_sigreturn(context: &mut UContext, sp: u64);
    /// Brings memory of the program in, and keeps it until `farshore_let_go`, which gets `pinned` back. False: it cannot be read.
    fn farshore_hold(addr: u64, len: u64, pinned: &mut u64) -> bool;
    fn farshore_let_go(addr: u64, len: u64, pinned: u64);
    /// Called when the frame of a caught rt_sigreturn cannot be read: ends the program, or makes `context` go on in the program's
    /// handler of SIGSEGV.
    fn farshore_bad_frame(context: *mut UContext);
    /// Called for a SIGSYS that Syscall User Dispatch did not raise: it is for the program's handler.
    fn farshore_foreign_sigsys(info: *mut SigInfo, context: *mut UContext);
    /// Called when a call that must be made at its own place was trapped there; `context` is behind the call. Returns whether the
    /// thread makes it when the handler returns.
    fn farshore_step_over(context: &mut UContext) -> bool;
    /// Called when a thread without a call stack makes a call: gives it a stack, or ends the program.
    fn farshore_begin_thread();
}

/// Site and resume of a trapped call, for the entry. They lie above a call stack.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Trapped([u64; 2]);

const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;

/// Offsets in the floating-point state: of `magic1`, and behind it of the size of the whole.
const FLOATING_MAGIC: u64 = 464;
const FLOATING_LEGACY: u64 = 512;
const MAGIC1: u32 = 0x4650_5853;

/// The SIGSYS handler: sends the interrupted thread to the entry.
///
/// Register it with `SA_SIGINFO | SA_ONSTACK`, all signals in its mask, and a restorer in our own text.
///
/// # Safety
/// `info` and `context` are what the kernel gave the handler of a SIGSYS; [`super::init`] was called.
pub unsafe extern "C" fn on_sigsys(_signal: i32, info: *mut SigInfo, context: *mut UContext) {
    // SAFETY: the kernel's structure, valid until the handler returns.
    let signal = unsafe { &*info };
    // SAFETY: the same, and only this handler uses it.
    let thread = unsafe { &mut *context };
    if signal.code() != SYS_USER_DISPATCH {
        // SAFETY: hook, called as its contract says.
        unsafe { farshore_foreign_sigsys(info, context) };
        return;
    }
    let mut set = |register, value| {
        // SAFETY: the values that a `syscall` gives, or that the entry expects, in registers that a `syscall` changes.
        unsafe { thread.set(register, value) };
    };
    if signal.call_arch() != AUDIT_ARCH_X86_64 {
        // int 0x80 in a 64-bit program has other numbers and structures than the table.
        set(Reg::Rax, ENOSYS as u64);
        return;
    }
    // The kernel rolled rax back to the number, and left rip behind the syscall.
    if thread.get(Reg::Rax) as u32 == NR_RT_SIGRETURN as u32 {
        return_from_handler(thread);
        return;
    }
    let nr = thread.get(Reg::Rax) as u32;
    // SAFETY: hook, called as its contract says.
    if (nr == NR_URETPROBE || nr == NR_UPROBE) && unsafe { farshore_step_over(thread) } {
        return;
    }
    if tls::call_stack() == 0 {
        // SAFETY: hook, called as its contract says.
        unsafe { farshore_begin_thread() };
    }
    let trapped = core::ptr::with_exposed_provenance_mut::<Trapped>(tls::call_stack() as usize);
    let site = thread.get(Reg::Rip);
    // SAFETY: above every call stack there is room for it, which only this thread uses, and reads before it makes another call.
    unsafe { trapped.write(Trapped([site; 2])) };
    let mut set = |register, value| {
        // SAFETY: as above.
        unsafe { thread.set(register, value) };
    };
    set(Reg::R11, trapped as u64);
    set(Reg::Rip, farshore_entry as *const () as u64);
}

/// Called when the thread is at an `rt_sigreturn` of the program, whose frame is at its stack pointer: makes that frame the
/// context of the handler that runs.
pub(super) fn return_from_handler(context: &mut UContext) {
    // SAFETY: our own context; the program is at an rt_sigreturn.
    if !unsafe { adopt_signal_frame(context) } {
        // SAFETY: hook, called as its contract says.
        unsafe { farshore_bad_frame(context) };
    }
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
    // SAFETY: the hook says that they can be read; the caller promises that the destination is its own frame or stack.
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
    let (frame, own_floating) = (ours.get(Reg::Rsp), ours.fpstate());
    let mut theirs = core::mem::MaybeUninit::<UContext>::uninit();
    // SAFETY: room for a UContext.
    if !unsafe { copy_program(theirs.as_mut_ptr().cast(), frame, size_of::<UContext>() as u64) } {
        return false;
    }
    // SAFETY: all its bytes were written, and it is made of numbers.
    let mut theirs = unsafe { theirs.assume_init() };
    if theirs.fpstate() != 0 {
        // SAFETY: our own floating-point state.
        match unsafe { adopt_floating(own_floating, theirs.fpstate()) } {
            Some(floating) => theirs.set_fpstate(floating),
            None => return false,
        }
    }
    let rip = edge::resumable(&theirs);
    // SAFETY: the same instructions, where a jump lies over the original ones.
    unsafe { theirs.set(Reg::Rip, rip) };
    *ours = theirs;
    // SAFETY: hook, called as its contract says.
    unsafe { farshore_before_sigreturn(ours, frame) };
    true
}

/// Copies the program's floating-point state over ours if ours has the room. Returns the state to restore from; `None` if the
/// program's cannot be read.
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
    // SAFETY: our state, which the kernel has written, has at least that many bytes.
    unsafe { copy_program(ours as *mut u8, theirs, needed) }.then_some(ours)
}

/// Bytes of a floating-point state.
///
/// # Safety
/// There is a state at `at`, or `at` is 0.
unsafe fn floating_size(at: u64) -> u64 {
    if at == 0 {
        return 0;
    }
    // SAFETY: within the first 512 bytes, which every state has.
    let [magic, extended] = unsafe { ((at + FLOATING_MAGIC) as *const [u32; 2]).read() };
    if magic == MAGIC1 { u64::from(extended) } else { FLOATING_LEGACY }
}
