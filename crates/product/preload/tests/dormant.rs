//! What a dormant process counts.

#[path = "../src/dispatch/dormant/ranges.rs"]
mod ranges;
