//! The program's alternate signal stack, which the kernel never gets to know.
//!
//! The kernel's is the record's of each thread (`crate::thread`), always: there is room on it for a fault to be served, whatever the
//! program gave and whether it is there. What the program has set is noted here, with the kernel's rules, and
//! [`super::frame`] starts handlers on it.
//!
//! A system call takes some 5 to 10 KiB of the caller's stack by our way (`net/entry.rs`), where it takes a few hundred bytes natively.
//! Many programs have an alternate stack of 8 KiB, and what lies below it would be overwritten. So the handlers of a small one run
//! on a stack of ours that stands in for it; all that the program is told about its stack is as if they ran there.

use crate::thread::{self, Thread};
use farshore_sys::raw::Errno;
use farshore_sys::signal::AltStack;

/// Flag: the stack is switched off while a handler runs on it, so that the handler may switch to other stacks.
const AUTODISARM: i32 = i32::MIN;
/// Smallest stack that the kernel accepts.
const SMALLEST: u64 = 2048;
/// A smaller one gets a stand-in.
const ENOUGH: u64 = 64 << 10;

/// Whether the program's stack is there and armed.
fn is_set(thread: &Thread) -> bool {
    thread.program_stack.size != 0 && thread.program_stack.flags & AUTODISARM == 0
}

/// Where handlers run: the program's own stack, or what stands in for it. A handler that may switch to other stacks, and
/// back, wants its own.
fn real(thread: &Thread) -> AltStack {
    let stack = thread.program_stack;
    if stack.size < ENOUGH && is_set(thread) { thread::stand_in(thread) } else { stack }
}

fn within(stack: AltStack, addr: u64) -> bool {
    addr > stack.base && addr - stack.base <= stack.size
}

/// Whether `sp` lies on our own alternate stack.
pub(super) fn is_ours(thread: &Thread, sp: u64) -> bool {
    within(thread::own_stack(thread), sp)
}

/// Whether `sp` lies on the program's alternate stack, as the kernel sees it.
pub(super) fn is_on(thread: &Thread, sp: u64) -> bool {
    is_set(thread) && (within(thread.program_stack, sp) || within(real(thread), sp))
}

/// Where a handler with `SA_ONSTACK` starts that interrupts code at `sp`; `None`: where that code was.
pub(super) fn top_for_handler(thread: &Thread, sp: u64) -> Option<u64> {
    let stack = real(thread);
    (stack.size != 0 && !is_on(thread, sp)).then(|| stack.base.wrapping_add(stack.size))
}

/// Whether `addr` lies within the stack that a handler is on or starts on.
pub(super) fn contains(thread: &Thread, addr: u64) -> bool {
    within(real(thread), addr) || within(thread.program_stack, addr)
}

/// Switches a stack off that wants it, as a handler starts.
pub(super) fn disarm(thread: &mut Thread) {
    if thread.program_stack.flags & AUTODISARM != 0 {
        thread.program_stack = AltStack::NONE;
    }
}

/// What `sigaltstack` tells code that runs at `sp`.
pub(super) fn tell(thread: &Thread, sp: u64) -> AltStack {
    let stack = thread.program_stack;
    let state = match stack.size {
        0 => AltStack::DISABLE,
        _ if is_on(thread, sp) => AltStack::ON_STACK,
        _ => 0,
    };
    AltStack { flags: state | stack.flags & AUTODISARM, ..stack }
}

/// Sets another stack, for code that runs at `sp`.
///
/// # Errors
/// `EPERM` on the stack itself, `EINVAL` for odd flags, `ENOMEM` when it is too small.
pub(super) fn set(thread: &mut Thread, new: AltStack, sp: u64) -> Result<(), Errno> {
    if is_on(thread, sp) {
        return Err(Errno::EPERM);
    }
    match new.flags & !AUTODISARM {
        AltStack::DISABLE => thread.program_stack = AltStack { base: 0, size: 0, flags: new.flags },
        0 | AltStack::ON_STACK if new.size < SMALLEST => return Err(Errno::ENOMEM),
        0 | AltStack::ON_STACK => thread.program_stack = new,
        _ => return Err(Errno::EINVAL),
    }
    Ok(())
}
