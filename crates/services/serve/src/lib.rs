//! Servers on unithreads: one for each connection or datagram, written as plain blocking code. What they serve lies in memory that may be far away:
//! while a page comes, the worker goes on with other requests.
//!
//! Input and output buffers lie on the stacks of unithreads, which are near: the kernel writes to them by itself.
#![deny(unsafe_code)]

pub mod array;
mod counters;
pub mod kv;
#[allow(unsafe_code)]
pub mod memory;
pub mod messages;
pub mod numbers;
pub mod scan;
pub mod service;
pub mod tpcc;
pub mod vsearch;
