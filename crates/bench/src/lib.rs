//! Comparisons that anyone can repeat: `farshore bench`.
//!
//! One program, run as it is under each of several *targets*, in turn, round by round. See [`result`] for what comes out.
//!
//! | module | what it does |
//! |---|---|
//! | [`result`] | the results' schema |
//! | [`targets`] | what a program is run under |

pub mod result;
pub mod targets;
