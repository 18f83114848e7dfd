//! The command `farshore`.
//!
//! `run` checks what can be checked, and then *becomes* the program: no parent stays. The program
//! must find the process as it was before, so this command starts without the standard library's
//! entry, which would ignore SIGPIPE for good, open `/dev/null` in place of closed descriptors and
//! install signal handlers. As a gift, `farshore stat PID | head` ends quietly.
//!
//! | module | what it does |
//! |---|---|
//! | [`args`] | the command line, its help and its usage errors |
//! | [`run`], [`program`], [`library`], [`swap`] | `farshore run` |
//! | [`doctor`] | `farshore doctor` |
//! | [`client`], [`stat`] | `farshore stat` and `farshore set` |
//! | [`bench`] | `farshore bench`, which the crate of that name does |
//! | [`refusal`] | errors and exit statuses |
#![cfg_attr(not(test), no_main)]
#![cfg_attr(test, allow(dead_code))]

mod args;
mod bench;
mod client;
mod doctor;
mod library;
mod program;
mod refusal;
mod run;
mod stat;
mod swap;

use std::ffi::OsString;
use std::io::Write;

use args::{Asked, Command};
use refusal::Refusal;

/// The C entry point.
///
/// # Safety
/// Called once by the C runtime, with the arguments as C promises them.
#[cfg(not(test))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn main(count: core::ffi::c_int, arguments: *const *const core::ffi::c_char) -> core::ffi::c_int {
    use std::os::unix::ffi::OsStringExt;
    let count = usize::try_from(count).unwrap_or(0);
    let words = (0..count).map(|index| {
        // SAFETY: C promises `count` pointers in a row at `arguments`.
        let place = unsafe { arguments.add(index) };
        // SAFETY: as above, so one can be read here.
        let word = unsafe { *place };
        // SAFETY: each points to a string that ends with a zero byte and stays for the process' life.
        let word = unsafe { core::ffi::CStr::from_ptr(word) };
        OsString::from_vec(word.to_bytes().to_vec())
    });
    core::ffi::c_int::from(command(words.collect()))
}

/// Does what the command line says; the exit status.
fn command(arguments: Vec<OsString>) -> u8 {
    match args::parse(arguments).and_then(act) {
        Ok(status) => status,
        Err(refusal) => {
            // Where stderr is closed, the status is all that is left to tell.
            let _ = writeln!(std::io::stderr(), "{refusal}");
            refusal.status
        }
    }
}

fn act(asked: Asked) -> Result<u8, Refusal> {
    match asked {
        Asked::For(command) => match *command {
            Command::Run(arguments) => run::run(*arguments),
            Command::Doctor(arguments) => doctor::doctor(&arguments),
            Command::Stat(arguments) => stat::stat(&arguments),
            Command::Set(arguments) => stat::set(&arguments),
            Command::Bench(arguments) => bench::bench(&arguments),
        },
        Asked::Text(text) => text.print().map(|()| 0).map_err(|error| cannot_print(&error)),
    }
}

/// Writes `text` to standard output.
fn print(text: &str) -> Result<(), Refusal> {
    let mut output = std::io::stdout().lock();
    output.write_all(text.as_bytes()).and_then(|()| output.flush()).map_err(|error| cannot_print(&error))
}

fn cannot_print(error: &std::io::Error) -> Refusal {
    Refusal::failed(format!("cannot write to standard output ({error}): check where it goes"))
}
