//! The command line: options and their help.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use farshore_command::listen::Address;
use farshore_command::refusal::Refusal;
use farshore_command::usage::{self, Asked, Words};

use farshore_config::Size;

use crate::plan::device;

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    #[command(
        about = farshore_command::TOP_ABOUT,
        long_about = "Shows all programs that you run under Farshore, and for root those of all users: what memory they have, how often \
    they fault, and how long they wait for memory. A program that is stopped keeps its line, and no other waits for it."
    )]
    Top(TopArgs),
    #[command(
        about = farshore_command::METRICS_ABOUT,
        long_about = "Gives the counters of all programs that you run under Farshore, and for root of those of all users, in the form of \
    OpenMetrics: once on standard output, or with --listen to Prometheus, whenever it asks."
    )]
    Metrics(MetricsArgs),
    #[command(
        about = farshore_command::PLAN_ABOUT,
        long_about = "Runs PROGRAM once under Farshore, with half of the memory that it uses, and tells at its end how long it would take with more \
    memory and with less: a table, and one sentence of advice, on standard error. Input, output and exit status are PROGRAM's own.\n\n\
    With more memory than the run had, misses are measured; with less, they are extrapolated, and the table says so."
    )]
    Plan(PlanArgs),
    #[command(
        about = farshore_command::RECORD_ABOUT,
        long_about = "Writes each fault of a program, with address, instruction and thread, and all pages that come and leave, with times, to a file. \
    'farshore report' makes a page of it.\n\nWith a PID it hears a program that runs under Farshore, until it ends or Ctrl-C. A dormant one is woken. \
    Or it runs PROGRAM under Farshore, and hears it from its start; then input, output and exit status are PROGRAM's own."
    )]
    Record(RecordArgs),
    #[command(
        about = farshore_command::REPORT_ABOUT,
        long_about = "Makes one HTML page of a recording: when which addresses faulted, which mappings, functions and lines that was, how far apart pages are \
    used again, and how many pages other policies would have read. The page needs no network. Functions and lines are looked up in the program's files, which must be \
    there unchanged."
    )]
    Report(ReportArgs),
}

/// `farshore record`.
#[derive(Args, Debug)]
#[command(override_usage = "farshore record [OPTIONS] PID\n       farshore record [OPTIONS] -- PROGRAM [ARG]...", after_long_help = AFTER_RECORD)]
pub struct RecordArgs {
    /// Write to this file [default: farshore-PID.rec in this directory]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Overwrite a file that is there
    #[arg(long)]
    pub force: bool,
    /// Run PROGRAM with this limit, as for 'farshore run'
    #[arg(long, value_name = "SIZE", conflicts_with = "pid")]
    pub memory: Option<Size>,
    /// A swap space for PROGRAM, as for 'farshore run'; repeat for more
    #[arg(long, value_name = "SPEC", conflicts_with = "pid")]
    pub swap: Vec<OsString>,
    /// The process
    #[arg(value_name = "PID", required_unless_present = "command", conflicts_with = "command", value_parser = process)]
    pub pid: Option<u32>,
    /// The program, and its arguments
    #[arg(value_name = "PROGRAM", last = true)]
    pub command: Vec<OsString>,
}

const AFTER_RECORD: &str = "\
Examples:
  farshore record 4242                                  a running program, until Ctrl-C
  farshore record -o sort.rec --memory 64M -- sort big.txt
  farshore report sort.rec                              a page of it, sort.rec.html

Exit status: with a PID 0, else PROGRAM's, 128+n when signal n ended it.
  1    the process cannot be heard, or the file not be written any more
  125  a wrong option; the file is there already; PROGRAM cannot run under Farshore
  126  PROGRAM cannot be executed
  127  PROGRAM is not there";

/// `farshore report`.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_REPORT)]
pub struct ReportArgs {
    /// A file of 'farshore record'
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Write the page to this file; - is standard output [default: FILE.html]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

const AFTER_REPORT: &str = "\
A recording that is cut off or damaged is shown up to there, and the page says so. A page that is
there is overwritten. Like the recording it is for its user alone.

Examples:
  farshore record -o sort.rec --memory 64M -- sort big.txt
  farshore report sort.rec                              sort.rec.html
  farshore report -o - sort.rec > page.html

Exit status:
  0    the page was written
  1    FILE cannot be read, or is no recording, or the page not be written
  125  a wrong option";

/// `farshore plan`.
#[derive(Args, Debug)]
#[command(override_usage = "farshore plan [OPTIONS] [--] PROGRAM [ARG]...\n       farshore plan [OPTIONS] --pid PID", after_long_help = AFTER_PLAN)]
pub struct PlanArgs {
    /// Run with this limit, and measure from there on [default: half of what the program uses, which the limit follows]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Size>,
    /// A swap space, as for 'farshore run'; repeat for more
    #[arg(long, value_name = "SPEC")]
    pub swap: Vec<OsString>,
    /// Tell of another swap space, without running there: read_us=80,iops=70000, or ram, ram:lz4, ram:zstd
    ///
    /// read_us is the time of a read of one page in microseconds, iops how many pages it reads and writes a second.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<device::Named>,
    /// Write the plan to this file too, as JSON; - is standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Watch this process, which runs under Farshore, instead of starting a program; until it ends, or Ctrl-C
    #[arg(long, value_name = "PID", conflicts_with_all = ["memory", "swap", "command"])]
    pub pid: Option<u32>,
    /// The program, and its arguments
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, allow_hyphen_values = true, required_unless_present = "pid")]
    pub command: Vec<OsString>,
}

