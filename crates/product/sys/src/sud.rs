//! Syscall User Dispatch: the kernel raises SIGSYS for system calls made outside one address range.
//!
//! It is a setting of the *thread*: new threads and forked children begin without it. While it is on, each `syscall` instruction
//! outside the spared range reads the selector byte and is carried out ([`ALLOW`]) or raises SIGSYS ([`BLOCK`])
//! with `si_code` [`crate::signal::SYS_USER_DISPATCH`]. The kernel reads the selector for every such call, so it must
//! stay readable for as long as the setting lasts, or the thread is killed.

use crate::raw::{self, Errno, nr};
use crate::signal::{self, Action, How, SigInfo, SigSet, UContext};
use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicI32, AtomicU8, Ordering};

const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;
const OFF: u64 = 0;
const ON: u64 = 1;

/// Selector: calls are carried out.
pub const ALLOW: u8 = 0;
/// Selector: calls raise SIGSYS.
pub const BLOCK: u8 = 1;

/// Switches it on for this thread. Calls from `start..start + len` are always carried out.
///
/// # Errors
/// `EINVAL`: not in this kernel (Linux 5.11 has it), or the range wraps. `EFAULT`: the selector cannot be there.
///
/// # Safety
/// The selector stays mapped and readable until the setting is off or the thread is gone; and a SIGSYS handler is
/// installed that deals with the calls, and leaves through a restorer inside the range.
pub unsafe fn enable(start: u64, len: u64, selector: *const AtomicU8) -> Result<(), Errno> {
    // SAFETY: the caller's two promises.
    unsafe { raw::syscall_result(nr::PRCTL, [PR_SET_SYSCALL_USER_DISPATCH, ON, start, len, selector as u64, 0]) }.map(|_| ())
}

/// Switches it off for this thread.
///
/// # Errors
/// `EINVAL`: not in this kernel.
pub fn disable() -> Result<(), Errno> {
    // SAFETY: makes the thread an ordinary one again; no memory is involved.
    unsafe { raw::syscall_result(nr::PRCTL, [PR_SET_SYSCALL_USER_DISPATCH, OFF, 0, 0, 0, 0]) }.map(|_| ())
}

// A system call outside the range that the probe spares, which is the restorer alone.
global_asm!(
    ".pushsection .text.farshore_sud_probe,\"ax\",@progbits",
    ".globl farshore_sud_probe_call",
    ".hidden farshore_sud_probe_call",
    ".type farshore_sud_probe_call,@function",
    "farshore_sud_probe_call:",
    ".cfi_startproc",
    "syscall",
    "ret",
    ".cfi_endproc",
    ".popsection",
);

static SELECTOR: AtomicU8 = AtomicU8::new(ALLOW);
/// Number of the call that was caught, -1 before.
static CAUGHT: AtomicI32 = AtomicI32::new(-1);

unsafe extern "C" fn on_sigsys(_: i32, info: *mut SigInfo, _: *mut UContext) {
    // First the selector, so that nothing after this can be caught again.
    SELECTOR.store(ALLOW, Ordering::SeqCst);
    // SAFETY: the kernel passes a valid siginfo to a SA_SIGINFO handler.
    let info = unsafe { &*info };
    if info.code() == signal::SYS_USER_DISPATCH {
        CAUGHT.store(info.call_number(), Ordering::SeqCst);
    }
}

/// Tries it: catches one `getppid` of this thread. Replaces the process' SIGSYS action for a moment, so it is for start-up and `farshore doctor`.
///
/// # Errors
/// `EINVAL` when this kernel lacks it; `EOPNOTSUPP` when it is accepted but the call was not caught.
pub fn probe() -> Result<(), Errno> {
    let mask = signal::sigprocmask(How::Set, SigSet::ALL.without(signal::SIGSYS));
    let outcome = probe_masked();
    signal::sigprocmask(How::Set, mask);
    outcome
}

fn probe_masked() -> Result<(), Errno> {
    CAUGHT.store(-1, Ordering::SeqCst);
    // SAFETY: the handler only stores to atomics.
    let before = unsafe { signal::sigaction(signal::SIGSYS, Some(&Action::new(on_sigsys, 0, SigSet::ALL))) }?;
    // SAFETY: the selector is a static; the handler is installed and leaves through the restorer, which is the spared range.
    let outcome = match unsafe { enable(signal::restorer(), signal::RESTORER_LEN, &SELECTOR) } {
        Ok(()) => {
            call_caught();
            disable()
        }
        Err(errno) => Err(errno),
    };
    // SAFETY: puts back the action that was there.
    unsafe { signal::sigaction(signal::SIGSYS, Some(&before)) }?;
    outcome?;
    if CAUGHT.load(Ordering::SeqCst) == nr::GETPPID as i32 { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
}

/// Closes the selector and makes one call, which the handler opens again for.
fn call_caught() {
    SELECTOR.store(BLOCK, Ordering::SeqCst);
    // SAFETY: calls our own leaf, which does nothing but a system call without arguments; caught or not,
    // only rax, rcx and r11 change. The call pushes a return address, so `nostack` is not claimed.
    unsafe {
        asm!(
            "call farshore_sud_probe_call",
            inlateout("rax") nr::GETPPID => _,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    SELECTOR.store(ALLOW, Ordering::SeqCst);
}
