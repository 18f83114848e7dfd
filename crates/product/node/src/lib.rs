//! The memory node: RAM of this machine for programs of others, by NBD. `farshore node` is its command.
//!
//! ```text
//!  listener ─▶ worker (one a core) ─▶ session ─▶ exports ─▶ space ─▶ budget
//!  accepts     epoll, sockets         protocol   by name    memory   --memory
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | [`wire`] | the bytes of the protocol |
//! | [`session`] | one client's conversation, without input and output |
//! | [`exports`] | exports that come with their first client and go after their last |
//! | [`space`] | the memory of an export, within the budget of all |
//! | [`worker`] | the threads that serve connections |
//! | [`status`] | what is told of a node: a line, and metrics |
//!
//! Nothing here waits for one client. What a connection holds is bounded ([`session`]), and so are the connections, the exports
//! and their memory. What a client sends is believed in nothing: it gets an error of the protocol, or its connection ends.

pub mod exports;
pub mod session;
pub mod space;
pub mod status;
mod wire;
pub mod worker;

pub use farshore_command::say::{amount, tell};
