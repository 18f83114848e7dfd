//! `sendmmsg` and `recvmmsg`: as many messages at once as can be pinned; one that cannot be pinned goes alone.
//!
//! One thing is lost when the array is cut: an error after the first messages ends the call with their number,
//! as natively, but the kernel would keep a receive error of the socket for the next call.

use super::super::buffers::{Args, Memory, PinSet, Pins, errno, pin_dir, read_once, write_once};
use super::super::calls::descriptors::gives_own;
use super::super::table::{Dir, Flow};
use super::messages::{self, pin_message};
use super::{IOV_MAX, Pinned};

/// `struct mmsghdr`: a message header, then the 32-bit length of the message that was transferred.
const ELEMENT: u64 = 64;
const LENGTH_AT: u64 = 56;

/// `sendmmsg`.
pub(super) fn send(mem: &impl Memory, args: &Args) -> i64 {
    let count = u64::from(args[2] as u32).min(IOV_MAX);
    // Natively the messages before one that names a descriptor that is not open are sent.
    match (0..count).find(|n| gives_own(mem, args[1].wrapping_add(n * ELEMENT))) {
        Some(0) => errno(libc::EBADF),
        Some(good) => many(mem, &[args[0], args[1], good, args[3], 0, 0], Flow::Write),
        None => many(mem, args, Flow::Write),
    }
}

/// `recvmmsg`.
pub(super) fn receive(mem: &impl Memory, args: &Args) -> i64 {
    many(mem, args, Flow::Read)
}

fn many(mem: &impl Memory, args: &Args, flow: Flow) -> i64 {
    // The kernel cuts the count in the same way when it sends, and has no limit when it receives.
    let count = match flow {
        Flow::Write => u64::from(args[2] as u32).min(IOV_MAX),
        Flow::Read => u64::from(args[2] as u32),
    };
    let mut done = 0u64;
    loop {
        let mut part = *args;
        part[1] = args[1].wrapping_add(done * ELEMENT);
        if flow == Flow::Read && done > 0 && args[3] & libc::MSG_WAITFORONE as u64 != 0 {
            part[3] |= libc::MSG_DONTWAIT as u64;
        }
        part[2] = count - done;
        let (result, wanted) = some(mem, &part, flow);
        if result < 0 {
            return if done > 0 { done as i64 } else { result };
        }
        done += result as u64;
        if (result as u64) < wanted || done >= count || (flow == Flow::Read && is_late(mem, args[4])) {
            return done as i64;
        }
    }
}

/// Transfers the first messages of the array: the result, and how many it was asked for.
fn some(mem: &impl Memory, part: &Args, flow: Flow) -> (i64, u64) {
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    if flow == Flow::Read {
        pin_dir(mem, &mut pins, part[4], 16, Dir::Both);
    }
    let (mut fit, mut over) = (0, false);
    while fit < part[2] {
        match pin_message(mem, &mut pins, part[1].wrapping_add(fit * ELEMENT), ELEMENT, flow) {
            Pinned::All => fit += 1,
            Pinned::Part => {
                over = true;
                break;
            }
            // The kernel stops there, with an error if it is the first.
            Pinned::Refused => {
                fit += 1;
                break;
            }
        }
    }
    if fit == 0 && over {
        pins.release();
        return (alone(mem, part, flow), 1);
    }
    let nr = if flow == Flow::Read { libc::SYS_recvmmsg } else { libc::SYS_sendmmsg };
    (mem.raw(nr as u64, &[part[0], part[1], fit, part[3], part[4], part[5]]), fit)
}

/// One message that cannot be pinned at once: 1, or the error.
fn alone(mem: &impl Memory, part: &Args, flow: Flow) -> i64 {
    // `recvmsg` does not know this flag; the kernel takes it off too.
    let single = [part[0], part[1], part[3] & !(libc::MSG_WAITFORONE as u64), 0, 0, 0];
    let result = match flow {
        Flow::Write => messages::send_slow(mem, &single),
        Flow::Read => messages::receive_slow(mem, &single),
    };
    if result < 0 {
        return result;
    }
    write_once(mem, part[1] + LENGTH_AT, &(result as u32));
    1
}

/// Whether the time that the kernel left in the timeout is over.
fn is_late(mem: &impl Memory, timeout: u64) -> bool {
    if timeout == 0 {
        return false;
    }
    let left = read_once::<[u64; 2]>(mem, timeout);
    left == Some([0, 0])
}
