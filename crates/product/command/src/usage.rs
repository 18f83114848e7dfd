//! Reads a command line. A usage error is one line that names the mistake, where clap would write several.

use std::error::Error as _;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};

use crate::refusal::Refusal;

/// The whole line of a command that `farshore` becomes, as `farshore` would read it if `C` were its commands: so help and errors name
/// `farshore node`, and not the program behind it.
#[derive(Parser, Debug)]
#[command(name = "farshore", max_term_width = 100)]
pub struct Line<C: Subcommand> {
    #[expect(missing_docs, reason = "it would be the help")]
    #[command(subcommand)]
    pub command: C,
}

/// What a command line asks for.
#[derive(Debug)]
pub enum Asked<T> {
    /// To do something.
    For(T),
    /// To print a text (help, version).
    Text(Box<clap::Error>),
}

/// What the usage errors of a command name.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// What the first word is: a command, a workload.
    pub first: &'static str,
    /// The ones that there are.
    pub known: &'static str,
    /// What must be given: a part of its name in the usage, and the line that is told where it is missing.
    pub required: &'static [(&'static str, &'static str)],
}

/// Reads a command line, the command's own name first.
///
/// # Errors
/// One line for what clap would tell in several (125).
pub fn parse<T: clap::Parser>(line: Vec<OsString>, words: &Words) -> Result<Asked<T>, Refusal> {
    match T::try_parse_from(line) {
        Ok(read) => Ok(Asked::For(read)),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(Asked::Text(Box::new(error))),
            _ => Err(Refusal::cannot_start(one_line(&error, words))),
        },
    }
}

/// The command that a [`Line`] is for; the word `farshore` comes first.
///
/// # Errors
/// As [`parse`].
pub fn command<C: Subcommand>(line: Vec<OsString>, words: &Words) -> Result<Asked<C>, Refusal> {
    Ok(match parse::<Line<C>>(line, words)? {
        Asked::For(line) => Asked::For(line.command),
        Asked::Text(text) => Asked::Text(text),
    })
}

/// Prints what clap has to say.
///
/// # Errors
/// Standard output cannot be written (1).
pub fn print(text: &clap::Error) -> Result<(), Refusal> {
    text.print().map_err(|error| cannot_print(&error))
}

/// Standard output could not be written.
#[must_use]
pub fn cannot_print(error: &std::io::Error) -> Refusal {
    Refusal::failed(format!("cannot write to standard output ({error}): check where it goes"))
}

fn one_line(error: &clap::Error, words: &Words) -> String {
    let context = |kind: ContextKind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        _ => String::new(),
    };
    let (argument, value) = (context(ContextKind::InvalidArg), context(ContextKind::InvalidValue));
    let (first, known) = (words.first, words.known);
    let option = name(&argument);
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let near = context(ContextKind::SuggestedArg);
            let hint = if near.is_empty() { String::new() } else { format!("did you mean '{near}'? ") };
            let what = if argument.starts_with('-') { "option" } else { "word" };
            format!("unknown {what} '{argument}': {hint}see '{} --help'", command_of(error))
        }
        ErrorKind::InvalidSubcommand => {
            format!("unknown {first} '{}': use {known}", context(ContextKind::InvalidSubcommand))
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            format!("no {first} given: use {known}; see 'farshore --help'")
        }
        ErrorKind::ValueValidation => {
            let why = error.source().map_or_else(|| format!("invalid value '{value}'"), ToString::to_string);
            if option.starts_with('-') { format!("{option}: {why}") } else { why }
        }
        ErrorKind::InvalidValue if value.is_empty() => format!("{option} has no value: write {argument}"),
        ErrorKind::InvalidValue => {
            format!("invalid {option} \"{value}\": use {}", context(ContextKind::ValidValue))
        }
        ErrorKind::MissingRequiredArgument => {
            let told = words.required.iter().find(|(part, _)| argument.contains(part));
            told.map_or_else(|| format!("{argument} is missing: give it"), |(_, line)| (*line).into())
        }
        ErrorKind::ArgumentConflict => match context(ContextKind::PriorArg) {
            other if other.is_empty() || name(&other) == option => format!("{option} is given twice: give it once"),
            other => format!("{option} does not go with {}: leave one of them out", name(&other)),
        },
        ErrorKind::InvalidUtf8 => "an option's value is not UTF-8: use another name".into(),
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            format!("{}: see '{} --help'", line.strip_prefix("error: ").unwrap_or(line), command_of(error))
        }
    }
}

/// The command whose line has the mistake, as one writes it: `farshore run`.
fn command_of(error: &clap::Error) -> String {
    let usage = match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => usage.to_string(),
        _ => String::new(),
    };
    let is_name = |word: &&str| word.starts_with(|first: char| first.is_ascii_lowercase());
    let words: Vec<&str> = usage.split_whitespace().skip_while(|word| *word != "Usage:").skip(1).take_while(is_name).collect();
    if words.is_empty() { "farshore".into() } else { words.join(" ") }
}

/// `--memory` of what clap shows as `--memory <SIZE>`.
fn name(argument: &str) -> &str {
    argument.split(' ').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser, Debug)]
    struct Plain {
        #[arg(long, conflicts_with = "slow")]
        fast: bool,
        #[arg(long)]
        slow: bool,
        #[arg(long, value_parser = ["red", "blue"])]
        colour: Option<String>,
        #[arg(value_name = "NAME")]
        place: String,
        #[arg(value_name = "OTHER")]
        other: String,
    }

    #[test]
    fn a_mistake_is_one_line() {
        let words = Words { first: "command", known: "this or that", required: &[("NAME", "no NAME given: write 'x NAME'")] };
        for (line, told) in [
            (&[][..], "no NAME given: write 'x NAME'"),
            (&["a"], "<OTHER> is missing: give it"),
            (&["a", "b", "c"], "unknown word 'c': see 'farshore --help'"),
            (&["--fast", "--fast", "a", "b"], "--fast is given twice: give it once"),
            (&["--colour", "rot", "a", "b"], "invalid --colour \"rot\": use red, blue"),
            (&["--fast", "--slow", "a", "b"], "--fast does not go with --slow: leave one of them out"),
            (&["--fats", "a", "b"], "unknown option '--fats': did you mean '--fast'? see 'farshore --help'"),
        ] {
            let line = std::iter::once("farshore").chain(line.iter().copied()).map(OsString::from).collect();
            let refusal = parse::<Plain>(line, &words).map(|asked| panic!("it gave {asked:?}")).unwrap_err();
            assert_eq!((refusal.status, refusal.text.as_str()), (crate::refusal::CANNOT_START, told));
        }
    }
    #[derive(Subcommand, Debug, PartialEq, Eq)]
    enum Walks {
        Walk { place: String },
    }

    #[test]
    fn a_line_is_one_of_farshore() {
        let words = Words { first: "command", known: "walk", required: &[] };
        let asked = |line: &[&str]| {
            command::<Walks>(std::iter::once("farshore").chain(line.iter().copied()).map(OsString::from).collect(), &words)
        };
        assert!(matches!(asked(&["walk", "home"]), Ok(Asked::For(Walks::Walk { place })) if place == "home"));
        assert!(matches!(asked(&["walk", "--help"]), Ok(Asked::Text(text)) if text.to_string().contains("farshore walk")));
        let told = |line: &[&str]| asked(line).map(|asked| panic!("it gave {asked:?}")).unwrap_err().text;
        assert_eq!(told(&["run"]), "unknown command 'run': use walk");
        assert_eq!(told(&["walk", "home", "slowly"]), "unknown word 'slowly': see 'farshore walk --help'");
    }
}
