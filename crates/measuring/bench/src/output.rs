//! Where results go: standard output, `--json`, `--report`.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use crate::result::Results;
use crate::run::Failure;
use crate::table::grid;
use crate::{place, report, table};

/// Writes `text` to standard output: our colours, and nothing else that a terminal obeys. What programs say is in it, and what a file holds that others have written.
///
/// # Errors
/// It cannot be written.
pub fn print(text: &str) -> Result<(), Failure> {
    let text = grid::only_our_colours(text);
    let mut output = std::io::stdout().lock();
    let written = output.write_all(text.as_bytes()).and_then(|()| output.flush());
    written.map_err(|error| Failure::Failed(format!("cannot write to standard output ({error}): check where it goes")))
}

/// Whether standard output wants colours: it is a terminal, and `NO_COLOR` is not set.
#[must_use]
pub fn colours() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Columns of the terminal; of a wide page where there is none.
#[must_use]
pub fn width() -> usize {
    let told = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    told.or_else(|| terminal_size::terminal_size().map(|(width, _)| usize::from(width.0))).unwrap_or(140)
}

/// A line for stderr, whatever is in it.
pub fn tell(line: &str) {
    eprintln!("farshore: {}", farshore_config::plain(line));
}

/// The time, as the results have it.
#[must_use]
pub fn now() -> String {
    humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string()
}

/// The day, in the same calendar.
#[must_use]
pub fn today() -> String {
    now().chars().take(10).collect()
}

/// A directory of this name in `parent` that is not there yet: `NAME`, else `NAME-2` and so on.
#[must_use]
pub fn fresh(parent: &Path, name: &str) -> PathBuf {
    let numbered = (2_u32..).map(|number| parent.join(format!("{name}-{number}")));
    std::iter::once(parent.join(name)).chain(numbered).find(|path| !path.exists()).unwrap_or_else(|| parent.join(name))
}

/// Plots of a whole set or sweep, which documents want as files of their own.
const KEPT: [&str; 4] = ["overview", "sweep", "sweep-ratio", "sweep-latency"];

/// What goes beside the report: the tables as Markdown, and some plots as files.
///
/// # Errors
/// They cannot be written.
pub fn write_more(results: &Results, directory: &Path) -> Result<(), Failure> {
    write_text(&directory.join("table.md"), &table::markdown(results))?;
    let mut numbers: BTreeMap<&str, u32> = BTreeMap::new();
    for figure in report::figures(results).iter().filter(|figure| KEPT.contains(&figure.kind)) {
        let number = numbers.entry(figure.kind).or_default();
        *number += 1;
        let text = farshore_config::plain_lines(&figure.standalone());
        write_text(&directory.join(format!("{}-{number}.svg", figure.kind)), &text)?;
    }
    Ok(())
}

/// Whether the results can be written at the end. Better to know before the work than after it.
///
/// # Errors
/// Why not, with the path.
pub fn check(json: Option<&Path>, report: Option<&Path>) -> Result<(), Failure> {
    if let Some(path) = json {
        if path.is_dir() {
            return Err(Failure::Usage(format!("--json: '{}' is a directory: name a file in it", path.display())));
        }
        place::New::begin(path).map(drop).map_err(|error| unwritable("--json", path, &error))?;
    }
    report.map_or(Ok(()), |path| check_directory("--report", path))
}

/// Whether files can be put into the directory that an option names; makes it.
///
/// # Errors
/// Why not, with the option and the path.
pub fn check_directory(option: &str, path: &Path) -> Result<(), Failure> {
    let begun = std::fs::create_dir_all(path).and_then(|()| place::New::begin(&path.join(".farshore-bench")).map(drop));
    begun.map_err(|error| unwritable(option, path, &error))
}

fn unwritable(option: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::Usage(format!("{option}: cannot write '{}' ({error}): name another place", path.display()))
}

/// Writes a file. One that was there is replaced only by the complete new one; a link is refused, and never followed.
///
/// # Errors
/// It cannot be written.
pub fn write_text(path: &Path, text: &str) -> Result<(), Failure> {
    place::write(path, text.as_bytes()).map_err(|error| Failure::Failed(format!("cannot write '{}' ({error})", path.display())))
}

/// Writes what was asked for.
///
/// # Errors
/// It cannot be written.
pub fn write(results: &Results, json: Option<&Path>, report: Option<&Path>) -> Result<(), Failure> {
    if let Some(path) = json {
        write_text(path, &results.to_json_line().map_err(Failure::Failed)?)?;
    }
    if let Some(path) = report {
        report::write(results, path).map_err(Failure::Failed)?;
    }
    Ok(())
}
