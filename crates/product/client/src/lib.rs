//! The control socket, the command's end: which programs run under Farshore, and what they answer.
//!
//! [`farshore_config::control`] has the protocol, and `farshore_socket` the library's end.
//!
//! | module | what it does |
//! |---|---|
//! | [`client`] | one program, which the user has named: asked until it answers or ten seconds are over, and woken if it is dormant |
//! | [`programs`] | all programs of a user: found without touching them |
//! | [`round`] | all programs at once, until one deadline: those that do not answer keep no other waiting |
//! | [`kinds`] | what of a process lies in RAM, as the kernel tells it |
//! | [`shown`] | sizes and times for reading |

pub mod client;
pub mod kinds;
pub mod programs;
pub mod round;
pub mod shown;

pub use client::Client;
