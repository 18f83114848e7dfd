//! What `farshore stat` and `farshore set` reach: [`counters`], built-in policies ([`chosen`]), policies beside the program ([`policies`]), and swap spaces that come and go ([`spaces`], [`copies`]) or fail ([`watch`]).
//!
//! Above it: `process`, which writes the counters at the end and hands swap spaces to a forked child. Below: the ground, and `family`.

pub mod chosen;
pub mod copies;
pub mod counters;
pub mod policies;
pub mod spaces;
pub mod watch;
