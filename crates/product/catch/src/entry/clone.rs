//! Calls that make threads and processes: what is done around the assembly of the entry, whose head explains each case.

use super::{AGAIN, Call, MARK_CHILD, MARK_MADE, copy_frame};
use super::{NR_CLONE, NR_CLONE3, NR_FORK, NR_VFORK, farshore_make_writable, raw};
use core::mem::size_of;
use farshore_sys::signal::{self, How, SigSet};
use farshore_sys::tls;

/// All signals but those that a fault or a trap raises at once: SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV, SIGSYS.
const CLONE_MASK: SigSet = SigSet(!(1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 30));
const CLONE_VM: u64 = 0x100;
const CLONE_SIGHAND: u64 = 0x800;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_CLEAR_SIGHAND: u64 = 1 << 32;
const SIGCHLD: u64 = 17;
const E2BIG: i64 = -7;
const EAGAIN: i64 = -11;
const EFAULT: i64 = -14;
const EINVAL: i64 = -22;

unsafe extern "C" {
    /// Called before everything else, with the mask of [`CLONE_MASK`] instead of the program's `mask`. Negative: the call is not
    /// made, and the program gets this errno. The hook may not come back, and have the call begin again instead.
    fn farshore_before_first_clone(call: &mut Call, mask: SigSet) -> i64;
    /// Called before a call of the clone family. Negative: the call is not made, and the program gets this errno. Otherwise the
    /// hook returns a number of at most [`GIVEN_BITS`] bits, which the child's hook gets. The arguments are for reading (`ptid`,
    /// `ctid`, `tls` may be managed memory that the kernel writes): changes are ignored.
    fn farshore_before_clone(flags: u64, call: &Call) -> i64;
    /// Called in the parent, after a call of the clone family, with the kernel's answer (a pid, or a negative errno).
    fn farshore_parent_after_clone(flags: u64, result: i64);
    /// Called in the child, before it runs any code of the program, with the number that the first hook has returned, and with
    /// the call stack that the child has begun on (0: on a copy of its parent's). If the child shares its parent's memory, that
    /// stack becomes the thread's here.
    fn farshore_child_started(flags: u64, given: u64, stack: u64);
    /// The top of a call stack that no thread has; 0: there is no memory.
    fn farshore_take_stack() -> u64;
    /// Gives back a call stack that no thread runs on.
    fn farshore_give_stack(top: u64);
    /// Copies from memory of the program that may be unmapped. False: it is unmapped.
    fn farshore_read_program(to: *mut u8, from: u64, len: u64) -> bool;
    fn farshore_clone_onto(child: u64, request: &[u64; 7]) -> i64;
}

/// Bytes of `struct clone_args` that are understood; the kernel of 2024 knows 88.
const CLONE_ARGS_MAX: u64 = 256;
const CLONE_ARGS_MIN: u64 = 64;
/// `struct clone_args`, in words.
type CloneArgs = [u64; CLONE_ARGS_MAX as usize / 8];
/// Indices of words in it.
const CLONE_ARGS_STACK: usize = 5;
const CLONE_ARGS_STACK_SIZE: usize = 6;

/// How the child of a call gets its stack.
enum Stack {
    Copied,
    /// New; the child's first `rsp`.
    New(u64),
    Parents,
}

/// What a call of the clone family asks for.
struct Request {
    flags: u64,
    stack: Stack,
}

/// The place in the child's `aux` of what the first hook has given for it: flags have fewer bits.
const GIVEN_SHIFT: u32 = 48;
/// How many bits that has: those below our marks.
pub const GIVEN_BITS: u32 = 14;
const GIVEN: u64 = ((1 << GIVEN_BITS) - 1) << GIVEN_SHIFT;
const _: () = assert!(GIVEN & (MARK_CHILD | MARK_MADE) == 0);

