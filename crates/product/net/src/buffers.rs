//! Makes the memory behind a call's arguments safe for the kernel.
//!
//! # Protocol
//!
//! 1. Before a call, each page that the kernel may touch is *pinned* ([`Memory::pin`]): made present, made
//!    writable if the kernel writes, and kept from eviction. After the call all are unpinned ([`Pins`]). A page that is not
//!    managed needs nothing, and a page that the program itself may not access is left to the kernel, which
//!    answers `EFAULT` as natively.
//! 2. The net reads the program's structures only through [`careful`]: a pointer may be wild, and the program is
//!    owed the kernel's `EFAULT`, not a crash. What is managed is pinned before it is read, so that no fault is
//!    taken while pins are held.
//! 3. Our own locals that the kernel reads or writes lie on the program's stack. That is managed memory if the
//!    program made its stack from the heap (coroutines), so locals are pinned like anything else, and first.
//! 4. A call that the program leaves by a jump never unpins. [`Held`] finds out and does it.
//! 5. What cannot be pinned at once (the budget or the [`PinSet`] is full, or calls have pinned their [`share`]) goes
//!    through *scratch* memory, which is not managed: copied in, one call, copied out. That is exact whatever the call
//!    does, so it is the fallback for everything that has no better one. What is copied out is what the kernel has
//!    changed, also when the call failed (`nanosleep` tells what is left), and not what it has left alone: other threads
//!    may write there meanwhile.

pub mod careful;
mod held;
mod pins;
pub mod scratch;
pub mod share;

use super::calls::seccomp::Instruction;
use super::table::{Dir, Extent, Ptr};
pub use farshore_core::page::Access;
pub use held::{Held, Ticket};
pub use pins::{PinSet, Pins};
use scratch::Scratch;

/// The six arguments of a system call.
pub type Args = [u64; 6];

/// What the net needs from the engine.
pub trait Memory {
    /// Pins the managed pages among `len` bytes from `addr` for the kernel's `access` (`Write`: it may read too), and adds
    /// them to `pins`.
    /// Returns how many bytes from `addr` on are safe now: `len`, or less if the pin set, the budget or the share of all calls
    /// is full (at least two pages of a set, unless they cannot be pinned). Unmanaged pages are safe as they are. A page that is in
    /// `pins` already is not pinned twice, but made writable if need be. Cheap for resident pages.
    fn pin(&self, pins: &mut PinSet, addr: u64, len: u64, access: Access) -> u64;
    /// Unpins all of `pins` and leaves it empty.
    fn unpin(&self, pins: &mut PinSet);
    /// Pins the managed pages of a range for a request that goes on after its call, and adds them to `pages`; at most `most` of them in all. Whether that was all.
    /// A page that the program itself cannot access is left to the kernel.
    fn pin_longer(&self, addr: u64, len: u64, access: Access, most: u64, pages: &mut Vec<u64>) -> bool;
    /// Takes off one pin that [`Memory::pin_longer`] has made.
    fn unpin_page(&self, page: u64);
    /// How many pages of a range are managed.
    fn managed_pages(&self, addr: u64, len: u64) -> u64;
    /// How many managed pages may be in memory.
    fn frames(&self) -> u64;
    /// Makes the pages of a range present, and unmanaged for good: the kernel will touch them without a call.
    fn keep(&self, addr: u64, len: u64);
    /// Makes a call that may give the program a record lock, which it loses when a descriptor of ours of the same file is closed.
    fn lock_record(&self, call: &mut dyn FnMut() -> i64) -> i64 {
        call()
    }
    /// Gives all memory of the program to the kernel, for good, since a device (major and minor number) may keep some of it. False: it would
    /// not fit into the limit.
    fn surrender(&self, device: (u32, u32)) -> bool;
    /// The system call itself, on behalf of the program; its result or a negative errno. One of them says that it was not made, since a signal has come that
    /// the program handles first.
    fn raw(&self, nr: u64, args: &Args) -> i64;
    /// A system call of ours: always made.
    fn own(&self, nr: u64, args: &Args) -> i64;
    /// The same for a call that has a signal mask for its time: `wanted` is the program's, the one that the arguments lead to is without
    /// the signals that Farshore needs.
    fn raw_with_mask(&self, nr: u64, args: &Args, wanted: u64) -> i64;
    /// Makes a system call of the program that waits for events, again if it was interrupted and no handler of the program is to run.
    fn raw_again(&self, nr: u64, args: &Args) -> i64 {
        self.raw(nr, args)
    }
    /// The program installs this filter of system calls, which the kernel would accept, with these flags of `seccomp`: lets `install` install a copy of
    /// it (the address of a `struct sock_fprog`), or refuses. The call's result.
    fn set_filter(&self, filter: &[Instruction], flags: u64, install: &mut dyn FnMut(u64) -> i64) -> i64;
    /// The program asks for seccomp's strict mode, which leaves no way to bring a page in. The call's result.
    fn refuse_strict_mode(&self) -> i64 {
        errno(libc::EINVAL)
    }
    /// Farshore's descriptors, in ascending order.
    fn own_fds(&self) -> &[i32];
    /// The program makes a ring that is looked after: each of its calls must be seen from now on.
    fn requests_come(&self) {}
    /// Whether the calling thread answers for the memory of requests in rings itself.
    fn may_have_rings(&self) -> bool {
        false
    }
}

