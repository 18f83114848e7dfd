//! Unithreads, and how workers run them. Nothing here knows a socket, a peer's request or a channel: those are services, which wait and are woken by
//! a [`wait::Token`]. (The requests of which the scheduler speaks are those of a worker's ring to the kernel.)
//!
//! The layer above hands down what the scheduler needs of it where a thread begins: how a worker is attached to the library (`worker::run`), and what the
//! heir's thread does (`heir.rs`). For a switch it hands down nothing.
// Under loom there are the modules alone that it models: the rest enters the kernel.

pub mod dispatch;
pub mod doze;
pub mod lifetime;
pub mod list;
pub mod timers;
pub mod wait;

#[cfg(not(loom))]
pub(crate) mod api;
#[cfg(not(loom))]
pub(crate) mod config;
#[cfg(not(loom))]
pub mod cost;
#[cfg(not(loom))]
pub(crate) mod exceptions;
#[cfg(not(loom))]
pub(crate) mod handle;
#[cfg(not(loom))]
pub(crate) mod heir;
#[cfg(not(loom))]
pub(crate) mod hold;
#[cfg(not(loom))]
pub(crate) mod join;
#[cfg(not(loom))]
pub(crate) mod life;
#[cfg(not(loom))]
pub(crate) mod overflow;
#[cfg(not(loom))]
pub mod pool;
#[cfg(not(loom))]
pub mod record;
#[cfg(not(loom))]
pub(crate) mod shared;
#[cfg(not(loom))]
pub(crate) mod stamps;
#[cfg(not(loom))]
pub mod switch;
#[cfg(not(loom))]
pub(crate) mod worker;
