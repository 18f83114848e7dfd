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
//! Three layers, a folder each; the `runtime` puts them together, and `ffi` is the way in from C. A module names those below it alone: `tests/layers.rs` has
//! their order. So the scheduler knows neither sockets nor requests nor channels; a service waits, and is woken, by a token.
//!
//! | layer | module | what it owns |
//! |---|---|---|
//! | `services` | [`net`] | services of TCP and UDP with limits |
//! | | `request` | requests in the unithread's own buffer; replies, and their completions, by the heir |
//! | | `sockets`, [`io`], [`channel`] | what unithreads wait for |
//! | | `far` | the library that serves page faults: **how a unithread waits at an access**, and why that is sound |
//! | | `far::text` | libc and its kin, inside of which nothing is switched away from |
//! | `scheduler` | `api`, `hold`, `handle` | what unithreads, and others, ask of it |
//! | | `join`, `life` | begin and end of a unithread |
//! | | `heir` | what a unithread leaves when it ends goes to a thread beside the workers |
//! | | `worker` | the loop of a worker |
//! | | [`record`], `stamps` | what the time of requests goes to, where that is asked for |
//! | | `overflow` | a stack that overflows says whose it was |
//! | | [`dispatch`] | one queue to idle workers, and which of them is next. Modelled with loom |
//! | | [`wait`], [`list`], [`doze`], [`lifetime`] | what threads share: a wait and its token, queues without locks, who sleeps, the end. Modelled with loom |
//! | | [`timers`] | a worker's deadlines |
//! | | [`pool`] | stacks, control blocks, request buffers, guards |
//! | | [`switch`], [`cost`], `exceptions` | from one stack to another, and what that costs; C++ exceptions, which are a unithread's own |
//! | `ground` | `ring`, `feed` | a worker's io_uring, in which it sleeps; requests that complete many times |
//! | | `library`, `own` | memory that stays in place: pinned, or never managed |
//! | | `os`, `error` | the kernel's view of a thread; what can go wrong |
//!
//! # What a unithread may rely on, and what not
//!
//! - It stays on its worker: addresses in thread-local storage stay valid. All unithreads of a worker share that storage. `errno`, and C++ exceptions, are each one's own.
//! - It is switched away from where it waits, and **at any access to far memory**. Who must not be, has a
//!   [`Hold`]: around a lock that another unithread may want, or while a `RefCell` in thread-local storage is borrowed.
//! - libc, the allocator (where it is a library of its own) and the C++ library are not switched away from: `malloc`, stdio, `getaddrinfo` may be called (`services/far/text.rs`). What is
//!   linked into the program itself is not seen, as an allocator written in Rust: see [`Allocator`].
//! - It is not preempted otherwise: long computations call [`checkpoint`].
//! - The signal mask and the alternate stack are the worker's; a unithread leaves them as they are.
//! - A forked child has no workers. It has the signals and the cores that the thread had that started the runtime, and may `exec` or exit. Its process ends when the function of its
//!   unithread returns, with status 0 (after a panic 101), as that of a thread's function would: the parent's rings are left alone. It can neither spawn nor join.
//! - What is started without `fork` (`posix_spawn`, `system`, a thread) inherits the worker's blocked signals and its one core: start it in [`as_before`].
//! - A panic ends the unithread alone, or the process ([`Panics`]).
//!
//! Nothing is allocated to spawn, switch, wait, sleep or join; a [`channel`] allocates where more wait than ever did before. The C interface
//! allocates a handle for the thread that joins.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[cfg(not(loom))]
mod ffi;
#[cfg(not(loom))]
mod ground;
#[cfg(not(loom))]
mod runtime;
mod scheduler;
#[cfg(not(loom))]
mod services;

pub use scheduler::{dispatch, doze, lifetime, list, timers, wait};

#[cfg(not(loom))]
pub use ground::error::{Error, SpawnError, Stopped};
#[cfg(not(loom))]
pub use runtime::Runtime;
#[cfg(not(loom))]
pub use scheduler::api::{as_before, checkpoint, is_unithread, sleep, spawn, stopping, worker_index, yield_now};
#[cfg(not(loom))]
pub use scheduler::config::{Config, Panics, Replies, WaitMode};
#[cfg(not(loom))]
pub use scheduler::handle::Handle;
#[cfg(not(loom))]
pub use scheduler::hold::{Hold, hold};
#[cfg(not(loom))]
pub use scheduler::join::JoinHandle;
#[cfg(not(loom))]
pub use scheduler::{cost, pool, record, switch};
#[cfg(not(loom))]
pub use services::allocator::Allocator;
#[cfg(not(loom))]
pub use services::request::Request;
#[cfg(not(loom))]
pub use services::{channel, io, net};
