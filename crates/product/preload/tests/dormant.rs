//! What a dormant process counts.

#[path = "../src/ground/ranges.rs"]
mod ranges;
