//! What the models of several crates share. It is a crate, so that no crate includes the tests of another one.
//!
//! - [`word`]: the page word as a machine, for `core`'s `model_word` and for the fuzz target `word`.
//! - Under `--cfg loom`, [`explore`] and `kernel`: how loom models are run, and the kernel's part in them, for the models of `core` and `uthread`.

#[cfg(loom)]
mod explore;
#[cfg(loom)]
pub mod kernel;
pub mod word;

#[cfg(loom)]
pub use explore::{explore, must_die};
