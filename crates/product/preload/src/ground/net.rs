//! The net as all layers use it: one value, by which memory of the program is pinned, read and written.
//!
//! [`Net`] is named here, so that signals, processes and records can pass it to the crate `net`. `dispatch` says what the net does
//! (`impl Memory for Net`), since that needs the layers between.

use crate::ground::runtime::runtime;
use crate::ground::thread::Thread;
use farshore_catch::entry::Call;
use farshore_core::page::Access;
use farshore_net::buffers::{self, Args, Memory, PinSet, Pins, careful};
use farshore_net::calls;

/// The engine as the net sees it.
#[derive(Debug)]
pub struct Net(());

/// The one net.
pub fn net() -> &'static Net {
    &Net(())
}

/// Makes a call with everything pinned that the kernel will touch.
pub fn pinned(number: u64, args: &Args) -> i64 {
    calls::dispatch(net(), number, args).unwrap_or_else(|| net().raw(number, args))
}

/// Makes managed pages present and writable for a moment, without keeping them.
fn touch(addr: u64, len: u64) {
    buffers::pin_all(net(), &mut Pins::new(net(), &mut PinSet::new()), addr, len, Access::Write);
}

#[unsafe(no_mangle)]
extern "C" fn farshore_make_writable(addr: u64, len: u64) {
    touch(addr, len);
}

/// Copies from memory of the program; false if it is not there.
///
/// # Safety
/// `to` must have room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farshore_read_program(to: *mut u8, from: u64, len: u64) -> bool {
    let mut set = PinSet::new();
    let mut pins = Pins::new(net(), &mut set);
    buffers::pin_all(net(), &mut pins, from, len, Access::Read);
    // SAFETY: this function's own condition; the source may be anything.
    unsafe { careful::careful_copy(to, from, len as usize) }
}

/// The words that the kernel writes when it makes a thread.
pub fn pin_clone_words(call: &Call) {
    const SYS_CLONE: u64 = 56;
    if call.nr == SYS_CLONE {
        for addr in [call.args[2], call.args[3]] {
            touch(addr, 4);
        }
    }
}

/// The thread ends: what calls have pinned that it has left by a jump need not stay.
pub fn unpin_all(thread: &Thread) {
    if let Some(runtime) = runtime() {
        thread.held.release_all(|page| runtime.engine.unpin(page));
    }
}
