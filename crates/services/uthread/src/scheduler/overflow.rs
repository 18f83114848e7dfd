//! A unithread whose stack overflows: the process ends by SIGSEGV, as it must, and says whose stack it was.
//!
//! The guard below each stack (`pool.rs`) turns the overflow into a SIGSEGV. Its handler needs another stack: each worker has an alternate one. What is no overflow of a
//! unithread's stack goes to the handler that was there before.

use crate::ground::own;
use crate::scheduler::worker;
use core::ffi::{c_int, c_void};
use core::fmt::Write;
use core::mem::MaybeUninit;
use std::sync::{Once, OnceLock};

/// Bytes of a worker's alternate stack, if it has none: a signal frame with all registers (11 KiB with AMX), and a line of text.
const STACK_BYTES: usize = 64 << 10;

/// The handler of SIGSEGV that was there before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler. Once a process.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut before = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: asks for the action, and writes it.
        if unsafe { libc::sigaction(libc::SIGSEGV, core::ptr::null(), before.as_mut_ptr()) } != 0 {
            return;
        }
        // SAFETY: written by the call.
        let before = BEFORE.get_or_init(|| unsafe { before.assume_init() });
        let mut ours = *before;
        ours.sa_sigaction = on_segv as *const () as usize;
        ours.sa_flags = (ours.sa_flags | libc::SA_SIGINFO | libc::SA_ONSTACK) & !libc::SA_RESETHAND;
        // SAFETY: a handler that makes system calls alone, or calls the one of before as the kernel would have.
        unsafe { libc::sigaction(libc::SIGSEGV, &raw const ours, core::ptr::null_mut()) };
    });
}

/// Sees to it that the calling thread, a worker, has an alternate stack. It stays: threads that end are few.
pub(crate) fn have_a_stack() {
    let mut now = libc::stack_t { ss_sp: core::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: asks for the stack, and writes it.
    unsafe { libc::sigaltstack(core::ptr::null(), &raw mut now) };
    if now.ss_flags & libc::SS_DISABLE == 0 {
        return;
    }
    // Without it an overflow ends the process all the same, and says nothing.
    let Ok(at) = own::map(STACK_BYTES, "cannot map an alternate stack (ulimit -v?)") else { return };
    let stack = libc::stack_t { ss_sp: at.as_ptr().cast(), ss_flags: 0, ss_size: STACK_BYTES };
    // SAFETY: the mapping, which is never unmapped.
    unsafe { libc::sigaltstack(&raw const stack, core::ptr::null_mut()) };
}

/// Text of a line, without an allocation.
struct Line {
    bytes: [u8; 256],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let room = &mut self.bytes[self.length..];
        let count = text.len().min(room.len());
        room[..count].copy_from_slice(&text.as_bytes()[..count]);
        self.length += count;
        Ok(())
    }
}

extern "C" fn on_segv(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's, for this call.
    let info_read = unsafe { &*info };
    // SAFETY: a SIGSEGV has an address.
    let address = unsafe { info_read.si_addr() }.addr();
    if let Some((slot, bytes)) = worker::overflow_at(address) {
        let mut line = Line { bytes: [0; 256], length: 0 };
        let _ = writeln!(
            line,
            "farshore-uthread: unithread {slot} has overflowed its stack of {bytes} bytes, at {address:#x}; give it more (Config::stack_bytes)"
        );
        // SAFETY: bytes of ours.
        unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.length) };
        return by_default(signal);
    }
    let Some(before) = BEFORE.get() else { return by_default(signal) };
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => by_default(signal),
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: it was installed with this type.
            let handler =
                unsafe { core::mem::transmute::<usize, extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void)>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: it was installed with this type.
            let handler = unsafe { core::mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
            handler(signal);
        }
    }
}

/// The access is made again, and ends the process.
fn by_default(signal: c_int) {
    // SAFETY: the default action.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}
