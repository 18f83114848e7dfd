//! The command line: options and their help.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use farshore_command::refusal::Refusal;
use farshore_command::usage::{self, Asked, Words};

use crate::policies;

/// The command.
#[derive(Subcommand, Debug)]
pub enum Command {
    #[command(
        about = farshore_command::POLICY_ABOUT,
        long_about = "Attaches a policy of a published system to a program that runs under Farshore, until the program ends or Ctrl-C. \
    It says which pages it would like to come, to leave or to stay; the program's bytes and its limit do not depend on it.\n\n\
    'farshore stat PID' shows its parameters, and 'farshore set PID NAME=VALUE' changes them meanwhile. \
    A value beyond the range of its parameter counts as the nearest in it."
    )]
    Policy(PolicyArgs),
}

/// `farshore policy`.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER)]
pub struct PolicyArgs {
    /// Which memory streams and which stays, for csr: lines such as 'stream [anon:edges]', 'stay <64M', 'stay 7f0000000000-7f0040000000'
    #[arg(long, value_name = "FILE")]
    pub regions: Option<PathBuf>,
    /// The policy
    #[arg(value_name = "NAME", value_parser = name)]
    pub name: &'static str,
    /// The process
    #[arg(value_name = "PID", value_parser = process)]
    pub pid: u32,
    /// Parameters of the policy
    #[arg(value_name = "PARAMETER=VALUE", value_parser = parameter)]
    pub parameters: Vec<(String, i64)>,
}

fn name(text: &str) -> Result<&'static str, String> {
    let found = policies::ALL.iter().find(|policy| policy.name == text).map(|policy| policy.name);
    found.ok_or_else(|| format!("unknown policy '{text}': use {}", policies::ALL.map(|policy| policy.name).join(", ")))
}

fn process(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("invalid process id \"{text}\": give the number of a running process"))
}

fn parameter(text: &str) -> Result<(String, i64), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("'{text}': write it as in ahead=32"))?;
    let value = value.parse().map_err(|_| format!("'{text}': the value is a whole number"))?;
    Ok((name.to_owned(), value))
}

const AFTER: &str = "\
Policies, and their parameters:
  linear   the next pages come behind each fault
           ahead=8 (1 to 65536)
  csr      graphs: what is read at random stays, edges stream through a window
           ahead=256 (1 to 65536), behind=32 (1 to 65536), stay=60 (0 to 90)
  dt       memory leaves that was not used for a threshold of intervals (dt-reclaimer)
           interval_ms=1000 (1 to 86400000), promoted=20 (0 to 1000), looks=4 (0 to 64)
  sys-r    pages are due as their code has shown: late ones leave first (SYS-R)
           recent=60 (1 to 500)
  sys-agg  when a phase begins, pages of the one before leave (SYS-Agg)
           jump=3 (1 to 1000), part=250 (1 to 1000)
  wsr      what a lower limit drove out comes back when the limit is raised (WSR)
           portion=2048 (1 to 1000000)
  leap     pages come by the stride that most of a thread's last faults have (Leap)
           ahead=64 (1 to 65536)
  ghost    pages that came once leave early, those that come back stay (S3-FIFO)
           small=10 (1 to 90), stay_ms=1000 (1 to 86400000)

Examples:
  farshore policy linear 4242 ahead=32
  farshore policy csr 4242 --regions graph.txt
  farshore set 4242 ahead=64

Exit status:
  0    the program has ended, or SIGINT (Ctrl-C) or SIGTERM the policy
  1    the process cannot be attached to, or the file of --regions not be read
  125  a wrong option";

/// What usage errors name.
const WORDS: Words = Words {
    first: "command",
    known: "'farshore policy'",
    required: &[
        ("NAME", "no policy given: write it as in 'farshore policy linear PID', and see 'farshore policy --help'"),
        ("PID", "no process given: write it as in 'farshore policy linear 4242'"),
    ],
};

/// Reads the command line.
///
/// # Errors
/// A mistake, in one line.
pub fn parse(line: Vec<OsString>) -> Result<Asked<Command>, Refusal> {
    usage::command(line, &WORDS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use farshore_command::usage::Line;
    use farshore_manual::Parts;

    #[test]
    fn mistakes_are_one_line_that_names_them() {
        for (words, part) in [
            (&[][..], "no policy given"),
            (&["linear"], "no process given"),
            (&["best", "7"], "unknown policy 'best': use linear, csr"),
            (&["linear", "0"], "invalid process id \"0\""),
            (&["linear", "7", "ahead"], "'ahead': write it as in ahead=32"),
            (&["linear", "7", "ahead=x"], "'ahead=x': the value is a whole number"),
        ] {
            let line = ["farshore", "policy"].iter().chain(words).map(OsString::from).collect();
            let refusal = parse(line).map(|asked| panic!("{words:?} gave {asked:?}")).unwrap_err();
            assert!(refusal.text.contains(part) && !refusal.text.contains('\n'), "{words:?}: {}", refusal.text);
        }
    }

    #[test]
    fn the_help_has_every_policy_and_parameter() {
        Line::<Command>::command().debug_assert();
        for policy in &policies::ALL {
            let parameters: Vec<String> = policy
                .parameters
                .iter()
                .map(|(name, value, (least, most))| format!("{name}={value} ({least} to {most})"))
                .collect();
            let lines = format!("\n  {:<8} {}\n           {}\n", policy.name, policy.about, parameters.join(", "));
            assert!(AFTER.contains(&lines), "{lines}");
        }
    }

    #[test]
    fn the_manual_says_what_the_help_says() {
        let pages = [("policy", Parts::Pages, "farshore(1)")];
        farshore_manual::check_commands(env!("CARGO_MANIFEST_DIR"), Line::<Command>::command(), &pages);
    }
}
