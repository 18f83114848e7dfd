//! The way of a caught system call into the dispatcher and back.
//!
//! # Two ways in, one entry
//!
//! A call is caught at a *patched site* (`patch.rs` put a jump over the `syscall`; the jump leads to a stub, the stub here) or by
//! *Syscall User Dispatch* (the kernel raises SIGSYS; [`on_sigsys`] sets the interrupted thread's `rip` to the entry and
//! returns). Both arrive with `jmp`, all registers as at the `syscall`, and `r11`, which a `syscall` destroys anyway, leading to
//! two words: *site*, the address behind the original `syscall`, and *resume*, where the program goes on (behind the `syscall`,
//! or in the stub). There is no `call` and no `ret`, so the processor's return stack stays in step with the program's.
//!
//! # The call stack
//!
//! Farshore's code runs on a stack of its own, one for each thread: [`tls::call_stack`] is its top. **No byte of the program's
//! stack is touched**, however small that stack is, whatever lies below it, and whether or not it is managed memory. A thread has
//! one call on its call stack at a time: no handler of the program ever runs on top of a call (the head of `entry/edge.rs`). So
//! the frame of a call ([`Call`]) is always at the same place, and it stays there until the thread is back in the program. A
//! thread that began before Farshore was there has no call stack; the frame of its first call lies below its red zone.
//!
//! # What is preserved
//!
//! The entry preserves all that `syscall` preserves: every general register but `rax`, `rcx`, `r11`; the flags; the stack below
//! `rsp`; MXCSR; xmm/ymm/zmm 0-31 and k 0-7. `r11` leaves as the flags and `rcx` as *resume*, as `syscall` does it. The entry
//! does not save x87 and MMX, AMX tiles, and APX's r16-r31, since Farshore's code does not touch them. That code runs with the
//! direction flag clear and MXCSR's masks and rounding at their defaults.
//!
//! The entry saves the vectors by plain moves, because `xsavec` + `xrstor` cost 103 ns here (36 + 68) and the moves 7 ns, plus 11
//! ns for `xgetbv(1)`, which tells whether the upper halves of registers 0-15 are in use. If they are not, the entry clears them
//! (`vzeroupper`) rather than loading them: otherwise the program's SSE code would be slow afterwards on many processors.
//!
//! The unwind rules name *site* as the return address: a debugger goes from the entry's frame to the function with the `syscall`,
//! past the stub. They call the entry's frame a signal's, since a debugger takes a stack for broken if it goes on at a lower
//! address.
//!
//! # Calls that go straight on
//!
//! For numbers marked by [`set_plain`] nothing is saved: the entry makes the call itself. That is right for calls that neither
//! touch memory nor need a look at their arguments. For numbers marked by [`set_quick`] the entry first asks a function that
//! needs only the general registers and four vector registers (`preload/src/dispatch/quick.rs`).
//!
//! # Calls for the program, and our own
//!
//! The dispatcher calls [`for_program`] to make a call on behalf of the program. Once there is a signal to be handled, it does
//! not make the call, and gives [`AGAIN`]. All other calls are made by `farshore_sys::raw`.
//!
//! # Calls that make threads
//!
//! `clone`, `clone3`, `fork` and `vfork` never reach `farshore_dispatch`. Order of the hooks: `farshore_before_clone`; the call;
//! then `farshore_child_started` in the child, with its own thread-local storage, and `farshore_parent_after_clone` in the
//! parent, also when the call failed. If the first hook refuses, neither follows. All signals but those of faults are blocked
//! from before the first hook until after the last, in the child too, so the hooks may hold locks for each other; and all signals
//! are blocked from before the call until behind it.
//!
//! - **The stack is copied** (no `CLONE_VM`, no new stack: `fork`). The child has a copy of the call stack and returns by it.
//! - **A new stack** (`pthread_create`; `posix_spawn`, which adds `CLONE_VFORK`). The child begins on a call stack of its own
//!   (`farshore_take_stack`), on which there is a copy of its parent's frame, with the new stack pointer in it. It runs the hook
//!   and leaves by that frame.
//! - **The parent's stack** (`vfork`, `CLONE_VM | CLONE_VFORK` without a stack). The same, with the same stack pointer. The
//!   parent's frame stays as it is on the parent's call stack. The child shares the parent's thread-local storage; it puts its
//!   own call stack and record there, and the parent puts its own back afterwards.
//! - **`CLONE_VM` without a stack and without `CLONE_VFORK`**: two threads would use one stack at one time. The call gets
//!   `EINVAL`.
//!
//! `clone3` reads a structure from memory. The kernel gets a copy of it on the call stack, since the stack in it changes. The
//! program's own structure is not changed.
//!
//! # rt_sigreturn
//!
//! `rt_sigreturn` replaces everything. When SIGSYS catches it (libc's restorer is never patched), the program's signal frame is
//! copied over the frame of our own SIGSYS handler. The one return from our handler is then the program's return, and the kernel
//! never reads the program's frame, which may be managed. At a patched site (`syscall(SYS_rt_sigreturn)`) the handler that the
//! end of a call can raise does the same (`entry/edge.rs`).
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
//! Syscall User Dispatch, while it is on, costs every call of the thread 28 ns, ours too: the kernel takes its slow way in.

