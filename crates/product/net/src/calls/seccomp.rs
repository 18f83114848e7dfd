//! Filters of system calls that the program installs itself: `seccomp` and `prctl(PR_SET_SECCOMP)`.
//!
//! Here they are read, checked as the kernel checks them, and run on each of our own calls ([`own`]), with what is not known of their arguments left
//! open ([`bpf`]). What is done with one is the library's ([`Memory::set_filter`]).
//!
//! The kernel gets a copy of the program's filter: what was looked at is what is installed. A filter sees calls in our text, not in the
//! program's (`instruction_pointer`), and the calls that we make in place of the program's.

mod bpf;
pub mod own;

use super::super::buffers::{self, Args, Memory, PinSet, Pins, careful, errno};
pub use bpf::Instruction;
use own::Own;

const SET_MODE_STRICT: u64 = 0;
/// Operation of `seccomp`: a filter.
pub const SET_MODE_FILTER: u64 = 1;
const GET_ACTION_AVAIL: u64 = 2;
const GET_NOTIF_SIZES: u64 = 3;
/// For all threads (`SECCOMP_FILTER_FLAG_TSYNC`).
pub const FLAG_TSYNC: u64 = 1;
/// Modes of `prctl(PR_SET_SECCOMP)`.
const MODE_STRICT: u64 = 1;
const MODE_FILTER: u64 = 2;
/// Instructions that the kernel accepts.
const LEN_MAX: usize = 4096;

/// `seccomp`.
pub(super) fn seccomp(mem: &impl Memory, args: &Args) -> i64 {
    let nr = libc::SYS_seccomp as u64;
    // The kernel takes 32 bits of each of the first two.
    let (operation, flags) = (args[0] & 0xffff_ffff, args[1] & 0xffff_ffff);
    match operation {
        // Otherwise it is refused natively, by which libraries find out what there is.
        SET_MODE_STRICT if flags == 0 && args[2] == 0 => mem.refuse_strict_mode(),
        SET_MODE_FILTER => set_filter(mem, args[2], flags, |mem, filter| mem.raw(nr, &[operation, flags, filter, 0, 0, 0])),
        _ => {
            let mut set = PinSet::new();
            let mut pins = Pins::new(mem, &mut set);
            if matches!(operation, GET_ACTION_AVAIL | GET_NOTIF_SIZES) {
                buffers::guess(mem, &mut pins, args[2], 8);
            }
            mem.raw(nr, args)
        }
    }
}

/// `prctl(PR_SET_SECCOMP, …)`.
pub(super) fn by_prctl(mem: &impl Memory, args: &Args) -> i64 {
    match args[1] {
        MODE_STRICT => mem.refuse_strict_mode(),
        MODE_FILTER => set_filter(mem, args[2], 0, |mem, filter| {
            mem.raw(libc::SYS_prctl as u64, &[args[0], args[1], filter, args[3], args[4], 0])
        }),
        _ => mem.raw(libc::SYS_prctl as u64, args),
    }
}

/// The kernel's `struct sock_fprog`.
#[repr(C)]
#[derive(Debug)]
pub struct Program {
    len: u16,
    filter: *const Instruction,
}

impl Program {
    /// Of a filter, which must stay as long as this is used.
    pub fn of(filter: &[Instruction]) -> Program {
        Program { len: filter.len() as u16, filter: filter.as_ptr() }
    }
}

/// Looks at the filter at `addr` and lets `install` install a copy of it.
fn set_filter<M: Memory>(mem: &M, addr: u64, flags: u64, install: impl Fn(&M, u64) -> i64) -> i64 {
    let Some(filter) = copy_filter(mem, addr) else {
        // The kernel's answer, which depends on the flags too.
        return install(mem, 0);
    };
    if !bpf::is_valid(&filter) {
        // The kernel refuses it too, or does more than we know.
        return errno(libc::EINVAL);
    }
    mem.set_filter(&filter, flags, &mut |filter| install(mem, filter))
}

/// Of these calls of ours the first that a filter may stop.
pub fn first_stopped(filter: &[Instruction], calls: &[&'static [Own]]) -> Option<&'static Own> {
    calls.iter().copied().flatten().find(|call| !bpf::always_allows(filter, call.nr, &call.args))
}

/// Of these calls of ours, which may fail, the first for which a filter may end the thread or trap it.
pub fn first_ended(filter: &[Instruction], calls: &[&'static [Own]]) -> Option<&'static Own> {
    calls.iter().copied().flatten().find(|call| !bpf::always_returns(filter, call.nr, &call.args))
}

/// The program's filter, in memory of ours; `None` if it cannot be read. One of a length that the kernel refuses is empty.
fn copy_filter(mem: &impl Memory, addr: u64) -> Option<Vec<Instruction>> {
    let header = buffers::read_once::<[u64; 2]>(mem, addr);
    let [len, at] = header?;
    let len = (len & 0xffff) as usize;
    if len > LEN_MAX {
        return Some(Vec::new());
    }
    let mut filter = vec![Instruction::default(); len];
    let bytes = size_of_val(filter.as_slice());
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    buffers::pin_all(mem, &mut pins, at, bytes as u64, buffers::Access::Read);
    // SAFETY: room for so many bytes; any bytes are an instruction.
    let read = unsafe { careful::careful_copy(filter.as_mut_ptr().cast(), at, bytes) };
    read.then_some(filter)
}

#[cfg(test)]
mod tests;
