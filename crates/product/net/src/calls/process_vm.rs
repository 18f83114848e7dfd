//! `process_vm_readv` and `process_vm_writev`.
//!
//! On the program itself they are done by copying: the kernel would need two lists of buffers pinned at once. On another
//! process the local buffers are pinned, or replaced by scratch memory. If that other process runs under Farshore too,
//! its absent pages cannot be reached from here: the kernel answers `EFAULT`, or ends the transfer before them.

use super::super::buffers::scratch::{FAULT, Scratch, copy_between};
use super::super::buffers::{Access, Args, IoVec, Memory, PinSet, Pins, pin_all, pin_local, read_user};
use super::super::table::Flow;
use super::super::transfer::pieces::Cursor;
use super::super::transfer::{IOV_MAX, TRANSFER_MAX};

/// Makes the call. `Read`: from the other process into ours.
pub(super) fn call(mem: &impl Memory, flow: Flow, nr: u64, args: &Args) -> i64 {
    let [pid, local, local_count, remote, remote_count, flags] = *args;
    if flags != 0 || local_count > IOV_MAX || remote_count > IOV_MAX {
        return mem.raw(nr, args);
    }
    if is_self(mem, pid) {
        let (local, remote) = (Cursor::array(local, local_count), Cursor::array(remote, remote_count));
        return within(mem, flow, local, remote);
    }
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let mut all = pin_all(mem, &mut pins, remote, remote_count * 16, Access::Read);
    all &= pin_all(mem, &mut pins, local, local_count * 16, Access::Read);
    let access = if flow == Flow::Read { Access::Write } else { Access::Read };
    let mut left = TRANSFER_MAX;
    for index in 0..local_count {
        let Some(iov) = read_user::<IoVec>(mem, &mut pins, local.wrapping_add(index * 16)) else { break };
        let len = iov.len.min(left);
        all = all && pin_all(mem, &mut pins, iov.addr, len, access);
        left -= len;
    }
    if !all {
        pins.release();
        return on_scratch(mem, flow, nr, args);
    }
    mem.raw(nr, args)
}

/// Whether `pid` is the program, or one of its threads.
fn is_self(mem: &impl Memory, pid: u64) -> bool {
    let pid = u64::from(pid as u32);
    let own = mem.own(libc::SYS_getpid as u64, &[0; 6]) as u64;
    pid == own || (pid != 0 && mem.own(libc::SYS_tgkill as u64, &[own, pid, 0, 0, 0, 0]) == 0)
}

fn within(mem: &impl Memory, flow: Flow, mut local: Cursor, mut remote: Cursor) -> i64 {
    // The kernel looks at both arrays before it copies.
    for cursor in [&local, &remote] {
        if let Err(error) = cursor.total(mem) {
            return error;
        }
    }
    let mut done = 0u64;
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    loop {
        let ours = local.next(mem, &mut pins);
        let theirs = remote.next(mem, &mut pins);
        pins.release();
        let (Ok(Some(ours)), Ok(Some(theirs))) = (ours, theirs) else { return done as i64 };
        let len = ours.len.min(theirs.len);
        let copied = match flow {
            Flow::Read => copy_between(mem, ours.addr, theirs.addr, len),
            Flow::Write => copy_between(mem, theirs.addr, ours.addr, len),
        };
        if copied == 0 {
            return if done > 0 { done as i64 } else { FAULT };
        }
        local.pass(copied);
        remote.pass(copied);
        done += copied;
    }
}

/// Most that goes through scratch memory at once; the kernel too may transfer less than asked for.
const SCRATCH_MAX: u64 = 64 << 20;

fn on_scratch(mem: &impl Memory, flow: Flow, nr: u64, args: &Args) -> i64 {
    let cursor = Cursor::array(args[1], args[2]);
    let total = match cursor.total(mem) {
        Ok(0) => return 0,
        Ok(total) => total.min(SCRATCH_MAX),
        Err(error) => return error,
    };
    let scratch = match Scratch::new(mem, total) {
        Ok(scratch) => scratch,
        Err(error) => return error,
    };
    if flow == Flow::Write && !cursor.copy(mem, &scratch, total, Flow::Write) {
        return FAULT;
    }
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let mut iov = IoVec { addr: scratch.addr(), len: total };
    let local = pin_local(mem, &mut pins, &mut iov);
    pin_all(mem, &mut pins, args[3], args[4] * 16, Access::Read);
    let result = mem.raw(nr, &[args[0], local, 1, args[3], args[4], 0]);
    pins.release();
    if flow == Flow::Read && result > 0 && !cursor.copy(mem, &scratch, result as u64, Flow::Read) {
        return FAULT;
    }
    result
}
