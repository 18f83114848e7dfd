//! Everything that the command `farshore` and the library `libfarshore.so` both read and write, so that the two can never
//! disagree about it.
//!
//! # How an option travels
//!
//! ```text
//! built-in defaults < config file (TOML) < command line ──▶ Partial ──finish──▶ Options
//!                                                                              │ to_json
//!             library ◀── Options::from_json ◀── environment FARSHORE_OPTIONS ◀┘
//! ```
//!
//! 1. A layer is a [`Partial`]: it sets only the options that it contains. A later layer wins, key by key.
//! 2. Every value has one text form, which the command line, the config file and the JSON string share:
//!    what `Display` writes, `FromStr` reads back to the same value.
//! 3. [`Options`] that came out of [`Partial::finish`] or [`Options::from_json`] are valid: no code checks them again.
//! 4. An error is one line that says what was wrong, with which value, and what to write instead.
//!
//! [`stats`] is the other direction: the counters that the library writes, as JSON schema 1. [`control`] is how a running
//! program is asked for them, and given other settings. [`pace`] holds the numbers by which evictors work.
#![forbid(unsafe_code)]

mod ablate;
pub mod advice;
mod budget;
pub mod control;
mod delay;
mod error;
mod named;
mod nbd;
mod options;
pub mod pace;
mod plain;
mod redis;
mod server;
mod size;
mod slowdown;
pub mod stats;
mod swap;
mod text;
mod time;

pub use ablate::Ablate;
pub use budget::{BUDGET_NAME_MAX, Budget, Seat};
pub use delay::Delay;
pub use error::ConfigError;
pub use named::Named;
pub use nbd::{EXPORT_MAX, NbdExport};
pub use options::{
    FaultMode, Handed, HandedDevice, MEMORY_MIN, OLD_PRELOAD_VARIABLE, OPTIONS_VARIABLE, Options, POLICIES, PREFETCHERS,
    PRELOAD_VARIABLE, Partial, StatsTarget, THRESHOLD_DEFAULT,
};
pub use plain::{plain, plain_json, plain_lines};
pub use redis::RedisKeys;
pub use server::ServerPlace;
pub use size::Size;
pub use slowdown::{MEMORY_MIN_CHOSEN, Slowdown, machine_memory};
pub use swap::{Compression, SWAP_DIR_DEFAULT, SWAP_DIR_VARIABLE, SwapSpec, default_swap, with_default};
pub use time::Time;
