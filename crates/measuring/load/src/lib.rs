//! Workloads for comparisons, as a plain program: `farshore-load`.
//!
//! No line of Farshore is in it, in its dependencies either: what is measured under Farshore, under
//! Linux swap or natively is one and the same binary, and knows of none of them. This library is what
//! the program and those who start it share: the command line of each workload, and what it reports.
//!
//! | module | what is there |
//! |---|---|
//! | [`workload`] | the workloads and their options, as clap reads them and as words to pass on |
//! | [`outcome`] | what the program writes: marks of its phases, and the outcome |
//! | [`size`] | sizes such as `512M` |
//! | [`rates`] | the search for the highest rate that meets a target: what it is told, and what ends it |
//! | [`array`] | what `farshore-load open` says to a server of numbers, and what that answers |
//! | [`vectors`] | what is searched in, and how far one vector is from another: for the generator and for the server |
#![forbid(unsafe_code)]

pub mod array;
pub mod outcome;
pub mod rates;
pub mod size;
pub mod vectors;
pub mod workload;

pub use array::array_value;
