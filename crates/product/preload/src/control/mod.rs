//! Swap spaces that come and go ([`spaces`]) or fail ([`watch`]).

pub mod spaces;
pub mod watch;
