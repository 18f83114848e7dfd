//! The command `farshore-daemon`, which `farshore daemon` becomes: an HTTP API and a web page over the virtual machines and programs of its user.
//!
//! It has no state that matters. What runs is found by the control sockets, as `farshore top` finds it, and is steered by them, as `farshore set` steers. So a daemon
//! that is started anew knows what runs, and what it has started goes on without it.
//!
//! ```text
//!  browser, curl ──HTTP──▶ door (bounded) ──▶ guard: who asks? ──▶ api: a route ──┬──▶ watch: what the looks of the last minutes saw
//!                                                                                ├──▶ heat: which memory is in RAM, while somebody looks
//!                                                                                ├──▶ created: virtual machines that were started here
//!                                                                                └──▶ client: the control socket of the program
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | [`args`] | the command line and its help |
//! | [`start`] | from the command line to the end |
//! | [`guard`] | who may ask |
//! | [`api`] | what is asked, and what is answered |
//! | [`shapes`] | requests and answers as types, which describe themselves |
//! | [`openapi`] | the description of the API |
//! | [`watch`] | looks at all programs each second, and keeps some minutes of it |
//! | [`heat`] | looks at the memory of those that somebody watches |
//! | [`created`] | virtual machines that were started here |
//! | [`host`] | what the machine says of its memory |
#![cfg_attr(not(test), no_main)]
#![cfg_attr(test, allow(dead_code))]
#![forbid(unsafe_code)]

mod api;
mod args;
mod created;
mod guard;
mod heat;
mod host;
mod openapi;
mod shapes;
mod start;
mod watch;

use std::ffi::OsString;

use args::Command;
use farshore_command::refusal::Refusal;
use farshore_command::usage::{self, Asked};
use farshore_command::without_caller;

farshore_command::main!(command);

/// Does what the command line says; the exit status.
fn command(words: Vec<OsString>) -> Result<u8, Refusal> {
    let (farshore, words) = without_caller(words);
    let line = ["farshore".into(), "daemon".into()].into_iter().chain(words).collect();
    match args::parse(line)? {
        Asked::For(Command::Daemon(arguments)) => start::daemon(&arguments, farshore),
        Asked::Text(text) => usage::print(&text).map(|()| 0),
    }
}
