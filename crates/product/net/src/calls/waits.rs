//! Calls that wait: futexes, and waiting with a signal mask.

use super::super::buffers::scratch::FAULT;
use super::super::buffers::{Access, Args, Memory, PinSet, Pins, address, clip, pin_all, pin_dir, pin_local, read_user, run_by};
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
/// the word's key, and writable: the kernel takes no key from anonymous memory that it cannot write. A waiter pins nothing
/// ([`wait`]), where it can wait again from the start: without a timeout, or with an absolute one.
pub(super) fn futex(mem: &impl Memory, args: &Args) -> i64 {
    let nr = libc::SYS_futex as u64;
    let operation = args[1] as i32;
    let private = operation & PRIVATE != 0;
    let command = operation & OP_MASK;
    if private && matches!(command, WAKE | WAKE_BITSET) {
        return mem.raw(nr, args);
    }
    let access = if private && matches!(command, WAIT | WAIT_BITSET) { Access::Read } else { Access::Write };
    if command == WAIT_BITSET || (command == WAIT && args[3] == 0) {
        return wait_for_word(mem, nr, args, access, args[3]);
    }
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    pin_all(mem, &mut pins, args[0], 4, access);
    if matches!(command, WAIT | LOCK_PI | WAIT_REQUEUE_PI | LOCK_PI2) {
        pin_all(mem, &mut pins, args[3], TIMESPEC, Access::Read);
    }
    if matches!(command, REQUEUE | CMP_REQUEUE | WAKE_OP | WAIT_REQUEUE_PI | CMP_REQUEUE_PI) {
        pin_all(mem, &mut pins, args[4], 4, Access::Write);
    }
    mem.raw(nr, args)
}

/// How often a wait is begun without pins.
const BEGINNINGS: u32 = 8;

/// Waits on futex words without a pin: a thread may wait for ever, and there may be thousands.
///
/// The kernel reads the words and the timeout at the start, and again when a signal has interrupted the wait; asleep, it
/// needs their addresses alone. So `bring` makes them present, and they may leave again. If they have left just then, the
/// kernel answers `EFAULT`, before it has done anything: the wait begins anew. `readable` says whether the program itself may
/// read them all; otherwise the answer is the program's. After some beginnings what was brought stays pinned.
#[inline]
fn wait(mem: &impl Memory, nr: u64, args: &Args, bring: impl Fn(&mut PinSet), readable: impl Fn(&mut PinSet) -> bool) -> i64 {
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    for _ in 0..BEGINNINGS {
        bring(&mut pins);
        pins.release();
        let result = mem.raw(nr, args);
        if result != FAULT {
            return result;
        }
        let again = readable(&mut pins);
        pins.release();
        if !again {
            return result;
        }
    }
    bring(&mut pins);
    mem.raw(nr, args)
}

/// Waits on the word at argument 0, until the absolute time at `timeout`.
#[inline]
fn wait_for_word(mem: &impl Memory, nr: u64, args: &Args, access: Access, timeout: u64) -> i64 {
    let bring = |pins: &mut PinSet| {
        pin_all(mem, pins, args[0], 4, access);
        pin_all(mem, pins, timeout, TIMESPEC, Access::Read);
    };
    let readable = |pins: &mut PinSet| {
        read_user::<u32>(mem, pins, args[0]).is_some() && (timeout == 0 || read_user::<[u64; 2]>(mem, pins, timeout).is_some())
    };
    wait(mem, nr, args, bring, readable)
}

/// `struct futex_waitv`: value, address, flags.
const WAITER: u64 = 24;
/// Waiters that the kernel accepts.
const WAITERS_MAX: u64 = 128;

