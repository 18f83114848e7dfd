//! The eviction path: what makes frames free, on threads of its own (MAGE §4.1).
//!
//! [`pipeline`] is one evictor, [`partition`] the lists that evictors take victims from,
//! [`stage`] where victims wait, `loops` what is left alone because a program goes round. [`control`] decides how hard they work, and [`pace`]
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
