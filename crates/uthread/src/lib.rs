//! Unithreads: user-level threads that can be switched away from inside a signal handler (Adios, sections 3.2 to 3.4).
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

pub mod dispatch;
pub mod doze;
pub mod list;
pub mod timers;
pub mod wait;

#[cfg(not(loom))]
mod thread;
#[cfg(not(loom))]
mod api;
#[cfg(not(loom))]
pub mod channel;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod ffi;
#[cfg(not(loom))]
pub mod io;
#[cfg(not(loom))]
mod join;
#[cfg(not(loom))]
pub mod pool;
#[cfg(not(loom))]
mod request;
#[cfg(not(loom))]
mod ring;
#[cfg(not(loom))]
mod runtime;
#[cfg(not(loom))]
pub mod seam;
#[cfg(not(loom))]
pub mod switch;
#[cfg(not(loom))]
mod worker;

#[cfg(not(loom))]
pub use api::{Hold, checkpoint, hold, is_unithread, sleep, spawn, stopping, worker_index, yield_now};
#[cfg(not(loom))]
pub use error::{Error, SpawnError, Stopped};
#[cfg(not(loom))]
pub use join::JoinHandle;
#[cfg(not(loom))]
pub use request::Request;
#[cfg(not(loom))]
pub use runtime::{Config, Handle, Panics, Runtime, WaitMode};
