//! Manual pages of commands, made of what their `--help` says.
//!
//! The pages are files of the repository (`docs/man`), so that a package needs nothing to make them. A test of each command compares them with
//! what its `--help` says today ([`check`]); `make man` writes them anew.
//!
//! What stands behind the options of a help is read by its form: a block whose first line ends in a colon is a section of that name, and one
//! that begins with `Exit status: ` too. Whatever else is there becomes the section NOTES. Lines that are laid out, by spaces at their start or
//! two in their middle, stay as they are.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use clap::{Arg, Command};
use roff::{Inline, Roff, bold, italic, roman};

/// The variable that has [`check`] write the pages.
pub const WRITE: &str = "FARSHORE_WRITE_MANUAL";

/// Columns of a help at most, as the commands tell clap.
const WIDTH: usize = 100;

/// Where a page has the commands of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parts {
    /// Each has a page of its own.
    Pages,
    /// Each is a section of this one.
    Sections,
}

/// The page of `command`, which is called `name` (`farshore-run`). `rest`: what the help does not have, as it would be in a help.
fn page(name: &str, command: &Command, parts: Parts, rest: &str) -> String {
    let mut roff = Roff::new();
    let version = format!("farshore {}", env!("CARGO_PKG_VERSION"));
    roff.control("TH", [name.to_uppercase().as_str(), "1", " ", version.as_str(), "Farshore"]);
    roff.control("SH", ["NAME"]);
    let about = command.get_about().map(|about| uncapitalised(&about.to_string())).unwrap_or_default();
    roff.text([roman(format!("{name} - {about}"))]);
    roff.control("SH", ["SYNOPSIS"]);
    as_it_is(&mut roff, usage(command).lines());
    if let Some(about) = command.get_long_about().or(command.get_about()) {
        roff.control("SH", ["DESCRIPTION"]);
        text(&mut roff, &about.to_string());
    }
    arguments(&mut roff, "OPTIONS", command, |_| true);
    let subcommands = || command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help");
    if parts == Parts::Pages && command.has_subcommands() {
        roff.control("SH", ["COMMANDS"]);
        for sub in subcommands() {
            roff.control("TP", []);
            roff.text([bold(format!("{name}-{}", sub.get_name())), roman("(1)")]);
            text(&mut roff, &sub.get_about().map(ToString::to_string).unwrap_or_default());
        }
    }
    if parts == Parts::Sections {
        for sub in subcommands() {
            section(&mut roff, sub);
        }
    }
    for (heading, body) in sections_of(&format!("{}\n\n{rest}", help_behind(command))) {
        roff.control("SH", [heading.to_uppercase().as_str()]);
        text(&mut roff, &body);
    }
    roff.render()
}

/// A command of a command, as a section.
fn section(roff: &mut Roff, sub: &Command) {
    roff.control("SH", [sub.get_name().to_uppercase().as_str()]);
    as_it_is(roff, usage(sub).lines());
    roff.control("PP", []);
    text(roff, &sub.get_long_about().or(sub.get_about()).map(ToString::to_string).unwrap_or_default());
    // What all of them have stands with the command.
    arguments(roff, "", sub, |argument| !argument.is_global_set());
    for (heading, body) in sections_of(&help_behind(sub)) {
        roff.control("SS", [heading.as_str()]);
        text(roff, &body);
    }
}

/// What the help has behind the options.
fn help_behind(command: &Command) -> String {
    command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string).unwrap_or_default()
}

fn uncapitalised(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_lowercase().to_string());
    // An abbreviation, a name of its own.
    let is_word = letters.clone().next().is_none_or(|second| !second.is_uppercase());
    if is_word { first.unwrap_or_default() + letters.as_str() } else { text.to_string() }
}

/// How it is called, a way a line.
fn usage(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let lines = usage.trim_start_matches("Usage:").lines().map(str::trim);
    lines.collect::<Vec<_>>().join("\n")
}

