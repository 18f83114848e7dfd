//! The only crate that enters the kernel.
//!
//! # The rule that shapes this crate
//!
//! Farshore catches the program's system calls: those of libc are patched to
//! jump to us, the rest raise SIGSYS (Syscall User Dispatch), which spares only
//! `libfarshore.so`'s own text. A call of ours through libc would come back to us.
//! So every system call here is a `syscall` instruction inlined into our own code
//! ([`raw`]), signal frames are left by our own `rt_sigreturn` ([`signal`]), and
//! memory comes from our own allocator ([`alloc`]). The crate is `no_std`, so that
//! nothing of std can slip in.
//!
//! | module | what it wraps |
//! |---|---|
//! | [`raw`] | the `syscall` instruction, errno |
//! | [`fd`] | file descriptors, reading small files |
//! | [`lease`] | read leases on the program's files |
//! | [`uffd`] | userfaultfd and its ioctls |
//! | [`vm`] | mmap and relatives, `process_madvise` on oneself, `/proc/self/mem` |
//! | [`guarded`] | memory accesses that return an error instead of a signal |
//! | [`kernel`] | the engine's `Kernel` on a userfaultfd |
//! | [`futex`], [`clock`] | core's `Futex`, the engine's `Clock` |
//! | [`signal`], [`tls`], [`sud`] | handlers, one thread-local pointer, Syscall User Dispatch |
//! | [`thread`] | threads of our own, without libc |
//! | [`hosted`] | programs that have libc's thread pointer for themselves |
//! | [`cpu`] | on which processor the calling thread runs |
//! | [`pagemap`] | `PAGEMAP_SCAN` and `/proc/self/pagemap` |
//! | [`idle`] | idle page tracking: which pages are used |
//! | [`samples`] | the same by samples of loads, in rings that the kernel fills |
//! | [`usdt`] | the engine's `Tracer`: probes for gdb, perf and bpftrace |
//! | [`alloc`], [`lock`], [`own`] | Farshore's own memory, which is never managed |
//! | [`lasting`] | memory for tables that outlives the process |
//! | [`probe`] | what this kernel and user can do, for `farshore doctor` |
//!
//! What runs in a signal handler or in the fault path ([`raw`], the methods of [`uffd::Uffd`], [`kernel`],
//! [`futex`], [`clock`], [`cpu`], [`guarded`], [`tls`], [`signal`]) does not allocate, takes no lock and does not panic.
#![cfg_attr(not(test), no_std)]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

extern crate alloc as alloc_crate;

pub mod alloc;
pub mod clock;
#[doc(hidden)]
pub mod conformance;
pub mod cpu;
pub mod fd;
pub mod futex;
pub mod guarded;
pub mod hosted;
pub mod huge;
pub mod idle;
pub mod kernel;
pub mod lasting;
pub mod lease;
pub mod lock;
pub mod own;
pub mod pagemap;
pub mod probe;
pub mod raw;
pub mod record;
pub mod samples;
pub mod signal;
pub mod sud;
pub mod thread;
pub mod tls;
pub mod uffd;
pub mod usdt;
pub mod vm;