/// `futex_waitv`, `futex_requeue`: an array of waiters.
///
/// More than some sixty words on pages that are not neighbours find no room in a [`PinSet`]. The ones without room are
/// made present all the same, and [`wait`] begins anew if one of them is evicted just then.
pub(super) fn futex_array(mem: &impl Memory, nr: u64, args: &Args) -> i64 {
    let vector = nr == libc::SYS_futex_waitv as u64;
    let (count, timeout) = if vector { (u64::from(args[1] as u32).min(WAITERS_MAX), args[3]) } else { (2, 0) };
    let bring = |pins: &mut PinSet| {
        pin_all(mem, pins, args[0], count * WAITER, Access::Read);
        pin_all(mem, pins, timeout, TIMESPEC, Access::Read);
        let mut readable = timeout == 0 || read_user::<[u64; 2]>(mem, pins, timeout).is_some();
        for index in 0..count {
            let Some(waiter) = read_user::<[u64; 3]>(mem, pins, args[0].wrapping_add(index * WAITER)) else { return false };
            pin_all(mem, pins, waiter[1], 4, Access::Write);
            readable &= read_user::<u32>(mem, pins, waiter[1]).is_some();
        }
        readable
    };
    if vector {
        return wait(mem, nr, args, |pins| _ = bring(pins), bring);
    }
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    bring(&mut pins);
    mem.raw(nr, args)
}

/// `futex_wait`, with an absolute timeout.
pub(super) fn futex_wait(mem: &impl Memory, nr: u64, args: &Args) -> i64 {
    wait_for_word(mem, nr, args, Access::Write, args[4])
}

/// A signal mask of ours in place of the program's, for the time of a call.
#[derive(Default)]
struct Mask {
    word: u64,
    /// What the program gave, if it is one.
    wanted: Option<u64>,
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
                self.wanted = Some(mask);
                self.word = mask & !NEEDED_SIGNALS;
                address(&mut self.word)
            }
            None => addr,
        }
    }

    /// Makes the call.
    fn call(&self, mem: &impl Memory, nr: u64, args: &Args) -> i64 {
        match self.wanted {
            Some(wanted) => mem.raw_with_mask(nr, args, wanted),
            None => mem.raw_again(nr, args),
        }
    }
}

/// Bytes of `struct epoll_event`.
const EVENT: u64 = 12;

/// `epoll_wait`, `epoll_pwait`, `epoll_pwait2`.
pub(super) fn epoll_wait(mem: &impl Memory, nr: u64, args: &Args) -> i64 {
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let mut mask = Mask::default();
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
    mask.call(mem, nr, &args)
}

/// `ppoll`.
pub(super) fn ppoll(mem: &impl Memory, nr: u64, args: &Args) -> i64 {
    const RULES: [Ptr; 2] = [
        Ptr { arg: 0, dir: Dir::Both, extent: Extent::Counted { by: 1, unit: 8, plus: 0, cap: u64::MAX, int: true } },
        Ptr { arg: 2, dir: Dir::Both, extent: Extent::Bytes(TIMESPEC as u32) },
    ];
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let mut mask = Mask::default();
    let mut args = *args;
    args[3] = mask.filter(mem, &mut pins, args[3], args[4]);
    run_by(mem, &mut pins, &args, &RULES, |args| mask.call(mem, nr, args))
}

/// `pselect6`: the mask and its size are behind the last argument.
pub(super) fn pselect(mem: &impl Memory, nr: u64, args: &Args) -> i64 {
    const fn set(arg: u8) -> Ptr {
        Ptr { arg, dir: Dir::Both, extent: Extent::Bits { by: 0 } }
    }
    const RULES: [Ptr; 4] = [set(1), set(2), set(3), Ptr { arg: 4, dir: Dir::Both, extent: Extent::Bytes(TIMESPEC as u32) }];
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let mut mask = Mask::default();
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
    run_by(mem, &mut pins, &args, &RULES, |args| mask.call(mem, nr, args))
}

/// `rt_sigsuspend`.
pub(super) fn suspend(mem: &impl Memory, nr: u64, args: &Args) -> i64 {
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let mut mask = Mask::default();
    let mut args = *args;
    args[0] = mask.filter(mem, &mut pins, args[0], args[1]);
    mask.call(mem, nr, &args)
}
