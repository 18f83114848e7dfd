//! The control socket, the command's end: which programs run under Farshore, and what they answer.
//!
//! [`farshore_config::control`] has the protocol, and `farshore_socket` the library's end.
//!
//! | module | what it does |
//! |---|---|
//! | [`client`] | one program, which the user has named: asked until it answers or ten seconds are over, and woken if it is dormant |
//! | [`programs`] | all programs of a user: found without touching them |
//! | [`round`] | all programs at once, until one deadline: those that do not answer keep no other waiting |
//! | [`look`] | looks at them again and again: rates, and the last minute |
//! | [`vms`] | which of them are virtual machines |
//! | [`kinds`] | what of a process lies in RAM, as the kernel tells it |
//! | [`shown`] | sizes and times for reading |

pub mod client;
pub mod kinds;
pub mod look;
pub mod programs;
pub mod round;
pub mod shown;
pub mod vms;

pub use client::Client;
