//! The command `farshore`.
//!
//! `run` checks what can be checked, and then *becomes* the program: no parent stays, and the program finds the process as it
//! was before (see [`farshore_command::entry`]).
//!
//! | module | what it does |
//! |---|---|
//! | [`args`] | the command line and its help |
//! | [`run`], [`program`], [`library`] | `farshore run` |
//! | [`doctor`] | `farshore doctor` |
//! | [`stat`] | `farshore stat` and `farshore set` |
//! | [`others`] | `farshore bench`, `node`, `manage`, `vm`, `daemon`, `top`, `metrics`, `plan`, `record`, `report` and `policy`: become programs of their own, of which `run` carries nothing |
#![cfg_attr(not(test), no_main)]
#![cfg_attr(test, allow(dead_code))]

mod args;
mod doctor;
mod library;
mod others;
mod program;
mod run;
mod stat;

use std::ffi::OsString;
use std::io::Write;

use args::Command;
use farshore_command::refusal::Refusal;
use farshore_command::usage::{self, Asked};

// The unwinder, which the standard library has for backtraces, as a part of this program. As a library of its own (libgcc_s) it is loaded at every start,
// and asks the processor what it can do, which takes microseconds a question in a virtual machine.
#[link(name = "gcc_eh", kind = "static", modifiers = "-bundle")]
unsafe extern "C" {}

/// Where it is linked statically no library comes into it, and programs under Farshore know it by this.
#[used]
#[unsafe(link_section = ".note.farshore")]
static MARK: farshore_launch::Mark = farshore_launch::Mark::COMMAND;

farshore_command::main!(command);

/// Does what the command line says; the exit status.
fn command(words: Vec<OsString>) -> Result<u8, Refusal> {
    match args::parse(words)? {
        Asked::For(Command::Run(arguments)) => run::run(*arguments),
        Asked::For(Command::Doctor(arguments)) => doctor::doctor(&arguments),
        Asked::For(Command::Stat(arguments)) => stat::stat(&arguments),
        Asked::For(Command::Set(arguments)) => stat::set(&arguments),
        Asked::For(Command::Top(words)) => others::TOP.execute(words.words),
        Asked::For(Command::Metrics(words)) => others::METRICS.execute(words.words),
        Asked::For(Command::Node(words)) => others::NODE.execute(words.words),
        Asked::For(Command::Manage(words)) => others::MANAGE.execute(words.words),
        Asked::For(Command::Vm(words)) => others::VM.execute(words.words),
        Asked::For(Command::Daemon(words)) => others::DAEMON.execute(words.words),
        Asked::For(Command::Policy(words)) => others::POLICY.execute(words.words),
        Asked::For(Command::Plan(words)) => others::PLAN.execute(words.words),
        Asked::For(Command::Record(words)) => others::RECORD.execute(words.words),
        Asked::For(Command::Report(words)) => others::REPORT.execute(words.words),
        Asked::For(Command::Bench(words)) => others::BENCH.execute(words.words),
        Asked::Text(text) => usage::print(&text).map(|()| 0),
    }
}

/// Writes `text` to standard output.
fn print(text: &str) -> Result<(), Refusal> {
    let mut output = std::io::stdout().lock();
    output.write_all(text.as_bytes()).and_then(|()| output.flush()).map_err(|error| usage::cannot_print(&error))
}
