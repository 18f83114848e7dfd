//! Unithreads: user-level threads that leave their worker where they touch a page that is not there (Adios, sections 3.2 to 3.4).
//!
//! A thread that waits for its page does nothing else meanwhile. A unithread that waits leaves its worker to the next one, and a switch is some forty
//! instructions.
//!
//! ```text
//!  spawn ─▶ dispatch ─▶ worker ─▶ unithread ─ waits ─▶ worker runs others ─ completed ─▶ unithread …
//!           one queue   one a core, with a ring of its own
//! ```
//!
//! | module | what it owns |
//! |---|---|
//! | [`switch`] | from one stack to another |
//! | [`pool`] | stacks, control blocks, request buffers, guards |
//! | [`wait`], [`list`], [`doze`] | what threads share: a wait and its token, queues without locks, who sleeps. Modelled with loom |
//! | [`dispatch`] | one queue to idle workers, and which of them is next. Modelled with loom |
//! | [`timers`] | a worker's deadlines |
//! | `worker`, `ring`, `feed` | the loop of a worker; its io_uring, in which it sleeps; requests that complete many times |
//! | `overflow` | a stack that overflows says whose it was |
//! | `runtime`, `join` | begin and end: of a runtime, of a unithread |
//! | `heir` | what a unithread leaves when it ends goes to a thread beside the workers |
//! | `request` | requests in the unithread's own buffer; replies, and their completions, by the heir |
//! | `exceptions` | C++ exceptions, which are a unithread's own |
//! | `own` | memory that is never managed, for what a worker touches while it schedules |
//! | `far` | the library that serves page faults: **how a unithread waits at an access**, and why that is sound |
//! | `text` | libc and its kin, inside of which nothing is switched away from |
//! | `api`, [`io`], [`channel`], `ffi` | what unithreads call, from Rust and from C |
//! | [`net`] | TCP and UDP, and services of them with limits |
//! | [`cost`] | what a switch costs here |
//!
//! # What a unithread may rely on, and what not
//!
//! - It stays on its worker: addresses in thread-local storage stay valid. All unithreads of a worker share that storage. `errno`, and C++ exceptions, are each one's own.
//! - It is switched away from where it waits, and **at any access to far memory**. Who must not be, has a
//!   [`Hold`]: around a lock that another unithread may want, or while a `RefCell` in thread-local storage is borrowed.
//! - libc, the allocator (where it is a library of its own) and the C++ library are not switched away from: `malloc`, stdio, `getaddrinfo` may be called (`text.rs`). What is
//!   linked into the program itself is not seen, as an allocator written in Rust: see [`Allocator`].
//! - It is not preempted otherwise: long computations call [`checkpoint`].
//! - The signal mask and the alternate stack are the worker's; a unithread leaves them as they are.
//! - A forked child has no workers. It has the signals and the cores that the thread had that started the runtime, and may `exec` or exit. Its process ends when the function of its
//!   unithread returns, with status 0 (after a panic 101), as that of a thread's function would: the parent's rings are left alone. It can neither spawn nor join.
//! - What is started without `fork` (`posix_spawn`, `system`, a thread) inherits the worker's blocked signals and its one core: start it in [`as_before`].
//! - A panic ends the unithread alone, or the process ([`Panics`]).
//!
//! Nothing is allocated to spawn, switch, wait, sleep or join; a [`channel`] allocates where more wait than ever did before. The C interface
//! allocates a handle for who joins.
// Under loom there are the modules alone that it models: the rest enters the kernel.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

pub mod dispatch;
pub mod doze;
pub mod lifetime;
pub mod list;
pub mod timers;
pub mod wait;

#[cfg(not(loom))]
mod allocator;
#[cfg(not(loom))]
mod api;
#[cfg(not(loom))]
pub mod channel;
#[cfg(not(loom))]
pub mod cost;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod exceptions;
#[cfg(not(loom))]
mod far;
#[cfg(not(loom))]
mod feed;
#[cfg(not(loom))]
mod ffi;
#[cfg(not(loom))]
mod heir;
#[cfg(not(loom))]
pub mod io;
#[cfg(not(loom))]
mod join;
#[cfg(not(loom))]
pub mod net;
#[cfg(not(loom))]
mod overflow;
#[cfg(not(loom))]
mod own;
#[cfg(not(loom))]
pub mod pool;
#[cfg(not(loom))]
mod request;
#[cfg(not(loom))]
mod ring;
#[cfg(not(loom))]
mod runtime;
#[cfg(not(loom))]
pub mod switch;
#[cfg(not(loom))]
mod text;
#[cfg(not(loom))]
mod thread;
#[cfg(not(loom))]
mod worker;

#[cfg(not(loom))]
pub use allocator::Allocator;
#[cfg(not(loom))]
pub use api::{Hold, as_before, checkpoint, hold, is_unithread, sleep, spawn, stopping, worker_index, yield_now};
#[cfg(not(loom))]
pub use error::{Error, SpawnError, Stopped};
#[cfg(not(loom))]
pub use join::JoinHandle;
#[cfg(not(loom))]
pub use request::Request;
#[cfg(not(loom))]
pub use runtime::{Config, Handle, Panics, Runtime, WaitMode};
