//! The command line: options and their help.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use farshore_command::refusal::Refusal;
use farshore_command::usage::{self, Asked, Words};
use farshore_config::{Size, SwapSpec};

/// The whole of it, as `farshore` would read it if this were its command: so help and errors name `farshore manage`.
#[derive(Parser, Debug)]
#[command(name = "farshore", max_term_width = 100)]
pub struct Line {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The command.
#[derive(Subcommand, Debug)]
pub enum Command {
    #[command(
        about = farshore_command::MANAGE_ABOUT,
        long_about = "Manages the memory of virtual machines: a virtual machine monitor connects to SOCKET and hands the memory of its guest over. From \
    then on at most --memory of it is in RAM, and pages that do not fit move to the swap spaces, as with 'farshore run'. The guest runs on, and needs no \
    change. Each virtual machine gets a process of its own, which ends with it. Ended by a signal, the command gives all memory back first."
    )]
    Manage(ManageArgs),
}

/// `farshore manage`.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_MANAGE)]
pub struct ManageArgs {
    /// Listen at SOCKET, a path, for the processes of this user
    #[arg(long, value_name = "SOCKET")]
    pub listen: PathBuf,

    /// How memory is handed over
    #[arg(long, value_name = "NAME")]
    pub protocol: Protocol,

    /// The most memory of each virtual machine that is in RAM, at least 4M
    ///
    /// Not in it: the manager's own tables, 8 bytes for each page of 4 KiB that was used.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory: Size,

    /// Where cold pages go; repeat to spread them over several [default: a file in /var/tmp, or in $FARSHORE_SWAP_DIR]
    ///
    /// As with 'farshore run'. Each virtual machine has files of its own in a dir:. A file: or dev: is for one virtual machine at a time.
    #[arg(long, value_name = "SPEC")]
    pub swap: Vec<SwapSpec>,

    /// Encrypt pages on their way to the swap spaces
    #[arg(long)]
    pub encrypt: bool,
}

/// The protocols.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// Cloud Hypervisor's, in both of its proposed forms.
    CloudHypervisor,
}

const AFTER_MANAGE: &str = "\
Examples:
  farshore manage --listen /run/user/1000/memory --protocol cloud-hypervisor --memory 256M
  cloud-hypervisor --memory size=1G,shared=on,uffd_handoff_socket=/run/user/1000/memory,uffd_handoff_mode='MISSING|WP' ...

Signals: SIGUSR1 writes a line about each virtual machine to stderr. SIGINT, SIGTERM, SIGHUP and SIGQUIT end it. All memory
is brought back before, so that the virtual machines go on without a manager; where there is no room for that, it stays.

Exit status:
  1    it cannot listen at SOCKET, or the kernel lacks something
  125  a wrong option
  130  ended by Ctrl-C (128+n by signal n)";

/// What usage errors name.
const WORDS: Words = Words {
    first: "command",
    known: "manage",
    required: &[
        ("--listen", "no socket given: write --listen SOCKET, such as --listen /run/user/1000/memory"),
        ("--protocol", "no protocol given: write --protocol cloud-hypervisor"),
        ("--memory", "no memory given: write --memory SIZE, such as --memory 256M"),
    ],
};

/// The command that this command line is for.
///
/// # Errors
/// A usage error of one line (125).
pub fn parse(line: Vec<OsString>) -> Result<Asked<ManageArgs>, Refusal> {
    match usage::parse::<Line>(line, &WORDS)? {
        Asked::For(Line { command: Command::Manage(arguments) }) => Ok(Asked::For(arguments)),
        Asked::Text(text) => Ok(Asked::Text(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use farshore_manual::Parts;

    fn parsed(words: &[&str]) -> Result<Asked<ManageArgs>, Refusal> {
        parse(["farshore", "manage"].iter().chain(words).map(OsString::from).collect())
    }

    const GOOD: [&str; 6] = ["--listen", "/x", "--protocol", "cloud-hypervisor", "--memory", "64M"];

    #[test]
    fn the_definition_is_sound() {
        Line::command().debug_assert();
    }

    #[test]
    fn what_is_given_is_read() {
        let Ok(Asked::For(read)) = parsed(&[&GOOD[..], &["--swap", "ram:lz4", "--swap", "dir:/var/tmp"]].concat()) else {
            panic!("it is right")
        };
        assert_eq!(
            (read.memory, read.protocol, read.swap.len(), read.encrypt),
            (Size::mib(64), Protocol::CloudHypervisor, 2, false)
        );
    }

    #[test]
    fn mistakes_are_one_line_that_names_them() {
        for (words, part) in [
            (&GOOD[2..], "no socket given: write --listen"),
            (&[&GOOD[..2], &GOOD[4..]].concat()[..], "no protocol given"),
            (&GOOD[..4], "no memory given"),
            (&["--listen", "/x", "--protocol", "vnc", "--memory", "64M"], "vnc"),
            (&["--listen", "/x", "--protocol", "cloud-hypervisor", "--memory", "x"], "--memory: invalid size"),
            (&[&GOOD[..], &["--swap", "tape:/x"]].concat(), "--swap: invalid swap space \"tape:/x\""),
            (&[&GOOD[..], &["vm"]].concat(), "unknown word 'vm': see 'farshore manage --help'"),
        ] {
            let refusal = parsed(words).map(|asked| panic!("{words:?} gave {asked:?}")).unwrap_err();
            assert_eq!(refusal.status, farshore_command::refusal::CANNOT_START);
            assert!(refusal.text.contains(part) && !refusal.text.contains('\n'), "{words:?}: {}", refusal.text);
        }
    }

    #[test]
    fn the_manual_says_what_the_help_says() {
        let mut line = Line::command();
        line.build();
        let command = line.find_subcommand("manage").expect("it is a command");
        farshore_manual::check(env!("CARGO_MANIFEST_DIR"), "farshore-manage", command, Parts::Pages, "farshore(1)");
    }

    #[test]
    fn the_reference_has_every_option() {
        let mut above = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let root = above.find(|folder| folder.join("Cargo.lock").exists()).expect("the crate is in a workspace");
        let page = std::fs::read_to_string(root.join("docs/src/reference/command-line.md")).expect("it is there");
        let line = Line::command();
        let command = line.find_subcommand("manage").expect("it is a command");
        let options = command.get_arguments().filter_map(|argument| argument.get_long());
        let missing: Vec<_> = options.filter(|name| *name != "help" && !page.contains(&format!("--{name}"))).collect();
        assert!(missing.is_empty(), "docs/src/reference/command-line.md does not have {missing:?}");
    }
}