use core::arch::asm;
use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};
use farshore_sys::signal::SigSet;
use farshore_sys::tls;

pub mod asleep;
mod clone;
pub mod edge;
mod sigsys;
mod text;

pub use clone::GIVEN_BITS;
use clone::{after_clone, clone};
pub use sigsys::{Trapped, on_sigsys};

/// Numbers under this can be marked by [`set_plain`] and [`set_quick`].
const PLAIN_NUMBERS: usize = 512;
/// Bytes under `rsp` that belong to the interrupted function.
const RED_ZONE: usize = 128;
/// Bytes of a frame's vector area: 32 registers of 64 bytes, 8 masks of 8, MXCSR as it was (4) and a scratch word (4), rounded up
/// to 64.
const VECTOR_AREA: usize = 2176;
const AREA_HIGH: usize = 1024;
const AREA_MASKS: usize = 2048;
const AREA_MXCSR: usize = 2112;
const AREA_SCRATCH: usize = 2116;
/// MXCSR with all exceptions masked and rounding to nearest, as C and Rust code expect it.
static MXCSR_DEFAULT: u32 = 0x1f80;

/// Bits of the flags register.
const TRAP: u64 = 1 << 8;
const DIRECTION: u64 = 1 << 10;

/// Bits of [`VECTOR_LEVEL`].
const LEVEL_AVX: u8 = 1;
const LEVEL_AVX512: u8 = 2;
const LEVEL_XINUSE: u8 = 4;
/// The level that [`init`] found; until then only xmm 0-15 are saved.
static VECTOR_LEVEL: AtomicU8 = AtomicU8::new(0);
/// [`init`] has found that the processor has the instruction by which quick calls end.
static MAY_BE_QUICK: AtomicBool = AtomicBool::new(false);
/// Makes one system call (number, arguments), if it can do that with few registers. `preload/src/dispatch/quick.rs` says what the function may not do.
pub type Quick = extern "C" fn(&[u64; 7]) -> Answer;

/// The answer of a [`Quick`] function: the assembly has it in two registers.
#[repr(C)]
#[derive(Debug)]
pub struct Answer {
    /// The call's result.
    pub result: i64,
    /// 0: nothing was done.
    pub done: u64,
}

/// Set before any number is marked that leads to the function.
static QUICK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// The way that each call goes; 0: it is dispatched.
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
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Number of the system call, as in `rax`.
    pub nr: u64,
    /// Its arguments: `rdi`, `rsi`, `rdx`, `r10`, `r8`, `r9`. A copy to work with.
    pub args: [u64; 6],
    /// 0, or what else is done at the end of the call: one of the `ACTION_` numbers.
    action: u64,
    /// What the program will find in `rax`, once it is known.
    result: i64,
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
    /// For the clone family: the program's signal mask, to be set again.
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

/// Bytes of a frame: it ends where the call stack does.
const FRAME: usize = size_of::<Call>();
/// The result of a call that is to be made again when a signal has been handled; the kernel uses the same number internally.
pub const AGAIN: i64 = -513;
/// The result of a call that a signal has ended.
pub const EINTR: i64 = -4;
/// Replaces everything by the signal frame at the program's stack pointer.
const ACTION_SIGRETURN: u64 = 1;

/// The frame is a child's first.
const MARK_CHILD: u64 = 1 << 63;
/// The call was made by the quick way: `result` is there.
const MARK_MADE: u64 = 1 << 62;

const _: () = assert!(FRAME == 29 * 8);
// The way in writes the upper words by pushes.
const _: () = assert!(
    offset_of!(Call, flags) == 28 * 8 && offset_of!(Call, return_address) == 27 * 8 && offset_of!(Call, resume) == 26 * 8
);
const _: () = assert!(offset_of!(Call, sp) == 23 * 8);

unsafe extern "C" {
    /// Serves one system call and gives the value for `rax`. May block; runs on the call stack with the program's
    /// signal mask; is not called for the clone family nor for numbers marked by [`set_plain`].
    fn farshore_dispatch(call: &mut Call) -> i64;
    /// Makes the managed pages among `[addr, addr+len)` present and writable; other memory is left as it is.
    pub(super) fn farshore_make_writable(addr: u64, len: u64);

    /// Where stubs and the SIGSYS handler send a caught call. Not a function: see the module head for what it expects.
    pub(super) fn farshore_entry();
}

