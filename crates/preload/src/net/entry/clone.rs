//! Calls that make threads and processes: what is done around the assembly of the entry, whose head explains each case.

use super::{ACTION_RETURN, ACTION_SHARED_STACK, Call, MARK_CHILD, MARK_PARENT, RED_ZONE, TOP_WORDS};
use super::{NR_CLONE, NR_CLONE3, NR_FORK, NR_VFORK, farshore_make_writable, raw};
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, Ordering};

const NR_RT_SIGPROCMASK: u64 = 14;
const NR_SCHED_YIELD: u64 = 24;
const SIG_SETMASK: u64 = 2;
/// All signals but those that a fault or a trap raises at once: SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV, SIGSYS.
const CLONE_MASK: u64 = !(1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 30);
const CLONE_VM: u64 = 0x100;
const CLONE_VFORK: u64 = 0x4000;
const SIGCHLD: u64 = 17;
const E2BIG: i64 = -7;
const EAGAIN: i64 = -11;
const EFAULT: i64 = -14;
const EINVAL: i64 = -22;

unsafe extern "C" {
    /// Before a call of the clone family. Negative: not made, the program gets this errno. Else a number of at most eight bits, which the
    /// child's hook gets.
    /// The arguments are for reading (`ptid`, `ctid`, `tls` may be managed memory that the kernel writes): changes are ignored.
    fn farshore_before_clone(flags: u64, call: &Call) -> i64;
    /// In the parent, after a call of the clone family, with what the kernel gave (a pid, or a negative errno).
    fn farshore_parent_after_clone(flags: u64, result: i64);
    /// In the child, before it runs any code of the program, with what the first hook gave for it.
    fn farshore_child_started(flags: u64, given: u64);
    /// Copies from memory of the program that may be unmapped. False: it is.
    fn farshore_read_program(to: *mut u8, from: u64, len: u64) -> bool;
    fn farshore_clone_new_stack(call: &Call, request: &[u64; 3]) -> i64;
}

/// Bytes of `struct clone_args` that are understood; the kernel of 2024 knows 88.
const CLONE_ARGS_MAX: u64 = 256;
const CLONE_ARGS_MIN: u64 = 64;
/// Places in `struct clone_args`, in words.
const CLONE_ARGS_STACK: usize = 5;
const CLONE_ARGS_STACK_SIZE: usize = 6;
/// Words written to a new stack for the child: rdi, rsi, and the top of a frame.
pub(super) const CHILD_WORDS: usize = 2 + TOP_WORDS;
const CHILD_BYTES: u64 = (CHILD_WORDS * 8 + RED_ZONE) as u64;

/// What a call of the clone family needs outside of any stack. In use from before the call until the parent is back.
#[repr(C)]
pub(super) struct Slot {
    pub(super) busy: AtomicU32,
    pub(super) rbx: u64,
    pub(super) rdi: u64,
    pub(super) resume: u64,
    pub(super) site: u64,
    pub(super) flags: u64,
    pub(super) mask: u64,
    pub(super) child: u64,
    pub(super) parent: u64,
    clone_args: [u64; CLONE_ARGS_MAX as usize / 8],
}

const SLOT_COUNT: usize = 64;
/// How often to let others run while all slots are taken, before the program gets `EAGAIN`.
const SLOT_PATIENCE: u32 = 100_000;

struct Slots([UnsafeCell<Slot>; SLOT_COUNT]);

// SAFETY: a slot is read and written only by the thread that moved `busy` from 0 to 1, and by its vfork child while that
// thread is suspended.
unsafe impl Sync for Slots {}

impl Slot {
    const fn empty() -> Slot {
        Slot {
            busy: AtomicU32::new(0),
            rbx: 0,
            rdi: 0,
            resume: 0,
            site: 0,
            flags: 0,
            mask: 0,
            child: 0,
            parent: 0,
            clone_args: [0; CLONE_ARGS_MAX as usize / 8],
        }
    }
}

static SLOTS: Slots = Slots([const { UnsafeCell::new(Slot::empty()) }; SLOT_COUNT]);

impl Slots {
    fn busy(&self, index: usize) -> &AtomicU32 {
        let slot = self.0[index].get();
        // SAFETY: only the atomic field is borrowed, which all threads may touch at any time.
        unsafe { &(*slot).busy }
    }

