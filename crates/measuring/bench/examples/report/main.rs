//! Writes a report of made-up results, with a plot of every kind: for the test of the page in a browser.
//!
//! `cargo run -p farshore-bench --example report -- DIRECTORY [RESULTS.json]`
//!
//! With a file, its results are shown in place of the made-up ones. With `--paper` it is the page of a paper's figure, and that of all figures beside it.

mod synthetic;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use farshore_bench::paper;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let written = match arguments.as_slice() {
        [word, directory] if word == "--paper" => paper::find(synthetic::PAPER)
            .and_then(|figure| paper::index::write(&synthetic::paper(), figure, Path::new(directory))),
        [directory] => farshore_bench::report::write(&synthetic::results(), Path::new(directory)),
        [directory, file] => read(file).and_then(|results| farshore_bench::report::write(&results, Path::new(directory))),
        _ => Err("write the directory of the report, and a file of results if you have one".into()),
    };
    match written {
        Ok(page) => {
            println!("{}", page.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("report: {error}");
            ExitCode::FAILURE
        }
    }
}

fn read(file: &str) -> Result<farshore_bench::result::Results, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("cannot read {file}: {error}"))?;
    serde_json::from_str(&text).map_err(|error| format!("{file} has no results: {error}"))
}
