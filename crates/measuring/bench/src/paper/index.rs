//! The page of all figures: a row each, with its headline. And what is written where.

use std::path::{Path, PathBuf};

use farshore_command::page as html_page;
use maud::{Markup, html};

use super::judge::{self, Judged};
use super::page::{self, RAW, is_quick, verdict};
use super::{Figure, all};
use crate::compare;
use crate::place;
use crate::report::page::STYLE;
use crate::report::palette;
use crate::result::Results;

/// The raw rows of a run that has not ended, beside a figure's page.
pub const UNFINISHED: &str = "raw-unfinished.json";

/// Whether a figure's directory has raw rows that only a finished run may replace: all but those of the quick form.
#[must_use]
pub fn is_kept(folder: &Path) -> bool {
    let raw = folder.join(RAW);
    raw.exists() && !compare::load(&raw).is_ok_and(|results| is_quick(&results))
}

/// Writes a figure's page and raw rows to `DIR/NAME`, and the page of all figures to `DIR`. Returns the figure's page.
///
/// # Errors
/// What could not be written, and why: one line.
pub fn write(results: &Results, figure: &'static Figure, directory: &Path) -> Result<PathBuf, String> {
    let folder = directory.join(figure.name);
    let failed = |path: &Path, error: &dyn std::fmt::Display| format!("cannot write the figure to {}: {error}", path.display());
    std::fs::create_dir_all(&folder).map_err(|error| failed(&folder, &error))?;
    let put = |path: &Path, text: &str| place::write(path, text.as_bytes()).map_err(|error| failed(path, &error));
    put(&folder.join(RAW), &results.to_json_line()?)?;
    let page = folder.join("index.html");
    put(&page, &farshore_config::plain_lines(&page::page(results, figure)))?;
    put(&directory.join("index.html"), &farshore_config::plain_lines(&index(directory)))?;
    Ok(page)
}

/// The raw rows of a figure.
///
/// # Errors
/// They cannot be read, or are of no figure, of another one than `wanted`, or of several: one line.
pub fn read(path: &Path, wanted: Option<&str>) -> Result<(Results, &'static Figure), String> {
    let results = compare::load(path)?;
    let mut names: Vec<&str> = results
        .experiments
        .iter()
        .filter_map(|experiment| experiment.paper.as_ref())
        .map(|point| point.figure.as_str())
        .collect();
    names.sort_unstable();
    names.dedup();
    let file = path.display();
    let name = match (names.as_slice(), wanted) {
        ([], _) => {
            return Err(format!(
                "'{file}' holds results, but no raw rows of a figure: name a {RAW} that farshore bench paper has written"
            ));
        }
        ([name], None) => *name,
        ([name], Some(wanted)) if *name == wanted => *name,
        (names, None) => return Err(format!("'{file}' has rows of {}: name one figure's", names.join(" and "))),
        (names, Some(wanted)) => {
            return Err(format!(
                "'{file}' has rows of {}, not of {wanted}: name that figure, or its own raw rows",
                names.join(" and ")
            ));
        }
    };
    let figure = super::find(name).map_err(|why| format!("'{file}': {why}"))?;
    let points = results.experiments.iter().filter_map(|experiment| experiment.paper.as_ref());
    let known = |panel: &str| figure.panel(panel.trim_end_matches(super::plan::PEAK)).is_some();
    if let Some(point) = points.into_iter().find(|point| !known(&point.panel)) {
        return Err(format!("'{file}': {name} has no panel {:?}: the file is of another version; measure anew", point.panel));
    }
    Ok((results, figure))
}

/// A figure's row.
struct Row {
    figure: &'static Figure,
    /// What is in the directory: its headline, whether it is of the quick form, and when it was measured; or why nothing is there.
    found: Result<(Judged, bool, String), String>,
}

fn row(directory: &Path, figure: &'static Figure) -> Row {
    let path = directory.join(figure.name).join(RAW);
    let found = if path.exists() {
        read(&path, Some(figure.name)).and_then(|(results, _)| {
            let headline = judge::all(&results, figure).into_iter().next().ok_or("it claims nothing")?;
            Ok((headline, is_quick(&results), results.date))
        })
    } else {
        Err("was not measured".into())
    };
    Row { figure, found }
}

/// The page of what is in `directory`.
#[must_use]
pub fn index(directory: &Path) -> String {
    let rows: Vec<Row> = all().map(|figure| row(directory, figure)).collect();
    let title = "farshore bench paper: the papers' figures, measured here";
    let body = html! {
        header {
            h1 { "The papers' figures, measured here" }
            p.where { "A row a figure: its first claim, the paper's number, ours with its interval, and the verdict. Each page has the others." }
        }
        main {
            section {
                div.scroll {
                    table.claims {
                        thead { tr { th scope="col" { "figure" } th scope="col" { "what" } th scope="col" { "of" } th.number scope="col" { "paper" } th.number scope="col" { "here (interval)" } th scope="col" { "verdict" } th scope="col" { "measured" } } }
                        tbody { @for row in &rows { (line(row)) } }
                    }
                }
            }
            section { h2 { "How it is judged" } p { (judge::RULE) } p { "Figures that disagree stand here as those that agree do. What was expected beforehand is on the figure's page. A star: computed from digits of the paper's text, or a bound." } }
        }
    };
    html_page::page(title, &[&palette::css(), STYLE], &body)
}

fn line(row: &Row) -> Markup {
    let figure = row.figure;
    let claim = figure.claims.first();
    html! {
        tr {
            th scope="row" {
                @if row.found.is_ok() { a href={ (figure.name) "/index.html" } { (figure.name) } } @else { (figure.name) }
                br;
                span.quiet { (figure.place()) }
            }
            td { (claim.map_or("", |claim| claim.what)) }
            td { (claim.map_or("", |claim| claim.system)) }
            td.number { (claim.map_or_else(String::new, judge::papers)) }
            @match &row.found {
                Ok((judged, quick, date)) => {
                    td.number.main { (judge::ours(judged)) }
                    td { (verdict(judged)) @if *quick { " (quick form)" } }
                    td.day { (date.chars().take(10).collect::<String>()) }
                }
                Err(why) => { td.number { "–" } td { (why) } td {} }
            }
        }
    }
}
