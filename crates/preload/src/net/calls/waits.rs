//! Calls that wait: futexes, and waiting with a signal mask.

use super::super::buffers::{Access, Args, Memory, PinSet, address, clip, pin_all, pin_dir, pin_local, read_user, run_with};
use super::super::table::{Dir, Extent, Ptr};
use super::NEEDED_SIGNALS;

const OP_MASK: i32 = 0x7f;
const PRIVATE: i32 = 0x80;
const WAIT: i32 = 0;
const WAKE: i32 = 1;
const REQUEUE: i32 = 3;
const CMP_REQUEUE: i32 = 4;
const WAKE_OP: i32 = 5;
const LOCK_PI: i32 = 6;
const WAIT_BITSET: i32 = 9;
const WAKE_BITSET: i32 = 10;
const WAIT_REQUEUE_PI: i32 = 11;
const CMP_REQUEUE_PI: i32 = 12;
const LOCK_PI2: i32 = 13;

/// Bytes of `struct timespec`.
const TIMESPEC: u64 = 16;

/// `futex`: by operation.
///
/// A private waker only needs the word's address, so its page may stay where it is. A shared one needs the page to find
/// the word's key, and writable: the kernel takes no key from anonymous memory that it cannot write.
pub(super) fn futex(mem: &impl Memory, args: &Args) -> i64 {
    let nr = libc::SYS_futex as u64;
    let operation = args[1] as i32;
    let private = operation & PRIVATE != 0;
    let command = operation & OP_MASK;
    if private && matches!(command, WAKE | WAKE_BITSET) {
        return mem.raw(nr, args);
    }
    let mut pins = PinSet::new();
    let access = if private && matches!(command, WAIT | WAIT_BITSET) { Access::Read } else { Access::Write };
    pin_all(mem, &mut pins, args[0], 4, access);
    if matches!(command, WAIT | LOCK_PI | WAIT_BITSET | WAIT_REQUEUE_PI | LOCK_PI2) {
        pin_all(mem, &mut pins, args[3], TIMESPEC, Access::Read);
    }
    if matches!(command, REQUEUE | CMP_REQUEUE | WAKE_OP | WAIT_REQUEUE_PI | CMP_REQUEUE_PI) {
        pin_all(mem, &mut pins, args[4], 4, Access::Write);
    }
    let result = mem.raw(nr, args);
    mem.unpin(&mut pins);
    result
}

/// `struct futex_waitv`: value, address, flags.
const WAITER: u64 = 24;
/// Waiters that the kernel accepts.
const WAITERS_MAX: u64 = 128;

/// `futex_waitv`, `futex_requeue`: an array of waiters.
///
/// More than some sixty words on pages that are not neighbours find no room in a [`PinSet`]. The ones without room are
/// made present all the same, so the call fails with `EFAULT` only if one of them is evicted just then.
pub(super) fn futex_array(mem: &impl Memory, nr: u64, args: &Args) -> i64 {
    let mut pins = PinSet::new();
    let vector = nr == libc::SYS_futex_waitv as u64;
    let count = if vector { u64::from(args[1] as u32).min(WAITERS_MAX) } else { 2 };
    pin_all(mem, &mut pins, args[0], count * WAITER, Access::Read);
    if vector {
        pin_all(mem, &mut pins, args[3], TIMESPEC, Access::Read);
    }
    for index in 0..count {
        let Some(waiter) = read_user::<[u64; 3]>(mem, &mut pins, args[0].wrapping_add(index * WAITER)) else { break };
        if !pin_all(mem, &mut pins, waiter[1], 4, Access::Write) {
            let _ = read_user::<u32>(mem, &mut pins, waiter[1]);
        }
    }
    let result = mem.raw(nr, args);
    mem.unpin(&mut pins);
    result
}

/// A signal mask of ours in place of the program's.
struct Mask {
    word: u64,
}

