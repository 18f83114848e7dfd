//! Memory that may be far away. All of this crate's `unsafe` is here.

mod region;

pub use region::Region;
