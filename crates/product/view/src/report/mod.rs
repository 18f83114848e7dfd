//! `farshore report`: one page of a recording.
//!
//! | module | what it does |
//! |---|---|
//! | [`seen`] | goes through the file twice: what there is, then counts by place, time, mapping and instruction |
//! | [`code`] | functions and lines of instructions |
//! | [`page`] | the page, and the data in it |

pub mod code;
pub mod page;
pub mod seen;

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use farshore_command::refusal::Refusal;

use crate::args::ReportArgs;
use crate::record::file::Reader;

/// Makes the page.
///
/// # Errors
/// The recording cannot be read, or the page not be written.
pub fn report(arguments: &ReportArgs) -> Result<u8, Refusal> {
    let place = arguments.file.display();
    let wrong = |why: String| Refusal::failed(format!("cannot report of '{place}': {why}"));
    let open = || {
        let file = File::open(&arguments.file).map_err(|why| wrong(format!("{why}")))?;
        // It is read twice.
        if !file.metadata().is_ok_and(|it| it.is_file()) {
            return Err(wrong("it is no regular file".into()));
        }
        Reader::new(BufReader::new(file)).map_err(wrong)
    };
    let found = seen::Found::of(open()?).map_err(wrong)?;
    let seen = seen::Seen::of(open()?, found);
    let flame = code::flame(&seen);
    let page = page::page(&seen, &flame);
    match arguments.output.as_deref() {
        Some(path) if path.as_os_str() == "-" => crate::print(&page)?,
        other => {
            let path = other.map_or_else(
                || {
                    let mut path = arguments.file.clone().into_os_string();
                    path.push(".html");
                    PathBuf::from(path)
                },
                PathBuf::from,
            );
            std::fs::write(&path, page).map_err(|why| {
                Refusal::failed(format!("cannot write '{}' ({why}): name another file with --output", path.display()))
            })?;
            eprintln!("farshore: wrote '{}'", path.display());
        }
    }
    if !seen.found.broken.is_empty() {
        eprintln!("farshore: '{place}' is not whole ({}): the page shows what is before", seen.found.broken);
    }
    Ok(0)
}