/// An address that no processor accepts.
const NOWHERE: u64 = 1 << 63;

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
    // The way out of a quick call ends with sahf. Every processor with AVX has that, so that the others alone are asked: in a virtual
    // machine each question takes microseconds.
    let has_sahf = level & LEVEL_AVX != 0 || __cpuid(0x8000_0001).ecx & 1 != 0;
    MAY_BE_QUICK.store(has_sahf, Ordering::Relaxed);
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

/// From now on, calls with this number are offered to `function`, the same for all numbers, if the processor has what that way needs.
pub fn set_quick(nr: u64, function: Quick) {
    if MAY_BE_QUICK.load(Ordering::Relaxed) {
        QUICK.store(function as *mut (), Ordering::Release);
        mark(nr, WAY_QUICK);
    }
}

fn mark(nr: u64, way: u8) {
    if let Some(mark) = WAYS.get(nr as usize) {
        mark.store(way, Ordering::Relaxed);
    }
}

/// A system call by an instruction of this crate's own.
///
/// # Safety
/// What the call does to memory must be sound.
#[inline(always)]
pub unsafe fn raw(nr: u64, args: [u64; 6]) -> i64 {
    let result;
    // SAFETY: the kernel changes rax, rcx, r11 and what the call is defined to change, for which the caller answers.
    unsafe {
        asm!(
            "syscall", inlateout("rax") nr => result, in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5], lateout("rcx") _, lateout("r11") _, options(nostack)
        );
    }
    result
}

unsafe extern "C" {
    fn farshore_for_program(nr: u64, args: &[u64; 6]) -> i64;
}

/// A system call that is made on behalf of the program, from our own text. [`AGAIN`]: there is a signal for the program, and the
/// call was not made. If the dispatcher then returns [`AGAIN`], the program makes the call again when it has handled the signal.
///
/// # Safety
/// What the call does to memory must be sound.
#[inline]
pub unsafe fn for_program(nr: u64, args: &[u64; 6]) -> i64 {
    // SAFETY: the function makes the given call, for which the caller answers.
    unsafe { farshore_for_program(nr, args) }
}

/// Whether the frame of a call lies at the end of the thread's call stack, where it belongs.
#[inline(always)]
pub fn is_on_call_stack(call: &Call) -> bool {
    core::ptr::from_ref(call) as u64 == tls::call_stack().wrapping_sub(FRAME as u64)
}

unsafe extern "C" {
    fn farshore_go_on(frame: u64) -> !;
}

/// Begins a call again, with a copy of its frame on the calling thread's call stack, and this mask of signals.
///
/// # Safety
/// `call` is the complete frame of a call of this thread that has done nothing yet; the thread has a call stack whose upper part
/// is not in use; all signals are blocked.
pub unsafe fn go_on(call: &Call, mask: SigSet) -> ! {
    // SAFETY: this function's own condition.
    let frame = unsafe { copy_frame(call, tls::call_stack(), Call { mask: mask.0, ..*call }) };
    // SAFETY: a complete frame with its vectors.
    unsafe { farshore_go_on(frame) }
}

/// Writes `frame`, which is `call`'s but for some fields, to the end of the call stack that ends at `top`, and its vectors below
/// it. Returns its address.
///
/// # Safety
/// `call` is a complete frame; nothing at the end of that stack is in use.
unsafe fn copy_frame(call: &Call, top: u64, frame: Call) -> u64 {
    let at = top - FRAME as u64;
    let vectors = (at - VECTOR_AREA as u64) & !63;
    // SAFETY: the end of a call stack that is not in use; there is room for a frame, as in `entry`.
    unsafe { core::ptr::with_exposed_provenance_mut::<Call>(at as usize).write(Call { vectors, ..frame }) };
    let area = [call.vectors, vectors].map(|at| core::ptr::with_exposed_provenance_mut::<[u8; VECTOR_AREA]>(at as usize));
    // SAFETY: the vectors of the frame, and room for them below the copy.
    unsafe { core::ptr::copy_nonoverlapping(area[0], area[1], 1) };
    at
}

/// Called by the assembly with a complete frame.
extern "C" fn enter(call: &mut Call) -> i64 {
    if call.aux & MARK_MADE != 0 {
        return call.result;
    }
    if call.aux != 0 {
        return after_clone(call);
    }
    // The kernel looks at the low half only.
    call.nr = u64::from(call.nr as u32);
    match call.nr {
        NR_CLONE | NR_FORK | NR_VFORK | NR_CLONE3 => clone(call),
        NR_RT_SIGRETURN => edge::sigreturn(call),
        // SAFETY: the hook's contract: it is called with a complete frame, on the call stack.
        _ => unsafe { farshore_dispatch(call) },
    }
}