    /// A free slot, now the caller's.
    fn take(&self) -> Option<*mut Slot> {
        for _ in 0..SLOT_PATIENCE {
            for index in 0..SLOT_COUNT {
                if self.busy(index).compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return Some(self.0[index].get());
                }
            }
            // SAFETY: sched_yield touches no memory.
            unsafe { raw(NR_SCHED_YIELD, [0; 6]) };
        }
        None
    }

    /// # Safety
    /// `slot` came from `take` and is not used after.
    unsafe fn give_back(slot: *mut Slot) {
        // SAFETY: a slot of the static array.
        unsafe { (*slot).busy.store(0, Ordering::Release) };
    }

    /// In a child with a copy of the memory, where the threads that held slots do not exist.
    fn clear(&self) {
        for index in 0..SLOT_COUNT {
            self.busy(index).store(0, Ordering::Relaxed);
        }
    }
}

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
    /// What the first hook gives for the child, where its `aux` has it.
    given: u64,
}

/// Where the child's `aux` has what the first hook has given for it: flags have fewer bits.
const GIVEN_SHIFT: u32 = 48;
const GIVEN: u64 = 0xff << GIVEN_SHIFT;

/// Reads the call's arguments; `clone3`'s structure into the slot.
fn read_request(call: &Call, slot: &mut Slot) -> Result<Request, i64> {
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
            slot.clone_args.fill(0);
            // SAFETY: the structure is as large as the largest `size` that comes here.
            if !unsafe { farshore_read_program(slot.clone_args.as_mut_ptr().cast(), call.args[0], size) } {
                return Err(EFAULT);
            }
            // Flags that no kernel has, in the place of our marks.
            if slot.clone_args[0] & (MARK_CHILD | MARK_PARENT) != 0 {
                return Err(EINVAL);
            }
            // What the kernel writes (pidfd, child_tid, parent_tid) and reads (set_tid). For `clone` the first hook sees to it.
            let [_, pidfd, child, parent, ..] = slot.clone_args;
            for (address, length) in [(pidfd, 4), (child, 4), (parent, 4), (slot.clone_args[8], slot.clone_args[9].min(32) * 4)] {
                make_writable(address, length);
            }
            let (stack, length) = (slot.clone_args[CLONE_ARGS_STACK], slot.clone_args[CLONE_ARGS_STACK_SIZE]);
            // The kernel refuses one without the other; so do we, before the stack is changed.
            if (stack == 0) != (length == 0) {
                return Err(EINVAL);
            }
            (slot.clone_args[0], stack.wrapping_add(length))
        }
    };
    let stack = match (top, flags & CLONE_VM != 0, flags & CLONE_VFORK != 0) {
        (0, false, _) => Stack::Copied,
        (0, true, true) => Stack::Parents,
        (0, true, false) => return Err(EINVAL),
        (top, ..) => Stack::New(top),
    };
    if top != 0 {
        // Now, because later the hooks may hold locks.
        make_writable(top.wrapping_sub(CHILD_BYTES), CHILD_BYTES);
    }
    Ok(Request { flags, stack, given: 0 })
}

pub(super) fn clone(call: &mut Call) -> i64 {
    call.mask = swap_mask(CLONE_MASK);
    let result = clone_quietly(call);
    if call.action == ACTION_RETURN {
        swap_mask(call.mask);
    }
    result
}

/// Sets this thread's signal mask and gives the one before.
///
/// Both words lie on the program's stack, which may be managed memory: it can be taken away between our touch and the
/// kernel's access. So the mask is read first and then set, and each call is made again until it has reached its word:
/// in one call for both the kernel would have set the mask before it fails to tell the one before.
fn swap_mask(mask: u64) -> u64 {
    let mut old = [0u64];
    repeat_mask_call(0, old.as_mut_ptr());
    let mut new = [mask];
    repeat_mask_call(new.as_mut_ptr() as u64, core::ptr::null_mut());
    old[0]
}

/// `rt_sigprocmask` with one of its two pointers, until it does not fail.
fn repeat_mask_call(new: u64, old: *mut u64) {
    // SAFETY: reads or writes the caller's word.
    while unsafe { raw(NR_RT_SIGPROCMASK, [SIG_SETMASK, new, old as u64, 8, 0, 0]) } == EFAULT {
        make_writable(new | old as u64, 8);
    }
}

fn make_writable(address: u64, length: u64) {
    // SAFETY: hook; harmless for memory that is not managed or not there.
    unsafe { farshore_make_writable(address, length) };
}

fn clone_quietly(call: &mut Call) -> i64 {
    let Some(slot) = SLOTS.take() else { return EAGAIN };
    // SAFETY: taken above, so it is this thread's alone; the borrow ends before anybody else gets to see it.
    let request = read_request(call, unsafe { &mut *slot }).and_then(|request| {
        // SAFETY: hook, called as its contract says.
        let refused = unsafe { farshore_before_clone(request.flags, call) };
        if refused < 0 { Err(refused) } else { Ok(Request { given: (refused as u64) << GIVEN_SHIFT & GIVEN, ..request }) }
    });
    match request {
        Err(error) => {
            // SAFETY: taken above, not used after.
            unsafe { Slots::give_back(slot) };
            error
        }
        Ok(Request { flags, stack: Stack::Copied, given }) => clone_copied(call, slot, flags, given),
        Ok(Request { flags, stack: Stack::New(top), given }) => clone_new_stack(call, slot, (flags, given), top),
        Ok(Request { flags, stack: Stack::Parents, given }) => clone_parents_stack(call, slot, flags, given),
    }
}