const AFTER_PLAN: &str = "\
Columns:
  memory    what --memory would be
  time      how long the program would take
  slower    how many times longer than if everything fitted
  ideal     the time if a page that comes took the device's time alone
  misses    pages that come back from the swap space
  reads/s   pages that are read there, a second
  writes/s  pages that are written there, a second
            'more or less' after a row: it is below what the run had, and extrapolated

Examples:
  farshore plan -- sort big.txt
  farshore plan --memory 300M --json plan.json -- ./program
  farshore plan --device read_us=80,iops=70000 -- ./program     with that device instead
  farshore plan --pid 4242                                      watch it for a while

Exit status: PROGRAM's, 128+n when signal n ended it; with --pid 0.
  1    the plan cannot be written, or the process not be watched
  125  a wrong option; PROGRAM cannot run under Farshore
  126  PROGRAM cannot be executed
  127  PROGRAM is not there";

/// `farshore top`.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_TOP)]
pub struct TopArgs {
    /// Print the table once, and end; so it is where standard output is no terminal
    ///
    /// It looks for one interval first, since rates need two looks.
    #[arg(long)]
    pub once: bool,
    /// Seconds from one look to the next, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: Duration,
    /// The column to sort by
    #[arg(long, value_name = "COLUMN", default_value = "stall")]
    pub sort: Column,
}

/// What a table can be sorted by.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[value(rename_all = "lower")]
pub enum Column {
    Pid,
    Name,
    Limit,
    Resident,
    Out,
    Faults,
    Evicted,
    Stall,
    Slowed,
    Family,
}

const AFTER_TOP: &str = "\
Columns:
  pid       the process
  name      the program
  limit     the memory limit, which a family shares
  resident  managed memory that is local
  out       what the swap spaces hold: pages that are out, and copies of unchanged pages that are
            local too
  faults    faults of all kinds, a second; the bars show the last minute
  evicted   pages that left, a second
  stall     time that threads waited in faults; 100 % is one thread all the time, so several can
            have more. A wait counts when it ends
  slowed    how much longer the program takes than without faults, and how much longer it may, if
            Farshore chooses its limit (--slowdown)
  family    the part of the limit that this process has now, and how many processes share it; then
            the budget that the program is in (--budget), its share, and the budget's size

Keys:
  left, right  sort by another column
  r            the other way round
  p, space     stop and go on
  up, down     scroll
  q, Ctrl-C    end

A program is 'dormant' as long as its memory has always fitted: Farshore does nothing there and has
no counters. It is not woken; 'farshore stat' would do that.

Examples:
  farshore top
  farshore top --sort resident --interval 5
  farshore top --once --sort faults | head -5       the four that fault most

Exit status: 0, also if no program runs under Farshore.";

/// `farshore metrics`.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_METRICS)]
pub struct MetricsArgs {
    /// Serve them at ADDR, until a signal ends it: HOST:PORT, or unix:PATH
    ///
    /// Whoever can connect can read the names and counters of your programs, and change nothing. With unix:PATH those can whom the
    /// rights of the directory let in; the socket itself is for its user alone.
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<Address>,
    /// Tell of each program what of it lies in RAM, by kind
    ///
    /// The kernel counts that when it is asked, which takes it milliseconds for each GiB.
    #[arg(long)]
    pub kinds: bool,
}

const AFTER_METRICS: &str = "\
Each counter of 'farshore stat --json PID' is a metric with the labels pid and name, such as
farshore_faults_fetch_total. Times are in seconds. farshore_up is 1 for a program that has answered
within two seconds, else 0 and all there is of it; farshore_dormant is 1 for a program whose memory
has always fitted, which has no counters and is not woken.

