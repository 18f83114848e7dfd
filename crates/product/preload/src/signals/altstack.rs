//! The program's alternate signal stack, which the kernel never gets to know.
//!
//! The kernel's is the record's of each thread (`crate::ground::thread`), always: there is room on it for a fault to be served, whatever the
//! program gave and whether it is there. What the program has set is noted here, with the kernel's rules, and
//! [`super::frame`] starts handlers on it, whatever its size: nothing of ours takes any of it.

use crate::ground::thread::{self, Thread};
use farshore_sys::raw::Errno;
use farshore_sys::signal::AltStack;

/// Flag: the stack is switched off while a handler runs on it, so that the handler may switch to other stacks.
const AUTODISARM: i32 = i32::MIN;
/// Smallest stack that the kernel accepts.
const SMALLEST: u64 = 2048;

fn within(stack: AltStack, addr: u64) -> bool {
    addr > stack.base && addr - stack.base <= stack.size
}

/// Whether `sp` lies on our own alternate stack.
pub(super) fn is_ours(thread: &Thread, sp: u64) -> bool {
    within(thread::own_stack(thread), sp)
}

/// Whether `sp` lies on the program's alternate stack, as the kernel sees it.
pub(super) fn is_on(thread: &Thread, sp: u64) -> bool {
    let stack = thread.program_stack.get();
    stack.size != 0 && stack.flags & AUTODISARM == 0 && within(stack, sp)
}

/// Where a handler with `SA_ONSTACK` starts that interrupts code at `sp`; `None`: where that code was.
pub(super) fn top_for_handler(thread: &Thread, sp: u64) -> Option<u64> {
    let stack = thread.program_stack.get();
    (stack.size != 0 && !is_on(thread, sp)).then(|| stack.base.wrapping_add(stack.size))
}

/// Whether `addr` lies within the stack that a handler is on or starts on.
pub(super) fn contains(thread: &Thread, addr: u64) -> bool {
    within(thread.program_stack.get(), addr)
}

/// Switches a stack off that wants it, as a handler starts.
pub(super) fn disarm(thread: &Thread) {
    if thread.program_stack.get().flags & AUTODISARM != 0 {
        thread.program_stack.set(AltStack::NONE);
    }
}

/// What `sigaltstack` tells code that runs at `sp`.
pub(super) fn tell(thread: &Thread, sp: u64) -> AltStack {
    let stack = thread.program_stack.get();
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
pub(super) fn set(thread: &Thread, new: AltStack, sp: u64) -> Result<(), Errno> {
    if is_on(thread, sp) {
        return Err(Errno::EPERM);
    }
    match new.flags & !AUTODISARM {
        AltStack::DISABLE => thread.program_stack.set(AltStack { base: 0, size: 0, flags: new.flags }),
        0 | AltStack::ON_STACK if new.size < SMALLEST => return Err(Errno::ENOMEM),
        0 | AltStack::ON_STACK => thread.program_stack.set(new),
        _ => return Err(Errno::EINVAL),
    }
    Ok(())
}