/// The arguments for the kernel: `clone3`'s structure is the slot's copy.
fn kernel_args(call: &Call, slot: *mut Slot) -> [u64; 6] {
    let mut args = [call.rdi, call.rsi, call.rdx, call.r10, call.r8, call.r9];
    if call.nr == NR_CLONE3 {
        args[0] = slot as u64 + offset_of!(Slot, clone_args) as u64;
    }
    args
}

fn clone_copied(call: &Call, slot: *mut Slot, flags: u64, given: u64) -> i64 {
    let args = kernel_args(call, slot);
    // SAFETY: the child gets a copy of all memory, this frame included, and goes on in it.
    let result = unsafe { raw(call.nr, args) };
    if result == 0 {
        SLOTS.clear();
        // SAFETY: hook, called as its contract says.
        unsafe { farshore_child_started(flags, given >> GIVEN_SHIFT) };
        return 0;
    }
    // SAFETY: taken by `clone`, not used after.
    unsafe { Slots::give_back(slot) };
    // SAFETY: hook, called as its contract says.
    unsafe { farshore_parent_after_clone(flags, result) };
    result
}

fn clone_new_stack(call: &Call, slot: *mut Slot, (flags, given): (u64, u64), top: u64) -> i64 {
    let start = top.wrapping_sub(CHILD_BYTES);
    let words = [call.rdi, call.rsi, call.mask, MARK_CHILD | given | flags, call.resume, call.return_address, call.flags];
    // SAFETY: the program gave this memory to the child, for a stack; nothing of the child's is under its red zone yet.
    unsafe { (start as *mut [u64; CHILD_WORDS]).write_unaligned(words) };
    let mut args = kernel_args(call, slot);
    if call.nr == NR_CLONE3 {
        // SAFETY: the slot is this thread's. The kernel uses the sum of stack and size, and the size for a shadow stack.
        let clone_args = unsafe { &mut (*slot).clone_args };
        let length = &mut clone_args[CLONE_ARGS_STACK_SIZE];
        if *length > CHILD_BYTES {
            *length -= CHILD_BYTES;
        } else {
            clone_args[CLONE_ARGS_STACK] = start - 16;
            clone_args[CLONE_ARGS_STACK_SIZE] = 16;
        }
    } else {
        args[1] = start;
    }
    // SAFETY: the child's first words are in place, and `start` is where the kernel will set its rsp.
    let result = unsafe { farshore_clone_new_stack(call, &[call.nr, args[0], args[1]]) };
    // SAFETY: taken by `clone`, not used after: the kernel has read the structure.
    unsafe { Slots::give_back(slot) };
    // SAFETY: hook, called as its contract says.
    unsafe { farshore_parent_after_clone(flags, result) };
    result
}

/// Fills the slot and leaves the rest to the assembly, since no frame survives the child.
fn clone_parents_stack(call: &mut Call, slot: *mut Slot, flags: u64, given: u64) -> i64 {
    // SAFETY: the slot is this thread's.
    let kept = unsafe { &mut *slot };
    (kept.rbx, kept.rdi) = (call.rbx, call.rdi);
    (kept.resume, kept.site, kept.flags) = (call.resume, call.return_address, call.flags);
    kept.mask = call.mask;
    (kept.child, kept.parent) = (MARK_CHILD | given | flags, MARK_PARENT | flags);
    call.args = kernel_args(call, slot);
    call.slot = slot as u64;
    call.action = ACTION_SHARED_STACK;
    0
}

/// A frame that was built behind the call: a child's first, or a parent's after vfork.
pub(super) fn after_clone(call: &Call) -> i64 {
    let flags = call.aux & !(MARK_CHILD | MARK_PARENT | GIVEN);
    let result = if call.aux & MARK_CHILD == 0 {
        // SAFETY: hook, called as its contract says.
        unsafe { farshore_parent_after_clone(flags, call.nr as i64) };
        call.nr as i64
    } else {
        if flags & CLONE_VM == 0 {
            SLOTS.clear();
        }
        // SAFETY: hook, called as its contract says.
        unsafe { farshore_child_started(flags, (call.aux & GIVEN) >> GIVEN_SHIFT) };
        0
    };
    swap_mask(call.mask);
    result
}
