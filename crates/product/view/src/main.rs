//! The command `farshore-view`, which `farshore top`, `metrics`, `plan`, `record` and `report` become: what one looks at while programs run under Farshore.
//!
//! It is a program of its own, so that `farshore run`, which starts programs, carries no terminal and no server.
//!
//! | module | what it does |
//! |---|---|
//! | [`args`] | the command line and its help |
//! | [`top`] | `farshore top`: the table, on a screen or printed once |
//! | [`plan`] | `farshore plan`: how much memory a program needs |
//! | [`record`] | `farshore record`: what happens to a program's memory, to a file |
//! | [`report`] | `farshore report`: a page of such a file |
//! | [`metrics`] | `farshore metrics`: the counters in the form of OpenMetrics, for Prometheus |
//! | [`touch`] | the program that `farshore doctor --measure` runs |
#![cfg_attr(not(test), no_main)]
#![cfg_attr(test, allow(dead_code))]

mod args;
mod metrics;
mod plan;
mod record;
mod report;
mod top;
mod touch;

use std::ffi::OsString;
use std::io::Write;

use args::Command;
use farshore_command::refusal::Refusal;
use farshore_command::usage::{self, Asked};
use farshore_command::without_caller;

farshore_command::main!(command);

/// Does what the command line says; the exit status.
fn command(words: Vec<OsString>) -> Result<u8, Refusal> {
    let (farshore, words) = without_caller(words);
    if words.first().is_some_and(|word| word == report::names::COMMAND) {
        return report::names::serve();
    }
    if words.first().is_some_and(|word| word == touch::COMMAND) {
        return touch::touch(&words[1..]);
    }
    let line = std::iter::once("farshore".into()).chain(words).collect();
    match args::parse(line)? {
        Asked::For(Command::Top(arguments)) => top::top(&arguments),
        Asked::For(Command::Metrics(arguments)) => metrics::metrics(&arguments),
        Asked::For(Command::Plan(arguments)) => plan::plan(&arguments, farshore),
        Asked::For(Command::Record(arguments)) => record::record(&arguments, farshore),
        Asked::For(Command::Report(arguments)) => report::report(&arguments),
        Asked::Text(text) => usage::print(&text).map(|()| 0),
    }
}

/// Writes `text` to standard output.
fn print(text: &str) -> Result<(), Refusal> {
    let mut output = std::io::stdout().lock();
    output.write_all(text.as_bytes()).and_then(|()| output.flush()).map_err(|error| usage::cannot_print(&error))
}