Examples:
  farshore metrics                                  once
  farshore metrics --listen 127.0.0.1:9275          for Prometheus on this machine
  farshore metrics --listen unix:/run/user/1000/farshore.sock
  curl --unix-socket /run/user/1000/farshore.sock http://localhost/metrics

Exit status:
  0    it was printed
  1    it cannot listen at ADDR
  125  a wrong option
  130  ended by Ctrl-C (128+n by signal n)";

fn process(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(pid) if pid > 0 => Ok(pid),
        _ => Err(format!("invalid process id {text:?}: write its number, or a program behind '--'")),
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3_600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("invalid number of seconds {text:?}: write one from 0.1 to 3600")),
    }
}

/// What usage errors name.
const WORDS: Words = Words {
    first: "command",
    known: "top, metrics, plan, record or report",
    required: &[
        ("PID", "neither a process nor a program given: write it as in 'farshore record PID' or 'farshore record -- PROGRAM'"),
        ("FILE", "no FILE given: write it as in 'farshore report FILE'"),
        ("PROGRAM", "no PROGRAM given: write it as in 'farshore plan -- PROGRAM'"),
    ],
};

/// The command that this command line is for.
///
/// # Errors
/// A usage error of one line (125).
pub fn parse(line: Vec<OsString>) -> Result<Asked<Command>, Refusal> {
    usage::command(line, &WORDS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use farshore_command::usage::Line;
    use farshore_manual::Parts;

    fn parsed(words: &[&str]) -> Result<Asked<Command>, Refusal> {
        parse(std::iter::once("farshore").chain(words.iter().copied()).map(OsString::from).collect())
    }

    #[test]
    fn the_definition_is_sound() {
        Line::<Command>::command().debug_assert();
    }

    #[test]
    fn mistakes_are_one_line_that_names_them() {
        for (words, part) in [
            (&["top", "--interval", "0"][..], "--interval: invalid number of seconds \"0\""),
            (&["top", "--interval", "nan"], "\"nan\""),
            (&["top", "--sort", "speed"], "speed"),
            (&["top", "4242"], "unknown word '4242': see 'farshore top --help'"),
            (&["metrics", "--listen", "9275"], "--listen: invalid address \"9275\""),
            (&["metrics", "--listen", "unix:"], "--listen: invalid address \"unix:\""),
            (&["plan"], "no PROGRAM given: write it as in 'farshore plan -- PROGRAM'"),
            (&["plan", "--memory", "lots", "--", "x"], "--memory: invalid size \"lots\""),
            (&["plan", "--device", "fast", "--", "x"], "--device: invalid device \"fast\""),
            (&["plan", "--pid", "7", "--", "x"], "--pid does not go with"),
            (&["record"], "neither a process nor a program given"),
            (&["record", "0"], "invalid process id \"0\""),
            (&["record", "ls"], "invalid process id \"ls\""),
            (&["record", "7", "--memory", "1G"], "[PID] does not go with --memory"),
            (&["record", "7", "--", "x"], "[PID] does not go with [PROGRAM]"),
            (&["report"], "no FILE given: write it as in 'farshore report FILE'"),
            (&["walk"], "unknown command 'walk'"),
        ] {
            let refusal = parsed(words).map(|asked| panic!("{words:?} gave {asked:?}")).unwrap_err();
            assert_eq!(refusal.status, farshore_command::refusal::CANNOT_START);
            assert!(refusal.text.contains(part) && !refusal.text.contains('\n'), "{words:?}: {}", refusal.text);
        }
    }

    #[test]
    fn the_manual_says_what_the_help_says() {
        let pages = ["top", "metrics", "plan", "record", "report"].map(|name| (name, Parts::Pages, "farshore(1)"));
        farshore_manual::check_commands(env!("CARGO_MANIFEST_DIR"), Line::<Command>::command(), &pages);
    }

    #[test]
    fn the_help_and_the_reference_have_every_option_and_column() {
        let mut above = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let root = above.find(|folder| folder.join("Cargo.lock").exists()).expect("the crate is in a workspace");
        let page = std::fs::read_to_string(root.join("docs/src/reference/command-line.md")).expect("it is there");
        for command in Line::<Command>::command().get_subcommands() {
            let options = command.get_arguments().filter_map(|argument| argument.get_long());
            let missing: Vec<_> = options.filter(|name| *name != "help" && !page.contains(&format!("--{name}"))).collect();
            assert!(missing.is_empty(), "docs/src/reference/command-line.md does not have {missing:?}");
        }
        for column in Column::value_variants() {
            let name = column.to_possible_value().expect("none is hidden").get_name().to_owned();
            assert!(AFTER_TOP.contains(&format!("\n  {name:<10}")), "{name}");
        }
    }
}
