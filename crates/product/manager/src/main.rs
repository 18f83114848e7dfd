//! The command `farshore-manager`, which `farshore manage` and `farshore vm` become. What it is made of is in the library of this crate.
#![cfg_attr(not(test), no_main)]
#![cfg_attr(test, allow(dead_code))]

mod args;
mod qemu;
mod start;
mod vm;
mod vms;

use std::ffi::OsString;

use args::{Command, VmArgs, VmCommand};
use farshore_command::process::{CLIENT, KEEPER, ONE};
use farshore_command::refusal::Refusal;
use farshore_command::usage::{self, Asked};
use farshore_command::without_caller;

/// Large blocks are mappings of their own. The standard heap writes zeros over a block that is asked for aligned and zeroed, as tables of pages are: each GiB that is handed over would take
/// 2 MiB at once, touched or not.
#[global_allocator]
static HEAP: farshore_sys::alloc::OwnMemory = farshore_sys::alloc::OwnMemory::new();

farshore_command::main!(command);

/// Does what the command line says; the exit status.
fn command(words: Vec<OsString>) -> Result<u8, Refusal> {
    let (farshore, words) = without_caller(words);
    match &words[..] {
        [first, options, _] if first == KEEPER => return start::kept(options),
        [first, options, process] if first == CLIENT => return start::client(options, process),
        [first, source, _] if first == start::RESTORE => return start::restored(source),
        [first, options, process] if first == vm::BESIDE => return vm::beside(options, process),
        [first, options, process] if first == ONE => return vm::one(options, process),
        _ => {}
    }
    let line = std::iter::once("farshore".into()).chain(words).collect();
    match args::parse(line)? {
        Asked::For(Command::Manage(arguments)) => start::manage(&arguments),
        Asked::For(Command::Vm(VmArgs { command })) => match command {
            VmCommand::Run(arguments) => vm::run(arguments),
            VmCommand::List(arguments) => vms::list(&arguments),
            VmCommand::Stat(arguments) => vms::stat(&arguments, farshore),
            VmCommand::Set(arguments) => vms::set(&arguments.vm, &arguments.settings, farshore),
            VmCommand::Translate(arguments) => vms::translate(&arguments),
            VmCommand::Policy(arguments) => vms::set(&arguments.vm, &[format!("policy={}", arguments.policy)], farshore),
        },
        Asked::Text(text) => usage::print(&text).map(|()| 0),
    }
}
