//! The command line: options and their help.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use farshore_command::listen::Address;
use farshore_command::refusal::Refusal;
use farshore_command::usage::{self, Asked, Words};
use farshore_config::{Size, Time};
use farshore_node::space::{CHUNK, PAGE, Pages};

/// The command.
#[derive(Subcommand, Debug)]
pub enum Command {
    #[command(
        about = farshore_command::NODE_ABOUT,
        long_about = "Gives RAM of this machine to programs of other machines, or of this one: an NBD server for swap spaces. \
    'farshore run --swap nbd://HOST/NAME' uses it, and so can every other NBD client. A client's export is made when it asks for its \
    name, takes memory as it is written, gives back what is trimmed, and is gone with all of its memory some time after its \
    last connection. Runs as an ordinary user, until a signal ends it."
    )]
    Node(NodeArgs),
}

/// `farshore node`.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_NODE)]
pub struct NodeArgs {
    /// Listen at ADDR: HOST:PORT, or unix:PATH; repeat for several
    ///
    /// 10809 is the port that clients expect. An address that other machines can reach needs --token-file, or --open. With unix:PATH
    /// the socket is for its user alone.
    #[arg(long, value_name = "ADDR", required = true)]
    pub listen: Vec<Address>,

    /// The most memory that all exports take together
    ///
    /// A write to more is answered with ENOSPC, upon which a program under Farshore keeps its pages. Not in it: some MiB of the
    /// node's own, at most 0.6 MiB for each connection that is at work, and 10 MiB for each 256 GiB of an export.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory: Size,

    /// The size that each export seems to have [default: that of --memory]
    ///
    /// It takes memory only for what is written.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub export_size: Option<Size>,

    /// The most exports at a time, 1 to 1024
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub exports: u16,

    /// The most connections at a time, 1 to 65536
    ///
    /// A process under Farshore has about six.
    #[arg(long, value_name = "N", default_value = "4096", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub connections: u32,

    /// How many seconds an export is kept after its last connection, 0 to 86400
    ///
    /// So a program whose network is cut for a moment finds its pages again. Two minutes is how long a program under Farshore
    /// waits for its server (twelve times its --io-timeout).
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = seconds::<0, 86_400>)]
    pub keep: Duration,

    /// The size of the kernel's pages
    ///
    /// 4K gives memory back page by page. 2M takes and gives 2 MiB at a time, and needs huge pages for programs that ask for them
    /// (/sys/kernel/mm/transparent_hugepage/enabled: madvise or always). The first line on stderr says what there is.
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    pub pages: PageSize,

    /// Give exports only to clients whose export's name begins with a token of FILE
    ///
    /// FILE has a token in each line, of 16 to 128 letters, digits, '-', '_', '.' and '~', and only its user may read it. A client names its export TOKEN
    /// or TOKEN/NAME, so clients with different tokens never reach each other's exports. A token is no encryption: who listens on
    /// the wire sees it, and so do users of the client's machine, in its list of processes. Pages of programs under Farshore are
    /// encrypted all the same.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Listen without tokens where other machines can connect
    #[arg(long)]
    pub open: bool,

    /// Threads that serve connections, 1 to 256 [default: one a core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,

    /// How long a thread looks for more requests before it sleeps, 0us to 1ms
    ///
    /// It saves clients the time that a sleeping processor takes to wake up, and uses a processor for it.
    #[arg(long, value_name = "TIME", default_value = "0us", value_parser = poll)]
    pub poll: Duration,

    /// Write a line about the state to stderr every so many seconds, 1 to 86400
    ///
    /// SIGUSR1 asks for one.
    #[arg(long, value_name = "SECONDS", value_parser = seconds::<1, 86_400>)]
    pub status: Option<Duration>,

    /// Give the counters to Prometheus at ADDR: HOST:PORT, or unix:PATH
    ///
    /// Whoever can connect can read them; names of exports are not among them.
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<Address>,
}

/// Sizes of pages.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageSize {
    /// 4 KiB.
    #[value(name = "4K")]
    Small,
    /// 2 MiB.
    #[value(name = "2M")]
    Huge,
}

impl From<PageSize> for Pages {
    fn from(size: PageSize) -> Pages {
        match size {
            PageSize::Small => Pages::Small,
            PageSize::Huge => Pages::Huge,
        }
    }
}

const AFTER_NODE: &str = "\
Examples:
  farshore node --listen 127.0.0.1:10809 --memory 2G              for programs of this machine
  farshore run --memory 1G --swap nbd://127.0.0.1/job1 -- python3 job.py

  umask 077; openssl rand -hex 16 > tokens
  farshore node --listen 10.0.0.7:10809 --memory 64G --token-file tokens
  farshore run --memory 1G --swap nbd://10.0.0.7/$(cat tokens)/job1 -- python3 job.py

  farshore node --listen unix:/run/user/1000/node --memory 2G --metrics 127.0.0.1:9276
  nbdinfo 'nbd+unix:///any?socket=/run/user/1000/node'

Signals: SIGUSR1 writes a line about the state to stderr. SIGINT, SIGTERM, SIGHUP and SIGQUIT end
it; the memory of all exports is gone then.

Exit status:
  1    it cannot listen at ADDR, or the kernel lacks something
  125  a wrong option
  130  ended by Ctrl-C (128+n by signal n)";

fn seconds<const LEAST: u64, const MOST: u64>(text: &str) -> Result<Duration, String> {
    match text.parse::<u64>() {
        Ok(seconds) if (LEAST..=MOST).contains(&seconds) => Ok(Duration::from_secs(seconds)),
        _ => Err(format!("invalid number of seconds {text:?}: write a whole number from {LEAST} to {MOST}")),
    }
}

