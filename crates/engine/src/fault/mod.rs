//! The fault path: what runs when a thread touches a page that is not mapped as the access needs.
//!
//! [`resolve`] decides and does; [`run`] lets pages of a stream come along; [`pins`] does the same for system calls.
pub mod pins;
pub mod resolve;
mod run;
