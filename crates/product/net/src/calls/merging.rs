//! `prctl(PR_SET_MEMORY_MERGE)`: the kernel's KSM merges equal pages of different mappings into one. It is pretended here.
//!
//! ksmd puts its own page in the place of the program's and writes the page table entry anew, without userfaultfd's write
//! protection (`replace_page`, Linux 6.18). A clean page has its bytes in a slot and must fault when it is written: a merged one does
//! not, so it would leave as clean, and the old bytes would come back. So no mapping of this process may be `VM_MERGEABLE`
//! while memory is managed. Merging saves memory and is never promised, so that programs are told what they would be told natively.
//!
//! | what asks for it | what is done |
//! |---|---|
//! | `prctl` | noted here; `PR_GET_MEMORY_MERGE` answers from the note |
//! | whoever started the program: the setting passes through fork and exec | taken over at the start, and switched off |
//! | `MADV_MERGEABLE` | ignored for managed memory (`memory.rs`) |
//!
//! A program that this one starts gets the note with its options ([`super::follow`]); one that is not followed does not
//! get the setting: to switch it on before the exec would let ksmd at this process's memory, should the exec fail.

use super::super::buffers::{Args, Memory};
use core::sync::atomic::{AtomicBool, Ordering};
use farshore_sys::raw::{nr, syscall};

/// `PR_SET_MEMORY_MERGE`.
pub(super) const SET: u64 = 67;
/// `PR_GET_MEMORY_MERGE`.
pub(super) const GET: u64 = 68;

/// What the program has asked for, or found when it was started.
static WANTED: AtomicBool = AtomicBool::new(false);

/// Whether the program believes that its memory is merged.
pub(super) fn is_wanted() -> bool {
    WANTED.load(Ordering::Relaxed)
}

fn prctl(option: u64, value: u64) -> i64 {
    // SAFETY: numbers only. Merging changes no byte that the program sees; and nothing is managed when it is switched on.
    unsafe { syscall(nr::PRCTL, [option, value, 0, 0, 0, 0]) }
}

/// Takes over what the program was started with, before anything is managed. `handed`: by a program under Farshore.
///
/// # Errors
/// A line for the user: what is merged already cannot be taken apart.
pub fn take_over(handed: bool) -> Result<(), String> {
    // A kernel without KSM does not know the option.
    let on = prctl(GET, 0) == 1;
    WANTED.store(on || handed, Ordering::Relaxed);
    match if on { prctl(SET, 0) } else { 0 } {
        0 => Ok(()),
        why => Err(format!(
            "the kernel merges this program's memory (KSM) and cannot be stopped (error {}); start it without PR_SET_MEMORY_MERGE",
            -why
        )),
    }
}

/// The program runs without Farshore after all: what was handed to it becomes the kernel's.
pub fn hand_back(handed: bool) {
    if handed || is_wanted() {
        prctl(SET, 1);
    }
}

/// `PR_SET_MEMORY_MERGE`. The kernel judges the arguments, and whether it has KSM at all; switching it off changes nothing.
pub(super) fn set(mem: &impl Memory, args: &Args) -> i64 {
    let answer = mem.raw(libc::SYS_prctl as u64, &[SET, 0, args[2], args[3], args[4], 0]);
    if answer == 0 {
        WANTED.store(args[1] != 0, Ordering::Relaxed);
    }
    answer
}

/// `PR_GET_MEMORY_MERGE`.
pub(super) fn get(mem: &impl Memory, args: &Args) -> i64 {
    match mem.raw(libc::SYS_prctl as u64, args) {
        0 => i64::from(is_wanted()),
        answer => answer,
    }
}
