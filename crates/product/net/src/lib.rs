//! What each system call needs, over any [`Memory`]: the net without the library around it.
//!
//! Under userfaultfd's signals the kernel's own access to an absent page fails with `EFAULT`. So the memory that a call touches is made present before the call,
//! and kept until it has ended.
//!
//! * [`table`] says of every system call which memory it touches;
//! * [`buffers`] pins that memory;
//! * [`transfer`] makes calls whose buffers are larger than may be pinned at once, in pieces;
//! * [`asynchronous`] keeps the memory of requests that go on after their call;
//! * [`calls`] has the calls that are no rule, and [`calls::dispatch`], the way in.
//!
//! The crate `catch` catches the calls; what those that change memory, signals and processes do, is the library's (`preload`).
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

pub mod asynchronous;
pub mod buffers;
pub mod calls;
pub mod table;
pub mod transfer;

pub use buffers::Memory;