/// Reads the call's arguments, and `clone3`'s structure into `copy`.
fn read_request(call: &Call, copy: &mut CloneArgs) -> Result<Request, i64> {
    let (flags, top) = match call.nr {
        NR_FORK => (SIGCHLD, 0),
        NR_VFORK => (CLONE_VM | CLONE_VFORK | SIGCHLD, 0),
        NR_CLONE => (call.args[0] & 0xffff_ffff, call.args[1]),
        _ => {
            let size = call.args[1];
            if size < CLONE_ARGS_MIN {
                return Err(EINVAL);
            }
            if size > CLONE_ARGS_MAX {
                return Err(E2BIG);
            }
            copy.fill(0);
            // SAFETY: the structure is as large as the largest `size` that comes here.
            if !unsafe { farshore_read_program(copy.as_mut_ptr().cast(), call.args[0], size) } {
                return Err(EFAULT);
            }
            // Flags that no kernel has, in the place of our marks.
            if copy[0] & (MARK_CHILD | MARK_MADE) != 0 {
                return Err(EINVAL);
            }
            // Memory that the kernel writes (pidfd, child_tid, parent_tid) and reads (set_tid). For `clone` the first hook takes
            // care of it.
            let [_, pidfd, child, parent, ..] = *copy;
            for (address, length) in [(pidfd, 4), (child, 4), (parent, 4), (copy[8], copy[9].min(32) * 4)] {
                make_writable(address, length);
            }
            let (stack, length) = (copy[CLONE_ARGS_STACK], copy[CLONE_ARGS_STACK_SIZE]);
            // The kernel refuses one without the other; Farshore must too, before it changes the stack.
            if (stack == 0) != (length == 0) {
                return Err(EINVAL);
            }
            let flags = copy[0];
            if flags & CLONE_SIGHAND == 0 {
                // The flag would take our handlers away too: the child's hook clears the program's.
                copy[0] = flags & !CLONE_CLEAR_SIGHAND;
            }
            (flags, stack.wrapping_add(length))
        }
    };
    let stack = match (top, flags & CLONE_VM != 0, flags & CLONE_VFORK != 0) {
        (0, false, _) => Stack::Copied,
        (0, true, true) => Stack::Parents,
        (0, true, false) => return Err(EINVAL),
        (top, ..) => Stack::New(top),
    };
    Ok(Request { flags, stack })
}

pub(super) fn clone(call: &mut Call) -> i64 {
    // From here on no other thread can stop this one.
    let before = signal::sigprocmask(How::Set, CLONE_MASK);
    // SAFETY: hook, called as its contract says.
    let ready = unsafe { farshore_before_first_clone(call, before) };
    call.mask = before.0;
    let result = if ready < 0 { ready } else { clone_quietly(call) };
    super::asleep::leave(call);
    // With a signal deferred, all signals stay blocked until it is handled.
    if tls::deferred() == 0 {
        signal::sigprocmask(How::Set, before);
    }
    result
}

fn make_writable(address: u64, length: u64) {
    // SAFETY: hook; harmless for memory that is not managed or not mapped.
    unsafe { farshore_make_writable(address, length) };
}

fn clone_quietly(call: &mut Call) -> i64 {
    let mut copy: CloneArgs = [0; CLONE_ARGS_MAX as usize / 8];
    let Request { flags, stack } = match read_request(call, &mut copy) {
        Ok(request) => request,
        Err(error) => return error,
    };
    // This comes before the first hook: for a fork, that hook holds the lists that the stack comes from until the third.
    let Some(top) = own_stack_for(&stack) else { return EAGAIN };
    // SAFETY: hook, called as its contract says.
    let given = unsafe { farshore_before_clone(flags, call) };
    if given < 0 {
        give_back(top);
        return given;
    }
    let given = (given as u64) << GIVEN_SHIFT & GIVEN;
    let before = signal::sigprocmask(How::Set, SigSet::ALL);
    let result = match stack {
        // Natively the signal's handler has run before the call.
        _ if tls::deferred() != 0 => AGAIN,
        Stack::Copied => {
            // SAFETY: the child gets a copy of all memory, with this frame in it, and goes on there.
            unsafe { raw(call.nr, kernel_args(call, &mut copy)) }
        }
        Stack::New(new) => clone_onto(call, &mut copy, flags | given, top, Some(new)),
        Stack::Parents => clone_onto(call, &mut copy, flags | given, top, None),
    };
    signal::sigprocmask(How::Set, before);
    if result == 0 && matches!(stack, Stack::Copied) {
        // SAFETY: hook, called as its contract says.
        unsafe { farshore_child_started(flags, given >> GIVEN_SHIFT, 0) };
        return 0;
    }
    // SAFETY: hook, called as its contract says.
    unsafe { farshore_parent_after_clone(flags, result) };
    let (memory, waited) = (flags & CLONE_VM != 0, flags & CLONE_VFORK != 0);
    if !memory || waited || result < 0 {
        // The child has left the stack, or has a copy of it, or there is no child.
        give_back(top);
    }
    result
}

