//! Links for models: as many unithreads as they like, without any.

use farshore_core::sync::AtomicU32;
use farshore_uthread::list::Links;

/// Links of as many unithreads, without the unithreads.
#[derive(Default)]
pub struct Chain(Vec<AtomicU32>);

impl Chain {
    /// Of `count`.
    pub fn new(count: usize) -> Chain {
        Chain((0..count).map(|_| AtomicU32::new(0)).collect())
    }
}

impl Links for Chain {
    fn next(&self, index: u32) -> &AtomicU32 {
        &self.0[index as usize]
    }
}
