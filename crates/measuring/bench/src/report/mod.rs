//! One page that shows the results: [`write`].
//!
//! # Protocol
//!
//! 1. The page is a single file. It loads nothing, runs no script (its own Content-Security-Policy forbids both), and says everything
//!    without one; light and dark follow the viewer's scheme.
//! 2. Whatever came from outside (labels, names, errors) is text: the page is made by a library that escapes, and nothing is put in unescaped but
//!    images that [`chart`] has drawn, whose texts plotters escapes.
//! 3. Missing data are said, with the reason; they never stop the rest of the page from being made.
//!
//! | module | what it does |
//! |---|---|
//! | `page`, `tables` | the page |
//! | [`figures`] | which plots the data allow, and what they say |
//! | [`ideal`] | the ideal line |
//! | `group` | which experiments are told together |
//! | `chart`, `axis`, `palette` | drawing |
//! | `text` | numbers and units |

pub(crate) mod axis;
pub(crate) mod chart;
pub mod figures;
pub(crate) mod group;
pub mod ideal;
pub(crate) mod page;
pub(crate) mod palette;
pub(crate) mod tables;
pub(crate) mod text;

use std::fs;
use std::path::{Path, PathBuf};

use figures::Figure;

use crate::place;
use crate::result::Results;

/// Writes `index.html` and `results.json` into a directory, which is made if it is not there. Returns the page's path.
///
/// # Errors
/// What could not be written, and why: one line.
pub fn write(results: &Results, directory: &Path) -> Result<PathBuf, String> {
    let failed = |path: &Path, error: &dyn std::fmt::Display| format!("cannot write the report to {}: {error}", path.display());
    fs::create_dir_all(directory).map_err(|error| failed(directory, &error))?;
    let (page, data) = (directory.join("index.html"), directory.join("results.json"));
    place::write(&data, results.to_json_line()?.as_bytes()).map_err(|error| failed(&data, &error))?;
    // A control character has no place in HTML, and would be one for whoever reads the page's source in a terminal.
    let text = farshore_config::plain_lines(&page::page(results));
    place::write(&page, text.as_bytes()).map_err(|error| failed(&page, &error))?;
    Ok(page)
}

/// All plots that the results allow, in the order of the page: for a document that wants one of them, as [`Figure::standalone`].
#[must_use]
pub fn figures(results: &Results) -> Vec<Figure> {
    figures::all(results)
}
