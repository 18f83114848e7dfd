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
//! The text of a hosted program may lie farther away. Its stubs are in a room of their own near it ([`Stubs::near`]): memory in no file, without an unwind
//! rule, which is never writable and executable at a time either. Its first stub is the jump to the entry, by its whole address, and belongs to no site.
//!
//! Each stub has 64 bytes, aligned to 64. Its first word is the *site*, the address behind the original `syscall`, its second
//! one *resume*, where the program goes on after the call. A stub never changes `rsp`, so the unwind rule for every byte of it is: the caller's `rsp` is ours, and the return
//! address is the word at `rip & -64`. An unwinder that finds a thread in a stub (a signal handler's, for cancellation)
//! goes on in the function that the stub was taken from, at its `syscall`. Behind the stub of a site whose number is not known a dormant process has pieces
//! of the same size, with the same head (`entry/asleep.rs`).

use crate::entry::raw;
use core::arch::global_asm;
use core::mem::size_of;
use core::sync::atomic::{AtomicU64, Ordering};

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

/// Hands out stubs in order. Its stubs are writable only between the caller's two `mprotect`s over the whole room.
#[derive(Debug)]
pub struct Stubs {
    start: u64,
    count: usize,
    used: usize,
    /// Where stubs lead, if it is not the entry: to the first stub.
    gate: Option<u64>,
}

/// Where the room near a program begins; 0: there is none.
static NEAR: AtomicU64 = AtomicU64::new(0);
/// Stubs in it: Go's runtime needs 40, a static glibc 200.
const NEAR_COUNT: usize = 512;
const NEAR_LENGTH: u64 = (NEAR_COUNT * STUB_SIZE) as u64;

/// The stub that an address lies in, of either room.
pub fn around(at: u64) -> Option<u64> {
    let near = NEAR.load(Ordering::Acquire);
    let is_stub = at.wrapping_sub(start()) < LENGTH || near != 0 && at.wrapping_sub(near) < NEAR_LENGTH;
    is_stub.then_some(at & !(STUB_SIZE as u64 - 1))
}

/// Whether an address is that of the jump by which the stubs near a program reach the entry.
pub fn is_gate(at: u64) -> bool {
    let near = NEAR.load(Ordering::Acquire);
    near != 0 && at == near
}

impl Stubs {
    /// A room of its own, above `text` and in its reach, writable. `None`: there is no memory there.
    ///
    /// It lies as far away as a jump leads: the heap may grow that far, and what a program maps at fixed addresses is lower, as a rule.
    ///
    /// # Safety
    /// Once, at start-up.
    pub unsafe fn near(text: u64, entry: u64) -> Option<Stubs> {
        // MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE
        const FLAGS: u64 = 0x10_0022;
        const READ_WRITE: u64 = 3;
        const NR_MMAP: u64 = 9;
        const FAR: u64 = 0x7000_0000;
        const STEP: u64 = 1 << 20;
        // Each try is a call: a program that has so much there does without.
        const TRIES: u64 = 256;
        let farthest = (text & !(PAGE as u64 - 1)).checked_add(FAR)?;
        let mut places = (0..TRIES).map(|n| farthest - n * STEP);
        // SAFETY: new memory, where nothing is.
        let map = |place| unsafe { raw(NR_MMAP, [place, NEAR_LENGTH, READ_WRITE, FLAGS, u64::MAX, 0]) };
        let start = places.find_map(|place| Some(map(place)).filter(|&answer| answer > 0))? as u64;
        let mut stubs = Stubs { start, count: NEAR_COUNT, used: 0, gate: None };
        let mut gate = [0xcc; STUB_SIZE];
        // jmp [rip]
        gate[..6].copy_from_slice(&[0xff, 0x25, 0, 0, 0, 0]);
        gate[6..14].copy_from_slice(&entry.to_le_bytes());
        // SAFETY: the room is writable.
        unsafe { stubs.push(&gate) };
        stubs.gate = Some(start);
        NEAR.store(start, Ordering::Release);
        Some(stubs)
    }

    /// The room.
    pub fn room(&self) -> core::ops::Range<u64> {
        self.start..self.start + (self.count * STUB_SIZE) as u64
    }

    /// Where stubs lead, if it is not the entry itself.
    pub fn gate(&self) -> Option<u64> {
        self.gate
    }

    /// Those that nobody has.
    ///
    /// # Safety
    /// One at a time.
    pub unsafe fn unused() -> Stubs {
        // SAFETY: readable text of ours.
        let room =
            unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance::<StubBytes>(start() as usize), STUB_COUNT) };
        // A stub begins with an address, and no address looks like that.
        Stubs { start: start(), count: STUB_COUNT, gate: None, used: room.partition_point(|stub| stub[..8] != [0xcc; 8]) }
    }

    /// Where the next stub will be, if there are that many. `None`: too few are left.
    pub fn next_address(&self, wanted: usize) -> Option<u64> {
        (self.used + wanted <= self.count).then(|| self.start + (self.used * STUB_SIZE) as u64)
    }

    /// Writes the next stub.
    ///
    /// # Panics
    /// If there is none: `next_address` has said so.
    ///
    /// # Safety
    /// The room is writable.
    pub unsafe fn push(&mut self, bytes: &StubBytes) {
        let address = self.next_address(1).expect("the caller has asked next_address");
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
        let mut stubs = Stubs { start: start(), count: STUB_COUNT, used: 0, gate: None };
        assert_eq!((stubs.next_address(1), stubs.next_address(STUB_COUNT + 1)), (Some(start()), None));
        stubs.used = STUB_COUNT - 1;
        assert_eq!(stubs.next_address(1), Some(start() + LENGTH - STUB_SIZE as u64));
        stubs.used = STUB_COUNT;
        assert_eq!(stubs.next_address(1), None);
    }
}
