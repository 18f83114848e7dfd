//! What every layer stands on.

pub mod environment;
pub mod nodes;
pub mod own_threads;
pub mod report;
pub mod runtime;
pub mod socket;
pub mod thread;
pub mod unithreads;
