//! What a dormant process counts.

#[path = "../src/dormant/ranges.rs"]
mod ranges;
