//! The command `farshore-advise`, which `farshore policy` becomes: policies of published systems, attached to a running program.
//!
//! A policy is a state machine without system calls: it is told events, and says wishes. One loop attaches it to a program.
//!
//! | module | what it does |
//! |---|---|
//! | [`args`] | the command line and its help |
//! | [`beside`] | attaches, hears, and makes the wishes |
//! | [`policy`] | what a policy is, and what it sees of its program |
//! | [`policies`] | the policies, one file each |
//! | [`say`] | wishes that are collected and joined |
//! | [`pages`] | what events tell of resident pages |
//! | [`places`] | which memory is meant: hint files, and a process's mappings |
#![cfg_attr(not(test), no_main)]
#![cfg_attr(test, allow(dead_code))]

mod args;
mod beside;
mod pages;
mod places;
mod policies;
mod policy;
mod say;

use std::ffi::OsString;
use std::io::Write;

use farshore_command::refusal::Refusal;
use farshore_command::usage::{self, Asked};
use farshore_command::without_caller;

farshore_command::main!(command);

/// Does what the command line says; the exit status.
fn command(words: Vec<OsString>) -> Result<u8, Refusal> {
    let (_, words) = without_caller(words);
    match args::parse(["farshore".into(), "policy".into()].into_iter().chain(words).collect())? {
        Asked::For(args::Command::Policy(arguments)) => beside::run(&arguments),
        Asked::Text(text) => usage::print(&text).map(|()| 0),
    }
}

/// Writes a line to standard output.
fn print(text: &str) -> Result<(), Refusal> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{text}").and_then(|()| output.flush()).map_err(|error| usage::cannot_print(&error))
}