/// Bytes a page.
pub const PAGE: u64 = farshore_core::limits::PAGE_SIZE as u64;
/// End of the addresses that a program can have without asking for more (five-level paging needs a hint).
pub const USER_END: u64 = 1 << 47;
/// Longest string that is followed. The kernel's own limits are lower, but for module parameters.
const TEXT_MAX: u64 = 64 << 10;

/// An errno as a system call returns it.
pub const fn errno(code: i32) -> i64 {
    -(code as i64)
}

/// A structure that is valid whatever its bytes are, without padding.
///
/// # Safety
/// Every bit pattern must be a value.
pub unsafe trait Plain: Copy {
    /// A value to start from.
    const ZERO: Self;
}

// SAFETY: integers and arrays of integers.
unsafe impl Plain for u32 {
    const ZERO: u32 = 0;
}
// SAFETY: as above.
unsafe impl Plain for u64 {
    const ZERO: u64 = 0;
}
// SAFETY: an array of plain values has no padding of its own.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {
    const ZERO: [T; N] = [T::ZERO; N];
}

/// `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoVec {
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}
// SAFETY: two integers of equal size.
unsafe impl Plain for IoVec {
    const ZERO: IoVec = IoVec { addr: 0, len: 0 };
}

/// `len`, cut where the program's addresses end. 0 for a null pointer.
#[inline]
pub fn clip(addr: u64, len: u64) -> u64 {
    if addr == 0 { 0 } else { len.min(USER_END.saturating_sub(addr)) }
}

/// Pins as much of a range as there is; whether all of it is safe.
#[inline]
pub fn pin_all(mem: &impl Memory, pins: &mut PinSet, addr: u64, len: u64, access: Access) -> bool {
    let len = clip(addr, len);
    len == 0 || mem.pin(pins, addr, len, access) >= len
}

/// As [`pin_all`], by direction: what cannot be written is pinned for reading.
#[inline]
pub fn pin_dir(mem: &impl Memory, pins: &mut PinSet, addr: u64, len: u64, dir: Dir) -> bool {
    match dir {
        Dir::In => pin_all(mem, pins, addr, len, Access::Read),
        Dir::Out => pin_all(mem, pins, addr, len, Access::Write),
        Dir::Both => pin_all(mem, pins, addr, len, Access::Write) || pin_all(mem, pins, addr, len, Access::Read),
    }
}

/// Pins one of our own locals, which the kernel reads and writes, and returns its address. If the local is changed
/// by us before the call, its address must be taken again after that ([`address`]): to the compiler, what the kernel
/// sees is what was there when the address was taken.
#[inline]
pub fn pin_local<T>(mem: &impl Memory, pins: &mut PinSet, local: &mut T) -> u64 {
    let addr = address(local);
    // The set is empty or nearly so, and a stack page can be written: this does not fail.
    mem.pin(pins, addr, size_of::<T>() as u64, Access::Write);
    addr
}

