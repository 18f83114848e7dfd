//! How an engine is built, and the sizes that follow.

use crate::evict::control::Wanted;
use farshore_core::ablated::Ablated;
use farshore_core::limits::{
    EVICTORS_MAX, MEMORY_LIMIT_MIN, PAGE_SIZE, batch_pages, batch_pages_most, batch_pages_room, stages_each,
};
use farshore_core::slots::owners::OWNERS_MAX;

/// The most evictors where their number is not fixed.
pub const EVICTORS_AUTO: usize = 4;

/// How an engine is built.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Local memory for managed pages, bytes.
    pub memory: u64,
    /// Evictor threads, 1 to 16.
    pub evictors: usize,
    /// Cores of the machine.
    pub cores: usize,
    /// The NUMA nodes that the cores are on.
    pub nodes: Nodes,
    /// Which parts of the evictors' pace are fixed.
    pub wanted: Wanted,
    /// What an experiment leaves out.
    pub ablated: Ablated,
}

/// On which NUMA node each core is. Nothing is said about cores beyond [`OWNERS_MAX`].
#[derive(Clone, Copy, Debug)]
pub struct Nodes(pub(crate) [u8; OWNERS_MAX]);

impl Nodes {
    /// All cores on one node.
    pub const ONE: Nodes = Nodes([0; OWNERS_MAX]);

    /// The nodes that `node` gives for each core.
    pub fn new(node: impl FnMut(usize) -> u8) -> Nodes {
        Nodes(core::array::from_fn(node))
    }
}

/// Sizes that follow from a [`Shape`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Pages of the largest batch.
    pub batch: usize,
    /// Stages of one evictor: what it may have in flight, and what lingers for a rescue.
    pub stages_each: usize,
    /// Stages of all evictors. They are part of the limit.
    pub stages: u64,
    /// Frames for resident pages: the limit less the stages.
    pub frames: u64,
}

impl Shape {
    /// The shape for this memory (bytes). Where the number of evictors is not fixed there are as many as there are cores, at most
    /// [`EVICTORS_AUTO`], and at most as many as have room for batches that are.
    pub fn fitting(memory: u64, wanted: Wanted, ablated: Ablated, cores: usize, nodes: Nodes) -> Shape {
        let batch = ablated.batch.or(wanted.batch);
        let has_room = |n: &usize| batch.is_none_or(|batch| u64::from(batch) <= batch_pages_room(memory, *n));
        let as_many_as_fit = || (1..=cores.min(EVICTORS_AUTO)).rev().find(has_room).unwrap_or(1);
        let evictors = wanted.evictors.map_or_else(as_many_as_fit, |n| n as usize);
        Shape { memory, evictors, cores, nodes, wanted, ablated }
    }

    /// The sizes for this shape.
    ///
    /// # Panics
    /// When the memory is below [`MEMORY_LIMIT_MIN`] or the number of evictors is out of range; callers check the user's
    /// values before.
    pub fn sizes(&self) -> Sizes {
        assert!(self.memory >= MEMORY_LIMIT_MIN, "memory limit {} is below {MEMORY_LIMIT_MIN}", self.memory);
        assert!((1..=EVICTORS_MAX).contains(&self.evictors), "{} evictors", self.evictors);
        let limit = self.memory / PAGE_SIZE as u64;
        let evictors = self.evictors as u64;
        // One that was fixed is as large as there is room for. (Callers have refused sizes that have no room; a forked child may
        // have less memory.)
        let fixed = |fixed| u64::from(fixed).min(batch_pages_most(self.memory, self.evictors) as u64);
        let batch = match self.ablated.batch {
            Some(asked) => u64::from(asked).min(batch_pages_room(self.memory, self.evictors)),
            None => self.wanted.batch.map_or(batch_pages(limit, evictors), fixed),
        };
        let each = stages_each(batch, limit, evictors);
        Sizes { batch: batch as usize, stages_each: each as usize, stages: each * evictors, frames: limit - each * evictors }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(memory: u64, ablated: Ablated) -> Shape {
        Shape::fitting(memory, Wanted::default(), ablated, 4, Nodes::ONE)
    }

    #[test]
    fn an_experiment_has_the_batches_that_it_asks_for() {
        for batch in [1, 3, 256, 512] {
            let shape = shape(64 << 20, Ablated { batch: Some(batch), ..Ablated::default() });
            let sizes = shape.sizes();
            assert_eq!((sizes.batch, shape.evictors), (batch as usize, 4), "{sizes:?}");
            assert!(sizes.stages_each >= 3 * batch as usize && sizes.frames + sizes.stages == 16384, "{sizes:?}");
        }
        // As many evictors as have room for such batches; and no larger than there is room for.
        assert_eq!(shape(16 << 20, Ablated { batch: Some(512), ..Ablated::default() }).evictors, 1);
        assert_eq!(shape(4 << 20, Ablated { batch: Some(512), ..Ablated::default() }).sizes().batch, 146);
        assert_eq!(shape(64 << 20, Ablated::default()).sizes().batch, 34);
    }

    #[test]
    fn the_program_has_nearly_all_of_its_limit() {
        for (memory, evictors, percent) in
            [(64 << 20, 2, 96.0), (64 << 20, 4, 96.0), (1 << 30, 2, 99.0), (1 << 30, 4, 98.5), (16 << 30, 4, 99.0)]
        {
            let sizes = Shape { evictors, ..shape(memory, Ablated::default()) }.sizes();
            let free = farshore_core::limits::high_watermark(sizes.batch as u64, sizes.frames);
            let has = 100.0 * (sizes.frames - free) as f64 / (memory >> 12) as f64;
            assert!(has >= percent, "{has} % of {memory} with {evictors} evictors");
        }
    }
}