/// A call stack for a child that begins on one; 0: the child begins on a copy of its parent's. None: there is no memory.
fn own_stack_for(stack: &Stack) -> Option<u64> {
    if matches!(stack, Stack::Copied) {
        return Some(0);
    }
    let before = signal::sigprocmask(How::Set, SigSet::ALL);
    // SAFETY: hook, called as its contract says.
    let top = unsafe { farshore_take_stack() };
    signal::sigprocmask(How::Set, before);
    (top != 0).then_some(top)
}

/// Gives back a child's call stack that no thread runs on; 0: there was none.
fn give_back(top: u64) {
    if top == 0 {
        return;
    }
    let before = signal::sigprocmask(How::Set, SigSet::ALL);
    // SAFETY: hook, called as its contract says: `farshore_take_stack` gave this stack.
    unsafe { farshore_give_stack(top) };
    signal::sigprocmask(How::Set, before);
}

/// The arguments for the kernel: `clone3`'s structure is our copy.
fn kernel_args(call: &Call, copy: &mut CloneArgs) -> [u64; 6] {
    let mut args = [call.rdi, call.rsi, call.rdx, call.r10, call.r8, call.r9];
    if call.nr == NR_CLONE3 {
        args[0] = copy.as_mut_ptr() as u64;
    }
    args
}

/// Makes a child on the call stack that ends at `top`. It will be in the program with the stack pointer `new`, or with its
/// parent's.
fn clone_onto(call: &Call, copy: &mut CloneArgs, flags: u64, top: u64, new: Option<u64>) -> i64 {
    // SAFETY: this call's frame; a call stack that no thread has.
    let child = unsafe { copy_frame(call, top, Call { sp: new.unwrap_or(call.sp), aux: MARK_CHILD | flags, ..*call }) };
    let [mut a0, mut a1, a2, a3, a4, a5] = kernel_args(call, copy);
    if call.nr == NR_CLONE3 {
        a0 = copy.as_mut_ptr() as u64;
        if new.is_some() {
            // The kernel uses the sum of both, and the size for a shadow stack.
            copy[CLONE_ARGS_STACK] = child.wrapping_sub(copy[CLONE_ARGS_STACK_SIZE]);
        }
    } else if new.is_some() {
        a1 = child;
    }
    let (own, record) = (tls::call_stack(), tls::get());
    // SAFETY: the child's frame is complete, and all signals are blocked until the child has its own storage.
    let result = unsafe { farshore_clone_onto(child, &[call.nr, a0, a1, a2, a3, a4, a5]) };
    if flags & CLONE_VM != 0 && flags & CLONE_VFORK != 0 {
        // The child has put its own call stack there, in the storage that the two share. The child is gone from this memory.
        tls::set_call_stack(own);
        tls::set_deferred(0);
        // SAFETY: this is the record that the thread had before.
        unsafe { tls::set(record) };
    }
    result
}

/// A child's first frame.
pub(super) fn after_clone(call: &Call) -> i64 {
    signal::sigprocmask(How::Set, CLONE_MASK);
    let flags = call.aux & !(MARK_CHILD | GIVEN);
    let top = core::ptr::from_ref(call) as u64 + size_of::<Call>() as u64;
    // SAFETY: hook, called as its contract says.
    unsafe { farshore_child_started(flags, (call.aux & GIVEN) >> GIVEN_SHIFT, top) };
    signal::sigprocmask(How::Set, SigSet(call.mask));
    0
}
