//! The engine's `Tracer`: static probes (USDT) for gdb, perf, bpftrace and SystemTap.
//!
//! A probe is a `nop` and a note in the library's file (`.note.stapsdt`), which says where the `nop` is and where its arguments
//! are. A tool replaces the `nop` by a breakpoint: gdb by itself, the others through the kernel's uprobes. The format is that of
//! SystemTap's `sys/sdt.h`, version 3.
//!
//! Each probe has a *semaphore* too, a counter in the library's data that a tool raises as long as it listens. So the engine makes
//! an event only if somebody hears it, and a probe costs one load while nobody does.
//!
//! The crate `probe` writes the same notes. Its form with a semaphore keeps that to itself, at the place of the `nop`. Here the question
//! is asked before there is an event, at several places, and each probe has one `nop`.

use core::sync::atomic::{AtomicU16, Ordering};
use farshore_core::seams::{Told, Traced, Tracer};

/// The semaphores, in the order of [`Traced`]; no cache line of theirs has anything that is written.
#[repr(C, align(64))]
struct Semaphores([AtomicU16; Traced::COUNT]);

// In data that comes from the file, and in a section of this name: tools look for it by its place in the file.
#[unsafe(link_section = ".probes")]
static SEMAPHORES: Semaphores = Semaphores([const { AtomicU16::new(0) }; Traced::COUNT]);

/// Probes of this library.
#[derive(Debug)]
pub struct Usdt;

/// A probe: its name, which one it is, what it tells, and how many of the four arguments it has, as the note writes them.
macro_rules! probe {
    ($name:literal, $what:expr, $told:expr, $arguments:literal) => {
        // SAFETY: the only instruction is a `nop`. The rest is a note, of no use to the program. Whoever puts a breakpoint there
        // leaves registers and memory as they were.
        unsafe {
            core::arch::asm!(
                "990: nop",
                ".pushsection .note.stapsdt,\"?\",\"note\"",
                ".balign 4",
                ".4byte 992f-991f, 994f-993f, 3",
                "991: .asciz \"stapsdt\"",
                "992: .balign 4",
                "993: .8byte 990b",
                ".8byte _.stapsdt.base",
                ".8byte {semaphores} + {at}",
                ".asciz \"farshore\"",
                concat!(".asciz \"", $name, "\""),
                concat!(".asciz \"", $arguments, "\""),
                "994: .balign 4",
                ".popsection",
                // The linker moves it as it moves code: by it a tool knows how far the addresses above have moved since. It is marked as code, since perf takes
                // the distance between an address and its place in the file from it, which is another one in data.
                ".ifndef _.stapsdt.base",
                ".pushsection .stapsdt.base,\"axGR\",\"progbits\",.stapsdt.base,comdat",
                ".weak _.stapsdt.base",
                ".hidden _.stapsdt.base",
                "_.stapsdt.base: .space 1",
                ".size _.stapsdt.base, 1",
                ".popsection",
                ".endif",
                semaphores = sym SEMAPHORES,
                at = const $what as usize * size_of::<AtomicU16>(),
                in("rdi") $told.address,
                in("rsi") $told.pages,
                in("rdx") $told.detail,
                in("rcx") $told.instruction,
                options(att_syntax, readonly, nostack, preserves_flags),
            )
        }
    };
}

impl Tracer for Usdt {
    #[inline]
    fn hears(what: Traced) -> bool {
        // Relaxed: nothing goes with it. The kernel or a debugger writes it at any time.
        SEMAPHORES.0[what as usize].load(Ordering::Relaxed) != 0
    }

    // Not inlined: each probe is at one place.
    #[cold]
    #[inline(never)]
    fn tell(what: Traced, told: &Told) {
        match what {
            Traced::Fault => probe!("fault", Traced::Fault, told, "8@%rdi 8@%rsi 8@%rdx 8@%rcx"),
            Traced::Fetched => probe!("fetched", Traced::Fetched, told, "8@%rdi 8@%rsi 8@%rdx"),
            Traced::Evicted => probe!("evicted", Traced::Evicted, told, "8@%rdi 8@%rsi 8@%rdx"),
            Traced::Rescued => probe!("rescued", Traced::Rescued, told, "8@%rdi 8@%rsi"),
        }
    }
}
