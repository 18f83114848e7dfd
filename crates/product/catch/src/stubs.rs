//! Room for stubs: a part of our own text.
//!
//! A stub is where a patched site jumps to: the instructions that the jump displaced, and the way into the entry. It
//! makes no system call itself, so it could lie anywhere within 2 GiB of the site. It lies in our text because
//!
//! - the loader puts us near libc, as it does with all libraries (if not, `patch.rs` leaves the site alone);
//! - no executable memory is made at run time beyond the text that is patched;
//! - one unwind rule, fixed when we are linked, can cover all stubs.
//!
//! The room is whole pages on which nothing else lies, so they can be writable and not executable while they are filled.
//! Each stub has 64 bytes, aligned to 64. Its first word is the *site*, the address behind the original `syscall`, its second
//! one *resume*, where the program goes on after the call. A stub never changes `rsp`, so the unwind rule for every byte of it is: the caller's `rsp` is ours, and the return
//! address is the word at `rip & -64`. An unwinder that finds a thread in a stub (a signal handler's, for cancellation)
//! goes on in the function that the stub was taken from, at its `syscall`.

use core::arch::global_asm;
use core::mem::size_of;

/// Bytes of one stub.
pub const STUB_SIZE: usize = 64;
/// Bytes of a stub before its code.
pub const STUB_HEAD: usize = 2 * size_of::<u64>();
/// Stubs in all: glibc 2.36 needs 560.
pub const STUB_COUNT: usize = 2048;
/// A stub's bytes; what is not code is `int3`.
pub type StubBytes = [u8; STUB_SIZE];

const PAGE: usize = 4096;
const _: () = assert!((STUB_COUNT * STUB_SIZE).is_multiple_of(PAGE));

unsafe extern "C" {
    fn farshore_stubs_start();
}

// The rule for the return address: DW_CFA_expression for column 16, 5 bytes: DW_OP_breg16 + 0, DW_OP_const1s -64, DW_OP_and.
global_asm!(
    r#"
    .pushsection .text.farshore_stubs, "ax", @progbits
    .globl farshore_stubs_start
    .hidden farshore_stubs_start
    .type farshore_stubs_start, @function
    .p2align 12, 0xcc
farshore_stubs_start:
    .cfi_startproc
    .cfi_def_cfa rsp, 0
    .cfi_escape 0x10, 16, 5, 0x80, 0, 0x09, 0xc0, 0x1a
    .fill {bytes}, 1, 0xcc
    .cfi_endproc
    .size farshore_stubs_start, . - farshore_stubs_start
    .popsection
    "#,
    bytes = const STUB_COUNT * STUB_SIZE,
);

/// Address of the first stub.
pub fn start() -> u64 {
    farshore_stubs_start as *const () as u64
}

/// Bytes from [`start`] that are stubs.
pub const LENGTH: u64 = (STUB_COUNT * STUB_SIZE) as u64;

/// Hands out stubs in order. There is one, made at start-up; its stubs are writable only between the caller's two
/// `mprotect`s over the whole room.
#[derive(Debug)]
pub struct Stubs {
    used: usize,
}

impl Stubs {
    /// Those that nobody has.
    ///
    /// # Safety
    /// One at a time.
    pub unsafe fn unused() -> Stubs {
        // SAFETY: readable text of ours.
        let room =
            unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance::<StubBytes>(start() as usize), STUB_COUNT) };
        // A stub begins with an address, and no address looks like that.
        Stubs { used: room.partition_point(|stub| stub[..8] != [0xcc; 8]) }
    }

    /// Where the next stub will be. `None`: all are used.
    pub fn next_address(&self) -> Option<u64> {
        (self.used < STUB_COUNT).then(|| start() + (self.used * STUB_SIZE) as u64)
    }

    /// Writes the next stub.
    ///
    /// # Panics
    /// If there is none: `next_address` has said so.
    ///
    /// # Safety
    /// The room is writable.
    pub unsafe fn push(&mut self, bytes: &StubBytes) {
        let address = self.next_address().expect("the caller has asked next_address");
        // SAFETY: within the room, which is writable, and used by nobody until this call has returned.
        unsafe { (address as *mut StubBytes).write(*bytes) };
        self.used += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_is_whole_pages_of_int3() {
        assert_eq!(start() % PAGE as u64, 0);
        // SAFETY: the room is readable text.
        let room = unsafe { core::slice::from_raw_parts(start() as *const u8, LENGTH as usize) };
        assert!(room.iter().all(|&byte| byte == 0xcc));
    }

    #[test]
    fn stubs_come_side_by_side_and_end() {
        let mut stubs = Stubs { used: 0 };
        assert_eq!(stubs.next_address(), Some(start()));
        stubs.used = STUB_COUNT - 1;
        assert_eq!(stubs.next_address(), Some(start() + LENGTH - STUB_SIZE as u64));
        stubs.used = STUB_COUNT;
        assert_eq!(stubs.next_address(), None);
    }
}