/// The address of a local, for the kernel.
#[inline]
pub fn address<T>(local: &mut T) -> u64 {
    core::ptr::from_mut(local).expose_provenance() as u64
}

/// Reads a structure of the program, which stays pinned; `None` if it cannot be read.
#[inline]
pub fn read_user<T: Plain>(mem: &impl Memory, pins: &mut PinSet, addr: u64) -> Option<T> {
    pin_all(mem, pins, addr, size_of::<T>() as u64, Access::Read);
    let mut value = T::ZERO;
    // SAFETY: `value` has room for the bytes, and any bytes are a `T` (`Plain`).
    let read = unsafe { careful::careful_copy(core::ptr::from_mut(&mut value).cast(), addr, size_of::<T>()) };
    read.then_some(value)
}

/// The same, and nothing stays pinned.
#[inline]
pub fn read_once<T: Plain>(mem: &impl Memory, addr: u64) -> Option<T> {
    read_user(mem, &mut Pins::new(mem, &mut PinSet::new()), addr)
}

/// Writes a structure of the program, which stays pinned; whether it could be written.
#[inline]
pub fn write_user<T: Plain>(mem: &impl Memory, pins: &mut PinSet, addr: u64, value: &T) -> bool {
    pin_all(mem, pins, addr, size_of::<T>() as u64, Access::Write);
    // SAFETY: the program named this memory as the place for the kernel's answer, which we give in its place.
    unsafe { careful::careful_copy(addr as *mut u8, core::ptr::from_ref(value) as u64, size_of::<T>()) }
}

/// The same, and nothing stays pinned.
#[inline]
pub fn write_once<T: Plain>(mem: &impl Memory, addr: u64, value: &T) -> bool {
    write_user(mem, &mut Pins::new(mem, &mut PinSet::new()), addr, value)
}

/// Bytes of the string at `addr` with its zero byte, at most `max`; all of it stays pinned, as far as there is
/// room. `None` if it cannot be read to its end.
pub fn text_len(mem: &impl Memory, pins: &mut PinSet, addr: u64, max: u64) -> Option<u64> {
    let mut len = 0;
    while len < max {
        let here = addr.checked_add(len)?;
        let step = (PAGE - here % PAGE).min(max - len);
        mem.pin(pins, here, step, Access::Read);
        let found = careful::careful_strnlen(here, step as usize)? as u64;
        if found < step {
            return Some(len + found + 1);
        }
        len += step;
    }
    Some(max)
}

/// Which bytes a rule speaks of: address and length. Pins what must be read to know.
#[inline]
fn extent(mem: &impl Memory, pins: &mut PinSet, args: &Args, rule: &Ptr) -> (u64, u64) {
    let addr = args[rule.arg as usize];
    if addr == 0 {
        return (0, 0);
    }
    let len = match rule.extent {
        Extent::Bytes(bytes) => u64::from(bytes),
        Extent::Counted { by, unit, plus, cap, int } => {
            let count = args[by as usize];
            let count = if int { i64::from(count as i32).max(0) as u64 } else { count };
            count.saturating_mul(u64::from(unit)).saturating_add(u64::from(plus)).min(cap)
        }
        Extent::Bits { by } => i64::from(args[by as usize] as i32).clamp(0, 1 << 20).cast_unsigned().div_ceil(64) * 8,
        Extent::Pages { by } => args[by as usize].div_ceil(PAGE),
        // A small integer is no string (`sysfs`), and reading it would cost a signal.
        Extent::Text if addr < PAGE => 0,
        Extent::Text => text_len(mem, pins, addr, TEXT_MAX).unwrap_or(1),
        Extent::Behind { by, cap } => {
            pin_dir(mem, pins, args[by as usize], 4, Dir::Both);
            read_user::<u32>(mem, pins, args[by as usize]).map_or(0, |len| u64::from(len).min(cap))
        }
        Extent::Sized { at } => {
            let size = read_user::<u32>(mem, pins, addr.wrapping_add(u64::from(at))).unwrap_or(0);
            u64::from(size).clamp(64, PAGE)
        }
    };
    (addr, clip(addr, len))
}