fn arguments(roff: &mut Roff, heading: &str, command: &Command, fits: impl Fn(&Arg) -> bool) {
    let shown: Vec<&Arg> = command.get_arguments().filter(|argument| !argument.is_hide_set() && fits(argument)).collect();
    if shown.is_empty() {
        return;
    }
    if !heading.is_empty() {
        roff.control("SH", [heading]);
    }
    for argument in shown {
        roff.control("TP", []);
        roff.text(head_of(argument));
        let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
        text(roff, &help);
        let values: Vec<_> = argument.get_possible_values().into_iter().filter(|value| !value.is_hide_set()).collect();
        if argument.get_num_args().is_some_and(|number| number.takes_values()) && !values.is_empty() {
            let width = values.iter().map(|value| value.get_name().len()).max().unwrap_or(0);
            let line = |value: &clap::builder::PossibleValue| {
                format!("{:width$}  {}", value.get_name(), value.get_help().map(ToString::to_string).unwrap_or_default())
            };
            as_it_is(roff, values.iter().map(line).collect::<Vec<_>>().iter().map(|line| line.trim_end()));
        }
        let defaults: Vec<_> = argument.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
        if !defaults.is_empty() && argument.get_num_args().is_some_and(|number| number.takes_values()) {
            roff.control("IP", []);
            roff.text([roman(format!("The default is {}.", defaults.join(",")))]);
        }
    }
}

/// An option with its values, or the name of an argument.
fn head_of(argument: &Arg) -> Vec<Inline> {
    let mut head = Vec::new();
    if let Some(short) = argument.get_short() {
        head.push(bold(format!("-{short}")));
        if argument.get_long().is_some() {
            head.push(roman(", "));
        }
    }
    if let Some(long) = argument.get_long() {
        head.push(bold(format!("--{long}")));
    }
    let takes_values = argument.is_positional() || argument.get_num_args().is_some_and(|number| number.takes_values());
    if let (true, Some(names)) = (takes_values, argument.get_value_names()) {
        for name in names {
            if !head.is_empty() {
                head.push(roman(" "));
            }
            head.push(italic(name.as_str()));
        }
        if argument.is_positional() && argument.get_num_args().is_some_and(|number| number.max_values() > 1) {
            head.push(roman(" ..."));
        }
    }
    head
}

/// Paragraphs, and what is laid out between them.
fn text(roff: &mut Roff, text: &str) {
    let mut inside = Form::Start;
    for line in text.lines() {
        let form = if line.trim().is_empty() {
            Form::Gap
        } else if line.starts_with(' ') || line.trim_start().contains("  ") {
            Form::LaidOut
        } else {
            Form::Words
        };
        if inside == Form::LaidOut && form != Form::LaidOut {
            roff.control("fi", []);
        }
        if inside == Form::Gap && form != Form::Gap {
            // Not a paragraph of roff's, which would take the indentation back.
            roff.control("sp", []);
        }
        if form == Form::LaidOut && inside != Form::LaidOut {
            roff.control("nf", []);
        }
        if form != Form::Gap {
            roff.text([roman(line)]);
        }
        inside = if form == Form::Gap && inside == Form::Start { Form::Start } else { form };
    }
    if inside == Form::LaidOut {
        roff.control("fi", []);
    }
}

/// What lines are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Start,
    Gap,
    Words,
    LaidOut,
}

