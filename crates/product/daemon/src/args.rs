//! The command line: options and their help.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use farshore_command::listen::Address;
use farshore_command::refusal::Refusal;
use farshore_command::usage::{self, Asked, Words};

/// The command.
#[derive(Subcommand, Debug)]
pub enum Command {
    #[command(
        about = farshore_command::DAEMON_ABOUT,
        long_about = "Watches the virtual machines and programs of its user that run under Farshore, and steers them: an HTTP API in JSON, and a web page. What runs is found, \
    whoever has started it. Virtual machines can be started here too, with a service level: a fixed limit, a slowdown that is not exceeded, or a share of a budget. They go on \
    when the daemon ends."
    )]
    Daemon(DaemonArgs),
}

/// `farshore daemon`.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER)]
pub struct DaemonArgs {
    /// Listen at ADDR: unix:PATH, or HOST:PORT with --token-file; repeat for more
    ///
    /// At unix:PATH the daemon's user and root are answered, by what the kernel says of them. [default: the sockets that systemd has handed on; else farshore.sock
    /// in $XDG_RUNTIME_DIR, or in /run for root]
    #[arg(long, value_name = "ADDR")]
    pub listen: Vec<Address>,

    /// At HOST:PORT, answer those alone who know a token of FILE
    ///
    /// FILE has a token in each line, of 16 to 128 letters, digits, '-', '_', '.' and '~', and only its user may read it. Who knows one can start programs as the daemon's user.
    /// What goes over the line is not encrypted: listen on this machine alone, and come by an SSH tunnel from another one.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

const AFTER: &str = "\
Examples:
  farshore daemon
  curl --unix-socket $XDG_RUNTIME_DIR/farshore.sock http://localhost/v1/vms

  umask 077; openssl rand -hex 16 > token
  farshore daemon --listen 127.0.0.1:9280 --token-file token
  xdg-open http://127.0.0.1:9280/          the web page: paste the token there

  systemctl --user enable --now farshore-daemon.socket         started by the first who asks

GET /v1/openapi.json describes the API.

Exit status:
  1    it cannot listen at ADDR
  125  a wrong option
  130  ended by Ctrl-C (128+n by signal n)";

/// What usage errors name.
const WORDS: Words = Words { first: "command", known: "daemon", required: &[] };

/// The command that this command line is for.
///
/// # Errors
/// A usage error of one line (125).
pub fn parse(line: Vec<OsString>) -> Result<Asked<Command>, Refusal> {
    usage::command::<Command>(line, &WORDS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use farshore_command::usage::Line;
    use farshore_manual::Parts;

    #[test]
    fn the_definition_is_sound() {
        Line::<Command>::command().debug_assert();
    }

    #[test]
    fn mistakes_are_one_line_that_names_them() {
        for (words, part) in [
            (&["--listen", "9280"][..], "--listen: invalid address \"9280\""),
            (&["--token", "x"], "unknown option '--token'"),
            (&["start"], "unknown word 'start': see 'farshore daemon --help'"),
        ] {
            let line = ["farshore", "daemon"].iter().chain(words).map(OsString::from).collect();
            let refusal = parse(line).map(|asked| panic!("{words:?} gave {asked:?}")).unwrap_err();
            assert!(refusal.text.contains(part) && !refusal.text.contains('\n'), "{words:?}: {}", refusal.text);
        }
    }

    #[test]
    fn the_manual_says_what_the_help_says() {
        let pages = [("daemon", Parts::Pages, "farshore(1), farshore-vm(1)")];
        farshore_manual::check_commands(env!("CARGO_MANIFEST_DIR"), Line::<Command>::command(), &pages);
    }

    #[test]
    fn no_example_has_a_token_on_a_command_line() {
        let mut above = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let root = above.find(|folder| folder.join("Cargo.lock").exists()).expect("the crate is in a workspace");
        let pages = ["docs/src/guide/daemon.md", "docs/src/reference/api.md", "docs/man/farshore-daemon.1"];
        let pages = pages.map(|page| std::fs::read_to_string(root.join(page)).expect("it is there"));
        // Every user of the machine can read the command lines of all processes.
        for page in pages.iter().map(String::as_str).chain([AFTER]) {
            assert!(!page.contains("$(cat token") && !page.contains("Bearer $("), "{page}");
        }
    }

    #[test]
    fn the_reference_has_every_option() {
        let mut above = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let root = above.find(|folder| folder.join("Cargo.lock").exists()).expect("the crate is in a workspace");
        let page = std::fs::read_to_string(root.join("docs/src/reference/command-line.md")).expect("it is there");
        let line = Line::<Command>::command();
        let options = line.get_subcommands().flat_map(clap::Command::get_arguments).filter_map(|argument| argument.get_long());
        let missing: Vec<_> = options.filter(|name| *name != "help" && !page.contains(&format!("--{name}"))).collect();
        assert!(missing.is_empty(), "docs/src/reference/command-line.md does not have {missing:?}");
    }
}