/// Makes call `nr`, by which the kernel remembers a pointer and touches what is there later.
pub fn keep(mem: &impl Memory, nr: u64, args: &Args, rule: &Ptr) -> i64 {
    let (addr, len) = extent(mem, &mut Pins::new(mem, &mut PinSet::new()), args, rule);
    if len > 0 {
        mem.keep(addr, len);
    }
    mem.raw(nr, args)
}

/// Makes call `nr`, whose pointers are described by `rules`.
#[inline]
pub fn run(mem: &impl Memory, nr: u64, args: &Args, rules: &[Ptr]) -> i64 {
    run_with(mem, &mut Pins::new(mem, &mut PinSet::new()), nr, args, rules)
}

/// The same, with pages that are pinned already.
#[inline]
pub fn run_with<M: Memory>(mem: &M, pins: &mut Pins<'_, M>, nr: u64, args: &Args, rules: &[Ptr]) -> i64 {
    run_by(mem, pins, args, rules, |args| mem.raw(nr, args))
}

/// The same, by a call of another kind.
#[inline]
pub fn run_by<M: Memory>(mem: &M, pins: &mut Pins<'_, M>, args: &Args, rules: &[Ptr], call: impl Fn(&Args) -> i64) -> i64 {
    for rule in rules {
        let (addr, len) = extent(mem, pins, args, rule);
        if !pin_dir(mem, pins, addr, len, rule.dir) {
            return run_with_scratch(mem, pins, args, rules, &call);
        }
    }
    call(args)
}

/// The same when not all could be pinned: what could not goes through scratch memory.
#[cold]
#[inline(never)]
fn run_with_scratch<M: Memory>(mem: &M, pins: &mut Pins<'_, M>, args: &Args, rules: &[Ptr], call: &dyn Fn(&Args) -> i64) -> i64 {
    let mut args = *args;
    let original = args;
    let mut stand_ins: [Option<Scratch<'_, M>>; 6] = [const { None }; 6];
    for (rule, stand_in) in rules.iter().zip(&mut stand_ins) {
        let (addr, len) = extent(mem, pins, &original, rule);
        if pin_dir(mem, pins, addr, len, rule.dir) {
            continue;
        }
        // Without memory, or if the program cannot access its own buffer, the kernel sees what the program gave.
        let scratch = if rule.dir == Dir::In { Scratch::new(mem, len) } else { Scratch::with_copy(mem, len) };
        let Ok(scratch) = scratch else { continue };
        if scratch.copy_in(0, addr, len) && (rule.dir != Dir::Out || is_writable(mem, addr, len)) {
            scratch.keep_copy();
            args[rule.arg as usize] = scratch.addr();
            *stand_in = Some(scratch);
        }
    }
    let mut result = call(&args);
    pins.release();
    for (rule, stand_in) in rules.iter().zip(&stand_ins) {
        let Some(scratch) = stand_in else { continue };
        if rule.dir != Dir::In && !scratch.copy_changes(original[rule.arg as usize]) {
            result = errno(libc::EFAULT);
        }
    }
    result
}

/// Whether the program may write all of a range: asked before a call on scratch memory that writes there.
fn is_writable(mem: &impl Memory, addr: u64, len: u64) -> bool {
    let mut done = 0;
    while done < len {
        let safe = mem.pin(&mut Pins::new(mem, &mut PinSet::new()), addr + done, len - done, Access::Write);
        if safe == 0 {
            return false;
        }
        done += safe;
    }
    true
}

/// Pins `len` bytes from an argument that may or may not be a pointer, or lead to less than that: as far as it goes.
pub fn guess(mem: &impl Memory, pins: &mut PinSet, addr: u64, len: u64) {
    // Nothing can be mapped in the first 64 KiB, so a lower number is no pointer.
    if (1 << 16..USER_END).contains(&addr) {
        pin_dir(mem, pins, addr, len, Dir::Both);
    }
}

#[cfg(test)]
pub(crate) mod fake;

#[cfg(test)]
mod tests;

#[cfg(test)]
mod tests_held;
