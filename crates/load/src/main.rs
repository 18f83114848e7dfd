//! `farshore-load`: workloads for comparisons. A plain program.
#![forbid(unsafe_code)]

fn main() {}
