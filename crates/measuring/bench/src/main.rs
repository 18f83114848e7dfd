//! The command `farshore-bench`, which `farshore bench` becomes: one process, and to the user one command.
//!
//! `farshore` says first where it is itself ([`farshore_command::CALLER`]): that is what targets run. Without that word it is the `farshore`
//! beside this command, or else in PATH.
#![cfg_attr(not(test), no_main)]
#![cfg_attr(test, allow(dead_code))]

use std::ffi::OsString;
use std::path::PathBuf;

use farshore_bench::args::{Command, WORDS};
use farshore_bench::run::{self, Failure};
use farshore_bench::targets::tools;
use farshore_command::refusal::Refusal;
use farshore_command::usage::{self, Asked};
use farshore_command::without_caller;

farshore_command::main!(command);

/// Does what the command line says; the exit status.
fn command(words: Vec<OsString>) -> Result<u8, Refusal> {
    let (farshore, words) = without_caller(words);
    // What the user has written: help, errors and results show it so.
    let line: Vec<OsString> = ["farshore".into(), "bench".into()].into_iter().chain(words).collect();
    let shown = line.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let arguments = match usage::command(line, &WORDS)? {
        Asked::For(Command::Bench(arguments)) => arguments,
        Asked::Text(text) => return usage::print(&text).map(|()| 0),
    };
    let farshore = farshore.map_or_else(own, Ok)?;
    run::bench(&arguments, &farshore, shown).map_err(|failure| match failure {
        Failure::Usage(why) => Refusal::cannot_start(why),
        Failure::Failed(why) => Refusal::failed(why),
    })
}

/// The `farshore` of this command, when it is called by its own name. Where there is none, the targets that need it say so.
fn own() -> Result<PathBuf, Refusal> {
    let this = std::env::current_exe()
        .map_err(|error| Refusal::failed(format!("cannot find out where this command is ({error}): is /proc mounted?")))?;
    let beside = this.with_file_name("farshore");
    let elsewhere = || tools::find("farshore");
    Ok(if tools::is_executable(&beside) { beside } else { elsewhere().unwrap_or(beside) })
}