fn poll(text: &str) -> Result<Duration, String> {
    match text.parse::<Time>() {
        Ok(time) if time.ns() <= 1_000_000 => Ok(Duration::from_nanos(time.ns())),
        _ => Err(format!("invalid time {text:?}: write one from 0us to 1ms, such as 50us")),
    }
}

/// What usage errors name.
const WORDS: Words = Words {
    first: "command",
    known: "node",
    required: &[
        ("--listen", "no address given: write --listen HOST:PORT or --listen unix:PATH"),
        ("--memory", "no memory given: write --memory SIZE, such as --memory 8G"),
    ],
};

/// The command that this command line is for.
///
/// # Errors
/// A usage error of one line (125).
pub fn parse(line: Vec<OsString>) -> Result<Asked<NodeArgs>, Refusal> {
    match usage::command(line, &WORDS)? {
        Asked::For(Command::Node(arguments)) => check(arguments).map(Asked::For),
        Asked::Text(text) => Ok(Asked::Text(text)),
    }
}

/// What no single option shows.
fn check(arguments: NodeArgs) -> Result<NodeArgs, Refusal> {
    /// Addresses that a process can have, with some to spare, in bytes.
    const ADDRESSES: u64 = 1 << 46;
    let (memory, size) = (arguments.memory, arguments.size());
    let wrong = if memory.bytes() < CHUNK {
        format!("--memory: {memory} is too little: give at least 2M")
    } else if size < CHUNK || size % PAGE != 0 {
        format!("--export-size: {} cannot be the size of an export: give at least 2M, in units of 4K", Size(size))
    } else if size.saturating_mul(u64::from(arguments.exports)) > ADDRESSES {
        format!(
            "--export-size: {} exports of {} have no room in a process: give less of one, or --exports",
            arguments.exports,
            Size(size)
        )
    } else {
        return Ok(arguments);
    };
    Err(Refusal::cannot_start(wrong))
}

impl NodeArgs {
    /// The size that each export seems to have, in bytes.
    pub fn size(&self) -> u64 {
        self.export_size.map_or(self.memory.bytes() / PAGE * PAGE, Size::bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use farshore_command::usage::Line;
    use farshore_manual::Parts;

    fn parsed(words: &[&str]) -> Result<Asked<NodeArgs>, Refusal> {
        parse(["farshore", "node"].iter().chain(words).map(OsString::from).collect())
    }

    #[test]
    fn the_definition_is_sound() {
        Line::<Command>::command().debug_assert();
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let Ok(Asked::For(node)) = parsed(&["--listen", "unix:/x", "--listen", "[::1]:0", "--memory", "8G"]) else {
            panic!("it is right")
        };
        assert_eq!((node.size(), node.exports, node.keep, node.pages), (8 << 30, 64, Duration::from_secs(120), PageSize::Small));
        assert_eq!(node.listen, [Address::Unix("/x".into()), Address::Tcp("[::1]:0".into())]);
    }

    #[test]
    fn mistakes_are_one_line_that_names_them() {
        let good = ["--listen", "127.0.0.1:1", "--memory", "1G"];
        for (words, part) in [
            (&["--memory", "1G"][..], "no address given: write --listen"),
            (&["--listen", "127.0.0.1:1"], "no memory given: write --memory"),
            (&["--listen", "10809", "--memory", "1G"], "--listen: invalid address \"10809\""),
            (&["--listen", "127.0.0.1:1", "--memory", "1M"], "--memory: 1M is too little"),
            (&["--listen", "127.0.0.1:1", "--memory", "-1"], "negative"),
            (&[&good[..], &["--export-size", "1M"]].concat(), "--export-size: 1M cannot be"),
            (&[&good[..], &["--export-size", "3000001"]].concat(), "units of 4K"),
            (&[&good[..], &["--export-size", "2T"]].concat(), "64 exports of 2T have no room"),
            (&[&good[..], &["--exports", "0"]].concat(), "0"),
            (&[&good[..], &["--keep", "1m"]].concat(), "--keep: invalid number of seconds \"1m\""),
            (&[&good[..], &["--poll", "2ms"]].concat(), "--poll: invalid time \"2ms\""),
            (&[&good[..], &["--pages", "1G"]].concat(), "1G"),
            (&[&good[..], &["nbd"]].concat(), "unknown word 'nbd': see 'farshore node --help'"),
        ] {
            let refusal = parsed(words).map(|asked| panic!("{words:?} gave {asked:?}")).unwrap_err();
            assert_eq!(refusal.status, farshore_command::refusal::CANNOT_START);
            assert!(refusal.text.contains(part) && !refusal.text.contains('\n'), "{words:?}: {}", refusal.text);
        }
    }

    #[test]
    fn the_manual_says_what_the_help_says() {
        let pages = [("node", Parts::Pages, "farshore(1)")];
        farshore_manual::check_commands(env!("CARGO_MANIFEST_DIR"), Line::<Command>::command(), &pages);
    }

    #[test]
    fn the_reference_has_every_option() {
        let mut above = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let root = above.find(|folder| folder.join("Cargo.lock").exists()).expect("the crate is in a workspace");
        let page = std::fs::read_to_string(root.join("docs/src/reference/command-line.md")).expect("it is there");
        let line = Line::<Command>::command();
        let command = line.find_subcommand("node").expect("it is a command");
        let options = command.get_arguments().filter_map(|argument| argument.get_long());
        let missing: Vec<_> = options.filter(|name| *name != "help" && !page.contains(&format!("--{name}"))).collect();
        assert!(missing.is_empty(), "docs/src/reference/command-line.md does not have {missing:?}");
    }
}
