//! Programs that have libc's thread pointer for themselves: static ones, and those of another libc.
//!
//! In a program that the library was preloaded to, the library's thread-local words ([`crate::tls`]) lie in the storage that the
//! program's own libc makes for each thread, and `fs` leads to it. A *hosted* program knows nothing of our libc: its `fs` leads to
//! what it likes, or nowhere. There our words go by `gs`, which x86-64 programs leave alone.
//!
//! The same library serves both. Every instruction that goes by `fs` is written with [`by_thread!`], which notes where it is. Of a
//! hosted program [`begin`] changes the prefix in each of them, one byte, before the program runs. Code that the compiler or libc
//! makes for thread-locals of their own stays as it is: it must not run on threads of a hosted program, as it must not in
//! a handler either. On our own threads, and at the start, both registers lead to the same storage.

use crate::raw::{Errno, syscall_result};
use crate::vm::{self, prot};
use core::sync::atomic::{AtomicU8, Ordering};

/// Whether `gs` leads to our words. The assembly that starts threads looks at it.
pub(crate) static HOSTED: AtomicU8 = AtomicU8::new(0);

pub(crate) const SYS_ARCH_PRCTL: u64 = 158;
pub(crate) const ARCH_SET_GS: u64 = 0x1001;
const ARCH_SET_FS: u64 = 0x1002;
/// The prefixes of instructions: by `fs`, by `gs`.
const FS: u8 = 0x64;
const GS: u8 = 0x65;
const PAGE: u64 = 4096;

/// Text of an instruction that goes by the thread pointer, and its entry in the list of them.
#[macro_export]
macro_rules! by_thread {
    ($instruction:expr) => {
        concat!("7701: ", $instruction, "\n.pushsection farshore_by_thread, \"aR\", @progbits\n.long 7701b - .\n.popsection")
    };
}

unsafe extern "C" {
    /// The linker's names for the ends of the section: distances from each entry to its instruction.
    #[link_name = "__start_farshore_by_thread"]
    static FIRST: i32;
    #[link_name = "__stop_farshore_by_thread"]
    static END: i32;
}

/// Whether the program is hosted.
#[inline(always)]
pub fn is_hosted() -> bool {
    HOSTED.load(Ordering::Relaxed) != 0
}

/// Lets `gs` of this thread lead to `storage`.
///
/// # Errors
/// What arch_prctl(2) answers.
///
/// # Safety
/// `storage` is a complete thread-local storage that no other thread uses, and stays for as long as the thread.
pub(crate) unsafe fn set_pointer(storage: u64) -> Result<(), Errno> {
    // SAFETY: this function's own condition.
    unsafe { syscall_result(SYS_ARCH_PRCTL, [ARCH_SET_GS, storage, 0, 0, 0, 0]) }.map(drop)
}

/// The instructions that go by the thread pointer: the address of each one's prefix.
fn instructions() -> impl Iterator<Item = *mut u8> {
    let (mut entry, end) = (&raw const FIRST, &raw const END);
    core::iter::from_fn(move || {
        if entry >= end {
            return None;
        }
        // SAFETY: between the two ends of the section, which has nothing but such distances.
        let distance = unsafe { entry.read() };
        let at = (entry as u64).wrapping_add_signed(distance.into());
        entry = entry.wrapping_add(1);
        Some(core::ptr::with_exposed_provenance_mut(at as usize))
    })
}

/// From now on our words go by `gs`, which leads to where `fs` leads on this thread.
///
/// # Errors
/// Our text cannot be changed, or the register cannot be set.
///
/// # Safety
/// Start-up: this is the only thread, and none of our thread-local words has been used.
pub unsafe fn begin() -> Result<(), Errno> {
    let storage = crate::tls::thread_pointer();
    let pages = || instructions().map(|at| at as u64 & !(PAGE - 1));
    let start = pages().min().unwrap_or(0);
    let length = pages().max().unwrap_or(0) + PAGE - start;
    // This very code lies between them, so it must stay executable.
    // SAFETY: our own text.
    unsafe { vm::mprotect(start, length, prot::READ | prot::WRITE | prot::EXEC) }?;
    for prefix in instructions() {
        // SAFETY: a byte of our text.
        debug_assert_eq!(unsafe { prefix.read() }, FS);
        // SAFETY: it can be written now; no other thread runs, and the new instruction does the same by the other register.
        unsafe { prefix.write_volatile(GS) };
    }
    // SAFETY: as it was.
    unsafe { vm::mprotect(start, length, prot::READ | prot::EXEC) }?;
    // SAFETY: the storage of this thread, which our libc has made.
    unsafe { set_pointer(storage) }?;
    HOSTED.store(1, Ordering::Release);
    Ok(())
}

/// Lets `fs` lead nowhere, as when a program begins.
///
/// # Safety
/// Nothing that runs on this thread from now on uses thread-locals other than ours.
pub unsafe fn release_libcs_pointer() {
    // SAFETY: this function's own condition. The call cannot fail for 0.
    let _ = unsafe { syscall_result(SYS_ARCH_PRCTL, [ARCH_SET_FS, 0, 0, 0, 0, 0]) };
}