fn as_it_is<'a>(roff: &mut Roff, lines: impl Iterator<Item = &'a str>) {
    roff.control("nf", []);
    for line in lines {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
}

/// Heading and text of each section, in order; sections of one name are one.
fn sections_of(text: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for block in text.split("\n\n").map(|block| block.trim_matches('\n')).filter(|block| !block.trim().is_empty()) {
        let (first, rest) = block.split_once('\n').unwrap_or((block, ""));
        let (heading, body) = match first.split_once(':') {
            Some((heading, "")) if !rest.is_empty() && !first.starts_with(' ') => (heading, rest.to_string()),
            Some(("Exit status", start)) => ("Exit status", format!("{}\n{rest}", start.trim_start())),
            _ => ("Notes", block.to_string()),
        };
        match found.iter_mut().find(|(name, _)| name == heading) {
            Some((_, before)) => *before = format!("{before}\n\n{body}"),
            None => found.push((heading.to_string(), body)),
        }
    }
    // The examples last, as manual pages have them.
    found.sort_by_key(|(heading, _)| match heading.as_str() {
        "Notes" => 0,
        "Examples" => 2,
        _ => 1,
    });
    found
}

/// Compares the page of `command` with `docs/man/NAME.1` of the repository that has `manifest` (the directory of a crate) in it; with [`WRITE`] set,
/// writes it there. `see`: the pages that it refers to, besides the book.
///
/// # Panics
/// They differ, or the page cannot be read or written.
pub fn check(manifest: &str, name: &str, command: &Command, parts: Parts, see: &str) {
    for command in std::iter::once(command).chain(command.get_subcommands()) {
        let help = help_behind(command);
        let long = help.lines().find(|line| line.chars().count() > WIDTH);
        assert!(long.is_none(), "{name}: a help of {WIDTH} columns breaks this line anywhere: {long:?}");
    }
    let rest = format!("See also:\n  {see}\n  the book: /usr/share/doc/farshore, or docs/src in the source");
    let page = page(name, command, parts, &rest);
    let root =
        Path::new(manifest).ancestors().find(|folder| folder.join("Cargo.lock").exists()).expect("the crate is in a workspace");
    let file: PathBuf = root.join("docs/man").join(format!("{name}.1"));
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&file, page).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        return;
    }
    let there = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}: make man", file.display()));
    let differs = there.lines().zip(page.lines()).find(|(old, new)| old != new);
    assert!(there == page, "{} is not what --help says: make man ({differs:?})", file.display());
}

/// [`check`] of commands that `farshore` becomes, each by its name, its parts and what it refers to. `line`: the whole line, as `farshore` would read it.
///
/// # Panics
/// As [`check`], or there is no such command.
pub fn check_commands(manifest: &str, mut line: Command, commands: &[(&str, Parts, &str)]) {
    line.build();
    for (name, parts, see) in commands {
        let command = line.find_subcommand(name).unwrap_or_else(|| panic!("{name} is no command"));
        check(manifest, &format!("farshore-{name}"), command, *parts, see);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Command {
        let help = "Examples:\n  far-away go    it goes\n\nOf no section.\n\nExit status: 0, or\n  1  what --size said\n\nFiles:\n  /there  it is there";
        let size = Arg::new("size")
            .long("size")
            .value_name("SIZE")
            .default_value("4M")
            .help("How much")
            .long_help("How much, one of\n  1M   little;\n  2M   more.\nNo more than that.\n\n.It begins with a point");
        let go = Command::new("go").about("Go there").arg(Arg::new("to").value_name("PLACE").num_args(1..).help("Where"));
        Command::new("far-away").about("Goes away").arg(size).subcommand(go).after_long_help(help)
    }

    #[test]
    fn a_page_has_all_that_the_help_says() {
        let mut command = example();
        command.build();
        let page = page("far-away", &command, Parts::Sections, "See also:\n  far(1)");
        let has = |wanted: &str| assert!(page.contains(wanted), "{wanted:?} is not in\n{page}");
        has(".SH NAME\nfar\\-away \\- goes away\n");
        has(
            "\\fB\\-\\-size\\fR \\fISIZE\\fR\nHow much, one of\n.nf\n  1M   little;\n  2M   more.\n.fi\nNo more than that.\n.sp\n\\&.It begins",
        );
        has("The default is 4M.");
        has(".SH GO\n");
        has("\\fIPLACE\\fR ...\nWhere\n");
        let places: Vec<_> =
            ["NOTES\nOf no", "EXIT STATUS\"\n0, or\n.nf\n  1", "FILES\n.nf\n", "\"SEE ALSO\"\n", "EXAMPLES\n.nf\n"]
                .map(|part| page.find(part).unwrap_or_else(|| panic!("{part:?} is not in\n{page}")))
                .into();
        assert!(places.is_sorted(), "{page}");
    }
}
