//! Models of replacement policies. Each has so many pages of memory and takes one out when it needs room.

mod adaptive;
mod clocks;
mod known;
mod learned;
mod queues;

use crate::{Model, Trace};

/// Makes a model for a trace, with this much memory.
pub type Make = fn(&Trace, usize) -> Box<dyn Model>;

/// The model that is told which pages are streamed over.
const TOLD: &str = "CSR manager";

/// All models by name, each in a line with where it is from.
pub const ALL: &[(&str, Make)] = &[
    // Textbooks.
    ("LRU", |trace, capacity| Box::new(queues::Lru::new(trace, capacity))),
    ("FIFO", |trace, capacity| Box::new(queues::Fifo::new(trace, capacity))),
    ("CLOCK", |trace, capacity| Box::new(clocks::Clock::new(trace, capacity))),
    // ExtMem §3.4, after Linux: two lists and access bits.
    ("2Q-LRU", |trace, capacity| Box::new(clocks::Active::new(trace, capacity))),
    // Linux' generations.
    ("MGLRU", |trace, capacity| Box::new(clocks::Generations::new(trace, capacity))),
    // Megiddo and Modha, FAST 2003.
    ("ARC", |trace, capacity| Box::new(adaptive::Arc::new(trace, capacity))),
    // Yang et al., SOSP 2023.
    ("S3-FIFO", |trace, capacity| Box::new(queues::S3Fifo::new(trace, capacity))),
    // Zhang et al., NSDI 2024.
    ("SIEVE", |trace, capacity| Box::new(clocks::Sieve::new(trace, capacity))),
    // Flexible Swapping §6.5: reuse distances, learned by the instruction.
    ("SYS-R", |trace, capacity| Box::new(learned::SysR::new(trace, capacity))),
    // Flexible Swapping §5.4: what is cold by histograms of access distances leaves before it must.
    ("dt-reclaimer", |trace, capacity| Box::new(learned::Threshold::new(trace, capacity))),
    // ExtMem §3.4: a graph's vertices stay, and its edges pass through a window.
    (TOLD, |trace, capacity| Box::new(known::Graph::new(trace, capacity))),
];

/// Those that know nothing of their program but its accesses.
pub fn general() -> impl Iterator<Item = (&'static str, Make)> {
    ALL.iter().copied().filter(|(name, _)| *name != TOLD)
}

/// The model of this name.
///
/// # Panics
/// There is none.
pub fn make(name: &str, trace: &Trace, capacity: usize) -> Box<dyn Model> {
    let found = ALL.iter().find(|(of, _)| *of == name);
    found.map(|(_, make)| make(trace, capacity)).expect("it is in the list")
}
