//! The eviction path: frees frames, on threads of its own (MAGE §4.1).
//!
//! [`pipeline`] is one evictor, [`partition`] the lists that evictors take victims from, [`stage`] where victims wait, `loops`
//! which pages evictors leave alone because a program goes round. [`control`] decides how hard evictors work, and [`pace`]
//! carries it out.
pub mod control;
pub(crate) mod loops;
pub mod pace;
pub mod partition;
pub mod pipeline;
mod ring;
mod select;
pub mod stage;
mod writes;
