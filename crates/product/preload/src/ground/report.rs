//! Lines on stderr, and ends: without libc, without allocation.

use core::fmt::Write;
use farshore_sys::raw::{self, nr};
use farshore_sys::signal::{self, SigSet};

const SYS_WRITE: u64 = 1;
const SYS_EXIT_GROUP: u64 = 231;

/// A line of at most 512 bytes, built on the stack.
#[derive(Debug)]
pub struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        // One byte stays for the newline; what is too long is cut.
        let room = self.bytes.len() - 1 - self.len;
        let n = text.len().min(room);
        let to = &mut self.bytes[self.len..self.len + n];
        to.copy_from_slice(&text.as_bytes()[..n]);
        // One line it is, whatever a panic's message or a path has in it.
        to.iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = b' ');
        self.len += n;
        Ok(())
    }
}

/// Writes `farshore: …` and a newline to stderr with one call. Async-signal-safe.
///
/// Where stderr takes nothing (a pipe that is full, or that nobody reads) the line is lost: the program must neither wait for it nor die of SIGPIPE.
pub fn line(text: core::fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; 512], len: 0 };
    let _ = line.write_str("farshore: ");
    let _ = line.write_fmt(text);
    line.bytes[line.len] = b'\n';
    if takes_more(2) {
        write_all(2, &line.bytes[..=line.len]);
    }
}

/// Whether a line can be written to a descriptor now or in a moment. A pipe that takes anything has room for a page.
fn takes_more(fd: i32) -> bool {
    const SYS_POLL: u64 = 7;
    const PATIENCE_MS: u64 = 100;
    const OUT: u16 = 4;
    // An error, the other end is gone.
    const GONE: u16 = 8 | 16;
    // `struct pollfd`: the descriptor, what is asked, what is.
    let mut asked = (u64::from(OUT) << 32) | u64::from(fd as u32);
    // SAFETY: the kernel reads and writes these 8 bytes, which are ours and never managed memory.
    let answer = unsafe { raw::syscall_result(SYS_POLL, [&raw mut asked as u64, 1, PATIENCE_MS, 0, 0, 0]) };
    let is = (asked >> 48) as u16;
    match answer {
        Ok(0) => false,
        Ok(_) => is & GONE == 0,
        // Interrupted, or not allowed: nothing is known.
        Err(_) => true,
    }
}

/// Writes all of `bytes` to a descriptor, as far as that goes.
pub fn write_all(fd: u64, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        // SAFETY: the kernel reads `bytes`, which is ours and never managed memory.
        match unsafe { raw::syscall_retry(SYS_WRITE, [fd, bytes.as_ptr() as u64, bytes.len() as u64, 0, 0, 0]) } {
            Ok(n) if n > 0 => bytes = &bytes[n as usize..],
            _ => return false,
        }
    }
    true
}

/// Ends the process at once.
pub fn exit(status: u64) -> ! {
    loop {
        // SAFETY: exit_group takes a number and does not return.
        unsafe { raw::syscall(SYS_EXIT_GROUP, [status, 0, 0, 0, 0, 0]) };
    }
}

/// Says why on stderr and kills the process by SIGABRT: an invariant of ours is broken, and going on
/// could give the program a wrong byte.
pub fn abort(text: core::fmt::Arguments<'_>) -> ! {
    line(text);
    die_by(6)
}

/// Ends the process as if `signal` had its default action.
pub fn die_by(signal: u32) -> ! {
    // SAFETY: the default action has no handler.
    let _ = unsafe { signal::sigaction(signal, Some(&signal::Action::DEFAULT)) };
    let _ = signal::tgkill(raw::getpid(), raw::gettid(), signal);
    signal::sigprocmask(signal::How::Set, SigSet::ALL.without(signal));
    // The signal has been delivered before this line, unless the kernel refused to send it.
    exit(128 + u64::from(signal))
}

/// Whether `number` is one of the calls of [`nr`] that end a thread or the process.
pub fn ends(number: u64) -> bool {
    number == nr::EXIT || number == SYS_EXIT_GROUP
}
