//! libfarshore.so: Farshore inside the program that it serves.
//!
//! Loaded by `LD_PRELOAD`, it starts before the program's `main` (`dispatch/start.rs`), and from then on the program's anonymous
//! memory is *managed*: absent pages fault into [`fault`], memory calls go through [`memory`], and every other system call that
//! lets the kernel touch managed memory goes through [`dispatch`].
//!
//! ```text
//!  the program touches a page ──SIGBUS──▶ signals ──────▶ fault ──┐
//!  the program makes a system call ─patched site / SIGSYS─▶ dispatch ──▶ memory, signals, process ──▶ engine
//!  (poll mode) the kernel reports a fault ──────────────▶ fault::poll ──┘
//! ```
//!
//! # Layers
//!
//! Each folder is a layer. What it may import stands behind it; `tools/layers.py` checks that.
//!
//! | layer | what | imports |
//! |---|---|---|
//! | [`dispatch`] | every caught call ▶ the module that serves it; start-up, dormant processes | all |
//! | [`process`] | clone, fork, exec, exit, filters | [`signals`], [`control`], [`family`], [`ground`] |
//! | [`signals`] | the program's signals and their handlers | [`fault`], which the handler of SIGBUS asks; [`ground`] |
//! | [`control`] | counters; swap spaces that come, go and fail | [`family`], [`ground`] |
//! | [`family`] | processes that share the limit | [`ground`] |
//! | [`memory`] | memory calls | [`ground`] |
//! | [`fault`] | a fault, by SIGBUS or by polling | [`ground`] |
//! | [`ground`] | records of threads, our own threads, the runtime, lines on stderr | none |
//!
//! Where a lower layer needs a higher one, it names a trait, which [`dispatch`] implements: [`ground::above::Above`] for our own
//! threads, [`farshore_net::Memory`] for [`ground::net::Net`]. The crate `catch` calls up by the names of hooks.
//!
//! # Rules for code in here
//!
//! This code runs on the program's threads, between any two of their instructions. After start-up it therefore:
//!
//! * makes system calls only by `syscall` instructions of its own (those of libc are caught);
//! * allocates only from its own heap ([`farshore_sys::alloc`]), and never on the fault path;
//! * blocks all signals while it holds a lock or a page, so that a handler of the program never runs on top of either;
//! * never touches managed memory while it holds anything; it first makes guarded copies of what the program points to.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod control;
mod dispatch;
mod family;
mod fault;
mod ground;
mod memory;
mod process;
mod signals;

// The unwinder, which the standard library needs for backtraces of panics, is linked into this library. Otherwise every program
// under Farshore would load `libgcc_s.so.1`, which asks the processor what it can do; each question takes microseconds in a
// virtual machine.
#[link(name = "gcc_eh", kind = "static", modifiers = "-bundle")]
unsafe extern "C" {}
