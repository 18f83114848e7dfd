//! The command `farshore-manager`, which `farshore manage` becomes. What it is made of is in the library of this crate.
#![cfg_attr(not(test), no_main)]
#![cfg_attr(test, allow(dead_code))]

mod args;
mod start;

use std::ffi::OsString;

use farshore_command::refusal::Refusal;
use farshore_command::usage::{self, Asked};
use farshore_command::without_caller;

farshore_command::main!(command);

/// Does what the command line says; the exit status.
fn command(words: Vec<OsString>) -> Result<u8, Refusal> {
    let (_, words) = without_caller(words);
    if let [first, options] = &words[..]
        && first == start::CLIENT
    {
        return start::client(options);
    }
    let line = ["farshore", "manage"].map(OsString::from).into_iter().chain(words).collect();
    match args::parse(line)? {
        Asked::For(arguments) => start::manage(&arguments),
        Asked::Text(text) => usage::print(&text).map(|()| 0),
    }
}
