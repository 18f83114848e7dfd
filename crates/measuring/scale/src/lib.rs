//! A model of far-memory systems on more processors and devices than there are here: what each step of a fault and of an eviction costs, and what these steps
//! wait for. It answers which of them stops which system at how many cores.
//!
//! ```text
//!  thread    think ─▶ fault: work, locks ─▶ a frame ─▶ read ─▶ work, locks ─▶ think
//!                                              ▲ none free: waits, or evicts a batch itself
//!  evictor   a batch: work, locks for each page ─▶ flush: an interrupt for each core ─▶ write ─▶ frames
//! ```
//!
//! 1. **A core does one thing at a time**; a thread that waits for a lock keeps its core, one that waits for a frame leaves it.
//! 2. **A lock is taken in the order of requests.** When another core had it last, its cache line travels first, longer between sockets.
//! 3. **A flush interrupts each core that runs a thread**, one after the other; each of them works off its interrupts in turn, and loses that time.
//! 4. **A device serves pages in turn**, at its rate; its latency comes on top.
//! 5. Costs vary by a tenth, from a seed. The same seed gives the same run.
//!
//! Systems are data ([`System`]): which locks are shared by all, which costs they have, who evicts. So an idea of a paper is one line that differs. The costs are in
//! [`systems`], each with its source: measured here, digits of a paper, or fitted to digits of a paper, which a figure that shows these same digits cannot prove.
//!
//! What is not modelled: caches and memory bandwidth, hyper-threads, the scheduler, which page is hot.

#![forbid(unsafe_code)]

pub mod machine;
pub mod system;
pub mod systems;
mod told;
mod world;

pub use machine::{Far, Interrupts, Machine};
pub use system::{Eviction, Load, Lock, Step, System};
pub use told::{Cause, Told};
pub use world::run;
