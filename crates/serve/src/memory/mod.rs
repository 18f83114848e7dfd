//! Memory that may be far away, and the heap of a program of unithreads. All of this crate's `unsafe` is here.

#[cfg(test)]
mod far;
mod heap;
mod region;

pub use heap::HeldHeap;
pub use region::Region;
