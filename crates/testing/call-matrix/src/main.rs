//! `farshore-call-matrix`: makes every system call of the net's table, with its buffers in every state that memory can have.
//!
//! ```text
//!  table (crates/product/net/src/table) ────────────┐
//!  cases: calls with a set-up, by the table's name ─┼▶ way ▶ prepare all ▶ make absent ▶ call all ▶ one line a call
//!  generic calls, made from the table's rules ──────┘
//! ```
//!
//! The output is the same natively and under Farshore, or something is wrong: `tests/real/test_calls.py` runs it both ways and
//! compares. A *case* is one call with its set-up; every row of the table that has a pointer is called by at least one, or
//! is in the list of those left out, with the reason (`left_out.rs`). A *way* is where the buffers of a call lie and what
//! state their pages are in ([`place::Way`]).
//!
//! All calls of a way are prepared first; then other memory is touched until everything is out (natively that changes
//! nothing); then they are made, in an order that no stream of fetches follows. What the pages really were is read from
//! `/proc/self/pagemap` just before each call and counted; the driver looks at the counts.

mod call;
mod cases;
mod generic;
mod kernel;
mod left_out;
mod memory;
mod place;
mod run;

use std::process::ExitCode;

/// What the command line says.
#[derive(Debug)]
struct Options {
    /// MiB of other memory that is touched to make everything absent.
    ballast: usize,
    /// How often all cases are run while pages leave.
    rounds: usize,
    /// The process has namespaces of its own: mounts, host names and message queues are nobody else's.
    apart: bool,
    /// This is a run under Farshore: calls that it refuses are made.
    managed: bool,
    /// Where the counts of page states go.
    counts: Option<String>,
    /// Cases whose name contains this.
    only: String,
}

const USAGE: &str = "usage: farshore-call-matrix [--ballast MIB] [--rounds N] [--apart] [--managed] [--counts FILE] [--only TEXT] (in a directory of its own) | --rows";

fn options() -> Result<Option<Options>, String> {
    let mut options = Options { ballast: 12, rounds: 1, apart: false, managed: false, counts: None, only: String::new() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value\n{USAGE}"));
        let number = |text: String| text.parse().map_err(|_| format!("{text} is no number\n{USAGE}"));
        match word.as_str() {
            "--ballast" => options.ballast = number(value()?)?,
            "--rounds" => options.rounds = number(value()?)?,
            "--apart" => options.apart = true,
            "--managed" => options.managed = true,
            "--counts" => options.counts = Some(value()?),
            "--only" => options.only = value()?,
            "--rows" => return Ok(None),
            _ => return Err(USAGE.into()),
        }
    }
    Ok(Some(options))
}

fn main() -> ExitCode {
    let done = options().and_then(|options| match options {
        Some(options) => run::all(&options),
        None => left_out::check().map(|rows| print!("{rows}")),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("farshore-call-matrix: {why}");
            ExitCode::FAILURE
        }
    }
}
