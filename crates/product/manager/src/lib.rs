//! The manager: memory of virtual machines that hand it over, within a limit. `farshore manage` is its command.
//!
//! ```text
//!   a virtual machine monitor (the client)                 its manager: a process for each client
//!  ┌───────────────────────────────────────┐  hand-over   ┌──────────────────────────────────────────────┐
//!  │ guest memory: a shared mapping of a   │─────────────▶│ connection ─▶ wire ─▶ regions, process       │
//!  │ memfd, registered with a userfaultfd  │  messages    │                                              │
//!  │ threads, the kernel for them, KVM   ──┼─────────────▶│ serve ─▶ Engine::resolve ─▶ copy into it     │
//!  │                                       │              │ evictors: protect ─▶ read ─▶ punch ─▶ write  │
//!  └───────────────────────────────────────┘              └──────────────────────────────────────────────┘
//! ```
//!
//! The engine is the one that programs under Farshore have in their own process. What differs is its kernel ([`kernel`], which states the invariants), and how faults
//! come ([`serve`]).
//!
//! | module | what it does |
//! |---|---|
//! | [`wire`] | the bytes of the protocols |
//! | [`regions`] | what a client says of its memory, against what the kernel says |
//! | [`memory`] | which page is where in which file |
//! | [`kernel`] | the engine's `Kernel` on them |
//! | [`process`] | the client's process: who it is, its mappings, its files |
//! | [`connection`] | requests and descriptors that come, answers that go |
//! | [`control`] | `farshore stat` and `set` |
//! | [`host`] | the engine of a client, and its threads |
//! | [`keeper`] | the process that starts a manager, and the next one if that one is killed |
//! | [`state`] | what a manager leaves to the next one |
//! | [`takeover`] | how the next one goes on |
//! | [`serve`] | faults |
//! | [`tap`], [`monitor`], [`ahead`] | runs of faults in the guest's virtual addresses are followed: what is heard, what QEMU's monitor is asked, which pages come |
//! | [`leave`] | the memory is given back |
//! | [`seldom`] | lines that may come again and again |
//! | [`session`] | one client from its connection to its end |
//! | [`restore`] | a client whose memory is filled from a snapshot, and stays: [`snapshot`] has the file, and which parts of it are needed first |
//!
//! # One process for each client
//!
//! The command listens, and starts a process for each connection, which is all that the client has: when it ends, nothing of the client's is left, and whatever goes wrong goes wrong for
//! one client alone. It is a child of its [`keeper`]. What is leaked here is leaked for as long as the client lives.

pub mod ahead;
pub mod chosen;
pub mod connection;
pub mod control;
pub mod host;
pub mod keeper;
pub mod kernel;
pub mod leave;
pub mod memory;
pub mod monitor;
pub mod process;
pub mod regions;
pub mod restore;
pub mod seldom;
pub mod serve;
pub mod session;
pub mod snapshot;
pub mod state;
pub mod takeover;
pub mod tap;
pub mod wire;
