//! The fault path: runs when a thread touches a page that is not mapped as the access needs.
//!
//! [`resolve`] decides and acts; [`huge`] brings fresh memory in huge pages; [`run`] lets neighbours come along; [`ahead`] brings
//! the pages that a prefetcher has asked for; [`pins`] serves system calls; [`unwaited`] is the fault of a thread that does
//! something else meanwhile. `guess` says whether a page that is read is mapped writable, `epoch` whether an evictor has protected it
//! meanwhile.
pub mod ahead;
pub(crate) mod epoch;
pub(crate) mod guess;
pub mod huge;
pub mod pins;
pub mod resolve;
pub(crate) mod run;
pub mod unwaited;