impl Mask {
    /// The address of a mask that blocks what the one at `addr` blocks, but for [`NEEDED_SIGNALS`]. `addr` itself if
    /// there is no mask, or the kernel will refuse it.
    fn filter(&mut self, mem: &impl Memory, pins: &mut PinSet, addr: u64, size: u64) -> u64 {
        if addr == 0 || size != 8 {
            return addr;
        }
        pin_local(mem, pins, &mut self.word);
        match read_user::<u64>(mem, pins, addr) {
            Some(mask) => {
                self.word = mask & !NEEDED_SIGNALS;
                address(&mut self.word)
            }
            None => addr,
        }
    }
}

/// Bytes of `struct epoll_event`.
const EVENT: u64 = 12;

/// `epoll_wait`, `epoll_pwait`, `epoll_pwait2`.
pub(super) fn epoll_wait(mem: &impl Memory, nr: u64, args: &Args) -> i64 {
    let mut pins = PinSet::new();
    let mut mask = Mask { word: 0 };
    let mut args = *args;
    if nr != libc::SYS_epoll_wait as u64 {
        args[4] = mask.filter(mem, &mut pins, args[4], args[5]);
    }
    if nr == libc::SYS_epoll_pwait2 as u64 {
        pin_all(mem, &mut pins, args[3], TIMESPEC, Access::Read);
    }
    let want = clip(args[1], u64::from(i32::max(args[2] as i32, 0).unsigned_abs()) * EVENT);
    if want > 0 {
        let safe = mem.pin(&mut pins, args[1], want, Access::Write);
        // The kernel keeps events that find no room for the next call.
        if (EVENT..want).contains(&safe) {
            args[2] = safe / EVENT;
        }
    }
    let result = mem.raw(nr, &args);
    mem.unpin(&mut pins);
    result
}

/// `ppoll`.
pub(super) fn ppoll(mem: &impl Memory, nr: u64, args: &Args) -> i64 {
    const RULES: [Ptr; 2] = [
        Ptr { arg: 0, dir: Dir::Both, extent: Extent::Counted { by: 1, unit: 8, plus: 0, cap: u64::MAX, int: true } },
        Ptr { arg: 2, dir: Dir::Both, extent: Extent::Bytes(TIMESPEC as u32) },
    ];
    let mut pins = PinSet::new();
    let mut mask = Mask { word: 0 };
    let mut args = *args;
    args[3] = mask.filter(mem, &mut pins, args[3], args[4]);
    run_with(mem, &mut pins, nr, &args, &RULES)
}

/// `pselect6`: the mask and its size are behind the last argument.
pub(super) fn pselect(mem: &impl Memory, nr: u64, args: &Args) -> i64 {
    const fn set(arg: u8) -> Ptr {
        Ptr { arg, dir: Dir::Both, extent: Extent::Bits { by: 0 } }
    }
    const RULES: [Ptr; 4] = [set(1), set(2), set(3), Ptr { arg: 4, dir: Dir::Both, extent: Extent::Bytes(TIMESPEC as u32) }];
    let mut pins = PinSet::new();
    let mut mask = Mask { word: 0 };
    let mut pair = [0u64; 2];
    let mut args = *args;
    if args[5] != 0 {
        pin_local(mem, &mut pins, &mut pair);
        pin_dir(mem, &mut pins, args[5], 16, Dir::In);
        if let Some([addr, size]) = read_user::<[u64; 2]>(mem, &mut pins, args[5]) {
            pair = [mask.filter(mem, &mut pins, addr, size), size];
            args[5] = address(&mut pair);
        }
    }
    run_with(mem, &mut pins, nr, &args, &RULES)
}

/// `rt_sigsuspend`.
pub(super) fn suspend(mem: &impl Memory, nr: u64, args: &Args) -> i64 {
    let mut pins = PinSet::new();
    let mut mask = Mask { word: 0 };
    let mut args = *args;
    args[0] = mask.filter(mem, &mut pins, args[0], args[1]);
    let result = mem.raw(nr, &args);
    mem.unpin(&mut pins);
    result
}
