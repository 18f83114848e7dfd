//! What the program's memory calls do to mappings of ours among its own.

#[allow(dead_code, reason = "only a part of the module is used here")]
#[path = "../src/ground/ranges.rs"]
mod ranges;
#[path = "../src/ground/spare.rs"]
mod spare;
